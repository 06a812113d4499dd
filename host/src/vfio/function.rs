//! What the front end serves: a PCI function, behind one trait. Whoever implements it knows a device and
//! nothing of vfio-user; the front end knows no device.

use softrnic_device::pci::ConfigSpace;

use super::GuestMemory;

/// A PCI function with its memory.
pub trait Function {
    /// Its configuration space.
    fn config(&self) -> &ConfigSpace;

    /// Its configuration space, to write.
    fn config_mut(&mut self) -> &mut ConfigSpace;

    /// The memory that it reaches.
    fn memory_mut(&mut self) -> &mut GuestMemory;

    /// Reads from a BAR. The range lies inside of it, and may have any width and alignment.
    fn read(&mut self, bar: usize, offset: u32, out: &mut [u8]);

    /// Writes to a BAR, as [`Function::read`] reads.
    fn write(&mut self, bar: usize, offset: u32, bytes: &[u8]);

    /// The level of its interrupt line.
    fn interrupt(&self) -> bool;

    /// An MSI-X vector has something to tell and nobody to tell it to; or not any more.
    fn set_pending(&mut self, vector: usize, pending: bool);

    /// Power-on state of everything but configuration space and memory.
    fn reset(&mut self);
}
