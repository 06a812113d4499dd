//! Reliable connection: two engines on a virtual clock, told as stories.

#![allow(clippy::expect_used, reason = "clippy knows only functions marked #[test] as tests")]

mod access;
mod adversary;
mod answers;
mod duplicates;
mod endings;
mod exchange;
mod harness;
mod lengths;
mod peer;
mod requests;
mod responses;
mod sequence;
mod stories;
mod timers;
