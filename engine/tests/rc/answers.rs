//! What the responder says, when, and in which order: acknowledgements, MSN, READ responses (S-10 to
//! S-18, S-62, S-67).

use softrnic_engine::packet::{Syndrome, nak_code, opcode as op, parse};
use softrnic_engine::{Attributes, Completion, CompletionKind, Event, Path, Place, State, Status};

use crate::harness::{Pair, Setup};
use crate::peer::{KEY, answers, atomic, brief, imm, plain, reth};

fn responder() -> Pair {
    let mut pair = Pair::new(Setup::default());
    pair.region();
    pair
}

fn receives(pair: &mut Pair, count: u64) {
    for i in 0..count {
        let place = Place { token: 0, base: 0x8000 + i * 64, length: 4096 };
        pair.ends[1].face.receives.push_back(place);
    }
}

#[test]
fn s_10_a_request_that_asks_is_acknowledged_and_one_that_does_not_need_not_be() {
    let mut pair = responder();
    receives(&mut pair, 1);
    let mut first = pair.packet(1, op::SEND_FIRST, 0x100, plain(), &[1; 1024]);
    first.bth.ack_req = 0;
    pair.tell(1, &first);
    assert_eq!(answers(&pair.hear(1)), []);
    pair.ask(1, op::SEND_LAST, 0x101, plain(), &[1; 4]);
    assert_eq!(answers(&pair.hear(1)), [(0x1F, 0x101)]);
}

#[test]
fn s_11_one_ack_may_stand_for_many_and_the_last_covers_all() {
    let mut pair = responder();
    receives(&mut pair, 100);
    let mut heard = Vec::new();
    for i in 0..100 {
        pair.ask(1, op::SEND_ONLY, 0x100 + i, plain(), &[]);
        if i % 7 == 6 || i == 99 {
            heard.extend(pair.hear(1));
        }
    }
    assert_eq!(heard.len(), 15);
    assert!(heard.is_sorted_by(|a, b| a.psn < b.psn));
    assert_eq!((heard[14].psn, heard[14].msn), (0x163, Some(100)));
}

#[test]
fn s_12_no_ack_and_no_nak_overtakes_a_read_response() {
    for (opcode, ext, syndrome) in
        [(op::SEND_ONLY, plain(), 0x1F), (op::WRITE_ONLY, reth(0, 99, 4), 0x62)]
    {
        let mut pair = responder();
        receives(&mut pair, 1);
        pair.ask(1, op::READ_REQUEST, 0x100, reth(0, KEY, 16 << 10), &[]);
        pair.ask(1, opcode, 0x110, ext, &[1; 4]);
        let heard = pair.hear(1);
        assert_eq!(heard.len(), 17);
        assert!(heard.is_sorted_by(|a, b| a.psn < b.psn));
        assert_eq!(heard[15].opcode, op::READ_RESPONSE_LAST);
        assert_eq!(answers(&heard[16..]), [(syndrome, 0x110)]);
    }
}

#[test]
fn s_13_responses_carry_the_queue_pairs_own_fields() {
    let path = Path { traffic_class: 0x6A, hop_limit: 9, ..Path::default() };
    let attributes = Attributes { path, pkey: 0x8123, ..Attributes::default() };
    let mut pair = Pair::new(Setup { attributes, ..Setup::default() });
    pair.region();
    receives(&mut pair, 1);
    let requests = [
        (op::SEND_ONLY, plain(), 4),
        (op::READ_REQUEST, reth(0, KEY, 3000), 0),
        (op::FETCH_ADD, atomic(0, 1, 0), 0),
    ];
    for (opcode, ext, len) in requests {
        let psn = pair.expected(1);
        let mut what = pair.packet(1, opcode, psn, ext, &vec![1; len]);
        what.bth.flags |= 0xC0;
        what.bth.pkey = 0x8123.into();
        assert_eq!(pair.tell(1, &what), None);
        for (i, heard) in pair.hear(1).iter().enumerate() {
            let packet = parse(&heard.frame).expect("it can be parsed");
            assert_eq!(packet.bth.dest_qpn(), pair.ends[0].qpn);
            assert!(!packet.bth.solicited() && !packet.bth.ack_requested());
            assert_eq!(packet.bth.pkey.get(), 0x8123);
            assert_eq!(packet.bth.flags & 0x40, 0x40, "M: migrated");
            assert_eq!(heard.psn, psn + i as u32);
            assert_eq!(packet.traffic_class(), 0x6A);
            assert_eq!(heard.frame[22], 9, "TTL");
            assert_eq!(packet.dest_mac(), [2, 0, 0, 0, 0, 1]);
        }
    }
}

// T-25
#[test]
fn s_14_msn_counts_each_message_once_whatever_its_kind() {
    let mut pair = responder();
    receives(&mut pair, 4);
    let mut trace = Vec::new();
    let full = [1; 1024];
    let mut say = |pair: &mut Pair, opcode, psn, ext, len: usize| {
        assert_eq!(pair.ask(1, opcode, psn, ext, &full[..len]), None);
        trace.extend(pair.hear(1).iter().filter_map(|h| h.msn.map(|msn| (h.psn - 0x100, msn))));
    };
    say(&mut pair, op::SEND_FIRST, 0x100, plain(), 1024);
    say(&mut pair, op::SEND_MIDDLE, 0x101, plain(), 1024);
    say(&mut pair, op::SEND_LAST, 0x102, plain(), 4);
    say(&mut pair, op::READ_REQUEST, 0x103, reth(0, KEY, 2500), 0);
    say(&mut pair, op::READ_REQUEST, 0x103, reth(0, KEY, 2500), 0);
    say(&mut pair, op::WRITE_ONLY, 0x106, reth(0, KEY, 4), 4);
    say(&mut pair, op::FETCH_ADD, 0x107, atomic(0, 1, 0), 0);
    say(&mut pair, op::FETCH_ADD, 0x107, atomic(0, 1, 0), 0);
    say(&mut pair, op::WRITE_ONLY_IMM, 0x108, reth(0, KEY, 4), 4);
    say(&mut pair, op::SEND_ONLY_IMM, 0x109, imm(1), 4);
    say(&mut pair, op::SEND_ONLY_IMM, 0x109, imm(1), 4);
    say(&mut pair, op::COMPARE_SWAP, 0x10A, atomic(0, 1, 0), 0);
    let expected = [
        (0, 0),
        (1, 0),
        (2, 1),
        (3, 2),
        (5, 2),
        (3, 2),
        (5, 2),
        (6, 3),
        (7, 4),
        (7, 4),
        (8, 5),
        (9, 6),
        (9, 6),
        (10, 7),
    ];
    assert_eq!(trace, expected);
}

#[test]
fn s_14_msn_wraps_at_24_bits() {
    let mut pair = responder();
    let qpn = pair.ends[1].qpn;
    pair.ends[1].engine.set_msn(qpn, 0x00FF_FFFF);
    pair.ask(1, op::WRITE_ONLY, 0x100, reth(0, KEY, 4), &[1; 4]);
    assert_eq!(pair.hear(1)[0].msn, Some(0));
}

#[test]
fn s_15_every_syndrome_byte_has_one_meaning() {
    for byte in 0..=255u8 {
        let kind = match byte {
            0x00..0x20 => Syndrome::Ack(byte),
            0x20..0x40 => Syndrome::Rnr(byte - 0x20),
            0x60..0x80 => Syndrome::Nak(byte - 0x60),
            _ => Syndrome::Reserved(byte),
        };
        assert_eq!(Syndrome::of(byte), kind);
        assert_eq!(kind.byte(), byte);
    }
}

#[test]
fn s_16_nak_codes_are_the_standards() {
    let codes = [
        (nak_code::PSN_SEQUENCE, 0x60),
        (nak_code::INVALID_REQUEST, 0x61),
        (nak_code::REMOTE_ACCESS, 0x62),
        (nak_code::REMOTE_OPERATIONAL, 0x63),
        (nak_code::INVALID_RD_REQUEST, 0x64),
    ];
    for (code, byte) in codes {
        assert_eq!(Syndrome::Nak(code).byte(), byte);
    }
}

#[test]
fn s_18_written_data_is_there_when_the_send_completes_and_before_the_ack_leaves() {
    let mut pair = responder();
    receives(&mut pair, 1);
    pair.ask(1, op::WRITE_ONLY, 0x100, reth(0x2000, KEY, 8), &[7; 8]);
    pair.ask(1, op::SEND_ONLY, 0x101, plain(), &[8; 8]);
    assert_eq!(pair.ends[1].received(), [(Status::Success, 8, None)]);
    assert_eq!(pair.ends[1].face.memory[0x2000..0x2008], [7; 8]);
    assert_eq!(pair.ends[1].face.memory[0x8000..0x8008], [8; 8]);
    assert_eq!(answers(&pair.hear(1)), [(0x1F, 0x101)]);
}

#[test]
fn s_62_a_write_behind_a_read_may_be_executed_but_is_answered_after_it() {
    let mut pair = responder();
    pair.ends[1].face.memory[0x2000..0x2800].fill(1);
    pair.ask(1, op::READ_REQUEST, 0x100, reth(0x2000, KEY, 2048), &[]);
    pair.ask(1, op::WRITE_ONLY, 0x102, reth(0x2000, KEY, 4), &[2; 4]);
    let heard = pair.hear(1);
    let order = [
        (op::READ_RESPONSE_FIRST, 0x100),
        (op::READ_RESPONSE_LAST, 0x101),
        (op::ACKNOWLEDGE, 0x102),
    ];
    assert_eq!(brief(&heard), order);
    assert!(matches!(heard[0].payload[..4], [1, 1, 1, 1] | [2, 2, 2, 2]));
    assert!(heard[0].payload[4..].iter().all(|&byte| byte == 1));
}

#[test]
fn s_66_the_solicited_flag_reaches_the_completion() {
    for solicited in [false, true] {
        let mut pair = responder();
        receives(&mut pair, 1);
        let mut what = pair.packet(1, op::SEND_ONLY, 0x100, plain(), &[1; 4]);
        what.bth.flags |= u8::from(solicited) << 7;
        pair.tell(1, &what);
        let Completion { kind: CompletionKind::Receive { solicited: told, .. }, .. } =
            pair.ends[1].face.completions[0]
        else {
            panic!("a receive completes");
        };
        assert_eq!(told, solicited);
    }
}

#[test]
fn s_67_communication_is_established_once() {
    let mut pair = responder();
    let qpn = pair.ends[1].qpn;
    let end = &mut pair.ends[1];
    for state in [State::Reset, State::Init, State::Rtr] {
        end.engine.set_state(qpn, state, &mut end.face);
    }
    end.face.events.clear();
    receives(&mut pair, 2);
    for psn in [0x100, 0x101] {
        assert_eq!(pair.ask(1, op::SEND_ONLY, psn, plain(), &[]), None);
    }
    assert_eq!(pair.ends[1].face.events, [Event::CommunicationEstablished(qpn)]);
}
