//! One reliable connection of a program: its NIC, its queue pair, its completions, and one error that names peer
//! and queue pairs however it ends. It knows no protocol that programs speak over it.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use softrnic_host::cm::agent::{AgentEvent, Endpoint, Request};
use softrnic_host::cm::message::Req;
use softrnic_host::cm::{CommId, End};
use softrnic_host::verbs::{
    Connections, Context, Cq, Event, Payload, Pd, Qp, QpInit, Qpn, RKey, SendOp, SendRequest,
    State, Status, Wanted, WcOpcode, WorkCompletion,
};

use crate::station_args::{FaceArg, StationArgs};

/// How often a program that waits looks whether it was told to stop.
const LOOK: Duration = Duration::from_millis(100);
/// A peer that says nothing for so long is asked whether it is there.
const SILENCE: Duration = Duration::from_secs(1);
/// How long a program that ends waits for its peer to confirm.
const PARTING: Duration = Duration::from_secs(2);
/// `wr_id` of the question whether the peer is there.
const PROBE: u64 = u64::MAX;

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

/// A NIC with connection management, and the wish to stop.
#[derive(Clone)]
pub(crate) struct Port {
    pub(crate) context: Context,
    pub(crate) connections: Connections,
    /// SIGINT or SIGTERM has come.
    pub(crate) stop: Arc<AtomicBool>,
}

impl Port {
    /// Opens the link and starts the NIC.
    pub(crate) fn open(name: &str, args: &StationArgs) -> anyhow::Result<Self> {
        if args.face != FaceArg::Native {
            bail!("`rnic {name}` drives the native face; `rnic verify` drives the ERNIC face");
        }
        let context = Context::open(name, args.setup()?)?;
        // A start of its own, so that the peer does not take it for an older one.
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seed = since_1970.as_nanos() as u64 ^ u64::from(std::process::id()) << 32;
        let connections = Connections::open(&context, seed)?;
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            // The second one kills, should the first not be heard.
            signal_hook::flag::register_conditional_default(signal, stop.clone())
                .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
                .context("catching signals")?;
        }
        Ok(Self { context, connections, stop })
    }

    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Takes requests for a port, and says where, so that whoever started us knows when to connect.
    pub(crate) fn listen(&self, port: u16, backlog: usize) -> anyhow::Result<()> {
        self.connections.listen(port, backlog)?;
        let config = self.context.port();
        let own = [config.ipv4.map(|(ip, _)| ip.into()), config.ipv6.map(|(ip, _)| ip.into())];
        for ip in own.into_iter().flatten() {
            let ip: IpAddr = ip;
            eprintln!("listening on {ip}, port {port}");
        }
        Ok(())
    }

    /// The next request of a peer; `None` when it is time to stop.
    pub(crate) fn next_request(&self) -> Option<(CommId, IpAddr, Box<Req>)> {
        while !self.stopped() {
            let event = self.connections.event(Wanted::Requests, LOOK);
            if let Some(AgentEvent::Requested { id, peer, req }) = event {
                return Some((id, peer, req));
            }
        }
        None
    }

    /// Ends the capture, so that it is complete.
    pub(crate) fn close(self) -> anyhow::Result<()> {
        self.context.stop_capture()?;
        Ok(())
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

/// A connection, or a queue pair that will have one.
pub(crate) struct Session {
    port: Port,
    pub(crate) pd: Pd,
    pub(crate) qp: Qp,
    cq: Cq,
    id: Option<CommId>,
    peer: IpAddr,
    peer_qpn: Option<Qpn>,
    /// Completions that were polled and not handed out; the next one is the last.
    ready: Vec<WorkCompletion>,
    heard: Instant,
    probing: bool,
}

impl Session {
    /// A queue pair in INIT: post receives, then connect or accept.
    pub(crate) fn new(port: &Port, peer: IpAddr, depth: u32) -> anyhow::Result<Self> {
        let pd = port.context.alloc_pd()?;
        let cq = port.context.create_cq(2 * depth + 4)?;
        let init = QpInit { sq_depth: depth + 2, rq_depth: depth, ..QpInit::new(&cq) };
        let qp = pd.create_qp(&init)?;
        qp.set_state(State::Init)?;
        Ok(Self {
            port: port.clone(),
            pd,
            qp,
            cq,
            id: None,
            peer,
            peer_qpn: None,
            ready: Vec::new(),
            heard: Instant::now(),
            probing: false,
        })
    }

    /// Peer and queue pairs, for people.
    pub(crate) fn name(&self) -> String {
        let ours = self.qp.qpn();
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
            path_mtu: Some(self.port.context.max_path_mtu(self.peer)),
            retry_count: args.retries,
            ack_timeout: args.ack_timeout,
            private_data,
            ..Request::new(self.peer, port)
        };
        let endpoint = Endpoint::new(self.qp.qpn());
        self.id = Some(self.port.connections.connect(&endpoint, &request)?);
        let what = format!("port {port}");
        self.established(&what, args)
    }

    /// Accepts a peer's request.
    pub(crate) fn accept(&mut self, id: CommId, args: &SessionArgs) -> anyhow::Result<()> {
        self.id = Some(id);
        let ack_timeout_max = args.ack_timeout;
        let endpoint = Endpoint { ack_timeout_max, ..Endpoint::new(self.qp.qpn()) };
        self.port.connections.accept(id, &endpoint, &[])?;
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
        self.port.connections.event(Wanted::Of(self.id?), timeout)
    }

    /// The next completion. Where the peer is silent for a second while nothing is on its way, a WRITE of no bytes
    /// asks whether it is there: so a peer that has died is found out within the queue pair's timeouts.
    ///
    /// # Errors
    /// The connection has ended, or broke, or this program was told to stop.
    pub(crate) fn wait(&mut self) -> Result<WorkCompletion, Ended> {
        loop {
            while let Some(done) = self.ready.pop() {
                if done.status != Status::Success {
                    return Err(self.ended(&done));
                }
                self.heard = Instant::now();
                if done.wr_id != PROBE {
                    return Ok(done);
                }
                self.probing = false;
            }
            let mut polled = [WorkCompletion::default(); 16];
            let count = self.cq.wait(&mut polled, LOOK);
            self.ready.extend(polled[..count].iter().rev());
            if count == 0 {
                if self.port.stopped() {
                    return Err(Ended::Stopped);
                }
                self.probe();
            }
        }
    }

    fn probe(&mut self) {
        if self.probing || self.heard.elapsed() < SILENCE {
            return;
        }
        let op = SendOp::Write { remote_va: 0, rkey: RKey(0) };
        let payload = Payload::Sges(&[]);
        let probe =
            SendRequest { wr_id: PROBE, op, payload, signaled: true, ..SendRequest::default() };
        // Where the queue is full, its work tells soon enough.
        self.probing = self.qp.post_send(&probe).is_ok();
    }

    /// What a completion in error, and what is known besides, means.
    fn ended(&self, done: &WorkCompletion) -> Ended {
        let name = self.name();
        // A queue pair flushes because its connection has ended, or has failed with an error of its own.
        let grace = if done.status == Status::Flushed { LOOK } else { Duration::ZERO };
        match self.event(grace) {
            Some(AgentEvent::Disconnected { by: by @ (End::Us | End::Peer), .. }) => {
                return Ended::Parted(format!("{name}: {by}"));
            }
            Some(AgentEvent::Disconnected { by, .. }) => {
                return Ended::Broken(format!("{name}: {by}"));
            }
            _ => {}
        }
        let mut what = format!("{name}: {} failed: {}", operation(done), meaning(done.status));
        if let Some(reason) = done.reason {
            what.push_str(&format!(" ({})", reason.row().text));
        }
        while let Some(event) = self.port.context.get_event(Duration::ZERO) {
            if let Event::LinkDown { why, .. } = event {
                what.push_str(&format!("; {why}"));
            }
        }
        Ended::Broken(what)
    }

    /// Ends the connection, and waits a moment for the peer to confirm.
    pub(crate) fn close(self) {
        let Some(id) = self.id else { return };
        if self.port.connections.disconnect(id).is_ok() {
            let start = Instant::now();
            while start.elapsed() < PARTING {
                if let Some(AgentEvent::Disconnected { .. } | AgentEvent::Failed { .. }) =
                    self.event(LOOK)
                {
                    break;
                }
            }
        }
        self.port.connections.forget(id);
    }
}

fn operation(done: &WorkCompletion) -> &'static str {
    match done.opcode {
        _ if done.wr_id == PROBE => "the question whether it is there",
        WcOpcode::Send => "SEND",
        WcOpcode::RdmaWrite => "WRITE",
        WcOpcode::RdmaRead => "READ",
        WcOpcode::CompSwap | WcOpcode::FetchAdd => "an atomic",
        WcOpcode::Recv | WcOpcode::RecvRdmaWithImm => "a receive",
    }
}

fn meaning(status: Status) -> &'static str {
    match status {
        Status::Success => "success",
        Status::LocalLength => "local length error",
        Status::LocalQpOperation => "local queue pair operation error",
        Status::LocalProtection => "local protection error",
        Status::Flushed => "flushed, because the queue pair is in error",
        Status::BadResponse => "a response that does not fit",
        Status::RemoteInvalidRequest => "the peer calls it an invalid request",
        Status::RemoteAccess => "the peer does not allow the access",
        Status::RemoteOperation => "the peer could not carry it out",
        Status::RetryExceeded => "the peer does not answer, and all retries are used up",
        Status::RnrRetryExceeded => "the peer has no receive posted, and all retries are used up",
    }
}
