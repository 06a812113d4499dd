//! `rnic verify`: two ends talk over TCP in JSON lines and move data over RDMA, and each byte is compared at the end
//! that received it, with what stands around it. The other end may be this program or the script for Linux guests,
//! `e2e/guest/verify.py`, whose head describes the protocol.
//!
//! It knows endpoints and no device.

mod script;

use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv6Addr, TcpStream};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use softrnic_engine::{PathMtu, Psn, Qpn};
use thiserror::Error;

use crate::endpoint::{Ability, Done, Endpoint, EndpointError, Local, Op, Remote, Transfer};
pub use script::{Played, Received, Results, Script};

/// Version of the protocol.
const VERSION: u32 = 1;
/// Bytes before and after the data that must not change.
pub const GUARD: usize = 64;
/// Words after which the pattern begins again, as in `e2e/guest/verify.py`. Their bytes are no multiple of any path MTU.
const PATTERN_WORDS: u64 = 509;
/// How long a request or a receive may take.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the other end may be silent.
pub const PEER_TIMEOUT: Duration = Duration::from_secs(120);
/// Longest line of the other end.
const LINE_MAX: u64 = 1 << 16;

/// A word of the pattern: splitmix64 started at the seed.
#[must_use]
pub const fn word(seed: u64, index: u64) -> u64 {
    let z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The first bytes of the pattern of a seed.
#[must_use]
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let period: Vec<u8> =
        (0..PATTERN_WORDS).flat_map(|index| word(seed, index).to_le_bytes()).take(len).collect();
    period.iter().copied().cycle().take(len).collect()
}

/// What can be tested.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// SEND.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE WITH IMMEDIATE.
    WriteImm,
    /// RDMA READ.
    Read,
    /// Fetch and add.
    FetchAdd,
    /// Compare and swap.
    CmpSwap,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Self; 6] =
        [Self::Send, Self::Write, Self::WriteImm, Self::Read, Self::FetchAdd, Self::CmpSwap];

    /// Its name in flags and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::WriteImm => "write_imm",
            Self::Read => "read",
            Self::FetchAdd => "fetch_add",
            Self::CmpSwap => "cmp_swap",
        }
    }

    const fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CmpSwap)
    }

    /// A device that has these abilities can do it.
    #[must_use]
    pub const fn is_possible(self, ability: &Ability) -> bool {
        match self {
            Self::FetchAdd | Self::CmpSwap => ability.atomics,
            Self::WriteImm => ability.immediate,
            Self::Send | Self::Write | Self::Read => true,
        }
    }

    /// The requester receives.
    const fn comes_back(self) -> bool {
        matches!(self, Self::Read | Self::FetchAdd | Self::CmpSwap)
    }

    /// The responder needs a receive.
    const fn takes_receive(self) -> bool {
        matches!(self, Self::Send | Self::WriteImm)
    }
}

/// What the client wants to be tested.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// All bytes follow from it.
    pub seed: u64,
    /// Path MTU.
    pub mtu: PathMtu,
    /// How often all is done.
    pub rounds: u32,
    /// Sizes in bytes; atomics have 8.
    pub sizes: Vec<u32>,
    /// What is done.
    pub operations: Vec<Operation>,
    /// Over IPv6.
    pub ipv6: bool,
    /// ACK timeout code.
    pub timeout: u8,
    /// Retries after timeouts.
    pub retry: u8,
    /// Requests that both ends post at the same time, instead of the rounds.
    pub script: Option<Script>,
}

impl Plan {
    /// Bytes of the region that the plan needs at each end.
    #[must_use]
    pub fn region_len(&self) -> usize {
        region_len(&self.sizes, self.script.as_ref())
    }
}

/// Bytes of a region for a script, or for these sizes, with its guards.
fn region_len(sizes: &[u32], script: Option<&Script>) -> usize {
    if let Some(script) = script {
        return script.region_len();
    }
    let largest = sizes.iter().copied().max().unwrap_or(0).max(8) as usize;
    largest.next_multiple_of(8) + 2 * GUARD
}

/// How it went, with both ends' sums.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Summary {
    /// Transfers that succeeded.
    pub transfers: u64,
    /// Bytes compared at both ends.
    pub bytes: u64,
    /// Bytes that were wrong at both ends.
    pub wrong: u64,
    /// What came of a script, at its client. Whoever played it elsewhere compares.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub script: Option<Results>,
}

/// Why a verification ended early.
#[derive(Debug, Error)]
pub enum VerifyError {
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
        why: String,
    },
    /// The other end gave up.
    #[error("{peer} gave up: {why}")]
    GaveUp {
        /// The other end.
        peer: String,
        /// Its words.
        why: String,
    },
    /// A request or receive failed, or nothing happened in time.
    #[error("transfer {transfer} ({operation}, {size} bytes) with {peer}: {why}")]
    Transfer {
        /// Its number.
        transfer: u64,
        /// What was done.
        operation: &'static str,
        /// Bytes.
        size: u32,
        /// The other end.
        peer: String,
        /// What was seen.
        why: String,
    },
    /// The same, in a script.
    #[error("the script with {peer}: {why}")]
    Script {
        /// The other end.
        peer: String,
        /// What was seen.
        why: String,
    },
    /// The device.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
}

/// An end's part in the test.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Role {
    Client,
    Server,
}

impl Role {
    const fn side(self) -> u64 {
        match self {
            Self::Client => 0,
            Self::Server => 1,
        }
    }
}

/// A transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Step {
    transfer: u64,
    op: Operation,
    size: u32,
    requester: Role,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    swap: Option<bool>,
}

/// Who an end is, and, from the client, what it wants.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Hello {
    version: u32,
    seed: u64,
    mtu: u32,
    rounds: u32,
    sizes: Vec<u32>,
    ops: Vec<String>,
    qpn: u32,
    psn: u32,
    gid: String,
    va: u64,
    rkey: u32,
    length: u64,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    timeout: u8,
    retry: u8,
    rnr_retry: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    script: Option<Script>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Message {
    Hello(Hello),
    Error {
        why: String,
    },
    Ready,
    Step(Step),
    Prepared {
        transfer: u64,
    },
    Go {
        transfer: u64,
    },
    Done {
        transfer: u64,
        status: String,
    },
    Checked {
        transfer: u64,
        bytes: u64,
        wrong: u64,
        first: i64,
    },
    Played(Played),
    End {
        #[serde(default)]
        transfers: u64,
        #[serde(default)]
        bytes: u64,
        #[serde(default)]
        wrong: u64,
    },
}

/// Tests as the client: says what is to be done.
///
/// # Errors
/// Whatever ends it early. Wrong bytes are no error; the summary has them.
pub fn ask(
    endpoint: &mut dyn Endpoint,
    stream: TcpStream,
    plan: &Plan,
) -> Result<Summary, VerifyError> {
    let mut wire = Wire::new(stream)?;
    let own = endpoint.local(plan.ipv6)?;
    let ability = endpoint.ability();
    if let Some(why) = plan.script.as_ref().and_then(|script| script.beyond(&ability)) {
        return Err(EndpointError::new(format!("a script that cannot be played: {why}")).into());
    }
    let psn = Psn::new(word(plan.seed, u64::MAX) as u32);
    wire.say(&Message::Hello(Hello {
        seed: plan.seed,
        mtu: plan.mtu.bytes(),
        rounds: plan.rounds,
        sizes: plan.sizes.clone(),
        ops: plan.operations.iter().map(|op| op.name().to_owned()).collect(),
        timeout: plan.timeout,
        retry: plan.retry,
        script: plan.script.clone(),
        ..hello(&own, psn, plan.region_len(), ability.rd_atomic_max)
    }))?;
    let theirs = match wire.hear()? {
        Message::Hello(hello) => hello,
        other => return Err(wire.unexpected(&other, "a hello was awaited")),
    };
    let setting = Setting {
        mtu: plan.mtu,
        timeout: plan.timeout,
        retry: plan.retry,
        rd_atomic: ability.rd_atomic_max,
    };
    connect(&wire, endpoint, &theirs, psn, setting)?;
    if let Some(script) = &plan.script {
        script::prepare(endpoint, Role::Client, script, plan.seed)?;
    }
    wire.say(&Message::Ready)?;
    wire.expect(&Message::Ready)?;
    if let Some(script) = &plan.script {
        let results = script::play(endpoint, &mut wire, Role::Client, script, &theirs)?;
        wire.say(&Message::End { transfers: 0, bytes: 0, wrong: 0 })?;
        let transfers = script.requests() as u64;
        return Ok(Summary { transfers, script: results, ..Summary::default() });
    }
    let mut end = End::new(endpoint, wire, Role::Client, &theirs, plan.seed, plan.region_len());
    let mut transfer = 0;
    for round in 0..plan.rounds {
        for &op in &plan.operations {
            let sizes = if op.is_atomic() { &[8][..] } else { &plan.sizes };
            for &size in sizes {
                for requester in [Role::Client, Role::Server] {
                    let swap = (op == Operation::CmpSwap).then_some(round % 2 == 0);
                    let step = Step { transfer, op, size, requester, swap };
                    end.wire.say(&Message::Step(step))?;
                    end.play(&step)?;
                    transfer += 1;
                }
            }
        }
    }
    end.wire.say(&Message::End { transfers: 0, bytes: 0, wrong: 0 })?;
    match end.wire.hear()? {
        Message::End { bytes, wrong, .. } => Ok(Summary {
            transfers: end.sum.transfers,
            bytes: end.sum.bytes + bytes,
            wrong: end.sum.wrong + wrong,
            script: None,
        }),
        other => Err(end.wire.unexpected(&other, "the end was awaited")),
    }
}

/// Serves one client. `region` is how many bytes the endpoint's region has.
///
/// # Errors
/// Whatever ends it early. Wrong bytes are no error; the summary has them.
pub fn serve(
    endpoint: &mut dyn Endpoint,
    stream: TcpStream,
    region: usize,
) -> Result<Summary, VerifyError> {
    let mut wire = Wire::new(stream)?;
    let asked = match wire.hear()? {
        Message::Hello(hello) => hello,
        other => return Err(wire.unexpected(&other, "a hello was awaited")),
    };
    match welcome(&mut wire, endpoint, &asked, region) {
        Ok(()) => {}
        Err(error) => {
            // It may be gone already; the error is told here either way.
            let _ = wire.say(&Message::Error { why: error.to_string() });
            return Err(error);
        }
    }
    if let Some(script) = &asked.script {
        script::play(endpoint, &mut wire, Role::Server, script, &asked)?;
        wire.expect(&Message::End { transfers: 0, bytes: 0, wrong: 0 })?;
        return Ok(Summary { transfers: script.requests() as u64, ..Summary::default() });
    }
    let len = region_len(&asked.sizes, None);
    let mut end = End::new(endpoint, wire, Role::Server, &asked, asked.seed, len);
    loop {
        match end.wire.hear()? {
            Message::Step(step) => end.play(&step)?,
            Message::End { .. } => {
                let Summary { transfers, bytes, wrong, .. } = end.sum;
                end.wire.say(&Message::End { transfers, bytes, wrong })?;
                return Ok(Summary {
                    transfers,
                    bytes: bytes + end.others.0,
                    wrong: wrong + end.others.1,
                    script: None,
                });
            }
            other => return Err(end.wire.unexpected(&other, "a step or the end was awaited")),
        }
    }
}

/// Looks at what the client wants, and connects.
fn welcome(
    wire: &mut Wire,
    endpoint: &mut dyn Endpoint,
    asked: &Hello,
    region: usize,
) -> Result<(), VerifyError> {
    let ability = endpoint.ability();
    let refuse = |why: String| Err(VerifyError::Endpoint(EndpointError::new(why)));
    for name in &asked.ops {
        let Some(op) = Operation::ALL.into_iter().find(|op| op.name() == name) else {
            return refuse(format!("operation {name:?} is not known here"));
        };
        if !op.is_possible(&ability) {
            return refuse(format!("{} cannot do {name}", ability.face));
        }
    }
    if let Some(size) = asked.sizes.iter().find(|size| !size.is_multiple_of(ability.granularity)) {
        return refuse(format!(
            "{} moves multiples of {} bytes, and {size} is none",
            ability.face, ability.granularity
        ));
    }
    if let Some(script) = &asked.script {
        let why = script.check().err().or_else(|| script.beyond(&ability));
        if let Some(why) = why {
            return refuse(format!("a script that cannot be played: {why}"));
        }
    }
    let len = region_len(&asked.sizes, asked.script.as_ref());
    if len > region {
        return refuse(format!(
            "{len} bytes of memory are needed, and there are {region}; start this end with a larger --max-size"
        ));
    }
    let Some(mtu) = mtu_of(asked.mtu) else {
        return refuse(format!("{} bytes are no path MTU", asked.mtu));
    };
    let gid: Ipv6Addr = match asked.gid.parse() {
        Ok(gid) => gid,
        Err(_) => return refuse(format!("{:?} is no GID", asked.gid)),
    };
    let own = endpoint.local(gid.to_ipv4_mapped().is_none())?;
    let psn = Psn::new(word(asked.seed, u64::MAX - 1) as u32);
    let setting = Setting {
        mtu,
        timeout: asked.timeout,
        retry: asked.retry,
        rd_atomic: ability.rd_atomic_max,
    };
    connect(wire, endpoint, asked, psn, setting)?;
    if let Some(script) = &asked.script {
        script::prepare(endpoint, Role::Server, script, asked.seed)?;
    }
    wire.say(&Message::Hello(hello(&own, psn, len, ability.rd_atomic_max)))?;
    wire.expect(&Message::Ready)?;
    wire.say(&Message::Ready)
}

fn hello(own: &Local, psn: Psn, length: usize, rd_atomic: u8) -> Hello {
    let gid = match own.ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    Hello {
        version: VERSION,
        qpn: own.qpn.get(),
        psn: psn.get(),
        gid: gid.to_string(),
        va: own.va + GUARD as u64,
        rkey: own.rkey,
        length: length as u64,
        max_rd_atomic: rd_atomic,
        max_dest_rd_atomic: rd_atomic,
        rnr_retry: 7,
        ..Hello::default()
    }
}

/// What both ends agree on.
#[derive(Clone, Copy)]
struct Setting {
    mtu: PathMtu,
    timeout: u8,
    retry: u8,
    rd_atomic: u8,
}

fn connect(
    wire: &Wire,
    endpoint: &mut dyn Endpoint,
    theirs: &Hello,
    psn: Psn,
    setting: Setting,
) -> Result<(), VerifyError> {
    let wrong = |why: &str| VerifyError::Protocol {
        peer: wire.peer.clone(),
        said: format!("gid {:?}, version {}", theirs.gid, theirs.version),
        why: why.to_owned(),
    };
    if theirs.version != VERSION {
        return Err(wrong("only version 1 is known here"));
    }
    let gid: Ipv6Addr = theirs.gid.parse().map_err(|_| wrong("that is no GID"))?;
    endpoint.connect(&Remote {
        ip: IpAddr::V6(gid).to_canonical(),
        qpn: Qpn::new(theirs.qpn),
        send_psn: psn,
        receive_psn: Psn::new(theirs.psn),
        mtu: setting.mtu,
        timeout: setting.timeout,
        retry: setting.retry.min(7),
        rnr_retry: 7,
        rd_atomic: setting.rd_atomic.min(theirs.max_dest_rd_atomic),
    })?;
    Ok(())
}

fn mtu_of(bytes: u32) -> Option<PathMtu> {
    let all = [PathMtu::M256, PathMtu::M512, PathMtu::M1024, PathMtu::M2048, PathMtu::M4096];
    all.into_iter().find(|mtu| mtu.bytes() == bytes)
}

/// An end while it tests.
struct End<'a> {
    endpoint: &'a mut dyn Endpoint,
    wire: Wire,
    role: Role,
    peer_va: u64,
    peer_rkey: u32,
    peer_qpn: u32,
    seed: u64,
    len: usize,
    sum: Summary,
    /// Bytes that the other end compared, and how many were wrong.
    others: (u64, u64),
}

impl<'a> End<'a> {
    fn new(
        endpoint: &'a mut dyn Endpoint,
        wire: Wire,
        role: Role,
        theirs: &Hello,
        seed: u64,
        len: usize,
    ) -> Self {
        Self {
            endpoint,
            wire,
            role,
            peer_va: theirs.va,
            peer_rkey: theirs.rkey,
            peer_qpn: theirs.qpn,
            seed,
            len,
            sum: Summary::default(),
            others: (0, 0),
        }
    }

    /// One transfer, from the client's announcement to both ends' results.
    fn play(&mut self, step: &Step) -> Result<(), VerifyError> {
        let transfer = step.transfer;
        if step.size as usize + 2 * GUARD > self.len {
            return Err(self.failed(step, "it is larger than what was announced".to_owned()));
        }
        self.prepare(step)?;
        match self.role {
            Role::Client => self.wire.expect(&Message::Prepared { transfer })?,
            Role::Server => self.wire.say(&Message::Prepared { transfer })?,
        }
        if step.requester == Role::Server {
            match self.role {
                Role::Client => self.wire.say(&Message::Go { transfer })?,
                Role::Server => self.wire.expect(&Message::Go { transfer })?,
            }
        }
        if step.requester == self.role {
            self.request(step)?;
        } else {
            self.answer(step)?;
        }
        let (bytes, wrong, first) = self.check(step)?;
        self.sum.transfers += 1;
        self.sum.bytes += bytes;
        self.sum.wrong += wrong;
        let own = Message::Checked { transfer, bytes, wrong, first };
        if self.role == Role::Server {
            self.wire.say(&own)?;
        }
        match self.wire.hear()? {
            Message::Checked { transfer: of, bytes, wrong, .. } if of == transfer => {
                self.others.0 += bytes;
                self.others.1 += wrong;
            }
            other => return Err(self.wire.unexpected(&other, "a result was awaited")),
        }
        if self.role == Role::Client {
            self.wire.say(&own)?;
        }
        Ok(())
    }

    fn failed(&self, step: &Step, why: String) -> VerifyError {
        VerifyError::Transfer {
            transfer: step.transfer,
            operation: step.op.name(),
            size: step.size,
            peer: format!("{}, queue pair {}", self.wire.peer, self.peer_qpn),
            why,
        }
    }

    /// The seed of a step's bytes: 0 and 1 are the sides, 2 what stands in a target before, 3 an operand.
    const fn seed_of(&self, step: &Step, what: u64) -> u64 {
        word(self.seed, step.transfer.wrapping_mul(4).wrapping_add(what))
    }

    /// The bytes that a side makes.
    fn bytes_of(&self, step: &Step, side: Role) -> Vec<u8> {
        pattern(self.seed_of(step, side.side()), step.size as usize)
    }

    /// This end's memory is written to.
    fn receives(&self, step: &Step) -> bool {
        step.op.comes_back() == (step.requester == self.role) || step.op.is_atomic()
    }

    fn prepare(&mut self, step: &Step) -> Result<(), VerifyError> {
        let requester = step.requester == self.role;
        if self.receives(step) {
            let guard = pattern(self.seed_of(step, 2), self.len);
            self.endpoint.write(0, &guard)?;
        }
        // What is read, changed or sent from here.
        if requester != step.op.comes_back() {
            let bytes = self.bytes_of(step, self.role);
            self.endpoint.write(GUARD as u64, &bytes)?;
        }
        if !requester && step.op.takes_receive() {
            let len = if step.op == Operation::Send { step.size } else { 0 };
            self.endpoint.post_receive(GUARD as u64, len)?;
        }
        Ok(())
    }

    /// The value that an atomic finds.
    fn value_before(&self, step: &Step) -> u64 {
        let responder = if step.requester == Role::Client { Role::Server } else { Role::Client };
        word(self.seed_of(step, responder.side()), 0)
    }

    fn request(&mut self, step: &Step) -> Result<(), VerifyError> {
        let operand = self.seed_of(step, 3);
        let op = match step.op {
            Operation::Send => Op::Send,
            Operation::Write => Op::Write,
            Operation::WriteImm => Op::WriteImm(step.transfer as u32),
            Operation::Read => Op::Read,
            Operation::FetchAdd => Op::FetchAdd(operand),
            Operation::CmpSwap => {
                let miss = u64::from(step.swap != Some(true));
                Op::CompareSwap {
                    compare: self.value_before(step).wrapping_add(miss),
                    swap: operand,
                }
            }
        };
        let (remote_va, rkey) = (self.peer_va, self.peer_rkey);
        let posted = self.endpoint.post(&Transfer {
            op,
            offset: GUARD as u64,
            len: step.size,
            remote_va,
            rkey,
        });
        let ended = match posted {
            Ok(()) => self.endpoint.wait(TRANSFER_TIMEOUT),
            Err(error) => Err(error),
        };
        let (status, why) = match ended {
            Ok(Some(Done::Request)) => ("success", None),
            Ok(Some(Done::Failed { status, what })) => (status, Some(what)),
            Ok(Some(Done::Receive { .. })) => {
                ("general-error", Some("a message came in the place of the completion".to_owned()))
            }
            Ok(None) => ("no-completion", Some(format!("no completion in {TRANSFER_TIMEOUT:?}"))),
            Err(error) => ("general-error", Some(error.to_string())),
        };
        let done = Message::Done { transfer: step.transfer, status: status.to_owned() };
        self.wire.say(&done)?;
        why.map_or(Ok(()), |why| Err(self.failed(step, why)))
    }

    fn answer(&mut self, step: &Step) -> Result<(), VerifyError> {
        match self.wire.hear()? {
            Message::Done { transfer, status } if transfer == step.transfer => {
                if status != "success" {
                    return Err(self.failed(step, format!("its request ended with {status}")));
                }
            }
            other => return Err(self.wire.unexpected(&other, "the requester's end was awaited")),
        }
        if !step.op.takes_receive() {
            return Ok(());
        }
        match self.endpoint.wait(TRANSFER_TIMEOUT)? {
            Some(Done::Receive { len, immediate }) => {
                let wanted = (step.op == Operation::WriteImm).then_some(step.transfer as u32);
                let tells = self.endpoint.ability().immediate;
                if len.is_some_and(|len| len != step.size) || tells && immediate != wanted {
                    return Err(self.failed(
                        step,
                        format!("{len:?} bytes with immediate {immediate:?} arrived"),
                    ));
                }
                Ok(())
            }
            Some(Done::Failed { what, .. }) => Err(self.failed(step, what)),
            Some(Done::Request) => {
                Err(self.failed(step, "a completion came in the place of the message".to_owned()))
            }
            None => Err(self.failed(step, format!("no message in {TRANSFER_TIMEOUT:?}"))),
        }
    }

    /// Compares the region with what should be there: bytes compared, bytes wrong, offset of the first.
    fn check(&mut self, step: &Step) -> Result<(u64, u64, i64), VerifyError> {
        if !self.receives(step) {
            return Ok((0, 0, -1));
        }
        let mut wanted = pattern(self.seed_of(step, 2), self.len);
        let requester = step.requester == self.role;
        let data = if step.op.is_atomic() {
            let before = self.value_before(step);
            let operand = self.seed_of(step, 3);
            let after = match step.op {
                Operation::FetchAdd => before.wrapping_add(operand),
                _ if step.swap == Some(true) => operand,
                _ => before,
            };
            (if requester { before } else { after }).to_le_bytes().to_vec()
        } else {
            let other = if self.role == Role::Client { Role::Server } else { Role::Client };
            self.bytes_of(step, other)
        };
        wanted[GUARD..GUARD + data.len()].copy_from_slice(&data);
        let mut found = vec![0; self.len];
        self.endpoint.read(0, &mut found)?;
        let wrong = |(_, (a, b)): &(usize, (&u8, &u8))| a != b;
        let mut differ = wanted.iter().zip(&found).enumerate().filter(wrong).map(|(at, _)| at);
        let first = differ.next();
        let count = first.map_or(0, |_| 1 + differ.count());
        let first = first.map_or(-1, |at| at as i64 - GUARD as i64);
        Ok((self.len as u64, count as u64, first))
    }
}

/// JSON lines over TCP.
struct Wire {
    input: BufReader<TcpStream>,
    output: TcpStream,
    peer: String,
}

impl Wire {
    fn new(stream: TcpStream) -> Result<Self, VerifyError> {
        let peer = stream.peer_addr().map_or_else(|_| "the peer".to_owned(), |ip| ip.to_string());
        let connection = |source| VerifyError::Connection { peer: peer.clone(), source };
        stream.set_nodelay(true).map_err(connection)?;
        stream.set_read_timeout(Some(PEER_TIMEOUT)).map_err(connection)?;
        let output = stream.try_clone().map_err(connection)?;
        Ok(Self { input: BufReader::new(stream), output, peer })
    }

    fn broken(&self, source: io::Error) -> VerifyError {
        VerifyError::Connection { peer: self.peer.clone(), source }
    }

    fn say(&mut self, message: &Message) -> Result<(), VerifyError> {
        let mut line =
            serde_json::to_vec(message).map_err(|error| self.broken(io::Error::other(error)))?;
        line.push(b'\n');
        self.output.write_all(&line).map_err(|source| self.broken(source))
    }

    fn hear(&mut self) -> Result<Message, VerifyError> {
        let mut line = String::new();
        let read = io::Read::take(&mut self.input, LINE_MAX).read_line(&mut line);
        let len = read.map_err(|source| match source.kind() {
            io::ErrorKind::WouldBlock => {
                let why = format!("it was silent for {PEER_TIMEOUT:?}");
                self.broken(io::Error::new(io::ErrorKind::TimedOut, why))
            }
            _ => self.broken(source),
        })?;
        if len == 0 {
            let why = "the other end closed it in the middle of the test";
            return Err(self.broken(io::Error::new(io::ErrorKind::UnexpectedEof, why)));
        }
        match serde_json::from_str(&line) {
            Ok(Message::Error { why }) => Err(VerifyError::GaveUp { peer: self.peer.clone(), why }),
            Ok(message) => Ok(message),
            Err(error) => Err(VerifyError::Protocol {
                peer: self.peer.clone(),
                said: line.trim_end().to_owned(),
                why: error.to_string(),
            }),
        }
    }

    fn expect(&mut self, wanted: &Message) -> Result<(), VerifyError> {
        let heard = self.hear()?;
        if heard == *wanted {
            return Ok(());
        }
        Err(self.unexpected(&heard, &format!("{wanted:?} was awaited")))
    }

    fn unexpected(&self, heard: &Message, why: &str) -> VerifyError {
        VerifyError::Protocol {
            peer: self.peer.clone(),
            said: format!("{heard:?}"),
            why: why.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// The values of splitmix64's reference, started at 0.
    #[test]
    fn the_pattern_is_splitmix64_and_repeats() {
        assert_eq!(word(0, 0), 0xE220_A839_7B1D_CDAF);
        assert_eq!(word(0, 1), 0x6E78_9E6A_A1B9_65F4);
        let bytes = pattern(0, 40_000);
        assert_eq!(bytes[..8], 0xE220_A839_7B1D_CDAF_u64.to_le_bytes());
        assert_eq!(bytes[4072..4080], bytes[..8]);
        assert_eq!(bytes.len(), 40_000);
    }

    #[test]
    fn messages_are_one_json_object_a_line() {
        let step = Step {
            transfer: 3,
            op: Operation::CmpSwap,
            size: 8,
            requester: Role::Server,
            swap: Some(false),
        };
        let text = serde_json::to_string(&Message::Step(step)).unwrap();
        let wanted = r#"{"type":"step","transfer":3,"op":"cmp_swap","size":8,"requester":"server","swap":false}"#;
        assert_eq!(text, wanted);
        assert_eq!(serde_json::from_str::<Message>(wanted).unwrap(), Message::Step(step));
    }
}
