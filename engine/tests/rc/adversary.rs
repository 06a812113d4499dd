//! A peer that sends anything with a right ICRC, in any order, between honest traffic: nothing may
//! panic, complete out of order or twice, or touch memory that was not given.

use proptest::prelude::*;
use softrnic_engine::packet::{BthFields, Flow, Template, opcode};
use softrnic_engine::{
    Attributes, CompletionKind, PathMtu, Place, Psn, Qpn, RKey, Work, WorkOpcode,
};

use crate::harness::{Fate, Pair, Setup};

/// One thing that happens.
#[derive(Clone, Debug)]
enum Step {
    Post { from: usize, opcode: u8, length: u32, fence: bool },
    Receive { to: usize, length: u32 },
    Transmit { from: usize, lose: bool },
    Forge { to: usize, opcode: u8, psn: i32, ack_request: bool, ext: [u8; 32], payload: usize },
    Time,
}

fn step() -> impl Strategy<Value = Step> {
    let end = 0..2usize;
    prop_oneof![
        (end.clone(), 0..8u8, 0..1200u32, any::<bool>())
            .prop_map(|(from, opcode, length, fence)| Step::Post { from, opcode, length, fence }),
        (end.clone(), 0..1500u32).prop_map(|(to, length)| Step::Receive { to, length }),
        (end.clone(), prop::bool::weighted(0.2))
            .prop_map(|(from, lose)| Step::Transmit { from, lose }),
        (
            end,
            prop_oneof![0..0x18u8, any::<u8>()],
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
        (0..0x3000u64, 0..1000u32).prop_map(|(va, length)| {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&va.to_be_bytes());
            bytes[8..12].copy_from_slice(&7u32.to_be_bytes());
            bytes[12..16].copy_from_slice(&length.to_be_bytes());
            bytes
        }),
        any::<u8>().prop_map(|syndrome| {
            let mut bytes = [0; 32];
            bytes[0] = syndrome;
            bytes
        }),
    ]
}

const OPCODES: [WorkOpcode; 8] = [
    WorkOpcode::Send,
    WorkOpcode::SendImm,
    WorkOpcode::SendInv,
    WorkOpcode::Write,
    WorkOpcode::WriteImm,
    WorkOpcode::Read,
    WorkOpcode::FetchAdd,
    WorkOpcode::CompareSwap,
];

const GUARD: std::ops::Range<usize> = 0x3000..0x4000;

fn forge(pair: &Pair, to: usize, step: &Step) -> Vec<u8> {
    let Step::Forge { opcode, psn, ack_request, ext, payload, .. } = step else { return vec![] };
    let (me, peer) = (to as u8 + 1, 2 - to as u8);
    let flow = Flow {
        source_mac: [2, 0, 0, 0, 0, peer],
        dest_mac: [2, 0, 0, 0, 0, me],
        vlan_tci: None,
        source_ip: [192, 0, 2, peer].into(),
        dest_ip: [192, 0, 2, me].into(),
        traffic_class: ext[31],
        hop_limit: 1,
        flow_label: 0,
        source_port: 1,
        pkey: 0xFFFF,
        dest_qpn: Qpn::new(0x11 * u32::from(me)),
    };
    let template = Template::new(&flow).expect("one family");
    let row = opcode::row(*opcode);
    let mut frame = vec![0x5A; template.frame_len(row, *payload)];
    let headers = usize::from(row.header_len) - 12;
    frame[template.len()..template.len() + headers].copy_from_slice(&ext[..headers]);
    let qp = pair.ends[to].engine.qp(Qpn::new(0x11 * u32::from(me))).expect("it exists");
    let base = if row.operation.is_response() {
        qp.requester().unacknowledged_psn()
    } else {
        qp.expected_psn()
    };
    let psn = Psn::new(base.get().wrapping_add_signed(*psn));
    let bth = BthFields { psn, ack_request: *ack_request, ..BthFields::default() };
    template.finish(&mut frame, row, *payload, bth);
    frame
}

fn run(steps: &[Step]) -> Result<(), TestCaseError> {
    let attributes = Attributes {
        path_mtu: PathMtu::M256,
        ack_timeout: 1,
        rnr_retry: 3,
        max_rd_atomic: 2,
        max_dest_rd_atomic: 2,
        max_in_flight: 4,
        ..Attributes::default()
    };
    let mut pair =
        Pair::new(Setup { attributes, memory: 0x4000, psn: 0x00FF_FFF0, ..Setup::default() });
    for end in &mut pair.ends {
        end.face.memory[GUARD].fill(0xEE);
        let region =
            crate::harness::Region { va: 0, length: 0x3000, read: true, write: true, valid: true };
        end.face.regions.insert(7, region);
    }
    for step in steps {
        match step {
            Step::Post { from, opcode, length, fence } => {
                let opcode = OPCODES[usize::from(*opcode)];
                let atomic = matches!(opcode, WorkOpcode::FetchAdd | WorkOpcode::CompareSwap);
                let length = if atomic { 8 } else { *length };
                pair.ends[*from].post(Work {
                    opcode,
                    length,
                    local: Place { token: 0, base: 0x1000, length },
                    remote_va: 0x2000,
                    rkey: RKey(7),
                    fence: *fence,
                    ..Work::default()
                });
            }
            Step::Receive { to, length } => {
                let place = Place { token: 0, base: 0x800, length: *length };
                pair.ends[*to].face.receives.push_back(place);
            }
            Step::Transmit { from, lose } => {
                let fate = if *lose { Fate::Drop } else { Fate::Deliver };
                pair.transmit(*from, &mut |_, _| fate);
            }
            Step::Forge { to, .. } => {
                let frame = forge(&pair, *to, step);
                pair.inject(*to, &frame);
            }
            Step::Time => {
                pair.step();
            }
        }
    }
    for end in &pair.ends {
        prop_assert!(end.face.memory[GUARD].iter().all(|&byte| byte == 0xEE));
        let done = end.face.completions.iter().filter_map(|c| match c.kind {
            CompletionKind::Work { index, .. } => Some(index),
            CompletionKind::Receive { .. } => None,
        });
        let done: Vec<u32> = done.collect();
        let in_order: Vec<u32> = (0..done.len() as u32).collect();
        prop_assert_eq!(&done, &in_order, "once each, in posting order");
        prop_assert!(done.len() <= end.face.sends.len());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
    #[test]
    fn p_03_an_adversarial_peer_changes_nothing_it_was_not_given(
        steps in prop::collection::vec(step(), 0..60)
    ) {
        run(&steps)?;
    }
}
