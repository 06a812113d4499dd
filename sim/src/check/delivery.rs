//! Watches completions and messages of one direction of a connection: P-01 (delivered once, whole, in
//! order), P-02 (completions in order), P-07 (one completion for each work request), P-21 (UC), P-22
//! (UD).
//!
//! Knows posted work, completions and the bytes of arrived messages.

use softrnic_engine::{Nanos, Service};

use super::Findings;
use crate::campaign::Kind;
use crate::payload::fill_pattern_from;

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Success,
    /// It failed itself.
    Error,
    /// The queue pair had failed before.
    Flushed,
}

/// A message that was posted.
#[derive(Clone, Copy, Debug)]
struct Item {
    message: usize,
    kind: Kind,
    len: u32,
    immediate: u32,
    pattern: u64,
    signaled: bool,
    /// The peer's software hears of it by a completed receive.
    heard: bool,
    ended: Option<Ended>,
    /// How it ended where a fault rule has lost its completion.
    lost: Option<Ended>,
}

/// A message as it was posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) number: usize,
    pub(crate) kind: Kind,
    pub(crate) len: u32,
    pub(crate) immediate: u32,
    pub(crate) pattern: u64,
    pub(crate) signaled: bool,
    pub(crate) heard: bool,
}

/// One direction of a connection.
#[derive(Debug)]
pub(crate) struct Delivery {
    name: String,
    service: Service,
    /// The link may repeat or reorder frames.
    shuffles: bool,
    /// Frames may lie: contents are not compared.
    hostile: bool,
    items: Vec<Item>,
    /// Items before this have ended.
    completed: usize,
    failed: bool,
    /// Receives that completed, and the item that the last one was.
    arrived: usize,
    last: Option<usize>,
}

impl Delivery {
    pub(crate) fn new(name: String, service: Service, shuffles: bool, hostile: bool) -> Self {
        Self {
            name,
            service,
            shuffles,
            hostile,
            items: Vec::new(),
            completed: 0,
            failed: false,
            arrived: 0,
            last: None,
        }
    }

    /// Software posted a message.
    pub(crate) fn posted(&mut self, message: Message) {
        let Message { number, kind, len, immediate, pattern, signaled, heard } = message;
        let (ended, lost) = (None, None);
        self.items.push(Item {
            message: number,
            kind,
            len,
            immediate,
            pattern,
            signaled,
            heard,
            ended,
            lost,
        });
    }

    /// A fault rule has lost the completion of a work request, the `index`th that was posted.
    pub(crate) fn lost(&mut self, index: usize, ended: Ended) {
        if let Some(item) = self.items.get_mut(index) {
            item.lost = Some(ended);
        }
    }

    /// At the end: what has ended since the last completion that software took, with a lost one.
    pub(crate) fn unheard(&mut self) -> Vec<(usize, Ended)> {
        let mut done = Vec::new();
        while let Some(item) = self.items.get_mut(self.completed)
            && let Some(ended) = item.lost
        {
            item.ended = Some(ended);
            done.push((item.message, ended));
            self.completed += 1;
        }
        done
    }

    /// Work requests that are posted and have not ended.
    pub(crate) fn outstanding(&self) -> usize {
        self.items.len() - self.completed
    }

    /// Software took a completion. Returns the messages that have ended by it, oldest first: silent
    /// ones before it, too.
    pub(crate) fn completed(
        &mut self,
        now: Nanos,
        message: usize,
        ended: Ended,
        findings: &mut Findings,
    ) -> Vec<(usize, Ended)> {
        let Self { name, items, .. } = self;
        let Some(at) = items[self.completed..].iter().position(|item| item.message == message)
        else {
            findings.add("P-07", now, || {
                format!(
                    "{name}: message {message} completes as {ended:?}, which is not outstanding"
                )
            });
            return Vec::new();
        };
        let at = self.completed + at;
        let mut done = Vec::new();
        // Silence is success: an error is always reported, unless a rule has lost the report.
        for item in &mut items[self.completed..at] {
            let silent = !item.signaled && !self.failed;
            findings.require(silent || item.lost.is_some(), "P-02", now, || {
                format!("{name}: message {message} completes before message {}", item.message)
            });
            let ended = item.lost.unwrap_or(Ended::Success);
            self.failed |= ended != Ended::Success;
            item.ended = Some(ended);
            done.push((item.message, ended));
        }
        let right = match ended {
            Ended::Success | Ended::Error => !self.failed,
            Ended::Flushed => true,
        };
        findings.require(right, "P-07", now, || {
            format!("{name}: message {message} ends as {ended:?} after the queue pair failed")
        });
        self.failed |= ended != Ended::Success;
        items[at].ended = Some(ended);
        done.push((message, ended));
        self.completed = at + 1;
        done
    }

    /// Software took a message: `bytes` are as long as the face says, or the whole buffer where it
    /// does not say. Returns its length.
    pub(crate) fn arrived(
        &mut self,
        now: Nanos,
        bytes: &[u8],
        len: Option<u32>,
        immediate: Option<Option<u32>>,
        findings: &mut Findings,
    ) -> u32 {
        let told = len.unwrap_or(0);
        self.arrived += 1;
        if self.hostile {
            return told;
        }
        let fits = |item: &Item| {
            let own =
                if item.kind.is_send() { bytes.get(..item.len as usize) } else { Some(&[][..]) };
            let mut expected = vec![0; own.map_or(0, <[u8]>::len)];
            fill_pattern_from(item.pattern, 0, &mut expected);
            let imm = item.kind.has_immediate().then_some(item.immediate);
            len.is_none_or(|len| len == item.len)
                && own == Some(&expected[..])
                && immediate.is_none_or(|found| found == imm)
        };
        let after = self.last.map_or(0, |last| last + 1);
        let heard = |&(_, item): &(usize, &Item)| item.heard;
        let found = match self.service {
            // Exactly the next one.
            Service::Rc => {
                self.items.iter().enumerate().skip(after).find(heard).filter(|(_, i)| fits(i))
            }
            _ if self.shuffles => {
                self.items.iter().enumerate().filter(heard).find(|(_, i)| fits(i))
            }
            _ => self.items.iter().enumerate().skip(after).filter(heard).find(|(_, i)| fits(i)),
        };
        let invariant = match self.service {
            Service::Rc => "P-01",
            Service::Uc => "P-21",
            _ => "P-22",
        };
        let Some((at, item)) = found else {
            let next =
                self.items.iter().skip(after).find(|item| item.heard).map(|item| item.message);
            findings.add(invariant, now, || {
                format!(
                    "{}: receive {} ({len:?} bytes, immediate {immediate:?}) is not message {next:?}",
                    self.name,
                    self.arrived - 1
                )
            });
            return told;
        };
        self.last = Some(at);
        item.len
    }

    /// At the end. `dead`: the queue pair is in an error state. `must_arrive`: P-01 promises all.
    pub(crate) fn finish(
        &mut self,
        now: Nanos,
        dead: bool,
        must_arrive: bool,
        findings: &mut Findings,
    ) {
        let Self { name, items, completed, .. } = self;
        let waits = items[*completed..].iter().find(|i| (i.signaled || dead) && i.lost.is_none());
        findings.require(waits.is_none(), if dead { "P-07" } else { "P-06" }, now, || {
            let what = if dead { "the queue pair failed" } else { "the queue pair is stuck" };
            format!("{name}: message {} never completes; {what}", waits.map_or(0, |w| w.message))
        });
        // Silent ones at the end, on a queue pair that works.
        let succeeded = |item: &Item| item.ended == Some(Ended::Success);
        if self.service != Service::Rc || self.hostile {
            return;
        }
        let sure = items.iter().filter(|item| item.heard && succeeded(item)).count();
        findings.require(self.arrived >= sure, "P-01", now, || {
            format!("{name}: {sure} messages are acknowledged, {} arrived", self.arrived)
        });
        if must_arrive {
            let bad = items.iter().find(|item| item.signaled && !succeeded(item));
            findings.require(bad.is_none(), "P-01", now, || {
                let ended = bad.and_then(|item| item.ended);
                format!("{name}: message {} ends as {ended:?}", bad.map_or(0, |item| item.message))
            });
            let all = items.iter().filter(|item| item.heard).count();
            findings.require(self.arrived == all, "P-01", now, || {
                format!("{name}: {} of {all} messages arrived", self.arrived)
            });
        }
    }

    /// Receives that completed.
    pub(crate) const fn arrivals(&self) -> usize {
        self.arrived
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn direction() -> Delivery {
        let mut direction = Delivery::new("a".to_owned(), Service::Rc, false, false);
        for number in 0..4 {
            let signaled = number != 1;
            let (kind, len, immediate, pattern, heard) = (Kind::Send, 0, 0, 0, true);
            direction.posted(Message { number, kind, len, immediate, pattern, signaled, heard });
        }
        direction
    }

    fn names(findings: &Findings) -> Vec<&'static str> {
        findings.0.iter().map(|violation| violation.invariant).collect()
    }

    #[test]
    fn completions_in_order_pass_with_silent_ones_between() {
        let (mut direction, mut findings) = (direction(), Findings::default());
        for message in [0, 2] {
            direction.completed(Nanos(1), message, Ended::Success, &mut findings);
        }
        for _ in 0..4 {
            direction.arrived(Nanos(1), &[], Some(0), Some(None), &mut findings);
        }
        direction.completed(Nanos(2), 3, Ended::Success, &mut findings);
        direction.finish(Nanos(3), false, true, &mut findings);
        assert_eq!(names(&findings), [""; 0]);
    }

    #[test]
    fn a_completion_that_overtakes_or_comes_twice_is_found() {
        let (mut direction, mut findings) = (direction(), Findings::default());
        direction.completed(Nanos(1), 2, Ended::Success, &mut findings);
        direction.completed(Nanos(1), 2, Ended::Success, &mut findings);
        assert_eq!(names(&findings), ["P-02", "P-07"]);
    }

    #[test]
    fn a_completion_that_a_rule_has_lost_is_not_missed_and_another_one_is() {
        let (mut direction, mut findings) = (direction(), Findings::default());
        direction.lost(0, Ended::Success);
        direction.lost(3, Ended::Error);
        let ended = direction.completed(Nanos(1), 2, Ended::Success, &mut findings);
        assert_eq!(ended, [0, 1, 2].map(|message| (message, Ended::Success)));
        assert_eq!(direction.unheard(), [(3, Ended::Error)]);
        (0..3).for_each(|_| {
            direction.arrived(Nanos(1), &[], Some(0), Some(None), &mut findings);
        });
        direction.finish(Nanos(2), true, false, &mut findings);
        assert_eq!(names(&findings), [""; 0]);

        let mut direction = self::direction();
        direction.lost(0, Ended::Success);
        direction.completed(Nanos(1), 3, Ended::Success, &mut findings);
        assert_eq!(names(&findings), ["P-02"]);
    }

    #[test]
    fn success_after_failure_a_missing_completion_and_a_missing_message_are_found() {
        let (mut direction, mut findings) = (direction(), Findings::default());
        direction.completed(Nanos(1), 0, Ended::Error, &mut findings);
        direction.completed(Nanos(1), 1, Ended::Success, &mut findings);
        direction.finish(Nanos(2), true, false, &mut findings);
        assert_eq!(names(&findings), ["P-07", "P-07", "P-01"]);
    }

    #[test]
    fn a_message_that_arrives_out_of_order_or_changed_is_found() {
        let mut direction = Delivery::new("a".to_owned(), Service::Rc, false, false);
        let (kind, signaled, heard) = (Kind::SendImm, true, true);
        for number in 0..2 {
            let (len, immediate, pattern) = (8, number as u32, number as u64);
            direction.posted(Message { number, kind, len, immediate, pattern, signaled, heard });
        }
        let mut second = [0; 8];
        fill_pattern_from(1, 0, &mut second);
        let mut findings = Findings::default();
        direction.arrived(Nanos(1), &second, Some(8), Some(Some(1)), &mut findings);
        assert_eq!(names(&findings), ["P-01"]);
    }
}
