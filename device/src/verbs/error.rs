//! Why a verb was refused: the thing at fault, and the [`Reason`] under which it is counted.
//!
//! Only calls of the program end here. What happens to a work request after it was accepted ends in
//! its completion.

use core::fmt;
use core::net::IpAddr;

use softrnic_engine::{ModifyError, Qpn, Reason, Service, State};

use super::cq::Cq;
use super::datagram::Ah;
use super::region::{LKey, Pd};
use super::srq::Srq;
use crate::memory::DmaFault;

/// Why a verb was refused. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// There is no such protection domain.
    UnknownPd(Pd),
    /// There is no such completion queue.
    UnknownCq(Cq),
    /// There is no such queue pair.
    UnknownQp(Qpn),
    /// There is no such memory region.
    UnknownMr(LKey),
    /// There is no such address handle.
    UnknownAh(Ah),
    /// There is no such shared receive queue.
    UnknownSrq(Srq),
    /// The protection domain still has memory regions or queue pairs.
    PdInUse {
        /// Which.
        pd: Pd,
        /// How many.
        users: u32,
    },
    /// The completion queue still serves queue pairs.
    CqInUse {
        /// Which.
        cq: Cq,
        /// How many work queues.
        users: u32,
    },
    /// The shared receive queue still serves queue pairs.
    SrqInUse {
        /// Which.
        srq: Srq,
        /// How many queue pairs.
        users: u32,
    },
    /// There is a GSI queue pair already, and there can be only one.
    GsiExists,
    /// A number is too large (or zero, where that makes no sense).
    OutOfRange {
        /// Which attribute, by its name in this interface.
        what: &'static str,
        /// The value given.
        given: u64,
        /// The smallest value that would do.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// Part of a memory region is not memory.
    NotMemory(DmaFault),
    /// Remote WRITE or atomic access needs local write access too (IBTA vol 1, 10.6.3.1).
    LocalWriteMissing,
    /// The native face does not offer this transport service.
    ServiceUnsupported(Service),
    /// An attribute or a transition of the queue pair was refused.
    Modify(ModifyError),
    /// The queue pair's state does not allow the call.
    WrongState {
        /// Which queue pair.
        qpn: Qpn,
        /// Its state.
        state: State,
    },
    /// The send or receive queue is full.
    QueueFull {
        /// Which queue pair.
        qpn: Qpn,
        /// The queue's depth.
        depth: u32,
    },
    /// The shared receive queue is full.
    SrqFull {
        /// Which.
        srq: Srq,
        /// Its depth.
        depth: u32,
    },
    /// The queue pair receives from a shared receive queue.
    ReceivesShared {
        /// Which queue pair.
        qpn: Qpn,
        /// Where its receives are posted.
        srq: Srq,
    },
    /// A datagram without an address, or an address for something that is no datagram.
    DatagramAddress {
        /// Which queue pair.
        qpn: Qpn,
        /// Its service.
        service: Service,
    },
    /// Only datagram queue pairs can join multicast groups.
    NotDatagram(Qpn),
    /// The address is not a multicast group's.
    NotMulticast(IpAddr),
    /// The queue pair is not attached to the group.
    NotAttached {
        /// Which queue pair.
        qpn: Qpn,
        /// Which group.
        group: IpAddr,
    },
    /// More scatter/gather elements than the queue's entries have room for.
    TooManySges {
        /// How many there are.
        given: usize,
        /// How many fit.
        max: u32,
    },
    /// More inline data than the queue's entries have room for.
    TooMuchInline {
        /// Bytes given.
        given: usize,
        /// Bytes that fit.
        max: u32,
    },
    /// READs and atomics have no data of their own to send inline.
    InlineNotAllowed,
    /// The scatter/gather list is longer than 2^31 bytes, or an atomic's is not 8.
    MessageLength {
        /// Bytes of the list.
        given: u64,
        /// Bytes allowed.
        max: u64,
    },
    /// There is no memory for the queue, or all numbers of this kind are taken.
    Exhausted(&'static str),
}

impl Error {
    /// The reason under which it is counted.
    #[must_use]
    pub const fn reason(self) -> Reason {
        match self {
            Self::UnknownPd(_)
            | Self::UnknownCq(_)
            | Self::UnknownQp(_)
            | Self::UnknownMr(_)
            | Self::UnknownAh(_)
            | Self::UnknownSrq(_)
            | Self::PdInUse { .. }
            | Self::CqInUse { .. }
            | Self::SrqInUse { .. } => Reason::VerbsHandle,
            Self::OutOfRange { .. }
            | Self::ServiceUnsupported(_)
            | Self::ReceivesShared { .. }
            | Self::NotDatagram(_)
            | Self::NotMulticast(_) => Reason::VerbsAttribute,
            Self::NotAttached { .. } => Reason::MulticastGroup,
            Self::DatagramAddress { .. } => Reason::PathIncomplete,
            Self::NotMemory(_) => Reason::DmaAddress,
            Self::LocalWriteMissing => Reason::AccessRights,
            Self::Modify(error) => error.reason(),
            Self::WrongState { .. } => Reason::QpNotReady,
            Self::QueueFull { .. } | Self::SrqFull { .. } => Reason::WorkQueueFull,
            Self::TooManySges { .. } => Reason::WorkSges,
            Self::TooMuchInline { .. } | Self::InlineNotAllowed | Self::MessageLength { .. } => {
                Reason::WorkLength
            }
            Self::Exhausted(_) | Self::GsiExists => Reason::VerbsExhausted,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::UnknownPd(pd) => write!(f, "no protection domain {:#x}", pd.0),
            Self::UnknownCq(cq) => write!(f, "no completion queue {:#x}", cq.0),
            Self::UnknownQp(qpn) => write!(f, "no queue pair {qpn}"),
            Self::UnknownMr(lkey) => write!(f, "no memory region with lkey {:#x}", lkey.0),
            Self::UnknownAh(ah) => write!(f, "no address handle {:#x}", ah.0),
            Self::UnknownSrq(srq) => write!(f, "no shared receive queue {:#x}", srq.0),
            Self::PdInUse { pd, users } => write!(
                f,
                "protection domain {:#x} still has {users} memory regions, queue pairs, shared receive queues or address handles; remove them first",
                pd.0
            ),
            Self::CqInUse { cq, users } => write!(
                f,
                "completion queue {:#x} still serves {users} work queues; destroy their queue pairs first",
                cq.0
            ),
            Self::SrqInUse { srq, users } => write!(
                f,
                "shared receive queue {:#x} still serves {users} queue pairs; destroy them first",
                srq.0
            ),
            Self::GsiExists => f.write_str("there is a GSI queue pair already; destroy it first"),
            Self::OutOfRange { what, given, min, max } => {
                write!(f, "{what} is {given}; it must be {min} to {max}")
            }
            Self::NotMemory(fault) => fault.fmt(f),
            Self::LocalWriteMissing => {
                f.write_str("remote_write and remote_atomic need local_write too")
            }
            Self::ServiceUnsupported(service) => {
                write!(f, "transport service {service:?} is not offered; use Rc, Uc or Ud")
            }
            Self::Modify(error) => error.fmt(f),
            Self::WrongState { qpn, state } => {
                write!(f, "queue pair {qpn} is in {state:?}, which does not allow this")
            }
            Self::QueueFull { qpn, depth } => {
                write!(
                    f,
                    "a queue of queue pair {qpn} already holds its {depth} entries; poll first"
                )
            }
            Self::SrqFull { srq, depth } => write!(
                f,
                "shared receive queue {:#x} already holds its {depth} entries; poll first",
                srq.0
            ),
            Self::ReceivesShared { qpn, srq } => write!(
                f,
                "queue pair {qpn} receives from shared receive queue {:#x}; post there",
                srq.0
            ),
            Self::DatagramAddress { qpn, service: Service::Ud } => write!(
                f,
                "queue pair {qpn} sends datagrams; the work request needs ah, remote_qpn and remote_qkey"
            ),
            Self::DatagramAddress { qpn, service } => write!(
                f,
                "queue pair {qpn} is {service:?}, which has one peer; the work request must not name another"
            ),
            Self::NotDatagram(qpn) => {
                write!(f, "queue pair {qpn} is not Ud, and only that joins multicast groups")
            }
            Self::NotMulticast(address) => write!(f, "{address} is not a multicast address"),
            Self::NotAttached { qpn, group } => {
                write!(f, "queue pair {qpn} is not attached to {group}")
            }
            Self::TooManySges { given, max } => {
                write!(f, "{given} scatter/gather elements; the queue's entries hold {max}")
            }
            Self::TooMuchInline { given, max } => {
                write!(f, "{given} bytes inline; the queue's entries hold {max}")
            }
            Self::InlineNotAllowed => f.write_str("a READ or atomic cannot have inline data"),
            Self::MessageLength { given, max } => {
                write!(f, "the scatter/gather list has {given} bytes; allowed are {max}")
            }
            Self::Exhausted(what) => write!(f, "no room for another {what}"),
        }
    }
}

impl core::error::Error for Error {}

/// A list of work requests was refused in part: those before `index` were accepted, the others not
/// looked at (`bad_wr` of `ibv_post_send`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadRequest {
    /// Position of the refused request in the list.
    pub index: usize,
    /// Why it was refused.
    pub error: Error,
}

impl fmt::Display for BadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "work request {} of the list: {}", self.index, self.error)
    }
}

impl core::error::Error for BadRequest {}
