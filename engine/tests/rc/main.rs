//! Reliable connection: two engines on a virtual clock, told as stories.

#![allow(clippy::expect_used, reason = "clippy knows only functions marked #[test] as tests")]

mod adversary;
mod exchange;
mod harness;
mod limits;
mod stories;
