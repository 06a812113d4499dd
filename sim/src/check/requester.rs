//! Watches what a queue pair sends as a requester, against the work that was posted: P-10 (limits),
//! P-19 (PSNs go forward), P-20 (retry counters), timers, and every header and byte.
//!
//! Knows frames, posted work and an engine's getters.

use softrnic_engine::packet::{Operation, Packet, Position, Syndrome, nak_code};
use softrnic_engine::{Counter, Nanos, Qp, Reason, Service, Verdict, ack_timeout_ns, rnr_timer_ns};

use super::credits::CreditCheck;
use super::{Findings, at_or_after, distance};
use crate::campaign::Kind;
use crate::payload::fill_pattern_from;

/// A work request as software posted it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    pub(crate) kind: Kind,
    pub(crate) len: u32,
    pub(crate) remote: u64,
    pub(crate) rkey: u32,
    pub(crate) immediate: u32,
    pub(crate) solicited: bool,
    pub(crate) fence: bool,
    /// What its bytes follow from.
    pub(crate) pattern: u64,
    /// Addend or swap value, and compare value.
    pub(crate) operands: (u64, u64),
    /// It cannot be sent: it fails where it is posted.
    pub(crate) unsendable: bool,
}

/// A work request that is on its way: its place in `posted` and its PSNs.
#[derive(Clone, Copy, Debug)]
struct Started {
    posted: usize,
    first_psn: u32,
    packets: u32,
}

impl Started {
    fn last_psn(&self) -> u32 {
        (self.first_psn + self.packets - 1) & 0x00FF_FFFF
    }
}

/// What was seen of a queue pair before a call.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    unacknowledged: u32,
    next: u32,
    retries: u8,
    rnr_retries: u8,
    timeouts: u32,
}

/// The send side of one queue pair.
#[derive(Debug)]
pub(crate) struct RequesterCheck {
    service: Service,
    mtu: u32,
    pub(crate) posted: Vec<Posted>,
    started: Vec<Started>,
    next_posted: usize,
    next_psn: u32,
    /// Packets of the newest started work request that were sent.
    sent_of_newest: u32,
    credits: CreditCheck,
    rnr_until: Option<Nanos>,
    /// When the ACK timer that runs now was started.
    armed_at: Option<Nanos>,
    /// When an implied NAK came that no packet has been sent again for.
    implied_nak: Option<Nanos>,
    /// There was one since the last progress; further ones tell nothing new.
    implied_nak_seen: bool,
    /// The last time that something moved, and the longest that nothing may move.
    progress_at: Option<Nanos>,
    patience_ns: Option<u64>,
    /// How soon something must leave that is due.
    answer_within_ns: u64,
    before: Before,
    /// Request packets that were sent before.
    pub(crate) again: u32,
    /// NAK sequence errors and RNR NAKs that were taken.
    pub(crate) sequence_naks: u32,
    pub(crate) rnr_naks: u32,
}

impl RequesterCheck {
    pub(crate) fn new(
        service: Service,
        mtu: u32,
        first_psn: u32,
        patience_ns: Option<u64>,
        answer_within_ns: u64,
    ) -> Self {
        Self {
            service,
            mtu,
            posted: Vec::new(),
            started: Vec::new(),
            next_posted: 0,
            next_psn: first_psn,
            sent_of_newest: 0,
            credits: CreditCheck::default(),
            rnr_until: None,
            armed_at: None,
            implied_nak: None,
            implied_nak_seen: false,
            progress_at: None,
            patience_ns,
            answer_within_ns,
            before: Before::default(),
            again: 0,
            sequence_naks: 0,
            rnr_naks: 0,
        }
    }

    /// Remembers the queue pair before a call.
    pub(crate) fn look(&mut self, qp: &Qp) {
        self.before = Self::seen(qp);
    }

    fn seen(qp: &Qp) -> Before {
        let requester = qp.requester();
        Before {
            unacknowledged: requester.unacknowledged_psn().get(),
            next: qp.send_psn().get(),
            retries: requester.retries_used(),
            rnr_retries: requester.rnr_retries_used(),
            timeouts: qp.counters()[Counter::LocalAckTimeoutErr],
        }
    }

    /// A response was judged.
    pub(crate) fn received(
        &mut self,
        now: Nanos,
        qp: &Qp,
        packet: Option<&Packet<'_>>,
        verdict: &Verdict,
        findings: &mut Findings,
    ) {
        let (before, after) = (self.before, Self::seen(qp));
        let acknowledge = packet.filter(|p| p.row.operation == Operation::Acknowledge);
        if let (Some(packet), None) = (acknowledge, verdict.refused) {
            match packet.aeth().map(|aeth| aeth.kind()) {
                Some(Syndrome::Nak(nak_code::PSN_SEQUENCE)) => self.sequence_naks += 1,
                Some(Syndrome::Rnr(_)) => self.rnr_naks += 1,
                _ => {}
            }
        }
        self.credited(&before, packet);
        if self.forward(now, qp, findings) {
            return;
        }
        let moved = after.unacknowledged != before.unacknowledged;
        let reloaded = after.retries < before.retries || after.rnr_retries < before.rnr_retries;
        findings.require(moved || !reloaded, "P-20", now, || {
            format!("QP {}: retry counters start again without progress", qp.qpn().get())
        });
        if moved {
            self.progress(now, &after);
        }
        if packet.is_some() && verdict.refused == Some(Reason::ResponseImpliedNak) {
            let first = !core::mem::replace(&mut self.implied_nak_seen, true);
            self.implied_nak = self.implied_nak.or(first.then_some(now));
        }
        let Some(packet) = packet.filter(|p| p.row.operation.is_response()) else {
            findings.require(!moved, "Q-20", now, || {
                format!("QP {}: no response, and yet something is acknowledged", qp.qpn().get())
            });
            return;
        };
        let psn = packet.bth.psn().get();
        let syndrome = packet.aeth().map(|aeth| aeth.kind());
        let ack = packet.row.operation == Operation::Acknowledge;
        if moved {
            self.check_advance(now, qp, packet, psn, &after, findings);
        }
        if verdict.refused.is_some() {
            return;
        }
        match syndrome {
            Some(Syndrome::Nak(nak_code::PSN_SEQUENCE)) if ack => {}
            Some(Syndrome::Rnr(code)) if ack => {
                self.rnr_until = Some(now.after(rnr_timer_ns(code)));
                self.armed_at = None;
            }
            // Rule Q-44.
            _ if moved => {
                findings.require(after.retries == 0 && after.rnr_retries == 0, "P-20", now, || {
                    format!("QP {}: progress, and the retry counters are not 0", qp.qpn().get())
                })
            }
            _ => {}
        }
    }

    /// Rule Q-09: an acknowledgement of something that is on its way says how many buffers there are,
    /// whatever else becomes of it.
    fn credited(&mut self, before: &Before, packet: Option<&Packet<'_>>) {
        let Some((packet, aeth)) = packet.and_then(|p| Some((p, p.aeth()?))) else { return };
        let on_its_way = distance(packet.bth.psn().get(), before.unacknowledged)
            < distance(before.next, before.unacknowledged);
        if let (Syndrome::Ack(code), true) = (aeth.kind(), on_its_way) {
            self.credits.learn(aeth.msn(), code);
        }
    }

    /// Rules: how far one response may move the oldest unacknowledged PSN.
    fn check_advance(
        &self,
        now: Nanos,
        qp: &Qp,
        packet: &Packet<'_>,
        psn: u32,
        after: &Before,
        findings: &mut Findings,
    ) {
        let before = self.before;
        let acknowledges = match packet.aeth().map(|aeth| aeth.kind()) {
            Some(Syndrome::Ack(_)) | None => 1,
            _ => 0,
        };
        let most = distance(psn, before.unacknowledged) + acknowledges;
        let by = distance(after.unacknowledged, before.unacknowledged);
        findings.require(by <= most, "Q-20", now, || {
            format!("QP {}: a response for PSN {psn:#08x} acknowledges {by} PSNs", qp.qpn().get())
        });
        // Only its own answers complete a READ or atomic.
        let own = usize::from(packet.row.operation != Operation::Acknowledge);
        let skipped = self.started.iter().filter(|s| {
            self.posted[s.posted].kind.reads()
                && distance(s.last_psn(), before.unacknowledged) < by
                && !(own == 1 && s.last_psn() == psn)
        });
        findings.require(skipped.count() == 0, "Q-23", now, || {
            format!("QP {}: an unanswered READ or atomic counts as answered", qp.qpn().get())
        });
    }

    /// P-19. Whether the queue pair has ended.
    fn forward(&self, now: Nanos, qp: &Qp, findings: &mut Findings) -> bool {
        use softrnic_engine::State;
        let (before, after) = (self.before, Self::seen(qp));
        for (what, old, new) in [
            ("oldest unacknowledged PSN", before.unacknowledged, after.unacknowledged),
            ("next PSN", before.next, after.next),
        ] {
            findings.require(at_or_after(new, old), "P-19", now, || {
                format!("QP {}: the {what} goes back from {old:#08x} to {new:#08x}", qp.qpn().get())
            });
        }
        findings.require(at_or_after(after.next, after.unacknowledged), "P-19", now, || {
            format!("QP {}: what was never sent is acknowledged", qp.qpn().get())
        });
        !matches!(qp.state(), State::Rts | State::Sqd)
    }

    fn progress(&mut self, now: Nanos, after: &Before) {
        let idle = after.unacknowledged == after.next;
        self.rnr_until = None;
        (self.implied_nak, self.implied_nak_seen) = (None, false);
        self.armed_at = (!idle).then_some(now);
        self.progress_at = (!idle).then_some(now);
    }

    /// Time has passed for the queue pair.
    pub(crate) fn timed_out(&mut self, now: Nanos, qp: &Qp, findings: &mut Findings) {
        let (before, after) = (self.before, Self::seen(qp));
        if after.timeouts != before.timeouts {
            let timeout_ns = ack_timeout_ns(qp.attributes().ack_timeout).unwrap_or(u64::MAX);
            let due = self.armed_at.is_some_and(|at| now.0 - at.0 >= timeout_ns);
            findings.require(due, "Q-41", now, || {
                let since = self.armed_at.map(|at| at.0);
                format!(
                    "QP {}: the ACK timer of {timeout_ns} ns expires, running since {since:?}",
                    qp.qpn().get()
                )
            });
            let paced = qp.reaction_point().is_some();
            // Others' packets may be on the line.
            let late = self.implied_nak.is_some_and(|at| now.0 - at.0 > self.answer_within_ns);
            findings.require(!late || paced, "Q-23", now, || {
                format!("QP {}: nothing was sent again after an implied NAK", qp.qpn().get())
            });
            self.armed_at = None;
        }
        if self.rnr_until.is_some_and(|until| until <= now) {
            self.rnr_until = None;
        }
        if !self.forward(now, qp, findings) {
            self.impatient(now, qp, findings);
        }
    }

    /// P-06: something moves in time.
    fn impatient(&mut self, now: Nanos, qp: &Qp, findings: &mut Findings) {
        if let (Some(at), Some(patience_ns)) = (self.progress_at, self.patience_ns) {
            findings.require(now.0 - at.0 <= patience_ns, "P-06", now, || {
                format!("QP {}: no progress for {} ns", qp.qpn().get(), now.0 - at.0)
            });
        }
    }

    /// A request packet left.
    pub(crate) fn transmitted(
        &mut self,
        now: Nanos,
        qp: &Qp,
        packet: &Packet<'_>,
        flagged_again: bool,
        findings: &mut Findings,
    ) {
        let qpn = qp.qpn().get();
        let psn = packet.bth.psn().get();
        let reliable = self.service == Service::Rc;
        findings.require(self.rnr_until.is_none_or(|until| until <= now), "Q-46", now, || {
            format!("QP {qpn}: PSN {psn:#08x} is sent during an RNR wait")
        });
        if self.armed_at.is_none() {
            self.armed_at = Some(now);
        }
        if self.progress_at.is_none() && reliable {
            self.progress_at = Some(now);
        }
        let fresh = psn == self.next_psn;
        self.again += u32::from(!fresh);
        self.implied_nak = self.implied_nak.filter(|_| fresh);
        findings.require(fresh != flagged_again, "counters", now, || {
            format!("QP {qpn}: PSN {psn:#08x} is sent, fresh {fresh}, and counted otherwise")
        });
        let requester = qp.requester();
        let unacknowledged = requester.unacknowledged_psn().get();
        let window = distance(self.next_psn, unacknowledged);
        if fresh {
            if !self.start(now, qp, findings) {
                return;
            }
        } else {
            let inside = reliable && distance(psn, unacknowledged) < window;
            findings.require(inside, "Q-43", now, || {
                format!("QP {qpn}: PSN {psn:#08x} is sent again, which is acknowledged or was never sent")
            });
        }
        let Some(started) =
            self.started.iter().rev().find(|s| distance(psn, s.first_psn) < s.packets)
        else {
            findings.add("P-01", now, || format!("QP {qpn}: PSN {psn:#08x} belongs to no work"));
            return;
        };
        let (started, posted) = (*started, self.posted[started.posted]);
        let k = distance(psn, started.first_psn);
        if fresh {
            self.sent_of_newest = k + 1;
            let psns = if posted.kind.reads() { started.packets } else { 1 };
            self.next_psn = (psn + psns) & 0x00FF_FFFF;
        }
        if let Some(what) = self.difference(packet, &posted, k, started.packets) {
            findings.add("P-01", now, || {
                format!("QP {qpn}: packet {k} of a {:?} at PSN {psn:#08x}: {what}", posted.kind)
            });
        }
        // ERNIC's window may shrink below what is on its way (after a CNP).
        if reliable && fresh {
            let limit = qp.attributes().policy.window_packets.clamp(1, 1 << 23);
            findings.require(requester.outstanding_packets() <= limit, "P-10", now, || {
                format!("QP {qpn}: {} packets are outstanding", requester.outstanding_packets())
            });
        }
    }

    /// A fresh packet: the next of the newest work request, or the first of the next one. P-10, Q-07.
    fn start(&mut self, now: Nanos, qp: &Qp, findings: &mut Findings) -> bool {
        let reads = |s: &Started| self.posted[s.posted].kind.reads();
        let in_progress = self
            .started
            .last()
            .is_some_and(|newest| !reads(newest) && self.sent_of_newest < newest.packets);
        if in_progress {
            return true;
        }
        while self.posted.get(self.next_posted).is_some_and(|posted| posted.unsendable) {
            self.next_posted += 1;
        }
        let Some(posted) = self.posted.get(self.next_posted).copied() else {
            findings.add("P-01", now, || {
                format!(
                    "QP {}: a packet without work at PSN {:#08x}",
                    qp.qpn().get(),
                    self.next_psn
                )
            });
            return false;
        };
        let unacknowledged = qp.requester().unacknowledged_psn().get();
        let outstanding = self
            .started
            .iter()
            .rev()
            .take_while(|s| at_or_after(s.last_psn(), unacknowledged))
            .filter(|s| reads(s))
            .count();
        let depth = usize::from(qp.attributes().max_rd_atomic);
        findings.require(!posted.kind.reads() || outstanding < depth, "P-10", now, || {
            format!("QP {}: {outstanding} READs and atomics, and one more", qp.qpn().get())
        });
        findings.require(!posted.fence || outstanding == 0, "Q-07", now, || {
            format!("QP {}: a fenced request does not wait for READs", qp.qpn().get())
        });
        let counts = self.service == Service::Rc && qp.attributes().policy.end_to_end_credits;
        let (takes_receive, idle) = (posted.kind.takes_receive(), self.next_psn == unacknowledged);
        let within = self.credits.start(takes_receive, idle);
        findings.require(within || !counts, "P-10", now, || {
            let (message, limit) = self.credits.numbers();
            format!(
                "QP {}: message {message} starts, more than one beyond the credits, which end at {limit}",
                qp.qpn().get()
            )
        });
        let packets = posted.len.div_ceil(self.mtu).max(1);
        let posted = self.next_posted;
        self.started.push(Started { posted, first_psn: self.next_psn, packets });
        self.next_posted += 1;
        true
    }

    /// What is wrong with packet `k` of `packets` of a work request.
    fn difference(
        &self,
        packet: &Packet<'_>,
        posted: &Posted,
        k: u32,
        packets: u32,
    ) -> Option<&'static str> {
        let reads = posted.kind.reads();
        let last = reads || k + 1 == packets;
        let position = match (k == 0 || reads, last) {
            (true, true) => Position::Only,
            (true, false) => Position::First,
            (false, false) => Position::Middle,
            (false, true) => Position::Last,
        };
        let operation = match posted.kind {
            Kind::Send | Kind::SendImm | Kind::SendInv => Operation::Send,
            Kind::Write | Kind::WriteImm => Operation::Write,
            Kind::Read => Operation::ReadRequest,
            Kind::FetchAdd => Operation::FetchAdd,
            Kind::CompareSwap => Operation::CompareSwap,
        };
        let offset = k * self.mtu;
        let (imm, inv) =
            (posted.kind.has_immediate() && last, posted.kind == Kind::SendInv && last);
        let bth = packet.bth;
        let reth = (operation == Operation::ReadRequest || operation == Operation::Write && k == 0)
            .then_some((posted.remote + u64::from(offset), posted.rkey, posted.len - offset));
        let found_reth = packet.reth().map(|r| (r.va.get(), r.key().0, r.dma_length.get()));
        let atomic = posted.kind.is_atomic().then_some((posted.remote, posted.rkey));
        let found_atomic = packet.atomic_eth().map(|a| (a.va.get(), a.rkey.get()));
        let operands = packet.atomic_eth().map(|a| (a.swap_or_add.get(), a.compare.get()));
        if (packet.row.operation, packet.row.position) != (operation, position) {
            Some("another opcode than the work's")
        } else if found_reth != reth {
            Some("another RETH than the work's")
        } else if found_atomic != atomic || operands.is_some_and(|o| o != posted.operands) {
            Some("another AtomicETH than the work's")
        } else if packet.immdt().map(|i| i.immediate.get()) != imm.then_some(posted.immediate) {
            Some("other immediate data than the work's")
        } else if packet.ieth().map(|i| i.rkey.get()) != inv.then_some(posted.rkey) {
            Some("another key to invalidate than the work's")
        } else if bth.solicited()
            != (posted.solicited && last && (operation == Operation::Send || imm))
        {
            Some("solicited where it should not be, or not where it should (Q-12)")
        } else if last && self.service == Service::Rc && !bth.ack_requested() {
            Some("the last packet asks for no acknowledgement (Q-03)")
        } else if reads {
            None
        } else {
            let len = (posted.len - offset).min(self.mtu) as usize;
            let mut expected = vec![0; len];
            fill_pattern_from(posted.pattern, offset, &mut expected);
            (packet.payload() != expected).then_some("other bytes than the work's")
        }
    }
}
