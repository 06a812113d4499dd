//! One named situation per test. Names begin with the rule that they check.

use insta::assert_snapshot;
use softrnic_engine::{
    Attributes, Counter, Event, PathMtu, Place, Policy, RKey, Reason, State, Status, Work,
    WorkOpcode,
};

use crate::harness::{Fate, Pair, Setup};

fn send(length: u32) -> Work {
    Work { length, local: Place { token: 0, base: 0, length }, ..Work::default() }
}

fn remote(opcode: WorkOpcode, length: u32) -> Work {
    Work { opcode, remote_va: 0x2000, rkey: RKey(7), ..send(length) }
}

fn receive(base: u64, length: u32) -> Place {
    Place { token: 0, base, length }
}

fn pattern(pair: &mut Pair, end: usize) {
    for (i, byte) in pair.ends[end].face.memory.iter_mut().enumerate() {
        *byte = (i * 7 + i / 251 + end) as u8;
    }
}

#[test]
fn q_02_one_send_of_64_bytes() {
    let mut pair = Pair::new(Setup::default());
    pattern(&mut pair, 0);
    pair.ends[1].face.receives.push_back(receive(0x1000, 64));
    pair.ends[0].post(send(64));
    pair.run();
    assert_snapshot!(pair.ladder);
    assert_eq!(pair.ends[0].sent(), [Status::Success]);
    assert_eq!(pair.ends[1].received(), [(Status::Success, 64, None)]);
    assert_eq!(pair.ends[1].face.memory[0x1000..0x1040], pair.ends[0].face.memory[..64]);
}

#[test]
fn s_60_send_write_and_read_of_three_packets() {
    let mut pair = Pair::new(Setup::default());
    pair.region();
    pattern(&mut pair, 0);
    pair.ends[1].face.receives.push_back(receive(0x8000, 4096));
    pair.ends[0].post(send(2500));
    pair.ends[0].post(remote(WorkOpcode::Write, 2500));
    pair.ends[0].post(Work { local: receive(0x6000, 2500), ..remote(WorkOpcode::Read, 2500) });
    pair.run();
    assert_snapshot!(pair.ladder);
    assert_eq!(pair.ends[0].sent(), [Status::Success; 3]);
    let a = &pair.ends[0].face.memory;
    assert_eq!(pair.ends[1].face.memory[0x2000..0x2000 + 2500], a[..2500]);
    assert_eq!(pair.ends[1].face.memory[0x8000..0x8000 + 2500], a[..2500]);
    assert_eq!(a[0x6000..0x6000 + 2500], a[..2500]);
}

#[test]
fn s_63_immediates_and_s_64_invalidate() {
    let mut pair = Pair::new(Setup::default());
    pair.region();
    for i in 0..3 {
        pair.ends[1].face.receives.push_back(receive(0x8000 + i * 0x1000, 4096));
    }
    pair.ends[0].post(Work { opcode: WorkOpcode::SendImm, immediate: 0xCAFE, ..send(5) });
    pair.ends[0].post(Work { immediate: 0xF00D, ..remote(WorkOpcode::WriteImm, 2500) });
    pair.ends[0].post(Work { opcode: WorkOpcode::SendInv, rkey: RKey(7), ..send(0) });
    pair.ends[0].post(remote(WorkOpcode::Write, 1));
    pair.run();
    assert_snapshot!(pair.ladder);
    let received = pair.ends[1].received();
    assert_eq!(received[0], (Status::Success, 5, Some(0xCAFE)));
    assert_eq!(received[1], (Status::Success, 2500, Some(0xF00D)));
    assert_eq!(received[2], (Status::Success, 0, None));
    assert_eq!(
        pair.ends[0].sent(),
        [Status::Success, Status::Success, Status::Success, Status::RemoteAccess]
    );
}

#[test]
fn s_30_one_nak_for_a_gap_and_go_back_n() {
    let mut pair = Pair::new(Setup::default());
    pair.region();
    pattern(&mut pair, 0);
    pair.ends[0].post(remote(WorkOpcode::Write, 5 * 1024));
    pair.run_with(|from, n| if (from, n) == (0, 2) { Fate::Drop } else { Fate::Deliver });
    assert_snapshot!(pair.ladder);
    assert_eq!(pair.ends[0].sent(), [Status::Success]);
    assert_eq!(
        pair.ends[1].face.memory[0x2000..0x2000 + 5 * 1024],
        pair.ends[0].face.memory[..5 * 1024]
    );
}

#[test]
fn q_42_last_packet_lost_is_sent_again_by_timeout() {
    let mut pair = Pair::new(Setup::default());
    pair.ends[1].face.receives.push_back(receive(0x1000, 4096));
    pair.ends[0].post(send(2048));
    pair.run_with(|from, n| if (from, n) == (0, 1) { Fate::Drop } else { Fate::Deliver });
    assert_snapshot!(pair.ladder);
    assert_eq!(pair.ends[0].sent(), [Status::Success]);
    let counters = pair.ends[0].engine.counters();
    assert_eq!(counters[Counter::LocalAckTimeoutErr], 1);
    assert_eq!(counters[Counter::RetransmittedPackets], 2, "nothing had been acknowledged");
}

#[test]
fn s_20_lost_ack_is_sent_again_and_nothing_is_executed_twice() {
    let mut pair = Pair::new(Setup::default());
    pair.ends[1].face.receives.push_back(receive(0x1000, 4096));
    pair.ends[1].face.receives.push_back(receive(0x2000, 4096));
    pair.ends[0].post(send(10));
    pair.run_with(|from, n| if (from, n) == (1, 0) { Fate::Drop } else { Fate::Deliver });
    assert_snapshot!(pair.ladder);
    assert_eq!(pair.ends[0].sent(), [Status::Success]);
    assert_eq!(pair.ends[1].received().len(), 1);
    assert_eq!(pair.ends[1].face.receives.len(), 1);
}

#[test]
fn q_26_lost_read_response_is_asked_for_again_from_there() {
    let mut pair = Pair::new(Setup::default());
    pair.region();
    pattern(&mut pair, 1);
    pair.ends[0]
        .post(Work { local: receive(0x6000, 6 * 1024), ..remote(WorkOpcode::Read, 6 * 1024) });
    pair.run_with(|from, n| if (from, n) == (1, 2) { Fate::Drop } else { Fate::Deliver });
    assert_snapshot!(pair.ladder);
    assert_eq!(pair.ends[0].sent(), [Status::Success]);
    assert_eq!(
        pair.ends[0].face.memory[0x6000..0x6000 + 6 * 1024],
        pair.ends[1].face.memory[0x2000..0x2000 + 6 * 1024]
    );
}

#[test]
fn q_23_ack_beyond_an_unanswered_read_is_an_implied_nak() {
    let mut pair = Pair::new(Setup::default());
    pair.region();
    pair.ends[1].face.receives.push_back(receive(0x8000, 64));
    pair.ends[0].post(Work { local: receive(0x6000, 64), ..remote(WorkOpcode::Read, 64) });
    pair.ends[0].post(send(64));
    pair.run_with(|from, n| if (from, n) == (1, 0) { Fate::Drop } else { Fate::Deliver });
    assert_snapshot!(pair.ladder);
    assert_eq!(pair.ends[0].sent(), [Status::Success; 2]);
    assert_eq!(pair.ends[0].engine.counters()[Counter::ImpliedNakSeqErr], 1);
}

#[test]
fn s_34_receiver_not_ready_waits_and_q_46_resumes() {
    let mut pair = Pair::new(Setup::default());
    for _ in 0..3 {
        pair.ends[0].post(send(10));
    }
    let mut given = false;
    for _ in 0..100 {
        while pair.transmit(0, &mut |_, _| Fate::Deliver)
            | pair.transmit(1, &mut |_, _| Fate::Deliver)
        {}
        if !given && pair.now.0 > 3000 {
            given = true;
            for i in 0..3 {
                pair.ends[1].face.receives.push_back(receive(0x1000 + i * 64, 64));
            }
        }
        if !pair.step() {
            break;
        }
    }
    assert_snapshot!(pair.ladder);
    assert_eq!(pair.ends[0].sent(), [Status::Success; 3]);
    assert_eq!(pair.ends[1].face.events[0], Event::ReceiverNotReady(pair.ends[1].qpn));
}

#[test]
fn q_45_rnr_retry_runs_out() {
    for limit in [0, 1, 6] {
        let mut setup = Setup::default();
        setup.attributes.rnr_retry = limit;
        let mut pair = Pair::new(setup);
        pair.ends[0].post(send(10));
        pair.ends[0].post(send(10));
        pair.run();
        assert_eq!(pair.ends[0].sent(), [Status::RnrRetryExceeded, Status::Flushed], "{limit}");
        // Each try sends both; the responder answers the first only.
        assert_eq!(pair.frames[1], u32::from(limit) + 1, "one RNR NAK for each sending");
        assert_eq!(pair.ends[0].state(), State::Error);
    }
}

#[test]
fn q_43_retry_count_runs_out_against_a_dead_peer() {
    for limit in [0, 1, 3, 7] {
        let mut setup = Setup::default();
        setup.attributes.retry_count = limit;
        let mut pair = Pair::new(setup);
        pair.ends[0].post(send(10));
        pair.ends[0].post(send(10));
        pair.run_with(|_, _| Fate::Drop);
        assert_eq!(pair.ends[0].sent(), [Status::RetryExceeded, Status::Flushed]);
        assert_eq!(pair.frames[0], 2 * (u32::from(limit) + 1), "1 + retry_count sendings of each");
        let timeout_ns = 4096 << 10;
        assert_eq!(pair.now.0, timeout_ns * (u64::from(limit) + 1));
    }
}

#[test]
fn q_30_fatal_nak_on_the_second_of_three() {
    let mut pair = Pair::new(Setup::default());
    pair.region();
    pair.ends[0].post(remote(WorkOpcode::Write, 16));
    pair.ends[0].post(Work { rkey: RKey(8), ..remote(WorkOpcode::Write, 16) });
    pair.ends[0].post(remote(WorkOpcode::Write, 16));
    pair.run();
    assert_snapshot!(pair.ladder);
    assert_eq!(pair.ends[0].sent(), [Status::Success, Status::RemoteAccess, Status::Flushed]);
    assert_eq!(pair.ends[0].state(), State::Error);
    assert_eq!(pair.ends[1].state(), State::Error);
    let reason = Reason::KeyUnknown;
    let event = Event::QpError { qpn: pair.ends[1].qpn, reason, by_peer: true };
    assert_eq!(pair.ends[1].face.events, [event]);
    pair.ends[0].post(send(1));
    assert_eq!(pair.ends[0].sent()[3], Status::Flushed, "new work flushes at once");
}

#[test]
fn s_45_send_larger_than_the_receive_buffer() {
    let mut pair = Pair::new(Setup::default());
    pattern(&mut pair, 0);
    pair.ends[1].face.memory[0x1000..0x2000].fill(0xEE);
    pair.ends[1].face.receives.push_back(receive(0x1000, 1500));
    pair.ends[0].post(send(2048));
    pair.run();
    assert_snapshot!(pair.ladder);
    assert_eq!(pair.ends[0].sent(), [Status::RemoteInvalidRequest]);
    assert_eq!(pair.ends[1].received(), [(Status::LocalLength, 0, None)]);
    assert!(pair.ends[1].face.memory[0x1000 + 1024..0x2000].iter().all(|&b| b == 0xEE));
}

#[test]
fn s_61_read_fault_halfway_answers_with_a_nak_at_its_psn() {
    let mut pair = Pair::new(Setup::default());
    pair.region();
    pair.ends[0].post(Work { local: receive(0x6000, 4096), ..remote(WorkOpcode::Read, 4096) });
    pair.transmit(0, &mut |_, _| Fate::Deliver);
    pair.step();
    let mut sent = 0;
    let mut bytes = vec![0; 8192];
    // Two responses leave, then the region goes away.
    while sent < 2 {
        let end = &mut pair.ends[1];
        let mut room = softrnic_engine::Room { bytes: &mut bytes, segments: 1, source_port: None };
        let train = end.engine.poll_transmit(pair.now, &mut room, &mut end.face);
        let train = train.expect("a response is owed");
        pair.inject(0, &bytes[..train.len]);
        sent += 1;
    }
    pair.ends[1].face.regions.clear();
    pair.run();
    assert_eq!(pair.ends[0].sent(), [Status::RemoteAccess]);
    assert_snapshot!(pair.ladder);
}

#[test]
fn s_03_psn_wraps_in_the_middle_of_everything() {
    let mut pair = Pair::new(Setup { psn: 0x00FF_FFFE, ..Setup::default() });
    pair.region();
    pattern(&mut pair, 0);
    pair.ends[1].face.receives.push_back(receive(0x8000, 4096));
    pair.ends[0].post(send(4096));
    pair.ends[0].post(Work { local: receive(0x6000, 4096), ..remote(WorkOpcode::Read, 4096) });
    pair.run_with(|from, n| match (from, n) {
        (0, 1) | (1, 3) => Fate::Drop,
        _ => Fate::Deliver,
    });
    assert_snapshot!(pair.ladder);
    assert_eq!(pair.ends[0].sent(), [Status::Success; 2]);
}

#[test]
fn q_52_bad_work_request_fails_after_everything_before_it() {
    let mut pair = Pair::new(Setup::default());
    pair.region();
    pair.ends[0].face.bad.insert(1, (Status::LocalQpOperation, Reason::WorkOpcodeIllegal));
    pair.ends[0].post(remote(WorkOpcode::Write, 4096));
    pair.ends[0].post(send(1));
    pair.ends[0].post(send(1));
    pair.run();
    assert_eq!(pair.ends[0].sent(), [Status::Success, Status::LocalQpOperation, Status::Flushed]);
}

#[test]
fn s_55_a_full_completion_queue_fails_the_queue_pair_before_the_ack_leaves() {
    let mut pair = Pair::new(Setup::default());
    pair.ends[1].face.completion_limit = Some(1);
    for i in 0..2 {
        pair.ends[1].face.receives.push_back(receive(0x1000 + i * 64, 64));
        pair.ends[0].post(send(8));
    }
    pair.run();
    assert_eq!(pair.ends[0].sent(), [Status::Success, Status::RemoteOperation]);
    assert_eq!(pair.ends[1].state(), State::Error);
}

#[test]
fn q_11_a_stalled_gather_resumes_with_a_kick() {
    let mut pair = Pair::new(Setup::default());
    pair.region();
    pair.ends[0].face.stall_gather = true;
    pair.ends[0].post(remote(WorkOpcode::Write, 16));
    pair.run();
    assert_eq!(pair.frames[0], 0);
    pair.ends[0].face.stall_gather = false;
    let qpn = pair.ends[0].qpn;
    pair.ends[0].engine.kick(qpn);
    pair.run();
    assert_eq!(pair.ends[0].sent(), [Status::Success]);
}

#[test]
fn q_04_a_full_window_asks_for_an_acknowledgement() {
    let policy = Policy { window_packets: 4, ack_request_every: 0, ..Policy::default() };
    let attributes =
        Attributes { policy, path_mtu: PathMtu::M256, ack_timeout: 10, ..Attributes::default() };
    let mut pair = Pair::new(Setup { attributes, ..Setup::default() });
    pair.region();
    pair.ends[0].post(remote(WorkOpcode::Write, 256 * 10));
    pair.run();
    assert_snapshot!(pair.ladder);
    assert_eq!(pair.ends[0].sent(), [Status::Success]);
}

#[test]
fn q_41_an_idle_queue_pair_has_no_timer() {
    let mut pair = Pair::new(Setup::default());
    pair.region();
    pair.ends[0].post(remote(WorkOpcode::Write, 16));
    pair.run();
    assert_eq!(pair.ends[0].engine.next_deadline(), None);
    assert!(pair.now.0 < 10_000, "the run ended with the ACK, not with a timer");
}

#[test]
fn q_07_fence_waits_for_the_read() {
    let mut pair = Pair::new(Setup::default());
    pair.region();
    pair.ends[0].post(Work { local: receive(0x6000, 2048), ..remote(WorkOpcode::Read, 2048) });
    pair.ends[0].post(Work { fence: true, ..remote(WorkOpcode::Write, 16) });
    pair.run();
    assert_snapshot!(pair.ladder);
}

#[test]
fn q_06_no_more_reads_outstanding_than_the_depth() {
    let attributes = Attributes { max_rd_atomic: 1, ack_timeout: 10, ..Attributes::default() };
    let mut pair = Pair::new(Setup { attributes, ..Setup::default() });
    pair.region();
    for _ in 0..2 {
        pair.ends[0].post(Work { local: receive(0x6000, 16), ..remote(WorkOpcode::Read, 16) });
    }
    pair.ends[0].post(remote(WorkOpcode::Write, 16));
    pair.run();
    assert_snapshot!(pair.ladder);
    assert_eq!(pair.ends[0].sent(), [Status::Success; 3]);
}

#[test]
fn s_23_a_repeated_atomic_changes_memory_once() {
    let mut pair = Pair::new(Setup::default());
    pair.region();
    pair.ends[1].face.memory[0x2000..0x2008].copy_from_slice(&41u64.to_le_bytes());
    let local = receive(0x6000, 8);
    pair.ends[0].post(Work { local, swap_or_add: 1, ..remote(WorkOpcode::FetchAdd, 8) });
    pair.run_with(|from, n| if (from, n) == (1, 0) { Fate::Drop } else { Fate::Deliver });
    assert_snapshot!(pair.ladder);
    assert_eq!(pair.ends[1].face.memory[0x2000..0x2008], 42u64.to_le_bytes());
    assert_eq!(pair.ends[0].face.memory[0x6000..0x6008], 41u64.to_le_bytes());
}

#[test]
fn q_43_a_disabled_queue_pair_uses_no_retries() {
    let mut setup = Setup::default();
    setup.attributes.retry_count = 1;
    let mut pair = Pair::new(setup);
    pair.region();
    pair.ends[0].post(remote(WorkOpcode::Write, 16));
    pair.transmit(0, &mut |_, _| Fate::Drop);
    let qpn = pair.ends[0].qpn;
    let enable = |pair: &mut Pair, enabled| {
        pair.ends[0].engine.attributes_mut(qpn).expect("it exists").enabled = enabled;
    };
    enable(&mut pair, false);
    for _ in 0..5 {
        assert!(pair.step(), "the timer goes on");
    }
    assert_eq!(pair.ends[0].sent(), []);
    enable(&mut pair, true);
    pair.run();
    assert_eq!(pair.ends[0].sent(), [Status::Success]);
}
