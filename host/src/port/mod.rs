//! The host's side of a port: what an operating system's network stack does for a card. It answers ARP,
//! neighbour solicitations and pings, and finds out the MAC addresses of peers.
//!
//! Time is an argument; frames go in and out as bytes. It knows no RoCE and no link.

mod answer;
mod neighbours;

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use neighbours::Neighbours;
pub use neighbours::{Neighbour, NeighbourState, Resolution};
use softrnic_engine::packet::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_SERVICE_VLAN, ETHERTYPE_VLAN,
};
use softrnic_engine::{Nanos, Port};

/// Frames that wait to leave; further ones are dropped and counted.
const QUEUE_MAX: usize = 64;
/// IP protocol number of ICMP.
const ICMP: u8 = 1;
/// IP protocol number of ICMPv6.
const ICMPV6: u8 = 58;

/// A port's addresses and neighbours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// MAC address.
    pub mac: [u8; 6],
    /// IPv4 address and prefix length.
    pub ipv4: Option<(Ipv4Addr, u8)>,
    /// IPv6 address and prefix length.
    pub ipv6: Option<(Ipv6Addr, u8)>,
    /// Where packets to other networks go.
    pub gateways: Vec<IpAddr>,
    /// Neighbours that are never asked for.
    pub neighbours: Vec<(IpAddr, [u8; 6])>,
    /// VLAN tag of every frame.
    pub vlan_tci: Option<u16>,
    /// Longest IP packet in bytes.
    pub mtu: u16,
    /// Answer ARP, neighbour solicitations and pings. Off where the operating system's own stack has the
    /// same addresses.
    pub answers: bool,
}

impl Default for PortConfig {
    fn default() -> Self {
        Self {
            mac: Port::default().mac,
            ipv4: None,
            ipv6: None,
            gateways: Vec::new(),
            neighbours: Vec::new(),
            vlan_tci: None,
            mtu: 1500,
            answers: true,
        }
    }
}

/// How software that drives a device by registers finds a peer's MAC address.
pub trait Resolve {
    /// The MAC address for a peer's IP address. Never waits.
    fn resolve(&mut self, ip: IpAddr) -> Resolution;

    /// What it means that nobody answers for an address, and the way out.
    fn silence(&self, ip: IpAddr) -> String {
        format!("nobody answers for {ip} on this link; is the peer up, and in the same network?")
    }

    /// Why nothing comes any more, if that is known.
    fn trouble(&self) -> Option<String> {
        None
    }
}

impl PortConfig {
    /// The port's own address of a family.
    ///
    /// # Errors
    /// It has none; what to do.
    pub fn own_address(&self, ipv6: bool) -> Result<IpAddr, String> {
        let (own, family) = if ipv6 {
            (self.ipv6.map(|(ip, _)| ip.into()), "IPv6")
        } else {
            (self.ipv4.map(|(ip, _)| ip.into()), "IPv4")
        };
        own.ok_or_else(|| format!("this port has no {family} address; give --address"))
    }

    /// The engine's port with these addresses. An address family that is missing gets the unspecified address,
    /// which no packet can have as its destination.
    #[must_use]
    pub fn engine_port(&self) -> Port {
        Port {
            mac: self.mac,
            ipv4: self.ipv4.map_or(Ipv4Addr::UNSPECIFIED, |(ip, _)| ip),
            ipv6: self.ipv6.map_or(Ipv6Addr::UNSPECIFIED, |(ip, _)| ip),
            vlan_tci: self.vlan_tci,
            ..Port::default()
        }
    }

    /// Where a packet to this address goes first: itself, or a gateway. `None`: there is no way.
    fn next_hop(&self, ip: IpAddr) -> Option<IpAddr> {
        let near = match ip {
            IpAddr::V4(ip) => {
                let (own, prefix) = self.ipv4?;
                let differ = own.to_bits() ^ ip.to_bits();
                differ.checked_shr(32 - u32::from(prefix.min(32))).unwrap_or(0) == 0
            }
            IpAddr::V6(ip) => {
                let (own, prefix) = self.ipv6?;
                let differ = own.to_bits() ^ ip.to_bits();
                let near = differ.checked_shr(128 - u32::from(prefix.min(128))).unwrap_or(0) == 0;
                near || ip.is_unicast_link_local()
            }
        };
        if near {
            return Some(ip);
        }
        self.gateways.iter().copied().find(|gateway| gateway.is_ipv4() == ip.is_ipv4())
    }
}

/// What the port did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// ARP requests and neighbour solicitations answered.
    pub neighbour_answers: u64,
    /// ARP requests and neighbour solicitations sent.
    pub neighbour_requests: u64,
    /// Pings answered.
    pub echo_answers: u64,
    /// ARP and ICMP frames that could not be read, or were not for this port.
    pub ignored: u64,
    /// Frames of this port that were dropped because too many waited.
    pub dropped: u64,
}

/// The host's side of a port.
#[derive(Debug)]
pub struct HostPort {
    config: PortConfig,
    neighbours: Neighbours,
    queue: VecDeque<Vec<u8>>,
    counters: PortCounters,
}

impl HostPort {
    /// A port that has seen nothing yet.
    #[must_use]
    pub fn new(config: PortConfig) -> Self {
        let neighbours = Neighbours::new(&config.neighbours);
        Self { config, neighbours, queue: VecDeque::new(), counters: PortCounters::default() }
    }

    /// The addresses.
    #[must_use]
    pub const fn config(&self) -> &PortConfig {
        &self.config
    }

    /// What it did.
    #[must_use]
    pub const fn counters(&self) -> PortCounters {
        self.counters
    }

    /// Every neighbour that is known or being asked for, in the order of addresses.
    pub fn neighbours(&self) -> impl Iterator<Item = Neighbour> + '_ {
        self.neighbours.iter()
    }

    /// Whether a frame is for the port and not for the card: ARP, ICMP and ICMPv6.
    #[inline]
    #[must_use]
    pub fn takes(frame: &[u8]) -> bool {
        match layer3(frame) {
            Some((ETHERTYPE_ARP, _)) => true,
            Some((ETHERTYPE_IPV4, packet)) => packet.get(9) == Some(&ICMP),
            Some((ETHERTYPE_IPV6, packet)) => packet.get(6) == Some(&ICMPV6),
            _ => false,
        }
    }

    /// A frame that [`HostPort::takes`].
    pub fn handle_frame(&mut self, now: Nanos, frame: &[u8]) {
        let answered = layer3(frame).is_some_and(|(ethertype, packet)| {
            let source_mac = frame.get(6..12).and_then(|mac| mac.first_chunk().copied());
            let Some(source_mac) = source_mac else { return false };
            match ethertype {
                ETHERTYPE_ARP => self.arp(now, packet),
                ETHERTYPE_IPV4 => self.icmp(source_mac, packet),
                _ => self.icmpv6(now, source_mac, packet),
            }
        });
        if !answered {
            self.counters.ignored += 1;
        }
    }

    /// Writes the next frame of the port's own, without FCS; its length. `out` has room for an MTU and a header.
    pub fn poll_transmit(&mut self, out: &mut [u8]) -> Option<usize> {
        loop {
            let frame = self.queue.pop_front()?;
            if let Some(room) = out.get_mut(..frame.len()) {
                room.copy_from_slice(&frame);
                return Some(frame.len());
            }
            self.counters.dropped += 1;
        }
    }

    /// The MAC address of a peer, or of the gateway on the way to it. Asks where it is not known; ask again
    /// after each frame and each deadline.
    pub fn resolve(&mut self, now: Nanos, ip: IpAddr) -> Resolution {
        if let Some(mac) = softrnic_engine::multicast_mac(ip) {
            return Resolution::Known(mac);
        }
        let Some(hop) = self.config.next_hop(ip) else { return Resolution::NoRoute };
        let resolution = self.neighbours.resolve(now, hop);
        self.ask();
        resolution
    }

    /// Time has passed: asks again, or gives up.
    pub fn handle_timeout(&mut self, now: Nanos) {
        self.neighbours.handle_timeout(now);
        self.ask();
    }

    /// When [`HostPort::handle_timeout`] has something to do.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.neighbours.next_deadline()
    }

    /// Sends the requests that are due.
    fn ask(&mut self) {
        while let Some(ip) = self.neighbours.poll_request() {
            self.counters.neighbour_requests += 1;
            self.request(ip);
        }
    }

    fn send(&mut self, frame: Vec<u8>) {
        if self.queue.len() < QUEUE_MAX {
            self.queue.push_back(frame);
        } else {
            self.counters.dropped += 1;
        }
    }
}

/// EtherType behind at most two VLAN tags, and what follows it.
fn layer3(frame: &[u8]) -> Option<(u16, &[u8])> {
    let mut at = 12;
    for _ in 0..3 {
        let ethertype = u16::from_be_bytes(*frame.get(at..)?.first_chunk()?);
        if ethertype != ETHERTYPE_VLAN && ethertype != ETHERTYPE_SERVICE_VLAN {
            return Some((ethertype, frame.get(at + 2..)?));
        }
        at += 4;
    }
    None
}

#[cfg(test)]
mod tests;
