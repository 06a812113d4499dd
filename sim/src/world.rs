//! A world: stations, the links between them, a virtual clock, and the events in their order.
//!
//! The same calls in the same order give the same world, frame for frame. Knows no device, no
//! operating system and no wall clock.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::ops::{Deref, DerefMut};

use softrnic_device::{Device, Memory, Nic};
use softrnic_engine::packet::FRAME_LEN_MAX;
use softrnic_engine::{Nanos, Psn, Qpn, Reason, Room, Rx, Train, Verdict};

use crate::fault::{self, AtFace, Injector, Lent, Outcome};
use crate::ladder::Remark;
use crate::link::{Direction, Goal, LinkConfig, Loss, Traffic};

/// What can stand at the end of a link: the calls of [`Nic`].
pub trait Station {
    /// A frame arrived.
    fn handle_frame(&mut self, now: Nanos, frame: &[u8]) -> Verdict;
    /// The link can take a frame.
    fn poll_transmit(&mut self, now: Nanos, room: &mut Room<'_>) -> Option<Train>;
    /// Time has passed.
    fn handle_timeout(&mut self, now: Nanos);
    /// When [`Station::handle_timeout`] should be called next.
    fn next_deadline(&mut self) -> Option<Nanos>;

    /// [`Station::handle_frame`] with faults at the face; without, where a station knows none.
    fn handle_frame_at(&mut self, faults: &mut AtFace<'_>, frame: &[u8]) -> Verdict {
        self.handle_frame(faults.now(), frame)
    }

    /// [`Station::poll_transmit`] with faults at the face.
    fn poll_transmit_at(&mut self, faults: &mut AtFace<'_>, room: &mut Room<'_>) -> Option<Train> {
        self.poll_transmit(faults.now(), room)
    }

    /// [`Station::handle_timeout`] with faults at the face: also when a held completion is due.
    fn handle_timeout_at(&mut self, faults: &mut AtFace<'_>) {
        self.handle_timeout(faults.now());
    }

    /// Where the station's software finds the fault rules that stand before its device while it is at
    /// work; `None` where a station knows none.
    fn lent_rules(&mut self) -> Option<&mut Option<Lent>> {
        None
    }
}

impl<D: Device<M>, M: Memory> Station for Nic<D, M> {
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

    fn handle_frame_at(&mut self, faults: &mut AtFace<'_>, frame: &[u8]) -> Verdict {
        faults.handle_frame(self, frame, Rx::default())
    }

    fn poll_transmit_at(&mut self, faults: &mut AtFace<'_>, room: &mut Room<'_>) -> Option<Train> {
        faults.poll_transmit(self, room)
    }

    fn handle_timeout_at(&mut self, faults: &mut AtFace<'_>) {
        faults.handle_timeout(self);
    }
}

impl<S: Station + ?Sized> Station for Box<S> {
    fn handle_frame(&mut self, now: Nanos, frame: &[u8]) -> Verdict {
        (**self).handle_frame(now, frame)
    }

    fn poll_transmit(&mut self, now: Nanos, room: &mut Room<'_>) -> Option<Train> {
        (**self).poll_transmit(now, room)
    }

    fn handle_timeout(&mut self, now: Nanos) {
        (**self).handle_timeout(now);
    }

    fn next_deadline(&mut self) -> Option<Nanos> {
        (**self).next_deadline()
    }

    fn handle_frame_at(&mut self, faults: &mut AtFace<'_>, frame: &[u8]) -> Verdict {
        (**self).handle_frame_at(faults, frame)
    }

    fn poll_transmit_at(&mut self, faults: &mut AtFace<'_>, room: &mut Room<'_>) -> Option<Train> {
        (**self).poll_transmit_at(faults, room)
    }

    fn handle_timeout_at(&mut self, faults: &mut AtFace<'_>) {
        (**self).handle_timeout_at(faults);
    }

    fn lent_rules(&mut self) -> Option<&mut Option<Lent>> {
        (**self).lent_rules()
    }
}

/// A station whose software is at work: what it has the device do passes the fault rules at the face.
/// Dropping it gives the rules back to the world.
#[derive(Debug)]
pub struct AtWork<'a, N: Station> {
    station: &'a mut N,
    lender: &'a mut Injector,
}

impl<N: Station> Deref for AtWork<'_, N> {
    type Target = N;

    fn deref(&self) -> &N {
        self.station
    }
}

impl<N: Station> DerefMut for AtWork<'_, N> {
    fn deref_mut(&mut self) -> &mut N {
        self.station
    }
}

impl<N: Station> Drop for AtWork<'_, N> {
    fn drop(&mut self) {
        if let Some(lent) = self.station.lent_rules().and_then(Option::take) {
            *self.lender = lent.injector;
        }
    }
}

/// A frame at the moment of its arrival, or when a lost one would have arrived.
#[derive(Clone, Copy, Debug)]
pub struct Sighting<'a> {
    /// When it left.
    pub sent: Nanos,
    /// When it arrived.
    pub at: Nanos,
    /// Which link or switch, in the order of [`World::connect`] and [`World::connect_switch`].
    pub link: usize,
    /// Sending station.
    pub from: usize,
    /// Receiving station.
    pub to: usize,
    /// The bytes, without FCS.
    pub frame: &'a [u8],
    /// It had been sent before.
    pub retransmission: bool,
    /// A fault rule made this copy.
    pub copy: bool,
    /// The fault rules that fired on it, by number from 0.
    pub faults: &'a [usize],
    /// What became of it.
    pub fate: Fate,
    /// What the receiver read in it; `None` where it could not read a BTH, or never saw the frame.
    pub read: Option<PacketId>,
}

/// Which packet it is, as its receiver reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketId {
    /// BTH.OpCode.
    pub opcode: u8,
    /// BTH.DestQP.
    pub qpn: Qpn,
    /// BTH.PSN.
    pub psn: Psn,
}

impl fmt::Display for PacketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QP {}, PSN {}", self.qpn, self.psn)
    }
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Executed.
    Delivered,
    /// A request that had been executed before, answered again.
    Duplicate,
    /// The receiver did not execute it.
    Refused(Reason),
    /// The link lost it.
    Lost(Loss),
}

/// In words; with `{:#}`, a refusal comes with its sentence.
impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Delivered => f.write_str("delivered"),
            Self::Duplicate => f.write_str("duplicate: executed before, answered again"),
            Self::Refused(reason) if f.alternate() => {
                write!(f, "refused: {reason}. {}", reason.row().text)
            }
            Self::Refused(reason) => write!(f, "refused: {reason}"),
            Self::Lost(loss) => write!(f, "lost: {loss}"),
        }
    }
}

/// What real time goes into, so that somebody with a clock can tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Devices, their drivers, and the virtual wire between them.
    Device,
    /// Filling and comparing messages.
    Payload,
    /// The observer itself.
    Observer,
}

/// Sees every frame.
pub trait Observer {
    /// A frame arrived or was lost.
    fn frame(&mut self, sighting: &Sighting<'_>);

    /// What follows is this kind of work. Called at every change.
    fn activity(&mut self, what: Activity) {
        let _ = what;
    }

    /// A station noticed something that is no frame.
    fn remark(&mut self, remark: &Remark) {
        let _ = remark;
    }

    /// A message was compared with what was sent, and is right.
    fn message(&mut self) {}
}

/// Looks away.
impl Observer for () {
    fn frame(&mut self, _: &Sighting<'_>) {}
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// The frame in a slot arrives, if it is still the one with this ticket.
    Arrival { slot: usize, ticket: u64 },
    /// A direction can take the next frame.
    Free(usize),
    /// A station's deadline, as it was when queued.
    Deadline(usize),
}

/// In the order of time, then of scheduling: ties have one order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at: Nanos,
    sequence: u64,
    what: What,
}

#[derive(Debug)]
struct Port<N> {
    station: N,
    /// The direction it sends into.
    direction: Option<usize>,
    /// The earliest queued deadline; NEVER if none.
    alarm: Nanos,
    /// Software has touched it since it was last polled.
    touched: bool,
    /// A `Free` event is queued.
    waiting: bool,
}

/// A frame on its way.
#[derive(Debug)]
struct Flight {
    /// A whole buffer, of which the first `len` bytes are the frame.
    buffer: Vec<u8>,
    len: usize,
    sent: Nanos,
    direction: usize,
    /// The station that it arrives at.
    to: usize,
    lost: Option<Loss>,
    retransmission: bool,
    copy: bool,
    /// The rules for arriving frames have had their say.
    judged: bool,
    faults: Vec<usize>,
    /// Of the event that will deliver it.
    ticket: u64,
}

/// A frame that lets others pass.
#[derive(Debug)]
struct Held {
    slot: usize,
    ticket: u64,
    direction: usize,
    side: fault::Direction,
    /// So many more.
    behind: u32,
}

/// Stations and links on one virtual clock.
#[derive(Debug)]
pub struct World<N> {
    now: Nanos,
    ports: Vec<Port<N>>,
    /// Two for each link: there and back. One for each port of a switch.
    directions: Vec<Direction>,
    links: usize,
    /// MAC addresses behind each switch, with their stations.
    switches: Vec<Vec<([u8; 6], usize)>>,
    events: BinaryHeap<Reverse<Event>>,
    sequence: u64,
    flights: Vec<Option<Flight>>,
    free_slots: Vec<usize>,
    held: Vec<Held>,
    faults: Injector,
    face_rules: bool,
    interrupt_rules: bool,
    spare_buffers: Vec<Vec<u8>>,
}

impl<N: Station> World<N> {
    /// An empty world at time 0, in which these faults happen.
    #[must_use]
    pub fn new(faults: Injector) -> Self {
        Self {
            face_rules: faults.has_face_rules(),
            interrupt_rules: faults.has_interrupt_rules(),
            now: Nanos(0),
            ports: Vec::new(),
            directions: Vec::new(),
            links: 0,
            switches: Vec::new(),
            events: BinaryHeap::new(),
            sequence: 0,
            flights: Vec::new(),
            free_slots: Vec::new(),
            held: Vec::new(),
            faults,
            spare_buffers: Vec::new(),
        }
    }

    /// Adds a station; returns its number.
    pub fn add(&mut self, station: N) -> usize {
        let (direction, alarm) = (None, Nanos::NEVER);
        self.ports.push(Port { station, direction, alarm, touched: true, waiting: false });
        self.ports.len() - 1
    }

    /// Joins two stations; returns the link's number. A station's older link is left unused.
    pub fn connect(&mut self, a: usize, b: usize, config: LinkConfig) -> usize {
        for (from, to) in [(a, b), (b, a)] {
            self.add_direction(from, Goal::Station(to), config);
        }
        self.links += 1;
        self.links - 1
    }

    /// Joins stations by a switch; returns its number among the links. A frame goes to the station
    /// whose MAC address it names, and to all but its sender where it names none of them. The cables
    /// to the switch are as `config` says; the switch itself takes no time and queues nothing.
    pub fn connect_switch(&mut self, ports: &[([u8; 6], usize)], config: LinkConfig) -> usize {
        for &(_, from) in ports {
            self.add_direction(from, Goal::Switch(self.switches.len()), config);
        }
        self.switches.push(ports.to_vec());
        self.links += 1;
        self.links - 1
    }

    fn add_direction(&mut self, from: usize, goal: Goal, config: LinkConfig) {
        let direction = self.directions.len();
        self.directions.push(Direction::new(from, goal, self.links, config));
        self.ports[from].direction = Some(direction);
    }

    /// The virtual time.
    #[must_use]
    pub const fn now(&self) -> Nanos {
        self.now
    }

    /// A station.
    #[must_use]
    pub fn station(&self, number: usize) -> &N {
        &self.ports[number].station
    }

    /// A station, for software to touch. What it then wants to send is sent by the next step.
    pub fn station_mut(&mut self, number: usize) -> &mut N {
        let port = &mut self.ports[number];
        port.touched = true;
        &mut port.station
    }

    /// A station whose software goes to work now: [`World::station_mut`], with the rules at its face.
    pub fn at_work(&mut self, number: usize) -> AtWork<'_, N> {
        let port = &mut self.ports[number];
        port.touched = true;
        if self.face_rules
            && let Some(rules) = port.station.lent_rules()
        {
            *rules = Some(Lent::new(core::mem::take(&mut self.faults), self.now, number));
        }
        AtWork { station: &mut port.station, lender: &mut self.faults }
    }

    /// The link that a station sends into.
    #[must_use]
    pub fn link_of(&self, station: usize) -> Option<usize> {
        self.ports[station].direction.map(|d| self.directions[d].link)
    }

    /// What a station has sent.
    #[must_use]
    pub fn sent(&self, station: usize) -> Traffic {
        self.ports[station].direction.map(|d| self.directions[d].traffic).unwrap_or_default()
    }

    /// Frames on all wires, lost ones included.
    #[must_use]
    pub fn frames_in_flight(&self) -> usize {
        self.flights.len() - self.free_slots.len()
    }

    /// The fault rules and what they have done.
    #[must_use]
    pub const fn faults(&self) -> &Injector {
        &self.faults
    }

    /// A phase begins: see [`Injector::start_phase`].
    pub const fn start_phase(&mut self, phase: usize) {
        self.faults.start_phase(phase, self.now);
    }

    /// Runs up to the next arrival or deadline and returns its station, whose software may now look
    /// at it. `None` when nothing will ever happen again.
    pub fn step(&mut self, observer: &mut dyn Observer) -> Option<usize> {
        observer.activity(Activity::Device);
        for number in 0..self.ports.len() {
            if core::mem::take(&mut self.ports[number].touched) {
                self.service(number);
            }
        }
        while let Some(Reverse(event)) = self.events.pop() {
            self.now = event.at;
            match event.what {
                What::Free(d) => {
                    let from = self.directions[d].from;
                    self.ports[from].waiting = false;
                    self.service(from);
                }
                What::Arrival { slot, ticket } => {
                    if let Some(station) = self.arrive(slot, ticket, observer) {
                        return Some(station);
                    }
                }
                What::Deadline(number) => {
                    if self.deadline(number) {
                        return Some(number);
                    }
                }
            }
        }
        None
    }

    fn arrive(&mut self, slot: usize, ticket: u64, observer: &mut dyn Observer) -> Option<usize> {
        // A frame that let others pass and went before its time was up leaves an event behind.
        let mut flight = self.flights[slot].take_if(|flight| flight.ticket == ticket)?;
        self.free_slots.push(slot);
        let d = flight.direction;
        let (from, to, link) = (self.directions[d].from, flight.to, self.directions[d].link);
        if flight.lost.is_none() && !flight.judged {
            let frame = &mut flight.buffer[..flight.len];
            let outcome = self.faults.frame(self.now, fault::Direction::In, to, frame);
            flight.judged = true;
            if outcome.fired.is_empty() {
                self.let_held_go(d, fault::Direction::In, self.now);
            } else {
                // Back onto the wire, as the rules say; what is not delayed comes again at once.
                self.launch(flight, outcome, self.now, fault::Direction::In);
                return None;
            }
        }
        let frame = &flight.buffer[..flight.len];
        let (mut told, mut read) = (false, None);
        let fate = match flight.lost {
            Some(loss) => Fate::Lost(loss),
            None => {
                let station = &mut self.ports[to].station;
                let verdict = if self.face_rules {
                    let mut faults = self.faults.at_face(self.now, to);
                    let verdict = station.handle_frame_at(&mut faults, frame);
                    told = faults.told();
                    verdict
                } else {
                    station.handle_frame(self.now, frame)
                };
                let Verdict { qpn, psn, .. } = verdict;
                read = verdict.opcode.map(|opcode| PacketId { opcode, qpn, psn });
                match verdict.refused {
                    Some(reason) => Fate::Refused(reason),
                    None if verdict.duplicate => Fate::Duplicate,
                    None => Fate::Delivered,
                }
            }
        };
        observer.activity(Activity::Observer);
        observer.frame(&Sighting {
            sent: flight.sent,
            at: self.now,
            link,
            from,
            to,
            frame,
            retransmission: flight.retransmission,
            copy: flight.copy,
            faults: &flight.faults,
            fate,
            read,
        });
        observer.activity(Activity::Device);
        self.spare_buffers.push(flight.buffer);
        if flight.lost.is_some() {
            return None;
        }
        self.service(to);
        self.wakes(to, told).then_some(to)
    }

    /// Whether software of a station looks now. Only where interrupts may get lost does it wait for one.
    fn wakes(&mut self, station: usize, told: bool) -> bool {
        !self.interrupt_rules || told && !self.faults.loses_interrupt(self.now, station)
    }

    /// Lets a frame arrive at `arrives`, or as fault rules have decided on this `side` of the wire.
    fn launch(
        &mut self,
        mut flight: Flight,
        outcome: Outcome,
        arrives: Nanos,
        side: fault::Direction,
    ) {
        let d = flight.direction;
        flight.len = outcome.len;
        flight.lost = flight.lost.or(outcome.lost.map(Loss::Fault));
        flight.faults.extend(outcome.fired);
        let lost = flight.lost.is_some();
        let traffic = &mut self.directions[d].traffic;
        traffic.lost += u64::from(lost);
        let copies = if lost { 0 } else { outcome.copies };
        traffic.copies += u64::from(copies);
        let due = arrives.after(outcome.delay_ns);
        for n in 1..=copies {
            let copy = self.copy(&flight);
            self.deliver_at(
                Flight { copy: true, ..copy },
                due.after(outcome.apart_ns.saturating_mul(n.into())),
            );
        }
        if outcome.behind == 0 || lost {
            self.deliver_at(flight, due);
            self.let_held_go(d, side, arrives);
        } else {
            self.let_held_go(d, side, arrives);
            let (slot, ticket) = self.deliver_at(flight, due.after(outcome.behind_limit_ns));
            self.held.push(Held { slot, ticket, direction: d, side, behind: outcome.behind });
        }
    }

    fn copy(&mut self, flight: &Flight) -> Flight {
        let mut buffer = self.spare_buffers.pop().unwrap_or_else(|| vec![0; FRAME_LEN_MAX]);
        buffer[..flight.len].copy_from_slice(&flight.buffer[..flight.len]);
        Flight { buffer, faults: flight.faults.clone(), ..*flight }
    }

    /// Returns the frame's slot and ticket.
    fn deliver_at(&mut self, mut flight: Flight, at: Nanos) -> (usize, u64) {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.flights.push(None);
            self.flights.len() - 1
        });
        let ticket = self.sequence + 1;
        flight.ticket = ticket;
        self.flights[slot] = Some(flight);
        self.schedule(at, What::Arrival { slot, ticket });
        (slot, ticket)
    }

    /// A frame has passed those that let others pass; who has waited for its last one arrives after it.
    fn let_held_go(&mut self, d: usize, side: fault::Direction, at: Nanos) {
        if self.held.is_empty() {
            return;
        }
        let mut held = core::mem::take(&mut self.held);
        held.retain_mut(|held| {
            let Some(flight) = self.flights[held.slot].as_mut().filter(|f| f.ticket == held.ticket)
            else {
                return false;
            };
            if held.direction != d || held.side != side {
                return true;
            }
            held.behind -= 1;
            if held.behind > 0 {
                return true;
            }
            self.sequence += 1;
            flight.ticket = self.sequence;
            let what = What::Arrival { slot: held.slot, ticket: self.sequence };
            self.events.push(Reverse(Event { at, sequence: self.sequence, what }));
            false
        });
        self.held = held;
    }

    /// Returns whether something was due.
    fn deadline(&mut self, number: usize) -> bool {
        let port = &mut self.ports[number];
        // An alarm that was brought forward leaves its later event behind.
        if port.alarm != self.now {
            return false;
        }
        port.alarm = Nanos::NEVER;
        let due = self.deadline_of(number).is_some_and(|deadline| deadline <= self.now);
        let mut told = false;
        if due {
            let station = &mut self.ports[number].station;
            if self.face_rules {
                let mut faults = self.faults.at_face(self.now, number);
                station.handle_timeout_at(&mut faults);
                told = faults.told();
            } else {
                station.handle_timeout(self.now);
            }
        }
        self.service(number);
        due && self.wakes(number, told)
    }

    /// The station's own next deadline, or that of a completion that a fault rule holds.
    fn deadline_of(&mut self, number: usize) -> Option<Nanos> {
        let own = self.ports[number].station.next_deadline();
        let held = if self.face_rules { self.faults.held_until(number) } else { None };
        own.into_iter().chain(held).min()
    }

    /// Lets a station send while its line is free, and sets its alarm.
    fn service(&mut self, number: usize) {
        if let Some(d) = self.ports[number].direction {
            while self.directions[d].free_at() <= self.now {
                if !self.transmit(number, d) {
                    break;
                }
            }
            if self.directions[d].free_at() > self.now && !self.ports[number].waiting {
                self.ports[number].waiting = true;
                self.schedule(self.directions[d].free_at(), What::Free(d));
            }
        }
        if let Some(deadline) = self.deadline_of(number)
            && deadline < self.ports[number].alarm
        {
            let at = deadline.max(self.now);
            self.ports[number].alarm = at;
            self.schedule(at, What::Deadline(number));
        }
    }

    fn transmit(&mut self, number: usize, d: usize) -> bool {
        let mut buffer = self.spare_buffers.pop().unwrap_or_else(|| vec![0; FRAME_LEN_MAX]);
        let mut room = Room { bytes: &mut buffer, segments: 1, source_port: None };
        let station = &mut self.ports[number].station;
        let train = if self.face_rules {
            station.poll_transmit_at(&mut self.faults.at_face(self.now, number), &mut room)
        } else {
            station.poll_transmit(self.now, &mut room)
        };
        let Some(train) = train else {
            self.spare_buffers.push(buffer);
            return false;
        };
        let direction = &mut self.directions[d];
        let arrives = direction.send(self.now, train.len, train.retransmission);
        let lost = (!direction.carries(train.len)).then_some(Loss::TooLong);
        let frame = &mut buffer[..train.len];
        let outcome = self.faults.frame(self.now, fault::Direction::Out, number, frame);
        let (to, others) = self.receivers(d, &buffer[..outcome.len]);
        let flight = Flight {
            buffer,
            len: train.len,
            sent: self.now,
            direction: d,
            to,
            lost,
            retransmission: train.retransmission,
            copy: false,
            judged: false,
            faults: Vec::new(),
            ticket: 0,
        };
        for to in others {
            let copy = self.copy(&flight);
            self.launch(Flight { to, ..copy }, outcome.clone(), arrives, fault::Direction::Out);
        }
        self.launch(flight, outcome, arrives, fault::Direction::Out);
        true
    }

    /// Who gets a frame that is sent into a direction: one station, or several.
    fn receivers(&self, d: usize, frame: &[u8]) -> (usize, Vec<usize>) {
        let direction = &self.directions[d];
        let switch = match direction.goal {
            Goal::Station(to) => return (to, Vec::new()),
            Goal::Switch(number) => &self.switches[number],
        };
        if let Some((_, to)) = switch.iter().find(|(mac, _)| frame.starts_with(mac)) {
            return (*to, Vec::new());
        }
        let mut others = switch.iter().map(|(_, to)| *to).filter(|&to| to != direction.from);
        (others.next().unwrap_or(direction.from), others.collect())
    }

    fn schedule(&mut self, at: Nanos, what: What) {
        self.sequence += 1;
        self.events.push(Reverse(Event { at, sequence: self.sequence, what }));
    }
}
