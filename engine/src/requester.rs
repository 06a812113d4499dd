//! The requester: work requests become packets; responses become completions.
use crate::engine::{Port, Room, Train};
use crate::face::Face;
use crate::numbers::{Nanos, Psn};
use crate::packet::Packet;
use crate::qp::Qp;
use crate::reason::Reason;

/// Send side of a queue pair.
#[derive(Debug, Default)]
pub struct Requester {
    next_psn: Psn,
}
impl Requester {
    pub(crate) const fn next_psn(&self) -> Psn {
        self.next_psn
    }
    pub(crate) fn set_next_psn(&mut self, psn: Psn) {
        self.next_psn = psn;
    }
    pub(crate) fn deadline(&self) -> Nanos {
        Nanos::NEVER
    }
    pub(crate) fn active(&self) -> bool {
        false
    }
    pub(crate) fn reset(&mut self) {}
    pub(crate) fn prepare(&mut self, _max_in_flight: u16) {}
    pub(crate) fn kick(&mut self) {}
    /// Work requests fetched and not yet completed.
    #[must_use]
    pub const fn in_flight(&self) -> u32 {
        0
    }
    /// The oldest PSN that is not acknowledged.
    #[must_use]
    pub const fn unacknowledged_psn(&self) -> Psn {
        self.next_psn
    }
    /// Index since reset of the next work request to be fetched.
    #[must_use]
    pub const fn next_index(&self) -> u32 {
        0
    }
    /// Request messages started, modulo 2^24 (send sequence number).
    #[must_use]
    pub const fn ssn(&self) -> u32 {
        0
    }
    /// Retries since the last progress.
    #[must_use]
    pub const fn retries_used(&self) -> u8 {
        0
    }
    /// RNR NAKs since the last progress.
    #[must_use]
    pub const fn rnr_retries_used(&self) -> u8 {
        0
    }
}
pub(crate) fn ring(_qp: &mut Qp, _face: &mut impl Face) {}
pub(crate) fn enter_error(_qp: &mut Qp, _reason: Reason, _by_peer: bool, _face: &mut impl Face) {}
pub(crate) fn handle(
    _qp: &mut Qp,
    _now: Nanos,
    _packet: &Packet<'_>,
    _face: &mut impl Face,
) -> Result<(), Reason> {
    Err(Reason::OperationUnsupported)
}
pub(crate) fn handle_timeout(_qp: &mut Qp, _now: Nanos, _face: &mut impl Face) {}
pub(crate) fn poll(
    _qp: &mut Qp,
    _now: Nanos,
    _port: &Port,
    _room: &mut Room<'_>,
    _face: &mut impl Face,
) -> Option<Train> {
    None
}
