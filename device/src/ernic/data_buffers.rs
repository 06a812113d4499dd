//! The retry data buffers (DATBUF): the bytes of a WRITE are kept here until the peer has acknowledged
//! them, and are sent again from here. All queue pairs share them.
//!
//! Chosen: each packet takes as many buffers as its payload needs; a packet that finds too few waits, and
//! the one after which a full packet would find too few asks for an acknowledgement, so that there always
//! is one on the way. Without buffers (as after reset) a WRITE is read from software's own memory again.
//! Knows no packets; memory comes as an argument.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use softrnic_engine::{Hold, Reason};

use crate::memory::{DmaFault, Memory};

/// Payload of a packet at most.
const PAYLOAD_MAX: u32 = 4096;
const NONE: u16 = u16::MAX;

/// All buffers, and who holds them.
#[derive(Clone, Debug)]
pub(super) struct DataBuffers {
    base: u64,
    buffer_len: u32,
    /// One for each buffer.
    chunks: Vec<Chunk>,
    free: Vec<u16>,
    /// By queue pair number.
    held: Box<[Held]>,
    /// Queue pairs whose next packet found too few buffers, the longest wait first.
    waiting: VecDeque<u16>,
    /// Buffers have become free, or queue pairs gone, since those that wait were told.
    released: bool,
    ask: bool,
}

/// What a buffer holds: part of a work request's data. A list for each queue pair, oldest first.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    next: u16,
    index: u32,
    offset: u32,
}

/// The first and the last buffer of a queue pair.
#[derive(Clone, Copy, Debug)]
struct Held {
    oldest: u16,
    newest: u16,
    waits: bool,
}

/// Bytes that are kept here for each queue pair.
pub(super) const QUEUE_PAIR_LEN: usize = size_of::<Held>();

impl Held {
    const NOTHING: Self = Self { oldest: NONE, newest: NONE, waits: false };
}

impl DataBuffers {
    pub(super) fn new(num_qp: usize) -> Self {
        Self {
            base: 0,
            buffer_len: 0,
            chunks: Vec::new(),
            free: Vec::new(),
            held: vec![Held::NOTHING; num_qp].into_boxed_slice(),
            waiting: VecDeque::with_capacity(num_qp),
            released: false,
            ask: false,
        }
    }

    /// Software has written DATBUFBA or DATBUFSZ: all buffers are free, and what was in them is read
    /// from where it came from.
    pub(super) fn configure(&mut self, base: u64, count: u16, buffer_len: u16) {
        self.base = base;
        self.buffer_len = buffer_len.into();
        let count = if buffer_len == 0 { 0 } else { count };
        self.chunks = vec![Chunk { next: NONE, index: 0, offset: 0 }; count.into()];
        self.free = (0..count).rev().collect();
        for held in &mut self.held {
            (held.oldest, held.newest) = (NONE, NONE);
        }
        self.released = true;
    }

    /// As after power-on.
    pub(super) fn reset(&mut self) {
        self.configure(0, 0, 0);
        while self.take_released().is_some() {}
    }

    /// Whether a packet waits because the buffers are used up.
    pub(super) fn used_up(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Buffers that are free.
    #[cfg(test)]
    fn free(&self) -> usize {
        self.free.len()
    }

    /// Gets a packet's bytes: the first time from `source`, and keeps them; later from what was kept.
    #[inline]
    pub(super) fn gather(
        &mut self,
        q: u16,
        (index, offset): (u32, u32),
        source: u64,
        out: &mut [u8],
        memory: &mut impl Memory,
    ) -> Result<(), Hold> {
        if self.chunks.is_empty() {
            return memory.read(source, out).map_err(fault);
        }
        let newest = self.held[usize::from(q)].newest;
        if newest == NONE || is_before(self.chunks[usize::from(newest)], index, offset) {
            self.keep(q, (index, offset), source, out, memory)
        } else {
            self.again(q, (index, offset), source, out, memory)
        }
    }

    fn keep(
        &mut self,
        q: u16,
        (index, offset): (u32, u32),
        source: u64,
        out: &mut [u8],
        memory: &mut impl Memory,
    ) -> Result<(), Hold> {
        let len = self.buffer_len as usize;
        let need = out.len().div_ceil(len);
        if need > self.chunks.len() {
            return Err(Hold::Fault(Reason::RetryBuffersTooSmall));
        }
        if need > self.free.len() {
            let held = &mut self.held[usize::from(q)];
            if !core::mem::replace(&mut held.waits, true) {
                self.waiting.push_back(q);
            }
            return Err(Hold::Stall);
        }
        memory.read(source, out).map_err(fault)?;
        for (bytes, &buffer) in out.chunks(len).zip(self.free.iter().rev()) {
            memory.write(self.address(buffer), bytes).map_err(fault)?;
        }
        for k in 0..need {
            let Some(buffer) = self.free.pop() else { break };
            let offset = offset + (k * len) as u32;
            self.chunks[usize::from(buffer)] = Chunk { next: NONE, index, offset };
            let held = &mut self.held[usize::from(q)];
            if held.newest == NONE {
                held.oldest = buffer;
            } else {
                self.chunks[usize::from(held.newest)].next = buffer;
            }
            held.newest = buffer;
        }
        self.ask = self.free.len() < PAYLOAD_MAX.div_ceil(self.buffer_len) as usize;
        Ok(())
    }

    #[cold]
    fn again(
        &mut self,
        q: u16,
        (index, offset): (u32, u32),
        source: u64,
        out: &mut [u8],
        memory: &mut impl Memory,
    ) -> Result<(), Hold> {
        let mut buffer = self.held[usize::from(q)].oldest;
        while buffer != NONE && is_before(self.chunks[usize::from(buffer)], index, offset) {
            buffer = self.chunks[usize::from(buffer)].next;
        }
        for (k, bytes) in out.chunks_mut(self.buffer_len as usize).enumerate() {
            let at = offset + k as u32 * self.buffer_len;
            let kept = self.chunks.get(usize::from(buffer)).copied();
            let kept = kept.filter(|chunk| (chunk.index, chunk.offset) == (index, at));
            // The buffers were given to another place meanwhile.
            let address = match kept {
                Some(_) => self.address(buffer),
                None => source.wrapping_add(u64::from(at - offset)),
            };
            memory.read(address, bytes).map_err(fault)?;
            buffer = kept.map_or(NONE, |chunk| chunk.next);
        }
        Ok(())
    }

    const fn address(&self, buffer: u16) -> u64 {
        self.base.wrapping_add(buffer as u64 * self.buffer_len as u64)
    }

    /// The peer has everything of entry `index` before `bytes`, and all earlier entries.
    #[inline]
    pub(super) fn acknowledged(&mut self, q: u16, index: u32, bytes: u32) {
        let mut oldest = self.held[usize::from(q)].oldest;
        while oldest != NONE && is_before(self.chunks[usize::from(oldest)], index, bytes) {
            self.free.push(oldest);
            oldest = self.chunks[usize::from(oldest)].next;
            self.released = true;
        }
        let held = &mut self.held[usize::from(q)];
        held.oldest = oldest;
        if oldest == NONE {
            held.newest = NONE;
        }
    }

    /// The queue pair starts again or has failed: it keeps and waits for nothing.
    pub(super) fn release(&mut self, q: u16) {
        let mut oldest = self.held[usize::from(q)].oldest;
        while oldest != NONE {
            self.free.push(oldest);
            oldest = self.chunks[usize::from(oldest)].next;
        }
        if self.held[usize::from(q)].waits {
            self.waiting.retain(|&waiting| waiting != q);
        }
        self.held[usize::from(q)] = Held::NOTHING;
        self.released = true;
    }

    /// The next queue pair that should try again.
    #[inline(always)]
    pub(super) fn take_released(&mut self) -> Option<u16> {
        if self.released { self.next_released() } else { None }
    }

    fn next_released(&mut self) -> Option<u16> {
        let next = self.waiting.pop_front();
        match next {
            Some(q) => self.held[usize::from(q)].waits = false,
            None => self.released = false,
        }
        next
    }

    /// Whether the packet whose bytes were got last must ask for an acknowledgement.
    #[inline(always)]
    pub(super) const fn take_ask(&mut self) -> bool {
        core::mem::replace(&mut self.ask, false)
    }
}

fn fault(fault: DmaFault) -> Hold {
    Hold::Fault(fault.into())
}

/// Whether a chunk is of an earlier entry, or of this one and before `offset`.
const fn is_before(chunk: Chunk, index: u32, offset: u32) -> bool {
    let distance = chunk.index.wrapping_sub(index) as i32;
    distance < 0 || (distance == 0 && chunk.offset < offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Ram;

    const BASE: u64 = 0x8000;

    fn buffers(count: u16, len: u16) -> (DataBuffers, Ram) {
        let mut buffers = DataBuffers::new(8);
        buffers.configure(BASE, count, len);
        assert_eq!(buffers.take_released(), None);
        let mut ram = Ram::new(0, 0x1_0000);
        ram.write(0, &[7; 0x4000]).unwrap();
        (buffers, ram)
    }

    #[test]
    fn what_was_kept_is_sent_again_even_if_the_source_has_changed() {
        let (mut buffers, mut ram) = buffers(4, 64);
        let mut out = [0; 100];
        buffers.gather(2, (0, 0), 0x100, &mut out, &mut ram).unwrap();
        ram.write(0x100, &[9; 200]).unwrap();
        out.fill(0);
        buffers.gather(2, (0, 0), 0x100, &mut out, &mut ram).unwrap();
        assert_eq!(out, [7; 100]);
        assert_eq!(buffers.free(), 2);
        assert!(buffers.take_ask(), "4 KiB would not fit");
        buffers.acknowledged(2, 0, 100);
        assert_eq!(buffers.free(), 4);
        buffers.gather(2, (1, 0), 0x100, &mut out, &mut ram).unwrap();
        assert_eq!(out, [9; 100]);
    }

    #[test]
    fn who_finds_too_few_waits_until_some_are_free() {
        let (mut buffers, mut ram) = buffers(2, 64);
        let mut out = [0; 64];
        for offset in [0, 64] {
            buffers.gather(2, (0, offset), 0, &mut out, &mut ram).unwrap();
        }
        for _ in 0..2 {
            let held = buffers.gather(3, (0, 0), 0, &mut out, &mut ram);
            assert_eq!(held, Err(Hold::Stall));
        }
        assert!(buffers.used_up());
        assert_eq!(buffers.take_released(), None);
        buffers.acknowledged(2, 0, 64);
        assert_eq!(buffers.take_released(), Some(3));
        assert_eq!(buffers.take_released(), None);
        buffers.gather(3, (0, 0), 0, &mut out, &mut ram).unwrap();
        let never = buffers.gather(3, (1, 0), 0, &mut [0; 200], &mut ram);
        assert_eq!(never, Err(Hold::Fault(Reason::RetryBuffersTooSmall)));
        buffers.release(2);
        buffers.release(3);
        assert_eq!(buffers.free(), 2);
        assert!(!buffers.used_up());
    }

    #[test]
    fn entry_numbers_wrap() {
        let (mut buffers, mut ram) = buffers(4, 4096);
        let mut out = [0; 64];
        for index in [u32::MAX, 0, 1] {
            buffers.gather(2, (index, 0), 0, &mut out, &mut ram).unwrap();
        }
        buffers.acknowledged(2, 0, 64);
        assert_eq!(buffers.free(), 3);
    }
}
