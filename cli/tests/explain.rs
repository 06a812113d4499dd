//! `rnic explain` as a person or a script sees it.
#![allow(clippy::expect_used, reason = "a test's own helpers may panic")]

use std::process::{Command, Output};

fn explain(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rnic"))
        .arg("explain")
        .args(args)
        .output()
        .expect("rnic starts")
}

fn text(args: &[&str]) -> String {
    let output = explain(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn json(args: &[&str]) -> serde_json::Value {
    let args: Vec<_> = args.iter().copied().chain(["--json"]).collect();
    serde_json::from_str(&text(&args)).expect("JSON")
}

#[test]
fn statqp_is_told_field_by_field_with_cause_and_way_out() {
    let told = text(&["STATQP=0x0062_0601"]);
    for part in ["STATQP = 0x0062_0601", "[22:16]", "remote access error", "cause", "QPCONF[6]"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let same = text(&["statqp=6_424_065"]);
    assert_eq!(told, same, "hexadecimal and decimal are the same");
}

#[test]
fn a_register_by_its_offset_belongs_to_a_queue_pair() {
    assert!(text(&["0x18_0188=1"]).contains("queue pair 2, STATQP = 0x0000_0001"));
    let silicon = text(&["0x18_0188=1", "--profile", "v4.0-silicon"]);
    assert!(silicon.contains("queue pair 1, STATQP"), "{silicon}");
}

#[test]
fn entries_statuses_and_codes_are_told() {
    for (question, part) in [
        ("CQE=0x0104_0007", "the work request failed"),
        ("SYNDROME=0x4000_0000_0000", "rkey"),
        ("FATAL=0x0003_0017", "queue pair"),
        ("AETH=0x6200_0005", "remote access error"),
        ("wc-status=12", "IBV_WC_RETRY_EXC_ERR"),
        ("NAK=2", "remote access error"),
        ("RNR=14", "1.28 ms"),
        ("INTSTS=0x90", "a queue pair went fatal"),
        ("CQINTSTS3=0x41", "queue pairs 64, 70"),
        ("OPCODE=0x0c", "RC READ_REQUEST"),
        ("rkey_unknown", "BUFRKEY"),
        ("IBV_WC_RNR_RETRY_EXC_ERR", "Post receives"),
        ("out_of_sequence=3", "out_of_sequence = 3"),
    ] {
        let told = text(&[question]);
        assert!(told.contains(part), "{question}: {told}");
    }
}

#[test]
fn a_name_that_two_tables_know_is_answered_by_both() {
    let told = json(&["SYNDROME=0x62"]);
    let names: Vec<_> =
        told.as_array().expect("answers").iter().map(|a| a["name"].clone()).collect();
    assert_eq!(names, ["ERROR_SYNDROME", "AETH_SYNDROME"]);
    let wide = json(&["SYNDROME=0x8000"]);
    assert_eq!(wide.as_array().map(Vec::len), Some(1), "too wide for an AETH's syndrome");
}

#[test]
fn several_questions_are_answered_in_their_order() {
    let told = json(&["STATQP=0x601", "CQE=0"]);
    assert_eq!((&told[0]["name"], &told[1]["name"]), (&"STATQP".into(), &"CQE".into()));
    assert_eq!(told[0]["value"], 0x601);
    assert_eq!(told[0]["fields"].as_array().map(Vec::len), Some(11));
}

#[test]
fn a_wrong_question_is_answered_with_the_way_out() {
    for (question, hint) in [
        ("STATPQ=1", "STATQP"),
        ("rkey_unknwon", "rkey_unknown"),
        ("STATQP=12x", "no number"),
        ("STATQP=0x1_0000_0000", "32 bits"),
        ("0x10_0001=1", "near it"),
    ] {
        let output = explain(&[question]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && stderr.contains(hint), "{question}: {stderr}");
        assert!(output.stdout.is_empty(), "{question}");
    }
}

#[test]
fn without_a_question_the_names_are_listed() {
    assert!(text(&[]).contains("CQE"));
    assert!(json(&[]).as_array().is_some_and(|names| names.len() > 250));
}
