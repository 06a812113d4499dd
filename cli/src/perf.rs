//! `rnic perf`: bandwidth and latency against another end, `rnic perf` or one of perftest's programs.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use softrnic_device::ernic::Profile;
use softrnic_engine::{PathMtu, Service};
use softrnic_host::endpoint::ErnicEndpoint;
use softrnic_host::perf::{
    self, EndpointRig, Kind, Limits, Line, NativeRig, Plan, Rig, SIZE_MAX, Verb,
};
use softrnic_host::verbs::Context;

use crate::peer;
use crate::station_args::{FaceArg, StationArgs};

/// Receives that may wait where nothing makes a sender wait.
const DATAGRAM_RECEIVES_MAX: u64 = 16_000;

/// Measure bandwidth or latency of one operation between two ends
///
/// Without HOST this end is the server. The other end is `rnic perf` with the same test and flags, or the program of
/// perftest that does the same (`ib_send_bw` for send-bw, and so on), 4.5 or later.
#[derive(clap::Args)]
pub struct Args {
    /// What is measured
    test: Test,
    /// The server's address for the TCP connection over which both ends agree
    host: Option<String>,
    /// TCP port
    #[arg(short, long, default_value_t = 18_515)]
    port: u16,
    /// Bytes of a message [default: 65536 for bandwidth, 2 for latency, 64 over ERNIC]
    #[arg(short, long)]
    size: Option<u32>,
    /// All sizes, 2 bytes to 8 MiB
    #[arg(short, long, conflicts_with = "size")]
    all: bool,
    /// Messages of each queue pair and size [default: 1000; write-bw 5000]
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    iters: Option<u64>,
    /// Measure for so many seconds, at both ends, instead of a number of messages
    #[arg(short = 'D', long, value_name = "SECONDS", conflicts_with = "iters", value_parser = clap::value_parser!(u32).range(1..))]
    duration: Option<u32>,
    /// Path MTU in bytes [default: the largest of the link]
    #[arg(short = 'm', long, value_parser = parse_mtu)]
    path_mtu: Option<PathMtu>,
    /// Queue pairs (bandwidth only)
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    qp: u16,
    /// Requests that are posted before one has ended [default: 128; latency 1]
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(1..=15_000))]
    tx_depth: Option<u32>,
    /// Receives that wait [default: 512; UC and UD: as many as messages]
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    rx_depth: Option<u32>,
    /// Transport service
    #[arg(short, long, value_enum, default_value_t, ignore_case = true)]
    connection: Connection,
    /// One completion for so many requests [default: a quarter of --tx-depth]
    #[arg(short = 'Q', long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    cq_mod: Option<u32>,
    /// READs and atomics in flight
    #[arg(short, long, default_value_t = 16, value_parser = clap::value_parser!(u8).range(1..=128))]
    outs: u8,
    /// ACK timeout code: 4.096 us * 2^code
    #[arg(short = 'u', long, default_value_t = 14, value_parser = clap::value_parser!(u8).range(0..32))]
    qp_timeout: u8,
    /// RoCE over IPv6, where this end is the client and has both addresses
    #[arg(short = '6', long)]
    ipv6: bool,
    /// Compare what arrives with a pattern; the other end is `rnic perf --verify` with the same --seed
    #[arg(long)]
    verify: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    station: StationArgs,
}

/// A test, as perftest names its programs.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Test {
    SendBw,
    SendLat,
    WriteBw,
    WriteLat,
    ReadBw,
    ReadLat,
    AtomicBw,
    AtomicLat,
}

impl Test {
    const fn parts(self) -> (Verb, Kind) {
        match self {
            Self::SendBw => (Verb::Send, Kind::Bandwidth),
            Self::SendLat => (Verb::Send, Kind::Latency),
            Self::WriteBw => (Verb::Write, Kind::Bandwidth),
            Self::WriteLat => (Verb::Write, Kind::Latency),
            Self::ReadBw => (Verb::Read, Kind::Bandwidth),
            Self::ReadLat => (Verb::Read, Kind::Latency),
            Self::AtomicBw => (Verb::Atomic, Kind::Bandwidth),
            Self::AtomicLat => (Verb::Atomic, Kind::Latency),
        }
    }

    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// A transport service, as perftest names it.
#[derive(Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Connection {
    /// Reliable connection
    #[default]
    Rc,
    /// Unreliable connection
    Uc,
    /// Unreliable datagram
    Ud,
}

fn parse_mtu(text: &str) -> Result<PathMtu, String> {
    let mtu = text.parse().ok().and_then(PathMtu::from_bytes);
    mtu.ok_or_else(|| "wanted 256, 512, 1024, 2048 or 4096".to_owned())
}

impl Args {
    fn service(&self) -> Service {
        match self.connection {
            Connection::Rc => Service::Rc,
            Connection::Uc => Service::Uc,
            Connection::Ud => Service::Ud,
        }
    }

    fn sizes(&self, kind: Kind, mtu: PathMtu) -> Vec<u32> {
        let (verb, _) = self.test.parts();
        let largest = if self.connection == Connection::Ud { mtu.bytes() } else { SIZE_MAX };
        let ernic = self.station.face == FaceArg::Ernic;
        match (verb, self.size, kind) {
            (Verb::Atomic, None, _) => vec![8],
            (_, Some(size), _) => vec![size],
            _ if self.all => {
                let first = if ernic { 64u32.trailing_zeros() } else { 1 };
                (first..=largest.trailing_zeros()).map(|log2| 1 << log2).collect()
            }
            (_, None, Kind::Bandwidth) => vec![65_536.min(largest)],
            (_, None, Kind::Latency) => vec![if ernic { 64 } else { 2 }],
        }
    }

    fn plan(&self, largest_mtu: PathMtu, ipv6: bool) -> anyhow::Result<Plan> {
        let (verb, kind) = self.test.parts();
        let mtu = self.path_mtu.unwrap_or(largest_mtu);
        if mtu > largest_mtu {
            bail!(
                "packets of path MTU {} do not fit the link; at most {} do (--mtu is the link's)",
                mtu.bytes(),
                largest_mtu.bytes()
            );
        }
        if verb == Verb::Atomic && self.size.is_some_and(|size| size != 8) {
            bail!("an atomic has 8 bytes");
        }
        if kind == Kind::Latency && self.qp != 1 {
            bail!("latency is measured with one queue pair");
        }
        let usual = if self.test == Test::WriteBw { 5000 } else { 1000 };
        let iterations = self.iters.unwrap_or(usual);
        let depth = self.tx_depth.unwrap_or(if kind == Kind::Bandwidth { 128 } else { 1 });
        let receive_depth = match (self.rx_depth, self.service()) {
            (Some(depth), _) => depth,
            (None, Service::Rc) => 512,
            (None, _) => u32::try_from(iterations.min(DATAGRAM_RECEIVES_MAX)).unwrap_or(512),
        };
        Ok(Plan {
            verb,
            kind,
            sizes: self.sizes(kind, mtu),
            iterations,
            duration: self.duration.map(|seconds| Duration::from_secs(seconds.into())),
            mtu,
            qps: self.qp.into(),
            depth,
            receive_depth,
            moderation: self.cq_mod.unwrap_or((depth / 4).max(1)).min(depth),
            timeout: self.qp_timeout,
            ipv6,
            verify: self.verify,
            seed: self.station.seed,
        })
    }
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut setup = args.station.setup()?;
    let ipv6 = args.ipv6 || setup.port.ipv4.is_none();
    match args.station.face {
        FaceArg::Native => {
            let context = Context::open("rnic", setup)?;
            let any = if ipv6 { [0; 16].into() } else { [0; 4].into() };
            let plan = args.plan(context.max_path_mtu(any), ipv6)?;
            let limits = Limits {
                send_depth: plan.depth,
                recv_depth: plan.receive_depth,
                rd_atomic: args.outs,
                granularity: 1,
                service: args.service(),
            };
            let mut rig = NativeRig::new(context.clone(), plan.qps, plan.region_len(), limits)?;
            let code = play(args, &mut rig, &plan);
            let captured = context.stop_capture();
            let code = code?;
            captured?;
            Ok(code)
        }
        FaceArg::Ernic => {
            if args.connection != Connection::Rc || args.qp != 1 {
                bail!("--face ernic measures one RC queue pair; leave out -c and -q");
            }
            let (verb, _) = args.test.parts();
            if verb == Verb::Atomic {
                bail!("ERNIC has no atomics (PG332)");
            }
            let link = setup.open_link()?;
            // IPv6, UDP, BTH, RETH, ICRC.
            let fits = |mtu: &&PathMtu| mtu.bytes() + 84 <= u32::from(setup.port.mtu);
            let largest = PathMtu::ALL.iter().rev().find(fits).copied().unwrap_or(PathMtu::M256);
            let plan = args.plan(largest, ipv6)?;
            let size = plan.sizes.iter().copied().max().unwrap_or(64);
            let profile = Profile::V4_0;
            let mut endpoint =
                ErnicEndpoint::model(&setup, link, profile, plan.region_len(), size)?;
            let code = play(args, &mut EndpointRig::new(&mut endpoint)?, &plan)?;
            endpoint.stop()?;
            Ok(code)
        }
    }
}

/// Client or server.
fn play(args: &Args, rig: &mut dyn Rig, plan: &Plan) -> anyhow::Result<ExitCode> {
    let name = args.test.name();
    let (stream, client) = match &args.host {
        Some(host) => (peer::dial(host, args.port, &format!("rnic perf {name}"))?, true),
        None => {
            let listener = peer::listen(args.port, args.json)?;
            (listener.accept().context("waiting for a client")?.0, false)
        }
    };
    let peer = stream.peer_addr()?.ip().to_canonical().to_string();
    let bar = ProgressBar::no_length();
    bar.set_style(ProgressStyle::with_template("{msg} {pos}/{len} {wide_bar} {per_sec}")?);
    let mut progress = |size: u32, done: u64, all: Option<u64>| {
        bar.set_message(format!("{size} bytes"));
        if let Some(all) = all {
            bar.set_length(all);
        }
        bar.set_position(done);
    };
    let lines = perf::run(rig, stream, client, plan, &mut progress);
    bar.finish_and_clear();
    let lines = lines?;
    let mut out = std::io::stdout().lock();
    if args.json {
        let report = Report { test: &name, peer: &peer, lines: &lines };
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
    } else {
        print(&mut out, &name, &peer, &lines)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The result as JSON.
#[derive(Serialize)]
struct Report<'a> {
    test: &'a str,
    peer: &'a str,
    lines: &'a [Line],
}

fn print(out: &mut impl Write, name: &str, peer: &str, lines: &[Line]) -> std::io::Result<()> {
    if lines.is_empty() {
        return writeln!(out, "{name} with {peer}: the client has the result");
    }
    let by = if lines[0].by_peer { ", as it measured" } else { "" };
    writeln!(out, "{name} with {peer}{by}")?;
    if lines.iter().any(|line| line.latency.is_some()) {
        writeln!(
            out,
            "{:>9} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "bytes", "messages", "min us", "p50", "mean", "p90", "p99", "p99.9", "max"
        )?;
    } else {
        writeln!(
            out,
            "{:>9} {:>10} {:>12} {:>14} {:>14}",
            "bytes", "messages", "Gbit/s", "messages/s", "compared"
        )?;
    }
    for line in lines {
        write!(out, "{:>9} {:>10}", line.size, line.messages)?;
        if let Some(l) = &line.latency {
            for us in [l.min_us, l.p50_us, l.mean_us, l.p90_us, l.p99_us, l.p999_us, l.max_us] {
                write!(out, " {us:>9.2}")?;
            }
            writeln!(out)?;
        } else {
            let (gbit, rate) = (line.gbit_per_s.unwrap_or(0.0), line.messages_per_s.unwrap_or(0.0));
            writeln!(out, " {gbit:>12.4} {rate:>14.0} {:>14}", line.compared)?;
        }
    }
    Ok(())
}
