//! The requester: work requests become packets, responses become completions (IBTA vol 1, 9.7.3 and
//! 9.7.6; rules Q).
//!
//! One truth drives it: `unacknowledged`, the oldest PSN that the peer has not answered. Everything
//! before it is complete; sending again means moving the cursor back to it. It must not know where
//! bytes live (that is the face's) nor how headers look (that is the template's).

use alloc::boxed::Box;
use alloc::vec;

use crate::counters::Counter;
use crate::credits::Limit;
use crate::datagram;
use crate::engine::{Port, Room, Train};
use crate::face::{
    Completion, CompletionKind, Event, Face, Fetch, Hold, Place, Status, Work, WorkOpcode,
};
use crate::numbers::{Nanos, Psn, Qpn, rnr_timer_ns};
use crate::packet::{
    BthFields, Ext, OpcodeRow, Operation, Packet, Position, Syndrome, icrc, nak_code, opcode, parse,
};
use crate::qp::{Attributes, Qp, Service, State};
use crate::reason::Reason;

/// Longest message that the transport can carry (IBTA vol 1, 9.7.3; rule S-43).
const MESSAGE_LEN_MAX: u32 = 1 << 31;

/// A work request that was taken and is not complete. `packets` counts PSNs.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    work: Work,
    index: u32,
    first_psn: Psn,
    packets: u32,
    /// Path MTU when it was taken; a later change must not move packet borders.
    mtu_log2: u8,
    /// A READ that was asked for again: its answers may start anywhere.
    asked_again: bool,
    /// It cannot be executed; it completes so once everything before it has.
    failed: Option<(Status, Reason)>,
}

impl InFlight {
    const VACANT: Option<Self> = None;

    fn waits_for_data(&self) -> bool {
        matches!(
            self.work.opcode,
            WorkOpcode::Read | WorkOpcode::CompareSwap | WorkOpcode::FetchAdd
        )
    }

    /// Whether it takes a receive buffer of the peer.
    fn takes_receive(&self) -> bool {
        matches!(
            self.work.opcode,
            WorkOpcode::Send | WorkOpcode::SendImm | WorkOpcode::SendInv | WorkOpcode::WriteImm
        )
    }

    /// Bytes of the message before packet `k`.
    fn offset(&self, k: u32) -> u32 {
        k << self.mtu_log2
    }

    /// Bytes of payload in packet `k` of a SEND, WRITE or READ response.
    fn payload_len(&self, k: u32) -> u32 {
        (self.work.length - self.offset(k)).min(1 << self.mtu_log2)
    }
}

/// Send side of a queue pair.
#[derive(Debug)]
pub struct Requester {
    /// Power-of-two ring of entries `head..tail`, by entry number.
    ring: Box<[Option<InFlight>]>,
    head: u32,
    tail: u32,
    /// The entry and the packet in it that is sent next; `tail` where all are sent.
    cursor: u32,
    cursor_packet: u32,
    next_index: u32,
    next_psn: Psn,
    unacknowledged: Psn,
    /// PSNs between `unacknowledged` and `next_psn` that belong to READ responses, less one per READ.
    read_response_psns: u32,
    reads_outstanding: u32,
    ssn: u32,
    packets_since_ack_request: u32,
    deadline: Nanos,
    retries_used: u8,
    rnr_retries_used: u8,
    may_send: bool,
    stalled: bool,
    waiting_rnr: bool,
    /// A NAK for a gap may still come for packets that were sent behind the one that got an RNR NAK.
    gap_nak_owed: bool,
    implied_nak_seen: bool,
    request_ack: bool,
    /// SQD was entered and what had been started has not ended.
    draining: bool,
    credits: Limit,
}

impl Default for Requester {
    fn default() -> Self {
        Self {
            ring: Box::default(),
            head: 0,
            tail: 0,
            cursor: 0,
            cursor_packet: 0,
            next_index: 0,
            next_psn: Psn::default(),
            unacknowledged: Psn::default(),
            read_response_psns: 0,
            reads_outstanding: 0,
            ssn: 0,
            packets_since_ack_request: 0,
            deadline: Nanos::NEVER,
            retries_used: 0,
            rnr_retries_used: 0,
            may_send: false,
            stalled: false,
            waiting_rnr: false,
            gap_nak_owed: false,
            implied_nak_seen: false,
            request_ack: false,
            draining: false,
            credits: Limit::default(),
        }
    }
}

impl Requester {
    /// Work requests taken and not yet complete.
    #[must_use]
    pub const fn in_flight(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// The oldest PSN that is not acknowledged.
    #[must_use]
    pub const fn unacknowledged_psn(&self) -> Psn {
        self.unacknowledged
    }

    /// Index since reset of the next work request to be taken.
    #[must_use]
    pub const fn next_index(&self) -> u32 {
        self.next_index
    }

    /// Request messages started, modulo 2^24 (send sequence number).
    #[must_use]
    pub const fn ssn(&self) -> u32 {
        self.ssn
    }

    /// Retries since the last progress.
    #[must_use]
    pub const fn retries_used(&self) -> u8 {
        self.retries_used
    }

    /// RNR NAKs since the last progress.
    #[must_use]
    pub const fn rnr_retries_used(&self) -> u8 {
        self.rnr_retries_used
    }

    /// Request packets that are not acknowledged; a READ request counts as one.
    #[must_use]
    pub const fn outstanding_packets(&self) -> u32 {
        self.next_psn.since(self.unacknowledged) - self.read_response_psns
    }

    pub(crate) const fn draining(&self) -> bool {
        self.draining
    }

    pub(crate) const fn next_psn(&self) -> Psn {
        self.next_psn
    }

    /// Ignored while anything is in flight: its PSNs are on the wire already.
    pub(crate) fn set_next_psn(&mut self, psn: Psn) {
        if self.head == self.tail {
            self.next_psn = psn;
            self.unacknowledged = psn;
        }
    }

    pub(crate) fn set_retries_used(&mut self, retries: u8, rnr_retries: u8) {
        self.retries_used = retries;
        self.rnr_retries_used = rnr_retries;
    }

    pub(crate) const fn deadline(&self) -> Nanos {
        self.deadline
    }

    #[inline]
    pub(crate) const fn active(&self) -> bool {
        self.may_send && !self.waiting_rnr && !self.stalled
    }

    /// Forgets everything in flight. The ring's memory and the PSN stay.
    pub(crate) fn reset(&mut self) {
        let ring = core::mem::take(&mut self.ring);
        let next_psn = self.next_psn;
        *self = Self { ring, next_psn, unacknowledged: next_psn, ..Self::default() };
    }

    /// Makes the ring hold at least `max_in_flight` entries. Only an empty ring changes.
    pub(crate) fn prepare(&mut self, max_in_flight: u16) {
        let len = usize::from(max_in_flight.max(1)).next_power_of_two();
        if self.head == self.tail && self.ring.len() != len {
            self.ring = vec![InFlight::VACANT; len].into_boxed_slice();
        }
    }

    pub(crate) fn kick(&mut self) {
        self.stalled = false;
        self.may_send = true;
    }

    /// RTS was entered: work may have been posted meanwhile.
    pub(crate) fn resume(&mut self) {
        self.may_send = true;
    }

    fn slot(&self, number: u32) -> usize {
        number as usize & (self.ring.len() - 1)
    }

    #[inline(always)]
    fn entry(&self, number: u32) -> Option<&InFlight> {
        if number == self.tail {
            return None;
        }
        self.ring[self.slot(number)].as_ref()
    }

    /// Points the cursor at a PSN, so that it is sent next.
    fn seek(&mut self, psn: Psn) {
        let mut number = self.head;
        while let Some(entry) = self.entry(number) {
            let k = psn.since(entry.first_psn);
            if k < entry.packets {
                self.cursor = number;
                self.cursor_packet = k;
                return;
            }
            number = number.wrapping_add(1);
        }
        self.cursor = self.tail;
        self.cursor_packet = 0;
    }

    /// A packet left that the rate had held back: the peer could not have answered before, so the
    /// timer starts again (chosen; otherwise a low rate would look like a dead peer).
    pub(crate) fn sent_late(&mut self, now: Nanos, ack_timeout_ns: Option<u64>) {
        if !self.waiting_rnr
            && self.deadline != Nanos::NEVER
            && let Some(timeout_ns) = ack_timeout_ns
        {
            self.deadline = now.after(timeout_ns);
        }
    }

    /// The oldest unacknowledged PSN has moved (rules ): counters start again, so does the
    /// timer, and acknowledged packets are not sent again.
    #[inline(always)]
    fn progress(&mut self, now: Nanos, ack_timeout_ns: Option<u64>) {
        self.retries_used = 0;
        self.rnr_retries_used = 0;
        self.implied_nak_seen = false;
        self.waiting_rnr = false;
        self.gap_nak_owed = false;
        self.may_send = true;
        let outstanding = self.next_psn != self.unacknowledged;
        self.deadline = match ack_timeout_ns {
            Some(timeout_ns) if outstanding => now.after(timeout_ns),
            _ => Nanos::NEVER,
        };
        let behind = self.head.wrapping_sub(self.cursor);
        let cursor_is_late = match self.entry(self.cursor) {
            Some(entry) if behind == 0 => {
                self.unacknowledged.since(entry.first_psn) > self.cursor_packet
            }
            // Entry numbers wrap; half of the space is more than any ring.
            _ => behind != 0 && behind < u32::MAX / 2,
        };
        if cursor_is_late {
            self.seek(self.unacknowledged);
        }
    }
}

/// SQD was entered: what has started ends, nothing new starts (rule M-05).
pub(crate) fn drain(qp: &mut Qp, face: &mut impl Face) {
    qp.requester.draining = true;
    drained_if_due(qp, face);
}

/// Notes that everything that was started has ended, and tells software if it wants to know.
fn drained_if_due(qp: &mut Qp, face: &mut impl Face) {
    let requester = &mut qp.requester;
    let idle = requester.next_psn == requester.unacknowledged && requester.cursor_packet == 0;
    if requester.draining && qp.state == State::Sqd && idle {
        requester.draining = false;
        if qp.attributes.sqd_async_notify {
            face.event(Event::SendQueueDrained(qp.qpn));
        }
    }
}

/// Software rang the doorbell.
#[inline]
pub(crate) fn ring(qp: &mut Qp, face: &mut impl Face) {
    if matches!(qp.state, State::Error | State::Sqe) {
        flush_queue(qp, face);
    } else {
        qp.requester.may_send = true;
    }
}

/// Moves to the error state: everything taken and everything posted flushes, in order (rule Q-52).
pub(crate) fn enter_error(qp: &mut Qp, reason: Reason, by_peer: bool, face: &mut impl Face) {
    if qp.state == State::Error {
        return;
    }
    qp.state = State::Error;
    if !by_peer {
        qp.responder.silence();
    }
    face.event(Event::QpError { qpn: qp.qpn, reason, by_peer });
    flush(qp, face);
}

/// A work request of an unreliable queue pair failed: only its send queue stops (rule M-06).
fn enter_send_queue_error(qp: &mut Qp, reason: Reason, face: &mut impl Face) {
    qp.state = State::Sqe;
    face.event(Event::SendQueueError { qpn: qp.qpn, reason });
    flush(qp, face);
}

/// Completes everything taken and everything posted as flushed.
fn flush(qp: &mut Qp, face: &mut impl Face) {
    while qp.requester.head != qp.requester.tail {
        let _ = complete_head(qp, Status::Flushed, None, face);
    }
    qp.requester.cursor = qp.requester.tail;
    qp.requester.cursor_packet = 0;
    qp.requester.deadline = Nanos::NEVER;
    qp.requester.waiting_rnr = false;
    qp.requester.unacknowledged = qp.requester.next_psn;
    qp.requester.read_response_psns = 0;
    qp.requester.reads_outstanding = 0;
    flush_queue(qp, face);
}

/// Completes all posted work as flushed. A completion queue that is full drops them: the queue
/// itself has reported its overflow by then.
fn flush_queue(qp: &mut Qp, face: &mut impl Face) {
    qp.requester.may_send = false;
    loop {
        let index = qp.requester.next_index;
        let (opcode, length) = match face.work(qp.qpn, index) {
            Fetch::Empty => return,
            Fetch::Work(work) => (Some(work.opcode), work.length),
            Fetch::Bad(..) => (None, 0),
        };
        qp.requester.next_index = index.wrapping_add(1);
        qp.counters.count(Counter::ReqCqeFlushError);
        let kind = CompletionKind::Work { index, opcode, length };
        let _ = face.complete(qp.qpn, Completion { kind, status: Status::Flushed, reason: None });
    }
}

// What leaves.

/// BTH.OpCode of each work request's packets on RC, by [`Position`]. `None` for raw frames.
const REQUESTS: [[Option<u8>; 4]; WorkOpcode::ALL.len()] = {
    let mut table = [[None; 4]; WorkOpcode::ALL.len()];
    let mut cell = 0;
    while cell < 4 * table.len() {
        let (what, position) = (WorkOpcode::ALL[cell / 4], Position::ALL[cell % 4]);
        table[what as usize][position as usize] = request(what, position);
        cell += 1;
    }
    table
};

/// Immediate data and a key to invalidate are in a message's last packet only.
const fn request(what: WorkOpcode, position: Position) -> Option<u8> {
    let last = position.ends();
    let (operation, imm, inv) = match what {
        WorkOpcode::Send => (Operation::Send, false, false),
        WorkOpcode::SendImm => (Operation::Send, last, false),
        WorkOpcode::SendInv => (Operation::Send, false, last),
        WorkOpcode::Write => (Operation::Write, false, false),
        WorkOpcode::WriteImm => (Operation::Write, last, false),
        WorkOpcode::Read => (Operation::ReadRequest, false, false),
        WorkOpcode::CompareSwap => (Operation::CompareSwap, false, false),
        WorkOpcode::FetchAdd => (Operation::FetchAdd, false, false),
        WorkOpcode::RawFrame => return None,
    };
    opcode::rc(operation, position, imm, inv)
}

/// What the next packet is; plain values, so that nothing is borrowed while it is written.
struct Plan {
    row: &'static OpcodeRow,
    /// Where the payload comes from.
    local: Place,
    packet: u32,
    /// Packets of the message.
    packets: u32,
    takes_receive: bool,
    /// Bytes of the message before this packet.
    offset: u32,
    payload_len: u32,
    bth: BthFields,
    fresh: bool,
    /// PSNs that it takes: all of its responses' for a READ.
    psns: u32,
}

/// Writes the next request packet.
#[inline(always)]
pub(crate) fn poll(
    qp: &mut Qp,
    now: Nanos,
    port: &Port,
    room: &mut Room<'_>,
    face: &mut impl Face,
) -> Option<Train> {
    if !qp.state.accepts_responses() {
        // Rung or kicked in a state that sends nothing; entering RTS looks again.
        qp.requester.may_send = false;
        return None;
    }
    if !qp.requester.active() {
        return None;
    }
    match qp.attributes.service {
        Service::RawFrame => return poll_raw(qp, room, face),
        Service::Ud => return poll_datagram(qp, port, room, face),
        Service::Rc | Service::Uc => {}
    }
    let Some(mut plan) = plan(qp, face) else {
        qp.requester.may_send = false;
        return None;
    };
    qp.refresh_template(port);
    let (len, payload_at) = match write_packet(qp, &mut plan, room, face) {
        Ok(written) => written,
        Err(Unsent::NotNow) => {
            qp.requester.stalled = true;
            return None;
        }
        Err(Unsent::Never(status, reason)) => {
            fail(qp, status, reason, face);
            return None;
        }
    };
    let train = Train {
        len,
        header: payload_at as u16,
        segment: (len - payload_at) as u16,
        segments: 1,
        qpn: qp.qpn,
        opcode: plan.row.value,
        psn: plan.bth.psn,
        syndrome: None,
        retransmission: !plan.fresh,
        flow_control: false,
    };
    sent(qp, now, &plan);
    if qp.attributes.service == Service::Uc {
        sent_unreliably(qp, face);
    }
    Some(train)
}

/// Why a packet could not be written.
pub(crate) enum Unsent {
    /// The face asked to wait for a kick.
    NotNow,
    /// The work request completes so.
    Never(Status, Reason),
}

impl Unsent {
    /// What a hold on a work request's own bytes means.
    pub(crate) const fn of_own_bytes(hold: Hold) -> Self {
        match hold {
            Hold::Stall => Self::NotNow,
            Hold::Fault(reason) => Self::Never(Status::LocalProtection, reason),
        }
    }
}

/// Writes the planned packet of the entry at the cursor; returns its length and where the payload
/// starts.
#[inline(always)]
fn write_packet(
    qp: &Qp,
    plan: &mut Plan,
    room: &mut Room<'_>,
    face: &mut impl Face,
) -> Result<(usize, usize), Unsent> {
    let broken = |reason| Unsent::Never(Status::LocalQpOperation, reason);
    let template = qp.template.as_ref().ok_or(broken(Reason::PathIncomplete))?;
    let payload_at = template.len() - 12 + usize::from(plan.row.header_len);
    let payload_len = plan.payload_len as usize;
    let len = template.frame_len(plan.row, payload_len);
    let frame = room.bytes.get_mut(..len).ok_or(broken(Reason::FrameTooLong))?;
    if payload_len != 0 {
        let out = &mut frame[payload_at..payload_at + payload_len];
        let gathered = face.gather(qp.qpn, plan.local, plan.offset, out);
        gathered.map_err(Unsent::of_own_bytes)?;
        plan.bth.ack_request |= face.wants_acknowledgement();
    }
    if plan.row.ext != Ext::NONE {
        let entry = qp.requester.entry(qp.requester.cursor).ok_or(Unsent::NotNow)?;
        write_extensions(plan, &entry.work, &mut frame[template.len()..payload_at]);
    }
    template.finish(frame, plan.row, payload_len, plan.bth);
    Ok((len, payload_at))
}

/// An unreliable packet is as good as acknowledged once it has left (rule U-01).
fn sent_unreliably(qp: &mut Qp, face: &mut impl Face) {
    qp.requester.unacknowledged = qp.requester.next_psn;
    qp.requester.deadline = Nanos::NEVER;
    if qp.requester.cursor == qp.requester.tail {
        // Taken one at a time, so the ring holds no other.
        let _ = complete_head(qp, Status::Success, None, face);
    }
    drained_if_due(qp, face);
}

/// Sends a datagram; complete once it is in the room.
fn poll_datagram(
    qp: &mut Qp,
    port: &Port,
    room: &mut Room<'_>,
    face: &mut impl Face,
) -> Option<Train> {
    if qp.requester.cursor == qp.requester.tail && !take_work(qp, face) {
        qp.requester.may_send = false;
        return None;
    }
    let entry = *qp.requester.entry(qp.requester.cursor)?;
    let written = match face.datagram(qp.qpn, entry.index) {
        Ok(to) => {
            let outgoing = datagram::Outgoing { work: entry.work, psn: qp.requester.next_psn, to };
            datagram::write(qp, &outgoing, port, room, face)
        }
        Err(reason) => Err(Unsent::Never(Status::LocalQpOperation, reason)),
    };
    match written {
        Ok(train) => {
            let requester = &mut qp.requester;
            requester.next_psn = requester.next_psn.plus(1);
            requester.ssn = (requester.ssn + 1) & 0x00FF_FFFF;
            requester.cursor = requester.cursor.wrapping_add(1);
            sent_unreliably(qp, face);
            Some(train)
        }
        Err(Unsent::NotNow) => {
            qp.requester.stalled = true;
            None
        }
        Err(Unsent::Never(status, reason)) => {
            fail(qp, status, reason, face);
            None
        }
    }
}

/// Decides what is sent next; takes new work where everything taken is sent. `None`: nothing now.
#[inline(always)]
fn plan(qp: &mut Qp, face: &mut impl Face) -> Option<Plan> {
    if qp.requester.cursor == qp.requester.tail && !take_work(qp, face) {
        return None;
    }
    let requester = &qp.requester;
    let entry = requester.entry(requester.cursor)?;
    if entry.failed.is_some() {
        return None;
    }
    let k = requester.cursor_packet;
    let psn = entry.first_psn.plus(k);
    let fresh = psn == requester.next_psn;
    let reads = entry.waits_for_data();
    let policy = &qp.attributes.policy;
    let outstanding = requester.outstanding_packets();
    // Only acknowledgements bring credits.
    let counts = policy.end_to_end_credits && qp.attributes.service == Service::Rc;
    if fresh {
        let psns = if reads { entry.packets } else { 1 };
        let distance = requester.next_psn.since(requester.unacknowledged);
        let depth = u32::from(qp.attributes.max_rd_atomic);
        let blocked = outstanding >= policy.window_packets.clamp(1, Psn::WINDOW)
            || distance + psns > Psn::WINDOW
            || (reads && requester.reads_outstanding >= depth)
            || (entry.work.fence && k == 0 && requester.reads_outstanding != 0)
            || (qp.state == State::Sqd && k == 0)
            || (k == 0 && counts && !has_credit(requester, entry));
        if blocked {
            return None;
        }
    }
    let last = k + 1 == entry.packets;
    let position = match (k == 0, last) {
        (true, true) => Position::Only,
        (true, false) => Position::First,
        (false, false) => Position::Middle,
        (false, true) => Position::Last,
    };
    let unreliable = qp.attributes.service == Service::Uc;
    let value = REQUESTS[entry.work.opcode as usize][position as usize]?;
    let row = opcode::row(if unreliable { value + opcode::UC_BASE } else { value });
    let every = policy.ack_request_every;
    // Rule Q-04: the packet after which the window is full asks, when it is sent again too.
    let fills_window = if fresh {
        outstanding + 1 >= policy.window_packets
    } else {
        psn.plus(1) == requester.next_psn && outstanding >= policy.window_packets
    };
    let asks = reads
        || last
        || requester.request_ack
        || (every != 0 && requester.packets_since_ack_request + 1 >= every)
        || fills_window;
    Some(Plan {
        row,
        local: entry.work.local,
        packet: k,
        packets: entry.packets,
        takes_receive: entry.takes_receive(),
        offset: entry.offset(k),
        payload_len: if reads { 0 } else { entry.payload_len(k) },
        bth: BthFields {
            psn,
            solicited: entry.work.solicited && last && entry.takes_receive(),
            migrated: true,
            ack_request: asks && !unreliable,
            becn: false,
        },
        fresh,
        psns: if reads { entry.packets - k } else { 1 },
    })
}

/// Rule Q-09: whether a message that takes a receive buffer may start. With nothing on its way, one
/// always may: an honest peer allows it, and whatever else a limit says, nobody would ever change it.
fn has_credit(requester: &Requester, entry: &InFlight) -> bool {
    !entry.takes_receive()
        || requester.credits.allows(requester.ssn + 1)
        || requester.next_psn == requester.unacknowledged
}

/// Takes the next work request into the ring. `false`: there is none, no room, or nothing new may
/// start (rule M-05).
#[inline(always)]
fn take_work(qp: &mut Qp, face: &mut impl Face) -> bool {
    let requester = &mut qp.requester;
    if qp.state == State::Sqd || requester.in_flight() as usize >= requester.ring.len() {
        return false;
    }
    let index = requester.next_index;
    let mtu_log2 = qp.attributes.path_mtu.log2();
    let (work, failed) = match face.work(qp.qpn, index) {
        Fetch::Empty => return false,
        Fetch::Work(work) => (work, check(&work, &qp.attributes)),
        Fetch::Bad(status, reason) => (Work::default(), Some((status, reason))),
    };
    let packets = match failed {
        Some(_) => 0,
        None => work.length.div_ceil(1 << mtu_log2).max(1),
    };
    let entry = InFlight {
        work,
        index,
        first_psn: requester.next_psn,
        packets,
        mtu_log2,
        asked_again: false,
        failed,
    };
    let slot = requester.slot(requester.tail);
    requester.ring[slot] = Some(entry);
    requester.next_index = index.wrapping_add(1);
    requester.cursor = requester.tail;
    requester.cursor_packet = 0;
    requester.tail = requester.tail.wrapping_add(1);
    if failed.is_some() {
        fail_head_if_due(qp, face);
    }
    !matches!(qp.state, State::Error | State::Sqe)
}

/// What a work request may not be on this queue pair.
#[inline(always)]
fn check(work: &Work, attributes: &Attributes) -> Option<(Status, Reason)> {
    use WorkOpcode as W;
    let legal = match attributes.service {
        Service::Rc => work.opcode != W::RawFrame,
        Service::Uc => matches!(work.opcode, W::Send | W::SendImm | W::Write | W::WriteImm),
        Service::Ud => matches!(work.opcode, W::Send | W::SendImm),
        Service::RawFrame => work.opcode == W::RawFrame,
    };
    let limit = attributes.policy.max_message_len.min(MESSAGE_LEN_MAX);
    let waits_for_data = matches!(work.opcode, W::Read | W::CompareSwap | W::FetchAdd);
    if !legal {
        Some((Status::LocalQpOperation, Reason::WorkOpcodeIllegal))
    } else if waits_for_data && attributes.max_rd_atomic == 0 {
        // It would wait for ever.
        Some((Status::LocalQpOperation, Reason::TooManyReads))
    } else if work.length > limit {
        Some((Status::LocalLength, Reason::MessageTooLong))
    } else if matches!(work.opcode, W::CompareSwap | W::FetchAdd) && work.length != 8 {
        Some((Status::LocalLength, Reason::WorkLength))
    } else {
        None
    }
}

fn write_extensions(plan: &Plan, work: &Work, out: &mut [u8]) {
    let row = plan.row;
    let mut put = |which: Ext, bytes: &[u8]| {
        if let Some(at) = row.offset_of(which) {
            out[at - 12..at - 12 + bytes.len()].copy_from_slice(bytes);
        }
    };
    let va = work.remote_va.wrapping_add(u64::from(plan.offset)).to_be_bytes();
    let rkey = work.rkey.0.to_be_bytes();
    if row.ext.has(Ext::RETH) {
        let mut reth = [0; 16];
        reth[..8].copy_from_slice(&va);
        reth[8..12].copy_from_slice(&rkey);
        reth[12..].copy_from_slice(&(work.length - plan.offset).to_be_bytes());
        put(Ext::RETH, &reth);
    }
    if row.ext.has(Ext::ATOMICETH) {
        let mut atomic = [0; 28];
        atomic[..8].copy_from_slice(&va);
        atomic[8..12].copy_from_slice(&rkey);
        atomic[12..20].copy_from_slice(&work.swap_or_add.to_be_bytes());
        atomic[20..].copy_from_slice(&work.compare.to_be_bytes());
        put(Ext::ATOMICETH, &atomic);
    }
    put(Ext::IMMDT, &work.immediate.to_be_bytes());
    put(Ext::IETH, &rkey);
}

/// A packet has left: cursor, PSN, window and timer follow.
#[inline(always)]
fn sent(qp: &mut Qp, now: Nanos, plan: &Plan) {
    let requester = &mut qp.requester;
    requester.request_ack = false;
    requester.packets_since_ack_request =
        if plan.bth.ack_request { 0 } else { requester.packets_since_ack_request + 1 };
    let reads = !matches!(plan.row.operation, Operation::Send | Operation::Write);
    if plan.fresh {
        requester.next_psn = plan.bth.psn.plus(plan.psns);
        if plan.packet == 0 {
            requester.ssn = (requester.ssn + 1) & 0x00FF_FFFF;
            if !plan.takes_receive {
                requester.credits.uncounted();
            }
        }
        if reads {
            requester.reads_outstanding += 1;
            requester.read_response_psns += plan.psns - 1;
        }
    } else if reads {
        let slot = requester.slot(requester.cursor);
        if let Some(entry) = &mut requester.ring[slot] {
            entry.asked_again = true;
        }
    }
    requester.cursor_packet += 1;
    if reads || requester.cursor_packet >= plan.packets {
        requester.cursor = requester.cursor.wrapping_add(1);
        requester.cursor_packet = 0;
    }
    if requester.deadline == Nanos::NEVER
        && let Some(timeout_ns) = qp.attributes.ack_timeout_ns()
    {
        requester.deadline = now.after(timeout_ns);
    }
}

/// Sends a frame that software built, adding only the ICRC. Complete once it is in the room.
fn poll_raw(qp: &mut Qp, room: &mut Room<'_>, face: &mut impl Face) -> Option<Train> {
    if qp.state == State::Sqd {
        qp.requester.may_send = false;
        return None;
    }
    let index = qp.requester.next_index;
    let (work, failed) = match face.work(qp.qpn, index) {
        Fetch::Empty => {
            qp.requester.may_send = false;
            return None;
        }
        Fetch::Work(work) => (work, check(&work, &qp.attributes)),
        Fetch::Bad(status, reason) => (Work::default(), Some((status, reason))),
    };
    let written = match failed {
        Some((status, reason)) => Err(Unsent::Never(status, reason)),
        None => write_raw(qp.qpn, &work, room, face),
    };
    let (train, status, reason) = match written {
        Ok(train) => (Some(train), Status::Success, None),
        Err(Unsent::Never(status, reason)) => (None, status, Some(reason)),
        Err(Unsent::NotNow) => {
            qp.requester.stalled = true;
            return None;
        }
    };
    qp.requester.next_index = index.wrapping_add(1);
    let kind =
        CompletionKind::Work { index, opcode: Some(WorkOpcode::RawFrame), length: work.length };
    face.acknowledged(qp.qpn, index);
    let completed = face.complete(qp.qpn, Completion { kind, status, reason });
    if let Some(reason) = reason.or(completed.err()) {
        count_failed(qp, status);
        enter_error(qp, reason, false, face);
    }
    train
}

fn write_raw(
    qpn: Qpn,
    work: &Work,
    room: &mut Room<'_>,
    face: &mut impl Face,
) -> Result<Train, Unsent> {
    let end = work.length as usize;
    let too_long = Unsent::Never(Status::LocalLength, Reason::FrameTooLong);
    let frame = room.bytes.get_mut(..end.saturating_add(4)).ok_or(too_long)?;
    let gathered = face.gather(qpn, work.local, 0, &mut frame[..end]);
    gathered.map_err(Unsent::of_own_bytes)?;
    let broken = |reason| Unsent::Never(Status::LocalQpOperation, reason);
    let packet = parse(frame).map_err(broken)?;
    if packet.icrc_offset() != end {
        return Err(broken(Reason::IpLength));
    }
    let (opcode, psn) = (packet.bth.opcode, packet.bth.psn());
    let crc = icrc::of(packet.network, &frame[packet.l3_offset()..end]);
    frame[end..].copy_from_slice(&crc.to_le_bytes());
    Ok(Train {
        len: end + 4,
        header: 0,
        segment: (end + 4) as u16,
        segments: 1,
        qpn,
        opcode,
        psn,
        syndrome: None,
        retransmission: false,
        flow_control: false,
    })
}

// What arrives.

/// Takes a response of the peer.
///
/// # Errors
/// Why it was dropped, or noted without completing what it names.
pub(crate) fn handle(
    qp: &mut Qp,
    now: Nanos,
    packet: &Packet<'_>,
    face: &mut impl Face,
) -> Result<(), Reason> {
    if qp.attributes.service != Service::Rc {
        return Err(Reason::ServiceMismatch);
    }
    let psn = packet.bth.psn();
    let requester = &qp.requester;
    // Rule Q-24: neither what was never sent nor what is long acknowledged.
    if psn.since(requester.unacknowledged) >= requester.next_psn.since(requester.unacknowledged) {
        return Err(Reason::ResponseGhost);
    }
    let syndrome = packet.aeth().map_or(Syndrome::Ack(31), |aeth| aeth.kind());
    if let (Some(aeth), Syndrome::Ack(code)) = (packet.aeth(), syndrome) {
        qp.requester.credits.learn(aeth.msn(), code);
    }
    let result = respond(qp, now, packet, syndrome, face);
    drained_if_due(qp, face);
    result
}

fn respond(
    qp: &mut Qp,
    now: Nanos,
    packet: &Packet<'_>,
    syndrome: Syndrome,
    face: &mut impl Face,
) -> Result<(), Reason> {
    let psn = packet.bth.psn();
    match packet.row.operation {
        Operation::Acknowledge => acknowledge(qp, now, psn, syndrome, face),
        Operation::ReadResponse => match syndrome {
            Syndrome::Ack(_) => read_response(qp, now, packet, face),
            _ => Err(Reason::ResponseReserved),
        },
        _ => match syndrome {
            Syndrome::Ack(_) => atomic_response(qp, now, packet, face),
            _ => Err(Reason::ResponseReserved),
        },
    }
}

fn acknowledge(
    qp: &mut Qp,
    now: Nanos,
    psn: Psn,
    syndrome: Syndrome,
    face: &mut impl Face,
) -> Result<(), Reason> {
    match syndrome {
        Syndrome::Ack(_) => advance(qp, now, psn.plus(1), face),
        Syndrome::Rnr(code) => {
            if qp.requester.waiting_rnr {
                qp.requester.gap_nak_owed = true;
                return Err(Reason::ResponseWhileRnr);
            }
            advance(qp, now, psn, face)?;
            receiver_not_ready(qp, now, psn, code, face);
            Ok(())
        }
        Syndrome::Nak(nak_code::PSN_SEQUENCE) => {
            // Rule D-09: rxe follows its RNR NAK with this one, for what was sent behind. It must neither cut the
            // wait short nor, where it comes late, have sent again and counted what has been sent since.
            let owed = core::mem::take(&mut qp.requester.gap_nak_owed);
            if qp.requester.waiting_rnr || owed && psn == qp.requester.unacknowledged {
                return Err(Reason::ResponseWhileRnr);
            }
            advance(qp, now, psn, face)?;
            qp.counters.count(Counter::PacketSeqErr);
            retry(qp, face);
            Ok(())
        }
        Syndrome::Nak(code) => {
            let (status, reason, counter) = match code {
                nak_code::INVALID_REQUEST => (
                    Status::RemoteInvalidRequest,
                    Reason::RemoteInvalidRequest,
                    Counter::ReqRemoteInvalidRequest,
                ),
                nak_code::REMOTE_ACCESS => {
                    (Status::RemoteAccess, Reason::RemoteAccess, Counter::ReqRemoteAccessErrors)
                }
                nak_code::REMOTE_OPERATIONAL => (
                    Status::RemoteOperation,
                    Reason::RemoteOperational,
                    Counter::ReqRemoteOperation,
                ),
                _ => return Err(Reason::ResponseReserved),
            };
            advance(qp, now, psn, face)?;
            qp.counters.count(counter);
            fail_head(qp, status, reason, face);
            Ok(())
        }
        Syndrome::Reserved(_) => Err(Reason::ResponseReserved),
    }
}

/// Everything before `to` is acknowledged (rules ).
///
/// # Errors
/// An unanswered READ or atomic stands before `to`: its answers were lost (rule Q-23). What comes
/// before it is complete; it will be asked for again.
#[inline(always)]
fn advance(qp: &mut Qp, now: Nanos, to: Psn, face: &mut impl Face) -> Result<(), Reason> {
    let before = qp.requester.unacknowledged;
    let mut reached = true;
    while qp.requester.unacknowledged != to {
        let Some(entry) = qp.requester.entry(qp.requester.head) else { break };
        if entry.waits_for_data() {
            reached = false;
            break;
        }
        let (first, packets) = (entry.first_psn, entry.packets);
        if to.since(first) < packets {
            let (index, bytes) = (entry.index, entry.offset(to.since(first)));
            qp.requester.unacknowledged = to;
            face.acknowledged_part(qp.qpn, index, bytes);
            break;
        }
        qp.requester.unacknowledged = first.plus(packets);
        complete_head(qp, Status::Success, None, face)?;
    }
    if qp.requester.unacknowledged != before {
        qp.requester.progress(now, qp.attributes.ack_timeout_ns());
        fail_head_if_due(qp, face);
    }
    if reached {
        return Ok(());
    }
    if !qp.requester.implied_nak_seen {
        qp.counters.count(Counter::ImpliedNakSeqErr);
        retry(qp, face);
        // Later responses of the same flight tell nothing new.
        qp.requester.implied_nak_seen = true;
    }
    Err(Reason::ResponseImpliedNak)
}

fn receiver_not_ready(qp: &mut Qp, now: Nanos, psn: Psn, code: u8, face: &mut impl Face) {
    qp.counters.count(Counter::RnrNakReceived);
    let limit = qp.attributes.rnr_retry;
    let requester = &mut qp.requester;
    if limit < 7 && requester.rnr_retries_used >= limit {
        fail_head(qp, Status::RnrRetryExceeded, Reason::RnrRetryExceeded, face);
        return;
    }
    requester.rnr_retries_used = requester.rnr_retries_used.saturating_add(1);
    requester.waiting_rnr = true;
    requester.gap_nak_owed = requester.next_psn != psn.plus(1);
    // Rule Q-46: no transport timer runs meanwhile.
    requester.deadline = now.after(rnr_timer_ns(code));
    requester.seek(psn);
}

fn read_response(
    qp: &mut Qp,
    now: Nanos,
    packet: &Packet<'_>,
    face: &mut impl Face,
) -> Result<(), Reason> {
    let psn = packet.bth.psn();
    advance(qp, now, psn, face)?;
    let requester = &qp.requester;
    let Some(entry) = requester.entry(requester.head).copied() else {
        return Err(Reason::ResponseGhost);
    };
    let k = psn.since(entry.first_psn);
    if entry.work.opcode != WorkOpcode::Read || k >= entry.packets {
        fail_head(qp, Status::BadResponse, Reason::ResponseMalformed, face);
        return Err(Reason::ResponseMalformed);
    }
    let payload = packet.payload();
    let position = packet.row.position;
    let starts_well = entry.asked_again || position.starts() == (k == 0);
    let ends_well = position.ends() == (k + 1 == entry.packets);
    if !starts_well || !ends_well || payload.len() != entry.payload_len(k) as usize {
        fail_head(qp, Status::BadResponse, Reason::ResponseMalformed, face);
        return Err(Reason::ResponseMalformed);
    }
    if !payload.is_empty() {
        match face.scatter(qp.qpn, entry.work.local, entry.offset(k), payload) {
            Ok(()) => {}
            // The answer is asked for again when the timer expires.
            Err(Hold::Stall) => return Err(Reason::QpNotReady),
            Err(Hold::Fault(reason)) => {
                fail_head(qp, Status::LocalProtection, reason, face);
                return Err(reason);
            }
        }
    }
    answered(qp, now, psn, k + 1 == entry.packets, face)
}

fn atomic_response(
    qp: &mut Qp,
    now: Nanos,
    packet: &Packet<'_>,
    face: &mut impl Face,
) -> Result<(), Reason> {
    let psn = packet.bth.psn();
    advance(qp, now, psn, face)?;
    let requester = &qp.requester;
    let Some(entry) = requester.entry(requester.head).copied() else {
        return Err(Reason::ResponseGhost);
    };
    let atomic = matches!(entry.work.opcode, WorkOpcode::CompareSwap | WorkOpcode::FetchAdd);
    let original = packet.atomic_ack_eth().map(|ack| ack.original.get());
    let (true, Some(original)) = (atomic, original) else {
        fail_head(qp, Status::BadResponse, Reason::ResponseMalformed, face);
        return Err(Reason::ResponseMalformed);
    };
    match face.scatter(qp.qpn, entry.work.local, 0, &original.to_le_bytes()) {
        Ok(()) => answered(qp, now, psn, true, face),
        Err(Hold::Stall) => Err(Reason::QpNotReady),
        Err(Hold::Fault(reason)) => {
            fail_head(qp, Status::LocalProtection, reason, face);
            Err(reason)
        }
    }
}

/// One more PSN of the READ or atomic at the head is answered.
fn answered(
    qp: &mut Qp,
    now: Nanos,
    psn: Psn,
    last: bool,
    face: &mut impl Face,
) -> Result<(), Reason> {
    qp.requester.unacknowledged = psn.plus(1);
    if last {
        qp.requester.reads_outstanding -= 1;
        complete_head(qp, Status::Success, None, face)?;
    } else {
        qp.requester.read_response_psns -= 1;
    }
    qp.requester.progress(now, qp.attributes.ack_timeout_ns());
    fail_head_if_due(qp, face);
    Ok(())
}

/// The timer's time has come.
pub(crate) fn handle_timeout(qp: &mut Qp, now: Nanos, face: &mut impl Face) {
    let requester = &mut qp.requester;
    if requester.deadline > now {
        return;
    }
    requester.deadline = Nanos::NEVER;
    if requester.waiting_rnr {
        requester.waiting_rnr = false;
        requester.may_send = true;
    } else if !qp.attributes.enabled {
        // It may not send again now, so that nothing is learned from the silence.
        let timeout_ns = qp.attributes.ack_timeout_ns();
        requester.deadline = timeout_ns.map_or(Nanos::NEVER, |ns| now.after(ns));
    } else if requester.next_psn != requester.unacknowledged {
        requester.request_ack = true;
        qp.counters.count(Counter::LocalAckTimeoutErr);
        retry(qp, face);
    }
}

/// Sends again from the oldest unacknowledged PSN, if the counter allows (rule Q-43).
fn retry(qp: &mut Qp, face: &mut impl Face) {
    let limit = qp.attributes.retry_count;
    let requester = &mut qp.requester;
    if requester.retries_used >= limit && qp.attributes.policy.retry_exhaustion_fatal {
        fail_head(qp, Status::RetryExceeded, Reason::RetryExceeded, face);
        return;
    }
    requester.retries_used = requester.retries_used.saturating_add(1).min(limit);
    requester.seek(requester.unacknowledged);
    requester.may_send = true;
}

// How work ends.

/// Completes the oldest entry.
///
/// # Errors
/// The completion queue is full; the queue pair is in the error state then.
#[inline(always)]
fn complete_head(
    qp: &mut Qp,
    status: Status,
    reason: Option<Reason>,
    face: &mut impl Face,
) -> Result<(), Reason> {
    if qp.requester.head == qp.requester.tail {
        return Ok(());
    }
    let slot = qp.requester.slot(qp.requester.head);
    let Some(entry) = qp.requester.ring[slot].take() else { return Ok(()) };
    qp.requester.head = qp.requester.head.wrapping_add(1);
    match status {
        Status::Success => face.acknowledged(qp.qpn, entry.index),
        Status::Flushed => qp.counters.count(Counter::ReqCqeFlushError),
        _ => count_failed(qp, status),
    }
    let kind = CompletionKind::Work {
        index: entry.index,
        opcode: (entry.packets != 0 || entry.failed.is_none()).then_some(entry.work.opcode),
        length: entry.work.length,
    };
    let completed = face.complete(qp.qpn, Completion { kind, status, reason });
    if let Err(reason) = completed {
        enter_error(qp, reason, false, face);
    }
    completed
}

fn count_failed(qp: &mut Qp, status: Status) {
    qp.counters.count(Counter::ReqCqeError);
    let of_status = match status {
        Status::LocalLength => Counter::ReqLocalLength,
        Status::LocalQpOperation => Counter::ReqLocalQpOperation,
        Status::LocalProtection => Counter::ReqLocalProtection,
        Status::BadResponse => Counter::ReqBadResponse,
        Status::RetryExceeded => Counter::RetryExceeded,
        Status::RnrRetryExceeded => Counter::RnrRetryExceeded,
        // Success: the completion found no room. NAKs are counted as they arrive.
        Status::Success
        | Status::Flushed
        | Status::RemoteInvalidRequest
        | Status::RemoteAccess
        | Status::RemoteOperation => return,
    };
    qp.counters.count(of_status);
}

/// The oldest entry ends with an error, and so does the queue pair.
fn fail_head(qp: &mut Qp, status: Status, reason: Reason, face: &mut impl Face) {
    let _ = complete_head(qp, status, Some(reason), face);
    if matches!(qp.attributes.service, Service::Uc | Service::Ud) && qp.state != State::Error {
        enter_send_queue_error(qp, reason, face);
    } else {
        enter_error(qp, reason, false, face);
    }
}

/// The entry at the cursor cannot be sent. It completes so once everything before it has.
fn fail(qp: &mut Qp, status: Status, reason: Reason, face: &mut impl Face) {
    let slot = qp.requester.slot(qp.requester.cursor);
    if let Some(entry) = &mut qp.requester.ring[slot] {
        entry.failed = Some((status, reason));
    }
    qp.requester.may_send = false;
    fail_head_if_due(qp, face);
}

fn fail_head_if_due(qp: &mut Qp, face: &mut impl Face) {
    let head = qp.requester.entry(qp.requester.head);
    if let Some((status, reason)) = head.and_then(|entry| entry.failed) {
        fail_head(qp, status, reason, face);
    }
}
