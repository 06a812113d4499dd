//! "With loss, duplication and reordering together": the scenarios of `sim/scenarios/recovery`, and
//! what a reconnection does.
#![allow(clippy::unwrap_used, reason = "clippy knows test functions only, not what they share")]

use std::collections::BTreeMap;

use softrnic_sim::{PhaseReport, Report, Scenario, Simulation};

fn run(name: &str, text: &str) -> Report {
    let scenario = Scenario::parse(name, text).unwrap();
    let mut simulation = Simulation::new(scenario, BTreeMap::new()).unwrap();
    while simulation.run_phase(&mut ()).is_some() {}
    simulation.finish()
}

macro_rules! recovery {
    ($($test:ident $file:literal $check:expr;)*) => {
        $(#[test]
        fn $test() {
            let text = include_str!(concat!("../scenarios/recovery/", $file));
            let report = run($file, text);
            assert!(report.passed, "{:#?}", report.phases);
            assert!(report.faults.iter().all(|fault| fault.fired > 10), "{:#?}", report.phases);
            let check: fn(&PhaseReport) = $check;
            check(&report.phases[0]);
        })*
    };
}

fn all_complete(phase: &PhaseReport) {
    assert_eq!((phase.messages, phase.given_up, phase.reconnects), (10_000, 0, 0));
}

fn each_completes_or_is_given_up(phase: &PhaseReport) {
    assert_eq!(phase.messages + phase.given_up, 10_000);
    assert!(phase.messages > 5_000, "{} completed", phase.messages);
    assert!(phase.reconnects > 10, "{} reconnects", phase.reconnects);
}

recovery! {
    at_1_percent_all_complete_from_native_to_ernic "loss-1-native-to-ernic.toml" all_complete;
    at_1_percent_all_complete_from_ernic_to_native "loss-1-ernic-to-native.toml" all_complete;
    at_10_percent_all_complete_from_native_to_ernic "loss-10-native-to-ernic.toml" all_complete;
    at_10_percent_all_complete_from_ernic_to_native "loss-10-ernic-to-native.toml" all_complete;
    at_30_percent_each_completes_or_is_given_up_from_native_to_ernic
        "loss-30-native-to-ernic.toml" each_completes_or_is_given_up;
    at_30_percent_each_completes_or_is_given_up_from_ernic_to_native
        "loss-30-ernic-to-native.toml" each_completes_or_is_given_up;
}

/// One message of many is lost for good: its queue pair gives up, and the next connection goes on.
fn lost_for_good(face: &str, reconnects: u32) -> Report {
    let text = include_str!("../scenarios/recovery/loss-1-native-to-ernic.toml");
    let head = &text[..text.find("[[phase]]").unwrap()];
    let head =
        head.replace("\"native\"", &format!("{face:?}")).replace("\"ernic\"", &format!("{face:?}"));
    let text = format!(
        "{head}[[phase]]\nname = \"p\"\nfrom = \"a\"\nto = \"b\"\noperation = \"send\"\ncount = 40\n\
         size = 64\noutstanding = 4\nack_timeout = 4\nretry_count = 2\nreconnects = {reconnects}\n\
         [[fault]]\naction = \"drop\"\nnode = \"a\"\npsn = 10\ntimes = 3\n"
    );
    run("test.toml", &text)
}

#[test]
fn a_message_that_is_lost_for_good_ends_its_connection_and_the_next_one_goes_on() {
    for face in ["native", "ernic"] {
        let report = lost_for_good(face, 1);
        assert!(report.passed, "{face}: {:#?}", report.phases);
        let phase = &report.phases[0];
        assert_eq!(phase.reconnects, 1, "{face}");
        assert!((1..=4).contains(&phase.given_up), "{face}: {}", phase.given_up);
        assert_eq!(phase.messages + phase.given_up, 40, "{face}");
    }
}

#[test]
fn without_a_planned_reconnection_the_phase_fails() {
    for face in ["native", "ernic"] {
        let report = lost_for_good(face, 0);
        assert!(!report.passed, "{face}");
        assert!(report.phases[0].failures[0].contains("message 10 failed"), "{face}");
    }
}
