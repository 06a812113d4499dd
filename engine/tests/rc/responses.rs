//! What the requester makes of responses: right ones, old ones, forged ones (Q-20 to Q-30, V-09).

use softrnic_engine::packet::opcode as op;
use softrnic_engine::{Counter, Place, RKey, Reason, State, Status, Work, WorkOpcode};

use crate::harness::{Pair, Setup};
use crate::peer::{KEY, brief, reply};

const ACK: u8 = 0x1F;

fn requester() -> Pair {
    Pair::new(Setup { psn: 0x200, ..Setup::default() })
}

fn work(opcode: WorkOpcode, length: u32) -> Work {
    let local = Place { token: 0, base: 0x6000, length };
    Work { opcode, length, local, remote_va: 0x2000, rkey: RKey(KEY), ..Work::default() }
}

fn post(pair: &mut Pair, works: &[(WorkOpcode, u32)]) {
    for &(opcode, length) in works {
        pair.ends[0].post(work(opcode, length));
    }
}

use WorkOpcode::{CompareSwap, FetchAdd, Read, Send, Write};

fn read_response(pair: &mut Pair, opcode: u8, psn: u32, payload: &[u8]) -> Option<Reason> {
    pair.ask(0, opcode, psn, reply(ACK, 1), payload)
}

// T-15
#[test]
fn q_20_an_ack_completes_everything_up_to_its_psn_in_order() {
    let mut pair = requester();
    post(&mut pair, &[(Send, 4), (Write, 4), (Send, 4)]);
    assert_eq!(pair.hear(0).len(), 3);
    assert_eq!(pair.acknowledge(0, ACK, 0x201), None);
    assert_eq!(pair.ends[0].sent(), [Status::Success; 2]);
    assert_eq!(pair.acknowledge(0, ACK, 0x202), None);
    assert_eq!(pair.ends[0].sent(), [Status::Success; 3]);
}

// T-15
#[test]
fn q_20_an_ack_inside_a_message_completes_nothing_but_is_not_forgotten() {
    let mut pair = requester();
    post(&mut pair, &[(Send, 4), (Write, 5 * 1024)]);
    assert_eq!(pair.hear(0).len(), 6);
    pair.acknowledge(0, ACK, 0x203);
    assert_eq!(pair.ends[0].sent(), [Status::Success]);
    pair.pass(0, 4096 << 10);
    let heard = brief(&pair.hear(0));
    assert_eq!(heard, [(op::WRITE_MIDDLE, 0x204), (op::WRITE_LAST, 0x205)]);
}

// T-16
#[test]
fn q_21_a_read_response_and_an_atomic_ack_acknowledge_what_stands_before() {
    let mut pair = requester();
    post(&mut pair, &[(Send, 4), (Write, 2048), (Read, 4), (Send, 4), (FetchAdd, 8)]);
    pair.hear(0);
    read_response(&mut pair, op::READ_RESPONSE_ONLY, 0x203, &[1; 4]);
    assert_eq!(pair.ends[0].sent(), [Status::Success; 3]);
    pair.ask(0, op::ATOMIC_ACKNOWLEDGE, 0x205, reply(ACK, 1), &[]);
    assert_eq!(pair.ends[0].sent(), [Status::Success; 5]);
    let value = 0x1122_3344_5566_7788u64;
    assert_eq!(pair.ends[0].face.memory[0x6000..0x6008], value.to_le_bytes());
}

#[test]
fn q_22_a_nak_in_mid_message_sends_again_at_once_from_there() {
    let mut pair = requester();
    post(&mut pair, &[(Send, 4), (Write, 5 * 1024)]);
    pair.hear(0);
    assert_eq!(pair.acknowledge(0, 0x60, 0x203), None);
    assert_eq!(pair.ends[0].sent(), [Status::Success]);
    let heard = pair.hear(0);
    let middles = [(op::WRITE_MIDDLE, 0x203), (op::WRITE_MIDDLE, 0x204), (op::WRITE_LAST, 0x205)];
    assert_eq!(brief(&heard), middles);
    assert!(heard.iter().all(|h| h.retransmission && h.reth.is_none()));
    let qpn = pair.ends[0].qpn;
    let retries = pair.ends[0].engine.qp(qpn).expect("it exists").requester().retries_used();
    assert_eq!(retries, 1);
}

// T-16
#[test]
fn q_23_an_answer_beyond_an_unanswered_read_completes_nothing_and_asks_again() {
    for late in [op::ACKNOWLEDGE, op::READ_RESPONSE_ONLY, op::ATOMIC_ACKNOWLEDGE] {
        let mut pair = requester();
        let behind = match late {
            op::ACKNOWLEDGE => (Send, 4),
            op::READ_RESPONSE_ONLY => (Read, 4),
            _ => (FetchAdd, 8),
        };
        post(&mut pair, &[(Send, 4), (Read, 3000), behind]);
        pair.hear(0);
        let payload: &[u8] = if late == op::READ_RESPONSE_ONLY { &[1; 4] } else { &[] };
        let refused = pair.ask(0, late, 0x204, reply(ACK, 3), payload);
        assert_eq!(refused, Some(Reason::ResponseImpliedNak));
        assert_eq!(pair.ends[0].sent(), [Status::Success], "only what stands before the READ");
        let heard = pair.hear(0);
        assert_eq!((heard[0].psn, heard[0].reth), (0x201, Some((0x2000, 3000))));
        assert_eq!(heard.len(), 2);
    }
}

// T-17
#[test]
fn q_24_a_response_for_what_was_never_sent_or_is_long_done_changes_nothing() {
    let syndromes = [ACK, 0x00, 0x2C, 0x60, 0x61, 0x62, 0x63];
    for syndrome in syndromes {
        let mut pair = requester();
        post(&mut pair, &[(Send, 4), (Send, 4)]);
        pair.hear(0);
        pair.acknowledge(0, ACK, 0x200);
        for psn in [0x200, 0x1FF, 0x202, 0x207, 0x80_0201, 0x80_0200, 0x7F_FFFF] {
            let refused = pair.acknowledge(0, syndrome, psn);
            assert_eq!(refused, Some(Reason::ResponseGhost), "{syndrome:#x} {psn:#x}");
        }
        assert!(pair.hear(0).is_empty());
        assert_eq!(pair.ends[0].sent(), [Status::Success]);
        assert_eq!(pair.ends[0].state(), State::Rts);
        pair.acknowledge(0, ACK, 0x201);
        assert_eq!(pair.ends[0].sent(), [Status::Success; 2]);
    }
}

#[test]
fn q_25_read_responses_of_the_wrong_form_fail_the_read_and_spare_the_bytes_behind() {
    use op::{
        ATOMIC_ACKNOWLEDGE, READ_RESPONSE_FIRST as FIRST, READ_RESPONSE_LAST as LAST,
        READ_RESPONSE_MIDDLE as MIDDLE, READ_RESPONSE_ONLY as ONLY,
    };
    // What the READ is long, and what arrives; the last packet is the wrong one.
    let cases: &[(u32, &[(u8, usize)])] = &[
        (2500, &[(ONLY, 1024)]),
        (2500, &[(MIDDLE, 1024)]),
        (2500, &[(LAST, 1024)]),
        (2500, &[(FIRST, 1020)]),
        (2500, &[(FIRST, 1028)]),
        (2500, &[(FIRST, 1024), (FIRST, 1024)]),
        (2500, &[(FIRST, 1024), (LAST, 1024)]),
        (2500, &[(FIRST, 1024), (MIDDLE, 1000)]),
        (2500, &[(FIRST, 1024), (MIDDLE, 1024), (MIDDLE, 1024)]),
        (2500, &[(FIRST, 1024), (MIDDLE, 1024), (LAST, 451)]),
        (2500, &[(FIRST, 1024), (MIDDLE, 1024), (LAST, 453)]),
        (100, &[(FIRST, 1024)]),
        (100, &[(ONLY, 99)]),
        (100, &[(ONLY, 101)]),
        (0, &[(ONLY, 1)]),
        (100, &[(ATOMIC_ACKNOWLEDGE, 0)]),
    ];
    for &(length, packets) in cases {
        let mut pair = requester();
        pair.ends[0].face.memory.fill(0xEE);
        post(&mut pair, &[(Read, length), (Send, 4)]);
        pair.hear(0);
        for (i, &(opcode, len)) in packets.iter().enumerate() {
            let refused = read_response(&mut pair, opcode, 0x200 + i as u32, &vec![1; len]);
            let wrong = i + 1 == packets.len();
            assert_eq!(refused, wrong.then_some(Reason::ResponseMalformed), "{packets:?} {i}");
        }
        assert_eq!(pair.ends[0].sent(), [Status::BadResponse, Status::Flushed], "{packets:?}");
        assert_eq!(pair.ends[0].state(), State::Error);
        let arrived = 1024 * (packets.len() - 1);
        assert!(pair.ends[0].face.memory[0x6000 + arrived..].iter().all(|&byte| byte == 0xEE));
    }
}

#[test]
fn q_25_an_answer_of_another_kind_fails_what_it_answers() {
    for (opcode, length, response) in [
        (Send, 4, op::READ_RESPONSE_ONLY),
        (Write, 4, op::ATOMIC_ACKNOWLEDGE),
        (CompareSwap, 8, op::READ_RESPONSE_ONLY),
    ] {
        let mut pair = requester();
        post(&mut pair, &[(opcode, length)]);
        pair.hear(0);
        pair.ask(0, response, 0x200, reply(ACK, 1), &[]);
        assert_eq!(pair.ends[0].sent(), [Status::BadResponse], "{opcode:?}");
    }
}

// T-05
#[test]
fn q_26_a_read_is_asked_for_again_from_the_first_answer_that_is_missing() {
    let mut pair = requester();
    post(&mut pair, &[(Read, 6 * 1024)]);
    pair.hear(0);
    read_response(&mut pair, op::READ_RESPONSE_FIRST, 0x200, &[1; 1024]);
    read_response(&mut pair, op::READ_RESPONSE_MIDDLE, 0x201, &[2; 1024]);
    let refused = read_response(&mut pair, op::READ_RESPONSE_MIDDLE, 0x203, &[9; 1024]);
    assert_eq!(refused, Some(Reason::ResponseImpliedNak));
    let heard = pair.hear(0);
    assert_eq!((heard[0].psn, heard[0].reth), (0x202, Some((0x2000 + 2048, 4 * 1024))));
    // The answers begin with FIRST again; late ones of the first round are old or beyond.
    read_response(&mut pair, op::READ_RESPONSE_FIRST, 0x202, &[3; 1024]);
    assert_eq!(
        read_response(&mut pair, op::READ_RESPONSE_MIDDLE, 0x201, &[9; 1024]),
        Some(Reason::ResponseGhost)
    );
    pair.pass(0, 4096 << 10);
    let heard = pair.hear(0);
    assert_eq!((heard[0].psn, heard[0].reth), (0x203, Some((0x2000 + 3072, 3 * 1024))));
    read_response(&mut pair, op::READ_RESPONSE_FIRST, 0x203, &[4; 1024]);
    read_response(&mut pair, op::READ_RESPONSE_MIDDLE, 0x204, &[5; 1024]);
    read_response(&mut pair, op::READ_RESPONSE_LAST, 0x205, &[6; 1024]);
    assert_eq!(pair.ends[0].sent(), [Status::Success]);
    for (i, part) in pair.ends[0].face.memory[0x6000..0x7800].chunks(1024).enumerate() {
        assert!(part.iter().all(|&byte| byte as usize == i + 1));
    }
}

#[test]
fn q_27_a_slow_read_is_no_reason_to_try_again() {
    let mut pair = requester();
    post(&mut pair, &[(Read, 6 * 1024)]);
    pair.hear(0);
    for (i, opcode) in [
        op::READ_RESPONSE_FIRST,
        op::READ_RESPONSE_MIDDLE,
        op::READ_RESPONSE_MIDDLE,
        op::READ_RESPONSE_MIDDLE,
        op::READ_RESPONSE_MIDDLE,
        op::READ_RESPONSE_LAST,
    ]
    .into_iter()
    .enumerate()
    {
        pair.pass(0, (4096 << 10) - 1);
        read_response(&mut pair, opcode, 0x200 + i as u32, &[1; 1024]);
    }
    assert!(pair.hear(0).is_empty());
    assert_eq!(pair.ends[0].sent(), [Status::Success]);
    assert_eq!(pair.ends[0].engine.counters()[Counter::LocalAckTimeoutErr], 0);
}

#[test]
fn q_28_reserved_syndromes_are_ignored() {
    // Chosen: ignored, the request stays.
    for syndrome in (0x40..0x60).chain(0x64..=0xFF) {
        let mut pair = requester();
        post(&mut pair, &[(Send, 4), (Send, 4)]);
        pair.hear(0);
        let refused = pair.acknowledge(0, syndrome, 0x201);
        assert_eq!(refused, Some(Reason::ResponseReserved), "{syndrome:#x}");
        assert!(pair.ends[0].sent().is_empty() && pair.hear(0).is_empty());
        assert_eq!(pair.ends[0].state(), State::Rts);
    }
}

#[test]
fn q_29_the_psn_decides_and_the_msn_informs() {
    for msn in [0, 1, 101, 0x00FF_FFFF] {
        let mut pair = requester();
        post(&mut pair, &[(Send, 4), (Send, 4)]);
        pair.hear(0);
        assert_eq!(pair.ask(0, op::ACKNOWLEDGE, 0x200, reply(ACK, msn), &[]), None);
        assert_eq!(pair.ends[0].sent(), [Status::Success], "{msn}");
    }
}

// T-18
#[test]
fn q_30_each_fatal_nak_gives_its_status_between_success_and_flush() {
    let codes = [
        (0x61, Status::RemoteInvalidRequest),
        (0x62, Status::RemoteAccess),
        (0x63, Status::RemoteOperation),
    ];
    for (syndrome, status) in codes {
        for psn in [0x201, 0x202, 0x203] {
            let mut pair = requester();
            post(&mut pair, &[(Write, 4), (Write, 3000), (Send, 4)]);
            pair.hear(0);
            assert_eq!(pair.acknowledge(0, syndrome, psn), None);
            let expected = [Status::Success, status, Status::Flushed];
            assert_eq!(pair.ends[0].sent(), expected, "{syndrome:#x} {psn:#x}");
            assert_eq!(pair.ends[0].state(), State::Error);
            assert!(pair.hear(0).is_empty());
        }
    }
}

#[test]
fn q_55_a_response_after_error_or_reset_changes_nothing() {
    for state in [State::Error, State::Reset] {
        let mut pair = requester();
        post(&mut pair, &[(Send, 4)]);
        pair.hear(0);
        let qpn = pair.ends[0].qpn;
        let end = &mut pair.ends[0];
        end.engine.set_state(qpn, state, &mut end.face);
        let before = end.face.completions.clone();
        for opcode in [op::ACKNOWLEDGE, op::READ_RESPONSE_ONLY, op::ATOMIC_ACKNOWLEDGE] {
            assert!(pair.ask(0, opcode, 0x200, reply(ACK, 1), &[]).is_some());
        }
        assert_eq!(pair.ends[0].face.completions, before);
        assert_eq!(pair.ends[0].state(), state);
    }
}

#[test]
fn v_09_no_response_is_ever_answered() {
    for opcode in op::READ_RESPONSE_FIRST..=op::ATOMIC_ACKNOWLEDGE {
        for syndrome in 0..=255 {
            let mut pair = requester();
            let len = match opcode {
                op::READ_RESPONSE_FIRST | op::READ_RESPONSE_MIDDLE => 1024,
                op::READ_RESPONSE_LAST => 4,
                _ => 0,
            };
            for psn in [0x1FF, 0x200, 0x201] {
                let ext = reply(syndrome, u32::from(syndrome));
                let refused = pair.ask(0, opcode, psn, ext, &vec![1; len]);
                assert_eq!(refused, Some(Reason::ResponseGhost));
            }
            assert!(pair.hear(0).is_empty());
            assert!(pair.ends[0].face.completions.is_empty());
            assert_eq!(pair.ends[0].state(), State::Rts);
        }
    }
}
