//! A driver for the AMD ERNIC (PG332 version 4), generic over the [`Platform`] that reaches the
//! device: a card, or a model of one. It uses nothing but `core` and `alloc`.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod device;
mod error;
mod platform;
mod qp;
mod queue;
pub mod registers;
mod status;

pub use device::{
    AckMode, BufferPool, DeviceConfig, Ernic, FatalEntry, Interrupts, Region, RegionAccess,
    RegionConfig,
};
pub use error::Error;
pub use platform::{DmaBuffer, DmaError, Platform};
pub use qp::{Completion, IndexSource, MadConfig, PathMtu, QpConfig, QpNumber, Received, Remote};
pub use queue::{INLINE_BYTES, Local, MAX_MESSAGE_BYTES, Opcode, Request};
pub use registers::{Map, REGISTERS, Register};
pub use status::{COUNTER_ROWS, CounterRow, Counters, LastPacket, QpStatus};
