//! Unreliable datagrams, both ways (IBTA vol 1, 9.8.3; rules U-10 to U-17).
//!
//! One packet is one message, nothing is answered and nothing is sent again. It must not know
//! multicast tables (the engine's) nor address handles (the face's).

use core::net::IpAddr;

use crate::counters::Counter;
use crate::engine::{Port, Room, Train};
use crate::face::{Completion, CompletionKind, Datagram, Face, Hold, Status, Work, WorkOpcode};
use crate::numbers::{Psn, Qpn};
use crate::packet::{
    BthFields, Deth, Ext, Flow, Network, Packet, Template, opcode, udp_source_port,
};
use crate::qp::Qp;
use crate::reason::Reason;
use crate::requester::{self, Unsent};
use crate::responder;

/// Bytes before the payload in a datagram's receive buffer (rule U-12).
const GRH_AREA: usize = 40;

/// Takes a datagram.
///
/// # Errors
/// Why it was dropped. A receive buffer that it did not fit is used for the next one; one that is
/// broken fails, and the queue pair with it.
pub(crate) fn handle(qp: &mut Qp, packet: &Packet<'_>, face: &mut impl Face) -> Result<(), Reason> {
    let Some(deth) = packet.deth() else { return Err(Reason::OpcodeUnknown) };
    if deth.qkey.get() != qp.attributes.qkey {
        return Err(Reason::QKey);
    }
    let place = match qp.responder.take_receive(qp.qpn, face) {
        Ok(place) => place,
        Err(Hold::Stall) => {
            qp.counters.count(Counter::OutOfBuffer);
            return Err(Reason::ReceiverNotReady);
        }
        Err(Hold::Fault(reason)) => {
            requester::enter_error(qp, reason, false, face);
            return Err(reason);
        }
    };
    let payload = packet.payload();
    let length = GRH_AREA + payload.len();
    // Chosen for rule U-14: dropped, and the buffer waits for a datagram that fits.
    if length > place.length as usize {
        qp.responder.return_receive(place);
        return Err(Reason::ReceiveTooSmall);
    }
    let written = face
        .scatter(qp.qpn, place, 0, &grh_area(packet))
        .and_then(|()| face.scatter(qp.qpn, place, GRH_AREA as u32, payload));
    if let Err(hold) = written {
        qp.responder.return_receive(place);
        let Hold::Fault(reason) = hold else { return Err(Reason::QpNotReady) };
        // No later datagram would fare better with this buffer.
        responder::fail_receive(qp, Status::LocalProtection, reason, face);
        requester::enter_error(qp, reason, false, face);
        return Err(reason);
    }
    qp.counters.count(Counter::SendMessages);
    let kind = CompletionKind::Receive {
        place: Some(place),
        length: length as u32,
        by_write: false,
        immediate: packet.immdt().map(|immdt| immdt.immediate.get()),
        invalidated: None,
        solicited: packet.bth.solicited(),
        source_qpn: Some(deth.source_qpn()),
    };
    let completed =
        face.complete(qp.qpn, Completion { kind, status: Status::Success, reason: None });
    if let Err(reason) = completed {
        // Rule S-55: nothing is lost in silence.
        requester::enter_error(qp, reason, false, face);
    }
    completed
}

/// The 40 bytes before the payload: an IPv6 header, or an IPv4 header in the last 20.
fn grh_area(packet: &Packet<'_>) -> [u8; GRH_AREA] {
    let mut area = [0; GRH_AREA];
    let l3 = &packet.frame[packet.l3_offset()..];
    match packet.network {
        Network::Ipv4 => area[20..].copy_from_slice(&l3[..20]),
        Network::Ipv6 | Network::Grh => area.copy_from_slice(&l3[..GRH_AREA]),
    }
    area
}

/// A datagram that is to be sent.
pub(crate) struct Outgoing {
    pub(crate) work: Work,
    pub(crate) psn: Psn,
    pub(crate) to: Datagram,
}

/// Writes a datagram into the room.
///
/// # Errors
/// Why it could not be written.
pub(crate) fn write(
    qp: &Qp,
    outgoing: &Outgoing,
    port: &Port,
    room: &mut Room<'_>,
    face: &mut impl Face,
) -> Result<Train, Unsent> {
    let Outgoing { work, psn, to } = outgoing;
    let (opcode, imm) = match work.opcode {
        WorkOpcode::Send => (opcode::UD_SEND_ONLY, None),
        WorkOpcode::SendImm => (opcode::UD_SEND_ONLY_IMM, Some(work.immediate)),
        _ => return Err(Unsent::Never(Status::LocalQpOperation, Reason::WorkOpcodeIllegal)),
    };
    let row = opcode::row(opcode);
    // Chosen for rule U-13: an error here, as hardware does, rather than silence.
    if work.length > qp.attributes.path_mtu.bytes() {
        return Err(Unsent::Never(Status::LocalLength, Reason::MessageTooLong));
    }
    let broken = |reason| Unsent::Never(Status::LocalQpOperation, reason);
    let template = Template::new(&flow(qp, port, to)).ok_or(broken(Reason::PathIncomplete))?;
    let payload_len = work.length as usize;
    let payload_at = template.len() - 12 + usize::from(row.header_len);
    let len = template.frame_len(row, payload_len);
    let frame = room.bytes.get_mut(..len).ok_or(broken(Reason::FrameTooLong))?;
    let out = &mut frame[payload_at..payload_at + payload_len];
    face.gather(qp.qpn, work.local, 0, out).map_err(Unsent::of_own_bytes)?;
    let qkey = if to.qkey & 1 << 31 != 0 { qp.attributes.qkey } else { to.qkey };
    let [_, a, b, c] = qp.qpn.get().to_be_bytes();
    let deth = Deth { qkey: qkey.into(), reserved: 0, source_qp: [a, b, c] };
    let at = template.len();
    frame[at..at + 8].copy_from_slice(zerocopy::IntoBytes::as_bytes(&deth));
    if let (Some(imm), Some(at_imm)) = (imm, row.offset_of(Ext::IMMDT)) {
        frame[at + at_imm - 12..at + at_imm - 8].copy_from_slice(&imm.to_be_bytes());
    }
    let bth =
        BthFields { psn: *psn, solicited: work.solicited, migrated: true, ..BthFields::default() };
    template.finish(frame, row, payload_len, bth);
    Ok(Train {
        len,
        header: payload_at as u16,
        segment: (len - payload_at) as u16,
        segments: 1,
        qpn: qp.qpn,
        opcode,
        psn: *psn,
        syndrome: None,
        retransmission: false,
        flow_control: false,
    })
}

fn flow(qp: &Qp, port: &Port, to: &Datagram) -> Flow {
    let path = &to.path;
    Flow {
        source_mac: port.mac,
        dest_mac: path.dest_mac,
        vlan_tci: port.tag(qp.attributes.path.priority),
        source_ip: match path.dest_ip {
            IpAddr::V4(_) => port.ipv4.into(),
            IpAddr::V6(_) => port.ipv6.into(),
        },
        dest_ip: path.dest_ip,
        traffic_class: path.traffic_class,
        hop_limit: path.hop_limit,
        flow_label: path.flow_label,
        source_port: path
            .source_port
            .unwrap_or_else(|| udp_source_port(path.flow_label, qp.qpn, to.dest_qpn)),
        pkey: qp.attributes.pkey,
        dest_qpn: to.dest_qpn,
    }
}

/// The queue pairs attached to multicast groups, in order (rule U-16).
#[derive(Debug, Default)]
pub(crate) struct Groups(alloc::collections::BTreeSet<(IpAddr, Qpn)>);

impl Groups {
    /// `true` where the group is new.
    pub(crate) fn attach(&mut self, group: IpAddr, qpn: Qpn) -> bool {
        let first = self.members(group).next().is_none();
        self.0.insert((group, qpn));
        first
    }

    /// `true` where the group is now empty.
    pub(crate) fn detach(&mut self, group: IpAddr, qpn: Qpn) -> bool {
        self.0.remove(&(group, qpn)) && self.members(group).next().is_none()
    }

    /// Whether the queue pair is attached.
    pub(crate) fn holds(&self, group: IpAddr, qpn: Qpn) -> bool {
        self.0.contains(&(group, qpn))
    }

    /// Removes a queue pair from all groups; returns the groups that are now empty.
    pub(crate) fn forget(&mut self, qpn: Qpn) -> alloc::vec::Vec<IpAddr> {
        let of_qp: alloc::vec::Vec<IpAddr> =
            self.0.iter().filter(|(_, q)| *q == qpn).map(|(group, _)| *group).collect();
        of_qp.into_iter().filter(|&group| self.detach(group, qpn)).collect()
    }

    /// The first member from `from` on.
    pub(crate) fn next_member(&self, group: IpAddr, from: Qpn) -> Option<Qpn> {
        let mut rest = self.0.range((group, from)..=(group, Qpn::new(0x00FF_FFFF)));
        rest.next().map(|(_, qpn)| *qpn)
    }

    fn members(&self, group: IpAddr) -> impl Iterator<Item = Qpn> + '_ {
        self.0.range((group, Qpn::new(0))..=(group, Qpn::new(0x00FF_FFFF))).map(|(_, qpn)| *qpn)
    }
}
