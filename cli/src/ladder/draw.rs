//! A ladder as text: a lifeline for each station, an arrow for each packet. It must not know where
//! the packets come from.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
use softrnic_engine::Nanos;
use softrnic_sim::ladder::{Mark, Marks, Remark, Rung, Skipped, Step, short_note};

/// When to colour.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

impl Color {
    fn is_on(self) -> bool {
        let asked_not = || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        match self {
            Self::Auto => io::stdout().is_terminal() && !asked_not(),
            Self::Always => true,
            Self::Never => false,
        }
    }
}

const DIM: Style = Style::new().dimmed();
const BOLD: Style = Style::new().bold();

/// The style of a packet, after the worst of its marks.
fn style_of(marks: Marks) -> Style {
    let color = marks.iter().next().map(|mark| match mark {
        Mark::Lost | Mark::Refused | Mark::Error => AnsiColor::Red,
        Mark::Fault | Mark::Nak | Mark::Rnr | Mark::Timeout => AnsiColor::Magenta,
        Mark::Retransmission | Mark::Gap => AnsiColor::Yellow,
        Mark::Duplicate => AnsiColor::Cyan,
    });
    color.map_or(Style::new(), AnsiColor::on_default)
}

/// How a ladder is drawn.
#[derive(Debug)]
pub(crate) struct Drawing {
    colored: bool,
    /// What times are counted from.
    start: Nanos,
    /// Stations with a lifeline, from left to right.
    columns: Vec<usize>,
    /// Columns from one lifeline to the next; `None` where there are too many stations for lines.
    gap: Option<usize>,
}

/// Stations that get lifelines.
const LINES_MAX: usize = 4;

impl Drawing {
    pub(crate) fn new(color: Color, start: Nanos) -> Self {
        Self { colored: color.is_on(), start, columns: Vec::new(), gap: None }
    }

    fn paint(&self, style: Style, text: &str) -> String {
        match self.colored && style != Style::new() {
            true => format!("{style}{text}{style:#}"),
            false => text.to_owned(),
        }
    }

    /// Gives these stations lifelines, and prints headings where that changes something.
    pub(crate) fn columns(
        &mut self,
        out: &mut dyn Write,
        stations: &BTreeSet<usize>,
        names: &[impl Display],
    ) -> io::Result<()> {
        if self.columns.iter().eq(stations) {
            return Ok(());
        }
        self.columns = stations.iter().copied().collect();
        self.gap = match stations.len() {
            0..=2 => Some(36),
            3..=LINES_MAX => Some(30),
            _ => None,
        };
        let mut heading = String::new();
        match self.gap {
            Some(gap) => {
                for &station in stations {
                    heading.push_str(&format!("{:<1$.2$}", name_of(names, station), gap, gap - 1));
                }
            }
            None => heading.push_str("from and to"),
        }
        let line = format!("{:>7} {:>14}  {}", "frame", "time us", heading.trim_end());
        writeln!(out, "{}", self.paint(BOLD, &line))
    }

    /// Lets a packet's stations have lifelines, where some have.
    pub(crate) fn make_room(
        &mut self,
        out: &mut dyn Write,
        rung: &Rung,
        names: &[impl Display],
    ) -> io::Result<()> {
        let ends = BTreeSet::from([rung.from, rung.to]);
        if self.gap.is_none() || ends.iter().all(|end| self.columns.contains(end)) {
            return Ok(());
        }
        let all: BTreeSet<_> = self.columns.iter().copied().chain(ends.iter().copied()).collect();
        self.columns(out, if all.len() <= LINES_MAX { &all } else { &ends }, names)
    }

    /// Something is left out here.
    pub(crate) fn pause(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.paint(DIM, &format!("{:>7}", "...")))
    }

    /// An excerpt, with headings where its stations are others than before.
    pub(crate) fn excerpt(
        &mut self,
        out: &mut dyn Write,
        steps: &[Step],
        names: &[impl Display],
    ) -> io::Result<()> {
        let ends = |step: &Step| match step {
            Step::Rung(rung) => [rung.from, rung.to],
            Step::Skipped(skipped) => [skipped.from, skipped.to],
            Step::Remark(remark) => [remark.station; 2],
        };
        let stations = steps.iter().flat_map(ends).collect::<BTreeSet<_>>();
        self.columns(out, &stations, names)?;
        steps.iter().try_for_each(|step| self.step(out, step, names))
    }

    /// One line.
    pub(crate) fn step(
        &self,
        out: &mut dyn Write,
        step: &Step,
        names: &[impl Display],
    ) -> io::Result<()> {
        match step {
            Step::Rung(rung) => self.rung(out, rung, names),
            Step::Skipped(skipped) => self.skipped(out, skipped),
            Step::Remark(remark) => self.remark(out, remark, names),
        }
    }

    fn rung(&self, out: &mut dyn Write, rung: &Rung, names: &[impl Display]) -> io::Result<()> {
        let style = style_of(rung.marks);
        let name = rung.label();
        let lost = rung.marks.has(Mark::Lost);
        let arrow = match self.gap {
            Some(gap) => self.arrow(gap, rung.from, rung.to, &name, lost),
            None => {
                let (from, to) = (name_of(names, rung.from), name_of(names, rung.to));
                format!("{from} {} {to}  {name:<20}", if lost { "──✕" } else { "──▶" })
            }
        };
        let mut rest = rung.details();
        for note in &rung.notes {
            rest.push_str("  ");
            rest.push_str(short_note(note));
        }
        writeln!(
            out,
            "{:>7} {:>14}  {}  {}",
            rung.number,
            micros(rung.at.0.saturating_sub(self.start.0)),
            self.paint(style, &arrow),
            self.paint(style, &rest)
        )
    }

    fn skipped(&self, out: &mut dyn Write, skipped: &Skipped) -> io::Result<()> {
        let Skipped { count, first, last, .. } = skipped;
        let lines = self.gap.map_or_else(String::new, |gap| self.lines(gap));
        let text =
            format!("{count} more like these, psn {:06x} to {:06x}", first.get(), last.get());
        let line = format!("{:>7} {:>14}  {lines}  {text}", "", "");
        writeln!(out, "{}", self.paint(DIM, &line))
    }

    fn remark(
        &self,
        out: &mut dyn Write,
        remark: &Remark,
        names: &[impl Display],
    ) -> io::Result<()> {
        let lines = self.gap.map_or_else(String::new, |gap| self.lines(gap));
        let time = micros(remark.at.0.saturating_sub(self.start.0));
        let text = format!("{}: {}", name_of(names, remark.station), remark.text);
        let text = self.paint(style_of(Marks::from_iter([remark.mark])), &text);
        writeln!(out, "{:>7} {time:>14}  {lines}  {text}", "")
    }

    /// The lifelines alone.
    fn lines(&self, gap: usize) -> String {
        let spaces = " ".repeat(gap - 1);
        vec!["│"; self.columns.len()].join(&spaces)
    }

    /// The lifelines, with an arrow between two of them.
    fn arrow(&self, gap: usize, from: usize, to: usize, name: &str, lost: bool) -> String {
        let lines = self.lines(gap);
        let column = |station| self.columns.iter().position(|&other| other == station);
        let (Some(from), Some(to)) = (column(from), column(to)) else { return lines };
        if from == to {
            return lines;
        }
        let mut cells: Vec<char> = lines.chars().collect();
        let (left, right) = (from.min(to), from.max(to));
        let rightward = from < to;
        let (begin, end) = (left * gap + 1, right * gap);
        // A lost packet does not get far.
        let reach = if lost { (end - begin) * 4 / 5 } else { end - begin };
        let span = if rightward { begin..begin + reach } else { end - reach..end };
        for cell in &mut cells[span.clone()] {
            *cell = if *cell == '│' { '┼' } else { '─' };
        }
        let tip = match (lost, rightward) {
            (true, _) => '✕',
            (false, true) => '▶',
            (false, false) => '◀',
        };
        let tip_at = if rightward { span.end - 1 } else { span.start };
        cells[tip_at] = tip;
        let label: Vec<char> = name.chars().take(reach.saturating_sub(3)).collect();
        let at = if rightward { begin + 1 } else { end - 1 - label.len() };
        for (cell, letter) in cells[at..].iter_mut().zip(label) {
            *cell = letter;
        }
        cells.into_iter().collect()
    }
}

fn name_of(names: &[impl Display], station: usize) -> String {
    names.get(station).map_or_else(|| "?".to_owned(), ToString::to_string)
}

/// Nanoseconds as microseconds with three decimals.
fn micros(ns: u64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use softrnic_engine::{Psn, Qpn};
    use std::net::IpAddr;

    fn drawing(stations: usize) -> Drawing {
        let columns = (0..stations).collect();
        Drawing { gap: Some(16), columns, ..Drawing::new(Color::Never, Nanos(0)) }
    }

    #[test]
    fn arrows_begin_and_end_at_lifelines() {
        let two = drawing(2);
        assert_eq!(two.arrow(16, 0, 1, "SEND_ONLY", false), "│─SEND_ONLY────▶│");
        assert_eq!(two.arrow(16, 1, 0, "ACK", false), "│◀──────────ACK─│");
        assert_eq!(two.arrow(16, 0, 1, "SEND_ONLY", true), "│─SEND_ONLY─✕   │");
        assert_eq!(two.arrow(16, 1, 0, "ACK", true), "│   ✕───────ACK─│");
        let three = drawing(3);
        assert_eq!(three.arrow(16, 0, 2, "CNP", false), "│─CNP───────────┼──────────────▶│");
        assert_eq!(three.arrow(16, 1, 2, "CNP", false), "│               │─CNP──────────▶│");
    }

    #[test]
    fn a_station_without_line_and_a_long_name_break_nothing() {
        let two = drawing(2);
        assert_eq!(two.arrow(16, 1, 5, "A", false), "│               │");
        assert_eq!(two.arrow(16, 0, 0, "A", false), "│               │");
        let name = "RDMA_WRITE_ONLY_WITH_IMMEDIATE";
        assert_eq!(two.arrow(16, 0, 1, name, false).chars().count(), 17);
        assert_eq!(drawing(0).arrow(16, 0, 0, name, true), "");
    }

    #[test]
    fn a_new_station_gets_a_line_or_the_lines_of_others() {
        let names: Vec<_> = (0..9).map(|i| IpAddr::from([10, 0, 0, i])).collect();
        let mut drawing = Drawing::new(Color::Never, Nanos(0));
        let mut out = Vec::new();
        drawing.columns(&mut out, &BTreeSet::from([0, 1, 2]), &names).unwrap();
        let rung = |from, to| Rung {
            number: 1,
            sent: None,
            at: Nanos(0),
            from,
            to,
            opcode: None,
            qpn: Qpn::new(0),
            psn: Psn::new(0),
            marks: Marks::NONE,
            notes: Vec::new(),
            frame: Vec::new(),
        };
        for (ends, columns) in
            [((0, 1), vec![0, 1, 2]), ((3, 0), vec![0, 1, 2, 3]), ((0, 4), vec![0, 4])]
        {
            drawing.make_room(&mut out, &rung(ends.0, ends.1), &names).unwrap();
            assert_eq!(drawing.columns, columns);
        }
        // One heading for each change.
        assert_eq!(String::from_utf8(out).unwrap().lines().count(), 3);
    }
}
