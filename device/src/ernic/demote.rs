//! A row of the register table without its behaviour: what the rows' tests need, to show that a story
//! fails where its row does nothing.
//!
//! A demoted row is cut off from the device at the register access: software reads what it wrote, whatever
//! the access column says, and the device itself sees the row's value after reset for ever. No packet
//! passes here.

use alloc::collections::BTreeMap;

use super::map::Location;
use super::registers::Register;

/// A demoted row with what software wrote to it, by index.
#[derive(Clone, Debug)]
pub(super) struct Demoted {
    register: Register,
    reset: u32,
    words: BTreeMap<u16, u32>,
}

impl Demoted {
    pub(super) const fn new(register: Register, reset: u32) -> Self {
        Self { register, reset, words: BTreeMap::new() }
    }

    pub(super) fn is(&self, at: Location) -> bool {
        self.register == at.register
    }

    pub(super) fn read(&self, at: Location) -> u32 {
        self.words.get(&at.index).copied().unwrap_or(self.reset)
    }

    pub(super) fn write(&mut self, at: Location, value: u32) {
        self.words.insert(at.index, value & self.register.row().mask());
    }

    pub(super) fn reset(&mut self) {
        self.words.clear();
    }
}
