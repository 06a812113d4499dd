//! The control socket: a line of JSON for each request, one for each answer: `{"ok": ...}` or
//! `{"error": "..."}`. What `rnic show --socket` and `rnic fault` speak.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};
use softrnic_device::Memory;

use super::state::{Described, ServeState};
use super::{Asker, Served, Stopped};

/// Longest request in bytes.
const REQUEST_MAX: u64 = 64 * 1024;

/// What can be asked, for help and documents: the request and one sentence.
pub const COMMANDS: &[(&str, &str)] = &[
    (r#"{"command": "state"}"#, "everything"),
    (r#"{"command": "counters"}"#, "counters of device, link, port and faults; refusals by reason"),
    (r#"{"command": "queue-pairs"}"#, "queue pairs"),
    (r#"{"command": "regions"}"#, "memory regions"),
    (r#"{"command": "neighbours"}"#, "whom the port knows"),
    (r#"{"command": "link"}"#, "the link, and whether it is up"),
    (r#"{"command": "faults"}"#, "fault rules and how often they fired"),
    (r#"{"command": "fault", "rule": 1, "on": false}"#, "switches a fault rule off or on"),
    (r#"{"command": "stop"}"#, "ends the process as SIGTERM does"),
];

#[derive(Debug, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
enum Request {
    State,
    Counters,
    QueuePairs,
    Regions,
    Neighbours,
    Link,
    Faults,
    Fault { rule: usize, on: bool },
    Stop,
}

/// Answers the requests of one connection, until it is closed or says what no request is.
pub(super) fn serve<D: Described<M> + 'static, M: Memory + 'static>(
    stream: &UnixStream,
    asker: &Asker<Served<D, M>>,
) {
    let mut lines = BufReader::new(stream);
    loop {
        let mut line = String::new();
        match lines.by_ref().take(REQUEST_MAX).read_line(&mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) if line.trim().is_empty() => continue,
            Ok(_) => {}
        }
        let request = if line.ends_with('\n') {
            serde_json::from_str(&line).map_err(|error| error.to_string())
        } else {
            Err(format!("a request is one line of at most {REQUEST_MAX} bytes"))
        };
        let stop = matches!(request, Ok(Request::Stop));
        let answer = request.and_then(|request| answer(&request, asker));
        let answer =
            answer.map_or_else(|error| json!({ "error": error }), |ok| json!({ "ok": ok }));
        let mut out = stream;
        let written = writeln!(out, "{answer}");
        if stop {
            // After the answer, which might not get out of a process that ends. It may have ended already.
            let _ = asker.tell(Served::stop);
        }
        if written.is_err() || !line.ends_with('\n') {
            return;
        }
    }
}

fn answer<D: Described<M> + 'static, M: Memory + 'static>(
    request: &Request,
    asker: &Asker<Served<D, M>>,
) -> Result<Value, String> {
    let stopped = |error: Stopped| error.to_string();
    let state = || asker.ask(|owned| owned.state()).map_err(stopped);
    match request {
        Request::State => Ok(json!(state()?)),
        Request::Counters => {
            let ServeState { mut world, link, port, fault_frames, .. } = state()?;
            let device = world.devices.pop().ok_or("no device")?;
            Ok(json!({
                "device": device.counters,
                "refused": device.refused,
                "faults": device.faults,
                "link": link.counters,
                "port": port,
                "fault_frames": fault_frames,
            }))
        }
        Request::QueuePairs => Ok(json!(state()?.world.devices.pop().map(|d| d.queue_pairs))),
        Request::Regions => Ok(json!(state()?.world.devices.pop().map(|d| d.regions))),
        Request::Neighbours => Ok(json!(state()?.neighbours)),
        Request::Link => Ok(json!(state()?.link)),
        Request::Faults => Ok(json!(state()?.fault_rules)),
        &Request::Fault { rule, on } => {
            let switch = move |owned: &mut Served<D, M>| {
                let faults = owned.station.faults_mut();
                let known = faults.rules().len();
                let there = rule.checked_sub(1).is_some_and(|rule| faults.switch(rule, on));
                there.then_some(()).ok_or(known)
            };
            asker.ask(switch).map_err(stopped)?.map_err(|known| match known {
                0 => "there are no fault rules: start with --faults FILE".to_owned(),
                _ => format!("there is no rule {rule}: they are numbered 1 to {known}"),
            })?;
            Ok(json!({ "rule": rule, "on": on }))
        }
        Request::Stop => Ok(json!("stopping")),
    }
}

/// Asks a device process by its control socket, and waits for the answer.
///
/// # Errors
/// Nobody listens there, or the answer is an error.
pub fn ask_socket(path: &Path, request: &Value) -> io::Result<Value> {
    let mut stream = UnixStream::connect(path)?;
    writeln!(stream, "{request}")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    let mut answer: Value = serde_json::from_str(&line)?;
    match answer.get_mut("ok") {
        Some(ok) => Ok(ok.take()),
        None => {
            let error = answer.get("error").and_then(Value::as_str).unwrap_or("no answer");
            Err(io::Error::other(error.to_owned()))
        }
    }
}
