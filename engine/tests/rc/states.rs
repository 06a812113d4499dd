//! Queue pair states: what each takes and gives, and how work ends when a state changes under traffic
//! (rules M, V-07).

use insta::assert_snapshot;
use softrnic_engine::packet::{BthFields, Flow, Syndrome, Template, opcode};
use softrnic_engine::{
    AttributeMask as A, Attributes, CompletionKind, Counter, Event, Modify, ModifyError, Place,
    Policy, Psn, QpQuery, QpType, RKey, Reason, RemoteAccess, Service, State, Status, Transition,
    Work, WorkOpcode,
};

use crate::harness::{End, Fate, Pair, Setup};

pub const ALL_ACCESS: RemoteAccess = RemoteAccess { read: true, write: true, atomic: true };

pub fn modify(end: &mut End, modify: &Modify) -> Result<(), ModifyError> {
    end.engine.modify_qp(end.qpn, modify, &mut end.face)
}

pub fn go(end: &mut End, state: State) -> Result<(), ModifyError> {
    modify(end, &Modify { set: A::STATE, state, ..Modify::default() })
}

pub fn query(end: &End) -> QpQuery {
    end.engine.query_qp(end.qpn).expect("the queue pair exists")
}

/// From RESET to RTS by verbs, towards the peer that the attributes name.
fn connect(end: &mut End, rq_psn: u32, sq_psn: u32) -> Result<(), ModifyError> {
    let Attributes { path, dest_qpn, path_mtu, ack_timeout, .. } = query(end).attributes;
    let base = Modify {
        access_flags: ALL_ACCESS,
        av: path,
        dest_qpn: dest_qpn.get(),
        path_mtu,
        timeout: ack_timeout,
        rq_psn,
        sq_psn,
        ..Modify::default()
    };
    let qp_type = QpType::Rc;
    for (from, to) in
        [(State::Reset, State::Init), (State::Init, State::Rtr), (State::Rtr, State::Rts)]
    {
        let step = Transition { qp_type, from, to };
        let (required, _) = step.attributes().expect("it is in the table");
        modify(end, &Modify { set: required | A::STATE, state: to, ..base })?;
    }
    Ok(())
}

pub fn send(length: u32) -> Work {
    Work { length, local: Place { token: 0, base: 0, length }, ..Work::default() }
}

pub fn remote(opcode: WorkOpcode, length: u32) -> Work {
    Work { opcode, remote_va: 0x2000, rkey: RKey(7), ..send(length) }
}

pub fn receive(base: u64, length: u32) -> Place {
    Place { token: 0, base, length }
}

/// A pair whose requesters have one packet under way at most, so that a state can change between
/// any two packets.
fn stepwise() -> Pair {
    let policy = Policy { window_packets: 1, ..Policy::default() };
    let attributes = Attributes { policy, ack_timeout: 10, ..Attributes::default() };
    let mut pair = Pair::new(Setup { attributes, ..Setup::default() });
    pair.region();
    pair
}

// What each state takes and gives.

/// A frame of the peer of `to`, as it might arrive from the link.
fn frame(pair: &Pair, to: usize, opcode: u8, psn: Psn, headers: &[u8]) -> Vec<u8> {
    let (me, peer) = (&pair.ends[to], &pair.ends[1 - to]);
    let flow = Flow {
        source_mac: peer.engine.port().mac,
        dest_mac: me.engine.port().mac,
        vlan_tci: None,
        source_ip: peer.engine.port().ipv4.into(),
        dest_ip: me.engine.port().ipv4.into(),
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        source_port: 0xC000,
        pkey: 0xFFFF,
        dest_qpn: me.qpn,
    };
    let template = Template::new(&flow).expect("one family");
    let row = opcode::row(opcode);
    let mut frame = vec![0; template.frame_len(row, 0)];
    frame[template.len()..template.len() + headers.len()].copy_from_slice(headers);
    let bth = BthFields { psn, ack_request: false, ..BthFields::default() };
    template.finish(&mut frame, row, 0, bth);
    frame
}

#[test]
fn v_07_what_each_state_accepts() {
    let (no, fatal) = (Some(Reason::QpNotReady), Some(Reason::QpFatal));
    let noted = Some(Reason::CongestionNotification);
    // Request, response, CNP. An RC queue pair is never in SQE, but the rule is there.
    let matrix = [
        (State::Reset, [no, no, no]),
        (State::Init, [no, no, no]),
        (State::Rtr, [None, no, noted]),
        (State::Rts, [None, None, noted]),
        (State::Sqd, [None, None, noted]),
        (State::Sqe, [None, no, noted]),
        (State::Error, [fatal, fatal, fatal]),
    ];
    for (state, expected) in matrix {
        let mut pair = Pair::new(Setup::default());
        pair.region();
        // A request is outstanding, so that there is something to respond to.
        pair.ends[0].post(remote(WorkOpcode::Write, 8));
        pair.transmit(0, &mut |_, _| Fate::Drop);
        let end = &mut pair.ends[0];
        end.engine.set_state(end.qpn, state, &mut end.face);
        end.face.receives.push_back(receive(0x1000, 64));
        let psn = Psn::new(0x100);
        let ack = [Syndrome::Ack(31).byte(), 0, 0, 1];
        let frames = [
            frame(&pair, 0, opcode::SEND_ONLY, psn, &[]),
            frame(&pair, 0, opcode::ACKNOWLEDGE, psn, &ack),
            frame(&pair, 0, opcode::CNP, Psn::new(0), &[]),
        ];
        let got = frames.map(|frame| pair.inject(0, &frame));
        assert_eq!(got, expected, "request, response and CNP in {state}");
        let end = &pair.ends[0];
        assert_eq!(end.received().len(), usize::from(expected[0].is_none()), "{state}");
        let acknowledged = end.sent().contains(&Status::Success);
        assert_eq!(acknowledged, expected[1].is_none(), "{state}");
        let counted = end.engine.counters()[Counter::CnpHandled];
        assert_eq!(counted, u32::from(expected[2] == noted), "{state}");
    }
}

/// Faces refuse sends before RTS; the engine must neither send them nor spin if one does not.
#[test]
fn m_03_work_posted_in_each_state() {
    for state in State::ALL {
        let mut pair = Pair::new(Setup::default());
        pair.region();
        let end = &mut pair.ends[0];
        end.engine.set_state(end.qpn, state, &mut end.face);
        end.post(remote(WorkOpcode::Write, 8));
        end.engine.kick(end.qpn);
        pair.run();
        let expected: &[Status] = match state {
            State::Rts => &[Status::Success],
            State::Sqe | State::Error => &[Status::Flushed],
            State::Reset | State::Init | State::Rtr | State::Sqd => &[],
        };
        assert_eq!(pair.ends[0].sent(), expected, "{state}");
        assert_eq!(pair.frames[0], u32::from(state == State::Rts), "{state}");
    }
}

#[test]
fn m_04_rtr_answers_and_is_silent_and_rts_does_both() {
    let mut pair = Pair::new(Setup::default());
    pair.region();
    let [a, b] = &mut pair.ends;
    go(b, State::Reset).unwrap();
    connect(b, 0x100, 0x100).unwrap();
    b.engine.set_state(b.qpn, State::Rtr, &mut b.face);
    b.post(send(8));
    a.face.receives.push_back(receive(0x1000, 64));
    a.post(remote(WorkOpcode::Write, 2048));
    pair.run();
    assert_eq!(pair.ends[0].sent(), [Status::Success], "RTR answers");
    assert!(pair.ends[0].received().is_empty(), "RTR sends nothing of its own");
    let established = Event::CommunicationEstablished(pair.ends[1].qpn);
    assert_eq!(pair.ends[1].face.events, [established]);
    let rts = Modify {
        set: A::of([A::STATE, A::SQ_PSN, A::TIMEOUT, A::RETRY_CNT, A::RNR_RETRY, A::MAX_RD_ATOMIC]),
        state: State::Rts,
        sq_psn: 0x100,
        ..Modify::default()
    };
    modify(&mut pair.ends[1], &rts).unwrap();
    pair.run();
    assert_eq!(pair.ends[1].sent(), [Status::Success], "what waited is sent");
    assert_eq!(pair.ends[0].received(), [(Status::Success, 8, None)]);
}

// SQD.

fn drain(end: &mut End, en_sqd_async_notify: bool) -> Result<(), ModifyError> {
    let set = A::of([A::STATE, A::EN_SQD_ASYNC_NOTIFY]);
    modify(end, &Modify { set, state: State::Sqd, en_sqd_async_notify, ..Modify::default() })
}

#[test]
fn m_05_drain_change_the_timeout_and_resume() {
    let mut pair = stepwise();
    for _ in 0..3 {
        pair.ends[0].post(remote(WorkOpcode::Write, 3 * 1024));
    }
    pair.ends[0].face.receives.push_back(receive(0x1000, 64));
    pair.ends[1].post(send(64));
    pair.transmit(0, &mut |_, _| Fate::Deliver);
    assert_eq!(pair.frames[0], 1, "the first packet of the first");
    drain(&mut pair.ends[0], true).unwrap();
    pair.ladder.push_str("a: RTS to SQD\n");
    assert!(query(&pair.ends[0]).sq_draining);

    let step = |to| Transition { qp_type: QpType::Rc, from: State::Sqd, to };
    let timeout = Modify { set: A::TIMEOUT, timeout: 6, ..Modify::default() };
    let draining = |to| Err(ModifyError::Draining(step(to)));
    assert_eq!(modify(&mut pair.ends[0], &timeout), draining(State::Sqd));
    assert_eq!(go(&mut pair.ends[0], State::Rts), draining(State::Rts));

    // What has started ends, with a retry where one is due (frame 1 is an acknowledgement).
    pair.run_with(|from, n| if (from, n) == (0, 2) { Fate::Drop } else { Fate::Deliver });
    assert_eq!(pair.ends[0].sent(), [Status::Success], "the other two wait");
    assert_eq!(pair.ends[0].received(), [(Status::Success, 64, None)], "the responder goes on");
    let drained = Event::SendQueueDrained(pair.ends[0].qpn);
    assert_eq!(pair.ends[0].face.events, [drained]);
    assert!(!query(&pair.ends[0]).sq_draining);

    modify(&mut pair.ends[0], &timeout).unwrap();
    assert_eq!(query(&pair.ends[0]).attributes.ack_timeout, 6);
    assert_eq!(pair.ends[0].face.events, [drained], "announced once");
    pair.ladder.push_str("a: timeout 6, SQD to RTS\n");
    go(&mut pair.ends[0], State::Rts).unwrap();
    let lost = pair.frames[0];
    pair.run_with(|from, n| if (from, n) == (0, lost) { Fate::Drop } else { Fate::Deliver });
    assert_eq!(pair.ends[0].sent(), [Status::Success; 3]);
    assert_snapshot!(pair.ladder);
}

#[test]
fn m_05_an_idle_queue_is_drained_at_once_and_tells_only_if_asked() {
    for asked in [false, true] {
        let mut pair = Pair::new(Setup::default());
        drain(&mut pair.ends[0], asked).unwrap();
        assert!(!query(&pair.ends[0]).sq_draining);
        let drained = Event::SendQueueDrained(pair.ends[0].qpn);
        let expected = if asked { vec![drained] } else { vec![] };
        assert_eq!(pair.ends[0].face.events, expected);
        // The next time it must be asked for again.
        go(&mut pair.ends[0], State::Rts).unwrap();
        go(&mut pair.ends[0], State::Sqd).unwrap();
        assert_eq!(pair.ends[0].face.events, expected);
    }
}

#[test]
fn m_05_a_read_is_drained_with_its_last_answer() {
    let mut pair = Pair::new(Setup::default());
    pair.region();
    pair.ends[0].post(Work { local: receive(0x6000, 4096), ..remote(WorkOpcode::Read, 4096) });
    pair.transmit(0, &mut |_, _| Fate::Deliver);
    drain(&mut pair.ends[0], true).unwrap();
    assert!(query(&pair.ends[0]).sq_draining);
    // A broken work request that has not started may not fail the queue pair now.
    pair.ends[0].face.bad.insert(1, (Status::LocalQpOperation, Reason::WorkOpcodeIllegal));
    let end = &mut pair.ends[0];
    end.engine.ring(end.qpn, &mut end.face);
    pair.run_with(|from, n| if (from, n) == (1, 3) { Fate::Drop } else { Fate::Deliver });
    let end = &mut pair.ends[0];
    assert_eq!(end.sent(), [Status::Success]);
    assert_eq!(end.face.events, [Event::SendQueueDrained(end.qpn)]);
    assert_eq!(end.state(), State::Sqd);
    go(end, State::Rts).unwrap();
    pair.run();
    assert_eq!(pair.ends[0].sent(), [Status::Success, Status::LocalQpOperation]);
    assert_eq!(pair.ends[0].state(), State::Error);
}

#[test]
fn m_05_while_draining_error_and_reset_are_open() {
    for (to, sent) in [(State::Error, vec![Status::Flushed; 2]), (State::Reset, vec![])] {
        let mut pair = stepwise();
        for _ in 0..2 {
            pair.ends[0].post(remote(WorkOpcode::Write, 3 * 1024));
        }
        pair.transmit(0, &mut |_, _| Fate::Deliver);
        drain(&mut pair.ends[0], true).unwrap();
        go(&mut pair.ends[0], to).unwrap();
        assert_eq!((pair.ends[0].state(), pair.ends[0].sent()), (to, sent));
        assert!(!query(&pair.ends[0]).sq_draining);
        pair.run();
        let drained = Event::SendQueueDrained(pair.ends[0].qpn);
        assert!(!pair.ends[0].face.events.contains(&drained), "{to} is not drained");
    }
}

fn add_one(pair: &mut Pair, times: usize) {
    for _ in 0..times {
        let local = receive(0x6000, 8);
        pair.ends[0].post(Work { local, swap_or_add: 1, ..remote(WorkOpcode::FetchAdd, 8) });
    }
    pair.run();
}

/// Answers kept for duplicates outlive a change of their number: the newest, and the oldest of them
/// give way first.
#[test]
fn m_05_the_responders_depth_changes_in_sqd() {
    for (depth, more, answered) in [
        (1, 0, [false, true]),
        (2, 0, [true, true]),
        (2, 1, [false, true]),
        (3, 2, [false, true]),
        (40, 38, [true, true]),
        (40, 39, [false, true]),
    ] {
        let mut pair = Pair::new(Setup::default());
        pair.region();
        add_one(&mut pair, 2);
        let end = &mut pair.ends[1];
        go(end, State::Sqd).unwrap();
        let set = A::MAX_DEST_RD_ATOMIC;
        modify(end, &Modify { set, max_dest_rd_atomic: depth, ..Modify::default() }).unwrap();
        add_one(&mut pair, more);
        // The headers of the first two, as they arrived.
        let mut atomic = [0; 28];
        (atomic[6], atomic[11], atomic[19]) = (0x20, 7, 1);
        for (i, answered) in answered.into_iter().enumerate() {
            let psn = Psn::new(0x100 + i as u32);
            let duplicate = frame(&pair, 1, opcode::FETCH_ADD, psn, &atomic);
            let refused = pair.inject(1, &duplicate);
            let expected = (!answered).then_some(Reason::DuplicateNotReplayable);
            assert_eq!(refused, expected, "depth {depth}, {more} more, atomic {i}");
        }
        let sum = 2 + more as u64;
        assert_eq!(pair.ends[1].face.memory[0x2000..0x2008], sum.to_le_bytes());
    }
}

// SQE.

#[test]
fn m_06_an_unreliable_send_error_stops_only_the_send_queue() {
    for (service, status) in
        [(Service::Uc, Status::LocalProtection), (Service::Ud, Status::LocalQpOperation)]
    {
        let attributes = Attributes { service, ..Attributes::default() };
        let mut pair = Pair::new(Setup { attributes, ..Setup::default() });
        // UC: the second packet is outside of memory. UD: there is no address handle.
        let outside = receive(pair.ends[0].face.memory.len() as u64 - 1024, 2048);
        pair.ends[0].post(Work { local: outside, ..send(2048) });
        pair.ends[0].post(send(16));
        pair.run();
        assert_eq!(pair.ends[0].state(), State::Sqe);
        pair.ends[0].post(send(16));
        assert_eq!(pair.ends[0].sent(), [status, Status::Flushed, Status::Flushed]);
        let failed = |event: &&Event| matches!(event, Event::SendQueueError { .. });
        assert_eq!(pair.ends[0].face.events.iter().filter(failed).count(), 1);
        go(&mut pair.ends[0], State::Rts).unwrap();
        assert_eq!(pair.ends[0].state(), State::Rts);
    }
}

#[test]
fn m_06_receives_go_on_in_sqe_and_rts_sends_again() {
    let attributes = Attributes { service: Service::Uc, ..Attributes::default() };
    let mut pair = Pair::new(Setup { attributes, ..Setup::default() });
    for end in &mut pair.ends {
        end.face.receives.extend([receive(0x1000, 4096), receive(0x2000, 4096)]);
    }
    let outside = receive(pair.ends[0].face.memory.len() as u64 - 1024, 2048);
    pair.ends[0].post(Work { local: outside, ..send(2048) });
    pair.run();
    assert_eq!(pair.ends[0].state(), State::Sqe);
    pair.ends[1].post(send(5));
    pair.run();
    assert_eq!(pair.ends[0].received(), [(Status::Success, 5, None)]);
    go(&mut pair.ends[0], State::Rts).unwrap();
    pair.ends[0].post(send(1500));
    pair.run();
    assert_eq!(pair.ends[0].sent(), [Status::LocalProtection, Status::Success]);
    assert_eq!(pair.ends[1].received(), [(Status::Success, 1500, None)]);
}

// ERR and RESET under traffic.

/// Work of every kind, some of several packets, on both sides.
fn traffic() -> Pair {
    let mut pair = stepwise();
    for i in 0..2 {
        pair.ends[1].face.receives.push_back(receive(0x8000 + i * 0x1000, 4096));
    }
    pair.ends[0].post(send(2500));
    pair.ends[0].post(remote(WorkOpcode::Write, 1500));
    pair.ends[0].post(Work { local: receive(0x6000, 2500), ..remote(WorkOpcode::Read, 2500) });
    pair.ends[0].post(Work { local: receive(0x6000, 8), ..remote(WorkOpcode::FetchAdd, 8) });
    pair.ends[0].post(send(10));
    pair
}

/// Runs `steps` moments of `traffic`; `false` where it had ended before.
fn advance(pair: &mut Pair, steps: usize) -> bool {
    (0..steps).all(|_| {
        pair.transmit(0, &mut |_, _| Fate::Deliver);
        pair.transmit(1, &mut |_, _| Fate::Deliver);
        pair.step()
    })
}

/// Indices of completed send work, and how many of them succeeded.
pub fn completed(end: &End) -> (Vec<u32>, usize) {
    let index = |kind| match kind {
        CompletionKind::Work { index, .. } => Some(index),
        CompletionKind::Receive { .. } => None,
    };
    let succeeded = end.sent().iter().take_while(|status| **status == Status::Success).count();
    (end.face.completions.iter().filter_map(|c| index(c.kind)).collect(), succeeded)
}

#[test]
fn q_52_and_m_07_error_at_each_moment_completes_each_once() {
    let mut moments = 0;
    let mut flushed = [0; 6];
    for steps in 0.. {
        let mut pair = traffic();
        if !advance(&mut pair, steps) {
            break;
        }
        moments += 1;
        go(&mut pair.ends[0], State::Error).unwrap();
        let (indices, succeeded) = completed(&pair.ends[0]);
        assert_eq!(indices, [0, 1, 2, 3, 4], "all at once, in order, after {steps} steps");
        let rest = vec![Status::Flushed; 5 - succeeded];
        assert_eq!(pair.ends[0].sent()[succeeded..], rest, "after {steps} steps");
        flushed[5 - succeeded] += 1;
        // Late answers change nothing (rule Q-55); new work flushes.
        pair.run();
        assert_eq!(completed(&pair.ends[0]).0.len(), 5);
        pair.ends[0].post(send(1));
        assert_eq!(pair.ends[0].sent().last(), Some(&Status::Flushed));
        assert_eq!(completed(&pair.ends[0]).0.len(), 6);
        assert_eq!(pair.ends[1].state(), State::Rts, "a silent peer is no error");
        assert_eq!(pair.ends[0].engine.next_deadline(), None);
    }
    assert!(moments > 12, "only {moments} moments");
    assert!(flushed[1..].iter().all(|&n| n > 0), "each request was the one in flight: {flushed:?}");
}

#[test]
fn m_08_reset_at_each_moment_forgets_all_and_a_new_life_hears_no_old_packet() {
    let mut moments = 0;
    for steps in 0.. {
        let mut pair = traffic();
        if !advance(&mut pair, steps) {
            break;
        }
        moments += 1;
        let before = pair.ends.each_ref().map(|end| end.face.completions.len());
        for end in &mut pair.ends {
            go(end, State::Reset).unwrap();
            let told = query(end);
            assert_eq!((told.rq_psn, told.sq_psn), (Psn::new(0), Psn::new(0)));
            let qp = end.engine.qp(end.qpn).expect("the queue pair exists");
            assert_eq!((qp.requester().in_flight(), qp.requester().ssn()), (0, 0));
            assert_eq!((qp.responder().msn(), qp.responder().answers_owed()), (0, 0));
            // The face empties its queues without completions.
            end.face.sends.clear();
            end.face.receives.clear();
            // The old frames are still on the link: the new life starts far away (rule M-09).
            connect(end, 0x80_0000, 0x80_0000).unwrap();
        }
        pair.ends[1].face.receives.push_back(receive(0xC000, 4096));
        pair.ends[0].post(send(2500));
        pair.run();
        let new = |i: usize| &pair.ends[i].face.completions[before[i]..];
        let [sent] = new(0) else { panic!("after {steps} steps: {:?}", new(0)) };
        let [received] = new(1) else { panic!("after {steps} steps: {:?}", new(1)) };
        assert_eq!((sent.status, received.status), (Status::Success, Status::Success));
    }
    assert!(moments > 12, "only {moments} moments");
}

#[test]
fn m_09_replayed_packets_of_a_former_life_execute_nothing() {
    for (start, far) in [(0x100, 0x40_0000), (0x40_0000, 0x100), (0x00FF_FFF0, 0x7F_0000)] {
        let mut pair = Pair::new(Setup { psn: start, ..Setup::default() });
        pair.region();
        pair.ends[0].post(remote(WorkOpcode::Write, 8));
        pair.run();
        let mut write = [0; 16];
        write[6] = 0x20;
        write[11] = 7;
        let old = [
            frame(&pair, 1, opcode::SEND_ONLY, Psn::new(start), &[]),
            frame(&pair, 1, opcode::READ_REQUEST, Psn::new(start), &write),
        ];
        let end = &mut pair.ends[1];
        go(end, State::Reset).unwrap();
        connect(end, far, far).unwrap();
        end.face.receives.push_back(receive(0x1000, 64));
        let (expected_psn, memory) = (query(end).rq_psn, end.face.memory.clone());
        for frame in &old {
            pair.inject(1, frame);
        }
        let end = &pair.ends[1];
        assert!(end.received().is_empty());
        assert_eq!((query(end).rq_psn, &end.face.memory), (expected_psn, &memory));
        assert_eq!(end.state(), State::Rts);
    }
}

#[test]
fn q_06_a_depth_of_zero_refuses_reads_instead_of_waiting_for_ever() {
    let attributes = Attributes { max_rd_atomic: 0, ..Attributes::default() };
    let mut pair = Pair::new(Setup { attributes, ..Setup::default() });
    pair.region();
    pair.ends[0].post(remote(WorkOpcode::Write, 16));
    pair.ends[0].post(remote(WorkOpcode::Read, 16));
    pair.run();
    assert_eq!(pair.ends[0].sent(), [Status::Success, Status::LocalQpOperation]);
}
