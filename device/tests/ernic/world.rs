//! Two ERNICs back to back for stories: registers and queue memory only, frames that can be seen,
//! changed and lost on the way. A story reports what went wrong instead of panicking, because the rows'
//! test also runs it where it must fail.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Debug;

use softrnic_device::ernic::{Ernic, ErnicConfig, Location, Profile, Register};
use softrnic_device::{Memory, Nic, Ram};
use softrnic_engine::packet::{BthFields, FRAME_LEN_MAX, Flow, Network, Template, icrc, opcode};
use softrnic_engine::{Nanos, Psn, Qpn, Reason, Room, Rx, Verdict};

/// Everything lies above 4 GiB, so that each high register matters.
pub const RAM: u64 = 0x12_4000_0000;
pub const LOCAL: u64 = RAM + 0x2_0000;
pub const REGION: u64 = RAM + 0x8_0000;
pub const REGION_VA: u64 = 0x7FFF_0000_1000;
pub const REGION_LEN: u32 = 0x4_0000;
pub const REGION_ROW: u16 = 3;
pub const RKEY: u32 = (REGION_ROW as u32) << 8 | 0x5A;
pub const ERRORS: u64 = RAM + 0x10_0000;
pub const INCOMING: u64 = RAM + 0x11_0000;
pub const OUTGOING: u64 = RAM + 0x11_8000;
pub const RESPONSES: u64 = RAM + 0x12_0000;
pub const DATA: u64 = RAM + 0x14_0000;
const SEND_QUEUES: u64 = RAM + 0x20_0000;
const COMPLETION_QUEUES: u64 = RAM + 0x40_0000;
const DOORBELLS: u64 = RAM + 0x48_0000;
const RECEIVE_QUEUES: u64 = RAM + 0x80_0000;

/// The queue pair that most stories use.
pub const QP: u16 = 2;
pub const PD: u32 = 9;
pub const DEPTH: u32 = 8;
pub const RECEIVE_LEN: u64 = 0x2000;
pub const MTU: u32 = 1024;
/// Enabled, both interrupts, doorbells in memory, CQEs, MTU 1024, receive buffers of 8 KiB.
pub const QPCONF: u32 = 0x003D | 2 << 8 | 32 << 16;
/// 17 ms, no retry limit to speak of, RNR NAKs of 10 us for ever.
pub const TIMEOUT: u32 = 12 | 7 << 8 | 7 << 11 | 1 << 16;

pub const WRITE: u8 = 0;
pub const SEND: u8 = 2;
pub const READ: u8 = 4;

/// A story's outcome.
pub type Check<T = ()> = Result<T, String>;

/// Fails the story unless the two are equal.
pub fn same<T: PartialEq + Debug>(what: &str, got: T, wanted: T) -> Check {
    if got == wanted { Ok(()) } else { Err(format!("{what}: got {got:x?}, wanted {wanted:x?}")) }
}

/// Fails the story unless it holds.
pub fn holds(what: &str, condition: bool) -> Check {
    if condition { Ok(()) } else { Err(format!("{what}: does not hold")) }
}

pub fn send_queue(q: u16) -> u64 {
    SEND_QUEUES + u64::from(q) * 0x200
}

pub fn completion_queue(q: u16) -> u64 {
    COMPLETION_QUEUES + u64::from(q) * 0x20
}

pub fn completion_doorbell(q: u16) -> u64 {
    DOORBELLS + u64::from(q) * 8
}

pub fn receive_doorbell(q: u16) -> u64 {
    DOORBELLS + u64::from(q) * 8 + 4
}

pub fn receive_queue(q: u16) -> u64 {
    RECEIVE_QUEUES + u64::from(q) * DEPTH as u64 * RECEIVE_LEN
}

/// Where stories get their devices from: whole ones, or ones with a demoted row. Notes which registers
/// they touch.
pub struct Bench {
    pub profile: Profile,
    demoted: Option<Register>,
    touched: RefCell<BTreeSet<Location>>,
}

impl Bench {
    pub fn new(demoted: Option<Register>) -> Self {
        Self { profile: Profile::V4_0, demoted, touched: RefCell::default() }
    }

    pub fn touched(&self, at: Location) -> bool {
        self.touched.borrow().contains(&at)
    }

    /// Two devices with 8 queue pair numbers each, connected on [`QP`].
    pub fn world(&self) -> World<'_> {
        self.world_with(|_| {})
    }

    pub fn world_with(&self, change: impl Fn(&mut ErnicConfig)) -> World<'_> {
        let mut config = ErnicConfig {
            profile: self.profile,
            num_qp: 8,
            demoted: self.demoted,
            ..ErnicConfig::default()
        };
        change(&mut config);
        let mut world = World {
            a: Side::new(self, config, 1),
            b: Side::new(self, config, 2),
            now: Nanos(0),
            frames: Vec::new(),
            on_wire: None,
        };
        world.a.configure();
        world.b.configure();
        world.connect(QP);
        world
    }
}

/// One device with its driver's memory.
pub struct Side<'b> {
    bench: &'b Bench,
    pub nic: Nic<Ernic, Ram>,
    pub number: u8,
    posted: Vec<u32>,
}

/// A send queue entry.
#[derive(Clone, Copy)]
pub struct Wr {
    pub opcode: u8,
    pub local: u64,
    pub length: u32,
    pub va: u64,
    pub rkey: u32,
    pub immediate: u32,
}

impl Wr {
    pub const fn new(opcode: u8, length: u32) -> Self {
        Self { opcode, local: LOCAL, length, va: REGION_VA, rkey: RKEY, immediate: 0xABCD }
    }
}

impl Side<'_> {
    fn new(bench: &Bench, config: ErnicConfig, number: u8) -> Side<'_> {
        let num_qp = usize::from(config.num_qp);
        let len = (RECEIVE_QUEUES - RAM) as usize + num_qp * DEPTH as usize * RECEIVE_LEN as usize;
        let nic = Nic::ernic(config, Ram::new(RAM, len));
        Side { bench, nic, number, posted: vec![0; num_qp] }
    }

    pub fn set(&mut self, register: Register, index: u16, value: u32) {
        let at = Location { register, index };
        self.bench.touched.borrow_mut().insert(at);
        self.nic.write32(self.nic.device.map().offset(at), value);
    }

    pub fn get(&mut self, register: Register, index: u16) -> u32 {
        let at = Location { register, index };
        self.bench.touched.borrow_mut().insert(at);
        self.nic.read32(self.nic.device.map().offset(at))
    }

    pub fn set64(&mut self, low: Register, high: Register, index: u16, value: u64) {
        self.set(low, index, value as u32);
        self.set(high, index, (value >> 32) as u32);
    }

    pub fn refused(&self, reason: Reason) -> u64 {
        self.nic.engine.refused()[reason as usize]
    }

    pub fn fault(&self, reason: Reason) -> u64 {
        self.nic.device.faults()[reason as usize]
    }

    pub fn bytes(&self, address: u64, len: usize) -> Check<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.nic.memory.read(address, &mut bytes).map_err(|fault| fault.to_string())?;
        Ok(bytes)
    }

    pub fn word(&self, address: u64) -> Check<u32> {
        self.nic.memory.read_u32(address).map_err(|fault| fault.to_string())
    }

    pub fn cqe(&self, q: u16, index: u32) -> Check<u32> {
        self.word(completion_queue(q) + 4 * u64::from(index - 1))
    }

    pub fn fill(&mut self, address: u64, len: usize, seed: u8) -> Check {
        let bytes: Vec<u8> =
            (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect();
        self.nic.memory.write(address, &bytes).map_err(|fault| fault.to_string())
    }

    /// What is not of one queue pair, as a driver sets it up. The enable bit is last.
    fn configure(&mut self) {
        use Register as R;
        let number = u32::from(self.number);
        let last_qp = u32::from(self.nic.device.map().num_qp) - 1;
        self.set(R::Macxaddlsb, 0, number);
        self.set(R::Macxaddmsb, 0, 0x0200);
        self.set(R::Ipv4xadd, 0, 0xC000_0200 | number);
        self.set(R::XrnicConfQpEn, 0, last_qp);
        self.set64(R::Errbufba, R::Errbufbamsb, 0, ERRORS);
        self.set(R::Errbufsz, 0, 4 | 256 << 16);
        self.set64(R::Ipkterrqba, R::Ipkterrqbamsb, 0, INCOMING);
        self.set(R::Ipkterrqsz, 0, 4);
        self.set64(R::Opkterrqba, R::Opkterrqbamsb, 0, OUTGOING);
        self.set(R::Outerrstsqsz, 0, 4);
        self.set64(R::Resperrpktba, R::Resperrpktbamsb, 0, RESPONSES);
        self.set(R::Resperrsz, 0, 4 | 256 << 16);
        self.set64(R::Datbufba, R::Datbufbamsb, 0, DATA);
        self.set(R::Datbufsz, 0, 16 | 4096 << 16);
        self.set(R::Inten, 0, 0x1FB);
        self.region(REGION_ROW, REGION_VA, REGION, REGION_LEN.into(), 2);
        self.set(R::Xrnicconf, 0, 0x00C0_0021);
    }

    /// A region table row with key 0x5A.
    pub fn region(&mut self, row: u16, va: u64, bus: u64, len: u64, access: u32) {
        use Register as R;
        self.set(R::Pdpdnum, row, PD);
        self.set64(R::Virtaddrlsb, R::Virtaddrmsb, row, va);
        self.set64(R::Bufbaseaddrlsb, R::Bufbaseaddrmsb, row, bus);
        self.set(R::Bufrkey, row, 0x5A);
        self.set(R::Wrrdbuflen, row, len as u32);
        self.set(R::Accessdesc, row, access | ((len >> 32) as u32) << 16);
    }

    /// Queues of a queue pair, QP1 included.
    pub fn queues(&mut self, q: u16) {
        use Register as R;
        self.set64(R::Sqba, R::Sqbamsb, q, send_queue(q));
        self.set64(R::Cqba, R::Cqbamsb, q, completion_queue(q));
        self.set64(R::Rqba, R::Rqbamsb, q, receive_queue(q));
        self.set64(R::Cqdbadd, R::Cqdbaddmsb, q, completion_doorbell(q));
        self.set64(R::Rqwptrdbadd, R::Rqwptrdbaddmsb, q, receive_doorbell(q));
        self.set(R::Qdepth, q, DEPTH | DEPTH << 16);
    }

    /// A connected queue pair; the peer's has the same number.
    pub fn connect(&mut self, q: u16) {
        use Register as R;
        let (number, peer) = (u32::from(self.number), 3 - u32::from(self.number));
        self.queues(q);
        self.set(R::Sqpsn, q, first_psn(number));
        self.set(R::Lstrqreq, q, 0x0400_0000 | (first_psn(peer) - 1));
        self.set(R::Destqpconf, q, q.into());
        self.set(R::Timeoutconf, q, TIMEOUT);
        self.set(R::Qpadvconf, q, 0xFFFF_4000);
        self.set(R::Macdesaddlsb, q, peer);
        self.set(R::Macdesaddmsb, q, 0x0200);
        self.set(R::Ipdesaddr1, q, 0xC000_0200 | peer);
        self.set(R::Pd, q, PD);
        self.set(R::Qpconf, q, QPCONF);
    }

    /// Puts an entry into the next slot of the ring; no doorbell yet. Returns the index.
    pub fn queue(&mut self, q: u16, wr: &Wr) -> Check<u32> {
        let posted = &mut self.posted[usize::from(q)];
        *posted = *posted % DEPTH + 1;
        let index = *posted;
        let mut wqe = [0; 64];
        wqe[..2].copy_from_slice(&(0x100 + index as u16).to_le_bytes());
        wqe[4..12].copy_from_slice(&wr.local.to_le_bytes());
        wqe[12..16].copy_from_slice(&wr.length.to_le_bytes());
        wqe[16] = wr.opcode;
        wqe[20..28].copy_from_slice(&wr.va.to_le_bytes());
        wqe[28..32].copy_from_slice(&wr.rkey.to_le_bytes());
        wqe[32..48].copy_from_slice(b"short and inline");
        wqe[48..52].copy_from_slice(&wr.immediate.to_le_bytes());
        let at = send_queue(q) + 64 * u64::from(index - 1);
        self.nic.memory.write(at, &wqe).map_err(|fault| fault.to_string())?;
        Ok(index)
    }

    /// Queues an entry and rings the doorbell.
    pub fn post(&mut self, q: u16, wr: &Wr) -> Check<u32> {
        let index = self.queue(q, wr)?;
        self.set(Register::Sqpi, q, index);
        Ok(index)
    }

    /// Takes the next frame that this device sends, without delivering it.
    pub fn next_frame(&mut self, now: Nanos) -> Option<Vec<u8>> {
        let mut bytes = [0; FRAME_LEN_MAX];
        let mut room = Room { bytes: &mut bytes, segments: 1, source_port: None };
        let train = self.nic.poll_transmit(now, &mut room)?;
        Some(bytes[..train.len].to_vec())
    }
}

/// First PSN that a side sends: 16 before the wrap.
pub const fn first_psn(number: u32) -> u32 {
    0xFF_FFE0 + 8 * number
}

/// Sees each frame before it arrives, and may change it; `false` loses it. `true` first where it is a's.
pub type OnWire = Box<dyn FnMut(bool, &mut Vec<u8>) -> bool>;

pub struct World<'b> {
    pub a: Side<'b>,
    pub b: Side<'b>,
    pub now: Nanos,
    /// All frames so far, as they left; `true` where a sent it.
    pub frames: Vec<(bool, Vec<u8>)>,
    pub on_wire: Option<OnWire>,
}

impl World<'_> {
    pub fn connect(&mut self, q: u16) {
        self.a.connect(q);
        self.b.connect(q);
    }

    /// Frames travel at once until nothing moves and no timer runs.
    pub fn settle(&mut self) -> Check {
        for _ in 0..20_000 {
            if !self.step() && !self.next_timer() {
                return Ok(());
            }
        }
        Err("never settles".into())
    }

    /// Frames travel at once until nothing moves; timers do not run.
    pub fn quiet(&mut self) {
        let mut steps = 0;
        while self.step() && steps < 20_000 {
            steps += 1;
        }
    }

    /// Time passes until the next timer; `false` where there is none.
    pub fn next_timer(&mut self) -> bool {
        let deadlines = [self.a.nic.next_deadline(), self.b.nic.next_deadline()];
        let Some(deadline) = deadlines.into_iter().flatten().min() else { return false };
        if deadline == Nanos::NEVER {
            return false;
        }
        self.now = self.now.max(deadline);
        self.a.nic.handle_timeout(self.now);
        self.b.nic.handle_timeout(self.now);
        true
    }

    pub fn step(&mut self) -> bool {
        let mut moved = false;
        for from_a in [true, false] {
            let from = if from_a { &mut self.a } else { &mut self.b };
            let Some(mut frame) = from.next_frame(self.now) else { continue };
            moved = true;
            self.frames.push((from_a, frame.clone()));
            if self.on_wire.as_mut().is_none_or(|on_wire| on_wire(from_a, &mut frame)) {
                self.deliver(!from_a, &frame);
            }
        }
        moved
    }

    pub fn deliver(&mut self, to_a: bool, frame: &[u8]) -> Verdict {
        let to = if to_a { &mut self.a } else { &mut self.b };
        to.nic.handle_frame(self.now, frame, Rx::default())
    }

    /// Posts one request on a's [`QP`] and lets it end.
    pub fn run(&mut self, wr: &Wr) -> Check<u32> {
        let index = self.a.post(QP, wr)?;
        self.settle()?;
        Ok(index)
    }

    /// One WRITE, SEND and READ each of `length` bytes, with new bytes, arrive and complete on `q`.
    pub fn traffic(&mut self, q: u16, length: u32, seed: u8) -> Check {
        let len = length as usize;
        self.a.fill(LOCAL, len, seed)?;
        self.b.fill(REGION + 0x1_0000, len, seed ^ 0x55)?;
        let taken = self.b.get(Register::Statrqpidb, q) % DEPTH;
        self.a.post(q, &Wr::new(WRITE, length))?;
        self.a.post(q, &Wr::new(SEND, length))?;
        let read =
            Wr { local: LOCAL + 0x1_0000, va: REGION_VA + 0x1_0000, ..Wr::new(READ, length) };
        let last = self.a.post(q, &read)?;
        self.settle()?;
        let sent = self.a.bytes(LOCAL, len)?;
        same("bytes written", self.b.bytes(REGION, len)? == sent, true)?;
        let buffer = receive_queue(q) + u64::from(taken) * RECEIVE_LEN;
        let wanted = if len <= 16 { b"short and inline"[..len].to_vec() } else { sent };
        same("bytes sent", self.b.bytes(buffer, len)? == wanted, true)?;
        let read = self.b.bytes(REGION + 0x1_0000, len)?;
        same("bytes read", self.a.bytes(LOCAL + 0x1_0000, len)? == read, true)?;
        same("doorbell write-back", self.a.word(completion_doorbell(q))?, last)?;
        let produced = self.b.word(receive_doorbell(q))?;
        self.b.set(Register::Rqci, q, produced);
        same("receive doorbell", produced, taken + 1)
    }
}

/// Makes a changed frame's IPv4 checksum and ICRC right again.
pub fn seal(frame: &mut [u8]) {
    if frame[12..14] == [0x08, 0x00] {
        frame[24..26].fill(0);
        let words = frame[14..34].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
        let sum: u32 = words.sum();
        let sum = (sum & 0xFFFF) + (sum >> 16);
        let sum = !((sum & 0xFFFF) + (sum >> 16)) as u16;
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    seal_icrc(frame);
}

/// Makes a changed frame's ICRC right again.
pub fn seal_icrc(frame: &mut [u8]) {
    let network = if frame[12..14] == [0x08, 0x00] { Network::Ipv4 } else { Network::Ipv6 };
    let end = frame.len() - 4;
    let crc = icrc::of(network, &frame[14..end]);
    frame[end..].copy_from_slice(&crc.to_le_bytes());
}

/// Offsets in an IPv4 frame.
pub mod at {
    pub const TRAFFIC_CLASS: usize = 15;
    pub const TTL: usize = 22;
    pub const SOURCE_PORT: usize = 34;
    pub const OPCODE: usize = 42;
    pub const PKEY: usize = 44;
    pub const DEST_QP: usize = 47;
    pub const PSN: usize = 51;
    pub const AETH: usize = 54;
}

/// A 24-bit number of a frame.
pub fn u24(frame: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([0, frame[at], frame[at + 1], frame[at + 2]])
}

/// A frame for QP1's software to send: Ethernet to payload, no ICRC.
fn raw_frame(from: u8, to: u8, dest_qp: u32, opcode: u8, body: &[u8]) -> Vec<u8> {
    let row = opcode::row(opcode);
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
        dest_qpn: Qpn::new(dest_qp),
    });
    let Some(template) = template else { return Vec::new() };
    let payload = body.len() + 12 - usize::from(row.header_len);
    let mut frame = vec![0; template.frame_len(row, payload)];
    let end = frame.len() - 4;
    frame[end - body.len()..end].copy_from_slice(body);
    let becn = opcode == opcode::CNP;
    let bth = BthFields { psn: Psn::new(5), migrated: true, becn, ..BthFields::default() };
    template.finish(&mut frame, row, payload, bth);
    frame.truncate(end);
    frame
}

/// A management datagram of `len` bytes to QP1, as its software builds it.
pub fn mad_frame(from: u8, to: u8, len: usize) -> Vec<u8> {
    // DETH: the Q_Key of every QP1, 0x8001_0000, and source QP 1.
    let mut body = vec![0x80, 1, 0, 0, 0, 0, 0, 1];
    body.extend((0..len).map(|i| i as u8));
    raw_frame(from, to, 1, opcode::UD_SEND_ONLY, &body)
}

/// A congestion notification packet, as software builds it.
pub fn cnp_frame(from: u8, to: u8, dest_qp: u16) -> Vec<u8> {
    raw_frame(from, to, dest_qp.into(), opcode::CNP, &[0; 16])
}

/// Posts a frame on QP1, which has to be set up.
pub fn post_frame(side: &mut Side<'_>, frame: &[u8]) -> Check<u32> {
    side.nic.memory.write(LOCAL, frame).map_err(|fault| fault.to_string())?;
    side.post(1, &Wr::new(SEND, frame.len() as u32))
}
