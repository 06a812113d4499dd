//! Priority flow control (802.1Qbb; rules F-60 to F-62): which priorities are paused, and until when.
//!
//! Knows no frames but what [`crate::packet::flow_control`] read, and no queue pairs.

use crate::numbers::Nanos;
use crate::packet::flow_control::{FlowControl, pause_ns};

/// Priority flow control of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pfc {
    /// Rate of the link: pauses are told in times of 512 bits.
    pub rate_bits_per_s: u64,
    /// Bit n: priority n may be paused. Other priorities' times are ignored.
    pub priorities: u8,
    /// A global PAUSE is obeyed too, as if it named every priority.
    pub global: bool,
    /// Whatever their tags say, all queue pairs are of one class, and any pause that is obeyed holds them
    /// (a device that names its class's priority in a register).
    pub one_class: bool,
}

/// The pauses of a port.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pauses {
    /// Bit n: priority n is paused.
    paused: u8,
    /// End of each pause; meaningless where the bit is clear.
    until: [Nanos; 8],
    /// Pauses and resumptions obeyed.
    obeyed: [u64; 8],
}

impl Pauses {
    #[inline]
    pub(crate) const fn paused(&self) -> u8 {
        self.paused
    }

    pub(crate) const fn obeyed(&self) -> &[u64; 8] {
        &self.obeyed
    }

    /// Obeys a frame (rule F-61). `false`: it is a global PAUSE, which this port ignores (rule F-62).
    pub(crate) fn obey(&mut self, now: Nanos, frame: &FlowControl, pfc: Pfc) -> bool {
        let (named, quanta) = match *frame {
            FlowControl::Pfc { enabled, quanta } => (enabled & pfc.priorities, quanta),
            FlowControl::Pause { quanta } if pfc.global => (u8::MAX, [quanta; 8]),
            FlowControl::Pause { .. } => return false,
        };
        for (priority, &quanta) in quanta.iter().enumerate() {
            let bit = 1 << priority;
            if named & bit == 0 {
                continue;
            }
            self.obeyed[priority] += 1;
            self.until[priority] = now.after(pause_ns(quanta, pfc.rate_bits_per_s));
            self.paused = if quanta == 0 { self.paused & !bit } else { self.paused | bit };
        }
        true
    }

    /// Ends the pauses whose time is over.
    pub(crate) fn expire(&mut self, now: Nanos) {
        for (priority, until) in self.until.iter().enumerate() {
            if *until <= now {
                self.paused &= !(1 << priority);
            }
        }
    }

    /// Ends every pause.
    pub(crate) fn end(&mut self) {
        self.paused = 0;
    }

    /// When the next pause ends; [`Nanos::NEVER`] where there is none.
    pub(crate) fn deadline(&self) -> Nanos {
        let ends = self.until.iter().enumerate().filter(|(p, _)| self.paused & 1 << p != 0);
        ends.map(|(_, &until)| until).min().unwrap_or(Nanos::NEVER)
    }
}
