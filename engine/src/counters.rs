//! Counters per queue pair and per device, one row each, under the names that people grep for: those
//! of mlx5 and rxe as `rdma statistic` and sysfs show them, mlx4's (`sq_num_...`) where these have none.
//!
//! A row gives name and sentence; nothing here counts by itself. Not among them: what this NIC does
//! not do (`roce_slow_restart`, `roce_adp_retrans`), and flushed receives, which the faces keep.

use core::ops::{Index, IndexMut};

/// One row of the counter table.
#[derive(Clone, Copy, Debug)]
pub struct CounterRow {
    /// The counter.
    pub counter: Counter,
    /// Its name as `rdma statistic` and the drivers' sysfs files spell it.
    pub name: &'static str,
    /// One sentence.
    pub text: &'static str,
}

macro_rules! counters {
    ($($variant:ident $name:literal $text:literal)*) => {
        /// A counter of a queue pair.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum Counter { $(#[doc = $text] $variant),* }

        /// The counter table, in the order of the enum.
        pub const COUNTER_ROWS: &[CounterRow] = &[
            $(CounterRow { counter: Counter::$variant, name: $name, text: $text }),*
        ];
    };
}

counters! {
    SentPackets "sent_pkts" "Packets sent, retransmissions included."
    ReceivedPackets "rcvd_pkts" "Packets received and accepted."
    SendMessages "rx_send_messages" "SEND messages that arrived whole."
    WriteRequests "rx_write_requests" "RDMA WRITE messages that arrived."
    ReadRequests "rx_read_requests" "RDMA READ requests that arrived, duplicates not counted."
    AtomicRequests "rx_atomic_requests" "Atomic requests that arrived, duplicates not counted."
    DuplicateRequest "duplicate_request" "Request packets that had been executed before."
    OutOfSequence "out_of_sequence" "Request packets with a PSN ahead of the expected one."
    PacketSeqErr "packet_seq_err" "NAK PSN sequence errors received."
    ImpliedNakSeqErr "implied_nak_seq_err" "Responses that skipped an unanswered READ or atomic."
    LocalAckTimeoutErr "local_ack_timeout_err" "ACK timer expiries."
    RetransmittedPackets "retransmitted_pkts" "Packets sent again."
    RnrNakReceived "rnr_nak_retry_err" "RNR NAKs received."
    OutOfBuffer "out_of_buffer" "Messages refused because no receive buffer was posted."
    RnrNakSent "send_rnr_err" "RNR NAKs sent."
    RetryExceeded "req_transport_retries_exceeded" "Work requests that used up the retry count."
    RnrRetryExceeded "req_rnr_retries_exceeded" "Work requests that used up the RNR retry count."
    ReqCqeError "req_cqe_error" "Work requests that completed in error."
    ReqCqeFlushError "req_cqe_flush_error" "Work requests that were flushed."
    RespCqeError "resp_cqe_error" "Receives that completed in error."
    RespLocalLengthError "resp_local_length_error" "SEND messages longer than their receive buffer."
    ReqRemoteInvalidRequest "req_remote_invalid_request" "NAK invalid request received."
    ReqRemoteAccessErrors "req_remote_access_errors" "NAK remote access error received."
    ReqRemoteOperation "sq_num_roe" "NAK remote operational error received."
    ReqBadResponse "sq_num_bre" "Responses that did not fit their request."
    ReqLocalProtection "sq_num_lpe" "Work requests whose own memory could not be had."
    ReqLocalLength "sq_num_lle" "Work requests with a length that is not allowed."
    ReqLocalQpOperation "sq_num_lqpoe" "Work requests that the queue pair cannot execute."
    RespRemoteAccessErrors "resp_remote_access_errors" "NAK remote access error sent."
    RespInvalidRequest "resp_invalid_request" "NAK invalid request sent."
    RespLocalOperation "resp_local_operation_err" "NAK remote operational error sent."
    CnpHandled "rp_cnp_handled" "CNPs received."
    IcrcErrors "rx_icrc_encapsulated" "Packets with a wrong ICRC. Device only: no QP number in them is to be believed."
    EcnMarked "np_ecn_marked_roce_packets" "Packets received with the CE mark."
    CnpSent "np_cnp_sent" "CNPs sent."
}

/// One value for each row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters([u32; COUNTER_ROWS.len()]);

impl Default for Counters {
    fn default() -> Self {
        Self([0; COUNTER_ROWS.len()])
    }
}

impl Counters {
    /// Adds one, wrapping.
    #[inline]
    pub fn count(&mut self, counter: Counter) {
        self[counter] = self[counter].wrapping_add(1);
    }

    /// Adds every value of `other`, wrapping.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine = mine.wrapping_add(theirs);
        }
    }

    /// Rows with values, in table order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static CounterRow, u32)> + '_ {
        COUNTER_ROWS.iter().zip(self.0)
    }
}

impl Index<Counter> for Counters {
    type Output = u32;

    fn index(&self, counter: Counter) -> &u32 {
        &self.0[counter as usize]
    }
}

impl IndexMut<Counter> for Counters {
    fn index_mut(&mut self, counter: Counter) -> &mut u32 {
        &mut self.0[counter as usize]
    }
}
