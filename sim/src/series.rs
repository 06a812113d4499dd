//! Values of a phase over its virtual time, in a fixed number of buckets, whatever it does and however
//! long it takes: what passed on the wire, the requester's window, the send queue.
//!
//! Sampled from getters at the world's events; the engine knows nothing of it.

use softrnic_engine::Nanos;

/// Buckets of a series at most.
pub const BUCKETS: usize = 128;
/// Width of a bucket to begin with; it doubles each time that the buckets are used up.
const BUCKET_NS: u64 = 16;

/// A stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Bytes of frames from the posting node that arrived, without FCS.
    pub request_bytes: u64,
    /// Bytes of frames to the posting node that arrived.
    pub response_bytes: u64,
    /// Bytes of frames in both directions that had been sent before, or were lost.
    pub wasted_bytes: u64,
    /// Request packets that were not acknowledged, at most.
    pub window: u32,
    /// Work requests that were posted and not complete, at most.
    pub depth: u32,
}

/// What a series needs to know of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carried {
    pub(crate) bytes: u64,
    /// From the posting node.
    pub(crate) request: bool,
    pub(crate) lost: bool,
    /// It had been sent before.
    pub(crate) again: bool,
}

/// A phase's values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    start: Nanos,
    bucket_ns: u64,
    buckets: Vec<Bucket>,
    /// Window and depth now.
    level: (u32, u32),
}

impl Series {
    /// Begins now.
    #[must_use]
    pub fn new(start: Nanos) -> Self {
        let buckets = Vec::with_capacity(BUCKETS);
        Self { start, bucket_ns: BUCKET_NS, buckets, level: (0, 0) }
    }

    /// When it begins.
    #[must_use]
    pub const fn start(&self) -> Nanos {
        self.start
    }

    /// Nanoseconds of a bucket.
    #[must_use]
    pub const fn bucket_ns(&self) -> u64 {
        self.bucket_ns
    }

    /// The buckets; the first begins with the series, and none is left out.
    #[must_use]
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// A frame arrived, or would have.
    pub(crate) fn frame(&mut self, at: Nanos, frame: Carried) {
        let Carried { bytes, request, lost, again } = frame;
        let bucket = self.bucket(at);
        bucket.wasted_bytes += if lost || again { bytes } else { 0 };
        let arrived = if lost { 0 } else { bytes };
        if request {
            bucket.request_bytes += arrived;
        } else {
            bucket.response_bytes += arrived;
        }
    }

    /// Window and depth from now on.
    pub(crate) fn level(&mut self, now: Nanos, window: u32, depth: u32) {
        // Up to now it was the level before.
        let bucket = self.bucket(now);
        bucket.window = bucket.window.max(window);
        bucket.depth = bucket.depth.max(depth);
        self.level = (window, depth);
    }

    /// The bucket of a time, with those before it filled.
    fn bucket(&mut self, at: Nanos) -> &mut Bucket {
        let since = at.0.saturating_sub(self.start.0);
        while since / self.bucket_ns >= BUCKETS as u64 {
            self.halve();
        }
        let index = (since / self.bucket_ns) as usize;
        let (window, depth) = self.level;
        if self.buckets.len() <= index {
            self.buckets.resize(index + 1, Bucket { window, depth, ..Bucket::default() });
        }
        &mut self.buckets[index]
    }

    /// Makes each two buckets one.
    fn halve(&mut self) {
        self.bucket_ns *= 2;
        let count = self.buckets.len().div_ceil(2);
        for i in 0..count {
            let a = self.buckets[2 * i];
            let b = self.buckets.get(2 * i + 1).copied().unwrap_or_default();
            self.buckets[i] = Bucket {
                request_bytes: a.request_bytes + b.request_bytes,
                response_bytes: a.response_bytes + b.response_bytes,
                wasted_bytes: a.wasted_bytes + b.wasted_bytes,
                window: a.window.max(b.window),
                depth: a.depth.max(b.depth),
            };
        }
        self.buckets.truncate(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_phase_has_no_more_buckets_and_loses_no_byte() {
        let mut series = Series::new(Nanos(1000));
        let mut sent = 0;
        for i in 0..10_000u64 {
            let at = Nanos(1000 + i * 977);
            let bytes = 60 + i % 100;
            sent += bytes;
            let again = i % 10 == 0;
            series.frame(at, Carried { bytes, request: i % 2 == 0, lost: false, again });
        }
        let buckets = series.buckets();
        assert!(buckets.len() <= BUCKETS && buckets.len() > BUCKETS / 2);
        assert!(series.bucket_ns() * buckets.len() as u64 >= 9_999 * 977);
        let total = |value: fn(&Bucket) -> u64| buckets.iter().map(value).sum::<u64>();
        assert_eq!(total(|b| b.request_bytes) + total(|b| b.response_bytes), sent);
        assert!(total(|b| b.wasted_bytes) > sent / 11 && total(|b| b.wasted_bytes) < sent / 9);
    }

    #[test]
    fn a_level_lasts_until_the_next_one() {
        let mut series = Series::new(Nanos(0));
        series.level(Nanos(0), 3, 7);
        series.level(Nanos(10 * BUCKET_NS), 1, 2);
        series.level(Nanos(12 * BUCKET_NS), 0, 0);
        let windows: Vec<_> = series.buckets().iter().map(|bucket| bucket.window).collect();
        assert_eq!(windows, [3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 1, 1]);
        assert_eq!(series.buckets()[5].depth, 7);
    }
}
