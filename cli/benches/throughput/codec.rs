//! Writing and reading one SEND_ONLY frame, against copying and checksumming its payload.

use std::hint::black_box;

use softrnic_engine::packet::{BthFields, FRAME_LEN_MAX, Flow, Template, opcode, parse};
use softrnic_engine::{Psn, Qpn};

use crate::measure::minimum_ns;

const SLOTS: usize = 32;

pub(crate) fn run() {
    println!("codec: one frame, ns (payload Gbit/s), and the bound's time as a share of it");
    println!(
        "{:>8}  {:>22}  {:>22} {:>6}  {:>22} {:>6}",
        "payload", "memcpy + crc32fast", "encode", "ratio", "decode", "ratio"
    );
    for len in [64, 1024, 4096] {
        let [bound, encode, decode] = measure(len);
        let cell = |ns: f64| format!("{ns:.1} ns ({:.1})", len as f64 * 8.0 / ns);
        println!(
            "{len:>7}B  {:>22}  {:>22} {:>6.2}  {:>22} {:>6.2}",
            cell(bound),
            cell(encode),
            bound / encode,
            cell(decode),
            bound / decode
        );
    }
    println!();
}

fn measure(len: usize) -> [f64; 3] {
    let template = template();
    let row = opcode::row(opcode::SEND_ONLY);
    let payload: Vec<u8> = (0..len).map(|i| i as u8).collect();
    let mut slots = vec![[0; FRAME_LEN_MAX]; SLOTS];
    let frame_len = template.frame_len(row, len);
    let at = template.len();
    let encode_into = |slot: &mut [u8], psn: u32| {
        let frame = &mut slot[..frame_len];
        frame[at..at + len].copy_from_slice(&payload);
        let bth = BthFields { psn: Psn::new(psn), ack_request: true, ..BthFields::default() };
        template.finish(frame, row, len, bth);
    };
    let mut frames = slots.clone();
    for (i, slot) in frames.iter_mut().enumerate() {
        encode_into(slot, i as u32);
    }
    let (mut target, mut target_bound) = (vec![0; len], vec![0; len]);
    minimum_ns([
        &mut |rounds| {
            for _ in 0..rounds {
                target_bound.copy_from_slice(black_box(&payload));
                black_box(crc32fast::hash(black_box(&target_bound)));
            }
        },
        &mut |rounds| {
            for i in 0..rounds {
                let slot = &mut slots[i as usize % SLOTS];
                encode_into(black_box(slot), i as u32);
            }
        },
        &mut |rounds| {
            for i in 0..rounds {
                let frame = black_box(&frames[i as usize % SLOTS][..frame_len]);
                if let Ok(packet) = parse(frame)
                    && packet.icrc_valid()
                {
                    target.copy_from_slice(packet.payload());
                    black_box(&target);
                }
            }
        },
    ])
}

fn template() -> Template {
    let flow = Flow {
        source_mac: [2, 0, 0, 0, 0, 1],
        dest_mac: [2, 0, 0, 0, 0, 2],
        vlan_tci: None,
        source_ip: [192, 0, 2, 1].into(),
        dest_ip: [192, 0, 2, 2].into(),
        traffic_class: 2,
        hop_limit: 64,
        flow_label: 0,
        source_port: 0xC123,
        pkey: 0xFFFF,
        dest_qpn: Qpn::new(0x11),
    };
    match Template::new(&flow) {
        Some(template) => template,
        None => unreachable!("both addresses are IPv4"),
    }
}
