//! Two ends of `rnic verify` against each other, over a socket pair as QEMU's wire.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use softrnic_device::ernic::Profile;
use softrnic_engine::{PathMtu, Psn};
use softrnic_host::endpoint::{Endpoint, ErnicEndpoint, Model, NativeEndpoint, Remote};
use softrnic_host::link::QemuStream;
use softrnic_host::port::PortConfig;
use softrnic_host::setup::Setup;
use softrnic_host::verbs::{Context, Options};
use softrnic_host::verify::{
    Operation, Plan, Played, Results, Script, Summary, VerifyError, ask, serve,
};
use softrnic_sim::fault::{Injector, Rules};

const SIZE_MAX: u32 = 16_384;
const REGION: usize = 64 << 10;

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
        script: None,
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
    let faults = "[[fault]]\naction = \"drop\"\nprobability = 0.02\n\
                  [[fault]]\naction = \"drop\"\ndirection = \"in\"\nprobability = 0.02\n";
    let plan = Plan { timeout: 14, retry: 7, ..plan() };
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
    let plan = Plan { timeout: 16, retry: 1, ..plan() };
    for face in [Ernic, Native] {
        let (client, server) = play([face, face], faults, &plan);
        for error in [client.unwrap_err(), server.unwrap_err()] {
            let text = error.to_string();
            assert!(text.contains("write, 64 bytes") && text.contains("queue pair"), "{text}");
        }
    }
}

#[test]
fn a_wire_that_is_cut_is_told_with_peer_and_queue_pair() {
    for face in [Ernic, Native] {
        let [mut a, b] = endpoints([face, face], "");
        let peer = b.local(false).unwrap();
        a.connect(&Remote {
            ip: peer.ip,
            qpn: peer.qpn,
            send_psn: Psn::new(1),
            receive_psn: Psn::new(2),
            mtu: PathMtu::M1024,
            timeout: 14,
            retry: 7,
            rnr_retry: 7,
            rd_atomic: 1,
        })
        .unwrap();
        drop(b);
        let error = loop {
            match a.wait(Duration::from_millis(1)) {
                Ok(None) => {}
                other => break other.unwrap_err().to_string(),
            }
        };
        let named = format!("to 10.0.0.2 queue pair {}: ", peer.qpn);
        assert!(error.starts_with("queue pair ") && error.contains(&named), "{error}");
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

/// Requests of both ends that any face can do, many in flight: WRITEs over each other, READs between them, SENDs.
fn script() -> Script {
    let requests = |salt: u64| -> String {
        let mut read = false;
        let mut request = |n: u64| {
            let op = ["write", "send", "read", "write"][(n * salt % 4) as usize];
            let (size, at) = (64 * (1 + n * 7 % 40), 64 * (1 + n * salt % 23));
            // A responder may put a READ off until after a WRITE that comes later.
            let wait = op == "write" && std::mem::take(&mut read);
            read |= op == "read";
            let from = 64 * (n % 24);
            format!(
                r#"{{"op": "{op}", "size": {size}, "at": {at}, "from": {from}, "wait": {wait}}}"#
            )
        };
        (0..60).map(&mut request).collect::<Vec<_>>().join(", ")
    };
    let text = format!(
        r#"{{"arena": 4096, "depth": 8, "client": [{}], "server": [{}]}}"#,
        requests(5),
        requests(11)
    );
    Script::parse(&text).unwrap()
}

#[test]
fn a_script_gives_the_same_memory_on_every_face_and_with_loss() {
    let lossy = "[[fault]]\naction = \"drop\"\nprobability = 0.02\n\
                 [[fault]]\naction = \"drop\"\ndirection = \"in\"\nprobability = 0.02\n";
    let results = |faces, faults: &str| -> Results {
        // A thread that is kept waiting is no dead peer: 8 s, and 0.5 s where losses are waited out.
        let timeout = if faults == lossy { 14 } else { 18 };
        let plan = Plan { script: Some(script()), timeout, retry: 7, ..plan() };
        let (client, server) = play(faces, faults, &plan);
        assert_eq!(server.unwrap().transfers, 120);
        client.unwrap().script.unwrap()
    };
    let wanted = results([Native, Native], "");
    assert_eq!(wanted.client.requests, vec!["success"; 60]);
    let sends = |played: &Played| played.receives.len();
    assert_eq!((sends(&wanted.client), sends(&wanted.server)), (15, 15));
    for faces in [[Native, Ernic], [Ernic, Native], [Ernic, Ernic], [Native, Native]] {
        for faults in ["", lossy] {
            let found = results(faces, faults);
            assert_eq!(found.client.memory, wanted.client.memory);
            assert_eq!(found.server.memory, wanted.server.memory);
        }
    }
    // Every SEND, because one that meets no receive goes again.
    let flipped = "[[fault]]\naction = \"corrupt\"\nbyte = -10\nflip = 1\nicrc = \"redo\"\n\
                   opcode = \"SEND\"\n";
    let broken = results([Native, Native], flipped);
    assert_eq!(broken.client.memory, wanted.client.memory);
    assert_ne!(broken.server.memory, wanted.server.memory);
}

#[test]
fn a_script_beyond_a_face_is_refused_in_words() {
    let text =
        r#"{"arena": 4096, "depth": 1, "server": [], "client": [{"op": "write", "size": 63}]}"#;
    for (text, why) in [
        (text.to_owned(), "moves multiples of 64 bytes, and a write does not"),
        (text.replace("write", "write_imm"), "ernic cannot do write_imm"),
        (
            text.replace("63", "64").replace("4096", "65536"),
            "start this end with a larger --max-size",
        ),
    ] {
        let plan = Plan { script: Some(Script::parse(&text).unwrap()), ..plan() };
        let (client, server) = play([Native, Ernic], "", &plan);
        let error = client.unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        assert!(server.unwrap_err().to_string().contains(why));
    }
    // The client's own device: it says so before it says anything to the server.
    let plan = Plan { script: Some(Script::parse(text).unwrap()), ..plan() };
    let (client, _) = play([Ernic, Native], "", &plan);
    let error = client.unwrap_err().to_string();
    assert!(error.contains("moves multiples of 64 bytes, and a write does not"), "{error}");
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
