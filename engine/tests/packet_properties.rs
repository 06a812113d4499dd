//! Properties behind the packet layer's decoders and writers.
#![allow(clippy::unwrap_used, reason = "a test whose input cannot be made should fail")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::{
    LinkExtHeader, LinkHeader, NetHeaders, PacketHeaders, TransportHeader, UdpHeader,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use softrnic_engine::packet::{
    Bth, BthFields, Derived, Description, ETHERTYPE_SERVICE_VLAN, ETHERTYPE_VLAN, Ext, Extensions,
    FRAME_LEN_MAX, Flow, Ipv4, Ipv6, Layer3, Payload, Tag, Template, Udp, build, describe, opcode,
    parse,
};
use softrnic_engine::{Psn, Qpn};
use zerocopy::FromBytes;

mod frame_invariants;

/// Every extension header with arbitrary bits.
fn extensions() -> impl Strategy<Value = Extensions> {
    fn read<T: FromBytes>(bytes: &[u8], at: &mut usize) -> T {
        let (value, _) = T::read_from_prefix(&bytes[*at..]).ok().unwrap();
        *at += size_of::<T>();
        value
    }
    vec(any::<u8>(), 96).prop_map(|bytes| {
        let at = &mut 0;
        Extensions {
            xrceth: read(&bytes, at),
            deth: read(&bytes, at),
            feth: read(&bytes, at),
            reth: read(&bytes, at),
            atomic_eth: read(&bytes, at),
            aeth: read(&bytes, at),
            atomic_ack_eth: read(&bytes, at),
            immdt: read(&bytes, at),
            ieth: read(&bytes, at),
            cnp: read(&bytes, at),
        }
    })
}

fn udp() -> impl Strategy<Value = Udp> {
    let checksum =
        prop_oneof![Just(Derived::Is(0)), Just(Derived::Right), any::<u16>().prop_map(Derived::Is)];
    (any::<u16>(), checksum).prop_map(|(source_port, checksum)| Udp { source_port, checksum })
}

fn ipv4() -> impl Strategy<Value = Ipv4> {
    // Fragments are refused: only the reserved flag and DF are free.
    let flags = prop_oneof![Just(0x0000), Just(0x4000), Just(0x8000), Just(0xC000)];
    (any::<u8>(), any::<u16>(), flags, any::<u8>(), any::<Ipv4Addr>(), any::<Ipv4Addr>()).prop_map(
        |(traffic_class, identification, flags_offset, ttl, source, dest)| Ipv4 {
            traffic_class,
            identification,
            flags_offset,
            ttl,
            checksum: Derived::Right,
            source,
            dest,
            options: Vec::new(),
        },
    )
}

fn ipv6() -> impl Strategy<Value = Ipv6> {
    (any::<u8>(), 0..1u32 << 20, any::<u8>(), any::<Ipv6Addr>(), any::<Ipv6Addr>()).prop_map(
        |(traffic_class, flow_label, hop_limit, source, dest)| Ipv6 {
            traffic_class,
            flow_label,
            hop_limit,
            source,
            dest,
        },
    )
}

fn layer3() -> impl Strategy<Value = Layer3> {
    prop_oneof![
        (ipv4(), udp()).prop_map(|(ip, udp)| Layer3::Ipv4(ip, udp)),
        (ipv6(), udp()).prop_map(|(ip, udp)| Layer3::Ipv6(ip, udp)),
        ipv6().prop_map(Layer3::Grh),
    ]
}

fn tag() -> impl Strategy<Value = Tag> {
    (prop_oneof![Just(ETHERTYPE_VLAN), Just(ETHERTYPE_SERVICE_VLAN)], any::<u16>())
        .prop_map(|(ethertype, tci)| Tag { ethertype, tci })
}

/// A known opcode, with a payload where it may have one.
fn opcode_and_payload() -> impl Strategy<Value = (u8, Vec<u8>)> {
    (any::<Index>(), vec(any::<u8>(), 0..300)).prop_map(|(index, payload)| {
        let rows: Vec<_> = opcode::known().collect();
        let row = index.get(&rows);
        let payload = if row.payload == Payload::None { Vec::new() } else { payload };
        (row.value, payload)
    })
}

fn descriptions() -> impl Strategy<Value = Description> {
    let ends = (any::<[u8; 6]>(), any::<[u8; 6]>(), vec(tag(), 0..=2), layer3());
    let icrc = prop_oneof![3 => Just(Derived::Right), 1 => any::<u32>().prop_map(Derived::Is)];
    let body = (opcode_and_payload(), any::<[u8; 12]>(), extensions(), vec(any::<u8>(), 3));
    (ends, body, icrc, vec(any::<u8>(), 0..4)).prop_map(
        |((dest_mac, source_mac, tags, layer3), (what, bth, ext, mut pad), icrc, padding)| {
            let (opcode, payload) = what;
            let mut bth = Bth::read_from_bytes(&bth).ok().unwrap();
            bth.opcode = opcode;
            // TVer is 0, and PadCnt fits, unless there is nothing to pad.
            pad.truncate(payload.len().wrapping_neg() & 3);
            bth.flags &= if payload.is_empty() { 0xF0 } else { 0xC0 };
            bth.flags |= (pad.len() as u8) << 4;
            Description {
                dest_mac,
                source_mac,
                tags,
                layer3,
                bth,
                ext,
                payload,
                pad,
                icrc,
                ethernet_padding: padding,
            }
        },
    )
}

/// The extension headers that the opcode has; the rest zero.
fn used(what: &Description) -> Extensions {
    let (all, mut used) = (&what.ext, Extensions::default());
    let ext = opcode::row(what.bth.opcode).ext;
    macro_rules! keep {
        ($($which:ident $field:ident)*) => {
            $(if ext.has(Ext::$which) { used.$field = all.$field; })*
        };
    }
    keep! {
        XRCETH xrceth DETH deth FETH feth RETH reth ATOMICETH atomic_eth AETH aeth
        ATOMICACKETH atomic_ack_eth IMMDT immdt IETH ieth CNP cnp
    }
    used
}

/// A flow, and BTH bits, and whether its addresses are IPv4.
fn flows() -> impl Strategy<Value = (Flow, BthFields)> {
    let addresses = prop_oneof![
        (any::<Ipv4Addr>(), any::<Ipv4Addr>()).prop_map(|(a, b)| (IpAddr::V4(a), IpAddr::V4(b))),
        (any::<Ipv6Addr>(), any::<Ipv6Addr>()).prop_map(|(a, b)| (IpAddr::V6(a), IpAddr::V6(b))),
    ];
    let ends = (any::<[u8; 6]>(), any::<[u8; 6]>(), any::<Option<u16>>(), addresses);
    let rest = (any::<u8>(), any::<u8>(), 0..1u32 << 20, any::<u16>(), any::<u16>(), any::<u32>());
    let bth = (any::<u32>(), any::<bool>(), any::<bool>(), any::<bool>());
    (ends, rest, bth).prop_map(|(ends, rest, bth)| {
        let (source_mac, dest_mac, vlan_tci, (source_ip, dest_ip)) = ends;
        let (traffic_class, hop_limit, flow_label, source_port, pkey, dest_qpn) = rest;
        let (psn, solicited, migrated, ack_request) = bth;
        let flow = Flow {
            source_mac,
            dest_mac,
            vlan_tci,
            source_ip,
            dest_ip,
            traffic_class,
            hop_limit,
            flow_label,
            source_port,
            pkey,
            dest_qpn: Qpn::new(dest_qpn),
        };
        (flow, BthFields { psn: Psn::new(psn), solicited, migrated, ack_request, becn: false })
    })
}

proptest! {
    #[test]
    fn f_20_p_13_every_header_round_trips(what in descriptions()) {
        let frame = build(&what).unwrap();
        let packet = parse(&frame).unwrap();
        prop_assert_eq!(packet.bth, &what.bth);
        prop_assert_eq!(packet.payload(), &what.payload);
        let ext = packet.row.ext;
        prop_assert_eq!(packet.xrceth(), ext.has(Ext::XRCETH).then_some(&what.ext.xrceth));
        prop_assert_eq!(packet.deth(), ext.has(Ext::DETH).then_some(&what.ext.deth));
        prop_assert_eq!(packet.feth(), ext.has(Ext::FETH).then_some(&what.ext.feth));
        prop_assert_eq!(packet.reth(), ext.has(Ext::RETH).then_some(&what.ext.reth));
        prop_assert_eq!(packet.atomic_eth(), ext.has(Ext::ATOMICETH).then_some(&what.ext.atomic_eth));
        prop_assert_eq!(packet.aeth(), ext.has(Ext::AETH).then_some(&what.ext.aeth));
        prop_assert_eq!(
            packet.atomic_ack_eth(),
            ext.has(Ext::ATOMICACKETH).then_some(&what.ext.atomic_ack_eth)
        );
        prop_assert_eq!(packet.immdt(), ext.has(Ext::IMMDT).then_some(&what.ext.immdt));
        prop_assert_eq!(packet.ieth(), ext.has(Ext::IETH).then_some(&what.ext.ieth));

        let described = describe(&packet);
        let mut expected = what.clone();
        expected.ext = used(&what);
        // A value that happens to be right is described as right.
        expected.icrc = described.icrc;
        if let (Layer3::Ipv4(_, told), Layer3::Ipv4(_, found))
            | (Layer3::Ipv6(_, told), Layer3::Ipv6(_, found)) = (&mut expected.layer3, &described.layer3)
        {
            told.checksum = found.checksum;
        }
        prop_assert_eq!(&described, &expected);
        prop_assert_eq!(build(&described), Ok(frame.clone()));
        prop_assert_eq!(packet.icrc_valid(), described.icrc == Derived::Right);
        frame_invariants::check(&frame);
    }

    #[test]
    fn p_13_arbitrary_bytes_never_panic(frame in vec(any::<u8>(), 0..200)) {
        frame_invariants::check(&frame);
    }

    /// Valid frames with a few bytes changed and the end cut or stretched come much further than noise.
    #[test]
    fn p_13_damaged_frames_never_panic(
        what in descriptions(),
        changes in vec((any::<Index>(), any::<u8>()), 0..4),
        near in vec((0..60usize, any::<u8>()), 0..3),
        cut in any::<Index>(),
        cuts in any::<bool>(),
    ) {
        let mut frame = build(&what).unwrap();
        for (index, value) in changes {
            let at = index.index(frame.len());
            frame[at] = value;
        }
        for (at, value) in near {
            frame[at.min(57)] ^= value;
        }
        if cuts {
            frame.truncate(cut.index(frame.len()));
        }
        frame_invariants::check(&frame);
    }

    /// MAC control and VLAN EtherTypes are rare in noise; here they are frequent.
    #[test]
    fn p_13_bytes_behind_known_ethertypes_never_panic(
        ethertype in prop_oneof![
            Just(0x0800u16), Just(0x86DD), Just(0x8915), Just(0x8808), Just(0x0806), Just(0x8100)
        ],
        first in prop_oneof![Just(0x45u8), Just(0x46), Just(0x60), any::<u8>()],
        pfc in any::<bool>(),
        rest in vec(any::<u8>(), 0..120),
    ) {
        let mut frame = vec![0x01, 0x80, 0xC2, 0, 0, 1, 2, 0, 0, 0, 0, 1];
        frame.extend(ethertype.to_be_bytes());
        if ethertype == 0x8808 && pfc {
            frame.extend([1, 1]);
        } else {
            frame.push(first);
        }
        frame.extend(rest);
        frame_invariants::check(&frame);
    }

    #[test]
    fn f_01_template_writes_what_build_writes_and_etherparse_agrees(
        (flow, bth) in flows(),
        (opcode, payload) in opcode_and_payload(),
        ext in extensions(),
    ) {
        let built = build(&Description::new(&flow, opcode, bth, ext, &payload).unwrap()).unwrap();

        let template = Template::new(&flow).unwrap();
        let row = opcode::row(opcode);
        let mut room = [0xEE; FRAME_LEN_MAX];
        let frame = &mut room[..template.frame_len(row, payload.len())];
        let headers = template.len()..template.len() + usize::from(row.header_len) - 12;
        let packet = parse(&built).unwrap();
        let bth_end = packet.bth_offset() + 12;
        frame[headers.clone()].copy_from_slice(&built[bth_end..][..headers.len()]);
        frame[headers.end..][..payload.len()].copy_from_slice(&payload);
        template.finish(frame, row, payload.len(), bth);
        prop_assert_eq!(&*frame, &built[..]);
        prop_assert!(packet.icrc_valid());

        etherparse_agrees(&built, &flow)?;
    }

    #[test]
    fn f_04_a_real_udp_checksum_is_the_one_that_etherparse_computes(
        mut what in descriptions(),
        udp in udp(),
    ) {
        let real = Udp { checksum: Derived::Right, ..udp };
        match &mut what.layer3 {
            Layer3::Ipv4(_, udp) | Layer3::Ipv6(_, udp) => *udp = real,
            Layer3::Grh(_) => return Ok(()),
        }
        let frame = build(&what).unwrap();
        let packet = parse(&frame).unwrap();
        let udp_at = packet.bth_offset() - 8;
        let (header, _) = UdpHeader::from_slice(&frame[udp_at..]).unwrap();
        let payload = &frame[packet.bth_offset()..packet.icrc_offset() + 4];
        let computed = match (packet.source_ip(), packet.dest_ip()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => header.calc_checksum_ipv4_raw(a.octets(), b.octets(), payload),
            (IpAddr::V6(a), IpAddr::V6(b)) => header.calc_checksum_ipv6_raw(a.octets(), b.octets(), payload),
            mixed => panic!("{mixed:?}"),
        };
        prop_assert_eq!(header.checksum, computed.unwrap());
        prop_assert_eq!(packet.icrc_valid(), describe(&packet).icrc == Derived::Right);
    }
}

fn etherparse_agrees(frame: &[u8], flow: &Flow) -> Result<(), TestCaseError> {
    let headers = PacketHeaders::from_ethernet_slice(frame).unwrap();
    let Some(LinkHeader::Ethernet2(ethernet)) = headers.link else { panic!("no Ethernet") };
    prop_assert_eq!(ethernet.source, flow.source_mac);
    prop_assert_eq!(ethernet.destination, flow.dest_mac);
    let tci = headers.link_exts.first().map(|ext| {
        let LinkExtHeader::Vlan(tag) = ext else { panic!("no VLAN tag") };
        u16::from(tag.pcp.value()) << 13
            | u16::from(tag.drop_eligible_indicator) << 12
            | tag.vlan_id.value()
    });
    prop_assert_eq!(tci, flow.vlan_tci);
    let l3 = 14 + 4 * headers.link_exts.len();
    match headers.net.unwrap() {
        NetHeaders::Ipv4(ip, _) => {
            prop_assert_eq!(IpAddr::from(ip.source), flow.source_ip);
            prop_assert_eq!(IpAddr::from(ip.destination), flow.dest_ip);
            prop_assert_eq!(ip.dscp.value() << 2 | ip.ecn.value(), flow.traffic_class);
            prop_assert_eq!(ip.time_to_live, flow.hop_limit);
            prop_assert_eq!(usize::from(ip.total_len), frame.len() - l3);
            prop_assert!(ip.dont_fragment && !ip.more_fragments && ip.options.is_empty());
            prop_assert_eq!(ip.header_checksum, ip.calc_header_checksum());
        }
        NetHeaders::Ipv6(ip, _) => {
            prop_assert_eq!(IpAddr::from(ip.source), flow.source_ip);
            prop_assert_eq!(IpAddr::from(ip.destination), flow.dest_ip);
            prop_assert_eq!(ip.traffic_class, flow.traffic_class);
            prop_assert_eq!(ip.flow_label.value(), flow.flow_label);
            prop_assert_eq!(ip.hop_limit, flow.hop_limit);
            prop_assert_eq!(usize::from(ip.payload_length), frame.len() - l3 - 40);
        }
        NetHeaders::Arp(_) => panic!("ARP"),
    }
    let Some(TransportHeader::Udp(udp)) = headers.transport else { panic!("no UDP") };
    prop_assert_eq!(udp.source_port, flow.source_port);
    prop_assert_eq!(udp.destination_port, 4791);
    prop_assert_eq!(udp.checksum, 0);
    Ok(())
}
