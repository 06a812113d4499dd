//! `rnic verify`: moves data between two ends and compares every byte, here and there.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::ValueEnum;
use serde::Serialize;
use softrnic_device::ernic::Profile;
use softrnic_driver::Map;
use softrnic_engine::PathMtu;
use softrnic_host::endpoint::{Card, Endpoint, ErnicEndpoint, NativeEndpoint};
use softrnic_host::pci::{self, BusAddresses, CardFiles, PciCard};
use softrnic_host::verbs;
use softrnic_host::verify::{self, GUARD, Operation, Plan, Script, Summary};

use crate::peer;
use crate::station_args::{FaceArg, StationArgs};

/// Move data between two ends and compare every byte, here and there
///
/// Without HOST this end is the server and does what the client says. The other end is `rnic verify` too, or
/// `e2e/guest/verify.py` on Linux' verbs.
#[derive(clap::Args)]
pub struct Args {
    /// The server's address for the TCP connection over which both ends agree
    host: Option<String>,
    /// TCP port
    #[arg(short, long, default_value_t = 18_520)]
    port: u16,
    /// Serve one client after the other, until something is wrong
    #[arg(long)]
    keep: bool,
    /// Sizes in bytes
    #[arg(short, long, value_delimiter = ',', default_values_t = [1, 2, 64, 255, 256, 257, 1000, 4096, 65_536, 1_048_576])]
    sizes: Vec<u32>,
    /// Largest size that the server takes
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    max_size: u32,
    /// Rounds
    #[arg(short = 'n', long, default_value_t = 4)]
    rounds: u32,
    /// Operations [default: all that the device has]
    #[arg(short, long, value_delimiter = ',')]
    ops: Vec<OperationArg>,
    /// Path MTU in bytes
    #[arg(short = 'm', long, default_value_t = 1024, value_parser = parse_mtu)]
    path_mtu: u16,
    /// ACK timeout code: 4.096 us * 2^code
    #[arg(long, default_value_t = 14, value_parser = clap::value_parser!(u8).range(0..32))]
    timeout: u8,
    /// Retries after timeouts
    #[arg(short, long, default_value_t = 6, value_parser = clap::value_parser!(u8).range(0..8))]
    retry: u8,
    /// RoCE over IPv6, where this end has both addresses
    #[arg(short = '6', long)]
    ipv6: bool,
    /// Requests that both ends post at the same time (e2e/interop/script.py makes such files); --json tells what came
    /// of them, to be compared with what others make of the same file
    #[arg(long, value_name = "FILE", requires = "host", conflicts_with_all = ["sizes", "rounds", "ops"])]
    script: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    card: CardArgs,
    #[command(flatten)]
    station: StationArgs,
}

/// A card instead of a NIC of this program.
#[derive(clap::Args)]
#[command(next_help_heading = "A card, instead of a link")]
struct CardArgs {
    /// An ERNIC's registers: a PCI resource file, as /sys/bus/pci/devices/0000:01:00.0/resource2
    #[arg(id = "card", long = "card", value_name = "FILE", requires = "card-memory")]
    resource: Option<PathBuf>,
    /// Memory that the card can reach: a file on hugetlbfs
    #[arg(id = "card-memory", long = "card-memory", value_name = "FILE")]
    memory: Option<PathBuf>,
    /// Where in the resource file the register map begins
    #[arg(long = "card-offset", value_name = "BYTES", default_value_t = 0)]
    register_offset: u64,
}

impl CardArgs {
    fn files(&self) -> Option<CardFiles> {
        Some(CardFiles {
            resource: self.resource.clone()?,
            register_offset: self.register_offset,
            memory: self.memory.clone()?,
            bus: BusAddresses::Pagemap,
        })
    }
}

/// [`Operation`] as a flag.
#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
enum OperationArg {
    Send,
    Write,
    WriteImm,
    Read,
    FetchAdd,
    CmpSwap,
}

impl OperationArg {
    const fn operation(self) -> Operation {
        match self {
            Self::Send => Operation::Send,
            Self::Write => Operation::Write,
            Self::WriteImm => Operation::WriteImm,
            Self::Read => Operation::Read,
            Self::FetchAdd => Operation::FetchAdd,
            Self::CmpSwap => Operation::CmpSwap,
        }
    }
}

fn parse_mtu(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(mtu) if path_mtu(mtu).is_some() => Ok(mtu),
        _ => Err("wanted 256, 512, 1024, 2048 or 4096".to_owned()),
    }
}

fn path_mtu(bytes: u16) -> Option<PathMtu> {
    let all = [PathMtu::M256, PathMtu::M512, PathMtu::M1024, PathMtu::M2048, PathMtu::M4096];
    all.into_iter().find(|mtu| mtu.bytes() == u32::from(bytes))
}

/// Runs the command; the exit status is 1 where a byte differs.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut setup = args.station.setup()?;
    let script = args.script.as_deref().map(read_script).transpose()?;
    let largest = match (&script, &args.host) {
        (Some(script), _) => script.longest_send(),
        (None, Some(_)) => args.sizes.iter().copied().max().unwrap_or(0).max(8),
        (None, None) => args.max_size,
    };
    let region = script
        .as_ref()
        .map_or_else(|| largest.next_multiple_of(8) as usize + 2 * GUARD, Script::region_len);
    if let Some(files) = args.card.files() {
        // A plain file has no folder of a device around it.
        let device = files.resource.parent().filter(|folder| folder.join("enable").exists());
        if let Some(device) = device {
            pci::enable(device)?;
        }
        let card = Card::new(PciCard::open(&files)?, setup.port.neighbours.clone());
        let port = setup.port.clone();
        let mut endpoint = ErnicEndpoint::over(card, Map::V4_0, port, region, largest)?;
        return play(args, script, &mut endpoint, region);
    }
    match args.station.face {
        FaceArg::Native => {
            let context = verbs::Context::open("rnic", setup)?;
            let mut endpoint = NativeEndpoint::new(context.clone(), region)?;
            let code = play(args, script, &mut endpoint, region)?;
            context.stop_capture()?;
            Ok(code)
        }
        FaceArg::Ernic => {
            let link = setup.open_link()?;
            let profile = Profile::V4_0;
            let mut endpoint = ErnicEndpoint::model(&setup, link, profile, region, largest)?;
            let code = play(args, script, &mut endpoint, region)?;
            endpoint.stop()?;
            Ok(code)
        }
    }
}

fn read_script(path: &Path) -> anyhow::Result<Script> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    Script::parse(&text).map_err(|why| anyhow::anyhow!("{}: {why}", path.display()))
}

/// Client or server.
fn play(
    args: &Args,
    script: Option<Script>,
    endpoint: &mut dyn Endpoint,
    region: usize,
) -> anyhow::Result<ExitCode> {
    let Some(host) = &args.host else { return serve(args, endpoint, region) };
    let ability = endpoint.ability();
    let operations = if args.ops.is_empty() {
        Operation::ALL.into_iter().filter(|op| op.is_possible(&ability)).collect()
    } else {
        args.ops.iter().map(|op| op.operation()).collect()
    };
    let plan = Plan {
        seed: args.station.seed,
        mtu: path_mtu(args.path_mtu).unwrap_or(PathMtu::M1024),
        rounds: args.rounds,
        sizes: args.sizes.clone(),
        operations,
        ipv6: args.ipv6 || endpoint.local(false).is_err(),
        timeout: args.timeout,
        retry: args.retry,
        script,
    };
    let stream = peer::dial(host, args.port, "rnic verify")?;
    let peer = host.clone();
    report(args, &peer, verify::ask(endpoint, stream, &plan)?)
}

fn serve(args: &Args, endpoint: &mut dyn Endpoint, region: usize) -> anyhow::Result<ExitCode> {
    let listener = peer::listen(args.port, args.json)?;
    loop {
        let (stream, peer) = listener.accept().context("waiting for a client")?;
        let peer = peer.ip().to_canonical().to_string();
        let code = report(args, &peer, verify::serve(endpoint, stream, region)?)?;
        if !args.keep || code != ExitCode::SUCCESS {
            return Ok(code);
        }
    }
}

/// The result as the command prints it.
#[derive(Serialize)]
struct Report<'a> {
    peer: &'a str,
    #[serde(flatten)]
    summary: Summary,
}

fn report(args: &Args, peer: &str, summary: Summary) -> anyhow::Result<ExitCode> {
    let wrong = summary.wrong;
    if args.json {
        let text = serde_json::to_string(&Report { peer, summary })?;
        writeln!(std::io::stdout(), "{text}")?;
    } else if summary.script.is_some() {
        let transfers = summary.transfers;
        let note = "--json tells what came of them";
        writeln!(std::io::stdout(), "verify: {peer}: {transfers} requests of a script; {note}")?;
    } else {
        let Summary { transfers, bytes, .. } = summary;
        writeln!(
            std::io::stdout(),
            "verify: {peer}: {transfers} transfers, {bytes} bytes compared, {wrong} wrong"
        )?;
    }
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
