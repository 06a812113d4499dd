//! Connection management on a device: its GSI queue pair carries the messages, and the queue pairs of
//! connections go through their states at the right moments, as the kernel's RDMA CM does it.
//!
//! What it needs of a device is [`Gsi`]: `native` and `ernic` have it. It runs where the device is driven, which
//! calls [`Agent::turn`] whenever something may have come. It knows no thread and no clock.

use core::fmt;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use softrnic_engine::{Nanos, PathMtu, Psn, Qpn, RemoteAccess};
use softrnic_sim::Random;

use super::connection::{
    Accept, CmConfig, CommId, Connect, End, Error, Event, LocalQp, Parameters, Peer, State,
};
use super::machine::Cm;
use super::message::{Kind, Mad, Message, Rep, Req};
use super::refusal::Reject;
use crate::port::{PortConfig, Resolution};

/// Datagrams that wait for a MAC address or for room.
const OUTBOX_MAX: usize = 1024;

/// What an agent is made with.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Habits of the connection manager. GUID, addresses, numbers and path MTU are filled in.
    pub cm: CmConfig,
    /// Where PSNs and numbers begin; it should differ from one start to the next.
    pub seed: u64,
}

/// A queue pair that is to be connected; in RESET or INIT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// Its number.
    pub qpn: Qpn,
    /// What the peer may do.
    pub remote_access: RemoteAccess,
    /// READs and atomics that it serves at a time.
    pub responder_resources: u8,
    /// READs and atomics that it keeps outstanding.
    pub initiator_depth: u8,
    /// RNR retries of the peer's queue pair, 0 to 7.
    pub rnr_retry_count: u8,
    /// Timer code of our RNR NAKs, 0 to 31.
    pub min_rnr_timer: u8,
    /// It receives from a shared queue.
    pub srq: bool,
    /// Local ACK timeout at most: 4.096 us x 2^value. Linux' active side asks for 2.1 s, which is long where
    /// packets are lost.
    pub ack_timeout_max: u8,
}

impl Endpoint {
    /// With the depths of most programs: 16 READs each way, every remote access.
    #[must_use]
    pub const fn new(qpn: Qpn) -> Self {
        Self {
            qpn,
            remote_access: RemoteAccess { read: true, write: true, atomic: true },
            responder_resources: 16,
            initiator_depth: 16,
            rnr_retry_count: 7,
            min_rnr_timer: 12,
            srq: false,
            ack_timeout_max: 31,
        }
    }

    fn local(&self, psn: Psn) -> LocalQp {
        LocalQp {
            qpn: self.qpn,
            psn,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            rnr_retry_count: self.rnr_retry_count,
            srq: self.srq,
            flow_control: !self.srq,
        }
    }
}

/// Whom to connect to, and how.
#[derive(Clone, Debug)]
pub struct Request {
    /// The peer's address.
    pub remote: IpAddr,
    /// Its port in RDMA CM's TCP space.
    pub port: u16,
    /// Path MTU; `None`: the largest that fits the link.
    pub path_mtu: Option<PathMtu>,
    /// Transport retries of both queue pairs, 0 to 7.
    pub retry_count: u8,
    /// Local ACK timeout of both queue pairs: 4.096 us x 2^value.
    pub ack_timeout: u8,
    /// The program's private data, 56 bytes at most.
    pub private_data: Vec<u8>,
}

impl Request {
    /// To a port, with the timeouts that Linux asks for.
    #[must_use]
    pub const fn new(remote: IpAddr, port: u16) -> Self {
        let private_data = Vec::new();
        Self { remote, port, path_mtu: None, retry_count: 7, ack_timeout: 17, private_data }
    }
}

/// Why there is no connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// No MAC address answers for the peer's IP address, or no network leads there.
    Address(Resolution),
    /// The peer said no.
    Rejected(Reject),
    /// The peer said nothing.
    Unreachable {
        /// The message that stayed without an answer.
        unanswered: Kind,
        /// How often it was sent.
        sent: u32,
    },
    /// The queue pair cannot be made ready; the device's words.
    Qp(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(Resolution::NoRoute) => {
                f.write_str("its address is in no network of this port, and there is no gateway")
            }
            Self::Address(_) => f.write_str("nobody answers for its address (ARP, NDP)"),
            Self::Rejected(reason) => write!(f, "it rejects: {reason}"),
            Self::Unreachable { unanswered, sent } => {
                write!(f, "it does not answer: {unanswered} was sent {sent} times")
            }
            Self::Qp(error) => write!(f, "our queue pair cannot be made ready: {error}"),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Us => f.write_str("we ended it"),
            Self::Peer => f.write_str("the peer ended it"),
            Self::Silence => f.write_str("we ended it, and the peer did not answer"),
            Self::Rejected(reason) => write!(f, "the peer gave it up: {reason}"),
            Self::Restarted => f.write_str("the peer has started again"),
        }
    }
}

/// What connection management needs of a device `D`: datagrams by its GSI queue pair, the way to a peer, and the
/// states of its queue pairs.
pub trait Gsi<D> {
    /// Hands over each datagram that has come, with who sent it, and counts those that cannot be. Whether the device
    /// had something to say.
    fn receive(
        &mut self,
        device: &mut D,
        counters: &mut AgentCounters,
        take: &mut dyn FnMut(Peer, &[u8]),
    ) -> bool;

    /// Sends a datagram; false where there is no room now.
    fn send(&mut self, device: &mut D, peer: Peer, dest_mac: [u8; 6], mad: &Mad) -> bool;

    /// The MAC address for a peer's IP address. Never waits.
    fn resolve(&mut self, device: &mut D, now: Nanos, ip: IpAddr) -> Resolution;

    /// Whether a queue pair can be connected.
    ///
    /// # Errors
    /// Why not.
    fn check(&mut self, device: &mut D, qpn: Qpn) -> Result<(), String>;

    /// Makes a queue pair ready to receive and to send.
    ///
    /// # Errors
    /// Why it cannot be.
    fn connect(
        &mut self,
        device: &mut D,
        endpoint: &Endpoint,
        parameters: &Parameters,
        dest_mac: [u8; 6],
    ) -> Result<(), String>;

    /// A connection has ended: no more packets leave its queue pair, and its work is flushed. Whether its state has
    /// changed; the program may have destroyed it already.
    fn fail(&mut self, device: &mut D, qpn: Qpn) -> bool;

    /// Whether something has arrived on a queue pair, where the device does not tell by itself: it stands for an RTU
    /// that was lost.
    fn has_received(&mut self, device: &mut D, qpn: Qpn) -> bool;
}

/// What a program must know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AgentEvent {
    /// Somebody asks for a connection. Answer with `accept` or `reject`.
    Requested {
        /// The new connection.
        id: CommId,
        /// Who asks.
        peer: IpAddr,
        /// What for.
        req: Box<Req>,
    },
    /// Both queue pairs are ready.
    Established {
        /// Which connection.
        id: CommId,
        /// Our queue pair, in RTS.
        qpn: Qpn,
        /// The peer.
        peer: IpAddr,
        /// Its queue pair.
        peer_qpn: Qpn,
        /// Path MTU of the connection.
        path_mtu: PathMtu,
    },
    /// There will be no connection; the queue pair is in ERROR.
    Failed {
        /// Which connection.
        id: CommId,
        /// The peer.
        peer: IpAddr,
        /// Why.
        why: Failure,
    },
    /// The connection has ended; the queue pair is in ERROR.
    Disconnected {
        /// Which connection.
        id: CommId,
        /// Who ended it.
        by: End,
    },
    /// The queue pair may be used again.
    Closed {
        /// Which connection.
        id: CommId,
    },
}

impl AgentEvent {
    /// Which connection it concerns.
    #[must_use]
    pub const fn id(&self) -> CommId {
        match *self {
            Self::Requested { id, .. }
            | Self::Established { id, .. }
            | Self::Failed { id, .. }
            | Self::Disconnected { id, .. }
            | Self::Closed { id } => id,
        }
    }
}

/// What happened to datagrams apart from the connection manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AgentCounters {
    /// Dropped: nobody answers for the peer's IP address.
    pub unresolved: u64,
    /// Dropped: too many waited.
    pub overflow: u64,
    /// Sends that completed in error.
    pub send_errors: u64,
    /// Receives that completed in error, or carried no IP address.
    pub receive_errors: u64,
}

/// A connection's queue pair, and what waits for the peer's MAC address.
#[derive(Clone, Debug)]
struct Bound {
    /// `None`: the program has not said `accept`.
    endpoint: Option<Endpoint>,
    peer: IpAddr,
    waits: Option<Waits>,
    established: bool,
}

#[derive(Clone, Debug)]
enum Waits {
    /// Passive: the REP.
    Reply(Accept),
    /// Active: the RTU.
    Ready,
}

/// Connection management of one device, by its GSI queue pair `G`.
#[derive(Debug)]
pub struct Agent<G> {
    cm: Cm,
    gsi: G,
    random: Random,
    bound: BTreeMap<CommId, Bound>,
    outbox: VecDeque<(Peer, Box<Mad>)>,
    events: VecDeque<AgentEvent>,
    /// Queue pairs whose state has changed.
    changed: Vec<Qpn>,
    counters: AgentCounters,
}

impl<G> Agent<G> {
    /// Over a GSI queue pair, for a port with these addresses.
    #[must_use]
    pub fn new(gsi: G, port: &PortConfig, config: AgentConfig) -> Self {
        let mut random = Random::new(config.seed, 0);
        let addresses = [port.ipv4.map(|(ip, _)| ip.into()), port.ipv6.map(|(ip, _)| ip.into())];
        let cm = Cm::new(CmConfig {
            ca_guid: node_guid(port.mac, random.next_u64() as u16),
            addresses: addresses.into_iter().flatten().collect(),
            first_comm_id: random.next_u64() as u32,
            first_transaction: random.next_u64(),
            path_mtu: largest_path_mtu(port.mtu),
            ..config.cm
        });
        Self {
            cm,
            gsi,
            random,
            bound: BTreeMap::new(),
            outbox: VecDeque::new(),
            events: VecDeque::new(),
            changed: Vec::new(),
            counters: AgentCounters::default(),
        }
    }

    /// The connection manager: states and counters.
    #[must_use]
    pub const fn cm(&self) -> &Cm {
        &self.cm
    }

    /// What happened to datagrams.
    #[must_use]
    pub const fn counters(&self) -> AgentCounters {
        self.counters
    }

    /// Takes requests for a port, of which `backlog` may wait for a decision.
    ///
    /// # Errors
    /// It is listened to already.
    pub fn listen(&mut self, port: u16, backlog: usize) -> Result<(), Error> {
        self.cm.listen(super::message::tcp_service(port), backlog)
    }

    /// Takes no more requests for a port.
    pub fn stop_listening(&mut self, port: u16) {
        self.cm.stop_listening(super::message::tcp_service(port));
    }

    /// Asks for a connection. The rest follows in events.
    ///
    /// # Errors
    /// A value is out of range, the port has no address of this family, or there are too many
    /// connections.
    pub fn connect(
        &mut self,
        now: Nanos,
        port: &PortConfig,
        endpoint: &Endpoint,
        request: &Request,
    ) -> Result<CommId, Error> {
        let remote = request.remote;
        let local = match remote {
            IpAddr::V4(_) => port.ipv4.map(|(ip, _)| ip.into()),
            IpAddr::V6(_) => port.ipv6.map(|(ip, _)| ip.into()),
        };
        let local = local.ok_or(Error::NoAddress { remote })?;
        let local_port = 0x8000 | self.random.next_u64() as u16;
        let tcp = Connect::tcp(local, local_port, remote, request.port, &request.private_data)?;
        let psn = self.psn();
        let connect = Connect {
            qp: endpoint.local(psn),
            path_mtu: request.path_mtu.unwrap_or_else(|| largest_path_mtu(port.mtu)),
            retry_count: request.retry_count,
            ack_timeout: request.ack_timeout,
            ..tcp
        };
        let id = self.cm.connect(now, &connect)?;
        let bound =
            Bound { endpoint: Some(*endpoint), peer: remote, waits: None, established: false };
        self.bound.insert(id, bound);
        Ok(id)
    }

    /// Accepts a request with a queue pair. The rest follows in events.
    ///
    /// # Errors
    /// The connection is unknown or waits for no answer.
    pub fn accept(
        &mut self,
        id: CommId,
        endpoint: &Endpoint,
        private_data: &[u8],
    ) -> Result<(), Error> {
        let state = self.cm.state(id).ok_or(Error::UnknownConnection(id))?;
        let psn = self.psn();
        let bound = self.bound.get_mut(&id).ok_or(Error::UnknownConnection(id))?;
        if state != super::State::ReqReceived || bound.endpoint.is_some() {
            return Err(Error::WrongState { id, state });
        }
        let (given, max) = (private_data.len(), Rep::PRIVATE_LEN);
        if given > max {
            return Err(Error::PrivateData { given, max });
        }
        let accept = Accept { qp: endpoint.local(psn), private_data: private_data.to_vec() };
        bound.endpoint = Some(*endpoint);
        bound.waits = Some(Waits::Reply(accept));
        Ok(())
    }

    /// Refuses a request.
    ///
    /// # Errors
    /// The connection is unknown or waits for no answer.
    pub fn reject(&mut self, id: CommId, private_data: &[u8]) -> Result<(), Error> {
        self.cm.reject(id, Reject::CONSUMER, private_data)?;
        self.bound.remove(&id);
        Ok(())
    }

    /// Ends a connection: its queue pair fails and flushes, and the peer is told.
    ///
    /// # Errors
    /// The connection is unknown, or has ended.
    pub fn disconnect<D>(&mut self, now: Nanos, device: &mut D, id: CommId) -> Result<(), Error>
    where
        G: Gsi<D>,
    {
        self.cm.disconnect(now, id)?;
        self.fail_qp(device, id);
        if self.cm.state(id).is_none() {
            self.bound.remove(&id);
        }
        Ok(())
    }

    /// The first packet has come on a queue pair: it stands for the RTU.
    pub fn communication_established(&mut self, qpn: Qpn) {
        let of = |bound: &Bound| bound.endpoint.is_some_and(|endpoint| endpoint.qpn == qpn);
        if let Some(id) = self.bound.iter().find(|(_, bound)| of(bound)).map(|(id, _)| *id) {
            // Where an RTU has come already, this is no news.
            let _ = self.cm.communication_established(id);
        }
    }

    /// Takes what has come, lets time pass, and sends what is to be sent. Call it whenever something may have come,
    /// and at the agent's own deadlines. Whether it did something.
    pub fn turn<D>(&mut self, now: Nanos, device: &mut D) -> bool
    where
        G: Gsi<D>,
    {
        let Self { cm, gsi, counters, .. } = self;
        let mut busy = gsi.receive(device, counters, &mut |from, mad| {
            // Refusals are counted there, and the peer is told where it should know.
            let _ = cm.handle_mad(now, from, mad);
        });
        if self.cm.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.cm.handle_timeout(now);
            busy = true;
        }
        self.look_for_first_packets(device);
        self.follow_events(device);
        self.advance(now, device);
        self.transmit(now, device) || busy
    }

    /// When [`Agent::turn`] has something to do by itself.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.cm.next_deadline()
    }

    /// The next thing that a program must know.
    pub fn poll_event(&mut self) -> Option<AgentEvent> {
        self.events.pop_front()
    }

    /// Whether a connection has this queue pair: those in time wait do, so that its number is not used again at once.
    #[must_use]
    pub fn holds(&self, qpn: Qpn) -> bool {
        let mut endpoints = self.bound.values().filter_map(|bound| bound.endpoint);
        endpoints.any(|endpoint| endpoint.qpn == qpn)
    }

    /// A queue pair whose state has changed since the last call; for whoever keeps a copy of it.
    pub fn poll_changed_qp(&mut self) -> Option<Qpn> {
        self.changed.pop()
    }

    fn psn(&mut self) -> Psn {
        Psn::new(self.random.next_u64() as u32)
    }

    fn look_for_first_packets<D>(&mut self, device: &mut D)
    where
        G: Gsi<D>,
    {
        for (id, bound) in &self.bound {
            let Some(Endpoint { qpn, .. }) = bound.endpoint else { continue };
            if self.cm.state(*id) == Some(State::RepSent) && self.gsi.has_received(device, qpn) {
                // It was in this state a moment ago.
                let _ = self.cm.communication_established(*id);
            }
        }
    }

    fn follow_events<D>(&mut self, device: &mut D)
    where
        G: Gsi<D>,
    {
        while let Some(event) = self.cm.poll_event() {
            match event {
                Event::Requested { id, peer, req } => {
                    let peer = peer.ip;
                    let bound = Bound { endpoint: None, peer, waits: None, established: false };
                    self.bound.insert(id, bound);
                    self.events.push_back(AgentEvent::Requested { id, peer, req });
                }
                Event::Replied { id, .. } => {
                    if let Some(bound) = self.bound.get_mut(&id) {
                        bound.waits = Some(Waits::Ready);
                    }
                }
                Event::Established { id } => self.tell_established(id),
                Event::Rejected { id, reason, .. } => {
                    self.fail(device, id, Failure::Rejected(reason));
                }
                Event::Unreachable { id, unanswered, sent } => {
                    self.fail(device, id, Failure::Unreachable { unanswered, sent });
                }
                Event::Disconnected { id, by } => {
                    self.fail_qp(device, id);
                    if self.bound.contains_key(&id) {
                        self.events.push_back(AgentEvent::Disconnected { id, by });
                    }
                }
                Event::Closed { id } => {
                    if self.bound.remove(&id).is_some() {
                        self.events.push_back(AgentEvent::Closed { id });
                    }
                }
            }
        }
    }

    fn tell_established(&mut self, id: CommId) {
        let Some((bound, parameters)) = self.bound.get_mut(&id).zip(self.cm.parameters(id)) else {
            return;
        };
        if !std::mem::replace(&mut bound.established, true) {
            self.events.push_back(AgentEvent::Established {
                id,
                qpn: parameters.qpn,
                peer: bound.peer,
                peer_qpn: parameters.dest_qpn,
                path_mtu: parameters.path_mtu,
            });
        }
    }

    /// Ends what has not become a connection.
    fn fail<D>(&mut self, device: &mut D, id: CommId, why: Failure)
    where
        G: Gsi<D>,
    {
        self.fail_qp(device, id);
        if let Some(Bound { peer, .. }) = self.bound.remove(&id) {
            self.events.push_back(AgentEvent::Failed { id, peer, why });
        }
    }

    fn fail_qp<D>(&mut self, device: &mut D, id: CommId)
    where
        G: Gsi<D>,
    {
        let endpoint = self.bound.get(&id).and_then(|bound| bound.endpoint);
        let Some(Endpoint { qpn, .. }) = endpoint else { return };
        if self.gsi.fail(device, qpn) {
            self.changed.push(qpn);
        }
    }

    /// Connections that wait for nothing but a MAC address.
    fn advance<D>(&mut self, now: Nanos, device: &mut D)
    where
        G: Gsi<D>,
    {
        if self.bound.values().all(|bound| bound.waits.is_none()) {
            return;
        }
        let waiting = self.bound.iter().filter(|(_, bound)| bound.waits.is_some());
        let waiting: Vec<_> = waiting.map(|(id, bound)| (*id, bound.peer)).collect();
        for (id, peer) in waiting {
            match self.gsi.resolve(device, now, peer) {
                Resolution::Asking => {}
                Resolution::Known(mac) => self.go_on(now, device, id, mac),
                silence => {
                    // Too late for a REJ that would arrive: the peer gives up by itself.
                    self.cm.abandon(id);
                    self.fail(device, id, Failure::Address(silence));
                }
            }
        }
    }

    /// The next step of a connection whose peer has a MAC address.
    fn go_on<D>(&mut self, now: Nanos, device: &mut D, id: CommId, mac: [u8; 6])
    where
        G: Gsi<D>,
    {
        let Some(bound) = self.bound.get_mut(&id) else { return };
        let Some(waits) = bound.waits.take() else { return };
        let endpoint = bound.endpoint;
        // Where the queue pair cannot follow, the peer is told no, and not yes and goodbye.
        if let Some(Endpoint { qpn, .. }) = endpoint
            && let Err(error) = self.gsi.check(device, qpn)
        {
            let _ = self.cm.reject(id, Reject::NO_QP, &[]);
            return self.fail(device, id, Failure::Qp(error));
        }
        if let Waits::Reply(accept) = &waits
            && self.cm.accept(now, id, accept).is_err()
        {
            // The active side gave up meanwhile, and an event says so.
            return;
        }
        // The REP is not sent before this returns.
        if let Some((endpoint, parameters)) = endpoint.zip(self.cm.parameters(id)) {
            if let Err(error) = self.gsi.connect(device, &endpoint, &parameters, mac) {
                let _ = self.cm.disconnect(now, id);
                return self.fail(device, id, Failure::Qp(error));
            }
            self.changed.push(endpoint.qpn);
        }
        if matches!(waits, Waits::Ready) && self.cm.ready(id).is_ok() {
            self.tell_established(id);
        }
    }

    fn transmit<D>(&mut self, now: Nanos, device: &mut D) -> bool
    where
        G: Gsi<D>,
    {
        let mut busy = false;
        while let Some(message) = self.cm.poll_transmit() {
            if self.outbox.len() < OUTBOX_MAX {
                self.outbox.push_back(message);
            } else {
                self.counters.overflow += 1;
            }
        }
        // Each is looked at once; those that wait keep their order.
        for _ in 0..self.outbox.len() {
            let Some((peer, mad)) = self.outbox.pop_front() else { break };
            match self.gsi.resolve(device, now, peer.ip) {
                Resolution::Known(mac) => {
                    if !self.gsi.send(device, peer, mac, &mad) {
                        self.outbox.push_front((peer, mad));
                        break;
                    }
                    busy = true;
                }
                Resolution::Asking => self.outbox.push_back((peer, mad)),
                silence => {
                    self.counters.unresolved += 1;
                    if let Ok((_, Message::Req(req))) = Message::decode(&*mad) {
                        let id = CommId(req.local_comm_id);
                        self.cm.abandon(id);
                        self.fail(device, id, Failure::Address(silence));
                    }
                    busy = true;
                }
            }
        }
        busy
    }
}

impl Parameters {
    /// Local ACK timeout, where the program takes `max` at most: 4.096 us x 2^value.
    #[must_use]
    pub fn ack_timeout_within(&self, max: u8) -> u8 {
        // 0 is for ever.
        if self.ack_timeout == 0 { max } else { self.ack_timeout.min(max) }
    }
}

/// A GUID from a MAC address (EUI-64), with a start's own bits in place of FF-FE.
const fn node_guid(mac: [u8; 6], start: u16) -> u64 {
    let [a, b, c, d, e, f] = mac;
    let [high, low] = start.to_be_bytes();
    u64::from_be_bytes([a ^ 2, b, c, high, low, d, e, f])
}

/// The largest path MTU whose packets fit, with every header that they can have.
#[must_use]
pub fn largest_path_mtu(ip_mtu: u16) -> PathMtu {
    // IPv6 or GRH, UDP, BTH, the longest extensions, ICRC: as Linux reckons for RoCE.
    const HEADERS: u16 = 40 + 8 + 12 + 4 + 28 + 4;
    let fits = |mtu: &&PathMtu| mtu.bytes() as usize + usize::from(HEADERS) <= ip_mtu.into();
    PathMtu::ALL.iter().rev().find(fits).copied().unwrap_or(PathMtu::M256)
}
