//! vfio-user: a device model as a PCI device of a virtual machine (QEMU's `vfio-user-pci`).
//!
//! | file | what |
//! |---|---|
//! | `wire` | the protocol's messages: layouts, numbers, limits |
//! | `session` | one client's conversation: messages in, replies out |
//! | `server`, `socket` | the socket, and who is on it |
//! | `function` | the trait that a device implements, so that any face can be served |
//! | `memory` | guest memory: what the client mapped, and nothing else |
//! | `interrupts` | MSI-X and INTx by eventfd |
//! | `trace` | register accesses, written down for people |
//! | `card` | a NIC with 32-bit registers behind that trait |
//! | `attached` | ERNIC and RecoNIC's card, served between the turns of a station |
//!
//! The server is ours, not the `vfio_user` crate's: that one allocates what a client asks for, loses its
//! place in the stream when it refuses a message, waits for ever for the rest of a message, and answers
//! errors with error number 0. Here a client is as little trusted as a frame.

mod attached;
mod card;
mod function;
mod interrupts;
mod memory;
mod server;
mod session;
mod socket;
mod trace;
pub mod wire;

pub use attached::{Attached, Bare, Board, ReconicBoard, ReconicMemory};
pub use card::{CardFunction, Ernic, PciState, Registers};
pub use function::Function;
pub use interrupts::InterruptCounters;
pub use memory::{GuestMemory, MapError, MapRequest, RefusedAccesses};
pub use server::{Server, ServerError};
pub use session::{Hangup, Session, SessionCounters};
pub use trace::RegisterTrace;
