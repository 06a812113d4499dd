//! A frame to a [`Packet`]: every length is checked here once, so that what follows cannot run over.
//!
//! Checks follow rule V-01 up to the opcode. The ICRC is a method of its own so that tools can look
//! at a damaged packet; the engine calls it before anything else.

use core::net::IpAddr;

use zerocopy::FromBytes;

use super::headers::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Ieth, ImmDt, Reth, XrcEth};
use super::icrc::Icrc;
use super::opcode::{self, Ext, OpcodeRow, Payload};
use super::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_MAC_CONTROL, ETHERTYPE_ROCE_V1,
    ETHERTYPE_SERVICE_VLAN, ETHERTYPE_VLAN, GRH_NEXT_HEADER_BTH, ROCE_V2_UDP_PORT, icrc,
};
use crate::reason::Reason;

/// What stands between Ethernet and the BTH.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Network {
    /// RoCE v2 over IPv4 and UDP.
    Ipv4,
    /// RoCE v2 over IPv6 and UDP.
    Ipv6,
    /// RoCE v1.
    Grh,
}

/// A parsed frame. All offsets are inside `frame`.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// The frame as given, Ethernet padding included.
    pub frame: &'a [u8],
    /// The opcode's row.
    pub row: &'static OpcodeRow,
    /// The base transport header.
    pub bth: &'a Bth,
    /// What stands between Ethernet and the BTH.
    pub network: Network,
    /// Number of VLAN tags: 0, 1 or 2.
    pub vlan_tags: u8,
    /// Offset of the IP header or GRH.
    l3: u16,
    /// Offset of the BTH.
    transport: u16,
    /// Offset of the ICRC.
    icrc: u16,
    /// Payload without padding.
    payload: &'a [u8],
}

/// Parses a whole Ethernet frame without FCS.
///
/// # Errors
/// The first check that fails, in the order of rule V-01. Nothing is read past the frame.
#[inline(always)]
pub fn parse(frame: &[u8]) -> Result<Packet<'_>, Reason> {
    match be16(frame, 12) {
        None => Err(Reason::FrameTooShort),
        Some(ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN) => {
            let (ethertype, l3, vlan_tags) = ethernet(frame)?;
            network(frame, ethertype, l3, vlan_tags)
        }
        // Apart, so that the offsets of untagged frames are constants.
        Some(ethertype) => network(frame, ethertype, 14, 0),
    }
}

#[inline(always)]
fn network(frame: &[u8], ethertype: u16, l3: usize, vlan_tags: u8) -> Result<Packet<'_>, Reason> {
    let (network, bth_at, end) = match ethertype {
        ETHERTYPE_IPV4 => ipv4(frame, l3)?,
        ETHERTYPE_IPV6 => ipv6(frame, l3)?,
        ETHERTYPE_ROCE_V1 => grh(frame, l3)?,
        ETHERTYPE_MAC_CONTROL => return Err(Reason::FlowControl),
        _ => return Err(Reason::NotRoce),
    };
    transport(frame, network, vlan_tags, l3, bth_at, end)
}

fn ethernet(frame: &[u8]) -> Result<(u16, usize, u8), Reason> {
    let mut at = 12;
    let mut tags = 0;
    loop {
        let ethertype = be16(frame, at).ok_or(Reason::FrameTooShort)?;
        if ethertype != ETHERTYPE_VLAN && ethertype != ETHERTYPE_SERVICE_VLAN {
            return Ok((ethertype, at + 2, tags));
        }
        if tags == 2 {
            return Err(Reason::TooManyVlanTags);
        }
        tags += 1;
        at += 4;
    }
}

#[inline(always)]
fn ipv4(frame: &[u8], l3: usize) -> Result<(Network, usize, usize), Reason> {
    let header: &[u8; 20] = array(frame, l3)?;
    if header[0] >> 4 != 4 {
        return Err(Reason::IpVersion);
    }
    if header[0] & 15 != 5 {
        return Err(Reason::Ipv4HeaderLength);
    }
    if ipv4_checksum(header) != 0 {
        return Err(Reason::Ipv4HeaderChecksum);
    }
    let flags_offset = u16::from_be_bytes([header[6], header[7]]);
    if flags_offset & 0x3FFF != 0 {
        let first = flags_offset & 0x1FFF == 0;
        return Err(if first { Reason::Ipv4MoreFragments } else { Reason::Ipv4Fragment });
    }
    if header[9] != 17 {
        return Err(Reason::NotRoce);
    }
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let end = udp(frame, l3 + 20, total.checked_sub(20))?;
    Ok((Network::Ipv4, l3 + 28, end))
}

fn ipv6(frame: &[u8], l3: usize) -> Result<(Network, usize, usize), Reason> {
    let header: &[u8; 40] = array(frame, l3)?;
    if header[0] >> 4 != 6 {
        return Err(Reason::IpVersion);
    }
    match header[6] {
        17 => {}
        0 | 43 | 44 | 60 | 135 => return Err(Reason::Ipv6ExtensionHeader),
        _ => return Err(Reason::NotRoce),
    }
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let end = udp(frame, l3 + 40, Some(length))?;
    Ok((Network::Ipv6, l3 + 48, end))
}

/// Checks UDP against the IP payload length; returns the end of the packet.
#[inline(always)]
fn udp(frame: &[u8], at: usize, ip_payload: Option<usize>) -> Result<usize, Reason> {
    let ip_payload = ip_payload.filter(|&n| n >= 8 && at + n <= frame.len());
    let ip_payload = ip_payload.ok_or(Reason::IpLength)?;
    let header: &[u8; 8] = array(frame, at)?;
    if u16::from_be_bytes([header[2], header[3]]) != ROCE_V2_UDP_PORT {
        return Err(Reason::NotRoce);
    }
    // Rule F-04: at least UDP, BTH and ICRC; what IP carries beyond UDP is not ours to guess at.
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    if length < 24 || length != ip_payload {
        return Err(Reason::UdpLength);
    }
    Ok(at + length)
}

fn grh(frame: &[u8], l3: usize) -> Result<(Network, usize, usize), Reason> {
    let header: &[u8; 40] = array(frame, l3)?;
    if header[0] >> 4 != 6 {
        return Err(Reason::IpVersion);
    }
    if header[6] != GRH_NEXT_HEADER_BTH {
        return Err(Reason::GrhNextHeader);
    }
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    if length < 16 || l3 + 40 + length > frame.len() {
        return Err(Reason::IpLength);
    }
    Ok((Network::Grh, l3 + 40, l3 + 40 + length))
}

#[inline(always)]
fn transport(
    frame: &[u8],
    network: Network,
    vlan_tags: u8,
    l3: usize,
    bth_at: usize,
    end: usize,
) -> Result<Packet<'_>, Reason> {
    let (bth, _) = Bth::ref_from_prefix(&frame[bth_at..end]).map_err(|_| Reason::FrameTooShort)?;
    if bth.version() != 0 {
        return Err(Reason::TransportVersion);
    }
    let row = opcode::row(bth.opcode);
    if !row.is_known() && matches!(row.transport, opcode::Transport::None) {
        return Err(Reason::OpcodeUnknown);
    }
    let icrc = end - 4;
    let payload_at = bth_at + usize::from(row.header_len);
    let region = frame.get(payload_at..icrc).ok_or(Reason::FrameTooShort)?;
    // PadCnt without payload means nothing; strictness about it is a queue pair's policy.
    let pad = if region.is_empty() { 0 } else { usize::from(bth.pad_count()) };
    if !region.is_empty() && matches!(row.payload, Payload::None) {
        return Err(Reason::PayloadNotAllowed);
    }
    // chosen: rule F-08 says that payload and pad fill whole words; a packet that does not is refused
    // here, before any queue pair sees it.
    let payload = region.get(..region.len().wrapping_sub(pad)).ok_or(Reason::PadCount)?;
    if !region.len().is_multiple_of(4) {
        return Err(Reason::PadCount);
    }
    Ok(Packet {
        frame,
        row,
        bth,
        network,
        vlan_tags,
        l3: l3 as u16,
        transport: bth_at as u16,
        icrc: u16::try_from(icrc).map_err(|_| Reason::FrameTooLong)?,
        payload,
    })
}

impl<'a> Packet<'a> {
    /// Offset of the IP header or GRH in the frame.
    #[must_use]
    pub const fn l3_offset(&self) -> usize {
        self.l3 as usize
    }

    /// Offset of the BTH in the frame.
    #[must_use]
    pub const fn bth_offset(&self) -> usize {
        self.transport as usize
    }

    /// Offset of the ICRC in the frame; Ethernet padding may follow its four bytes.
    #[must_use]
    pub const fn icrc_offset(&self) -> usize {
        self.icrc as usize
    }

    /// Payload without pad bytes.
    #[inline]
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Pad bytes after the payload.
    #[must_use]
    pub fn pad(&self) -> &'a [u8] {
        let at = self.bth_offset() + usize::from(self.row.header_len);
        &self.frame[at + self.payload.len()..self.icrc_offset()]
    }

    /// The ICRC that the packet carries, as the number of [`icrc::of`].
    #[must_use]
    pub fn icrc_carried(&self) -> u32 {
        let at = self.icrc_offset();
        self.frame.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    /// The ICRC that the packet should carry.
    #[must_use]
    pub fn icrc_computed(&self) -> u32 {
        icrc::of(self.network, &self.frame[self.l3_offset()..self.icrc_offset()])
    }

    /// Whether the ICRC is right.
    #[must_use]
    pub fn icrc_valid(&self) -> bool {
        self.icrc_carried() == self.icrc_computed()
    }

    /// Whether the ICRC is right, with a CRC that is at hand.
    #[inline(always)]
    #[must_use]
    pub fn icrc_valid_by(&self, icrc: &mut Icrc) -> bool {
        let covered = &self.frame[self.l3_offset()..self.icrc_offset()];
        self.icrc_carried() == icrc.of(self.network, covered)
    }

    /// Whether the source address is `ip`; RoCE v1's SGID counts as an IPv6 address.
    #[inline]
    #[must_use]
    pub fn comes_from(&self, ip: IpAddr) -> bool {
        self.address_is(ip, 12, 8)
    }

    /// Whether the destination address is `ip`; RoCE v1's DGID counts as an IPv6 address.
    #[inline]
    #[must_use]
    pub fn goes_to(&self, ip: IpAddr) -> bool {
        self.address_is(ip, 16, 24)
    }

    #[inline(always)]
    fn address_is(&self, ip: IpAddr, ipv4_at: usize, ipv6_at: usize) -> bool {
        let l3 = &self.frame[self.l3_offset()..];
        match (self.network, ip) {
            (Network::Ipv4, IpAddr::V4(ip)) => l3[ipv4_at..ipv4_at + 4] == ip.octets(),
            (Network::Ipv6 | Network::Grh, IpAddr::V6(ip)) => {
                l3[ipv6_at..ipv6_at + 16] == ip.octets()
            }
            _ => false,
        }
    }

    /// Destination MAC address.
    #[must_use]
    pub fn dest_mac(&self) -> [u8; 6] {
        copy(self.frame, 0)
    }

    /// Source MAC address.
    #[must_use]
    pub fn source_mac(&self) -> [u8; 6] {
        copy(self.frame, 6)
    }

    /// Tag control information of the VLAN tags, outermost first.
    pub fn vlan_tcis(&self) -> impl Iterator<Item = u16> + '_ {
        (0..usize::from(self.vlan_tags)).filter_map(|i| be16(self.frame, 14 + 4 * i))
    }

    /// Source IP address, or the SGID as an IPv6 address.
    #[inline]
    #[must_use]
    pub fn source_ip(&self) -> IpAddr {
        match self.network {
            Network::Ipv4 => IpAddr::from(copy::<4>(self.frame, self.l3_offset() + 12)),
            Network::Ipv6 | Network::Grh => {
                IpAddr::from(copy::<16>(self.frame, self.l3_offset() + 8))
            }
        }
    }

    /// Destination IP address, or the DGID as an IPv6 address.
    #[inline]
    #[must_use]
    pub fn dest_ip(&self) -> IpAddr {
        match self.network {
            Network::Ipv4 => IpAddr::from(copy::<4>(self.frame, self.l3_offset() + 16)),
            Network::Ipv6 | Network::Grh => {
                IpAddr::from(copy::<16>(self.frame, self.l3_offset() + 24))
            }
        }
    }

    /// IPv4's DF flag; true for the others, which never fragment on the way.
    #[must_use]
    pub fn dont_fragment(&self) -> bool {
        !matches!(self.network, Network::Ipv4) || self.frame[self.l3_offset() + 6] & 0xE0 == 0x40
    }

    /// Traffic class: DSCP and ECN.
    #[must_use]
    pub fn traffic_class(&self) -> u8 {
        let l3 = &self.frame[self.l3_offset()..];
        match self.network {
            Network::Ipv4 => l3[1],
            Network::Ipv6 | Network::Grh => l3[0] << 4 | l3[1] >> 4,
        }
    }

    /// Whether the packet was marked "congestion experienced" (RFC 3168).
    #[must_use]
    pub fn congestion_experienced(&self) -> bool {
        self.traffic_class() & 3 == 3
    }

    /// UDP source port; `None` for RoCE v1.
    #[must_use]
    pub fn udp_source_port(&self) -> Option<u16> {
        match self.network {
            Network::Grh => None,
            Network::Ipv4 | Network::Ipv6 => be16(self.frame, self.bth_offset() - 8),
        }
    }

    fn ext<T: FromBytes + zerocopy::KnownLayout + zerocopy::Immutable + zerocopy::Unaligned>(
        &self,
        which: Ext,
    ) -> Option<&'a T> {
        let at = self.bth_offset() + self.row.offset_of(which)?;
        T::ref_from_prefix(&self.frame[at..]).ok().map(|(header, _)| header)
    }

    /// RDMA extended transport header.
    #[must_use]
    pub fn reth(&self) -> Option<&'a Reth> {
        self.ext(Ext::RETH)
    }

    /// ACK extended transport header.
    #[must_use]
    pub fn aeth(&self) -> Option<&'a Aeth> {
        self.ext(Ext::AETH)
    }

    /// Atomic extended transport header.
    #[must_use]
    pub fn atomic_eth(&self) -> Option<&'a AtomicEth> {
        self.ext(Ext::ATOMICETH)
    }

    /// Atomic ACK extended transport header.
    #[must_use]
    pub fn atomic_ack_eth(&self) -> Option<&'a AtomicAckEth> {
        self.ext(Ext::ATOMICACKETH)
    }

    /// Immediate data.
    #[must_use]
    pub fn immdt(&self) -> Option<&'a ImmDt> {
        self.ext(Ext::IMMDT)
    }

    /// Invalidate extended transport header.
    #[must_use]
    pub fn ieth(&self) -> Option<&'a Ieth> {
        self.ext(Ext::IETH)
    }

    /// Datagram extended transport header.
    #[must_use]
    pub fn deth(&self) -> Option<&'a Deth> {
        self.ext(Ext::DETH)
    }

    /// XRC extended transport header.
    #[must_use]
    pub fn xrceth(&self) -> Option<&'a XrcEth> {
        self.ext(Ext::XRCETH)
    }

    /// FLUSH extended transport header.
    #[must_use]
    pub fn feth(&self) -> Option<&'a Feth> {
        self.ext(Ext::FETH)
    }
}

/// One's complement sum of an IPv4 header, complemented: 0 where its checksum field is right, and
/// the value to store where that field is 0.
#[must_use]
#[inline(always)]
pub(super) fn ipv4_checksum(header: &[u8; 20]) -> u16 {
    // A one's complement sum does not depend on byte order (RFC 1071, 2 B), nor on the words' width.
    let words = header.as_chunks::<4>().0;
    let mut sum: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    sum = (sum & 0xFFFF_FFFF) + (sum >> 32);
    sum = (sum & 0xFFFF) + (sum >> 16);
    sum = (sum & 0xFFFF) + (sum >> 16);
    sum += sum >> 16;
    !u16::from_be((sum & 0xFFFF) as u16)
}

pub(super) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]))
}

fn array<const N: usize>(frame: &[u8], at: usize) -> Result<&[u8; N], Reason> {
    frame.get(at..).and_then(|rest| rest.first_chunk()).ok_or(Reason::FrameTooShort)
}

/// Copies `N` bytes that the checks above have shown to be there.
fn copy<const N: usize>(frame: &[u8], at: usize) -> [u8; N] {
    frame.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}
