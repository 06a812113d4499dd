//! `rnic serve`: a NIC that stays: on a link until it is told to stop, with a control socket, metrics, fault
//! rules and a capture.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use softrnic_device::{Nic, Ram};
use softrnic_host::serve::echo::Echo;
use softrnic_host::serve::{Options, Plugged, Server, StopSignals, first_link};

use crate::serve_config;
use crate::session;
use crate::station_args::{FaceArg, StationArgs};
use crate::vfio_user::{self, VfioArgs};

/// A NIC, and who can ask it.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Take everything from this file instead; its keys are the flags' names (docs/serve.md)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["StationArgs", "ServeArgs", "VfioArgs"])]
    config: Option<PathBuf>,
    #[command(flatten)]
    station: Option<StationArgs>,
    #[command(flatten)]
    serve: ServeArgs,
    #[command(flatten)]
    vfio: VfioArgs,
}

/// What belongs to a process that stays.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Process")]
pub(crate) struct ServeArgs {
    /// Name of the device
    #[arg(long, default_value = "rnic0")]
    pub(crate) name: String,
    /// Serve counters for Prometheus here, at /metrics
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Answer requests on this UNIX socket: see `rnic show --socket` and `rnic fault`
    #[arg(long, value_name = "SOCKET")]
    pub(crate) control: Option<PathBuf>,
    /// Answer `rnic ping` on this port of RDMA CM's TCP space
    #[arg(long, value_name = "PORT")]
    pub(crate) echo_port: Option<u16>,
}

/// Bytes of memory that a native NIC's own programs use, and where it begins.
const MEMORY: (u64, usize) = (0x1000_0000, 64 << 20);

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let (station, serve, vfio) = match (&args.config, &args.station) {
        (Some(path), _) => {
            let name = path.display().to_string();
            let text = std::fs::read_to_string(path).with_context(|| format!("--config {name}"))?;
            serve_config::parse(&name, &text)?
        }
        (None, Some(station)) => (station.clone(), args.serve.clone(), args.vfio.clone()),
        (None, None) => bail!("give --link URL, or --config FILE"),
    };
    let setup = station.setup()?;
    // From here on a signal ends the process in order.
    let signals = StopSignals::catch().context("cannot catch signals")?;
    let ServeArgs { name, metrics, control, echo_port } = serve;
    let options = Options { name, metrics, control };
    vfio_user::check(&vfio)?;
    if station.face == FaceArg::Ernic && echo_port.is_some() {
        bail!("--echo-port: the NIC's own echo is the native face's; leave --face ernic away");
    }
    match (station.face, &vfio.vfio_user) {
        (FaceArg::Ernic, Some(socket)) => {
            vfio_user::run(&vfio, socket, setup, options, &signals)?;
            return Ok(ExitCode::SUCCESS);
        }
        (FaceArg::Ernic, None) => bail!(
            "--face ernic: nobody can reach the registers of an ERNIC that is served alone; add --vfio-user SOCKET"
        ),
        (FaceArg::Native, Some(_)) => {
            bail!("--vfio-user shows registers, which the native face has not; add --face ernic")
        }
        (FaceArg::Native, None) => {}
    }
    let Some(Plugged { setup, link }) = first_link(setup, &signals)? else {
        return Ok(ExitCode::SUCCESS);
    };
    let mut nic = Nic::verbs(setup.port.engine_port(), Ram::new(MEMORY.0, MEMORY.1));
    let echo = echo_port.map(|port| {
        let memory = MEMORY.0..MEMORY.0 + MEMORY.1 as u64;
        let echo = Echo::new(&mut nic, memory, &setup.port, port, session::start_seed());
        echo.map(|echo| (port, echo))
    });
    let echo = echo.transpose().context("--echo-port")?;
    let tell = Box::new(|event| eprintln!("{event}"));
    let server = Server::new(&setup, nic, link, options, tell)?;
    match echo {
        Some((port, mut echo)) => {
            for ip in [false, true].into_iter().filter_map(|v6| setup.port.own_address(v6).ok()) {
                eprintln!("listening on {ip}, port {port}");
            }
            server.run(&signals, &mut echo)?;
        }
        None => server.run(&signals, &mut ())?,
    }
    Ok(ExitCode::SUCCESS)
}
