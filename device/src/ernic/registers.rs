//! THE register table: every row of the register space of AMD's ERNIC (PG332 v4.0), each written once.
//!
//! Masks, resets, the dump, the decoder, `rnic regs` and the dispatch of reads and writes follow from
//! a row. Two rows at one address, two fields on one bit, or a computed field without an [`Effect`]
//! do not compile. Offsets are as the chapter prints them; where a queue pair's slot really is, the
//! [`Profile`](super::Profile) says. Knows no engine and no storage.

use super::row::{Access, DeviceEffect, Effect, Field, Home, Legal, Mark, QpEffect, Row, Section};

/// Bytes between two region table rows, and between two queue pairs' slots.
pub const ELEMENT_STRIDE: u32 = 0x100;
/// First address of the per-QP part.
pub const QP_BASE: u32 = 0x18_0000;
/// First address of the global part.
pub const GLOBAL_BASE: u32 = 0x10_0000;
/// First address after the map.
pub const MAP_LEN: u32 = 0x20_0000;
/// Rows of the region table.
pub const REGIONS: u16 = 2048;
/// Words of a bitwise interrupt bank: one bit for each of 2048 queue pairs.
pub(super) const BANK_WORDS: u16 = 64;

impl Register {
    /// Rows in the table.
    pub const COUNT: usize = ROWS.len();

    /// This register's row.
    #[must_use]
    pub const fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// By the chapter's name in any case; a bank by its name, or with a word's number.
    #[must_use]
    pub fn by_name(name: &str) -> Option<(Self, u16)> {
        ROWS.iter().find_map(|row| {
            let same = |text: &str| text.eq_ignore_ascii_case(name);
            if same(row.name) || same(&row.name.replacen('n', "", usize::from(row.words > 1))) {
                return Some((row.register, 0));
            }
            (0..row.words)
                .find(|&word| row.words > 1 && same(&row.name_of_word(word)))
                .map(|word| (row.register, word))
        })
    }

    /// Which of its section's kept words is this register's.
    #[inline(always)]
    pub(super) const fn kept_index(self) -> usize {
        KEPT_INDEX[self as usize] as usize
    }
}

/// Bits of a field, by name. For constants: a name that does not exist does not compile.
pub(super) const fn bits(register: Register, field: &str) -> u32 {
    let fields = register.row().fields;
    let mut i = 0;
    while i < fields.len() {
        if same_text(fields[i].name.as_bytes(), field.as_bytes()) {
            return fields[i].mask();
        }
        i += 1;
    }
    panic!("no such field")
}

const fn same_text(a: &[u8], b: &[u8]) -> bool {
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}

/// Kept words in the three stores.
pub(super) const KEPT_REGION: usize = kept_len(Store::Region);
pub(super) const KEPT_GLOBAL: usize = kept_len(Store::Global);
pub(super) const KEPT_QP: usize = kept_len(Store::Qp);

#[derive(Clone, Copy)]
enum Store {
    Region,
    Global,
    Qp,
}

const fn store_of(section: Section) -> Store {
    match section {
        Section::Region => Store::Region,
        Section::Global | Section::Status => Store::Global,
        Section::Qp | Section::RcQp => Store::Qp,
    }
}

const NOT_KEPT: u8 = u8::MAX;

/// Numbers the rows with kept bits, one count for each store.
const KEPT_INDEX: [u8; ROWS.len()] = {
    let mut index = [NOT_KEPT; ROWS.len()];
    let mut used = [0u8; 3];
    let mut i = 0;
    while i < ROWS.len() {
        if ROWS[i].home_mask(Home::Kept) != 0 {
            let store = store_of(ROWS[i].section) as usize;
            index[i] = used[store];
            used[store] += 1;
        }
        i += 1;
    }
    index
};

const fn kept_len(store: Store) -> usize {
    let (mut i, mut len) = (0, 0);
    while i < ROWS.len() {
        if ROWS[i].home_mask(Home::Kept) != 0 && store_of(ROWS[i].section) as u8 == store as u8 {
            len += 1;
        }
        i += 1;
    }
    len
}

/// A contradiction in the table is a compile error.
const _: () = {
    let mut i = 0;
    while i < ROWS.len() {
        let row = &ROWS[i];
        assert!(row.offset.is_multiple_of(4), "a register is not aligned");
        let (mut f, mut seen) = (0, 0);
        while f < row.fields.len() {
            let field = &row.fields[f];
            assert!(field.high <= 31 && field.low <= field.high, "a field's bits are reversed");
            assert!(seen & field.mask() == 0, "two fields share a bit");
            assert!(field.reset <= field.mask() >> field.low, "a reset value does not fit");
            assert!(
                matches!(field.home, Home::Kept) || !matches!(row.effect, Effect::None),
                "a field that is not kept needs an effect that reads it"
            );
            seen |= field.mask();
            f += 1;
        }
        assert!(seen != 0, "a register without fields");
        let mut j = 0;
        while j < i {
            let other = &ROWS[j];
            let apart = row.offset >= other.offset + 4 * other.words as u32
                || other.offset >= row.offset + 4 * row.words as u32;
            assert!(apart, "two registers share an address");
            j += 1;
        }
        i += 1;
    }
};

macro_rules! registers {
    (@legal) => { Legal::Any };
    (@legal $legal:expr) => { $legal };
    ($(
        $register:ident $section:ident $offset:literal $(* $words:literal)? $access:ident
        $name:literal $effect:expr, $mark:expr, $text:literal
        {$(
            $field:literal $high:literal : $low:literal $field_access:ident $home:ident = $reset:literal
            $field_text:literal $(($legal:expr))? $([$($code:literal $meaning:literal),*])?
        )*}
    )*) => {
        /// A row of the register table.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        #[repr(u8)]
        #[allow(missing_docs, reason = "the row's own sentence says what it is")]
        pub enum Register { $($register),* }

        /// The register table, in the order of the enum.
        pub const ROWS: &[Row] = {
            use Access as A;
            use DeviceEffect as D;
            use Effect as E;
            use QpEffect as Q;
            use Mark::{Chosen, Observed, Stated};
            &[$(Row {
                register: Register::$register,
                section: Section::$section,
                offset: $offset,
                words: 1 $( * $words )?,
                access: A::$access,
                name: $name,
                effect: $effect,
                mark: $mark,
                text: $text,
                fields: &[$(Field {
                    name: $field,
                    high: $high,
                    low: $low,
                    access: A::$field_access,
                    home: Home::$home,
                    reset: $reset,
                    text: $field_text,
                    legal: registers!(@legal $($legal)?),
                    codes: &[$($(($code, $meaning)),*)?],
                }),*],
            }),*]
        };
    };
}

registers! {
    // Memory region table: one row of 0x100 bytes for each region; the R_Key's upper 24 bits name it.
    Pdpdnum Region 0x00_0000 Rw "PDPDNUM" E::None, Stated,
    "Protection domain that the region belongs to." {
        "pd" 23:0 Rw Kept = 0 "protection domain number"
    }
    Virtaddrlsb Region 0x00_0004 Rw "VIRTADDRLSB" E::None, Stated,
    "First virtual address of the region, low word." {
        "va_low" 31:0 Rw Kept = 0 "virtual address, bits 31..0"
    }
    Virtaddrmsb Region 0x00_0008 Rw "VIRTADDRMSB" E::None, Stated,
    "First virtual address of the region, high word." {
        "va_high" 31:0 Rw Kept = 0 "virtual address, bits 63..32"
    }
    Bufbaseaddrlsb Region 0x00_000C Rw "BUFBASEADDRLSB"
    E::None, Chosen("access cell blank and LSB/MSB descriptions swapped; the names win"),
    "Bus address of the region's first byte, low word." {
        "base_low" 31:0 Rw Kept = 0 "bus address, bits 31..0"
    }
    Bufbaseaddrmsb Region 0x00_0010 Rw "BUFBASEADDRMSB"
    E::None, Chosen("LSB/MSB descriptions swapped; the names win"),
    "Bus address of the region's first byte, high word." {
        "base_high" 31:0 Rw Kept = 0 "bus address, bits 63..32"
    }
    Bufrkey Region 0x00_0014 Rw "BUFRKEY"
    E::None, Observed("a wire R_Key is the row number in bits 31..8 and this byte"),
    "Low byte of the region's R_Key." {
        "key" 7:0 Rw Kept = 0 "R_Key, bits 7..0"
    }
    Wrrdbuflen Region 0x00_0018 Rw "WRRDBUFLEN" E::None, Stated,
    "Length of the region in bytes, low word of 48 bits." {
        "length_low" 31:0 Rw Kept = 0 "length, bits 31..0"
    }
    Accessdesc Region 0x00_001C Rw "ACCESSDESC"
    E::None, Chosen("the headline's [7:0] gives way to the list's [3:0]; a reserved type is stored and grants nothing"),
    "What the peer may do with the region, and the upper 16 bits of its length." {
        "access" 3:0 Rw Kept = 0 "rights of the peer" [0 "READ only", 1 "WRITE only", 2 "READ and WRITE"]
        "length_high" 31:16 Rw Kept = 0 "length, bits 47..32"
    }

    // Global configuration.
    Xrnicconf Global 0x10_0000 Rw "XRNICCONF"
    E::Device(D::NicControl), Chosen("ACK mode 3 is undefined and behaves as 0; AMD's own example sets reserved bits, which are ignored"),
    "Switches the device on and sets when it acknowledges." {
        "enable" 0:0 Rw Engine = 0 "the port takes and sends frames"
        "ack_mode" 4:3 Rw Kept = 0 "when positive acknowledgements leave"
            [0 "asked for, or timeout", 1 "timeout only", 2 "asked for only", 3 "undefined; as 0"]
        "error_buffer" 5:5 Rw Kept = 0 "keep headers of all packets that fail validation, not only of fatal ones"
        "udp_source_port" 23:8 Rw Kept = 0 "UDP source port of every packet that leaves"
    }
    Xrnicadconf Global 0x10_0004 Rw "XRNICADCONF"
    E::Device(D::Advanced), Chosen("override with QP number 0 means any queue pair, as drivers use it; with a number, only that one; a width of 0, as after reset, means 4.096 us"),
    "Software override, retry policy and the length of a clock tick." {
        "override" 0:0 Rw Kept = 0 "software may write CQHEAD, STATCURSQPTR, STATRQPIDB and, in practice, STATMSN and STATRQBUFCA"
        "retry_not_fatal" 2:2 Rw Kept = 0 "running out of retries does not make a queue pair fatal"
        "tick_width" 19:16 Rw Kept = 0 "log2 of the clocks in the unit of ACK timeouts, CLOG2(4.096 * MHz)" [0 "4.096 us"]
        "override_qp" 30:20 Rw Kept = 0 "queue pair that override applies to"
    }
    XrnicBufThresholdRoce Global 0x10_0008 Rw "XRNIC_BUF_THRESHOLD_ROCE"
    E::None, Chosen("in words of 64 bytes out of 512; the chapter cuts the name short, drivers spell it out"),
    "Fill levels of the RoCE receive buffer that raise and drop pause." {
        "xon" 15:0 Rw Kept = 0x5A "level at which pause is dropped"
        "xoff" 31:16 Rw Kept = 0x96 "level at which pause is raised"
    }
    XrnicPauseConf Global 0x10_000C Rw "XRNIC_PAUSE_CONF"
    E::Device(D::PauseControl), Chosen("a class that does not ask for pauses obeys none; traffic other than RoCE is not sent by this device"),
    "Priority flow control: which classes are paused, and under which priority." {
        "pause_roce" 0:0 Rw Kept = 0 "pause RoCE traffic"
        "pause_other" 1:1 Rw Kept = 0 "pause other traffic"
        "priority_roce" 7:4 Rw Kept = 0 "priority of RoCE traffic"
        "priority_other" 11:8 Rw Kept = 8 "priority of other traffic" [8 "global pause"]
        "any_priority" 13:13 Rw Kept = 0 "transmit side ignores the priority of a pause frame"
    }
    Macxaddlsb Global 0x10_0010 Rw "MACXADDLSB" E::Device(D::PortMacLow), Stated,
    "Our MAC address, last four bytes." {
        "mac_low" 31:0 Rw Engine = 0 "bytes 2..5, byte 5 in bits 7..0"
    }
    Macxaddmsb Global 0x10_0014 Rw "MACXADDMSB" E::Device(D::PortMacHigh), Stated,
    "Our MAC address, first two bytes." {
        "mac_high" 15:0 Rw Engine = 0 "bytes 0..1, byte 0 in bits 15..8"
    }
    XrnicBufThresholdNonRoce Global 0x10_0018 Rw "XRNIC_BUF_THRESHOLD_NON_ROCE"
    E::None, Chosen("in words of 64 bytes out of 512; the chapter cuts the name short, drivers spell it out"),
    "Fill levels of the other receive buffer that raise and drop pause." {
        "xon" 15:0 Rw Kept = 0x5A "level at which pause is dropped"
        "xoff" 31:16 Rw Kept = 0x96 "level at which pause is raised"
    }
    Ipv6xadd1 Global 0x10_0020 Rw "IPv6XADD1" E::Device(D::PortIpv6(0)), Chosen("[32:0] is a slip for [31:0]"),
    "Our IPv6 address, last four bytes." {
        "ipv6" 31:0 Rw Engine = 0 "address bits 31..0"
    }
    Ipv6xadd2 Global 0x10_0024 Rw "IPv6XADD2" E::Device(D::PortIpv6(1)), Stated,
    "Our IPv6 address, third word." {
        "ipv6" 31:0 Rw Engine = 0 "address bits 63..32"
    }
    Ipv6xadd3 Global 0x10_0028 Rw "IPv6XADD3" E::Device(D::PortIpv6(2)), Stated,
    "Our IPv6 address, second word." {
        "ipv6" 31:0 Rw Engine = 0 "address bits 95..64"
    }
    Ipv6xadd4 Global 0x10_002C Rw "IPv6XADD4" E::Device(D::PortIpv6(3)), Stated,
    "Our IPv6 address, first four bytes." {
        "ipv6" 31:0 Rw Engine = 0 "address bits 127..96"
    }
    XrnicConfQpEn Global 0x10_0044 Rw "XRNIC_CONF_QP_EN"
    E::Device(D::ActiveQps), Chosen("the value is the highest queue pair number that may run, and the field is log2(C_NUM_QP) bits wide"),
    "How many queue pairs may run." {
        "qps" 10:0 Rw Kept = 0 "queue pairs with a greater number stay disabled"
    }
    Errbufba Global 0x10_0060 Rw "ERRBUFBA" E::None, Stated,
    "Where headers of packets that fail validation are stored, low word." {
        "base_low" 31:0 Rw Kept = 0 "bus address, bits 31..0"
    }
    Errbufbamsb Global 0x10_0064 Rw "ERRBUFBAMSB" E::None, Stated,
    "Where headers of packets that fail validation are stored, high word." {
        "base_high" 31:0 Rw Kept = 0 "bus address, bits 63..32"
    }
    Errbufsz Global 0x10_0068 Rw "ERRBUFSZ" E::None, Stated,
    "Size of the error buffer." {
        "entries" 15:0 Rw Kept = 0 "number of entries"
        "entry_bytes" 31:16 Rw Kept = 0 "bytes of an entry"
    }
    Errbufwptr Global 0x10_006C Ro "ERRBUFWPTR" E::None, Stated,
    "How many error buffer entries have been written." {
        "pointer" 15:0 Ro Kept = 0 "write pointer in entries"
    }
    Ipv4xadd Global 0x10_0070 Rw "IPv4XADD" E::Device(D::PortIpv4), Stated,
    "Our IPv4 address." {
        "ipv4" 31:0 Rw Engine = 0 "a.b.c.d with a in bits 31..24"
    }
    Opkterrqba Global 0x10_0078 Rw "OPKTERRQBA"
    E::None, Observed("no driver reads the queue; later guides call it deprecated"),
    "Base of the outgoing packet error status queue, low word." {
        "base_low" 31:0 Rw Kept = 0 "bus address, bits 31..0"
    }
    Opkterrqbamsb Global 0x10_007C Rw "OPKTERRQBAMSB" E::None, Stated,
    "Base of the outgoing packet error status queue, high word." {
        "base_high" 31:0 Rw Kept = 0 "bus address, bits 63..32"
    }
    Outerrstsqsz Global 0x10_0080 Rw "OUTERRSTSQSZ" E::None, Stated,
    "Entries of the outgoing packet error status queue." {
        "entries" 15:0 Rw Kept = 0 "number of entries"
    }
    Opterrstsqqptrdb Global 0x10_0084 Rw "OPTERRSTSQQPTRDB"
    E::None, Chosen("16 bits, as every other pointer; printed RW though its incoming twin is RO"),
    "Write pointer of the outgoing packet error status queue." {
        "pointer" 15:0 Rw Kept = 0 "write pointer in entries"
    }
    Ipkterrqba Global 0x10_0088 Rw "IPKTERRQBA" E::None, Stated,
    "Base of the incoming packet error status queue, low word." {
        "base_low" 31:0 Rw Kept = 0 "bus address, bits 31..0"
    }
    Ipkterrqbamsb Global 0x10_008C Rw "IPKTERRQBAMSB" E::None, Stated,
    "Base of the incoming packet error status queue, high word." {
        "base_high" 31:0 Rw Kept = 0 "bus address, bits 63..32"
    }
    Ipkterrqsz Global 0x10_0090 Rw "IPKTERRQSZ" E::None, Stated,
    "Entries of the incoming packet error status queue." {
        "entries" 15:0 Rw Kept = 0 "number of entries"
    }
    Ipkterrqwptr Global 0x10_0094 Ro "IPKTERRQWPTR" E::None, Stated,
    "How many incoming packet error status entries have been written." {
        "pointer" 15:0 Ro Kept = 0 "write pointer in entries"
    }
    Datbufba Global 0x10_00A0 Rw "DATBUFBA"
    E::Device(D::DataBuffers), Chosen("a packet of a WRITE takes as many buffers as its payload needs; without any, retries read the request's own memory again"),
    "Base of the retry data buffers, low word." {
        "base_low" 31:0 Rw Kept = 0 "bus address, bits 31..0"
    }
    Datbufbamsb Global 0x10_00A4 Rw "DATBUFBAMSB" E::Device(D::DataBuffers), Stated,
    "Base of the retry data buffers, high word." {
        "base_high" 31:0 Rw Kept = 0 "bus address, bits 63..32"
    }
    Datbufsz Global 0x10_00A8 Rw "DATBUFSZ" E::Device(D::DataBuffers), Stated,
    "Number and size of the retry data buffers." {
        "buffers" 15:0 Rw Kept = 0 "number of buffers"
        "buffer_bytes" 31:16 Rw Kept = 0 "bytes of a buffer"
    }
    ConIoConf Global 0x10_00AC Rw "CON_IO_CONF"
    E::Device(D::ConnectIo), Chosen("rings the receive doorbell of the side band, as a driver's use suggests; the ready bit, whose reset value is not printed, is always 1"),
    "Rings a queue pair's doorbell once after its hardware handshake was switched on." {
        "qp" 26:16 Rw Kept = 0 "queue pair"
        "ready" 31:31 Ro Kept = 1 "another number may be written"
    }
    Resperrpktba Global 0x10_00B0 Rw "RESPERRPKTBA" E::None, Stated,
    "Base of the buffer for headers of erroneous responses, low word." {
        "base_low" 31:0 Rw Kept = 0 "bus address, bits 31..0"
    }
    Resperrpktbamsb Global 0x10_00B4 Rw "RESPERRPKTBAMSB" E::None, Stated,
    "Base of the buffer for headers of erroneous responses, high word." {
        "base_high" 31:0 Rw Kept = 0 "bus address, bits 63..32"
    }
    Resperrsz Global 0x10_00B8 Rw "RESPERRSZ" E::None, Stated,
    "Size of the buffer for headers of erroneous responses." {
        "entries" 15:0 Rw Kept = 0 "number of entries"
        "entry_bytes" 31:16 Rw Kept = 0 "bytes of an entry"
    }
    Resperrwrptr Global 0x10_00BC Rw "RESPERRWRPTR" E::None, Chosen("RW as printed; drivers write it at bring-up"),
    "Write pointer of the buffer for headers of erroneous responses." {
        "pointer" 15:0 Rw Kept = 0 "write pointer in entries"
    }

    // Global status. Packet counters wrap at 16 bits and are cleared only by reset.
    Insrrpktcnt Status 0x10_0100 Ro "INSRRPKTCNT"
    E::None, Observed("an AMD example's counts show that WRITE packets are counted with the SENDs"),
    "Packets in: SEND and WRITE, and READ responses." {
        "send" 15:0 Ro Kept = 0 "SEND and WRITE packets"
        "read_response" 31:16 Ro Kept = 0 "READ response packets"
    }
    Inampktcnt Status 0x10_0104 Ro "INAMPKTCNT"
    E::None, Chosen("NAKs are not counted here; they have INNAKPKTCNT"),
    "Packets in: acknowledgements and management datagrams." {
        "ack" 15:0 Ro Kept = 0 "positive acknowledgements"
        "mad" 31:16 Ro Kept = 0 "management datagrams on QP1"
    }
    Outiopktcnt Status 0x10_0108 Ro "OUTIOPKTCNT"
    E::None, Observed("a register dump after one READ shows 1 in the upper half"),
    "Packets out: SEND, and READ requests and WRITE." {
        "send" 15:0 Ro Kept = 0 "SEND packets"
        "read_write" 31:16 Ro Kept = 0 "READ request and WRITE packets"
    }
    Outampktcnt Status 0x10_010C Ro "OUTAMPKTCNT"
    E::None, Chosen("NAKs are not counted here; they have OUTNAKPKTCNT"),
    "Packets out: acknowledgements and management datagrams." {
        "ack" 15:0 Ro Kept = 0 "positive acknowledgements"
        "mad" 31:16 Ro Kept = 0 "management datagrams from QP1"
    }
    Lstinpkt Status 0x10_0110 Ro "LSTINPKT"
    E::Device(D::LastIn), Chosen("any packet with a readable BTH, refused ones included; the QP is the packet's destination"),
    "The last packet that came in." {
        "opcode" 7:0 Ro Derived = 0 "BTH opcode"
        "psn" 19:8 Ro Derived = 0 "PSN, low 12 bits"
        "qp" 30:20 Ro Derived = 0 "queue pair"
    }
    Lstoutpkt Status 0x10_0114 Ro "LSTOUTPKT" E::Device(D::LastOut), Chosen("the QP is the sending one"),
    "The last packet that went out." {
        "opcode" 7:0 Ro Derived = 0 "BTH opcode"
        "psn" 19:8 Ro Derived = 0 "PSN, low 12 bits"
        "qp" 30:20 Ro Derived = 0 "queue pair"
    }
    Ininvdupcnt Status 0x10_0118 Ro "ININVDUPCNT"
    E::None, Chosen("invalid is what was refused for another reason than a missing receive buffer"),
    "Packets in: invalid ones and duplicates." {
        "invalid" 15:0 Ro Kept = 0 "invalid packets"
        "duplicate" 31:16 Ro Kept = 0 "duplicate requests"
    }
    Wqeprocsts Status 0x10_0124 Ro "WQEPROCSTS"
    E::Device(D::WqeProcessor), Chosen("bit 12 is claimed twice: back pressure keeps it and the FSM starts at 13; bits 6 and 13 as a register dump with one READ outstanding shows them"),
    "WQE processor, for debugging." {
        "state" 2:0 Ro Derived = 0 "state" [0 "idle", 1 "a WRITE waits for retry buffers"]
        "no_retry_buffer" 4:4 Ro Derived = 0 "retry buffers are used up"
        "fifo_empty" 5:5 Ro Derived = 0 "internal FIFO empty"
        "buffer_busy" 6:6 Ro Derived = 0 "buffer manager busy: work waits for an answer"
        "back_pressure" 12:12 Ro Derived = 0 "the MAC held us back (sticky)"
        "header_state" 15:13 Ro Derived = 0 "header buffer manager's state" [0 "idle", 1 "work waits for an answer"]
        "tail" 23:16 Ro Derived = 0 "buffer tail pointer: work requests fetched, modulo 256"
        "head" 31:24 Ro Derived = 0 "buffer head pointer: as the tail, since headers never wait"
    }
    Qpmsts Status 0x10_012C Ro "QPMSTS"
    E::Device(D::QpManager), Observed("a register dump of an idle device shows the cache empty"),
    "QP manager, for debugging." {
        "cache_full" 0:0 Ro Derived = 0 "WQE cache full"
        "cache_empty" 1:1 Ro Derived = 1 "WQE cache empty"
        "wqes" 31:16 Ro Derived = 0 "work requests processed"
    }
    Inalldrppktcnt Status 0x10_0130 Ro "INALLDRPPKTCNT"
    E::None, Chosen("counts the RoCE stream; frames that are not RoCE v2 go past this device"),
    "Packets in: dropped ones and all." {
        "dropped" 15:0 Ro Kept = 0 "dropped packets"
        "all" 31:16 Ro Kept = 0 "all packets"
    }
    Innakpktcnt Status 0x10_0134 Ro "INNAKPKTCNT" E::None, Chosen("RNR NAKs included"),
    "NAKs in." {
        "nak" 15:0 Ro Kept = 0 "negative acknowledgements"
    }
    Outnakpktcnt Status 0x10_0138 Ro "OUTNAKPKTCNT" E::None, Chosen("RNR NAKs included"),
    "NAKs out." {
        "nak" 15:0 Ro Kept = 0 "negative acknowledgements"
    }
    Resphndsts Status 0x10_013C Ro "RESPHNDSTS"
    E::Device(D::ResponseHandler), Observed("drivers wait for bit 16 to be 1 in recovery, so it is no part of the FSM"),
    "Response handler, for debugging and recovery." {
        "qp" 10:0 Ro Derived = 0 "queue pair that was served last: work taken, or an answer"
        "state" 15:11 Ro Derived = 0 "state" [0 "idle"]
        "idle" 16:16 Ro Derived = 1 "no send doorbell is pending"
        "acks" 17:17 Ro Derived = 0 "answers are still to come"
    }
    Retrycntsts Status 0x10_0140 Ro "RETRYCNTSTS" E::None, Stated,
    "Packets sent again, all queue pairs." {
        "retries" 31:0 Ro Kept = 0 "retransmitted packets"
    }
    Incnppktcnt Status 0x10_0174 Ro "INCNPPKTCNT" E::None, Chosen("32 bits: no width is printed"),
    "Congestion notifications in." {
        "cnp" 31:0 Ro Kept = 0 "CNPs"
    }
    Outcnppktcnt Status 0x10_0178 Ro "OUTCNPPKTCNT" E::None, Chosen("32 bits: no width is printed"),
    "Congestion notifications out." {
        "cnp" 31:0 Ro Kept = 0 "CNPs"
    }
    Outrdrsppktcnt Status 0x10_017C Ro "OUTRDRSPPKTCNT" E::None, Chosen("32 bits: no width is printed"),
    "READ response packets out." {
        "read_response" 31:0 Ro Kept = 0 "READ response packets"
    }
    Inten Status 0x10_0180 Rw "INTEN" E::None, Stated,
    "Which causes raise the interrupt line." {
        "invalid_packet" 0:0 Rw Kept = 0 "a packet failed validation"
        "mad" 1:1 Rw Kept = 0 "a management datagram arrived on QP1"
        "rnr_nak" 3:3 Rw Kept = 0 "we sent an RNR NAK"
        "completion" 4:4 Rw Kept = 0 "a work request completed, where QPCONF[3] asks for it"
        "illegal_opcode" 5:5 Rw Kept = 0 "a send queue holds an illegal opcode"
        "receive" 6:6 Rw Kept = 0 "a SEND arrived, where QPCONF[2] asks for it"
        "fatal" 7:7 Rw Kept = 0 "a queue pair went fatal"
        "cnp" 8:8 Rw Kept = 0 "a congestion notification should be sent"
    }
    Intsts Status 0x10_0184 W1c "INTSTS"
    E::Device(D::InterruptStatus), Chosen("bits 4 and 6 also read 1 while any bit of their bank is set; writing 1 clears the latch only"),
    "Causes that have happened, enabled or not." {
        "invalid_packet" 0:0 W1c Kept = 0 "a packet failed validation"
        "mad" 1:1 W1c Kept = 0 "a management datagram arrived on QP1"
        "rnr_nak" 3:3 W1c Kept = 0 "we sent an RNR NAK"
        "completion" 4:4 W1c Kept = 0 "a work request completed, where QPCONF[3] asks for it"
        "illegal_opcode" 5:5 W1c Kept = 0 "a send queue holds an illegal opcode"
        "receive" 6:6 W1c Kept = 0 "a SEND arrived, where QPCONF[2] asks for it"
        "fatal" 7:7 W1c Kept = 0 "a queue pair went fatal"
        "cnp" 8:8 W1c Kept = 0 "a congestion notification should be sent"
    }
    Rqintsts Status 0x10_0190 * 64 W1c "RQINTSTSn"
    E::Device(D::ReceiveBank), Chosen("bit q%32 of word q/32; printed ranges of words 30, 51 and 63 are slips; queue pair 0 does not exist"),
    "Receive interrupts, one bit for each queue pair." {
        "qps" 31:0 W1c Derived = 0 "queue pairs 32n-32 .. 32n-1"
    }
    Cqintsts Status 0x10_0290 * 64 W1c "CQINTSTSn"
    E::Device(D::CompletionBank), Chosen("as RQINTSTSn"),
    "Completion interrupts, one bit for each queue pair." {
        "qps" 31:0 W1c Derived = 0 "queue pairs 32n-32 .. 32n-1"
    }
    Cnpschdsts Status 0x10_0390 * 64 Ro "CNPSCHDSTSnREG"
    E::Device(D::CnpBank), Chosen("printed RO without a rule that clears: writing 1 clears, so that software can get rid of it"),
    "Queue pairs that should send a congestion notification, one bit each." {
        "qps" 31:0 W1c Derived = 0 "queue pairs 32n-32 .. 32n-1"
    }

    // Per queue pair.
    Qpconf Qp 0x18_0000 Rw "QPCONF"
    E::Qp(Q::QpControl), Chosen("path MTU codes 5..7 are reserved: the field keeps its value; receive buffers need not be a power of two"),
    "Switches a queue pair on and shapes it." {
        "enable" 0:0 Rw Kept = 0 "may receive and transmit; clearing it resets nothing"
        "rq_interrupt" 2:2 Rw Kept = 0 "interrupt for each message received"
        "cq_interrupt" 3:3 Rw Kept = 0 "interrupt for each work request completed"
        "handshake_off" 4:4 Rw Kept = 0 "doorbells go through memory and registers, not through side-band ports"
        "cqe_write" 5:5 Rw Kept = 0 "write completion queue entries"
        "recovery" 6:6 Rw Kept = 0 "the queue pair is being recovered: nothing is sent"
        "ipv6" 7:7 Rw Engine = 0 "IP version of the peer" [0 "IPv4", 1 "IPv6"]
        "path_mtu" 10:8 Rw Engine = 0 "path MTU" (Legal::UpTo(4)) [0 "256", 1 "512", 2 "1024", 3 "2048", 4 "4096"]
        "rq_buffer" 31:16 Rw Kept = 0 "size of one receive buffer, in units of 256 bytes"
    }
    Qpadvconf RcQp 0x18_0004 Rw "QPADVCONF"
    E::Qp(Q::QpAdvanced), Chosen("TTL 0 sends 64; the six bits of traffic class are the DSCP, and ECN is sent as 0"),
    "What goes into IP and transport headers." {
        "traffic_class" 5:0 Rw Engine = 0 "DSCP"
        "ttl" 15:8 Rw Kept = 0 "time to live or hop limit" [0 "64"]
        "pkey" 31:16 Rw Engine = 0 "partition key"
    }
    Rqba Qp 0x18_0008 Rw "RQBA" E::None, Chosen("256-byte aligned: the low 8 bits read 0"),
    "Base of the receive buffers, low word." {
        "base_low" 31:8 Rw Kept = 0 "bus address, bits 31..8"
    }
    Sqba Qp 0x18_0010 Rw "SQBA" E::None, Stated,
    "Base of the send queue, low word." {
        "base_low" 31:5 Rw Kept = 0 "bus address, bits 31..5"
    }
    Cqba Qp 0x18_0018 Rw "CQBA" E::None, Stated,
    "Base of the completion queue, low word." {
        "base_low" 31:5 Rw Kept = 0 "bus address, bits 31..5"
    }
    Rqwptrdbadd Qp 0x18_0020 Rw "RQWPTRDBADD" E::None, Chosen("address 0 means no write-back"),
    "Where the receive producer index is written after each message, low word." {
        "address_low" 31:0 Rw Kept = 0 "bus address, bits 31..0"
    }
    Rqwptrdbaddmsb Qp 0x18_0024 Rw "RQWPTRDBADDMSB" E::None, Stated,
    "Where the receive producer index is written after each message, high word." {
        "address_high" 31:0 Rw Kept = 0 "bus address, bits 63..32"
    }
    Cqdbadd Qp 0x18_0028 Rw "CQDBADD" E::None, Chosen("address 0 means no write-back"),
    "Where CQHEAD is written after each completion, low word." {
        "address_low" 31:0 Rw Kept = 0 "bus address, bits 31..0"
    }
    Cqdbaddmsb Qp 0x18_002C Rw "CQDBADDMSB" E::None, Stated,
    "Where CQHEAD is written after each completion, high word." {
        "address_high" 31:0 Rw Kept = 0 "bus address, bits 63..32"
    }
    Cqhead Qp 0x18_0030 Ro "CQHEAD"
    E::None, Observed("counts 1..depth; 0 only after reset"),
    "Index of the last work request that completed." {
        "index" 15:0 Override Kept = 0 "1..depth"
    }
    Rqci Qp 0x18_0034 Rw "RQCI"
    E::None, Observed("counts 1..depth; equal to the producer index means empty"),
    "Index of the last receive buffer that software has emptied." {
        "index" 15:0 Rw Kept = 0 "0..depth" (Legal::ReceiveIndex)
    }
    Sqpi Qp 0x18_0038 Rw "SQPI"
    E::Qp(Q::SendDoorbell), Observed("counts 1..depth; the entry announced by v is v-1"),
    "Index of the last work request that software has posted: the send doorbell." {
        "index" 15:0 Rw Kept = 0 "1..depth" (Legal::SendIndex)
    }
    Qdepth Qp 0x18_003C Rw "QDEPTH" E::None, Stated,
    "Entries of the queues." {
        "sq" 15:0 Rw Kept = 0 "send and completion queue"
        "rq" 31:16 Rw Kept = 0 "receive queue"
    }
    Sqpsn RcQp 0x18_0040 Rw "SQPSN" E::Qp(Q::SendPsn), Chosen("a write while work is in flight is refused"),
    "PSN of the next request packet." {
        "psn" 23:0 Rw Engine = 0 "PSN"
    }
    Lstrqreq RcQp 0x18_0044 Rw "LSTRQREQ"
    E::Qp(Q::LastRequest), Observed("the next expected PSN is this one plus 1; opcode 0 makes a first SEND ONLY out of sequence"),
    "The last request packet that was accepted." {
        "psn" 23:0 Rw Engine = 0 "its PSN"
        "opcode" 31:24 Rw Engine = 0 "its BTH opcode"
    }
    Destqpconf Qp 0x18_0048 Rw "DESTQPCONF" E::Qp(Q::DestQp), Stated,
    "Queue pair number of the peer." {
        "qp" 23:0 Rw Engine = 0 "queue pair number"
    }
    Timeoutconf RcQp 0x18_004C Rw "TIMEOUTCONF"
    E::Qp(Q::Timeout), Chosen("timeout 0 and RNR retry 7 mean for ever, as in the standard"),
    "Timers and retry counts." {
        "timeout" 5:0 Rw Engine = 0 "local ACK timeout, 2^(XRNICADCONF[19:16] + value) clocks" [0 "none"]
        "retry" 10:8 Rw Engine = 0 "retries before the queue pair goes fatal"
        "rnr_retry" 13:11 Rw Engine = 0 "retries after RNR NAK" [7 "for ever"]
        "rnr_timer" 20:16 Rw Engine = 0 "timer code of the RNR NAKs that we send"
    }
    Macdesaddlsb Qp 0x18_0050 Rw "MACDESADDLSB" E::Qp(Q::DestMacLow), Stated,
    "MAC address of the peer, last four bytes." {
        "mac_low" 31:0 Rw Engine = 0 "bytes 2..5, byte 5 in bits 7..0"
    }
    Macdesaddmsb Qp 0x18_0054 Rw "MACDESADDMSB" E::Qp(Q::DestMacHigh), Stated,
    "MAC address of the peer, first two bytes." {
        "mac_high" 15:0 Rw Engine = 0 "bytes 0..1, byte 0 in bits 15..8"
    }
    Ipdesaddr1 Qp 0x18_0060 Rw "IPDESADDR1"
    E::Qp(Q::DestIp), Chosen("kept here, since the four words outlive a change of IP version; the engine's address follows"),
    "IP address of the peer: IPv4, or the last four bytes of IPv6." {
        "ip" 31:0 Rw Kept = 0 "address bits 31..0"
    }
    Ipdesaddr2 Qp 0x18_0064 Rw "IPDESADDR2" E::Qp(Q::DestIp), Stated,
    "IPv6 address of the peer, third word." {
        "ip" 31:0 Rw Kept = 0 "address bits 63..32"
    }
    Ipdesaddr3 Qp 0x18_0068 Rw "IPDESADDR3" E::Qp(Q::DestIp), Stated,
    "IPv6 address of the peer, second word." {
        "ip" 31:0 Rw Kept = 0 "address bits 95..64"
    }
    Ipdesaddr4 Qp 0x18_006C Rw "IPDESADDR4" E::Qp(Q::DestIp), Stated,
    "IPv6 address of the peer, first four bytes." {
        "ip" 31:0 Rw Kept = 0 "address bits 127..96"
    }
    Statssn RcQp 0x18_0080 Ro "STATSSN" E::Qp(Q::SendSequence), Stated,
    "Request messages sent." {
        "ssn" 23:0 Ro Engine = 0 "send sequence number"
    }
    Statmsn RcQp 0x18_0084 Ro "STATMSN"
    E::Qp(Q::MessageSequence), Observed("recovery writes it under override"),
    "Request messages received." {
        "msn" 23:0 Override Engine = 0 "message sequence number"
    }
    Statqp Qp 0x18_0088 Ro "STATQP"
    E::Qp(Q::QpStatus), Chosen("three fields are printed read/write though the row is RO: they are writable, since recovery clears them"),
    "State of the queue pair." {
        "fatal" 0:0 Ro Derived = 0 "stopped by an error"
        "rq_overflow" 1:1 Ro Kept = 0 "an RNR NAK was sent and no SEND was taken since"
        "sq_full" 2:2 Ro Derived = 0 "the send queue is full"
        "outstanding_full" 3:3 Ro Derived = 0 "no more packets may be outstanding"
        "cq_full" 4:4 Ro Derived = 0 "the completion FIFO is full; ours never is"
        "sq_empty" 9:9 Ro Derived = 1 "no work request waits to be fetched"
        "outstanding_empty" 10:10 Ro Derived = 1 "nothing waits for an answer"
        "retried" 11:11 Ro Kept = 0 "a packet was sent again"
        "nak_syndrome" 22:16 Rw Kept = 0 "syndrome of the last NAK received" [0x60 "PSN sequence error", 0x61 "invalid request", 0x62 "remote access error", 0x63 "remote operational error"]
        "retries" 26:24 Rw Engine = 0 "retries since the last progress"
        "rnr_naks" 30:28 Rw Engine = 0 "RNR NAKs received since the last progress"
    }
    Statcursqptr RcQp 0x18_008C Ro "STATCURSQPTR"
    E::Qp(Q::Outstanding), Chosen("the number of work requests that wait for an answer; an override write is taken and changes nothing"),
    "Work requests that wait for an answer." {
        "outstanding" 15:0 Override Derived = 0 "number of work requests"
    }
    Statrespsn RcQp 0x18_0090 Ro "STATRESPSN" E::Qp(Q::ResponsePsn), Stated,
    "PSN of the answer that is expected next." {
        "psn" 23:0 Ro Engine = 0 "PSN"
    }
    Statrqbufca RcQp 0x18_0094 Ro "STATRQBUFCA"
    E::Qp(Q::ReceiveBufferLow), Chosen("follows RQBA and STATRQPIDB; an override write is taken and changes nothing"),
    "Receive buffer that is filled next, low word." {
        "address_low" 31:8 Override Derived = 0 "bus address, bits 31..8"
    }
    Statwqe RcQp 0x18_0098 Ro "STATWQE" E::Qp(Q::WorkCount), Stated,
    "Work requests fetched." {
        "count" 15:0 Ro Derived = 0 "number, modulo 2^16"
    }
    Statrqpidb RcQp 0x18_009C Ro "STATRQPIDB"
    E::None, Observed("counts 1..depth"),
    "Index of the last receive buffer that holds a message." {
        "index" 15:0 Override Kept = 0 "0..depth"
    }
    Pd RcQp 0x18_00B0 Rw "PD" E::None, Chosen("the row breaks off in the chapter: RW, 24 bits, like PDPDNUM"),
    "Protection domain of the queue pair." {
        "pd" 23:0 Rw Kept = 0 "protection domain number"
    }
    Rqbamsb Qp 0x18_00C0 Rw "RQBAMSB" E::None, Stated,
    "Base of the receive buffers, high word." {
        "base_high" 31:0 Rw Kept = 0 "bus address, bits 63..32"
    }
    Sqbamsb Qp 0x18_00C8 Rw "SQBAMSB" E::None, Chosen("access cell blank: RW"),
    "Base of the send queue, high word." {
        "base_high" 31:0 Rw Kept = 0 "bus address, bits 63..32"
    }
    Cqbamsb Qp 0x18_00D0 Rw "CQBAMSB" E::None, Stated,
    "Base of the completion queue, high word." {
        "base_high" 31:0 Rw Kept = 0 "bus address, bits 63..32"
    }
    Statrqbufcamsb RcQp 0x18_00D8 Ro "STATRQBUFCAMSB"
    E::Qp(Q::ReceiveBufferHigh), Chosen("as STATRQBUFCA"),
    "Receive buffer that is filled next, high word." {
        "address_high" 31:0 Override Derived = 0 "bus address, bits 63..32"
    }
}
