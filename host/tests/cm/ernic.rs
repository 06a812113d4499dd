//! Connection management of an ERNIC by its driver, with another one and with the native face: every message, and each
//! of them lost. Virtual time.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use softrnic_device::ernic::{Ernic as Device, ErnicConfig};
use softrnic_device::verbs::{
    AccessFlags, AsyncEvent, Cq, Payload, QpInit, RecvRequest, SendOp, SendRequest, Sge, Verbs,
    WorkCompletion,
};
use softrnic_device::{Memory, Nic, Ram};
use softrnic_driver::management::{Datagram, FramePath, datagram};
use softrnic_driver::{
    Completion, DeviceConfig, DmaBuffer, DmaError, Ernic as Driver, Local, Map, Platform, QpConfig,
    QpNumber, Request as Work,
};
use softrnic_engine::{Nanos, PathMtu, Qpn, RKey, State as QpState, Status};
use softrnic_host::cm::agent::{
    Agent, AgentConfig, AgentCounters, AgentEvent, Endpoint, Failure, Request,
};
use softrnic_host::cm::ernic::ErnicGsi;
use softrnic_host::cm::message::{Kind, MAD_LEN, Message};
use softrnic_host::cm::native::NativeGsi;
use softrnic_host::cm::{CmConfig, CommId, End, Error, Reject};
use softrnic_host::port::{HostPort, Resolution, Resolve};
use softrnic_host::station::Station;

use crate::cable::{Cable, CableEnd, ip, port};

pub const PORT: u16 = 7174;
const MEMORY: u64 = 0x10_0000;
const MEMORY_LEN: usize = 4 << 20;

/// An ERNIC on a station, as the platform of its driver.
struct Card {
    station: Station<Device, Ram>,
    now: Nanos,
    next: u64,
}

impl Platform for Card {
    fn read32(&mut self, offset: u32) -> u32 {
        self.station.nic.read32(offset)
    }

    fn write32(&mut self, offset: u32, value: u32) {
        self.station.nic.write32(offset, value);
    }

    fn dma_alloc(&mut self, len: usize, align: usize) -> Option<DmaBuffer> {
        let bus = self.next.next_multiple_of(align as u64);
        self.next = bus + len as u64;
        (self.next <= MEMORY + MEMORY_LEN as u64).then_some(DmaBuffer { bus, len })
    }

    fn dma_free(&mut self, _: DmaBuffer) {}

    fn dma_read(&mut self, bus: u64, out: &mut [u8]) -> Result<(), DmaError> {
        let len = out.len();
        self.station.nic.memory.read(bus, out).map_err(|_| DmaError { bus, len })
    }

    fn dma_write(&mut self, bus: u64, bytes: &[u8]) -> Result<(), DmaError> {
        let len = bytes.len();
        self.station.nic.memory.write(bus, bytes).map_err(|_| DmaError { bus, len })
    }

    fn pause(&mut self) {}
}

impl Resolve for Card {
    fn resolve(&mut self, ip: IpAddr) -> Resolution {
        self.station.resolve(self.now, ip)
    }
}

/// What a story needs of an end.
pub trait Side {
    /// Moves frames and connections; whether there was something.
    fn turn(&mut self, now: Nanos, events: &mut Vec<AgentEvent>) -> bool;
    fn next_deadline(&mut self) -> Option<Nanos>;
    /// A queue pair that can be connected, with a receive.
    fn qp(&mut self) -> Qpn;
    fn listen(&mut self);
    fn connect(&mut self, now: Nanos, qpn: Qpn, remote: IpAddr) -> CommId;
    fn accept(&mut self, id: CommId, qpn: Qpn) -> Result<(), Error>;
    fn reject(&mut self, id: CommId);
    fn disconnect(&mut self, now: Nanos, id: CommId);
    fn send(&mut self, qpn: Qpn, bytes: &[u8]);
    /// Posts a WRITE of no bytes; false where the queue pair takes no work.
    fn probe(&mut self, qpn: Qpn) -> bool;
    /// Whether a connection has the queue pair.
    fn holds(&self, qpn: Qpn) -> bool;
    /// Whether the oldest request has ended, and well.
    fn ended(&mut self, qpn: Qpn) -> Option<bool>;
    /// The first bytes of the next message.
    fn received(&mut self, qpn: Qpn) -> Option<Vec<u8>>;
    fn counters(&self) -> AgentCounters;
    fn refused(&self) -> u64;
}

fn agent_config(side: usize) -> AgentConfig {
    AgentConfig { cm: CmConfig::default(), seed: side as u64 }
}

pub struct ErnicSide {
    driver: Driver<Card>,
    agent: Agent<ErnicGsi>,
    port: softrnic_host::port::PortConfig,
    buffer: u64,
}

impl ErnicSide {
    pub fn new(side: usize, cable: &Arc<Mutex<Cable>>, now: Nanos) -> Self {
        let port = port(side as u8 + 1);
        let nic = Nic::ernic(ErnicConfig::default(), Ram::new(MEMORY, MEMORY_LEN));
        let link = Box::new(CableEnd::new(side, cable));
        let station = Station::new(nic, link, HostPort::new(port.clone()));
        let card = Card { station, now, next: MEMORY };
        let of_port = port.engine_port();
        let config = DeviceConfig {
            mac: port.mac,
            ipv4: of_port.ipv4,
            ipv6: of_port.ipv6,
            ..DeviceConfig::default()
        };
        let mut driver = Driver::bring_up(card, Map::V4_0, &config).unwrap();
        let gsi = ErnicGsi::new(&mut driver, &port).unwrap();
        let agent = Agent::new(gsi, &port, agent_config(side));
        let buffer = driver.dma_alloc("messages", 4096).unwrap().bus;
        Self { driver, agent, port, buffer }
    }

    fn post(&mut self, qpn: Qpn, work: &Work<'_>) -> Result<(), softrnic_driver::Error> {
        self.driver.post(number(qpn), work)?;
        self.driver.ring(number(qpn))
    }

    fn send_bytes(&mut self, qpn: Qpn, bytes: &[u8]) {
        self.driver.platform_mut().dma_write(self.buffer, bytes).unwrap();
        let local = Local::Bus { address: self.buffer, len: bytes.len() as u32 };
        self.post(qpn, &Work::send(0, local)).unwrap();
    }
}

fn number(qpn: Qpn) -> QpNumber {
    QpNumber::new(qpn.get() as u16)
}

impl Side for ErnicSide {
    fn turn(&mut self, now: Nanos, events: &mut Vec<AgentEvent>) -> bool {
        let Self { driver, agent, .. } = self;
        driver.platform_mut().now = now;
        let mut moved = !driver.platform_mut().station.turn(now).unwrap().idle();
        agent.turn(now, driver);
        moved |= !driver.platform_mut().station.turn(now).unwrap().idle();
        while let Some(event) = agent.poll_event() {
            events.push(event);
            moved = true;
        }
        moved
    }

    fn next_deadline(&mut self) -> Option<Nanos> {
        let station = self.driver.platform_mut().station.next_deadline();
        [station, self.agent.next_deadline()].into_iter().flatten().min()
    }

    fn qp(&mut self) -> Qpn {
        let config = QpConfig { sq_depth: 8, rq_depth: 8, ..QpConfig::default() };
        Qpn::new(self.driver.create_qp(&config).unwrap().get().into())
    }

    fn listen(&mut self) {
        self.agent.listen(PORT, 3).unwrap();
    }

    fn connect(&mut self, now: Nanos, qpn: Qpn, remote: IpAddr) -> CommId {
        let request = Request::new(remote, PORT);
        self.agent.connect(now, &self.port, &Endpoint::new(qpn), &request).unwrap()
    }

    fn accept(&mut self, id: CommId, qpn: Qpn) -> Result<(), Error> {
        self.agent.accept(id, &Endpoint::new(qpn), &[])
    }

    fn reject(&mut self, id: CommId) {
        self.agent.reject(id, b"no").unwrap();
    }

    fn disconnect(&mut self, now: Nanos, id: CommId) {
        self.agent.disconnect(now, &mut self.driver, id).unwrap();
    }

    fn send(&mut self, qpn: Qpn, bytes: &[u8]) {
        self.send_bytes(qpn, bytes);
    }

    fn probe(&mut self, qpn: Qpn) -> bool {
        let local = Local::Bus { address: self.buffer, len: 0 };
        self.post(qpn, &Work::write(0, local, 0, 0)).is_ok()
    }

    fn holds(&self, qpn: Qpn) -> bool {
        self.agent.holds(qpn)
    }

    fn ended(&mut self, qpn: Qpn) -> Option<bool> {
        let mut done = [Completion::default()];
        let count = self.driver.poll_completions(number(qpn), &mut done).unwrap();
        (count == 1).then_some(!done[0].failed)
    }

    fn received(&mut self, qpn: Qpn) -> Option<Vec<u8>> {
        let received = self.driver.poll_receive(number(qpn)).unwrap()?;
        let mut bytes = vec![0; 64];
        self.driver.platform_mut().dma_read(received.bus, &mut bytes).unwrap();
        self.driver.release_receive(number(qpn), 1).unwrap();
        Some(bytes)
    }

    fn counters(&self) -> AgentCounters {
        self.agent.counters()
    }

    fn refused(&self) -> u64 {
        self.agent.cm().counters().refused.iter().sum()
    }
}

struct NativeSide {
    station: Station<Verbs, Ram>,
    agent: Agent<NativeGsi>,
    cq: Cq,
    pd: softrnic_device::verbs::Pd,
    lkey: softrnic_device::verbs::LKey,
    done: Vec<WorkCompletion>,
}

impl NativeSide {
    const BUFFER: u64 = MEMORY + NativeGsi::MEMORY_LEN;

    fn new(side: usize, cable: &Arc<Mutex<Cable>>) -> Self {
        let config = port(side as u8 + 1);
        let mut nic = Nic::verbs(config.engine_port(), Ram::new(MEMORY, MEMORY_LEN));
        let gsi = NativeGsi::new(&mut nic, MEMORY..Self::BUFFER).unwrap();
        let agent = Agent::new(gsi, &config, agent_config(side));
        let pd = nic.alloc_pd().unwrap();
        let cq = nic.create_cq(64).unwrap();
        let lkey = nic.reg_mr(pd, Self::BUFFER, 4096, AccessFlags::ALL).unwrap().lkey;
        let link = Box::new(CableEnd::new(side, cable));
        let station = Station::new(nic, link, HostPort::new(config));
        Self { station, agent, cq, pd, lkey, done: Vec::new() }
    }

    /// Takes the oldest completion of a receive, or of a request.
    fn take(&mut self, receive: bool) -> Option<WorkCompletion> {
        let mut done = [WorkCompletion::default(); 16];
        let count = self.station.nic.poll_cq(self.cq, &mut done).unwrap();
        self.done.extend(&done[..count]);
        let at = self.done.iter().position(|done| (done.wr_id == 1) == receive)?;
        Some(self.done.remove(at))
    }
}

impl Side for NativeSide {
    fn turn(&mut self, now: Nanos, events: &mut Vec<AgentEvent>) -> bool {
        let Self { station, agent, .. } = self;
        let mut moved = !station.turn(now).unwrap().idle();
        while let Some(event) = station.nic.get_async_event() {
            if let AsyncEvent::CommunicationEstablished(qpn) = event {
                agent.communication_established(qpn);
            }
        }
        agent.turn(now, station);
        moved |= !station.turn(now).unwrap().idle();
        while let Some(event) = agent.poll_event() {
            events.push(event);
            moved = true;
        }
        moved
    }

    fn next_deadline(&mut self) -> Option<Nanos> {
        let deadlines = [self.station.next_deadline(), self.agent.next_deadline()];
        deadlines.into_iter().flatten().min()
    }

    fn qp(&mut self) -> Qpn {
        let init = QpInit { pd: self.pd, send_cq: self.cq, recv_cq: self.cq, ..QpInit::default() };
        let qpn = self.station.nic.create_qp(&init).unwrap();
        self.station.nic.set_state(qpn, QpState::Init).unwrap();
        let sges = [Sge { address: Self::BUFFER, length: 64, lkey: self.lkey }];
        self.station.nic.post_recv(qpn, &RecvRequest { wr_id: 1, sges: &sges }).unwrap();
        qpn
    }

    fn listen(&mut self) {
        self.agent.listen(PORT, 3).unwrap();
    }

    fn connect(&mut self, now: Nanos, qpn: Qpn, remote: IpAddr) -> CommId {
        let config = self.station.port().config().clone();
        let request = Request::new(remote, PORT);
        self.agent.connect(now, &config, &Endpoint::new(qpn), &request).unwrap()
    }

    fn accept(&mut self, id: CommId, qpn: Qpn) -> Result<(), Error> {
        self.agent.accept(id, &Endpoint::new(qpn), &[])
    }

    fn reject(&mut self, id: CommId) {
        self.agent.reject(id, b"no").unwrap();
    }

    fn disconnect(&mut self, now: Nanos, id: CommId) {
        self.agent.disconnect(now, &mut self.station, id).unwrap();
    }

    fn send(&mut self, qpn: Qpn, bytes: &[u8]) {
        let payload = Payload::Inline(bytes);
        let send = SendRequest { wr_id: 2, payload, signaled: true, ..SendRequest::default() };
        self.station.nic.post_send(qpn, &send).unwrap();
    }

    fn probe(&mut self, qpn: Qpn) -> bool {
        let op = SendOp::Write { remote_va: 0, rkey: RKey(0) };
        let payload = Payload::Sges(&[]);
        let probe = SendRequest { wr_id: 2, op, payload, signaled: true, ..SendRequest::default() };
        self.station.nic.post_send(qpn, &probe).is_ok()
    }

    fn holds(&self, qpn: Qpn) -> bool {
        self.agent.holds(qpn)
    }

    fn ended(&mut self, _: Qpn) -> Option<bool> {
        self.take(false).map(|done| done.status == Status::Success)
    }

    fn received(&mut self, _: Qpn) -> Option<Vec<u8>> {
        self.take(true).filter(|done| done.status == Status::Success)?;
        Some(self.station.nic.memory.slice(Self::BUFFER, 64).unwrap().to_vec())
    }

    fn counters(&self) -> AgentCounters {
        self.agent.counters()
    }

    fn refused(&self) -> u64 {
        self.agent.cm().counters().refused.iter().sum()
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Face {
    Ernic,
    Native,
}

struct World {
    ends: [Box<dyn Side>; 2],
    events: [Vec<AgentEvent>; 2],
    cable: Arc<Mutex<Cable>>,
    now: Nanos,
}

impl World {
    fn new(faces: [Face; 2]) -> Self {
        let now = Nanos(1_000_000);
        let cable = Cable::new(now);
        let ends = [0, 1].map(|side| match faces[side] {
            Face::Ernic => Box::new(ErnicSide::new(side, &cable, now)) as Box<dyn Side>,
            Face::Native => Box::new(NativeSide::new(side, &cable)),
        });
        Self { ends, events: [Vec::new(), Vec::new()], cable, now }
    }

    /// Lets time pass; it jumps where nothing moves.
    fn run_ms(&mut self, ms: u64) {
        let until = self.now.after(ms * 1_000_000);
        loop {
            self.cable.lock().unwrap().now = self.now;
            let mut moved = false;
            for (end, events) in self.ends.iter_mut().zip(&mut self.events) {
                moved |= end.turn(self.now, events);
            }
            let deadlines = self.ends.iter_mut().filter_map(|end| end.next_deadline());
            let next = if moved { Some(self.now.after(1000)) } else { deadlines.min() };
            match next {
                Some(next) if next <= until => self.now = next.max(Nanos(self.now.0 + 1)),
                _ => break,
            }
        }
        self.now = until;
    }

    fn take(&mut self, side: usize) -> Vec<AgentEvent> {
        std::mem::take(&mut self.events[side])
    }

    fn one(&mut self, side: usize) -> AgentEvent {
        let mut events = self.take(side);
        assert_eq!(events.len(), 1, "{events:?}");
        events.remove(0)
    }

    /// The first message of a kind gets lost; how many of it were sent is counted.
    fn lose_first(&self, kind: Kind) -> Arc<Mutex<u32>> {
        let sent = Arc::new(Mutex::new(0));
        let count = sent.clone();
        self.cable.lock().unwrap().lose = Box::new(move |_, frame| {
            let mad = Datagram::from_frame(frame).map(|datagram| datagram.mad);
            let message = mad.and_then(|mad| Message::decode(mad).ok());
            let is = message.is_some_and(|(_, message)| message.kind() == kind);
            let mut count = count.lock().unwrap();
            *count += u32::from(is);
            is && *count == 1
        });
        sent
    }

    /// Asks for a connection, and has the other end accept.
    fn accepted(&mut self, v6: bool) -> [(Qpn, CommId); 2] {
        let qpns = [self.ends[0].qp(), self.ends[1].qp()];
        let ours = self.ends[0].connect(self.now, qpns[0], ip(2, v6));
        self.run_ms(6000);
        let AgentEvent::Requested { id: theirs, peer, .. } = self.one(1) else { panic!() };
        assert_eq!(peer, ip(1, v6));
        self.ends[1].accept(theirs, qpns[1]).unwrap();
        [(qpns[0], ours), (qpns[1], theirs)]
    }

    fn expect_established(&mut self, both: [(Qpn, CommId); 2], v6: bool) {
        for side in 0..2 {
            let established = AgentEvent::Established {
                id: both[side].1,
                qpn: both[side].0,
                peer: ip(2 - side as u8, v6),
                peer_qpn: both[1 - side].0,
                path_mtu: PathMtu::M1024,
            };
            assert_eq!(self.one(side), established);
        }
    }

    fn exchange(&mut self, from: usize, both: [(Qpn, CommId); 2]) {
        let message: Vec<u8> = (0..64).map(|byte| byte ^ from as u8).collect();
        self.ends[from].send(both[from].0, &message);
        self.run_ms(2000);
        assert_eq!(self.ends[from].ended(both[from].0), Some(true));
        assert_eq!(self.ends[1 - from].received(both[1 - from].0), Some(message));
    }

    fn part(&mut self, first: usize, both: [(Qpn, CommId); 2]) {
        self.ends[first].disconnect(self.now, both[first].1);
        self.run_ms(10_000);
        for (side, (_, id)) in both.into_iter().enumerate() {
            let by = if side == first { End::Us } else { End::Peer };
            let ended = [AgentEvent::Disconnected { id, by }, AgentEvent::Closed { id }];
            assert_eq!(self.take(side), ended);
        }
    }
}

use Face::{Ernic, Native};

#[test]
fn an_ernic_connects_to_each_face_exchanges_data_and_parts() {
    for faces in [[Ernic, Ernic], [Ernic, Native], [Native, Ernic]] {
        for v6 in [false, true] {
            let mut world = World::new(faces);
            world.ends[1].listen();
            let both = world.accepted(v6);
            world.run_ms(20);
            world.expect_established(both, v6);
            world.exchange(0, both);
            world.exchange(1, both);
            world.part(usize::from(v6), both);
            for end in &world.ends {
                assert_eq!((end.counters(), end.refused()), (AgentCounters::default(), 0));
            }
        }
    }
}

#[test]
fn each_message_may_get_lost_once() {
    for kind in [Kind::Req, Kind::Rep, Kind::Rtu, Kind::Dreq, Kind::Drep] {
        for faces in [[Ernic, Ernic], [Ernic, Native], [Native, Ernic]] {
            let mut world = World::new(faces);
            world.ends[1].listen();
            let sent = world.lose_first(kind);
            let both = world.accepted(false);
            world.run_ms(10_000);
            world.expect_established(both, false);
            world.exchange(0, both);
            world.part(0, both);
            assert_eq!(*sent.lock().unwrap(), 2, "{kind} {faces:?}");
        }
    }
}

#[test]
fn the_first_message_stands_for_an_rtu_that_is_lost() {
    let mut world = World::new([Ernic, Ernic]);
    world.ends[1].listen();
    let sent = world.lose_first(Kind::Rtu);
    let both = world.accepted(false);
    world.run_ms(20);
    assert!(matches!(world.one(0), AgentEvent::Established { .. }));
    assert_eq!(world.take(1), []);
    world.ends[0].send(both[0].0, b"hello");
    // Long before the REP would be sent again.
    world.run_ms(20);
    assert!(matches!(world.one(1), AgentEvent::Established { .. }));
    assert_eq!(world.ends[1].received(both[1].0).unwrap()[..5], *b"hello");
    world.run_ms(20_000);
    assert_eq!(*sent.lock().unwrap(), 1);
}

#[test]
fn a_peer_says_no_or_nobody_is_there() {
    let mut world = World::new([Ernic, Ernic]);
    let qpn = world.ends[0].qp();
    world.ends[0].connect(world.now, qpn, ip(2, false));
    world.run_ms(20);
    let AgentEvent::Failed { why, .. } = world.one(0) else { panic!() };
    assert_eq!(why, Failure::Rejected(Reject::INVALID_SERVICE_ID));

    // The queue pair may try again.
    world.ends[1].listen();
    world.ends[0].connect(world.now, qpn, ip(2, false));
    world.run_ms(20);
    let theirs = world.one(1).id();
    world.ends[1].reject(theirs);
    world.run_ms(20);
    let AgentEvent::Failed { why, .. } = world.one(0) else { panic!() };
    assert_eq!(why, Failure::Rejected(Reject::CONSUMER));

    // A queue pair that the device does not have.
    world.ends[0].connect(world.now, qpn, ip(2, false));
    world.run_ms(20);
    let theirs = world.one(1).id();
    world.ends[1].accept(theirs, Qpn::new(0x77)).unwrap();
    world.run_ms(20);
    assert!(matches!(world.one(1), AgentEvent::Failed { why: Failure::Qp(_), .. }));
    let AgentEvent::Failed { why, .. } = world.one(0) else { panic!() };
    assert_eq!(why, Failure::Rejected(Reject::NO_QP));

    world.ends[0].connect(world.now, qpn, ip(77, false));
    world.run_ms(10_000);
    let AgentEvent::Failed { why, .. } = world.one(0) else { panic!() };
    assert_eq!(why.to_string(), "nobody answers for its address (ARP, NDP)");

    world.cable.lock().unwrap().lose = Box::new(|_, frame| Datagram::from_frame(frame).is_some());
    world.ends[0].connect(world.now, qpn, ip(2, true));
    world.run_ms(120_000);
    let AgentEvent::Failed { why, .. } = world.one(0) else { panic!() };
    assert_eq!(why, Failure::Unreachable { unanswered: Kind::Req, sent: 16 });
    assert_eq!(world.ends[0].next_deadline(), None);
}

#[test]
fn a_peer_that_has_died_is_found_out_by_a_write_of_no_bytes() {
    for faces in [[Ernic, Native], [Ernic, Ernic], [Native, Ernic]] {
        let mut world = World::new(faces);
        world.ends[1].listen();
        let both = world.accepted(false);
        world.run_ms(20);
        let qpn = both[0].0;
        assert!(world.ends[0].probe(qpn));
        world.run_ms(20);
        assert_eq!(world.ends[0].ended(qpn), Some(true), "{faces:?}");
        world.cable.lock().unwrap().lose = Box::new(|_, _| true);
        assert!(world.ends[0].probe(qpn));
        // 8 times 537 ms and more.
        world.run_ms(20_000);
        assert_eq!(world.ends[0].ended(qpn), Some(false), "{faces:?}");
    }
}

#[test]
fn a_queue_pair_takes_no_work_once_its_connection_has_ended_and_is_kept_for_time_wait() {
    let mut world = World::new([Ernic, Ernic]);
    world.ends[1].listen();
    let both = world.accepted(false);
    world.run_ms(20);
    world.take(0);
    world.take(1);
    world.ends[0].disconnect(world.now, both[0].1);
    world.run_ms(20);
    for (end, (qpn, _)) in world.ends.iter_mut().zip(both) {
        assert!(end.holds(qpn));
        assert!(!end.probe(qpn));
    }
    world.run_ms(5_000);
    for (end, (qpn, _)) in world.ends.iter().zip(both) {
        assert!(!end.holds(qpn));
    }
}

#[test]
fn what_is_no_datagram_is_counted_and_disturbs_nothing() {
    let mut world = World::new([Ernic, Ernic]);
    world.ends[1].listen();
    let path = FramePath {
        source_mac: port(1).mac,
        dest_mac: port(2).mac,
        source_ip: ip(1, false),
        dest_ip: ip(2, false),
        source_port: 0xC000,
        vlan_tci: None,
    };
    let now = world.now;
    let mut end = ErnicSide::new(0, &world.cable, now);
    let mut frame = datagram(&path, 1, 0, &[0; MAD_LEN]);
    let qkey = frame.len() - MAD_LEN - 8;
    frame[qkey] ^= 1;
    end.send_bytes(Qpn::new(1), &frame);
    end.driver.platform_mut().station.turn(now).unwrap();
    world.run_ms(20);
    assert_eq!(world.ends[1].counters().receive_errors, 1);
    let both = world.accepted(false);
    world.run_ms(20);
    world.expect_established(both, false);
}
