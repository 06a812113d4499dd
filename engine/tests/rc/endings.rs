//! How work ends: order, flush, and what completions say; ERR and RESET with traffic in flight (Q-50
//! to Q-54).

use softrnic_engine::packet::opcode as op;
use softrnic_engine::{
    Completion, CompletionKind, Place, RKey, Reason, State, Status, Work, WorkOpcode,
};

use crate::harness::{Fate, Pair, Setup};
use crate::peer::{KEY, reply};

const ACK: u8 = 0x1F;

fn work(opcode: WorkOpcode, length: u32) -> Work {
    let local = Place { token: 0, base: 0x6000, length };
    Work { opcode, length, local, remote_va: 0x2000, rkey: RKey(KEY), ..Work::default() }
}

fn indices(pair: &Pair) -> Vec<u32> {
    let completions = pair.ends[0].face.completions.iter();
    completions
        .filter_map(|c| match c.kind {
            CompletionKind::Work { index, .. } => Some(index),
            CompletionKind::Receive { .. } => None,
        })
        .collect()
}

#[test]
fn q_50_completions_come_in_posting_order_whatever_is_answered_first() {
    use WorkOpcode::{FetchAdd, Read, Send, Write};
    let mut pair = Pair::new(Setup::default());
    pair.region();
    for i in 0..24 {
        let opcode = [Read, Send, Write, FetchAdd][i % 4];
        pair.ends[0].post(work(opcode, if opcode == FetchAdd { 8 } else { 1500 }));
        let place = Place { token: 0, base: 0x9000, length: 4096 };
        pair.ends[1].face.receives.push_back(place);
    }
    pair.run_with(|from, n| match (from, n % 5) {
        (1, 2) => Fate::Swap,
        (1, 4) if n < 30 => Fate::Drop,
        _ => Fate::Deliver,
    });
    assert_eq!(indices(&pair), (0..24).collect::<Vec<_>>());
    assert_eq!(pair.ends[0].sent(), [Status::Success; 24]);
}

// T-18
#[test]
fn q_52_after_an_error_everything_flushes_once_and_in_order() {
    let mut pair = Pair::new(Setup::default());
    for _ in 0..10 {
        pair.ends[0].post(work(WorkOpcode::Send, 4));
    }
    pair.hear(0);
    assert_eq!(pair.acknowledge(0, 0x61, 0x102), None);
    let mut expected = vec![Status::Success; 2];
    expected.push(Status::RemoteInvalidRequest);
    expected.extend([Status::Flushed; 7]);
    assert_eq!(pair.ends[0].sent(), expected);
    for _ in 0..3 {
        pair.ends[0].post(work(WorkOpcode::Write, 4));
        expected.push(Status::Flushed);
    }
    assert_eq!(pair.ends[0].sent(), expected);
    assert_eq!(indices(&pair), (0..13).collect::<Vec<_>>());
    assert_eq!(pair.acknowledge(0, ACK, 0x109), Some(Reason::QpFatal));
    assert_eq!(pair.ends[0].sent(), expected);
}

#[test]
fn q_53_an_error_completion_names_its_request_and_why() {
    let mut pair = Pair::new(Setup::default());
    pair.ends[0].post(work(WorkOpcode::Write, 4));
    pair.hear(0);
    pair.acknowledge(0, 0x62, 0x100);
    let Completion { kind, status, reason } = pair.ends[0].face.completions[0];
    assert!(matches!(kind, CompletionKind::Work { index: 0, .. }));
    assert_eq!((status, reason), (Status::RemoteAccess, Some(Reason::RemoteAccess)));
    assert_eq!(status as u8, 10, "numbered as verbs do");
}

#[test]
fn q_54_the_length_of_a_read_is_in_its_completion() {
    for length in [0u32, 5000] {
        let mut pair = Pair::new(Setup::default());
        pair.region();
        pair.ends[0].post(work(WorkOpcode::Read, length));
        pair.run();
        let kind = pair.ends[0].face.completions[0].kind;
        let CompletionKind::Work { length: told, .. } = kind else { panic!("a work completes") };
        assert_eq!(told, length);
    }
}

// T-29
#[test]
fn q_52_error_and_reset_in_mid_flight_complete_each_request_once_or_not_at_all() {
    for state in [State::Error, State::Reset] {
        for end in 0..2 {
            for steps in 0..6 {
                let mut pair = Pair::new(Setup::default());
                pair.region();
                for opcode in [WorkOpcode::Write, WorkOpcode::Read, WorkOpcode::Send] {
                    pair.ends[0].post(work(opcode, 3000));
                }
                let place = Place { token: 0, base: 0x9000, length: 4096 };
                pair.ends[1].face.receives.push_back(place);
                for _ in 0..steps {
                    pair.transmit(0, &mut |_, _| Fate::Deliver);
                    pair.transmit(1, &mut |_, _| Fate::Deliver);
                    pair.step();
                }
                let qpn = pair.ends[end].qpn;
                let dut = &mut pair.ends[end];
                dut.engine.set_state(qpn, state, &mut dut.face);
                pair.run();
                let done = indices(&pair);
                assert_eq!(done, (0..done.len() as u32).collect::<Vec<_>>());
                let whole = state == State::Error || end == 1;
                assert!(!whole || done.len() == 3, "{state:?} {end} {steps}: {done:?}");
                assert!(pair.ends.iter_mut().all(|e| e.engine.next_deadline().is_none()));
            }
        }
    }
}

#[test]
fn q_52_a_reset_queue_pair_starts_again_as_new() {
    let mut pair = Pair::new(Setup::default());
    pair.ends[0].post(work(WorkOpcode::Write, 3000));
    pair.hear(0);
    pair.acknowledge(0, 0x2C, 0x101);
    let qpn = pair.ends[0].qpn;
    let end = &mut pair.ends[0];
    end.engine.set_state(qpn, State::Reset, &mut end.face);
    end.face.sends.clear();
    end.engine.set_send_psn(qpn, softrnic_engine::Psn::new(0x7000));
    for state in [State::Init, State::Rtr, State::Rts] {
        end.engine.set_state(qpn, state, &mut end.face);
    }
    assert!(end.face.completions.is_empty());
    pair.ends[0].post(work(WorkOpcode::Send, 4));
    let heard = pair.hear(0);
    assert_eq!((heard[0].opcode, heard[0].psn), (op::SEND_ONLY, 0x7000));
    assert!(pair.ask(0, op::ACKNOWLEDGE, 0x102, reply(ACK, 1), &[]).is_some(), "an old answer");
    assert_eq!(pair.acknowledge(0, ACK, 0x7000), None);
    assert_eq!(pair.ends[0].sent(), [Status::Success]);
}
