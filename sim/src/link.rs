//! One direction of a point-to-point Ethernet link: serialisation, latency and MTU.
//!
//! Knows frames by length only, and no faults. Time comes in as an argument.

use std::fmt;

use softrnic_engine::Nanos;

/// Preamble and start delimiter (8), FCS (4) and interpacket gap (12), in bytes (IEEE 802.3).
pub const ETHERNET_OVERHEAD_LEN: u64 = 24;
/// Shortest frame without FCS; shorter ones are padded on the wire.
const FRAME_LEN_MIN: u64 = 60;
/// Ethernet header with one VLAN tag: what a frame may be longer than the MTU by.
const ETHERNET_HEADER_LEN: usize = 18;

/// What a link is like, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// From the last bit sent to the last bit received.
    pub latency_ns: u64,
    /// Bits per second on the wire, overhead included. Not 0.
    pub rate_bits_per_s: u64,
    /// Longest IP packet in bytes.
    pub mtu: usize,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self { latency_ns: 1_000, rate_bits_per_s: 100_000_000_000, mtu: 9_000 }
    }
}

/// Why a frame did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// By the fault rule of this number, from 0.
    Fault(usize),
    /// Longer than the link's MTU.
    TooLong,
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
    /// Copies that fault rules made; not in `frames`.
    pub copies: u64,
}

/// Where a direction leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// A station.
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
    pub(crate) traffic: Traffic,
    config: LinkConfig,
    /// Picoseconds, so that short frames at high rates are not rounded up each.
    free_at_ps: u64,
}

impl Direction {
    pub(crate) fn new(from: usize, goal: Goal, link: usize, config: LinkConfig) -> Self {
        Self { from, goal, link, config, traffic: Traffic::default(), free_at_ps: 0 }
    }

    /// When the next frame may start.
    pub(crate) const fn free_at(&self) -> Nanos {
        Nanos(self.free_at_ps.div_ceil(1000))
    }

    /// Puts a frame on the wire; returns when its last bit arrives.
    pub(crate) fn send(&mut self, now: Nanos, len: usize, retransmission: bool) -> Nanos {
        let bits = (FRAME_LEN_MIN.max(len as u64) + ETHERNET_OVERHEAD_LEN) * 8;
        let start_ps = self.free_at_ps.max(now.0.saturating_mul(1000));
        let duration_ps =
            u128::from(bits) * 1_000_000_000_000 / u128::from(self.config.rate_bits_per_s.max(1));
        self.free_at_ps = start_ps.saturating_add(u64::try_from(duration_ps).unwrap_or(u64::MAX));
        self.traffic.frames += 1;
        self.traffic.bytes += len as u64;
        self.traffic.retransmissions += u64::from(retransmission);
        self.free_at().after(self.config.latency_ns)
    }

    /// Whether the link carries frames of this length.
    pub(crate) const fn carries(&self, len: usize) -> bool {
        len <= self.config.mtu + ETHERNET_HEADER_LEN
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(rule) => write!(f, "by fault {}", rule + 1),
            Self::TooLong => f.write_str("longer than the link's MTU"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn direction(config: LinkConfig) -> Direction {
        Direction::new(0, Goal::Station(1), 0, config)
    }

    #[test]
    fn frames_queue_behind_each_other_without_rounding() {
        let mut line = direction(LinkConfig::default());
        let mut last = Nanos(0);
        for _ in 0..1000 {
            last = line.send(Nanos(0), 100, false);
        }
        // (100 + 24) bytes x 8 at 100 Gbit/s are 9.92 ns; a thousand of them, then 1 us of cable.
        assert_eq!(last, Nanos(9_920 + 1_000));
        assert_eq!(line.traffic, Traffic { frames: 1000, bytes: 100_000, ..Traffic::default() });
    }

    #[test]
    fn a_short_frame_takes_the_time_of_the_shortest_ethernet_frame() {
        let mut line = direction(LinkConfig { latency_ns: 0, ..LinkConfig::default() });
        assert_eq!(line.send(Nanos(5), 40, false), Nanos(12));
    }

    #[test]
    fn a_frame_longer_than_the_mtu_is_not_carried() {
        let line = direction(LinkConfig { mtu: 1500, ..LinkConfig::default() });
        assert!(line.carries(1518) && !line.carries(1519));
    }
}
