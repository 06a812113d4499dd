//! Packets of a capture, followed from one to the next: who the stations are, which queue pairs talk to
//! each other, what was sent before, what is missing.
//!
//! It knows no file format. What a capture does not say is concluded from PSNs, as far as they go.

use std::collections::BTreeMap;
use std::net::IpAddr;

use softrnic_engine::packet::opcode::{self, Operation, Transport};
use softrnic_engine::packet::tree::{self, Value};
use softrnic_engine::{Nanos, Psn, Qpn};

use super::{Heading, Mark, Rung};

/// A record of a capture, as Ethernet.
#[derive(Clone, Copy, Debug)]
pub struct Captured<'a> {
    /// Number of the frame, from 1.
    pub number: u64,
    /// When it was recorded; `Nanos(0)` where nothing says so.
    pub at: Nanos,
    /// The bytes, as far as they were recorded.
    pub frame: &'a [u8],
    /// Bytes that the frame had on the wire.
    pub original_len: usize,
    /// The record's comments.
    pub comments: &'a [String],
}

/// One direction of a conversation: source, destination, destination queue pair.
type Flow = (usize, usize, Qpn);

/// Makes rungs of a capture's frames.
#[derive(Clone, Debug, Default)]
pub struct Follower {
    stations: Vec<IpAddr>,
    numbers: BTreeMap<IpAddr, usize>,
    /// Requests of each flow.
    requests: BTreeMap<Flow, Requests>,
    /// The flow in the other direction.
    pairs: BTreeMap<Flow, Flow>,
    /// Responses of a flow that no requests could be found for.
    unpaired: BTreeMap<Flow, u32>,
    strangers: BTreeMap<String, u64>,
}

#[derive(Clone, Copy, Debug)]
struct Requests {
    first: Psn,
    /// The highest one so far.
    last: Psn,
    /// The last one was a READ, whose PSNs nobody has counted.
    after_read: bool,
}

/// A PSN further back than this begins a new connection; none has so many packets in flight.
const WINDOW_MAX: i32 = 1 << 16;
/// Responses after which the other direction is no longer searched for.
const SEARCHES_MAX: u32 = 64;

impl Follower {
    /// Addresses of the stations, by number.
    #[must_use]
    pub fn stations(&self) -> &[IpAddr] {
        &self.stations
    }

    /// Frames that are no RoCE, by what they are.
    #[must_use]
    pub const fn strangers(&self) -> &BTreeMap<String, u64> {
        &self.strangers
    }

    /// The queue pair that packets of this rung come from, where the other direction has shown it.
    #[must_use]
    pub fn source_qpn(&self, rung: &Rung) -> Option<Qpn> {
        self.pairs.get(&(rung.from, rung.to, rung.qpn)).map(|flow| flow.2)
    }

    /// The next frame; `None` where it is no RoCE packet, which is counted.
    pub fn frame(&mut self, captured: &Captured<'_>) -> Option<Rung> {
        let Captured { number, at, comments, .. } = *captured;
        let mut frame = captured.frame.to_vec();
        // What was cut off is taken for zeroes: the headers are what matters.
        let whole = captured.original_len <= frame.len();
        let len = captured.original_len.clamp(frame.len(), FRAME_LEN_MAX.max(frame.len()));
        frame.resize(len, 0);
        let (heading, mut marks) = Heading::read(&frame);
        marks.extend(comments.iter().filter_map(|comment| Mark::of_comment(comment)));
        let addresses = heading.addresses.filter(|_| {
            // A run's own capture says what became of a frame, even if it is RoCE no longer.
            heading.opcode.is_some() || !comments.is_empty()
        });
        let Some((source, dest)) = addresses else {
            *self.strangers.entry(stranger(&frame)).or_default() += 1;
            return None;
        };
        let mut rung = Rung {
            number,
            sent: None,
            at,
            from: self.station(source),
            to: self.station(dest),
            opcode: heading.opcode,
            qpn: heading.qpn,
            psn: heading.psn,
            marks,
            notes: comments.to_vec(),
            frame,
        };
        if !whole {
            rung.notes.push(format!("{} bytes recorded of {len}", captured.frame.len()));
        } else if let Some(reason) = rung.damage()
            && !rung.marks.has(Mark::Refused)
        {
            // Nobody was there to say so, but no receiver takes it.
            rung.notes.push(format!("{}: {reason}. {}", Mark::Refused, reason.row().text));
            rung.marks.insert(Mark::Refused);
        }
        self.follow(&mut rung);
        Some(rung)
    }

    fn station(&mut self, address: IpAddr) -> usize {
        *self.numbers.entry(address).or_insert_with(|| {
            self.stations.push(address);
            self.stations.len() - 1
        })
    }

    fn follow(&mut self, rung: &mut Rung) {
        let Some(row) = rung.opcode.map(opcode::row) else { return };
        if !matches!(row.transport, Transport::Rc | Transport::Uc | Transport::Xrc) {
            return;
        }
        let flow = (rung.from, rung.to, rung.qpn);
        if row.operation.is_response() {
            return self.response(flow, rung, row.operation);
        }
        let psn = rung.psn;
        let after_read = row.operation == Operation::ReadRequest;
        let new = Requests { first: psn, last: psn, after_read };
        let Some(requests) = self.requests.get_mut(&flow) else {
            self.requests.insert(flow, new);
            return;
        };
        let ahead = psn.distance_from(requests.last);
        if ahead <= 0 && ahead > -WINDOW_MAX {
            if !rung.marks.has(Mark::Retransmission) {
                rung.marks.insert(Mark::Retransmission);
                rung.notes.push(Mark::Retransmission.to_string());
            }
            return;
        }
        if !(0..=WINDOW_MAX).contains(&ahead) {
            *requests = new;
        } else if ahead > 1 && !requests.after_read {
            rung.marks.insert(Mark::Gap);
            rung.notes.push(format!("gap: {} packets before this one are missing", ahead - 1));
        }
        requests.last = psn;
        requests.after_read = after_read;
    }

    fn response(&mut self, flow: Flow, rung: &Rung, operation: Operation) {
        let (from, to, _) = flow;
        if !self.pairs.contains_key(&flow) {
            let searches = self.unpaired.entry(flow).or_default();
            if *searches >= SEARCHES_MAX {
                return;
            }
            *searches += 1;
            let range = (to, from, Qpn::new(0))..=(to, from, Qpn::new(u32::MAX));
            let mut fitting = self.requests.range(range).filter(|(_, requests)| {
                let last = if requests.after_read { WINDOW_MAX } else { 0 };
                rung.psn.distance_from(requests.first) >= 0
                    && rung.psn.distance_from(requests.last) <= last
            });
            // Two that fit say nothing; a later response will.
            if let (Some((&other, _)), None) = (fitting.next(), fitting.next()) {
                self.pairs.insert(flow, other);
                self.pairs.insert(other, flow);
            }
        }
        if operation == Operation::ReadResponse
            && let Some(requests) =
                self.pairs.get(&flow).and_then(|other| self.requests.get_mut(other))
            && requests.after_read
            && rung.psn.distance_from(requests.last) > 0
        {
            requests.last = rung.psn;
        }
    }
}

/// Longest frame that a cut one is filled up to.
const FRAME_LEN_MAX: usize = 1 << 16;

/// What a frame that is no RoCE packet is.
fn stranger(frame: &[u8]) -> String {
    let tree = tree::decode(frame);
    let number = |header: &str, name: &str| {
        let header = tree.nodes.iter().find(|node| node.name == header)?;
        let child = header.children.iter().find(|child| child.name == name)?;
        match child.value {
            Value::Number { value, .. } => Some((value, child.note.as_str())),
            _ => None,
        }
    };
    let worded = |what: &str, (value, note): (u64, &str)| match note {
        "" => format!("{what} {value}"),
        note => note.to_owned(),
    };
    if let Some(port) = number("UDP", "Destination port") {
        return format!("UDP to port {}", port.0);
    }
    let protocol = number("IPv4", "Protocol").or_else(|| number("IPv6", "Next header"));
    if let Some(protocol) = protocol {
        let known = match protocol.0 {
            0 => "IPv6 extension headers",
            1 => "ICMP",
            2 => "IGMP",
            6 => "TCP",
            58 => "ICMPv6",
            _ => return worded("IP protocol", protocol),
        };
        return known.to_owned();
    }
    match number("Ethernet", "EtherType") {
        Some((0x88CC, _)) => "LLDP".to_owned(),
        Some((value @ ..0x600, _)) => format!("802.3 with length {value}"),
        Some((value, "")) => format!("EtherType {value:#06x}"),
        Some((_, note)) => note.to_owned(),
        None => "shorter than an Ethernet header".to_owned(),
    }
}
