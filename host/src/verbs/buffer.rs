//! Memory that programs and the NIC share: [`Buffer`], which both sides keep alive, and [`SharedMemory`], the bus
//! addresses of all of them.
//!
//! Bytes live in atomic words, so that both sides may touch them at the same time without `unsafe`: what is read
//! then is old or new, byte by byte, and never undefined. Knows no key and no queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use softrnic_device::{DmaFault, Memory};

use super::error::Error;

/// Bytes of a word.
const WORD: usize = 8;
/// Chosen: where bus addresses begin; far from 0, so that a small number is never one by accident.
const FIRST_ADDRESS: u64 = 0x1000_0000;
/// Buffers begin at pages, and a page that belongs to nobody stands between two of them.
const PAGE: u64 = 4096;

/// Memory for messages. A clone is the same memory.
#[derive(Clone, Debug)]
pub struct Buffer(Arc<Storage>);

#[derive(Debug)]
struct Storage {
    words: Box<[AtomicU64]>,
    len: usize,
}

impl Buffer {
    /// `len` zero bytes.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn new(len: usize) -> Result<Self, Error> {
        let count = len.div_ceil(WORD);
        let mut words = Vec::new();
        words.try_reserve_exact(count).map_err(|_| Error::OutOfMemory(len))?;
        words.resize_with(count, AtomicU64::default);
        Ok(Self(Arc::new(Storage { words: words.into_boxed_slice(), len })))
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Copies from the buffer. What the NIC wrote before a completion that was polled, or before a byte that
    /// was read, is seen.
    ///
    /// # Errors
    /// The range leaves the buffer; `out` is unchanged.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        self.check(offset, out.len())?;
        self.0.read(offset, out);
        Ok(())
    }

    /// Copies to the buffer. Work that is posted afterwards sends these bytes.
    ///
    /// # Errors
    /// The range leaves the buffer, which is unchanged.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.check(offset, bytes.len())?;
        self.0.write(offset, bytes);
        Ok(())
    }

    /// One byte.
    ///
    /// # Errors
    /// It is outside.
    pub fn byte(&self, offset: usize) -> Result<u8, Error> {
        let mut byte = [0];
        self.read(offset, &mut byte)?;
        Ok(byte[0])
    }

    /// The aligned word at an offset, read at once: what atomics work on, in this machine's byte order on
    /// little-endian machines.
    ///
    /// # Errors
    /// It is outside, or `offset` is no multiple of 8.
    pub fn load_u64(&self, offset: usize) -> Result<u64, Error> {
        Ok(u64::from_le(self.word(offset)?.load(Ordering::Acquire)))
    }

    /// Writes the aligned word at an offset at once.
    ///
    /// # Errors
    /// As [`Buffer::load_u64`].
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), Error> {
        self.word(offset)?.store(value.to_le(), Ordering::Release);
        Ok(())
    }

    fn word(&self, offset: usize) -> Result<&AtomicU64, Error> {
        self.check(offset, WORD)?;
        if !offset.is_multiple_of(WORD) {
            return Err(Error::Misaligned(offset));
        }
        Ok(&self.0.words[offset / WORD])
    }

    fn check(&self, offset: usize, len: usize) -> Result<(), Error> {
        match offset.checked_add(len) {
            Some(end) if end <= self.0.len => Ok(()),
            _ => Err(Error::OutsideBuffer { offset, len, size: self.0.len }),
        }
    }
}

impl Storage {
    /// Copies a range that is known to be inside.
    #[inline]
    fn read(&self, offset: usize, out: &mut [u8]) {
        let (mut at, skip) = (offset / WORD, offset % WORD);
        let head = if skip == 0 { 0 } else { (WORD - skip).min(out.len()) };
        let (head, rest) = out.split_at_mut(head);
        if !head.is_empty() {
            head.copy_from_slice(&self.bytes_of(at)[skip..skip + head.len()]);
            at += 1;
        }
        let count = rest.len() / WORD;
        let mut whole = rest.chunks_exact_mut(WORD);
        for (to, from) in (&mut whole).zip(&self.words[at..at + count]) {
            to.copy_from_slice(&from.load(Ordering::Relaxed).to_ne_bytes());
        }
        let tail = whole.into_remainder();
        if !tail.is_empty() {
            tail.copy_from_slice(&self.bytes_of(at + count)[..tail.len()]);
        }
        // Whoever reads a byte that announces others sees those.
        fence(Ordering::Acquire);
    }

    /// Copies to a range that is known to be inside.
    #[inline]
    fn write(&self, offset: usize, bytes: &[u8]) {
        // Whoever sees a byte of these sees what was written earlier.
        fence(Ordering::Release);
        let (mut at, skip) = (offset / WORD, offset % WORD);
        let head = if skip == 0 { 0 } else { (WORD - skip).min(bytes.len()) };
        let (head, rest) = bytes.split_at(head);
        if !head.is_empty() {
            self.merge(at, skip, head);
            at += 1;
        }
        let count = rest.len() / WORD;
        let whole = rest.chunks_exact(WORD);
        let tail = whole.remainder();
        for (from, to) in whole.zip(&self.words[at..at + count]) {
            let mut word = [0; WORD];
            word.copy_from_slice(from);
            // The last byte of a message may be what a program waits for.
            to.store(u64::from_ne_bytes(word), Ordering::Release);
        }
        if !tail.is_empty() {
            self.merge(at + count, 0, tail);
        }
    }

    fn bytes_of(&self, at: usize) -> [u8; WORD] {
        self.words[at].load(Ordering::Relaxed).to_ne_bytes()
    }

    /// Replaces a part of a word; what somebody else does to its other bytes meanwhile is not lost.
    fn merge(&self, at: usize, skip: usize, bytes: &[u8]) {
        let word = &self.words[at];
        let mut old = word.load(Ordering::Relaxed);
        loop {
            let mut new = old.to_ne_bytes();
            new[skip..skip + bytes.len()].copy_from_slice(bytes);
            let new = u64::from_ne_bytes(new);
            match word.compare_exchange_weak(old, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) => old = other,
            }
        }
    }
}

/// A buffer at its bus address.
#[derive(Debug)]
struct Mapping {
    start: u64,
    buffer: Buffer,
}

/// Every buffer that the NIC can reach, by bus address. It keeps them alive: a program may forget its handle.
#[derive(Debug)]
pub struct SharedMemory {
    /// In the order of addresses, which is that of registration: no address is given twice.
    mappings: Vec<Mapping>,
    next: u64,
}

impl Default for SharedMemory {
    fn default() -> Self {
        Self { mappings: Vec::new(), next: FIRST_ADDRESS }
    }
}

impl SharedMemory {
    /// Makes a buffer reachable; its bus address.
    pub(super) fn map(&mut self, buffer: Buffer) -> u64 {
        let start = self.next;
        self.next = start + (buffer.len() as u64).next_multiple_of(PAGE) + PAGE;
        self.mappings.push(Mapping { start, buffer });
        start
    }

    /// Lets go of the buffer at a bus address.
    pub(super) fn unmap(&mut self, start: u64) {
        self.mappings.retain(|mapping| mapping.start != start);
    }

    /// The storage of a range, and where it begins there.
    #[inline]
    fn find(&self, address: u64, len: usize) -> Result<(&Storage, usize), DmaFault> {
        let after = self.mappings.partition_point(|mapping| mapping.start <= address);
        let fault = DmaFault { address, len };
        let mapping = after.checked_sub(1).map(|at| &self.mappings[at]).ok_or(fault)?;
        let storage = &*mapping.buffer.0;
        let offset = usize::try_from(address - mapping.start).map_err(|_| fault)?;
        match offset.checked_add(len) {
            Some(end) if end <= storage.len => Ok((storage, offset)),
            _ => Err(fault),
        }
    }
}

impl Memory for SharedMemory {
    #[inline]
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), DmaFault> {
        let (storage, offset) = self.find(address, out.len())?;
        storage.read(offset, out);
        Ok(())
    }

    #[inline]
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), DmaFault> {
        let (storage, offset) = self.find(address, bytes.len())?;
        storage.write(offset, bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_alignment_reads_and_writes_its_own_bytes_only() {
        for size in 0..40 {
            for offset in 0..=size {
                for len in 0..=size - offset {
                    let buffer = Buffer::new(size).unwrap();
                    let before: Vec<u8> = (0..size).map(|i| i as u8).collect();
                    buffer.write(0, &before).unwrap();
                    let new: Vec<u8> = (0..len).map(|i| 0x80 + i as u8).collect();
                    buffer.write(offset, &new).unwrap();
                    let mut expected = before.clone();
                    expected[offset..offset + len].copy_from_slice(&new);
                    let mut after = vec![0; size];
                    buffer.read(0, &mut after).unwrap();
                    assert_eq!(after, expected, "{size} {offset} {len}");
                    let mut part = vec![0; len];
                    buffer.read(offset, &mut part).unwrap();
                    assert_eq!(part, new);
                }
            }
        }
    }

    #[test]
    fn what_leaves_a_buffer_is_refused_whole() {
        let buffer = Buffer::new(10).unwrap();
        assert!(buffer.write(3, &[1; 8]).is_err());
        assert!(buffer.write(usize::MAX, &[1]).is_err());
        let mut out = [7; 2];
        assert!(buffer.read(9, &mut out).is_err());
        assert_eq!((out, buffer.byte(9).unwrap()), ([7; 2], 0));
        assert!(matches!(buffer.load_u64(4), Err(Error::OutsideBuffer { .. })));
        assert!(matches!(Buffer::new(16).unwrap().load_u64(4), Err(Error::Misaligned(4))));
    }

    #[test]
    fn addresses_of_several_buffers_do_not_meet_and_end_where_the_buffer_does() {
        let mut memory = SharedMemory::default();
        let buffers: Vec<Buffer> = [5, 4096, 100].map(|len| Buffer::new(len).unwrap()).into();
        let starts: Vec<u64> = buffers.iter().map(|buffer| memory.map(buffer.clone())).collect();
        for (start, buffer) in starts.iter().zip(&buffers) {
            let last = start + buffer.len() as u64 - 1;
            memory.write(last, &[9]).unwrap();
            assert_eq!(buffer.byte(buffer.len() - 1).unwrap(), 9);
            assert_eq!(memory.write(last, &[9, 9]), Err(DmaFault { address: last, len: 2 }));
        }
        memory.unmap(starts[1]);
        assert!(memory.read(starts[1], &mut [0]).is_err());
        assert!(
            memory.read(starts[0], &mut [0]).is_ok() && memory.read(starts[2], &mut [0]).is_ok()
        );
        assert!(memory.read(FIRST_ADDRESS - 1, &mut [0]).is_err());
    }

    #[test]
    fn neighbours_in_one_word_do_not_lose_each_other() {
        let buffer = Buffer::new(8).unwrap();
        std::thread::scope(|scope| {
            for at in 0..8 {
                let buffer = &buffer;
                scope.spawn(move || {
                    for round in 0..=255 {
                        buffer.write(at, &[round]).unwrap();
                        assert_eq!(buffer.byte(at).unwrap(), round);
                    }
                });
            }
        });
        assert_eq!(buffer.load_u64(0).unwrap(), u64::MAX);
    }
}
