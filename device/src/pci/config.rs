//! A function's configuration space: bytes, which of their bits may be written, and what a write means.

use core::fmt;

use super::CONFIG_LEN;
use super::rows::{
    BUS_MASTER, COMMAND, DEVICE_CONTROL, FUNCTION_LEVEL_RESET, INTX_DISABLE, INTX_STATUS,
    MEMORY_ENABLE, MSIX_CONTROL, MSIX_ENABLE, MSIX_MASK, ROWS, STATUS,
};

/// Bytes that are not all 0: header and capabilities. The rest of the space, PCI Express' extended part
/// included, is empty.
const LEN: usize = 0x100;
const FIRST_BAR: usize = 0x10;
const BARS: usize = 6;

/// Who the function is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
    /// Revision.
    pub revision: u8,
    /// Base class, subclass, programming interface: 24 bits.
    pub class: u32,
    /// Subsystem vendor id.
    pub subsystem_vendor: u16,
    /// Subsystem id.
    pub subsystem: u16,
}

/// A base address register: 32-bit memory, not prefetchable, because reading a register may have
/// effects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bar {
    /// Which one, 0 to 5.
    pub index: usize,
    /// Bytes: a power of two, 16 or more.
    pub len: u32,
}

/// A base address register that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BarError(pub Bar);

impl fmt::Display for BarError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bar { index, len } = self.0;
        write!(f, "BAR {index} of {len} bytes: there are BARs 0 to 5, of 2^n bytes, at least 16")
    }
}

impl core::error::Error for BarError {}

/// What a write to configuration space asks for, beyond the bits it leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConfigWrite {
    /// Nothing but the bits.
    Kept,
    /// A function level reset. The space itself is reset already.
    FunctionLevelReset,
}

/// Configuration space of one function.
#[derive(Clone, Debug)]
pub struct ConfigSpace {
    identity: Identity,
    bytes: [u8; LEN],
    writable: [u8; LEN],
    clear: [u8; LEN],
    bars: [u32; BARS],
}

impl ConfigSpace {
    /// The space after reset.
    ///
    /// # Errors
    /// A BAR that cannot be.
    pub fn new(identity: Identity, bars: &[Bar]) -> Result<Self, BarError> {
        let mut space = Self {
            identity,
            bytes: [0; LEN],
            writable: [0; LEN],
            clear: [0; LEN],
            bars: [0; BARS],
        };
        for row in ROWS {
            let (at, len) = (usize::from(row.offset), usize::from(row.len));
            space.writable[at..at + len].copy_from_slice(&row.writable.to_le_bytes()[..len]);
            space.clear[at..at + len].copy_from_slice(&row.clear.to_le_bytes()[..len]);
        }
        for bar in bars {
            let slot = space.bars.get_mut(bar.index).ok_or(BarError(*bar))?;
            if !bar.len.is_power_of_two() || bar.len < 16 {
                return Err(BarError(*bar));
            }
            *slot = bar.len;
            let at = FIRST_BAR + bar.index * 4;
            space.writable[at..at + 4].copy_from_slice(&(!(bar.len - 1)).to_le_bytes());
        }
        space.reset();
        Ok(space)
    }

    /// Values after reset again.
    pub fn reset(&mut self) {
        self.bytes = [0; LEN];
        for row in ROWS {
            self.put(row.offset.into(), &row.reset.to_le_bytes()[..row.len.into()]);
        }
        let identity = self.identity;
        self.put(0x00, &identity.vendor.to_le_bytes());
        self.put(0x02, &identity.device.to_le_bytes());
        self.put(0x08, &[identity.revision]);
        self.put(0x09, &identity.class.to_le_bytes()[..3]);
        self.put(0x2C, &identity.subsystem_vendor.to_le_bytes());
        self.put(0x2E, &identity.subsystem.to_le_bytes());
    }

    /// Bytes of a BAR; 0 where there is none.
    #[must_use]
    pub fn bar_len(&self, index: usize) -> u32 {
        self.bars.get(index).copied().unwrap_or(0)
    }

    /// Reads bytes at any offset. What lies outside of the space reads all ones.
    pub fn read(&self, offset: u16, out: &mut [u8]) {
        for (at, byte) in (usize::from(offset)..).zip(out) {
            *byte = match self.bytes.get(at) {
                Some(value) => *value,
                None if at < usize::from(CONFIG_LEN) => 0,
                None => 0xFF,
            };
        }
    }

    /// Writes bytes at any offset: bits that may not be written stay.
    pub fn write(&mut self, offset: u16, bytes: &[u8]) -> ConfigWrite {
        let mut asked = ConfigWrite::Kept;
        for (at, byte) in (usize::from(offset)..).zip(bytes) {
            let Some(value) = self.bytes.get_mut(at) else { break };
            *value = *value & !self.writable[at] | byte & self.writable[at];
            *value &= !(byte & self.clear[at]);
            // The second byte of the register: its bit reads 0 and is no bit of the mask.
            if at == usize::from(DEVICE_CONTROL) + 1
                && u32::from(*byte) << 8 & FUNCTION_LEVEL_RESET != 0
            {
                asked = ConfigWrite::FunctionLevelReset;
            }
        }
        if asked == ConfigWrite::FunctionLevelReset {
            self.reset();
        }
        asked
    }

    /// Whether the function may read and write memory.
    #[must_use]
    pub fn bus_master(&self) -> bool {
        self.word(COMMAND) & BUS_MASTER != 0
    }

    /// Whether the function answers at its BARs.
    #[must_use]
    pub fn memory_enabled(&self) -> bool {
        self.word(COMMAND) & MEMORY_ENABLE != 0
    }

    /// Whether INTx may be asserted.
    #[must_use]
    pub fn intx_enabled(&self) -> bool {
        self.word(COMMAND) & INTX_DISABLE == 0
    }

    /// Whether MSI-X messages may be sent: enabled, and the function not masked.
    #[must_use]
    pub fn msix_enabled(&self) -> bool {
        self.word(MSIX_CONTROL) & (MSIX_ENABLE | MSIX_MASK) == MSIX_ENABLE
    }

    /// Shows in Status whether an INTx is pending, be it enabled or not.
    pub fn set_intx_status(&mut self, pending: bool) {
        let byte = &mut self.bytes[usize::from(STATUS)];
        *byte = *byte & !(INTX_STATUS as u8) | if pending { INTX_STATUS as u8 } else { 0 };
    }

    fn word(&self, offset: u8) -> u32 {
        let mut bytes = [0; 2];
        self.read(offset.into(), &mut bytes);
        u16::from_le_bytes(bytes).into()
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) {
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
}
