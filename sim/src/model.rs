//! The device model as a driver's platform: 32-bit registers and memory, and nothing else between
//! them.
//!
//! Knows no world; benchmarks and tests use it as it is.

use softrnic_device::ernic::{Ernic as ErnicDevice, ErnicConfig};
use softrnic_device::{Memory, Nic, Ram};
use softrnic_driver::{DmaBuffer, DmaError, Platform};

use crate::fault::Lent;
use crate::node::{Arena, MEMORY_BASE, NodeError};

/// An ERNIC device with memory of its own.
#[derive(Debug)]
pub struct Model {
    /// The device, for whoever carries its frames and runs its clock.
    pub nic: Nic<ErnicDevice, Ram>,
    /// The fault rules that register writes pass on their way to the face, while the world lends them.
    pub(crate) rules: Option<Lent>,
    arena: Arena,
}

impl Model {
    /// A device that can reach `memory_len` bytes.
    #[must_use]
    pub fn new(device: ErnicConfig, memory_len: usize) -> Self {
        let ram = Ram::new(MEMORY_BASE, memory_len);
        Self { nic: Nic::ernic(device, ram), rules: None, arena: Arena::new(memory_len as u64) }
    }

    pub(crate) fn take(&mut self, len: u64, align: u64) -> Result<u64, NodeError> {
        self.arena.take(len, align)
    }
}

impl Platform for Model {
    fn read32(&mut self, offset: u32) -> u32 {
        self.nic.read32(offset)
    }

    fn write32(&mut self, offset: u32, value: u32) {
        self.nic.write32_through(&mut self.rules, offset, value);
    }

    fn dma_alloc(&mut self, len: usize, align: usize) -> Option<DmaBuffer> {
        let bus = self.arena.take(len as u64, align as u64).ok()?;
        Some(DmaBuffer { bus, len })
    }

    // A run is short, and its memory was counted beforehand.
    fn dma_free(&mut self, _: DmaBuffer) {}

    fn dma_read(&mut self, bus: u64, out: &mut [u8]) -> Result<(), DmaError> {
        let len = out.len();
        self.nic.memory.read(bus, out).map_err(|_| DmaError { bus, len })
    }

    fn dma_write(&mut self, bus: u64, bytes: &[u8]) -> Result<(), DmaError> {
        let len = bytes.len();
        self.nic.memory.write(bus, bytes).map_err(|_| DmaError { bus, len })
    }

    // The model has done all it can when a register access returns.
    fn pause(&mut self) {}
}
