//! Stories of two network interfaces, over a lossless wire.

use softrnic_device::verbs::{
    AccessFlags, AsyncEvent, Connection, Payload, QpInit, SendOp, SendRequest, Sge, WcOpcode,
};
use softrnic_engine::{Counter, Policy, RKey, Reason, State, Status, rnr_timer_ns};

use crate::world::{BASE, World, outcome};

use Status::{Flushed, Success};

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn q_11_a_send_gathers_1_0_3_and_1500_bytes_and_scatters_elsewhere() {
    let mut world = World::new();
    let message = pattern(1504);
    world.a.fill(0x10, &message[..1]);
    world.a.fill(0x21, &message[1..4]);
    world.a.fill(0x1003, &message[4..]);
    let dead = Sge { lkey: Default::default(), ..world.a.sge(0, 0) };
    let list = [world.a.sge(0x10, 1), dead, world.a.sge(0x21, 3), world.a.sge(0x1003, 1500)];
    let buffer = [world.b.sge(0x7, 700), world.b.sge(0x2000, 0), world.b.sge(0x3001, 900)];
    world.b.recv(42, &buffer);
    world.a.send(41, SendOp::SendWithImm { immediate: 0xDEAD_BEEF }, &list);
    world.pump();
    let [sent] = world.a.sent()[..] else { panic!("one completion") };
    assert_eq!((sent.wr_id, sent.status, sent.opcode), (41, Success, WcOpcode::Send));
    let [received] = world.b.received()[..] else { panic!("one completion") };
    assert_eq!((received.wr_id, received.status, received.opcode), (42, Success, WcOpcode::Recv));
    assert_eq!((received.byte_len, received.immediate), (1504, Some(0xDEAD_BEEF)));
    assert_eq!((received.qpn, received.invalidated), (world.b.qpn, None));
    assert_eq!(world.b.bytes(0x7, 700), message[..700]);
    assert_eq!(world.b.bytes(0x3001, 804), message[700..]);
    assert_eq!(world.b.bytes(0x3001 + 804, 96), [0; 96]);
}

#[test]
fn write_and_read_move_bytes_without_the_peer() {
    let mut world = World::new();
    let (a, b) = (pattern(5000), pattern(3001));
    world.a.fill(0, &a);
    world.b.fill(0x8000, &b);
    let rkey = world.b.mr.rkey;
    let write = SendOp::Write { remote_va: BASE + 0x101, rkey };
    world.a.send(1, write, &[world.a.sge(0, 5000)]);
    let read = SendOp::Read { remote_va: BASE + 0x8000, rkey };
    world.a.send(2, read, &[world.a.sge(0x4001, 1), world.a.sge(0x5001, 3000)]);
    let nothing = SendOp::Write { remote_va: 0, rkey: RKey(0) };
    world.a.send(3, nothing, &[]);
    world.pump();
    let sent = world.a.sent();
    assert_eq!(outcome(&sent), [(1, Success), (2, Success), (3, Success)]);
    assert_eq!((sent[1].opcode, sent[1].byte_len), (WcOpcode::RdmaRead, 3001));
    assert_eq!(world.b.bytes(0x101, 5000), a);
    assert_eq!(world.a.bytes(0x4001, 1), b[..1]);
    assert_eq!(world.a.bytes(0x5001, 3000), b[1..]);
    assert!(world.b.received().is_empty());
}

#[test]
fn s_63_write_with_immediate_takes_a_receive_and_leaves_its_buffer() {
    let mut world = World::new();
    let message = pattern(2500);
    world.a.fill(0, &message);
    world.b.recv(9, &[world.b.sge(0x9000, 64)]);
    let op = SendOp::WriteWithImm { remote_va: BASE, rkey: world.b.mr.rkey, immediate: 5 };
    world.a.send(1, op, &[world.a.sge(0, 2500)]);
    world.pump();
    assert_eq!(outcome(&world.a.sent()), [(1, Success)]);
    let [received] = world.b.received()[..] else { panic!("one completion") };
    assert_eq!((received.wr_id, received.opcode), (9, WcOpcode::RecvRdmaWithImm));
    assert_eq!((received.byte_len, received.immediate), (2500, Some(5)));
    assert_eq!(world.b.bytes(0, 2500), message);
    assert_eq!(world.b.bytes(0x9000, 64), [0; 64]);
}

#[test]
fn s_49_atomics_return_the_value_before() {
    let mut world = World::new();
    world.b.fill(64, &40u64.to_le_bytes());
    let (remote_va, rkey) = (BASE + 64, world.b.mr.rkey);
    world.a.send(1, SendOp::FetchAdd { remote_va, rkey, add: 2 }, &[world.a.sge(0, 8)]);
    let swap = SendOp::CompareSwap { remote_va, rkey, compare: 42, swap: 7 };
    world.a.send(2, swap, &[world.a.sge(8, 8)]);
    world.pump();
    assert_eq!(outcome(&world.a.sent()), [(1, Success), (2, Success)]);
    assert_eq!(world.a.bytes(0, 16), [40u64.to_le_bytes(), 42u64.to_le_bytes()].concat());
    assert_eq!(world.b.bytes(64, 8), 7u64.to_le_bytes());
}

#[test]
fn s_64_a_key_that_was_invalidated_opens_nothing() {
    let mut world = World::new();
    let window = world.b.nic.reg_mr(world.b.pd, BASE, 4096, AccessFlags::ALL).unwrap();
    world.b.recv(1, &[world.b.sge(0x9000, 64)]);
    world.a.send(1, SendOp::SendWithInv { rkey: window.rkey }, &[world.a.sge(0, 16)]);
    world.pump();
    let [received] = world.b.received()[..] else { panic!("one completion") };
    assert_eq!((received.status, received.invalidated), (Success, Some(window.rkey)));
    let write = SendOp::Write { remote_va: BASE, rkey: window.rkey };
    world.a.send(2, write, &[world.a.sge(0, 16)]);
    world.pump();
    assert_eq!(outcome(&world.a.sent()), [(1, Success), (2, Status::RemoteAccess)]);
    let event = AsyncEvent::QpAccessError { qpn: world.b.qpn, reason: Reason::KeyUnknown };
    assert_eq!(world.b.nic.get_async_event(), Some(event));
    assert_eq!(world.b.nic.get_async_event(), None);
}

#[test]
fn s_34_a_send_without_receive_waits_and_recovers() {
    let connection = Connection { rnr_retry: 1, min_rnr_timer: 1, ..Connection::default() };
    let mut world = World::with(QpInit::default(), 64, connection);
    world.a.send(1, SendOp::Send, &[world.a.sge(0, 10)]);
    world.a.send(2, SendOp::Send, &[world.a.sge(0, 2000)]);
    let start = world.now;
    // Exhausted: one retry is allowed, and nobody posts.
    world.pump();
    assert_eq!(world.now, start.after(rnr_timer_ns(1)));
    assert_eq!(outcome(&world.a.sent()), [(1, Status::RnrRetryExceeded), (2, Flushed)]);

    for side in [&mut world.a, &mut world.b] {
        side.nic.set_state(side.qpn, State::Reset).unwrap();
    }
    world.connect(Connection { rnr_retry: 7, ..connection });
    world.a.send(3, SendOp::Send, &[world.a.sge(0, 2000)]);
    let mut room = [0; 4096];
    let mut step = |world: &mut World| {
        let room = &mut softrnic_engine::Room { bytes: &mut room, segments: 1, source_port: None };
        let train = world.a.nic.poll_transmit(world.now, room).unwrap();
        world.b.nic.handle_frame(world.now, &room.bytes[..train.len], Default::default());
    };
    step(&mut world);
    world.b.recv(8, &[world.b.sge(0, 2000)]);
    world.pump();
    assert_eq!(outcome(&world.a.sent()), [(3, Success)]);
    assert_eq!(outcome(&world.b.received()), [(8, Success)]);
    let counters = world.a.nic.engine.qp(world.a.qpn).unwrap().counters();
    assert_eq!(counters[Counter::RnrNakReceived], 3);
}

#[test]
fn s_45_a_send_larger_than_the_buffer_fails_both_and_spares_the_guard_bytes() {
    let mut world = World::new();
    world.a.fill(0, &[0xAA; 2048]);
    world.b.recv(1, &[world.b.sge(0, 1000), world.b.sge(0x1000, 500)]);
    world.b.recv(2, &[world.b.sge(0x2000, 64)]);
    world.a.send(1, SendOp::Send, &[world.a.sge(0, 2048)]);
    world.a.send(2, SendOp::Send, &[world.a.sge(0, 1)]);
    world.pump();
    let sent = outcome(&world.a.sent());
    assert_eq!(sent, [(1, Status::RemoteInvalidRequest), (2, Flushed)]);
    let received = world.b.received();
    assert_eq!(outcome(&received), [(1, Status::LocalLength), (2, Flushed)]);
    assert_eq!(received[0].reason, Some(Reason::ReceiveTooSmall));
    assert_eq!(world.b.bytes(1000, 64), [0; 64]);
    assert_eq!(world.b.bytes(0x1000 + 500, 64), [0; 64]);
    // The receive told of it, so no event does.
    assert_eq!(world.b.nic.get_async_event(), None);
}

#[test]
fn s_46_remote_access_errors_end_in_status_10_and_flush_in_order() {
    let read_only = AccessFlags { remote_read: true, ..AccessFlags::LOCAL };
    for (key, va, reason) in [
        (0, 0, Reason::KeyUnknown),
        (1, BASE, Reason::ProtectionDomain),
        (2, BASE + 1, Reason::AddressRange),
        (2, u64::MAX - 2, Reason::AddressRange),
        (3, BASE, Reason::AccessRights),
    ] {
        let mut world = World::new();
        let other = world.b.nic.alloc_pd().unwrap();
        let foreign = world.b.nic.reg_mr(other, BASE, 64, AccessFlags::ALL).unwrap().rkey;
        let small = world.b.nic.reg_mr(world.b.pd, BASE, 64, AccessFlags::ALL).unwrap().rkey;
        let closed = world.b.nic.reg_mr(world.b.pd, BASE, 64, read_only).unwrap().rkey;
        let rkey = [RKey(0x777), foreign, small, closed][key];
        world.a.fill(0, &[0xAA; 64]);
        (0..3).for_each(|i| world.b.recv(i, &[world.b.sge(0x1000, 64)]));
        world.a.send(1, SendOp::Send, &[world.a.sge(0, 1)]);
        world.a.send(2, SendOp::Write { remote_va: va, rkey }, &[world.a.sge(0, 64)]);
        for wr_id in 3..6 {
            let request = SendRequest { wr_id, ..SendRequest::default() };
            world.a.nic.post_send(world.a.qpn, &request).unwrap();
        }
        world.pump();
        let sent = world.a.sent();
        let flushed = [(3, Flushed), (4, Flushed), (5, Flushed)];
        assert_eq!(outcome(&sent)[..2], [(1, Success), (2, Status::RemoteAccess)]);
        assert_eq!(outcome(&sent)[2..], flushed);
        assert_eq!(sent[1].status as u8, 10);
        let received = outcome(&world.b.received());
        assert_eq!(received, [(0, Success), (1, Flushed), (2, Flushed)]);
        let event = AsyncEvent::QpAccessError { qpn: world.b.qpn, reason };
        assert_eq!(world.b.nic.get_async_event(), Some(event));
        assert_eq!(world.b.bytes(0, 128), [0; 128]);
    }
}

#[test]
fn q_11_a_bad_local_key_fails_the_send_before_anything_leaves() {
    let mut world = World::new();
    let gone = world.a.nic.reg_mr(world.a.pd, BASE, 64, AccessFlags::ALL).unwrap();
    world.a.nic.dereg_mr(gone.lkey).unwrap();
    world.b.recv(1, &[world.b.sge(0, 64)]);
    let bad = Sge { address: BASE, length: 16, lkey: gone.lkey };
    world.a.send(1, SendOp::Send, &[world.a.sge(0, 16)]);
    world.a.send(2, SendOp::Send, &[world.a.sge(0, 16), bad]);
    world.a.send(3, SendOp::Send, &[]);
    world.pump();
    let sent = world.a.sent();
    assert_eq!(outcome(&sent), [(1, Success), (2, Status::LocalProtection), (3, Flushed)]);
    assert_eq!(sent[1].reason, Some(Reason::WorkKey));
    assert_eq!(outcome(&world.b.received()), [(1, Success)]);
}

#[test]
fn q_13_a_read_into_read_only_memory_fails() {
    let mut world = World::new();
    let fixed = world.a.nic.reg_mr(world.a.pd, BASE, 64, AccessFlags::default()).unwrap();
    let into = Sge { address: BASE, length: 16, lkey: fixed.lkey };
    world.b.fill(0, &[9; 16]);
    let read = SendOp::Read { remote_va: BASE, rkey: world.b.mr.rkey };
    world.a.send(1, read, &[into]);
    world.pump();
    let sent = world.a.sent();
    assert_eq!(outcome(&sent), [(1, Status::LocalProtection)]);
    assert_eq!(sent[0].reason, Some(Reason::AccessRights));
    assert_eq!(world.a.bytes(0, 16), [0; 16]);
}

#[test]
fn s_52_a_bad_key_in_a_receive_is_an_operational_error_for_the_peer() {
    let mut world = World::new();
    let bad = Sge { lkey: Default::default(), ..world.b.sge(0x100, 64) };
    world.b.recv(1, &[world.b.sge(0, 64), bad]);
    world.a.fill(0, &[1; 100]);
    world.a.send(1, SendOp::Send, &[world.a.sge(0, 100)]);
    world.pump();
    assert_eq!(outcome(&world.a.sent()), [(1, Status::RemoteOperation)]);
    assert_eq!(outcome(&world.b.received()), [(1, Status::LocalProtection)]);
    assert_eq!(world.b.bytes(0, 0x200), [0; 0x200]);
}

#[test]
fn s_55_a_full_completion_queue_fails_the_queue_pair_and_keeps_what_is_unread() {
    let mut world = World::with(QpInit::default(), 2, Connection::default());
    (0..4).for_each(|i| world.b.recv(i, &[]));
    for wr_id in 0..4 {
        let request = SendRequest { wr_id, ..SendRequest::default() };
        world.a.nic.post_send(world.a.qpn, &request).unwrap();
    }
    world.pump();
    assert_eq!(world.b.nic.state(world.b.qpn), Some(State::Error));
    assert_eq!(outcome(&world.b.received()), [(0, Success), (1, Success)]);
    assert_eq!(world.b.nic.get_async_event(), Some(AsyncEvent::CqError(world.b.recv_cq)));
    let fatal = AsyncEvent::QpFatal { qpn: world.b.qpn, reason: Reason::CompletionQueueFull };
    assert_eq!(world.b.nic.get_async_event(), Some(fatal));
    assert_eq!(world.b.nic.get_async_event(), None);
    // The third SEND was refused, so that nothing is acknowledged that nobody can see.
    assert_eq!(outcome(&world.a.sent()), [(2, Status::RemoteOperation), (3, Flushed)]);
}

#[test]
fn q_51_every_fourth_is_signaled() {
    let init = QpInit { sq_depth: 8, rq_depth: 8, ..QpInit::default() };
    let mut world = World::with(init, 64, Connection::default());
    for round in 0..20u64 {
        let requests: Vec<_> = (0..8)
            .map(|i| SendRequest {
                wr_id: round * 8 + i,
                payload: Payload::Inline(b"hello"),
                signaled: i % 4 == 3,
                ..SendRequest::default()
            })
            .collect();
        (0..8).for_each(|i| world.b.recv(i, &[world.b.sge(i * 8, 8)]));
        world.a.nic.post_sends(world.a.qpn, &requests).unwrap();
        world.pump();
        let sent = outcome(&world.a.sent());
        assert_eq!(sent, [(round * 8 + 3, Success), (round * 8 + 7, Success)]);
        assert_eq!(world.b.received().len(), 8);
    }
}

#[test]
fn s_66_a_solicited_event_wakes_a_queue_armed_for_it() {
    let mut world = World::new();
    (0..3).for_each(|i| world.b.recv(i, &[]));
    world.b.nic.req_notify_cq(world.b.recv_cq, true).unwrap();
    let woken = [false, true, true].map(|solicited| {
        let request = SendRequest { solicited, ..SendRequest::default() };
        world.a.nic.post_send(world.a.qpn, &request).unwrap();
        world.pump();
        world.b.nic.get_cq_event()
    });
    assert_eq!(woken, [None, Some(world.b.recv_cq), None]);
}

#[test]
fn a_peer_that_deregisters_in_mid_message_stops_it() {
    let mut world = World::new();
    let window = world.b.nic.reg_mr(world.b.pd, BASE, 8192, AccessFlags::ALL).unwrap();
    world.a.fill(0, &[0x55; 4096]);
    let write = SendOp::Write { remote_va: BASE, rkey: window.rkey };
    world.a.send(1, write, &[world.a.sge(0, 4096)]);
    let mut bytes = [0; 4096];
    for _ in 0..2 {
        let mut room = softrnic_engine::Room { bytes: &mut bytes, segments: 1, source_port: None };
        let train = world.a.nic.poll_transmit(world.now, &mut room).unwrap();
        world.b.nic.handle_frame(world.now, &bytes[..train.len], Default::default());
    }
    world.b.nic.dereg_mr(window.lkey).unwrap();
    world.pump();
    assert_eq!(outcome(&world.a.sent()), [(1, Status::RemoteAccess)]);
    assert_eq!(world.b.bytes(0, 4096), [[0x55; 2048], [0; 2048]].concat());
}

#[test]
fn m_08_reset_forgets_work_and_completions() {
    let mut world = World::new();
    world.b.recv(1, &[]);
    world.a.send(1, SendOp::Send, &[]);
    world.pump();
    world.a.send(2, SendOp::Send, &[]);
    for side in [&mut world.a, &mut world.b] {
        side.nic.set_state(side.qpn, State::Reset).unwrap();
    }
    world.pump();
    assert!(world.a.sent().is_empty() && world.b.received().is_empty());
    world.connect(Connection::default());
    world.b.recv(3, &[]);
    world.a.send(3, SendOp::Send, &[]);
    world.pump();
    assert_eq!(outcome(&world.a.sent()), [(3, Success)]);
    assert_eq!(outcome(&world.b.received()), [(3, Success)]);
}

#[test]
fn q_05_no_more_work_is_in_flight_than_send_queue_and_window_hold() {
    for (sq_depth, window_packets, in_flight) in
        [(100, 4, 4), (3, 1024, 3), (0, 1024, 0), (1 << 17, 1 << 20, u16::MAX)]
    {
        let policy = Policy { window_packets, ..Policy::default() };
        let init = QpInit { sq_depth, max_sge: 1, max_inline: 0, ..QpInit::default() };
        let world = World::with(init, 4, Connection { policy, ..Connection::default() });
        let qp = world.a.nic.engine.qp(world.a.qpn).unwrap();
        assert_eq!(qp.attributes().max_in_flight, in_flight);
    }
    let policy = Policy { window_packets: 4, ..Policy::default() };
    let mut world =
        World::with(QpInit::default(), 64, Connection { policy, ..Connection::default() });
    let write = SendOp::Write { remote_va: BASE, rkey: world.b.mr.rkey };
    (0..10).for_each(|i| world.a.send(i, write, &[world.a.sge(0, 64)]));
    let first = world.a.transmit_all(world.now);
    assert_eq!(first.len(), 4);
    let in_flight =
        |world: &World| world.a.nic.engine.qp(world.a.qpn).unwrap().requester().in_flight();
    assert_eq!(in_flight(&world), 4);
    for (_, frame) in &first {
        assert_eq!(world.b.take(world.now, frame).refused, None);
    }
    world.pump();
    assert_eq!(in_flight(&world), 0);
    assert_eq!(outcome(&world.a.sent()), (0..10).map(|i| (i, Success)).collect::<Vec<_>>());
}

#[test]
fn m_05_what_is_posted_in_sqd_leaves_after_it() {
    let mut world = World::new();
    (0..2).for_each(|i| world.b.recv(i, &[]));
    world.a.nic.set_state(world.a.qpn, State::Sqd).unwrap();
    let drained = AsyncEvent::SendQueueDrained(world.a.qpn);
    assert_eq!(world.a.nic.get_async_event(), Some(drained));
    world.a.send(1, SendOp::Send, &[]);
    world.pump();
    assert!(world.b.received().is_empty());
    world.a.nic.set_state(world.a.qpn, State::Rts).unwrap();
    world.pump();
    assert_eq!(outcome(&world.a.sent()), [(1, Success)]);
    assert_eq!(outcome(&world.b.received()), [(0, Success)]);
}
