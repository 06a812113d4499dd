//! The wall clock: nanoseconds since a start, for the engine, and since 1970, for captures. The only place that
//! asks the operating system for the time of a real link.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use softrnic_engine::Nanos;

/// A clock that began at 0 and never goes back.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
    since_1970_ns: u64,
}

impl Clock {
    /// Starts now.
    #[must_use]
    pub fn start() -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let since_1970_ns = u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX);
        Self { start: Instant::now(), since_1970_ns }
    }

    /// Nanoseconds since the start.
    #[must_use]
    pub fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Nanoseconds since 1970 at the start.
    #[must_use]
    pub const fn since_1970_ns(&self) -> u64 {
        self.since_1970_ns
    }
}
