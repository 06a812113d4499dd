//! Completions that a fault rule holds or loses, under every checker of random worlds: order holds,
//! whatever completes work meanwhile.
#![allow(clippy::unwrap_used, reason = "clippy knows test functions only, not what they share")]

use softrnic_sim::campaign::{
    Class, ConnectionPlan, Kind, MessagePlan, NodePlan, Outcome, Plan, ServiceKind, play,
};
use softrnic_sim::fault::{Action, Match, Queue, Rule, Rules};
use softrnic_sim::{FaceKind, ProfileKind};

/// Messages of `kind` from the first node to the second, posted at these times.
fn world(faces: [FaceKind; 2], kind: Kind, posted_at_ns: &[u64], faults: Vec<Rule>) -> Plan {
    let node =
        |face| NodePlan { face, profile: ProfileKind::V40, shared_cq: false, shared_rq: false };
    let message = |&at_ns: &u64| MessagePlan {
        connection: 0,
        from: 0,
        kind,
        len: 64,
        at_ns,
        signaled: true,
        solicited: false,
        fence: false,
        sges: 1,
        flaw: None,
    };
    Plan {
        seed: 1,
        class: Class::Rough,
        rate_bits_per_s: 100_000_000_000,
        latency_ns: 1_000,
        node: faces.map(node).into(),
        connection: vec![ConnectionPlan {
            nodes: [0, 1],
            service: ServiceKind::Rc,
            ipv6: false,
            path_mtu: 1024,
            first_psn: [0x100, 0x200],
            pkey: [0xFFFF; 2],
            ack_timeout: 6,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 1,
            max_rd_atomic: [16; 2],
            max_dest_rd_atomic: [16; 2],
            window_packets: 1024,
            ack_request_every: 0,
            credits: false,
            dcqcn: false,
            outstanding: 64,
            receives: 4,
            receive_len: 256,
            receive_delay_ns: 0,
        }],
        message: posted_at_ns.iter().map(message).collect(),
        faults: Rules(faults),
    }
}

fn held(node: usize, queue: Queue, for_ns: u64) -> Rule {
    let matches = Match { node: Some(node), nth: Some(1), ..Match::default() };
    Rule::new(matches, Action::HoldCompletion { queue: Some(queue), for_ns })
}

/// The peer is not heard of again.
fn silence_from(from_ns: u64) -> Rule {
    let matches = Match { node: Some(0), from_ns: Some(from_ns), ..Match::default() };
    Rule::new(matches, Action::Drop)
}

/// Plays a world in which nothing may be wrong, and every rule fires.
fn in_order(plan: &Plan) -> Outcome {
    let outcome = play(plan);
    assert_eq!(outcome.violations, [], "{}", plan.to_toml());
    assert!(outcome.fired.iter().all(|&fired| fired > 0), "{:?}", outcome.fired);
    outcome
}

#[test]
fn a_flush_by_ernics_driver_does_not_overtake_completions_that_wait() {
    let faults = vec![held(0, Queue::Send, 1_000_000_000), silence_from(50_000)];
    let posted_at_ns = [0, 0, 0, 100_000, 100_000];
    let faces = [FaceKind::Ernic, FaceKind::Native];
    let outcome = in_order(&world(faces, Kind::Write, &posted_at_ns, faults));
    assert_eq!((outcome.completed, outcome.failed), (3, 2));
}

#[test]
fn work_posted_to_a_failed_native_queue_pair_does_not_overtake_completions_that_wait() {
    let faults = vec![held(0, Queue::Send, 1_000_000_000), silence_from(50_000)];
    let posted_at_ns = [0, 0, 0, 100_000, 100_000, 500_000_000];
    let faces = [FaceKind::Native, FaceKind::Native];
    let outcome = in_order(&world(faces, Kind::Send, &posted_at_ns, faults));
    assert_eq!((outcome.completed, outcome.failed), (3, 3));
}

#[test]
fn a_receive_buffer_whose_message_waits_to_be_announced_is_not_filled_again() {
    for face in [FaceKind::Ernic, FaceKind::Native] {
        let faults = vec![held(1, Queue::Receive, 300_000)];
        let mut plan = world([FaceKind::Native, face], Kind::Send, &[0; 12], faults);
        // Everything must arrive.
        plan.class = Class::Gentle;
        let outcome = in_order(&plan);
        assert_eq!((outcome.completed, outcome.failed), (12, 0), "{face:?}");
    }
}

#[test]
fn a_completion_of_ernic_names_its_own_work_after_a_ring_of_newer_ones() {
    let faults = vec![held(0, Queue::Send, 1_000_000)];
    let faces = [FaceKind::Ernic, FaceKind::Native];
    let outcome = in_order(&world(faces, Kind::Write, &[0; 60], faults));
    assert_eq!((outcome.completed, outcome.failed), (60, 0));
}

#[test]
fn a_receive_that_waits_when_its_queue_pair_fails_is_not_flushed_away() {
    // The receiver's own WRITE fails after the message has arrived.
    let faults = vec![held(1, Queue::Receive, 1_000_000_000), {
        let matches = Match { node: Some(1), from_ns: Some(50_000), ..Match::default() };
        Rule::new(matches, Action::Drop)
    }];
    for face in [FaceKind::Ernic, FaceKind::Native] {
        let faces = [FaceKind::Native, face];
        let mut plan = world(faces, Kind::Send, &[0, 100_000], faults.clone());
        (plan.message[1].from, plan.message[1].kind) = (1, Kind::Write);
        let outcome = in_order(&plan);
        assert_eq!((outcome.completed, outcome.failed), (1, 1), "{face:?}");
    }
}

#[test]
fn a_lost_completion_is_the_rules_and_not_missed_by_the_checkers() {
    let matches = Match { node: Some(0), nth: Some(2), times: Some(2), ..Match::default() };
    let lost = Rule::new(matches, Action::LoseCompletion { queue: Some(Queue::Send) });
    let faces = [FaceKind::Native, FaceKind::Native];
    for messages in [3, 6] {
        let posted_at_ns = vec![0; messages];
        let outcome = in_order(&world(faces, Kind::Read, &posted_at_ns, vec![lost.clone()]));
        assert_eq!((outcome.completed, outcome.fired[0]), (messages as u64, 2));
    }
}
