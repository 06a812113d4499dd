//! How connections begin, and how they do not.

use softrnic_engine::{Nanos, PathMtu, Psn, Qpn};
use softrnic_host::cm::message::{self, IpCm, Kind, Message, Rep, Req};
use softrnic_host::cm::{Accept, Cm, Connect, Error, Event, LocalQp, Peer, Refusal, Reject, State};

use crate::wire::{ACTIVE, PASSIVE, PORT, Wire, config};

#[test]
fn req_rep_rtu_connect_and_both_ends_know_the_other() {
    for ips in [["192.0.2.1", "192.0.2.2"], ["2001:db8::1", "fe80::2"]] {
        let mut wire = Wire::between(ips);
        let ours = wire.connect(5);
        wire.settle();
        let Event::Requested { id: theirs, req, peer } = wire.one(PASSIVE) else { panic!() };
        assert_eq!(peer.ip, wire.ips[ACTIVE]);
        let (header, program) = IpCm::split(&req.private_data).unwrap();
        assert_eq!(header.ends(), (wire.ips[0], wire.ips[1]));
        assert_eq!((header.source_port, &program[..6]), (50_000, &b"please"[..]));
        wire.accept(theirs, 9);
        wire.settle();
        let Event::Replied { rep, .. } = wire.one(ACTIVE) else { panic!() };
        assert_eq!(rep.private_data[..8], *b"welcome\0");
        wire.nodes[ACTIVE].ready(ours).unwrap();
        wire.settle();
        assert_eq!(wire.one(PASSIVE), Event::Established { id: theirs });
        assert_eq!(wire.story(), ["0 REQ", "1 REP", "0 RTU"]);

        let ends = [wire.nodes[0].parameters(ours), wire.nodes[1].parameters(theirs)];
        let [a, b] = ends.map(Option::unwrap);
        assert_eq!((a.local, a.remote), (wire.ips[0], wire.ips[1]));
        assert_eq!((b.local, b.remote), (wire.ips[1], wire.ips[0]));
        assert_eq!((a.qpn, a.dest_qpn), (Qpn::new(5), Qpn::new(9)));
        assert_eq!((b.qpn, b.dest_qpn), (Qpn::new(9), Qpn::new(5)));
        assert_eq!((a.send_psn, a.expected_psn), (Psn::new(0x20_0009), Psn::new(0x10_0005)));
        // Linux' peers begin with the PSN that the other end has named (12.7.17), and expect their own.
        assert_eq!((b.send_psn, b.expected_psn), (a.expected_psn, a.send_psn));
        assert_eq!((a.path_mtu, b.path_mtu), (PathMtu::M1024, PathMtu::M1024));
        assert_eq!((a.ack_timeout, a.retry_count), (17, 7));
        assert_eq!((b.ack_timeout, b.retry_count), (17, 7));
    }
}

#[test]
fn read_depths_are_what_both_ends_can() {
    let mut wire = Wire::new();
    let depths = |responder_resources, initiator_depth, rnr_retry_count| LocalQp {
        responder_resources,
        initiator_depth,
        rnr_retry_count,
        ..LocalQp::default()
    };
    let request = Connect { qp: depths(4, 8, 3), ..wire.request(5) };
    let ours = wire.nodes[ACTIVE].connect(wire.now, &request).unwrap();
    wire.settle();
    let theirs = wire.one(PASSIVE).id();
    let accept = Accept { qp: depths(2, 16, 6), ..Accept::default() };
    wire.nodes[PASSIVE].accept(wire.now, theirs, &accept).unwrap();
    wire.settle();
    let a = wire.nodes[ACTIVE].parameters(ours).unwrap();
    let b = wire.nodes[PASSIVE].parameters(theirs).unwrap();
    assert_eq!((a.max_rd_atomic, a.max_dest_rd_atomic), (2, 4));
    assert_eq!((b.max_rd_atomic, b.max_dest_rd_atomic), (4, 2));
    // Each queue pair obeys the RNR retries that the other end asks for.
    assert_eq!((a.rnr_retry, b.rnr_retry), (6, 3));
}

/// Loses the first `times` messages of a kind.
fn losing(wire: &mut Wire, kind: Kind, times: usize) {
    wire.lose = Box::new(move |_, this, count| this == kind && count < times);
}

#[test]
fn a_lost_req_is_sent_again_after_the_response_timeout() {
    let mut wire = Wire::new();
    losing(&mut wire, Kind::Req, 2);
    wire.connect(5);
    wire.run_for(12);
    assert!(matches!(wire.one(PASSIVE), Event::Requested { .. }));
    // 4.096 us x 2^20 for the peer, and 4.096 us x 2^17 for the path.
    let wait_ns = (4096 << 20) + (4096 << 17);
    let at: Vec<_> = wire.log.iter().map(|sent| sent.at.0 - 1_000_000).take(3).collect();
    assert_eq!(at, [0, wait_ns, 2 * wait_ns]);
    assert_eq!(wire.nodes[ACTIVE].counters().retries[Kind::Req as usize], 2);
}

#[test]
fn a_lost_rep_is_sent_again_and_the_req_is_not_taken_twice() {
    let mut wire = Wire::new();
    losing(&mut wire, Kind::Rep, 1);
    let ours = wire.connect(5);
    wire.settle();
    let theirs = wire.one(PASSIVE).id();
    wire.accept(theirs, 9);
    wire.run_for(6);
    assert!(matches!(wire.one(ACTIVE), Event::Replied { id, .. } if id == ours));
    assert_eq!(wire.take(PASSIVE), []);
    // Both sides' timers ran off; whichever message crosses first is enough.
    assert!(wire.sent(PASSIVE, Kind::Rep) >= 2);
    assert_eq!(wire.nodes[PASSIVE].connections(), 1);
}

#[test]
fn a_lost_rtu_is_said_again_when_the_rep_comes_again() {
    let mut wire = Wire::new();
    losing(&mut wire, Kind::Rtu, 1);
    let ours = wire.connect(5);
    wire.settle();
    let theirs = wire.one(PASSIVE).id();
    wire.accept(theirs, 9);
    wire.settle();
    wire.nodes[ACTIVE].ready(ours).unwrap();
    wire.run_for(6);
    assert_eq!(wire.one(PASSIVE), Event::Established { id: theirs });
    assert_eq!(wire.story(), ["0 REQ", "1 REP", "0 RTU", "1 REP", "0 RTU"]);
    assert_eq!(wire.nodes[ACTIVE].counters().duplicates[Kind::Rep as usize], 1);
}

#[test]
fn the_first_packet_stands_for_a_lost_rtu() {
    let mut wire = Wire::new();
    losing(&mut wire, Kind::Rtu, usize::MAX);
    let ours = wire.connect(5);
    wire.settle();
    let theirs = wire.one(PASSIVE).id();
    wire.accept(theirs, 9);
    wire.settle();
    wire.nodes[ACTIVE].ready(ours).unwrap();
    wire.settle();
    assert_eq!(wire.take(PASSIVE), []);
    wire.nodes[PASSIVE].communication_established(theirs).unwrap();
    wire.run_for(10);
    assert_eq!(wire.one(PASSIVE), Event::Established { id: theirs });
    assert_eq!(wire.sent(PASSIVE, Kind::Rep), 1, "no REP is repeated");
}

#[test]
fn nobody_answers_a_req_sixteen_times() {
    let mut wire = Wire::new();
    losing(&mut wire, Kind::Req, usize::MAX);
    let id = wire.connect(5);
    wire.run_for(120);
    let unreachable = Event::Unreachable { id, unanswered: Kind::Req, sent: 16 };
    assert_eq!(wire.one(ACTIVE), unreachable);
    // The peer is told, should it have heard the REQ.
    let Message::Rej(rej) = &wire.log.last().unwrap().message else { panic!() };
    assert_eq!((Reject(rej.reason), rej.local_comm_id), (Reject::TIMEOUT, id.0));
    assert_eq!(rej.info[..8], 0xA000u64.to_be_bytes());
    assert_eq!(wire.nodes[ACTIVE].connections(), 0);
    assert_eq!(wire.nodes[ACTIVE].next_deadline(), None);
}

#[test]
fn a_rep_that_nobody_answers_ends_the_passive_side_too() {
    let mut wire = Wire::new();
    let ours = wire.connect(5);
    wire.settle();
    let theirs = wire.one(PASSIVE).id();
    // The active side dies.
    let active = config(ACTIVE, wire.ips[ACTIVE]);
    wire.nodes[ACTIVE] = Cm::new(active);
    wire.lose = Box::new(|from, kind, _| from == PASSIVE && kind == Kind::Rep);
    wire.accept(theirs, 9);
    wire.run_for(120);
    let unreachable = Event::Unreachable { id: theirs, unanswered: Kind::Rep, sent: 16 };
    assert_eq!(wire.one(PASSIVE), unreachable);
    assert_eq!(wire.nodes[PASSIVE].connections(), 0);
    assert_eq!(wire.nodes[ACTIVE].state(ours), None);
}

#[test]
fn a_req_given_up_takes_its_request_away_from_the_program() {
    let mut wire = Wire::new();
    let ours = wire.connect(5);
    wire.settle();
    let theirs = wire.one(PASSIVE).id();
    wire.nodes[ACTIVE].disconnect(wire.now, ours).unwrap();
    wire.settle();
    let Event::Rejected { id, reason, .. } = wire.one(PASSIVE) else { panic!() };
    assert_eq!((id, reason), (theirs, Reject::TIMEOUT));
    let accept = Accept::default();
    let refused = wire.nodes[PASSIVE].accept(wire.now, theirs, &accept);
    assert_eq!(refused, Err(Error::UnknownConnection(theirs)));
}

#[test]
fn a_slow_program_keeps_its_peer_waiting_with_an_mra() {
    let mut wire = Wire::new();
    let ours = wire.connect(5);
    wire.run_for(60);
    let theirs = wire.one(PASSIVE).id();
    // The REQ came again once; the MRA asks for 69 s.
    assert_eq!(wire.story(), ["0 REQ", "0 REQ", "1 MRA"]);
    wire.accept(theirs, 9);
    wire.settle();
    assert!(matches!(wire.one(ACTIVE), Event::Replied { id, .. } if id == ours));
}

#[test]
fn both_programs_may_ask_for_time_and_repeat_it_when_asked_again() {
    let mut wire = Wire::new();
    wire.lose = Box::new(|_, kind, count| kind == Kind::Mra && count == 0);
    let ours = wire.connect(5);
    wire.settle();
    let theirs = wire.one(PASSIVE).id();
    wire.nodes[PASSIVE].delay(theirs, 24).unwrap();
    wire.run_for(30);
    assert_eq!(wire.story(), ["0 REQ", "1 MRA", "0 REQ", "1 MRA"]);
    wire.accept(theirs, 9);
    wire.settle();
    wire.log.clear();
    assert!(matches!(wire.one(ACTIVE), Event::Replied { .. }));
    wire.nodes[ACTIVE].delay(ours, 24).unwrap();
    wire.run_for(60);
    assert_eq!(wire.story(), ["0 MRA", "1 REP", "0 MRA"], "the first was lost");
    wire.nodes[ACTIVE].ready(ours).unwrap();
    wire.settle();
    assert_eq!(wire.one(PASSIVE), Event::Established { id: theirs });
}

#[test]
fn after_an_mra_has_run_out_the_message_is_sent_again() {
    let mut wire = Wire::new();
    wire.connect(5);
    wire.settle();
    let theirs = wire.one(PASSIVE).id();
    wire.nodes[PASSIVE].delay(theirs, 21).unwrap();
    wire.settle();
    wire.log.clear();
    let asked = wire.now;
    wire.run_for(10);
    assert_eq!(wire.story()[..2], ["0 REQ", "1 MRA"]);
    assert!(wire.log[0].at.0 - asked.0 > (4096 << 21) - 1_000_000);
}

#[test]
fn nobody_listens_is_said_at_once() {
    let mut wire = Wire::new();
    wire.nodes[PASSIVE].stop_listening(message::tcp_service(PORT));
    let ours = wire.connect(5);
    wire.settle();
    let Event::Rejected { id, reason, rej } = wire.one(ACTIVE) else { panic!() };
    assert_eq!((id, reason), (ours, Reject::INVALID_SERVICE_ID));
    assert_eq!((rej.local_comm_id, rej.message), (0, 0));
    assert_eq!(wire.take(PASSIVE), []);
    assert_eq!(wire.nodes[PASSIVE].counters().refusals(Refusal::NoListener), 1);
    assert_eq!(wire.nodes[PASSIVE].connections(), 0);
}

#[test]
fn a_program_may_say_no_on_either_side() {
    let mut wire = Wire::new();
    let ours = wire.connect(5);
    wire.settle();
    let theirs = wire.one(PASSIVE).id();
    wire.nodes[PASSIVE].reject(theirs, Reject::CONSUMER, b"not you").unwrap();
    wire.settle();
    let Event::Rejected { id, reason, rej } = wire.one(ACTIVE) else { panic!() };
    assert_eq!((id, reason), (ours, Reject::CONSUMER));
    assert_eq!(rej.private_data[..7], *b"not you");
    assert_eq!((wire.nodes[0].connections(), wire.nodes[1].connections()), (0, 0));

    let ours = wire.connect(6);
    wire.settle();
    let theirs = wire.one(PASSIVE).id();
    wire.accept(theirs, 9);
    wire.settle();
    wire.take(ACTIVE);
    wire.nodes[ACTIVE].reject(ours, Reject::CONSUMER, b"").unwrap();
    wire.settle();
    let Event::Rejected { id, reason, rej } = wire.one(PASSIVE) else { panic!() };
    assert_eq!((id, reason, rej.message), (theirs, Reject::CONSUMER, 1));
    assert_eq!((wire.nodes[0].connections(), wire.nodes[1].connections()), (0, 0));
}

#[test]
fn a_full_backlog_refuses_and_has_room_again_after_a_decision() {
    let mut wire = Wire::new();
    for qpn in 5..8 {
        wire.connect(qpn);
    }
    wire.settle();
    let waiting = wire.take(PASSIVE);
    assert_eq!(waiting.len(), 3);
    wire.connect(8);
    wire.settle();
    let Event::Rejected { reason, .. } = wire.one(ACTIVE) else { panic!() };
    assert_eq!(reason, Reject::NO_RESOURCES);
    wire.accept(waiting[0].id(), 20);
    wire.nodes[PASSIVE].reject(waiting[1].id(), Reject::CONSUMER, &[]).unwrap();
    wire.settle();
    for qpn in 9..11 {
        wire.connect(qpn);
    }
    wire.settle();
    assert_eq!(wire.take(PASSIVE).len(), 2);
    assert_eq!(wire.nodes[PASSIVE].counters().refusals(Refusal::NoResources), 1);
}

#[test]
fn as_many_connections_as_may_be() {
    let mut wire = Wire::new();
    let limited = softrnic_host::cm::CmConfig { max_connections: 1, ..config(0, wire.ips[0]) };
    wire.nodes[ACTIVE] = Cm::new(limited);
    wire.connect(5);
    let again = wire.nodes[ACTIVE].connect(wire.now, &wire.request(6));
    assert_eq!(again, Err(Error::TooManyConnections(1)));
}

#[test]
fn what_a_request_may_not_ask_for_is_refused_with_what_would_do() {
    // What is wrong, how it is counted, how it is rejected, what is proposed.
    type Row = (fn(&mut Req), Refusal, Reject, Vec<u8>);
    let own_gid: std::net::Ipv6Addr = "::ffff:192.0.2.2".parse().unwrap();
    let rows: [Row; 5] = [
        (|req| req.transport = 1, Refusal::Transport, Reject::INVALID_TRANSPORT, vec![]),
        (|req| req.transport = 3, Refusal::Transport, Reject::INVALID_TRANSPORT, vec![]),
        (|req| req.path_mtu = 0, Refusal::PathMtu, Reject::INVALID_MTU, vec![0x40]),
        (|req| req.path_mtu = 5, Refusal::PathMtu, Reject::INVALID_MTU, vec![0x40]),
        (
            |req| req.primary_remote_gid = "::ffff:192.0.2.77".parse().unwrap(),
            Refusal::Gid,
            Reject::INVALID_GID,
            own_gid.octets().to_vec(),
        ),
    ];
    for (spoil, refusal, reason, instead) in rows {
        let mut wire = Wire::new();
        let config = softrnic_host::cm::CmConfig {
            path_mtu: PathMtu::M2048,
            ..config(PASSIVE, wire.ips[PASSIVE])
        };
        wire.nodes[PASSIVE] = Cm::new(config);
        wire.nodes[PASSIVE].listen(message::tcp_service(PORT), 3).unwrap();
        wire.connect(5);
        let (to, mad) = wire.nodes[ACTIVE].poll_transmit().unwrap();
        let (transaction, Message::Req(mut req)) = Message::decode(&*mad).unwrap() else {
            panic!()
        };
        spoil(&mut req);
        let from = Peer { ip: wire.ips[ACTIVE], ..to };
        let mad = Message::Req(req).encode(transaction);
        let result = wire.nodes[PASSIVE].handle_mad(wire.now, from, &mad);
        assert_eq!(result, Err(refusal));
        assert_eq!(wire.nodes[PASSIVE].counters().refusals(refusal), 1);
        wire.settle();
        let Event::Rejected { reason: said, rej, .. } = wire.one(ACTIVE) else { panic!() };
        assert_eq!(said, reason);
        assert_eq!(rej.info[..usize::from(rej.info_len)], instead);
        assert_eq!(wire.nodes[PASSIVE].connections(), 0);
    }
}

#[test]
fn a_reply_to_nobody_is_rejected() {
    let mut wire = Wire::new();
    let rep = Rep { local_comm_id: 7, remote_comm_id: 8, ..Rep::default() };
    let from = Peer { ip: wire.ips[PASSIVE], qpn: Qpn::new(1) };
    let mad = Message::from(rep).encode(77);
    let result = wire.nodes[ACTIVE].handle_mad(Nanos(0), from, &mad);
    assert_eq!(result, Err(Refusal::UnknownConnection));
    let (_, mad) = wire.nodes[ACTIVE].poll_transmit().unwrap();
    let (transaction, Message::Rej(rej)) = Message::decode(&*mad).unwrap() else { panic!() };
    assert_eq!((transaction, rej.remote_comm_id), (77, 7));
    assert_eq!(Reject(rej.reason), Reject::INVALID_COMM_ID);
}

#[test]
fn a_stranger_cannot_answer_in_the_peers_name() {
    let mut wire = Wire::new();
    let ours = wire.connect(5);
    wire.nodes[ACTIVE].poll_transmit().unwrap();
    let rep = Rep { local_comm_id: 7, remote_comm_id: ours.0, ..Rep::default() };
    let stranger = Peer { ip: "192.0.2.66".parse().unwrap(), qpn: Qpn::new(1) };
    let mad = Message::from(rep).encode(1);
    let result = wire.nodes[ACTIVE].handle_mad(Nanos(0), stranger, &mad);
    assert_eq!(result, Err(Refusal::WrongPeer));
    assert_eq!(wire.nodes[ACTIVE].state(ours), Some(State::ReqSent));
    assert!(wire.nodes[ACTIVE].poll_transmit().is_none());
}

#[test]
fn datagrams_of_others_are_counted_by_what_is_wrong() {
    let mut wire = Wire::new();
    let good = Message::from(Rep::default()).encode(1);
    let spoiled = |at: usize, value: u8| {
        let mut mad = good;
        mad[at] = value;
        mad.to_vec()
    };
    let rows = [
        (good[..255].to_vec(), Refusal::Length),
        (Vec::new(), Refusal::Length),
        (spoiled(0, 0x80), Refusal::NotCm),
        (spoiled(1, 0x03), Refusal::NotCm),
        (spoiled(2, 1), Refusal::ClassVersion),
        (spoiled(3, 0x81), Refusal::Method),
        (spoiled(17, 0x17), Refusal::Attribute),
        (spoiled(17, 0x19), Refusal::Attribute),
    ];
    let from = Peer { ip: wire.ips[PASSIVE], qpn: Qpn::new(1) };
    for (mad, refusal) in rows {
        let before = wire.nodes[ACTIVE].counters().refusals(refusal);
        assert_eq!(wire.nodes[ACTIVE].handle_mad(Nanos(0), from, &mad), Err(refusal));
        assert_eq!(wire.nodes[ACTIVE].counters().refusals(refusal), before + 1);
    }
    assert!(wire.nodes[ACTIVE].poll_transmit().is_none(), "none is answered");
}

#[test]
fn a_command_that_cannot_be_changes_nothing() {
    let mut wire = Wire::new();
    let service = message::tcp_service(PORT);
    assert_eq!(wire.nodes[PASSIVE].listen(service, 1), Err(Error::ServiceTaken(service)));
    let good = wire.request(5);
    let rows = [
        Connect { retry_count: 8, ..good.clone() },
        Connect { ack_timeout: 32, ..good.clone() },
        Connect { qp: LocalQp { rnr_retry_count: 8, ..good.qp }, ..good.clone() },
        Connect { remote: "2001:db8::2".parse().unwrap(), ..good },
    ];
    for request in rows {
        assert!(wire.nodes[ACTIVE].connect(wire.now, &request).is_err());
    }
    let long = Connect::tcp(wire.ips[0], 1, wire.ips[1], 1, &[0; 57]);
    assert_eq!(long.unwrap_err(), Error::PrivateData { given: 57, max: 56 });
    assert_eq!(wire.nodes[ACTIVE].connections(), 0);

    let ours = wire.connect(5);
    wire.settle();
    let theirs = wire.one(PASSIVE).id();
    let state = State::ReqSent;
    assert_eq!(wire.nodes[ACTIVE].ready(ours), Err(Error::WrongState { id: ours, state }));
    let accept = Accept { private_data: vec![0; 197], ..Accept::default() };
    let result = wire.nodes[PASSIVE].accept(wire.now, theirs, &accept);
    assert_eq!(result, Err(Error::PrivateData { given: 197, max: 196 }));
    let qp = LocalQp { rnr_retry_count: 8, ..LocalQp::default() };
    let accept = Accept { qp, ..Accept::default() };
    assert!(wire.nodes[PASSIVE].accept(wire.now, theirs, &accept).is_err());
    assert!(wire.nodes[PASSIVE].reject(theirs, Reject::CONSUMER, &[0; 149]).is_err());
    assert_eq!(wire.nodes[PASSIVE].state(theirs), Some(State::ReqReceived));
}
