//! `rnic serve --vfio-user`: which flags belong together, and that a client is served, traced and counted.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test's own helpers may panic")]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

fn rnic(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rnic"));
    command.arg("serve").args(arguments);
    command
}

#[test]
fn flags_that_need_each_other_say_so() {
    let card = ["--face", "ernic", "--vfio-user", "s", "--reconic", "--profile", "v4.0"];
    let card_and = ["--face", "ernic", "--vfio-user", "s", "--reconic", "--queue-pairs", "8"];
    let cases: [(&[&str], &str); 7] = [
        (&["--vfio-user", "s"], "add --face ernic"),
        (&["--face", "ernic"], "add --vfio-user SOCKET"),
        (&["--face", "ernic", "--trace", "registers"], "need --vfio-user"),
        (&["--face", "ernic", "--vfio-user", "s", "--profile", "v9"], "the profiles are v4.0"),
        (&card_and, "leave --queue-pairs away"),
        (&["--face", "ernic", "--vfio-user", "s", "--queue-pairs", "7"], "8 to 2048"),
        (&card, "--reconic has an ERNIC v3.1, not v4.0"),
    ];
    for (flags, expected) in cases {
        let done = rnic(&["--link", "none:"]).args(flags).output().unwrap();
        let said = String::from_utf8(done.stderr).unwrap();
        assert!(!done.status.success() && said.contains(expected), "{flags:?}: {said}");
    }
}

/// A message and its reply.
fn ask(client: &mut UnixStream, command: u8, body: &[u8]) -> Vec<u8> {
    let size = 16 + body.len() as u8;
    client.write_all(&[1, 0, command, 0, size, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    client.write_all(body).unwrap();
    let mut header = [0; 16];
    client.read_exact(&mut header).unwrap();
    assert_eq!(header[12..], [0; 4], "no error");
    let len = u32::from_le_bytes(*header[4..].first_chunk().unwrap()) as usize - 16;
    let mut reply = vec![0; len];
    client.read_exact(&mut reply).unwrap();
    reply
}

/// A served NIC with a client that has greeted it.
struct Served {
    folder: PathBuf,
    process: Child,
    out: BufReader<ChildStdout>,
    client: UnixStream,
    /// The other end of the cable.
    _listener: UnixListener,
}

impl Served {
    fn start(name: &str, flags: &[&str]) -> Self {
        let folder = format!("rnic-vfio-user-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        let (wire, socket) = (folder.join("wire"), folder.join("nic"));
        let listener = UnixListener::bind(&wire).unwrap();
        let link = format!("qemu-stream:{}", wire.display());
        let mut process = rnic(&["--face", "ernic", "--link", &link, "--vfio-user"])
            .arg(&socket)
            .args(flags)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert!(line.starts_with("QEMU: -device '{\"driver\":\"vfio-user-pci\""), "{line}");
        let mut client = UnixStream::connect(&socket).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        ask(&mut client, 1, &[0, 0, 0, 0, b'{', b'}', 0]);
        Self { folder, process, out, client, _listener: listener }
    }

    /// Ends it as a signal does. What it counted, and what it said.
    fn stop(mut self) -> (String, String) {
        kill_process(Pid::from_child(&self.process), Signal::TERM).unwrap();
        let mut counted = String::new();
        self.out.read_to_string(&mut counted).unwrap();
        let mut said = String::new();
        self.process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(self.process.wait().unwrap().success(), "{said}");
        assert!(!self.folder.join("nic").exists());
        std::fs::remove_dir_all(&self.folder).unwrap();
        (counted, said)
    }
}

#[test]
fn a_client_reads_registers_which_are_traced_and_counted_until_the_signal_comes() {
    let mut served = Served::start("trace", &["--trace", "registers"]);
    // XRNICCONF, in BAR 2.
    let reply = ask(&mut served.client, 9, &[0, 0, 0x10, 0, 0, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0]);
    assert_eq!(reply.len(), 20);
    let (counted, said) = served.stop();
    assert!(said.contains(" read  0x100000 XRNICCONF = 0x"), "{said}");
    let words: Vec<&str> = counted.split_whitespace().collect();
    assert!(words.windows(2).any(|pair| pair == ["messages", "2"]), "{counted}");
}

#[test]
fn reconics_card_has_its_registers_in_bar_2_and_its_memory_in_bar_4() {
    let mut served = Served::start("reconic", &["--reconic", "--profile", "v3.1"]);
    for (bar, len) in [(2, 4 << 20), (4, 256 << 20), (5, 0u64)] {
        let mut body = [0; 32];
        (body[0], body[8]) = (32, bar);
        let reply = ask(&mut served.client, 5, &body);
        assert_eq!(reply[16..24], len.to_le_bytes(), "BAR {bar}");
    }
    served.stop();
}
