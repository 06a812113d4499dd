//! Frames at the engine's door: what addresses, lengths, tags and marks must be, and what may be
//! anything (F-01 to F-10, F-21, F-51).

use softrnic_engine::packet::{
    Derived, Description, Layer3, Tag, build, describe, opcode as op, parse, udp_source_port,
};
use softrnic_engine::{
    Attributes, Event, Path, PathMtu, Place, Port, Qpn, RKey, Reason, State, Work, WorkOpcode,
};

use crate::harness::{Pair, Setup};
use crate::peer::{KEY, answers, brief, imm, plain, reth, seal};

fn responder(ipv6: bool) -> Pair {
    let mut pair = Pair::new(Setup { ipv6, ..Setup::default() });
    pair.region();
    pair.ends[1].face.receives.push_back(Place { token: 0, base: 0x8000, length: 4096 });
    pair
}

fn send(pair: &Pair) -> Description {
    pair.packet(1, op::SEND_ONLY, 0x100, plain(), &[1, 2, 3, 4, 5])
}

/// The frame is taken: one completion, one ACK.
fn taken(ipv6: bool, change: impl FnOnce(&mut Description)) {
    let mut pair = responder(ipv6);
    let mut what = send(&pair);
    change(&mut what);
    assert_eq!(pair.tell(1, &what), None, "{what:?}");
    assert_eq!(answers(&pair.hear(1)), [(0x1F, 0x100)]);
    assert_eq!(pair.ends[1].received()[0].1, what.payload.len() as u32);
    assert_eq!(pair.ends[1].face.memory[0x8000..][..what.payload.len()], what.payload);
}

/// The frame is refused: one counter moves, nothing else.
fn refused(ipv6: bool, reason: Reason, change: impl FnOnce(&mut Vec<u8>)) {
    let mut pair = responder(ipv6);
    let mut frame = build(&send(&pair)).expect("it can be written");
    change(&mut frame);
    nothing(&mut pair, &frame, reason);
}

fn nothing(pair: &mut Pair, frame: &[u8], reason: Reason) {
    assert_eq!(pair.inject(1, frame), Some(reason));
    let refused: Vec<u64> =
        pair.ends[1].engine.refused().iter().copied().filter(|&n| n != 0).collect();
    assert_eq!(refused, [1], "one reason, once");
    assert!(pair.hear(1).is_empty());
    let end = &pair.ends[1];
    assert!(end.face.completions.is_empty() && end.face.events.is_empty());
    assert_eq!((end.state(), end.face.receives.len()), (State::Rts, 1));
    assert_eq!(pair.expected(1), 0x100);
}

// T-35
#[test]
fn f_01_tags_do_not_matter_and_a_third_is_refused() {
    let tag = |ethertype, tci| Tag { ethertype, tci };
    for ipv6 in [false, true] {
        taken(ipv6, |_| {});
        taken(ipv6, |what| what.tags = vec![tag(0x8100, 0x6005)]);
        taken(ipv6, |what| what.tags = vec![tag(0x88A8, 7), tag(0x8100, 0xFFFE)]);
        refused(ipv6, Reason::TooManyVlanTags, |frame| {
            for _ in 0..3 {
                frame.splice(12..12, [0x81, 0, 0, 5]);
            }
        });
        refused(ipv6, Reason::NotRoce, |frame| frame[13] = 6);
    }
}

#[test]
fn f_02_ipv4_headers_of_another_kind_are_dropped() {
    refused(false, Reason::IpVersion, |f| f[14] = 0x55);
    refused(false, Reason::Ipv4HeaderLength, |f| f[14] = 0x46);
    refused(false, Reason::Ipv4HeaderChecksum, |f| f[24] ^= 1);
    refused(false, Reason::Ipv4MoreFragments, |f| {
        f[20] |= 0x20;
        seal(f);
    });
    refused(false, Reason::Ipv4Fragment, |f| {
        f[21] = 1;
        seal(f);
    });
    refused(false, Reason::NotRoce, |f| {
        f[23] = 6;
        seal(f);
    });
    refused(false, Reason::NotRoce, |f| {
        f[37] ^= 1;
        seal(f);
    });
}

#[test]
fn f_02_a_clear_dont_fragment_flag_is_the_ports_policy() {
    let clear = |what: &mut Description| {
        let Layer3::Ipv4(ip, _) = &mut what.layer3 else { panic!("IPv4") };
        ip.flags_offset = 0;
    };
    taken(false, clear);
    let mut pair = responder(false);
    let port = *pair.ends[1].engine.port();
    pair.ends[1].engine.set_port(Port { require_dont_fragment: true, ..port });
    let mut what = send(&pair);
    clear(&mut what);
    let frame = build(&what).expect("it can be written");
    nothing(&mut pair, &frame, Reason::Ipv4DontFragmentClear);
}

#[test]
fn f_03_ipv6_takes_every_flow_label_and_no_extension_header() {
    for flow_label in [0, 1, 0xF_FFFF] {
        taken(true, |what| {
            let Layer3::Ipv6(ip, _) = &mut what.layer3 else { panic!("IPv6") };
            ip.flow_label = flow_label;
        });
    }
    for next_header in [0, 43, 44, 60] {
        refused(true, Reason::Ipv6ExtensionHeader, |f| {
            f.splice(54..54, [17, 0, 1, 4, 0, 0, 0, 0]);
            f[20] = next_header;
            f[19] += 8;
        });
    }
}

#[test]
fn f_04_udp_lengths_that_do_not_fit_are_dropped_and_a_checksum_of_any_value_is_taken() {
    // Chosen: the UDP checksum is ignored; the ICRC covers more.
    for checksum in [Derived::Is(0), Derived::Right, Derived::Is(0x1234)] {
        for ipv6 in [false, true] {
            taken(ipv6, |what| {
                let (Layer3::Ipv4(_, udp) | Layer3::Ipv6(_, udp)) = &mut what.layer3 else {
                    panic!("RoCE v2")
                };
                udp.checksum = checksum;
            });
        }
    }
    for (ipv6, at) in [(false, 38), (true, 58)] {
        for length in [0u16, 8, 23, 31, 33, 200, 0xFFFF] {
            refused(ipv6, Reason::UdpLength, |f| {
                f[at..at + 2].copy_from_slice(&length.to_be_bytes());
                seal(f);
            });
        }
    }
    refused(false, Reason::IpLength, |f| {
        f[16..18].copy_from_slice(&200u16.to_be_bytes());
        seal(f);
    });
}

#[test]
fn f_05_one_source_port_for_a_flow_and_any_from_the_peer() {
    for port in [0, 69, 4791, 0xFFFF] {
        taken(false, |what| {
            let Layer3::Ipv4(_, udp) = &mut what.layer3 else { panic!("IPv4") };
            udp.source_port = port;
        });
    }
    let mut pair = responder(false);
    let work = Work { length: 4, local: Place { token: 0, base: 0, length: 4 }, ..Work::default() };
    pair.ends[0].post(work);
    let mut frames = pair.hear(0);
    pair.inject(1, &frames[0].frame);
    frames.extend(pair.hear(1));
    pair.pass(0, 4096 << 10);
    frames.extend(pair.hear(0));
    assert_eq!(frames.len(), 3);
    for heard in frames {
        let packet = parse(&heard.frame).expect("it can be parsed");
        let expected = udp_source_port(0, Qpn::new(0x11), Qpn::new(0x22));
        assert_eq!(packet.udp_source_port(), Some(expected), "ACK and retransmission too");
    }
}

#[test]
fn f_06_traffic_class_is_the_paths_in_both_directions_and_ce_is_not_copied() {
    for ipv6 in [false, true] {
        let path = Path { traffic_class: 0x6A, ..Path::default() };
        let attributes = Attributes { path, ..Attributes::default() };
        let mut pair = Pair::new(Setup { attributes, ipv6, ..Setup::default() });
        pair.region();
        for opcode in [WorkOpcode::Write, WorkOpcode::Read] {
            let local = Place { token: 0, base: 0, length: 2000 };
            let work = Work { opcode, length: 2000, local, rkey: RKey(KEY), ..Work::default() };
            pair.ends[0].post(work);
        }
        for heard in pair.hear(0) {
            let packet = parse(&heard.frame).expect("it can be parsed");
            assert_eq!(packet.traffic_class(), 0x6A);
            let mut marked = describe(&packet);
            match &mut marked.layer3 {
                Layer3::Ipv4(ip, _) => ip.traffic_class = 0x6B,
                Layer3::Ipv6(ip, _) | Layer3::Grh(ip) => ip.traffic_class = 0x6B,
            }
            assert_eq!(pair.tell(1, &marked), None);
        }
        let heard = pair.hear(1);
        assert_eq!(heard.len(), 2, "the READ's answers acknowledge the WRITE");
        for heard in heard {
            let packet = parse(&heard.frame).expect("it can be parsed");
            assert_eq!(packet.traffic_class(), 0x6A, "not 0x6B");
        }
    }
}

#[test]
fn f_07_hop_limit_is_the_paths_and_arrives_with_any_value() {
    for ttl in [0, 1, 255] {
        taken(false, |what| {
            let Layer3::Ipv4(ip, _) = &mut what.layer3 else { panic!("IPv4") };
            ip.ttl = ttl;
        });
    }
    for hop_limit in [1, 64, 255] {
        for (ipv6, at) in [(false, 22), (true, 21)] {
            let path = Path { hop_limit, ..Path::default() };
            let attributes = Attributes { path, ..Attributes::default() };
            let mut pair = Pair::new(Setup { attributes, ipv6, ..Setup::default() });
            pair.ends[0].post(Work::default());
            assert_eq!(pair.hear(0)[0].frame[at], hop_limit);
        }
    }
}

#[test]
fn f_08_pad_counts_of_small_payloads_and_pad_bytes_of_any_value() {
    for length in 0..10usize {
        let mut pair = responder(false);
        let local = Place { token: 0, base: 0, length: length as u32 };
        pair.ends[0].post(Work { length: length as u32, local, ..Work::default() });
        let heard = pair.hear(0);
        let packet = parse(&heard[0].frame).expect("it can be parsed");
        assert_eq!(usize::from(packet.bth.pad_count()), length.wrapping_neg() & 3);
        assert!(packet.pad().iter().all(|&byte| byte == 0));
        taken(false, |what| {
            let pad = length.wrapping_neg() & 3;
            what.payload = vec![7; length];
            what.pad = vec![0xAA; pad];
            what.bth.flags = (pad as u8) << 4;
        });
    }
}

#[test]
fn f_09_the_largest_packet_of_each_path_mtu() {
    for mtu in PathMtu::ALL {
        for (ipv6, headers) in [(false, 64), (true, 84)] {
            let attributes = Attributes { path_mtu: mtu, ..Attributes::default() };
            let mut pair = Pair::new(Setup { attributes, ipv6, ..Setup::default() });
            let length = 2 * mtu.bytes();
            let local = Place { token: 0, base: 0, length };
            let opcode = WorkOpcode::WriteImm;
            pair.ends[0].post(Work { opcode, length, local, ..Work::default() });
            pair.ends[0].post(Work { opcode, length: length / 2, local, ..Work::default() });
            let longest = pair.hear(0).iter().map(|h| h.frame.len() - 14).max();
            assert_eq!(longest, Some(mtu.bytes() as usize + headers), "IP bytes, RETH and ImmDt");
        }
    }
}

#[test]
fn f_10_bytes_behind_the_icrc_are_ethernets() {
    for padding in [0, 1, 2, 17, 40] {
        taken(false, |what| what.ethernet_padding = vec![0xDD; padding]);
        taken(true, |what| what.ethernet_padding = vec![0xDD; padding]);
    }
}

#[test]
fn f_21_an_immediate_stands_behind_the_reth_or_alone() {
    let mut pair = responder(false);
    let local = Place { token: 0, base: 0, length: 1500 };
    let work = Work {
        opcode: WorkOpcode::WriteImm,
        length: 1500,
        local,
        rkey: RKey(KEY),
        immediate: 0xCAFE_F00D,
        ..Work::default()
    };
    pair.ends[0].post(work);
    pair.ends[0].post(Work { length: 4, ..work });
    let heard = pair.hear(0);
    let bth = 14 + 28;
    assert_eq!(heard[1].opcode, op::WRITE_LAST_IMM);
    assert_eq!(heard[1].frame[bth + 12..bth + 16], 0xCAFE_F00Du32.to_be_bytes());
    assert_eq!(heard[1].frame.len(), bth + 16 + 476 + 4);
    assert_eq!(heard[2].opcode, op::WRITE_ONLY_IMM);
    assert_eq!(heard[2].frame[bth + 28..bth + 32], 0xCAFE_F00Du32.to_be_bytes());
    assert_eq!(imm(0xCAFE_F00D).immdt.immediate.get(), 0xCAFE_F00D);
}

#[test]
fn f_51_a_thousand_cnps_in_the_middle_of_a_message_disturb_nothing() {
    let mut pair = responder(false);
    pair.ask(1, op::SEND_FIRST, 0x100, plain(), &[1; 1024]);
    pair.hear(1);
    for psn in [0, 0x101, 0x102, 0x00FF_FFFF] {
        for _ in 0..250 {
            let mut cnp = pair.packet(1, op::CNP, psn, plain(), &[]);
            cnp.bth.ack_req = 0;
            cnp.bth.ecn = 0x40;
            assert_eq!(pair.tell(1, &cnp), Some(Reason::CongestionNotification));
        }
    }
    assert!(pair.hear(1).is_empty());
    assert_eq!(pair.ends[1].face.events, [Event::CongestionNotified(pair.ends[1].qpn); 1000]);
    assert_eq!(pair.ask(1, op::SEND_LAST, 0x101, plain(), &[2; 4]), None);
    assert_eq!(brief(&pair.hear(1)), [(op::ACKNOWLEDGE, 0x101)]);
    let mut stray = pair.packet(1, op::CNP, 0, plain(), &[]);
    stray.bth.dest_qp = [0, 7, 7];
    assert_eq!(pair.tell(1, &stray), Some(Reason::QpUnknown));
    assert!(pair.hear(1).is_empty());
}

#[test]
fn f_63_an_answer_goes_to_the_paths_mac_whatever_mac_the_request_came_from() {
    let mut pair = responder(false);
    let mut what = pair.packet(1, op::WRITE_ONLY, 0x100, reth(0, KEY, 4), &[1; 4]);
    what.source_mac = [2, 0xBA, 0xD0, 0, 0, 1];
    assert_eq!(pair.tell(1, &what), None);
    assert_eq!(pair.hear(1)[0].frame[..6], [2, 0, 0, 0, 0, 1]);
}
