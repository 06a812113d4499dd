//! PCI configuration space as data: a type 0 header, base address registers that can be sized, and the
//! capabilities of a PCI Express endpoint with MSI-X.
//!
//! | file | what |
//! |---|---|
//! | `rows` | the registers: place, value after reset, which bits may be written or cleared |
//! | `config` | the space itself: byte-exact reads and writes, and what a write means |
//! | `msix` | the vector table and the pending bits |
//!
//! Sources: PCI Local Bus 3.0 chapter 6, PCI Express Base 3.1 chapter 7. Knows no face, no bus and no
//! front end: whoever shows the function to software acts on what a write means.

mod config;
mod msix;
mod rows;

pub use config::{Bar, BarError, ConfigSpace, ConfigWrite, Identity};
pub use msix::{MSIX_BAR, MSIX_BAR_LEN, MSIX_PENDING_OFFSET, MsixTable, VECTORS};
pub use rows::{ConfigRow, MSIX_CAPABILITY, PCIE_CAPABILITY, POWER_CAPABILITY, ROWS};

/// Bytes of configuration space.
pub const CONFIG_LEN: u16 = 4096;

/// AMD / Xilinx.
pub const VENDOR_XILINX: u16 = 0x10EE;

/// What the ERNIC presents itself as. Chosen: vendor and device as RecoNIC's card shows them in
/// `lspci` (10ee:903f, physical function 0 of the QDMA for Gen3 x16), and the class that its shell
/// (OpenNIC, `qdma_no_sriov_au250.tcl`) sets: network controller, other. ERNIC itself is an IP core
/// and has no ids. The subsystem id is the vendor's default for PCI Express IP.
pub const ERNIC_IDENTITY: Identity = Identity {
    vendor: VENDOR_XILINX,
    device: 0x903F,
    revision: 0,
    class: 0x02_8000,
    subsystem_vendor: VENDOR_XILINX,
    subsystem: 0x0007,
};

/// The BAR with ERNIC's registers. Chosen: 2, where RecoNIC's library and scripts look for it
/// (`resource2`).
pub const ERNIC_BAR: usize = 2;

/// The BAR with memory of the card's own, where a card has some. Chosen: the first that is free, and ours
/// alone. On RecoNIC's card the host reaches that memory by the DMA engine's queues, which are not here.
pub const MEMORY_BAR: usize = 4;
