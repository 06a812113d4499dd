//! Two engines, two toy faces, a lossless or scripted link, a virtual clock, and the packet ladder
//! as text. Knows nothing of any device.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;

use softrnic_engine::packet::{FRAME_LEN_MAX, Syndrome, parse};
use softrnic_engine::{
    Access, Atomic, Attributes, Completion, CompletionKind, Datagram, Engine, EngineConfig, Event,
    Face, Fetch, Hold, Nanos, Path, Place, Port, Psn, Qpn, RKey, Reason, Room, Rx, State, Status,
    Train, Work,
};

pub const LATENCY_NS: u64 = 1000;

/// A region of the toy face.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    pub va: u64,
    pub length: u64,
    pub read: bool,
    pub write: bool,
    pub valid: bool,
}

/// A face with nothing but lists: what a device would keep in registers and rings.
#[derive(Debug, Default)]
pub struct Toy {
    pub memory: Vec<u8>,
    pub regions: BTreeMap<u32, Region>,
    pub sends: Vec<Work>,
    pub bad: BTreeMap<u32, (Status, Reason)>,
    pub receives: VecDeque<Place>,
    pub completions: Vec<Completion>,
    pub events: Vec<Event>,
    pub completion_limit: Option<usize>,
    pub stall_gather: bool,
    /// Where all datagrams go.
    pub datagram: Option<Datagram>,
}

const REGION: u64 = 1 << 32;

impl Toy {
    fn region(&self, at: Place) -> Result<(), Reason> {
        if at.token & REGION == 0 {
            return Ok(());
        }
        let region = self.regions.get(&(at.token as u32)).ok_or(Reason::KeyUnknown)?;
        if region.valid { Ok(()) } else { Err(Reason::KeyUnknown) }
    }

    fn range(&self, at: Place, offset: u32, len: usize) -> Result<std::ops::Range<usize>, Hold> {
        self.region(at).map_err(Hold::Fault)?;
        let start = usize::try_from(at.base).map_err(|_| Hold::Fault(Reason::DmaAddress))?;
        let start = start + offset as usize;
        if start + len > self.memory.len() {
            return Err(Hold::Fault(Reason::DmaAddress));
        }
        Ok(start..start + len)
    }
}

impl Face for Toy {
    fn work(&mut self, _q: Qpn, index: u32) -> Fetch {
        if let Some(&(status, reason)) = self.bad.get(&index) {
            return Fetch::Bad(status, reason);
        }
        self.sends.get(index as usize).map_or(Fetch::Empty, |work| Fetch::Work(*work))
    }

    fn gather(&mut self, _q: Qpn, from: Place, offset: u32, out: &mut [u8]) -> Result<(), Hold> {
        if self.stall_gather {
            return Err(Hold::Stall);
        }
        let range = self.range(from, offset, out.len())?;
        out.copy_from_slice(&self.memory[range]);
        Ok(())
    }

    fn datagram(&mut self, _q: Qpn, _index: u32) -> Result<Datagram, Reason> {
        self.datagram.ok_or(Reason::PathIncomplete)
    }

    fn receive(&mut self, _q: Qpn) -> Result<Place, Hold> {
        self.receives.pop_front().ok_or(Hold::Stall)
    }

    fn grant(
        &mut self,
        _q: Qpn,
        key: RKey,
        va: u64,
        length: u32,
        want: Access,
    ) -> Result<Place, Reason> {
        let region = self.regions.get(&key.0).ok_or(Reason::KeyUnknown)?;
        if !region.valid {
            return Err(Reason::KeyUnknown);
        }
        let allowed = match want {
            Access::Read => region.read,
            Access::Write => region.write,
            Access::Atomic => region.read && region.write,
        };
        if !allowed {
            return Err(Reason::AccessRights);
        }
        let offset = va.checked_sub(region.va).ok_or(Reason::AddressRange)?;
        let end = offset.checked_add(u64::from(length)).ok_or(Reason::AddressRange)?;
        if end > region.length {
            return Err(Reason::AddressRange);
        }
        Ok(Place { token: REGION | u64::from(key.0), base: va, length })
    }

    fn scatter(&mut self, _q: Qpn, to: Place, offset: u32, bytes: &[u8]) -> Result<(), Hold> {
        let range = self.range(to, offset, bytes.len())?;
        self.memory[range].copy_from_slice(bytes);
        Ok(())
    }

    fn atomic(&mut self, _q: Qpn, at: Place, operation: Atomic) -> Result<u64, Hold> {
        let range = self.range(at, 0, 8)?;
        let bytes = &mut self.memory[range];
        let before = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        let after = match operation {
            Atomic::FetchAdd { add } => before.wrapping_add(add),
            Atomic::CompareSwap { compare, swap } if before == compare => swap,
            Atomic::CompareSwap { .. } => before,
        };
        bytes.copy_from_slice(&after.to_le_bytes());
        Ok(before)
    }

    fn invalidate(&mut self, _q: Qpn, key: RKey) -> Result<(), Reason> {
        let region = self.regions.get_mut(&key.0).ok_or(Reason::KeyUnknown)?;
        region.valid = false;
        Ok(())
    }

    fn complete(&mut self, _q: Qpn, what: Completion) -> Result<(), Reason> {
        if self.completion_limit.is_some_and(|limit| self.completions.len() >= limit) {
            return Err(Reason::CompletionQueueFull);
        }
        self.completions.push(what);
        Ok(())
    }

    fn event(&mut self, what: Event) {
        self.events.push(what);
    }
}

/// What happens to a frame on the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    Deliver,
    Drop,
    Duplicate,
    /// Arrives after its successor of the same direction.
    Swap,
    /// A switch sets the CE mark.
    Mark,
    /// Arrives after whatever is sent in the next three microseconds.
    Late,
}

/// Sets the CE mark of an IPv4 frame without tags.
pub fn mark(frame: &mut [u8]) {
    frame[15] |= 3;
    frame[24..26].fill(0);
    let sum: u32 = frame[14..34].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    let sum = (sum & 0xFFFF) + (sum >> 16);
    frame[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

/// One end.
#[derive(Debug)]
pub struct End {
    pub engine: Engine,
    pub face: Toy,
    pub qpn: Qpn,
}

impl End {
    pub fn post(&mut self, work: Work) {
        self.face.sends.push(work);
        self.engine.ring(self.qpn, &mut self.face);
    }

    pub fn state(&self) -> State {
        self.engine.qp(self.qpn).expect("the queue pair exists").state()
    }

    /// (status, bytes) of send completions.
    pub fn sent(&self) -> Vec<Status> {
        let work = |c: &&Completion| matches!(c.kind, CompletionKind::Work { .. });
        self.face.completions.iter().filter(work).map(|c| c.status).collect()
    }

    /// (status, length, immediate) of receive completions.
    pub fn received(&self) -> Vec<(Status, u32, Option<u32>)> {
        self.face
            .completions
            .iter()
            .filter_map(|c| match c.kind {
                CompletionKind::Receive { length, immediate, .. } => {
                    Some((c.status, length, immediate))
                }
                CompletionKind::Work { .. } => None,
            })
            .collect()
    }
}

struct Flying {
    at: Nanos,
    to: usize,
    frame: Vec<u8>,
}

/// Two connected ends, `a` (0) and `b` (1).
pub struct Pair {
    pub ends: [End; 2],
    pub now: Nanos,
    pub ladder: String,
    pub frames: [u32; 2],
    /// What left, when and from where.
    pub trains: Vec<(Nanos, usize, Train)>,
    /// Every frame with its sender, where a test wants them.
    pub kept: Option<Vec<(usize, Vec<u8>)>>,
    flying: VecDeque<Flying>,
    held: [Option<Vec<u8>>; 2],
    room: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub attributes: Attributes,
    pub psn: u32,
    pub memory: usize,
    pub ipv6: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            attributes: Attributes { ack_timeout: 10, ..Attributes::default() },
            psn: 0x100,
            memory: 64 << 10,
            ipv6: false,
        }
    }
}

impl Pair {
    pub fn new(setup: Setup) -> Self {
        let end = |i: u8| {
            let port = Port {
                mac: [2, 0, 0, 0, 0, i + 1],
                ipv4: [192, 0, 2, i + 1].into(),
                ipv6: [0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(i) + 1].into(),
                ..Port::default()
            };
            let mut engine = Engine::new(EngineConfig { slots: 4 }, port);
            let qpn = Qpn::new(0x11 * (u32::from(i) + 1));
            let peer = 2 - i;
            let dest_ip = if setup.ipv6 {
                std::net::Ipv6Addr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(peer)]).into()
            } else {
                std::net::Ipv4Addr::from([192, 0, 2, peer]).into()
            };
            let path = Path { dest_mac: [2, 0, 0, 0, 0, peer], dest_ip, ..setup.attributes.path };
            let dest_qpn = Qpn::new(0x11 * u32::from(peer));
            engine
                .create(qpn, Attributes { path, dest_qpn, ..setup.attributes })
                .expect("the number is free");
            engine.set_send_psn(qpn, Psn::new(setup.psn));
            engine.set_expected_psn(qpn, Psn::new(setup.psn), 4);
            let mut face = Toy { memory: vec![0; setup.memory], ..Toy::default() };
            engine.set_state(qpn, State::Init, &mut face);
            engine.set_state(qpn, State::Rtr, &mut face);
            engine.set_state(qpn, State::Rts, &mut face);
            End { engine, face, qpn }
        };
        Self {
            ends: [end(0), end(1)],
            now: Nanos(0),
            ladder: String::new(),
            frames: [0, 0],
            trains: Vec::new(),
            kept: None,
            flying: VecDeque::new(),
            held: [None, None],
            room: vec![0; FRAME_LEN_MAX],
        }
    }

    /// Gives `b` one region of all its memory under key 7.
    pub fn region(&mut self) -> Region {
        let length = self.ends[1].face.memory.len() as u64;
        let region = Region { va: 0, length, read: true, write: true, valid: true };
        self.ends[1].face.regions.insert(7, region);
        region
    }

    /// Puts what one end wants to send on the link; `fate` is asked for each frame by its number in
    /// its direction.
    pub fn transmit(&mut self, from: usize, fate: &mut impl FnMut(usize, u32) -> Fate) -> bool {
        let mut any = false;
        loop {
            let end = &mut self.ends[from];
            let mut room = Room { bytes: &mut self.room, segments: 1, source_port: None };
            let Some(train) = end.engine.poll_transmit(self.now, &mut room, &mut end.face) else {
                break;
            };
            any = true;
            self.trains.push((self.now, from, train));
            let mut frame = self.room[..train.len].to_vec();
            if let Some(kept) = &mut self.kept {
                kept.push((from, frame.clone()));
            }
            let number = self.frames[from];
            self.frames[from] += 1;
            let fate = fate(from, number);
            self.draw(from, &frame, fate);
            match fate {
                Fate::Drop => {}
                Fate::Swap => {
                    self.held[from] = Some(frame);
                    continue;
                }
                Fate::Deliver => self.fly(from, frame, LATENCY_NS),
                Fate::Late => self.fly(from, frame, 4 * LATENCY_NS),
                Fate::Mark => {
                    mark(&mut frame);
                    self.fly(from, frame, LATENCY_NS);
                }
                Fate::Duplicate => {
                    self.fly(from, frame.clone(), LATENCY_NS);
                    self.fly(from, frame, LATENCY_NS);
                }
            }
            if let Some(held) = self.held[from].take() {
                self.fly(from, held, LATENCY_NS);
            }
        }
        // A frame that waits for a successor that does not come arrives late all the same.
        if let Some(held) = self.held[from].take() {
            self.fly(from, held, LATENCY_NS);
        }
        any
    }

    fn fly(&mut self, from: usize, frame: Vec<u8>, latency_ns: u64) {
        let at = self.now.after(latency_ns);
        let place = self.flying.partition_point(|flying| flying.at <= at);
        self.flying.insert(place, Flying { at, to: 1 - from, frame });
    }

    /// The next frame that an end wants to send; it arrives nowhere.
    pub fn next_frame(&mut self, from: usize) -> Option<Vec<u8>> {
        let end = &mut self.ends[from];
        let mut room = Room { bytes: &mut self.room, segments: 1, source_port: None };
        let train = end.engine.poll_transmit(self.now, &mut room, &mut end.face)?;
        Some(self.room[..train.len].to_vec())
    }

    /// A frame from nowhere for `to`.
    pub fn inject(&mut self, to: usize, frame: &[u8]) -> Option<Reason> {
        let end = &mut self.ends[to];
        end.engine.handle_frame(self.now, frame, Rx::default(), &mut end.face).refused
    }

    /// Runs until nothing moves and no timer is set.
    pub fn run(&mut self) {
        self.run_with(|_, _| Fate::Deliver);
    }

    pub fn run_with(&mut self, mut fate: impl FnMut(usize, u32) -> Fate) {
        for step in 0.. {
            assert!(step < 1_000_000, "no end in sight:\n{}", self.ladder);
            while self.transmit(0, &mut fate) | self.transmit(1, &mut fate) {}
            if !self.step() {
                break;
            }
        }
    }

    /// Moves the clock to what happens next. `false`: nothing does.
    pub fn step(&mut self) -> bool {
        let arrival = self.flying.front().map(|f| f.at);
        let deadlines = self.ends.iter_mut().filter_map(|end| end.engine.next_deadline());
        let Some(next) = deadlines.chain(arrival).min() else { return false };
        assert!(next >= self.now, "time runs forward");
        self.now = next;
        while let Some(flying) = self.flying.pop_front_if(|f| f.at <= next) {
            let end = &mut self.ends[flying.to];
            end.engine.handle_frame(next, &flying.frame, Rx::default(), &mut end.face);
        }
        for end in &mut self.ends {
            end.engine.handle_timeout(next, &mut end.face);
        }
        true
    }

    fn draw(&mut self, from: usize, frame: &[u8], fate: Fate) {
        if self.ladder.len() > 1 << 16 {
            return;
        }
        let packet = parse(frame).expect("what we send can be parsed");
        assert!(packet.icrc_valid(), "what we send has a right ICRC");
        let arrow = if from == 0 { "a -> b" } else { "a <- b" };
        let time = self.now.0 as f64 / 1000.0;
        let mut line = format!(
            "{time:>9.3} us  {arrow}  {:<20} psn {:06x}",
            packet.row.name,
            packet.bth.psn().get()
        );
        if !packet.payload().is_empty() {
            let _ = write!(line, " len {}", packet.payload().len());
        }
        if let Some(reth) = packet.reth() {
            let (va, length) = (reth.va.get(), reth.dma_length.get());
            let _ = write!(line, " va {va:#x} dma_len {length}");
        }
        if let Some(aeth) = packet.aeth() {
            let _ = match aeth.kind() {
                Syndrome::Ack(_) => write!(line, " msn {}", aeth.msn()),
                other => write!(line, " {other:?} msn {}", aeth.msn()),
            };
        }
        if packet.bth.ack_requested() {
            line.push_str(" ackreq");
        }
        if fate != Fate::Deliver {
            let _ = write!(line, "  ({fate:?})");
        }
        let _ = writeln!(self.ladder, "{}", line.trim_end());
    }
}
