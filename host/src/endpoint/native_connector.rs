//! The native face with connection management, for programs over every face.

use std::time::Duration;

use softrnic_engine::{Qpn, State};

use super::native::ABILITY;
use super::{Ability, Connector, Endpoint, EndpointError, NativeEndpoint};
use crate::cm::agent::{self, AgentEvent, Request};
use crate::cm::{CommId, Wanted};
use crate::port::PortConfig;
use crate::verbs::{Connections, Context};

/// A NIC of the native face.
#[derive(Debug)]
pub struct NativeConnector {
    connections: Connections,
}

impl NativeConnector {
    /// Starts connection management on a NIC. `seed` should differ from one start to the next.
    ///
    /// # Errors
    /// It has connection management already, or has stopped.
    pub fn new(context: &Context, seed: u64) -> Result<Self, EndpointError> {
        let connections = Connections::open(context, seed).map_err(EndpointError::new)?;
        Ok(Self { connections })
    }

    fn context(&self) -> &Context {
        self.connections.context()
    }
}

impl Connector for NativeConnector {
    fn ability(&self) -> Ability {
        ABILITY
    }

    fn port(&self) -> &PortConfig {
        self.context().port()
    }

    fn listen(&self, port: u16, backlog: usize) -> Result<(), EndpointError> {
        self.connections.listen(port, backlog).map_err(EndpointError::new)
    }

    fn endpoint(&self, len: usize, _: u32) -> Result<Box<dyn Endpoint + Send>, EndpointError> {
        let endpoint = NativeEndpoint::new(self.context().clone(), len)?;
        endpoint.qp().set_state(State::Init).map_err(EndpointError::new)?;
        Ok(Box::new(endpoint))
    }

    fn connect(&self, qpn: Qpn, request: &Request) -> Result<CommId, EndpointError> {
        let path_mtu = request.path_mtu.or(Some(self.context().max_path_mtu(request.remote)));
        let request = Request { path_mtu, ..request.clone() };
        let endpoint = agent::Endpoint::new(qpn);
        self.connections.connect(&endpoint, &request).map_err(EndpointError::new)
    }

    fn accept(&self, id: CommId, qpn: Qpn, ack_timeout_max: u8) -> Result<(), EndpointError> {
        let endpoint = agent::Endpoint { ack_timeout_max, ..agent::Endpoint::new(qpn) };
        self.connections.accept(id, &endpoint, &[]).map_err(EndpointError::new)
    }

    fn reject(&self, id: CommId) -> Result<(), EndpointError> {
        self.connections.reject(id, &[]).map_err(EndpointError::new)
    }

    fn disconnect(&self, id: CommId) -> Result<(), EndpointError> {
        self.connections.disconnect(id).map_err(EndpointError::new)
    }

    fn forget(&self, id: CommId) {
        self.connections.forget(id);
    }

    fn event(&self, wanted: Wanted, timeout: Duration) -> Option<AgentEvent> {
        self.connections.event(wanted, timeout)
    }

    fn retransmitted_packets(&self) -> Result<u64, EndpointError> {
        let counters = self.context().counters().map_err(EndpointError::new)?.engine;
        let again = counters.iter().find(|(row, _)| row.name == "retransmitted_pkts");
        Ok(again.map_or(0, |(_, count)| count.into()))
    }

    fn stop_capture(&self) -> Result<(), EndpointError> {
        self.context().stop_capture().map_err(EndpointError::new)
    }
}
