//! `rnic rping`: the RDMA ping-pong of librdmacm's tool of that name, with which it can be mixed.
//!
//! One round: the client SENDs where its ping is (address, key and length, 16 bytes, big endian); the server READs
//! it and SENDs "go ahead"; the client SENDs where the pong shall go; the server WRITEs what it has read and SENDs
//! "go ahead". The ping is text: `rdma-ping-N: ABC...`, ended by a zero byte.

use std::io::{self, IsTerminal, Write};
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, bail};
use clap::ArgGroup;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use softrnic_host::cm::CommId;
use softrnic_host::endpoint::{Op, Transfer};

use crate::session::{Ended, Finished, Port, Session, SessionArgs};
use crate::station_args::StationArgs;

/// Bytes of a message that tells where memory is, and of "go ahead".
const INFO_LEN: u32 = 16;
/// Sizes that the tool takes: room for its longest text, and its buffer.
const SIZE_MIN: i64 = 26;
const SIZE_MAX: i64 = 65_535;
/// Parts of the region: where the peer says where its memory is, where we say where ours is, and what is read and
/// written (the server's copy of the ping, the client's pong). The client's ping is behind that. All begin where every
/// device can read and write.
const TOLD: u64 = 0;
const TELL: u64 = 64;
const DATA: u64 = 128;
/// Letters of a ping: from A, and from z to A again.
const FIRST: u8 = b'A';
const LAST: u8 = b'z';

/// Exchange pings and pongs by SEND, READ and WRITE with another rping, ours or librdmacm's
#[derive(clap::Args)]
#[command(disable_version_flag = true)] // -V is the tool's.
#[command(group = ArgGroup::new("side").required(true).args(["server", "client"]))]
pub(crate) struct Args {
    /// Serve: wait for a client
    #[arg(short)]
    server: bool,
    /// Be the client
    #[arg(short)]
    client: bool,
    /// The server's address; for a server, one of its own, or 0.0.0.0 or :: for all
    #[arg(short = 'a', value_name = "IP", required_if_eq("client", "true"))]
    address: Option<IpAddr>,
    /// Port in RDMA CM's TCP space
    #[arg(short = 'p', value_name = "PORT", default_value_t = 7174)]
    port: u16,
    /// Rounds; 0 for ever
    #[arg(short = 'C', value_name = "COUNT", default_value_t = 0)]
    count: u64,
    /// Bytes of a ping
    #[arg(short = 'S', value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(SIZE_MIN..=SIZE_MAX))]
    size: u32,
    /// Compare every pong with its ping
    #[arg(short = 'V')]
    validate: bool,
    /// Print pings and pongs
    #[arg(short = 'v')]
    verbose: bool,
    /// Serve one client after the other, several at a time
    #[arg(short = 'P', conflicts_with = "client")]
    persistent: bool,
    /// Print every step
    #[arg(short = 'd')]
    debug: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    session: SessionArgs,
    #[command(flatten)]
    station: StationArgs,
}

/// What a connection came to.
#[derive(Serialize)]
struct Summary {
    peer: IpAddr,
    rounds: u64,
    size: u32,
    validated: bool,
    seconds: f64,
}

/// Runs the command; the exit status is 1 where the connection breaks or a byte differs.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let port = Port::open("rping", &args.station)?;
    let result = match args.address.filter(|_| args.client) {
        Some(server) => {
            client(&port, server, args).and_then(|summary| report(args, &summary)).map(|()| true)
        }
        None => serve(&port, args),
    };
    port.close()?;
    result.map(|good| if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn report(args: &Args, summary: &Summary) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut out, summary)?;
        writeln!(out)?;
    } else {
        let Summary { peer, rounds, size, seconds, .. } = summary;
        let same = if summary.validated { ", every byte as it was sent" } else { "" };
        writeln!(
            out,
            "rping: {rounds} rounds of {size} bytes with {peer} in {seconds:.3} s{same}"
        )?;
    }
    Ok(())
}

/// One side, and its steps.
struct Rping<'a> {
    args: &'a Args,
    session: Session,
    granularity: u32,
}

impl<'a> Rping<'a> {
    /// With `len` bytes of the region behind the messages.
    fn new(port: &Port, peer: IpAddr, args: &'a Args, len: u64) -> anyhow::Result<Self> {
        let session = Session::new(port, peer, (DATA + len) as usize, INFO_LEN)?;
        let granularity = port.connector.ability().granularity;
        let mut rping = Self { args, session, granularity };
        rping.post_receive()?;
        Ok(rping)
    }

    fn debug(&self, text: impl FnOnce() -> String) {
        if self.args.debug {
            eprintln!("{}", text());
        }
    }

    fn post_receive(&mut self) -> anyhow::Result<()> {
        Ok(self.session.post_receive(TOLD, INFO_LEN)?)
    }

    /// READs or WRITEs the data.
    fn transfer(&mut self, op: Op, remote_va: u64, rkey: u32, len: u32) -> anyhow::Result<()> {
        if !len.is_multiple_of(self.granularity) {
            let (name, unit) = (self.session.name(), self.granularity);
            bail!("{name}: {op:?} of {len} bytes; this device moves multiples of {unit} only");
        }
        self.session.post(&Transfer { op, offset: DATA, len, remote_va, rkey })?;
        match self.wait()? {
            Finished::Request(done) if done == op => Ok(()),
            other => self.unexpected(&format!("{op:?}"), other),
        }
    }

    fn unexpected<T>(&self, expected: &str, seen: Finished) -> anyhow::Result<T> {
        let name = self.session.name();
        bail!("{name} does not follow rping: {seen:?} where {expected} was expected")
    }

    /// Says where memory is.
    fn advertise(&mut self, offset: u64) -> anyhow::Result<()> {
        let (va, rkey) = self.session.remote_address(offset);
        let mut info = [0; INFO_LEN as usize];
        info[..8].copy_from_slice(&va.to_be_bytes());
        info[8..12].copy_from_slice(&rkey.to_be_bytes());
        info[12..].copy_from_slice(&self.args.size.to_be_bytes());
        self.debug(|| format!("advertise {va:#x}, key {rkey:#x}, {} bytes", self.args.size));
        self.go_ahead(&info)
    }

    fn go_ahead(&mut self, info: &[u8]) -> anyhow::Result<()> {
        self.session.write(TELL, info)?;
        let send = Transfer { op: Op::Send, offset: TELL, len: INFO_LEN, remote_va: 0, rkey: 0 };
        Ok(self.session.post(&send)?)
    }

    /// Waits for a message, a READ or a WRITE. SENDs end in between, and nobody waits for them.
    fn wait(&mut self) -> anyhow::Result<Finished> {
        loop {
            let finished = self.session.wait()?;
            self.debug(|| format!("{finished:?}"));
            if finished != Finished::Request(Op::Send) {
                return Ok(finished);
            }
        }
    }

    /// Waits for the peer's message: where its memory is.
    fn hear(&mut self) -> anyhow::Result<(u64, u32, u32)> {
        match self.wait()? {
            Finished::Receive(None | Some(INFO_LEN)) => {}
            other => return self.unexpected("a message of 16 bytes", other),
        }
        let mut info = [0; INFO_LEN as usize];
        self.session.read(TOLD, &mut info)?;
        self.post_receive()?;
        let [a, b, c, d, e, f, g, h, k0, k1, k2, k3, s0, s1, s2, s3] = info;
        let va = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
        let key = u32::from_be_bytes([k0, k1, k2, k3]);
        let size = u32::from_be_bytes([s0, s1, s2, s3]);
        self.debug(|| format!("heard of {va:#x}, key {key:#x}, {size} bytes"));
        Ok((va, key, size))
    }

    /// The text of the data, up to its zero byte, which counts.
    fn text(&mut self, len: u32) -> anyhow::Result<Vec<u8>> {
        let mut bytes = vec![0; len as usize];
        self.session.read(DATA, &mut bytes)?;
        let end = bytes.iter().position(|&byte| byte == 0);
        bytes.truncate(end.map_or(bytes.len(), |end| end + 1));
        Ok(bytes)
    }
}

/// The bytes of a ping: its number, and letters that begin one further each round.
fn ping_text(round: u64, size: u32) -> Vec<u8> {
    let letters = u64::from(LAST - FIRST) + 1;
    let mut text = format!("rdma-ping-{}: ", round as u32 as i32).into_bytes();
    let mut letter = FIRST + (round % letters) as u8;
    while text.len() < size as usize {
        text.push(letter);
        letter = if letter == LAST { FIRST } else { letter + 1 };
    }
    text.truncate(size as usize);
    if let Some(last) = text.last_mut() {
        *last = 0;
    }
    text
}

fn print_text(what: &str, text: &[u8]) -> io::Result<()> {
    let text = text.strip_suffix(&[0]).unwrap_or(text);
    writeln!(io::stdout().lock(), "{what}: {}", String::from_utf8_lossy(text))
}

fn client(port: &Port, server: IpAddr, args: &Args) -> anyhow::Result<Summary> {
    let granularity = port.connector.ability().granularity;
    if !args.size.is_multiple_of(granularity) {
        let face = port.connector.ability().face;
        bail!("-S {}: {face} moves multiples of {granularity} bytes only", args.size);
    }
    // The pong, and the ping behind it.
    let start_at = DATA + u64::from(args.size).next_multiple_of(DATA - TELL);
    let mut rping = Rping::new(port, server, args, start_at + u64::from(args.size) - DATA)?;
    rping.session.connect(args.port, &args.session, Vec::new())?;
    rping.debug(|| format!("connected to {}", rping.session.name()));
    let start = Instant::now();
    let progress = progress(args);
    let mut rounds = 0;
    let played: anyhow::Result<()> = (|| {
        while args.count == 0 || rounds < args.count {
            round(&mut rping, start_at, rounds)?;
            rounds += 1;
            progress.inc(1);
        }
        Ok(())
    })();
    progress.finish_and_clear();
    rping.session.close();
    let seconds = start.elapsed().as_secs_f64();
    let summary =
        Summary { peer: server, rounds, size: args.size, validated: args.validate, seconds };
    match played {
        Ok(()) => Ok(summary),
        // Ctrl-C is how rounds without end do end.
        Err(error) if matches!(error.downcast_ref(), Some(Ended::Stopped)) => Ok(summary),
        Err(error) => Err(error).context(format!("after {rounds} rounds")),
    }
}

fn progress(args: &Args) -> ProgressBar {
    if args.count == 0 || args.verbose || args.debug || args.json || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} rounds, {per_sec}");
    ProgressBar::new(args.count).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn round(rping: &mut Rping<'_>, start_at: u64, round: u64) -> anyhow::Result<()> {
    let size = rping.args.size;
    let ping = ping_text(round, size);
    rping.session.write(start_at, &ping)?;
    rping.advertise(start_at)?;
    rping.hear()?;
    rping.advertise(DATA)?;
    rping.hear()?;
    let mut seen = vec![0; size as usize];
    rping.session.read(DATA, &mut seen)?;
    if rping.args.validate
        && let Some(at) = (0..ping.len()).find(|&at| ping[at] != seen[at])
    {
        let (name, was, is) = (rping.session.name(), ping[at], seen[at]);
        bail!("{name}: byte {at} of round {round} is {is:#04x}, {was:#04x} was sent");
    }
    if rping.args.verbose {
        print_text("ping data", &rping.text(size)?)?;
    }
    Ok(())
}

/// Serves one client, or with -P one after the other; false where one of them broke off.
fn serve(port: &Port, args: &Args) -> anyhow::Result<bool> {
    if let Some(address) = args.address.filter(|address| !address.is_unspecified())
        && port.connector.port().own_address(address.is_ipv6()) != Ok(address)
    {
        bail!("-a {address} is no address of this NIC; give it to --address, too");
    }
    port.listen(args.port, 3)?;
    if !args.persistent {
        let Some((id, peer, _)) = port.next_request() else { return Ok(true) };
        serve_one(port, id, peer, args).and_then(|summary| report(args, &summary))?;
        return Ok(true);
    }
    let mut good = true;
    std::thread::scope(|scope| {
        let mut clients = Vec::new();
        while let Some((id, peer, _)) = port.next_request() {
            clients.push(scope.spawn(move || {
                let served = serve_one(port, id, peer, args);
                match served.and_then(|summary| report(args, &summary)) {
                    Ok(()) => true,
                    Err(error) => {
                        eprintln!("error: {error:#}");
                        false
                    }
                }
            }));
            let (done, busy): (Vec<_>, _) =
                clients.into_iter().partition(std::thread::ScopedJoinHandle::is_finished);
            clients = busy;
            good &= done.into_iter().all(|client| client.join().unwrap_or(false));
        }
        good &= clients.into_iter().all(|client| client.join().unwrap_or(false));
    });
    Ok(good)
}

fn serve_one(port: &Port, id: CommId, peer: IpAddr, args: &Args) -> anyhow::Result<Summary> {
    // Any client's ping fits, whatever -S says here.
    let mut rping = Rping::new(port, peer, args, SIZE_MAX as u64 + 1)?;
    rping.session.accept(id, &args.session)?;
    rping.debug(|| format!("accepted {}", rping.session.name()));
    let start = Instant::now();
    let (mut rounds, mut size) = (0, 0);
    let played: anyhow::Result<()> = (|| {
        loop {
            let (va, rkey, len) = rping.hear()?;
            if i64::from(len) > SIZE_MAX {
                bail!("{}: a ping of {len} bytes, {SIZE_MAX} at most", rping.session.name());
            }
            size = len;
            rping.transfer(Op::Read, va, rkey, len)?;
            let text = rping.text(len)?;
            if args.verbose {
                print_text("server ping data", &text)?;
            }
            rping.go_ahead(&[0; INFO_LEN as usize])?;
            let (va, rkey, _) = rping.hear()?;
            rping.transfer(Op::Write, va, rkey, text.len() as u32)?;
            rping.go_ahead(&[0; INFO_LEN as usize])?;
            rounds += 1;
        }
    })();
    rping.session.close();
    let seconds = start.elapsed().as_secs_f64();
    match played {
        // The client goes when it has enough.
        Err(error) if matches!(error.downcast_ref(), Some(Ended::Parted(_) | Ended::Stopped)) => {
            Ok(Summary { peer, rounds, size, validated: false, seconds })
        }
        Err(error) => Err(error).context(format!("after {rounds} rounds")),
        Ok(()) => bail!("the server has stopped"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pings_are_those_of_the_tool() {
        assert_eq!(ping_text(0, 26), b"rdma-ping-0: ABCDEFGHIJKL\0");
        assert_eq!(ping_text(1, 26), b"rdma-ping-1: BCDEFGHIJKLM\0");
        let long = ping_text(0, 80);
        // After z comes A.
        assert_eq!(&long[13 + 57..13 + 60], b"zAB");
        // After 58 rounds the letters begin with A again.
        assert_eq!(ping_text(57, 26), b"rdma-ping-57: zABCDEFGHIJ\0");
        assert_eq!(ping_text(58, 26), b"rdma-ping-58: ABCDEFGHIJK\0");
    }
}
