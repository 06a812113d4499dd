//! `rnic ladder`: the packets of a capture as a ladder: who sent what to whom, and what became of it.
//!
//! `softrnic_sim::ladder` follows the packets; here are files, filters and the screen.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::ValueEnum;
use clap::builder::PossibleValue;
use serde::Serialize;
use softrnic_engine::{Nanos, Qpn};
use softrnic_host::capture::{CaptureError, CapturedPacket, Reader};
use softrnic_sim::ladder::{
    Captured, Excerpts, Follower, Mark, Marks, Rung, Skipped, Step, Weight,
};

pub(crate) mod draw;

use draw::{Color, Drawing};

/// What to show of a capture.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A pcap or pcapng file with RoCE packets, from anywhere; "-" reads standard input
    capture: PathBuf,
    /// Only packets to or from this queue pair; may be given more than once
    #[arg(long, value_name = "N", value_parser = qp_number)]
    qp: Vec<u32>,
    /// Only what lies around packets of this kind; may be given more than once
    #[arg(long, value_name = "KIND")]
    around: Vec<Around>,
    /// Stop after so many packets
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// One JSON object a line and packet
    #[arg(long)]
    json: bool,
    /// When to colour
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    color: Color,
}

/// A mark that packets can have.
#[derive(Clone, Copy, Debug)]
struct Around(Mark);

impl ValueEnum for Around {
    fn value_variants<'a>() -> &'a [Self] {
        const {
            &[
                Self(Mark::Lost),
                Self(Mark::Refused),
                Self(Mark::Fault),
                Self(Mark::Nak),
                Self(Mark::Rnr),
                Self(Mark::Retransmission),
                Self(Mark::Duplicate),
                Self(Mark::Gap),
            ]
        }
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.row().name).help(self.0.row().text))
    }
}

/// Steps before and after what `--around` names, and most steps of one excerpt.
const EXCERPT: (usize, usize, usize) = (5, 8, 60);
/// Packets that are read before the first is printed, so that all stations are known by then.
const HEAD: usize = 4096;

fn qp_number(text: &str) -> Result<u32, String> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    let number = u32::from_str_radix(digits, radix).ok().filter(|&number| number < 1 << 24);
    number.ok_or_else(|| "a queue pair number has 24 bits: write 14 or 0xe".to_owned())
}

/// Shows what the arguments name. The exit status is 1 where the capture ends in damage.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let name = args.capture.display().to_string();
    let mut out = BufWriter::new(io::stdout().lock());
    let outcome = if args.capture.as_os_str() == "-" {
        show(args, io::stdin().lock(), "standard input", &mut out)
    } else {
        let file = File::open(&args.capture).with_context(|| format!("cannot open {name}"))?;
        show(args, file, &name, &mut out)
    };
    // What could be read is printed before the error that ends it.
    out.flush()?;
    outcome.map(|()| ExitCode::SUCCESS)
}

fn show(args: &Args, input: impl Read, name: &str, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut source = Source {
        reader: Reader::new(input).with_context(|| name.to_string())?,
        follower: Follower::default(),
        frames: 0,
        start: None,
    };
    let mut head = VecDeque::new();
    let mut damage = None;
    while head.len() < HEAD {
        match source.next() {
            Ok(Some(rung)) => head.push_back(rung),
            Ok(None) => break,
            Err(error) => {
                damage = Some(error);
                break;
            }
        }
    }
    let mut view = View::new(args, &source, out);
    if !args.json && args.around.is_empty() {
        let shown = head.iter().filter(|rung| view.wants(&source, rung));
        let stations = shown.flat_map(|rung| [rung.from, rung.to]).collect();
        view.drawing.columns(view.out, &stations, source.follower.stations())?;
    }
    while let Some(rung) = head.pop_front() {
        view.rung(&source, rung)?;
    }
    while damage.is_none() && !view.is_full() {
        match source.next() {
            Ok(Some(rung)) => view.rung(&source, rung)?,
            Ok(None) => break,
            Err(error) => damage = Some(error),
        }
    }
    view.end(&source)?;
    match damage {
        None => Ok(()),
        Some(error) => Err(error).with_context(|| format!("{name}, after frame {}", source.frames)),
    }
}

/// The capture's packets, one after the other.
struct Source<R: Read> {
    reader: Reader<R>,
    follower: Follower,
    frames: u64,
    /// When the first frame was recorded.
    start: Option<Nanos>,
}

impl<R: Read> Source<R> {
    /// The next RoCE packet.
    fn next(&mut self) -> Result<Option<Rung>, CaptureError> {
        for packet in self.reader.by_ref() {
            let CapturedPacket { time, original_len, frame, comments, .. } = packet?;
            self.frames += 1;
            let at = time.unwrap_or_default();
            self.start.get_or_insert(at);
            let rung = self.follower.frame(&Captured {
                number: self.frames,
                at,
                frame: &frame,
                original_len: original_len as usize,
                comments: &comments,
            });
            if rung.is_some() {
                return Ok(rung);
            }
        }
        Ok(None)
    }
}

/// What is printed of them.
struct View<'a> {
    args: &'a Args,
    out: &'a mut dyn Write,
    around: Marks,
    excerpts: Excerpts,
    drawing: Drawing,
    shown: u64,
    roce: u64,
    excerpt_count: u64,
}

impl<'a> View<'a> {
    fn new<R: Read>(args: &'a Args, source: &Source<R>, out: &'a mut dyn Write) -> Self {
        let (before, after, longest) = EXCERPT;
        Self {
            args,
            out,
            around: args.around.iter().map(|around| around.0).collect(),
            excerpts: Excerpts::new(before, after, longest),
            drawing: Drawing::new(args.color, source.start.unwrap_or_default()),
            shown: 0,
            roce: 0,
            excerpt_count: 0,
        }
    }

    fn is_full(&self) -> bool {
        self.args.limit.is_some_and(|limit| self.shown >= limit)
    }

    /// Whether it is a packet to or from a queue pair that was asked for.
    fn wants<R: Read>(&self, source: &Source<R>, rung: &Rung) -> bool {
        let qps = &self.args.qp;
        let wanted = |qpn: Qpn| qps.contains(&qpn.get());
        qps.is_empty() || wanted(rung.qpn) || source.follower.source_qpn(rung).is_some_and(wanted)
    }

    fn rung<R: Read>(&mut self, source: &Source<R>, rung: Rung) -> io::Result<()> {
        self.roce += 1;
        if !self.wants(source, &rung) {
            return Ok(());
        }
        if self.around == Marks::NONE {
            if !self.args.json && !self.is_full() {
                self.drawing.make_room(self.out, &rung, source.follower.stations())?;
            }
            return self.step(source, &Step::Rung(rung));
        }
        let weight = match rung.marks {
            marks if marks.meets(self.around) => Weight::Opens,
            Marks::NONE => Weight::Light,
            _ => Weight::Extends,
        };
        let ended = self.excerpts.push(Step::Rung(rung), weight);
        self.excerpt(source, ended)
    }

    fn excerpt<R: Read>(&mut self, source: &Source<R>, steps: Option<Vec<Step>>) -> io::Result<()> {
        let Some(steps) = steps.filter(|_| !self.is_full()) else { return Ok(()) };
        if self.excerpt_count > 0 && !self.args.json {
            self.drawing.pause(self.out)?;
        }
        self.excerpt_count += 1;
        if self.args.json {
            return steps.iter().try_for_each(|step| self.step(source, step));
        }
        let rungs = |steps: &[Step]| steps.iter().filter(|s| matches!(s, Step::Rung(_))).count();
        let mut steps = steps;
        if let Some(limit) = self.args.limit {
            while self.shown + rungs(&steps) as u64 > limit {
                steps.pop();
            }
        }
        self.shown += rungs(&steps) as u64;
        self.drawing.excerpt(self.out, &steps, source.follower.stations())
    }

    fn step<R: Read>(&mut self, source: &Source<R>, step: &Step) -> io::Result<()> {
        if self.is_full() {
            return Ok(());
        }
        self.shown += u64::from(matches!(step, Step::Rung(_)));
        if self.args.json {
            serde_json::to_writer(&mut *self.out, &JsonStep::of(step, &source.follower))?;
            return writeln!(self.out);
        }
        self.drawing.step(self.out, step, source.follower.stations())
    }

    fn end<R: Read>(&mut self, source: &Source<R>) -> io::Result<()> {
        let last = self.excerpts.close();
        self.excerpt(source, last)?;
        self.out.flush()?;
        let summary = self.summary(source);
        if self.args.json {
            writeln!(io::stderr(), "{summary}")
        } else {
            writeln!(self.out, "\n{summary}")
        }
    }

    fn summary<R: Read>(&self, source: &Source<R>) -> String {
        let follower = &source.follower;
        let mut text = format!(
            "{} of {} RoCE packets shown, {} stations",
            self.shown,
            self.roce,
            follower.stations().len()
        );
        if self.is_full() {
            text.push_str(", stopped at --limit");
        }
        let strangers: u64 = follower.strangers().values().sum();
        if strangers > 0 {
            let kinds = follower.strangers().iter().map(|(what, count)| format!("{what} {count}"));
            let kinds = kinds.collect::<Vec<_>>().join(", ");
            text.push_str(&format!("\n{strangers} other frames: {kinds}"));
        }
        text
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum JsonStep {
    Packet(Box<JsonPacket>),
    Skipped {
        skipped: u64,
        first_psn: u32,
        last_psn: u32,
        from: Option<IpAddr>,
        to: Option<IpAddr>,
    },
    Nothing {},
}

#[derive(Serialize)]
struct JsonPacket {
    frame: u64,
    time_ns: u64,
    from: Option<IpAddr>,
    to: Option<IpAddr>,
    opcode: Option<u8>,
    name: String,
    psn: u32,
    qpn: u32,
    /// The sender's queue pair, where the other direction has shown it.
    source_qpn: Option<u32>,
    marks: Vec<&'static str>,
    notes: Vec<String>,
    details: String,
}

impl JsonStep {
    fn of(step: &Step, follower: &Follower) -> Self {
        let address = |station: usize| follower.stations().get(station).copied();
        match step {
            Step::Rung(rung) => Self::Packet(Box::new(JsonPacket {
                frame: rung.number,
                time_ns: rung.at.0,
                from: address(rung.from),
                to: address(rung.to),
                opcode: rung.opcode,
                name: rung.name(),
                psn: rung.psn.get(),
                qpn: rung.qpn.get(),
                source_qpn: follower.source_qpn(rung).map(|qpn| qpn.get()),
                marks: rung.marks.iter().map(|mark| mark.row().name).collect(),
                notes: rung.notes.clone(),
                details: rung.details(),
            })),
            Step::Skipped(Skipped { count, from, to, first, last, .. }) => Self::Skipped {
                skipped: *count,
                first_psn: first.get(),
                last_psn: last.get(),
                from: address(*from),
                to: address(*to),
            },
            Step::Remark(_) => Self::Nothing {},
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use softrnic_sim::ladder::MARK_ROWS;

    /// What only a run can know.
    const NOT_IN_CAPTURES: [Mark; 2] = [Mark::Timeout, Mark::Error];

    #[test]
    fn every_mark_that_a_capture_can_show_can_be_asked_for() {
        let words = Around::value_variants().iter().map(|around| around.0);
        let marks = MARK_ROWS.iter().map(|row| row.mark);
        let expected: Vec<_> = marks.filter(|mark| !NOT_IN_CAPTURES.contains(mark)).collect();
        assert_eq!(words.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_queue_pair_number_is_decimal_or_hexadecimal_and_24_bits() {
        assert_eq!(qp_number("14"), Ok(14));
        assert_eq!(qp_number("0xffffff"), Ok(0xFF_FFFF));
        assert!(qp_number("0x1000000").is_err());
        assert!(qp_number("-1").is_err());
    }
}
