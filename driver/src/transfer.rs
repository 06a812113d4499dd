//! Moving data over a connected queue pair: post, ring, poll, receive, release.
//!
//! Layouts and index arithmetic are in `queue`. Nothing here allocates; it costs one memory write
//! per work request, one register write per ring, and one memory read per poll that finds nothing.

use crate::device::Ernic;
use crate::error::Error;
use crate::platform::{DmaBuffer, Platform};
use crate::qp::{IndexSource, QpNumber, lookup};
use crate::queue::{
    CQE_BYTES, Cqe, INLINE_BYTES, Local, Opcode, Request, WQE_BYTES, advance, check, distance,
    encode_wqe, next,
};
use crate::registers::{self as reg, Register};

/// A finished work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Completion {
    /// The id that was posted.
    pub wrid: u16,
    /// What it did.
    pub opcode: Opcode,
    /// Whether it failed.
    pub failed: bool,
}

/// A message in a receive element. The device does not tell its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// Bus address of the element.
    pub bus: u64,
    /// Its number, from 0.
    pub element: u16,
    /// Bytes of the element: the message is not longer.
    pub len_max: u32,
}

impl<P: Platform> Ernic<P> {
    /// Writes a work request to the send queue and returns its id. The device does not look before
    /// [`Ernic::ring`].
    ///
    /// # Errors
    /// [`Error::Full`], a queue pair that is not connected, or a request that the device does not
    /// support; nothing was written.
    #[inline]
    pub fn post(&mut self, qp: QpNumber, request: &Request<'_>) -> Result<u16, Error> {
        check(request)?;
        let q = lookup(&mut self.qps, qp)?;
        if !q.enabled || q.flushing {
            return Err(Error::QpState { qp, problem: "is not connected; connect_qp first" });
        }
        let capacity = q.sq_depth - 1;
        let in_use = distance(q.completed, u32::from(q.posted), q.sq_depth).unwrap_or(capacity);
        if in_use >= capacity {
            return Err(Error::Full { qp, capacity });
        }
        let mut inline = [0; INLINE_BYTES];
        if request.opcode.is_send() {
            match request.local {
                Local::Inline(bytes) => inline[..bytes.len()].copy_from_slice(bytes),
                // So short a SEND is always taken from the entry.
                Local::Bus { address, len } if len as usize <= INLINE_BYTES => {
                    self.platform.dma_read(address, &mut inline[..len as usize])?;
                }
                Local::Bus { .. } => {}
            }
        }
        let index = next(q.posted, q.sq_depth);
        let slot = usize::from(index - 1);
        let at = q.memory.sq.bus + (slot * WQE_BYTES) as u64;
        self.platform.dma_write(at, &encode_wqe(request, &inline))?;
        q.slots[slot] = Completion { wrid: request.wrid, opcode: request.opcode, failed: false };
        q.posted = index;
        Ok(request.wrid)
    }

    /// Announces everything that was posted since the last ring (SQPI).
    ///
    /// # Errors
    /// The queue pair does not exist.
    #[inline]
    pub fn ring(&mut self, qp: QpNumber) -> Result<(), Error> {
        let q = lookup(&mut self.qps, qp)?;
        if q.rung != q.posted {
            q.rung = q.posted;
            let register = self.map.of_qp(qp, reg::SQPI);
            self.platform.write32(register.offset, u32::from(q.rung));
        }
        Ok(())
    }

    /// Takes finished work requests, oldest first, and returns how many were written to `out`.
    ///
    /// # Errors
    /// The queue pair does not exist, or what the device reports cannot be.
    #[inline]
    pub fn poll_completions(
        &mut self,
        qp: QpNumber,
        out: &mut [Completion],
    ) -> Result<usize, Error> {
        let q = lookup(&mut self.qps, qp)?;
        let register = self.map.of_qp(qp, reg::CQHEAD);
        let word = q.memory.cq_doorbell();
        let head = read_index(&mut self.platform, q.index_source, register, word)?;
        if head == u32::from(q.completed) {
            return Ok(0);
        }
        let announced = distance(q.completed, u32::from(q.rung), q.sq_depth);
        let ready = distance(q.completed, head, q.sq_depth);
        let Some(ready) = ready.filter(|ready| Some(*ready) <= announced) else {
            return Err(Error::RingIndex { qp, register, value: head, depth: q.sq_depth });
        };
        let wanted = usize::from(ready).min(out.len());
        let out = &mut out[..wanted];
        let mut done = 0;
        while done < out.len() {
            // A run of slots that does not wrap.
            let first = usize::from(advance(q.completed, done as u16, q.sq_depth) % q.sq_depth);
            let run = (out.len() - done).min(usize::from(q.sq_depth) - first).min(CQE_RUN);
            let run_out = &mut out[done..done + run];
            run_out.copy_from_slice(&q.slots[first..first + run]);
            if q.cqe_writes {
                let mut bytes = [0; CQE_RUN * CQE_BYTES];
                let bytes = &mut bytes[..run * CQE_BYTES];
                self.platform.dma_read(q.memory.cq.bus + (first * CQE_BYTES) as u64, bytes)?;
                merge_entries(qp, bytes, run_out)?;
            } else {
                // Without entries only this is known: what a flush completes has failed.
                run_out.iter_mut().for_each(|completion| completion.failed = q.flushing);
            }
            done += run;
        }
        q.completed = advance(q.completed, done as u16, q.sq_depth);
        Ok(done)
    }

    /// Takes the next received message, if there is one. Its element stays the caller's until
    /// [`Ernic::release_receive`].
    ///
    /// # Errors
    /// The queue pair does not exist, or what the device reports cannot be.
    #[inline]
    pub fn poll_receive(&mut self, qp: QpNumber) -> Result<Option<Received>, Error> {
        let q = lookup(&mut self.qps, qp)?;
        if q.taken == q.produced {
            let register = self.map.of_qp(qp, reg::STATRQPIDB);
            let word = q.memory.rq_doorbell();
            let value = read_index(&mut self.platform, q.index_source, register, word)?;
            let room = q.rq_depth - q.held;
            match distance(q.produced, value, q.rq_depth) {
                Some(0) => return Ok(None),
                Some(new) if new <= room => q.produced = value as u16,
                _ => {
                    return Err(Error::RingIndex { qp, register, value, depth: q.rq_depth });
                }
            }
        }
        q.taken = next(q.taken, q.rq_depth);
        q.held += 1;
        let element = q.taken - 1;
        let at = u64::from(element) * u64::from(q.element_len);
        Ok(Some(Received { bus: q.memory.rq.bus + at, element, len_max: q.element_len }))
    }

    /// Where the elements of the receive queue are, one after the other.
    ///
    /// # Errors
    /// The queue pair does not exist.
    pub fn receive_elements(&mut self, qp: QpNumber) -> Result<DmaBuffer, Error> {
        Ok(self.queue_pair(qp)?.memory.rq)
    }

    /// Gives the `count` oldest taken elements back to the device (RQCI, written once).
    ///
    /// # Errors
    /// Fewer elements are taken.
    #[inline]
    pub fn release_receive(&mut self, qp: QpNumber, count: u16) -> Result<(), Error> {
        let q = lookup(&mut self.qps, qp)?;
        if count > q.held {
            return Err(Error::NotTaken { qp, taken: q.held });
        }
        if count > 0 {
            q.held -= count;
            q.released = advance(q.released, count, q.rq_depth);
            let register = self.map.of_qp(qp, reg::RQCI);
            self.platform.write32(register.offset, u32::from(q.released));
        }
        Ok(())
    }
}

#[inline]
fn read_index(
    platform: &mut impl Platform,
    source: IndexSource,
    register: Register,
    word: u64,
) -> Result<u32, Error> {
    match source {
        IndexSource::Memory => {
            let mut bytes = [0; 4];
            platform.dma_read(word, &mut bytes)?;
            Ok(u32::from_le_bytes(bytes))
        }
        IndexSource::Registers => Ok(platform.read32(register.offset) & 0xFFFF),
    }
}

/// Takes the error flags from completion queue entries, and checks that they are the right ones.
fn merge_entries(qp: QpNumber, entries: &[u8], out: &mut [Completion]) -> Result<(), Error> {
    for (completion, bytes) in out.iter_mut().zip(entries.as_chunks().0) {
        let entry = Cqe::decode(*bytes);
        if entry.wrid != completion.wrid {
            let (found, posted) = (entry.wrid, completion.wrid);
            return Err(Error::CompletionMismatch { qp, found, posted });
        }
        completion.failed = entry.failed;
    }
    Ok(())
}

/// Completion queue entries read at once.
const CQE_RUN: usize = 64;
