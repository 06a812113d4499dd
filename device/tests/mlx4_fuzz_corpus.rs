//! Replays `fuzz/corpus/context` through the body of the fuzz target, on every test run, and tries random
//! scripts.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test whose input cannot be read should fail"
)]
#![allow(dead_code, reason = "the world is shared with the native face's tests, used in part")]

use std::fs;
use std::path::Path;

use proptest::prelude::*;

#[path = "mlx4_script/mod.rs"]
mod script;
#[path = "verbs/world.rs"]
mod world;

#[test]
fn t_40_every_corpus_script_keeps_the_rules() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/context");
    let mut files: Vec<_> =
        fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 10, "the corpus is missing: {} files", files.len());
    for file in files {
        script::run(&fs::read(&file).unwrap());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn t_40_random_commands_with_random_contexts_change_nothing_or_what_they_bring(
        bytes in prop::collection::vec(any::<u8>(), 0..1500)
    ) {
        script::run(&bytes);
    }
}
