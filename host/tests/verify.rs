//! Two ends of `rnic verify` against each other, over a socket pair as QEMU's wire.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread;

use softrnic_device::ernic::Profile;
use softrnic_engine::PathMtu;
use softrnic_host::endpoint::{Endpoint, ErnicEndpoint, Model, NativeEndpoint};
use softrnic_host::link::QemuStream;
use softrnic_host::port::PortConfig;
use softrnic_host::setup::Setup;
use softrnic_host::verbs::{Context, Options};
use softrnic_host::verify::{GUARD, Operation, Plan, Summary, VerifyError, ask, serve};
use softrnic_sim::fault::{Injector, Rules};

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

/// Which device stands at an end.
#[derive(Clone, Copy, PartialEq)]
enum Face {
    Ernic,
    Native,
}

use Face::{Ernic, Native};

/// The two ends of a wire; the first one breaks things by these rules.
fn endpoints(faces: [Face; 2], faults: &str) -> [Box<dyn Endpoint + Send>; 2] {
    let (a, b) = UnixStream::pair().unwrap();
    let [first, second] = faces;
    [(1, first, a, faults), (2, second, b, "")].map(|(number, face, socket, faults)| {
        let link = QemuStream::over(socket.into(), format!("wire {number}"), 9000).unwrap();
        let setup = setup(number, faults);
        let ernic = |setup, link| {
            let profile = Profile::V4_0;
            ErnicEndpoint::<Model>::model(setup, link, profile, REGION, SIZE_MAX).unwrap()
        };
        match face {
            Ernic => Box::new(ernic(&setup, Box::new(link))) as Box<dyn Endpoint + Send>,
            Native => {
                let faults = Some(Injector::new(setup.faults, setup.seed));
                let options = Options { port: setup.port, faults, ..Options::default() };
                let context = Context::over(Box::new(link), options).unwrap();
                Box::new(NativeEndpoint::new(context, REGION).unwrap())
            }
        }
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

fn play(faces: [Face; 2], faults: &str, plan: &Plan) -> (Outcome, Outcome) {
    let [mut a, mut b] = endpoints(faces, faults);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || serve(&mut *b, listener.accept().unwrap().0, REGION));
    let client = ask(&mut *a, TcpStream::connect(address).unwrap(), plan);
    drop(a);
    (client, server.join().unwrap())
}

/// Both ends count the same, and nothing is wrong.
fn assert_clean(plan: &Plan, (client, server): (Outcome, Outcome)) {
    let (client, server) = (client.unwrap(), server.unwrap());
    assert_eq!(client, server);
    let atomics = [Operation::FetchAdd, Operation::CmpSwap];
    let atomics = plan.operations.iter().filter(|op| atomics.contains(op)).count();
    let rest = (plan.operations.len() - atomics) * plan.sizes.len();
    let steps = |count: usize| 2 * u64::from(plan.rounds) * count as u64;
    assert_eq!((client.transfers, client.wrong), (steps(rest + atomics), 0));
    // Both ends of an atomic receive something.
    assert_eq!(client.bytes, steps(rest + 2 * atomics) * plan.region_len() as u64);
}

#[test]
fn two_native_ends_do_everything_with_any_size() {
    for ipv6 in [false, true] {
        let sizes = vec![1, 2, 255, 257, 1024, SIZE_MAX];
        let plan = Plan { ipv6, sizes, operations: Operation::ALL.to_vec(), ..plan() };
        assert_clean(&plan, play([Native, Native], "", &plan));
    }
}

#[test]
fn an_ernic_and_a_native_end_understand_each_other() {
    for faces in [[Ernic, Native], [Native, Ernic]] {
        assert_clean(&plan(), play(faces, "", &plan()));
    }
}

#[test]
fn two_ernics_send_write_and_read_every_byte_over_ipv4_and_ipv6() {
    for ipv6 in [false, true] {
        let plan = Plan { ipv6, ..plan() };
        assert_clean(&plan, play([Ernic, Ernic], "", &plan));
    }
}

#[test]
fn lost_frames_change_no_byte() {
    let faults = "[[fault]]\naction = \"drop\"\nprobability = 0.05\n\
                  [[fault]]\naction = \"drop\"\ndirection = \"in\"\nprobability = 0.05\n";
    let plan = Plan { timeout: 8, retry: 7, ..plan() };
    for face in [Ernic, Native] {
        assert_clean(&plan, play([face, face], faults, &plan));
    }
}

#[test]
fn a_byte_that_is_changed_on_the_way_is_found() {
    // The ICRC is made right again, so that only the comparison can find it.
    let faults = "[[fault]]\naction = \"corrupt\"\nbyte = -10\nflip = 1\nicrc = \"redo\"\n\
                  opcode = \"WRITE\"\nnth = 3\n";
    let (client, server) = play([Ernic, Ernic], faults, &plan());
    assert_eq!((client.unwrap().wrong, server.unwrap().wrong), (1, 1));
}

#[test]
fn a_peer_that_vanishes_ends_both_in_an_error_that_names_it() {
    let faults = "[[fault]]\naction = \"drop\"\nopcode = \"WRITE\"\n";
    let plan = Plan { timeout: 8, retry: 1, ..plan() };
    for face in [Ernic, Native] {
        let (client, server) = play([face, face], faults, &plan);
        for error in [client.unwrap_err(), server.unwrap_err()] {
            let text = error.to_string();
            assert!(text.contains("write, 64 bytes") && text.contains("queue pair"), "{text}");
        }
    }
}

#[test]
fn what_the_other_end_cannot_do_is_said_before_anything_moves() {
    for (plan, words) in [
        (Plan { operations: vec![Operation::FetchAdd], ..plan() }, "ernic cannot do fetch_add"),
        (Plan { sizes: vec![63], ..plan() }, "multiples of 64 bytes, and 63 is none"),
        (Plan { sizes: vec![1 << 20], ..plan() }, "start this end with a larger --max-size"),
    ] {
        let (client, server) = play([Ernic, Ernic], "", &plan);
        let text = client.unwrap_err().to_string();
        assert!(text.contains(words), "{text}");
        assert!(server.unwrap_err().to_string().contains(words));
    }
}

#[test]
fn a_client_that_talks_nonsense_gets_no_panic() {
    for line in ["", "\n", "{}\n", "{\"type\":\"ready\"}\n", "{\"type\":\"hello\"}\n", "\u{0}\u{1}"]
    {
        let [_a, mut b] = endpoints([Native, Native], "");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.write_all(line.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let served = serve(&mut *b, listener.accept().unwrap().0, REGION);
        assert!(served.is_err(), "{line:?}");
        let mut answer = String::new();
        // A hello of nothing is refused in words; the rest is no message at all.
        let _ = BufReader::new(stream).read_line(&mut answer);
        assert_eq!(answer.contains("error"), line.contains("hello"), "{line:?}: {answer}");
    }
}
