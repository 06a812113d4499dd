//! The link of a NIC whose link went away, or has not come yet: nothing arrives, and what is sent is lost
//! and counted, as on a cable that is not plugged in.

use std::os::fd::BorrowedFd;

use softrnic_engine::packet::FRAME_LEN_MAX;
use softrnic_engine::{Room, Rx};

use crate::link::{Limits, Link, LinkCounters, LinkError, Written};

/// No link.
pub(super) struct Unplugged {
    name: String,
    limits: Limits,
    scratch: Box<[u8]>,
    dropped: u64,
}

impl Unplugged {
    /// In place of the link of this name.
    pub(super) fn new(name: String, limits: Limits) -> Self {
        Self { name, limits, scratch: vec![0; FRAME_LEN_MAX].into_boxed_slice(), dropped: 0 }
    }
}

impl Link for Unplugged {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn receive(&mut self, _: usize, _: &mut dyn FnMut(&mut [u8], Rx)) -> Result<usize, LinkError> {
        Ok(0)
    }

    fn room(&mut self) -> Option<Room<'_>> {
        Some(Room { bytes: &mut self.scratch, segments: 1, source_port: self.limits.source_port })
    }

    fn commit(&mut self, _: Written) {
        self.dropped += 1;
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        Ok(())
    }

    fn wants_write(&self) -> bool {
        false
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> LinkCounters {
        LinkCounters { tx_dropped: self.dropped, ..LinkCounters::default() }
    }
}
