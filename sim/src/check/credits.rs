//! P-10 with end-to-end credits (rules Q-09, S-17): an obvious account of what a requester may start,
//! from the acknowledgements that arrived and the messages that left.
//!
//! Knows credit codes and 24-bit numbers; no frame and no engine.

use super::distance;

/// The code that says "not valid": no limit.
const NOT_VALID: u8 = 31;

/// What the peer has allowed one queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CreditCheck {
    /// Messages that were started: the last one's sequence number.
    started: u32,
    /// Number of the last message that there is a buffer for, as far as was heard.
    limit: u32,
    unlimited: bool,
}

impl CreditCheck {
    /// An acknowledgement arrived: MSN and credit code of its AETH.
    pub(super) const fn learn(&mut self, msn: u32, code: u8) {
        // 0, 1, and from 2 on two codes for each power of two: 2, 3, 4, 6, 8, 12...
        let credits = match code {
            0 | 1 => code as u32,
            NOT_VALID.. => {
                self.unlimited = true;
                return;
            }
            _ if code.is_multiple_of(2) => 1 << (code / 2),
            _ => 3 << ((code - 3) / 2),
        };
        self.limit = (msn + credits) & 0x00FF_FFFF;
    }

    /// A message starts, which takes a receive buffer at the peer or does not; `idle`: everything
    /// before it is acknowledged. Whether it may: one message goes beyond the limit, and without
    /// anything on its way one always does, or nobody would ever hear of a new limit.
    pub(super) const fn start(&mut self, takes_receive: bool, idle: bool) -> bool {
        self.started = (self.started + 1) & 0x00FF_FFFF;
        if !takes_receive {
            // It needs no credit and must not use up another's.
            self.limit = (self.limit + 1) & 0x00FF_FFFF;
            return true;
        }
        // Half of the numbers are behind a limit that lies.
        let beyond = distance(self.started, self.limit + 1);
        self.unlimited || idle || beyond == 0 || beyond >= 1 << 23
    }

    /// Number of the last message, and of the last one that there is a buffer for.
    pub(super) const fn numbers(&self) -> (u32, u32) {
        (self.started, self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_message_beyond_the_credits_is_found() {
        let mut check = CreditCheck::default();
        assert!(check.start(true, true), "a probe, since nothing is known");
        assert!(!check.start(true, false));

        let mut check = CreditCheck::default();
        assert!(check.start(true, true));
        check.learn(1, 2);
        assert_eq!(
            [true, true, true, false].map(|_| check.start(true, false)),
            [true, true, true, false]
        );
        assert_eq!(check.numbers(), (5, 3));
    }

    #[test]
    fn what_takes_no_buffer_needs_no_credit() {
        let mut check = CreditCheck::default();
        check.learn(0, 1);
        assert!((0..5).all(|_| check.start(false, false)));
        assert!(check.start(true, false) && check.start(true, false));
        assert!(!check.start(true, false), "one buffer, one probe, and no third one");
    }

    #[test]
    fn an_idle_queue_pair_may_always_start_one_and_code_31_ends_the_limit() {
        let mut check = CreditCheck::default();
        assert!((0..3).all(|_| check.start(true, true)));
        assert!(!check.start(true, false));
        check.learn(0, 31);
        assert!((0..100).all(|_| check.start(true, false)));
    }

    #[test]
    fn codes_are_those_of_the_table_and_numbers_wrap() {
        let limit_of = |code| {
            let mut check = CreditCheck::default();
            check.learn(0, code);
            check.numbers().1
        };
        // IBTA vol 1, 9.7.7.2.
        for (code, credits) in [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (6, 8), (7, 12)] {
            assert_eq!(limit_of(code), credits);
        }
        assert_eq!([29, 30].map(limit_of), [24576, 32768]);
        let mut check = CreditCheck { started: 0x00FF_FFFE, ..CreditCheck::default() };
        check.learn(0x00FF_FFFE, 2);
        assert!((0..3).all(|_| check.start(true, false)));
        assert!(!check.start(true, false));
    }
}
