//! Links: what carries Ethernet frames between a NIC and the rest of the world. One trait, one file for
//! each kind, and the text that chooses one (`--link tap:rnic0`).
//!
//! A link lends buffers both ways and works in batches: many frames for each system call. It knows
//! neither NIC nor RoCE, apart from `udp`, which has only the UDP payload and must make the rest.

mod inproc;
mod linear_crc;
mod made_header;
mod outbox;
mod packet;
mod pcap;
mod qemu_stream;
mod super_packet;
mod system;
mod tap;
mod udp;
mod url;

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

pub use inproc::Inproc;
pub use packet::Packet;
pub use pcap::Pcap;
pub use qemu_stream::QemuStream;
use softrnic_engine::packet::{ETHERTYPE_SERVICE_VLAN, ETHERTYPE_VLAN};
use softrnic_engine::{Room, Rx};
pub use tap::Tap;
use thiserror::Error;
pub use udp::Udp;
pub use url::{KINDS, Kind, LinkUrl, LinkUrlError};

/// What a link can carry, fixed while it is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Longest IP packet in bytes, 68 to 65,535 (`mtu` of the operating system).
    pub mtu: u16,
    /// Equal packets of one queue pair that it takes at once; 1: it takes single frames.
    pub segments: u16,
    /// The only UDP source port that it can send from. It changes packets of others, and their ICRC with them.
    pub source_port: Option<u16>,
    /// The operating system has the port's addresses too: the port must take this MAC address, and leave it to
    /// the operating system to answer ARP, neighbour solicitations and pings.
    pub shared_mac: Option<[u8; 6]>,
}

impl Limits {
    /// Those of a link that takes single frames from any port.
    #[must_use]
    pub const fn of_mtu(mtu: u16) -> Self {
        Self { mtu, segments: 1, source_port: None, shared_mac: None }
    }
}

/// What was written into the room: one frame, or a header and equal segments behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// Bytes in all.
    pub len: usize,
    /// Bytes of the header that stands before each segment; 0 for a single frame.
    pub header: u16,
    /// Bytes of a segment; 0 for a single frame.
    pub segment: u16,
    /// Number of segments; 1 for a single frame.
    pub segments: u16,
}

impl Written {
    /// A single frame of so many bytes.
    #[must_use]
    pub const fn frame(len: usize) -> Self {
        Self { len, header: 0, segment: 0, segments: 1 }
    }
}

/// Why a link does not work.
#[derive(Debug, Error)]
pub enum LinkError {
    /// The other end went away; opening the link again may help.
    #[error("{link} is gone: {why}")]
    Gone {
        /// The link, as its URL says it.
        link: String,
        /// What was seen.
        why: String,
    },
    /// It cannot be opened.
    #[error("cannot open {link}: {source}{way_out}")]
    Open {
        /// The link, as its URL says it.
        link: String,
        /// What the operating system says.
        source: io::Error,
        /// What to do; begins with a separator, may be empty.
        way_out: &'static str,
    },
    /// The operating system failed.
    #[error("{link}: {source}")]
    Io {
        /// The link, as its URL says it.
        link: String,
        /// What the operating system says.
        source: io::Error,
    },
}

impl LinkError {
    /// Whether opening the link again may help.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        matches!(self, Self::Gone { .. })
    }
}

/// What a link did that no frame tells.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct LinkCounters {
    /// Frames that arrived.
    pub rx_frames: u64,
    /// Bytes of these frames, from the destination MAC address on.
    pub rx_bytes: u64,
    /// Frames that left.
    pub tx_frames: u64,
    /// Bytes of these frames.
    pub tx_bytes: u64,
    /// Arrived frames that were longer than a buffer, cut off, or joined in an unknown way, and were dropped.
    pub rx_length_errors: u64,
    /// Frames that the operating system refused to send (no buffer, interface down), and that were dropped.
    pub tx_dropped: u64,
    /// Frames longer than the MTU allows, which were not sent.
    pub tx_length_errors: u64,
    /// Frames of a kind that this link cannot carry, which were not sent (`udp`: no RoCE v2 packet from the link's
    /// address, or one with a VLAN tag).
    pub tx_not_carried: u64,
    /// Frames that arrived and were dropped before we could read them, where the system tells. A message of up to 64
    /// joined frames (`udp`, `packet`) counts as one.
    pub rx_dropped: u64,
    /// Frames whose IP ID was not seen, and was solved from the ICRC (`udp`).
    pub icrc_ip_id_inferred: u64,
    /// Frames for which that would have had to be done, but [`LinkConfig::strict_icrc`] forbids it. The engine
    /// refuses them because of a wrong ICRC.
    pub icrc_strict_refused: u64,
}

impl LinkCounters {
    /// Counts a frame that is longer than this MTU allows: Ethernet's header and at most one VLAN tag come on top.
    fn too_long(&mut self, frame: &[u8], mtu: u16) -> bool {
        let ethertype = frame.get(12..14).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]));
        let tag = if matches!(ethertype, ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN) { 4 } else { 0 };
        let too_long = frame.len() > 14 + tag + usize::from(mtu);
        self.tx_length_errors += u64::from(too_long);
        too_long
    }
}

/// A link. Frames are Ethernet without FCS.
pub trait Link: Send {
    /// What it is, as its URL says it.
    fn name(&self) -> &str;

    /// What it can carry.
    fn limits(&self) -> Limits;

    /// Lends every frame that has arrived, at most `budget`, in their order; never waits. What `take` leaves in
    /// the buffer does not matter. Returns how many there were.
    ///
    /// # Errors
    /// `Gone`, or the operating system's; frames that came before have been lent.
    fn receive(
        &mut self,
        budget: usize,
        take: &mut dyn FnMut(&mut [u8], Rx),
    ) -> Result<usize, LinkError>;

    /// A buffer for the next frame or train, at least [`softrnic_engine::packet::FRAME_LEN_MAX`] bytes. `None`:
    /// no room before [`Link::flush`], or before the other end takes something (back-pressure). Where flushing does
    /// not help and [`Link::wants_write`] is false, [`Link::fd`] becomes readable once there is room.
    fn room(&mut self) -> Option<Room<'_>>;

    /// What was written into the last room leaves with the next flush, in order. Without this call the room is
    /// given back unused.
    fn commit(&mut self, written: Written);

    /// Hands what was committed to the other end; never waits. What does not go stays, and
    /// [`Link::wants_write`] says so.
    ///
    /// # Errors
    /// `Gone`, or the operating system's.
    fn flush(&mut self) -> Result<(), LinkError>;

    /// Something is left that the other end did not take: wait until it is writable, then flush.
    fn wants_write(&self) -> bool;

    /// What to wait on for frames (readable) and room (writable); `None` where nothing will ever come by itself.
    /// Ask [`Link::may_wait`] each time before waiting.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Call it before each wait on [`Link::fd`]: from now on what comes makes that readable. Polling without waiting
    /// does not need it, and is cheaper for it. False: something has come already, do not wait.
    fn may_wait(&mut self) -> bool {
        true
    }

    /// The MAC address that stands for an IP address on a link without Ethernet; `None`: ask by ARP or NDP.
    fn mac_of(&self, ip: IpAddr) -> Option<[u8; 6]> {
        let _ = ip;
        None
    }

    /// What it did.
    fn counters(&self) -> LinkCounters;
}

/// What a link must know of the port to open.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// MAC address of the port.
    pub mac: [u8; 6],
    /// IP MTU that is wanted; the link's [`Limits::mtu`] says what it got.
    pub mtu: u16,
    /// IP addresses of the port.
    pub addresses: Vec<IpAddr>,
    /// Refuse frames whose ICRC can only be verified by solving for the IP ID (`udp`).
    pub strict_icrc: bool,
}

impl LinkUrl {
    /// Opens the link.
    ///
    /// # Errors
    /// `Open`, with the way out where one is known.
    pub fn open(&self, config: &LinkConfig) -> Result<Box<dyn Link>, LinkError> {
        Ok(match self {
            Self::QemuStream { path, listen } => {
                Box::new(QemuStream::open(path, *listen, config.mtu)?)
            }
            Self::Udp { ip, port, single } => Box::new(Udp::open(*ip, *port, !single, config)?),
            Self::Tap { interface } => Box::new(Tap::open(interface, config)?),
            Self::Packet { interface, kernel_arp, single } => {
                Box::new(Packet::open(interface, *kernel_arp, !single, config)?)
            }
            Self::Pcap { input, record, paced } => {
                Box::new(Pcap::open(input, record.as_deref(), *paced, config)?)
            }
            Self::None => {
                return Err(LinkError::Open {
                    link: self.to_string(),
                    source: io::Error::new(io::ErrorKind::NotFound, "no link was given"),
                    way_out: " (`--link KIND:WHERE`; docs/links.md has the kinds)",
                });
            }
        })
    }
}

/// The end of an error message for a link that this process has no right to open.
fn without_rights(errno: rustix::io::Errno) -> &'static str {
    match errno {
        rustix::io::Errno::PERM | rustix::io::Errno::ACCESS => {
            " (it needs root, or CAP_NET_RAW and CAP_NET_ADMIN: `setcap cap_net_raw,cap_net_admin+ep` on the \
             program; a `udp:ADDRESS` link needs no rights)"
        }
        _ => "",
    }
}
