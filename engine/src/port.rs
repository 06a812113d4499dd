//! A port: its addresses and habits, and the shapes of what passes through it. No behaviour.

use core::net::{Ipv4Addr, Ipv6Addr};

use crate::flow_control::Pfc;
use crate::numbers::{Psn, Qpn};
use crate::reason::Reason;

/// The port's addresses and strictness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Frames are neither taken nor sent while this is false.
    pub enabled: bool,
    /// MAC address.
    pub mac: [u8; 6],
    /// IPv4 address.
    pub ipv4: Ipv4Addr,
    /// IPv6 address.
    pub ipv6: Ipv6Addr,
    /// Tag for every frame that leaves (as an access port's switch would add it).
    pub vlan_tci: Option<u16>,
    /// IPv4 packets must have flags 010 (ERNIC).
    pub require_dont_fragment: bool,
    /// Priority flow control; `None`: flow control frames are refused.
    pub pfc: Option<Pfc>,
}

impl Port {
    /// The tag of a frame with this 802.1p priority; `None` leaves the port's own.
    pub(crate) fn tag(&self, priority: Option<u8>) -> Option<u16> {
        let tci = self.vlan_tci?;
        Some(priority.map_or(tci, |priority| tci & 0x1FFF | u16::from(priority) << 13))
    }
}

impl Default for Port {
    fn default() -> Self {
        Self {
            enabled: true,
            mac: [2, 0, 0, 0, 0, 1],
            ipv4: Ipv4Addr::new(192, 0, 2, 1),
            ipv6: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
            vlan_tci: None,
            require_dont_fragment: false,
            pfc: None,
        }
    }
}

/// What the link knows about a frame that arrived.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rx {
    /// The ICRC has been verified already (a link that had to solve for the IP ID, say).
    pub icrc_verified: bool,
}

/// What became of a frame that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// Why it was refused, or noted without being executed; `None` if it was executed.
    pub refused: Option<Reason>,
    /// It was a PFC frame, and was obeyed: no RoCE packet at all.
    pub flow_control: bool,
    /// It was a duplicate request: executed before, answered again.
    pub duplicate: bool,
    /// BTH.OpCode, where it could be read.
    pub opcode: Option<u8>,
    /// BTH.DestQP; 0 where it could not be read.
    pub qpn: Qpn,
    /// BTH.PSN; 0 where it could not be read.
    pub psn: Psn,
    /// AETH syndrome, if the packet has one.
    pub syndrome: Option<u8>,
    /// The IP header carries the CE mark.
    pub congestion_experienced: bool,
}

impl Verdict {
    pub(crate) const fn refused(reason: Reason) -> Self {
        Self {
            refused: Some(reason),
            flow_control: false,
            duplicate: false,
            opcode: None,
            qpn: Qpn::new(0),
            psn: Psn::new(0),
            syndrome: None,
            congestion_experienced: false,
        }
    }
}

/// Where the next frame may be written.
#[derive(Debug)]
pub struct Room<'a> {
    /// The link's buffer. [`crate::packet::FRAME_LEN_MAX`] bytes hold any frame.
    pub bytes: &'a mut [u8],
    /// Equal packets of one queue pair that the link takes at once. One for now.
    pub segments: u16,
    /// The only UDP source port that the link can send from.
    pub source_port: Option<u16>,
}

/// A frame, or several with one header, that was written into the room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Train {
    /// Bytes written.
    pub len: usize,
    /// Bytes of the header that stands before each segment.
    pub header: u16,
    /// Bytes of a segment after the header.
    pub segment: u16,
    /// Number of segments.
    pub segments: u16,
    /// The sender.
    pub qpn: Qpn,
    /// BTH.OpCode of the first packet.
    pub opcode: u8,
    /// BTH.PSN of the first packet.
    pub psn: Psn,
    /// AETH syndrome, if the packet has one.
    pub syndrome: Option<u8>,
    /// The packet was sent before.
    pub retransmission: bool,
    /// It is a PAUSE or PFC frame of the device, and no RoCE packet at all: no segments, no opcode.
    pub flow_control: bool,
}
