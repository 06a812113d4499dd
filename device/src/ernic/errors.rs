//! What the device writes down about errors: the error buffer, the response error buffer, the incoming and
//! the outgoing error status queue. Two tables say what their numbers mean.
//!
//! All four are rings: the write pointer is the next entry, counts from 0 and wraps, and nobody cares
//! whether software has read what is overwritten. Entry formats: see [`View::fatal`] and
//! [`Ernic::keep_packet`].

use softrnic_engine::packet::{FRAME_LEN_MAX, opcode};
use softrnic_engine::{Qpn, Reason, Verdict};

use super::registers::{Register, bits};
use super::row::Mark;
use super::status::FATAL;
use super::{Ernic, View};
use crate::memory::Memory;

/// One bit of the 64-bit syndrome that stands before a packet in an error buffer.
#[derive(Clone, Copy, Debug)]
pub struct SyndromeBit {
    /// Its number; bit 0 is the lowest.
    pub bit: u8,
    /// What sets it.
    pub reasons: &'static [Reason],
    /// In words.
    pub text: &'static str,
    /// How sure we are of the number.
    pub mark: Mark,
}

/// A code of the error status queues.
#[derive(Clone, Copy, Debug)]
pub struct FatalCode {
    /// Its number, 5 bits.
    pub code: u8,
    /// What leads to it.
    pub reasons: &'static [Reason],
    /// In words.
    pub text: &'static str,
    /// How sure we are of the number.
    pub mark: Mark,
}

const OURS: Mark = Mark::Chosen("no document lists it; bits from 48 on are this model's");
const PRIVATE: Mark = Mark::Chosen("no document lists it; this model's own number");

const fn bit(bit: u8, mark: Mark, text: &'static str, reasons: &'static [Reason]) -> SyndromeBit {
    SyndromeBit { bit, reasons, text, mark }
}

const fn code(code: u8, mark: Mark, text: &'static str, reasons: &'static [Reason]) -> FatalCode {
    FatalCode { code, reasons, text, mark }
}

/// The syndrome's bits (PG332, "ERNIC RX Path"). A packet sets the one of the first check that it fails.
pub const SYNDROME_BITS: &[SyndromeBit] = {
    use Mark::{Observed, Stated};
    use Reason as R;
    &[
        bit(0, Stated, "destination MAC is not ours", &[R::DestinationMac]),
        bit(2, Stated, "IP version is not the configured one", &[R::IpVersion, R::IpFamily]),
        bit(3, Stated, "IPv4 header length is not 20", &[R::Ipv4HeaderLength]),
        bit(5, Stated, "IPv4 flags are not 010", &[R::Ipv4DontFragmentClear, R::Ipv4MoreFragments]),
        bit(6, Stated, "IPv4 fragment offset is not 0", &[R::Ipv4Fragment]),
        bit(8, Stated, "destination IP is not ours", &[R::DestinationIp]),
        bit(9, Stated, "IPv4 header checksum is wrong", &[R::Ipv4HeaderChecksum]),
        bit(10, Stated, "IP length is out of range", &[R::IpLength]),
        bit(
            15,
            Observed("later guide's number"),
            "queue pair is not configured or not enabled",
            &[R::QpUnknown, R::QpNotReady, R::QpInactive, R::QpFatal],
        ),
        bit(
            20,
            Observed("later guide's number"),
            "access rights or address range",
            &[R::AccessRights, R::AddressRange, R::AddressAlignment],
        ),
        bit(
            21,
            Observed("later guide's number"),
            "PSN is not the expected one",
            &[R::PsnAhead, R::PsnBehindReceiverNotReady],
        ),
        bit(
            46,
            Observed("later guide's number"),
            "R_Key names no region of the queue pair's protection domain",
            &[R::KeyUnknown, R::ProtectionDomain],
        ),
        bit(
            48,
            OURS,
            "headers contradict each other or end early",
            &[
                R::FrameTooShort,
                R::FrameTooLong,
                R::TooManyVlanTags,
                R::Ipv6ExtensionHeader,
                R::UdpLength,
                R::GrhNextHeader,
                R::TransportVersion,
                R::PayloadNotAllowed,
                R::PadCount,
            ],
        ),
        bit(49, OURS, "ICRC is wrong", &[R::Icrc]),
        bit(
            50,
            OURS,
            "opcode is not supported",
            &[R::OpcodeUnknown, R::OperationDisabled, R::OperationUnsupported],
        ),
        bit(51, OURS, "opcode is out of sequence", &[R::OpcodeSequence, R::LastOpcodeUnset]),
        bit(52, OURS, "opcode's service is not the queue pair's", &[R::ServiceMismatch]),
        bit(53, OURS, "does not come from the peer", &[R::SourceAddress, R::PKey, R::QKey]),
        bit(
            54,
            OURS,
            "length does not fit the message, the path MTU or the receive buffer",
            &[R::PayloadLength, R::MessageTooLong, R::MessageEmpty, R::ReceiveTooSmall],
        ),
        bit(55, OURS, "queue of incoming READs is full", &[R::TooManyReads]),
        bit(
            56,
            OURS,
            "response does not fit any request",
            &[
                R::ResponseGhost,
                R::ResponseWhileRnr,
                R::ResponseImpliedNak,
                R::ResponseReserved,
                R::ResponseMalformed,
            ],
        ),
        bit(57, OURS, "duplicate that cannot be answered again", &[R::DuplicateNotReplayable]),
        bit(58, OURS, "memory of this device is missing", &[R::DmaAddress]),
    ]
};

/// Set where no other bit is.
const OTHER_BIT: u8 = 63;

/// The fatal codes (PG332 v4.3, table 5, where stated).
pub const FATAL_CODES: &[FatalCode] = {
    use Mark::{Observed, Stated};
    use Reason as R;
    &[
        code(
            0x01,
            Stated,
            "opcode sequence error; a NAK was sent",
            &[R::OpcodeSequence, R::LastOpcodeUnset],
        ),
        code(
            0x02,
            Stated,
            "unsupported opcode; a NAK was sent",
            &[R::OpcodeUnknown, R::OperationDisabled, R::OperationUnsupported],
        ),
        code(
            0x03,
            PRIVATE,
            "invalid request of the peer; a NAK was sent",
            &[
                R::PayloadLength,
                R::MessageTooLong,
                R::MessageEmpty,
                R::ReceiveTooSmall,
                R::TooManyReads,
            ],
        ),
        code(
            0x04,
            PRIVATE,
            "the peer may not touch these bytes; a NAK was sent",
            &[R::AccessRights, R::AddressRange, R::AddressAlignment, R::ProtectionDomain],
        ),
        code(
            0x05,
            Stated,
            "WQE processor: the work request or its memory is bad",
            &[
                R::WorkOpcodeIllegal,
                R::WorkLength,
                R::DmaAddress,
                R::RetryBuffersTooSmall,
                R::CompletionQueueFull,
                R::FrameTooLong,
                R::PathIncomplete,
            ],
        ),
        code(
            0x06,
            Stated,
            "response handler: an answer does not fit its request",
            &[R::ResponseMalformed, R::ResponseReserved],
        ),
        code(0x07, PRIVATE, "the peer did not answer within the retry count", &[R::RetryExceeded]),
        code(
            0x08,
            PRIVATE,
            "the peer had no receive buffer within the RNR retry count",
            &[R::RnrRetryExceeded],
        ),
        code(0x09, PRIVATE, "the peer answered NAK invalid request", &[R::RemoteInvalidRequest]),
        code(0x0A, PRIVATE, "the peer answered NAK remote access error", &[R::RemoteAccess]),
        code(
            0x0B,
            PRIVATE,
            "the peer answered NAK remote operational error",
            &[R::RemoteOperational],
        ),
        code(
            0x17,
            Observed("seen on a WRITE whose region index did not match"),
            "the R_Key names no region; a NAK was sent",
            &[R::KeyUnknown],
        ),
    ]
};

/// Any other reason, on our side and on the peer's.
const OTHER_CODES: (u8, u8) = (0x06, 0x03);

/// The syndrome of a packet that was refused for this reason.
#[must_use]
pub fn syndrome(reason: Reason) -> u64 {
    let row = SYNDROME_BITS.iter().find(|row| row.reasons.contains(&reason));
    1 << row.map_or(OTHER_BIT, |row| row.bit)
}

/// The code of a queue pair that went fatal for this reason.
#[must_use]
pub fn fatal_code(reason: Reason, by_peer: bool) -> u8 {
    let row = FATAL_CODES.iter().find(|row| row.reasons.contains(&reason));
    let (ours, peers) = OTHER_CODES;
    row.map_or(if by_peer { peers } else { ours }, |row| row.code)
}

/// Where one of the four rings is.
struct Ring {
    base: (Register, Register),
    size: Register,
    pointer: Register,
}

const ERROR_BUFFER: Ring = Ring {
    base: (Register::Errbufba, Register::Errbufbamsb),
    size: Register::Errbufsz,
    pointer: Register::Errbufwptr,
};
const RESPONSE_ERROR_BUFFER: Ring = Ring {
    base: (Register::Resperrpktba, Register::Resperrpktbamsb),
    size: Register::Resperrsz,
    pointer: Register::Resperrwrptr,
};
const INCOMING_QUEUE: Ring = Ring {
    base: (Register::Ipkterrqba, Register::Ipkterrqbamsb),
    size: Register::Ipkterrqsz,
    pointer: Register::Ipkterrqwptr,
};
const OUTGOING_QUEUE: Ring = Ring {
    base: (Register::Opkterrqba, Register::Opkterrqbamsb),
    size: Register::Outerrstsqsz,
    pointer: Register::Opterrstsqqptrdb,
};

const ALL_ERRORS: u32 = bits(Register::Xrnicconf, "error_buffer");
const STATUS_ENTRY_LEN: u32 = 8;
const SYNDROME_LEN: usize = 8;

impl Ernic {
    /// Writes the next entry of a ring. `entry_len` is the distance of two entries.
    fn append(
        &mut self,
        memory: &mut impl Memory,
        ring: &Ring,
        entry_len: u32,
        bytes: &[u8],
    ) -> Result<(), Reason> {
        let entries = self.status.word(ring.size) & 0xFFFF;
        if entries == 0 {
            return Err(Reason::ErrorBufferUnset);
        }
        let base = u64::from(self.status.word(ring.base.0))
            | u64::from(self.status.word(ring.base.1)) << 32;
        // Software may have written any pointer.
        let entry = (self.status.word(ring.pointer) & 0xFFFF) % entries;
        memory.write(base.wrapping_add(u64::from(entry) * u64::from(entry_len)), bytes)?;
        *self.status.word_mut(ring.pointer) = (entry + 1) % entries;
        Ok(())
    }

    /// Stores a refused packet: 8 bytes of syndrome, then the frame from its Ethernet header on, as much
    /// of it as the entry holds. What is behind a short frame stays as it was.
    ///
    /// Requests go to the error buffer, all of them if XRNICCONF\[5\] is set and otherwise those that made
    /// their queue pair fatal; responses go to the response error buffer.
    fn keep_packet(
        &mut self,
        memory: &mut impl Memory,
        frame: &[u8],
        verdict: &Verdict,
        reason: Reason,
        fatal: bool,
    ) {
        let response =
            verdict.opcode.is_some_and(|value| opcode::row(value).operation.is_response());
        let ring = if response { &RESPONSE_ERROR_BUFFER } else { &ERROR_BUFFER };
        if !response && !fatal && self.status.word(Register::Xrnicconf) & ALL_ERRORS == 0 {
            return;
        }
        let entry_len = self.status.word(ring.size) >> 16;
        let mut entry = [0; SYNDROME_LEN + FRAME_LEN_MAX];
        entry[..SYNDROME_LEN].copy_from_slice(&syndrome(reason).to_le_bytes());
        let kept = frame.len().min(FRAME_LEN_MAX);
        entry[SYNDROME_LEN..SYNDROME_LEN + kept].copy_from_slice(&frame[..kept]);
        let len = (SYNDROME_LEN + kept).min(entry_len as usize);
        let stored = if len < SYNDROME_LEN {
            Err(Reason::ErrorBufferUnset)
        } else {
            self.append(memory, ring, entry_len, &entry[..len])
        };
        if let Err(reason) = stored {
            self.faults[reason as usize] += 1;
        }
    }

    /// A frame was refused as invalid.
    pub(super) fn refused(
        &mut self,
        memory: &mut impl Memory,
        frame: &[u8],
        verdict: &Verdict,
        reason: Reason,
    ) {
        let fatal = self.last_fatal.take() == Some((verdict.qpn, reason));
        if fatal {
            // Counted with the packet.
            let faults = &mut self.faults[reason as usize];
            *faults = faults.saturating_sub(1);
        }
        self.keep_packet(memory, frame, verdict, reason, fatal);
    }
}

impl<M: Memory> View<'_, M> {
    /// A queue pair went fatal: interrupt, and 8 bytes in the incoming error status queue: the code in
    /// bits 15..0, the queue pair in 31..16, 0 above. Where the cause is on our side (bad work, no answer, a
    /// NAK) the outgoing queue gets the same entry, in the profiles that write it.
    pub(super) fn fatal(&mut self, q: Qpn, reason: Reason, by_peer: bool) {
        self.ernic.status.raise(FATAL);
        self.ernic.faults[reason as usize] += 1;
        self.ernic.last_fatal = Some((q, reason));
        self.ernic.data_buffers.release(q.get() as u16);
        let entry = u64::from(fatal_code(reason, by_peer)) | u64::from(q.get()) << 16;
        let outgoing = !by_peer && self.ernic.map.profile.outgoing_error_queue;
        for ring in [&INCOMING_QUEUE, &OUTGOING_QUEUE].into_iter().take(1 + usize::from(outgoing)) {
            let bytes = entry.to_le_bytes();
            if let Err(reason) = self.ernic.append(self.memory, ring, STATUS_ENTRY_LEN, &bytes) {
                self.ernic.faults[reason as usize] += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_has_one_bit_and_one_code_at_most() {
        for row in softrnic_engine::REASON_ROWS {
            let bits = SYNDROME_BITS.iter().filter(|bit| bit.reasons.contains(&row.reason));
            assert!(bits.count() <= 1, "{}", row.name);
            let codes = FATAL_CODES.iter().filter(|code| code.reasons.contains(&row.reason));
            assert!(codes.count() <= 1, "{}", row.name);
        }
        assert!(SYNDROME_BITS.windows(2).all(|pair| pair[0].bit < pair[1].bit));
        assert!(FATAL_CODES.windows(2).all(|pair| pair[0].code < pair[1].code));
        assert!(FATAL_CODES.iter().all(|row| row.code < 32));
        assert!(SYNDROME_BITS.iter().all(|row| row.bit < OTHER_BIT));
    }

    /// The bits that documents give a number.
    #[test]
    fn documented_syndrome_bits_each_have_a_reason_of_their_own() {
        let known: alloc::vec::Vec<_> =
            SYNDROME_BITS.iter().map(|row| row.bit).filter(|&bit| bit < 48).collect();
        assert_eq!(known, [0, 2, 3, 5, 6, 8, 9, 10, 15, 20, 21, 46]);
        assert_eq!(syndrome(Reason::DestinationMac), 1);
        assert_eq!(syndrome(Reason::KeyUnknown), 1 << 46);
        assert_eq!(syndrome(Reason::VerbsHandle), 1 << 63);
        assert_eq!(fatal_code(Reason::KeyUnknown, true), 0x17);
        assert_eq!(fatal_code(Reason::QpFatal, false), 0x06);
        assert_eq!(fatal_code(Reason::QpFatal, true), 0x03);
    }
}
