//! `rnic doctor`: what this machine offers of what the product can use, and the way out where
//! something is missing. What is tried, and how, is in the host crate.

use std::io::{self, Write};
use std::process::ExitCode;

use serde_json::{Value, json};
use softrnic_host::probe::{Finding, PROBES, Probe};

/// Show which rights, kernel features and tools can be used here.
///
/// Nothing that is missing is an error: the main job needs none of it. The exit status is 1 only
/// where something could not even be tried.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Tries everything and prints it.
///
/// # Errors
/// The output cannot be written.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let looks: Vec<_> = PROBES.iter().map(|probe| (probe, probe.look())).collect();
    let mut out = io::stdout().lock();
    if args.json {
        let rows: Vec<Value> = looks.iter().map(|(probe, look)| to_json(probe, look)).collect();
        writeln!(out, "{:#}", Value::from(rows))?;
    } else {
        for (probe, look) in &looks {
            write_row(&mut out, probe, look)?;
        }
    }
    let all_tried = looks.iter().all(|(_, look)| look.is_ok());
    Ok(if all_tried { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn write_row(out: &mut impl Write, probe: &Probe, look: &io::Result<Finding>) -> io::Result<()> {
    let (verdict, detail) = words(look);
    writeln!(out, "{verdict:8} {:20} {detail}", probe.name)?;
    writeln!(out, "{:29} for {}", "", probe.needed_for)?;
    if verdict != FOUND {
        writeln!(out, "{:29} way out: {}", "", probe.way_out)?;
    }
    Ok(())
}

fn to_json(probe: &Probe, look: &io::Result<Finding>) -> Value {
    let (verdict, detail) = words(look);
    let mut row = json!({
        "name": probe.name,
        "verdict": verdict,
        "detail": detail,
        "needed_for": probe.needed_for,
    });
    if verdict != FOUND {
        row["way_out"] = probe.way_out.into();
    }
    row
}

fn words(look: &io::Result<Finding>) -> (&'static str, String) {
    match look {
        Ok(Finding::Found(detail)) => (FOUND, detail.clone()),
        Ok(Finding::Missing(detail)) => ("missing", detail.clone()),
        Err(error) => ("unknown", format!("could not be tried: {error}")),
    }
}

const FOUND: &str = "found";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_out_is_shown_only_where_something_is_missing() {
        let probe = &PROBES[0];
        let looks = [
            (Ok(Finding::Found("here".into())), false),
            (Ok(Finding::Missing("gone".into())), true),
            (Err(io::Error::other("no /proc")), true),
        ];
        for (look, shows_way_out) in looks {
            let mut text = Vec::new();
            write_row(&mut text, probe, &look).expect("memory takes it");
            let text = String::from_utf8(text).expect("text");
            assert!(text.contains(probe.name) && text.contains(probe.needed_for), "{text}");
            assert_eq!(text.contains(probe.way_out), shows_way_out, "{text}");
            assert_eq!(to_json(probe, &look).get("way_out").is_some(), shows_way_out);
        }
    }
}
