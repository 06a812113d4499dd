//! What the device writes down about errors, and the retry data buffers.

use softrnic_device::Memory;
use softrnic_device::ernic::{Profile, Register as R, fatal_code, syndrome};
use softrnic_engine::{Nanos, Reason};

use crate::world::{
    Bench, Check, DATA, DEPTH, ERRORS, INCOMING, LOCAL, OUTGOING, QP, READ, REGION, RESPONSES,
    SEND, Side, WRITE, World, Wr, at, holds, same, seal, seal_icrc,
};

const ENTRY_LEN: u64 = 256;

fn word64(side: &Side<'_>, address: u64) -> Check<u64> {
    Ok(u64::from(side.word(address)?) | u64::from(side.word(address + 4)?) << 32)
}

/// An entry of an error buffer: syndrome and frame.
fn entry(side: &Side<'_>, base: u64, number: u64, frame: &[u8]) -> Check<u64> {
    let address = base + number * ENTRY_LEN;
    let kept = frame.len().min(ENTRY_LEN as usize - 8);
    same("the packet", side.bytes(address + 8, kept)? == frame[..kept], true)?;
    word64(side, address)
}

type Edit = fn(&mut Vec<u8>);

/// Each way in which a packet is wrong, and the bit that documents give it; `None` where none does.
const WRONG: [(Reason, Option<u8>, Edit); 17] = [
    (Reason::DestinationMac, Some(0), |f| f[5] ^= 0x40),
    (Reason::IpVersion, Some(2), |f| f[14] = 0x55),
    (Reason::Ipv4HeaderLength, Some(3), |f| f[14] = 0x46),
    (Reason::Ipv4DontFragmentClear, Some(5), |f| {
        f[20] = 0;
        seal(f);
    }),
    (Reason::Ipv4MoreFragments, Some(5), |f| {
        f[20] = 0x20;
        seal(f);
    }),
    (Reason::Ipv4Fragment, Some(6), |f| {
        f[21] = 1;
        seal(f);
    }),
    (Reason::DestinationIp, Some(8), |f| {
        f[33] ^= 0x40;
        seal(f);
    }),
    (Reason::Ipv4HeaderChecksum, Some(9), |f| f[24] ^= 1),
    (Reason::IpLength, Some(10), |f| {
        f[16] = 0x40;
        seal(f);
    }),
    (Reason::QpInactive, Some(15), |f| {
        f[at::DEST_QP + 2] = 7;
        seal(f);
    }),
    (Reason::QpNotReady, Some(15), |f| {
        f[at::DEST_QP + 2] = 4;
        seal(f);
    }),
    (Reason::QpUnknown, Some(15), |f| {
        f[at::DEST_QP] = 0x80;
        seal(f);
    }),
    (Reason::PsnAhead, Some(21), |f| {
        f[at::PSN + 2] ^= 4;
        seal(f);
    }),
    (Reason::UdpLength, None, |f| {
        f[39] ^= 4;
        seal(f);
    }),
    (Reason::Icrc, None, |f| f[60] ^= 1),
    (Reason::OpcodeUnknown, None, |f| {
        f[at::OPCODE] = 0xFF;
        seal(f);
    }),
    (Reason::SourceAddress, None, |f| {
        f[29] ^= 0x40;
        seal(f);
    }),
];

/// The error buffer takes every packet that fails validation, as XRNICCONF\[5\] says, in a ring of 4.
pub fn error_buffer(bench: &Bench) -> Check {
    let mut world = bench.world();
    world.b.set(R::XrnicConfQpEn, 0, 6);
    world.a.post(QP, &Wr::new(WRITE, 400))?;
    let frame = world.a.next_frame(Nanos(0)).ok_or("no frame")?;
    for (number, (reason, bit, edit)) in (0..).zip(WRONG) {
        let mut wrong = frame.clone();
        edit(&mut wrong);
        let verdict = world.deliver(false, &wrong);
        same("refused", verdict.refused, Some(reason))?;
        let found = entry(&world.b, ERRORS, number % 4, &wrong)?;
        same(reason.row().name, found, syndrome(reason))?;
        if let Some(bit) = bit {
            same("documented bit", found, 1 << bit)?;
        }
        same("write pointer", u64::from(world.b.get(R::Errbufwptr, 0)), (number + 1) % 4)?;
        holds("interrupt", world.b.get(R::Intsts, 0) & 1 == 1)?;
    }
    same("nothing was fatal", world.b.get(R::Statqp, QP) & 1, 0)?;
    // Bit off: such a packet is only counted.
    world.b.set(R::Xrnicconf, 0, 0xC0_0001);
    let mut wrong = frame.clone();
    wrong[60] ^= 1;
    world.deliver(false, &wrong);
    let pointer = WRONG.len() as u32 % 4;
    same("not stored", world.b.get(R::Errbufwptr, 0), pointer)?;
    // One that makes its queue pair fatal is stored.
    let mut fatal = frame.clone();
    fatal[at::AETH + 11] ^= 1;
    seal_icrc(&mut fatal);
    let verdict = world.deliver(false, &fatal);
    same("refused", verdict.refused, Some(Reason::KeyUnknown))?;
    same("stored", world.b.get(R::Errbufwptr, 0), (pointer + 1) % 4)?;
    same("bit 46", entry(&world.b, ERRORS, pointer.into(), &fatal)?, 1 << 46)?;
    // Small entries hold the syndrome and the beginning.
    world.b.set(R::Errbufsz, 0, 4 | 16 << 16);
    world.b.set(R::Xrnicconf, 0, 0xC0_0021);
    world.deliver(false, &wrong);
    let address = ERRORS + 16 * u64::from((pointer + 1) % 4);
    same("the first 8 bytes", world.b.bytes(address + 8, 8)?, wrong[..8].to_vec())?;
    // Without entries nothing is written, and that is counted.
    world.b.set(R::Errbufsz, 0, 0);
    world.deliver(false, &wrong);
    same("counted", world.b.fault(Reason::ErrorBufferUnset), 1)
}

/// A response that fits no request goes to the response error buffer, whatever XRNICCONF\[5\] says.
pub fn response_error_buffer(bench: &Bench) -> Check {
    let mut world = bench.world();
    world.a.set(R::Xrnicconf, 0, 0xC0_0001);
    world.run(&Wr::new(WRITE, 64))?;
    let ack = world.frames.last().map(|(_, frame)| frame.clone()).ok_or("no answer")?;
    for number in 0..6 {
        let verdict = world.deliver(true, &ack);
        same("refused", verdict.refused, Some(Reason::ResponseGhost))?;
        let found = entry(&world.a, RESPONSES, number % 4, &ack)?;
        same("syndrome", found, syndrome(Reason::ResponseGhost))?;
        same("pointer", u64::from(world.a.get(R::Resperrwrptr, 0)), (number + 1) % 4)?;
    }
    same("not in the error buffer", world.a.get(R::Errbufwptr, 0), 0)?;
    // Software may set the pointer.
    world.a.set(R::Resperrwrptr, 0, 0xFFFF_0001);
    same("16 bits", world.a.get(R::Resperrwrptr, 0), 1)?;
    world.deliver(true, &ack);
    same("goes on from there", world.a.get(R::Resperrwrptr, 0), 2)
}

/// Each queue pair that goes fatal leaves code and number in the incoming queue, a ring of 4.
pub fn incoming_queue(bench: &Bench) -> Check {
    let mut world = bench.world();
    for (number, q) in (0..).zip([2, 3, 4, 5, 6, 7]) {
        world.connect(q);
        world.a.post(q, &Wr { rkey: 1, ..Wr::new(WRITE, 64) })?;
        world.settle()?;
        let found = word64(&world.b, INCOMING + number % 4 * 8)?;
        same("code and queue pair", found, 0x17 | u64::from(q) << 16)?;
        same("pointer", u64::from(world.b.get(R::Ipkterrqwptr, 0)), (number + 1) % 4)?;
    }
    world.b.set(R::Ipkterrqwptr, 0, 3);
    same("read only", world.b.get(R::Ipkterrqwptr, 0), 2)
}

/// What fails on our own side is in the outgoing queue, too; `v4.0-silicon` leaves that one alone.
pub fn outgoing_queue(bench: &Bench) -> Check {
    for silicon in [false, true] {
        let mut world = bench.world_with(|config| {
            if silicon {
                config.profile = Profile::V4_0_SILICON;
            }
        });
        world.on_wire = Some(Box::new(|_, _| false));
        for (number, q) in (0..).zip([2, 3, 4, 5, 6, 7]) {
            world.connect(q);
            world.a.set(R::Timeoutconf, q, 5 | 1 << 8);
            world.a.post(q, &Wr::new(WRITE, 64))?;
            world.settle()?;
            let wanted = u64::from(fatal_code(Reason::RetryExceeded, false)) | u64::from(q) << 16;
            same("incoming", word64(&world.a, INCOMING + number % 4 * 8)?, wanted)?;
            let wanted = if silicon { (0, 0) } else { (wanted, (number + 1) % 4) };
            let found = word64(&world.a, OUTGOING + number % 4 * 8)?;
            let pointer = u64::from(world.a.get(R::Opterrstsqqptrdb, 0));
            same("outgoing, pointer", (found, pointer), wanted)?;
        }
        world.a.set(R::Opterrstsqqptrdb, 0, 0xFFFF_0003);
        same("software may write it", world.a.get(R::Opterrstsqqptrdb, 0), 3)?;
    }
    // What a peer did is not outgoing.
    let mut world = bench.world();
    world.a.post(QP, &Wr { rkey: 1, ..Wr::new(WRITE, 64) })?;
    world.settle()?;
    same("the peer's", world.b.get(R::Opterrstsqqptrdb, 0), 0)?;
    same("our NAK", world.a.get(R::Opterrstsqqptrdb, 0), 1)
}

/// A WRITE's bytes are kept in the buffers and sent again from there.
pub fn data_buffers(bench: &Bench) -> Check {
    let mut world = bench.world();
    world.a.fill(LOCAL, 3000, 1)?;
    let wanted = world.a.bytes(LOCAL, 3000)?;
    world.a.post(QP, &Wr::new(WRITE, 3000))?;
    // All three packets are lost; software overwrites its memory; the buffers have the bytes.
    while world.a.next_frame(Nanos(0)).is_some() {}
    world.a.fill(LOCAL, 3000, 2)?;
    for (packet, len) in [(0, 1024), (1, 1024), (2, 952)] {
        let kept = world.a.bytes(DATA + packet * 4096, len)?;
        let at = packet as usize * 1024;
        holds("kept", kept == wanted[at..at + len])?;
    }
    world.settle()?;
    holds("the first bytes arrive", world.b.bytes(REGION, 3000)? == wanted)?;

    // One buffer: the second packet waits until the first is acknowledged, which it asks for.
    world.a.set(R::Datbufsz, 0, 1 | 4096 << 16);
    world.a.fill(LOCAL, 3000, 3)?;
    world.a.post(QP, &Wr::new(WRITE, 3000))?;
    let first = world.a.next_frame(Nanos(0)).ok_or("no frame")?;
    same("no second", world.a.next_frame(Nanos(0)), None)?;
    same("code and state", world.a.get(R::Wqeprocsts, 0) & 0x17, 1 | 1 << 4)?;
    world.deliver(false, &first);
    world.settle()?;
    same("done", world.a.get(R::Wqeprocsts, 0) & 0x17, 0)?;
    same("CQHEAD", world.a.get(R::Cqhead, QP), 2)?;
    holds("arrived", world.b.bytes(REGION, 3000)? == world.a.bytes(LOCAL, 3000)?)?;

    // Buffers smaller than a packet: it takes several. Fewer than it needs: the request fails.
    world.a.set(R::Datbufsz, 0, 4 | 256 << 16);
    world.run(&Wr::new(WRITE, 3000))?;
    same("CQHEAD", world.a.get(R::Cqhead, QP), 3)?;
    world.a.set(R::Datbufsz, 0, 3 | 256 << 16);
    world.run(&Wr::new(WRITE, 3000))?;
    same("fails", world.a.fault(Reason::RetryBuffersTooSmall), 1)?;
    same("fatal", world.a.get(R::Statqp, QP) & 1, 1)
}

/// Any number and size of buffers that holds one packet moves 1 MiB, with losses and without a timer
/// that would help; SENDs and READs do not need buffers.
#[test]
fn a_mebibyte_moves_through_few_buffers() -> Check {
    const LEN: u32 = 1 << 20;
    let bench = Bench::new(None);
    for (buffers, buffer_len, lose) in
        [(16, 4096, 0), (16, 4096, 7), (1, 1024, 0), (5, 512, 0), (5, 512, 11), (64, 64, 0)]
    {
        let mut world = bench.world_with(|config| config.num_qp = 64);
        // Beyond the queues of 8 queue pairs, which are all that is used.
        let source = crate::world::receive_queue(8);
        world.a.fill(source, LEN as usize, 5)?;
        world.b.region(3, crate::world::REGION_VA, source, LEN.into(), 2);
        world.a.set(R::Datbufsz, 0, buffers | buffer_len << 16);
        if lose == 0 {
            // Nothing but the peer's acknowledgements may bring it on.
            world.a.set(R::Timeoutconf, QP, 7 << 8);
            world.b.set(R::Xrnicconf, 0, 0xC0_0021 | 2 << 3);
        }
        let mut number = 0;
        world.on_wire = Some(Box::new(move |from_a, _| {
            number += u32::from(from_a);
            lose == 0 || !from_a || number % lose != 0
        }));
        world.run(&Wr { local: source, ..Wr::new(WRITE, LEN) })?;
        let what = format!("{buffers} buffers of {buffer_len}, every {lose}. lost");
        same(&what, world.a.get(R::Cqhead, QP), 1)?;
        same(&what, world.a.cqe(QP, 1)? >> 24, 0)?;
        let arrived = world.b.bytes(source, LEN as usize)?;
        same(&what, arrived == world.a.bytes(source, LEN as usize)?, true)?;
        world.on_wire = None;
        world.b.region(3, crate::world::REGION_VA, REGION, 0x4_0000, 2);
        world.traffic(QP, 5000, 6).map_err(|why| format!("{what}: {why}"))?;
    }
    Ok(())
}

/// Many queue pairs, one buffer, no timers: everybody gets their turn, also where one of those that
/// wait is switched off, recovered or fatal.
#[test]
fn a_shared_buffer_starves_nobody() -> Check {
    let bench = Bench::new(None);
    let mut world = bench.world_with(|config| config.num_qp = 64);
    world.a.set(R::Datbufsz, 0, 1 | 4096 << 16);
    world.b.set(R::Xrnicconf, 0, 0xC0_0021 | 2 << 3);
    let qps: Vec<u16> = (2..60).collect();
    for &q in &qps {
        world.connect(q);
        world.a.set(R::Timeoutconf, q, 7 << 8);
        world.a.post(q, &Wr::new(WRITE, 5000))?;
        world.a.post(q, &Wr::new(SEND, 5000))?;
    }
    let first = world.a.next_frame(Nanos(0)).ok_or("no frame")?;
    same("the others find no buffer", world.a.next_frame(Nanos(0)), None)?;
    same("they wait", world.a.get(R::Wqeprocsts, 0) >> 4 & 1, 1)?;
    world.deliver(false, &first);
    // Of those that wait: off, recovered, and one whose work is gone.
    world.a.set(R::Qpconf, 10, crate::world::QPCONF & !1);
    world.a.set(R::Qpconf, 11, crate::world::QPCONF | 1 << 6);
    world.a.set(R::Datbufsz, 0, 2 | 4096 << 16);
    world.settle()?;
    for &q in qps.iter().filter(|&&q| q != 10 && q != 11) {
        same(&format!("QP {q}"), world.a.get(R::Cqhead, q), 2)?;
    }
    world.a.set(R::Qpconf, 10, crate::world::QPCONF);
    world.settle()?;
    same("QP 10", world.a.get(R::Cqhead, 10), 2)?;
    same("nobody waits", world.a.get(R::Wqeprocsts, 0) >> 4 & 1, 0)
}

/// Nothing is written where memory is missing, and both kinds of trouble are counted.
#[test]
fn rings_outside_of_memory_are_counted() -> Check {
    let bench = Bench::new(None);
    let mut world = bench.world();
    world.b.set64(R::Errbufba, R::Errbufbamsb, 0, 0x1000);
    world.b.set64(R::Ipkterrqba, R::Ipkterrqbamsb, 0, 0x1000);
    world.a.post(QP, &Wr { rkey: 1, ..Wr::new(WRITE, 64) })?;
    world.settle()?;
    same("both", world.b.fault(Reason::DmaAddress), 2)?;
    same("pointers", (world.b.get(R::Errbufwptr, 0), world.b.get(R::Ipkterrqwptr, 0)), (0, 0))?;
    let mut world = bench.world();
    world.a.set64(R::Datbufba, R::Datbufbamsb, 0, 0x1000);
    world.run(&Wr::new(WRITE, 64))?;
    same("the request fails", world.a.fault(Reason::DmaAddress), 1)?;
    same("fatal", world.a.get(R::Statqp, QP) & 1, 1)?;
    // A READ whose answer finds no memory is counted once, not with the packet as well.
    let mut world = bench.world();
    world.run(&Wr { local: 0x1000, ..Wr::new(READ, 64) })?;
    let counted = (world.a.fault(Reason::DmaAddress), world.a.refused(Reason::DmaAddress));
    same("with the packet", counted, (0, 1))?;
    // The peer's region points outside: its answer is a NAK, and the fault is counted there.
    let mut world = bench.world();
    world.b.region(3, crate::world::REGION_VA, 0x1000, 0x1000, 2);
    world.run(&Wr::new(READ, 64))?;
    same("with the device", world.b.fault(Reason::DmaAddress), 1)?;
    same("NAK", world.a.get(R::Statqp, QP) >> 16 & 0x7F, 0x62)?;
    // A device that is switched off writes nothing.
    let mut world: World<'_> = bench.world();
    world.a.post(QP, &Wr::new(SEND, 8))?;
    world.b.set(R::Xrnicconf, 0, 0xC0_0020);
    world.step();
    same("refused", world.b.refused(Reason::QpNotReady), 1)?;
    same("not written", world.b.get(R::Errbufwptr, 0), 0)?;
    same("ring depth", world.b.get(R::Qdepth, QP), DEPTH | DEPTH << 16)?;
    let nothing = world.b.nic.memory.read_u32(ERRORS).map_err(|fault| fault.to_string())?;
    same("memory", nothing, 0)
}
