//! Interrupt causes, their mask, and the banks with a bit for each queue pair.

use softrnic_device::ernic::Register as R;

use crate::world::{
    Bench, Check, QP, SEND, TIMEOUT, World, Wr, at, holds, mad_frame, post_frame, same, seal,
};

const INVALID_PACKET: u32 = 1 << 0;
const MAD: u32 = 1 << 1;
const RNR_NAK: u32 = 1 << 3;
const COMPLETION: u32 = 1 << 4;
const ILLEGAL_OPCODE: u32 = 1 << 5;
const RECEIVE: u32 = 1 << 6;
const FATAL: u32 = 1 << 7;
const CNP: u32 = 1 << 8;
const ALL: [u32; 8] =
    [INVALID_PACKET, MAD, RNR_NAK, COMPLETION, ILLEGAL_OPCODE, RECEIVE, FATAL, CNP];

/// Makes one cause happen on b, and no other beside what comes with it. Returns what INTSTS says.
fn provoke(world: &mut World<'_>, cause: u32) -> Check<u32> {
    match cause {
        INVALID_PACKET => {
            world.on_wire = Some(Box::new(|_, frame| {
                frame[60] ^= 1;
                true
            }));
            world.b.nic.write32(0x10_0000, 0x00C0_0001);
            world.a.post(QP, &Wr::new(crate::world::WRITE, 64))?;
            world.step();
            Ok(INVALID_PACKET)
        }
        MAD => {
            for side in [&mut world.a, &mut world.b] {
                side.queues(1);
                // No interrupts of the queues.
                side.set(R::Qpconf, 1, 0x31 | 2 << 16);
            }
            post_frame(&mut world.a, &mad_frame(1, 2, 256))?;
            world.settle()?;
            Ok(MAD)
        }
        RNR_NAK => {
            world.b.set(R::Qdepth, QP, 8 | 1 << 16);
            world.a.set(R::Timeoutconf, QP, TIMEOUT & !(7 << 11));
            world.a.post(QP, &Wr::new(SEND, 8))?;
            world.quiet();
            Ok(RNR_NAK)
        }
        COMPLETION => {
            world.b.post(QP, &Wr::new(SEND, 8))?;
            world.settle()?;
            Ok(COMPLETION)
        }
        ILLEGAL_OPCODE => {
            world.b.set(R::Qpconf, QP, crate::world::QPCONF & !(1 << 3));
            world.b.post(QP, &Wr::new(5, 8))?;
            world.settle()?;
            Ok(ILLEGAL_OPCODE | FATAL)
        }
        RECEIVE => {
            world.a.post(QP, &Wr::new(SEND, 8))?;
            world.settle()?;
            Ok(RECEIVE)
        }
        FATAL => {
            // A WRITE that names no region: the packet is invalid, too.
            world.a.post(QP, &Wr { rkey: 1, ..Wr::new(crate::world::WRITE, 64) })?;
            world.settle()?;
            Ok(FATAL | INVALID_PACKET)
        }
        CNP => {
            world.on_wire = Some(Box::new(|from_a, frame| {
                if from_a {
                    frame[at::TRAFFIC_CLASS] |= 3;
                    seal(frame);
                }
                true
            }));
            world.a.post(QP, &Wr::new(crate::world::WRITE, 64))?;
            world.settle()?;
            Ok(CNP)
        }
        other => Err(format!("no such cause: {other:#x}")),
    }
}

/// INTSTS: each bit comes with its cause, whatever INTEN says, and goes when 1 is written.
pub fn each_cause_is_set_and_cleared(bench: &Bench) -> Check {
    for cause in ALL {
        let mut world = bench.world();
        world.b.set(R::Inten, 0, 0);
        let wanted = provoke(&mut world, cause)?;
        same("INTSTS", world.b.get(R::Intsts, 0), wanted)?;
        world.b.set(R::Intsts, 0, !wanted);
        same("writing 0 keeps", world.b.get(R::Intsts, 0), wanted)?;
        for bank in [R::Cqintsts, R::Rqintsts] {
            world.b.set(bank, 0, u32::MAX);
        }
        world.b.set(R::Intsts, 0, wanted);
        same("writing 1 clears", world.b.get(R::Intsts, 0), 0)?;
    }
    Ok(())
}

/// INTEN: the line is up while a cause that it lets through is set.
pub fn enabled_causes_raise_the_line(bench: &Bench) -> Check {
    for cause in ALL {
        let mut world = bench.world();
        world.b.set(R::Inten, 0, 0);
        let also = provoke(&mut world, cause)?;
        holds("masked", !world.b.nic.interrupt())?;
        world.b.set(R::Inten, 0, cause);
        holds("unmasked", world.b.nic.interrupt())?;
        world.b.set(R::Inten, 0, 0x1FF & !also);
        holds("others", !world.b.nic.interrupt())?;
    }
    let mut world = bench.world();
    world.b.set(R::Inten, 0, u32::MAX);
    same("bit 2 is reserved", world.b.get(R::Inten, 0), 0x1FB)
}

/// One queue pair for each word of the banks sends; every packet of a's is marked.
fn many<'b>(bench: &'b Bench) -> Check<(World<'b>, Vec<u16>)> {
    let mut world = bench.world_with(|config| config.num_qp = 2048);
    let qps: Vec<u16> = (0..64).map(|word| 32 * word + 2 + word % 29).collect();
    for &q in &qps {
        world.connect(q);
        world.a.post(q, &Wr::new(SEND, 8))?;
    }
    world.on_wire = Some(Box::new(|from_a, frame| {
        if from_a {
            frame[at::TRAFFIC_CLASS] |= 3;
            seal(frame);
        }
        true
    }));
    world.settle()?;
    Ok((world, qps))
}

/// Each word has its queue pair's bit. One style of driver clears banks only: the last bit takes the
/// cause with it. The other clears INTSTS first, which leaves the cause up while a bank bit is.
fn bank(bench: &Bench, register: R, cause: u32, of_b: bool, latched: bool) -> Check {
    for intsts_first in [false, true] {
        let (mut world, qps) = many(bench)?;
        let side = if of_b { &mut world.b } else { &mut world.a };
        for (word, q) in qps.iter().enumerate() {
            same("bank", side.get(register, word as u16), 1 << (q % 32))?;
        }
        if intsts_first {
            side.set(R::Intsts, 0, cause);
            let stays = if latched { cause } else { 0 };
            same("the banks hold the cause", side.get(R::Intsts, 0) & cause, stays)?;
        }
        for (word, q) in qps.iter().enumerate() {
            side.set(register, word as u16, !(1 << (q % 32)));
            same("writing 0 keeps", side.get(register, word as u16), 1 << (q % 32))?;
            side.set(register, word as u16, 1 << (q % 32));
            same("writing 1 clears", side.get(register, word as u16), 0)?;
            if latched {
                let left = if word + 1 == qps.len() { 0 } else { cause };
                same("the cause goes with the last bit", side.get(R::Intsts, 0) & cause, left)?;
            }
        }
    }
    Ok(())
}

pub fn receive_banks(bench: &Bench) -> Check {
    bank(bench, R::Rqintsts, RECEIVE, true, true)
}

pub fn completion_banks(bench: &Bench) -> Check {
    bank(bench, R::Cqintsts, COMPLETION, false, true)
}

/// INTSTS\[8\] has a latch only.
pub fn congestion_banks(bench: &Bench) -> Check {
    bank(bench, R::Cnpschdsts, CNP, true, false)
}
