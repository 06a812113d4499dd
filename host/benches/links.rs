//! Each link alone, and two NICs on it, in turns: `cargo bench -p softrnic-host --bench links`.
//!
//! One thread is both ends, so that a figure is the whole cost of a packet, kernel included. Figures are the thread's CPU time,
//! minimum over many short windows, of which the link alone and the NICs get every other one. Needs root, as the links' test
//! does: interfaces are in network namespaces that the benchmark makes. Prints a table in Markdown.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(dead_code, reason = "of the test's modules only a part is needed here")]

#[path = "../tests/link_contract/ends.rs"]
mod ends;
#[path = "../../cli/benches/throughput/measure.rs"]
mod measure;
#[path = "../tests/link_contract/namespace.rs"]
mod namespace;

use std::net::IpAddr;

use ends::{Ends, Family, KINDS, Kind, frame};
use measure::minimum_ns;
use softrnic_device::verbs::{
    AccessFlags, Connection, Cq, Payload, QpInit, RecvRequest, SendRequest, Sge, Verbs, WcOpcode,
    WorkCompletion,
};
use softrnic_device::{Nic, Ram};
use softrnic_engine::packet::Template;
use softrnic_engine::{Path, PathMtu, Qpn, Status};
use softrnic_host::clock::Clock;
use softrnic_host::link::Written;
use softrnic_host::port::{HostPort, PortConfig, Resolution};
use softrnic_host::station::Station;

/// Messages that are posted at once.
const BATCH: usize = 32;
const BASE: u64 = 0x1000;

fn main() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let wanted = |kind: &Kind| wanted.is_empty() || wanted.iter().any(|name| name == kind.name);
    println!("| link | bytes | alone, ns | M/s | Gbit/s | two NICs, ns | M/s | Gbit/s | ratio |");
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|");
    let mut round_trips = Vec::new();
    for kind in KINDS.iter().filter(|kind| wanted(kind)) {
        let families: &[Family] =
            if kind.name == "udp" { &[Family::V4, Family::V6] } else { &[Family::V4] };
        for family in families {
            let name = match family {
                Family::V4 => kind.name.to_owned(),
                Family::V6 => format!("{} IPv6", kind.name),
            };
            let pair = (kind.open)(*family).and_then(|raw| Ok((raw, (kind.open)(*family)?)));
            let (mut raw, full) = match pair {
                Ok(pair) => pair,
                Err(why) => {
                    eprintln!("{name}: not measured: {why}");
                    continue;
                }
            };
            let mut full = Pair::new(full);
            for len in [64, 1024, 4096] {
                throughput(&name, len, &mut raw, &mut full);
            }
            round_trips.push((name, round_trip(&mut raw, &mut full)));
        }
    }
    println!();
    println!("| link | round trip alone, us | two NICs, us | ratio |");
    println!("|---|---:|---:|---:|");
    for (name, [alone, nics]) in round_trips {
        println!("| {name} | {:.2} | {:.2} | {:.2} |", alone / 1e3, nics / 1e3, nics / alone);
    }
}

fn throughput(name: &str, len: usize, raw: &mut Ends, full: &mut Pair) {
    let frame = frame(&Template::new(&raw.flow(0)).unwrap(), 7, len);
    let [alone, nics] = minimum_ns([
        &mut |rounds| {
            for _ in 0..rounds {
                exchange(raw, 0, &frame, BATCH);
            }
        },
        &mut |rounds| {
            for _ in 0..rounds {
                full.exchange(0, len as u32, BATCH);
            }
        },
    ])
    .map(|ns| ns / BATCH as f64);
    let speed = |ns: f64| format!("{ns:.0} | {:.2} | {:.1}", 1e3 / ns, len as f64 * 8.0 / ns);
    println!("| {name} | {len} | {} | {} | {:.2} |", speed(alone), speed(nics), alone / nics);
}

/// One message of 64 bytes there and one back; acknowledgements are on their way meanwhile.
fn round_trip(raw: &mut Ends, full: &mut Pair) -> [f64; 2] {
    let frames = [0, 1].map(|from| frame(&Template::new(&raw.flow(from)).unwrap(), 7, 64));
    minimum_ns([
        &mut |rounds| {
            for _ in 0..rounds {
                exchange(raw, 0, &frames[0], 1);
                exchange(raw, 1, &frames[1], 1);
            }
        },
        &mut |rounds| {
            for _ in 0..rounds {
                full.ping(0, 64);
                full.ping(1, 64);
            }
        },
    ])
}

/// Ready-made frames, as many as `count`, through the link.
fn exchange(ends: &mut Ends, from: usize, frame: &[u8], count: usize) {
    let [a, b] = &mut ends.ends;
    let (a, b) = if from == 0 { (a, b) } else { (b, a) };
    for _ in 0..count {
        let room = a.link.room().expect("room for a batch");
        room.bytes[..frame.len()].copy_from_slice(frame);
        a.link.commit(Written::frame(frame.len()));
    }
    a.link.flush().unwrap();
    let mut came = 0;
    let mut turns = 0u32;
    while came < count {
        // The kernel's own frames (neighbour discovery) are not counted.
        b.link.receive(256, &mut |got, _| came += usize::from(got.len() == frame.len())).unwrap();
        turns += 1;
        assert!(turns < 100_000_000, "{} of {count} frames came", came);
    }
}

/// A NIC on a link.
struct Party {
    station: Station<Verbs, Ram>,
    cq: Cq,
    qpn: Qpn,
    memory: Sge,
    ip: IpAddr,
}

/// Two NICs, connected.
struct Pair {
    parties: [Party; 2],
    clock: Clock,
    polled: Vec<WorkCompletion>,
    /// Completions of each, and how many of them were received messages.
    done: [usize; 2],
    received: [usize; 2],
    _namespaces: Vec<namespace::Namespace>,
}

impl Pair {
    fn new(ends: Ends) -> Self {
        let Ends { ends, namespaces, .. } = ends;
        let parties = ends.map(|end| {
            let limits = end.link.limits();
            let mut config = PortConfig { mac: end.mac, mtu: limits.mtu, ..PortConfig::default() };
            config.answers = limits.shared_mac.is_none();
            match end.ip {
                IpAddr::V4(ip) => config.ipv4 = Some((ip, 24)),
                IpAddr::V6(ip) => config.ipv6 = Some((ip, 64)),
            }
            let len = 2 * BATCH as u64 * 4096;
            let mut nic = Nic::verbs(config.engine_port(), Ram::new(BASE, len as usize));
            let pd = nic.alloc_pd().unwrap();
            let cq = nic.create_cq(256).unwrap();
            let mr = nic.reg_mr(pd, BASE, len, AccessFlags::LOCAL).unwrap();
            let init = QpInit { pd, send_cq: cq, recv_cq: cq, ..QpInit::default() };
            let qpn = nic.create_qp(&init).unwrap();
            let station = Station::new(nic, end.link, HostPort::new(config));
            let memory = Sge { address: BASE, length: 0, lkey: mr.lkey };
            Party { station, cq, qpn, memory, ip: end.ip }
        });
        let mut pair = Self {
            parties,
            clock: Clock::start(),
            done: [0; 2],
            received: [0; 2],
            polled: vec![WorkCompletion::default(); 64],
            _namespaces: namespaces,
        };
        for near in 0..2 {
            let (peer, dest_qpn) = (pair.parties[1 - near].ip, pair.parties[1 - near].qpn);
            let mac = loop {
                let now = pair.clock.now();
                match pair.parties[near].station.resolve(now, peer) {
                    Resolution::Known(mac) => break mac,
                    Resolution::Asking => pair.turn(),
                    other => panic!("{other:?}"),
                }
            };
            let path = Path { dest_mac: mac, dest_ip: peer, ..Path::default() };
            let connection =
                Connection { path, dest_qpn, path_mtu: PathMtu::M4096, ..Connection::default() };
            let party = &mut pair.parties[near];
            party.station.nic.connect(party.qpn, &connection).unwrap();
        }
        pair
    }

    fn turn(&mut self) {
        let now = self.clock.now();
        let counts = self.done.iter_mut().zip(&mut self.received);
        for (party, (done, received)) in self.parties.iter_mut().zip(counts) {
            party.station.turn(now).unwrap();
            let count = party.station.nic.poll_cq(party.cq, &mut self.polled).unwrap();
            for completion in &self.polled[..count] {
                assert_eq!(completion.status, Status::Success);
                *received += usize::from(completion.opcode == WcOpcode::Recv);
            }
            *done += count;
        }
    }

    fn post(&mut self, from: usize, place: usize, len: u32) {
        let sge = |party: &Party, place: usize| Sge {
            address: BASE + place as u64 * 4096,
            length: len,
            ..party.memory
        };
        let to = &mut self.parties[1 - from];
        let sges = [sge(to, BATCH + place)];
        to.station.nic.post_recv(to.qpn, &RecvRequest { wr_id: 0, sges: &sges }).unwrap();
        let party = &mut self.parties[from];
        let payload = Payload::Sges(&[sge(party, place)]);
        let request = SendRequest { payload, signaled: true, ..SendRequest::default() };
        party.station.nic.post_send(party.qpn, &request).unwrap();
    }

    /// Messages from one to the other, until both know that they arrived.
    fn exchange(&mut self, from: usize, len: u32, count: usize) {
        for place in 0..count {
            self.post(from, place, len);
        }
        self.done = [0; 2];
        while self.done[0] < count || self.done[1] < count {
            self.turn();
        }
    }

    /// A message from one to the other, until that has it.
    fn ping(&mut self, from: usize, len: u32) {
        self.post(from, 0, len);
        self.received = [0; 2];
        while self.received[1 - from] == 0 {
            self.turn();
        }
    }
}
