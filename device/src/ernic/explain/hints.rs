//! What the engine's reasons mean in ERNIC's registers: where to look for what a reason's advice says.

use softrnic_engine::Reason;

/// The registers that a reason is about, in words.
#[must_use]
pub fn hint(reason: Reason) -> Option<&'static str> {
    HINTS.iter().find(|(other, _)| *other == reason).map(|(_, hint)| *hint)
}

const HINTS: &[(Reason, &str)] = &[
    (Reason::DestinationMac, "MACXADDMSB holds bytes 0 and 1, MACXADDLSB bytes 2 to 5"),
    (Reason::Ipv4DontFragmentClear, "no packet is taken without it"),
    (Reason::DestinationIp, "IPv4XADD, IPv6XADD1 to 4; word 1 has the last bytes"),
    (
        Reason::QpNotReady,
        "XRNICCONF[0], QPCONF[0], and XRNIC_CONF_QP_EN at least the queue pair's number",
    ),
    (Reason::QpInactive, "XRNIC_CONF_QP_EN (v3.1: XRNICCONF[15:8])"),
    (
        Reason::ErrorBufferUnset,
        "ERRBUFSZ, IPKTERRQSZ, OUTERRSTSQSZ or RESPERRSZ, and the base before it",
    ),
    (Reason::RetryBuffersTooSmall, "DATBUFBA and DATBUFSZ"),
    (Reason::HandshakeOff, "QPCONF[4] must be 0"),
    (Reason::SourceAddress, "MACDESADD, IPDESADDR"),
    (Reason::PsnAhead, "LSTRQREQ[23:0] plus 1"),
    (Reason::ReceiverNotReady, "move RQCI on, or raise QDEPTH[31:16]"),
    (Reason::LastOpcodeUnset, "write 0x04 (SEND ONLY) into LSTRQREQ[31:24]"),
    (Reason::OperationUnsupported, "SEND, WRITE and READ is all; no atomics"),
    (Reason::MessageTooLong, "8 MiB at most"),
    (Reason::ReceiveTooSmall, "QPCONF[31:16] is their size in units of 256 bytes"),
    (Reason::TooManyReads, "16 incoming READs at most"),
    (Reason::KeyUnknown, "bits 31 to 8 are the region table's row, bits 7 to 0 its BUFRKEY"),
    (Reason::ProtectionDomain, "PD of the queue pair, PDPDNUM of the row"),
    (Reason::AccessRights, "ACCESSDESC[3:0] is 0 for READ, 1 for WRITE, 2 for both"),
    (Reason::AddressRange, "VIRTADDR, and 48 bits of length in WRRDBUFLEN and ACCESSDESC[31:16]"),
    (Reason::WorkOpcodeIllegal, "`rnic explain WQE_OPCODE` lists them"),
    (Reason::WorkLength, "no empty SEND, and at most 8 MiB"),
    (Reason::RingIndex, "1 to QDEPTH; after the depth comes 1 again, and never 0"),
    (Reason::RingDepth, "write QDEPTH before SQPI and RQCI"),
    (
        Reason::DmaAddress,
        "the high word has a register of its own, next to or 0xB8 behind the low one; `rnic regs` lists them",
    ),
    (Reason::QpDisabled, "QPCONF[0], and XRNIC_CONF_QP_EN at least the queue pair's number"),
    (Reason::RegisterReadOnly, "XRNICADCONF[0]"),
    (
        Reason::RetryExceeded,
        "TIMEOUTCONF[5:0] is the timeout, and 0 means none; XRNICADCONF[2] keeps the queue pair from going fatal",
    ),
    (Reason::RnrRetryExceeded, "TIMEOUTCONF[13:11] is the count"),
    (Reason::RemoteAccess, "RTAG is (row << 8) | BUFRKEY of the peer"),
    (Reason::PathIncomplete, "QPCONF[7] chooses IPv6"),
];
