//! What must not matter: path MTU, how acknowledgements are asked for and given, copies of packets, and
//! running twice (P-15, P-16, P-17, P-24). One busy story with faults, and another that differs only in
//! that, must leave the same memory and the same completions in the same order.

use proptest::prelude::*;
use softrnic_engine::{AckMode, Attributes, PathMtu, Policy, Status};

use crate::busy::{FAULTS, attributes, busy_with, check};
use crate::harness::{Fate, Pair};

/// Faults of single frames: sender, number in its direction, which.
type Script = Vec<(usize, u32, usize)>;

fn script() -> impl Strategy<Value = Script> {
    prop::collection::vec((0..2usize, 0..80u32, 0..FAULTS.len()), 0..12)
}

fn fate_of(script: &Script) -> impl Fn(usize, u32) -> Fate {
    move |from, number| {
        let hit = script.iter().find(|&&(f, n, _)| (f, n) == (from, number));
        hit.map_or(Fate::Deliver, |&(_, _, kind)| FAULTS[kind])
    }
}

/// Memory, and the completions of each queue in their order.
type Outcome = [(Vec<u8>, Vec<Status>, Vec<(Status, u32, Option<u32>)>); 2];

fn outcome(pair: &Pair) -> Outcome {
    check(pair);
    [0, 1].map(|e| {
        let end = &pair.ends[e];
        (end.face.memory.clone(), end.sent(), end.received())
    })
}

fn play(attributes: Attributes, script: &Script) -> Pair {
    let mut pair = busy_with(0x00FF_FFF0, attributes);
    pair.run_with(fate_of(script));
    pair
}

/// The story without faults, and with the smallest path MTU.
fn plain() -> Outcome {
    outcome(&play(attributes(), &Vec::new()))
}

const MTUS: [PathMtu; 5] =
    [PathMtu::M256, PathMtu::M512, PathMtu::M1024, PathMtu::M2048, PathMtu::M4096];

proptest! {
    #![proptest_config(crate::cases(200))]

    #[test]
    fn p_15_the_outcome_does_not_depend_on_the_path_mtu(
        script in script(),
        path_mtu in prop::sample::select(&MTUS[..]),
    ) {
        let other = play(Attributes { path_mtu, ..attributes() }, &script);
        prop_assert_eq!(outcome(&other), plain());
    }

    #[test]
    fn p_16_the_outcome_does_not_depend_on_when_acknowledgements_are_asked_for_and_sent(
        script in script(),
        ack_request_every in 0..6u32,
        modes in prop::sample::select(
            &[AckMode::OnRequest, AckMode::OnRequestOrTimeout, AckMode::OnTimeout][..]
        ),
        // The ACK timeout is 262 us.
        ack_delay_ns in 0..100_000u64,
        window_packets in prop_oneof![Just(1024u32), 2..20u32],
    ) {
        let policy =
            Policy { ack_request_every, ack_mode: modes, ack_delay_ns, window_packets, ..Policy::default() };
        let other = play(Attributes { policy, ..attributes() }, &script);
        prop_assert_eq!(outcome(&other), plain());
    }

    // Copies of requests, answers and NAKs of either end, of any age, between any two events.
    #[test]
    fn p_17_copies_of_packets_that_come_later_change_nothing(
        script in script(),
        copies in prop::collection::vec((0..120usize, any::<prop::sample::Index>()), 0..24),
    ) {
        let mut pair = busy_with(0x00FF_FFF0, attributes());
        pair.kept = Some(Vec::new());
        let fate = fate_of(&script);
        for step in 0.. {
            prop_assert!(step < 100_000, "no end in sight");
            while pair.transmit(0, &mut |f, n| fate(f, n)) | pair.transmit(1, &mut |f, n| fate(f, n)) {}
            let due = copies.iter().filter(|(at, _)| *at == step);
            for (_, which) in due {
                let kept = pair.kept.as_ref().map_or(&[][..], Vec::as_slice);
                if !kept.is_empty() {
                    let (from, frame) = which.get(kept).clone();
                    pair.inject(1 - from, &frame);
                }
            }
            if !pair.step() {
                break;
            }
        }
        prop_assert_eq!(outcome(&pair), plain());
    }

    #[test]
    fn p_24_the_same_script_gives_the_same_trace(script in script(), psn in any::<u32>()) {
        let run = || {
            let mut pair = busy_with(psn, attributes());
            pair.kept = Some(Vec::new());
            pair.run_with(fate_of(&script));
            (pair.kept, pair.trains, pair.now)
        };
        prop_assert!(run() == run());
    }
}
