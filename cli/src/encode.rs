//! `rnic encode`: named fields to the bytes that a device reads.
//!
//! So far Hermon queue pair contexts. Names, widths and codes come from the context table.

use std::fs;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail, ensure};
use serde_json::Value;
use softrnic_device::mlx4::context::{CONTEXT_LEN, QpContext, ROWS, find};
use softrnic_device::mlx4::field::{Row, Values};

use crate::names::{nearest, number};

/// What to encode, and where to.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A Hermon queue pair context as JSON; "-" reads standard input. What `rnic decode --qpc --json`
    /// prints, or an object of names and values: {"st": "RC", "pd": 18, "mtu": "0x3"}. Fields that are not
    /// named are 0
    #[arg(long, value_name = "FILE.json")]
    qpc: PathBuf,

    /// Write the bytes to this file instead of printing them in hexadecimal
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let name = args.qpc.display().to_string();
    let mut text = String::new();
    if args.qpc.as_os_str() == "-" {
        io::stdin().read_to_string(&mut text).context("standard input")?;
    } else {
        text = fs::read_to_string(&args.qpc).with_context(|| format!("cannot read {name}"))?;
    }
    let context = context(&text).with_context(|| name)?;
    let bytes = context.to_bytes();
    match &args.output {
        Some(path) => {
            fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
        }
        None => print(&bytes, &mut io::stdout().lock())?,
    }
    Ok(ExitCode::SUCCESS)
}

fn print(bytes: &[u8; CONTEXT_LEN], out: &mut impl Write) -> io::Result<()> {
    for (i, line) in bytes.chunks(16).enumerate() {
        write!(out, "{:04x}:", 16 * i)?;
        for byte in line {
            write!(out, " {byte:02x}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// A context from JSON text.
pub(crate) fn context(text: &str) -> anyhow::Result<QpContext> {
    let json: Value = serde_json::from_str(text)?;
    let pairs: Vec<(String, &Value)> = match json.get("fields").unwrap_or(&json) {
        Value::Object(map) => map.iter().map(|(name, value)| (name.clone(), value)).collect(),
        Value::Array(list) => list.iter().map(named).collect::<anyhow::Result<_>>()?,
        other => bail!("expected names and values, found {other}"),
    };
    let mut context = QpContext::default();
    let mut seen = Vec::new();
    for (name, value) in pairs {
        let row = find(&name).ok_or_else(|| unknown(&name))?;
        ensure!(!seen.contains(&name), "{name} is given twice");
        seen.push(name);
        context.write(row, value_of(row, value)?);
    }
    Ok(context)
}

/// An entry of the list that `rnic decode --qpc --json` prints.
fn named(entry: &Value) -> anyhow::Result<(String, &Value)> {
    match (entry.get("name").and_then(Value::as_str), entry.get("value")) {
        (Some(name), Some(value)) => Ok((name.into(), value)),
        _ => Err(anyhow!("an entry of \"fields\" needs name and value: {entry}")),
    }
}

fn unknown(name: &str) -> anyhow::Error {
    let names: Vec<String> = ROWS.iter().map(|row| row.full_name().to_string()).collect();
    let near = nearest(name, names.iter().map(String::as_str));
    let hint = match near.first() {
        Some(near) => format!("; did you mean {near}?"),
        None => String::new(),
    };
    anyhow!("no field is called {name:?}{hint}")
}

/// A number, text of one, or the name of a code.
fn value_of(row: &Row, value: &Value) -> anyhow::Result<u32> {
    let name = row.full_name();
    let found = match value {
        Value::Bool(flag) => Some(u64::from(*flag)),
        Value::Number(_) => value.as_u64(),
        Value::String(text) => code(row, text).or_else(|| number(text)),
        // What an object of fields would have.
        Value::Object(_) => value.get("value").and_then(Value::as_u64),
        _ => None,
    };
    let Some(found) = found else {
        let codes = match row.values {
            Values::Codes(codes) => {
                let names: Vec<_> = codes.iter().map(|code| code.name).collect();
                format!(", or one of {}", names.join(", "))
            }
            _ => String::new(),
        };
        bail!("{name} is {value}; it takes a number{codes}")
    };
    u32::try_from(found).ok().filter(|&found| found <= row.max()).ok_or_else(|| {
        anyhow!("{name} is {found:#x}; its {} bits hold {:#x} at most", row.width(), row.max())
    })
}

fn code(row: &Row, text: &str) -> Option<u64> {
    let Values::Codes(codes) = row.values else { return None };
    let code = codes.iter().find(|code| code.name.eq_ignore_ascii_case(text))?;
    Some(code.value.into())
}
