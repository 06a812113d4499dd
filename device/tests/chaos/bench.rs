//! Two ERNICs, a wire between them that does what it is told, and software that brings them up.

use softrnic_device::ernic::{Ernic, ErnicConfig, Location, ROWS, Register, Row, Section};
use softrnic_device::{Memory, Nic};
use softrnic_engine::packet::{BthFields, FRAME_LEN_MAX, Flow, Template, opcode};
use softrnic_engine::{Nanos, Psn, Qpn, Room, Rx};

use super::memory::{Given, Watched};

/// C_NUM_QP: queue pairs 1 to 7.
pub(crate) const QPS: u16 = 8;
pub(crate) const RAM: u64 = 0x1000_0000;
pub(crate) const RAM_LEN: usize = 0x2_0000;
/// Local buffers, and the region that the peer may touch.
pub(crate) const DATA: u64 = RAM + 0x1_0000;
const REGION: u64 = RAM + 0x1_8000;
/// There is memory behind it that nobody was given.
pub(crate) const REGION_LEN: u32 = 0x6000;
pub(crate) const REGION_VA: u64 = 0x7000_0000_0000;
pub(crate) const RKEY: u32 = 1 << 8 | 0x5A;
const DEPTH: u32 = 8;
const SQ: u64 = RAM;
const CQ: u64 = RAM + 0x2000;
const DOORBELLS: u64 = RAM + 0x2400;
const ERRORS: u64 = RAM + 0x2800;
const DATA_BUFFERS: u64 = RAM + 0x4000;
const RQ: u64 = RAM + 0x8000;

/// Frames that one side may send, and timeouts that may come, before the other does anything. More
/// than all READ answers that can be owed at once.
const FRAMES_MAX: u32 = 300_000;
const TIMEOUTS_MAX: u32 = 1_000;
/// Events until silence. A queue pair that tries for ever is left alone after them.
const EVENTS_MAX: u32 = 2_000;

pub(crate) struct Side {
    pub(crate) nic: Nic<Ernic, Watched>,
    number: u8,
    /// Region rows that were ever written.
    rows: Vec<u16>,
    last_frame: Vec<u8>,
}

/// What the wire does with a frame.
const LOSE: u8 = 1;
const CORRUPT: u8 = 2;
const TWICE: u8 = 3;

impl Side {
    fn new(number: u8, config: ErnicConfig) -> Self {
        let nic = Nic::ernic(config, Watched::new(RAM, RAM_LEN));
        Self { nic, number, rows: Vec::new(), last_frame: Vec::new() }
    }

    pub(crate) fn get(&self, register: Register, index: u16) -> u32 {
        if !self.exists(register) {
            return 0;
        }
        self.nic.read_register(Location { register, index })
    }

    /// How many of a row there are to choose from.
    pub(crate) fn count(&self, row: &Row) -> u16 {
        match row.section {
            Section::Qp | Section::RcQp => QPS,
            _ => self.nic.device.map().count(row.register).max(1),
        }
    }

    /// Whether this profile has the register.
    fn exists(&self, register: Register) -> bool {
        self.nic.device.map().count(register) != 0
    }

    pub(crate) fn set(&mut self, register: Register, index: u16, value: u32) {
        if !self.exists(register) {
            return;
        }
        let offset = self.nic.device.map().offset(Location { register, index });
        self.write(offset, value);
    }

    /// A register write, and what it gives to the device.
    pub(crate) fn write(&mut self, offset: u32, value: u32) {
        self.nic.write32(offset, value);
        match self.nic.device.map().locate(offset) {
            Some(at) => match at.register.row().section {
                Section::Region => {
                    if !self.rows.contains(&at.index) {
                        self.rows.push(at.index);
                    }
                    self.give_region(at.index);
                }
                Section::Global | Section::Status => self.give_global(),
                Section::Qp | Section::RcQp => self.give_qp(at.index),
            },
            None => self.give(),
        }
    }

    /// Tells memory what the registers give now.
    pub(crate) fn give(&self) {
        (1..QPS).for_each(|q| self.give_qp(q));
        self.rows.iter().for_each(|&row| self.give_region(row));
        self.give_global();
    }

    fn wide(&self, low: Register, high: Register, index: u16) -> u64 {
        u64::from(self.get(low, index)) | u64::from(self.get(high, index)) << 32
    }

    fn give_qp(&self, q: u16) {
        let depth = self.get(Register::Qdepth, q);
        let (sq, rq) = (u64::from(depth & 0xFFFF), u64::from(depth >> 16));
        let element = u64::from(self.get(Register::Qpconf, q) >> 16) * 256;
        for (low, high, len, what) in [
            (Register::Sqba, Register::Sqbamsb, 64 * sq, Given::SendQueue),
            (Register::Cqba, Register::Cqbamsb, 4 * sq, Given::Write),
            (Register::Rqba, Register::Rqbamsb, element * rq, Given::Write),
            (Register::Cqdbadd, Register::Cqdbaddmsb, 4, Given::Write),
            (Register::Rqwptrdbadd, Register::Rqwptrdbaddmsb, 4, Given::Write),
        ] {
            self.nic.memory.give(self.wide(low, high, q), len, what);
        }
    }

    fn give_region(&self, row: u16) {
        let access = self.get(Register::Accessdesc, row);
        let base = self.wide(Register::Bufbaseaddrlsb, Register::Bufbaseaddrmsb, row);
        let low = u64::from(self.get(Register::Wrrdbuflen, row));
        let length = low | u64::from(access >> 16) << 32;
        if matches!(access & 15, 0 | 2) {
            self.nic.memory.give(base, length, Given::Read);
        }
        if matches!(access & 15, 1 | 2) {
            self.nic.memory.give(base, length, Given::Write);
        }
    }

    fn give_global(&self) {
        // A number of entries, with a size of 8 bytes where the register has none.
        let len = |size: Register| {
            let word = self.get(size, 0);
            let each = if size.row().fields.len() == 1 { 8 } else { word >> 16 };
            u64::from(word & 0xFFFF) * u64::from(each)
        };
        for (low, high, size) in [
            (Register::Errbufba, Register::Errbufbamsb, Register::Errbufsz),
            (Register::Opkterrqba, Register::Opkterrqbamsb, Register::Outerrstsqsz),
            (Register::Ipkterrqba, Register::Ipkterrqbamsb, Register::Ipkterrqsz),
            (Register::Resperrpktba, Register::Resperrpktbamsb, Register::Resperrsz),
            (Register::Datbufba, Register::Datbufbamsb, Register::Datbufsz),
        ] {
            let base = self.wide(low, high, 0);
            self.nic.memory.give(base, len(size), Given::Write);
            if size == Register::Datbufsz {
                self.nic.memory.give(base, len(size), Given::Read);
            }
        }
    }

    /// What a driver does before traffic: every queue pair is connected to the peer's of its number.
    pub(crate) fn bring_up(&mut self) {
        let (me, peer) = (u32::from(self.number), u32::from(3 - self.number));
        let global = [
            (Register::Macxaddlsb, me),
            (Register::Macxaddmsb, 0x0200),
            (Register::Ipv4xadd, 0xC000_0200 | me),
            (Register::XrnicConfQpEn, 7),
            (Register::Inten, 0x1FF),
            (Register::Errbufba, ERRORS as u32),
            (Register::Errbufsz, 256 << 16 | 8),
            (Register::Ipkterrqba, ERRORS as u32 + 0x800),
            (Register::Ipkterrqsz, 8),
            (Register::Opkterrqba, ERRORS as u32 + 0xA00),
            (Register::Outerrstsqsz, 8),
            (Register::Resperrpktba, ERRORS as u32 + 0xC00),
            (Register::Resperrsz, 256 << 16 | 4),
            (Register::Datbufba, DATA_BUFFERS as u32),
            (Register::Datbufsz, 4096 << 16 | 4),
        ];
        // The device is off: nothing happens before the last write.
        let put = |side: &mut Self, register, index, value| {
            if !side.exists(register) {
                return;
            }
            let offset = side.nic.device.map().offset(Location { register, index });
            side.nic.write32(offset, value);
        };
        put(self, Register::Xrnicconf, 0, 0);
        for (register, value) in global {
            put(self, register, 0, value);
        }
        let region = [
            (Register::Pdpdnum, 9),
            (Register::Virtaddrlsb, REGION_VA as u32),
            (Register::Virtaddrmsb, (REGION_VA >> 32) as u32),
            (Register::Bufbaseaddrlsb, REGION as u32),
            (Register::Bufrkey, RKEY & 0xFF),
            (Register::Wrrdbuflen, REGION_LEN),
            (Register::Accessdesc, 2),
        ];
        self.rows.push((RKEY >> 8) as u16);
        for (register, value) in region {
            put(self, register, (RKEY >> 8) as u16, value);
        }
        for q in 1..QPS {
            let n = u32::from(q);
            let per_qp = [
                (Register::Sqba, SQ as u32 + n * 0x400),
                (Register::Cqba, CQ as u32 + n * 0x40),
                (Register::Rqba, RQ as u32 + n * 0x1000),
                (Register::Cqdbadd, DOORBELLS as u32 + n * 8),
                (Register::Rqwptrdbadd, DOORBELLS as u32 + n * 8 + 4),
                (Register::Qdepth, DEPTH << 16 | DEPTH),
                (Register::Sqpsn, 0xFF_FFF0 + me),
                (Register::Lstrqreq, 0x0400_0000 | (0xFF_FFEF + peer)),
                (Register::Destqpconf, n),
                (Register::Timeoutconf, 0x0001_1B08),
                (Register::Qpadvconf, 0xFFFF_4000),
                (Register::Macdesaddlsb, peer),
                (Register::Macdesaddmsb, 0x0200),
                (Register::Ipdesaddr1, 0xC000_0200 | peer),
                (Register::Pd, 9),
                (Register::Qpconf, 0x003D | (n % 5) << 8 | 2 << 16),
            ];
            for (register, value) in per_qp {
                put(self, register, q, value);
            }
        }
        self.give();
        // v3.1 has the number of queue pairs here, and the port above it.
        let old = !self.exists(Register::XrnicConfQpEn);
        self.set(Register::Xrnicconf, 0, if old { 0x00C0_0721 } else { 0x0000_C021 });
    }

    /// Writes an entry where the send queue goes on, and rings.
    pub(crate) fn post(
        &mut self,
        q: u16,
        opcode: u8,
        local: u64,
        length: u32,
        remote: u64,
        rkey: u32,
    ) {
        let depth = self.get(Register::Qdepth, q) & 0xFFFF;
        let index = self.get(Register::Sqpi, q);
        let next = if index >= depth { 1 } else { index + 1 };
        let mut wqe = [0x5A; 64];
        wqe[..4].copy_from_slice(&next.to_le_bytes());
        wqe[4..12].copy_from_slice(&local.to_le_bytes());
        wqe[12..16].copy_from_slice(&length.to_le_bytes());
        wqe[16..20].copy_from_slice(&u32::from(opcode).to_le_bytes());
        wqe[20..28].copy_from_slice(&remote.to_le_bytes());
        wqe[28..32].copy_from_slice(&rkey.to_le_bytes());
        let base = u64::from(self.get(Register::Sqba, q))
            | u64::from(self.get(Register::Sqbamsb, q)) << 32;
        let slot = base.wrapping_add(u64::from(next - 1) * 64);
        // A queue that is not in memory is the device's to find out.
        let _ = self.nic.memory.ram().write(slot, &wqe);
        self.set(Register::Sqpi, q, next);
    }

    /// Software has taken every message.
    pub(crate) fn release(&mut self, q: u16) {
        let doorbell = RAM + 0x2400 + u64::from(q) * 8 + 4;
        let produced = self.nic.memory.ram().read_u32(doorbell).unwrap_or(0);
        self.set(Register::Rqci, q, produced);
    }

    /// The recovery sequence, in part as far as registers go.
    pub(crate) fn recover(&mut self, q: u16) {
        let control = self.get(Register::Qpconf, q);
        self.set(Register::Qpconf, q, control | 0x40);
        self.set(Register::Qpconf, q, (control | 0x40) & !1);
        let old = !self.exists(Register::XrnicConfQpEn);
        self.set(Register::Xrnicadconf, 0, u32::from(q) << if old { 24 } else { 20 } | 1);
        for register in [
            Register::Statrqpidb,
            Register::Statrqbufca,
            Register::Rqci,
            Register::Statcursqptr,
            Register::Sqpi,
            Register::Sqpsn,
            Register::Lstrqreq,
            Register::Statmsn,
            Register::Cqhead,
            Register::Statqp,
        ] {
            self.set(register, q, 0);
        }
        self.set(Register::Qpconf, q, control & !0x40 | 1);
        self.set(Register::Xrnicadconf, 0, 0);
    }

    pub(crate) fn toggle_qp(&mut self, q: u16) {
        let control = self.get(Register::Qpconf, q);
        self.set(Register::Qpconf, q, control ^ 1);
    }

    /// Logic on the side ports takes what there is, and rings.
    pub(crate) fn ports(&mut self, q: u16, index: u16) {
        while self.nic.device.take_completions().is_some() {}
        while self.nic.device.take_receive_doorbell().is_some() {}
        while self.nic.device.take_side_band().is_some() {}
        for register in [Register::Sqpi, Register::Rqci] {
            let offset = self.nic.device.map().offset(Location { register, index: q });
            let _ = self.nic.ring_side_band(offset, index);
        }
    }

    /// Every register can be read.
    pub(crate) fn read_all(&self) {
        self.registers();
    }

    fn registers(&self) -> Vec<(Location, u32)> {
        let mut all = Vec::new();
        for row in ROWS {
            let count = self.nic.device.map().count(row.register);
            let range = match row.section {
                Section::Region => 0..8,
                Section::Global | Section::Status => 0..count,
                Section::Qp => 1..QPS,
                Section::RcQp => 2..QPS,
            };
            for index in range {
                let at = Location { register: row.register, index };
                all.push((at, self.nic.read_register(at)));
            }
        }
        all
    }
}

pub(crate) struct Bench {
    config: ErnicConfig,
    pub(crate) sides: [Side; 2],
    now: Nanos,
}

impl Bench {
    pub(crate) fn new(config: ErnicConfig) -> Self {
        Self { config, sides: [Side::new(1, config), Side::new(2, config)], now: Nanos(0) }
    }

    pub(crate) fn deliver(&mut self, to: usize, frame: &[u8]) {
        self.sides[to].nic.handle_frame(self.now, frame, Rx::default());
    }

    /// One frame leaves, if there is one, and the wire does with it what it is told.
    pub(crate) fn transmit(&mut self, from: usize, fate: u8) -> bool {
        let mut buffer = [0; FRAME_LEN_MAX];
        let mut room = Room { bytes: &mut buffer, segments: 1, source_port: None };
        let side = &mut self.sides[from];
        let Some(train) = side.nic.poll_transmit(self.now, &mut room) else { return false };
        let frame = &mut buffer[..train.len];
        side.last_frame = frame.to_vec();
        if fate == CORRUPT {
            frame[train.len / 2] ^= 1;
        }
        for _ in 0..if fate == TWICE { 2 } else { u8::from(fate != LOSE) } {
            self.sides[1 - from].nic.handle_frame(self.now, frame, Rx::default());
        }
        true
    }

    /// Frames travel until nobody has one to send; no time passes.
    pub(crate) fn settle(&mut self) {
        for _ in 0..FRAMES_MAX {
            if !self.transmit(0, 0) & !self.transmit(1, 0) {
                return;
            }
        }
        panic!("livelock: {FRAMES_MAX} frames and no time has passed");
    }

    /// Time passes until the next timeout. False where there is none.
    pub(crate) fn tick(&mut self) -> bool {
        let deadlines = self.sides.each_mut().map(|side| side.nic.next_deadline());
        let Some(deadline) = deadlines.into_iter().flatten().min() else { return false };
        self.now = self.now.max(deadline);
        for side in &mut self.sides {
            let mut timeouts = 0;
            while side.nic.next_deadline().is_some_and(|deadline| deadline <= self.now) {
                side.nic.handle_timeout(self.now);
                timeouts += 1;
                assert!(timeouts < TIMEOUTS_MAX, "livelock: a timeout is never over");
            }
        }
        true
    }

    /// Silence, or the patience's end; then a reset makes new devices of them.
    pub(crate) fn finish(&mut self) {
        for _ in 0..EVENTS_MAX {
            self.settle();
            if !self.tick() {
                break;
            }
        }
        let new = Side::new(1, self.config);
        let fresh = new.registers();
        for side in [0, 1] {
            self.sides[side].read_all();
            self.reset(side);
            for (new, old) in fresh.iter().zip(self.sides[side].registers()) {
                assert_eq!(*new, old, "not as after power-on");
            }
            // What no register shows.
            let engine = &self.sides[side].nic.engine;
            for (new, old) in new.nic.engine.qps().zip(engine.qps()) {
                assert_eq!(new.attributes(), old.attributes(), "not as after power-on");
                assert_eq!((new.state(), new.qpn()), (old.state(), old.qpn()));
            }
        }
        self.work();
    }

    pub(crate) fn reset(&mut self, side: usize) {
        let side = &mut self.sides[side];
        side.nic.reset();
        side.nic.memory.take_back();
        side.rows.clear();
    }

    /// SEND, WRITE and READ on every data queue pair.
    fn work(&mut self) {
        for side in &mut self.sides {
            side.nic.memory.ram().slice_mut(RAM, RAM_LEN).expect("RAM").fill(0);
            side.bring_up();
        }
        let sent = [0xA7; 100];
        self.sides[0].nic.memory.ram().write(DATA, &sent).expect("RAM");
        for q in 2..QPS {
            self.sides[0].post(q, 2, DATA, 100, 0, 0);
            self.sides[0].post(q, 0, DATA, 100, REGION_VA, RKEY);
            self.sides[0].post(q, 4, DATA + 0x1000, 100, REGION_VA, RKEY);
            for _ in 0..EVENTS_MAX {
                self.settle();
                if !self.tick() {
                    break;
                }
            }
            assert_eq!(self.sides[0].get(Register::Cqhead, q), 3, "queue pair {q} does not work");
            let element = RQ + u64::from(q) * 0x1000;
            for (side, at) in [(1, element), (1, REGION), (0, DATA + 0x1000)] {
                let memory = self.sides[side].nic.memory.ram();
                assert_eq!(memory.slice(at, 100).expect("RAM"), sent, "queue pair {q}");
            }
        }
    }

    /// A frame of the peer's for queue pair `q`. The PSN is told as a distance from the one awaited.
    #[expect(clippy::too_many_arguments, reason = "the parts of one frame")]
    pub(crate) fn forge(
        &mut self,
        to: usize,
        q: u16,
        value: u8,
        distance: i32,
        flags: u8,
        ext: &[u8; 32],
        payload: usize,
    ) {
        let (me, peer) = (to as u8 + 1, 2 - to as u8);
        let qpn = Qpn::new(q.into());
        let row = opcode::row(value);
        let Some(qp) = self.sides[to].nic.engine.qp(qpn) else { return };
        let base = if row.operation.is_response() {
            qp.requester().unacknowledged_psn()
        } else {
            qp.expected_psn()
        };
        let psn = Psn::new(base.get().wrapping_add_signed(distance));
        let flow = Flow {
            source_mac: [2, 0, 0, 0, 0, peer],
            dest_mac: [2, 0, 0, 0, 0, me],
            vlan_tci: None,
            source_ip: [192, 0, 2, peer].into(),
            dest_ip: [192, 0, 2, me].into(),
            traffic_class: flags & 3,
            hop_limit: 1,
            flow_label: 0,
            source_port: 1,
            pkey: 0xFFFF,
            dest_qpn: qpn,
        };
        let template = Template::new(&flow).expect("one family");
        let mut frame = vec![flags; template.frame_len(row, payload)];
        let headers = usize::from(row.header_len) - 12;
        let used = headers.min(ext.len());
        frame[template.len()..template.len() + used].copy_from_slice(&ext[..used]);
        let bth = BthFields { psn, ack_request: flags & 4 != 0, ..BthFields::default() };
        template.finish(&mut frame, row, payload, bth);
        self.deliver(to, &frame);
    }
}

/// A RETH of the region that both sides have.
pub(crate) fn region_header(offset: u64, length: u32) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&(REGION_VA + offset).to_be_bytes());
    bytes[8..12].copy_from_slice(&RKEY.to_be_bytes());
    bytes[12..16].copy_from_slice(&length.to_be_bytes());
    bytes
}
