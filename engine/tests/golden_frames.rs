//! The 46 frames of `golden/icrc-vectors.txt`, and what follows from them: ICRC, lengths, padding.
#![allow(clippy::unwrap_used, reason = "a test whose input cannot be read should fail")]

use softrnic_engine::Reason;
use softrnic_engine::packet::{
    Derived, Description, Ext, Layer3, Network, Packet, Payload, build, describe, icrc, opcode,
    parse,
};

struct Vector {
    id: &'static str,
    icrc: [u8; 4],
    frame: Vec<u8>,
}

fn vectors() -> Vec<Vector> {
    let lines = include_str!("../../golden/icrc-vectors.txt").lines();
    lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            let mut columns = line.split(' ');
            let id = columns.next().unwrap();
            let icrc = hex(columns.next().unwrap()).try_into().unwrap();
            let frame = hex(columns.next().unwrap());
            Vector { id, icrc, frame }
        })
        .collect()
}

fn frame(id: &str) -> Vec<u8> {
    vectors().into_iter().find(|vector| vector.id == id).unwrap().frame
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

fn description(id: &str) -> Description {
    describe(&parse(&frame(id)).unwrap())
}

fn accepted(frame: &[u8]) -> bool {
    parse(frame).is_ok_and(|packet| packet.icrc_valid())
}

/// Redoes the ICRC of a packet that ends with the frame, whatever else is wrong with it.
fn redo_icrc(frame: &mut [u8], network: Network, l3: usize) {
    let at = frame.len() - 4;
    let crc = icrc::of(network, &frame[l3..at]);
    frame[at..].copy_from_slice(&crc.to_le_bytes());
}

const NOT_LEGAL: [(&str, Reason); 2] =
    [("P02", Reason::PayloadNotAllowed), ("G33", Reason::Ipv4HeaderLength)];

#[test]
fn f_40_44_frames_parse_verify_and_build_byte_for_byte() {
    assert_eq!(vectors().len(), 46);
    for vector in vectors() {
        if NOT_LEGAL.iter().any(|(id, _)| *id == vector.id) {
            continue;
        }
        let packet = parse(&vector.frame).unwrap_or_else(|why| panic!("{}: {why}", vector.id));
        assert_eq!(packet.icrc_carried().to_le_bytes(), vector.icrc, "{}", vector.id);
        assert_eq!(packet.icrc_computed().to_le_bytes(), vector.icrc, "{}", vector.id);
        let description = describe(&packet);
        assert_eq!(description.icrc, Derived::Right, "{}", vector.id);
        assert_eq!(build(&description).as_deref(), Ok(&vector.frame[..]), "{}", vector.id);
    }
}

#[test]
fn f_31_p02_an_ack_with_payload_verifies_and_is_refused_on_both_paths() {
    let bytes = frame("P02");
    assert_eq!(parse(&bytes).err(), Some(Reason::PayloadNotAllowed));
    let crc = icrc::of(Network::Ipv4, &bytes[14..bytes.len() - 4]);
    assert_eq!(crc.to_le_bytes(), [0xA6, 0x91, 0x8E, 0xE5]);

    let mut ack = description("G04");
    ack.payload = vec![0, 0, 1, 0x23];
    assert_eq!(build(&ack), Err(Reason::PayloadNotAllowed));
}

#[test]
fn f_02_g33_ipv4_options_verify_as_covered_and_are_refused_on_both_paths() {
    let bytes = frame("G33");
    assert_eq!(parse(&bytes).err(), Some(Reason::Ipv4HeaderLength));
    // The vector takes the options as covered and unmasked: mask the rest without them.
    let mut covered = bytes[14..bytes.len() - 4].to_vec();
    let options: Vec<u8> = covered.drain(20..24).collect();
    icrc::mask(Network::Ipv4, &mut covered);
    covered.splice(20..20, options.clone());
    assert_eq!(icrc::of_masked(&covered).to_le_bytes(), [0x91, 0x0B, 0xBC, 0xE9]);

    let mut send = description("G01");
    let Layer3::Ipv4(ip, _) = &mut send.layer3 else { panic!("G01 is IPv4") };
    ip.options = options;
    assert_eq!(build(&send), Err(Reason::Ipv4HeaderLength));
}

#[test]
fn f_20_reserved_bits_survive_parse_and_build() {
    for (id, ecn, ack_req) in [("H04", 0x10, 0x80), ("G34", 0x00, 0xE2), ("G35", 0x10, 0x80)] {
        let bytes = frame(id);
        let packet = parse(&bytes).unwrap();
        assert_eq!((packet.bth.ecn, packet.bth.ack_req), (ecn, ack_req), "{id}");
        let built = build(&describe(&packet)).unwrap();
        let built = parse(&built).unwrap();
        assert_eq!((built.bth.ecn, built.bth.ack_req), (ecn, ack_req), "{id}");
    }
}

#[test]
fn f_10_ethernet_padding_is_no_part_of_the_packet() {
    let g02 = frame("G02");
    assert_eq!(g02.len(), 60);
    let packet = parse(&g02).unwrap();
    assert_eq!(packet.icrc_offset() + 4, 58);
    assert!(packet.payload().is_empty() && packet.pad().is_empty());
    assert_eq!(describe(&packet).ethernet_padding, [0, 0]);

    for id in ["G01", "G02", "G16", "P06"] {
        let bytes = frame(id);
        let plain = parse(&bytes).unwrap();
        for trailing in 1..=40 {
            for fill in [0x00, 0x5A, 0xFF] {
                let mut longer = bytes.clone();
                longer.extend(std::iter::repeat_n(fill, trailing));
                let packet = parse(&longer).unwrap();
                assert!(packet.icrc_valid(), "{id} + {trailing}");
                assert_eq!(packet.payload(), plain.payload());
                assert_eq!(packet.icrc_offset(), plain.icrc_offset());
                assert_eq!(build(&describe(&packet)), Ok(longer.clone()));
            }
        }
    }
}

/// Masked bits by layer 3: byte and bits, counted from the IP header or GRH.
fn masked(network: Network) -> Vec<(usize, u8)> {
    match network {
        Network::Ipv4 => [1, 8, 10, 11, 26, 27, 32].into_iter().map(|byte| (byte, 0xFF)).collect(),
        Network::Ipv6 => {
            let whole = [1, 2, 3, 7, 46, 47, 52].into_iter().map(|byte| (byte, 0xFF));
            std::iter::once((0, 0x0F)).chain(whole).collect()
        }
        Network::Grh => {
            let whole = [1, 2, 3, 7, 44].into_iter().map(|byte| (byte, 0xFF));
            std::iter::once((0, 0x0F)).chain(whole).collect()
        }
    }
}

#[test]
fn f_40_every_flipped_bit_is_masked_or_breaks_the_icrc() {
    for id in ["G01", "G16", "P06"] {
        let bytes = frame(id);
        let packet = parse(&bytes).unwrap();
        let (network, l3, icrc_at) = (packet.network, packet.l3_offset(), packet.icrc_offset());
        let masked = masked(network);
        for bit in 8 * l3..8 * (icrc_at + 4) {
            let (byte, mask) = (bit / 8, 0x80 >> (bit % 8));
            let mut flipped = bytes.clone();
            flipped[byte] ^= mask;
            let carried = u32::from_le_bytes(flipped[icrc_at..icrc_at + 4].try_into().unwrap());
            let right = icrc::of(network, &flipped[l3..icrc_at]) == carried;
            let is_masked = masked.iter().any(|&(at, bits)| at == byte - l3 && bits & mask != 0);
            assert_eq!(right, is_masked, "{id} byte {} bit {mask:#04x}", byte - l3);
            if !is_masked {
                assert!(!accepted(&flipped), "{id} byte {} bit {mask:#04x}", byte - l3);
            }
        }
    }
}

#[test]
fn t_01_the_icrc_is_stored_least_significant_byte_first() {
    for vector in vectors() {
        let Ok(packet) = parse(&vector.frame) else { continue };
        let at = packet.icrc_offset();
        let mut swapped = vector.frame.clone();
        swapped[at..at + 4].reverse();
        assert!(!accepted(&swapped), "{}", vector.id);
    }
}

#[test]
fn t_01_what_routers_and_switches_change_leaves_the_icrc_alone() {
    let same = |ids: &[&str]| {
        let first = parse(&frame(ids[0])).unwrap().icrc_carried();
        ids.iter().all(|id| parse(&frame(id)).unwrap().icrc_carried() == first)
    };
    assert!(same(&["G01", "G20", "G21", "G22", "G23", "G24", "G35"]));
    assert!(same(&["G16", "G28", "G29"]));
    for id in ["G25", "G26", "G27", "G34"] {
        assert!(!same(&["G01", id]), "{id}");
    }
}

/// A frame of each network for this opcode and payload length, with a right ICRC.
fn frames(opcode: u8, payload_len: usize) -> Vec<(Network, Description)> {
    [("G01", Network::Ipv4), ("G16", Network::Ipv6), ("P06", Network::Grh)]
        .into_iter()
        .map(|(id, network)| {
            let mut what = description(id);
            let pad = payload_len.wrapping_neg() & 3;
            what.bth.opcode = opcode;
            what.bth.flags = (pad as u8) << 4;
            what.payload = (0..payload_len).map(|i| (7 * i + 3) as u8).collect();
            what.pad = vec![0; pad];
            (network, what)
        })
        .collect()
}

/// A packet's frame without padding, its lengths and ICRC redone for what is left after `cut` bytes
/// before the ICRC were taken out.
fn cut_short(packet: &Packet<'_>, cut: usize) -> Vec<u8> {
    let mut bytes = packet.frame[..packet.icrc_offset() + 4].to_vec();
    let end = bytes.len() - 4;
    bytes.drain(end - cut..end);
    let l3 = packet.l3_offset();
    let mut shorten = |at: usize| {
        let length = u16::from_be_bytes([bytes[at], bytes[at + 1]]) - cut as u16;
        bytes[at..at + 2].copy_from_slice(&length.to_be_bytes());
    };
    match packet.network {
        Network::Ipv4 => {
            shorten(l3 + 2);
            shorten(l3 + 24);
            let sum: u32 = (0..10)
                .filter(|word| *word != 5)
                .map(|word| {
                    let at = l3 + 2 * word;
                    u32::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]))
                })
                .sum();
            let sum = !(((sum & 0xFFFF) + (sum >> 16)) as u16);
            bytes[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
        }
        Network::Ipv6 => {
            shorten(l3 + 4);
            shorten(l3 + 44);
        }
        Network::Grh => shorten(l3 + 4),
    }
    if bytes.len() - 4 >= packet.bth_offset() + 12 {
        redo_icrc(&mut bytes, packet.network, l3);
    }
    bytes
}

#[test]
fn f_31_a_packet_cut_inside_its_headers_is_refused_with_lengths_and_icrc_redone() {
    for row in opcode::known() {
        for (_, what) in frames(row.value, 0) {
            let bytes = build(&what).unwrap();
            let packet = parse(&bytes).unwrap();
            for cut in 1..=usize::from(row.header_len) {
                let short = cut_short(&packet, cut);
                let why = parse(&short).err();
                let expected =
                    [Reason::FrameTooShort, Reason::IpLength, Reason::UdpLength].map(Some);
                assert!(expected.contains(&why), "{:#04x} - {cut}: {why:?}", row.value);
            }
        }
    }
}

#[test]
fn f_31_a_frame_cut_anywhere_is_refused_or_lost_only_its_padding() {
    for vector in vectors() {
        let end =
            parse(&vector.frame).map_or(vector.frame.len(), |packet| packet.icrc_offset() + 4);
        for len in 0..end {
            assert!(parse(&vector.frame[..len]).is_err(), "{} cut to {len}", vector.id);
        }
    }
}

#[test]
fn f_08_a_payload_that_does_not_fill_words_is_refused() {
    for (_, what) in frames(opcode::SEND_ONLY, 16) {
        let bytes = build(&what).unwrap();
        let packet = parse(&bytes).unwrap();
        for cut in 1..=16 {
            let why = parse(&cut_short(&packet, cut)).err();
            assert_eq!(why, (cut % 4 != 0).then_some(Reason::PadCount), "{cut}");
        }
    }
}

#[test]
fn f_08_pad_bytes_are_covered_and_of_any_value() {
    let mut what = description("G03");
    what.pad = vec![0xAA; 3];
    let bytes = build(&what).unwrap();
    let packet = parse(&bytes).unwrap();
    assert!(packet.icrc_valid());
    assert_eq!((packet.payload().len(), packet.pad()), (1, &[0xAA; 3][..]));
    what.pad.pop();
    assert_eq!(build(&what), Err(Reason::PadCount));
}

#[test]
fn f_30_every_opcode_at_every_payload_length() {
    for opcode in 0..=255 {
        let row = opcode::row(opcode);
        for payload_len in 0..=64 {
            for (network, what) in frames(opcode, payload_len) {
                let built = build(&what);
                let expected = if row.transport == opcode::Transport::None {
                    Err(Reason::OpcodeUnknown)
                } else if row.payload == Payload::None && payload_len != 0 {
                    Err(Reason::PayloadNotAllowed)
                } else {
                    Ok(payload_len)
                };
                let found = built.as_ref().map(|bytes| {
                    let packet = parse(bytes).unwrap();
                    assert!(packet.icrc_valid());
                    assert_eq!((packet.network, packet.row.value), (network, opcode));
                    let headers: u8 = Ext::ORDER
                        .iter()
                        .filter(|(which, _)| row.ext.has(*which))
                        .map(|(_, len)| len)
                        .sum();
                    assert_eq!(usize::from(row.header_len), 12 + usize::from(headers));
                    assert_eq!(packet.payload(), what.payload);
                    packet.payload().len()
                });
                assert_eq!(found.map_err(|why| *why), expected, "{opcode:#04x} {payload_len}");
            }
        }
    }
}

/// crc32fast chooses its implementation when a hasher is made; `internal_new_specialized` is the
/// constructor that `Hasher::new` tries first, and gives `None` where it would fall back to tables.
#[test]
#[cfg(feature = "std")]
fn f_40_the_cpus_crc_path_is_in_use() {
    #[cfg(target_arch = "x86_64")]
    let capable = std::arch::is_x86_feature_detected!("pclmulqdq")
        && std::arch::is_x86_feature_detected!("sse2")
        && std::arch::is_x86_feature_detected!("ssse3")
        && std::arch::is_x86_feature_detected!("sse4.1");
    #[cfg(target_arch = "aarch64")]
    let capable = std::arch::is_aarch64_feature_detected!("crc");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let capable = false;
    let specialized = crc32fast::Hasher::internal_new_specialized(0, 0);
    assert_eq!(specialized.is_some(), capable);

    // Both implementations agree on every length, so which of them runs changes no byte.
    let bytes: Vec<u8> = (0..1100u32).map(|i| ((i * 31) >> 3) as u8).collect();
    for len in 0..bytes.len() {
        let mut tables = crc32fast::Hasher::internal_new_baseline(0, 0);
        tables.update(&bytes[..len]);
        assert_eq!(crc32fast::hash(&bytes[..len]), tables.finalize(), "{len}");
    }
}
