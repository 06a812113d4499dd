//! The responder: requests of the peer become memory accesses, completions and answers.
use crate::engine::{Port, Room, Train};
use crate::face::Face;
use crate::numbers::{Nanos, Psn};
use crate::packet::Packet;
use crate::qp::Qp;
use crate::reason::Reason;

/// Receive side of a queue pair.
#[derive(Debug, Default)]
pub struct Responder {
    expected_psn: Psn,
    msn: u32,
    last_opcode: u8,
}
impl Responder {
    pub(crate) const fn expected_psn(&self) -> Psn {
        self.expected_psn
    }
    pub(crate) fn set_expected(&mut self, psn: Psn, last_opcode: u8) {
        self.expected_psn = psn;
        self.last_opcode = last_opcode;
    }
    pub(crate) fn set_msn(&mut self, msn: u32) {
        self.msn = msn & 0xFF_FFFF;
    }
    pub(crate) fn deadline(&self) -> Nanos {
        Nanos::NEVER
    }
    pub(crate) fn pending(&self) -> bool {
        false
    }
    pub(crate) fn reset(&mut self) {}
    pub(crate) fn prepare(&mut self, _depth: u8) {}
    pub(crate) fn kick(&mut self) {}
    pub(crate) fn silence(&mut self) {}
    /// Messages completed, modulo 2^24.
    #[must_use]
    pub const fn msn(&self) -> u32 {
        self.msn
    }
    /// BTH.OpCode of the last request packet accepted.
    #[must_use]
    pub const fn last_opcode(&self) -> u8 {
        self.last_opcode
    }
}
pub(crate) fn raw_frame(
    _qp: &mut Qp,
    _packet: &Packet<'_>,
    _face: &mut impl Face,
) -> Result<(), Reason> {
    Err(Reason::OperationUnsupported)
}
pub(crate) fn handle(
    _qp: &mut Qp,
    _now: Nanos,
    _packet: &Packet<'_>,
    _face: &mut impl Face,
    _duplicate: &mut bool,
) -> Result<(), Reason> {
    Err(Reason::OperationUnsupported)
}
pub(crate) fn handle_timeout(_qp: &mut Qp, _now: Nanos) {}
pub(crate) fn poll(
    _qp: &mut Qp,
    _port: &Port,
    _room: &mut Room<'_>,
    _face: &mut impl Face,
) -> Option<Train> {
    None
}
