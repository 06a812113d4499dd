//! The interrupt line of a PCI device through Linux' `uio_pci_generic`: INTx without a kernel module of our own.
//!
//! When the line rises, the kernel masks it in the device's command register and counts. Whoever has silenced
//! the device unmasks it here; a line that is up again by then fires at once, so nothing is lost. MSI-X is not
//! offered by that driver. Knows no device.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::pci::{COMMAND, PciError};

/// Interrupt disable, in the upper byte of the command register.
const DISABLE: u8 = 1 << (10 - 8);
const WAY_OUT: &str = "Give the device to uio_pci_generic, as root: write its vendor and device number, as \
     `10ee 903f`, to /sys/bus/pci/drivers/uio_pci_generic/new_id";

/// A device's interrupt line.
#[derive(Debug)]
pub struct UioInterrupt {
    path: PathBuf,
    uio: File,
    config: File,
}

impl UioInterrupt {
    /// The line of a device, by its folder in sysfs (`/sys/bus/pci/devices/...`). It stays masked where it was.
    ///
    /// # Errors
    /// The device is not `uio_pci_generic`'s, or its files cannot be opened.
    pub fn open(device: &Path) -> Result<Self, PciError> {
        let folder = device.join("uio");
        let name = std::fs::read_dir(&folder)
            .and_then(|mut entries| entries.next().unwrap_or(Err(io::ErrorKind::NotFound.into())));
        let name = name.map_err(|source| failed(&folder, source))?.file_name();
        Self::of_files(&Path::new("/dev").join(name), &device.join("config"))
    }

    fn of_files(uio: &Path, config: &Path) -> Result<Self, PciError> {
        let open = |path: &Path| {
            let file = OpenOptions::new().read(true).write(true).open(path);
            file.map_err(|source| failed(path, source))
        };
        Ok(Self { path: uio.to_owned(), uio: open(uio)?, config: open(config)? })
    }

    /// Lets the line fire, again: after the device was silenced.
    ///
    /// # Errors
    /// Configuration space cannot be reached.
    pub fn unmask(&mut self) -> Result<(), PciError> {
        let mut upper = [0];
        let at = COMMAND + 1;
        let masked = self.config.read_exact_at(&mut upper, at);
        let unmasked = masked.and_then(|()| self.config.write_all_at(&[upper[0] & !DISABLE], at));
        unmasked.map_err(|source| failed(&self.path, source))
    }

    /// Waits until the line has fired, and returns how often it has since the kernel's driver took the device;
    /// `None`: not in time. The line is masked then.
    ///
    /// # Errors
    /// The device is gone.
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<u32>, PciError> {
        if !wait_readable(&self.uio, timeout).map_err(|source| failed(&self.path, source))? {
            return Ok(None);
        }
        let mut count = [0; 4];
        self.uio.read_exact(&mut count).map_err(|source| failed(&self.path, source))?;
        Ok(Some(u32::from_ne_bytes(count)))
    }
}

/// Whether there is something to read, in time.
pub(crate) fn wait_readable(file: &File, timeout: Duration) -> io::Result<bool> {
    let timeout = Timespec::try_from(timeout).ok();
    let mut waited = [PollFd::new(file, PollFlags::IN)];
    loop {
        match poll(&mut waited, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(ready) => return Ok(ready > 0),
            Err(error) => return Err(error.into()),
        }
    }
}

fn failed(path: &Path, source: io::Error) -> PciError {
    PciError::File { path: path.to_owned(), source, way_out: WAY_OUT }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pipe stands for the kernel's device, a file for configuration space.
    #[test]
    fn waiting_counts_what_fired_and_unmasking_changes_one_bit() {
        let folder = std::env::temp_dir().join(format!("rnic-{}-uio", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        let config = folder.join("config");
        std::fs::write(&config, [0xEE, 0x10, 0x3F, 0x90, 0x06, 0x05, 0xEE, 0xEE]).expect("a file");
        let (output, input) = rustix::pipe::pipe().expect("a pipe");
        let (uio, config_file) =
            (File::from(output), OpenOptions::new().read(true).write(true).open(&config));
        let mut line =
            UioInterrupt { path: folder.clone(), uio, config: config_file.expect("a file") };
        assert_eq!(line.wait(Duration::ZERO).expect("nothing came"), None);
        rustix::io::write(&input, &7u32.to_ne_bytes()).expect("room");
        assert_eq!(line.wait(Duration::from_secs(1)).expect("it came"), Some(7));
        line.unmask().expect("a file");
        let bytes = std::fs::read(&config).expect("a file");
        assert_eq!(bytes, [0xEE, 0x10, 0x3F, 0x90, 0x06, 0x01, 0xEE, 0xEE]);
        drop(input);
        let gone = line.wait(Duration::from_secs(1)).expect_err("the end of the file").to_string();
        assert!(gone.contains("uio_pci_generic"), "{gone}");
        std::fs::remove_dir_all(&folder).expect("ours");
    }

    #[test]
    fn a_device_of_another_driver_has_no_line_here() {
        let error =
            UioInterrupt::open(Path::new("/nonexistent")).expect_err("no such device").to_string();
        assert!(error.contains("/nonexistent/uio") && error.contains("new_id"), "{error}");
    }
}
