//! One contract for every two-way link, each kind with both address families, and stories of single kinds.
//!
//! Interfaces and addresses are in network namespaces that the test makes. Where rights are missing a test is shown
//! as ignored, never as passed; with `SOFTRNIC_REQUIRE_LINKS` set it fails instead.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod contract;
mod ends;
mod namespace;
mod stations;
mod stories;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use contract::RULES;
use ends::{Family, KINDS, Needs};
use libtest_mimic::{Arguments, Failed, Trial};
use namespace::Namespace;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Some stories count frames that the machine drops when it is overloaded.
    arguments.test_threads = Some(arguments.test_threads.unwrap_or(1));
    let found = found();
    let required = std::env::var_os("SOFTRNIC_REQUIRE_LINKS").is_some();
    let trial = |name: String, needs: Needs, test: Box<dyn FnOnce() + Send>| {
        let ignored = needs > found.0 && !required;
        let why = found.1.clone();
        let trial = Trial::test(name, move || {
            if needs > found.0 {
                return Err(Failed::from(why));
            }
            catch_unwind(AssertUnwindSafe(test)).map_err(|_| Failed::without_message())
        });
        trial.with_ignored_flag(ignored)
    };
    let mut trials = Vec::new();
    for kind in KINDS {
        for family in [Family::V4, Family::V6] {
            for rule in RULES {
                let name = format!("{}::{family:?}::{}", kind.name, rule.name);
                let test = move || (rule.check)(kind, family, (kind.open)(family).unwrap());
                trials.push(trial(name, kind.needs, Box::new(test)));
            }
        }
    }
    for story in stories::STORIES {
        trials.push(trial(story.name.to_owned(), story.needs, Box::new(story.test)));
    }
    if found.0 < Needs::Tun {
        eprintln!("tests that are ignored need more rights: {}", found.1);
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// What this machine lets us do, and why not more.
fn found() -> (Needs, String) {
    let tried = Namespace::new().and_then(|namespace| {
        namespace.ip("link add va type veth peer name vb")?;
        namespace.ip("address add 2001:db8::1/64 dev va nodad")
    });
    if let Err(why) = tried {
        return (Needs::Nothing, why);
    }
    let tun = Namespace::new().and_then(|namespace| namespace.ip("tuntap add t0 mode tap"));
    match tun {
        Ok(()) => (Needs::Tun, String::new()),
        Err(why) => (Needs::Namespaces, why),
    }
}
