//! Invariants that one run cannot show: two runs of a plan that must come to the same.
//!
//! P-11 (frames that nobody may hear change nothing), P-12 (a frame with a wrong bit is a lost frame;
//! masked bits mean nothing), P-18 (queue pairs are independent), P-24 (the same plan plays the same).

use softrnic_engine::Nanos;

use super::meddle::Meddle;
use super::plan::{Class, Plan, ServiceKind};
use super::play::{Outcome, Trace, play, play_with};
use crate::check::Violation;
use crate::fault::Rules;
use crate::random::Random;

const STREAM: u64 = 0x9A12;

/// Plays a plan, and then once or twice more, as the seed says. What differs is a violation.
pub(super) fn play_paired(plan: &Plan, first: &Outcome) -> Vec<Violation> {
    let mut random = Random::new(plan.seed, STREAM);
    let drawn = random.next_u64();
    let at = Nanos(first.virtual_ns);
    let mut violations = Vec::new();
    let mut same = |invariant: &'static str, a: &[Trace], b: &[Trace], timed: bool, text: &str| {
        let differs = |(a, b): (&Trace, &Trace)| {
            if timed { a.timed != b.timed } else { a.timeless != b.timeless }
        };
        if let Some(trace) = a.iter().zip(b).find(|pair| differs(*pair)).map(|(a, _)| a) {
            let text = format!("connection {}: {text}", trace.connection);
            violations.push(Violation { invariant, at, text });
        }
    };
    let again = |meddle: &Meddle| play_with(plan, meddle, &mut ()).traces;
    // What a lie is made wrong by may make it right again.
    let honest = plan.class != Class::Hostile;
    match drawn % 5 {
        1 if honest => {
            let injected = again(&Meddle::Inject { random, partitions: true });
            same("P-11", &first.traces, &injected, true, "a frame that nobody may hear is felt");
        }
        0 | 1 => {
            same("P-24", &first.traces, &play(plan).traces, true, "plays otherwise the second time")
        }
        2 => {
            let masked = again(&Meddle::Masked(random));
            same("P-12", &first.traces, &masked, true, "a bit that the ICRC masks is felt");
        }
        3 => {
            let node = (drawn >> 8) as usize % plan.node.len().max(1);
            let nth = (drawn >> 16) % 40;
            let bit = random.next_u64();
            let lost = again(&Meddle::Lose { node, nth });
            let flipped = again(&Meddle::Flip { node, nth, bit });
            same("P-12", &lost, &flipped, true, "a wrong bit is something else than a loss");
        }
        _ => independent(plan, (drawn >> 8) as usize, &mut same),
    }
    violations
}

/// P-18: the others fall silent, and one connection does what it did. The line is so fast that it is
/// shared by nobody, and there are no faults that another's frames could move.
fn independent(
    plan: &Plan,
    chosen: usize,
    same: &mut impl FnMut(&'static str, &[Trace], &[Trace], bool, &str),
) {
    let mut together = plan.clone();
    together.faults = Rules::default();
    together.rate_bits_per_s = u64::MAX;
    for node in &mut together.node {
        (node.shared_cq, node.shared_rq) = (false, false);
    }
    let chosen = chosen % plan.connection.len().max(1);
    // What leaves unanswered completes unheard: software goes on when it looks for another reason.
    if plan.connection.get(chosen).is_none_or(|c| c.service != ServiceKind::Rc) {
        return;
    }
    let mut alone = together.clone();
    // Messages keep their numbers: what is silent is late, after everything else, and yet within the time
    // that links count (u64 picoseconds).
    const LATE_NS: u64 = 1 << 53;
    let own = |plan: &Plan| {
        let traces = play(plan).traces;
        traces.into_iter().filter(|trace| trace.connection == chosen).collect::<Vec<_>>()
    };
    for message in alone.message.iter_mut().filter(|m| m.connection != chosen) {
        message.at_ns = LATE_NS;
    }
    same("P-18", &own(&together), &own(&alone), false, "does otherwise than without the others");
}
