//! Where documents and silicon disagree: one value for each reading. No other file names a version.

use super::map::{BANK_WORDS_V3, GLOBAL_WORDS_V3, GLOBAL_WORDS_V4, GlobalWords};
use super::registers::{BANK_WORDS, GLOBAL_BASE, MAP_LEN, QP_BASE, REGIONS, Register, bits};

/// One reading of the register space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Profile {
    /// Its name on the command line and in scenarios.
    pub name: &'static str,
    /// One sentence.
    pub text: &'static str,
    /// First address after the map.
    pub map_len: u32,
    /// Rows of the memory region table, from address 0.
    pub regions: u16,
    /// First address of the global part.
    pub global_base: u32,
    /// First address of the per-QP part.
    pub qp_base: u32,
    /// The queue pair number whose registers are at `qp_base`.
    pub first_slot_qp: u16,
    /// C_NUM_QP at most.
    pub num_qp_max: u16,
    /// What is at each word of the global part.
    pub(super) global_words: &'static GlobalWords,
    /// Words of each bitwise interrupt bank, which follow each other.
    pub(super) bank_words: u16,
    /// Registers of the table that are not there.
    pub absent: &'static [Register],
    /// Fields that are elsewhere than the table says.
    pub moved: &'static [MovedField],
    /// Which bits the count of queue pairs has, whatever C_NUM_QP; 0: as many as C_NUM_QP needs.
    pub(super) qp_count_mask: u32,
    /// PSN and queue pair in LSTINPKT and LSTOUTPKT.
    pub(super) last_packet: (u32, u32),
    /// Reset values that differ from the table's.
    pub resets: &'static [(Register, u32)],
    /// Whether the outgoing packet error status queue is written.
    pub outgoing_error_queue: bool,
}

/// A field that this reading has at another place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MovedField {
    /// The register that software accesses.
    pub on: Register,
    /// Its bits there.
    pub bits: u32,
    /// The register that the table has the field in.
    pub register: Register,
    /// Its bits there.
    pub table_bits: u32,
}

impl Profile {
    /// The chapter as it is printed: queue pair i's registers are at 0x18_0000 + (i-1) * 0x100.
    pub const V4_0: Self = Self {
        name: "v4.0",
        text: "the register space chapter of PG332 v4.0 as printed",
        map_len: MAP_LEN,
        regions: REGIONS,
        global_base: GLOBAL_BASE,
        qp_base: QP_BASE,
        first_slot_qp: 1,
        num_qp_max: 2048,
        global_words: &GLOBAL_WORDS_V4,
        bank_words: BANK_WORDS,
        absent: &[],
        moved: &[],
        qp_count_mask: 0,
        last_packet: (bits(Register::Lstinpkt, "psn"), bits(Register::Lstinpkt, "qp")),
        resets: &[],
        outgoing_error_queue: true,
    };

    /// What hardware and AMD's own example design do: 0x18_0000 + i * 0x100.
    ///
    /// XRNICADCONF resets to 0x000A_0000 there: the example design never writes it, and a
    /// verification bench of the netlist expects that value.
    pub const V4_0_SILICON: Self = Self {
        name: "v4.0-silicon",
        text: "v4.0 as hardware was seen to behave",
        first_slot_qp: 0,
        resets: &[(Register::Xrnicadconf, 0x000A_0000)],
        outgoing_error_queue: false,
        ..Self::V4_0
    };

    /// The map before v4, which RecoNIC's library and the drivers of its time use: 256 KiB, banks of 8
    /// words, and the number of queue pairs in XRNICCONF. Offsets inside a part stayed what they were.
    ///
    /// Chosen: what only older devices had (TX header, scatter list and bypass buffers at 0x30..0x5C)
    /// is not listed, so that writes to it are ignored and counted.
    pub const V3_1: Self = Self {
        name: "v3.1",
        text: "the map of ERNIC v3.1, as RecoNIC's library and older drivers use it",
        map_len: 0x4_0000,
        regions: 256,
        global_base: 0x2_0000,
        qp_base: 0x2_0200,
        num_qp_max: 256,
        global_words: &GLOBAL_WORDS_V3,
        bank_words: BANK_WORDS_V3,
        absent: &[Register::XrnicConfQpEn],
        moved: &[
            MovedField::new(
                Register::Xrnicconf,
                0xFFFF_0000,
                Register::Xrnicconf,
                "udp_source_port",
            ),
            MovedField::new(Register::Xrnicconf, 0x0000_FF00, Register::XrnicConfQpEn, "qps"),
            MovedField::new(
                Register::Xrnicadconf,
                0xFF00_0000,
                Register::Xrnicadconf,
                "override_qp",
            ),
        ],
        qp_count_mask: 0xFF,
        last_packet: (0xFFFF_0000, 0x0000_FF00),
        outgoing_error_queue: false,
        ..Self::V4_0
    };

    /// All of them, the default first.
    pub const ALL: [&'static Self; 3] = [&Self::V4_0, &Self::V4_0_SILICON, &Self::V3_1];

    /// By name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<&'static Self> {
        Self::ALL.into_iter().find(|profile| profile.name == name)
    }

    /// A register's value after reset.
    #[must_use]
    pub fn reset(&self, register: Register) -> u32 {
        let other = self.resets.iter().find(|(which, _)| *which == register);
        other.map_or(register.row().reset(), |(_, value)| *value)
    }

    /// From a value as software reads or writes it to the table's fields of the same register. Fields
    /// that the table has in another register are left out.
    #[inline]
    #[must_use]
    pub fn table_value(&self, register: Register, value: u32) -> u32 {
        let moved = self.moved.iter().filter(|field| field.on == register);
        moved.fold(self.unmoved(register, value), |table, field| {
            let stays = field.register == register;
            table | if stays { place(field.bits, field.table_bits, value) } else { 0 }
        })
    }

    /// From the table's registers to the value that software reads.
    #[inline]
    pub(super) fn software_value(
        &self,
        register: Register,
        table: impl Fn(Register) -> u32,
    ) -> u32 {
        let moved = self.moved.iter().filter(|field| field.on == register);
        moved.fold(self.unmoved(register, table(register)), |value, field| {
            value | place(field.table_bits, field.bits, table(field.register))
        })
    }

    /// The fields of other registers of the table that software writes through this one.
    pub(super) fn carried(&self, register: Register) -> impl Iterator<Item = &'static MovedField> {
        let carried = move |field: &&MovedField| field.on == register && field.register != register;
        self.moved.iter().filter(carried)
    }

    /// A register's bits without those that moved fields have or had.
    fn unmoved(&self, register: Register, value: u32) -> u32 {
        self.moved.iter().filter(|field| field.on == register).fold(value, |value, field| {
            let had = if field.register == register { field.table_bits } else { 0 };
            value & !(field.bits | had)
        })
    }
}

impl MovedField {
    const fn new(on: Register, on_bits: u32, register: Register, field: &str) -> Self {
        Self { on, bits: on_bits, register, table_bits: bits(register, field) }
    }

    /// The field's bits in its own register, out of what software wrote.
    #[must_use]
    pub fn value(&self, written: u32) -> u32 {
        place(self.bits, self.table_bits, written)
    }
}

/// Moves a field from one place to another.
const fn place(from: u32, to: u32, value: u32) -> u32 {
    (((value & from) >> from.trailing_zeros()) << to.trailing_zeros()) & to
}

impl Default for Profile {
    fn default() -> Self {
        Self::V4_0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moved_fields_go_there_and_back() {
        let profile = Profile::V3_1;
        // Port 0x12B7, 30 queue pairs, error buffer, enabled.
        let written = 0x12B7_1E21;
        let table = profile.table_value(Register::Xrnicconf, written);
        assert_eq!(table, 0x0012_B721);
        let count = profile.carried(Register::Xrnicconf).next().map(|field| field.value(written));
        assert_eq!(count, Some(30));
        let read = profile.software_value(Register::Xrnicconf, |register| {
            if register == Register::Xrnicconf { table } else { 30 }
        });
        assert_eq!(read, written);
        assert_eq!(profile.table_value(Register::Xrnicadconf, 0x0200_0001), 1 | 2 << 20);
        assert_eq!(Profile::V4_0.table_value(Register::Xrnicconf, written), written);
    }
}
