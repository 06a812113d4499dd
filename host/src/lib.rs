//! The real world around SoftRNIC: captures, memory that a card can reach, and what this machine
//! offers.
//!
//! `unsafe` is allowed in named modules only, each block with its reason.
#![deny(unsafe_code)]

pub mod capture;
pub mod link;
mod link_layer;
pub mod pci;
pub mod probe;
pub mod vfio;
