//! A run's report as one HTML page that needs nothing else: no network, no other file, and no
//! JavaScript for what it shows.
//!
//! Formats what it is given. The bytes follow from the run: nothing that a wall clock said is in it.

use std::collections::BTreeMap;
use std::fmt::Write;

use softrnic_engine::{Nanos, REASON_ROWS};
use softrnic_sim::ladder::{Story, Told};
use softrnic_sim::{NodeReport, PhaseReport, Report, Scenario, Series};

use crate::report_table::grouped;

mod chart;
mod ladder;
mod summary;

const STYLE: &str = include_str!("../assets/report.css");
const SCRIPT: &str = include_str!("../assets/report.js");

/// Firings of a fault rule that are named.
const FIRINGS_SHOWN: usize = 3;

/// What the page is about.
pub(crate) struct Page<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) report: &'a Report,
    pub(crate) stories: &'a [Story],
    pub(crate) told: &'a [Told],
    /// The command that runs it again.
    pub(crate) command: String,
}

impl Page<'_> {
    /// The whole page.
    pub(crate) fn to_html(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail; so below.
        let _ = write!(
            out,
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <title>{} \u{b7} {}</title>\n<link rel=\"icon\" href=\"data:,\">\n\
             <style>\n{STYLE}</style>\n</head>\n<body>\n",
            self.verdict(),
            escape(&self.report.scenario)
        );
        self.header(&mut out);
        out.push_str("<main>\n");
        self.events(&mut out);
        self.faults(&mut out);
        self.overview(&mut out);
        for index in 0..self.report.phases.len() {
            self.phase(&mut out, index);
        }
        self.counters(&mut out);
        self.world(&mut out);
        self.bug_report(&mut out);
        let _ = write!(
            out,
            "</main>\n<footer><p>Written by <code>rnic run</code> {}. Times are virtual and follow from \
             the seed, as does every byte of this page. <code>capture.pcapng</code> beside it holds every \
             frame, <code>report.json</code> the figures.</p></footer>\n<script>\n{SCRIPT}</script>\n\
             </body>\n</html>\n",
            env!("CARGO_PKG_VERSION")
        );
        out
    }

    const fn verdict(&self) -> &'static str {
        if self.report.passed { "PASSED" } else { "FAILED" }
    }

    fn header(&self, out: &mut String) {
        let report = self.report;
        let class = if report.passed { "passed" } else { "failed" };
        let phases = &report.phases;
        let sum = |value: fn(&PhaseReport) -> u64| phases.iter().map(value).sum::<u64>();
        let end =
            |series: &Series| series.start().0 + series.bucket_ns() * series.buckets().len() as u64;
        let time = phases.iter().map(|phase| end(&phase.series)).max().unwrap_or(0);
        let _ = write!(
            out,
            "<header>\n<p class=\"verdict {class}\">{}</p>\n<h1>{}</h1>\n\
             <p class=\"sub\">Seed {} \u{b7} {} nodes \u{b7} {} \u{b7} {} of virtual time \u{b7} \
             run it again: <code>{}</code></p>\n<dl class=\"figures\">\n",
            self.verdict(),
            escape(&report.scenario),
            report.seed,
            report.nodes.len(),
            if phases.len() == 1 {
                "1 phase".to_owned()
            } else {
                format!("{} phases", phases.len())
            },
            duration(time),
            escape(&self.command)
        );
        let refused = sum(|phase| phase.refused.values().sum());
        for (name, value, alarm) in [
            ("messages right, byte by byte", sum(|phase| phase.messages), false),
            ("bytes", sum(|phase| phase.bytes), false),
            ("frames", sum(|phase| phase.frames), false),
            ("frames lost", sum(|phase| phase.lost), true),
            ("frames refused", refused, true),
            ("frames sent again", sum(|phase| phase.retransmissions), true),
            ("things wrong", sum(|phase| phase.failure_count), true),
        ] {
            let class = if alarm && value > 0 { " class=\"alarm\"" } else { "" };
            let value = number(value);
            let _ = writeln!(out, "<div{class}><dt>{name}</dt><dd>{value}</dd></div>");
        }
        out.push_str("</dl>\n</header>\n");
    }

    /// Number of the story about this, if there is one.
    fn story_of(&self, told: &Told) -> Option<usize> {
        self.stories.iter().position(|story| {
            let begins = || story.steps.first().map_or(Nanos(0), |step| step.at());
            let ends = || story.steps.last().map_or(Nanos(0), |step| step.at());
            story.phase == told.phase && (begins()..=ends()).contains(&told.first)
        })
    }

    fn events(&self, out: &mut String) {
        out.push_str("<section id=\"events\">\n<h2>What went wrong on the way</h2>\n");
        if self.told.is_empty() {
            out.push_str(
                "<p>Nothing: no frame was lost, refused or damaged, and no timer expired.</p>\n",
            );
        } else {
            out.push_str(
                "<div class=\"wide\"><table>\n<thead><tr><th>phase</th><th>what</th>\
                 <th class=\"n\">first at</th><th class=\"n\">times</th><th></th></tr></thead>\n<tbody>\n",
            );
            for told in self.told {
                let link = self.story_of(told).map_or_else(String::new, |story| {
                    format!("<a href=\"#story-{}\">show the packets</a>", story + 1)
                });
                let _ = writeln!(
                    out,
                    "<tr><td><a href=\"#phase-{0}\">{1}</a></td><td>{2}</td><td class=\"n\">{3}</td>\
                     <td class=\"n\">{4}</td><td>{link}</td></tr>",
                    told.phase + 1,
                    escape(self.phase_name(told.phase)),
                    escape(&told.what),
                    micros(told.first.0),
                    number(told.count),
                );
            }
            out.push_str("</tbody></table></div>\n");
        }
        out.push_str("</section>\n");
    }

    /// The fault rules: what each has done, and those that have done nothing.
    fn faults(&self, out: &mut String) {
        if self.report.faults.is_empty() {
            return;
        }
        out.push_str(
            "<section id=\"faults\">\n<h2>Fault rules</h2>\n<div class=\"wide\"><table>\n<thead><tr><th>rule</th>\
             <th class=\"n\">matched</th><th class=\"n\">fired</th><th>when, at which node, on what</th></tr></thead>\n<tbody>\n",
        );
        for fault in &self.report.faults {
            let mut firings: Vec<_> = fault
                .firings
                .iter()
                .take(FIRINGS_SHOWN)
                .map(|firing| {
                    format!(
                        "{} {} {}",
                        micros(firing.at_ns),
                        escape(&firing.node),
                        escape(&firing.what)
                    )
                })
                .collect();
            let more = fault.fired.saturating_sub(firings.len() as u64);
            if more > 0 {
                firings.push(format!("and {} more", number(more)));
            }
            let fired = match fault.fired {
                0 => "<b class=\"bad\">never</b>".to_owned(),
                fired => number(fired),
            };
            let _ = writeln!(
                out,
                "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{fired}</td><td>{}</td></tr>",
                escape(&fault.rule),
                number(fault.matched),
                firings.join("<br>")
            );
        }
        out.push_str("</tbody></table></div>\n</section>\n");
    }

    fn phase_name(&self, phase: usize) -> &str {
        self.report.phases.get(phase).map_or("?", |phase| phase.name.as_str())
    }

    fn overview(&self, out: &mut String) {
        let phases = &self.report.phases;
        let most = phases.iter().map(|phase| phase.goodput_bits_per_s).max().unwrap_or(0).max(1);
        out.push_str(
            "<section id=\"phases\">\n<h2>Phases</h2>\n<div class=\"wide\"><table>\n<thead><tr><th></th>\
             <th>phase</th><th class=\"n\">messages</th><th class=\"n\">bytes</th>\
             <th class=\"n\">lost</th><th class=\"n\">sent again</th>\
             <th class=\"n\">latency p50</th><th class=\"n\">p99</th><th>goodput</th></tr></thead>\n<tbody>\n",
        );
        for (i, phase) in phases.iter().enumerate() {
            let failed = phase.failure_count > 0;
            let _ = writeln!(
                out,
                "<tr{}><td>{}</td><td><a href=\"#phase-{}\">{}</a></td><td class=\"n\">{}</td>\
                 <td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
                 <td class=\"n\">{}</td><td class=\"n\">{}</td>\
                 <td class=\"bar\"><span style=\"width:{:.1}%\"></span>{}</td></tr>",
                if failed { " class=\"failed\"" } else { "" },
                if failed {
                    "<b class=\"bad\">failed</b>"
                } else {
                    "<span class=\"good\">\u{2713}</span>"
                },
                i + 1,
                escape(&phase.name),
                number(phase.messages),
                number(phase.bytes),
                number(phase.lost),
                number(phase.retransmissions),
                some_duration(phase.latency_ns.p50),
                some_duration(phase.latency_ns.p99),
                phase.goodput_bits_per_s as f64 / most as f64 * 100.0,
                bit_rate(phase.goodput_bits_per_s),
            );
        }
        out.push_str("</tbody></table></div>\n</section>\n");
    }

    fn phase(&self, out: &mut String, index: usize) {
        let Some(phase) = self.report.phases.get(index) else { return };
        let stories = || self.stories.iter().enumerate().filter(|(_, story)| story.phase == index);
        let open = if phase.failure_count > 0 || stories().next().is_some() { " open" } else { "" };
        let _ = write!(
            out,
            "<section id=\"phase-{0}\" class=\"phase\">\n<details{open}>\n<summary><h3>{1}</h3> <span>{2} {3} of \
             {4} bytes, {5} \u{2192} {6}{7}</span></summary>\n",
            index + 1,
            escape(&phase.name),
            number(phase.messages),
            phase.operation.name().to_uppercase(),
            number(phase.size.into()),
            escape(&phase.from),
            escape(&phase.to),
            if phase.failure_count > 0 { " \u{b7} <b class=\"bad\">failed</b>" } else { "" },
        );
        if phase.failure_count > 0 {
            out.push_str("<ul class=\"failures\">\n");
            for failure in &phase.failures {
                let _ = writeln!(out, "<li>{}</li>", escape(failure));
            }
            let more = phase.failure_count.saturating_sub(phase.failures.len() as u64);
            if more > 0 {
                let _ = writeln!(out, "<li>and {} more</li>", number(more));
            }
            out.push_str("</ul>\n");
        }
        let marks: Vec<_> = self.told.iter().filter(|told| told.phase == index).collect();
        chart::phase(out, phase, &marks);
        Self::facts(out, phase);
        for (number, story) in stories() {
            ladder::story(out, number + 1, story, &self.report.nodes);
        }
        out.push_str("</details>\n</section>\n");
    }

    fn facts(out: &mut String, phase: &PhaseReport) {
        let vlan = phase.vlan.map_or_else(|| "none".to_owned(), |vlan| vlan.to_string());
        let refused: Vec<_> = phase
            .refused
            .iter()
            .map(|(name, count)| format!("{name} {}", number(*count)))
            .collect();
        let file = phase.file.as_ref().map(|file| {
            let same =
                if file.sent_sha256 == file.received_sha256 { "the same" } else { "ANOTHER" };
            format!("{} bytes, SHA-256 {}, received {same}", number(file.bytes), file.sent_sha256)
        });
        let facts = [
            ("queue pair", format!("{} of {}", phase.qpn, escape(&phase.from))),
            ("path MTU", phase.path_mtu.to_string()),
            ("first PSN", format!("{:06x}", phase.first_psn)),
            ("network", format!("IPv{}, VLAN {vlan}", phase.ip)),
            ("outstanding", format!("{} at most", phase.outstanding)),
            ("took", some_duration(phase.duration_ns)),
            ("slowest message", some_duration(phase.latency_ns.max)),
            ("frames", number(phase.frames)),
            ("refused", refused.join(", ")),
            ("file", file.unwrap_or_default()),
        ];
        out.push_str("<dl class=\"facts\">\n");
        for (name, value) in facts.into_iter().filter(|(_, value)| !value.is_empty()) {
            let _ = writeln!(out, "<div><dt>{name}</dt><dd>{value}</dd></div>");
        }
        out.push_str("</dl>\n");
    }

    fn counters(&self, out: &mut String) {
        out.push_str("<section id=\"counters\">\n<h2>Counters</h2>\n");
        let mut sources: BTreeMap<&str, Vec<&NodeReport>> = BTreeMap::new();
        for node in &self.report.nodes {
            sources.entry(node.source).or_default().push(node);
        }
        out.push_str("<div class=\"columns\">\n");
        for (source, nodes) in &sources {
            let names =
                nodes.iter().map(|node| format!("<th class=\"n\">{}</th>", escape(&node.name)));
            let _ = write!(
                out,
                "<div class=\"wide\"><table>\n<caption>read from {}; those that are 0 everywhere are left \
                 out</caption>\n<thead><tr><th>counter</th>{}</tr></thead>\n<tbody>\n",
                escape(source),
                names.collect::<String>()
            );
            for row in 0..nodes.first().map_or(0, |node| node.counters.len()) {
                let values: Vec<_> =
                    nodes.iter().filter_map(|node| node.counters.get(row)).collect();
                let Some((name, _)) = values.iter().find(|(_, value)| *value > 0) else { continue };
                let cells = values
                    .iter()
                    .map(|(_, value)| format!("<td class=\"n\">{}</td>", number(*value)));
                let cells = cells.collect::<String>();
                let _ = writeln!(out, "<tr><td><code>{}</code></td>{cells}</tr>", escape(name));
            }
            out.push_str("</tbody></table></div>\n");
        }
        out.push_str("</div>\n");
        self.refusals(out);
        out.push_str("</section>\n");
    }

    fn refusals(&self, out: &mut String) {
        let nodes = &self.report.nodes;
        if nodes.iter().all(|node| node.refused.is_empty()) {
            return;
        }
        let names = nodes.iter().map(|node| format!("<th class=\"n\">{}</th>", escape(&node.name)));
        let _ = write!(
            out,
            "<div class=\"wide\"><table>\n<caption>frames and requests that a device refused, by reason</caption>\n\
             <thead><tr><th>reason</th>{}<th>in words</th><th>what to do</th></tr></thead>\n<tbody>\n",
            names.collect::<String>()
        );
        for row in REASON_ROWS {
            let counts =
                || nodes.iter().map(|node| node.refused.get(row.name).copied().unwrap_or(0));
            if counts().all(|count| count == 0) {
                continue;
            }
            let cells = counts().map(|count| format!("<td class=\"n\">{}</td>", number(count)));
            let cells = cells.collect::<String>();
            let (text, advice) = (escape(row.text), escape(row.advice));
            let _ = writeln!(
                out,
                "<tr><td><code>{}</code></td>{cells}<td>{text}</td><td>{advice}</td></tr>",
                row.name
            );
        }
        out.push_str("</tbody></table></div>\n");
    }

    fn world(&self, out: &mut String) {
        out.push_str(
            "<section id=\"world\">\n<h2>Nodes and links</h2>\n<div class=\"columns\">\n<div class=\"wide\"><table>\n\
             <thead><tr><th>node</th><th>face</th><th>IPv4</th><th>IPv6</th></tr></thead>\n<tbody>\n",
        );
        for node in &self.report.nodes {
            let _ = writeln!(
                out,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                escape(&node.name),
                format!("{:?}", node.face).to_lowercase(),
                node.ipv4,
                node.ipv6
            );
        }
        out.push_str(
            "</tbody></table></div>\n<div class=\"wide\"><table>\n<thead><tr><th>link</th><th class=\"n\">rate</th>\
             <th class=\"n\">latency</th><th class=\"n\">MTU</th></tr></thead>\n<tbody>\n",
        );
        for link in &self.scenario.links {
            let name = |i: usize| {
                let node = self.scenario.nodes.get(link.between[i]);
                escape(node.map_or("?", |node| node.name.as_str()))
            };
            let _ = writeln!(
                out,
                "<tr><td>{} \u{2013} {}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
                name(0),
                name(1),
                bit_rate(link.config.rate_bits_per_s),
                duration(link.config.latency_ns),
                number(link.config.mtu as u64)
            );
        }
        out.push_str("</tbody></table></div>\n</div>\n</section>\n");
    }

    fn bug_report(&self, out: &mut String) {
        let _ = write!(
            out,
            "<section id=\"text\">\n<h2>As text, for a bug report</h2>\n<details>\n<summary>Verdict, failures and \
             the first ladder</summary>\n<pre class=\"copy\">{}</pre>\n</details>\n</section>\n",
            escape(&summary::text(self))
        );
    }
}

/// Text as HTML.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // Nothing that a browser would stumble over.
            '\n' | '\t' => escaped.push(letter),
            letter if letter.is_control() => escaped.push('\u{fffd}'),
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// An integer, its digits in groups that a line does not break.
fn number(value: u64) -> String {
    grouped(value).replace(' ', "\u{202f}")
}

/// Nanoseconds as microseconds with all their digits.
fn micros(ns: u64) -> String {
    format!("{}.{:03}\u{a0}\u{b5}s", number(ns / 1000), ns % 1000)
}

/// Nanoseconds in the unit that suits them.
fn duration(ns: u64) -> String {
    let (unit, scale) = match ns {
        0..1_000 => return format!("{ns}\u{a0}ns"),
        1_000..1_000_000 => ("\u{b5}s", 1e3),
        1_000_000..1_000_000_000 => ("ms", 1e6),
        _ => ("s", 1e9),
    };
    let value = ns as f64 / scale;
    let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.decimals$}\u{a0}{unit}")
}

/// Nothing where nothing was measured.
fn some_duration(ns: u64) -> String {
    if ns == 0 { String::new() } else { duration(ns) }
}

/// Bits per second in the unit that suits them.
fn bit_rate(bits_per_s: u64) -> String {
    let (unit, scale) = match bits_per_s {
        0..1_000_000 => ("kbit/s", 1e3),
        1_000_000..1_000_000_000 => ("Mbit/s", 1e6),
        _ => ("Gbit/s", 1e9),
    };
    let value = bits_per_s as f64 / scale;
    let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.decimals$}\u{a0}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escape("<b a=\"1\">&\u{1b}"), "&lt;b a=&quot;1&quot;&gt;&amp;\u{fffd}");
    }

    #[test]
    fn quantities_have_the_unit_that_suits_them() {
        assert_eq!(duration(999), "999\u{a0}ns");
        assert_eq!(duration(2_020), "2.02\u{a0}\u{b5}s");
        assert_eq!(duration(1_048_576), "1.05\u{a0}ms");
        assert_eq!(duration(123_000_000_000), "123\u{a0}s");
        assert_eq!(bit_rate(97_230_000_000), "97.2\u{a0}Gbit/s");
        assert_eq!(micros(5_834_960), "5\u{202f}834.960\u{a0}\u{b5}s");
    }
}
