//! The MSI-X vector table and its pending bits, as a BAR of their own.
//!
//! A virtual machine monitor usually keeps the table itself and never asks for it here.

/// The BAR that holds the table.
pub const MSIX_BAR: usize = 0;
/// Bytes of that BAR.
pub const MSIX_BAR_LEN: u32 = 0x1000;
/// Where in the BAR the pending bits are.
pub const MSIX_PENDING_OFFSET: u32 = 0x800;
/// Vectors: ERNIC has one interrupt line.
pub const VECTORS: usize = 1;

/// Words of an entry: address low, address high, data, control.
const ENTRY_WORDS: usize = 4;
const TABLE_WORDS: usize = VECTORS * ENTRY_WORDS;
/// Control: the vector is masked.
const VECTOR_MASK: u32 = 1;

/// The table.
#[derive(Clone, Debug)]
pub struct MsixTable {
    words: [u32; TABLE_WORDS],
    pending: u32,
}

impl Default for MsixTable {
    /// All vectors masked, as after reset.
    fn default() -> Self {
        let mut words = [0; TABLE_WORDS];
        words
            .iter_mut()
            .skip(ENTRY_WORDS - 1)
            .step_by(ENTRY_WORDS)
            .for_each(|word| *word = VECTOR_MASK);
        Self { words, pending: 0 }
    }
}

impl MsixTable {
    /// Reads a word of the BAR; what is neither table nor pending bits is 0.
    #[must_use]
    pub fn read32(&self, offset: u32) -> u32 {
        match offset {
            MSIX_PENDING_OFFSET => self.pending,
            _ => self.words.get(offset as usize / 4).copied().unwrap_or(0),
        }
    }

    /// Writes a word of the BAR. Pending bits and reserved bits stay.
    pub fn write32(&mut self, offset: u32, value: u32) {
        let index = offset as usize / 4;
        let Some(word) = self.words.get_mut(index) else { return };
        let writable = match index % ENTRY_WORDS {
            0 => !0b11,
            3 => VECTOR_MASK,
            _ => u32::MAX,
        };
        *word = value & writable;
    }

    /// Sets or clears a vector's pending bit.
    pub fn set_pending(&mut self, vector: usize, pending: bool) {
        if vector < VECTORS {
            self.pending = self.pending & !(1 << vector) | u32::from(pending) << vector;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_masked_after_reset_and_keep_what_is_written() {
        let mut table = MsixTable::default();
        assert_eq!(table.read32(12), 1);
        for (offset, kept) in [(0, !0b11), (4, u32::MAX), (8, u32::MAX), (12, 1)] {
            table.write32(offset, u32::MAX);
            assert_eq!(table.read32(offset), kept);
        }
        table.write32(TABLE_WORDS as u32 * 4, u32::MAX);
        assert_eq!(table.read32(TABLE_WORDS as u32 * 4), 0);
    }

    #[test]
    fn pending_bits_are_the_devices() {
        let mut table = MsixTable::default();
        table.set_pending(0, true);
        table.set_pending(VECTORS, true);
        table.write32(MSIX_PENDING_OFFSET, 0);
        assert_eq!(table.read32(MSIX_PENDING_OFFSET), 1);
        table.set_pending(0, false);
        assert_eq!(table.read32(MSIX_PENDING_OFFSET), 0);
    }
}
