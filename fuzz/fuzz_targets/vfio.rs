//! A vfio-user client that says anything, with an ERNIC behind.
#![no_main]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "files of the host's tests")]

#[path = "../../host/tests/vfio_script/mod.rs"]
mod vfio_script;

libfuzzer_sys::fuzz_target!(|script: &[u8]| vfio_script::run(script));
