//! A world as data: nodes, connections, messages and faults, and its text form.
//!
//! A plan says everything that happens, so that it plays the same on every machine, with other code
//! around it too. Plays nothing.

use serde::{Deserialize, Serialize};
use softrnic_engine::{PathMtu, Service};

use crate::fault::{Names, RawFault, Rules};
use crate::scenario::{FaceKind, NodeSpec, ProfileKind, ScenarioError};
use crate::source::{Source, Table};

/// What may be expected of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Faults are fewer than the retry budget: every reliable message arrives (P-01).
    Gentle,
    /// Any faults of a bad link; a queue pair may give up.
    Rough,
    /// Frames lie, with a right ICRC: contents may be wrong, but nothing else.
    Hostile,
}

/// Transport service of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServiceKind {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

impl ServiceKind {
    pub(crate) const fn service(self) -> Service {
        match self {
            Self::Rc => Service::Rc,
            Self::Uc => Service::Uc,
            Self::Ud => Service::Ud,
        }
    }
}

/// What a message does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// SEND.
    Send,
    /// SEND WITH IMMEDIATE.
    SendImm,
    /// SEND WITH INVALIDATE of a region made for it.
    SendInv,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE WITH IMMEDIATE.
    WriteImm,
    /// RDMA READ.
    Read,
    /// FETCH AND ADD; each message of a cell has a digit of its own.
    FetchAdd,
    /// COMPARE AND SWAP from the value of the one before to its own.
    CompareSwap,
}

impl Kind {
    /// Whether it is a SEND of some kind.
    #[must_use]
    pub const fn is_send(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::SendInv)
    }

    /// Whether a peer's receive buffer may be used up by it.
    #[must_use]
    pub const fn takes_receive(self) -> bool {
        self.is_send() || matches!(self, Self::WriteImm)
    }

    /// Whether it is a FETCH AND ADD or a COMPARE AND SWAP.
    #[must_use]
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap)
    }

    /// Whether it waits for data of the peer.
    #[must_use]
    pub const fn reads(self) -> bool {
        matches!(self, Self::Read | Self::FetchAdd | Self::CompareSwap)
    }

    /// Whether it carries immediate data.
    #[must_use]
    pub const fn has_immediate(self) -> bool {
        matches!(self, Self::SendImm | Self::WriteImm)
    }
}

/// What is wrong with a message on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flaw {
    /// A key that nobody has.
    Key,
    /// It ends one byte behind the region.
    Range,
    /// One byte longer than the receive buffer.
    TooLong,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodePlan {
    /// What software drives.
    pub face: FaceKind,
    /// ERNIC's register map.
    pub profile: ProfileKind,
    /// Native: all queue pairs complete into one queue.
    pub shared_cq: bool,
    /// Native: connected queue pairs receive from one queue.
    pub shared_rq: bool,
}

/// Two queue pairs that talk to each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectionPlan {
    /// The nodes of its two ends.
    pub nodes: [usize; 2],
    /// Transport service.
    pub service: ServiceKind,
    /// Whether packets are IPv6.
    pub ipv6: bool,
    /// Path MTU in bytes.
    pub path_mtu: u32,
    /// First PSN that each end sends.
    pub first_psn: [u32; 2],
    /// Partition key of each end.
    pub pkey: [u16; 2],
    /// Local ACK timeout code, 1 to 31.
    pub ack_timeout: u8,
    /// Retries without progress.
    pub retry_count: u8,
    /// Retries after RNR NAKs.
    pub rnr_retry: u8,
    /// Timer code of RNR NAKs.
    pub min_rnr_timer: u8,
    /// READs and atomics that each end keeps outstanding; native ends only.
    pub max_rd_atomic: [u8; 2],
    /// READs and atomics that each end takes; native ends only.
    pub max_dest_rd_atomic: [u8; 2],
    /// Unacknowledged packets at most; native ends only.
    pub window_packets: u32,
    /// AckReq on each n-th packet; native ends only.
    pub ack_request_every: u32,
    /// End-to-end credits; native ends only.
    pub credits: bool,
    /// DCQCN and its CNPs; native ends only.
    pub dcqcn: bool,
    /// Work requests in flight at most.
    pub outstanding: u32,
    /// Receive buffers of each end.
    pub receives: u32,
    /// Bytes of a receive buffer, a multiple of 256.
    pub receive_len: u32,
    /// Software gives a buffer back so much later.
    pub receive_delay_ns: u64,
}

impl ConnectionPlan {
    pub(crate) fn mtu(&self) -> PathMtu {
        PathMtu::from_bytes(self.path_mtu).unwrap_or_default()
    }
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MessagePlan {
    /// Of which connection.
    pub connection: usize,
    /// The end that posts it, 0 or 1.
    pub from: usize,
    /// What it does.
    pub kind: Kind,
    /// Bytes; 8 for atomics.
    pub len: u32,
    /// Posted no sooner.
    pub at_ns: u64,
    /// Reports its success.
    pub signaled: bool,
    /// Asks for a solicited event.
    pub solicited: bool,
    /// Waits for earlier READs and atomics.
    pub fence: bool,
    /// Gather or scatter elements.
    pub sges: u32,
    /// What is wrong with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flaw: Option<Flaw>,
}

/// A world.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Where payloads and the faults' draws come from.
    pub seed: u64,
    /// What may be expected.
    pub class: Class,
    /// Rate of each cable in bits per second.
    pub rate_bits_per_s: u64,
    /// Latency of each cable.
    pub latency_ns: u64,
    /// The nodes, all on one switch.
    #[serde(default)]
    pub node: Vec<NodePlan>,
    /// The connections.
    #[serde(default)]
    pub connection: Vec<ConnectionPlan>,
    /// The messages; those of one end are posted in this order.
    #[serde(default)]
    pub message: Vec<MessagePlan>,
    /// The faults.
    #[serde(skip)]
    pub faults: Rules,
}

#[derive(Serialize)]
struct WorldText<'a> {
    world: &'a Plan,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawWorld {
    world: Plan,
    #[serde(default)]
    fault: Vec<toml::Spanned<RawFault>>,
}

impl Plan {
    /// Whether a scenario file's text is a world's: it has a table `world`.
    #[must_use]
    pub fn is_world(text: &str) -> bool {
        text.lines().any(|line| line.trim() == "[world]")
    }

    /// Names of the nodes: `n0`, `n1`...
    #[must_use]
    pub fn node_names(&self) -> Vec<String> {
        (0..self.node.len()).map(|i| format!("n{i}")).collect()
    }

    /// As a scenario file that plays it again.
    #[must_use]
    pub fn to_toml(&self) -> String {
        // Strings, numbers and flags alone: there is nothing that TOML cannot say.
        let world = toml::to_string(&WorldText { world: self }).unwrap_or_default();
        let names = self.node_names();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        if self.faults.0.is_empty() {
            return world;
        }
        format!("{world}\n{}", self.faults.to_toml(&names, &[]))
    }

    /// Reads the scenario file of a world. `file` is only for error messages.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn parse(file: &str, text: &str) -> Result<Self, ScenarioError> {
        let source = Source { file, text };
        let raw: RawWorld = toml::from_str(text).map_err(|error| {
            source.error(error.span().map_or(0, |span| span.start), error.message().to_owned())
        })?;
        let mut plan = raw.world;
        let specs: Vec<_> = (0..plan.node.len()).map(|i| plan.spec(i)).collect();
        let names = Names { nodes: &specs, phases: &[] };
        for (i, fault) in raw.fault.iter().enumerate() {
            let title = fault.get_ref().title(i);
            let table = Table { source: &source, start: fault.span().start, title };
            plan.faults.0.push(fault.get_ref().check(&table, &names)?);
        }
        plan.check().map_err(|message| source.error(0, message))?;
        Ok(plan)
    }

    /// A node as a scenario would describe it.
    pub(crate) fn spec(&self, node: usize) -> NodeSpec {
        let n = node as u8;
        NodeSpec {
            name: format!("n{node}"),
            face: self.node[node].face,
            profile: self.node[node].profile,
            mac: [2, 0, 0, 0, 1, n],
            ipv4: [10, 9, 0, n + 1].into(),
            ipv6: [0xFD00, 0, 0, 0, 0, 0, 0, u16::from(n) + 1].into(),
            vlan: None,
        }
    }

    /// What types do not say: numbers that name something, and sizes.
    fn check(&self) -> Result<(), String> {
        let require = |holds: bool, what: &str| if holds { Ok(()) } else { Err(what.to_owned()) };
        require(self.node.len() <= 32, "a world has at most 32 nodes")?;
        require(self.connection.len() <= 256, "a world has at most 256 connections")?;
        require(self.message.len() <= 10_000, "a world has at most 10000 messages")?;
        require(self.rate_bits_per_s >= 1000, "rate_bits_per_s is at least 1000")?;
        for (i, c) in self.connection.iter().enumerate() {
            let [a, b] = c.nodes;
            let known = a != b && a.max(b) < self.node.len();
            require(known, &format!("connection {i}: nodes are two of the world's"))?;
            let mtu = PathMtu::from_bytes(c.path_mtu).is_some();
            require(mtu, &format!("connection {i}: path_mtu is 256, 512, 1024, 2048 or 4096"))?;
            let sizes = (1..=1024).contains(&c.outstanding)
                && (1..=1024).contains(&c.receives)
                && c.receive_len.is_power_of_two()
                && (256..=1 << 20).contains(&c.receive_len);
            let text =
                "outstanding and receives are 1 to 1024, receive_len is a power of two from 256 on";
            require(sizes, &format!("connection {i}: {text}"))?;
            require(
                (1..=31).contains(&c.ack_timeout),
                &format!("connection {i}: ack_timeout is 1 to 31"),
            )?;
            let native = |node: usize| self.node[node].face == FaceKind::Native;
            let faces = c.service == ServiceKind::Rc || (native(a) && native(b));
            require(faces, &format!("connection {i}: ERNIC has reliable connections only"))?;
        }
        for (i, m) in self.message.iter().enumerate() {
            let known = m.connection < self.connection.len() && m.from < 2 && m.len <= 1 << 20;
            require(known, &format!("message {i}: connection, from or len is out of range"))?;
        }
        Ok(())
    }
}
