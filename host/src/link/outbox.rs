//! Frames that wait to be sent, packed one behind the other in one buffer: short ones stay in few cache lines.
//! It knows no socket and no header.

use std::ops::Range;

use softrnic_engine::packet::FRAME_LEN_MAX;

/// Most frames that wait.
pub(super) const FRAMES: usize = 128;
/// Bytes of frames that wait, before there is no room any more.
const BYTES: usize = 256 * 1024;
/// Frames begin at multiples of this, so that two never share a cache line.
const ALIGN: usize = 64;

/// The frames.
#[derive(Debug)]
pub(super) struct Outbox {
    bytes: Box<[u8]>,
    /// Where the frames are, in their order; those before `first` have gone.
    frames: Vec<Range<usize>>,
    first: usize,
    /// Bytes kept free before each frame.
    headroom: usize,
    /// Where the next frame's headroom begins.
    end: usize,
}

impl Outbox {
    /// An empty one; `headroom` bytes before each frame stay free for [`Outbox::with_headroom`].
    pub(super) fn new(headroom: usize) -> Self {
        Self {
            bytes: vec![0; BYTES + FRAME_LEN_MAX + ALIGN].into_boxed_slice(),
            frames: Vec::with_capacity(FRAMES),
            first: 0,
            headroom,
            end: 0,
        }
    }

    /// [`FRAME_LEN_MAX`] bytes for the next frame, if so many are free.
    pub(super) fn room(&mut self) -> Option<&mut [u8]> {
        if self.frames.len() == FRAMES || self.end + self.headroom > BYTES {
            self.pack();
        }
        let at = self.end + self.headroom;
        if self.frames.len() == FRAMES || at > BYTES {
            return None;
        }
        Some(&mut self.bytes[at..at + FRAME_LEN_MAX])
    }

    /// What was written into the last room.
    pub(super) fn written(&mut self, len: usize) -> &mut [u8] {
        let at = self.end + self.headroom;
        &mut self.bytes[at..at + len]
    }

    /// Keeps the first `len` bytes of the last room as a frame.
    pub(super) fn commit(&mut self, len: usize) {
        let at = self.end + self.headroom;
        self.frames.push(at..at + len);
        self.end = (at + len).next_multiple_of(ALIGN);
    }

    /// Number of frames that wait.
    pub(super) fn len(&self) -> usize {
        self.frames.len() - self.first
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A waiting frame.
    pub(super) fn frame(&self, index: usize) -> &[u8] {
        &self.bytes[self.frames[self.first + index].clone()]
    }

    /// A waiting frame, to be changed.
    pub(super) fn frame_mut(&mut self, index: usize) -> &mut [u8] {
        &mut self.bytes[self.frames[self.first + index].clone()]
    }

    /// The first `count` of the waiting frames have gone.
    pub(super) fn sent(&mut self, count: usize) {
        self.first = (self.first + count).min(self.frames.len());
        if self.first == self.frames.len() {
            self.frames.clear();
            (self.first, self.end) = (0, 0);
        }
    }

    /// Moves what waits to the front.
    fn pack(&mut self) {
        if self.first == 0 {
            return;
        }
        self.frames.drain(..self.first);
        self.first = 0;
        self.end = 0;
        for frame in &mut self.frames {
            let at = self.end + self.headroom;
            self.bytes.copy_within(frame.clone(), at);
            *frame = at..at + frame.len();
            self.end = frame.end.next_multiple_of(ALIGN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_in_order_whatever_is_taken() {
        let mut outbox = Outbox::new(10);
        let (mut next_in, mut next_out) = (0u32, 0u32);
        for turn in 0..500usize {
            while let Some(room) = outbox.room() {
                let len = 60 + (next_in as usize * 37) % 4000;
                room[..4].copy_from_slice(&next_in.to_le_bytes());
                room[len - 1] = next_in as u8;
                assert_eq!(outbox.written(4), next_in.to_le_bytes());
                outbox.commit(len);
                next_in += 1;
            }
            assert!(!outbox.is_empty());
            let take = (turn % 7 * 11).min(outbox.len());
            for at in 0..take {
                let frame = outbox.frame(at);
                assert_eq!(frame[..4], next_out.to_le_bytes());
                assert_eq!(frame.last(), Some(&(next_out as u8)));
                next_out += 1;
            }
            outbox.sent(take);
        }
        assert!(next_out > 10_000);
    }

    #[test]
    fn short_frames_fill_the_list_and_long_ones_the_bytes() {
        for (len, expected) in [(60, FRAMES), (FRAME_LEN_MAX, 63)] {
            let mut outbox = Outbox::new(0);
            let mut count = 0;
            while outbox.room().is_some() {
                outbox.commit(len);
                count += 1;
            }
            assert_eq!(count, expected, "{len}");
            outbox.sent(1);
            assert!(outbox.room().is_some());
        }
    }
}
