//! Any bytes through parse, decode, describe and build.
#![no_main]

#[path = "../../engine/tests/frame_invariants/mod.rs"]
mod frame_invariants;

libfuzzer_sys::fuzz_target!(|frame: &[u8]| frame_invariants::check(frame));
