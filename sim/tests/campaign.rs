//! Random worlds hold; what fails is found, made small, and plays again from its text.
#![allow(clippy::unwrap_used, reason = "clippy knows test functions only, not what they share")]

use softrnic_sim::campaign::{Class, Plan, play, random_plan, shrink, trial};
use softrnic_sim::fault::{Action, Match, Rule};

#[test]
fn every_invariant_holds_in_the_first_worlds() {
    let mut fired = 0;
    for seed in 0..150 {
        let outcome = trial(&random_plan(seed));
        assert_eq!(outcome.violations, [], "seed {seed}");
        fired += outcome.fired.iter().sum::<u64>();
    }
    assert!(fired > 100, "{fired}");
}

#[test]
fn a_world_plays_again_from_its_text() {
    for seed in 0..20 {
        let plan = random_plan(seed);
        let again = Plan::parse("world.toml", &plan.to_toml()).unwrap();
        assert_eq!(play(&plan).digest, play(&again).digest, "seed {seed}");
    }
}

/// A gentle world promises that everything arrives; here one fault of five keeps that from happening.
fn broken() -> Plan {
    let seeds = (0..).map(random_plan);
    let mut plans = seeds.filter(|p| p.class == Class::Gentle && p.connection.len() > 2);
    let mut plan = plans.find(|plan| play(plan).completed > 10).unwrap();
    let node = Some(plan.connection[0].nodes[0]);
    for nth in 50..54 {
        plan.faults.0.push(Rule::new(Match { nth: Some(nth), ..Match::default() }, Action::Drop));
    }
    plan.faults.0.insert(1, Rule::new(Match { node, ..Match::default() }, Action::Drop));
    plan
}

#[test]
fn p_01_a_gentle_world_in_which_nothing_gets_through_is_found_and_made_small() {
    let plan = broken();
    let found = trial(&plan).violations;
    assert_eq!(found[0].invariant, "P-01", "{found:?}");
    let small = shrink(&plan, "P-01");
    assert_eq!(small.faults.0.len(), 1, "{}", small.to_toml());
    assert_eq!((small.message.len(), small.connection.len(), small.node.len()), (1, 1, 2));
    assert_eq!(trial(&small).violations[0].invariant, "P-01");
}

#[test]
fn a_world_file_that_makes_no_sense_says_where() {
    let text = random_plan(1).to_toml();
    for (old, new, word) in [
        ("path_mtu = ", "path_mtu = 9", "path_mtu"),
        ("connection = 0", "connection = 99", "connection"),
        ("seed = ", "sead = ", "sead"),
    ] {
        let error = Plan::parse("world.toml", &text.replacen(old, new, 1)).unwrap_err();
        assert!(error.to_string().starts_with("world.toml:"), "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
}
