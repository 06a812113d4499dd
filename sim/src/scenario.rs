//! A scenario file: nodes, links and phases, checked as a whole before anything runs.
//!
//! Text to [`Scenario`] and errors that name file, line, column and key. Runs nothing, reads no
//! file.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use softrnic_engine::{PathMtu, Psn, ack_timeout_ns};
use toml::Spanned;

use crate::fault::{Action, Injector, Match, Names, RawFault, Rule, Rules};
use crate::link::LinkConfig;
use crate::source::{Source, Table};

/// The embedded scenario, as text with comments.
pub const DEFAULT_SCENARIO: &str = include_str!("../scenarios/default.toml");

/// Largest message that the ERNIC face moves (PG332, "Unsupported Features").
pub(crate) const ERNIC_MESSAGE_LEN_MAX: u32 = 8 << 20;
/// Largest message of a scenario on the native face; four of them fill a node's memory.
pub(crate) const MESSAGE_LEN_MAX: u32 = 256 << 20;
/// Phases, and with them queue pairs of a node: ERNIC numbers its own from 2 to 2047.
pub(crate) const PHASES_MAX: usize = 2046;
/// Work requests in flight at most.
pub(crate) const OUTSTANDING_MAX: u32 = 1024;
/// Bytes of buffers and rings that a scenario may ask of one node.
pub(crate) const NODE_MEMORY_MAX: u64 = 1 << 30;
/// Guard bytes before, between and after message buffers.
pub(crate) const GUARD_LEN: u64 = 64;
/// Receive elements are multiples of this (ERNIC: QPCONF[31:16]).
const RQ_ELEMENT_UNIT: u32 = 256;
/// IPv6, UDP, BTH, RETH, immediate data and ICRC: what a packet may be longer than its payload by.
const HEADERS_LEN_MAX: usize = 40 + 8 + 12 + 16 + 4 + 4;

/// A checked scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Its title.
    pub name: String,
    /// Seed of payloads and loss.
    pub seed: u64,
    /// The nodes.
    pub nodes: Vec<NodeSpec>,
    /// The links between them.
    pub links: Vec<LinkSpec>,
    /// What happens, one after the other.
    pub phases: Vec<PhaseSpec>,
    /// What goes wrong on purpose: the rules of the file, then those that stand for loss rates.
    pub faults: Rules,
}

/// The programming interface that a node shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FaceKind {
    /// AMD ERNIC, driven through its registers and queues.
    Ernic,
    /// Native verbs.
    Native,
}

/// Which edition of ERNIC's register map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum ProfileKind {
    /// The register chapter as printed.
    #[serde(rename = "v4.0")]
    V40,
    /// Queue pair slots where the silicon has them.
    #[serde(rename = "v4.0-silicon")]
    V40Silicon,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    /// Its name.
    pub name: String,
    /// What software drives.
    pub face: FaceKind,
    /// The register map of an ERNIC node.
    pub profile: ProfileKind,
    /// MAC address.
    pub mac: [u8; 6],
    /// IPv4 address.
    pub ipv4: Ipv4Addr,
    /// IPv6 address.
    pub ipv6: Ipv6Addr,
    /// VLAN of its port.
    pub vlan: Option<u16>,
}

/// A link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpec {
    /// The nodes at its ends.
    pub between: [usize; 2],
    /// What it is like.
    pub config: LinkConfig,
}

/// What the messages of a phase do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OperationKind {
    /// SEND into the peer's receive ring.
    Send,
    /// RDMA WRITE into the peer's memory.
    Write,
    /// RDMA READ out of the peer's memory.
    Read,
}

/// What the messages of a phase do, all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operations {
    /// All the same.
    Only(OperationKind),
    /// Each of them one of the three, by the seed.
    Mixed,
}

impl Operations {
    const ALL: [(&'static str, Self); 4] = [
        ("send", Self::Only(OperationKind::Send)),
        ("write", Self::Only(OperationKind::Write)),
        ("read", Self::Only(OperationKind::Read)),
        ("mixed", Self::Mixed),
    ];

    /// Its word.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, operations)| *operations == self).map_or("", |(name, _)| name)
    }

    /// What a message does for which this number was drawn.
    pub(crate) const fn pick(self, drawn: u64) -> OperationKind {
        match self {
            Self::Only(operation) => operation,
            Self::Mixed => match drawn % 3 {
                0 => OperationKind::Send,
                1 => OperationKind::Write,
                _ => OperationKind::Read,
            },
        }
    }

    /// Whether there may be SENDs among them.
    const fn may_send(self) -> bool {
        matches!(self, Self::Mixed | Self::Only(OperationKind::Send))
    }
}

impl Serialize for Operations {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Operations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const NAMES: [&str; 4] = ["send", "write", "read", "mixed"];
        let word = String::deserialize(deserializer)?;
        let known = Self::ALL.into_iter().find(|(name, _)| *name == word);
        known.map(|(_, it)| it).ok_or_else(|| serde::de::Error::unknown_variant(&word, &NAMES))
    }
}

/// A run of messages over one pair of queue pairs.
#[derive(Clone, Debug, PartialEq)]
pub struct PhaseSpec {
    /// Its name.
    pub name: String,
    /// The node that posts.
    pub from: usize,
    /// Its peer.
    pub to: usize,
    /// What the messages do.
    pub operation: Operations,
    /// Number of messages; for a file, set by its length.
    pub count: u64,
    /// Bytes of a message; of the last one less, where a file ends there.
    pub size: u32,
    /// Where sizes differ, by the seed: bytes of the shortest, while `size` is the longest.
    pub size_min: Option<u32>,
    /// Work requests in flight at most.
    pub outstanding: u32,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// Whether packets are IPv6.
    pub ipv6: bool,
    /// VLAN of both ports during the phase.
    pub vlan: Option<u16>,
    /// Elements of the receive ring.
    pub rq_depth: u16,
    /// Bytes of a receive element.
    pub rq_element_len: u32,
    /// First PSN in both directions.
    pub first_psn: Psn,
    /// Local ACK timeout code.
    pub ack_timeout: u8,
    /// Retries without progress before the queue pair fails.
    pub retry_count: u8,
    /// How often both ends connect again, where the queue pair ended because the peer could not be
    /// reached (status 12 or 13). What was in flight then is given up, and the phase goes on.
    pub reconnects_max: u32,
    /// Virtual time after which the phase is given up.
    pub limit_ns: u64,
    /// A file whose bytes are carried instead of a pattern.
    pub file: Option<String>,
    /// What must also be true afterwards.
    pub expect: Expect,
}

/// Expectations beyond "every byte arrived". Absent fields are not checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// At least so many packets were sent again.
    pub retransmissions_min: Option<u64>,
    /// At most so many packets were sent again.
    pub retransmissions_max: Option<u64>,
    /// At least so many frames were lost.
    pub lost_min: Option<u64>,
}

/// A scenario that cannot run, and where its text says so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {message}")]
pub struct ScenarioError {
    /// The file's name as given.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
    /// What is wrong with which key, and the way out.
    pub message: String,
}

impl Scenario {
    /// Parses and checks. `file` is only for error messages.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn parse(file: &str, text: &str) -> Result<Self, ScenarioError> {
        let source = Source { file, text };
        let raw: RawScenario = toml::from_str(text).map_err(|e| source.reader_error(&e))?;
        let nodes = check_nodes(&source, &raw.node)?;
        let links = check_links(&source, &raw.link, &nodes)?;
        let mut phases = Vec::new();
        for (i, phase) in raw.phase.iter().enumerate() {
            let title = match &phase.get_ref().name {
                Some(name) => format!("phase {} {name:?}", i + 1),
                None => format!("phase {}", i + 1),
            };
            let table = Table { source: &source, start: phase.span().start, title };
            phases.push(check_phase(&table, phase.get_ref(), &nodes, &links)?);
        }
        if phases.is_empty() {
            let message = "no [[phase]]: nothing would happen. Add one; `rnic run \
                           --print-default` prints an example";
            return Err(source.error(0, message.to_owned()));
        }
        if let Some(phase) = raw.phase.get(PHASES_MAX) {
            let message = format!("more than {PHASES_MAX} phases: split the scenario");
            return Err(source.error(phase.span().start, message));
        }
        let mut faults = check_faults(&source, &raw.fault, &nodes, &phases)?;
        faults.0.extend(loss_rules(&raw, &links, &phases));
        let scenario = Self { name: raw.name, seed: raw.seed, nodes, links, phases, faults };
        for (node, needed) in scenario.nodes.iter().zip(scenario.memory()) {
            if needed > NODE_MEMORY_MAX {
                let message = format!(
                    "node {:?} would need {} MiB for buffers and rings, and may have {} MiB: lower \
                     size, outstanding, rq_depth or rq_element_len",
                    node.name,
                    needed >> 20,
                    NODE_MEMORY_MAX >> 20
                );
                return Err(source.error(0, message));
            }
        }
        Ok(scenario)
    }

    /// The embedded scenario.
    ///
    /// # Errors
    /// Never, unless the embedded text is broken; a test parses it.
    pub fn embedded() -> Result<Self, ScenarioError> {
        Self::parse("default.toml", DEFAULT_SCENARIO)
    }

    /// What each fault rule is called and does, in words.
    #[must_use]
    pub fn fault_labels(&self) -> Vec<String> {
        let nodes: Vec<_> = self.nodes.iter().map(|node| node.name.as_str()).collect();
        let phases: Vec<_> = self.phases.iter().map(|phase| phase.name.as_str()).collect();
        let label = |(i, rule): (usize, &Rule)| {
            let name = if rule.name.is_empty() { "" } else { &format!(" {:?}", rule.name) };
            format!("fault {}{name}, {}", i + 1, Injector::describe(rule, &nodes, &phases))
        };
        self.faults.0.iter().enumerate().map(label).collect()
    }

    /// Sets the number of messages of the phases that carry a file, from the files' lengths.
    ///
    /// # Errors
    /// A file's length that cannot be carried, with its name.
    pub fn set_file_lengths(&mut self, lengths: &BTreeMap<String, u64>) -> Result<(), String> {
        for phase in &mut self.phases {
            let Some(file) = &phase.file else { continue };
            let Some(&len) = lengths.get(file) else {
                return Err(format!("phase {:?}: the file {file:?} was not given", phase.name));
            };
            if len == 0 {
                return Err(format!("phase {:?}: the file {file:?} is empty", phase.name));
            }
            phase.count = len.div_ceil(u64::from(phase.size));
        }
        Ok(())
    }

    /// Bytes that each node needs for buffers and rings.
    #[must_use]
    pub fn memory(&self) -> Vec<u64> {
        let mut needed = vec![0; self.nodes.len()];
        for (node, bytes) in needed.iter_mut().enumerate() {
            for phase in self.phases.iter().filter(|p| p.from == node || p.to == node) {
                *bytes += phase.ring_memory();
            }
            *bytes += self.buffer_memory(node);
        }
        needed
    }

    /// Bytes of the message buffers that a node's phases share.
    pub(crate) fn buffer_memory(&self, node: usize) -> u64 {
        let phases = self.phases.iter().filter(|p| p.from == node || p.to == node);
        phases.map(PhaseSpec::buffer_memory).max().unwrap_or(0)
    }
}

impl PhaseSpec {
    /// Bytes from one message buffer to the next.
    pub(crate) fn slot_stride(&self) -> u64 {
        u64::from(self.size).next_multiple_of(GUARD_LEN) + GUARD_LEN
    }

    /// A guard, then the buffers with a guard behind each.
    pub(crate) fn buffer_memory(&self) -> u64 {
        GUARD_LEN + u64::from(self.outstanding) * self.slot_stride()
    }

    /// Receive ring, send ring and small things, roughly and never too little.
    fn ring_memory(&self) -> u64 {
        let send_ring = u64::from(self.outstanding.next_power_of_two().max(16)) * 128;
        u64::from(self.rq_depth) * u64::from(self.rq_element_len) + send_ring + 16_384
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawScenario {
    #[serde(default = "untitled")]
    name: String,
    #[serde(default)]
    seed: u64,
    #[serde(default)]
    node: Vec<Spanned<RawNode>>,
    #[serde(default)]
    link: Vec<Spanned<RawLink>>,
    #[serde(default)]
    phase: Vec<Spanned<RawPhase>>,
    #[serde(default)]
    fault: Vec<Spanned<RawFault>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNode {
    name: String,
    face: FaceKind,
    profile: Option<ProfileKind>,
    #[serde(deserialize_with = "mac_address")]
    mac: [u8; 6],
    ipv4: Ipv4Addr,
    ipv6: Ipv6Addr,
    vlan: Option<u16>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLink {
    between: [String; 2],
    latency_ns: Option<u64>,
    rate_bits_per_s: Option<u64>,
    mtu: Option<usize>,
    loss: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPhase {
    name: Option<String>,
    from: String,
    to: String,
    operation: Operations,
    count: Option<u64>,
    size: u32,
    size_min: Option<u32>,
    outstanding: Option<u32>,
    path_mtu: Option<u32>,
    ip: Option<u8>,
    vlan: Option<u16>,
    rq_depth: Option<u16>,
    rq_element_len: Option<u32>,
    first_psn: Option<u32>,
    ack_timeout: Option<u8>,
    retry_count: Option<u8>,
    loss: Option<f64>,
    reconnects: Option<u32>,
    limit_ms: Option<u64>,
    file: Option<String>,
    #[serde(default)]
    expect: Expect,
}

fn untitled() -> String {
    "untitled".to_owned()
}

fn mac_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; 6], D::Error> {
    let text = String::deserialize(deserializer)?;
    let parts: Vec<_> = text
        .split(':')
        .map_while(|p| u8::from_str_radix(p, 16).ok().filter(|_| p.len() == 2))
        .collect();
    let octets = <[u8; 6]>::try_from(parts).ok().filter(|_| text.len() == 17);
    octets.ok_or_else(|| {
        let hint = "write six octets as \"02:00:00:00:00:0a\"";
        serde::de::Error::custom(format!("mac = {text:?} is not a MAC address; {hint}"))
    })
}

fn check_nodes(
    source: &Source<'_>,
    raw: &[Spanned<RawNode>],
) -> Result<Vec<NodeSpec>, ScenarioError> {
    let mut nodes: Vec<NodeSpec> = Vec::new();
    for (i, spanned) in raw.iter().enumerate() {
        let node = spanned.get_ref();
        let title = format!("node {} {:?}", i + 1, node.name);
        let table = Table { source, start: spanned.span().start, title };
        table.require(!node.name.is_empty(), "name", " is empty")?;
        table.vlan(node.vlan)?;
        table.require(
            node.mac[0] & 1 == 0,
            "mac",
            " is a multicast address; clear bit 0 of the first octet",
        )?;
        table.require(
            node.profile.is_none() || node.face == FaceKind::Ernic,
            "profile",
            " chooses an ERNIC register map, but the face is not \"ernic\"; remove one of them",
        )?;
        for other in &nodes {
            let taken = [
                ("name", node.name == other.name),
                ("mac", node.mac == other.mac),
                ("ipv4", node.ipv4 == other.ipv4),
                ("ipv6", node.ipv6 == other.ipv6),
            ];
            for (key, same) in taken {
                table.require(!same, key, &format!(" is also node {:?}'s", other.name))?;
            }
        }
        nodes.push(NodeSpec {
            name: node.name.clone(),
            face: node.face,
            profile: node.profile.unwrap_or(ProfileKind::V40),
            mac: node.mac,
            ipv4: node.ipv4,
            ipv6: node.ipv6,
            vlan: node.vlan,
        });
    }
    Ok(nodes)
}

fn check_links(
    source: &Source<'_>,
    raw: &[Spanned<RawLink>],
    nodes: &[NodeSpec],
) -> Result<Vec<LinkSpec>, ScenarioError> {
    let mut links: Vec<LinkSpec> = Vec::new();
    let defaults = LinkConfig::default();
    for (i, spanned) in raw.iter().enumerate() {
        let link = spanned.get_ref();
        let table = Table { source, start: spanned.span().start, title: format!("link {}", i + 1) };
        let [a, b] = &link.between;
        let between = [table.node("between", a, nodes)?, table.node("between", b, nodes)?];
        table.require(between[0] != between[1], "between", " joins a node to itself")?;
        for end in between {
            let used = links.iter().any(|other| other.between.contains(&end));
            let message =
                format!(": {:?} is on another link already; a node has one port", nodes[end].name);
            table.require(!used, "between", &message)?;
        }
        table.probability("loss", link.loss)?;
        let rate_bits_per_s = link.rate_bits_per_s.unwrap_or(defaults.rate_bits_per_s);
        table.require(rate_bits_per_s >= 1_000, "rate_bits_per_s", " must be at least 1000")?;
        links.push(LinkSpec {
            between,
            config: LinkConfig {
                latency_ns: link.latency_ns.unwrap_or(defaults.latency_ns),
                rate_bits_per_s,
                mtu: link.mtu.unwrap_or(defaults.mtu),
            },
        });
    }
    Ok(links)
}

fn check_phase(
    table: &Table<'_>,
    raw: &RawPhase,
    nodes: &[NodeSpec],
    links: &[LinkSpec],
) -> Result<PhaseSpec, ScenarioError> {
    let from = table.node("from", &raw.from, nodes)?;
    let to = table.node("to", &raw.to, nodes)?;
    table.require(from != to, "to", " is the same node as from")?;
    let link = links.iter().find(|link| link.between == [from, to] || link.between == [to, from]);
    let link = link.ok_or_else(|| {
        let ends = format!(": no [[link]] is between {:?} and {:?}", raw.from, raw.to);
        table.error("to", &ends)
    })?;
    let path_mtu_len = raw.path_mtu.unwrap_or(4096);
    let path_mtu = PathMtu::from_bytes(path_mtu_len)
        .ok_or_else(|| table.error("path_mtu", " must be 256, 512, 1024, 2048 or 4096"))?;
    let mtu_needed = path_mtu_len as usize + HEADERS_LEN_MAX;
    table.require(
        mtu_needed <= link.config.mtu,
        "path_mtu",
        &format!(
            " = {path_mtu_len} makes packets of up to {mtu_needed} bytes, but the link's mtu is {}",
            link.config.mtu
        ),
    )?;
    table.vlan(raw.vlan)?;
    table.probability("loss", raw.loss)?;
    let ip = raw.ip.unwrap_or(4);
    table.require(ip == 4 || ip == 6, "ip", " must be 4 or 6")?;
    let first_psn = raw.first_psn.unwrap_or(0);
    table.require(first_psn < Psn::MODULUS, "first_psn", " has more than 24 bits")?;
    let ack_timeout = raw.ack_timeout.unwrap_or(ACK_TIMEOUT);
    let valid = ack_timeout_ns(ack_timeout).is_some() && ack_timeout < 32;
    table.require(valid, "ack_timeout", " must be a code from 1 to 31 (4.096 us x 2^code)")?;
    let retry_count = raw.retry_count.unwrap_or(7);
    table.require(retry_count <= 7, "retry_count", " must be from 0 to 7")?;
    let limit_ms = raw.limit_ms.unwrap_or(60_000);
    let limit_ns = limit_ms.checked_mul(1_000_000).filter(|&ns| ns > 0);
    let (count, outstanding) = check_counts(table, raw)?;
    let ernic = [from, to].iter().any(|&node| nodes[node].face == FaceKind::Ernic);
    check_size(table, raw, ernic)?;
    let (rq_depth, rq_element_len) = check_receive_ring(table, raw, outstanding, ernic)?;
    Ok(PhaseSpec {
        name: raw.name.clone().unwrap_or_else(|| table.title.clone()),
        from,
        to,
        operation: raw.operation,
        count,
        size: raw.size,
        size_min: raw.size_min,
        outstanding,
        path_mtu,
        ipv6: ip == 6,
        vlan: raw.vlan,
        rq_depth,
        rq_element_len,
        first_psn: Psn::new(first_psn),
        ack_timeout,
        retry_count,
        reconnects_max: raw.reconnects.unwrap_or(0),
        limit_ns: limit_ns.ok_or_else(|| table.error("limit_ms", " is 0 or far too long"))?,
        file: raw.file.clone(),
        expect: raw.expect,
    })
}

/// 4.096 us x 2^8, about a millisecond: far above the round trip of a link in one room.
const ACK_TIMEOUT: u8 = 8;

fn check_counts(table: &Table<'_>, raw: &RawPhase) -> Result<(u64, u32), ScenarioError> {
    let count = match (raw.count, &raw.file) {
        (Some(count), None) => count,
        // Known when the file is read.
        (None, Some(_)) => 1,
        (Some(_), Some(_)) => {
            let message = " contradicts file: the file's length and size say how many messages \
                           there are; remove one of them";
            return Err(table.error("count", message));
        }
        (None, None) => return Err(table.error("count", " is missing (or give file = \"...\")")),
    };
    table.require((1..=1 << 32).contains(&count), "count", " must be from 1 to 2^32")?;
    let outstanding = raw.outstanding.unwrap_or(16);
    table.require(
        (1..=OUTSTANDING_MAX).contains(&outstanding),
        "outstanding",
        &format!(" must be from 1 to {OUTSTANDING_MAX}"),
    )?;
    table.require(
        raw.file.is_none()
            || raw.operation == Operations::Only(OperationKind::Send)
            || raw.operation == Operations::Only(OperationKind::Write),
        "file",
        &format!(
            " is carried by operation = \"send\" or \"write\", not by {:?}",
            raw.operation.name()
        ),
    )?;
    Ok((count, outstanding))
}

fn check_size(table: &Table<'_>, raw: &RawPhase, ernic: bool) -> Result<(), ScenarioError> {
    let message = format!(
        " = {} is not possible: the ERNIC face moves messages of 1 to {ERNIC_MESSAGE_LEN_MAX} bytes",
        raw.size
    );
    table.require(!ernic || (1..=ERNIC_MESSAGE_LEN_MAX).contains(&raw.size), "size", &message)?;
    table.require(raw.file.is_none() || raw.size > 0, "size", " of a file's chunk cannot be 0")?;
    let least = u32::from(ernic);
    table.require(
        raw.size_min.is_none_or(|min| (least..=raw.size).contains(&min)),
        "size_min",
        &format!(" must be from {least} to size"),
    )?;
    let message = " contradicts file: a file's chunks are of one size";
    table.require(raw.size_min.is_none() || raw.file.is_none(), "size_min", message)?;
    let message = format!(" must be at most {MESSAGE_LEN_MAX} (256 MiB)");
    table.require(raw.size <= MESSAGE_LEN_MAX, "size", &message)
}

fn check_receive_ring(
    table: &Table<'_>,
    raw: &RawPhase,
    outstanding: u32,
    ernic: bool,
) -> Result<(u16, u32), ScenarioError> {
    if !raw.operation.may_send() {
        for (key, given) in
            [("rq_depth", raw.rq_depth.is_some()), ("rq_element_len", raw.rq_element_len.is_some())]
        {
            table.require(
                !given,
                key,
                " has a meaning only with operation = \"send\"; remove it",
            )?;
        }
        return Ok((2, RQ_ELEMENT_UNIT));
    }
    // One element of the ring always stays empty, and an element is freed as soon as it is checked.
    let usual = u16::try_from((outstanding + 1).next_power_of_two()).unwrap_or(u16::MAX).min(32);
    let depth = raw.rq_depth.unwrap_or(usual.max(2));
    table.require(depth >= 2, "rq_depth", " must be from 2 to 65535: one element stays empty")?;
    // ERNIC wants a power of two of units.
    let fitting = (raw.size.max(1).div_ceil(RQ_ELEMENT_UNIT)).next_power_of_two() * RQ_ELEMENT_UNIT;
    let element_len = raw.rq_element_len.unwrap_or(fitting);
    let most = if ernic { ERNIC_MESSAGE_LEN_MAX } else { MESSAGE_LEN_MAX };
    table.require(
        element_len.is_multiple_of(RQ_ELEMENT_UNIT)
            && (element_len / RQ_ELEMENT_UNIT).is_power_of_two()
            && element_len <= most,
        "rq_element_len",
        &format!(" must be 256 times a power of two, at most {most}"),
    )?;
    table.require(
        element_len >= raw.size,
        "rq_element_len",
        &format!(" = {element_len} is less than size = {}: a SEND must fit one element", raw.size),
    )?;
    Ok((depth, element_len))
}

fn check_faults(
    source: &Source<'_>,
    raw: &[Spanned<RawFault>],
    nodes: &[NodeSpec],
    phases: &[PhaseSpec],
) -> Result<Rules, ScenarioError> {
    let phases: Vec<_> = phases.iter().map(|phase| phase.name.as_str()).collect();
    let names = Names { nodes, phases: &phases };
    let mut rules = Vec::new();
    for (i, spanned) in raw.iter().enumerate() {
        let fault = spanned.get_ref();
        let table = Table { source, start: spanned.span().start, title: fault.title(i) };
        rules.push(fault.check(&table, &names)?);
    }
    Ok(Rules(rules))
}

/// A file of `[[fault]]` tables and nothing else, as a real link takes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFaults {
    #[serde(default)]
    fault: Vec<Spanned<RawFault>>,
}

impl Rules {
    /// Parses a file of `[[fault]]` tables for a real link, where there are neither other nodes nor phases.
    /// `file` is only for error messages.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn parse(file: &str, text: &str) -> Result<Self, ScenarioError> {
        let source = Source { file, text };
        let raw: RawFaults = toml::from_str(text).map_err(|e| source.reader_error(&e))?;
        check_faults(&source, &raw.fault, &[], &[])
    }
}

/// A loss rate is a rule for each end of each phase that has one.
fn loss_rules(raw: &RawScenario, links: &[LinkSpec], phases: &[PhaseSpec]) -> Vec<Rule> {
    let mut rules = Vec::new();
    for (i, (phase, raw_phase)) in phases.iter().zip(&raw.phase).enumerate() {
        let link = links.iter().position(|link| link.between.contains(&phase.from));
        let of_link = link.and_then(|link| raw.link.get(link)?.get_ref().loss);
        let Some(loss) = raw_phase.get_ref().loss.or(of_link).filter(|&loss| loss > 0.0) else {
            continue;
        };
        for node in [phase.from, phase.to] {
            let (phase, node, probability) = (Some(i), Some(node), Some(loss));
            let matches = Match { phase, node, probability, ..Match::default() };
            rules.push(Rule { name: "loss".to_owned(), matches, action: Action::Drop });
        }
    }
    rules
}
