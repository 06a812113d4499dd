//! What the engine asks of the native face: posted work, memory behind keys, completions.
//!
//! Knows nothing of how work is posted and polled.

use softrnic_engine::{
    Access, Atomic, Completion, CompletionKind, Datagram, Event, Face, Fetch, Hold, Place, Qpn,
    RKey, Reason, Status,
};

use super::cq::{Cq, Pushed, WcOpcode, WorkCompletion};
use super::queue::{Sge, Token, pieces, within};
use super::region::{Pd, Regions, Right};
use super::srq::Srq;
use super::{AsyncEvent, Verbs};
use crate::memory::Memory;

/// The native face and its memory, for one engine call.
#[derive(Debug)]
pub struct View<'a, M> {
    pub(super) verbs: &'a mut Verbs,
    pub(super) memory: &'a mut M,
}

impl<M: Memory> Face for View<'_, M> {
    #[inline]
    fn work(&mut self, q: Qpn, index: u32) -> Fetch {
        self.verbs.qps.get(q).map_or(Fetch::Empty, |qp| qp.send.fetch(index))
    }

    #[inline]
    fn gather(&mut self, q: Qpn, from: Place, offset: u32, out: &mut [u8]) -> Result<(), Hold> {
        self.read(q, from, offset, out).map_err(Hold::Fault)
    }

    #[inline]
    fn receive(&mut self, q: Qpn) -> Result<Place, Hold> {
        match self.verbs.qps.get_mut(q) {
            Some(qp) => match qp.srq {
                None => qp.recv.take(),
                Some(srq) => self.verbs.take_shared(q, srq),
            },
            None => Err(Hold::Fault(Reason::QpUnknown)),
        }
    }

    #[inline]
    fn receives_posted(&mut self, q: Qpn) -> Option<u32> {
        let qp = self.verbs.qps.get(q).filter(|qp| qp.srq.is_none())?;
        Some(qp.recv.waiting())
    }

    #[inline]
    fn datagram(&mut self, q: Qpn, index: u32) -> Result<Datagram, Reason> {
        self.verbs.datagram(q, index)
    }

    #[inline]
    fn grant(
        &mut self,
        q: Qpn,
        key: RKey,
        va: u64,
        length: u32,
        want: Access,
    ) -> Result<Place, Reason> {
        let qp = self.verbs.qps.get(q).ok_or(Reason::QpUnknown)?;
        let right = match want {
            Access::Read => Right::RemoteRead,
            Access::Write => Right::RemoteWrite,
            Access::Atomic => Right::RemoteAtomic,
        };
        self.verbs.regions.translate(qp.pd, key.0, va, length.into(), right)?;
        Ok(Place { token: Token::Region(key.0).to_bits(), base: va, length })
    }

    #[inline]
    fn scatter(&mut self, q: Qpn, to: Place, offset: u32, bytes: &[u8]) -> Result<(), Hold> {
        self.write(q, to, offset, bytes).map_err(Hold::Fault)
    }

    fn atomic(&mut self, q: Qpn, at: Place, operation: Atomic) -> Result<u64, Hold> {
        self.exchange(q, at, operation).map_err(Hold::Fault)
    }

    fn invalidate(&mut self, q: Qpn, key: RKey) -> Result<(), Reason> {
        let qp = self.verbs.qps.get(q).ok_or(Reason::QpUnknown)?;
        self.verbs.regions.invalidate(qp.pd, key)
    }

    #[inline]
    fn complete(&mut self, q: Qpn, what: Completion) -> Result<(), Reason> {
        let Some(qp) = self.verbs.qps.get_mut(q) else { return Ok(()) };
        let mut entry = WorkCompletion {
            qpn: q,
            status: what.status,
            reason: what.reason,
            ..WorkCompletion::default()
        };
        match what.kind {
            CompletionKind::Work { index, length, .. } => {
                let Some(done) = qp.send.finish(index) else { return Ok(()) };
                if what.status == Status::Success && !(done.signaled || qp.sq_sig_all) {
                    return Ok(());
                }
                entry.wr_id = done.wr_id;
                entry.opcode = done.work.opcode.into();
                entry.byte_len = length;
                let cq = qp.send_cq;
                self.verbs.deliver(cq, entry)
            }
            CompletionKind::Receive {
                place,
                length,
                by_write,
                immediate,
                invalidated,
                solicited,
                source_qpn,
            } => {
                // Without a place none of our entries is concerned (a policy that lets WRITE WITH
                // IMMEDIATE take none): the completion has no name of the program's then.
                if let Some(place) = place {
                    let shared = qp.srq.and_then(|srq| self.verbs.srqs.get_mut(srq.0));
                    let finished = match (Token::from_bits(place.token), shared) {
                        (Token::Receive(index), None) => qp.recv.finish(index),
                        (Token::Shared(slot), Some(queue)) => queue.finish(slot, q),
                        _ => None,
                    };
                    let Some(wr_id) = finished else { return Ok(()) };
                    entry.wr_id = wr_id;
                }
                qp.receive_failed |= what.status != Status::Success;
                entry.opcode = if by_write { WcOpcode::RecvRdmaWithImm } else { WcOpcode::Recv };
                entry.byte_len = length;
                entry.immediate = immediate;
                entry.invalidated = invalidated;
                entry.source_qpn = source_qpn;
                entry.solicited = solicited;
                let cq = qp.recv_cq;
                self.verbs.deliver(cq, entry)
            }
        }
    }

    fn event(&mut self, what: Event) {
        match what {
            Event::QpError { qpn, reason, by_peer } => {
                let told = self.verbs.qps.get(qpn).is_none_or(|qp| qp.receive_failed);
                self.verbs.flush_receives(qpn);
                if self.verbs.qps.get(qpn).is_some_and(|qp| qp.srq.is_some()) {
                    self.verbs.raise(AsyncEvent::LastWqeReached(qpn));
                }
                match AsyncEvent::of_error(qpn, reason, by_peer) {
                    Some(event) if !told => self.verbs.raise(event),
                    _ => {}
                }
            }
            Event::CommunicationEstablished(qpn) => {
                self.verbs.raise(AsyncEvent::CommunicationEstablished(qpn));
            }
            Event::SendQueueDrained(qpn) => {
                self.verbs.raise(AsyncEvent::SendQueueDrained(qpn));
            }
            Event::MulticastJoin(group) => self.verbs.raise_or_cancel(
                AsyncEvent::MulticastJoin(group),
                AsyncEvent::MulticastLeave(group),
            ),
            Event::MulticastLeave(group) => self.verbs.raise_or_cancel(
                AsyncEvent::MulticastLeave(group),
                AsyncEvent::MulticastJoin(group),
            ),
            // A completion tells of the first; the engine counts the others.
            Event::SendQueueError { .. }
            | Event::ReceiverNotReady(_)
            | Event::CongestionMarked(_)
            | Event::CongestionNotified(_) => {}
        }
    }
}

impl<M: Memory> View<'_, M> {
    #[inline]
    fn read(&self, q: Qpn, from: Place, offset: u32, out: &mut [u8]) -> Result<(), Reason> {
        let qp = self.verbs.qps.get(q).ok_or(Reason::QpUnknown)?;
        let regions = &self.verbs.regions;
        match Token::from_bits(from.token) {
            Token::Send(index) => {
                let entry = qp.send.entry(index);
                let range = within(offset, out.len(), entry.work.length)?;
                if entry.inline {
                    out.copy_from_slice(qp.send.inline(index, range));
                    return Ok(());
                }
                for piece in pieces(qp.send.list(index), offset, out.len()) {
                    let address = local(regions, qp.pd, &piece.sge, Right::LocalRead)?;
                    self.memory.read(address + u64::from(piece.within), &mut out[piece.range])?;
                }
                Ok(())
            }
            Token::Region(key) => {
                within(offset, out.len(), from.length)?;
                let (va, len) = (from.base + u64::from(offset), out.len() as u64);
                let address = regions.translate(qp.pd, key, va, len, Right::RemoteRead)?;
                Ok(self.memory.read(address, out)?)
            }
            // Receive buffers are only ever written.
            Token::Receive(_) | Token::Shared(_) => Err(Reason::AccessRights),
        }
    }

    #[inline]
    fn write(&mut self, q: Qpn, to: Place, offset: u32, bytes: &[u8]) -> Result<(), Reason> {
        let qp = self.verbs.qps.get(q).ok_or(Reason::QpUnknown)?;
        let regions = &self.verbs.regions;
        let (pd, list, length) = match Token::from_bits(to.token) {
            Token::Send(index) => (qp.pd, qp.send.list(index), qp.send.entry(index).work.length),
            Token::Receive(index) => {
                let (slots, slot) = (&qp.recv.slots, qp.recv.slot(index));
                (qp.pd, slots.list(slot), slots.capacity(slot))
            }
            Token::Shared(slot) => {
                let queue = qp.srq.and_then(|srq| self.verbs.srqs.get(srq.0));
                let queue = queue.ok_or(Reason::VerbsHandle)?;
                let (list, length) = queue.taken(slot, q).ok_or(Reason::AccessRights)?;
                (queue.pd, list, length)
            }
            Token::Region(key) => {
                within(offset, bytes.len(), to.length)?;
                let (va, len) = (to.base + u64::from(offset), bytes.len() as u64);
                let address = regions.translate(qp.pd, key, va, len, Right::RemoteWrite)?;
                return Ok(self.memory.write(address, bytes)?);
            }
        };
        within(offset, bytes.len(), length)?;
        if list.len() > 1 {
            // All elements are checked before the first is written: a fault writes nothing.
            for piece in pieces(list, offset, bytes.len()) {
                local(regions, pd, &piece.sge, Right::LocalWrite)?;
            }
        }
        for piece in pieces(list, offset, bytes.len()) {
            let address = local(regions, pd, &piece.sge, Right::LocalWrite)?;
            self.memory.write(address + u64::from(piece.within), &bytes[piece.range])?;
        }
        Ok(())
    }

    fn exchange(&mut self, q: Qpn, at: Place, operation: Atomic) -> Result<u64, Reason> {
        let qp = self.verbs.qps.get(q).ok_or(Reason::QpUnknown)?;
        let Token::Region(key) = Token::from_bits(at.token) else {
            return Err(Reason::AccessRights);
        };
        if !at.base.is_multiple_of(8) {
            return Err(Reason::AddressAlignment);
        }
        let regions = &self.verbs.regions;
        let address = regions.translate(qp.pd, key, at.base, 8, Right::RemoteAtomic)?;
        let mut bytes = [0; 8];
        self.memory.read(address, &mut bytes)?;
        let before = u64::from_le_bytes(bytes);
        let after = match operation {
            Atomic::CompareSwap { compare, swap } if before == compare => swap,
            Atomic::CompareSwap { .. } => return Ok(before),
            Atomic::FetchAdd { add } => before.wrapping_add(add),
        };
        self.memory.write(address, &after.to_le_bytes())?;
        Ok(before)
    }
}

impl Verbs {
    /// Adds a completion to its queue, and the events that follow from it.
    #[inline]
    fn deliver(&mut self, cq: Cq, entry: WorkCompletion) -> Result<(), Reason> {
        let Some(queue) = self.cqs.get_mut(cq.0) else { return Ok(()) };
        match queue.push(entry) {
            Pushed::Quietly => Ok(()),
            Pushed::WithEvent => {
                if !core::mem::replace(&mut queue.event_pending, true) {
                    self.cq_events.push_back(cq);
                }
                Ok(())
            }
            Pushed::Overrun => {
                self.raise(AsyncEvent::CqError(cq));
                Err(Reason::CompletionQueueFull)
            }
            Pushed::Dead => Err(Reason::CompletionQueueFull),
        }
    }

    /// Queues an event, unless the same one is waiting already.
    fn raise(&mut self, event: AsyncEvent) {
        if !self.async_events.contains(&event) {
            self.async_events.push_back(event);
        }
    }

    /// Queues an event that undoes another, or takes that one back where nobody has seen it.
    fn raise_or_cancel(&mut self, event: AsyncEvent, opposite: AsyncEvent) {
        match self.async_events.iter().position(|&waiting| waiting == opposite) {
            Some(at) => drop(self.async_events.remove(at)),
            None => self.raise(event),
        }
    }

    /// A queue pair takes a receive of its shared queue.
    #[inline]
    fn take_shared(&mut self, q: Qpn, srq: Srq) -> Result<Place, Hold> {
        let queue = self.srqs.get_mut(srq.0).ok_or(Hold::Fault(Reason::VerbsHandle))?;
        let (place, below_limit) = queue.take(q)?;
        if below_limit {
            self.raise(AsyncEvent::SrqLimitReached(srq));
        }
        Ok(place)
    }

    /// Completes every receive of a queue pair in error, oldest first (rule Q-52). Of a shared queue
    /// only what it has taken is concerned (rule M-07).
    pub(super) fn flush_receives(&mut self, qpn: Qpn) {
        while let Some(qp) = self.qps.get_mut(qpn) {
            let flushed = match qp.srq {
                None => qp.recv.flush(),
                Some(srq) => self.srqs.get_mut(srq.0).and_then(|queue| queue.give_up(qpn)),
            };
            let Some(wr_id) = flushed else { return };
            let cq = qp.recv_cq;
            let entry = WorkCompletion {
                wr_id,
                qpn,
                status: Status::Flushed,
                opcode: WcOpcode::Recv,
                reason: Some(Reason::QpFatal),
                ..WorkCompletion::default()
            };
            // A full queue has said so in its event, and the queue pair is in error already.
            let _ = self.deliver(cq, entry);
        }
    }
}

/// The bus address of a whole element; its key must cover all of it even where only a part is used.
#[inline]
fn local(regions: &Regions, pd: Pd, sge: &Sge, right: Right) -> Result<u64, Reason> {
    match regions.translate(pd, sge.lkey.0, sge.address, sge.length.into(), right) {
        Err(Reason::KeyUnknown) => Err(Reason::WorkKey),
        other => other,
    }
}
