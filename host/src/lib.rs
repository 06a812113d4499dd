//! The real world around SoftRNIC: captures, memory that a card can reach, and what this machine
//! offers.
//!
//! `unsafe` is allowed in named modules only, each block with its reason.
#![deny(unsafe_code)]

pub mod assigned;
pub mod capture;
pub mod clock;
pub mod cm;
pub mod endpoint;
pub mod link;
mod link_layer;
pub mod owner;
pub mod pci;
pub mod perf;
pub mod port;
pub mod probe;
pub mod serve;
pub mod setup;
pub mod station;
pub mod uio;
pub mod verbs;
pub mod verify;
pub mod vfio;
