//! Random worlds: made from a seed, played under the checkers, shrunk where they fail.
//!
//! | file | what |
//! |---|---|
//! | `plan` | a world as data, and as a scenario file |
//! | `generate` | from a seed to a plan |
//! | `play` | a plan on its virtual clock, with the checkers |
//! | `pairs`, `meddle` | invariants that need two runs |
//! | `shrink` | from a failing plan to a small one |
//! | `software`, `native`, `ernic` | what software does on a node |
//!
//! Worlds are independent of each other: threads and machines are the caller's.

mod ernic;
mod generate;
mod meddle;
mod native;
mod pairs;
mod plan;
mod play;
mod shrink;
mod software;

pub use generate::random_plan;
pub use plan::{Class, ConnectionPlan, Flaw, Kind, MessagePlan, NodePlan, Plan, ServiceKind};
pub use play::{Outcome, play, play_watched};
pub use shrink::shrink;

use std::panic::{AssertUnwindSafe, catch_unwind};

use softrnic_engine::Nanos;

pub use crate::check::Violation;

/// Plays a plan under every checker, those that need more than one run included. A panic of what is
/// checked is a violation, too.
#[must_use]
pub fn trial(plan: &Plan) -> Outcome {
    // Nothing that a panic leaves half done outlives the call.
    let played = catch_unwind(AssertUnwindSafe(|| {
        let mut outcome = play(plan);
        if outcome.violations.is_empty() {
            outcome.violations = pairs::play_paired(plan, &outcome);
        }
        outcome
    }));
    played.unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
        let violation = Violation { invariant: "panic", at: Nanos(0), text };
        Outcome { violations: vec![violation], ..Outcome::default() }
    })
}
