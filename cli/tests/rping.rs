//! `rnic rping` and `rnic ping` against themselves, over UNIX sockets that the test joins, and what they say when
//! the other end goes.
#![allow(clippy::unwrap_used, reason = "a test's own functions may panic")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;

/// A wire with two ends, in a directory of its own that is removed at the end.
struct Wire(PathBuf);

impl Wire {
    /// Both ends exist from now on; what is written to one comes out of the other.
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rnic-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let ends = ["client", "server"].map(|end| UnixListener::bind(path.join(end)).unwrap());
        thread::spawn(move || {
            let [a, b] = ends.map(|end| end.accept().unwrap().0);
            let (a2, b2) = (a.try_clone().unwrap(), b.try_clone().unwrap());
            thread::spawn(move || carry(a, b));
            carry(b2, a2);
        });
        Self(path)
    }

    fn link(&self, end: &str) -> String {
        format!("qemu-stream:{}", self.0.join(end).display())
    }
}

fn carry(mut from: UnixStream, mut to: UnixStream) {
    // Ends when either end goes.
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(std::net::Shutdown::Both);
}

impl Drop for Wire {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

struct Server {
    child: Child,
    errors: BufReader<std::process::ChildStderr>,
}

impl Server {
    /// Starts a server and waits until it listens.
    fn start(wire: &Wire, args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rnic"));
        command.args(args).args(["--link", &wire.link("server")]);
        command.args(["--address", "10.0.0.2/24", "--address", "fd00::2/64"]);
        let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("listening on 10.0.0.2") {
            line.clear();
            assert_ne!(errors.read_line(&mut line).unwrap(), 0, "it has ended");
        }
        Self { child, errors }
    }

    /// Waits for its end: exit status, and what it printed.
    fn end(mut self) -> (Option<i32>, String, String) {
        let (mut out, mut errors) = (String::new(), String::new());
        self.child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        self.errors.read_to_string(&mut errors).unwrap();
        (self.child.wait().unwrap().code(), out, errors)
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

fn client(wire: &Wire, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rnic"));
    command.args(args).args(["--link", &wire.link("client")]);
    command.args(["--address", "10.0.0.1/24", "--address", "fd00::1/64"]);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn good(output: &Output) -> String {
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}: {out}{errors}", output.status);
    text(&output.stdout)
}

/// Faces of client and server.
const FACES: [[&str; 2]; 4] =
    [["native", "native"], ["ernic", "ernic"], ["ernic", "native"], ["native", "ernic"]];

#[test]
fn rounds_of_both_families_and_faces_are_as_they_were_sent() {
    for [ours, theirs] in FACES {
        // ERNIC moves multiples of 64 bytes.
        let (rounds, size) =
            if [ours, theirs] == ["native"; 2] { ("1000", "100") } else { ("100", "640") };
        for address in ["10.0.0.2", "fd00::2"] {
            let wire = Wire::new("rping");
            let server = ["rping", "-s", "-p", "7200", "--json", "--face", theirs];
            let server = Server::start(&wire, &server);
            let args = ["rping", "-c", "-a", address, "-p", "7200", "-C", rounds, "-V", "-S", size];
            let capture = wire.0.join("c.pcapng");
            let more = ["--face", ours, "--json", "--capture", capture.to_str().unwrap()];
            let output = client(&wire, &[&args[..], &more].concat()).output().unwrap();
            let said = good(&output);
            let wanted = format!(r#""rounds":{rounds},"size":{size}"#);
            assert!(said.contains(&format!(r#"{wanted},"validated":true"#)), "{said}");
            let (status, out, errors) = server.end();
            assert_eq!(status, Some(0), "{out}{errors}");
            assert!(out.contains(&wanted), "{out}");
            assert!(capture.metadata().unwrap().len() > 50_000);
        }
    }
}

#[test]
fn an_odd_number_of_bytes_is_refused_where_the_device_cannot_move_it() {
    let wire = Wire::new("rping-odd");
    let server = Server::start(&wire, &["rping", "-s", "--face", "ernic"]);
    let args = ["rping", "-c", "-a", "10.0.0.2", "-C", "1", "-S", "100"];
    let output = client(&wire, &args).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let (status, _, errors) = server.end();
    assert_eq!(status, Some(1));
    assert!(errors.contains("10.0.0.1 (its QP 0x"), "{errors}");
    assert!(errors.contains("100 bytes; this device moves multiples of 64 only"), "{errors}");
    for args in
        [&["rping", "-c", "-a", "10.0.0.2", "-S", "100"][..], &["ping", "10.0.0.2", "--op", "read"]]
    {
        let wire = Wire::new("rping-refused");
        let output = client(&wire, &[args, &["--face", "ernic"]].concat()).output().unwrap();
        let said = text(&output.stderr);
        assert!(said.contains("ernic") && output.status.code() == Some(1), "{said}");
    }
}

#[test]
fn verbose_sides_print_pings_and_pongs_as_the_tool_does() {
    let wire = Wire::new("rping-v");
    let server = Server::start(&wire, &["rping", "-s", "-v"]);
    let args = ["rping", "-c", "-a", "10.0.0.2", "-C", "2", "-v", "-S", "26"];
    let said = good(&client(&wire, &args).output().unwrap());
    let pongs = "ping data: rdma-ping-0: ABCDEFGHIJKL\nping data: rdma-ping-1: BCDEFGHIJKLM\n";
    assert!(said.starts_with(pongs), "{said}");
    let (status, out, _) = server.end();
    assert_eq!(status, Some(0));
    assert!(out.starts_with("server ping data: rdma-ping-0: ABCDEFGHIJKL\n"), "{out}");
}

#[test]
fn nobody_who_listens_is_said_at_once() {
    let wire = Wire::new("rping-no");
    let server = Server::start(&wire, &["rping", "-s", "-p", "1"]);
    let output = client(&wire, &["rping", "-c", "-a", "10.0.0.2", "-p", "2"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("10.0.0.2") && said.contains("nobody listens"), "{said}");
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.end().0, Some(0));
}

#[test]
fn a_peer_that_is_killed_is_named_with_its_queue_pair() {
    for [ours, theirs] in FACES {
        let wire = Wire::new("rping-kill");
        let server = Server::start(&wire, &["rping", "-s", "-v", "--face", theirs]);
        let args = ["rping", "-c", "-a", "10.0.0.2", "--ack-timeout", "10", "--retries", "3"];
        let mut command = client(&wire, &[&args[..], &["--face", ours]].concat());
        let mut client = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let Server { mut child, errors: _open } = server;
        // It has played a round.
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut String::new()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let mut said = String::new();
        client.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(client.wait().unwrap().code(), Some(1));
        // Whichever is noticed first: the wire breaks with the peer.
        let why = said.contains("retries are used up") || said.contains(" is gone");
        assert!(said.contains("10.0.0.2 (its QP 0x") && why, "{said}");
        assert_eq!(said.lines().filter(|line| line.starts_with("error:")).count(), 1, "{said}");
    }
}

#[test]
fn pings_come_back_and_their_times_are_told() {
    for [ours, theirs, address, op] in [
        ["native", "native", "10.0.0.2", "send"],
        ["native", "native", "fd00::2", "read"],
        ["ernic", "ernic", "10.0.0.2", "send"],
        ["ernic", "native", "fd00::2", "send"],
        ["native", "ernic", "10.0.0.2", "send"],
    ] {
        let wire = Wire::new("ping");
        let server = Server::start(&wire, &["ping", "--serve", "--face", theirs]);
        let args = ["ping", address, "-c", "100", "-i", "0", "-s", "1000", "--op", op, "--json"];
        let args = [&args[..], &["--face", ours]].concat();
        let said = good(&client(&wire, &args).output().unwrap());
        let summary: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!(
            (&summary["sent"], &summary["answered"], &summary["lost"]),
            (&100.into(), &100.into(), &0.into())
        );
        let time = |name: &str| summary["round_trip"][name].as_u64().unwrap();
        assert!(0 < time("min_ns") && time("min_ns") <= time("p50_ns"));
        assert!(time("p50_ns") <= time("p99_ns") && time("p99_ns") <= time("max_ns"));
        server.signal(rustix::process::Signal::INT);
        assert_eq!(server.end().0, Some(0));
    }
}

#[test]
fn a_nic_that_is_served_sends_pings_back() {
    let wire = Wire::new("serve-echo");
    let server = Server::start(&wire, &["serve", "--echo-port", "7480"]);
    let args = ["ping", "fd00::2", "-p", "7480", "-c", "50", "-i", "0", "-s", "3000", "--json"];
    let said = good(&client(&wire, &args).output().unwrap());
    let summary: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&summary["answered"], &summary["lost"]), (&50.into(), &0.into()));
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.end().0, Some(0));
}

#[test]
fn a_peer_that_stands_still_is_found_out_on_either_face() {
    for ours in ["native", "ernic"] {
        let wire = Wire::new("rping-still");
        let server = Server::start(&wire, &["rping", "-s", "-v"]);
        let args = ["rping", "-c", "-a", "10.0.0.2", "--ack-timeout", "10", "--retries", "3"];
        let mut command = client(&wire, &[&args[..], &["--face", ours]].concat());
        let mut client = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let Server { mut child, errors: _open } = server;
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut String::new()).unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        let mut said = String::new();
        client.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(client.wait().unwrap().code(), Some(1));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(said.contains("10.0.0.2 (its QP 0x"), "{said}");
        assert!(said.contains("does not answer, and all retries are used up"), "{said}");
    }
}

#[test]
fn rounds_without_end_stop_when_told_to() {
    for [ours, theirs] in [["native", "ernic"], ["ernic", "native"]] {
        let wire = Wire::new("rping-stop");
        let Server { mut child, errors: _open } =
            Server::start(&wire, &["rping", "-s", "-v", "--face", theirs]);
        let mut command =
            client(&wire, &["rping", "-c", "-a", "10.0.0.2", "--face", ours, "--json"]);
        let client = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        for _ in 0..10 {
            out.read_line(&mut String::new()).unwrap();
        }
        // What the server prints besides must not stop it.
        let rest = thread::spawn(move || out.read_to_string(&mut String::new()));
        let pid = rustix::process::Pid::from_child(&client);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let said = client.wait_with_output().unwrap();
        let summary: serde_json::Value = serde_json::from_str(&good(&said)).unwrap();
        // It would play thousands until there is a pause.
        let rounds = summary["rounds"].as_u64().unwrap();
        assert!((9..1000).contains(&rounds), "{summary}");
        rest.join().unwrap().unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
}
