//! Connections by number: what software asks for, what time does, what is to be sent and told.
//! What arrives is `receive`'s.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use softrnic_engine::{Nanos, Qpn};

use super::connection::{
    Accept, CmConfig, CommId, Connect, Connection, End, Error, Event, Parameters, Peer, State,
    Waiting, bounded_timeout_ns,
};
use super::message::{self, Drep, Dreq, Kind, Mad, Message, Mra, Rej, Rep, Req, Rtu};
use super::refusal::{Refusal, Reject};

/// What has passed, by kind of message in the order of [`Kind::ALL`]; Linux has the same counters in
/// `/sys/class/infiniband/*/ports/*/cm_*`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CmCounters {
    /// `cm_tx_msgs`: sent, those sent again included.
    pub sent: [u64; Kind::ALL.len()],
    /// `cm_tx_retries`: sent again because no answer came.
    pub retries: [u64; Kind::ALL.len()],
    /// `cm_rx_msgs`: received.
    pub received: [u64; Kind::ALL.len()],
    /// `cm_rx_duplicates`: received again.
    pub duplicates: [u64; Kind::ALL.len()],
    /// Not followed, in the order of [`Refusal::ALL`].
    pub refused: [u64; Refusal::ALL.len()],
}

impl CmCounters {
    /// How often a datagram was not followed for this reason.
    #[must_use]
    pub fn refusals(&self, refusal: Refusal) -> u64 {
        self.refused[refusal as usize]
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Listener {
    pub(super) backlog: usize,
    /// Requests that the program has not decided about.
    pub(super) undecided: usize,
}

/// Connection management of one node.
#[derive(Clone, Debug)]
pub struct Cm {
    pub(super) config: CmConfig,
    pub(super) connections: BTreeMap<CommId, Connection>,
    /// By the peer's node and its number for the connection.
    pub(super) by_remote_id: BTreeMap<(u64, u32), CommId>,
    /// By the peer's node and its queue pair.
    pub(super) by_remote_qp: BTreeMap<(u64, u32), CommId>,
    pub(super) listeners: BTreeMap<u64, Listener>,
    timers: BTreeSet<(Nanos, CommId)>,
    transmit: VecDeque<(Peer, Box<Mad>)>,
    pub(super) events: VecDeque<Event>,
    pub(super) counters: CmCounters,
    next_comm_id: u32,
    next_transaction: u64,
}

impl Cm {
    /// A node without connections.
    #[must_use]
    pub fn new(config: CmConfig) -> Self {
        Self {
            next_comm_id: config.first_comm_id,
            next_transaction: config.first_transaction,
            config,
            connections: BTreeMap::new(),
            by_remote_id: BTreeMap::new(),
            by_remote_qp: BTreeMap::new(),
            listeners: BTreeMap::new(),
            timers: BTreeSet::new(),
            transmit: VecDeque::new(),
            events: VecDeque::new(),
            counters: CmCounters::default(),
        }
    }

    /// What has passed.
    #[must_use]
    pub const fn counters(&self) -> &CmCounters {
        &self.counters
    }

    /// Where a connection stands; `None` where its number is not known.
    #[must_use]
    pub fn state(&self, id: CommId) -> Option<State> {
        self.connections.get(&id).map(|connection| connection.state)
    }

    /// What a connection's queue pair needs; `None` before there is a REP.
    #[must_use]
    pub fn parameters(&self, id: CommId) -> Option<Parameters> {
        self.connections.get(&id)?.parameters()
    }

    /// Whom a connection is with; `None` where its number is not known.
    #[must_use]
    pub fn peer(&self, id: CommId) -> Option<Peer> {
        self.connections.get(&id).map(|connection| connection.peer)
    }

    /// Connections that exist, those in time wait included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Takes requests for a service, of which `backlog` may wait for a decision.
    ///
    /// # Errors
    /// It is listened to already.
    pub fn listen(&mut self, service_id: u64, backlog: usize) -> Result<(), Error> {
        if self.listeners.contains_key(&service_id) {
            return Err(Error::ServiceTaken(service_id));
        }
        self.listeners.insert(service_id, Listener { backlog, undecided: 0 });
        Ok(())
    }

    /// Takes no more requests for a service. Those that wait still do.
    pub fn stop_listening(&mut self, service_id: u64) {
        self.listeners.remove(&service_id);
    }

    /// Asks for a connection.
    ///
    /// # Errors
    /// A value is out of range, the addresses are not of one family, or there are too many
    /// connections.
    pub fn connect(&mut self, now: Nanos, connect: &Connect) -> Result<CommId, Error> {
        if connect.local.is_ipv4() != connect.remote.is_ipv4() {
            let (local, remote) = (connect.local, connect.remote);
            return Err(Error::Families { local, remote });
        }
        for (what, given, max) in [
            ("retry count", connect.retry_count, 7),
            ("RNR retry count", connect.qp.rnr_retry_count, 7),
            ("ACK timeout", connect.ack_timeout, 31),
        ] {
            if given > max {
                return Err(Error::OutOfRange { what, given: given.into(), max: max.into() });
            }
        }
        self.room()?;
        let (id, transaction) = (self.take_comm_id(), self.take_transaction());
        let qp = connect.qp;
        let req = Req {
            local_comm_id: id.0,
            service_id: connect.service_id,
            local_ca_guid: self.config.ca_guid,
            local_qpn: qp.qpn.get(),
            responder_resources: qp.responder_resources,
            initiator_depth: qp.initiator_depth,
            remote_response_timeout: self.config.response_timeout,
            flow_control: qp.flow_control,
            starting_psn: qp.psn.get(),
            local_response_timeout: self.config.response_timeout,
            retry_count: connect.retry_count,
            pkey: 0xFFFF,
            path_mtu: connect.path_mtu.min(self.config.path_mtu) as u8,
            rnr_retry_count: qp.rnr_retry_count,
            max_cm_retries: self.config.max_retries,
            srq: qp.srq,
            // There are no LIDs on Ethernet.
            primary_local_lid: 0xFFFF,
            primary_remote_lid: 0xFFFF,
            primary_local_gid: message::gid(connect.local),
            primary_remote_gid: message::gid(connect.remote),
            primary_flow_label: connect.flow_label,
            primary_traffic_class: connect.traffic_class,
            primary_hop_limit: connect.hop_limit,
            primary_subnet_local: connect.hop_limit <= 1,
            primary_ack_timeout: connect.ack_timeout,
            private_data: connect.private_data,
            ..Req::default()
        };
        let connection = Connection {
            id,
            active: true,
            state: State::ReqSent,
            peer: Peer { ip: connect.remote, qpn: Qpn::new(1) },
            transaction,
            remote_comm_id: 0,
            remote_qp: None,
            req: Box::new(req.clone()),
            rep: None,
            waiting: None,
            answer: None,
            deadline: None,
            told: false,
        };
        let timeout_ns = bounded_timeout_ns(self.config.response_timeout) + connection.path_ns();
        self.connections.insert(id, connection);
        self.ask(now, id, &req.into(), timeout_ns, self.config.max_retries);
        Ok(id)
    }

    /// Accepts a request.
    ///
    /// # Errors
    /// The connection is unknown or does not wait for this, or a value is out of range.
    pub fn accept(&mut self, now: Nanos, id: CommId, accept: &Accept) -> Result<(), Error> {
        let ca_guid = self.config.ca_guid;
        let ack_delay = self.config.ack_delay;
        let connection = self.in_state(id, &[State::ReqReceived])?;
        let qp = accept.qp;
        if qp.rnr_retry_count > 7 {
            let (what, given) = ("RNR retry count", qp.rnr_retry_count.into());
            return Err(Error::OutOfRange { what, given, max: 7 });
        }
        let req = &connection.req;
        let rep = Rep {
            local_comm_id: id.0,
            remote_comm_id: connection.remote_comm_id,
            local_qpn: qp.qpn.get(),
            starting_psn: qp.psn.get(),
            // What the active side keeps outstanding, we need not exceed, and the other way round.
            responder_resources: qp.responder_resources.min(req.initiator_depth),
            initiator_depth: qp.initiator_depth.min(req.responder_resources),
            target_ack_delay: ack_delay,
            flow_control: qp.flow_control,
            rnr_retry_count: qp.rnr_retry_count,
            srq: qp.srq,
            local_ca_guid: ca_guid,
            private_data: padded(&accept.private_data)?,
            ..Rep::default()
        };
        let timeout_ns = bounded_timeout_ns(req.local_response_timeout) + connection.path_ns();
        let retries = req.max_cm_retries;
        connection.state = State::RepSent;
        connection.rep = Some(Box::new(rep.clone()));
        self.decided(id);
        self.ask(now, id, &rep.into(), timeout_ns, retries);
        Ok(())
    }

    /// Refuses a request, or a reply. The number is forgotten.
    ///
    /// # Errors
    /// The connection is unknown or does not wait for this, or the private data are too long.
    pub fn reject(&mut self, id: CommId, reason: Reject, private_data: &[u8]) -> Result<(), Error> {
        self.in_state(id, &[State::ReqReceived, State::RepReceived])?;
        let private_data = padded(private_data)?;
        self.send_rej(id, reason, &[], private_data);
        self.forget(id);
        Ok(())
    }

    /// Active: the queue pair is in RTS.
    ///
    /// # Errors
    /// The connection is unknown or does not wait for this.
    pub fn ready(&mut self, id: CommId) -> Result<(), Error> {
        let connection = self.in_state(id, &[State::RepReceived])?;
        connection.state = State::Established;
        let remote_comm_id = connection.remote_comm_id;
        let rtu = Rtu { local_comm_id: id.0, remote_comm_id, ..Rtu::default() };
        self.answer(id, &rtu.into());
        Ok(())
    }

    /// The program needs more time for its answer: an MRA, now and whenever the peer asks again.
    ///
    /// # Errors
    /// The connection is unknown, or owes no answer.
    pub fn delay(&mut self, id: CommId, service_timeout: u8) -> Result<(), Error> {
        let connection = self.in_state(id, &[State::ReqReceived, State::RepReceived])?;
        let mra = Mra {
            local_comm_id: id.0,
            remote_comm_id: connection.remote_comm_id,
            message: u8::from(connection.state == State::RepReceived),
            service_timeout,
            ..Mra::default()
        };
        self.answer(id, &mra.into());
        Ok(())
    }

    /// Passive: a packet of the active side has come, so its RTU need not.
    ///
    /// # Errors
    /// The connection is unknown, or in another state.
    pub fn communication_established(&mut self, id: CommId) -> Result<(), Error> {
        self.in_state(id, &[State::RepSent])?;
        self.establish(id);
        Ok(())
    }

    /// Ends a connection in any state: with a DREQ, or before it exists with a REJ.
    ///
    /// # Errors
    /// It is unknown, or has ended.
    pub fn disconnect(&mut self, now: Nanos, id: CommId) -> Result<(), Error> {
        use State::{Established, RepReceived, RepSent, ReqReceived, ReqSent};
        let all = [ReqSent, ReqReceived, RepSent, RepReceived, Established];
        match self.in_state(id, &all)?.state {
            ReqSent => {
                let guid = self.config.ca_guid.to_be_bytes();
                self.send_rej(id, Reject::TIMEOUT, &guid, [0; 148]);
                self.forget(id);
            }
            ReqReceived | RepReceived => {
                self.send_rej(id, Reject::CONSUMER, &[], [0; 148]);
                self.forget(id);
            }
            _ => self.send_dreq(now, id),
        }
        Ok(())
    }

    /// Forgets a connection without a word, where none would arrive.
    pub fn abandon(&mut self, id: CommId) {
        self.forget(id);
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Nanos) {
        while let Some(&(deadline, id)) = self.timers.first()
            && deadline <= now
        {
            self.set_deadline(id, None);
            self.expire(now, id);
        }
    }

    /// When [`Cm::handle_timeout`] has something to do.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.timers.first().map(|&(deadline, _)| deadline)
    }

    /// The next datagram to send, and to whom.
    pub fn poll_transmit(&mut self) -> Option<(Peer, Box<Mad>)> {
        self.transmit.pop_front()
    }

    /// The next thing that a program must know.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn expire(&mut self, now: Nanos, id: CommId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.state == State::TimeWait {
            self.forget(id);
            return self.events.push_back(Event::Closed { id });
        }
        let Some(waiting) = &mut connection.waiting else { return };
        if waiting.retries_left > 0 {
            waiting.retries_left -= 1;
            waiting.sent += 1;
            let (kind, mad) = (waiting.kind, waiting.mad.clone());
            let (peer, deadline) = (connection.peer, now.after(waiting.timeout_ns));
            self.counters.retries[kind as usize] += 1;
            self.push(peer, kind, mad);
            return self.set_deadline(id, Some(deadline));
        }
        let (unanswered, sent) = (waiting.kind, waiting.sent);
        match connection.state {
            State::DreqSent => self.enter_time_wait(now, id, End::Silence),
            _ => {
                // The peer may be there and its answer lost: it need not wait for us.
                let guid = self.config.ca_guid.to_be_bytes();
                self.send_rej(id, Reject::TIMEOUT, &guid, [0; 148]);
                self.forget(id);
                self.events.push_back(Event::Unreachable { id, unanswered, sent });
            }
        }
    }

    pub(super) fn in_state(
        &mut self,
        id: CommId,
        states: &[State],
    ) -> Result<&mut Connection, Error> {
        let connection = self.connections.get_mut(&id).ok_or(Error::UnknownConnection(id))?;
        let state = connection.state;
        if states.contains(&state) { Ok(connection) } else { Err(Error::WrongState { id, state }) }
    }

    pub(super) fn room(&self) -> Result<(), Error> {
        match self.connections.len() {
            len if len < self.config.max_connections => Ok(()),
            len => Err(Error::TooManyConnections(len)),
        }
    }

    /// A number that no connection has, and that was not used lately.
    pub(super) fn take_comm_id(&mut self) -> CommId {
        loop {
            let id = CommId(self.next_comm_id);
            self.next_comm_id = self.next_comm_id.wrapping_add(1);
            if id.0 != 0 && !self.connections.contains_key(&id) {
                return id;
            }
        }
    }

    fn take_transaction(&mut self) -> u64 {
        let transaction = self.next_transaction;
        self.next_transaction = transaction.wrapping_add(1);
        transaction
    }

    /// The program has decided about a request.
    pub(super) fn decided(&mut self, id: CommId) {
        let Some(connection) = self.connections.get(&id) else { return };
        if let Some(listener) = self.listeners.get_mut(&connection.req.service_id) {
            listener.undecided = listener.undecided.saturating_sub(1);
        }
    }

    pub(super) fn establish(&mut self, id: CommId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.state = State::Established;
            connection.waiting = None;
        }
        self.set_deadline(id, None);
        self.events.push_back(Event::Established { id });
    }

    pub(super) fn enter_time_wait(&mut self, now: Nanos, id: CommId, by: End) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.state = State::TimeWait;
        connection.waiting = None;
        let deadline = now.after(connection.path_ns());
        self.set_deadline(id, Some(deadline));
        self.tell_end(id, by);
    }

    /// The program is told once that a connection has ended.
    pub(super) fn tell_end(&mut self, id: CommId, by: End) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if !std::mem::replace(&mut connection.told, true) {
            self.events.push_back(Event::Disconnected { id, by });
        }
    }

    /// Takes a connection out of every table.
    pub(super) fn forget(&mut self, id: CommId) {
        self.set_deadline(id, None);
        if self.state(id) == Some(State::ReqReceived) {
            self.decided(id);
        }
        let Some(connection) = self.connections.remove(&id) else { return };
        if let Some((guid, qpn)) = connection.remote_qp {
            let (by_id, by_qp) = ((guid, connection.remote_comm_id), (guid, qpn));
            if self.by_remote_id.get(&by_id) == Some(&id) {
                self.by_remote_id.remove(&by_id);
            }
            if self.by_remote_qp.get(&by_qp) == Some(&id) {
                self.by_remote_qp.remove(&by_qp);
            }
        }
    }

    pub(super) fn set_deadline(&mut self, id: CommId, deadline: Option<Nanos>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Some(old) = std::mem::replace(&mut connection.deadline, deadline) {
            self.timers.remove(&(old, id));
        }
        if let Some(new) = deadline {
            self.timers.insert((new, id));
        }
    }

    /// Sends a message and expects an answer.
    fn ask(&mut self, now: Nanos, id: CommId, message: &Message, timeout_ns: u64, retries: u8) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let kind = message.kind();
        let mad = Box::new(message.encode(connection.transaction));
        let peer = connection.peer;
        connection.answer = None;
        connection.waiting =
            Some(Waiting { kind, mad: mad.clone(), timeout_ns, retries_left: retries, sent: 1 });
        self.push(peer, kind, mad);
        self.set_deadline(id, Some(now.after(timeout_ns)));
    }

    /// Sends an answer, and keeps it for a peer that asks again.
    pub(super) fn answer(&mut self, id: CommId, message: &Message) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let mad = Box::new(message.encode(connection.transaction));
        let peer = connection.peer;
        connection.answer = Some((message.kind(), mad.clone()));
        self.push(peer, message.kind(), mad);
    }

    /// Says the last thing again: the answer, or the message that waits for one.
    pub(super) fn repeat(&mut self, id: CommId) {
        let Some(connection) = self.connections.get(&id) else { return };
        let waiting = connection.waiting.as_ref().map(|waiting| (waiting.kind, &waiting.mad));
        let answer = connection.answer.as_ref().map(|(kind, mad)| (*kind, mad));
        if let Some((kind, mad)) = answer.or(waiting) {
            let mad = mad.clone();
            self.push(connection.peer, kind, mad);
        }
    }

    fn send_rej(&mut self, id: CommId, reason: Reject, info: &[u8], private_data: [u8; 148]) {
        let Some(connection) = self.connections.get(&id) else { return };
        // A peer whose REQ is refused at once never learns our number.
        let unheard = connection.state == State::ReqReceived && connection.answer.is_none();
        let rej = Rej {
            local_comm_id: if unheard { 0 } else { id.0 },
            remote_comm_id: connection.remote_comm_id,
            message: match connection.state {
                State::ReqReceived => 0,
                State::RepReceived => 1,
                _ => 2,
            },
            info_len: info.len() as u8,
            reason: reason.0,
            info: padded(info).unwrap_or([0; 72]),
            private_data,
        };
        let message = Message::from(rej);
        let mad = Box::new(message.encode(connection.transaction));
        self.push(connection.peer, Kind::Rej, mad);
    }

    pub(super) fn send_dreq(&mut self, now: Nanos, id: CommId) {
        let transaction = self.take_transaction();
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.state = State::DreqSent;
        connection.transaction = transaction;
        let (req, path_ns) = (&connection.req, connection.path_ns());
        // The peer answers within the time that the REQ named for its side.
        let code = if connection.active {
            req.remote_response_timeout
        } else {
            req.local_response_timeout
        };
        let timeout_ns = bounded_timeout_ns(code) + path_ns;
        let retries = req.max_cm_retries;
        let dreq = Dreq {
            local_comm_id: id.0,
            remote_comm_id: connection.remote_comm_id,
            remote_qpn: connection.remote_qp.map_or(0, |(_, qpn)| qpn),
            ..Dreq::default()
        };
        self.ask(now, id, &dreq.into(), timeout_ns, retries);
    }

    /// An answer that needs no connection.
    pub(super) fn push_stateless(&mut self, peer: Peer, transaction: u64, message: &Message) {
        self.push(peer, message.kind(), Box::new(message.encode(transaction)));
    }

    /// The DREP to a DREQ.
    pub(super) fn send_drep(&mut self, peer: Peer, transaction: u64, dreq: &Dreq) {
        let drep = Drep {
            local_comm_id: dreq.remote_comm_id,
            remote_comm_id: dreq.local_comm_id,
            ..Drep::default()
        };
        self.push_stateless(peer, transaction, &drep.into());
    }

    /// Messages may be lost, so one that finds no room is; it is counted.
    fn push(&mut self, peer: Peer, kind: Kind, mad: Box<Mad>) {
        if self.transmit.len() >= self.config.max_transmit {
            self.counters.refused[Refusal::TransmitQueueFull as usize] += 1;
            return;
        }
        self.counters.sent[kind as usize] += 1;
        self.transmit.push_back((peer, mad));
    }
}

/// Bytes with zeros behind them.
fn padded<const N: usize>(bytes: &[u8]) -> Result<[u8; N], Error> {
    let mut all = [0; N];
    let given = bytes.len();
    all.get_mut(..given).ok_or(Error::PrivateData { given, max: N })?.copy_from_slice(bytes);
    Ok(all)
}
