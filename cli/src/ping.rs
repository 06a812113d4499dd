//! `rnic ping`: round trips over a reliable connection, and what they took.
//!
//! SENDs that `rnic ping --serve` sends back, or READs of no bytes, which any RDMA CM server answers.

use std::io::{self, IsTerminal, Write};
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::ValueEnum;
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use softrnic_host::cm::CommId;
use softrnic_host::cm::message::Req;
use softrnic_host::endpoint::{Op as Verb, Transfer};
use softrnic_host::serve::echo::{MESSAGE_MAX, OTHERS_MESSAGE_MAX, hello, message_len};

use crate::session::{Ended, Finished, Port, Session, SessionArgs};
use crate::station_args::StationArgs;

/// Receives that a server has posted for each connection. An ERNIC has room for one less than 16.
const DEPTH: u64 = 15;
/// Messages begin at multiples of this in a region.
const ALIGNMENT: u64 = 64;
/// Shorter intervals show as one line of progress, not as a line for each round trip.
const LINES_FROM: Duration = Duration::from_millis(100);
/// Longest round trip that is told from longer ones, in ns.
const TIME_MAX_NS: u64 = 60_000_000_000;

/// What goes there and back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Op {
    /// A SEND, which `rnic ping --serve` sends back
    #[default]
    Send,
    /// A READ of no bytes, which every server that accepts a connection answers
    Read,
}

/// Measure round trips over a reliable connection, with loss and percentiles
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The server's IP address
    #[arg(required_unless_present = "serve", conflicts_with = "serve")]
    host: Option<IpAddr>,
    /// Be the server: send back whatever comes
    #[arg(long)]
    serve: bool,
    /// Port in RDMA CM's TCP space
    #[arg(short, long, default_value_t = 7471)]
    port: u16,
    /// What goes there and back
    #[arg(long, value_enum, default_value_t)]
    op: Op,
    /// Round trips; 0 for ever
    #[arg(short, long, default_value_t = 10)]
    count: u64,
    /// Time from one to the next, in seconds; 0: one right after the other
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    interval: Duration,
    /// Bytes of a SEND
    #[arg(short, long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=i64::from(MESSAGE_MAX)))]
    size: u32,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    session: SessionArgs,
    #[command(flatten)]
    station: StationArgs,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let wanted = || "wanted seconds, as 1 or 0.001; 3600 at most".to_owned();
    let seconds: f64 = text.parse().map_err(|_| wanted())?;
    if !(0.0..=3600.0).contains(&seconds) {
        return Err(wanted());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Runs the command; the exit status is 1 where a round trip did not end.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let port = Port::open("ping", &args.station)?;
    let result = match args.host {
        Some(host) => ping(&port, host, args),
        None => serve(&port, args).map(|()| ExitCode::SUCCESS),
    };
    port.close()?;
    result
}

/// Times of round trips, in ns.
#[derive(Serialize)]
struct Times {
    min_ns: u64,
    mean_ns: u64,
    p50_ns: u64,
    p90_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
    max_ns: u64,
}

#[derive(Serialize)]
struct Summary {
    peer: IpAddr,
    op: Op,
    size: u32,
    sent: u64,
    answered: u64,
    lost: u64,
    /// Packets that were sent again, ours only.
    retransmitted_packets: u64,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    round_trip: Option<Times>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

fn ping(port: &Port, host: IpAddr, args: &Args) -> anyhow::Result<ExitCode> {
    let size = if args.op == Op::Read { 0 } else { args.size };
    if args.op == Op::Read && port.connector.ability().granularity > 1 {
        let face = port.connector.ability().face;
        bail!("--op read: {face} has no READs of no bytes; --op send");
    }
    let len = args.size as usize;
    // What is sent, and what comes back.
    let back = u64::from(args.size).next_multiple_of(ALIGNMENT);
    let mut session = Session::new(port, host, back as usize + len, args.size)?;
    session.post_receive(back, args.size)?;
    session.connect(args.port, &args.session, hello(args.size))?;
    let lines = !args.json && args.interval >= LINES_FROM;
    if !args.json {
        let what = if args.op == Op::Read { "READs of no bytes" } else { "SENDs" };
        println!("PING {}: {what}, {size} bytes", session.name());
    }
    let progress = progress(args, lines);
    let mut times = Histogram::<u64>::new_with_bounds(1, TIME_MAX_NS, 3)?;
    let (mut sent, mut answered) = (0u64, 0u64);
    let start = Instant::now();
    let mut text = vec![0; len];
    let outcome: anyhow::Result<()> = (|| {
        while args.count == 0 || sent < args.count {
            let began = Instant::now();
            sent += 1;
            match args.op {
                Op::Read => {
                    let op = Verb::Read;
                    session.post(&Transfer { op, offset: 0, len: 0, remote_va: 0, rkey: 0 })?;
                    while session.wait()? != Finished::Request(op) {}
                }
                Op::Send => {
                    fill(&mut text, sent);
                    session.write(0, &text)?;
                    session.post(&send(0, args.size))?;
                    let echo = loop {
                        if let Finished::Receive(echo) = session.wait()? {
                            break echo;
                        }
                    };
                    let mut seen = vec![0; len.min(echo.unwrap_or(args.size) as usize)];
                    session.read(back, &mut seen)?;
                    if seen != text {
                        bail!("{}: what came back is not what was sent", session.name());
                    }
                    session.post_receive(back, args.size)?;
                }
            }
            let took = began.elapsed();
            times.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
            answered += 1;
            progress.inc(1);
            if lines {
                println!(
                    "{size} bytes from {host}: seq={sent} time={}",
                    micros(took.as_nanos() as u64)
                );
            }
            let next = args.interval.saturating_sub(began.elapsed());
            if (args.count == 0 || sent < args.count) && !rest(port, next) {
                break;
            }
        }
        Ok(())
    })();
    progress.finish_and_clear();
    let seconds = start.elapsed().as_secs_f64();
    session.close();
    let stopped =
        matches!(&outcome, Err(error) if matches!(error.downcast_ref(), Some(Ended::Stopped)));
    if stopped && sent > answered {
        // Nobody waited long enough to call it lost.
        sent -= 1;
    }
    let summary = Summary {
        peer: host,
        op: args.op,
        size,
        sent,
        answered,
        lost: sent - answered,
        retransmitted_packets: port.connector.retransmitted_packets()?,
        seconds,
        round_trip: (answered > 0).then(|| Times::of(&times)),
        error: outcome.err().filter(|_| !stopped).map(|error| format!("{error:#}")),
    };
    report(args, &summary)?;
    let good = summary.lost == 0 && summary.error.is_none();
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Times {
    fn of(times: &Histogram<u64>) -> Self {
        Self {
            min_ns: times.min(),
            mean_ns: times.mean() as u64,
            p50_ns: times.value_at_quantile(0.5),
            p90_ns: times.value_at_quantile(0.9),
            p99_ns: times.value_at_quantile(0.99),
            p999_ns: times.value_at_quantile(0.999),
            max_ns: times.max(),
        }
    }
}

/// A SEND of so many bytes of the region.
const fn send(offset: u64, len: u32) -> Transfer {
    Transfer { op: Verb::Send, offset, len, remote_va: 0, rkey: 0 }
}

/// Waits for the next round; false when it is time to stop.
fn rest(port: &Port, time: Duration) -> bool {
    let start = Instant::now();
    while !port.stopped() {
        let left = time.saturating_sub(start.elapsed());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(Duration::from_millis(100)));
    }
    false
}

fn progress(args: &Args, lines: bool) -> ProgressBar {
    if args.count == 0 || lines || args.json || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} round trips, {per_sec}");
    ProgressBar::new(args.count).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Bytes that differ from one round trip to the next.
fn fill(bytes: &mut [u8], number: u64) {
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = (at as u64).wrapping_mul(0x9D).wrapping_add(number.wrapping_mul(0x3B)) as u8;
    }
}

fn micros(ns: u64) -> String {
    format!("{}.{:03} us", ns / 1000, ns % 1000)
}

fn report(args: &Args, summary: &Summary) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut out, summary)?;
        writeln!(out)?;
        return Ok(());
    }
    let Summary { peer, sent, answered, lost, retransmitted_packets, seconds, .. } = summary;
    let percent = if *sent == 0 { 0.0 } else { 100.0 * *lost as f64 / *sent as f64 };
    writeln!(
        out,
        "{peer}: {sent} sent, {answered} answered, {percent:.1} % lost, {retransmitted_packets} packets sent again, \
         {seconds:.3} s"
    )?;
    if let Some(times) = &summary.round_trip {
        let all = [
            ("min", times.min_ns),
            ("p50", times.p50_ns),
            ("p90", times.p90_ns),
            ("p99", times.p99_ns),
            ("p99.9", times.p999_ns),
            ("max", times.max_ns),
        ];
        let all: Vec<_> = all.iter().map(|(name, ns)| format!("{name} {}", micros(*ns))).collect();
        writeln!(out, "round trip: {}", all.join(", "))?;
    }
    out.flush()?;
    if let Some(error) = &summary.error {
        eprintln!("error: {error}");
    }
    Ok(())
}

/// Serves every client that comes, until it is told to stop.
fn serve(port: &Port, args: &Args) -> anyhow::Result<()> {
    port.listen(args.port, 64)?;
    std::thread::scope(|scope| {
        while let Some((id, peer, req)) = port.next_request() {
            scope.spawn(move || {
                let served = serve_one(port, id, peer, &req, args);
                if let Err(error) = served {
                    eprintln!("error: {error:#}");
                }
            });
        }
    });
    Ok(())
}

/// Sends every message back.
fn serve_one(port: &Port, id: CommId, peer: IpAddr, req: &Req, args: &Args) -> anyhow::Result<()> {
    let size = match message_len(req) {
        Some(size) => size,
        None if port.connector.ability().lengths => OTHERS_MESSAGE_MAX,
        None => {
            let face = port.connector.ability().face;
            port.connector.reject(id)?;
            bail!(
                "{peer}: rejected, because it is no `rnic ping`, and {face} does not tell how long messages are"
            );
        }
    };
    let slot_len = u64::from(size).next_multiple_of(ALIGNMENT);
    let mut session = Session::new(port, peer, (DEPTH * slot_len) as usize, size)?;
    for slot in 0..DEPTH {
        session.post_receive(slot * slot_len, size)?;
    }
    session.accept(id, &args.session)?;
    // Slots are filled, sent and free again in the same order.
    let (mut echoed, mut freed) = (0u64, 0u64);
    let outcome: anyhow::Result<()> = (|| {
        loop {
            match session.wait()? {
                Finished::Receive(len) => {
                    session.post(&send(echoed % DEPTH * slot_len, len.unwrap_or(size)))?;
                    echoed += 1;
                }
                // What has left may be overwritten.
                Finished::Request(_) => {
                    session.post_receive(freed % DEPTH * slot_len, size)?;
                    freed += 1;
                }
            }
        }
    })();
    let name = session.name();
    session.close();
    match outcome {
        Err(error) if matches!(error.downcast_ref(), Some(Ended::Parted(_) | Ended::Stopped)) => {
            if !args.json {
                println!("{name}: {echoed} messages sent back");
            }
            Ok(())
        }
        other => other.context(format!("after {echoed} messages")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_seconds() {
        assert_eq!(parse_seconds("0.001"), Ok(Duration::from_millis(1)));
        for wrong in ["-1", "NaN", "3601", "x"] {
            assert!(parse_seconds(wrong).is_err(), "{wrong}");
        }
    }
}
