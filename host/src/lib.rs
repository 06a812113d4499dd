//! The real world around SoftRNIC: clock, memory, files, captures, links.

pub mod capture;
