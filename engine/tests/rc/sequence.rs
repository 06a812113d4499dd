//! The responder's PSN and opcode rules: what is new, what is old, what is ahead (S-01 to S-04,
//! S-30 to S-37, S-40).

use softrnic_engine::packet::opcode::{self as op, OpcodeRow};
use softrnic_engine::packet::{Operation, Position};
use softrnic_engine::{Event, PathMtu, Place, RKey, Reason, State, Status, Work, WorkOpcode};

use crate::harness::{Fate, Pair, Setup};
use crate::peer::{KEY, answers, atomic, brief, imm, plain, reth};

fn responder(psn: u32, mtu: PathMtu) -> Pair {
    let mut setup = Setup { psn, ..Setup::default() };
    setup.attributes.path_mtu = mtu;
    let mut pair = Pair::new(setup);
    pair.region();
    pair
}

fn receives(pair: &mut Pair, count: u64) {
    for i in 0..count {
        let place = Place { token: 0, base: 0x8000 + i * 0x800, length: 0x800 };
        pair.ends[1].face.receives.push_back(place);
    }
}

// T-31
#[test]
fn s_01_half_of_the_psn_space_is_duplicate_and_half_is_ahead() {
    for base in [0x100, 0, 0x00FF_FFFF, 0x0080_0000] {
        for (offset, duplicate) in [
            (-1i32, true),
            (1, false),
            (-(1 << 23) + 1, true),
            (-(1 << 23), true),
            ((1 << 23) - 1, false),
        ] {
            let mut pair = responder(base, PathMtu::M1024);
            receives(&mut pair, 1);
            let psn = base.wrapping_add_signed(offset) & 0x00FF_FFFF;
            pair.ask(1, op::SEND_ONLY, psn, plain(), &[1; 4]);
            let want =
                if duplicate { (0x1F, base.wrapping_sub(1) & 0x00FF_FFFF) } else { (0x60, base) };
            assert_eq!(answers(&pair.hear(1)), [want], "{base:#x} {offset}");
            assert_eq!(pair.expected(1), base);
            assert!(pair.ends[1].received().is_empty());
        }
    }
}

#[test]
fn s_02_a_read_takes_a_psn_for_each_response() {
    for (length, psns) in [(0, 1), (1, 1), (1024, 1), (1025, 2), (4096, 4)] {
        let mut pair = responder(0x100, PathMtu::M1024);
        pair.ask(1, op::READ_REQUEST, 0x100, reth(0, KEY, length), &[]);
        assert_eq!(pair.expected(1), 0x100 + psns, "{length}");
        assert_eq!(pair.hear(1).len() as u32, psns);
    }
}

#[test]
fn s_04_a_refused_request_moves_nothing() {
    let mut pair = responder(0x100, PathMtu::M1024);
    pair.ask(1, op::SEND_ONLY, 0x100, plain(), &[1; 4]);
    pair.ask(1, op::SEND_ONLY, 0x105, plain(), &[1; 4]);
    let mut damaged = pair.packet(1, op::SEND_ONLY, 0x100, plain(), &[1; 4]);
    damaged.icrc = softrnic_engine::packet::Derived::Is(1);
    assert_eq!(pair.tell(1, &damaged), Some(Reason::Icrc));
    assert_eq!((pair.expected(1), pair.msn(1)), (0x100, 0));
    receives(&mut pair, 1);
    assert_eq!(pair.ask(1, op::SEND_ONLY, 0x100, plain(), &[1; 4]), None);
    assert_eq!((pair.expected(1), pair.msn(1)), (0x101, 1));
}

// T-02
#[test]
fn s_30_one_packet_lost_at_each_place_gives_one_nak_and_one_delivery() {
    for opcode in [WorkOpcode::Send, WorkOpcode::Write, WorkOpcode::WriteImm] {
        for mtu in [PathMtu::M256, PathMtu::M4096] {
            for ipv6 in [false, true] {
                for lost in 0..8 {
                    one_lost_of_eight(opcode, mtu, ipv6, lost);
                }
            }
        }
    }
}

fn one_lost_of_eight(opcode: WorkOpcode, mtu: PathMtu, ipv6: bool, lost: u32) {
    let mut setup = Setup { psn: 0x00FF_FFFC, ipv6, memory: 256 << 10, ..Setup::default() };
    setup.attributes.path_mtu = mtu;
    let mut pair = Pair::new(setup);
    pair.region();
    let length = 8 * mtu.bytes();
    for (i, byte) in pair.ends[0].face.memory.iter_mut().enumerate() {
        *byte = (i / 7) as u8;
    }
    let place = Place { token: 0, base: 0x1_0000, length };
    pair.ends[1].face.receives.push_back(place);
    let local = Place { token: 0, base: 0, length };
    let work =
        Work { opcode, length, local, remote_va: 0x1_0000, rkey: RKey(7), ..Work::default() };
    pair.ends[0].post(work);
    pair.run_with(|from, n| if (from, n) == (0, lost) { Fate::Drop } else { Fate::Deliver });
    assert_eq!(pair.ends[0].sent(), [Status::Success]);
    let naks = pair.ladder.matches("Nak(0)").count();
    assert_eq!(naks, usize::from(lost != 7), "{}", pair.ladder);
    assert_eq!(pair.frames[0], if lost == 7 { 16 } else { 8 + 8 - lost }, "{}", pair.ladder);
    let len = length as usize;
    assert_eq!(pair.ends[1].face.memory[0x1_0000..][..len], pair.ends[0].face.memory[..len]);
    assert_eq!(pair.ends[1].received().len(), usize::from(opcode != WorkOpcode::Write));
}

#[test]
fn s_30_a_new_gap_gives_a_new_nak() {
    let mut pair = responder(0x100, PathMtu::M1024);
    receives(&mut pair, 4);
    for psn in 0x101..0x111 {
        assert_eq!(pair.ask(1, op::SEND_ONLY, psn, plain(), &[]), Some(Reason::PsnAhead));
    }
    let heard = pair.hear(1);
    assert_eq!(answers(&heard), [(0x60, 0x100)]);
    assert_eq!(heard[0].msn, Some(0));
    pair.ask(1, op::SEND_ONLY, 0x100, plain(), &[]);
    assert_eq!(answers(&pair.hear(1)), [(0x1F, 0x100)]);
    pair.ask(1, op::SEND_ONLY, 0x103, plain(), &[]);
    assert_eq!(answers(&pair.hear(1)), [(0x60, 0x101)]);
}

#[test]
fn s_30_a_nak_whose_packet_came_before_it_left_is_not_sent() {
    let mut pair = responder(0x100, PathMtu::M1024);
    receives(&mut pair, 4);
    for psn in [0x100, 0x102, 0x101, 0x102] {
        pair.ask(1, op::SEND_ONLY, psn, plain(), &[]);
    }
    assert_eq!(answers(&pair.hear(1)), [(0x1F, 0x102)]);
}

#[test]
fn s_31_a_nak_acknowledges_what_stands_before_it() {
    let mut pair = responder(0x100, PathMtu::M1024);
    for _ in 0..3 {
        pair.ends[0].post(Work { opcode: WorkOpcode::Write, rkey: RKey(KEY), ..Work::default() });
    }
    // The first ACK is lost with the second WRITE; the NAK does for it.
    pair.run_with(|from, n| if matches!((from, n), (0, 1)) { Fate::Drop } else { Fate::Deliver });
    assert_eq!(pair.ends[0].sent(), [Status::Success; 3]);
    assert_eq!(pair.ends[1].state(), State::Rts);
    assert_eq!(pair.frames[0], 5, "the first is not sent again:\n{}", pair.ladder);
}

#[test]
fn s_32_a_duplicate_in_a_gap_is_acknowledged_and_the_nak_is_not_repeated() {
    // Chosen: no second NAK; rule S-32 allows both.
    let mut pair = responder(0x100, PathMtu::M1024);
    receives(&mut pair, 4);
    pair.ask(1, op::SEND_ONLY, 0x100, plain(), &[]);
    pair.hear(1);
    pair.ask(1, op::SEND_ONLY, 0x102, plain(), &[]);
    assert_eq!(answers(&pair.hear(1)), [(0x60, 0x101)]);
    pair.ask(1, op::SEND_ONLY, 0x100, plain(), &[]);
    assert_eq!(answers(&pair.hear(1)), [(0x1F, 0x100)]);
    pair.ask(1, op::SEND_ONLY, 0x103, plain(), &[]);
    assert_eq!(answers(&pair.hear(1)), []);
}

#[test]
fn s_33_a_lost_nak_costs_one_transport_timer() {
    let mut pair = responder(0x100, PathMtu::M1024);
    pair.ends[0].post(Work {
        opcode: WorkOpcode::Write,
        rkey: RKey(KEY),
        length: 3000,
        local: Place { token: 0, base: 0, length: 3000 },
        ..Work::default()
    });
    pair.run_with(
        |from, n| {
            if matches!((from, n), (0, 1) | (1, 0)) { Fate::Drop } else { Fate::Deliver }
        },
    );
    assert_eq!(pair.ends[0].sent(), [Status::Success]);
    let timeout_ns = 4096 << 10;
    assert!(pair.now.0 >= timeout_ns && pair.now.0 < 2 * timeout_ns, "{}", pair.ladder);
}

#[test]
fn s_34_the_rnr_nak_names_packet_and_timer_and_changes_nothing() {
    for (opcode, ext) in [
        (op::SEND_ONLY, plain()),
        (op::SEND_ONLY_IMM, imm(1)),
        (op::WRITE_ONLY_IMM, reth(0x2000, KEY, 4)),
    ] {
        for code in 0..32 {
            let mut pair = responder(0x100, PathMtu::M1024);
            let qpn = pair.ends[1].qpn;
            pair.ends[1].engine.attributes_mut(qpn).expect("it exists").min_rnr_timer = code;
            let refused = pair.ask(1, opcode, 0x100, ext, &[1; 4]);
            assert_eq!(refused, Some(Reason::ReceiverNotReady));
            assert_eq!(answers(&pair.hear(1)), [(0x20 + code, 0x100)]);
            assert_eq!((pair.expected(1), pair.msn(1)), (0x100, 0));
            receives(&mut pair, 1);
            assert_eq!(pair.ask(1, opcode, 0x100, ext, &[1; 4]), None);
            assert_eq!(pair.ends[1].received().len(), 1);
        }
    }
}

// T-08
#[test]
fn s_35_what_follows_an_rnr_nak_is_dropped_in_silence() {
    let mut pair = responder(0x100, PathMtu::M1024);
    for psn in 0x100..0x110 {
        pair.ask(1, op::SEND_ONLY, psn, plain(), &[]);
    }
    assert_eq!(answers(&pair.hear(1)), [(0x2C, 0x100)]);
    assert_eq!(pair.ends[1].face.events, [Event::ReceiverNotReady(pair.ends[1].qpn)]);
}

#[test]
fn s_36_a_requester_that_comes_back_early_hears_rnr_again() {
    let mut pair = responder(0x100, PathMtu::M1024);
    for _ in 0..3 {
        pair.ask(1, op::SEND_ONLY, 0x100, plain(), &[]);
        assert_eq!(answers(&pair.hear(1)), [(0x2C, 0x100)]);
    }
    assert_eq!(pair.ends[1].state(), State::Rts);
}

// T-20
#[test]
fn s_37_rnr_of_a_write_with_immediate_is_on_its_last_packet_only() {
    let mut pair = responder(0x100, PathMtu::M1024);
    pair.ask(1, op::WRITE_FIRST, 0x100, reth(0x2000, KEY, 3000), &[0xA1; 1024]);
    pair.ask(1, op::WRITE_MIDDLE, 0x101, plain(), &[0xA2; 1024]);
    pair.hear(1);
    pair.ask(1, op::WRITE_LAST_IMM, 0x102, imm(5), &[0xA3; 952]);
    assert_eq!(answers(&pair.hear(1)), [(0x2C, 0x102)]);
    assert_eq!(pair.ends[1].face.memory[0x2000..0x2400], [0xA1; 1024]);
    // The region may change under it: what is written already is not written again.
    pair.ends[1].face.memory[0x2000] = 0;
    receives(&mut pair, 1);
    assert_eq!(pair.ask(1, op::WRITE_LAST_IMM, 0x102, imm(5), &[0xA3; 952]), None);
    assert_eq!(answers(&pair.hear(1)), [(0x1F, 0x102)]);
    assert_eq!(pair.ends[1].received(), [(Status::Success, 3000, Some(5))]);
    assert_eq!(pair.ends[1].face.memory[0x2000], 0);
    assert_eq!(pair.ends[1].face.memory[0x2800..0x2800 + 952], [0xA3; 952]);
}

/// What stands open before the packet under test.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Open {
    Nothing,
    Send,
    Write,
}

fn open(pair: &mut Pair, what: Open) -> u32 {
    let full = vec![0x11; 256];
    match what {
        Open::Nothing => return 0x100,
        Open::Send => pair.ask(1, op::SEND_FIRST, 0x100, plain(), &full),
        Open::Write => pair.ask(1, op::WRITE_FIRST, 0x100, reth(0, KEY, 600), &full),
    };
    pair.hear(1);
    0x101
}

fn may_follow(what: Open, row: &OpcodeRow) -> bool {
    let goes_on = matches!(row.position, Position::Middle | Position::Last);
    match (what, row.operation) {
        (_, Operation::Unknown | Operation::Flush | Operation::AtomicWrite) => false,
        (Open::Nothing, _) => !goes_on,
        (Open::Send, Operation::Send) | (Open::Write, Operation::Write) => goes_on,
        _ => false,
    }
}

// T-13
#[test]
fn s_40_every_request_opcode_after_nothing_a_send_and_a_write() {
    let mut accepted = 0;
    for what in [Open::Nothing, Open::Send, Open::Write] {
        for opcode in 0..0x20u8 {
            let row = op::row(opcode);
            if row.operation.is_response() {
                continue;
            }
            let mut pair = responder(0x100, PathMtu::M256);
            receives(&mut pair, 2);
            let psn = open(&mut pair, what);
            let before = pair.expected(1);
            let len = match (row.operation, row.position) {
                (Operation::Send | Operation::Write, Position::First | Position::Middle) => 256,
                (Operation::Send, _) => 100,
                (Operation::Write, Position::Only) => 100,
                (Operation::Write, _) => 600 - 256,
                (Operation::AtomicWrite, _) => 8,
                _ => 0,
            };
            // A last packet of the WRITE may be no longer than the path MTU, so one goes between.
            let psn = if row.operation == Operation::Write && row.position == Position::Last {
                if what == Open::Write {
                    pair.ask(1, op::WRITE_MIDDLE, psn, plain(), &[0; 256]);
                    pair.hear(1);
                }
                pair.expected(1)
            } else {
                psn
            };
            let len = if len == 344 { 88 } else { len };
            let length = if row.position == Position::First { 600 } else { 100 };
            let mut ext = reth(0, KEY, length);
            ext.atomic_eth = atomic(0, 1, 0).atomic_eth;
            ext.ieth = crate::peer::inv(KEY).ieth;
            let refused = pair.ask(1, opcode, psn, ext, &vec![0x22; len]);
            let context = format!("{what:?} then {:#04x} {}: {refused:?}", opcode, row.name);
            let heard = pair.hear(1);
            if may_follow(what, row) {
                accepted += 1;
                assert_eq!(refused, None, "{context}");
                assert!(pair.expected(1) != before, "{context}");
                assert_eq!(pair.ends[1].state(), State::Rts, "{context}");
            } else {
                assert_eq!(answers(&heard), [(0x61, psn)], "{context}");
                assert_eq!(pair.ends[1].state(), State::Error, "{context}");
                assert_eq!(pair.expected(1), psn, "{context}");
            }
        }
    }
    assert_eq!(accepted, 10 + 4 + 3, "starts, rests of a SEND, rests of a WRITE");
}

#[test]
fn s_03_a_nak_and_a_duplicate_across_the_wrap() {
    let mut pair = responder(0x00FF_FFFF, PathMtu::M1024);
    receives(&mut pair, 4);
    pair.ask(1, op::SEND_ONLY, 0x00FF_FFFF, plain(), &[]);
    assert_eq!(answers(&pair.hear(1)), [(0x1F, 0x00FF_FFFF)]);
    pair.ask(1, op::SEND_ONLY, 1, plain(), &[]);
    assert_eq!(answers(&pair.hear(1)), [(0x60, 0)]);
    pair.ask(1, op::SEND_ONLY, 0x00FF_FFFF, plain(), &[]);
    assert_eq!(answers(&pair.hear(1)), [(0x1F, 0x00FF_FFFF)]);
    pair.ask(1, op::READ_REQUEST, 0, reth(0, KEY, 2048), &[]);
    assert_eq!(brief(&pair.hear(1)), [(op::READ_RESPONSE_FIRST, 0), (op::READ_RESPONSE_LAST, 1)]);
    assert_eq!(pair.expected(1), 2);
}
