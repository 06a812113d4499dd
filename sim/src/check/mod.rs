//! Checkers: what must hold in every world, whatever its faults are (invariants P).
//!
//! They stand apart from what they check: they see frames as they leave and arrive, work as it is
//! posted, completions and memory; of an engine, its getters. None of them decides what happens.
//!
//! | file | what it watches |
//! |---|---|
//! | `requester` | what a queue pair sends: P-10, P-19, P-20, and every header and byte against the posted work |
//! | `credits` | the limit that credits set it: P-10 |
//! | `responder` | what it answers: P-08, P-09, P-19, message sequence numbers |
//! | `port` | what a port takes: packets that fail rule V-01 change nothing (P-11); P-25; counters |
//! | `delivery` | completions and messages: P-01, P-02, P-07, P-21, P-22 |
//! | `memory` | bytes: P-03, P-05, and atomics' sums: P-04 |
//! | `progress` | that everything ends in time: P-06 |

mod credits;
mod delivery;
mod memory;
mod port;
mod progress;
mod requester;
mod responder;

use std::fmt;

pub(crate) use delivery::{Delivery, Ended, Message};
pub(crate) use memory::{Atomics, MemoryMap, Use};
pub(crate) use port::{End, NodeCheck};
pub(crate) use progress::Limits;
pub(crate) use requester::Posted;
use softrnic_engine::Nanos;

/// Something that must never happen, and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The invariant or rule.
    pub invariant: &'static str,
    /// When.
    pub at: Nanos,
    /// What was seen.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} ns: {}", self.invariant, self.at.0, self.text)
    }
}

/// The first violations that a world shows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings(pub(crate) Vec<Violation>);

impl Findings {
    const KEPT: usize = 8;

    /// Notes a violation. `text` is only made where it is kept.
    pub(crate) fn add(
        &mut self,
        invariant: &'static str,
        at: Nanos,
        text: impl FnOnce() -> String,
    ) {
        if self.0.len() < Self::KEPT {
            self.0.push(Violation { invariant, at, text: text() });
        }
    }

    /// Notes a violation where `holds` is false.
    pub(crate) fn require(
        &mut self,
        holds: bool,
        invariant: &'static str,
        at: Nanos,
        text: impl FnOnce() -> String,
    ) {
        if !holds {
            self.add(invariant, at, text);
        }
    }
}

/// Whether `a` is `b` or up to half of the number space after it (rule S-01), worked out anew.
pub(crate) const fn at_or_after(a: u32, b: u32) -> bool {
    distance(a, b) < 1 << 23
}

/// How many PSNs `a` is after `b`, modulo 2^24.
pub(crate) const fn distance(a: u32, b: u32) -> u32 {
    a.wrapping_sub(b) & 0x00FF_FFFF
}
