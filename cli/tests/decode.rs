//! `rnic decode` as its users call it.
#![allow(clippy::unwrap_used, reason = "a test that cannot run its subject should fail")]

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use softrnic_engine::Nanos;
use softrnic_host::capture::{Interface, Writer};

/// RC SEND_ONLY of 16 bytes, vector G01.
const SEND: &str = "02000000000202000000000108004502003c123440004011a477c0000201c0000202c12312b7002800000400\
                    ffff0000001180000100030a11181f262d343b424950575e656c41c977c1";

fn rnic(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rnic"));
    command.arg("decode").args(args);
    command
}

fn with_stdin(args: &[&str], input: &[u8]) -> Output {
    let mut child = rnic(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn send() -> Vec<u8> {
    (0..SEND.len()).step_by(2).map(|i| u8::from_str_radix(&SEND[i..i + 2], 16).unwrap()).collect()
}

/// A capture of a good frame and of one with a wrong ICRC.
fn capture() -> Vec<u8> {
    let interface = Interface { name: "a.eth".into(), description: String::new() };
    let mut writer = Writer::new(Vec::new(), &[interface]).unwrap();
    let mut bad = send();
    *bad.last_mut().unwrap() ^= 1;
    writer.packet(0, Nanos(1_500), &send(), &[]).unwrap();
    writer.packet(0, Nanos(2_000_000_001), &bad, &["refused: icrc_wrong"]).unwrap();
    writer.finish().unwrap()
}

/// A file for one test; tests run at the same time, so each has its own name.
fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn a_frame_given_in_hex_is_shown_as_a_tree() {
    let output = rnic(&["--hex", SEND]).output().unwrap();
    assert_eq!(text(&output.stderr), "");
    assert!(output.status.success());
    let out = text(&output.stdout);
    assert!(out.starts_with(
        "frame 1: 74 bytes: RC SEND_ONLY  192.0.2.1 > 192.0.2.2  QP 0x11 PSN 0x000100"
    ));
    let line = |name: &str| out.lines().find(|line| line.contains(name)).unwrap().to_string();
    assert!(line("DestQP").ends_with("0x000011"), "{out}");
    assert!(line("AckReq").starts_with("  50 [7]"), "{out}");
    assert!(line(" ICRC ").ends_with("0x41c977c1  (right)"), "{out}");
    assert!(!out.contains("refused"), "{out}");
}

#[test]
fn hex_comes_from_standard_input_too() {
    let dump: String = send()
        .chunks(16)
        .enumerate()
        .map(|(i, row)| {
            let row: Vec<_> = row.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{:04x}  {}\n", 16 * i, row.join(" "))
        })
        .collect();
    let output = with_stdin(&["--hex", "-"], dump.as_bytes());
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(output.stdout, rnic(&["--hex", SEND]).output().unwrap().stdout);
}

#[test]
fn bad_hex_names_the_position() {
    let output = rnic(&["--hex", "0200 0y"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output.stderr),
        "error: --hex: line 1, column 7: 'y' is not a hexadecimal digit\n"
    );
    assert_eq!(text(&output.stdout), "");
    let output = rnic(&["--hex", "020"]).output().unwrap();
    assert!(text(&output.stderr).contains("column 1: \"020\" has an odd number of digits"));
}

#[test]
fn a_capture_is_shown_frame_by_frame_with_reason_and_comment() {
    let path = file("whole.pcapng", &capture());
    let output = rnic(&[path.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let out = text(&output.stdout);
    assert!(out.contains("frame 1: 74 bytes, 0.000001500 s, a.eth: RC SEND_ONLY"), "{out}");
    let (_, second) = out.split_once("frame 2: 74 bytes, 2.000000001 s").unwrap();
    assert!(second.contains("comment: refused: icrc_wrong"), "{second}");
    assert!(second.contains("0x41c977c0  (WRONG, 0x41c977c1 belongs there)"), "{second}");
    assert!(second.contains("refused: icrc_wrong: The invariant CRC"), "{second}");
    let stdin = with_stdin(&["-"], &capture());
    assert_eq!(text(&stdin.stdout), out);
}

#[test]
fn json_is_one_object_a_frame() {
    let output = with_stdin(&["-", "--json"], &capture());
    assert!(output.status.success());
    let out = text(&output.stdout);
    let frames: Vec<serde_json::Value> =
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(frames.len(), 2);
    assert_eq!(frames[0]["number"], 1);
    assert_eq!(frames[0]["time_ns"], 1500);
    assert_eq!(frames[0]["icrc"]["carried"], 0x41c9_77c1);
    assert_eq!(frames[0]["icrc"]["right"], true);
    assert!(frames[0]["refused"].is_null());
    assert_eq!(frames[1]["refused"]["name"], "icrc_wrong");
    let headers = frames[0]["tree"].as_array().unwrap();
    let names: Vec<_> = headers.iter().map(|node| node["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["Ethernet", "IPv4", "UDP", "BTH", "Payload", "ICRC"]);
    let bth = headers[3]["children"].as_array().unwrap();
    let psn = bth.iter().find(|field| field["name"] == "PSN").unwrap();
    assert_eq!((&psn["value"], &psn["text"]), (&0x100.into(), &"0x000100".into()));
    let pad = bth.iter().find(|field| field["name"] == "PadCnt").unwrap();
    assert_eq!((&pad["offset"], &pad["bits"]), (&43.into(), &serde_json::json!([5, 4])));
}

#[test]
fn a_capture_that_is_cut_off_is_shown_up_to_the_damage() {
    let whole = capture();
    let output = with_stdin(&["-"], &whole[..whole.len() - 50]);
    assert_eq!(output.status.code(), Some(1));
    let out = text(&output.stdout);
    assert!(out.contains("frame 1:") && !out.contains("frame 2:"), "{out}");
    let message = text(&output.stderr);
    assert!(
        message.starts_with(
            "error: standard input, after frame 1: the capture is cut off: the record at byte"
        ),
        "{message}"
    );
}

#[test]
fn what_cannot_be_read_is_named() {
    let output = rnic(&["no-such-file.pcap"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).starts_with("error: cannot open no-such-file.pcap: "));
    let output = with_stdin(&["-"], b"PK\x03\x04");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("standard input: not a capture"));
    let output = rnic(&[]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_closed_pipe_ends_it_quietly() {
    // Far more output than a pipe holds, so that writing goes on after the reader has left.
    let mut writer = Writer::new(Vec::new(), &[Interface::default()]).unwrap();
    for i in 0..500 {
        writer.packet(0, Nanos(i), &send(), &[]).unwrap();
    }
    let path = file("long.pcapng", &writer.finish().unwrap());
    let mut child = rnic(&[path.to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 8];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(&first, b"frame 1:");
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stderr), "");
    assert!(output.status.success());
}
