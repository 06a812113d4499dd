//! What the device says about itself, decoded: packet counters, last packets, a queue pair's status.
//!
//! Reads registers, changes nothing.

use crate::device::Ernic;
use crate::error::Error;
use crate::platform::Platform;
use crate::qp::QpNumber;
use crate::registers::{self as reg, Register};

/// One row of the counter table.
#[derive(Clone, Copy, Debug)]
pub struct CounterRow {
    /// The counter's name.
    pub name: &'static str,
    /// The register that holds it.
    pub register: Register,
    /// Its lowest bit.
    pub shift: u32,
    /// Its width; it wraps.
    pub bits: u32,
}

macro_rules! counters {
    ($($name:ident $register:ident $shift:literal $bits:literal $text:literal)*) => {
        /// Every packet counter of the device.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Counters { $(#[doc = $text] pub $name: u32),* }

        /// The counter table, in the order of [`Counters`].
        pub const COUNTER_ROWS: &[CounterRow] = &[$(CounterRow {
            name: stringify!($name), register: reg::$register, shift: $shift, bits: $bits,
        }),*];

        impl Counters {
            /// Name and value of each counter.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u32)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }

        impl<P: Platform> Ernic<P> {
            /// Reads all packet counters.
            pub fn counters(&mut self) -> Counters {
                $(let $name = self.field(reg::$register, $shift, $bits);)*
                Counters { $($name),* }
            }
        }
    };
}

counters! {
    incoming_send_write_packets INSRRPKTCNT 0 16 "SEND and WRITE packets that arrived."
    incoming_read_response_packets INSRRPKTCNT 16 16 "READ response packets that arrived."
    incoming_ack_packets INAMPKTCNT 0 16 "ACK packets that arrived."
    incoming_mad_packets INAMPKTCNT 16 16 "Management datagrams that arrived."
    outgoing_send_packets OUTIOPKTCNT 0 16 "SEND packets that left."
    outgoing_read_write_packets OUTIOPKTCNT 16 16 "READ request and WRITE packets that left."
    outgoing_ack_packets OUTAMPKTCNT 0 16 "ACK packets that left."
    outgoing_mad_packets OUTAMPKTCNT 16 16 "Management datagrams that left."
    outgoing_read_response_packets OUTRDRSPPKTCNT 0 32 "READ response packets that left."
    incoming_invalid_packets ININVDUPCNT 0 16 "Packets that failed validation."
    incoming_duplicate_packets ININVDUPCNT 16 16 "Duplicates that arrived."
    incoming_dropped_packets INALLDRPPKTCNT 0 16 "Packets that were dropped."
    incoming_packets INALLDRPPKTCNT 16 16 "Packets that arrived, of any kind."
    incoming_nak_packets INNAKPKTCNT 0 16 "NAK packets that arrived."
    outgoing_nak_packets OUTNAKPKTCNT 0 16 "NAK packets that left."
    retransmitted_packets RETRYCNTSTS 0 32 "Packets that were sent again."
    incoming_cnp_packets INCNPPKTCNT 0 32 "Congestion notifications that arrived."
    outgoing_cnp_packets OUTCNPPKTCNT 0 32 "Congestion notifications that left."
    work_requests_processed QPMSTS 16 16 "Send queue entries that the device took."
}

/// The last packet in one direction (LSTINPKT, LSTOUTPKT).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LastPacket {
    /// BTH opcode.
    pub opcode: u8,
    /// Low 12 bits of the PSN.
    pub psn_low: u16,
    /// Queue pair number of this side, 0 before the first packet.
    pub qp: u16,
}

/// A queue pair's status registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpStatus {
    /// STATQP as read.
    pub statqp: u32,
    /// SQPI: last announced send queue entry.
    pub sq_producer: u16,
    /// CQHEAD: last completed send queue entry.
    pub cq_head: u16,
    /// STATRQPIDB: last filled receive element.
    pub rq_producer: u16,
    /// RQCI: last released receive element.
    pub rq_consumer: u16,
    /// STATCURSQPTR: work requests that await a response.
    pub outstanding: u16,
    /// SQPSN: PSN of the next packet.
    pub send_psn: u32,
    /// STATRESPSN: PSN of the next expected response.
    pub response_psn: u32,
    /// LSTRQREQ\[23:0\]: PSN of the last request from the peer.
    pub last_request_psn: u32,
    /// STATSSN: number of the current outgoing message.
    pub ssn: u32,
    /// STATMSN: number of the next expected incoming message.
    pub msn: u32,
}

impl QpStatus {
    /// The queue pair has stopped for good; recover or destroy it.
    #[must_use]
    pub const fn is_fatal(&self) -> bool {
        self.bits(0, 1) != 0
    }

    /// The receive queue was full: an RNR NAK was sent.
    #[must_use]
    pub const fn receive_queue_overflowed(&self) -> bool {
        self.bits(1, 1) != 0
    }

    /// Every announced entry was taken, and nothing awaits a response.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.statqp & STATQP_IDLE == STATQP_IDLE
    }

    /// Packets were sent again.
    #[must_use]
    pub const fn was_retried(&self) -> bool {
        self.bits(11, 1) != 0
    }

    /// AETH syndrome of the last NAK, 7 bits.
    #[must_use]
    pub const fn nak_syndrome(&self) -> u8 {
        self.bits(16, 7) as u8
    }

    /// Retries of the current request so far.
    #[must_use]
    pub const fn retry_count(&self) -> u8 {
        self.bits(24, 3) as u8
    }

    /// RNR NAKs for the current request so far.
    #[must_use]
    pub const fn rnr_retry_count(&self) -> u8 {
        self.bits(28, 3) as u8
    }

    const fn bits(&self, shift: u32, width: u32) -> u32 {
        self.statqp >> shift & ((1 << width) - 1)
    }
}

impl<P: Platform> Ernic<P> {
    /// Reads a queue pair's status. On QP 1 the registers that only connected queue pairs have
    /// read 0.
    ///
    /// # Errors
    /// The queue pair does not exist.
    pub fn status(&mut self, qp: QpNumber) -> Result<QpStatus, Error> {
        self.queue_pair(qp)?;
        Ok(QpStatus {
            statqp: self.read_qp(qp, reg::STATQP),
            sq_producer: self.read_qp(qp, reg::SQPI) as u16,
            cq_head: self.read_qp(qp, reg::CQHEAD) as u16,
            rq_producer: self.read_qp(qp, reg::STATRQPIDB) as u16,
            rq_consumer: self.read_qp(qp, reg::RQCI) as u16,
            outstanding: self.read_qp(qp, reg::STATCURSQPTR) as u16,
            send_psn: self.read_qp(qp, reg::SQPSN) & PSN_MASK,
            response_psn: self.read_qp(qp, reg::STATRESPSN) & PSN_MASK,
            last_request_psn: self.read_qp(qp, reg::LSTRQREQ) & PSN_MASK,
            ssn: self.read_qp(qp, reg::STATSSN) & PSN_MASK,
            msn: self.read_qp(qp, reg::STATMSN) & PSN_MASK,
        })
    }

    /// Last incoming and last outgoing packet.
    pub fn last_packets(&mut self) -> (LastPacket, LastPacket) {
        (last_packet(self.read(reg::LSTINPKT)), last_packet(self.read(reg::LSTOUTPKT)))
    }

    fn field(&mut self, register: Register, shift: u32, bits: u32) -> u32 {
        self.read(register) >> shift & (u32::MAX >> (32 - bits))
    }
}

const fn last_packet(value: u32) -> LastPacket {
    LastPacket {
        opcode: value as u8,
        psn_low: (value >> 8 & 0xFFF) as u16,
        qp: (value >> 20 & 0x7FF) as u16,
    }
}

/// STATQP: send queue empty, outstanding queue empty.
pub(crate) const STATQP_IDLE: u32 = 0x600;
/// PSNs and message numbers have 24 bits.
pub(crate) const PSN_MASK: u32 = 0x00FF_FFFF;
