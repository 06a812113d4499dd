//! The table of transitions: what each service needs and takes, that everything else is refused by name
//! and changes nothing, and that query tells what was set (rules M-01, M-02, M-12).

use std::fmt::Write as _;

use insta::assert_snapshot;
use proptest::prelude::*;
use softrnic_engine::{
    AttributeMask as A, Attributes, Engine, EngineConfig, Modify, ModifyError, Path, PathMigState,
    PathMtu, Policy, Port, Psn, QpType, Qpn, Reason, RemoteAccess, Service, State, Transition,
    WorkOpcode,
};

use crate::harness::{End, Fate, Pair, Setup, Toy};
use crate::states::{ALL_ACCESS, completed, go, modify, query, receive, remote, send};

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
    let (init, rtr, rts) = (State::Init, State::Rtr, State::Rts);
    let limits: [(State, State, A, [u32; 2], Put); 11] = [
        (State::Reset, init, A::PORT, [1, 1], |m, v| m.port = v as u8),
        // The code of 2048 bytes, this port's largest.
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
    #![proptest_config(crate::cases(1000))]
    #[test]
    fn m_01_p_26_any_sequence_of_modifications_under_traffic(
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
