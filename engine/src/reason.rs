//! Why something was refused: one table. A row gives the name that is counted and printed, and one
//! sentence for people.
//!
//! A reason is data. It leaves as a return value, is counted by the engine, and is written into
//! captures as the packet's comment. Nothing here decides anything.

use core::fmt;

/// One row of the reason table.
#[derive(Clone, Copy, Debug)]
pub struct ReasonRow {
    /// The reason itself.
    pub reason: Reason,
    /// Its counter's name.
    pub name: &'static str,
    /// One sentence for people.
    pub text: &'static str,
}

macro_rules! reasons {
    ($($variant:ident $name:literal $text:literal)*) => {
        /// Why a frame, work request or register access was refused.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum Reason { $(#[doc = $text] $variant),* }

        /// The reason table, in the order of the enum.
        pub const REASON_ROWS: &[ReasonRow] = &[
            $(ReasonRow { reason: Reason::$variant, name: $name, text: $text }),*
        ];
    };
}

reasons! {
    FrameTooShort "frame_too_short" "The frame ends inside a header."
    NotRoce "not_roce" "The frame is not RoCE: another EtherType, protocol or UDP port."
    FlowControl "flow_control_frame" "An Ethernet flow control frame (PAUSE or PFC), not RoCE."
    TooManyVlanTags "too_many_vlan_tags" "More than two VLAN tags."
    DestinationMac "destination_mac_not_ours" "The destination MAC address is not this port's."
    IpVersion "ip_version_wrong" "The IP version does not fit the EtherType."
    Ipv4HeaderLength "ipv4_header_length_not_20" "The IPv4 header carries options, which RoCE v2 does not allow."
    Ipv4HeaderChecksum "ipv4_header_checksum_wrong" "The IPv4 header checksum is wrong."
    Ipv4Fragment "ipv4_fragment" "The IPv4 packet is a fragment."
    Ipv4DontFragmentClear "ipv4_dont_fragment_clear" "The IPv4 flags are not 010, and this port insists on DF."
    Ipv6ExtensionHeader "ipv6_extension_header" "An IPv6 extension header stands before UDP."
    IpLength "ip_length_wrong" "The IP length does not fit the frame."
    UdpLength "udp_length_wrong" "The UDP length does not fit the IP length."
    GrhNextHeader "grh_next_header_wrong" "The GRH's next header is not 0x1B."
    Icrc "icrc_wrong" "The invariant CRC is wrong: bytes changed on the way."
    TransportVersion "transport_version_not_0" "BTH.TVer is not 0."
    OpcodeUnknown "opcode_unknown" "The BTH opcode is reserved or not implemented."
    PayloadNotAllowed "payload_not_allowed" "The opcode carries no payload, but the packet does."
    PadCount "pad_count_wrong" "The pad count does not fit the payload."
    DestinationIp "destination_ip_not_ours" "The destination IP address is not this port's."
    RoceV1 "roce_v1_not_served" "A RoCE v1 frame; this port serves RoCE v2 only."
    QpUnknown "qp_unknown" "No queue pair has the destination number."
    QpNotReady "qp_not_ready" "The queue pair is disabled or its state does not accept this packet."
    QpFatal "qp_in_error" "The queue pair is in the error state and takes nothing."
    ServiceMismatch "service_mismatch" "The opcode's transport service is not the queue pair's."
    SourceAddress "source_address_not_peer" "The packet does not come from the connected peer."
    PKey "pkey_mismatch" "The partition keys do not match."
    QKey "qkey_mismatch" "The datagram's queue key is not the queue pair's."
    MulticastGroup "multicast_group_not_attached" "No queue pair is attached to the multicast group."
    PsnResync "psn_resync" "An unreliable connection lost packets; the message that they belong to is dropped."
    PsnAhead "psn_ahead" "A packet before this one is missing; a NAK was sent or is outstanding."
    PsnBehindReceiverNotReady "psn_ahead_of_rnr" "Follows a packet that was refused with an RNR NAK."
    ReceiverNotReady "receiver_not_ready" "No receive buffer is posted."
    DuplicateNotReplayable "duplicate_not_replayable" "A duplicate READ or ATOMIC outside of what is remembered."
    OpcodeSequence "opcode_sequence_error" "The opcode may not follow the previous one."
    LastOpcodeUnset "last_opcode_not_set" "The QP was never told a plausible last opcode (LSTRQREQ bits 31:24), so this first packet is out of sequence."
    OperationDisabled "operation_not_enabled" "The queue pair does not allow the peer this operation."
    OperationUnsupported "operation_not_supported" "This device does not know the operation."
    PayloadLength "payload_length_wrong" "The payload length does not fit opcode, path MTU or announced length."
    MessageTooLong "message_too_long" "The message is longer than the standard or this device allows."
    ReceiveTooSmall "receive_buffer_too_small" "The message is longer than the receive buffer."
    TooManyReads "too_many_reads" "More READ or ATOMIC requests than the responder's depth."
    KeyUnknown "rkey_unknown" "The key's table row does not exist or holds another key."
    ProtectionDomain "protection_domain_mismatch" "The memory region belongs to another protection domain."
    AccessRights "access_rights_missing" "The memory region does not allow this access."
    AddressRange "address_out_of_range" "The addresses are not wholly inside the memory region."
    AddressAlignment "address_misaligned" "The address does not have the alignment that the operation needs."
    ResponseGhost "response_not_expected" "A response for a PSN that is not outstanding."
    ResponseWhileRnr "response_during_rnr_wait" "A NAK that arrived while an RNR wait is running."
    ResponseImpliedNak "implied_nak" "A response skipped an unanswered READ or ATOMIC; it will be asked for again."
    ResponseReserved "response_syndrome_reserved" "The AETH syndrome is reserved."
    ResponseMalformed "response_malformed" "The response has a wrong opcode or length for the request."
    CongestionNotification "congestion_notification" "A CNP: noted, not executed."
    WorkOpcodeIllegal "work_opcode_illegal" "The work request's opcode is reserved."
    WorkLength "work_length_wrong" "The work request's length is zero or above the limit where that is not allowed."
    WorkKey "work_local_key_wrong" "The work request's local key does not cover its buffer."
    RingIndex "ring_index_out_of_range" "A producer or consumer index is outside of the ring."
    RingDepth "ring_depth_zero" "A doorbell was rung for a queue whose depth is zero."
    DmaAddress "dma_address_outside_memory" "A bus address is outside of the memory that the device was given."
    CompletionQueueFull "completion_queue_full" "The completion queue has no room."
    QpDisabled "doorbell_on_disabled_qp" "A doorbell was rung for a queue pair that is not enabled."
    RegisterUnlisted "register_unlisted" "An access to an address that the register map does not list."
    RegisterReadOnly "register_read_only" "A write to a read-only register."
    RegisterValue "register_value_reserved" "A register was given a value that is reserved."
    RegisterAlignment "register_misaligned" "A register access that is not an aligned 32-bit word."
    RetryExceeded "retry_count_exceeded" "The peer did not acknowledge within the retry count."
    RnrRetryExceeded "rnr_retry_count_exceeded" "The peer had no receive buffer within the RNR retry count."
    RemoteInvalidRequest "remote_invalid_request" "The peer answered NAK invalid request."
    RemoteAccess "remote_access_error" "The peer answered NAK remote access error."
    RemoteOperational "remote_operational_error" "The peer answered NAK remote operational error."
    FrameTooLong "frame_too_long" "A frame that software built is longer than the link can take."
    PathIncomplete "path_incomplete" "The queue pair's addresses are missing or of mixed families."
    WorkQueueFull "work_queue_full" "A send or receive queue has no room for the work request."
    WorkSges "work_too_many_sges" "The work request has more scatter/gather elements than the queue's entries hold."
    VerbsHandle "verbs_handle_unknown_or_in_use" "A verb named an object that does not exist, or removes one that is in use."
    VerbsAttribute "verbs_attribute_out_of_range" "A verb was given an attribute that is out of range or not offered."
    VerbsExhausted "verbs_resources_exhausted" "A verb found no memory or no free number."
    MacControlUnknown "mac_control_unknown" "Not a PAUSE or PFC frame: another EtherType, a VLAN tag, or an unknown MAC control opcode."
    CommandOpcode "command_opcode_not_offered" "A command's opcode is unknown or not offered."
    CommandState "command_qp_state_wrong" "A queue pair command that the queue pair's state does not take."
    CommandQpn "command_qpn_taken_by_another" "A queue pair command's number has the low bits of another queue pair."
    ContextValue "qp_context_value_refused" "A queue pair context holds a value that cannot be obeyed."
    CongestionParameter "congestion_parameter_out_of_range" "A parameter of congestion control is out of its range."
}

impl Reason {
    /// Rows in the table.
    pub const COUNT: usize = REASON_ROWS.len();

    /// This reason's row.
    #[must_use]
    pub const fn row(self) -> &'static ReasonRow {
        &REASON_ROWS[self as usize]
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn reason_names_are_unique_and_rows_are_in_order() {
        let names: BTreeSet<_> = REASON_ROWS.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), Reason::COUNT);
        assert!(REASON_ROWS.iter().enumerate().all(|(i, row)| row.reason as usize == i));
    }
}
