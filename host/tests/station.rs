//! Stories of stations on virtual time: two NICs of the native face, joined by a link of this test that
//! carries frames from one vector to another.
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use softrnic_device::verbs::{
    AccessFlags, Connection, Cq, Payload, QpInit, RecvRequest, SendRequest, Sge, Verbs,
    WorkCompletion,
};
use softrnic_device::{Memory, Nic, Ram};
use softrnic_engine::packet::FRAME_LEN_MAX;
use softrnic_engine::{Nanos, Path, Qpn, Room, Rx, Status};
use softrnic_host::capture::Reader;
use softrnic_host::link::{Limits, Link, LinkCounters, LinkError, Written};
use softrnic_host::port::{HostPort, PortConfig, Resolution};
use softrnic_host::station::Station;
use softrnic_sim::fault::{Injector, Rules};

type Frames = Arc<Mutex<VecDeque<Vec<u8>>>>;

/// One end of a wire in memory.
struct Wire {
    input: Frames,
    output: Frames,
    room: Box<[u8]>,
    unplugged: Arc<Mutex<bool>>,
    blocked: Arc<Mutex<bool>>,
}

impl Link for Wire {
    fn name(&self) -> &str {
        "test:"
    }

    fn limits(&self) -> Limits {
        Limits::of_mtu(9000)
    }

    fn receive(
        &mut self,
        budget: usize,
        take: &mut dyn FnMut(&mut [u8], Rx),
    ) -> Result<usize, LinkError> {
        if *self.unplugged.lock().unwrap() {
            return Err(LinkError::Gone { link: "test:".to_owned(), why: "unplugged".to_owned() });
        }
        for count in 0..budget {
            let Some(mut frame) = self.input.lock().unwrap().pop_front() else { return Ok(count) };
            take(&mut frame, Rx::default());
        }
        Ok(budget)
    }

    fn room(&mut self) -> Option<Room<'_>> {
        let blocked = *self.blocked.lock().unwrap();
        (!blocked).then_some(Room { bytes: &mut self.room, segments: 1, source_port: None })
    }

    fn commit(&mut self, written: Written) {
        self.output.lock().unwrap().push_back(self.room[..written.len].to_vec());
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        Ok(())
    }

    fn wants_write(&self) -> bool {
        false
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> LinkCounters {
        LinkCounters::default()
    }
}

const BASE: u64 = 0x1000;

/// A station with a queue pair, a receive of 64 bytes at 0x1800 for each message, and a clock for both.
struct End {
    station: Station<Verbs, Ram>,
    cq: Cq,
    qpn: Qpn,
    sge: Sge,
    ip: IpAddr,
}

struct Pair {
    ends: [End; 2],
    now: Nanos,
    unplugged: Arc<Mutex<bool>>,
    blocked: Arc<Mutex<bool>>,
}

fn ip(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, number)
}

impl Pair {
    /// Two ends; the first one breaks things by these rules.
    fn new(faults: &str) -> Self {
        let (there, back) = (Frames::default(), Frames::default());
        let unplugged = Arc::new(Mutex::new(false));
        let blocked = Arc::new(Mutex::new(false));
        let ends = [1, 2].map(|number| {
            let config = PortConfig {
                mac: [2, 0, 0, 0, 0, number],
                ipv4: Some((ip(number), 24)),
                ..PortConfig::default()
            };
            let (input, output) = if number == 1 { (&back, &there) } else { (&there, &back) };
            let link = Wire {
                input: Arc::clone(input),
                output: Arc::clone(output),
                room: vec![0; FRAME_LEN_MAX].into_boxed_slice(),
                unplugged: Arc::clone(&unplugged),
                blocked: Arc::clone(&blocked),
            };
            let mut nic = Nic::verbs(config.engine_port(), Ram::new(BASE, 0x1000));
            let pd = nic.alloc_pd().unwrap();
            let cq = nic.create_cq(64).unwrap();
            let mr = nic.reg_mr(pd, BASE, 0x1000, AccessFlags::LOCAL).unwrap();
            let init = QpInit { pd, send_cq: cq, recv_cq: cq, ..QpInit::default() };
            let qpn = nic.create_qp(&init).unwrap();
            let mut station = Station::new(nic, Box::new(link), HostPort::new(config));
            if number == 1 {
                let rules = Rules::parse("faults.toml", faults).unwrap();
                station.set_faults(Injector::new(rules, 7));
            }
            let sge = Sge { address: BASE + 0x800, length: 64, lkey: mr.lkey };
            End { station, cq, qpn, sge, ip: ip(number).into() }
        });
        Self { ends, now: Nanos(0), unplugged, blocked }
    }

    fn turn(&mut self) -> bool {
        let mut busy = false;
        for end in &mut self.ends {
            busy |= !end.station.turn(self.now).unwrap().idle();
        }
        busy
    }

    /// Until nothing moves and no deadline is left before `until`.
    fn run(&mut self, until: Nanos) {
        loop {
            while self.turn() {}
            let next = self.ends.iter_mut().filter_map(|end| end.station.next_deadline()).min();
            match next.filter(|&next| next <= until) {
                Some(next) => self.now = next.max(Nanos(self.now.0 + 1)),
                None => return,
            }
        }
    }

    /// Finds out both MAC addresses and connects.
    fn connect(&mut self) {
        for (near, far) in [(0, 1), (1, 0)] {
            let peer = self.ends[far].ip;
            let mac = loop {
                match self.ends[near].station.resolve(self.now, peer) {
                    Resolution::Known(mac) => break mac,
                    Resolution::Asking => assert!(self.turn(), "nobody answers"),
                    other => panic!("{other:?}"),
                }
            };
            let dest_qpn = self.ends[far].qpn;
            let path = Path { dest_mac: mac, dest_ip: peer, ..Path::default() };
            let end = &mut self.ends[near];
            let connection = Connection { path, dest_qpn, ..Connection::default() };
            end.station.nic.connect(end.qpn, &connection).unwrap();
        }
    }

    /// Sends messages of 5 bytes from the first end to the second.
    fn send(&mut self, texts: &[&[u8; 5]]) {
        let [a, b] = &mut self.ends;
        for (i, text) in texts.iter().enumerate() {
            let at = b.sge.address + 8 * i as u64;
            let sges = [Sge { address: at, length: 8, ..b.sge }];
            b.station.nic.post_recv(b.qpn, &RecvRequest { wr_id: i as u64, sges: &sges }).unwrap();
            let from = BASE + 8 * i as u64;
            a.station.nic.memory.write(from, *text).unwrap();
            let payload = Payload::Sges(&[Sge { address: from, length: 5, ..a.sge }]);
            let request = SendRequest { payload, signaled: true, ..SendRequest::default() };
            a.station.nic.post_send(a.qpn, &request).unwrap();
        }
    }

    /// What ended at an end, in order.
    fn done(&mut self, end: usize) -> Vec<Status> {
        let End { station, cq, .. } = &mut self.ends[end];
        let mut done = [WorkCompletion::default(); 16];
        let count = station.nic.poll_cq(*cq, &mut done).unwrap();
        done[..count].iter().map(|done| done.status).collect()
    }

    fn received(&self, count: usize) -> Vec<Vec<u8>> {
        let b = &self.ends[1];
        let at = |i: usize| b.sge.address + 8 * i as u64;
        (0..count).map(|i| b.station.nic.memory.slice(at(i), 5).unwrap().to_vec()).collect()
    }
}

const ALL_OK: [Status; 2] = [Status::Success; 2];

#[test]
fn stations_find_each_other_by_arp_and_exchange_a_message() {
    let mut pair = Pair::new("");
    pair.connect();
    pair.send(&[b"hello", b"world"]);
    pair.run(Nanos(1_000_000));
    assert_eq!((pair.done(0), pair.done(1)), (ALL_OK.to_vec(), ALL_OK.to_vec()));
    assert_eq!(pair.received(2), [b"hello", b"world"]);
    let counters = pair.ends[0].station.port().counters();
    assert_eq!((counters.neighbour_requests, counters.ignored), (1, 0));
}

#[test]
fn a_lost_frame_is_sent_again_and_told_in_the_capture() {
    let folder = std::env::temp_dir().join(format!("softrnic-station-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("lost.pcapng");
    let rule = "[[fault]]\naction = \"drop\"\nopcode = \"SEND\"\nnth = 1\n";
    let mut pair = Pair::new(rule);
    pair.connect();
    pair.ends[0].station.start_capture(&file, 1_000).unwrap();
    pair.send(&[b"hello", b"world"]);
    pair.run(Nanos(60_000_000_000));
    assert_eq!(pair.received(2), [b"hello", b"world"]);
    let station = &mut pair.ends[0].station;
    assert_eq!(station.fault_counters().lost, 1);
    station.stop_capture().unwrap();
    let reader = Reader::new(std::fs::File::open(&file).unwrap()).unwrap();
    let comments: Vec<String> = reader.flat_map(|packet| packet.unwrap().comments).collect();
    assert_eq!(comments.first().map(String::as_str), Some("lost: by fault 1"));
    assert!(comments.iter().any(|comment| comment == "retransmission"), "{comments:?}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn frames_that_rules_delay_copy_or_overtake_arrive_and_are_counted() {
    for (rule, lost, delayed, copies) in [
        ("action = \"delay\"\nby_ns = 500_000\nopcode = \"SEND\"\nnth = 1", 0, 1, 0),
        (
            "action = \"duplicate\"\ncopies = 2\napart_ns = 1_000\nopcode = \"SEND\"\nnth = 1",
            0,
            0,
            2,
        ),
        ("action = \"reorder\"\nbehind = 1\nopcode = \"SEND\"\nnth = 1", 0, 1, 0),
        ("action = \"drop\"\ndirection = \"in\"\nopcode = \"ACKNOWLEDGE\"\nnth = 1", 1, 0, 0),
    ] {
        let mut pair = Pair::new(&format!("[[fault]]\n{rule}\n"));
        pair.connect();
        pair.send(&[b"hello", b"world"]);
        pair.run(Nanos(60_000_000_000));
        assert_eq!((pair.done(0), pair.done(1)), (ALL_OK.to_vec(), ALL_OK.to_vec()), "{rule}");
        assert_eq!(pair.received(2), [b"hello", b"world"], "{rule}");
        let counters = pair.ends[0].station.fault_counters();
        assert_eq!(
            (counters.lost, counters.delayed, counters.copies),
            (lost, delayed, copies),
            "{rule}"
        );
        let tally = pair.ends[0].station.faults().tallies().next().unwrap().fired;
        assert_eq!(tally, 1, "{rule}");
    }
}

#[test]
fn a_frame_changed_by_a_rule_is_refused_and_sent_again() {
    let rule = "[[fault]]\naction = \"corrupt\"\nbyte = -5\nflip = 1\nopcode = \"SEND\"\nnth = 1\n";
    let mut pair = Pair::new(rule);
    pair.connect();
    pair.send(&[b"hello", b"world"]);
    pair.run(Nanos(60_000_000_000));
    assert_eq!(pair.received(2), [b"hello", b"world"]);
    let icrc = softrnic_engine::Reason::Icrc as usize;
    assert_eq!(pair.ends[1].station.nic.engine.refused()[icrc], 1);
}

#[test]
fn a_link_that_goes_away_ends_what_was_sent_in_an_error_within_its_timeouts() {
    let mut pair = Pair::new("");
    pair.connect();
    *pair.unplugged.lock().unwrap() = true;
    pair.send(&[b"hello", b"world"]);
    let a = &mut pair.ends[0].station;
    assert!(a.turn(pair.now).is_err_and(|error| error.is_gone()));
    let mut scratch = vec![0; FRAME_LEN_MAX];
    let mut now = pair.now;
    a.turn_without_link(now, &mut scratch);
    while let Some(next) = a.next_deadline() {
        now = next;
        a.turn_without_link(now, &mut scratch);
        assert!(now < Nanos(60_000_000_000), "it never gives up");
    }
    assert_eq!(pair.done(0), [Status::RetryExceeded, Status::Flushed]);
}

#[test]
fn a_link_that_takes_nothing_any_more_ends_what_was_sent_in_an_error_too() {
    let mut pair = Pair::new("");
    pair.connect();
    *pair.blocked.lock().unwrap() = true;
    pair.send(&[b"hello", b"world"]);
    pair.run(Nanos(60_000_000_000));
    assert_eq!(pair.done(0), [Status::RetryExceeded, Status::Flushed]);
    assert!(pair.ends[0].station.lost_to_blocked_link() > 2);
}

#[test]
fn a_link_that_takes_nothing_for_less_than_a_second_loses_nothing() {
    let mut pair = Pair::new("");
    pair.connect();
    *pair.blocked.lock().unwrap() = true;
    pair.send(&[b"hello", b"world"]);
    pair.run(Nanos(pair.now.0 + 900_000_000));
    assert_eq!(pair.done(0), []);
    *pair.blocked.lock().unwrap() = false;
    pair.run(Nanos(pair.now.0 + 900_000_000));
    assert_eq!(pair.done(0), [Status::Success, Status::Success]);
    assert_eq!(pair.received(2), [b"hello", b"world"]);
    assert_eq!(pair.ends[0].station.lost_to_blocked_link(), 0);
}
