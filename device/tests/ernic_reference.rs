//! Makes docs/reference/ernic.md from the register table, and keeps it in step: the test fails where
//! the page is stale, and `SOFTRNIC_WRITE_REFERENCE=1 cargo test -p softrnic-device --test
//! ernic_reference` writes it.
#![allow(clippy::unwrap_used, reason = "a page that cannot be written should fail")]

use std::fmt::Write;
use std::fs;
use std::path::Path;

use softrnic_device::ernic::contradictions::CONTRADICTIONS;
use softrnic_device::ernic::explain::{self, WORDS};

use softrnic_device::ernic::{
    Field, LIMITS, Location, Map, Mark, Profile, ROWS, Register, Row, Section,
};

#[test]
fn the_reference_page_is_what_the_table_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/ernic.md");
    let page = page();
    if std::env::var_os("SOFTRNIC_WRITE_REFERENCE").is_some() {
        fs::write(&path, &page).unwrap();
        return;
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    let differ = page.lines().zip(found.lines()).find(|(a, b)| a != b);
    assert!(
        page == found,
        "docs/reference/ernic.md is stale, first at {differ:?}: run \
         SOFTRNIC_WRITE_REFERENCE=1 cargo test -p softrnic-device --test ernic_reference"
    );
}

fn page() -> String {
    let mut out = String::from(HEAD);
    for profile in Profile::ALL {
        let slot = match profile.first_slot_qp {
            0 => "i * 0x100",
            _ => "(i-1) * 0x100",
        };
        let resets: Vec<_> = profile
            .resets
            .iter()
            .map(|(register, value)| format!("{} {}", register.row().name, hex(*value)))
            .collect();
        let resets = if resets.is_empty() { "as below".to_owned() } else { resets.join(", ") };
        let base = format!("0x{:02X}_{:04X}", profile.qp_base >> 16, profile.qp_base & 0xFFFF);
        writeln!(out, "| `{}` | {} | {base} + {slot} | {resets} |", profile.name, profile.text)
            .unwrap();
    }
    moved(&mut out);
    let mut heading = "";
    for row in ROWS {
        if row.section.name() != heading {
            heading = row.section.name();
            index(&mut out, heading);
        }
    }
    out.push_str("\n## Fields\n");
    ROWS.iter().for_each(|row| fields(&mut out, row));
    words(&mut out);
    limits(&mut out);
    contradictions(&mut out);
    out
}

const HEAD: &str = "\
# ERNIC, register by register

Made from the register table of `softrnic-device` by its test `ernic_reference`; do not edit. `rnic regs` prints the same table,
`rnic explain NAME=VALUE` reads a value with it.

*Home* says where a value lives: the engine's queue pair or port, the face's own word, or computed when read. *Source* says
how sure we are: **stated** by the register space chapter of PG332 v4.0, **observed** on hardware or in AMD's own code, or
**chosen** by us where both are silent or contradict each other. Addresses are those of profile `v4.0`. What no field covers is
reserved: it reads 0 and writes to it are ignored. Addresses that are not listed read 0; accesses to them, and writes to
read-only registers, are counted (`register_unlisted`, `register_read_only`).

| profile | what it follows | registers of queue pair i | reset values |
|---|---|---|---|
";

/// What a profile has elsewhere, or not at all.
fn moved(out: &mut String) {
    for profile in Profile::ALL {
        for register in profile.absent {
            writeln!(out, "\nProfile `{}` has no {}.", profile.name, register.row().name).unwrap();
        }
        if profile.moved.is_empty() {
            continue;
        }
        writeln!(out, "\n| in `{}` | is the table's |\n|---|---|", profile.name).unwrap();
        let place = |register: Register, mask: u32| {
            let high = 31 - mask.leading_zeros() as u8;
            format!("{}[{}]", register.row().name, bits(high, mask.trailing_zeros() as u8))
        };
        for field in profile.moved {
            let (here, table) =
                (place(field.on, field.bits), place(field.register, field.table_bits));
            writeln!(out, "| {here} | {table} |").unwrap();
        }
    }
}

/// One line for each register of a section.
fn index(out: &mut String, heading: &str) {
    let rows: Vec<_> = ROWS.iter().filter(|row| row.section.name() == heading).collect();
    let title = heading[..1].to_uppercase() + &heading[1..];
    writeln!(out, "\n## {title}\n").unwrap();
    match rows[0].section {
        Section::Region => {
            out.push_str("Addresses of row 0; row n is at + n * 0x100, n = 0 to 2047.\n\n");
        }
        Section::Qp | Section::RcQp => out.push_str(
            "Addresses of the first queue pair that has the register: 1, or 2 where QP1 has not. The next one is at + 0x100.\n\n",
        ),
        Section::Global | Section::Status => {}
    }
    out.push_str(
        "| address | name | access | reset | source | meaning |\n|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let words = match row.words {
            1 => String::new(),
            words => format!(" {words} words."),
        };
        writeln!(
            out,
            "| {} | {} | {} | {} | {} | {}{words} |",
            address(row),
            row.name,
            row.access.name(),
            hex(row.reset()),
            row.mark.parts().0,
            cell(row.text),
        )
        .unwrap();
    }
}

fn fields(out: &mut String, row: &Row) {
    writeln!(out, "\n### {} ({})\n", row.name, address(row)).unwrap();
    let not_qp1 = if row.section == Section::RcQp { " Not for QP1." } else { "" };
    let (mark, why) = row.mark.parts();
    let why = if matches!(row.mark, Mark::Stated) { String::new() } else { format!(": {why}") };
    writeln!(out, "{}{not_qp1} *{mark}{why}*\n", row.text).unwrap();
    out.push_str("| bits | name | access | reset | home | meaning |\n|---|---|---|---|---|---|\n");
    for field in row.fields.iter().rev() {
        writeln!(
            out,
            "| {} | {} | {} | {:#x} | {} | {} |",
            bits(field.high, field.low),
            field.name,
            field.access.name(),
            field.reset,
            field.home.name(),
            cell(&meaning(field)),
        )
        .unwrap();
    }
}

fn meaning(field: &Field) -> String {
    let codes: Vec<_> =
        field.codes.iter().map(|(code, meaning)| format!("{code:#x} {meaning}")).collect();
    match codes.len() {
        0 => field.text.to_owned(),
        _ => format!("{}: {}", field.text, codes.join("; ")),
    }
}

fn words(out: &mut String) {
    out.push_str("\n## Entries, keys and codes\n");
    for word in WORDS {
        let told = explain::word(word, None);
        writeln!(out, "\n### {}, {} bits\n", told.name, told.width).unwrap();
        writeln!(out, "{} *{}*\n", told.text, told.source).unwrap();
        out.push_str("| bits | name | meaning |\n|---|---|---|\n");
        for field in told.fields {
            let one_bit = field.high == field.low;
            let codes: Vec<_> = field
                .codes
                .iter()
                .map(|code| match one_bit {
                    true => code.cause.to_string(),
                    false => format!("{:#x} {}", code.value, code.meaning),
                })
                .collect();
            let codes =
                if codes.is_empty() { String::new() } else { format!(": {}", codes.join("; ")) };
            let text = format!("{}{codes}", field.text);
            writeln!(out, "| {} | {} | {} |", bits(field.high, field.low), field.name, cell(&text))
                .unwrap();
        }
    }
}

/// What the device does not do, and what happens there.
fn limits(out: &mut String) {
    out.push_str("\n## Limits\n\n| what | bound | beyond it | source |\n|---|---|---|---|\n");
    for row in LIMITS {
        let (mark, why) = row.mark.parts();
        let why = if why.is_empty() { String::new() } else { format!(": {why}") };
        writeln!(
            out,
            "| {} | {} | {} | {mark}{why} |",
            row.name,
            cell(row.limit),
            cell(row.reaction)
        )
        .unwrap();
    }
}

fn contradictions(out: &mut String) {
    out.push_str(
        "\n## Where documents contradict each other\n\n\
         | | registers | where | what does not fit | what this model does |\n|---|---|---|---|---|\n",
    );
    for (i, row) in CONTRADICTIONS.iter().enumerate() {
        let names: Vec<_> = row.registers.iter().map(|register| register.row().name).collect();
        writeln!(
            out,
            "| {} | {} | {} | {} | {} |",
            i + 1,
            names.join(", "),
            cell(row.place),
            cell(row.problem),
            cell(row.choice),
        )
        .unwrap();
    }
}

/// A vertical bar would end the cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn bits(high: u8, low: u8) -> String {
    if high == low { format!("{low}") } else { format!("{high}:{low}") }
}

fn hex(value: u32) -> String {
    format!("0x{:04X}_{:04X}", value >> 16, value & 0xFFFF)
}

fn address(row: &Row) -> String {
    let map = Map { profile: Profile::V4_0, num_qp: 2048 };
    let index = match row.section {
        Section::Region | Section::Global | Section::Status => 0,
        Section::Qp => 1,
        Section::RcQp => 2,
    };
    let at = Location { register: row.register, index };
    let offset = map.offset(at);
    assert_eq!(map.locate(offset), Some(at));
    format!("0x{:02X}_{:04X}", offset >> 16, offset & 0xFFFF)
}
