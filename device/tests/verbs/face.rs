//! What the engine asks of the face, without an engine.

use proptest::prelude::*;
use softrnic_device::Device;
use softrnic_device::verbs::{
    AccessFlags, AsyncEvent, Payload, QpInit, SendOp, SendRequest, Sge, View,
};
use softrnic_device::{Memory, Ram};
use softrnic_engine::{
    Access, Atomic, Completion, CompletionKind, Event, Face, Fetch, Hold, Place, RKey, Reason,
    Status, WorkOpcode,
};

use crate::world::{BASE, MEMORY_LEN, Side, World, outcome};

fn view(side: &mut Side) -> View<'_, Ram> {
    side.nic.device.view(&mut side.nic.memory)
}

fn done(index: u32, status: Status) -> Completion {
    let kind = CompletionKind::Work { index, opcode: Some(WorkOpcode::Send), length: 0 };
    Completion { kind, status, reason: None }
}

fn arrived(place: Place) -> Completion {
    let kind = CompletionKind::Receive {
        place: Some(place),
        length: 1,
        by_write: false,
        immediate: None,
        invalidated: None,
        solicited: false,
        source_qpn: None,
    };
    Completion { kind, status: Status::Success, reason: None }
}

#[test]
fn work_is_found_by_index_and_says_what_was_posted() {
    let mut side = World::new().a;
    let q = side.qpn;
    let (remote_va, rkey) = (0x1234, RKey(0x99));
    let op = SendOp::CompareSwap { remote_va, rkey, compare: 5, swap: 6 };
    side.send(7, op, &[side.sge(0, 8)]);
    let Fetch::Work(work) = view(&mut side).work(q, 0) else { panic!("posted") };
    assert_eq!(work.opcode, WorkOpcode::CompareSwap);
    assert_eq!((work.length, work.local.length), (8, 8));
    assert_eq!((work.remote_va, work.rkey), (remote_va, rkey));
    assert_eq!((work.compare, work.swap_or_add), (5, 6));
    assert_eq!(view(&mut side).work(q, 1), Fetch::Empty);
    assert_eq!(view(&mut side).complete(q, done(0, Status::Success)), Ok(()));
    assert_eq!(view(&mut side).work(q, 0), Fetch::Empty);
    assert_eq!(outcome(&side.sent()), [(7, Status::Success)]);
}

#[test]
fn receives_are_taken_in_order_and_flushed_once() {
    let mut side = World::new().a;
    let q = side.qpn;
    assert_eq!(view(&mut side).receive(q), Err(Hold::Stall));
    (0..4).for_each(|i| side.recv(i, &[side.sge(i * 64, 64)]));
    let first = view(&mut side).receive(q).unwrap();
    let second = view(&mut side).receive(q).unwrap();
    assert_eq!((first.length, second.length), (64, 64));
    assert_eq!(view(&mut side).complete(q, arrived(first)), Ok(()));
    let error = Event::QpError { qpn: q, reason: Reason::RetryExceeded, by_peer: false };
    view(&mut side).event(error);
    // The message in the second buffer ends after the flush: that must not count twice.
    assert_eq!(view(&mut side).complete(q, arrived(second)), Ok(()));
    assert_eq!(view(&mut side).receive(q), Err(Hold::Stall));
    use Status::{Flushed, Success};
    assert_eq!(outcome(&side.received()), [(0, Success), (1, Flushed), (2, Flushed), (3, Flushed)]);
}

#[test]
fn s_46_grant_asks_for_key_domain_rights_and_range() {
    let mut side = World::new().a;
    let q = side.qpn;
    let other = side.nic.alloc_pd().unwrap();
    let foreign = side.nic.reg_mr(other, BASE, 64, AccessFlags::ALL).unwrap();
    let closed = side.nic.reg_mr(side.pd, BASE, 64, AccessFlags::LOCAL).unwrap();
    let open = side.nic.reg_mr(side.pd, BASE + 8, 64, AccessFlags::ALL).unwrap();
    let mut ask = |key, va, length, want| view(&mut side).grant(q, key, va, length, want);
    for want in [Access::Read, Access::Write, Access::Atomic] {
        assert_eq!(ask(open.rkey, BASE + 8, 64, want).map(|place| place.length), Ok(64));
        assert_eq!(ask(open.rkey, BASE + 7, 64, want), Err(Reason::AddressRange));
        assert_eq!(ask(open.rkey, BASE + 9, 64, want), Err(Reason::AddressRange));
        assert_eq!(ask(open.rkey, u64::MAX - 7, 16, want), Err(Reason::AddressRange));
        assert_eq!(ask(foreign.rkey, BASE, 1, want), Err(Reason::ProtectionDomain));
        assert_eq!(ask(closed.rkey, BASE, 1, want), Err(Reason::AccessRights));
        assert_eq!(ask(RKey(open.rkey.0 ^ 1), BASE, 1, want), Err(Reason::KeyUnknown));
        assert_eq!(ask(RKey(0), BASE, 1, want), Err(Reason::KeyUnknown));
    }
}

#[test]
fn s_47_a_region_is_checked_again_at_each_access() {
    let mut side = World::new().a;
    let q = side.qpn;
    let mr = side.nic.reg_mr(side.pd, BASE, 64, AccessFlags::ALL).unwrap();
    let write = view(&mut side).grant(q, mr.rkey, BASE, 64, Access::Write).unwrap();
    assert_eq!(view(&mut side).scatter(q, write, 60, &[1; 4]), Ok(()));
    let beyond = Err(Hold::Fault(Reason::AddressRange));
    assert_eq!(view(&mut side).scatter(q, write, 61, &[2; 4]), beyond);
    assert_eq!(view(&mut side).gather(q, write, u32::MAX, &mut [0; 4]), beyond);
    assert_eq!(side.bytes(60, 8), [1, 1, 1, 1, 0, 0, 0, 0]);

    assert_eq!(view(&mut side).invalidate(q, mr.rkey), Ok(()));
    let gone = Err(Hold::Fault(Reason::KeyUnknown));
    assert_eq!(view(&mut side).scatter(q, write, 0, &[3; 4]), gone);
    assert_eq!(view(&mut side).gather(q, write, 0, &mut [0; 4]), gone);
    assert_eq!(view(&mut side).invalidate(q, mr.rkey), Err(Reason::KeyUnknown));

    side.nic.dereg_mr(mr.lkey).unwrap();
    let next = side.nic.reg_mr(side.pd, BASE, 64, AccessFlags::ALL).unwrap();
    assert_eq!((next.rkey.0 >> 8, next.rkey != mr.rkey), (mr.rkey.0 >> 8, true));
    assert_eq!(view(&mut side).scatter(q, write, 0, &[3; 4]), gone);
}

#[test]
fn s_49_atomics_are_little_endian_in_memory_and_wrap() {
    let mut side = World::new().a;
    let q = side.qpn;
    side.fill(8, &u64::MAX.to_le_bytes());
    let key = side.mr.rkey;
    let at = view(&mut side).grant(q, key, BASE + 8, 8, Access::Atomic).unwrap();
    let mut run = |operation| view(&mut side).atomic(q, at, operation);
    assert_eq!(run(Atomic::FetchAdd { add: 3 }), Ok(u64::MAX));
    assert_eq!(run(Atomic::CompareSwap { compare: 9, swap: 1 }), Ok(2));
    assert_eq!(run(Atomic::CompareSwap { compare: 2, swap: 0x0102 }), Ok(2));
    assert_eq!(side.bytes(0, 24), [[0; 8], [2, 1, 0, 0, 0, 0, 0, 0], [0; 8]].concat());
    let crooked = Place { base: BASE + 4, ..at };
    let fault = view(&mut side).atomic(q, crooked, Atomic::FetchAdd { add: 1 });
    assert_eq!(fault, Err(Hold::Fault(Reason::AddressAlignment)));
}

#[test]
fn q_11_local_keys_are_checked_when_used_and_nothing_is_written_before_a_fault() {
    let mut side = World::new().a;
    let q = side.qpn;
    let other = side.nic.alloc_pd().unwrap();
    let foreign = side.nic.reg_mr(other, BASE, 64, AccessFlags::ALL).unwrap().lkey;
    let read_only = side.nic.reg_mr(side.pd, BASE, 64, AccessFlags::default()).unwrap().lkey;
    let short = side.nic.reg_mr(side.pd, BASE, 64, AccessFlags::ALL).unwrap().lkey;
    let stale = side.nic.reg_mr(side.pd, BASE, 64, AccessFlags::ALL).unwrap().lkey;
    side.nic.dereg_mr(stale).unwrap();
    let good = side.sge(0x100, 16);
    let bad = |lkey, length| Sge { address: BASE, length, lkey };
    for (sge, reads, writes) in [
        (bad(foreign, 16), Err(Reason::ProtectionDomain), Err(Reason::ProtectionDomain)),
        (bad(stale, 16), Err(Reason::WorkKey), Err(Reason::WorkKey)),
        // Only 16 bytes are used, but the element promises 65.
        (bad(short, 65), Err(Reason::AddressRange), Err(Reason::AddressRange)),
        (bad(read_only, 16), Ok(()), Err(Reason::AccessRights)),
        (bad(stale, 0), Ok(()), Ok(())),
    ] {
        let sges = [good, sge, good];
        let len = (32 + sge.length).min(32) as usize;
        side.send(0, SendOp::Send, &sges);
        let Fetch::Work(work) = view(&mut side).work(q, 0) else { panic!("posted") };
        let gathered = view(&mut side).gather(q, work.local, 0, &mut vec![0; len]);
        assert_eq!(gathered, reads.map_err(Hold::Fault));
        let before = side.bytes(0, 0x200);
        let scattered = view(&mut side).scatter(q, work.local, 0, &vec![7; len]);
        assert_eq!(scattered, writes.map_err(Hold::Fault));
        assert_eq!(side.bytes(0, 0x200) == before, writes.is_err());
        side.fill(0, &[0; 0x200]);
        reconnect(&mut side);
    }
}

/// Empties the rings, so that indices start at 0 again.
fn reconnect(side: &mut Side) {
    side.nic.set_state(side.qpn, softrnic_engine::State::Reset).unwrap();
    side.nic.connect(side.qpn, &softrnic_device::verbs::Connection::default()).unwrap();
}

#[test]
fn q_51_unsignaled_success_is_silent_and_errors_never_are() {
    let init = QpInit { sq_depth: 2, ..QpInit::default() };
    let mut side = World::with(init, 64, softrnic_device::verbs::Connection::default()).a;
    let q = side.qpn;
    for index in 0..100 {
        let request = SendRequest { wr_id: index, ..SendRequest::default() };
        side.nic.post_send(q, &request).unwrap();
        let status = if index < 99 { Status::Success } else { Status::RetryExceeded };
        assert_eq!(view(&mut side).complete(q, done(index as u32, status)), Ok(()));
    }
    assert_eq!(outcome(&side.sent()), [(99, Status::RetryExceeded)]);
}

#[test]
fn s_55_an_overrun_is_refused_and_raises_one_event() {
    let mut side = World::with(QpInit::default(), 2, Default::default()).a;
    let q = side.qpn;
    (0..4).for_each(|i| side.send(i, SendOp::Send, &[]));
    let mut finish = |index| view(&mut side).complete(q, done(index, Status::Success));
    assert_eq!([finish(0), finish(1)], [Ok(()), Ok(())]);
    assert_eq!([finish(2), finish(3)], [Err(Reason::CompletionQueueFull); 2]);
    assert_eq!(side.nic.get_async_event(), Some(AsyncEvent::CqError(side.send_cq)));
    assert_eq!(side.nic.get_async_event(), None);
    assert_eq!(outcome(&side.sent()), [(0, Status::Success), (1, Status::Success)]);
}

/// Elements as (gap before, length): overlapping nothing, in ascending addresses, some empty.
fn elements() -> impl Strategy<Value = Vec<(u64, u32)>> {
    let length = prop_oneof![Just(0u32), 1..5u32, 1..2000u32];
    prop::collection::vec((0..50u64, length), 0..=8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// A list is the concatenation of its elements: any cut of the message is that slice of it.
    #[test]
    fn q_11_any_cut_of_a_list_is_a_slice_of_its_concatenation(
        elements in elements(),
        cuts in prop::collection::vec((0..12_000u32, 0..4096usize), 1..12),
    ) {
        let init = QpInit { max_sge: 8, ..QpInit::default() };
        let mut side = World::with(init, 64, Default::default()).a;
        let q = side.qpn;
        let noise: Vec<u8> = (0..MEMORY_LEN).map(|i| ((i * 31) >> 3) as u8).collect();
        side.fill(0, &noise);
        let mut at = 0;
        let mut addresses = Vec::new();
        let sges: Vec<Sge> = elements.iter().map(|&(gap, length)| {
            let sge = side.sge(at + gap, length);
            addresses.extend(at + gap..at + gap + u64::from(length));
            at += gap + u64::from(length);
            sge
        }).collect();
        side.send(0, SendOp::Send, &sges);
        side.recv(0, &sges);
        let Fetch::Work(work) = view(&mut side).work(q, 0) else { panic!("posted") };
        let buffer = view(&mut side).receive(q).unwrap();
        prop_assert_eq!((work.length as usize, buffer.length as usize), (addresses.len(), addresses.len()));
        let mut model = noise;
        for (round, (offset, len)) in cuts.into_iter().enumerate() {
            let mut got = vec![0xEE; len];
            let gathered = view(&mut side).gather(q, work.local, offset, &mut got);
            let new = vec![round as u8; len];
            let scattered = view(&mut side).scatter(q, buffer, offset, &new);
            let cut = addresses.get(offset as usize..offset as usize + len);
            match cut {
                Some(cut) => {
                    prop_assert_eq!((gathered, scattered), (Ok(()), Ok(())));
                    let want: Vec<u8> = cut.iter().map(|&a| model[a as usize]).collect();
                    prop_assert_eq!(got, want);
                    cut.iter().for_each(|&a| model[a as usize] = round as u8);
                }
                None => {
                    let fault = Err(Hold::Fault(Reason::AddressRange));
                    prop_assert_eq!((gathered, scattered), (fault, fault));
                }
            }
            prop_assert!(side.nic.memory.bytes() == &model[..]);
        }
    }
}

#[test]
fn inline_data_is_copied_when_posted() {
    let mut side = World::new().a;
    let q = side.qpn;
    let mut bytes = *b"inline bytes";
    let payload = Payload::Inline(&bytes);
    side.nic.post_send(q, &SendRequest { payload, ..SendRequest::default() }).unwrap();
    bytes.fill(0);
    let Fetch::Work(work) = view(&mut side).work(q, 0) else { panic!("posted") };
    let mut got = [0; 5];
    view(&mut side).gather(q, work.local, 7, &mut got).unwrap();
    assert_eq!(&got, b"bytes");
    let fault = Err(Hold::Fault(Reason::AddressRange));
    assert_eq!(view(&mut side).gather(q, work.local, 8, &mut got), fault);
}

#[test]
fn a_zero_based_region_is_addressed_from_0() {
    let mut side = World::new().a;
    let q = side.qpn;
    let mr = side.nic.reg_mr_iova(side.pd, BASE + 32, 16, 0, AccessFlags::ALL).unwrap();
    side.nic.memory.write(BASE + 32, b"sixteen bytes ok").unwrap();
    let sge = Sge { address: 8, length: 5, lkey: mr.lkey };
    side.recv(0, &[sge]);
    let place = view(&mut side).receive(q).unwrap();
    view(&mut side).scatter(q, place, 0, b"BYTES").unwrap();
    assert_eq!(side.bytes(32, 16), b"sixteen BYTES ok");
    let region = view(&mut side).grant(q, mr.rkey, 8, 8, Access::Read).unwrap();
    let mut got = [0; 8];
    view(&mut side).gather(q, region, 0, &mut got).unwrap();
    assert_eq!(&got, b"BYTES ok");
    assert_eq!(view(&mut side).grant(q, mr.rkey, 9, 8, Access::Read), Err(Reason::AddressRange));
}
