//! What the driver needs from the world: 32-bit registers, DMA memory with bus addresses, a pause.
//!
//! Knows no register and no queue.

use core::fmt;

/// A device's registers and the memory it can reach. One implementation maps a card, another a
/// model; the driver cannot tell them apart.
///
/// Ordering is the platform's duty: what [`Platform::dma_write`] wrote must be visible to the device
/// before a later [`Platform::write32`] is, and a [`Platform::dma_read`] must not be served from
/// before an earlier [`Platform::read32`].
pub trait Platform {
    /// Reads the register at a byte offset, a multiple of 4. A device that does not answer reads as
    /// all ones, as PCI does it.
    fn read32(&mut self, offset: u32) -> u32;

    /// Writes the register at a byte offset, a multiple of 4.
    fn write32(&mut self, offset: u32, value: u32);

    /// Zeroed memory that the device can reach, contiguous in bus addresses; `align` is a power of
    /// two. `None` where there is no more.
    fn dma_alloc(&mut self, len: usize, align: usize) -> Option<DmaBuffer>;

    /// Gives memory back. May do nothing.
    fn dma_free(&mut self, buffer: DmaBuffer);

    /// Copies out of DMA memory.
    ///
    /// # Errors
    /// Part of the range is not DMA memory.
    fn dma_read(&mut self, bus: u64, out: &mut [u8]) -> Result<(), DmaError>;

    /// Copies into DMA memory.
    ///
    /// # Errors
    /// Part of the range is not DMA memory; nothing was written.
    fn dma_write(&mut self, bus: u64, bytes: &[u8]) -> Result<(), DmaError>;

    /// Called between two looks at a register while the driver waits.
    fn pause(&mut self);
}

/// A piece of DMA memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DmaBuffer {
    /// Address of its first byte as the device sees it.
    pub bus: u64,
    /// Bytes.
    pub len: usize,
}

/// A bus address range that is not DMA memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DmaError {
    /// First address of the access.
    pub bus: u64,
    /// Bytes of the access.
    pub len: usize,
}

impl fmt::Display for DmaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at bus address {:#x} are not DMA memory", self.len, self.bus)
    }
}

impl core::error::Error for DmaError {}
