//! RoCE v2 packets and the InfiniBand transport, without IO.
//!
//! [`packet`] turns bytes into headers and back and knows no state; the rest keeps queue pairs and
//! knows no bytes beyond what `packet` offers. Nothing here knows a device's registers or queue
//! formats, an operating system, a clock, a thread or a source of randomness: time is an argument,
//! memory is reached through [`Face`].
//!
//! The methods of [`Engine`] come in four kinds: getters, `handle_*` for what arrives, commands
//! from software, and `poll_*` for what should leave, plus [`Engine::next_deadline`].
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

pub mod congestion;
mod counters;
mod credits;
mod datagram;
mod engine;
pub mod explain;
mod face;
mod flow_control;
mod modify;
mod numbers;
pub mod packet;
mod port;
mod qp;
mod reason;
mod requester;
mod responder;
mod timer;

pub use counters::{COUNTER_ROWS, Counter, CounterRow, Counters};
pub use engine::{Engine, EngineConfig, multicast_mac};
pub use face::{
    Access, Atomic, Completion, CompletionKind, Datagram, Event, Face, Fetch, Hold, Place, Status,
    Work, WorkOpcode,
};
pub use flow_control::Pfc;
pub use modify::{AttributeMask, Modify, ModifyError, PathMigState, QpQuery, QpType, Transition};
pub use numbers::{Nanos, Psn, Qpn, RKey, ack_timeout_ns, rnr_timer_ns};
pub use port::{Port, Room, Rx, Train, Verdict};
pub use qp::{AckMode, Attributes, Path, PathMtu, Policy, Qp, RemoteAccess, Service, State};
pub use reason::{REASON_ROWS, Reason, ReasonRow};
