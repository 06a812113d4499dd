//! The headers that `udp` never sees: made up for what arrives, and made equal to the kernel's for what is sent.
//!
//! The ICRC covers the IPv4 header's identification and flags, and the kernel shows neither. A frame that arrives
//! gets the header for which its ICRC is right, if there is one; the headers that the kernel will write are known,
//! so a frame that is sent gets the ICRC for them. It knows no socket.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;

use softrnic_engine::packet::icrc::{self, Icrc};
use softrnic_engine::packet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, Network, ROCE_V2_UDP_PORT};
use softrnic_engine::{Room, Rx};

use super::LinkCounters;
use super::linear_crc::Words;
use super::system::Arrival;

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Most bytes that a made-up header has: Ethernet, IPv6, UDP.
pub(super) const HEADER_MAX: usize = ETHERNET + 40 + 8;
/// Where an IPv4 header has identification, flags and fragment offset.
const IDENTIFICATION: Range<usize> = 4..8;
/// Don't fragment, as the third byte of these.
const DF: u8 = 0x40;
/// A BTH and an ICRC: what is shorter is no RoCE packet.
const SHORTEST: usize = 16;

/// The MAC address that stands for an IP address: locally administered, and the same at every end.
pub(super) fn mac_of(ip: IpAddr) -> [u8; 6] {
    match ip {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            [0x02, 0x04, a, b, c, d]
        }
        IpAddr::V6(v6) => {
            // Interface identifiers differ most at their end.
            let mut mac = [0; 6];
            for (at, byte) in v6.octets().iter().rev().enumerate() {
                mac[5 - at % 5] ^= byte.rotate_left(at as u32 / 5);
            }
            mac[0] = 0x06;
            mac
        }
    }
}

/// A frame that is to be sent, as the UDP socket sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Datagram {
    pub(super) to: IpAddr,
    /// DSCP and ECN.
    pub(super) traffic_class: u8,
    /// TTL or hop limit.
    pub(super) hop_limit: u8,
    /// Where the UDP payload begins and ends.
    pub(super) payload: (usize, usize),
}

/// Reads a frame's headers; `None`: it is no RoCE v2 packet without VLAN tag from this address.
pub(super) fn datagram(frame: &[u8], from: IpAddr) -> Option<Datagram> {
    let half = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
    let byte = |at: usize| frame.get(at).copied();
    let (to, traffic_class, hop_limit, protocol, udp, source) = match half(12)? {
        ETHERTYPE_IPV4 if byte(14)? == 0x45 && half(20)? & 0x3FFF == 0 => {
            let ip = |at: usize| Some(IpAddr::from(*frame.get(at..)?.first_chunk::<4>()?));
            (ip(30)?, byte(15)?, byte(22)?, byte(23)?, 34, ip(26)?)
        }
        ETHERTYPE_IPV6 => {
            let ip = |at: usize| Some(IpAddr::from(*frame.get(at..)?.first_chunk::<16>()?));
            (ip(38)?, (half(14)? >> 4) as u8, byte(21)?, byte(20)?, 54, ip(22)?)
        }
        _ => return None,
    };
    let end = udp + usize::from(half(udp + 4)?);
    let payload = (udp + 8, end);
    let carried = protocol == 17
        && source == from
        && half(udp + 2)? == ROCE_V2_UDP_PORT
        && payload.0 <= end
        && end <= frame.len();
    carried.then_some(Datagram { to, traffic_class, hop_limit, payload })
}

/// Gives the frame the source port and the IPv4 identification and flags that the kernel will send it with, and
/// changes its ICRC by what that changes: a wrong one stays wrong.
pub(super) fn settle(
    frame: &mut [u8],
    datagram: &Datagram,
    words: &mut Words,
    port: u16,
    identification: u16,
) {
    let (begin, end) = datagram.payload;
    if end - begin < SHORTEST {
        return;
    }
    let udp = begin - 8;
    let [high, low] = port.to_be_bytes();
    let mut change = put(frame, udp, end, [high, low, frame[udp + 2], frame[udp + 3]], words);
    if datagram.to.is_ipv4() {
        let [high, low] = identification.to_be_bytes();
        let at = ETHERNET + IDENTIFICATION.start;
        change ^= put(frame, at, end, [high, low, DF, 0], words);
    }
    if change != 0 {
        let icrc = &mut frame[end - 4..end];
        for (byte, change) in icrc.iter_mut().zip(change.to_le_bytes()) {
            *byte ^= change;
        }
    }
}

/// Writes four bytes; returns what that changes of the ICRC.
fn put(frame: &mut [u8], at: usize, end: usize, bytes: [u8; 4], words: &mut Words) -> u32 {
    let Some(place) = frame[at..].first_chunk_mut::<4>() else { return 0 };
    let change = xor(*place, bytes);
    if change == [0; 4] {
        return 0;
    }
    *place = bytes;
    words.followed_by(end - 4 - (at + 4)).crc_change(change)
}

fn xor(a: [u8; 4], b: [u8; 4]) -> [u8; 4] {
    (u32::from_ne_bytes(a) ^ u32::from_ne_bytes(b)).to_ne_bytes()
}

/// What is known of a frame's ICRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Known {
    /// It is right for an identification that the sender is known to use: 0, or the place in a train.
    Right,
    /// It is right for another identification, which nobody saw.
    Inferred,
    /// It is wrong for every header that can be meant.
    Wrong,
}

/// Makes frames of datagrams that arrived.
#[derive(Debug)]
pub(super) struct Maker {
    /// MAC address of the port.
    pub(super) mac: [u8; 6],
    /// Address of the socket.
    pub(super) ip: IpAddr,
    /// Refuse what can only be inferred.
    pub(super) strict: bool,
    icrc: Icrc,
    words: Words,
    /// For some peers that number their packets: the identification that comes next.
    peers: [(Ipv4Addr, u16); PEERS],
    /// Where the next datagram of a joined message begins, and its place in it.
    at: usize,
    place: u16,
    /// Identification of the one before it.
    last: u16,
}

const PEERS: usize = 64;

impl Maker {
    pub(super) fn new(mac: [u8; 6], ip: IpAddr, strict: bool) -> Self {
        Self {
            mac,
            ip,
            strict,
            icrc: Icrc::default(),
            words: Words::new(),
            peers: [(Ipv4Addr::UNSPECIFIED, 0); PEERS],
            at: 0,
            place: 0,
            last: 0,
        }
    }

    /// Lends the frames of a message, whose bytes are at [`HEADER_MAX`] in the slot, at most `budget`. Returns how
    /// many, and whether the message is used up; if not, the next call goes on with it.
    pub(super) fn lend(
        &mut self,
        slot: &mut [u8],
        arrival: &Arrival,
        from: SocketAddr,
        budget: usize,
        counters: &mut LinkCounters,
        take: &mut dyn FnMut(&mut [u8], Rx),
    ) -> (usize, bool) {
        let segment = if arrival.segment == 0 { arrival.len } else { arrival.segment };
        let mut count = 0;
        while count < budget {
            let begin = HEADER_MAX + self.at;
            let len = segment.min(arrival.len - self.at);
            // The header overwrites the end of the frame before it, which nobody needs any more.
            let (frame, rx) = self.make(&mut slot[..begin + len], begin, arrival, from, counters);
            counters.rx_frames += 1;
            counters.rx_bytes += frame.len() as u64;
            take(frame, rx);
            count += 1;
            self.at += len;
            self.place += 1;
            if self.at >= arrival.len {
                (self.at, self.place, self.last) = (0, 0, 0);
                return (count, true);
            }
        }
        (count, false)
    }

    /// Writes the headers before the payload at `begin`.
    fn make<'a>(
        &mut self,
        bytes: &'a mut [u8],
        begin: usize,
        arrival: &Arrival,
        from: SocketAddr,
        counters: &mut LinkCounters,
    ) -> (&'a mut [u8], Rx) {
        let udp_len = (bytes.len() - begin + 8) as u16;
        let l3_len = if self.ip.is_ipv4() { 20 } else { 40 };
        let frame = &mut bytes[begin - 8 - l3_len - ETHERNET..];
        frame[..6].copy_from_slice(&self.mac);
        frame[6..12].copy_from_slice(&mac_of(from.ip()));
        let (l3, udp) = frame[ETHERNET..].split_at_mut(l3_len);
        for (to, half) in udp.chunks_exact_mut(2).zip([from.port(), ROCE_V2_UDP_PORT, udp_len, 0]) {
            to.copy_from_slice(&half.to_be_bytes());
        }
        match (from.ip(), self.ip) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                l3.fill(0);
                (l3[0], l3[1], l3[6]) = (0x45, arrival.traffic_class, DF);
                l3[2..4].copy_from_slice(&(udp_len + 20).to_be_bytes());
                (l3[8], l3[9]) = (arrival.hop_limit, 17);
                l3[12..16].copy_from_slice(&from.octets());
                l3[16..20].copy_from_slice(&to.octets());
                frame[12..14].copy_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
                let rx = self.find_identification(frame, from, counters);
                let sum = checksum(&frame[ETHERNET..ETHERNET + 20]);
                frame[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum.to_be_bytes());
                (frame, rx)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let first = 6 << 28 | u32::from(arrival.traffic_class) << 20;
                l3[..4].copy_from_slice(&first.to_be_bytes());
                l3[4..6].copy_from_slice(&udp_len.to_be_bytes());
                (l3[6], l3[7]) = (17, arrival.hop_limit);
                l3[8..24].copy_from_slice(&from.octets());
                l3[24..40].copy_from_slice(&to.octets());
                frame[12..14].copy_from_slice(&ETHERTYPE_IPV6.to_be_bytes());
                (frame, Rx::default())
            }
            // A socket's peers are of its own family.
            _ => (frame, Rx::default()),
        }
    }

    /// Writes the identification and flags for which the ICRC is right.
    fn find_identification(
        &mut self,
        frame: &mut [u8],
        from: Ipv4Addr,
        counters: &mut LinkCounters,
    ) -> Rx {
        let slot = usize::from(from.octets()[3]) % PEERS;
        let guess = match self.peers[slot] {
            _ if self.place != 0 => self.last.wrapping_add(1),
            (peer, next) if peer == from => next,
            _ => 0,
        };
        let (known, id) = self.verify(&mut frame[ETHERNET..], guess);
        self.last = id;
        match known {
            Known::Right => self.peers[slot] = (from, 0),
            Known::Inferred => self.peers[slot] = (from, id.wrapping_add(1)),
            Known::Wrong => {}
        }
        if known == Known::Inferred {
            if self.strict {
                counters.icrc_strict_refused += 1;
                // The engine finds the ICRC wrong and says so.
                frame[ETHERNET..][IDENTIFICATION].copy_from_slice(&[0, 0, DF, 0]);
                return Rx::default();
            }
            counters.icrc_ip_id_inferred += 1;
        }
        Rx { icrc_verified: known != Known::Wrong }
    }

    /// Verifies the ICRC of a packet, which begins with its IPv4 header, and writes the identification for which it
    /// is right, or the guess.
    fn verify(&mut self, packet: &mut [u8], guess: u16) -> (Known, u16) {
        let [high, low] = guess.to_be_bytes();
        packet[IDENTIFICATION].copy_from_slice(&[high, low, DF, 0]);
        let Some((covered, icrc)) = packet.split_last_chunk_mut::<4>() else {
            return (Known::Wrong, guess);
        };
        if covered.len() < icrc::bth_offset(Network::Ipv4) + SHORTEST - 4 {
            return (Known::Wrong, guess);
        }
        let off = self.icrc.of(Network::Ipv4, covered) ^ u32::from_le_bytes(*icrc);
        let mut id = guess;
        let mut fragmentable = false;
        if off != 0 {
            let following = covered.len() - IDENTIFICATION.end;
            let change = self.words.followed_by(following).solve(off);
            if change[2] & !DF != 0 || change[3] != 0 {
                return (Known::Wrong, guess);
            }
            id ^= u16::from_be_bytes([change[0], change[1]]);
            fragmentable = change[2] != 0;
            let field = &mut covered[IDENTIFICATION];
            for (byte, change) in field.iter_mut().zip(change) {
                *byte ^= change;
            }
        }
        let expected = !fragmentable && (id == 0 || id == self.place);
        (if expected { Known::Right } else { Known::Inferred }, id)
    }
}

/// The checksum of an IPv4 header whose checksum field is 0.
fn checksum(header: &[u8]) -> u16 {
    let halves = header.as_chunks::<2>().0.iter();
    let sum: u32 = halves.map(|half| u32::from(u16::from_be_bytes(*half))).sum();
    let sum = (sum & 0xFFFF) + (sum >> 16);
    !((sum + (sum >> 16)) as u16)
}

/// The room that a UDP link can offer.
pub(super) const fn room(bytes: &mut [u8], port: u16) -> Room<'_> {
    Room { bytes, segments: 1, source_port: Some(port) }
}
