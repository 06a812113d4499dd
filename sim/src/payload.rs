//! What messages carry, and whether it arrived: a byte's value depends on seed, phase, message and
//! place, so that a byte in the wrong place shows.
//!
//! Bytes only; knows no node.

use crate::random::mix;

/// Value of guard bytes, and of buffers that hold no message.
pub(crate) const POISON: u8 = 0xA5;

/// The messages of a phase.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Payload<'a> {
    /// Bytes that follow from a number that stands for seed and phase; lengths, too, from this least
    /// one on, where there is one.
    Pattern(u64, Option<u32>),
    /// A file, cut into chunks.
    File(&'a [u8]),
}

impl<'a> Payload<'a> {
    pub(crate) const fn pattern(seed: u64, phase: u64, size_min: Option<u32>) -> Self {
        Self::Pattern(mix(seed ^ mix(phase + 1)), size_min)
    }

    /// A number for each message, to choose what it does.
    pub(crate) const fn draw(&self, message: u64) -> u64 {
        match self {
            Self::Pattern(base, _) => mix(mix(*base ^ mix(message + 1)) + 1),
            Self::File(_) => 0,
        }
    }

    /// Length of a message, for a phase whose messages are `size` long, or up to that.
    pub(crate) fn len(&self, message: u64, size: u32) -> u32 {
        match self {
            Self::Pattern(_, None) => size,
            Self::Pattern(_, Some(min)) => {
                // As many short ones as long ones: the range shrinks by up to 15 halvings.
                let drawn = mix(self.draw(message));
                let range = u64::from(size - min) >> (drawn & 15);
                min + ((drawn >> 8) % (range + 1)) as u32
            }
            Self::File(bytes) => {
                let left = (bytes.len() as u64).saturating_sub(message * u64::from(size));
                u32::try_from(left).unwrap_or(u32::MAX).min(size)
            }
        }
    }

    /// Writes a message; `out` is as long as it.
    pub(crate) fn fill(&self, message: u64, size: u32, out: &mut [u8]) {
        match self {
            Self::Pattern(base, _) => fill_pattern(mix(base ^ mix(message + 1)), out),
            Self::File(bytes) => {
                let start = usize::try_from(message * u64::from(size)).unwrap_or(usize::MAX);
                let chunk = bytes.get(start..).and_then(|rest| rest.get(..out.len()));
                // The workload asks for as many messages as the file has chunks.
                out.copy_from_slice(chunk.unwrap_or(&[]));
            }
        }
    }
}

fn fill_pattern(base: u64, out: &mut [u8]) {
    fill_pattern_from(base, 0, out);
}

/// Writes a part of a message's bytes, from `offset` on, a multiple of 8.
pub(crate) fn fill_pattern_from(base: u64, offset: u32, out: &mut [u8]) {
    let (words, tail) = out.as_chunks_mut::<8>();
    let mut index = u64::from(offset / 8);
    for word in words {
        *word = mix(base ^ index).to_le_bytes();
        index += 1;
    }
    let last = mix(base ^ index).to_le_bytes();
    tail.copy_from_slice(&last[..tail.len()]);
}

/// Where two equally long runs of bytes differ first, and in how many bytes.
pub(crate) fn difference(expected: &[u8], found: &[u8]) -> Option<(usize, usize)> {
    if expected == found {
        return None;
    }
    let mut pairs = expected.iter().zip(found);
    let first = pairs.position(|(a, b)| a != b)?;
    Some((first, 1 + pairs.filter(|(a, b)| a != b).count()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(phase: u64, number: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        Payload::pattern(7, phase, None).fill(number, len as u32, &mut bytes);
        bytes
    }

    #[test]
    fn messages_differ_by_phase_number_and_place() {
        let one = message(0, 0, 4096);
        assert_eq!(one, message(0, 0, 4096));
        assert_ne!(one, message(1, 0, 4096));
        assert_ne!(one, message(0, 1, 4096));
        assert_ne!(one[..64], one[64..128]);
        assert_eq!(one[..13], message(0, 0, 13));
    }

    #[test]
    fn sizes_differ_within_their_bounds_and_reach_both() {
        let payload = Payload::pattern(7, 0, Some(1));
        let sizes: Vec<_> = (0..10_000).map(|n| payload.len(n, 5_000)).collect();
        assert!(sizes.iter().all(|size| (1..=5_000).contains(size)));
        assert!(sizes.contains(&1) && sizes.iter().any(|&size| size > 4_900));
        assert_eq!(Payload::pattern(7, 0, Some(64)).len(3, 64), 64);
    }

    #[test]
    fn a_file_is_cut_into_chunks_with_a_shorter_last_one() {
        let file = Payload::File(b"abcdefgh");
        assert_eq!([file.len(0, 3), file.len(2, 3), file.len(3, 3)], [3, 2, 0]);
        let mut chunk = [0; 2];
        file.fill(2, 3, &mut chunk);
        assert_eq!(&chunk, b"gh");
    }

    #[test]
    fn a_difference_is_located_and_counted() {
        assert_eq!(difference(b"abcd", b"abcd"), None);
        assert_eq!(difference(b"abcd", b"abXX"), Some((2, 2)));
    }
}
