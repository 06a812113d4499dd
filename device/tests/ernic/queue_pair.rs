//! Registers of one queue pair.

use softrnic_device::Memory;
use softrnic_device::ernic::Register as R;
use softrnic_engine::{Nanos, Reason};

use crate::world::{
    Bench, Check, DEPTH, LOCAL, MTU, QP, QPCONF, RECEIVE_LEN, REGION, SEND, WRITE, World, Wr, at,
    completion_doorbell, completion_queue, first_psn, receive_doorbell, receive_queue, same,
    send_queue, u24,
};

/// QPCONF: \[0\] enable, \[2\] and \[3\] interrupts, \[5\] completion entries, \[6\] recovery, \[10:8\] path
/// MTU, \[31:16\] size of a receive buffer. IP version: see IPv6; \[4\]: see the hardware handshake.
pub fn control(bench: &Bench) -> Check {
    for (code, mtu) in [(0, 256), (1, 512), (2, 1024), (3, 2048), (4, 4096)] {
        let mut world = bench.world();
        for side in [&mut world.a, &mut world.b] {
            side.set(R::Qpconf, QP, QPCONF & !(7 << 8) | code << 8);
        }
        world.run(&Wr::new(WRITE, 8192))?;
        let sent = world.frames.iter().filter(|(from_a, _)| *from_a).count();
        same("packets of 8 KiB", sent, 8192 / mtu)?;
        same("CQHEAD", world.a.get(R::Cqhead, QP), 1)?;
    }

    // Neither interrupts nor completion entries.
    let mut world = bench.world();
    for side in [&mut world.a, &mut world.b] {
        side.set(R::Qpconf, QP, QPCONF & !0x2C);
    }
    world.run(&Wr::new(SEND, 8))?;
    same("CQHEAD", world.a.get(R::Cqhead, QP), 1)?;
    same("no completion entry", world.a.cqe(QP, 1)?, 0)?;
    same("no interrupts", (world.a.get(R::Intsts, 0), world.b.get(R::Intsts, 0)), (0, 0))?;
    for side in [&mut world.a, &mut world.b] {
        side.set(R::Qpconf, QP, QPCONF);
    }
    world.run(&Wr::new(SEND, 8))?;
    same("a completion entry", world.a.cqe(QP, 2)?, 0x2_0102)?;
    same("interrupts", (world.a.get(R::Intsts, 0), world.b.get(R::Intsts, 0)), (1 << 4, 1 << 6))?;

    // Off, it sends nothing and takes nothing; on again, it goes on where it was.
    for bits in [0, 1 | 1 << 6] {
        let mut world = bench.world();
        world.run(&Wr::new(SEND, 8))?;
        let number = world.frames.len();
        world.a.set(R::Qpconf, QP, QPCONF & !1 | bits);
        world.a.queue(QP, &Wr::new(SEND, 8))?;
        world.b.post(QP, &Wr::new(SEND, 8))?;
        world.quiet();
        same("a sends nothing", world.frames[number..].iter().any(|(a, _)| *a), false)?;
        same("and takes nothing", world.a.get(R::Statrqpidb, QP), 0)?;
        world.a.set(R::Qpconf, QP, QPCONF);
        world.a.set(R::Sqpi, QP, 2);
        world.settle()?;
        same("both go on", (world.a.get(R::Cqhead, QP), world.b.get(R::Cqhead, QP)), (2, 1))?;
    }

    // Receive buffers of 256 and 512 bytes.
    for units in [1u32, 2] {
        let mut world = bench.world();
        world.b.set(R::Qpconf, QP, QPCONF & 0xFFFF | units << 16);
        world.run(&Wr::new(SEND, 8))?;
        world.a.fill(LOCAL, 256, 3)?;
        world.run(&Wr::new(SEND, 256))?;
        let second = receive_queue(QP) + 256 * u64::from(units);
        same("the second buffer", world.b.bytes(second, 256)?, world.a.bytes(LOCAL, 256)?)?;
        world.run(&Wr::new(SEND, 256 * units + 1))?;
        same("too long", world.b.refused(Reason::ReceiveTooSmall), 1)?;
    }
    Ok(())
}

/// QPADVCONF: traffic class, TTL, P_Key.
pub fn headers(bench: &Bench) -> Check {
    let mut world = bench.world();
    world.a.set(R::Qpadvconf, QP, 0x8001_2F2E);
    same("reserved bits", world.a.get(R::Qpadvconf, QP), 0x8001_2F2E)?;
    world.run(&Wr::new(SEND, 8))?;
    let frame = world.frames[0].1.clone();
    same("DSCP in the upper six bits", frame[at::TRAFFIC_CLASS], 0x2E << 2)?;
    same("TTL", frame[at::TTL], 0x2F)?;
    same("P_Key", &frame[at::PKEY..at::PKEY + 2], &[0x80, 0x01])?;
    world.a.set(R::Qpadvconf, QP, 0);
    world.run(&Wr::new(SEND, 8))?;
    let last = world.frames.iter().rev().find(|(from_a, _)| *from_a);
    same("TTL 0 sends 64", last.map(|(_, frame)| frame[at::TTL]), Some(64))
}

pub fn receive_buffers(bench: &Bench) -> Check {
    let mut world = bench.world();
    same("aligned to 256 bytes", world.b.get(R::Rqba, QP) & 0xFF, 0)?;
    world.traffic(QP, 3000, 1)?;
    let base = REGION + 0x2_0000;
    world.b.set64(R::Rqba, R::Rqbamsb, QP, base | 0xFF);
    world.run(&Wr::new(SEND, 8))?;
    same("the second buffer", world.b.bytes(base + RECEIVE_LEN, 5)?, b"short".to_vec())
}

pub fn send_queue_base(bench: &Bench) -> Check {
    let mut world = bench.world();
    world.traffic(QP, 3000, 1)?;
    let base = LOCAL + 0x2000;
    let entry = world.a.bytes(send_queue(QP) + 64, 64)?;
    let at = base + 3 * 64;
    world.a.nic.memory.write(at, &entry).map_err(|fault| fault.to_string())?;
    world.a.set64(R::Sqba, R::Sqbamsb, QP, base | 0x1F);
    world.a.set(R::Sqpi, QP, 4);
    world.settle()?;
    same("an entry of the new ring", world.a.cqe(QP, 4)?, 0x2_0102)
}

pub fn completion_entries(bench: &Bench) -> Check {
    let mut world = bench.world();
    world.traffic(QP, 3000, 1)?;
    let entries = (1..=3).map(|i| world.a.cqe(QP, i)).collect::<Check<Vec<_>>>()?;
    same("WRID, opcode, no error", entries, vec![0x101, 0x2_0102, 0x4_0103])?;
    world.a.set64(R::Cqba, R::Cqbamsb, QP, REGION | 0x1F);
    world.run(&Wr::new(SEND, 8))?;
    same("in the new ring", world.a.word(REGION + 12)?, 0x2_0104)?;
    same("not in the old", world.a.word(completion_queue(QP) + 12)?, 0)
}

pub fn receive_write_back(bench: &Bench) -> Check {
    let mut world = bench.world();
    world.traffic(QP, 8, 1)?;
    world.b.set64(R::Rqwptrdbadd, R::Rqwptrdbaddmsb, QP, REGION + 0x100);
    world.run(&Wr::new(SEND, 8))?;
    same("the new word", world.b.word(REGION + 0x100)?, 2)?;
    same("the old one", world.b.word(receive_doorbell(QP))?, 1)?;
    world.b.set64(R::Rqwptrdbadd, R::Rqwptrdbaddmsb, QP, 0);
    world.run(&Wr::new(SEND, 8))?;
    same("address 0: none", world.b.word(REGION + 0x100)?, 2)?;
    same("the index moves", world.b.get(R::Statrqpidb, QP), 3)
}

pub fn completion_write_back(bench: &Bench) -> Check {
    let mut world = bench.world();
    world.traffic(QP, 8, 1)?;
    world.a.set64(R::Cqdbadd, R::Cqdbaddmsb, QP, REGION + 0x100);
    world.run(&Wr::new(SEND, 8))?;
    same("the new word", world.a.word(REGION + 0x100)?, 4)?;
    same("the old one", world.a.word(completion_doorbell(QP))?, 3)?;
    world.a.set64(R::Cqdbadd, R::Cqdbaddmsb, QP, 0);
    world.run(&Wr::new(SEND, 8))?;
    same("address 0: none", world.a.word(REGION + 0x100)?, 4)?;
    same("the index moves", world.a.get(R::Cqhead, QP), 5)
}

/// CQHEAD counts 1..=depth, and only software under override sets it back.
pub fn completed_index(bench: &Bench) -> Check {
    let mut world = bench.world();
    same("after reset", world.a.get(R::Cqhead, QP), 0)?;
    for n in 0..3 * DEPTH {
        let index = world.run(&Wr::new(WRITE, 8))?;
        same("index", (index, world.a.get(R::Cqhead, QP)), (n % DEPTH + 1, n % DEPTH + 1))?;
    }
    world.a.set(R::Cqhead, QP, 0);
    same("read only", world.a.get(R::Cqhead, QP), DEPTH)
}

/// RQCI and STATRQPIDB: a ring of 8 holds 7 messages; a buffer that software frees is used again.
pub fn receive_indices(bench: &Bench) -> Check {
    let mut world = bench.world();
    for n in 1..DEPTH {
        world.run(&Wr::new(SEND, 8))?;
        same("STATRQPIDB", world.b.get(R::Statrqpidb, QP), n)?;
    }
    world.a.post(QP, &Wr::new(SEND, 8))?;
    for _ in 0..20 {
        world.quiet();
        world.next_timer();
    }
    same("full", world.b.get(R::Statrqpidb, QP), DEPTH - 1)?;
    world.b.set(R::Rqci, QP, 1);
    world.settle()?;
    same("one is free", world.b.get(R::Statrqpidb, QP), DEPTH)?;
    world.b.set(R::Rqci, QP, DEPTH + 1);
    same(
        "beyond the ring",
        (world.b.get(R::Rqci, QP), world.b.refused(Reason::RingIndex)),
        (1, 1),
    )?;
    world.b.set(R::Rqci, QP, DEPTH);
    world.run(&Wr::new(SEND, 8))?;
    same("wraps", world.b.get(R::Statrqpidb, QP), 1)
}

/// SQPI announces entries: one, several at once, and around the end of the ring.
pub fn send_doorbell(bench: &Bench) -> Check {
    let mut world = bench.world();
    for burst in [1, 3, 7, 5, 2] {
        let mut last = 0;
        for _ in 0..burst {
            last = world.a.queue(QP, &Wr::new(WRITE, 8))?;
        }
        let number = world.frames.len();
        world.settle()?;
        same("nothing before the doorbell", world.frames.len(), number)?;
        world.a.set(R::Sqpi, QP, last);
        world.settle()?;
        let sent = world.frames[number..].iter().filter(|(from_a, _)| *from_a).count();
        same("packets", sent, burst)?;
        same("CQHEAD", world.a.get(R::Cqhead, QP), last)?;
        world.a.set(R::Sqpi, QP, last);
        world.settle()?;
        same("the same index is no work", world.a.get(R::Statwqe, QP) as usize, {
            world.frames.iter().filter(|(from_a, _)| *from_a).count()
        })?;
    }
    for beyond in [0, DEPTH + 1, 0xFFFF] {
        world.a.set(R::Sqpi, QP, beyond);
    }
    same("beyond the ring", world.a.refused(Reason::RingIndex), 3)
}

pub fn depths(bench: &Bench) -> Check {
    let mut world = bench.world();
    for side in [&mut world.a, &mut world.b] {
        side.set(R::Qdepth, QP, 4 | 2 << 16);
    }
    world.a.queue(QP, &Wr::new(WRITE, 8))?;
    world.a.set(R::Sqpi, QP, 5);
    same("beyond the ring", world.a.refused(Reason::RingIndex), 1)?;
    for index in [1, 2, 3, 4, 1] {
        if index != 1 {
            world.a.queue(QP, &Wr::new(WRITE, 8))?;
        }
        world.a.set(R::Sqpi, QP, index);
        world.settle()?;
        same("CQHEAD", world.a.get(R::Cqhead, QP), index)?;
    }
    // A receive ring of two holds one message.
    world.b.post(QP, &Wr::new(SEND, 8))?;
    world.settle()?;
    same("one message", world.a.get(R::Statrqpidb, QP), 1)?;
    world.b.post(QP, &Wr::new(SEND, 8))?;
    world.quiet();
    same("no second", world.a.get(R::Intsts, 0) & 1 << 3, 1 << 3)
}

/// SQPSN is the first packet's; STATRESPSN follows the answers.
pub fn send_psns(bench: &Bench) -> Check {
    let mut world = bench.world();
    let first = first_psn(1);
    same("expected next", world.a.get(R::Statrespsn, QP), first)?;
    world.a.post(QP, &Wr::new(WRITE, 20 * MTU))?;
    for k in 0..3 {
        let frame = world.a.next_frame(Nanos(0)).ok_or("no frame")?;
        same("PSN", u24(&frame, at::PSN), first + k)?;
        world.deliver(false, &frame);
        same("next PSN", world.a.get(R::Sqpsn, QP), first + k + 1)?;
    }
    same("nothing is answered", world.a.get(R::Statrespsn, QP), first)?;
    world.a.set(R::Sqpsn, QP, 1);
    same("not while work is in flight", world.a.get(R::Sqpsn, QP), first + 3)?;
    world.settle()?;
    // 20 packets on, which is beyond the wrap.
    same("next PSN", world.a.get(R::Sqpsn, QP), (first + 20) & 0xFF_FFFF)?;
    same("all is answered", world.a.get(R::Statrespsn, QP), (first + 20) & 0xFF_FFFF)
}

/// LSTRQREQ: the next PSN that is taken, and the opcode that the next packet follows.
pub fn last_request(bench: &Bench) -> Check {
    let mut world = bench.world();
    world.run(&Wr::new(WRITE, 3000))?;
    same("RDMA WRITE LAST", world.b.get(R::Lstrqreq, QP), 0x0800_0000 | (first_psn(1) + 2))?;
    // One ahead: the next packet is a duplicate; three back: a gap.
    world.b.set(R::Lstrqreq, QP, 0x0400_0000 | (first_psn(1) + 3));
    world.a.post(QP, &Wr::new(WRITE, 8))?;
    world.step();
    same("a duplicate", world.b.get(R::Ininvdupcnt, 0) >> 16, 1)?;
    let mut world = bench.world();
    world.b.set(R::Lstrqreq, QP, 0x0400_0000 | (first_psn(1) - 3));
    world.a.post(QP, &Wr::new(WRITE, 8))?;
    world.step();
    same("a gap", world.b.refused(Reason::PsnAhead), 1)?;
    // Opcode 0 is SEND FIRST: nothing but a middle may follow.
    let mut world = bench.world();
    world.b.set(R::Lstrqreq, QP, first_psn(1) - 1);
    world.run(&Wr::new(WRITE, 8))?;
    same("out of sequence", world.b.refused(Reason::LastOpcodeUnset), 1)?;
    same("fatal", world.b.get(R::Statqp, QP) & 1, 1)
}

/// Who the packets go to.
pub fn peer(bench: &Bench) -> Check {
    let mut world = bench.world();
    world.a.set(R::Destqpconf, QP, 0xFF12_3456);
    world.a.set(R::Macdesaddlsb, QP, 0x0304_0506);
    world.a.set(R::Macdesaddmsb, QP, 0xFFFF_0102);
    world.a.set(R::Ipdesaddr1, QP, 0x0A0B_0C0D);
    same("24 bits", world.a.get(R::Destqpconf, QP), 0x12_3456)?;
    same("16 bits", world.a.get(R::Macdesaddmsb, QP), 0x0102)?;
    world.a.post(QP, &Wr::new(WRITE, 8))?;
    let frame = world.a.next_frame(Nanos(0)).ok_or("no frame")?;
    same("MAC", &frame[..6], &[1, 2, 3, 4, 5, 6])?;
    same("IP", &frame[30..34], &[10, 11, 12, 13])?;
    same("queue pair", u24(&frame, at::DEST_QP), 0x12_3456)
}

/// TIMEOUTCONF: the time to the first retry, how many there are, RNR retries and our RNR timer.
pub fn timers(bench: &Bench) -> Check {
    // Nobody answers: 3 retries at 4.096 us x 2^5.
    let mut world = bench.world();
    world.a.set(R::Timeoutconf, QP, 5 | 3 << 8);
    world.on_wire = Some(Box::new(|_, _| false));
    world.run(&Wr::new(WRITE, 8))?;
    same("first and 3 more", world.frames.len(), 4)?;
    same("4 timeouts", world.now, Nanos(4 * (4096 << 5)))?;
    same("fatal", world.a.get(R::Statqp, QP) & 1, 1)?;
    // Timeout 0: for ever.
    let mut world = bench.world();
    world.a.set(R::Timeoutconf, QP, 3 << 8);
    world.on_wire = Some(Box::new(|_, _| false));
    world.run(&Wr::new(WRITE, 8))?;
    same("no timer", (world.frames.len(), world.now), (1, Nanos(0)))?;
    // The peer has no buffer: 2 RNR retries, each after our 0.64 ms (code 12).
    let mut world = bench.world();
    world.b.set(R::Qdepth, QP, DEPTH | 1 << 16);
    world.b.set(R::Timeoutconf, QP, 12 << 16);
    world.a.set(R::Timeoutconf, QP, 12 | 2 << 11);
    world.run(&Wr::new(SEND, 8))?;
    same("RNR code", world.frames[1].1[at::AETH], 0x20 | 12)?;
    same("2 waits", world.now, Nanos(2 * 640_000))?;
    same("RNR retries", world.frames.len(), 6)?;
    same("fatal", world.a.get(R::Statqp, QP) & 1, 1)
}

/// STATSSN and STATMSN count messages, STATWQE work requests; all stay over a reconfiguration.
pub fn message_numbers(bench: &Bench) -> Check {
    let mut world = bench.world();
    world.traffic(QP, 3000, 1)?;
    world.traffic(QP, 8, 2)?;
    same("sent", world.a.get(R::Statssn, QP), 6)?;
    same("received", world.b.get(R::Statmsn, QP), 6)?;
    same("taken", world.a.get(R::Statwqe, QP), 6)?;
    let aeth = world.frames.iter().rev().find(|(from_a, _)| !from_a).map(|(_, f)| f.clone());
    let aeth = aeth.ok_or("no answer")?;
    same("the MSN that the peer is told", u24(&aeth, at::AETH + 1), 6)?;
    world.a.set(R::Qpconf, QP, QPCONF & !1);
    world.a.set(R::Qpconf, QP, QPCONF);
    same("they survive", (world.a.get(R::Statssn, QP), world.a.get(R::Statwqe, QP)), (6, 6))
}

/// STATQP, bit by bit.
pub fn status_bits(bench: &Bench) -> Check {
    let mut world = bench.world();
    let statqp = |world: &mut World<'_>| world.a.get(R::Statqp, QP);
    same("idle", statqp(&mut world), 0x600)?;
    // [9] and [10]: nothing to fetch, nothing outstanding.
    world.a.queue(QP, &Wr::new(WRITE, 20 * MTU))?;
    world.a.post(QP, &Wr::new(WRITE, 8))?;
    same("two to fetch", statqp(&mut world), 1 << 10)?;
    let first = world.a.next_frame(Nanos(0)).ok_or("no frame")?;
    same("one to fetch, one outstanding", statqp(&mut world), 0)?;
    // [3]: 16 packets are outstanding.
    while let Some(frame) = world.a.next_frame(Nanos(0)) {
        world.frames.push((true, frame));
    }
    same("no more", (world.frames.len(), statqp(&mut world)), (15, 1 << 3))?;
    world.deliver(false, &first);
    world.settle()?;
    // [11], and [22:16] with the NAK of what was lost; progress clears the counts.
    same("sent again after a NAK", statqp(&mut world), 0x600 | 1 << 11 | 0x60 << 16)?;
    world.a.set(R::Statqp, QP, 0x12 << 16 | 5 << 24 | 6 << 28);
    same("software writes", statqp(&mut world), 0x600 | 1 << 11 | 0x12 << 16 | 5 << 24 | 6 << 28)?;

    // [2]: the send queue is full.
    let mut world = bench.world();
    for _ in 0..DEPTH {
        world.a.queue(QP, &Wr::new(WRITE, 8))?;
    }
    world.a.set(R::Sqpi, QP, DEPTH);
    same("full", statqp(&mut world) & 1 << 2, 1 << 2)?;
    // [26:24]: retries that bring no answer; [0]: fatal.
    world.on_wire = Some(Box::new(|_, _| false));
    world.a.set(R::Timeoutconf, QP, 5 | 3 << 8);
    for retries in 1..=3 {
        world.quiet();
        world.next_timer();
        same("retries", statqp(&mut world) >> 24 & 7, retries)?;
    }
    world.settle()?;
    same("fatal", statqp(&mut world) & 1, 1)?;

    // [1] at the receiver, [30:28] at the sender: no buffer.
    let mut world = bench.world();
    world.b.set(R::Qdepth, QP, DEPTH | 1 << 16);
    world.a.post(QP, &Wr::new(SEND, 8))?;
    for naks in 1..=3 {
        world.quiet();
        same("RNR NAKs", statqp(&mut world) >> 28, naks)?;
        world.next_timer();
    }
    same("overflow", world.b.get(R::Statqp, QP) & 2, 2)?;
    world.b.set(R::Qdepth, QP, DEPTH | DEPTH << 16);
    world.settle()?;
    same("no more", (world.b.get(R::Statqp, QP) & 2, statqp(&mut world) >> 28), (0, 0))
}

pub fn outstanding(bench: &Bench) -> Check {
    let mut world = bench.world();
    for n in 1..=5 {
        world.a.post(QP, &Wr::new(WRITE, 8))?;
        let frame = world.a.next_frame(Nanos(0)).ok_or("no frame")?;
        world.deliver(false, &frame);
        same("outstanding", world.a.get(R::Statcursqptr, QP), n)?;
    }
    world.settle()?;
    same("idle", world.a.get(R::Statcursqptr, QP), 0)
}

pub fn current_receive_buffer(bench: &Bench) -> Check {
    let mut world = bench.world();
    for n in 0..2 * u64::from(DEPTH) {
        let low = world.b.get(R::Statrqbufca, QP);
        let address = u64::from(world.b.get(R::Statrqbufcamsb, QP)) << 32 | u64::from(low);
        same("address", address, receive_queue(QP) + n % u64::from(DEPTH) * RECEIVE_LEN)?;
        world.run(&Wr::new(SEND, 8))?;
        same("the message is there", world.b.bytes(address, 5)?, b"short".to_vec())?;
        let taken = world.b.get(R::Statrqpidb, QP);
        world.b.set(R::Rqci, QP, taken);
    }
    Ok(())
}
