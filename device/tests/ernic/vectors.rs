//! Values that others have printed: AMD's example design for v4.0, and the counters of AMD's two-device
//! example. Their origin is in the comments; frames are built here from the fields.

use softrnic_device::ernic::{Ernic, ErnicConfig, Location, Profile, Register as R};
use softrnic_device::{Memory, Nic, Ram};
use softrnic_engine::packet::{BthFields, FRAME_LEN_MAX, Flow, Template, opcode};
use softrnic_engine::{Nanos, Psn, Qpn, Reason, Room, Rx};

use crate::world::{Bench, Check, QP, READ, SEND, WRITE, Wr, at, same, seal_icrc};

const BASE: u64 = 0x4000_0000;
const STEP: u64 = 0x4_0000;
const VA: u64 = 0xCAD5_3074;
/// Keys of regions 0 to 4, and the R_Keys with which the generator reads them through QP 3 to 7.
const KEYS: [u32; 5] = [0x98, 0x81, 0x18, 0xEB, 0xD4];
const WIRE: [u32; 5] = [0x0098, 0x0181, 0x0218, 0x03EB, 0x04D4];
const PEER_MAC: [u8; 6] = [0xEA, 0x1E, 0x1C, 0x69, 0xB8, 0xED];
const PEER_IP: u32 = 0xD7AC_977E;
const OWN_IP: u32 = 0xC000_0201;
const LSTRQREQ: u32 = 0x04A0_2AA9;

/// The example design's registers: v4.0-silicon's slots, protection domains 0 to 4 on QP 3 to 7.
fn example() -> Nic<Ernic, Ram> {
    let config =
        ErnicConfig { profile: Profile::V4_0_SILICON, num_qp: 8, ..ErnicConfig::default() };
    let mut nic = Nic::ernic(config, Ram::new(BASE, 0x20_0000));
    let mut set = |register: R, index: u16, value: u32| {
        let offset = nic.device.map().offset(Location { register, index });
        nic.write32(offset, value);
    };
    set(R::XrnicConfQpEn, 0, 7);
    set(R::Macxaddlsb, 0, 1);
    set(R::Macxaddmsb, 0, 0x0200);
    set(R::Ipv4xadd, 0, OWN_IP);
    for n in 0..5u16 {
        set(R::Pdpdnum, n, n.into());
        set(R::Virtaddrlsb, n, (VA + u64::from(n) * STEP) as u32);
        set(R::Bufbaseaddrlsb, n, (BASE + u64::from(n) * STEP) as u32);
        set(R::Bufrkey, n, KEYS[usize::from(n)]);
        set(R::Wrrdbuflen, n, STEP as u32);
        set(R::Accessdesc, n, 2);
        let q = n + 3;
        set(R::Pd, q, n.into());
        set(R::Destqpconf, q, q.into());
        set(R::Macdesaddlsb, q, 0x1C69_B8ED);
        set(R::Macdesaddmsb, q, 0xEA1E);
        set(R::Ipdesaddr1, q, PEER_IP);
        set(R::Lstrqreq, q, LSTRQREQ);
        set(R::Qpconf, q, 0x1 | 4 << 8 | 1 << 16);
    }
    // Reserved bits 1 and 7 set, ACK mode 01.
    set(R::Xrnicconf, 0, 0x00E3_488B);
    nic
}

/// A packet of the generator: RETH and payload behind fixed headers.
fn packet(value: u8, q: u32, n: u32, rkey: u32, payload: &[u8]) -> Check<Vec<u8>> {
    let row = opcode::row(value);
    let template = Template::new(&Flow {
        source_mac: PEER_MAC,
        dest_mac: [2, 0, 0, 0, 0, 1],
        vlan_tci: None,
        source_ip: std::net::Ipv4Addr::from_bits(PEER_IP).into(),
        dest_ip: std::net::Ipv4Addr::from_bits(OWN_IP).into(),
        traffic_class: 0xB8,
        hop_limit: 0xBA,
        flow_label: 0,
        source_port: 0x12B7,
        pkey: 0x666F,
        dest_qpn: Qpn::new(q),
    })
    .ok_or("no template")?;
    let mut frame = vec![0; template.frame_len(row, payload.len())];
    frame[54..62].copy_from_slice(&(VA + u64::from(q - 3) * STEP).to_be_bytes());
    frame[62..66].copy_from_slice(&rkey.to_be_bytes());
    frame[66..70].copy_from_slice(&0x1000u32.to_be_bytes());
    frame[70..70 + payload.len()].copy_from_slice(payload);
    let psn = Psn::new(LSTRQREQ).plus(1 + n);
    template.finish(&mut frame, row, payload.len(), BthFields { psn, ..BthFields::default() });
    if payload.is_empty() {
        // Pad count 3 on a packet without payload.
        frame[at::OPCODE + 1] |= 0x30;
    }
    seal_icrc(&mut frame);
    Ok(frame)
}

fn next_frame(nic: &mut Nic<Ernic, Ram>) -> Option<Vec<u8>> {
    let mut bytes = [0; FRAME_LEN_MAX];
    let mut room = Room { bytes: &mut bytes, segments: 1, source_port: None };
    let train = nic.poll_transmit(Nanos(0), &mut room)?;
    Some(bytes[..train.len].to_vec())
}

#[test]
fn the_example_designs_reads_reach_their_regions() -> Check {
    let mut nic = example();
    for (n, (q, rkey)) in (0..).zip((3..8).zip(WIRE)) {
        let content = [n as u8 + 1; 0x1000];
        nic.memory.write(BASE + n * STEP, &content).map_err(|fault| fault.to_string())?;
        let frame = packet(opcode::READ_REQUEST, q, 0, rkey, &[])?;
        // 70 bytes before the ICRC.
        same("length", frame.len(), 70 + 4)?;
        let verdict = nic.handle_frame(Nanos(0), &frame, Rx::default());
        same("taken", verdict.refused, None)?;
        let answer = next_frame(&mut nic).ok_or("no answer")?;
        same("READ RESPONSE ONLY", answer[at::OPCODE], 0x10)?;
        same("UDP source port", &answer[34..36], &[0xE3, 0x48])?;
        same("bytes", answer[58..58 + 0x1000] == content, true)?;
    }
    same("nothing more", next_frame(&mut nic), None)
}

#[test]
fn each_read_with_another_regions_key_is_refused() -> Check {
    for (q, wrong) in (3..8).zip([0x0181, 0x0218, 0x03EB, 0x04D4, 0x0098]) {
        let mut nic = example();
        let frame = packet(opcode::READ_REQUEST, q, 0, wrong, &[])?;
        let verdict = nic.handle_frame(Nanos(0), &frame, Rx::default());
        same("refused", verdict.refused, Some(Reason::ProtectionDomain))?;
        let answer = next_frame(&mut nic).ok_or("no answer")?;
        same("NAK", (answer[at::OPCODE], answer[at::AETH]), (0x11, 0x62))?;
    }
    // A row number beyond the table, and a key byte that is not the row's.
    for rkey in [0x0008_0098, 0x0099, u32::MAX] {
        let frame = packet(opcode::READ_REQUEST, 3, 0, rkey, &[])?;
        let verdict = example().handle_frame(Nanos(0), &frame, Rx::default());
        same("refused", verdict.refused, Some(Reason::KeyUnknown))?;
    }
    Ok(())
}

/// The generator's WRITE ONLY carries 64 bytes and claims 0x1000, with its first R_Key and with the
/// region's own.
#[test]
fn the_generators_write_is_no_valid_transaction() -> Check {
    for rkey in [0x2BA7, 0x0098] {
        let mut nic = example();
        let frame = packet(opcode::WRITE_ONLY, 3, 0, rkey, &[0xAA; 64])?;
        same("length", frame.len(), 134 + 4)?;
        let verdict = nic.handle_frame(Nanos(0), &frame, Rx::default());
        same("refused", verdict.refused, Some(Reason::PayloadLength))?;
        let answer = next_frame(&mut nic).ok_or("no answer")?;
        same("NAK invalid request", (answer[at::OPCODE], answer[at::AETH]), (0x11, 0x61))?;
        let mut bytes = [1; 64];
        nic.memory.read(BASE, &mut bytes).map_err(|fault| fault.to_string())?;
        same("nothing is written", bytes, [0; 64])?;
    }
    Ok(())
}

/// The README of AMD's two-device example prints these after two SENDs one way, a WRITE and a READ the other.
#[test]
fn counters_of_two_devices() -> Check {
    let bench = Bench::new(None);
    let mut world = bench.world();
    for _ in 0..2 {
        world.run(&Wr::new(SEND, 64))?;
    }
    for opcode in [WRITE, READ] {
        world.b.post(QP, &Wr::new(opcode, 64))?;
        world.settle()?;
    }
    let (one, two) = (&mut world.a, &mut world.b);
    same("1: SEND/WRITE in 1, READ responses in 0", one.get(R::Insrrpktcnt, 0), 1)?;
    same("1: ACKs in 2", one.get(R::Inampktcnt, 0), 2)?;
    same("1: ACKs out 1", one.get(R::Outampktcnt, 0), 1)?;
    same("1: READ responses out 1", one.get(R::Outrdrsppktcnt, 0), 1)?;
    same("2: SEND/WRITE in 2, READ responses in 1", two.get(R::Insrrpktcnt, 0), 2 | 1 << 16)?;
    same("2: READ/WRITE out 2", two.get(R::Outiopktcnt, 0) >> 16, 2)?;
    same("2: ACKs in 1", two.get(R::Inampktcnt, 0), 1)?;
    same("2: ACKs out 2", two.get(R::Outampktcnt, 0), 2)
}
