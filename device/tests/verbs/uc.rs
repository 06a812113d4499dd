//! Unreliable connections: what is lost stays lost, and nothing is answered.

use softrnic_device::verbs::{
    AccessFlags, AsyncEvent, Connection, QpInit, SendOp, SendRequest, Sge, WcOpcode,
};
use softrnic_engine::{Counter, Psn, RKey, Reason, RemoteAccess, Service, State, Status, Train};

use crate::world::{BASE, World, between, outcome};

use Status::Success;

fn uc() -> World {
    let init = QpInit { service: Service::Uc, ..QpInit::default() };
    World::with(init, 64, Connection::default())
}

#[test]
fn u_01_a_message_completes_when_its_last_packet_has_left_and_is_never_answered() {
    let mut world = uc();
    world.a.fill(0, &[0x5A; 3000]);
    world.b.recv(7, &[world.b.sge(0x4000, 4000)]);
    world.a.send(1, SendOp::SendWithImm { immediate: 9 }, &[world.a.sge(0, 3000)]);
    let mut done = Vec::new();
    for _ in 0..3 {
        let (train, frame) = world.a.transmit(world.now).unwrap();
        assert_eq!((train.syndrome, train.retransmission), (None, false));
        done.push(world.a.sent().len());
        assert_eq!(world.b.take(world.now, &frame).refused, None);
        assert_eq!(world.b.transmit(world.now), None);
    }
    assert_eq!(done, [0, 0, 1]);
    assert_eq!((world.a.transmit(world.now), world.a.nic.next_deadline()), (None, None));
    let [received] = world.b.received()[..] else { panic!("one completion") };
    assert_eq!((received.wr_id, received.byte_len), (7, 3000));
    assert_eq!((received.opcode, received.immediate), (WcOpcode::Recv, Some(9)));
    assert_eq!(received.source_qpn, None);
    assert_eq!(world.b.bytes(0x4000, 3001), [vec![0x5A; 3000], vec![0]].concat());
}

/// T-32. Of two messages of three packets one packet is lost.
#[test]
fn u_02_u_03_a_lost_packet_costs_one_message_and_its_receive_is_used_again() {
    for lost in 0..6 {
        let mut world = uc();
        world.a.fill(0, &[1; 3000]);
        world.a.fill(0x1000, &[2; 2900]);
        world.b.recv(10, &[world.b.sge(0x4000, 3000)]);
        world.b.recv(11, &[world.b.sge(0x8000, 3000)]);
        world.a.send(1, SendOp::Send, &[world.a.sge(0, 3000)]);
        world.a.send(2, SendOp::Send, &[world.a.sge(0x1000, 2900)]);
        world.pump_losing(|frame| frame == lost);
        assert_eq!(outcome(&world.a.sent()), [(1, Success), (2, Success)]);
        let (len, value) = if lost < 3 { (2900, 2) } else { (3000, 1) };
        let [received] = world.b.received()[..] else { panic!("one message, lost {lost}") };
        assert_eq!((received.wr_id, received.status), (10, Success));
        assert_eq!(received.byte_len, len);
        assert_eq!(world.b.bytes(0x4000, len as usize), vec![value; len as usize]);
        // The next message finds a receive and a clean sequence, whatever was lost.
        world.a.send(3, SendOp::Send, &[world.a.sge(0, 1500)]);
        world.pump();
        let [received] = world.b.received()[..] else { panic!("lost {lost}") };
        assert_eq!((received.wr_id, received.byte_len), (11, 1500));
        assert_eq!((world.b.state(), world.b.nic.get_async_event()), (State::Rts, None));
    }
}

#[test]
fn u_03_a_partly_written_write_stays_without_notice() {
    let mut world = uc();
    world.a.fill(0, &[3; 3000]);
    world.b.recv(1, &[]);
    let rkey = world.b.mr.rkey;
    let write = SendOp::WriteWithImm { remote_va: BASE + 0x4000, rkey, immediate: 5 };
    world.a.send(1, write, &[world.a.sge(0, 3000)]);
    world.pump_losing(|frame| frame == 1);
    assert!(world.b.received().is_empty());
    assert_eq!(world.b.bytes(0x4000, 3000), [vec![3; 1024], vec![0; 1976]].concat());
    world.a.send(2, write, &[world.a.sge(0, 3000)]);
    world.pump();
    let [received] = world.b.received()[..] else { panic!("one completion") };
    assert_eq!((received.wr_id, received.immediate), (1, Some(5)));
    assert_eq!(received.opcode, WcOpcode::RecvRdmaWithImm);
    assert_eq!(world.b.bytes(0x4000, 3000), [3; 3000]);
    let counters = world.b.nic.engine.qp(world.b.qpn).unwrap().counters();
    assert_eq!(counters[Counter::OutOfSequence], 1);
}

#[test]
fn u_04_what_cannot_be_executed_is_dropped_and_the_queue_pair_stays() {
    let no_write = RemoteAccess { read: true, write: false, atomic: true };
    let send = |_: RKey| SendOp::Send;
    let write = |rkey| SendOp::Write { remote_va: BASE + 0x4000, rkey };
    type Op = fn(RKey) -> SendOp;
    let cases: [(Op, bool, bool, Reason); 5] = [
        (send, false, true, Reason::ReceiverNotReady),
        (send, true, true, Reason::ReceiveTooSmall),
        (|_| SendOp::Write { remote_va: BASE, rkey: RKey(0x777) }, true, true, Reason::KeyUnknown),
        (write, true, true, Reason::AccessRights),
        (write, true, false, Reason::OperationDisabled),
    ];
    for (op, posted, may_write, reason) in cases {
        let mut world = uc();
        for side in [&mut world.a, &mut world.b] {
            side.nic.set_state(side.qpn, State::Reset).unwrap();
        }
        let remote_access = if may_write { Connection::default().remote_access } else { no_write };
        world.connect(Connection { remote_access, ..Connection::default() });
        let closed = world.b.nic.reg_mr(world.b.pd, BASE, 0x8000, AccessFlags::LOCAL).unwrap();
        world.a.fill(0, &[4; 2000]);
        if posted {
            world.b.recv(1, &[world.b.sge(0x4000, 100)]);
        }
        world.a.send(1, op(closed.rkey), &[world.a.sge(0, 2000)]);
        world.pump();
        assert_eq!(outcome(&world.a.sent()), [(1, Success)]);
        assert_eq!(world.b.counted(reason), 1, "{reason}");
        assert!(world.b.received().is_empty());
        assert_eq!((world.b.state(), world.b.nic.get_async_event()), (State::Rts, None));
        assert_eq!(world.b.bytes(0x4000 + 100, 2000), [0; 2000]);
        if !posted {
            world.b.recv(1, &[world.b.sge(0x4000, 100)]);
        }
        world.a.send(2, SendOp::Send, &[world.a.sge(0, 100)]);
        world.pump();
        assert_eq!(outcome(&world.b.received()), [(1, Success)]);
    }
}

#[test]
fn u_05_a_repeated_packet_is_a_new_message() {
    let mut world = uc();
    (0..2).for_each(|i| world.b.recv(i, &[world.b.sge(i * 64, 64)]));
    world.a.send_bytes(1, world.a.qpn, b"twice");
    let (_, frame) = world.a.transmit(world.now).unwrap();
    let verdicts = [0, 1].map(|_| world.b.take(world.now, &frame));
    assert!(verdicts.iter().all(|verdict| verdict.refused.is_none() && !verdict.duplicate));
    assert_eq!(outcome(&world.b.received()), [(0, Success), (1, Success)]);
    assert_eq!(world.b.bytes(64, 5), b"twice");
}

#[test]
fn u_06_a_write_must_end_where_it_said() {
    let mut world = uc();
    let write = SendOp::Write { remote_va: BASE + 0x4000, rkey: world.b.mr.rkey };
    world.a.fill(0, &[6; 3000]);
    world.a.send(1, write, &[world.a.sge(0, 2049)]);
    let (first, frame) = world.a.transmit(world.now).unwrap();
    assert_eq!(world.b.take(world.now, &frame).refused, None);
    // A second life of the sender gives a LAST with the next PSN, but of a shorter message.
    let (a, b) = (world.a.qpn, world.b.qpn);
    world.a.nic.set_state(a, State::Reset).unwrap();
    let again =
        Connection { send_psn: first.psn, ..between(a, b, world.b.path(), Connection::default()) };
    world.a.nic.connect(a, &again).unwrap();
    world.a.send(2, write, &[world.a.sge(0, 1124)]);
    let frames: Vec<(Train, Vec<u8>)> = world.a.transmit_all(world.now);
    assert_eq!(frames[1].0.psn, Psn::new(first.psn.get() + 1));
    let verdict = world.b.take(world.now, &frames[1].1);
    assert_eq!(verdict.refused, Some(Reason::PayloadLength));
    assert_eq!(world.b.bytes(0x4000, 3000), [vec![6; 1024], vec![0; 1976]].concat());
    assert_eq!(world.b.state(), State::Rts);
}

#[test]
fn m_06_a_failed_send_stops_the_send_queue_only() {
    let mut world = uc();
    let bad = Sge { lkey: Default::default(), ..world.a.sge(0, 16) };
    world.a.recv(20, &[]);
    world.b.recv(21, &[]);
    world.a.send(1, SendOp::Send, &[bad]);
    world.a.send(2, SendOp::Send, &[]);
    world.pump();
    let sent = outcome(&world.a.sent());
    assert_eq!(sent, [(1, Status::LocalProtection), (2, Status::Flushed)]);
    assert_eq!(world.a.state(), State::Sqe);
    world.a.send(3, SendOp::Send, &[]);
    assert_eq!(outcome(&world.a.sent()), [(3, Status::Flushed)]);
    // The receive queue works on.
    world.b.send(4, SendOp::Send, &[]);
    world.pump();
    assert_eq!(outcome(&world.a.received()), [(20, Success)]);
    world.a.nic.set_state(world.a.qpn, State::Rts).unwrap();
    world.a.send(5, SendOp::Send, &[]);
    world.pump();
    assert_eq!(outcome(&world.a.sent()), [(5, Success)]);
    assert_eq!(outcome(&world.b.received()), [(21, Success)]);
}

#[test]
fn u_01_operations_that_need_an_answer_are_refused() {
    let rkey = RKey(1);
    let read = SendOp::Read { remote_va: BASE, rkey };
    let add = SendOp::FetchAdd { remote_va: BASE, rkey, add: 1 };
    for op in [read, add, SendOp::SendWithInv { rkey }] {
        let mut world = uc();
        world.a.send(1, op, &[world.a.sge(0, 8)]);
        assert_eq!(world.a.transmit(world.now), None);
        let [sent] = world.a.sent()[..] else { panic!("one completion") };
        assert_eq!(sent.status, Status::LocalQpOperation);
        assert_eq!(sent.reason, Some(Reason::WorkOpcodeIllegal));
    }
}

#[test]
fn s_55_a_full_completion_queue_fails_an_unreliable_receiver_too() {
    let init = QpInit { service: Service::Uc, ..QpInit::default() };
    let mut world = World::with(init, 1, Connection::default());
    (0..2).for_each(|i| world.b.recv(i, &[]));
    for _ in 0..2 {
        world.a.nic.post_send(world.a.qpn, &SendRequest::default()).unwrap();
    }
    world.pump();
    assert_eq!(world.b.state(), State::Error);
    assert_eq!(outcome(&world.b.received()), [(0, Success)]);
    let told = AsyncEvent::CqError(world.b.recv_cq);
    assert_eq!(world.b.nic.get_async_event(), Some(told));
}

#[test]
fn u_04_a_receive_with_a_bad_key_fails_and_so_does_the_queue_pair() {
    let mut world = uc();
    let bad = Sge { address: BASE, length: 64, lkey: Default::default() };
    world.b.recv(1, &[bad]);
    world.b.recv(2, &[]);
    world.a.send(1, SendOp::Send, &[world.a.sge(0, 8)]);
    world.pump();
    assert_eq!(outcome(&world.a.sent()), [(1, Success)]);
    assert_eq!(world.b.state(), State::Error);
    let received = outcome(&world.b.received());
    assert_eq!(received, [(1, Status::LocalProtection), (2, Status::Flushed)]);
}
