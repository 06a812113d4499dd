//! A whole frame as plain data, and back: the general way to write one.
//!
//! Which extension headers a frame has follows from the opcode's row; lengths follow from the parts.
//! [`build`] refuses what [`parse`] refuses, because it asks it. The engine's fast path is
//! [`super::Template`]; this file is for everything else and must not know queue pairs.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::IntoBytes;
use zerocopy::byteorder::network_endian::U16;

use super::headers::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Ieth, ImmDt, Reth, XrcEth};
use super::opcode::{self, Ext};
use super::parse::{Network, Packet, be16, ipv4_checksum, parse};
use super::template::{BthFields, Flow};
use super::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_ROCE_V1, ETHERTYPE_VLAN, GRH_NEXT_HEADER_BTH,
    ROCE_V2_UDP_PORT, icrc,
};
use crate::reason::Reason;

/// A field whose right value follows from the rest of the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Derived<T> {
    /// The value that follows.
    #[default]
    Right,
    /// This value, right or wrong.
    Is(T),
}

impl<T: PartialEq> Derived<T> {
    fn of(carried: T, right: T) -> Self {
        if carried == right { Self::Right } else { Self::Is(carried) }
    }

    fn or(self, right: T) -> T {
        match self {
            Self::Right => right,
            Self::Is(value) => value,
        }
    }
}

/// A VLAN tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag {
    /// 0x8100 (802.1Q) or 0x88A8 (802.1ad).
    pub ethertype: u16,
    /// Priority (15..13), drop eligible (12), VLAN identifier (11..0).
    pub tci: u16,
}

/// An IPv4 header (RFC 791). Total length and protocol follow from the rest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ipv4 {
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Identification. The ICRC covers it.
    pub identification: u16,
    /// Flags (15..13) and fragment offset (12..0). The ICRC covers them.
    pub flags_offset: u16,
    /// Time to live.
    pub ttl: u8,
    /// Header checksum.
    pub checksum: Derived<u16>,
    /// Source address.
    pub source: Ipv4Addr,
    /// Destination address.
    pub dest: Ipv4Addr,
    /// Options. RoCE v2 allows none: a frame that has them is refused.
    pub options: Vec<u8>,
}

/// An IPv6 header (RFC 8200), or the GRH, which has the same fields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ipv6 {
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label, 20 bits; higher bits are ignored.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source address or SGID.
    pub source: Ipv6Addr,
    /// Destination address or DGID.
    pub dest: Ipv6Addr,
}

/// A UDP header. Destination port and length follow from the rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Udp {
    /// Source port.
    pub source_port: u16,
    /// Checksum; `Is(0)` says "none", as all RoCE v2 senders do.
    pub checksum: Derived<u16>,
}

/// What stands between Ethernet and the BTH.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Layer3 {
    /// RoCE v2 over IPv4.
    Ipv4(Ipv4, Udp),
    /// RoCE v2 over IPv6.
    Ipv6(Ipv6, Udp),
    /// RoCE v1.
    Grh(Ipv6),
}

/// Every extension header. Those that the opcode has are written, the rest is ignored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Extensions {
    /// XRC SRQ number.
    pub xrceth: XrcEth,
    /// Q_Key and source QP.
    pub deth: Deth,
    /// Placement type and selectivity of FLUSH.
    pub feth: Feth,
    /// Virtual address, R_Key, DMA length.
    pub reth: Reth,
    /// Address, key and operands of an atomic.
    pub atomic_eth: AtomicEth,
    /// Syndrome and MSN.
    pub aeth: Aeth,
    /// Original value.
    pub atomic_ack_eth: AtomicAckEth,
    /// Immediate data.
    pub immdt: ImmDt,
    /// R_Key to invalidate.
    pub ieth: Ieth,
    /// The 16 reserved bytes of a CNP.
    pub cnp: [u8; 16],
}

impl Extensions {
    /// The headers' bytes in the order of [`Ext::ORDER`].
    fn in_order(&self) -> [&[u8]; Ext::ORDER.len()] {
        [
            self.xrceth.as_bytes(),
            self.deth.as_bytes(),
            self.feth.as_bytes(),
            self.reth.as_bytes(),
            self.atomic_eth.as_bytes(),
            self.aeth.as_bytes(),
            self.atomic_ack_eth.as_bytes(),
            self.immdt.as_bytes(),
            self.ieth.as_bytes(),
            &self.cnp,
        ]
    }

    fn in_order_mut(&mut self) -> [&mut [u8]; Ext::ORDER.len()] {
        [
            self.xrceth.as_mut_bytes(),
            self.deth.as_mut_bytes(),
            self.feth.as_mut_bytes(),
            self.reth.as_mut_bytes(),
            self.atomic_eth.as_mut_bytes(),
            self.aeth.as_mut_bytes(),
            self.atomic_ack_eth.as_mut_bytes(),
            self.immdt.as_mut_bytes(),
            self.ieth.as_mut_bytes(),
            &mut self.cnp,
        ]
    }
}

/// A whole Ethernet frame without FCS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Description {
    /// Destination MAC address.
    pub dest_mac: [u8; 6],
    /// Source MAC address.
    pub source_mac: [u8; 6],
    /// VLAN tags, outermost first; at most two.
    pub tags: Vec<Tag>,
    /// IP and UDP, or the GRH.
    pub layer3: Layer3,
    /// The BTH with every bit, reserved ones included.
    pub bth: Bth,
    /// Extension headers.
    pub ext: Extensions,
    /// Payload without pad.
    pub payload: Vec<u8>,
    /// Pad bytes. Their number is BTH.PadCnt, unless payload and pad are both empty.
    pub pad: Vec<u8>,
    /// The ICRC, as the number of [`icrc::of`].
    pub icrc: Derived<u32>,
    /// Bytes after the ICRC, which a MAC adds to short frames.
    pub ethernet_padding: Vec<u8>,
}

impl Description {
    /// The frame that [`super::Template`] writes for the same flow, opcode and payload; `None` where
    /// the addresses are of different families.
    #[must_use]
    pub fn new(
        flow: &Flow,
        opcode: u8,
        bth: BthFields,
        ext: Extensions,
        payload: &[u8],
    ) -> Option<Self> {
        let udp = Udp { source_port: flow.source_port, checksum: Derived::Is(0) };
        let layer3 = match (flow.source_ip, flow.dest_ip) {
            (IpAddr::V4(source), IpAddr::V4(dest)) => Layer3::Ipv4(
                Ipv4 {
                    traffic_class: flow.traffic_class,
                    identification: 0,
                    flags_offset: 0x4000,
                    ttl: flow.hop_limit,
                    checksum: Derived::Right,
                    source,
                    dest,
                    options: Vec::new(),
                },
                udp,
            ),
            (IpAddr::V6(source), IpAddr::V6(dest)) => Layer3::Ipv6(
                Ipv6 {
                    traffic_class: flow.traffic_class,
                    flow_label: flow.flow_label,
                    hop_limit: flow.hop_limit,
                    source,
                    dest,
                },
                udp,
            ),
            _ => return None,
        };
        let pad = payload.len().wrapping_neg() & 3;
        let flags = u8::from(bth.solicited) << 7 | u8::from(bth.migrated) << 6 | (pad as u8) << 4;
        Some(Self {
            dest_mac: flow.dest_mac,
            source_mac: flow.source_mac,
            tags: flow
                .vlan_tci
                .map(|tci| Tag { ethertype: ETHERTYPE_VLAN, tci })
                .into_iter()
                .collect(),
            layer3,
            bth: Bth {
                opcode,
                flags,
                pkey: U16::new(flow.pkey),
                ecn: 0,
                dest_qp: low24(flow.dest_qpn.get()),
                ack_req: u8::from(bth.ack_request) << 7,
                psn: low24(bth.psn.get()),
            },
            ext,
            payload: payload.to_vec(),
            pad: alloc::vec![0; pad],
            icrc: Derived::Right,
            ethernet_padding: Vec::new(),
        })
    }
}

/// The bytes of a frame.
///
/// # Errors
/// What [`parse`] would say about them; `PadCount` where pad and BTH.PadCnt disagree; `FrameTooLong`
/// where a length field cannot hold the length.
pub fn build(what: &Description) -> Result<Vec<u8>, Reason> {
    let row = opcode::row(what.bth.opcode);
    let mut frame = Vec::new();
    frame.extend_from_slice(&what.dest_mac);
    frame.extend_from_slice(&what.source_mac);
    for tag in &what.tags {
        frame.extend_from_slice(&tag.ethertype.to_be_bytes());
        frame.extend_from_slice(&tag.tci.to_be_bytes());
    }
    let region = what.payload.len() + what.pad.len();
    let transport_len = usize::from(row.header_len) + region + 4;
    let l3 = frame.len() + 2;
    let network = layer3(&mut frame, &what.layer3, transport_len)?;
    let bth = frame.len();

    frame.extend_from_slice(what.bth.as_bytes());
    for ((which, _), bytes) in Ext::ORDER.into_iter().zip(what.ext.in_order()) {
        if row.ext.has(which) {
            frame.extend_from_slice(bytes);
        }
    }
    frame.extend_from_slice(&what.payload);
    frame.extend_from_slice(&what.pad);

    // The UDP checksum covers the ICRC, which does not cover it: this order, not the other.
    let crc = what.icrc.or(icrc::of(network, &frame[l3..]));
    frame.extend_from_slice(&crc.to_le_bytes());
    if let Layer3::Ipv4(_, udp) | Layer3::Ipv6(_, udp) = &what.layer3 {
        let checksum = udp.checksum.or(udp_checksum(network, &frame[l3..]));
        frame[bth - 2..bth].copy_from_slice(&checksum.to_be_bytes());
    }
    frame.extend_from_slice(&what.ethernet_padding);

    let packet = parse(&frame)?;
    if packet.payload().len() != what.payload.len() {
        return Err(Reason::PadCount);
    }
    Ok(frame)
}

/// What a packet's frame is made of. [`build`] gives the same bytes back.
#[must_use]
pub fn describe(packet: &Packet<'_>) -> Description {
    let frame = packet.frame;
    let mut ext = Extensions::default();
    for ((which, _), bytes) in Ext::ORDER.into_iter().zip(ext.in_order_mut()) {
        if let Some(at) = packet.row.offset_of(which) {
            let at = packet.bth_offset() + at;
            bytes.copy_from_slice(&frame[at..at + bytes.len()]);
        }
    }
    let tags = (0..usize::from(packet.vlan_tags)).map(|i| Tag {
        ethertype: be16(frame, 12 + 4 * i).unwrap_or(0),
        tci: be16(frame, 14 + 4 * i).unwrap_or(0),
    });
    let icrc_end = packet.icrc_offset() + 4;
    Description {
        dest_mac: packet.dest_mac(),
        source_mac: packet.source_mac(),
        tags: tags.collect(),
        layer3: describe_layer3(packet, &frame[packet.l3_offset()..icrc_end]),
        bth: *packet.bth,
        ext,
        payload: packet.payload().to_vec(),
        pad: packet.pad().to_vec(),
        icrc: Derived::of(packet.icrc_carried(), packet.icrc_computed()),
        ethernet_padding: frame[icrc_end..].to_vec(),
    }
}

/// Writes EtherType, IP and UDP (its checksum 0) or the GRH for this many bytes from BTH to ICRC.
fn layer3(frame: &mut Vec<u8>, what: &Layer3, transport_len: usize) -> Result<Network, Reason> {
    let length = |n: usize| u16::try_from(n).map_err(|_| Reason::FrameTooLong);
    match what {
        Layer3::Ipv4(ip, udp) => {
            if !ip.options.is_empty() {
                return Err(Reason::Ipv4HeaderLength);
            }
            let mut header = [0; 20];
            header[0] = 0x45;
            header[1] = ip.traffic_class;
            header[2..4].copy_from_slice(&length(28 + transport_len)?.to_be_bytes());
            header[4..6].copy_from_slice(&ip.identification.to_be_bytes());
            header[6..8].copy_from_slice(&ip.flags_offset.to_be_bytes());
            header[8] = ip.ttl;
            header[9] = UDP_PROTOCOL;
            header[12..16].copy_from_slice(&ip.source.octets());
            header[16..20].copy_from_slice(&ip.dest.octets());
            let checksum = ip.checksum.or(ipv4_checksum(&header));
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            frame.extend_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
            frame.extend_from_slice(&header);
            udp_header(frame, udp, length(8 + transport_len)?);
            Ok(Network::Ipv4)
        }
        Layer3::Ipv6(ip, udp) => {
            let udp_len = length(8 + transport_len)?;
            frame.extend_from_slice(&ETHERTYPE_IPV6.to_be_bytes());
            ipv6_header(frame, ip, udp_len, UDP_PROTOCOL);
            udp_header(frame, udp, udp_len);
            Ok(Network::Ipv6)
        }
        Layer3::Grh(grh) => {
            frame.extend_from_slice(&ETHERTYPE_ROCE_V1.to_be_bytes());
            ipv6_header(frame, grh, length(transport_len)?, GRH_NEXT_HEADER_BTH);
            Ok(Network::Grh)
        }
    }
}

fn ipv6_header(frame: &mut Vec<u8>, ip: &Ipv6, payload_len: u16, next_header: u8) {
    let word = 6 << 28 | u32::from(ip.traffic_class) << 20 | ip.flow_label & 0x000F_FFFF;
    frame.extend_from_slice(&word.to_be_bytes());
    frame.extend_from_slice(&payload_len.to_be_bytes());
    frame.extend_from_slice(&[next_header, ip.hop_limit]);
    frame.extend_from_slice(&ip.source.octets());
    frame.extend_from_slice(&ip.dest.octets());
}

fn udp_header(frame: &mut Vec<u8>, udp: &Udp, length: u16) {
    for field in [udp.source_port, ROCE_V2_UDP_PORT, length, 0] {
        frame.extend_from_slice(&field.to_be_bytes());
    }
}

/// `l3` is the packet from its IP header or GRH to the end of its ICRC.
fn describe_layer3(packet: &Packet<'_>, l3: &[u8]) -> Layer3 {
    let udp = Udp {
        source_port: packet.udp_source_port().unwrap_or(0),
        checksum: match packet.network {
            Network::Grh => Derived::Right,
            network => Derived::of(
                be16(l3, icrc::bth_offset(network) - 2).unwrap_or(0),
                udp_checksum(network, l3),
            ),
        },
    };
    let ipv6 = |source, dest| Ipv6 {
        traffic_class: packet.traffic_class(),
        flow_label: u32::from_be_bytes([0, l3[1] & 0x0F, l3[2], l3[3]]),
        hop_limit: l3[7],
        source,
        dest,
    };
    match (packet.source_ip(), packet.dest_ip()) {
        (IpAddr::V4(source), IpAddr::V4(dest)) => {
            let mut header: [u8; 20] = l3.first_chunk().copied().unwrap_or([0; 20]);
            header[10..12].fill(0);
            let checksum = be16(l3, 10).unwrap_or(0);
            let ip = Ipv4 {
                traffic_class: packet.traffic_class(),
                identification: be16(l3, 4).unwrap_or(0),
                flags_offset: be16(l3, 6).unwrap_or(0),
                ttl: l3[8],
                checksum: Derived::of(checksum, ipv4_checksum(&header)),
                source,
                dest,
                options: Vec::new(),
            };
            Layer3::Ipv4(ip, udp)
        }
        (source, dest) => {
            let ip = ipv6(as_v6(source), as_v6(dest));
            match packet.network {
                Network::Grh => Layer3::Grh(ip),
                Network::Ipv4 | Network::Ipv6 => Layer3::Ipv6(ip, udp),
            }
        }
    }
}

const fn as_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V6(address) => address,
        IpAddr::V4(address) => address.to_ipv6_mapped(),
    }
}

/// The UDP checksum (RFC 768, RFC 8200) of a packet from its IP header to the end of its ICRC. The
/// checksum field itself is taken as 0; a result of 0 is sent as ones.
pub(super) fn udp_checksum(network: Network, l3: &[u8]) -> u16 {
    let udp = icrc::bth_offset(network) - 8;
    let addresses = match network {
        Network::Ipv4 => &l3[12..20],
        Network::Ipv6 | Network::Grh => &l3[8..40],
    };
    let length = l3.len() - udp;
    let sum = u64::from(UDP_PROTOCOL)
        + length as u64
        + sum16(addresses)
        + sum16(&l3[udp..udp + 6])
        + sum16(&l3[udp + 8..]);
    let folded = !fold(sum);
    if folded == 0 { 0xFFFF } else { folded }
}

/// The checksum of RFC 1071 over `bytes`: 0 where they contain their own, right one.
pub(super) fn internet_checksum(bytes: &[u8]) -> u16 {
    !fold(sum16(bytes))
}

/// Sum of 16-bit big-endian words; an odd last byte is the high half of a word.
fn sum16(bytes: &[u8]) -> u64 {
    let (pairs, last) = bytes.as_chunks::<2>();
    let sum: u64 = pairs.iter().map(|pair| u64::from(u16::from_be_bytes(*pair))).sum();
    sum + last.first().map_or(0, |&byte| u64::from(byte) << 8)
}

const fn fold(mut sum: u64) -> u16 {
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    sum as u16
}

const fn low24(value: u32) -> [u8; 3] {
    let [_, a, b, c] = value.to_be_bytes();
    [a, b, c]
}

const UDP_PROTOCOL: u8 = 17;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f_20_extension_headers_have_the_tables_sizes() {
        let lengths = Extensions::default().in_order().map(<[u8]>::len);
        assert_eq!(lengths, Ext::ORDER.map(|(_, len)| usize::from(len)));
        let lengths = Extensions::default().in_order_mut().map(|bytes| bytes.len());
        assert_eq!(lengths, Ext::ORDER.map(|(_, len)| usize::from(len)));
    }
}
