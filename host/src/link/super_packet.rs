//! Super-packets: UDP datagrams of one flow that cross the kernel as one frame, behind the header of virtio's network
//! devices (AF_PACKET's `PACKET_VNET_HDR`). Cut up where they arrive, joined where they are sent.
//!
//! Who cuts one counts the IPv4 identification up from that of its header, so packet *i* needs the ICRC for *i*.

use std::io::IoSlice;

use softrnic_engine::Rx;
use softrnic_engine::packet::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_SERVICE_VLAN, ETHERTYPE_VLAN,
};

use super::LinkCounters;
use super::linear_crc::Words;
use super::made_header::{
    DATAGRAMS, Datagram, HEADER_MAX, MESSAGE_MAX, checksum, datagram, settle,
};
use super::outbox::{FRAMES, Outbox};
use super::system::BATCH;

/// Bytes of the header that stands before each frame: flags, kind, length of the frame's headers, bytes of a segment,
/// where the checksum begins and where it goes; numbers in the machine's byte order.
pub(super) const VIRTIO: usize = 10;
/// Flag: the checksum is not there yet.
const NEEDS_CHECKSUM: u8 = 1;
/// Kind: UDP datagrams.
const UDP_SEGMENTS: u8 = 5;
/// Ethernet, a VLAN tag, IPv6, UDP.
const HEADERS_MAX: usize = HEADER_MAX + 4;

/// Where a UDP frame has its headers.
#[derive(Clone, Copy, Debug)]
struct Offsets {
    l3: usize,
    udp: usize,
    ipv4: bool,
}

impl Offsets {
    fn of(frame: &[u8]) -> Option<Self> {
        let half = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
        let (ethertype, l3) = match half(12)? {
            ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN => (half(16)?, 18),
            ethertype => (ethertype, 14),
        };
        let (ipv4, len, protocol) = match ethertype {
            ETHERTYPE_IPV4 if frame.get(l3) == Some(&0x45) => (true, 20, l3 + 9),
            ETHERTYPE_IPV6 => (false, 40, l3 + 6),
            _ => return None,
        };
        let udp = l3 + len;
        (frame.get(protocol) == Some(&17) && frame.len() >= udp + 8).then_some(Self {
            l3,
            udp,
            ipv4,
        })
    }

    /// Writes the lengths for so many bytes of UDP payload, and the identification.
    fn set_lengths(&self, header: &mut [u8], payload: usize, identification: u16) {
        let udp_len = (payload + 8) as u16;
        header[self.udp + 4..self.udp + 6].copy_from_slice(&udp_len.to_be_bytes());
        let l3 = &mut header[self.l3..];
        if self.ipv4 {
            l3[2..4].copy_from_slice(&(udp_len + 20).to_be_bytes());
            l3[4..6].copy_from_slice(&identification.to_be_bytes());
            l3[10..12].fill(0);
            let sum = checksum(&l3[..20]);
            l3[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            l3[4..6].copy_from_slice(&udp_len.to_be_bytes());
        }
    }

    /// The UDP checksum's share of addresses, length and protocol, which is where who completes it begins.
    fn pseudo_sum(&self, header: &[u8]) -> u16 {
        let addresses =
            if self.ipv4 { self.l3 + 12..self.l3 + 20 } else { self.l3 + 8..self.l3 + 40 };
        let len = u16::from_be_bytes([header[self.udp + 4], header[self.udp + 5]]);
        let halves = header[addresses].as_chunks::<2>().0.iter();
        let sum: u32 = halves.map(|half| u32::from(u16::from_be_bytes(*half))).sum();
        let sum = sum + u32::from(len) + 17;
        let sum = (sum & 0xFFFF) + (sum >> 16);
        (sum + (sum >> 16)) as u16
    }
}

/// Cuts up what arrives.
#[derive(Debug)]
pub(super) struct Cutter {
    /// The headers of the super-packet that is being cut.
    headers: [u8; HEADERS_MAX],
    /// Bytes of its payload that have been lent, and packets.
    at: usize,
    place: u16,
}

impl Cutter {
    pub(super) const fn new() -> Self {
        Self { headers: [0; HEADERS_MAX], at: 0, place: 0 }
    }

    /// Lends the packets of a frame that came with this virtio header, at most `budget`. Returns how many, and whether
    /// the frame is used up; if not, the next call goes on with it.
    pub(super) fn lend(
        &mut self,
        virtio: [u8; VIRTIO],
        frame: &mut [u8],
        budget: usize,
        counters: &mut LinkCounters,
        take: &mut dyn FnMut(&mut [u8], Rx),
    ) -> (usize, bool) {
        let mut count = |frame: &mut [u8]| {
            counters.rx_frames += 1;
            counters.rx_bytes += frame.len() as u64;
            take(frame, Rx::default());
        };
        let offsets = Offsets::of(if self.at == 0 { &*frame } else { &self.headers });
        if virtio[1] == 0 {
            if let Some(offsets) = offsets.filter(|_| virtio[0] & NEEDS_CHECKSUM != 0) {
                // 0 says that there is none; the ICRC leaves it out.
                frame[offsets.udp + 6..offsets.udp + 8].fill(0);
            }
            count(frame);
            return (1, true);
        }
        let segment = usize::from(u16::from_ne_bytes([virtio[4], virtio[5]]));
        let offsets = offsets.filter(|_| virtio[1] == UDP_SEGMENTS && segment != 0);
        let Some(offsets) = offsets else {
            counters.rx_length_errors += 1;
            return (0, true);
        };
        let len = offsets.udp + 8;
        if self.at == 0 {
            self.headers[..len].copy_from_slice(&frame[..len]);
            self.headers[offsets.udp + 6..len].fill(0);
        }
        let base = &self.headers[offsets.l3 + 4..offsets.l3 + 6];
        let base = u16::from_be_bytes([base[0], base[1]]);
        let mut lent = 0;
        while lent < budget {
            let payload = segment.min(frame.len() - len - self.at);
            // The headers overwrite the end of the packet before, which nobody needs any more.
            let packet = &mut frame[self.at..self.at + len + payload];
            packet[..len].copy_from_slice(&self.headers[..len]);
            offsets.set_lengths(packet, payload, base.wrapping_add(self.place));
            count(packet);
            lent += 1;
            self.at += payload;
            self.place += 1;
            if self.at + len >= frame.len() {
                (self.at, self.place) = (0, 0);
                return (lent, true);
            }
        }
        (lent, false)
    }
}

/// Frames that are sent as one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joined {
    pub(super) first: usize,
    pub(super) count: usize,
    /// Bytes of all UDP payloads, and of the first.
    bytes: usize,
    segment: usize,
    /// Bytes of the headers; 0: a frame of another kind, which goes alone.
    headers: usize,
}

/// Joins what is sent.
#[derive(Debug)]
pub(super) struct Joiner {
    words: Words,
    groups: Vec<Joined>,
    /// Virtio's header and those of the super-packet, for each group.
    headers: Box<[[u8; VIRTIO + HEADER_MAX]; BATCH]>,
}

impl Joiner {
    pub(super) fn new() -> Self {
        Self {
            words: Words::new(),
            groups: Vec::with_capacity(BATCH),
            headers: Box::new([[0; VIRTIO + HEADER_MAX]; BATCH]),
        }
    }

    /// Cuts what waits into groups, at most [`BATCH`], and gives each packet the ICRC for its place. `join`: with more
    /// than one packet.
    pub(super) fn plan(&mut self, outbox: &mut Outbox, join: bool) -> usize {
        self.groups.clear();
        for at in 0..outbox.len() {
            let found =
                datagram(outbox.frame(at)).filter(|found| joinable(outbox.frame(at), found));
            let Some(found) = found else {
                if self.groups.len() == BATCH {
                    break;
                }
                self.groups.push(Joined { first: at, count: 1, bytes: 0, segment: 0, headers: 0 });
                continue;
            };
            let (headers, end) = found.payload;
            let len = end - headers;
            let joined = self.groups.last_mut().filter(|group| {
                join && group.headers == headers
                    && group.count < DATAGRAMS
                    && group.bytes == group.count * group.segment
                    && len <= group.segment
                    && group.bytes + len <= MESSAGE_MAX
                    && same_flow(outbox.frame(group.first), outbox.frame(at), &found)
            });
            if let Some(group) = joined {
                let place = group.count as u16;
                group.count += 1;
                group.bytes += len;
                settle(outbox.frame_mut(at), &found, &mut self.words, None, place);
            } else if self.groups.len() == BATCH {
                break;
            } else {
                self.groups.push(Joined { first: at, count: 1, bytes: len, segment: len, headers });
            }
        }
        for (group, headers) in self.groups.iter().zip(self.headers.iter_mut()) {
            headers[..VIRTIO].fill(0);
            if group.count > 1 {
                write_headers(headers, outbox.frame(group.first), group);
            }
        }
        self.groups.len()
    }

    pub(super) fn group(&self, index: usize) -> Joined {
        self.groups[index]
    }

    /// The parts of a group's message: how many were written.
    pub(super) fn parts<'a>(
        &'a self,
        outbox: &'a Outbox,
        index: usize,
        parts: &mut [IoSlice<'a>],
    ) -> usize {
        let group = &self.groups[index];
        let headers = &self.headers[index];
        if group.count == 1 {
            parts[0] = IoSlice::new(&headers[..VIRTIO]);
            parts[1] = IoSlice::new(outbox.frame(group.first));
            return 2;
        }
        parts[0] = IoSlice::new(&headers[..VIRTIO + group.headers]);
        for (at, part) in parts[1..=group.count].iter_mut().enumerate() {
            let len =
                if at + 1 < group.count { group.segment } else { group.bytes - at * group.segment };
            let frame = outbox.frame(group.first + at);
            *part = IoSlice::new(&frame[group.headers..group.headers + len]);
        }
        1 + group.count
    }
}

/// Most parts of all messages of a plan.
pub(super) const PARTS: usize = FRAMES + BATCH;

/// Whether a kernel that cuts a super-packet would write this packet's header again.
fn joinable(frame: &[u8], found: &Datagram) -> bool {
    let (begin, end) = found.payload;
    end == frame.len() && end != begin && (!found.to.is_ipv4() || frame[18..22] == [0, 0, 0x40, 0])
}

/// Whether two frames have the same headers, but for lengths, identification and checksums.
fn same_flow(first: &[u8], frame: &[u8], found: &Datagram) -> bool {
    let same = |from: usize, to: usize| first[from..to] == frame[from..to];
    if found.to.is_ipv4() {
        same(0, 16) && same(20, 24) && same(26, 38)
    } else {
        same(0, 18) && same(20, 58)
    }
}

/// The headers of a super-packet, made of those of its first packet.
fn write_headers(headers: &mut [u8; VIRTIO + HEADER_MAX], first: &[u8], group: &Joined) {
    let (virtio, rest) = headers.split_at_mut(VIRTIO);
    let packet = &mut rest[..group.headers];
    packet.copy_from_slice(&first[..group.headers]);
    let Some(offsets) = Offsets::of(packet) else { return };
    offsets.set_lengths(packet, group.bytes, 0);
    let sum = offsets.pseudo_sum(packet);
    packet[offsets.udp + 6..offsets.udp + 8].copy_from_slice(&sum.to_be_bytes());
    (virtio[0], virtio[1]) = (NEEDS_CHECKSUM, UDP_SEGMENTS);
    let numbers = [group.headers, group.segment, offsets.udp, 6];
    for (to, number) in virtio[2..].chunks_exact_mut(2).zip(numbers) {
        to.copy_from_slice(&(number as u16).to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use softrnic_engine::packet::{
        BthFields, Description, Extensions, Flow, build, describe, parse,
    };
    use softrnic_engine::{Psn, Qpn};

    use super::*;

    fn frame(ips: [IpAddr; 2], port: u16, number: u32, len: usize) -> Vec<u8> {
        let flow = Flow {
            source_mac: [2, 0, 0, 0, 0, 1],
            dest_mac: [2, 0, 0, 0, 0, 2],
            vlan_tci: None,
            source_ip: ips[0],
            dest_ip: ips[1],
            traffic_class: 0x68,
            hop_limit: 60,
            flow_label: 5,
            source_port: port,
            pkey: 0xFFFF,
            dest_qpn: Qpn::new(9),
        };
        let bth = BthFields { psn: Psn::new(number), ..BthFields::default() };
        let payload: Vec<u8> = (0..len).map(|at| (at as u32 + number) as u8).collect();
        build(&Description::new(&flow, 4, bth, Extensions::default(), &payload).unwrap()).unwrap()
    }

    proptest! {
        /// What is joined and cut up again is what was sent, with a right ICRC in each packet.
        #[test]
        fn packets_survive_being_joined_and_cut(
            runs in vec((1..70usize, 0..80usize, any::<bool>(), any::<bool>()), 1..5),
            budget in 1..40usize,
            tag in any::<bool>(),
        ) {
            let mut outbox = Outbox::new(0);
            let mut sent = Vec::new();
            for (count, words, v6, other_port) in runs {
                let ips: [&str; 2] =
                    if v6 { ["2001:db8::1", "2001:db8::2"] } else { ["10.0.0.1", "10.0.0.2"] };
                let ips = ips.map(|ip| ip.parse().unwrap());
                for _ in 0..count {
                    let Some(room) = outbox.room() else { break };
                    let number = sent.len() as u32;
                    let frame = frame(ips, 0xC000 + u16::from(other_port), number, 4 * words);
                    room[..frame.len()].copy_from_slice(&frame);
                    outbox.commit(frame.len());
                    sent.push(frame);
                }
            }
            let mut joiner = Joiner::new();
            let mut cutter = Cutter::new();
            let mut counters = LinkCounters::default();
            let mut came = Vec::new();
            let mut messages = 0;
            while !outbox.is_empty() {
                let groups = joiner.plan(&mut outbox, true);
                let mut done = 0;
                for at in 0..groups {
                    let mut parts = [IoSlice::new(&[]); PARTS];
                    let count = joiner.parts(&outbox, at, &mut parts);
                    let mut bytes: Vec<u8> =
                        parts[..count].iter().flat_map(|part| part.iter().copied()).collect();
                    if tag {
                        // As AF_PACKET's receiver puts it back.
                        bytes.splice(VIRTIO + 12..VIRTIO + 12, [0x81, 0, 0x60, 5]);
                    }
                    let (virtio, frame) = bytes.split_at_mut(VIRTIO);
                    let virtio = *virtio.first_chunk().unwrap();
                    while !cutter.lend(virtio, frame, budget, &mut counters, &mut |packet, _| {
                        came.push(packet.to_vec());
                    }).1 {}
                    done += joiner.group(at).count;
                    messages += 1;
                }
                outbox.sent(done);
            }
            prop_assert_eq!(came.len(), sent.len());
            prop_assert!(messages == 1 || messages < sent.len() || sent.len() < 10);
            prop_assert_eq!(counters.rx_length_errors, 0);
            for (came, sent) in came.iter().zip(&sent) {
                let (came, sent) = (parse(came).unwrap(), parse(sent).unwrap());
                prop_assert!(came.icrc_valid());
                prop_assert_eq!(came.vlan_tags, u8::from(tag));
                let (came, sent) = (describe(&came), describe(&sent));
                prop_assert_eq!((came.bth, came.payload), (sent.bth, sent.payload));
            }
        }

        #[test]
        fn any_bytes_behind_any_virtio_header_are_lent_or_counted(
            virtio in any::<[u8; VIRTIO]>(),
            udp in any::<bool>(),
            mut frame in vec(any::<u8>(), 0..300),
            budget in 1..9usize,
        ) {
            let mut virtio = virtio;
            virtio[1] = if udp { UDP_SEGMENTS } else { virtio[1] };
            virtio[5] = 0;
            if udp && frame.len() > 24 {
                frame[12..15].copy_from_slice(&[8, 0, 0x45]);
                frame[23] = 17;
            }
            let mut cutter = Cutter::new();
            let mut counters = LinkCounters::default();
            let mut count = 0;
            loop {
                let mut lent = 0;
                let (told, used_up) =
                    cutter.lend(virtio, &mut frame, budget, &mut counters, &mut |_, _| lent += 1);
                prop_assert_eq!(told, lent);
                count += lent;
                if used_up {
                    break;
                }
            }
            prop_assert_eq!(count as u64, counters.rx_frames);
            prop_assert!(count > 0 || counters.rx_length_errors == 1);
        }
    }
}
