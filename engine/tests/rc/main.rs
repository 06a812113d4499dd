//! The transport: two engines on a virtual clock, told as stories, or one engine and a scripted peer.

#![allow(clippy::expect_used, reason = "clippy knows only functions marked #[test] as tests")]

mod access;
mod adversary;
mod answers;
mod busy;
mod duplicates;
mod endings;
mod exchange;
mod harness;
mod lengths;
mod model;
mod peer;
mod requests;
mod responses;
mod sequence;
mod shapes;
mod stories;
mod timers;
mod unreliable;
mod validation;
