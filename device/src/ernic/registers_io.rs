//! Register accesses: which register it is, which bits may be written, which values are refused.
//!
//! What else a register does is in `effects`. Refused accesses change nothing and are counted by the
//! engine under their reason.

use softrnic_engine::Reason;

use super::Ernic;
use super::map::Location;
use super::queues::{ENABLE, check_index};
use super::registers::{ROWS, Register, bits};
use super::row::{Access, Home, Legal, Section};
use crate::memory::Memory;
use crate::nic::{Between, Nic};

const OVERRIDE: u32 = bits(Register::Xrnicadconf, "override");
const OVERRIDE_QP: u32 = bits(Register::Xrnicadconf, "override_qp");

impl<M: Memory> Nic<Ernic, M> {
    /// Reads a register. What is not listed reads 0 and is counted.
    pub fn read32(&mut self, offset: u32) -> u32 {
        match self.find(offset) {
            Ok(at) if self.device.map.profile.moved.is_empty() => self.read_register(at),
            Ok(at) => self.read_moved(at),
            Err(reason) => {
                self.engine.count_refused(reason);
                0
            }
        }
    }

    /// Writes a register. What is refused changes nothing and is counted.
    pub fn write32(&mut self, offset: u32, value: u32) {
        self.write32_through(&mut (), offset, value);
    }

    /// [`Nic::write32`], with something between engine and face: a doorbell or QPCONF may complete
    /// work.
    pub fn write32_through(&mut self, between: &mut impl Between, offset: u32, value: u32) {
        let refused = match self.find(offset) {
            Ok(at) if self.device.map.profile.moved.is_empty() => {
                self.write_register(between, at, value)
            }
            Ok(at) => self.write_moved(between, at, value),
            Err(reason) => Err(reason),
        };
        if let Err(reason) = refused {
            self.engine.count_refused(reason);
        }
    }

    /// Reads as a bus does. Anything but an aligned 32-bit word reads 0 and is counted: every driver
    /// uses words, and the chapter says nothing of other widths.
    pub fn read_bytes(&mut self, offset: u32, out: &mut [u8]) {
        if let Ok(out) = <&mut [u8; 4]>::try_from(&mut *out) {
            *out = self.read32(offset).to_le_bytes();
        } else {
            out.fill(0);
            self.engine.count_refused(Reason::RegisterAlignment);
        }
    }

    /// Writes as a bus does. Anything but an aligned 32-bit word is ignored and counted.
    pub fn write_bytes(&mut self, offset: u32, bytes: &[u8]) {
        match <[u8; 4]>::try_from(bytes) {
            Ok(bytes) => self.write32(offset, u32::from_le_bytes(bytes)),
            Err(_) => self.engine.count_refused(Reason::RegisterAlignment),
        }
    }

    fn find(&self, offset: u32) -> Result<Location, Reason> {
        if !offset.is_multiple_of(4) {
            return Err(Reason::RegisterAlignment);
        }
        self.device.map.locate(offset).ok_or(Reason::RegisterUnlisted)
    }

    /// Reads a register by its row.
    #[must_use]
    pub fn read_register(&self, at: Location) -> u32 {
        if let Some(demoted) = self.device.demoted.as_ref().filter(|demoted| demoted.is(at)) {
            return demoted.read(at);
        }
        let masks = &MASKS[at.register as usize];
        let kept = if masks.kept == 0 { 0 } else { self.device.kept(at) & masks.kept };
        kept | self.read_effect(at)
    }

    /// Reads a register as a profile with moved fields shows it.
    fn read_moved(&self, at: Location) -> u32 {
        let table = |register| self.read_register(Location { register, ..at });
        self.device.map.profile.software_value(at.register, table)
    }

    /// Writes a register as a profile with moved fields shows it: what it carries for others first, so
    /// that a device is switched on last.
    fn write_moved(
        &mut self,
        between: &mut impl Between,
        at: Location,
        value: u32,
    ) -> Result<(), Reason> {
        let profile = self.device.map.profile;
        for field in profile.carried(at.register) {
            let at = Location { register: field.register, ..at };
            self.write_register(between, at, field.value(value))?;
        }
        self.write_register(between, at, profile.table_value(at.register, value))
    }

    fn write_register(
        &mut self,
        between: &mut impl Between,
        at: Location,
        value: u32,
    ) -> Result<(), Reason> {
        if let Some(demoted) = self.device.demoted.as_mut().filter(|demoted| demoted.is(at)) {
            demoted.write(at, value);
            return Ok(());
        }
        let masks = &MASKS[at.register as usize];
        let mut mask = masks.writable | masks.clear;
        if masks.overridable != 0 && self.overrides(at) {
            mask |= masks.overridable;
        }
        if mask == 0 {
            return Err(Reason::RegisterReadOnly);
        }
        let (value, refused) = self.check_value(at, value, &mut mask);
        if mask != 0 {
            let stored = mask & masks.kept & !masks.clear;
            let old = if masks.kept == 0 { 0 } else { self.device.kept(at) };
            if stored != 0 {
                *self.device.kept_mut(at) = (old & !stored) | (value & stored);
            }
            self.write_effect(between, at, old, value & mask, mask)?;
        }
        refused.map_or(Ok(()), Err)
    }

    /// Takes the bits of fields out of `mask` whose value is not legal.
    fn check_value(&self, at: Location, value: u32, mask: &mut u32) -> (u32, Option<Reason>) {
        let mut refused = None;
        let mut value = value;
        for field in at.register.row().fields {
            let field_mask = field.mask();
            if *mask & field_mask == 0 {
                continue;
            }
            let checked = match field.legal {
                Legal::Any => continue,
                Legal::UpTo(most) if field.of(value) <= most => continue,
                Legal::UpTo(_) => Err(Reason::RegisterValue),
                Legal::SendIndex | Legal::ReceiveIndex => {
                    self.check_ring_index(at, field.of(value), field.legal == Legal::SendIndex)
                }
            };
            match checked {
                Ok(index) => value = (value & !field_mask) | index << field.low,
                Err(reason) => {
                    *mask &= !field_mask;
                    refused = Some(reason);
                }
            }
        }
        (value, refused)
    }

    fn check_ring_index(&self, at: Location, index: u32, send: bool) -> Result<u32, Reason> {
        let qp = &self.device.qps[usize::from(at.index)];
        if send && self.places_send_queue(at, index) {
            return Ok(index);
        }
        let depth = if send { qp.sq_depth() } else { qp.rq_depth() };
        let current = qp.word(at.register) & 0xFFFF;
        check_index(index, current, depth, send, self.device.lenient_indices)
    }

    /// Whether a write to SQPI puts the empty queue at an index instead of announcing work: under
    /// override, for a queue pair that is switched off, or with the index 0.
    pub(super) fn places_send_queue(&self, at: Location, index: u32) -> bool {
        let enabled = self.device.qps[usize::from(at.index)].is_set(ENABLE);
        self.overrides(at) && (index == 0 || !enabled)
    }

    /// Whether XRNICADCONF lets software write this queue pair's read-only registers.
    fn overrides(&self, at: Location) -> bool {
        let word = self.device.status.word(Register::Xrnicadconf);
        let qp = (word & OVERRIDE_QP) >> OVERRIDE_QP.trailing_zeros();
        word & OVERRIDE != 0 && (qp == 0 || qp == u32::from(at.index))
    }
}

impl Ernic {
    fn kept(&self, at: Location) -> u32 {
        match at.register.row().section {
            Section::Region => self.regions.word(at.register, at.index),
            Section::Global | Section::Status => self.status.word(at.register),
            Section::Qp | Section::RcQp => self.qps[usize::from(at.index)].word(at.register),
        }
    }

    fn kept_mut(&mut self, at: Location) -> &mut u32 {
        match at.register.row().section {
            Section::Region => self.regions.word_mut(at.register, at.index),
            Section::Global | Section::Status => self.status.word_mut(at.register),
            Section::Qp | Section::RcQp => {
                self.touched_qps.add(at.index);
                self.qps[usize::from(at.index)].word_mut(at.register)
            }
        }
    }
}

/// A row's masks, computed once.
struct Masks {
    writable: u32,
    clear: u32,
    overridable: u32,
    kept: u32,
}

const MASKS: [Masks; ROWS.len()] = {
    let mut masks =
        [const { Masks { writable: 0, clear: 0, overridable: 0, kept: 0 } }; ROWS.len()];
    let mut i = 0;
    while i < ROWS.len() {
        masks[i].writable = ROWS[i].mask_of(Access::Rw);
        masks[i].clear = ROWS[i].mask_of(Access::W1c);
        masks[i].overridable = ROWS[i].mask_of(Access::Override);
        masks[i].kept = ROWS[i].home_mask(Home::Kept);
        i += 1;
    }
    masks
};
