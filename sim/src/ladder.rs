//! A packet ladder as text: one line for each frame, as a reviewer wants to read it in a diff.
//!
//! Reads frames with the engine's parser; keeps nothing but text.

use std::fmt::Write;

use softrnic_engine::packet::{Packet, Syndrome, nak_code, parse};

use crate::link::Loss;
use crate::world::{Fate, Observer, Sighting};

/// An observer that writes a ladder.
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
        let line = format!(
            "{:>9} ns  {from} {arrow} {to}  {}{}",
            sighting.at.0,
            describe_frame(sighting.frame),
            describe_fate(sighting)
        );
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }
}

/// A frame in one line: opcode, PSN, and what matters of the other headers.
#[must_use]
pub fn describe_frame(frame: &[u8]) -> String {
    match parse(frame) {
        Ok(packet) => describe_packet(&packet),
        Err(reason) => format!("{} bytes: {reason}", frame.len()),
    }
}

/// What became of a frame, for a comment; empty where it was simply executed.
#[must_use]
pub fn describe_fate(sighting: &Sighting<'_>) -> String {
    let mut text = String::new();
    if sighting.retransmission {
        text.push_str("  (again)");
    }
    // Writing to a String cannot fail.
    let _ = match sighting.fate {
        Fate::Delivered => Ok(()),
        Fate::Duplicate => write!(text, "  duplicate: executed before, answered again"),
        Fate::Refused(reason) => write!(text, "  refused: {reason}"),
        Fate::Lost(Loss::Chance) => write!(text, "  lost: by the link's loss rate"),
        Fate::Lost(Loss::Rule(i)) => write!(text, "  lost: by drop rule {}", i + 1),
        Fate::Lost(Loss::TooLong) => write!(text, "  lost: longer than the link's MTU"),
    };
    text
}

fn describe_packet(packet: &Packet<'_>) -> String {
    let mut text = format!("{:<20} psn={:06x}", packet.row.name, packet.bth.psn().get());
    let _ = write!(text, " qp={}", packet.bth.dest_qpn().get());
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
