//! Fault rules as text and at work: which frame they find, and what becomes of it.
#![allow(clippy::unwrap_used, reason = "clippy knows test functions only, not what they share")]

use std::collections::BTreeMap;

use softrnic_sim::fault::{
    Action, Change, Corruption, Cut, Direction, Field, Injector, Kind, Match, Opcodes, Queue, Rule,
    Rules, Spot, Transfer,
};
use softrnic_sim::{Ladder, Observer, Report, Scenario, Sighting, Simulation};

use softrnic_engine::{Psn, Qpn};

const HEAD: &str = r#"seed = 7
[[node]]
name = "a"
face = "native"
mac = "02:00:00:00:00:01"
ipv4 = "192.0.2.11"
ipv6 = "2001:db8::1"
[[node]]
name = "b"
face = "native"
mac = "02:00:00:00:00:02"
ipv4 = "192.0.2.12"
ipv6 = "2001:db8::2"
[[link]]
between = ["a", "b"]
[[phase]]
name = "p"
from = "a"
to = "b"
"#;

/// Three SENDs of three packets each.
const SENDS: &str = "operation = \"send\"\nsize = 700\ncount = 3\npath_mtu = 256\n";

fn run(text: &str, observer: &mut dyn Observer) -> Report {
    let scenario = Scenario::parse("test.toml", &format!("{HEAD}{text}")).unwrap();
    let mut simulation = Simulation::new(scenario, BTreeMap::new()).unwrap();
    while simulation.run_phase(observer).is_some() {}
    simulation.finish()
}

/// Runs three SENDs with one fault; the ladder, then what the report says of the rule.
fn story(fault: &str) -> String {
    let mut ladder = Ladder::new(&["A", "B"]);
    let report = run(&format!("{SENDS}[[fault]]\n{fault}"), &mut ladder);
    assert!(report.passed, "{:#?}\n{}", report.phases, ladder.text());
    let fault = &report.faults[0];
    let mut text = format!(
        "{}{}: {} matched, {} fired\n",
        ladder.text(),
        fault.rule,
        fault.matched,
        fault.fired
    );
    for firing in &fault.firings {
        text.push_str(&format!("{:>9} ns  {}  {}\n", firing.at_ns, firing.node, firing.what));
    }
    text
}

#[test]
fn a_duplicated_request_is_answered_twice_and_delivered_once() {
    insta::assert_snapshot!(story("action = \"duplicate\"\nopcode = \"SEND_LAST\"\nnth = 2"));
}

#[test]
fn a_delayed_packet_is_overtaken_and_asked_for_again() {
    insta::assert_snapshot!(story(
        "action = \"delay\"\nnode = \"a\"\npsn = 4\nby_ns = 500\nnth = 1"
    ));
}

#[test]
fn a_reordered_packet_arrives_behind_the_next_two() {
    insta::assert_snapshot!(story(
        "action = \"reorder\"\nnode = \"a\"\npsn = 1\nbehind = 2\nnth = 1"
    ));
}

#[test]
fn a_reordered_packet_that_nothing_follows_arrives_when_its_time_is_over() {
    insta::assert_snapshot!(story(
        "action = \"reorder\"\nnode = \"a\"\npsn = 8\nlimit_ns = 3000\nnth = 1"
    ));
}

#[test]
fn a_corrupted_field_is_refused_where_the_icrc_is_kept() {
    insta::assert_snapshot!(story(
        "action = \"corrupt\"\nnode = \"a\"\nopcode = \"SEND_MIDDLE\"\nfield = \"bth.psn\"\nvalue = 5\nnth = 1"
    ));
}

#[test]
fn a_corrupted_psn_is_believed_where_the_icrc_is_redone() {
    insta::assert_snapshot!(story(
        "action = \"corrupt\"\nnode = \"a\"\nopcode = \"SEND_MIDDLE\"\nfield = \"bth.psn\"\nvalue = 5\n\
         icrc = \"redo\"\nnth = 1"
    ));
}

#[test]
fn a_truncated_frame_is_refused() {
    insta::assert_snapshot!(story(
        "action = \"truncate\"\ndirection = \"in\"\nnode = \"b\"\nnth = 2\nby_len = 1"
    ));
}

#[test]
fn an_acknowledgement_lost_on_arrival_is_asked_for_after_the_timeout() {
    insta::assert_snapshot!(story(
        "action = \"drop\"\ndirection = \"in\"\nnode = \"a\"\nsyndrome = \"ack\"\nnth = 1"
    ));
}

#[test]
fn a_rule_that_never_fires_is_reported() {
    let fault = "[[fault]]\naction = \"drop\"\nopcode = \"READ\"\n\
                 [[fault]]\naction = \"drop\"\nopcode = \"SEND_FIRST\"\nnth = 4\n";
    let report = run(&format!("{SENDS}{fault}"), &mut ());
    let tallies: Vec<_> = report.faults.iter().map(|f| (f.matched, f.fired)).collect();
    assert_eq!(tallies, [(0, 0), (3, 0)]);
}

/// Both faces in turn, with one fault while 20 SENDs of 64 bytes go from `a` to `b`.
fn at_both_faces(fault: &str, check: impl Fn(&Report, &str)) {
    let phase = "operation = \"send\"\nsize = 64\ncount = 20\noutstanding = 4\n";
    for face in ["native", "ernic"] {
        let text =
            format!("{HEAD}{phase}[[fault]]\n{fault}").replace("\"native\"", &format!("{face:?}"));
        let scenario = Scenario::parse("test.toml", &text).unwrap();
        let mut simulation = Simulation::new(scenario, BTreeMap::new()).unwrap();
        while simulation.run_phase(&mut ()).is_some() {}
        check(&simulation.finish(), face);
    }
}

#[test]
fn a_held_completion_comes_late_and_in_order() {
    let fault =
        "action = \"hold_completion\"\nqueue = \"send\"\nnode = \"a\"\nnth = 3\nfor_ns = 50_000";
    at_both_faces(fault, |report, face| {
        // Out of order, the run would say that a completion names another message.
        assert!(report.passed, "{face}: {:#?}", report.phases);
        assert_eq!(report.faults[0].fired, 1, "{face}");
        let latency = report.phases[0].latency_ns;
        assert!((50_000..60_000).contains(&latency.max), "{face}: {latency:?}");
        assert!(latency.p50 < 10_000, "{face}: {latency:?}");
    });
}

#[test]
fn a_lost_completion_is_missed() {
    let fault = "action = \"lose_completion\"\nqueue = \"send\"\nnode = \"a\"\nnth = 3";
    at_both_faces(fault, |report, face| {
        assert!(!report.passed, "{face}");
        assert_eq!((report.faults[0].fired, report.phases[0].messages), (1, 2), "{face}");
    });
}

#[test]
fn a_lost_interrupt_delays_what_it_announced_until_the_next_one() {
    let fault = "action = \"lose_interrupt\"\nnode = \"b\"\nnth = 2";
    at_both_faces(fault, |report, face| {
        assert!(report.passed, "{face}: {:#?}", report.phases);
        assert_eq!(report.faults[0].fired, 1, "{face}");
    });
    // Nothing comes after the last one.
    let fault = "action = \"lose_interrupt\"\nnode = \"a\"\nnth = 17\ntimes = 4";
    at_both_faces(fault, |report, face| {
        assert!(!report.passed, "{face}");
        assert!(report.phases[0].failures[0].contains("nothing is left to happen"), "{face}");
    });
}

#[test]
fn a_dma_error_ends_the_queue_pair_with_its_reason() {
    for (way, node) in [("read", "a"), ("write", "b")] {
        let fault =
            format!("action = \"dma_error\"\naccess = \"{way}\"\nnode = \"{node}\"\nnth = 5");
        at_both_faces(&fault, |report, face| {
            assert!(!report.passed, "{face} {way}");
            assert_eq!(report.faults[0].fired, 1, "{face} {way}");
            let phase = &report.phases[0];
            assert!(phase.messages < 20, "{face} {way}: {:?}", phase.failures);
            assert!(phase.failures[0].contains("failed"), "{face} {way}: {:?}", phase.failures);
        });
    }
}

#[test]
fn a_stalled_receive_queue_is_waited_for_with_rnr() {
    let fault = "action = \"stall_receive\"\nnode = \"b\"\nnth = 2\ntimes = 3";
    at_both_faces(fault, |report, face| {
        assert!(report.passed, "{face}: {:#?}", report.phases);
        assert_eq!(report.faults[0].fired, 3, "{face}");
        assert_eq!(report.phases[0].refused.get("receiver_not_ready"), Some(&3), "{face}");
    });
}

/// Frames that carry the congestion mark, and frames in all.
#[derive(Default)]
struct Marks(u64, u64);

impl Observer for Marks {
    fn frame(&mut self, sighting: &Sighting<'_>) {
        let packet = softrnic_engine::packet::parse(sighting.frame).unwrap();
        assert!(packet.icrc_valid());
        self.0 += u64::from(packet.congestion_experienced());
        self.1 += 1;
    }
}

#[test]
fn a_congestion_mark_leaves_every_checksum_right_in_both_ip_versions() {
    for ip in [4, 6] {
        let text = format!("{SENDS}ip = {ip}\n[[fault]]\naction = \"mark_ecn\"\nnode = \"a\"\n");
        let mut marks = Marks::default();
        let report = run(&text, &mut marks);
        assert!(report.passed, "{:#?}", report.phases);
        assert_eq!(marks.0, 9, "nine packets of a");
        assert!(marks.1 > 9, "acknowledgements are not marked");
    }
}

#[test]
fn a_share_of_frames_is_lost_by_the_seed() {
    let text = "operation = \"write\"\nsize = 64\ncount = 2000\n\
                [[fault]]\naction = \"drop\"\nnode = \"a\"\nprobability = 0.1";
    let report = run(text, &mut ());
    assert!(report.passed, "{:#?}", report.phases);
    let fault = &report.faults[0];
    let share = fault.fired as f64 / fault.matched as f64;
    assert!((0.08..0.12).contains(&share), "{share}");
}

/// One of each, with each key used somewhere.
fn every_kind_of_rule() -> Rules {
    let rule = |matches, action| Rule::new(matches, action);
    let any = Match::default;
    let field = |name| Spot::Field(Field::named(name).unwrap());
    let mut rules = vec![
        rule(
            Match {
                phase: Some(0),
                node: Some(1),
                direction: Direction::In,
                qp: Some(Qpn::new(2)),
                opcode: Opcodes::named("READ_RESPONSE"),
                kind: Some(Kind::RnrNak),
                psn: Some(Psn::new(0xFF_FFFF)),
                from_ns: Some(1),
                until_ns: Some(2_000),
                probability: Some(0.25),
                nth: Some(3),
                times: Some(2),
            },
            Action::Drop,
        ),
        rule(any(), Action::Duplicate { copies: 2, apart_ns: 30 }),
        rule(any(), Action::Delay { by_ns: 5, jitter_ns: 7 }),
        rule(any(), Action::Reorder { behind: 2, limit_ns: 9 }),
        rule(any(), Action::Truncate(Cut::To(20))),
        rule(any(), Action::Truncate(Cut::By(1))),
        rule(any(), Action::MarkEcn),
        rule(any(), Action::HoldCompletion { queue: Some(Queue::Send), for_ns: 3 }),
        rule(any(), Action::LoseCompletion { queue: Some(Queue::Receive) }),
        rule(any(), Action::LoseCompletion { queue: None }),
        rule(any(), Action::LoseInterrupt),
        rule(any(), Action::DmaError { access: Some(Transfer::Write) }),
        rule(any(), Action::DmaError { access: None }),
        rule(any(), Action::StallReceive),
    ];
    let spots = [field("BTH.PSN"), field("ICRC"), Spot::Byte(-4), Spot::Anywhere];
    for (i, spot) in spots.into_iter().enumerate() {
        let change = [Change::Set(5), Change::Flip(0x80), Change::FlipAny][i % 3];
        let redo_icrc = i % 2 == 0;
        rules.push(rule(any(), Action::Corrupt(Corruption { spot, change, redo_icrc })));
    }
    rules[0].name = "the \"first\"".to_owned();
    Rules(rules)
}

#[test]
fn rules_survive_the_way_to_text_and_back() {
    let rules = every_kind_of_rule();
    let text = format!("{HEAD}{SENDS}{}", rules.to_toml(&["a", "b"], &["p"]));
    let scenario = Scenario::parse("test.toml", &text).unwrap();
    assert_eq!(scenario.faults, rules, "{text}");
}

#[test]
fn rules_say_in_words_what_they_do() {
    let rules = every_kind_of_rule();
    let words: Vec<_> =
        rules.0.iter().map(|rule| Injector::describe(rule, &["a", "b"], &["p"])).collect();
    insta::assert_snapshot!(words.join("\n"));
}

#[test]
fn every_field_that_the_decoder_names_can_be_named() {
    for field in Field::all() {
        let name = field.to_string();
        assert!(Field::named(&name.to_lowercase().replace(' ', "_")).is_some(), "{name}");
    }
}

#[test]
fn what_a_rule_draws_does_not_depend_on_its_neighbours() {
    let drop_some = |probability| {
        let matches = Match { probability: Some(probability), ..Match::default() };
        Rule::new(matches, Action::Drop)
    };
    let fates = |rules: Vec<Rule>, number: usize| -> Vec<bool> {
        let mut injector = Injector::new(Rules(rules), 7);
        let mut frame = [0; 60];
        (0..200)
            .map(|i| {
                let now = softrnic_engine::Nanos(i);
                injector.frame(now, Direction::Out, 0, &mut frame).fired.contains(&number)
            })
            .collect()
    };
    let alone = fates(vec![drop_some(0.3)], 0);
    assert!(alone.contains(&true) && alone.contains(&false));
    assert_eq!(alone, fates(vec![drop_some(0.6), drop_some(0.3)], 1));
    assert_ne!(alone, fates(vec![drop_some(0.3), drop_some(0.3)], 1), "twins draw apart");
}
