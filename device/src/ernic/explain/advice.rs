//! What causes a register's value, and what to do: the values that people ask about.

use crate::ernic::registers::{Register, bits};
use crate::ernic::row::Field;

/// One answer.
pub(super) struct Advice {
    pub(super) register: Register,
    pub(super) field: &'static str,
    pub(super) when: When,
    pub(super) cause: &'static str,
    pub(super) advice: &'static str,
}

/// For which values of the field.
#[derive(Clone, Copy)]
pub(super) enum When {
    Is(u32),
    NotZero,
}

impl When {
    pub(super) const fn fits(self, value: u32) -> bool {
        match self {
            Self::Is(only) => value == only,
            Self::NotZero => value != 0,
        }
    }

    pub(super) const fn name(self, field: &Field) -> &'static str {
        match self {
            Self::Is(0) if field.high == field.low => "no",
            Self::NotZero if field.high != field.low => "not 0",
            Self::NotZero => "yes",
            Self::Is(_) => "",
        }
    }
}

/// A row whose field does not exist does not compile.
const _: () = {
    let mut i = 0;
    while i < ADVICE.len() {
        assert!(bits(ADVICE[i].register, ADVICE[i].field) != 0);
        i += 1;
    }
};

use When::{Is, NotZero};

macro_rules! advice {
    ($($register:ident $field:literal $when:expr; $cause:literal $advice:literal)*) => {
        /// The table.
        pub(super) const ADVICE: &[Advice] = &[$(Advice {
            register: Register::$register,
            field: $field,
            when: $when,
            cause: $cause,
            advice: $advice,
        }),*];
    };
}

advice! {
    Xrnicconf "enable" Is(0);
        "The device is off: as after reset, or switched off by software. Every frame is refused with qp_not_ready."
        "Set XRNICCONF[0] last, after addresses and buffers."
    Xrnicconf "ack_mode" Is(3);
        "Both bits were set; the documents leave that open, and here it is the same as 0."
        "Write 0, 1 or 2."
    Xrnicconf "ack_mode" Is(1);
        "Acknowledgements wait for a timer even where the peer asks for one, so its window opens late."
        "Write 0 or 2 if latency matters."
    Xrnicconf "udp_source_port" Is(0);
        "Nobody has set it; frames leave with source port 0, which some switches and hosts drop."
        "Write a port, in bits 23..8 (v3.1 had it in bits 31..16)."
    Xrnicadconf "override" Is(1);
        "Software has unlocked read-only registers, as it does in recovery, and not locked them again."
        "Clear it when recovery has ended: index registers written by accident lose work."
    Xrnicadconf "retry_not_fatal" Is(1);
        "Used-up retries do not stop a queue pair: it sends again for ever."
        "Clear it if a dead peer should be noticed."
    XrnicPauseConf "pause_roce" Is(0);
        "No pause frames go out for RoCE traffic: a full receive buffer loses frames."
        "Set it where the switch obeys PFC."
    XrnicConfQpEn "qps" Is(0);
        "As after reset: no queue pair runs, whatever QPCONF[0] says."
        "Write the highest queue pair number in use. (In v3.1 XRNICCONF[15:8] was this.)"
    Errbufsz "entries" Is(0);
        "The error buffer was never set up: headers of refused packets are lost, and the silicon was seen to stall without it."
        "Program base, number and size (256 entries of 256 bytes, say) before switching the device on."
    Errbufwptr "pointer" NotZero;
        "So many packets failed validation and left their headers in the error buffer."
        "Read the entries: a syndrome, then the header. `rnic explain SYNDROME=...` says which check failed."
    Ipkterrqwptr "pointer" NotZero;
        "So many queue pairs were stopped by an incoming packet."
        "Read the entries: `rnic explain FATAL=...` gives code and queue pair."
    Ipkterrqsz "entries" Is(0);
        "The queue was never set up: why a queue pair went fatal is lost."
        "Program base and size before switching the device on."
    Datbufsz "buffers" Is(0);
        "No retry buffers: the silicon was seen to stall on the first WRITE without them."
        "Program base, number and size (4096 bytes each, say) before switching the device on."
    Resperrsz "entries" Is(0);
        "The buffer for erroneous responses was never set up; it has to be valid."
        "Program base, number and size before switching the device on."
    Accessdesc "access" Is(0);
        "As after reset: the peer may READ, and a WRITE is refused."
        "Write 1 for WRITE only, 2 for both."
    Ininvdupcnt "invalid" NotZero;
        "Packets arrived that failed a check of addresses, checksums, state, order, keys or length."
        "Read the error buffer (ERRBUFWPTR). In this model each refusal has a reason: `rnic show`, or the comments of a capture."
    Ininvdupcnt "duplicate" NotZero;
        "Requests arrived that had been executed: an acknowledgement was lost or late, and the peer sent again."
        "Nothing if it is rare; otherwise look for lost acknowledgements, or raise the peer's ACK timeout."
    Inalldrppktcnt "dropped" NotZero;
        "Packets arrived that were not executed: invalid ones, and those without a receive buffer."
        "Look at ININVDUPCNT and OUTNAKPKTCNT to tell them apart."
    Innakpktcnt "nak" NotZero;
        "The peer refused requests, or lost packets before them."
        "STATQP[22:16] of the queue pair has the last syndrome."
    Outnakpktcnt "nak" NotZero;
        "We refused requests: lost packets before them, wrong keys, or no receive buffer (RNR)."
        "INTSTS[3] tells RNR apart; otherwise look at the error buffer."
    Retrycntsts "retries" NotZero;
        "Packets were sent again after a NAK or a timeout."
        "Nothing if it is rare; otherwise look for the loss, or raise the ACK timeout."
    Incnppktcnt "cnp" NotZero;
        "A switch marked our packets, and the peer told us: the window is cut."
        "Look for the congested link."
    Wqeprocsts "no_retry_buffer" Is(1);
        "WRITEs wait: all retry buffers hold data that the peer has not acknowledged."
        "Nothing if it passes; otherwise give more buffers in DATBUFSZ, or see why the peer does not acknowledge."
    Resphndsts "idle" Is(0);
        "A send doorbell is pending: work was announced that the device has not taken."
        "Wait for 1 before the next step of recovery."
    Intsts "invalid_packet" Is(1);
        "A packet failed validation since this bit was cleared."
        "Read the error buffer, then write 1. `rnic explain SYNDROME=...` says which check failed."
    Intsts "mad" Is(1);
        "A management datagram is in QP1's receive queue."
        "Take it (STATRQPIDB is not there for QP1: use the doorbell in memory), move RQCI on, write 1."
    Intsts "rnr_nak" Is(1);
        "A SEND found no receive buffer, and an RNR NAK went out."
        "Move RQCI on, or make the receive queue deeper; then write 1."
    Intsts "completion" Is(1);
        "A work request completed on a queue pair with QPCONF[3], or a bit of CQINTSTS is set."
        "Read the CQINTSTS words, write their ones back, take the completions; write 1."
    Intsts "illegal_opcode" Is(1);
        "A send queue entry has a reserved opcode in byte 16."
        "`rnic explain WQE_OPCODE` lists them. An entry shifted by some bytes or a wrong SQBA looks like this, too."
    Intsts "receive" Is(1);
        "A SEND arrived on a queue pair with QPCONF[2], or a bit of RQINTSTS is set."
        "Read the RQINTSTS words, write their ones back, take the messages, move RQCI on; write 1."
    Intsts "fatal" Is(1);
        "A queue pair was stopped by an error."
        "Read the incoming packet error status queue for code and queue pair (`rnic explain FATAL=...`), then recover it; write 1."
    Intsts "cnp" Is(1);
        "A packet arrived with the congestion mark."
        "Read the CNPSCHDSTS words and send a CNP through QP1 for each of those queue pairs; write 1."
    Qpconf "enable" Is(0);
        "As after reset, or switched off: the queue pair refuses packets with qp_not_ready, and sends nothing. Nothing is lost."
        "Set it once queues, addresses, PSNs and peer are programmed."
    Qpconf "handshake_off" Is(0);
        "Doorbells go through the side-band ports: drivers that ring through memory see nothing move."
        "Set QPCONF[4] unless hardware rings."
    Qpconf "cqe_write" Is(0);
        "No completion queue entries are written; only CQHEAD and its write-back tell of completions, not of errors."
        "Set QPCONF[5] to find out which work request failed."
    Qpconf "recovery" Is(1);
        "Software has begun recovery: nothing is sent, and what was posted completes with the error flag."
        "Go on: QPCONF[0] off, override on, indices to 0, new PSNs, QPCONF[0] on and [6] off, override off."
    Qpconf "rq_buffer" Is(0);
        "Receive buffers have no length: every SEND is too long for them."
        "Write the size in units of 256 bytes."
    Qpadvconf "pkey" Is(0);
        "As after reset. Peers that check partition keys refuse our packets."
        "Write 0xFFFF, the default partition, full member."
    Lstrqreq "opcode" Is(0);
        "As after reset: the last request was a SEND FIRST, so a first message of one packet is out of sequence (last_opcode_not_set)."
        "Write 0x04 (SEND ONLY) here together with the PSN."
    Timeoutconf "timeout" Is(0);
        "No timer: a lost packet, or a lost acknowledgement, is never noticed."
        "Write 14 (67 ms), or what suits the network."
    Timeoutconf "retry" Is(0);
        "The first timeout or sequence error stops the queue pair."
        "Write 7."
    Timeoutconf "rnr_retry" Is(0);
        "The first RNR NAK stops the queue pair."
        "Write 7, which is for ever."
    Timeoutconf "rnr_timer" Is(0);
        "Code 0 is the longest: the peer waits 655 ms for a receive buffer."
        "Write 1 for 10 us, 12 for 640 us."
    Qdepth "sq" Is(0);
        "The queue has no entries: doorbells are refused."
        "Write the depth before SQPI."
    Qdepth "rq" Is(0);
        "The queue has no buffers: every SEND is answered with an RNR NAK."
        "Write the depth, 2 or more: one buffer stays empty."
    Statqp "fatal" Is(1);
        "The peer's NAK or request, used-up retries, or a fault of our own queue entries and memory stopped it. Bits 22..16 have the last syndrome; the fatal queue has the code."
        "Recover: QPCONF[6] on, wait for bits 9 and 10 and for CQHEAD to reach SQPI, then the rest of the sequence (`rnic explain QPCONF`)."
    Statqp "rq_overflow" Is(1);
        "A SEND came while every receive buffer was full; the peer got an RNR NAK and tries again."
        "Take messages and move RQCI on. With RQCI never written, a ring of n buffers takes n-1 messages."
    Statqp "sq_full" Is(1);
        "As many work requests are posted and not completed as the ring has entries."
        "Wait for CQHEAD before posting more."
    Statqp "outstanding_full" Is(1);
        "The window is full: as many packets wait for the peer's acknowledgement as may."
        "Nothing if it passes; otherwise see why the peer does not acknowledge (LSTINPKT, INAMPKTCNT)."
    Statqp "sq_empty" Is(0);
        "Work waits in the send queue."
        "If it stays so: QPCONF[0], XRNIC_CONF_QP_EN, XRNICCONF[0], a full window, or an RNR wait hold it."
    Statqp "outstanding_empty" Is(0);
        "Requests wait for the peer's answer."
        "If it stays so: the peer does not answer. Compare addresses, queue pair numbers and PSNs of both ends."
    Statqp "retried" Is(1);
        "A NAK or a timeout made it send packets again."
        "Nothing if it is rare; RETRYCNTSTS counts them."
    Statqp "nak_syndrome" Is(0x60);
        "A packet of ours did not arrive, or our first PSN is not the one that the peer expects."
        "Compare SQPSN with the peer's LSTRQREQ[23:0] plus 1."
    Statqp "nak_syndrome" Is(0x61);
        "The peer does not allow the operation, its receive buffer is too small, too many READs wait, or its last opcode was never set."
        "Look at the peer's refusals and its LSTRQREQ[31:24]."
    Statqp "nak_syndrome" Is(0x62);
        "Key, range, rights or protection domain do not fit the peer's memory region."
        "Compare RTAG and ROFFSET of the work request with the peer's region row: RTAG is (row << 8) | BUFRKEY."
    Statqp "nak_syndrome" Is(0x63);
        "The peer failed on its own side."
        "Look at the peer."
    Statqp "retries" NotZero;
        "So many tries since the last progress; at TIMEOUTCONF[10:8] the queue pair goes fatal."
        "See whether the peer is there and answers."
    Statqp "rnr_naks" NotZero;
        "The peer had no receive buffer so many times; at TIMEOUTCONF[13:11] the queue pair goes fatal, but for 7."
        "Have the peer post receives."
    Statcursqptr "outstanding" NotZero;
        "So many work requests wait for the peer's answer."
        "If it stays so, the peer does not answer: compare addresses, queue pair numbers and PSNs."
}
