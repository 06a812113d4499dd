//! The flags of `rnic serve` that show an ERNIC to a virtual machine, and what they start. Nothing here
//! knows a message or a register.

use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use clap::ValueEnum;
use softrnic_device::ernic::{Ernic, ErnicConfig, Profile};
use softrnic_device::reconic::{self, CardMemory};
use softrnic_device::{Memory, Nic, Ram};
use softrnic_host::serve::{Options, Plugged, Server, StopSignals, first_link};
use softrnic_host::setup::Setup;
use softrnic_host::vfio::{
    Attached, Bare, Board, GuestMemory, ReconicBoard, RegisterTrace, Server as Socket,
};

use crate::regs::profile;

/// A virtual machine that has the NIC on its PCI bus.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Virtual machine (--face ernic)")]
pub(crate) struct VfioArgs {
    /// Show the NIC as a PCI device: the UNIX socket that QEMU's vfio-user-pci connects to
    #[arg(long, value_name = "SOCKET")]
    pub(crate) vfio_user: Option<PathBuf>,
    /// Whose reading of the register space [default: v4.0, and v3.1 with --reconic]
    #[arg(long, value_parser = profile)]
    pub(crate) profile: Option<Profile>,
    /// Queue pair numbers that the NIC is built with, 8 to 2048 (256 before v4) [default: 256]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) queue_pairs: Option<u16>,
    /// RecoNIC's card: ERNIC 3.1 inside of its BAR, DMA windows, memory of its own
    #[arg(long)]
    pub(crate) reconic: bool,
    /// Write down on the error output what happens, as it happens
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) trace: Option<Trace>,
}

/// Queue pair numbers that a NIC can be built with, and has where nobody says.
const QUEUE_PAIRS: RangeInclusive<u16> = 8..=2048;
const QUEUE_PAIRS_DEFAULT: u16 = 256;

/// What can be written down.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Trace {
    /// Every register access: name, fields, and what it caused
    Registers,
}

/// Bytes of memory on RecoNIC's card: as much as a 32-bit BAR can have and still find room in a small
/// machine. Pages that nobody touches cost nothing.
const CARD_MEMORY_LEN: usize = 256 << 20;

/// Serves an ERNIC on `socket` until a signal comes.
pub(crate) fn run(
    args: &VfioArgs,
    socket: &Path,
    setup: Setup,
    options: Options,
    signals: &StopSignals,
) -> Result<()> {
    // What a client does wrong is told as it happens; the way out of memory without a descriptor, above all.
    let log = tracing_subscriber::fmt().with_writer(io::stderr).with_target(false);
    log.try_init().map_err(|error| anyhow!(error))?;
    let socket = Socket::listen(socket)?;
    let memory = GuestMemory::new();
    if args.reconic {
        let config = ErnicConfig { vlan_tci: setup.port.vlan_tci, ..reconic::config() };
        let memory = CardMemory::new(memory, Ram::new(0, CARD_MEMORY_LEN));
        let board = ReconicBoard::default();
        return serve(args, socket, board, Nic::ernic(config, memory), setup, options, signals);
    }
    let config = ErnicConfig {
        profile: args.profile.unwrap_or(Profile::V4_0),
        num_qp: args.queue_pairs.unwrap_or(QUEUE_PAIRS_DEFAULT),
        vlan_tci: setup.port.vlan_tci,
        ..ErnicConfig::default()
    };
    serve(args, socket, Bare, Nic::ernic(config, memory), setup, options, signals)
}

fn serve<M: Memory + Send + 'static, B: Board<M>>(
    args: &VfioArgs,
    socket: Socket,
    board: B,
    mut nic: Nic<Ernic, M>,
    setup: Setup,
    options: Options,
    signals: &StopSignals,
) -> Result<()> {
    let path = socket.path().display().to_string();
    let mut attached = Attached::new(socket, board, &mut nic)?;
    if args.trace == Some(Trace::Registers) {
        attached.set_trace(RegisterTrace::new(Box::new(io::stderr())));
    }
    let device =
        format!(r#"{{"driver":"vfio-user-pci","socket":{{"type":"unix","path":"{path}"}}}}"#);
    // Nobody may be there to read it.
    let _ = writeln!(io::stdout(), "QEMU: -device '{device}'").and_then(|()| io::stdout().flush());
    let Some(Plugged { setup, link }) = first_link(setup, signals)? else { return Ok(()) };
    let tell = Box::new(|event| eprintln!("{event}"));
    Server::new(&setup, nic, link, options, tell)?.run(signals, &mut attached)?;
    report(attached.server())?;
    Ok(())
}

fn report(socket: &Socket) -> io::Result<()> {
    let (messages, interrupts) = (socket.counters(), socket.interrupts());
    let rows = [
        ("clients", socket.clients().0),
        ("clients turned away", socket.clients().1),
        ("messages", messages.messages),
        ("posted writes", messages.posted),
        ("messages refused", messages.refused),
        ("MSI-X sent", interrupts.msix),
        ("INTx sent", interrupts.intx),
        ("interrupts lost", interrupts.lost),
    ];
    let mut out = io::stdout();
    rows.iter().try_for_each(|(name, value)| writeln!(out, "{name:24} {value}"))
}

/// Checks that flags of a virtual machine come with one, and fit each other.
pub(crate) fn check(args: &VfioArgs) -> Result<()> {
    if let Some(number) = args.queue_pairs.filter(|number| !QUEUE_PAIRS.contains(number)) {
        let (least, most) = QUEUE_PAIRS.into_inner();
        bail!("--queue-pairs {number}: a NIC is built with {least} to {most}");
    }
    if args.reconic && args.queue_pairs.is_some() {
        bail!("--reconic has its number of queue pairs: leave --queue-pairs away");
    }
    if args.vfio_user.is_none() && (args.trace.is_some() || args.reconic) {
        bail!("--trace and --reconic need --vfio-user: nobody else can reach the registers");
    }
    let card = reconic::config().profile;
    if let Some(other) = args.profile.filter(|other| args.reconic && *other != card) {
        bail!("--reconic has an ERNIC {}, not {}: leave --profile away", card.name, other.name);
    }
    Ok(())
}
