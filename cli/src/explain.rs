//! `rnic explain`: what a number means that a driver printed, what causes it and what to do.
//!
//! Finds the table that knows a name and prints its answer. All that is said stands in the tables of
//! the engine and of the faces.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use serde_json::{Value, json};
use softrnic_device::ernic::{Map, Profile, ROWS, Register, explain as ernic};
use softrnic_engine::explain::{CodeMeaning, Explanation, FieldMeaning, WORDS, Word, same_name};
use softrnic_engine::{COUNTER_ROWS, REASON_ROWS};

use crate::names::{hex, nearest, number};
use crate::regs::{NUM_QP, owner, profile};

/// What to explain.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A register (by name or offset), queue entry, syndrome, status, timer code, reason or counter;
    /// with =VALUE (0x.., 0b.. or decimal), what that value says. Without any, the names there are
    #[arg(value_name = "NAME[=VALUE]")]
    what: Vec<String>,
    /// Whose reading of the register space: where registers and some of their fields are
    #[arg(long, default_value = Profile::V4_0.name, value_parser = profile)]
    profile: Profile,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

type Explain = fn(&Word, Option<u64>) -> Explanation;

/// Every table of words, and what explains its words; a face adds its own here.
const TABLES: &[(&str, &[Word], Explain)] = &[
    ("ERNIC's entries and keys", ernic::WORDS, ernic::word),
    ("InfiniBand and verbs", WORDS, Word::explain),
];

fn words() -> impl Iterator<Item = (&'static Word, Explain)> {
    TABLES.iter().flat_map(|(_, words, explain)| words.iter().map(|word| (word, *explain)))
}

/// Words that are one field: the name of a value says which of them is meant.
fn values() -> impl Iterator<Item = (&'static Word, Explain)> {
    words().filter(|(word, _)| word.fields.len() == 1)
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let map = Map { profile: args.profile, num_qp: NUM_QP };
    let mut answers = Vec::new();
    for question in &args.what {
        answers.extend(answer(&map, question)?);
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.json {
        let answers: Vec<_> = answers.iter().map(to_json).collect();
        let value = if args.what.is_empty() { names_json() } else { json!(answers) };
        writeln!(out, "{value:#}")?;
    } else if args.what.is_empty() {
        print_names(&mut out)?;
    } else {
        for (i, answer) in answers.iter().enumerate() {
            if i > 0 {
                writeln!(out)?;
            }
            print(&mut out, answer)?;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// What every table that knows the name says.
fn answer(map: &Map, question: &str) -> Result<Vec<Explanation>> {
    let (name, value) = match question.split_once('=') {
        None => (question.trim(), None),
        Some((name, text)) => {
            let value = number(text).ok_or_else(|| {
                anyhow!("{text:?} is no number: write 0x6000_0601, 0b101 or 1611)",)
            });
            (name.trim(), Some(value?))
        }
    };
    let known = meanings(map, name, value);
    if known.is_empty() {
        let near = nearest(name, names());
        bail!("nothing is called {name:?}; near it: {}", near.join(", "));
    }
    let Some(value) = value else { return Ok(known) };
    let widest = known.iter().map(|answer| answer.width).max().unwrap_or(0);
    let fits: Vec<_> = known.into_iter().filter(|answer| fits(value, answer.width)).collect();
    if fits.is_empty() {
        bail!("{name} has {widest} bits, and {value:#x} does not fit");
    }
    Ok(fits)
}

/// A width of 0 is a count's, and anything fits.
fn fits(value: u64, width: u8) -> bool {
    width == 0 || width >= 64 || value >> width == 0
}

fn meanings(map: &Map, name: &str, value: Option<u64>) -> Vec<Explanation> {
    let mut found: Vec<_> = words()
        .filter(|(word, _)| word.is_called(name))
        .map(|(word, explain)| explain(word, value))
        .collect();
    if let Some(at) = number(name).and_then(|offset| u32::try_from(offset).ok()) {
        found.extend(map.locate(at).map(|at| {
            let word = if at.register.row().words > 1 { at.index } else { 0 };
            let mut told =
                ernic::register(&map.profile, at.register, word, value.map(|value| value as u32));
            told.value = value;
            if let Some((kind, number)) = owner(at) {
                told.name = format!("{kind} {number}, {}", told.name);
            }
            told
        }));
    }
    if let Some((register, word)) = Register::by_name(name) {
        let mut told =
            ernic::register(&map.profile, register, word, value.map(|value| value as u32));
        told.value = value;
        found.push(told);
    }
    found.extend(REASON_ROWS.iter().filter(|row| same_name(row.name, name)).map(|row| {
        let hint = ernic::hint(row.reason).map(|hint| format!(" ERNIC: {hint}."));
        let advice = format!("{}{}", row.advice, hint.unwrap_or_default());
        count(row.name, value, row.text, "a reason for a refusal", advice)
    }));
    found.extend(COUNTER_ROWS.iter().filter(|row| same_name(row.name, name)).map(|row| {
        let source = "a counter of a queue pair or of the device";
        count(row.name, value, row.text, source, String::new())
    }));
    // By the name of one value: IBV_WC_RETRY_EXC_ERR.
    if value.is_none() && found.is_empty() {
        for (word, explain) in values() {
            let code = word.fields[0].codes.iter().find(|code| same_name(code.name, name));
            found.extend(code.map(|code| explain(word, Some(code.value))));
        }
    }
    found
}

fn count(
    name: &str,
    value: Option<u64>,
    text: &'static str,
    source: &'static str,
    advice: String,
) -> Explanation {
    Explanation {
        name: name.into(),
        width: 0,
        value,
        text: text.into(),
        source: source.into(),
        advice: advice.into(),
        fields: Vec::new(),
        reserved: 0,
    }
}

/// Everything that can be asked for.
fn names() -> impl Iterator<Item = &'static str> {
    let codes = values().flat_map(|(word, _)| word.fields[0].codes);
    words()
        .flat_map(|(word, _)| [word.name].into_iter().chain(word.aliases.iter().copied()))
        .chain(ROWS.iter().map(|row| row.name))
        .chain(REASON_ROWS.iter().map(|row| row.name))
        .chain(COUNTER_ROWS.iter().map(|row| row.name))
        .chain(codes.map(|code| code.name).filter(|name| !name.contains(' ')))
}

// Text.

/// Columns of the texts.
const WIDTH: usize = 100;

fn print(out: &mut impl Write, answer: &Explanation) -> io::Result<()> {
    write!(out, "{}", answer.name)?;
    match answer.value {
        Some(value) if answer.width == 0 => write!(out, " = {value}")?,
        Some(value) => write!(out, " = {}", hex(value, answer.width))?,
        None => {}
    }
    writeln!(out, "  {}", answer.text)?;
    labelled(out, 2, "source", &answer.source)?;
    labelled(out, 2, "do", &answer.advice)?;
    for field in &answer.fields {
        print_field(out, field)?;
    }
    if answer.reserved != 0 {
        let bits = hex(answer.reserved, answer.width);
        let text = format!("{bits} is set in reserved bits, which mean nothing");
        labelled(out, 2, "note", &text)?;
    }
    Ok(())
}

fn print_field(out: &mut impl Write, field: &FieldMeaning) -> io::Result<()> {
    let width = field.high - field.low + 1;
    let value = match field.value {
        None => String::new(),
        Some(value) if value < 10 => value.to_string(),
        Some(value) => format!("{} = {value}", hex(value, width)),
    };
    let told = if field.value.is_some() { field.codes.first() } else { None };
    let meaning = told.map_or("", |code| &code.meaning);
    let colon = if meaning.is_empty() { "" } else { ": " };
    let bits = place(field);
    let lead = format!("  {bits:>7}  {:<18} {value:<12}", field.name);
    writeln!(out, "{}  {}{colon}{meaning}", lead.trim_end(), field.text)?;
    match told {
        Some(code) => print_code(out, code),
        None => field.codes.iter().try_for_each(|code| {
            let value = if width == 1 { code.value.to_string() } else { hex(code.value, width) };
            writeln!(out, "{:11}{value} = {}", "", code.meaning)?;
            print_code(out, code)
        }),
    }
}

fn print_code(out: &mut impl Write, code: &CodeMeaning) -> io::Result<()> {
    labelled(out, 13, "cause", &code.cause)?;
    labelled(out, 13, "do", &code.advice)
}

fn place(field: &FieldMeaning) -> String {
    match (field.high, field.low) {
        (high, low) if high == low => format!("[{low}]"),
        (high, low) => format!("[{high}:{low}]"),
    }
}

/// A labelled text in lines that are not too long; nothing where there is no text.
fn labelled(out: &mut impl Write, indent: usize, label: &str, text: &str) -> io::Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    let mut line = format!("{:indent$}{label:<6}", "");
    let mut fresh = true;
    for word in text.split(' ') {
        if !fresh && line.len() + 1 + word.len() > WIDTH {
            writeln!(out, "{line}")?;
            line = " ".repeat(indent + 6);
        }
        line.push(' ');
        line.push_str(word);
        fresh = false;
    }
    writeln!(out, "{line}")
}

fn print_names(out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "`rnic explain NAME=VALUE` says what a value means, `rnic explain NAME` what there is.\n"
    )?;
    for (title, words, _) in TABLES {
        writeln!(out, "{title}")?;
        for word in *words {
            writeln!(out, "  {:<16}{}", word.name, word.text)?;
        }
    }
    writeln!(out, "ERNIC's registers: {}, by name or offset; `rnic regs` lists them", ROWS.len())?;
    writeln!(
        out,
        "reasons for refusals: {}, as `rnic run` and captures name them",
        REASON_ROWS.len()
    )?;
    writeln!(out, "counters: {}, as `rdma statistic` names them", COUNTER_ROWS.len())
}

// JSON.

fn names_json() -> Value {
    json!(names().collect::<Vec<_>>())
}

fn to_json(answer: &Explanation) -> Value {
    json!({
        "name": answer.name,
        "width": answer.width,
        "value": answer.value,
        "text": answer.text,
        "source": answer.source,
        "advice": answer.advice,
        "reserved": answer.reserved,
        "fields": answer.fields.iter().map(field_json).collect::<Vec<_>>(),
    })
}

fn field_json(field: &FieldMeaning) -> Value {
    let codes: Vec<_> = field
        .codes
        .iter()
        .map(|code| {
            json!({
                "value": code.value,
                "meaning": code.meaning,
                "cause": code.cause,
                "advice": code.advice,
            })
        })
        .collect();
    json!({
        "name": field.name,
        "high": field.high,
        "low": field.low,
        "text": field.text,
        "value": field.value,
        "codes": codes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(question: &str) -> Result<Vec<Explanation>> {
        answer(&Map { profile: Profile::V4_0, num_qp: NUM_QP }, question)
    }

    #[test]
    fn every_name_that_is_offered_has_an_answer() {
        for name in names() {
            assert!(!ask(name).unwrap().is_empty(), "{name}");
        }
    }

    #[test]
    fn a_value_that_does_not_fit_is_refused_and_not_cut() {
        let error = ask("STATQP=0x1_0000_0000").unwrap_err().to_string();
        assert!(error.contains("32 bits"), "{error}");
        assert!(ask("0x18_0188=0x1_0000_0000").is_err());
        assert!(ask("NAK=32").is_err());
    }

    #[test]
    fn long_texts_are_broken_between_words() {
        let mut out = Vec::new();
        let text = "word ".repeat(60);
        labelled(&mut out, 4, "do", text.trim()).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert!(out.lines().count() > 2 && out.lines().all(|line| line.len() <= WIDTH), "{out}");
    }
}
