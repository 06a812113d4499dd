//! Scripts of an adversarial peer: drawn at random, and read from `fuzz/corpus/peer`. What must hold
//! is said in `script`.

use std::fs;
use std::path::Path;

use proptest::prelude::*;

use crate::script::{LENGTH_MAX, OPCODES, SERVICES, Script, Step, read, region_header, run};

fn step() -> impl Strategy<Value = Step> {
    let end = 0..2usize;
    prop_oneof![
        (end.clone(), 0..OPCODES.len() as u8, 0..1200u32, any::<bool>())
            .prop_map(|(from, opcode, length, fence)| Step::Post { from, opcode, length, fence }),
        (end.clone(), 0..LENGTH_MAX).prop_map(|(to, length)| Step::Receive { to, length }),
        (end.clone(), prop::bool::weighted(0.2))
            .prop_map(|(from, lose)| Step::Transmit { from, lose }),
        (
            end,
            prop_oneof![0..0x18u8, 0x20..0x2Cu8, 0x64..0x66u8, any::<u8>()],
            prop_oneof![-4..4i32, Just(-(1 << 23)), Just((1 << 23) - 1), any::<i32>()],
            any::<bool>(),
            extension(),
            prop_oneof![Just(0usize), Just(256), 0..600usize]
        )
            .prop_map(|(to, opcode, psn, ack_request, ext, payload)| Step::Forge {
                to,
                opcode,
                psn,
                ack_request,
                ext,
                payload
            }),
        Just(Step::Time),
    ]
}

/// Extension header bytes that are often meaningful: a RETH of the region, or an AETH.
fn extension() -> impl Strategy<Value = [u8; 32]> {
    prop_oneof![
        any::<[u8; 32]>(),
        (0..0x3000u64, 0..1000u32).prop_map(|(va, length)| region_header(va, length)),
        any::<u8>().prop_map(|syndrome| {
            let mut bytes = [0; 32];
            bytes[0] = syndrome;
            bytes
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
    #[test]
    fn p_03_an_adversarial_peer_changes_nothing_it_was_not_given(
        service in prop::sample::select(vec![SERVICES[0], SERVICES[0], SERVICES[1], SERVICES[2]]),
        steps in prop::collection::vec(step(), 0..60)
    ) {
        run(&Script { service, steps });
    }
}

#[test]
fn p_03_the_corpus_of_the_fuzz_target_peer() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/peer");
    let mut files: Vec<_> = fs::read_dir(corpus)
        .expect("the corpus is in the repository")
        .map(|entry| entry.expect("it can be listed").path())
        .collect();
    files.sort();
    assert!(files.len() >= 20, "the corpus is missing: {} files", files.len());
    for file in files {
        let bytes = fs::read(&file).expect("it can be read");
        run(&read(&bytes));
    }
}
