//! Where documents and silicon disagree: one value for each reading. No other file names a version.

use super::registers::Register;

/// One reading of the register space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Profile {
    /// Its name on the command line and in scenarios.
    pub name: &'static str,
    /// One sentence.
    pub text: &'static str,
    /// The queue pair number whose registers are at 0x18_0000.
    pub first_slot_qp: u16,
    /// Reset values that differ from the table's.
    pub resets: &'static [(Register, u32)],
    /// Whether the outgoing packet error status queue is written.
    pub outgoing_error_queue: bool,
}

impl Profile {
    /// The chapter as it is printed: queue pair i's registers are at 0x18_0000 + (i-1) * 0x100.
    pub const V4_0: Self = Self {
        name: "v4.0",
        text: "the register space chapter of PG332 v4.0 as printed",
        first_slot_qp: 1,
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
    };

    /// All of them, the default first.
    pub const ALL: [&'static Self; 2] = [&Self::V4_0, &Self::V4_0_SILICON];

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
}

impl Default for Profile {
    fn default() -> Self {
        Self::V4_0
    }
}
