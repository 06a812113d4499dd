//! `rnic ladder` as its users call it.
#![allow(clippy::unwrap_used, reason = "a test that cannot run its subject should fail")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use softrnic_host::capture::{CapturedPacket, Interface, Reader, Writer};

const SCENARIO: &str = r#"
seed = 7
[[node]]
name = "a"
face = "ernic"
mac = "02:00:00:00:00:0a"
ipv4 = "192.0.2.10"
ipv6 = "2001:db8::a"
[[node]]
name = "b"
face = "ernic"
mac = "02:00:00:00:00:0b"
ipv4 = "192.0.2.11"
ipv6 = "2001:db8::b"
[[link]]
between = ["a", "b"]
[[phase]]
from = "a"
to = "b"
operation = "send"
size = 5000
count = 20
path_mtu = 1024
loss = 0.05
[[phase]]
from = "a"
to = "b"
operation = "write"
size = 2000
count = 20
path_mtu = 256
loss = 0.05
"#;

/// A capture of a run with losses, in a directory of the test's own.
fn capture(test: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("ladder-{test}"));
    fs::create_dir_all(&here).unwrap();
    fs::write(here.join("s.toml"), SCENARIO).unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_rnic"));
    let output = run.current_dir(&here).args(["run", "s.toml"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stdout));
    here.join("rnic-out/capture.pcapng")
}

fn ladder(capture: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rnic"));
    command.arg("ladder").arg(capture).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn packets(path: &Path) -> Vec<CapturedPacket> {
    Reader::new(fs::File::open(path).unwrap()).unwrap().map(Result::unwrap).collect()
}

/// Numbers of the frames that have a mark, out of `--json`.
fn marked(output: &Output, mark: &str) -> Vec<u64> {
    let lines: Vec<_> = text(&output.stdout).lines().map(str::to_owned).collect();
    let objects = lines.iter().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let marked =
        objects.filter(|o| o["marks"].as_array().is_some_and(|m| m.contains(&mark.into())));
    marked.map(|object| object["frame"].as_u64().unwrap()).collect()
}

#[test]
fn a_loss_and_its_recovery_are_one_excerpt() {
    let capture = capture("excerpt");
    let output = ladder(&capture, &["--around", "lost", "--limit", "30"]);
    let shown = text(&output.stdout);
    assert!(output.status.success());
    assert!(shown.contains("192.0.2.10") && shown.contains("192.0.2.11"), "{shown}");
    for part in ["✕", "lost: by fault 1", "refused: psn_ahead", "nak=psn_sequence"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(shown.contains("retransmission"), "{shown}");
    assert!(shown.contains("stopped at --limit"), "{shown}");
    assert!(!shown.contains('\u{1b}'), "no colours into a pipe");
    let colored = ladder(&capture, &["--around", "lost", "--color", "always"]);
    assert!(text(&colored.stdout).contains('\u{1b}'));
}

/// The same packets as a capture of a real network shows them: no comments, no lost frames.
#[test]
fn what_was_sent_again_is_found_without_comments() {
    let capture = capture("bare");
    let mut writer = Writer::new(Vec::new(), &[Interface::default()]).unwrap();
    let mut again = Vec::new();
    let mut number = 0;
    for packet in packets(&capture) {
        if packet.comments.iter().any(|comment| comment.starts_with("lost")) {
            continue;
        }
        number += 1;
        // A packet whose first copy was lost before anybody saw it is no retransmission here.
        writer.packet(0, packet.time.unwrap(), &packet.frame, &[]).unwrap();
        if packet.comments.iter().any(|comment| comment == "retransmission") {
            again.push(number);
        }
    }
    let bare = capture.with_file_name("bare.pcapng");
    fs::write(&bare, writer.finish().unwrap()).unwrap();
    let output = ladder(&bare, &["--json"]);
    let found = marked(&output, "retransmission");
    assert!(!again.is_empty());
    // Nothing else is called so, and only what fills a gap at the end of all is missed.
    assert!(found.iter().all(|frame| again.contains(frame)), "{found:?} {again:?}");
    assert!(found.len() * 10 >= again.len() * 8, "{} of {}", found.len(), again.len());
    assert!(!marked(&output, "gap").is_empty());
    assert!(marked(&output, "lost").is_empty());
}

#[test]
fn one_queue_pair_is_shown_with_both_its_directions() {
    let capture = capture("qp");
    let all = text(&ladder(&capture, &["--json"]).stdout);
    let one = text(&ladder(&capture, &["--json", "--qp", "0x3"]).stdout);
    let expected: Vec<_> = all.lines().filter(|line| line.contains("\"qpn\":3,")).collect();
    assert!(!expected.is_empty() && expected.len() < all.lines().count());
    assert_eq!(one.lines().collect::<Vec<_>>(), expected);
    assert!(one.contains("\"name\":\"ACKNOWLEDGE\"") && one.contains("WRITE"), "{one}");
}

#[test]
fn frames_that_are_no_roce_are_counted_and_said() {
    let capture = capture("strangers");
    let interfaces = [Interface::default()];
    let mut writer = Writer::new(Vec::new(), &interfaces).unwrap();
    let first = packets(&capture).remove(0);
    let time = first.time.unwrap();
    writer.packet(0, time, &first.frame, &[]).unwrap();
    let mut arp = vec![0xFF; 60];
    arp[12..14].copy_from_slice(&[8, 6]);
    let mut lldp = arp.clone();
    lldp[12..14].copy_from_slice(&[0x88, 0xCC]);
    let mut web = first.frame.clone();
    web[36..38].copy_from_slice(&53u16.to_be_bytes());
    for frame in [&arp, &arp, &lldp, &web] {
        writer.packet(0, time, frame, &[]).unwrap();
    }
    let path = capture.with_file_name("strangers.pcapng");
    fs::write(&path, writer.finish().unwrap()).unwrap();
    let shown = text(&ladder(&path, &[]).stdout);
    assert!(shown.contains("1 of 1 RoCE packets shown"), "{shown}");
    assert!(shown.contains("4 other frames: ARP 2, LLDP 1, UDP to port 53 1"), "{shown}");
}

/// Classic pcap, raw IP, cut after 60 bytes of each packet: what a colleague may send.
#[test]
fn a_pcap_of_raw_ip_with_a_short_snap_length_is_read() {
    let capture = capture("raw");
    let mut file: Vec<u8> =
        [0xA1B2_C3D4u32, 0x0002_0004, 0, 0, 60, 101].map(u32::to_be_bytes).concat();
    let packets = packets(&capture);
    for packet in &packets {
        let ip = &packet.frame[14..];
        let cut = &ip[..ip.len().min(60)];
        let lengths = [1, 2, cut.len() as u32, ip.len() as u32];
        file.extend(lengths.map(u32::to_be_bytes).concat());
        file.extend(cut);
    }
    let path = capture.with_file_name("raw.pcap");
    fs::write(&path, file).unwrap();
    let facts = |path: &Path| -> Vec<_> {
        let lines = text(&ladder(path, &["--json"]).stdout);
        let values = lines.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap());
        values
            .map(|v| ["from", "to", "opcode", "psn", "qpn", "details"].map(|key| v[key].clone()))
            .collect()
    };
    let (raw, whole) = (facts(&path), facts(&capture));
    assert_eq!(raw.len(), packets.len());
    assert_eq!(raw, whole);
    let shown = text(&ladder(&path, &["--limit", "3"]).stdout);
    assert!(shown.contains("bytes recorded of"), "{shown}");
}

#[test]
fn mistakes_are_explained() {
    let output = ladder(Path::new("there-is-no-such-file"), &[]);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("cannot open there-is-no-such-file"));
    let capture = capture("mistakes");
    let output = ladder(&capture, &["--around", "love"]);
    assert!(text(&output.stderr).contains("retransmission"), "{}", text(&output.stderr));
    let bytes = fs::read(&capture).unwrap();
    let cut = capture.with_file_name("cut.pcapng");
    fs::write(&cut, &bytes[..bytes.len() - 7]).unwrap();
    let output = ladder(&cut, &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("RoCE packets shown"));
    assert!(text(&output.stderr).contains("cut off"), "{}", text(&output.stderr));
}

/// Frames of other makers, out of golden/: hardware of three vendors, and generated ones.
#[test]
fn packets_of_real_cards_are_drawn() {
    let golden = include_str!("../../golden/icrc-vectors.txt");
    let vectors = golden.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let bytes = |hex: &str| -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
    };
    let mut writer = Writer::new(Vec::new(), &[Interface::default()]).unwrap();
    let mut count = 0;
    for (i, vector) in vectors.enumerate() {
        let frame = bytes(vector.split_whitespace().nth(2).unwrap());
        writer.packet(0, softrnic_engine::Nanos(i as u64 * 1000), &frame, &[]).unwrap();
        count += 1;
    }
    let here = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ladder-golden.pcapng");
    fs::write(&here, writer.finish().unwrap()).unwrap();
    let lines = text(&ladder(&here, &["--json"]).stdout);
    assert_eq!(lines.lines().count(), count);
    // H02: an ACK between two cards, which is no trouble.
    let line = |frame: usize| {
        lines.lines().find(|line| line.starts_with(&format!("{{\"frame\":{frame},"))).unwrap()
    };
    assert!(line(2).contains("\"from\":\"192.168.70.4\",\"to\":\"192.168.70.6\""), "{}", line(2));
    assert!(line(2).contains("\"opcode\":17,\"name\":\"ACKNOWLEDGE\""), "{}", line(2));
    assert!(line(2).contains("\"marks\":[]"), "{}", line(2));
    // P02: an ACK with payload, which no receiver takes.
    assert!(line(6).contains("payload_not_allowed"), "{}", line(6));
    let shown = text(&ladder(&here, &[]).stdout);
    assert!(shown.contains(&format!("{count} of {count} RoCE packets shown")), "{shown}");
}
