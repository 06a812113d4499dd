//! Queue pairs driven attribute by attribute, as libibverbs programs do.

use softrnic_device::verbs::{AsyncEvent, Error, QpInit, SendOp};
use softrnic_engine::{
    AttributeMask as A, Modify, ModifyError, Nanos, Path, Psn, QpType, Qpn, Reason, RemoteAccess,
    State, Status, Transition,
};

use crate::world::{BASE, Side, World, outcome};

const RTR: A = A::of([
    A::STATE,
    A::AV,
    A::PATH_MTU,
    A::DEST_QPN,
    A::RQ_PSN,
    A::MAX_DEST_RD_ATOMIC,
    A::MIN_RNR_TIMER,
]);
const RTS: A =
    A::of([A::STATE, A::SQ_PSN, A::TIMEOUT, A::RETRY_CNT, A::RNR_RETRY, A::MAX_RD_ATOMIC]);

/// What a program fills in once; the mask says what counts at each step.
fn attributes(far: &Side) -> Modify {
    let port = far.nic.engine.port();
    Modify {
        access_flags: RemoteAccess { read: true, write: true, atomic: true },
        av: Path { dest_mac: port.mac, dest_ip: port.ipv4.into(), ..Path::default() },
        dest_qpn: far.qpn.get(),
        rq_psn: 0x1234,
        sq_psn: 0x1234,
        ..Modify::default()
    }
}

fn up(near: &mut Side, base: Modify) {
    let init = A::of([A::STATE, A::PKEY_INDEX, A::PORT, A::ACCESS_FLAGS]);
    for (state, set) in [(State::Init, init), (State::Rtr, RTR), (State::Rts, RTS)] {
        near.nic.modify_qp(near.qpn, &Modify { state, set, ..base }).unwrap();
    }
}

fn world() -> World {
    let (mut a, mut b) = (Side::new(1, QpInit::default(), 64), Side::new(2, QpInit::default(), 64));
    let (to_a, to_b) = (attributes(&a), attributes(&b));
    up(&mut a, to_b);
    up(&mut b, to_a);
    World { a, b, now: Nanos(0) }
}

fn go(side: &mut Side, state: State) -> Result<(), Error> {
    side.nic.modify_qp(side.qpn, &Modify { set: A::STATE, state, ..Modify::default() })
}

#[test]
fn m_12_three_modifications_connect_and_query_tells_them() {
    let mut world = world();
    world.b.recv(1, &[world.b.sge(0, 64)]);
    world.a.fill(0, b"by the table");
    world.a.send(2, SendOp::Send, &[world.a.sge(0, 12)]);
    world.pump();
    assert_eq!(outcome(&world.a.sent()), [(2, Status::Success)]);
    assert_eq!(world.b.bytes(0, 12), b"by the table");
    let told = world.a.nic.query_qp(world.a.qpn).unwrap();
    assert_eq!((told.state, told.sq_psn), (State::Rts, Psn::new(0x1235)));
    assert_eq!(told.attributes.dest_qpn, world.b.qpn);
    assert_eq!(told.attributes.max_in_flight, 128, "the send queue's depth");
    let unknown = Qpn::new(0x4321);
    assert_eq!(world.a.nic.query_qp(unknown), Err(Error::UnknownQp(unknown)));
}

#[test]
fn m_01_a_refusal_names_the_attribute_and_is_counted() {
    let mut side = Side::new(1, QpInit::default(), 64);
    let set = A::of([A::STATE, A::PKEY_INDEX, A::ACCESS_FLAGS]);
    let before = side.nic.query_qp(side.qpn).unwrap();
    let asked = Modify { state: State::Init, set, ..Modify::default() };
    let error = side.nic.modify_qp(side.qpn, &asked).unwrap_err();
    let step = Transition { qp_type: QpType::Rc, from: State::Reset, to: State::Init };
    assert_eq!(error, Error::Modify(ModifyError::Missing(step, A::PORT)));
    assert_eq!(error.to_string(), "RC RESET to INIT needs port");
    assert_eq!(side.nic.engine.refused()[Reason::VerbsAttribute as usize], 1);
    assert_eq!(side.nic.query_qp(side.qpn).unwrap(), before);
}

#[test]
fn m_07_error_flushes_both_queues_once_and_m_08_reset_forgets_them() {
    for (state, flushed) in [(State::Error, 3), (State::Reset, 0)] {
        let mut world = world();
        for wr_id in 0..3 {
            world.a.recv(wr_id, &[]);
            world.a.send(10 + wr_id, SendOp::Send, &[world.a.sge(0, 4096)]);
        }
        // The first packets are under way, and nobody answers them.
        let mut bytes = [0; 4096];
        let mut room = softrnic_engine::Room { bytes: &mut bytes, segments: 1, source_port: None };
        assert!(world.a.nic.poll_transmit(world.now, &mut room).is_some());
        go(&mut world.a, state).unwrap();
        world.pump();
        let flush = |first| (first..first + flushed).map(|id| (id, Status::Flushed)).collect();
        let (sent, received): (Vec<_>, Vec<_>) = (flush(10), flush(0));
        assert_eq!(outcome(&world.a.sent()), sent, "{state}");
        assert_eq!(outcome(&world.a.received()), received, "{state}");
        // Back to life, with PSNs far from the old ones (rule M-09).
        for end in [&mut world.a, &mut world.b] {
            go(end, State::Reset).unwrap();
        }
        let far = |side: &Side| Modify { rq_psn: 0x90_0000, sq_psn: 0x90_0000, ..attributes(side) };
        let (to_a, to_b) = (far(&world.a), far(&world.b));
        up(&mut world.a, to_b);
        up(&mut world.b, to_a);
        world.b.recv(20, &[]);
        world.a.send(21, SendOp::Send, &[]);
        world.pump();
        assert_eq!(outcome(&world.a.sent()), [(21, Status::Success)]);
        assert_eq!(outcome(&world.b.received()), [(20, Status::Success)]);
    }
}

#[test]
fn m_05_sends_wait_in_sqd_and_the_event_comes_if_asked() {
    for asked in [true, false] {
        let mut world = world();
        let set = A::of([A::STATE, A::EN_SQD_ASYNC_NOTIFY]);
        let sqd =
            Modify { set, state: State::Sqd, en_sqd_async_notify: asked, ..Modify::default() };
        world.a.nic.modify_qp(world.a.qpn, &sqd).unwrap();
        let drained = asked.then_some(AsyncEvent::SendQueueDrained(world.a.qpn));
        assert_eq!(world.a.nic.get_async_event(), drained);
        let write = SendOp::Write { remote_va: BASE, rkey: world.b.mr.rkey };
        world.a.send(1, write, &[world.a.sge(64, 8)]);
        world.pump();
        assert!(world.a.sent().is_empty());
        go(&mut world.a, State::Rts).unwrap();
        world.pump();
        assert_eq!(outcome(&world.a.sent()), [(1, Status::Success)]);
    }
}
