//! A test for each line of the table of limits.

use softrnic_device::ernic::{LIMITS, Register as R};
use softrnic_engine::{Nanos, Reason};

use crate::world::{
    Bench, Check, DEPTH, LOCAL, PD, QP, QPCONF, READ, REGION, REGION_VA, RKEY, SEND, WRITE, World,
    Wr, at, receive_queue, same, seal, seal_icrc,
};

const COMPARE_SWAP: u8 = 0x13;
const MIB: u32 = 1 << 20;

fn test_of(limit: &str) -> Option<fn(&Bench) -> Check> {
    Some(match limit {
        "atomics" => atomics,
        "work opcodes" => work_opcodes,
        "zero-length SEND" => zero_length_send,
        "message length" => message_length,
        "outstanding" => outstanding,
        "incoming READs" => incoming_reads,
        "IPv4 flags" => |bench| dropped(bench, &[(0x00, 0, 5), (0x60, 0, 5), (0x40, 9, 6)]),
        "IPv4 header length" => ipv4_header_length,
        "regions of a queue pair" => regions,
        "64-byte rules" => alignment,
        "receive buffer" => receive_buffer,
        "receive ring" => receive_ring,
        "queue pairs" => crate::global::active_queue_pairs,
        "path MTU" => path_mtu,
        "region length" => crate::regions::access_and_long_regions,
        _ => return None,
    })
}

#[test]
fn every_limit_reacts_as_its_line_says() {
    for limit in LIMITS {
        let test = test_of(limit.name);
        assert!(test.is_some(), "no test for {}", limit.name);
        let outcome = test.map(|test| test(&Bench::new(None)));
        assert_eq!(outcome, Some(Ok(())), "{}", limit.name);
    }
}

/// b refuses what a's frame was turned into, with a NAK, and goes fatal with this code.
fn nak(world: &mut World<'_>, wr: &Wr, reason: Reason, syndrome: u32, code: u32) -> Check {
    world.run(wr)?;
    same(reason.row().name, world.b.refused(reason), 1)?;
    same("NAK", world.a.get(R::Statqp, QP) >> 16 & 0x7F, syndrome)?;
    same("fatal", world.b.get(R::Statqp, QP) & 1, 1)?;
    same("code", world.b.word(crate::world::INCOMING)?, code | u32::from(QP) << 16)
}

/// a's work completes with the error flag at once, and a goes fatal with code 5.
fn bad_work(world: &mut World<'_>, wr: &Wr, reason: Reason) -> Check {
    let index = world.run(wr)?;
    same(reason.row().name, world.a.fault(reason), 1)?;
    same("error flag", world.a.cqe(QP, index)? >> 24, 1)?;
    same("fatal", world.a.get(R::Statqp, QP) & 1, 1)?;
    same("interrupt", world.a.get(R::Intsts, 0) & 1 << 7, 1 << 7)?;
    same("nothing leaves", world.frames.len(), 0)
}

fn tamper(world: &mut World<'_>, edit: fn(&mut Vec<u8>)) {
    world.on_wire = Some(Box::new(move |from_a, frame| {
        if from_a {
            edit(frame);
        }
        true
    }));
}

fn atomics(bench: &Bench) -> Check {
    // RETH and 12 bytes of payload are as long as AtomicETH.
    let mut world = bench.world();
    tamper(&mut world, |frame| {
        frame[at::OPCODE] = COMPARE_SWAP;
        seal(frame);
    });
    let before = world.b.bytes(REGION, 64)?;
    nak(&mut world, &Wr::new(WRITE, 12), Reason::OperationDisabled, 0x61, 0x02)?;
    same("memory", world.b.bytes(REGION, 64)?, before)
}

fn work_opcodes(bench: &Bench) -> Check {
    for opcode in (0..=255).filter(|opcode| !matches!(opcode, 0..=4 | 0x0C)) {
        let mut world = bench.world();
        bad_work(&mut world, &Wr::new(opcode, 8), Reason::WorkOpcodeIllegal)?;
        same("INTSTS[5]", world.a.get(R::Intsts, 0) & 1 << 5, 1 << 5)?;
        same("code", world.a.word(crate::world::INCOMING)?, 5 | u32::from(QP) << 16)?;
    }
    Ok(())
}

fn zero_length_send(bench: &Bench) -> Check {
    for opcode in [SEND, 3, 0x0C] {
        bad_work(&mut bench.world(), &Wr::new(opcode, 0), Reason::MessageEmpty)?;
    }
    let mut world = bench.world();
    tamper(&mut world, |frame| {
        // A SEND of 8 bytes loses them.
        frame.truncate(frame.len() - 8);
        frame[17] -= 8;
        frame[39] -= 8;
        seal(frame);
    });
    nak(&mut world, &Wr::new(SEND, 8), Reason::MessageEmpty, 0x61, 0x03)?;
    same("no message", world.b.get(R::Statrqpidb, QP), 0)?;
    // A WRITE and a READ of no bytes are none of this.
    let mut world = bench.world();
    world.run(&Wr::new(WRITE, 0))?;
    world.run(&Wr::new(READ, 0))?;
    same("both complete", world.a.get(R::Cqhead, QP), 2)
}

fn message_length(bench: &Bench) -> Check {
    for opcode in [WRITE, SEND, READ] {
        bad_work(&mut bench.world(), &Wr::new(opcode, 8 * MIB + 1), Reason::WorkLength)?;
    }
    let mut world = bench.world();
    tamper(&mut world, |frame| {
        if frame[at::OPCODE] == 0x06 {
            frame[66..70].copy_from_slice(&(8 * MIB + 1).to_be_bytes());
            seal(frame);
        }
    });
    nak(&mut world, &Wr::new(WRITE, 4096), Reason::MessageTooLong, 0x61, 0x03)?;
    // 8 MiB pass.
    let mut world = bench.world_with(|config| config.num_qp = 256);
    let area = receive_queue(8);
    for side in [&mut world.a, &mut world.b] {
        side.region(3, REGION_VA, area, (8 * MIB).into(), 2);
        side.set(R::Qpconf, QP, QPCONF & !(7 << 8) | 4 << 8);
    }
    world.a.fill(area, 8 * MIB as usize, 9)?;
    world.run(&Wr { local: area, ..Wr::new(WRITE, 8 * MIB) })?;
    same("CQE", world.a.cqe(QP, 1)?, 0x101)?;
    let last = area + u64::from(8 * MIB) - 64;
    same("the last bytes", world.b.bytes(last, 64)?, world.a.bytes(last, 64)?)
}

fn outstanding(bench: &Bench) -> Check {
    let mut world = bench.world();
    world.a.post(QP, &Wr::new(WRITE, 20 * 1024))?;
    let mut frames = Vec::new();
    while let Some(frame) = world.a.next_frame(Nanos(0)) {
        frames.push(frame);
    }
    same("packets", frames.len(), 16)?;
    same("STATQP[3]", world.a.get(R::Statqp, QP) & 1 << 3, 1 << 3)?;
    frames.iter().for_each(|frame| {
        world.deliver(false, frame);
    });
    world.settle()?;
    same("CQHEAD", world.a.get(R::Cqhead, QP), 1)?;

    let mut world = bench.world();
    for side in [&mut world.a, &mut world.b] {
        side.set(R::Qdepth, QP, 8 | DEPTH << 16);
    }
    for n in 0..16 {
        world.a.post(QP, &Wr::new(READ, 8))?;
        same("READs", world.a.next_frame(Nanos(0)).is_some(), true)?;
        same("outstanding", world.a.get(R::Statcursqptr, QP), n + 1)?;
    }
    world.a.post(QP, &Wr::new(READ, 8))?;
    same("the 17th waits", world.a.next_frame(Nanos(0)), None)
}

fn incoming_reads(bench: &Bench) -> Check {
    let mut world = bench.world();
    for _ in 0..DEPTH {
        world.a.post(QP, &Wr::new(READ, 64))?;
    }
    let mut frame = world.a.next_frame(Nanos(0)).ok_or("no frame")?;
    for n in 0..17u8 {
        let verdict = world.deliver(false, &frame);
        same("taken", verdict.refused, (n == 16).then_some(Reason::TooManyReads))?;
        frame[at::PSN + 2] += 1;
        seal_icrc(&mut frame);
    }
    same("fatal", world.b.get(R::Statqp, QP) & 1, 1)?;
    same("code", world.b.word(crate::world::INCOMING)?, 3 | u32::from(QP) << 16)
}

/// A frame with these bytes at 20 and 21 is dropped with this syndrome bit, and the QP goes on.
fn dropped(bench: &Bench, cases: &[(u8, u8, u8)]) -> Check {
    let mut world = bench.world();
    world.a.post(QP, &Wr::new(WRITE, 64))?;
    let frame = world.a.next_frame(Nanos(0)).ok_or("no frame")?;
    for (number, &(high, low, bit)) in (0..).zip(cases) {
        let mut wrong = frame.clone();
        (wrong[20], wrong[21]) = (high, low);
        seal(&mut wrong);
        same("refused", world.deliver(false, &wrong).refused.is_some(), true)?;
        let entry = crate::world::ERRORS + 256 * number;
        same("syndrome", world.b.word(entry)?, 1 << bit)?;
    }
    world.settle()?;
    same("sent again, and taken", world.a.get(R::Cqhead, QP), 1)
}

fn ipv4_header_length(bench: &Bench) -> Check {
    let mut world = bench.world();
    world.a.post(QP, &Wr::new(WRITE, 64))?;
    let mut frame = world.a.next_frame(Nanos(0)).ok_or("no frame")?;
    frame[14] = 0x46;
    frame.splice(34..34, [0; 4]);
    frame[17] += 4;
    let verdict = world.deliver(false, &frame);
    same("refused", verdict.refused, Some(Reason::Ipv4HeaderLength))?;
    same("syndrome", world.b.word(crate::world::ERRORS)?, 1 << 3)
}

fn regions(bench: &Bench) -> Check {
    let mut world = bench.world();
    for (row, offset) in [(3, 0u64), (4, 0x1000), (2047, 0x2000)] {
        world.b.region(row, REGION_VA, REGION + offset, 0x1000, 2);
        same("domain", world.b.get(R::Pdpdnum, row), PD)?;
        world.a.fill(LOCAL, 64, row as u8)?;
        let rkey = RKEY & 0xFF | u32::from(row) << 8;
        world.run(&Wr { rkey, ..Wr::new(WRITE, 64) })?;
        same("written", world.b.bytes(REGION + offset, 64)?, world.a.bytes(LOCAL, 64)?)?;
    }
    Ok(())
}

fn alignment(bench: &Bench) -> Check {
    let odd = [(1u64, 64u32), (64, 65), (64, 4), (63, 1)];
    for (va, length) in odd {
        for opcode in [WRITE, READ] {
            let wr = Wr { va: REGION_VA + va, ..Wr::new(opcode, length) };
            let mut world = bench.world();
            world.run(&wr)?;
            same("byte-accurate", world.a.cqe(QP, 1)? >> 24, 0)?;
            let mut world = bench.world_with(|config| config.strict_alignment = true);
            nak(&mut world, &wr, Reason::AddressAlignment, 0x62, 0x04)?;
        }
    }
    // A virtual address that is not aligned is fine where the bus address is.
    let mut world = bench.world_with(|config| config.strict_alignment = true);
    world.b.set(R::Virtaddrlsb, 3, 0xCAD5_3074);
    world.b.set(R::Virtaddrmsb, 3, 0);
    world.run(&Wr { va: 0xCAD5_3074, ..Wr::new(WRITE, 128) })?;
    same("taken", world.a.cqe(QP, 1)? >> 24, 0)
}

fn receive_buffer(bench: &Bench) -> Check {
    let mut world = bench.world();
    world.run(&Wr::new(SEND, 8192))?;
    same("fits", world.b.get(R::Statrqpidb, QP), 1)?;
    nak(&mut world, &Wr::new(SEND, 8193), Reason::ReceiveTooSmall, 0x61, 0x03)?;
    same("no message", world.b.get(R::Statrqpidb, QP), 1)
}

fn receive_ring(bench: &Bench) -> Check {
    crate::queue_pair::receive_indices(bench)?;
    let mut world = bench.world();
    for _ in 0..DEPTH {
        world.a.post(QP, &Wr::new(SEND, 8))?;
    }
    world.quiet();
    same("messages", world.b.get(R::Statrqpidb, QP), DEPTH - 1)?;
    same("INTSTS[3]", world.b.get(R::Intsts, 0) & 1 << 3, 1 << 3)?;
    same("STATQP[1]", world.b.get(R::Statqp, QP) & 2, 2)?;
    same("RNR NAK", world.a.get(R::Statqp, QP) >> 16 & 0x7F, 0x21)
}

fn path_mtu(bench: &Bench) -> Check {
    let mut world = bench.world();
    for code in 5..8 {
        world.a.set(R::Qpconf, QP, QPCONF & !(7 << 8) | code << 8);
        same("stays", world.a.get(R::Qpconf, QP) >> 8 & 7, 2)?;
    }
    same("counted", world.a.refused(Reason::RegisterValue), 3)
}
