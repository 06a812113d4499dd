//! The messages of connection management as bytes: one table each (IBTA vol 1, 12.6 and 13.4).
//!
//! Stateless. What a message means to a connection is [`super::Cm`]'s business.

use core::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use softrnic_engine::packet::opcode::UD_SEND_ONLY;
use softrnic_engine::packet::tree::{self, Node, Tree, Value};

use super::fields::{self, Field, table};
use super::refusal::{Refusal, Reject};

/// Bytes of a management datagram.
pub const MAD_LEN: usize = 256;
/// A management datagram.
pub type Mad = [u8; MAD_LEN];

const HEADER_LEN: usize = 24;
const BASE_VERSION: u8 = 1;
const CLASS_CM: u8 = 0x07;
const CLASS_VERSION: u8 = 2;
/// Every message of this class is a Send: none is an answer to the management layer.
const METHOD_SEND: u8 = 0x03;

table! {
    /// The header of every management datagram (13.4.3).
    Header {
        /// 1.
        base_version: u8 = "Base version", 0, 0, 8, Decimal;
        /// 7 for connection management.
        class: u8 = "Management class", 1, 0, 8, Hex;
        /// 2.
        class_version: u8 = "Class version", 2, 0, 8, Decimal;
        /// 3, Send.
        method: u8 = "Method", 3, 0, 8, Hex;
        /// 0.
        status: u16 = "Status", 4, 0, 16, Hex;
        /// Not used by this class.
        class_specific: u16 = "Class specific", 6, 0, 16, Hex;
        /// The same in all messages of one exchange.
        transaction: u64 = "Transaction ID", 8, 0, 64, Hex;
        /// Which message this is.
        attribute: u16 = "Attribute ID", 16, 0, 16, Hex, attribute_name;
        /// 0.
        modifier: u32 = "Attribute modifier", 20, 0, 32, Hex;
    }
}

table! {
    /// REQ: the active side asks for a connection (12.6.5).
    Req {
        /// The sender's number for the connection.
        local_comm_id: u32 = "Local Communication ID", 0, 0, 32, Hex;
        /// Whom the sender wants to talk to.
        service_id: u64 = "ServiceID", 8, 0, 64, Hex, service_name;
        /// The sender's node.
        local_ca_guid: u64 = "Local CA GUID", 16, 0, 64, Hex;
        /// Queue key, of datagram services.
        local_qkey: u32 = "Local Q_Key", 28, 0, 32, Hex;
        /// The sender's queue pair.
        local_qpn: u32 = "Local QPN", 32, 0, 24, Hex;
        /// READs and atomics that the sender serves at a time.
        responder_resources: u8 = "Responder Resources", 35, 0, 8, Decimal;
        /// End-to-end context, of reliable datagrams.
        local_eecn: u32 = "Local EECN", 36, 0, 24, Hex;
        /// READs and atomics that the sender keeps outstanding.
        initiator_depth: u8 = "Initiator Depth", 39, 0, 8, Decimal;
        /// As above.
        remote_eecn: u32 = "Remote EECN", 40, 0, 24, Hex;
        /// How long the sender waits for an answer: 4.096 us x 2^value.
        remote_response_timeout: u8 = "Remote CM Response Timeout", 43, 0, 5, Decimal, timeout;
        /// 0 is RC, 1 UC.
        transport: u8 = "Transport Service Type", 43, 5, 2, Decimal, transport_name;
        /// The sender counts receives (AETH credits).
        flow_control: bool = "End-to-End Flow Control", 43, 7, 1, Decimal;
        /// PSN that the receiver begins to transmit with.
        starting_psn: u32 = "Starting PSN", 44, 0, 24, Hex;
        /// How long the sender takes to answer: 4.096 us x 2^value.
        local_response_timeout: u8 = "Local CM Response Timeout", 47, 0, 5, Decimal, timeout;
        /// Retries for the receiver's queue pair, 0 to 7.
        retry_count: u8 = "Retry Count", 47, 5, 3, Decimal;
        /// Partition.
        pkey: u16 = "Partition Key", 48, 0, 16, Hex;
        /// 1 to 5 for 256 to 4096 bytes.
        path_mtu: u8 = "Path Packet Payload MTU", 50, 0, 4, Decimal, mtu;
        /// Of reliable datagrams.
        rdc_exists: bool = "RDC Exists", 50, 4, 1, Decimal;
        /// RNR retries for the receiver's queue pair, 0 to 7.
        rnr_retry_count: u8 = "RNR Retry Count", 50, 5, 3, Decimal;
        /// How often a message may be sent again.
        max_cm_retries: u8 = "Max CM Retries", 51, 0, 4, Decimal;
        /// The sender's queue pair receives from a shared queue.
        srq: bool = "SRQ", 51, 4, 1, Decimal;
        /// 1 is XRC, where the transport is 3.
        extended_transport: u8 = "Extended Transport Type", 51, 5, 3, Decimal;
        /// 0xFFFF on Ethernet.
        primary_local_lid: u16 = "Primary Local Port LID", 52, 0, 16, Hex;
        /// 0xFFFF on Ethernet.
        primary_remote_lid: u16 = "Primary Remote Port LID", 54, 0, 16, Hex;
        /// The sender's address; IPv4 as `::ffff:a.b.c.d`.
        primary_local_gid: Ipv6Addr = "Primary Local Port GID", 56, 0, 128, Gid;
        /// The receiver's address.
        primary_remote_gid: Ipv6Addr = "Primary Remote Port GID", 72, 0, 128, Gid;
        /// IPv6 flow label.
        primary_flow_label: u32 = "Primary Flow Label", 88, 0, 20, Hex;
        /// A code; 0 leaves it to the receiver.
        primary_packet_rate: u8 = "Primary Packet Rate", 91, 2, 6, Decimal;
        /// IPv6 traffic class, IPv4 type of service.
        primary_traffic_class: u8 = "Primary Traffic Class", 92, 0, 8, Hex;
        /// IPv6 hop limit, IPv4 time to live.
        primary_hop_limit: u8 = "Primary Hop Limit", 93, 0, 8, Decimal;
        /// Service level.
        primary_sl: u8 = "Primary SL", 94, 0, 4, Decimal;
        /// No router in between.
        primary_subnet_local: bool = "Primary Subnet Local", 94, 4, 1, Decimal;
        /// ACK timeout for the receiver's queue pair: 4.096 us x 2^value.
        primary_ack_timeout: u8 = "Primary Local ACK Timeout", 95, 0, 5, Decimal, timeout;
        /// Alternate paths are not used here.
        alternate_local_lid: u16 = "Alternate Local Port LID", 96, 0, 16, Hex;
        /// As above.
        alternate_remote_lid: u16 = "Alternate Remote Port LID", 98, 0, 16, Hex;
        /// As above.
        alternate_local_gid: Ipv6Addr = "Alternate Local Port GID", 100, 0, 128, Gid;
        /// As above.
        alternate_remote_gid: Ipv6Addr = "Alternate Remote Port GID", 116, 0, 128, Gid;
        /// As above.
        alternate_flow_label: u32 = "Alternate Flow Label", 132, 0, 20, Hex;
        /// As above.
        alternate_packet_rate: u8 = "Alternate Packet Rate", 135, 2, 6, Decimal;
        /// As above.
        alternate_traffic_class: u8 = "Alternate Traffic Class", 136, 0, 8, Hex;
        /// As above.
        alternate_hop_limit: u8 = "Alternate Hop Limit", 137, 0, 8, Decimal;
        /// As above.
        alternate_sl: u8 = "Alternate SL", 138, 0, 4, Decimal;
        /// As above.
        alternate_subnet_local: bool = "Alternate Subnet Local", 138, 4, 1, Decimal;
        /// As above.
        alternate_ack_timeout: u8 = "Alternate Local ACK Timeout", 139, 0, 5, Decimal, timeout;
        /// The program's, or RDMA CM's header and the program's.
        private_data: [u8; 92] = "Private Data", 140, 0, 736, Bytes;
    }
}

table! {
    /// MRA: the message has come, and its answer takes a while (12.6.6).
    Mra {
        /// The sender's number for the connection.
        local_comm_id: u32 = "Local Communication ID", 0, 0, 32, Hex;
        /// The receiver's.
        remote_comm_id: u32 = "Remote Communication ID", 4, 0, 32, Hex;
        /// What has come: 0 REQ, 1 REP, 2 LAP.
        message: u8 = "Message MRAed", 8, 0, 2, Decimal, answered_name;
        /// How long the answer takes at most: 4.096 us x 2^value.
        service_timeout: u8 = "Service Timeout", 9, 0, 5, Decimal, timeout;
        /// The program's.
        private_data: [u8; 222] = "Private Data", 10, 0, 1776, Bytes;
    }
}

table! {
    /// REJ: there will be no connection (12.6.7).
    Rej {
        /// The sender's number for the connection; 0 where it never had one.
        local_comm_id: u32 = "Local Communication ID", 0, 0, 32, Hex;
        /// The receiver's.
        remote_comm_id: u32 = "Remote Communication ID", 4, 0, 32, Hex;
        /// What is rejected: 0 REQ, 1 REP, 2 no message.
        message: u8 = "Message REJected", 8, 0, 2, Decimal, answered_name;
        /// Bytes of additional information.
        info_len: u8 = "Reject Info Length", 9, 0, 7, Decimal;
        /// Why.
        reason: u16 = "Reason", 10, 0, 16, Decimal, reject_name;
        /// What would do instead, in the format of the reason.
        info: [u8; 72] = "Additional Reject Information", 12, 0, 576, Bytes;
        /// The program's.
        private_data: [u8; 148] = "Private Data", 84, 0, 1184, Bytes;
    }
}

table! {
    /// REP: the passive side accepts (12.6.8).
    Rep {
        /// The sender's number for the connection.
        local_comm_id: u32 = "Local Communication ID", 0, 0, 32, Hex;
        /// The receiver's.
        remote_comm_id: u32 = "Remote Communication ID", 4, 0, 32, Hex;
        /// Queue key, of datagram services.
        local_qkey: u32 = "Local Q_Key", 8, 0, 32, Hex;
        /// The sender's queue pair.
        local_qpn: u32 = "Local QPN", 12, 0, 24, Hex;
        /// End-to-end context, of reliable datagrams.
        local_eecn: u32 = "Local EE Context Number", 16, 0, 24, Hex;
        /// PSN that the receiver begins to transmit with.
        starting_psn: u32 = "Starting PSN", 20, 0, 24, Hex;
        /// READs and atomics that the sender serves at a time.
        responder_resources: u8 = "Responder Resources", 24, 0, 8, Decimal;
        /// READs and atomics that the sender keeps outstanding.
        initiator_depth: u8 = "Initiator Depth", 25, 0, 8, Decimal;
        /// How long the sender's hardware takes to acknowledge: 4.096 us x 2^value.
        target_ack_delay: u8 = "Target ACK Delay", 26, 0, 5, Decimal, timeout;
        /// 1: the alternate path is not.
        failover_accepted: u8 = "Failover Accepted", 26, 5, 2, Decimal;
        /// The sender counts receives (AETH credits).
        flow_control: bool = "End-to-End Flow Control", 26, 7, 1, Decimal;
        /// RNR retries for the receiver's queue pair, 0 to 7.
        rnr_retry_count: u8 = "RNR Retry Count", 27, 0, 3, Decimal;
        /// The sender's queue pair receives from a shared queue.
        srq: bool = "SRQ", 27, 3, 1, Decimal;
        /// The sender's node.
        local_ca_guid: u64 = "Local CA GUID", 28, 0, 64, Hex;
        /// The program's.
        private_data: [u8; Rep::PRIVATE_LEN] = "Private Data", 36, 0, 1568, Bytes;
    }
}

table! {
    /// RTU: the active side has its queue pair ready (12.6.9).
    Rtu {
        /// The sender's number for the connection.
        local_comm_id: u32 = "Local Communication ID", 0, 0, 32, Hex;
        /// The receiver's.
        remote_comm_id: u32 = "Remote Communication ID", 4, 0, 32, Hex;
        /// The program's.
        private_data: [u8; 224] = "Private Data", 8, 0, 1792, Bytes;
    }
}

table! {
    /// DREQ: one side ends the connection (12.6.10).
    Dreq {
        /// The sender's number for the connection.
        local_comm_id: u32 = "Local Communication ID", 0, 0, 32, Hex;
        /// The receiver's.
        remote_comm_id: u32 = "Remote Communication ID", 4, 0, 32, Hex;
        /// The receiver's queue pair.
        remote_qpn: u32 = "Remote QPN/EECN", 8, 0, 24, Hex;
        /// The program's.
        private_data: [u8; 220] = "Private Data", 12, 0, 1760, Bytes;
    }
}

table! {
    /// DREP: the other side has ended it, too (12.6.11).
    Drep {
        /// The sender's number for the connection.
        local_comm_id: u32 = "Local Communication ID", 0, 0, 32, Hex;
        /// The receiver's.
        remote_comm_id: u32 = "Remote Communication ID", 4, 0, 32, Hex;
        /// The program's.
        private_data: [u8; 224] = "Private Data", 8, 0, 1792, Bytes;
    }
}

table! {
    /// What RDMA CM puts before a program's private data in a REQ: who the two ends are as IP sees
    /// them (annex A11).
    IpCm {
        /// 0.
        major: u8 = "Major version", 0, 0, 4, Decimal;
        /// 0.
        minor: u8 = "Minor version", 0, 4, 4, Decimal;
        /// 4 or 6.
        ip_version: u8 = "IP version", 1, 0, 4, Decimal;
        /// The port that the sender is bound to.
        source_port: u16 = "Source port", 2, 0, 16, Decimal;
        /// The sender's address; IPv4 in the last four bytes, the rest zero.
        source: Ipv6Addr = "Source address", 4, 0, 128, Gid;
        /// The receiver's address.
        destination: Ipv6Addr = "Destination address", 20, 0, 128, Gid;
    }
}

macro_rules! messages {
    ($($(#[$doc:meta])* $kind:ident = $attribute:literal, $name:literal;)*) => {
        /// The kinds of messages.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Kind {
            $($(#[$doc])* $kind,)*
        }

        impl Kind {
            /// All of them, in the order of their attributes.
            pub const ALL: &'static [Self] = &[$(Self::$kind,)*];

            /// Attribute ID in the header of the datagram.
            #[must_use]
            pub const fn attribute(self) -> u16 {
                match self { $(Self::$kind => $attribute,)* }
            }

            /// Name as the standard writes it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)* }
            }

            /// The table of its fields, which begins behind the header.
            #[must_use]
            pub const fn fields(self) -> &'static [Field] {
                match self { $(Self::$kind => $kind::FIELDS,)* }
            }
        }

        /// A message.
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub enum Message {
            $($(#[$doc])* $kind(Box<$kind>),)*
        }

        impl Message {
            /// Which kind it is.
            #[must_use]
            pub const fn kind(&self) -> Kind {
                match self { $(Self::$kind(_) => Kind::$kind,)* }
            }

            fn put(&self, bytes: &mut [u8]) {
                match self { $(Self::$kind(message) => message.put(bytes),)* }
            }

            fn get(kind: Kind, bytes: &[u8]) -> Self {
                match kind { $(Kind::$kind => Self::$kind(Box::new($kind::get(bytes))),)* }
            }
        }

        $(
            impl From<$kind> for Message {
                fn from(message: $kind) -> Self {
                    Self::$kind(Box::new(message))
                }
            }
        )*
    };
}

messages! {
    /// Request for communication.
    Req = 0x0010, "REQ";
    /// Message receipt acknowledgement.
    Mra = 0x0011, "MRA";
    /// Reject.
    Rej = 0x0012, "REJ";
    /// Reply to a request for communication.
    Rep = 0x0013, "REP";
    /// Ready to use.
    Rtu = 0x0014, "RTU";
    /// Request for communication release.
    Dreq = 0x0015, "DREQ";
    /// Reply to a request for communication release.
    Drep = 0x0016, "DREP";
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Message {
    /// The datagram.
    #[must_use]
    pub fn encode(&self, transaction: u64) -> Mad {
        let header = Header {
            base_version: BASE_VERSION,
            class: CLASS_CM,
            class_version: CLASS_VERSION,
            method: METHOD_SEND,
            transaction,
            attribute: self.kind().attribute(),
            ..Header::default()
        };
        let mut mad = [0; MAD_LEN];
        let (head, data) = mad.split_at_mut(HEADER_LEN);
        header.put(head);
        self.put(data);
        mad
    }

    /// Reads a datagram: its transaction and its message.
    ///
    /// # Errors
    /// It is none of connection management, or of a kind that is not handled.
    pub fn decode(mad: &[u8]) -> Result<(u64, Self), Refusal> {
        let mad: &Mad = mad.try_into().map_err(|_| Refusal::Length)?;
        let header = Header::get(mad);
        if header.base_version != BASE_VERSION || header.class != CLASS_CM {
            return Err(Refusal::NotCm);
        }
        if header.class_version != CLASS_VERSION {
            return Err(Refusal::ClassVersion);
        }
        if header.method != METHOD_SEND {
            return Err(Refusal::Method);
        }
        let kind = kind_of(header.attribute).ok_or(Refusal::Attribute)?;
        Ok((header.transaction, Self::get(kind, &mad[HEADER_LEN..])))
    }
}

impl IpCm {
    /// Bytes in a REQ's private data.
    pub const LEN: usize = 36;

    /// The header for two ends of one family.
    #[must_use]
    pub fn new(source: IpAddr, source_port: u16, destination: IpAddr) -> Self {
        let ip_version = if destination.is_ipv4() { 4 } else { 6 };
        let place = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => Ipv6Addr::from(u128::from(u32::from(ip))),
            IpAddr::V6(ip) => ip,
        };
        let (source, destination) = (place(source), place(destination));
        Self { ip_version, source_port, source, destination, ..Self::default() }
    }

    /// A REQ's private data: the header, and the program's own behind it.
    ///
    /// # Errors
    /// The program's is longer than the 56 bytes that are left.
    pub fn with(&self, program: &[u8]) -> Result<[u8; 92], usize> {
        let mut data = [0; 92];
        self.put(&mut data);
        let room = &mut data[Self::LEN..];
        let max = room.len();
        room.get_mut(..program.len()).ok_or(max)?.copy_from_slice(program);
        Ok(data)
    }

    /// Reads a REQ's private data: who the ends are, and the program's own.
    ///
    /// # Errors
    /// The version is not 0.0, or the IP version is neither 4 nor 6.
    pub fn split(data: &[u8; 92]) -> Result<(Self, &[u8]), Refusal> {
        let header = Self::get(data);
        match (header.major, header.minor, header.ip_version) {
            (0, 0, 4 | 6) => Ok((header, &data[Self::LEN..])),
            _ => Err(Refusal::IpHeader),
        }
    }

    /// Source and destination as addresses of the version's family.
    #[must_use]
    pub fn ends(&self) -> (IpAddr, IpAddr) {
        let read = |place: Ipv6Addr| match self.ip_version {
            4 => Ipv4Addr::from(u128::from(place) as u32).into(),
            _ => place.into(),
        };
        (read(self.source), read(self.destination))
    }
}

impl Rep {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 196;
}

/// The service of TCP port space of RDMA CM (annex A11): what `rdma_listen` on a port listens to.
#[must_use]
pub const fn tcp_service(port: u16) -> u64 {
    0x0000_0000_0106_0000 | port as u64
}

/// The port, if it is a service of RDMA CM's TCP port space.
#[must_use]
pub const fn tcp_port(service_id: u64) -> Option<u16> {
    let port = service_id as u16;
    if service_id == tcp_service(port) { Some(port) } else { None }
}

/// A GID of RoCE v2: IPv4 addresses are mapped (annex A17).
#[must_use]
pub fn gid(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// The address of a GID.
#[must_use]
pub fn address(gid: Ipv6Addr) -> IpAddr {
    gid.to_ipv4_mapped().map_or(IpAddr::V6(gid), IpAddr::V4)
}

/// A datagram for people: header and message, with offsets from `offset` on. As far as the bytes make
/// sense.
#[must_use]
pub fn nodes(mad: &[u8], offset: usize) -> Vec<Node> {
    let (head, data) = mad.split_at(mad.len().min(HEADER_LEN));
    let mut nodes = vec![fields::node("MAD", Header::FIELDS, head, offset)];
    let header = Header::get(head);
    if header.class != CLASS_CM {
        return nodes;
    }
    let Some(kind) = kind_of(header.attribute) else { return nodes };
    nodes.push(fields::node(kind.name(), kind.fields(), data, offset + HEADER_LEN));
    // RDMA CM's services alone say what their private data begin with.
    if kind == Kind::Req {
        let at = HEADER_LEN + Req::FIELDS.last().map_or(0, Field::start);
        let service = Req::get(data).service_id;
        if let Some(bytes) = mad.get(at..at + IpCm::LEN).filter(|_| tcp_port(service).is_some()) {
            nodes.push(fields::node("IP CM", IpCm::FIELDS, bytes, offset + at));
        }
    }
    nodes
}

/// An Ethernet frame for people, as [`tree::decode`]; of a datagram to QP 1, the fields stand in the
/// place of the payload.
#[must_use]
pub fn decode_frame(frame: &[u8]) -> Tree {
    let mut whole = tree::decode(frame);
    let number = |name: &str| {
        let bth = whole.nodes.iter().find(|node| node.name == "BTH")?;
        match bth.children.iter().find(|node| node.name == name)?.value {
            Value::Number { value, .. } => Some(value),
            _ => None,
        }
    };
    let to_qp1 = number("OpCode") == Some(UD_SEND_ONLY.into()) && number("DestQP") == Some(1);
    let payload = whole.nodes.iter().position(|node| node.name == "Payload");
    let Some(at) = payload.filter(|_| to_qp1) else { return whole };
    let Node { offset, len, .. } = whole.nodes[at];
    let mad = frame.get(offset..offset + len).filter(|mad| mad.len() == MAD_LEN);
    let Some(mad) = mad else { return whole };
    whole.nodes.splice(at..=at, nodes(mad, offset));
    if let Ok((_, message)) = Message::decode(mad) {
        whole.summary = format!("{}  CM {}", whole.summary, message.kind());
    }
    whole
}

fn kind_of(attribute: u16) -> Option<Kind> {
    Kind::ALL.iter().copied().find(|kind| kind.attribute() == attribute)
}

fn attribute_name(value: u64) -> String {
    kind_of(value as u16).map_or_else(String::new, |kind| kind.name().to_owned())
}

fn answered_name(value: u64) -> String {
    ["REQ", "REP", "LAP or none", ""][value as usize & 3].to_owned()
}

fn transport_name(value: u64) -> String {
    ["RC", "UC", "RD", "extended"][value as usize & 3].to_owned()
}

fn service_name(value: u64) -> String {
    tcp_port(value).map_or_else(String::new, |port| format!("RDMA_PS_TCP, port {port}"))
}

fn reject_name(value: u64) -> String {
    Reject(value as u16).to_string()
}

fn timeout(code: u64) -> String {
    let ns = timeout_ns(code as u8);
    match ns {
        0..1_000_000 => format!("{} us", ns / 1000),
        1_000_000..1_000_000_000 => format!("{} ms", ns / 1_000_000),
        _ => format!("{}.{} s", ns / 1_000_000_000, ns / 100_000_000 % 10),
    }
}

fn mtu(code: u64) -> String {
    if matches!(code, 1..=5) { format!("{} bytes", 128 << code) } else { String::new() }
}

/// What a 5-bit timeout code means: 4.096 us x 2^code, in ns.
#[must_use]
pub const fn timeout_ns(code: u8) -> u64 {
    4096 << (code & 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_in_order_within_their_datagram_and_nothing_overlaps() {
        let header = ("header", Header::FIELDS, HEADER_LEN);
        let kinds = Kind::ALL.iter().map(|kind| (kind.name(), kind.fields(), MAD_LEN - HEADER_LEN));
        for (name, table, len) in [header].into_iter().chain(kinds) {
            let end = table.iter().fold(0, |end, field| {
                assert!(field.bit >= end, "{name}: {}", field.name);
                field.bit + field.bits
            });
            assert_eq!(end, 8 * len, "{name}");
        }
        assert_eq!(IpCm::FIELDS.last().unwrap().end(), IpCm::LEN);
    }

    #[test]
    fn a_private_header_tells_both_families() {
        for (source, destination) in [("192.0.2.1", "192.0.2.2"), ("2001:db8::1", "2001:db8::2")] {
            let ends: (IpAddr, IpAddr) = (source.parse().unwrap(), destination.parse().unwrap());
            let data = IpCm::new(ends.0, 0x1234, ends.1).with(b"hello").unwrap();
            assert_eq!(data[1], if ends.0.is_ipv4() { 0x40 } else { 0x60 });
            assert_eq!(data[2..4], [0x12, 0x34]);
            let (header, program) = IpCm::split(&data).unwrap();
            assert_eq!(header.ends(), ends);
            assert_eq!(program[..5], *b"hello");
            assert_eq!(gid(ends.0), gid(address(gid(ends.0))));
            assert_eq!(address(gid(ends.1)), ends.1);
        }
        let header = IpCm::new([0; 4].into(), 0, [0; 4].into());
        assert_eq!(header.with(&[1; 57]), Err(56));
        assert_eq!(IpCm::split(&[0; 92]), Err(Refusal::IpHeader));
        let wrong_major = IpCm { major: 1, ..header };
        assert_eq!(IpCm::split(&wrong_major.with(&[]).unwrap()), Err(Refusal::IpHeader));
    }

    #[test]
    fn a_service_names_a_port_and_no_other_port_space() {
        assert_eq!(tcp_service(7174), 0x0000_0000_0106_1C06);
        assert_eq!(tcp_port(tcp_service(7174)), Some(7174));
        assert_eq!(tcp_port(0x0000_0000_0111_1C06), None, "RDMA_PS_UDP");
    }
}
