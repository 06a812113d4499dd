//! Anything at all on two ERNICs: register writes, queue contents, frames, losses, time, in any order.
//! The body of the fuzz target `ernic`, of the random test and of the corpus replay: [`run`] plays a
//! script of bytes and judges it.
//!
//! No panic; no byte is touched that software did not give; between two events nobody sends or times
//! out for ever; and after a reset the device is as new and works.

mod bench;
mod bytes;
mod memory;

use bench::{Bench, QPS, Side};
use bytes::Bytes;
use softrnic_device::ernic::{ErnicConfig, Profile, ROWS};
use softrnic_engine::packet::opcode;

/// Plays a script. Every byte string is one.
///
/// # Panics
/// Where one of the promises above is broken.
pub(crate) fn run(script: &[u8]) {
    let mut bytes = Bytes::new(script);
    let (start, kind) = (bytes.next(), bytes.next());
    let mut bench = Bench::new(config(kind));
    for side in [0, 1] {
        // Mostly ready for traffic; sometimes as after power-on.
        if start >> side & 1 == 0 || start & 4 != 0 {
            bench.sides[side].bring_up();
        }
    }
    while !bytes.is_empty() {
        step(&mut bench, &mut bytes);
    }
    bench.finish();
}

/// Mostly the default profile; a receive buffer that drains slowly now and then.
fn config(kind: u8) -> ErnicConfig {
    ErnicConfig {
        num_qp: QPS,
        profile: *Profile::ALL[usize::from(kind & 7).saturating_sub(5) % Profile::ALL.len()],
        lenient_indices: kind & 8 != 0,
        drain_bits_per_s: (kind & 0x30 == 0x30).then_some(1 << (kind >> 6) << 28),
        ..ErnicConfig::default()
    }
}

/// One thing that happens. The kinds that reach deep come more often.
fn step(bench: &mut Bench, bytes: &mut Bytes<'_>) {
    let kind = bytes.next();
    let side = usize::from(kind >> 7);
    let at = &mut bench.sides[side];
    match kind & 0x1F {
        0..=2 => {
            let (row, index) = (usize::from(bytes.next()) % ROWS.len(), element(bytes));
            let row = &ROWS[row];
            let index = index % at.count(row);
            let old = at.get(row.register, index);
            let value = value(bytes, old);
            at.set(row.register, index, value);
        }
        3 => {
            let (offset, value) = (bytes.word() & 0x3F_FFFF, bytes.word());
            at.write(offset, value);
            at.nic.read32(offset);
        }
        4 => {
            let (offset, len) = (bytes.word() & 0x1F_FFFF, usize::from(bytes.next() % 9));
            let mut buffer = [0; 9];
            at.nic.read_bytes(offset, &mut buffer[..len]);
            at.nic.write_bytes(offset, &buffer[..len]);
            at.give();
        }
        5..=10 => post(at, bytes),
        11 => {
            let (address, bytes) = (address(bytes), bytes.take(64));
            let _ = softrnic_device::Memory::write(at.nic.memory.ram(), address, bytes);
        }
        12 => {
            let frame = bytes.take(200).to_vec();
            bench.deliver(side, &frame);
        }
        13..=17 => forge(bench, side, bytes),
        18..=23 => {
            bench.transmit(side, kind >> 5 & 3);
        }
        24 | 25 => bench.settle(),
        26 | 27 => {
            bench.tick();
        }
        28 => at.release(qp(bytes)),
        29 => at.recover(qp(bytes)),
        30 => at.toggle_qp(qp(bytes)),
        _ => match bytes.next() {
            0 => bench.reset(side),
            1..=0x40 => at.read_all(),
            _ => at.ports(qp(bytes), bytes.next().into()),
        },
    }
}

/// A queue pair's number, bank word or region row; mostly small.
fn element(bytes: &mut Bytes<'_>) -> u16 {
    match bytes.next() {
        0xFF => bytes.half() % 2048,
        near => u16::from(near) % 8,
    }
}

fn qp(bytes: &mut Bytes<'_>) -> u16 {
    u16::from(bytes.next()) % (QPS - 1) + 1
}

/// A bus address: mostly in memory, sometimes at its end, sometimes anywhere.
fn address(bytes: &mut Bytes<'_>) -> u64 {
    let at = u64::from(bytes.half());
    match bytes.next() {
        0 => u64::from(bytes.word()) << 32 | u64::from(bytes.word()),
        1 => bench::RAM + bench::RAM_LEN as u64 - at % 128,
        2 => bench::RAM.wrapping_sub(at % 128),
        _ => bench::RAM + at * 2,
    }
}

/// A register's value: what often means something, or anything.
fn value(bytes: &mut Bytes<'_>, old: u32) -> u32 {
    match bytes.next() % 12 {
        0 => 0,
        1 => 1,
        2 => u32::MAX,
        3 | 4 => old ^ 1 << (bytes.next() % 32),
        5 => bytes.next().into(),
        6 | 7 => address(bytes) as u32,
        8 => u32::from(bytes.half()) << 16 | u32::from(bytes.next()),
        9 => u32::from(bytes.next() % 20) << 16 | u32::from(bytes.next() % 20),
        _ => bytes.word(),
    }
}

/// A work request, mostly a good one, and its doorbell.
fn post(at: &mut Side, bytes: &mut Bytes<'_>) {
    let (q, oddity) = (qp(bytes), bytes.next());
    let opcode = match bytes.next() {
        any @ 0xF0.. => any,
        near => [0, 1, 2, 3, 4, 0x0C][usize::from(near) % 6],
    };
    let length = match bytes.next() {
        0 => 0,
        1 => 16,
        2 => bytes.word(),
        3 => 8 << 20,
        near => u32::from(near) * 16,
    };
    let local = if oddity & 7 == 0 { address(bytes) } else { bench::DATA };
    let remote = if oddity & 0x38 == 0 { address(bytes) } else { bench::REGION_VA };
    let rkey = if oddity & 0xC0 == 0 { bytes.word() } else { bench::RKEY };
    at.post(q, opcode, local, length, remote, rkey);
}

/// A frame that passes the port's checks, from the peer, with anything in its transport headers.
fn forge(bench: &mut Bench, side: usize, bytes: &mut Bytes<'_>) {
    let (q, opcode, distance) = (qp(bytes), bytes.next(), bytes.distance());
    let opcode = match opcode {
        0..=0x7F => opcode % 0x18,
        0xC0..=0xCF => opcode::CNP,
        0xD0..=0xDF => opcode::UD_SEND_ONLY,
        any => any,
    };
    let mut ext = [0; 32];
    let mut payload = None;
    match bytes.next() % 5 {
        0 => ext.copy_from_slice(&bench::region_header(bytes.half().into(), bytes.half().into())),
        1 => ext[0] = bytes.next(),
        2 => ext.copy_from_slice(&bench::region_header(0, 8 << 20)),
        3 => {
            // Up to the region's last byte, or a little beyond.
            let length = u32::from(bytes.next() % 64) * 4 + 4;
            let beyond = u32::from(bytes.next() % 4) * 4;
            let offset = bench::REGION_LEN - length + beyond;
            ext.copy_from_slice(&bench::region_header(offset.into(), length));
            payload = Some(length as usize);
        }
        _ => {
            let some = bytes.take(32);
            ext[..some.len()].copy_from_slice(some);
        }
    }
    let payload = payload.unwrap_or_else(|| match bytes.next() {
        0 => 0,
        1 => 256,
        2 => 4096,
        near => usize::from(near) * 4,
    });
    let flags = bytes.next();
    bench.forge(side, q, opcode, distance, flags, &ext, payload);
}
