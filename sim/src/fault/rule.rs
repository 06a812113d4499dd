//! What a fault rule is: plain data. The text form is `text`'s business, what happens the injector's.

use std::fmt;

use softrnic_engine::packet::{Syndrome, opcode};
use softrnic_engine::{Psn, Qpn};

use super::corrupt::Corruption;

/// Fault rules, in their order. Every rule sees every frame, so that what one does never shifts what
/// another counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rules(pub Vec<Rule>);

/// One fault.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// What reports call it; empty where its number is enough.
    pub name: String,
    /// What it looks for.
    pub matches: Match,
    /// What happens then.
    pub action: Action,
}

impl Rule {
    /// A rule without a name.
    #[must_use]
    pub const fn new(matches: Match, action: Action) -> Self {
        Self { name: String::new(), matches, action }
    }
}

/// What a rule looks for. What is `None` matches everything; all that is given must hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Match {
    /// Only during this phase (its index); `from_ns` and `until_ns` then count from its start.
    pub phase: Option<usize>,
    /// The node (its number) that sends, receives, or whose device makes the call.
    pub node: Option<usize>,
    /// Frames as they leave a node, or as they arrive.
    pub direction: Direction,
    /// BTH.DestQP of a frame; the queue pair itself where a face's call is meant.
    pub qp: Option<Qpn>,
    /// BTH.OpCode.
    pub opcode: Option<Opcodes>,
    /// What an AETH says.
    pub kind: Option<Kind>,
    /// BTH.PSN.
    pub psn: Option<Psn>,
    /// Not before this time.
    pub from_ns: Option<u64>,
    /// Before this time.
    pub until_ns: Option<u64>,
    /// Of what matches so far, this share, by the seed. 0.0 to 1.0.
    pub probability: Option<f64>,
    /// Of what is left, the `nth`, counted from 1.
    pub nth: Option<u64>,
    /// So many of what is left, from `nth` on; with `nth` 1 if not given, else all.
    pub times: Option<u64>,
}

/// Where frames are seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// As they leave a node.
    #[default]
    Out,
    /// As they arrive at a node.
    In,
}

/// What a packet's AETH syndrome says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Acknowledged.
    Ack,
    /// Receiver not ready.
    RnrNak,
    /// Refused, with whichever code.
    Nak,
}

impl Kind {
    pub(super) const ALL: [(&'static str, Self); 3] =
        [("ack", Self::Ack), ("rnr_nak", Self::RnrNak), ("nak", Self::Nak)];

    pub(super) const fn of(syndrome: Syndrome) -> Option<Self> {
        match syndrome {
            Syndrome::Ack(_) => Some(Self::Ack),
            Syndrome::Rnr(_) => Some(Self::RnrNak),
            Syndrome::Nak(_) => Some(Self::Nak),
            Syndrome::Reserved(_) => None,
        }
    }
}

/// A set of opcodes that has a name: an opcode's own name, of all services that have it, or the start
/// of several names: `SEND` is every SEND packet, `READ_RESPONSE` every packet of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opcodes {
    name: String,
    values: [u64; 4],
}

impl Opcodes {
    /// The opcodes of this name; `None` where there are none.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let exact = opcode::known().any(|row| row.name == name);
        let mut values = [0; 4];
        for row in opcode::known() {
            let rest = row.name.strip_prefix(name);
            let group = !exact && !name.is_empty() && rest.is_some_and(|r| r.starts_with('_'));
            if rest == Some("") || group {
                values[usize::from(row.value >> 6)] |= 1 << (row.value & 63);
            }
        }
        (values != [0; 4]).then(|| Self { name: name.to_owned(), values })
    }

    /// Whether this opcode is one of them.
    #[must_use]
    pub const fn contains(&self, value: u8) -> bool {
        self.values[(value >> 6) as usize] >> (value & 63) & 1 == 1
    }

    /// Their name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// What happens to what a rule matches.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// The frame gets lost.
    Drop,
    /// The frame arrives, and so do copies of it.
    Duplicate {
        /// How many copies.
        copies: u32,
        /// Each copy comes so much after the one before.
        apart_ns: u64,
    },
    /// The frame arrives late. What was sent after it is not held up, and may overtake it.
    Delay {
        /// By how much at least.
        by_ns: u64,
        /// And by so much more at most, by the seed.
        jitter_ns: u64,
    },
    /// The frame lets others of its direction pass.
    Reorder {
        /// How many.
        behind: u32,
        /// It waits no longer than this.
        limit_ns: u64,
    },
    /// Bits change on the way.
    Corrupt(Corruption),
    /// The end of the frame is missing; lengths in its headers stay as they were.
    Truncate(Cut),
    /// The IP header gets the mark "congestion experienced".
    MarkEcn,
    /// A completion reaches its queue late, and so do those of its queue pair's queue behind it.
    HoldCompletion {
        /// Of which queue; either if `None`.
        queue: Option<Queue>,
        /// How late.
        for_ns: u64,
    },
    /// A completion never reaches its queue.
    LoseCompletion {
        /// Of which queue; either if `None`.
        queue: Option<Queue>,
    },
    /// Software is not woken. It finds what is there when it is woken next.
    LoseInterrupt,
    /// An access of the device to memory fails.
    DmaError {
        /// Which way; either if `None`.
        access: Option<Transfer>,
    },
    /// The device finds no receive buffer.
    StallReceive,
}

/// Which of a queue pair's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Work requests.
    Send,
    /// Messages that arrived.
    Receive,
}

impl Queue {
    pub(super) const ALL: [(&'static str, Self); 2] =
        [("send", Self::Send), ("receive", Self::Receive)];

    pub(super) const fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

/// What the device does with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// It reads payload.
    Read,
    /// It writes payload, or executes an atomic.
    Write,
}

impl Transfer {
    pub(super) const ALL: [(&'static str, Self); 2] =
        [("read", Self::Read), ("write", Self::Write)];

    pub(super) const fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

/// How much of a frame is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// So many bytes at most, from the Ethernet header on.
    To(usize),
    /// All but so many bytes at its end.
    By(usize),
}

/// A rule in words, with `node` and `phase` for the names of what it has only numbers of.
pub(super) struct InWords<'a> {
    pub(super) rule: &'a Rule,
    pub(super) nodes: &'a [&'a str],
    pub(super) phases: &'a [&'a str],
}

impl fmt::Display for InWords<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rule { matches: m, action, .. } = self.rule;
        action.fmt(f)?;
        f.write_str(": ")?;
        match &m.opcode {
            Some(opcodes) => f.write_str(opcodes.name())?,
            None => f.write_str(action.subject())?,
        }
        if let Some(kind) = m.kind {
            write!(f, " with {}", kind.name())?;
        }
        if let Some(psn) = m.psn {
            write!(f, " with PSN {psn}")?;
        }
        if let Some(qp) = m.qp {
            write!(f, " of QP {}", qp.get())?;
        }
        let way = match (action.at_face(), m.direction) {
            (true, _) => "at",
            (false, Direction::Out) => "from",
            (false, Direction::In) => "arriving at",
        };
        match m.node.map(|node| self.nodes.get(node).copied().unwrap_or("?")) {
            Some(node) => write!(f, " {way} {node}")?,
            None => write!(f, " {way} any node")?,
        }
        if let Some(phase) = m.phase {
            write!(f, " in phase {:?}", self.phases.get(phase).copied().unwrap_or("?"))?;
        }
        if let Some(after) = m.from_ns {
            write!(f, " after {after} ns")?;
        }
        if let Some(until) = m.until_ns {
            write!(f, " until {until} ns")?;
        }
        if let Some(probability) = m.probability {
            write!(f, ", {} %", probability * 100.0)?;
        }
        match (m.nth, m.times) {
            (None, None) => Ok(()),
            (None, Some(times)) => write!(f, ", the first {times}"),
            (Some(nth), None | Some(1)) => write!(f, ", no. {nth}"),
            (Some(nth), Some(times)) => {
                write!(f, ", no. {nth} to {}", nth.saturating_add(times - 1))
            }
        }
    }
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }
}

impl Action {
    /// Whether it happens at a call of the face and not to a frame.
    #[must_use]
    pub const fn at_face(&self) -> bool {
        matches!(
            self,
            Self::HoldCompletion { .. }
                | Self::LoseCompletion { .. }
                | Self::LoseInterrupt
                | Self::DmaError { .. }
                | Self::StallReceive
        )
    }

    const fn subject(&self) -> &'static str {
        if self.at_face() { "any" } else { "any frame" }
    }
}

/// With a space before it, where there is one.
fn word(word: Option<&str>) -> String {
    word.map_or_else(String::new, |word| format!(" {word}"))
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drop => f.write_str("drop"),
            Self::Duplicate { copies: 1, apart_ns: 0 } => f.write_str("duplicate"),
            Self::Duplicate { copies, apart_ns } => {
                write!(f, "duplicate {copies} times, {apart_ns} ns apart")
            }
            Self::Delay { by_ns, jitter_ns: 0 } => write!(f, "delay by {by_ns} ns"),
            Self::Delay { by_ns, jitter_ns } => {
                write!(f, "delay by {by_ns} to {} ns", by_ns.saturating_add(*jitter_ns))
            }
            Self::Reorder { behind, limit_ns } => {
                write!(f, "reorder behind {behind} frames within {limit_ns} ns")
            }
            Self::Corrupt(corruption) => corruption.fmt(f),
            Self::Truncate(Cut::To(len)) => write!(f, "truncate to {len} bytes"),
            Self::Truncate(Cut::By(len)) => write!(f, "truncate by {len} bytes"),
            Self::MarkEcn => f.write_str("mark congestion"),
            Self::HoldCompletion { queue, for_ns } => {
                write!(f, "hold{} completion for {for_ns} ns", word(queue.map(Queue::name)))
            }
            Self::LoseCompletion { queue } => {
                write!(f, "lose{} completion", word(queue.map(Queue::name)))
            }
            Self::LoseInterrupt => f.write_str("lose interrupt"),
            Self::DmaError { access } => {
                write!(f, "DMA{} error", word(access.map(Transfer::name)))
            }
            Self::StallReceive => f.write_str("stall receive queue"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_have_names_of_their_own_and_names_of_groups() {
        let one = Opcodes::named("SEND_ONLY").unwrap();
        assert!(one.contains(opcode::SEND_ONLY) && one.contains(opcode::UD_SEND_ONLY));
        assert!(!one.contains(opcode::SEND_ONLY_IMM));
        let group = Opcodes::named("SEND").unwrap();
        assert!(group.contains(opcode::SEND_ONLY_IMM) && group.contains(opcode::SEND_FIRST));
        assert!(!group.contains(opcode::WRITE_ONLY));
        assert!(Opcodes::named("CNP").unwrap().contains(opcode::CNP));
        for word in ["", "SEN", "SEND_", "send_only", "RESERVED"] {
            assert_eq!(Opcodes::named(word), None, "{word}");
        }
    }
}
