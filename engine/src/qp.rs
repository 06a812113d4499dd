//! A queue pair: its InfiniBand attributes (the one truth that every face reads and writes), and the
//! state of its two halves.
//!
//! Knows no bytes but its header template, and no device.

use alloc::boxed::Box;
use core::fmt;
use core::net::IpAddr;

use crate::congestion::{NotificationPoint, ReactionPoint};
use crate::counters::Counters;
use crate::engine::Port;
use crate::numbers::{Nanos, Psn, Qpn, ack_timeout_of};
use crate::packet::{Flow, Template, udp_source_port};
use crate::reason::Reason;
use crate::requester::Requester;
use crate::responder::Responder;
use crate::timer::NOT_QUEUED;

/// Transport service of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Service {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Software builds and reads whole frames (ERNIC QP1).
    RawFrame,
}

/// State of a queue pair (IBTA vol 1, 10.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum State {
    /// Nothing is set.
    #[default]
    Reset,
    /// Receives may be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// Send queue drained: no new work is started.
    Sqd,
    /// Send queue error (unreliable services).
    Sqe,
    /// Everything flushes.
    Error,
}

impl State {
    /// All seven, in the order of `ibv_qp_state`.
    pub const ALL: [Self; 7] =
        [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Error];

    /// Whether requests of the peer are executed (rule V-07).
    #[must_use]
    pub const fn accepts_requests(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }

    /// Whether responses of the peer are taken (rule V-07).
    #[must_use]
    pub const fn accepts_responses(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Error => "ERR",
        })
    }
}

/// Path MTU: bytes of payload in a full packet (rule F-09).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
#[repr(u8)]
pub enum PathMtu {
    /// 256 bytes.
    M256 = 1,
    /// 512 bytes.
    M512 = 2,
    /// 1024 bytes.
    #[default]
    M1024 = 3,
    /// 2048 bytes.
    M2048 = 4,
    /// 4096 bytes.
    M4096 = 5,
}

impl PathMtu {
    /// All five, smallest first.
    pub const ALL: [Self; 5] = [Self::M256, Self::M512, Self::M1024, Self::M2048, Self::M4096];

    /// From the standard's code 1..=5.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::M256),
            2 => Some(Self::M512),
            3 => Some(Self::M1024),
            4 => Some(Self::M2048),
            5 => Some(Self::M4096),
            _ => None,
        }
    }

    /// From a number of bytes.
    #[must_use]
    pub const fn from_bytes(bytes: u32) -> Option<Self> {
        match bytes {
            256 => Some(Self::M256),
            512 => Some(Self::M512),
            1024 => Some(Self::M1024),
            2048 => Some(Self::M2048),
            4096 => Some(Self::M4096),
            _ => None,
        }
    }

    /// Bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        1 << self.log2()
    }

    /// Base-2 logarithm of the bytes.
    #[must_use]
    pub const fn log2(self) -> u8 {
        self as u8 + 7
    }
}

/// Where a queue pair's packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Destination MAC address.
    pub dest_mac: [u8; 6],
    /// Destination IP address; its family chooses the port's address.
    pub dest_ip: IpAddr,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label; also chooses the UDP source port unless it is 0.
    pub flow_label: u32,
    /// UDP source port; `None` follows rule F-05.
    pub source_port: Option<u16>,
    /// 802.1p priority 0..=7: the PCP bits of the port's tag, and what a PFC frame pauses. `None` keeps
    /// the PCP bits of the port's tag; 0 where it has none. Chosen: a datagram queue pair has the
    /// priority of its own path, not of each datagram's, because its send queue stops as a whole.
    pub priority: Option<u8>,
}

impl Default for Path {
    fn default() -> Self {
        Self {
            dest_mac: [0; 6],
            dest_ip: IpAddr::from([0; 4]),
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            source_port: None,
            priority: None,
        }
    }
}

/// What the peer may do, besides SEND.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteAccess {
    /// RDMA READ.
    pub read: bool,
    /// RDMA WRITE.
    pub write: bool,
    /// Atomics.
    pub atomic: bool,
}

/// When positive acknowledgements are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AckMode {
    /// Where the packet asks for it, or `Policy::ack_delay_ns` after one that did not ask.
    OnRequestOrTimeout,
    /// `Policy::ack_delay_ns` after the oldest packet not yet acknowledged.
    OnTimeout,
    /// Only where the packet asks for it.
    #[default]
    OnRequest,
}

/// A device's limits and habits as values. No rule in the engine names a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Unacknowledged request packets at most; a READ request counts as one. At most 2^23.
    pub window_packets: u32,
    /// AckReq on each n-th packet inside a message, and always on the last; 0 means only there.
    pub ack_request_every: u32,
    /// When the responder acknowledges.
    pub ack_mode: AckMode,
    /// Longest time that an acknowledgement may be held back.
    pub ack_delay_ns: u64,
    /// Longest message in bytes, at most 2^31.
    pub max_message_len: u32,
    /// Count receive buffers for the peer, and obey its counts (rules S-17, Q-09). Off, every ACK
    /// carries code 31.
    pub end_to_end_credits: bool,
    /// WRITE WITH IMMEDIATE takes a receive buffer (the standard) or none (ERNIC).
    pub immediate_takes_receive: bool,
    /// Unit of `Attributes::ack_timeout` in nanoseconds: 4096 in the standard.
    pub ack_timeout_unit_ns: u32,
    /// A SEND may have no bytes.
    pub zero_length_send: bool,
    /// Why packets for a disabled queue pair are refused.
    pub disabled: Reason,
    /// Packets must come from the path's address (rule V-06).
    pub check_source: bool,
    /// Partition keys must match (rule V-05).
    pub check_pkey: bool,
    /// PadCnt must be 0 on packets without payload.
    pub strict_pad: bool,
    /// Exhausting the retry counter fails the queue pair; otherwise it goes on trying.
    pub retry_exhaustion_fatal: bool,
    /// Largest path MTU of the port (rule M-02).
    pub max_path_mtu: PathMtu,
    /// Largest depth of READs and atomics, both ways (rule M-02).
    pub max_rd_atomic_depth: u8,
    /// Least time between two CNPs that answer marked packets (rule C-02); 0 for no limit. `None`: the
    /// engine sends none, the face is told of the marks and may.
    pub cnp_interval_ns: Option<u64>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            window_packets: 1024,
            ack_request_every: 64,
            ack_mode: AckMode::OnRequest,
            ack_delay_ns: 4096,
            max_message_len: 1 << 31,
            end_to_end_credits: false,
            immediate_takes_receive: true,
            ack_timeout_unit_ns: 4096,
            zero_length_send: true,
            disabled: Reason::QpNotReady,
            check_source: true,
            check_pkey: true,
            strict_pad: false,
            retry_exhaustion_fatal: true,
            max_path_mtu: PathMtu::M4096,
            max_rd_atomic_depth: 128,
            cnp_interval_ns: None,
        }
    }
}

/// The InfiniBand attributes of a queue pair, as verbs name them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// Transport service.
    pub service: Service,
    /// A disabled queue pair neither receives nor transmits, and keeps its PSNs. Not RESET.
    pub enabled: bool,
    /// Peer's addresses.
    pub path: Path,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// Peer's queue pair.
    pub dest_qpn: Qpn,
    /// Partition key.
    pub pkey: u16,
    /// Queue key (datagrams).
    pub qkey: u32,
    /// What the peer may do.
    pub remote_access: RemoteAccess,
    /// Local ACK timeout code: 4.096 us x 2^code, 0 for none (rule Q-40).
    pub ack_timeout: u8,
    /// Retries by timeout, NAK sequence error or implied NAK, 0..=7 (rule Q-43).
    pub retry_count: u8,
    /// Retries after RNR NAK, 0..=6, 7 for ever (rule Q-45).
    pub rnr_retry: u8,
    /// Timer code of the RNR NAKs that we send (rule S-34).
    pub min_rnr_timer: u8,
    /// READs and atomics that we keep outstanding.
    pub max_rd_atomic: u8,
    /// READs and atomics that the peer may have outstanding; as many are kept for duplicates.
    pub max_dest_rd_atomic: u8,
    /// Work requests in flight at most; the ring for them is allocated when sending is enabled.
    pub max_in_flight: u16,
    /// Announce when everything that was started before SQD has ended.
    pub sqd_async_notify: bool,
    /// The device's limits and habits.
    pub policy: Policy,
}

impl Default for Attributes {
    fn default() -> Self {
        Self {
            service: Service::Rc,
            enabled: true,
            path: Path::default(),
            path_mtu: PathMtu::default(),
            dest_qpn: Qpn::default(),
            pkey: 0xFFFF,
            qkey: 0,
            remote_access: RemoteAccess { read: true, write: true, atomic: true },
            ack_timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            max_in_flight: 128,
            sqd_async_notify: true,
            policy: Policy::default(),
        }
    }
}

impl Attributes {
    /// Time without an answer after which packets are sent again; `None` for ever (rule Q-40).
    #[must_use]
    pub const fn ack_timeout_ns(&self) -> Option<u64> {
        ack_timeout_of(self.policy.ack_timeout_unit_ns as u64, self.ack_timeout)
    }
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    pub(crate) qpn: Qpn,
    /// The slot is taken.
    pub(crate) exists: bool,
    /// On the ready list.
    pub(crate) queued: bool,
    /// `template` fits attributes and port.
    pub(crate) template_valid: bool,
    pub(crate) timer_position: u32,
    /// When the timers will look at it at the latest; `NEVER` where they will not.
    pub(crate) queued_deadline: Nanos,
    pub(crate) state: State,
    pub(crate) attributes: Attributes,
    pub(crate) template: Option<Template>,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    pub(crate) counters: Counters,
    pub(crate) notification: NotificationPoint,
    /// Only where it has congestion control.
    pub(crate) reaction: Option<Box<ReactionPoint>>,
    /// Data waits until then for its rate; [`Nanos::NEVER`]: it does not wait.
    pub(crate) paced_until: Nanos,
}

impl Qp {
    pub(crate) fn vacant() -> Self {
        Self {
            qpn: Qpn::default(),
            exists: false,
            queued: false,
            template_valid: false,
            timer_position: NOT_QUEUED,
            queued_deadline: Nanos::NEVER,
            state: State::Reset,
            attributes: Attributes::default(),
            template: None,
            requester: Requester::default(),
            responder: Responder::default(),
            counters: Counters::default(),
            notification: NotificationPoint::default(),
            reaction: None,
            paced_until: Nanos::NEVER,
        }
    }

    /// Its number.
    #[must_use]
    pub const fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Its state.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Its attributes. Change them with [`crate::Engine::attributes_mut`].
    #[must_use]
    pub const fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// Whether it is in SQD and something that was started has not ended (`sq_draining`).
    #[must_use]
    pub fn send_queue_draining(&self) -> bool {
        self.state == State::Sqd && self.requester.draining()
    }

    /// Its counters.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Its requester: the send side.
    #[must_use]
    pub const fn requester(&self) -> &Requester {
        &self.requester
    }

    /// Its responder: the receive side.
    #[must_use]
    pub const fn responder(&self) -> &Responder {
        &self.responder
    }

    /// Its congestion control. Set it with [`crate::Engine::set_congestion_control`].
    #[must_use]
    pub fn reaction_point(&self) -> Option<&ReactionPoint> {
        self.reaction.as_deref()
    }

    /// The PSN of the next new request packet ("next send PSN"; ERNIC SQPSN).
    #[must_use]
    pub const fn send_psn(&self) -> Psn {
        self.requester.next_psn()
    }

    /// The PSN expected of the next request (ePSN; ERNIC LSTRQREQ + 1).
    #[must_use]
    pub const fn expected_psn(&self) -> Psn {
        self.responder.expected_psn()
    }

    /// The newest PSN that the peer has acknowledged; the one before the first where it has none
    /// (Hermon last_acked_psn).
    #[must_use]
    pub const fn last_acked_psn(&self) -> Psn {
        self.requester.unacknowledged_psn().minus(1)
    }

    /// Retries that are left before the next one without progress fails the queue pair (rule Q-43;
    /// Hermon cur_retry_cnt).
    #[must_use]
    pub const fn retries_left(&self) -> u8 {
        self.attributes.retry_count.saturating_sub(self.requester.retries_used())
    }

    /// RNR retries that are left; 7, which is for ever, stays 7 (rule Q-45; Hermon cur_rnr_retry).
    #[must_use]
    pub const fn rnr_retries_left(&self) -> u8 {
        match self.attributes.rnr_retry {
            7 => 7,
            limit => limit.saturating_sub(self.requester.rnr_retries_used()),
        }
    }

    pub(crate) fn deadline(&self) -> Nanos {
        self.requester.deadline().min(self.responder.deadline()).min(self.paced_until)
    }

    /// Whether [`crate::Engine::poll_transmit`] should look at it.
    pub(crate) fn wants_to_send(&self) -> bool {
        let sends = if self.paced_until == Nanos::NEVER {
            self.responder.pending() || self.requester.active()
        } else {
            // An acknowledgement is no data.
            self.responder.pending() && self.responder.answers_owed() == 0
        };
        self.attributes.enabled && (sends || self.notification.owes())
    }

    /// 802.1p priority of its frames.
    pub(crate) fn priority(&self, port: &Port) -> u8 {
        port.tag(self.attributes.path.priority)
            .map_or_else(|| self.attributes.path.priority.unwrap_or(0) & 7, |tci| (tci >> 13) as u8)
    }

    /// The header template. `None` where the addresses do not fit together.
    pub(crate) fn template(&mut self, port: &Port) -> Option<&Template> {
        self.refresh_template(port);
        self.template.as_ref()
    }

    /// Makes the header template again where attributes or port have changed.
    pub(crate) fn refresh_template(&mut self, port: &Port) {
        if !self.template_valid {
            self.template = Template::new(&self.flow(port));
            self.template_valid = true;
        }
    }

    /// The addresses of its packets.
    pub(crate) fn flow(&self, port: &Port) -> Flow {
        let path = &self.attributes.path;
        Flow {
            source_mac: port.mac,
            dest_mac: path.dest_mac,
            vlan_tci: port.tag(path.priority),
            source_ip: match path.dest_ip {
                IpAddr::V4(_) => port.ipv4.into(),
                IpAddr::V6(_) => port.ipv6.into(),
            },
            dest_ip: path.dest_ip,
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            flow_label: path.flow_label,
            source_port: path.source_port.unwrap_or_else(|| {
                udp_source_port(path.flow_label, self.qpn, self.attributes.dest_qpn)
            }),
            pkey: self.attributes.pkey,
            dest_qpn: self.attributes.dest_qpn,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_pair_without_congestion_control_stays_under_1_kib() {
        assert!(size_of::<Qp>() <= 1024, "{} bytes", size_of::<Qp>());
    }
}
