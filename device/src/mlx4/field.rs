//! What a row of the context table says: place, names, owner, values. Types and what follows from a row;
//! the rows are in [`context`](super::context).

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;

use softrnic_engine::{ack_timeout_ns, rnr_timer_ns};

use super::codes::Code;

/// Which of the two address paths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The path in use, from word 6.
    Primary,
    /// The alternate path, from word 17.
    Alternate,
}

impl Side {
    /// The seed's name of the structure.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Primary => "primary_address_path",
            Self::Alternate => "alternative_address_path",
        }
    }

    /// Linux's name of the structure.
    #[must_use]
    pub const fn linux(self) -> &'static str {
        match self {
            Self::Primary => "pri_path",
            Self::Alternate => "alt_path",
        }
    }
}

/// Who names a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The seed (or the PRM header that it was printed from), and Linux.
    Both,
    /// Linux only; the seed has reserved bits there.
    Linux,
    /// The seed or the PRM header only.
    Prm,
    /// Nobody.
    Reserved,
}

/// Attributes of the engine's queue pair that a field shows and sets. `apply` does not compile without an
/// arm for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "they are the fields of the same names")]
pub enum Attribute {
    State,
    Mtu,
    MsgMax,
    LocalQpn,
    RemoteQpn,
    AckTimeout,
    HopLimit,
    Tclass,
    FlowLabel,
    /// Word 0 (most significant) to 3 of the peer's GID.
    Rgid(u8),
    DmacHigh,
    DmacLow,
    AckReqFreq,
    SraMax,
    RetryCount,
    RnrRetry,
    NextSendPsn,
    RoceEntropy,
    RraMax,
    Rre,
    Rwe,
    Rae,
    Ric,
    MinRnrNak,
    NextRcvPsn,
    QKey,
}

/// What only a query shows. `apply` does not compile without an arm for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "they are the fields of the same names")]
pub enum Live {
    RnrRetriesLeft,
    RetriesLeft,
    LastAckedPsn,
    Ssn,
    Rmsn,
    SqWqeCounter,
    RqWqeCounter,
}

/// Where a field's value lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// In the engine's queue pair: read from there, applied to it, stored nowhere else.
    Engine(Attribute),
    /// In the face, once; some of them have an effect there.
    Face,
    /// Counted by the engine or by the queues; what is written is not looked at.
    Query(Live),
    /// Kept in the face and returned; without effect, never refused.
    Ignored,
    /// Not kept: read as 0.
    Reserved,
}

impl Owner {
    /// One word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Engine(_) => "engine",
            Self::Face => "face",
            Self::Query(_) => "query only",
            Self::Ignored => "ignored, kept",
            Self::Reserved => "reserved",
        }
    }
}

/// How a field's number is meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Values {
    /// A number that people read in decimal.
    Plain,
    /// A number that people read in hexadecimal.
    Hex,
    /// Off or on.
    Flag,
    /// Codes with names.
    Codes(&'static [Code]),
    /// Base-2 logarithm of a count.
    LogCount,
    /// Base-2 logarithm of a number of bytes.
    LogBytes,
    /// Base-2 logarithm of a number of bytes, less 4.
    LogStride,
    /// Base-2 logarithm of a number of bytes, less 12.
    LogPage,
    /// The bits of a larger number from this one on.
    Shifted(u8),
    /// A multiple of 64 bytes.
    PageOffset,
    /// Local ACK timeout code (rule Q-40).
    AckTimeout,
    /// RNR NAK timer code (rule S-34).
    RnrTimer,
    /// Port and priority.
    SchedQueue,
}

impl Values {
    /// The number as people read it.
    #[must_use]
    pub fn number(self, value: u32) -> String {
        match self {
            Self::Hex | Self::Shifted(_) | Self::PageOffset | Self::SchedQueue => {
                format!("{value:#x}")
            }
            _ => value.to_string(),
        }
    }

    /// What a value means, where there is something to say.
    #[must_use]
    pub fn meaning(self, value: u32) -> Option<String> {
        Some(match self {
            Self::Plain | Self::Hex | Self::Flag => return None,
            Self::Codes(codes) => match codes.iter().find(|code| u32::from(code.value) == value) {
                None => "a code without a name".into(),
                Some(code) if code.text.starts_with(code.name) => code.text.into(),
                Some(code) => format!("{}: {}", code.name, code.text),
            },
            Self::LogCount => power(value).to_string(),
            Self::LogBytes => format!("{} bytes", power(value)),
            Self::LogStride => format!("{} bytes", power(value + 4)),
            Self::LogPage => format!("{} bytes", power(value + 12)),
            Self::Shifted(bits) => format!("{:#x}", u64::from(value) << bits),
            Self::PageOffset => format!("byte {:#x}", value << 6),
            Self::AckTimeout => match ack_timeout_ns(value as u8) {
                None => "no timer".into(),
                Some(ns) => duration(ns),
            },
            Self::RnrTimer => duration(rnr_timer_ns(value as u8)),
            Self::SchedQueue => {
                format!("port {}, Ethernet priority {}", (value >> 6 & 1) + 1, value >> 3 & 7)
            }
        })
    }
}

/// 2^log; what does not fit into 128 bits is not asked for, because fields are at most 6 bits wide.
const fn power(log: u32) -> u128 {
    1 << if log > 127 { 127 } else { log }
}

/// A duration in the unit that people would choose.
fn duration(ns: u64) -> String {
    let (unit, name) = match ns {
        0..1_000_000 => (1_000, "us"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    let thousandths = ns % unit * 1000 / unit;
    if thousandths == 0 {
        format!("{} {name}", ns / unit)
    } else {
        let digits = format!("{thousandths:03}");
        format!("{}.{} {name}", ns / unit, digits.trim_end_matches('0'))
    }
}

/// One row of the table: a run of bits inside a big-endian 32-bit word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// In one of the address paths, or in none.
    pub side: Option<Side>,
    /// Word of the context, 0 to 61.
    pub word: u8,
    /// Its highest bit in that word.
    pub high: u8,
    /// Its lowest bit.
    pub low: u8,
    /// The seed's name; Linux's where the seed has reserved bits.
    pub name: &'static str,
    /// The field of the seed (in a path: of the PRM header) that these bits belong to.
    pub seed: &'static str,
    /// Linux's field and bits.
    pub linux: &'static str,
    /// Who names it.
    pub origin: Origin,
    /// Where its value lives.
    pub owner: Owner,
    /// How its number is meant.
    pub values: Values,
    /// What it is.
    pub text: &'static str,
    /// What had to be chosen, or where sources differ; may be empty.
    pub choice: &'static str,
}

impl Row {
    /// Bits.
    #[must_use]
    pub const fn width(&self) -> u8 {
        self.high - self.low + 1
    }

    /// The largest value.
    #[must_use]
    pub const fn max(&self) -> u32 {
        u32::MAX >> (32 - self.width())
    }

    /// Its bits in the word.
    #[must_use]
    pub const fn mask(&self) -> u32 {
        self.max() << self.low
    }

    /// Byte of the context that holds its highest bit.
    #[must_use]
    pub const fn byte(&self) -> usize {
        self.word as usize * 4 + 3 - self.high as usize / 8
    }

    /// Its name with the path that it belongs to, as the seed would write it.
    #[must_use]
    pub const fn full_name(&self) -> FullName {
        FullName { side: self.side, name: self.name }
    }

    /// Linux's name with the path that it belongs to.
    #[must_use]
    pub fn linux_name(&self) -> String {
        match self.side {
            None => self.linux.into(),
            Some(side) => format!("{}.{}", side.linux(), self.linux),
        }
    }

    /// Bits that no document names.
    #[must_use]
    pub const fn is_reserved(&self) -> bool {
        matches!(self.owner, Owner::Reserved)
    }
}

/// A field's name with its path's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FullName {
    side: Option<Side>,
    name: &'static str,
}

impl fmt::Display for FullName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(side) = self.side {
            write!(f, "{}.", side.name())?;
        }
        f.write_str(self.name)
    }
}

impl PartialEq<str> for FullName {
    fn eq(&self, other: &str) -> bool {
        match self.side {
            None => self.name == other,
            Some(side) => other
                .strip_prefix(side.name())
                .and_then(|rest| rest.strip_prefix('.'))
                .is_some_and(|rest| rest == self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meanings_are_what_people_would_say() {
        assert_eq!(Values::AckTimeout.meaning(0).unwrap(), "no timer");
        assert_eq!(Values::AckTimeout.meaning(14).unwrap(), "67.108 ms");
        assert_eq!(Values::RnrTimer.meaning(0).unwrap(), "655.36 ms");
        assert_eq!(Values::RnrTimer.meaning(1).unwrap(), "10 us");
        assert_eq!(Values::LogStride.meaning(2).unwrap(), "64 bytes");
        assert_eq!(Values::LogPage.meaning(63).unwrap(), format!("{} bytes", 1u128 << 75));
        assert_eq!(Values::SchedQueue.meaning(0x83).unwrap(), "port 1, Ethernet priority 0");
        assert_eq!(Values::Hex.meaning(1), None);
    }
}
