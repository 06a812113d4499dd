//! `rnic show` as a person or a script sees it, after a run.
#![allow(clippy::unwrap_used, reason = "clippy knows test functions only, not what they share")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Two ERNICs that lose frames, and one phase that cannot succeed: the peer never answers.
const SCENARIO: &str = r#"
node = [
    { name = "a", face = "ernic", mac = "02:00:00:00:00:0a", ipv4 = "192.0.2.10", ipv6 = "::a" },
    { name = "b", face = "native", mac = "02:00:00:00:00:0b", ipv4 = "192.0.2.11", ipv6 = "::b" },
]
link = [{ between = ["a", "b"] }]

[[phase]]
name = "p"
from = "a"
to = "b"
operation = "send"
size = 5000
count = 50
path_mtu = 1024
loss = 0.02
"#;

/// A directory of this test's own, with a finished run in `out`.
fn world(test: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("show-{test}"));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("mine.toml"), SCENARIO).unwrap();
    let ran = rnic(&path, &["run", "mine.toml", "--out", "out"]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
    path
}

fn rnic(directory: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rnic")).current_dir(directory).args(args).output().unwrap()
}

fn show(directory: &Path, args: &[&str]) -> String {
    let args: Vec<_> = ["show", "out"].iter().chain(args).copied().collect();
    let output = rnic(directory, &args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_finished_world_is_shown_as_rdma_users_expect() {
    let here = world("text");
    let all = show(&here, &[]);
    for part in [
        "hca_id:\ta",
        "state:              PORT_ACTIVE (4)",
        "link a/1 lqpn 2 rqpn 2 type RC state RTS sq-psn 0x0000fa una-psn 0x0000fa",
        "CQHEAD",
        "dev b rkey 0x",
        "link b/1 refused psn_ahead",
        "as of ",
    ] {
        assert!(all.contains(part), "{part}: {all}");
    }
    let one = show(&here, &["--device", "b", "--only", "qp"]);
    assert!(one.lines().all(|line| line.starts_with("link b/1 lqpn") || line.starts_with("    ")));
    assert!(one.contains("rx_send_messages 50"), "{one}");
    assert!(!one.contains("SQPI"), "verbs have no ring indices: {one}");
}

#[test]
fn what_the_two_ends_say_fits_together() {
    let here = world("json");
    let state: serde_json::Value = serde_json::from_str(&show(&here, &["--json"])).unwrap();
    let [a, b] = &state["devices"].as_array().unwrap()[..] else { panic!("{state}") };
    let (a_qp, b_qp) = (&a["queue_pairs"][0], &b["queue_pairs"][0]);
    assert_eq!(a_qp["sq_psn"], b_qp["rq_psn"]);
    assert_eq!(a_qp["lqpn"], b_qp["rqpn"]);
    assert_eq!((&a_qp["ssn"], &b_qp["msn"]), (&50.into(), &50.into()));
    assert_eq!(a_qp["rings"]["sq"][0], a_qp["rings"]["sq"][1], "all completed");
    assert_eq!(a_qp["rings"]["statqp"].as_u64().unwrap() & 0x0000_0601, 0x600);
    assert!(a_qp["counters"]["retransmitted_pkts"].as_u64().unwrap() > 0);
    // The state is what the report of the same run says.
    let report: serde_json::Value =
        serde_json::from_slice(&fs::read(here.join("out/report.json")).unwrap()).unwrap();
    assert_eq!(report["nodes"][1]["refused"], b["refused"]);
}

#[test]
fn each_refused_packet_is_told_with_reason_queue_pair_and_psn() {
    let here = world("refused");
    let ran = rnic(&here, &["run", "mine.toml", "--out", "out"]);
    let told = String::from_utf8(ran.stdout).unwrap();
    let line = told.lines().find(|line| line.contains("  a > b  psn_ahead")).unwrap();
    assert!(line.contains("QP 0x2 PSN 0x") && line.contains("RC SEND_"), "{line}");
    assert!(told.contains("psn_ahead: A packet before this one is missing"), "{told}");

    let report: serde_json::Value =
        serde_json::from_slice(&fs::read(here.join("out/report.json")).unwrap()).unwrap();
    let first = &report["phases"][0]["refused_packets"][0];
    let (qpn, psn) = (first["qpn"].as_u64().unwrap(), first["psn"].as_u64().unwrap());
    let decoded = rnic(&here, &["decode", "out/capture.pcapng"]);
    let decoded = String::from_utf8(decoded.stdout).unwrap();
    let comment = decoded.lines().find(|line| line.starts_with("comment: refused")).unwrap();
    assert!(comment.ends_with(&format!("QP {qpn:#x}, PSN {psn:#08x}.")), "{comment}");
}

#[test]
fn a_wrong_question_is_answered_with_the_way_out() {
    let here = world("wrong");
    for (args, hint) in [
        (&["show", "nowhere"][..], "rnic run --out"),
        (&["show", "out", "--device", "c"], "a, b"),
        (&["show", "mine.toml"], "not the state"),
    ] {
        let output = rnic(&here, args);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && stderr.contains(hint), "{args:?}: {stderr}");
    }
}
