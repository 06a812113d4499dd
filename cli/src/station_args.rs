//! The flags that say what a program's NIC is plugged into: shared by every command that uses a real link.
//! They become a [`Setup`]; nothing is opened here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, bail};
use clap::ValueEnum;
use softrnic_host::link::LinkUrl;
use softrnic_host::port::PortConfig;
use softrnic_host::setup::{Setup, default_mac};
use softrnic_sim::fault::Rules;

/// Which device a program drives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum FaceArg {
    /// Verbs directly on the engine, without hardware's limits
    #[default]
    Native,
    /// An AMD ERNIC through its registers
    Ernic,
}

/// Flags of a NIC on a real link.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "NIC and link")]
pub struct StationArgs {
    /// What the NIC is plugged into, as KIND:WHERE; docs/links.md has the kinds
    #[arg(long, value_name = "URL", default_value = "none:", hide_default_value = true)]
    pub link: LinkUrl,
    /// IP address of the NIC, with prefix length: once for IPv4, once for IPv6
    #[arg(long = "address", value_name = "IP/PREFIX")]
    pub addresses: Vec<Cidr>,
    /// MAC address of the NIC [default: made from its IP address]
    #[arg(long, value_name = "MAC", value_parser = parse_mac)]
    pub mac: Option<[u8; 6]>,
    /// Longest IP packet of the link in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u16).range(256..))]
    pub mtu: u16,
    /// VLAN tag of every frame (TCI: priority and number)
    #[arg(long, value_name = "TCI")]
    pub vlan: Option<u16>,
    /// A neighbour that need not be asked for
    #[arg(long = "neighbour", value_name = "IP=MAC", value_parser = parse_neighbour)]
    pub neighbours: Vec<(IpAddr, [u8; 6])>,
    /// Where packets to other networks go
    #[arg(long = "gateway", value_name = "IP")]
    pub gateways: Vec<IpAddr>,
    /// Leave ARP, neighbour discovery and pings to the operating system
    #[arg(long)]
    pub no_answers: bool,
    /// Record every frame in this file (pcapng)
    #[arg(long, value_name = "FILE")]
    pub capture: Option<PathBuf>,
    /// Break things on purpose: `[[fault]]` tables, as in scenario files
    #[arg(long, value_name = "FILE")]
    pub faults: Option<PathBuf>,
    /// What fault rules with a probability draw from
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Refuse packets whose ICRC can only be verified by guessing a header field (udp, IPv4)
    #[arg(long)]
    pub strict_icrc: bool,
    /// Which device the program drives
    #[arg(long, value_enum, default_value_t)]
    pub face: FaceArg,
}

impl StationArgs {
    /// Reads the files that the flags name, and checks what belongs together.
    ///
    /// # Errors
    /// A flag or file that is wrong, by name.
    pub fn setup(&self) -> anyhow::Result<Setup> {
        let (mut ipv4, mut ipv6) = (None, None);
        for &Cidr { ip, prefix } in &self.addresses {
            let twice = match ip {
                IpAddr::V4(ip) => ipv4.replace((ip, prefix)).is_some(),
                IpAddr::V6(ip) => ipv6.replace((ip, prefix)).is_some(),
            };
            if twice {
                bail!("--address: one IPv4 and one IPv6 address at most, and {ip} is the second");
            }
        }
        let faults = match &self.faults {
            None => Rules::default(),
            Some(path) => {
                let name = path.display().to_string();
                let text =
                    std::fs::read_to_string(path).with_context(|| format!("--faults {name}"))?;
                Rules::parse(&name, &text)?
            }
        };
        let mac =
            self.mac.unwrap_or_else(|| default_mac(ipv4.map(|(ip, _)| ip), ipv6.map(|(ip, _)| ip)));
        Ok(Setup {
            link: self.link.clone(),
            port: PortConfig {
                mac,
                ipv4,
                ipv6,
                gateways: self.gateways.clone(),
                neighbours: self.neighbours.clone(),
                vlan_tci: self.vlan,
                mtu: self.mtu,
                answers: !self.no_answers,
            },
            strict_icrc: self.strict_icrc,
            capture: self.capture.clone(),
            faults,
            seed: self.seed,
        })
    }
}

/// An IP address with the length of its network's prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cidr {
    ip: IpAddr,
    prefix: u8,
}

impl FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || format!("{text:?} is no address; wanted IP/PREFIX, as in 10.0.0.1/24");
        let (ip, prefix) = match text.split_once('/') {
            Some((ip, prefix)) => (ip, Some(prefix)),
            None => (text, None),
        };
        let ip: IpAddr = ip.parse().map_err(|_| wanted())?;
        let (longest, usual) = match ip {
            IpAddr::V4(_) => (Ipv4Addr::BITS, 24),
            IpAddr::V6(_) => (Ipv6Addr::BITS, 64),
        };
        let prefix = match prefix {
            Some(prefix) => prefix.parse().map_err(|_| wanted())?,
            None => usual,
        };
        if u32::from(prefix) > longest {
            return Err(format!("a prefix of {prefix} bits: at most {longest} here"));
        }
        if ip.is_unspecified() || ip.is_multicast() {
            return Err(format!("{ip} can be no port's address"));
        }
        Ok(Self { ip, prefix })
    }
}

pub(crate) fn parse_mac(text: &str) -> Result<[u8; 6], String> {
    let wrong = || format!("{text:?} is no MAC address; wanted six bytes, as in 02:00:00:00:00:01");
    let mut mac = [0; 6];
    let mut parts = text.split([':', '-']);
    for byte in &mut mac {
        let part = parts.next().filter(|part| (1..=2).contains(&part.len())).ok_or_else(wrong)?;
        if part.starts_with('+') {
            return Err(wrong());
        }
        *byte = u8::from_str_radix(part, 16).map_err(|_| wrong())?;
    }
    if parts.next().is_some() {
        return Err(wrong());
    }
    if mac[0] & 1 != 0 {
        return Err(format!("{text} is a group's address, not one port's"));
    }
    Ok(mac)
}

pub(crate) fn parse_neighbour(text: &str) -> Result<(IpAddr, [u8; 6]), String> {
    let (ip, mac) = text.split_once('=').ok_or("wanted IP=MAC")?;
    let ip = ip.parse().map_err(|_| format!("{ip:?} is no IP address"))?;
    Ok((ip, parse_mac(mac)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_macs_that_are_wrong_say_what_is_wanted() {
        assert_eq!("10.0.0.1".parse::<Cidr>().map(|cidr| cidr.prefix), Ok(24));
        assert_eq!("fd00::1/48".parse::<Cidr>().map(|cidr| cidr.prefix), Ok(48));
        for wrong in ["10.0.0.1/33", "10.0.0", "10.0.0.1/x", "224.0.0.1/4", "::/0", ""] {
            assert!(wrong.parse::<Cidr>().is_err(), "{wrong}");
        }
        assert_eq!(parse_mac("02:00:0a:0:0:FF"), Ok([2, 0, 10, 0, 0, 255]));
        for wrong in
            ["02:00:00:00:00", "02:00:00:00:00:00:00", "01:00:5e:00:00:01", "x", "+1:0:0:0:0:0"]
        {
            assert!(parse_mac(wrong).is_err(), "{wrong}");
        }
        assert!(parse_neighbour("10.0.0.2=02:00:00:00:00:02").is_ok());
        assert!(parse_neighbour("10.0.0.2").is_err());
    }
}
