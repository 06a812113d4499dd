//! Watches what a reliable queue pair executes and answers as a responder: P-08 (NAKs), P-09 (order
//! of answers), P-19 (PSN and MSN), S-14, S-20, S-23, S-30, S-44, S-51, S-53.
//!
//! Keeps the obvious account of every READ and atomic, without forgetting any before its time. Knows
//! frames and an engine's getters.

use softrnic_engine::packet::{Operation, Packet, Position, Syndrome, nak_code};
use softrnic_engine::{Nanos, Qp, Reason, Verdict};

use super::{Findings, at_or_after, distance};

/// A READ or atomic that was executed.
#[derive(Clone, Copy, Debug)]
struct Owed {
    first_psn: u32,
    packets: u32,
    /// The packet that comes next, and where this round began.
    next: u32,
    start: u32,
    replay: bool,
    va: u64,
    len: u32,
    /// What an atomic's answer said when it was first given.
    original: Option<u64>,
}

impl Owed {
    const fn waits(&self) -> bool {
        self.next < self.packets
    }
}

/// The receive side of one reliable queue pair.
#[derive(Debug)]
pub(crate) struct ResponderCheck {
    mtu: u32,
    depth: usize,
    /// Oldest first, as many as the responder must keep.
    owed: Vec<Owed>,
    msn: u32,
    expected_before: u32,
    /// The expected PSN that a NAK sequence error was sent for, and whether a duplicate came since.
    nak_for: Option<u32>,
    duplicate_since: bool,
    /// A gap that a NAK is due for, since when.
    gap_since: Option<Nanos>,
    rnr_for: Option<u32>,
    /// How soon a NAK must have left.
    answer_within_ns: u64,
    /// A fault rule may fail this node's memory: what is wrong is not always the request.
    memory_fails: bool,
    fatal: bool,
    /// Bytes of the WRITE in progress: announced, and arrived.
    write: (u32, u32),
    pub(crate) rnr_sent: u32,
    pub(crate) duplicates: u32,
    pub(crate) out_of_sequence: u32,
}

impl ResponderCheck {
    pub(crate) fn new(mtu: u32, depth: u8, answer_within_ns: u64, memory_fails: bool) -> Self {
        Self {
            mtu,
            depth: depth.into(),
            owed: Vec::new(),
            msn: 0,
            expected_before: 0,
            nak_for: None,
            duplicate_since: false,
            gap_since: None,
            rnr_for: None,
            answer_within_ns,
            memory_fails,
            fatal: false,
            write: (0, 0),
            rnr_sent: 0,
            duplicates: 0,
            out_of_sequence: 0,
        }
    }

    pub(crate) fn look(&mut self, qp: &Qp) {
        self.expected_before = qp.expected_psn().get();
    }

    /// A frame for the queue pair was judged.
    pub(crate) fn received(
        &mut self,
        now: Nanos,
        qp: &Qp,
        packet: Option<&Packet<'_>>,
        verdict: &Verdict,
        findings: &mut Findings,
    ) {
        let qpn = qp.qpn().get();
        let (before, after) = (self.expected_before, qp.expected_psn().get());
        let Some(packet) = packet.filter(|p| !p.row.operation.is_response()) else {
            findings.require(before == after, "P-19", now, || {
                format!("QP {qpn}: no request, and the expected PSN moves to {after:#08x}")
            });
            return;
        };
        let psn = packet.bth.psn().get();
        let ahead = distance(psn, before);
        let judged = verdict.refused.is_none();
        let executed = judged && !verdict.duplicate;
        let psns = if !executed {
            0
        } else if packet.row.operation == Operation::ReadRequest {
            packet.reth().map_or(1, |reth| reth.dma_length.get().div_ceil(self.mtu).max(1))
        } else {
            1
        };
        findings.require(distance(after, before) == psns, "P-19", now, || {
            format!("QP {qpn}: the expected PSN goes from {before:#08x} to {after:#08x}")
        });
        let behind = ahead >= 1 << 23;
        findings.require(!executed || ahead == 0, "S-20", now, || {
            format!("QP {qpn}: PSN {psn:#08x} is executed, {before:#08x} was expected")
        });
        findings.require(!verdict.duplicate || behind, "S-01", now, || {
            format!("QP {qpn}: PSN {psn:#08x} is no duplicate, {before:#08x} was expected")
        });
        let out_of_sequence =
            matches!(verdict.refused, Some(Reason::PsnAhead | Reason::PsnBehindReceiverNotReady));
        findings.require(!out_of_sequence || (ahead != 0 && !behind), "S-01", now, || {
            format!("QP {qpn}: PSN {psn:#08x} is not ahead, {before:#08x} was expected")
        });
        self.duplicates += u32::from(verdict.duplicate);
        self.out_of_sequence += u32::from(out_of_sequence);
        if executed {
            if let Some(since) = self.gap_since.take() {
                let waited = now.0 - since.0;
                findings.require(waited <= self.answer_within_ns, "S-30", now, || {
                    format!("QP {qpn}: no NAK for a gap in {waited} ns")
                });
            }
            self.rnr_for = None;
            self.executed(now, qpn, packet, findings);
        } else if judged {
            self.duplicate_since = true;
            self.repeated(packet, psn);
        } else if verdict.refused == Some(Reason::PsnAhead)
            && self.nak_for != Some(before)
            && self.rnr_for != Some(before)
        {
            self.gap_since.get_or_insert(now);
        } else if verdict.refused == Some(Reason::ReceiverNotReady) {
            self.gap_since = None;
        }
    }

    fn executed(&mut self, now: Nanos, qpn: u32, packet: &Packet<'_>, findings: &mut Findings) {
        let row = packet.row;
        if row.position.ends() {
            self.msn = (self.msn + 1) & 0x00FF_FFFF;
        }
        match row.operation {
            Operation::Write => {
                if let Some(reth) = packet.reth() {
                    self.write = (reth.dma_length.get(), 0);
                }
                self.write.1 += packet.payload().len() as u32;
                let (announced, arrived) = self.write;
                let fits =
                    if row.position.ends() { arrived == announced } else { arrived < announced };
                findings.require(fits, "S-44", now, || {
                    format!("QP {qpn}: a WRITE of {announced} bytes has {arrived} bytes")
                });
            }
            Operation::ReadRequest | Operation::FetchAdd | Operation::CompareSwap => {
                let busy = self.owed.iter().filter(|o| o.waits() && !o.replay).count();
                findings.require(busy < self.depth, "S-51", now, || {
                    format!("QP {qpn}: {busy} READs and atomics are owed, and one more is taken")
                });
                let (va, len) = match packet.reth() {
                    Some(reth) => (reth.va.get(), reth.dma_length.get()),
                    None => (0, 8),
                };
                let packets =
                    if packet.reth().is_some() { len.div_ceil(self.mtu).max(1) } else { 1 };
                let first_psn = packet.bth.psn().get();
                let (next, start, replay, original) = (0, 0, false, None);
                self.owed.push(Owed { first_psn, packets, next, start, replay, va, len, original });
                let forgotten = self.owed.len().saturating_sub(self.depth);
                self.owed.drain(..forgotten);
            }
            _ => {}
        }
    }

    /// A duplicate was taken: what it asks for is owed again.
    fn repeated(&mut self, packet: &Packet<'_>, psn: u32) {
        let atomic = matches!(packet.row.operation, Operation::FetchAdd | Operation::CompareSwap);
        if !atomic && packet.row.operation != Operation::ReadRequest {
            return;
        }
        if let Some(owed) =
            self.owed.iter_mut().rev().find(|o| distance(psn, o.first_psn) < o.packets)
        {
            let k = distance(psn, owed.first_psn);
            // An atomic that has not been answered yet is answered once.
            if !atomic || !owed.waits() {
                (owed.next, owed.start, owed.replay) = (k, k, true);
            }
        }
    }

    /// A response left. `memory` gives the bytes at an address as they are now.
    pub(crate) fn transmitted<'m>(
        &mut self,
        now: Nanos,
        qp: &Qp,
        packet: &Packet<'_>,
        memory: impl Fn(u64, usize) -> Option<&'m [u8]>,
        findings: &mut Findings,
    ) {
        let qpn = qp.qpn().get();
        let psn = packet.bth.psn().get();
        let expected = qp.expected_psn().get();
        findings.require(!self.fatal, "P-08", now, || {
            format!("QP {qpn}: something is said after a fatal NAK")
        });
        let Some(aeth) = packet.aeth() else {
            return self.answered(now, qpn, packet, memory, findings);
        };
        findings.require(aeth.msn() == self.msn, "S-14", now, || {
            format!("QP {qpn}: MSN {} instead of {}", aeth.msn(), self.msn)
        });
        if packet.row.operation != Operation::Acknowledge {
            return self.answered(now, qpn, packet, memory, findings);
        }
        // Rule S-61: a NAK may stand in for the packet of a READ that cannot be had.
        let instead = |o: &Owed| {
            matches!(aeth.kind(), Syndrome::Nak(code) if code != nak_code::PSN_SEQUENCE)
                && distance(psn, o.first_psn) == o.next
        };
        let waits = self.owed.iter().find(|o| o.waits()).filter(|o| !instead(o));
        findings.require(waits.is_none(), "P-09", now, || {
            let first = waits.map_or(0, |o| o.first_psn);
            format!("QP {qpn}: an acknowledgement overtakes the answer at PSN {first:#08x}")
        });
        let newest = expected.wrapping_sub(1) & 0x00FF_FFFF;
        let (fits, what) = match aeth.kind() {
            Syndrome::Ack(_) => (at_or_after(newest, psn), "an ACK"),
            Syndrome::Rnr(_) => {
                self.rnr_sent += 1;
                self.rnr_for = Some(expected);
                self.gap_since = None;
                (psn == expected, "an RNR NAK")
            }
            Syndrome::Nak(nak_code::PSN_SEQUENCE) => {
                let again = self.nak_for == Some(expected) && !self.duplicate_since;
                findings.require(!again, "P-08", now, || {
                    format!("QP {qpn}: a second NAK for the missing PSN {expected:#08x}")
                });
                let known = self.gap_since.is_some() || self.nak_for == Some(expected);
                findings.require(known, "P-08", now, || {
                    format!("QP {qpn}: a NAK for PSN {expected:#08x}, and nothing came after it")
                });
                (self.nak_for, self.duplicate_since) = (Some(expected), false);
                self.gap_since = None;
                (psn == expected, "a NAK")
            }
            Syndrome::Nak(code) => {
                self.fatal = true;
                let blames = code == nak_code::REMOTE_OPERATIONAL;
                findings.require(self.memory_fails || !blames, "S-45", now, || {
                    format!("QP {qpn}: a NAK blames this node's memory, which never fails")
                });
                // A READ that cannot go on is refused at the packet that is missing.
                (distance(expected, psn) < 1 << 23, "a fatal NAK")
            }
            Syndrome::Reserved(_) => (false, "a reserved syndrome"),
        };
        findings.require(fits, "P-09", now, || {
            format!("QP {qpn}: {what} for PSN {psn:#08x}, {expected:#08x} is expected")
        });
    }

    /// P-09, S-23, P-05: the next packet of the oldest answer that is owed.
    fn answered<'m>(
        &mut self,
        now: Nanos,
        qpn: u32,
        packet: &Packet<'_>,
        memory: impl Fn(u64, usize) -> Option<&'m [u8]>,
        findings: &mut Findings,
    ) {
        let psn = packet.bth.psn().get();
        let mtu = self.mtu;
        let Some(owed) = self.owed.iter_mut().find(|o| o.waits()) else {
            findings.add("P-09", now, || {
                format!("QP {qpn}: an answer nobody asked for, PSN {psn:#08x}")
            });
            return;
        };
        let right = (owed.first_psn + owed.next) & 0x00FF_FFFF;
        findings.require(psn == right, "P-09", now, || {
            format!("QP {qpn}: an answer at PSN {psn:#08x}, owed is {right:#08x}")
        });
        let k = owed.next;
        let position = match (k == owed.start, k + 1 == owed.packets) {
            (true, true) => Position::Only,
            (true, false) => Position::First,
            (false, false) => Position::Middle,
            (false, true) => Position::Last,
        };
        owed.next += 1;
        if let Some(ack) = packet.atomic_ack_eth() {
            let original = ack.original.get();
            let first = *owed.original.get_or_insert(original);
            findings.require(first == original, "S-23", now, || {
                format!("QP {qpn}: an atomic answered {first}, and now {original}")
            });
            return;
        }
        findings.require(packet.row.position == position, "S-21", now, || {
            format!("QP {qpn}: {} for packet {k} of {}", packet.row.name, owed.packets)
        });
        let offset = k * mtu;
        let len = (owed.len - offset).min(mtu) as usize;
        let there = if len == 0 { Some(&[][..]) } else { memory(owed.va + u64::from(offset), len) };
        findings.require(there == Some(packet.payload()), "P-05", now, || {
            format!("QP {qpn}: a READ answer at PSN {psn:#08x} is not what is in memory")
        });
    }
}
