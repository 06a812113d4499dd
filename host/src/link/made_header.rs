//! The headers that `udp` never sees: made up for what arrives, and made equal to the kernel's for what is sent.
//!
//! The ICRC covers the IPv4 header's identification and flags, and the kernel shows neither. A frame that arrives
//! gets the header for which its ICRC is right, if there is one; the headers that the kernel will write are known,
//! so a frame that is sent gets the ICRC for them. It knows no socket.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;

use softrnic_engine::Rx;
use softrnic_engine::packet::icrc::{self, Icrc};
use softrnic_engine::packet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, Network, ROCE_V2_UDP_PORT};

use super::LinkCounters;
use super::linear_crc::Words;
use super::system::Arrival;

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Most bytes that a made-up header has: Ethernet, IPv6, UDP.
pub(super) const HEADER_MAX: usize = ETHERNET + 40 + 8;
/// Most datagrams that the kernel cuts of one message; older kernels take no more.
pub(super) const DATAGRAMS: usize = 64;
/// Most bytes of payload of such a message.
pub(super) const MESSAGE_MAX: usize = 65_000;
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
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
    /// DSCP and ECN.
    pub(super) traffic_class: u8,
    /// TTL or hop limit.
    pub(super) hop_limit: u8,
    /// Where the UDP payload begins and ends.
    pub(super) payload: (usize, usize),
}

/// Reads a frame's headers; `None`: it is no RoCE v2 packet, or has a VLAN tag.
pub(super) fn datagram(frame: &[u8]) -> Option<Datagram> {
    let half = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
    let byte = |at: usize| frame.get(at).copied();
    let (to, traffic_class, hop_limit, protocol, udp, from) = match half(12)? {
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
        && half(udp + 2)? == ROCE_V2_UDP_PORT
        && payload.0 <= end
        && end <= frame.len();
    carried.then_some(Datagram { from, to, traffic_class, hop_limit, payload })
}

/// Gives the frame the source port, if one is given, and the IPv4 identification and flags that the kernel will send it
/// with, and changes its ICRC by what that changes: a wrong one stays wrong.
pub(super) fn settle(
    frame: &mut [u8],
    datagram: &Datagram,
    words: &mut Words,
    port: Option<u16>,
    identification: u16,
) {
    let (begin, end) = datagram.payload;
    if end - begin < SHORTEST {
        return;
    }
    let mut change = 0;
    if let Some(port) = port {
        let udp = begin - 8;
        let [high, low] = port.to_be_bytes();
        change = put(frame, udp, end, [high, low, frame[udp + 2], frame[udp + 3]], words);
    }
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
pub(super) fn checksum(header: &[u8]) -> u16 {
    let halves = header.as_chunks::<2>().0.iter();
    let sum: u32 = halves.map(|half| u32::from(u16::from_be_bytes(*half))).sum();
    let sum = (sum & 0xFFFF) + (sum >> 16);
    !((sum + (sum >> 16)) as u16)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use softrnic_engine::packet::{ETHERTYPE_IPV4, parse};

    use super::*;

    fn arrival(len: usize, segment: usize, traffic_class: u8, hop_limit: u8) -> Arrival {
        Arrival { len, cut_off: false, from: None, segment, traffic_class, hop_limit, vlan: None }
    }

    /// An address of either family and a peer of it.
    fn addresses() -> impl Strategy<Value = (IpAddr, SocketAddr)> {
        let v4 = any::<([u8; 4], [u8; 4], u16)>()
            .prop_map(|(to, from, port)| (IpAddr::from(to), SocketAddr::new(from.into(), port)));
        let v6 = any::<([u8; 16], [u8; 16], u16)>()
            .prop_map(|(to, from, port)| (IpAddr::from(to), SocketAddr::new(from.into(), port)));
        prop_oneof![v4, v6]
    }

    proptest! {
        /// Whatever a peer sends becomes frames with whole headers around its very bytes.
        #[test]
        fn any_message_becomes_frames(
            payload in vec(any::<u8>(), 0..3000),
            segment in prop_oneof![Just(0usize), 1..600usize],
            budget in 1..5usize,
            (to, from) in addresses(),
            (traffic_class, hop_limit, strict) in any::<(u8, u8, bool)>(),
        ) {
            let mut maker = Maker::new([2; 6], to, strict);
            let mut counters = LinkCounters::default();
            let mut slot = [vec![0xAA; HEADER_MAX], payload.clone()].concat();
            let arrival = arrival(payload.len(), segment, traffic_class, hop_limit);
            let mut came = Vec::new();
            let headers = if to.is_ipv4() { 42 } else { 62 };
            loop {
                let mut lent = 0;
                let (count, used_up) = maker.lend(
                    &mut slot, &arrival, from, budget, &mut counters,
                    &mut |frame, _| {
                        lent += 1;
                        let (header, body) = frame.split_at(headers);
                        let udp_len = u16::from_be_bytes([header[headers - 4], header[headers - 3]]);
                        assert_eq!(usize::from(udp_len), 8 + body.len());
                        let datagram = datagram(frame).filter(|datagram| datagram.from == from.ip());
                        let expected = (headers, headers + body.len());
                        assert_eq!(datagram.map(|datagram| (datagram.to, datagram.payload)),
                            Some((to, expected)));
                        let _ = parse(frame).map(|packet| packet.icrc_valid());
                        came.extend_from_slice(body);
                    },
                );
                prop_assert_eq!(count, lent);
                if used_up { break; }
                prop_assert_eq!(count, budget);
            }
            prop_assert_eq!(came, payload);
        }

        /// A frame of any bytes, some of which are an IP header, is carried or not; what is carried keeps a right ICRC
        /// right and a wrong one wrong.
        #[test]
        fn any_frame_is_settled_or_left(
            mut frame in vec(any::<u8>(), 0..400),
            kind in 0..3u8,
            right in any::<bool>(),
            (port, identification) in any::<(u16, u16)>(),
        ) {
            let from: IpAddr = if kind == 1 { [192, 0, 2, 1].into() } else { [0x20; 16].into() };
            let len = frame.len();
            let (ethertype, l3, udp) =
                if kind == 1 { (ETHERTYPE_IPV4, 20, 34) } else { (ETHERTYPE_IPV6, 40, 54) };
            if kind > 0 && len > udp + 8 {
                frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
                let ip = &mut frame[14..14 + l3];
                match from {
                    IpAddr::V4(v4) => {
                        (ip[0], ip[6], ip[7], ip[9]) = (0x45, ip[6] & 0xC0, 0, 17);
                        ip[12..16].copy_from_slice(&v4.octets());
                    }
                    IpAddr::V6(v6) => {
                        ip[6] = 17;
                        ip[8..24].copy_from_slice(&v6.octets());
                    }
                }
                frame[udp + 2..udp + 4].copy_from_slice(&ROCE_V2_UDP_PORT.to_be_bytes());
                frame[udp + 4..udp + 6].copy_from_slice(&((len - udp) as u16).to_be_bytes());
            }
            let Some(datagram) = datagram(&frame) else { return Ok(()) };
            prop_assume!(datagram.from == from);
            let network = if from.is_ipv4() { Network::Ipv4 } else { Network::Ipv6 };
            let crc = |frame: &[u8]| icrc::of(network, &frame[14..len - 4]);
            let long_enough = len - udp - 8 >= SHORTEST;
            if right && long_enough {
                let value = crc(&frame).to_le_bytes();
                frame[len - 4..].copy_from_slice(&value);
            }
            let is_right = |frame: &[u8]| long_enough && frame[len - 4..] == crc(frame).to_le_bytes();
            let before = is_right(&frame);
            let mut words = Words::new();
            settle(&mut frame, &datagram, &mut words, Some(port), identification);
            prop_assert_eq!(is_right(&frame), before);
            if long_enough {
                prop_assert_eq!(&frame[udp..udp + 2], &port.to_be_bytes());
            }
            // A second time changes nothing.
            let once = frame.clone();
            settle(&mut frame, &datagram, &mut words, Some(port), identification);
            prop_assert_eq!(frame, once);
        }
    }

    #[test]
    fn mac_addresses_that_stand_for_ip_addresses_are_local_and_differ() {
        let ips = ["10.0.0.1", "10.0.1.0", "fe80::1", "fe80::2", "fe80::1:0", "2001:db8::1"];
        let macs: Vec<_> = ips.iter().map(|ip| mac_of(ip.parse().unwrap())).collect();
        for (at, mac) in macs.iter().enumerate() {
            assert_eq!(mac[0] & 3, 2, "locally administered, for one receiver");
            assert!(!macs[at + 1..].contains(mac), "{}", ips[at]);
        }
    }
}
