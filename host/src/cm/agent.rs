//! Connection management on a NIC: the GSI queue pair carries the messages, and the queue pairs of
//! connections go through their states at the right moments, as the kernel's RDMA CM does it.
//!
//! It runs in the thread that owns the station, which calls [`Agent::turn`] after each turn of the
//! station. It knows no thread and no clock.

use core::fmt;
use core::ops::Range;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use softrnic_device::verbs::{
    AccessFlags, Ah, AsyncEvent, Connection, Cq, Error as VerbsError, LKey, Payload, QpInit,
    RecvRequest, SendRequest, Sge, UdAddress, Verbs, WcOpcode, WorkCompletion,
};
use softrnic_device::{Memory, Nic};
use softrnic_engine::{
    Nanos, Path, PathMtu, Psn, Qpn, RemoteAccess, Service, State as QpState, Status,
};
use softrnic_sim::Random;

use super::connection::{Accept, CmConfig, CommId, Connect, End, Error, Event, LocalQp, Peer};
use super::machine::Cm;
use super::message::{Kind, MAD_LEN, Mad, Message, Rep, Req};
use super::refusal::Reject;
use crate::port::{PortConfig, Resolution};
use crate::station::Station;

const GSI: Qpn = Qpn::new(1);
const GSI_QKEY: u32 = 0x8001_0000;
const GRH_LEN: usize = 40;
/// A receive buffer: the address area and a datagram, rounded up.
const BUFFER_LEN: u64 = 320;
/// Datagrams in flight, and completions that wait.
const DEPTH: u32 = 128;
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
    /// The queue pair cannot be made ready.
    Qp(VerbsError),
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

/// Connection management of one NIC.
#[derive(Debug)]
pub struct Agent {
    cm: Cm,
    cq: Cq,
    lkey: LKey,
    buffers: u64,
    random: Random,
    bound: BTreeMap<CommId, Bound>,
    outbox: VecDeque<(Peer, Box<Mad>)>,
    /// Address handles of datagrams that have not left.
    handles: BTreeMap<u64, Ah>,
    pd: softrnic_device::verbs::Pd,
    next_wr_id: u64,
    events: VecDeque<AgentEvent>,
    /// Queue pairs whose state has changed.
    changed: Vec<Qpn>,
    counters: AgentCounters,
}

impl Agent {
    /// Bytes of NIC memory that receive buffers take.
    pub const MEMORY_LEN: u64 = BUFFER_LEN * DEPTH as u64;

    /// Makes the GSI queue pair of a NIC, with receive buffers at these bus addresses.
    ///
    /// # Errors
    /// There is a GSI queue pair already, or the buffers are not memory.
    pub fn new<M: Memory>(
        nic: &mut Nic<Verbs, M>,
        buffers: Range<u64>,
        port: &PortConfig,
        config: AgentConfig,
    ) -> Result<Self, VerbsError> {
        let mut random = Random::new(config.seed, 0);
        let pd = nic.alloc_pd()?;
        let cq = nic.create_cq(2 * DEPTH)?;
        let lkey =
            nic.reg_mr(pd, buffers.start, buffers.end - buffers.start, AccessFlags::LOCAL)?.lkey;
        let init = QpInit {
            pd,
            send_cq: cq,
            recv_cq: cq,
            sq_depth: DEPTH,
            rq_depth: DEPTH,
            max_sge: 1,
            max_inline: MAD_LEN as u32,
            sq_sig_all: true,
            service: Service::Ud,
            srq: None,
        };
        let gsi = nic.create_gsi_qp(&init)?;
        nic.connect(gsi, &Connection::default())?;
        let addresses = [port.ipv4.map(|(ip, _)| ip.into()), port.ipv6.map(|(ip, _)| ip.into())];
        let cm = Cm::new(CmConfig {
            ca_guid: node_guid(port.mac, random.next_u64() as u16),
            addresses: addresses.into_iter().flatten().collect(),
            first_comm_id: random.next_u64() as u32,
            first_transaction: random.next_u64(),
            path_mtu: largest_path_mtu(port.mtu),
            ..config.cm
        });
        let (buffers, next_wr_id) = (buffers.start, u64::from(DEPTH));
        let agent = Self {
            cm,
            cq,
            lkey,
            buffers,
            random,
            bound: BTreeMap::new(),
            outbox: VecDeque::new(),
            handles: BTreeMap::new(),
            pd,
            next_wr_id,
            events: VecDeque::new(),
            changed: Vec::new(),
            counters: AgentCounters::default(),
        };
        for buffer in 0..u64::from(DEPTH) {
            agent.post_receive(nic, buffer)?;
        }
        Ok(agent)
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
    pub fn disconnect<M: Memory>(
        &mut self,
        now: Nanos,
        nic: &mut Nic<Verbs, M>,
        id: CommId,
    ) -> Result<(), Error> {
        self.cm.disconnect(now, id)?;
        self.fail_qp(nic, id);
        if self.cm.state(id).is_none() {
            self.bound.remove(&id);
        }
        Ok(())
    }

    /// An asynchronous event of the NIC: the first packet on a queue pair stands for the RTU.
    pub fn handle_async_event(&mut self, event: &AsyncEvent) {
        let AsyncEvent::CommunicationEstablished(qpn) = *event else { return };
        let of = |bound: &Bound| bound.endpoint.is_some_and(|endpoint| endpoint.qpn == qpn);
        if let Some(id) = self.bound.iter().find(|(_, bound)| of(bound)).map(|(id, _)| *id) {
            // Where an RTU has come already, this is no news.
            let _ = self.cm.communication_established(id);
        }
    }

    /// Takes what has come, lets time pass, and sends what is to be sent. Call it after each turn of
    /// the station, at the station's deadlines and at the agent's own. Whether it did something.
    pub fn turn<M: Memory>(&mut self, now: Nanos, station: &mut Station<Verbs, M>) -> bool {
        let mut busy = self.receive(now, &mut station.nic);
        if self.cm.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.cm.handle_timeout(now);
            busy = true;
        }
        self.follow_events(&mut station.nic);
        self.advance(now, station);
        self.transmit(now, station) || busy
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

    /// A queue pair whose state has changed since the last call; for whoever keeps a copy of it.
    pub fn poll_changed_qp(&mut self) -> Option<Qpn> {
        self.changed.pop()
    }

    fn psn(&mut self) -> Psn {
        Psn::new(self.random.next_u64() as u32)
    }

    fn post_receive<M: Memory>(
        &self,
        nic: &mut Nic<Verbs, M>,
        buffer: u64,
    ) -> Result<(), VerbsError> {
        let address = self.buffers + buffer * BUFFER_LEN;
        let sges = [Sge { address, length: BUFFER_LEN as u32, lkey: self.lkey }];
        nic.post_recv(GSI, &RecvRequest { wr_id: buffer, sges: &sges })
    }

    fn receive<M: Memory>(&mut self, now: Nanos, nic: &mut Nic<Verbs, M>) -> bool {
        let mut done = [WorkCompletion::default(); 16];
        let mut busy = false;
        while let Ok(count @ 1..) = nic.poll_cq(self.cq, &mut done) {
            busy = true;
            for completion in &done[..count] {
                let ok = completion.status == Status::Success;
                if completion.wr_id >= u64::from(DEPTH) {
                    self.counters.send_errors += u64::from(!ok);
                    if let Some(ah) = self.handles.remove(&completion.wr_id) {
                        // It was made by `send` and is destroyed here only.
                        let _ = nic.destroy_ah(ah);
                    }
                    continue;
                }
                if !(ok && completion.opcode == WcOpcode::Recv && self.take(now, nic, completion)) {
                    self.counters.receive_errors += 1;
                }
                // A buffer that cannot be posted again is one less; messages may be lost.
                if self.post_receive(nic, completion.wr_id).is_err() {
                    self.counters.receive_errors += 1;
                }
            }
        }
        busy
    }

    /// A datagram has come; false where it says not from whom.
    fn take<M: Memory>(
        &mut self,
        now: Nanos,
        nic: &Nic<Verbs, M>,
        completion: &WorkCompletion,
    ) -> bool {
        let mut bytes = [0; BUFFER_LEN as usize];
        let len = (completion.byte_len as usize).min(bytes.len());
        let address = self.buffers + completion.wr_id * BUFFER_LEN;
        let read = nic.memory.read(address, &mut bytes[..len]);
        let (Ok(()), Some((area, mad))) = (read, bytes[..len].split_first_chunk()) else {
            return false;
        };
        let (Some(ip), Some(qpn)) = (source_ip(area), completion.source_qpn) else { return false };
        // Refusals are counted there, and the peer is told where it should know.
        let _ = self.cm.handle_mad(now, Peer { ip, qpn }, mad);
        true
    }

    fn follow_events<M: Memory>(&mut self, nic: &mut Nic<Verbs, M>) {
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
                    self.fail(nic, id, Failure::Rejected(reason));
                }
                Event::Unreachable { id, unanswered, sent } => {
                    self.fail(nic, id, Failure::Unreachable { unanswered, sent });
                }
                Event::Disconnected { id, by } => {
                    self.fail_qp(nic, id);
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
    fn fail<M: Memory>(&mut self, nic: &mut Nic<Verbs, M>, id: CommId, why: Failure) {
        self.fail_qp(nic, id);
        if let Some(Bound { peer, .. }) = self.bound.remove(&id) {
            self.events.push_back(AgentEvent::Failed { id, peer, why });
        }
    }

    fn fail_qp<M: Memory>(&mut self, nic: &mut Nic<Verbs, M>, id: CommId) {
        let endpoint = self.bound.get(&id).and_then(|bound| bound.endpoint);
        let Some(Endpoint { qpn, .. }) = endpoint else { return };
        // The program may have destroyed or reset it already.
        if !matches!(nic.state(qpn), None | Some(QpState::Reset | QpState::Error)) {
            let _ = nic.set_state(qpn, QpState::Error);
            self.changed.push(qpn);
        }
    }

    /// Connections that wait for nothing but a MAC address.
    fn advance<M: Memory>(&mut self, now: Nanos, station: &mut Station<Verbs, M>) {
        if self.bound.values().all(|bound| bound.waits.is_none()) {
            return;
        }
        let waiting = self.bound.iter().filter(|(_, bound)| bound.waits.is_some());
        let waiting: Vec<_> = waiting.map(|(id, bound)| (*id, bound.peer)).collect();
        for (id, peer) in waiting {
            match station.resolve(now, peer) {
                Resolution::Asking => {}
                Resolution::Known(mac) => self.go_on(now, &mut station.nic, id, mac),
                silence => {
                    // Too late for a REJ that would arrive: the peer gives up by itself.
                    self.cm.abandon(id);
                    self.fail(&mut station.nic, id, Failure::Address(silence));
                }
            }
        }
    }

    /// The next step of a connection whose peer has a MAC address.
    fn go_on<M: Memory>(&mut self, now: Nanos, nic: &mut Nic<Verbs, M>, id: CommId, mac: [u8; 6]) {
        let Some(waits) = self.bound.get_mut(&id).and_then(|bound| bound.waits.take()) else {
            return;
        };
        // Where the queue pair cannot follow, the peer is told no, and not yes and goodbye.
        if let Err(error) = self.check_qp(nic, id) {
            let _ = self.cm.reject(id, Reject::NO_QP, &[]);
            return self.fail(nic, id, Failure::Qp(error));
        }
        if let Waits::Reply(accept) = &waits
            && self.cm.accept(now, id, accept).is_err()
        {
            // The active side gave up meanwhile, and an event says so.
            return;
        }
        // The REP is not sent before this returns.
        if let Err(error) = self.ready_qp(nic, id, mac) {
            let _ = self.cm.disconnect(now, id);
            return self.fail(nic, id, Failure::Qp(error));
        }
        if matches!(waits, Waits::Ready) && self.cm.ready(id).is_ok() {
            self.tell_established(id);
        }
    }

    /// Whether a connection's queue pair can be connected.
    fn check_qp<M: Memory>(&self, nic: &Nic<Verbs, M>, id: CommId) -> Result<(), VerbsError> {
        let endpoint = self.bound.get(&id).and_then(|bound| bound.endpoint);
        let Some(Endpoint { qpn, .. }) = endpoint else { return Ok(()) };
        match nic.state(qpn) {
            None => Err(VerbsError::UnknownQp(qpn)),
            Some(QpState::Reset | QpState::Init) => Ok(()),
            Some(state) => Err(VerbsError::WrongState { qpn, state }),
        }
    }

    /// From RESET or INIT to RTS.
    fn ready_qp<M: Memory>(
        &mut self,
        nic: &mut Nic<Verbs, M>,
        id: CommId,
        dest_mac: [u8; 6],
    ) -> Result<(), VerbsError> {
        let endpoint = self.bound.get(&id).and_then(|bound| bound.endpoint);
        let Some((endpoint, parameters)) = endpoint.zip(self.cm.parameters(id)) else {
            return Ok(());
        };
        let path = Path {
            dest_mac,
            dest_ip: parameters.remote,
            traffic_class: parameters.traffic_class,
            hop_limit: parameters.hop_limit.max(1),
            flow_label: parameters.flow_label,
            ..Path::default()
        };
        let connection = Connection {
            path,
            path_mtu: parameters.path_mtu,
            dest_qpn: parameters.dest_qpn,
            send_psn: parameters.send_psn,
            expected_psn: parameters.expected_psn,
            pkey: parameters.pkey,
            remote_access: endpoint.remote_access,
            // 0 is for ever.
            ack_timeout: match parameters.ack_timeout {
                0 => endpoint.ack_timeout_max,
                asked => asked.min(endpoint.ack_timeout_max),
            },
            retry_count: parameters.retry_count,
            rnr_retry: parameters.rnr_retry,
            min_rnr_timer: endpoint.min_rnr_timer,
            max_rd_atomic: parameters.max_rd_atomic,
            max_dest_rd_atomic: parameters.max_dest_rd_atomic,
            ..Connection::default()
        };
        nic.connect(endpoint.qpn, &connection)?;
        self.changed.push(endpoint.qpn);
        Ok(())
    }

    fn transmit<M: Memory>(&mut self, now: Nanos, station: &mut Station<Verbs, M>) -> bool {
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
            match station.resolve(now, peer.ip) {
                Resolution::Known(mac) => {
                    if self.send(&mut station.nic, peer, mac, &mad).is_err() {
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
                        self.fail(&mut station.nic, id, Failure::Address(silence));
                    }
                    busy = true;
                }
            }
        }
        busy
    }

    fn send<M: Memory>(
        &mut self,
        nic: &mut Nic<Verbs, M>,
        peer: Peer,
        dest_mac: [u8; 6],
        mad: &Mad,
    ) -> Result<(), VerbsError> {
        if self.handles.len() >= DEPTH as usize {
            return Err(VerbsError::Exhausted("send queue of the GSI queue pair"));
        }
        let path = Path { dest_mac, dest_ip: peer.ip, ..Path::default() };
        let ah = nic.create_ah(self.pd, &path)?;
        let request = SendRequest {
            wr_id: self.next_wr_id,
            payload: Payload::Inline(mad),
            ud: Some(UdAddress { ah, remote_qpn: peer.qpn, remote_qkey: GSI_QKEY }),
            signaled: true,
            ..SendRequest::default()
        };
        if let Err(error) = nic.post_send(GSI, &request) {
            nic.destroy_ah(ah)?;
            return Err(error);
        }
        self.handles.insert(self.next_wr_id, ah);
        self.next_wr_id += 1;
        Ok(())
    }
}

/// Who sent a datagram: its 40-byte area is an IPv6 header, or ends with an IPv4 header.
fn source_ip(area: &[u8; GRH_LEN]) -> Option<IpAddr> {
    match (area[0] >> 4, area[20] >> 4) {
        (6, _) => area[8..24].first_chunk().map(|ip: &[u8; 16]| Ipv6Addr::from(*ip).into()),
        (0, 4) => area[32..36].first_chunk().map(|ip: &[u8; 4]| Ipv4Addr::from(*ip).into()),
        _ => None,
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
