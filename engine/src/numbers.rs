//! Numbers that must not be mixed: time, queue pair numbers, packet sequence numbers, keys.
//!
//! Arithmetic only; no state. Widths and tables are IBTA volume 1's.

use core::fmt;

/// A point in time or a duration, in nanoseconds. The engine never reads a clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Later than every deadline.
    pub const NEVER: Self = Self(u64::MAX);

    /// This point moved `ns` nanoseconds on, saturating at [`Nanos::NEVER`].
    #[must_use]
    pub const fn after(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }
}

/// A queue pair number, 24 bits (IBTA vol 1, 9.2.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// The low 24 bits of `value`.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value & 0x00FF_FFFF)
    }

    /// The number, below 2^24.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A packet sequence number, 24 bits with wrap (IBTA vol 1, 9.7.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Psn(u32);

impl Psn {
    /// Numbers in the sequence space: 2^24.
    pub const MODULUS: u32 = 1 << 24;
    /// Half of the space: the largest window, and the number of duplicates before the expected PSN.
    pub const WINDOW: u32 = 1 << 23;

    /// The low 24 bits of `value`.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value & 0x00FF_FFFF)
    }

    /// The number, below 2^24.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// This PSN moved on by `count`, modulo 2^24.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self::new(self.0.wrapping_add(count))
    }

    /// This PSN moved back by `count`, modulo 2^24.
    #[must_use]
    pub const fn minus(self, count: u32) -> Self {
        Self::new(self.0.wrapping_sub(count))
    }

    /// `self - other` as a signed 24-bit number: -2^23 ..= 2^23 - 1 (rule S-01).
    #[must_use]
    pub const fn distance_from(self, other: Self) -> i32 {
        // The shift puts bit 23 where i32 keeps its sign.
        (self.0.wrapping_sub(other.0) << 8).cast_signed() >> 8
    }

    /// How many PSNs after `other` this one is, modulo 2^24: 0 ..= 2^24 - 1.
    #[must_use]
    pub const fn since(self, other: Self) -> u32 {
        self.0.wrapping_sub(other.0) & 0x00FF_FFFF
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// A remote key as it is on the wire. What its bits mean is the face's business.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct RKey(pub u32);

/// Local ACK timeout for a code: 4.096 us x 2^code; code 0 means no timer
/// (IBTA vol 1, 9.7.6.1.3; rule Q-40). Codes above 31 saturate instead of wrapping.
#[must_use]
pub const fn ack_timeout_ns(code: u8) -> Option<u64> {
    ack_timeout_of(4096, code)
}

/// The same for a port whose unit is not 4.096 us.
#[must_use]
pub const fn ack_timeout_of(unit_ns: u64, code: u8) -> Option<u64> {
    match code {
        0 => None,
        code if code as u32 <= unit_ns.leading_zeros() => Some(unit_ns << code),
        _ => Some(u64::MAX),
    }
}

/// RNR NAK timer in nanoseconds for a 5-bit code (IBTA vol 1, 9.7.5.2.8; rule S-34).
/// Note that code 0 is the longest.
#[must_use]
pub const fn rnr_timer_ns(code: u8) -> u64 {
    const TEN_MICROSECONDS: u64 = 10_000;
    const UNITS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    UNITS[(code & 31) as usize] as u64 * TEN_MICROSECONDS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_01_distance_is_a_signed_24_bit_number() {
        let expected = Psn::new(0x100);
        assert_eq!(Psn::new(0x100).distance_from(expected), 0);
        assert_eq!(Psn::new(0x0FF).distance_from(expected), -1);
        assert_eq!(Psn::new(0x101).distance_from(expected), 1);
        assert_eq!(Psn::new(0x80_0100).distance_from(expected), -(1 << 23));
        assert_eq!(Psn::new(0x80_00FF).distance_from(expected), (1 << 23) - 1);
        assert_eq!(Psn::new(0).distance_from(Psn::new(0xFF_FFFF)), 1);
    }

    #[test]
    fn s_34_rnr_timer_codes_are_the_tables() {
        let ms = [
            655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96,
            1.28, 1.92, 2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92,
            122.88, 163.84, 245.76, 327.68, 491.52,
        ];
        for (code, ms) in ms.into_iter().enumerate() {
            assert_eq!(rnr_timer_ns(code as u8), (ms * 1_000_000.0_f64).round() as u64, "{code}");
        }
    }

    #[test]
    fn q_40_ack_timeout_is_a_power_of_two_of_4096_ns() {
        assert_eq!(ack_timeout_ns(0), None);
        assert_eq!(ack_timeout_ns(14), Some(67_108_864));
        assert_eq!(ack_timeout_ns(31), Some(4096 << 31));
        assert_eq!(ack_timeout_ns(63), Some(u64::MAX));
        assert_eq!(ack_timeout_of(5120, 1), Some(10_240));
        assert_eq!(ack_timeout_of(1, 63), Some(1 << 63));
        assert_eq!(ack_timeout_of(2, 63), Some(u64::MAX));
    }
}
