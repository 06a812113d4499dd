//! Where in a scenario's text something stands, for error messages with line and column.
//!
//! Knows no key.

use crate::scenario::{NodeSpec, ScenarioError};
use crate::words::hint;

/// The text, to say where in it something stands.
pub(crate) struct Source<'a> {
    pub(crate) file: &'a str,
    pub(crate) text: &'a str,
}

impl Source<'_> {
    pub(crate) fn error(&self, at: usize, message: String) -> ScenarioError {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1;
        ScenarioError { file: self.file.to_owned(), line, column, message }
    }

    /// What the TOML reader says, with a near name where it lists the names that it knows.
    pub(crate) fn reader_error(&self, error: &toml::de::Error) -> ScenarioError {
        let message = error.message();
        // "unknown field `cuont`, expected one of `name`, `from`"
        let mut quoted = message.split('`').skip(1).step_by(2);
        let near = match quoted.next() {
            Some(word) if message.starts_with("unknown ") => hint(word, quoted),
            _ => String::new(),
        };
        self.error(error.span().map_or(0, |span| span.start), format!("{message}{near}"))
    }
}

/// One table of the text.
pub(crate) struct Table<'a> {
    pub(crate) source: &'a Source<'a>,
    pub(crate) start: usize,
    pub(crate) title: String,
}

impl Table<'_> {
    /// An error about a key of this table.
    pub(crate) fn error(&self, key: &str, message: &str) -> ScenarioError {
        let at = self.find(key).unwrap_or(self.start);
        self.source.error(at, format!("{}: {key}{message}", self.title))
    }

    /// Where the key stands: the first line of the table that starts with it.
    fn find(&self, key: &str) -> Option<usize> {
        let mut at = self.start;
        for (i, line) in self.source.text.get(self.start..)?.split_inclusive('\n').enumerate() {
            let content = line.trim_start();
            if i > 0 && content.starts_with("[[") {
                return None;
            }
            let rest = content.strip_prefix(key).map(str::trim_start);
            if rest.is_some_and(|rest| rest.starts_with('=') || rest.starts_with('.')) {
                return Some(at + line.len() - content.len());
            }
            at += line.len();
        }
        None
    }

    pub(crate) fn require(
        &self,
        holds: bool,
        key: &str,
        message: &str,
    ) -> Result<(), ScenarioError> {
        if holds { Ok(()) } else { Err(self.error(key, message)) }
    }

    pub(crate) fn node(
        &self,
        key: &str,
        name: &str,
        nodes: &[NodeSpec],
    ) -> Result<usize, ScenarioError> {
        let names: Vec<_> = nodes.iter().map(|node| node.name.as_str()).collect();
        self.one_of(key, "nodes", name, &names, " (add a [[node]])")
    }

    /// The number of `name` in `names`; `none` says what to do where there are no names.
    pub(crate) fn one_of(
        &self,
        key: &str,
        what: &str,
        name: &str,
        names: &[&str],
        none: &str,
    ) -> Result<usize, ScenarioError> {
        names.iter().position(|known| *known == name).ok_or_else(|| {
            let list = match names.is_empty() {
                true => format!("none{none}"),
                false => format!("{}{}", names.join(", "), hint(name, names.iter().copied())),
            };
            self.error(key, &format!(" names {name:?}, but the {what} are: {list}"))
        })
    }

    pub(crate) fn vlan(&self, vlan: Option<u16>) -> Result<(), ScenarioError> {
        let valid = vlan.is_none_or(|id| (1..=4094).contains(&id));
        self.require(valid, "vlan", " must be a VLAN id from 1 to 4094")
    }

    pub(crate) fn probability(&self, key: &str, share: Option<f64>) -> Result<(), ScenarioError> {
        let valid = share.is_none_or(|rate| (0.0..=1.0).contains(&rate));
        self.require(valid, key, " must be a probability from 0.0 to 1.0 (1 % is 0.01)")
    }
}
