//! Two nodes' connection management and a wire between them, on a virtual clock. What is lost is a
//! function of who sends what for the how-manieth time.

use std::net::IpAddr;

use softrnic_engine::{Nanos, Psn, Qpn};
use softrnic_host::cm::message::{self, Kind, Mad, Message};
use softrnic_host::cm::{Accept, Cm, CmConfig, CommId, Connect, Event, LocalQp, Peer};

pub const PORT: u16 = 7174;
pub const DELAY_NS: u64 = 10_000;

/// The node that connects, and the one that listens.
pub const ACTIVE: usize = 0;
pub const PASSIVE: usize = 1;

pub struct Sent {
    pub at: Nanos,
    pub from: usize,
    pub message: Message,
}

pub struct Wire {
    pub now: Nanos,
    pub nodes: [Cm; 2],
    pub ips: [IpAddr; 2],
    pub log: Vec<Sent>,
    pub events: [Vec<Event>; 2],
    /// Does the wire lose this message? Counted from 0 for each sender and kind.
    pub lose: Box<dyn FnMut(usize, Kind, usize) -> bool>,
    flying: Vec<(Nanos, usize, Box<Mad>)>,
    counts: [[usize; Kind::ALL.len()]; 2],
}

impl Wire {
    pub fn new() -> Self {
        Self::between(["192.0.2.1", "192.0.2.2"])
    }

    pub fn between(ips: [&str; 2]) -> Self {
        let ips = ips.map(|ip| ip.parse().unwrap());
        let nodes = [0, 1].map(|node| {
            let mut cm = Cm::new(config(node, ips[node]));
            if node == PASSIVE {
                cm.listen(message::tcp_service(PORT), 3).unwrap();
            }
            cm
        });
        Self {
            now: Nanos(1_000_000),
            nodes,
            ips,
            log: Vec::new(),
            events: [Vec::new(), Vec::new()],
            lose: Box::new(|_, _, _| false),
            flying: Vec::new(),
            counts: [[0; Kind::ALL.len()]; 2],
        }
    }

    pub fn connect(&mut self, qpn: u32) -> CommId {
        let connect = self.request(qpn);
        self.nodes[ACTIVE].connect(self.now, &connect).unwrap()
    }

    pub fn request(&self, qpn: u32) -> Connect {
        let qp =
            LocalQp { qpn: Qpn::new(qpn), psn: Psn::new(0x10_0000 + qpn), ..LocalQp::default() };
        let tcp = Connect::tcp(self.ips[0], 50_000, self.ips[1], PORT, b"please").unwrap();
        Connect { qp, ..tcp }
    }

    pub fn accept(&mut self, id: CommId, qpn: u32) {
        let qp =
            LocalQp { qpn: Qpn::new(qpn), psn: Psn::new(0x20_0000 + qpn), ..LocalQp::default() };
        let accept = Accept { qp, private_data: b"welcome".to_vec() };
        self.nodes[PASSIVE].accept(self.now, id, &accept).unwrap();
    }

    /// Messages and timers until none is left before `until`.
    pub fn run_until(&mut self, until: Nanos) {
        loop {
            self.collect();
            let arrival = self.flying.iter().map(|&(at, _, _)| at).min();
            let timers = self.nodes.iter().filter_map(Cm::next_deadline);
            let Some(next) = timers.chain(arrival).min().filter(|&next| next <= until) else {
                break;
            };
            self.now = self.now.max(next);
            for cm in &mut self.nodes {
                cm.handle_timeout(self.now);
            }
            let due: Vec<_> = self.flying.extract_if(.., |&mut (at, _, _)| at <= next).collect();
            for (_, from, mad) in due {
                let peer = Peer { ip: self.ips[from], qpn: Qpn::new(1) };
                // Refusals are looked at through their counters.
                let _ = self.nodes[1 - from].handle_mad(self.now, peer, &*mad);
            }
        }
        self.now = self.now.max(until);
    }

    /// Lets messages cross, but no timer that is further away.
    pub fn settle(&mut self) {
        self.run_until(self.now.after(10 * DELAY_NS));
    }

    /// Everything that happens within `seconds`.
    pub fn run_for(&mut self, seconds: u64) {
        self.run_until(self.now.after(seconds * 1_000_000_000));
    }

    fn collect(&mut self) {
        for from in 0..2 {
            while let Some((to, mad)) = self.nodes[from].poll_transmit() {
                assert_eq!((to.ip, to.qpn), (self.ips[1 - from], Qpn::new(1)));
                let (_, message) = Message::decode(&*mad).unwrap();
                let kind = message.kind();
                self.log.push(Sent { at: self.now, from, message });
                let count = &mut self.counts[from][kind as usize];
                if !(self.lose)(from, kind, *count) {
                    self.flying.push((self.now.after(DELAY_NS), from, mad));
                }
                *count += 1;
            }
            while let Some(event) = self.nodes[from].poll_event() {
                self.events[from].push(event);
            }
        }
    }

    /// The events of a node since the last call.
    pub fn take(&mut self, node: usize) -> Vec<Event> {
        std::mem::take(&mut self.events[node])
    }

    /// The one event of a node since the last call.
    pub fn one(&mut self, node: usize) -> Event {
        let mut events = self.take(node);
        assert_eq!(events.len(), 1, "{events:?}");
        events.remove(0)
    }

    /// Who sent what, in order: `0 REQ`, `1 REP`...
    pub fn story(&self) -> Vec<String> {
        self.log.iter().map(|sent| format!("{} {}", sent.from, sent.message.kind())).collect()
    }

    pub fn sent(&self, from: usize, kind: Kind) -> usize {
        self.counts[from][kind as usize]
    }

    /// A connection with a program that answers at once. Both numbers.
    pub fn established(&mut self, qpns: (u32, u32)) -> (CommId, CommId) {
        let ours = self.connect(qpns.0);
        self.settle();
        let Event::Requested { id: theirs, .. } = self.one(PASSIVE) else { panic!("no REQ") };
        self.accept(theirs, qpns.1);
        self.settle();
        assert!(matches!(self.one(ACTIVE), Event::Replied { id, .. } if id == ours));
        self.nodes[ACTIVE].ready(ours).unwrap();
        self.settle();
        assert_eq!(self.one(PASSIVE), Event::Established { id: theirs });
        (ours, theirs)
    }
}

pub fn config(node: usize, ip: IpAddr) -> CmConfig {
    CmConfig {
        ca_guid: 0xA000 + node as u64,
        addresses: vec![ip],
        first_comm_id: 0x1000 * (node as u32 + 1),
        first_transaction: 0x7000_0000 * (node as u64 + 1),
        ..CmConfig::default()
    }
}
