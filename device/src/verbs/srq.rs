//! Shared receive queues: receives that whichever of several queue pairs needs one takes.
//!
//! Knows no memory and no packet. Entries are taken in the order they were posted, and end in any
//! order, because each belongs to the queue pair that took it.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use softrnic_engine::{Hold, Place, Qpn};

use super::error::{BadRequest, Error};
use super::queue::{QUEUE_DEPTH_MAX, ReceiveSlots, RecvRequest, Sge, Token, zeroed};
use super::region::Pd;
use super::{AsyncEvent, Verbs};
use crate::memory::Memory;
use crate::nic::Nic;

/// A shared receive queue's handle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Srq(pub(super) u32);

/// What a shared receive queue is created with (`ibv_srq_init_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqInit {
    /// Protection domain, in which the keys of its receives are looked up.
    pub pd: Pd,
    /// Work requests that it holds.
    pub depth: u32,
    /// Scatter/gather elements of a work request at most.
    pub max_sge: u32,
}

/// A shared receive queue.
#[derive(Clone, Debug)]
pub(super) struct SharedReceiveQueue {
    pub(super) pd: Pd,
    slots: ReceiveSlots,
    /// Who took the entry in a slot.
    owners: Box<[Option<Qpn>]>,
    /// Slots that wait to be taken, oldest first, and slots without an entry.
    posted: VecDeque<u32>,
    free: Vec<u32>,
    depth: u32,
    /// An event is due when fewer wait than this; 0 is disarmed.
    limit: u32,
    /// Queue pairs that receive from here.
    pub(super) users: u32,
}

impl SharedReceiveQueue {
    fn new(init: &SrqInit) -> Result<Self, Error> {
        let SrqInit { pd, depth, max_sge } = *init;
        let slots = ReceiveSlots::new(depth, max_sge)?;
        if depth == 0 {
            let max = QUEUE_DEPTH_MAX.into();
            return Err(Error::OutOfRange { what: "work queue depth", given: 0, min: 1, max });
        }
        let (mut posted, mut free) = (VecDeque::new(), Vec::new());
        posted.try_reserve_exact(depth as usize).map_err(|_| Error::Exhausted("queue"))?;
        free.try_reserve_exact(depth as usize).map_err(|_| Error::Exhausted("queue"))?;
        free.extend((0..depth).rev());
        let owners = zeroed(depth as usize)?;
        Ok(Self { pd, slots, owners, posted, free, depth, limit: 0, users: 0 })
    }

    fn held(&self) -> u32 {
        self.depth - self.free.len() as u32
    }

    fn post(&mut self, srq: Srq, request: &RecvRequest<'_>) -> Result<(), Error> {
        let Some(&slot) = self.free.last() else {
            return Err(Error::SrqFull { srq, depth: self.depth });
        };
        self.slots.put(slot as usize, request)?;
        self.free.pop();
        self.posted.push_back(slot);
        Ok(())
    }

    /// Hands the oldest entry to a queue pair; `true` where the limit is passed (rule S-68).
    #[inline]
    pub(super) fn take(&mut self, by: Qpn) -> Result<(Place, bool), Hold> {
        let slot = self.posted.pop_front().ok_or(Hold::Stall)?;
        self.owners[slot as usize] = Some(by);
        let below = (self.posted.len() as u32) < self.limit;
        if below {
            self.limit = 0;
        }
        let length = self.slots.capacity(slot as usize);
        Ok((Place { token: Token::Shared(slot).to_bits(), base: 0, length }, below))
    }

    /// The list and size of an entry that a queue pair has taken; `None` where it has not.
    #[inline]
    pub(super) fn taken(&self, slot: u32, by: Qpn) -> Option<(&[Sge], u32)> {
        let at = slot as usize;
        let owned = self.owners.get(at).is_some_and(|&owner| owner == Some(by));
        owned.then(|| (self.slots.list(at), self.slots.capacity(at)))
    }

    /// Frees an entry that a queue pair has taken, and gives its `wr_id`.
    #[inline]
    pub(super) fn finish(&mut self, slot: u32, by: Qpn) -> Option<u64> {
        self.taken(slot, by)?;
        self.owners[slot as usize] = None;
        self.free.push(slot);
        Some(self.slots.wr_id(slot as usize))
    }

    /// Frees one of the entries that a queue pair has taken.
    pub(super) fn give_up(&mut self, by: Qpn) -> Option<u64> {
        let slot = self.owners.iter().position(|&owner| owner == Some(by))?;
        self.finish(slot as u32, by)
    }
}

/// Shared receive queues.
impl<M: Memory> Nic<Verbs, M> {
    /// Creates a shared receive queue, its limit disarmed (`ibv_create_srq`).
    ///
    /// # Errors
    /// The domain is unknown, a size is out of range, or there is no memory.
    pub fn create_srq(&mut self, init: &SrqInit) -> Result<Srq, Error> {
        let device = &mut self.device;
        let result = SharedReceiveQueue::new(init).and_then(|queue| {
            device.regions.hold_pd(init.pd)?;
            let Some(key) = device.srqs.insert(queue) else {
                device.regions.release_pd(init.pd);
                return Err(Error::Exhausted("shared receive queue"));
            };
            device.reserve_events();
            Ok(Srq(key))
        });
        self.counted(result)
    }

    /// Work requests of a shared receive queue that have not ended; `None` where it is unknown.
    #[must_use]
    pub fn srq_held(&self, srq: Srq) -> Option<u32> {
        self.device.srqs.get(srq.0).map(SharedReceiveQueue::held)
    }

    /// Destroys a shared receive queue with the work in it (`ibv_destroy_srq`).
    ///
    /// # Errors
    /// It is unknown or serves queue pairs.
    pub fn destroy_srq(&mut self, srq: Srq) -> Result<(), Error> {
        let device = &mut self.device;
        let result = match device.srqs.get(srq.0) {
            None => Err(Error::UnknownSrq(srq)),
            Some(&SharedReceiveQueue { users, .. }) if users > 0 => {
                Err(Error::SrqInUse { srq, users })
            }
            Some(&SharedReceiveQueue { pd, .. }) => {
                device.srqs.remove(srq.0);
                device.regions.release_pd(pd);
                let limit = AsyncEvent::SrqLimitReached(srq);
                device.async_events.retain(|&event| event != limit);
                Ok(())
            }
        };
        self.counted(result)
    }

    /// Asks for one [`AsyncEvent::SrqLimitReached`] once a receive is taken and fewer than `limit`
    /// are left; 0 disarms (`ibv_modify_srq`, `IBV_SRQ_LIMIT`). Chosen: where fewer are left
    /// already, the event comes with the next receive that is taken.
    ///
    /// # Errors
    /// The queue is unknown, or the limit is above its depth.
    pub fn set_srq_limit(&mut self, srq: Srq, limit: u32) -> Result<(), Error> {
        let result = match self.device.srqs.get_mut(srq.0) {
            None => Err(Error::UnknownSrq(srq)),
            Some(queue) if limit > queue.depth => {
                let (given, max) = (limit.into(), queue.depth.into());
                Err(Error::OutOfRange { what: "srq_limit", given, min: 0, max })
            }
            Some(queue) => {
                queue.limit = limit;
                Ok(())
            }
        };
        self.counted(result)
    }

    /// The limit that is armed, 0 where none is (`ibv_query_srq`); `None` where the queue is unknown.
    #[must_use]
    pub fn srq_limit(&self, srq: Srq) -> Option<u32> {
        self.device.srqs.get(srq.0).map(|queue| queue.limit)
    }

    /// Posts a receive work request for whichever queue pair needs it (`ibv_post_srq_recv`).
    ///
    /// # Errors
    /// The queue is unknown or full, or the request does not fit.
    #[inline]
    pub fn post_srq_recv(&mut self, srq: Srq, request: &RecvRequest<'_>) -> Result<(), Error> {
        self.post_srq_recvs(srq, core::slice::from_ref(request)).map_err(|bad| bad.error)
    }

    /// Posts several receive work requests.
    ///
    /// # Errors
    /// The first one that was refused; those before it are posted.
    #[inline]
    pub fn post_srq_recvs(
        &mut self,
        srq: Srq,
        requests: &[RecvRequest<'_>],
    ) -> Result<(), BadRequest> {
        let result = match self.device.srqs.get_mut(srq.0) {
            None => Err(BadRequest { index: 0, error: Error::UnknownSrq(srq) }),
            Some(queue) => requests.iter().enumerate().try_for_each(|(index, request)| {
                queue.post(srq, request).map_err(|error| BadRequest { index, error })
            }),
        };
        if let Err(bad) = result {
            self.engine.count_refused(bad.error.reason());
        }
        result
    }
}
