//! Counters as Prometheus reads them: OpenMetrics text over HTTP, made from the state at each scrape.
//!
//! The names of a device's counters are those of the engine's table, with `softrnic_` before them.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Metric, Registry};
use softrnic_device::Memory;
use softrnic_engine::COUNTER_ROWS;

use super::state::{Described, ServeState};
use super::{Asker, Served};

/// Longest request head in bytes.
const HEAD_MAX: usize = 8 * 1024;
/// How long a scraper may take for its request and for the answer, each.
const PATIENCE: Duration = Duration::from_secs(5);
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Labels = Vec<(&'static str, String)>;
type Counters = Family<Labels, Counter<u64, AtomicU64>>;
type Gauges = Family<Labels, Gauge<f64, AtomicU64>>;

/// Answers one HTTP request.
pub(super) fn serve<D: Described<M> + 'static, M: Memory + 'static>(
    mut stream: TcpStream,
    asker: &Asker<Served<D, M>>,
) {
    let answered = stream.set_read_timeout(Some(PATIENCE)).and_then(|()| {
        stream.set_write_timeout(Some(PATIENCE))?;
        let head = head(&mut stream)?;
        let (status, kind, body) = match path(&head) {
            Err(status) => (status, "text/plain", format!("{status}\n")),
            Ok("/metrics") => match asker.ask(|owned| owned.state()) {
                Ok(state) => ("200 OK", CONTENT_TYPE, text(&state)),
                Err(stopped) => ("503 Service Unavailable", "text/plain", format!("{stopped}\n")),
            },
            Ok(_) => ("404 Not Found", "text/plain", "metrics are at /metrics\n".to_owned()),
        };
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
    });
    if let Err(error) = answered {
        tracing::debug!("a scraper went away: {error}");
    }
}

/// A request's head, without its body.
fn head(stream: &mut impl Read) -> io::Result<String> {
    let mut head = Vec::new();
    let mut part = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let len = stream.read(&mut part)?;
        if len == 0 || head.len() + len > HEAD_MAX {
            break;
        }
        head.extend_from_slice(&part[..len]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// What a request asks for, without its query.
fn path(head: &str) -> Result<&str, &'static str> {
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    match (words.next(), words.next(), words.next()) {
        (Some("GET"), Some(target), Some(version)) if version.starts_with("HTTP/1.") => {
            Ok(target.split('?').next().unwrap_or_default())
        }
        (Some(_), Some(_), Some(version)) if version.starts_with("HTTP/1.") => {
            Err("405 Method Not Allowed")
        }
        _ => Err("400 Bad Request"),
    }
}

/// The metrics, and their names.
struct Page {
    registry: Registry,
    device: String,
}

impl Page {
    fn labels(&self, more: Option<(&'static str, &str)>) -> Labels {
        let device = ("device", self.device.clone());
        [device].into_iter().chain(more.map(|(key, value)| (key, value.to_owned()))).collect()
    }

    fn register(&mut self, name: &str, help: &str, metric: impl Metric) {
        // The registry ends the sentence itself.
        self.registry.register(name, help.trim_end_matches('.'), metric);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.counters(name, help, None, [("", value)]);
    }

    /// One counter for each value of a label.
    fn counters<'a>(
        &mut self,
        name: &str,
        help: &str,
        label: Option<&'static str>,
        values: impl IntoIterator<Item = (&'a str, u64)>,
    ) {
        let family = Counters::default();
        for (of, value) in values {
            family.get_or_create(&self.labels(label.map(|label| (label, of)))).inc_by(value);
        }
        self.register(name, help, family);
    }

    /// One gauge for each value of a label.
    fn gauges<'a>(
        &mut self,
        name: &str,
        help: &str,
        label: Option<&'static str>,
        values: impl IntoIterator<Item = (&'a str, f64)>,
    ) {
        let family = Gauges::default();
        for (of, value) in values {
            family.get_or_create(&self.labels(label.map(|label| (label, of)))).set(value);
        }
        self.register(name, help, family);
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.gauges(name, help, None, [("", value)]);
    }
}

/// Everything as OpenMetrics text.
fn text(state: &ServeState) -> String {
    let Some(device) = state.world.devices.first() else { return String::new() };
    let registry = Registry::with_prefix("softrnic");
    let mut page = Page { registry, device: device.name.clone() };
    page.gauge("uptime_seconds", "Time since the device started", state.world.at_ns as f64 / 1e9);
    for row in COUNTER_ROWS {
        let value = device.counters.get(row.name).copied().unwrap_or(0);
        page.counter(row.name, row.text, value);
    }
    let pairs = |map: &BTreeMap<String, u64>| {
        map.iter().map(|(name, value)| (name.clone(), *value)).collect::<Vec<_>>()
    };
    for (name, help, values) in [
        ("refused", "Packets, commands and work requests refused, by reason", &device.refused),
        ("device_faults", "Faults met in the device's own queues and memory", &device.faults),
    ] {
        let values = pairs(values);
        let values = values.iter().map(|(reason, value)| (reason.as_str(), *value));
        page.counters(name, help, Some("reason"), values);
    }
    page.gauge("link_up", "Whether the link is open", f64::from(u8::from(state.link.up)));
    page.counter("link_lost", "How often the link went away", state.link.lost);
    for (part, counters) in [
        ("link", &state.link.counters),
        ("port", &state.port),
        ("fault_frames", &state.fault_frames),
    ] {
        for (name, value) in counters {
            let help = format!("{} of the {}", name.replace('_', " "), part.replace('_', " "));
            page.counter(&format!("{part}_{name}"), &help, *value);
        }
    }
    let rules: Vec<_> =
        state.fault_rules.iter().map(|r| (r.rule.to_string(), r.fired, r.on)).collect();
    let fired = rules.iter().map(|(rule, fired, _)| (rule.as_str(), *fired));
    page.counters("fault_fired", "How often a fault rule fired", Some("rule"), fired);
    let on = rules.iter().map(|(rule, _, on)| (rule.as_str(), f64::from(u8::from(*on))));
    page.gauges("fault_on", "Whether a fault rule is in force", Some("rule"), on);
    let count = |states: Vec<&str>| {
        let mut count = BTreeMap::new();
        states.iter().for_each(|state| *count.entry((*state).to_owned()).or_insert(0.0) += 1.0);
        count
    };
    for (name, help, states) in [
        (
            "queue_pairs",
            "Queue pairs by state",
            device.queue_pairs.iter().map(|qp| qp.state.as_str()).collect(),
        ),
        (
            "neighbours",
            "Neighbours by state",
            state.neighbours.iter().map(|n| n.state.as_str()).collect(),
        ),
    ] {
        let count: BTreeMap<String, f64> = count(states);
        let values = count.iter().map(|(state, count)| (state.as_str(), *count));
        page.gauges(name, help, Some("state"), values);
    }
    page.gauge("memory_regions", "Memory regions", device.regions.len() as f64);
    let mut text = String::new();
    // A String takes everything.
    let _ = encode(&mut text, &page.registry);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_none_gets_a_status() {
        assert_eq!(path("GET /metrics?x=1 HTTP/1.1\r\n"), Ok("/metrics"));
        assert_eq!(path("POST /metrics HTTP/1.1\r\n"), Err("405 Method Not Allowed"));
        for wrong in ["", "GET", "GET /metrics", "GET / SPDY/3\r\n", "\u{0}\u{1}"] {
            assert_eq!(path(wrong), Err("400 Bad Request"), "{wrong:?}");
        }
    }

    #[test]
    fn a_request_without_end_is_not_read_for_ever() {
        assert!(head(&mut io::repeat(b'x')).unwrap().len() <= HEAD_MAX);
        assert_eq!(head(&mut io::empty()).unwrap(), "");
    }
}
