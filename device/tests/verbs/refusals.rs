//! Calls that are refused: each names the thing, is counted under its reason, and changes nothing.

use softrnic_device::verbs::{
    AccessFlags, BadRequest, Connection, Error, LKey, Payload, QpInit, RecvRequest, SendOp,
    SendRequest, Sge,
};
use softrnic_engine::{Qpn, RKey, Reason, Service, State, Status};

use crate::world::{BASE, MEMORY_LEN, Side, World, outcome};

fn small() -> QpInit {
    QpInit { sq_depth: 3, rq_depth: 2, max_sge: 2, max_inline: 8, ..QpInit::default() }
}

fn counted(side: &Side, reason: Reason) -> u64 {
    side.nic.engine.refused()[reason as usize]
}

#[test]
fn a_list_is_posted_up_to_the_request_that_is_refused() {
    let mut side = World::with(small(), 64, Connection::default()).a;
    let q = side.qpn;
    let send = |op, payload| SendRequest { op, payload, ..SendRequest::default() };
    let sge = side.sge(0, 16);
    let (remote_va, rkey) = (BASE, RKey(1));
    let read = SendOp::Read { remote_va, rkey };
    let add = SendOp::FetchAdd { remote_va, rkey, add: 1 };
    let huge = Sge { length: 1 << 31, ..sge };
    let (three, one, two) = ([sge; 3], [sge], [huge, sge]);
    let good = send(SendOp::Send, Payload::Inline(b"12345678"));
    for (bad, error, reason) in [
        (
            send(SendOp::Send, Payload::Sges(&three)),
            Error::TooManySges { given: 3, max: 2 },
            Reason::WorkSges,
        ),
        (
            send(SendOp::Send, Payload::Inline(b"123456789")),
            Error::TooMuchInline { given: 9, max: 8 },
            Reason::WorkLength,
        ),
        (send(read, Payload::Inline(b"1")), Error::InlineNotAllowed, Reason::WorkLength),
        (
            send(add, Payload::Sges(&one)),
            Error::MessageLength { given: 16, max: 8 },
            Reason::WorkLength,
        ),
        (
            send(SendOp::Send, Payload::Sges(&two)),
            Error::MessageLength { given: (1 << 31) + 16, max: 1 << 31 },
            Reason::WorkLength,
        ),
    ] {
        let before = counted(&side, reason);
        let refused = side.nic.post_sends(q, &[good, bad, good]);
        assert_eq!(refused, Err(BadRequest { index: 1, error }));
        assert_eq!(counted(&side, reason), before + 1);
        side.nic.set_state(q, State::Reset).unwrap();
        side.nic.connect(q, &Connection::default()).unwrap();
    }
    let full = Error::QueueFull { qpn: q, depth: 3 };
    assert_eq!(side.nic.post_sends(q, &[good; 5]), Err(BadRequest { index: 3, error: full }));
    assert_eq!(
        full.to_string(),
        "a queue of queue pair 0x2 already holds its 3 entries; poll first"
    );

    let receive = RecvRequest { wr_id: 1, sges: &[] };
    let full = Error::QueueFull { qpn: q, depth: 2 };
    assert_eq!(side.nic.post_recvs(q, &[receive; 3]), Err(BadRequest { index: 2, error: full }));
    assert_eq!(counted(&side, Reason::WorkQueueFull), 2);
}

#[test]
fn m_03_states_that_take_work() {
    let mut side = Side::new(1, small(), 64);
    let q = side.qpn;
    let wrong = |state| Err(Error::WrongState { qpn: q, state });
    let (send, receive) = (SendRequest::default(), RecvRequest::default());
    assert_eq!(side.nic.post_send(q, &send), wrong(State::Reset));
    assert_eq!(side.nic.post_recv(q, &receive), wrong(State::Reset));
    side.nic.set_state(q, State::Init).unwrap();
    assert_eq!(side.nic.post_send(q, &send), wrong(State::Init));
    assert_eq!(side.nic.post_recv(q, &receive), Ok(()));
    assert_eq!(side.nic.set_state(q, State::Sqd), wrong(State::Init));
    side.nic.connect(q, &Connection::default()).unwrap();
    assert_eq!(side.nic.connect(q, &Connection::default()), wrong(State::Rts));
    side.nic.set_state(q, State::Error).unwrap();
    assert_eq!(outcome(&side.received()), [(0, Status::Flushed)]);
    assert_eq!(side.nic.post_send(q, &send), Ok(()));
    assert_eq!(side.nic.post_recv(q, &RecvRequest { wr_id: 5, sges: &[] }), Ok(()));
    assert_eq!(outcome(&side.sent()), [(0, Status::Flushed)]);
    assert_eq!(outcome(&side.received()), [(5, Status::Flushed)]);
    assert_eq!(side.nic.get_async_event(), None);
}

#[test]
fn objects_in_use_stay_and_stale_handles_find_nothing() {
    let mut side = Side::new(1, small(), 64);
    let (q, cq, pd) = (side.qpn, side.send_cq, side.pd);
    assert_eq!(side.nic.dealloc_pd(pd), Err(Error::PdInUse { pd, users: 2 }));
    assert_eq!(side.nic.destroy_cq(cq), Err(Error::CqInUse { cq, users: 1 }));
    side.nic.destroy_qp(q).unwrap();
    side.nic.dereg_mr(side.mr.lkey).unwrap();
    side.nic.destroy_cq(cq).unwrap();
    side.nic.dealloc_pd(pd).unwrap();
    assert_eq!(side.nic.destroy_qp(q), Err(Error::UnknownQp(q)));
    assert_eq!(side.nic.dereg_mr(side.mr.lkey), Err(Error::UnknownMr(side.mr.lkey)));
    assert_eq!(side.nic.destroy_cq(cq), Err(Error::UnknownCq(cq)));
    assert_eq!(side.nic.poll_cq(cq, &mut []), Err(Error::UnknownCq(cq)));
    assert_eq!(side.nic.req_notify_cq(cq, false), Err(Error::UnknownCq(cq)));
    assert_eq!(side.nic.dealloc_pd(pd), Err(Error::UnknownPd(pd)));
    let registered = side.nic.reg_mr(pd, BASE, 8, AccessFlags::ALL);
    assert_eq!(registered, Err(Error::UnknownPd(pd)));
    assert_eq!(side.nic.post_send(q, &SendRequest::default()), Err(Error::UnknownQp(q)));
    assert_eq!(counted(&side, Reason::VerbsHandle), 10);
    let created = side.nic.create_cq(1).unwrap();
    assert_ne!(created, cq);
}

#[test]
fn creation_refuses_what_it_cannot_hold_and_keeps_no_trace() {
    let mut side = Side::new(1, small(), 64);
    let (pd, cq) = (side.pd, side.recv_cq);
    let init = QpInit { pd, send_cq: cq, recv_cq: cq, ..small() };
    let range = |what, given, max| Err(Error::OutOfRange { what, given, min: 0, max });
    for (bad, refused) in [
        (QpInit { sq_depth: 1 << 21, ..init }, range("work queue depth", 1 << 21, 1 << 20)),
        (QpInit { rq_depth: u32::MAX, ..init }, range("work queue depth", 0xFFFF_FFFF, 1 << 20)),
        (QpInit { max_sge: 257, ..init }, range("max_sge", 257, 256)),
        (QpInit { max_inline: 4097, ..init }, range("max_inline", 4097, 4096)),
        (
            QpInit { service: Service::RawFrame, ..init },
            Err(Error::ServiceUnsupported(Service::RawFrame)),
        ),
        (QpInit { pd: Default::default(), ..init }, Err(Error::UnknownPd(Default::default()))),
        (QpInit { send_cq: Default::default(), ..init }, Err(Error::UnknownCq(Default::default()))),
    ] {
        assert_eq!(side.nic.create_qp(&bad), refused);
    }
    assert_eq!(side.nic.destroy_cq(cq), Err(Error::CqInUse { cq, users: 1 }));
    assert_eq!(side.nic.dealloc_pd(pd), Err(Error::PdInUse { pd, users: 2 }));
    let range = |given| {
        Err(Error::OutOfRange { what: "completion queue depth", given, min: 1, max: 1 << 22 })
    };
    assert_eq!(side.nic.create_cq(0), range(0));
    assert_eq!(side.nic.create_cq(u32::MAX), range(0xFFFF_FFFF));
    let outside = side.nic.reg_mr(pd, BASE, MEMORY_LEN as u64 + 1, AccessFlags::ALL);
    assert!(matches!(outside, Err(Error::NotMemory(_))));
    assert_eq!(side.nic.dereg_mr(LKey(0)), Err(Error::UnknownMr(LKey(0))));
    assert_eq!(side.nic.create_qp(&init), Ok(Qpn::new(3)));
}

#[test]
fn m_02_connection_codes_have_their_ranges() {
    let mut side = Side::new(1, small(), 64);
    let good = Connection::default();
    for (bad, what, given, max) in [
        (Connection { ack_timeout: 32, ..good }, "ack_timeout", 32, 31),
        (Connection { retry_count: 8, ..good }, "retry_count", 8, 7),
        (Connection { rnr_retry: 8, ..good }, "rnr_retry", 8, 7),
        (Connection { min_rnr_timer: 32, ..good }, "min_rnr_timer", 32, 31),
    ] {
        let refused = Err(Error::OutOfRange { what, given, min: 0, max });
        assert_eq!(side.nic.connect(side.qpn, &bad), refused);
        assert_eq!(side.nic.state(side.qpn), Some(State::Reset));
    }
    assert_eq!(side.nic.connect(Qpn::new(99), &good), Err(Error::UnknownQp(Qpn::new(99))));
}
