//! Connection management on two NICs: over their GSI queue pairs, with ARP and NDP, and with data on the
//! queue pairs that it connects. Virtual time. What crosses is `golden/cm.pcapng`, which foreign judges
//! read; `SOFTRNIC_WRITE_GOLDEN=1 cargo test -p softrnic-host --test cm` writes it.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use softrnic_device::verbs::{
    AccessFlags, AsyncEvent, Cq, Payload, QpInit, RecvRequest, SendRequest, Sge, Verbs,
    WorkCompletion,
};
use softrnic_device::{Nic, Ram};
use softrnic_engine::{Nanos, PathMtu, Qpn, State as QpState, Status};
use softrnic_host::cm::agent::{Agent, AgentConfig, AgentEvent, Endpoint, Failure, Request};
use softrnic_host::cm::native::NativeGsi;
use softrnic_host::cm::{CmConfig, CommId, End, Reject};
use softrnic_host::port::HostPort;
use softrnic_host::station::Station;

use crate::cable::{Cable, CableEnd, ip, port};

const PORT: u16 = 7174;
const BUFFERS: u64 = 0x10_0000;

struct Side {
    station: Station<Verbs, Ram>,
    agent: Agent<NativeGsi>,
    cq: Cq,
    pd: softrnic_device::verbs::Pd,
    lkey: softrnic_device::verbs::LKey,
    events: Vec<AgentEvent>,
}

struct World {
    ends: [Side; 2],
    cable: Arc<Mutex<Cable>>,
    now: Nanos,
}

impl World {
    fn new() -> Self {
        let now = Nanos(1_000_000);
        let cable = Cable::new(now);
        let ends = [0, 1].map(|side: usize| {
            let config = port(side as u8 + 1);
            let mut nic = Nic::verbs(config.engine_port(), Ram::new(BUFFERS, 1 << 20));
            let end = BUFFERS + NativeGsi::MEMORY_LEN;
            let agent_config = AgentConfig { cm: CmConfig::default(), seed: side as u64 };
            let gsi = NativeGsi::new(&mut nic, BUFFERS..end).unwrap();
            let agent = Agent::new(gsi, &config, agent_config);
            let pd = nic.alloc_pd().unwrap();
            let cq = nic.create_cq(64).unwrap();
            let lkey = nic.reg_mr(pd, end, 4096, AccessFlags::ALL).unwrap().lkey;
            let link = Box::new(CableEnd::new(side, &cable));
            let station = Station::new(nic, link, HostPort::new(config));
            Side { station, agent, cq, pd, lkey, events: Vec::new() }
        });
        Self { ends, cable, now }
    }

    fn memory(&self) -> u64 {
        BUFFERS + NativeGsi::MEMORY_LEN
    }

    /// A queue pair in INIT with one receive posted.
    fn qp(&mut self, side: usize) -> Qpn {
        let memory = self.memory();
        let Side { station, cq, pd, lkey, .. } = &mut self.ends[side];
        let init = QpInit { pd: *pd, send_cq: *cq, recv_cq: *cq, ..QpInit::default() };
        let qpn = station.nic.create_qp(&init).unwrap();
        station.nic.set_state(qpn, QpState::Init).unwrap();
        let sges = [Sge { address: memory, length: 64, lkey: *lkey }];
        station.nic.post_recv(qpn, &RecvRequest { wr_id: 1, sges: &sges }).unwrap();
        qpn
    }

    fn connect(&mut self, qpn: Qpn, remote: IpAddr) -> CommId {
        let (end, now) = (&mut self.ends[0], self.now);
        let config = end.station.port().config().clone();
        let request = Request::new(remote, PORT);
        end.agent.connect(now, &config, &Endpoint::new(qpn), &request).unwrap()
    }

    /// Turns both ends, and lets time pass where nothing moves, up to a moment.
    fn run_until(&mut self, until: Nanos) {
        loop {
            self.cable.lock().unwrap().now = self.now;
            let mut moved = false;
            for Side { station, agent, events, .. } in &mut self.ends {
                moved |= !station.turn(self.now).unwrap().idle();
                while let Some(event) = station.nic.get_async_event() {
                    if let AsyncEvent::CommunicationEstablished(qpn) = event {
                        agent.communication_established(qpn);
                    }
                }
                agent.turn(self.now, station);
                moved |= !station.turn(self.now).unwrap().idle();
                while let Some(event) = agent.poll_event() {
                    events.push(event);
                    moved = true;
                }
            }
            let deadlines = self.ends.iter_mut().flat_map(|end| {
                [end.station.next_deadline(), end.agent.next_deadline()].into_iter().flatten()
            });
            let next = if moved { Some(self.now.after(1000)) } else { deadlines.min() };
            match next {
                Some(next) if next <= until => {
                    self.now = self.now.max(next).max(Nanos(self.now.0 + 1))
                }
                _ => break,
            }
        }
        self.now = self.now.max(until);
    }

    fn run_ms(&mut self, ms: u64) {
        self.run_until(self.now.after(ms * 1_000_000));
    }

    fn take(&mut self, side: usize) -> Vec<AgentEvent> {
        std::mem::take(&mut self.ends[side].events)
    }

    fn one(&mut self, side: usize) -> AgentEvent {
        let mut events = self.take(side);
        assert_eq!(events.len(), 1, "{events:?}");
        events.remove(0)
    }

    fn send(&mut self, side: usize, qpn: Qpn, bytes: &[u8]) {
        let payload = Payload::Inline(bytes);
        let send = SendRequest { wr_id: 2, payload, signaled: true, ..SendRequest::default() };
        self.ends[side].station.nic.post_send(qpn, &send).unwrap();
    }

    fn completions(&mut self, side: usize) -> Vec<(u64, Status)> {
        let Side { station, cq, .. } = &mut self.ends[side];
        let mut done = [WorkCompletion::default(); 16];
        let count = station.nic.poll_cq(*cq, &mut done).unwrap();
        done[..count].iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }

    /// A connection, and 64 bytes over it. Queue pairs and connections of both ends.
    fn established(&mut self, v6: bool) -> [(Qpn, CommId); 2] {
        let qpns = [self.qp(0), self.qp(1)];
        let ours = self.connect(qpns[0], ip(2, v6));
        self.run_ms(20);
        let AgentEvent::Requested { id: theirs, peer, .. } = self.one(1) else { panic!() };
        assert_eq!(peer, ip(1, v6));
        self.ends[1].agent.accept(theirs, &Endpoint::new(qpns[1]), b"welcome").unwrap();
        self.run_ms(20);
        let ids = [ours, theirs];
        for side in 0..2 {
            let AgentEvent::Established { id, qpn, peer, peer_qpn, path_mtu } = self.one(side)
            else {
                panic!()
            };
            assert_eq!((id, qpn, peer_qpn), (ids[side], qpns[side], qpns[1 - side]));
            assert_eq!((peer, path_mtu), (ip(2 - side as u8, v6), PathMtu::M1024));
        }
        let message: Vec<u8> = (0..64).collect();
        self.send(0, qpns[0], &message);
        self.run_ms(20);
        assert_eq!(self.completions(0), [(2, Status::Success)]);
        assert_eq!(self.completions(1), [(1, Status::Success)]);
        let memory = self.memory();
        assert_eq!(self.ends[1].station.nic.memory.slice(memory, 64).unwrap(), message);
        [(qpns[0], ours), (qpns[1], theirs)]
    }

    fn disconnect(&mut self, side: usize, id: CommId) {
        let (Side { station, agent, .. }, now) = (&mut self.ends[side], self.now);
        agent.disconnect(now, station, id).unwrap();
    }
}

#[test]
fn two_nics_connect_exchange_data_and_part() {
    for v6 in [false, true] {
        let mut world = World::new();
        world.ends[1].agent.listen(PORT, 3).unwrap();
        let [(_, ours), (qpn, theirs)] = world.established(v6);
        world.disconnect(0, ours);
        world.run_ms(20);
        assert_eq!(world.one(0), AgentEvent::Disconnected { id: ours, by: End::Us });
        assert_eq!(world.one(1), AgentEvent::Disconnected { id: theirs, by: End::Peer });
        assert_eq!(world.ends[1].station.nic.state(qpn), Some(QpState::Error));
        assert_eq!(world.completions(0), [(1, Status::Flushed)]);
        world.run_ms(1000);
        assert_eq!(world.one(0), AgentEvent::Closed { id: ours });
        assert_eq!(world.one(1), AgentEvent::Closed { id: theirs });
        for Side { agent, .. } in &world.ends {
            assert_eq!(agent.counters(), softrnic_host::cm::agent::AgentCounters::default());
            assert_eq!(agent.cm().counters().refused.iter().sum::<u64>(), 0);
        }
    }
}

#[test]
fn a_connection_to_nobody_says_which_address_does_not_answer() {
    let mut world = World::new();
    let qpn = world.qp(0);
    let peer = ip(77, false);
    let id = world.connect(qpn, peer);
    world.run_ms(10_000);
    let AgentEvent::Failed { id: failed, peer: of, why } = world.one(0) else { panic!() };
    assert_eq!((failed, of), (id, peer));
    assert_eq!(why.to_string(), "nobody answers for its address (ARP, NDP)");
    assert_eq!(world.ends[0].station.nic.state(qpn), Some(QpState::Error));
    assert_eq!(world.ends[0].agent.counters().unresolved, 1);
    assert_eq!(world.ends[0].agent.next_deadline(), None);

    let qpn = world.qp(0);
    let id = world.connect(qpn, "203.0.113.1".parse().unwrap());
    world.run_ms(1);
    let AgentEvent::Failed { id: failed, why, .. } = world.one(0) else { panic!() };
    assert_eq!(failed, id);
    assert!(why.to_string().contains("no gateway"), "{why}");
}

#[test]
fn a_peer_whose_cable_is_cut_is_reported_on_both_sides() {
    let mut world = World::new();
    world.ends[1].agent.listen(PORT, 3).unwrap();
    let [(qpn, ours), _] = world.established(false);
    world.cable.lock().unwrap().lose = Box::new(|_, _| true);
    world.send(0, qpn, b"into the void");
    // 8 times 4.096 us x 2^17 and more.
    world.run_ms(60_000);
    assert_eq!(world.completions(0), [(2, Status::RetryExceeded), (1, Status::Flushed)]);
    world.disconnect(0, ours);
    world.run_ms(120_000);
    let ended = AgentEvent::Disconnected { id: ours, by: End::Silence };
    assert_eq!(world.take(0), [ended, AgentEvent::Closed { id: ours }]);
}

#[test]
fn a_queue_pair_that_is_gone_fails_its_connection_and_tells_the_peer() {
    let mut world = World::new();
    world.ends[1].agent.listen(PORT, 3).unwrap();
    let qpn = world.qp(0);
    let ours = world.connect(qpn, ip(2, false));
    world.run_ms(20);
    let theirs = world.one(1).id();
    let gone = Qpn::new(0x77);
    world.ends[1].agent.accept(theirs, &Endpoint::new(gone), &[]).unwrap();
    world.run_ms(100);
    let AgentEvent::Failed { id, why: Failure::Qp(_), .. } = world.one(1) else { panic!() };
    assert_eq!(id, theirs);
    let AgentEvent::Failed { id, why, .. } = world.one(0) else { panic!() };
    assert_eq!((id, why), (ours, Failure::Rejected(Reject::NO_QP)));
}

#[test]
fn the_golden_capture_is_what_two_nics_exchange() {
    let mut world = World::new();
    world.ends[1].agent.listen(PORT, 3).unwrap();
    // A program that takes longer than the peer waits: REQ, REQ, MRA.
    let qpns = [world.qp(0), world.qp(1)];
    let ours = world.connect(qpns[0], ip(2, false));
    world.run_ms(6000);
    let theirs = world.one(1).id();
    world.ends[1].agent.accept(theirs, &Endpoint::new(qpns[1]), b"at last").unwrap();
    world.run_ms(20);
    world.send(0, qpns[0], b"hello");
    world.run_ms(20);
    world.disconnect(1, theirs);
    world.run_ms(1000);
    assert_eq!(world.take(0).last(), Some(&AgentEvent::Closed { id: ours }));
    assert_eq!(world.completions(1)[0], (1, Status::Success));
    world.completions(0);
    world.take(1);
    // IPv6, and the other side ends.
    let [(_, ours), _] = world.established(true);
    world.disconnect(0, ours);
    world.run_ms(1000);
    world.take(0);
    world.take(1);
    // A program that does not want to, and nobody.
    let qpn = world.qp(0);
    world.connect(qpn, ip(2, false));
    world.run_ms(20);
    let theirs = world.one(1).id();
    world.ends[1].agent.reject(theirs, b"not today").unwrap();
    world.run_ms(20);
    world.ends[1].agent.stop_listening(PORT);
    let qpn = world.qp(0);
    world.connect(qpn, ip(2, true));
    world.run_ms(20);
    for reason in [Reject::CONSUMER, Reject::INVALID_SERVICE_ID] {
        let AgentEvent::Failed { why, .. } = world.ends[0].events.remove(0) else { panic!() };
        assert_eq!(why, Failure::Rejected(reason));
    }

    let World { ends, cable, .. } = world;
    drop(ends);
    let cable = Arc::into_inner(cable).unwrap().into_inner().unwrap();
    let written = cable.capture.finish().unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/cm.pcapng");
    if std::env::var_os("SOFTRNIC_WRITE_GOLDEN").is_some() {
        fs::write(&path, &written).unwrap();
    }
    assert!(fs::read(&path).unwrap_or_default() == written, "golden/cm.pcapng is stale");
}
