//! `rnic run --campaign` as a user sees it: exit status, JSON that concatenates, parts, replay.
#![allow(clippy::unwrap_used, reason = "clippy knows test functions only, not what they share")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use softrnic_sim::campaign::{Plan, random_plan};
use softrnic_sim::fault::{Action, Match, Rule};

/// An empty directory of this test's own.
fn directory(test: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("campaign-{test}"));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

fn rnic(directory: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rnic")).current_dir(directory).args(args).output().unwrap()
}

fn lines(output: &Output) -> Vec<serde_json::Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn parts_of_a_campaign_add_up_to_the_whole() {
    let here = directory("parts");
    let run = |more: &[&str]| {
        let args = [&["run", "--campaign", "31", "--seed", "5", "--json"], more].concat();
        let output = rnic(&here, &args);
        assert!(output.status.success(), "{output:?}");
        lines(&output)
    };
    let whole = run(&[]);
    let mut parts = Vec::new();
    for part in ["1/3", "2/3", "3/3"] {
        parts.extend(run(&["--shard", part, "--threads", "1"]));
    }
    assert_eq!((whole.len(), parts.len()), (1, 3));
    for key in ["worlds", "frames", "completed", "ended_in_error", "faults_fired"] {
        let sum: u64 = parts.iter().map(|part| part[key].as_u64().unwrap()).sum();
        assert_eq!(Some(sum), whole[0][key].as_u64(), "{key}");
    }
}

#[test]
fn a_part_that_does_not_exist_is_refused_with_the_way_out() {
    let here = directory("refused");
    let output = rnic(&here, &["run", "--campaign", "1", "--shard", "0/4"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("write K/N"), "{said}");
}

/// A world that promises too much: all its frames get lost.
fn failing() -> Plan {
    let mut plans = (0..).map(random_plan);
    let gentle = |plan: &Plan| plan.to_toml().contains("class = \"gentle\"");
    let mut plan = plans.find(gentle).unwrap();
    plan.faults.0.push(Rule::new(Match::default(), Action::Drop));
    plan
}

#[test]
fn a_failing_world_plays_again_frame_for_frame() {
    let here = directory("replay");
    fs::write(here.join("world.toml"), failing().to_toml()).unwrap();
    let captures = ["one", "two"].map(|out| {
        let output = rnic(&here, &["run", "world.toml", "--out", out]);
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.starts_with("FAILED P-01 "), "{said}");
        assert!(said.contains("fired"), "{said}");
        fs::read(here.join(out).join("capture.pcapng")).unwrap()
    });
    assert!(captures[0].len() > 1000);
    assert_eq!(captures[0], captures[1]);
}
