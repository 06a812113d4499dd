//! End-to-end credits: AETH credit codes both ways (IBTA vol 1, 9.7.7.2; rules S-17 and Q-09).
//!
//! Arithmetic only.

/// Credit code that says "not valid": no flow control.
pub(crate) const NOT_VALID: u8 = 31;

/// Credits of codes 0..=30.
const CREDITS: [u16; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

/// The largest code whose credits are not above `receives`.
pub(crate) fn code(receives: u32) -> u8 {
    (CREDITS.partition_point(|&credits| u32::from(credits) <= receives) - 1) as u8
}

/// Credits of a code; `None` where the field is not valid.
pub(crate) fn credits(code: u8) -> Option<u32> {
    CREDITS.get(usize::from(code)).map(|&credits| u32::from(credits))
}

/// What the requester may send: messages that take a receive buffer, by SSN.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limit {
    /// Limit sequence number, 24 bits.
    lsn: u32,
    /// The peer has said that it does not count.
    unlimited: bool,
}

impl Limit {
    /// Whether the message `ssn` may start: up to one beyond the limit, as a probe.
    pub(crate) const fn allows(&self, ssn: u32) -> bool {
        // 24-bit arithmetic, as MSNs are.
        self.unlimited || (ssn.wrapping_sub(self.lsn + 1) << 8).cast_signed() <= 0
    }

    /// A message that takes no receive buffer was started: it needs no credit.
    pub(crate) const fn uncounted(&mut self) {
        self.lsn = (self.lsn + 1) & 0x00FF_FFFF;
    }

    /// An acknowledgement arrived.
    pub(crate) fn learn(&mut self, msn: u32, code: u8) {
        match credits(code) {
            Some(credits) => self.lsn = (msn + credits) & 0x00FF_FFFF,
            None => self.unlimited = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_17_code_is_the_largest_entry_not_above_the_free_receives() {
        assert_eq!(code(0), 0);
        assert_eq!(code(5), 4);
        assert_eq!(code(7), 5);
        assert_eq!(code(32767), 29);
        assert_eq!(code(u32::MAX), 30);
        for (i, &credits) in CREDITS.iter().enumerate() {
            assert_eq!(code(u32::from(credits)), i as u8);
        }
    }

    #[test]
    fn q_09_one_message_beyond_the_limit_goes_as_a_probe() {
        let mut limit = Limit::default();
        assert!(limit.allows(1) && !limit.allows(2), "nothing known: one probe");
        limit.learn(1, 4);
        assert!(limit.allows(6) && !limit.allows(7));
        limit.uncounted();
        assert!(limit.allows(7) && !limit.allows(8));
        limit.learn(0x00FF_FFFF, 2);
        assert!(limit.allows(0x00FF_FFFF) && limit.allows(2) && !limit.allows(3), "it wraps");
        limit.learn(5, NOT_VALID);
        assert!(limit.allows(1000) && limit.allows(0x0070_0000), "no number of credits at all");
    }
}
