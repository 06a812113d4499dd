//! QP1: connection management between two devices, and congestion notifications that software sends.

use std::net::Ipv4Addr;

use softrnic_device::ernic::{Ernic, ErnicConfig, Register};
use softrnic_device::{Memory, Nic, Ram};
use softrnic_driver::management::{
    CmMessage, CmReadyToUse, CmReply, CmRequest, FramePath, congestion_notification,
};
use softrnic_engine::packet::opcode;
use softrnic_engine::{Nanos, Reason};

use crate::bench::*;

const QP1: u16 = 1;
const QP: u16 = 2;
const MAD_ARRIVED: u32 = 1 << 1;
const CNP_DUE: u32 = 1 << 8;

fn path(from: u8) -> FramePath {
    let ip = |number| Ipv4Addr::new(192, 0, 2, number).into();
    FramePath {
        source_mac: [2, 0, 0, 0, 0, from],
        dest_mac: [2, 0, 0, 0, 0, 3 - from],
        source_ip: ip(from),
        dest_ip: ip(3 - from),
        source_port: 0xC000,
        vlan_tci: None,
    }
}

fn open_qp1(end: &mut Nic<Ernic, Ram>) {
    set_up_queues(end, QP1);
    // RQ elements of 512 bytes hold a frame.
    end.set(Register::Qpconf, QP1, 0x003D | 2 << 16);
}

/// QP1 sends a frame that software built, as its `n`th.
fn send_frame(end: &mut Nic<Ernic, Ram>, n: u32, frame: &[u8]) {
    let local = LOCAL + 0x1000 * u64::from(n);
    end.memory.write(local, frame).unwrap();
    let entry = Entry { opcode: 2, local, len: frame.len() as u32, ..Entry::default() };
    write_entry(end, QP1, n, &entry);
    end.set(Register::Sqpi, QP1, n);
}

/// The message that QP1 has received as its `n`th, with the buffer given back.
fn take_message(end: &mut Nic<Ernic, Ram>, n: u32) -> CmMessage {
    assert_eq!(end.memory.read_u32(of_qp(QP1, RQ_DOORBELL)), Ok(n));
    let frame = bytes(&end.memory, of_qp(QP1, RQ) + 512 * u64::from(n - 1), 512);
    end.set(Register::Rqci, QP1, n);
    CmMessage::from_frame(&frame).unwrap()
}

/// REQ, REP and RTU carry everything that the two queue pairs are then programmed with.
#[test]
fn cm_req_rep_and_rtu_cross_qp1_and_connect_two_queue_pairs() {
    let mut bench = pair([ErnicConfig { num_qp: 8, ..ErnicConfig::default() }; 2], &[]);
    bench.ends.iter_mut().for_each(open_qp1);
    let request = CmRequest {
        transaction: 0x1122_3344_5566_7788,
        local_comm_id: 0xAAAA_0001,
        service_id: 0x0000_0000_0106_4321,
        ca_guid: 0x0200_00FF_FE00_0001,
        qpn: 4,
        psn: 0x11_1111,
        reads: 16,
        retry_count: 7,
        rnr_retry_count: 7,
        path_mtu: 3,
        ack_timeout: 16,
    };
    send_frame(&mut bench.ends[0], 1, &CmMessage::Request(request).frame(&path(1), 0));
    bench.settle();
    let CmMessage::Request(got) = take_message(&mut bench.ends[1], 1) else { panic!("no REQ") };
    assert_eq!(got, request);
    let reply = CmReply {
        transaction: got.transaction,
        local_comm_id: 0xBBBB_0001,
        remote_comm_id: got.local_comm_id,
        ca_guid: 0x0200_00FF_FE00_0002,
        qpn: 5,
        psn: 0x22_2222,
        reads: got.reads,
        rnr_retry_count: 7,
    };
    send_frame(&mut bench.ends[1], 1, &CmMessage::Reply(reply).frame(&path(2), 0));
    bench.settle();
    let CmMessage::Reply(got) = take_message(&mut bench.ends[0], 1) else { panic!("no REP") };
    assert_eq!(got, reply);
    let ready = CmReadyToUse {
        transaction: got.transaction,
        local_comm_id: request.local_comm_id,
        remote_comm_id: got.local_comm_id,
    };
    send_frame(&mut bench.ends[0], 2, &CmMessage::ReadyToUse(ready).frame(&path(1), 1));
    bench.settle();
    assert_eq!(take_message(&mut bench.ends[1], 2), CmMessage::ReadyToUse(ready));

    // MAD counters: [31:16] of both; the interrupt; nothing else was counted as sent or received.
    for (end, out, into) in [(0, 2, 1), (1, 1, 2)] {
        let end = &mut bench.ends[end];
        assert_eq!(end.get(Register::Outampktcnt, 0), out << 16);
        assert_eq!(end.get(Register::Inampktcnt, 0), into << 16);
        assert_eq!(end.get(Register::Intsts, 0) & MAD_ARRIVED, MAD_ARRIVED);
        assert_eq!(end.get(Register::Insrrpktcnt, 0), 0);
        assert_eq!(end.get(Register::Outiopktcnt, 0), 0);
        assert_eq!(end.get(Register::Cqhead, QP1), out);
        end.set(Register::Intsts, 0, MAD_ARRIVED);
        assert_eq!(end.get(Register::Intsts, 0) & MAD_ARRIVED, 0);
    }

    // Both ends program what the messages said, and data flows.
    for (end, own, peer, peer_qpn, send_psn, receive_psn) in
        [(0, 4, 2, 5, 0x11_1111, 0x22_2222), (1, 5, 1, 4, 0x22_2222, 0x11_1111)]
    {
        let end = &mut bench.ends[end];
        set_up_qp(end, own, 3 - peer, peer);
        end.set(Register::Destqpconf, own, peer_qpn);
        end.set(Register::Sqpsn, own, send_psn);
        end.set(Register::Lstrqreq, own, 0x0400_0000 | (receive_psn - 1));
    }
    fill(&mut bench.ends[0].memory, LOCAL, 2000, 3);
    let entry = Entry { opcode: 2, local: LOCAL, len: 2000, ..Entry::default() };
    write_entry(&mut bench.ends[0], 4, 1, &entry);
    bench.ends[0].set(Register::Sqpi, 4, 1);
    bench.settle();
    assert_eq!(bench.ends[1].get(Register::Statrqpidb, 5), 1);
    let sent = bytes(&bench.ends[0].memory, LOCAL, 2000);
    assert_eq!(bytes(&bench.ends[1].memory, of_qp(5, RQ), 2000), sent);
}

#[test]
fn a_mad_that_finds_no_buffer_is_dropped_and_counted() {
    let mut bench = pair([ErnicConfig { num_qp: 8, ..ErnicConfig::default() }; 2], &[]);
    bench.ends.iter_mut().for_each(open_qp1);
    let ready = CmReadyToUse { transaction: 1, local_comm_id: 2, remote_comm_id: 3 };
    let frame = CmMessage::ReadyToUse(ready).frame(&path(1), 0);
    // A ring of 16 holds 15.
    for n in 1..=16 {
        send_frame(&mut bench.ends[0], n, &frame);
        bench.settle();
    }
    let end = &mut bench.ends[1];
    assert_eq!(end.refused(Reason::ReceiverNotReady), 1);
    assert_eq!(end.get(Register::Inampktcnt, 0), 15 << 16);
    assert_eq!(end.get(Register::Inalldrppktcnt, 0), 16 << 16 | 1);
    assert_eq!(bench.count(1, opcode::ACKNOWLEDGE), 0, "a datagram is not answered");
    end_of_ring(&mut bench);
}

/// With a buffer given back, the next one arrives.
fn end_of_ring(bench: &mut Two) {
    let ready = CmReadyToUse { transaction: 4, local_comm_id: 5, remote_comm_id: 6 };
    bench.ends[1].set(Register::Rqci, QP1, 1);
    send_frame(&mut bench.ends[0], 1, &CmMessage::ReadyToUse(ready).frame(&path(1), 0));
    bench.settle();
    let frame = bytes(&bench.ends[1].memory, of_qp(QP1, RQ) + 512 * 15, 512);
    assert_eq!(CmMessage::from_frame(&frame), Some(CmMessage::ReadyToUse(ready)));
}

/// Marks data packets of end 0 "congestion experienced".
fn mark(from: usize, frame: &mut [u8]) {
    if from == 0 && frame[12..14] == [8, 0] && frame[42] < 0x0C {
        frame[15] |= 3;
        frame[24..26].fill(0);
        let words = frame[14..34].as_chunks::<2>().0.iter();
        let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes(*word))).sum();
        let sum = (sum & 0xFFFF) + (sum >> 16);
        frame[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    }
}

fn unmarked(_: usize, _: &mut [u8]) {}

/// Most data packets that end 0 has sent and not yet seen acknowledged, while it writes 128 KiB.
fn most_outstanding(bench: &mut Two, sqpi: u32) -> u32 {
    let write = Entry { local: LOCAL, len: 0x8000, remote: REGION, rkey: RKEY, ..Entry::default() };
    write_entry(&mut bench.ends[0], QP, sqpi, &write);
    bench.ends[0].set(Register::Sqpi, QP, sqpi);
    let mut most = 0;
    while bench.ends[0].get(Register::Cqhead, QP) != sqpi {
        bench.run_until(Nanos(bench.now.0 + 20));
        let qp = bench.ends[0].engine.qp(softrnic_engine::Qpn::new(QP.into())).unwrap();
        most = most.max(qp.requester().outstanding_packets());
    }
    most
}

#[test]
fn a_marked_packet_asks_for_a_notification_which_software_sends_and_which_halves_the_window_once() {
    let mut bench = usual_pair();
    bench.ends.iter_mut().for_each(open_qp1);
    // So long a cable that the window is what limits.
    bench.latency_ns = 20_000;
    assert_eq!(most_outstanding(&mut bench, 1), 16);
    assert_eq!(bench.ends[1].get(Register::Cnpschdsts, 0), 0);

    // CE on arrival: bank and interrupt.
    bench.on_the_way = Some(mark);
    assert_eq!(most_outstanding(&mut bench, 2), 16, "no notification yet");
    bench.on_the_way = Some(unmarked);
    let end = &mut bench.ends[1];
    assert_eq!(end.get(Register::Cnpschdsts, 0), 1 << QP);
    assert_eq!(end.get(Register::Intsts, 0) & CNP_DUE, CNP_DUE);
    assert!(end.interrupt());
    assert_eq!(end.get(Register::Outcnppktcnt, 0), 0, "hardware sends none by itself");

    // Software's CNP through QP1. It ends what the bank asks for; the interrupt is cleared apart.
    let cnp = congestion_notification(&path(2), QP.into(), 0xFFFF);
    send_frame(end, 1, &cnp);
    bench.settle();
    let end = &mut bench.ends[1];
    assert_eq!(end.get(Register::Cnpschdsts, 0), 0);
    assert_eq!(end.get(Register::Intsts, 0) & CNP_DUE, CNP_DUE);
    end.set(Register::Intsts, 0, CNP_DUE);
    assert_eq!(end.get(Register::Intsts, 0) & CNP_DUE, 0);
    assert_eq!(end.get(Register::Outcnppktcnt, 0), 1);
    assert_eq!(end.get(Register::Outampktcnt, 0) >> 16, 0, "it is no management datagram");
    assert_eq!(bench.count(1, opcode::CNP), 1);

    // The peer: counted, and half the window; a second one changes nothing more.
    assert_eq!(bench.ends[0].get(Register::Incnppktcnt, 0), 1);
    assert_eq!(most_outstanding(&mut bench, 3), 8);
    send_frame(&mut bench.ends[1], 2, &cnp);
    bench.settle();
    assert_eq!(bench.ends[0].get(Register::Incnppktcnt, 0), 2);
    assert_eq!(most_outstanding(&mut bench, 4), 8);
    assert_eq!(bench.ends[0].get(Register::Retrycntsts, 0), 0, "a CNP takes no PSN");

    // Whoever uses the queue pair next, after its indices were cleared, has the whole window again.
    let end = &mut bench.ends[0];
    end.set(Register::Xrnicadconf, 0, 1);
    end.set(Register::Sqpi, QP, 0);
    end.set(Register::Cqhead, QP, 0);
    end.set(Register::Xrnicadconf, 0, 0);
    assert_eq!(most_outstanding(&mut bench, 1), 16);
}

#[test]
fn a_notification_for_another_queue_pair_leaves_the_bank_and_writing_one_clears_it() {
    let mut bench = pair([ErnicConfig { num_qp: 64, ..ErnicConfig::default() }; 2], &[2]);
    let end = &mut bench.ends[1];
    end.set(Register::XrnicConfQpEn, 0, 63);
    open_qp1(end);
    bench.on_the_way = Some(mark);
    let send = Entry { opcode: 2, len: 8, ..Entry::default() };
    write_entry(&mut bench.ends[0], QP, 1, &send);
    bench.ends[0].set(Register::Sqpi, QP, 1);
    bench.settle();
    let end = &mut bench.ends[1];
    assert_eq!(end.get(Register::Cnpschdsts, 0), 1 << QP);
    send_frame(end, 1, &congestion_notification(&path(2), 7, 0xFFFF));
    bench.settle();
    assert_eq!(bench.ends[0].get(Register::Incnppktcnt, 0), 0, "queue pair 7 is not there");
    let end = &mut bench.ends[1];
    assert_eq!(end.get(Register::Cnpschdsts, 0), 1 << QP);
    end.set(Register::Cnpschdsts, 1, u32::MAX);
    assert_eq!(end.get(Register::Cnpschdsts, 0), 1 << QP);
    end.set(Register::Cnpschdsts, 0, 1 << QP);
    assert_eq!(end.get(Register::Cnpschdsts, 0), 0);
}
