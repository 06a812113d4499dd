//! Payload and announced lengths at the responder: exact, one off, and far off, with guard bytes
//! around what may be written (S-42 to S-45).

use softrnic_engine::packet::opcode as op;
use softrnic_engine::packet::{Extensions, Payload, Position};
use softrnic_engine::{PathMtu, Place, Reason, State, Status};

use crate::harness::{Pair, Setup};
use crate::peer::{KEY, answers, imm, plain, reth};

const GUARD: u8 = 0xEE;
/// Where the region and the receive buffer are; everything else is guard.
const AREA: std::ops::Range<usize> = 0x4000..0xC000;

fn guarded(mtu: PathMtu) -> Pair {
    let mut setup = Setup::default();
    setup.attributes.path_mtu = mtu;
    let mut pair = Pair::new(setup);
    pair.ends[1].face.memory.fill(GUARD);
    pair.grant(1, KEY, AREA.start as u64, AREA.len() as u64, true, true);
    let place = Place { token: 0, base: AREA.start as u64, length: AREA.len() as u32 };
    pair.ends[1].face.receives.push_back(place);
    pair
}

fn check_guard(pair: &Pair, written: std::ops::Range<usize>, context: &str) {
    for (i, &byte) in pair.ends[1].face.memory.iter().enumerate() {
        assert!(byte == GUARD || written.contains(&i), "byte {i:#x} was written: {context}");
    }
}

// T-14
#[test]
fn s_42_each_opcode_takes_its_own_payload_lengths_and_no_other() {
    for mtu in PathMtu::ALL {
        let p = mtu.bytes() as usize;
        for opcode in op::SEND_FIRST..=op::WRITE_ONLY_IMM {
            for len in [0, 1, 2, 3, 4, p - 4, p - 1, p, p + 1, p + 4, 2 * p] {
                one_length(mtu, opcode, len);
            }
        }
        for opcode in [op::SEND_LAST_INV, op::SEND_ONLY_INV] {
            for len in [0, 1, p - 1, p, p + 4] {
                one_length(mtu, opcode, len);
            }
        }
    }
}

fn one_length(mtu: PathMtu, opcode: u8, len: usize) {
    let p = mtu.bytes() as usize;
    let row = op::row(opcode);
    let fits = match row.position {
        Position::First | Position::Middle => len == p,
        Position::Last => (1..=p).contains(&len),
        Position::Only => len <= p,
    };
    let mut pair = guarded(mtu);
    let write = row.operation == softrnic_engine::packet::Operation::Write;
    let key = 9;
    pair.grant(1, key, 0, 0, true, true);
    let announced = match row.position {
        Position::First => len + 1,
        Position::Only => len,
        Position::Middle => 3 * p,
        Position::Last => p + len,
    };
    let mut psn = 0x100;
    if !row.position.starts() {
        let first = if write { op::WRITE_FIRST } else { op::SEND_FIRST };
        let ext = reth(AREA.start as u64, KEY, announced.max(p + 1) as u32);
        assert_eq!(pair.ask(1, first, psn, ext, &vec![1; p]), None);
        psn += 1;
    }
    pair.hear(1);
    let mut ext = reth(AREA.start as u64, KEY, announced as u32);
    ext.ieth = crate::peer::inv(key).ieth;
    let refused = pair.ask(1, opcode, psn, ext, &vec![2; len]);
    let context = format!("{} of {len} at {p}: {refused:?}", row.name);
    if fits {
        assert_eq!(refused, None, "{context}");
        assert_eq!(pair.expected(1), psn + 1, "{context}");
    } else {
        assert_eq!(refused, Some(Reason::PayloadLength), "{context}");
        assert_eq!(answers(&pair.hear(1)), [(0x61, psn)], "{context}");
        assert_eq!(pair.ends[1].state(), State::Error, "{context}");
    }
    check_guard(&pair, AREA.start..AREA.start + 2 * p, &context);
}

#[test]
fn s_43_the_longest_message_is_two_to_the_31() {
    for opcode in [op::WRITE_FIRST, op::READ_REQUEST] {
        let len = if opcode == op::READ_REQUEST { 0 } else { 1024 };
        for (length, syndrome) in [(0x8000_0000, 0x62), (0x8000_0001, 0x61), (u32::MAX, 0x61)] {
            let mut pair = guarded(PathMtu::M1024);
            pair.ask(1, opcode, 0x100, reth(AREA.start as u64, KEY, length), &vec![1; len]);
            assert_eq!(answers(&pair.hear(1)), [(syndrome, 0x100)], "{length:#x}");
            check_guard(&pair, 0..0, "nothing");
        }
    }
}

/// Opcode, announced length (for those that carry a RETH), payload length.
type Packets = &'static [(u8, u32, usize)];

// T-12
#[test]
fn s_44_payloads_add_up_to_the_announced_length_or_nothing_more_is_written() {
    use op::{WRITE_FIRST, WRITE_LAST, WRITE_LAST_IMM, WRITE_MIDDLE, WRITE_ONLY, WRITE_ONLY_IMM};
    // The last packet of each row is the one to be refused, at path MTU 256.
    let cases: &[Packets] = &[
        &[(WRITE_ONLY, 99, 100)],
        &[(WRITE_ONLY, 101, 100)],
        &[(WRITE_ONLY, 0, 4)],
        &[(WRITE_ONLY, 4, 0)],
        &[(WRITE_ONLY, 300, 256)],
        &[(WRITE_ONLY_IMM, 99, 100)],
        &[(WRITE_ONLY_IMM, 101, 100)],
        &[(WRITE_FIRST, 256, 256)],
        &[(WRITE_FIRST, 255, 256)],
        &[(WRITE_FIRST, 0, 256)],
        &[(WRITE_FIRST, 512, 256), (WRITE_MIDDLE, 0, 256)],
        &[(WRITE_FIRST, 300, 256), (WRITE_MIDDLE, 0, 256)],
        &[(WRITE_FIRST, 700, 256), (WRITE_MIDDLE, 0, 256), (WRITE_MIDDLE, 0, 256)],
        &[(WRITE_FIRST, 300, 256), (WRITE_LAST, 0, 43)],
        &[(WRITE_FIRST, 300, 256), (WRITE_LAST, 0, 45)],
        &[(WRITE_FIRST, 300, 256), (WRITE_LAST, 0, 256)],
        &[(WRITE_FIRST, 600, 256), (WRITE_LAST, 0, 88)],
        &[(WRITE_FIRST, 600, 256), (WRITE_MIDDLE, 0, 256), (WRITE_LAST, 0, 87)],
        &[(WRITE_FIRST, 600, 256), (WRITE_MIDDLE, 0, 256), (WRITE_LAST_IMM, 0, 89)],
    ];
    for case in cases {
        let mut pair = guarded(PathMtu::M256);
        let mut psn = 0x100;
        let mut announced = 0;
        for (i, &(opcode, length, len)) in case.iter().enumerate() {
            if op::row(opcode).position.starts() {
                announced = length;
            }
            let ext = reth(AREA.start as u64, KEY, length);
            let refused = pair.ask(1, opcode, psn, ext, &vec![i as u8 + 1; len]);
            let heard = pair.hear(1);
            if i + 1 < case.len() {
                assert_eq!(refused, None, "{case:?}");
                psn += 1;
            } else {
                assert_eq!(refused, Some(Reason::PayloadLength), "{case:?}");
                assert_eq!(answers(&heard), [(0x61, psn)], "{case:?}");
            }
        }
        assert_eq!(pair.ends[1].state(), State::Error);
        let written = 256 * (case.len() - 1);
        let end = AREA.start + written.min(announced as usize);
        check_guard(&pair, AREA.start..end, &format!("{case:?}"));
        let done = pair.ends[1].received().into_iter().filter(|r| r.0 == Status::Success).count();
        assert_eq!(done, 0, "{case:?}");
    }
}

// T-19
#[test]
fn s_45_a_send_of_any_length_against_a_buffer_of_1500_bytes() {
    for (len, fits) in [(1499, true), (1500, true), (1501, false), (2048, false)] {
        let mut pair = guarded(PathMtu::M1024);
        pair.ends[1].face.receives.clear();
        let place = Place { token: 0, base: AREA.start as u64, length: 1500 };
        pair.ends[1].face.receives.push_back(place);
        pair.ask(1, op::SEND_FIRST, 0x100, plain(), &[1; 1024]);
        pair.hear(1);
        pair.ask(1, op::SEND_LAST_IMM, 0x101, imm(0), &vec![1; len - 1024]);
        let status = if fits { Status::Success } else { Status::LocalLength };
        assert_eq!(pair.ends[1].received()[0].0, status, "{len}");
        assert_eq!(answers(&pair.hear(1))[0].0, if fits { 0x1F } else { 0x61 });
        check_guard(&pair, AREA.start..AREA.start + 1500, "the buffer's end");
    }
}

#[test]
fn f_31_a_payload_on_an_opcode_without_one_is_dropped() {
    // Chosen for rule F-31: dropped before any queue pair sees it, no NAK.
    for opcode in [op::READ_REQUEST, op::COMPARE_SWAP, op::FETCH_ADD, op::ACKNOWLEDGE] {
        assert_eq!(op::row(opcode).payload, Payload::None);
        let mut pair = guarded(PathMtu::M1024);
        let what = pair.packet(1, opcode, 0x100, Extensions::default(), &[]);
        let mut frame = softrnic_engine::packet::build(&what).expect("it can be written");
        let at = frame.len() - 4;
        frame.splice(at..at, [1, 2, 3, 4]);
        let total = (frame.len() - 14) as u16;
        frame[16..18].copy_from_slice(&total.to_be_bytes());
        frame[38..40].copy_from_slice(&(total - 20).to_be_bytes());
        crate::peer::seal(&mut frame);
        assert_eq!(pair.inject(1, &frame), Some(Reason::PayloadNotAllowed));
        assert!(pair.hear(1).is_empty());
        assert_eq!(pair.ends[1].state(), State::Rts);
    }
}
