//! Why something was refused: one table. A row gives the name that is counted and printed, one
//! sentence for people, and one that says what to do.
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
    /// What to do about it.
    pub advice: &'static str,
}

macro_rules! reasons {
    ($($variant:ident $name:literal $text:literal $advice:literal)*) => {
        /// Why a frame, work request or register access was refused.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum Reason { $(#[doc = $text] $variant),* }

        /// The reason table, in the order of the enum.
        pub const REASON_ROWS: &[ReasonRow] = &[
            $(ReasonRow {
                reason: Reason::$variant, name: $name, text: $text, advice: $advice,
            }),*
        ];
    };
}

reasons! {
    FrameTooShort "frame_too_short" "The frame ends inside a header."
        "Look at the frame with `rnic decode`: something cut it, or its sender forgot a header."
    NotRoce "not_roce" "The frame is not RoCE: another EtherType, protocol or UDP port."
        "Nothing to do if it was not meant as RoCE v2; otherwise check EtherType, UDP and destination port 4791."
    FlowControl "flow_control_frame" "An Ethernet flow control frame (PAUSE or PFC), not RoCE."
        "Nothing, unless this port should obey pauses: then switch PFC on at this port."
    TooManyVlanTags "too_many_vlan_tags" "More than two VLAN tags."
        "Have the switch take the outer tags off."
    DestinationMac "destination_mac_not_ours" "The destination MAC address is not this port's."
        "Compare the sender's destination MAC with this port's."
    IpVersion "ip_version_wrong" "The IP version does not fit the EtherType."
        "Mend the sender: the EtherType and the first four bits of the IP header contradict each other."
    Ipv4HeaderLength "ipv4_header_length_not_20" "The IPv4 header carries options, which RoCE v2 does not allow."
        "Have the sender leave IPv4 options out: the header must have 20 bytes."
    Ipv4HeaderChecksum "ipv4_header_checksum_wrong" "The IPv4 header checksum is wrong."
        "Compute the checksum over the 20 header bytes, or look for what changes them on the way."
    Ipv4MoreFragments "ipv4_more_fragments" "The IPv4 flags say that fragments follow."
        "Lower the sender's path MTU until no router has to split its packets."
    Ipv4Fragment "ipv4_fragment" "The IPv4 packet is a fragment."
        "Lower the sender's path MTU until no router has to split its packets."
    Ipv4DontFragmentClear "ipv4_dont_fragment_clear" "The IPv4 flags are not 010, and this port insists on DF."
        "Set the DF flag at the sender."
    Ipv6ExtensionHeader "ipv6_extension_header" "An IPv6 extension header stands before UDP."
        "Have the sender put UDP directly behind the IPv6 header."
    IpLength "ip_length_wrong" "The IP length does not fit the frame."
        "Mend the sender's IP length: it must end where the frame ends, padding apart."
    UdpLength "udp_length_wrong" "The UDP length does not fit the IP length."
        "Mend the sender's UDP length: it is the IP payload's length, ICRC included."
    GrhNextHeader "grh_next_header_wrong" "The GRH's next header is not 0x1B."
        "Set the GRH's next header to 0x1B at the sender."
    Icrc "icrc_wrong" "The invariant CRC is wrong: bytes changed on the way."
        "Look at the frame with `rnic decode`, which shows the ICRC that belongs there: bytes changed on the way, or the sender computes it over the wrong ones."
    TransportVersion "transport_version_not_0" "BTH.TVer is not 0."
        "Set BTH.TVer to 0 at the sender."
    OpcodeUnknown "opcode_unknown" "The BTH opcode is reserved or not implemented."
        "Look up the opcode with `rnic explain OPCODE=...`; the sender uses one that this device does not know."
    PayloadNotAllowed "payload_not_allowed" "The opcode carries no payload, but the packet does."
        "Mend the sender: acknowledgements and READ requests carry no payload."
    PadCount "pad_count_wrong" "The pad count does not fit the payload."
        "Set BTH.PadCnt to what rounds the payload up to four bytes."
    DestinationIp "destination_ip_not_ours" "The destination IP address is not this port's."
        "Compare the sender's destination IP with this port's, and the IP version that its queue pair uses."
    RoceV1 "roce_v1_not_served" "A RoCE v1 frame; this port serves RoCE v2 only."
        "Switch the sender to RoCE v2 (on Linux, choose a RoCE v2 GID index)."
    QpUnknown "qp_unknown" "No queue pair has the destination number."
        "Compare the sender's destination queue pair number with the numbers that exist here (`rnic show`)."
    QpNotReady "qp_not_ready" "The queue pair is disabled or its state does not accept this packet."
        "Enable the port and the queue pair before the peer sends (verbs: INIT, RTR, RTS)."
    QpInactive "qp_above_active_count" "The queue pair's number is above the number of active queue pairs."
        "Raise the number of active queue pairs to the highest number in use."
    QpFatal "qp_in_error" "The queue pair is in the error state and takes nothing."
        "Find out what failed it first (its first error completion, STATQP, the fatal queue), then recover the queue pair."
    ServiceMismatch "service_mismatch" "The opcode's transport service is not the queue pair's."
        "Create both queue pairs with the same service: RC, UC or UD."
    IpFamily "ip_version_not_the_peers" "The packet's IP version is not the one that the queue pair's peer has."
        "Give both ends addresses of one family."
    SourceAddress "source_address_not_peer" "The packet does not come from the connected peer."
        "Compare the sender's MAC and IP with the peer's addresses that this queue pair was given."
    PKey "pkey_mismatch" "The partition keys do not match."
        "Give both queue pairs the same partition key, at least one of them as a full member (bit 15 set)."
    QKey "qkey_mismatch" "The datagram's queue key is not the queue pair's."
        "Give both ends the same Q_Key."
    MulticastGroup "multicast_group_not_attached" "No queue pair is attached to the multicast group."
        "Attach a datagram queue pair to the group, or leave the group."
    PsnResync "psn_resync" "An unreliable connection lost packets; the message that they belong to is dropped."
        "Nothing: unreliable connections lose messages where packets are lost. Look for the loss."
    PsnAhead "psn_ahead" "A packet before this one is missing; a NAK was sent or is outstanding."
        "Nothing if it is rare: the peer sends again. If it is the first packet of a connection, the PSN that the peer starts with is not the one expected here."
    PsnBehindReceiverNotReady "psn_ahead_of_rnr" "Follows a packet that was refused with an RNR NAK."
        "Nothing: the peer sends it again after the RNR wait."
    ReceiverNotReady "receiver_not_ready" "No receive buffer is posted."
        "Post receive buffers sooner, or more of them; raise the peer's RNR retry count."
    DuplicateNotReplayable "duplicate_not_replayable" "A duplicate READ or ATOMIC outside of what is remembered."
        "Look at why the peer asks again so late; it may have more READs outstanding than this side allows."
    OpcodeSequence "opcode_sequence_error" "The opcode may not follow the previous one."
        "Mend the sender: FIRST, MIDDLE and LAST of one operation must follow each other. After a reconnection, set PSN and last opcode of both ends again."
    LastOpcodeUnset "last_opcode_not_set" "The QP was never told a plausible last opcode, so this first packet is out of sequence."
        "Tell the queue pair the opcode of the last request, a SEND ONLY say, together with the PSN, before the first packet arrives."
    OperationDisabled "operation_not_enabled" "The queue pair does not allow the peer this operation."
        "Allow it: give the queue pair remote READ, WRITE or atomic access."
    OperationUnsupported "operation_not_supported" "This device does not know the operation."
        "Do not use it with this device."
    MessageEmpty "zero_length_send" "A SEND of no bytes, which this device does not know."
        "Send at least one byte."
    PayloadLength "payload_length_wrong" "The payload length does not fit opcode, path MTU or announced length."
        "Give both ends the same path MTU; FIRST and MIDDLE packets must be exactly that long."
    MessageTooLong "message_too_long" "The message is longer than the standard or this device allows."
        "Send shorter messages: at most 2^31 bytes, or less where the device has a limit of its own."
    ReceiveTooSmall "receive_buffer_too_small" "The message is longer than the receive buffer."
        "Post larger receive buffers, or send shorter messages."
    TooManyReads "too_many_reads" "More READ or ATOMIC requests than the responder's depth."
        "Lower the peer's READ depth (max_rd_atomic) to this side's max_dest_rd_atomic."
    KeyUnknown "rkey_unknown" "The key's table row does not exist or holds another key."
        "Compare the R_Key with the memory region's."
    ProtectionDomain "protection_domain_mismatch" "The memory region belongs to another protection domain."
        "Create queue pair and memory region in the same protection domain."
    AccessRights "access_rights_missing" "The memory region does not allow this access."
        "Register the region with the rights that the peer needs."
    AddressRange "address_out_of_range" "The addresses are not wholly inside the memory region."
        "Compare the address and length with the region's."
    AddressAlignment "address_misaligned" "The address does not have the alignment that the operation needs."
        "Use an address with the alignment that the operation needs: 8 bytes for atomics."
    ResponseGhost "response_not_expected" "A response for a PSN that is not outstanding."
        "Nothing if it is rare: it answers something that was answered before. Otherwise another sender uses this connection's numbers."
    ResponseWhileRnr "response_during_rnr_wait" "A NAK that arrived while an RNR wait is running, or after it for what was sent before."
        "Nothing: the wait that is running covers it."
    ResponseImpliedNak "implied_nak" "A response skipped an unanswered READ or ATOMIC; it will be asked for again."
        "Nothing: it is asked for again. Look for the loss."
    ResponseReserved "response_syndrome_reserved" "The AETH syndrome is reserved."
        "Mend the peer: `rnic explain AETH_SYNDROME=...` says which syndromes exist."
    ResponseMalformed "response_malformed" "The response has a wrong opcode or length for the request."
        "Look at the peer with `rnic decode`: its answer does not fit what was asked, or the path MTUs differ."
    CongestionNotification "congestion_notification" "A CNP: noted, not executed."
        "Nothing: the sending rate or window is cut. Look for the congested link."
    WorkOpcodeIllegal "work_opcode_illegal" "The work request's opcode is reserved."
        "Write one of the opcodes that the device knows into the work request."
    WorkLength "work_length_wrong" "The work request's length is zero or above the limit where that is not allowed."
        "Give the work request a length that the device takes."
    WorkKey "work_local_key_wrong" "The work request's local key does not cover its buffer."
        "Use the lkey of a memory region that covers the whole buffer and, for receives and READs, allows local writes."
    RingIndex "ring_index_out_of_range" "A producer or consumer index is outside of the ring."
        "Write an index that is inside of the ring."
    RingDepth "ring_depth_zero" "A doorbell was rung for a queue whose depth is zero."
        "Give the queue its depth before the first doorbell."
    DmaAddress "dma_address_outside_memory" "A bus address is outside of the memory that the device was given."
        "Program a bus address that the device can reach: a virtual address, a freed buffer or swapped halves of 64 bits are the usual mistakes."
    ErrorBufferUnset "error_buffer_not_programmed" "An error could not be recorded: its buffer or queue has no entries, or entries too small."
        "Program base and size of every error buffer and queue before the port is switched on; entries of 256 bytes hold all headers."
    RetryBuffersTooSmall "retry_buffers_too_small" "All retry data buffers together do not hold one packet of the WRITE."
        "Give the device more or larger buffers: 4096 bytes each hold a packet of any path MTU."
    CompletionQueueFull "completion_queue_full" "The completion queue has no room."
        "Poll completions sooner, or create a deeper completion queue."
    QpDisabled "doorbell_on_disabled_qp" "A doorbell was rung for a queue pair that is not enabled."
        "Enable the queue pair first; the work is done once it is enabled."
    RegisterUnlisted "register_unlisted" "An access to an address that the register map does not list."
        "Check the offset with `rnic regs OFFSET`, and the profile: they do not all put queue pair 1 at the same place."
    RegisterReadOnly "register_read_only" "A write to a read-only register."
        "Leave it alone, or switch on the override that makes it writable where the register map says so."
    RegisterValue "register_value_reserved" "A register was given a value that is reserved."
        "Look at the values that `rnic regs NAME` lists for the field."
    RegisterAlignment "register_misaligned" "A register access that is not an aligned 32-bit word."
        "Access registers as aligned 32-bit words."
    RetryExceeded "retry_count_exceeded" "The peer did not acknowledge within the retry count."
        "Check that the peer is up, that both ends know each other's MAC, IP, queue pair number and PSN, and that the ACK timeout is longer than the round trip; the peer's own refusals say what it did not like."
    RnrRetryExceeded "rnr_retry_count_exceeded" "The peer had no receive buffer within the RNR retry count."
        "Have the peer post receive buffers; raise the RNR retry count (7 is for ever) or the peer's RNR timer."
    RemoteInvalidRequest "remote_invalid_request" "The peer answered NAK invalid request."
        "Look at what the peer refused: an operation it does not allow, a message too long for its buffer, too many READs, or opcodes out of order."
    RemoteAccess "remote_access_error" "The peer answered NAK remote access error."
        "Compare remote address, length and key of the work request with the peer's memory region, its rights and its protection domain."
    RemoteOperational "remote_operational_error" "The peer answered NAK remote operational error."
        "Look at the peer: it failed on its own side (its completion queue or memory), not on this request."
    FrameTooLong "frame_too_long" "A frame that software built is longer than the link can take."
        "Shorten the frame that software built to what the link takes."
    PathIncomplete "path_incomplete" "The queue pair's addresses are missing or of mixed families."
        "Give the queue pair the peer's MAC and IP, in the IP version that the port has an address of."
    WorkQueueFull "work_queue_full" "A send or receive queue has no room for the work request."
        "Poll completions before posting more, or create a deeper queue."
    WorkSges "work_too_many_sges" "The work request has more scatter/gather elements than the queue's entries hold."
        "Post fewer scatter/gather elements, or create the queue with more of them."
    VerbsHandle "verbs_handle_unknown_or_in_use" "A verb named an object that does not exist, or removes one that is in use."
        "Create it first; destroy what uses it before the thing itself."
    VerbsAttribute "verbs_attribute_out_of_range" "A verb was given an attribute that is out of range or not offered."
        "Use a value inside of the range that the error names."
    VerbsExhausted "verbs_resources_exhausted" "A verb found no memory or no free number."
        "Destroy what is no longer needed, or create smaller queues."
    MacControlUnknown "mac_control_unknown" "Not a PAUSE or PFC frame: another EtherType, a VLAN tag, or an unknown MAC control opcode."
        "Nothing, unless it was meant as PFC: then opcode 0x0101, EtherType 0x8808 and no VLAN tag."
    CommandOpcode "command_opcode_not_offered" "A command's opcode is unknown or not offered."
        "Look the opcode up; UPDATE_QP, SUSPEND_QP and UNSUSPEND_QP are known and not offered."
    CommandState "command_qp_state_wrong" "A queue pair command that the queue pair's state does not take."
        "Query the queue pair first; 2RST_QP leads out of every state."
    CommandQpn "command_qpn_taken_by_another" "A queue pair command's number has the low bits of another queue pair."
        "Reset the queue pair that has the place, or use a number with other low bits."
    ContextValue "qp_context_value_refused" "A queue pair context holds a value that cannot be obeyed."
        "The refusal names the field: correct it; `rnic decode --qpc` shows the whole context."
    CongestionParameter "congestion_parameter_out_of_range" "A parameter of congestion control is out of its range."
        "Use a value inside of the parameter's range, which its documentation gives."
    ReceiveBufferFull "receive_buffer_full" "The device's receive buffer was full: the peer sent in spite of a pause, or none was asked for."
        "Switch pauses on at both ends under one priority, or lower XOFF so that what is on its way still fits."
    OtherBufferFull "other_receive_buffer_full" "The device's receive buffer for traffic other than RoCE was full."
        "Switch pauses on for that class, or lower its XOFF."
    HandshakeOff "handshake_off" "The queue pair's hardware handshake is off, so its side-band ports do nothing."
        "Switch the handshake on, or ring through the registers."
}

impl Reason {
    /// Rows in the table.
    pub const COUNT: usize = REASON_ROWS.len();

    /// By the name that is counted and printed.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        REASON_ROWS.iter().find(|row| row.name == name).map(|row| row.reason)
    }

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
        assert_eq!(Reason::by_name("rkey_unknown"), Some(Reason::KeyUnknown));
        assert_eq!(Reason::by_name("rkey"), None);
    }

    #[test]
    fn a_row_says_in_sentences_what_happened_and_what_to_do() {
        for row in REASON_ROWS {
            for text in [row.text, row.advice] {
                assert!(text.ends_with('.') && text.len() > 10, "{}: {text:?}", row.name);
            }
        }
    }
}
