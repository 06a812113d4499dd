//! vfio-user as a client meets it: a scripted client without a virtual machine brings devices up, moves
//! data between two of them, and misuses every message.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test's own helpers may panic")]

mod bench;
mod bring_up;
mod client;
mod exchange;
mod foreign;
mod guest;
mod lifetime;
mod memory;
mod misuse;
