//! Brings up an ERNIC on a PCI card and prints its counters.
//!
//! ```text
//! cargo run -p softrnic-host --example ernic_card -- \
//!     /sys/bus/pci/devices/0000:01:00.0/resource2 /dev/hugepages/rnic pagemap
//! ```
//!
//! The third argument is `pagemap`, or the bus address at which the memory file begins. A fourth is
//! the ERNIC's offset in the BAR. Without a card, two plain files will do:
//!
//! ```text
//! truncate -s 2M registers; truncate -s 16M memory
//! cargo run -p softrnic-host --example ernic_card -- registers memory 0x80000000
//! ```

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

use softrnic_driver::{DeviceConfig, Ernic, Map};
use softrnic_host::pci::{BusAddresses, CardFiles, PciCard};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let (resource, memory, bus, offset) = match arguments {
        [resource, memory, bus] => (resource, memory, bus, "0"),
        [resource, memory, bus, offset] => (resource, memory, bus, offset.as_str()),
        _ => return Err("usage: ernic_card RESOURCE MEMORY pagemap|BUS_ADDRESS [OFFSET]".into()),
    };
    let card = PciCard::open(&CardFiles {
        resource: resource.into(),
        register_offset: number(offset)?,
        memory: memory.into(),
        bus: match bus.as_str() {
            "pagemap" => BusAddresses::Pagemap,
            address => BusAddresses::From(number(address)?),
        },
    })?;
    let config = DeviceConfig {
        mac: [0x02, 0, 0, 0, 0, 1],
        ipv4: [192, 168, 100, 1].into(),
        ..DeviceConfig::default()
    };
    // Hardware keeps queue pair slots one further up than the chapter says.
    let mut ernic = Ernic::bring_up(card, Map::V4_0_SILICON, &config)?;
    let counters = ernic.counters();
    // The card must not write to memory that is no longer mapped.
    ernic.shut_down();
    let text: String =
        counters.iter().map(|(name, value)| format!("{name:32} {value}\n")).collect();
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|error| format!("{text}: {error}; give a decimal number, or 0x and hex digits"))
}
