//! The step beside each border: the last that is right, the first that is wrong. Written against the
//! mutants in `e2e/mutants`; names begin with the rule.

use softrnic_engine::packet::{BthFields, nak_code, opcode};
use softrnic_engine::{
    Attributes, Counter, Event, PathMtu, Psn, Qpn, Reason, Service, State, Status, Work, WorkOpcode,
};

use crate::harness::{Fate, Pair, Setup};
use crate::script::{frame, region_header};
use crate::stories::{pattern, receive, remote, send};

fn setup(change: impl FnOnce(&mut Attributes)) -> Setup {
    let mut setup = Setup::default();
    change(&mut setup.attributes);
    setup
}

/// An acknowledge packet for `to`.
fn answer(to: usize, syndrome: u8, psn: u32) -> Vec<u8> {
    let bth = BthFields { psn: Psn::new(psn), ..BthFields::default() };
    let mut ext = [0; 32];
    ext[0] = syndrome;
    frame(to, opcode::ACKNOWLEDGE, bth, &ext, 0)
}

const ACK: u8 = 0x1F;
const NAK_SEQUENCE: u8 = 0x60 | nak_code::PSN_SEQUENCE;

/// A request packet for `to`.
fn request(to: usize, opcode: u8, psn: u32, payload: usize) -> Vec<u8> {
    let bth = BthFields { psn: Psn::new(psn), ack_request: true, ..BthFields::default() };
    frame(to, opcode, bth, &region_header(0x2000, 256), payload)
}

/// Moves time on until something arrives or a timer expires at `end`, and sends what it wants to,
/// into nothing.
fn deaf_round(pair: &mut Pair, end: usize) -> bool {
    pair.transmit(end, &mut |_, _| Fate::Drop);
    pair.step()
}

#[test]
fn q_24_an_ack_of_the_first_psn_that_was_not_sent_is_a_ghost() {
    let mut pair = Pair::new(Setup::default());
    pair.ends[0].post(send(8));
    pair.transmit(0, &mut |_, _| Fate::Drop);
    assert_eq!(pair.inject(0, &answer(0, ACK, 0x101)), Some(Reason::ResponseGhost));
    assert_eq!(pair.ends[0].sent(), []);
    assert_eq!(pair.inject(0, &answer(0, ACK, 0x100)), None);
    assert_eq!(pair.ends[0].sent(), [Status::Success]);
}

#[test]
fn q_44_each_message_has_all_its_retries() {
    let mut pair = Pair::new(setup(|a| a.retry_count = 2));
    pair.region();
    for done in 1..=3 {
        pair.ends[0].post(remote(WorkOpcode::Write, 8));
        // The first sending and the first retry are lost.
        let first = pair.frames[0];
        pair.run_with(
            |from, n| if from == 0 && n < first + 2 { Fate::Drop } else { Fate::Deliver },
        );
        assert_eq!(pair.ends[0].sent(), vec![Status::Success; done]);
    }
}

#[test]
fn q_44_each_message_has_all_its_rnr_retries() {
    let mut pair = Pair::new(setup(|a| a.rnr_retry = 2));
    for done in 1..=3 {
        pair.ends[0].post(send(8));
        while pair.ends[1].face.events.len() < 2 * done {
            while pair.transmit(0, &mut |_, _| Fate::Deliver)
                | pair.transmit(1, &mut |_, _| Fate::Deliver)
            {}
            assert!(pair.step());
        }
        pair.ends[1].face.receives.push_back(receive(0x1000, 64));
        pair.run();
        assert_eq!(pair.ends[0].sent(), vec![Status::Success; done]);
    }
}

#[test]
fn q_45_rnr_retry_seven_is_for_ever() {
    let mut pair = Pair::new(setup(|a| a.rnr_retry = 7));
    pair.ends[0].post(send(8));
    while pair.ends[1].face.events.len() < 300 {
        while pair.transmit(0, &mut |_, _| Fate::Deliver)
            | pair.transmit(1, &mut |_, _| Fate::Deliver)
        {}
        assert!(pair.step());
    }
    pair.ends[1].face.receives.push_back(receive(0x1000, 64));
    pair.run();
    assert_eq!(pair.ends[0].sent(), [Status::Success]);
}

#[test]
fn q_43_acks_of_what_is_done_do_not_keep_a_dead_connection_alive() {
    let mut pair = Pair::new(setup(|a| a.retry_count = 2));
    pair.region();
    pair.ends[0].post(remote(WorkOpcode::Write, 8));
    pair.run();
    pair.ends[0].post(remote(WorkOpcode::Write, 8));
    let mut rounds = 0;
    while deaf_round(&mut pair, 0) {
        rounds += 1;
        assert!(rounds < 10, "it goes on for ever");
        let stale = pair.inject(0, &answer(0, ACK, 0x100));
        assert!(matches!(stale, Some(Reason::ResponseGhost | Reason::QpFatal)), "{stale:?}");
    }
    assert_eq!(pair.ends[0].sent(), [Status::Success, Status::RetryExceeded]);
    assert_eq!(pair.frames[0], 1 + 3, "one sending and two retries of the second");
}

#[test]
fn q_46_a_nak_does_not_cut_the_rnr_wait_short() {
    let mut pair = Pair::new(Setup::default());
    pair.ends[0].post(send(8));
    pair.transmit(0, &mut |_, _| Fate::Drop);
    let rnr = 0x20 | 12;
    assert_eq!(pair.inject(0, &answer(0, rnr, 0x100)), None);
    let nak = answer(0, NAK_SEQUENCE, 0x100);
    assert_eq!(pair.inject(0, &nak), Some(Reason::ResponseWhileRnr));
    assert!(!pair.transmit(0, &mut |_, _| Fate::Drop), "nothing is sent before the time is over");
    assert!(pair.step());
    assert_eq!(pair.now.0, 640_000, "code 12 is 0.64 ms");
    assert!(pair.transmit(0, &mut |_, _| Fate::Drop));
}

#[test]
fn v_01_a_wrong_icrc_is_refused_before_a_byte_is_placed() {
    let mut pair = Pair::new(Setup::default());
    pair.ends[1].face.receives.push_back(receive(0x1000, 64));
    let good = request(1, opcode::SEND_ONLY, 0x100, 8);
    let payload_at = good.len() - 4 - 8;
    for (at, bit) in [(payload_at, 1), (good.len() - 1, 0x80)] {
        let mut bad = good.clone();
        bad[at] ^= bit;
        assert_eq!(pair.inject(1, &bad), Some(Reason::Icrc));
    }
    assert!(pair.ends[1].face.memory.iter().all(|&byte| byte == 0));
    assert_eq!(pair.ends[1].received(), []);
    assert_eq!(pair.inject(1, &good), None);
    assert_eq!(pair.ends[1].received(), [(Status::Success, 8, None)]);
}

#[test]
fn s_30_a_second_gap_raises_a_second_nak() {
    let mut pair = Pair::new(setup(|a| a.path_mtu = PathMtu::M256));
    pair.region();
    pair.ends[0].post(remote(WorkOpcode::Write, 8 * 256));
    // The second packet is lost; when all is sent again from there, the fifth.
    let mut seen = 0;
    pair.run_with(|from, n| {
        seen += u32::from(from == 0);
        if from == 0 && (n == 1 || n == 8 + 3) { Fate::Drop } else { Fate::Deliver }
    });
    let counters = pair.ends[0].engine.counters();
    assert_eq!(counters[Counter::PacketSeqErr], 2, "{}", pair.ladder);
    assert_eq!(counters[Counter::LocalAckTimeoutErr], 0, "no gap had to wait for the timer");
    assert_eq!(pair.ends[0].sent(), [Status::Success]);
    assert_eq!(seen, 8 + 7 + 4);
}

#[test]
fn s_30_a_gap_raises_one_nak_however_much_follows() {
    let mut pair = Pair::new(Setup::default());
    pair.region();
    let ahead = |psn| request(1, opcode::WRITE_ONLY, psn, 256);
    assert_eq!(pair.inject(1, &ahead(0x101)), Some(Reason::PsnAhead));
    assert!(pair.next_frame(1).is_some(), "the NAK");
    assert_eq!(pair.inject(1, &ahead(0x102)), Some(Reason::PsnAhead));
    assert_eq!(pair.next_frame(1), None);
}

#[test]
fn s_51_as_many_reads_as_the_depth_and_not_one_more() {
    let mut pair = Pair::new(setup(|a| a.max_dest_rd_atomic = 2));
    pair.region();
    for psn in [0x100, 0x101] {
        assert_eq!(pair.inject(1, &request(1, opcode::READ_REQUEST, psn, 0)), None);
    }
    let third = pair.inject(1, &request(1, opcode::READ_REQUEST, 0x102, 0));
    assert_eq!(third, Some(Reason::TooManyReads));
    assert_eq!(pair.ends[1].state(), State::Error);
}

#[test]
fn s_45_a_send_of_exactly_the_buffer_fits_and_one_byte_more_does_not() {
    for (length, status) in [(512, Status::Success), (513, Status::LocalLength)] {
        let mut pair = Pair::new(setup(|a| a.path_mtu = PathMtu::M256));
        pattern(&mut pair, 0);
        pair.ends[1].face.receives.push_back(receive(0x1000, 512));
        pair.ends[0].post(send(length));
        pair.run();
        assert_eq!(pair.ends[1].received()[0].0, status);
        assert_eq!(pair.ends[1].face.memory[0x1000 + 512], 0, "the byte behind the buffer");
    }
}

#[test]
fn s_44_a_write_carries_what_it_announced() {
    for (payload, refused) in [(255, true), (256, false)] {
        let mut pair = Pair::new(Setup::default());
        pair.region();
        let verdict = pair.inject(1, &request(1, opcode::WRITE_ONLY, 0x100, payload));
        assert_eq!(verdict, refused.then_some(Reason::PayloadLength));
        assert_eq!(pair.ends[1].face.memory[0x2000], if refused { 0 } else { 0x5A });
    }
}

#[test]
fn s_44_the_packets_of_a_write_add_up_to_what_it_announced() {
    for (payload, refused) in [(243, true), (244, false), (245, true)] {
        let mut pair = Pair::new(setup(|a| a.path_mtu = PathMtu::M256));
        pair.region();
        let bth = BthFields { psn: Psn::new(0x100), ..BthFields::default() };
        let first = frame(1, opcode::WRITE_FIRST, bth, &region_header(0x2000, 500), 256);
        assert_eq!(pair.inject(1, &first), None);
        let verdict = pair.inject(1, &request(1, opcode::WRITE_LAST, 0x101, payload));
        assert_eq!(verdict, refused.then_some(Reason::PayloadLength), "{payload}");
        let written = pair.ends[1].face.memory[0x2000 + 256];
        assert_eq!(written, if refused { 0 } else { 0x5A });
    }
}

#[test]
fn s_10_duplicates_do_not_count_as_messages() {
    let mut pair = Pair::new(Setup::default());
    pair.region();
    for _ in 0..3 {
        pair.inject(1, &request(1, opcode::WRITE_ONLY, 0x100, 256));
    }
    let qp = pair.ends[1].engine.qp(pair.ends[1].qpn).expect("it exists");
    assert_eq!((qp.responder().msn(), qp.expected_psn()), (1, Psn::new(0x101)));
}

#[test]
fn s_50_a_repeated_compare_and_swap_is_answered_from_memory() {
    let mut pair = Pair::new(Setup::default());
    pair.region();
    pair.ends[1].face.memory[0x2000..0x2008].copy_from_slice(&1u64.to_le_bytes());
    let local = receive(0x6000, 8);
    let swap = Work { local, compare: 1, swap_or_add: 2, ..remote(WorkOpcode::CompareSwap, 8) };
    pair.ends[0].post(swap);
    pair.run_with(|from, n| if (from, n) == (1, 0) { Fate::Drop } else { Fate::Deliver });
    assert_eq!(pair.ends[0].sent(), [Status::Success]);
    assert_eq!(pair.ends[0].face.memory[0x6000], 1, "the value before the first execution");
    assert_eq!(pair.ends[1].face.memory[0x2000], 2);
}

#[test]
fn q_12_only_the_last_packet_asks_for_a_solicited_event() {
    let mut pair = Pair::new(setup(|a| a.path_mtu = PathMtu::M256));
    pair.ends[0].post(Work { solicited: true, ..send(600) });
    let mut solicited = Vec::new();
    while let Some(frame) = pair.next_frame(0) {
        let packet = softrnic_engine::packet::parse(&frame).expect("it can be parsed");
        solicited.push(packet.bth.solicited());
    }
    assert_eq!(solicited, [false, false, true]);
}

#[test]
fn q_41_progress_starts_the_timer_again() {
    let mut pair = Pair::new(Setup::default());
    for _ in 0..2 {
        pair.ends[0].post(send(8));
    }
    pair.transmit(0, &mut |_, _| Fate::Drop);
    let timeout_ns = 4096 << 10;
    pair.now.0 = timeout_ns - 1;
    assert_eq!(pair.inject(0, &answer(0, ACK, 0x100)), None);
    assert!(pair.step());
    assert_eq!(pair.now.0, 2 * timeout_ns - 1);
    assert_eq!(pair.ends[0].engine.counters()[Counter::LocalAckTimeoutErr], 1);
}

#[test]
fn s_53_answers_owed_before_a_fatal_nak_leave_first() {
    let mut pair = Pair::new(setup(|a| a.path_mtu = PathMtu::M256));
    pair.region();
    pattern(&mut pair, 1);
    pair.ends[0].post(Work { local: receive(0x6000, 600), ..remote(WorkOpcode::Read, 600) });
    pair.ends[0].post(Work { rkey: softrnic_engine::RKey(8), ..remote(WorkOpcode::Write, 8) });
    pair.run();
    assert_eq!(pair.ends[0].sent(), [Status::Success, Status::RemoteAccess]);
    assert_eq!(
        pair.ends[0].face.memory[0x6000..0x6000 + 600],
        pair.ends[1].face.memory[0x2000..0x2000 + 600]
    );
}

#[test]
fn v_05_partition_keys_match_where_one_side_is_a_full_member() {
    // Frames carry 0xFFFF; the queue pair's key changes.
    let cases = [(0xFFFF, true), (0x7FFF, true), (0xFFFE, false), (0x8000, false)];
    for (pkey, taken) in cases {
        let mut pair = Pair::new(setup(|a| a.pkey = pkey));
        pair.ends[1].face.receives.push_back(receive(0x1000, 64));
        let verdict = pair.inject(1, &request(1, opcode::SEND_ONLY, 0x100, 8));
        assert_eq!(verdict, (!taken).then_some(Reason::PKey), "{pkey:#x}");
    }
    // Two limited members.
    let mut pair = Pair::new(setup(|a| a.pkey = 0x7FFF));
    pair.ends[1].face.receives.push_back(receive(0x1000, 64));
    pair.ends[0].post(send(8));
    pair.transmit(0, &mut |_, _| Fate::Deliver);
    pair.step();
    assert_eq!(pair.ends[1].engine.refused()[Reason::PKey as usize], 1);
    assert_eq!(pair.ends[1].received(), []);
}

#[test]
fn v_06_a_packet_of_a_third_party_is_not_the_peers() {
    let mut pair = Pair::new(Setup::default());
    pair.ends[1].face.receives.push_back(receive(0x1000, 64));
    let qpn = pair.ends[1].qpn;
    let path = &mut pair.ends[1].engine.attributes_mut(qpn).expect("it exists").path;
    let peer = path.dest_ip;
    path.dest_ip = [192, 0, 2, 77].into();
    let good = request(1, opcode::SEND_ONLY, 0x100, 8);
    assert_eq!(pair.inject(1, &good), Some(Reason::SourceAddress));
    pair.ends[1].engine.attributes_mut(qpn).expect("it exists").path.dest_ip = peer;
    assert_eq!(pair.inject(1, &good), None);
}

#[test]
fn v_02_a_queue_pair_is_known_by_its_full_number() {
    let mut pair = Pair::new(Setup::default());
    let qpn = pair.ends[1].qpn;
    for bit in 0..24 {
        let other = Qpn::new(qpn.get() ^ 1 << bit);
        assert!(pair.ends[1].engine.qp(other).is_none(), "{other}");
        // One of the same slot, whatever the table's size.
        pair.ends[1].engine.set_send_psn(other, Psn::new(7));
    }
    let qp = pair.ends[1].engine.qp(qpn).expect("it exists");
    assert_eq!(qp.send_psn(), Psn::new(0x100));
}

#[test]
fn u_10_a_datagram_with_another_queue_key_is_dropped() {
    let mut pair = Pair::new(setup(|a| {
        a.service = Service::Ud;
        a.qkey = 0x1234_5678;
    }));
    pair.ends[1].face.receives.push_back(receive(0x1000, 256));
    let bth = BthFields { psn: Psn::new(0), ..BthFields::default() };
    let mut deth = [0; 32];
    deth[..4].copy_from_slice(&0x1234_5679u32.to_be_bytes());
    let bad = frame(1, opcode::UD_SEND_ONLY, bth, &deth, 8);
    assert_eq!(pair.inject(1, &bad), Some(Reason::QKey));
    deth[3] = 0x78;
    assert_eq!(pair.inject(1, &frame(1, opcode::UD_SEND_ONLY, bth, &deth, 8)), None);
    assert_eq!(pair.ends[1].received(), [(Status::Success, 48, None)]);
}

#[test]
fn u_03_a_message_that_lost_its_middle_is_dropped_and_the_next_one_arrives() {
    let attributes = Attributes {
        service: Service::Uc,
        path_mtu: PathMtu::M256,
        ack_timeout: 10,
        ..Attributes::default()
    };
    let mut pair = Pair::new(Setup { attributes, ..Setup::default() });
    pattern(&mut pair, 0);
    pair.ends[1].face.receives.push_back(receive(0x1000, 1024));
    pair.ends[0].post(send(1000));
    pair.ends[0].post(send(100));
    pair.run_with(|from, n| if (from, n) == (0, 1) { Fate::Drop } else { Fate::Deliver });
    assert_eq!(pair.ends[1].received(), [(Status::Success, 100, None)]);
    let refused = pair.ends[1].engine.refused();
    assert_eq!(refused[Reason::PsnResync as usize], 1, "the packet behind the hole");
    assert_eq!(refused[Reason::OpcodeSequence as usize], 1, "a last packet of no message");
}

#[test]
fn m_05_draining_ends_what_was_started_and_starts_nothing() {
    let mut pair = Pair::new(Setup::default());
    pair.region();
    let qpn = pair.ends[0].qpn;
    pair.ends[0].post(remote(WorkOpcode::Write, 8));
    pair.transmit(0, &mut |_, _| Fate::Deliver);
    let end = &mut pair.ends[0];
    end.engine.set_state(qpn, State::Sqd, &mut end.face);
    assert_eq!(end.face.events, [], "one request is not acknowledged");
    end.post(remote(WorkOpcode::Write, 8));
    pair.run();
    assert_eq!(pair.ends[0].sent(), [Status::Success]);
    assert_eq!(pair.ends[0].face.events, [Event::SendQueueDrained(qpn)]);
    let end = &mut pair.ends[0];
    end.engine.set_state(qpn, State::Rts, &mut end.face);
    end.engine.ring(qpn, &mut end.face);
    pair.run();
    assert_eq!(pair.ends[0].sent(), [Status::Success; 2]);
}

#[test]
fn q_09_without_credit_one_probe_goes_and_its_answer_says_more() {
    let mut pair = Pair::new(setup(|a| a.policy.end_to_end_credits = true));
    for _ in 0..4 {
        pair.ends[0].post(send(8));
    }
    pair.transmit(0, &mut |_, _| Fate::Drop);
    assert_eq!(pair.frames[0], 1, "a probe");
    // "No credit counting here" frees all; the toy's receives are not counted.
    assert_eq!(pair.inject(0, &answer(0, ACK, 0x100)), None);
    pair.transmit(0, &mut |_, _| Fate::Drop);
    assert_eq!(pair.frames[0], 4);
}
