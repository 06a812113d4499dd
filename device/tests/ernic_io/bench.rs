//! Two ERNICs on a link with a rate and a latency, on virtual time, driven through registers and memory.

use std::collections::VecDeque;

use softrnic_device::ernic::{Ernic, ErnicConfig, Location, Register};
use softrnic_device::reconic::Reconic;
use softrnic_device::{Memory, Nic, Ram};
use softrnic_engine::packet::FRAME_LEN_MAX;
use softrnic_engine::{Nanos, Reason, Room, Rx, Train, Verdict};

pub const RAM: u64 = 0x4000_0000;
pub const RAM_LEN: usize = 0x40_0000;
/// What each side has for each queue pair, by its number.
pub const QP_MEMORY_LEN: u64 = 0x2_0000;
pub const SQ: u64 = 0;
pub const CQ: u64 = 0x4000;
pub const CQ_DOORBELL: u64 = 0x5000;
pub const RQ_DOORBELL: u64 = 0x5004;
pub const RQ: u64 = 0x8000;
pub const DEPTH: u32 = 16;
pub const LOCAL: u64 = RAM + 0x10_0000;
pub const REGION: u64 = RAM + 0x20_0000;
pub const REGION_LEN: u32 = 0x10_0000;
pub const RKEY: u32 = 3 << 8 | 0x5A;
pub const PD: u32 = 9;
/// Enabled, both interrupts, doorbells in memory, CQEs, MTU 1024, receive buffers of 4 KiB.
pub const QPCONF: u32 = 0x003D | 2 << 8 | 16 << 16;
pub const HANDSHAKE_OFF: u32 = 1 << 4;

/// Where something of a queue pair is in its side's memory.
pub const fn of_qp(q: u16, offset: u64) -> u64 {
    RAM + q as u64 * QP_MEMORY_LEN + offset
}

/// Register accesses by name.
pub trait Registers {
    fn at(&self, register: Register, index: u16) -> u32;
    fn set(&mut self, register: Register, index: u16, value: u32);
    fn get(&mut self, register: Register, index: u16) -> u32;
    fn refused(&self, reason: Reason) -> u64;
}

impl<M: Memory> Registers for Nic<Ernic, M> {
    fn at(&self, register: Register, index: u16) -> u32 {
        self.device.map().offset(Location { register, index })
    }

    fn set(&mut self, register: Register, index: u16, value: u32) {
        self.write32(self.at(register, index), value);
    }

    fn get(&mut self, register: Register, index: u16) -> u32 {
        self.read32(self.at(register, index))
    }

    fn refused(&self, reason: Reason) -> u64 {
        self.engine.refused()[reason as usize]
    }
}

/// What stands at an end of the link, with its software's view of it.
pub trait End {
    fn read32(&mut self, offset: u32) -> u32;
    fn write32(&mut self, offset: u32, value: u32);
    fn memory(&mut self) -> &mut dyn DynMemory;
    fn handle_frame(&mut self, now: Nanos, frame: &[u8]) -> Verdict;
    fn poll_transmit(&mut self, now: Nanos, room: &mut Room<'_>) -> Option<Train>;
    fn handle_timeout(&mut self, now: Nanos);
    fn next_deadline(&mut self) -> Option<Nanos>;
}

/// Memory by the addresses that the device uses.
pub trait DynMemory {
    fn get(&self, address: u64, out: &mut [u8]);
    fn put(&mut self, address: u64, bytes: &[u8]);
}

impl<M: Memory> DynMemory for M {
    fn get(&self, address: u64, out: &mut [u8]) {
        self.read(address, out).unwrap();
    }

    fn put(&mut self, address: u64, bytes: &[u8]) {
        self.write(address, bytes).unwrap();
    }
}

impl<M: Memory> End for Nic<Ernic, M> {
    fn read32(&mut self, offset: u32) -> u32 {
        Self::read32(self, offset)
    }
    fn write32(&mut self, offset: u32, value: u32) {
        Self::write32(self, offset, value);
    }
    fn memory(&mut self) -> &mut dyn DynMemory {
        &mut self.memory
    }
    fn handle_frame(&mut self, now: Nanos, frame: &[u8]) -> Verdict {
        Self::handle_frame(self, now, frame, Rx::default())
    }
    fn poll_transmit(&mut self, now: Nanos, room: &mut Room<'_>) -> Option<Train> {
        Self::poll_transmit(self, now, room)
    }
    fn handle_timeout(&mut self, now: Nanos) {
        Self::handle_timeout(self, now);
    }
    fn next_deadline(&mut self) -> Option<Nanos> {
        Self::next_deadline(self)
    }
}

impl<H: Memory, D: Memory> End for Reconic<H, D> {
    fn read32(&mut self, offset: u32) -> u32 {
        Self::read32(self, offset)
    }
    fn write32(&mut self, offset: u32, value: u32) {
        Self::write32(self, offset, value);
    }
    fn memory(&mut self) -> &mut dyn DynMemory {
        &mut self.nic.memory
    }
    fn handle_frame(&mut self, now: Nanos, frame: &[u8]) -> Verdict {
        Self::handle_frame(self, now, frame, Rx::default())
    }
    fn poll_transmit(&mut self, now: Nanos, room: &mut Room<'_>) -> Option<Train> {
        Self::poll_transmit(self, now, room)
    }
    fn handle_timeout(&mut self, now: Nanos) {
        Self::handle_timeout(self, now);
    }
    fn next_deadline(&mut self) -> Option<Nanos> {
        Self::next_deadline(self)
    }
}

/// A frame that was sent.
#[derive(Clone, Debug)]
pub struct Sent {
    pub at: Nanos,
    pub from: usize,
    pub bytes: Vec<u8>,
    /// Why it was not executed, once it has arrived.
    pub refused: Option<Reason>,
}

impl Sent {
    /// BTH.OpCode of an untagged IPv4 frame; `None` for pauses.
    pub fn opcode(&self) -> Option<u8> {
        (self.bytes[12..14] == [8, 0]).then(|| self.bytes[42])
    }

    /// Whether it is a flow control frame.
    pub fn is_pause(&self) -> bool {
        self.bytes[12..14] == [0x88, 0x08]
    }
}

/// One direction of the link.
#[derive(Default)]
struct Wire {
    free_at_ps: u64,
    /// When it arrives, and which frame of the log it is.
    frames: VecDeque<(Nanos, usize)>,
}

/// What may happen to a frame on its way.
pub type OnTheWay = fn(usize, &mut [u8]);

/// Two devices and the link between them.
pub struct Bench<E> {
    pub ends: [E; 2],
    pub now: Nanos,
    pub log: Vec<Sent>,
    pub rate_bits_per_s: u64,
    pub latency_ns: u64,
    pub on_the_way: Option<OnTheWay>,
    wires: [Wire; 2],
}

/// Two ERNICs with plain memory.
pub type Two = Bench<Nic<Ernic, Ram>>;

impl<E: End> Bench<E> {
    pub fn of(ends: [E; 2]) -> Self {
        Self {
            ends,
            now: Nanos(0),
            log: Vec::new(),
            rate_bits_per_s: 100_000_000_000,
            latency_ns: 100,
            on_the_way: None,
            wires: [Wire::default(), Wire::default()],
        }
    }

    /// Runs until nothing is going to happen, or 100 000 things have.
    pub fn settle(&mut self) {
        for _ in 0..100_000 {
            if !self.step(Nanos::NEVER) {
                return;
            }
        }
        panic!("never settles; the last frames: {:x?}", &self.log[self.log.len() - 4..]);
    }

    /// Runs until a point in time.
    pub fn run_until(&mut self, end: Nanos) {
        while self.step(end) {}
        self.now = end;
    }

    /// To the next thing that happens before `end`; `false` where there is none.
    fn step(&mut self, end: Nanos) -> bool {
        for from in 0..2 {
            while self.wires[from].free_at_ps <= self.now.0 * 1000 && self.send(from) {}
        }
        let busy = |wire: &Wire| {
            let free = Nanos(wire.free_at_ps.div_ceil(1000));
            let arrival = wire.frames.front().map(|(at, _)| *at);
            arrival.into_iter().chain((free > self.now).then_some(free)).min()
        };
        let of_wires = self.wires.iter().filter_map(busy).min();
        let of_ends = self.ends.iter_mut().filter_map(End::next_deadline).min();
        let Some(next) = of_wires.into_iter().chain(of_ends).min().filter(|&next| next < end)
        else {
            return false;
        };
        self.now = self.now.max(next);
        for to in 0..2 {
            while let Some(&(at, frame)) = self.wires[1 - to].frames.front()
                && at <= self.now
            {
                self.wires[1 - to].frames.pop_front();
                let sent = &mut self.log[frame];
                let verdict = self.ends[to].handle_frame(self.now, &sent.bytes);
                sent.refused = verdict.refused;
            }
            self.ends[to].handle_timeout(self.now);
        }
        true
    }

    fn send(&mut self, from: usize) -> bool {
        let mut bytes = vec![0; FRAME_LEN_MAX];
        let mut room = Room { bytes: &mut bytes, segments: 1, source_port: None };
        let Some(train) = self.ends[from].poll_transmit(self.now, &mut room) else { return false };
        bytes.truncate(train.len);
        if let Some(on_the_way) = self.on_the_way {
            on_the_way(from, &mut bytes);
        }
        let wire = &mut self.wires[from];
        // Preamble, FCS and gap.
        let bits = (bytes.len() as u64).max(60) * 8 + 24 * 8;
        wire.free_at_ps = wire.free_at_ps.max(self.now.0 * 1000)
            + bits * 1_000_000_000 / (self.rate_bits_per_s / 1000);
        let arrives = Nanos(wire.free_at_ps.div_ceil(1000) + self.latency_ns);
        wire.frames.push_back((arrives, self.log.len()));
        self.log.push(Sent { at: self.now, from, bytes, refused: None });
        true
    }

    /// How many frames with this opcode an end has sent.
    pub fn count(&self, from: usize, opcode: u8) -> usize {
        self.log.iter().filter(|sent| sent.from == from && sent.opcode() == Some(opcode)).count()
    }
}

/// Two ends of the same make, numbered 1 and 2, which have these queue pairs connected to each other.
pub fn pair(config: [ErnicConfig; 2], qps: &[u16]) -> Two {
    let mut ends = config.map(|config| Nic::ernic(config, Ram::new(RAM, RAM_LEN)));
    for (number, end) in (1..).zip(&mut ends) {
        set_up_port(end, number);
        for &q in qps {
            set_up_qp(end, q, number, 3 - number);
        }
        end.set(Register::Xrnicconf, 0, 0x00C0_0001);
    }
    Bench::of(ends)
}

/// The usual pair, with queue pair 2.
pub fn usual_pair() -> Two {
    pair([ErnicConfig { num_qp: 8, ..ErnicConfig::default() }; 2], &[2])
}

/// Addresses, queue pairs allowed, one region. Not switched on yet.
pub fn set_up_port(end: &mut Nic<Ernic, Ram>, number: u8) {
    end.set(Register::Macxaddlsb, 0, number.into());
    end.set(Register::Macxaddmsb, 0, 0x0200);
    end.set(Register::Ipv4xadd, 0, ipv4(number));
    end.set(Register::XrnicConfQpEn, 0, 7);
    end.set(Register::Inten, 0, 0x1FB);
    end.set(Register::Pdpdnum, 3, PD);
    end.set(Register::Virtaddrlsb, 3, REGION as u32);
    end.set(Register::Bufbaseaddrlsb, 3, REGION as u32);
    end.set(Register::Bufrkey, 3, RKEY & 0xFF);
    end.set(Register::Wrrdbuflen, 3, REGION_LEN);
    end.set(Register::Accessdesc, 3, 2);
}

pub fn set_up_queues(end: &mut Nic<Ernic, Ram>, q: u16) {
    end.set(Register::Sqba, q, of_qp(q, SQ) as u32);
    end.set(Register::Cqba, q, of_qp(q, CQ) as u32);
    end.set(Register::Rqba, q, of_qp(q, RQ) as u32);
    end.set(Register::Cqdbadd, q, of_qp(q, CQ_DOORBELL) as u32);
    end.set(Register::Rqwptrdbadd, q, of_qp(q, RQ_DOORBELL) as u32);
    end.set(Register::Qdepth, q, DEPTH | DEPTH << 16);
}

pub fn set_up_qp(end: &mut Nic<Ernic, Ram>, q: u16, number: u8, peer: u8) {
    set_up_queues(end, q);
    end.set(Register::Sqpsn, q, 0x100 * u32::from(number));
    end.set(Register::Lstrqreq, q, 0x0400_0000 | (0x100 * u32::from(peer) - 1));
    end.set(Register::Destqpconf, q, q.into());
    end.set(Register::Timeoutconf, q, 0x0001_3F10);
    end.set(Register::Qpadvconf, q, 0xFFFF_4000);
    end.set(Register::Macdesaddlsb, q, peer.into());
    end.set(Register::Macdesaddmsb, q, 0x0200);
    end.set(Register::Ipdesaddr1, q, ipv4(peer));
    end.set(Register::Pd, q, PD);
    end.set(Register::Qpconf, q, QPCONF);
}

pub fn ipv4(number: u8) -> u32 {
    0xC000_0200 | u32::from(number)
}

/// A send queue entry.
#[derive(Clone, Copy, Default)]
pub struct Entry {
    pub opcode: u8,
    pub local: u64,
    pub len: u32,
    pub remote: u64,
    pub rkey: u32,
    pub immediate: u32,
}

impl Entry {
    pub fn bytes(&self, wrid: u16) -> [u8; 64] {
        let mut wqe = [0; 64];
        wqe[..2].copy_from_slice(&wrid.to_le_bytes());
        wqe[4..12].copy_from_slice(&self.local.to_le_bytes());
        wqe[12..16].copy_from_slice(&self.len.to_le_bytes());
        wqe[16] = self.opcode;
        wqe[20..28].copy_from_slice(&self.remote.to_le_bytes());
        wqe[28..32].copy_from_slice(&self.rkey.to_le_bytes());
        wqe[48..52].copy_from_slice(&self.immediate.to_le_bytes());
        wqe
    }
}

/// Writes an entry into the slot that `sqpi` announces.
pub fn write_entry(end: &mut Nic<Ernic, Ram>, q: u16, sqpi: u32, entry: &Entry) {
    let at = of_qp(q, SQ) + 64 * u64::from(sqpi - 1);
    end.memory.write(at, &entry.bytes(sqpi as u16)).unwrap();
}

pub fn fill(memory: &mut impl Memory, address: u64, len: usize, seed: u8) {
    let bytes: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect();
    memory.write(address, &bytes).unwrap();
}

pub fn bytes(memory: &impl Memory, address: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read(address, &mut bytes).unwrap();
    bytes
}
