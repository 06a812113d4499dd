//! Packet ladders: who sent what to whom, and what became of it. The one home of that, for runs and
//! for captures, as text and as data for other drawings.
//!
//! Reads frames with the engine's parser and tree; decides nothing about them.

use std::fmt::Write;
use std::net::IpAddr;

use softrnic_engine::packet::opcode::{self, OpcodeRow, Transport};
use softrnic_engine::packet::tree::{self, Node, Value};
use softrnic_engine::packet::{Packet, Syndrome, nak_code, parse};
use softrnic_engine::{Nanos, Psn, Qpn, Reason};

use crate::world::{Fate, Observer, Sighting};

mod captured;
mod excerpt;
mod marks;
mod stories;

pub use captured::{Captured, Follower};
pub use excerpt::{Excerpts, Skipped, Step, Strip, Weight};
pub use marks::{MARK_ROWS, Mark, MarkRow, Marks};
pub use stories::{Stories, Story, Told};

/// A packet of a ladder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rung {
    /// Number of its frame, from 1.
    pub number: u64,
    /// When it left, where that is known.
    pub sent: Option<Nanos>,
    /// When it arrived, or would have.
    pub at: Nanos,
    /// Number of the sending station.
    pub from: usize,
    /// Number of the receiving station.
    pub to: usize,
    /// BTH.OpCode, where the frame has one.
    pub opcode: Option<u8>,
    /// BTH.DestQP; 0 where there is none.
    pub qpn: Qpn,
    /// BTH.PSN; 0 where there is none.
    pub psn: Psn,
    /// What is worth a look.
    pub marks: Marks,
    /// What became of it, in words.
    pub notes: Vec<String>,
    /// The frame.
    pub frame: Vec<u8>,
}

impl Rung {
    /// The opcode's name, with its service where that is not RC.
    #[must_use]
    pub fn name(&self) -> String {
        match self.opcode.map(opcode::row) {
            None => "no RoCE packet".to_owned(),
            Some(row) => name_of(row),
        }
    }

    /// What to write on its arrow: the name, but a NAK is called so.
    #[must_use]
    pub fn label(&self) -> String {
        match self.marks {
            marks if marks.has(Mark::Nak) => "NAK".to_owned(),
            marks if marks.has(Mark::Rnr) => "RNR NAK".to_owned(),
            _ => self.name(),
        }
    }

    /// All but the name: PSN, queue pair and what matters of the other headers, in one line.
    #[must_use]
    pub fn details(&self) -> String {
        match (parse(&self.frame), self.opcode) {
            (Ok(packet), _) => details(&packet),
            (Err(reason), None) => format!("{} bytes: {reason}", self.frame.len()),
            (Err(reason), Some(_)) => {
                format!("psn={:06x} qp={} {reason}", self.psn.get(), self.qpn.get())
            }
        }
    }

    /// Why a receiver refuses the frame whatever its state, as far as the frame alone can tell.
    #[must_use]
    pub fn damage(&self) -> Option<Reason> {
        match parse(&self.frame) {
            Err(reason) => Some(reason),
            Ok(packet) => (!packet.icrc_valid()).then_some(Reason::Icrc),
        }
    }

    fn of_sighting(
        sighting: &Sighting<'_>,
        number: u64,
        faults: &[String],
        mut frame: Vec<u8>,
    ) -> Self {
        frame.clear();
        frame.extend_from_slice(sighting.frame);
        let (heading, mut marks) = Heading::read(sighting.frame);
        let mut notes = Vec::new();
        match sighting.fate {
            Fate::Delivered => {}
            fate => {
                let words = format!("{fate:#}");
                marks.extend(Mark::of_comment(&words));
                notes.push(words);
            }
        }
        if sighting.retransmission {
            marks.insert(Mark::Retransmission);
            notes.push(Mark::Retransmission.to_string());
        }
        if sighting.copy {
            notes.push("copy".to_owned());
        }
        for label in sighting.faults.iter().filter_map(|&rule| faults.get(rule)) {
            marks.insert(Mark::Fault);
            notes.push(label.clone());
        }
        Self {
            number,
            sent: Some(sighting.sent),
            at: sighting.at,
            from: sighting.from,
            to: sighting.to,
            opcode: heading.opcode,
            qpn: heading.qpn,
            psn: heading.psn,
            marks,
            notes,
            frame,
        }
    }
}

/// Something at a station that is no packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remark {
    /// When.
    pub at: Nanos,
    /// At which station.
    pub station: usize,
    /// What kind of thing it is.
    pub mark: Mark,
    /// In words.
    pub text: String,
}

/// What a note says, without the sentence that explains a refusal.
#[must_use]
pub fn short_note(note: &str) -> &str {
    match Mark::of_comment(note) {
        Some(Mark::Refused) => note.split(". ").next().unwrap_or(note),
        _ => note,
    }
}

/// Where a frame goes and what it is, as far as it can be read.
struct Heading {
    opcode: Option<u8>,
    qpn: Qpn,
    psn: Psn,
    /// Source and destination.
    addresses: Option<(IpAddr, IpAddr)>,
}

impl Heading {
    fn read(frame: &[u8]) -> (Self, Marks) {
        let Ok(packet) = parse(frame) else { return (Self::read_damaged(frame), Marks::NONE) };
        let mut marks = Marks::NONE;
        match packet.aeth().map(|aeth| aeth.kind()) {
            Some(Syndrome::Nak(_)) => marks.insert(Mark::Nak),
            Some(Syndrome::Rnr(_)) => marks.insert(Mark::Rnr),
            _ => {}
        }
        let heading = Self {
            opcode: Some(packet.bth.opcode),
            qpn: packet.bth.dest_qpn(),
            psn: packet.bth.psn(),
            addresses: Some((packet.source_ip(), packet.dest_ip())),
        };
        (heading, marks)
    }

    /// Of a frame that no receiver would take: what the tree still finds.
    fn read_damaged(frame: &[u8]) -> Self {
        let tree = tree::decode(frame);
        let header = |names: &[&str]| tree.nodes.iter().find(|node| names.contains(&node.name));
        let number = |node: &Node, name| match field(node, name) {
            Some(Value::Number { value, .. }) => u32::try_from(*value).ok(),
            _ => None,
        };
        let address = |node: &Node, name| match field(node, name) {
            Some(Value::Text(text)) => text.parse::<IpAddr>().ok(),
            _ => None,
        };
        let network = header(&["IPv4", "IPv6", "GRH"]);
        let bth = header(&["BTH"]);
        let of_bth = |name| bth.and_then(|bth| number(bth, name));
        Self {
            opcode: of_bth("OpCode").and_then(|value| u8::try_from(value).ok()),
            qpn: Qpn::new(of_bth("DestQP").unwrap_or(0)),
            psn: Psn::new(of_bth("PSN").unwrap_or(0)),
            addresses: network.and_then(|network| {
                let source = address(network, "Source").or_else(|| address(network, "SGID"))?;
                let dest = address(network, "Destination").or_else(|| address(network, "DGID"))?;
                Some((source, dest))
            }),
        }
    }
}

fn field<'a>(header: &'a Node, name: &str) -> Option<&'a Value> {
    header.children.iter().find(|child| child.name == name).map(|child| &child.value)
}

/// An observer that writes a ladder, one line for each frame, as a reviewer wants to read it in a diff.
#[derive(Clone, Debug, Default)]
pub struct Ladder {
    names: Vec<String>,
    text: String,
}

impl Ladder {
    /// Stations are called by these names, in the order of their numbers.
    #[must_use]
    pub fn new(names: &[&str]) -> Self {
        Self { names: names.iter().map(|&n| n.to_owned()).collect(), text: String::new() }
    }

    /// The ladder so far.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    fn name(&self, station: usize) -> &str {
        self.names.get(station).map_or("?", String::as_str)
    }
}

impl Observer for Ladder {
    fn frame(&mut self, sighting: &Sighting<'_>) {
        let (from, to) = (self.name(sighting.from), self.name(sighting.to));
        let arrow = if matches!(sighting.fate, Fate::Lost(_)) { "-x" } else { "->" };
        let again = if sighting.retransmission { "  (again)" } else { "" };
        let fate = match sighting.fate {
            Fate::Delivered => String::new(),
            fate => format!("  {fate}"),
        };
        let frame = describe_frame(sighting.frame);
        let line = format!("{:>9} ns  {from} {arrow} {to}  {frame}{again}{fate}\n", sighting.at.0);
        self.text.push_str(&line);
    }
}

/// A frame in one line: opcode, PSN, and what matters of the other headers.
#[must_use]
pub fn describe_frame(frame: &[u8]) -> String {
    match parse(frame) {
        Ok(packet) => format!("{:<20} {}", packet.row.name, details(&packet)),
        Err(reason) => format!("{} bytes: {reason}", frame.len()),
    }
}

fn name_of(row: &OpcodeRow) -> String {
    match row.transport {
        Transport::Rc | Transport::None => row.name.to_owned(),
        other => format!("{} {}", other.name(), row.name),
    }
}

fn details(packet: &Packet<'_>) -> String {
    let mut text = format!("psn={:06x} qp={}", packet.bth.psn().get(), packet.bth.dest_qpn().get());
    if let Some(reth) = packet.reth() {
        let _ = write!(text, " va={:#x} dma_len={}", reth.va.get(), reth.dma_length.get());
    }
    if let Some(aeth) = packet.aeth() {
        let _ = match aeth.kind() {
            Syndrome::Ack(_) => write!(text, " ack msn={}", aeth.msn()),
            Syndrome::Rnr(code) => write!(text, " rnr timer={code} msn={}", aeth.msn()),
            Syndrome::Nak(code) => write!(text, " nak={} msn={}", nak_name(code), aeth.msn()),
            Syndrome::Reserved(byte) => write!(text, " syndrome={byte:#04x}"),
        };
    }
    if let Some(immdt) = packet.immdt() {
        let _ = write!(text, " imm={:#x}", immdt.immediate.get());
    }
    if !packet.row.operation.is_response() && packet.reth().is_none()
        || !packet.payload().is_empty()
    {
        let _ = write!(text, " len={}", packet.payload().len());
    }
    if packet.bth.ack_requested() {
        text.push_str(" ackreq");
    }
    text
}

/// What a NAK or RNR NAK says, in a word or two; `None` where the frame is neither.
fn complaint(frame: &[u8]) -> Option<String> {
    match parse(frame).ok()?.aeth()?.kind() {
        Syndrome::Nak(code) => Some(format!("nak: {}", nak_name(code))),
        Syndrome::Rnr(_) => Some("rnr: receiver not ready".to_owned()),
        _ => None,
    }
}

const fn nak_name(code: u8) -> &'static str {
    match code {
        nak_code::PSN_SEQUENCE => "psn_sequence",
        nak_code::INVALID_REQUEST => "invalid_request",
        nak_code::REMOTE_ACCESS => "remote_access",
        nak_code::REMOTE_OPERATIONAL => "remote_operational",
        nak_code::INVALID_RD_REQUEST => "invalid_rd_request",
        _ => "reserved",
    }
}
