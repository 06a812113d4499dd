//! What arrives: each message against the connection that it names.

use softrnic_engine::{Nanos, PathMtu};

use super::connection::{CommId, Connection, End, Event, Peer, State, bounded_timeout_ns};
use super::machine::Cm;
use super::message::{self, Drep, Dreq, Kind, Message, Mra, Rej, Rep, Req, Rtu};
use super::refusal::{Refusal, Reject};

impl Cm {
    /// A datagram has come to the GSI queue pair.
    ///
    /// # Errors
    /// Why it was not followed; that is counted, too. A peer that should know has been told.
    pub fn handle_mad(&mut self, now: Nanos, from: Peer, mad: &[u8]) -> Result<(), Refusal> {
        let result = Message::decode(mad).and_then(|(transaction, message)| {
            self.counters.received[message.kind() as usize] += 1;
            match message {
                Message::Req(req) => self.handle_req(now, from, transaction, req),
                Message::Mra(mra) => self.handle_mra(now, from, &mra),
                Message::Rej(rej) => self.handle_rej(now, from, rej),
                Message::Rep(rep) => self.handle_rep(from, transaction, rep),
                Message::Rtu(rtu) => self.handle_rtu(from, &rtu),
                Message::Dreq(dreq) => self.handle_dreq(now, from, transaction, &dreq),
                Message::Drep(drep) => self.handle_drep(now, from, &drep),
            }
        });
        if let Err(refusal) = result {
            self.counters.refused[refusal as usize] += 1;
        }
        result
    }

    /// The connection that a message names by both ends' numbers.
    fn named(&self, from: Peer, ours: u32, theirs: u32) -> Result<&Connection, Refusal> {
        let connection = self.connections.get(&CommId(ours)).ok_or(Refusal::UnknownConnection)?;
        if connection.peer.ip != from.ip {
            return Err(Refusal::WrongPeer);
        }
        // Before its first message has come, the peer's number is not known.
        let first = connection.state == State::ReqSent;
        if first || connection.remote_comm_id == theirs {
            Ok(connection)
        } else {
            Err(Refusal::UnknownConnection)
        }
    }

    fn duplicate(&mut self, kind: Kind) {
        self.counters.duplicates[kind as usize] += 1;
    }

    fn handle_req(
        &mut self,
        now: Nanos,
        from: Peer,
        transaction: u64,
        req: Box<Req>,
    ) -> Result<(), Refusal> {
        if let Some(&id) = self.by_remote_id.get(&(req.local_ca_guid, req.local_comm_id)) {
            return self.handle_repeated_req(id, from, transaction, &req);
        }
        let remote_qp = (req.local_ca_guid, req.local_qpn);
        let refusal = if let Some(&old) = self.by_remote_qp.get(&remote_qp) {
            // The peer lost its memory of a connection of ours: both ends it, and the peer asks again.
            if matches!(self.state(old), Some(State::RepSent | State::Established)) {
                self.send_dreq(now, old);
                self.tell_end(old, End::Restarted);
            }
            Some((Refusal::StaleConnection, Reject::STALE_CONNECTION))
        } else {
            self.check_req(&req)
        };
        if let Some((refusal, reason)) = refusal {
            self.refuse_req(from, transaction, &req, reason);
            return Err(refusal);
        }
        if let Some(listener) = self.listeners.get_mut(&req.service_id) {
            listener.undecided += 1;
        }
        let id = self.take_comm_id();
        let connection = Connection {
            id,
            active: false,
            state: State::ReqReceived,
            peer: from,
            transaction,
            remote_comm_id: req.local_comm_id,
            remote_qp: Some(remote_qp),
            req: req.clone(),
            rep: None,
            waiting: None,
            answer: None,
            deadline: None,
            told: false,
        };
        self.connections.insert(id, connection);
        self.by_remote_id.insert((req.local_ca_guid, req.local_comm_id), id);
        self.by_remote_qp.insert(remote_qp, id);
        self.events.push_back(Event::Requested { id, peer: from, req });
        Ok(())
    }

    /// Why a new request is refused, if it is.
    fn check_req(&self, req: &Req) -> Option<(Refusal, Reject)> {
        let Some(listener) = self.listeners.get(&req.service_id) else {
            return Some((Refusal::NoListener, Reject::INVALID_SERVICE_ID));
        };
        if req.transport != 0 {
            return Some((Refusal::Transport, Reject::INVALID_TRANSPORT));
        }
        let mtu = PathMtu::from_code(req.path_mtu);
        if mtu.is_none_or(|mtu| mtu > self.config.path_mtu) {
            return Some((Refusal::PathMtu, Reject::INVALID_MTU));
        }
        let to = message::address(req.primary_remote_gid);
        if !self.config.addresses.is_empty() && !self.config.addresses.contains(&to) {
            return Some((Refusal::Gid, Reject::INVALID_GID));
        }
        if listener.undecided >= listener.backlog || self.room().is_err() {
            return Some((Refusal::NoResources, Reject::NO_RESOURCES));
        }
        None
    }

    fn refuse_req(&mut self, from: Peer, transaction: u64, req: &Req, reason: Reject) {
        let mut rej = Rej { remote_comm_id: req.local_comm_id, reason: reason.0, ..Rej::default() };
        // What would do instead (table 109).
        let instead = match reason {
            Reject::INVALID_MTU => vec![(self.config.path_mtu as u8) << 4],
            Reject::INVALID_GID => {
                let own = self.config.addresses.iter();
                let same = |ip: &&std::net::IpAddr| ip.is_ipv4() == from.ip.is_ipv4();
                own.copied()
                    .find(|ip| same(&ip))
                    .map_or_else(Vec::new, |ip| message::gid(ip).octets().to_vec())
            }
            _ => Vec::new(),
        };
        rej.info_len = instead.len() as u8;
        rej.info[..instead.len()].copy_from_slice(&instead);
        self.push_stateless(from, transaction, &rej.into());
    }

    fn handle_repeated_req(
        &mut self,
        id: CommId,
        from: Peer,
        transaction: u64,
        req: &Req,
    ) -> Result<(), Refusal> {
        let Some(connection) = self.connections.get(&id) else {
            return Err(Refusal::UnknownConnection);
        };
        if connection.peer.ip != from.ip {
            return Err(Refusal::WrongPeer);
        }
        let (state, answered) = (connection.state, connection.answer.is_some());
        self.duplicate(Kind::Req);
        match state {
            // The program takes longer than the peer waits.
            State::ReqReceived if !answered => {
                let _ = self.delay(id, self.config.service_timeout);
            }
            State::ReqReceived | State::RepSent => self.repeat(id),
            State::TimeWait => {
                self.refuse_req(from, transaction, req, Reject::STALE_CONNECTION);
                return Err(Refusal::StaleConnection);
            }
            _ => {}
        }
        Ok(())
    }

    fn handle_mra(&mut self, now: Nanos, from: Peer, mra: &Mra) -> Result<(), Refusal> {
        let connection = self.named(from, mra.remote_comm_id, mra.local_comm_id)?;
        match (connection.state, mra.message) {
            (State::ReqSent, 0) | (State::RepSent, 1) => {}
            _ => return Err(Refusal::UnexpectedMessage),
        }
        let wait = bounded_timeout_ns(mra.service_timeout) + connection.path_ns();
        let id = connection.id;
        self.set_deadline(id, Some(now.after(wait)));
        Ok(())
    }

    fn handle_rej(&mut self, now: Nanos, from: Peer, rej: Box<Rej>) -> Result<(), Refusal> {
        let reason = Reject(rej.reason);
        // Whoever gives up before it has heard from us names its own number and node.
        let info = rej.info.first_chunk().filter(|_| rej.info_len == 8);
        let by_remote = info
            .filter(|_| reason == Reject::TIMEOUT && rej.remote_comm_id == 0)
            .map(|guid| (u64::from_be_bytes(*guid), rej.local_comm_id))
            .and_then(|key| self.by_remote_id.get(&key));
        let ours = by_remote.map_or(rej.remote_comm_id, |id| id.0);
        // A REJ to a REQ need not know a number of its own.
        let connection = match rej.local_comm_id {
            0 => self
                .connections
                .get(&CommId(ours))
                .filter(|connection| connection.state == State::ReqSent)
                .ok_or(Refusal::UnknownConnection)?,
            theirs => self.named(from, ours, theirs)?,
        };
        if connection.peer.ip != from.ip {
            return Err(Refusal::WrongPeer);
        }
        let id = connection.id;
        match connection.state {
            State::ReqSent | State::ReqReceived | State::RepSent | State::RepReceived => {
                self.forget(id);
                self.events.push_back(Event::Rejected { id, reason, rej });
            }
            State::Established | State::DreqSent => {
                self.enter_time_wait(now, id, End::Rejected(reason));
            }
            State::TimeWait => return Err(Refusal::UnexpectedMessage),
        }
        Ok(())
    }

    fn handle_rep(&mut self, from: Peer, transaction: u64, rep: Box<Rep>) -> Result<(), Refusal> {
        let connection = match self.named(from, rep.remote_comm_id, rep.local_comm_id) {
            Ok(connection) if connection.active => connection,
            Ok(_) => return Err(Refusal::UnexpectedMessage),
            Err(Refusal::UnknownConnection) => {
                self.refuse_rep(from, transaction, &rep, Reject::INVALID_COMM_ID);
                return Err(Refusal::UnknownConnection);
            }
            Err(refusal) => return Err(refusal),
        };
        let (id, answered) = (connection.id, connection.answer.is_some());
        match connection.state {
            State::ReqSent => {}
            State::RepReceived if !answered => {
                self.duplicate(Kind::Rep);
                let _ = self.delay(id, self.config.service_timeout);
                return Ok(());
            }
            // Our MRA or RTU was lost.
            State::RepReceived | State::Established => {
                self.duplicate(Kind::Rep);
                self.repeat(id);
                return Ok(());
            }
            _ => {
                self.duplicate(Kind::Rep);
                return Ok(());
            }
        }
        let remote_qp = (rep.local_ca_guid, rep.local_qpn);
        if self.by_remote_qp.contains_key(&remote_qp) {
            self.refuse_rep(from, transaction, &rep, Reject::STALE_CONNECTION);
            self.forget(id);
            let reason = Reject::STALE_CONNECTION;
            let rej = Box::new(Rej { reason: reason.0, ..Rej::default() });
            self.events.push_back(Event::Rejected { id, reason, rej });
            return Err(Refusal::StaleConnection);
        }
        self.by_remote_id.insert((rep.local_ca_guid, rep.local_comm_id), id);
        self.by_remote_qp.insert(remote_qp, id);
        self.set_deadline(id, None);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.state = State::RepReceived;
            connection.waiting = None;
            connection.remote_comm_id = rep.local_comm_id;
            connection.remote_qp = Some(remote_qp);
            connection.rep = Some(rep.clone());
        }
        self.events.push_back(Event::Replied { id, rep });
        Ok(())
    }

    fn refuse_rep(&mut self, from: Peer, transaction: u64, rep: &Rep, reason: Reject) {
        let rej = Rej {
            local_comm_id: rep.remote_comm_id,
            remote_comm_id: rep.local_comm_id,
            message: 1,
            reason: reason.0,
            ..Rej::default()
        };
        self.push_stateless(from, transaction, &rej.into());
    }

    fn handle_rtu(&mut self, from: Peer, rtu: &Rtu) -> Result<(), Refusal> {
        let connection = self.named(from, rtu.remote_comm_id, rtu.local_comm_id)?;
        let id = connection.id;
        match connection.state {
            State::RepSent => self.establish(id),
            _ if connection.active => return Err(Refusal::UnexpectedMessage),
            State::ReqReceived => return Err(Refusal::UnexpectedMessage),
            _ => self.duplicate(Kind::Rtu),
        }
        Ok(())
    }

    fn handle_dreq(
        &mut self,
        now: Nanos,
        from: Peer,
        transaction: u64,
        dreq: &Dreq,
    ) -> Result<(), Refusal> {
        let connection = match self.named(from, dreq.remote_comm_id, dreq.local_comm_id) {
            Ok(connection) => connection,
            // It has ended here, and that is what the peer wants to hear.
            Err(Refusal::UnknownConnection) => {
                self.send_drep(from, transaction, dreq);
                return Err(Refusal::UnknownConnection);
            }
            Err(refusal) => return Err(refusal),
        };
        let (id, state) = (connection.id, connection.state);
        let qpn = if connection.active {
            connection.req.local_qpn
        } else {
            connection.rep.as_ref().map_or(0, |rep| rep.local_qpn)
        };
        match state {
            State::ReqSent | State::ReqReceived => return Err(Refusal::UnexpectedMessage),
            _ if dreq.remote_qpn != qpn => return Err(Refusal::QpNumber),
            State::TimeWait => self.duplicate(Kind::Dreq),
            State::RepSent | State::RepReceived | State::Established | State::DreqSent => {
                self.enter_time_wait(now, id, End::Peer);
            }
        }
        self.send_drep(from, transaction, dreq);
        Ok(())
    }

    fn handle_drep(&mut self, now: Nanos, from: Peer, drep: &Drep) -> Result<(), Refusal> {
        let connection = self.named(from, drep.remote_comm_id, drep.local_comm_id)?;
        let id = connection.id;
        match connection.state {
            State::DreqSent => self.enter_time_wait(now, id, End::Us),
            State::TimeWait => self.duplicate(Kind::Drep),
            _ => return Err(Refusal::UnexpectedMessage),
        }
        Ok(())
    }
}
