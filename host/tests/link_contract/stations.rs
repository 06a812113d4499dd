//! Stations on a link: fault rules and captures work on every kind, and what they break is mended.

use std::fs::File;
use std::path::PathBuf;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softrnic_device::verbs::{
    AccessFlags, Connection, Cq, Payload, QpInit, RecvRequest, SendRequest, Sge, Verbs,
    WorkCompletion,
};
use softrnic_device::{Memory, Nic, Ram};
use softrnic_engine::{Nanos, Path, Qpn, Reason, Status};
use softrnic_host::capture::Reader;
use softrnic_host::clock::Clock;
use softrnic_host::port::{HostPort, PortConfig, Resolution};
use softrnic_host::station::Station;
use softrnic_sim::fault::{Injector, Rules};

use crate::ends::{End, Ends, Family, Kind, PATIENCE};

const BASE: u64 = 0x1000;
/// Messages, and bytes of each.
const MESSAGES: u64 = 40;
const LEN: u32 = 1000;

/// What the first station does to its own frames: one lost, one damaged, one that arrives lost.
const RULES: &str = r#"
[[fault]]
action = "drop"
opcode = "SEND"
nth = 3

[[fault]]
action = "corrupt"
byte = -5
flip = 1
opcode = "SEND"
nth = 9

[[fault]]
action = "drop"
direction = "in"
opcode = "ACKNOWLEDGE"
nth = 2
"#;

/// A station with a queue pair.
struct Party {
    station: Station<Verbs, Ram>,
    cq: Cq,
    qpn: Qpn,
    memory: Sge,
    capture: PathBuf,
    done: Vec<Status>,
}

impl Party {
    fn new(end: End, name: &str) -> Self {
        let ip = end.ip;
        let limits = end.link.limits();
        let mut config = PortConfig { mac: end.mac, mtu: limits.mtu, ..PortConfig::default() };
        config.answers = limits.shared_mac.is_none();
        match ip {
            std::net::IpAddr::V4(ip) => config.ipv4 = Some((ip, 24)),
            std::net::IpAddr::V6(ip) => config.ipv6 = Some((ip, 64)),
        }
        let len = MESSAGES * u64::from(LEN);
        let mut nic = Nic::verbs(config.engine_port(), Ram::new(BASE, len as usize));
        let pd = nic.alloc_pd().unwrap();
        let cq = nic.create_cq(256).unwrap();
        let mr = nic.reg_mr(pd, BASE, len, AccessFlags::LOCAL).unwrap();
        let init = QpInit { pd, send_cq: cq, recv_cq: cq, ..QpInit::default() };
        let qpn = nic.create_qp(&init).unwrap();
        let station = Station::new(nic, end.link, HostPort::new(config));
        let memory = Sge { address: BASE, length: LEN, lkey: mr.lkey };
        let file = format!("softrnic-link-{}-{name}.pcapng", std::process::id());
        let capture = std::env::temp_dir().join(file);
        Self { station, cq, qpn, memory, capture, done: Vec::new() }
    }

    fn sge(&self, message: u64) -> Sge {
        Sge { address: BASE + message * u64::from(LEN), ..self.memory }
    }

    /// Comments in its capture, which is removed.
    fn comments(&mut self) -> Vec<String> {
        self.station.stop_capture().unwrap();
        let reader = Reader::new(File::open(&self.capture).unwrap()).unwrap();
        let comments = reader.flat_map(|packet| packet.unwrap().comments).collect();
        std::fs::remove_file(&self.capture).unwrap();
        comments
    }
}

/// Turns both until `done` says so; waits on both links where there is nothing to do.
fn turn_until(
    parties: &mut [Party; 2],
    clock: &Clock,
    mut done: impl FnMut(&mut [Party; 2], Nanos) -> bool,
) {
    let deadline = Instant::now() + PATIENCE;
    while !done(parties, clock.now()) {
        assert!(Instant::now() < deadline, "it does not come to its end");
        let mut idle = true;
        for party in &mut *parties {
            idle &= party.station.turn(clock.now()).unwrap().idle();
            let mut some = [WorkCompletion::default(); 16];
            let count = party.station.nic.poll_cq(party.cq, &mut some).unwrap();
            party.done.extend(some[..count].iter().map(|done| done.status));
        }
        if !idle {
            continue;
        }
        let next = parties.iter_mut().filter_map(|party| party.station.next_deadline()).min();
        let wait_ns = next.map_or(50_000_000, |next| next.0.saturating_sub(clock.now().0));
        let timeout = Timespec { tv_sec: 0, tv_nsec: wait_ns.min(50_000_000) as i64 };
        let [a, b] = &mut *parties;
        if a.station.may_wait() && b.station.may_wait() {
            let fds = [a, b].map(|party| party.station.link().fd().unwrap());
            let mut fds = fds.each_ref().map(|fd| PollFd::new(fd, PollFlags::IN));
            poll(&mut fds, Some(&timeout)).unwrap();
        }
    }
}

/// Rule of the contract.
pub fn rules_and_captures(kind: &Kind, family: Family, ends: Ends) {
    let Ends { ends: [a, b], namespaces, .. } = ends;
    let ips = [a.ip, b.ip];
    let name = format!("{}-{family:?}", kind.name);
    let mut parties = [Party::new(a, &format!("{name}-a")), Party::new(b, &format!("{name}-b"))];
    let clock = Clock::start();
    for party in &mut parties {
        party.station.start_capture(&party.capture, clock.since_1970_ns()).unwrap();
    }
    for near in 0..2 {
        let (peer, dest_qpn) = (ips[1 - near], parties[1 - near].qpn);
        let mut mac = None;
        turn_until(&mut parties, &clock, |parties, now| {
            match parties[near].station.resolve(now, peer) {
                Resolution::Known(known) => mac = Some(known),
                Resolution::Asking => {}
                other => panic!("{other:?}"),
            }
            mac.is_some()
        });
        let path = Path { dest_mac: mac.unwrap(), dest_ip: peer, ..Path::default() };
        let connection = Connection { path, dest_qpn, ..Connection::default() };
        let party = &mut parties[near];
        party.station.nic.connect(party.qpn, &connection).unwrap();
    }
    let rules = Rules::parse("faults.toml", RULES).unwrap();
    let [a, b] = &mut parties;
    a.station.set_faults(Injector::new(rules, 7));
    for message in 0..MESSAGES {
        let sge = b.sge(message);
        b.station.nic.post_recv(b.qpn, &RecvRequest { wr_id: message, sges: &[sge] }).unwrap();
        let sge = a.sge(message);
        let bytes: Vec<u8> = (0..LEN).map(|at| (u64::from(at) * 7 + message * 3) as u8).collect();
        a.station.nic.memory.write(sge.address, &bytes).unwrap();
        let payload = Payload::Sges(&[sge]);
        let request = SendRequest { payload, signaled: true, ..SendRequest::default() };
        a.station.nic.post_send(a.qpn, &request).unwrap();
    }
    turn_until(&mut parties, &clock, |parties, _| {
        parties.iter().all(|party| party.done.len() as u64 == MESSAGES)
    });
    let [a, b] = &mut parties;
    assert!(a.done.iter().chain(&b.done).all(|status| *status == Status::Success));
    for message in 0..MESSAGES {
        let at = BASE + message * u64::from(LEN);
        let len = LEN as usize;
        assert!(a.station.nic.memory.slice(at, len) == b.station.nic.memory.slice(at, len));
    }
    assert_eq!(a.station.fault_counters().lost, 2);
    assert_eq!(b.station.nic.engine.refused()[Reason::Icrc as usize], 1);
    // Each side saw what it did, and says so.
    let (at_a, at_b) = (a.comments(), b.comments());
    for lost in ["lost: by fault 1", "lost: by fault 3", "retransmission"] {
        assert!(at_a.iter().any(|comment| comment == lost), "no `{lost}` in {at_a:?}");
    }
    assert!(at_b.iter().any(|comment| comment.starts_with("refused: icrc_wrong")), "{at_b:?}");
    drop(namespaces);
}
