//! Plays a plan: sets the world up, posts, looks, gives buffers back, and asks the checkers.
//!
//! One virtual clock, no randomness but the plan's. Knows nodes only as [`Software`].

use std::collections::{BTreeSet, VecDeque};

use softrnic_engine::{Nanos, Room, State, Status, Train, Verdict};

use super::ernic::ErnicNode;
use super::meddle::Meddle;
use super::native::NativeNode;
use super::plan::{Class, ConnectionPlan, Flaw, Kind, MessagePlan, Plan, ServiceKind};
use super::software::{Arrival, Bytes, GRH_AREA, Remote, Report, Request, Software};
use crate::check::{
    Atomics, Delivery, End, Ended, Findings, Limits, MemoryMap, Message, NodeCheck, Posted, Use,
    Violation,
};
use crate::fault::{Action, AtFace, Injector, Lent, Rule};
use crate::link::LinkConfig;
use crate::node::NodeError;
use crate::payload::{POISON, fill_pattern_from};
use crate::random::mix;
use crate::scenario::FaceKind;
use crate::world::{Observer, Station, World};

/// What a world came to.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What must never happen, and did.
    pub violations: Vec<Violation>,
    /// Frames that nodes sent.
    pub frames: u64,
    /// Messages that completed, and that ended in error.
    pub completed: u64,
    /// See [`Outcome::completed`].
    pub failed: u64,
    /// Virtual time at the end.
    pub virtual_ns: u64,
    /// How often each fault rule fired.
    pub fired: Vec<u64>,
    /// Of every frame with its time: two runs that differ anywhere have two digests.
    pub digest: u64,
    /// What each queue pair sent and completed, with times, and without.
    pub(crate) traces: Vec<Trace>,
}

/// What one queue pair did, as numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trace {
    pub(crate) connection: usize,
    pub(crate) timed: u64,
    pub(crate) timeless: u64,
}

/// Steps after which a world is taken for one that never ends.
const STEPS_MAX: u64 = 200_000;

/// Plays a plan to its end.
#[must_use]
pub fn play(plan: &Plan) -> Outcome {
    play_with(plan, &Meddle::None, &mut ())
}

/// Plays a plan, and lets somebody else look at each frame.
#[must_use]
pub fn play_watched(plan: &Plan, observer: &mut dyn Observer) -> Outcome {
    play_with(plan, &Meddle::None, observer)
}

pub(super) fn play_with(plan: &Plan, meddle: &Meddle, observer: &mut dyn Observer) -> Outcome {
    match Play::new(plan, meddle) {
        Ok(mut play) => play.run(observer),
        Err(error) => stopped(Nanos(0), &error),
    }
}

fn stopped(at: Nanos, error: &NodeError) -> Outcome {
    let violation = Violation { invariant: "software", at, text: error.to_string() };
    Outcome { violations: vec![violation], ..Outcome::default() }
}

/// A node in its world, with its checkers before it.
struct Seat {
    node: Box<dyn Software>,
    check: NodeCheck,
    /// When its software wants to look next.
    wake: Nanos,
    meddle: Meddle,
}

impl Station for Seat {
    fn handle_frame(&mut self, now: Nanos, frame: &[u8]) -> Verdict {
        self.arrive(now, frame, |node, frame| node.handle_frame(now, frame))
    }

    fn poll_transmit(&mut self, now: Nanos, room: &mut Room<'_>) -> Option<Train> {
        let train = self.node.poll_transmit(now, room)?;
        self.left(now, &room.bytes[..train.len], &train);
        Some(train)
    }

    fn handle_timeout(&mut self, now: Nanos) {
        self.awake(now);
        if self.node.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.check.look(self.node.engine());
            self.node.handle_timeout(now);
            self.check.timed_out(now, self.node.engine());
        }
    }

    fn next_deadline(&mut self) -> Option<Nanos> {
        let wake = Some(self.wake).filter(|&wake| wake != Nanos::NEVER);
        self.node.next_deadline().into_iter().chain(wake).min()
    }

    fn handle_frame_at(&mut self, faults: &mut AtFace<'_>, frame: &[u8]) -> Verdict {
        self.arrive(faults.now(), frame, |node, frame| node.handle_frame_at(faults, frame))
    }

    fn poll_transmit_at(&mut self, faults: &mut AtFace<'_>, room: &mut Room<'_>) -> Option<Train> {
        let train = self.node.poll_transmit_at(faults, room)?;
        self.left(faults.now(), &room.bytes[..train.len], &train);
        Some(train)
    }

    fn handle_timeout_at(&mut self, faults: &mut AtFace<'_>) {
        self.awake(faults.now());
        self.check.look(self.node.engine());
        self.node.handle_timeout_at(faults);
        self.check.timed_out(faults.now(), self.node.engine());
    }

    fn lent_rules(&mut self) -> Option<&mut Option<Lent>> {
        self.node.lent_rules()
    }
}

impl Seat {
    /// A frame arrives: what paired runs do to it, the engine's part, and the checkers'.
    fn arrive(
        &mut self,
        now: Nanos,
        frame: &[u8],
        mut hand_over: impl FnMut(&mut dyn Software, &[u8]) -> Verdict,
    ) -> Verdict {
        let mut own = Vec::new();
        let injected = self.meddle.before(frame);
        let frame = match self.meddle.change(frame, &mut own) {
            None => None,
            Some(true) => Some(own.as_slice()),
            Some(false) => Some(frame),
        };
        let mut last = lost();
        // What was mixed in is judged and counted as any other frame, by the checkers too.
        for frame in injected.as_deref().into_iter().chain(frame) {
            self.check.look(self.node.engine());
            last = hand_over(self.node.as_mut(), frame);
            self.check.received(now, self.node.engine(), frame, &last);
        }
        last
    }

    /// Software's own time has come; it may still miss it where an interrupt is lost.
    fn awake(&mut self, now: Nanos) {
        if self.wake <= now {
            self.wake = Nanos::NEVER;
        }
    }

    fn left(&mut self, now: Nanos, frame: &[u8], train: &Train) {
        let node = &self.node;
        let memory = |address, len| node.memory().slice(address, len).ok();
        self.check.transmitted(now, node.engine(), frame, train, memory);
    }
}

/// For a frame that never reached the engine.
fn lost() -> Verdict {
    Verdict {
        refused: Some(softrnic_engine::Reason::NotRoce),
        flow_control: false,
        duplicate: false,
        opcode: None,
        qpn: softrnic_engine::Qpn::new(0),
        psn: softrnic_engine::Psn::new(0),
        syndrome: None,
        congestion_experienced: false,
    }
}

/// One end of a connection, as its software sees it.
struct EndState {
    connection: usize,
    side: usize,
    node: usize,
    /// Its number on its node, and the peer's number among all ends.
    local: usize,
    peer: usize,
    qpn: u32,
    /// What is still to be posted.
    queue: VecDeque<usize>,
    delivery: Delivery,
    /// Atomics that it asks the peer for, and where the peer has its cells for them.
    atomics: Atomics,
    cells: u64,
    /// Buffers that are given back at a time.
    releases: VecDeque<(Nanos, Bytes)>,
    flushed: bool,
    /// What completed of its own work, and what arrived, as numbers.
    done_trace: u64,
    arrived_trace: u64,
}

/// A message's places.
#[derive(Clone, Copy, Default)]
struct Places {
    local: Bytes,
    remote: u64,
    rkey: u32,
    pattern: u64,
    operands: (u64, u64),
    /// An atomic's number in its cell.
    number: usize,
    /// Slots in the memory maps of poster and peer.
    local_slot: usize,
    remote_slot: Option<usize>,
}

struct Play<'a> {
    plan: &'a Plan,
    world: World<Seat>,
    ends: Vec<EndState>,
    places: Vec<Places>,
    maps: Vec<MemoryMap>,
    findings: Findings,
    completed: u64,
    failed: u64,
    /// Receive buffers that software has blanked.
    blanked: BTreeSet<(usize, u64)>,
    reports: Vec<Report>,
    /// Lost completions that the checkers have heard of.
    lost: usize,
    /// Software has looked for the first time.
    looked: bool,
}

/// Guard bytes between things.
const GUARD: u64 = 64;

const fn slot_len(len: u32) -> u64 {
    (len as u64).next_multiple_of(64) + GUARD
}

/// What a message's bytes follow from.
fn pattern_of(plan: &Plan, message: usize, version: u64) -> u64 {
    mix(plan.seed ^ mix(message as u64 + 1) ^ mix(version << 32))
}

impl<'a> Play<'a> {
    fn new(plan: &'a Plan, meddle: &Meddle) -> Result<Self, NodeError> {
        let faults = Injector::new(plan.faults.clone(), plan.seed);
        let mut world = World::new(faults);
        let mut ports = Vec::new();
        for (i, node_plan) in plan.node.iter().enumerate() {
            let spec = plan.spec(i);
            let len = area_len(plan, i);
            let queue_pairs = plan.connection.iter().filter(|c| c.nodes.contains(&i)).count();
            let node: Box<dyn Software> = match node_plan.face {
                FaceKind::Ernic => Box::new(ErnicNode::new(&spec, queue_pairs as u16, len)?),
                FaceKind::Native => Box::new(NativeNode::new(&spec, node_plan, len)?),
            };
            let (check, wake) = (NodeCheck::new(), Nanos::NEVER);
            let meddle = meddle.for_node(i, node_plan.face == FaceKind::Native);
            let number = world.add(Seat { node, check, wake, meddle });
            ports.push((spec.mac, number));
        }
        let config = LinkConfig {
            latency_ns: plan.latency_ns,
            rate_bits_per_s: plan.rate_bits_per_s,
            ..LinkConfig::default()
        };
        world.connect_switch(&ports, config);
        let mut play = Self {
            plan,
            world,
            ends: Vec::new(),
            places: vec![Places::default(); plan.message.len()],
            maps: vec![MemoryMap::default(); plan.node.len()],
            findings: Findings::default(),
            completed: 0,
            failed: 0,
            blanked: BTreeSet::new(),
            reports: Vec::new(),
            lost: 0,
            looked: false,
        };
        for (number, connection) in plan.connection.iter().enumerate() {
            play.open(number, connection)?;
        }
        Ok(play)
    }

    /// Opens and connects both ends of a connection.
    fn open(&mut self, number: usize, connection: &ConnectionPlan) -> Result<(), NodeError> {
        let first = self.ends.len();
        for side in 0..2 {
            let end = self.lay_out(number, connection, side, first)?;
            self.ends.push(end);
        }
        for side in 0..2 {
            let (end, peer) = (&self.ends[first + side], &self.ends[first + 1 - side]);
            let spec = self.plan.spec(peer.node);
            let ip = if connection.ipv6 { spec.ipv6.into() } else { spec.ipv4.into() };
            let first_psn = [connection.first_psn[side], connection.first_psn[1 - side]];
            let remote = Remote { mac: spec.mac, ip, qpn: peer.qpn, first_psn };
            let (local, qpn) = (end.local, softrnic_engine::Qpn::new(end.qpn));
            let mut seat = self.world.at_work(end.node);
            seat.node.connect(local, connection, side, &remote)?;
            drop(seat);
            let patience_ns = self.patience_ns(connection);
            let answer_within_ns = if connection.dcqcn {
                u64::MAX
            } else {
                20_000 + 262_144 * 8 * 1_000_000_000 / self.plan.rate_bits_per_s.max(1)
            };
            let seat = self.world.station_mut(self.ends[first + side].node);
            if let Some(qp) = seat.node.engine().qp(qpn) {
                let fails_memory = |rule: &Rule| matches!(rule.action, Action::DmaError { .. });
                let memory_fails = self.plan.faults.0.iter().any(fails_memory);
                let end = End::new(qp, ip, patience_ns, answer_within_ns, memory_fails);
                seat.check.ends.push(end);
            }
        }
        Ok(())
    }

    fn patience_ns(&self, connection: &ConnectionPlan) -> Option<u64> {
        let delay = |action: &Action| match *action {
            Action::Delay { by_ns, jitter_ns } => by_ns + jitter_ns,
            Action::Reorder { limit_ns, .. } => limit_ns,
            Action::Duplicate { copies, apart_ns } => apart_ns * u64::from(copies),
            _ => 0,
        };
        let delays: u64 = self.plan.faults.0.iter().map(|rule| delay(&rule.action)).sum();
        let limits = Limits {
            ack_timeout: connection.ack_timeout,
            retry_count: connection.retry_count,
            rnr_retry: connection.rnr_retry,
            rnr_timer: connection.min_rnr_timer,
            slack_ns: 5_000_000 + 2 * delays,
        };
        // A NAK that lies may ask for any wait.
        limits.patience_ns().filter(|_| self.plan.class != Class::Hostile)
    }

    /// Gives an end its memory: for what it posts, for what it receives, and for the peer.
    fn lay_out(
        &mut self,
        number: usize,
        connection: &ConnectionPlan,
        side: usize,
        first: usize,
    ) -> Result<EndState, NodeError> {
        let (plan, node) = (self.plan, connection.nodes[side]);
        let mtu = connection.path_mtu;
        let of = |from: usize| {
            let messages = plan.message.iter().enumerate();
            messages.filter(move |(_, m)| m.connection == number && m.from == from)
        };
        let seat = self.world.station_mut(node);
        // What it posts.
        let local_len = of(side).map(|(_, m)| slot_len(m.len)).sum::<u64>() + GUARD;
        let local = seat.node.take(local_len)?;
        let mut at = local + GUARD;
        for (i, m) in of(side) {
            let place = &mut self.places[i];
            place.local = Bytes { address: at, len: m.len };
            place.pattern = pattern_of(plan, i, 0);
            let what = match m.kind {
                Kind::Read => Use::Read { versions: Vec::new(), whole: false },
                Kind::FetchAdd | Kind::CompareSwap => Use::Anything,
                _ => {
                    let bytes = seat.node.memory_mut().slice_mut(at, m.len as usize)?;
                    fill_pattern_from(place.pattern, 0, bytes);
                    Use::Kept(place.pattern)
                }
            };
            place.local_slot = self.maps[node].add(at, m.len.into(), mtu, what);
            at += slot_len(m.len);
        }
        // What it receives.
        let stride = slot_len(buffer_len(connection));
        let receives_len = stride * u64::from(connection.receives);
        let receives = seat.node.take(receives_len)?;
        if plan.node[node].face == FaceKind::Native {
            for i in 0..u64::from(connection.receives) {
                let len = buffer_len(connection).into();
                self.maps[node].add(receives + i * stride, len, mtu, Use::Anything);
                self.blanked.insert((node, receives + i * stride));
            }
        }
        // What the peer may write to and read from.
        let open_len = of(1 - side).map(|(_, m)| slot_len(m.len)).sum::<u64>() + 2 * GUARD;
        let open = seat.node.take(open_len)?;
        let rkey = seat.node.open_region(open, open_len)?;
        self.maps[node].open.push((open, open + open_len));
        seat.node.memory_mut().slice_mut(open, 16)?.fill(0);
        self.maps[node].add(open, 16, mtu, Use::Anything);
        let mut at = open + 2 * GUARD - 64;
        for (i, m) in of(1 - side) {
            at += 64;
            let place = &mut self.places[i];
            (place.remote, place.rkey) = (at, rkey);
            match (m.kind, m.flaw) {
                (Kind::SendInv, _) => {
                    let region = seat.node.take(64)?;
                    place.rkey = seat.node.open_region(region, 64)?;
                    self.maps[node].open.push((region, region + 64));
                }
                (_, Some(Flaw::Key)) => place.rkey = NO_KEY,
                (_, Some(Flaw::Range)) => place.remote = open + open_len + 1 - u64::from(m.len),
                (Kind::Write | Kind::WriteImm, _) => {
                    let what = Use::Written { pattern: pattern_of(plan, i, 0), whole: false };
                    place.remote_slot = Some(self.maps[node].add(at, m.len.into(), mtu, what));
                }
                (Kind::Read, _) => {
                    let base = pattern_of(plan, i, 1);
                    let bytes = seat.node.memory_mut().slice_mut(at, m.len as usize)?;
                    fill_pattern_from(base, 0, bytes);
                    place.remote_slot =
                        Some(self.maps[node].add(at, m.len.into(), mtu, Use::Kept(base)));
                }
                _ => {}
            }
            at += slot_len(m.len) - 64;
        }
        let local_range = (local, local_len);
        let qpn = seat.node.open(connection, side, local_range, (receives, receives_len))?;
        let node_ends = self.ends.iter().filter(|end| end.node == node).count();
        let shuffles = plan.faults.0.iter().any(|rule| {
            matches!(
                rule.action,
                Action::Duplicate { .. } | Action::Delay { .. } | Action::Reorder { .. }
            )
        });
        let name = format!("connection {number} from n{node}");
        let hostile = plan.class == Class::Hostile;
        let service = connection.service.service();
        Ok(EndState {
            connection: number,
            side,
            node,
            local: node_ends,
            peer: first + 1 - side,
            qpn,
            queue: of(side).map(|(i, _)| i).collect(),
            delivery: Delivery::new(name, service, shuffles, hostile),
            atomics: Atomics::default(),
            cells: open,
            releases: VecDeque::new(),
            flushed: false,
            done_trace: 0,
            arrived_trace: 0,
        })
    }

    fn run(&mut self, observer: &mut dyn Observer) -> Outcome {
        let mut steps = 0;
        // At first, and when the wires are silent, every node's software looks: what leaves without
        // being answered completes unheard.
        while self.everybody_looks() {
            while let Some(node) = self.world.step(observer) {
                steps += 1;
                if steps > STEPS_MAX {
                    let now = self.world.now();
                    let text = || "the world does not come to an end".to_owned();
                    self.findings.add("P-06", now, text);
                    return self.finish();
                }
                if let Err(error) = self.software(node) {
                    return stopped(self.world.now(), &error);
                }
            }
        }
        self.finish()
    }

    /// Returns whether anything has changed since they looked last.
    fn everybody_looks(&mut self) -> bool {
        let seen = |play: &Self| {
            let ends =
                play.ends.iter().map(|e| (e.queue.len(), e.delivery.outstanding(), e.flushed));
            ends.collect::<Vec<_>>()
        };
        let (before, first) = (seen(self), self.world.now() == Nanos(0) && !self.looked);
        self.looked = true;
        for node in 0..self.plan.node.len() {
            if let Err(error) = self.software(node) {
                let (now, text) = (self.world.now(), error.to_string());
                self.findings.add("software", now, || text);
            }
        }
        first || seen(self) != before
    }

    /// A node's software looks at what has happened, and does what it can.
    fn software(&mut self, node: usize) -> Result<(), NodeError> {
        let now = self.world.now();
        let mut reports = core::mem::take(&mut self.reports);
        // Posting may complete something at once.
        let mut again = true;
        while again {
            reports.clear();
            self.world.station_mut(node).node.poll(&mut reports)?;
            self.hear_of_lost();
            for report in &reports {
                match *report {
                    Report::Done { end, id, ended } => {
                        let end = self.number_of(node, end);
                        self.done(now, end, id, ended)?;
                    }
                    Report::Arrived { end, arrival } => {
                        let end = self.number_of(node, end);
                        self.arrived(now, end, &arrival)?;
                    }
                }
            }
            again = !reports.is_empty();
            for end in 0..self.ends.len() {
                if self.ends[end].node == node {
                    self.release(now, end)?;
                    again |= self.post(now, end)?;
                }
            }
        }
        self.reports = reports;
        let own = (0..self.ends.len()).filter(|&end| self.ends[end].node == node);
        let wake = own.map(|end| self.next_wish(now, end)).min().unwrap_or(Nanos::NEVER);
        self.world.station_mut(node).wake = wake;
        Ok(())
    }

    /// Completions that rules have lost: software never learns of them, the checkers do.
    fn hear_of_lost(&mut self) {
        let lost = self.world.faults().lost_completions();
        for lost in &lost[self.lost..] {
            let ended = match lost.status {
                Status::Success => Ended::Success,
                Status::Flushed => Ended::Flushed,
                _ => Ended::Error,
            };
            let own = |end: &&mut EndState| end.node == lost.node && end.qpn == lost.q.get();
            if let Some(end) = self.ends.iter_mut().find(own) {
                end.delivery.lost(lost.index as usize, ended);
            }
        }
        self.lost = lost.len();
    }

    fn number_of(&self, node: usize, local: usize) -> usize {
        let found = self.ends.iter().position(|end| end.node == node && end.local == local);
        found.unwrap_or(0)
    }

    /// When an end's software wants to be called again.
    fn next_wish(&self, now: Nanos, end: usize) -> Nanos {
        let state = &self.ends[end];
        let release = state.releases.front().map_or(Nanos::NEVER, |(at, _)| *at);
        let post = state.queue.front().map_or(Nanos::NEVER, |&m| Nanos(self.plan.message[m].at_ns));
        // What may be posted now and is not waits for a completion.
        let post = if post <= now { Nanos::NEVER } else { post };
        release.min(post)
    }

    fn release(&mut self, now: Nanos, end: usize) -> Result<(), NodeError> {
        while let Some(&(at, buffer)) = self.ends[end].releases.front()
            && at <= now
        {
            self.ends[end].releases.pop_front();
            let EndState { node, local, .. } = self.ends[end];
            self.world.at_work(node).node.release(local, buffer)?;
        }
        Ok(())
    }

    fn dead(&self, end: usize) -> bool {
        let EndState { node, qpn, .. } = self.ends[end];
        let qp = self.world.station(node).node.engine().qp(softrnic_engine::Qpn::new(qpn));
        qp.is_none_or(|qp| matches!(qp.state(), State::Error | State::Sqe))
    }

    /// Posts what may be posted now; returns whether there was anything to do.
    fn post(&mut self, now: Nanos, end: usize) -> Result<bool, NodeError> {
        let state = &self.ends[end];
        let connection = &self.plan.connection[state.connection];
        let ernic = self.plan.node[state.node].face == FaceKind::Ernic;
        if ernic && !state.flushed && self.dead(end) {
            let EndState { node, local, .. } = self.ends[end];
            self.world.at_work(node).node.flush(local)?;
            self.ends[end].flushed = true;
            self.ends[end].queue.clear();
            return Ok(true);
        }
        let limit = connection.outstanding as usize;
        let mut posted = false;
        while let Some(&message) = self.ends[end].queue.front() {
            let state = &self.ends[end];
            let room = limit - state.delivery.outstanding().min(limit);
            if room == 0 || Nanos(self.plan.message[message].at_ns) > now {
                break;
            }
            let last = room == 1 || state.queue.len() == 1;
            self.post_one(end, message, last)?;
            posted = true;
        }
        Ok(posted)
    }

    /// `last`: software must hear of it, or it would never post again.
    fn post_one(&mut self, end: usize, message: usize, last: bool) -> Result<(), NodeError> {
        let plan: &MessagePlan = &self.plan.message[message];
        let state = &mut self.ends[end];
        state.queue.pop_front();
        let place = &mut self.places[message];
        match plan.kind {
            Kind::FetchAdd => {
                let (addend, number) = state.atomics.add();
                (place.operands, place.number) = ((addend, 0), number);
            }
            Kind::CompareSwap => {
                let (compare, swap, number) = state.atomics.swap(place.pattern | 1);
                (place.operands, place.number) = ((swap, compare), number);
            }
            _ => {}
        }
        let peer = state.peer;
        let (node, local, qpn) = (state.node, state.local, state.qpn);
        let cells = self.ends[peer].cells;
        let place = &mut self.places[message];
        if plan.flaw.is_none() {
            match plan.kind {
                Kind::FetchAdd => place.remote = cells,
                Kind::CompareSwap => place.remote = cells + 8,
                _ => {}
            }
        }
        let place = *place;
        let ernic = self.plan.node[node].face == FaceKind::Ernic;
        let signaled = plan.signaled || last || ernic || plan.kind.reads();
        let immediate = immediate_of(message);
        let (solicited, fence) = (plan.solicited && !ernic, plan.fence && !ernic);
        let peer_is_ernic = self.plan.node[self.ends[peer].node].face == FaceKind::Ernic;
        let heard = plan.kind.is_send() || (plan.kind == Kind::WriteImm && !peer_is_ernic);
        self.ends[end].delivery.posted(Message {
            number: message,
            kind: plan.kind,
            len: plan.len,
            immediate,
            pattern: place.pattern,
            signaled,
            heard,
        });
        if let (Kind::Read, None, Some(_)) = (plan.kind, plan.flaw, place.remote_slot) {
            let slot = &mut self.maps[node].slots[place.local_slot];
            let versions = vec![pattern_of(self.plan, message, 1)];
            slot.what = Use::Read { versions, whole: false };
        }
        let mut seat = self.world.at_work(node);
        if let Some(watched) = seat.check.end(softrnic_engine::Qpn::new(qpn)) {
            watched.requester.posted.push(Posted {
                kind: plan.kind,
                len: plan.len,
                remote: place.remote,
                rkey: place.rkey,
                immediate,
                solicited,
                fence,
                pattern: place.pattern,
                operands: place.operands,
                unsendable: false,
            });
        }
        seat.node.post(
            local,
            &Request {
                id: message as u16,
                kind: plan.kind,
                local: place.local,
                sges: plan.sges,
                remote: place.remote,
                rkey: place.rkey,
                immediate,
                operands: place.operands,
                signaled,
                solicited,
                fence,
            },
        )
    }

    fn done(&mut self, now: Nanos, end: usize, id: u16, ended: Ended) -> Result<(), NodeError> {
        let state = &mut self.ends[end];
        state.done_trace = mix(state.done_trace ^ u64::from(id) ^ (ended as u64) << 32);
        let list = state.delivery.completed(now, id.into(), ended, &mut self.findings);
        for (message, ended) in list {
            self.ended(now, end, message, ended)?;
        }
        Ok(())
    }

    /// A message has ended: what it promised must be there now.
    fn ended(
        &mut self,
        now: Nanos,
        end: usize,
        message: usize,
        ended: Ended,
    ) -> Result<(), NodeError> {
        let plan = &self.plan.message[message];
        let place = self.places[message];
        let EndState { node, peer, .. } = self.ends[end];
        let peer_node = self.ends[peer].node;
        let success = ended == Ended::Success;
        self.completed += u64::from(success);
        self.failed += u64::from(!success);
        if plan.kind.is_atomic() {
            let bytes = self.world.station(node).node.memory().slice(place.local.address, 8)?;
            let fetched = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
            let atomics = &mut self.ends[end].atomics;
            match plan.kind {
                Kind::FetchAdd => atomics.added(place.number, ended, fetched),
                _ => atomics.swapped(place.number, ended, fetched),
            }
        }
        let reliable = self.plan.connection[plan.connection].service == ServiceKind::Rc;
        let hostile = self.plan.class == Class::Hostile;
        if !success || !reliable {
            return Ok(());
        }
        self.findings.require(plan.flaw.is_none() || hostile, "P-03", now, || {
            format!("message {message} succeeds with a flaw of kind {:?}", plan.flaw)
        });
        let (at, slot, address) = match (plan.kind, place.remote_slot) {
            (Kind::Write | Kind::WriteImm, Some(slot)) => (peer_node, slot, place.remote),
            (Kind::Read, Some(_)) => (node, place.local_slot, place.local.address),
            _ => return Ok(()),
        };
        match &mut self.maps[at].slots[slot].what {
            Use::Written { whole, .. } | Use::Read { whole, .. } => *whole = true,
            _ => {}
        }
        let found = self.world.station(at).node.memory().slice(address, plan.len as usize)?;
        self.maps[at].look(now, at, slot, found, hostile, &mut self.findings);
        Ok(())
    }

    fn arrived(&mut self, now: Nanos, end: usize, arrival: &Arrival) -> Result<(), NodeError> {
        let EndState { node, peer, connection, .. } = self.ends[end];
        if arrival.failed {
            return Ok(());
        }
        let Arrival { buffer, skip, .. } = *arrival;
        let connection = &self.plan.connection[connection];
        let known = self.blanked.contains(&(node, buffer.address));
        let bytes =
            self.world.station(node).node.memory().slice(buffer.address, buffer.len as usize)?;
        let whole = &bytes[skip as usize..];
        let own = match arrival.len.filter(|_| !arrival.by_write) {
            Some(len) => whole.get(..len as usize).unwrap_or(&[]),
            None if arrival.by_write => &[],
            None => whole,
        };
        let state = &mut self.ends[end];
        state.arrived_trace = mix(state.arrived_trace ^ mix(arrival.len.unwrap_or(0).into()));
        let direction = &mut self.ends[peer].delivery;
        let len = direction.arrived(now, own, arrival.len, arrival.immediate, &mut self.findings);
        let used = if arrival.by_write { 0 } else { (skip + len).min(buffer.len) as usize };
        // A message that was given up may have left its beginning (UC).
        let clean = connection.service != ServiceKind::Uc && self.plan.class != Class::Hostile;
        let behind = bytes[used..].iter().position(|&byte| byte != POISON);
        self.findings.require(behind.is_none() || !known || !clean, "P-03", now, || {
            format!(
                "node n{node}: a byte behind a message of {len} bytes in its buffer has changed"
            )
        });
        self.blanked.insert((node, buffer.address));
        let memory = self.world.station_mut(node).node.memory_mut();
        memory.slice_mut(buffer.address, buffer.len as usize)?.fill(POISON);
        if !(self.dead(end) && self.plan.node[node].face == FaceKind::Ernic) {
            let at = now.after(connection.receive_delay_ns);
            self.ends[end].releases.push_back((at, buffer));
        }
        Ok(())
    }

    fn finish(&mut self) -> Outcome {
        let now = self.world.now();
        let hostile = self.plan.class == Class::Hostile;
        self.hear_of_lost();
        for end in 0..self.ends.len() {
            for (message, ended) in self.ends[end].delivery.unheard() {
                if let Err(error) = self.ended(now, end, message, ended) {
                    self.findings.add("software", now, || error.to_string());
                }
            }
            let EndState { connection, node, peer, cells, .. } = self.ends[end];
            let dead = self.dead(end);
            let connection_plan = &self.plan.connection[connection];
            let flawless =
                !self.plan.message.iter().any(|m| m.connection == connection && m.flaw.is_some());
            let partition = may_talk(connection_plan.pkey);
            let budget = connection_plan.rnr_retry == 7 && connection_plan.retry_count == 7;
            let depths = [0, 1].into_iter().all(|side| {
                connection_plan.max_rd_atomic[side] <= connection_plan.max_dest_rd_atomic[1 - side]
            });
            let must_arrive =
                self.plan.class == Class::Gentle && flawless && partition && budget && depths;
            let findings = &mut self.findings;
            self.ends[end].delivery.finish(now, dead, must_arrive, findings);
            if connection_plan.service == ServiceKind::Ud {
                let receiver = &self.ends[peer];
                let (node, qpn) = (receiver.node, softrnic_engine::Qpn::new(receiver.qpn));
                let taken = self.world.station_mut(node).check.end(qpn).map_or(0, |e| e.received);
                let arrivals = self.ends[end].delivery.arrivals();
                self.findings.require(arrivals <= taken as usize, "P-22", now, || {
                    format!(
                        "connection {connection}: {taken} datagrams give {arrivals} completions"
                    )
                });
            }
            let findings = &mut self.findings;
            let asker = &self.ends[peer].atomics;
            let memory = self.world.station(node).node.memory();
            let cell = |at: u64| {
                let bytes = memory.slice(at, 8).unwrap_or(&[0; 8]);
                u64::from_le_bytes(bytes.try_into().unwrap_or_default())
            };
            if !hostile {
                asker.finish(now, cell(cells), cell(cells + 8), findings);
            }
        }
        for node in 0..self.plan.node.len() {
            let seat = self.world.station(node);
            let area = seat.node.area();
            let bytes = seat.node.memory().slice(area.address, area.len as usize).unwrap_or(&[]);
            self.maps[node].finish(now, node, area.address, bytes, hostile, &mut self.findings);
            let seat = self.world.station_mut(node);
            seat.check.finish(now, seat.node.engine());
        }
        self.outcome(now)
    }

    fn outcome(&mut self, now: Nanos) -> Outcome {
        let mut outcome = Outcome {
            completed: self.completed,
            failed: self.failed,
            virtual_ns: now.0,
            fired: self.world.faults().tallies().map(|tally| tally.fired).collect(),
            ..Outcome::default()
        };
        for node in 0..self.plan.node.len() {
            outcome.frames += self.world.sent(node).frames;
            let findings = &self.world.station(node).check.findings.0;
            outcome.violations.extend(findings.iter().cloned());
        }
        outcome.violations.append(&mut self.findings.0);
        outcome.violations.sort_by_key(|violation| violation.at);
        for end in &self.ends {
            let qpn = softrnic_engine::Qpn::new(end.qpn);
            let watched = self
                .world
                .station_mut(end.node)
                .check
                .end(qpn)
                .map(|e| (e.trace, e.timeless_trace));
            let (timed, timeless) = watched.unwrap_or_default();
            let software = mix(end.done_trace) ^ end.arrived_trace;
            let (timed, timeless) = (mix(timed ^ software), mix(timeless ^ software));
            outcome.digest = mix(outcome.digest ^ timed ^ end.side as u64);
            outcome.traces.push(Trace { connection: end.connection, timed, timeless });
        }
        outcome
    }
}

fn immediate_of(message: usize) -> u32 {
    0xC0DE_0000 | message as u32
}

/// Bytes of a receive buffer: a datagram's has room for the GRH area.
fn buffer_len(connection: &ConnectionPlan) -> u32 {
    connection.receive_len + if connection.service == ServiceKind::Ud { GRH_AREA } else { 0 }
}

/// Rule V-05.
fn may_talk(pkey: [u16; 2]) -> bool {
    let [a, b] = pkey;
    (a ^ b) & 0x7FFF == 0 && a & 0x7FFF != 0 && (a | b) & 0x8000 != 0
}

/// Bytes that a node needs for messages, and never too little.
fn area_len(plan: &Plan, node: usize) -> u32 {
    let mut len = 4096;
    for (number, connection) in plan.connection.iter().enumerate() {
        let sides = [0, 1].into_iter().filter(|&side| connection.nodes[side] == node);
        for _ in sides {
            let of = plan.message.iter().filter(|m| m.connection == number);
            len += of.map(|m| slot_len(m.len) + 192).sum::<u64>() + 1024;
            len += (slot_len(buffer_len(connection)) + 64) * u64::from(connection.receives);
        }
    }
    u32::try_from(len.next_multiple_of(4096)).unwrap_or(u32::MAX)
}

/// A key that nobody gives out.
const NO_KEY: u32 = 0x00FE_DC00;
