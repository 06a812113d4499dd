//! Devices over the transport engine: the faces, what they share, and [`Nic`], the one loop that
//! joins engine, face, memory and link.
//!
//! Nothing here knows an operating system or a wall clock.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

pub mod ernic;
mod memory;
pub mod mlx4;
mod nic;
pub mod pci;
pub mod reconic;
pub mod verbs;

pub use memory::{DmaFault, Memory, Ram};
pub use nic::{Between, Device, EngineCall, Nic};
