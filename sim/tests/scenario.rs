//! A scenario file that cannot run says so before anything runs: file, line, column, key, way out.

use softrnic_sim::{DEFAULT_SCENARIO, Scenario};

const HEAD: &str = r#"
[[node]]
name = "a"
face = "ernic"
mac = "02:00:00:00:00:0a"
ipv4 = "192.0.2.10"
ipv6 = "2001:db8::a"

[[node]]
name = "b"
face = "native"
mac = "02:00:00:00:00:0b"
ipv4 = "192.0.2.11"
ipv6 = "2001:db8::b"

[[link]]
between = ["a", "b"]

"#;

fn error(phase: &str) -> String {
    match Scenario::parse("mine.toml", &format!("{HEAD}{phase}")) {
        Ok(_) => "no error".to_owned(),
        Err(error) => error.to_string(),
    }
}

fn phase(lines: &str) -> String {
    error(&format!("[[phase]]\nname = \"p\"\nfrom = \"a\"\nto = \"b\"\n{lines}"))
}

#[test]
fn the_embedded_scenario_is_valid_and_covers_what_it_promises() {
    let scenario = Scenario::parse("default.toml", DEFAULT_SCENARIO).unwrap();
    assert!(scenario.phases.iter().any(|p| p.ipv6));
    assert!(scenario.phases.iter().any(|p| p.vlan.is_some()));
    assert!(!scenario.faults.0.is_empty());
    assert!(scenario.phases.iter().any(|p| p.count > 3 * u64::from(p.rq_depth)));
    assert!(scenario.memory().iter().all(|&bytes| bytes < 200 << 20));
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_column() {
    insta::assert_snapshot!(phase("operation = \"send\"\ncuont = 3\nsize = 64"));
}

#[test]
fn values_out_of_range_are_named_with_the_way_out() {
    let lines = [
        "operation = \"send\"\nsize = 64\ncount = 0",
        "operation = \"sned\"\nsize = 64\ncount = 1",
        "operation = \"send\"\nsize = 9_000_000\ncount = 1",
        "operation = \"send\"\nsize = 0\ncount = 1",
        "operation = \"write\"\nsize = 64\ncount = 1\nrq_depth = 8",
        "operation = \"send\"\nsize = 600\ncount = 1\nrq_element_len = 512",
        "operation = \"send\"\nsize = 64\ncount = 1\nfile = \"x\"",
        "operation = \"read\"\nsize = 64\nfile = \"x\"",
        "operation = \"send\"\nsize = 64",
        "operation = \"send\"\nsize = 64\ncount = 1\npath_mtu = 1500",
        "operation = \"send\"\nsize = 64\ncount = 1\nip = 5",
        "operation = \"send\"\nsize = 64\ncount = 1\nvlan = 4095",
        "operation = \"send\"\nsize = 64\ncount = 1\nloss = 1.5",
        "operation = \"send\"\nsize = 64\ncount = 1\noutstanding = 1000\nrq_depth = 65535\nrq_element_len = 1048576",
    ];
    let errors: Vec<_> = lines.into_iter().map(phase).collect();
    insta::assert_snapshot!(errors.join("\n"));
}

#[test]
fn nodes_and_links_are_checked_too() {
    let ends = "operation = \"send\"\nsize = 64\ncount = 1";
    let errors = [
        error(""),
        error("[[phase]\n"),
        error(&format!("[[phase]]\nfrom = \"a\"\nto = \"x\"\n{ends}")),
        error(&format!("[[phase]]\nfrom = \"a\"\nto = \"a\"\n{ends}")),
        error("[[link]]\nbetween = [\"a\", \"b\"]"),
        error(
            "[[node]]\nname = \"a\"\nface = \"native\"\nmac = \"02:00:00:00:00:0c\"\nipv4 = \"192.0.2.12\"\nipv6 = \"::1\"",
        ),
        error(
            "[[node]]\nname = \"c\"\nface = \"native\"\nmac = \"02:00:00:00:00\"\nipv4 = \"192.0.2.12\"\nipv6 = \"::1\"",
        ),
        error(
            "[[node]]\nname = \"c\"\nface = \"native\"\nprofile = \"v4.0\"\nmac = \"02:00:00:00:00:0c\"\nipv4 = \"192.0.2.12\"\nipv6 = \"::1\"",
        ),
    ];
    insta::assert_snapshot!(errors.join("\n"));
}

#[test]
fn words_and_numbers_of_faults_are_checked_with_their_line_and_near_names() {
    let valid = "[[phase]]\nname = \"p\"\nfrom = \"a\"\nto = \"b\"\noperation = \"send\"\n\
                 count = 1\nsize = 64\n\n[[fault]]\n";
    let faults = [
        "node = \"a\"",
        "action = \"dorp\"",
        "action = \"drop\"\nnoed = \"a\"",
        "action = \"drop\"\nnode = \"c\"",
        "action = \"drop\"\nphase = \"q\"",
        "action = \"drop\"\ndirection = \"inn\"",
        "action = \"drop\"\nsyndrome = \"nack\"",
        "action = \"drop\"\nnth = 0",
        "action = \"drop\"\ntimes = 0",
        "action = \"drop\"\npsn = 0x1000000",
        "action = \"drop\"\nqp = 0x1000000",
        "action = \"drop\"\nprobability = 1.5",
        "action = \"drop\"\nfrom_ns = 5\nuntil_ns = 5",
        "action = \"drop\"\nby_ns = 5",
        "action = \"duplicate\"\ncopies = 0",
        "action = \"delay\"",
        "action = \"reorder\"\nbehind = 0",
        "action = \"corrupt\"\nfield = \"bth.psn\"\nbyte = 3",
        "action = \"corrupt\"\nvalue = 3\nflip = 3",
        "action = \"corrupt\"\nflip = 0",
        "action = \"corrupt\"\nicrc = \"redone\"",
        "action = \"truncate\"",
        "action = \"truncate\"\nto_len = 3\nby_len = 3",
        "action = \"hold_completion\"",
        "action = \"hold_completion\"\nfor_ns = 3\nqueue = \"sned\"",
        "action = \"dma_error\"\naccess = \"raed\"",
        "action = \"stall_receive\"\ndirection = \"in\"",
    ];
    let mut errors: Vec<_> = faults.iter().map(|fault| error(&format!("{valid}{fault}"))).collect();
    // The lists of all opcodes and fields are long: their ends will do.
    for fault in
        ["action = \"drop\"\nopcode = \"SEND_MIDLE\"", "action = \"corrupt\"\nfield = \"bth.pns\""]
    {
        let text = error(&format!("{valid}{fault}"));
        let (start, end) = (&text[..60], text.rsplit(", ").next().unwrap());
        errors.push(format!("{start} ... {end}"));
    }
    insta::assert_snapshot!(errors.join("\n"));
}
