//! Connection management for programs with threads: what librdmacm is to libibverbs. The messages and the states
//! of connections are [`crate::cm`]'s, on the NIC's thread; here are calls to it and the events that come back.

use std::sync::Arc;
use std::time::Duration;

use softrnic_engine::Qpn;

use super::buffer::Buffer;
use super::context::Context;
use super::error::Error;
use super::nic::Nic;
use super::rings::Queue;
use crate::cm::agent::{self, AgentConfig, AgentCounters, AgentEvent, Endpoint, Request};
use crate::cm::inbox::{Inbox, Wanted};
use crate::cm::native::NativeGsi;
use crate::cm::{self, CmCounters, CommId};

pub(super) type Agent = agent::Agent<NativeGsi>;

/// What the NIC's thread has of connection management.
pub(super) struct OnNic {
    agent: Agent,
    inbox: Arc<Inbox>,
}

impl OnNic {
    pub(super) fn agent(&mut self) -> &mut Agent {
        &mut self.agent
    }
}

impl Nic {
    /// Messages of connections, and what follows from them; whether there was something.
    pub(super) fn manage_connections(&mut self) -> bool {
        let now = self.now();
        let Some(mut on_nic) = self.connections.take() else { return false };
        let mut busy = on_nic.agent.turn(now, &mut self.station);
        // A program that hears of a connection finds its queue pair ready.
        while let Some(qpn) = on_nic.agent.poll_changed_qp() {
            self.copy_state(qpn);
        }
        while let Some(event) = on_nic.agent.poll_event() {
            on_nic.inbox.push(event);
            busy = true;
        }
        self.connections = Some(on_nic);
        busy
    }

    /// Lets a queue pair's handle see the state that it has.
    fn copy_state(&self, qpn: Qpn) {
        let Some(state) = self.station.nic.state(qpn) else { return };
        if let Some(Queue::Pair(pair)) = self.queue_of(qpn) {
            pair.shared.set_state(state);
        }
    }
}

/// Connections of a NIC (`rdma_event_channel` and its `rdma_cm_id`s). A clone is the same thing.
///
/// ```
/// # use std::os::unix::net::UnixStream;
/// use std::time::Duration;
///
/// use softrnic_host::cm::agent::{AgentEvent, Endpoint, Request};
/// # use softrnic_host::link::QemuStream;
/// # use softrnic_host::port::PortConfig;
/// use softrnic_host::verbs::{Connections, QpInit, State, Wanted};
/// # use softrnic_host::verbs::{Context, Options};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # const SECOND: Duration = Duration::from_secs(1);
/// # let (left, right) = UnixStream::pair()?;
/// # let [client, server] = [(1, left), (2, right)].map(|(number, socket)| {
/// #     let mac = [2, 0, 0, 0, 0, number];
/// #     let ipv4 = Some(([192, 0, 2, number].into(), 24));
/// #     let port = PortConfig { mac, ipv4, ..PortConfig::default() };
/// #     let link = QemuStream::over(socket.into(), "wire".into(), 1500)?;
/// #     Ok::<_, Box<dyn std::error::Error>>(Context::over(Box::new(link), Options { port, ..Options::default() })?)
/// # });
/// # let (client, server) = (client?, server?);
/// // The passive side listens to port 7174 ...
/// let accepting = Connections::open(&server, 1)?;
/// accepting.listen(7174, 3)?;
/// // ... and the active side connects to it.
/// let connecting = Connections::open(&client, 2)?;
/// let (pd, cq) = (client.alloc_pd()?, client.create_cq(16)?);
/// let qp = pd.create_qp(&QpInit::new(&cq))?;
/// qp.set_state(State::Init)?;
/// let request = Request::new([192, 0, 2, 2].into(), 7174);
/// let id = connecting.connect(&Endpoint::new(qp.qpn()), &request)?;
///
/// let Some(AgentEvent::Requested { id: theirs, .. }) = accepting.event(Wanted::Requests, SECOND)
/// else {
///     return Err("nobody asked".into());
/// };
/// let (their_pd, their_cq) = (server.alloc_pd()?, server.create_cq(16)?);
/// let their_qp = their_pd.create_qp(&QpInit::new(&their_cq))?;
/// accepting.accept(theirs, &Endpoint::new(their_qp.qpn()), b"welcome")?;
/// let event = connecting.event(Wanted::Of(id), SECOND);
/// assert!(matches!(event, Some(AgentEvent::Established { .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Connections {
    context: Context,
    inbox: Arc<Inbox>,
}

impl Connections {
    /// Starts connection management on a NIC, which gets its GSI queue pair. `seed` chooses PSNs and numbers, and
    /// should differ from one start to the next.
    ///
    /// # Errors
    /// The NIC has a GSI queue pair already, or has stopped.
    pub fn open(context: &Context, seed: u64) -> Result<Self, Error> {
        let inbox = Arc::new(Inbox::default());
        let for_nic = inbox.clone();
        let buffer = Buffer::new(NativeGsi::MEMORY_LEN as usize)?;
        let config = AgentConfig { cm: cm::CmConfig::default(), seed };
        let port = context.port().clone();
        context.0.call(move |nic| {
            if nic.connections.is_some() {
                return Err(Error::Verb(softrnic_device::verbs::Error::GsiExists));
            }
            let device = &mut nic.station.nic;
            let start = device.memory.map(buffer);
            match NativeGsi::new(device, start..start + NativeGsi::MEMORY_LEN) {
                Ok(gsi) => {
                    let agent = Agent::new(gsi, &port, config);
                    nic.connections = Some(OnNic { agent, inbox: for_nic });
                    Ok(())
                }
                Err(error) => {
                    device.memory.unmap(start);
                    Err(error.into())
                }
            }
        })??;
        Ok(Self { context: context.clone(), inbox })
    }

    /// The NIC.
    #[must_use]
    pub const fn context(&self) -> &Context {
        &self.context
    }

    fn call<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Agent, &mut Nic) -> R + Send + 'static,
    ) -> Result<R, Error> {
        let done = self.context.0.call(move |nic| {
            let mut on_nic = nic.connections.take()?;
            let result = work(&mut on_nic.agent, nic);
            nic.connections = Some(on_nic);
            Some(result)
        })?;
        done.ok_or(Error::Stopped)
    }

    /// Takes requests for a port, of which `backlog` may wait for an answer (`rdma_listen`).
    ///
    /// # Errors
    /// It is listened to already.
    pub fn listen(&self, port: u16, backlog: usize) -> Result<(), Error> {
        Ok(self.call(move |agent, _| agent.listen(port, backlog))??)
    }

    /// Asks for a connection (`rdma_resolve_addr`, `rdma_connect`). The rest follows in events.
    ///
    /// # Errors
    /// A value is out of range, or the port has no address of the peer's family.
    pub fn connect(&self, endpoint: &Endpoint, request: &Request) -> Result<CommId, Error> {
        let (endpoint, request) = (*endpoint, request.clone());
        let port = self.context.port().clone();
        Ok(self.call(move |agent, nic| agent.connect(nic.now(), &port, &endpoint, &request))??)
    }

    /// Accepts a request with a queue pair in RESET or INIT (`rdma_accept`). The rest follows in events.
    ///
    /// # Errors
    /// The connection is unknown or waits for no answer.
    pub fn accept(
        &self,
        id: CommId,
        endpoint: &Endpoint,
        private_data: &[u8],
    ) -> Result<(), Error> {
        let (endpoint, private_data) = (*endpoint, private_data.to_vec());
        Ok(self.call(move |agent, _| agent.accept(id, &endpoint, &private_data))??)
    }

    /// Refuses a request (`rdma_reject`).
    ///
    /// # Errors
    /// The connection is unknown or waits for no answer.
    pub fn reject(&self, id: CommId, private_data: &[u8]) -> Result<(), Error> {
        let private_data = private_data.to_vec();
        Ok(self.call(move |agent, _| agent.reject(id, &private_data))??)
    }

    /// Ends a connection (`rdma_disconnect`): its queue pair fails and flushes, and the peer is told.
    ///
    /// # Errors
    /// The connection is unknown, or has ended.
    pub fn disconnect(&self, id: CommId) -> Result<(), Error> {
        Ok(self.call(move |agent, nic| {
            let now = nic.now();
            agent.disconnect(now, &mut nic.station, id)
        })??)
    }

    /// Nobody wants to hear of a connection any more.
    pub fn forget(&self, id: CommId) {
        let known = self.call(move |agent, _| agent.cm().state(id).is_some());
        self.inbox.forget(id, known.unwrap_or(false));
    }

    /// Waits for the next event (`rdma_get_cm_event`); `None` when the time is over. Others keep their order.
    #[must_use]
    pub fn event(&self, wanted: Wanted, timeout: Duration) -> Option<AgentEvent> {
        self.inbox.wait(wanted, timeout)
    }

    /// What has passed: messages by kind, refusals by reason, and datagrams that could not be sent.
    ///
    /// # Errors
    /// The NIC has stopped.
    pub fn counters(&self) -> Result<(CmCounters, AgentCounters), Error> {
        self.call(|agent, _| (agent.cm().counters().clone(), agent.counters()))
    }
}
