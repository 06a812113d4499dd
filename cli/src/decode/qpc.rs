//! `rnic decode --qpc`: a Hermon queue pair context, ours or from a card or a driver, field by field.
//!
//! Prints what the context table says; it must not know a field itself.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use serde::Serialize;
use softrnic_device::mlx4::context::{CONTEXT_LEN, QpContext};
use softrnic_device::mlx4::remarks::{remarks, reserved_bits_set};
use softrnic_device::mlx4::transitions::MASK_BITS;

use super::dump;

/// Order of the bytes in a 32-bit word of the dump.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Words {
    /// As in memory, or words that a driver has converted from big endian
    Big,
    /// Words as a little-endian machine reads them from memory: each is turned round
    Little,
}

/// A context and what came with it.
struct Found {
    context: QpContext,
    mask: Option<u32>,
    /// Remarks about the bytes themselves.
    notes: Vec<String>,
}

/// Decodes a file, standard input ("-") or hexadecimal text.
pub(crate) fn run(
    what: &str,
    words: Words,
    mailbox: bool,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let (bytes, before) = bytes(what)?;
    let found = parse(bytes, before, words, mailbox)?;
    if json {
        print_json(&found, out)?
    } else {
        print(&found, out)?
    }
    Ok(())
}

/// Bytes of the argument, and a word that stood before the dump.
fn bytes(what: &str) -> anyhow::Result<(Vec<u8>, Option<u32>)> {
    let (name, raw) = if what == "-" {
        let mut raw = Vec::new();
        io::stdin().read_to_end(&mut raw).context("standard input")?;
        ("standard input", raw)
    } else if Path::new(what).is_file() {
        (what, fs::read(what).with_context(|| format!("cannot read {what}"))?)
    } else {
        ensure!(
            what.trim_start().starts_with(|c: char| c.is_ascii_hexdigit() || c == '['),
            "--qpc: there is no file {what:?}, and it is not hexadecimal text"
        );
        ("--qpc", what.as_bytes().to_vec())
    };
    // A context holds zero bytes, and text does not.
    match str::from_utf8(&raw) {
        Ok(text) if !raw.contains(&0) => {
            let dump = dump::read(text).context(name.to_string())?;
            Ok((dump.bytes, dump.before))
        }
        _ => Ok((raw, None)),
    }
}

fn parse(
    mut bytes: Vec<u8>,
    before: Option<u32>,
    words: Words,
    mailbox: bool,
) -> anyhow::Result<Found> {
    if words == Words::Little {
        bytes.as_chunks_mut::<4>().0.iter_mut().for_each(|word| word.reverse());
    }
    let (mut notes, mut mask) = (Vec::new(), before);
    if mailbox {
        let Some((head, rest)) = bytes.split_first_chunk::<8>() else {
            bail!(
                "a command's box begins with 8 bytes before the context; these are {}",
                bytes.len()
            )
        };
        let &[a, b, c, d, ..] = head;
        mask = Some(u32::from_be_bytes([a, b, c, d]));
        bytes = rest.to_vec();
    }
    let Some((context, rest)) = bytes.split_first_chunk::<CONTEXT_LEN>() else {
        let missing = CONTEXT_LEN - bytes.len();
        bail!(
            "a context has {CONTEXT_LEN} bytes; these are {}: {missing} are missing, from word {} on",
            bytes.len(),
            bytes.len() / 4
        )
    };
    if rest.iter().any(|&byte| byte != 0) {
        let hint = if mailbox { "" } else { "; if this is a command's box, add --mailbox" };
        bail!("{} bytes more than a context has, and not all are 0{hint}", rest.len());
    }
    if !rest.is_empty() {
        notes.push(format!("{} bytes of 0 behind the context are left out", rest.len()));
    }
    let context = QpContext::from_bytes(context);
    if !mailbox && context.words()[..2] == [0, 0] && context.words()[2] != 0 {
        notes.push("words 0 and 1 are 0: if this is a command's box, add --mailbox".into());
    }
    let mut turned = context;
    turned.words_mut().iter_mut().for_each(|word| *word = word.swap_bytes());
    if reserved_bits_set(&context) > 4 && reserved_bits_set(&turned) == 0 {
        let other = if words == Words::Big { "little" } else { "big" };
        notes.push(format!("these bytes look turned round: try --words {other}"));
    }
    Ok(Found { context, mask, notes })
}

fn print(found: &Found, out: &mut impl Write) -> io::Result<()> {
    let context = &found.context;
    writeln!(out, "{} queue pair in {}", context.service(), context.state())?;
    if let Some(mask) = found.mask {
        let named = MASK_BITS.iter().filter(|bit| mask >> bit.bit & 1 == 1).map(|bit| bit.name);
        let names: Vec<_> = named.collect();
        writeln!(out, "opt_param_mask {mask:#010x}  {}", names.join(" "))?;
    }
    writeln!(out)?;
    for (row, value) in context.fields().filter(|(row, _)| !row.is_reserved()) {
        let bits = if row.high == row.low {
            format!("[{}]", row.low)
        } else {
            format!("[{}:{}]", row.high, row.low)
        };
        let meaning = row.values.meaning(value).unwrap_or_default();
        let number = row.values.number(value);
        let line =
            format!("{:3} {bits:<8} {:<42} {number:<12} {meaning}", row.word, row.full_name());
        writeln!(out, "{}", line.trim_end())?;
    }
    let remarks = remarks(context);
    if !(remarks.is_empty() && found.notes.is_empty()) {
        writeln!(out, "\nremarks")?;
    }
    for note in &found.notes {
        writeln!(out, "  {note}")?;
    }
    for remark in remarks {
        writeln!(out, "  {}: {}", remark.field, remark.text)?;
    }
    Ok(())
}

#[derive(Serialize)]
struct JsonContext {
    service: String,
    state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    opt_param_mask: Option<u32>,
    /// Every field, and reserved bits that are set: `rnic encode --qpc` makes the same bytes of it.
    fields: Vec<JsonField>,
    notes: Vec<String>,
    remarks: Vec<JsonRemark>,
}

#[derive(Serialize)]
struct JsonField {
    name: String,
    linux: String,
    word: u8,
    high: u8,
    low: u8,
    owner: &'static str,
    value: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    meaning: Option<String>,
}

#[derive(Serialize)]
struct JsonRemark {
    field: String,
    text: String,
}

fn print_json(found: &Found, out: &mut impl Write) -> anyhow::Result<()> {
    let context = &found.context;
    let shown = context.fields().filter(|(row, value)| !row.is_reserved() || *value != 0);
    let fields = shown.map(|(row, value)| JsonField {
        name: row.full_name().to_string(),
        linux: row.linux_name(),
        word: row.word,
        high: row.high,
        low: row.low,
        owner: row.owner.name(),
        value,
        meaning: row.values.meaning(value),
    });
    let remarks = remarks(context).into_iter();
    let json = JsonContext {
        service: context.service().to_string(),
        state: context.state().to_string(),
        opt_param_mask: found.mask,
        fields: fields.collect(),
        notes: found.notes.clone(),
        remarks: remarks
            .map(|remark| JsonRemark { field: remark.field.to_string(), text: remark.text })
            .collect(),
    };
    serde_json::to_writer_pretty(&mut *out, &json)?;
    writeln!(out)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Bytes to JSON to bytes, reserved bits too.
        #[test]
        fn t_40_any_context_survives_json(bytes in prop::collection::vec(any::<u8>(), CONTEXT_LEN)) {
            let found = parse(bytes.clone(), None, Words::Big, false).unwrap();
            let mut json = Vec::new();
            print_json(&found, &mut json).unwrap();
            let again = crate::encode::context(str::from_utf8(&json).unwrap()).unwrap();
            prop_assert_eq!(&again.to_bytes()[..], &bytes[..]);
        }
    }
}
