//! One timer entry for each queue pair, in a heap of slot numbers. Never scans all queue pairs.
//!
//! A deadline that moves later or goes away is not moved in the heap: the entry comes up early and
//! is put right then, so that restarting a timer for each ACK costs one store.

use alloc::vec::Vec;

use crate::numbers::Nanos;

/// Slot has no entry.
pub(crate) const NOT_QUEUED: u32 = u32::MAX;

/// A binary heap of (deadline as queued, slot), smallest first; ties by slot, for determinism.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: Vec<(Nanos, u32)>,
}

/// Where a slot's entry is. Lives in the queue pair.
pub(crate) trait Positions {
    fn set_position(&mut self, slot: u32, position: u32);
    fn position(&self, slot: u32) -> u32;
}

impl Timers {
    pub(crate) fn reserve(&mut self, slots: usize) {
        self.heap.reserve(slots.saturating_sub(self.heap.len()));
    }

    /// Makes sure that `slot` comes up no later than `deadline`.
    pub(crate) fn schedule(&mut self, slot: u32, deadline: Nanos, at: &mut impl Positions) {
        if deadline == Nanos::NEVER {
            return;
        }
        match at.position(slot) {
            NOT_QUEUED => {
                self.heap.push((deadline, slot));
                self.up(self.heap.len() - 1, at);
            }
            position if self.heap[position as usize].0 > deadline => {
                self.heap[position as usize].0 = deadline;
                self.up(position as usize, at);
            }
            _ => {}
        }
    }

    /// The earliest entry.
    pub(crate) fn first(&self) -> Option<(Nanos, u32)> {
        self.heap.first().copied()
    }

    /// Takes the earliest entry out.
    pub(crate) fn pop(&mut self, at: &mut impl Positions) {
        let Some(&(_, slot)) = self.heap.first() else { return };
        at.set_position(slot, NOT_QUEUED);
        let last = self.heap.len() - 1;
        self.heap.swap(0, last);
        self.heap.truncate(last);
        if !self.heap.is_empty() {
            self.down(0, at);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.heap.clear();
    }

    fn up(&mut self, mut i: usize, at: &mut impl Positions) {
        while i > 0 && self.heap[i] < self.heap[(i - 1) / 2] {
            self.heap.swap(i, (i - 1) / 2);
            at.set_position(self.heap[i].1, i as u32);
            i = (i - 1) / 2;
        }
        at.set_position(self.heap[i].1, i as u32);
    }

    fn down(&mut self, mut i: usize, at: &mut impl Positions) {
        loop {
            let mut least = i;
            for child in [2 * i + 1, 2 * i + 2] {
                if child < self.heap.len() && self.heap[child] < self.heap[least] {
                    least = child;
                }
            }
            if least == i {
                break;
            }
            self.heap.swap(i, least);
            at.set_position(self.heap[i].1, i as u32);
            i = least;
        }
        at.set_position(self.heap[i].1, i as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    struct Table(Vec<u32>);

    impl Positions for Table {
        fn set_position(&mut self, slot: u32, position: u32) {
            self.0[slot as usize] = position;
        }
        fn position(&self, slot: u32) -> u32 {
            self.0[slot as usize]
        }
    }

    proptest::proptest! {
        #[test]
        fn entries_come_out_in_order_of_their_earliest_deadline(
            script in proptest::collection::vec((0u32..32, 0u64..1000), 0..200)
        ) {
            let mut table = Table(vec![NOT_QUEUED; 32]);
            let mut timers = Timers::default();
            let mut earliest = alloc::collections::BTreeMap::new();
            for (slot, deadline) in script {
                timers.schedule(slot, Nanos(deadline), &mut table);
                let entry = earliest.entry(slot).or_insert(deadline);
                *entry = deadline.min(*entry);
            }
            let mut expected: Vec<_> = earliest.into_iter().map(|(s, d)| (Nanos(d), s)).collect();
            expected.sort_unstable();
            let mut seen = Vec::new();
            while let Some(first) = timers.first() {
                seen.push(first);
                timers.pop(&mut table);
            }
            proptest::prop_assert_eq!(seen, expected);
            proptest::prop_assert!(table.0.iter().all(|&p| p == NOT_QUEUED));
        }
    }
}
