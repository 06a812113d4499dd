//! `rnic run --campaign N`: random worlds on all cores, their failures as scenario files; and the
//! replay of such a file.
//!
//! Worlds, checkers and shrinking are `softrnic-sim`'s; here are threads, files and the screen.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use softrnic_host::capture::{Interface, Writer};
use softrnic_sim::campaign::{Plan, play_watched, random_plan, shrink, trial};
use softrnic_sim::{Fate, Observer, Sighting};

/// Which part of a campaign to play: part K of N, K from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    part: u64,
    of: u64,
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text
            .split_once('/')
            .and_then(|(part, of)| Some(Self { part: part.parse().ok()?, of: of.parse().ok()? }));
        numbers.filter(|shard| (1..=shard.of).contains(&shard.part)).ok_or_else(|| {
            format!("{text:?} is no part: write K/N with K from 1 to N, such as 1/4")
        })
    }
}

/// What to play.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Campaign<'a> {
    pub(crate) worlds: u64,
    /// Seed of the first world; the others follow.
    pub(crate) seed: u64,
    pub(crate) shard: Shard,
    pub(crate) out: &'a Path,
    pub(crate) json: bool,
    pub(crate) threads: usize,
}

impl Shard {
    /// All of it.
    pub(crate) const WHOLE: Self = Self { part: 1, of: 1 };
}

/// A world that failed: one line of JSON.
#[derive(Clone, Debug, Serialize)]
struct Failure {
    kind: &'static str,
    seed: u64,
    invariant: &'static str,
    at_ns: u64,
    text: String,
    /// Plays the world again.
    replay: String,
    /// Plays the shrunk world.
    replay_shrunk: String,
    /// The shrunk world, whole.
    scenario: String,
}

/// What a shard came to: the last line of its JSON.
#[derive(Clone, Debug, Default, Serialize)]
struct Summary {
    kind: &'static str,
    first_seed: u64,
    /// Of the whole campaign.
    last_seed: u64,
    shard: String,
    worlds: u64,
    failed: u64,
    frames: u64,
    completed: u64,
    ended_in_error: u64,
    virtual_s: f64,
    faults_fired: u64,
    worlds_by_class: BTreeMap<String, u64>,
    threads: usize,
    wall_s: f64,
    build: &'static str,
    version: &'static str,
}

/// Plays a campaign. Fails the exit status where a world fails.
pub(crate) fn run(campaign: &Campaign<'_>) -> anyhow::Result<ExitCode> {
    let began = Instant::now();
    let Shard { part, of } = campaign.shard;
    let Some(last_seed) = campaign.seed.checked_add(campaign.worlds.saturating_sub(1)) else {
        bail!("seed {} leaves no room for {} worlds", campaign.seed, campaign.worlds);
    };
    fs::create_dir_all(campaign.out)
        .with_context(|| format!("cannot create the directory {}", campaign.out.display()))?;
    // Worlds of one shard: each `of`-th, so that shards are equally hard.
    let mine = (campaign.worlds + of - part) / of;
    let next = AtomicU64::new(0);
    let results = Mutex::new((Summary::default(), Vec::new()));
    let bar = progress(mine);
    // A panic is a failure like any other: the checkers report it.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    thread::scope(|scope| {
        for _ in 0..campaign.threads {
            scope.spawn(|| {
                let (mut sum, mut failures) = (Summary::default(), Vec::new());
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= mine {
                        break;
                    }
                    let seed = campaign.seed + number * of + part - 1;
                    if let Some(failure) = play_one(seed, campaign.out, &mut sum) {
                        let line = failure_line(&failure);
                        let path = campaign.out.join(file_name(seed));
                        let written = fs::write(&path, &failure.scenario);
                        bar.suspend(|| {
                            eprintln!("{line}");
                            if let Err(error) = written {
                                eprintln!("cannot write {}: {error}", path.display());
                            }
                        });
                        failures.push(failure);
                    }
                    bar.inc(1);
                }
                if let Ok(mut all) = results.lock() {
                    all.0.add(&sum);
                    all.1.append(&mut failures);
                }
            });
        }
    });
    std::panic::set_hook(hook);
    bar.finish_and_clear();
    let (mut summary, mut failures) = results.into_inner().unwrap_or_default();
    failures.sort_by_key(|failure| failure.seed);
    summary.kind = "shard";
    (summary.first_seed, summary.last_seed) = (campaign.seed, last_seed);
    summary.shard = format!("{part}/{of}");
    summary.failed = failures.len() as u64;
    summary.threads = campaign.threads;
    summary.wall_s = began.elapsed().as_secs_f64();
    summary.build = if cfg!(debug_assertions) { "debug" } else { "release" };
    summary.version = env!("CARGO_PKG_VERSION");
    let mut out = io::stdout().lock();
    if campaign.json {
        for failure in &failures {
            writeln!(out, "{}", serde_json::to_string(failure)?)?;
        }
        writeln!(out, "{}", serde_json::to_string(&summary)?)?;
    } else {
        print_summary(&mut out, &summary)?;
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn file_name(seed: u64) -> String {
    format!("world-{seed}.toml")
}

/// Plays one world; shrinks it where it fails.
fn play_one(seed: u64, out: &Path, sum: &mut Summary) -> Option<Failure> {
    let plan = random_plan(seed);
    let outcome = trial(&plan);
    sum.worlds += 1;
    sum.frames += outcome.frames;
    sum.completed += outcome.completed;
    sum.ended_in_error += outcome.failed;
    sum.virtual_s += outcome.virtual_ns as f64 * 1e-9;
    sum.faults_fired += outcome.fired.iter().sum::<u64>();
    *sum.worlds_by_class.entry(format!("{:?}", plan.class).to_lowercase()).or_default() += 1;
    let first = outcome.violations.into_iter().next()?;
    let small = shrink(&plan, first.invariant);
    let path = out.join(file_name(seed));
    let comment = format!(
        "# World {seed}, reduced to what makes it fail: {first}\n\
         # All of it:  rnic run --campaign 1 --seed {seed}\n\n"
    );
    Some(Failure {
        kind: "failure",
        seed,
        invariant: first.invariant,
        at_ns: first.at.0,
        text: first.text,
        replay: format!("rnic run --campaign 1 --seed {seed}"),
        replay_shrunk: format!("rnic run {}", path.display()),
        scenario: comment + &small.to_toml(),
    })
}

fn failure_line(failure: &Failure) -> String {
    let Failure { seed, invariant, text, replay, replay_shrunk, .. } = failure;
    format!("FAILED seed {seed}: {invariant}: {text}. Replay: {replay} (shrunk: {replay_shrunk})")
}

impl Summary {
    fn add(&mut self, other: &Self) {
        self.worlds += other.worlds;
        self.frames += other.frames;
        self.completed += other.completed;
        self.ended_in_error += other.ended_in_error;
        self.virtual_s += other.virtual_s;
        self.faults_fired += other.faults_fired;
        for (class, worlds) in &other.worlds_by_class {
            *self.worlds_by_class.entry(class.clone()).or_default() += worlds;
        }
    }
}

fn print_summary(out: &mut impl Write, summary: &Summary) -> io::Result<()> {
    let verdict = if summary.failed == 0 { "PASSED" } else { "FAILED" };
    let classes: Vec<_> =
        summary.worlds_by_class.iter().map(|(class, worlds)| format!("{worlds} {class}")).collect();
    writeln!(
        out,
        "{verdict}: {} worlds ({}), {} failed; seeds {} to {}, shard {}",
        summary.worlds,
        classes.join(", "),
        summary.failed,
        summary.first_seed,
        summary.last_seed,
        summary.shard
    )?;
    writeln!(
        out,
        "  {} frames, {} messages completed, {} ended in error, {} faults, {:.3} s of virtual time",
        summary.frames,
        summary.completed,
        summary.ended_in_error,
        summary.faults_fired,
        summary.virtual_s
    )?;
    writeln!(
        out,
        "  {:.1} s on {} threads, {} build",
        summary.wall_s, summary.threads, summary.build
    )
}

fn progress(worlds: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::with_draw_target(Some(worlds), ProgressDrawTarget::hidden());
    }
    let bar = ProgressBar::new(worlds);
    bar.enable_steady_tick(Duration::from_millis(200));
    let template = "{elapsed} {wide_bar} {human_pos} of {human_len} worlds, {per_sec}, {eta} left";
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Plays the scenario file of a world; its frames go to a capture.
pub(crate) fn replay(path: &Path, text: &str, out: &Path, json: bool) -> anyhow::Result<ExitCode> {
    let plan = Plan::parse(&path.display().to_string(), text)?;
    fs::create_dir_all(out)
        .with_context(|| format!("cannot create the directory {}", out.display()))?;
    let capture_path = out.join("capture.pcapng");
    let open = || -> io::Result<_> {
        let name = "switch".to_owned();
        let description = "all nodes' port; virtual time of arrival".to_owned();
        Writer::new(
            BufWriter::new(File::create(&capture_path)?),
            &[Interface { name, description }],
        )
    };
    let capture = open().with_context(|| format!("cannot write {}", capture_path.display()))?;
    let mut tap = Tap { capture, error: None };
    let watched = play_watched(&plan, &mut tap);
    let Tap { capture, error } = tap;
    match error {
        Some(error) => Err(error),
        None => capture.finish().map(drop),
    }
    .with_context(|| format!("cannot write {}", capture_path.display()))?;
    // Once more with what needs two runs.
    let violations =
        if watched.violations.is_empty() { trial(&plan).violations } else { watched.violations };
    let mut stdout = io::stdout().lock();
    if json {
        let lines: Vec<_> = violations.iter().map(ToString::to_string).collect();
        let result = serde_json::json!({
            "kind": "replay",
            "seed": plan.seed,
            "frames": watched.frames,
            "digest": format!("{:016x}", watched.digest),
            "faults_fired": watched.fired,
            "violations": lines,
        });
        writeln!(stdout, "{result}")?;
    } else {
        for violation in &violations {
            writeln!(stdout, "FAILED {violation}")?;
        }
        for (i, fired) in watched.fired.iter().enumerate() {
            writeln!(stdout, "fault {}: fired {fired} times", i + 1)?;
        }
        let verdict = if violations.is_empty() { "PASSED" } else { "FAILED" };
        writeln!(
            stdout,
            "{verdict}: world {}, {} frames, {} messages completed, {} ended in error, digest {:016x}\n  \
             {}  every frame, whole; open it with Wireshark",
            plan.seed,
            watched.frames,
            watched.completed,
            watched.failed,
            watched.digest,
            capture_path.display()
        )?;
    }
    Ok(if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes the capture.
struct Tap {
    capture: Writer<BufWriter<File>>,
    /// The first error; nothing is written after it.
    error: Option<io::Error>,
}

impl Observer for Tap {
    fn frame(&mut self, sighting: &Sighting<'_>) {
        if self.error.is_none() {
            let mut comments = Vec::new();
            if sighting.retransmission {
                comments.push("retransmission".to_owned());
            }
            if sighting.copy {
                comments.push("copy".to_owned());
            }
            if sighting.fate != Fate::Delivered {
                comments.push(format!("{:#}", sighting.fate));
            }
            comments.extend(sighting.faults.iter().map(|rule| format!("fault {}", rule + 1)));
            let comments: Vec<_> = comments.iter().map(String::as_str).collect();
            let written = self.capture.packet(0, sighting.at, sighting.frame, &comments);
            self.error = written.err();
        }
    }
}

/// Threads that a campaign runs on, if nothing else is said.
pub(crate) fn all_cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_written_as_k_of_n() {
        assert_eq!("2/4".parse(), Ok(Shard { part: 2, of: 4 }));
        for text in ["0/4", "5/4", "4", "a/b", "1/0", "-1/2"] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
    }
}
