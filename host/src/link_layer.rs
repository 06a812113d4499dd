//! Link layers of captures, turned into Ethernet: records of raw IP and of Linux' "any" interface get
//! an Ethernet header of zeroes. It must not know what is in a packet beyond its EtherType.

/// A link layer that can be shown as Ethernet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LinkLayer {
    /// As it is.
    Ethernet,
    /// IPv4 or IPv6, by the first nibble.
    RawIp,
    /// Linux "cooked" v1: 16 bytes, EtherType in the last two.
    Cooked,
    /// Linux "cooked" v2: 20 bytes, EtherType in the first two.
    CookedV2,
}

impl LinkLayer {
    /// By its number in a capture (the LINKTYPE_ list of tcpdump.org).
    pub(crate) const fn from_number(number: u16) -> Option<Self> {
        Some(match number {
            1 => Self::Ethernet,
            // 12 and 14 are what some systems write for 101; 228 and 229 say which IP.
            12 | 14 | 101 | 228 | 229 => Self::RawIp,
            113 => Self::Cooked,
            276 => Self::CookedV2,
            _ => return None,
        })
    }

    /// A record and the length that it had on the wire, as an Ethernet frame.
    pub(crate) fn ethernet(self, record: &[u8], original_len: u32) -> (Vec<u8>, u32) {
        let (header_len, ethertype_at) = match self {
            Self::Ethernet => return (record.to_vec(), original_len),
            Self::RawIp => (0, None),
            Self::Cooked => (16, Some(14)),
            Self::CookedV2 => (20, Some(0)),
        };
        let packet = record.get(header_len..).unwrap_or_default();
        let ethertype = match ethertype_at {
            Some(at) => record.get(at..at + 2).and_then(|bytes| bytes.first_chunk().copied()),
            None => match packet.first().map(|byte| byte >> 4) {
                Some(6) => Some([0x86, 0xDD]),
                _ => Some([0x08, 0x00]),
            },
        };
        let mut frame = vec![0; 12];
        frame.extend(ethertype.unwrap_or_default());
        frame.extend(packet);
        let original_len = original_len.saturating_sub(header_len as u32).saturating_add(14);
        (frame, original_len)
    }
}

#[cfg(test)]
mod tests {
    use super::LinkLayer;

    #[test]
    fn raw_and_cooked_packets_become_ethernet_frames() {
        let ip4 = [0x45, 1, 2, 3];
        let ip6 = [0x60, 1, 2, 3];
        let mut cooked = vec![7; 14];
        cooked.extend([0x86, 0xDD]);
        cooked.extend(ip6);
        let mut cooked_v2 = vec![0x08, 0x00];
        cooked_v2.extend([7; 18]);
        cooked_v2.extend(ip4);
        let cases: [(u16, &[u8], [u8; 6], u32); 6] = [
            (101, &ip4, [8, 0, 0x45, 1, 2, 3], 114),
            (12, &ip6, [0x86, 0xDD, 0x60, 1, 2, 3], 114),
            (229, &ip6, [0x86, 0xDD, 0x60, 1, 2, 3], 114),
            (113, &cooked, [0x86, 0xDD, 0x60, 1, 2, 3], 98),
            (276, &cooked_v2, [8, 0, 0x45, 1, 2, 3], 94),
            (1, &[0; 18], [0; 6], 100),
        ];
        for (number, record, end, original_len) in cases {
            let layer = LinkLayer::from_number(number).unwrap();
            let (frame, len) = layer.ethernet(record, 100);
            assert_eq!((&frame[12..], len), (&end[..], original_len), "{number}");
        }
        assert_eq!(LinkLayer::from_number(127), None);
    }

    #[test]
    fn a_record_shorter_than_its_link_layer_is_an_empty_frame() {
        for number in [113, 276, 101] {
            let layer = LinkLayer::from_number(number).unwrap();
            for len in 0..20 {
                assert!(layer.ethernet(&[0; 20][..len], 0).0.len() >= 14);
            }
        }
    }
}
