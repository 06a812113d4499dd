//! Bytes that are used up from the front; after the end come zeros.

pub(crate) struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn next(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    pub(crate) fn half(&mut self) -> u16 {
        u16::from_le_bytes([self.next(), self.next()])
    }

    pub(crate) fn word(&mut self) -> u32 {
        u32::from_le_bytes([self.next(), self.next(), self.next(), self.next()])
    }

    /// Up to `most` bytes; how many, the first one says.
    pub(crate) fn take(&mut self, most: usize) -> &'a [u8] {
        let len = usize::from(self.next()).min(most).min(self.0.len());
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken
    }

    /// A distance between PSNs: mostly small, sometimes at the window's borders.
    pub(crate) fn distance(&mut self) -> i32 {
        match self.next() {
            0x80 => -(1 << 23),
            0x7F => (1 << 23) - 1,
            0x7E => self.word().cast_signed() >> 8,
            near if near < 0x40 => i32::from(near % 3),
            near => i32::from(near.cast_signed()),
        }
    }
}
