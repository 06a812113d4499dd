//! What the port reads and says: ARP (RFC 826), neighbour discovery (RFC 4861) and echo (RFC 792, RFC 4443), in
//! smoltcp's formats.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, Icmpv4Packet, Icmpv4Repr, Icmpv6Packet,
    Icmpv6Repr, IpProtocol, Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr, NdiscNeighborFlags,
    NdiscRepr, RawHardwareAddress,
};
use softrnic_engine::Nanos;
use softrnic_engine::packet::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN};

use super::HostPort;

/// The MAC address of everybody.
const BROADCAST: [u8; 6] = [0xFF; 6];
/// Hop limit of neighbour discovery: a packet with less has come through a router (RFC 4861, 7.1).
const NDISC_HOP_LIMIT: u8 = 255;
/// TTL and hop limit of echo replies.
const HOP_LIMIT: u8 = 64;

impl HostPort {
    /// An ARP packet; whether it was of use.
    pub(super) fn arp(&mut self, now: Nanos, packet: &[u8]) -> bool {
        let Some((own, _)) = self.config.ipv4 else { return false };
        let parsed = ArpPacket::new_checked(packet).and_then(|packet| ArpRepr::parse(&packet));
        let Ok(ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr: sender,
            source_protocol_addr: sender_ip,
            target_protocol_addr: target_ip,
            ..
        }) = parsed
        else {
            return false;
        };
        // Who talks to us is worth remembering; who talks to others only corrects what we know (RFC 826).
        self.neighbours.learn(now, sender_ip.into(), sender.0, target_ip == own);
        if target_ip != own {
            return false;
        }
        if operation == ArpOperation::Request && self.config.answers {
            self.counters.neighbour_answers += 1;
            self.send_arp(ArpOperation::Reply, own, sender.0, sender.0, sender_ip);
        }
        true
    }

    fn send_arp(
        &mut self,
        operation: ArpOperation,
        own: Ipv4Addr,
        to: [u8; 6],
        target: [u8; 6],
        target_ip: Ipv4Addr,
    ) {
        let repr = ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr: EthernetAddress(self.config.mac),
            source_protocol_addr: own,
            target_hardware_addr: EthernetAddress(target),
            target_protocol_addr: target_ip,
        };
        let (mut frame, at) = self.frame(to, ETHERTYPE_ARP, repr.buffer_len());
        repr.emit(&mut ArpPacket::new_unchecked(&mut frame[at..]));
        self.send(frame);
    }

    /// An IPv4 packet with ICMP in it; whether it was of use.
    pub(super) fn icmp(&mut self, from: [u8; 6], packet: &[u8]) -> bool {
        let Some((own, _)) = self.config.ipv4 else { return false };
        let checks = ChecksumCapabilities::default();
        let Ok(packet) = Ipv4Packet::new_checked(packet) else { return false };
        let Ok(ip) = Ipv4Repr::parse(&packet, &checks) else { return false };
        // Pieces of a large ping cannot be answered one by one.
        let piece = packet.more_frags() || packet.frag_offset() != 0;
        if ip.dst_addr != own || piece || !self.config.answers {
            return false;
        }
        let Ok(icmp) = Icmpv4Packet::new_checked(packet.payload()) else { return false };
        let Ok(Icmpv4Repr::EchoRequest { ident, seq_no, data }) = Icmpv4Repr::parse(&icmp, &checks)
        else {
            return false;
        };
        let reply = Icmpv4Repr::EchoReply { ident, seq_no, data };
        let ip = Ipv4Repr {
            src_addr: own,
            dst_addr: ip.src_addr,
            next_header: IpProtocol::Icmp,
            payload_len: reply.buffer_len(),
            hop_limit: HOP_LIMIT,
        };
        let (mut frame, at) =
            self.frame(from, ETHERTYPE_IPV4, ip.buffer_len() + reply.buffer_len());
        let mut packet = Ipv4Packet::new_unchecked(&mut frame[at..]);
        ip.emit(&mut packet, &checks);
        reply.emit(&mut Icmpv4Packet::new_unchecked(packet.payload_mut()), &checks);
        self.counters.echo_answers += 1;
        self.send(frame);
        true
    }

    /// An IPv6 packet with ICMPv6 in it; whether it was of use.
    pub(super) fn icmpv6(&mut self, now: Nanos, from: [u8; 6], packet: &[u8]) -> bool {
        let Some((own, _)) = self.config.ipv6 else { return false };
        let checks = ChecksumCapabilities::default();
        let Ok(packet) = Ipv6Packet::new_checked(packet) else { return false };
        let Ok(ip) = Ipv6Repr::parse(&packet) else { return false };
        let Ok(icmp) = Icmpv6Packet::new_checked(packet.payload()) else { return false };
        let (source, destination) = (ip.src_addr, ip.dst_addr);
        match Icmpv6Repr::parse(&source, &destination, &icmp, &checks) {
            Ok(Icmpv6Repr::EchoRequest { ident, seq_no, data })
                if destination == own && self.config.answers =>
            {
                self.counters.echo_answers += 1;
                let reply = Icmpv6Repr::EchoReply { ident, seq_no, data };
                self.send_icmpv6(from, source, HOP_LIMIT, &reply);
                true
            }
            Ok(Icmpv6Repr::Ndisc(message)) if ip.hop_limit == NDISC_HOP_LIMIT => {
                self.neighbour_discovery(now, from, source, &message)
            }
            _ => false,
        }
    }

    fn neighbour_discovery(
        &mut self,
        now: Nanos,
        from: [u8; 6],
        source: Ipv6Addr,
        message: &NdiscRepr<'_>,
    ) -> bool {
        let Some((own, _)) = self.config.ipv6 else { return false };
        match *message {
            NdiscRepr::NeighborSolicit { target_addr, lladdr } if target_addr == own => {
                if let Some(mac) = lladdr.and_then(mac_of) {
                    self.neighbours.learn(now, source.into(), mac, true);
                }
                if self.config.answers {
                    self.counters.neighbour_answers += 1;
                    // Who asks without an address is looking for a duplicate: everybody hears the answer.
                    let (to, to_mac, solicited) = if source.is_unspecified() {
                        (ALL_NODES, multicast(ALL_NODES), NdiscNeighborFlags::empty())
                    } else {
                        (source, from, NdiscNeighborFlags::SOLICITED)
                    };
                    let reply = Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert {
                        flags: solicited | NdiscNeighborFlags::OVERRIDE,
                        target_addr: own,
                        lladdr: Some(EthernetAddress(self.config.mac).into()),
                    });
                    self.send_icmpv6(to_mac, to, NDISC_HOP_LIMIT, &reply);
                }
                true
            }
            NdiscRepr::NeighborAdvert { target_addr, lladdr, .. } => {
                let mac = lladdr.and_then(mac_of).unwrap_or(from);
                self.neighbours.learn(now, target_addr.into(), mac, false);
                true
            }
            _ => false,
        }
    }

    fn send_icmpv6(
        &mut self,
        to_mac: [u8; 6],
        to: Ipv6Addr,
        hop_limit: u8,
        message: &Icmpv6Repr<'_>,
    ) {
        let Some((own, _)) = self.config.ipv6 else { return };
        let ip = Ipv6Repr {
            src_addr: own,
            dst_addr: to,
            next_header: IpProtocol::Icmpv6,
            payload_len: message.buffer_len(),
            hop_limit,
        };
        let (mut frame, at) =
            self.frame(to_mac, ETHERTYPE_IPV6, ip.buffer_len() + message.buffer_len());
        let mut packet = Ipv6Packet::new_unchecked(&mut frame[at..]);
        ip.emit(&mut packet);
        let mut body = Icmpv6Packet::new_unchecked(packet.payload_mut());
        message.emit(&own, &to, &mut body, &ChecksumCapabilities::default());
        self.send(frame);
    }

    /// Asks who has an address.
    pub(super) fn request(&mut self, ip: IpAddr) {
        match ip {
            IpAddr::V4(ip) => {
                if let Some((own, _)) = self.config.ipv4 {
                    self.send_arp(ArpOperation::Request, own, BROADCAST, [0; 6], ip);
                }
            }
            IpAddr::V6(ip) => {
                let group = solicited_node(ip);
                let message = Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit {
                    target_addr: ip,
                    lladdr: Some(EthernetAddress(self.config.mac).into()),
                });
                self.send_icmpv6(multicast(group), group, NDISC_HOP_LIMIT, &message);
            }
        }
    }

    /// A frame with its Ethernet header and tag, and where `len` bytes of payload begin.
    fn frame(&self, to: [u8; 6], ethertype: u16, len: usize) -> (Vec<u8>, usize) {
        let mut frame = Vec::with_capacity(18 + len);
        frame.extend(to);
        frame.extend(self.config.mac);
        if let Some(tci) = self.config.vlan_tci {
            frame.extend(ETHERTYPE_VLAN.to_be_bytes());
            frame.extend(tci.to_be_bytes());
        }
        frame.extend(ethertype.to_be_bytes());
        let at = frame.len();
        frame.resize(at + len, 0);
        (frame, at)
    }
}

/// ff02::1.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 1);

/// The group that whoever has this address listens to (RFC 4291, 2.7.1).
fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = ip.octets();
    let low = u16::from_be_bytes([b, c]);
    Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 1, 0xFF00 | u16::from(a), low)
}

/// The MAC address of a group (RFC 2464, 7).
fn multicast(group: Ipv6Addr) -> [u8; 6] {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

fn mac_of(address: RawHardwareAddress) -> Option<[u8; 6]> {
    address.as_bytes().first_chunk().copied()
}
