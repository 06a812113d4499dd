//! From an address to a register and back, in constant time, for one profile and number of queue pairs.

use super::profile::Profile;
use super::registers::{BANK_WORDS, ELEMENT_STRIDE, GLOBAL_BASE, QP_BASE, ROWS, Register};
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
        let profile = &self.profile;
        if !offset.is_multiple_of(4) || offset >= profile.map_len {
            return None;
        }
        let word = (offset % ELEMENT_STRIDE / 4) as usize;
        if offset >= profile.qp_base {
            let slot = (offset - profile.qp_base) / ELEMENT_STRIDE;
            let index = slot as u16 + profile.first_slot_qp;
            let register = QP_WORDS[word]?;
            let exists = index != 0
                && index < self.num_qp
                && (index != 1 || register.row().section as u8 == Section::Qp as u8);
            exists.then_some(Location { register, index })
        } else if offset >= profile.global_base {
            let word = (offset - profile.global_base) as usize / 4;
            let (register, index) = (*profile.global_words.get(word)?)?;
            let there = profile.absent.is_empty() || !profile.absent.contains(&register);
            there.then_some(Location { register, index: index.into() })
        } else {
            let index = (offset / ELEMENT_STRIDE) as u16;
            let register = REGION_WORDS[word]?;
            (index < profile.regions).then_some(Location { register, index })
        }
    }

    /// Where a register is. The inverse of [`Map::locate`]; meaningless for one that is absent.
    #[must_use]
    pub fn offset(&self, at: Location) -> u32 {
        let (row, profile) = (at.register.row(), &self.profile);
        let index = u32::from(at.index);
        match row.section {
            Section::Region => row.offset + index * ELEMENT_STRIDE,
            Section::Global | Section::Status => {
                profile.global_base + bank_offset(row.offset, profile.bank_words) + index * 4
            }
            Section::Qp | Section::RcQp => {
                let slot = index.wrapping_sub(profile.first_slot_qp.into());
                let offset = profile.qp_base + (row.offset - QP_BASE);
                offset.wrapping_add(slot.wrapping_mul(ELEMENT_STRIDE))
            }
        }
    }

    /// How many of a register there are.
    #[must_use]
    pub fn count(&self, register: Register) -> u16 {
        let row = register.row();
        match row.section {
            _ if self.profile.absent.contains(&register) => 0,
            Section::Region => self.profile.regions,
            Section::Global | Section::Status if row.words > 1 => self.profile.bank_words,
            Section::Global | Section::Status => row.words,
            Section::Qp => self.num_qp - 1,
            Section::RcQp => self.num_qp - 2,
        }
    }
}

/// From the printed address of a global register to its place in the global part where each bank has
/// `bank_words` words: banks follow each other.
const fn bank_offset(printed: u32, bank_words: u16) -> u32 {
    let first_bank = Register::Rqintsts.row().offset;
    let before = if printed < first_bank { 0 } else { (printed - first_bank) / BANK_LEN };
    printed - GLOBAL_BASE - before * (BANK_LEN - bank_words as u32 * 4)
}

const ELEMENT_WORDS: usize = ELEMENT_STRIDE as usize / 4;
const BANK_LEN: u32 = BANK_WORDS as u32 * 4;
/// The global part ends with the last word of the last bank, at 0x10_048C.
const GLOBAL_LEN: usize = 0x490 / 4;
/// What is at each word of the global part, with the word's number in its bank.
pub(super) type GlobalWords = [Option<(Register, u8)>; GLOBAL_LEN];

/// Before v4: 256 queue pairs.
pub(super) const BANK_WORDS_V3: u16 = 8;
pub(super) static GLOBAL_WORDS_V4: GlobalWords = global_words(BANK_WORDS);
pub(super) static GLOBAL_WORDS_V3: GlobalWords = global_words(BANK_WORDS_V3);

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

const fn global_words(bank_words: u16) -> GlobalWords {
    let mut words = [None; GLOBAL_LEN];
    let mut i = 0;
    while i < ROWS.len() {
        let row = &ROWS[i];
        if row.offset >= GLOBAL_BASE && row.offset < QP_BASE {
            let here = if row.words > 1 { bank_words } else { 1 };
            let mut word = 0;
            while word < here {
                let at = bank_offset(row.offset, bank_words) as usize / 4 + word as usize;
                words[at] = Some((row.register, word as u8));
                word += 1;
            }
        }
        i += 1;
    }
    words
}
