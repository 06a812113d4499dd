//! The parts of a ladder that are worth a look: a few steps before, the thing itself, a few steps
//! after. A long run of packets of one kind becomes a line that counts them.
//!
//! What is worth a look is the caller's choice. What it keeps is bounded, however long the ladder is.

use std::collections::VecDeque;

use softrnic_engine::packet::opcode::{self, OpcodeRow};
use softrnic_engine::{Nanos, Psn};

use super::{Marks, Remark, Rung};

/// One line of a ladder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// A packet.
    Rung(Rung),
    /// Packets like those around them, not shown.
    Skipped(Skipped),
    /// No packet, but something that a station noticed.
    Remark(Remark),
}

impl Step {
    /// When.
    #[must_use]
    pub const fn at(&self) -> Nanos {
        match self {
            Self::Rung(rung) => rung.at,
            Self::Skipped(skipped) => skipped.at,
            Self::Remark(remark) => remark.at,
        }
    }
}

/// Packets of one kind in a row that are not shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Skipped {
    /// When the first one arrived.
    pub at: Nanos,
    /// How many.
    pub count: u64,
    /// Sending station.
    pub from: usize,
    /// Receiving station.
    pub to: usize,
    /// PSN of the first.
    pub first: Psn,
    /// PSN of the last.
    pub last: Psn,
}

/// What a step means for the excerpts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Weight {
    /// Nothing.
    Light,
    /// An excerpt that is open goes on for longer.
    Extends,
    /// Begins an excerpt, or lets the open one go on for longer.
    Opens,
}

/// Steps in a row, long runs shortened.
#[derive(Clone, Debug, Default)]
pub struct Strip {
    steps: VecDeque<Step>,
    /// Frame buffers to use again.
    spare: Vec<Vec<u8>>,
}

/// Packets alike that are shown before some are skipped.
const RUN_SHOWN: usize = 5;
/// Of a run with skipped packets, so many are shown at its start.
const RUN_START: usize = 2;
/// Buffers kept; more than a strip gives back between two packets.
const SPARE_MAX: usize = 8;

impl Strip {
    /// The steps.
    #[must_use]
    pub const fn steps(&self) -> &VecDeque<Step> {
        &self.steps
    }

    /// A frame buffer to fill.
    pub fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Adds a step at the end.
    pub fn push(&mut self, step: Step) {
        if let Step::Rung(next) = &step {
            let run = self.run(next);
            let len = self.steps.len();
            if run > 0 && matches!(self.steps.get(len.wrapping_sub(2)), Some(Step::Skipped(_))) {
                self.skip(len - 1);
            } else if run == RUN_SHOWN {
                let first = len - (RUN_SHOWN - RUN_START);
                for _ in RUN_START..RUN_SHOWN {
                    // The first one makes a line, which the others then follow.
                    let made = matches!(self.steps.get(first), Some(Step::Skipped(_)));
                    self.skip(first + usize::from(made));
                }
            }
        }
        self.steps.push_back(step);
    }

    /// Packets at the end that are like `next`, [`RUN_SHOWN`] at most.
    fn run(&self, next: &Rung) -> usize {
        let alike = |step: &&Step| matches!(step, Step::Rung(rung) if are_alike(rung, next));
        self.steps.iter().rev().take(RUN_SHOWN).take_while(alike).count()
    }

    /// Takes the packet at `at` out and counts it in the step before, or in a new one in its place.
    fn skip(&mut self, at: usize) {
        let Some(Step::Rung(rung)) = self.steps.remove(at) else { return };
        if let Some(Step::Skipped(skipped)) = at.checked_sub(1).and_then(|i| self.steps.get_mut(i))
        {
            skipped.count += 1;
            skipped.last = rung.psn;
        } else {
            let Rung { at: when, from, to, psn, .. } = rung;
            let skipped = Skipped { at: when, count: 1, from, to, first: psn, last: psn };
            self.steps.insert(at, Step::Skipped(skipped));
        }
        self.keep_buffer(rung.frame);
    }

    /// Forgets the oldest steps but for the last `most`.
    fn shorten(&mut self, most: usize) {
        while self.steps.len() > most {
            if let Some(Step::Rung(rung)) = self.steps.pop_front() {
                self.keep_buffer(rung.frame);
            }
        }
    }

    fn keep_buffer(&mut self, frame: Vec<u8>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(frame);
        }
    }

    fn take(&mut self) -> Vec<Step> {
        core::mem::take(&mut self.steps).into()
    }
}

fn are_alike(a: &Rung, b: &Rung) -> bool {
    // What is wrong with a run of packets matters more than their places in messages.
    let kind = |rung: &Rung| {
        let row = rung.opcode.map(opcode::row);
        let position = |row: &OpcodeRow| (rung.marks == Marks::NONE).then_some(row.position);
        row.map(|row| (row.transport, row.operation, position(row)))
    };
    (a.from, a.to, a.qpn, a.marks) == (b.from, b.to, b.qpn, b.marks)
        && kind(a) == kind(b)
        && a.notes == b.notes
}

/// Cuts excerpts out of a ladder as it goes by.
#[derive(Clone, Debug)]
pub struct Excerpts {
    before: usize,
    after: usize,
    longest: usize,
    /// Steps that are kept while none is open.
    kept: usize,
    strip: Strip,
    /// Steps that the open excerpt still takes; `None` where none is open.
    left: Option<usize>,
}

impl Excerpts {
    /// Shows so many steps before and after what opens an excerpt, and at most `longest` in all.
    #[must_use]
    pub fn new(before: usize, after: usize, longest: usize) -> Self {
        Self { before, after, longest, kept: before, strip: Strip::default(), left: None }
    }

    /// Keeps so many steps for [`Excerpts::last_steps`].
    #[must_use]
    pub fn keeping(mut self, kept: usize) -> Self {
        self.kept = kept.max(self.before);
        self
    }

    /// A frame buffer to fill.
    pub fn buffer(&mut self) -> Vec<u8> {
        self.strip.buffer()
    }

    /// Whether an excerpt is open.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.left.is_some()
    }

    /// Takes the next step; gives an excerpt back that ended with the step before.
    pub fn push(&mut self, step: Step, weight: Weight) -> Option<Vec<Step>> {
        let ended = match self.left {
            Some(0) => self.close(),
            _ => None,
        };
        let opens = self.left.is_none() && weight == Weight::Opens;
        if opens {
            self.strip.shorten(self.before);
        }
        self.strip.push(step);
        if opens {
            self.left = Some(self.after);
        } else if let Some(left) = &mut self.left {
            *left = if weight == Weight::Light { left.saturating_sub(1) } else { self.after };
            if self.strip.steps.len() >= self.longest {
                *left = 0;
            }
        } else {
            self.strip.shorten(self.kept);
        }
        ended
    }

    /// Ends the open excerpt, if there is one, and forgets what came before.
    pub fn close(&mut self) -> Option<Vec<Step>> {
        let steps = self.strip.take();
        self.left.take().map(|_| steps)
    }

    /// The last steps, excerpt or not; they are taken.
    pub fn last_steps(&mut self) -> Vec<Step> {
        self.left = None;
        self.strip.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use softrnic_engine::Qpn;

    fn rung(opcode: u8, psn: u32) -> Step {
        Step::Rung(Rung {
            number: psn.into(),
            sent: None,
            at: Nanos(psn.into()),
            from: 0,
            to: 1,
            opcode: Some(opcode),
            qpn: Qpn::new(2),
            psn: Psn::new(psn),
            marks: Marks::NONE,
            notes: Vec::new(),
            frame: Vec::new(),
        })
    }

    fn shape(steps: impl IntoIterator<Item = Step>) -> String {
        let word = |step| match step {
            Step::Rung(rung) => rung.psn.get().to_string(),
            Step::Skipped(s) => format!("[{}: {}-{}]", s.count, s.first.get(), s.last.get()),
            Step::Remark(_) => "!".to_owned(),
        };
        steps.into_iter().map(word).collect::<Vec<_>>().join(" ")
    }

    fn strip_of(psns: impl Iterator<Item = (u8, u32)>) -> String {
        let mut strip = Strip::default();
        psns.for_each(|(opcode, psn)| strip.push(rung(opcode, psn)));
        shape(strip.take())
    }

    #[test]
    fn a_long_run_is_shortened_and_a_short_one_is_not() {
        let middle = |n| (0..n).map(|psn| (opcode::SEND_MIDDLE, psn));
        assert_eq!(strip_of(middle(5)), "0 1 2 3 4");
        assert_eq!(strip_of(middle(6)), "0 1 [3: 2-4] 5");
        assert_eq!(strip_of(middle(100)), "0 1 [97: 2-98] 99");
        let two = middle(9).chain((9..16).map(|psn| (opcode::SEND_ONLY, psn)));
        assert_eq!(strip_of(two), "0 1 [6: 2-7] 8 9 10 [4: 11-14] 15");
    }

    #[test]
    fn an_excerpt_has_its_context_and_an_end() {
        let mut excerpts = Excerpts::new(2, 3, 100);
        let mut found = Vec::new();
        for psn in 0..40 {
            let weight = match psn {
                10 | 30 => Weight::Opens,
                12 => Weight::Extends,
                _ => Weight::Light,
            };
            // Every packet differs from the one before.
            let opcode = if psn % 2 == 0 { opcode::SEND_ONLY } else { opcode::SEND_LAST };
            found.extend(excerpts.push(rung(opcode, psn), weight));
        }
        found.extend(excerpts.close());
        let found: Vec<_> = found.into_iter().map(shape).collect();
        assert_eq!(found, ["8 9 10 11 12 13 14 15", "28 29 30 31 32 33"]);
    }

    #[test]
    fn an_excerpt_is_no_longer_than_allowed() {
        let mut excerpts = Excerpts::new(0, 50, 7);
        let mut found = Vec::new();
        for psn in 0..60 {
            let opcode = if psn % 2 == 0 { opcode::SEND_ONLY } else { opcode::SEND_LAST };
            let weight = if psn < 30 { Weight::Opens } else { Weight::Light };
            found.extend(excerpts.push(rung(opcode, psn), weight));
        }
        found.extend(excerpts.close());
        assert!(found.len() >= 4 && found.iter().all(|steps| steps.len() <= 7), "{found:?}");
    }
}
