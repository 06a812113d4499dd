//! Two ERNICs back to back, driven through registers and queue memory only.
#![allow(clippy::unwrap_used, reason = "a test's own helpers may panic")]

use softrnic_device::ernic::{Ernic, ErnicConfig, Location, Register};
use softrnic_device::{Memory, Nic, Ram};
use softrnic_engine::packet::{BthFields, FRAME_LEN_MAX, Flow, Template, opcode};
use softrnic_engine::{Nanos, Psn, Qpn, Reason, Room, Rx};

const RAM: u64 = 0x4000_0000;
const SQ: u64 = RAM;
const CQ: u64 = RAM + 0x2000;
const RQ: u64 = RAM + 0x4000;
const CQ_DOORBELL: u64 = RAM + 0x3000;
const RQ_DOORBELL: u64 = RAM + 0x3004;
const LOCAL: u64 = RAM + 0x1_0000;
const REGION: u64 = RAM + 0x8_0000;
const REGION_VA: u64 = 0x7FFF_0000_1000;
const REGION_LEN: u32 = 0x4_0000;
const RKEY: u32 = 3 << 8 | 0x5A;
const RQ_BUFFER_LEN: u64 = 0x2000;
const QP: u16 = 2;
const DEPTH: u32 = 8;
/// Enabled, both interrupts, doorbells in memory, CQEs, MTU 1024, receive buffers of 8 KiB.
const QPCONF: u32 = 0x003D | 2 << 8 | 32 << 16;

struct Side {
    nic: Nic<Ernic, Ram>,
    name: &'static str,
}

impl Side {
    fn new(name: &'static str, address: u8, peer: u8) -> Self {
        let nic = Nic::ernic(ErnicConfig::default(), Ram::new(RAM, 0x10_0000));
        let mut side = Self { nic, name };
        side.set(Register::Macxaddlsb, 0, address.into());
        side.set(Register::Macxaddmsb, 0, 0x0200);
        side.set(Register::Ipv4xadd, 0, 0xC000_0200 | u32::from(address));
        side.set(Register::XrnicConfQpEn, 0, 7);
        side.set(Register::Inten, 0, 0x1FB);
        side.set(Register::Pdpdnum, 3, 9);
        side.set(Register::Virtaddrlsb, 3, REGION_VA as u32);
        side.set(Register::Virtaddrmsb, 3, (REGION_VA >> 32) as u32);
        side.set(Register::Bufbaseaddrlsb, 3, REGION as u32);
        side.set(Register::Bufrkey, 3, RKEY & 0xFF);
        side.set(Register::Wrrdbuflen, 3, REGION_LEN);
        side.set(Register::Accessdesc, 3, 2);
        side.set(Register::Sqba, QP, SQ as u32);
        side.set(Register::Cqba, QP, CQ as u32);
        side.set(Register::Rqba, QP, RQ as u32);
        side.set(Register::Cqdbadd, QP, CQ_DOORBELL as u32);
        side.set(Register::Rqwptrdbadd, QP, RQ_DOORBELL as u32);
        side.set(Register::Qdepth, QP, DEPTH | DEPTH << 16);
        side.set(Register::Sqpsn, QP, 0xFF_FFF0 + u32::from(address));
        side.set(Register::Lstrqreq, QP, 0x0400_0000 | (0xFF_FFEF + u32::from(peer)));
        side.set(Register::Destqpconf, QP, QP.into());
        side.set(Register::Timeoutconf, QP, 0x0001_3F08);
        side.set(Register::Qpadvconf, QP, 0xFFFF_4000);
        side.set(Register::Macdesaddlsb, QP, peer.into());
        side.set(Register::Macdesaddmsb, QP, 0x0200);
        side.set(Register::Ipdesaddr1, QP, 0xC000_0200 | u32::from(peer));
        side.set(Register::Pd, QP, 9);
        side.set(Register::Qpconf, QP, QPCONF);
        side.set(Register::Xrnicconf, 0, 0x00C0_0001);
        side
    }

    fn offset(&self, register: Register, index: u16) -> u32 {
        self.nic.device.map().offset(Location { register, index })
    }

    fn set(&mut self, register: Register, index: u16, value: u32) {
        self.nic.write32(self.offset(register, index), value);
    }

    fn get(&mut self, register: Register, index: u16) -> u32 {
        self.nic.read32(self.offset(register, index))
    }

    /// Writes a send queue entry into the slot that `sqpi` announces.
    fn entry(&mut self, sqpi: u32, opcode: u8, local: u64, length: u32, rest: &Remote) {
        let mut wqe = [0; 64];
        wqe[..2].copy_from_slice(&(0x100 + sqpi as u16).to_le_bytes());
        wqe[4..12].copy_from_slice(&local.to_le_bytes());
        wqe[12..16].copy_from_slice(&length.to_le_bytes());
        wqe[16] = opcode;
        wqe[20..28].copy_from_slice(&rest.va.to_le_bytes());
        wqe[28..32].copy_from_slice(&rest.rkey.to_le_bytes());
        wqe[32..48].copy_from_slice(b"short and inline");
        wqe[48..52].copy_from_slice(&rest.immediate.to_le_bytes());
        self.nic.memory.write(SQ + 64 * u64::from(sqpi - 1), &wqe).unwrap();
    }

    fn cqe(&self, index: u32) -> u32 {
        self.nic.memory.read_u32(CQ + 4 * u64::from(index - 1)).unwrap()
    }

    fn bytes(&self, address: u64, len: usize) -> Vec<u8> {
        self.nic.memory.slice(address, len).unwrap().to_vec()
    }

    fn fill(&mut self, address: u64, len: usize, seed: u8) {
        let bytes: Vec<u8> =
            (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect();
        self.nic.memory.write(address, &bytes).unwrap();
    }

    fn fault(&self, reason: Reason) -> u64 {
        self.nic.device.faults()[reason as usize]
    }

    fn refused(&self, reason: Reason) -> u64 {
        self.nic.engine.refused()[reason as usize]
    }
}

#[derive(Default)]
struct Remote {
    va: u64,
    rkey: u32,
    immediate: u32,
}

impl Remote {
    const REGION: Self = Self { va: REGION_VA, rkey: RKEY, immediate: 0xABCD };
}

struct World {
    a: Side,
    b: Side,
    now: Nanos,
    ladder: String,
    /// Frames of `a` that are lost, by number from 0.
    lose: Vec<u32>,
    sent_by_a: u32,
}

impl World {
    fn new() -> Self {
        Self {
            a: Side::new("a", 1, 2),
            b: Side::new("b", 2, 1),
            now: Nanos(0),
            ladder: String::new(),
            lose: Vec::new(),
            sent_by_a: 0,
        }
    }

    /// Frames travel at once until nothing moves, timers included.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            if self.step() {
                continue;
            }
            let deadlines = [self.a.nic.next_deadline(), self.b.nic.next_deadline()];
            let Some(deadline) = deadlines.into_iter().flatten().min() else { return };
            self.now = self.now.max(deadline);
            self.a.nic.handle_timeout(self.now);
            self.b.nic.handle_timeout(self.now);
        }
        panic!("never settles:\n{}", self.ladder);
    }

    fn step(&mut self) -> bool {
        let mut bytes = [0; FRAME_LEN_MAX];
        let mut moved = false;
        for from_a in [true, false] {
            let (from, to) =
                if from_a { (&mut self.a, &mut self.b) } else { (&mut self.b, &mut self.a) };
            let mut room = Room { bytes: &mut bytes, segments: 1, source_port: None };
            let Some(train) = from.nic.poll_transmit(self.now, &mut room) else { continue };
            moved = true;
            let lost = from_a && self.lose.contains(&self.sent_by_a);
            self.sent_by_a += u32::from(from_a);
            let line = format!(
                "{} -> {} {} psn {}{}",
                from.name,
                to.name,
                opcode::row(train.opcode).name,
                train.psn,
                if lost { "  lost" } else { "" },
            );
            self.ladder.push_str(&line);
            if !lost {
                let verdict = to.nic.handle_frame(self.now, &bytes[..train.len], Rx::default());
                if let Some(reason) = verdict.refused {
                    self.ladder.push_str(&format!("  refused: {reason}"));
                }
            }
            self.ladder.push('\n');
        }
        moved
    }
}

#[test]
fn send_write_and_read_cross_and_every_register_tells_of_it() {
    let mut world = World::new();
    world.a.fill(LOCAL, 3000, 7);
    world.b.fill(REGION + 0x4000, 2500, 99);
    world.a.entry(1, 0x02, 0, 16, &Remote::default());
    world.a.entry(2, 0x02, LOCAL, 3000, &Remote::default());
    world.a.entry(3, 0x00, LOCAL, 2048, &Remote::REGION);
    world.a.entry(
        4,
        0x04,
        LOCAL + 0x8000,
        2500,
        &Remote { va: REGION_VA + 0x4000, ..Remote::REGION },
    );
    world.a.set(Register::Sqpi, QP, 4);
    world.settle();
    insta::assert_snapshot!(world.ladder);

    let World { a, b, .. } = &mut world;
    assert_eq!(b.bytes(RQ, 16), b"short and inline");
    assert_eq!(b.bytes(RQ + RQ_BUFFER_LEN, 3000), a.bytes(LOCAL, 3000));
    assert_eq!(b.bytes(REGION, 2048), a.bytes(LOCAL, 2048));
    assert_eq!(a.bytes(LOCAL + 0x8000, 2500), b.bytes(REGION + 0x4000, 2500));
    assert_eq!(
        (1..=4).map(|i| a.cqe(i)).collect::<Vec<_>>(),
        [0x2_0101, 0x2_0102, 0x103, 0x4_0104]
    );
    assert_eq!(a.get(Register::Cqhead, QP), 4);
    assert_eq!(a.nic.memory.read_u32(CQ_DOORBELL), Ok(4));
    assert_eq!(b.get(Register::Statrqpidb, QP), 2);
    assert_eq!(b.nic.memory.read_u32(RQ_DOORBELL), Ok(2));
    assert_eq!(a.get(Register::Statqp, QP), 0x600);
    assert_eq!(a.get(Register::Statwqe, QP), 4);
    assert_eq!(a.get(Register::Statssn, QP), 4);
    assert_eq!(b.get(Register::Statmsn, QP), 4);
    assert_eq!(b.get(Register::Lstrqreq, QP), 0x0C00_0000 | 0xFF_FFF9);
    assert_eq!(b.get(Register::Statrqbufca, QP), (RQ + 2 * RQ_BUFFER_LEN) as u32);

    assert_eq!(a.get(Register::Intsts, 0), 1 << 4);
    assert_eq!(a.get(Register::Cqintsts, 0), 1 << QP);
    assert_eq!(b.get(Register::Intsts, 0), 1 << 6);
    assert_eq!(b.get(Register::Rqintsts, 0), 1 << QP);
    assert!(a.nic.interrupt() && b.nic.interrupt());
    a.set(Register::Cqintsts, 0, 1 << QP);
    assert!(!a.nic.interrupt());

    assert_eq!(a.get(Register::Outiopktcnt, 0), 3 << 16 | 4);
    assert_eq!(b.get(Register::Insrrpktcnt, 0), 6);
    assert_eq!(b.get(Register::Outrdrsppktcnt, 0), 3);
    assert_eq!(a.get(Register::Insrrpktcnt, 0), 3 << 16);
    assert_eq!(a.get(Register::Inampktcnt, 0), b.get(Register::Outampktcnt, 0));
    assert_eq!(a.get(Register::Lstinpkt, 0) & 0xFF, 0x0F);
    assert_eq!(b.get(Register::Lstinpkt, 0) & 0xFF, 0x0C);
    assert_eq!(b.get(Register::Inalldrppktcnt, 0), 7 << 16);
}

#[test]
fn the_rings_wrap_many_times() {
    let mut world = World::new();
    let (mut sqpi, mut rqci) = (0, 0);
    for n in 0..50u32 {
        sqpi = sqpi % DEPTH + 1;
        world.a.fill(LOCAL, 700, n as u8);
        world.a.entry(sqpi, 0x02, LOCAL, 700, &Remote::default());
        world.a.set(Register::Sqpi, QP, sqpi);
        world.settle();
        assert_eq!(world.a.get(Register::Cqhead, QP), sqpi);
        assert_eq!(world.b.get(Register::Statrqpidb, QP), sqpi);
        let buffer = RQ + u64::from(n % DEPTH) * RQ_BUFFER_LEN;
        assert_eq!(world.b.bytes(buffer, 700), world.a.bytes(LOCAL, 700), "message {n}");
        rqci = rqci % DEPTH + 1;
        world.b.set(Register::Rqci, QP, rqci);
    }
    assert_eq!(world.b.refused(Reason::RingIndex), 0);
}

#[test]
fn a_full_receive_ring_answers_rnr_until_software_frees_a_buffer() {
    let mut world = World::new();
    for sqpi in 1..=DEPTH {
        world.a.entry(sqpi, 0x02, 0, 8, &Remote::default());
    }
    world.a.set(Register::Sqpi, QP, DEPTH);
    // A ring of 8 holds 7 messages; RNR retry 7 means for ever, so the world would not settle.
    for _ in 0..200 {
        world.step();
    }
    assert_eq!(world.b.get(Register::Statrqpidb, QP), DEPTH - 1);
    assert_eq!(world.b.get(Register::Intsts, 0) & 1 << 3, 1 << 3);
    assert_eq!(world.b.get(Register::Statqp, QP) & 2, 2);
    assert_eq!(world.b.get(Register::Outnakpktcnt, 0), 1);
    assert_eq!(world.a.get(Register::Innakpktcnt, 0), 1);
    assert_eq!(world.a.get(Register::Statqp, QP) >> 16 & 0x7F, 0x21);
    assert_eq!(world.a.get(Register::Statqp, QP) >> 28, 1);
    assert_eq!(world.b.get(Register::Ininvdupcnt, 0), 0);
    world.b.set(Register::Rqci, QP, 1);
    world.settle();
    assert_eq!(world.b.get(Register::Statrqpidb, QP), DEPTH);
    assert_eq!(world.b.get(Register::Statqp, QP) & 2, 0);
    assert_eq!(world.a.get(Register::Cqhead, QP), DEPTH);
}

#[test]
fn a_lost_packet_is_sent_again_and_counted() {
    let mut world = World::new();
    world.a.fill(LOCAL, 4096, 3);
    world.a.entry(1, 0x00, LOCAL, 4096, &Remote::REGION);
    world.lose = vec![1];
    world.a.set(Register::Sqpi, QP, 1);
    world.settle();
    assert_eq!(world.b.bytes(REGION, 4096), world.a.bytes(LOCAL, 4096));
    assert_eq!(world.a.get(Register::Cqhead, QP), 1);
    assert_eq!(world.a.get(Register::Retrycntsts, 0), 2, "{}", world.ladder);
    assert_eq!(world.a.get(Register::Statqp, QP) & 1 << 11, 1 << 11);
    assert_eq!(world.a.get(Register::Statqp, QP) >> 16 & 0x7F, 0x60);
    assert!(world.b.get(Register::Ininvdupcnt, 0) & 0xFFFF >= 1);
    assert_eq!(world.b.get(Register::Intsts, 0) & 1, 1);
}

#[test]
fn immediates_and_invalidations_leave_on_the_side_band() {
    let mut world = World::new();
    world.a.entry(1, 0x03, 0, 4, &Remote { immediate: 0x1122_3344, ..Remote::default() });
    world.a.entry(2, 0x01, LOCAL, 64, &Remote { immediate: 0x5566_7788, ..Remote::REGION });
    world.a.entry(3, 0x0C, 0, 4, &Remote { rkey: 0xDEAD, ..Remote::default() });
    world.a.set(Register::Sqpi, QP, 3);
    world.settle();
    let b = &mut world.b.nic.device;
    let entries: Vec<_> = core::iter::from_fn(|| b.take_side_band()).collect();
    let entry = |kind: u64, pi: u64, data: u64| pi << 48 | u64::from(QP) << 40 | kind << 32 | data;
    assert_eq!(entries, [entry(2, 1, 0x1122_3344), entry(3, 1, 0x5566_7788), entry(1, 2, 0xDEAD)]);
    assert_eq!(world.a.get(Register::Cqhead, QP), 3);
    assert_eq!(world.b.get(Register::Statrqpidb, QP), 2, "a WRITE takes no receive buffer");
}

/// Only the failing entry completes, with the error flag; the rest waits for QPCONF[6].
fn assert_fatal_at(world: &mut World, head: u32, cqe: u32) {
    world.settle();
    assert_eq!(world.a.get(Register::Statqp, QP) & 1, 1, "{}", world.ladder);
    assert_eq!(world.a.get(Register::Cqhead, QP), head);
    assert_eq!(world.a.cqe(head), cqe);
    assert_eq!(world.a.get(Register::Intsts, 0) & 1 << 7, 1 << 7);
}

#[test]
fn an_illegal_opcode_is_fatal_and_recovery_brings_the_queue_pair_back() {
    let mut world = World::new();
    world.a.entry(1, 0x02, 0, 8, &Remote::default());
    world.a.entry(2, 0x05, 0, 8, &Remote::default());
    world.a.entry(3, 0x02, 0, 8, &Remote::default());
    world.a.set(Register::Sqpi, QP, 3);
    assert_fatal_at(&mut world, 2, 0x0105_0102);
    let a = &mut world.a;
    assert_eq!(a.get(Register::Intsts, 0) & 1 << 5, 1 << 5);
    assert_eq!(a.fault(Reason::WorkOpcodeIllegal), 1);

    a.set(Register::Qpconf, QP, QPCONF | 1 << 6);
    assert_eq!(a.get(Register::Cqhead, QP), a.get(Register::Sqpi, QP));
    assert_eq!(a.cqe(3), 0x0102_0103);
    assert_eq!(a.get(Register::Statqp, QP) & 0x600, 0x600);
    assert_eq!(a.get(Register::Resphndsts, 0) & 1 << 16, 1 << 16);
    a.set(Register::Qpconf, QP, (QPCONF & !1) | 1 << 6);
    a.set(Register::Xrnicadconf, 0, 1 | u32::from(QP) << 20);
    for register in [
        Register::Statrqpidb,
        Register::Statrqbufca,
        Register::Rqci,
        Register::Statcursqptr,
        Register::Sqpi,
        Register::Statmsn,
        Register::Cqhead,
    ] {
        a.set(register, QP, 0);
        assert_eq!(a.refused(Reason::RegisterReadOnly), 0);
    }
    assert_eq!(a.get(Register::Cqhead, QP), 0);
    let psn = a.get(Register::Sqpsn, QP);
    a.set(Register::Sqpsn, QP, psn);
    a.set(Register::Qpconf, QP, QPCONF);
    a.set(Register::Xrnicadconf, 0, 0);
    assert_eq!(a.get(Register::Statqp, QP) & 1, 0);
    a.entry(1, 0x02, 0, 8, &Remote::default());
    a.set(Register::Sqpi, QP, 1);
    world.settle();
    assert_eq!(world.a.get(Register::Cqhead, QP), 1, "{}", world.ladder);
    assert_eq!(world.b.get(Register::Statrqpidb, QP), 2);
}

#[test]
fn a_key_that_names_no_region_is_fatal_on_both_sides() {
    let mut world = World::new();
    world.a.entry(1, 0x00, LOCAL, 64, &Remote { rkey: RKEY + 1, ..Remote::REGION });
    world.a.set(Register::Sqpi, QP, 1);
    assert_fatal_at(&mut world, 1, 0x0100_0101);
    assert_eq!(world.a.get(Register::Statqp, QP) >> 16 & 0x7F, 0x62);
    assert_eq!(world.b.get(Register::Statqp, QP) & 1, 1);
    assert_eq!(world.b.refused(Reason::KeyUnknown), 1);
    assert_eq!(world.b.get(Register::Intsts, 0) & 0x81, 0x81);
    assert_eq!(world.b.get(Register::Outnakpktcnt, 0), 1);
}

#[test]
fn bus_addresses_outside_of_memory_are_fatal_and_counted() {
    // The entry itself: identifier and opcode are unknown.
    let mut world = World::new();
    world.a.set(Register::Sqba, QP, 0x1000);
    world.a.set(Register::Sqpi, QP, 1);
    assert_fatal_at(&mut world, 1, 0x0100_0000);
    assert_eq!(world.a.fault(Reason::DmaAddress), 1);

    // The data of a SEND.
    let mut world = World::new();
    world.a.entry(1, 0x02, 0x1000, 64, &Remote::default());
    world.a.set(Register::Sqpi, QP, 1);
    assert_fatal_at(&mut world, 1, 0x0102_0101);
    assert_eq!(world.a.fault(Reason::DmaAddress), 1);

    // The peer's receive buffers.
    let mut world = World::new();
    world.b.set(Register::Rqba, QP, 0x1000);
    world.a.entry(1, 0x02, 0, 8, &Remote::default());
    world.a.set(Register::Sqpi, QP, 1);
    assert_fatal_at(&mut world, 1, 0x0102_0101);
    assert_eq!(world.b.refused(Reason::DmaAddress), 1);

    // The completion queue: CQHEAD does not move, since its entry is not there.
    let mut world = World::new();
    world.a.set(Register::Cqba, QP, 0x1000);
    world.a.entry(1, 0x02, 0, 8, &Remote::default());
    world.a.set(Register::Sqpi, QP, 1);
    world.settle();
    assert_eq!(world.a.get(Register::Statqp, QP) & 1, 1);
    assert_eq!(world.a.get(Register::Cqhead, QP), 0);
    assert!(world.a.fault(Reason::DmaAddress) + world.a.refused(Reason::DmaAddress) >= 1);

    // The doorbells: the index is right, the queue pair stops.
    let mut world = World::new();
    world.a.set(Register::Cqdbadd, QP, 0x1000);
    world.a.entry(1, 0x02, 0, 8, &Remote::default());
    world.a.set(Register::Sqpi, QP, 1);
    assert_fatal_at(&mut world, 1, 0x0002_0101);
    let mut world = World::new();
    world.b.set(Register::Rqwptrdbadd, QP, 0x1000);
    world.a.entry(1, 0x02, 0, 8, &Remote::default());
    world.a.set(Register::Sqpi, QP, 1);
    world.settle();
    assert_eq!(world.b.get(Register::Statrqpidb, QP), 1);
    assert_eq!(world.b.get(Register::Statqp, QP) & 1, 1);
    assert!(world.b.fault(Reason::DmaAddress) + world.b.refused(Reason::DmaAddress) >= 1);
}

#[test]
fn indices_beyond_the_ring_are_refused_and_counted() {
    let mut world = World::new();
    world.a.set(Register::Sqpi, QP, DEPTH + 1);
    world.a.set(Register::Rqci, QP, 0xFFFF);
    assert_eq!(world.a.get(Register::Sqpi, QP), 0);
    assert_eq!(world.a.get(Register::Rqci, QP), 0);
    assert_eq!(world.a.refused(Reason::RingIndex), 2);
    world.a.set(Register::Qdepth, QP, 0);
    world.a.set(Register::Sqpi, QP, 1);
    assert_eq!(world.a.refused(Reason::RingDepth), 1);
    world.settle();
    assert_eq!(world.ladder, "");
}

#[test]
fn a_doorbell_before_the_queue_pair_is_enabled_is_kept_and_counted() {
    let mut world = World::new();
    world.a.set(Register::Qpconf, QP, QPCONF & !1);
    world.a.entry(1, 0x02, 0, 8, &Remote::default());
    world.a.set(Register::Sqpi, QP, 1);
    world.settle();
    assert_eq!(world.ladder, "");
    assert_eq!(world.a.refused(Reason::QpDisabled), 1);
    world.a.set(Register::Qpconf, QP, QPCONF);
    world.settle();
    assert_eq!(world.a.get(Register::Cqhead, QP), 1);
}

/// A datagram for QP1 as its software builds it: Ethernet to MAD, without ICRC.
fn mad_frame(from: u8, to: u8, mad: &[u8]) -> Vec<u8> {
    let row = opcode::row(opcode::UD_SEND_ONLY);
    let template = Template::new(&Flow {
        source_mac: [2, 0, 0, 0, 0, from],
        dest_mac: [2, 0, 0, 0, 0, to],
        vlan_tci: None,
        source_ip: std::net::Ipv4Addr::new(192, 0, 2, from).into(),
        dest_ip: std::net::Ipv4Addr::new(192, 0, 2, to).into(),
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        source_port: 0xC000,
        pkey: 0xFFFF,
        dest_qpn: Qpn::new(1),
    })
    .unwrap();
    let len = template.frame_len(row, mad.len());
    let mut frame = vec![0; len];
    let payload_at = len - 4 - mad.len();
    // DETH: the Q_Key of every QP1, 0x8001_0000, and source QP 1.
    frame[payload_at - 8..payload_at].copy_from_slice(&[0x80, 1, 0, 0, 0, 0, 0, 1]);
    frame[payload_at..len - 4].copy_from_slice(mad);
    let bth = BthFields { psn: Psn::new(5), migrated: true, ..BthFields::default() };
    template.finish(&mut frame, row, mad.len(), bth);
    frame.truncate(len - 4);
    frame
}

#[test]
fn qp1_sends_and_receives_whole_frames() {
    let mut world = World::new();
    for side in [&mut world.a, &mut world.b] {
        side.set(Register::Sqba, 1, (SQ + 0x1000) as u32);
        side.set(Register::Cqba, 1, (CQ + 0x800) as u32);
        side.set(Register::Rqba, 1, RQ as u32);
        side.set(Register::Rqwptrdbadd, 1, RQ_DOORBELL as u32);
        side.set(Register::Qdepth, 1, 16 | 16 << 16);
        side.set(Register::Qpconf, 1, 0x3D | 2 << 16);
    }
    let frame = mad_frame(1, 2, &[0xA5; 256]);
    let mut wqe = [0; 64];
    wqe[4..12].copy_from_slice(&LOCAL.to_le_bytes());
    wqe[12..16].copy_from_slice(&(frame.len() as u32).to_le_bytes());
    wqe[16] = 0x02;
    world.a.nic.memory.write(LOCAL, &frame).unwrap();
    world.a.nic.memory.write(SQ + 0x1000, &wqe).unwrap();
    world.a.set(Register::Sqpi, 1, 1);
    world.settle();
    assert_eq!(world.ladder, "a -> b SEND_ONLY psn 0x000005\n");
    assert_eq!(world.a.get(Register::Cqhead, 1), 1);
    assert_eq!(world.a.get(Register::Outampktcnt, 0), 1 << 16);
    assert_eq!(world.b.get(Register::Inampktcnt, 0), 1 << 16);
    assert_eq!(world.b.bytes(RQ, frame.len()), frame);
    assert_eq!(world.b.nic.memory.read_u32(RQ_DOORBELL), Ok(1));
    assert_eq!(world.b.get(Register::Intsts, 0), 1 << 1 | 1 << 6);
    assert_eq!(world.b.get(Register::Rqintsts, 0), 1 << 1);

    // WRITE is not for QP1.
    wqe[16] = 0x00;
    world.a.nic.memory.write(SQ + 0x1040, &wqe).unwrap();
    world.a.set(Register::Sqpi, 1, 2);
    world.settle();
    assert_eq!(world.a.get(Register::Statqp, 1) & 1, 1);
    assert_eq!(world.a.get(Register::Intsts, 0) & 1 << 5, 1 << 5);
}

/// What ERNIC does not do, whatever the engine could: other opcodes, atomics, messages above 8 MiB, IPv4
/// packets that may be fragmented.
#[test]
fn t_40_ernic_keeps_its_limits() {
    let legal = [0x00, 0x01, 0x02, 0x03, 0x04, 0x0C];
    let mut world = World::new();
    for opcode in 0..=0xFF {
        world = World::new();
        world.a.entry(1, opcode, LOCAL, 64, &Remote::REGION);
        world.a.set(Register::Sqpi, QP, 1);
        world.settle();
        let illegal = u64::from(!legal.contains(&opcode));
        assert_eq!(world.a.fault(Reason::WorkOpcodeIllegal), illegal, "{opcode:#x}");
    }
    for (length, refused) in [(0x80_0000, 0), (0x80_0001, 1)] {
        world = World::new();
        world.a.entry(1, 0x00, LOCAL, length, &Remote::REGION);
        world.a.set(Register::Sqpi, QP, 1);
        world.settle();
        assert_eq!(world.a.fault(Reason::WorkLength), refused, "{length:#x}");
    }
    let engine = &world.a.nic.engine;
    assert!(engine.port().require_dont_fragment);
    let attributes = engine.qp(Qpn::new(QP.into())).unwrap().attributes();
    assert!(!attributes.remote_access.atomic);
}
