//! Congestion control: DCQCN's reaction point (rules C-10 to C-17) and the notification point that
//! answers CE marks with CNPs (rules C-02 to C-05).
//!
//! The reaction point is arithmetic on integers, so that a trace is the same on every machine. It
//! knows neither packets nor queue pairs: it is told of time, of CNPs and of bytes that left, and
//! says when the next packet may leave. Timers are not kept: what they would have done is worked
//! out when the state is next looked at.

use crate::counters::Counter;
use crate::numbers::Nanos;
use crate::packet::{BthFields, Operation, Template, opcode};
use crate::port::{Port, Room, Train};
use crate::qp::Qp;
use crate::reason::Reason;

/// Parameters of DCQCN ("Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dcqcn {
    /// Where a flow starts, and what it never exceeds. A flow at this rate is not held back at all:
    /// the link does that. At most 2^43.
    pub line_rate_bits_per_s: u64,
    /// What a flow never falls below.
    pub min_rate_bits_per_s: u64,
    /// At most one cut in this time; further CNPs change nothing (ConnectX:
    /// `rate_reduce_monitor_period`). 0: each CNP cuts.
    pub decrease_interval_ns: u64,
    /// K: each of these without a cut makes alpha smaller. At least 1000.
    pub alpha_timer_ns: u64,
    /// Time between increases (ConnectX: `time_reset`). At least 1000.
    pub increase_timer_ns: u64,
    /// B: bytes between increases (ConnectX: `byte_reset`). At least 4096.
    pub byte_counter_bytes: u32,
    /// F: increases that only go halfway back to the rate before the cut (ConnectX: `threshold`).
    pub fast_recovery_steps: u32,
    /// R_AI: what an additive increase adds to the target rate.
    pub additive_increase_bits_per_s: u64,
    /// R_HAI: what a hyper increase adds to the target rate.
    pub hyper_increase_bits_per_s: u64,
    /// The gain g is 2^-`gain_log2`. 1..=16.
    pub gain_log2: u8,
    /// A cut lowers the target rate also where no timer has expired since the last one: the paper
    /// does, ConnectX with `clamp_tgt_rate` 0 does not.
    pub clamp_target_rate: bool,
    /// Bytes that may leave at once after a pause, so that a host that wakes late keeps the rate.
    /// Chosen: the paper has none. At most 2^24.
    pub burst_bytes: u32,
}

impl Default for Dcqcn {
    /// The paper's values for a line of 100 Gbit/s. Chosen: 100 Mbit/s for the least rate, and a hyper
    /// increase of ten additive ones.
    fn default() -> Self {
        Self {
            line_rate_bits_per_s: 100_000_000_000,
            min_rate_bits_per_s: 100_000_000,
            decrease_interval_ns: 50_000,
            alpha_timer_ns: 55_000,
            increase_timer_ns: 55_000,
            byte_counter_bytes: 10_000_000,
            fast_recovery_steps: 5,
            additive_increase_bits_per_s: 40_000_000,
            hyper_increase_bits_per_s: 400_000_000,
            gain_log2: 8,
            clamp_target_rate: true,
            burst_bytes: 0,
        }
    }
}

impl Dcqcn {
    /// Whether every parameter is in its range.
    ///
    /// # Errors
    /// One is not.
    pub const fn check(&self) -> Result<(), Reason> {
        let fits = self.min_rate_bits_per_s >= 1
            && self.min_rate_bits_per_s <= self.line_rate_bits_per_s
            && self.line_rate_bits_per_s <= LINE_RATE_MAX
            && self.alpha_timer_ns >= TIMER_MIN_NS
            && self.increase_timer_ns >= TIMER_MIN_NS
            && self.byte_counter_bytes >= BYTE_COUNTER_MIN
            && self.gain_log2 >= 1
            && self.gain_log2 <= 16
            && self.burst_bytes <= BURST_MAX;
        if fits { Ok(()) } else { Err(Reason::CongestionParameter) }
    }
}

/// The sender's side of DCQCN for one flow.
#[derive(Clone, Debug)]
pub struct ReactionPoint {
    parameters: Dcqcn,
    /// RC and RT.
    rate: u64,
    target: u64,
    /// As the last cut left it, in units of 1 / [`ALPHA_ONE`].
    alpha: u64,
    last_cut: Option<Nanos>,
    /// Increases by time (T) and by bytes (BC) since the last cut.
    timer_stage: u32,
    byte_stage: u32,
    increase_at: Nanos,
    bytes: u32,
    /// What has left too early by the rate, in bits x 10^9; below 0, what may leave at once.
    debt: i64,
    /// The debt is paid up to here.
    paid_until: Nanos,
}

impl ReactionPoint {
    /// A flow that has never been marked.
    ///
    /// # Errors
    /// As [`Dcqcn::check`].
    pub fn new(parameters: Dcqcn) -> Result<Self, Reason> {
        parameters.check()?;
        Ok(Self {
            parameters,
            rate: parameters.line_rate_bits_per_s,
            target: parameters.line_rate_bits_per_s,
            alpha: ALPHA_ONE,
            last_cut: None,
            timer_stage: 0,
            byte_stage: 0,
            increase_at: Nanos::NEVER,
            bytes: 0,
            debt: 0,
            paid_until: Nanos(0),
        })
    }

    /// The parameters.
    #[must_use]
    pub const fn parameters(&self) -> &Dcqcn {
        &self.parameters
    }

    /// The current rate RC in bits per second, as of the last packet, CNP or timer.
    #[must_use]
    pub const fn rate_bits_per_s(&self) -> u64 {
        self.rate
    }

    /// The target rate RT in bits per second.
    #[must_use]
    pub const fn target_bits_per_s(&self) -> u64 {
        self.target
    }

    /// Alpha in units of 1 / [`ALPHA_ONE`] (rule C-12: it shrinks with each K without a cut).
    #[must_use]
    pub fn alpha(&self, now: Nanos) -> u64 {
        let Some(since) = self.last_cut else { return ALPHA_ONE };
        let periods = now.0.saturating_sub(since.0) / self.parameters.alpha_timer_ns;
        let kept = ALPHA_ONE - (ALPHA_ONE >> self.parameters.gain_log2);
        fraction_of(self.alpha, power(kept, periods))
    }

    /// Forgets every mark.
    pub(crate) fn reset(&mut self) {
        let line_rate = self.parameters.line_rate_bits_per_s;
        (self.rate, self.target) = (line_rate, line_rate);
        (self.alpha, self.last_cut, self.debt) = (ALPHA_ONE, None, 0);
    }

    /// A CNP arrived (rule C-11). `false`: too soon after the last cut.
    pub fn notified(&mut self, now: Nanos) -> bool {
        self.advance(now);
        let interval = self.parameters.decrease_interval_ns;
        if self.last_cut.is_some_and(|at| now.0.saturating_sub(at.0) < interval) {
            return false;
        }
        if !self.limited() {
            (self.debt, self.paid_until) = (0, now);
        }
        let alpha = self.alpha(now);
        if self.parameters.clamp_target_rate || self.timer_stage != 0 || self.last_cut.is_none() {
            self.target = self.rate;
        }
        let cut = self.rate - fraction_of(self.rate, alpha) / 2;
        self.rate = cut.max(self.parameters.min_rate_bits_per_s);
        self.alpha =
            alpha - (alpha >> self.parameters.gain_log2) + (ALPHA_ONE >> self.parameters.gain_log2);
        self.last_cut = Some(now);
        (self.timer_stage, self.byte_stage, self.bytes) = (0, 0, 0);
        self.increase_at = now.after(self.parameters.increase_timer_ns);
        true
    }

    /// A packet of `bytes` bytes left.
    pub fn sent(&mut self, now: Nanos, bytes: u32) {
        self.advance(now);
        if !self.limited() {
            return;
        }
        self.debt =
            self.debt.saturating_add_unsigned(u64::from(bytes).saturating_mul(BIT_NS_PER_BYTE));
        self.bytes = self.bytes.saturating_add(bytes);
        while self.bytes >= self.parameters.byte_counter_bytes {
            self.bytes -= self.parameters.byte_counter_bytes;
            self.increase();
            self.byte_stage = self.byte_stage.saturating_add(1);
        }
    }

    /// `None`: a packet may leave now. Otherwise when to ask again, later than `now`: the debt is paid
    /// by then, or the rate is higher.
    pub fn wait_until(&mut self, now: Nanos) -> Option<Nanos> {
        self.advance(now);
        if !self.limited() || self.debt <= 0 {
            return None;
        }
        let paid = self.paid_until.after(self.debt.unsigned_abs().div_ceil(self.rate));
        Some(paid.min(self.increase_at))
    }

    /// Whether the flow is below its line rate, and held back.
    pub(crate) const fn limited(&self) -> bool {
        self.rate < self.parameters.line_rate_bits_per_s
    }

    /// Does what the increase timer would have done up to now (rule C-13), and pays the debt at the
    /// rates that held meanwhile.
    fn advance(&mut self, now: Nanos) {
        while self.limited() && self.increase_at <= now {
            let at = self.increase_at;
            self.pay(at);
            self.increase();
            self.timer_stage += 1;
            self.increase_at = at.after(self.parameters.increase_timer_ns);
            if self.timer_stage >= TIMER_STAGES_MAX {
                self.target = self.parameters.line_rate_bits_per_s;
                self.rate = self.target;
            }
        }
        self.pay(now);
    }

    fn pay(&mut self, until: Nanos) {
        let elapsed = until.0.saturating_sub(self.paid_until.0);
        let paid = self.rate.saturating_mul(elapsed);
        let least = -(i64::from(self.parameters.burst_bytes) * BIT_NS_PER_BYTE.cast_signed());
        self.debt = self.debt.saturating_sub_unsigned(paid).max(least);
        self.paid_until = self.paid_until.max(until);
    }

    /// One increase (rules C-14 to C-16). The stages are looked at before they are counted up, so that
    /// fast recovery has exactly F steps. Chosen: a hyper increase adds R_HAI each time; the paper's
    /// grows with the stage.
    fn increase(&mut self) {
        let steps = self.parameters.fast_recovery_steps;
        let (most, least) =
            (self.timer_stage.max(self.byte_stage), self.timer_stage.min(self.byte_stage));
        let more = if most < steps {
            0
        } else if least > steps {
            self.parameters.hyper_increase_bits_per_s
        } else {
            self.parameters.additive_increase_bits_per_s
        };
        let line_rate = self.parameters.line_rate_bits_per_s;
        self.target = self.target.saturating_add(more).min(line_rate);
        // Rounded up, so that the target is reached.
        self.rate = (self.rate + self.target).div_ceil(2);
    }
}

/// The receiver's side for one queue pair: which CNP is owed, and when the next one may be.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NotificationPoint {
    /// P_Key of the marked packet.
    owed: Option<u16>,
    next_at: Nanos,
}

impl NotificationPoint {
    /// A marked packet arrived (rule C-02).
    pub(crate) fn marked(&mut self, now: Nanos, pkey: u16, interval_ns: u64) {
        if now >= self.next_at {
            self.owed = Some(pkey);
            self.next_at = now.after(interval_ns);
        }
    }

    /// Whether a CNP has to leave.
    #[inline]
    pub(crate) const fn owes(&self) -> bool {
        self.owed.is_some()
    }

    /// Writes the CNP that is owed (rule F-50). It goes by its own class and is not held back by the
    /// queue pair's rate (rule C-03).
    pub(crate) fn poll(qp: &mut Qp, port: &Port, room: &mut Room<'_>) -> Option<Train> {
        let pkey = qp.notification.owed.take()?;
        if !qp.state.accepts_requests() {
            return None;
        }
        let mut flow = qp.flow(port);
        flow.traffic_class = CNP_TRAFFIC_CLASS;
        flow.vlan_tci = port.tag(Some(CNP_PRIORITY));
        flow.pkey = pkey;
        let template = Template::new(&flow)?;
        let row = opcode::row(opcode::CNP);
        let len = template.frame_len(row, 0);
        let frame = room.bytes.get_mut(..len)?;
        frame[template.len()..].fill(0);
        template.finish(frame, row, 0, BthFields { becn: true, ..BthFields::default() });
        qp.counters.count(Counter::CnpSent);
        Some(Train {
            len,
            header: len as u16,
            segment: 0,
            segments: 1,
            qpn: qp.qpn,
            opcode: opcode::CNP,
            psn: BthFields::default().psn,
            syndrome: None,
            retransmission: false,
            flow_control: false,
        })
    }
}

/// Whether the data of a queue pair has to wait for its rate, in order (rule C-20). If so, its
/// deadline is set.
pub(crate) fn must_wait(qp: &mut Qp, now: Nanos) -> bool {
    let Some(reaction) = &mut qp.reaction else { return false };
    qp.paced_until = reaction.wait_until(now).unwrap_or(Nanos::NEVER);
    qp.paced_until != Nanos::NEVER
}

/// A packet of a queue pair that has congestion control left. Acknowledgements and CNPs are no data.
pub(crate) fn left(qp: &mut Qp, now: Nanos, train: &Train) {
    let operation = opcode::row(train.opcode).operation;
    let Some(reaction) = &mut qp.reaction else { return };
    if matches!(operation, Operation::Acknowledge | Operation::Cnp) {
        return;
    }
    if reaction.limited() && !operation.is_response() {
        qp.requester.sent_late(now, qp.attributes.ack_timeout_ns());
    }
    reaction.sent(now, train.len as u32);
}

/// 1.0 of an alpha.
pub const ALPHA_ONE: u64 = 1 << 32;

/// 802.1p priority of CNPs (ConnectX's default).
pub(crate) const CNP_PRIORITY: u8 = 6;
/// Chosen: DSCP 48 (ConnectX's default), Not-ECT, so that no switch marks it.
const CNP_TRAFFIC_CLASS: u8 = 48 << 2;

/// Eight bits, in the unit of a debt.
const BIT_NS_PER_BYTE: u64 = 8_000_000_000;
/// Far above any link, and low enough for the sums.
const LINE_RATE_MAX: u64 = 1 << 43;
/// Below it, working out what a quiet time did would take long.
const TIMER_MIN_NS: u64 = 1000;
const BURST_MAX: u32 = 1 << 24;
/// The longest payload: a packet causes at most two increases.
const BYTE_COUNTER_MIN: u32 = 4096;
/// Chosen: after this many increases by time without a cut the flow has its line rate back, however
/// small the steps are; it bounds what a quiet time can cost.
const TIMER_STAGES_MAX: u32 = 1 << 16;

/// `value` x `fraction` / [`ALPHA_ONE`].
const fn fraction_of(value: u64, fraction: u64) -> u64 {
    ((value as u128 * fraction as u128) >> 32) as u64
}

/// A fraction to the power of `exponent`.
fn power(mut base: u64, mut exponent: u64) -> u64 {
    let mut result = ALPHA_ONE;
    while exponent != 0 && result != 0 {
        if exponent & 1 != 0 {
            result = fraction_of(result, base);
        }
        base = fraction_of(base, base);
        exponent >>= 1;
    }
    result
}
