//! What the numbers say that software of any RDMA device prints: acknowledgement syndromes, completion
//! statuses, timer codes. A [`Word`] has fields, a field has codes, and a code says what causes it and
//! what to do.
//!
//! The types are here, the words of InfiniBand and verbs in `words`. A face has words of its own, made
//! of the same types. Knows no device and prints nothing.

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

mod words;

pub use words::{WORDS, ack_timeout, nak_name, opcode_name, rnr_timer};

/// A number that somebody prints, and what its bits say.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    /// What it is asked for by, in upper case.
    pub name: &'static str,
    /// Other names for it.
    pub aliases: &'static [&'static str],
    /// Its bits.
    pub width: u8,
    /// One sentence.
    pub text: &'static str,
    /// Where that stands.
    pub source: &'static str,
    /// Its fields, from the highest bit down.
    pub fields: &'static [Bits],
}

/// Some bits of a word.
#[derive(Clone, Copy, Debug)]
pub struct Bits {
    /// Name, as drivers and documents have it.
    pub name: &'static str,
    /// Highest bit.
    pub high: u8,
    /// Lowest bit.
    pub low: u8,
    /// What it is.
    pub text: &'static str,
    /// What a value says that no list could hold: a duration, an opcode.
    pub note: Option<fn(u64) -> String>,
    /// Values with a meaning of their own.
    pub codes: &'static [Code],
}

/// One value of a field.
#[derive(Clone, Copy, Debug)]
pub struct Code {
    /// The value.
    pub value: u64,
    /// Its name, as programs have it, or what it means in a few words.
    pub name: &'static str,
    /// What causes it; empty where the name says it all.
    pub cause: &'static str,
    /// What to do; empty where nothing is to be done.
    pub advice: &'static str,
}

impl Code {
    /// A value, its name, what causes it and what to do.
    #[must_use]
    pub const fn new(
        value: u64,
        name: &'static str,
        cause: &'static str,
        advice: &'static str,
    ) -> Self {
        Self { value, name, cause, advice }
    }

    /// A value whose name says it all.
    #[must_use]
    pub const fn named(value: u64, name: &'static str) -> Self {
        Self::new(value, name, "", "")
    }
}

/// A word's answer, or another table's in the same shape: what a value says, or, without a value, what
/// values there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// What was explained.
    pub name: String,
    /// Its bits; 0 for something that has no value.
    pub width: u8,
    /// The value, where one was given.
    pub value: Option<u64>,
    /// One sentence.
    pub text: Cow<'static, str>,
    /// Where that stands.
    pub source: Cow<'static, str>,
    /// Everything that is to be done about the whole of it.
    pub advice: Cow<'static, str>,
    /// Every field.
    pub fields: Vec<FieldMeaning>,
    /// Bits of the value that no field covers and that are set.
    pub reserved: u64,
}

/// What one field says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldMeaning {
    /// Its name.
    pub name: &'static str,
    /// Highest bit.
    pub high: u8,
    /// Lowest bit.
    pub low: u8,
    /// What it is.
    pub text: Cow<'static, str>,
    /// Its value.
    pub value: Option<u64>,
    /// What that value means, with cause and advice; without a value, every code.
    pub codes: Vec<CodeMeaning>,
}

/// What one value of a field says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeMeaning {
    /// The value.
    pub value: u64,
    /// In a few words.
    pub meaning: Cow<'static, str>,
    /// What causes it.
    pub cause: Cow<'static, str>,
    /// What to do.
    pub advice: Cow<'static, str>,
}

impl Bits {
    /// Its value in a word's value.
    #[must_use]
    pub const fn of(&self, value: u64) -> u64 {
        value >> self.low & (u64::MAX >> (63 - (self.high - self.low)))
    }

    /// Its bits in the word.
    #[must_use]
    pub const fn mask(&self) -> u64 {
        (u64::MAX >> (63 - (self.high - self.low))) << self.low
    }

    fn explain(&self, word_value: Option<u64>) -> FieldMeaning {
        let value = word_value.map(|value| self.of(value));
        let mut codes: Vec<_> = self
            .codes
            .iter()
            .filter(|code| value.is_none_or(|value| value == code.value))
            .map(|code| CodeMeaning {
                value: code.value,
                meaning: code.name.into(),
                cause: code.cause.into(),
                advice: code.advice.into(),
            })
            .collect();
        if let (Some(value), true, Some(note)) = (value, codes.is_empty(), self.note) {
            let meaning = note(value).into();
            codes.push(CodeMeaning { value, meaning, cause: "".into(), advice: "".into() });
        }
        FieldMeaning {
            name: self.name,
            high: self.high,
            low: self.low,
            text: self.text.into(),
            value,
            codes,
        }
    }
}

impl Word {
    /// Whether it is asked for by this name, in any case; `-` and `_` are the same.
    #[must_use]
    pub fn is_called(&self, name: &str) -> bool {
        let same = |own: &str| same_name(own, name);
        same(self.name) || self.aliases.iter().any(|alias| same(alias))
    }

    /// What a value says, or without one, what the fields are and which values they have.
    #[must_use]
    pub fn explain(&self, value: Option<u64>) -> Explanation {
        let covered = self.fields.iter().fold(0, |mask, field| mask | field.mask());
        Explanation {
            name: self.name.into(),
            width: self.width,
            value,
            text: self.text.into(),
            source: self.source.into(),
            advice: "".into(),
            fields: self.fields.iter().map(|field| field.explain(value)).collect(),
            reserved: value.map_or(0, |value| value & !covered),
        }
    }
}

/// Whether two names are the same but for case and for `-` instead of `_`.
#[must_use]
pub fn same_name(a: &str, b: &str) -> bool {
    let plain = |byte: u8| if byte == b'-' { b'_' } else { byte.to_ascii_uppercase() };
    a.len() == b.len() && a.bytes().zip(b.bytes()).all(|(a, b)| plain(a) == plain(b))
}

/// A duration in the unit in which people read it.
#[must_use]
pub fn duration(ns: u64) -> String {
    let (unit, name) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (1_000, "us"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    let thousandths = ns % unit * 1000 / unit;
    let text = format!("{}.{thousandths:03}", ns / unit);
    format!("{} {name}", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_in_the_unit_that_people_read() {
        let cases = [
            (999, "999 ns"),
            (4_096, "4.096 us"),
            (10_000, "10 us"),
            (67_108_864, "67.108 ms"),
            (655_360_000, "655.36 ms"),
            (8_796_093_022_208, "8796.093 s"),
        ];
        for (ns, text) in cases {
            assert_eq!(duration(ns), text);
        }
    }

    #[test]
    fn names_are_the_same_in_any_case_and_with_either_dash() {
        assert!(same_name("WC_STATUS", "wc-status"));
        assert!(!same_name("WC_STATUS", "wc status"));
    }
}
