//! `rnic decode --qpc` and `rnic encode --qpc` as their users call them.
#![allow(clippy::unwrap_used, reason = "a test that cannot run its subject should fail")]

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use softrnic_device::mlx4::context::{CONTEXT_LEN, Field, PathField, QpContext, ROWS};
use softrnic_device::mlx4::field::Side;

fn rnic(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rnic")).args(args).output().unwrap()
}

fn with_stdin(args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_rnic"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A file for one test; tests run at the same time, so each has its own name.
fn file(name: &str, bytes: &[u8]) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().into()
}

/// A connection in RTS with nothing to remark.
fn sane() -> QpContext {
    let path = |field| (Side::Primary, field);
    QpContext::default()
        .with(Field::State, 3)
        .with(Field::PmState, 3)
        .with(Field::Pd, 0x12)
        .with(Field::Mtu, 3)
        .with(Field::MsgMax, 31)
        .with(Field::LogRqSize, 7)
        .with(Field::LogRqStride, 2)
        .with(Field::LogSqSize, 7)
        .with(Field::LogSqStride, 2)
        .with(Field::RoceMode, 2)
        .with(Field::UsrPage, 0x81)
        .with(Field::LocalQpnEen, 0x41)
        .with(Field::RemoteQpnEen, 0x42)
        .with(path(PathField::GrhIp), 1)
        .with(path(PathField::AckTimeout), 14)
        .with(path(PathField::LinkType), 1)
        .with(path(PathField::Rgid6332), 0xFFFF)
        .with(path(PathField::Rgid310), 0xC000_0202)
        .with(path(PathField::SchedQueue), 0x83)
        .with(path(PathField::Dmac310), 0x0000_0002)
        .with(Field::RetryCount, 7)
        .with(Field::RnrRetry, 7)
        .with(Field::DbRecordAddrL, 0x1000)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn decoded(context: &QpContext) -> String {
    let output = rnic(&["decode", "--qpc", &hex(&context.to_bytes())]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn every_field_that_is_not_reserved_is_shown_with_meaning() {
    let out = decoded(&sane());
    assert!(out.starts_with("RC queue pair in RTS\n"), "{out}");
    for row in ROWS {
        let name = row.full_name().to_string();
        let shown =
            out.lines().filter(|line| line.split_whitespace().nth(2) == Some(&name)).count();
        assert_eq!(shown, usize::from(!row.is_reserved()), "{name}");
    }
    let line = |name: &str| {
        let line = out.lines().find(|line| line.contains(&format!(" {name} "))).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("state"), "0 [31:28] state 3 RTS: ready to send");
    assert_eq!(line("mtu"), "2 [31:29] mtu 3 1024 bytes");
    assert_eq!(line("log_sq_stride"), "2 [10:8] log_sq_stride 2 64 bytes");
    assert_eq!(line("primary_address_path.ack_timeout").rsplit("14 ").next(), Some("67.108 ms"));
    assert_eq!(line("min_rnr_nak"), "37 [28:24] min_rnr_nak 0 655.36 ms");
    assert!(!out.contains("remarks"), "{out}");
}

#[test]
fn what_is_inconsistent_is_remarked() {
    let path = |field| (Side::Primary, field);
    let cases: [(QpContext, &str); 12] = [
        (
            sane().with(Field::RemoteQpnEen, 0),
            "remote_qpn_een: RC in RTS, but the peer's queue pair is 0",
        ),
        (
            sane().with(path(PathField::LinkType), 5),
            "primary_address_path.link_type: no link type has code 5",
        ),
        (sane().with(Field::LogRqSize, 15), "log_rq_size: 32768 receive entries are more than"),
        (sane().with(Field::St, 2), "st: RD is not offered"),
        (sane().with(Field::St, 13), "st: no service has code 13"),
        (sane().with(Field::State, 12), "state: no state has code 12"),
        (sane().with(Field::Mtu, 7), "mtu: code 7 is for MLX and raw Ethernet, and this is RC"),
        (sane().with(path(PathField::AckTimeout), 0), "ack_timeout: no timer"),
        (
            sane().with(Field::PmState, 0),
            "pm_state: migration is ARMED, but there is no alternate path",
        ),
        (sane().with(Field::Srqn, 3), "srqn: an SRQ number is given, but the SRQ bit is not set"),
        (
            sane().with(Field::Reserved19, 1),
            "reserved19: reserved bits are set: word 29 [31:0] is 0x1",
        ),
        (
            sane().with(Field::LastAckedPsn, 0x10).with(Field::NextSendPsn, 0x0F),
            "last_acked_psn: 16777214 packets are not acknowledged",
        ),
    ];
    for (context, remark) in cases {
        let out = decoded(&context);
        let (_, remarks) = out.split_once("\nremarks\n").unwrap();
        assert!(remarks.contains(remark), "{remark}\n{remarks}");
    }
}

/// The same context as drivers and tools print it.
#[test]
fn dumps_in_many_forms_are_one_context() {
    let bytes = sane().to_bytes();
    let words: Vec<String> = bytes.as_chunks::<4>().0.iter().map(|word| hex(word)).collect();
    let swapped: Vec<String> = bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|word| format!("{:08x}", u32::from_le_bytes(*word)))
        .collect();
    let dump = |words: &[String], column: fn(usize) -> String| {
        let lines = words.chunks(8).enumerate();
        lines.map(|(i, row)| format!("{}{}\n", column(32 * i), row.join(" "))).collect::<String>()
    };
    let expected = text(&rnic(&["decode", "--qpc", &hex(&bytes)]).stdout);
    let same = |args: &[&str], input: &str| {
        let output = with_stdin(&[&["decode", "--qpc", "-"], args].concat(), input);
        assert_eq!(text(&output.stdout), expected, "{input}\n{}", text(&output.stderr));
    };
    same(&[], &dump(&words, |at| format!("{at:08x}: ")));
    same(&[], &dump(&words, |at| format!("  [{at:02x}]  ")));
    same(&[], &dump(&words, |at| format!("[  1.5] mlx4_core 0000:03:00.0: {at:08x}: ")));
    same(&["--words", "little"], &dump(&swapped, |at| format!("{at:08x}: ")));
    let raw = file("context.bin", &bytes);
    assert_eq!(text(&rnic(&["decode", "--qpc", &raw]).stdout), expected);

    // A command's box, and a driver that prints its mask first.
    let mut mailbox = vec![0, 0, 0x70, 0x40, 0, 0, 0, 0];
    mailbox.extend(bytes);
    let out = text(&rnic(&["decode", "--qpc", &hex(&mailbox), "--mailbox"]).stdout);
    let mask = "opt_param_mask 0x00007040  RNR_TIMEOUT RETRY_COUNT RNR_RETRY ACK_TIMEOUT\n";
    assert!(out.contains(mask), "{out}");
    let input =
        format!("Dumping QP context:\n  00007040\n{}", dump(&words, |at| format!("[{at:02x}] ")));
    let out = text(&with_stdin(&["decode", "--qpc", "-"], &input).stdout);
    assert!(out.contains(mask), "{out}");

    // The wrong order is noticed.
    let out = text(
        &with_stdin(&["decode", "--qpc", "-"], &dump(&swapped, |at| format!("{at:08x}: "))).stdout,
    );
    assert!(out.contains("these bytes look turned round: try --words little"), "{out}");
}

#[test]
fn short_long_and_odd_dumps_say_what_is_wrong() {
    let bytes = sane().to_bytes();
    let error = |args: &[&str]| {
        let output = rnic(args);
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(text(&output.stdout), "");
        text(&output.stderr)
    };
    assert_eq!(
        error(&["decode", "--qpc", &hex(&bytes[..200])]),
        "error: a context has 248 bytes; these are 200: 48 are missing, from word 50 on\n"
    );
    let odd = &hex(&bytes)[..491];
    assert!(error(&["decode", "--qpc", odd]).contains("has an odd number of digits"));
    let mut long = bytes.to_vec();
    long.extend([0, 0, 0, 1]);
    let told = error(&["decode", "--qpc", &hex(&long)]);
    assert!(
        told.contains("4 bytes more than a context has") && told.contains("--mailbox"),
        "{told}"
    );
    let told = error(&["decode", "--qpc", "no-such-file"]);
    assert!(told.contains("there is no file \"no-such-file\""), "{told}");
    // The entry in memory may be longer.
    long.truncate(248);
    long.extend([0; 8]);
    let out = text(&rnic(&["decode", "--qpc", &hex(&long)]).stdout);
    assert!(out.contains("8 bytes of 0 behind the context are left out"), "{out}");
}

#[test]
fn t_40_json_makes_the_same_bytes_again() {
    let mut state = 0x1234_5678_9ABC_DEF0_u64;
    for round in 0..20 {
        let mut context = QpContext::default();
        for word in context.words_mut() {
            // Bits of all kinds, reserved ones too; dense and sparse in turn.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let bits = (state >> 32) as u32;
            *word = if round % 2 == 0 { bits } else { bits & bits >> 7 & bits >> 13 };
        }
        let bytes: [u8; CONTEXT_LEN] = context.to_bytes();
        let output = rnic(&["decode", "--json", "--qpc", &hex(&bytes)]);
        assert!(output.status.success());
        let json = file("round-trip.json", &output.stdout);
        let again = rnic(&["encode", "--qpc", &json]);
        assert!(again.status.success(), "{}", text(&again.stderr));
        let binary = file("round-trip.bin", &[]);
        assert!(rnic(&["encode", "--qpc", &json, "--output", &binary]).status.success());
        assert_eq!(std::fs::read(&binary).unwrap(), bytes);
        // What is printed can be decoded, too.
        let printed = with_stdin(&["decode", "--json", "--qpc", "-"], &text(&again.stdout));
        assert_eq!(text(&printed.stdout), text(&output.stdout));
    }
}

#[test]
fn json_tells_names_places_meanings_and_remarks() {
    let context = sane().with(Field::RemoteQpnEen, 0);
    let output = rnic(&["decode", "--json", "--qpc", &hex(&context.to_bytes())]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["service"], &json["state"]), (&"RC".into(), &"RTS".into()));
    let fields = json["fields"].as_array().unwrap();
    let mtu = fields.iter().find(|field| field["name"] == "mtu").unwrap();
    let expected = serde_json::json!({
        "name": "mtu", "linux": "mtu_msgmax[7:5]", "word": 2, "high": 31, "low": 29,
        "owner": "engine", "value": 3, "meaning": "1024 bytes",
    });
    assert_eq!(*mtu, expected);
    assert_eq!(json["remarks"][0]["field"], "remote_qpn_een");
}

#[test]
fn encode_takes_codes_numbers_and_text_and_names_what_is_wrong() {
    let encode = |json: &str| with_stdin(&["encode", "--qpc", "-"], json);
    let output = encode(r#"{"st": "xrc", "state": "RTS", "pd": "0x12", "mtu": 3, "rlky": true}"#);
    let context = sane();
    let mut expected = QpContext::default().with(Field::St, 6).with(Field::State, 3);
    expected =
        expected.with(Field::Pd, context.get(Field::Pd)).with(Field::Mtu, 3).with(Field::Rlky, 1);
    assert_eq!(text(&output.stdout).lines().next().unwrap(), {
        let bytes: Vec<_> =
            expected.to_bytes()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("0000: {}", bytes.join(" "))
    });
    let wrong = |json: &str| {
        let output = encode(json);
        assert_eq!(output.status.code(), Some(1));
        text(&output.stderr)
    };
    assert!(
        wrong(r#"{"remote_qpn": 1}"#)
            .contains("no field is called \"remote_qpn\"; did you mean remote_qpn_een?")
    );
    assert!(wrong(r#"{"mtu": 8}"#).contains("mtu is 0x8; its 3 bits hold 0x7 at most"));
    assert!(wrong(r#"{"st": "RX"}"#).contains("it takes a number, or one of RC, UC, RD"));
    assert!(wrong(r#"{"pd": -1}"#).contains("pd is -1; it takes a number"));
    assert!(wrong("[1, 2]").contains("needs name and value"));
    assert!(wrong("{").contains("EOF"));
}
