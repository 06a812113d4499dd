//! Requests that come twice: answered again, never executed again (S-20 to S-27).

use softrnic_engine::packet::opcode as op;
use softrnic_engine::{Attributes, Place, Reason, State};

use crate::harness::{Pair, Setup};
use crate::peer::{KEY, answers, atomic, brief, plain, reth};

fn responder(depth: u8) -> Pair {
    let attributes = Attributes { max_dest_rd_atomic: depth, ..Attributes::default() };
    let mut pair = Pair::new(Setup { attributes, ..Setup::default() });
    pair.region();
    for (i, byte) in pair.ends[1].face.memory.iter_mut().enumerate() {
        *byte = (i / 64) as u8;
    }
    pair
}

// T-07
#[test]
fn s_20_a_send_or_write_that_comes_twice_is_acknowledged_and_changes_nothing() {
    for (opcode, ext) in [
        (op::SEND_ONLY, plain()),
        (op::WRITE_ONLY, reth(0x2000, KEY, 4)),
        (op::WRITE_ONLY_IMM, reth(0x2000, KEY, 4)),
    ] {
        let mut pair = responder(16);
        for i in 0..2 {
            let place = Place { token: 0, base: 0x8000 + i * 64, length: 64 };
            pair.ends[1].face.receives.push_back(place);
        }
        pair.ask(1, opcode, 0x100, ext, &[9; 4]);
        pair.hear(1);
        let memory = pair.ends[1].face.memory.clone();
        let (receives, done) = (pair.ends[1].face.receives.len(), pair.ends[1].received());
        // The copy carries other bytes, so that an execution would show.
        assert_eq!(pair.ask(1, opcode, 0x100, ext, &[5; 4]), None);
        let heard = pair.hear(1);
        assert_eq!(answers(&heard), [(0x1F, 0x100)]);
        assert_eq!(heard[0].msn, Some(1));
        assert_eq!(pair.ends[1].face.memory, memory);
        assert_eq!(pair.ends[1].face.receives.len(), receives);
        assert_eq!(pair.ends[1].received(), done);
        // Chosen: acknowledged where nobody asks, too.
        let mut unasked = pair.packet(1, opcode, 0x100, ext, &[5; 4]);
        unasked.bth.ack_req = 0;
        pair.tell(1, &unasked);
        assert_eq!(answers(&pair.hear(1)), [(0x1F, 0x100)]);
    }
}

#[test]
fn s_21_a_repeated_read_is_read_again_from_where_it_asks() {
    let mut pair = responder(16);
    pair.ask(1, op::READ_REQUEST, 0x100, reth(0x1000, KEY, 4000), &[]);
    assert_eq!(pair.hear(1).len(), 4);
    pair.ends[1].face.memory[0x1800..0x1C00].fill(0xAB);
    for k in 0..4u32 {
        let ext = reth(0x1000 + u64::from(k) * 1024, KEY, 4000 - k * 1024);
        assert_eq!(pair.ask(1, op::READ_REQUEST, 0x100 + k, ext, &[]), None);
        let heard = pair.hear(1);
        assert_eq!(heard.len() as u32, 4 - k);
        let first = if k == 3 { op::READ_RESPONSE_ONLY } else { op::READ_RESPONSE_FIRST };
        assert_eq!(brief(&heard[..1]), [(first, 0x100 + k)]);
        assert!(heard.iter().all(|h| h.retransmission));
        let bytes: Vec<u8> = heard.iter().flat_map(|h| h.payload.clone()).collect();
        let memory = &pair.ends[1].face.memory[0x1000..0x1000 + 4000];
        assert_eq!(bytes, memory[k as usize * 1024..], "new data, {k}");
    }
}

#[test]
fn s_22_a_repeated_read_outside_of_the_original_is_dropped() {
    let wrong = [
        (0x102, 0x1800, KEY, 4000 - 2048 + 1),
        (0x102, 0x1800, KEY, 4000 - 2048 - 1),
        (0x102, 0x1801, KEY, 4000 - 2048),
        (0x102, 0x1800, 8, 4000 - 2048),
        (0x101, 0x1800, KEY, 4000 - 2048),
        (0x0FF, 0x0C00, KEY, 4000 + 1024),
        (0x100, 0x1000, KEY, 4096),
    ];
    for (psn, va, key, length) in wrong {
        let mut pair = responder(16);
        pair.grant(1, 8, 0, 0x1_0000, true, true);
        pair.ask(1, op::READ_REQUEST, 0x100, reth(0x1000, KEY, 4000), &[]);
        pair.hear(1);
        let refused = pair.ask(1, op::READ_REQUEST, psn, reth(va, key, length), &[]);
        assert_eq!(refused, Some(Reason::DuplicateNotReplayable), "{psn:#x}");
        assert!(pair.hear(1).is_empty());
        assert_eq!(pair.ends[1].state(), State::Rts);
    }
}

// T-06
#[test]
fn s_23_an_atomic_sent_three_times_is_answered_three_times_and_executed_once() {
    for (opcode, ext, after) in
        [(op::FETCH_ADD, atomic(0x2000, 1, 0), 1u64), (op::COMPARE_SWAP, atomic(0x2000, 5, 0), 5)]
    {
        let mut pair = responder(16);
        pair.ends[1].face.memory[0x2000..0x2008].fill(0);
        let mut heard = Vec::new();
        for _ in 0..3 {
            assert_eq!(pair.ask(1, opcode, 0x100, ext, &[]), None);
            heard.extend(pair.hear(1));
        }
        assert_eq!(brief(&heard), [(op::ATOMIC_ACKNOWLEDGE, 0x100); 3]);
        assert!(heard.iter().all(|h| h.frame == heard[0].frame && h.msn == Some(1)));
        assert_eq!(pair.ends[1].face.memory[0x2000..0x2008], after.to_le_bytes());
    }
}

// T-22
#[test]
fn s_24_as_many_answers_are_kept_as_the_depth() {
    let mut pair = responder(4);
    pair.ends[1].face.memory[0x2000..0x2008].fill(0);
    for psn in 0x100..0x105 {
        pair.ask(1, op::FETCH_ADD, psn, atomic(0x2000, 1, 0), &[]);
        pair.hear(1);
    }
    let refused = pair.ask(1, op::FETCH_ADD, 0x100, atomic(0x2000, 1, 0), &[]);
    assert_eq!(refused, Some(Reason::DuplicateNotReplayable));
    assert!(pair.hear(1).is_empty());
    for psn in 0x101..0x105 {
        assert_eq!(pair.ask(1, op::FETCH_ADD, psn, atomic(0x2000, 1, 0), &[]), None);
        let heard = pair.hear(1);
        let at = heard[0].frame.len() - 12;
        let saved = u64::from(psn - 0x100).to_be_bytes();
        assert_eq!(heard[0].frame[at..at + 8], saved);
    }
    assert_eq!(pair.ends[1].face.memory[0x2000..0x2008], 5u64.to_le_bytes());
}

// A peer that repeats a READ and then gets its first answer after all goes on at once.
#[test]
fn s_51_an_answer_that_is_given_again_does_not_count_against_the_depth() {
    let mut pair = responder(1);
    pair.ask(1, op::READ_REQUEST, 0x100, reth(0x1000, KEY, 64), &[]);
    pair.hear(1);
    assert_eq!(pair.ask(1, op::READ_REQUEST, 0x100, reth(0x1000, KEY, 64), &[]), None);
    assert_eq!(pair.ask(1, op::READ_REQUEST, 0x101, reth(0x1000, KEY, 64), &[]), None);
    let heard = pair.hear(1);
    assert_eq!(heard.last().map(|last| last.psn), Some(0x101));
    assert_eq!(pair.ends[1].state(), State::Rts);
}

#[test]
fn s_25_an_earlier_duplicate_goes_before_the_one_being_served() {
    let mut pair = responder(16);
    let two_reads = |pair: &mut Pair| {
        pair.ask(1, op::READ_REQUEST, 0x100, reth(0x1000, KEY, 2048), &[]);
        pair.ask(1, op::READ_REQUEST, 0x102, reth(0x1000, KEY, 2048), &[]);
    };
    two_reads(&mut pair);
    assert_eq!(pair.hear(1).len(), 4);
    // Asked for in the wrong order; answered in PSN order.
    pair.ask(1, op::READ_REQUEST, 0x102, reth(0x1000, KEY, 2048), &[]);
    pair.ask(1, op::READ_REQUEST, 0x100, reth(0x1000, KEY, 2048), &[]);
    let psns: Vec<u32> = pair.hear(1).iter().map(|h| h.psn).collect();
    assert_eq!(psns, [0x100, 0x101, 0x102, 0x103]);
    // Both are asked for again while the first answer is leaving: it starts again.
    two_reads(&mut pair);
    let mut bytes = vec![0; 8192];
    let end = &mut pair.ends[1];
    let mut room = softrnic_engine::Room { bytes: &mut bytes, segments: 1, source_port: None };
    let train = end.engine.poll_transmit(pair.now, &mut room, &mut end.face).expect("one is owed");
    assert_eq!(train.psn.get(), 0x100);
    two_reads(&mut pair);
    let heard = pair.hear(1);
    assert_eq!(heard[0].opcode, op::READ_RESPONSE_FIRST);
    assert_eq!(heard.iter().map(|h| h.psn).collect::<Vec<_>>(), psns);
}

#[test]
fn s_26_duplicates_are_served_while_a_packet_is_missing_or_waited_for() {
    let mut pair = responder(16);
    pair.ask(1, op::READ_REQUEST, 0x100, reth(0x1000, KEY, 1024), &[]);
    pair.hear(1);
    pair.ask(1, op::WRITE_ONLY, 0x103, reth(0x1000, KEY, 0), &[]);
    assert_eq!(answers(&pair.hear(1)), [(0x60, 0x101)]);
    pair.ask(1, op::READ_REQUEST, 0x100, reth(0x1000, KEY, 1024), &[]);
    assert_eq!(brief(&pair.hear(1)), [(op::READ_RESPONSE_ONLY, 0x100)]);
    // The same behind an RNR NAK.
    pair.ask(1, op::SEND_ONLY, 0x101, plain(), &[]);
    assert_eq!(answers(&pair.hear(1)), [(0x2C, 0x101)]);
    pair.ask(1, op::READ_REQUEST, 0x100, reth(0x1000, KEY, 1024), &[]);
    assert_eq!(brief(&pair.hear(1)), [(op::READ_RESPONSE_ONLY, 0x100)]);
}

#[test]
fn s_27_a_repeated_read_of_a_region_that_is_gone_gives_no_data() {
    // Chosen: silence, and the queue pair goes on.
    let mut pair = responder(16);
    pair.ask(1, op::READ_REQUEST, 0x100, reth(0x1000, KEY, 1024), &[]);
    pair.hear(1);
    pair.ends[1].face.regions.clear();
    let refused = pair.ask(1, op::READ_REQUEST, 0x100, reth(0x1000, KEY, 1024), &[]);
    assert_eq!(refused, Some(Reason::KeyUnknown));
    assert!(pair.hear(1).is_empty());
    assert_eq!(pair.ends[1].state(), State::Rts);
    pair.region();
    assert_eq!(pair.ask(1, op::READ_REQUEST, 0x100, reth(0x1000, KEY, 1024), &[]), None);
}
