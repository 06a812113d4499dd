//! P-06: how long nothing may move, worked out from the attributes of a queue pair.

use softrnic_engine::{ack_timeout_ns, rnr_timer_ns};

/// Retry limits of a queue pair, as software set them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) ack_timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    /// The longest that an RNR NAK of the peer may ask to wait.
    pub(crate) rnr_timer: u8,
    /// Added for delays of the link and of a rate.
    pub(crate) slack_ns: u64,
}

impl Limits {
    /// `(retry_cnt + 1) x 4T + (rnr_retry + 1) x RNR time`; `None` where P-06 promises nothing:
    /// without a timeout, or with RNR retries for ever.
    pub(crate) fn patience_ns(&self) -> Option<u64> {
        let timeout_ns = ack_timeout_ns(self.ack_timeout)?;
        if self.rnr_retry >= 7 {
            return None;
        }
        let timeouts = (u64::from(self.retry_count) + 1).saturating_mul(4 * timeout_ns);
        let waits = (u64::from(self.rnr_retry) + 1).saturating_mul(rnr_timer_ns(self.rnr_timer));
        Some(timeouts.saturating_add(waits).saturating_add(self.slack_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p_06_patience_is_the_formula_and_has_no_end_where_nothing_is_promised() {
        let limits =
            Limits { ack_timeout: 4, retry_count: 2, rnr_retry: 1, rnr_timer: 1, slack_ns: 5 };
        assert_eq!(limits.patience_ns(), Some(3 * 4 * 65_536 + 2 * 10_000 + 5));
        assert_eq!(Limits { ack_timeout: 0, ..limits }.patience_ns(), None);
        assert_eq!(Limits { rnr_retry: 7, ..limits }.patience_ns(), None);
    }
}
