//! A ladder in HTML: one row for each packet, with an arrow in SVG; a row opens and shows the packet's
//! fields. Works without JavaScript.

use std::fmt::Write;

use softrnic_engine::REASON_ROWS;
use softrnic_engine::packet::tree::{self, Node, Value};
use softrnic_sim::NodeReport;
use softrnic_sim::ladder::{Mark, Marks, Remark, Rung, Skipped, Step, Story, short_note};

use super::{duration, escape, micros, number};

/// A pause between two packets that is worth a row, in nanoseconds.
const PAUSE_NS: u64 = 20_000;

/// Where the stations' lifelines are, in percent of the width.
struct Lanes {
    stations: Vec<usize>,
}

impl Lanes {
    fn of(steps: &[Step]) -> Self {
        let ends = |step: &Step| match step {
            Step::Rung(rung) => [rung.from, rung.to],
            Step::Skipped(skipped) => [skipped.from, skipped.to],
            Step::Remark(remark) => [remark.station; 2],
        };
        let mut stations: Vec<_> = steps.iter().flat_map(ends).collect();
        stations.sort_unstable();
        stations.dedup();
        Self { stations }
    }

    fn x(&self, station: usize) -> f64 {
        let index = self.stations.iter().position(|&other| other == station).unwrap_or(0);
        match self.stations.len() {
            0 | 1 => 50.0,
            count => 6.0 + 88.0 * index as f64 / (count - 1) as f64,
        }
    }

    /// The lines behind everything.
    fn lines(&self) -> String {
        let line = |&station: &usize| {
            let x = self.x(station);
            format!("<line class=\"life\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" y1=\"0\" y2=\"100%\"/>")
        };
        self.stations.iter().map(line).collect()
    }
}

/// A ladder with its heading.
pub(super) fn story(out: &mut String, number: usize, story: &Story, nodes: &[NodeReport]) {
    let lanes = Lanes::of(&story.steps);
    let name = |station: usize| nodes.get(station).map_or("?", |node| node.name.as_str());
    let begins = story.steps.first().map_or(0, |step| step.at().0);
    let _ = write!(
        out,
        "<article id=\"story-{number}\" class=\"ladder\">\n<h4>{}</h4>\n<p class=\"note\">Each row is a packet at \
         its arrival, or when it would have arrived; click one for its fields. From {} on.</p>\n\
         <div class=\"row head\" aria-hidden=\"true\"><span class=\"no\">frame</span><span \
         class=\"t\">+\u{a0}\u{b5}s</span><span class=\"wire\">",
        escape(&story.title),
        micros(begins)
    );
    for &station in &lanes.stations {
        let _ =
            write!(out, "<b style=\"left:{:.2}%\">{}</b>", lanes.x(station), escape(name(station)));
    }
    out.push_str("</span><span class=\"what\"></span></div>\n");
    let mut last = begins;
    for step in &story.steps {
        let at = step.at().0;
        if at.saturating_sub(last) >= PAUSE_NS {
            let text = format!("{} pass", duration(at - last));
            plain_row(out, "pause", "", &lanes, "", &text);
        }
        last = at;
        let since = at.saturating_sub(begins);
        let time = format!("{}.{:03}", super::number(since / 1000), since % 1000);
        match step {
            Step::Rung(rung) => packet(out, rung, &time, &lanes, &name),
            Step::Skipped(skipped) => skip(out, skipped, &lanes),
            Step::Remark(note) => remark(out, note, &time, &lanes, &name),
        }
    }
    out.push_str("</article>\n");
}

/// The class of the worst mark.
fn class_of(marks: Marks) -> &'static str {
    marks.iter().next().map_or("fine", |mark| mark.row().name)
}

fn packet<'a>(
    out: &mut String,
    rung: &Rung,
    time: &str,
    lanes: &Lanes,
    name: &dyn Fn(usize) -> &'a str,
) {
    let (from, to) = (lanes.x(rung.from), lanes.x(rung.to));
    let lost = rung.marks.has(Mark::Lost);
    let end = if lost { from + (to - from) * 0.72 } else { to };
    let label = escape(&rung.label());
    let tip = match (lost, from < to) {
        (true, _) => "<path class=\"cross\" d=\"M-5-5L5 5M-5 5L5-5\"/>",
        (false, true) => "<path class=\"tip\" d=\"M0 0L-9-4.5V4.5Z\"/>",
        (false, false) => "<path class=\"tip\" d=\"M0 0L9-4.5V4.5Z\"/>",
    };
    let _ = write!(
        out,
        "<details class=\"rung {}\">\n<summary class=\"row\" id=\"frame-{}\"><span class=\"no\">{}</span><span \
         class=\"t\">{time}</span><span class=\"wire\"><svg aria-hidden=\"true\">{}<line class=\"arrow\" \
         x1=\"{from:.2}%\" y1=\"19\" x2=\"{end:.2}%\" y2=\"19\"/><svg x=\"{end:.2}%\" y=\"19\" \
         overflow=\"visible\">{tip}</svg><text x=\"50%\" y=\"12\">{label}</text></svg></span><span \
         class=\"what\"><span class=\"sr\">{} to {}: {label}. </span>{}",
        class_of(rung.marks),
        rung.number,
        rung.number,
        lanes.lines(),
        escape(name(rung.from)),
        escape(name(rung.to)),
        escape(&rung.details()),
    );
    for note in &rung.notes {
        let _ = write!(out, " <em>{}</em>", escape(short_note(note)));
    }
    out.push_str("</span></summary>\n");
    fields(out, rung);
    out.push_str("</details>\n");
}

/// All fields of a frame, as text that can be copied.
fn fields(out: &mut String, rung: &Rung) {
    out.push_str("<div class=\"fields\">\n");
    for note in &rung.notes {
        let _ = writeln!(out, "<p>{}</p>", escape(note));
        let refused = REASON_ROWS.iter().find(|row| is_refusal(note, row.name));
        if let Some(row) = refused {
            let _ = writeln!(out, "<p class=\"note\">{}</p>", escape(row.advice));
        }
    }
    let tree = tree::decode(&rung.frame);
    let sent = rung.sent.map_or_else(String::new, |sent| format!(", left at {}", micros(sent.0)));
    let _ = writeln!(
        out,
        "<p class=\"note\">Frame {} of capture.pcapng, {} bytes{sent}, arrived at {}.</p>",
        number(rung.number),
        number(rung.frame.len() as u64),
        micros(rung.at.0)
    );
    out.push_str("<div class=\"headers\">\n");
    for node in &tree.nodes {
        header(out, node);
    }
    out.push_str("</div>\n</div>\n");
}

fn is_refusal(note: &str, reason: &str) -> bool {
    let name = short_note(note).split_once(": ").map(|(_, name)| name);
    Mark::of_comment(note) == Some(Mark::Refused) && name == Some(reason)
}

fn header(out: &mut String, node: &Node) {
    let _ = write!(out, "<pre><b>{}</b>", escape(node.name));
    value(out, node);
    let width = node.children.iter().map(|child| child.name.len()).max().unwrap_or(0);
    for child in &node.children {
        let _ = write!(out, "\n{:width$}", escape(child.name));
        value(out, child);
    }
    out.push_str("</pre>\n");
}

fn value(out: &mut String, node: &Node) {
    if node.value != Value::None {
        let _ = write!(out, "  {}", escape(&node.value.to_string()));
    }
    if !node.note.is_empty() {
        let _ = write!(out, "  <i>{}</i>", escape(&node.note));
    }
}

fn skip(out: &mut String, skipped: &Skipped, lanes: &Lanes) {
    let Skipped { count, first, last, .. } = *skipped;
    let text =
        format!("{} more like these, PSN {:06x} to {:06x}", number(count), first.get(), last.get());
    plain_row(out, "skipped", "", lanes, "", &text);
}

fn remark<'a>(
    out: &mut String,
    remark: &Remark,
    time: &str,
    lanes: &Lanes,
    name: &dyn Fn(usize) -> &'a str,
) {
    let x = lanes.x(remark.station);
    let dot = format!("<circle cx=\"{x:.2}%\" cy=\"50%\" r=\"5\"/>");
    let text = format!("{}: {}", name(remark.station), remark.text);
    let class = format!("remark {}", remark.mark.row().name);
    plain_row(out, &class, time, lanes, &dot, &text);
}

/// A row that is no packet.
fn plain_row(out: &mut String, class: &str, time: &str, lanes: &Lanes, drawing: &str, text: &str) {
    let _ = writeln!(
        out,
        "<div class=\"row {class}\"><span class=\"no\"></span><span class=\"t\">{time}</span><span \
         class=\"wire\"><svg aria-hidden=\"true\">{}{drawing}</svg></span><span \
         class=\"what\">{}</span></div>",
        lanes.lines(),
        escape(text)
    );
}
