//! The messages of the vfio-user protocol, version 0.0: layouts, numbers and limits, little endian.
//!
//! Source: the protocol's specification (libvfio-user, `docs/vfio-user.rst`) and what QEMU 11 sends;
//! flags and indices are those of Linux' `vfio.h`. Knows no device.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of data in one access at most; told to the client.
pub const DATA_MAX: usize = 64 * 1024;
/// Bytes of a message at most: the largest access and its headers.
pub const MESSAGE_MAX: usize = DATA_MAX + 64;
/// File descriptors in one message at most, the largest number that QEMU takes.
pub const FDS_MAX: usize = 16;
/// Pieces of memory that a client may have mapped at the same time. Each is a mapping of this process.
pub const MAPS_MAX: usize = 4096;
/// Page size: what maps are multiples of.
pub const PAGE_LEN: u64 = 4096;

/// What a message asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Versions and capabilities; the first message.
    Version,
    /// Memory appears.
    DmaMap,
    /// Memory goes away.
    DmaUnmap,
    /// What kind of device it is.
    DeviceInfo,
    /// Size and flags of a region.
    RegionInfo,
    /// Number and flags of interrupts.
    IrqInfo,
    /// Interrupt targets.
    SetIrqs,
    /// Read from a region.
    RegionRead,
    /// Write to a region.
    RegionWrite,
    /// Reset the device.
    DeviceReset,
    /// Several small writes.
    RegionWriteMulti,
}

/// Commands by number. Numbers 6 (file descriptors of regions) and 14 (dirty pages) are not offered; 11
/// and 12 go the other way, and are not used: memory comes by file descriptor.
const COMMANDS: [(u16, Command, &str); 11] = [
    (1, Command::Version, "VERSION"),
    (2, Command::DmaMap, "DMA_MAP"),
    (3, Command::DmaUnmap, "DMA_UNMAP"),
    (4, Command::DeviceInfo, "DEVICE_GET_INFO"),
    (5, Command::RegionInfo, "DEVICE_GET_REGION_INFO"),
    (7, Command::IrqInfo, "DEVICE_GET_IRQ_INFO"),
    (8, Command::SetIrqs, "DEVICE_SET_IRQS"),
    (9, Command::RegionRead, "REGION_READ"),
    (10, Command::RegionWrite, "REGION_WRITE"),
    (13, Command::DeviceReset, "DEVICE_RESET"),
    (15, Command::RegionWriteMulti, "REGION_WRITE_MULTI"),
];

impl Command {
    /// The command of a number, if it is one that a client may send.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        COMMANDS.iter().find(|row| row.0 == number).map(|row| row.1)
    }

    /// Its number.
    #[must_use]
    pub fn number(self) -> u16 {
        self.row().0
    }

    /// Its name in the specification, without the prefix.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().2
    }

    fn row(self) -> &'static (u16, Self, &'static str) {
        COMMANDS.iter().find(|row| row.1 == self).unwrap_or(&COMMANDS[0])
    }
}

/// Before every message.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Chosen by the sender; a reply repeats it.
    pub id: U16,
    /// Which command.
    pub command: U16,
    /// Bytes of the message, this header included.
    pub size: U32,
    /// [`flags`].
    pub flags: U32,
    /// Why it failed, if the error flag is set.
    pub errno: U32,
}

/// Flags of a header.
pub mod flags {
    /// Which of these is a reply: bits 3 to 0, 0 a command, 1 a reply.
    pub const TYPE: u32 = 0xF;
    /// A reply.
    pub const REPLY: u32 = 1;
    /// A command that wants no reply: a posted write.
    pub const NO_REPLY: u32 = 1 << 4;
    /// A reply with an error number.
    pub const ERROR: u32 = 1 << 5;
}

/// VERSION; JSON text with a zero byte behind it follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Version {
    /// 0.
    pub major: U16,
    /// 0: QEMU 11 takes no other.
    pub minor: U16,
}

/// DMA_MAP; the memory's file descriptor comes beside it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DmaMap {
    /// Bytes of this structure.
    pub argsz: U32,
    /// Bit 0 the device may read, bit 1 it may write.
    pub flags: U32,
    /// Where in the file the memory begins.
    pub offset: U64,
    /// First bus address.
    pub address: U64,
    /// Bytes.
    pub size: U64,
}

/// DMA_UNMAP, and its reply.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DmaUnmap {
    /// Bytes of this structure.
    pub argsz: U32,
    /// Bit 1: everything.
    pub flags: U32,
    /// First bus address.
    pub address: U64,
    /// Bytes.
    pub size: U64,
}

/// The device may read (DMA_MAP).
pub const MAP_READ: u32 = 1;
/// The device may write (DMA_MAP).
pub const MAP_WRITE: u32 = 1 << 1;
/// Everything goes away (DMA_UNMAP).
pub const UNMAP_ALL: u32 = 1 << 1;

/// DEVICE_GET_INFO, and its reply.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DeviceInfo {
    /// Bytes of this structure.
    pub argsz: U32,
    /// Bit 0: can be reset; bit 1: PCI.
    pub flags: U32,
    /// Regions.
    pub num_regions: U32,
    /// Interrupt indices.
    pub num_irqs: U32,
}

/// A PCI device that can be reset.
pub const DEVICE_FLAGS: u32 = 0b11;

/// DEVICE_GET_REGION_INFO, and its reply.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RegionInfo {
    /// Bytes of this structure.
    pub argsz: U32,
    /// Bit 0 readable, bit 1 writable.
    pub flags: U32,
    /// Which region.
    pub index: U32,
    /// Where capabilities begin; there are none.
    pub cap_offset: U32,
    /// Bytes of the region.
    pub size: U64,
    /// Where it is in a file; not mapped.
    pub offset: U64,
}

/// Readable and writable (DEVICE_GET_REGION_INFO). No region can be mapped: with one that can, QEMU waits
/// for every write to every region.
pub const REGION_FLAGS: u32 = 0b11;
/// Regions: BARs 0 to 5, ROM, configuration space, VGA.
pub const REGIONS: u32 = 9;
/// The region that is configuration space.
pub const CONFIG_REGION: u32 = 7;

/// DEVICE_GET_IRQ_INFO, and its reply.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IrqInfo {
    /// Bytes of this structure.
    pub argsz: U32,
    /// Bit 0 by eventfd, bit 1 maskable, bit 2 masks itself, bit 3 not resizable.
    pub flags: U32,
    /// Which index.
    pub index: U32,
    /// Interrupts of this index.
    pub count: U32,
}

/// Interrupt indices: INTx, MSI, MSI-X, error, request.
pub const IRQS: u32 = 5;
/// INTx.
pub const IRQ_INTX: u32 = 0;
/// MSI-X.
pub const IRQ_MSIX: u32 = 2;
/// Triggered by eventfd.
pub const IRQ_EVENTFD: u32 = 1;
/// May be masked, and masks itself when it triggers.
pub const IRQ_AUTOMASKED: u32 = 0b110;

/// DEVICE_SET_IRQS; booleans may follow, and eventfds come beside it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SetIrqs {
    /// Bytes of this structure.
    pub argsz: U32,
    /// What follows, and what to do with it: [`irq_set`].
    pub flags: U32,
    /// Which index.
    pub index: U32,
    /// The first interrupt of the index.
    pub start: U32,
    /// How many.
    pub count: U32,
}

/// Flags of [`SetIrqs`].
pub mod irq_set {
    /// Nothing follows.
    pub const DATA_NONE: u32 = 1;
    /// A byte for each interrupt follows.
    pub const DATA_BOOL: u32 = 1 << 1;
    /// An eventfd for each interrupt comes beside it, or none at all to take them away.
    pub const DATA_EVENTFD: u32 = 1 << 2;
    /// Mask.
    pub const MASK: u32 = 1 << 3;
    /// Unmask.
    pub const UNMASK: u32 = 1 << 4;
    /// Set targets, or trigger.
    pub const TRIGGER: u32 = 1 << 5;
    /// What follows.
    pub const DATA: u32 = DATA_NONE | DATA_BOOL | DATA_EVENTFD;
    /// What to do.
    pub const ACTION: u32 = MASK | UNMASK | TRIGGER;
}

/// REGION_READ and REGION_WRITE, and their replies; data follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RegionAccess {
    /// Where in the region.
    pub offset: U64,
    /// Which region.
    pub region: U32,
    /// Bytes.
    pub count: U32,
}

/// REGION_WRITE_MULTI begins with this; entries follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct WriteMulti {
    /// Entries.
    pub count: U64,
}

/// An entry of REGION_WRITE_MULTI.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct WriteEntry {
    /// Where and how much, at most 8 bytes.
    pub access: RegionAccess,
    /// The bytes, from the first on.
    pub data: [u8; 8],
}

/// Bytes of a header.
pub const HEADER_LEN: usize = size_of::<Header>();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_specification() {
        assert_eq!(HEADER_LEN, 16);
        assert_eq!((size_of::<DmaMap>(), size_of::<DmaUnmap>()), (32, 24));
        assert_eq!((size_of::<DeviceInfo>(), size_of::<RegionInfo>()), (16, 32));
        assert_eq!((size_of::<IrqInfo>(), size_of::<SetIrqs>()), (16, 20));
        assert_eq!((size_of::<RegionAccess>(), size_of::<WriteEntry>()), (16, 24));
    }

    #[test]
    fn commands_go_to_numbers_and_back() {
        for (number, command, name) in COMMANDS {
            assert_eq!((command.number(), command.name()), (number, name));
            assert_eq!(Command::from_number(number), Some(command));
        }
        for number in [0, 6, 11, 12, 14, 16, u16::MAX] {
            assert_eq!(Command::from_number(number), None);
        }
    }
}
