//! One reliable connection and its memory, whatever device stands behind it: what programs need that run over
//! every face. A program knows no device; an endpoint knows no program.
//!
//! A [`Connector`] is a NIC whose endpoints RDMA CM connects.

mod connector;
mod ernic;
mod ernic_connector;
mod model;
mod native;
mod native_connector;
mod pair;

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

pub use connector::Connector;
pub use ernic::ErnicEndpoint;
pub use ernic_connector::ErnicConnector;
pub use model::{Card, Model};
pub use native::NativeEndpoint;
pub use native_connector::NativeConnector;
use softrnic_engine::{PathMtu, Psn, Qpn};
use thiserror::Error;

/// What a device can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ability {
    /// Its name for people.
    pub face: &'static str,
    /// Atomics.
    pub atomics: bool,
    /// WRITE WITH IMMEDIATE with its value handed to software.
    pub immediate: bool,
    /// It says how long a received message is.
    pub lengths: bool,
    /// Sizes and offsets of WRITEs and READs are multiples of this, in bytes. A WRITE of no bytes goes everywhere.
    pub granularity: u32,
    /// Longest message in bytes.
    pub message_max: u32,
    /// Outstanding READs and atomics, as requester and as responder.
    pub rd_atomic_max: u8,
}

/// What the peer must know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Local {
    /// IP address, which is the GID.
    pub ip: IpAddr,
    /// Queue pair number.
    pub qpn: Qpn,
    /// Virtual address of the region's first byte.
    pub va: u64,
    /// Key for remote access.
    pub rkey: u32,
}

/// How to connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// The peer's IP address; an IPv4-mapped one is IPv4.
    pub ip: IpAddr,
    /// The peer's queue pair number.
    pub qpn: Qpn,
    /// PSN of this side's first packet.
    pub send_psn: Psn,
    /// PSN of the peer's first packet.
    pub receive_psn: Psn,
    /// Path MTU.
    pub mtu: PathMtu,
    /// ACK timeout code: 4.096 us * 2^code; 0 is for ever.
    pub timeout: u8,
    /// Retries after timeouts, 0 to 7.
    pub retry: u8,
    /// Retries after RNR NAKs, 0 to 7; 7 is for ever.
    pub rnr_retry: u8,
    /// READs and atomics that this side may have outstanding.
    pub rd_atomic: u8,
}

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// SEND.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE WITH IMMEDIATE.
    WriteImm(u32),
    /// RDMA READ.
    Read,
    /// Fetch and add.
    FetchAdd(u64),
    /// Compare and swap.
    CompareSwap {
        /// Value to compare with.
        compare: u64,
        /// Value to store where it is equal.
        swap: u64,
    },
}

/// The bytes that a request is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// What to do.
    pub op: Op,
    /// Where in the own region.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// The peer's virtual address; not for SEND.
    pub remote_va: u64,
    /// The peer's key; not for SEND.
    pub rkey: u32,
}

/// Something ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Done {
    /// A request of this side.
    Request,
    /// A receive.
    Receive {
        /// Bytes of the message, where the device tells.
        len: Option<u32>,
        /// Immediate data.
        immediate: Option<u32>,
    },
    /// A request or receive failed; the connection is of no use any more.
    Failed {
        /// Name of the status, as verbs have it in lower case with dashes.
        status: &'static str,
        /// All that is known, for people.
        what: String,
    },
}

/// Why an endpoint does not work.
#[derive(Debug, Error)]
#[error("{what}")]
pub struct EndpointError {
    what: String,
}

impl EndpointError {
    pub(crate) fn new(what: impl ToString) -> Self {
        Self { what: what.to_string() }
    }
}

/// A connection's two ends, for errors.
fn connection(qp: impl fmt::Display, peer: Option<(IpAddr, Qpn)>) -> String {
    match peer {
        Some((ip, peer)) => format!("queue pair {qp} to {ip} queue pair {peer}"),
        None => format!("queue pair {qp}"),
    }
}

/// A connection and its region. Requests end in order; receives end in order.
pub trait Endpoint {
    /// What the device can do.
    fn ability(&self) -> Ability;

    /// What the peer must know, with the address of the peer's family.
    ///
    /// # Errors
    /// This port has no address of that family.
    fn local(&self, ipv6: bool) -> Result<Local, EndpointError>;

    /// Finds the peer's MAC address and connects.
    ///
    /// # Errors
    /// Nobody answers for the peer's address, or the device refuses a setting.
    fn connect(&mut self, remote: &Remote) -> Result<(), EndpointError>;

    /// Writes into the region.
    ///
    /// # Errors
    /// The range is not in the region.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), EndpointError>;

    /// Reads from the region.
    ///
    /// # Errors
    /// The range is not in the region.
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<(), EndpointError>;

    /// Posts a receive into the region.
    ///
    /// # Errors
    /// The queue is full or the range is wrong.
    fn post_receive(&mut self, offset: u64, len: u32) -> Result<(), EndpointError>;

    /// Posts a request.
    ///
    /// # Errors
    /// The queue is full, or the device does not support it.
    fn post(&mut self, transfer: &Transfer) -> Result<(), EndpointError>;

    /// Waits for the next thing to end; `None`: nothing did in time.
    ///
    /// # Errors
    /// What the device reports cannot be.
    fn wait(&mut self, timeout: Duration) -> Result<Option<Done>, EndpointError>;
}
