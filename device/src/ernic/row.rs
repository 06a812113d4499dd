//! What a register table row says: place, access, fields, home, effect. Types and the masks that follow
//! from a row; the rows themselves are in [`registers`](super::registers).

use super::registers::Register;

/// Which part of the map a row belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Section {
    /// Memory region table: 2048 rows of 0x100 bytes from 0x00_0000.
    Region,
    /// Global configuration, 0x10_0000 ..= 0x10_00FF.
    Global,
    /// Global status, 0x10_0100 and up.
    Status,
    /// Per queue pair, 0x100 bytes each from 0x18_0000, QP1 included.
    Qp,
    /// Per queue pair, but not for QP1.
    RcQp,
}

impl Section {
    /// The heading that the chapter has for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Region => "memory-region table",
            Self::Global => "global configuration",
            Self::Status => "global status",
            Self::Qp | Self::RcQp => "per-QP",
        }
    }
}

/// What software may do with a row or a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Read and write.
    Rw,
    /// Read only; a write is ignored and counted.
    Ro,
    /// Read; writing 1 clears.
    W1c,
    /// Read only, but writable while XRNICADCONF\[0\] (software override) is set.
    Override,
}

impl Access {
    /// As the chapter abbreviates it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rw => "RW",
            Self::Ro => "RO",
            Self::W1c => "W1C",
            Self::Override => "RO, RW under override",
        }
    }
}

/// Where a field's value lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Home {
    /// In the engine: an attribute of the queue pair or the port. Nothing is stored here.
    Engine,
    /// In the face's word for this register, and nowhere else.
    Kept,
    /// Computed from queue positions, interrupt banks or the engine's progress.
    Derived,
}

impl Home {
    /// For people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Kept => "face",
            Self::Derived => "computed",
        }
    }
}

/// Which values a field takes. A refused value is counted and leaves the field as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Legal {
    /// All that fit.
    Any,
    /// 0 up to this; the rest is reserved.
    UpTo(u32),
    /// Send queue index, 0..=depth.
    SendIndex,
    /// Receive queue index, 0..=depth.
    ReceiveIndex,
}

/// How sure we are of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// The chapter says so.
    Stated,
    /// Seen on hardware or in AMD's own code.
    Observed(&'static str),
    /// Sources are silent or contradict each other; we chose.
    Chosen(&'static str),
}

impl Mark {
    /// One word, and what stands behind it.
    #[must_use]
    pub const fn parts(self) -> (&'static str, &'static str) {
        match self {
            Self::Stated => ("stated", ""),
            Self::Observed(what) => ("observed", what),
            Self::Chosen(what) => ("chosen", what),
        }
    }
}

/// What reading or writing a row does beside its kept bits. `effects` does not compile without an arm
/// for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Nothing.
    None,
    /// Of the whole device.
    Device(DeviceEffect),
    /// Of one queue pair.
    Qp(QpEffect),
}

/// Effects of the whole device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceEffect {
    /// XRNICCONF: port on or off, ACK mode, UDP source port of every queue pair.
    NicControl,
    /// XRNICADCONF: override, fatal retry.
    Advanced,
    /// MAC address, last four bytes.
    PortMacLow,
    /// MAC address, first two bytes.
    PortMacHigh,
    /// IPv4 address.
    PortIpv4,
    /// IPv6 address, word 0 (last bytes) to 3.
    PortIpv6(u8),
    /// How many queue pairs may run.
    ActiveQps,
    /// Retry data buffers.
    DataBuffers,
    /// Priority flow control of the port.
    PauseControl,
    /// A doorbell on the side band.
    ConnectIo,
    /// The last packet that came in.
    LastIn,
    /// The last packet that went out.
    LastOut,
    /// WQE processor.
    WqeProcessor,
    /// QP manager.
    QpManager,
    /// Response handler.
    ResponseHandler,
    /// Interrupt causes, coupled with two banks.
    InterruptStatus,
    /// Bank of receive queue interrupts.
    ReceiveBank,
    /// Bank of completion queue interrupts.
    CompletionBank,
    /// Bank of CNPs to be sent.
    CnpBank,
}

/// Effects of one queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpEffect {
    /// QPCONF.
    QpControl,
    /// QPADVCONF.
    QpAdvanced,
    /// Send queue doorbell.
    SendDoorbell,
    /// SQPSN.
    SendPsn,
    /// LSTRQREQ.
    LastRequest,
    /// Peer's QP number.
    DestQp,
    /// Peer's MAC, last four bytes.
    DestMacLow,
    /// Peer's MAC, first two bytes.
    DestMacHigh,
    /// One word of the peer's IP address.
    DestIp,
    /// Timers and retries.
    Timeout,
    /// Sender sequence number.
    SendSequence,
    /// Message sequence number.
    MessageSequence,
    /// STATQP.
    QpStatus,
    /// Work requests that wait for an answer.
    Outstanding,
    /// PSN of the next answer.
    ResponsePsn,
    /// Receive buffer in use, low word.
    ReceiveBufferLow,
    /// Receive buffer in use, high word.
    ReceiveBufferHigh,
    /// Work requests fetched.
    WorkCount,
}

/// Some bits of a register.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Our name; the chapter gives fields none.
    pub name: &'static str,
    /// Highest bit.
    pub high: u8,
    /// Lowest bit.
    pub low: u8,
    /// What software may do.
    pub access: Access,
    /// Where the value lives.
    pub home: Home,
    /// Value after reset.
    pub reset: u32,
    /// What it is.
    pub text: &'static str,
    /// Which values are taken.
    pub legal: Legal,
    /// Values with a meaning of their own.
    pub codes: &'static [(u32, &'static str)],
}

impl Field {
    /// Its bits in the register.
    #[must_use]
    pub const fn mask(&self) -> u32 {
        (u32::MAX >> (31 - (self.high - self.low))) << self.low
    }

    /// Its value in a register's value.
    #[must_use]
    pub const fn of(&self, value: u32) -> u32 {
        (value & self.mask()) >> self.low
    }

    /// What the field's value means, if it is one of the coded ones.
    #[must_use]
    pub fn meaning(&self, field_value: u32) -> Option<&'static str> {
        self.codes.iter().find(|code| code.0 == field_value).map(|code| code.1)
    }
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The row itself.
    pub register: Register,
    /// Part of the map.
    pub section: Section,
    /// Address of the first one, as printed.
    pub offset: u32,
    /// Consecutive words (the bitwise banks), or 1.
    pub words: u16,
    /// As printed.
    pub access: Access,
    /// As printed; an `n` in it stands for the word's number.
    pub name: &'static str,
    /// What else happens.
    pub effect: Effect,
    /// How sure we are.
    pub mark: Mark,
    /// One sentence.
    pub text: &'static str,
    /// Named bits; what no field covers is reserved and reads 0.
    pub fields: &'static [Field],
}

impl Row {
    /// Bits that any field covers.
    #[must_use]
    pub const fn mask(&self) -> u32 {
        self.select(None, None)
    }

    /// Bits of the fields with this access.
    #[must_use]
    pub const fn mask_of(&self, access: Access) -> u32 {
        self.select(Some(access), None)
    }

    /// Bits of the fields with this home.
    #[must_use]
    pub const fn home_mask(&self, home: Home) -> u32 {
        self.select(None, Some(home))
    }

    /// Value after reset, before what a profile changes.
    #[must_use]
    pub const fn reset(&self) -> u32 {
        let (mut i, mut value) = (0, 0);
        while i < self.fields.len() {
            value |= self.fields[i].reset << self.fields[i].low;
            i += 1;
        }
        value
    }

    /// The name with the word's number in place of `n`, counted from 1.
    #[must_use]
    pub fn name_of_word(&self, word: u16) -> alloc::string::String {
        if self.words == 1 {
            return self.name.into();
        }
        self.name.replacen('n', &alloc::format!("{}", word + 1), 1)
    }

    const fn select(&self, access: Option<Access>, home: Option<Home>) -> u32 {
        let (mut i, mut mask) = (0, 0);
        while i < self.fields.len() {
            let field = &self.fields[i];
            let access_fits = match access {
                Some(access) => field.access as u8 == access as u8,
                None => true,
            };
            let home_fits = match home {
                Some(home) => field.home as u8 == home as u8,
                None => true,
            };
            if access_fits && home_fits {
                mask |= field.mask();
            }
            i += 1;
        }
        mask
    }
}
