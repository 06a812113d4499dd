//! Bytes to headers and back. No state, no queue pair, no memory.
//!
//! [`opcode`] is the table from which parse, build and decode follow.

mod build;
mod fields;
pub mod flow_control;
mod headers;
pub mod icrc;
pub mod opcode;
mod parse;
mod template;
pub mod tree;

pub use build::{Derived, Description, Extensions, Ipv4, Ipv6, Layer3, Tag, Udp, build, describe};
pub use headers::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Grh, Ieth, ImmDt, Reth, Syndrome, XrcEth,
    nak_code,
};
pub use opcode::{Ext, OpcodeRow, Operation, Payload, Position};
pub use parse::{Network, Packet, parse};
pub use template::{
    BthFields, FRAME_LEN_MAX, Flow, TEMPLATE_LEN_MAX, Template, aeth, udp_source_port,
};

/// The UDP destination port of RoCE v2 (IANA; IBTA annex A17).
pub const ROCE_V2_UDP_PORT: u16 = 4791;
/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86DD;
/// EtherType of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// EtherType of RoCE v1 (IBTA annex A16).
pub const ETHERTYPE_ROCE_V1: u16 = 0x8915;
/// EtherType of an 802.1Q tag.
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// EtherType of an 802.1ad service tag.
pub const ETHERTYPE_SERVICE_VLAN: u16 = 0x88A8;
/// EtherType of MAC control: PAUSE and PFC (802.3 31, 802.1Qbb).
pub const ETHERTYPE_MAC_CONTROL: u16 = 0x8808;
/// The GRH's next header value for a BTH.
pub const GRH_NEXT_HEADER_BTH: u8 = 0x1B;
