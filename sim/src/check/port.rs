//! Watches a node's port: hands each frame to the checkers of its queue pair, and checks what concerns
//! the port itself: who may be heard (V-01 to V-08, P-11), datagrams' headers, CNPs and DCQCN's
//! borders (P-25), and that counters equal what the link saw.
//!
//! Knows frames, verdicts and an engine's getters.

use std::net::IpAddr;

use softrnic_engine::congestion::ALPHA_ONE;
use softrnic_engine::packet::opcode::Transport;
use softrnic_engine::packet::{Network, Operation, Packet, parse};
use softrnic_engine::{
    Counter, Engine, Nanos, Qp, Qpn, REASON_ROWS, Reason, Service, Train, Verdict, multicast_mac,
};

use super::requester::RequesterCheck;
use super::responder::ResponderCheck;
use super::{Findings, Posted};
use crate::payload::fill_pattern_from;
use crate::random::mix;

/// One queue pair under watch.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) qpn: Qpn,
    pub(crate) service: Service,
    pub(crate) peer_ip: IpAddr,
    pub(crate) pkey: u16,
    pub(crate) qkey: u32,
    pub(crate) requester: RequesterCheck,
    pub(crate) responder: ResponderCheck,
    /// Datagrams sent.
    datagrams: u32,
    cnps: u64,
    first_at: Nanos,
    /// What left, for comparing with another run: time and bytes, and bytes alone.
    pub(crate) trace: u64,
    pub(crate) timeless_trace: u64,
    sent: u32,
    /// Packets that it took.
    pub(crate) received: u32,
}

impl End {
    pub(crate) fn new(
        qp: &Qp,
        peer_ip: IpAddr,
        patience_ns: Option<u64>,
        answer_within_ns: u64,
        memory_fails: bool,
    ) -> Self {
        let attributes = qp.attributes();
        let mtu = attributes.path_mtu.bytes();
        let first_psn = qp.send_psn().get();
        Self {
            qpn: qp.qpn(),
            service: attributes.service,
            peer_ip,
            pkey: attributes.pkey,
            qkey: attributes.qkey,
            requester: RequesterCheck::new(
                attributes.service,
                mtu,
                first_psn,
                patience_ns,
                answer_within_ns,
            ),
            responder: ResponderCheck::new(
                mtu,
                attributes.max_dest_rd_atomic,
                answer_within_ns,
                memory_fails,
            ),
            datagrams: 0,
            cnps: 0,
            first_at: Nanos(0),
            trace: 0,
            timeless_trace: 0,
            sent: 0,
            received: 0,
        }
    }
}

/// One node under watch.
#[derive(Debug, Default)]
pub(crate) struct NodeCheck {
    pub(crate) ends: Vec<End>,
    pub(crate) findings: Findings,
    refused: Vec<u64>,
    icrc_errors: u64,
}

impl NodeCheck {
    pub(crate) fn new() -> Self {
        Self { refused: vec![0; Reason::COUNT], ..Self::default() }
    }

    pub(crate) fn end(&mut self, qpn: Qpn) -> Option<&mut End> {
        self.ends.iter_mut().find(|end| end.qpn == qpn)
    }

    /// A frame is about to be handed to the engine, or time to pass.
    pub(crate) fn look(&mut self, engine: &Engine) {
        for end in &mut self.ends {
            if let Some(qp) = engine.qp(end.qpn) {
                end.requester.look(qp);
                end.responder.look(qp);
            }
        }
    }

    /// The frame was judged.
    pub(crate) fn received(
        &mut self,
        now: Nanos,
        engine: &Engine,
        frame: &[u8],
        verdict: &Verdict,
    ) {
        let packet = parse(frame).ok();
        if let Some(reason) = verdict.refused {
            self.refused[reason as usize] += 1;
            self.icrc_errors += u64::from(reason == Reason::Icrc);
        } else if !verdict.flow_control {
            self.check_heard(now, engine, packet.as_ref());
        }
        // Of a frame that nobody may hear, no queue pair is the one.
        let unheard = verdict.refused.is_some_and(is_validation);
        let packet = packet.filter(|_| !unheard);
        let Self { ends, findings, .. } = self;
        for end in ends {
            let Some(qp) = engine.qp(end.qpn) else { continue };
            let own = packet
                .as_ref()
                .filter(|p| p.bth.dest_qpn() == end.qpn && p.row.operation != Operation::Cnp);
            if own.is_some() && verdict.refused.is_none() {
                end.received += 1;
            }
            if end.service != Service::Rc {
                continue;
            }
            // P-11: one frame moves one queue pair at most.
            end.requester.received(now, qp, own, verdict, findings);
            end.responder.received(now, qp, own, verdict, findings);
        }
    }

    /// Rules V-01 to V-08, worked out anew: what was taken is whole, and for whom it was taken.
    fn check_heard(&mut self, now: Nanos, engine: &Engine, packet: Option<&Packet<'_>>) {
        let Self { ends, findings, .. } = self;
        let Some(packet) = packet else {
            findings.add("V-01", now, || "a frame that is no RoCE packet is taken".to_owned());
            return;
        };
        let port = engine.port();
        let multicast = multicast_mac(packet.dest_ip());
        let addressed = match packet.network {
            Network::Ipv4 => packet.dest_ip() == IpAddr::from(port.ipv4),
            Network::Ipv6 => packet.dest_ip() == IpAddr::from(port.ipv6),
            Network::Grh => false,
        };
        let mac = packet.dest_mac();
        let ours = (addressed && mac == port.mac) || multicast == Some(mac);
        findings.require(ours, "V-01", now, || "a frame to another port is taken".to_owned());
        findings.require(packet.icrc_valid(), "V-01", now, || {
            "a frame with a wrong ICRC is taken".to_owned()
        });
        if multicast == Some(mac) {
            return;
        }
        let qpn = packet.bth.dest_qpn();
        let Some(end) = ends.iter().find(|end| end.qpn == qpn) else {
            findings.add("V-02", now, || format!("a packet for QP {} is taken", qpn.get()));
            return;
        };
        let transport = match end.service {
            Service::Rc => Transport::Rc,
            Service::Uc => Transport::Uc,
            _ => Transport::Ud,
        };
        findings.require(packet.row.transport == transport, "V-04", now, || {
            format!("QP {} takes {} of another service", qpn.get(), packet.row.name)
        });
        let known = end.service == Service::Ud || packet.source_ip() == end.peer_ip;
        findings.require(known, "V-06", now, || {
            format!("QP {} takes a packet of {}", qpn.get(), packet.source_ip())
        });
        let (mine, theirs) = (end.pkey, packet.bth.pkey.get());
        let partition = mine << 1 == theirs << 1 && mine << 1 != 0 && (mine | theirs) >> 15 == 1;
        let checked = engine.qp(qpn).is_some_and(|qp| qp.attributes().policy.check_pkey);
        findings.require(partition || !checked, "V-05", now, || {
            format!("QP {} with P_Key {mine:#06x} takes one of {theirs:#06x}", qpn.get())
        });
        if let Some(deth) = packet.deth() {
            findings.require(deth.qkey.get() == end.qkey, "V-08", now, || {
                format!("QP {} takes a datagram with another Q_Key", qpn.get())
            });
        }
    }

    /// A frame left. `memory` gives the bytes at an address as they are now.
    pub(crate) fn transmitted<'m>(
        &mut self,
        now: Nanos,
        engine: &Engine,
        frame: &[u8],
        train: &Train,
        memory: impl Fn(u64, usize) -> Option<&'m [u8]>,
    ) {
        let Self { ends, findings, .. } = self;
        let (Ok(packet), Some(end)) = (parse(frame), ends.iter_mut().find(|e| e.qpn == train.qpn))
        else {
            findings.add("F-01", now, || "a frame leaves that is no packet of ours".to_owned());
            return;
        };
        if end.sent == 0 {
            end.first_at = now;
        }
        end.sent += 1;
        let hash = hash_of(&packet);
        end.timeless_trace = mix(end.timeless_trace ^ hash);
        end.trace = mix(end.trace ^ hash ^ mix(now.0));
        findings.require(packet.icrc_valid(), "F-40", now, || {
            format!("QP {}: a frame leaves with a wrong ICRC", train.qpn.get())
        });
        let Some(qp) = engine.qp(train.qpn) else { return };
        check_congestion(now, end, qp, &packet, findings);
        let operation = packet.row.operation;
        if operation == Operation::Cnp {
            return;
        }
        match end.service {
            Service::Ud => check_datagram(now, end, &packet, findings),
            _ if operation.is_response() => {
                end.responder.transmitted(now, qp, &packet, memory, findings);
            }
            _ => end.requester.transmitted(now, qp, &packet, train.retransmission, findings),
        }
    }

    /// Time has passed.
    pub(crate) fn timed_out(&mut self, now: Nanos, engine: &Engine) {
        let Self { ends, findings, .. } = self;
        for end in ends.iter_mut().filter(|end| end.service == Service::Rc) {
            if let Some(qp) = engine.qp(end.qpn) {
                end.requester.timed_out(now, qp, findings);
            }
        }
    }

    /// At the end: counters equal what the link saw.
    pub(crate) fn finish(&mut self, now: Nanos, engine: &Engine) {
        let Self { ends, findings, refused, icrc_errors } = self;
        let mut require = |name: &str, qpn: u32, counted: u64, seen: u64| {
            findings.require(counted == seen, "counters", now, || {
                format!("QP {qpn}: {name} says {counted}, the link saw {seen}")
            });
        };
        for end in ends {
            let Some(qp) = engine.qp(end.qpn) else { continue };
            let qpn = end.qpn.get();
            let mut counter = |counter: Counter, seen: u32| {
                let name = softrnic_engine::COUNTER_ROWS[counter as usize].name;
                require(name, qpn, qp.counters()[counter].into(), seen.into());
            };
            counter(Counter::SentPackets, end.sent);
            counter(Counter::CnpSent, end.cnps as u32);
            if end.service == Service::Rc {
                counter(Counter::ReceivedPackets, end.received);
                counter(Counter::RnrNakSent, end.responder.rnr_sent);
                counter(Counter::OutOfSequence, end.responder.out_of_sequence);
                counter(Counter::PacketSeqErr, end.requester.sequence_naks);
                counter(Counter::RnrNakReceived, end.requester.rnr_naks);
            }
        }
        let counters = engine.counters();
        require("rx_icrc_encapsulated", 0, counters[Counter::IcrcErrors].into(), *icrc_errors);
        for (row, (&counted, &seen)) in
            REASON_ROWS.iter().zip(engine.refused().iter().zip(refused.iter()))
        {
            // Those that frames are not refused for are counted by software's calls.
            if seen > 0 || is_validation(row.reason) {
                require(row.name, 0, counted, seen);
            }
        }
    }
}

/// Reasons of rules V-01 to V-08: no queue pair has heard the packet.
fn is_validation(reason: Reason) -> bool {
    use Reason as R;
    matches!(
        reason,
        R::FrameTooShort
            | R::NotRoce
            | R::DestinationMac
            | R::IpVersion
            | R::Ipv4HeaderLength
            | R::Ipv4HeaderChecksum
            | R::Ipv4Fragment
            | R::Ipv6ExtensionHeader
            | R::IpLength
            | R::UdpLength
            | R::Icrc
            | R::TransportVersion
            | R::DestinationIp
            | R::RoceV1
            | R::QpUnknown
            | R::ServiceMismatch
            | R::SourceAddress
            | R::PKey
            | R::QKey
    )
}

/// P-25 and rule C-02.
fn check_congestion(
    now: Nanos,
    end: &mut End,
    qp: &Qp,
    packet: &Packet<'_>,
    findings: &mut Findings,
) {
    let qpn = end.qpn.get();
    if packet.row.operation == Operation::Cnp {
        end.cnps += 1;
        let interval_ns = qp.attributes().policy.cnp_interval_ns.unwrap_or(0);
        let most = now.0.checked_div(interval_ns).map_or(u64::MAX, |n| n + 1);
        findings.require(end.cnps <= most, "P-25", now, || {
            format!("QP {qpn}: {} CNPs in {} ns", end.cnps, now.0)
        });
    }
    let Some(flow) = qp.reaction_point() else { return };
    let parameters = flow.parameters();
    let (rate, target) = (flow.rate_bits_per_s(), flow.target_bits_per_s());
    let inside = parameters.min_rate_bits_per_s <= rate
        && rate <= target.max(parameters.min_rate_bits_per_s)
        && target <= parameters.line_rate_bits_per_s
        && flow.alpha(now) <= ALPHA_ONE;
    findings.require(inside, "P-25", now, || {
        format!("QP {qpn}: rate {rate}, target {target}, alpha {}", flow.alpha(now))
    });
}

/// Rule U-11: a datagram's headers and bytes are those of the posted work.
fn check_datagram(now: Nanos, end: &mut End, packet: &Packet<'_>, findings: &mut Findings) {
    let qpn = end.qpn.get();
    let posted: Option<Posted> =
        end.requester.posted.iter().filter(|p| !p.unsendable).nth(end.datagrams as usize).copied();
    end.datagrams += 1;
    let Some(posted) = posted else {
        findings.add("P-22", now, || format!("QP {qpn}: a datagram without work"));
        return;
    };
    let mut expected = vec![0; posted.len as usize];
    fill_pattern_from(posted.pattern, 0, &mut expected);
    let imm = posted.kind.has_immediate().then_some(posted.immediate);
    let right = packet.payload() == expected
        && packet.immdt().map(|i| i.immediate.get()) == imm
        && packet.deth().is_some_and(|deth| deth.source_qpn() == end.qpn);
    findings.require(right, "P-22", now, || {
        format!("QP {qpn}: datagram {} is not the posted work's", end.datagrams - 1)
    });
}

/// The bytes that the ICRC covers, and the ICRC.
fn hash_of(packet: &Packet<'_>) -> u64 {
    let covered = &packet.frame[packet.bth_offset()..packet.icrc_offset() + 4];
    let (words, rest) = covered.as_chunks::<8>();
    let hash = words.iter().fold(0, |hash, word| mix(hash ^ u64::from_le_bytes(*word)));
    rest.iter().fold(hash, |hash, &byte| mix(hash ^ u64::from(byte)))
}
