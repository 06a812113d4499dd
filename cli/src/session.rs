//! One reliable connection of a program: its NIC, its queue pair, its completions, and one error that names peer
//! and queue pairs however it ends. It knows no protocol that programs speak over it.

use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use softrnic_device::ernic::Profile;
use softrnic_engine::Qpn;
use softrnic_host::cm::agent::{AgentEvent, Request};
use softrnic_host::cm::message::Req;
use softrnic_host::cm::{CommId, End, Wanted};
use softrnic_host::endpoint::{
    Connector, Done, Endpoint, ErnicConnector, Local, NativeConnector, Op, Transfer,
};
use softrnic_host::verbs;

use crate::station_args::{FaceArg, StationArgs};

/// How often a program that waits looks whether it was told to stop, or its connection has ended.
const LOOK: Duration = Duration::from_millis(100);
/// A peer that says nothing for so long is asked whether it is there.
const SILENCE: Duration = Duration::from_secs(1);
/// How long a program that ends waits for its peer to confirm.
const PARTING: Duration = Duration::from_secs(2);

/// What a connection is asked for; the same for every program.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Connection")]
pub(crate) struct SessionArgs {
    /// How long to wait for a connection, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    connect_timeout: u64,
    /// Local ACK timeout: 4.096 us x 2^CODE. A client's is its server's, too; a server takes at most this
    #[arg(long, value_name = "CODE", default_value_t = 16, value_parser = clap::value_parser!(u8).range(1..=31))]
    ack_timeout: u8,
    /// Retries of both queue pairs, before a silent peer counts as gone
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u8).range(0..=7))]
    retries: u8,
}

/// Where numbers and PSNs begin: a start of its own, so that a peer does not take it for an older one.
pub(crate) fn start_seed() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since_1970.as_nanos() as u64 ^ u64::from(std::process::id()) << 32
}

/// A NIC with connection management, and the wish to stop.
#[derive(Clone)]
pub(crate) struct Port {
    pub(crate) connector: Arc<dyn Connector>,
    /// SIGINT or SIGTERM has come.
    stop: Arc<AtomicBool>,
}

impl Port {
    /// Opens the link and starts the NIC.
    pub(crate) fn open(name: &str, args: &StationArgs) -> anyhow::Result<Self> {
        let mut setup = args.setup()?;
        let seed = start_seed();
        let connector: Arc<dyn Connector> = match args.face {
            FaceArg::Native => {
                let context = verbs::Context::open(name, setup)?;
                Arc::new(NativeConnector::new(&context, seed)?)
            }
            FaceArg::Ernic => {
                let link = setup.open_link()?;
                Arc::new(ErnicConnector::model(&setup, link, Profile::V4_0, seed)?)
            }
        };
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            // The second one kills, should the first not be heard.
            signal_hook::flag::register_conditional_default(signal, stop.clone())
                .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
                .context("catching signals")?;
        }
        Ok(Self { connector, stop })
    }

    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Takes requests for a port, and says where, so that whoever started us knows when to connect.
    pub(crate) fn listen(&self, port: u16, backlog: usize) -> anyhow::Result<()> {
        self.connector.listen(port, backlog)?;
        for ipv6 in [false, true] {
            if let Ok(ip) = self.connector.port().own_address(ipv6) {
                eprintln!("listening on {ip}, port {port}");
            }
        }
        Ok(())
    }

    /// The next request of a peer; `None` when it is time to stop.
    pub(crate) fn next_request(&self) -> Option<(CommId, IpAddr, Box<Req>)> {
        while !self.stopped() {
            let event = self.connector.event(Wanted::Requests, LOOK);
            if let Some(AgentEvent::Requested { id, peer, req }) = event {
                return Some((id, peer, req));
            }
        }
        None
    }

    /// Ends the capture, so that it is complete.
    pub(crate) fn close(self) -> anyhow::Result<()> {
        Ok(self.connector.stop_capture()?)
    }
}

/// Why there is nothing more to wait for.
#[derive(Debug)]
pub(crate) enum Ended {
    /// We were told to stop.
    Stopped,
    /// The connection was ended in good order.
    Parted(String),
    /// It broke.
    Broken(String),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => f.write_str("stopped"),
            Self::Parted(what) | Self::Broken(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Ended {}

/// What a session was waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Finished {
    /// A request of ours.
    Request(Op),
    /// A message has come, of so many bytes where the device tells.
    Receive(Option<u32>),
}

/// A request that is on its way.
struct Posted {
    op: Op,
    /// It only asks whether the peer is there.
    probe: bool,
}

/// A connection, or a queue pair that will have one, and its region.
pub(crate) struct Session {
    port: Port,
    endpoint: Box<dyn Endpoint + Send>,
    local: Local,
    id: Option<CommId>,
    peer: IpAddr,
    peer_qpn: Option<Qpn>,
    /// Oldest first, as they end.
    posted: VecDeque<Posted>,
    heard: Instant,
}

impl Session {
    /// A queue pair with a region of `len` bytes: post receives of at most `receive_max`, then connect or accept.
    pub(crate) fn new(
        port: &Port,
        peer: IpAddr,
        len: usize,
        receive_max: u32,
    ) -> anyhow::Result<Self> {
        let endpoint = port.connector.endpoint(len, receive_max)?;
        let local = endpoint.local(peer.is_ipv6())?;
        Ok(Self {
            port: port.clone(),
            endpoint,
            local,
            id: None,
            peer,
            peer_qpn: None,
            posted: VecDeque::new(),
            heard: Instant::now(),
        })
    }

    /// Virtual address of an offset of the region, and the region's key.
    pub(crate) const fn remote_address(&self, offset: u64) -> (u64, u32) {
        (self.local.va.wrapping_add(offset), self.local.rkey)
    }

    /// Peer and queue pairs, for people.
    pub(crate) fn name(&self) -> String {
        let ours = self.local.qpn;
        match self.peer_qpn {
            Some(theirs) => format!("{} (its QP {theirs}, ours {ours})", self.peer),
            None => format!("{} (our QP {ours})", self.peer),
        }
    }

    /// Connects to a port of the peer.
    pub(crate) fn connect(
        &mut self,
        port: u16,
        args: &SessionArgs,
        private_data: Vec<u8>,
    ) -> anyhow::Result<()> {
        let request = Request {
            retry_count: args.retries,
            ack_timeout: args.ack_timeout,
            private_data,
            ..Request::new(self.peer, port)
        };
        self.id = Some(self.port.connector.connect(self.local.qpn, &request)?);
        let what = format!("port {port}");
        self.established(&what, args)
    }

    /// Accepts a peer's request.
    pub(crate) fn accept(&mut self, id: CommId, args: &SessionArgs) -> anyhow::Result<()> {
        self.id = Some(id);
        self.port.connector.accept(id, self.local.qpn, args.ack_timeout)?;
        self.established("its request", args)
    }

    fn established(&mut self, what: &str, args: &SessionArgs) -> anyhow::Result<()> {
        let timeout = Duration::from_secs(args.connect_timeout);
        let start = Instant::now();
        while start.elapsed() < timeout && !self.port.stopped() {
            match self.event(LOOK) {
                Some(AgentEvent::Established { peer_qpn, .. }) => {
                    self.peer_qpn = Some(peer_qpn);
                    self.heard = Instant::now();
                    return Ok(());
                }
                Some(AgentEvent::Failed { why, .. }) => bail!("{}, {what}: {why}", self.name()),
                Some(AgentEvent::Disconnected { by, .. }) => bail!("{}, {what}: {by}", self.name()),
                _ => {}
            }
        }
        if self.port.stopped() {
            return Err(Ended::Stopped.into());
        }
        bail!("{}, {what}: no connection within {} s", self.name(), timeout.as_secs())
    }

    fn event(&self, timeout: Duration) -> Option<AgentEvent> {
        self.port.connector.event(Wanted::Of(self.id?), timeout)
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Ended> {
        self.endpoint.write(offset, bytes).map_err(|error| self.broken(error))
    }

    pub(crate) fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<(), Ended> {
        self.endpoint.read(offset, out).map_err(|error| self.broken(error))
    }

    pub(crate) fn post_receive(&mut self, offset: u64, len: u32) -> Result<(), Ended> {
        self.endpoint.post_receive(offset, len).map_err(|error| self.broken(error))
    }

    /// Posts a request.
    ///
    /// # Errors
    /// The connection has ended, or the device does not take it.
    pub(crate) fn post(&mut self, transfer: &Transfer) -> Result<(), Ended> {
        match self.endpoint.post(transfer) {
            Ok(()) => {
                self.posted.push_back(Posted { op: transfer.op, probe: false });
                Ok(())
            }
            Err(error) => Err(self.parted(LOOK).unwrap_or_else(|| self.broken(error))),
        }
    }

    fn broken(&self, why: impl fmt::Display) -> Ended {
        Ended::Broken(format!("{}: {why}", self.name()))
    }

    /// Waits for the next request to end, or the next message. Where the peer is silent for a second while nothing is
    /// on its way, a WRITE of no bytes asks whether it is there: so a peer that has died is found out within the
    /// queue pair's timeouts.
    ///
    /// # Errors
    /// The connection has ended, or broke, or this program was told to stop.
    pub(crate) fn wait(&mut self) -> Result<Finished, Ended> {
        loop {
            // Where there is always something to do, nobody waits.
            if self.port.stopped() {
                return Err(Ended::Stopped);
            }
            match self.endpoint.wait(LOOK) {
                Ok(Some(Done::Failed { status, what })) => return Err(self.failed(status, &what)),
                Ok(Some(Done::Receive { len, .. })) => {
                    self.heard = Instant::now();
                    return Ok(Finished::Receive(len));
                }
                Ok(Some(Done::Request)) => {
                    self.heard = Instant::now();
                    match self.posted.pop_front() {
                        Some(Posted { op, probe: false }) => return Ok(Finished::Request(op)),
                        Some(Posted { probe: true, .. }) => {}
                        None => return Err(self.broken("an end of a request that was not posted")),
                    }
                }
                Ok(None) => {
                    if let Some(ended) = self.parted(Duration::ZERO) {
                        return Err(ended);
                    }
                    self.probe();
                }
                Err(error) => {
                    return Err(self.parted(Duration::ZERO).unwrap_or_else(|| self.broken(error)));
                }
            }
        }
    }

    fn probe(&mut self) {
        if !self.posted.is_empty() || self.heard.elapsed() < SILENCE {
            return;
        }
        let probe = Transfer { op: Op::Write, offset: 0, len: 0, remote_va: 0, rkey: 0 };
        // Where the device does not take it, the connection has ended, and an event says so.
        if self.endpoint.post(&probe).is_ok() {
            self.posted.push_back(Posted { op: Op::Write, probe: true });
        }
    }

    /// How the connection has ended, if it has, or does so while we wait a moment.
    fn parted(&self, grace: Duration) -> Option<Ended> {
        match self.event(grace)? {
            AgentEvent::Disconnected { by: by @ (End::Us | End::Peer), .. } => {
                Some(Ended::Parted(format!("{}: {by}", self.name())))
            }
            AgentEvent::Disconnected { by, .. } => Some(self.broken(by)),
            _ => None,
        }
    }

    /// What a failed request or receive, and what is known besides, means.
    fn failed(&self, status: &str, what: &str) -> Ended {
        // A queue pair flushes because its connection has ended, or has failed with an error of its own.
        let grace = if status == FLUSHED { LOOK } else { Duration::ZERO };
        self.parted(grace).unwrap_or_else(|| {
            let operation = match self.posted.front() {
                Some(Posted { probe: true, .. }) => "the question whether it is there",
                Some(Posted { op, .. }) => name_of(*op),
                None => "a receive",
            };
            self.broken(format!("{operation} failed: {} ({what})", meaning(status)))
        })
    }

    /// Ends the connection, and waits a moment for the peer to confirm.
    pub(crate) fn close(self) {
        let Some(id) = self.id else { return };
        if self.port.connector.disconnect(id).is_ok() {
            let start = Instant::now();
            while start.elapsed() < PARTING {
                if let Some(AgentEvent::Disconnected { .. } | AgentEvent::Failed { .. }) =
                    self.event(LOOK)
                {
                    break;
                }
            }
        }
        self.port.connector.forget(id);
    }
}

const FLUSHED: &str = "flushed";

const fn name_of(op: Op) -> &'static str {
    match op {
        Op::Send => "SEND",
        Op::Write | Op::WriteImm(_) => "WRITE",
        Op::Read => "READ",
        Op::FetchAdd(_) | Op::CompareSwap { .. } => "an atomic",
    }
}

/// What the status of an endpoint's [`Done::Failed`] means.
fn meaning(status: &str) -> &str {
    match status {
        "local-length-error" => "local length error",
        "local-qp-operation-error" => "local queue pair operation error",
        "local-protection-error" => "local protection error",
        FLUSHED => "flushed, because the queue pair is in error",
        "bad-response" => "a response that does not fit",
        "remote-invalid-request" => "the peer calls it an invalid request",
        "remote-access-error" => "the peer does not allow the access",
        "remote-operation-error" => "the peer could not carry it out",
        "retry-exceeded" => "the peer does not answer, and all retries are used up",
        "rnr-retry-exceeded" => "the peer has no receive posted, and all retries are used up",
        _ => "the queue pair is in error",
    }
}
