//! A table whose keys go stale: row number in the high 24 bits, generation in the low 8.
//!
//! Memory keys, completion queue and protection domain handles are such keys. Knows nothing of what
//! the rows hold.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Rows by key. A key whose row has been removed finds nothing until its row has been reused 256
/// times; rows are reused oldest first. Key 0 is never given out.
#[derive(Clone, Debug)]
pub(super) struct Table<T> {
    rows: Vec<Row<T>>,
    free: VecDeque<u32>,
}

#[derive(Clone, Debug)]
struct Row<T> {
    generation: u8,
    value: Option<T>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { rows: Vec::new(), free: VecDeque::new() }
    }
}

impl<T> Table<T> {
    /// Adds a row; `None` where all 2^24 - 1 are taken.
    pub(super) fn insert(&mut self, value: T) -> Option<u32> {
        if let Some(index) = self.free.pop_front() {
            let row = &mut self.rows[index as usize];
            row.generation = row.generation.wrapping_add(1);
            row.value = Some(value);
            return Some(key(index, row.generation));
        }
        let index = u32::try_from(self.rows.len()).ok().filter(|&index| index < ROWS_MAX)?;
        self.rows.push(Row { generation: 0, value: Some(value) });
        Some(key(index, 0))
    }

    /// Takes a row out; its key is stale from now on.
    pub(super) fn remove(&mut self, key: u32) -> Option<T> {
        let index = (key >> 8).wrapping_sub(1);
        let row = self.rows.get_mut(index as usize)?;
        if row.generation != key as u8 {
            return None;
        }
        let value = row.value.take()?;
        self.free.push_back(index);
        Some(value)
    }

    /// Rows in use.
    pub(super) fn len(&self) -> usize {
        self.rows.len() - self.free.len()
    }

    /// Every row with its key.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let rows = (0..).zip(&self.rows);
        rows.filter_map(|(i, row)| Some((key(i, row.generation), row.value.as_ref()?)))
    }

    #[inline]
    pub(super) fn get(&self, key: u32) -> Option<&T> {
        let row = self.rows.get((key >> 8).wrapping_sub(1) as usize)?;
        if row.generation == key as u8 { row.value.as_ref() } else { None }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, key: u32) -> Option<&mut T> {
        let row = self.rows.get_mut((key >> 8).wrapping_sub(1) as usize)?;
        if row.generation == key as u8 { row.value.as_mut() } else { None }
    }
}

const ROWS_MAX: u32 = (1 << 24) - 1;

const fn key(index: u32, generation: u8) -> u32 {
    (index + 1) << 8 | generation as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_key_finds_nothing() {
        let mut table = Table::default();
        let first = table.insert('a').unwrap();
        assert_eq!(table.remove(first), Some('a'));
        assert_eq!(table.remove(first), None);
        let second = table.insert('b').unwrap();
        assert_ne!(first, second);
        assert_eq!(first >> 8, second >> 8);
        assert_eq!((table.get(first), table.get(second)), (None, Some(&'b')));
        assert_eq!((table.get(0), table.get(u32::MAX)), (None, None));
        assert!(table.get_mut(first).is_none());
        let third = table.insert('c').unwrap();
        assert!(table.iter().eq([(second, &'b'), (third, &'c')]));
    }
}
