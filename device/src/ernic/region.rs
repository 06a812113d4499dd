//! The memory region table: may a peer's packet touch these bytes?
//!
//! A wire R_Key is the table row in bits 31..8 and BUFRKEY in bits 7..0 (seen on hardware).

use alloc::boxed::Box;
use alloc::vec;

use softrnic_engine::{Access, RKey, Reason};

use super::Touched;
use super::registers::{KEPT_REGION, REGIONS, Register, bits};

/// ACCESSDESC\[3:0\] where the peer may write only, and where it may do both; 0 is read only.
const WRITE_ONLY: u32 = 1;
const READ_AND_WRITE: u32 = 2;
const ACCESS_TYPE: u32 = bits(Register::Accessdesc, "access");
const LENGTH_HIGH: u32 = bits(Register::Accessdesc, "length_high");

/// All rows.
#[derive(Clone, Debug)]
pub(super) struct Regions {
    rows: Box<[RegionRow]>,
    touched: Touched,
}

/// The kept words of one row.
#[derive(Clone, Copy, Debug)]
struct RegionRow([u32; KEPT_REGION]);

impl RegionRow {
    const RESET: Self = Self([0; KEPT_REGION]);

    #[inline]
    const fn word(&self, register: Register) -> u32 {
        self.0[register.kept_index()]
    }

    #[inline]
    const fn wide(&self, low: Register, high: u32) -> u64 {
        self.word(low) as u64 | (high as u64) << 32
    }
}

impl Regions {
    pub(super) fn new() -> Self {
        Self {
            rows: vec![RegionRow::RESET; usize::from(REGIONS)].into_boxed_slice(),
            touched: Touched::new(REGIONS.into()),
        }
    }

    pub(super) fn reset(&mut self) {
        while let Some(row) = self.touched.pop() {
            self.rows[usize::from(row)] = RegionRow::RESET;
        }
    }

    pub(super) fn word(&self, register: Register, row: u16) -> u32 {
        self.rows[usize::from(row)].word(register)
    }

    pub(super) fn word_mut(&mut self, register: Register, row: u16) -> &mut u32 {
        self.touched.add(row);
        &mut self.rows[usize::from(row)].0[register.kept_index()]
    }

    /// Whether the key still names a row.
    #[inline]
    fn row(&self, key: RKey) -> Result<&RegionRow, Reason> {
        let row = self.rows.get((key.0 >> 8) as usize).ok_or(Reason::KeyUnknown)?;
        if row.word(Register::Bufrkey) == key.0 & 0xFF { Ok(row) } else { Err(Reason::KeyUnknown) }
    }

    /// Whether a key that was granted before is still there. A row that was cleared has key 0, as a
    /// region may have, but no length.
    #[inline]
    pub(super) fn still_there(&self, key: RKey) -> Result<(), Reason> {
        let row = self.row(key)?;
        let length_high = row.word(Register::Accessdesc) & LENGTH_HIGH;
        if row.word(Register::Wrrdbuflen) | length_high == 0 {
            return Err(Reason::KeyUnknown);
        }
        Ok(())
    }

    /// The bus address of `va`, if `[va, va + length)` is inside the key's region, the region is of
    /// protection domain `pd` and the access is allowed. The checks' order is chosen.
    ///
    /// A row of length 0 grants nothing, so rows that were never written are harmless.
    #[inline]
    pub(super) fn lookup(
        &self,
        key: RKey,
        pd: u32,
        va: u64,
        length: u32,
        want: Access,
    ) -> Result<u64, Reason> {
        let row = self.row(key)?;
        if row.word(Register::Pdpdnum) != pd {
            return Err(Reason::ProtectionDomain);
        }
        let access = row.word(Register::Accessdesc);
        let allowed = match (want, access & ACCESS_TYPE) {
            (Access::Read, access) => access == 0 || access == READ_AND_WRITE,
            (Access::Write, access) => access == WRITE_ONLY || access == READ_AND_WRITE,
            (Access::Atomic, _) => false,
        };
        if !allowed {
            return Err(Reason::AccessRights);
        }
        let first = row.wide(Register::Virtaddrlsb, row.word(Register::Virtaddrmsb));
        let region_length = row.wide(Register::Wrrdbuflen, access >> 16);
        let base = row.wide(Register::Bufbaseaddrlsb, row.word(Register::Bufbaseaddrmsb));
        let offset = va.checked_sub(first).ok_or(Reason::AddressRange)?;
        // Neither sum can wrap: the length has 48 bits, and an offset above it fails first.
        if offset > region_length || u64::from(length) > region_length - offset {
            return Err(Reason::AddressRange);
        }
        let in_va = va.checked_add(length.into()).ok_or(Reason::AddressRange);
        let address = base.checked_add(offset).ok_or(Reason::AddressRange);
        in_va.and(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: u32 = READ_AND_WRITE;

    fn regions(rows: &[(u16, u32, u64, u64, u64, u8, u32)]) -> Regions {
        let mut regions = Regions::new();
        for &(row, pd, va, base, length, key, access) in rows {
            let mut set = |register, value| *regions.word_mut(register, row) = value;
            set(Register::Pdpdnum, pd);
            set(Register::Virtaddrlsb, va as u32);
            set(Register::Virtaddrmsb, (va >> 32) as u32);
            set(Register::Bufbaseaddrlsb, base as u32);
            set(Register::Bufbaseaddrmsb, (base >> 32) as u32);
            set(Register::Bufrkey, key.into());
            set(Register::Wrrdbuflen, length as u32);
            set(Register::Accessdesc, access | ((length >> 32) as u32) << 16);
        }
        regions
    }

    /// The vectors of AMD's example design: five regions, keys 0x98, 0x81, 0x18, 0xEB, 0xD4, and the
    /// R_Keys that its packet generator sends to queue pairs 3..=7 of protection domains 0..=4.
    #[test]
    fn the_example_designs_keys_split_into_row_and_key() {
        let keys = [0x98, 0x81, 0x18, 0xEB, 0xD4];
        let wire = [0x0098, 0x0181, 0x0218, 0x03EB, 0x04D4];
        let rows: alloc::vec::Vec<_> = (0..5u16)
            .map(|n| {
                let step = u64::from(n) * 0x4_0000;
                (
                    n,
                    n.into(),
                    0xCAD5_3074 + step,
                    0x4000_0000 + step,
                    0x4_0000,
                    keys[n as usize],
                    BOTH,
                )
            })
            .collect();
        let regions = regions(&rows);
        for n in 0..5 {
            let va = 0xCAD5_3074 + n * 0x4_0000;
            let look = |key, pd| regions.lookup(RKey(key), pd, va, 0x1000, Access::Read);
            assert_eq!(look(wire[n as usize], n as u32), Ok(0x4000_0000 + n * 0x4_0000));
            assert_eq!(look(wire[n as usize] ^ 1, n as u32), Err(Reason::KeyUnknown));
            assert_eq!(look(wire[n as usize] + 0x100, n as u32), Err(Reason::KeyUnknown));
            assert_eq!(look(wire[n as usize], n as u32 + 1), Err(Reason::ProtectionDomain));
        }
        // The generator's WRITE to a key that no region has.
        let bad = regions.lookup(RKey(0x2BA7), 0, 0xCAD5_3074, 0x1000, Access::Write);
        assert_eq!(bad, Err(Reason::KeyUnknown));
        let beyond = regions.lookup(RKey(u32::MAX), 0, 0xCAD5_3074, 1, Access::Read);
        assert_eq!(beyond, Err(Reason::KeyUnknown));
    }

    #[test]
    fn the_access_type_is_the_peers_and_reserved_ones_grant_nothing() {
        for (access, read, write) in [
            (0, true, false),
            (1, false, true),
            (2, true, true),
            (3, false, false),
            (15, false, false),
        ] {
            let regions = regions(&[(7, 1, 0, 0x1000, 0x1000, 9, access)]);
            let may = |want| match regions.lookup(RKey(0x709), 1, 0, 8, want) {
                Ok(_) => true,
                Err(reason) => {
                    assert_eq!(reason, Reason::AccessRights);
                    false
                }
            };
            assert_eq!((may(Access::Read), may(Access::Write)), (read, write), "{access}");
            assert!(!may(Access::Atomic));
        }
    }

    #[test]
    fn a_range_must_be_wholly_inside_48_bits_of_length_and_may_not_wrap() {
        let length = 0x1_0000_0010;
        let regions = regions(&[
            (0, 0, 0x1000, 0x8000_0000_0000, length, 1, BOTH),
            (1, 0, u64::MAX - 0xFF, 0x1000, 0x1000, 2, BOTH),
            (2, 0, 0, u64::MAX - 0xFF, 0x1000, 3, BOTH),
        ]);
        let at = |key, va, len| regions.lookup(RKey(key), 0, va, len, Access::Write);
        assert_eq!(at(0x001, 0x1000, 1), Ok(0x8000_0000_0000));
        assert_eq!(at(0x001, 0x1000 + length - 1, 1), Ok(0x8000_0000_0000 + length - 1));
        assert_eq!(at(0x001, 0x1000 + length - 1, 2), Err(Reason::AddressRange));
        assert_eq!(at(0x001, 0xFFF, 2), Err(Reason::AddressRange));
        assert_eq!(at(0x001, u64::MAX, 1), Err(Reason::AddressRange));
        assert_eq!(at(0x102, u64::MAX - 0xFF, 0xFF), Ok(0x1000));
        assert_eq!(at(0x102, u64::MAX - 0xFF, 0x200), Err(Reason::AddressRange));
        assert_eq!(at(0x203, 0x800, 1), Err(Reason::AddressRange));
    }

    /// A WRITE of several packets went on into memory that software had taken back.
    #[test]
    fn a_region_of_key_0_is_gone_once_its_row_is_cleared() {
        let mut regions = regions(&[(4, 1, 0, 0x1000, 0x1000, 0, BOTH)]);
        let key = RKey(0x400);
        assert!(regions.lookup(key, 1, 0, 8, Access::Write).is_ok());
        assert_eq!(regions.still_there(key), Ok(()));
        for register in [Register::Wrrdbuflen, Register::Accessdesc, Register::Bufrkey] {
            *regions.word_mut(register, 4) = 0;
        }
        assert_eq!(regions.still_there(key), Err(Reason::KeyUnknown));
        // A length of 4 GiB has no lower word.
        *regions.word_mut(Register::Accessdesc, 4) = 1 << 16;
        assert_eq!(regions.still_there(key), Ok(()));
    }

    #[test]
    fn a_row_that_was_never_written_grants_nothing() {
        let regions = Regions::new();
        assert_eq!(regions.lookup(RKey(0), 0, 0, 1, Access::Read), Err(Reason::AddressRange));
    }
}
