//! What is checked before the PSN: a packet that fails has no effect but a counter (V-01 to V-08,
//! P-11).

use std::net::{IpAddr, Ipv4Addr};

use softrnic_engine::packet::{Derived, Description, Layer3, build, describe, opcode as op, parse};
use softrnic_engine::{Attributes, Counter, Event, Place, Reason, Service, State, Work};

use crate::harness::{Pair, Setup};
use crate::peer::{KEY, answers, plain, reply, reth, seal};

fn responder() -> Pair {
    let mut pair = Pair::new(Setup::default());
    pair.region();
    pair.ends[1].face.receives.push_back(Place { token: 0, base: 0x8000, length: 4096 });
    pair
}

/// Everything that a packet could have changed, refusals apart.
fn snapshot(pair: &Pair) -> String {
    let end = &pair.ends[1];
    let qp = end.engine.qp(end.qpn).expect("it exists");
    format!("{qp:?} {:?} {:?} {:?}", end.face.completions, end.face.events, end.face.receives)
}

fn source_ip(what: &mut Description, ip: [u8; 4]) {
    let Layer3::Ipv4(header, _) = &mut what.layer3 else { panic!("IPv4") };
    header.source = ip.into();
}

fn dest_ip(what: &mut Description, ip: [u8; 4]) {
    let Layer3::Ipv4(header, _) = &mut what.layer3 else { panic!("IPv4") };
    header.dest = ip.into();
}

type Fault = (&'static str, Reason, fn(&mut Description));

/// One fault each, in the order of rule V-01.
const FAULTS: &[Fault] = &[
    ("MAC", Reason::DestinationMac, |what| what.dest_mac = [2, 9, 9, 9, 9, 9]),
    ("ICRC", Reason::Icrc, |what| what.icrc = Derived::Is(0x1234_5678)),
    ("destination IP", Reason::DestinationIp, |what| dest_ip(what, [192, 0, 2, 77])),
    ("QP number", Reason::QpUnknown, |what| what.bth.dest_qp = [0, 0, 0x23]),
    ("QP high bits", Reason::QpUnknown, |what| what.bth.dest_qp = [0x80, 0, 0x22]),
    ("service", Reason::ServiceMismatch, |what| what.bth.opcode = op::SEND_ONLY + op::UC_BASE),
    ("source IP", Reason::SourceAddress, |what| source_ip(what, [192, 0, 2, 66])),
    ("P_Key", Reason::PKey, |what| what.bth.pkey = 0xFFFE.into()),
];

// T-34
#[test]
fn v_01_one_fault_or_two_move_one_counter_and_nothing_else() {
    for (first, reason, damage) in FAULTS {
        for (second, _, more) in FAULTS {
            let mut pair = responder();
            let before = snapshot(&pair);
            let mut what = pair.packet(1, op::SEND_ONLY, 0x100, plain(), &[1; 4]);
            damage(&mut what);
            more(&mut what);
            let refused = pair.tell(1, &what);
            if first == second {
                assert_eq!(refused, Some(*reason), "{first}");
            }
            assert!(refused.is_some(), "{first} and {second}");
            assert_eq!(pair.ends[1].engine.refused().iter().sum::<u64>(), 1);
            assert_eq!(snapshot(&pair), before, "{first} and {second}");
            assert!(pair.hear(1).is_empty());
        }
    }
}

// T-34
#[test]
fn v_02_no_packet_of_any_opcode_has_an_effect_before_its_psn_is_looked_at() {
    for opcode in 0..=255u8 {
        // A CNP is noted whatever it says; unknown classes end in the parser.
        if op::row(opcode).transport == op::Transport::Cnp {
            continue;
        }
        for (name, _, damage) in FAULTS.iter().filter(|(name, ..)| *name != "service") {
            for psn in [0xFF, 0x100, 0x101] {
                let mut pair = responder();
                let before = snapshot(&pair);
                let mut what = pair.packet(1, opcode, psn, reth(0, KEY, 4), &[]);
                damage(&mut what);
                let refused = match build(&what) {
                    Ok(frame) => pair.inject(1, &frame),
                    Err(reason) => Some(reason),
                };
                assert!(refused.is_some(), "{opcode:#x} {name}");
                assert_eq!(snapshot(&pair), before, "{opcode:#x} {name}");
                assert!(pair.hear(1).is_empty());
            }
        }
    }
}

#[test]
fn v_02_a_datagram_with_a_wrong_queue_key_was_an_established_communication() {
    let attributes = Attributes { service: Service::Ud, qkey: 5, ..Attributes::default() };
    let mut pair = Pair::new(Setup { attributes, ..Setup::default() });
    let qpn = pair.ends[1].qpn;
    let end = &mut pair.ends[1];
    end.engine.set_state(qpn, State::Rtr, &mut end.face);
    pair.ask(1, op::UD_SEND_ONLY, 0, plain(), &[1; 4]);
    assert!(pair.ends[1].face.events.is_empty());
}

#[test]
fn v_03_a_bad_icrc_moves_no_counter_but_its_own() {
    let damages: &[Fault] = &[
        ("P_Key", Reason::Icrc, |what| what.bth.pkey = 1.into()),
        ("source", Reason::Icrc, |what| source_ip(what, [1, 2, 3, 4])),
        ("QP", Reason::Icrc, |what| what.bth.dest_qp = [0, 0, 9]),
        ("ECN", Reason::Icrc, |what| {
            let Layer3::Ipv4(header, _) = &mut what.layer3 else { panic!("IPv4") };
            header.traffic_class = 3;
        }),
    ];
    for (name, reason, damage) in damages {
        let mut pair = responder();
        let mut what = pair.packet(1, op::SEND_ONLY, 0x100, plain(), &[1; 4]);
        damage(&mut what);
        what.icrc = Derived::Is(0);
        assert_eq!(pair.tell(1, &what), Some(*reason), "{name}");
        assert_eq!(pair.ends[1].engine.refused()[Reason::Icrc as usize], 1);
        assert_eq!(pair.ends[1].engine.refused().iter().sum::<u64>(), 1);
        assert!(pair.ends[1].face.events.is_empty());
        let qp = pair.ends[1].engine.qp(pair.ends[1].qpn).expect("it exists");
        assert!(qp.counters().iter().all(|(_, value)| value == 0));
    }
}

#[test]
fn v_04_another_transport_version_and_reserved_queue_pair_numbers_are_dropped() {
    for version in 1..16 {
        let mut pair = responder();
        let what = pair.packet(1, op::SEND_ONLY, 0x100, plain(), &[1; 4]);
        let mut frame = build(&what).expect("it can be written");
        frame[14 + 28 + 1] |= version;
        seal(&mut frame);
        assert_eq!(pair.inject(1, &frame), Some(Reason::TransportVersion));
        assert!(pair.hear(1).is_empty());
    }
    for number in [[0, 0, 0], [0xFF, 0xFF, 0xFF]] {
        let mut pair = responder();
        let before = snapshot(&pair);
        let mut what = pair.packet(1, op::SEND_ONLY, 0x100, plain(), &[1; 4]);
        what.bth.dest_qp = number;
        assert!(pair.tell(1, &what).is_some());
        assert_eq!(snapshot(&pair), before);
        assert!(pair.hear(1).is_empty());
    }
}

// T-34
#[test]
fn v_05_partition_keys_match_by_15_bits_and_one_full_member() {
    let cases = [
        (0xFFFF, 0xFFFF, true),
        (0xFFFF, 0x7FFF, true),
        (0x7FFF, 0xFFFF, true),
        (0x7FFF, 0x7FFF, false),
        (0xFFFF, 0xFFFE, false),
        (0x8001, 0x0001, true),
        (0x8000, 0x8000, false),
        (0x8000, 0x0000, false),
        (0x8001, 0x8002, false),
    ];
    for (ours, theirs, matches) in cases {
        let attributes = Attributes { pkey: ours, ..Attributes::default() };
        let mut pair = Pair::new(Setup { attributes, ..Setup::default() });
        pair.region();
        let mut what = pair.packet(1, op::WRITE_ONLY, 0x100, reth(0, KEY, 4), &[1; 4]);
        what.bth.pkey = theirs.into();
        let expected = (!matches).then_some(Reason::PKey);
        assert_eq!(pair.tell(1, &what), expected, "{ours:#x} {theirs:#x}");
        assert_eq!(pair.hear(1).len(), usize::from(matches));
    }
}

// T-34
#[test]
fn v_06_a_third_host_can_neither_ask_nor_acknowledge_nor_refuse() {
    let mut pair = Pair::new(Setup::default());
    let local = Place { token: 0, base: 0, length: 4 };
    pair.ends[0].post(Work { length: 4, local, ..Work::default() });
    pair.hear(0);
    for syndrome in [0x1F, 0x2C, 0x60, 0x61, 0x62, 0x63] {
        let mut nak = pair.packet(0, op::ACKNOWLEDGE, 0x100, reply(syndrome, 1), &[]);
        source_ip(&mut nak, [203, 0, 113, 9]);
        assert_eq!(pair.tell(0, &nak), Some(Reason::SourceAddress));
        assert!(pair.ends[0].sent().is_empty());
        assert!(pair.hear(0).is_empty());
    }
    assert_eq!(pair.acknowledge(0, 0x1F, 0x100), None);
    let mut request = pair.packet(1, op::SEND_ONLY, 0x100, plain(), &[1; 4]);
    source_ip(&mut request, [203, 0, 113, 9]);
    assert_eq!(pair.tell(1, &request), Some(Reason::SourceAddress));
    assert!(pair.hear(1).is_empty());
}

#[test]
fn v_06_the_queue_pairs_own_address_family_counts() {
    let mut pair = Pair::new(Setup { ipv6: true, ..Setup::default() });
    let mut flow = pair.flow(1);
    flow.source_ip = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    flow.dest_ip = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
    let bth = softrnic_engine::packet::BthFields::default();
    let what = Description::new(&flow, op::SEND_ONLY, bth, plain(), &[]).expect("one family");
    assert_eq!(pair.tell(1, &what), Some(Reason::IpFamily));
}

#[test]
fn v_08_a_queue_key_that_is_off_by_one_takes_no_receive() {
    let attributes =
        Attributes { service: Service::Ud, qkey: 0x8001_0000, ..Attributes::default() };
    let mut pair = Pair::new(Setup { attributes, ..Setup::default() });
    pair.ends[1].face.receives.push_back(Place { token: 0, base: 0x8000, length: 4096 });
    for (qkey, refused) in
        [(0x8001_0001, Some(Reason::QKey)), (0x8000_FFFF, Some(Reason::QKey)), (0x8001_0000, None)]
    {
        let mut ext = plain();
        ext.deth.qkey = qkey.into();
        let psn = qkey & 0xFF;
        assert_eq!(pair.ask(1, op::UD_SEND_ONLY, psn, ext, &[1; 4]), refused);
        let received = usize::from(refused.is_none());
        assert_eq!(pair.ends[1].received().len(), received);
        assert_eq!(pair.ends[1].face.receives.len(), 1 - received);
        assert!(pair.hear(1).is_empty(), "a datagram is not acknowledged");
    }
}

#[test]
fn p_12_a_flipped_bit_is_a_lost_packet_or_no_difference() {
    let mut pair = responder();
    let what = pair.packet(1, op::WRITE_ONLY, 0x100, reth(0x2000, KEY, 4), &[1; 4]);
    let good = build(&what).expect("it can be written");
    for bit in 0..good.len() * 8 {
        let mut pair = responder();
        let mut frame = good.clone();
        frame[bit / 8] ^= 0x80 >> (bit % 8);
        let refused = pair.inject(1, &frame);
        let heard = answers(&pair.hear(1));
        if refused.is_none() {
            assert_eq!(heard, [(0x1F, 0x100)], "bit {bit}");
        } else {
            assert_eq!(heard, [], "bit {bit}");
            assert!(pair.ends[1].face.memory.iter().all(|&byte| byte == 0));
        }
    }
    assert_eq!(pair.inject(1, &good), None);
}

#[test]
fn f_50_a_marked_packet_is_counted_and_told() {
    let mut pair = responder();
    let what = pair.packet(1, op::SEND_ONLY, 0x100, plain(), &[1; 4]);
    let frame = build(&what).expect("it can be written");
    let mut marked = describe(&parse(&frame).expect("it can be parsed"));
    let Layer3::Ipv4(header, _) = &mut marked.layer3 else { panic!("IPv4") };
    header.traffic_class = 3;
    assert_eq!(pair.tell(1, &marked), None);
    let qpn = pair.ends[1].qpn;
    assert_eq!(pair.ends[1].face.events, [Event::CongestionMarked(qpn)]);
    assert_eq!(pair.ends[1].engine.counters()[Counter::EcnMarked], 1);
}
