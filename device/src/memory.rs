//! Memory as a device sees it: bus addresses, and faults instead of panics.
//!
//! Knows no face and no guest; `host` has its own kinds of memory.

use alloc::boxed::Box;
use alloc::vec;
use core::fmt;

use softrnic_engine::Reason;

/// A bus address range that is not memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DmaFault {
    /// First address of the access.
    pub address: u64,
    /// Bytes of the access.
    pub len: usize,
}

impl fmt::Display for DmaFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x} are not all memory of this device", self.len, self.address)
    }
}

impl core::error::Error for DmaFault {}

impl From<DmaFault> for Reason {
    fn from(_: DmaFault) -> Self {
        Self::DmaAddress
    }
}

/// Memory that a device can reach. An access is done whole or not at all.
pub trait Memory {
    /// Copies from memory.
    ///
    /// # Errors
    /// Part of the range is not memory; `out` is unchanged.
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), DmaFault>;

    /// Copies to memory.
    ///
    /// # Errors
    /// Part of the range is not memory; memory is unchanged.
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), DmaFault>;

    /// Reads a little-endian word.
    ///
    /// # Errors
    /// As [`Memory::read`].
    fn read_u32(&self, address: u64) -> Result<u32, DmaFault> {
        let mut bytes = [0; 4];
        self.read(address, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Writes a little-endian word.
    ///
    /// # Errors
    /// As [`Memory::write`].
    fn write_u32(&mut self, address: u64, value: u32) -> Result<(), DmaFault> {
        self.write(address, &value.to_le_bytes())
    }
}

/// Plain memory from a base address on.
#[derive(Clone, Debug)]
pub struct Ram {
    base: u64,
    bytes: Box<[u8]>,
}

impl Ram {
    /// `len` zero bytes at `base`.
    #[must_use]
    pub fn new(base: u64, len: usize) -> Self {
        Self { base, bytes: vec![0; len].into_boxed_slice() }
    }

    /// First address.
    #[must_use]
    pub const fn base(&self) -> u64 {
        self.base
    }

    /// All bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes at an address range.
    ///
    /// # Errors
    /// Part of the range is not memory.
    #[inline]
    pub fn slice(&self, address: u64, len: usize) -> Result<&[u8], DmaFault> {
        let at = usize::try_from(address.wrapping_sub(self.base)).unwrap_or(usize::MAX);
        at.checked_add(len).and_then(|end| self.bytes.get(at..end)).ok_or(DmaFault { address, len })
    }

    /// The bytes at an address range, to change.
    ///
    /// # Errors
    /// Part of the range is not memory.
    #[inline]
    pub fn slice_mut(&mut self, address: u64, len: usize) -> Result<&mut [u8], DmaFault> {
        let at = usize::try_from(address.wrapping_sub(self.base)).unwrap_or(usize::MAX);
        at.checked_add(len)
            .and_then(|end| self.bytes.get_mut(at..end))
            .ok_or(DmaFault { address, len })
    }
}

impl Memory for Ram {
    #[inline]
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), DmaFault> {
        out.copy_from_slice(self.slice(address, out.len())?);
        Ok(())
    }

    #[inline]
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), DmaFault> {
        self.slice_mut(address, bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_that_leaves_memory_changes_nothing() {
        let mut ram = Ram::new(0x1000, 16);
        assert!(ram.write(0x100C, &[1; 4]).is_ok());
        assert_eq!(ram.write(0x100D, &[2; 4]), Err(DmaFault { address: 0x100D, len: 4 }));
        assert!(ram.write(0xFFF, &[3; 4]).is_err());
        assert!(ram.write(u64::MAX, &[4; 4]).is_err());
        assert_eq!(ram.read_u32(0x100C), Ok(0x0101_0101));
    }
}
