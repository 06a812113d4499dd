//! Performance tests between two ends of ours: every test, every service, patterns compared.
#![allow(clippy::unwrap_used, reason = "a test's own functions may panic")]

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use softrnic_engine::{PathMtu, Service};
use softrnic_host::endpoint::Remote;
use softrnic_host::link::QemuStream;
use softrnic_host::perf::{
    self, Ended, Kind, Limits, Line, NativeRig, PerfError, Plan, Request, Rig, Verb,
};
use softrnic_host::port::PortConfig;
use softrnic_host::verbs::{Context, Options};

fn contexts() -> [Context; 2] {
    let (left, right) = UnixStream::pair().unwrap();
    [(1, left), (2, right)].map(|(number, socket)| {
        let port = PortConfig {
            mac: [2, 0, 0, 0, 0, number],
            ipv4: Some((Ipv4Addr::new(192, 0, 2, number), 24)),
            ipv6: Some((format!("fd00::{number}").parse().unwrap(), 64)),
            mtu: 4200,
            ..PortConfig::default()
        };
        let link = QemuStream::over(socket.into(), format!("wire{number}"), 4200).unwrap();
        Context::over(Box::new(link), Options { port, ..Options::default() }).unwrap()
    })
}

fn plan(verb: Verb, kind: Kind) -> Plan {
    Plan {
        verb,
        kind,
        sizes: vec![if verb == Verb::Atomic { 8 } else { 1000 }],
        iterations: 300,
        duration: None,
        mtu: PathMtu::M1024,
        qps: 1,
        depth: 32,
        receive_depth: 64,
        moderation: if kind == Kind::Latency { 1 } else { 8 },
        timeout: 14,
        ipv6: false,
        verify: true,
        seed: 7,
    }
}

type Outcome = Result<Vec<Line>, PerfError>;

/// Client's and server's result.
fn measure(service: Service, near: &Plan, far: &Plan) -> [Outcome; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let [client, server] = contexts();
    let go = move |context: Context, stream: TcpStream, is_client: bool, plan: &Plan| {
        let limits = Limits {
            send_depth: plan.depth,
            recv_depth: plan.receive_depth,
            rd_atomic: 4,
            granularity: 1,
            service,
        };
        let mut rig = NativeRig::new(context, plan.qps, plan.region_len(), limits).unwrap();
        perf::run(&mut rig, stream, is_client, plan, &mut |_, _, _| {})
    };
    thread::scope(|scope| {
        let server = scope.spawn(|| go(server, listener.accept().unwrap().0, false, far));
        let near = go(client, TcpStream::connect(address).unwrap(), true, near);
        [near, server.join().unwrap()]
    })
}

#[test]
fn every_test_has_as_many_messages_as_asked_for_and_the_right_bytes() {
    for verb in [Verb::Send, Verb::Write, Verb::Read, Verb::Atomic] {
        for kind in [Kind::Bandwidth, Kind::Latency] {
            let plan = plan(verb, kind);
            let [near, far] = measure(Service::Rc, &plan, &plan).map(Result::unwrap);
            // perftest's server begins to write, so that the client sees one round trip less.
            let back_and_forth = (verb, kind) == (Verb::Write, Kind::Latency);
            let expected = if back_and_forth { 299 } else { 300 };
            assert_eq!((near.len(), near[0].messages), (1, expected), "{verb:?} {kind:?}");
            assert!(!back_and_forth || far[0].messages == 300);
            assert_eq!(near[0].latency.is_some(), kind == Kind::Latency);
            assert_eq!(near[0].gbit_per_s.is_some(), kind == Kind::Bandwidth);
            let compared: u64 = near.iter().chain(&far).map(|line| line.compared).sum();
            let expected = match (verb, kind) {
                (Verb::Send, Kind::Bandwidth) | (Verb::Read, Kind::Latency) => 300_000,
                (Verb::Send, Kind::Latency) => 600_000,
                // Once at the end, and once for each completion.
                (Verb::Write, Kind::Bandwidth) => 1000,
                (Verb::Read, Kind::Bandwidth) => compared.max(38_000),
                _ => 0,
            };
            assert_eq!(compared, expected, "{verb:?} {kind:?}");
        }
    }
}

#[test]
fn all_sizes_and_several_queue_pairs_in_one_run_over_ipv6() {
    for verb in [Verb::Send, Verb::Write, Verb::Read] {
        let plan = Plan {
            sizes: vec![2, 64, 4096, 100_000],
            iterations: 20,
            qps: 5,
            mtu: PathMtu::M4096,
            ipv6: true,
            ..plan(verb, Kind::Bandwidth)
        };
        let [near, far] = measure(Service::Rc, &plan, &plan).map(Result::unwrap);
        let sizes: Vec<u32> = near.iter().map(|line| line.size).collect();
        assert_eq!(sizes, plan.sizes);
        assert!(near.iter().all(|line| line.messages == 100));
        let told = far.last().unwrap();
        assert_eq!((told.size, told.messages), (100_000, 100));
        assert_eq!(told.by_peer, verb != Verb::Send);
    }
}

#[test]
fn unreliable_services_and_datagrams_with_their_grh_area() {
    for service in [Service::Uc, Service::Ud] {
        for kind in [Kind::Bandwidth, Kind::Latency] {
            // As many receives as messages: nothing else makes the sender wait.
            let plan = Plan { iterations: 60, receive_depth: 64, ..plan(Verb::Send, kind) };
            let [near, far] = measure(service, &plan, &plan).map(Result::unwrap);
            // The server's first message begins no round trip.
            let of_server = if kind == Kind::Latency { 59 } else { 60 };
            let messages = (near[0].messages, far[0].messages);
            assert_eq!(messages, (60, of_server), "{service:?} {kind:?}");
            assert_eq!(far[0].compared, 60_000);
        }
    }
}

#[test]
fn a_duration_ends_both_ends() {
    let duration = Some(Duration::from_millis(50));
    for (verb, kind) in [
        (Verb::Send, Kind::Bandwidth),
        (Verb::Write, Kind::Bandwidth),
        (Verb::Send, Kind::Latency),
        (Verb::Write, Kind::Latency),
    ] {
        let plan = Plan { duration, verify: false, ..plan(verb, kind) };
        let [near, _] = measure(Service::Rc, &plan, &plan).map(Result::unwrap);
        assert!(near[0].messages > 0, "{verb:?} {kind:?}");
    }
}

#[test]
fn another_seed_is_a_wrong_byte_and_says_which() {
    let near = plan(Verb::Send, Kind::Bandwidth);
    let far = Plan { seed: 8, ..near.clone() };
    let [_, far] = measure(Service::Rc, &near, &far);
    let text = far.unwrap_err().to_string();
    assert!(text.starts_with("1000 bytes from 127.0.0.1: byte 0 is"), "{text}");
}

#[test]
fn what_cannot_be_measured_is_refused_before_anything_happens() {
    let refused = |service, plan: &Plan| {
        let [near, _] = measure(service, plan, plan);
        near.unwrap_err().to_string()
    };
    let too_large = Plan { sizes: vec![2000], ..plan(Verb::Send, Kind::Bandwidth) };
    assert!(refused(Service::Ud, &too_large).contains("at most the path MTU of 1024 bytes"));
    assert_eq!(refused(Service::Uc, &plan(Verb::Read, Kind::Latency)), "Uc has no Read");
}

/// Notes whether the memory was written before its key was asked for.
struct Watched {
    rig: NativeRig,
    written: bool,
    told_empty: Cell<bool>,
}

impl Rig for Watched {
    fn limits(&self) -> Limits {
        self.rig.limits()
    }

    fn address(&self, ipv6: bool) -> Result<IpAddr, PerfError> {
        self.rig.address(ipv6)
    }

    fn qpn(&self, qp: usize) -> u32 {
        self.rig.qpn(qp)
    }

    fn region(&self) -> (u64, u32) {
        self.told_empty.set(self.told_empty.get() || !self.written);
        self.rig.region()
    }

    fn connect(&mut self, qp: usize, remote: &Remote) -> Result<(), PerfError> {
        self.rig.connect(qp, remote)
    }

    fn post_receive(&mut self, qp: usize, offset: u64, len: u32) -> Result<(), PerfError> {
        self.rig.post_receive(qp, offset, len)
    }

    fn post(&mut self, qp: usize, request: &Request, signals: &[u32]) -> Result<(), PerfError> {
        self.rig.post(qp, request, signals)
    }

    fn wait(&mut self, ended: &mut Vec<Ended>, timeout: Duration) -> Result<(), PerfError> {
        self.rig.wait(ended, timeout)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), PerfError> {
        self.written = true;
        self.rig.write(offset, bytes)
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<(), PerfError> {
        self.rig.read(offset, out)
    }

    fn trouble(&self) -> Option<String> {
        self.rig.trouble()
    }
}

/// A client that was quick read zeros, and its first WRITEs were wiped out.
#[test]
fn a_servers_memory_is_ready_before_the_client_has_its_key() {
    for kind in [Kind::Bandwidth, Kind::Latency] {
        let plan = plan(Verb::Read, kind);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let [client, server] = contexts().map(|context| {
            let limits = Limits {
                send_depth: plan.depth,
                recv_depth: plan.receive_depth,
                rd_atomic: 4,
                granularity: 1,
                service: Service::Rc,
            };
            NativeRig::new(context, plan.qps, plan.region_len(), limits).unwrap()
        });
        thread::scope(|scope| {
            let plan = &plan;
            let server = scope.spawn(move || {
                let mut rig = Watched { rig: server, written: false, told_empty: Cell::new(false) };
                let stream = listener.accept().unwrap().0;
                perf::run(&mut rig, stream, false, plan, &mut |_, _, _| {}).unwrap();
                rig.told_empty.get()
            });
            let (mut client, stream) = (client, TcpStream::connect(address).unwrap());
            perf::run(&mut client, stream, true, plan, &mut |_, _, _| {}).unwrap();
            assert!(!server.join().unwrap(), "{kind:?}");
        });
    }
}
