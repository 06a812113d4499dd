//! THE opcode table: value, name, service, extension headers, payload rule, place in the message.
//!
//! Parse, build, decode and the transport's dispatch all read this table (IBTA vol 1, 9.2.1 and
//! tables 35 and following; annexes A14 and A19). An opcode is one row; nothing else is edited.

/// Extension headers as a set. On the wire they always stand in the order of [`Ext::ORDER`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ext(u16);

impl Ext {
    /// No extension header.
    pub const NONE: Self = Self(0);
    /// XRC SRQ number.
    pub const XRCETH: Self = Self(1 << 0);
    /// Q_Key and source QP.
    pub const DETH: Self = Self(1 << 1);
    /// Placement type and selectivity of FLUSH.
    pub const FETH: Self = Self(1 << 2);
    /// Virtual address, R_Key, DMA length.
    pub const RETH: Self = Self(1 << 3);
    /// Address, key and operands of an atomic.
    pub const ATOMICETH: Self = Self(1 << 4);
    /// Syndrome and MSN.
    pub const AETH: Self = Self(1 << 5);
    /// Original value.
    pub const ATOMICACKETH: Self = Self(1 << 6);
    /// Immediate data.
    pub const IMMDT: Self = Self(1 << 7);
    /// R_Key to invalidate.
    pub const IETH: Self = Self(1 << 8);
    /// The 16 reserved bytes of a CNP.
    pub const CNP: Self = Self(1 << 9);

    /// Every header in wire order with its size in bytes.
    pub const ORDER: [(Self, u8); 10] = [
        (Self::XRCETH, 4),
        (Self::DETH, 8),
        (Self::FETH, 4),
        (Self::RETH, 16),
        (Self::ATOMICETH, 28),
        (Self::AETH, 4),
        (Self::ATOMICACKETH, 8),
        (Self::IMMDT, 4),
        (Self::IETH, 4),
        (Self::CNP, 16),
    ];

    /// Both sets together.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` is in this set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Bytes from the end of the BTH to the header `which`.
    const fn offset(self, which: Self) -> u8 {
        let (mut i, mut at) = (0, 0);
        while i < Self::ORDER.len() && Self::ORDER[i].0.0 != which.0 {
            if self.has(Self::ORDER[i].0) {
                at += Self::ORDER[i].1;
            }
            i += 1;
        }
        at
    }
}

/// The transport service, bits 7..5 of the opcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection.
    Xrc,
    /// Congestion notification.
    Cnp,
    /// Reserved, vendor or reliable datagram: not implemented anywhere.
    None,
}

impl Transport {
    /// The name as it is written before an opcode's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::Xrc => "XRC",
            Self::Cnp => "CNP",
            Self::None => "unknown",
        }
    }
}

/// What a packet asks or answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// SEND.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response.
    ReadResponse,
    /// ACK, NAK, RNR NAK.
    Acknowledge,
    /// ATOMIC ACK.
    AtomicAcknowledge,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
    /// FLUSH (IBTA 1.5).
    Flush,
    /// ATOMIC WRITE (IBTA 1.5).
    AtomicWrite,
    /// Congestion notification.
    Cnp,
    /// Not known.
    Unknown,
}

impl Operation {
    /// Whether it travels from responder to requester.
    #[must_use]
    pub const fn is_response(self) -> bool {
        matches!(self, Self::ReadResponse | Self::Acknowledge | Self::AtomicAcknowledge)
    }
}

/// Where a packet stands in its message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Position {
    /// Start of a message of several packets.
    First,
    /// Neither start nor end.
    Middle,
    /// End of a message of several packets.
    Last,
    /// The whole message.
    Only,
}

impl Position {
    /// All four.
    pub const ALL: [Self; 4] = [Self::First, Self::Middle, Self::Last, Self::Only];

    /// Whether a message starts with this packet.
    #[must_use]
    pub const fn starts(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether a message ends with this packet.
    #[must_use]
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// Which payload lengths an opcode may have; P is the path MTU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload {
    /// None at all.
    None,
    /// Exactly P, no padding.
    Full,
    /// 1 to P.
    OneToFull,
    /// 0 to P.
    ZeroToFull,
    /// Exactly 8.
    Eight,
}

/// One row: what an opcode is.
#[derive(Clone, Copy, Debug)]
pub struct OpcodeRow {
    /// BTH.OpCode.
    pub value: u8,
    /// Name without the service, as the standard writes it.
    pub name: &'static str,
    /// Transport service.
    pub transport: Transport,
    /// What it asks or answers.
    pub operation: Operation,
    /// Place in the message.
    pub position: Position,
    /// Extension headers after the BTH.
    pub ext: Ext,
    /// Payload rule.
    pub payload: Payload,
    /// Bytes of the BTH and all extension headers.
    pub header_len: u8,
    offsets: [u8; Ext::ORDER.len()],
}

impl OpcodeRow {
    /// Bytes from the start of the BTH to the extension header `which` (a single one), if present.
    #[must_use]
    pub const fn offset_of(&self, which: Ext) -> Option<usize> {
        if self.ext.has(which) && which.0 != 0 {
            Some(self.offsets[which.0.trailing_zeros() as usize] as usize)
        } else {
            None
        }
    }

    /// Whether the opcode is known.
    #[must_use]
    pub const fn is_known(&self) -> bool {
        !matches!(self.operation, Operation::Unknown)
    }

    const fn unknown(value: u8) -> Self {
        let transport = match value >> 5 {
            0 => Transport::Rc,
            1 => Transport::Uc,
            3 => Transport::Ud,
            5 => Transport::Xrc,
            _ => Transport::None,
        };
        Self {
            value,
            name: "RESERVED",
            transport,
            operation: Operation::Unknown,
            position: Position::Only,
            ext: Ext::NONE,
            payload: Payload::ZeroToFull,
            header_len: 12,
            offsets: [12; Ext::ORDER.len()],
        }
    }
}

/// The row of an opcode; unknown opcodes have a row too.
#[must_use]
pub const fn row(value: u8) -> &'static OpcodeRow {
    &TABLE[value as usize]
}

/// Every known row, in numeric order.
pub fn known() -> impl Iterator<Item = &'static OpcodeRow> {
    TABLE.iter().filter(|row| row.is_known())
}

/// BTH.OpCode of an RC packet with these properties, if there is one.
///
/// `imm` and `inv` choose the variants that carry ImmDt or IETH.
#[must_use]
pub const fn rc(operation: Operation, position: Position, imm: bool, inv: bool) -> Option<u8> {
    use Operation as O;
    use Position as P;
    Some(match (operation, position, imm, inv) {
        (O::Send, P::First, false, false) => SEND_FIRST,
        (O::Send, P::Middle, false, false) => SEND_MIDDLE,
        (O::Send, P::Last, false, false) => SEND_LAST,
        (O::Send, P::Last, true, false) => SEND_LAST_IMM,
        (O::Send, P::Only, false, false) => SEND_ONLY,
        (O::Send, P::Only, true, false) => SEND_ONLY_IMM,
        (O::Send, P::Last, false, true) => SEND_LAST_INV,
        (O::Send, P::Only, false, true) => SEND_ONLY_INV,
        (O::Write, P::First, false, false) => WRITE_FIRST,
        (O::Write, P::Middle, false, false) => WRITE_MIDDLE,
        (O::Write, P::Last, false, false) => WRITE_LAST,
        (O::Write, P::Last, true, false) => WRITE_LAST_IMM,
        (O::Write, P::Only, false, false) => WRITE_ONLY,
        (O::Write, P::Only, true, false) => WRITE_ONLY_IMM,
        (O::ReadResponse, P::First, _, _) => READ_RESPONSE_FIRST,
        (O::ReadResponse, P::Middle, _, _) => READ_RESPONSE_MIDDLE,
        (O::ReadResponse, P::Last, _, _) => READ_RESPONSE_LAST,
        (O::ReadResponse, P::Only, _, _) => READ_RESPONSE_ONLY,
        (O::ReadRequest, _, _, _) => READ_REQUEST,
        (O::Acknowledge, _, _, _) => ACKNOWLEDGE,
        (O::AtomicAcknowledge, _, _, _) => ATOMIC_ACKNOWLEDGE,
        (O::CompareSwap, _, _, _) => COMPARE_SWAP,
        (O::FetchAdd, _, _, _) => FETCH_ADD,
        _ => return None,
    })
}

/// What a UC opcode is above the RC opcode of the same packet.
pub const UC_BASE: u8 = 0x20;
/// Congestion notification packet (annex A17).
pub const CNP: u8 = 0x81;
/// UD SEND only.
pub const UD_SEND_ONLY: u8 = 0x64;
/// UD SEND only with immediate.
pub const UD_SEND_ONLY_IMM: u8 = 0x65;

const R: u8 = 1;
const U: u8 = 2;
const X: u8 = 4;

macro_rules! table {
    ($($name:ident $value:literal $services:expr, $operation:ident $position:ident [$($ext:ident)*] $payload:ident)*) => {
        $(#[doc = concat!("RC ", stringify!($name), "; UC is + 0x20, XRC + 0xA0, where they exist.")]
        pub const $name: u8 = $value;)*

        const TABLE: [OpcodeRow; 256] = {
            let mut table = [OpcodeRow::unknown(0); 256];
            let mut i = 0;
            while i < 256 {
                table[i] = OpcodeRow::unknown(i as u8);
                i += 1;
            }
            $({
                let ext = Ext::NONE$(.with(Ext::$ext))*;
                let services: u8 = $services;
                let operation = Operation::$operation;
                if services & R != 0 {
                    table[$value] = make($value, stringify!($name), Transport::Rc, operation, Position::$position, ext, Payload::$payload);
                }
                if services & U != 0 {
                    table[$value + 0x20] = make($value + 0x20, stringify!($name), Transport::Uc, operation, Position::$position, ext, Payload::$payload);
                }
                if services & X != 0 {
                    // Every XRC request carries XRCETH directly after the BTH (annex A14).
                    let ext = if operation.is_response() { ext } else { ext.with(Ext::XRCETH) };
                    table[$value + 0xA0] = make($value + 0xA0, stringify!($name), Transport::Xrc, operation, Position::$position, ext, Payload::$payload);
                }
            })*
            table[UD_SEND_ONLY as usize] = make(UD_SEND_ONLY, "SEND_ONLY", Transport::Ud, Operation::Send, Position::Only, Ext::DETH, Payload::ZeroToFull);
            table[UD_SEND_ONLY_IMM as usize] = make(UD_SEND_ONLY_IMM, "SEND_ONLY_IMM", Transport::Ud, Operation::Send, Position::Only, Ext::DETH.with(Ext::IMMDT), Payload::ZeroToFull);
            table[CNP as usize] = make(CNP, "CNP", Transport::Cnp, Operation::Cnp, Position::Only, Ext::CNP, Payload::None);
            table
        };
    };
}

const fn make(
    value: u8,
    name: &'static str,
    transport: Transport,
    operation: Operation,
    position: Position,
    ext: Ext,
    payload: Payload,
) -> OpcodeRow {
    let mut offsets = [0; Ext::ORDER.len()];
    let (mut i, mut header_len) = (0, 12);
    while i < Ext::ORDER.len() {
        offsets[i] = 12 + ext.offset(Ext::ORDER[i].0);
        if ext.has(Ext::ORDER[i].0) {
            header_len += Ext::ORDER[i].1;
        }
        i += 1;
    }
    OpcodeRow { value, name, transport, operation, position, ext, payload, header_len, offsets }
}

table! {
    SEND_FIRST           0x00 R | U | X, Send First [] Full
    SEND_MIDDLE          0x01 R | U | X, Send Middle [] Full
    SEND_LAST            0x02 R | U | X, Send Last [] OneToFull
    SEND_LAST_IMM        0x03 R | U | X, Send Last [IMMDT] OneToFull
    SEND_ONLY            0x04 R | U | X, Send Only [] ZeroToFull
    SEND_ONLY_IMM        0x05 R | U | X, Send Only [IMMDT] ZeroToFull
    WRITE_FIRST          0x06 R | U | X, Write First [RETH] Full
    WRITE_MIDDLE         0x07 R | U | X, Write Middle [] Full
    WRITE_LAST           0x08 R | U | X, Write Last [] OneToFull
    WRITE_LAST_IMM       0x09 R | U | X, Write Last [IMMDT] OneToFull
    WRITE_ONLY           0x0A R | U | X, Write Only [RETH] ZeroToFull
    WRITE_ONLY_IMM       0x0B R | U | X, Write Only [RETH IMMDT] ZeroToFull
    READ_REQUEST         0x0C R | X, ReadRequest Only [RETH] None
    READ_RESPONSE_FIRST  0x0D R | X, ReadResponse First [AETH] Full
    READ_RESPONSE_MIDDLE 0x0E R | X, ReadResponse Middle [] Full
    READ_RESPONSE_LAST   0x0F R | X, ReadResponse Last [AETH] OneToFull
    READ_RESPONSE_ONLY   0x10 R | X, ReadResponse Only [AETH] ZeroToFull
    ACKNOWLEDGE          0x11 R | X, Acknowledge Only [AETH] None
    ATOMIC_ACKNOWLEDGE   0x12 R | X, AtomicAcknowledge Only [AETH ATOMICACKETH] None
    COMPARE_SWAP         0x13 R | X, CompareSwap Only [ATOMICETH] None
    FETCH_ADD            0x14 R | X, FetchAdd Only [ATOMICETH] None
    SEND_LAST_INV        0x16 R | X, Send Last [IETH] OneToFull
    SEND_ONLY_INV        0x17 R | X, Send Only [IETH] ZeroToFull
    FLUSH                0x1C R | X, Flush Only [FETH RETH] None
    ATOMIC_WRITE         0x1D R | X, AtomicWrite Only [RETH] Eight
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f_30_the_table_knows_what_the_standard_lists() {
        assert_eq!(known().count(), 25 + 12 + 25 + 2 + 1);
        assert_eq!(row(0x0B).header_len, 12 + 16 + 4);
        assert_eq!(row(0x0B).offset_of(Ext::IMMDT), Some(28));
        assert_eq!(row(0xA4).offset_of(Ext::XRCETH), Some(12));
        assert_eq!(row(0xAD).ext, Ext::AETH);
        assert_eq!(row(0x1C).offset_of(Ext::RETH), Some(16));
        assert!(!row(0x15).is_known());
        assert_eq!(row(0x15).transport, Transport::Rc);
        assert_eq!(row(0x2C).operation, Operation::Unknown);
        for row in known().filter(|row| row.transport == Transport::Rc) {
            let imm = row.ext.has(Ext::IMMDT);
            let inv = row.ext.has(Ext::IETH);
            if !matches!(row.operation, Operation::Flush | Operation::AtomicWrite) {
                assert_eq!(rc(row.operation, row.position, imm, inv), Some(row.value));
            }
        }
    }
}
