//! What software of a node does in a random world: one trait for both faces.
//!
//! Nothing here knows a register or a work request's layout.

use std::net::IpAddr;

use softrnic_device::Ram;
use softrnic_engine::Engine;

use super::plan::{ConnectionPlan, Kind};
use crate::check::Ended;
use crate::node::NodeError;
use crate::world::Station;

/// A run of bytes in a node's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bytes {
    pub(crate) address: u64,
    pub(crate) len: u32,
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote {
    pub(crate) mac: [u8; 6],
    pub(crate) ip: IpAddr,
    pub(crate) qpn: u32,
    /// PSN of our first packet, and of the peer's.
    pub(crate) first_psn: [u32; 2],
}

/// A work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) id: u16,
    pub(crate) kind: Kind,
    pub(crate) local: Bytes,
    /// The local bytes are given in so many elements.
    pub(crate) sges: u32,
    pub(crate) remote: u64,
    pub(crate) rkey: u32,
    pub(crate) immediate: u32,
    /// Addend or swap value, and compare value.
    pub(crate) operands: (u64, u64),
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    pub(crate) fence: bool,
}

/// A message in a receive buffer, or an announced WRITE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// The buffer, as it was posted.
    pub(crate) buffer: Bytes,
    /// Bytes before the message in it (datagrams).
    pub(crate) skip: u32,
    /// Bytes of the message, where the face tells.
    pub(crate) len: Option<u32>,
    /// Immediate data, where the face tells whether there is any.
    pub(crate) immediate: Option<Option<u32>>,
    /// The data went to a region.
    pub(crate) by_write: bool,
    /// The receive failed or was flushed.
    pub(crate) failed: bool,
}

/// Something that software finds when it looks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Report {
    Done { end: usize, id: u16, ended: Ended },
    Arrived { end: usize, arrival: Arrival },
}

/// A device with its software. Ends are numbered as they are opened.
pub(crate) trait Software: Station {
    /// Memory for messages.
    fn take(&mut self, len: u64) -> Result<u64, NodeError>;
    /// Opens bytes to peers; returns the key.
    fn open_region(&mut self, address: u64, len: u64) -> Result<u32, NodeError>;
    /// Creates a queue pair of a connection, the side `side` of it, whose work requests use bytes in
    /// `local`; returns its number. Receive buffers are in `receives`.
    fn open(
        &mut self,
        plan: &ConnectionPlan,
        side: usize,
        local: (u64, u64),
        receives: (u64, u64),
    ) -> Result<u32, NodeError>;
    /// Connects it, and gives it its first receive buffers.
    fn connect(
        &mut self,
        end: usize,
        plan: &ConnectionPlan,
        side: usize,
        remote: &Remote,
    ) -> Result<(), NodeError>;
    /// Posts a work request and rings.
    fn post(&mut self, end: usize, request: &Request) -> Result<(), NodeError>;
    /// Looks at everything that has completed.
    fn poll(&mut self, out: &mut Vec<Report>) -> Result<(), NodeError>;
    /// Gives a receive buffer back.
    fn release(&mut self, end: usize, buffer: Bytes) -> Result<(), NodeError>;
    /// What software does once for a queue pair that has failed, so that its work ends.
    fn flush(&mut self, end: usize) -> Result<(), NodeError>;
    /// Where the node's messages are: a part of its memory.
    fn area(&self) -> Bytes;
    fn engine(&self) -> &Engine;
    fn memory(&self) -> &Ram;
    fn memory_mut(&mut self) -> &mut Ram;
}

/// Bytes before a datagram's payload in its buffer (rule U-12).
pub(crate) const GRH_AREA: u32 = 40;
