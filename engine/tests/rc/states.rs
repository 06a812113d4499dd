//! Queue pair states: the table of transitions, what each state takes and gives, and how work ends
//! when a state changes under traffic (rules M, V-07).

use std::fmt::Write as _;

use insta::assert_snapshot;
use proptest::prelude::*;
use softrnic_engine::packet::{BthFields, Flow, Syndrome, Template, opcode};
use softrnic_engine::{
    AttributeMask as A, Attributes, CompletionKind, Counter, Engine, EngineConfig, Event, Modify,
    ModifyError, Path, PathMigState, PathMtu, Place, Policy, Port, Psn, QpQuery, QpType, Qpn, RKey,
    Reason, RemoteAccess, Service, State, Status, Transition, Work, WorkOpcode,
};

use crate::harness::{End, Fate, Pair, Setup, Toy};

const ALL_ACCESS: RemoteAccess = RemoteAccess { read: true, write: true, atomic: true };

fn modify(end: &mut End, modify: &Modify) -> Result<(), ModifyError> {
    end.engine.modify_qp(end.qpn, modify, &mut end.face)
}

fn go(end: &mut End, state: State) -> Result<(), ModifyError> {
    modify(end, &Modify { set: A::STATE, state, ..Modify::default() })
}

fn query(end: &End) -> QpQuery {
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

fn send(length: u32) -> Work {
    Work { length, local: Place { token: 0, base: 0, length }, ..Work::default() }
}

fn remote(opcode: WorkOpcode, length: u32) -> Work {
    Work { opcode, remote_va: 0x2000, rkey: RKey(7), ..send(length) }
}

fn receive(base: u64, length: u32) -> Place {
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

// The table.

/// One queue pair of a type, put into a state without asking the table.
fn single(qp_type: QpType, state: State) -> End {
    let service = match qp_type {
        QpType::Rc => Service::Rc,
        QpType::Uc => Service::Uc,
        QpType::Ud | QpType::Gsi => Service::Ud,
        QpType::Raw => Service::RawFrame,
    };
    let qpn = Qpn::new(if qp_type == QpType::Gsi { 1 } else { 5 });
    let mut engine = Engine::new(EngineConfig::default(), Port::default());
    let policy =
        Policy { max_path_mtu: PathMtu::M2048, max_rd_atomic_depth: 16, ..Policy::default() };
    let attributes = Attributes { service, policy, ..Attributes::default() };
    engine.create(qpn, attributes).expect("the number is free");
    let mut face = Toy::default();
    engine.set_state(qpn, state, &mut face);
    face.events.clear();
    End { engine, face, qpn }
}

/// Values that differ from what a new queue pair has.
fn values(from: State, to: State) -> Modify {
    Modify {
        set: A::NONE,
        state: to,
        cur_state: from,
        en_sqd_async_notify: true,
        access_flags: RemoteAccess { read: true, write: false, atomic: false },
        pkey: 0x8001,
        port: 1,
        qkey: 0x1234,
        av: Path { dest_ip: [192, 0, 2, 77].into(), ..Path::default() },
        path_mtu: PathMtu::M256,
        timeout: 31,
        retry_cnt: 3,
        rnr_retry: 4,
        rq_psn: 0x00FF_FFFF,
        max_rd_atomic: 2,
        min_rnr_timer: 31,
        sq_psn: 0x00FF_FFFE,
        max_dest_rd_atomic: 3,
        path_mig_state: PathMigState::Migrated,
        dest_qpn: 0x00AB_CDEF,
    }
}

fn every_transition() -> impl Iterator<Item = Transition> {
    QpType::ALL.into_iter().flat_map(|qp_type| {
        State::ALL.into_iter().flat_map(move |from| {
            State::ALL.into_iter().map(move |to| Transition { qp_type, from, to })
        })
    })
}

#[test]
fn m_01_the_table_of_all_transitions() {
    let none_or = |mask: A| if mask.is_empty() { "none".into() } else { mask.to_string() };
    let mut text = String::new();
    for qp_type in QpType::ALL {
        for to in State::ALL {
            let of = |from: &State| Transition { qp_type, from: *from, to }.attributes();
            for (i, from) in State::ALL.iter().enumerate() {
                let Some((required, optional)) = of(from) else { continue };
                // States with the same attributes share a line.
                if State::ALL[..i].iter().any(|other| of(other) == of(from)) {
                    continue;
                }
                let same = State::ALL.iter().filter(|other| of(other) == of(from));
                let same: Vec<String> = same.map(State::to_string).collect();
                let _ = writeln!(text, "{qp_type} {} to {to}", same.join(", "));
                let _ = writeln!(text, "    required: {}", none_or(required));
                let _ = writeln!(text, "    optional: {}", none_or(optional));
            }
        }
    }
    assert_snapshot!(text);
}

/// Tries a modification that must be refused: with this error, and without any change.
fn refused(step: Transition, set: A, error: ModifyError) {
    let mut end = single(step.qp_type, step.from);
    let before = query(&end);
    let asked = Modify { set, ..values(step.from, step.to) };
    assert_eq!(modify(&mut end, &asked), Err(error), "{step} with {set}");
    assert_eq!(query(&end), before, "{step} with {set}");
    assert!(end.face.events.is_empty() && end.face.completions.is_empty(), "{step} with {set}");
}

#[test]
fn m_01_each_missing_and_each_extra_attribute_is_refused_by_name() {
    let mut refusals = 0;
    for step in every_transition() {
        let Some((required, optional)) = step.attributes() else {
            refused(step, A::STATE, ModifyError::NoTransition(step));
            refusals += 1;
            continue;
        };
        let enough = required | A::STATE;
        for &(attribute, name) in A::ALL.iter().filter(|(bit, _)| *bit != A::STATE) {
            if required.has(attribute) {
                let error = ModifyError::Missing(step, attribute);
                refused(step, enough.without(attribute), error);
                assert!(error.to_string().ends_with(&format!(" needs {name}")));
                refusals += 1;
            } else if !optional.has(attribute) {
                let error = ModifyError::NotTaken(step, attribute);
                refused(step, enough | attribute, error);
                assert!(error.to_string().ends_with(&format!(" does not take {name}")));
                refusals += 1;
            } else if attribute == A::ALT_PATH {
                refused(step, enough | attribute, ModifyError::NotOffered(attribute));
                refusals += 1;
            } else {
                let mut end = single(step.qp_type, step.from);
                let asked = Modify { set: enough | attribute, ..values(step.from, step.to) };
                assert_eq!(modify(&mut end, &asked), Ok(()), "{step} with {name}");
                assert_eq!(end.state(), step.to);
            }
        }
        let mut end = single(step.qp_type, step.from);
        let asked = Modify { set: enough, ..values(step.from, step.to) };
        assert_eq!(modify(&mut end, &asked), Ok(()), "{step}");
        assert_eq!(end.state(), step.to);
    }
    assert!(refusals > 1500, "only {refusals}");
}

#[test]
fn m_01_errors_name_attribute_service_and_transition() {
    let step = Transition { qp_type: QpType::Rc, from: State::Init, to: State::Rtr };
    let mut end = single(QpType::Rc, State::Init);
    let mut told = |set, base: Modify| {
        modify(&mut end, &Modify { set, ..base }).map_err(|e| e.to_string()).unwrap_err()
    };
    let (required, _) = step.attributes().expect("it is in the table");
    let base = values(step.from, step.to);
    let enough = required | A::STATE;
    assert_eq!(told(enough.without(A::DEST_QPN), base), "RC INIT to RTR needs dest_qpn");
    assert_eq!(
        told(A::of([A::STATE, A::AV, A::PATH_MTU, A::RQ_PSN]), base),
        "RC INIT to RTR needs min_rnr_timer, max_dest_rd_atomic, dest_qpn"
    );
    assert_eq!(told(enough | A::QKEY, base), "RC INIT to RTR does not take qkey");
    assert_eq!(
        told(A::STATE, Modify { state: State::Rts, ..base }),
        "RC cannot go from INIT to RTS"
    );
    assert_eq!(
        told(enough | A::ALT_PATH, base),
        "alt_path is not offered: there is no path migration"
    );
    assert_eq!(
        told(enough, Modify { min_rnr_timer: 32, ..base }),
        "min_rnr_timer is 32; it must be 0 to 31"
    );
    let unknown = end.engine.modify_qp(Qpn::new(0x99), &base, &mut end.face).unwrap_err();
    assert_eq!(unknown.to_string(), "no queue pair 0x99");
    assert_eq!(unknown.reason(), Reason::VerbsHandle);
}

#[test]
fn m_02_values_end_at_their_limits() {
    type Put = fn(&mut Modify, u32);
    let code = |code: u32| PathMtu::from_code(code as u8).expect("a code");
    assert_eq!(code(4), PathMtu::M2048, "the largest of this port");
    let (init, rtr, rts) = (State::Init, State::Rtr, State::Rts);
    let limits: [(State, State, A, [u32; 2], Put); 11] = [
        (State::Reset, init, A::PORT, [1, 1], |m, v| m.port = v as u8),
        (init, rtr, A::PATH_MTU, [1, 4], |m, v| {
            m.path_mtu = PathMtu::from_code(v as u8).expect("a code");
        }),
        (init, rtr, A::DEST_QPN, [0, 0x00FF_FFFF], |m, v| m.dest_qpn = v),
        (init, rtr, A::RQ_PSN, [0, 0x00FF_FFFF], |m, v| m.rq_psn = v),
        (init, rtr, A::MAX_DEST_RD_ATOMIC, [0, 16], |m, v| m.max_dest_rd_atomic = v as u8),
        (init, rtr, A::MIN_RNR_TIMER, [0, 31], |m, v| m.min_rnr_timer = v as u8),
        (rtr, rts, A::SQ_PSN, [0, 0x00FF_FFFF], |m, v| m.sq_psn = v),
        (rtr, rts, A::TIMEOUT, [0, 31], |m, v| m.timeout = v as u8),
        (rtr, rts, A::RETRY_CNT, [0, 7], |m, v| m.retry_cnt = v as u8),
        (rtr, rts, A::RNR_RETRY, [0, 7], |m, v| m.rnr_retry = v as u8),
        (rtr, rts, A::MAX_RD_ATOMIC, [0, 16], |m, v| m.max_rd_atomic = v as u8),
    ];
    for (from, to, attribute, [min, max], put) in limits {
        let step = Transition { qp_type: QpType::Rc, from, to };
        let (required, _) = step.attributes().expect("it is in the table");
        let attempt = |value| {
            let mut end = single(QpType::Rc, from);
            let before = query(&end);
            let mut asked = Modify { set: required | A::STATE, ..values(from, to) };
            put(&mut asked, value);
            let result = modify(&mut end, &asked);
            assert_eq!(result.is_err(), query(&end) == before, "{step} {attribute} {value}");
            result
        };
        assert_eq!(attempt(min), Ok(()), "{attribute}");
        assert_eq!(attempt(max), Ok(()), "{attribute}");
        let given = max + 1;
        assert_eq!(attempt(given), Err(ModifyError::OutOfRange { attribute, given, min, max }));
    }
}

#[test]
fn m_02_a_wrong_belief_about_the_state_is_refused() {
    for (from, to) in [
        (State::Rtr, State::Rts),
        (State::Rts, State::Rts),
        (State::Sqd, State::Rts),
        (State::Sqe, State::Rts),
    ] {
        let step = Transition { qp_type: QpType::Ud, from, to };
        let (required, _) = step.attributes().expect("it is in the table");
        for cur_state in State::ALL.into_iter().filter(|state| *state != from) {
            let mut end = single(QpType::Ud, from);
            let before = query(&end);
            let set = required | A::of([A::STATE, A::CUR_STATE]);
            let asked = Modify { set, cur_state, ..values(from, to) };
            let error = ModifyError::OtherState { cur_state, state: from };
            assert_eq!(modify(&mut end, &asked), Err(error));
            assert_eq!(query(&end), before);
        }
    }
}

#[test]
fn m_12_query_returns_what_was_set() {
    let mut end = single(QpType::Rc, State::Reset);
    let asked = values(State::Reset, State::Init);
    for (from, to) in
        [(State::Reset, State::Init), (State::Init, State::Rtr), (State::Rtr, State::Rts)]
    {
        let (required, _) =
            Transition { qp_type: QpType::Rc, from, to }.attributes().expect("it is in the table");
        let step = Modify { set: required | A::STATE, state: to, ..asked };
        assert_eq!(modify(&mut end, &step), Ok(()));
    }
    let told = query(&end);
    assert_eq!((told.state, told.sq_draining), (State::Rts, false));
    assert_eq!((told.rq_psn, told.sq_psn), (Psn::new(0x00FF_FFFF), Psn::new(0x00FF_FFFE)));
    let set = Attributes {
        path: asked.av,
        path_mtu: PathMtu::M256,
        dest_qpn: Qpn::new(0x00AB_CDEF),
        pkey: 0x8001,
        remote_access: RemoteAccess { read: true, write: false, atomic: false },
        ack_timeout: 31,
        retry_count: 3,
        rnr_retry: 4,
        min_rnr_timer: 31,
        max_rd_atomic: 2,
        max_dest_rd_atomic: 3,
        ..query(&single(QpType::Rc, State::Reset)).attributes
    };
    assert_eq!(told.attributes, set);

    let mut end = single(QpType::Ud, State::Reset);
    let set = A::of([A::STATE, A::PKEY_INDEX, A::PORT, A::QKEY]);
    assert_eq!(modify(&mut end, &Modify { set, ..asked }), Ok(()));
    assert_eq!((query(&end).attributes.qkey, query(&end).attributes.pkey), (0x1234, 0x8001));
}

#[test]
fn m_12_query_shows_live_psns() {
    let mut pair = Pair::new(Setup { psn: 0x00FF_FFFF, ..Setup::default() });
    pair.region();
    pair.ends[0].post(remote(WorkOpcode::Write, 2500));
    pair.run();
    assert_eq!(query(&pair.ends[0]).sq_psn, Psn::new(2));
    assert_eq!(query(&pair.ends[1]).rq_psn, Psn::new(2));
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

/// Answers kept for duplicates outlive a change of their number.
#[test]
fn m_05_the_responders_depth_changes_in_sqd() {
    for (depth, answered) in [(1, [false, true]), (2, [true, true]), (40, [true, true])] {
        let mut pair = Pair::new(Setup::default());
        pair.region();
        pair.ends[1].face.memory[0x2000..0x2008].copy_from_slice(&40u64.to_le_bytes());
        for _ in 0..2 {
            let local = receive(0x6000, 8);
            pair.ends[0].post(Work { local, swap_or_add: 1, ..remote(WorkOpcode::FetchAdd, 8) });
        }
        pair.run();
        let end = &mut pair.ends[1];
        go(end, State::Sqd).unwrap();
        let set = A::MAX_DEST_RD_ATOMIC;
        modify(end, &Modify { set, max_dest_rd_atomic: depth, ..Modify::default() }).unwrap();
        let mut atomic = [0; 28];
        atomic[6] = 0x20;
        atomic[11] = 7;
        atomic[19] = 1;
        for (i, answered) in answered.into_iter().enumerate() {
            let psn = Psn::new(0x100 + i as u32);
            let duplicate = frame(&pair, 1, opcode::FETCH_ADD, psn, &atomic);
            let refused = pair.inject(1, &duplicate);
            let expected = (!answered).then_some(Reason::DuplicateNotReplayable);
            assert_eq!(refused, expected, "depth {depth}, atomic {i}");
        }
        assert_eq!(pair.ends[1].face.memory[0x2000..0x2008], 42u64.to_le_bytes());
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
fn completed(end: &End) -> (Vec<u32>, usize) {
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

// Anything, in any order.

/// One thing that software or time does.
#[derive(Clone, Debug)]
enum Step {
    /// The required attributes of the transition with some bits flipped, and values that may be
    /// out of range.
    Modify {
        end: usize,
        to: State,
        flip: Vec<usize>,
        value: u8,
    },
    Post {
        end: usize,
        length: u32,
    },
    Receive {
        end: usize,
    },
    Transmit {
        end: usize,
        lose: bool,
    },
    Time,
}

fn step() -> impl Strategy<Value = Step> {
    let end = 0..2usize;
    let flip = prop_oneof![
        3 => Just(vec![]),
        1 => prop::collection::vec(0..A::ALL.len(), 1..3),
    ];
    prop_oneof![
        3 => (end.clone(), prop::sample::select(&State::ALL[..]), flip, 0..40u8)
            .prop_map(|(end, to, flip, value)| Step::Modify { end, to, flip, value }),
        2 => (end.clone(), 0..3000u32).prop_map(|(end, length)| Step::Post { end, length }),
        1 => end.clone().prop_map(|end| Step::Receive { end }),
        3 => (end, prop::bool::weighted(0.2))
            .prop_map(|(end, lose)| Step::Transmit { end, lose }),
        2 => Just(Step::Time),
    ]
}

/// Takes one step; a refused modification must change nothing.
fn take(pair: &mut Pair, step: &Step) -> Result<(), TestCaseError> {
    match *step {
        Step::Modify { end, to, ref flip, value } => {
            let end = &mut pair.ends[end];
            let before = query(end);
            let (qp_type, from) = (QpType::of(before.attributes.service, end.qpn), before.state);
            let required = Transition { qp_type, from, to }.attributes().unwrap_or_default().0;
            let set = flip.iter().fold(required | A::STATE, |set, &i| {
                let bit = A::ALL[i].0;
                if set.has(bit) { set.without(bit) } else { set | bit }
            });
            let timers = Modify {
                timeout: value,
                retry_cnt: value,
                min_rnr_timer: value,
                ..values(from, to)
            };
            let asked = Modify {
                set,
                access_flags: ALL_ACCESS,
                pkey: before.attributes.pkey,
                av: before.attributes.path,
                dest_qpn: before.attributes.dest_qpn.get(),
                max_rd_atomic: value,
                max_dest_rd_atomic: value,
                rq_psn: 0x100,
                sq_psn: 0x100,
                ..timers
            };
            match modify(end, &asked) {
                Ok(()) => {
                    prop_assert_eq!(query(end).state, if set.has(A::STATE) { to } else { from })
                }
                Err(_) => prop_assert_eq!(query(end), before),
            }
            if query(end).state == State::Reset {
                // A new life: the face empties its queues, and indices begin at 0 again.
                end.face.sends.clear();
                end.face.receives.clear();
                end.face.completions.clear();
            }
        }
        Step::Post { end, length } => {
            let work =
                if length % 3 == 0 { send(length) } else { remote(WorkOpcode::Write, length) };
            pair.ends[end].post(work);
        }
        Step::Receive { end } => pair.ends[end].face.receives.push_back(receive(0x1000, 4096)),
        Step::Transmit { end, lose } => {
            let fate = if lose { Fate::Drop } else { Fate::Deliver };
            pair.transmit(end, &mut |_, _| fate);
        }
        Step::Time => {
            pair.step();
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]
    #[test]
    fn m_01_any_sequence_of_modifications_under_traffic(
        service in prop::sample::select(&[Service::Rc, Service::Uc][..]),
        steps in prop::collection::vec(step(), 0..60)
    ) {
        let attributes = Attributes { service, ack_timeout: 1, rnr_retry: 2, ..Attributes::default() };
        let mut pair = Pair::new(Setup { attributes, ..Setup::default() });
        pair.region();
        let region = pair.ends[1].face.regions[&7];
        pair.ends[0].face.regions.insert(7, region);
        for step in &steps {
            take(&mut pair, step)?;
            for end in &pair.ends {
                let done = completed(end).0;
                let in_order: Vec<u32> = (0..done.len() as u32).collect();
                prop_assert_eq!(&done, &in_order, "once each, in posting order");
                prop_assert!(done.len() <= end.face.sends.len());
            }
        }
        // However it ended, ERR completes what is left, once each.
        for end in &mut pair.ends {
            if query(end).state != State::Reset {
                go(end, State::Error).unwrap();
                prop_assert_eq!(completed(end).0.len(), end.face.sends.len());
            }
        }
    }
}
