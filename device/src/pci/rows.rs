//! The registers of configuration space, one row each. Base address registers are not here: their bits
//! follow from the function's [`Bar`](super::Bar)s.

/// Where the power management capability is.
pub const POWER_CAPABILITY: u8 = 0x40;
/// Where the MSI-X capability is.
pub const MSIX_CAPABILITY: u8 = 0x50;
/// Where the PCI Express capability is.
pub const PCIE_CAPABILITY: u8 = 0x60;

/// A register of configuration space.
#[derive(Clone, Copy, Debug)]
pub struct ConfigRow {
    /// Name in the specification.
    pub name: &'static str,
    /// Offset of its first byte.
    pub offset: u8,
    /// Bytes: 1, 2 or 4.
    pub len: u8,
    /// Value after reset, before what the function's identity sets.
    pub reset: u32,
    /// Bits that software writes.
    pub writable: u32,
    /// Bits that software clears by writing 1.
    pub clear: u32,
    /// One sentence.
    pub text: &'static str,
}

impl ConfigRow {
    const fn fixed(
        name: &'static str,
        offset: u8,
        len: u8,
        reset: u32,
        text: &'static str,
    ) -> Self {
        Self { name, offset, len, reset, writable: 0, clear: 0, text }
    }

    const fn writable(self, writable: u32) -> Self {
        Self { writable, ..self }
    }

    const fn clear(self, clear: u32) -> Self {
        Self { clear, ..self }
    }
}

/// Memory space enable (Command).
pub(super) const MEMORY_ENABLE: u32 = 1 << 1;
/// Bus master enable (Command).
pub(super) const BUS_MASTER: u32 = 1 << 2;
/// Interrupt disable (Command): no INTx.
pub(super) const INTX_DISABLE: u32 = 1 << 10;
/// Interrupt status (Status): INTx is asserted, or would be.
pub(super) const INTX_STATUS: u32 = 1 << 3;
/// Function mask (MSI-X message control).
pub(super) const MSIX_MASK: u32 = 1 << 14;
/// MSI-X enable (message control).
pub(super) const MSIX_ENABLE: u32 = 1 << 15;
/// Initiate function level reset (Device Control); reads 0.
pub(super) const FUNCTION_LEVEL_RESET: u32 = 1 << 15;

pub(super) const COMMAND: u8 = 0x04;
pub(super) const STATUS: u8 = 0x06;
pub(super) const MSIX_CONTROL: u8 = MSIX_CAPABILITY + 2;
pub(super) const DEVICE_CONTROL: u8 = PCIE_CAPABILITY + 8;

use super::msix::{MSIX_BAR, MSIX_PENDING_OFFSET, VECTORS};

const fn after(capability: u8, offset: u8) -> u8 {
    capability + offset
}

/// Every register that is not all zero or can be written, by offset. What no row covers reads 0.
pub const ROWS: &[ConfigRow] = &[
    ConfigRow::fixed("Vendor ID", 0x00, 2, 0, "From the identity."),
    ConfigRow::fixed("Device ID", 0x02, 2, 0, "From the identity."),
    ConfigRow::fixed("Command", COMMAND, 2, 0, "What the function may do on the bus.")
        // Memory space, bus master, parity error response, SERR#, interrupt disable. There is no I/O space.
        .writable(MEMORY_ENABLE | BUS_MASTER | 1 << 6 | 1 << 8 | INTX_DISABLE),
    ConfigRow::fixed("Status", STATUS, 2, 1 << 4, "Capabilities list; INTx; errors seen.")
        .clear(1 << 8 | 0x1F << 11),
    ConfigRow::fixed("Revision ID", 0x08, 1, 0, "From the identity."),
    ConfigRow::fixed("Class Code", 0x09, 1, 0, "Programming interface, from the identity."),
    ConfigRow::fixed("Subclass", 0x0A, 2, 0, "Subclass and base class, from the identity."),
    ConfigRow::fixed("Cache Line Size", 0x0C, 1, 0, "Kept; means nothing on PCI Express.")
        .writable(0xFF),
    ConfigRow::fixed("Header Type", 0x0E, 1, 0, "Type 0, one function."),
    ConfigRow::fixed("Subsystem Vendor ID", 0x2C, 2, 0, "From the identity."),
    ConfigRow::fixed("Subsystem ID", 0x2E, 2, 0, "From the identity."),
    ConfigRow::fixed("Capabilities Pointer", 0x34, 1, POWER_CAPABILITY as u32, "First capability."),
    ConfigRow::fixed("Interrupt Line", 0x3C, 1, 0, "Kept for software.").writable(0xFF),
    ConfigRow::fixed("Interrupt Pin", 0x3D, 1, 1, "INTA."),
    // Power management, version 3, no PME.
    ConfigRow::fixed(
        "Power Management",
        POWER_CAPABILITY,
        4,
        0x0003_0001 | (MSIX_CAPABILITY as u32) << 8,
        "Capability 1, version 3, D0 and D3hot.",
    ),
    ConfigRow::fixed(
        "Power Management Control",
        after(POWER_CAPABILITY, 4),
        2,
        1 << 3,
        "Power state; going back to D0 resets nothing.",
    )
    .writable(0b11),
    ConfigRow::fixed(
        "MSI-X",
        MSIX_CAPABILITY,
        2,
        0x11 | (PCIE_CAPABILITY as u32) << 8,
        "Capability 0x11.",
    ),
    ConfigRow::fixed(
        "MSI-X Message Control",
        MSIX_CONTROL,
        2,
        VECTORS as u32 - 1,
        "Vectors less one; function mask; enable.",
    )
    .writable(MSIX_MASK | MSIX_ENABLE),
    ConfigRow::fixed(
        "MSI-X Table",
        after(MSIX_CAPABILITY, 4),
        4,
        MSIX_BAR as u32,
        "Where the vector table is: BAR and offset.",
    ),
    ConfigRow::fixed(
        "MSI-X Pending Bits",
        after(MSIX_CAPABILITY, 8),
        4,
        MSIX_PENDING_OFFSET | MSIX_BAR as u32,
        "Where the pending bits are: BAR and offset.",
    ),
    ConfigRow::fixed(
        "PCI Express",
        PCIE_CAPABILITY,
        4,
        0x0002_0010,
        "Capability 0x10, version 2, endpoint.",
    ),
    ConfigRow::fixed(
        "Device Capabilities",
        after(PCIE_CAPABILITY, 4),
        4,
        // 256-byte payloads, extended tags, role-based error reporting, function level reset.
        1 | 1 << 5 | 1 << 15 | 1 << 28,
        "Payloads up to 256 bytes, function level reset.",
    ),
    ConfigRow::fixed(
        "Device Control",
        DEVICE_CONTROL,
        2,
        // Relaxed ordering, no snoop, read requests of 512 bytes.
        1 << 4 | 1 << 11 | 2 << 12,
        "Error reporting, payload and read request sizes; bit 15 resets the function.",
    )
    .writable(0x79FF),
    ConfigRow::fixed("Device Status", after(PCIE_CAPABILITY, 0x0A), 2, 0, "Errors seen.")
        .clear(0b1111),
    ConfigRow::fixed(
        "Link Capabilities",
        after(PCIE_CAPABILITY, 0x0C),
        4,
        // 8 GT/s, 16 lanes, ASPM optionality compliance.
        3 | 16 << 4 | 1 << 22,
        "8 GT/s, 16 lanes.",
    ),
    ConfigRow::fixed("Link Control", after(PCIE_CAPABILITY, 0x10), 2, 0, "Kept.")
        // ASPM, read completion boundary, common clock, extended synch.
        .writable(0b11 | 1 << 3 | 1 << 6 | 1 << 7),
    ConfigRow::fixed(
        "Link Status",
        after(PCIE_CAPABILITY, 0x12),
        2,
        // The slot's clock.
        3 | 16 << 4 | 1 << 12,
        "8 GT/s, 16 lanes.",
    ),
    ConfigRow::fixed(
        "Device Capabilities 2",
        after(PCIE_CAPABILITY, 0x24),
        4,
        1 << 4,
        "The completion timeout can be switched off.",
    ),
    ConfigRow::fixed("Device Control 2", after(PCIE_CAPABILITY, 0x28), 2, 0, "Kept.")
        .writable(1 << 4),
    ConfigRow::fixed(
        "Link Capabilities 2",
        after(PCIE_CAPABILITY, 0x2C),
        4,
        0b1110,
        "2.5, 5 and 8 GT/s.",
    ),
    ConfigRow::fixed("Link Control 2", after(PCIE_CAPABILITY, 0x30), 2, 3, "Target link speed.")
        .writable(0b1111),
];
