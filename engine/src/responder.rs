//! The responder: the peer's requests become memory accesses, completions and answers (IBTA vol 1,
//! 9.7.4 and 9.7.5; rules S).
//!
//! A packet is judged by its PSN, then executed whole or refused with a code. Answers are only
//! remembered here and leave when the link has room, so acknowledgements coalesce by themselves. It
//! must not know where bytes live nor how headers look.

use alloc::boxed::Box;
use alloc::vec;

use crate::counters::Counter;
use crate::credits;
use crate::datagram;
use crate::engine::{Port, Room, Train};
use crate::face::{Access, Atomic, Completion, CompletionKind, Event, Face, Hold, Place, Status};
use crate::numbers::{Nanos, Psn, Qpn, RKey};
use crate::packet::{
    AtomicAckEth, BthFields, Ext, Operation, Packet, Payload, Position, Reth, Syndrome, aeth,
    nak_code, opcode,
};
use crate::qp::{AckMode, Qp, Service, State};
use crate::reason::Reason;
use crate::requester;

/// Longest message that may be announced (rule S-43).
const MESSAGE_LEN_MAX: u32 = 1 << 31;

/// What has been said about the packets that follow the expected one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Gap {
    /// Nothing: the next packet ahead raises a NAK (rule S-30).
    #[default]
    None,
    /// A NAK sequence error: silence until the expected packet comes.
    NakSent,
    /// An RNR NAK: silence too (rule S-35).
    RnrSent,
}

/// The message that is being received.
#[derive(Clone, Copy, Debug, Default)]
struct Message {
    /// Receive buffer of a SEND or WRITE WITH IMMEDIATE; kept when its packet must be sent again.
    receive: Option<Place>,
    /// Region of a WRITE; `None` for zero length.
    region: Option<Place>,
    /// Bytes that have arrived.
    offset: u32,
    /// Bytes announced by a WRITE's RETH.
    length: u32,
    /// The message started here, not in a register that software wrote.
    started: bool,
}

/// An acknowledgement that has to leave.
#[derive(Clone, Copy, Debug)]
struct Answer {
    psn: Psn,
    syndrome: Syndrome,
}

/// A READ or atomic that was executed; kept for answering and for duplicates (rule S-24).
#[derive(Clone, Copy, Debug)]
struct Resource {
    first_psn: Psn,
    packets: u32,
    mtu_log2: u8,
    place: Place,
    va: u64,
    rkey: RKey,
    length: u32,
    /// The value before, for atomics.
    original: Option<u64>,
    /// Answers `next..packets` are owed; `start` is where this round began.
    next: u32,
    start: u32,
    replay: bool,
}

impl Resource {
    const VACANT: Option<Self> = None;

    const fn owed(&self) -> bool {
        self.next < self.packets
    }
}

/// Receive side of a queue pair.
#[derive(Debug)]
pub struct Responder {
    expected_psn: Psn,
    msn: u32,
    last_opcode: u8,
    gap: Gap,
    message: Message,
    answer: Option<Answer>,
    ack_deadline: Nanos,
    /// Ring of the newest resources; `resources_end` counts them all.
    resources: Box<[Option<Resource>]>,
    resources_end: u32,
    owed: u32,
    stalled: bool,
    /// A valid packet has arrived in RTR.
    heard: bool,
}

impl Default for Responder {
    fn default() -> Self {
        Self {
            expected_psn: Psn::default(),
            msn: 0,
            last_opcode: opcode::SEND_ONLY,
            gap: Gap::None,
            message: Message::default(),
            answer: None,
            ack_deadline: Nanos::NEVER,
            resources: Box::default(),
            resources_end: 0,
            owed: 0,
            stalled: false,
            heard: false,
        }
    }
}

impl Responder {
    /// Messages completed, modulo 2^24.
    #[must_use]
    pub const fn msn(&self) -> u32 {
        self.msn
    }

    /// BTH.OpCode of the last request packet accepted.
    #[must_use]
    pub const fn last_opcode(&self) -> u8 {
        self.last_opcode
    }

    /// READ and atomic answers that are owed to the peer.
    #[must_use]
    pub const fn answers_owed(&self) -> u32 {
        self.owed
    }

    pub(crate) const fn expected_psn(&self) -> Psn {
        self.expected_psn
    }

    pub(crate) fn set_expected(&mut self, psn: Psn, last_opcode: u8) {
        self.expected_psn = psn;
        self.last_opcode = last_opcode;
        self.message.started = false;
        self.gap = Gap::None;
    }

    pub(crate) fn set_msn(&mut self, msn: u32) {
        self.msn = msn & 0x00FF_FFFF;
    }

    pub(crate) const fn deadline(&self) -> Nanos {
        self.ack_deadline
    }

    #[inline]
    pub(crate) const fn pending(&self) -> bool {
        (self.owed != 0 && !self.stalled) || (self.answer.is_some() && self.owed == 0)
    }

    /// Forgets everything but the expected PSN, the last opcode and the rings' memory.
    pub(crate) fn reset(&mut self) {
        let mut resources = core::mem::take(&mut self.resources);
        resources.fill(Resource::VACANT);
        let (expected_psn, last_opcode) = (self.expected_psn, self.last_opcode);
        *self = Self { resources, expected_psn, last_opcode, ..Self::default() };
    }

    /// Makes room for `depth` READs and atomics; the newest that are kept stay.
    pub(crate) fn prepare(&mut self, depth: u8) {
        if self.resources.len() == usize::from(depth) {
            return;
        }
        let mut resources = vec![Resource::VACANT; usize::from(depth)].into_boxed_slice();
        let newest_first = self.slots().rev().map(|slot| self.resources[slot]);
        for (to, kept) in resources.iter_mut().rev().zip(newest_first) {
            *to = kept;
        }
        self.owed = resources.iter().flatten().filter(|kept| kept.owed()).count() as u32;
        self.resources = resources;
        self.resources_end = depth.into();
    }

    pub(crate) fn kick(&mut self) {
        self.stalled = false;
    }

    /// Nothing more is answered.
    pub(crate) fn silence(&mut self) {
        self.answer = None;
        self.owed = 0;
        self.resources.fill(Resource::VACANT);
        self.ack_deadline = Nanos::NEVER;
    }

    /// Takes a receive buffer, or the one that an earlier try or a dropped message left.
    #[inline(always)]
    pub(crate) fn take_receive(&mut self, qpn: Qpn, face: &mut impl Face) -> Result<Place, Hold> {
        match self.message.receive.take() {
            Some(place) => Ok(place),
            None => face.receive(qpn),
        }
    }

    /// Leaves a receive buffer for the next message.
    pub(crate) const fn return_receive(&mut self, place: Place) {
        self.message.receive = Some(place);
    }

    /// Drops the message in progress; its receive buffer waits for the next one (rule U-03).
    fn abandon(&mut self) {
        self.message = Message { receive: self.message.receive, ..Message::default() };
        self.last_opcode = opcode::SEND_ONLY;
    }

    fn keep(&mut self, resource: Resource) {
        let depth = self.resources.len() as u32;
        if depth == 0 {
            return;
        }
        let slot = (self.resources_end % depth) as usize;
        // A replay of the oldest that is still owed gives way; the peer asks again.
        self.owed -= u32::from(self.resources[slot].is_some_and(|old| old.owed()));
        self.resources[slot] = Some(resource);
        self.resources_end = self.resources_end.wrapping_add(1);
        self.owed += 1;
    }

    /// Slots of the kept resources, oldest first.
    fn slots(&self) -> impl DoubleEndedIterator<Item = usize> + use<> {
        let depth = self.resources.len() as u32;
        let end = self.resources_end;
        (1..=depth).rev().map(move |back| (end.wrapping_sub(back) % depth) as usize)
    }

    /// The first resource in PSN order that is owed an answer (rule S-25).
    fn first_owed(&self) -> Option<usize> {
        self.slots().find(|&slot| self.resources[slot].is_some_and(|r| r.owed()))
    }

    /// Whether a NAK or RNR NAK has not left yet.
    const fn nak_waits(&self) -> bool {
        matches!(self.answer, Some(Answer { syndrome: Syndrome::Nak(_) | Syndrome::Rnr(_), .. }))
    }

    fn acknowledge_through(&mut self, psn: Psn) {
        self.ack_deadline = Nanos::NEVER;
        // A NAK that has not left yet acknowledges as much, and must not be lost.
        if !self.nak_waits() {
            self.answer = Some(Answer { psn, syndrome: Syndrome::Ack(0) });
        }
    }
}

/// How a request packet is refused.
enum Refusal {
    /// A fatal NAK with this code: the queue pair goes to the error state.
    Nak(u8, Reason),
    /// The same, and the receive buffer of the message completes with this status.
    Receive(u8, Reason, Status),
    /// No receive buffer: RNR NAK.
    NotReady,
    /// Nothing happens; the peer will send it again.
    Drop(Reason),
}

impl Refusal {
    const fn invalid(reason: Reason) -> Self {
        Self::Nak(nak_code::INVALID_REQUEST, reason)
    }

    const fn too_long(reason: Reason) -> Self {
        Self::Receive(nak_code::INVALID_REQUEST, reason, Status::LocalLength)
    }

    const fn access(reason: Reason) -> Self {
        Self::Nak(nak_code::REMOTE_ACCESS, reason)
    }

    /// A hold that a region's bytes met.
    const fn of_region(hold: Hold) -> Self {
        match hold {
            Hold::Stall => Self::Drop(Reason::QpNotReady),
            Hold::Fault(reason) => Self::access(reason),
        }
    }
}

// What arrives.

/// Hands a whole frame to a queue pair whose software reads frames.
///
/// # Errors
/// No buffer, or the buffer cannot take it.
fn raw_frame(qp: &mut Qp, packet: &Packet<'_>, face: &mut impl Face) -> Result<(), Reason> {
    let end = packet.icrc_offset() + 4;
    match face.receive_frame(qp.qpn, &packet.frame[..end]) {
        Ok(()) => Ok(()),
        Err(Hold::Stall) => {
            qp.counters.count(Counter::OutOfBuffer);
            Err(Reason::ReceiverNotReady)
        }
        Err(Hold::Fault(reason)) => Err(reason),
    }
}

/// Takes a request of the peer.
///
/// # Errors
/// Why it was not executed. Whatever has to be answered is remembered.
pub(crate) fn handle(
    qp: &mut Qp,
    now: Nanos,
    packet: &Packet<'_>,
    face: &mut impl Face,
    duplicate: &mut bool,
) -> Result<(), Reason> {
    let result = match qp.attributes.service {
        Service::Rc => reliable(qp, now, packet, face, duplicate),
        Service::Uc => unreliable(qp, packet, face),
        Service::Ud => datagram::handle(qp, packet, face),
        Service::RawFrame => raw_frame(qp, packet, face),
    };
    // Rule S-67. A packet that only lacked a buffer is valid; one of a former connection is not.
    let valid = matches!(result, Ok(()) | Err(Reason::ReceiverNotReady)) && !*duplicate;
    if valid && qp.state == State::Rtr && !core::mem::replace(&mut qp.responder.heard, true) {
        face.event(Event::CommunicationEstablished(qp.qpn));
    }
    result
}

#[inline(always)]
fn reliable(
    qp: &mut Qp,
    now: Nanos,
    packet: &Packet<'_>,
    face: &mut impl Face,
    duplicate: &mut bool,
) -> Result<(), Reason> {
    let psn = packet.bth.psn();
    match psn.distance_from(qp.responder.expected_psn) {
        0 => {}
        1.. => return Err(ahead(qp)),
        _ => {
            *duplicate = true;
            qp.counters.count(Counter::DuplicateRequest);
            return replay(qp, packet, face);
        }
    }
    match execute(qp, packet, face) {
        Ok(psns) => {
            accepted(qp, packet, psns);
            acknowledge(qp, now, packet);
            Ok(())
        }
        Err(Refusal::Drop(reason)) => Err(reason),
        Err(Refusal::NotReady) => {
            qp.counters.count(Counter::OutOfBuffer);
            qp.responder.gap = Gap::RnrSent;
            let syndrome = Syndrome::Rnr(qp.attributes.min_rnr_timer);
            qp.responder.answer = Some(Answer { psn, syndrome });
            qp.responder.ack_deadline = Nanos::NEVER;
            face.event(Event::ReceiverNotReady(qp.qpn));
            Err(Reason::ReceiverNotReady)
        }
        Err(Refusal::Nak(code, reason)) => {
            refuse(qp, psn, code, reason, face);
            Err(reason)
        }
        Err(Refusal::Receive(code, reason, status)) => {
            fail_receive(qp, status, reason, face);
            refuse(qp, psn, code, reason, face);
            Err(reason)
        }
    }
}

/// A packet of an unreliable connection (rules U-01 to U-06): nothing is answered, and whatever is
/// wrong ends the message in progress, not the queue pair.
fn unreliable(qp: &mut Qp, packet: &Packet<'_>, face: &mut impl Face) -> Result<(), Reason> {
    let psn = packet.bth.psn();
    let in_sequence = psn == qp.responder.expected_psn;
    let starts = packet.row.position.starts();
    if !in_sequence {
        qp.counters.count(Counter::OutOfSequence);
    }
    // Rule U-02: a message also ends unfinished where the peer gave it up and starts another.
    if !in_sequence || starts {
        qp.responder.abandon();
    }
    qp.responder.expected_psn = psn.plus(1);
    if !in_sequence && !starts {
        return Err(Reason::PsnResync);
    }
    let refused = match execute(qp, packet, face) {
        Ok(_) => {
            accepted(qp, packet, 0);
            return Ok(());
        }
        Err(Refusal::NotReady) => {
            qp.counters.count(Counter::OutOfBuffer);
            Reason::ReceiverNotReady
        }
        // Our own trouble, not the peer's: the queue pair fails, as a reliable one would.
        Err(Refusal::Nak(nak_code::REMOTE_OPERATIONAL, reason)) => {
            requester::enter_error(qp, reason, false, face);
            return Err(reason);
        }
        Err(Refusal::Receive(nak_code::REMOTE_OPERATIONAL, reason, status)) => {
            fail_receive(qp, status, reason, face);
            requester::enter_error(qp, reason, false, face);
            return Err(reason);
        }
        Err(Refusal::Nak(_, reason) | Refusal::Receive(_, reason, _) | Refusal::Drop(reason)) => {
            reason
        }
    };
    qp.responder.abandon();
    Err(refused)
}

/// A fatal NAK: it leaves after the answers that are owed, and is the last thing said (rule S-53).
fn refuse(qp: &mut Qp, psn: Psn, code: u8, reason: Reason, face: &mut impl Face) {
    qp.counters.count(match code {
        nak_code::REMOTE_ACCESS => Counter::RespRemoteAccessErrors,
        nak_code::REMOTE_OPERATIONAL => Counter::RespLocalOperation,
        _ => Counter::RespInvalidRequest,
    });
    qp.responder.answer = Some(Answer { psn, syndrome: Syndrome::Nak(code) });
    qp.responder.ack_deadline = Nanos::NEVER;
    requester::enter_error(qp, reason, true, face);
}

/// A packet before this one is missing (rules S-30, S-35).
fn ahead(qp: &mut Qp) -> Reason {
    qp.counters.count(Counter::OutOfSequence);
    let responder = &mut qp.responder;
    match responder.gap {
        Gap::RnrSent => Reason::PsnBehindReceiverNotReady,
        Gap::NakSent => Reason::PsnAhead,
        Gap::None => {
            responder.gap = Gap::NakSent;
            responder.ack_deadline = Nanos::NEVER;
            let syndrome = Syndrome::Nak(nak_code::PSN_SEQUENCE);
            responder.answer = Some(Answer { psn: responder.expected_psn, syndrome });
            Reason::PsnAhead
        }
    }
}

/// The packet at the expected PSN was executed: PSN and MSN follow.
#[inline(always)]
fn accepted(qp: &mut Qp, packet: &Packet<'_>, psns: u32) {
    let responder = &mut qp.responder;
    responder.expected_psn = responder.expected_psn.plus(psns);
    responder.last_opcode = packet.bth.opcode;
    if responder.gap != Gap::None {
        responder.gap = Gap::None;
        // A NAK that has not left is about this packet; what it acknowledges is still owed.
        if responder.nak_waits() {
            let psn = responder.expected_psn.minus(1);
            responder.answer = Some(Answer { psn, syndrome: Syndrome::Ack(0) });
        }
    }
    if packet.row.position.ends() {
        responder.msn = (responder.msn + 1) & 0x00FF_FFFF;
        // A buffer that a dropped message left is still there for the next one.
        responder.message = Message { receive: responder.message.receive, ..Message::default() };
    }
}

/// What is said about a packet that was executed.
#[inline(always)]
fn acknowledge(qp: &mut Qp, now: Nanos, packet: &Packet<'_>) {
    let policy = &qp.attributes.policy;
    let responder = &mut qp.responder;
    if !matches!(packet.row.operation, Operation::Send | Operation::Write) {
        // The answer itself acknowledges everything before it (rule Q-21).
        responder.answer = None;
        responder.ack_deadline = Nanos::NEVER;
    } else if packet.bth.ack_requested() && policy.ack_mode != AckMode::OnTimeout {
        responder.acknowledge_through(packet.bth.psn());
    } else if policy.ack_mode != AckMode::OnRequest && responder.ack_deadline == Nanos::NEVER {
        responder.ack_deadline = now.after(policy.ack_delay_ns);
    }
}

/// The time to hold an acknowledgement back is over.
pub(crate) fn handle_timeout(qp: &mut Qp, now: Nanos) {
    if qp.responder.ack_deadline <= now {
        let psn = qp.responder.expected_psn.minus(1);
        qp.responder.acknowledge_through(psn);
    }
}

/// A request that was executed before (rules S-20 to S-26): never again, but for READ.
fn replay(qp: &mut Qp, packet: &Packet<'_>, face: &mut impl Face) -> Result<(), Reason> {
    match packet.row.operation {
        Operation::Send | Operation::Write => {
            // Chosen: always acknowledged, as rxe does, whether asked for or not (rule S-20).
            let psn = qp.responder.expected_psn.minus(1);
            qp.responder.acknowledge_through(psn);
            Ok(())
        }
        Operation::ReadRequest => {
            let Some(reth) = packet.reth() else { return Err(Reason::FrameTooShort) };
            replay_read(qp, packet.bth.psn(), reth, face)
        }
        Operation::CompareSwap | Operation::FetchAdd => replay_atomic(qp, packet.bth.psn()),
        _ => Err(Reason::OpcodeUnknown),
    }
}

fn replay_read(qp: &mut Qp, psn: Psn, reth: &Reth, face: &mut impl Face) -> Result<(), Reason> {
    let responder = &mut qp.responder;
    let found = responder.slots().find_map(|slot| {
        let resource = responder.resources[slot]?;
        let k = psn.since(resource.first_psn);
        let fits = k < resource.packets
            && resource.original.is_none()
            && reth.key() == resource.rkey
            && reth.va.get() == resource.va.wrapping_add(u64::from(k) << resource.mtu_log2)
            && reth.dma_length.get() == resource.length - (k << resource.mtu_log2);
        fits.then_some((slot, resource, k))
    });
    let (slot, resource, k) = found.ok_or(Reason::DuplicateNotReplayable)?;
    if resource.length != 0 {
        // Chosen: a replay whose key is no longer good is silent (rule S-27).
        face.grant(qp.qpn, resource.rkey, resource.va, resource.length, Access::Read)?;
    }
    let was_owed = u32::from(resource.owed());
    responder.resources[slot] = Some(Resource { next: k, start: k, replay: true, ..resource });
    responder.owed += 1 - was_owed;
    Ok(())
}

fn replay_atomic(qp: &mut Qp, psn: Psn) -> Result<(), Reason> {
    let responder = &mut qp.responder;
    let slot = responder.slots().find(|&slot| {
        responder.resources[slot].is_some_and(|r| r.original.is_some() && r.first_psn == psn)
    });
    let slot = slot.ok_or(Reason::DuplicateNotReplayable)?;
    if let Some(resource) = &mut responder.resources[slot]
        && !resource.owed()
    {
        resource.next = 0;
        resource.replay = true;
        responder.owed += 1;
    }
    Ok(())
}

// Execution at the expected PSN.

/// Executes a packet; returns the PSNs that it takes.
#[inline(always)]
fn execute(qp: &mut Qp, packet: &Packet<'_>, face: &mut impl Face) -> Result<u32, Refusal> {
    check_sequence(qp, packet)?;
    check_payload(qp, packet)?;
    let access = qp.attributes.remote_access;
    let enabled = match packet.row.operation {
        Operation::Write => access.write,
        Operation::ReadRequest => access.read,
        Operation::CompareSwap | Operation::FetchAdd => access.atomic,
        _ => true,
    };
    if !enabled {
        return Err(Refusal::invalid(Reason::OperationDisabled));
    }
    match packet.row.operation {
        Operation::Send => send(qp, packet, face).map(|()| 1),
        Operation::Write => write(qp, packet, face).map(|()| 1),
        Operation::ReadRequest => read(qp, packet, face),
        Operation::CompareSwap | Operation::FetchAdd => atomic(qp, packet, face).map(|()| 1),
        _ => Err(Refusal::invalid(Reason::OperationUnsupported)),
    }
}

/// Rule S-40: what may follow the last opcode.
#[inline(always)]
fn check_sequence(qp: &Qp, packet: &Packet<'_>) -> Result<(), Refusal> {
    if !packet.row.is_known() {
        return Err(Refusal::invalid(Reason::OpcodeUnknown));
    }
    let last = opcode::row(qp.responder.last_opcode);
    let open = matches!(last.position, Position::First | Position::Middle)
        && matches!(last.operation, Operation::Send | Operation::Write);
    let fits = if packet.row.position.starts() {
        !open
    } else {
        open && last.operation == packet.row.operation && qp.responder.message.started
    };
    if fits {
        Ok(())
    } else if open && !qp.responder.message.started {
        Err(Refusal::invalid(Reason::LastOpcodeUnset))
    } else {
        Err(Refusal::invalid(Reason::OpcodeSequence))
    }
}

/// Rule S-42: how much payload an opcode carries.
#[inline(always)]
fn check_payload(qp: &Qp, packet: &Packet<'_>) -> Result<(), Refusal> {
    let len = packet.payload().len();
    let mtu = qp.attributes.path_mtu.bytes() as usize;
    let fits = match packet.row.payload {
        Payload::None => len == 0,
        Payload::Full => len == mtu,
        Payload::OneToFull => (1..=mtu).contains(&len),
        Payload::ZeroToFull => len <= mtu,
        Payload::Eight => len == 8,
    };
    if fits { Ok(()) } else { Err(Refusal::invalid(Reason::PayloadLength)) }
}

#[inline(always)]
fn send(qp: &mut Qp, packet: &Packet<'_>, face: &mut impl Face) -> Result<(), Refusal> {
    let qpn = qp.qpn;
    let empty = packet.row.position == Position::Only && packet.payload().is_empty();
    if empty && !qp.attributes.policy.zero_length_send {
        return Err(Refusal::invalid(Reason::MessageEmpty));
    }
    if packet.row.position.starts() {
        let receive = take_receive(qp, face)?;
        qp.responder.message =
            Message { receive: Some(receive), started: true, ..Message::default() };
    }
    let message = qp.responder.message;
    let Some(place) = message.receive else {
        return Err(Refusal::invalid(Reason::OpcodeSequence));
    };
    let payload = packet.payload();
    let end = u64::from(message.offset) + payload.len() as u64;
    if end > u64::from(qp.attributes.policy.max_message_len.min(MESSAGE_LEN_MAX)) {
        return Err(Refusal::too_long(Reason::MessageTooLong));
    }
    if end > u64::from(place.length) {
        return Err(Refusal::too_long(Reason::ReceiveTooSmall));
    }
    if !payload.is_empty() {
        match face.scatter(qpn, place, message.offset, payload) {
            Ok(()) => {}
            Err(Hold::Stall) => return Err(Refusal::Drop(Reason::QpNotReady)),
            Err(Hold::Fault(reason)) => {
                let status = Status::LocalProtection;
                return Err(Refusal::Receive(nak_code::REMOTE_OPERATIONAL, reason, status));
            }
        }
    }
    qp.responder.message.offset = end as u32;
    if !packet.row.position.ends() {
        return Ok(());
    }
    let invalidated = packet.ieth().map(|ieth| RKey(ieth.rkey.get()));
    if let Some(key) = invalidated
        && let Err(reason) = face.invalidate(qpn, key)
    {
        // Chosen for rule S-65: the receive fails and so does the queue pair, with a NAK.
        let status = Status::LocalQpOperation;
        return Err(Refusal::Receive(nak_code::REMOTE_ACCESS, reason, status));
    }
    qp.counters.count(Counter::SendMessages);
    let kind = CompletionKind::Receive {
        place: Some(place),
        length: end as u32,
        by_write: false,
        immediate: packet.immdt().map(|immdt| immdt.immediate.get()),
        invalidated,
        solicited: packet.bth.solicited(),
        source_qpn: None,
    };
    complete_receive(qp, kind, face)
}

fn write(qp: &mut Qp, packet: &Packet<'_>, face: &mut impl Face) -> Result<(), Refusal> {
    let payload = packet.payload();
    if let Some(reth) = packet.reth() {
        start_write(qp, packet, reth, face)?;
    }
    let message = qp.responder.message;
    let remaining = (message.length - message.offset) as usize;
    // Rule S-44: the payload must add up to what RETH announced.
    let fits = match packet.row.position {
        Position::Only | Position::Last => payload.len() == remaining,
        Position::First | Position::Middle => payload.len() < remaining,
    };
    if !fits {
        return Err(Refusal::invalid(Reason::PayloadLength));
    }
    let immediate = packet.immdt().map(|immdt| immdt.immediate.get());
    let takes = immediate.is_some() && qp.attributes.policy.immediate_takes_receive;
    let receive = if takes { Some(take_receive(qp, face)?) } else { None };
    if receive.is_some() {
        qp.responder.message.receive = receive;
    }
    if let Some(region) = message.region
        && !payload.is_empty()
    {
        face.scatter(qp.qpn, region, message.offset, payload).map_err(Refusal::of_region)?;
    }
    qp.responder.message.offset += payload.len() as u32;
    if !packet.row.position.ends() {
        return Ok(());
    }
    qp.counters.count(Counter::WriteRequests);
    if immediate.is_none() {
        return Ok(());
    }
    let kind = CompletionKind::Receive {
        place: receive,
        length: message.length,
        by_write: true,
        immediate,
        invalidated: None,
        solicited: packet.bth.solicited(),
        source_qpn: None,
    };
    complete_receive(qp, kind, face)
}

fn start_write(
    qp: &mut Qp,
    packet: &Packet<'_>,
    reth: &Reth,
    face: &mut impl Face,
) -> Result<(), Refusal> {
    let length = reth.dma_length.get();
    if length > qp.attributes.policy.max_message_len.min(MESSAGE_LEN_MAX) {
        return Err(Refusal::invalid(Reason::MessageTooLong));
    }
    // A WRITE of one packet must fit in it; checked before the key, as rule S-44 lists it.
    if packet.row.position == Position::Only && length as usize != packet.payload().len() {
        return Err(Refusal::invalid(Reason::PayloadLength));
    }
    let region = if length == 0 {
        None
    } else {
        let granted = face.grant(qp.qpn, reth.key(), reth.va.get(), length, Access::Write);
        Some(granted.map_err(Refusal::access)?)
    };
    let receive = qp.responder.message.receive;
    qp.responder.message = Message { receive, region, offset: 0, length, started: true };
    Ok(())
}

fn read(qp: &mut Qp, packet: &Packet<'_>, face: &mut impl Face) -> Result<u32, Refusal> {
    let Some(reth) = packet.reth() else { return Err(Refusal::Drop(Reason::FrameTooShort)) };
    let length = reth.dma_length.get();
    if length > qp.attributes.policy.max_message_len.min(MESSAGE_LEN_MAX) {
        return Err(Refusal::invalid(Reason::MessageTooLong));
    }
    check_depth(qp)?;
    let (rkey, va) = (reth.key(), reth.va.get());
    let place = if length == 0 {
        Place::default()
    } else {
        face.grant(qp.qpn, rkey, va, length, Access::Read).map_err(Refusal::access)?
    };
    let mtu_log2 = qp.attributes.path_mtu.log2();
    let packets = length.div_ceil(1 << mtu_log2).max(1);
    qp.counters.count(Counter::ReadRequests);
    qp.responder.keep(Resource {
        first_psn: packet.bth.psn(),
        packets,
        mtu_log2,
        place,
        va,
        rkey,
        length,
        original: None,
        next: 0,
        start: 0,
        replay: false,
    });
    Ok(packets)
}

fn atomic(qp: &mut Qp, packet: &Packet<'_>, face: &mut impl Face) -> Result<(), Refusal> {
    let Some(header) = packet.atomic_eth() else {
        return Err(Refusal::Drop(Reason::FrameTooShort));
    };
    let (va, rkey) = (header.va.get(), RKey(header.rkey.get()));
    if !va.is_multiple_of(8) {
        return Err(Refusal::invalid(Reason::AddressAlignment));
    }
    check_depth(qp)?;
    let place = face.grant(qp.qpn, rkey, va, 8, Access::Atomic).map_err(Refusal::access)?;
    let swap_or_add = header.swap_or_add.get();
    let operation = match packet.row.operation {
        Operation::CompareSwap => {
            Atomic::CompareSwap { compare: header.compare.get(), swap: swap_or_add }
        }
        _ => Atomic::FetchAdd { add: swap_or_add },
    };
    let original = face.atomic(qp.qpn, place, operation).map_err(Refusal::of_region)?;
    qp.counters.count(Counter::AtomicRequests);
    qp.responder.keep(Resource {
        first_psn: packet.bth.psn(),
        packets: 1,
        mtu_log2: qp.attributes.path_mtu.log2(),
        place,
        va,
        rkey,
        length: 8,
        original: Some(original),
        next: 0,
        start: 0,
        replay: false,
    });
    Ok(())
}

/// Rule S-51: no more READs and atomics at once than the depth. An answer that is only being given
/// again does not count: the peer may have had it meanwhile, and gone on.
fn check_depth(qp: &Qp) -> Result<(), Refusal> {
    let responder = &qp.responder;
    let oldest = responder.slots().next().map(|slot| responder.resources[slot]);
    match oldest {
        Some(oldest) if !oldest.is_some_and(|old| old.owed() && !old.replay) => Ok(()),
        _ => Err(Refusal::invalid(Reason::TooManyReads)),
    }
}

#[inline(always)]
fn take_receive(qp: &mut Qp, face: &mut impl Face) -> Result<Place, Refusal> {
    match qp.responder.take_receive(qp.qpn, face) {
        Ok(place) => Ok(place),
        Err(Hold::Stall) => Err(Refusal::NotReady),
        Err(Hold::Fault(reason)) => Err(Refusal::Nak(nak_code::REMOTE_OPERATIONAL, reason)),
    }
}

/// The completion shows before the acknowledgement leaves.
#[inline(always)]
fn complete_receive(
    qp: &mut Qp,
    kind: CompletionKind,
    face: &mut impl Face,
) -> Result<(), Refusal> {
    if matches!(kind, CompletionKind::Receive { place: Some(_), .. }) {
        qp.responder.message.receive = None;
    }
    let what = Completion { kind, status: Status::Success, reason: None };
    face.complete(qp.qpn, what).map_err(|reason| Refusal::Nak(nak_code::REMOTE_OPERATIONAL, reason))
}

/// The receive buffer of the message in progress, if there is one, completes in error.
pub(crate) fn fail_receive(qp: &mut Qp, status: Status, reason: Reason, face: &mut impl Face) {
    let Some(place) = qp.responder.message.receive.take() else { return };
    qp.counters.count(Counter::RespCqeError);
    if status == Status::LocalLength {
        qp.counters.count(Counter::RespLocalLengthError);
    }
    let kind = CompletionKind::Receive {
        place: Some(place),
        length: 0,
        by_write: false,
        immediate: None,
        invalidated: None,
        solicited: true,
        source_qpn: None,
    };
    // A full queue reports itself; the queue pair fails either way.
    let _ = face.complete(qp.qpn, Completion { kind, status, reason: Some(reason) });
}

// What leaves.

/// Writes the next answer: READ and atomic answers first, because an acknowledgement that is
/// remembered is always for a later PSN (rule S-12).
pub(crate) fn poll(
    qp: &mut Qp,
    port: &Port,
    room: &mut Room<'_>,
    face: &mut impl Face,
) -> Option<Train> {
    if !qp.responder.pending() {
        return None;
    }
    if qp.responder.owed != 0 {
        if let Some(slot) = qp.responder.first_owed() {
            return poll_resource(qp, slot, port, room, face);
        }
        qp.responder.owed = 0;
    }
    poll_acknowledgement(qp, port, room, face)
}

/// Writes the acknowledgement that is remembered. No READ or atomic answer is owed.
pub(crate) fn poll_acknowledgement(
    qp: &mut Qp,
    port: &Port,
    room: &mut Room<'_>,
    face: &mut impl Face,
) -> Option<Train> {
    let mut answer = qp.responder.answer.take()?;
    if let Syndrome::Ack(code) = &mut answer.syndrome {
        *code = credit_code(qp, face);
    }
    let syndrome = answer.syndrome.byte();
    let row = opcode::row(opcode::ACKNOWLEDGE);
    let msn = qp.responder.msn;
    let bth = BthFields { psn: answer.psn, migrated: true, ..BthFields::default() };
    let qpn = qp.qpn;
    let template = qp.template(port)?;
    let at = template.len();
    let len = template.frame_len(row, 0);
    let frame = room.bytes.get_mut(..len)?;
    put_aeth(&mut frame[at..at + 4], syndrome, msn);
    template.finish(frame, row, 0, bth);
    if matches!(answer.syndrome, Syndrome::Rnr(_)) {
        qp.counters.count(Counter::RnrNakSent);
    }
    Some(Train {
        len,
        header: len as u16,
        segment: 0,
        segments: 1,
        qpn,
        opcode: row.value,
        psn: answer.psn,
        syndrome: Some(syndrome),
        retransmission: false,
        flow_control: false,
    })
}

/// Rule S-17: the credits that an acknowledgement carries when it leaves.
fn credit_code(qp: &Qp, face: &mut impl Face) -> u8 {
    if !qp.attributes.policy.end_to_end_credits {
        return credits::NOT_VALID;
    }
    face.receives_posted(qp.qpn).map_or(credits::NOT_VALID, credits::code)
}

fn put_aeth(out: &mut [u8], syndrome: u8, msn: u32) {
    let header = aeth(syndrome, msn);
    out[0] = header.syndrome;
    out[1..4].copy_from_slice(&header.msn);
}

fn poll_resource(
    qp: &mut Qp,
    slot: usize,
    port: &Port,
    room: &mut Room<'_>,
    face: &mut impl Face,
) -> Option<Train> {
    let resource = qp.responder.resources[slot]?;
    let k = resource.next;
    let psn = resource.first_psn.plus(k);
    let position = match (k == resource.start, k + 1 == resource.packets) {
        (true, true) => Position::Only,
        (true, false) => Position::First,
        (false, false) => Position::Middle,
        (false, true) => Position::Last,
    };
    let operation = match resource.original {
        Some(_) => Operation::AtomicAcknowledge,
        None => Operation::ReadResponse,
    };
    let row = opcode::row(opcode::rc(operation, position, false, false)?);
    let offset = k << resource.mtu_log2;
    let payload_len = match resource.original {
        Some(_) => 0,
        None => (resource.length - offset).min(1 << resource.mtu_log2) as usize,
    };
    let syndrome = Syndrome::Ack(credit_code(qp, face)).byte();
    let (qpn, msn) = (qp.qpn, qp.responder.msn);
    let template = qp.template(port)?;
    let at = template.len() - 12;
    let payload_at = at + usize::from(row.header_len);
    let len = template.frame_len(row, payload_len);
    let frame = room.bytes.get_mut(..len)?;
    if payload_len != 0 {
        let out = &mut frame[payload_at..payload_at + payload_len];
        match face.gather(qpn, resource.place, offset, out) {
            Ok(()) => {}
            Err(Hold::Stall) => {
                qp.responder.stalled = true;
                return None;
            }
            Err(Hold::Fault(reason)) => {
                // Rule S-61: the NAK stands in for the response at its PSN; nothing follows.
                qp.responder.silence();
                refuse(qp, psn, nak_code::REMOTE_ACCESS, reason, face);
                return poll(qp, port, room, face);
            }
        }
    }
    if let Some(at_aeth) = row.offset_of(Ext::AETH) {
        put_aeth(&mut frame[at + at_aeth..at + at_aeth + 4], syndrome, msn);
    }
    if let (Some(at_value), Some(original)) = (row.offset_of(Ext::ATOMICACKETH), resource.original)
    {
        let value = AtomicAckEth { original: original.into() };
        frame[at + at_value..at + at_value + 8]
            .copy_from_slice(zerocopy::IntoBytes::as_bytes(&value));
    }
    let bth = BthFields { psn, migrated: true, ..BthFields::default() };
    template.finish(frame, row, payload_len, bth);
    let responder = &mut qp.responder;
    responder.resources[slot] = Some(Resource { next: k + 1, ..resource });
    if k + 1 == resource.packets {
        responder.owed -= 1;
    }
    Some(Train {
        len,
        header: payload_at as u16,
        segment: (len - payload_at) as u16,
        segments: 1,
        qpn,
        opcode: row.value,
        psn,
        syndrome: row.ext.has(Ext::AETH).then_some(syndrome),
        retransmission: resource.replay,
        flow_control: false,
    })
}
