//! `rnic regs` as a person or a script sees it.
#![allow(clippy::expect_used, reason = "a test's own helpers may panic")]

use std::io::Read;
use std::process::{Command, Output, Stdio};

fn regs(args: &[&str]) -> Output {
    rnic(args).output().expect("rnic starts")
}

fn rnic(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rnic"));
    command.arg("regs").args(args);
    command
}

fn text(args: &[&str]) -> String {
    let output = regs(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn the_whole_map_has_all_99_rows() {
    let map = text(&[]);
    assert_eq!(map.lines().filter(|line| line.starts_with("  0x")).count(), 99);
    assert!(map.contains("0x10_0184  W1C"), "{map}");
    let json: serde_json::Value = serde_json::from_str(&text(&["--json"])).expect("JSON");
    assert_eq!(json["registers"].as_array().map(Vec::len), Some(99));
}

#[test]
fn an_offset_is_a_queue_pairs_register_by_profile() {
    assert!(text(&["0x18_0130"]).contains("queue pair 2, CQHEAD"));
    assert!(text(&["1573168"]).contains("queue pair 2, CQHEAD"));
    let silicon = text(&["0x18_0130", "--profile", "v4.0-silicon"]);
    assert!(silicon.contains("queue pair 1, CQHEAD"), "{silicon}");
    assert!(text(&["0x00_0314"]).contains("region 3, BUFRKEY"));
    assert!(text(&["0x10_0198"]).contains("RQINTSTS3"));
    assert!(text(&["0x10_0050"]).contains("not listed"));
    assert!(text(&["0x10_0001"]).contains("byte 1"));
    let json = text(&["0x18_0130", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["queue_pair"], 2);
    assert_eq!(json["register"]["name"], "CQHEAD");
}

#[test]
fn a_register_is_shown_with_its_fields_and_codes() {
    let qpconf = text(&["qpconf"]);
    assert!(qpconf.contains("[10:8]") && qpconf.contains("0x4 = 4096"), "{qpconf}");
    assert!(text(&["PD"]).contains("queue pair 1 does not have it"));
}

#[test]
fn a_wrong_question_is_answered_with_the_way_out() {
    for (args, hint) in [
        (&["CQHAED"][..], "CQHEAD"),
        (&["0x200000"][..], "0x1F_FFFF"),
        (&["--profile", "v9"][..], "v4.0-silicon"),
    ] {
        let output = regs(args);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success());
        assert!(stderr.contains(hint), "{stderr}");
    }
}

#[test]
fn a_closed_pipe_ends_it_quietly() {
    let mut child = rnic(&["--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("rnic starts");
    let mut stdout = child.stdout.take().expect("a pipe");
    let mut first = [0; 1];
    stdout.read_exact(&mut first).expect("output");
    drop(stdout);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
