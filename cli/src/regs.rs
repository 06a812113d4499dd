//! `rnic regs`: the ERNIC register map for people, printed from the register table.
//!
//! Knows how to print and parse a question; what a register is stands in the table.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Result, bail};
use serde_json::{Value, json};
use softrnic_device::ernic::registers::MAP_LEN;
use softrnic_device::ernic::{Field, Location, Map, Profile, ROWS, Register, Row, Section};

use crate::names::{nearest, number};

/// C_NUM_QP of the map that is shown: the largest that can be built.
pub(crate) const NUM_QP: u16 = 2048;

/// What to show.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A register's name (RQINTSTS3 for one word of a bank), or an offset (0x18_0030 or decimal)
    #[arg(value_name = "NAME|OFFSET")]
    what: Option<String>,
    /// Whose reading of the register space
    #[arg(long, default_value = Profile::V4_0.name, value_parser = profile)]
    profile: Profile,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn profile(name: &str) -> Result<Profile, String> {
    let names = Profile::ALL.map(|profile| profile.name).join(", ");
    Profile::by_name(name).copied().ok_or_else(|| format!("the profiles are {names}"))
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let map = Map { profile: args.profile, num_qp: NUM_QP };
    let mut out = io::BufWriter::new(io::stdout().lock());
    match args.what.as_deref().map(question).transpose()? {
        None if args.json => print_json(&mut out, &map_json(&map))?,
        None => print_map(&mut out, &map)?,
        Some(Question::Register(register, word)) => {
            if args.json {
                print_json(&mut out, &register_json(&map, register.row()))?;
            } else {
                print_register(&mut out, &map, register, word)?;
            }
        }
        Some(Question::Offset(offset)) => {
            let at = map.locate(offset - offset % 4);
            if args.json {
                print_json(&mut out, &offset_json(&map, offset, at))?;
            } else {
                print_offset(&mut out, &map, offset, at)?;
            }
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

#[derive(Debug, PartialEq, Eq)]
enum Question {
    Register(Register, u16),
    Offset(u32),
}

fn question(text: &str) -> Result<Question> {
    if text.starts_with(|first: char| first.is_ascii_digit()) {
        return offset(text).map(Question::Offset);
    }
    if let Some((register, word)) = Register::by_name(text) {
        return Ok(Question::Register(register, word));
    }
    let near = nearest(text, ROWS.iter().map(|row| row.name));
    bail!("no register is called {text:?}; near it: {}", near.join(", "))
}

fn offset(text: &str) -> Result<u32> {
    match number(text) {
        Some(offset) if offset < MAP_LEN.into() => Ok(offset as u32),
        Some(_) => bail!("{text} is beyond the map, which ends at {}", address(MAP_LEN - 1)),
        None => bail!("{text:?} is neither an offset (0x18_0030, 1572912) nor a register's name"),
    }
}

// Text.

fn print_map(out: &mut impl Write, map: &Map) -> io::Result<()> {
    writeln!(out, "ERNIC registers, profile {}: {}", map.profile.name, map.profile.text)?;
    let mut heading = "";
    for row in ROWS.iter().filter(|row| map.count(row.register) != 0) {
        if row.section.name() != heading {
            heading = row.section.name();
            writeln!(out, "\n{heading}{}", array_note(map, row))?;
        }
        let first = first_location(row);
        writeln!(
            out,
            "  {}  {:<3}  {:#010x}  {:<28}  {}{}",
            address(map.offset(first)),
            row.access.name(),
            map.profile.reset(row.register),
            row.name,
            row.text,
            if row.words > 1 {
                format!(" {} words.", map.count(row.register))
            } else {
                String::new()
            },
        )?;
    }
    writeln!(out, "\nColumns: offset of the first, access, value after reset, name, meaning.")?;
    writeln!(out, "`rnic regs NAME` shows a register's fields, `rnic regs OFFSET` what is there.")
}

fn array_note(map: &Map, row: &Row) -> String {
    match row.section {
        Section::Global | Section::Status => String::new(),
        Section::Region => format!(": {} rows, 0x100 bytes each", map.count(row.register)),
        Section::Qp | Section::RcQp => {
            let slot = if map.profile.first_slot_qp == 0 { "i" } else { "(i-1)" };
            let base = address(map.profile.qp_base);
            format!(": {base} + {slot} * 0x100 for queue pair i = 1 .. {}", map.num_qp - 1)
        }
    }
}

fn print_register(
    out: &mut impl Write,
    map: &Map,
    register: Register,
    word: u16,
) -> io::Result<()> {
    let row = register.row();
    let first = first_location(row);
    let at = if row.words > 1 { Location { register, index: word } } else { first };
    let name = if row.words > 1 && word == 0 { row.name.into() } else { row.name_of_word(word) };
    writeln!(out, "{name}  {}", row.text)?;
    writeln!(out, "  section  {}", row.section.name())?;
    let place = match row.section {
        Section::Global | Section::Status if row.words == 1 => String::new(),
        Section::Global | Section::Status => {
            format!("  word {} of {}", word + 1, map.count(register))
        }
        Section::Region => format!(" + 0x100 x row, rows 0 .. {}", map.count(register) - 1),
        Section::Qp | Section::RcQp => {
            format!(" for queue pair {}, + 0x100 for each next", first.index)
        }
    };
    if at.index < map.count(register) || row.section.name() == Section::Qp.name() {
        writeln!(out, "  offset   {}{place}", address(map.offset(at)))?;
    } else {
        writeln!(out, "  offset   not in profile {}", map.profile.name)?;
    }
    print_row(out, map, row)
}

fn print_row(out: &mut impl Write, map: &Map, row: &Row) -> io::Result<()> {
    let (mark, why) = row.mark.parts();
    let why = if why.is_empty() { String::new() } else { format!(": {why}") };
    writeln!(out, "  access   {}", row.access.name())?;
    writeln!(out, "  reset    {:#010x}", map.profile.reset(row.register))?;
    writeln!(out, "  source   {mark}{why}")?;
    if row.section == Section::RcQp {
        writeln!(out, "  note     queue pair 1 does not have it")?;
    }
    for moved in map.profile.moved.iter().filter(|moved| moved.register == row.register) {
        let field = row.fields.iter().find(|field| field.mask() == moved.table_bits);
        let (high, low) = (31 - moved.bits.leading_zeros(), moved.bits.trailing_zeros());
        writeln!(
            out,
            "  note     profile {} has {} in {}[{high}:{low}]",
            map.profile.name,
            field.map_or("it", |field| field.name),
            moved.on.row().name,
        )?;
    }
    writeln!(out, "  fields")?;
    for field in row.fields {
        writeln!(
            out,
            "    {:>7}  {:<18} {:<21}  {:<8}  {}",
            bits(field),
            field.name,
            field.access.name(),
            field.home.name(),
            field.text,
        )?;
        for (code, meaning) in field.codes {
            writeln!(out, "             {code:#x} = {meaning}")?;
        }
    }
    Ok(())
}

fn print_offset(
    out: &mut impl Write,
    map: &Map,
    offset: u32,
    at: Option<Location>,
) -> io::Result<()> {
    let Some(at) = at else {
        return writeln!(
            out,
            "{}  not listed in profile {}: reads 0, a write is ignored, both are counted",
            address(offset),
            map.profile.name,
        );
    };
    let row = at.register.row();
    let owner = owner(at).map_or(String::new(), |(kind, number)| format!("{kind} {number}, "));
    let name = row.name_of_word(if row.words > 1 { at.index } else { 0 });
    writeln!(out, "{}  {owner}{name}  {}", address(offset), row.text)?;
    if !offset.is_multiple_of(4) {
        writeln!(
            out,
            "  note     byte {} of the word at {}; only whole words can be accessed",
            offset % 4,
            address(offset - offset % 4),
        )?;
    }
    print_row(out, map, row)
}

/// Which element of an array a register belongs to.
pub(crate) fn owner(at: Location) -> Option<(&'static str, u16)> {
    match at.register.row().section {
        Section::Region => Some(("region", at.index)),
        Section::Global | Section::Status => None,
        Section::Qp | Section::RcQp => Some(("queue pair", at.index)),
    }
}

fn first_location(row: &Row) -> Location {
    let index = match row.section {
        Section::Region | Section::Global | Section::Status => 0,
        Section::Qp => 1,
        Section::RcQp => 2,
    };
    Location { register: row.register, index }
}

fn address(offset: u32) -> String {
    format!("0x{:02X}_{:04X}", offset >> 16, offset & 0xFFFF)
}

fn bits(field: &Field) -> String {
    if field.high == field.low {
        format!("[{}]", field.low)
    } else {
        format!("[{}:{}]", field.high, field.low)
    }
}

// JSON.

fn print_json(out: &mut impl Write, value: &Value) -> io::Result<()> {
    writeln!(out, "{value:#}")
}

fn map_json(map: &Map) -> Value {
    let there = ROWS.iter().filter(|row| map.count(row.register) != 0);
    let rows: Vec<_> = there.map(|row| register_json(map, row)).collect();
    json!({ "profile": map.profile.name, "num_qp": map.num_qp, "registers": rows })
}

fn register_json(map: &Map, row: &Row) -> Value {
    let first = first_location(row);
    let (mark, why) = row.mark.parts();
    let stride = match row.section {
        Section::Region | Section::Qp | Section::RcQp => 0x100,
        Section::Global | Section::Status => 4,
    };
    json!({
        "name": row.name,
        "section": row.section.name(),
        "offset": map.offset(first),
        "stride": stride,
        "count": map.count(row.register),
        "first": first.index,
        "access": row.access.name(),
        "reset": map.profile.reset(row.register),
        "text": row.text,
        "source": mark,
        "reason": why,
        "fields": row.fields.iter().map(field_json).collect::<Vec<_>>(),
    })
}

fn field_json(field: &Field) -> Value {
    let codes: Vec<_> = field
        .codes
        .iter()
        .map(|(code, meaning)| json!({ "value": code, "text": meaning }))
        .collect();
    json!({
        "name": field.name,
        "high": field.high,
        "low": field.low,
        "access": field.access.name(),
        "home": field.home.name(),
        "reset": field.reset,
        "text": field.text,
        "codes": codes,
    })
}

fn offset_json(map: &Map, offset: u32, at: Option<Location>) -> Value {
    json!({
        "profile": map.profile.name,
        "offset": offset,
        "listed": at.is_some(),
        "region": at.and_then(owner).filter(|(kind, _)| *kind == "region").map(|(_, n)| n),
        "queue_pair": at.and_then(owner).filter(|(kind, _)| *kind == "queue pair").map(|(_, n)| n),
        "word": at.filter(|at| at.register.row().words > 1).map(|at| at.index + 1),
        "register": at.map(|at| register_json(map, at.register.row())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_hex_with_underscores_or_decimal() {
        assert_eq!(offset("0x18_0030").unwrap(), 0x18_0030);
        assert_eq!(offset("1572912").unwrap(), 0x18_0030);
        assert!(offset("0x20_0000").unwrap_err().to_string().contains("beyond the map"));
        assert!(offset("99999999999").is_err());
        assert!(offset("0xG").is_err());
    }

    #[test]
    fn a_misspelt_name_is_answered_with_near_ones() {
        let error = question("CQHAED").unwrap_err().to_string();
        assert!(error.contains("CQHEAD"), "{error}");
    }
}
