//! A station: a NIC on a real link, with the host's side of its port, fault rules and a capture. One
//! [`Station::turn`] moves what has arrived and what can leave.
//!
//! The same calls as a virtual world makes; here time comes from whoever turns it, once for each batch. It never
//! waits and owns no thread.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufWriter};
use std::net::IpAddr;
use std::path::Path;

use softrnic_device::{Device, Memory, Nic};
use softrnic_engine::{Nanos, Rx, Verdict};
use softrnic_sim::fault::{AtFace, Direction, Injector, Outcome};

use crate::capture::{Interface, Writer};
use crate::link::{Link, LinkError, Written};
use crate::port::{HostPort, Resolution};

/// Frames that one turn takes, and frames that it sends: turns stay short.
const BATCH: usize = 256;
/// Frames that fault rules may hold back; further ones are lost and counted.
const DELAYED_MAX: usize = 4096;
/// The only node that rules see on a real link.
const NODE: usize = 0;

/// What a turn did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Frames that arrived.
    pub received: usize,
    /// Frames that left.
    pub sent: usize,
    /// More is waiting: turn again at once.
    pub more: bool,
}

impl Turn {
    /// Nothing happened and nothing waits.
    #[must_use]
    pub const fn idle(&self) -> bool {
        self.received == 0 && self.sent == 0 && !self.more
    }
}

/// What fault rules did to frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounters {
    /// Frames lost by a rule.
    pub lost: u64,
    /// Frames that a rule sent later.
    pub delayed: u64,
    /// Copies that rules made.
    pub copies: u64,
    /// Frames lost because too many were held back.
    pub overflow: u64,
}

/// A frame that waits because of a rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Delayed {
    due: Nanos,
    sequence: u64,
    out: bool,
    bytes: Vec<u8>,
}

/// A frame that lets others pass.
#[derive(Debug)]
struct Behind {
    out: bool,
    more: u32,
    until: Nanos,
    bytes: Vec<u8>,
}

/// All of a station but NIC and link, so that a link can lend its frames to it.
struct Wire {
    port: HostPort,
    faults: Injector,
    /// There are rules about frames.
    frame_rules: bool,
    face_rules: bool,
    delayed: BinaryHeap<Reverse<Delayed>>,
    behind: Vec<Behind>,
    sequence: u64,
    fault_counters: FaultCounters,
    capture: Option<Capture>,
    capture_error: Option<io::Error>,
}

/// A capture that is being written.
struct Capture {
    writer: Writer<BufWriter<File>>,
    since_1970_ns: u64,
}

/// A NIC on a link.
pub struct Station<D, M> {
    /// The NIC.
    pub nic: Nic<D, M>,
    link: Box<dyn Link>,
    wire: Wire,
}

impl<D, M> std::fmt::Debug for Station<D, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Station").field("link", &self.link.name()).finish_non_exhaustive()
    }
}

impl<D: Device<M>, M: Memory> Station<D, M> {
    /// Joins a NIC and a link. The NIC's engine should have the port's addresses
    /// ([`crate::port::PortConfig::engine_port`]).
    #[must_use]
    pub fn new(nic: Nic<D, M>, link: Box<dyn Link>, port: HostPort) -> Self {
        let wire = Wire {
            port,
            faults: Injector::default(),
            frame_rules: false,
            face_rules: false,
            delayed: BinaryHeap::new(),
            behind: Vec::new(),
            sequence: 0,
            fault_counters: FaultCounters::default(),
            capture: None,
            capture_error: None,
        };
        Self { nic, link, wire }
    }

    /// From now on these faults happen; those before are forgotten, but frames that they hold back still come.
    pub fn set_faults(&mut self, faults: Injector) {
        self.wire.frame_rules = faults.rules().iter().any(|rule| !rule.action.at_face());
        self.wire.face_rules = faults.has_face_rules();
        self.wire.faults = faults;
    }

    /// The fault rules and what they have done.
    #[must_use]
    pub const fn faults(&self) -> &Injector {
        &self.wire.faults
    }

    /// The fault rules, to switch them off and on.
    pub const fn faults_mut(&mut self) -> &mut Injector {
        &mut self.wire.faults
    }

    /// The NIC for its software, and the rules that stand before its face, which calls that may complete work
    /// take (`..._through`).
    pub fn at_work(&mut self, now: Nanos) -> (&mut Nic<D, M>, Option<AtFace<'_>>) {
        let rules = self.wire.face_rules.then(|| self.wire.faults.at_face(now, NODE));
        (&mut self.nic, rules)
    }

    /// What the rules did to frames.
    #[must_use]
    pub const fn fault_counters(&self) -> FaultCounters {
        self.wire.fault_counters
    }

    /// Records every frame from now on, with a comment where it was lost or refused.
    ///
    /// # Errors
    /// The operating system's: the file cannot be made.
    pub fn start_capture(&mut self, path: &Path, since_1970_ns: u64) -> io::Result<()> {
        let interface = Interface { name: self.link.name().to_owned(), description: String::new() };
        let file = BufWriter::with_capacity(1 << 20, File::create(path)?);
        let writer = Writer::new(file, &[interface])?;
        self.wire.capture = Some(Capture { writer, since_1970_ns });
        Ok(())
    }

    /// Ends the capture. Where writing it failed, it ended then.
    ///
    /// # Errors
    /// The operating system's, now or earlier.
    pub fn stop_capture(&mut self) -> io::Result<()> {
        let finished = self.wire.capture.take().map(|capture| capture.writer.finish());
        match (self.wire.capture_error.take(), finished) {
            (Some(error), _) | (None, Some(Err(error))) => Err(error),
            (None, _) => Ok(()),
        }
    }

    /// The link.
    #[must_use]
    pub fn link(&self) -> &dyn Link {
        &*self.link
    }

    /// Call it before each wait on the link's file descriptor: see [`Link::may_wait`].
    pub fn may_wait(&mut self) -> bool {
        self.link.may_wait()
    }

    /// Takes another link, after the old one went away.
    pub fn replace_link(&mut self, link: Box<dyn Link>) -> Box<dyn Link> {
        std::mem::replace(&mut self.link, link)
    }

    /// The host's side of the port.
    #[must_use]
    pub const fn port(&self) -> &HostPort {
        &self.wire.port
    }

    /// The MAC address for a peer's IP address: see [`HostPort::resolve`].
    pub fn resolve(&mut self, now: Nanos, ip: IpAddr) -> Resolution {
        match self.link.mac_of(ip) {
            Some(mac) => Resolution::Known(mac),
            None => self.wire.port.resolve(now, ip),
        }
    }

    /// Takes what has arrived, lets time pass, and sends what can leave. Never waits.
    ///
    /// # Errors
    /// The link's. The NIC goes on: what it sends meanwhile is lost as on any broken cable.
    pub fn turn(&mut self, now: Nanos) -> Result<Turn, LinkError> {
        let Self { nic, link, wire } = self;
        let received = link.receive(BATCH, &mut |frame, rx| wire.arrive(nic, now, frame, rx))?;
        if link.wants_write() {
            // What waited may go now. Else there is no room below, nothing is sent, and the turn looks idle.
            link.flush()?;
        }
        wire.late_arrivals(nic, now);
        wire.timeouts(nic, now);
        let sent = wire.transmit(nic, &mut **link, now);
        link.flush()?;
        Ok(Turn { received, sent, more: received == BATCH || sent == BATCH })
    }

    /// Lets time pass while there is no link: timers run, frames that leave are lost. Returns how many were.
    pub fn turn_without_link(&mut self, now: Nanos, scratch: &mut [u8]) -> usize {
        self.wire.timeouts(&mut self.nic, now);
        for lost in 0..BATCH {
            let mut room = softrnic_engine::Room { bytes: scratch, segments: 1, source_port: None };
            if self.wire.next_frame(&mut self.nic, now, &mut room).is_none() {
                return lost;
            }
        }
        BATCH
    }

    /// When to turn again, even if nothing arrives.
    pub fn next_deadline(&mut self) -> Option<Nanos> {
        let wire = &self.wire;
        let delayed = wire.delayed.peek().map(|Reverse(frame)| frame.due);
        let behind = wire.behind.iter().map(|frame| frame.until).min();
        let held = if wire.face_rules { wire.faults.held_until(NODE) } else { None };
        let own = [self.nic.next_deadline(), wire.port.next_deadline(), delayed, behind, held];
        own.into_iter().flatten().min()
    }
}

/// What a frame that leaves is, for the capture and for the link.
struct Leaving {
    written: Written,
    retransmission: bool,
}

impl Wire {
    /// A frame arrived on the link.
    fn arrive<D: Device<M>, M: Memory>(
        &mut self,
        nic: &mut Nic<D, M>,
        now: Nanos,
        frame: &mut [u8],
        rx: Rx,
    ) {
        if !self.frame_rules {
            self.deliver(nic, now, frame, rx);
            return;
        }
        let outcome = self.faults.frame(now, Direction::In, NODE, frame);
        // A frame that a rule changed has to be verified anew.
        let rx = if outcome.fired.is_empty() { rx } else { Rx::default() };
        if let Some(frame) = self.hold_back(now, frame, &outcome, false) {
            self.deliver(nic, now, frame, rx);
        }
        self.let_pass(now, false);
    }

    /// Gives a frame to the port or the NIC.
    fn deliver<D: Device<M>, M: Memory>(
        &mut self,
        nic: &mut Nic<D, M>,
        now: Nanos,
        frame: &[u8],
        rx: Rx,
    ) {
        if HostPort::takes(frame) {
            self.port.handle_frame(now, frame);
            self.record(now, frame, None);
            return;
        }
        let verdict = if self.face_rules {
            self.faults.at_face(now, NODE).handle_frame(nic, frame, rx)
        } else {
            nic.handle_frame(now, frame, rx)
        };
        if self.capture.is_some() {
            self.record(now, frame, comment(&verdict).as_deref());
        }
    }

    /// Does what rules say about a frame; what is left of it, if it goes on now.
    fn hold_back<'a>(
        &mut self,
        now: Nanos,
        frame: &'a mut [u8],
        outcome: &Outcome,
        out: bool,
    ) -> Option<&'a mut [u8]> {
        if let Some(rule) = outcome.lost {
            self.fault_counters.lost += 1;
            self.record(now, frame, Some(&format!("lost: by fault {}", rule + 1)));
            return None;
        }
        let frame = &mut frame[..outcome.len];
        for copy in 1..=u64::from(outcome.copies) {
            self.fault_counters.copies += 1;
            let later = outcome.delay_ns.saturating_add(copy.saturating_mul(outcome.apart_ns));
            self.delay(now, later, frame.to_vec(), out);
        }
        if outcome.behind > 0 {
            self.fault_counters.delayed += 1;
            let until = Nanos(now.0.saturating_add(outcome.behind_limit_ns));
            let (more, bytes) = (outcome.behind, frame.to_vec());
            // One more, because the frame itself is counted as well.
            self.behind.push(Behind { out, more: more.saturating_add(1), until, bytes });
            return None;
        }
        if outcome.delay_ns > 0 {
            self.fault_counters.delayed += 1;
            self.delay(now, outcome.delay_ns, frame.to_vec(), out);
            return None;
        }
        Some(frame)
    }

    fn delay(&mut self, now: Nanos, by_ns: u64, bytes: Vec<u8>, out: bool) {
        if self.delayed.len() >= DELAYED_MAX {
            self.fault_counters.overflow += 1;
            self.record(now, &bytes, Some("lost: too many frames are held back"));
            return;
        }
        self.sequence += 1;
        let due = Nanos(now.0.saturating_add(by_ns));
        self.delayed.push(Reverse(Delayed { due, sequence: self.sequence, out, bytes }));
    }

    /// A frame of this direction went by: those that let it pass come nearer.
    fn let_pass(&mut self, now: Nanos, out: bool) {
        let mut at = 0;
        while at < self.behind.len() {
            let waiting = &mut self.behind[at];
            if waiting.out == out {
                waiting.more = waiting.more.saturating_sub(1);
            }
            if waiting.more == 0 || waiting.until <= now {
                let frame = self.behind.remove(at);
                self.delay(now, 0, frame.bytes, frame.out);
            } else {
                at += 1;
            }
        }
    }

    /// A frame of this direction whose time has come.
    fn take_due(&mut self, now: Nanos, out: bool) -> Option<Vec<u8>> {
        let Reverse(first) = self.delayed.peek()?;
        if first.due > now || first.out != out {
            return None;
        }
        self.delayed.pop().map(|Reverse(frame)| frame.bytes)
    }

    fn late_arrivals<D: Device<M>, M: Memory>(&mut self, nic: &mut Nic<D, M>, now: Nanos) {
        if !self.behind.is_empty() {
            let overdue = |frame: &Behind| frame.until <= now;
            while let Some(at) = self.behind.iter().position(overdue) {
                let frame = self.behind.remove(at);
                self.delay(now, 0, frame.bytes, frame.out);
            }
        }
        while let Some(frame) = self.take_due(now, false) {
            self.deliver(nic, now, &frame, Rx::default());
        }
    }

    fn timeouts<D: Device<M>, M: Memory>(&mut self, nic: &mut Nic<D, M>, now: Nanos) {
        let due = |deadline: Option<Nanos>| deadline.is_some_and(|deadline| deadline <= now);
        if due(self.port.next_deadline()) {
            self.port.handle_timeout(now);
        }
        if self.face_rules {
            self.faults.at_face(now, NODE).handle_timeout(nic);
        } else if due(nic.next_deadline()) {
            nic.handle_timeout(now);
        }
    }

    fn transmit<D: Device<M>, M: Memory>(
        &mut self,
        nic: &mut Nic<D, M>,
        link: &mut dyn Link,
        now: Nanos,
    ) -> usize {
        let mut sent = 0;
        while sent < BATCH {
            let Some(mut room) = link.room() else { break };
            if self.frame_rules || self.capture.is_some() {
                room.segments = 1;
            }
            let late = self.take_due(now, true);
            let judged = late.is_some();
            let leaving = match late {
                Some(frame) => put(&frame, room.bytes),
                None => self.next_frame(nic, now, &mut room),
            };
            let Some(leaving) = leaving else { break };
            let mut written = leaving.written;
            if self.frame_rules && !judged {
                let frame = &mut room.bytes[..written.len];
                let outcome = self.faults.frame(now, Direction::Out, NODE, frame);
                let left = self.hold_back(now, frame, &outcome, true).map(|frame| frame.len());
                self.let_pass(now, true);
                let Some(len) = left else { continue };
                written = Written::frame(len);
            }
            if self.capture.is_some() {
                let comment = leaving.retransmission.then_some("retransmission");
                self.record(now, &room.bytes[..written.len], comment);
            }
            link.commit(written);
            sent += 1;
        }
        sent
    }

    /// The next frame of the port or the NIC.
    fn next_frame<D: Device<M>, M: Memory>(
        &mut self,
        nic: &mut Nic<D, M>,
        now: Nanos,
        room: &mut softrnic_engine::Room<'_>,
    ) -> Option<Leaving> {
        if let Some(len) = self.port.poll_transmit(room.bytes) {
            return Some(Leaving { written: Written::frame(len), retransmission: false });
        }
        let train = if self.face_rules {
            self.faults.at_face(now, NODE).poll_transmit(nic, room)
        } else {
            nic.poll_transmit(now, room)
        }?;
        let written = if train.segments > 1 {
            let (len, header) = (train.len, train.header);
            Written { len, header, segment: train.segment, segments: train.segments }
        } else {
            Written::frame(train.len)
        };
        Some(Leaving { written, retransmission: train.retransmission })
    }

    /// Writes a frame to the capture. Where that fails, the capture ends and the station goes on.
    fn record(&mut self, now: Nanos, frame: &[u8], comment: Option<&str>) {
        let Some(capture) = &mut self.capture else { return };
        let time = Nanos(capture.since_1970_ns.saturating_add(now.0));
        if let Err(error) = capture.writer.packet(0, time, frame, comment.as_slice()) {
            tracing::warn!("the capture ends here: {error}");
            self.capture_error = Some(error);
            self.capture = None;
        }
    }
}

/// A frame that was held back, into the room.
fn put(frame: &[u8], room: &mut [u8]) -> Option<Leaving> {
    room.get_mut(..frame.len())?.copy_from_slice(frame);
    Some(Leaving { written: Written::frame(frame.len()), retransmission: false })
}

/// Why a frame was refused, as captures of virtual worlds say it.
fn comment(verdict: &Verdict) -> Option<String> {
    let reason = verdict.refused?;
    Some(format!(
        "refused: {reason}. {} QP {}, PSN {}.",
        reason.row().text,
        verdict.qpn,
        verdict.psn
    ))
}
