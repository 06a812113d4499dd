//! `report.html` as `rnic run` writes it: what must be in it, the same bytes twice, and no more than
//! people can read.
#![allow(clippy::unwrap_used, reason = "a test that cannot run its subject should fail")]

use std::fs;
use std::path::Path;
use std::process::Command;

const TROUBLE: &str = include_str!("../../e2e/trouble.toml");

/// The page of a run, and whether the run passed.
fn page(test: &str, scenario: &str) -> (String, bool) {
    let here = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("report-{test}"));
    fs::create_dir_all(&here).unwrap();
    fs::write(here.join("s.toml"), scenario).unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_rnic"));
    let output = run.current_dir(&here).args(["run", "s.toml"]).output().unwrap();
    (fs::read_to_string(here.join("rnic-out/report.html")).unwrap(), output.status.success())
}

#[test]
fn each_kind_of_trouble_has_its_packets_and_their_fields() {
    let (page, passed) = page("trouble", TROUBLE);
    assert!(!passed && page.contains("<p class=\"verdict failed\">FAILED</p>"));
    for part in [
        "lost: by fault 1",
        "nak: psn_sequence",
        "refused: implied_nak",
        "timeout: the ACK timer expired. Unacknowledged since PSN 000000, retry 1 of 3",
        "error: message 0 failed",
        "ms pass",
        " more like these, PSN ",
        "rnic run s.toml --seed 3",
        "A packet before this one is missing",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(page.matches("class=\"ladder\"").count() >= 5);
    // Every packet of a ladder has its headers in the page.
    let packets = page.matches("<details class=\"rung").count();
    assert!(packets > 50);
    assert_eq!(page.matches("<b>BTH</b>").count(), packets);
    assert_eq!(page.matches("<b>ICRC</b>").count(), packets);
    assert_eq!(page.matches("<figure class=\"chart\"").count(), 9);
}

#[test]
fn the_page_follows_from_the_seed_and_needs_nothing_from_elsewhere() {
    let (first, _) = page("one", TROUBLE);
    let (second, _) = page("two", TROUBLE);
    assert!(first == second, "two runs differ");
    let (other, _) = page("other", &TROUBLE.replace("seed = 3", "seed = 4"));
    assert!(first != other, "the seed has no effect");
    let without_svg = first.replace("http://www.w3.org/2000/svg", "");
    for word in ["http:", "https:", "src=", "@import", "url("] {
        assert!(!without_svg.contains(word), "{word}");
    }
}

#[test]
fn five_times_the_trouble_is_no_five_times_longer_page() {
    let small = page("small", TROUBLE).0.len();
    let many = TROUBLE.replace("count = 200", "count = 1000").replace("loss = 0.02", "loss = 0.1");
    let large = page("large", &many).0.len();
    assert!(small < 1 << 20 && large < small * 2, "{small} and {large} bytes");
}

#[test]
fn names_from_the_scenario_cannot_become_markup() {
    let name = "name = \"<script>alert(1)</script>&\"";
    let scenario =
        TROUBLE.replace("name = \"READ\"", name).replace("name = \"A lossy", "name = \"<b>\\u001b");
    let (page, _) = page("markup", &scenario);
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;&amp;"));
    assert!(!page.contains("<script>alert") && !page.contains("<b>\u{1b}"));
}

#[test]
fn a_phase_that_fails_is_shown_however_much_happened_before() {
    let (head, _) = TROUBLE.split_once("[[phase]]").unwrap();
    let phase = "[[phase]]\nfrom = \"alpha\"\nto = \"beta\"\noperation = \"send\"\nsize = 4000\ncount = 50\n\
                 path_mtu = 1024\nloss = 0.05\n";
    let last = "[[phase]]\nname = \"the last\"\nfrom = \"alpha\"\nto = \"beta\"\noperation = \"write\"\nsize = 64\n\
                count = 1\n[[fault]]\naction = \"corrupt\"\nphase = \"the last\"\nnode = \"alpha\"\n\
                field = \"payload\"\nvalue = 0\nicrc = \"redo\"\n";
    let (page, passed) = page("last", &format!("{head}{}{last}", phase.repeat(10)));
    assert!(!passed);
    let (_, end) = page.split_once("<section id=\"phase-11\"").unwrap();
    assert!(end.contains("<h4>the last packets before the phase failed</h4>"));
    assert!(end.contains("bytes differ") && end.contains("WRITE_ONLY"));
    assert!(page.matches("class=\"ladder\"").count() <= 36);
}

#[test]
fn a_fault_at_the_face_is_a_row_beside_the_packets() {
    let (head, _) = TROUBLE.split_once("[[phase]]").unwrap();
    let phase = "[[phase]]\nfrom = \"alpha\"\nto = \"beta\"\noperation = \"write\"\nsize = 64\ncount = 8\n\
                 [[fault]]\naction = \"hold_completion\"\nnode = \"alpha\"\nfor_ns = 50000\nnth = 3\n";
    let (page, passed) = page("face", &format!("{head}{phase}"));
    assert!(passed);
    assert!(page.contains("<div class=\"row remark fault\">"));
    assert!(page.contains("alpha: fault 1, hold completion for 50000 ns"));
}
