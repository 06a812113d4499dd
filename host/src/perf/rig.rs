//! What a performance test needs of a device: queue pairs with numbers 0.. that share one region. One
//! implementation for each face; the tests know only this.

use std::net::IpAddr;
use std::time::Duration;

use softrnic_engine::Service;

use super::PerfError;
use crate::endpoint::Remote;

/// Work of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    /// SEND.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// Fetch and add.
    Atomic,
}

/// A request, as often as it is posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// What to do.
    pub verb: Verb,
    /// Where in the own region.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// The peer's address; not for SEND.
    pub remote_va: u64,
    /// The peer's key; not for SEND.
    pub rkey: u32,
}

/// Something ended, and well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    /// Which queue pair.
    pub qp: usize,
    /// A receive; else requests.
    pub receive: bool,
    /// How many requests ended with it.
    pub count: u32,
}

/// What a device can do, and what was asked of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Requests of a queue pair that may wait.
    pub send_depth: u32,
    /// Receives of a queue pair that may wait.
    pub recv_depth: u32,
    /// READs and atomics in flight.
    pub rd_atomic: u8,
    /// Sizes are multiples of this.
    pub granularity: u32,
    /// Transport service.
    pub service: Service,
}

/// A device under test.
pub trait Rig {
    /// What it can do.
    fn limits(&self) -> Limits;

    /// The own address of a family.
    ///
    /// # Errors
    /// The port has none.
    fn address(&self, ipv6: bool) -> Result<IpAddr, PerfError>;

    /// Number of a queue pair.
    fn qpn(&self, qp: usize) -> u32;

    /// First virtual address of the region, and its key for peers.
    fn region(&self) -> (u64, u32);

    /// Connects a queue pair, or finds the way to where its datagrams go.
    ///
    /// # Errors
    /// Nobody answers for the peer's address, or a setting is refused.
    fn connect(&mut self, qp: usize, remote: &Remote) -> Result<(), PerfError>;

    /// Posts a receive for a message of `len` bytes; datagrams come with 40 bytes before them.
    ///
    /// # Errors
    /// The queue is full.
    fn post_receive(&mut self, qp: usize, offset: u64, len: u32) -> Result<(), PerfError>;

    /// Posts a request once for each element: 0 asks for no completion, `n` for one that ends `n` requests.
    ///
    /// # Errors
    /// The queue is full, or the device cannot do it.
    fn post(&mut self, qp: usize, request: &Request, signals: &[u32]) -> Result<(), PerfError>;

    /// Waits until something ends or the time is over, and adds it.
    ///
    /// # Errors
    /// A request or receive failed.
    fn wait(&mut self, ended: &mut Vec<Ended>, timeout: Duration) -> Result<(), PerfError>;

    /// Writes into the region.
    ///
    /// # Errors
    /// It is not inside.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), PerfError>;

    /// Reads from the region.
    ///
    /// # Errors
    /// It is not inside.
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<(), PerfError>;

    /// Why nothing comes any more, where that is known.
    fn trouble(&self) -> Option<String>;
}
