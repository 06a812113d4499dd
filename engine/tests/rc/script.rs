//! A peer that sends anything with a right ICRC, in any order, between honest traffic; links that
//! lose; time that passes. The body of the fuzz target `peer`, of the property test and of the
//! corpus replay: [`read`] makes a script of bytes, [`run`] plays and judges it.
//!
//! Knows the harness, and nothing of where scripts come from.

use std::ops::Range;

use softrnic_engine::packet::{BthFields, Flow, Template, opcode};
use softrnic_engine::{
    Attributes, CompletionKind, PathMtu, Place, Psn, Qpn, RKey, Service, State, Work, WorkOpcode,
};

use crate::harness::{Fate, Pair, Region, Setup};

/// What happens, in order, to two queue pairs of one service.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) service: Service,
    pub(crate) steps: Vec<Step>,
}

/// One thing that happens. `from` and `to` are ends, 0 or 1.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Post { from: usize, opcode: u8, length: u32, fence: bool },
    Receive { to: usize, length: u32 },
    Transmit { from: usize, lose: bool },
    Forge { to: usize, opcode: u8, psn: i32, ack_request: bool, ext: [u8; 32], payload: usize },
    Time,
}

pub(crate) const SERVICES: [Service; 3] = [Service::Rc, Service::Uc, Service::Ud];

pub(crate) const OPCODES: [WorkOpcode; 8] = [
    WorkOpcode::Send,
    WorkOpcode::SendImm,
    WorkOpcode::SendInv,
    WorkOpcode::Write,
    WorkOpcode::WriteImm,
    WorkOpcode::Read,
    WorkOpcode::FetchAdd,
    WorkOpcode::CompareSwap,
];

/// Longest message and payload of a script.
pub(crate) const LENGTH_MAX: u32 = 1500;

/// Reads a script. Every byte string is one; a field that the bytes end in is read as zeros.
pub(crate) fn read(bytes: &[u8]) -> Script {
    let mut bytes = Bytes(bytes);
    let service = SERVICES[usize::from(bytes.next()) % SERVICES.len()];
    let mut steps = Vec::new();
    while !bytes.0.is_empty() {
        steps.push(step(&mut bytes));
    }
    Script { service, steps }
}

/// Plays a script to its end and on to silence.
///
/// # Panics
/// Where something completed out of order or twice, memory that nobody was given has changed, a
/// queue pair that is not in error waits for ever, or the engine itself panics.
pub(crate) fn run(script: &Script) {
    let attributes = Attributes {
        service: script.service,
        path_mtu: PathMtu::M256,
        ack_timeout: 1,
        retry_count: 2,
        rnr_retry: 2,
        min_rnr_timer: 1,
        max_rd_atomic: 2,
        max_dest_rd_atomic: 2,
        max_in_flight: 4,
        ..Attributes::default()
    };
    let mut pair =
        Pair::new(Setup { attributes, memory: 0x4000, psn: 0x00FF_FFF0, ..Setup::default() });
    for end in &mut pair.ends {
        end.face.memory[GUARD].fill(0xEE);
        let region = Region { va: 0, length: 0x3000, read: true, write: true, valid: true };
        end.face.regions.insert(7, region);
    }
    let mut given = [0; 2];
    for step in &script.steps {
        play(&mut pair, step, &mut given);
    }
    pair.run();
    for (end, given) in pair.ends.iter().zip(given) {
        check(end, given);
    }
}

/// What must hold for one end that had `given` receive buffers.
fn check(end: &crate::harness::End, given: usize) {
    assert!(end.face.memory[GUARD].iter().all(|&byte| byte == 0xEE), "the guard was written");
    let (mut done, mut received) = (Vec::new(), 0);
    for completion in &end.face.completions {
        match completion.kind {
            CompletionKind::Work { index, .. } => done.push(index),
            CompletionKind::Receive { place, .. } => received += usize::from(place.is_some()),
        }
    }
    assert!(done.iter().copied().eq(0..done.len() as u32), "once each, in order: {done:?}");
    assert!(done.len() <= end.face.sends.len());
    assert!(received + end.face.receives.len() <= given, "a receive buffer completed twice");
    if matches!(end.state(), State::Rts) {
        assert_eq!(done.len(), end.face.sends.len(), "silence, and a work request is not complete");
    }
}

fn play(pair: &mut Pair, step: &Step, given: &mut [usize; 2]) {
    match *step {
        Step::Post { from, opcode, length, fence } => {
            let opcode = OPCODES[usize::from(opcode) % OPCODES.len()];
            let atomic = matches!(opcode, WorkOpcode::FetchAdd | WorkOpcode::CompareSwap);
            let length = if atomic { 8 } else { length };
            pair.ends[from].post(Work {
                opcode,
                length,
                local: Place { token: 0, base: 0x1000, length },
                remote_va: 0x2000,
                rkey: RKey(7),
                fence,
                ..Work::default()
            });
        }
        Step::Receive { to, length } => {
            given[to] += 1;
            let place = Place { token: 0, base: 0x800, length };
            pair.ends[to].face.receives.push_back(place);
        }
        Step::Transmit { from, lose } => {
            let fate = if lose { Fate::Drop } else { Fate::Deliver };
            pair.transmit(from, &mut |_, _| fate);
        }
        Step::Forge { to, .. } => {
            let frame = forge(pair, to, step);
            pair.inject(to, &frame);
        }
        Step::Time => {
            pair.step();
        }
    }
}

/// The step's frame. Its PSN is given as the distance from the one that `to` waits for.
fn forge(pair: &Pair, to: usize, step: &Step) -> Vec<u8> {
    let Step::Forge { opcode, psn, ack_request, ext, payload, .. } = step else { return vec![] };
    let end = &pair.ends[to];
    let qp = end.engine.qp(end.qpn).expect("it exists");
    let base = if opcode::row(*opcode).operation.is_response() {
        qp.requester().unacknowledged_psn()
    } else {
        qp.expected_psn()
    };
    let psn = Psn::new(base.get().wrapping_add_signed(*psn));
    let bth = BthFields { psn, ack_request: *ack_request, ..BthFields::default() };
    frame(to, *opcode, bth, ext, *payload)
}

/// A frame for end `to` as its peer would send it: `ext` is cut to the opcode's extension headers,
/// the payload is `payload` bytes of 0x5A.
pub(crate) fn frame(
    to: usize,
    opcode: u8,
    bth: BthFields,
    ext: &[u8; 32],
    payload: usize,
) -> Vec<u8> {
    let (me, peer) = (to as u8 + 1, 2 - to as u8);
    let flow = Flow {
        source_mac: [2, 0, 0, 0, 0, peer],
        dest_mac: [2, 0, 0, 0, 0, me],
        vlan_tci: None,
        source_ip: [192, 0, 2, peer].into(),
        dest_ip: [192, 0, 2, me].into(),
        traffic_class: ext[31],
        hop_limit: 1,
        flow_label: 0,
        source_port: 1,
        pkey: 0xFFFF,
        dest_qpn: Qpn::new(0x11 * u32::from(me)),
    };
    let template = Template::new(&flow).expect("one family");
    let row = opcode::row(opcode);
    let mut frame = vec![0x5A; template.frame_len(row, payload)];
    let headers = usize::from(row.header_len) - 12;
    frame[template.len()..template.len() + headers].copy_from_slice(&ext[..headers]);
    template.finish(&mut frame, row, payload, bth);
    frame
}

/// One step: a byte for its kind, and its fields.
fn step(bytes: &mut Bytes<'_>) -> Step {
    let kind = bytes.next();
    let (end, flag) = (usize::from(kind >> 7), kind & 0x40 != 0);
    match kind & 0x3F {
        0..8 => Step::Post { from: end, opcode: kind & 7, length: bytes.length(), fence: flag },
        8..16 => Step::Receive { to: end, length: bytes.length() },
        16..32 => Step::Transmit { from: end, lose: flag },
        32..40 => Step::Time,
        _ => {
            let (opcode, psn) = (bytes.next(), bytes.distance());
            let ext = match kind & 3 {
                0 => region_header(bytes.length().into(), bytes.length()),
                1 => [bytes.next(); 32],
                _ => std::array::from_fn(|_| bytes.next()),
            };
            let payload = if kind & 4 != 0 { 256 } else { bytes.length() as usize };
            Step::Forge { to: end, opcode, psn, ack_request: flag, ext, payload }
        }
    }
}

/// A RETH (or the start of an AtomicETH) of the region that both ends have.
pub(crate) fn region_header(va: u64, length: u32) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&va.to_be_bytes());
    bytes[8..12].copy_from_slice(&7u32.to_be_bytes());
    bytes[12..16].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// Bytes that are used up from the front.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn length(&mut self) -> u32 {
        u32::from(u16::from_le_bytes([self.next(), self.next()])) % (LENGTH_MAX + 1)
    }

    /// A PSN distance: mostly small, sometimes at the window's borders.
    fn distance(&mut self) -> i32 {
        match self.next() {
            0x80 => -(1 << 23),
            0x7F => (1 << 23) - 1,
            0x7E => i32::from_le_bytes([self.next(), self.next(), self.next(), 0]),
            near => i32::from(near.cast_signed()),
        }
    }
}

const GUARD: Range<usize> = 0x3000..0x4000;
