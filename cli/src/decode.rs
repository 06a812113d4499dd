//! `rnic decode`: frames from a capture or from hexadecimal text as trees of named fields, and (`qpc`)
//! queue pair contexts.
//!
//! Prints what `softrnic_engine::packet::tree` and, of management datagrams, `softrnic_host::cm` say; it must
//! not know a header itself.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use serde::Serialize;
use softrnic_engine::packet::tree::{Node, Tree, Value};
use softrnic_host::capture::{CapturedPacket, Reader};
use softrnic_host::cm::message;

mod dump;
mod hexdump;
mod qpc;

/// What to decode, and how to print it.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A pcap or pcapng file; "-" reads standard input
    #[arg(value_name = "FILE", required_unless_present_any = ["hex", "qpc"], conflicts_with_all = ["hex", "qpc"])]
    file: Option<PathBuf>,

    /// One Ethernet frame without FCS as hexadecimal text; "-" reads the text from standard input.
    /// Spaces, colons, 0x, newlines and the offset columns of hex dumps are allowed
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true)]
    hex: Option<String>,

    /// A Hermon (ConnectX, mlx4) queue pair context: a file with its 248 bytes or with a dump of them,
    /// hexadecimal text, or "-". Dumps may have offset columns, 32-bit words and log prefixes
    #[arg(long, value_name = "FILE|HEX", conflicts_with = "hex", allow_hyphen_values = true)]
    qpc: Option<String>,

    /// Byte order of the 32-bit words of a context's dump
    #[arg(long, value_enum, default_value = "big", requires = "qpc")]
    words: qpc::Words,

    /// The context stands in a command's box, behind opt_param_mask and a reserved word
    #[arg(long, requires = "qpc")]
    mailbox: bool,

    /// One JSON object a line and frame; one for a context
    #[arg(long)]
    json: bool,
}

/// Decodes what the arguments name. The exit status is 1 where a capture ends in damage.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut out = BufWriter::new(io::stdout().lock());
    if let Some(what) = &args.qpc {
        let outcome = qpc::run(what, args.words, args.mailbox, args.json, &mut out);
        out.flush()?;
        return outcome.map(|()| ExitCode::SUCCESS);
    }
    let outcome = match (&args.hex, &args.file) {
        (Some(text), _) => decode_hex(text, args.json, &mut out),
        (None, Some(path)) if path.as_os_str() == "-" => {
            decode_capture(io::stdin().lock(), "standard input", args.json, &mut out)
        }
        (None, Some(path)) => {
            let name = path.display().to_string();
            let file = File::open(path).with_context(|| format!("cannot open {name}"))?;
            decode_capture(file, &name, args.json, &mut out)
        }
        (None, None) => bail!("name a capture file, or give bytes with --hex"),
    };
    // What could be decoded is printed before the error that ends it.
    out.flush()?;
    outcome.map(|()| ExitCode::SUCCESS)
}

fn decode_hex(text: &str, json: bool, out: &mut impl Write) -> anyhow::Result<()> {
    let mut from_stdin = String::new();
    let text = if text == "-" {
        if io::stdin().is_terminal() {
            eprintln!("reading hexadecimal text until end of file (Ctrl-D)");
        }
        io::stdin().read_to_string(&mut from_stdin).context("standard input")?;
        &from_stdin
    } else {
        text
    };
    let frame = hexdump::bytes(text).context("--hex")?;
    let packet = CapturedPacket {
        interface: 0,
        time: None,
        original_len: frame.len().try_into().context("--hex: more than 4 GiB")?,
        frame,
        comments: Vec::new(),
    };
    print(1, &packet, None, json, out)?;
    Ok(())
}

fn decode_capture(
    input: impl Read,
    name: &str,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let mut reader = Reader::new(input).with_context(|| name.to_string())?;
    let mut number = 0;
    while let Some(packet) = reader.next() {
        let packet = packet.with_context(|| format!("{name}, after frame {number}"))?;
        number += 1;
        let interface = reader.interfaces().nth(packet.interface as usize);
        print(number, &packet, interface.map(|interface| interface.name.as_str()), json, out)?;
    }
    Ok(())
}

fn print(
    number: u64,
    packet: &CapturedPacket,
    interface: Option<&str>,
    json: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    let tree = message::decode_frame(&packet.frame);
    if json {
        serde_json::to_writer(&mut *out, &json_frame(number, packet, interface, &tree))?;
        return writeln!(out);
    }
    write!(out, "frame {number}: ")?;
    if packet.original_len as usize > packet.frame.len() {
        write!(out, "{} of {} bytes recorded", packet.frame.len(), packet.original_len)?;
    } else {
        write!(out, "{} bytes", packet.frame.len())?;
    }
    if let Some(time) = packet.time {
        write!(out, ", {}.{:09} s", time.0 / 1_000_000_000, time.0 % 1_000_000_000)?;
    }
    if let Some(name) = interface.filter(|name| !name.is_empty()) {
        write!(out, ", {name}")?;
    }
    write!(out, ": {}", tree.summary)?;
    if let Some(reason) = tree.refused {
        write!(out, ", refused: {reason}")?;
    }
    writeln!(out)?;
    for comment in &packet.comments {
        writeln!(out, "comment: {comment}")?;
    }
    writeln!(out, "{tree}")
}

#[derive(Serialize)]
struct JsonFrame<'a> {
    number: u64,
    time_ns: Option<u64>,
    interface: Option<&'a str>,
    recorded_len: usize,
    original_len: u32,
    comments: &'a [String],
    summary: &'a str,
    icrc: Option<JsonIcrc>,
    refused: Option<JsonReason>,
    tree: Vec<JsonNode<'a>>,
}

/// The ICRC's numbers as Wireshark prints them.
#[derive(Serialize)]
struct JsonIcrc {
    carried: u32,
    computed: u32,
    right: bool,
}

#[derive(Serialize)]
struct JsonReason {
    name: &'static str,
    text: &'static str,
}

/// `value` is a number, or text where the field is an address or a run of bytes; `text` is what people
/// read.
#[derive(Serialize)]
struct JsonNode<'a> {
    name: &'static str,
    offset: usize,
    length: usize,
    /// Highest and lowest bit in the big-endian number of these bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    bits: Option<(u8, u8)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "str::is_empty")]
    note: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    children: Vec<JsonNode<'a>>,
}

fn json_frame<'a>(
    number: u64,
    packet: &'a CapturedPacket,
    interface: Option<&'a str>,
    tree: &'a Tree,
) -> JsonFrame<'a> {
    JsonFrame {
        number,
        time_ns: packet.time.map(|time| time.0),
        interface,
        recorded_len: packet.frame.len(),
        original_len: packet.original_len,
        comments: &packet.comments,
        summary: &tree.summary,
        icrc: tree.icrc.map(|verdict| JsonIcrc {
            carried: verdict.carried,
            computed: verdict.computed,
            right: verdict.is_right(),
        }),
        refused: tree.refused.map(|reason| {
            let row = reason.row();
            JsonReason { name: row.name, text: row.text }
        }),
        tree: tree.nodes.iter().map(json_node).collect(),
    }
}

fn json_node(node: &Node) -> JsonNode<'_> {
    let (value, text) = match &node.value {
        Value::None => (None, None),
        Value::Number { value, .. } => (Some((*value).into()), Some(node.value.to_string())),
        Value::Text(text) => (Some(text.as_str().into()), None),
    };
    JsonNode {
        name: node.name,
        offset: node.offset,
        length: node.len,
        bits: node.bits,
        value,
        text,
        note: &node.note,
        children: node.children.iter().map(json_node).collect(),
    }
}
