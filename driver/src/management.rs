//! Frames that software builds for QP 1: connection management and congestion notifications.
//!
//! The device adds an ICRC to what QP 1 sends and nothing else, so these are whole frames from the
//! Ethernet header on; what QP 1 receives is whole frames too. Formats: IBTA vol 1, chapter 12 (CM) and
//! 13.4 (MAD), annex A17 (RoCE v2, CNP). No state: who answers what, and when, is the caller's.

use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of a management datagram.
pub const MAD_BYTES: usize = 256;
const MAD_HEADER_BYTES: usize = 24;

const ETHERNET_BYTES: usize = 14;
const VLAN_BYTES: usize = 4;
const UDP_BYTES: usize = 8;
const BTH_BYTES: usize = 12;
const DETH_BYTES: usize = 8;
const ICRC_BYTES: usize = 4;
const ROCE_PORT: u16 = 4791;
const DEFAULT_PKEY: u16 = 0xFFFF;
/// Q_Key of every QP 1 (IBTA vol 1, 10.2.5).
const QP1_QKEY: u32 = 0x8001_0000;
const OPCODE_UD_SEND_ONLY: u8 = 0x64;
const OPCODE_CNP: u8 = 0x81;
const CNP_BYTES: usize = 16;
/// BTH byte 1 of a packet that may migrate, as all are.
const MIGRATED: u8 = 0x40;
/// BTH byte 4: backward congestion notification.
const BECN: u8 = 0x40;
/// What a CNP's DSCP is by default elsewhere (48), with ECN "ECT(0)".
const CNP_TRAFFIC_CLASS: u8 = 0xC2;

const CLASS_CM: u8 = 0x07;
const CLASS_VERSION_CM: u8 = 2;
const METHOD_SEND: u8 = 0x03;
const ATTRIBUTE_REQ: u16 = 0x0010;
const ATTRIBUTE_REP: u16 = 0x0013;
const ATTRIBUTE_RTU: u16 = 0x0014;

/// From whom to whom a frame goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FramePath {
    /// Our MAC address.
    pub source_mac: [u8; 6],
    /// The peer's, or its router's.
    pub dest_mac: [u8; 6],
    /// Our IP address.
    pub source_ip: IpAddr,
    /// The peer's, of the same family.
    pub dest_ip: IpAddr,
    /// UDP source port.
    pub source_port: u16,
    /// VLAN tag (TCI).
    pub vlan_tci: Option<u16>,
}

/// A management datagram in a frame that QP 1 has received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Datagram<'a> {
    /// Who sent it.
    pub source_ip: IpAddr,
    /// Its queue pair; 1.
    pub source_qpn: u32,
    /// The datagram.
    pub mad: &'a [u8; MAD_BYTES],
}

impl<'a> Datagram<'a> {
    /// Reads a frame. The device has verified its ICRC and its addresses; whether it is a datagram to QP 1 with the
    /// right length and Q_Key is software's to say. What follows a shorter frame in a receive element is older.
    /// `None`: it is none.
    #[must_use]
    pub fn from_frame(frame: &'a [u8]) -> Option<Self> {
        let mut ip = ETHERNET_BYTES;
        while matches!(frame.get(ip - 2..ip)?, [0x81, 0x00] | [0x88, 0xA8]) {
            ip += VLAN_BYTES;
        }
        let (source_ip, udp) = match frame.get(ip - 2..ip)? {
            [0x08, 0x00] => {
                let source: &[u8; 4] = frame.get(ip + 12..)?.first_chunk()?;
                (Ipv4Addr::from(*source).into(), ip + 20)
            }
            [0x86, 0xDD] => {
                let source: &[u8; 16] = frame.get(ip + 8..)?.first_chunk()?;
                (Ipv6Addr::from(*source).into(), ip + 40)
            }
            _ => return None,
        };
        let (udp, rest) = frame.get(udp..)?.split_first_chunk::<UDP_BYTES>()?;
        let (bth, rest) = rest.split_first_chunk::<BTH_BYTES>()?;
        let (deth, rest) = rest.split_first_chunk::<DETH_BYTES>()?;
        let udp_len = UDP_BYTES + BTH_BYTES + DETH_BYTES + MAD_BYTES + ICRC_BYTES;
        let to_qp1 = bth[0] == OPCODE_UD_SEND_ONLY && be32(bth, 4) & 0xFF_FFFF == 1;
        if !to_qp1 || be32(deth, 0) != QP1_QKEY || be32(udp, 4) >> 16 != udp_len as u32 {
            return None;
        }
        Some(Self { source_ip, source_qpn: be32(deth, 4) & 0xFF_FFFF, mad: rest.first_chunk()? })
    }
}

/// The frame that carries a management datagram to a queue pair of the peer (1), for QP 1 to send.
#[must_use]
pub fn datagram(path: &FramePath, dest_qpn: u32, psn: u32, mad: &[u8; MAD_BYTES]) -> Vec<u8> {
    let bth = [OPCODE_UD_SEND_ONLY, MIGRATED];
    let mut frame = frame(path, 0, bth, 0, dest_qpn, DEFAULT_PKEY, psn, DETH_BYTES + MAD_BYTES);
    let deth = frame.len() - MAD_BYTES - DETH_BYTES;
    put(&mut frame, deth, &QP1_QKEY.to_be_bytes());
    put(&mut frame, deth + 4, &1u32.to_be_bytes());
    put(&mut frame, deth + DETH_BYTES, mad);
    frame
}

/// A connection management message, as far as it is used to connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CmMessage {
    /// REQ: "connect me".
    Request(CmRequest),
    /// REP: "here is my end".
    Reply(CmReply),
    /// RTU: "ready to use".
    ReadyToUse(CmReadyToUse),
}

/// REQ (IBTA vol 1, 12.6.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CmRequest {
    /// Transaction of the MAD header.
    pub transaction: u64,
    /// The active side's number for this connection.
    pub local_comm_id: u32,
    /// Who should answer.
    pub service_id: u64,
    /// The active side's node.
    pub ca_guid: u64,
    /// The active side's queue pair.
    pub qpn: u32,
    /// PSN that the passive side begins to transmit with.
    pub psn: u32,
    /// READs that may be outstanding from and to the active side.
    pub reads: u8,
    /// Retries, 0 to 7.
    pub retry_count: u8,
    /// Retries after RNR NAK, 0 to 7.
    pub rnr_retry_count: u8,
    /// Path MTU, 1 to 5 for 256 to 4096.
    pub path_mtu: u8,
    /// Local ACK timeout, 4.096 us x 2^value.
    pub ack_timeout: u8,
}

/// REP (IBTA vol 1, 12.6.8).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CmReply {
    /// Transaction of the REQ.
    pub transaction: u64,
    /// The passive side's number for this connection.
    pub local_comm_id: u32,
    /// The active side's.
    pub remote_comm_id: u32,
    /// The passive side's node.
    pub ca_guid: u64,
    /// The passive side's queue pair.
    pub qpn: u32,
    /// PSN that the active side begins to transmit with.
    pub psn: u32,
    /// READs that may be outstanding from and to the passive side.
    pub reads: u8,
    /// Retries after RNR NAK, 0 to 7.
    pub rnr_retry_count: u8,
}

/// RTU (IBTA vol 1, 12.6.9).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CmReadyToUse {
    /// Transaction of the REQ.
    pub transaction: u64,
    /// The active side's number for this connection.
    pub local_comm_id: u32,
    /// The passive side's.
    pub remote_comm_id: u32,
}

impl CmMessage {
    /// The frame for QP 1 to send.
    #[must_use]
    pub fn frame(&self, path: &FramePath, psn: u32) -> Vec<u8> {
        datagram(path, 1, psn, &self.encode(path))
    }

    /// Reads a frame that QP 1 has received. `None`: it is not one of these messages.
    #[must_use]
    pub fn from_frame(frame: &[u8]) -> Option<Self> {
        Self::decode(Datagram::from_frame(frame)?.mad)
    }

    fn encode(&self, path: &FramePath) -> [u8; MAD_BYTES] {
        let (attribute, transaction) = match self {
            Self::Request(message) => (ATTRIBUTE_REQ, message.transaction),
            Self::Reply(message) => (ATTRIBUTE_REP, message.transaction),
            Self::ReadyToUse(message) => (ATTRIBUTE_RTU, message.transaction),
        };
        let mut mad = [0; MAD_BYTES];
        put(&mut mad, 0, &[1, CLASS_CM, CLASS_VERSION_CM, METHOD_SEND]);
        put(&mut mad, 8, &transaction.to_be_bytes());
        put(&mut mad, 16, &attribute.to_be_bytes());
        let data = &mut mad[MAD_HEADER_BYTES..];
        match self {
            Self::Request(message) => message.encode(path, data),
            Self::Reply(message) => message.encode(data),
            Self::ReadyToUse(message) => {
                put(data, 0, &message.local_comm_id.to_be_bytes());
                put(data, 4, &message.remote_comm_id.to_be_bytes());
            }
        }
        mad
    }

    fn decode(mad: &[u8]) -> Option<Self> {
        if mad.get(..4)? != [1, CLASS_CM, CLASS_VERSION_CM, METHOD_SEND] {
            return None;
        }
        let transaction = be64(mad, 8);
        let data = mad.get(MAD_HEADER_BYTES..MAD_BYTES)?;
        Some(match (be32(mad, 16) >> 16) as u16 {
            ATTRIBUTE_REQ => Self::Request(CmRequest::decode(transaction, data)),
            ATTRIBUTE_REP => Self::Reply(CmReply::decode(transaction, data)),
            ATTRIBUTE_RTU => Self::ReadyToUse(CmReadyToUse {
                transaction,
                local_comm_id: be32(data, 0),
                remote_comm_id: be32(data, 4),
            }),
            _ => return None,
        })
    }
}

impl CmRequest {
    fn encode(&self, path: &FramePath, data: &mut [u8]) {
        put(data, 0, &self.local_comm_id.to_be_bytes());
        put(data, 8, &self.service_id.to_be_bytes());
        put(data, 16, &self.ca_guid.to_be_bytes());
        put(data, 32, &high24(self.qpn, self.reads));
        put(data, 36, &high24(0, self.reads));
        // Remote CM response timeout 20 (4.3 s), transport RC.
        put(data, 40, &high24(0, 20 << 3));
        put(data, 44, &high24(self.psn, 20 << 3 | self.retry_count & 7));
        put(data, 48, &DEFAULT_PKEY.to_be_bytes());
        data[50] = self.path_mtu << 4 | self.rnr_retry_count & 7;
        // 15 CM retries.
        data[51] = 15 << 4;
        // LIDs are permissive: there are none on Ethernet.
        put(data, 52, &[0xFF; 4]);
        put(data, 56, &gid(path.source_ip));
        put(data, 72, &gid(path.dest_ip));
        // Hop limit; local subnet.
        data[93] = 64;
        data[94] = 1 << 3;
        data[95] = self.ack_timeout << 3;
    }

    fn decode(transaction: u64, data: &[u8]) -> Self {
        Self {
            transaction,
            local_comm_id: be32(data, 0),
            service_id: be64(data, 8),
            ca_guid: be64(data, 16),
            qpn: be32(data, 32) >> 8,
            psn: be32(data, 44) >> 8,
            reads: data[35],
            retry_count: data[47] & 7,
            rnr_retry_count: data[50] & 7,
            path_mtu: data[50] >> 4,
            ack_timeout: data[95] >> 3,
        }
    }
}

impl CmReply {
    fn encode(&self, data: &mut [u8]) {
        put(data, 0, &self.local_comm_id.to_be_bytes());
        put(data, 4, &self.remote_comm_id.to_be_bytes());
        put(data, 12, &high24(self.qpn, 0));
        put(data, 20, &high24(self.psn, 0));
        data[24] = self.reads;
        data[25] = self.reads;
        data[27] = self.rnr_retry_count << 5;
        put(data, 28, &self.ca_guid.to_be_bytes());
    }

    fn decode(transaction: u64, data: &[u8]) -> Self {
        Self {
            transaction,
            local_comm_id: be32(data, 0),
            remote_comm_id: be32(data, 4),
            ca_guid: be64(data, 28),
            qpn: be32(data, 12) >> 8,
            psn: be32(data, 20) >> 8,
            reads: data[24],
            rnr_retry_count: data[27] >> 5,
        }
    }
}

/// A congestion notification to a queue pair of the peer, the one that CNPSCHDSTS asks for: the peer of
/// a local queue pair whose packets came marked. For QP 1 to send.
#[must_use]
pub fn congestion_notification(path: &FramePath, dest_qpn: u32, pkey: u16) -> Vec<u8> {
    frame(path, CNP_TRAFFIC_CLASS, [OPCODE_CNP, 0], BECN, dest_qpn, pkey, 0, CNP_BYTES)
}

/// A frame up to the end of `payload_len` zero bytes after the BTH. The lengths in it count the ICRC,
/// which the device adds.
#[allow(clippy::too_many_arguments, reason = "the fields of one header each")]
fn frame(
    path: &FramePath,
    traffic_class: u8,
    opcode_flags: [u8; 2],
    congestion: u8,
    dest_qpn: u32,
    pkey: u16,
    psn: u32,
    payload_len: usize,
) -> Vec<u8> {
    let udp_len = UDP_BYTES + BTH_BYTES + payload_len + ICRC_BYTES;
    let (ethertype, ip_len) = match path.dest_ip {
        IpAddr::V4(_) => (0x0800u16, 20),
        IpAddr::V6(_) => (0x86DD, 40),
    };
    let ip_at = ETHERNET_BYTES + path.vlan_tci.map_or(0, |_| VLAN_BYTES);
    let mut frame = vec![0; ip_at + ip_len + udp_len - ICRC_BYTES];
    put(&mut frame, 0, &path.dest_mac);
    put(&mut frame, 6, &path.source_mac);
    if let Some(tci) = path.vlan_tci {
        put(&mut frame, 12, &[0x81, 0x00]);
        put(&mut frame, 14, &tci.to_be_bytes());
    }
    put(&mut frame, ip_at - 2, &ethertype.to_be_bytes());
    let ip = &mut frame[ip_at..];
    match (path.source_ip, path.dest_ip) {
        (IpAddr::V4(source), IpAddr::V4(dest)) => {
            put(ip, 0, &[0x45, traffic_class]);
            put(ip, 2, &((ip_len + udp_len) as u16).to_be_bytes());
            // Do not fragment; 64 hops; UDP.
            put(ip, 6, &[0x40, 0, 64, 17]);
            put(ip, 12, &source.octets());
            put(ip, 16, &dest.octets());
            let checksum = ipv4_checksum(&ip[..20]);
            put(ip, 10, &checksum.to_be_bytes());
        }
        (source, dest) => {
            put(ip, 0, &(6 << 28 | u32::from(traffic_class) << 20).to_be_bytes());
            put(ip, 4, &(udp_len as u16).to_be_bytes());
            put(ip, 6, &[17, 64]);
            put(ip, 8, &gid(source));
            put(ip, 24, &gid(dest));
        }
    }
    let udp = &mut ip[ip_len..];
    put(udp, 0, &path.source_port.to_be_bytes());
    put(udp, 2, &ROCE_PORT.to_be_bytes());
    put(udp, 4, &(udp_len as u16).to_be_bytes());
    let bth = &mut udp[UDP_BYTES..];
    put(bth, 0, &opcode_flags);
    put(bth, 2, &pkey.to_be_bytes());
    put(bth, 4, &(u32::from(congestion) << 24 | dest_qpn & 0xFF_FFFF).to_be_bytes());
    put(bth, 8, &(psn & 0xFF_FFFF).to_be_bytes());
    frame
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// 24 bits and a byte.
const fn high24(value: u32, low: u8) -> [u8; 4] {
    (value << 8 | low as u32).to_be_bytes()
}

/// An IPv4 address as a GID is mapped (annex A17).
fn gid(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
    .octets()
}

fn ipv4_checksum(header: &[u8]) -> u16 {
    let words = header.as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word)));
    let sum: u32 = words.sum();
    let sum = (sum & 0xFFFF) + (sum >> 16);
    !(((sum & 0xFFFF) + (sum >> 16)) as u16)
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from(be32(bytes, at)) << 32 | u64::from(be32(bytes, at + 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path() -> FramePath {
        FramePath {
            source_mac: [2, 0, 0, 0, 0, 1],
            dest_mac: [2, 0, 0, 0, 0, 2],
            source_ip: Ipv4Addr::new(192, 0, 2, 1).into(),
            dest_ip: Ipv4Addr::new(192, 0, 2, 2).into(),
            source_port: 0xC000,
            vlan_tci: None,
        }
    }

    const REQUEST: CmRequest = CmRequest {
        transaction: 0x0102_0304_0506_0708,
        local_comm_id: 0xA0A1_A2A3,
        service_id: 0x0000_0000_0106_1234,
        ca_guid: 0x0200_00FF_FE00_0001,
        qpn: 0x12_3456,
        psn: 0xAB_CDEF,
        reads: 16,
        retry_count: 7,
        rnr_retry_count: 5,
        path_mtu: 3,
        ack_timeout: 18,
    };

    const REPLY: CmReply = CmReply {
        transaction: 1,
        local_comm_id: 2,
        remote_comm_id: 3,
        ca_guid: 4,
        qpn: 0xFF_FFFF,
        psn: 6,
        reads: 7,
        rnr_retry_count: 7,
    };

    #[test]
    fn messages_survive_their_frames() {
        let ipv6 = FramePath {
            source_ip: Ipv6Addr::LOCALHOST.into(),
            dest_ip: Ipv6Addr::new(0x2001, 0xDB8, 0, 0, 0, 0, 0, 2).into(),
            ..path()
        };
        let ready = CmReadyToUse { transaction: 9, local_comm_id: 8, remote_comm_id: 7 };
        let all =
            [CmMessage::Request(REQUEST), CmMessage::Reply(REPLY), CmMessage::ReadyToUse(ready)];
        for message in all {
            for (path, len) in [(path(), 318), (ipv6, 338)] {
                let frame = message.frame(&path, 5);
                assert_eq!(frame.len(), len);
                assert_eq!(CmMessage::from_frame(&frame), Some(message));
                assert_eq!(CmMessage::from_frame(&frame[..len - 1]), None);
            }
        }
    }

    #[test]
    fn a_datagram_tells_its_sender_and_another_packet_is_none() {
        let mad = [0xA5; MAD_BYTES];
        for vlan_tci in [None, Some(0x6007)] {
            let path = FramePath { vlan_tci, ..path() };
            let frame = datagram(&path, 1, 9, &mad);
            assert_eq!(frame.len(), 318 + vlan_tci.map_or(0, |_| VLAN_BYTES));
            let expected = Datagram { source_ip: path.source_ip, source_qpn: 1, mad: &mad };
            assert_eq!(Datagram::from_frame(&frame), Some(expected));
            // UDP length; opcode, destination queue pair; Q_Key.
            for at in [5, 8, 15, 20] {
                let mut other = frame.clone();
                let udp = other.len() - MAD_BYTES - DETH_BYTES - BTH_BYTES - UDP_BYTES;
                other[udp + at] ^= 1;
                assert_eq!(Datagram::from_frame(&other), None, "byte {at}");
            }
            for len in 0..frame.len() {
                assert_eq!(Datagram::from_frame(&frame[..len]), None);
            }
        }
    }

    #[test]
    fn a_request_has_its_fields_where_the_standard_has_them() {
        let frame = CmMessage::Request(REQUEST).frame(&path(), 0x77);
        // IPv4 total length with the ICRC, and a checksum that sums up to nothing.
        assert_eq!(frame[16..18], [0x01, 0x34]);
        assert_eq!(ipv4_checksum(&frame[14..34]), 0);
        assert_eq!(frame[42..54], [0x64, 0x40, 0xFF, 0xFF, 0, 0, 0, 1, 0, 0, 0, 0x77]);
        assert_eq!(frame[54..62], [0x80, 1, 0, 0, 0, 0, 0, 1]);
        let mad = &frame[62..];
        assert_eq!(mad[..4], [1, 7, 2, 3]);
        assert_eq!(mad[16..18], [0, 0x10]);
        assert_eq!(mad[24 + 32..24 + 36], [0x12, 0x34, 0x56, 16]);
        assert_eq!(mad[24 + 44..24 + 48], [0xAB, 0xCD, 0xEF, 0xA7]);
        assert_eq!(mad[24 + 50], 0x35);
        assert_eq!(mad[24 + 56 + 10..24 + 56 + 16], [0xFF, 0xFF, 192, 0, 2, 1]);
        assert_eq!(mad[24 + 95], 18 << 3);
    }

    #[test]
    fn a_congestion_notification_is_74_bytes_with_becn() {
        let frame = congestion_notification(&path(), 0x00AB_CDEF, 0x1234);
        assert_eq!(frame.len(), 70, "and 4 bytes of ICRC");
        assert_eq!(frame[16..18], [0, 60]);
        assert_eq!(frame[42..54], [0x81, 0, 0x12, 0x34, 0x40, 0xAB, 0xCD, 0xEF, 0, 0, 0, 0]);
        assert!(frame[54..].iter().all(|byte| *byte == 0));
        assert_eq!(CmMessage::from_frame(&frame), None);
    }
}
