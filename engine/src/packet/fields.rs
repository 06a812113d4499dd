//! The fields of every header, one table a header, for decoding to people: name, place, how to print.
//!
//! Layout for machines is `headers`; a test keeps the two apart by value, not by sharing code.

use alloc::format;
use alloc::string::{String, ToString};

use super::headers::Syndrome;
use super::opcode::{self, Ext};
use super::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_MAC_CONTROL, ETHERTYPE_ROCE_V1,
    ETHERTYPE_SERVICE_VLAN, ETHERTYPE_VLAN, GRH_NEXT_HEADER_BTH, ROCE_V2_UDP_PORT, flow_control,
};
use crate::explain::nak_name;
use crate::numbers::rnr_timer_ns;

/// How a field is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Show {
    Decimal,
    Hex,
    Mac,
    Ipv4,
    Ipv6,
    Bytes,
}

/// One field of a header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    /// First bit, counted from the header's first; bit 0 is the highest of byte 0.
    pub(super) bit: u16,
    pub(super) bits: u16,
    pub(super) show: Show,
    /// What a value means.
    pub(super) note: Option<fn(u64) -> String>,
}

impl Field {
    /// First byte that has bits of the field.
    pub(super) const fn start(&self) -> usize {
        (self.bit / 8) as usize
    }

    /// Byte after the last one that has bits of the field.
    pub(super) const fn end(&self) -> usize {
        (self.bit + self.bits).div_ceil(8) as usize
    }

    /// Highest and lowest bit in the big-endian number of the field's bytes.
    pub(super) const fn bit_range(&self) -> (u8, u8) {
        let low = 8 * self.end() as u16 - self.bit - self.bits;
        ((low + self.bits - 1) as u8, low as u8)
    }

    /// The field as a number, out of the bytes `start..end`; of long fields, the last 64 bits.
    pub(super) fn value(&self, bytes: &[u8]) -> u64 {
        let number = bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte));
        let (_, low) = self.bit_range();
        let mask = if self.bits >= 64 { u64::MAX } else { (1 << self.bits) - 1 };
        number >> low & mask
    }

    const fn noted(mut self, note: fn(u64) -> String) -> Self {
        self.note = Some(note);
        self
    }
}

const fn f(name: &'static str, bit: u16, bits: u16, show: Show) -> Field {
    Field { name, bit, bits, show, note: None }
}

use Show::{Bytes, Decimal, Hex};

pub(super) const ETHERNET: &[Field] = &[
    f("Destination", 0, 48, Show::Mac),
    f("Source", 48, 48, Show::Mac),
    f("EtherType", 96, 16, Hex).noted(ethertype),
];

pub(super) const VLAN: &[Field] = &[
    f("PCP", 0, 3, Decimal),
    f("DEI", 3, 1, Decimal),
    f("VID", 4, 12, Decimal),
    f("EtherType", 16, 16, Hex).noted(ethertype),
];

pub(super) const IPV4: &[Field] = &[
    f("Version", 0, 4, Decimal),
    f("IHL", 4, 4, Decimal).noted(|words| format!("{} bytes", 4 * words)),
    f("DSCP", 8, 6, Decimal),
    f("ECN", 14, 2, Decimal).noted(ecn),
    f("Total length", 16, 16, Decimal),
    f("Identification", 32, 16, Hex),
    f("Reserved", 48, 1, Decimal),
    f("DF", 49, 1, Decimal),
    f("MF", 50, 1, Decimal),
    f("Fragment offset", 51, 13, Decimal),
    f("TTL", 64, 8, Decimal),
    f("Protocol", 72, 8, Decimal).noted(protocol),
    f("Header checksum", 80, 16, Hex),
    f("Source", 96, 32, Show::Ipv4),
    f("Destination", 128, 32, Show::Ipv4),
];

pub(super) const IPV6: &[Field] = &[
    f("Version", 0, 4, Decimal),
    f("DSCP", 4, 6, Decimal),
    f("ECN", 10, 2, Decimal).noted(ecn),
    f("Flow label", 12, 20, Hex),
    f("Payload length", 32, 16, Decimal),
    f("Next header", 48, 8, Decimal).noted(protocol),
    f("Hop limit", 56, 8, Decimal),
    f("Source", 64, 128, Show::Ipv6),
    f("Destination", 192, 128, Show::Ipv6),
];

pub(super) const GRH: &[Field] = &[
    f("IPVer", 0, 4, Decimal),
    f("TClass", 4, 8, Hex),
    f("FlowLabel", 12, 20, Hex),
    f("PayLen", 32, 16, Decimal),
    f("NxtHdr", 48, 8, Hex).noted(next_header),
    f("HopLmt", 56, 8, Decimal),
    f("SGID", 64, 128, Show::Ipv6),
    f("DGID", 192, 128, Show::Ipv6),
];

pub(super) const UDP: &[Field] = &[
    f("Source port", 0, 16, Decimal),
    f("Destination port", 16, 16, Decimal).noted(port),
    f("Length", 32, 16, Decimal),
    f("Checksum", 48, 16, Hex),
];

pub(super) const BTH: &[Field] = &[
    f("OpCode", 0, 8, Hex).noted(opcode_name),
    f("SE", 8, 1, Decimal),
    f("M", 9, 1, Decimal),
    f("PadCnt", 10, 2, Decimal),
    f("TVer", 12, 4, Decimal),
    f("P_Key", 16, 16, Hex),
    f("FECN", 32, 1, Decimal),
    f("BECN", 33, 1, Decimal),
    f("Reserved", 34, 6, Hex),
    f("DestQP", 40, 24, Hex),
    f("AckReq", 64, 1, Decimal),
    f("Reserved", 65, 7, Hex),
    f("PSN", 72, 24, Hex),
];

/// Name and fields of every extension header, in the order of [`Ext::ORDER`].
pub(super) const EXTENSIONS: [(&str, &[Field]); Ext::ORDER.len()] = [
    ("XRCETH", &[f("Reserved", 0, 8, Hex), f("XRC SRQ", 8, 24, Hex)]),
    ("DETH", &[f("Q_Key", 0, 32, Hex), f("Reserved", 32, 8, Hex), f("Source QP", 40, 24, Hex)]),
    (
        "FETH",
        &[
            f("Reserved", 0, 26, Hex),
            f("Selectivity", 26, 2, Decimal).noted(selectivity),
            f("Placement type", 28, 4, Hex).noted(placement),
        ],
    ),
    ("RETH", &[f("VA", 0, 64, Hex), f("R_Key", 64, 32, Hex), f("DMA length", 96, 32, Decimal)]),
    (
        "AtomicETH",
        &[
            f("VA", 0, 64, Hex),
            f("R_Key", 64, 32, Hex),
            f("Swap or add", 96, 64, Hex),
            f("Compare", 160, 64, Hex),
        ],
    ),
    ("AETH", &[f("Syndrome", 0, 8, Hex).noted(syndrome), f("MSN", 8, 24, Decimal)]),
    ("AtomicAckETH", &[f("Original data", 0, 64, Hex)]),
    ("ImmDt", &[f("Immediate", 0, 32, Hex)]),
    ("IETH", &[f("R_Key", 0, 32, Hex)]),
    ("CNP", &[f("Reserved", 0, 128, Bytes)]),
];

pub(super) const ARP: &[Field] = &[
    f("Hardware type", 0, 16, Decimal),
    f("Protocol type", 16, 16, Hex).noted(ethertype),
    f("Hardware length", 32, 8, Decimal),
    f("Protocol length", 40, 8, Decimal),
    f("Operation", 48, 16, Decimal).noted(arp_operation),
    f("Sender MAC", 64, 48, Show::Mac),
    f("Sender IP", 112, 32, Show::Ipv4),
    f("Target MAC", 144, 48, Show::Mac),
    f("Target IP", 192, 32, Show::Ipv4),
];

pub(super) const MAC_CONTROL: &[Field] = &[f("Opcode", 0, 16, Hex).noted(mac_control)];

pub(super) const PAUSE: &[Field] =
    &[f("Opcode", 0, 16, Hex).noted(mac_control), f("Pause time", 16, 16, Decimal).noted(quanta)];

pub(super) const PFC: &[Field] = &[
    f("Opcode", 0, 16, Hex).noted(mac_control),
    f("Reserved", 16, 8, Hex),
    f("Class enable", 24, 8, Hex),
    f("Pause time 0", 32, 16, Decimal).noted(quanta),
    f("Pause time 1", 48, 16, Decimal).noted(quanta),
    f("Pause time 2", 64, 16, Decimal).noted(quanta),
    f("Pause time 3", 80, 16, Decimal).noted(quanta),
    f("Pause time 4", 96, 16, Decimal).noted(quanta),
    f("Pause time 5", 112, 16, Decimal).noted(quanta),
    f("Pause time 6", 128, 16, Decimal).noted(quanta),
    f("Pause time 7", 144, 16, Decimal).noted(quanta),
];

/// An AETH syndrome in words.
pub(super) fn syndrome(byte: u64) -> String {
    match Syndrome::of(byte as u8) {
        Syndrome::Ack(31) => "ACK, no credits counted".to_string(),
        Syndrome::Ack(code) => format!("ACK, credit code {code}"),
        Syndrome::Rnr(code) => {
            format!("RNR NAK, timer {} us", rnr_timer_ns(code) / 1000)
        }
        Syndrome::Nak(code) => {
            format!("NAK, {}", nak_name(code))
        }
        Syndrome::Reserved(_) => "reserved".to_string(),
    }
}

/// An opcode with its service, as the standard writes it.
pub(super) fn opcode_name(value: u64) -> String {
    let row = opcode::row(value as u8);
    if row.is_known() && row.name == row.transport.name() {
        return row.name.to_string();
    }
    format!("{} {}", row.transport.name(), row.name)
}

fn name(value: u64, names: &[(u64, &str)]) -> String {
    names.iter().find(|(v, _)| *v == value).map_or_else(String::new, |(_, name)| name.to_string())
}

fn ethertype(value: u64) -> String {
    const NAMES: [(u16, &str); 7] = [
        (ETHERTYPE_IPV4, "IPv4"),
        (ETHERTYPE_IPV6, "IPv6"),
        (ETHERTYPE_ARP, "ARP"),
        (ETHERTYPE_ROCE_V1, "RoCE v1"),
        (ETHERTYPE_VLAN, "802.1Q"),
        (ETHERTYPE_SERVICE_VLAN, "802.1ad"),
        (ETHERTYPE_MAC_CONTROL, "MAC control"),
    ];
    name(value, &NAMES.map(|(v, name)| (v.into(), name)))
}

fn protocol(value: u64) -> String {
    name(value, &[(1, "ICMP"), (6, "TCP"), (17, "UDP"), (58, "ICMPv6")])
}

fn next_header(value: u64) -> String {
    name(value, &[(GRH_NEXT_HEADER_BTH.into(), "BTH")])
}

fn port(value: u64) -> String {
    name(value, &[(ROCE_V2_UDP_PORT.into(), "RoCE v2")])
}

fn ecn(value: u64) -> String {
    name(value, &[(0, "not ECT"), (1, "ECT(1)"), (2, "ECT(0)"), (3, "congestion experienced")])
}

fn mac_control(value: u64) -> String {
    name(
        value,
        &[(flow_control::OPCODE_PAUSE.into(), "PAUSE"), (flow_control::OPCODE_PFC.into(), "PFC")],
    )
}

fn quanta(value: u64) -> String {
    format!("{} bit times", value * 512)
}

fn arp_operation(value: u64) -> String {
    name(value, &[(1, "request"), (2, "reply")])
}

fn selectivity(value: u64) -> String {
    name(value, &[(0, "range"), (1, "whole region")])
}

fn placement(value: u64) -> String {
    name(value, &[(1, "global visibility"), (2, "persistence"), (3, "both")])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every table covers its header's bits once and in order: no gap, no overlap.
    #[test]
    fn f_20_field_tables_cover_their_headers_without_gaps() {
        let fixed: [(&[Field], usize); 11] = [
            (ETHERNET, 14),
            (VLAN, 4),
            (IPV4, 20),
            (IPV6, 40),
            (GRH, 40),
            (UDP, 8),
            (BTH, 12),
            (ARP, 28),
            (MAC_CONTROL, 2),
            (PAUSE, 4),
            (PFC, 20),
        ];
        let extensions =
            EXTENSIONS.iter().zip(Ext::ORDER).map(|((_, table), (_, len))| (*table, len.into()));
        for (table, len) in fixed.into_iter().chain(extensions) {
            let end = table.iter().fold(0, |at, field| {
                assert_eq!(field.bit, at, "{}", field.name);
                at + field.bits
            });
            assert_eq!(usize::from(end), 8 * len, "{}", table[0].name);
        }
    }
}
