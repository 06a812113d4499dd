//! Queue pairs of the native face: what creates and connects them, and the table by number.
//!
//! State, PSNs and path live in the engine; here are the rings and whom they belong to.

use alloc::vec::Vec;

use softrnic_engine::{Attributes, Path, PathMtu, Policy, Psn, Qpn, RemoteAccess, Service};

use super::cq::Cq;
use super::error::Error;
use super::queue::{ReceiveQueue, RecvRequest, SendQueue, SendRequest};
use super::region::Pd;
use super::srq::Srq;

/// What a queue pair is created with (`ibv_qp_init_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpInit {
    /// Protection domain.
    pub pd: Pd,
    /// Where send work requests complete.
    pub send_cq: Cq,
    /// Where receives complete; may be the same.
    pub recv_cq: Cq,
    /// Work requests that the send queue holds.
    pub sq_depth: u32,
    /// Work requests that the receive queue holds; ignored where `srq` is given.
    pub rq_depth: u32,
    /// Scatter/gather elements of a work request at most.
    pub max_sge: u32,
    /// Bytes of inline data at most.
    pub max_inline: u32,
    /// Report the success of every send work request, as if all were signaled.
    pub sq_sig_all: bool,
    /// Transport service: RC, UC or UD.
    pub service: Service,
    /// Receive from this shared queue, and have none of its own.
    pub srq: Option<Srq>,
}

impl Default for QpInit {
    fn default() -> Self {
        Self {
            pd: Pd::default(),
            send_cq: Cq::default(),
            recv_cq: Cq::default(),
            sq_depth: 128,
            rq_depth: 128,
            max_sge: 4,
            max_inline: 64,
            sq_sig_all: false,
            service: Service::Rc,
            srq: None,
        }
    }
}

/// What a connection needs (the attributes of `ibv_modify_qp` from RESET to RTS). A datagram queue
/// pair uses `path_mtu`, `pkey`, `qkey`, `send_psn` and `policy` only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connection {
    /// Peer's addresses.
    pub path: Path,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// Peer's queue pair.
    pub dest_qpn: Qpn,
    /// PSN of our first request packet: the peer's `expected_psn`.
    pub send_psn: Psn,
    /// PSN of the peer's first request packet: the peer's `send_psn`.
    pub expected_psn: Psn,
    /// Partition key.
    pub pkey: u16,
    /// Queue key of datagrams (rule V-08).
    pub qkey: u32,
    /// What the peer may do.
    pub remote_access: RemoteAccess,
    /// Local ACK timeout code, 0..=31: 4.096 us x 2^code, 0 for none.
    pub ack_timeout: u8,
    /// Retries after timeouts and NAK sequence errors, 0..=7.
    pub retry_count: u8,
    /// Retries after RNR NAKs, 0..=6; 7 for ever.
    pub rnr_retry: u8,
    /// Timer code of the RNR NAKs that we send, 0..=31.
    pub min_rnr_timer: u8,
    /// READs and atomics that we keep outstanding.
    pub max_rd_atomic: u8,
    /// READs and atomics that the peer may have outstanding.
    pub max_dest_rd_atomic: u8,
    /// Limits and habits beyond the standard's attributes. Chosen: end-to-end credits are on by
    /// default, because channel adapters count receives too (rule S-17); a peer that does not count
    /// says so in its acknowledgements, and sending is free then. Only RC obeys and sends them.
    pub policy: Policy,
}

impl Default for Connection {
    fn default() -> Self {
        let attributes = Attributes::default();
        Self {
            path: attributes.path,
            path_mtu: attributes.path_mtu,
            dest_qpn: attributes.dest_qpn,
            send_psn: Psn::new(0),
            expected_psn: Psn::new(0),
            pkey: attributes.pkey,
            qkey: attributes.qkey,
            remote_access: attributes.remote_access,
            ack_timeout: attributes.ack_timeout,
            retry_count: attributes.retry_count,
            rnr_retry: attributes.rnr_retry,
            min_rnr_timer: attributes.min_rnr_timer,
            max_rd_atomic: attributes.max_rd_atomic,
            max_dest_rd_atomic: attributes.max_dest_rd_atomic,
            policy: Policy { end_to_end_credits: true, ..attributes.policy },
        }
    }
}

impl Connection {
    /// Checks the ranges that types do not (rule M-02).
    pub(super) fn check(&self) -> Result<(), Error> {
        let codes = [
            ("ack_timeout", self.ack_timeout, 31u8),
            ("retry_count", self.retry_count, 7),
            ("rnr_retry", self.rnr_retry, 7),
            ("min_rnr_timer", self.min_rnr_timer, 31),
        ];
        match codes.into_iter().find(|&(_, given, max)| given > max) {
            None => Ok(()),
            Some((what, given, max)) => {
                Err(Error::OutOfRange { what, given: given.into(), min: 0, max: max.into() })
            }
        }
    }

    /// Writes everything but the PSNs into a queue pair's attributes.
    pub(super) fn apply(&self, attributes: &mut Attributes) {
        *attributes = Attributes {
            path: self.path,
            path_mtu: self.path_mtu,
            dest_qpn: self.dest_qpn,
            pkey: self.pkey,
            qkey: self.qkey,
            remote_access: self.remote_access,
            ack_timeout: self.ack_timeout,
            retry_count: self.retry_count,
            rnr_retry: self.rnr_retry,
            min_rnr_timer: self.min_rnr_timer,
            max_rd_atomic: self.max_rd_atomic,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            policy: self.policy,
            ..*attributes
        };
    }
}

/// A queue pair's rings, and whom it belongs to.
#[derive(Clone, Debug)]
pub(super) struct QueuePair {
    pub(super) qpn: Qpn,
    pub(super) pd: Pd,
    pub(super) service: Service,
    pub(super) send_cq: Cq,
    pub(super) recv_cq: Cq,
    pub(super) srq: Option<Srq>,
    pub(super) sq_sig_all: bool,
    /// A receive completed in error, which tells what an event would.
    pub(super) receive_failed: bool,
    pub(super) send: SendQueue,
    pub(super) recv: ReceiveQueue,
}

impl QueuePair {
    /// Takes a send work request.
    #[inline]
    pub(super) fn post_send(&mut self, request: &SendRequest<'_>) -> Result<(), Error> {
        if (self.service == Service::Ud) != request.ud.is_some() {
            return Err(Error::DatagramAddress { qpn: self.qpn, service: self.service });
        }
        self.send.post(self.qpn, request)
    }

    /// Takes a receive work request.
    #[inline]
    pub(super) fn post_recv(&mut self, request: &RecvRequest<'_>) -> Result<(), Error> {
        match self.srq {
            None => self.recv.post(self.qpn, request),
            Some(srq) => Err(Error::ReceivesShared { qpn: self.qpn, srq }),
        }
    }
}

/// Queue pairs by number. A slot is a number's low bits, as in the engine.
#[derive(Clone, Debug)]
pub(super) struct QueuePairs {
    /// A power of two of them.
    slots: Vec<Option<QueuePair>>,
    live: usize,
    /// Numbers are given in turn, so that one is not used again soon (rule M-09).
    next: u32,
}

impl Default for QueuePairs {
    fn default() -> Self {
        Self { slots: (0..SLOTS_MIN).map(|_| None).collect(), live: 0, next: QPN_FIRST }
    }
}

impl QueuePairs {
    /// A free number, and room for it.
    pub(super) fn reserve(&mut self) -> Result<Qpn, Error> {
        if self.live >= self.slots.len() / 4 * 3 {
            if self.slots.len() >= SLOTS_MAX {
                return Err(Error::Exhausted("queue pair number"));
            }
            self.grow();
        }
        loop {
            let qpn = Qpn::new(self.next);
            self.next = if self.next == QPN_LAST { QPN_FIRST } else { self.next + 1 };
            if self.slots[self.slot(qpn)].is_none() {
                return Ok(qpn);
            }
        }
    }

    /// The GSI queue pair's number, if it is free, and room for it.
    pub(super) fn reserve_gsi(&mut self) -> Result<Qpn, Error> {
        while let Some(taken) = &self.slots[self.slot(GSI_QPN)] {
            if taken.qpn == GSI_QPN {
                return Err(Error::GsiExists);
            }
            if self.slots.len() >= SLOTS_MAX {
                return Err(Error::Exhausted("queue pair number"));
            }
            self.grow();
        }
        Ok(GSI_QPN)
    }

    /// Adds a queue pair under a reserved number.
    pub(super) fn insert(&mut self, qp: QueuePair) {
        let slot = self.slot(qp.qpn);
        self.slots[slot] = Some(qp);
        self.live += 1;
    }

    pub(super) fn remove(&mut self, qpn: Qpn) -> Option<QueuePair> {
        let slot = self.slot(qpn);
        let qp = self.slots[slot].take_if(|qp| qp.qpn == qpn)?;
        self.live -= 1;
        Some(qp)
    }

    #[inline]
    pub(super) fn get(&self, qpn: Qpn) -> Option<&QueuePair> {
        self.slots[self.slot(qpn)].as_ref().filter(|qp| qp.qpn == qpn)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, qpn: Qpn) -> Option<&mut QueuePair> {
        let slot = self.slot(qpn);
        self.slots[slot].as_mut().filter(|qp| qp.qpn == qpn)
    }

    pub(super) fn len(&self) -> usize {
        self.live
    }

    #[inline]
    fn slot(&self, qpn: Qpn) -> usize {
        qpn.get() as usize & (self.slots.len() - 1)
    }

    /// Doubles the table: numbers with different low bits stay different with one bit more.
    fn grow(&mut self) {
        let double = self.slots.len() * 2;
        let old = core::mem::replace(&mut self.slots, (0..double).map(|_| None).collect());
        for qp in old.into_iter().flatten() {
            let slot = self.slot(qp.qpn);
            self.slots[slot] = Some(qp);
        }
    }
}

/// The general services interface: management datagrams (IBTA vol 1, 3.9).
pub(super) const GSI_QPN: Qpn = Qpn::new(1);
/// Its queue key (rule V-08).
pub(super) const GSI_QKEY: u32 = 0x8001_0000;
const SLOTS_MIN: usize = 16;
const SLOTS_MAX: usize = 1 << 24;
/// 0 and 1 are the management queue pairs' (IBTA vol 1, 3.9).
const QPN_FIRST: u32 = 2;
/// 0xFFFFFF is the multicast queue pair number.
const QPN_LAST: u32 = 0x00FF_FFFE;

#[cfg(test)]
mod tests {
    use super::*;

    fn queue_pair(qpn: Qpn) -> QueuePair {
        let (send, recv) = (SendQueue::new(1, 1, 0).unwrap(), ReceiveQueue::new(1, 1).unwrap());
        let (pd, cq) = (Pd::default(), Cq::default());
        QueuePair {
            qpn,
            pd,
            service: Service::Rc,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            sq_sig_all: false,
            receive_failed: false,
            send,
            recv,
        }
    }

    #[test]
    fn m_09_numbers_come_in_turn_and_skip_what_lives() {
        let mut table = QueuePairs::default();
        let mut kept = Vec::new();
        for _ in 0..40 {
            let qpn = table.reserve().unwrap();
            table.insert(queue_pair(qpn));
            kept.push(qpn);
        }
        assert_eq!(kept, (2..42).map(Qpn::new).collect::<Vec<_>>());
        assert_eq!(table.remove(Qpn::new(7)).unwrap().qpn, Qpn::new(7));
        assert!(table.remove(Qpn::new(7)).is_none());
        assert_eq!(table.reserve().unwrap(), Qpn::new(42));
        table.next = QPN_LAST;
        assert_eq!(table.reserve().unwrap(), Qpn::new(QPN_LAST));
        assert_eq!(table.reserve().unwrap(), Qpn::new(7));
        assert!(kept.iter().filter(|qpn| qpn.get() != 7).all(|&qpn| table.get(qpn).is_some()));
        assert!(table.get(Qpn::new(2 + 64)).is_none());
        assert_eq!(table.len(), 39);
    }

    #[test]
    fn the_gsi_number_is_found_room_for_and_given_once() {
        let mut table = QueuePairs { next: 17, ..QueuePairs::default() };
        for number in [17, 18] {
            assert_eq!(table.reserve().unwrap(), Qpn::new(number));
            table.insert(queue_pair(Qpn::new(number)));
        }
        // 17 stands where 1 would, until the table grows.
        assert_eq!(table.reserve_gsi().unwrap(), GSI_QPN);
        table.insert(queue_pair(GSI_QPN));
        assert_eq!(table.reserve_gsi(), Err(Error::GsiExists));
        assert!([1, 17, 18].iter().all(|&number| table.get(Qpn::new(number)).is_some()));
    }
}
