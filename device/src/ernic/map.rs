//! From an address to a register and back, in constant time, for one profile and number of queue pairs.

use super::profile::Profile;
use super::registers::{ELEMENT_STRIDE, GLOBAL_BASE, MAP_LEN, QP_BASE, REGIONS, ROWS, Register};
use super::row::Section;

/// One register of the device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Location {
    /// Which row of the table.
    pub register: Register,
    /// Region table row, word of a bank, or queue pair number; 0 for a single register.
    pub index: u16,
}

/// The map of one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Map {
    /// Whose reading.
    pub profile: Profile,
    /// C_NUM_QP: queue pairs 1 ..= C_NUM_QP - 1 exist.
    pub num_qp: u16,
}

impl Map {
    /// What is at an address: `None` for an address that is not listed, not aligned, of a queue pair
    /// that does not exist, or of a register that QP1 does not have.
    ///
    /// Rows are printed for i = 1 ..= C_NUM_QP, but only C_NUM_QP - 1 queue pairs exist (QP0 does
    /// not). Chosen: the slot of number C_NUM_QP, and slot 0 of `v4.0-silicon`, are unlisted.
    #[inline]
    #[must_use]
    pub fn locate(&self, offset: u32) -> Option<Location> {
        if !offset.is_multiple_of(4) || offset >= MAP_LEN {
            return None;
        }
        let word = (offset % ELEMENT_STRIDE / 4) as usize;
        if offset >= QP_BASE {
            let slot = (offset - QP_BASE) / ELEMENT_STRIDE;
            let index = slot as u16 + self.profile.first_slot_qp;
            let register = QP_WORDS[word]?;
            let exists = index != 0
                && index < self.num_qp
                && (index != 1 || register.row().section as u8 == Section::Qp as u8);
            exists.then_some(Location { register, index })
        } else if offset >= GLOBAL_BASE {
            let (register, index) = (*GLOBAL_WORDS.get((offset - GLOBAL_BASE) as usize / 4)?)?;
            Some(Location { register, index: index.into() })
        } else {
            let index = (offset / ELEMENT_STRIDE) as u16;
            let register = REGION_WORDS[word]?;
            (index < REGIONS).then_some(Location { register, index })
        }
    }

    /// Where a register is. The inverse of [`Map::locate`].
    #[must_use]
    pub fn offset(&self, at: Location) -> u32 {
        let row = at.register.row();
        let index = u32::from(at.index);
        match row.section {
            Section::Region => row.offset + index * ELEMENT_STRIDE,
            Section::Global | Section::Status => row.offset + index * 4,
            Section::Qp | Section::RcQp => {
                let slot = index.wrapping_sub(self.profile.first_slot_qp.into());
                row.offset.wrapping_add(slot.wrapping_mul(ELEMENT_STRIDE))
            }
        }
    }

    /// How many of a register there are.
    #[must_use]
    pub fn count(&self, register: Register) -> u16 {
        let row = register.row();
        match row.section {
            Section::Region => REGIONS,
            Section::Global | Section::Status => row.words,
            Section::Qp => self.num_qp - 1,
            Section::RcQp => self.num_qp - 2,
        }
    }
}

const ELEMENT_WORDS: usize = ELEMENT_STRIDE as usize / 4;
/// The global part ends with the last word of the last bank, at 0x10_048C.
const GLOBAL_LEN: usize = 0x490 / 4;

const REGION_WORDS: [Option<Register>; ELEMENT_WORDS] = element_words(0, ELEMENT_STRIDE);
const QP_WORDS: [Option<Register>; ELEMENT_WORDS] =
    element_words(QP_BASE, QP_BASE + ELEMENT_STRIDE);

const fn element_words(from: u32, to: u32) -> [Option<Register>; ELEMENT_WORDS] {
    let mut words = [None; ELEMENT_WORDS];
    let mut i = 0;
    while i < ROWS.len() {
        if ROWS[i].offset >= from && ROWS[i].offset < to {
            words[((ROWS[i].offset - from) / 4) as usize] = Some(ROWS[i].register);
        }
        i += 1;
    }
    words
}

const GLOBAL_WORDS: [Option<(Register, u8)>; GLOBAL_LEN] = {
    let mut words = [None; GLOBAL_LEN];
    let mut i = 0;
    while i < ROWS.len() {
        let row = &ROWS[i];
        if row.offset >= GLOBAL_BASE && row.offset < QP_BASE {
            let mut word = 0;
            while word < row.words {
                let at = (row.offset - GLOBAL_BASE) as usize / 4 + word as usize;
                words[at] = Some((row.register, word as u8));
                word += 1;
            }
        }
        i += 1;
    }
    words
};
