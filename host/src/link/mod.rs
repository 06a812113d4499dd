//! Links: what carries Ethernet frames between a NIC and the rest of the world. One trait, one file for
//! each kind, and the text that chooses one (`--link tap:rnic0`).
//!
//! A link lends buffers both ways and works in batches: many frames for each system call. It knows
//! neither NIC nor RoCE, apart from `udp`, which has only the UDP payload and must make the rest.

mod qemu_stream;
mod url;

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

pub use qemu_stream::QemuStream;
use softrnic_engine::{Room, Rx};
use thiserror::Error;
pub use url::{KINDS, Kind, LinkUrl, LinkUrlError};

/// What a link can carry, fixed while it is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Longest IP packet in bytes, 68 to 65,535 (`mtu` of the operating system).
    pub mtu: u16,
    /// Equal packets of one queue pair that it takes at once; 1: it takes single frames.
    pub segments: u16,
    /// The only UDP source port that it can send from.
    pub source_port: Option<u16>,
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
    /// Arrived frames that were longer than a buffer, or cut off, and were dropped.
    pub rx_length_errors: u64,
    /// Frames that the operating system refused to send (no buffer, interface down), and that were dropped.
    pub tx_dropped: u64,
    /// Frames that arrived and were dropped before we could read them, where the system tells.
    pub rx_dropped: u64,
    /// Frames whose IP ID was not seen, and was solved from the ICRC (`udp`).
    pub icrc_ip_id_inferred: u64,
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
    /// no room before [`Link::flush`], or before the other end takes something (back-pressure).
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
    fn fd(&self) -> Option<BorrowedFd<'_>>;

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
        match self {
            Self::QemuStream { path, listen } => {
                Ok(Box::new(QemuStream::open(path, *listen, config.mtu)?))
            }
        }
    }
}
