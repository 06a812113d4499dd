//! Both roles busy on one queue pair, with losses both ways: everything arrives once, in order, and
//! what effects there are happen once (T-26, P-01, P-04, P-08, P-14).

use proptest::prelude::*;
use softrnic_engine::{Attributes, PathMtu, Place, RKey, Status, Work, WorkOpcode};

use crate::harness::{Fate, Pair, Region, Setup};

const MESSAGES: u32 = 12;
/// Where the counter for FETCH_ADD is.
const COUNTER: usize = 0x8000;

pub const FAULTS: [Fate; 4] = [Fate::Drop, Fate::Duplicate, Fate::Swap, Fate::Late];

pub fn attributes() -> Attributes {
    Attributes {
        path_mtu: PathMtu::M256,
        ack_timeout: 6,
        max_rd_atomic: 3,
        max_dest_rd_atomic: 3,
        ..Attributes::default()
    }
}

fn busy(psn: u32) -> Pair {
    busy_with(psn, attributes())
}

/// Two ends with work for each other, posted and not yet sent.
pub fn busy_with(psn: u32, attributes: Attributes) -> Pair {
    let mut pair = Pair::new(Setup { attributes, psn, ..Setup::default() });
    for (e, end) in pair.ends.iter_mut().enumerate() {
        let region = Region { va: 0, length: 64 << 10, read: true, write: true, valid: true };
        end.face.regions.insert(7, region);
        for m in 0..MESSAGES {
            let base = 0x9000 + u64::from(m) * 0x400;
            end.face.receives.push_back(Place { token: 0, base, length: 0x400 });
        }
        for (i, byte) in end.face.memory[..0x4000].iter_mut().enumerate() {
            *byte = (i * 3 + i / 256 + e * 101) as u8;
        }
    }
    for m in 0..MESSAGES {
        for from in 0..2 {
            pair.ends[from].post(message(m));
        }
    }
    pair
}

/// READs go from the peer's first 16 KiB to the own 0xE000 on, WRITEs to the peer's 0x4000 on.
fn message(m: u32) -> Work {
    let (opcode, length) = match m % 4 {
        0 => (WorkOpcode::SendImm, 700),
        1 => (WorkOpcode::Read, 600),
        2 => (WorkOpcode::Write, 513),
        _ => (WorkOpcode::FetchAdd, 8),
    };
    let at = u64::from(m) * 0x400;
    let (base, remote_va) = match opcode {
        WorkOpcode::Read => (0xD000 + at, at),
        WorkOpcode::FetchAdd => (0xC800 + at / 64, COUNTER as u64),
        _ => (at, 0x4000 + at),
    };
    Work {
        opcode,
        length,
        local: Place { token: 0, base, length },
        remote_va,
        rkey: RKey(7),
        immediate: m,
        swap_or_add: 1,
        ..Work::default()
    }
}

/// Everything arrived, once and whole.
pub fn check(pair: &Pair) {
    for (e, end) in pair.ends.iter().enumerate() {
        let peer = &pair.ends[1 - e];
        assert_eq!(end.sent(), [Status::Success; MESSAGES as usize], "{}", pair.ladder);
        let sends: Vec<u32> = (0..MESSAGES).filter(|m| m % 4 == 0).collect();
        let expected: Vec<_> = sends.iter().map(|&m| (Status::Success, 700, Some(m))).collect();
        assert_eq!(end.received(), expected);
        let adds = u64::from(MESSAGES / 4);
        assert_eq!(end.face.memory[COUNTER..COUNTER + 8], adds.to_le_bytes(), "{}", pair.ladder);
        for m in 0..MESSAGES {
            let work = message(m);
            let (local, remote) = (work.local.base as usize, work.remote_va as usize);
            let len = work.length as usize;
            match work.opcode {
                WorkOpcode::Read => {
                    let got = &end.face.memory[local..local + len];
                    assert_eq!(got, &peer.face.memory[remote..remote + len]);
                }
                WorkOpcode::Write => {
                    let put = &peer.face.memory[remote..remote + len];
                    assert_eq!(put, &end.face.memory[local..local + len]);
                }
                WorkOpcode::SendImm => {
                    let k = sends.iter().position(|&s| s == m).expect("it is one of them");
                    let at = 0x9000 + k * 0x400;
                    let put = &peer.face.memory[at..at + len];
                    assert_eq!(put, &end.face.memory[local..local + len]);
                }
                _ => {
                    let got = end.face.memory[local..local + 8].try_into().expect("8 bytes");
                    assert_eq!(u64::from_le_bytes(got), u64::from(m / 4), "the value before");
                }
            }
        }
    }
}

// T-07, T-26
#[test]
fn p_01_both_roles_busy_with_each_single_frame_lost_duplicated_or_late() {
    let mut pair = busy(0x100);
    pair.run();
    check(&pair);
    for from in 0..2 {
        for number in 0..pair.frames[from] {
            for fault in FAULTS {
                let mut pair = busy(0x00FF_FFF0);
                pair.run_with(|f, n| if (f, n) == (from, number) { fault } else { Fate::Deliver });
                check(&pair);
            }
        }
    }
}

proptest! {
    #![proptest_config(crate::cases(300))]
    // T-26
    #[test]
    fn p_01_both_roles_busy_with_faults_at_random(
        script in prop::collection::vec((0..2usize, 0..80u32, 0..FAULTS.len()), 0..20),
        psn in prop_oneof![Just(0u32), Just(0x00FF_FFE0), any::<u32>()],
    ) {
        let mut pair = busy(psn);
        pair.run_with(|from, n| {
            let hit = script.iter().find(|&&(f, number, _)| (f, number) == (from, n));
            hit.map_or(Fate::Deliver, |&(_, _, kind)| {
                FAULTS[kind]
            })
        });
        check(&pair);
    }

    #[test]
    fn p_14_the_story_does_not_depend_on_the_first_psn(
        lost in prop::collection::btree_set((0..2usize, 0..60u32), 0..6),
        psn in any::<u32>(),
    ) {
        let run = |psn| {
            let mut pair = busy(psn);
            let fate = |f, n| if lost.contains(&(f, n)) { Fate::Drop } else { Fate::Deliver };
            pair.run_with(fate);
            (pair.now, pair.frames, pair.ends[0].face.completions.clone())
        };
        prop_assert_eq!(run(0), run(psn));
    }
}
