//! Sets of the context's rows: what a command brings.

use core::ops::RangeInclusive;

use super::context::{At, Field, ROW_COUNT, ROWS};
use super::field::{Row, Side};

/// A set of rows, for the masks of the transitions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FieldSet([u64; ROW_COUNT.div_ceil(64)]);

impl FieldSet {
    /// No field.
    pub const NONE: Self = Self([0; ROW_COUNT.div_ceil(64)]);

    /// These fields outside of the paths.
    #[must_use]
    pub const fn of(fields: &[Field]) -> Self {
        let (mut set, mut i) = (Self::NONE, 0);
        while i < fields.len() {
            set = set.with(At::Main(fields[i]));
            i += 1;
        }
        set
    }

    /// Every field of a path that is not reserved.
    #[must_use]
    pub const fn path(side: Side) -> Self {
        let (mut set, mut i) = (Self::NONE, 0);
        while i < ROW_COUNT {
            let row = &ROWS[i];
            let same = matches!(
                (row.side, side),
                (Some(Side::Primary), Side::Primary) | (Some(Side::Alternate), Side::Alternate)
            );
            if same && !row.is_reserved() {
                set.0[i / 64] |= 1 << (i % 64);
            }
            i += 1;
        }
        set
    }

    /// With one more.
    #[must_use]
    pub const fn with(mut self, at: At) -> Self {
        self.0[at.index() / 64] |= 1 << (at.index() % 64);
        self
    }

    /// With one less.
    #[must_use]
    pub const fn without(mut self, at: At) -> Self {
        self.0[at.index() / 64] &= !(1 << (at.index() % 64));
        self
    }

    /// Without the rows of these words.
    pub(super) fn without_words(mut self, words: RangeInclusive<usize>) -> Self {
        for (index, row) in ROWS.iter().enumerate() {
            if words.contains(&usize::from(row.word)) {
                self.0[index / 64] &= !(1 << (index % 64));
            }
        }
        self
    }

    /// All of both.
    #[must_use]
    pub const fn union(mut self, other: Self) -> Self {
        let mut i = 0;
        while i < self.0.len() {
            self.0[i] |= other.0[i];
            i += 1;
        }
        self
    }

    /// Whether a field is in it.
    #[must_use]
    pub const fn has(self, at: At) -> bool {
        self.has_row(at.index())
    }

    const fn has_row(self, index: usize) -> bool {
        self.0[index / 64] >> (index % 64) & 1 == 1
    }

    /// Its rows, in the order of the table.
    pub fn rows(self) -> impl Iterator<Item = &'static Row> {
        ROWS.iter().enumerate().filter(move |(index, _)| self.has_row(*index)).map(|(_, row)| row)
    }
}
