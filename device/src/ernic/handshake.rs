//! The hardware handshake: doorbells and completions of queue pairs with QPCONF\[4\] = 0 go over side
//! ports to logic beside the device, and memory sees none of them.
//!
//! | port (PG332, RFSoC design) | here |
//! |---|---|
//! | `i_qp_sq_pidb_*`, `i_qp_rq_cidb_*`: address and value | [`Nic::ring_side_band`] |
//! | `resp_hndler_o_send_cq_db_*`: address and number of completions since the last beat | [`Ernic::take_completions`] |
//! | `rx_pkt_hndler_o_rq_db_*`: address and producer index | [`Ernic::take_receive_doorbell`] |
//! | `ieth_immdt_axis_*` | [`Ernic::take_side_band`] |
//!
//! Logic that is slow loses nothing: what it did not take adds up.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;

use softrnic_engine::{Qpn, Reason};

use super::Ernic;
use super::map::Location;
use super::queues::HANDSHAKE_OFF;
use super::registers::Register;
use crate::memory::Memory;
use crate::nic::Nic;

/// Bits of a doorbell's address that the ports have (13 on v4.0, seen in a design).
const PORT_ADDRESS: u32 = 0x1FFF;

/// A beat on the completion doorbell port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompletionBeat {
    /// Low 13 bits of the queue pair's CQDBADD.
    pub address: u16,
    /// Work requests completed since the last beat of this queue pair. Not CQHEAD (seen on hardware).
    pub count: u32,
}

/// A beat on the receive doorbell port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceiveBeat {
    /// Low 13 bits of the queue pair's RQWPTRDBADD.
    pub address: u16,
    /// The receive producer index: 1..depth, 0 before the first message.
    pub index: u16,
}

/// Both doorbell ports: what each queue pair has to tell, in the order in which they began to.
#[derive(Clone, Debug)]
pub(super) struct Ports {
    completions: Port,
    receives: Port,
}

#[derive(Clone, Debug)]
struct Port {
    /// Each queue pair with a value, once.
    order: VecDeque<u16>,
    values: Box<[Option<u32>]>,
}

/// Bytes of a queue pair on both ports.
pub(super) const PORTS_LEN: usize = 2 * (size_of::<Option<u32>>() + size_of::<u16>());

impl Port {
    fn new(num_qp: u16) -> Self {
        Self {
            order: VecDeque::with_capacity(num_qp.into()),
            values: vec![None; num_qp.into()].into_boxed_slice(),
        }
    }

    fn tell(&mut self, q: Qpn, change: impl FnOnce(u32) -> u32) {
        let Some(value) = self.values.get_mut(q.get() as usize) else { return };
        if value.is_none() {
            self.order.push_back(q.get() as u16);
        }
        *value = Some(change(value.unwrap_or(0)));
    }

    fn take(&mut self) -> Option<(u16, u32)> {
        let q = self.order.pop_front()?;
        Some((q, self.values[usize::from(q)].take()?))
    }

    fn reset(&mut self) {
        while self.take().is_some() {}
    }
}

impl Ports {
    pub(super) fn new(num_qp: u16) -> Self {
        Self { completions: Port::new(num_qp), receives: Port::new(num_qp) }
    }

    pub(super) fn reset(&mut self) {
        self.completions.reset();
        self.receives.reset();
    }

    pub(super) fn completed(&mut self, q: Qpn) {
        self.completions.tell(q, |count| count.wrapping_add(1));
    }

    pub(super) fn received(&mut self, q: Qpn, producer: u32) {
        self.receives.tell(q, |_| producer);
    }
}

impl Ernic {
    /// The next beat of the completion doorbell port.
    pub fn take_completions(&mut self) -> Option<CompletionBeat> {
        let (q, count) = self.ports.completions.take()?;
        Some(CompletionBeat { address: self.port_address(q, Register::Cqdbadd), count })
    }

    /// The next beat of the receive doorbell port.
    pub fn take_receive_doorbell(&mut self) -> Option<ReceiveBeat> {
        let (q, index) = self.ports.receives.take()?;
        let address = self.port_address(q, Register::Rqwptrdbadd);
        Some(ReceiveBeat { address, index: index as u16 })
    }

    /// CON_IO_CONF: rings a queue pair's receive doorbell on the side port once, so that logic which
    /// was just connected learns where the queue stands. Chosen: the chapter says "the doorbell" only,
    /// and a driver passes the receive producer index here.
    pub(super) fn connect_io(&mut self, q: u16) -> Result<(), Reason> {
        let qp = self.qps.get(usize::from(q)).filter(|_| q != 0).ok_or(Reason::QpUnknown)?;
        if qp.is_set(HANDSHAKE_OFF) {
            return Err(Reason::HandshakeOff);
        }
        self.ports.received(Qpn::new(q.into()), qp.word(Register::Statrqpidb));
        Ok(())
    }

    fn port_address(&self, q: u16, register: Register) -> u16 {
        (self.qps[usize::from(q)].word(register) & PORT_ADDRESS) as u16
    }
}

impl<M: Memory> Nic<Ernic, M> {
    /// A doorbell from the side ports: `offset` is where the queue pair's SQPI or RQCI is in this
    /// device's registers, `index` 1..depth.
    ///
    /// # Errors
    /// Neither of these registers is there, or the queue pair's handshake is off. Counted.
    pub fn ring_side_band(&mut self, offset: u32, index: u16) -> Result<(), Reason> {
        let allowed = match self.device.map.locate(offset) {
            Some(Location { register: Register::Sqpi | Register::Rqci, index: q }) => {
                let off = self.device.qps[usize::from(q)].is_set(HANDSHAKE_OFF);
                if off { Err(Reason::HandshakeOff) } else { Ok(()) }
            }
            _ => Err(Reason::RegisterUnlisted),
        };
        match allowed {
            Ok(()) => self.write32(offset, index.into()),
            Err(reason) => self.engine.count_refused(reason),
        }
        allowed
    }
}
