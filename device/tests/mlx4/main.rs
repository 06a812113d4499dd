//! The Hermon face: its queue pair context bit by bit, then the commands that apply it.
#![allow(clippy::unwrap_used, reason = "clippy knows test functions only, not what they share")]

mod apply;
mod context;
mod exchange;
mod foreign;
mod reference;
mod transitions;
mod values;
#[path = "../verbs/world.rs"]
#[allow(dead_code, reason = "shared with the native face's tests, used in part")]
mod world;
