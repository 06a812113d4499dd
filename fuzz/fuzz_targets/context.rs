//! Random contexts with random commands, applied to a live pair of queue pairs.
#![no_main]
#![allow(clippy::unwrap_used, clippy::expect_used, dead_code, reason = "files of the tests, used in part")]

#[path = "../../device/tests/mlx4_script/mod.rs"]
mod script;
#[path = "../../device/tests/verbs/world.rs"]
mod world;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| script::run(bytes));
