//! Stories of the port: each peer's frame is written by hand or by smoltcp, never by the port itself.
#![allow(clippy::unwrap_used)]

use super::*;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const MS: u64 = 1_000_000;

fn port() -> HostPort {
    HostPort::new(PortConfig {
        mac: MAC,
        ipv4: Some((Ipv4Addr::new(10, 0, 0, 1), 24)),
        ipv6: Some(("fd00::1".parse().unwrap(), 64)),
        gateways: vec!["10.0.0.254".parse().unwrap()],
        ..PortConfig::default()
    })
}

fn sent(port: &mut HostPort) -> Option<Vec<u8>> {
    let mut room = [0; 2048];
    port.poll_transmit(&mut room).map(|len| room[..len].to_vec())
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// Who has 10.0.0.1? Tell 10.0.0.2.
const ARP_REQUEST: &str = "ffffffffffff 020000000002 0806 0001 0800 06 04 0001 020000000002 \
                           0a000002 000000000000 0a000001";

#[test]
fn an_arp_request_is_answered_and_its_sender_remembered() {
    let mut port = port();
    let frame = hex(ARP_REQUEST);
    assert!(HostPort::takes(&frame));
    port.handle_frame(Nanos(0), &frame);
    let reply = "020000000002 020000000001 0806 0001 0800 06 04 0002 020000000001 0a000001 \
                 020000000002 0a000002";
    assert_eq!(sent(&mut port), Some(hex(reply)));
    let known = Resolution::Known(PEER_MAC);
    assert_eq!(port.resolve(Nanos(0), "10.0.0.2".parse().unwrap()), known);
    assert_eq!(sent(&mut port), None);
}

#[test]
fn an_arp_request_for_somebody_else_is_ignored_and_teaches_nothing() {
    let mut port = port();
    let mut frame = hex(ARP_REQUEST);
    *frame.last_mut().unwrap() = 9;
    port.handle_frame(Nanos(0), &frame);
    assert_eq!((sent(&mut port), port.counters().ignored), (None, 1));
    assert_eq!(port.neighbours().count(), 0);
}

#[test]
fn an_address_is_asked_for_until_it_answers() {
    let mut port = port();
    let ip = "10.0.0.2".parse().unwrap();
    assert_eq!(port.resolve(Nanos(0), ip), Resolution::Asking);
    let request = "ffffffffffff 020000000001 0806 0001 0800 06 04 0001 020000000001 0a000001 \
                   000000000000 0a000002";
    assert_eq!(sent(&mut port), Some(hex(request)));
    assert_eq!(port.resolve(Nanos(1), ip), Resolution::Asking);
    assert_eq!(sent(&mut port), None);
    port.handle_timeout(Nanos(100 * MS));
    assert_eq!(sent(&mut port), Some(hex(request)));
    let reply = "020000000001 020000000002 0806 0001 0800 06 04 0002 020000000002 0a000002 \
                 020000000001 0a000001";
    port.handle_frame(Nanos(200 * MS), &hex(reply));
    assert_eq!(port.resolve(Nanos(200 * MS), ip), Resolution::Known(PEER_MAC));
    assert_eq!(port.next_deadline(), None);
}

#[test]
fn an_address_that_never_answers_is_unreachable_and_asked_for_again_later() {
    let mut port = port();
    let ip = "fd00::2".parse().unwrap();
    assert_eq!(port.resolve(Nanos(0), ip), Resolution::Asking);
    let mut now = Nanos(0);
    while let Some(deadline) = port.next_deadline() {
        now = deadline;
        port.handle_timeout(now);
    }
    assert_eq!(now, Nanos(3100 * MS));
    assert_eq!(port.counters().neighbour_requests, 4);
    assert_eq!(port.resolve(now, ip), Resolution::Unreachable);
    assert_eq!(port.resolve(Nanos(now.0 + 1000 * MS), ip), Resolution::Asking);
}

#[test]
fn other_networks_are_reached_through_the_gateway_or_not_at_all() {
    let mut port = port();
    assert_eq!(port.resolve(Nanos(0), "8.8.8.8".parse().unwrap()), Resolution::Asking);
    assert_eq!(sent(&mut port).unwrap()[38..42], [10, 0, 0, 254]);
    assert_eq!(port.resolve(Nanos(0), "2001:db8::1".parse().unwrap()), Resolution::NoRoute);
}

#[test]
fn a_neighbour_solicitation_is_answered_to_its_sender() {
    use smoltcp::wire::{Icmpv6Packet, Icmpv6Repr, Ipv6Packet, NdiscRepr};

    let mut asking = HostPort::new(PortConfig {
        mac: PEER_MAC,
        ipv6: Some(("fd00::2".parse().unwrap(), 64)),
        ..PortConfig::default()
    });
    let own: Ipv6Addr = "fd00::1".parse().unwrap();
    assert_eq!(asking.resolve(Nanos(0), own.into()), Resolution::Asking);
    let question = sent(&mut asking).unwrap();
    // RFC 4861, 7.2.2: to the solicited-node group of the target.
    assert_eq!(question[..6], [0x33, 0x33, 0xFF, 0, 0, 1]);
    let mut port = port();
    port.handle_frame(Nanos(0), &question);
    let answer = sent(&mut port).unwrap();
    assert_eq!(answer[..6], PEER_MAC);
    let ip = Ipv6Packet::new_checked(&answer[14..]).unwrap();
    let icmp = Icmpv6Packet::new_checked(ip.payload()).unwrap();
    let parsed = Icmpv6Repr::parse(&ip.src_addr(), &ip.dst_addr(), &icmp, &Default::default());
    let Ok(Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { target_addr, lladdr, .. })) = parsed
    else {
        panic!("{parsed:?}");
    };
    assert_eq!((target_addr, lladdr.unwrap().as_bytes()), (own, &MAC[..]));
    asking.handle_frame(Nanos(1), &answer);
    assert_eq!(asking.resolve(Nanos(1), own.into()), Resolution::Known(MAC));
}

#[test]
fn a_ping_is_answered_and_a_piece_of_one_is_not() {
    let mut port = port();
    let mut ping = hex("020000000001 020000000002 0800 4500001c00010000400166de0a0000020a000001 \
         0800 f7fd 0001 0001");
    port.handle_frame(Nanos(0), &ping);
    let pong = sent(&mut port).unwrap();
    assert_eq!(pong[..12], hex("020000000002 020000000001"));
    assert_eq!(pong[26..], hex("0a000001 0a000002 0000 fffd 0001 0001"));
    // More fragments; the header checksum follows.
    ping[20] = 0x20;
    ping[24] = 0x46;
    port.handle_frame(Nanos(0), &ping);
    assert_eq!((sent(&mut port), port.counters().ignored), (None, 1));
}

#[test]
fn a_tagged_port_asks_and_answers_with_its_tag() {
    let config = PortConfig { vlan_tci: Some(7), ..port().config().clone() };
    let mut port = HostPort::new(config);
    let mut frame = hex(ARP_REQUEST);
    frame.splice(12..12, [0x81, 0, 0, 7]);
    assert!(HostPort::takes(&frame));
    port.handle_frame(Nanos(0), &frame);
    assert_eq!(sent(&mut port).unwrap()[12..18], [0x81, 0, 0, 7, 8, 6]);
}

#[test]
fn a_port_that_leaves_answers_to_the_kernel_still_learns() {
    let config = PortConfig { answers: false, ..port().config().clone() };
    let mut port = HostPort::new(config);
    port.handle_frame(Nanos(0), &hex(ARP_REQUEST));
    assert_eq!(sent(&mut port), None);
    let known = Resolution::Known(PEER_MAC);
    assert_eq!(port.resolve(Nanos(0), "10.0.0.2".parse().unwrap()), known);
}

#[test]
fn a_flood_of_neighbours_keeps_those_that_the_operator_gave() {
    let fixed = ("10.0.0.9".parse().unwrap(), [2, 0, 0, 0, 0, 9]);
    let config = PortConfig { neighbours: vec![fixed], ..port().config().clone() };
    let mut port = HostPort::new(config);
    let mut frame = hex(ARP_REQUEST);
    for low in 0..2000_u16 {
        frame[29..31].copy_from_slice(&low.to_be_bytes());
        port.handle_frame(Nanos(u64::from(low)), &frame);
    }
    assert_eq!(port.neighbours().count(), 1024);
    assert_eq!(port.resolve(Nanos(3000), fixed.0), Resolution::Known(fixed.1));
}

proptest::proptest! {
    #[test]
    fn arbitrary_frames_never_panic(
        mut frame in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200),
        kind in 0..4_usize,
    ) {
        let mut port = port();
        if let Some(ethertype) = frame.get_mut(12..14) {
            ethertype.copy_from_slice(&[[8, 6], [8, 0], [0x86, 0xDD], [0x81, 0]][kind]);
        }
        if HostPort::takes(&frame) {
            port.handle_frame(Nanos(0), &frame);
        }
        while sent(&mut port).is_some() {}
    }
}
