//! What the peer may touch: enabled operations, keys, ranges, atomics, invalidation (S-41, S-46 to
//! S-54, S-64, S-65).

use softrnic_engine::packet::opcode as op;
use softrnic_engine::{
    Attributes, Event, Place, Qpn, RKey, Reason, RemoteAccess, State, Status, Work, WorkOpcode,
};

use crate::harness::{Fate, Pair, Setup};
use crate::peer::{KEY, answers, atomic, brief, inv, plain, reth};

const REGION: std::ops::Range<u64> = 0x2000..0x3000;

fn responder() -> Pair {
    let mut pair = Pair::new(Setup::default());
    pair.grant(1, KEY, REGION.start, REGION.end - REGION.start, true, true);
    pair
}

fn receive(pair: &mut Pair) {
    let place = Place { token: 0, base: 0x8000, length: 4096 };
    pair.ends[1].face.receives.push_back(place);
}

#[test]
fn s_41_an_operation_that_is_not_enabled_is_an_invalid_request() {
    let none = RemoteAccess { read: false, write: false, atomic: false };
    let cases = [
        (op::WRITE_ONLY, reth(0x2000, KEY, 4), 4, RemoteAccess { write: true, ..none }),
        (op::READ_REQUEST, reth(0x2000, KEY, 4), 0, RemoteAccess { read: true, ..none }),
        (op::COMPARE_SWAP, atomic(0x2000, 1, 0), 0, RemoteAccess { atomic: true, ..none }),
        (op::FETCH_ADD, atomic(0x2000, 1, 0), 0, RemoteAccess { atomic: true, ..none }),
    ];
    for (opcode, ext, len, needed) in cases {
        for remote_access in [needed, none] {
            let attributes = Attributes { remote_access, ..Attributes::default() };
            let mut pair = Pair::new(Setup { attributes, ..Setup::default() });
            pair.region();
            pair.ask(1, opcode, 0x100, ext, &vec![1; len]);
            let heard = pair.hear(1);
            if remote_access == needed {
                assert_eq!(heard[0].syndrome, Some(0x1F));
            } else {
                assert_eq!(answers(&heard), [(0x61, 0x100)], "{opcode:#x}");
                assert_eq!(pair.ends[1].state(), State::Error);
            }
        }
    }
}

// T-11
#[test]
fn s_46_range_and_right_are_checked_to_the_byte() {
    // Address, length, granted read and write; whether a WRITE and a READ may.
    let cases = [
        (0x2000, 0x1000, (true, true), (true, true)),
        (0x2FFF, 1, (true, true), (true, true)),
        (0x1FFF, 1, (true, true), (false, false)),
        (0x1FFF, 0x1000, (true, true), (false, false)),
        (0x3000, 1, (true, true), (false, false)),
        (0x2001, 0x1000, (true, true), (false, false)),
        (u64::MAX - 7, 16, (true, true), (false, false)),
        (u64::MAX, 1, (true, true), (false, false)),
        (0x2000, 16, (true, false), (false, true)),
        (0x2000, 16, (false, true), (true, false)),
    ];
    for (va, length, (read, write), (may_write, may_read)) in cases {
        let grant = |pair: &mut Pair| {
            pair.ends[1].face.memory.fill(0xEE);
            pair.grant(1, KEY, REGION.start, REGION.end - REGION.start, read, write);
        };
        let mut pair = responder();
        grant(&mut pair);
        let first = if length > 1024 { op::WRITE_FIRST } else { op::WRITE_ONLY };
        pair.ask(1, first, 0x100, reth(va, KEY, length), &vec![1; (length as usize).min(1024)]);
        check(&mut pair, may_write, format!("WRITE {va:#x} {length}"));

        let mut pair = responder();
        grant(&mut pair);
        pair.ask(1, op::READ_REQUEST, 0x100, reth(va, KEY, length), &[]);
        check(&mut pair, may_read, format!("READ {va:#x} {length}"));
        assert!(pair.ends[1].face.memory.iter().all(|&byte| byte == 0xEE));
    }
}

fn check(pair: &mut Pair, may: bool, context: String) {
    let heard = pair.hear(1);
    if may {
        assert!(heard.iter().all(|h| h.syndrome.is_none_or(|s| s == 0x1F)), "{context}");
        return;
    }
    assert_eq!(answers(&heard), [(0x62, 0x100)], "{context}");
    assert_eq!(pair.ends[1].state(), State::Error);
    assert!(pair.ends[1].face.memory.iter().all(|&byte| byte == 0xEE), "{context}");
}

// T-23
#[test]
fn s_47_a_region_that_goes_away_between_first_and_last_stops_the_write() {
    for gone_after in [1, 2] {
        let mut pair = responder();
        let packets = [(op::WRITE_FIRST, 1024), (op::WRITE_MIDDLE, 1024), (op::WRITE_LAST, 952)];
        for (i, (opcode, len)) in packets.into_iter().enumerate() {
            if i == gone_after {
                pair.ends[1].face.regions.clear();
            }
            let ext = reth(0x2000, KEY, 3000);
            pair.ask(1, opcode, 0x100 + i as u32, ext, &vec![0xAA; len]);
            let heard = answers(&pair.hear(1));
            if i == gone_after {
                assert_eq!(heard, [(0x62, 0x100 + i as u32)]);
                break;
            }
        }
        let end = 0x2000 + 1024 * gone_after;
        assert!(pair.ends[1].face.memory[end..].iter().all(|&byte| byte == 0));
    }
}

#[test]
fn s_48_zero_length_needs_no_key() {
    let bad = reth(u64::MAX, 0xDEAD, 0);
    let mut pair = responder();
    receive(&mut pair);
    assert_eq!(pair.ask(1, op::WRITE_ONLY, 0x100, bad, &[]), None);
    assert_eq!(answers(&pair.hear(1)), [(0x1F, 0x100)]);
    assert_eq!(pair.ask(1, op::READ_REQUEST, 0x101, bad, &[]), None);
    let heard = pair.hear(1);
    assert_eq!(brief(&heard), [(op::READ_RESPONSE_ONLY, 0x101)]);
    assert!(heard[0].payload.is_empty());
    assert_eq!(pair.ask(1, op::WRITE_ONLY_IMM, 0x102, bad, &[]), None);
    assert_eq!(pair.ends[1].received(), [(Status::Success, 0, Some(0))]);
    // The repeated zero-length READ is answered too.
    pair.hear(1);
    assert_eq!(pair.ask(1, op::READ_REQUEST, 0x101, bad, &[]), None);
    assert_eq!(brief(&pair.hear(1)), [(op::READ_RESPONSE_ONLY, 0x101)]);
}

#[test]
fn s_49_a_misaligned_atomic_is_an_invalid_request_and_operands_are_big_endian_on_the_wire() {
    for opcode in [op::COMPARE_SWAP, op::FETCH_ADD] {
        for offset in 1..8 {
            let mut pair = responder();
            pair.ask(1, opcode, 0x100, atomic(0x2000 + offset, 1, 0), &[]);
            assert_eq!(answers(&pair.hear(1)), [(0x61, 0x100)], "{offset}");
            assert!(pair.ends[1].face.memory.iter().all(|&byte| byte == 0));
        }
    }
    let mut pair = responder();
    let (before, add) = (0xFFFF_FFFF_FFFF_FF00u64, 0x0102);
    pair.ends[1].face.memory[0x2000..0x2008].copy_from_slice(&before.to_le_bytes());
    let value = |pair: &Pair| {
        u64::from_le_bytes(pair.ends[1].face.memory[0x2000..0x2008].try_into().expect("8 bytes"))
    };
    let original = |pair: &mut Pair| {
        let heard = pair.hear(1);
        assert_eq!(heard[0].opcode, op::ATOMIC_ACKNOWLEDGE);
        let frame = &heard[0].frame;
        u64::from_be_bytes(frame[frame.len() - 12..frame.len() - 4].try_into().expect("8 bytes"))
    };
    pair.ask(1, op::FETCH_ADD, 0x100, atomic(0x2000, add, 0), &[]);
    assert_eq!((original(&mut pair), value(&pair)), (before, 2), "it wraps");
    pair.ask(1, op::COMPARE_SWAP, 0x101, atomic(0x2000, 77, 3), &[]);
    assert_eq!((original(&mut pair), value(&pair)), (2, 2), "not equal");
    pair.ask(1, op::COMPARE_SWAP, 0x102, atomic(0x2000, 77, 2), &[]);
    assert_eq!((original(&mut pair), value(&pair)), (2, 77), "equal");
}

#[test]
fn s_50_fetch_and_add_from_eight_queue_pairs_adds_up() {
    let mut pair = responder();
    let template = *pair.ends[1].engine.qp(pair.ends[1].qpn).expect("it exists").attributes();
    let numbers: Vec<Qpn> = (0..8).map(|i| Qpn::new(0x200 + i)).collect();
    let end = &mut pair.ends[1];
    for &qpn in &numbers {
        end.engine.create(qpn, template).expect("the number is free");
        for state in [State::Init, State::Rtr, State::Rts] {
            end.engine.set_state(qpn, state, &mut end.face);
        }
    }
    let rounds = 1250;
    let mut seen = std::collections::BTreeSet::new();
    for psn in 0..rounds {
        for &qpn in &numbers {
            let mut what = pair.packet(1, op::FETCH_ADD, psn, atomic(0x2000, 1, 0), &[]);
            what.bth.dest_qp = [0, (qpn.get() >> 8) as u8, qpn.get() as u8];
            assert_eq!(pair.tell(1, &what), None);
        }
        for heard in pair.hear(1) {
            let at = heard.frame.len() - 12;
            seen.insert(heard.frame[at..at + 8].to_vec());
        }
    }
    let sum = rounds * 8;
    assert_eq!(seen.len() as u32, sum, "every value that was returned differs");
    assert_eq!(pair.ends[1].face.memory[0x2000..0x2008], u64::from(sum).to_le_bytes());
}

// T-22
#[test]
fn s_51_more_reads_at_once_than_the_depth_is_an_invalid_request() {
    for (depth, requests) in [(2u8, 3u32), (1, 2), (0, 1)] {
        let attributes = Attributes { max_dest_rd_atomic: depth, ..Attributes::default() };
        let mut pair = Pair::new(Setup { attributes, ..Setup::default() });
        pair.region();
        for i in 0..requests {
            pair.ask(1, op::READ_REQUEST, 0x100 + 4 * i, reth(0, KEY, 4096), &[]);
        }
        let heard = pair.hear(1);
        let last = heard.last().expect("a NAK");
        assert_eq!((last.syndrome, last.psn), (Some(0x61), 0x100 + 4 * (requests - 1)));
        assert_eq!(heard.len() as u32, 4 * (requests - 1) + 1, "what was accepted is answered");
    }
}

#[test]
fn s_52_a_broken_receive_buffer_is_an_operational_error() {
    let mut pair = responder();
    let outside = Place { token: 0, base: 1 << 40, length: 4096 };
    pair.ends[1].face.receives.push_back(outside);
    pair.ask(1, op::SEND_ONLY, 0x100, plain(), &[1; 8]);
    assert_eq!(answers(&pair.hear(1)), [(0x63, 0x100)]);
    assert_eq!(pair.ends[1].received(), [(Status::LocalProtection, 0, None)]);
    assert_eq!(pair.ends[1].state(), State::Error);
}

#[test]
fn s_53_a_fatal_nak_is_said_once_and_then_all_is_silence() {
    let mut pair = responder();
    pair.ask(1, op::WRITE_ONLY, 0x100, reth(0, 99, 4), &[1; 4]);
    assert_eq!(answers(&pair.hear(1)), [(0x62, 0x100)]);
    for psn in [0xFF, 0x100, 0x101] {
        let refused = pair.ask(1, op::WRITE_ONLY, psn, reth(0, 99, 4), &[1; 4]);
        assert_eq!(refused, Some(Reason::QpFatal));
        assert!(pair.hear(1).is_empty());
    }
    let events = pair.ends[1].face.events.iter();
    assert_eq!(events.filter(|e| matches!(e, Event::QpError { .. })).count(), 1);
}

#[test]
fn s_53_a_lost_fatal_nak_becomes_retry_exceeded() {
    let mut setup = Setup::default();
    setup.attributes.retry_count = 2;
    let mut pair = Pair::new(setup);
    pair.ends[0].post(Work {
        opcode: WorkOpcode::Write,
        length: 4,
        local: Place { token: 0, base: 0, length: 4 },
        rkey: RKey(99),
        ..Work::default()
    });
    pair.run_with(|from, _| if from == 1 { Fate::Drop } else { Fate::Deliver });
    assert_eq!(pair.ends[0].sent(), [Status::RetryExceeded]);
    assert_eq!(pair.frames, [3, 1]);
}

#[test]
fn s_54_two_faults_in_one_packet_give_one_of_the_two_codes() {
    // No receive buffer and a bad key. Chosen: the key first, as rule S-54 allows.
    let mut pair = responder();
    pair.ask(1, op::WRITE_ONLY_IMM, 0x100, reth(0, 99, 4), &[1; 4]);
    assert_eq!(answers(&pair.hear(1)), [(0x62, 0x100)]);
    // A wrong length and a bad key: the length first.
    let mut pair = responder();
    pair.ask(1, op::WRITE_ONLY, 0x100, reth(0, 99, 5), &[1; 4]);
    assert_eq!(answers(&pair.hear(1)), [(0x61, 0x100)]);
}

// T-24
#[test]
fn s_64_a_key_is_unusable_once_a_send_has_invalidated_it() {
    let mut pair = responder();
    receive(&mut pair);
    pair.ask(1, op::SEND_ONLY_INV, 0x100, inv(KEY), &[1; 4]);
    assert_eq!(pair.ends[1].received(), [(Status::Success, 4, None)]);
    assert!(!pair.ends[1].face.regions[&KEY].valid);
    pair.hear(1);
    pair.ask(1, op::WRITE_ONLY, 0x101, reth(0x2000, KEY, 4), &[1; 4]);
    assert_eq!(answers(&pair.hear(1)), [(0x62, 0x101)]);
}

// T-24
#[test]
fn s_65_invalidating_a_key_that_is_not_there_fails_the_receive_and_touches_no_other() {
    // Chosen: a remote access NAK, and the receive completes with a local error.
    let mut pair = responder();
    receive(&mut pair);
    pair.ask(1, op::SEND_ONLY_INV, 0x100, inv(99), &[1; 4]);
    assert_eq!(answers(&pair.hear(1)), [(0x62, 0x100)]);
    assert_eq!(pair.ends[1].received(), [(Status::LocalQpOperation, 0, None)]);
    assert!(pair.ends[1].face.regions[&KEY].valid);
    assert_eq!(pair.ends[1].state(), State::Error);
}
