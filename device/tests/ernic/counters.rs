//! Packet counters, last packets, and the state of the device's engines.

use softrnic_device::ernic::Register as R;
use softrnic_engine::Nanos;

use crate::world::{
    Bench, Check, LOCAL, QP, READ, REGION_VA, SEND, WRITE, Wr, at, mad_frame, post_frame, same,
    seal, u24,
};

/// One WRITE and one SEND of 3 packets, one READ of 3 responses, a MAD from QP1 to QP1.
pub fn of_messages(bench: &Bench) -> Check {
    let mut world = bench.world();
    world.traffic(QP, 3000, 1)?;
    for side in [&mut world.a, &mut world.b] {
        side.queues(1);
        side.set(R::Qpconf, 1, 0x3D | 2 << 16);
    }
    post_frame(&mut world.a, &mad_frame(1, 2, 256))?;
    world.settle()?;
    let (a, b) = (&mut world.a, &mut world.b);
    let acks = b.get(R::Outampktcnt, 0);
    same("ACKs out", acks, 2)?;
    same("SENDs out, READs and WRITEs out", a.get(R::Outiopktcnt, 0), 3 | 4 << 16)?;
    same("SENDs and WRITEs in", b.get(R::Insrrpktcnt, 0), 6)?;
    same("READ responses in", a.get(R::Insrrpktcnt, 0), 3 << 16)?;
    same("READ responses out", b.get(R::Outrdrsppktcnt, 0), 3)?;
    same("ACKs in", a.get(R::Inampktcnt, 0), acks)?;
    same("MADs in", b.get(R::Inampktcnt, 0), 1 << 16)?;
    same("MADs out", a.get(R::Outampktcnt, 0), 1 << 16)?;
    same("work requests", a.get(R::Qpmsts, 0), 4 << 16 | 2)?;
    same("none here", b.get(R::Qpmsts, 0), 2)
}

pub fn last_packets(bench: &Bench) -> Check {
    let mut world = bench.world();
    same("before the first", world.a.get(R::Lstoutpkt, 0), 0)?;
    world.a.post(QP, &Wr::new(SEND, 8))?;
    world.quiet();
    let packet = |opcode: u32, psn: u32, qp: u32| opcode | (psn & 0xFFF) << 8 | qp << 20;
    let psn = u24(&world.frames[0].1, at::PSN);
    let (sent, answered) = (packet(0x04, psn, QP.into()), packet(0x11, psn, QP.into()));
    same("a out", world.a.get(R::Lstoutpkt, 0), sent)?;
    same("b in", world.b.get(R::Lstinpkt, 0), sent)?;
    same("b out", world.b.get(R::Lstoutpkt, 0), answered)?;
    same("a in", world.a.get(R::Lstinpkt, 0), answered)
}

/// A bad packet, a duplicate and a good one.
pub fn of_refusals(bench: &Bench) -> Check {
    let mut world = bench.world();
    world.a.post(QP, &Wr::new(WRITE, 64))?;
    world.quiet();
    let frame = world.frames[0].1.clone();
    world.deliver(false, &frame);
    let mut bad = frame.clone();
    bad[60] ^= 1;
    world.deliver(false, &bad);
    let mut not_roce = frame.clone();
    not_roce[36..38].copy_from_slice(&[0, 53]);
    seal(&mut not_roce);
    world.deliver(false, &not_roce);
    let b = &mut world.b;
    same("invalid and duplicate", b.get(R::Ininvdupcnt, 0), 1 | 1 << 16)?;
    same("dropped and all", b.get(R::Inalldrppktcnt, 0), 1 | 3 << 16)
}

/// A lost packet: NAK, and sent again.
pub fn of_recovery(bench: &Bench) -> Check {
    let mut world = bench.world();
    let mut number = 0;
    world.on_wire = Some(Box::new(move |from_a, _| {
        number += u32::from(from_a);
        !(from_a && number == 2)
    }));
    world.run(&Wr::new(WRITE, 4096))?;
    same("CQHEAD", world.a.get(R::Cqhead, QP), 1)?;
    same("NAKs out", world.b.get(R::Outnakpktcnt, 0), 1)?;
    same("NAKs in", world.a.get(R::Innakpktcnt, 0), 1)?;
    let psns: Vec<_> =
        world.frames.iter().filter(|(a, _)| *a).map(|(_, f)| u24(f, at::PSN)).collect();
    let again = psns.iter().enumerate().filter(|(i, psn)| psns[..*i].contains(psn)).count();
    same("sent again", world.a.get(R::Retrycntsts, 0) as usize, again)?;
    same("no fewer than the lost one", again >= 1, true)
}

/// A CNP that software of b sends through QP1 arrives at a's queue pair.
pub fn of_congestion(bench: &Bench) -> Check {
    let mut world = bench.world();
    world.b.queues(1);
    world.b.set(R::Qpconf, 1, 0x3D | 2 << 16);
    let cnp = crate::world::cnp_frame(2, 1, QP);
    post_frame(&mut world.b, &cnp)?;
    world.settle()?;
    same("CNPs out", world.b.get(R::Outcnppktcnt, 0), 1)?;
    same("no MAD", world.b.get(R::Outampktcnt, 0), 0)?;
    same("CNPs in", world.a.get(R::Incnppktcnt, 0), 1)
}

/// WQEPROCSTS and RESPHNDSTS, idle and with work that waits for an answer.
pub fn engines(bench: &Bench) -> Check {
    let mut world = bench.world();
    same("idle", world.a.get(R::Resphndsts, 0), 1 << 16)?;
    same("idle", world.a.get(R::Wqeprocsts, 0), 0)?;
    world.a.fill(LOCAL, 64, 1)?;
    world.a.post(QP, &Wr { va: REGION_VA, ..Wr::new(READ, 64) })?;
    holds_back(&mut world);
    // As a register dump of AMD's shows them after one READ without an answer.
    same("READs out", world.a.get(R::Outiopktcnt, 0), 0x0001_0000)?;
    same("WQEPROCSTS", world.a.get(R::Wqeprocsts, 0), 0x0101_2040)?;
    same("QPMSTS", world.a.get(R::Qpmsts, 0), 0x0001_0002)?;
    same("RESPHNDSTS", world.a.get(R::Resphndsts, 0), 0x0003_0002)?;
    world.settle()?;
    same("idle again", world.a.get(R::Wqeprocsts, 0), 0x0101_0000)?;
    same("idle again", world.a.get(R::Resphndsts, 0), 0x0001_0002)
}

/// Only a sends; what it sends is lost.
fn holds_back(world: &mut crate::world::World<'_>) {
    while let Some(frame) = world.a.next_frame(Nanos(0)) {
        world.frames.push((true, frame));
    }
}
