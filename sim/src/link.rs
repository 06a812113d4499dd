//! One direction of a point-to-point Ethernet link: serialisation, latency, MTU, and which frames get
//! lost.
//!
//! Knows frames by length, opcode and PSN only. Time comes in as an argument.

use std::collections::VecDeque;
use std::fmt;

use softrnic_engine::packet::opcode;
use softrnic_engine::{Nanos, Psn, Train};

use crate::random::Random;

/// Preamble and start delimiter (8), FCS (4) and interpacket gap (12), in bytes (IEEE 802.3).
pub const ETHERNET_OVERHEAD_LEN: u64 = 24;
/// Shortest frame without FCS; shorter ones are padded on the wire.
const FRAME_LEN_MIN: u64 = 60;
/// Ethernet header with one VLAN tag: what a frame may be longer than the MTU by.
const ETHERNET_HEADER_LEN: usize = 18;

/// What a link is like, in both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkConfig {
    /// From the last bit sent to the last bit received.
    pub latency_ns: u64,
    /// Bits per second on the wire, overhead included. Not 0.
    pub rate_bits_per_s: u64,
    /// Longest IP packet in bytes.
    pub mtu: usize,
    /// Probability that a frame is lost, 0.0 to 1.0.
    pub loss: f64,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self { latency_ns: 1_000, rate_bits_per_s: 100_000_000_000, mtu: 9_000, loss: 0.0 }
    }
}

/// Loses the `nth` frame that matches: a named packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropRule {
    /// BTH.OpCode; any if `None`.
    pub opcode: Option<u8>,
    /// BTH.PSN; any if `None`.
    pub psn: Option<Psn>,
    /// Which of the matching frames, counted from 1.
    pub nth: u64,
}

/// Why a frame did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// By the link's loss rate.
    Chance,
    /// By this rule.
    Rule(DropRule),
    /// Longer than the link's MTU.
    TooLong,
}

/// A frame on the wire.
#[derive(Debug)]
pub(crate) struct InFlight {
    /// A whole buffer, of which the first `len` bytes are the frame.
    pub(crate) buffer: Vec<u8>,
    pub(crate) len: usize,
    /// The station that it arrives at.
    pub(crate) to: usize,
    pub(crate) sent: Nanos,
    pub(crate) lost: Option<Loss>,
    pub(crate) retransmission: bool,
}

/// What a direction has carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Frames sent, lost ones included.
    pub frames: u64,
    /// Bytes of those frames, without overhead.
    pub bytes: u64,
    /// Frames that had been sent before.
    pub retransmissions: u64,
    /// Frames lost.
    pub lost: u64,
}

/// Where a direction leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    Station(usize),
    /// The frame's destination MAC address tells the station.
    Switch(usize),
}

/// One direction.
#[derive(Debug)]
pub(crate) struct Direction {
    pub(crate) from: usize,
    pub(crate) goal: Goal,
    /// The number of its link or switch.
    pub(crate) link: usize,
    pub(crate) config: LinkConfig,
    pub(crate) rules: Vec<(DropRule, u64)>,
    pub(crate) traffic: Traffic,
    pub(crate) wire: VecDeque<InFlight>,
    random: Random,
    /// Picoseconds, so that short frames at high rates are not rounded up each.
    free_at_ps: u64,
}

impl Direction {
    pub(crate) fn new(
        from: usize,
        goal: Goal,
        link: usize,
        config: LinkConfig,
        random: Random,
    ) -> Self {
        Self {
            from,
            goal,
            link,
            config,
            rules: Vec::new(),
            traffic: Traffic::default(),
            wire: VecDeque::new(),
            random,
            free_at_ps: 0,
        }
    }

    /// When the next frame may start.
    pub(crate) const fn free_at(&self) -> Nanos {
        Nanos(self.free_at_ps.div_ceil(1000))
    }

    /// Puts a frame for station `to` on the wire; returns when it arrives, or would have.
    pub(crate) fn send(&mut self, now: Nanos, buffer: Vec<u8>, train: &Train, to: usize) -> Nanos {
        let len = train.len;
        let bits = (FRAME_LEN_MIN.max(len as u64) + ETHERNET_OVERHEAD_LEN) * 8;
        let start_ps = self.free_at_ps.max(now.0.saturating_mul(1000));
        let duration_ps =
            u128::from(bits) * 1_000_000_000_000 / u128::from(self.config.rate_bits_per_s.max(1));
        self.free_at_ps = start_ps.saturating_add(u64::try_from(duration_ps).unwrap_or(u64::MAX));
        let arrives = self.free_at().after(self.config.latency_ns);
        let lost = self.fate(len, train);
        self.traffic.frames += 1;
        self.traffic.bytes += len as u64;
        self.traffic.retransmissions += u64::from(train.retransmission);
        self.traffic.lost += u64::from(lost.is_some());
        let retransmission = train.retransmission;
        self.wire.push_back(InFlight { buffer, len, to, sent: now, lost, retransmission });
        arrives
    }

    /// The frame that was sent last goes to another station, too: the switch copies it.
    pub(crate) fn copy_newest(&mut self, to: usize) {
        if let Some(newest) = self.wire.back() {
            let copy = InFlight { buffer: newest.buffer.clone(), to, ..*newest };
            self.wire.push_back(copy);
        }
    }

    fn fate(&mut self, len: usize, train: &Train) -> Option<Loss> {
        let mut lost = None;
        // Every rule counts every frame, so that what one rule loses does not shift another.
        for (rule, seen) in &mut self.rules {
            let matches = !train.flow_control
                && rule.opcode.is_none_or(|o| o == train.opcode)
                && rule.psn.is_none_or(|p| p == train.psn);
            *seen += u64::from(matches);
            if matches && *seen == rule.nth {
                lost = lost.or(Some(Loss::Rule(*rule)));
            }
        }
        // Drawn for each frame, so that a rule does not shift the rest of the sequence.
        let unlucky = self.random.chance(self.config.loss);
        if len > self.config.mtu + ETHERNET_HEADER_LEN {
            return Some(Loss::TooLong);
        }
        lost.or_else(|| unlucky.then_some(Loss::Chance))
    }
}

impl fmt::Display for DropRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.opcode {
            Some(value) => write!(f, "{} no. {}", opcode::row(value).name, self.nth)?,
            None => write!(f, "frame no. {}", self.nth)?,
        }
        self.psn.map_or(Ok(()), |psn| write!(f, " with PSN {psn}"))
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chance => f.write_str("by the link's loss rate"),
            Self::Rule(rule) => write!(f, "by the rule for {rule}"),
            Self::TooLong => f.write_str("longer than the link's MTU"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use softrnic_engine::Qpn;

    fn train(len: usize, opcode: u8, psn: u32) -> Train {
        Train {
            len,
            header: 0,
            segment: 0,
            segments: 1,
            qpn: Qpn::new(2),
            opcode,
            psn: Psn::new(psn),
            syndrome: None,
            retransmission: false,
            flow_control: false,
        }
    }

    fn direction(config: LinkConfig) -> Direction {
        Direction::new(0, Goal::Station(1), 0, config, Random::new(1, 0))
    }

    #[test]
    fn frames_queue_behind_each_other_without_rounding() {
        let mut line = direction(LinkConfig::default());
        let mut last = Nanos(0);
        for psn in 0..1000 {
            last = line.send(Nanos(0), Vec::new(), &train(100, opcode::SEND_ONLY, psn), 1);
        }
        // (100 + 24) bytes x 8 at 100 Gbit/s are 9.92 ns; a thousand of them, then 1 us of cable.
        assert_eq!(last, Nanos(9_920 + 1_000));
    }

    #[test]
    fn a_short_frame_takes_the_time_of_the_shortest_ethernet_frame() {
        let mut line = direction(LinkConfig { latency_ns: 0, ..LinkConfig::default() });
        let arrives = line.send(Nanos(5), Vec::new(), &train(40, opcode::ACKNOWLEDGE, 0), 1);
        assert_eq!(arrives, Nanos(12));
    }

    #[test]
    fn a_rule_loses_the_named_packet_once() {
        let mut line = direction(LinkConfig::default());
        let middle = DropRule { opcode: Some(opcode::SEND_MIDDLE), psn: None, nth: 2 };
        let nine = DropRule { opcode: None, psn: Some(Psn::new(9)), nth: 1 };
        line.rules = vec![(middle, 0), (nine, 0)];
        let sent = [
            (opcode::SEND_FIRST, 5),
            (opcode::SEND_MIDDLE, 6),
            (opcode::SEND_MIDDLE, 7),
            (opcode::SEND_MIDDLE, 8),
            (opcode::SEND_LAST, 9),
            (opcode::SEND_LAST, 9),
        ];
        for (opcode, psn) in sent {
            line.send(Nanos(0), Vec::new(), &train(100, opcode, psn), 1);
        }
        let lost: Vec<_> = line.wire.iter().map(|f| f.lost).collect();
        let (rule, second) = (Some(Loss::Rule(middle)), Some(Loss::Rule(nine)));
        assert_eq!(lost, [None, None, rule, None, second, None]);
        assert_eq!(line.traffic.lost, 2);
    }

    #[test]
    fn a_frame_longer_than_the_mtu_is_lost() {
        let mut line = direction(LinkConfig { mtu: 1500, ..LinkConfig::default() });
        line.send(Nanos(0), Vec::new(), &train(1518, opcode::SEND_ONLY, 0), 1);
        line.send(Nanos(0), Vec::new(), &train(1519, opcode::SEND_ONLY, 1), 1);
        let lost: Vec<_> = line.wire.iter().map(|f| f.lost).collect();
        assert_eq!(lost, [None, Some(Loss::TooLong)]);
    }
}
