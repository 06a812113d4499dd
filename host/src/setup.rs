//! What a program says about its station before there is one: link, addresses, capture, faults. Flags and
//! configuration files end here, and stations begin here.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use softrnic_device::{Device, Memory, Nic};
use softrnic_sim::fault::{Injector, Rules};

use crate::clock::Clock;
use crate::link::{Limits, Link, LinkConfig, LinkError, LinkUrl};
use crate::port::{HostPort, PortConfig};
use crate::station::Station;

/// All that a station needs beside its NIC.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The link.
    pub link: LinkUrl,
    /// Addresses and neighbours.
    pub port: PortConfig,
    /// Refuse frames whose ICRC can only be verified by solving for the IP ID.
    pub strict_icrc: bool,
    /// Where to record every frame.
    pub capture: Option<PathBuf>,
    /// Fault rules.
    pub faults: Rules,
    /// What the rules draw from.
    pub seed: u64,
}

impl Setup {
    /// Opens the link, and fits the port to it.
    ///
    /// # Errors
    /// `Open`.
    pub fn open_link(&mut self) -> Result<Box<dyn Link>, LinkError> {
        let port = &self.port;
        let ipv4 = port.ipv4.map(|(ip, _)| IpAddr::V4(ip));
        let ipv6 = port.ipv6.map(|(ip, _)| IpAddr::V6(ip));
        let link = self.link.open(&LinkConfig {
            mac: port.mac,
            mtu: port.mtu,
            addresses: ipv4.into_iter().chain(ipv6).collect(),
            strict_icrc: self.strict_icrc,
        })?;
        fit(&mut self.port, &link.limits());
        Ok(link)
    }

    /// Joins a NIC to an open link, with capture and faults.
    ///
    /// # Errors
    /// The operating system's: the capture cannot be made.
    pub fn station<D: Device<M>, M: Memory>(
        &self,
        nic: Nic<D, M>,
        link: Box<dyn Link>,
        clock: &Clock,
    ) -> io::Result<Station<D, M>> {
        let mut station = Station::new(nic, link, HostPort::new(self.port.clone()));
        station.set_faults(Injector::new(self.faults.clone(), self.seed));
        if let Some(path) = &self.capture {
            station.start_capture(path, clock.since_1970_ns())?;
        }
        Ok(station)
    }
}

/// Fits a port to its link: its MTU is at most the link's. Where the operating system has the port's addresses too, it
/// has the interface's MAC address, and leaves ARP, neighbour solicitations and pings alone.
pub fn fit(port: &mut PortConfig, limits: &Limits) {
    port.mtu = port.mtu.min(limits.mtu);
    if let Some(mac) = limits.shared_mac {
        port.mac = mac;
        port.answers = false;
    }
}

/// The MAC address of a port that was given none: locally administered, from its IP address, so that two
/// programs on a link do not share one.
#[must_use]
pub fn default_mac(ipv4: Option<Ipv4Addr>, ipv6: Option<Ipv6Addr>) -> [u8; 6] {
    let low = match (ipv4, ipv6) {
        (Some(ip), _) => ip.octets(),
        (None, Some(ip)) => {
            let [.., a, b, c, d] = ip.octets();
            [a, b, c, d]
        }
        (None, None) => [0, 0, 0, 1],
    };
    let [a, b, c, d] = low;
    [2, 0, a, b, c, d]
}
