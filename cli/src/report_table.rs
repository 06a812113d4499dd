//! A run's report as tables for people.
//!
//! Formats what it is given; computes nothing but sums and units.

use std::collections::BTreeSet;
use std::io::{self, Write};

use softrnic_engine::Reason;
use softrnic_sim::{FaultReport, NodeReport, PhaseReport, RefusedPacket, Report};

use crate::run::Speed;

/// Prints phases, failures and counters.
pub(crate) fn print(
    out: &mut impl Write,
    report: &Report,
    speeds: &[Speed],
    build: &str,
) -> io::Result<()> {
    writeln!(out, "{}\n", report.scenario)?;
    let width = report.phases.iter().map(|phase| phase.name.chars().count()).max().unwrap_or(0);
    writeln!(
        out,
        "{:width$}  {:>8}  {:>10}  {:>6}  {:>10}  {:>10}  {:>8}  | {:>9}  {:>8}",
        "", "", "", "re-", "latency", "", "goodput", "this core", ""
    )?;
    writeln!(
        out,
        "{:width$}  {:>8}  {:>10}  {:>6}  {:>10}  {:>10}  {:>8}  | {:>9}  {:>8}",
        "phase", "messages", "bytes", "sent", "p50 us", "p99 us", "Gbit/s", "k msg/s", "Gbit/s"
    )?;
    for (phase, speed) in report.phases.iter().zip(speeds) {
        writeln!(
            out,
            "{:width$}  {:>8}  {:>10}  {:>6}  {:>10.2}  {:>10.2}  {:>8.2}  | {:>9.1}  {:>8.2}{}",
            phase.name,
            grouped(phase.messages),
            grouped(phase.bytes),
            grouped(phase.retransmissions),
            phase.latency_ns.p50 as f64 / 1e3,
            phase.latency_ns.p99 as f64 / 1e3,
            phase.goodput_bits_per_s as f64 / 1e9,
            speed.messages_per_s / 1e3,
            speed.gbit_per_s,
            if phase.failure_count > 0 { "  FAILED" } else { "" },
        )?;
    }
    writeln!(
        out,
        "\nLatency and goodput are virtual time. \"This core\" is real time in devices, drivers and the\n\
         virtual wire, both ends on one thread, with cold caches between frames ({build} build);\n\
         `cargo bench` measures the engine with more care."
    )?;
    report.phases.iter().try_for_each(|phase| print_phase_details(out, phase))?;
    print_faults(out, &report.faults)?;
    print_refused(out, report)?;
    print_counters(out, &report.nodes)
}

/// An integer with a space between groups of three digits.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

fn print_phase_details(out: &mut impl Write, phase: &PhaseReport) -> io::Result<()> {
    if let Some(file) = &phase.file {
        writeln!(out, "\n{}: {} ({} bytes)", phase.name, file.name, grouped(file.bytes))?;
        writeln!(out, "  sent      sha256 {}", file.sent_sha256)?;
        writeln!(out, "  received  sha256 {}", file.received_sha256)?;
    }
    if phase.failure_count > 0 {
        writeln!(
            out,
            "\n{}: FAILED, {} of {} messages are right",
            phase.name,
            grouped(phase.messages),
            grouped(phase.expected_messages)
        )?;
        for failure in &phase.failures {
            writeln!(out, "  {failure}")?;
        }
        let more = phase.failure_count.saturating_sub(phase.failures.len() as u64);
        if more > 0 {
            writeln!(out, "  and {} more", grouped(more))?;
        }
    }
    Ok(())
}

/// Refused packets of a phase that are shown.
const REFUSED_SHOWN: usize = 4;

/// Refused packets one by one, and what the reasons mean.
fn print_refused(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let mut reasons = BTreeSet::new();
    for phase in report.phases.iter().filter(|phase| !phase.refused.is_empty()) {
        if reasons.is_empty() {
            writeln!(out, "\nrefused packets")?;
        }
        for packet in phase.refused_packets.iter().take(REFUSED_SHOWN) {
            let RefusedPacket { at_ns, from, to, reason, .. } = packet;
            let (seconds, ns) = (at_ns / 1_000_000_000, at_ns % 1_000_000_000);
            write!(out, "  {seconds}.{ns:09} s  {from} > {to}  {reason}")?;
            if let (Some(opcode), Some(qpn), Some(psn)) = (&packet.opcode, packet.qpn, packet.psn) {
                write!(out, "  {opcode}  QP {qpn:#x} PSN {psn:#08x}")?;
            }
            writeln!(out, "  ({})", phase.name)?;
        }
        let all: u64 = phase.refused.values().sum();
        let more = all - phase.refused_packets.len().min(REFUSED_SHOWN) as u64;
        if more > 0 {
            let list: Vec<_> =
                phase.refused.iter().map(|(name, count)| format!("{name} {count}")).collect();
            writeln!(
                out,
                "  and {} more, in all {}  ({})",
                grouped(more),
                list.join(", "),
                phase.name
            )?;
        }
        reasons.extend(phase.refused.keys().copied());
    }
    for row in reasons.into_iter().filter_map(Reason::by_name).map(Reason::row) {
        writeln!(out, "  {}: {} {}", row.name, row.text, row.advice)?;
    }
    Ok(())
}

/// Firings of a rule that are printed; all are in the report.
const FIRINGS_SHOWN: usize = 3;

/// Each rule with its first firings; one that never fired says why, as far as that is known.
fn print_faults(out: &mut impl Write, faults: &[FaultReport]) -> io::Result<()> {
    for (i, fault) in faults.iter().enumerate() {
        let above = if i == 0 { "\n" } else { "" };
        let times =
            if fault.fired == 1 { "once" } else { &format!("{} times", grouped(fault.fired)) };
        match (fault.fired, fault.matched) {
            (0, 0) => writeln!(out, "{above}{}: NEVER FIRED, nothing matched", fault.rule)?,
            (0, matched) => {
                let matched = grouped(matched);
                writeln!(out, "{above}{}: NEVER FIRED, {matched} matched", fault.rule)?;
            }
            _ => writeln!(out, "{above}{}: fired {times}", fault.rule)?,
        }
        for firing in fault.firings.iter().take(FIRINGS_SHOWN) {
            writeln!(out, "  {:>12} ns  {}  {}", firing.at_ns, firing.node, firing.what)?;
        }
        let more = fault.fired.saturating_sub(FIRINGS_SHOWN as u64);
        if more > 0 {
            writeln!(out, "  and {} more", grouped(more))?;
        }
    }
    Ok(())
}

/// One table for the nodes whose counters come from the same place and have the same names.
fn print_counters(out: &mut impl Write, nodes: &[NodeReport]) -> io::Result<()> {
    let mut sources: Vec<&str> = Vec::new();
    for node in nodes {
        if !sources.contains(&node.source) {
            sources.push(node.source);
        }
    }
    for source in sources {
        let nodes: Vec<_> = nodes.iter().filter(|node| node.source == source).collect();
        write!(out, "\n{:40}", format!("counters, read from {source}"))?;
        for node in &nodes {
            write!(out, "{:>12}", node.name)?;
        }
        writeln!(out)?;
        let rows = nodes.first().map_or(0, |node| node.counters.len());
        for row in 0..rows {
            let values: Vec<_> = nodes.iter().filter_map(|node| node.counters.get(row)).collect();
            if values.iter().all(|(_, value)| *value == 0) {
                continue;
            }
            write!(out, "  {:38}", values.first().map_or("", |(name, _)| *name))?;
            for (_, value) in values {
                write!(out, "{:>12}", grouped(*value))?;
            }
            writeln!(out)?;
        }
        for node in nodes.iter().filter(|node| !node.refused.is_empty()) {
            let refused: Vec<_> =
                node.refused.iter().map(|(name, count)| format!("{name} {count}")).collect();
            writeln!(out, "  refused by {}: {}", node.name, refused.join(", "))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn digits_are_grouped_by_three() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_000), "1 000");
        assert_eq!(grouped(12_345_678), "12 345 678");
    }
}
