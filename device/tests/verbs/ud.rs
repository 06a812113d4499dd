//! Datagrams: address handles, queue keys, the GRH area, multicast and the GSI queue pair.

use core::net::IpAddr;

use softrnic_device::verbs::{
    Ah, AsyncEvent, Connection, Error, MULTICAST_QPN, Payload, QpInit, SendOp, SendRequest, Sge,
    UdAddress, WcOpcode,
};
use softrnic_engine::{
    Counter, Path, PathMtu, Qpn, Reason, Rx, Service, State, Status, multicast_mac,
};

use crate::world::{BASE, Side, World, outcome};

use Status::{Flushed, Success};

const QKEY: u32 = 0x1111_1111;

fn init() -> QpInit {
    QpInit { service: Service::Ud, ..QpInit::default() }
}

fn bound(qkey: u32) -> Connection {
    Connection { qkey, path_mtu: PathMtu::M1024, ..Connection::default() }
}

fn ud() -> World {
    World::with(init(), 64, bound(QKEY))
}

/// Sends inline bytes; signaled.
fn datagram(side: &mut Side, wr_id: u64, ud: UdAddress, bytes: &[u8]) {
    let request = SendRequest {
        wr_id,
        payload: Payload::Inline(bytes),
        signaled: true,
        ud: Some(ud),
        ..SendRequest::default()
    };
    side.nic.post_send(side.qpn, &request).unwrap();
}

/// The address of `b`'s queue pair, for `a`.
fn to_b(world: &mut World) -> UdAddress {
    let ah = world.a.nic.create_ah(world.a.pd, &world.b.path()).unwrap();
    UdAddress { ah, remote_qpn: world.b.qpn, remote_qkey: QKEY }
}

fn to_group(world: &mut World, group: IpAddr) -> UdAddress {
    let path = Path { dest_ip: group, ..Path::default() };
    let ah = world.a.nic.create_ah(world.a.pd, &path).unwrap();
    UdAddress { ah, remote_qpn: MULTICAST_QPN, remote_qkey: QKEY }
}

fn group(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn u_10_psns_count_up_and_are_not_checked() {
    let mut world = ud();
    let to = to_b(&mut world);
    (0..2).for_each(|i| world.b.recv(i, &[world.b.sge(i * 64, 64)]));
    for text in [b"one", b"two", b"six"] {
        datagram(&mut world.a, 1, to, text);
    }
    let sent = world.a.transmit_all(world.now);
    let psns: Vec<u32> = sent.iter().map(|(train, _)| train.psn.get()).collect();
    assert_eq!((psns[1], psns[2]), ((psns[0] + 1) & 0xFF_FFFF, (psns[0] + 2) & 0xFF_FFFF));
    // The last one first, and the second never.
    for at in [2, 0] {
        assert_eq!(world.b.take(world.now, &sent[at].1).refused, None);
    }
    let received = world.b.received();
    assert_eq!(outcome(&received), [(0, Success), (1, Success)]);
    assert_eq!(received[0].source_qpn, Some(world.a.qpn));
    assert_eq!((world.b.bytes(40, 3), world.b.bytes(104, 3)), (b"six".to_vec(), b"one".to_vec()));
}

#[test]
fn u_11_bit_31_of_a_requests_queue_key_stands_for_the_queue_pairs_own() {
    let mut world = ud();
    let to = to_b(&mut world);
    for (given, on_wire) in [(0x8000_0000, QKEY), (QKEY, QKEY), (0x7FFF_FFFF, 0x7FFF_FFFF)] {
        datagram(&mut world.a, 1, UdAddress { remote_qkey: given, ..to }, b"");
        let (_, frame) = world.a.transmit(world.now).unwrap();
        // Ethernet 14, IPv4 20, UDP 8 and BTH 12 come before DETH.
        assert_eq!(frame[54..58], u32::to_be_bytes(on_wire));
        let source = [&[0], &frame[59..62]].concat();
        assert_eq!(source, world.a.qpn.get().to_be_bytes());
    }
}

#[test]
fn v_08_a_wrong_queue_key_is_dropped_and_costs_no_receive() {
    let mut world = ud();
    let to = to_b(&mut world);
    world.b.recv(1, &[world.b.sge(0, 64)]);
    datagram(&mut world.a, 1, UdAddress { remote_qkey: QKEY + 1, ..to }, b"no");
    world.pump();
    assert_eq!((world.b.counted(Reason::QKey), world.b.received().len()), (1, 0));
    datagram(&mut world.a, 2, to, b"yes");
    world.pump();
    assert_eq!(outcome(&world.b.received()), [(1, Success)]);
    assert_eq!(outcome(&world.a.sent()), [(1, Success), (2, Success)]);
}

#[test]
fn u_12_an_ipv4_header_stands_in_the_last_20_of_40_bytes() {
    let mut world = ud();
    let to = to_b(&mut world);
    world.b.fill(0, &[0xEE; 64]);
    world.b.recv(1, &[world.b.sge(0, 30), world.b.sge(0x100, 34)]);
    let op = SendOp::SendWithImm { immediate: 0xABCD };
    let payload = Payload::Inline(b"datagram");
    let request = SendRequest { op, payload, ud: Some(to), ..SendRequest::default() };
    world.a.nic.post_send(world.a.qpn, &request).unwrap();
    world.pump();
    let [received] = world.b.received()[..] else { panic!("one completion") };
    assert_eq!((received.byte_len, received.source_qpn), (48, Some(world.a.qpn)));
    assert_eq!((received.opcode, received.immediate), (WcOpcode::Recv, Some(0xABCD)));
    let area = [world.b.bytes(0, 30), world.b.bytes(0x100, 18)].concat();
    assert_eq!(area[..20], [0; 20]);
    assert_eq!((area[20], area[29]), (0x45, 17));
    assert_eq!(area[32..40], [192, 0, 2, 1, 192, 0, 2, 2]);
    assert_eq!(&area[40..], b"datagram");
}

#[test]
fn u_12_an_ipv6_header_fills_the_40_bytes() {
    let mut world = ud();
    let (a, b) = (*world.a.nic.engine.port(), *world.b.nic.engine.port());
    let path = Path { dest_ip: b.ipv6.into(), traffic_class: 0x60, ..world.b.path() };
    let ah = world.a.nic.create_ah(world.a.pd, &path).unwrap();
    let to = UdAddress { ah, remote_qpn: world.b.qpn, remote_qkey: QKEY };
    world.b.recv(1, &[world.b.sge(0, 64)]);
    datagram(&mut world.a, 1, to, b"six");
    world.pump();
    let [received] = world.b.received()[..] else { panic!("one completion") };
    assert_eq!((received.byte_len, received.source_qpn), (43, Some(world.a.qpn)));
    let area = world.b.bytes(0, 43);
    assert_eq!((area[0], area[1], area[6]), (0x66, 0, 17));
    assert_eq!(area[8..24], a.ipv6.octets());
    assert_eq!(area[24..40], b.ipv6.octets());
    assert_eq!(&area[40..], b"six");
}

#[test]
fn u_13_m_06_a_datagram_above_the_mtu_is_an_error_and_the_queue_can_go_on() {
    let mut world = ud();
    let to = to_b(&mut world);
    (0..2).for_each(|i| world.b.recv(i, &[world.b.sge(0x4000, 0x1000)]));
    let post = |world: &mut World, wr_id, length| {
        let list = [world.a.sge(0, length)];
        let payload = Payload::Sges(&list);
        let (signaled, ud) = (true, Some(to));
        let request = SendRequest { wr_id, payload, signaled, ud, ..SendRequest::default() };
        world.a.nic.post_send(world.a.qpn, &request).unwrap();
    };
    post(&mut world, 1, 1024);
    post(&mut world, 2, 1025);
    post(&mut world, 3, 1);
    world.pump();
    let sent = outcome(&world.a.sent());
    assert_eq!(sent, [(1, Success), (2, Status::LocalLength), (3, Flushed)]);
    assert_eq!(world.a.state(), State::Sqe);
    world.a.nic.set_state(world.a.qpn, State::Rts).unwrap();
    post(&mut world, 4, 4);
    world.pump();
    assert_eq!(outcome(&world.a.sent()), [(4, Success)]);
    let lengths: Vec<u32> = world.b.received().iter().map(|wc| wc.byte_len).collect();
    assert_eq!(lengths, [1064, 44]);
}

#[test]
fn u_14_without_a_receive_that_fits_it_is_dropped() {
    let mut world = ud();
    let to = to_b(&mut world);
    datagram(&mut world.a, 1, to, b"nobody");
    world.pump();
    let counters = world.b.nic.engine.qp(world.b.qpn).unwrap().counters();
    assert_eq!(counters[Counter::OutOfBuffer], 1);
    assert_eq!(world.b.counted(Reason::ReceiverNotReady), 1);
    world.b.recv(7, &[world.b.sge(0, 44)]);
    datagram(&mut world.a, 2, to, b"too long");
    world.pump();
    assert_eq!(world.b.counted(Reason::ReceiveTooSmall), 1);
    assert_eq!((world.b.received().len(), world.b.bytes(0, 64)), (0, vec![0; 64]));
    // The buffer waits for one that fits.
    datagram(&mut world.a, 3, to, b"four");
    world.pump();
    assert_eq!(outcome(&world.b.received()), [(7, Success)]);
    assert_eq!(world.b.bytes(40, 8), *b"four\0\0\0\0");
    assert_eq!(outcome(&world.a.sent()), [(1, Success), (2, Success), (3, Success)]);
    // A buffer that was held back flushes like any other.
    world.b.recv(8, &[world.b.sge(0, 44)]);
    datagram(&mut world.a, 4, to, b"too long");
    world.pump();
    world.b.nic.set_state(world.b.qpn, State::Error).unwrap();
    assert_eq!(outcome(&world.b.received()), [(8, Flushed)]);
}

#[test]
fn u_15_an_acknowledgement_that_is_asked_for_never_comes() {
    let mut world = ud();
    let to = to_b(&mut world);
    world.b.recv(1, &[world.b.sge(0, 64)]);
    datagram(&mut world.a, 1, to, b"ask");
    let (_, mut frame) = world.a.transmit(world.now).unwrap();
    // BTH's AckReq bit; the link vouches for the ICRC, which no longer fits.
    frame[50] |= 0x80;
    let rx = Rx { icrc_verified: true };
    assert_eq!(world.b.nic.handle_frame(world.now, &frame, rx).refused, None);
    assert_eq!(outcome(&world.b.received()), [(1, Success)]);
    assert_eq!((world.b.transmit(world.now), world.b.nic.next_deadline()), (None, None));
}

/// T-33.
#[test]
fn u_16_each_attached_queue_pair_gets_its_own_copy() {
    for address in ["224.129.1.5", "ff02::1:3"] {
        let mut world = ud();
        let group = group(address);
        let to = to_group(&mut world, group);
        let deaf = world.b.another(init());
        let other_key = world.b.another(init());
        let second = world.b.another(init());
        world.b.nic.connect(deaf, &bound(QKEY)).unwrap();
        world.b.nic.connect(other_key, &bound(QKEY + 1)).unwrap();
        world.b.nic.connect(second, &bound(QKEY)).unwrap();
        let members = [world.b.qpn, other_key, second];
        for q in [members[0], members[0], members[1], members[2]] {
            world.b.nic.attach_multicast(q, group).unwrap();
        }
        for (i, q) in members.into_iter().chain([deaf]).enumerate() {
            let list = [world.b.sge(i as u64 * 64, 64)];
            for _ in 0..2 {
                let request = softrnic_device::verbs::RecvRequest { wr_id: i as u64, sges: &list };
                world.b.nic.post_recv(q, &request).unwrap();
            }
        }
        datagram(&mut world.a, 1, to, b"to all");
        world.pump();
        let received = world.b.received();
        let whom: Vec<(u64, Qpn)> = received.iter().map(|wc| (wc.wr_id, wc.qpn)).collect();
        assert_eq!(whom, [(0, members[0]), (2, members[2])]);
        for at in [40, 2 * 64 + 40] {
            assert_eq!(world.b.bytes(at, 6), b"to all");
        }
        assert_eq!(world.b.nic.get_async_event(), Some(AsyncEvent::MulticastJoin(group)));
        assert_eq!(world.b.nic.get_async_event(), None);
        // Once detached, even if it was attached twice, it hears nothing.
        world.b.nic.detach_multicast(members[0], group).unwrap();
        world.b.nic.destroy_qp(second).unwrap();
        assert_eq!(world.b.nic.get_async_event(), None);
        datagram(&mut world.a, 2, to, b"again");
        world.pump();
        assert!(world.b.received().is_empty());
        world.b.nic.detach_multicast(other_key, group).unwrap();
        assert_eq!(world.b.nic.get_async_event(), Some(AsyncEvent::MulticastLeave(group)));
    }
}

#[test]
fn f_64_groups_with_one_mac_are_told_apart_by_ip() {
    let mut world = ud();
    let (near, far) = (group("224.1.1.5"), group("224.129.1.5"));
    world.b.nic.attach_multicast(world.b.qpn, near).unwrap();
    world.b.recv(1, &[world.b.sge(0, 64)]);
    for (group, heard) in [(far, false), (near, true)] {
        let to = to_group(&mut world, group);
        datagram(&mut world.a, 1, to, b"which");
        let (_, frame) = world.a.transmit(world.now).unwrap();
        assert_eq!(frame[..6], [0x01, 0x00, 0x5E, 0x01, 0x01, 0x05]);
        let refused = (!heard).then_some(Reason::MulticastGroup);
        assert_eq!(world.b.take(world.now, &frame).refused, refused);
        assert_eq!(world.b.received().len(), usize::from(heard));
    }
    assert_eq!(multicast_mac(group("ff02::1:ff00:42")), Some([0x33, 0x33, 0xFF, 0, 0, 0x42]));
    assert_eq!(multicast_mac(group("192.0.2.1")), None);
}

#[test]
fn u_17_a_datagram_to_nobody_is_sent() {
    let mut world = ud();
    let path = Path { dest_ip: group("203.0.113.9"), dest_mac: [2; 6], ..Path::default() };
    let ah = world.a.nic.create_ah(world.a.pd, &path).unwrap();
    let nobody = UdAddress { ah, remote_qpn: Qpn::new(0x777), remote_qkey: 0 };
    datagram(&mut world.a, 1, nobody, b"anyone?");
    world.pump();
    assert_eq!(outcome(&world.a.sent()), [(1, Success)]);
    assert_eq!(world.b.counted(Reason::DestinationMac), 1);
    assert_eq!(world.a.nic.next_deadline(), None);
}

#[test]
fn v_08_the_gsi_queue_pair_has_number_1_and_its_own_keys() {
    let mut world = ud();
    let mut ends = [Qpn::new(0); 2];
    for (side, end) in [&mut world.a, &mut world.b].into_iter().zip(&mut ends) {
        let (pd, send_cq, recv_cq) = (side.pd, side.send_cq, side.recv_cq);
        let init = QpInit { pd, send_cq, recv_cq, ..QpInit::default() };
        *end = side.nic.create_gsi_qp(&init).unwrap();
        assert_eq!(side.nic.create_gsi_qp(&init), Err(Error::GsiExists));
        // Keys of the caller's are not the GSI's.
        let other = Connection { pkey: 0x8123, ..bound(QKEY) };
        side.nic.connect(*end, &other).unwrap();
        side.qpn = *end;
    }
    assert_eq!(ends, [Qpn::new(1); 2]);
    world.b.recv(1, &[world.b.sge(0, 300)]);
    let to = UdAddress { remote_qkey: 0x8001_0000, ..to_b(&mut world) };
    let mad = [0xA5; 64];
    datagram(&mut world.a, 1, to, &mad);
    let (_, frame) = world.a.transmit(world.now).unwrap();
    assert_eq!(frame[44..46], [0xFF, 0xFF], "the default partition key");
    assert_eq!(frame[54..58], 0x8001_0000u32.to_be_bytes());
    assert_eq!(world.b.take(world.now, &frame).refused, None);
    let [received] = world.b.received()[..] else { panic!("one completion") };
    assert_eq!((received.byte_len, received.source_qpn), (104, Some(Qpn::new(1))));
    assert_eq!(world.b.bytes(40, 64), mad);
    world.b.nic.destroy_qp(ends[1]).unwrap();
    let (pd, send_cq, recv_cq) = (world.b.pd, world.b.send_cq, world.b.recv_cq);
    let again = QpInit { pd, send_cq, recv_cq, ..QpInit::default() };
    assert_eq!(world.b.nic.create_gsi_qp(&again), Ok(Qpn::new(1)));
}

#[test]
fn an_address_handle_must_live_and_share_the_domain() {
    let mut world = ud();
    let to = to_b(&mut world);
    let pd = world.a.nic.alloc_pd().unwrap();
    let foreign = world.a.nic.create_ah(pd, &world.b.path()).unwrap();
    assert_eq!(world.a.nic.dealloc_pd(pd), Err(Error::PdInUse { pd, users: 1 }));
    let gone = world.a.nic.create_ah(world.a.pd, &world.b.path()).unwrap();
    world.a.nic.destroy_ah(gone).unwrap();
    assert_eq!(world.a.nic.destroy_ah(gone), Err(Error::UnknownAh(gone)));
    for (ah, reason) in [
        (gone, Reason::VerbsHandle),
        (Ah::default(), Reason::VerbsHandle),
        (foreign, Reason::ProtectionDomain),
    ] {
        datagram(&mut world.a, 1, UdAddress { ah, ..to }, b"lost");
        assert_eq!(world.a.transmit(world.now), None);
        let [sent] = world.a.sent()[..] else { panic!("one completion") };
        assert_eq!((sent.status, sent.reason), (Status::LocalQpOperation, Some(reason)));
        assert_eq!(world.a.state(), State::Sqe);
        world.a.nic.set_state(world.a.qpn, State::Rts).unwrap();
    }
    world.a.nic.destroy_ah(foreign).unwrap();
    assert_eq!(world.a.nic.dealloc_pd(pd), Ok(()));
    let refused = world.a.nic.create_ah(pd, &world.b.path());
    assert_eq!(refused, Err(Error::UnknownPd(pd)));
}

#[test]
fn only_datagrams_have_addresses_and_groups() {
    let mut world = ud();
    let (q, to) = (world.a.qpn, to_b(&mut world));
    let connected = world.a.another(QpInit::default());
    world.a.nic.connect(connected, &Connection::default()).unwrap();
    let plain = SendRequest::default();
    let missing = Error::DatagramAddress { qpn: q, service: Service::Ud };
    assert_eq!(world.a.nic.post_send(q, &plain), Err(missing));
    let addressed = SendRequest { ud: Some(to), ..plain };
    let surplus = Error::DatagramAddress { qpn: connected, service: Service::Rc };
    assert_eq!(world.a.nic.post_send(connected, &addressed), Err(surplus));
    assert_eq!(world.a.counted(Reason::PathIncomplete), 2);
    let any = group("224.0.0.9");
    let nic = &mut world.a.nic;
    assert_eq!(nic.attach_multicast(connected, any), Err(Error::NotDatagram(connected)));
    let unicast = group("192.0.2.1");
    assert_eq!(nic.attach_multicast(q, unicast), Err(Error::NotMulticast(unicast)));
    let never = Err(Error::NotAttached { qpn: q, group: any });
    assert_eq!(nic.detach_multicast(q, any), never);
    let unknown = Qpn::new(0x999);
    assert_eq!(nic.attach_multicast(unknown, any), Err(Error::UnknownQp(unknown)));
    assert_eq!(nic.get_async_event(), None);
    // Joining and leaving before anybody looks is nothing; joining again is one join.
    nic.attach_multicast(q, any).unwrap();
    nic.detach_multicast(q, any).unwrap();
    assert_eq!(nic.get_async_event(), None);
    nic.attach_multicast(q, any).unwrap();
    nic.detach_multicast(q, any).unwrap();
    nic.attach_multicast(q, any).unwrap();
    assert_eq!(nic.get_async_event(), Some(AsyncEvent::MulticastJoin(any)));
    assert_eq!(nic.get_async_event(), None);
    nic.destroy_qp(q).unwrap();
    assert_eq!(nic.get_async_event(), Some(AsyncEvent::MulticastLeave(any)));
}

#[test]
fn u_14_a_receive_with_a_bad_key_fails_and_so_does_the_queue_pair() {
    let mut world = ud();
    let to = to_b(&mut world);
    let bad = Sge { address: BASE, length: 64, lkey: Default::default() };
    world.b.recv(1, &[bad]);
    world.b.recv(2, &[]);
    datagram(&mut world.a, 1, to, b"x");
    world.pump();
    assert_eq!(world.b.state(), State::Error);
    let received = world.b.received();
    assert_eq!(outcome(&received), [(1, Status::LocalProtection), (2, Flushed)]);
    assert_eq!(received[0].reason, Some(Reason::WorkKey));
    assert_eq!(world.b.nic.get_async_event(), None, "the receive tells of it");
}

#[test]
fn s_55_a_full_completion_queue_fails_a_datagram_queue_pair_too() {
    let mut world = World::with(init(), 1, bound(QKEY));
    let to = to_b(&mut world);
    (0..2).for_each(|i| world.b.recv(i, &[world.b.sge(0, 64)]));
    for _ in 0..2 {
        let request = SendRequest { ud: Some(to), ..SendRequest::default() };
        world.a.nic.post_send(world.a.qpn, &request).unwrap();
    }
    world.pump();
    assert_eq!(world.b.state(), State::Error);
    assert_eq!(outcome(&world.b.received()), [(0, Success)]);
    let told = AsyncEvent::CqError(world.b.recv_cq);
    assert_eq!(world.b.nic.get_async_event(), Some(told));
}
