//! Shared receive queues: order, limit, the last entry, and what errors leave behind.

use std::collections::VecDeque;

use proptest::prelude::*;
use softrnic_device::Device;
use softrnic_device::verbs::{
    AsyncEvent, BadRequest, Connection, Error, QpInit, RecvRequest, SendOp, Srq, SrqInit,
};
use softrnic_engine::{
    Completion, CompletionKind, Event, Face, Hold, Place, Qpn, Reason, State, Status,
};

use crate::world::{BASE, Side, World, outcome};

use Status::{Flushed, Success};

/// Two pairs of queue pairs; those of `b` share a receive queue.
struct Shared {
    world: World,
    srq: Srq,
    /// Senders and receivers.
    a: [Qpn; 2],
    b: [Qpn; 2],
}

impl Shared {
    fn new() -> Self {
        let mut world = World::new();
        let init = SrqInit { pd: world.b.pd, depth: 8, max_sge: 2 };
        let srq = world.b.nic.create_srq(&init).unwrap();
        let shared = QpInit { srq: Some(srq), ..QpInit::default() };
        let a = [0, 1].map(|_| world.a.another(QpInit::default()));
        let b = [0, 1].map(|_| world.b.another(shared));
        world.join(a[0], b[0], Connection::default());
        world.join(a[1], b[1], Connection::default());
        Self { world, srq, a, b }
    }

    fn post(&mut self, wr_ids: core::ops::Range<u64>) {
        for wr_id in wr_ids {
            let sges = [self.world.b.sge(0x1000 * (wr_id % 16), 0x1000)];
            self.world.b.nic.post_srq_recv(self.srq, &RecvRequest { wr_id, sges: &sges }).unwrap();
        }
    }

    /// Sends `length` bytes from one of the senders.
    fn send(&mut self, which: usize, length: u32) {
        let side = &mut self.world.a;
        let default = core::mem::replace(&mut side.qpn, self.a[which]);
        side.send(which as u64, SendOp::Send, &[side.sge(0, length)]);
        side.qpn = default;
    }

    /// Carries the next frame to `b`.
    fn step(&mut self) {
        let (_, frame) = self.world.a.transmit(self.world.now).unwrap();
        assert_eq!(self.world.b.take(self.world.now, &frame).refused, None);
    }

    /// `wr_id` and queue pair of what `b` received.
    fn received(&mut self) -> Vec<(u64, Qpn)> {
        self.world.b.received().iter().map(|wc| (wc.wr_id, wc.qpn)).collect()
    }

    fn events(&mut self) -> Vec<AsyncEvent> {
        core::iter::from_fn(|| self.world.b.nic.get_async_event()).collect()
    }
}

#[test]
fn s_68_an_entry_is_taken_by_the_first_packet_of_whoever_needs_it() {
    let mut shared = Shared::new();
    shared.post(0..3);
    let [first, second] = shared.b;
    shared.world.a.fill(0, &[7; 2000]);
    // The first takes entry 0 and is slow; the second takes entry 1 and ends before.
    shared.send(0, 2000);
    shared.step();
    shared.send(1, 10);
    // Queue pairs take turns: the rest of the long message may come first, so hold it back.
    let frames = shared.world.a.transmit_all(shared.world.now);
    let (long, short): (Vec<_>, Vec<_>) =
        frames.into_iter().partition(|(train, _)| train.qpn == shared.a[0]);
    for (_, frame) in short.iter().chain(&long) {
        assert_eq!(shared.world.b.take(shared.world.now, frame).refused, None);
    }
    shared.world.pump();
    assert_eq!(shared.received(), [(1, second), (0, first)]);
    assert_eq!(shared.world.b.bytes(0, 2001), [vec![7; 2000], vec![0]].concat());
    assert_eq!(shared.world.b.bytes(0x1000, 11), [vec![7; 10], vec![0]].concat());
    let mut sent = outcome(&shared.world.a.sent());
    sent.sort_by_key(|(wr_id, _)| *wr_id);
    assert_eq!(sent, [(0, Success), (1, Success)]);
    // Places that ended out of order are used again.
    for round in 0..5 {
        shared.post(3 + round * 7..10 + round * 7);
        (0..7).for_each(|i| shared.send(i % 2, 1));
        shared.world.pump();
        let got = shared.received();
        assert_eq!(got[0].0, 2 + round * 7);
        assert_eq!(got.len(), 7);
    }
}

#[test]
fn s_68_the_limit_event_comes_once_and_disarms() {
    let mut shared = Shared::new();
    shared.post(0..5);
    shared.world.b.nic.set_srq_limit(shared.srq, 3).unwrap();
    let mut left_and_events = Vec::new();
    for left in (0..5).rev() {
        shared.send(left % 2, 1);
        shared.world.pump();
        left_and_events.push((left, shared.events().len()));
        shared.received();
    }
    assert_eq!(left_and_events, [(4, 0), (3, 0), (2, 1), (1, 0), (0, 0)]);
    assert_eq!(shared.world.b.nic.srq_limit(shared.srq), Some(0));
    shared.post(5..7);
    shared.world.b.nic.set_srq_limit(shared.srq, 2).unwrap();
    shared.send(0, 1);
    shared.world.pump();
    assert_eq!(shared.events(), [AsyncEvent::SrqLimitReached(shared.srq)]);
}

#[test]
fn s_68_an_empty_shared_queue_is_receiver_not_ready_until_something_is_posted() {
    let mut shared = Shared::new();
    shared.send(0, 100);
    shared.send(1, 100);
    let now = shared.world.now;
    for (_, frame) in shared.world.a.transmit_all(now) {
        let verdict = shared.world.b.take(now, &frame);
        assert_eq!(verdict.refused, Some(Reason::ReceiverNotReady));
    }
    shared.post(0..2);
    shared.world.pump();
    let mut got = shared.received();
    got.sort_unstable();
    assert_eq!(got.iter().map(|(wr_id, _)| *wr_id).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn m_07_an_error_flushes_only_what_the_queue_pair_took() {
    let mut shared = Shared::new();
    let [failing, other] = shared.b;
    shared.post(0..3);
    shared.send(0, 2000);
    shared.step();
    shared.world.b.nic.set_state(failing, State::Error).unwrap();
    assert_eq!(outcome(&shared.world.b.received()), [(0, Flushed)]);
    assert_eq!(shared.events(), [AsyncEvent::LastWqeReached(failing)]);
    // Error again is no news, and posting to a shared queue goes on.
    shared.world.b.nic.set_state(failing, State::Error).unwrap();
    assert!(shared.events().is_empty());
    shared.send(1, 10);
    shared.world.pump();
    assert_eq!(shared.received(), [(1, other)]);
    assert_eq!(shared.events(), []);
}

#[test]
fn s_68_a_failed_receive_is_reported_before_the_last_wqe_event() {
    let mut shared = Shared::new();
    let failing = shared.b[0];
    shared.post(0..2);
    shared.send(0, 0x1001);
    shared.world.pump();
    assert_eq!(outcome(&shared.world.b.received()), [(0, Status::LocalLength)]);
    assert_eq!(shared.events(), [AsyncEvent::LastWqeReached(failing)]);
    assert_eq!(outcome(&shared.world.a.sent()), [(0, Status::RemoteInvalidRequest)]);
}

#[test]
fn m_08_reset_and_destroy_give_back_what_was_taken_in_silence() {
    for destroy in [false, true] {
        let mut shared = Shared::new();
        shared.post(0..8);
        shared.send(0, 2000);
        shared.step();
        let q = shared.b[0];
        if destroy {
            shared.world.b.nic.destroy_qp(q).unwrap();
        } else {
            shared.world.b.nic.set_state(q, State::Reset).unwrap();
        }
        assert!(shared.received().is_empty() && shared.events().is_empty());
        // One place is free again, and only one.
        let receive = RecvRequest { wr_id: 8, sges: &[] };
        assert_eq!(shared.world.b.nic.post_srq_recv(shared.srq, &receive), Ok(()));
        let full = Error::SrqFull { srq: shared.srq, depth: 8 };
        assert_eq!(shared.world.b.nic.post_srq_recv(shared.srq, &receive), Err(full));
    }
}

#[test]
fn s_17_a_shared_queue_is_not_counted_for_one_queue_pair() {
    let mut shared = Shared::new();
    shared.post(0..8);
    shared.send(0, 1);
    shared.step();
    let (ack, _) = shared.world.b.transmit(shared.world.now).unwrap();
    assert_eq!(ack.syndrome, Some(31));
}

#[test]
fn keys_are_the_shared_queues_domains() {
    let mut world = World::new();
    let pd = world.b.nic.alloc_pd().unwrap();
    let all = softrnic_device::verbs::AccessFlags::LOCAL;
    let mr = world.b.nic.reg_mr(pd, BASE + 0x100, 64, all).unwrap();
    let srq = world.b.nic.create_srq(&SrqInit { pd, depth: 2, max_sge: 1 }).unwrap();
    let b = world.b.another(QpInit { srq: Some(srq), ..QpInit::default() });
    let a = world.a.qpn;
    world.a.nic.set_state(a, State::Reset).unwrap();
    world.join(a, b, Connection::default());
    let sge = softrnic_device::verbs::Sge { address: BASE + 0x100, length: 64, lkey: mr.lkey };
    world.b.nic.post_srq_recv(srq, &RecvRequest { wr_id: 1, sges: &[sge] }).unwrap();
    world.b.nic.post_srq_recv(srq, &RecvRequest { wr_id: 2, sges: &[world.b.sge(0, 64)] }).unwrap();
    world.a.send_bytes(1, a, b"domain");
    world.a.send_bytes(2, a, b"other domain");
    world.pump();
    let received = world.b.received();
    assert_eq!(outcome(&received), [(1, Success), (2, Status::LocalProtection)]);
    assert_eq!(received[1].reason, Some(Reason::ProtectionDomain));
    assert_eq!(world.b.bytes(0x100, 6), b"domain");
}

#[test]
fn what_a_shared_queue_refuses() {
    let mut side = Side::new(1, QpInit::default(), 8);
    let init = SrqInit { pd: side.pd, depth: 2, max_sge: 1 };
    let range =
        |given, min, max| Err(Error::OutOfRange { what: "work queue depth", given, min, max });
    let nic = &mut side.nic;
    assert_eq!(nic.create_srq(&SrqInit { depth: 0, ..init }), range(0, 1, 1 << 20));
    let huge = SrqInit { depth: 1 << 21, ..init };
    assert_eq!(nic.create_srq(&huge), range(1 << 21, 0, 1 << 20));
    let unknown = Err(Error::UnknownPd(Default::default()));
    assert_eq!(nic.create_srq(&SrqInit { pd: Default::default(), ..init }), unknown);
    let srq = nic.create_srq(&init).unwrap();
    let limit = Err(Error::OutOfRange { what: "srq_limit", given: 3, min: 0, max: 2 });
    assert_eq!(nic.set_srq_limit(srq, 3), limit);
    let q = side.another(QpInit { srq: Some(srq), ..QpInit::default() });
    side.nic.set_state(q, State::Init).unwrap();
    let receive = RecvRequest { wr_id: 1, sges: &[] };
    let nic = &mut side.nic;
    assert_eq!(nic.post_recv(q, &receive), Err(Error::ReceivesShared { qpn: q, srq }));
    let full = BadRequest { index: 2, error: Error::SrqFull { srq, depth: 2 } };
    assert_eq!(nic.post_srq_recvs(srq, &[receive; 3]), Err(full));
    assert_eq!(nic.destroy_srq(srq), Err(Error::SrqInUse { srq, users: 1 }));
    nic.destroy_qp(q).unwrap();
    nic.destroy_srq(srq).unwrap();
    let gone = Error::UnknownSrq(srq);
    assert_eq!(nic.post_srq_recv(srq, &receive), Err(gone));
    assert_eq!(nic.set_srq_limit(srq, 1), Err(gone));
    assert_eq!(nic.srq_limit(srq), None);
    assert_eq!(nic.destroy_srq(srq), Err(gone));
    let (pd, send_cq, recv_cq) = (side.pd, side.send_cq, side.recv_cq);
    let init = QpInit { pd, send_cq, recv_cq, srq: Some(srq), ..QpInit::default() };
    assert_eq!(nic.create_qp(&init), Err(gone));
    assert_eq!(side.counted(Reason::WorkQueueFull), 1);
}

/// What may happen to a shared receive queue; `usize` is a queue pair.
#[derive(Clone, Copy, Debug)]
enum Step {
    Post,
    Take(usize),
    /// The oldest entry that a queue pair holds ends.
    Finish(usize),
    Fail(usize),
    Arm(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Post),
        4 => (0..2usize).prop_map(Step::Take),
        3 => (0..2usize).prop_map(Step::Finish),
        1 => (0..2usize).prop_map(Step::Fail),
        1 => (0..=8u32).prop_map(Step::Arm),
    ];
    prop::collection::vec(step, 0..120)
}

fn arrived(place: Place) -> Completion {
    let kind = CompletionKind::Receive {
        place: Some(place),
        length: 0,
        by_write: false,
        immediate: None,
        invalidated: None,
        solicited: false,
        source_qpn: None,
    };
    Completion { kind, status: Success, reason: None }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Two queue pairs against a model: first in, first taken; each entry ends once, with whoever
    /// took it; a place is free again when its entry has ended; one event for each limit.
    #[test]
    fn s_68_any_interleaving_is_that_of_a_queue(steps in steps()) {
        let mut shared = Shared::new();
        let (srq, qs) = (shared.srq, shared.b);
        let side = &mut shared.world.b;
        let (mut next, mut limit) = (0, 0);
        let mut posted = VecDeque::new();
        let mut taken: [VecDeque<(u64, Place)>; 2] = Default::default();
        for step in steps {
            let (mut completed, mut events) = (Vec::new(), Vec::new());
            let mut view = side.nic.device.view(&mut side.nic.memory);
            match step {
                Step::Post => {
                    let full = posted.len() + taken[0].len() + taken[1].len() == 8;
                    let request = RecvRequest { wr_id: next, sges: &[] };
                    let result = side.nic.post_srq_recv(srq, &request);
                    prop_assert_eq!(result.is_err(), full);
                    if !full {
                        posted.push_back(next);
                    }
                    next += 1;
                }
                Step::Take(i) => match (view.receive(qs[i]), posted.pop_front()) {
                    (Ok(place), Some(wr_id)) => {
                        taken[i].push_back((wr_id, place));
                        if posted.len() < limit as usize {
                            limit = 0;
                            events.push(AsyncEvent::SrqLimitReached(srq));
                        }
                    }
                    (result, model) => prop_assert_eq!((result, model), (Err(Hold::Stall), None)),
                },
                Step::Finish(i) => {
                    if let Some((wr_id, place)) = taken[i].pop_front() {
                        prop_assert_eq!(view.scatter(qs[1 - i], place, 0, &[]),
                            Err(Hold::Fault(Reason::AccessRights)), "not its place");
                        prop_assert_eq!(view.complete(qs[1 - i], arrived(place)), Ok(()));
                        prop_assert_eq!(view.complete(qs[i], arrived(place)), Ok(()));
                        completed.push((wr_id, qs[i], Success));
                    }
                }
                Step::Fail(i) => {
                    let reason = Reason::QpFatal;
                    view.event(Event::QpError { qpn: qs[i], reason, by_peer: false });
                    completed.extend(taken[i].drain(..).map(|(wr_id, _)| (wr_id, qs[i], Flushed)));
                    events.push(AsyncEvent::LastWqeReached(qs[i]));
                }
                Step::Arm(to) => {
                    limit = to;
                    side.nic.set_srq_limit(srq, to).unwrap();
                }
            }
            let mut got: Vec<_> =
                side.received().iter().map(|wc| (wc.wr_id, wc.qpn, wc.status)).collect();
            got.sort_by_key(|(wr_id, ..)| *wr_id);
            prop_assert_eq!(got, completed);
            let told: Vec<_> = core::iter::from_fn(|| side.nic.get_async_event()).collect();
            prop_assert_eq!(told, events);
        }
    }
}
