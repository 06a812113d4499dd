//! `rnic serve` as an operator meets it: a process on a link whose other end is this test, asked by its
//! sockets, broken on purpose, unplugged, and stopped by a signal.
#![allow(clippy::unwrap_used, reason = "clippy knows test functions only, not what they share")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use softrnic_host::capture::Reader;

/// Nothing here takes this long.
const PATIENCE: Duration = Duration::from_secs(30);

const FAULTS: &str = "[[fault]]\nname = \"twice\"\naction = \"duplicate\"\n";

/// A device process, the directory that it runs in, and the other end of its link.
struct Served {
    dir: PathBuf,
    process: Child,
    /// Lines of its standard error.
    said: mpsc::Receiver<String>,
    listener: UnixListener,
    wire: UnixStream,
}

impl Served {
    /// Starts a process with these flags beside its link's, and takes its connection.
    fn start(name: &str, flags: &[&str]) -> Self {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("serve").join(name);
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("faults.toml"), FAULTS).unwrap();
        let config = "link = \"qemu-stream:wire.sock\"\naddress = [\"10.9.0.1/24\"]\n\
                      faults = \"faults.toml\"\ncapture = \"wire.pcapng\"\ncontrol = \"rnic.sock\"\n\
                      metrics = \"127.0.0.1:0\"\n";
        fs::write(dir.join("rnic.toml"), config).unwrap();
        let listener = UnixListener::bind(dir.join("wire.sock")).unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_rnic"))
            .current_dir(&dir)
            .arg("serve")
            .args(flags)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (line, said) = mpsc::channel();
        let stderr = BufReader::new(process.stderr.take().unwrap());
        std::thread::spawn(move || {
            stderr.lines().map_while(Result::ok).all(|text| line.send(text).is_ok())
        });
        let wire = accept(&listener);
        Self { dir, process, said, listener, wire }
    }

    /// The next line that begins so; what comes before is passed over.
    fn says(&self, beginning: &str) -> String {
        loop {
            let line = self.said.recv_timeout(PATIENCE).unwrap();
            if line.starts_with(beginning) {
                return line;
            }
        }
    }

    /// Has it answer the ARP request of a peer, and returns how many answers came before the one to
    /// another peer that asks afterwards.
    fn answers(&mut self, peer: u8) -> usize {
        self.send(&arp_request(peer));
        self.send(&arp_request(peer + 1));
        let mut count = 0;
        loop {
            let frame = self.receive();
            // ARP answer, and whom to.
            assert_eq!(frame[20..22], [0, 2], "{frame:02x?}");
            match frame[5] {
                to if to == peer => count += 1,
                to if to == peer + 1 => return count,
                _ => {}
            }
        }
    }

    fn send(&mut self, frame: &[u8]) {
        self.wire.write_all(&(frame.len() as u32).to_be_bytes()).unwrap();
        self.wire.write_all(frame).unwrap();
    }

    fn receive(&mut self) -> Vec<u8> {
        let mut len = [0; 4];
        self.wire.read_exact(&mut len).unwrap();
        let mut frame = vec![0; u32::from_be_bytes(len) as usize];
        self.wire.read_exact(&mut frame).unwrap();
        frame
    }

    fn rnic(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_rnic")).current_dir(&self.dir).args(args).output().unwrap()
    }

    fn prints(&self, args: &[&str]) -> String {
        let output = self.rnic(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn ask(&self, request: &str) -> Value {
        let mut socket = UnixStream::connect(self.dir.join("rnic.sock")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        writeln!(socket, "{request}").unwrap();
        let mut answer = String::new();
        BufReader::new(socket).read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap()
    }

    fn signal(&mut self, signal: Signal) -> ExitStatus {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
        self.process.wait().unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn accept(listener: &UnixListener) -> UnixStream {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let limit = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
    let mut fds = [PollFd::new(listener, PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&limit)), Ok(1), "nobody connects");
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Who has 10.9.0.1? Tell 10.9.0.`peer`.
fn arp_request(peer: u8) -> Vec<u8> {
    let mac = [2, 0, 0, 0, 0, peer];
    let mut frame = vec![0xFF; 6];
    frame.extend(mac);
    frame.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(mac);
    frame.extend([10, 9, 0, peer, 0, 0, 0, 0, 0, 0, 10, 9, 0, 1]);
    frame
}

fn scrape(address: &str) -> String {
    let host = address.strip_prefix("metrics: http://").unwrap().strip_suffix("/metrics").unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    assert!(
        page.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text"),
        "{page}"
    );
    assert!(page.ends_with("# EOF\n"), "{page}");
    page
}

#[test]
fn a_device_answers_its_sockets_survives_its_link_and_stops_in_order() {
    let mut served = Served::start("whole", &["--config", "rnic.toml"]);
    let metrics = served.says("metrics: ");
    served.says("link up: qemu-stream:wire.sock");

    // The rule is in force, then off, then on again.
    assert_eq!(served.answers(2), 2);
    let line = served.prints(&["fault", "--socket", "rnic.sock", "1", "off"]);
    assert!(line.starts_with("fault 1 \"twice\" off: duplicate"), "{line}");
    assert_eq!(served.answers(4), 1);
    served.prints(&["fault", "--socket", "rnic.sock", "1", "on"]);
    assert_eq!(served.answers(6), 2);

    let shown = served.prints(&["show", "--socket", "rnic.sock"]);
    for wanted in [
        "hca_id:\trnic0\n",
        "link qemu-stream:wire.sock up mtu 1500 lost 0\n",
        "neighbour 10.9.0.6 lladdr 02:00:00:00:00:06 reachable\n",
        "fault 1 \"twice\" on: duplicate",
        "neighbour_answers 6\n",
    ] {
        assert!(shown.contains(wanted), "{wanted:?} in\n{shown}");
    }
    let page = scrape(&metrics);
    for wanted in [
        "softrnic_link_up{device=\"rnic0\"} 1.0\n",
        "softrnic_port_neighbour_answers_total{device=\"rnic0\"} 6\n",
        "softrnic_link_rx_frames_total{device=\"rnic0\"} 6\n",
        "softrnic_fault_on{device=\"rnic0\",rule=\"1\"} 1.0\n",
        "softrnic_fault_frames_copies_total{device=\"rnic0\"} 4\n",
        "softrnic_sent_pkts_total{device=\"rnic0\"} 0\n",
    ] {
        assert!(page.contains(wanted), "{wanted:?} in\n{page}");
    }

    // The other end goes away, and comes back.
    served.wire = UnixStream::pair().unwrap().0;
    let lost = served.says("link down: ");
    assert!(lost.contains("qemu-stream:wire.sock is gone"), "{lost}");
    served.wire = accept(&served.listener);
    served.says("link up: ");
    assert_eq!(served.answers(8), 2);
    let link = served.ask(r#"{"command": "link"}"#);
    assert_eq!((&link["ok"]["lost"], &link["ok"]["up"]), (&json!(1), &json!(true)));

    assert_eq!(served.signal(Signal::TERM).code(), Some(0));
    assert!(!served.dir.join("rnic.sock").exists());
    // Closed in order: 8 requests, 8 answers, and 6 copies.
    let capture = fs::File::open(served.dir.join("wire.pcapng")).unwrap();
    assert_eq!(Reader::new(capture).unwrap().map(Result::unwrap).count(), 22);
}

#[test]
fn a_link_that_went_away_is_reported_once_however_often_it_is_tried() {
    let mut served = Served::start("unplugged", &["--config", "rnic.toml"]);
    served.says("link up: ");
    let wire = served.dir.join("wire.sock");
    fs::remove_file(&wire).unwrap();
    served.listener = UnixListener::bind(served.dir.join("elsewhere")).unwrap();
    served.wire = UnixStream::pair().unwrap().0;
    served.says("link down: ");
    assert_eq!(served.ask(r#"{"command": "link"}"#)["ok"]["up"], json!(false));
    // It is back after some attempts.
    served.listener = UnixListener::bind(&wire).unwrap();
    served.wire = accept(&served.listener);
    assert!(served.said.recv_timeout(PATIENCE).unwrap().starts_with("link up: "));
    assert_eq!(served.ask(r#"{"command": "stop"}"#), json!({ "ok": "stopping" }));
    assert_eq!(served.process.wait().unwrap().code(), Some(0));
}

#[test]
fn a_wrong_request_is_answered_with_what_would_be_right() {
    let mut served = Served::start("wrong", &["--config", "rnic.toml"]);
    served.says("link up: ");
    for (request, wanted) in [
        (r#"{"command": "stat"}"#, "expected one of `state`, `counters`"),
        (
            r#"{"command": "fault", "rule": 2, "on": true}"#,
            "there is no rule 2: they are numbered 1 to 1",
        ),
        (r#"{"command": "fault", "rule": 1}"#, "missing field `on`"),
        ("state", "expected"),
    ] {
        let answer = served.ask(request);
        assert!(answer["error"].as_str().unwrap().contains(wanted), "{answer}");
    }
    let endless = "x".repeat(70_000);
    assert!(served.ask(&endless)["error"].as_str().unwrap().contains("one line of at most"));
    let output = served.rnic(&["fault", "--socket", "rnic.sock", "0", "on"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && stderr.contains("there is no rule 0"), "{stderr}");
    assert_eq!(served.signal(Signal::INT).code(), Some(0));
}

#[test]
fn flags_say_the_same_as_a_file() {
    let flags = ["--link", "qemu-stream:wire.sock", "--address", "10.9.0.1/24", "--name", "nic7"];
    let mut served = Served::start("flags", &[&flags[..], &["--control", "rnic.sock"]].concat());
    served.says("link up: ");
    assert_eq!(served.answers(2), 1);
    let shown = served.prints(&["show", "--socket", "rnic.sock", "--only", "dev"]);
    assert!(shown.starts_with("hca_id:\tnic7\n"), "{shown}");
    let second =
        served.rnic(&["serve", "--link", "qemu-stream:wire.sock", "--control", "rnic.sock"]);
    let stderr = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(stderr.contains("cannot listen on rnic.sock: Address already in use"), "{stderr}");
    assert_eq!(served.signal(Signal::TERM).code(), Some(0));
}

#[test]
fn what_cannot_start_says_why() {
    let served = Served::start("start", &["--config", "rnic.toml"]);
    fs::write(served.dir.join("typo.toml"), "link = \"qemu-stream:x\"\nadress = []\n").unwrap();
    for (args, wanted) in [
        (&["serve"][..], "give --link URL, or --config FILE"),
        (&["serve", "--config", "typo.toml"], "typo.toml:2:1: unknown field `adress`"),
        (&["serve", "--config", "no.toml"], "--config no.toml"),
        (&["serve", "--config", "rnic.toml", "--seed", "2"], "cannot be used with"),
        (&["serve", "--link", "qemu-stream:none"], "start QEMU"),
        (&["serve", "--link", "qemu-stream:wire.sock", "--capture", "no/x"], "capture no/x"),
        (&["serve", "--link", "qemu-stream:none", "--face", "ernic"], "add --vfio-user SOCKET"),
        (
            &["serve", "--link", "qemu-stream:none", "--face", "ernic", "--echo-port", "1"],
            "--echo-port: ",
        ),
        (&["show", "--socket", "none"], "is `rnic serve --control` running there?"),
    ] {
        let output = served.rnic(args);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && stderr.contains(wanted), "{args:?}: {stderr}");
    }
}
