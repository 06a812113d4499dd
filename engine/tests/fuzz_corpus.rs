//! Replays `fuzz/corpus/frame` through the body of the fuzz target, on every test run.
#![allow(clippy::unwrap_used, reason = "a test whose input cannot be read should fail")]

use std::fs;
use std::path::Path;

mod frame_invariants;

#[test]
fn every_corpus_frame_keeps_the_invariants() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/frame");
    let mut files: Vec<_> =
        fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 20, "the corpus is missing: {} files", files.len());
    for file in files {
        let frame = fs::read(&file).unwrap();
        frame_invariants::check(&frame);
        // Every prefix is a frame that was cut on the way.
        for len in 0..frame.len() {
            frame_invariants::check(&frame[..len]);
        }
    }
}
