//! Latency tests: one message at a time. SEND and WRITE go back and forth and half of a round trip counts; READs
//! and atomics are answered by the device, and the whole counts.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::rig::{Ended, Request, Verb};
use super::{Latency, Line, PerfError, Run};

/// How long a byte is looked at without letting others run.
const SPIN: Duration = Duration::from_micros(50);

/// Times in nanoseconds, to three digits.
struct Times(Histogram<u64>);

impl Times {
    fn new() -> Result<Self, PerfError> {
        // 1 ns to 100 s.
        Histogram::new_with_bounds(1, 100_000_000_000, 3)
            .map(Self)
            .map_err(|error| PerfError::Failed(error.to_string()))
    }

    fn add(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// A message leaves now: half of the time since the last one did.
    fn note(&mut self, last: &mut Option<Instant>) {
        let now = Instant::now();
        if let Some(last) = last.replace(now) {
            self.add((now - last) / 2);
        }
    }

    fn line(&self, size: u32, compared: u64) -> Line {
        let us = |ns: u64| ns as f64 / 1e3;
        let at = |quantile| us(self.0.value_at_quantile(quantile));
        let latency = Latency {
            min_us: us(self.0.min()),
            p50_us: at(0.5),
            mean_us: self.0.mean() / 1e3,
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: us(self.0.max()),
        };
        Line {
            size,
            messages: self.0.len(),
            gbit_per_s: None,
            messages_per_s: None,
            latency: (!self.0.is_empty()).then_some(latency),
            compared,
            by_peer: false,
        }
    }
}

/// What is on its way.
#[derive(Debug, Default)]
struct Queues {
    /// Requests behind the last one that asked for a completion.
    unreported: u64,
    /// Requests whose completion is awaited.
    in_flight: u64,
    /// Receives that have ended and were not looked at.
    arrived: u64,
}

impl Queues {
    fn take(&mut self, ended: &[Ended]) {
        for ended in ended {
            if ended.receive {
                self.arrived += 1;
            } else {
                self.in_flight = self.in_flight.saturating_sub(ended.count.into());
            }
        }
    }
}

impl Run<'_> {
    pub(super) fn latency(mut self) -> Result<Vec<Line>, PerfError> {
        let mut lines = Vec::new();
        let verb = self.plan.verb;
        let answered = matches!(verb, Verb::Read | Verb::Atomic);
        if answered && !self.is_client() {
            self.wire.close(self.own[0])?;
            return Ok(lines);
        }
        let plan = self.plan;
        for &size in &plan.sizes {
            if verb != Verb::Write {
                self.prepare(size)?;
            }
            lines.push(match verb {
                Verb::Send => self.sends_back_and_forth(size)?,
                Verb::Write => self.writes_back_and_forth(size)?,
                Verb::Read | Verb::Atomic => self.one_at_a_time(size)?,
            });
        }
        if verb == Verb::Write {
            // perftest says nothing after this test.
            self.wire.linger();
        } else {
            self.wire.close(self.own[0])?;
        }
        Ok(lines)
    }

    fn until(&self) -> Option<Instant> {
        self.plan.duration.map(|duration| Instant::now() + duration)
    }

    fn goes_on(&self, done: u64, until: Option<Instant>) -> bool {
        match until {
            None => done < self.plan.iterations,
            Some(until) => Instant::now() < until,
        }
    }

    fn all(&self) -> Option<u64> {
        self.plan.duration.is_none().then_some(self.plan.iterations)
    }

    /// READs or atomics.
    fn one_at_a_time(&mut self, size: u32) -> Result<Line, PerfError> {
        let mut times = Times::new()?;
        let request = self.request(0, size);
        let until = self.until();
        let mut done = 0;
        while self.goes_on(done, until) {
            let start = Instant::now();
            self.rig.post(0, &request, &[1])?;
            if !self.wait(None)? {
                break;
            }
            times.add(start.elapsed());
            done += 1;
            self.compare(0, size)?;
            self.tell(size, done, self.all());
        }
        Ok(times.line(size, std::mem::take(&mut self.compared)))
    }

    fn sends_back_and_forth(&mut self, size: u32) -> Result<Line, PerfError> {
        let mut times = Times::new()?;
        let request = self.request(0, size);
        let (offset, len) = self.receive(0, size);
        let depth = self.receive_depth();
        for _ in 0..depth {
            self.rig.post_receive(0, offset, len)?;
        }
        self.synchronize()?;
        let moderation = u64::from(self.plan.moderation.max(1).min(self.plan.depth));
        let mut queues = Queues::default();
        let mut posted = depth;
        let until = self.until();
        let mut last_post = None;
        let mut done = 0;
        while self.goes_on(done, until) {
            let last = until.is_none() && done + 1 == self.plan.iterations;
            let count = queues.unreported + 1;
            let signal = if count == moderation || last { count as u32 } else { 0 };
            if self.is_client() {
                times.note(&mut last_post);
                if !self.send_one(&mut queues, &request, signal, until)? {
                    break;
                }
            }
            while queues.arrived == 0 && self.wait(until)? {
                queues.take(&self.ended);
            }
            if queues.arrived == 0 {
                break;
            }
            queues.arrived -= 1;
            self.compare(0, size)?;
            if until.is_some() || posted < self.plan.iterations {
                self.rig.post_receive(0, offset, len)?;
                posted += 1;
            }
            if !self.is_client() {
                times.note(&mut last_post);
                if !self.send_one(&mut queues, &request, signal, until)? {
                    break;
                }
            }
            done += 1;
            self.tell(size, done, self.all());
        }
        if self.is_client() && until.is_none() {
            times.note(&mut last_post);
        }
        while until.is_none() && queues.in_flight > 0 && self.wait(None)? {
            queues.take(&self.ended);
        }
        Ok(times.line(size, std::mem::take(&mut self.compared)))
    }

    /// Posts a SEND as soon as the one that was reported last has ended; `false` where the time was over first.
    fn send_one(
        &mut self,
        queues: &mut Queues,
        request: &Request,
        signal: u32,
        until: Option<Instant>,
    ) -> Result<bool, PerfError> {
        while queues.in_flight > 0 {
            if !self.wait(until)? {
                return Ok(false);
            }
            queues.take(&self.ended);
        }
        self.rig.post(0, request, &[signal])?;
        queues.unreported += 1;
        if signal > 0 {
            queues.in_flight = std::mem::take(&mut queues.unreported);
        }
        Ok(true)
    }

    /// The last byte of a message is its number; whoever sees it come writes the next.
    fn writes_back_and_forth(&mut self, size: u32) -> Result<Line, PerfError> {
        let mut times = Times::new()?;
        let request = self.request(0, size);
        let last = u64::from(size) - 1;
        let (post_at, poll_at) = (self.plan.source(0) + last, self.plan.target(0) + last);
        let mut queues = Queues::default();
        let until = self.until();
        let mut last_post = None;
        let mut done = 0u64;
        while self.goes_on(done, until) {
            // One byte counts, so that it begins again after 255.
            let number = (done + 1) as u8;
            // Here perftest's server begins.
            for of_client in [false, true] {
                if of_client == self.is_client() {
                    times.note(&mut last_post);
                    self.rig.write(post_at, &[number])?;
                    if !self.send_one(&mut queues, &request, 1, until)? {
                        return Ok(times.line(size, 0));
                    }
                } else if !self.see(poll_at, number, until)? {
                    return Ok(times.line(size, 0));
                }
            }
            done += 1;
            self.tell(size, done, self.all());
        }
        if !self.is_client() && until.is_none() {
            times.note(&mut last_post);
        }
        while until.is_none() && queues.in_flight > 0 && self.wait(None)? {
            queues.take(&self.ended);
        }
        Ok(times.line(size, 0))
    }

    /// Waits until a byte of the own memory has a value: nothing but looking tells of a WRITE.
    fn see(&mut self, at: u64, wanted: u8, until: Option<Instant>) -> Result<bool, PerfError> {
        let start = Instant::now();
        loop {
            let mut byte = [0];
            self.rig.read(at, &mut byte)?;
            if byte[0] == wanted {
                return Ok(true);
            }
            let silence = start.elapsed();
            if silence > SPIN {
                std::thread::yield_now();
                if until.is_some_and(|until| Instant::now() >= until) {
                    return Ok(false);
                }
                self.check_silence(silence)?;
            }
        }
    }
}
