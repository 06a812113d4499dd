//! How connections end: by agreement, by silence, and when a peer starts again.

use softrnic_engine::{Nanos, Qpn};
use softrnic_host::cm::message::{self, Dreq, Kind, Message};
use softrnic_host::cm::{Cm, End, Error, Event, Peer, Refusal, Reject, State};

use crate::wire::{ACTIVE, PASSIVE, PORT, Wire, config};

#[test]
fn either_side_may_end_and_both_wait_for_late_packets() {
    for first in [ACTIVE, PASSIVE] {
        let mut wire = Wire::new();
        let ids = <[_; 2]>::from(wire.established((5, 9)));
        wire.log.clear();
        wire.nodes[first].disconnect(wire.now, ids[first]).unwrap();
        wire.settle();
        let other = 1 - first;
        let story = [format!("{first} DREQ"), format!("{other} DREP")];
        assert_eq!(wire.story(), story);
        assert_eq!(wire.one(first), Event::Disconnected { id: ids[first], by: End::Us });
        assert_eq!(wire.one(other), Event::Disconnected { id: ids[other], by: End::Peer });
        for node in [first, other] {
            assert_eq!(wire.nodes[node].state(ids[node]), Some(State::TimeWait));
        }
        wire.run_for(1);
        for node in [first, other] {
            assert_eq!(wire.one(node), Event::Closed { id: ids[node] });
            assert_eq!(wire.nodes[node].connections(), 0);
        }
        // The numbers of the queue pairs are free again.
        wire.established((5, 9));
    }
}

#[test]
fn lost_dreqs_and_dreps_are_said_again() {
    for kind in [Kind::Dreq, Kind::Drep] {
        let mut wire = Wire::new();
        let (ours, theirs) = wire.established((5, 9));
        wire.lose = Box::new(move |_, this, count| this == kind && count == 0);
        wire.nodes[ACTIVE].disconnect(wire.now, ours).unwrap();
        wire.run_for(5);
        assert_eq!(wire.take(ACTIVE)[0], Event::Disconnected { id: ours, by: End::Us });
        let told = wire.take(PASSIVE);
        assert_eq!(told[0], Event::Disconnected { id: theirs, by: End::Peer });
        let twice = told.iter().filter(|event| matches!(event, Event::Disconnected { .. })).count();
        assert_eq!(twice, 1, "a repeated DREQ is no news");
    }
}

#[test]
fn both_may_end_at_once() {
    let mut wire = Wire::new();
    let (ours, theirs) = wire.established((5, 9));
    wire.nodes[ACTIVE].disconnect(wire.now, ours).unwrap();
    wire.nodes[PASSIVE].disconnect(wire.now, theirs).unwrap();
    wire.settle();
    assert_eq!(wire.one(ACTIVE), Event::Disconnected { id: ours, by: End::Peer });
    assert_eq!(wire.one(PASSIVE), Event::Disconnected { id: theirs, by: End::Peer });
    wire.run_for(1);
    assert_eq!((wire.nodes[0].connections(), wire.nodes[1].connections()), (0, 0));
}

#[test]
fn a_peer_that_is_gone_does_not_hold_a_connection_for_ever() {
    let mut wire = Wire::new();
    let (ours, _) = wire.established((5, 9));
    wire.lose = Box::new(|_, _, _| true);
    wire.nodes[ACTIVE].disconnect(wire.now, ours).unwrap();
    wire.run_for(120);
    assert_eq!(wire.sent(ACTIVE, Kind::Dreq), 16);
    let events = wire.take(ACTIVE);
    let expected = [Event::Disconnected { id: ours, by: End::Silence }, Event::Closed { id: ours }];
    assert_eq!(events, expected);
}

#[test]
fn a_peer_that_knows_nothing_confirms_the_end() {
    let mut wire = Wire::new();
    let (ours, _) = wire.established((5, 9));
    wire.nodes[PASSIVE] = Cm::new(config(PASSIVE, wire.ips[PASSIVE]));
    wire.nodes[ACTIVE].disconnect(wire.now, ours).unwrap();
    wire.settle();
    assert_eq!(wire.one(ACTIVE), Event::Disconnected { id: ours, by: End::Us });
    assert_eq!(wire.nodes[PASSIVE].counters().refusals(Refusal::UnknownConnection), 1);
}

#[test]
fn a_peer_that_starts_again_ends_its_old_connection_first() {
    let mut wire = Wire::new();
    let (_, theirs) = wire.established((5, 9));
    // The same node, the same queue pair, another number for the connection.
    let restarted =
        softrnic_host::cm::CmConfig { first_comm_id: 0x9999, ..config(ACTIVE, wire.ips[ACTIVE]) };
    wire.nodes[ACTIVE] = Cm::new(restarted);
    let ours = wire.connect(5);
    wire.settle();
    let Event::Rejected { id, reason, .. } = wire.one(ACTIVE) else { panic!() };
    assert_eq!((id, reason), (ours, Reject::STALE_CONNECTION));
    assert_eq!(wire.one(PASSIVE), Event::Disconnected { id: theirs, by: End::Restarted });
    // Its DREQ was answered, so time wait goes by, and then there is room.
    wire.run_for(1);
    assert_eq!(wire.one(PASSIVE), Event::Closed { id: theirs });
    wire.established((5, 9));
}

#[test]
fn in_time_wait_a_repeated_req_is_stale() {
    let mut wire = Wire::new();
    let ours = wire.connect(5);
    let (to, req) = wire.nodes[ACTIVE].poll_transmit().unwrap();
    let from = Peer { ip: wire.ips[ACTIVE], ..to };
    let now = wire.now;
    assert_eq!(wire.nodes[PASSIVE].handle_mad(now, from, &*req), Ok(()));
    wire.settle();
    let theirs = wire.one(PASSIVE).id();
    wire.accept(theirs, 9);
    wire.settle();
    wire.nodes[ACTIVE].ready(ours).unwrap();
    wire.settle();
    wire.nodes[ACTIVE].disconnect(wire.now, ours).unwrap();
    wire.settle();
    wire.take(PASSIVE);
    let late = wire.nodes[PASSIVE].handle_mad(wire.now, from, &*req);
    assert_eq!(late, Err(Refusal::StaleConnection));
    let (_, mad) = wire.nodes[PASSIVE].poll_transmit().unwrap();
    let (_, Message::Rej(rej)) = Message::decode(&*mad).unwrap() else { panic!() };
    assert_eq!(Reject(rej.reason), Reject::STALE_CONNECTION);
    assert_eq!(wire.take(PASSIVE), []);
}

#[test]
fn a_dreq_for_another_queue_pair_ends_nothing() {
    let mut wire = Wire::new();
    let (ours, theirs) = wire.established((5, 9));
    let dreq =
        Dreq { local_comm_id: theirs.0, remote_comm_id: ours.0, remote_qpn: 6, ..Dreq::default() };
    let from = Peer { ip: wire.ips[PASSIVE], qpn: Qpn::new(1) };
    let refused = wire.nodes[ACTIVE].handle_mad(wire.now, from, &Message::from(dreq).encode(1));
    assert_eq!(refused, Err(Refusal::QpNumber));
    assert_eq!(wire.nodes[ACTIVE].state(ours), Some(State::Established));
}

#[test]
fn a_rej_after_the_rtu_ends_the_connection() {
    // The passive side never heard the RTU and gave up.
    let mut wire = Wire::new();
    wire.lose = Box::new(|from, kind, _| from == ACTIVE && kind == Kind::Rtu);
    let ours = wire.connect(5);
    wire.settle();
    let theirs = wire.one(PASSIVE).id();
    wire.accept(theirs, 9);
    wire.settle();
    wire.take(ACTIVE);
    wire.nodes[ACTIVE].ready(ours).unwrap();
    wire.run_for(120);
    let by = End::Rejected(Reject::TIMEOUT);
    assert_eq!(wire.take(ACTIVE)[0], Event::Disconnected { id: ours, by });
    assert!(matches!(wire.one(PASSIVE), Event::Unreachable { id, .. } if id == theirs));
}

#[test]
fn a_connection_can_be_given_up_in_every_state_once() {
    for steps in 0..4 {
        let mut wire = Wire::new();
        let ours = wire.connect(5);
        if steps > 0 {
            wire.settle();
        }
        if steps > 1 {
            let theirs = wire.one(PASSIVE).id();
            wire.accept(theirs, 9);
            wire.settle();
        }
        if steps > 2 {
            wire.nodes[ACTIVE].ready(ours).unwrap();
            wire.settle();
        }
        wire.nodes[ACTIVE].disconnect(wire.now, ours).unwrap();
        assert!(wire.nodes[ACTIVE].disconnect(wire.now, ours).is_err());
        wire.run_for(200);
        assert_eq!((wire.nodes[0].connections(), wire.nodes[1].connections()), (0, 0), "{steps}");
        let again = wire.nodes[ACTIVE].disconnect(wire.now, ours);
        assert_eq!(again, Err(Error::UnknownConnection(ours)));
    }
}

#[test]
fn a_flood_of_requests_is_answered_as_far_as_there_is_room() {
    let ip = "192.0.2.2".parse().unwrap();
    let mut passive =
        Cm::new(softrnic_host::cm::CmConfig { max_transmit: 10, ..config(PASSIVE, ip) });
    let mut wire = Wire::new();
    for qpn in 0..20 {
        wire.connect(qpn);
        let (to, mad) = wire.nodes[ACTIVE].poll_transmit().unwrap();
        let from = Peer { ip: wire.ips[ACTIVE], ..to };
        assert_eq!(passive.handle_mad(Nanos(0), from, &*mad), Err(Refusal::NoListener));
    }
    assert_eq!(std::iter::from_fn(|| passive.poll_transmit()).count(), 10);
    assert_eq!(passive.counters().refusals(Refusal::TransmitQueueFull), 10);
}

#[test]
fn a_thousand_connections_survive_a_wire_that_loses_a_third() {
    let mut wire = Wire::new();
    wire.nodes[PASSIVE].stop_listening(message::tcp_service(PORT));
    wire.nodes[PASSIVE].listen(message::tcp_service(PORT), 2000).unwrap();
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    wire.lose = Box::new(move |_, _, _| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33).is_multiple_of(3)
    });
    let ours: Vec<_> = (0..1000).map(|n| wire.connect(2 + n)).collect();
    let (mut up, mut down) = (0, 0);
    for _ in 0..100 {
        wire.run_for(2);
        for event in wire.take(PASSIVE) {
            match event {
                Event::Requested { id, .. } => wire.accept(id, 5000 + id.0),
                Event::Established { .. } => up += 1,
                _ => {}
            }
        }
        for event in wire.take(ACTIVE) {
            if let Event::Replied { id, .. } = event {
                wire.nodes[ACTIVE].ready(id).unwrap();
            }
        }
    }
    assert_eq!(up, 1000);
    for &id in &ours {
        wire.nodes[ACTIVE].disconnect(wire.now, id).unwrap();
    }
    wire.run_for(300);
    for node in [ACTIVE, PASSIVE] {
        down += wire.take(node).iter().filter(|e| matches!(e, Event::Disconnected { .. })).count();
        assert_eq!(wire.nodes[node].connections(), 0);
        assert_eq!(wire.nodes[node].next_deadline(), None);
    }
    assert_eq!(down, 2000);
}
