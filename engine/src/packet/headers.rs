//! Header layouts, byte for byte, as views on a frame. Big-endian throughout.
//!
//! Layouts only: which header follows which opcode is the opcode table's business.

use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::numbers::{Psn, Qpn, RKey};

macro_rules! header {
    ($(#[$meta:meta])* $name:ident { $($(#[$fmeta:meta])* $field:ident: $ty:ty),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
        #[repr(C)]
        pub struct $name { $($(#[$fmeta])* pub $field: $ty),* }
    };
}

header! {
    /// Base transport header, 12 bytes (IBTA vol 1, 9.2).
    Bth {
        /// OpCode.
        opcode: u8,
        /// SE (7), M (6), PadCnt (5..4), TVer (3..0).
        flags: u8,
        /// Partition key.
        pkey: U16,
        /// FECN (7), BECN (6), reserved (5..0). Not covered by the ICRC.
        ecn: u8,
        /// Destination QP.
        dest_qp: [u8; 3],
        /// AckReq (7), reserved (6..0).
        ack_req: u8,
        /// Packet sequence number.
        psn: [u8; 3],
    }
}

impl Bth {
    /// SE: solicited event.
    #[must_use]
    pub const fn solicited(&self) -> bool {
        self.flags & 0x80 != 0
    }

    /// M: path migration state.
    #[must_use]
    pub const fn migrated(&self) -> bool {
        self.flags & 0x40 != 0
    }

    /// PadCnt: 0 to 3.
    #[must_use]
    pub const fn pad_count(&self) -> u8 {
        self.flags >> 4 & 3
    }

    /// TVer: transport header version.
    #[must_use]
    pub const fn version(&self) -> u8 {
        self.flags & 15
    }

    /// AckReq.
    #[must_use]
    pub const fn ack_requested(&self) -> bool {
        self.ack_req & 0x80 != 0
    }

    /// DestQP.
    #[must_use]
    pub const fn dest_qpn(&self) -> Qpn {
        Qpn::new(be24(self.dest_qp))
    }

    /// PSN.
    #[must_use]
    pub const fn psn(&self) -> Psn {
        Psn::new(be24(self.psn))
    }
}

header! {
    /// RDMA extended transport header, 16 bytes (IBTA vol 1, 9.3.3).
    Reth {
        /// Remote virtual address.
        va: U64,
        /// Remote key.
        rkey: U32,
        /// Length of the whole message in bytes.
        dma_length: U32,
    }
}

impl Reth {
    /// The key as a number of its own.
    #[must_use]
    pub fn key(&self) -> RKey {
        RKey(self.rkey.get())
    }
}

header! {
    /// ACK extended transport header, 4 bytes (IBTA vol 1, 9.3.5).
    Aeth {
        /// See [`Syndrome`].
        syndrome: u8,
        /// Message sequence number.
        msn: [u8; 3],
    }
}

impl Aeth {
    /// The message sequence number.
    #[must_use]
    pub const fn msn(&self) -> u32 {
        be24(self.msn)
    }

    /// The syndrome by meaning.
    #[must_use]
    pub const fn kind(&self) -> Syndrome {
        Syndrome::of(self.syndrome)
    }
}

/// AETH syndrome by meaning (IBTA vol 1, 9.7.5.2; rule S-15).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syndrome {
    /// Positive, with the credit code 0..=31.
    Ack(u8),
    /// Receiver not ready, with the timer code 0..=31.
    Rnr(u8),
    /// Negative, with the code of [`nak_code`].
    Nak(u8),
    /// Reserved bits.
    Reserved(u8),
}

impl Syndrome {
    /// Splits the byte.
    #[must_use]
    pub const fn of(byte: u8) -> Self {
        match byte >> 5 {
            0 => Self::Ack(byte & 31),
            1 => Self::Rnr(byte & 31),
            3 => Self::Nak(byte & 31),
            _ => Self::Reserved(byte),
        }
    }

    /// Joins the byte.
    #[must_use]
    pub const fn byte(self) -> u8 {
        match self {
            Self::Ack(code) => code & 31,
            Self::Rnr(code) => 0x20 | code & 31,
            Self::Nak(code) => 0x60 | code & 31,
            Self::Reserved(byte) => byte,
        }
    }
}

/// NAK codes (IBTA vol 1, table 45; rule S-16).
pub mod nak_code {
    /// PSN sequence error.
    pub const PSN_SEQUENCE: u8 = 0;
    /// Invalid request.
    pub const INVALID_REQUEST: u8 = 1;
    /// Remote access error.
    pub const REMOTE_ACCESS: u8 = 2;
    /// Remote operational error.
    pub const REMOTE_OPERATIONAL: u8 = 3;
    /// Invalid RD request.
    pub const INVALID_RD_REQUEST: u8 = 4;
}

header! {
    /// Atomic extended transport header, 28 bytes (IBTA vol 1, 9.3.4).
    AtomicEth {
        /// Remote virtual address.
        va: U64,
        /// Remote key.
        rkey: U32,
        /// Swap value or addend.
        swap_or_add: U64,
        /// Value to compare with.
        compare: U64,
    }
}

header! {
    /// Atomic ACK extended transport header, 8 bytes (IBTA vol 1, 9.3.6).
    AtomicAckEth {
        /// Value before the operation.
        original: U64,
    }
}

header! {
    /// Immediate data, 4 bytes (IBTA vol 1, 9.3.7).
    ImmDt {
        /// The immediate.
        immediate: U32,
    }
}

header! {
    /// Invalidate extended transport header, 4 bytes (IBTA vol 1, 9.3.8).
    Ieth {
        /// Key to invalidate.
        rkey: U32,
    }
}

header! {
    /// Datagram extended transport header, 8 bytes (IBTA vol 1, 9.3.2).
    Deth {
        /// Queue key.
        qkey: U32,
        /// Reserved.
        reserved: u8,
        /// Source QP.
        source_qp: [u8; 3],
    }
}

impl Deth {
    /// The source QP.
    #[must_use]
    pub const fn source_qpn(&self) -> Qpn {
        Qpn::new(be24(self.source_qp))
    }
}

header! {
    /// XRC extended transport header, 4 bytes (annex A14).
    XrcEth {
        /// Reserved.
        reserved: u8,
        /// XRC shared receive queue number.
        srqn: [u8; 3],
    }
}

header! {
    /// FLUSH extended transport header, 4 bytes (annex A19).
    Feth {
        /// Placement type in bits 3..0, selectivity in bits 5..4.
        bits: U32,
    }
}

header! {
    /// Global route header, 40 bytes (IBTA vol 1, 8.3): RoCE v1.
    Grh {
        /// IPVer (31..28), TClass (27..20), FlowLabel (19..0).
        version_class_flow: U32,
        /// Bytes from the BTH to the ICRC inclusive.
        payload_length: U16,
        /// 0x1B.
        next_header: u8,
        /// Hop limit.
        hop_limit: u8,
        /// Source GID.
        sgid: [u8; 16],
        /// Destination GID.
        dgid: [u8; 16],
    }
}

const fn be24(bytes: [u8; 3]) -> u32 {
    u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]])
}
