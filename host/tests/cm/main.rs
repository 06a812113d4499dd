//! Stories of connections: every message, every timeout, every refusal, on a virtual clock.
#![allow(clippy::unwrap_used, reason = "a test's own helpers may panic")]

mod cable;
mod echo;
mod end;
mod ernic;
mod nic;
mod properties;
mod setup;
mod wire;
