//! `tap`: a TAP interface of this machine. Its kernel is at the other end, and through a bridge everybody who is on
//! that. One system call for each frame.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use softrnic_engine::{Room, Rx};
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

use super::outbox::Outbox;
use super::{Limits, Link, LinkConfig, LinkCounters, LinkError, Written, without_rights};

/// Ethernet's header, two VLAN tags, and one byte that tells a frame that does not fit.
const FRAME_EXTRA: usize = 14 + 8 + 1;

/// The link.
pub struct Tap {
    name: String,
    device: SyncDevice,
    mtu: u16,
    input: Box<[u8]>,
    outbox: Outbox,
    blocked: bool,
    counters: LinkCounters,
}

impl std::fmt::Debug for Tap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tap").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Tap {
    /// Opens an interface, or makes one, which goes away with the link. Its MTU is set and it is switched on, as far
    /// as this user may.
    ///
    /// # Errors
    /// `Open`.
    pub fn open(interface: &str, config: &LinkConfig) -> Result<Self, LinkError> {
        let name = format!("tap:{interface}");
        let failed = |source: io::Error| {
            let way_out = match Errno::from_io_error(&source) {
                Some(Errno::NOENT | Errno::NODEV) => {
                    " (the TUN driver is missing: `modprobe tun`; in a container, `--device /dev/net/tun`)"
                }
                Some(Errno::BUSY) => " (another program has this interface open)",
                Some(Errno::INVAL) => {
                    " (an interface of this name is there and is no TAP interface)"
                }
                Some(errno) => without_rights(errno),
                None => "",
            };
            LinkError::Open { link: name.clone(), source, way_out }
        };
        let builder = DeviceBuilder::new().name(interface).layer(Layer::L2);
        let device = builder.inherit_enable_state().build_sync().map_err(failed)?;
        device.set_nonblocking(true).map_err(failed)?;
        let mut mtu = device.mtu().map_err(failed)?;
        if mtu != config.mtu && device.set_mtu(config.mtu).is_ok() {
            mtu = config.mtu;
        }
        if let Err(error) = device.enabled(true) {
            // An administrator's interface may be switched on already, or later.
            tracing::warn!("{name} cannot be switched on ({error}): `ip link set {interface} up`");
        }
        Ok(Self {
            name,
            device,
            mtu: mtu.min(config.mtu),
            input: vec![0; usize::from(mtu) + FRAME_EXTRA].into_boxed_slice(),
            outbox: Outbox::new(0),
            blocked: false,
            counters: LinkCounters::default(),
        })
    }

    fn failed(&self, errno: Errno) -> LinkError {
        if errno == Errno::BADFD {
            let why = "the interface was deleted".to_owned();
            return LinkError::Gone { link: self.name.clone(), why };
        }
        LinkError::Io { link: self.name.clone(), source: errno.into() }
    }
}

impl Link for Tap {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        Limits::of_mtu(self.mtu)
    }

    fn receive(
        &mut self,
        budget: usize,
        take: &mut dyn FnMut(&mut [u8], Rx),
    ) -> Result<usize, LinkError> {
        let mut count = 0;
        while count < budget {
            match rustix::io::read(self.device.as_fd(), &mut *self.input) {
                Ok(len) if len == self.input.len() => self.counters.rx_length_errors += 1,
                Ok(len) => {
                    self.counters.rx_frames += 1;
                    self.counters.rx_bytes += len as u64;
                    take(&mut self.input[..len], Rx::default());
                    count += 1;
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.failed(errno)),
            }
        }
        Ok(count)
    }

    fn room(&mut self) -> Option<Room<'_>> {
        self.outbox.room().map(|bytes| Room { bytes, segments: 1, source_port: None })
    }

    fn commit(&mut self, written: Written) {
        if !self.counters.too_long(self.outbox.written(written.len), self.mtu) {
            self.outbox.commit(written.len);
        }
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        self.blocked = false;
        while !self.outbox.is_empty() {
            match rustix::io::write(self.device.as_fd(), self.outbox.frame(0)) {
                Ok(len) => {
                    self.counters.tx_frames += 1;
                    self.counters.tx_bytes += len as u64;
                }
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {
                    self.blocked = true;
                    break;
                }
                // The interface is switched off (IO), has no memory, or dislikes the frame.
                Err(Errno::IO | Errno::NOBUFS | Errno::NOMEM | Errno::INVAL) => {
                    self.counters.tx_dropped += 1;
                }
                Err(errno) => return Err(self.failed(errno)),
            }
            self.outbox.sent(1);
        }
        Ok(())
    }

    fn wants_write(&self) -> bool {
        self.blocked
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.device.as_fd())
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }
}
