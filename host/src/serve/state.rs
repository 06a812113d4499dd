//! What there is to see of a device that is served, as plain data: what `rnic show` prints, the control
//! socket answers and metrics are made from.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use softrnic_device::ernic::Ernic;
use softrnic_device::verbs::Verbs;
use softrnic_device::{Device, Memory, Nic};
use softrnic_engine::Nanos;
use softrnic_sim::fault::Injector;
use softrnic_sim::{DeviceState, WorldState};

use crate::link::LinkCounters;
use crate::port::{Neighbour, NeighbourState, PortCounters};
use crate::station::{FaultCounters, Station};

/// A device with a name for its face.
pub trait Described<M: Memory>: Device<M> + Sized {
    /// The device as it is now.
    fn describe(name: &str, nic: &Nic<Self, M>) -> DeviceState;
}

impl<M: Memory> Described<M> for Verbs {
    fn describe(name: &str, nic: &Nic<Self, M>) -> DeviceState {
        DeviceState::of_verbs(name, nic)
    }
}

impl<M: Memory> Described<M> for Ernic {
    fn describe(name: &str, nic: &Nic<Self, M>) -> DeviceState {
        DeviceState::of_ernic(name, nic)
    }
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServeState {
    /// The device, as a world of one.
    #[serde(flatten)]
    pub world: WorldState,
    /// Its link.
    pub link: LinkState,
    /// What the host's side of the port did, by name.
    pub port: Vec<(String, u64)>,
    /// Whom it knows.
    pub neighbours: Vec<NeighbourEntry>,
    /// The fault rules.
    pub fault_rules: Vec<FaultState>,
    /// What the rules did to frames, by name.
    pub fault_frames: Vec<(String, u64)>,
}

/// A link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkState {
    /// What it is, as `--link` says it.
    pub url: String,
    /// It is open.
    pub up: bool,
    /// Longest IP packet in bytes.
    pub mtu: u16,
    /// How often it went away.
    pub lost: u64,
    /// What it did since it was opened, by name.
    pub counters: Vec<(String, u64)>,
}

/// A neighbour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeighbourEntry {
    /// Its address.
    pub ip: IpAddr,
    /// Where it is, as far as it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// `permanent`, `reachable`, `incomplete` or `failed`, as `ip neighbour` says it.
    pub state: String,
}

/// A fault rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultState {
    /// Its number, from 1.
    pub rule: usize,
    /// What its file calls it; may be empty.
    pub name: String,
    /// What it does, in words.
    pub text: String,
    /// It is in force.
    pub on: bool,
    /// Frames and calls that it was about.
    pub matched: u64,
    /// How often it fired.
    pub fired: u64,
}

/// Looks at a station.
pub(super) fn look<D: Described<M>, M: Memory>(
    name: &str,
    now: Nanos,
    station: &Station<D, M>,
    up: bool,
    lost: u64,
) -> ServeState {
    let device = D::describe(name, &station.nic);
    let title = format!("rnic serve, device {name}");
    ServeState {
        world: WorldState { title, at_ns: now.0, devices: vec![device] },
        link: LinkState {
            url: station.link().name().to_owned(),
            up,
            mtu: station.link().limits().mtu,
            lost,
            counters: link_counters(station.link().counters()),
        },
        port: port_counters(station.port().counters()),
        neighbours: station.port().neighbours().map(neighbour).collect(),
        fault_rules: fault_rules(name, station.faults()),
        fault_frames: fault_frames(station.fault_counters()),
    }
}

fn named<const N: usize>(counters: [(&str, u64); N]) -> Vec<(String, u64)> {
    counters.map(|(name, value)| (name.to_owned(), value)).into()
}

fn link_counters(counters: LinkCounters) -> Vec<(String, u64)> {
    let LinkCounters {
        rx_frames,
        rx_bytes,
        tx_frames,
        tx_bytes,
        rx_length_errors,
        tx_dropped,
        tx_length_errors,
        tx_not_carried,
        rx_dropped,
        icrc_ip_id_inferred,
        icrc_strict_refused,
    } = counters;
    named([
        ("rx_frames", rx_frames),
        ("rx_bytes", rx_bytes),
        ("tx_frames", tx_frames),
        ("tx_bytes", tx_bytes),
        ("rx_length_errors", rx_length_errors),
        ("tx_dropped", tx_dropped),
        ("tx_length_errors", tx_length_errors),
        ("tx_not_carried", tx_not_carried),
        ("rx_dropped", rx_dropped),
        ("icrc_ip_id_inferred", icrc_ip_id_inferred),
        ("icrc_strict_refused", icrc_strict_refused),
    ])
}

fn port_counters(counters: PortCounters) -> Vec<(String, u64)> {
    let PortCounters { neighbour_answers, neighbour_requests, echo_answers, ignored, dropped } =
        counters;
    named([
        ("neighbour_answers", neighbour_answers),
        ("neighbour_requests", neighbour_requests),
        ("echo_answers", echo_answers),
        ("ignored", ignored),
        ("dropped", dropped),
    ])
}

fn fault_frames(counters: FaultCounters) -> Vec<(String, u64)> {
    let FaultCounters { lost, delayed, copies, overflow } = counters;
    named([("lost", lost), ("delayed", delayed), ("copies", copies), ("overflow", overflow)])
}

fn neighbour(neighbour: Neighbour) -> NeighbourEntry {
    let mac = neighbour
        .mac
        .map(|[a, b, c, d, e, f]| format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}"));
    let state = match neighbour.state {
        NeighbourState::Permanent => "permanent",
        NeighbourState::Reachable => "reachable",
        NeighbourState::Incomplete => "incomplete",
        NeighbourState::Failed => "failed",
    };
    NeighbourEntry { ip: neighbour.ip, mac, state: state.to_owned() }
}

fn fault_rules(name: &str, faults: &Injector) -> Vec<FaultState> {
    let rules = faults.rules().iter().zip(faults.tallies()).enumerate();
    rules
        .map(|(i, (rule, tally))| FaultState {
            rule: i + 1,
            name: rule.name.clone(),
            text: Injector::describe(rule, &[name], &[]),
            on: faults.is_on(i),
            matched: tally.matched,
            fired: tally.fired,
        })
        .collect()
}
