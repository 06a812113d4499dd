//! Any fault rules over any frames.
#![no_main]
#![allow(dead_code, reason = "the other target uses the rest")]

#[path = "../../sim/tests/scenario_invariants/mod.rs"]
mod scenario_invariants;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    scenario_invariants::check_faults(bytes);
});
