//! Switches and addresses of the whole device.

use softrnic_device::ernic::Register as R;
use softrnic_engine::Reason;

use crate::world::{
    Bench, Check, LOCAL, QP, QPCONF, REGION, SEND, WRITE, Wr, at, holds, same, u24,
};

const ACKNOWLEDGE: u8 = 0x11;

/// XRNICCONF: \[0\] frames pass, \[4:3\] when acknowledgements leave, \[23:8\] UDP source port.
pub fn enable_ack_mode_and_source_port(bench: &Bench) -> Check {
    // A WRITE of 12 packets asks for an ACK at the eighth and at the last.
    let acknowledgements = |mode: u32| -> Check<(usize, bool)> {
        let mut world = bench.world();
        world.b.set(R::Xrnicconf, 0, 0xC0_0021 | mode << 3);
        same("reads back", world.b.get(R::Xrnicconf, 0), 0xC0_0021 | mode << 3)?;
        world.a.post(QP, &Wr::new(WRITE, 12 * 1024))?;
        world.quiet();
        let at_once = world.a.get(R::Cqhead, QP) == 1;
        world.settle()?;
        same("CQHEAD", world.a.get(R::Cqhead, QP), 1)?;
        let acks = world
            .frames
            .iter()
            .filter(|(from_a, frame)| !from_a && frame[at::OPCODE] == ACKNOWLEDGE);
        Ok((acks.count(), at_once))
    };
    for (mode, count, at_once) in [(0, 2, true), (1, 1, false), (2, 2, true), (3, 2, true)] {
        same(&format!("ACK mode {mode}"), acknowledgements(mode)?, (count, at_once))?;
    }

    let mut world = bench.world();
    world.a.set(R::Xrnicconf, 0, 0xFF12_3401);
    world.traffic(QP, 2000, 1)?;
    for (from_a, frame) in &world.frames {
        let port = u16::from_be_bytes([frame[at::SOURCE_PORT], frame[at::SOURCE_PORT + 1]]);
        same("UDP source port", port, if *from_a { 0x1234 } else { 0xC000 })?;
    }
    world.b.set(R::Xrnicconf, 0, 0);
    let all = world.b.get(R::Inalldrppktcnt, 0);
    world.a.post(QP, &Wr::new(SEND, 8))?;
    world.quiet();
    same("nothing is taken while off", world.b.get(R::Statrqpidb, QP), 1)?;
    holds("but counted", world.b.get(R::Inalldrppktcnt, 0) != all)?;
    world.b.set(R::Xrnicconf, 0, 1);
    world.settle()?;
    same("and taken later", world.b.get(R::Statrqpidb, QP), 2)
}

/// XRNICADCONF\[0\] and \[30:20\]: which registers become writable, and for which queue pair.
pub fn software_override(bench: &Bench) -> Check {
    let registers = [R::Cqhead, R::Statrqpidb, R::Statmsn];
    let mut world = bench.world();
    let a = &mut world.a;
    let written = |a: &mut crate::world::Side<'_>, q: u16, value: u32| {
        registers.map(|register| {
            a.set(register, q, value);
            a.get(register, q)
        })
    };
    same("without override", written(a, 3, 5), [0; 3])?;
    same("refused", a.refused(Reason::RegisterReadOnly), 3)?;
    a.set(R::Xrnicadconf, 0, 1);
    same("for any", written(a, 3, 5), [5; 3])?;
    a.set(R::Xrnicadconf, 0, 1 | 4 << 20);
    same("not for another", written(a, 3, 6), [5; 3])?;
    same("for the one named", written(a, 4, 6), [6; 3])?;
    // Taken, but computed: they follow from what else recovery writes.
    for register in [R::Statcursqptr, R::Statrqbufca, R::Statrqbufcamsb] {
        let (before, refused) = (a.get(register, 4), a.refused(Reason::RegisterReadOnly));
        a.set(register, 4, 0);
        same("computed", a.get(register, 4), before)?;
        same("not refused", a.refused(Reason::RegisterReadOnly), refused)?;
    }
    a.set(R::Xrnicadconf, 0, 0);
    same("override is over", written(a, 4, 7), [6; 3])?;
    retry_policy_and_time_unit(bench)
}

/// XRNICADCONF\[2\]: used-up retries are no reason to stop. \[19:16\]: timeouts are 2^(width + timeout)
/// clocks, 2^width of them hold an ACK back.
fn retry_policy_and_time_unit(bench: &Bench) -> Check {
    let mut world = bench.world();
    world.a.set(R::Timeoutconf, QP, 5 | 1 << 8);
    world.a.set(R::Xrnicadconf, 0, 1 << 2);
    world.a.post(QP, &Wr::new(WRITE, 8))?;
    world.on_wire = Some(Box::new(|_, _| false));
    for _ in 0..20 {
        world.quiet();
        world.next_timer();
    }
    same("still trying", (world.frames.len(), world.a.get(R::Statqp, QP) & 1), (20, 0))?;
    world.on_wire = None;
    world.settle()?;
    same("and done", world.a.get(R::Cqhead, QP), 1)?;

    // CLOG2(4.096 * MHz) as the chapter prints it, and what it comes to.
    for (clock_mhz, width, unit_ns) in [
        (400, 11, 5120),
        (250, 10, 4096),
        (200, 10, 5120),
        (125, 9, 4096),
        (100, 9, 5120),
        (250, 15, 131_072),
        (250, 0, 4096),
    ] {
        let mut world = bench.world_with(|config| config.clock_mhz = clock_mhz);
        for side in [&mut world.a, &mut world.b] {
            side.set(R::Xrnicadconf, 0, width << 16);
        }
        world.a.set(R::Timeoutconf, QP, 3 | 1 << 8);
        world.on_wire = Some(Box::new(|_, _| false));
        world.run(&Wr::new(WRITE, 8))?;
        let what = format!("{clock_mhz} MHz, width {width}");
        same(&what, world.now.0, 2 * (unit_ns << 3))?;
        let mut world = bench.world_with(|config| config.clock_mhz = clock_mhz);
        world.b.set(R::Xrnicadconf, 0, width << 16);
        world.b.set(R::Xrnicconf, 0, 0xC0_0021 | 1 << 3);
        world.run(&Wr::new(WRITE, 8))?;
        same(&format!("{what}: ACK on timeout"), world.now.0, unit_ns)?;
    }
    Ok(())
}

pub fn mac_address(bench: &Bench) -> Check {
    let mut world = bench.world();
    world.traffic(QP, 2000, 1)?;
    for (from_a, frame) in &world.frames {
        let (ours, theirs) = if *from_a { (1, 2) } else { (2, 1) };
        same("destination", &frame[..6], &[2, 0, 0, 0, 0, theirs])?;
        same("source", &frame[6..12], &[2, 0, 0, 0, 0, ours])?;
    }
    world.b.set(R::Macxaddmsb, 0, 0xFFFF_0304);
    same("16 bits", world.b.get(R::Macxaddmsb, 0), 0x0304)?;
    world.b.set(R::Macxaddlsb, 0, 0x0506_0708);
    world.a.post(QP, &Wr::new(SEND, 8))?;
    world.step();
    same("not ours", world.b.refused(Reason::DestinationMac), 1)?;
    world.a.set(R::Macdesaddmsb, QP, 0x0304);
    world.a.set(R::Macdesaddlsb, QP, 0x0506_0708);
    world.settle()?;
    same("CQHEAD", world.a.get(R::Cqhead, QP), 4)?;
    let last = world.frames.iter().rev().find(|(from_a, _)| !from_a);
    holds(
        "the new address is the source",
        last.is_some_and(|(_, f)| f[6..12] == [3, 4, 5, 6, 7, 8]),
    )
}

pub fn ipv4_address(bench: &Bench) -> Check {
    let mut world = bench.world();
    world.traffic(QP, 2000, 1)?;
    for (from_a, frame) in &world.frames {
        let (ours, theirs) = if *from_a { (1, 2) } else { (2, 1) };
        same("source", &frame[26..30], &[192, 0, 2, ours])?;
        same("destination", &frame[30..34], &[192, 0, 2, theirs])?;
    }
    world.b.set(R::Ipv4xadd, 0, 0x0A01_0203);
    world.a.post(QP, &Wr::new(SEND, 8))?;
    world.step();
    same("not ours", world.b.refused(Reason::DestinationIp), 1)
}

/// SEND, WRITE and READ over IPv6, with the four words of both addresses in their places.
pub fn ipv6_traffic(bench: &Bench) -> Check {
    let mut world = bench.world();
    let address = |number: u32| [0xFE80_0001, 0x1122_3344, 0x5566_7788, 0x99AA_BB00 | number];
    let own = [R::Ipv6xadd4, R::Ipv6xadd3, R::Ipv6xadd2, R::Ipv6xadd1];
    let peer = [R::Ipdesaddr4, R::Ipdesaddr3, R::Ipdesaddr2, R::Ipdesaddr1];
    for side in [&mut world.a, &mut world.b] {
        let number = u32::from(side.number);
        own.iter().zip(address(number)).for_each(|(&register, word)| side.set(register, 0, word));
        for (&register, word) in peer.iter().zip(address(3 - number)) {
            side.set(register, QP, word);
            same("reads back", side.get(register, QP), word)?;
        }
        side.set(R::Qpconf, QP, QPCONF | 1 << 7);
    }
    world.traffic(QP, 5000, 3)?;
    for (from_a, frame) in &world.frames {
        let number = if *from_a { 1 } else { 2 };
        let bytes = |number| address(number).map(u32::to_be_bytes).concat();
        same("EtherType", &frame[12..14], &[0x86, 0xDD])?;
        same("source", &frame[22..38], &bytes(number)[..])?;
        same("destination", &frame[38..54], &bytes(3 - number)[..])?;
    }
    // The wrong version is refused.
    world.b.set(R::Qpconf, QP, QPCONF);
    world.a.post(QP, &Wr::new(SEND, 8))?;
    world.step();
    same("IPv6 at an IPv4 queue pair", world.b.refused(Reason::IpFamily), 1)
}

/// XRNIC_CONF_QP_EN: queue pairs above it neither take nor send.
pub fn active_queue_pairs(bench: &Bench) -> Check {
    let mut world = bench.world();
    same("the field is as wide as C_NUM_QP needs", world.b.get(R::XrnicConfQpEn, 0), 7)?;
    world.b.set(R::XrnicConfQpEn, 0, u32::MAX);
    same("cut", world.b.get(R::XrnicConfQpEn, 0), 7)?;
    world.connect(5);
    world.traffic(5, 100, 1)?;
    world.b.set(R::XrnicConfQpEn, 0, 4);
    let all = world.b.get(R::Inalldrppktcnt, 0);
    let number = world.frames.len();
    world.a.post(5, &Wr::new(SEND, 8))?;
    world.quiet();
    same("one packet is dropped", world.b.get(R::Inalldrppktcnt, 0) - all, 1 << 16 | 1)?;
    same("with a reason", world.b.refused(Reason::QpInactive), 1)?;
    same("nothing answers", world.frames.len(), number + 1)?;
    same("the packet is for QP 5", u24(&world.frames[number].1, at::DEST_QP), 5)?;
    // QP 2 is not affected.
    world.a.fill(LOCAL, 100, 9)?;
    world.a.post(QP, &Wr::new(WRITE, 100))?;
    world.quiet();
    same("QP 2 goes on", world.b.bytes(REGION, 100)?, world.a.bytes(LOCAL, 100)?)?;
    world.b.set(R::XrnicConfQpEn, 0, 5);
    world.settle()?;
    same("QP 5 goes on, too", world.b.get(R::Statrqpidb, 5), 2)
}
