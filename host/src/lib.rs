//! The real world around SoftRNIC: clock, memory, files, captures, links.
//!
//! `unsafe` is allowed in named modules only, each block with its reason.
#![deny(unsafe_code)]

pub mod capture;
pub mod pci;
