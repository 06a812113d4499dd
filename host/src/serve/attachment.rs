//! What the owning thread serves beside the link, between two turns: a virtual machine that sees the NIC's
//! registers, or an echo. It uses the station directly, so that nobody waits for another thread.

use std::os::fd::BorrowedFd;

use rustix::event::PollFlags;
use softrnic_engine::Nanos;

use crate::station::Station;

/// Something else that has file descriptors and wants the station.
pub trait Attachment<D, M> {
    /// What to wait on before the next turn.
    fn wait_for(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        Vec::new()
    }

    /// When it has something to do by itself.
    fn next_deadline(&self) -> Option<Nanos> {
        None
    }

    /// Does what has come, and never waits. Called before each turn of the station, with its time. Returns
    /// whether there was anything.
    fn before(&mut self, now: Nanos, station: &mut Station<D, M>) -> bool;

    /// The station has turned: what it did may have to be announced (an interrupt).
    fn after(&mut self, station: &mut Station<D, M>);
}

/// Nothing.
impl<D, M> Attachment<D, M> for () {
    fn before(&mut self, _: Nanos, _: &mut Station<D, M>) -> bool {
        false
    }

    fn after(&mut self, _: &mut Station<D, M>) {}
}
