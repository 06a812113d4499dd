//! The responder against a slow and obvious one: whatever single packets a peer sends, in whatever
//! order, both say the same and do the same (P-08, P-19, P-23).

use std::collections::BTreeMap;

use proptest::prelude::*;
use softrnic_engine::packet::opcode as op;
use softrnic_engine::{Place, Status};

use crate::harness::{Pair, Setup};
use crate::peer::{KEY, atomic, plain, reth};

#[derive(Clone, Copy, Debug)]
enum Request {
    Send,
    Write,
    FetchAdd,
    Read,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A request this many PSNs after the expected one.
    Ask(Request, i32),
    PostReceive,
}

/// What an answer says: opcode, PSN, syndrome, MSN.
type Said = (u8, u32, u8, u32);

const ACK: u8 = 0x1F;
const RNR: u8 = 0x2C;
const NAK: u8 = 0x60;
const ADD: u64 = 3;
/// Where FETCH_ADD adds.
const VALUE: usize = 0x2000;

/// What a responder is, with nothing clever about it: it forgets nothing.
#[derive(Debug, Default)]
struct Model {
    expected: u32,
    msn: u32,
    /// A NAK or RNR NAK has been said about the expected PSN.
    gap: bool,
    receives: u32,
    received: usize,
    value: u64,
    /// Every READ and atomic by PSN, with the value before.
    done: BTreeMap<u32, Option<u64>>,
}

impl Model {
    /// The answer, and the value that it carries.
    fn ask(&mut self, request: Request, distance: i32) -> Option<(Said, Option<u64>)> {
        let psn = self.expected.wrapping_add_signed(distance) & 0x00FF_FFFF;
        match distance {
            0 => self.execute(request),
            1.. if self.gap => None,
            1.. => {
                self.gap = true;
                Some(((op::ACKNOWLEDGE, self.expected, NAK, self.msn), None))
            }
            _ => self.repeat(request, psn),
        }
    }

    fn execute(&mut self, request: Request) -> Option<(Said, Option<u64>)> {
        let psn = self.expected;
        if matches!(request, Request::Send) {
            if self.receives == 0 {
                self.gap = true;
                return Some(((op::ACKNOWLEDGE, psn, RNR, self.msn), None));
            }
            self.receives -= 1;
            self.received += 1;
        }
        let before = self.value;
        match request {
            Request::Send | Request::Write => {}
            Request::Read => _ = self.done.insert(psn, None),
            Request::FetchAdd => {
                self.value += ADD;
                self.done.insert(psn, Some(before));
            }
        }
        self.gap = false;
        self.expected = (psn + 1) & 0x00FF_FFFF;
        self.msn = (self.msn + 1) & 0x00FF_FFFF;
        Some(match request {
            Request::Send | Request::Write => ((op::ACKNOWLEDGE, psn, ACK, self.msn), None),
            Request::Read => ((op::READ_RESPONSE_ONLY, psn, ACK, self.msn), None),
            Request::FetchAdd => ((op::ATOMIC_ACKNOWLEDGE, psn, ACK, self.msn), Some(before)),
        })
    }

    fn repeat(&self, request: Request, psn: u32) -> Option<(Said, Option<u64>)> {
        let newest = self.expected.wrapping_sub(1) & 0x00FF_FFFF;
        match (request, self.done.get(&psn)) {
            (Request::Send | Request::Write, _) => {
                Some(((op::ACKNOWLEDGE, newest, ACK, self.msn), None))
            }
            (Request::Read, Some(None)) => {
                Some(((op::READ_RESPONSE_ONLY, psn, ACK, self.msn), None))
            }
            (Request::FetchAdd, Some(Some(before))) => {
                Some(((op::ATOMIC_ACKNOWLEDGE, psn, ACK, self.msn), Some(*before)))
            }
            _ => None,
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let request = prop_oneof![
        Just(Request::Send),
        Just(Request::Write),
        Just(Request::FetchAdd),
        Just(Request::Read)
    ];
    // Mostly the expected one, so that the story goes on.
    let distance =
        prop_oneof![3 => Just(0), 2 => -5..5i32, 1 => Just(-(1 << 23)), 1 => Just((1 << 23) - 1)];
    prop_oneof![
        4 => (request, distance).prop_map(|(request, distance)| Step::Ask(request, distance)),
        1 => Just(Step::PostReceive),
    ]
}

fn ask(pair: &mut Pair, request: Request, psn: u32) {
    match request {
        Request::Send => pair.ask(1, op::SEND_ONLY, psn, plain(), &[1; 4]),
        Request::Write => pair.ask(1, op::WRITE_ONLY, psn, reth(0x3000, KEY, 4), &[2; 4]),
        Request::FetchAdd => pair.ask(1, op::FETCH_ADD, psn, atomic(VALUE as u64, ADD, 0), &[]),
        Request::Read => pair.ask(1, op::READ_REQUEST, psn, reth(VALUE as u64, KEY, 8), &[]),
    };
}

fn run(steps: &[Step], start: u32) -> Result<(), TestCaseError> {
    let mut pair = Pair::new(Setup { psn: start, ..Setup::default() });
    pair.region();
    let mut model = Model { expected: start, ..Model::default() };
    for &step in steps {
        let Step::Ask(request, distance) = step else {
            model.receives += 1;
            pair.ends[1].face.receives.push_back(Place { token: 0, base: 0x8000, length: 64 });
            continue;
        };
        let psn = model.expected.wrapping_add_signed(distance) & 0x00FF_FFFF;
        ask(&mut pair, request, psn);
        let heard = pair.hear(1);
        let expected = model.ask(request, distance);
        let said: Vec<Said> = heard
            .iter()
            .map(|h| (h.opcode, h.psn, h.syndrome.unwrap_or(0xFF), h.msn.unwrap_or(0)))
            .collect();
        let expected_said: Vec<Said> = expected.iter().map(|(said, _)| *said).collect();
        prop_assert_eq!(said, expected_said, "{:?}", step);
        if let Some((_, Some(before))) = expected {
            let frame = &heard[0].frame;
            prop_assert_eq!(&frame[frame.len() - 12..frame.len() - 4], before.to_be_bytes());
        }
        if let [heard] = &heard[..]
            && heard.opcode == op::READ_RESPONSE_ONLY
        {
            prop_assert_eq!(&heard.payload[..], model.value.to_le_bytes(), "memory as it is now");
        }
        prop_assert_eq!((pair.expected(1), pair.msn(1)), (model.expected, model.msn));
    }
    let received = vec![(Status::Success, 4, None); model.received];
    prop_assert_eq!(pair.ends[1].received(), received);
    prop_assert_eq!(&pair.ends[1].face.memory[VALUE..VALUE + 8], model.value.to_le_bytes());
    Ok(())
}

proptest! {
    #![proptest_config(crate::cases(1000))]
    // T-07, T-31
    #[test]
    fn p_23_the_responder_does_what_an_obvious_one_does(
        steps in prop::collection::vec(step(), 0..40),
        start in prop_oneof![Just(0u32), Just(0x00FF_FFF8), 0..(1u32 << 24)],
    ) {
        run(&steps, start)?;
    }
}
