//! `rnic fault`: the fault rules of a device that runs, and their switches.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::ValueEnum;
use serde_json::json;

use crate::show::{ask, ask_state, print_rule};

/// Which rule, and what to do with it.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The control socket of `rnic serve`
    #[arg(long, value_name = "SOCKET")]
    socket: PathBuf,
    /// The rule's number, from 1; without it all rules are shown
    #[arg(requires = "switch")]
    rule: Option<usize>,
    /// Switch it
    #[arg(value_enum)]
    switch: Option<Switch>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let (Some(rule), Some(switch)) = (args.rule, args.switch) {
        let on = switch == Switch::On;
        ask(&args.socket, &json!({ "command": "fault", "rule": rule, "on": on }))?;
    }
    let state = ask_state(&args.socket)?;
    let mut out = io::stdout().lock();
    let shown = |number: usize| args.rule.is_none_or(|rule| rule == number);
    let mut rules = state.fault_rules.iter().filter(|rule| shown(rule.rule));
    rules.try_for_each(|rule| print_rule(&mut out, rule))?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
