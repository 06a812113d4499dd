//! A story for each counter that provokes it once. [`story`] asks for one when a row is added.

use softrnic_engine::packet::{BthFields, opcode};
use softrnic_engine::{
    Attributes, COUNTER_ROWS, Counter, PathMtu, Psn, Qp, RKey, Reason, Status, Work, WorkOpcode,
};

use crate::harness::{Fate, Pair, Setup};
use crate::script::{frame, region_header};
use crate::stories::{receive, remote, send};

/// The test that provokes a counter.
fn story(counter: Counter) -> fn() {
    match counter {
        Counter::SentPackets => counter_sent_pkts_counts_frames_that_leave,
        Counter::ReceivedPackets => counter_rcvd_pkts_counts_packets_that_were_taken,
        Counter::SendMessages => counter_rx_send_messages_counts_whole_messages,
        Counter::WriteRequests => counter_rx_write_requests_counts_whole_messages,
        Counter::ReadRequests => counter_rx_read_requests_counts_no_duplicates,
        Counter::AtomicRequests => counter_rx_atomic_requests_counts_no_duplicates,
        Counter::DuplicateRequest => counter_duplicate_request_counts_packets_executed_before,
        Counter::OutOfSequence => counter_out_of_sequence_counts_packets_behind_a_gap,
        Counter::PacketSeqErr => counter_packet_seq_err_counts_naks_received,
        Counter::ImpliedNakSeqErr => counter_implied_nak_seq_err_counts_skipped_reads,
        Counter::LocalAckTimeoutErr => counter_local_ack_timeout_err_counts_expiries,
        Counter::RetransmittedPackets => counter_retransmitted_pkts_counts_packets_sent_again,
        Counter::RnrNakReceived => counter_rnr_nak_retry_err_counts_rnr_naks_received,
        Counter::OutOfBuffer => counter_out_of_buffer_counts_messages_without_a_buffer,
        Counter::RnrNakSent => counter_send_rnr_err_counts_rnr_naks_sent,
        Counter::RetryExceeded => counter_req_transport_retries_exceeded_counts_requests,
        Counter::RnrRetryExceeded => counter_req_rnr_retries_exceeded_counts_requests,
        Counter::ReqCqeError => counter_req_cqe_error_counts_no_flushes,
        Counter::ReqCqeFlushError => counter_req_cqe_flush_error_counts_taken_and_posted,
        Counter::RespCqeError => counter_resp_cqe_error_counts_failed_receives,
        Counter::RespLocalLengthError => counter_resp_local_length_error_counts_small_buffers,
        Counter::ReqRemoteInvalidRequest => counter_req_remote_invalid_request_counts_naks,
        Counter::ReqRemoteAccessErrors => counter_req_remote_access_errors_counts_naks,
        Counter::ReqRemoteOperation => counter_sq_num_roe_counts_naks,
        Counter::ReqBadResponse => counter_sq_num_bre_counts_responses_that_do_not_fit,
        Counter::ReqLocalProtection => counter_sq_num_lpe_counts_own_memory_that_is_not_there,
        Counter::ReqLocalLength => counter_sq_num_lle_counts_lengths,
        Counter::ReqLocalQpOperation => counter_sq_num_lqpoe_counts_requests_out_of_place,
        Counter::RespRemoteAccessErrors => counter_resp_remote_access_errors_counts_naks_sent,
        Counter::RespInvalidRequest => counter_resp_invalid_request_counts_naks_sent,
        Counter::RespLocalOperation => counter_resp_local_operation_err_counts_naks_sent,
        Counter::CnpHandled => counter_rp_cnp_handled_counts_cnps,
        Counter::IcrcErrors => counter_rx_icrc_encapsulated_counts_for_the_device_only,
        Counter::EcnMarked => counter_np_ecn_marked_counts_packets_with_ce,
        Counter::CnpSent => counter_np_cnp_sent_counts_answers_to_marks,
    }
}

#[test]
fn every_counter_has_its_story() {
    for row in COUNTER_ROWS {
        story(row.counter)();
    }
}

fn pair(change: impl FnOnce(&mut Attributes)) -> Pair {
    let mut setup = Setup::default();
    change(&mut setup.attributes);
    let mut pair = Pair::new(setup);
    pair.region();
    pair
}

fn qp(pair: &Pair, end: usize) -> &Qp {
    let end = &pair.ends[end];
    end.engine.qp(end.qpn).expect("it exists")
}

/// A counter of end 0 and end 1; the queue pair's and the device's say the same.
fn both(pair: &Pair, counter: Counter) -> [u32; 2] {
    [0, 1].map(|end| {
        let count = qp(pair, end).counters()[counter];
        assert_eq!(pair.ends[end].engine.counters()[counter], count);
        count
    })
}

fn lose(from: usize, number: u32) -> impl FnMut(usize, u32) -> Fate {
    move |f, n| if (f, n) == (from, number) { Fate::Drop } else { Fate::Deliver }
}

fn read(length: u32) -> Work {
    Work { local: receive(0x6000, length), ..remote(WorkOpcode::Read, length) }
}

/// A packet for `to` with a RETH of the region or, in its first byte, an AETH syndrome.
fn inject(pair: &mut Pair, to: usize, opcode: u8, psn: u32, syndrome: Option<u8>, payload: usize) {
    let bth = BthFields { psn: Psn::new(psn), ack_request: true, ..BthFields::default() };
    let mut ext = region_header(0x2000, payload as u32);
    if let Some(syndrome) = syndrome {
        ext[0] = syndrome;
    }
    pair.inject(to, &frame(to, opcode, bth, &ext, payload));
}

#[test]
fn counter_sent_pkts_counts_frames_that_leave() {
    let mut pair = pair(|a| a.path_mtu = PathMtu::M256);
    pair.ends[0].post(remote(WorkOpcode::Write, 600));
    pair.run_with(lose(0, 1));
    assert_eq!(both(&pair, Counter::SentPackets), pair.frames);
    assert_eq!(pair.frames, [3 + 2, 2], "one lost, two again; NAK and ACK");
}

#[test]
fn counter_rcvd_pkts_counts_packets_that_were_taken() {
    let mut pair = pair(|a| a.path_mtu = PathMtu::M256);
    pair.ends[0].post(remote(WorkOpcode::Write, 600));
    pair.run_with(lose(0, 1));
    assert_eq!(both(&pair, Counter::ReceivedPackets), [2, 3], "not the one behind the gap");
}

#[test]
fn counter_rx_send_messages_counts_whole_messages() {
    let mut pair = pair(|a| a.path_mtu = PathMtu::M256);
    for _ in 0..2 {
        pair.ends[1].face.receives.push_back(receive(0x1000, 1024));
    }
    pair.ends[0].post(send(600));
    // The acknowledgement is lost: the last packet comes twice.
    pair.run_with(lose(1, 0));
    assert_eq!(both(&pair, Counter::SendMessages), [0, 1]);
}

#[test]
fn counter_rx_write_requests_counts_whole_messages() {
    let mut pair = pair(|a| a.path_mtu = PathMtu::M256);
    pair.ends[0].post(remote(WorkOpcode::Write, 600));
    pair.run_with(lose(1, 0));
    assert_eq!(both(&pair, Counter::WriteRequests), [0, 1]);
}

#[test]
fn counter_rx_read_requests_counts_no_duplicates() {
    let mut pair = pair(|_| {});
    pair.ends[0].post(read(16));
    pair.run_with(lose(1, 0));
    assert_eq!(both(&pair, Counter::ReadRequests), [0, 1]);
}

#[test]
fn counter_rx_atomic_requests_counts_no_duplicates() {
    let mut pair = pair(|_| {});
    let local = receive(0x6000, 8);
    pair.ends[0].post(Work { local, ..remote(WorkOpcode::FetchAdd, 8) });
    pair.run_with(lose(1, 0));
    assert_eq!(both(&pair, Counter::AtomicRequests), [0, 1]);
}

#[test]
fn counter_duplicate_request_counts_packets_executed_before() {
    let mut pair = pair(|_| {});
    pair.ends[0].post(remote(WorkOpcode::Write, 16));
    pair.run_with(lose(1, 0));
    assert_eq!(both(&pair, Counter::DuplicateRequest), [0, 1]);
}

#[test]
fn counter_out_of_sequence_counts_packets_behind_a_gap() {
    let mut pair = pair(|a| a.path_mtu = PathMtu::M256);
    pair.ends[0].post(remote(WorkOpcode::Write, 4 * 256));
    pair.run_with(lose(0, 1));
    assert_eq!(both(&pair, Counter::OutOfSequence), [0, 2]);
}

#[test]
fn counter_packet_seq_err_counts_naks_received() {
    let mut pair = pair(|a| a.path_mtu = PathMtu::M256);
    pair.ends[0].post(remote(WorkOpcode::Write, 4 * 256));
    pair.run_with(lose(0, 1));
    assert_eq!(both(&pair, Counter::PacketSeqErr), [1, 0]);
}

#[test]
fn counter_implied_nak_seq_err_counts_skipped_reads() {
    let mut pair = pair(|_| {});
    pair.ends[0].post(read(16));
    pair.ends[0].post(remote(WorkOpcode::Write, 16));
    pair.run_with(lose(1, 0));
    assert_eq!(both(&pair, Counter::ImpliedNakSeqErr), [1, 0]);
}

#[test]
fn counter_local_ack_timeout_err_counts_expiries() {
    let mut pair = pair(|_| {});
    pair.ends[0].post(remote(WorkOpcode::Write, 16));
    pair.run_with(lose(0, 0));
    assert_eq!(both(&pair, Counter::LocalAckTimeoutErr), [1, 0]);
}

#[test]
fn counter_retransmitted_pkts_counts_packets_sent_again() {
    let mut pair = pair(|_| {});
    pair.ends[0].post(remote(WorkOpcode::Write, 16));
    pair.run_with(lose(0, 0));
    assert_eq!(both(&pair, Counter::RetransmittedPackets), [1, 0]);
}

/// One message that finds no receive buffer, and one retry allowed.
fn no_buffer() -> Pair {
    let mut pair = pair(|a| a.rnr_retry = 0);
    pair.ends[0].post(send(16));
    pair.run();
    assert_eq!(pair.ends[0].sent(), [Status::RnrRetryExceeded]);
    pair
}

#[test]
fn counter_rnr_nak_retry_err_counts_rnr_naks_received() {
    assert_eq!(both(&no_buffer(), Counter::RnrNakReceived), [1, 0]);
}

#[test]
fn counter_out_of_buffer_counts_messages_without_a_buffer() {
    assert_eq!(both(&no_buffer(), Counter::OutOfBuffer), [0, 1]);
}

#[test]
fn counter_send_rnr_err_counts_rnr_naks_sent() {
    assert_eq!(both(&no_buffer(), Counter::RnrNakSent), [0, 1]);
}

#[test]
fn counter_req_rnr_retries_exceeded_counts_requests() {
    assert_eq!(both(&no_buffer(), Counter::RnrRetryExceeded), [1, 0]);
}

#[test]
fn counter_req_transport_retries_exceeded_counts_requests() {
    let mut pair = pair(|a| a.retry_count = 1);
    pair.ends[0].post(remote(WorkOpcode::Write, 16));
    pair.ends[0].post(remote(WorkOpcode::Write, 16));
    pair.run_with(|_, _| Fate::Drop);
    assert_eq!(both(&pair, Counter::RetryExceeded), [1, 0], "the second was flushed");
}

/// A WRITE with a key that is not there, between two good ones; a fourth is posted later.
fn wrong_key() -> Pair {
    let mut pair = pair(|_| {});
    for key in [7, 8, 7] {
        pair.ends[0].post(Work { rkey: RKey(key), ..remote(WorkOpcode::Write, 16) });
    }
    pair.run();
    pair.ends[0].post(remote(WorkOpcode::Write, 16));
    pair
}

#[test]
fn counter_req_cqe_error_counts_no_flushes() {
    assert_eq!(both(&wrong_key(), Counter::ReqCqeError), [1, 0]);
}

#[test]
fn counter_req_cqe_flush_error_counts_taken_and_posted() {
    assert_eq!(both(&wrong_key(), Counter::ReqCqeFlushError), [2, 0]);
}

#[test]
fn counter_req_remote_access_errors_counts_naks() {
    assert_eq!(both(&wrong_key(), Counter::ReqRemoteAccessErrors), [1, 0]);
}

#[test]
fn counter_resp_remote_access_errors_counts_naks_sent() {
    assert_eq!(both(&wrong_key(), Counter::RespRemoteAccessErrors), [0, 1]);
}

/// A SEND of 16 bytes for a buffer of 15.
fn small_buffer() -> Pair {
    let mut pair = pair(|_| {});
    pair.ends[1].face.receives.push_back(receive(0x1000, 15));
    pair.ends[0].post(send(16));
    pair.run();
    pair
}

#[test]
fn counter_resp_cqe_error_counts_failed_receives() {
    assert_eq!(both(&small_buffer(), Counter::RespCqeError), [0, 1]);
}

#[test]
fn counter_resp_local_length_error_counts_small_buffers() {
    assert_eq!(both(&small_buffer(), Counter::RespLocalLengthError), [0, 1]);
}

#[test]
fn counter_req_remote_invalid_request_counts_naks() {
    assert_eq!(both(&small_buffer(), Counter::ReqRemoteInvalidRequest), [1, 0]);
}

#[test]
fn counter_resp_invalid_request_counts_naks_sent() {
    assert_eq!(both(&small_buffer(), Counter::RespInvalidRequest), [0, 1]);
}

/// A receive buffer outside of the peer's memory.
fn broken_buffer() -> Pair {
    let mut pair = pair(|_| {});
    pair.ends[1].face.receives.push_back(receive(1 << 40, 64));
    pair.ends[0].post(send(16));
    pair.run();
    pair
}

#[test]
fn counter_sq_num_roe_counts_naks() {
    assert_eq!(both(&broken_buffer(), Counter::ReqRemoteOperation), [1, 0]);
}

#[test]
fn counter_resp_local_operation_err_counts_naks_sent() {
    let pair = broken_buffer();
    assert_eq!(both(&pair, Counter::RespLocalOperation), [0, 1]);
    assert_eq!(both(&pair, Counter::RespLocalLengthError), [0, 0]);
}

#[test]
fn counter_sq_num_bre_counts_responses_that_do_not_fit() {
    let mut pair = pair(|_| {});
    pair.ends[0].post(read(16));
    pair.transmit(0, &mut |_, _| Fate::Drop);
    inject(&mut pair, 0, opcode::READ_RESPONSE_ONLY, 0x100, Some(0x1F), 15);
    assert_eq!(pair.ends[0].sent(), [Status::BadResponse]);
    assert_eq!(both(&pair, Counter::ReqBadResponse), [1, 0]);
}

#[test]
fn counter_sq_num_lpe_counts_own_memory_that_is_not_there() {
    let mut pair = pair(|_| {});
    pair.ends[0].post(Work { local: receive(1 << 40, 16), ..remote(WorkOpcode::Write, 16) });
    pair.run();
    assert_eq!(pair.ends[0].sent(), [Status::LocalProtection]);
    assert_eq!(both(&pair, Counter::ReqLocalProtection), [1, 0]);
}

#[test]
fn counter_sq_num_lle_counts_lengths() {
    let mut pair = pair(|_| {});
    pair.ends[0].post(remote(WorkOpcode::Write, (1 << 31) + 1));
    pair.run();
    assert_eq!(both(&pair, Counter::ReqLocalLength), [1, 0]);
}

#[test]
fn counter_sq_num_lqpoe_counts_requests_out_of_place() {
    let mut pair = pair(|_| {});
    pair.ends[0].post(remote(WorkOpcode::RawFrame, 64));
    pair.run();
    assert_eq!(both(&pair, Counter::ReqLocalQpOperation), [1, 0]);
}

#[test]
fn counter_rp_cnp_handled_counts_cnps() {
    let mut pair = pair(|_| {});
    inject(&mut pair, 1, opcode::CNP, 0, Some(0), 0);
    assert_eq!(both(&pair, Counter::CnpHandled), [0, 1]);
}

#[test]
fn counter_np_ecn_marked_counts_packets_with_ce() {
    let mut pair = pair(|_| {});
    let bth = BthFields { psn: Psn::new(0x100), ..BthFields::default() };
    for traffic_class in [2, 3] {
        let mut ext = region_header(0x2000, 16);
        ext[31] = traffic_class;
        pair.inject(1, &frame(1, opcode::WRITE_ONLY, bth, &ext, 16));
    }
    assert_eq!(both(&pair, Counter::EcnMarked), [0, 1], "the second, a duplicate, has the mark");
}

#[test]
fn counter_np_cnp_sent_counts_answers_to_marks() {
    let mut pair = pair(|attributes| attributes.policy.cnp_interval_ns = Some(50_000));
    let bth = BthFields { psn: Psn::new(0x100), ..BthFields::default() };
    let mut ext = region_header(0x2000, 16);
    ext[31] = 3;
    for _ in 0..2 {
        pair.inject(1, &frame(1, opcode::WRITE_ONLY, bth, &ext, 16));
        pair.transmit(1, &mut |_, _| Fate::Drop);
    }
    assert_eq!(both(&pair, Counter::CnpSent), [0, 1], "one in the interval");
}

#[test]
fn counter_rx_icrc_encapsulated_counts_for_the_device_only() {
    let mut pair = pair(|_| {});
    let bth = BthFields { psn: Psn::new(0x100), ..BthFields::default() };
    let mut bad = frame(1, opcode::WRITE_ONLY, bth, &region_header(0x2000, 16), 16);
    *bad.last_mut().expect("a frame") ^= 1;
    assert_eq!(pair.inject(1, &bad), Some(Reason::Icrc));
    assert_eq!(pair.ends[1].engine.counters()[Counter::IcrcErrors], 1);
    assert_eq!(qp(&pair, 1).counters()[Counter::IcrcErrors], 0);
}

#[test]
fn counters_of_a_destroyed_queue_pair_stay_in_the_devices_sum() {
    let mut pair = wrong_key();
    let before = pair.ends[0].engine.counters();
    let end = &mut pair.ends[0];
    end.engine.destroy(end.qpn, &mut end.face);
    assert_eq!(end.engine.counters(), before);
    assert_eq!(before[Counter::ReqCqeError], 1);
}

#[test]
fn counters_have_unique_names_in_the_order_of_the_enum() {
    let names: std::collections::BTreeSet<_> = COUNTER_ROWS.iter().map(|row| row.name).collect();
    assert_eq!(names.len(), COUNTER_ROWS.len());
    assert!(COUNTER_ROWS.iter().enumerate().all(|(i, row)| row.counter as usize == i));
}

#[test]
fn a_queue_pair_takes_one_kibibyte_without_its_rings() {
    assert!(size_of::<Qp>() <= 1024, "{} bytes", size_of::<Qp>());
}
