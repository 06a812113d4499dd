//! Fields of the context and attributes of the engine's queue pair: one read and one write for each that
//! the engine owns.
//!
//! Knows no command and no table of queue pairs.

use core::net::{IpAddr, Ipv6Addr};

use softrnic_engine::{Attributes, PathMtu, Qp, Qpn, Service, State};

use super::codes::{QpState, ServiceType};
use super::context::{At, PathField, ROWS};
use super::field::{Attribute, Live, Owner, Row, Side};

/// Fields of the face that mean something to the engine.
pub(super) const PKEY_INDEX: At = At::Path(Side::Primary, PathField::PkeyIndex);
pub(super) const SCHED_QUEUE: At = At::Path(Side::Primary, PathField::SchedQueue);

/// The context's number of a queue pair's state.
pub(super) fn state(qp: &Qp) -> QpState {
    match qp.state() {
        State::Reset => QpState::Rst,
        State::Init => QpState::Init,
        State::Rtr => QpState::Rtr,
        State::Rts => QpState::Rts,
        State::Sqd if qp.send_queue_draining() => QpState::SqDraining,
        State::Sqd => QpState::Sqd,
        State::Sqe => QpState::Sqer,
        State::Error => QpState::Err,
    }
}

pub(super) fn service_type(qp: &Qp) -> ServiceType {
    match qp.attributes().service {
        Service::Rc => ServiceType::Rc,
        Service::Uc => ServiceType::Uc,
        Service::Ud => ServiceType::Ud,
        Service::RawFrame => ServiceType::Mlx,
    }
}

/// The engine's service for one of the context's; `None` where it cannot be had.
///
/// Chosen: the engine has no XRC. Such a queue pair is a reliable connection that neither receives nor
/// transmits, so that its context lives, but no packet does.
pub(super) const fn service(of: ServiceType) -> Option<Service> {
    match of {
        ServiceType::Rc | ServiceType::Xrc => Some(Service::Rc),
        ServiceType::Uc => Some(Service::Uc),
        ServiceType::Ud => Some(Service::Ud),
        ServiceType::Mlx | ServiceType::RawEth => Some(Service::RawFrame),
        ServiceType::Rd | ServiceType::Fcmnd | ServiceType::Fexch | ServiceType::Unknown(_) => None,
    }
}

pub(super) fn read(attribute: Attribute, qp: &Qp) -> u32 {
    let attributes = qp.attributes();
    let path = &attributes.path;
    let access = attributes.remote_access;
    let [d0, d1, low @ ..] = path.dest_mac;
    match attribute {
        Attribute::State => state(qp).code().into(),
        Attribute::Mtu => attributes.path_mtu as u32,
        Attribute::MsgMax => log2(attributes.policy.max_message_len),
        Attribute::LocalQpn => qp.qpn().get(),
        Attribute::RemoteQpn => attributes.dest_qpn.get(),
        Attribute::AckTimeout => attributes.ack_timeout.into(),
        Attribute::HopLimit => path.hop_limit.into(),
        Attribute::Tclass => path.traffic_class.into(),
        Attribute::FlowLabel => path.flow_label,
        Attribute::Rgid(word) => gid(path.dest_ip)[usize::from(word & 3)],
        Attribute::DmacHigh => u16::from_be_bytes([d0, d1]).into(),
        Attribute::DmacLow => u32::from_be_bytes(low),
        Attribute::AckReqFreq => log2(attributes.policy.ack_request_every),
        Attribute::SraMax => log2(attributes.max_rd_atomic.into()),
        Attribute::RetryCount => attributes.retry_count.into(),
        Attribute::RnrRetry => attributes.rnr_retry.into(),
        Attribute::NextSendPsn => qp.send_psn().get(),
        Attribute::RoceEntropy => path.source_port.unwrap_or(0).into(),
        Attribute::RraMax => log2(attributes.max_dest_rd_atomic.into()),
        Attribute::Rre => access.read.into(),
        Attribute::Rwe => access.write.into(),
        Attribute::Rae => access.atomic.into(),
        Attribute::Ric => (!attributes.policy.end_to_end_credits).into(),
        Attribute::MinRnrNak => attributes.min_rnr_timer.into(),
        Attribute::NextRcvPsn => qp.expected_psn().get(),
        Attribute::QKey => attributes.qkey,
    }
}

pub(super) fn read_live(live: Live, qp: &Qp, posted: Option<(u32, u32)>) -> u32 {
    let (sent, received) = posted.unwrap_or((0, 0));
    match live {
        Live::RnrRetriesLeft => qp.rnr_retries_left().into(),
        Live::RetriesLeft => qp.retries_left().into(),
        Live::LastAckedPsn => qp.last_acked_psn().get(),
        Live::Ssn => qp.requester().ssn(),
        Live::Rmsn => qp.responder().msn(),
        // 16 bits of them, as the field has.
        Live::SqWqeCounter => sent & 0xFFFF,
        Live::RqWqeCounter => received & 0xFFFF,
    }
}

/// Base-2 logarithm, rounded up, of a count that is a power of two here; 0 and 1 are both 0, as in Linux.
const fn log2(count: u32) -> u32 {
    match count {
        0 | 1 => 0,
        n => (n - 1).ilog2() + 1,
    }
}

/// A GID's words, most significant first.
fn gid(ip: IpAddr) -> [u32; 4] {
    let bits = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
    .to_bits();
    [96, 64, 32, 0].map(|shift| (bits >> shift) as u32)
}

fn ip(gid: [u32; 4]) -> IpAddr {
    let bits = gid.iter().fold(0, |bits, &word| bits << 32 | u128::from(word));
    Ipv6Addr::from_bits(bits).to_canonical()
}

/// What a queue pair has before the first command: nothing of what a context says.
pub(super) fn blank(service: ServiceType, created: &Attributes) -> Attributes {
    let mut attributes = *created;
    attributes.enabled = service != ServiceType::Xrc;
    attributes.path.dest_ip = Ipv6Addr::UNSPECIFIED.into();
    for row in ROWS {
        if let Owner::Engine(attribute) = row.owner {
            write(attribute, 0, &mut attributes);
        }
    }
    attributes
}

/// Writes what the engine holds. State, own number and PSNs have other ways.
pub(super) fn write(attribute: Attribute, value: u32, attributes: &mut Attributes) {
    let path = &mut attributes.path;
    let access = &mut attributes.remote_access;
    let is_set = value != 0;
    // Fields are at most as wide as what they are written to: the casts lose nothing.
    let byte = value as u8;
    match attribute {
        Attribute::State | Attribute::LocalQpn | Attribute::NextSendPsn | Attribute::NextRcvPsn => {
        }
        Attribute::Mtu => attributes.path_mtu = PathMtu::from_code(byte).unwrap_or_default(),
        Attribute::MsgMax => attributes.policy.max_message_len = 1 << value.min(31),
        Attribute::RemoteQpn => attributes.dest_qpn = Qpn::new(value),
        Attribute::AckTimeout => attributes.ack_timeout = byte,
        Attribute::HopLimit => path.hop_limit = byte,
        Attribute::Tclass => path.traffic_class = byte,
        Attribute::FlowLabel => path.flow_label = value,
        Attribute::Rgid(word) => {
            let mut words = gid(path.dest_ip);
            words[usize::from(word & 3)] = value;
            path.dest_ip = ip(words);
        }
        Attribute::DmacHigh => path.dest_mac[..2].copy_from_slice(&(value as u16).to_be_bytes()),
        Attribute::DmacLow => path.dest_mac[2..].copy_from_slice(&value.to_be_bytes()),
        Attribute::AckReqFreq => attributes.policy.ack_request_every = 1 << value.min(31),
        Attribute::SraMax => attributes.max_rd_atomic = 1 << value.min(7),
        Attribute::RetryCount => attributes.retry_count = byte,
        Attribute::RnrRetry => attributes.rnr_retry = byte,
        Attribute::RoceEntropy => path.source_port = is_set.then_some(value as u16),
        Attribute::RraMax => attributes.max_dest_rd_atomic = 1 << value.min(7),
        Attribute::Rre => access.read = is_set,
        Attribute::Rwe => access.write = is_set,
        Attribute::Rae => access.atomic = is_set,
        Attribute::Ric => attributes.policy.end_to_end_credits = !is_set,
        Attribute::MinRnrNak => attributes.min_rnr_timer = byte,
        Attribute::QKey => attributes.qkey = value,
    }
}

/// What a field that the face keeps means to the engine.
pub(super) fn effect(pkeys: &[u16], row: &Row, value: u32, attributes: &mut Attributes) {
    if *row == *PKEY_INDEX.row()
        && let Some(&pkey) = pkeys.get(value as usize)
    {
        attributes.pkey = pkey;
    }
    if *row == *SCHED_QUEUE.row() {
        attributes.path.priority = Some((value >> 3 & 7) as u8);
    }
}
