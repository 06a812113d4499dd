//! `rnic show`: devices, queue pairs, regions and counters, as `ibv_devinfo`, `rdma resource show` and
//! `rdma statistic show` put them.
//!
//! Prints a state that somebody wrote, or that a device process answers; knows no device.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde_json::{Value, json};
use softrnic_host::serve::{FaultState, ServeState, ask_socket};
use softrnic_sim::{DeviceState, QpState, RegionState, WorldState};

use crate::names::{hex, nearest};
use crate::run::STATE_FILE;

/// What to show.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory that `rnic run` wrote, or a file with a state
    #[arg(value_name = "DIR", default_value = "rnic-out")]
    from: PathBuf,
    /// Ask a device that runs: the control socket of `rnic serve`
    #[arg(long, value_name = "SOCKET", conflicts_with = "from")]
    socket: Option<PathBuf>,
    /// Only this device
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Only this part
    #[arg(long, value_name = "PART", value_enum)]
    only: Option<Part>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A part of what there is.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Devices and ports
    Dev,
    /// Queue pairs
    Qp,
    /// Memory regions
    Mr,
    /// Counters, refusals and faults
    Stat,
    /// Link, neighbours and fault rules of a device that runs
    Link,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(socket) = &args.socket {
        return run_socket(args, socket);
    }
    let file = if args.from.is_dir() { args.from.join(STATE_FILE) } else { args.from.clone() };
    let text = fs::read_to_string(&file).with_context(|| {
        format!("cannot read {}: `rnic run --out DIR` writes it", file.display())
    })?;
    let mut state: WorldState = serde_json::from_str(&text)
        .with_context(|| format!("{} is not the state of a world", file.display()))?;
    keep_device(&mut state, args.device.as_deref())?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.json {
        serde_json::to_writer_pretty(&mut out, &state)?;
        writeln!(out)?;
    } else {
        print(&mut out, &state, args.only)?;
        if args.only.is_none() {
            writeln!(out, "as of {} ns of virtual time: {}", state.at_ns, state.title)?;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn keep_device(state: &mut WorldState, wanted: Option<&str>) -> Result<()> {
    let Some(wanted) = wanted else { return Ok(()) };
    let names: Vec<_> = state.devices.iter().map(|device| device.name.clone()).collect();
    state.devices.retain(|device| device.name == wanted);
    if state.devices.is_empty() {
        let near = nearest(wanted, names.iter().map(String::as_str));
        bail!("no device is called {wanted:?}; there are: {}", near.join(", "));
    }
    Ok(())
}

fn print(out: &mut impl Write, state: &WorldState, only: Option<Part>) -> io::Result<()> {
    let shown = |part| only.is_none_or(|only| only == part);
    for device in &state.devices {
        if shown(Part::Dev) {
            print_device(out, device)?;
        }
        if shown(Part::Qp) {
            device.queue_pairs.iter().try_for_each(|qp| print_qp(out, device, qp))?;
        }
        if shown(Part::Mr) {
            device.regions.iter().try_for_each(|region| print_region(out, device, region))?;
        }
        if shown(Part::Stat) {
            print_counters(out, device)?;
        }
        if only.is_none() {
            writeln!(out)?;
        }
    }
    Ok(())
}

/// The state of a device that runs.
fn run_socket(args: &Args, socket: &Path) -> Result<ExitCode> {
    let mut state = ask_state(socket)?;
    keep_device(&mut state.world, args.device.as_deref())?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.json {
        serde_json::to_writer_pretty(&mut out, &state)?;
        writeln!(out)?;
    } else {
        print(&mut out, &state.world, args.only)?;
        if args.only.is_none_or(|only| only == Part::Link) {
            print_link(&mut out, &state)?;
        }
        if args.only.is_none() {
            let since = Duration::from_nanos(state.world.at_ns);
            writeln!(
                out,
                "as of {:.3} s after its start: {}",
                since.as_secs_f64(),
                state.world.title
            )?;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Asks a device process for its state.
pub(crate) fn ask_state(socket: &Path) -> Result<ServeState> {
    let state = ask(socket, &json!({ "command": "state" }))?;
    serde_json::from_value(state).context("the device answers something else than a state")
}

/// Asks a device process something.
pub(crate) fn ask(socket: &Path, request: &Value) -> Result<Value> {
    ask_socket(socket, request)
        .with_context(|| format!("{}: is `rnic serve --control` running there?", socket.display()))
}

/// As `ip neighbour` and `ethtool` put it.
fn print_link(out: &mut impl Write, state: &ServeState) -> io::Result<()> {
    let link = &state.link;
    let up = if link.up { "up" } else { "down" };
    writeln!(out, "link {} {up} mtu {} lost {}", link.url, link.mtu, link.lost)?;
    print_fields(out, &link.counters)?;
    writeln!(out, "port")?;
    print_fields(out, &state.port)?;
    for neighbour in &state.neighbours {
        let mac = neighbour.mac.as_deref().map_or_else(String::new, |mac| format!(" lladdr {mac}"));
        writeln!(out, "neighbour {}{mac} {}", neighbour.ip, neighbour.state)?;
    }
    for rule in &state.fault_rules {
        print_rule(out, rule)?;
    }
    if !state.fault_rules.is_empty() {
        writeln!(out, "frames that faults met")?;
        print_fields(out, &state.fault_frames)?;
    }
    Ok(())
}

/// A fault rule and what it has done.
pub(crate) fn print_rule(out: &mut impl Write, rule: &FaultState) -> io::Result<()> {
    let FaultState { rule, name, text, on, matched, fired } = rule;
    let on = if *on { "on" } else { "off" };
    let name = if name.is_empty() { String::new() } else { format!(" {name:?}") };
    writeln!(out, "fault {rule}{name} {on}: {text}; matched {matched}, fired {fired}")
}

/// Those that are not 0.
fn print_fields(out: &mut impl Write, fields: &[(String, u64)]) -> io::Result<()> {
    let mut shown = fields.iter().filter(|(_, value)| *value != 0);
    shown.try_for_each(|(name, value)| writeln!(out, "    {name} {value}"))
}

/// As `ibv_devinfo`.
fn print_device(out: &mut impl Write, device: &DeviceState) -> io::Result<()> {
    let state = if device.port_enabled { "PORT_ACTIVE (4)" } else { "PORT_DOWN (1)" };
    let lines = [
        ("\ttransport:", "InfiniBand (0)".to_owned()),
        ("\tface:", device.face.clone()),
        ("\tqps:", device.queue_pairs.len().to_string()),
        ("\tmrs:", device.regions.len().to_string()),
        ("\tport:\t1", String::new()),
        ("\t\tstate:", state.to_owned()),
        ("\t\tlink_layer:", "Ethernet".to_owned()),
        ("\t\tmac:", device.mac.clone()),
        ("\t\tGID[  0]:", format!("::ffff:{}, RoCE v2", device.ipv4)),
        ("\t\tGID[  1]:", format!("{}, RoCE v2", device.ipv6)),
    ];
    writeln!(out, "hca_id:\t{}", device.name)?;
    for (label, value) in lines {
        writeln!(out, "{}", format!("{label:<22}{value}").trim_end())?;
    }
    Ok(())
}

/// As `rdma resource show qp`, with what hides behind a driver there.
fn print_qp(out: &mut impl Write, device: &DeviceState, qp: &QpState) -> io::Result<()> {
    let psn = |value| hex_psn(value);
    write!(
        out,
        "link {}/1 lqpn {} rqpn {} type {} state {} sq-psn {} una-psn {} rq-psn {} ssn {} msn {}",
        device.name,
        qp.lqpn,
        qp.rqpn,
        qp.r#type,
        qp.state,
        psn(qp.sq_psn),
        psn(qp.una_psn),
        psn(qp.rq_psn),
        qp.ssn,
        qp.msn,
    )?;
    if !qp.enabled {
        write!(out, " disabled")?;
    }
    write!(
        out,
        "\n    peer {} {} mtu {} in-flight {} packets {} retries {} of {} rnr {} of {} timeout {}",
        qp.peer_ip,
        qp.peer_mac,
        qp.path_mtu,
        qp.in_flight,
        qp.outstanding_packets,
        qp.retries[0],
        qp.retries[1],
        qp.rnr_retries[0],
        qp.rnr_retries[1],
        qp.ack_timeout,
    )?;
    if let Some(rings) = &qp.rings {
        let ([sqpi, cqhead, sq_depth], [rqpi, rqci, rq_depth]) = (rings.sq, rings.rq);
        write!(
            out,
            "\n    sq SQPI {sqpi} CQHEAD {cqhead} of {sq_depth}  rq STATRQPIDB {rqpi} RQCI {rqci} of \
             {rq_depth}  STATQP {}",
            hex(rings.statqp.into(), 32),
        )?;
    }
    writeln!(out)?;
    print_names(out, "    stat", &qp.counters)
}

/// As `rdma resource show mr`.
fn print_region(out: &mut impl Write, device: &DeviceState, mr: &RegionState) -> io::Result<()> {
    let access = if mr.access.is_empty() { "none".to_owned() } else { mr.access.join(",") };
    writeln!(
        out,
        "dev {} rkey {} mrlen {} pdn {} va {} access {access}",
        device.name,
        hex(mr.rkey.into(), 32),
        mr.mrlen,
        mr.pdn,
        hex(mr.va, 64),
    )
}

/// As `rdma statistic show link`.
fn print_counters(out: &mut impl Write, device: &DeviceState) -> io::Result<()> {
    let link = format!("link {}/1", device.name);
    print_names(out, &link, &device.counters)?;
    print_names(out, &format!("{link} refused"), &device.refused)?;
    print_names(out, &format!("{link} faults"), &device.faults)
}

/// Names and numbers in a line; none where there are none.
fn print_names(out: &mut impl Write, lead: &str, counts: &BTreeMap<String, u64>) -> io::Result<()> {
    if counts.is_empty() {
        return Ok(());
    }
    let list: Vec<_> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    writeln!(out, "{lead} {}", list.join(" "))
}

fn hex_psn(psn: u32) -> String {
    format!("{psn:#08x}")
}
