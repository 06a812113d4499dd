//! `rnic run`: a scenario from a file, its capture, its reports and its exit status.
//!
//! The virtual world is `softrnic-sim`'s; here are files, the screen and the wall clock.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use softrnic_host::capture::{Interface, Writer};
use softrnic_sim::campaign::Plan;
use softrnic_sim::ladder::{Remark, Stories};
use softrnic_sim::{
    Activity, DEFAULT_SCENARIO, Fate, Observer, Report, Scenario, Sighting, Simulation,
};

use crate::html::Page;
use crate::{campaign, report_table};

/// What `rnic show` reads in the output directory.
pub(crate) const STATE_FILE: &str = "state.json";

/// Options of `rnic run`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Scenario file; without one, the embedded scenario runs
    scenario: Option<PathBuf>,
    /// Seed of payloads and losses, in place of the scenario's
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Print report.json instead of tables
    #[arg(long)]
    json: bool,
    /// Directory for report.html, capture.pcapng (every frame, whole), report.json, state.json and
    /// speed.json
    #[arg(long, value_name = "DIR", default_value = "rnic-out")]
    out: PathBuf,
    /// Play so many random worlds instead, under every checker; what fails is shrunk to a scenario file
    #[arg(long, value_name = "WORLDS", conflicts_with = "scenario")]
    campaign: Option<u64>,
    /// Play only part K of N of the campaign
    #[arg(long, value_name = "K/N", requires = "campaign")]
    shard: Option<campaign::Shard>,
    /// Threads of the campaign; all cores if not given
    #[arg(long, value_name = "N", requires = "campaign")]
    threads: Option<usize>,
    /// Print the embedded scenario, commented, as a starting point
    #[arg(long, conflicts_with_all = ["scenario", "seed", "json", "campaign"])]
    print_default: bool,
}

/// How fast a phase ran on this machine.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Speed {
    /// The phase's name.
    pub(crate) phase: String,
    /// Messages that were compared.
    pub(crate) messages: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Wall time of the whole phase.
    pub(crate) wall_s: f64,
    /// Wall time spent in devices, drivers and the virtual wire: without filling and comparing
    /// messages, without the capture, and without reading the clock.
    pub(crate) device_s: f64,
    /// Messages per second of device time.
    pub(crate) messages_per_s: f64,
    /// Payload bits per second of device time.
    pub(crate) gbit_per_s: f64,
}

/// Everything that a wall clock said.
#[derive(Debug, Serialize)]
struct SpeedReport {
    scenario: String,
    seed: u64,
    build: &'static str,
    wall_s: f64,
    phases: Vec<Speed>,
}

/// Runs a scenario. Fails the exit status where a byte differs or a completion is missing.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.print_default {
        io::stdout().lock().write_all(DEFAULT_SCENARIO.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(worlds) = args.campaign {
        return campaign::run(&campaign::Campaign {
            worlds,
            seed: args.seed.unwrap_or(1),
            shard: args.shard.unwrap_or(campaign::Shard::WHOLE),
            out: &args.out,
            json: args.json,
            threads: args.threads.unwrap_or_else(campaign::all_cores).max(1),
        });
    }
    // Once: it may be a pipe.
    let text = args.scenario.as_deref().map(read).transpose()?;
    if let (Some(path), Some(text)) = (&args.scenario, &text)
        && Plan::is_world(text)
    {
        return campaign::replay(path, text, &args.out, args.json);
    }
    let began = Instant::now();
    let scenario = load(args, text.as_deref())?;
    let files = load_files(args, &scenario)?;
    let mut simulation = Simulation::new(scenario, files)?;

    fs::create_dir_all(&args.out)
        .with_context(|| format!("cannot create the directory {}", args.out.display()))?;
    let capture_path = args.out.join("capture.pcapng");
    let mut recorder = Recorder::new(&capture_path, simulation.scenario())?;
    let mut speeds = Vec::new();
    let reading = Clock::reading();
    loop {
        recorder.clock = Clock::start(reading);
        let Some(phase) = simulation.run_phase(&mut recorder) else { break };
        let (name, messages, bytes) = (phase.name.clone(), phase.messages, phase.bytes);
        recorder.stories.end_phase(phase.failure_count > 0);
        speeds.push(recorder.clock.stop().speed(name, messages, bytes));
        if recorder.error.is_some() {
            break;
        }
    }
    let (stories, told) =
        core::mem::replace(&mut recorder.stories, Stories::new(Vec::new())).finish();
    recorder.finish().with_context(|| format!("cannot write {}", capture_path.display()))?;

    let state = simulation.state();
    let scenario = simulation.scenario().clone();
    let report = simulation.finish();
    let speed = SpeedReport {
        scenario: report.scenario.clone(),
        seed: report.seed,
        build: if cfg!(debug_assertions) { "debug" } else { "release" },
        wall_s: began.elapsed().as_secs_f64(),
        phases: speeds,
    };
    let report_path = args.out.join("report.json");
    let report_json = to_json(&report)?;
    write_file(&report_path, &report_json)?;
    let speed_path = args.out.join("speed.json");
    write_file(&speed_path, &to_json(&speed)?)?;

    let state_path = args.out.join(STATE_FILE);
    write_file(&state_path, &to_json(&state)?)?;
    let page_path = args.out.join("report.html");
    let page = Page {
        scenario: &scenario,
        report: &report,
        stories: &stories,
        told: &told,
        command: command(args, report.seed),
    };
    write_file(&page_path, &page.to_html())?;

    let paths = [page_path, capture_path, report_path, speed_path, state_path];
    let printed = match args.json {
        true => io::stdout().lock().write_all(report_json.as_bytes()),
        false => print_tables(&report, &speed, &paths),
    };
    match printed {
        // Whoever read it has seen enough; the verdict stands.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        printed => printed?,
    }
    Ok(if report.passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read the scenario {}", path.display()))
}

/// The command that runs it again. Of a path, only what does not depend on this machine.
fn command(args: &Args, seed: u64) -> String {
    let file = args.scenario.as_deref().and_then(Path::file_name);
    let file = file.map_or_else(String::new, |name| format!("{} ", name.to_string_lossy()));
    format!("rnic run {file}--seed {seed}")
}

/// The scenario in `text`, or the embedded one.
fn load(args: &Args, text: Option<&str>) -> anyhow::Result<Scenario> {
    let mut scenario = match (&args.scenario, text) {
        (Some(path), Some(text)) => Scenario::parse(&path.display().to_string(), text)?,
        _ => Scenario::embedded()?,
    };
    if let Some(seed) = args.seed {
        scenario.seed = seed;
    }
    Ok(scenario)
}

/// Reads the files that phases name, relative to the scenario file.
fn load_files(args: &Args, scenario: &Scenario) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    let directory = args.scenario.as_deref().and_then(Path::parent).unwrap_or(Path::new(""));
    let mut files = BTreeMap::new();
    for phase in &scenario.phases {
        let Some(name) = &phase.file else { continue };
        let path = directory.join(name);
        let bytes = fs::read(&path).with_context(|| {
            format!("phase {:?}: cannot read the file {}", phase.name, path.display())
        })?;
        files.insert(name.clone(), bytes);
    }
    Ok(files)
}

fn to_json<T: Serialize>(value: &T) -> anyhow::Result<String> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    Ok(text)
}

fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn print_tables(report: &Report, speed: &SpeedReport, paths: &[PathBuf; 5]) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    report_table::print(&mut out, report, &speed.phases, speed.build)?;
    let messages: u64 = report.phases.iter().map(|phase| phase.messages).sum();
    let verdict = if report.passed { "PASSED" } else { "FAILED" };
    writeln!(
        out,
        "\n{verdict}: {} messages compared byte by byte, seed {}, {:.2} s in all",
        report_table::grouped(messages),
        report.seed,
        speed.wall_s
    )?;
    let [page, capture, report_path, speed_path, state_path] =
        paths.each_ref().map(|path| path.display());
    writeln!(
        out,
        "  {page}  charts, counters, and the packets around what went wrong; open it in a browser"
    )?;
    writeln!(out, "  {capture}  every frame, whole; open it with Wireshark")?;
    writeln!(out, "  {report_path}  the same for the same seed, on every machine")?;
    writeln!(out, "  {speed_path}  wall-clock figures of this machine")?;
    let folder = paths[4].parent().unwrap_or(Path::new("")).display();
    writeln!(out, "  {state_path}  queue pairs, regions and counters: see `rnic show {folder}`")?;
    out.flush()
}

/// Comments of a frame at most; more rules than that on one frame go unsaid.
const COMMENTS_MAX: usize = 16;

/// Writes the capture, takes the time, shows progress.
struct Recorder {
    /// Fault rules in words.
    faults: Vec<String>,
    capture: Writer<BufWriter<File>>,
    /// The first error; nothing is written after it.
    error: Option<io::Error>,
    clock: Clock,
    progress: Progress,
    stories: Stories,
}

impl Recorder {
    fn new(path: &Path, scenario: &Scenario) -> anyhow::Result<Self> {
        let interfaces: Vec<_> = scenario
            .links
            .iter()
            .map(|link| {
                let [a, b] = link.between.map(|node| scenario.nodes[node].name.as_str());
                let config = &link.config;
                Interface {
                    name: format!("{a}-{b}"),
                    description: format!(
                        "link between {a} and {b}, {} bit/s, {} ns; virtual time of arrival",
                        config.rate_bits_per_s, config.latency_ns
                    ),
                }
            })
            .collect();
        let open = || -> io::Result<_> {
            let file = BufWriter::with_capacity(1 << 20, File::create(path)?);
            Writer::new(file, &interfaces)
        };
        let capture = open().with_context(|| format!("cannot write {}", path.display()))?;
        let total = scenario.phases.iter().map(|phase| phase.count).sum();
        let progress = Progress { began: Instant::now(), total, seen: 0, bar: None };
        Ok(Self {
            faults: scenario.fault_labels(),
            capture,
            error: None,
            clock: Clock::start(Duration::ZERO),
            progress,
            stories: Stories::new(scenario.fault_labels()),
        })
    }

    fn finish(self) -> anyhow::Result<()> {
        if let Some(bar) = self.progress.bar {
            bar.finish_and_clear();
        }
        if let Some(error) = self.error {
            bail!(error);
        }
        self.capture.finish()?;
        Ok(())
    }
}

impl Observer for Recorder {
    fn frame(&mut self, sighting: &Sighting<'_>) {
        if self.error.is_some() {
            return;
        }
        let fate = match sighting.fate {
            Fate::Delivered => String::new(),
            fate => match sighting.read {
                Some(packet) if matches!(fate, Fate::Refused(_)) => format!("{fate:#} {packet}."),
                _ => format!("{fate:#}"),
            },
        };
        let again = if sighting.retransmission { "retransmission" } else { "" };
        let copy = if sighting.copy { "copy" } else { "" };
        let mut comments = [""; COMMENTS_MAX];
        let rules = sighting.faults.iter().filter_map(|&rule| self.faults.get(rule));
        let said = [again, copy, fate.as_str()].into_iter().filter(|text| !text.is_empty());
        let mut count = 0;
        for (comment, text) in comments.iter_mut().zip(said.chain(rules.map(String::as_str))) {
            *comment = text;
            count += 1;
        }
        let comments = &comments[..count];
        let interface = u32::try_from(sighting.link).unwrap_or(u32::MAX);
        let written = self.capture.packet(interface, sighting.at, sighting.frame, comments);
        self.error = written.err();
        self.stories.frame(sighting);
    }

    fn remark(&mut self, remark: &Remark) {
        self.stories.remark(remark);
    }

    fn activity(&mut self, what: Activity) {
        self.clock.switch(what);
    }

    fn message(&mut self) {
        self.progress.message();
    }
}

/// Wall time, split by what it goes into.
#[derive(Clone, Copy)]
struct Clock {
    began: Instant,
    since: Instant,
    doing: Activity,
    in_device: Duration,
    /// Stretches of time in `in_device`; each is too long by one reading of the clock.
    stretches: u32,
    reading: Duration,
}

impl Clock {
    /// `reading` is what reading the clock takes.
    fn start(reading: Duration) -> Self {
        let now = Instant::now();
        let (doing, in_device) = (Activity::Payload, Duration::ZERO);
        Self { began: now, since: now, doing, in_device, stretches: 0, reading }
    }

    /// How long reading the clock takes, at best.
    fn reading() -> Duration {
        const READINGS: u32 = 256;
        let batch = || {
            let began = Instant::now();
            let last = (0..READINGS).fold(began, |_, _| Instant::now());
            (last - began) / READINGS
        };
        (0..16).map(|_| batch()).min().unwrap_or_default()
    }

    fn switch(&mut self, what: Activity) {
        if what == self.doing {
            return;
        }
        let now = Instant::now();
        if self.doing == Activity::Device {
            self.in_device += now - self.since;
            self.stretches += 1;
        }
        (self.since, self.doing) = (now, what);
    }

    fn stop(mut self) -> Self {
        self.switch(Activity::Payload);
        self
    }

    fn speed(&self, phase: String, messages: u64, bytes: u64) -> Speed {
        let readings = self.reading.saturating_mul(self.stretches);
        let device_s = self.in_device.saturating_sub(readings).as_secs_f64();
        let per_second = |amount: f64| if device_s > 0.0 { amount / device_s } else { 0.0 };
        Speed {
            phase,
            messages,
            bytes,
            wall_s: self.began.elapsed().as_secs_f64(),
            device_s,
            messages_per_s: per_second(messages as f64),
            gbit_per_s: per_second(bytes as f64 * 8e-9),
        }
    }
}

/// A progress bar that appears on a terminal when a run turns out to be long.
struct Progress {
    began: Instant,
    total: u64,
    seen: u64,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Between two looks at the clock.
    const MESSAGES: u64 = 64;
    const PATIENCE: Duration = Duration::from_secs(1);

    fn message(&mut self) {
        self.seen += 1;
        if !self.seen.is_multiple_of(Self::MESSAGES) {
            return;
        }
        if let Some(bar) = &self.bar {
            bar.set_position(self.seen);
        } else if self.began.elapsed() > Self::PATIENCE && io::stderr().is_terminal() {
            let template = "{elapsed} {wide_bar} {human_pos} of {human_len} messages";
            let bar = ProgressBar::new(self.total);
            self.bar = Some(match ProgressStyle::with_template(template) {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            });
        }
    }
}
