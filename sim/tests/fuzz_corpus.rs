//! Replays `fuzz/corpus/scenario` and `fuzz/corpus/faults` through the bodies of their fuzz targets, on
//! every test run, whole and damaged.
#![allow(clippy::unwrap_used, reason = "a test whose input cannot be read should fail")]

use std::fs;
use std::path::Path;

use scenario_invariants::{HEAD, check_faults, check_scenario};

mod scenario_invariants;

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(name);
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

#[test]
fn every_scenario_of_the_corpus_is_read_or_refused_with_its_place() {
    let files = corpus("scenario");
    let good = files.iter().filter(|bytes| check_scenario(bytes)).count();
    assert!(good >= 3 && files.len() - good >= 3, "{good} of {}", files.len());
    assert!(check_scenario(softrnic_sim::DEFAULT_SCENARIO.as_bytes()));
}

/// Every prefix, and every text with one byte gone or replaced.
#[test]
fn damaged_scenarios_are_refused_and_never_more() {
    let whole = corpus("scenario").into_iter().filter(|bytes| check_scenario(bytes));
    let text = whole.min_by_key(Vec::len).unwrap();
    for at in 0..text.len() {
        check_scenario(&text[..at]);
        let mut other = text.clone();
        for byte in [b'"', b'\n', 0xFF] {
            other[at] = byte;
            check_scenario(&other);
        }
        other.remove(at);
        check_scenario(&other);
    }
}

#[test]
fn every_rule_of_the_corpus_works_on_frames_twice_alike() {
    let files = corpus("faults");
    let fired = files.iter().filter(|bytes| check_faults(bytes) > 0).count();
    assert!(fired >= 8, "{fired} of {} fire", files.len());
    for bytes in &files {
        for len in (0..bytes.len()).step_by(5) {
            check_faults(&bytes[..len]);
        }
    }
    assert!(check_scenario(HEAD.as_bytes()));
}
