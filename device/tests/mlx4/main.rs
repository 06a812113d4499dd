//! The Hermon face: its queue pair context bit by bit, then the commands that apply it.
#![allow(clippy::unwrap_used, reason = "clippy knows test functions only, not what they share")]

mod context;
mod foreign;
