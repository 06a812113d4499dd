//! Completion events, asynchronous events, and completion queues that overflow.

use softrnic_device::verbs::{AsyncEvent, Connection, QpInit, SendOp, SendRequest};
use softrnic_engine::{Psn, Service, State, Status};

use crate::world::{BASE, World, between, outcome};

use Status::Success;

/// T-36.
#[test]
fn s_66_solicited_arming_hears_solicited_messages_and_errors_only() {
    let mut world = World::new();
    let rkey = world.b.mr.rkey;
    let cq = world.b.recv_cq;
    (0..8).for_each(|i| world.b.recv(i, &[]));
    let imm = SendOp::WriteWithImm { remote_va: BASE, rkey, immediate: 1 };
    let write = SendOp::Write { remote_va: BASE, rkey };
    let plain = SendOp::Send;
    world.b.nic.req_notify_cq(cq, true).unwrap();
    for (op, solicited, event) in [
        (plain, false, None),
        (imm, false, None),
        // A WRITE has no completion that anybody could wait for.
        (write, true, None),
        (imm, true, Some(cq)),
        (plain, true, None),
    ] {
        let request = SendRequest { op, solicited, ..SendRequest::default() };
        world.a.nic.post_send(world.a.qpn, &request).unwrap();
        world.pump();
        assert_eq!(world.b.nic.get_cq_event(), event, "{op:?}");
    }
    world.b.nic.req_notify_cq(cq, true).unwrap();
    world.b.nic.set_state(world.b.qpn, State::Error).unwrap();
    assert_eq!(world.b.nic.get_cq_event(), Some(cq));
    assert_eq!(world.b.nic.get_cq_event(), None, "four flushed receives, one event");
    assert_eq!(world.b.received().len(), 8);
}

#[test]
fn s_66_a_message_of_several_packets_is_solicited_by_its_last() {
    let mut world = World::new();
    world.b.recv(1, &[world.b.sge(0x8000, 4000)]);
    world.b.nic.req_notify_cq(world.b.recv_cq, true).unwrap();
    let list = [world.a.sge(0, 3000)];
    let payload = softrnic_device::verbs::Payload::Sges(&list);
    let request = SendRequest { payload, solicited: true, ..SendRequest::default() };
    world.a.nic.post_send(world.a.qpn, &request).unwrap();
    // Ethernet 14, IPv4 20, UDP 8, then BTH: the SE bit is the top one of its second byte.
    let frames = world.a.transmit_all(world.now);
    let solicited: Vec<bool> = frames.iter().map(|(_, frame)| frame[43] & 0x80 != 0).collect();
    assert_eq!(solicited, [false, false, true]);
    for (_, frame) in &frames {
        assert_eq!(world.b.nic.get_cq_event(), None);
        world.b.take(world.now, frame);
    }
    assert_eq!(world.b.nic.get_cq_event(), Some(world.b.recv_cq));
}

#[test]
fn m_11_one_event_for_each_arming_and_none_for_what_was_there_before() {
    let mut world = World::new();
    let (send_cq, recv_cq) = (world.a.send_cq, world.b.recv_cq);
    (0..4).for_each(|i| world.b.recv(i, &[]));
    world.a.send(1, SendOp::Send, &[]);
    world.pump();
    world.a.nic.req_notify_cq(send_cq, false).unwrap();
    world.b.nic.req_notify_cq(recv_cq, false).unwrap();
    assert_eq!((world.a.nic.get_cq_event(), world.b.nic.get_cq_event()), (None, None));
    // The race: a program arms, then polls once more, and finds what came before.
    assert_eq!((world.a.sent().len(), world.b.received().len()), (1, 1));
    (2..5).for_each(|i| world.a.send(i, SendOp::Send, &[]));
    world.pump();
    let events = [world.a.nic.get_cq_event(), world.a.nic.get_cq_event()];
    assert_eq!(events, [Some(send_cq), None]);
    let events = [world.b.nic.get_cq_event(), world.b.nic.get_cq_event()];
    assert_eq!(events, [Some(recv_cq), None]);
    assert_eq!(outcome(&world.a.sent()), [(2, Success), (3, Success), (4, Success)]);
}

#[test]
fn s_67_the_first_valid_packet_in_rtr_is_told_once() {
    for service in [Service::Rc, Service::Uc] {
        let init = QpInit { service, ..QpInit::default() };
        let mut world = World::with(init, 64, Connection::default());
        let (a, b) = (world.a.qpn, world.b.qpn);
        let established = Some(AsyncEvent::CommunicationEstablished(b));
        for life in 0..2 {
            let expected = between(b, a, world.a.path(), Connection::default());
            for (side, q) in [(&mut world.a, a), (&mut world.b, b)] {
                side.nic.set_state(q, State::Reset).unwrap();
            }
            let forth = between(a, b, world.b.path(), Connection::default());
            world.a.nic.connect(a, &forth).unwrap();
            world.b.nic.ready_to_receive(b, &expected).unwrap();
            assert_eq!(world.b.state(), State::Rtr);
            (0..3).for_each(|i| world.b.recv(i, &[]));
            world.a.send(1, SendOp::Send, &[]);
            let (_, mut frame) = world.a.transmit(world.now).unwrap();
            // What is not valid establishes nothing.
            let last = frame.len() - 1;
            frame[last] ^= 1;
            assert!(world.b.take(world.now, &frame).refused.is_some());
            assert_eq!(world.b.nic.get_async_event(), None);
            frame[last] ^= 1;
            assert_eq!(world.b.take(world.now, &frame).refused, None);
            assert_eq!(world.b.nic.get_async_event(), established, "{service:?} life {life}");
            world.pump();
            world.a.send(2, SendOp::Send, &[]);
            world.pump();
            assert_eq!(world.b.nic.get_async_event(), None);
            assert_eq!(world.b.received().len(), 2);
            // In RTS it is no news.
            world.b.nic.set_state(b, State::Rts).unwrap();
            world.a.send(3, SendOp::Send, &[]);
            world.pump();
            assert_eq!(world.b.nic.get_async_event(), None);
        }
    }
}

#[test]
fn s_67_neither_a_wrong_psn_nor_rts_is_news_but_a_packet_without_buffer_is() {
    let mut world = World::new();
    let (a, b) = (world.a.qpn, world.b.qpn);
    world.a.send(1, SendOp::Send, &[]);
    let (train, frame) = world.a.transmit(world.now).unwrap();
    let behind = Psn::new(train.psn.get().wrapping_add(1));
    let ahead = Psn::new(train.psn.get().wrapping_sub(1));
    for (expected_psn, posted, told) in
        [(behind, 1, false), (ahead, 1, false), (train.psn, 0, true), (train.psn, 1, true)]
    {
        world.b.nic.set_state(b, State::Reset).unwrap();
        let connection =
            Connection { expected_psn, ..between(b, a, world.a.path(), Connection::default()) };
        world.b.nic.ready_to_receive(b, &connection).unwrap();
        (0..posted).for_each(|i| world.b.recv(i, &[]));
        world.b.take(world.now, &frame);
        assert_eq!(world.b.nic.get_async_event().is_some(), told, "{expected_psn} {posted}");
    }
    world.b.nic.set_state(b, State::Reset).unwrap();
    let connection = between(b, a, world.a.path(), Connection::default());
    world.b.nic.connect(b, &connection).unwrap();
    world.b.take(world.now, &frame);
    assert_eq!(world.b.nic.get_async_event(), None);
}

#[test]
fn m_04_in_rtr_the_responder_works_and_the_requester_is_silent() {
    let mut world = World::new();
    let (a, b) = (world.a.qpn, world.b.qpn);
    world.b.nic.set_state(b, State::Reset).unwrap();
    let connection = between(b, a, world.a.path(), Connection::default());
    world.b.nic.ready_to_receive(b, &connection).unwrap();
    let refused = world.b.nic.post_send(b, &SendRequest::default());
    assert!(refused.is_err());
    world.b.recv(1, &[]);
    world.a.send(1, SendOp::Send, &[]);
    world.pump();
    assert_eq!(outcome(&world.a.sent()), [(1, Success)]);
    world.a.recv(2, &[]);
    world.b.nic.set_state(b, State::Rts).unwrap();
    world.b.send(2, SendOp::Send, &[]);
    world.pump();
    assert_eq!(outcome(&world.a.received()), [(2, Success)]);
}

#[test]
fn m_10_every_queue_pair_that_needs_an_overrun_queue_fails_and_what_is_in_it_stays() {
    let mut world = World::with(QpInit::default(), 2, Connection::default());
    let (a, b) = (world.a.another(QpInit::default()), world.b.another(QpInit::default()));
    world.join(a, b, Connection::default());
    let (first, second) = (world.b.qpn, b);
    for q in [first, second] {
        world.b.qpn = q;
        (0..3).for_each(|i| world.b.recv(q.get().into(), &[world.b.sge(i, 1)]));
    }
    for _ in 0..3 {
        world.a.nic.post_send(world.a.qpn, &SendRequest::default()).unwrap();
    }
    world.pump();
    assert_eq!(world.b.nic.state(first), Some(State::Error));
    assert_eq!(world.b.nic.state(second), Some(State::Rts));
    let cq_error = AsyncEvent::CqError(world.b.recv_cq);
    assert_eq!(world.b.nic.get_async_event(), Some(cq_error));
    // The other one notices when it has something to say there: even an empty queue is dead.
    let name = u64::from(first.get());
    assert_eq!(outcome(&world.b.received()), [(name, Success), (name, Success)]);
    world.a.nic.post_send(a, &SendRequest::default()).unwrap();
    world.pump();
    assert_eq!(world.b.nic.state(second), Some(State::Error));
    assert!(world.b.received().is_empty());
    let events: Vec<_> = core::iter::from_fn(|| world.b.nic.get_async_event()).collect();
    assert!(!events.contains(&cq_error), "told once: {events:?}");
    assert_eq!(events.len(), 2, "one for each queue pair: {events:?}");
}
