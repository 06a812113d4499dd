//! `rnic serve --vfio-user`: which flags belong together, and that a client is served, traced and counted.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test's own helpers may panic")]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

fn rnic(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rnic"));
    command.arg("serve").args(arguments);
    command
}

#[test]
fn flags_that_need_each_other_say_so() {
    let cases: [(&[&str], &str); 4] = [
        (&["--vfio-user", "s"], "add --face ernic"),
        (&["--face", "ernic"], "add --vfio-user SOCKET"),
        (&["--face", "ernic", "--trace", "registers"], "need --vfio-user"),
        (&["--face", "ernic", "--vfio-user", "s", "--profile", "v9"], "the profiles are v4.0"),
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

#[test]
fn a_client_reads_registers_which_are_traced_and_counted_until_the_signal_comes() {
    let folder = std::env::temp_dir().join(format!("rnic-vfio-user-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (wire, socket) = (folder.join("wire"), folder.join("nic"));
    // The other end of the cable.
    let _listener = UnixListener::bind(&wire).unwrap();
    let link = format!("qemu-stream:{}", wire.display());
    let mut served =
        rnic(&["--face", "ernic", "--link", &link, "--trace", "registers", "--vfio-user"])
            .arg(&socket)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
    let mut out = BufReader::new(served.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert!(line.starts_with("QEMU: -device '{\"driver\":\"vfio-user-pci\""), "{line}");
    let mut client = UnixStream::connect(&socket).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    ask(&mut client, 1, &[0, 0, 0, 0, b'{', b'}', 0]);
    // XRNICCONF, in BAR 2.
    let reply = ask(&mut client, 9, &[0, 0, 0x10, 0, 0, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0]);
    assert_eq!(reply.len(), 20);
    let pid = Pid::from_child(&served);
    kill_process(pid, Signal::TERM).unwrap();
    let mut counted = String::new();
    out.read_to_string(&mut counted).unwrap();
    let mut said = String::new();
    served.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(served.wait().unwrap().success(), "{said}");
    assert!(said.contains(" read  0x100000 XRNICCONF = 0x"), "{said}");
    let words: Vec<&str> = counted.split_whitespace().collect();
    assert!(words.windows(2).any(|pair| pair == ["messages", "2"]), "{counted}");
    assert!(!socket.exists());
    std::fs::remove_dir_all(&folder).unwrap();
}
