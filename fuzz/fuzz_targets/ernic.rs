//! Random register writes, queue contents and frames on two ERNICs.
#![no_main]
#![allow(clippy::expect_used, reason = "files of the device's tests")]

#[path = "../../device/tests/chaos/mod.rs"]
mod chaos;

libfuzzer_sys::fuzz_target!(|script: &[u8]| chaos::run(script));
