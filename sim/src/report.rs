//! What a run found: plain data, the same in every build and on every machine.
//!
//! Holds nothing that a wall clock said.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use serde::Serialize;

use crate::scenario::{FaceKind, Operations};
use crate::series::Series;

/// A whole run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The scenario's title.
    pub scenario: String,
    /// Seed of payloads and losses.
    pub seed: u64,
    /// Every byte was compared and none differed, no completion was missing, all expectations held.
    pub passed: bool,
    /// One for each phase.
    pub phases: Vec<PhaseReport>,
    /// One for each node.
    pub nodes: Vec<NodeReport>,
    /// One for each fault rule, those that never fired too.
    pub faults: Vec<FaultReport>,
}

/// What a fault rule has done.
#[derive(Clone, Debug, Serialize)]
pub struct FaultReport {
    /// Its number, name and meaning, in words.
    pub rule: String,
    /// Frames or calls that it looked for, but for probability, `nth` and `times`.
    pub matched: u64,
    /// How often it fired.
    pub fired: u64,
    /// When and on what, the first thousand times.
    pub firings: Vec<FiringReport>,
}

/// One firing of a fault rule.
#[derive(Clone, Debug, Serialize)]
pub struct FiringReport {
    /// Virtual time.
    pub at_ns: u64,
    /// At which node.
    pub node: String,
    /// The frame as it was before, in words.
    pub what: String,
}

/// One phase.
#[derive(Clone, Debug, Serialize)]
pub struct PhaseReport {
    /// Its name.
    pub name: String,
    /// Posting node.
    pub from: String,
    /// Its peer.
    pub to: String,
    /// Face of the posting node.
    pub face: FaceKind,
    /// What the messages did.
    pub operation: Operations,
    /// Path MTU in bytes.
    pub path_mtu: u32,
    /// PSN of the first request packet.
    pub first_psn: u32,
    /// 4 or 6.
    pub ip: u8,
    /// VLAN of both ports.
    pub vlan: Option<u16>,
    /// Bytes of a message.
    pub size: u32,
    /// Work requests in flight at most.
    pub outstanding: u32,
    /// Messages that should arrive.
    pub expected_messages: u64,
    /// Messages that arrived, were completed, and were compared byte by byte without a difference.
    pub messages: u64,
    /// Messages that were given up with their queue pair, because the peer could not be reached.
    pub given_up: u64,
    /// How often both ends connected again.
    pub reconnects: u32,
    /// Bytes of those messages that arrived.
    pub bytes: u64,
    /// Frames on the link in both directions, lost ones included.
    pub frames: u64,
    /// Frames sent again, both directions.
    pub retransmissions: u64,
    /// Frames lost, both directions.
    pub lost: u64,
    /// Frames that a receiver did not execute, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// The first of them, one by one.
    pub refused_packets: Vec<RefusedPacket>,
    /// Virtual time from posting to completion.
    pub latency_ns: Latency,
    /// Virtual time from the first post to the last completion.
    pub duration_ns: u64,
    /// Payload bits per virtual second.
    pub goodput_bits_per_s: u64,
    /// The file that was carried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<FileReport>,
    /// The posting node's queue pair; 0 where none was opened.
    pub qpn: u32,
    /// Values over virtual time. For drawing, and not in the JSON.
    #[serde(skip)]
    pub series: Series,
    /// What went wrong, the first few in words.
    pub failures: Vec<String>,
    /// How much went wrong in all.
    pub failure_count: u64,
}

/// A frame that a receiver did not execute.
#[derive(Clone, Debug, Serialize)]
pub struct RefusedPacket {
    /// When it arrived, in nanoseconds of virtual time.
    pub at_ns: u64,
    /// Who sent it.
    pub from: String,
    /// Who refused it.
    pub to: String,
    /// Why.
    pub reason: &'static str,
    /// Service and opcode; the rest is `null`, too, where the BTH could not be read.
    pub opcode: Option<String>,
    /// Destination queue pair.
    pub qpn: Option<u32>,
    /// PSN.
    pub psn: Option<u32>,
}

/// Percentiles in nanoseconds; 0 where nothing completed.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Latency {
    /// Half of the messages were faster.
    pub p50: u64,
    /// 99 of 100 messages were faster.
    pub p99: u64,
    /// The slowest.
    pub max: u64,
}

/// A file that was carried across.
#[derive(Clone, Debug, Serialize)]
pub struct FileReport {
    /// Its name in the scenario.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// SHA-256 of what was sent.
    pub sent_sha256: String,
    /// SHA-256 of what stood in the receiver's memory.
    pub received_sha256: String,
}

/// One node.
#[derive(Clone, Debug, Serialize)]
pub struct NodeReport {
    /// Its name.
    pub name: String,
    /// Its face.
    pub face: FaceKind,
    /// IPv4 address.
    pub ipv4: Ipv4Addr,
    /// IPv6 address.
    pub ipv6: Ipv6Addr,
    /// Where the counters were read.
    pub source: &'static str,
    /// Its counters, by name.
    pub counters: Vec<(&'static str, u64)>,
    /// What the device refused since the start, by reason.
    pub refused: BTreeMap<&'static str, u64>,
}
