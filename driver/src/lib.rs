//! A driver for the AMD ERNIC (PG332 version 4), generic over the [`Platform`] that reaches the
//! device: a card, or a model of one. It uses nothing but `core` and `alloc`, so that it cannot know
//! more than a register read tells it.
//!
//! The life of a connection, with error handling by `?`:
//!
//! ```
//! use softrnic_driver::{
//!     Completion, DeviceConfig, Ernic, Error, Local, Map, Platform, QpConfig, RegionAccess,
//!     RegionConfig, Remote, Request,
//! };
//!
//! fn greet(platform: impl Platform, peer: &Remote) -> Result<(), Error> {
//!     let config = DeviceConfig {
//!         mac: [2, 0, 0, 0, 0, 1],
//!         ipv4: [10, 0, 0, 1].into(),
//!         ..DeviceConfig::default()
//!     };
//!     let mut ernic = Ernic::bring_up(platform, Map::V4_0, &config)?;
//!
//!     // Memory for the peer to read and write. The key goes to the peer by other means.
//!     let buffer = ernic.dma_alloc("a region", 4096)?;
//!     let region = ernic.register_region(&RegionConfig {
//!         pd: 1,
//!         va: buffer.bus,
//!         bus: buffer.bus,
//!         len: buffer.len as u64,
//!         access: RegionAccess::ReadWrite,
//!         key: 0x5A,
//!     })?;
//!     assert_eq!(region.rkey, 0x5A);
//!
//!     let qp = ernic.create_qp(&QpConfig { pd: 1, ..QpConfig::default() })?;
//!     ernic.connect_qp(qp, peer)?;
//!     ernic.post(qp, &Request::send(7, Local::Inline(b"hello")))?;
//!     ernic.ring(qp)?;
//!
//!     let mut done = [Completion::default(); 16];
//!     let count = ernic.poll_completions(qp, &mut done)?;
//!     for completion in &done[..count] {
//!         println!("work request {} failed: {}", completion.wrid, completion.failed);
//!     }
//!     if let Some(message) = ernic.poll_receive(qp)? {
//!         let mut bytes = [0; 16];
//!         ernic.platform_mut().dma_read(message.bus, &mut bytes)?;
//!         ernic.release_receive(qp, 1)?;
//!     }
//!     ernic.destroy_qp(qp)
//! }
//! # // A device that completes what is announced, and receives nothing.
//! # struct Toy { registers: Vec<u32>, memory: Vec<u8>, used: usize }
//! # impl Platform for Toy {
//! #     fn read32(&mut self, offset: u32) -> u32 { self.registers[offset as usize / 4] }
//! #     fn write32(&mut self, offset: u32, value: u32) {
//! #         let at = offset as usize / 4;
//! #         if offset & 0xFF != 0x88 || offset < 0x18_0000 { self.registers[at] = value; }
//! #         if offset == 0x18_0138 && value != 0 {
//! #             self.registers[at - 2] = value;
//! #             let cq = self.registers[0x18_0118 / 4] as usize;
//! #             self.memory[cq..cq + 4].copy_from_slice(&[7, 0, 2, 0]);
//! #             let word = self.registers[0x18_0128 / 4] as usize;
//! #             self.memory[word..word + 4].copy_from_slice(&value.to_le_bytes());
//! #         }
//! #     }
//! #     fn dma_alloc(&mut self, len: usize, align: usize) -> Option<softrnic_driver::DmaBuffer> {
//! #         let bus = self.used.next_multiple_of(align);
//! #         self.used = bus + len;
//! #         Some(softrnic_driver::DmaBuffer { bus: bus as u64, len })
//! #     }
//! #     fn dma_free(&mut self, _: softrnic_driver::DmaBuffer) {}
//! #     fn dma_read(&mut self, bus: u64, out: &mut [u8]) -> Result<(), softrnic_driver::DmaError> {
//! #         out.copy_from_slice(&self.memory[bus as usize..][..out.len()]);
//! #         Ok(())
//! #     }
//! #     fn dma_write(&mut self, bus: u64, bytes: &[u8]) -> Result<(), softrnic_driver::DmaError> {
//! #         self.memory[bus as usize..][..bytes.len()].copy_from_slice(bytes);
//! #         Ok(())
//! #     }
//! #     fn pause(&mut self) {}
//! # }
//! # let mut toy = Toy { registers: vec![0; 0x8_0000], memory: vec![0; 2 << 20], used: 256 };
//! # toy.registers[0x18_0188 / 4] = 0x600;
//! # let peer = Remote {
//! #     mac: [2, 0, 0, 0, 0, 2],
//! #     ip: core::net::Ipv4Addr::new(10, 0, 0, 2).into(),
//! #     qpn: 2, send_psn: 1, receive_psn: 1,
//! # };
//! # greet(toy, &peer).unwrap();
//! ```
//!
//! Where to read on: `device` brings the device up, `qp` makes queue pairs, `transfer` moves data,
//! `queue` has the memory formats, [`registers`] the map, [`management`] what QP 1 sends.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod device;
mod error;
pub mod management;
mod platform;
mod qp;
mod queue;
pub mod registers;
mod status;
mod transfer;

pub use device::{
    AckMode, BufferPool, DeviceConfig, Ernic, FatalEntry, Interrupts, Region, RegionAccess,
    RegionConfig,
};
pub use error::Error;
pub use platform::{DmaBuffer, DmaError, Platform};
pub use qp::{IndexSource, MadConfig, PathConfig, PathMtu, QpConfig, QpNumber, Remote};
pub use queue::{INLINE_BYTES, Local, MAX_MESSAGE_BYTES, Opcode, Request};
pub use registers::{Map, REGISTERS, Register};
pub use status::{COUNTER_ROWS, CounterRow, Counters, LastPacket, QpStatus};
pub use transfer::{Completion, Received};
