//! End-to-end credits between two queue pairs: what is told, and what is obeyed.

use softrnic_device::verbs::{Connection, QpInit, SendOp, SrqInit};
use softrnic_engine::{Counter, Counters, Policy, Reason, Status, Train};

use crate::world::{BASE, World, outcome};

use Status::Success;

fn counters(world: &World) -> &Counters {
    world.a.nic.engine.qp(world.a.qpn).unwrap().counters()
}

/// What leaves `a` now; it arrives at `b`.
fn burst(world: &mut World) -> Vec<Train> {
    let frames = world.a.transmit_all(world.now);
    frames.iter().for_each(|(_, frame)| {
        world.b.take(world.now, frame);
    });
    frames.into_iter().map(|(train, _)| train).collect()
}

/// What leaves `b` now; it arrives at `a`. Gives the syndromes.
fn answers(world: &mut World) -> Vec<Option<u8>> {
    let frames = world.b.transmit_all(world.now);
    frames.iter().for_each(|(_, frame)| {
        world.a.take(world.now, frame);
    });
    frames.into_iter().map(|(train, _)| train.syndrome).collect()
}

#[test]
fn s_17_acknowledgements_tell_the_largest_code_not_above_the_free_receives() {
    // Receives posted, of which one message takes one, and the code of what is left.
    for (posted, code) in [(1, 0), (2, 1), (6, 4), (8, 5), (9, 6), (12, 6), (13, 7), (128, 13)] {
        let mut world = World::new();
        (0..posted).for_each(|i| world.b.recv(i, &[]));
        world.a.send(1, SendOp::Send, &[]);
        burst(&mut world);
        assert_eq!(answers(&mut world), [Some(code)], "{posted} posted");
    }
}

#[test]
fn s_17_read_responses_tell_it_too_and_without_credits_it_is_31() {
    for (end_to_end_credits, code) in [(true, 5), (false, 31)] {
        let policy = Policy { end_to_end_credits, ..Policy::default() };
        let mut world =
            World::with(QpInit::default(), 64, Connection { policy, ..Connection::default() });
        (0..7).for_each(|i| world.b.recv(i, &[]));
        let read = SendOp::Read { remote_va: BASE, rkey: world.b.mr.rkey };
        world.a.send(1, read, &[world.a.sge(0, 8)]);
        burst(&mut world);
        assert_eq!(answers(&mut world), [Some(code)]);
    }
}

/// T-37.
#[test]
fn q_09_with_code_0_one_probe_leaves_at_a_time_and_code_4_lets_four_more() {
    let mut world = World::new();
    world.b.recv(0, &[]);
    (0..12).for_each(|i| world.a.send(i, SendOp::Send, &[]));
    // Nothing is known yet: one message, as a probe that asks for an answer.
    assert_eq!(burst(&mut world).len(), 1);
    assert_eq!(answers(&mut world), [Some(0)]);
    // Code 0: one probe more, which finds four buffers beside its own.
    (1..6).for_each(|i| world.b.recv(i, &[]));
    assert_eq!(burst(&mut world).len(), 1);
    assert_eq!(answers(&mut world), [Some(4)]);
    // Code 4: four messages with buffers and one probe beyond.
    let sent = burst(&mut world);
    assert_eq!(sent.len(), 5);
    let told = answers(&mut world);
    let rnr_nak = told.iter().flatten().filter(|&&syndrome| syndrome >> 5 == 1).count();
    assert_eq!(rnr_nak, 1, "{told:x?}");
    (6..12).for_each(|i| world.b.recv(i, &[]));
    world.pump();
    let all: Vec<_> = (0..12).map(|i| (i, Success)).collect();
    assert_eq!(outcome(&world.a.sent()), all);
    assert_eq!(outcome(&world.b.received()), all);
    assert_eq!(counters(&world)[Counter::RnrNakReceived], 1);
}

#[test]
fn q_09_what_takes_no_receive_needs_no_credit() {
    let mut world = World::new();
    let write = SendOp::Write { remote_va: BASE, rkey: world.b.mr.rkey };
    (0..6).for_each(|i| world.a.send(i, write, &[world.a.sge(0, 8)]));
    assert_eq!(burst(&mut world).len(), 6);
    // Each raised the limit by one, so that a probe may follow, but no second one.
    (6..8).for_each(|i| world.a.send(i, SendOp::Send, &[]));
    assert_eq!(burst(&mut world).len(), 1);
    (0..2).for_each(|i| world.b.recv(i, &[]));
    world.pump();
    assert_eq!(world.a.sent().len(), 8);
}

#[test]
fn q_09_code_31_switches_limits_off_for_good() {
    let mut world = World::new();
    let srq = world.b.nic.create_srq(&SrqInit { pd: world.b.pd, depth: 64, max_sge: 1 }).unwrap();
    let b = world.b.another(QpInit { srq: Some(srq), ..QpInit::default() });
    let a = world.a.another(QpInit::default());
    world.join(a, b, Connection::default());
    for wr_id in 0..12 {
        let request = softrnic_device::verbs::RecvRequest { wr_id, sges: &[] };
        world.b.nic.post_srq_recv(srq, &request).unwrap();
        world.a.send_bytes(wr_id, a, b"");
    }
    assert_eq!(burst(&mut world).len(), 1);
    assert_eq!(answers(&mut world), [Some(31)]);
    assert_eq!(burst(&mut world).len(), 11);
    world.pump();
    assert_eq!(world.b.received().len(), 12);
}

#[test]
fn q_09_without_credits_nothing_waits() {
    let policy = Policy { end_to_end_credits: false, ..Policy::default() };
    let mut world =
        World::with(QpInit::default(), 64, Connection { policy, ..Connection::default() });
    (0..12).for_each(|i| world.a.send(i, SendOp::Send, &[]));
    assert_eq!(burst(&mut world).len(), 12);
    assert_eq!(world.b.counted(Reason::ReceiverNotReady), 1);
}
