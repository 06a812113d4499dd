//! Bring-up sequences of real software, replayed register by register, and then traffic.

use softrnic_device::ernic::{Ernic, ErnicConfig, Profile, Register};
use softrnic_device::{Memory, Nic};
use softrnic_engine::packet::{Network, icrc, opcode};
use softrnic_engine::{Nanos, Reason, Room, Train};

use crate::bench::*;
use crate::script::{Sparse, Variables, replay};

const AMD_EXAMPLE: &str = include_str!("../../../golden/bring-up/amd-example.txt");
const BOARD: &str = include_str!("../../../golden/bring-up/board.txt");
const LINUX: &str = include_str!("../../../golden/bring-up/linux-staging.txt");

fn ends(profiles: [Profile; 2], num_qp: u16) -> Bench<Nic<Ernic, Sparse>> {
    Bench::of(profiles.map(|profile| {
        Nic::ernic(ErnicConfig { profile, num_qp, ..ErnicConfig::default() }, Sparse::default())
    }))
}

/// Everything that register accesses were refused for.
fn register_refusals(end: &Nic<Ernic, Sparse>) -> [u64; 4] {
    let reasons = [
        Reason::RegisterUnlisted,
        Reason::RegisterReadOnly,
        Reason::RegisterValue,
        Reason::RegisterAlignment,
    ];
    reasons.map(|reason| end.refused(reason))
}

/// A READ request as the example design's packet generator makes it: P_Key 0x666F, pad count 3 without
/// payload, TTL 0xBA.
fn generated_read(end: &mut Nic<Ernic, Sparse>, q: u16, va: u64, rkey: u32, len: u32) -> Vec<u8> {
    let psn = (end.get(Register::Lstrqreq, q) + 1) & 0xFF_FFFF;
    let mac = |low: u32, high: u32| [&high.to_be_bytes()[2..], &low.to_be_bytes()[..]].concat();
    let mut frame = mac(end.get(Register::Macxaddlsb, 0), end.get(Register::Macxaddmsb, 0));
    frame.extend(mac(end.get(Register::Macdesaddlsb, q), end.get(Register::Macdesaddmsb, q)));
    frame.extend([0x08, 0x00, 0x45, 0xB8, 0, 60, 0x55, 0x55, 0x40, 0, 0xBA, 17, 0, 0]);
    frame.extend(end.get(Register::Ipdesaddr1, q).to_be_bytes());
    frame.extend(end.get(Register::Ipv4xadd, 0).to_be_bytes());
    let words = frame[14..34].as_chunks::<2>().0.iter();
    let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    let sum = (sum & 0xFFFF) + (sum >> 16);
    frame[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    frame.extend([0x68, 0x51, 0x12, 0xB7, 0, 40, 0, 0, 0x0C, 0x30, 0x66, 0x6F, 0, 0]);
    frame.extend(q.to_be_bytes());
    frame.extend(psn.to_be_bytes());
    frame.extend(va.to_be_bytes());
    frame.extend(rkey.to_be_bytes());
    frame.extend(len.to_be_bytes());
    assert_eq!(frame.len(), 70);
    let crc = icrc::of(Network::Ipv4, &frame[14..]);
    frame.extend(crc.to_le_bytes());
    frame
}

/// The next frame of a queue pair, with what was sent for others before it left out.
fn next_of(end: &mut Nic<Ernic, Sparse>, q: u16) -> (Train, Vec<u8>) {
    let mut bytes = vec![0; 8192];
    loop {
        let mut room = Room { bytes: &mut bytes, segments: 1, source_port: None };
        let train = end.poll_transmit(Nanos(0), &mut room).unwrap();
        if train.qpn.get() == u32::from(q) {
            return (train, bytes);
        }
    }
}

#[test]
fn amds_example_design_comes_up_on_v4_0_silicon_and_answers_its_packet_generator() {
    let mut bench = ends([Profile::V4_0_SILICON, Profile::V4_0], 8);
    replay(&mut bench, 0, AMD_EXAMPLE, &Variables::new());
    let end = &mut bench.ends[0];
    assert_eq!(register_refusals(end), [0; 4], "nothing of it is refused");
    assert!(end.engine.port().enabled);
    // Five queue pairs, 3 to 7, of protection domains 0 to 4 with a region each.
    let keys = [0x0098, 0x0181, 0x0218, 0x03EB, 0x04D4];
    for (n, rkey) in (0u16..).zip(keys) {
        let q = n + 3;
        let step = u64::from(n) * 0x4_0000;
        fill(&mut end.memory, 0x4000_0000 + step, 0x1000, q as u8);
        let va = 0xCAD5_3074 + step;
        let wrong = generated_read(end, q, va, rkey ^ 1, 0x1000);
        let request = generated_read(end, q, va, rkey, 0x1000);
        let verdict = End::handle_frame(end, Nanos(0), &request);
        assert_eq!(verdict.refused, None, "queue pair {q}");
        let (train, bytes) = next_of(end, q);
        assert_eq!(train.opcode, opcode::READ_RESPONSE_ONLY);
        assert_eq!(
            bytes[58..58 + 4096],
            crate::bench::bytes(&end.memory, 0x4000_0000 + step, 4096)
        );
        assert_eq!(bytes[..6], request[6..12], "to the generator");
        // The same again under another key: refused, and the queue pair is fatal.
        let mut wrong = wrong;
        let psn = (end.get(Register::Lstrqreq, q) + 1) & 0xFF_FFFF;
        wrong[50..54].copy_from_slice(&psn.to_be_bytes());
        let crc = icrc::of(Network::Ipv4, &wrong[14..70]);
        wrong[70..].copy_from_slice(&crc.to_le_bytes());
        let verdict = End::handle_frame(end, Nanos(0), &wrong);
        assert_eq!(verdict.refused, Some(Reason::KeyUnknown));
        assert_eq!(end.get(Register::Statqp, q) & 1, 1);
    }
    // QP2 sends over its hardware handshake, which its QPCONF has on.
    let entry = Entry { opcode: 2, local: 0x4200_0000, len: 64, ..Entry::default() };
    end.memory.write(0x0060_0000, &entry.bytes(7)).unwrap();
    end.ring_side_band(0x18_0238, 1).unwrap();
    let (train, bytes) = next_of(end, 2);
    assert_eq!(train.opcode, opcode::SEND_ONLY);
    assert_eq!(bytes[..6], [0x16, 0xC4, 0x50, 0x56, 0x0F, 0x2E]);
    assert_eq!(bytes[30..34], [0x61, 0x0C, 0x60, 0x07]);
    assert_eq!(bytes[34..36], [0xE3, 0x48], "UDP source port");
    assert_eq!((bytes[15] & !3, bytes[22]), (0x02 << 2, 0xB0), "QPADVCONF 0x9bf1_b002");
}

#[test]
fn the_boards_order_streams_on_v4_0_silicon() {
    let mut bench = ends([Profile::V4_0_SILICON, Profile::V4_0], 8);
    const PSN: u64 = 0xFF_FF00;
    const HOST_VA: u64 = 0x7F00_0000_0000;
    let variables = Variables::from([
        ("psn", PSN),
        ("last_psn", PSN - 1),
        ("host_qpn", 5),
        ("host_mac_low", 2),
        ("host_mac_high", 0x0200),
    ]);
    replay(&mut bench, 0, BOARD, &variables);
    assert_eq!(register_refusals(&bench.ends[0]), [0; 4]);
    // The host at the other end.
    let host = &mut bench.ends[1];
    for (register, index, value) in [
        (Register::Macxaddlsb, 0, 2),
        (Register::Macxaddmsb, 0, 0x0200),
        (Register::Ipv4xadd, 0, 0xC0A8_6402),
        (Register::XrnicConfQpEn, 0, 7),
        (Register::Virtaddrmsb, 0, (HOST_VA >> 32) as u32),
        (Register::Bufbaseaddrlsb, 0, 0x1000_0000),
        (Register::Bufrkey, 0, 0x77),
        (Register::Wrrdbuflen, 0, 1024 << 16),
        (Register::Accessdesc, 0, 2),
        (Register::Lstrqreq, 5, 0x0400_0000 | (PSN as u32 - 1)),
        (Register::Destqpconf, 5, 2),
        (Register::Qdepth, 5, 0x0010_0010),
        (Register::Macdesaddlsb, 5, 1),
        (Register::Macdesaddmsb, 5, 0x0200),
        (Register::Ipdesaddr1, 5, 0xC0A8_6401),
        (Register::Qpconf, 5, 0x0010_0411),
        (Register::Xrnicconf, 0, 0x00C0_0001),
    ] {
        host.set(register, index, value);
    }
    // Entry k: RX chunk k mod 8 to host slot k, immediate k.
    for k in 0..1024u64 {
        let entry = Entry {
            opcode: 1,
            local: 0x8020_0000 + k % 8 * 0x1_0000,
            len: 0x1_0000,
            remote: HOST_VA + (k << 16),
            rkey: 0x77,
            immediate: k as u32,
        };
        bench.ends[0].memory.write(0x48_0000 + 64 * k, &entry.bytes(k as u16)).unwrap();
    }
    for chunk in 0..8 {
        fill(&mut bench.ends[0].memory, 0x8020_0000 + chunk * 0x1_0000, 0x1_0000, chunk as u8);
    }
    // Chunks fill, the port is rung 1, 2, ... 1024, 1, ...; completions come as counts at 0x004.
    let (mut rung, mut freed) = (0u32, 0);
    while freed < 1030 {
        while rung < 1030 && rung - freed < 8 {
            rung += 1;
            let index = (rung - 1) % 1024 + 1;
            bench.ends[0].ring_side_band(0x18_0238, index as u16).unwrap();
        }
        bench.settle();
        bench.log.clear();
        let before = freed;
        while let Some(beat) = bench.ends[0].device.take_completions() {
            assert_eq!(beat.address, 0x0004);
            freed += beat.count;
        }
        assert!(freed > before, "the stream stands still at {freed}");
        for n in before..freed {
            let entry = bench.ends[1].device.take_side_band().unwrap();
            assert_eq!((entry as u32, entry >> 32 & 0xF), (n % 1024, 3));
            let slot = 0x1000_0000 + (u64::from(n % 1024) << 16);
            let sent =
                bytes(&bench.ends[0].memory, 0x8020_0000 + u64::from(n % 1024 % 8) * 0x1_0000, 256);
            assert_eq!(bytes(&bench.ends[1].memory, slot, 256), sent);
        }
    }
    let end = &mut bench.ends[0];
    assert_eq!(end.get(Register::Cqhead, 2), 6);
    // Completion entries are written in spite of the handshake; memory doorbells are not.
    assert_eq!(end.memory.read_u32(0x4A_0000 + 4 * 5), Ok(5 | 1 << 16));
    assert_eq!(end.memory.read_u32(0x20_2004), Ok(0));
    assert_eq!(end.get(Register::Statqp, 2) & 0x601, 0x600);
}

#[test]
fn the_linux_staging_driver_comes_up_on_v3_1_and_what_was_removed_is_counted() {
    let mut bench = ends([Profile::V3_1; 2], 32);
    for end in 0..2 {
        let (own, peer) = (end as u64 + 1, 2 - end as u64);
        let variables = Variables::from([
            ("own_mac_low", own),
            ("own_mac_high", 0x0200),
            ("own_ip", u64::from(ipv4(own as u8))),
            ("own_ip6", own),
            ("peer_mac_low", peer),
            ("peer_mac_high", 0x0200),
            ("peer_ip", u64::from(ipv4(peer as u8))),
            ("own_psn", own * 0x1000),
            ("peer_psn", peer * 0x1000 - 1),
        ]);
        replay(&mut bench, end, LINUX, &variables);
        // Seven registers of older devices and two that QP1 lacks; ERRBUFWPTR and 28 STATRQBUFCA.
        assert_eq!(register_refusals(&bench.ends[end]), [9, 29, 0, 0]);
        let port = bench.ends[end].engine.port();
        assert_eq!(port.ipv6.octets()[..4], [0xFE, 0x80, 0, 0]);
    }
    // Its entries are filled once, with a buffer of 4096 bytes each; then it rings.
    let sent: Vec<u8> = (0..4096).map(|i| (i % 251) as u8).collect();
    bench.ends[0].memory.write(0x4100_0000, &sent).unwrap();
    for slot in 0..128 {
        let entry = Entry { opcode: 2, local: 0x4100_0000, len: 4096, ..Entry::default() };
        bench.ends[0].memory.write(0x4070_0000 + 64 * slot, &entry.bytes(slot as u16)).unwrap();
    }
    bench.ends[0].write32(0x2_0338, 3);
    bench.settle();
    // Interrupt handlers: the line, the bank, and the doorbell words in memory.
    let end = &mut bench.ends[1];
    assert!(end.interrupt());
    assert_eq!(end.read32(0x2_0184) & 1 << 6, 1 << 6);
    assert_eq!(end.read32(0x2_0190), 1 << 2);
    end.write32(0x2_0190, 1 << 2);
    assert_eq!(end.read32(0x2_0184) & 1 << 6, 0);
    assert_eq!(end.memory.read_u32(0x4050_0004), Ok(3));
    for slot in 0..3 {
        assert_eq!(bytes(&end.memory, 0x4060_0000 + 4096 * slot, 4096), sent);
    }
    let end = &mut bench.ends[0];
    assert_eq!(end.memory.read_u32(0x4050_1004), Ok(3));
    assert_eq!(end.read32(0x2_01B0), 1 << 2, "CQINTSTS1");
    assert_eq!(end.read32(0x2_0330), 3);
    // LSTOUTPKT before v4: opcode, 8 bits of queue pair, 16 of PSN.
    assert_eq!(end.read32(0x2_0114), 0x1002 << 16 | 2 << 8 | 0x04);
}
