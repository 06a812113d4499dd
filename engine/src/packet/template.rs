//! A queue pair's headers, prepared once: Ethernet to BTH, with the ICRC's masked fields as ones.
//!
//! Writing a packet is then one copy, a few patches, one CRC pass over contiguous bytes, and the
//! masked fields put right. Knows bytes, not queue pairs.

use core::net::IpAddr;

use crc32fast::Hasher;

use super::headers::Aeth;
use super::icrc::LRH_LEN;
use super::opcode::OpcodeRow;
use super::parse::Network;
use super::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, ROCE_V2_UDP_PORT, icrc};
use crate::numbers::{Psn, Qpn};

const ETHERNET_MAX: usize = 14 + 4;
/// Most frames have no VLAN tag: Ethernet, IPv4, UDP and BTH.
const UNTAGGED_IPV4_LEN: usize = 14 + 20 + 8 + 12;
/// Bytes of Ethernet (one tag), IPv6, UDP and BTH.
pub const TEMPLATE_LEN_MAX: usize = ETHERNET_MAX + 40 + 8 + 12;
/// Longest frame that a template can start: all headers, a 4096-byte payload, ICRC.
pub const FRAME_LEN_MAX: usize = TEMPLATE_LEN_MAX + 28 + 4096 + 3 + 4;

/// The addresses of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Source MAC address.
    pub source_mac: [u8; 6],
    /// Destination MAC address.
    pub dest_mac: [u8; 6],
    /// Tag control information of an 802.1Q tag.
    pub vlan_tci: Option<u16>,
    /// Source address; of the same family as `dest_ip`.
    pub source_ip: IpAddr,
    /// Destination address.
    pub dest_ip: IpAddr,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label.
    pub flow_label: u32,
    /// UDP source port.
    pub source_port: u16,
    /// BTH.P_Key.
    pub pkey: u16,
    /// BTH.DestQP.
    pub dest_qpn: Qpn,
}

/// The prepared headers of a flow.
#[derive(Clone, Debug)]
pub struct Template {
    /// The bytes before the IP header that the masked LRH stands in for, until the ICRC is known.
    before_l3: [u8; LRH_LEN],
    bytes: [u8; TEMPLATE_LEN_MAX],
    /// Offset of the IP header.
    l3: u8,
    /// Bytes up to the end of the BTH.
    len: u8,
    ipv6: bool,
    traffic_class: u8,
    hop_limit: u8,
    /// IPv6 bytes 0..4 as sent.
    first_word: [u8; 4],
    /// Sum of the IPv4 header's words but for length and checksum.
    checksum_base: u32,
    empty: Hasher,
}

/// BTH fields that differ from packet to packet.
#[derive(Clone, Copy, Debug, Default)]
pub struct BthFields {
    /// PSN.
    pub psn: Psn,
    /// SE.
    pub solicited: bool,
    /// M.
    pub migrated: bool,
    /// AckReq.
    pub ack_request: bool,
    /// BECN: only in a CNP.
    pub becn: bool,
}

impl Template {
    /// Prepares the headers; `None` where the addresses are of different families.
    #[must_use]
    pub fn new(flow: &Flow) -> Option<Self> {
        let mut bytes = [0; TEMPLATE_LEN_MAX];
        bytes[0..6].copy_from_slice(&flow.dest_mac);
        bytes[6..12].copy_from_slice(&flow.source_mac);
        let mut at = 12;
        if let Some(tci) = flow.vlan_tci {
            bytes[12..14].copy_from_slice(&ETHERTYPE_VLAN.to_be_bytes());
            bytes[14..16].copy_from_slice(&tci.to_be_bytes());
            at = 16;
        }
        let l3 = at + 2;
        let mut first_word = [0; 4];
        let (ethertype, network) = match (flow.source_ip, flow.dest_ip) {
            (IpAddr::V4(source), IpAddr::V4(dest)) => {
                let ip = &mut bytes[l3..l3 + 20];
                ip[0] = 0x45;
                ip[1] = flow.traffic_class;
                ip[6] = 0x40;
                ip[8] = flow.hop_limit;
                ip[9] = 17;
                ip[12..16].copy_from_slice(&source.octets());
                ip[16..20].copy_from_slice(&dest.octets());
                (ETHERTYPE_IPV4, Network::Ipv4)
            }
            (IpAddr::V6(source), IpAddr::V6(dest)) => {
                let ip = &mut bytes[l3..l3 + 40];
                let word =
                    6 << 28 | u32::from(flow.traffic_class) << 20 | flow.flow_label & 0x000F_FFFF;
                first_word = word.to_be_bytes();
                ip[0..4].copy_from_slice(&first_word);
                ip[6] = 17;
                ip[7] = flow.hop_limit;
                ip[8..24].copy_from_slice(&source.octets());
                ip[24..40].copy_from_slice(&dest.octets());
                (ETHERTYPE_IPV6, Network::Ipv6)
            }
            _ => return None,
        };
        bytes[at..at + 2].copy_from_slice(&ethertype.to_be_bytes());
        let checksum_base = bytes[l3..l3 + 20]
            .as_chunks::<2>()
            .0
            .iter()
            .map(|w| u32::from(u16::from_be_bytes(*w)))
            .sum();
        let bth = l3 + icrc::bth_offset(network);
        bytes[bth - 8..bth - 6].copy_from_slice(&flow.source_port.to_be_bytes());
        bytes[bth - 6..bth - 4].copy_from_slice(&ROCE_V2_UDP_PORT.to_be_bytes());
        bytes[bth + 2..bth + 4].copy_from_slice(&flow.pkey.to_be_bytes());
        bytes[bth + 5..bth + 8].copy_from_slice(&flow.dest_qpn.get().to_be_bytes()[1..]);
        icrc::mask(network, &mut bytes[l3..]);
        let mut before_l3 = [0xFF; LRH_LEN];
        before_l3.swap_with_slice(&mut bytes[l3 - LRH_LEN..l3]);
        Some(Self {
            before_l3,
            bytes,
            l3: l3 as u8,
            len: (bth + 12) as u8,
            ipv6: matches!(network, Network::Ipv6),
            traffic_class: flow.traffic_class,
            hop_limit: flow.hop_limit,
            first_word,
            checksum_base,
            empty: Hasher::new_with_initial(0),
        })
    }

    /// Bytes up to the end of the BTH: where extension headers start.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Never: a template always has headers.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Bytes of a frame with this opcode and payload, pad and ICRC included.
    #[must_use]
    pub const fn frame_len(&self, row: &OpcodeRow, payload_len: usize) -> usize {
        self.len() - 12 + row.header_len as usize + payload_len.next_multiple_of(4) + 4
    }

    /// Finishes a frame whose extension headers and payload are already in `frame`, from
    /// [`Template::len`] on: writes everything before them, the pad and the ICRC.
    ///
    /// `frame` is exactly [`Template::frame_len`] long.
    #[inline(always)]
    pub fn finish(&self, frame: &mut [u8], row: &OpcodeRow, payload_len: usize, bth: BthFields) {
        let (l3, len) = (usize::from(self.l3), self.len());
        let icrc_at = frame.len() - 4;
        let pad = payload_len.wrapping_neg() & 3;
        if pad != 0 {
            frame[icrc_at - pad..icrc_at].fill(0);
        }
        match (frame.first_chunk_mut(), self.bytes.first_chunk::<UNTAGGED_IPV4_LEN>()) {
            (Some(header), Some(ready)) if len == UNTAGGED_IPV4_LEN => copy_untagged(header, ready),
            _ => frame[..len].copy_from_slice(&self.bytes[..len]),
        }
        let b = len - 12;
        frame[b] = row.value;
        frame[b + 1] =
            u8::from(bth.solicited) << 7 | u8::from(bth.migrated) << 6 | (pad as u8) << 4;
        let psn = bth.psn.get() | u32::from(bth.ack_request) << 31;
        frame[b + 8..b + 12].copy_from_slice(&psn.to_be_bytes());
        let udp_len = (frame.len() - (b - 8)) as u16;
        frame[b - 4..b - 2].copy_from_slice(&udp_len.to_be_bytes());
        let ip_len = if self.ipv6 { udp_len } else { udp_len + 20 };
        let ip_len_at = if self.ipv6 { l3 + 4 } else { l3 + 2 };
        frame[ip_len_at..ip_len_at + 2].copy_from_slice(&ip_len.to_be_bytes());

        let crc = icrc::go_on(&self.empty, &frame[l3 - LRH_LEN..icrc_at]);
        frame[icrc_at..].copy_from_slice(&crc.to_le_bytes());
        frame[l3 - LRH_LEN..l3].copy_from_slice(&self.before_l3);

        if self.ipv6 {
            frame[l3..l3 + 4].copy_from_slice(&self.first_word);
            frame[l3 + 7] = self.hop_limit;
        } else {
            frame[l3 + 1] = self.traffic_class;
            frame[l3 + 8] = self.hop_limit;
            let mut sum = self.checksum_base + u32::from(ip_len);
            sum = (sum & 0xFFFF) + (sum >> 16);
            sum += sum >> 16;
            frame[l3 + 10..l3 + 12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        }
        frame[b - 2..b].fill(0);
        frame[b + 4] = u8::from(bth.becn) << 6;
    }
}

/// One copy in two overlapping halves, so that the compiler cannot join it with the copy of any length
/// again: a few moves instead of a call.
#[inline(always)]
fn copy_untagged(to: &mut [u8; UNTAGGED_IPV4_LEN], from: &[u8; UNTAGGED_IPV4_LEN]) {
    const HALF: usize = 32;
    to[..HALF].copy_from_slice(&from[..HALF]);
    to[UNTAGGED_IPV4_LEN - HALF..].copy_from_slice(&from[UNTAGGED_IPV4_LEN - HALF..]);
}

/// An AETH's four bytes.
#[must_use]
pub const fn aeth(syndrome: u8, msn: u32) -> Aeth {
    let [_, a, b, c] = msn.to_be_bytes();
    Aeth { syndrome, msn: [a, b, c] }
}

/// UDP source port for a flow label, or for a pair of QPNs where it is 0 (rule F-05): in
/// 0xC000..=0xFFFF and the same in both directions.
#[must_use]
pub const fn udp_source_port(flow_label: u32, local: Qpn, remote: Qpn) -> u16 {
    let mut label = flow_label & 0x000F_FFFF;
    if label == 0 {
        let mut v = local.get() as u64 * remote.get() as u64;
        v ^= v >> 20;
        v ^= v >> 40;
        label = (v & 0x000F_FFFF) as u32;
    }
    0xC000 | ((label & 0x3FFF) ^ (label >> 14)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f_05_source_port_follows_the_linux_convention() {
        let port = |label, a, b| udp_source_port(label, Qpn::new(a), Qpn::new(b));
        assert_eq!(port(0, 0x11, 0x22), 0xC242);
        assert_eq!(port(0, 0x45, 0x48), 0xD368);
        assert_eq!(port(0, 0x12_3456, 0xAB_CDEF), 0xC3C8);
        assert_eq!(port(0, 0xAB_CDEF, 0x12_3456), 0xC3C8);
        assert_eq!(port(0x12345, 1, 2), 0xE341);
        assert_eq!(port(0xFFFFF, 1, 2), 0xFFC0);
    }
}
