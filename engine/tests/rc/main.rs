//! The transport: two engines on a virtual clock, told as stories, or one engine and a scripted peer.

#![allow(clippy::expect_used, reason = "clippy knows only functions marked #[test] as tests")]

mod access;
mod adversary;
mod answers;
mod borders;
mod busy;
mod congestion;
mod counters;
mod duplicates;
mod endings;
mod exchange;
mod harness;
mod invariance;
mod lengths;
mod limits;
mod model;
mod peer;
mod requests;
mod responses;
mod script;
mod sequence;
mod shapes;
mod states;
mod stories;
mod timers;
mod transitions;
mod unreliable;
mod validation;

/// Cases of a property: `quick` of them, or as many as PROPTEST_CASES says.
fn cases(quick: u32) -> proptest::test_runner::Config {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok());
    proptest::test_runner::Config { cases: asked.unwrap_or(quick), ..Default::default() }
}
