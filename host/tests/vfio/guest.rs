//! A guest without a virtual machine: memory behind a memfd, a vfio-user client for registers, an
//! eventfd for interrupts. The driver's platform.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use softrnic_device::pci::ERNIC_BAR;
use softrnic_driver::{DmaBuffer, DmaError, Platform};
use softrnic_host::vfio::wire::{CONFIG_REGION, IRQ_MSIX};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};

use crate::client::{Client, DEADLINE};

/// Bytes of the guest's memory.
pub const RAM_LEN: u64 = 8 << 20;
/// Where it is on the bus. In the file it begins one page later.
pub const RAM_BASE: u64 = 0x1_0000_0000;
pub const FILE_OFFSET: u64 = 0x1000;

/// A memfd as QEMU makes one: it may be sealed.
pub fn memory_file(len: u64) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("guest", flags).unwrap();
    ftruncate(&file, len).unwrap();
    file
}

pub fn interrupt_target() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// Waits until an eventfd was written and takes its count; `None`: it was not, in the time given.
pub fn wait_for(target: &OwnedFd, seconds: i64) -> Option<u64> {
    let timeout = Timespec { tv_sec: seconds, tv_nsec: 0 };
    poll(&mut [PollFd::new(target, PollFlags::IN)], Some(&timeout)).unwrap();
    let mut count = [0; 8];
    rustix::io::read(target, &mut count).ok().map(|_| u64::from_ne_bytes(count))
}

pub struct Guest {
    pub client: Client,
    pub interrupt: OwnedFd,
    memory: MmapRegion,
    next: u64,
}

impl Guest {
    /// Brings the bus up: version, memory, command register, one MSI-X vector.
    pub fn boot(path: &Path) -> Self {
        let mut client = Client::greet(path);
        let file = memory_file(FILE_OFFSET + RAM_LEN);
        client.map(RAM_BASE, RAM_LEN, Some((file.as_fd(), FILE_OFFSET))).unwrap();
        client.write(CONFIG_REGION, 4, &6u16.to_le_bytes()).unwrap();
        let interrupt = interrupt_target();
        client.set_target(IRQ_MSIX, &interrupt).unwrap();
        let mapped = FileOffset::new(file.into(), FILE_OFFSET);
        let memory = MmapRegion::from_file(mapped, RAM_LEN as usize).unwrap();
        Self { client, interrupt, memory, next: RAM_BASE }
    }

    /// Waits for an interrupt.
    pub fn wait_for_interrupt(&mut self) {
        let seconds = DEADLINE.as_secs() as i64;
        wait_for(&self.interrupt, seconds).expect("no interrupt came");
    }
}

impl Platform for Guest {
    fn read32(&mut self, offset: u32) -> u32 {
        self.client.read32(ERNIC_BAR as u32, offset.into())
    }

    fn write32(&mut self, offset: u32, value: u32) {
        self.client.post(ERNIC_BAR as u32, offset.into(), &value.to_le_bytes());
    }

    fn dma_alloc(&mut self, len: usize, align: usize) -> Option<DmaBuffer> {
        let bus = self.next.next_multiple_of(align as u64);
        self.next = bus + len as u64;
        (self.next <= RAM_BASE + RAM_LEN).then_some(DmaBuffer { bus, len })
    }

    fn dma_free(&mut self, _: DmaBuffer) {}

    fn dma_read(&mut self, bus: u64, out: &mut [u8]) -> Result<(), DmaError> {
        let at = (bus - RAM_BASE) as usize;
        self.memory.get_slice(at, out.len()).unwrap().copy_to(out);
        Ok(())
    }

    fn dma_write(&mut self, bus: u64, bytes: &[u8]) -> Result<(), DmaError> {
        let at = (bus - RAM_BASE) as usize;
        self.memory.get_slice(at, bytes.len()).unwrap().copy_from(bytes);
        Ok(())
    }

    fn pause(&mut self) {
        std::thread::yield_now();
    }
}
