//! Two nodes, a cable, and what a reviewer should see when their behaviour changes.
#![allow(clippy::unwrap_used, reason = "clippy knows test functions only, not what they share")]

use std::collections::BTreeMap;

use softrnic_sim::{Fate, Ladder, Observer, ProfileKind, Report, Scenario, Sighting, Simulation};

/// A scenario with nodes `a` and `b`, of one face or of two ("ernic+native").
fn scenario(face: &str, link: &str, phases: &[&str]) -> Scenario {
    let (a, b) = face.split_once('+').unwrap_or((face, face));
    let node = |name: &str, face: &str, last: char| {
        format!(
            "[[node]]\nname = \"{name}\"\nface = \"{face}\"\nmac = \"02:00:00:00:00:0{last}\"\n\
             ipv4 = \"192.0.2.1{last}\"\nipv6 = \"2001:db8::{last}\"\n"
        )
    };
    let mut text = format!("seed = 7\n{}{}", node("a", a, '1'), node("b", b, '2'));
    text.push_str(&format!("[[link]]\nbetween = [\"a\", \"b\"]\n{link}\n"));
    for phase in phases {
        text.push_str(&format!("[[phase]]\nfrom = \"a\"\nto = \"b\"\n{phase}\n"));
    }
    Scenario::parse("test.toml", &text).unwrap()
}

fn run(scenario: Scenario, observer: &mut dyn Observer) -> Report {
    let mut simulation = Simulation::new(scenario, BTreeMap::new()).unwrap();
    while simulation.run_phase(observer).is_some() {}
    simulation.finish()
}

fn ladder(scenario: Scenario) -> String {
    let mut ladder = Ladder::new(&["A", "B"]);
    let report = run(scenario, &mut ladder);
    assert!(report.passed, "{:#?}\n{}", report.phases, ladder.text());
    ladder.text().to_owned()
}

/// Everything that an observer is told, as one number, and frames by fate.
#[derive(Default, PartialEq, Eq, Debug)]
struct Digest {
    hash: u64,
    frames: u64,
    lost: u64,
}

impl Observer for Digest {
    fn frame(&mut self, sighting: &Sighting<'_>) {
        let text = format!("{} {} {:?}", sighting.sent.0, sighting.at.0, sighting.fate);
        for &byte in text.as_bytes().iter().chain(sighting.frame) {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
        }
        self.frames += 1;
        self.lost += u64::from(matches!(sighting.fate, Fate::Lost(_)));
    }
}

const SEND_64: &str = "operation = \"send\"\nsize = 64\ncount = 3\noutstanding = 2";

#[test]
fn ernic_send_64_bytes() {
    insta::assert_snapshot!(ladder(scenario("ernic", "", &[SEND_64])));
}

#[test]
fn native_send_64_bytes() {
    insta::assert_snapshot!(ladder(scenario("native", "", &[SEND_64])));
}

#[test]
fn ernic_write_and_read_of_three_packets() {
    let phases = [
        "operation = \"write\"\nsize = 600\ncount = 1\npath_mtu = 256",
        "operation = \"read\"\nsize = 600\ncount = 1\npath_mtu = 256",
    ];
    insta::assert_snapshot!(ladder(scenario("ernic", "", &phases)));
}

#[test]
fn ernic_recovers_a_named_packet() {
    let phase = "operation = \"send\"\nsize = 1000\ncount = 2\npath_mtu = 256\n\
                 expect = { lost_min = 1, retransmissions_min = 2 }\n\
                 [[fault]]\naction = \"drop\"\nnode = \"a\"\nopcode = \"SEND_MIDDLE\"\nnth = 2";
    insta::assert_snapshot!(ladder(scenario("ernic", "", &[phase])));
}

#[test]
fn ernic_recovers_a_lost_acknowledgement() {
    let phase = "operation = \"write\"\nsize = 64\ncount = 1\n\
                 [[fault]]\naction = \"drop\"\nnode = \"b\"\nopcode = \"ACKNOWLEDGE\"\nnth = 1";
    insta::assert_snapshot!(ladder(scenario("ernic", "", &[phase])));
}

#[test]
fn a_packet_lost_by_psn_on_the_wrap_of_the_sequence_numbers() {
    let phase = "operation = \"send\"\nsize = 1000\ncount = 1\npath_mtu = 256\n\
                 first_psn = 0xffffff\n\
                 [[fault]]\naction = \"drop\"\nnode = \"a\"\npsn = 0\nnth = 1";
    insta::assert_snapshot!(ladder(scenario("ernic", "", &[phase])));
}

const LOSSY: [&str; 3] = [
    "operation = \"send\"\nsize = 4096\ncount = 300\npath_mtu = 1024",
    "operation = \"write\"\nsize = 4096\ncount = 300\npath_mtu = 1024",
    "operation = \"read\"\nsize = 4096\ncount = 300\npath_mtu = 1024",
];

#[test]
fn every_operation_survives_one_percent_loss_on_both_faces() {
    for face in ["ernic", "native"] {
        let mut digest = Digest::default();
        let report = run(scenario(face, "loss = 0.01", &LOSSY), &mut digest);
        assert!(report.passed, "{face}: {:#?}", report.phases);
        assert!(digest.lost > 10, "{face}: {digest:?}");
        assert!(report.phases.iter().all(|phase| phase.retransmissions > 0), "{face}");
    }
}

#[test]
fn the_same_seed_gives_the_same_world_and_another_seed_another() {
    let observe = |seed| {
        let mut digest = Digest::default();
        let scenario = Scenario { seed, ..scenario("ernic", "loss = 0.01", &LOSSY) };
        let report = run(scenario, &mut digest);
        (digest, format!("{report:?}"))
    };
    assert_eq!(observe(7), observe(7));
    assert_ne!(observe(7).0.hash, observe(8).0.hash);
}

#[test]
fn a_link_that_loses_everything_ends_in_an_explained_failure() {
    for face in ["ernic", "native"] {
        let phase = "operation = \"send\"\nsize = 64\ncount = 1\nloss = 1.0\nretry_count = 2";
        let report = run(scenario(face, "", &[phase]), &mut ());
        assert!(!report.passed);
        let words = report.phases[0].failures.join("\n");
        assert!(words.contains("message 0 failed"), "{face}: {words}");
        assert!(words.contains("retry_count_exceeded"), "{face}: {words}");
        assert!(words.contains("SEND_ONLY            psn=000000"), "{face}: {words}");
        assert!(words.contains("lost: by fault 1"), "{face}: {words}");
        assert_eq!(report.phases[0].messages, 0);
    }
}

#[test]
fn an_expectation_that_does_not_hold_fails_the_run() {
    let phase = format!("{SEND_64}\nexpect = {{ lost_min = 1 }}");
    let report = run(scenario("native", "", &[&phase]), &mut ());
    assert_eq!(report.phases[0].failures, ["expected at least 1 lost frames, saw 0"]);
    assert!(!report.passed);
}

#[test]
fn a_file_arrives_with_its_digest() {
    let text = "operation = \"write\"\nsize = 1000\nfile = \"greeting.txt\"";
    let scenario = scenario("native", "", &[text]);
    let bytes: Vec<u8> = (0..2500u32).map(|i| (i * 7) as u8).collect();
    let files = BTreeMap::from([("greeting.txt".to_owned(), bytes)]);
    let mut simulation = Simulation::new(scenario, files).unwrap();
    let phase = simulation.run_phase(&mut ()).unwrap();
    let file = phase.file.as_ref().unwrap();
    assert_eq!((phase.messages, file.bytes), (3, 2500));
    assert_eq!(file.sent_sha256, file.received_sha256);
    assert!(simulation.finish().passed);
}

#[test]
fn every_path_mtu_carries_every_operation_between_all_faces() {
    let mut phases = Vec::new();
    for mtu in [256, 512, 1024, 2048, 4096] {
        for operation in ["send", "write", "read"] {
            for size in [1, 17, mtu - 1, mtu, mtu + 1, 3 * mtu] {
                phases.push(format!(
                    "operation = \"{operation}\"\nsize = {size}\ncount = 3\npath_mtu = {mtu}\n\
                     ip = {}\nvlan = {}\nexpect = {{ retransmissions_max = 0 }}",
                    if size % 2 == 0 { 6 } else { 4 },
                    mtu / 2
                ));
            }
        }
    }
    let phases: Vec<_> = phases.iter().map(String::as_str).collect();
    for faces in ["ernic", "native", "ernic+native", "native+ernic"] {
        let report = run(scenario(faces, "", &phases), &mut ());
        let failed: Vec<_> = report.phases.iter().filter(|p| p.failure_count > 0).collect();
        assert!(report.passed, "{faces}: {failed:#?}");
    }
}

#[test]
fn both_register_maps_work() {
    let mut scenario = scenario("ernic", "", &[SEND_64]);
    scenario.nodes[1].profile = ProfileKind::V40Silicon;
    assert!(run(scenario, &mut ()).passed);
}

#[test]
fn a_receive_ring_with_one_usable_element_serves_many_messages() {
    let phase = "operation = \"send\"\nsize = 64\ncount = 100\noutstanding = 16\nrq_depth = 2";
    let report = run(scenario("ernic", "", &[phase]), &mut ());
    assert!(report.passed, "{:#?}", report.phases);
    assert_eq!(report.phases[0].messages, 100);
}

#[test]
fn a_native_message_may_be_longer_than_any_ernic_message() {
    let phase = "operation = \"send\"\nsize = 20_000_000\ncount = 1\noutstanding = 1";
    let report = run(scenario("native", "", &[phase]), &mut ());
    assert!(report.passed, "{:#?}", report.phases);
}
