//! Applies fault rules: asked about a frame, it says what becomes of it and remembers which rule
//! fired.
//!
//! A pure function of rules, seed and what it was asked before: it holds no frame and no clock, and
//! knows neither worlds nor links.

use softrnic_engine::packet::parse;
use softrnic_engine::{Nanos, Psn, Qpn};

use super::corrupt::mark_ecn;
use super::face::{AtFace, HeldCompletion, LostCompletion};
use super::rule::{Action, Cut, Direction, InWords, Kind, Match, Rule, Rules};
use crate::ladder::describe_frame;
use crate::random::{Random, mix};

/// Firings of a rule that are remembered one by one; further ones are only counted.
const FIRINGS_KEPT: usize = 1_000;

/// What becomes of a frame. Its bytes have changed already.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The rule that loses it.
    pub lost: Option<usize>,
    /// Bytes that are left of it.
    pub len: usize,
    /// It arrives so much later.
    pub delay_ns: u64,
    /// It arrives after so many later frames of its direction, and after the time of
    /// [`Outcome::behind_limit_ns`] even without them. 0: as usual.
    pub behind: u32,
    /// See [`Outcome::behind`].
    pub behind_limit_ns: u64,
    /// Copies that arrive after it.
    pub copies: u32,
    /// Time from one copy to the next.
    pub apart_ns: u64,
    /// The rules that fired, by number from 0.
    pub fired: Vec<usize>,
}

/// One firing of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Firing {
    /// When.
    pub at: Nanos,
    /// At which node.
    pub node: usize,
    /// On what: the frame as it was before, in words.
    pub what: String,
}

/// What a rule has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Frames or calls that matched, but for probability, `nth` and `times`.
    pub matched: u64,
    /// How often it fired.
    pub fired: u64,
    /// The first firings.
    pub firings: Vec<Firing>,
}

#[derive(Clone, Debug)]
struct State {
    random: Random,
    /// What was left after the draw: what `nth` counts.
    lucky: u64,
    /// Switched off: the rule sees nothing.
    off: bool,
    tally: Tally,
}

/// Rules and what they have counted so far.
#[derive(Clone, Debug, Default)]
pub struct Injector {
    rules: Vec<Rule>,
    states: Vec<State>,
    phase: Option<usize>,
    phase_began: Nanos,
    /// Completions that wait, in the order of their queues.
    pub(super) held: Vec<HeldCompletion>,
    /// Completions of work requests that rules have lost.
    pub(super) lost: Vec<LostCompletion>,
}

/// What a rule may ask of a frame's headers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    opcode: u8,
    psn: Psn,
    qp: Qpn,
    kind: Option<Kind>,
}

impl Head {
    pub(super) fn of(frame: &[u8]) -> Option<Self> {
        let packet = parse(frame).ok()?;
        let kind = packet.aeth().and_then(|aeth| Kind::of(aeth.kind()));
        let bth = packet.bth;
        Some(Self { opcode: bth.opcode, psn: bth.psn(), qp: bth.dest_qpn(), kind })
    }
}

impl Injector {
    /// Rules that have seen nothing yet. What a rule draws from the seed depends on the rule alone, so
    /// that taking another rule away changes none of its draws.
    #[must_use]
    pub fn new(rules: Rules, seed: u64) -> Self {
        let Rules(rules) = rules;
        let mut states = Vec::with_capacity(rules.len());
        for (i, rule) in rules.iter().enumerate() {
            let twins = rules[..i].iter().filter(|other| *other == rule).count() as u64;
            let random = Random::new(seed, stream_of(rule).wrapping_add(twins));
            states.push(State { random, lucky: 0, off: false, tally: Tally::default() });
        }
        Self { rules, states, phase: None, phase_began: Nanos(0), ..Self::default() }
    }

    /// A phase begins: rules that are bound to it count time from here.
    pub const fn start_phase(&mut self, phase: usize, now: Nanos) {
        self.phase = Some(phase);
        self.phase_began = now;
    }

    /// The rules.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Switches a rule, by number from 0, off or on; false where there is none. While it is off it sees and
    /// counts nothing; completions that it holds still come.
    pub fn switch(&mut self, rule: usize, on: bool) -> bool {
        let state = self.states.get_mut(rule);
        state.map(|state| state.off = !on).is_some()
    }

    /// Whether a rule, by number from 0, is in force.
    #[must_use]
    pub fn is_on(&self, rule: usize) -> bool {
        self.states.get(rule).is_some_and(|state| !state.off)
    }

    /// What each rule has done, in the rules' order.
    pub fn tallies(&self) -> impl Iterator<Item = &Tally> {
        self.states.iter().map(|state| &state.tally)
    }

    /// A rule in words, with names for its node and phase.
    #[must_use]
    pub fn describe(rule: &Rule, nodes: &[&str], phases: &[&str]) -> String {
        InWords { rule, nodes, phases }.to_string()
    }

    /// A frame leaves `node` or arrives there. Changes its bytes where a rule says so.
    pub fn frame(
        &mut self,
        now: Nanos,
        direction: Direction,
        node: usize,
        frame: &mut [u8],
    ) -> Outcome {
        let mut outcome = Outcome { len: frame.len(), ..Outcome::default() };
        // All rules look at the frame as it came, so that their order does not matter for that.
        let mut head: Option<Option<Head>> = None;
        for (i, rule) in self.rules.iter().enumerate() {
            let m = &rule.matches;
            if self.states[i].off
                || rule.action.at_face()
                || m.direction != direction
                || m.node.is_some_and(|n| n != node)
                || !in_time(m, now, self.phase, self.phase_began)
            {
                continue;
            }
            if asks_for_head(m) || m.qp.is_some() {
                let head = *head.get_or_insert_with(|| Head::of(frame));
                if !head_matches(m, head)
                    || m.qp.is_some_and(|qp| head.is_none_or(|head| head.qp != qp))
                {
                    continue;
                }
            }
            let state = &mut self.states[i];
            if state.fires(m) {
                outcome.fired.push(i);
            }
        }
        if outcome.fired.is_empty() {
            return outcome;
        }
        let what = describe_frame(frame);
        // An empty list while the rules are carried out; it comes back below.
        for i in core::mem::take(&mut outcome.fired) {
            let state = &mut self.states[i];
            if act(&self.rules[i].action, i, frame, &mut outcome, &mut state.random) {
                state.tally.add(now, node, || what.clone());
                outcome.fired.push(i);
            }
        }
        outcome
    }

    /// Whether any rule is about a face's calls.
    #[must_use]
    pub fn has_face_rules(&self) -> bool {
        self.rules.iter().any(|rule| rule.action.at_face())
    }

    /// Whether any rule loses interrupts, so that software looks only when it is woken.
    #[must_use]
    pub fn has_interrupt_rules(&self) -> bool {
        self.rules.iter().any(|rule| rule.action == Action::LoseInterrupt)
    }

    /// The rules as they stand before a node's face.
    pub const fn at_face(&mut self, now: Nanos, node: usize) -> AtFace<'_> {
        AtFace::new(self, now, node)
    }

    /// When the next completion of a node that waits is due.
    #[must_use]
    pub fn held_until(&self, node: usize) -> Option<Nanos> {
        self.held.iter().filter(|held| held.node == node).map(|held| held.due).min()
    }

    /// The completions of work requests that rules have lost so far, in their order.
    pub(crate) fn lost_completions(&self) -> &[LostCompletion] {
        &self.lost
    }

    /// The node's device raises an interrupt: does it get lost?
    pub fn loses_interrupt(&mut self, now: Nanos, node: usize) -> bool {
        let wanted = |action: &Action| *action == Action::LoseInterrupt;
        self.call(now, node, None, None, wanted, || "interrupt".to_owned()).is_some()
    }

    /// A face's call, for queue pair `q`, while the frame with `head` is in hand: the action of the
    /// first rule that fires, among those whose action is `wanted`. Interrupts belong to no queue pair.
    pub(super) fn call(
        &mut self,
        now: Nanos,
        node: usize,
        q: Option<Qpn>,
        head: Option<Head>,
        wanted: impl Fn(&Action) -> bool,
        what: impl Fn() -> String,
    ) -> Option<Action> {
        let mut first = None;
        for (i, rule) in self.rules.iter().enumerate() {
            let m = &rule.matches;
            if self.states[i].off
                || !wanted(&rule.action)
                || m.node.is_some_and(|n| n != node)
                || m.qp.is_some_and(|qp| q != Some(qp))
                || !in_time(m, now, self.phase, self.phase_began)
                || !head_matches(m, head)
            {
                continue;
            }
            let state = &mut self.states[i];
            if state.fires(m) && first.is_none() {
                state.tally.add(now, node, &what);
                first = Some(rule.action.clone());
            }
        }
        first
    }
}

impl Tally {
    fn add(&mut self, at: Nanos, node: usize, what: impl FnOnce() -> String) {
        self.fired += 1;
        if self.firings.len() < FIRINGS_KEPT {
            self.firings.push(Firing { at, node, what: what() });
        }
    }
}

impl State {
    /// One more that matches: does the rule fire? The draw is made whatever `nth` says.
    fn fires(&mut self, m: &Match) -> bool {
        self.tally.matched += 1;
        if !m.probability.is_none_or(|share| self.random.chance(share)) {
            return false;
        }
        self.lucky += 1;
        let first = m.nth.unwrap_or(1);
        let times = m.times.unwrap_or(if m.nth.is_some() { 1 } else { u64::MAX });
        self.lucky >= first && self.lucky - first < times
    }
}

fn in_time(m: &Match, now: Nanos, phase: Option<usize>, phase_began: Nanos) -> bool {
    let elapsed = match m.phase {
        None => now.0,
        Some(_) if m.phase == phase => now.0.saturating_sub(phase_began.0),
        Some(_) => return false,
    };
    m.from_ns.is_none_or(|from| elapsed >= from) && m.until_ns.is_none_or(|until| elapsed < until)
}

fn asks_for_head(m: &Match) -> bool {
    m.opcode.is_some() || m.psn.is_some() || m.kind.is_some()
}

/// Whether opcode, PSN and syndrome are those that the rule looks for.
fn head_matches(m: &Match, head: Option<Head>) -> bool {
    let Some(head) = head else { return !asks_for_head(m) };
    m.opcode.as_ref().is_none_or(|opcodes| opcodes.contains(head.opcode))
        && m.psn.is_none_or(|psn| psn == head.psn)
        && m.kind.is_none_or(|kind| Some(kind) == head.kind)
}

/// Carries a rule out; false where there was nothing to change.
fn act(
    action: &Action,
    rule: usize,
    frame: &mut [u8],
    outcome: &mut Outcome,
    random: &mut Random,
) -> bool {
    match *action {
        Action::Drop => outcome.lost = outcome.lost.or(Some(rule)),
        Action::Duplicate { copies, apart_ns } => {
            outcome.copies = outcome.copies.saturating_add(copies);
            outcome.apart_ns = outcome.apart_ns.max(apart_ns);
        }
        Action::Delay { by_ns, jitter_ns } => {
            let jitter = random.next_u64() % jitter_ns.saturating_add(1).max(1);
            outcome.delay_ns = outcome.delay_ns.saturating_add(by_ns).saturating_add(jitter);
        }
        Action::Reorder { behind, limit_ns } => {
            outcome.behind = outcome.behind.max(behind);
            outcome.behind_limit_ns = outcome.behind_limit_ns.max(limit_ns);
        }
        Action::Corrupt(corruption) => {
            let len = outcome.len;
            return corruption.apply(&mut frame[..len], random);
        }
        Action::Truncate(cut) => {
            let before = outcome.len;
            outcome.len = match cut {
                Cut::To(len) => before.min(len),
                Cut::By(len) => before.saturating_sub(len),
            };
            return outcome.len < before;
        }
        Action::MarkEcn => {
            let len = outcome.len;
            return mark_ecn(&mut frame[..len]);
        }
        // At the face: `Injector::call`.
        Action::HoldCompletion { .. }
        | Action::LoseCompletion { .. }
        | Action::LoseInterrupt
        | Action::DmaError { .. }
        | Action::StallReceive => return false,
    }
    true
}

/// A number that two different rules do not share in practice.
fn stream_of(rule: &Rule) -> u64 {
    let text = format!("{:?} {:?}", rule.matches, rule.action);
    text.bytes().fold(0, |hash, byte| mix(hash ^ u64::from(byte)))
}
