//! What the engine asks of a device's face: work, memory, permission; and what it tells it.
//!
//! A face is a short-lived view of registers, tables and memory, borrowed for one engine call. The
//! engine never keeps one. All arguments are plain values. A face never sees packet headers, but for
//! [`Face::receive_frame`].

use core::net::IpAddr;

use crate::numbers::{Qpn, RKey};
use crate::qp::Path;
use crate::reason::Reason;

/// A run of bytes as the face knows it: a receive buffer, a granted region, a work request's buffer.
///
/// The engine reads `length` and hands the rest back unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// The face's own handle: a table row with its key, a ring slot...
    pub token: u64,
    /// Where the first byte is, in the face's terms (a bus address, say).
    pub base: u64,
    /// Bytes that may be touched from `base` on.
    pub length: u32,
}

/// Why bytes or a buffer could not be had now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hold {
    /// Try again after [`crate::Engine::kick`]; for [`Face::receive`], receiver not ready.
    Stall,
    /// It will never work.
    Fault(Reason),
}

/// What a queue holds at an index.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Fetch {
    /// Nothing yet.
    Empty,
    /// A work request.
    Work(Work),
    /// A work request that cannot be executed; it completes with this status.
    Bad(Status, Reason),
}

/// A work request, taken once: the engine never looks at the queue entry again.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Work {
    /// What to do.
    pub opcode: WorkOpcode,
    /// Bytes of the whole message. At most 2^31.
    pub length: u32,
    /// Where the bytes come from, or go to for READ and atomics.
    pub local: Place,
    /// Remote virtual address.
    pub remote_va: u64,
    /// Remote key; the key to invalidate for SEND WITH INVALIDATE.
    pub rkey: RKey,
    /// Immediate data as a number; big-endian on the wire.
    pub immediate: u32,
    /// Addend or swap value of an atomic.
    pub swap_or_add: u64,
    /// Compare value of an atomic.
    pub compare: u64,
    /// Ask the peer for a solicited event.
    pub solicited: bool,
    /// Wait for all earlier READs and atomics.
    pub fence: bool,
}

impl Default for Work {
    fn default() -> Self {
        Self {
            opcode: WorkOpcode::Send,
            length: 0,
            local: Place::default(),
            remote_va: 0,
            rkey: RKey(0),
            immediate: 0,
            swap_or_add: 0,
            compare: 0,
            solicited: false,
            fence: false,
        }
    }
}

/// What a work request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkOpcode {
    /// SEND.
    Send,
    /// SEND WITH IMMEDIATE.
    SendImm,
    /// SEND WITH INVALIDATE.
    SendInv,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE WITH IMMEDIATE.
    WriteImm,
    /// RDMA READ.
    Read,
    /// Compare and swap on 8 bytes.
    CompareSwap,
    /// Fetch and add on 8 bytes.
    FetchAdd,
    /// The buffer is a whole frame that software built; only the ICRC is added.
    RawFrame,
}

impl WorkOpcode {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Send,
        Self::SendImm,
        Self::SendInv,
        Self::Write,
        Self::WriteImm,
        Self::Read,
        Self::CompareSwap,
        Self::FetchAdd,
        Self::RawFrame,
    ];
}

/// What the peer wants to do with a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// RDMA READ.
    Read,
    /// RDMA WRITE.
    Write,
    /// Atomic.
    Atomic,
}

/// An atomic operation on 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Atomic {
    /// Store `swap` if the value equals `compare`.
    CompareSwap {
        /// Value to compare with.
        compare: u64,
        /// Value to store.
        swap: u64,
    },
    /// Add, wrapping.
    FetchAdd {
        /// Addend.
        add: u64,
    },
}

/// Completion status, numbered as verbs do (`ibv_wc_status`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Success = 0,
    /// Local length error.
    LocalLength = 1,
    /// Local QP operation error.
    LocalQpOperation = 2,
    /// Local protection error.
    LocalProtection = 4,
    /// Flushed because the QP is in error.
    Flushed = 5,
    /// A response that does not fit the request.
    BadResponse = 7,
    /// Remote invalid request.
    RemoteInvalidRequest = 9,
    /// Remote access error.
    RemoteAccess = 10,
    /// Remote operation error.
    RemoteOperation = 11,
    /// Transport retry counter exceeded.
    RetryExceeded = 12,
    /// RNR retry counter exceeded.
    RnrRetryExceeded = 13,
}

/// A finished work request or receive.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Completion {
    /// Which one.
    pub kind: CompletionKind,
    /// How it ended.
    pub status: Status,
    /// Why it failed, where it did.
    pub reason: Option<Reason>,
}

/// Which queue's entry has finished.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum CompletionKind {
    /// A send queue entry. One call for each, in order, success or not.
    Work {
        /// Its index since reset, as given to [`Face::work`].
        index: u32,
        /// What it did; `None` where the entry could not be read.
        opcode: Option<WorkOpcode>,
        /// Bytes of the message.
        length: u32,
    },
    /// A message that arrived.
    Receive {
        /// The receive buffer taken with [`Face::receive`]; `None` where none was taken.
        place: Option<Place>,
        /// Bytes of the message; for a WRITE WITH IMMEDIATE, bytes written.
        length: u32,
        /// Whether the data went to a region (WRITE WITH IMMEDIATE), not to the buffer.
        by_write: bool,
        /// Immediate data.
        immediate: Option<u32>,
        /// The key that was invalidated.
        invalidated: Option<RKey>,
        /// Whether the peer asked for a solicited event.
        solicited: bool,
        /// Who sent a datagram. Its buffer starts with the 40-byte GRH area, which `length` counts.
        source_qpn: Option<Qpn>,
    },
}

/// Where a datagram goes: an address handle with the work request's QPN and Q_Key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Datagram {
    /// The address vector.
    pub path: Path,
    /// Destination queue pair; 0xFFFFFF for multicast.
    pub dest_qpn: Qpn,
    /// Q_Key; with bit 31 set, the queue pair's own is sent (rule U-11).
    pub qkey: u32,
}

/// Something software may want to know; never lost, because it is a direct call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// An RNR NAK was queued for the peer.
    ReceiverNotReady(Qpn),
    /// The queue pair went to the error state.
    QpError {
        /// Which.
        qpn: Qpn,
        /// Why.
        reason: Reason,
        /// Whether the peer's request was at fault (a NAK goes out), not our own side.
        by_peer: bool,
    },
    /// The send queue of an unreliable queue pair stopped (state SQE); receiving goes on.
    SendQueueError {
        /// Which.
        qpn: Qpn,
        /// Why.
        reason: Reason,
    },
    /// In SQD, everything that was started has ended.
    SendQueueDrained(Qpn),
    /// The first queue pair attached to a multicast group: the host joins it.
    MulticastJoin(IpAddr),
    /// The last queue pair left a multicast group: the host leaves it.
    MulticastLeave(IpAddr),
    /// The first valid packet arrived in RTR (IBTA vol 1, 11.6.3).
    CommunicationEstablished(Qpn),
    /// A data packet of this QP was marked "congestion experienced".
    CongestionMarked(Qpn),
    /// A CNP arrived for this QP.
    CongestionNotified(Qpn),
}

/// A device's view for one engine call. See `ARCHITECTURE.md` for who calls what when.
pub trait Face {
    /// The send queue's entry `index`, counted from 0 since reset. Asked once per entry, in order.
    fn work(&mut self, q: Qpn, index: u32) -> Fetch;

    /// Copies `out.len()` bytes from `from`, starting `offset` bytes in. Used for own work requests
    /// and for READ responses; a region is checked again each time.
    ///
    /// # Errors
    /// `Stall` where the bytes cannot be had now, `Fault` where they never can.
    fn gather(&mut self, q: Qpn, from: Place, offset: u32, out: &mut [u8]) -> Result<(), Hold>;

    /// Takes the next receive buffer.
    ///
    /// # Errors
    /// `Stall` where none is posted (the peer gets an RNR NAK), `Fault` where it is broken.
    fn receive(&mut self, q: Qpn) -> Result<Place, Hold>;

    /// May the peer of `q` do this with `[va, va + length)` under `key`? `length` is not 0.
    ///
    /// # Errors
    /// The reason why not.
    fn grant(
        &mut self,
        q: Qpn,
        key: RKey,
        va: u64,
        length: u32,
        want: Access,
    ) -> Result<Place, Reason>;

    /// Writes `bytes` to `to`, starting `offset` bytes in. A region's key is checked again.
    ///
    /// # Errors
    /// As [`Face::gather`]. On error nothing was written.
    fn scatter(&mut self, q: Qpn, to: Place, offset: u32, bytes: &[u8]) -> Result<(), Hold>;

    /// Where the datagram of the send queue's entry `index` goes. Asked once, when it is sent.
    ///
    /// # Errors
    /// The address handle is not valid.
    fn datagram(&mut self, q: Qpn, index: u32) -> Result<Datagram, Reason> {
        let _ = (q, index);
        Err(Reason::ServiceMismatch)
    }

    /// Receive buffers that are posted, for end-to-end credits; `None` where they are not counted
    /// for this queue pair alone (a shared receive queue; rule S-17).
    fn receives_posted(&mut self, q: Qpn) -> Option<u32> {
        let _ = q;
        None
    }

    /// Executes an atomic on the 8 bytes at `at` (little-endian in memory); returns the value before.
    ///
    /// # Errors
    /// As [`Face::gather`].
    fn atomic(&mut self, q: Qpn, at: Place, operation: Atomic) -> Result<u64, Hold> {
        let _ = (q, at, operation);
        Err(Hold::Fault(Reason::OperationUnsupported))
    }

    /// Makes a key unusable (SEND WITH INVALIDATE), before the message completes.
    ///
    /// # Errors
    /// The reason why it could not be.
    fn invalidate(&mut self, q: Qpn, key: RKey) -> Result<(), Reason> {
        let _ = (q, key);
        Ok(())
    }

    /// Every packet of entry `index` has been acknowledged; comes before its completion.
    fn acknowledged(&mut self, q: Qpn, index: u32) {
        let _ = (q, index);
    }

    /// The first `bytes` of entry `index` have been acknowledged, but not all of it.
    fn acknowledged_part(&mut self, q: Qpn, index: u32, bytes: u32) {
        let _ = (q, index, bytes);
    }

    /// Whether the packet whose bytes were gathered last must ask for an acknowledgement, because what
    /// the face keeps for sending again is used up.
    #[inline(always)]
    fn wants_acknowledgement(&mut self) -> bool {
        false
    }

    /// The next queue pair that stalled and should try again; asked before the engine looks for work.
    #[inline(always)]
    fn released(&mut self) -> Option<Qpn> {
        None
    }

    /// An entry has finished.
    ///
    /// # Errors
    /// The completion queue has no room; the queue pair goes to the error state.
    fn complete(&mut self, q: Qpn, what: Completion) -> Result<(), Reason>;

    /// A whole frame for a QP whose software reads frames (ERNIC QP1, mlx4 raw).
    ///
    /// # Errors
    /// As [`Face::receive`].
    fn receive_frame(&mut self, q: Qpn, frame: &[u8]) -> Result<(), Hold> {
        let _ = (q, frame);
        Err(Hold::Fault(Reason::ServiceMismatch))
    }

    /// Something happened.
    fn event(&mut self, what: Event);
}
