//! The `rnic` command: picks the subcommand and turns its result into an exit status.
//!
//! Each subcommand has a file of its own with `Args` and `run`.
#![forbid(unsafe_code)]

mod campaign;
mod decode;
mod doctor;
mod encode;
mod explain;
mod fault;
mod html;
mod ladder;
mod names;
mod peer;
mod perf;
mod ping;
mod regs;
mod report_table;
mod rping;
mod run;
mod serve;
mod serve_config;
mod session;
mod show;
mod station_args;
mod verify;
mod vfio_user;

use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// RDMA NICs in software: run, inspect and decode.
#[derive(Parser)]
#[command(name = "rnic", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the frames of a capture, or bytes given as text, as trees of named fields
    Decode(decode::Args),
    /// Make the bytes of named fields
    Encode(encode::Args),
    /// Show the packets of a capture as a ladder: who sent what to whom, and what became of it
    Ladder(ladder::Args),
    /// Run a scenario: software NICs on a virtual wire, every byte compared
    Run(run::Args),
    /// Show devices, queue pairs, regions and counters as a run left them, or of a device that is served
    Show(show::Args),
    /// Serve a NIC on a link until it is told to stop
    Serve(serve::Args),
    /// Show the fault rules of a device that is served, and switch them off and on
    Fault(fault::Args),
    /// Show which rights, kernel features and tools can be used here
    Doctor(doctor::Args),
    /// Show the ERNIC register map, one register, or what an offset is
    Regs(regs::Args),
    Perf(perf::Args),
    Verify(verify::Args),
    /// Measure round trips over a reliable connection, with loss and percentiles
    Ping(ping::Args),
    /// Exchange pings and pongs by SEND, READ and WRITE with another rping, ours or librdmacm's
    Rping(rping::Args),
    /// Say what a number means that a driver printed, what causes it and what to do
    Explain(explain::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Decode(args) => decode::run(&args),
        Command::Encode(args) => encode::run(&args),
        Command::Ladder(args) => ladder::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Show(args) => show::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Fault(args) => fault::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Regs(args) => regs::run(&args),
        Command::Perf(args) => perf::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Ping(args) => ping::run(&args),
        Command::Rping(args) => rping::run(&args),
        Command::Explain(args) => explain::run(&args),
    };
    match result {
        Ok(code) => code,
        // Whoever read our output has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let mut io_errors = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    io_errors.any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}
