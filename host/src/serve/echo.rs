//! The echo of a device process: a native NIC that connects whoever asks by RDMA CM, and sends every message back, as
//! `rnic ping --serve` does. It runs between two turns of the station and has no thread.

use std::collections::BTreeMap;

use softrnic_device::verbs::{
    AccessFlags, AsyncEvent, Cq, Error, LKey, Payload, Pd, QpInit, RecvRequest, SendOp,
    SendRequest, Sge, Verbs, WcOpcode, WorkCompletion,
};
use softrnic_device::{Memory, Nic};
use softrnic_engine::{Nanos, Qpn, RKey, State, Status};

use super::Attachment;
use crate::cm::agent::{Agent, AgentConfig, AgentEvent, Endpoint};
use crate::cm::message::{IpCm, Req};
use crate::cm::native::NativeGsi;
use crate::cm::{CmConfig, CommId};
use crate::port::PortConfig;
use crate::station::Station;

/// Longest message.
pub const MESSAGE_MAX: u32 = 1 << 20;
/// Longest message of clients that do not say how long theirs are.
pub const OTHERS_MESSAGE_MAX: u32 = 4096;
/// What a client of ours says in its request: who it is, and how long its messages are.
const MAGIC: &[u8; 8] = b"rnicping";
/// Messages of a connection that may be on their way.
const DEPTH: u32 = 16;
/// Connections at a time, those in time wait included.
const CONNECTIONS: usize = 64;
/// Requests that may wait; they are decided about at once.
const BACKLOG: usize = 64;
/// Messages begin at multiples of this.
const ALIGNMENT: u64 = 64;
/// Bit of a `wr_id`: a message that goes back. The rest is its place.
const SENT: u64 = 1 << 32;
/// `wr_id` of the question whether a client is there.
const PROBE: u64 = u64::MAX;
/// A client that says nothing for so long is asked: one that has died must not keep its place.
const SILENCE_NS: u64 = 5_000_000_000;

/// A client's private data, for messages of this length.
#[must_use]
pub fn hello(message_len: u32) -> Vec<u8> {
    [&MAGIC[..], &message_len.to_be_bytes()].concat()
}

/// How long a client's messages are, where it is one of ours.
#[must_use]
pub fn message_len(req: &Req) -> Option<u32> {
    let (_, program) = IpCm::split(&req.private_data).ok()?;
    let (len, _) = program.strip_prefix(MAGIC)?.split_first_chunk()?;
    Some(u32::from_be_bytes(*len).clamp(1, MESSAGE_MAX))
}

/// A connection's queue pair and its memory: `DEPTH` places, one after the other.
#[derive(Debug)]
struct Client {
    id: CommId,
    base: u64,
    place_len: u64,
    message_max: u32,
    /// Since when it is silent; `None` while it is not connected, or asked.
    silent_since: Option<Nanos>,
}

impl Client {
    const fn len(&self) -> u64 {
        self.place_len * DEPTH as u64
    }
}

/// The echo on a port of RDMA CM's TCP space.
#[derive(Debug)]
pub struct Echo {
    agent: Agent<NativeGsi>,
    pd: Pd,
    cq: Cq,
    lkey: LKey,
    memory: core::ops::Range<u64>,
    clients: BTreeMap<Qpn, Client>,
    /// Time of the turn.
    now: Nanos,
    /// The turn ended work, and what follows must not wait for a frame.
    more: bool,
}

impl Echo {
    /// Connection management on a NIC, with `memory` of it for messages, and a listener. `seed` should differ from one
    /// start to the next.
    ///
    /// # Errors
    /// The NIC has connection management already, or the range is not memory.
    pub fn new<M: Memory>(
        nic: &mut Nic<Verbs, M>,
        memory: core::ops::Range<u64>,
        port_config: &PortConfig,
        port: u16,
        seed: u64,
    ) -> Result<Self, Error> {
        let messages = memory.start + NativeGsi::MEMORY_LEN;
        let gsi = NativeGsi::new(nic, memory.start..messages)?;
        let mut agent = Agent::new(gsi, port_config, AgentConfig { cm: CmConfig::default(), seed });
        // It is the first listener.
        let _ = agent.listen(port, BACKLOG);
        let pd = nic.alloc_pd()?;
        let cq = nic.create_cq(2 * DEPTH * CONNECTIONS as u32)?;
        let lkey = nic.reg_mr(pd, messages, memory.end - messages, AccessFlags::LOCAL)?.lkey;
        let memory = messages.next_multiple_of(ALIGNMENT)..memory.end;
        Ok(Self {
            agent,
            pd,
            cq,
            lkey,
            memory,
            clients: BTreeMap::new(),
            now: Nanos(0),
            more: false,
        })
    }

    /// Connections that have a queue pair, those in time wait included.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// The lowest free run of so many bytes.
    fn free(&self, len: u64) -> Option<u64> {
        let mut taken: Vec<_> =
            self.clients.values().map(|client| (client.base, client.len())).collect();
        taken.sort_unstable();
        let mut at = self.memory.start;
        for (base, taken_len) in taken {
            if at + len <= base {
                break;
            }
            at = base + taken_len;
        }
        (at + len <= self.memory.end).then_some(at)
    }

    fn accept<M: Memory>(
        &mut self,
        nic: &mut Nic<Verbs, M>,
        id: CommId,
        req: &Req,
    ) -> Result<(), Error> {
        let message_max = message_len(req).unwrap_or(OTHERS_MESSAGE_MAX);
        let place_len = u64::from(message_max).next_multiple_of(ALIGNMENT);
        let full = Error::Exhausted("memory or connections of the echo");
        let base = self.free(place_len * u64::from(DEPTH));
        let base = base.filter(|_| self.clients.len() < CONNECTIONS).ok_or(full)?;
        let (send_cq, recv_cq) = (self.cq, self.cq);
        let init = QpInit {
            pd: self.pd,
            send_cq,
            recv_cq,
            // One for the question.
            sq_depth: DEPTH + 1,
            rq_depth: DEPTH,
            ..QpInit::default()
        };
        let qpn = nic.create_qp(&init)?;
        let client = Client { id, base, place_len, message_max, silent_since: None };
        let posted = nic.set_state(qpn, State::Init).and_then(|()| {
            (0..DEPTH.into())
                .try_for_each(|place| post_receive(nic, self.lkey, qpn, &client, place))
        });
        if let Err(error) = posted {
            nic.destroy_qp(qpn)?;
            return Err(error);
        }
        self.clients.insert(qpn, client);
        // The request may have been taken back; an event says so.
        let _ = self.agent.accept(id, &Endpoint::new(qpn), &[]);
        Ok(())
    }

    /// A connection is over: its queue pair and memory are free.
    fn forget<M: Memory>(&mut self, nic: &mut Nic<Verbs, M>, id: CommId) {
        let gone = self.clients.iter().find(|(_, client)| client.id == id).map(|(qpn, _)| *qpn);
        if let Some(qpn) = gone {
            self.clients.remove(&qpn);
            // It was made by `accept` and is destroyed here only.
            let _ = nic.destroy_qp(qpn);
        }
    }

    fn follow<M: Memory>(&mut self, now: Nanos, nic: &mut Nic<Verbs, M>) -> bool {
        let mut busy = false;
        while let Some(event) = self.agent.poll_event() {
            busy = true;
            match event {
                AgentEvent::Requested { id, peer, req } => {
                    if let Err(error) = self.accept(nic, id, &req) {
                        tracing::warn!("echo: {peer} is refused: {error}");
                        let _ = self.agent.reject(id, &[]);
                    }
                }
                AgentEvent::Failed { id, peer, why } => {
                    tracing::warn!("echo: no connection with {peer}: {why}");
                    self.forget(nic, id);
                }
                AgentEvent::Closed { id } => self.forget(nic, id),
                AgentEvent::Established { qpn, .. } => self.heard(qpn, now),
                AgentEvent::Disconnected { id, .. } => {
                    let gone = self.clients.values_mut().find(|client| client.id == id);
                    if let Some(client) = gone {
                        client.silent_since = None;
                    }
                }
            }
        }
        while self.agent.poll_changed_qp().is_some() {}
        busy
    }

    fn heard(&mut self, qpn: Qpn, now: Nanos) {
        if let Some(client) = self.clients.get_mut(&qpn) {
            client.silent_since = Some(now);
        }
    }

    /// A WRITE of no bytes asks clients that are silent whether they are there; its retries tell.
    fn ask<M: Memory>(&mut self, now: Nanos, nic: &mut Nic<Verbs, M>) {
        for (&qpn, client) in &mut self.clients {
            if client.silent_since.is_some_and(|since| since.after(SILENCE_NS) <= now) {
                client.silent_since = None;
                let op = SendOp::Write { remote_va: 0, rkey: RKey(0) };
                let (wr_id, payload) = (PROBE, Payload::Sges(&[]));
                let probe =
                    SendRequest { wr_id, op, payload, signaled: true, ..Default::default() };
                // Where the queue is full, its work tells.
                let _ = nic.post_send(qpn, &probe);
            }
        }
    }

    /// Sends back what has come.
    fn answer<M: Memory>(&mut self, now: Nanos, station: &mut Station<Verbs, M>) -> bool {
        let mut done = [WorkCompletion::default(); 32];
        let mut busy = false;
        while let Ok(count @ 1..) = station.nic.poll_cq(self.cq, &mut done) {
            busy = true;
            for wc in &done[..count] {
                let Some(client) = self.clients.get_mut(&wc.qpn) else { continue };
                client.silent_since = Some(now);
                let place = wc.wr_id & !SENT;
                let posted = match wc.opcode {
                    _ if wc.status != Status::Success => Err(Error::UnknownQp(wc.qpn)),
                    _ if wc.wr_id == PROBE => Ok(()),
                    WcOpcode::Recv => {
                        let address = client.base + place * client.place_len;
                        let sges = [Sge { address, length: wc.byte_len, lkey: self.lkey }];
                        let (wr_id, payload) = (place | SENT, Payload::Sges(&sges));
                        let request =
                            SendRequest { wr_id, payload, signaled: true, ..Default::default() };
                        station.nic.post_send(wc.qpn, &request)
                    }
                    // What has left may be overwritten.
                    _ => post_receive(&mut station.nic, self.lkey, wc.qpn, client, place),
                };
                if posted.is_err() {
                    // The queue pair has failed or is flushed. Where the connection has ended already, this is no news.
                    let id = client.id;
                    client.silent_since = None;
                    let _ = self.agent.disconnect(now, station, id);
                }
            }
        }
        busy
    }
}

fn post_receive<M: Memory>(
    nic: &mut Nic<Verbs, M>,
    lkey: LKey,
    qpn: Qpn,
    client: &Client,
    place: u64,
) -> Result<(), Error> {
    let address = client.base + place * client.place_len;
    let sges = [Sge { address, length: client.message_max, lkey }];
    nic.post_recv(qpn, &RecvRequest { wr_id: place, sges: &sges })
}

impl<M: Memory> Attachment<Verbs, M> for Echo {
    fn before(&mut self, now: Nanos, station: &mut Station<Verbs, M>) -> bool {
        (self.now, self.more) = (now, false);
        let mut busy = false;
        while let Some(event) = station.nic.get_async_event() {
            busy = true;
            if let AsyncEvent::CommunicationEstablished(qpn) = event {
                self.agent.communication_established(qpn);
            }
        }
        busy |= self.agent.turn(now, station);
        busy |= self.follow(now, &mut station.nic);
        self.ask(now, &mut station.nic);
        busy | self.answer(now, station)
    }

    /// A queue pair that runs out of retries ends work in a turn without frames.
    fn after(&mut self, station: &mut Station<Verbs, M>) {
        self.more = self.answer(self.now, station);
    }

    fn next_deadline(&self) -> Option<Nanos> {
        if self.more {
            return Some(self.now);
        }
        let silences = self.clients.values().filter_map(|client| client.silent_since);
        let questions = silences.map(|since| since.after(SILENCE_NS));
        questions.chain(self.agent.next_deadline()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    #[test]
    fn a_request_says_how_long_messages_are() {
        let ip: IpAddr = [192, 0, 2, 1].into();
        let req = |program: &[u8]| Req {
            private_data: IpCm::new(ip, 1, ip).with(program).unwrap_or([0; 92]),
            ..Req::default()
        };
        assert_eq!(message_len(&req(&hello(1000))), Some(1000));
        assert_eq!(message_len(&req(&hello(0))), Some(1));
        assert_eq!(message_len(&req(&hello(u32::MAX))), Some(MESSAGE_MAX));
        assert_eq!(message_len(&req(b"somebody else")), None);
        assert_eq!(message_len(&Req::default()), None);
    }
}
