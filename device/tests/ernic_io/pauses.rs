//! XON, XOFF and PAUSE: thresholds, drain, and who stops.

use softrnic_device::ernic::{ErnicConfig, Register};
use softrnic_engine::packet::flow_control::{FlowControl, FlowControlFrame, build, parse};
use softrnic_engine::{Nanos, Reason};

use crate::bench::*;

/// WRITE, WRITE ONLY's opcode on the wire, and a WRITE of many packets.
const WRITE: u8 = 0x00;
const MIDDLE: u8 = 0x07;
const ENABLE_ROCE: u32 = 1;
const ANY_PRIORITY: u32 = 1 << 13;

fn priority(priority: u32) -> u32 {
    8 << 8 | priority << 4 | ENABLE_ROCE
}

/// End 1 receives and drains 10 Gbit/s; both ends' RoCE class has priority 3. Window 16 packets.
fn slow_receiver(xoff: u32, xon: u32) -> Two {
    let config = ErnicConfig { num_qp: 8, ..ErnicConfig::default() };
    let slow = ErnicConfig { drain_bits_per_s: Some(10_000_000_000), ..config };
    let mut bench = pair([config, slow], &[2]);
    bench.ends[1].set(Register::XrnicBufThresholdRoce, 0, xoff << 16 | xon);
    for end in &mut bench.ends {
        end.set(Register::XrnicPauseConf, 0, priority(3));
    }
    fill(&mut bench.ends[0].memory, LOCAL, 0x4_0000, 5);
    bench
}

fn post_write(bench: &mut Two, sqpi: u32, len: u32) {
    let remote = REGION;
    let entry = Entry { opcode: WRITE, local: LOCAL, len, remote, rkey: RKEY, immediate: 0 };
    write_entry(&mut bench.ends[0], 2, sqpi, &entry);
    bench.ends[0].set(Register::Sqpi, 2, sqpi);
}

/// Pause times that an end has asked for, with what its buffer held and when: one priority's.
fn asked(bench: &Two, wanted: u8) -> Vec<(Nanos, u16)> {
    let pauses = bench.log.iter().filter(|sent| sent.from == 1 && sent.is_pause());
    pauses
        .map(|sent| {
            let frame = parse(&sent.bytes).unwrap();
            assert_eq!(frame.source_mac, [2, 0, 0, 0, 0, 2]);
            let FlowControl::Pfc { enabled, quanta } = frame.what else { panic!("{frame:?}") };
            assert_eq!(enabled, 1 << wanted, "no other priority is named");
            (sent.at, quanta[usize::from(wanted)])
        })
        .collect()
}

#[test]
fn xoff_leaves_at_its_threshold_and_xon_at_its_own() {
    let (xoff, xon) = (100, 40);
    let mut bench = slow_receiver(xoff, xon);
    post_write(&mut bench, 1, 0x2_0000);
    // Watch the level at each step.
    let mut levels = Vec::new();
    let mut pauses = 0;
    for ns in (0..400_000).step_by(8) {
        bench.run_until(Nanos(ns));
        let now = bench.log.iter().filter(|sent| sent.is_pause()).count();
        if now != pauses {
            pauses = now;
            levels.push(bench.ends[1].device.receive_buffer_words());
        }
    }
    bench.settle();
    let asked = asked(&bench, 3);
    assert!(asked.len() >= 4, "{asked:?}");
    // A frame of 1024 + 58 + 16 bytes is 18 words at most, and 8 ns drain little.
    for (i, ((_, quanta), level)) in asked.iter().zip(&levels).enumerate() {
        if i % 2 == 0 {
            assert_eq!(*quanta, 0xFFFF, "{asked:?}");
            assert!((98..=118).contains(level), "XOFF at {level} words");
        } else {
            assert_eq!(*quanta, 0, "{asked:?}");
            assert!((38..=40).contains(level), "XON at {level} words");
        }
    }
    // Nothing was lost, and what had to wait arrived.
    assert_eq!(bench.ends[1].refused(Reason::ReceiveBufferFull), 0);
    let (sent, there) = (&bench.ends[0].memory, &bench.ends[1].memory);
    assert_eq!(bytes(there, REGION, 0x2_0000), bytes(sent, LOCAL, 0x2_0000));
    // 10 Gbit/s: 128 KiB take 105 us, and the sender was held back to about that.
    let last = bench.log.iter().rfind(|sent| sent.opcode().is_some_and(|o| (6..9).contains(&o)));
    assert!(last.unwrap().at > Nanos(90_000), "{:?}", last.unwrap().at);
    assert_eq!(bench.ends[0].get(Register::Retrycntsts, 0), 0);
}

#[test]
fn between_xoff_and_xon_nothing_is_sent() {
    let mut bench = slow_receiver(100, 40);
    post_write(&mut bench, 1, 0x1_0000);
    bench.settle();
    let asked = asked(&bench, 3);
    let (xoff, xon) = (asked[0].0, asked[1].0);
    // The pause frame's own 7 ns and the latency, and the frame that was being sent.
    let quiet = Nanos(xoff.0 + 107 + 89)..xon;
    let in_pause = bench.log.iter().filter(|s| s.from == 0 && quiet.contains(&s.at));
    assert_eq!(in_pause.count(), 0);
    assert!(bench.log.iter().any(|s| s.from == 0 && s.at >= xon), "it went on after");
}

#[test]
fn without_pauses_the_buffer_overflows_and_the_loss_is_counted_and_recovered() {
    let mut bench = slow_receiver(100, 40);
    for end in &mut bench.ends {
        end.set(Register::XrnicPauseConf, 0, 0x800);
    }
    // More than one queue pair's window is needed to fill 32 KiB.
    bench.ends[0].set(Register::Qpconf, 2, QPCONF | 4 << 8);
    bench.ends[1].set(Register::Qpconf, 2, QPCONF | 4 << 8);
    post_write(&mut bench, 1, 0x2_0000);
    bench.settle();
    assert!(asked(&bench, 3).is_empty());
    let end = &mut bench.ends[1];
    assert!(end.refused(Reason::ReceiveBufferFull) > 0);
    assert!(
        u64::from(end.get(Register::Inalldrppktcnt, 0) & 0xFFFF)
            >= end.refused(Reason::ReceiveBufferFull)
    );
    assert_eq!(
        bytes(&bench.ends[1].memory, REGION, 0x2_0000),
        bytes(&bench.ends[0].memory, LOCAL, 0x2_0000)
    );
    assert!(bench.ends[0].get(Register::Retrycntsts, 0) > 0);
}

#[test]
fn a_pause_that_goes_on_is_asked_for_again_before_it_ends() {
    let config = ErnicConfig { num_qp: 8, ..ErnicConfig::default() };
    // 1 Gbit/s: from XOFF to XON takes longer than the 335 us of one pause.
    let slow = ErnicConfig { drain_bits_per_s: Some(100_000_000), ..config };
    let mut bench = pair([config, slow], &[2]);
    bench.ends[1].set(Register::XrnicBufThresholdRoce, 0, 100 << 16 | 1);
    for end in &mut bench.ends {
        end.set(Register::XrnicPauseConf, 0, priority(3));
        end.set(Register::Timeoutconf, 2, 0x0001_3F00);
    }
    post_write(&mut bench, 1, 0x2000);
    bench.settle();
    let asked = asked(&bench, 3);
    let quanta: Vec<u16> = asked.iter().map(|(_, quanta)| *quanta).collect();
    assert!(quanta.len() > 3 && quanta[..3] == [0xFFFF; 3], "{quanta:x?}");
    assert_eq!(quanta.last(), Some(&0));
    let pause_ns = 65535 * 512 / 100;
    for window in asked.windows(2) {
        assert!(window[1].0.0 - window[0].0.0 < pause_ns, "{asked:?}");
    }
}

/// A pause frame that names one priority.
fn pfc(priority: usize, quanta: u16) -> Vec<u8> {
    let mut times = [0; 8];
    times[priority] = quanta;
    let what = FlowControl::Pfc { enabled: 1 << priority, quanta: times };
    build(&FlowControlFrame { source_mac: [2, 0, 0, 0, 0, 9], what }).to_vec()
}

/// How many data packets leave end 0 in 2 us after it got a frame.
fn sent_after(bench: &mut Two, frame: &[u8]) -> usize {
    bench.run_until(Nanos(bench.now.0 + 1_000));
    let verdict = bench.ends[0].handle_frame(bench.now, frame, softrnic_engine::Rx::default());
    assert_eq!(verdict.opcode, None);
    let before = bench.count(0, MIDDLE);
    bench.run_until(Nanos(bench.now.0 + 2_000));
    bench.count(0, MIDDLE) - before
}

#[test]
fn the_named_priority_stops_and_another_does_not() {
    let mut bench = usual_pair();
    bench.ends[0].set(Register::XrnicPauseConf, 0, priority(3));
    post_write(&mut bench, 1, 0x10_0000);
    assert!(sent_after(&mut bench, &pfc(4, 0xFFFF)) > 5);
    assert_eq!(sent_after(&mut bench, &pfc(3, 0xFFFF)), 0);
    assert_eq!(sent_after(&mut bench, &pfc(4, 0)), 0, "another priority's end ends nothing");
    assert!(sent_after(&mut bench, &pfc(3, 0)) > 5);
    assert_eq!(bench.ends[0].engine.pauses_obeyed()[3], 2);
    assert_eq!(bench.ends[0].engine.pauses_obeyed()[4], 0);

    // A device whose RoCE class is another priority, or that does not look at it.
    bench.ends[0].set(Register::XrnicPauseConf, 0, priority(5));
    assert!(sent_after(&mut bench, &pfc(3, 0xFFFF)) > 5);
    bench.ends[0].set(Register::XrnicPauseConf, 0, priority(5) | ANY_PRIORITY);
    assert_eq!(sent_after(&mut bench, &pfc(3, 0xFFFF)), 0);

    // Pauses off: refused and counted, nothing stops.
    bench.ends[0].set(Register::XrnicPauseConf, 0, 0x830);
    assert!(sent_after(&mut bench, &pfc(3, 0xFFFF)) > 5);
    assert_eq!(bench.ends[0].refused(Reason::FlowControl), 1);
}

#[test]
fn priority_8_is_the_global_pause_both_ways() {
    let mut bench = slow_receiver(50, 10);
    for end in &mut bench.ends {
        end.set(Register::XrnicPauseConf, 0, priority(8));
    }
    post_write(&mut bench, 1, 0x1_0000);
    bench.settle();
    let pauses: Vec<FlowControl> = bench
        .log
        .iter()
        .filter(|sent| sent.is_pause())
        .map(|sent| parse(&sent.bytes).unwrap().what)
        .collect();
    assert_eq!(
        pauses[..2],
        [FlowControl::Pause { quanta: 0xFFFF }, FlowControl::Pause { quanta: 0 }]
    );
    assert_eq!(
        bytes(&bench.ends[1].memory, REGION, 0x1_0000),
        bytes(&bench.ends[0].memory, LOCAL, 0x1_0000)
    );
    assert_eq!(bench.ends[1].refused(Reason::ReceiveBufferFull), 0);
}

#[test]
fn other_traffic_has_a_buffer_thresholds_and_a_priority_of_its_own() {
    let mut bench = slow_receiver(100, 40);
    let end = &mut bench.ends[1];
    // Both classes; other traffic has priority 6, XOFF 48, XON 2.
    end.set(Register::XrnicPauseConf, 0, 6 << 8 | 3 << 4 | 3);
    end.set(Register::XrnicBufThresholdNonRoce, 0, 48 << 16 | 2);
    let mut arp = vec![0xFF; 6];
    arp.extend([2, 0, 0, 0, 0, 7, 0x08, 0x06]);
    arp.resize(1518, 0);
    for _ in 0..2 {
        let verdict = end.handle_frame(Nanos(0), &arp, softrnic_engine::Rx::default());
        assert_eq!(verdict.refused, Some(Reason::NotRoce));
    }
    bench.settle();
    let asked = asked(&bench, 6);
    assert_eq!(asked.iter().map(|(_, quanta)| *quanta).collect::<Vec<_>>(), [0xFFFF, 0]);
    // 48 words came at once, 46 of them drain in 2355.2 ns.
    assert_eq!((asked[0].0, asked[1].0), (Nanos(0), Nanos(2356)));
    // Too much of it is lost under its own name, and is none of the RoCE stream.
    let now = bench.now;
    let lost = (0..30).filter(|_| {
        let verdict = bench.ends[1].handle_frame(now, &arp, softrnic_engine::Rx::default());
        verdict.refused == Some(Reason::OtherBufferFull)
    });
    assert_eq!(lost.count(), 9, "21 frames of 24 words fit into 512");
    assert_eq!(bench.ends[1].get(Register::Inalldrppktcnt, 0), 0);
}
