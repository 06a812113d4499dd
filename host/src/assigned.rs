//! A PCI device that Linux' `vfio-pci` has given to this process: its BAR, memory that it reaches at addresses that we
//! choose, and MSI-X. An IOMMU keeps the device out of everything else, so no physical address is needed.
//!
//! The kernel's structures are those of vfio-user, which was made after them. Knows no register.
#![allow(unsafe_code, reason = "vfio-pci is asked by ioctl")]

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use crate::pci::{self, BUS_MASTER, COMMAND, MEMORY_ACCESS, Mapping, PciCard, PciError};
use crate::uio::wait_readable;
use crate::vfio::wire::{
    CONFIG_REGION, IRQ_MSIX, MAP_READ, MAP_WRITE, RegionInfo, SetIrqs, irq_set,
};

/// The kernel's driver that gives devices to processes.
pub const ASSIGNING_DRIVER: &str = "vfio-pci";
const WAY_OUT: &str = "As root, with an IOMMU (`intel_iommu=on`), write `vfio-pci` to the device's file \
     driver_override and its address to /sys/bus/pci/drivers_probe; every device of its IOMMU group must be free";
/// First bus address of the memory: below what 32 bits name, and above where PCs have their low memory.
const MEMORY_BASE: u64 = 0x1000_0000;

/// Requests of linux/vfio.h, by number: ';' is their type, and they begin at 100.
mod request {
    const fn code(number: u64) -> u64 {
        (b';' as u64) << 8 | (100 + number)
    }
    pub(super) const GET_API_VERSION: u64 = code(0);
    pub(super) const SET_IOMMU: u64 = code(2);
    pub(super) const GROUP_SET_CONTAINER: u64 = code(4);
    pub(super) const GROUP_GET_DEVICE_FD: u64 = code(6);
    pub(super) const DEVICE_GET_REGION_INFO: u64 = code(8);
    pub(super) const DEVICE_SET_IRQS: u64 = code(10);
    pub(super) const IOMMU_MAP_DMA: u64 = code(13);
}

/// VFIO_API_VERSION.
const API_VERSION: i32 = 0;
/// VFIO_TYPE1v2_IOMMU.
const TYPE1_V2: usize = 3;

/// VFIO_IOMMU_MAP_DMA's structure.
#[repr(C)]
struct MapDma {
    argsz: u32,
    flags: u32,
    process_address: u64,
    bus_address: u64,
    len: u64,
}

/// VFIO_DEVICE_SET_IRQS with one eventfd behind it.
#[repr(C)]
struct SetOneIrq {
    set: SetIrqs,
    target: i32,
}

/// A device of this process. Dropping it resets the device and takes its memory from it.
#[derive(Debug)]
pub struct AssignedDevice {
    path: PathBuf,
    device: File,
    _group: File,
    container: File,
}

impl AssignedDevice {
    /// Whether `vfio-pci` has a device, by its folder in sysfs (`/sys/bus/pci/devices/...`).
    #[must_use]
    pub fn has(device: &Path) -> bool {
        pci::driver_of(device).ends_with(ASSIGNING_DRIVER)
    }

    /// Opens a device by its folder in sysfs, and lets it reach memory once there is some.
    ///
    /// # Errors
    /// The device is not `vfio-pci`'s, its IOMMU group is not free, or another process has it.
    pub fn open(device: &Path) -> Result<Self, PciError> {
        let failed = |source| failed(device, source);
        let group = std::fs::read_link(device.join("iommu_group")).map_err(failed)?;
        let address = std::fs::canonicalize(device).map_err(failed)?;
        let (Some(group), Some(address)) = (group.file_name(), address.file_name()) else {
            return Err(failed(io::ErrorKind::NotFound.into()));
        };
        let open = |path: &Path| {
            let file = OpenOptions::new().read(true).write(true).open(path);
            file.map_err(|source| self::failed(path, source))
        };
        let container = open(Path::new("/dev/vfio/vfio"))?;
        let group = open(&Path::new("/dev/vfio").join(group))?;
        let address = CString::new(address.as_encoded_bytes()).map_err(|e| failed(e.into()))?;
        // SAFETY: takes no argument.
        let version = unsafe { ask(&container, request::GET_API_VERSION, 0) }.map_err(failed)?;
        if version != API_VERSION {
            return Err(failed(io::ErrorKind::Unsupported.into()));
        }
        let descriptor: i32 = container.as_raw_fd();
        let at = (&raw const descriptor).addr();
        // SAFETY: takes a pointer to a file descriptor, which lives until the call returns.
        unsafe { ask(&group, request::GROUP_SET_CONTAINER, at) }.map_err(failed)?;
        // SAFETY: takes a number.
        unsafe { ask(&container, request::SET_IOMMU, TYPE1_V2) }.map_err(failed)?;
        // SAFETY: takes a pointer to a string that ends with a zero, which lives until the call returns.
        let file = unsafe { ask(&group, request::GROUP_GET_DEVICE_FD, address.as_ptr().addr()) };
        // SAFETY: a file descriptor that the kernel has made for us, and that nobody else has.
        let file = unsafe { File::from_raw_fd(file.map_err(failed)?) };
        let opened = Self { path: device.to_owned(), device: file, _group: group, container };
        opened.enable()?;
        Ok(opened)
    }

    /// The registers in a BAR, and a file (on hugetlbfs, say) as the card's memory.
    ///
    /// # Errors
    /// Something cannot be mapped, or is too short.
    pub fn card(&self, bar: u32, memory: &Path) -> Result<PciCard, PciError> {
        let region = self.region(bar)?;
        if region.size.get() < PciCard::REGISTER_BYTES {
            return Err(PciError::TooShort {
                path: self.path.clone(),
                len: region.size.get(),
                needed: PciCard::REGISTER_BYTES,
                purpose: "for the register map; check the BAR number",
            });
        }
        let len = PciCard::REGISTER_BYTES as usize;
        let registers = Mapping::new(&self.device, region.offset.get(), len);
        let registers = registers.map_err(|source| failed(&self.path, source))?;
        let memory = pci::map_memory(memory)?;
        let map = MapDma {
            argsz: size_of::<MapDma>() as u32,
            flags: MAP_READ | MAP_WRITE,
            process_address: memory.address() as u64,
            bus_address: MEMORY_BASE,
            len: memory.len() as u64,
        };
        // SAFETY: takes a pointer to this structure, which lives until the call returns. The range is a mapping of
        // ours that only this card's methods touch. The kernel keeps its pages for as long as the device may
        // write to them, even where the mapping goes away before.
        let mapped =
            unsafe { ask(&self.container, request::IOMMU_MAP_DMA, (&raw const map).addr()) };
        mapped.map_err(|source| failed(&self.path, source))?;
        Ok(PciCard::of_mappings(registers, memory, MEMORY_BASE))
    }

    /// Has a vector's messages counted from now on.
    ///
    /// # Errors
    /// The device has no such vector, or the kernel no interrupt for it.
    pub fn msix(&self, vector: u32) -> Result<MsixVector, PciError> {
        let failed = |source| failed(&self.path, source);
        let event = eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
        let set = SetOneIrq {
            set: SetIrqs {
                argsz: (size_of::<SetOneIrq>() as u32).into(),
                flags: (irq_set::DATA_EVENTFD | irq_set::TRIGGER).into(),
                index: IRQ_MSIX.into(),
                start: vector.into(),
                count: 1.into(),
            },
            target: event.as_raw_fd(),
        };
        // SAFETY: takes a pointer to this structure, which lives until the call returns; the kernel takes a
        // reference of its own to the eventfd.
        let done = unsafe { ask(&self.device, request::DEVICE_SET_IRQS, (&raw const set).addr()) };
        done.map_err(failed)?;
        Ok(MsixVector { path: self.path.clone(), event: File::from(event) })
    }

    fn region(&self, index: u32) -> Result<RegionInfo, PciError> {
        let mut info = RegionInfo {
            argsz: (size_of::<RegionInfo>() as u32).into(),
            flags: 0.into(),
            index: index.into(),
            cap_offset: 0.into(),
            size: 0.into(),
            offset: 0.into(),
        };
        let at = (&raw mut info).expose_provenance();
        // SAFETY: takes a pointer to this structure, which says how long it is and lives until the call returns;
        // every pattern of bits that the kernel writes there is a valid one.
        let done = unsafe { ask(&self.device, request::DEVICE_GET_REGION_INFO, at) };
        done.map_err(|source| failed(&self.path, source))?;
        Ok(info)
    }

    /// Memory access and bus mastering.
    fn enable(&self) -> Result<(), PciError> {
        let at = self.region(CONFIG_REGION)?.offset.get() + COMMAND;
        let mut command = [0; 2];
        let read = self.device.read_exact_at(&mut command, at);
        let enabled = u16::from_le_bytes(command) | MEMORY_ACCESS | BUS_MASTER;
        let done = read.and_then(|()| self.device.write_all_at(&enabled.to_le_bytes(), at));
        done.map_err(|source| failed(&self.path, source))
    }
}

/// Messages of an MSI-X vector.
#[derive(Debug)]
pub struct MsixVector {
    path: PathBuf,
    event: File,
}

impl MsixVector {
    /// Waits for messages, and returns how many there were since the last time; `None`: none in time.
    ///
    /// # Errors
    /// The operating system's.
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<u64>, PciError> {
        let failed = |source| failed(&self.path, source);
        if !wait_readable(&self.event, timeout).map_err(failed)? {
            return Ok(None);
        }
        let mut count = [0; 8];
        self.event.read_exact(&mut count).map_err(failed)?;
        Ok(Some(u64::from_ne_bytes(count)))
    }
}

fn failed(path: &Path, source: io::Error) -> PciError {
    PciError::File { path: path.to_owned(), source, way_out: WAY_OUT }
}

/// Asks the kernel.
///
/// # Safety
/// `argument` must be what the request takes; where that is a pointer, to what it must point to until the call returns.
unsafe fn ask(file: &File, request: u64, argument: usize) -> io::Result<i32> {
    // SAFETY: the caller's promise; the file descriptor is open.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), request as _, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_structures_are_those_of_the_kernel() {
        assert_eq!((request::GET_API_VERSION, request::IOMMU_MAP_DMA), (0x3B64, 0x3B71));
        assert_eq!((size_of::<MapDma>(), size_of::<SetOneIrq>()), (32, 24));
    }

    #[test]
    fn a_device_that_is_not_assigned_says_what_to_do() {
        let missing = Path::new("/nonexistent");
        assert!(!AssignedDevice::has(missing));
        let error = AssignedDevice::open(missing).expect_err("no such device").to_string();
        assert!(error.contains("/nonexistent") && error.contains("driver_override"), "{error}");
    }
}
