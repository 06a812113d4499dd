//! Any bytes to a tree of named fields, for people and tools. It goes on as far as the bytes make
//! sense: a refused or damaged frame has a tree too.
//!
//! A header is one table of fields here; which headers follow a BTH is the opcode table's business,
//! and whether a frame is refused is [`parse`]'s. Nothing here decides anything.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use alloc::{format, vec};
use core::fmt::{self, Write};
use core::net::{Ipv4Addr, Ipv6Addr};

use super::build::{internet_checksum, udp_checksum};
use super::fields::{self, Field, Show};
use super::opcode::{self, Ext, Payload};
use super::parse::{Network, Packet, be16, parse};
use super::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_MAC_CONTROL, ETHERTYPE_ROCE_V1,
    ETHERTYPE_SERVICE_VLAN, ETHERTYPE_VLAN, GRH_NEXT_HEADER_BTH, ROCE_V2_UDP_PORT, flow_control,
    icrc,
};
use crate::reason::Reason;

/// A field's value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// A header: its children are the values.
    None,
    /// A number.
    Number {
        /// The number.
        value: u64,
        /// Digits to print it with in hexadecimal; 0 means decimal.
        hex_digits: u8,
    },
    /// An address, or bytes in hexadecimal.
    Text(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Number { value, hex_digits: 0 } => write!(f, "{value}"),
            Self::Number { value, hex_digits } => {
                write!(f, "{value:#0width$x}", width = 2 + usize::from(*hex_digits))
            }
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// A header or a field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Name as the standards write it.
    pub name: &'static str,
    /// The value.
    pub value: Value,
    /// What the value means, in words; empty where it speaks for itself.
    pub note: String,
    /// First byte in the frame.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
    /// Highest and lowest bit, counted from the lowest bit of the big-endian number that the bytes make,
    /// where the field does not fill them.
    pub bits: Option<(u8, u8)>,
    /// The parts, in the order of the frame.
    pub children: Vec<Node>,
}

/// What the ICRC says. Numbers are as Wireshark prints them: the first byte on the wire is the highest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IcrcVerdict {
    /// The ICRC in the frame.
    pub carried: u32,
    /// The ICRC that belongs there.
    pub computed: u32,
}

impl IcrcVerdict {
    /// Whether the ICRC is right.
    #[must_use]
    pub const fn is_right(self) -> bool {
        self.carried == self.computed
    }
}

/// A decoded frame. `Display` writes it as indented, aligned text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tree {
    /// Headers in the order of the frame.
    pub nodes: Vec<Node>,
    /// The ICRC, where the lengths say without doubt where it is.
    pub icrc: Option<IcrcVerdict>,
    /// Why a receiver refuses the frame before it looks for a queue pair: the first check that fails,
    /// or a wrong ICRC.
    pub refused: Option<Reason>,
    /// One line: what it is, from where to where; of a refused frame, how far it could be understood.
    pub summary: String,
}

/// Decodes a whole Ethernet frame without FCS.
#[must_use]
pub fn decode(frame: &[u8]) -> Tree {
    let mut walk = Walk { frame, nodes: Vec::new(), icrc: None };
    walk.ethernet();
    let parsed = parse(frame);
    let refused = match &parsed {
        Ok(packet) => (!packet.icrc_valid()).then_some(Reason::Icrc),
        Err(reason) => Some(*reason),
    };
    let summary = match &parsed {
        Ok(packet) => summary(packet),
        Err(_) => refused_summary(&walk.nodes),
    };
    Tree { nodes: walk.nodes, icrc: walk.icrc, refused, summary }
}

/// The names of headers and their fields in a RoCE frame's tree, in the order of the frame. Payload,
/// pad and ICRC have no fields.
pub fn field_names() -> impl Iterator<Item = (&'static str, Option<&'static str>)> {
    let outer = [
        ("Ethernet", fields::ETHERNET),
        ("VLAN tag", fields::VLAN),
        ("IPv4", fields::IPV4),
        ("IPv6", fields::IPV6),
        ("GRH", fields::GRH),
        ("UDP", fields::UDP),
        ("BTH", fields::BTH),
    ];
    let headers = outer.into_iter().chain(fields::EXTENSIONS);
    let names = headers
        .flat_map(|(header, table)| table.iter().map(move |field| (header, Some(field.name))));
    names.chain(["Payload", "Pad", "ICRC"].map(|bytes| (bytes, None)))
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.nodes.iter().map(|node| name_width(node, 0)).max().unwrap_or(0);
        for node in &self.nodes {
            write_node(f, node, 0, width)?;
        }
        match self.refused {
            Some(reason) => writeln!(f, "refused: {reason}: {}", reason.row().text),
            None => Ok(()),
        }
    }
}

fn name_width(node: &Node, depth: usize) -> usize {
    let below = node.children.iter().map(|child| name_width(child, depth + 1)).max();
    (2 * depth + node.name.len()).max(below.unwrap_or(0))
}

fn write_node(f: &mut fmt::Formatter<'_>, node: &Node, depth: usize, width: usize) -> fmt::Result {
    let mut place = format!("{:>4}", node.offset);
    match node.bits {
        Some((high, low)) if high == low => write!(place, " [{high}]")?,
        Some((high, low)) => write!(place, " [{high}:{low}]")?,
        None => write!(place, " +{}", node.len)?,
    }
    let mut line = format!("{place:<12} {:1$}{2:<3$}", "", 2 * depth, node.name, width - 2 * depth);
    if node.value != Value::None {
        write!(line, "  {}", node.value)?;
    }
    if !node.note.is_empty() {
        write!(line, "  ({})", node.note)?;
    }
    writeln!(f, "{}", line.trim_end())?;
    node.children.iter().try_for_each(|child| write_node(f, child, depth + 1, width))
}

/// The opcode if there is one, or else the innermost header.
fn refused_summary(nodes: &[Node]) -> String {
    let bth = nodes.iter().find(|node| node.name == "BTH");
    let opcode = bth.and_then(|bth| bth.children.first()).map(|opcode| opcode.note.clone());
    let header = || nodes.iter().rfind(|node| node.value == Value::None).map(|node| node.name);
    opcode.unwrap_or_else(|| header().unwrap_or("no frame").to_string())
}

fn summary(packet: &Packet<'_>) -> String {
    let mut line = format!(
        "{}  {} > {}  QP {} PSN {}",
        fields::opcode_name(packet.bth.opcode.into()),
        packet.source_ip(),
        packet.dest_ip(),
        packet.bth.dest_qpn(),
        packet.bth.psn()
    );
    // Writing to a String cannot fail.
    if !matches!(packet.row.payload, Payload::None) {
        let _ = write!(line, "  {}", byte_count(packet.payload().len()));
    }
    if let Some(aeth) = packet.aeth() {
        let _ = write!(line, "  {}", fields::syndrome(aeth.syndrome.into()));
    }
    if let Some(reth) = packet.reth() {
        let count = byte_count(reth.dma_length.get() as usize);
        let _ = write!(line, "  {count} at {:#x}", reth.va);
    }
    line
}

/// The walk over a frame. Every offset is checked against the frame before it is read.
struct Walk<'a> {
    frame: &'a [u8],
    nodes: Vec<Node>,
    icrc: Option<IcrcVerdict>,
}

impl Walk<'_> {
    fn ethernet(&mut self) {
        let mut ethertype = self.header("Ethernet", fields::ETHERNET, 0, 14).then(|| self.be16(12));
        let mut at = 14;
        while let Some(ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN) = ethertype {
            ethertype = self.header("VLAN tag", fields::VLAN, at, 4).then(|| self.be16(at + 2));
            at += 4;
        }
        match ethertype {
            Some(ETHERTYPE_IPV4) => self.ipv4(at),
            Some(ETHERTYPE_IPV6) => self.ipv6(at),
            Some(ETHERTYPE_ROCE_V1) => self.grh(at),
            Some(ETHERTYPE_MAC_CONTROL) => self.mac_control(at),
            Some(ETHERTYPE_ARP) => {
                self.header("ARP", fields::ARP, at, 28);
                self.bytes("Ethernet padding", at + 28, self.frame.len());
            }
            Some(_) => self.bytes("Not RoCE", at, self.frame.len()),
            None => {}
        }
    }

    fn mac_control(&mut self, at: usize) {
        let opcode = self.frame.get(at..at + 2).map(|_| self.be16(at));
        let (name, table, len) = match opcode {
            Some(flow_control::OPCODE_PAUSE) => ("PAUSE", fields::PAUSE, 4),
            Some(flow_control::OPCODE_PFC) => ("PFC", fields::PFC, 20),
            _ => ("MAC control", fields::MAC_CONTROL, 2),
        };
        self.header(name, table, at, len);
        self.bytes("Ethernet padding", at + len, self.frame.len());
    }

    fn ipv4(&mut self, at: usize) {
        if !self.header("IPv4", fields::IPV4, at, 20) {
            return;
        }
        let header: [u8; 20] = self.array(at);
        let header_len = 4 * usize::from(header[0] & 15);
        if let Some(whole) = self.frame.get(at..at + header_len) {
            let right = internet_checksum(whole) == 0;
            self.note("Header checksum", if right { "right" } else { "WRONG" });
        }
        if header[0] >> 4 != 4 || header_len < 20 {
            return self.bytes("Not RoCE", at + 20, self.frame.len());
        }
        self.bytes("IPv4 options", at + 20, at + header_len);
        let end = at + usize::from(self.be16(at + 2));
        let first_fragment = self.be16(at + 6) & 0x1FFF == 0;
        if header[9] != 17 || !first_fragment {
            return self.bytes("Not RoCE", at + header_len, self.frame.len());
        }
        let network = (header_len == 20).then_some(Network::Ipv4);
        self.udp(network, at, at + header_len, end);
    }

    fn ipv6(&mut self, at: usize) {
        if !self.header("IPv6", fields::IPV6, at, 40) {
            return;
        }
        let end = at + 40 + usize::from(self.be16(at + 4));
        if self.frame[at] >> 4 == 6 && self.frame[at + 6] == 17 {
            self.udp(Some(Network::Ipv6), at, at + 40, end);
        } else {
            self.bytes("Not RoCE", at + 40, self.frame.len());
        }
    }

    fn grh(&mut self, at: usize) {
        if !self.header("GRH", fields::GRH, at, 40) {
            return;
        }
        let end = at + 40 + usize::from(self.be16(at + 4));
        if self.frame[at] >> 4 == 6 && self.frame[at + 6] == GRH_NEXT_HEADER_BTH {
            let network = (end <= self.frame.len()).then_some(Network::Grh);
            self.transport(network, at, at + 40, end.min(self.frame.len()));
        } else {
            self.bytes("Not RoCE", at + 40, self.frame.len());
        }
    }

    /// `network` is `None` where no ICRC is defined for what stood before.
    fn udp(&mut self, network: Option<Network>, l3: usize, at: usize, ip_end: usize) {
        if !self.header("UDP", fields::UDP, at, 8) {
            return;
        }
        let end = at + usize::from(self.be16(at + 4));
        let network = network.filter(|_| end == ip_end && end <= self.frame.len() && end >= at + 8);
        let carried = self.be16(at + 6);
        match network {
            _ if carried == 0 => self.note("Checksum", "none"),
            Some(network) if carried == udp_checksum(network, &self.frame[l3..end]) => {
                self.note("Checksum", "right");
            }
            Some(_) => self.note("Checksum", "WRONG"),
            None => {}
        }
        if self.be16(at + 2) == ROCE_V2_UDP_PORT {
            let end = end.min(ip_end).min(self.frame.len());
            self.transport(network, l3, at + 8, end);
        } else {
            self.bytes("Not RoCE", at + 8, self.frame.len());
        }
    }

    /// From the BTH at `at` to `end`, where the ICRC ends if `network` is given; otherwise the lengths
    /// contradict each other or the frame, and where the ICRC is cannot be known.
    fn transport(&mut self, network: Option<Network>, l3: usize, at: usize, end: usize) {
        if !self.header_within("BTH", fields::BTH, at, 12, end) {
            return;
        }
        let row = opcode::row(self.frame[at]);
        for ((which, len), (name, table)) in Ext::ORDER.into_iter().zip(fields::EXTENSIONS) {
            if let Some(offset) = row.offset_of(which)
                && !self.header_within(name, table, at + offset, usize::from(len), end)
            {
                return;
            }
        }
        let payload = at + usize::from(row.header_len);
        let Some(network) = network else {
            self.bytes("Payload and ICRC", payload, end);
            self.bytes("Trailing bytes", end, self.frame.len());
            return;
        };
        let icrc_at = end.saturating_sub(4).max(payload);
        let region = icrc_at - payload;
        let pad = region.min(usize::from(self.frame[at + 1] >> 4 & 3));
        self.bytes("Payload", payload, icrc_at - pad);
        self.bytes("Pad", icrc_at - pad, icrc_at);
        if icrc_at + 4 == end {
            self.icrc(network, l3, icrc_at);
        }
        self.bytes("Ethernet padding", end, self.frame.len());
    }

    fn icrc(&mut self, network: Network, l3: usize, at: usize) {
        let carried = u32::from_be_bytes(self.array(at));
        let computed = icrc::of(network, &self.frame[l3..at]).swap_bytes();
        let verdict = IcrcVerdict { carried, computed };
        let note = if verdict.is_right() {
            "right".to_string()
        } else {
            format!("WRONG, {computed:#010x} belongs there")
        };
        let value = Value::Number { value: carried.into(), hex_digits: 8 };
        self.nodes.push(Node { note, ..leaf("ICRC", value, at, 4) });
        self.icrc = Some(verdict);
    }

    fn header(&mut self, name: &'static str, table: &[Field], at: usize, len: usize) -> bool {
        self.header_within(name, table, at, len, self.frame.len())
    }

    /// Adds a header with those of its fields that end before `end`; false where some do not.
    fn header_within(
        &mut self,
        name: &'static str,
        table: &[Field],
        at: usize,
        len: usize,
        end: usize,
    ) -> bool {
        let here = end.saturating_sub(at).min(len);
        if here == 0 && len != 0 {
            return false;
        }
        let fields = table.iter().filter(|field| field.end() <= here);
        let children = fields.map(|field| self.field(field, at)).collect();
        let note = if here < len { format!("cut off, {len} bytes long") } else { String::new() };
        self.nodes.push(Node { note, children, ..leaf(name, Value::None, at, here) });
        here == len
    }

    /// Adds bytes `at..end`, as far as they exist.
    fn bytes(&mut self, name: &'static str, at: usize, end: usize) {
        const SHOWN: usize = 16;
        let Some(bytes) = self.frame.get(at..end.min(self.frame.len())).filter(|b| !b.is_empty())
        else {
            return;
        };
        let mut text = hex(&bytes[..bytes.len().min(SHOWN)]);
        if bytes.len() > SHOWN {
            text.push_str("...");
        }
        let note = byte_count(bytes.len());
        self.nodes.push(Node { note, ..leaf(name, Value::Text(text), at, bytes.len()) });
    }

    fn field(&self, field: &Field, at: usize) -> Node {
        let (offset, len) = (at + field.start(), field.end() - field.start());
        let bytes = &self.frame[offset..offset + len];
        let whole = field.bits as usize == 8 * len;
        let value = match field.show {
            Show::Decimal => Value::Number { value: field.value(bytes), hex_digits: 0 },
            Show::Hex => Value::Number {
                value: field.value(bytes),
                hex_digits: field.bits.div_ceil(4) as u8,
            },
            Show::Mac => Value::Text(mac(bytes)),
            Show::Ipv4 => Value::Text(Ipv4Addr::from(self.array::<4>(offset)).to_string()),
            Show::Ipv6 => Value::Text(Ipv6Addr::from(self.array::<16>(offset)).to_string()),
            Show::Bytes => Value::Text(hex(bytes)),
        };
        let bits = (!whole).then(|| field.bit_range());
        let note = field.note.map_or_else(String::new, |note| note(field.value(bytes)));
        Node { bits, note, ..leaf(field.name, value, offset, len) }
    }

    /// Puts a note on a field of the last header.
    fn note(&mut self, name: &str, note: &str) {
        let last = self.nodes.last_mut().into_iter().flat_map(|header| &mut header.children);
        for field in last.filter(|field| field.name == name) {
            field.note = note.to_string();
        }
    }

    fn be16(&self, at: usize) -> u16 {
        be16(self.frame, at).unwrap_or(0)
    }

    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        self.frame.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
    }
}

fn leaf(name: &'static str, value: Value, offset: usize, len: usize) -> Node {
    Node { name, value, note: String::new(), offset, len, bits: None, children: vec![] }
}

fn byte_count(count: usize) -> String {
    format!("{count} byte{}", if count == 1 { "" } else { "s" })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn mac(bytes: &[u8]) -> String {
    let parts: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    parts.join(":")
}
