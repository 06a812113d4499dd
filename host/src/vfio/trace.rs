//! The register trace: each access with the register's name, its fields' values, and what it caused at once.
//! This is what a driver's writer reads when bring-up stops.
//!
//! ```text
//!   1.204113 write 0x180238 SQPI of QP 2 = 0x00000003: index 0x3 -> work to send
//!   1.204290 write 0x180238 SQPI of QP 2 = 0x00000063: index 0x63 -> refused: ring_index_out_of_range (...)
//! ```

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Instant;

use softrnic_device::ernic::{Location, Map, Section};
use softrnic_engine::{REASON_ROWS, Reason};

use super::Registers;

/// Where accesses are written.
pub struct RegisterTrace {
    out: Box<dyn Write + Send>,
    start: Instant,
    line: String,
    /// Writing failed; nothing more is tried.
    failed: Option<io::Error>,
}

impl std::fmt::Debug for RegisterTrace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RegisterTrace").field("failed", &self.failed).finish_non_exhaustive()
    }
}

/// What a NIC looked like before an access.
#[derive(Debug)]
pub(super) struct Before {
    refused: [u64; Reason::COUNT],
    faults: [u64; Reason::COUNT],
    interrupt: bool,
    ready: bool,
}

impl Before {
    fn look(card: &mut impl Registers) -> Self {
        let interrupt = card.interrupt();
        let faults = *card.faults();
        let engine = card.engine_mut();
        Self { refused: *engine.refused(), faults, interrupt, ready: engine.has_ready() }
    }
}

impl RegisterTrace {
    /// Writes accesses here, one line each.
    #[must_use]
    pub fn new(out: Box<dyn Write + Send>) -> Self {
        Self { out, start: Instant::now(), line: String::new(), failed: None }
    }

    /// Why nothing is written any more.
    #[must_use]
    pub const fn failed(&self) -> Option<&io::Error> {
        self.failed.as_ref()
    }

    pub(super) fn read32(&mut self, card: &mut impl Registers, offset: u32) -> u32 {
        let before = Before::look(card);
        let value = card.read32(offset);
        self.access("read ", card, offset, value, &before);
        value
    }

    pub(super) fn write32(&mut self, card: &mut impl Registers, offset: u32, value: u32) {
        let before = Before::look(card);
        card.write32(offset, value);
        self.access("write", card, offset, value, &before);
    }

    fn access(
        &mut self,
        what: &str,
        card: &mut impl Registers,
        offset: u32,
        value: u32,
        before: &Before,
    ) {
        let after = Before::look(card);
        let time = self.start.elapsed();
        self.line.clear();
        let (seconds, micros) = (time.as_secs(), time.subsec_micros());
        let _ = write!(self.line, "{seconds:4}.{micros:06} {what} {offset:#08x} ");
        match card.locate(offset) {
            Ok((map, at)) => {
                let _ = write!(self.line, "{} = {value:#010x}", name(at));
                fields(&mut self.line, &map, at, value);
            }
            Err(other) => {
                let _ = write!(self.line, "{other} = {value:#010x}");
            }
        }
        caused(&mut self.line, before, &after);
        self.line.push('\n');
        if self.failed.is_none() {
            self.failed = self.out.write_all(self.line.as_bytes()).err();
            if let Some(error) = &self.failed {
                tracing::warn!("the register trace ends here: {error}");
            }
        }
    }
}

/// `SQPI of QP 2`, `BUFRKEY of region 0`, `RQINTSTS1`.
fn name(at: Location) -> String {
    let row = at.register.row();
    match row.section {
        Section::Region => format!("{} of region {}", row.name, at.index),
        Section::Qp | Section::RcQp => format!("{} of QP {}", row.name, at.index),
        Section::Global | Section::Status => row.name_of_word(at.index),
    }
}

fn fields(line: &mut String, map: &Map, at: Location, value: u32) {
    let profile = &map.profile;
    let own = (at.register, profile.table_value(at.register, value));
    let moved = profile.moved.iter().filter(|field| field.on == at.register);
    // What this register carries of others.
    let carried = moved.filter(|field| field.register != at.register);
    let others = carried.map(|field| (field.register, field.value(value)));
    let mut separator = ": ";
    for (register, value) in [own].into_iter().chain(others) {
        for field in register.row().fields {
            let is_moved = |field: u32| {
                register == at.register
                    || profile.moved.iter().any(|moved| {
                        moved.on == at.register
                            && moved.register == register
                            && moved.table_bits & field != 0
                    })
            };
            if !is_moved(field.mask()) {
                continue;
            }
            let field_value = field.of(value);
            let _ = write!(line, "{separator}{} {field_value:#x}", field.name);
            if let Some(meaning) = field.meaning(field_value) {
                let _ = write!(line, " ({meaning})");
            }
            separator = ", ";
        }
    }
}

fn caused(line: &mut String, before: &Before, after: &Before) {
    let mut separator = " -> ";
    let mut add = |text: std::fmt::Arguments<'_>| {
        let _ = write!(line, "{separator}{text}");
        separator = "; ";
    };
    for (kind, before, after) in
        [("refused", &before.refused, &after.refused), ("fault", &before.faults, &after.faults)]
    {
        for row in REASON_ROWS {
            let index = row.reason as usize;
            if before[index] != after[index] {
                add(format_args!("{kind}: {} ({} {})", row.name, row.text, row.advice));
            }
        }
    }
    match (before.ready, after.ready) {
        (false, true) => add(format_args!("work to send")),
        (true, false) => add(format_args!("no work to send")),
        _ => {}
    }
    match (before.interrupt, after.interrupt) {
        (false, true) => add(format_args!("interrupt line up")),
        (true, false) => add(format_args!("interrupt line down")),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use softrnic_device::Nic;
    use softrnic_device::ernic::{ErnicConfig, Profile};

    use super::*;
    use crate::vfio::{Ernic, GuestMemory};

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().map_err(|_| io::ErrorKind::Other)?.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Lines without their times.
    fn traced(profile: Profile, accesses: &[(u32, Option<u32>)]) -> Vec<String> {
        let config = ErnicConfig { profile, num_qp: 8, ..ErnicConfig::default() };
        let mut nic: Ernic = Nic::ernic(config, GuestMemory::new());
        let kept = Kept::default();
        let mut trace = RegisterTrace::new(Box::new(kept.clone()));
        for (offset, written) in accesses {
            match written {
                Some(value) => trace.write32(&mut nic, *offset, *value),
                None => drop(trace.read32(&mut nic, *offset).to_string()),
            }
        }
        assert!(trace.failed().is_none());
        let bytes = kept.0.lock().expect("no other thread").clone();
        let text = String::from_utf8(bytes).expect("text");
        text.lines().map(|line| line[12..].to_owned()).collect()
    }

    #[test]
    fn an_access_is_told_with_name_fields_and_what_it_caused() {
        let lines = traced(
            Profile::V4_0,
            &[
                (0x10_0000, Some(0x00C0_0001)),
                (0x18_0138, Some(99)),
                (0x4, None),
                (0x10_0001, Some(1)),
            ],
        );
        let starts = [
            "write 0x100000 XRNICCONF = 0x00c00001: enable 0x1",
            "write 0x180138 SQPI of QP 2 = 0x00000063: ",
            "read  0x000004 VIRTADDRLSB of region 0 = 0x00000000",
            "write 0x100001 nothing is listed here = 0x00000001 -> refused: register_misaligned",
        ];
        for (line, start) in lines.iter().zip(starts) {
            assert!(line.starts_with(start), "{line}");
        }
        assert!(lines[1].contains("index 0x63 -> refused: ring_depth_zero"), "{}", lines[1]);
        assert_eq!(lines.len(), starts.len());
    }

    #[test]
    fn fields_that_a_profile_moved_have_their_own_names() {
        let lines = traced(Profile::V3_1, &[(0x2_0000, Some(0x12B7_0621))]);
        assert!(
            lines[0].contains("udp_source_port 0x12b7") && lines[0].contains("qps 0x6"),
            "{}",
            lines[0]
        );
    }
}
