//! Bandwidth tests: one end keeps its send queues full; with SEND the other keeps its receive queues full.

use std::time::{Duration, Instant};

use super::rig::Verb;
use super::{Line, PerfError, Run};

/// How many requests are posted at once.
const BURST: u64 = 64;

impl Run<'_> {
    pub(super) fn bandwidth(mut self) -> Result<Vec<Line>, PerfError> {
        let lines = if self.plan.verb == Verb::Send { self.sends() } else { self.one_sided() }?;
        self.wire.close(self.own[0])?;
        Ok(lines)
    }

    /// Both ends work, and wait for each other before and after each size.
    fn sends(&mut self) -> Result<Vec<Line>, PerfError> {
        let plan = self.plan;
        let several = plan.sizes.len() > 1;
        let mut lines = Vec::new();
        for &size in &plan.sizes {
            self.prepare(size)?;
            if !self.is_client() {
                self.fill_receives(size)?;
            }
            self.synchronize()?;
            let line =
                if self.is_client() { self.request_all(size) } else { self.receive_all(size) }?;
            lines.push(line);
            if several {
                self.synchronize()?;
            }
        }
        Ok(lines)
    }

    /// The client works, and says afterwards how it was.
    fn one_sided(&mut self) -> Result<Vec<Line>, PerfError> {
        let plan = self.plan;
        let sizes = &plan.sizes;
        if !self.is_client() {
            self.synchronize()?;
            let measured = self.wire.report(&super::Measured::default())?;
            let size = u32::try_from(measured.size).unwrap_or(u32::MAX);
            if self.plan.verb == Verb::Write && sizes.contains(&size) {
                for qp in 0..self.plan.qps {
                    self.compare(qp, size)?;
                }
            }
            let rate = measured.mega_messages_per_s * 1e6;
            return Ok(vec![Line {
                size,
                messages: measured.iterations * self.plan.qps as u64,
                gbit_per_s: Some(rate * f64::from(size) * 8.0 / 1e9),
                messages_per_s: Some(rate),
                latency: None,
                compared: self.compared,
                by_peer: true,
            }]);
        }
        let mut lines = Vec::new();
        for &size in sizes {
            self.prepare(size)?;
            lines.push(self.request_all(size)?);
        }
        self.synchronize()?;
        let last = lines.last().map(|line| line.measured(self.plan.qps)).unwrap_or_default();
        self.wire.report(&last)?;
        Ok(lines)
    }

    /// Requests of one size, as fast as they end.
    fn request_all(&mut self, size: u32) -> Result<Line, PerfError> {
        let plan = self.plan;
        let limits = self.rig.limits();
        let depth = u64::from(plan.depth.min(limits.send_depth));
        let moderation = u64::from(plan.moderation.max(1)).min(depth);
        let (mut posted, mut done) = (vec![0u64; plan.qps], vec![0u64; plan.qps]);
        let all = plan.duration.is_none().then(|| plan.iterations * plan.qps as u64);
        let start = Instant::now();
        let until = plan.duration.map(|duration| start + duration);
        let mut total = 0;
        let mut signals = Vec::new();
        loop {
            for qp in 0..plan.qps {
                let left = if until.is_some() { u64::MAX } else { plan.iterations - posted[qp] };
                let count = left.min(depth - (posted[qp] - done[qp])).min(BURST);
                if count == 0 {
                    continue;
                }
                signals.clear();
                for number in posted[qp] + 1..=posted[qp] + count {
                    let last = until.is_none() && number == plan.iterations;
                    let end = number % moderation == 0 || last;
                    // The last may end fewer.
                    let covers =
                        if number % moderation == 0 { moderation } else { number % moderation };
                    signals.push(if end { covers as u32 } else { 0 });
                }
                let request = self.request(qp, size);
                self.rig.post(qp, &request, &signals)?;
                posted[qp] += count;
            }
            if !self.wait(until)? {
                break;
            }
            for at in 0..self.ended.len() {
                let ended = self.ended[at];
                if ended.receive {
                    continue;
                }
                done[ended.qp] += u64::from(ended.count);
                total += u64::from(ended.count);
                if plan.verb == Verb::Read {
                    self.compare(ended.qp, size)?;
                }
            }
            self.tell(size, total, all);
            if all == Some(total) || until.is_some_and(|until| Instant::now() >= until) {
                break;
            }
        }
        let mut line = Line::of_rate(size, total, start.elapsed());
        line.compared = std::mem::take(&mut self.compared);
        Ok(line)
    }

    fn fill_receives(&mut self, size: u32) -> Result<(), PerfError> {
        let depth = self.receive_depth();
        for qp in 0..self.plan.qps {
            let (offset, len) = self.receive(qp, size);
            for _ in 0..depth {
                self.rig.post_receive(qp, offset, len)?;
            }
        }
        Ok(())
    }

    /// Receives that wait; never more than will be taken, so that none is left for the next size.
    pub(super) fn receive_depth(&self) -> u64 {
        let depth = u64::from(self.plan.receive_depth.min(self.rig.limits().recv_depth));
        if self.plan.duration.is_some() { depth } else { depth.min(self.plan.iterations) }
    }

    /// Receives of one size; the clock starts with the first.
    fn receive_all(&mut self, size: u32) -> Result<Line, PerfError> {
        let plan = self.plan;
        let all = plan.duration.is_none().then(|| plan.iterations * plan.qps as u64);
        let mut posted = vec![self.receive_depth(); plan.qps];
        let mut total = 0;
        let mut start = None;
        let mut until = None;
        while self.wait(until)? {
            let now = Instant::now();
            if start.is_none() {
                start = Some(now);
                until = plan.duration.map(|duration| now + duration);
            }
            for at in 0..self.ended.len() {
                let ended = self.ended[at];
                if !ended.receive {
                    continue;
                }
                total += 1;
                self.compare(ended.qp, size)?;
                if plan.duration.is_some() || posted[ended.qp] < plan.iterations {
                    let (offset, len) = self.receive(ended.qp, size);
                    self.rig.post_receive(ended.qp, offset, len)?;
                    posted[ended.qp] += 1;
                }
            }
            self.tell(size, total, all);
            if all == Some(total) || until.is_some_and(|until| now >= until) {
                break;
            }
        }
        let time = start.map_or(Duration::ZERO, |start| start.elapsed());
        let mut line = Line::of_rate(size, total, time);
        line.compared = std::mem::take(&mut self.compared);
        Ok(line)
    }
}
