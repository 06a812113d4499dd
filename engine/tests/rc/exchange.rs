//! Every operation, path MTU and border size, with each single frame of the exchange lost,
//! duplicated or swapped with its successor: exhaustively, not sampled.

use softrnic_engine::{Attributes, PathMtu, Place, RKey, State, Status, Work, WorkOpcode};

use crate::harness::{Fate, Pair, Setup};

const OPERATIONS: [WorkOpcode; 6] = [
    WorkOpcode::Send,
    WorkOpcode::SendImm,
    WorkOpcode::SendInv,
    WorkOpcode::Write,
    WorkOpcode::WriteImm,
    WorkOpcode::Read,
];

const MESSAGES: usize = 3;

struct Case {
    opcode: WorkOpcode,
    mtu: PathMtu,
    length: u32,
    psn: u32,
    ipv6: bool,
    messages: usize,
}

impl Case {
    /// Runs the messages; returns the frames sent by each side.
    fn run(&self, fate: impl FnMut(usize, u32) -> Fate) -> [u32; 2] {
        let attributes = Attributes { path_mtu: self.mtu, ack_timeout: 8, ..Attributes::default() };
        let stride = (self.length as usize).next_multiple_of(64) + 64;
        let memory = stride * self.messages + 64;
        let setup = Setup { attributes, psn: self.psn, memory, ipv6: self.ipv6 };
        let mut pair = Pair::new(setup);
        pair.region();
        let (source, target) = if self.opcode == WorkOpcode::Read { (1, 0) } else { (0, 1) };
        for (i, byte) in pair.ends[source].face.memory.iter_mut().enumerate() {
            *byte = (i * 13 + i / 256 * 7 + 1) as u8;
        }
        for m in 0..self.messages {
            let base = (m * stride + 64) as u64;
            let place = Place { token: 0, base, length: self.length };
            pair.ends[1].face.receives.push_back(place);
            // Each invalidation has a key of its own, so that one done twice would fail.
            let rkey = if self.opcode == WorkOpcode::SendInv { 100 + m as u32 } else { 7 };
            let region = pair.ends[1].face.regions[&7];
            pair.ends[1].face.regions.insert(rkey, region);
            pair.ends[0].post(Work {
                opcode: self.opcode,
                length: self.length,
                local: place,
                remote_va: base,
                rkey: RKey(rkey),
                immediate: m as u32,
                ..Work::default()
            });
        }
        pair.run_with(fate);
        self.check(&pair, source, target, stride);
        pair.frames
    }

    /// Once without a fault, then with each single frame lost, duplicated or swapped.
    fn run_with_each_single_fault(&self) {
        let frames = self.run(|_, _| Fate::Deliver);
        for (from, count) in frames.into_iter().enumerate() {
            for number in 0..count {
                for fault in [Fate::Drop, Fate::Duplicate, Fate::Swap] {
                    self.run(|f, n| if (f, n) == (from, number) { fault } else { Fate::Deliver });
                }
            }
        }
    }

    fn check(&self, pair: &Pair, source: usize, target: usize, stride: usize) {
        let context =
            || format!("{:?} {:?} {}\n{}", self.opcode, self.mtu, self.length, pair.ladder);
        assert_eq!(pair.ends[0].sent(), vec![Status::Success; self.messages], "{}", context());
        let takes = !matches!(self.opcode, WorkOpcode::Write | WorkOpcode::Read);
        let expected: Vec<_> = (0..self.messages as u32)
            .filter(|_| takes)
            .map(|m| {
                let imm = matches!(self.opcode, WorkOpcode::SendImm | WorkOpcode::WriteImm);
                (Status::Success, self.length, imm.then_some(m))
            })
            .collect();
        assert_eq!(pair.ends[1].received(), expected, "{}", context());
        assert_eq!(pair.ends[1].state(), State::Rts);
        let (got, sent) = (&pair.ends[target].face.memory, &pair.ends[source].face.memory);
        let length = self.length as usize;
        for at in (64..64 + self.messages * stride).step_by(stride) {
            assert!(got[at..at + length] == sent[at..at + length], "{}", context());
            assert!(got[at + length..at + stride].iter().all(|&b| b == 0), "{}", context());
        }
        assert!(got[..64].iter().all(|&b| b == 0), "{}", context());
    }
}

fn every_single_fault(mtu: PathMtu, ipv6: bool) {
    let p = mtu.bytes();
    for opcode in OPERATIONS {
        for length in [0, 1, p - 1, p, p + 1, 3 * p + 1] {
            for psn in [0x100, 0x00FF_FFFD] {
                let case = Case { opcode, mtu, length, psn, ipv6, messages: MESSAGES };
                case.run_with_each_single_fault();
            }
        }
    }
}

/// Three atomics on one value: executed twice or out of order, it would show in the value or in what
/// is returned.
fn atomics(opcode: WorkOpcode, psn: u32, fate: impl FnMut(usize, u32) -> Fate) -> [u32; 2] {
    const START: u64 = u64::MAX - 1;
    let attributes = Attributes { ack_timeout: 8, ..Attributes::default() };
    let mut pair = Pair::new(Setup { attributes, psn, memory: 0x1000, ipv6: psn == 0x100 });
    pair.region();
    pair.ends[1].face.memory[0x100..0x108].copy_from_slice(&START.to_le_bytes());
    for m in 0..MESSAGES as u64 {
        pair.ends[0].post(Work {
            opcode,
            length: 8,
            local: Place { token: 0, base: 0x200 + m * 8, length: 8 },
            remote_va: 0x100,
            rkey: RKey(7),
            swap_or_add: if opcode == WorkOpcode::FetchAdd { m + 1 } else { m },
            compare: if m == 0 { START } else { m - 1 },
            ..Work::default()
        });
    }
    pair.run_with(fate);
    assert_eq!(pair.ends[0].sent(), [Status::Success; MESSAGES], "{}", pair.ladder);
    let value = |end: usize, at: usize| {
        let bytes = pair.ends[end].face.memory[at..at + 8].try_into().expect("8 bytes");
        u64::from_le_bytes(bytes)
    };
    let (before, after) = match opcode {
        WorkOpcode::FetchAdd => ([START, START.wrapping_add(1), 1], 4),
        _ => ([START, 0, 1], 2),
    };
    assert_eq!(value(1, 0x100), after, "{}", pair.ladder);
    assert_eq!([0x200, 0x208, 0x210].map(|at| value(0, at)), before, "{}", pair.ladder);
    pair.frames
}

#[test]
fn p_04_atomics_take_effect_once_with_each_single_fault() {
    for opcode in [WorkOpcode::FetchAdd, WorkOpcode::CompareSwap] {
        for psn in [0x100, 0x00FF_FFFE] {
            let frames = atomics(opcode, psn, |_, _| Fate::Deliver);
            for (from, count) in frames.into_iter().enumerate() {
                for number in 0..count {
                    for fault in [Fate::Drop, Fate::Duplicate, Fate::Swap] {
                        atomics(opcode, psn, |f, n| {
                            if (f, n) == (from, number) { fault } else { Fate::Deliver }
                        });
                    }
                }
            }
        }
    }
}

#[test]
fn p_01_every_single_fault_at_mtu_256() {
    every_single_fault(PathMtu::M256, false);
}

#[test]
fn p_01_every_single_fault_at_mtu_512() {
    every_single_fault(PathMtu::M512, true);
}

#[test]
fn p_01_every_single_fault_at_mtu_1024() {
    every_single_fault(PathMtu::M1024, false);
}

#[test]
fn p_01_every_single_fault_at_mtu_2048() {
    every_single_fault(PathMtu::M2048, false);
}

#[test]
fn p_01_every_single_fault_at_mtu_4096() {
    every_single_fault(PathMtu::M4096, true);
}

#[test]
fn s_02_one_mebibyte_at_each_path_mtu() {
    for mtu in PathMtu::ALL {
        for opcode in OPERATIONS {
            Case {
                opcode,
                mtu,
                length: 1 << 20,
                psn: 0x00FF_FF00,
                ipv6: false,
                messages: MESSAGES,
            }
            .run(|_, _| Fate::Deliver);
        }
    }
}

/// One message of 1 MiB with each single fault at each path MTU: 140,000 exchanges, a few minutes of
/// `cargo test --release -p softrnic-engine --test rc one_mebibyte_with`. Too much without optimization.
#[cfg(not(debug_assertions))]
mod one_mebibyte_with_each_single_fault {
    use super::*;

    fn run(opcode: WorkOpcode) {
        for mtu in PathMtu::ALL {
            let psn = 0x00FF_FF00;
            Case { opcode, mtu, length: 1 << 20, psn, ipv6: false, messages: 1 }
                .run_with_each_single_fault();
        }
    }

    #[test]
    fn p_01_send() {
        run(WorkOpcode::Send);
    }

    #[test]
    fn p_01_send_with_immediate() {
        run(WorkOpcode::SendImm);
    }

    #[test]
    fn p_01_send_with_invalidate() {
        run(WorkOpcode::SendInv);
    }

    #[test]
    fn p_01_write() {
        run(WorkOpcode::Write);
    }

    #[test]
    fn p_01_write_with_immediate() {
        run(WorkOpcode::WriteImm);
    }

    #[test]
    fn p_01_read() {
        run(WorkOpcode::Read);
    }
}
