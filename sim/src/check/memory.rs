//! Watches memory: P-03 (nothing outside of what was granted changes), P-05 (what READs return), and
//! P-04 (each atomic has its effect once).
//!
//! Knows which bytes belong to what, and how each message ended.

use softrnic_engine::Nanos;

use super::Findings;
use super::delivery::Ended;
use crate::payload::{POISON, fill_pattern_from};

/// What a run of bytes is for, and so what may stand in it at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Nobody writes here: these bytes, as a pattern.
    Kept(u64),
    /// A WRITE lands here: its pattern, whole once it has succeeded.
    Written { pattern: u64, whole: bool },
    /// A READ lands here: in each packet one of these patterns, in all of them once it succeeded.
    Read { versions: Vec<u64>, whole: bool },
    /// Anything: receive buffers that are given back, atomics.
    Anything,
}

/// A run of bytes.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) address: u64,
    pub(crate) len: u64,
    /// Packets' payload in bytes.
    pub(crate) mtu: u32,
    pub(crate) what: Use,
}

/// A node's memory for messages.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryMap {
    pub(crate) slots: Vec<Slot>,
    /// Regions that peers may write to.
    pub(crate) open: Vec<(u64, u64)>,
}

impl MemoryMap {
    pub(crate) fn add(&mut self, address: u64, len: u64, mtu: u32, what: Use) -> usize {
        self.slots.push(Slot { address, len, mtu, what });
        self.slots.len() - 1
    }

    /// Now: compares a slot's bytes.
    pub(crate) fn look(
        &self,
        now: Nanos,
        node: usize,
        slot: usize,
        found: &[u8],
        hostile: bool,
        findings: &mut Findings,
    ) {
        let slot = &self.slots[slot];
        // "Open" is a question of hostile frames alone.
        if let Some(invariant) = wrong(slot, found, hostile, hostile) {
            findings.add(invariant, now, || {
                let Slot { address, len, what, .. } = slot;
                format!("node n{node}: {len} bytes at {address:#x} when complete: {what:?}")
            });
        }
    }

    /// At the end: compares `bytes`, which begin at `base`. `hostile`: what peers may write to may
    /// have been written to by frames that lied.
    pub(crate) fn finish(
        &self,
        now: Nanos,
        node: usize,
        base: u64,
        bytes: &[u8],
        hostile: bool,
        findings: &mut Findings,
    ) {
        let mut slots: Vec<&Slot> = self.slots.iter().filter(|slot| slot.len > 0).collect();
        slots.sort_by_key(|slot| slot.address);
        let is_open = |address: u64| {
            hostile && self.open.iter().any(|&(start, end)| (start..end).contains(&address))
        };
        let mut at = base;
        let end = base + bytes.len() as u64;
        let run = |from: u64, to: u64| &bytes[(from - base) as usize..(to - base) as usize];
        for slot in slots {
            check_gap(now, node, at, run(at, slot.address), is_open, findings);
            at = slot.address + slot.len;
            let found = run(slot.address, at);
            if let Some(invariant) = wrong(slot, found, hostile, is_open(slot.address)) {
                findings.add(invariant, now, || {
                    format!(
                        "node n{node}: {} bytes at {:#x} are not what they may be: {:?}",
                        slot.len, slot.address, slot.what
                    )
                });
            }
        }
        check_gap(now, node, at, run(at, end), is_open, findings);
    }
}

fn check_gap(
    now: Nanos,
    node: usize,
    at: u64,
    bytes: &[u8],
    is_open: impl Fn(u64) -> bool,
    findings: &mut Findings,
) {
    let written = bytes.iter().position(|&byte| byte != POISON).map(|i| at + i as u64);
    if let Some(address) = written.filter(|&address| !is_open(address)) {
        findings.add("P-03", now, || {
            format!("node n{node}: the byte at {address:#x} belongs to no message and has changed")
        });
    }
}

/// The invariant that a slot's bytes break.
fn wrong(slot: &Slot, found: &[u8], hostile: bool, open: bool) -> Option<&'static str> {
    let pattern = |pattern: u64, from: usize, len: usize| {
        let mut expected = vec![0; len];
        fill_pattern_from(pattern, from as u32, &mut expected);
        expected
    };
    let chunks = found.chunks(slot.mtu.max(8) as usize).enumerate();
    let offset = |k: usize| k * slot.mtu.max(8) as usize;
    match &slot.what {
        _ if open => None,
        Use::Anything => None,
        Use::Kept(base) => (found != pattern(*base, 0, found.len())).then_some("P-03"),
        Use::Read { .. } | Use::Written { .. } if hostile => None,
        Use::Written { pattern: base, whole } => {
            // Packets arrive in order: what is written is a beginning.
            let mut ended = false;
            for (k, chunk) in chunks {
                let right = chunk == pattern(*base, offset(k), chunk.len());
                let untouched = chunk.iter().all(|&byte| byte == POISON);
                if (ended && !untouched) || (!right && (!untouched || *whole)) {
                    return Some(if right || untouched { "P-01" } else { "P-03" });
                }
                ended |= !right;
            }
            None
        }
        Use::Read { versions, whole } => {
            for (k, chunk) in chunks {
                let right =
                    versions.iter().any(|&base| chunk == pattern(base, offset(k), chunk.len()));
                let untouched = !*whole && chunk.iter().all(|&byte| byte == POISON);
                if !right && !untouched {
                    return Some("P-05");
                }
            }
            None
        }
    }
}

/// Bits of a message's digit in a cell that FETCH AND ADDs count in.
const DIGIT: u32 = 2;

/// Atomics on one cell.
#[derive(Clone, Debug, Default)]
pub(crate) struct Atomics {
    /// For each FETCH AND ADD: how it ended, and the value that it fetched.
    adds: Vec<(Option<Ended>, u64)>,
    /// For COMPARE AND SWAPs of one sender, in order: swap value, end, fetched value.
    swaps: Vec<(u64, Option<Ended>, u64)>,
}

impl Atomics {
    /// FETCH AND ADDs that fit a cell.
    pub(crate) const ADDS_MAX: usize = 31;

    /// The addend of the next FETCH AND ADD, and its number.
    pub(crate) fn add(&mut self) -> (u64, usize) {
        self.adds.push((None, 0));
        let number = self.adds.len() - 1;
        (1 << (DIGIT as usize * number), number)
    }

    /// Compare and swap value of the next COMPARE AND SWAP, and its number.
    pub(crate) fn swap(&mut self, value: u64) -> (u64, u64, usize) {
        let before = self.swaps.last().map_or(0, |swap| swap.0);
        self.swaps.push((value, None, 0));
        (before, value, self.swaps.len() - 1)
    }

    pub(crate) fn added(&mut self, number: usize, ended: Ended, fetched: u64) {
        self.adds[number] = (Some(ended), fetched);
    }

    pub(crate) fn swapped(&mut self, number: usize, ended: Ended, fetched: u64) {
        let swap = &mut self.swaps[number];
        (swap.1, swap.2) = (Some(ended), fetched);
    }

    /// At the end: P-04, with the two cells' values.
    pub(crate) fn finish(&self, now: Nanos, sum: u64, swapped: u64, findings: &mut Findings) {
        for (i, &(ended, fetched)) in self.adds.iter().enumerate() {
            let digit = |value: u64| value >> (DIGIT as usize * i) & 3;
            let most = 1;
            let least = u64::from(ended == Some(Ended::Success));
            findings.require((least..=most).contains(&digit(sum)), "P-04", now, || {
                format!("FETCH AND ADD {i} ended as {ended:?} and was done {} times", digit(sum))
            });
            let early = ended == Some(Ended::Success) && digit(fetched) != 0;
            findings.require(!early, "P-04", now, || {
                format!("FETCH AND ADD {i} fetched {fetched:#x}, which has itself in it")
            });
        }
        let done = self.swaps.iter().filter(|swap| swap.1 == Some(Ended::Success)).count();
        let reached = if swapped == 0 {
            Some(0)
        } else {
            self.swaps.iter().position(|s| s.0 == swapped).map(|p| p + 1)
        };
        findings.require(reached.is_some_and(|reached| reached >= done), "P-04", now, || {
            format!("COMPARE AND SWAP: {done} succeeded, and the value is that of {reached:?}")
        });
        let mut before = 0;
        for (i, &(value, ended, fetched)) in self.swaps.iter().enumerate() {
            let right = ended != Some(Ended::Success) || fetched == before;
            findings.require(right, "P-04", now, || {
                format!("COMPARE AND SWAP {i} found {fetched:#x} instead of {before:#x}")
            });
            before = value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(findings: &Findings) -> Vec<&'static str> {
        findings.0.iter().map(|violation| violation.invariant).collect()
    }

    fn judge(what: Use, bytes: &[u8]) -> Vec<&'static str> {
        let mut map = MemoryMap::default();
        map.add(0x1008, 16, 8, what);
        let mut findings = Findings::default();
        map.finish(Nanos(0), 0, 0x1000, bytes, false, &mut findings);
        names(&findings)
    }

    fn bytes(parts: [Option<u64>; 4]) -> Vec<u8> {
        let mut bytes = vec![POISON; 32];
        for (i, part) in parts.into_iter().enumerate() {
            if let Some(pattern) = part {
                let from = if i == 2 { 8 } else { 0 };
                fill_pattern_from(pattern, from, &mut bytes[8 * i..8 * i + 8]);
            }
        }
        bytes
    }

    #[test]
    fn bytes_that_are_right_pass() {
        let whole = bytes([None, Some(5), Some(5), None]);
        assert_eq!(judge(Use::Kept(5), &whole), [""; 0]);
        assert_eq!(judge(Use::Written { pattern: 5, whole: true }, &whole), [""; 0]);
        let begun = bytes([None, Some(5), None, None]);
        assert_eq!(judge(Use::Written { pattern: 5, whole: false }, &begun), [""; 0]);
        let mixed = bytes([None, Some(6), Some(5), None]);
        assert_eq!(judge(Use::Read { versions: vec![5, 6], whole: true }, &mixed), [""; 0]);
    }

    #[test]
    fn bytes_that_are_wrong_are_found() {
        let whole = bytes([None, Some(5), Some(5), None]);
        let begun = bytes([None, Some(5), None, None]);
        let hole = bytes([None, None, Some(5), None]);
        assert_eq!(judge(Use::Kept(6), &whole), ["P-03"]);
        assert_eq!(judge(Use::Written { pattern: 5, whole: true }, &begun), ["P-01"]);
        assert_eq!(judge(Use::Written { pattern: 5, whole: false }, &hole), ["P-01"]);
        assert_eq!(judge(Use::Written { pattern: 6, whole: false }, &whole), ["P-03"]);
        assert_eq!(judge(Use::Read { versions: vec![5], whole: true }, &begun), ["P-05"]);
        let beside = bytes([Some(1), Some(5), Some(5), None]);
        assert_eq!(judge(Use::Kept(5), &beside), ["P-03"]);
        let behind = bytes([None, Some(5), Some(5), Some(1)]);
        assert_eq!(judge(Use::Kept(5), &behind), ["P-03"]);
    }

    #[test]
    fn an_atomic_done_twice_or_never_is_found() {
        let mut atomics = Atomics::default();
        let (one, first) = atomics.add();
        let (four, second) = atomics.add();
        assert_eq!((one, four), (1, 4));
        atomics.added(first, Ended::Success, 0);
        atomics.added(second, Ended::Flushed, 0);
        let judge = |sum| {
            let mut findings = Findings::default();
            atomics.finish(Nanos(0), sum, 0, &mut findings);
            names(&findings)
        };
        assert_eq!((judge(1), judge(5)), (vec![], vec![]));
        assert_eq!((judge(2), judge(4), judge(9)), (vec!["P-04"], vec!["P-04"], vec!["P-04"]));
    }
}
