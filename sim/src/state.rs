//! What a device looks like at one moment: port, queue pairs, regions, counters. Plain data, the same
//! from a finished world's file and from a device that runs.
//!
//! A device is read through its getters and registers, and is not changed by it. Names are those of
//! `rdma` and `ibv_devinfo` where these have one.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};
use softrnic_device::ernic::{Ernic, Location, Register};
use softrnic_device::verbs::Verbs;
use softrnic_device::{Memory, Nic};
use softrnic_engine::{Engine, Qp, REASON_ROWS, Reason, Service, State};

/// Every device of a world.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorldState {
    /// The scenario's title, or what else they belong to.
    pub title: String,
    /// When, in nanoseconds of the world's clock.
    pub at_ns: u64,
    /// One for each device.
    pub devices: Vec<DeviceState>,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceState {
    /// Its name.
    pub name: String,
    /// The programming interface that it shows.
    pub face: String,
    /// The port takes and sends frames.
    pub port_enabled: bool,
    /// The port's MAC address.
    pub mac: String,
    /// The port's IPv4 address.
    pub ipv4: Ipv4Addr,
    /// The port's IPv6 address.
    pub ipv6: Ipv6Addr,
    /// Queue pairs that have left RESET, or were given a queue.
    pub queue_pairs: Vec<QpState>,
    /// Memory regions.
    pub regions: Vec<RegionState>,
    /// The device's counters, those that are not 0.
    pub counters: BTreeMap<String, u64>,
    /// What was refused, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Faults that the device met in its own queues and memory, by reason.
    pub faults: BTreeMap<String, u64>,
}

/// One queue pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QpState {
    /// Its number.
    pub lqpn: u32,
    /// The peer's.
    pub rqpn: u32,
    /// RC, UC, UD or GSI.
    pub r#type: String,
    /// RESET, INIT, RTR, RTS, SQD, SQE or ERR.
    pub state: String,
    /// It may send and receive.
    pub enabled: bool,
    /// The peer's MAC address.
    pub peer_mac: String,
    /// The peer's IP address.
    pub peer_ip: IpAddr,
    /// Path MTU in bytes.
    pub path_mtu: u32,
    /// PSN of the next new request packet.
    pub sq_psn: u32,
    /// PSN of the oldest request packet that is not acknowledged.
    pub una_psn: u32,
    /// PSN that is expected of the peer's next request packet.
    pub rq_psn: u32,
    /// Request messages sent.
    pub ssn: u32,
    /// Request messages received.
    pub msn: u32,
    /// Work requests that wait for an answer.
    pub in_flight: u32,
    /// Packets that wait for an answer.
    pub outstanding_packets: u32,
    /// Retries since the last progress, and what they may become.
    pub retries: [u8; 2],
    /// RNR NAKs since the last progress, and what they may become.
    pub rnr_retries: [u8; 2],
    /// Local ACK timeout's code.
    pub ack_timeout: u8,
    /// Timer code of the RNR NAKs that it sends.
    pub min_rnr_timer: u8,
    /// Where its rings stand, where the face has rings with indices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rings: Option<Rings>,
    /// Counters, those that are not 0.
    pub counters: BTreeMap<String, u64>,
}

/// Where an ERNIC queue pair's rings stand.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rings {
    /// SQPI, CQHEAD and depth.
    pub sq: [u32; 3],
    /// STATRQPIDB, RQCI and depth.
    pub rq: [u32; 3],
    /// STATQP, for `rnic explain`.
    pub statqp: u32,
}

/// One memory region.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegionState {
    /// Key for peers.
    pub rkey: u32,
    /// Protection domain.
    pub pdn: u32,
    /// First virtual address.
    pub va: u64,
    /// Bytes.
    pub mrlen: u64,
    /// What peers may do: read, write, atomic.
    pub access: Vec<String>,
}

impl DeviceState {
    /// What every device has: an engine.
    #[must_use]
    pub fn of_engine(name: &str, face: &str, engine: &Engine) -> Self {
        let port = engine.port();
        Self {
            name: name.into(),
            face: face.into(),
            port_enabled: port.enabled,
            mac: mac(port.mac),
            ipv4: port.ipv4,
            ipv6: port.ipv6,
            queue_pairs: engine
                .qps()
                .filter(|qp| qp.state() != State::Reset)
                .map(qp_state)
                .collect(),
            regions: Vec::new(),
            counters: counters(&engine.counters()),
            refused: reasons(engine.refused()),
            faults: BTreeMap::new(),
        }
    }

    /// A device with the native face.
    #[must_use]
    pub fn of_verbs<M: Memory>(name: &str, nic: &Nic<Verbs, M>) -> Self {
        let regions = nic.device.mrs().map(|(mr, access)| RegionState {
            rkey: mr.rkey.0,
            pdn: mr.pd.get(),
            va: mr.va,
            mrlen: mr.len,
            access: rights([access.remote_read, access.remote_write, access.remote_atomic]),
        });
        Self { regions: regions.collect(), ..Self::of_engine(name, "native", &nic.engine) }
    }

    /// A device with the ERNIC face, as its registers have it.
    #[must_use]
    pub fn of_ernic<M: Memory>(name: &str, nic: &Nic<Ernic, M>) -> Self {
        let mut state = Self::of_engine(name, "ernic", &nic.engine);
        let get = |register, index| nic.read_register(Location { register, index });
        let wide =
            |low, high, index| u64::from(get(low, index)) | u64::from(get(high, index)) << 32;
        state.queue_pairs = nic
            .engine
            .qps()
            .filter_map(|qp| {
                let number = qp.qpn().get() as u16;
                let depth = get(Register::Qdepth, number);
                let used = qp.state() != State::Reset || depth != 0;
                let data = number > 1;
                let produced = if data { get(Register::Statrqpidb, number) } else { 0 };
                used.then(|| QpState {
                    rings: Some(Rings {
                        sq: [
                            get(Register::Sqpi, number),
                            get(Register::Cqhead, number),
                            depth & 0xFFFF,
                        ],
                        rq: [produced, get(Register::Rqci, number), depth >> 16],
                        statqp: get(Register::Statqp, number),
                    }),
                    ..qp_state(qp)
                })
            })
            .collect();
        state.regions = (0..nic.device.map().count(Register::Bufrkey))
            .filter_map(|row| {
                let access = get(Register::Accessdesc, row);
                let low = u64::from(get(Register::Wrrdbuflen, row));
                let mrlen = low | u64::from(access >> 16) << 32;
                let kind = access & 15;
                (mrlen != 0).then(|| RegionState {
                    rkey: u32::from(row) << 8 | get(Register::Bufrkey, row),
                    pdn: get(Register::Pdpdnum, row),
                    va: wide(Register::Virtaddrlsb, Register::Virtaddrmsb, row),
                    mrlen,
                    access: rights([matches!(kind, 0 | 2), matches!(kind, 1 | 2), false]),
                })
            })
            .collect();
        state.faults = reasons(nic.device.faults());
        state
    }
}

fn qp_state(qp: &Qp) -> QpState {
    let attributes = qp.attributes();
    let (requester, responder) = (qp.requester(), qp.responder());
    QpState {
        lqpn: qp.qpn().get(),
        rqpn: attributes.dest_qpn.get(),
        r#type: service(attributes.service).into(),
        state: state_name(qp.state()).into(),
        enabled: attributes.enabled,
        peer_mac: mac(attributes.path.dest_mac),
        peer_ip: attributes.path.dest_ip,
        path_mtu: attributes.path_mtu.bytes(),
        sq_psn: qp.send_psn().get(),
        una_psn: requester.unacknowledged_psn().get(),
        rq_psn: qp.expected_psn().get(),
        ssn: requester.ssn(),
        msn: responder.msn(),
        in_flight: requester.in_flight(),
        outstanding_packets: requester.outstanding_packets(),
        retries: [requester.retries_used(), attributes.retry_count],
        rnr_retries: [requester.rnr_retries_used(), attributes.rnr_retry],
        ack_timeout: attributes.ack_timeout,
        min_rnr_timer: attributes.min_rnr_timer,
        rings: None,
        counters: counters(qp.counters()),
    }
}

/// As `rdma resource show qp` writes it.
const fn service(service: Service) -> &'static str {
    match service {
        Service::Rc => "RC",
        Service::Uc => "UC",
        Service::Ud => "UD",
        Service::RawFrame => "GSI",
    }
}

const fn state_name(state: State) -> &'static str {
    match state {
        State::Reset => "RESET",
        State::Init => "INIT",
        State::Rtr => "RTR",
        State::Rts => "RTS",
        State::Sqd => "SQD",
        State::Sqe => "SQE",
        State::Error => "ERR",
    }
}

fn rights(may: [bool; 3]) -> Vec<String> {
    let names = ["read", "write", "atomic"];
    names.into_iter().zip(may).filter(|(_, may)| *may).map(|(name, _)| name.into()).collect()
}

fn mac(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn counters(counters: &softrnic_engine::Counters) -> BTreeMap<String, u64> {
    let rows = counters.iter().filter(|(_, value)| *value != 0);
    rows.map(|(row, value)| (row.name.into(), value.into())).collect()
}

fn reasons(counts: &[u64; Reason::COUNT]) -> BTreeMap<String, u64> {
    let rows = REASON_ROWS.iter().zip(counts).filter(|(_, count)| **count != 0);
    rows.map(|(row, &count)| (row.name.into(), count)).collect()
}
