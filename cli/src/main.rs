//! The `rnic` command: picks the subcommand and turns its result into an exit status.
//!
//! Each subcommand has a file of its own with `Args` and `run`.
#![forbid(unsafe_code)]

mod report_table;
mod run;

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
    /// Run a scenario: software NICs on a virtual wire, every byte compared
    Run(run::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
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
