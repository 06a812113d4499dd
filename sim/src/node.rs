//! A node: a device with memory, and the software that a phase needs in front of it.
//!
//! One trait for all faces; nothing here knows a register or a work request's layout.

use std::net::IpAddr;

use softrnic_device::{DmaFault, Ram};
use softrnic_engine::{Engine, PathMtu, Psn};

use crate::scenario::OperationKind;
use crate::state::DeviceState;
use crate::world::Station;

/// First bus address of every node's memory. Not 0, so that a forgotten address is a fault.
pub(crate) const MEMORY_BASE: u64 = 0x1000_0000;

/// What software of a node could not do.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The ERNIC driver refused or timed out.
    #[error(transparent)]
    Driver(#[from] softrnic_driver::Error),
    /// The native face refused.
    #[error(transparent)]
    Verbs(#[from] softrnic_device::verbs::Error),
    /// A buffer that is not in the node's memory.
    #[error("{} bytes at bus address {:#x} are outside of the node's memory", .0.len, .0.address)]
    Memory(DmaFault),
    /// The node's memory is used up.
    #[error("no memory for {0} more bytes")]
    Exhausted(u64),
    /// A call that needs a queue pair came before a queue pair was opened.
    #[error("no queue pair is open")]
    NoQueuePair,
}

impl From<DmaFault> for NodeError {
    fn from(fault: DmaFault) -> Self {
        Self::Memory(fault)
    }
}

/// What a queue pair is created with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpPlan {
    pub(crate) outstanding: u32,
    pub(crate) rq_depth: u16,
    pub(crate) rq_element_len: u32,
    pub(crate) path_mtu: PathMtu,
    pub(crate) ack_timeout: u8,
    pub(crate) retry_count: u8,
}

/// The other end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) mac: [u8; 6],
    pub(crate) ip: IpAddr,
    pub(crate) qpn: u32,
    /// Of the first packet in either direction.
    pub(crate) first_psn: Psn,
}

/// A work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) id: u16,
    pub(crate) operation: OperationKind,
    pub(crate) local: u64,
    pub(crate) len: u32,
    pub(crate) remote: u64,
    pub(crate) rkey: u32,
}

/// A finished work request.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    pub(crate) id: u16,
    /// What went wrong, in words.
    pub(crate) error: Option<String>,
    /// The peer could not be reached, or was not ready, within the retries: 12 or 13.
    pub(crate) gave_up: bool,
}

/// A message in a receive buffer.
#[derive(Clone, Debug)]
pub(crate) struct Arrived {
    pub(crate) address: u64,
    /// Bytes of the buffer.
    pub(crate) buffer_len: u32,
    /// Bytes of the message, where the face tells.
    pub(crate) len: Option<u32>,
    /// The buffer's number in its ring.
    pub(crate) element: u32,
    pub(crate) error: Option<String>,
}

/// Memory that messages are sent from and arrive in; peers may read and write it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    pub(crate) address: u64,
    pub(crate) len: u64,
    pub(crate) rkey: u32,
}

/// A device with its software. It has one queue pair at a time.
pub(crate) trait Node: Station {
    /// Creates a queue pair, which takes the place of the one before; returns its number.
    fn open(&mut self, plan: &QpPlan) -> Result<u32, NodeError>;
    /// Connects it.
    fn connect(&mut self, peer: &Peer) -> Result<(), NodeError>;
    /// Writes a work request; the device looks at it after [`Node::ring`].
    fn post(&mut self, request: &Request) -> Result<(), NodeError>;
    /// Announces what was posted.
    fn ring(&mut self) -> Result<(), NodeError>;
    /// Takes finished work requests, oldest first.
    fn completions(&mut self, out: &mut Vec<Done>) -> Result<(), NodeError>;
    /// Takes the next message that arrived.
    fn receive(&mut self) -> Result<Option<Arrived>, NodeError>;
    /// Gives a receive buffer back.
    fn release(&mut self, arrived: &Arrived) -> Result<(), NodeError>;
    /// Completes everything that was announced, whether or not the queue pair still works.
    fn flush(&mut self) -> Result<(), NodeError>;
    /// Makes the queue pair new again, to be connected; what was not taken is forgotten.
    fn reset(&mut self) -> Result<(), NodeError>;
    /// Why the queue pair no longer works, if it does not.
    fn trouble(&mut self) -> Option<String>;
    /// Where messages are.
    fn area(&self) -> Area;
    /// The node's memory.
    fn memory(&self) -> &Ram;
    /// The node's memory, to write.
    fn memory_mut(&mut self) -> &mut Ram;
    /// Sets the port's VLAN, as an access port's switch does: no register of the device knows it.
    fn set_vlan(&mut self, vlan: Option<u16>);
    /// The transport behind the face, to read.
    fn engine(&self) -> &Engine;
    /// The device as it is now.
    fn state(&self, name: &str) -> DeviceState;
    /// The device's counters by name, and where they were read.
    fn counters(&mut self) -> (&'static str, Vec<(&'static str, u64)>);
}

/// Hands out memory from the bottom up and never takes it back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arena {
    next: u64,
    end: u64,
}

impl Arena {
    pub(crate) const fn new(len: u64) -> Self {
        Self { next: MEMORY_BASE, end: MEMORY_BASE + len }
    }

    /// Hands out `len` bytes from `start` on.
    pub(crate) const fn at(start: u64, len: u64) -> Self {
        Self { next: start, end: start + len }
    }

    pub(crate) fn take(&mut self, len: u64, align: u64) -> Result<u64, NodeError> {
        let start = self.next.next_multiple_of(align.max(1));
        let end = start.checked_add(len).filter(|&end| end <= self.end);
        self.next = end.ok_or(NodeError::Exhausted(len))?;
        Ok(start)
    }
}
