//! What must hold for any text as a scenario file, and for any fault rules over any frames: the bodies
//! of the fuzz targets `scenario` and `faults`, and of the tests that replay their corpora.

use softrnic_engine::Nanos;
use softrnic_sim::Scenario;
use softrnic_sim::fault::{Direction, Injector};

/// Nodes, a link and a phase, for `[[fault]]` tables to be put behind.
pub const HEAD: &str = "[[node]]\nname = \"a\"\nface = \"native\"\nmac = \"02:00:00:00:00:01\"\n\
    ipv4 = \"192.0.2.1\"\nipv6 = \"2001:db8::1\"\n[[node]]\nname = \"b\"\nface = \"ernic\"\n\
    mac = \"02:00:00:00:00:02\"\nipv4 = \"192.0.2.2\"\nipv6 = \"2001:db8::2\"\n[[link]]\n\
    between = [\"a\", \"b\"]\n[[phase]]\nname = \"p\"\nfrom = \"a\"\nto = \"b\"\n\
    operation = \"send\"\ncount = 1\nsize = 64\n";

/// Any bytes as a scenario file: rules that it has, or an error that says where. Returns whether it is
/// a scenario.
pub fn check_scenario(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let scenario = match Scenario::parse("any.toml", text) {
        Ok(scenario) => scenario,
        Err(error) => {
            assert!(error.line >= 1 && error.line <= text.matches('\n').count() + 1, "{error}");
            assert!(error.column >= 1 && !error.message.is_empty(), "{error}");
            return false;
        }
    };
    let nodes: Vec<_> = scenario.nodes.iter().map(|node| node.name.as_str()).collect();
    let phases: Vec<_> = scenario.phases.iter().map(|phase| phase.name.as_str()).collect();
    assert_eq!(scenario.fault_labels().len(), scenario.faults.0.len());
    // Rules that are written out mean the same when they are read again, but that a name may be used
    // twice, and the loss of a link comes from elsewhere.
    let unique = (1..phases.len()).all(|i| !phases[..i].contains(&phases[i]));
    if unique && !text.contains("loss") {
        let rules = scenario.faults.to_toml(&nodes, &phases);
        let cut = text.find("[[fault]]").unwrap_or(text.len());
        if let Ok(again) = Scenario::parse("again.toml", &format!("{}{rules}", &text[..cut])) {
            assert_eq!(again.faults, scenario.faults, "{rules}");
        }
    }
    true
}

/// Fault rules as text up to the first 0, then frames: each starts with its length in one byte, of
/// which the highest bit is its direction. Returns how many rules fired.
pub fn check_faults(bytes: &[u8]) -> u64 {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let Ok(text) = std::str::from_utf8(&bytes[..end]) else { return 0 };
    let Ok(scenario) = Scenario::parse("any.toml", &format!("{HEAD}{text}")) else { return 0 };
    let rules = scenario.faults.0.len();
    let play = || {
        let mut injector = Injector::new(scenario.faults.clone(), 7);
        injector.start_phase(0, Nanos(0));
        let mut outcomes = Vec::new();
        let mut rest = bytes.get(end + 1..).unwrap_or(&[]);
        while let Some((&first, tail)) = rest.split_first() {
            let len = usize::from(first & 0x7F).min(tail.len());
            let mut frame = tail[..len].to_vec();
            rest = &tail[len..];
            let direction = if first & 0x80 == 0 { Direction::Out } else { Direction::In };
            let now = Nanos(outcomes.len() as u64 * 100);
            let outcome = injector.frame(now, direction, outcomes.len() % 2, &mut frame);
            assert!(outcome.len <= len, "{outcome:?}");
            assert!(outcome.lost.is_none_or(|rule| outcome.fired.contains(&rule)), "{outcome:?}");
            assert!(outcome.fired.iter().all(|&rule| rule < rules), "{outcome:?}");
            outcomes.push((outcome, frame));
        }
        let tallies: Vec<_> = injector.tallies().cloned().collect();
        assert!(tallies.iter().all(|tally| tally.fired <= tally.matched));
        (outcomes, tallies)
    };
    let first = play();
    assert!(first == play(), "the same rules, seed and frames give the same");
    first.1.iter().map(|tally| tally.fired).sum()
}
