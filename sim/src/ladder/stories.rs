//! What a report shows of a run's packets: an excerpt around the first trouble of each kind in each
//! phase, and how often there was more of the same.
//!
//! An observer. What it keeps is bounded, whatever the run does.

use std::collections::BTreeMap;

use softrnic_engine::Nanos;

use super::{Excerpts, Mark, Marks, Remark, Rung, Step, Weight, complaint, short_note};
use crate::world::{Observer, Sighting};

/// An excerpt with its reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Story {
    /// Number of the phase, from 0.
    pub phase: usize,
    /// What it is about, in words.
    pub title: String,
    /// The steps.
    pub steps: Vec<Step>,
}

/// How often something happened in a phase.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    /// Number of the phase, from 0.
    pub phase: usize,
    /// What happened, in words.
    pub what: String,
    /// When it happened first.
    pub first: Nanos,
    /// How often.
    pub count: u64,
}

/// Collects stories.
#[derive(Clone, Debug)]
pub struct Stories {
    /// Fault rules in words, by number.
    faults: Vec<String>,
    excerpts: Excerpts,
    trouble: Marks,
    frames: u64,
    phase: usize,
    /// First time and count of what happened in this phase.
    seen: BTreeMap<String, (Nanos, u64)>,
    title: String,
    in_phase: usize,
    stories: Vec<Story>,
    told: Vec<Told>,
}

const BEFORE: usize = 6;
const AFTER: usize = 10;
const STEPS_MAX: usize = 40;
/// Steps before the end of a phase that failed.
const LAST: usize = 24;
const STORIES_PER_PHASE: usize = 5;
const STORIES_MAX: usize = 24;
/// More than those, for the ends of phases that failed.
const LAST_STORIES_MAX: usize = 12;
/// Kinds of trouble that are told apart in a phase; the rest is counted together.
const KINDS_MAX: usize = 32;

impl Stories {
    /// `faults` are the scenario's fault rules in words.
    #[must_use]
    pub fn new(faults: Vec<String>) -> Self {
        Self {
            faults,
            excerpts: Excerpts::new(BEFORE, AFTER, STEPS_MAX).keeping(LAST),
            trouble: Marks::trouble(),
            frames: 0,
            phase: 0,
            seen: BTreeMap::new(),
            title: String::new(),
            in_phase: 0,
            stories: Vec::new(),
            told: Vec::new(),
        }
    }

    /// The phase is over. Where it failed, its last steps are a story, too.
    pub fn end_phase(&mut self, failed: bool) {
        if self.excerpts.is_open() {
            let steps = self.excerpts.close();
            self.keep(steps);
        } else if failed && self.stories.len() < STORIES_MAX + LAST_STORIES_MAX {
            self.title = "the last packets before the phase failed".to_owned();
            let steps = self.excerpts.last_steps();
            self.keep((!steps.is_empty()).then_some(steps));
        } else {
            self.excerpts.close();
        }
        let phase = self.phase;
        let seen = core::mem::take(&mut self.seen).into_iter();
        let told = seen.map(|(what, (first, count))| Told { phase, what, first, count });
        let mut told: Vec<_> = told.collect();
        told.sort_by_key(|told| told.first);
        self.told.append(&mut told);
        self.phase += 1;
        self.in_phase = 0;
    }

    /// The stories, and all that happened, by phase.
    #[must_use]
    pub fn finish(self) -> (Vec<Story>, Vec<Told>) {
        (self.stories, self.told)
    }

    fn has_room(&self) -> bool {
        self.in_phase < STORIES_PER_PHASE && self.stories.len() < STORIES_MAX
    }

    fn keep(&mut self, steps: Option<Vec<Step>>) {
        if let Some(steps) = steps {
            let title = core::mem::take(&mut self.title);
            self.stories.push(Story { phase: self.phase, title, steps });
        }
    }

    /// `what` is the trouble, if it is any; other steps with marks belong to the trouble before.
    fn push(&mut self, step: Step, what: Option<String>) {
        let at = step.at();
        let marked = matches!(&step, Step::Rung(rung) if rung.marks != Marks::NONE);
        let weight = match &what {
            None if marked => Weight::Extends,
            None => Weight::Light,
            Some(what) => match self.seen.get_mut(what) {
                Some((_, count)) => {
                    *count += 1;
                    Weight::Extends
                }
                None => self.first(what, at),
            },
        };
        let was_open = self.excerpts.is_open();
        let ended = self.excerpts.push(step, weight);
        let closed = ended.is_some();
        self.keep(ended);
        if weight == Weight::Opens && (closed || !was_open) {
            self.title = what.unwrap_or_default();
            self.in_phase += 1;
        }
    }

    fn first(&mut self, what: &str, at: Nanos) -> Weight {
        if self.seen.len() < KINDS_MAX {
            self.seen.insert(what.to_owned(), (at, 1));
        } else {
            self.seen.entry("more of other kinds".to_owned()).or_insert((at, 0)).1 += 1;
        }
        if self.has_room() { Weight::Opens } else { Weight::Extends }
    }
}

impl Observer for Stories {
    fn frame(&mut self, sighting: &Sighting<'_>) {
        self.frames += 1;
        let buffer = self.excerpts.buffer();
        let rung = Rung::of_sighting(sighting, self.frames, &self.faults, buffer);
        let what = if rung.marks.meets(self.trouble) { Some(title_of(&rung)) } else { None };
        self.push(Step::Rung(rung), what);
    }

    fn remark(&mut self, remark: &Remark) {
        let what = match remark.mark {
            // Each message has words of its own.
            Mark::Error => "error: the run's checks failed".to_owned(),
            // The first sentence is the same for all.
            _ => remark.text.split(". ").next().unwrap_or_default().to_owned(),
        };
        self.push(Step::Remark(remark.clone()), Some(what));
    }
}

/// What the trouble with a packet is, without what differs from packet to packet.
fn title_of(rung: &Rung) -> String {
    let marked = |note: &&String| Mark::of_comment(note).is_some_and(|m| m != Mark::Retransmission);
    // The rule that was written down says more than what became of the frame.
    let fault = |note: &&String| Mark::of_comment(note) == Some(Mark::Fault);
    let of_note = rung.notes.iter().find(fault).or_else(|| rung.notes.iter().find(marked));
    let of_note = of_note.map(|note| short_note(note).to_owned());
    of_note.or_else(|| complaint(&rung.frame)).unwrap_or_else(|| "trouble".to_owned())
}
