//! Makes docs/reference/hermon-qp-context.md from the tables, and keeps it in step: the test fails where
//! the page is stale, and `SOFTRNIC_WRITE_REFERENCE=1 cargo test -p softrnic-device --test mlx4 reference`
//! writes it.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use softrnic_device::mlx4::codes::{
    Code, LinkType, Migration, MtuCode, QpState, RoceMode, ServiceType, StaticRate, TunnelMode,
};
use softrnic_device::mlx4::context::ROWS;
use softrnic_device::mlx4::field::{Origin, Row, Side};
use softrnic_device::mlx4::field_set::FieldSet;
use softrnic_device::mlx4::transitions::{COMMANDS, Effect, MASK_BITS, TAKEN};

#[test]
fn the_reference_page_is_what_the_tables_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/hermon-qp-context.md");
    let page = page();
    if std::env::var_os("SOFTRNIC_WRITE_REFERENCE").is_some() {
        fs::write(&path, &page).unwrap();
        return;
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    let differ = page.lines().zip(found.lines()).find(|(a, b)| a != b);
    assert!(
        page == found,
        "docs/reference/hermon-qp-context.md is stale, first at {differ:?}: run \
         SOFTRNIC_WRITE_REFERENCE=1 cargo test -p softrnic-device --test mlx4 reference"
    );
}

const HEAD: &str = "\
# The Hermon queue pair context, bit by bit

Made from the tables of `softrnic-device` by its test `mlx4`; do not edit. `rnic decode --qpc` reads a context with the same table,
`rnic encode --qpc` makes one.

A context is 248 bytes: 62 big-endian words. *Bits* are those of the word, 31 the highest. Names are those of the seed,
`hermonprm_queue_pair_ee_context_entry_st`, and of the structures that it is made of; where only Linux names bits, Linux's. *Seed* is
the field there that the bits belong to, where it has another name. *Owner* says where a value lives:

- **engine**: read from the engine's queue pair and applied to it; stored nowhere else.
- **face**: kept in the face and returned; some fields have an effect there.
- **query only**: counted; what is written is not looked at.
- **ignored, kept**: returned as given, without effect, never refused.
- **reserved**: ignored, read as 0.

In a command's box the context begins at byte 8, behind `opt_param_mask` and a reserved word; a query fills the same shape.
Where drivers really have the fields is read from their headers by `e2e/hermon_layouts.py`, and compared with the table by a test.
";

fn page() -> String {
    let mut out = String::from(HEAD);
    section(&mut out, "Context", "", |row| row.side.is_none());
    section(
        &mut out,
        "Primary address path",
        "Words 6 to 16 of the context, the path in use.\n\n",
        |row| row.side == Some(Side::Primary),
    );
    out.push_str(
        "\n## Alternate address path\n\nWords 17 to 27, laid out as the primary path: each word is 11 higher, Linux's \
         `pri_path` is `alt_path`. All\nof it is the face's: kept and returned. There is no path migration.\n",
    );
    codes(&mut out);
    commands(&mut out);
    out
}

fn section(out: &mut String, title: &str, text: &str, holds: fn(&Row) -> bool) {
    let _ = write!(
        out,
        "\n## {title}\n\n{text}| word | bits | name | Linux | seed | owner | meaning | source, and what we chose |\n\
         |---|---|---|---|---|---|---|---|\n"
    );
    for row in ROWS.iter().filter(|row| holds(row)) {
        let bits = if row.high == row.low {
            row.low.to_string()
        } else {
            format!("{}:{}", row.high, row.low)
        };
        let seed = if row.seed == row.name { "" } else { row.seed };
        let source = match row.origin {
            Origin::Both => "seed and Linux",
            Origin::Linux => "Linux",
            Origin::Prm if row.seed == row.name => "seed",
            Origin::Prm => "PRM header",
            Origin::Reserved => "",
        };
        let chosen = match (source, row.choice) {
            (source, "") => source.to_string(),
            ("", choice) => choice.to_string(),
            (source, choice) => format!("{source}; {choice}"),
        };
        let linux = row.linux_name();
        let _ = writeln!(
            out,
            "| {} | {bits} | `{}` | `{linux}` | {seed} | {} | {} | {chosen} |",
            row.word,
            row.name,
            row.owner.name(),
            row.text,
        );
    }
}

fn codes(out: &mut String) {
    out.push_str("\n## Codes\n\nA code without a name is kept as it is.\n");
    let tables: [(&str, &[Code]); 8] = [
        ("state", QpState::CODES),
        ("st", ServiceType::CODES),
        ("pm_state", Migration::CODES),
        ("mtu", MtuCode::CODES),
        ("roce_mode", RoceMode::CODES),
        ("link_type", LinkType::CODES),
        ("max_stat_rate", StaticRate::CODES),
        ("tunnel_mode", TunnelMode::CODES),
    ];
    for (field, codes) in tables {
        let list: Vec<_> = codes
            .iter()
            .map(|code| format!("{} `{}` {}", code.value, code.name, code.text))
            .collect();
        let _ = write!(out, "\n- `{field}`: {}", list.join("; "));
    }
    out.push('\n');
}

/// Names of a set; a whole path in short.
fn names(set: FieldSet) -> String {
    let mut rows: Vec<_> = set.rows().collect();
    let mut names = Vec::new();
    for side in [Side::Primary, Side::Alternate] {
        let whole: Vec<_> = FieldSet::path(side).rows().collect();
        let missing: Vec<_> = whole.iter().filter(|row| !rows.contains(row)).collect();
        if missing.len() < 5 {
            rows.retain(|row| row.side != Some(side));
            let but: Vec<_> = missing.iter().map(|row| format!("`{}`", row.name)).collect();
            let but =
                if but.is_empty() { String::new() } else { format!(" but {}", but.join(", ")) };
            names.push(format!("`{}`{but}", side.name()));
        }
    }
    names.extend(rows.iter().map(|row| format!("`{}`", row.full_name())));
    if names.is_empty() { "nothing".into() } else { names.join(", ") }
}

fn commands(out: &mut String) {
    out.push_str(
        "\n## Commands\n\n*Always* applies whatever the mask says: iPXE and Linux's Ethernet driver send mask 0. Bits of \
         `opt_param_mask` that a\ncommand does not list are ignored. What a command does not bring stays. A command in \
         another state ends in status\n0x10 (bad QP state), one that is not offered in 0x02 (bad opcode), a value that \
         cannot be obeyed in 0x03 (bad parameter)\nor 0x0a (bad index); nothing changes then.\n\nThe vendor's own table is not \
         public: the split is the one of InfiniBand's verbs, and what both drivers need.\n\n\
         | command | opcode | from | to | always | mask bits |\n|---|---|---|---|---|---|\n",
    );
    for row in COMMANDS {
        let from: Vec<_> = row.from.iter().map(ToString::to_string).collect();
        let from = match (from.len(), row.effect) {
            (_, Effect::NotOffered) => String::new(),
            (8.., _) => "any".into(),
            _ => from.join(", "),
        };
        let to = match row.effect {
            Effect::To(state) => state.to_string(),
            Effect::Read => "stays".into(),
            Effect::NotOffered => "not offered".into(),
        };
        let bits: Vec<_> = MASK_BITS
            .iter()
            .filter(|bit| row.optional >> bit.bit & 1 == 1)
            .map(|bit| bit.bit.to_string())
            .collect();
        let always =
            if matches!(row.effect, Effect::To(_)) { names(row.always) } else { String::new() };
        let but = if row.services.len() < TAKEN.len() {
            let services: Vec<_> = row.services.iter().map(ToString::to_string).collect();
            format!(" ({})", services.join(", "))
        } else {
            String::new()
        };
        let _ = writeln!(
            out,
            "| {}{but} | {:#04x} | {from} | {to} | {always} | {} |",
            row.name,
            row.opcode,
            bits.join(", ")
        );
    }
    out.push_str(
        "\nRST2INIT also brings `q_key` to UD, MLX and raw Ethernet queue pairs. RTS2SQD asks for an event with bit 31 of the input\n\
         modifier. 2RST, 2ERR and RTS2SQD look at no box. An RSS queue pair keeps words 15 to 28 as they are.\n\n\
         ## Mask bits\n\n| bit | name | brings |\n|---|---|---|\n",
    );
    for bit in MASK_BITS {
        let _ = writeln!(out, "| {} | {} | {} |", bit.bit, bit.name, names(bit.fields));
    }
}
