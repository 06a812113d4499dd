//! Congestion and flow control: DCQCN's numbers, CNPs, pacing, PFC. All on virtual time.

use insta::assert_snapshot;
use proptest::prelude::*;
use softrnic_engine::congestion::{ALPHA_ONE, Dcqcn, ReactionPoint};
use softrnic_engine::packet::flow_control::{FlowControl, FlowControlFrame, build};
use softrnic_engine::packet::{Network, icrc, opcode, parse};
use softrnic_engine::{
    Attributes, Counter, Event, Nanos, Path, PathMtu, Pfc, Place, Policy, Port, Qpn, RKey, Reason,
    Room, Rx, State, Status, Work, WorkOpcode,
};

use crate::harness::{Fate, Pair, Setup, mark};

const GBIT: u64 = 1_000_000_000;
const MICROSECOND: u64 = 1000;
/// ECT(0).
const ECT: u8 = 2;

/// No increase comes in between.
fn slow_increase() -> Dcqcn {
    Dcqcn { increase_timer_ns: 1_000_000_000, byte_counter_bytes: u32::MAX, ..Dcqcn::default() }
}

fn gbits(rate: u64) -> f64 {
    rate as f64 / GBIT as f64
}

/// As far as the numbers of the rules go.
fn near(value: f64, expected: f64) {
    assert!((value - expected).abs() < 1e-4, "{value} is not {expected}");
}

fn fraction(alpha: u64) -> f64 {
    alpha as f64 / ALPHA_ONE as f64
}

fn flow(parameters: Dcqcn) -> ReactionPoint {
    ReactionPoint::new(parameters).expect("the parameters are in range")
}

// The reaction point.

#[test]
fn c_10_a_flow_starts_at_line_rate_and_alpha_1() {
    let mut flow = flow(Dcqcn::default());
    assert_eq!(flow.rate_bits_per_s(), 100 * GBIT);
    flow.sent(Nanos(0), 4096);
    assert_eq!(flow.wait_until(Nanos(0)), None, "the link itself holds it back");
    assert_eq!(flow.alpha(Nanos(1_000_000)), ALPHA_ONE, "until the first CNP");
}

#[test]
fn c_11_a_cnp_halves_the_rate_of_a_new_flow() {
    let mut flow = flow(Dcqcn::default());
    assert!(flow.notified(Nanos(7)));
    assert_eq!(flow.target_bits_per_s(), 100 * GBIT);
    assert_eq!(flow.rate_bits_per_s(), 50 * GBIT);
    assert_eq!(flow.alpha(Nanos(7)), ALPHA_ONE);
}

#[test]
fn c_12_alpha_shrinks_while_no_cnp_comes() {
    let mut flow = flow(Dcqcn { line_rate_bits_per_s: 80 * GBIT, ..slow_increase() });
    assert!(flow.notified(Nanos(0)));
    assert_eq!(flow.rate_bits_per_s(), 40 * GBIT);
    let later = Nanos(10 * 55 * MICROSECOND);
    assert_eq!(flow.alpha(Nanos(55 * MICROSECOND - 1)), ALPHA_ONE);
    near(fraction(flow.alpha(later)), 0.961_617);
    assert!(fraction(flow.alpha(Nanos(176 * 55 * MICROSECOND))) > 0.5);
    assert!(fraction(flow.alpha(Nanos(178 * 55 * MICROSECOND))) < 0.5, "half-life 177 periods");
    assert!(flow.notified(later));
    near(gbits(flow.rate_bits_per_s()), 20.7677);
    near(fraction(flow.alpha(later)), 0.961_767);
    assert_eq!(flow.alpha(Nanos(u64::MAX)), 0, "in the end it is forgotten");
}

#[test]
fn c_13_both_time_and_bytes_raise_the_rate() {
    let parameters =
        Dcqcn { increase_timer_ns: 300_000, byte_counter_bytes: 10_000, ..Dcqcn::default() };
    let mut by_time = flow(parameters);
    by_time.notified(Nanos(0));
    by_time.wait_until(Nanos(299_999));
    assert_eq!(by_time.rate_bits_per_s(), 50 * GBIT);
    by_time.wait_until(Nanos(300_000));
    assert_eq!(by_time.rate_bits_per_s(), 75 * GBIT);
    let mut by_bytes = flow(parameters);
    by_bytes.notified(Nanos(0));
    by_bytes.sent(Nanos(1), 9_999);
    assert_eq!(by_bytes.rate_bits_per_s(), 50 * GBIT);
    by_bytes.sent(Nanos(2), 1);
    assert_eq!(by_bytes.rate_bits_per_s(), 75 * GBIT);
}

/// RC and RT in Gbit/s after each of `steps` expiries of the timer.
fn after_timers(flow: &mut ReactionPoint, from: Nanos, steps: u64) -> Vec<(f64, f64)> {
    let period = flow.parameters().increase_timer_ns;
    (1..=steps)
        .map(|step| {
            flow.wait_until(from.after(step * period));
            (gbits(flow.rate_bits_per_s()), gbits(flow.target_bits_per_s()))
        })
        .collect()
}

#[test]
fn c_14_fast_recovery_has_five_steps_and_c_15_additive_increase_follows() {
    let line = Dcqcn { line_rate_bits_per_s: 200 * GBIT, ..Dcqcn::default() };
    let mut flow = flow(Dcqcn { decrease_interval_ns: 0, ..line });
    flow.notified(Nanos(0));
    flow.notified(Nanos(0));
    assert_eq!((flow.target_bits_per_s(), flow.rate_bits_per_s()), (100 * GBIT, 50 * GBIT));
    let steps = after_timers(&mut flow, Nanos(0), 6);
    let expected = [
        (75.0, 100.0),
        (87.5, 100.0),
        (93.75, 100.0),
        (96.875, 100.0),
        (98.4375, 100.0),
        (99.23875, 100.04),
    ];
    assert_eq!(steps, expected);
}

#[test]
fn c_15_the_target_never_exceeds_the_line_rate() {
    let mut flow = flow(Dcqcn::default());
    flow.notified(Nanos(0));
    let steps = after_timers(&mut flow, Nanos(0), 60);
    assert_eq!(steps[5], (99.21875, 100.0));
    assert_eq!(steps[59], (100.0, 100.0), "and is reached");
}

#[test]
fn c_16_hyper_increase_where_both_stages_are_beyond_fast_recovery() {
    let parameters = Dcqcn {
        line_rate_bits_per_s: 400 * GBIT,
        decrease_interval_ns: 0,
        byte_counter_bytes: 4096,
        ..Dcqcn::default()
    };
    let mut flow = flow(parameters);
    flow.notified(Nanos(0));
    flow.notified(Nanos(0));
    // Six by bytes: five recover, one adds.
    for _ in 0..6 {
        flow.sent(Nanos(0), 4096);
    }
    assert_eq!(flow.target_bits_per_s(), 200 * GBIT + 40_000_000);
    // The first six by time find at most one stage beyond, the seventh finds both.
    after_timers(&mut flow, Nanos(0), 6);
    assert_eq!(flow.target_bits_per_s(), 200 * GBIT + 7 * 40_000_000);
    let before = flow.target_bits_per_s();
    flow.wait_until(Nanos(7 * 55 * MICROSECOND));
    assert_eq!(flow.target_bits_per_s(), before + 400_000_000);
}

#[test]
fn c_16_the_rate_never_falls_below_the_least() {
    let mut flow = flow(Dcqcn { decrease_interval_ns: 0, ..Dcqcn::default() });
    for _ in 0..100 {
        flow.notified(Nanos(0));
    }
    assert_eq!(flow.rate_bits_per_s(), 100_000_000);
}

#[test]
fn c_17_two_cnps_in_one_period_make_one_cut() {
    let parameters = Dcqcn { decrease_interval_ns: 4 * MICROSECOND, ..slow_increase() };
    let mut paper = flow(parameters);
    assert!(paper.notified(Nanos(0)));
    assert!(!paper.notified(Nanos(4 * MICROSECOND - 1)));
    assert_eq!(paper.rate_bits_per_s(), 50 * GBIT);
    assert!(paper.notified(Nanos(4 * MICROSECOND)));
    assert_eq!((paper.target_bits_per_s(), paper.rate_bits_per_s()), (50 * GBIT, 25 * GBIT));
    let mut connectx = flow(Dcqcn { clamp_target_rate: false, ..parameters });
    connectx.notified(Nanos(0));
    connectx.notified(Nanos(4 * MICROSECOND));
    let rates = (connectx.target_bits_per_s(), connectx.rate_bits_per_s());
    assert_eq!(rates, (100 * GBIT, 25 * GBIT), "no timer expired in between");
}

#[test]
fn c_13_a_long_quiet_time_costs_little_and_ends_at_line_rate() {
    let tiny_steps = Dcqcn {
        increase_timer_ns: 1000,
        additive_increase_bits_per_s: 0,
        decrease_interval_ns: 0,
        ..Dcqcn::default()
    };
    let mut flow = flow(tiny_steps);
    flow.notified(Nanos(0));
    flow.notified(Nanos(0));
    assert_eq!(flow.wait_until(Nanos(u64::MAX - 1)), None);
    assert_eq!(flow.rate_bits_per_s(), 100 * GBIT);
}

#[test]
fn c_10_parameters_out_of_range_are_refused() {
    let good = Dcqcn::default();
    for bad in [
        Dcqcn { min_rate_bits_per_s: 0, ..good },
        Dcqcn { min_rate_bits_per_s: 101 * GBIT, ..good },
        Dcqcn { line_rate_bits_per_s: u64::MAX, ..good },
        Dcqcn { alpha_timer_ns: 999, ..good },
        Dcqcn { increase_timer_ns: 0, ..good },
        Dcqcn { byte_counter_bytes: 0, ..good },
        Dcqcn { gain_log2: 0, ..good },
        Dcqcn { gain_log2: 17, ..good },
        Dcqcn { burst_bytes: u32::MAX, ..good },
    ] {
        assert_eq!(bad.check(), Err(Reason::CongestionParameter), "{bad:?}");
        let mut pair = Pair::new(Setup::default());
        let (qpn, engine) = (pair.ends[0].qpn, &mut pair.ends[0].engine);
        assert_eq!(engine.set_congestion_control(qpn, Some(bad)), Err(Reason::CongestionParameter));
        assert!(engine.qp(qpn).expect("it exists").reaction_point().is_none());
    }
}

fn parameters() -> impl Strategy<Value = Dcqcn> {
    (
        (1..=1u64 << 43, 1..=1u64 << 43, 0..100_000u64, 1000..100_000u64, 1000..2_000_000u64),
        (
            4096..10_000_000u32,
            0..8u32,
            0..GBIT,
            0..10 * GBIT,
            1..=16u8,
            any::<bool>(),
            0..1u32 << 24,
        ),
    )
        .prop_map(
            |((a, b, decrease, alpha, increase), (bytes, steps, add, hyper, g, clamp, burst))| {
                Dcqcn {
                    line_rate_bits_per_s: a.max(b),
                    min_rate_bits_per_s: a.min(b),
                    decrease_interval_ns: decrease,
                    alpha_timer_ns: alpha,
                    increase_timer_ns: increase,
                    byte_counter_bytes: bytes,
                    fast_recovery_steps: steps,
                    additive_increase_bits_per_s: add,
                    hyper_increase_bits_per_s: hyper,
                    gain_log2: g,
                    clamp_target_rate: clamp,
                    burst_bytes: burst,
                }
            },
        )
}

proptest! {
    #[test]
    fn p_25_rates_and_alpha_stay_in_their_bounds(
        parameters in parameters(),
        script in prop::collection::vec((0..3u8, 0..300_000u64, 0..5000u32), 1..200),
    ) {
        let mut flow = flow(parameters);
        let mut now = Nanos(0);
        for (what, ns, bytes) in script {
            now = now.after(ns);
            match what {
                0 => { flow.notified(now); }
                1 => flow.sent(now, bytes),
                _ => if let Some(at) = flow.wait_until(now) {
                    prop_assert!(at > now);
                    now = at;
                },
            }
            let (rate, target) = (flow.rate_bits_per_s(), flow.target_bits_per_s());
            prop_assert!(parameters.min_rate_bits_per_s <= rate);
            prop_assert!(rate <= target);
            prop_assert!(target <= parameters.line_rate_bits_per_s);
            prop_assert!(flow.alpha(now) <= ALPHA_ONE);
        }
    }

    /// What left in a time is no more than the rate's integral, the burst and one packet.
    #[test]
    fn c_20_a_flow_never_exceeds_its_rate(
        rate in 1_000_000..100 * GBIT,
        packets in prop::collection::vec((0..3_000u64, 60..4200u32), 1..300),
        burst in 0..20_000u32,
    ) {
        let parameters = Dcqcn {
            line_rate_bits_per_s: 2 * rate + 1,
            min_rate_bits_per_s: 1,
            burst_bytes: burst,
            increase_timer_ns: u64::MAX,
            byte_counter_bytes: u32::MAX,
            ..Dcqcn::default()
        };
        let mut flow = flow(parameters);
        flow.notified(Nanos(0));
        let rate = flow.rate_bits_per_s();
        let (mut now, mut left) = (Nanos(0), 0u64);
        for (idle, bytes) in packets {
            now = now.after(idle);
            while let Some(at) = flow.wait_until(now) {
                now = at;
            }
            let allowed = u128::from(rate) * u128::from(now.0) / 8_000_000_000 + u128::from(burst);
            prop_assert!(u128::from(left) <= allowed + 1, "{left} bytes by {now:?}");
            flow.sent(now, bytes);
            left += u64::from(bytes);
        }
    }
}

// CNPs.

fn send(length: u32) -> Work {
    Work { length, local: Place { token: 0, base: 0, length }, ..Work::default() }
}

fn write(length: u32) -> Work {
    Work { opcode: WorkOpcode::Write, remote_va: 0x2000, rkey: RKey(7), ..send(length) }
}

/// Two ends that send ECT packets and answer marks with CNPs each `interval_ns`.
fn notifying(interval_ns: u64) -> Setup {
    let policy = Policy { cnp_interval_ns: Some(interval_ns), ..Policy::default() };
    let path = Path { traffic_class: ECT, ..Path::default() };
    Setup {
        attributes: Attributes { policy, path, ack_timeout: 10, ..Attributes::default() },
        ..Setup::default()
    }
}

/// The next frame of an end.
fn next_frame(pair: &mut Pair, from: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; softrnic_engine::packet::FRAME_LEN_MAX];
    let mut room = Room { bytes: &mut bytes, segments: 1, source_port: None };
    let end = &mut pair.ends[from];
    let train = end.engine.poll_transmit(pair.now, &mut room, &mut end.face)?;
    bytes.truncate(train.len);
    Some(bytes)
}

fn frames(pair: &mut Pair, from: usize) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| next_frame(pair, from)).collect()
}

fn cnps(pair: &Pair, from: usize) -> usize {
    pair.trains.iter().filter(|(_, f, train)| *f == from && train.opcode == opcode::CNP).count()
}

#[test]
fn f_50_a_marked_packet_makes_a_cnp_byte_for_byte() {
    let golden = include_str!("../../../golden/icrc-vectors.txt");
    let line = golden.lines().find(|line| line.starts_with("G18 ")).expect("it is there");
    let hex = line.split(' ').nth(2).expect("three columns");
    let mut expected: Vec<u8> = (0..hex.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&hex[i..i + 2], 16).expect("hex digits"))
        .collect();
    // The vector has an IP ID and a source port of its own.
    expected[18..20].fill(0);
    expected[34..36].copy_from_slice(&[0xC2, 0x42]);
    expected[24..26].copy_from_slice(&[0xB5, 0xED]);
    let end = expected.len() - 4;
    let crc = icrc::of(Network::Ipv4, &expected[14..end]).to_le_bytes();
    expected[end..].copy_from_slice(&crc);
    assert!(parse(&expected).is_ok(), "the header checksum was redone");

    let mut pair = Pair::new(notifying(0));
    pair.ends[0].face.receives.push_back(Place { token: 0, base: 0x1000, length: 64 });
    pair.ends[1].post(send(64));
    let mut frame = next_frame(&mut pair, 1).expect("it was posted");
    mark(&mut frame);
    assert_eq!(pair.inject(0, &frame), None);
    let out = frames(&mut pair, 0);
    assert_eq!(out[0], expected);
    assert_eq!(out.len(), 2, "and the acknowledgement");
    assert_eq!(pair.ends[0].engine.counters()[Counter::CnpSent], 1);
    assert_eq!(pair.ends[0].face.events.first(), Some(&Event::CongestionMarked(Qpn::new(0x11))));
}

#[test]
fn c_02_a_cnp_each_interval_at_most() {
    let mut pair = Pair::new(notifying(50 * MICROSECOND));
    pair.region();
    for i in 0..100 {
        pair.now = Nanos(i * 10 * MICROSECOND);
        pair.ends[0].post(write(8));
        let mut frame = next_frame(&mut pair, 0).expect("it was posted");
        mark(&mut frame);
        assert_eq!(pair.inject(1, &frame), None);
        pair.transmit(1, &mut |_, _| Fate::Drop);
    }
    assert_eq!(cnps(&pair, 1), 20);
    assert_eq!(pair.ends[1].engine.counters()[Counter::EcnMarked], 100);
}

#[test]
fn c_02_no_mark_no_cnp_and_none_where_the_face_answers_itself() {
    let mut unmarked = Pair::new(notifying(0));
    unmarked.region();
    unmarked.ends[0].post(write(10_000));
    unmarked.run();
    assert_eq!(cnps(&unmarked, 1), 0);
    let mut off = Pair::new(Setup::default());
    off.region();
    off.ends[0].post(write(10_000));
    off.run_with(|_, _| Fate::Mark);
    assert_eq!(cnps(&off, 1), 0);
    assert!(off.ends[1].face.events.contains(&Event::CongestionMarked(Qpn::new(0x22))));
}

#[test]
fn c_03_cnps_go_first_by_their_own_class_and_make_none() {
    let mut pair = Pair::new(notifying(0));
    for end in &mut pair.ends {
        let port = Port { vlan_tci: Some(0x2005), ..*end.engine.port() };
        end.engine.set_port(port);
    }
    pair.region();
    pair.ends[0].post(write(5000));
    for frame in frames(&mut pair, 0) {
        // Untag, mark, tag again.
        let mut plain = [&frame[..12], &frame[16..]].concat();
        mark(&mut plain);
        let marked = [&plain[..12], &frame[12..16], &plain[12..]].concat();
        assert_eq!(pair.inject(1, &marked), None);
    }
    let out = frames(&mut pair, 1);
    assert_eq!(out[0][14..16], [0xC0, 0x05], "priority 6, the port's VLAN");
    assert_eq!(out[1][14..16], [0x20, 0x05]);
    assert_eq!(out.len(), 2, "one CNP for all that were marked meanwhile, one acknowledgement");
    let mut cnp = [&out[0][..12], &out[0][16..]].concat();
    mark(&mut cnp);
    assert_eq!(pair.inject(0, &cnp), Some(Reason::CongestionNotification));
    assert!(frames(&mut pair, 0).is_empty(), "a marked CNP makes no CNP");
}

#[test]
fn c_04_what_fails_validation_makes_no_cnp_but_duplicates_and_gaps_do() {
    let mut pair = Pair::new(notifying(0));
    pair.region();
    pair.ends[0].post(write(3000));
    let mut sent = frames(&mut pair, 0);
    sent.iter_mut().for_each(|frame| mark(frame));
    let mut damaged = sent[0].clone();
    *damaged.last_mut().expect("it has bytes") ^= 1;
    assert_eq!(pair.inject(1, &damaged), Some(Reason::Icrc));
    assert!(frames(&mut pair, 1).is_empty());
    let opcodes = |frames: &[Vec<u8>]| -> Vec<u8> {
        frames.iter().map(|frame| parse(frame).expect("ours").bth.opcode).collect()
    };
    assert_eq!(pair.inject(1, &sent[2]), Some(Reason::PsnAhead));
    let out = frames(&mut pair, 1);
    assert_eq!(opcodes(&out), [opcode::CNP, opcode::ACKNOWLEDGE], "ahead: CNP and NAK");
    assert_eq!(pair.inject(1, &sent[0]), None);
    assert_eq!(opcodes(&frames(&mut pair, 1)), [opcode::CNP]);
    assert_eq!(pair.inject(1, &sent[0]), None);
    let out = frames(&mut pair, 1);
    assert_eq!(opcodes(&out), [opcode::CNP, opcode::ACKNOWLEDGE], "a duplicate");
}

#[test]
fn c_05_a_read_under_congestion_is_throttled_at_the_responder() {
    let mut setup = notifying(50 * MICROSECOND);
    setup.attributes.path_mtu = PathMtu::M256;
    let mut pair = Pair::new(setup);
    pair.region();
    control(&mut pair, 1, Dcqcn { line_rate_bits_per_s: 10 * GBIT, ..slow_increase() });
    let length = 32 << 10;
    pair.ends[0].post(Work {
        local: Place { token: 0, base: 0x6000, length },
        opcode: WorkOpcode::Read,
        ..write(length)
    });
    pair.run_with(|from, n| if (from, n) == (1, 0) { Fate::Mark } else { Fate::Deliver });
    assert_eq!(pair.ends[0].sent(), [Status::Success]);
    assert_eq!(cnps(&pair, 0), 1);
    // The responses were on the wire already when the CNP came, so ask again.
    pair.ends[0].post(Work {
        local: Place { token: 0, base: 0x6000, length },
        opcode: WorkOpcode::Read,
        ..write(length)
    });
    let before = pair.trains.len();
    pair.run();
    let gaps = gaps(&pair, before, 1, 50);
    // 314 bytes, or 318 with an AETH, at 5 Gbit/s.
    assert!(gaps.iter().all(|&ns| (502..=509).contains(&ns)), "{gaps:?}");
    assert_eq!(gaps.len(), 127);
}

#[test]
fn f_51_a_thousand_cnps_in_the_middle_of_a_message_change_nothing() {
    let story = |notifications: usize| {
        let mut pair = Pair::new(Setup::default());
        pair.region();
        let cnp = cnp_for(&pair, 0);
        pair.ends[0].post(write(20_000));
        pair.run_with(|from, n| if (from, n) == (0, 9) { Fate::Drop } else { Fate::Deliver });
        pair.ends[0].post(write(20_000));
        let first = next_frame(&mut pair, 0).expect("it was posted");
        assert_eq!(pair.inject(1, &first), None);
        for _ in 0..notifications {
            assert_eq!(pair.inject(0, &cnp), Some(Reason::CongestionNotification));
            assert!(!pair.ends[1].engine.has_ready());
        }
        pair.run();
        assert_eq!(pair.ends[0].sent(), [Status::Success; 2]);
        assert_eq!(pair.ends[0].engine.counters()[Counter::CnpHandled], notifications as u32);
        pair.ladder
    };
    assert_eq!(story(1000), story(0));
}

#[test]
fn f_51_a_cnp_for_nobody_or_from_a_third_host_is_dropped_silently() {
    let mut pair = Pair::new(Setup::default());
    control(&mut pair, 0, Dcqcn::default());
    let cnp = cnp_for(&pair, 0);
    let mut nobody = cnp.clone();
    nobody[47..50].copy_from_slice(&[0, 0, 0x13]);
    redo(&mut nobody);
    assert_eq!(pair.inject(0, &nobody), Some(Reason::QpUnknown));
    let mut third = cnp.clone();
    third[29] = 99;
    redo(&mut third);
    assert_eq!(pair.inject(0, &third), Some(Reason::SourceAddress));
    assert_eq!(rate(&pair, 0), 100 * GBIT);
    assert_eq!(pair.inject(0, &cnp), Some(Reason::CongestionNotification));
    assert_eq!(rate(&pair, 0), 50 * GBIT);
    assert!(frames(&mut pair, 0).is_empty());
    let end = &mut pair.ends[0];
    end.engine.set_state(end.qpn, State::Reset, &mut end.face);
    assert_eq!(rate(&pair, 0), 100 * GBIT, "RESET forgets it");
    assert_eq!(pair.inject(0, &cnp), Some(Reason::QpNotReady));
}

/// Puts the header checksum and the ICRC right.
fn redo(frame: &mut [u8]) {
    let tos = frame[15];
    mark(frame);
    frame[15] = tos | 3;
    let end = frame.len() - 4;
    let crc = icrc::of(Network::Ipv4, &frame[14..end]).to_le_bytes();
    frame[end..].copy_from_slice(&crc);
}

/// A CNP that the peer of `to` would send.
fn cnp_for(pair: &Pair, to: u8) -> Vec<u8> {
    let (me, peer) = (to + 1, 2 - to);
    let flow = softrnic_engine::packet::Flow {
        source_mac: [2, 0, 0, 0, 0, peer],
        dest_mac: [2, 0, 0, 0, 0, me],
        vlan_tci: None,
        source_ip: [192, 0, 2, peer].into(),
        dest_ip: [192, 0, 2, me].into(),
        traffic_class: 0xC0,
        hop_limit: 64,
        flow_label: 0,
        source_port: 0,
        pkey: 0xFFFF,
        dest_qpn: pair.ends[usize::from(to)].qpn,
    };
    let template = softrnic_engine::packet::Template::new(&flow).expect("one family");
    let row = opcode::row(opcode::CNP);
    let mut frame = vec![0; template.frame_len(row, 0)];
    let bth = softrnic_engine::packet::BthFields { becn: true, ..Default::default() };
    template.finish(&mut frame, row, 0, bth);
    frame
}

// Pacing.

fn control(pair: &mut Pair, end: usize, parameters: Dcqcn) {
    let end = &mut pair.ends[end];
    end.engine.set_congestion_control(end.qpn, Some(parameters)).expect("in range");
}

fn rate(pair: &Pair, end: usize) -> u64 {
    let qp = pair.ends[end].engine.qp(pair.ends[end].qpn).expect("it exists");
    qp.reaction_point().expect("it has congestion control").rate_bits_per_s()
}

/// Nanoseconds between packets of at least `len_min` bytes that left `from`, after the first `skip`.
fn gaps(pair: &Pair, skip: usize, from: usize, len_min: usize) -> Vec<u64> {
    let left: Vec<u64> = pair.trains[skip..]
        .iter()
        .filter(|(_, f, train)| *f == from && train.len >= len_min)
        .map(|(at, ..)| at.0)
        .collect();
    left.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

#[test]
fn c_20_the_rate_delays_packets_and_retransmissions_and_keeps_their_order() {
    let mut pair = Pair::new(Setup::default());
    pair.region();
    control(&mut pair, 0, Dcqcn { line_rate_bits_per_s: 2 * GBIT, ..slow_increase() });
    let cnp = cnp_for(&pair, 0);
    pair.inject(0, &cnp);
    pair.ends[0].post(write(8 * 1024));
    pair.run_with(|from, n| if (from, n) == (0, 2) { Fate::Drop } else { Fate::Deliver });
    assert_snapshot!(pair.ladder);
    assert_eq!(pair.ends[0].sent(), [Status::Success]);
    let again = pair.trains.iter().filter(|(.., train)| train.retransmission).count();
    assert!(again > 0);
    // 1082 bytes or, with a RETH, 1098, at 1 Gbit/s.
    let gaps = gaps(&pair, 0, 0, 100);
    assert!(gaps.iter().all(|ns| [8656, 8784].contains(ns)), "{gaps:?}");
}

#[test]
fn c_20_a_low_rate_is_no_dead_peer() {
    let mut setup = Setup::default();
    setup.attributes.ack_timeout = 4; // 65 us
    setup.attributes.retry_count = 1;
    setup.attributes.policy.ack_request_every = 0;
    let mut pair = Pair::new(setup);
    pair.region();
    let parameters = Dcqcn {
        line_rate_bits_per_s: 400_000_000,
        min_rate_bits_per_s: 1_000_000,
        ..slow_increase()
    };
    control(&mut pair, 0, parameters);
    let cnp = cnp_for(&pair, 0);
    pair.inject(0, &cnp);
    pair.ends[0].post(write(32 << 10));
    pair.run();
    assert_eq!(pair.ends[0].sent(), [Status::Success]);
    assert!(pair.now.0 > 1_300_000, "32 packets at 200 Mbit/s");
    assert_eq!(pair.ends[0].engine.counters()[Counter::RetransmittedPackets], 0);
}

#[test]
fn c_20_acknowledgements_are_not_held_back() {
    let mut pair = Pair::new(Setup::default());
    pair.region();
    let region = pair.ends[1].face.regions[&7];
    pair.ends[0].face.regions.insert(7, region);
    let parameters =
        Dcqcn { line_rate_bits_per_s: 2_000_000, min_rate_bits_per_s: 1, ..slow_increase() };
    control(&mut pair, 0, parameters);
    let cnp = cnp_for(&pair, 0);
    pair.inject(0, &cnp);
    pair.ends[0].post(write(4096));
    pair.transmit(0, &mut |_, _| Fate::Drop);
    pair.ends[1].post(write(8));
    let request = next_frame(&mut pair, 1).expect("it was posted");
    assert_eq!(pair.inject(0, &request), None);
    let out = frames(&mut pair, 0);
    assert_eq!(out.len(), 1);
    assert_eq!(parse(&out[0]).expect("ours").bth.opcode, opcode::ACKNOWLEDGE);
}

#[test]
fn c_20_a_burst_makes_up_for_a_late_wake_up() {
    let mut pair = Pair::new(Setup::default());
    pair.region();
    let parameters =
        Dcqcn { line_rate_bits_per_s: 2 * GBIT, burst_bytes: 4 * 1098, ..slow_increase() };
    control(&mut pair, 0, parameters);
    let cnp = cnp_for(&pair, 0);
    pair.inject(0, &cnp);
    pair.ends[0].post(write(32 << 10));
    assert_eq!(frames(&mut pair, 0).len(), 1);
    let end = &mut pair.ends[0];
    pair.now = Nanos(1_000_000);
    end.engine.handle_timeout(pair.now, &mut end.face);
    assert_eq!(frames(&mut pair, 0).len(), 5, "four are allowed, and one that makes new debt");
}

// Priority flow control.

fn pfc(priority: usize, quanta: u16) -> [u8; 60] {
    let mut times = [0; 8];
    times[priority] = quanta;
    let what = FlowControl::Pfc { enabled: 1 << priority, quanta: times };
    build(&FlowControlFrame { source_mac: [2, 0, 0, 0, 0, 9], what })
}

const PRIORITY_3: Qpn = Qpn::new(0x11);
const PRIORITY_0: Qpn = Qpn::new(0x12);

/// End `a` has a queue pair of priority 3 and one of priority 0, both of which want to send much.
fn two_priorities() -> Pair {
    let mut setup = Setup::default();
    setup.attributes.path.priority = Some(3);
    setup.attributes.ack_timeout = 0;
    let mut pair = Pair::new(setup);
    let end = &mut pair.ends[0];
    let pfc = Some(Pfc { rate_bits_per_s: 100 * GBIT, priorities: 0xFF, ..Pfc::default() });
    end.engine.set_port(Port { pfc, ..*end.engine.port() });
    let mut attributes = *end.engine.qp(end.qpn).expect("it exists").attributes();
    attributes.path.priority = None;
    end.engine.create(PRIORITY_0, attributes).expect("the number is free");
    for state in [State::Init, State::Rtr, State::Rts] {
        end.engine.set_state(PRIORITY_0, state, &mut end.face);
    }
    end.face.sends.push(write(64 << 10));
    end.engine.ring(PRIORITY_0, &mut end.face);
    end.engine.ring(PRIORITY_3, &mut end.face);
    pair
}

/// Who sends the next `count` frames.
fn senders(pair: &mut Pair, count: usize) -> Vec<Qpn> {
    let mut bytes = vec![0; softrnic_engine::packet::FRAME_LEN_MAX];
    let end = &mut pair.ends[0];
    (0..count)
        .map_while(|_| {
            let mut room = Room { bytes: &mut bytes, segments: 1, source_port: None };
            end.engine.poll_transmit(pair.now, &mut room, &mut end.face).map(|train| train.qpn)
        })
        .collect()
}

#[test]
fn f_60_pfc_pauses_one_priority_only() {
    let mut pair = two_priorities();
    let both = senders(&mut pair, 4);
    assert!(both.contains(&PRIORITY_0) && both.contains(&PRIORITY_3));
    let end = &mut pair.ends[0];
    let verdict = end.engine.handle_frame(pair.now, &pfc(3, 0xFFFF), Rx::default(), &mut end.face);
    assert!(verdict.flow_control);
    assert_eq!((verdict.refused, verdict.opcode), (None, None), "it was obeyed, and is no packet");
    assert_eq!(end.engine.paused_priorities(), 1 << 3);
    assert_eq!(end.engine.pauses_obeyed(), &[0, 0, 0, 1, 0, 0, 0, 0]);
    assert_eq!(end.engine.refused().iter().sum::<u64>(), 0);
    assert_eq!(senders(&mut pair, 20), [PRIORITY_0; 20]);
    pair.inject(0, &pfc(0, 1));
    assert!(senders(&mut pair, 1).is_empty(), "now both");
    assert!(!pair.ends[0].engine.has_ready(), "and nobody is asked in vain");
}

#[test]
fn f_61_a_pause_ends_by_itself_or_by_time_0_and_a_new_time_replaces_it() {
    let mut pair = two_priorities();
    pair.inject(0, &pfc(3, 0xFFFF));
    let end = &mut pair.ends[0];
    assert_eq!(end.engine.next_deadline(), Some(Nanos(335_539)), "335.5 us at 100 Gbit/s");
    assert_eq!(senders(&mut pair, 4), [PRIORITY_0; 4]);
    let resume = |pair: &mut Pair, at: u64| {
        pair.now = Nanos(at);
        pair.ends[0].engine.handle_timeout(pair.now, &mut pair.ends[0].face);
        senders(pair, 4).contains(&PRIORITY_3)
    };
    assert!(!resume(&mut pair, 335_538));
    assert!(resume(&mut pair, 335_539));
    assert_eq!(pair.ends[0].engine.next_deadline(), None);
    pair.inject(0, &pfc(3, 0xFFFF));
    assert_eq!(senders(&mut pair, 4), [PRIORITY_0; 4]);
    pair.inject(0, &pfc(3, 0));
    assert!(senders(&mut pair, 4).contains(&PRIORITY_3), "time 0 resumes at once");
    pair.inject(0, &pfc(3, 0xFFFF));
    pair.inject(0, &pfc(3, 100));
    assert_eq!(pair.ends[0].engine.next_deadline(), Some(Nanos(335_539 + 512)));
    pair.inject(0, &pfc(5, 0));
    assert_eq!(senders(&mut pair, 2), [PRIORITY_0; 2], "another priority's time changes nothing");
    assert!(resume(&mut pair, 335_539 + 512));
}

#[test]
fn f_61_the_port_s_tag_tells_the_priority_where_the_queue_pair_does_not() {
    let mut pair = two_priorities();
    let port = Port { vlan_tci: Some(0x6005), ..*pair.ends[0].engine.port() };
    pair.ends[0].engine.set_port(port);
    pair.ends[0].engine.attributes_mut(PRIORITY_3).expect("it exists").path.priority = Some(4);
    pair.inject(0, &pfc(3, 1));
    assert_eq!(senders(&mut pair, 4), [PRIORITY_3; 4], "the other one has the tag's priority 3");
    let frame = next_frame(&mut pair, 0).expect("there is more");
    assert_eq!(frame[12..16], [0x81, 0x00, 0x80, 0x05]);
}

#[test]
fn f_61_what_is_paused_may_go_away_or_get_another_priority() {
    let mut pair = two_priorities();
    pair.inject(0, &pfc(3, 0xFFFF));
    assert_eq!(senders(&mut pair, 2), [PRIORITY_0; 2]);
    pair.ends[0].engine.attributes_mut(PRIORITY_3).expect("it exists").path.priority = Some(0);
    assert!(senders(&mut pair, 4).contains(&PRIORITY_3));
    pair.inject(0, &pfc(0, 0xFFFF));
    assert!(senders(&mut pair, 4).is_empty());
    let end = &mut pair.ends[0];
    end.engine.destroy(PRIORITY_0, &mut end.face);
    let port = Port { pfc: None, ..*end.engine.port() };
    end.engine.set_port(port);
    assert_eq!(end.engine.paused_priorities(), 0);
    assert_eq!(senders(&mut pair, 4), [PRIORITY_3; 4]);
}

#[test]
fn f_62_global_pause_is_ignored_and_without_pfc_both_are_refused() {
    let mut pair = two_priorities();
    let what = FlowControl::Pause { quanta: 0xFFFF };
    let pause = build(&FlowControlFrame { source_mac: [2, 0, 0, 0, 0, 9], what });
    assert_eq!(pair.inject(0, &pause), Some(Reason::FlowControl));
    assert_eq!(pair.inject(0, &pfc(3, 0xFFFF)[..20]), Some(Reason::FrameTooShort));
    assert!(senders(&mut pair, 4).contains(&PRIORITY_3));
    let engine = &mut pair.ends[0].engine;
    let only_4 = Some(Pfc { rate_bits_per_s: 100 * GBIT, priorities: 1 << 4, ..Pfc::default() });
    engine.set_port(Port { pfc: only_4, ..*engine.port() });
    assert_eq!(pair.inject(0, &pfc(3, 0xFFFF)), None);
    assert_eq!(pair.ends[0].engine.paused_priorities(), 0, "not a priority that may be paused");
    let engine = &mut pair.ends[0].engine;
    engine.set_port(Port { pfc: None, ..*engine.port() });
    assert_eq!(pair.inject(0, &pfc(3, 0xFFFF)), Some(Reason::FlowControl));
    assert!(senders(&mut pair, 4).contains(&PRIORITY_3));
}

#[test]
fn f_62_a_port_of_one_class_stops_wholly_and_may_obey_global_pause() {
    let mut pair = two_priorities();
    let what = FlowControl::Pause { quanta: 100 };
    let pause = build(&FlowControlFrame { source_mac: [2, 0, 0, 0, 0, 9], what });
    let with = |pair: &mut Pair, priorities, global| {
        let rate_bits_per_s = 100 * GBIT;
        let pfc = Some(Pfc { rate_bits_per_s, priorities, global, one_class: true });
        let engine = &mut pair.ends[0].engine;
        engine.set_port(Port { pfc, ..*engine.port() });
    };
    with(&mut pair, 1 << 5, false);
    assert_eq!(pair.inject(0, &pfc(3, 0xFFFF)), None);
    assert_eq!(senders(&mut pair, 4).len(), 4, "another priority than the class's");
    assert_eq!(pair.inject(0, &pfc(5, 0xFFFF)), None);
    assert!(senders(&mut pair, 1).is_empty(), "no queue pair is tagged with 5, yet all stop");
    assert_eq!(pair.inject(0, &pfc(5, 0)), None);
    assert_eq!(senders(&mut pair, 4).len(), 4);
    assert_eq!(pair.inject(0, &pause), Some(Reason::FlowControl));
    with(&mut pair, 0, true);
    assert_eq!(pair.inject(0, &pause), None);
    assert!(senders(&mut pair, 1).is_empty());
    assert_eq!(pair.ends[0].engine.next_deadline(), Some(Nanos(512)));
}

#[test]
fn f_61_a_cnp_waits_for_its_own_priority() {
    let mut setup = notifying(0);
    setup.attributes.path.priority = Some(3);
    let mut pair = Pair::new(setup);
    pair.region();
    let engine = &mut pair.ends[1].engine;
    let all = Some(Pfc { rate_bits_per_s: 100 * GBIT, priorities: 0xFF, ..Pfc::default() });
    engine.set_port(Port { pfc: all, ..*engine.port() });
    let marked = |pair: &mut Pair| {
        pair.ends[0].post(write(8));
        let mut frame = next_frame(pair, 0).expect("it was posted");
        mark(&mut frame);
        assert_eq!(pair.inject(1, &frame), None);
    };
    let opcodes = |pair: &mut Pair| -> Vec<u8> {
        frames(pair, 1).iter().map(|frame| parse(frame).expect("ours").bth.opcode).collect()
    };
    pair.inject(1, &pfc(3, 0xFFFF));
    marked(&mut pair);
    assert_eq!(opcodes(&mut pair), [opcode::CNP], "the acknowledgement waits");
    pair.inject(1, &pfc(6, 0xFFFF));
    pair.inject(1, &pfc(3, 0));
    marked(&mut pair);
    assert_eq!(opcodes(&mut pair), [opcode::ACKNOWLEDGE], "the CNP waits");
    pair.inject(1, &pfc(6, 0));
    assert_eq!(opcodes(&mut pair), [opcode::CNP]);
    assert!(next_frame(&mut pair, 1).is_none());
}
