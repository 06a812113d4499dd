//! `rnic perf`: bandwidth and latency of one operation against another end, which may be this program or one of
//! perftest's (`ib_send_bw` and its sisters).
//!
//! A test knows a [`Rig`] and no device. Without duration, both ends do so many messages; with one, each ends by
//! its own clock.

mod bandwidth;
mod endpoint;
mod exchange;
mod latency;
mod native;
mod rig;

use std::io;
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

pub use endpoint::EndpointRig;
pub use exchange::{Keys, Measured, Wire};
pub use native::NativeRig;
pub use rig::{Ended, Limits, Request, Rig, Verb};
use serde::Serialize;
use softrnic_engine::{PathMtu, Psn, Qpn, Service};
use thiserror::Error;

use crate::endpoint::{EndpointError, Remote};
use crate::verbs;

/// Longest message of perftest (`-a` goes that far): 8 MiB.
pub const SIZE_MAX: u32 = 8 << 20;
/// Bytes before a datagram.
const GRH_LEN: u32 = 40;
/// How long nothing may happen.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How often waits look around.
const SLICE: Duration = Duration::from_millis(100);

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Messages and bits each second.
    Bandwidth,
    /// Time of one message at a time.
    Latency,
}

/// One test.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The operation.
    pub verb: Verb,
    /// What is measured.
    pub kind: Kind,
    /// Sizes, one after the other. The same at both ends.
    pub sizes: Vec<u32>,
    /// Messages of each queue pair and size.
    pub iterations: u64,
    /// Instead of a number of messages.
    pub duration: Option<Duration>,
    /// Path MTU; the smaller one of both ends counts.
    pub mtu: PathMtu,
    /// Queue pairs.
    pub qps: usize,
    /// Requests that are posted before one has ended.
    pub depth: u32,
    /// Receives that wait.
    pub receive_depth: u32,
    /// One completion for so many requests.
    pub moderation: u32,
    /// ACK timeout code.
    pub timeout: u8,
    /// IPv6 addresses, where this end decides: the client does.
    pub ipv6: bool,
    /// Compare what arrives with what `rnic perf --verify` at the other end sends.
    pub verify: bool,
    /// PSNs and patterns follow from it.
    pub seed: u64,
}

impl Plan {
    /// Bytes between the areas of two queue pairs: the largest message, or as much as perftest walks through with
    /// small ones.
    #[must_use]
    pub fn stride(&self) -> u64 {
        u64::from(self.largest().max(exchange::CYCLE_BUFFER) + 64).next_multiple_of(64)
    }

    /// The largest size.
    fn largest(&self) -> u32 {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Bytes of the region: for each queue pair a place to send from, and one to receive into.
    #[must_use]
    pub fn region_len(&self) -> usize {
        usize::try_from(self.stride()).unwrap_or(usize::MAX).saturating_mul(2 * self.qps)
    }

    /// Offset of what a queue pair sends.
    fn source(&self, qp: usize) -> u64 {
        self.stride() * qp as u64
    }

    /// Offset of what a queue pair receives, and what its peer may write to and read from.
    fn target(&self, qp: usize) -> u64 {
        self.stride() * (self.qps + qp) as u64
    }
}

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Least.
    pub min_us: f64,
    /// Half are below.
    pub p50_us: f64,
    /// Mean.
    pub mean_us: f64,
    /// 90 % are below.
    pub p90_us: f64,
    /// 99 % are below.
    pub p99_us: f64,
    /// 99.9 % are below.
    pub p999_us: f64,
    /// Greatest.
    pub max_us: f64,
}

/// What was measured with one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Line {
    /// Bytes of a message.
    pub size: u32,
    /// Messages.
    pub messages: u64,
    /// 10^9 bits of messages each second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbit_per_s: Option<f64>,
    /// Messages each second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages_per_s: Option<f64>,
    /// Times of single messages; half of a round trip for SEND and WRITE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// Bytes that were compared.
    pub compared: u64,
    /// The other end measured it.
    pub by_peer: bool,
}

impl Line {
    fn of_rate(size: u32, messages: u64, time: Duration) -> Self {
        let seconds = time.as_secs_f64().max(1e-9);
        let rate = messages as f64 / seconds;
        Self {
            size,
            messages,
            gbit_per_s: Some(rate * f64::from(size) * 8.0 / 1e9),
            messages_per_s: Some(rate),
            latency: None,
            compared: 0,
            by_peer: false,
        }
    }

    fn measured(&self, qps: usize) -> Measured {
        let rate = self.messages_per_s.unwrap_or(0.0);
        Measured {
            size: self.size.into(),
            iterations: self.messages / qps.max(1) as u64,
            mib_per_s: rate * f64::from(self.size) / f64::from(1 << 20),
            mega_messages_per_s: rate / 1e6,
        }
    }
}

/// Why a test ended early.
#[derive(Debug, Error)]
pub enum PerfError {
    /// The TCP connection.
    #[error("the connection to {peer}: {source}")]
    Connection {
        /// The other end.
        peer: String,
        /// What the system says.
        source: io::Error,
    },
    /// The other end said something that has no meaning here.
    #[error("{peer} said {said:?}: {why}")]
    Protocol {
        /// The other end.
        peer: String,
        /// What it said.
        said: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A request or receive failed.
    #[error("{0}")]
    Failed(String),
    /// Nothing happened.
    #[error("nothing has come from {peer} for {} s{why}", SILENCE_MAX.as_secs())]
    Silence {
        /// The other end.
        peer: String,
        /// What is known of the cause; begins with a separator, may be empty.
        why: String,
    },
    /// A byte is wrong.
    #[error("{size} bytes from {peer}: byte {at} is {got:#04x} and should be {wanted:#04x}")]
    WrongByte {
        /// The other end.
        peer: String,
        /// Bytes of the message.
        size: u32,
        /// Where.
        at: usize,
        /// What is there.
        got: u8,
        /// What was sent.
        wanted: u8,
    },
    /// The port has no address of the family.
    #[error("this port has no {0} address; give --address")]
    NoAddress(&'static str),
    /// The flags make no test.
    #[error("{0}")]
    Plan(String),
    /// The device.
    #[error(transparent)]
    Verbs(#[from] verbs::Error),
    /// The device.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
}

/// How far a test is: size, messages that have ended, messages in all where that is known.
pub type Progress<'a> = dyn FnMut(u32, u64, Option<u64>) + 'a;

/// A test that is running.
struct Run<'a> {
    rig: &'a mut dyn Rig,
    wire: Wire,
    plan: &'a Plan,
    own: Vec<Keys>,
    peers: Vec<Keys>,
    ended: Vec<Ended>,
    progress: &'a mut Progress<'a>,
    told: Instant,
    compared: u64,
}

/// Runs a test over a connection that was made; `client` is whoever made it.
///
/// # Errors
/// Whatever ends it early.
pub fn run<'a>(
    rig: &'a mut dyn Rig,
    stream: TcpStream,
    client: bool,
    plan: &'a Plan,
    progress: &'a mut Progress<'a>,
) -> Result<Vec<Line>, PerfError> {
    check(rig.limits(), plan)?;
    let mut wire = Wire::new(stream, client)?;
    let mtu = wire.greet(plan.mtu)?;
    if rig.limits().service == Service::Ud
        && let Some(size) = plan.sizes.iter().find(|size| **size > mtu.bytes())
    {
        let mtu = mtu.bytes();
        return Err(PerfError::Plan(format!(
            "a datagram has at most the path MTU of {mtu} bytes, not {size}"
        )));
    }
    if !client {
        // Before the client has the keys: it reads and writes as soon as it does.
        prepare(rig, plan, plan.largest())?;
    }
    let (own, peers) = connect(rig, &mut wire, plan, mtu)?;
    let told = Instant::now();
    let run = Run { rig, wire, plan, own, peers, ended: Vec::new(), progress, told, compared: 0 };
    match plan.kind {
        Kind::Bandwidth => run.bandwidth(),
        Kind::Latency => run.latency(),
    }
}

/// What the device and the plan must agree on.
fn check(limits: Limits, plan: &Plan) -> Result<(), PerfError> {
    let wrong = |text: String| Err(PerfError::Plan(text));
    if plan.qps == 0 || plan.sizes.is_empty() {
        return wrong("at least one queue pair and one size are needed".into());
    }
    if let Some(size) = plan.sizes.iter().find(|size| **size > SIZE_MAX || **size == 0) {
        return wrong(format!("a message has 1 to {SIZE_MAX} bytes, not {size}"));
    }
    if let Some(size) = plan.sizes.iter().find(|size| !size.is_multiple_of(limits.granularity)) {
        return wrong(format!(
            "this device moves multiples of {} bytes, and {size} is none",
            limits.granularity
        ));
    }
    let allowed = match limits.service {
        Service::Ud => plan.verb == Verb::Send,
        Service::Uc => matches!(plan.verb, Verb::Send | Verb::Write),
        _ => true,
    };
    if !allowed {
        return wrong(format!("{:?} has no {:?}", limits.service, plan.verb));
    }
    Ok(())
}

/// Exchanges keys and connects every queue pair.
fn connect(
    rig: &mut dyn Rig,
    wire: &mut Wire,
    plan: &Plan,
    mtu: PathMtu,
) -> Result<(Vec<Keys>, Vec<Keys>), PerfError> {
    let (va, rkey) = rig.region();
    let depth = u32::from(rig.limits().rd_atomic);
    let out_reads = if matches!(plan.verb, Verb::Read | Verb::Atomic) { depth } else { 1 };
    let mut own = Vec::new();
    let mut peers: Vec<Keys> = Vec::new();
    for qp in 0..plan.qps {
        let psn = crate::verify::word(plan.seed, qp as u64) as u32 & 0x00FF_FFFF;
        let keys = |theirs: Option<&Keys>| {
            // Both ends must have the same family; the client chooses.
            let ipv6 = theirs.map_or(plan.ipv6, |theirs| theirs.ip().is_ipv6());
            let gid = match rig.address(ipv6)? {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            let (qpn, vaddr) = (rig.qpn(qp), va + plan.target(qp));
            let keys = Keys { out_reads, qpn, psn, rkey, vaddr, gid };
            own.push(keys);
            Ok::<_, PerfError>(keys)
        };
        let mut theirs = wire.hand_shake(keys)?;
        // perftest's latency tests of RDMA say the first keys twice.
        if qp == 0 && plan.kind == Kind::Latency && plan.verb != Verb::Send {
            theirs = wire.hand_shake(|_| Ok::<_, PerfError>(own[0]))?;
        }
        peers.push(theirs);
    }
    if own[0].ip().is_ipv4() != peers[0].ip().is_ipv4() {
        return Err(PerfError::Plan(format!(
            "the other end has {}, this one {}: choose the same family at both (-6 here, -x there)",
            peers[0].ip(),
            own[0].ip()
        )));
    }
    for (qp, (own, peer)) in own.iter().zip(&peers).enumerate() {
        let rd_atomic = u8::try_from(peer.out_reads.min(depth.max(1))).unwrap_or(u8::MAX);
        let remote = Remote {
            ip: peer.ip(),
            qpn: Qpn::new(peer.qpn),
            send_psn: Psn::new(own.psn),
            receive_psn: Psn::new(peer.psn),
            mtu,
            timeout: plan.timeout,
            retry: 7,
            rnr_retry: 7,
            rd_atomic,
        };
        rig.connect(qp, &remote)?;
    }
    // Connected; then the keys once more, because perftest prints them now.
    wire.synchronize(own[0])?;
    for (qp, keys) in own.iter().enumerate() {
        // For RDMA the order is the other way round, which is the same on the wire but for several queue pairs.
        let keys = if plan.verb == Verb::Send { *keys } else { own[(qp + 1) % plan.qps] };
        wire.synchronize(keys)?;
    }
    Ok((own, peers))
}

/// Where a message of a plan arrives.
fn arrives_at(limits: Limits, plan: &Plan, qp: usize) -> u64 {
    plan.target(qp) + if limits.service == Service::Ud { 64 } else { 0 }
}

/// Puts the pattern where it is sent or read from, and zeros where it will arrive.
fn prepare(rig: &mut dyn Rig, plan: &Plan, size: u32) -> Result<(), PerfError> {
    if !plan.verify {
        return Ok(());
    }
    let pattern = crate::verify::pattern(plan.seed, size as usize);
    let zeros = vec![0; size as usize];
    let read = plan.verb == Verb::Read;
    for qp in 0..plan.qps {
        let (source, target) = (plan.source(qp), arrives_at(rig.limits(), plan, qp));
        let (full, empty) = if read { (target, source) } else { (source, target) };
        rig.write(full, &pattern)?;
        rig.write(empty, &zeros)?;
    }
    Ok(())
}

impl Run<'_> {
    fn is_client(&self) -> bool {
        self.wire.is_client()
    }

    fn synchronize(&mut self) -> Result<(), PerfError> {
        self.wire.synchronize(self.own[0])
    }

    /// Tells how far it is, now and then.
    fn tell(&mut self, size: u32, done: u64, all: Option<u64>) {
        if self.told.elapsed() >= SLICE {
            self.told = Instant::now();
            (self.progress)(size, done, all);
        }
    }

    /// Waits until something ends, but not for ever; `false` where the time was over first.
    fn wait(&mut self, until: Option<Instant>) -> Result<bool, PerfError> {
        self.ended.clear();
        let start = Instant::now();
        loop {
            self.rig.wait(&mut self.ended, SLICE)?;
            if !self.ended.is_empty() {
                return Ok(true);
            }
            let now = Instant::now();
            if until.is_some_and(|until| now >= until) {
                return Ok(false);
            }
            self.check_silence(now - start)?;
        }
    }

    fn check_silence(&self, silence: Duration) -> Result<(), PerfError> {
        if silence < SILENCE_MAX {
            return Ok(());
        }
        let trouble = self.rig.trouble();
        let why = trouble.map_or_else(String::new, |trouble| format!(": {trouble}"));
        Err(PerfError::Silence { peer: self.wire.peer().to_owned(), why })
    }

    fn request(&self, qp: usize, size: u32) -> Request {
        let peer = &self.peers[qp];
        let (remote_va, rkey) = (peer.vaddr, peer.rkey);
        Request { verb: self.plan.verb, offset: self.plan.source(qp), len: size, remote_va, rkey }
    }

    /// Bytes of a receive, and where it goes.
    fn receive(&self, qp: usize, size: u32) -> (u64, u32) {
        let grh = if self.rig.limits().service == Service::Ud { GRH_LEN } else { 0 };
        // So that a datagram's payload is where other messages are.
        (self.plan.target(qp) + u64::from(64 - grh) % 64, size + grh)
    }

    fn prepare(&mut self, size: u32) -> Result<(), PerfError> {
        prepare(self.rig, self.plan, size)
    }

    /// Compares what has arrived.
    fn compare(&mut self, qp: usize, size: u32) -> Result<(), PerfError> {
        if !self.plan.verify || self.plan.verb == Verb::Atomic {
            return Ok(());
        }
        let read = self.plan.verb == Verb::Read;
        let at =
            if read { self.plan.source(qp) } else { arrives_at(self.rig.limits(), self.plan, qp) };
        let mut bytes = vec![0; size as usize];
        self.rig.read(at, &mut bytes)?;
        self.compared += u64::from(size);
        let pattern = crate::verify::pattern(self.plan.seed, size as usize);
        match bytes.iter().zip(&pattern).position(|(got, wanted)| got != wanted) {
            None => Ok(()),
            Some(at) => Err(PerfError::WrongByte {
                peer: self.wire.peer().to_owned(),
                size,
                at,
                got: bytes[at],
                wanted: pattern[at],
            }),
        }
    }
}
