//! A vfio-user client at random, and from `fuzz/corpus/vfio`. What must hold is said in `vfio_script`.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test's own helpers may panic")]

use std::fs;
use std::path::Path;

use proptest::prelude::*;

mod vfio_script;

/// How many scripts are drawn; `SOFTRNIC_FUZZ_CASES` says otherwise.
fn cases() -> u32 {
    let asked = std::env::var("SOFTRNIC_FUZZ_CASES").ok();
    asked.and_then(|cases| cases.parse().ok()).unwrap_or(300)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]
    #[test]
    fn a_client_that_says_anything_at_all_breaks_no_promise(
        script in prop::collection::vec(any::<u8>(), 0..1500)
    ) {
        vfio_script::run(&script);
    }
}

#[test]
fn the_corpus_of_the_fuzz_target_vfio() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/vfio");
    let mut files: Vec<_> =
        fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 10, "the corpus is missing: {} files", files.len());
    for file in files {
        vfio_script::run(&fs::read(&file).unwrap());
    }
}
