//! `tap`: a TAP interface of this machine. Its kernel is at the other end, and through a bridge everybody who is on
//! that. One system call for each frame, or for a super-packet of up to 64.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use softrnic_engine::{Room, Rx};
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

use super::outbox::Outbox;
use super::super_packet::{Cutter, Joiner, PARTS, VIRTIO};
use super::{Limits, Link, LinkConfig, LinkCounters, LinkError, Written, without_rights};

/// Longest super-packet, with Ethernet's header and two VLAN tags, and one byte that tells one that does not fit.
const SUPER_PACKET_LEN: usize = 65_535 + 14 + 8 + 1;

/// The link.
pub struct Tap {
    name: String,
    device: SyncDevice,
    mtu: u16,
    input: Box<[u8]>,
    /// Bytes in it that have not been lent, or not all; a virtio header and a frame.
    arrived: usize,
    cutter: Cutter,
    outbox: Outbox,
    joiner: Joiner,
    /// The kernel takes UDP super-packets (Linux 6.2).
    join: bool,
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
        let builder = builder.offload(true).inherit_enable_state();
        let device = builder.build_sync().map_err(failed)?;
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
            mtu: mtu.min(config.mtu),
            join: device.udp_gso(),
            device,
            input: vec![0; VIRTIO + SUPER_PACKET_LEN].into_boxed_slice(),
            arrived: 0,
            cutter: Cutter::new(),
            outbox: Outbox::new(0),
            joiner: Joiner::new(),
            blocked: false,
            counters: LinkCounters::default(),
        })
    }

    /// Writes a planned group.
    fn write(&self, group: usize) -> Result<(), Errno> {
        let mut parts = [IoSlice::new(&[]); PARTS];
        let count = self.joiner.parts(&self.outbox, group, &mut parts);
        rustix::io::retry_on_intr(|| rustix::io::writev(self.device.as_fd(), &parts[..count]))
            .map(|_| ())
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
            if self.arrived == 0 {
                match rustix::io::read(self.device.as_fd(), &mut *self.input) {
                    Ok(len) if len < VIRTIO || len == self.input.len() => {
                        self.counters.rx_length_errors += 1;
                    }
                    Ok(len) => self.arrived = len,
                    Err(Errno::AGAIN) => break,
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(self.failed(errno)),
                }
                continue;
            }
            let Some((virtio, frame)) = self.input[..self.arrived].split_first_chunk_mut() else {
                break;
            };
            let budget = budget - count;
            let (lent, used_up) =
                self.cutter.lend(*virtio, frame, budget, &mut self.counters, take);
            count += lent;
            if used_up {
                self.arrived = 0;
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
        let mut join = self.join;
        while !self.outbox.is_empty() {
            let groups = self.joiner.plan(&mut self.outbox, join);
            let mut done = 0;
            let mut failed = None;
            for at in 0..groups {
                let group = self.joiner.group(at);
                match self.write(at) {
                    Ok(()) => {
                        self.counters.tx_frames += group.count as u64;
                        let bytes = |at| self.outbox.frame(at).len() as u64;
                        self.counters.tx_bytes +=
                            (done..done + group.count).map(bytes).sum::<u64>();
                    }
                    // Perhaps because it is a super-packet.
                    Err(errno) if errno != Errno::AGAIN && group.count > 1 => {
                        join = false;
                        break;
                    }
                    // The interface is switched off (IO), has no memory, or dislikes the frame.
                    Err(Errno::IO | Errno::NOBUFS | Errno::NOMEM | Errno::INVAL) => {
                        self.counters.tx_dropped += 1;
                    }
                    Err(errno) => {
                        failed = Some(errno);
                        break;
                    }
                }
                done += group.count;
            }
            self.outbox.sent(done);
            match failed {
                None => {}
                Some(Errno::AGAIN) => {
                    self.blocked = true;
                    break;
                }
                Some(errno) => return Err(self.failed(errno)),
            }
        }
        Ok(())
    }

    fn wants_write(&self) -> bool {
        self.blocked
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.device.as_fd())
    }

    fn may_wait(&mut self) -> bool {
        self.arrived == 0
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }
}
