//! The engine: queue pairs by number, the ready list, the timers, and the calls from outside.
//!
//! It joins the parts and decides nothing about the protocol: what a packet means is decided in
//! `responder` and `requester`. It must not know any device.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::congestion::{CNP_PRIORITY, Dcqcn, NotificationPoint, ReactionPoint};
use crate::counters::{Counter, Counters};
use crate::datagram::Groups;
use crate::face::{Event, Face};
use crate::flow_control::Pauses;
use crate::numbers::{Nanos, Psn, Qpn};
use crate::packet::icrc::Icrc;
use crate::packet::opcode::Transport;
use crate::packet::{Network, Operation, Packet, flow_control, parse};
use crate::qp::{Attributes, Qp, Service, State};
use crate::reason::Reason;
use crate::timer::{NOT_QUEUED, Positions, Timers};
use crate::{congestion, requester, responder};

pub(crate) use crate::port::{Port, Room, Rx, Train, Verdict};

/// How an engine is built.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// Queue pair slots to begin with; rounded up to a power of two. More are made as needed.
    pub slots: usize,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self { slots: 64 }
    }
}

/// A transport engine: any number of queue pairs on one port.
#[derive(Debug)]
pub struct Engine {
    port: Port,
    /// Power-of-two table; a QPN's slot is its low bits, and the number is compared in full.
    qps: Vec<Qp>,
    ready: VecDeque<u32>,
    /// Were on the ready list when their priority was found paused; still marked as queued.
    held: VecDeque<u32>,
    pauses: Pauses,
    timers: Timers,
    refused: [u64; Reason::COUNT],
    /// What no queue pair has: its own rows, and those of destroyed queue pairs.
    counters: Counters,
    groups: Groups,
    icrc: Icrc,
}

/// BTH.DestQP of multicast datagrams.
const MULTICAST_QPN: Qpn = Qpn::new(0x00FF_FFFF);

struct TimerPositions<'a>(&'a mut [Qp]);

impl Positions for TimerPositions<'_> {
    fn set_position(&mut self, slot: u32, position: u32) {
        self.0[slot as usize].timer_position = position;
    }

    fn position(&self, slot: u32) -> u32 {
        self.0[slot as usize].timer_position
    }
}

/// Getters.
impl Engine {
    /// An engine without queue pairs.
    #[must_use]
    pub fn new(config: EngineConfig, port: Port) -> Self {
        let slots = config.slots.max(1).next_power_of_two();
        let mut timers = Timers::default();
        timers.reserve(slots);
        Self {
            port,
            qps: (0..slots).map(|_| Qp::vacant()).collect(),
            ready: VecDeque::with_capacity(slots),
            held: VecDeque::new(),
            pauses: Pauses::default(),
            timers,
            refused: [0; Reason::COUNT],
            counters: Counters::default(),
            groups: Groups::default(),
            icrc: Icrc::default(),
        }
    }

    /// The port.
    #[must_use]
    pub const fn port(&self) -> &Port {
        &self.port
    }

    /// A queue pair by its full number.
    #[inline]
    #[must_use]
    pub fn qp(&self, qpn: Qpn) -> Option<&Qp> {
        let qp = &self.qps[self.slot_index(qpn)];
        (qp.exists && qp.qpn == qpn).then_some(qp)
    }

    /// Every queue pair, in slot order.
    pub fn qps(&self) -> impl Iterator<Item = &Qp> {
        self.qps.iter().filter(|qp| qp.exists)
    }

    /// Refusals by reason since the engine was built.
    #[must_use]
    pub const fn refused(&self) -> &[u64; Reason::COUNT] {
        &self.refused
    }

    /// PFC pauses and resumptions that were obeyed, by priority.
    #[must_use]
    pub const fn pauses_obeyed(&self) -> &[u64; 8] {
        self.pauses.obeyed()
    }

    /// Priorities that are paused now: bit n is priority n.
    #[must_use]
    pub const fn paused_priorities(&self) -> u8 {
        self.pauses.paused()
    }

    /// The device's counters: those of all queue pairs summed up, destroyed ones included, and
    /// those that no queue pair can have.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut sum = self.counters.clone();
        self.qps().for_each(|qp| sum.add(&qp.counters));
        sum
    }

    /// Whether [`Engine::poll_transmit`] may have something to send.
    #[inline]
    #[must_use]
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// When [`Engine::handle_timeout`] should be called next.
    pub fn next_deadline(&mut self) -> Option<Nanos> {
        let of_qps = self.next_qp_deadline();
        if self.pauses.paused() == 0 {
            return of_qps;
        }
        let end = Some(self.pauses.deadline()).filter(|&end| end != Nanos::NEVER);
        of_qps.into_iter().chain(end).min()
    }

    fn next_qp_deadline(&mut self) -> Option<Nanos> {
        while let Some((queued, slot)) = self.timers.first() {
            let deadline = self.qps[slot as usize].deadline();
            if deadline == queued {
                return Some(queued);
            }
            // The deadline has moved since it was queued.
            self.pop_timer(slot);
            self.settle(slot as usize);
        }
        None
    }
}

/// Commands.
impl Engine {
    /// Changes the port.
    pub fn set_port(&mut self, port: Port) {
        if port.pfc != self.port.pfc {
            self.pauses.end();
        }
        self.release();
        if port.pfc.is_some() {
            self.held.reserve(self.qps.len());
        }
        self.port = port;
        self.qps.iter_mut().for_each(|qp| qp.template_valid = false);
    }

    /// Creates a queue pair in RESET.
    ///
    /// # Errors
    /// The number is taken, or another one with the same low bits exists.
    pub fn create(&mut self, qpn: Qpn, attributes: Attributes) -> Result<(), Reason> {
        if self.qp(qpn).is_some() {
            return Err(Reason::QpNotReady);
        }
        while self.qps[self.slot_index(qpn)].exists {
            if self.qps.len() >= 1 << 24 {
                return Err(Reason::QpNotReady);
            }
            self.grow();
        }
        let slot = self.slot_index(qpn);
        let vacant = self.vacate(slot);
        self.qps[slot] = Qp { qpn, exists: true, attributes, ..vacant };
        Ok(())
    }

    /// Removes a queue pair without completions.
    pub fn destroy(&mut self, qpn: Qpn, face: &mut impl Face) {
        let Some(slot) = self.slot(qpn) else { return };
        for group in self.groups.forget(qpn) {
            face.event(Event::MulticastLeave(group));
        }
        self.counters.add(&self.qps[slot].counters);
        self.qps[slot] = self.vacate(slot);
    }

    /// A queue pair's attributes, to change. Unknown numbers give `None`.
    pub fn attributes_mut(&mut self, qpn: Qpn) -> Option<&mut Attributes> {
        let slot = self.slot(qpn)?;
        // Its priority may change.
        self.release();
        let qp = &mut self.qps[slot];
        qp.template_valid = false;
        Some(&mut qp.attributes)
    }

    /// Gives a queue pair DCQCN congestion control, from its start, or takes it away. Requests,
    /// retransmissions and READ responses are then held back to its rate (rule C-20).
    ///
    /// # Errors
    /// No such queue pair, or a parameter is out of its range; nothing has changed.
    pub fn set_congestion_control(
        &mut self,
        qpn: Qpn,
        parameters: Option<Dcqcn>,
    ) -> Result<(), Reason> {
        let slot = self.slot(qpn).ok_or(Reason::QpUnknown)?;
        let reaction = parameters.map(ReactionPoint::new).transpose()?;
        self.qps[slot].reaction = reaction.map(Box::new);
        self.qps[slot].paced_until = Nanos::NEVER;
        self.settle(slot);
        Ok(())
    }

    /// Moves a queue pair to a state, whatever it was. RESET forgets everything but attributes;
    /// entering RTS makes room for work in flight; ERROR flushes through `face`.
    /// [`Engine::modify_qp`] obeys the rules of verbs.
    pub fn set_state(&mut self, qpn: Qpn, state: State, face: &mut impl Face) {
        let Some(slot) = self.slot(qpn) else { return };
        let qp = &mut self.qps[slot];
        let from = qp.state;
        match state {
            State::Reset => {
                qp.requester.reset();
                qp.responder.reset();
                qp.notification = NotificationPoint::default();
                qp.paced_until = Nanos::NEVER;
                if let Some(reaction) = &mut qp.reaction {
                    reaction.reset();
                }
                qp.state = State::Reset;
            }
            State::Error if from != State::Error => {
                requester::enter_error(qp, Reason::QpFatal, false, face);
            }
            _ => qp.state = state,
        }
        if state == State::Sqd && from != State::Sqd {
            requester::drain(qp, face);
        }
        if state.accepts_requests() {
            qp.responder.prepare(qp.attributes.max_dest_rd_atomic);
        }
        if matches!(state, State::Rts) {
            qp.requester.prepare(qp.attributes.max_in_flight);
            qp.requester.resume();
        }
        self.settle(slot);
    }

    /// Sets the PSN of the next new request packet. Nothing may be in flight.
    pub fn set_send_psn(&mut self, qpn: Qpn, psn: Psn) {
        if let Some(slot) = self.slot(qpn) {
            self.qps[slot].requester.set_next_psn(psn);
        }
    }

    /// Sets the expected PSN and the opcode that is taken as the last one received.
    pub fn set_expected_psn(&mut self, qpn: Qpn, psn: Psn, last_opcode: u8) {
        if let Some(slot) = self.slot(qpn) {
            self.qps[slot].responder.set_expected(psn, last_opcode);
        }
    }

    /// Sets the responder's message sequence number.
    pub fn set_msn(&mut self, qpn: Qpn, msn: u32) {
        if let Some(slot) = self.slot(qpn) {
            self.qps[slot].responder.set_msn(msn);
        }
    }

    /// Sets how many retries and RNR NAKs are taken as used up since the last progress.
    pub fn set_retries_used(&mut self, qpn: Qpn, retries: u8, rnr_retries: u8) {
        if let Some(slot) = self.slot(qpn) {
            self.qps[slot].requester.set_retries_used(retries, rnr_retries);
        }
    }

    /// There is new work in the send queue.
    #[inline]
    pub fn ring(&mut self, qpn: Qpn, face: &mut impl Face) {
        if let Some(slot) = self.slot(qpn) {
            requester::ring(&mut self.qps[slot], face);
            self.settle(slot);
        }
    }

    /// What a stalled `gather` or `scatter` waited for may be there now.
    pub fn kick(&mut self, qpn: Qpn) {
        if let Some(slot) = self.slot(qpn) {
            self.qps[slot].requester.kick();
            self.qps[slot].responder.kick();
            self.settle(slot);
        }
    }

    /// Forgets everything in flight and all receive state, as RESET does, but stays in its state.
    pub fn rewind(&mut self, qpn: Qpn) {
        if let Some(slot) = self.slot(qpn) {
            let qp = &mut self.qps[slot];
            qp.requester.reset();
            qp.responder.reset();
            qp.responder.prepare(qp.attributes.max_dest_rd_atomic);
            qp.requester.prepare(qp.attributes.max_in_flight);
            self.settle(slot);
        }
    }

    /// Attaches a datagram queue pair to a multicast group. Twice counts once.
    pub fn attach_multicast(&mut self, qpn: Qpn, group: IpAddr, face: &mut impl Face) {
        if self.groups.attach(group, qpn) {
            face.event(Event::MulticastJoin(group));
        }
    }

    /// Detaches a queue pair from a multicast group; `false` where it was not attached.
    pub fn detach_multicast(&mut self, qpn: Qpn, group: IpAddr, face: &mut impl Face) -> bool {
        let attached = self.groups.holds(group, qpn);
        if self.groups.detach(group, qpn) {
            face.event(Event::MulticastLeave(group));
        }
        attached
    }

    /// Counts a refusal that a face found outside of a frame (a work request, a register access).
    pub fn count_refused(&mut self, reason: Reason) {
        self.refused[reason as usize] += 1;
    }
}

/// What arrives.
impl Engine {
    /// Judges and executes a frame that arrived.
    pub fn handle_frame(
        &mut self,
        now: Nanos,
        frame: &[u8],
        rx: Rx,
        face: &mut impl Face,
    ) -> Verdict {
        let verdict = self.judge(now, frame, rx, face);
        if let Some(reason) = verdict.refused {
            self.refused[reason as usize] += 1;
            if reason == Reason::Icrc {
                self.counters.count(Counter::IcrcErrors);
            }
        }
        verdict
    }

    /// A frame that the device lost before the engine could see it: counted.
    #[cold]
    pub fn refuse_frame(&mut self, reason: Reason) -> Verdict {
        self.count_refused(reason);
        Verdict::refused(reason)
    }

    #[inline(always)]
    fn judge(&mut self, now: Nanos, frame: &[u8], rx: Rx, face: &mut impl Face) -> Verdict {
        let packet = match parse(frame) {
            Ok(packet) => packet,
            Err(Reason::FlowControl) => return self.obey(now, frame),
            Err(reason) => return Verdict::refused(reason),
        };
        let mut verdict = Verdict {
            refused: None,
            flow_control: false,
            duplicate: false,
            opcode: Some(packet.bth.opcode),
            qpn: packet.bth.dest_qpn(),
            psn: packet.bth.psn(),
            syndrome: packet.aeth().map(|aeth| aeth.syndrome),
            congestion_experienced: packet.congestion_experienced(),
        };
        match self.deliver(now, &packet, rx, face, &mut verdict) {
            Ok(()) => {}
            Err(reason) => verdict.refused = Some(reason),
        }
        verdict
    }

    /// A flow control frame (rules F-60 to F-62).
    fn obey(&mut self, now: Nanos, frame: &[u8]) -> Verdict {
        let Some(pfc) = self.port.pfc.filter(|_| self.port.enabled) else {
            return Verdict::refused(Reason::FlowControl);
        };
        let mut verdict = Verdict::refused(Reason::FlowControl);
        match flow_control::parse(frame) {
            Ok(frame) if self.pauses.obey(now, &frame.what, pfc) => {
                verdict.refused = None;
                verdict.flow_control = true;
                self.release();
            }
            Ok(_) => {}
            Err(reason) => verdict.refused = Some(reason),
        }
        verdict
    }

    #[inline(always)]
    fn deliver(
        &mut self,
        now: Nanos,
        packet: &Packet<'_>,
        rx: Rx,
        face: &mut impl Face,
        verdict: &mut Verdict,
    ) -> Result<(), Reason> {
        self.check_port(packet, rx)?;
        if packet.bth.dest_qpn() == MULTICAST_QPN {
            return self.deliver_multicast(now, packet, face);
        }
        let slot = self.slot(packet.bth.dest_qpn()).ok_or(Reason::QpUnknown)?;
        self.deliver_to(slot, now, packet, face, verdict)
    }

    /// A copy for each attached queue pair; refused only where none took one (rule U-16).
    fn deliver_multicast(
        &mut self,
        now: Nanos,
        packet: &Packet<'_>,
        face: &mut impl Face,
    ) -> Result<(), Reason> {
        let mut result = Err(Reason::MulticastGroup);
        let group = packet.dest_ip();
        let mut next = Qpn::new(0);
        while let Some(qpn) = self.groups.next_member(group, next) {
            let mut verdict = Verdict::refused(Reason::MulticastGroup);
            let taken = match self.slot(qpn) {
                Some(slot) if self.qps[slot].attributes.service == Service::Ud => {
                    self.deliver_to(slot, now, packet, face, &mut verdict)
                }
                _ => Err(Reason::ServiceMismatch),
            };
            result = result.or(taken);
            if qpn == MULTICAST_QPN {
                break;
            }
            next = Qpn::new(qpn.get() + 1);
        }
        result
    }

    #[inline(always)]
    fn deliver_to(
        &mut self,
        slot: usize,
        now: Nanos,
        packet: &Packet<'_>,
        face: &mut impl Face,
        verdict: &mut Verdict,
    ) -> Result<(), Reason> {
        let qp = &mut self.qps[slot];
        check_qp(qp, packet)?;
        if verdict.congestion_experienced && packet.row.operation != Operation::Cnp {
            qp.counters.count(Counter::EcnMarked);
            face.event(Event::CongestionMarked(qp.qpn));
            // Chosen for rule C-05: whatever is marked counts, READ responses and acknowledgements too.
            if let Some(interval_ns) = qp.attributes.policy.cnp_interval_ns
                && matches!(qp.attributes.service, Service::Rc | Service::Uc)
            {
                qp.notification.marked(now, packet.bth.pkey.get(), interval_ns);
            }
        }
        let result = match packet.row.operation {
            // Rule F-51.
            Operation::Cnp => {
                qp.counters.count(Counter::CnpHandled);
                if let Some(reaction) = &mut qp.reaction {
                    reaction.notified(now);
                }
                face.event(Event::CongestionNotified(qp.qpn));
                Err(Reason::CongestionNotification)
            }
            operation if operation.is_response() && qp.attributes.service != Service::RawFrame => {
                requester::handle(qp, now, packet, face)
            }
            _ => responder::handle(qp, now, packet, face, &mut verdict.duplicate),
        };
        if result.is_ok() {
            qp.counters.count(Counter::ReceivedPackets);
        }
        self.settle(slot);
        result
    }

    /// Checks that need no queue pair (rule V-01).
    #[inline(always)]
    fn check_port(&mut self, packet: &Packet<'_>, rx: Rx) -> Result<(), Reason> {
        if !self.port.enabled {
            return Err(Reason::QpNotReady);
        }
        let multicast = packet.bth.dest_qpn() == MULTICAST_QPN;
        let mac = if multicast { multicast_mac(packet.dest_ip()) } else { Some(self.port.mac) };
        if Some(packet.dest_mac()) != mac {
            return Err(Reason::DestinationMac);
        }
        if packet.network == Network::Grh {
            return Err(Reason::RoceV1);
        }
        if self.port.require_dont_fragment && !packet.dont_fragment() {
            return Err(Reason::Ipv4DontFragmentClear);
        }
        if !rx.icrc_verified && !packet.icrc_valid_by(&mut self.icrc) {
            return Err(Reason::Icrc);
        }
        let ours = match packet.network {
            Network::Ipv4 => packet.goes_to(self.port.ipv4.into()),
            Network::Ipv6 | Network::Grh => packet.goes_to(self.port.ipv6.into()),
        };
        // A multicast MAC address was made from a multicast group.
        if ours || multicast { Ok(()) } else { Err(Reason::DestinationIp) }
    }

    /// Runs everything whose time has come.
    pub fn handle_timeout(&mut self, now: Nanos, face: &mut impl Face) {
        if self.pauses.paused() != 0 && self.pauses.deadline() <= now {
            self.pauses.expire(now);
            self.release();
        }
        while let Some((queued, slot)) = self.timers.first() {
            if queued > now {
                break;
            }
            self.pop_timer(slot);
            let qp = &mut self.qps[slot as usize];
            if qp.exists {
                if qp.paced_until <= now {
                    qp.paced_until = Nanos::NEVER;
                }
                responder::handle_timeout(qp, now);
                requester::handle_timeout(qp, now, face);
            }
            self.settle(slot as usize);
        }
    }
}

/// What leaves.
impl Engine {
    /// Writes the next frame into `room`. Queue pairs take turns, one frame each.
    pub fn poll_transmit(
        &mut self,
        now: Nanos,
        room: &mut Room<'_>,
        face: &mut impl Face,
    ) -> Option<Train> {
        if !self.port.enabled {
            return None;
        }
        while let Some(slot) = self.next_ready(face) {
            let slot = slot as usize;
            let qp = &mut self.qps[slot];
            // It may have been disabled or destroyed since it was put on the list.
            if !qp.exists || !qp.attributes.enabled {
                qp.queued = false;
                self.ready.pop_front();
                continue;
            }
            let paused = self.pauses.paused();
            let plain = paused == 0 && !qp.notification.owes() && qp.reaction.is_none();
            let turn = if plain { Turn::Anything } else { turn(qp, now, &self.port, paused) };
            let sent = match turn {
                Turn::Anything => responder::poll(qp, &self.port, room, face)
                    .or_else(|| requester::poll(qp, now, &self.port, room, face)),
                Turn::Acknowledgement => {
                    responder::poll_acknowledgement(qp, &self.port, room, face)
                }
                Turn::Notification => NotificationPoint::poll(qp, &self.port, room),
                Turn::Nothing => None,
            };
            if let Some(train) = &sent {
                qp.counters.count(Counter::SentPackets);
                if train.retransmission {
                    qp.counters.count(Counter::RetransmittedPackets);
                }
                if qp.reaction.is_some() {
                    congestion::left(qp, now, train);
                }
            }
            // The turn is over. A queue pair that is alone on the list stays where it is.
            let more = qp.wants_to_send();
            let hold = more && sent.is_none() && paused != 0;
            if !more || hold || self.ready.len() > 1 {
                self.ready.pop_front();
                qp.queued = more;
                if hold {
                    self.held.push_back(slot as u32);
                } else if more {
                    self.ready.push_back(slot as u32);
                }
            }
            self.settle(slot);
            if sent.is_some() {
                return sent;
            }
        }
        None
    }
}

impl Engine {
    /// The queue pair whose turn it is; it stays on the list.
    #[inline(always)]
    fn next_ready(&mut self, face: &mut impl Face) -> Option<u32> {
        while let Some(qpn) = face.released() {
            self.kick(qpn);
        }
        self.ready.front().copied()
    }

    #[inline]
    fn slot_index(&self, qpn: Qpn) -> usize {
        qpn.get() as usize & (self.qps.len() - 1)
    }

    #[inline]
    fn slot(&self, qpn: Qpn) -> Option<usize> {
        let slot = self.slot_index(qpn);
        let qp = &self.qps[slot];
        (qp.exists && qp.qpn == qpn).then_some(slot)
    }

    /// A vacant queue pair for a slot that may still be on the ready list and the timers: its
    /// entries there are recognised as stale by what they find.
    fn vacate(&self, slot: usize) -> Qp {
        let Qp { queued, timer_position, queued_deadline, .. } = self.qps[slot];
        Qp { queued, timer_position, queued_deadline, ..Qp::vacant() }
    }

    /// Takes the first timer entry, which is `slot`'s.
    fn pop_timer(&mut self, slot: u32) {
        self.qps[slot as usize].queued_deadline = Nanos::NEVER;
        self.timers.pop(&mut TimerPositions(&mut self.qps));
    }

    /// Puts a queue pair on the ready list and the timers, as its state now asks for.
    #[inline(always)]
    fn settle(&mut self, slot: usize) {
        let qp = &mut self.qps[slot];
        if !qp.queued && qp.exists && qp.wants_to_send() {
            qp.queued = true;
            self.ready.push_back(slot as u32);
        }
        let deadline = qp.deadline();
        if deadline < qp.queued_deadline {
            qp.queued_deadline = deadline;
            self.timers.schedule(slot as u32, deadline, &mut TimerPositions(&mut self.qps));
        }
    }

    /// What waited for the end of a pause is looked at again.
    fn release(&mut self) {
        self.ready.append(&mut self.held);
    }

    /// Doubles the table. Slots move, so the ready list and the timers are made again.
    fn grow(&mut self) {
        self.release();
        let old = core::mem::take(&mut self.qps);
        let waiting: Vec<Qpn> = self.ready.iter().map(|&slot| old[slot as usize].qpn).collect();
        self.ready.clear();
        self.timers.clear();
        self.qps = (0..old.len() * 2).map(|_| Qp::vacant()).collect();
        self.ready.reserve(self.qps.len());
        if self.port.pfc.is_some() {
            self.held.reserve(self.qps.len());
        }
        self.timers.reserve(self.qps.len());
        for mut qp in old.into_iter().filter(|qp| qp.exists) {
            qp.queued = false;
            qp.timer_position = NOT_QUEUED;
            qp.queued_deadline = Nanos::NEVER;
            let slot = self.slot_index(qp.qpn);
            self.qps[slot] = qp;
        }
        for qpn in waiting {
            if let Some(slot) = self.slot(qpn) {
                self.settle(slot);
            }
        }
        for slot in 0..self.qps.len() {
            self.settle(slot);
        }
    }
}

/// What a queue pair may send now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Anything,
    /// Its data waits for its rate.
    Acknowledgement,
    Notification,
    /// Its priority is paused, or answers that are owed wait for its rate.
    Nothing,
}

/// Decides for a queue pair of which the answer is not plain. `paused`: bit n is priority n.
#[cold]
fn turn(qp: &mut Qp, now: Nanos, port: &Port, paused: u8) -> Turn {
    if qp.notification.owes() && paused & 1 << CNP_PRIORITY == 0 {
        Turn::Notification
    } else if held_by(paused, port, qp) {
        Turn::Nothing
    } else if !congestion::must_wait(qp, now) {
        Turn::Anything
    } else if qp.responder.answers_owed() == 0 {
        Turn::Acknowledgement
    } else {
        Turn::Nothing
    }
}

/// Whether a queue pair's class is paused.
fn held_by(paused: u8, port: &Port, qp: &Qp) -> bool {
    if port.pfc.is_some_and(|pfc| pfc.one_class) {
        return paused != 0;
    }
    paused & 1 << qp.priority(port) != 0
}

/// Checks between finding the queue pair and looking at the PSN (rule V-01).
#[inline(always)]
fn check_qp(qp: &Qp, packet: &Packet<'_>) -> Result<(), Reason> {
    let attributes = &qp.attributes;
    if !attributes.enabled {
        return Err(attributes.policy.disabled);
    }
    // Chosen for rule V-07: a CNP is noted in the states that execute requests.
    let any_service =
        packet.row.operation == Operation::Cnp || attributes.service == Service::RawFrame;
    let fits = match attributes.service {
        Service::Rc => packet.row.transport == Transport::Rc,
        Service::Uc => packet.row.transport == Transport::Uc,
        Service::Ud => packet.row.transport == Transport::Ud,
        Service::RawFrame => true,
    };
    if !fits && !any_service {
        return Err(Reason::ServiceMismatch);
    }
    let accepts = if packet.row.operation.is_response() && !any_service {
        qp.state.accepts_responses()
    } else {
        qp.state.accepts_requests()
    };
    if !accepts {
        return Err(if qp.state == State::Error { Reason::QpFatal } else { Reason::QpNotReady });
    }
    if attributes.service == Service::RawFrame {
        return Ok(());
    }
    // A CNP must come from the peer, as everything else.
    if attributes.policy.check_source
        && attributes.service != Service::Ud
        && !packet.comes_from(attributes.path.dest_ip)
    {
        let of_peer = attributes.path.dest_ip.is_ipv6();
        let same = (packet.network == Network::Ipv6) == of_peer;
        return Err(if same { Reason::SourceAddress } else { Reason::IpFamily });
    }
    if attributes.policy.check_pkey && !pkeys_match(attributes.pkey, packet.bth.pkey.get()) {
        return Err(Reason::PKey);
    }
    if attributes.policy.strict_pad && packet.payload().is_empty() && packet.bth.pad_count() != 0 {
        return Err(Reason::PadCount);
    }
    Ok(())
}

/// Rule V-05: equal low 15 bits, not 0, and at least one side is a full member.
const fn pkeys_match(ours: u16, theirs: u16) -> bool {
    (ours ^ theirs) & 0x7FFF == 0 && ours & 0x7FFF != 0 && (ours | theirs) & 0x8000 != 0
}

/// The MAC address of a multicast group (rule F-64); `None` where it is not one.
#[must_use]
pub fn multicast_mac(group: IpAddr) -> Option<[u8; 6]> {
    match group {
        IpAddr::V4(ip) if ip.is_multicast() => {
            let [_, b, c, d] = ip.octets();
            Some([0x01, 0x00, 0x5E, b & 0x7F, c, d])
        }
        IpAddr::V6(ip) if ip.is_multicast() => {
            let [.., a, b, c, d] = ip.octets();
            Some([0x33, 0x33, a, b, c, d])
        }
        _ => None,
    }
}
