//! Two engines, and between them a peer that sends anything with a right ICRC.
#![no_main]
#![allow(clippy::expect_used, dead_code, reason = "files of the engine's tests, used in part")]

#[path = "../../engine/tests/rc/harness.rs"]
mod harness;
#[path = "../../engine/tests/rc/script.rs"]
mod script;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| script::run(&script::read(bytes)));
