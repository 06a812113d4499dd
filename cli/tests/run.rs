//! `rnic run` as a user sees it: exit status, files, messages, and the same bytes twice.
#![allow(clippy::unwrap_used, reason = "clippy knows test functions only, not what they share")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const NODES: &str = r#"
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
loss = 0.02

[[phase]]
name = "p"
from = "a"
to = "b"
"#;

/// An empty directory of this test's own.
fn directory(test: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("run-{test}"));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

fn rnic(directory: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rnic")).current_dir(directory).args(args).output().unwrap()
}

fn scenario(directory: &Path, phase: &str) {
    fs::write(directory.join("mine.toml"), format!("{NODES}{phase}\n")).unwrap();
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

const SMALL: &str = "operation = \"send\"\nsize = 5000\ncount = 50\npath_mtu = 1024";

#[test]
fn a_good_run_exits_0_and_leaves_its_files() {
    let here = directory("good");
    scenario(&here, SMALL);
    let output = rnic(&here, &["run", "mine.toml"]);
    let stdout = text(&output.stdout);
    assert!(output.status.success(), "{stdout}{}", text(&output.stderr));
    assert!(stdout.contains("PASSED: 50 messages compared byte by byte"), "{stdout}");
    assert!(stdout.contains("counters, read from registers"), "{stdout}");
    for file in ["report.html", "capture.pcapng", "report.json", "speed.json", "state.json"] {
        assert!(stdout.contains(file), "{stdout}");
        assert!(fs::metadata(here.join("rnic-out").join(file)).unwrap().len() > 100);
    }
}

#[test]
fn the_same_seed_writes_the_same_bytes_and_json_prints_the_report() {
    let here = directory("same");
    scenario(&here, SMALL);
    let run = |seed: &str, out: &str| {
        let output = rnic(&here, &["run", "mine.toml", "--seed", seed, "--json", "--out", out]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let read = |name| fs::read(here.join(out).join(name)).unwrap();
        assert_eq!(output.stdout, read("report.json"));
        (read("report.json"), read("capture.pcapng"))
    };
    let (report, capture) = run("7", "one");
    let again = run("7", "two");
    assert!(report == again.0 && capture == again.1, "two runs differ");
    let (_, other) = run("8", "three");
    assert!(capture != other, "the seed has no effect");
    assert!(text(&report).contains("\"seed\": 7"));
}

#[test]
fn a_missing_completion_exits_1_and_says_which_and_why() {
    let here = directory("failed");
    scenario(
        &here,
        "operation = \"write\"\nsize = 64\ncount = 3\noutstanding = 1\nretry_count = 1\n\
         loss = 1.0",
    );
    let output = rnic(&here, &["run", "mine.toml"]);
    let stdout = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{stdout}");
    assert!(stdout.contains("FAILED, 0 of 3 messages are right"), "{stdout}");
    assert!(stdout.contains("message 0 failed"), "{stdout}");
    assert!(stdout.contains("QP 2 is fatal: STATQP"), "{stdout}");
    assert!(here.join("rnic-out/report.json").exists());
}

#[test]
fn a_bad_scenario_exits_1_with_file_line_and_key_and_leaves_nothing() {
    let here = directory("bad");
    scenario(&here, "operation = \"send\"\nsize = 64\ncount = 1\nlosss = 0.1");
    let output = rnic(&here, &["run", "mine.toml"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.starts_with("error: mine.toml:27:1: unknown field `losss`"), "{stderr}");
    assert!(!here.join("rnic-out").exists());

    let output = rnic(&here, &["run", "none.toml"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("cannot read the scenario none.toml"), "{stderr}");
}

#[test]
fn a_file_is_carried_across_and_a_missing_one_is_named() {
    let here = directory("file");
    scenario(&here, "operation = \"send\"\nsize = 1000\nfile = \"letter.txt\"");
    let output = rnic(&here, &["run", "mine.toml"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot read the file letter.txt"));

    fs::write(here.join("letter.txt"), "Dear NIC, ".repeat(777)).unwrap();
    let output = rnic(&here, &["run", "mine.toml", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let file = &report["phases"][0]["file"];
    assert_eq!(file["bytes"], 7770);
    assert_eq!(file["sent_sha256"], file["received_sha256"]);
    assert_eq!(report["phases"][0]["messages"], 8);
}

#[test]
fn the_embedded_scenario_is_printed_and_is_what_runs() {
    let here = directory("default");
    let output = rnic(&here, &["run", "--print-default"]);
    assert!(output.status.success());
    fs::write(here.join("copy.toml"), &output.stdout).unwrap();
    let embedded = rnic(&here, &["run", "--json", "--out", "embedded"]);
    let copied = rnic(&here, &["run", "copy.toml", "--json", "--out", "copied"]);
    assert!(embedded.status.success(), "{}", text(&embedded.stderr));
    assert!(embedded.stdout == copied.stdout);
}

/// A pipe can be read only once.
#[test]
fn a_scenario_may_come_out_of_a_pipe() {
    let here = directory("pipe");
    scenario(&here, SMALL);
    let line = format!("cat mine.toml | '{}' run /dev/stdin", env!("CARGO_BIN_EXE_rnic"));
    let output = Command::new("sh").current_dir(&here).args(["-c", &line]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}
