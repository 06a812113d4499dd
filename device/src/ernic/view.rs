//! What the engine asks this face for, and what it tells it: the short-lived view of one call.
//!
//! Choices that the chapter leaves open: an entry, a completion or a doorbell whose bus address is
//! not memory makes the queue pair fatal, and the reason is counted; after a fatal error only the
//! failing entry completes, with the error flag, and the rest waits for QPCONF\[6\].

use softrnic_engine::{
    Access, Completion, CompletionKind, Event, Face, Fetch, Hold, Place, Qpn, RKey, Reason, Status,
    Work, WorkOpcode,
};
use zerocopy::{FromZeros, IntoBytes};

use super::queues::{
    CQ_INTERRUPT, CQE_LEN, CQE_WRITE, HANDSHAKE_OFF, INLINE_LEN_MAX, RQ_INTERRUPT, SDATA_OFFSET,
    Wqe, next_index, opcode,
};
use super::registers::Register;
use super::status::{CNP, COMPLETION, ILLEGAL_OPCODE, MAD, RECEIVE, RNR_NAK};
use super::{Ernic, SIDE_BAND_LEN, STATQP_RQ_OVERFLOW};
use crate::memory::Memory;

/// Longest message (PG332, unsupported features): 8 MiB.
pub(super) const MESSAGE_LEN_MAX: u32 = 8 << 20;
/// Addresses and lengths of WRITEs and READs, where peers are held to it (PG332, unsupported features).
const ALIGNMENT: u64 = 64;
/// Error flag of a completion queue entry.
const CQE_ERROR: u32 = 1 << 24;
/// The queue pair of management datagrams.
const QP1: u32 = 1;

/// Tokens of places: software's own buffers, those of WRITEs with the entry's index in the low half, and
/// regions with their R_Key there.
const OWN: u64 = 0;
const OF_WRITE: u64 = 1 << 62;
const REGION: u64 = 1 << 63;

/// Registers, tables and memory for one engine call.
#[derive(Debug)]
pub struct View<'a, M> {
    pub(super) ernic: &'a mut Ernic,
    pub(super) memory: &'a mut M,
}

impl<M: Memory> Face for View<'_, M> {
    #[inline(always)]
    fn work(&mut self, q: Qpn, index: u32) -> Fetch {
        let Some(qp) = self.ernic.qps.get_mut(q.get() as usize) else { return Fetch::Empty };
        if index == qp.posted {
            return Fetch::Empty;
        }
        let (address, ticket_slot) = qp.fetch(index);
        let mut wqe = Wqe::new_zeroed();
        let read = self.memory.read(address, wqe.as_mut_bytes());
        qp.set_ticket(ticket_slot, wqe.ticket());
        self.ernic.status.work_count = self.ernic.status.work_count.wrapping_add(1);
        self.ernic.status.arbitrated_qp = q.get() as u16;
        if read.is_err() {
            return Fetch::Bad(Status::LocalQpOperation, Reason::DmaAddress);
        }
        let Some(opcode) = work_opcode(q, wqe.opcode) else {
            self.ernic.status.raise(ILLEGAL_OPCODE);
            return Fetch::Bad(Status::LocalQpOperation, Reason::WorkOpcodeIllegal);
        };
        let length = wqe.length.get();
        if length > MESSAGE_LEN_MAX {
            return Fetch::Bad(Status::LocalLength, Reason::WorkLength);
        }
        if length == 0 && is_send(opcode) {
            return Fetch::Bad(Status::LocalLength, Reason::MessageEmpty);
        }
        let inline = length <= INLINE_LEN_MAX && is_send(opcode);
        let token = match opcode {
            WorkOpcode::Write | WorkOpcode::WriteImm => OF_WRITE | u64::from(index),
            _ => OWN,
        };
        let base = if inline { address.wrapping_add(SDATA_OFFSET) } else { wqe.laddr.get() };
        Fetch::Work(Work {
            opcode,
            length,
            local: Place { token, base, length },
            remote_va: wqe.roffset.get(),
            rkey: RKey(wqe.rtag.get()),
            immediate: wqe.immdt.get(),
            ..Work::default()
        })
    }

    #[inline(always)]
    fn gather(&mut self, q: Qpn, from: Place, offset: u32, out: &mut [u8]) -> Result<(), Hold> {
        let address = self.address(from, offset, out.len())?;
        if from.token & OF_WRITE != 0 {
            let part = (from.token as u32, offset);
            let buffers = &mut self.ernic.data_buffers;
            return buffers.gather(q.get() as u16, part, address, out, self.memory);
        }
        self.memory.read(address, out).map_err(|fault| Hold::Fault(fault.into()))
    }

    #[inline(always)]
    fn receive(&mut self, q: Qpn) -> Result<Place, Hold> {
        let Some(qp) = self.ernic.qps.get_mut(q.get() as usize) else { return Err(Hold::Stall) };
        if !qp.rq_has_room() {
            return Err(Hold::Stall);
        }
        *qp.word_mut(Register::Statqp) &= !STATQP_RQ_OVERFLOW;
        Ok(Place { token: OWN, base: qp.rq_buffer_address(), length: qp.rq_buffer_len() })
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
        let qp = self.ernic.qps.get(q.get() as usize).ok_or(Reason::QpUnknown)?;
        let pd = qp.word(Register::Pd);
        let base = self.ernic.regions.lookup(key, pd, va, length, want)?;
        // AMD's own examples use any virtual address, so the rule must be about the bus address.
        let odd = !base.is_multiple_of(ALIGNMENT) || !u64::from(length).is_multiple_of(ALIGNMENT);
        if self.ernic.strict_alignment && odd {
            return Err(Reason::AddressAlignment);
        }
        Ok(Place { token: REGION | u64::from(key.0), base, length })
    }

    #[inline(always)]
    fn scatter(&mut self, _: Qpn, to: Place, offset: u32, bytes: &[u8]) -> Result<(), Hold> {
        let address = self.address(to, offset, bytes.len())?;
        self.memory.write(address, bytes).map_err(|fault| Hold::Fault(fault.into()))
    }

    #[inline(always)]
    fn acknowledged(&mut self, q: Qpn, index: u32) {
        self.ernic.data_buffers.acknowledged(q.get() as u16, index.wrapping_add(1), 0);
    }

    #[inline(always)]
    fn acknowledged_part(&mut self, q: Qpn, index: u32, bytes: u32) {
        self.ernic.data_buffers.acknowledged(q.get() as u16, index, bytes);
    }

    #[inline(always)]
    fn wants_acknowledgement(&mut self) -> bool {
        self.ernic.data_buffers.take_ask()
    }

    #[inline(always)]
    fn released(&mut self) -> Option<Qpn> {
        self.ernic.data_buffers.take_released().map(|q| Qpn::new(q.into()))
    }

    #[inline(always)]
    fn complete(&mut self, q: Qpn, what: Completion) -> Result<(), Reason> {
        match what.kind {
            // These wait for recovery, which reads the queue itself.
            CompletionKind::Work { .. } if what.status == Status::Flushed => Ok(()),
            CompletionKind::Work { index, .. } => {
                let Some(qp) = self.ernic.qps.get(q.get() as usize) else { return Ok(()) };
                let error = if what.status == Status::Success { 0 } else { CQE_ERROR };
                let cqe = match qp.ticket(index) {
                    Some(ticket) => ticket | error,
                    // It was held back for so long that newer work has taken its place.
                    None => self.oldest_ticket(q)? | error,
                };
                self.retire(q, cqe)
            }
            CompletionKind::Receive { .. } if what.status != Status::Success => Ok(()),
            CompletionKind::Receive { place, by_write, immediate, invalidated, .. } => {
                if place.is_some() && !by_write {
                    self.message_arrived(q)?;
                }
                match (immediate, invalidated) {
                    (Some(data), _) => self.side_band(q, if by_write { 3 } else { 2 }, data),
                    (None, Some(key)) => self.side_band(q, 1, key.0),
                    (None, None) => {}
                }
                Ok(())
            }
        }
    }

    /// QP1's software reads whole frames, from the Ethernet header to the ICRC.
    fn receive_frame(&mut self, q: Qpn, frame: &[u8]) -> Result<(), Hold> {
        let place = self.receive(q)?;
        if frame.len() > place.length as usize {
            return Err(Hold::Fault(Reason::ReceiveTooSmall));
        }
        self.scatter(q, place, 0, frame)?;
        self.message_arrived(q).map_err(Hold::Fault)?;
        self.ernic.status.raise(MAD);
        Ok(())
    }

    fn event(&mut self, what: Event) {
        match what {
            Event::ReceiverNotReady(q) => {
                self.ernic.status.raise(RNR_NAK);
                if let Some(qp) = self.ernic.qps.get_mut(q.get() as usize) {
                    *qp.word_mut(Register::Statqp) |= STATQP_RQ_OVERFLOW;
                }
            }
            Event::QpError { qpn, reason, by_peer } => self.fatal(qpn, reason, by_peer),
            Event::CongestionMarked(q) => {
                self.ernic.status.cnp_bank.set(q);
                self.ernic.status.raise(CNP);
            }
            // Counted with the packet, or not for this device's services; no register tells of these.
            Event::CommunicationEstablished(_)
            | Event::CongestionNotified(_)
            | Event::SendQueueError { .. }
            | Event::SendQueueDrained(_)
            | Event::MulticastJoin(_)
            | Event::MulticastLeave(_) => {}
        }
    }
}

impl<M: Memory> View<'_, M> {
    /// Bus address of `len` bytes at an offset of a place. A region's key is looked at again, since
    /// software may have taken the region away.
    #[inline(always)]
    fn address(&self, place: Place, offset: u32, len: usize) -> Result<u64, Hold> {
        if place.token & REGION != 0 {
            self.ernic.regions.still_there(RKey(place.token as u32)).map_err(Hold::Fault)?;
        }
        if u64::from(offset) + len as u64 > u64::from(place.length) {
            return Err(Hold::Fault(Reason::AddressRange));
        }
        Ok(place.base.wrapping_add(offset.into()))
    }

    /// The oldest entry of the send queue is done: completion queue entry, CQHEAD, doorbell
    /// write-back and interrupt, in this order.
    #[inline(always)]
    pub(super) fn retire(&mut self, q: Qpn, cqe: u32) -> Result<(), Reason> {
        let Some(qp) = self.ernic.qps.get_mut(q.get() as usize) else { return Ok(()) };
        let head = next_index(qp.word(Register::Cqhead), qp.sq_depth());
        if qp.is_set(CQE_WRITE) {
            let base = qp.address(Register::Cqba, Register::Cqbamsb);
            let address = base.wrapping_add(u64::from(head - 1) * CQE_LEN);
            self.memory.write_u32(address, cqe)?;
        }
        *qp.word_mut(Register::Cqhead) = head;
        qp.completed = qp.completed.wrapping_add(1);
        let doorbell = qp.address(Register::Cqdbadd, Register::Cqdbaddmsb);
        if !qp.is_set(HANDSHAKE_OFF) {
            self.ernic.ports.completed(q);
        } else if doorbell != 0 {
            self.memory.write_u32(doorbell, head)?;
        }
        if qp.is_set(CQ_INTERRUPT) {
            self.ernic.status.completion_bank.set(q);
            self.ernic.status.raise(COMPLETION);
        }
        Ok(())
    }

    /// Completes whatever is in the send queue with the error flag, so that recovery, which waits for
    /// CQHEAD to reach SQPI, goes on. An entry that cannot be read completes with identifier 0.
    pub(super) fn flush(&mut self, q: Qpn) {
        while let Some(qp) = self.ernic.qps.get(q.get() as usize)
            && qp.completed != qp.posted
        {
            let completed = qp.completed;
            let ticket = self.oldest_ticket(q);
            let retired = self.retire(q, ticket.unwrap_or(0) | CQE_ERROR);
            if let Some(reason) = ticket.and(retired).err() {
                self.ernic.faults[reason as usize] += 1;
            }
            // An entry of the completion queue that cannot be written must not end recovery.
            if let Some(qp) = self.ernic.qps.get_mut(q.get() as usize)
                && qp.completed == completed
            {
                *qp.word_mut(Register::Cqhead) =
                    next_index(qp.word(Register::Cqhead), qp.sq_depth());
                qp.completed = completed.wrapping_add(1);
            }
        }
    }

    /// What a completion says of the oldest entry that is not complete, from the entry itself.
    fn oldest_ticket(&self, q: Qpn) -> Result<u32, Reason> {
        let qp = self.ernic.qps.get(q.get() as usize).ok_or(Reason::QpUnknown)?;
        let mut wqe = Wqe::new_zeroed();
        let base = qp.address(Register::Sqba, Register::Sqbamsb);
        let address = base.wrapping_add(qp.oldest_slot() * size_of::<Wqe>() as u64);
        self.memory.read(address, wqe.as_mut_bytes())?;
        Ok(wqe.ticket())
    }

    /// A receive buffer holds a message: STATRQPIDB, doorbell write-back and interrupt, in this order.
    #[inline(always)]
    fn message_arrived(&mut self, q: Qpn) -> Result<(), Reason> {
        let Some(qp) = self.ernic.qps.get_mut(q.get() as usize) else { return Ok(()) };
        let producer = next_index(qp.word(Register::Statrqpidb), qp.rq_depth());
        *qp.word_mut(Register::Statrqpidb) = producer;
        let doorbell = qp.address(Register::Rqwptrdbadd, Register::Rqwptrdbaddmsb);
        if !qp.is_set(HANDSHAKE_OFF) {
            self.ernic.ports.received(q, producer);
        } else if doorbell != 0 {
            self.memory.write_u32(doorbell, producer)?;
        }
        if qp.is_set(RQ_INTERRUPT) {
            self.ernic.status.receive_bank.set(q);
            self.ernic.status.raise(RECEIVE);
        }
        Ok(())
    }

    /// Queues an entry for [`Ernic::take_side_band`]. Where nobody takes any, the newest is lost.
    fn side_band(&mut self, q: Qpn, kind: u64, data: u32) {
        if self.ernic.side_band.len() == SIDE_BAND_LEN {
            self.ernic.side_band_lost += 1;
            return;
        }
        let producer =
            self.ernic.qps.get(q.get() as usize).map_or(0, |qp| qp.word(Register::Statrqpidb));
        let number = u64::from(q.get());
        self.ernic.side_band.push_back(
            u64::from(data)
                | kind << 32
                | (number >> 8 & 7) << 36
                | (number & 0xFF) << 40
                | u64::from(producer) << 48,
        );
    }
}

/// What an entry's opcode means. QP1 sends frames that software built, and nothing else.
#[inline]
const fn work_opcode(q: Qpn, value: u8) -> Option<WorkOpcode> {
    Some(match value {
        opcode::SEND if q.get() == QP1 => WorkOpcode::RawFrame,
        _ if q.get() == QP1 => return None,
        opcode::WRITE => WorkOpcode::Write,
        opcode::WRITE_IMM => WorkOpcode::WriteImm,
        opcode::SEND => WorkOpcode::Send,
        opcode::SEND_IMM => WorkOpcode::SendImm,
        opcode::READ => WorkOpcode::Read,
        opcode::SEND_INV => WorkOpcode::SendInv,
        _ => return None,
    })
}

const fn is_send(opcode: WorkOpcode) -> bool {
    matches!(opcode, WorkOpcode::Send | WorkOpcode::SendImm | WorkOpcode::SendInv)
}
