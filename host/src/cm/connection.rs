//! One connection's state, and the shapes of what goes in and comes out. No behaviour but arithmetic.

use std::net::{IpAddr, Ipv6Addr};

use softrnic_engine::{Nanos, PathMtu, Psn, Qpn};
use thiserror::Error as ThisError;

use super::message::{self, IpCm, Kind, Mad, Rej, Rep, Req};
use super::refusal::Reject;

/// A node's habits.
#[derive(Clone, Debug)]
pub struct CmConfig {
    /// Who this node is. It should differ from one start of a node to the next: a peer that still
    /// remembers a queue pair of the same number and GUID refuses a new one as stale.
    pub ca_guid: u64,
    /// Addresses where connections may end. Empty: any.
    pub addresses: Vec<IpAddr>,
    /// First number for connections; random, so that an old message finds no new connection.
    pub first_comm_id: u32,
    /// First transaction.
    pub first_transaction: u64,
    /// How long an answer may take, besides the path: 4.096 us x 2^value (Linux: 20, 4.3 s).
    pub response_timeout: u8,
    /// How often a message is sent again, 0 to 15 (Linux: 15).
    pub max_retries: u8,
    /// What an MRA asks for: 4.096 us x 2^value (Linux: 24, 69 s).
    pub service_timeout: u8,
    /// Target ACK delay in a REP: 4.096 us x 2^value.
    pub ack_delay: u8,
    /// Largest path MTU of the port.
    pub path_mtu: PathMtu,
    /// Connections at a time.
    pub max_connections: usize,
    /// Datagrams that wait to be sent.
    pub max_transmit: usize,
}

impl Default for CmConfig {
    fn default() -> Self {
        Self {
            ca_guid: 0x0200_00FF_FE00_0001,
            addresses: Vec::new(),
            first_comm_id: 1,
            first_transaction: 1,
            response_timeout: 20,
            max_retries: 15,
            service_timeout: 24,
            ack_delay: 0,
            path_mtu: PathMtu::M4096,
            max_connections: 1 << 16,
            max_transmit: 1 << 10,
        }
    }
}

/// The number of a connection on this node (Local Communication ID).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CommId(pub u32);

/// Where a datagram comes from or goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// IP address.
    pub ip: IpAddr,
    /// The queue pair that speaks there; 1.
    pub qpn: Qpn,
}

/// Our end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalQp {
    /// Queue pair.
    pub qpn: Qpn,
    /// PSN of the first packet that it expects: the peer begins with it.
    pub psn: Psn,
    /// READs and atomics that it serves at a time.
    pub responder_resources: u8,
    /// READs and atomics that it would keep outstanding.
    pub initiator_depth: u8,
    /// RNR retries that the peer's queue pair shall make, 0 to 7.
    pub rnr_retry_count: u8,
    /// It receives from a shared queue.
    pub srq: bool,
    /// It counts receives (AETH credits).
    pub flow_control: bool,
}

impl Default for LocalQp {
    fn default() -> Self {
        Self {
            qpn: Qpn::new(0),
            psn: Psn::new(0),
            responder_resources: 16,
            initiator_depth: 16,
            rnr_retry_count: 7,
            srq: false,
            flow_control: true,
        }
    }
}

/// What the active side asks for.
#[derive(Clone, Debug)]
pub struct Connect {
    /// Our address.
    pub local: IpAddr,
    /// The peer's.
    pub remote: IpAddr,
    /// Whom to talk to there.
    pub service_id: u64,
    /// Our queue pair.
    pub qp: LocalQp,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// Transport retries of both queue pairs, 0 to 7.
    pub retry_count: u8,
    /// Local ACK timeout of both queue pairs: 4.096 us x 2^value (Linux asks for 17, 537 ms).
    pub ack_timeout: u8,
    /// Hop limit of the path.
    pub hop_limit: u8,
    /// Traffic class of the path.
    pub traffic_class: u8,
    /// Flow label of the path.
    pub flow_label: u32,
    /// Private data, RDMA CM's header included.
    pub private_data: [u8; 92],
}

impl Connect {
    /// As `rdma_connect` to a port of RDMA CM's TCP space; fill in the queue pair.
    ///
    /// # Errors
    /// More than 56 bytes of private data.
    pub fn tcp(
        local: IpAddr,
        local_port: u16,
        remote: IpAddr,
        port: u16,
        private_data: &[u8],
    ) -> Result<Self, Error> {
        let header = IpCm::new(local, local_port, remote);
        let private_data = header
            .with(private_data)
            .map_err(|max| Error::PrivateData { given: private_data.len(), max })?;
        Ok(Self {
            local,
            remote,
            service_id: message::tcp_service(port),
            qp: LocalQp::default(),
            path_mtu: PathMtu::M1024,
            retry_count: 7,
            ack_timeout: 17,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
            private_data,
        })
    }
}

/// What the passive side answers.
#[derive(Clone, Debug, Default)]
pub struct Accept {
    /// Our queue pair. Its depths are cut to what the active side offers.
    pub qp: LocalQp,
    /// Private data.
    pub private_data: Vec<u8>,
}

/// What a queue pair needs to know of its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameters {
    /// Our address.
    pub local: IpAddr,
    /// The peer's address.
    pub remote: IpAddr,
    /// Our queue pair.
    pub qpn: Qpn,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// PSN of our first packet.
    pub send_psn: Psn,
    /// PSN of the peer's first packet.
    pub expected_psn: Psn,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// Partition key.
    pub pkey: u16,
    /// Local ACK timeout: 4.096 us x 2^value.
    pub ack_timeout: u8,
    /// Retries, 0 to 7.
    pub retry_count: u8,
    /// RNR retries, 0 to 7.
    pub rnr_retry: u8,
    /// READs and atomics that we keep outstanding.
    pub max_rd_atomic: u8,
    /// READs and atomics that the peer may have outstanding.
    pub max_dest_rd_atomic: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label.
    pub flow_label: u32,
}

/// Where a connection stands (IBTA vol 1, 12.9.5 and 12.9.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Active: a REQ is out.
    ReqSent,
    /// Passive: a REQ has come, and the program decides.
    ReqReceived,
    /// Passive: a REP is out.
    RepSent,
    /// Active: a REP has come, and the program makes its queue pair ready.
    RepReceived,
    /// Both queue pairs are ready.
    Established,
    /// A DREQ is out.
    DreqSent,
    /// It is over, but late packets and messages may still come.
    TimeWait,
}

/// Who ended a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// We did, and the peer has confirmed.
    Us,
    /// The peer did.
    Peer,
    /// We did, and the peer has not answered.
    Silence,
    /// The peer says that it knows no such connection, or gave up on it.
    Rejected(Reject),
    /// The peer has started again: its queue pair asks for a new connection.
    Restarted,
}

/// What a program must know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Somebody asks for a connection to a service that we listen to. Answer with `accept` or
    /// `reject`.
    Requested {
        /// The new connection.
        id: CommId,
        /// Who asks.
        peer: Peer,
        /// What for.
        req: Box<Req>,
    },
    /// The peer accepts. Make the queue pair ready, then say so with `ready`.
    Replied {
        /// Which connection.
        id: CommId,
        /// How.
        rep: Box<Rep>,
    },
    /// Passive: the active side is ready.
    Established {
        /// Which connection.
        id: CommId,
    },
    /// The peer does not want to. The number is forgotten.
    Rejected {
        /// Which connection.
        id: CommId,
        /// Why.
        reason: Reject,
        /// The whole message.
        rej: Box<Rej>,
    },
    /// Nobody answered. The number is forgotten.
    Unreachable {
        /// Which connection.
        id: CommId,
        /// The message that stayed without an answer.
        unanswered: Kind,
        /// How often it was sent.
        sent: u32,
    },
    /// The connection has ended: no more packets should leave. Late ones may come until `Closed`.
    Disconnected {
        /// Which connection.
        id: CommId,
        /// Who ended it.
        by: End,
    },
    /// The connection's number is forgotten, and its queue pair may be used again.
    Closed {
        /// Which connection.
        id: CommId,
    },
}

impl Event {
    /// Which connection it concerns.
    #[must_use]
    pub const fn id(&self) -> CommId {
        match *self {
            Self::Requested { id, .. }
            | Self::Replied { id, .. }
            | Self::Established { id }
            | Self::Rejected { id, .. }
            | Self::Unreachable { id, .. }
            | Self::Disconnected { id, .. }
            | Self::Closed { id } => id,
        }
    }
}

/// Why a command was refused. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Error {
    #[error("no connection has number {:#x}", .0.0)]
    UnknownConnection(CommId),
    #[error("connection {:#x} is in state {state:?}, which does not allow that", .id.0)]
    WrongState { id: CommId, state: State },
    #[error("{given} bytes of private data do not fit, {max} do")]
    PrivateData { given: usize, max: usize },
    #[error("service {0:#018x} is listened to already")]
    ServiceTaken(u64),
    #[error("there are {0} connections, as many as may be")]
    TooManyConnections(usize),
    #[error("{what} is {given}, and may be {max} at most")]
    OutOfRange { what: &'static str, given: u32, max: u32 },
    #[error("{local} and {remote} are not of one family")]
    Families { local: IpAddr, remote: IpAddr },
    #[error("this port has no address of the family of {remote}; give it one")]
    NoAddress { remote: IpAddr },
}

/// A message that waits for its answer.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) kind: Kind,
    pub(super) mad: Box<Mad>,
    pub(super) timeout_ns: u64,
    pub(super) retries_left: u8,
    pub(super) sent: u32,
}

/// A connection.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) id: CommId,
    pub(super) active: bool,
    pub(super) state: State,
    pub(super) peer: Peer,
    pub(super) transaction: u64,
    /// The peer's number; 0 until it is known.
    pub(super) remote_comm_id: u32,
    /// The peer's node and queue pair; `None` until they are known.
    pub(super) remote_qp: Option<(u64, u32)>,
    /// The REQ that was sent or received.
    pub(super) req: Box<Req>,
    /// The REP that was sent or received.
    pub(super) rep: Option<Box<Rep>>,
    pub(super) waiting: Option<Waiting>,
    /// Our last answer, for a peer that repeats its message.
    pub(super) answer: Option<(Kind, Box<Mad>)>,
    pub(super) deadline: Option<Nanos>,
    /// The program knows that it has ended.
    pub(super) told: bool,
}

impl Connection {
    /// The messages a peer may send take so long besides their answers: there and back.
    pub(super) fn path_ns(&self) -> u64 {
        // The ACK timeout is twice the packet's life time (12.7.34).
        bounded_timeout_ns(self.req.primary_ack_timeout)
    }

    pub(super) fn parameters(&self) -> Option<Parameters> {
        let (req, rep) = (&self.req, self.rep.as_ref()?);
        let path_mtu = PathMtu::from_code(req.path_mtu)?;
        let local_remote = |(local, remote): (Ipv6Addr, Ipv6Addr)| {
            (message::address(local), message::address(remote))
        };
        let gids = (req.primary_local_gid, req.primary_remote_gid);
        let common = Parameters {
            local: message::address(gids.0),
            remote: message::address(gids.1),
            qpn: Qpn::new(req.local_qpn),
            dest_qpn: Qpn::new(rep.local_qpn),
            // Each side names the PSN that the other begins with.
            send_psn: Psn::new(rep.starting_psn),
            expected_psn: Psn::new(req.starting_psn),
            path_mtu,
            pkey: req.pkey,
            ack_timeout: req.primary_ack_timeout,
            retry_count: req.retry_count,
            rnr_retry: rep.rnr_retry_count,
            max_rd_atomic: req.initiator_depth.min(rep.responder_resources),
            max_dest_rd_atomic: req.responder_resources.min(rep.initiator_depth),
            hop_limit: req.primary_hop_limit,
            traffic_class: req.primary_traffic_class,
            flow_label: req.primary_flow_label,
        };
        if self.active {
            return Some(common);
        }
        let (local, remote) = local_remote((gids.1, gids.0));
        Some(Parameters {
            local,
            remote,
            qpn: common.dest_qpn,
            dest_qpn: common.qpn,
            send_psn: common.expected_psn,
            expected_psn: common.send_psn,
            rnr_retry: req.rnr_retry_count,
            max_rd_atomic: rep.initiator_depth.min(req.responder_resources),
            max_dest_rd_atomic: rep.responder_resources,
            ..common
        })
    }
}

/// A peer's timeouts are honoured up to 69 s (code 24), so that none can occupy us for hours. Chosen.
pub(super) const fn bounded_timeout_ns(code: u8) -> u64 {
    message::timeout_ns(if code > 24 { 24 } else { code })
}
