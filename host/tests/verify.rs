//! Two ends of `rnic verify` against each other, over a socket pair as QEMU's wire.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread;

use softrnic_device::ernic::Profile;
use softrnic_engine::PathMtu;
use softrnic_host::endpoint::{ErnicEndpoint, Model};
use softrnic_host::link::QemuStream;
use softrnic_host::port::PortConfig;
use softrnic_host::setup::Setup;
use softrnic_host::verify::{GUARD, Operation, Plan, Summary, VerifyError, ask, serve};
use softrnic_sim::fault::Rules;

const SIZE_MAX: u32 = 16_384;
const REGION: usize = SIZE_MAX as usize + 2 * GUARD;

fn setup(number: u8, faults: &str) -> Setup {
    Setup {
        link: "qemu-stream:unused".parse().unwrap(),
        port: PortConfig {
            mac: [2, 0, 0, 0, 0, number],
            ipv4: Some((Ipv4Addr::new(10, 0, 0, number), 24)),
            ipv6: Some((Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number.into()), 64)),
            mtu: 9000,
            ..PortConfig::default()
        },
        strict_icrc: false,
        capture: None,
        faults: Rules::parse("faults.toml", faults).unwrap(),
        seed: 7,
    }
}

fn endpoints(faults: &str) -> [ErnicEndpoint<Model>; 2] {
    let (a, b) = UnixStream::pair().unwrap();
    [(1, a, faults), (2, b, "")].map(|(number, socket, faults)| {
        let link = QemuStream::over(socket.into(), format!("wire {number}"), 9000).unwrap();
        let (setup, profile) = (setup(number, faults), Profile::V4_0);
        ErnicEndpoint::model(&setup, Box::new(link), profile, REGION, SIZE_MAX).unwrap()
    })
}

fn plan() -> Plan {
    Plan {
        seed: 42,
        mtu: PathMtu::M1024,
        rounds: 2,
        sizes: vec![64, 1024, 1088, SIZE_MAX],
        operations: vec![Operation::Send, Operation::Write, Operation::Read],
        ipv6: false,
        timeout: 14,
        retry: 6,
    }
}

type Outcome = Result<Summary, VerifyError>;

fn play(faults: &str, plan: &Plan) -> (Outcome, Outcome) {
    let [mut a, mut b] = endpoints(faults);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || serve(&mut b, listener.accept().unwrap().0, REGION));
    let client = ask(&mut a, TcpStream::connect(address).unwrap(), plan);
    drop(a);
    (client, server.join().unwrap())
}

/// Both ends count the same, and nothing is wrong.
fn assert_clean(plan: &Plan, (client, server): (Outcome, Outcome)) {
    let (client, server) = (client.unwrap(), server.unwrap());
    assert_eq!(client, server);
    let steps = plan.rounds as usize * plan.operations.len() * plan.sizes.len() * 2;
    assert_eq!((client.transfers, client.wrong), (steps as u64, 0));
    assert_eq!(client.bytes, steps as u64 * plan.region_len() as u64);
}

#[test]
fn two_ernics_send_write_and_read_every_byte_over_ipv4_and_ipv6() {
    for ipv6 in [false, true] {
        let plan = Plan { ipv6, ..plan() };
        assert_clean(&plan, play("", &plan));
    }
}

#[test]
fn lost_frames_change_no_byte() {
    let faults = "[[fault]]\naction = \"drop\"\nprobability = 0.05\n\
                  [[fault]]\naction = \"drop\"\ndirection = \"in\"\nprobability = 0.05\n";
    let plan = Plan { timeout: 8, retry: 7, ..plan() };
    assert_clean(&plan, play(faults, &plan));
}

#[test]
fn a_byte_that_is_changed_on_the_way_is_found() {
    // The ICRC is made right again, so that only the comparison can find it.
    let faults = "[[fault]]\naction = \"corrupt\"\nbyte = -10\nflip = 1\nicrc = \"redo\"\n\
                  opcode = \"WRITE\"\nnth = 3\n";
    let (client, server) = play(faults, &plan());
    assert_eq!((client.unwrap().wrong, server.unwrap().wrong), (1, 1));
}

#[test]
fn a_peer_that_vanishes_ends_both_in_an_error_that_names_it() {
    let faults = "[[fault]]\naction = \"drop\"\nopcode = \"WRITE\"\n";
    let plan = Plan { timeout: 8, retry: 1, ..plan() };
    let (client, server) = play(faults, &plan);
    for error in [client.unwrap_err(), server.unwrap_err()] {
        let text = error.to_string();
        assert!(text.contains("write, 64 bytes") && text.contains("queue pair 2"), "{text}");
    }
}

#[test]
fn what_the_other_end_cannot_do_is_said_before_anything_moves() {
    for (plan, words) in [
        (Plan { operations: vec![Operation::FetchAdd], ..plan() }, "ernic cannot do fetch_add"),
        (Plan { sizes: vec![63], ..plan() }, "multiples of 64 bytes, and 63 is none"),
        (Plan { sizes: vec![1 << 20], ..plan() }, "start this end with a larger --max-size"),
    ] {
        let (client, server) = play("", &plan);
        let text = client.unwrap_err().to_string();
        assert!(text.contains(words), "{text}");
        assert!(server.unwrap_err().to_string().contains(words));
    }
}

#[test]
fn a_client_that_talks_nonsense_gets_no_panic() {
    for line in ["", "\n", "{}\n", "{\"type\":\"ready\"}\n", "{\"type\":\"hello\"}\n", "\u{0}\u{1}"]
    {
        let [_a, mut b] = endpoints("");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.write_all(line.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let served = serve(&mut b, listener.accept().unwrap().0, REGION);
        assert!(served.is_err(), "{line:?}");
        let mut answer = String::new();
        // A hello of nothing is refused in words; the rest is no message at all.
        let _ = BufReader::new(stream).read_line(&mut answer);
        assert_eq!(answer.contains("error"), line.contains("hello"), "{line:?}: {answer}");
    }
}
