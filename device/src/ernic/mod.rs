//! The ERNIC face: AMD's "Embedded RDMA-enabled NIC" (PG332) as its driver sees it.
//!
//! | file | what |
//! |---|---|
//! | `registers`, `row` | the register table, and what a row says |
//! | `profile`, `map` | which document's reading; from address to register |
//! | `registers_io`, `effects` | accesses: what may be written, and what else that does |
//! | `flow_control`, `handshake` | pauses; side-band ports |
//! | `queues`, `region`, `status` | per-QP state and entry formats; region lookup; interrupts and counters |
//! | `data_buffers`, `errors` | what is kept for retries; error buffers and error queues |
//! | `limits` | what it does not do, and the reaction |
//! | `demote` | a row without its behaviour, for the rows' tests |
//! | `view` | what the engine asks: work, receive buffers, permission, completions |
//! | `explain` | what values mean, what causes them, what to do |
//!
//! Values with their home in the engine are not stored here, and the engine is never stored here: it
//! comes as an argument. Knows no packet headers beyond the opcode table.

pub mod contradictions;
mod data_buffers;
mod demote;
mod effects;
mod errors;
pub mod explain;
mod flow_control;
mod handshake;
mod limits;
mod map;
mod profile;
mod queues;
mod region;
pub mod registers;
mod registers_io;
pub mod row;
mod status;
mod view;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use softrnic_engine::packet::{opcode, parse};
use softrnic_engine::{Engine, EngineConfig, Nanos, Port, Qp, Qpn, Reason, Room, Train, Verdict};

pub use errors::{FATAL_CODES, FatalCode, SYNDROME_BITS, SyndromeBit, fatal_code, syndrome};
pub use handshake::{CompletionBeat, ReceiveBeat};
pub use limits::{LIMITS, Limit};
pub use map::{Location, Map};
pub use profile::{MovedField, Profile};
pub use registers::{ROWS, Register};
pub use row::{Access, DeviceEffect, Effect, Field, Home, Legal, Mark, QpEffect, Row, Section};
pub use view::View;

use crate::memory::Memory;
use crate::nic::{Between, Device, Nic};
use data_buffers::DataBuffers;
use demote::Demoted;
use flow_control::ReceiveBuffers;
use handshake::Ports;
use queues::QueuePair;
use region::Regions;
use registers::{KEPT_GLOBAL, bits};
use status::{Noted, Status};

/// Bytes that this face keeps for each queue pair, besides the engine's. Its queues are in memory.
pub const QUEUE_PAIR_LEN: usize =
    size_of::<QueuePair>() + handshake::PORTS_LEN + data_buffers::QUEUE_PAIR_LEN;

/// Build parameters of an ERNIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ErnicConfig {
    /// Whose reading of the register space.
    pub profile: Profile,
    /// C_NUM_QP: 8, 16, ... 2048 (256 before v4); other numbers become the next larger of these. QP1 and
    /// queue pairs 2 ..= C_NUM_QP - 1 exist.
    pub num_qp: u16,
    /// Take ring indices that count on past the depth, and 0 for the depth, instead of refusing them.
    pub lenient_indices: bool,
    /// The clock that XRNICADCONF\[19:16\] counts: a tick of the ACK timeout is 2^width of its periods.
    pub clock_mhz: u16,
    /// Hold peers to AMD's 64-byte rules instead of taking any address and length: regions are touched at
    /// multiples of 64 only, in multiples of 64 bytes.
    pub strict_alignment: bool,
    /// Tag for every frame that leaves. No register has it: real designs tag outside of ERNIC.
    pub vlan_tci: Option<u16>,
    /// Rate of the link, in which pause times are told.
    pub line_rate_bits_per_s: u64,
    /// How fast the receive buffers drain; `None`: as fast as frames come.
    pub drain_bits_per_s: Option<u64>,
    /// A row that has lost its behaviour. For tests that check that a row has any.
    pub demoted: Option<Register>,
}

impl Default for ErnicConfig {
    fn default() -> Self {
        Self {
            profile: Profile::V4_0,
            num_qp: 2048,
            lenient_indices: false,
            clock_mhz: 250,
            strict_alignment: false,
            vlan_tci: None,
            line_rate_bits_per_s: 100_000_000_000,
            drain_bits_per_s: None,
            demoted: None,
        }
    }
}

/// Entries that wait on the immediate / invalidate side band at most.
const SIDE_BAND_LEN: usize = 256;

/// An ERNIC without its engine and memory.
#[derive(Clone, Debug)]
pub struct Ernic {
    map: Map,
    lenient_indices: bool,
    clock_mhz: u16,
    strict_alignment: bool,
    demoted: Option<Demoted>,
    status: Status,
    regions: Regions,
    /// By queue pair number; number 0 is never used.
    qps: Box<[QueuePair]>,
    touched_qps: Touched,
    data_buffers: DataBuffers,
    /// The queue pair that went fatal last, and why; until its packet has been looked at.
    last_fatal: Option<(Qpn, Reason)>,
    /// Faults that were met while the engine worked, by reason.
    faults: [u64; Reason::COUNT],
    side_band: VecDeque<u64>,
    side_band_lost: u64,
    ports: Ports,
    buffers: ReceiveBuffers,
}

/// Which of many elements were changed since reset, so that a reset costs what was used.
#[derive(Clone, Debug)]
struct Touched {
    list: Vec<u16>,
    is: Box<[bool]>,
}

impl Touched {
    fn new(len: usize) -> Self {
        Self { list: Vec::with_capacity(len), is: vec![false; len].into_boxed_slice() }
    }

    fn add(&mut self, index: u16) {
        if !core::mem::replace(&mut self.is[usize::from(index)], true) {
            self.list.push(index);
        }
    }

    fn pop(&mut self) -> Option<u16> {
        let index = self.list.pop()?;
        self.is[usize::from(index)] = false;
        Some(index)
    }
}

impl Ernic {
    fn new(config: &ErnicConfig) -> Self {
        let num_qp = config.num_qp.clamp(8, config.profile.num_qp_max).next_power_of_two();
        Self {
            map: Map { profile: config.profile, num_qp },
            lenient_indices: config.lenient_indices,
            clock_mhz: config.clock_mhz.max(1),
            strict_alignment: config.strict_alignment,
            demoted: config
                .demoted
                .map(|register| Demoted::new(register, config.profile.reset(register))),
            status: Status::new(global_reset(&config.profile)),
            regions: Regions::new(),
            qps: vec![QueuePair::RESET; usize::from(num_qp)].into_boxed_slice(),
            touched_qps: Touched::new(usize::from(num_qp)),
            data_buffers: DataBuffers::new(usize::from(num_qp)),
            last_fatal: None,
            faults: [0; Reason::COUNT],
            side_band: VecDeque::with_capacity(SIDE_BAND_LEN),
            side_band_lost: 0,
            ports: Ports::new(num_qp),
            buffers: ReceiveBuffers::new(config.line_rate_bits_per_s, config.drain_bits_per_s),
        }
    }

    /// The register map of this device.
    #[must_use]
    pub const fn map(&self) -> Map {
        self.map
    }

    /// Faults met in queues and memory, by reason. What frames and register accesses were refused for
    /// is in [`Engine::refused`].
    #[must_use]
    pub const fn faults(&self) -> &[u64; Reason::COUNT] {
        &self.faults
    }

    /// The next entry of the immediate / invalidate side band (port `ieth_immdt`): bits 31..0 the
    /// immediate or the key; 35..32 the type (1 SEND WITH INVALIDATE, 2 SEND WITH IMMEDIATE, 3 WRITE
    /// WITH IMMEDIATE); 38..36 and 47..40 the queue pair's bits 10..8 and 7..0; 63..48 STATRQPIDB.
    ///
    /// Chosen: v3.1's record, which has 8 bits of queue pair number, with three more beside the type.
    pub fn take_side_band(&mut self) -> Option<u64> {
        self.side_band.pop_front()
    }

    /// Side band entries that were lost because nobody took them.
    #[must_use]
    pub const fn side_band_lost(&self) -> u64 {
        self.side_band_lost
    }
}

fn global_reset(profile: &Profile) -> [u32; KEPT_GLOBAL] {
    let mut words = [0; KEPT_GLOBAL];
    for row in ROWS {
        let global = matches!(row.section, Section::Global | Section::Status);
        if global && row.home_mask(Home::Kept) != 0 {
            words[row.register.kept_index()] =
                profile.reset(row.register) & row.home_mask(Home::Kept);
        }
    }
    words
}

const ERNIC_PORT: Port = Port {
    enabled: false,
    mac: [0; 6],
    ipv4: core::net::Ipv4Addr::UNSPECIFIED,
    ipv6: core::net::Ipv6Addr::UNSPECIFIED,
    vlan_tci: None,
    require_dont_fragment: true,
    pfc: None,
};

/// Bits of STATQP that the face keeps.
const STATQP_RQ_OVERFLOW: u32 = bits(Register::Statqp, "rq_overflow");
const STATQP_RETRIED: u32 = bits(Register::Statqp, "retried");
const STATQP_NAK_SYNDROME: u32 = bits(Register::Statqp, "nak_syndrome");

/// Packets outstanding at most after a congestion notification (normally [`queues::IN_FLIGHT_MAX`]).
/// Chosen: it stays so until software puts the send queue to an index, as it does when it recovers or
/// reuses the queue pair; later guides call the cut "one-shot".
const WINDOW_AFTER_CNP: u32 = 8;

impl<M: Memory> Device<M> for Ernic {
    type View<'a>
        = View<'a, M>
    where
        M: 'a;

    #[inline]
    fn view<'a>(&'a mut self, memory: &'a mut M) -> View<'a, M> {
        View { ernic: self, memory }
    }

    #[inline]
    fn received(&mut self, engine: &mut Engine, memory: &mut M, frame: &[u8], verdict: &Verdict) {
        let noted = self.status.received(verdict);
        if let Noted::Invalid(reason) = noted
            && engine.port().enabled
        {
            self.refused(memory, frame, verdict, reason);
        }
        if noted == Noted::Nak
            && let Some(qp) = self.qps.get_mut(verdict.qpn.get() as usize)
            && let Some(syndrome) = verdict.syndrome
        {
            let word = qp.word_mut(Register::Statqp);
            *word &= !STATQP_NAK_SYNDROME;
            *word |= u32::from(syndrome & 0x7F) << STATQP_NAK_SYNDROME.trailing_zeros();
        }
        if verdict.refused == Some(Reason::CongestionNotification)
            && let Some(attributes) = engine.attributes_mut(verdict.qpn)
        {
            attributes.policy.window_packets = WINDOW_AFTER_CNP;
        }
    }

    #[inline(always)]
    fn arriving(&mut self, now: Nanos, frame: &[u8]) -> Result<(), Reason> {
        if self.buffers.limited() { self.buffers.arrive(now, frame, &self.status) } else { Ok(()) }
    }

    #[inline(always)]
    fn poll_own(&mut self, engine: &Engine, room: &mut Room<'_>) -> Option<Train> {
        if self.buffers.owes() {
            self.buffers.poll(engine.port().mac, room, &self.status)
        } else {
            None
        }
    }

    #[inline]
    fn handle_timeout(&mut self, now: Nanos) {
        if self.buffers.limited() {
            self.buffers.handle_timeout(now, &self.status);
        }
    }

    #[inline]
    fn next_deadline(&self) -> Option<Nanos> {
        if self.buffers.limited() { self.buffers.deadline(&self.status) } else { None }
    }

    #[inline]
    fn transmitted(&mut self, engine: &mut Engine, train: &Train, frame: &[u8]) {
        self.status.transmitted(train);
        if train.opcode == opcode::CNP {
            self.notified(engine, frame);
        }
        if train.retransmission
            && let Some(qp) = self.qps.get_mut(train.qpn.get() as usize)
        {
            *qp.word_mut(Register::Statqp) |= STATQP_RETRIED;
        }
    }
}

impl Ernic {
    /// Software's CNP leaves: the queue pairs that it answers for, those with this peer, need none any
    /// more. Chosen: the chapter has no rule that clears CNPSCHDSTS.
    #[cold]
    fn notified(&mut self, engine: &Engine, frame: &[u8]) {
        let Ok(packet) = parse(frame) else { return };
        for q in 1..self.map.num_qp {
            let qp = engine.qp(Qpn::new(q.into())).filter(|_| self.status.cnp_bank.has(q));
            if qp.map(Qp::attributes).is_some_and(|attributes| {
                attributes.dest_qpn == packet.bth.dest_qpn()
                    && packet.goes_to(attributes.path.dest_ip)
            }) {
                self.status.cnp_bank.clear(q / 32, 1 << (q % 32));
            }
        }
    }

    /// Words of 64 bytes that are taken in the receive buffer for RoCE, rounded up, as of the last
    /// arrival or timeout.
    #[must_use]
    pub const fn receive_buffer_words(&self) -> u64 {
        self.buffers.roce_words()
    }
}

impl<M: Memory> Nic<Ernic, M> {
    /// An ERNIC after power-on. Its engine has every queue pair from the start, so that registers can
    /// be written in any order.
    #[must_use]
    pub fn ernic(config: ErnicConfig, memory: M) -> Self {
        let device = Ernic::new(&config);
        let slots = device.qps.len();
        let port = Port { vlan_tci: config.vlan_tci, ..ERNIC_PORT };
        let mut nic = Self { engine: Engine::new(EngineConfig { slots }, port), device, memory };
        (1..slots as u16).for_each(|q| nic.create_qp(q));
        nic
    }

    /// The interrupt line: a cause has happened that INTEN lets through.
    #[inline]
    #[must_use]
    pub const fn interrupt(&self) -> bool {
        let status = &self.device.status;
        status.causes() & status.word(Register::Inten) != 0
    }

    /// Power-on state again, but for what was counted as refused. Costs what was used since the last.
    pub fn reset(&mut self) {
        self.reset_through(&mut ());
    }

    /// [`Nic::reset`], with something between engine and face.
    pub fn reset_through(&mut self, between: &mut impl Between) {
        let device = &mut self.device;
        let before =
            core::mem::replace(&mut device.status, Status::new(global_reset(&device.map.profile)));
        device.side_band.clear();
        device.side_band_lost = 0;
        device.ports.reset();
        device.buffers.reset();
        device.regions.reset();
        device.data_buffers.reset();
        device.last_fatal = None;
        if let Some(demoted) = &mut device.demoted {
            demoted.reset();
        }
        let port = Port { vlan_tci: self.engine.port().vlan_tci, ..ERNIC_PORT };
        if *self.engine.port() != port {
            self.engine.set_port(port);
        }
        while let Some(q) = self.device.touched_qps.pop() {
            self.device.qps[usize::from(q)] = QueuePair::RESET;
            let qpn = Qpn::new(q.into());
            between.forget(qpn);
            self.engine.destroy(qpn, &mut self.device.view(&mut self.memory));
            self.create_qp(q);
        }
        let same = |register| before.word(register) == self.device.status.word(register);
        let same_count = same(Register::XrnicConfQpEn);
        let same_policy = same(Register::Xrnicconf) && same(Register::Xrnicadconf);
        // Queue pairs that no register of their own was written of follow these, too.
        if !same_count {
            (1..self.device.map.num_qp).for_each(|q| self.follow_enable(between, q));
        }
        if !same_policy {
            self.apply_policy();
        }
    }
}
