//! What lies in memory: send queue entries, completion queue entries, and ring indices.
//!
//! Layouts: PG332 v4.0, "Work Queue Entries" and "Work Completions". Bytes and arithmetic only;
//! knows no register and no platform.

use crate::error::Error;

/// Bytes of a send queue entry.
pub(crate) const WQE_BYTES: usize = 64;
/// Bytes of a completion queue entry.
pub(crate) const CQE_BYTES: usize = 4;
/// A SEND of at most this many bytes takes them from the entry itself, never from an address.
pub const INLINE_BYTES: usize = 16;
/// Largest message of one work request (PG332, "Unsupported Features": DMA length).
pub const MAX_MESSAGE_BYTES: u32 = 8 << 20;

/// What a work request does. The numbers are those of the entry's opcode byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Opcode {
    /// RDMA WRITE.
    Write = 0x00,
    /// RDMA WRITE WITH IMMEDIATE.
    WriteImm = 0x01,
    /// SEND.
    #[default]
    Send = 0x02,
    /// SEND WITH IMMEDIATE.
    SendImm = 0x03,
    /// RDMA READ.
    Read = 0x04,
    /// SEND WITH INVALIDATE.
    SendInv = 0x0C,
}

impl Opcode {
    /// Whether the message goes to the peer's receive queue, not to a region.
    #[must_use]
    pub const fn is_send(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::SendInv)
    }
}

/// Where a work request's bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Local<'a> {
    /// DMA memory. Not translated through the region table.
    Bus {
        /// Bus address.
        address: u64,
        /// Bytes.
        len: u32,
    },
    /// Bytes to copy into the entry: only for SENDs, at most [`INLINE_BYTES`].
    Inline(&'a [u8]),
}

/// A work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// The caller's id, given back by its completion.
    pub wrid: u16,
    /// What to do.
    pub opcode: Opcode,
    /// Where the bytes come from; for a READ, where they go.
    pub local: Local<'a>,
    /// Remote virtual address (WRITE, READ).
    pub remote_va: u64,
    /// Remote key (WRITE, READ), or the key to invalidate (SEND WITH INVALIDATE).
    pub rkey: u32,
    /// Immediate data, where the opcode has some.
    pub immediate: u32,
}

impl<'a> Request<'a> {
    /// SEND.
    #[must_use]
    pub const fn send(wrid: u16, local: Local<'a>) -> Self {
        Self { wrid, opcode: Opcode::Send, local, remote_va: 0, rkey: 0, immediate: 0 }
    }

    /// SEND WITH IMMEDIATE.
    #[must_use]
    pub const fn send_imm(wrid: u16, local: Local<'a>, immediate: u32) -> Self {
        Self { opcode: Opcode::SendImm, immediate, ..Self::send(wrid, local) }
    }

    /// SEND WITH INVALIDATE of one of the peer's keys.
    #[must_use]
    pub const fn send_inv(wrid: u16, local: Local<'a>, rkey: u32) -> Self {
        Self { opcode: Opcode::SendInv, rkey, ..Self::send(wrid, local) }
    }

    /// RDMA WRITE.
    #[must_use]
    pub const fn write(wrid: u16, local: Local<'a>, remote_va: u64, rkey: u32) -> Self {
        Self { wrid, opcode: Opcode::Write, local, remote_va, rkey, immediate: 0 }
    }

    /// RDMA WRITE WITH IMMEDIATE.
    #[must_use]
    pub const fn write_imm(
        wrid: u16,
        local: Local<'a>,
        remote_va: u64,
        rkey: u32,
        immediate: u32,
    ) -> Self {
        Self { opcode: Opcode::WriteImm, immediate, ..Self::write(wrid, local, remote_va, rkey) }
    }

    /// RDMA READ into local memory.
    #[must_use]
    pub const fn read(wrid: u16, local: Local<'a>, remote_va: u64, rkey: u32) -> Self {
        Self { opcode: Opcode::Read, ..Self::write(wrid, local, remote_va, rkey) }
    }
}

/// A send queue entry. `inline` is what goes to SDATA; its caller has put a short SEND's bytes there.
#[inline]
pub(crate) fn encode_wqe(request: &Request<'_>, inline: &[u8; INLINE_BYTES]) -> [u8; WQE_BYTES] {
    let (address, len) = match request.local {
        Local::Bus { address, len } => (address, len),
        Local::Inline(bytes) => (0, bytes.len() as u32),
    };
    let mut wqe = [0; WQE_BYTES];
    wqe[0..2].copy_from_slice(&request.wrid.to_le_bytes());
    wqe[4..12].copy_from_slice(&address.to_le_bytes());
    wqe[12..16].copy_from_slice(&len.to_le_bytes());
    wqe[16] = request.opcode as u8;
    wqe[20..28].copy_from_slice(&request.remote_va.to_le_bytes());
    wqe[28..32].copy_from_slice(&request.rkey.to_le_bytes());
    wqe[32..48].copy_from_slice(inline);
    wqe[48..52].copy_from_slice(&request.immediate.to_le_bytes());
    wqe
}

/// Refuses what the entry cannot say, or what the device's documents exclude.
#[inline]
pub(crate) fn check(request: &Request<'_>) -> Result<(), Error> {
    let (len, is_inline) = match request.local {
        Local::Bus { len, .. } => (u64::from(len), false),
        Local::Inline(bytes) => (bytes.len() as u64, true),
    };
    if is_inline && (len > INLINE_BYTES as u64 || !request.opcode.is_send()) {
        let allowed = "SENDs of at most 16 bytes; put the bytes into DMA memory";
        return Err(Error::Setting { field: "inline bytes", value: len, allowed });
    }
    // PG332 excludes SENDs of no bytes and READs of 4 or less. A WRITE of none asks whether the peer is there.
    if len == 0 && request.opcode != Opcode::Write || len > u64::from(MAX_MESSAGE_BYTES) {
        let allowed =
            "1 to 8388608 bytes per work request, or a WRITE of none; split longer messages";
        return Err(Error::Setting { field: "message length", value: len, allowed });
    }
    Ok(())
}

/// A completion queue entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cqe {
    pub(crate) wrid: u16,
    pub(crate) failed: bool,
}

impl Cqe {
    #[inline]
    pub(crate) fn decode(bytes: [u8; CQE_BYTES]) -> Self {
        Self { wrid: u16::from_le_bytes([bytes[0], bytes[1]]), failed: bytes[3] != 0 }
    }
}

/// The index after `index` in a ring that counts 0 (only after reset), 1, 2 ... depth, 1, 2 ...
/// Index v announces slot v - 1.
#[inline]
#[must_use]
pub(crate) const fn next(index: u16, depth: u16) -> u16 {
    if index >= depth { 1 } else { index + 1 }
}

/// The index `steps` after `index`; `steps` is at most `depth`.
#[inline]
#[must_use]
pub(crate) const fn advance(index: u16, steps: u16, depth: u16) -> u16 {
    let sum = index as u32 + steps as u32;
    if sum > depth as u32 { (sum - depth as u32) as u16 } else { sum as u16 }
}

/// Steps from one index to another. `None` where `to` cannot be an index of this ring.
#[inline]
#[must_use]
pub(crate) const fn distance(from: u16, to: u32, depth: u16) -> Option<u16> {
    if to > depth as u32 || (to == 0 && from != 0) {
        return None;
    }
    let to = to as u16;
    Some(if to >= from { to - from } else { to + (depth - from) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_count_from_1_to_depth_and_0_only_at_first() {
        let walk: alloc::vec::Vec<u16> =
            core::iter::successors(Some(0), |index| Some(next(*index, 4))).take(10).collect();
        assert_eq!(walk, [0, 1, 2, 3, 4, 1, 2, 3, 4, 1]);
    }

    #[test]
    fn a_distance_is_the_number_of_steps() {
        for depth in 2..=9 {
            for from in 0..=depth {
                let mut index = from;
                for steps in 0..depth {
                    assert_eq!(advance(from, steps, depth), index);
                    assert_eq!(distance(from, u32::from(index), depth), Some(steps));
                    index = next(index, depth);
                }
            }
        }
        assert_eq!(distance(0, 8, 8), Some(8), "a whole ring may be announced after reset");
    }

    #[test]
    fn an_index_outside_of_the_ring_is_refused() {
        assert_eq!(distance(3, 9, 8), None);
        assert_eq!(distance(3, 0, 8), None, "0 comes back only with a reset");
        assert_eq!(distance(0, 0, 8), Some(0));
        assert_eq!(distance(1, 0x1_0001, 8), None);
        assert_eq!(distance(0xFFFF, 1, 0xFFFF), Some(1));
    }

    #[test]
    fn an_entry_has_the_documented_layout() {
        let local = Local::Bus { address: 0x1122_3344_5566_7788, len: 0x0001_0203 };
        let request = Request::write_imm(0xA1B2, local, 0x99AA_BBCC_DDEE_FF00, 0x0C0D_0E0F, 0x42);
        let wqe = encode_wqe(&request, &[0x5A; 16]);
        let mut expected = [0; 64];
        expected[0..4].copy_from_slice(&[0xB2, 0xA1, 0, 0]); // WRID, reserved
        expected[4..12].copy_from_slice(&[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]); // LADDR
        expected[12..16].copy_from_slice(&[3, 2, 1, 0]); // LENGTH
        expected[16..20].copy_from_slice(&[1, 0, 0, 0]); // OPCODE, reserved
        expected[20..28].copy_from_slice(&[0, 0xFF, 0xEE, 0xDD, 0xCC, 0xBB, 0xAA, 0x99]); // ROFFSET
        expected[28..32].copy_from_slice(&[0x0F, 0x0E, 0x0D, 0x0C]); // RTAG
        expected[32..48].copy_from_slice(&[0x5A; 16]); // SDATA
        expected[48..52].copy_from_slice(&[0x42, 0, 0, 0]); // IMMDT
        assert_eq!(wqe, expected);
    }

    #[test]
    fn opcodes_are_the_documented_numbers() {
        let bus = Local::Bus { address: 0, len: 64 };
        let requests = [
            (Request::write(0, bus, 0, 0), 0x00),
            (Request::write_imm(0, bus, 0, 0, 0), 0x01),
            (Request::send(0, bus), 0x02),
            (Request::send_imm(0, bus, 0), 0x03),
            (Request::read(0, bus, 0, 0), 0x04),
            (Request::send_inv(0, bus, 0), 0x0C),
        ];
        for (request, code) in requests {
            assert_eq!(encode_wqe(&request, &[0; 16])[16], code);
        }
    }

    #[test]
    fn a_completion_entry_gives_id_and_error_flag() {
        assert_eq!(Cqe::decode([0x34, 0x12, 2, 0]), Cqe { wrid: 0x1234, failed: false });
        assert_eq!(Cqe::decode([0x34, 0x12, 2, 1]), Cqe { wrid: 0x1234, failed: true });
    }
}
