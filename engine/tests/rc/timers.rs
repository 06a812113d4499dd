//! Timers and retry counters of the requester.

use softrnic_engine::packet::opcode as op;
use softrnic_engine::{
    Attributes, Counter, Place, RKey, Reason, State, Status, Work, WorkOpcode, rnr_timer_ns,
};

use crate::harness::{Fate, Pair, Setup};
use crate::peer::{KEY, brief, reply};

const ACK: u8 = 0x1F;

fn requester(attributes: Attributes) -> Pair {
    Pair::new(Setup { psn: 0x200, attributes, ..Setup::default() })
}

fn timeout(code: u8) -> Attributes {
    Attributes { ack_timeout: code, ..Attributes::default() }
}

fn post(pair: &mut Pair, opcode: WorkOpcode, length: u32) {
    let local = Place { token: 0, base: 0x6000, length };
    pair.ends[0].post(Work { opcode, length, local, rkey: RKey(KEY), ..Work::default() });
}

fn retries(pair: &Pair) -> (u8, u8) {
    let requester = pair.ends[0].engine.qp(pair.ends[0].qpn).expect("it exists").requester();
    (requester.retries_used(), requester.rnr_retries_used())
}

#[test]
fn q_40_the_first_retry_comes_between_one_and_four_timeouts_after_the_last_progress() {
    for code in [1u8, 10, 14, 18, 31] {
        let timeout_ns = 4096u64 << code;
        let mut pair = requester(timeout(code));
        post(&mut pair, WorkOpcode::Write, 2048);
        assert_eq!(pair.hear(0).len(), 2);
        pair.pass(0, timeout_ns / 2);
        pair.acknowledge(0, ACK, 0x200);
        pair.pass(0, timeout_ns - 1);
        assert!(pair.hear(0).is_empty(), "too early: {code}");
        pair.pass(0, 3 * timeout_ns + 1);
        assert_eq!(brief(&pair.hear(0)), [(op::WRITE_LAST, 0x201)], "{code}");
    }
}

#[test]
fn q_40_code_0_means_no_timer() {
    let mut pair = requester(timeout(0));
    post(&mut pair, WorkOpcode::Send, 4);
    pair.hear(0);
    assert_eq!(pair.ends[0].engine.next_deadline(), None);
    pair.pass(0, u64::MAX / 2);
    assert!(pair.hear(0).is_empty());
}

#[test]
fn q_41_the_timer_restarts_with_progress_and_stops_with_the_last_answer() {
    let mut pair = requester(timeout(10));
    for _ in 0..3 {
        post(&mut pair, WorkOpcode::Send, 4);
    }
    pair.hear(0);
    for psn in 0x200..0x203 {
        pair.pass(0, (4096 << 10) - 1);
        assert_eq!(pair.acknowledge(0, ACK, psn), None);
    }
    assert_eq!(pair.ends[0].engine.next_deadline(), None);
    assert_eq!(pair.ends[0].engine.counters()[Counter::LocalAckTimeoutErr], 0);
}

// T-04
#[test]
fn q_42_everything_lost_once_is_sent_again_with_ack_req_on_its_first_packet() {
    let mut pair = requester(timeout(10));
    post(&mut pair, WorkOpcode::Write, 3000);
    post(&mut pair, WorkOpcode::Read, 3000);
    let first = brief(&pair.hear(0));
    pair.pass(0, 4096 << 10);
    let again = pair.hear(0);
    assert_eq!(brief(&again), first);
    assert!(again[0].ack_request);
}

// T-09
#[test]
fn q_43_the_budget_of_a_dead_peer_is_one_and_the_retry_count() {
    for opcode in [WorkOpcode::Send, WorkOpcode::Read, WorkOpcode::FetchAdd] {
        for retry_count in [0u8, 1, 3, 7] {
            let mut pair = requester(Attributes { retry_count, ..timeout(10) });
            post(&mut pair, opcode, 8);
            post(&mut pair, WorkOpcode::Send, 8);
            pair.run_with(|_, _| Fate::Drop);
            assert_eq!(pair.ends[0].sent(), [Status::RetryExceeded, Status::Flushed]);
            let sendings = u64::from(retry_count) + 1;
            assert_eq!(u64::from(pair.frames[0]), 2 * sendings);
            let timeout_ns = 4096 << 10;
            assert!((sendings * timeout_ns..=4 * sendings * timeout_ns).contains(&pair.now.0));
            assert_eq!(pair.ends[0].state(), State::Error);
        }
    }
}

#[test]
fn q_43_naks_without_progress_use_the_same_budget() {
    let mut pair = requester(Attributes { retry_count: 3, ..timeout(10) });
    post(&mut pair, WorkOpcode::Send, 4);
    let mut sendings = pair.hear(0).len();
    for _ in 0..3 {
        assert_eq!(pair.acknowledge(0, 0x60, 0x200), None);
        sendings += pair.hear(0).len();
    }
    assert_eq!(sendings, 4);
    pair.acknowledge(0, 0x60, 0x200);
    assert_eq!(pair.ends[0].sent(), [Status::RetryExceeded]);
}

// T-10
#[test]
fn q_44_old_acks_do_not_reload_the_counter_and_new_ones_do() {
    let mut pair = requester(Attributes { retry_count: 3, ..timeout(10) });
    for _ in 0..3 {
        post(&mut pair, WorkOpcode::Send, 4);
    }
    pair.hear(0);
    pair.acknowledge(0, ACK, 0x200);
    for used in 1..=3 {
        pair.pass(0, 4096 << 10);
        pair.hear(0);
        assert_eq!(pair.acknowledge(0, ACK, 0x200), Some(Reason::ResponseGhost));
        assert_eq!(retries(&pair).0, used);
    }
    // Progress at the last moment.
    pair.acknowledge(0, ACK, 0x201);
    assert_eq!(retries(&pair).0, 0);
    for _ in 1..=3 {
        pair.pass(0, 4096 << 10);
        assert_eq!(pair.hear(0).len(), 1);
    }
    pair.pass(0, 4096 << 10);
    assert_eq!(pair.ends[0].sent(), [Status::Success, Status::Success, Status::RetryExceeded]);
}

// T-08
#[test]
fn q_45_rnr_retries_are_counted_in_a_row_and_7_is_without_end() {
    for rnr_retry in [0u8, 1, 6, 7] {
        let mut pair = requester(Attributes { rnr_retry, ..timeout(10) });
        post(&mut pair, WorkOpcode::Send, 4);
        let mut sendings = 0;
        for _ in 0..100 {
            sendings += pair.hear(0).len();
            pair.acknowledge(0, 0x21, 0x200);
            pair.pass(0, rnr_timer_ns(1));
        }
        if rnr_retry == 7 {
            assert_eq!(sendings, 100);
            assert!(pair.ends[0].sent().is_empty());
        } else {
            assert_eq!(sendings, usize::from(rnr_retry) + 1);
            assert_eq!(pair.ends[0].sent(), [Status::RnrRetryExceeded]);
        }
    }
}

#[test]
fn q_45_progress_reloads_the_rnr_counter_and_the_two_counters_are_apart() {
    let mut pair = requester(Attributes { rnr_retry: 2, retry_count: 2, ..timeout(10) });
    post(&mut pair, WorkOpcode::Send, 4);
    post(&mut pair, WorkOpcode::Send, 4);
    pair.hear(0);
    for _ in 0..2 {
        pair.acknowledge(0, 0x21, 0x200);
        pair.pass(0, rnr_timer_ns(1));
        pair.hear(0);
    }
    pair.pass(0, 4096 << 10);
    pair.hear(0);
    assert_eq!(retries(&pair), (1, 2));
    // The RNR NAK for the second acknowledges the first: both counters begin anew.
    pair.acknowledge(0, 0x21, 0x201);
    assert_eq!(retries(&pair), (0, 1));
    assert_eq!(pair.ends[0].sent(), [Status::Success]);
}

// T-08
#[test]
fn q_46_each_rnr_timer_code_waits_at_least_its_time_and_no_transport_timer_runs() {
    for code in 0..32 {
        let mut pair = requester(timeout(1));
        post(&mut pair, WorkOpcode::Send, 4);
        post(&mut pair, WorkOpcode::Send, 4);
        pair.hear(0);
        assert_eq!(pair.acknowledge(0, 0x20 + code, 0x201), None);
        assert_eq!(pair.ends[0].sent(), [Status::Success], "everything before is acknowledged");
        pair.pass(0, rnr_timer_ns(code) - 1);
        assert!(pair.hear(0).is_empty(), "{code}");
        pair.pass(0, 1);
        assert_eq!(brief(&pair.hear(0)), [(op::SEND_ONLY, 0x201)], "{code}");
        assert_eq!(pair.ends[0].engine.counters()[Counter::LocalAckTimeoutErr], 0);
    }
}

#[test]
fn q_46_new_work_waits_too_and_a_sequence_nak_does_not_cut_the_wait_short() {
    let mut pair = requester(timeout(10));
    post(&mut pair, WorkOpcode::Send, 4);
    pair.hear(0);
    pair.acknowledge(0, 0x2C, 0x200);
    post(&mut pair, WorkOpcode::Send, 4);
    // As rxe does: its RNR NAK is followed by a NAK for the same PSN.
    assert_eq!(pair.acknowledge(0, 0x60, 0x200), Some(Reason::ResponseWhileRnr));
    assert!(pair.hear(0).is_empty());
    assert_eq!(retries(&pair), (0, 1));
    pair.pass(0, rnr_timer_ns(12));
    assert_eq!(pair.hear(0).len(), 2);
}

/// As a slow rxe does. Each of these NAKs was taken for a loss, so that retries ran out on a peer that was only not ready.
#[test]
fn q_46_a_sequence_nak_that_comes_late_for_what_was_sent_before_the_wait_counts_no_retry() {
    let mut pair = requester(Attributes { retry_count: 2, ..timeout(10) });
    post(&mut pair, WorkOpcode::Send, 4);
    post(&mut pair, WorkOpcode::Send, 4);
    pair.hear(0);
    for _ in 0..20 {
        assert_eq!(pair.acknowledge(0, 0x2C, 0x200), None);
        pair.pass(0, rnr_timer_ns(12));
        assert_eq!(pair.hear(0).len(), 2);
        assert_eq!(pair.acknowledge(0, 0x60, 0x200), Some(Reason::ResponseWhileRnr));
        assert!(pair.hear(0).is_empty(), "it has been sent again");
        assert_eq!(retries(&pair).0, 0);
    }
    // The next one is about a loss.
    assert_eq!(pair.acknowledge(0, 0x60, 0x200), None);
    assert_eq!(pair.hear(0).len(), 2);
    assert_eq!(retries(&pair).0, 1);
}

#[test]
fn q_47_a_second_rnr_nak_during_the_wait_is_ignored() {
    let mut pair = requester(Attributes { rnr_retry: 1, ..timeout(10) });
    post(&mut pair, WorkOpcode::Send, 4);
    pair.hear(0);
    for _ in 0..5 {
        pair.acknowledge(0, 0x2C, 0x200);
    }
    assert_eq!(retries(&pair), (0, 1));
    pair.pass(0, rnr_timer_ns(12));
    assert_eq!(pair.hear(0).len(), 1);
    assert_eq!(pair.ask(0, op::ACKNOWLEDGE, 0x200, reply(ACK, 1), &[]), None);
    assert_eq!(pair.ends[0].sent(), [Status::Success]);
}
