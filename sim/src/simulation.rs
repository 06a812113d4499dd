//! Runs a scenario, phase by phase: opens queue pairs, posts messages, compares every byte, reports.
//!
//! Knows nodes only as [`Node`]s; real time is measured by the caller between phases, or through
//! [`Observer::activity`].

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use sha2::{Digest, Sha256};
use softrnic_engine::explain::opcode_name;
use softrnic_engine::{
    Counter, Nanos, Psn, Qpn, REASON_ROWS, Reason, ack_timeout_ns, rnr_timer_ns,
};

use crate::ernic_node::ErnicNode;
use crate::fault::{Firing, Injector, Tally};
use crate::ladder::{Mark, Remark, describe_frame};
use crate::link::Traffic;
use crate::native_node::NativeNode;
use crate::node::{Arrived, Done, Node, NodeError, Peer, QpPlan, Request};
use crate::payload::{POISON, Payload, difference};
use crate::report::{
    FaultReport, FileReport, FiringReport, Latency, NodeReport, PhaseReport, RefusedPacket, Report,
};
use crate::scenario::{FaceKind, GUARD_LEN, OperationKind, Operations, PhaseSpec, Scenario};
use crate::series::{Carried, Series};
use crate::state::WorldState;
use crate::world::{Activity, Fate, Observer, PacketId, Sighting, World};

/// Why a checked scenario could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A node did not come up.
    #[error("node {name:?} did not come up: {source}")]
    Node {
        /// Its name.
        name: String,
        /// Why.
        source: NodeError,
    },
    /// A file of a phase is missing or empty.
    #[error("{0}")]
    File(String),
}

/// A scenario on its virtual clock.
pub struct Simulation {
    scenario: Scenario,
    files: BTreeMap<String, Vec<u8>>,
    world: World<Box<dyn Node>>,
    phases: Vec<PhaseReport>,
}

impl Simulation {
    /// Brings all nodes up. `files` are the bytes of the files that phases name.
    ///
    /// # Errors
    /// A node that does not come up, or a file that is missing or empty.
    pub fn new(
        mut scenario: Scenario,
        files: BTreeMap<String, Vec<u8>>,
    ) -> Result<Self, SetupError> {
        let lengths = files.iter().map(|(name, bytes)| (name.clone(), bytes.len() as u64));
        scenario.set_file_lengths(&lengths.collect()).map_err(SetupError::File)?;
        let faults = Injector::new(scenario.faults.clone(), scenario.seed);
        let mut world = World::new(faults);
        let queue_pairs = u16::try_from(scenario.phases.len()).unwrap_or(u16::MAX);
        for (i, memory_len) in scenario.memory().into_iter().enumerate() {
            let spec = &scenario.nodes[i];
            let area_len = scenario.buffer_memory(i).max(GUARD_LEN);
            let node: Result<Box<dyn Node>, NodeError> = match spec.face {
                FaceKind::Ernic => ErnicNode::new(spec, queue_pairs, area_len, memory_len)
                    .map(|node| Box::new(node) as Box<dyn Node>),
                FaceKind::Native => NativeNode::new(spec, area_len, memory_len)
                    .map(|node| Box::new(node) as Box<dyn Node>),
            };
            let name = &spec.name;
            let node = node.map_err(|source| SetupError::Node { name: name.clone(), source })?;
            world.add(node);
        }
        for link in &scenario.links {
            world.connect(link.between[0], link.between[1], link.config);
        }
        Ok(Self { scenario, files, world, phases: Vec::new() })
    }

    /// What is run, with the message counts of files filled in.
    #[must_use]
    pub const fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    /// Runs the next phase; `None` when all have run.
    pub fn run_phase(&mut self, observer: &mut dyn Observer) -> Option<&PhaseReport> {
        let index = self.phases.len();
        let phase = self.scenario.phases.get(index)?;
        let payload = match phase.file.as_ref().and_then(|name| self.files.get(name)) {
            Some(bytes) => Payload::File(bytes),
            None => Payload::pattern(self.scenario.seed, index as u64, phase.size_min),
        };
        self.world.start_phase(index);
        let watch = Watch::new(observer, phase.from, self.world.now());
        let mut run = Run::new(&self.scenario, phase, payload, &mut self.world, watch);
        run.execute();
        let report = run.report();
        self.phases.push(report);
        self.phases.last()
    }

    /// Every device as it is now.
    #[must_use]
    pub fn state(&self) -> WorldState {
        let nodes = self.scenario.nodes.iter().enumerate();
        WorldState {
            title: self.scenario.name.clone(),
            at_ns: self.world.now().0,
            devices: nodes.map(|(i, spec)| self.world.station(i).state(&spec.name)).collect(),
        }
    }

    /// Reads the nodes' counters and closes the report.
    pub fn finish(mut self) -> Report {
        let mut nodes = Vec::new();
        for (i, spec) in self.scenario.nodes.iter().enumerate() {
            let node = self.world.station_mut(i);
            let (source, counters) = node.counters();
            let refused = named(node.engine().refused());
            nodes.push(NodeReport {
                name: spec.name.clone(),
                face: spec.face,
                ipv4: spec.ipv4,
                ipv6: spec.ipv6,
                source,
                counters,
                refused,
            });
        }
        let labels = self.scenario.fault_labels();
        let tallies = labels.into_iter().zip(self.world.faults().tallies());
        let faults = tallies.map(|(rule, tally)| self.fault_report(rule, tally)).collect();
        let all_ran = self.phases.len() == self.scenario.phases.len();
        Report {
            scenario: self.scenario.name,
            seed: self.scenario.seed,
            passed: all_ran && self.phases.iter().all(|phase| phase.failure_count == 0),
            phases: self.phases,
            nodes,
            faults,
        }
    }
}

impl Simulation {
    fn fault_report(&self, rule: String, tally: &Tally) -> FaultReport {
        let firings = tally.firings.iter().map(|firing| FiringReport {
            at_ns: firing.at.0,
            node: self.scenario.nodes[firing.node].name.clone(),
            what: firing.what.clone(),
        });
        let (matched, fired) = (tally.matched, tally.fired);
        FaultReport { rule, matched, fired, firings: firings.collect() }
    }
}

fn named(refused: &[u64; Reason::COUNT]) -> BTreeMap<&'static str, u64> {
    let rows = REASON_ROWS.iter().zip(refused);
    rows.filter(|(_, count)| **count > 0).map(|(row, &count)| (row.name, count)).collect()
}

/// Hands everything on to the caller's observer, and remembers what was refused or lost.
struct Watch<'a> {
    inner: &'a mut dyn Observer,
    refused: [u64; Reason::COUNT],
    /// The first ones.
    refusals: Vec<Refusal>,
    /// Fate, sender and receiver of `frame`.
    last: Option<(Fate, usize, usize)>,
    /// The last frame that was not executed.
    frame: Vec<u8>,
    /// The posting node.
    from: usize,
    series: Series,
}

impl<'a> Watch<'a> {
    fn new(inner: &'a mut dyn Observer, from: usize, now: Nanos) -> Self {
        let (refused, series) = ([0; Reason::COUNT], Series::new(now));
        let refusals = Vec::new();
        Self { inner, refused, refusals, last: None, frame: Vec::new(), from, series }
    }
}

struct Refusal {
    at: Nanos,
    from: usize,
    to: usize,
    reason: Reason,
    read: Option<PacketId>,
}

/// Refused packets of a phase that are reported one by one.
const REFUSALS_KEPT: usize = 16;

impl Observer for Watch<'_> {
    fn frame(&mut self, sighting: &Sighting<'_>) {
        let carried = Carried {
            bytes: sighting.frame.len() as u64,
            request: sighting.from == self.from,
            lost: matches!(sighting.fate, Fate::Lost(_)),
            again: sighting.retransmission,
        };
        self.series.frame(sighting.at, carried);
        if let Fate::Refused(reason) = sighting.fate {
            self.refused[reason as usize] += 1;
            if self.refusals.len() < REFUSALS_KEPT {
                let Sighting { at, from, to, read, .. } = *sighting;
                self.refusals.push(Refusal { at, from, to, reason, read });
            }
        }
        if matches!(sighting.fate, Fate::Refused(_) | Fate::Lost(_)) {
            self.last = Some((sighting.fate, sighting.from, sighting.to));
            self.frame.clear();
            self.frame.extend_from_slice(sighting.frame);
        }
        self.inner.frame(sighting);
    }

    fn activity(&mut self, what: Activity) {
        self.inner.activity(what);
    }

    fn remark(&mut self, remark: &Remark) {
        self.inner.remark(remark);
    }

    fn message(&mut self) {
        self.inner.message();
    }
}

/// One phase while it runs.
struct Run<'a> {
    scenario: &'a Scenario,
    phase: &'a PhaseSpec,
    payload: Payload<'a>,
    world: &'a mut World<Box<dyn Node>>,
    watch: Watch<'a>,
    started: Nanos,
    ended: Nanos,
    before: Traffic,
    posted: u64,
    completed: u64,
    /// The SEND that should arrive next.
    received: u64,
    /// Messages that ended with their queue pair, and how many of them were compared before that.
    given_up: u64,
    given_up_verified: u64,
    reconnects: u32,
    /// The connection has been flushed: receives without a message come back.
    flushed: bool,
    /// Since when the oldest packet in flight waits for its acknowledgement, and its PSN.
    waiting: (Nanos, Psn),
    verified: u64,
    verified_bytes: u64,
    /// When the message in each slot was posted.
    posted_at: Vec<Nanos>,
    latency: Option<Histogram<u64>>,
    received_digest: Sha256,
    failures: Vec<String>,
    failure_count: u64,
    /// What a message should be.
    expected: Vec<u8>,
    done: Vec<Done>,
    /// The queue pairs of the posting node and of its peer.
    qpns: [Qpn; 2],
    /// Its ACK timer's expiries.
    timeouts: u32,
    /// Fault rules at a face: firings that were told, the rule's number and its words.
    face_rules: Vec<(usize, usize, String)>,
}

impl<'a> Run<'a> {
    fn new(
        scenario: &'a Scenario,
        phase: &'a PhaseSpec,
        payload: Payload<'a>,
        world: &'a mut World<Box<dyn Node>>,
        watch: Watch<'a>,
    ) -> Self {
        let now = world.now();
        let tallies: Vec<_> = world.faults().tallies().map(|tally| tally.firings.len()).collect();
        let rules = world.faults().rules().iter().enumerate();
        let at_face = rules.filter(|(_, rule)| rule.action.at_face()).map(|(i, _)| i);
        let labels = scenario.fault_labels();
        let face_rules = at_face.map(|i| (tallies[i], i, labels[i].clone())).collect();
        Self {
            face_rules,
            before: sum(world.sent(phase.from), world.sent(phase.to)),
            scenario,
            phase,
            payload,
            world,
            watch,
            started: now,
            ended: now,
            posted: 0,
            completed: 0,
            received: 0,
            given_up: 0,
            given_up_verified: 0,
            reconnects: 0,
            flushed: false,
            waiting: (now, phase.first_psn),
            verified: 0,
            verified_bytes: 0,
            posted_at: vec![now; phase.outstanding as usize],
            // Three digits; it can only fail for more than five.
            latency: Histogram::new(3).ok(),
            received_digest: Sha256::new(),
            failures: Vec::new(),
            failure_count: 0,
            expected: vec![0; phase.size as usize],
            done: Vec::new(),
            qpns: [Qpn::new(0); 2],
            timeouts: 0,
        }
    }

    fn execute(&mut self) {
        if let Err(error) = self.prepare().and_then(|()| self.exchange()) {
            self.fail(format!("the phase stopped: {error}"));
        }
        self.drain();
        self.check_guards();
        self.check_expectations();
    }

    /// Blanks the buffers, sets faults and VLAN, creates and connects the queue pairs.
    fn prepare(&mut self) -> Result<(), NodeError> {
        let phase = self.phase;
        let ends = [phase.from, phase.to];
        for end in ends {
            self.poison(end)?;
            let node = self.world.station_mut(end);
            node.set_vlan(phase.vlan.or(self.scenario.nodes[end].vlan));
        }
        let plan = QpPlan {
            outstanding: phase.outstanding,
            rq_depth: phase.rq_depth,
            rq_element_len: phase.rq_element_len,
            path_mtu: phase.path_mtu,
            ack_timeout: phase.ack_timeout,
            retry_count: phase.retry_count,
        };
        let mut qpns = [0; 2];
        for (qpn, end) in qpns.iter_mut().zip(ends) {
            *qpn = self.world.station_mut(end).open(&plan)?;
        }
        self.qpns = qpns.map(Qpn::new);
        self.received = self.next_send(0);
        self.connect(phase.first_psn)
    }

    fn connect(&mut self, first_psn: Psn) -> Result<(), NodeError> {
        let phase = self.phase;
        let ends = [phase.from, phase.to];
        for (i, end) in ends.into_iter().enumerate() {
            let other = &self.scenario.nodes[ends[1 - i]];
            let ip = if phase.ipv6 { other.ipv6.into() } else { other.ipv4.into() };
            let peer = Peer { mac: other.mac, ip, qpn: self.qpns[1 - i].get(), first_psn };
            self.world.at_work(end).connect(&peer)?;
        }
        self.waiting = (self.world.now(), first_psn);
        Ok(())
    }

    /// Both ends connect again after the queue pair gave its peer up. False where that is not planned.
    fn reconnect(&mut self) -> Result<bool, NodeError> {
        let phase = self.phase;
        if self.reconnects == phase.reconnects_max {
            return Ok(false);
        }
        self.reconnects += 1;
        self.check_patience();
        let text =
            format!("the queue pair gave up; both ends connect again, no. {}", self.reconnects);
        self.remark(Mark::Timeout, text);
        // Nothing of the old connection may arrive in the new one, or in buffers that are used again.
        self.drain();
        for end in [phase.from, phase.to] {
            self.world.at_work(end).flush()?;
        }
        self.drain();
        self.flushed = true;
        self.take_messages()?;
        self.flushed = false;
        let first_given_up = self.completed;
        if self.next_send(self.received.min(first_given_up)) < first_given_up {
            let message = self.received;
            self.fail(format!("message {message} completed, but it never arrived"));
        }
        let before =
            (first_given_up..self.received).filter(|&m| self.operation(m) == OperationKind::Send);
        self.given_up_verified += before.count() as u64;
        self.given_up += self.posted - first_given_up;
        self.completed = self.posted;
        self.received = self.next_send(self.posted);
        for end in [phase.from, phase.to] {
            self.world.at_work(end).reset()?;
            self.poison(end)?;
        }
        let psn = phase.first_psn.get().wrapping_add(self.reconnects.wrapping_mul(0x35_7913));
        self.connect(Psn::new(psn % Psn::MODULUS))?;
        self.post()?;
        Ok(true)
    }

    /// P-06: a queue pair gives up within its retries, each of which lasts up to four ACK timeouts,
    /// and its waits for a receiver.
    fn check_patience(&mut self) {
        let Some(qp) = self.world.station(self.phase.from).engine().qp(self.qpns[0]) else {
            return;
        };
        let attributes = qp.attributes();
        let ack_timeout_ns = ack_timeout_ns(attributes.ack_timeout).unwrap_or(u64::MAX);
        let retries = u64::from(attributes.retry_count) + 1;
        let rnr_waits = u64::from(attributes.rnr_retry) + 1;
        let limit = ack_timeout_ns
            .saturating_mul(4 * retries)
            .saturating_add(rnr_waits * rnr_timer_ns(attributes.min_rnr_timer));
        let waited = self.world.now().0 - self.waiting.0.0;
        if waited > limit {
            self.fail(format!("the queue pair gave up after {waited} ns, but has {limit} ns"));
        }
    }

    fn operation(&self, message: u64) -> OperationKind {
        self.phase.operation.pick(self.payload.draw(message))
    }

    /// The first SEND from this message on; the number of messages where there is none.
    fn next_send(&self, from: u64) -> u64 {
        let count = self.phase.count;
        match self.phase.operation {
            Operations::Only(OperationKind::Send) => from,
            Operations::Only(_) => count,
            Operations::Mixed => {
                (from..count).find(|&m| self.operation(m) == OperationKind::Send).unwrap_or(count)
            }
        }
    }

    /// Fills a node's message buffers with what no message leaves there.
    fn poison(&mut self, end: usize) -> Result<(), NodeError> {
        let node = self.world.station_mut(end);
        let area = node.area();
        let len = usize::try_from(area.len).unwrap_or(usize::MAX);
        node.memory_mut().slice_mut(area.address, len)?.fill(POISON);
        Ok(())
    }

    /// Moves all messages, or stops at the first error that does not go away.
    fn exchange(&mut self) -> Result<(), NodeError> {
        let deadline = self.started.after(self.phase.limit_ns);
        self.post()?;
        while !self.is_complete() {
            let Some(station) = self.world.step(&mut self.watch) else {
                self.give_up("nothing is left to happen");
                return Ok(());
            };
            if self.world.now() > deadline {
                self.give_up("the phase's limit_ms is over");
                return Ok(());
            }
            self.tell_faults();
            self.look();
            let went_well = if station == self.phase.from {
                self.take_completions()?
            } else if station == self.phase.to {
                self.take_messages()?
            } else {
                true
            };
            if !went_well {
                self.explain();
                return Ok(());
            }
        }
        Ok(())
    }

    /// Tells the observer which rules have fired at a face: no frame says so.
    fn tell_faults(&mut self) {
        let mut remarks = Vec::new();
        for (told, rule, label) in &mut self.face_rules {
            let Some(tally) = self.world.faults().tallies().nth(*rule) else { continue };
            for firing in tally.firings.iter().skip(*told) {
                let Firing { at, node, what } = firing;
                let text = format!("{label}. {what}");
                remarks.push(Remark { at: *at, station: *node, mark: Mark::Fault, text });
            }
            *told = tally.firings.len();
        }
        if !remarks.is_empty() {
            self.watch.activity(Activity::Observer);
            remarks.iter().for_each(|remark| self.watch.remark(remark));
            self.watch.activity(Activity::Device);
        }
    }

    /// Takes a sample of the posting node's queue pair, and says where its ACK timer has expired.
    fn look(&mut self) {
        let now = self.world.now();
        let Some(qp) = self.world.station(self.phase.from).engine().qp(self.qpns[0]) else {
            return;
        };
        let depth = u32::try_from(self.posted - self.completed).unwrap_or(u32::MAX);
        self.watch.series.level(now, qp.requester().outstanding_packets(), depth);
        let oldest = qp.requester().unacknowledged_psn();
        if oldest != self.waiting.1 || qp.requester().outstanding_packets() == 0 {
            self.waiting = (now, oldest);
        }
        let timeouts = qp.counters()[Counter::LocalAckTimeoutErr];
        if timeouts != self.timeouts {
            self.timeouts = timeouts;
            let text = format!(
                "timeout: the ACK timer expired. Unacknowledged since PSN {:06x}, retry {} of {}",
                qp.requester().unacknowledged_psn().get(),
                qp.requester().retries_used(),
                self.phase.retry_count
            );
            self.remark(Mark::Timeout, text);
        }
    }

    /// Tells the observer what the posting node has noticed.
    fn remark(&mut self, mark: Mark, text: String) {
        let remark = Remark { at: self.world.now(), station: self.phase.from, mark, text };
        self.watch.activity(Activity::Observer);
        self.watch.remark(&remark);
        self.watch.activity(Activity::Device);
    }

    fn is_complete(&self) -> bool {
        self.completed == self.phase.count && self.received == self.phase.count
    }

    /// Posts as many messages as may be outstanding, and rings once.
    fn post(&mut self) -> Result<(), NodeError> {
        let phase = self.phase;
        let most = (self.completed + u64::from(phase.outstanding)).min(phase.count);
        if self.posted == most {
            return Ok(());
        }
        let rkey = self.world.station(phase.to).area().rkey;
        while self.posted < most {
            let (local, remote) = self.slots(self.posted);
            let len = self.payload.len(self.posted, phase.size);
            self.watch.activity(Activity::Payload);
            let operation = self.operation(self.posted);
            let source = match operation {
                OperationKind::Send | OperationKind::Write => (phase.from, local),
                OperationKind::Read => (phase.to, remote),
            };
            let memory = self.world.station_mut(source.0).memory_mut();
            self.payload.fill(self.posted, phase.size, memory.slice_mut(source.1, len as usize)?);
            self.watch.activity(Activity::Device);
            let id = self.posted as u16;
            let request = Request { id, operation, local, len, remote, rkey };
            self.world.at_work(phase.from).post(&request)?;
            let slot = self.slot(self.posted);
            self.posted_at[slot] = self.world.now();
            self.posted += 1;
        }
        self.world.at_work(phase.from).ring()
    }

    /// Returns false where a work request failed.
    fn take_completions(&mut self) -> Result<bool, NodeError> {
        self.watch.activity(Activity::Device);
        let mut done = core::mem::take(&mut self.done);
        done.clear();
        self.world.at_work(self.phase.from).completions(&mut done)?;
        for completion in &done {
            if completion.gave_up && self.reconnect()? {
                // The other completions are of the connection that has ended.
                break;
            }
            if let Some(error) = &completion.error {
                self.fail(format!("message {} failed: {error}", self.completed));
                return Ok(false);
            }
            if completion.id != self.completed as u16 {
                let message = self.completed;
                self.fail(format!("a completion names {} instead of {message}", completion.id));
                return Ok(false);
            }
            self.complete()?;
        }
        self.done = done;
        self.post()?;
        Ok(true)
    }

    /// The oldest message has completed.
    fn complete(&mut self) -> Result<(), NodeError> {
        let message = self.completed;
        self.completed += 1;
        self.ended = self.world.now();
        let waited = self.ended.0 - self.posted_at[self.slot(message)].0;
        if let Some(latency) = &mut self.latency {
            // It grows as needed, and no wait is too long for 64 bits.
            let _ = latency.record(waited);
        }
        self.watch.activity(Activity::Payload);
        let (from, to) = (self.phase.from, self.phase.to);
        let (local, remote) = self.slots(message);
        let len = self.payload.len(message, self.phase.size);
        match self.operation(message) {
            OperationKind::Send => self.blank(from, local, len, POISON)?,
            OperationKind::Write => {
                self.compare(to, remote, message, len)?;
                self.blank(to, remote, len, POISON)?;
                self.blank(from, local, len, POISON)?;
            }
            OperationKind::Read => {
                self.compare(from, local, message, len)?;
                self.blank(from, local, len, POISON)?;
                self.blank(to, remote, len, POISON)?;
            }
        }
        Ok(())
    }

    /// Returns false where a receive failed.
    fn take_messages(&mut self) -> Result<bool, NodeError> {
        loop {
            self.watch.activity(Activity::Device);
            let Some(arrived) = self.world.station_mut(self.phase.to).receive()? else {
                return Ok(true);
            };
            if self.flushed && arrived.error.is_some() {
                continue;
            }
            if let Some(error) = &arrived.error {
                self.fail(format!("receiving message {} failed: {error}", self.received));
                return Ok(false);
            }
            self.watch.activity(Activity::Payload);
            self.check_arrival(&arrived)?;
            self.ended = self.world.now();
            self.watch.activity(Activity::Device);
            self.world.at_work(self.phase.to).release(&arrived)?;
        }
    }

    /// Compares a message in a receive buffer; what lies behind it must be untouched.
    fn check_arrival(&mut self, arrived: &Arrived) -> Result<(), NodeError> {
        let (to, message) = (self.phase.to, self.received);
        self.received = self.next_send(message + 1);
        if message >= self.phase.count {
            self.fail(format!("one message too many arrived in element {}", arrived.element));
            return Ok(());
        }
        let len = self.payload.len(message, self.phase.size);
        if let Some(told) = arrived.len.filter(|&told| told != len) {
            self.fail(format!("message {message}: {told} bytes were announced, not {len}"));
        }
        self.compare(to, arrived.address, message, len)?;
        let behind = (arrived.buffer_len - len) as usize;
        let rest =
            self.world.station(to).memory().slice(arrived.address + u64::from(len), behind)?;
        // Receive memory starts as zeroes.
        if rest.iter().any(|&byte| byte != 0) {
            self.fail(format!("message {message}: bytes behind its end were written"));
        }
        self.blank(to, arrived.address, arrived.buffer_len, 0)
    }

    fn compare(&mut self, node: usize, at: u64, message: u64, len: u32) -> Result<(), NodeError> {
        let expected = &mut self.expected[..len as usize];
        self.payload.fill(message, self.phase.size, expected);
        let found = self.world.station(node).memory().slice(at, len as usize)?;
        if self.phase.file.is_some() {
            self.received_digest.update(found);
        }
        match difference(expected, found) {
            None => {
                self.verified += 1;
                self.verified_bytes += u64::from(len);
                self.watch.message();
            }
            Some((first, count)) => self.fail(format!(
                "message {message}: {count} of {len} bytes differ, the first at offset {first}"
            )),
        }
        Ok(())
    }

    fn blank(&mut self, node: usize, at: u64, len: u32, value: u8) -> Result<(), NodeError> {
        let memory = self.world.station_mut(node).memory_mut();
        memory.slice_mut(at, len as usize)?.fill(value);
        Ok(())
    }

    /// Lets frames arrive that are still on the wire, so that they do not count for the next phase.
    fn drain(&mut self) {
        let deadline = self.world.now().after(self.phase.limit_ns);
        while self.world.frames_in_flight() > 0 && self.world.now() <= deadline {
            if self.world.step(&mut self.watch).is_none() {
                break;
            }
        }
        self.watch.activity(Activity::Payload);
    }

    /// Every byte of both buffer areas that is not a message must be as it was.
    fn check_guards(&mut self) {
        if self.failure_count > 0 {
            return;
        }
        for end in [self.phase.from, self.phase.to] {
            let node = self.world.station(end);
            let area = node.area();
            let len = usize::try_from(area.len).unwrap_or(usize::MAX);
            let bytes = node.memory().slice(area.address, len).unwrap_or(&[]);
            if let Some(at) = bytes.iter().position(|&byte| byte != POISON) {
                let name = &self.scenario.nodes[end].name;
                self.fail(format!("node {name:?}: a byte outside of all messages, at offset {at}"));
            }
        }
    }

    fn check_expectations(&mut self) {
        let traffic = self.traffic();
        let expect = self.phase.expect;
        let again = traffic.retransmissions;
        if let Some(min) = expect.retransmissions_min.filter(|&min| again < min) {
            self.fail(format!("expected at least {min} retransmissions, saw {again}"));
        }
        if let Some(max) = expect.retransmissions_max.filter(|&max| again > max) {
            self.fail(format!("expected at most {max} retransmissions, saw {again}"));
        }
        if let Some(min) = expect.lost_min.filter(|&min| traffic.lost < min) {
            self.fail(format!("expected at least {min} lost frames, saw {}", traffic.lost));
        }
    }

    fn give_up(&mut self, why: &str) {
        let (completed, count) = (self.completed, self.phase.count);
        self.fail(format!("{why}: {completed} of {count} messages completed"));
        if self.received < count {
            self.fail(format!("SENDs up to message {} of {count} arrived", self.received));
        }
        self.explain();
    }

    /// Says what both ends know about why it went wrong.
    fn explain(&mut self) {
        for end in [self.phase.from, self.phase.to] {
            if let Some(trouble) = self.world.station_mut(end).trouble() {
                let name = &self.scenario.nodes[end].name;
                self.fail(format!("node {name:?}: {trouble}"));
            }
        }
        if let Some((fate, from, to)) = self.watch.last {
            let name = |node: usize| &self.scenario.nodes[node].name;
            let frame = describe_frame(&self.watch.frame);
            self.fail(format!(
                "last frame not executed: {} -> {}  {frame}  {fate:#}",
                name(from),
                name(to)
            ));
        }
    }

    fn fail(&mut self, what: String) {
        self.failure_count += 1;
        if self.failures.len() < FAILURES_KEPT {
            self.remark(Mark::Error, format!("{}: {what}", Mark::Error));
            self.failures.push(what);
        }
    }

    fn slot(&self, message: u64) -> usize {
        (message % u64::from(self.phase.outstanding)) as usize
    }

    /// Addresses of a message's buffers on both nodes.
    fn slots(&self, message: u64) -> (u64, u64) {
        let offset = GUARD_LEN + self.slot(message) as u64 * self.phase.slot_stride();
        let area = |node: usize| self.world.station(node).area().address;
        (area(self.phase.from) + offset, area(self.phase.to) + offset)
    }

    fn traffic(&self) -> Traffic {
        let now = sum(self.world.sent(self.phase.from), self.world.sent(self.phase.to));
        Traffic {
            frames: now.frames - self.before.frames,
            bytes: now.bytes - self.before.bytes,
            retransmissions: now.retransmissions - self.before.retransmissions,
            lost: now.lost - self.before.lost,
            copies: now.copies - self.before.copies,
        }
    }

    fn report(mut self) -> PhaseReport {
        let file = self.file_report();
        if let Some(file) = file.as_ref().filter(|f| f.sent_sha256 != f.received_sha256) {
            let name = file.name.clone();
            self.fail(format!("the file {name:?} arrived with another SHA-256 digest"));
        }
        let phase = self.phase;
        let traffic = self.traffic();
        let duration_ns = self.ended.0 - self.started.0;
        let bits = u128::from(self.verified_bytes) * 8 * 1_000_000_000;
        let goodput = bits.checked_div(duration_ns.into()).unwrap_or(0);
        let quantile = |q| match &self.latency {
            Some(latency) if !latency.is_empty() => latency.value_at_quantile(q),
            _ => 0,
        };
        PhaseReport {
            name: phase.name.clone(),
            from: self.scenario.nodes[phase.from].name.clone(),
            to: self.scenario.nodes[phase.to].name.clone(),
            face: self.scenario.nodes[phase.from].face,
            operation: phase.operation,
            path_mtu: phase.path_mtu.bytes(),
            first_psn: phase.first_psn.get(),
            ip: if phase.ipv6 { 6 } else { 4 },
            vlan: phase.vlan.or(self.scenario.nodes[phase.from].vlan),
            size: phase.size,
            outstanding: phase.outstanding,
            expected_messages: phase.count,
            messages: (self.verified - self.given_up_verified).min(self.completed - self.given_up),
            given_up: self.given_up,
            reconnects: self.reconnects,
            bytes: self.verified_bytes,
            frames: traffic.frames,
            retransmissions: traffic.retransmissions,
            lost: traffic.lost,
            refused: named(&self.watch.refused),
            refused_packets: self.refused_packets(),
            latency_ns: Latency { p50: quantile(0.5), p99: quantile(0.99), max: quantile(1.0) },
            duration_ns,
            goodput_bits_per_s: u64::try_from(goodput).unwrap_or(u64::MAX),
            file,
            qpn: self.qpns[0].get(),
            series: self.watch.series,
            failures: self.failures,
            failure_count: self.failure_count,
        }
    }

    fn refused_packets(&self) -> Vec<RefusedPacket> {
        let name = |node: usize| self.scenario.nodes[node].name.clone();
        let packet = |refusal: &Refusal| RefusedPacket {
            at_ns: refusal.at.0,
            from: name(refusal.from),
            to: name(refusal.to),
            reason: refusal.reason.row().name,
            opcode: refusal.read.map(|read| opcode_name(read.opcode.into())),
            qpn: refusal.read.map(|read| read.qpn.get()),
            psn: refusal.read.map(|read| read.psn.get()),
        };
        self.watch.refusals.iter().map(packet).collect()
    }

    fn file_report(&self) -> Option<FileReport> {
        let (Payload::File(bytes), Some(name)) = (self.payload, &self.phase.file) else {
            return None;
        };
        Some(FileReport {
            name: name.clone(),
            bytes: bytes.len() as u64,
            sent_sha256: hex(&Sha256::digest(bytes)),
            received_sha256: hex(&self.received_digest.clone().finalize()),
        })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const fn sum(a: Traffic, b: Traffic) -> Traffic {
    Traffic {
        frames: a.frames + b.frames,
        bytes: a.bytes + b.bytes,
        retransmissions: a.retransmissions + b.retransmissions,
        lost: a.lost + b.lost,
        copies: a.copies + b.copies,
    }
}

/// Failures of a phase that are reported in words.
const FAILURES_KEPT: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        node = [
            { name = "a", face = "native", mac = "02:00:00:00:00:01", ipv4 = "192.0.2.1", ipv6 = "::1" },
            { name = "b", face = "native", mac = "02:00:00:00:00:02", ipv4 = "192.0.2.2", ipv6 = "::2" },
        ]
        link = [{ between = ["a", "b"] }]
    "#;

    /// Runs one phase, but changes a byte of a node's memory after the first work is posted.
    fn run_and_flip(operation: &str, node: usize, offset: u64) -> PhaseReport {
        let phase = format!(
            "[[phase]]\nfrom = \"a\"\nto = \"b\"\noperation = \"{operation}\"\ncount = 4\nsize = 100\n"
        );
        let scenario = Scenario::parse("test.toml", &format!("{TEXT}{phase}")).unwrap();
        let mut simulation = Simulation::new(scenario, BTreeMap::new()).unwrap();
        let Simulation { scenario, world, .. } = &mut simulation;
        let mut nobody = ();
        let payload = Payload::pattern(1, 0, None);
        let watch = Watch::new(&mut nobody, scenario.phases[0].from, Nanos(0));
        let mut run = Run::new(scenario, &scenario.phases[0], payload, world, watch);
        run.prepare().unwrap();
        run.post().unwrap();
        let at = run.world.station(node).area().address + offset;
        run.world.station_mut(node).memory_mut().slice_mut(at, 1).unwrap()[0] ^= 1;
        run.exchange().unwrap();
        run.check_guards();
        run.report()
    }

    #[test]
    fn a_byte_that_changes_on_the_way_is_found() {
        // The second message's slot starts behind two guards and one slot of 128 bytes.
        let at = GUARD_LEN + 128 + GUARD_LEN + 17;
        for (operation, node) in [("send", 0), ("write", 0), ("read", 1)] {
            let report = run_and_flip(operation, node, at);
            let expected = "message 1: 1 of 100 bytes differ, the first at offset 17";
            assert_eq!(report.failures, [expected], "{operation}");
            assert_eq!(report.messages, 3);
        }
    }

    #[test]
    fn a_byte_beside_the_messages_is_found() {
        for node in [0, 1] {
            let report = run_and_flip("write", node, 3);
            assert_eq!(report.failure_count, 1);
            assert!(report.failures[0].contains("outside of all messages, at offset 3"));
        }
    }
}
