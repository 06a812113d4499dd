//! What the ERNIC face does besides moving data between two queue pairs: pauses, side-band ports,
//! management datagrams, congestion notifications, and the bring-up sequences of real drivers.
#![allow(clippy::unwrap_used, reason = "a test's own helpers may panic")]

mod bench;
mod bring_up;
mod handshake;
mod ipv6;
mod management;
mod pauses;
mod reconic;
mod script;
