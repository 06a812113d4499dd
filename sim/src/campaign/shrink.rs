//! Makes a failing plan smaller while it still fails in the same way: fewer faults, messages,
//! connections and nodes.

use super::plan::Plan;
use super::trial;

/// Plays at most.
const TRIES_MAX: usize = 2_000;

/// The smallest plan that was found to break `invariant`, too.
#[must_use]
pub fn shrink(plan: &Plan, invariant: &str) -> Plan {
    let mut best = plan.clone();
    let mut tries = 0;
    loop {
        let before = size(&best);
        drop_some(
            &mut best,
            invariant,
            &mut tries,
            |p| p.faults.0.len(),
            |p, i, n| {
                p.faults.0.drain(i..i + n);
            },
        );
        drop_some(
            &mut best,
            invariant,
            &mut tries,
            |p| p.message.len(),
            |p, i, n| {
                p.message.drain(i..i + n);
            },
        );
        drop_some(&mut best, invariant, &mut tries, |p| p.connection.len(), remove_connections);
        drop_some(&mut best, invariant, &mut tries, |p| p.node.len(), remove_nodes);
        if size(&best) == before || tries >= TRIES_MAX {
            return best;
        }
    }
}

fn size(plan: &Plan) -> usize {
    plan.faults.0.len() + plan.message.len() + plan.connection.len() + plan.node.len()
}

/// Takes runs of things away, half of them first, then ever fewer.
fn drop_some(
    best: &mut Plan,
    invariant: &str,
    tries: &mut usize,
    count: fn(&Plan) -> usize,
    remove: fn(&mut Plan, usize, usize),
) {
    let mut run = count(best).div_ceil(2);
    while run > 0 {
        let mut at = 0;
        while at + run <= count(best) && *tries < TRIES_MAX {
            let mut smaller = best.clone();
            remove(&mut smaller, at, run);
            // What is still used does not go.
            if size(&smaller) == size(best) {
                at += run;
                continue;
            }
            *tries += 1;
            if fails_so(&smaller, invariant) {
                *best = smaller;
            } else {
                at += run;
            }
        }
        run /= 2;
    }
}

fn fails_so(plan: &Plan, invariant: &str) -> bool {
    trial(plan).violations.iter().any(|violation| violation.invariant == invariant)
}

/// Only those without messages go.
fn remove_connections(plan: &mut Plan, at: usize, count: usize) {
    for number in (at..at + count).rev() {
        if plan.message.iter().any(|m| m.connection == number) {
            continue;
        }
        plan.connection.remove(number);
        for message in plan.message.iter_mut().filter(|m| m.connection > number) {
            message.connection -= 1;
        }
    }
}

/// Only those without connections go. Faults of others keep their node.
fn remove_nodes(plan: &mut Plan, at: usize, count: usize) {
    for number in (at..at + count).rev() {
        let used = plan.connection.iter().any(|c| c.nodes.contains(&number))
            || plan.faults.0.iter().any(|rule| rule.matches.node == Some(number));
        if used {
            continue;
        }
        plan.node.remove(number);
        for node in plan.connection.iter_mut().flat_map(|c| &mut c.nodes) {
            *node -= usize::from(*node > number);
        }
        for rule in &mut plan.faults.0 {
            if let Some(node) = &mut rule.matches.node {
                *node -= usize::from(*node > number);
            }
        }
    }
}
