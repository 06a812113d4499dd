//! A NIC whose endpoints RDMA CM connects, whatever device stands behind it.

use std::time::Duration;

use softrnic_engine::Qpn;

use super::{Ability, Endpoint, EndpointError};
use crate::cm::agent::{AgentEvent, Request};
use crate::cm::{CommId, Wanted};
use crate::port::PortConfig;

/// A NIC with connection management. Threads may share it.
pub trait Connector: Send + Sync {
    /// What its endpoints can do.
    fn ability(&self) -> Ability;

    /// Its port.
    fn port(&self) -> &PortConfig;

    /// Takes requests for a port of RDMA CM's TCP space, of which `backlog` may wait for an answer.
    ///
    /// # Errors
    /// It is listened to already.
    fn listen(&self, port: u16, backlog: usize) -> Result<(), EndpointError>;

    /// A queue pair that waits for its connection and takes receives already, with a region of `len` bytes, for
    /// messages of at most `receive_max`.
    ///
    /// # Errors
    /// What the device refuses.
    fn endpoint(
        &self,
        len: usize,
        receive_max: u32,
    ) -> Result<Box<dyn Endpoint + Send>, EndpointError>;

    /// Asks for a connection of a queue pair. The rest follows in events.
    ///
    /// # Errors
    /// A value is out of range, or the port has no address of the peer's family.
    fn connect(&self, qpn: Qpn, request: &Request) -> Result<CommId, EndpointError>;

    /// Accepts a request with a queue pair; its local ACK timeout is at most 4.096 us x 2^`ack_timeout_max`. The rest
    /// follows in events.
    ///
    /// # Errors
    /// The connection is unknown or waits for no answer.
    fn accept(&self, id: CommId, qpn: Qpn, ack_timeout_max: u8) -> Result<(), EndpointError>;

    /// Refuses a request.
    ///
    /// # Errors
    /// The connection is unknown or waits for no answer.
    fn reject(&self, id: CommId) -> Result<(), EndpointError>;

    /// Ends a connection: no more leaves its queue pair, and the peer is told.
    ///
    /// # Errors
    /// The connection is unknown, or has ended.
    fn disconnect(&self, id: CommId) -> Result<(), EndpointError>;

    /// Nobody wants to hear of a connection any more.
    fn forget(&self, id: CommId);

    /// Waits for the next event; `None` when the time is over. Others keep their order.
    fn event(&self, wanted: Wanted, timeout: Duration) -> Option<AgentEvent>;

    /// Packets that were sent again.
    ///
    /// # Errors
    /// The NIC has stopped.
    fn retransmitted_packets(&self) -> Result<u64, EndpointError>;

    /// Ends the capture, so that it is complete.
    ///
    /// # Errors
    /// It could not be written.
    fn stop_capture(&self) -> Result<(), EndpointError>;
}
