//! The memory region table: which bytes a peer reaches.

use softrnic_device::ernic::Register as R;
use softrnic_engine::Reason;

use crate::world::{
    Bench, Check, LOCAL, PD, QP, READ, REGION, REGION_LEN, REGION_ROW, REGION_VA, RKEY, WRITE,
    World, Wr, holds, same,
};

const LEN: u32 = 3000;

/// A WRITE to `va` with `rkey` lands at `bus`.
fn lands(world: &mut World<'_>, va: u64, rkey: u32, bus: u64, seed: u8) -> Check {
    world.a.fill(LOCAL, LEN as usize, seed)?;
    let head = world.run(&Wr { va, rkey, ..Wr::new(WRITE, LEN) })?;
    same("CQHEAD", world.a.get(R::Cqhead, QP), head)?;
    same("completion", world.a.cqe(QP, head)? >> 24, 0)?;
    let wanted = world.a.bytes(LOCAL, LEN as usize)?;
    holds("bytes at the bus address", world.b.bytes(bus, LEN as usize)? == wanted)
}

/// The request is refused with NAK remote access error, and the queue pair is fatal on both sides.
fn refused(world: &mut World<'_>, wr: &Wr, reason: Reason) -> Check {
    let before = world.b.refused(reason);
    world.run(wr)?;
    same(reason.row().name, world.b.refused(reason), before + 1)?;
    same("NAK", world.a.get(R::Statqp, QP) >> 16 & 0x7F, 0x62)?;
    same("fatal", (world.a.get(R::Statqp, QP) & 1, world.b.get(R::Statqp, QP) & 1), (1, 1))
}

pub fn protection_domain(bench: &Bench) -> Check {
    let mut world = bench.world();
    lands(&mut world, REGION_VA, RKEY, REGION, 1)?;
    world.b.set(R::Pdpdnum, REGION_ROW, 0xFFAB_CDEF);
    same("24 bits", world.b.get(R::Pdpdnum, REGION_ROW), 0xAB_CDEF)?;
    world.b.set(R::Pd, QP, 0xFFAB_CDEF);
    same("24 bits", world.b.get(R::Pd, QP), 0xAB_CDEF)?;
    lands(&mut world, REGION_VA, RKEY, REGION, 2)?;
    world.b.set(R::Pd, QP, PD);
    refused(&mut world, &Wr::new(WRITE, LEN), Reason::ProtectionDomain)
}

pub fn virtual_address(bench: &Bench) -> Check {
    let mut world = bench.world();
    lands(&mut world, REGION_VA + 64, RKEY, REGION + 64, 1)?;
    let va = 0xFFFF_8000_0000_0040;
    world.b.set64(R::Virtaddrlsb, R::Virtaddrmsb, REGION_ROW, va);
    lands(&mut world, va + 64, RKEY, REGION + 64, 2)?;
    refused(&mut world, &Wr { va: va - 1, ..Wr::new(WRITE, LEN) }, Reason::AddressRange)
}

pub fn base_address(bench: &Bench) -> Check {
    let mut world = bench.world();
    lands(&mut world, REGION_VA, RKEY, REGION, 1)?;
    world.b.set64(R::Bufbaseaddrlsb, R::Bufbaseaddrmsb, REGION_ROW, REGION + 0x1_0000);
    lands(&mut world, REGION_VA, RKEY, REGION + 0x1_0000, 2)
}

/// Row in bits 31..8, key in bits 7..0.
pub fn key(bench: &Bench) -> Check {
    let mut world = bench.world();
    lands(&mut world, REGION_VA, RKEY, REGION, 1)?;
    world.b.set(R::Bufrkey, REGION_ROW, 0x1FF);
    same("8 bits", world.b.get(R::Bufrkey, REGION_ROW), 0xFF)?;
    lands(&mut world, REGION_VA, RKEY | 0xFF, REGION, 2)?;
    refused(&mut world, &Wr::new(WRITE, LEN), Reason::KeyUnknown)
}

pub fn length(bench: &Bench) -> Check {
    let mut world = bench.world();
    let last = REGION_VA + u64::from(REGION_LEN - LEN);
    lands(&mut world, last, RKEY, REGION + u64::from(REGION_LEN - LEN), 1)?;
    refused(&mut world, &Wr { va: last + 1, ..Wr::new(WRITE, LEN) }, Reason::AddressRange)
}

/// Rights are the peer's; bits 31..16 are the region's length above 4 GiB.
pub fn access_and_long_regions(bench: &Bench) -> Check {
    for (access, may_read, may_write) in
        [(0, true, false), (1, false, true), (2, true, true), (3, false, false), (15, false, false)]
    {
        for (opcode, may) in [(READ, may_read), (WRITE, may_write)] {
            let mut world = bench.world();
            world.b.set(R::Accessdesc, REGION_ROW, access);
            if may {
                let head = world.run(&Wr::new(opcode, LEN))?;
                same("completes", world.a.cqe(QP, head)? >> 24, 0)?;
            } else {
                refused(&mut world, &Wr::new(opcode, LEN), Reason::AccessRights)?;
            }
        }
    }
    let mut world = bench.world();
    world.b.region(REGION_ROW, REGION_VA, REGION - (1 << 32), (1 << 32) + u64::from(LEN), 2);
    lands(&mut world, REGION_VA + (1 << 32), RKEY, REGION, 1)?;
    let beyond = Wr { va: REGION_VA + (1 << 32) + 1, ..Wr::new(WRITE, LEN) };
    refused(&mut world, &beyond, Reason::AddressRange)
}
