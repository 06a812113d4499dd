//! Fault rules as text: `[[fault]]` tables of a scenario file, in both directions.
//!
//! Which word takes which keys is one table here. Runs nothing.

use serde::{Deserialize, Serialize};
use softrnic_engine::packet::opcode;
use softrnic_engine::{Psn, Qpn};

use super::corrupt::{Change, Corruption, Field, Spot};
use super::rule::{Action, Cut, Direction, Kind, Match, Opcodes, Queue, Rule, Rules, Transfer};
use crate::scenario::{NodeSpec, ScenarioError};
use crate::source::Table;
use crate::words::hint;

/// A `[[fault]]` table as it is written.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RawFault {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    action: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    direction: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    qp: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    opcode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    syndrome: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    psn: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    until_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    probability: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nth: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    times: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    copies: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    apart_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jitter_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    behind: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    byte: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flip: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    icrc: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to_len: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by_len: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    for_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    access: Option<String>,
}

/// The names that rules may use.
pub(crate) struct Names<'a> {
    pub(crate) nodes: &'a [NodeSpec],
    pub(crate) phases: &'a [&'a str],
}

/// An action's word, and the keys that have a meaning with it beside those that say when.
const ACTIONS: [(&str, &[&str]); 12] = [
    ("drop", &["direction"]),
    ("duplicate", &["direction", "copies", "apart_ns"]),
    ("delay", &["direction", "by_ns", "jitter_ns"]),
    ("reorder", &["direction", "behind", "limit_ns"]),
    ("corrupt", &["direction", "field", "byte", "value", "flip", "icrc"]),
    ("truncate", &["direction", "to_len", "by_len"]),
    ("mark_ecn", &["direction"]),
    ("hold_completion", &["queue", "for_ns"]),
    ("lose_completion", &["queue"]),
    ("lose_interrupt", &[]),
    ("dma_error", &["access"]),
    ("stall_receive", &[]),
];

const DIRECTIONS: [(&str, Direction); 2] = [("out", Direction::Out), ("in", Direction::In)];
const ICRC: [(&str, bool); 2] = [("keep", false), ("redo", true)];

/// How long a reordered frame waits for others to pass, if nothing else is said.
const REORDER_LIMIT_NS: u64 = 100_000;

impl RawFault {
    /// Keys that belong to some action, and whether they are given.
    fn action_keys(&self) -> [(&'static str, bool); 17] {
        [
            ("direction", self.direction.is_some()),
            ("copies", self.copies.is_some()),
            ("apart_ns", self.apart_ns.is_some()),
            ("by_ns", self.by_ns.is_some()),
            ("jitter_ns", self.jitter_ns.is_some()),
            ("behind", self.behind.is_some()),
            ("limit_ns", self.limit_ns.is_some()),
            ("field", self.field.is_some()),
            ("byte", self.byte.is_some()),
            ("value", self.value.is_some()),
            ("flip", self.flip.is_some()),
            ("icrc", self.icrc.is_some()),
            ("to_len", self.to_len.is_some()),
            ("by_len", self.by_len.is_some()),
            ("queue", self.queue.is_some()),
            ("for_ns", self.for_ns.is_some()),
            ("access", self.access.is_some()),
        ]
    }

    pub(crate) fn title(&self, index: usize) -> String {
        match &self.name {
            Some(name) => format!("fault {} {name:?}", index + 1),
            None => format!("fault {}", index + 1),
        }
    }

    /// Checks every word and number.
    pub(crate) fn check(
        &self,
        table: &Table<'_>,
        names: &Names<'_>,
    ) -> Result<Rule, ScenarioError> {
        let words = ACTIONS.map(|(word, _)| word);
        table.require(!self.action.is_empty(), "action", " is missing: say what should happen")?;
        let row = &ACTIONS[table.one_of("action", "actions", &self.action, &words, "")?];
        for (key, given) in self.action_keys() {
            let message = format!(" has no meaning with action = {:?}; remove it", row.0);
            table.require(!given || row.1.contains(&key), key, &message)?;
        }
        Ok(Rule {
            name: self.name.clone().unwrap_or_default(),
            matches: self.check_match(table, names)?,
            action: self.check_action(table)?,
        })
    }

    fn check_match(&self, table: &Table<'_>, names: &Names<'_>) -> Result<Match, ScenarioError> {
        let phase = match &self.phase {
            Some(name) => Some(table.one_of("phase", "phases", name, names.phases, "")?),
            None => None,
        };
        let node = match &self.node {
            Some(name) => Some(table.node("node", name, names.nodes)?),
            None => None,
        };
        let opcode = match &self.opcode {
            Some(name) => Some(check_opcode(table, name)?),
            None => None,
        };
        let twenty_four = " has more than 24 bits";
        table.require(self.psn.is_none_or(|psn| psn < Psn::MODULUS), "psn", twenty_four)?;
        table.require(self.qp.is_none_or(|qp| qp < 1 << 24), "qp", twenty_four)?;
        table.probability("probability", self.probability)?;
        table.require(self.nth != Some(0), "nth", " counts from 1")?;
        table.require(self.times != Some(0), "times", " = 0 would never fire; remove the rule")?;
        let empty = self.until_ns.is_some_and(|until| self.from_ns.unwrap_or(0) >= until);
        table.require(!empty, "until_ns", " leaves no time: it is not after from_ns")?;
        let direction = one_word(table, "direction", self.direction.as_deref(), &DIRECTIONS)?;
        Ok(Match {
            phase,
            node,
            direction: direction.unwrap_or_default(),
            qp: self.qp.map(Qpn::new),
            opcode,
            kind: one_word(table, "syndrome", self.syndrome.as_deref(), &Kind::ALL)?,
            psn: self.psn.map(Psn::new),
            from_ns: self.from_ns,
            until_ns: self.until_ns,
            probability: self.probability,
            nth: self.nth,
            times: self.times,
        })
    }

    fn check_action(&self, table: &Table<'_>) -> Result<Action, ScenarioError> {
        Ok(match self.action.as_str() {
            "duplicate" => {
                let copies = self.copies.unwrap_or(1);
                let few = (1..=COPIES_MAX).contains(&copies);
                table.require(few, "copies", &format!(" must be from 1 to {COPIES_MAX}"))?;
                Action::Duplicate { copies, apart_ns: self.apart_ns.unwrap_or(0) }
            }
            "delay" => {
                let given = self.by_ns.is_some() || self.jitter_ns.is_some();
                table.require(given, "by_ns", " is missing: how long is the delay?")?;
                Action::Delay {
                    by_ns: self.by_ns.unwrap_or(0),
                    jitter_ns: self.jitter_ns.unwrap_or(0),
                }
            }
            "reorder" => {
                let behind = self.behind.unwrap_or(1);
                table.require(behind > 0, "behind", " counts from 1")?;
                Action::Reorder { behind, limit_ns: self.limit_ns.unwrap_or(REORDER_LIMIT_NS) }
            }
            "corrupt" => Action::Corrupt(self.check_corruption(table)?),
            "truncate" => Action::Truncate(match (self.to_len, self.by_len) {
                (Some(len), None) => Cut::To(len),
                (None, Some(len)) => Cut::By(len),
                (None, None) => {
                    let message = " or by_len is missing: how many bytes are left, or are lost?";
                    return Err(table.error("to_len", message));
                }
                (Some(_), Some(_)) => {
                    return Err(table.error("by_len", " contradicts to_len; remove one of them"));
                }
            }),
            "mark_ecn" => Action::MarkEcn,
            "hold_completion" => {
                let queue = one_word(table, "queue", self.queue.as_deref(), &Queue::ALL)?;
                let missing = || table.error("for_ns", " is missing: how long is it held?");
                Action::HoldCompletion { queue, for_ns: self.for_ns.ok_or_else(missing)? }
            }
            "lose_completion" => {
                let queue = one_word(table, "queue", self.queue.as_deref(), &Queue::ALL)?;
                Action::LoseCompletion { queue }
            }
            "lose_interrupt" => Action::LoseInterrupt,
            "dma_error" => {
                let access = one_word(table, "access", self.access.as_deref(), &Transfer::ALL)?;
                Action::DmaError { access }
            }
            "stall_receive" => Action::StallReceive,
            _ => Action::Drop,
        })
    }

    fn check_corruption(&self, table: &Table<'_>) -> Result<Corruption, ScenarioError> {
        let spot = match (&self.field, self.byte) {
            (None, None) => Spot::Anywhere,
            (None, Some(at)) => Spot::Byte(at),
            (Some(name), None) => Spot::Field(check_field(table, name)?),
            (Some(_), Some(_)) => {
                return Err(table.error("byte", " contradicts field; remove one of them"));
            }
        };
        let change = match (self.value, self.flip) {
            (None, None) => Change::FlipAny,
            (Some(value), None) => Change::Set(value),
            (None, Some(bits)) => Change::Flip(bits),
            (Some(_), Some(_)) => {
                return Err(table.error("flip", " contradicts value; remove one of them"));
            }
        };
        table.require(self.flip != Some(0), "flip", " = 0 turns no bit")?;
        let redo_icrc = one_word(table, "icrc", self.icrc.as_deref(), &ICRC)?.unwrap_or(false);
        Ok(Corruption { spot, change, redo_icrc })
    }
}

/// Copies of a frame at most.
const COPIES_MAX: u32 = 1_000;

fn one_word<T: Copy, const N: usize>(
    table: &Table<'_>,
    key: &str,
    word: Option<&str>,
    words: &[(&str, T); N],
) -> Result<Option<T>, ScenarioError> {
    let Some(word) = word else { return Ok(None) };
    let names = words.each_ref().map(|(name, _)| *name);
    let at = table.one_of(key, "words", word, &names, "")?;
    Ok(Some(words[at].1))
}

fn check_opcode(table: &Table<'_>, name: &str) -> Result<Opcodes, ScenarioError> {
    Opcodes::named(name).ok_or_else(|| {
        let mut names: Vec<_> = opcode::known().map(|row| row.name).collect();
        names.sort_unstable();
        names.dedup();
        let near = hint(name, names.iter().copied());
        let list = names.join(", ");
        let message = format!(" = {name:?} is none of {list}, nor the start of several{near}");
        table.error("opcode", &message)
    })
}

fn check_field(table: &Table<'_>, name: &str) -> Result<Field, ScenarioError> {
    Field::named(name).ok_or_else(|| {
        let names: Vec<_> = Field::all().map(|field| field.to_string()).collect();
        let near = hint(name, names.iter().map(String::as_str));
        let list = names.join(", ");
        table.error("field", &format!(" = {name:?} is none of {list}{near}"))
    })
}

impl Rules {
    /// The rules as `[[fault]]` tables of a scenario file, with the names of its nodes and phases.
    #[must_use]
    pub fn to_toml(&self, nodes: &[&str], phases: &[&str]) -> String {
        #[derive(Serialize)]
        struct File {
            fault: Vec<RawFault>,
        }
        let fault = self.0.iter().map(|rule| to_raw(rule, nodes, phases)).collect();
        // Strings and numbers alone: there is nothing that TOML cannot say.
        toml::to_string(&File { fault }).unwrap_or_default()
    }
}

fn to_raw(rule: &Rule, nodes: &[&str], phases: &[&str]) -> RawFault {
    let name_of = |names: &[&str], number: usize| {
        names.get(number).map_or_else(|| number.to_string(), |&name| name.to_owned())
    };
    let m = &rule.matches;
    let mut raw = RawFault {
        name: (!rule.name.is_empty()).then(|| rule.name.clone()),
        phase: m.phase.map(|phase| name_of(phases, phase)),
        node: m.node.map(|node| name_of(nodes, node)),
        direction: (m.direction == Direction::In).then(|| "in".to_owned()),
        qp: m.qp.map(Qpn::get),
        opcode: m.opcode.as_ref().map(|opcodes| opcodes.name().to_owned()),
        syndrome: m.kind.map(|kind| kind.name().to_owned()),
        psn: m.psn.map(Psn::get),
        from_ns: m.from_ns,
        until_ns: m.until_ns,
        probability: m.probability,
        nth: m.nth,
        times: m.times,
        ..RawFault::default()
    };
    raw.action = match rule.action {
        Action::Drop => "drop",
        Action::Duplicate { copies, apart_ns } => {
            raw.copies = Some(copies);
            raw.apart_ns = (apart_ns > 0).then_some(apart_ns);
            "duplicate"
        }
        Action::Delay { by_ns, jitter_ns } => {
            raw.by_ns = Some(by_ns);
            raw.jitter_ns = (jitter_ns > 0).then_some(jitter_ns);
            "delay"
        }
        Action::Reorder { behind, limit_ns } => {
            raw.behind = Some(behind);
            raw.limit_ns = Some(limit_ns);
            "reorder"
        }
        Action::Corrupt(Corruption { spot, change, redo_icrc }) => {
            match spot {
                Spot::Field(field) => raw.field = Some(field.to_string()),
                Spot::Byte(at) => raw.byte = Some(at),
                Spot::Anywhere => {}
            }
            match change {
                Change::Set(value) => raw.value = Some(value),
                Change::Flip(bits) => raw.flip = Some(bits),
                Change::FlipAny => {}
            }
            raw.icrc = redo_icrc.then(|| "redo".to_owned());
            "corrupt"
        }
        Action::Truncate(cut) => {
            match cut {
                Cut::To(len) => raw.to_len = Some(len),
                Cut::By(len) => raw.by_len = Some(len),
            }
            "truncate"
        }
        Action::MarkEcn => "mark_ecn",
        Action::HoldCompletion { queue, for_ns } => {
            raw.queue = queue.map(|queue| queue.name().to_owned());
            raw.for_ns = Some(for_ns);
            "hold_completion"
        }
        Action::LoseCompletion { queue } => {
            raw.queue = queue.map(|queue| queue.name().to_owned());
            "lose_completion"
        }
        Action::LoseInterrupt => "lose_interrupt",
        Action::DmaError { access } => {
            raw.access = access.map(|access| access.name().to_owned());
            "dma_error"
        }
        Action::StallReceive => "stall_receive",
    }
    .to_owned();
    raw
}
