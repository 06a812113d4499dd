//! The words of InfiniBand and verbs: acknowledgements, codes of timers, and the numbers that
//! libibverbs' programs print.
//!
//! Values are those of IBTA volume 1 and of `<infiniband/verbs.h>`. No device has a word here.

use alloc::format;
use alloc::string::{String, ToString};

use super::{Bits, Code, Word, duration};
use crate::credits::credits;
use crate::numbers::{ack_timeout_ns, rnr_timer_ns};
use crate::packet::opcode;

/// The table.
pub const WORDS: &[Word] = &[
    Word {
        name: "AETH",
        aliases: &["ACK_EXTENDED_TRANSPORT_HEADER"],
        width: 32,
        text: "The header of an acknowledgement: how the request fared, and the number of the message.",
        source: "IBTA vol 1, 9.3.5",
        fields: &[
            Bits { high: 31, low: 24, ..SYNDROME },
            bits("msn", 23, 0, "requests that the responder has completed, modulo 2^24"),
        ],
    },
    Word {
        name: "AETH_SYNDROME",
        aliases: &["SYNDROME", "NAK_SYNDROME"],
        width: 8,
        text: "The first byte of an acknowledgement's header.",
        source: "IBTA vol 1, 9.7.5.2",
        fields: &[SYNDROME],
    },
    Word {
        name: "NAK_CODE",
        aliases: &["NAK"],
        width: 5,
        text: "Bits 4 to 0 of a NAK's syndrome.",
        source: "IBTA vol 1, table 45",
        fields: &[coded("code", 4, "why the responder refused", NAK_CODES)],
    },
    Word {
        name: "RNR_TIMER",
        aliases: &["RNR_TIMER_CODE", "MIN_RNR_TIMER", "RNR", "RNR_CODE"],
        width: 5,
        text: "How long a requester waits after an RNR NAK. Code 0 is the longest.",
        source: "IBTA vol 1, 9.7.5.2.8",
        fields: &[noted("timer", 4, "time to wait before it sends again", rnr_timer)],
    },
    Word {
        name: "ACK_TIMEOUT",
        aliases: &["TIMEOUT", "LOCAL_ACK_TIMEOUT"],
        width: 5,
        text: "How long a requester waits for an acknowledgement: 4.096 us x 2^code.",
        source: "IBTA vol 1, 9.7.6.1.3",
        fields: &[noted("timeout", 4, "time without an answer before it sends again", ack_timeout)],
    },
    Word {
        name: "CREDIT_CODE",
        aliases: &["CREDITS", "CREDIT"],
        width: 5,
        text: "End-to-end credits in a positive acknowledgement.",
        source: "IBTA vol 1, 9.7.7.2",
        fields: &[noted(
            "credits",
            4,
            "messages that may be sent beyond the acknowledged one",
            credit,
        )],
    },
    Word {
        name: "OPCODE",
        aliases: &["BTH_OPCODE"],
        width: 8,
        text: "BTH.OpCode: the transport service in bits 7 to 5, the operation below.",
        source: "IBTA vol 1, 9.2.1",
        fields: &[noted("opcode", 7, "what the packet is", opcode_name)],
    },
    Word {
        name: "PATH_MTU",
        aliases: &["MTU", "IBV_MTU"],
        width: 3,
        text: "Path MTU as verbs number it. A device's registers may count from 0 instead of 1.",
        source: "enum ibv_mtu",
        fields: &[coded("mtu", 2, "bytes of payload in a packet at most", PATH_MTUS)],
    },
    Word {
        name: "WC_STATUS",
        aliases: &["IBV_WC_STATUS", "WC", "STATUS"],
        width: 8,
        text: "How a work request ended.",
        source: "enum ibv_wc_status; IBTA vol 1, 11.6.2",
        fields: &[coded("status", 7, "completion status", WC_STATUSES)],
    },
    Word {
        name: "WC_OPCODE",
        aliases: &["IBV_WC_OPCODE"],
        width: 8,
        text: "What a completed work request did.",
        source: "enum ibv_wc_opcode",
        fields: &[coded("opcode", 7, "operation", WC_OPCODES)],
    },
    Word {
        name: "QP_STATE",
        aliases: &["IBV_QP_STATE", "STATE"],
        width: 4,
        text: "State of a queue pair.",
        source: "enum ibv_qp_state; IBTA vol 1, 10.3.1",
        fields: &[coded("state", 3, "state", QP_STATES)],
    },
    Word {
        name: "QP_TYPE",
        aliases: &["IBV_QP_TYPE"],
        width: 8,
        text: "Transport service of a queue pair.",
        source: "enum ibv_qp_type",
        fields: &[coded("type", 7, "service", QP_TYPES)],
    },
    Word {
        name: "ASYNC_EVENT",
        aliases: &["IBV_EVENT_TYPE", "EVENT"],
        width: 8,
        text: "An asynchronous event.",
        source: "enum ibv_event_type",
        fields: &[coded("event", 7, "event", ASYNC_EVENTS)],
    },
    Word {
        name: "ACCESS_FLAGS",
        aliases: &["IBV_ACCESS_FLAGS", "ACCESS"],
        width: 32,
        text: "What may be done with a memory region.",
        source: "enum ibv_access_flags",
        fields: &[
            flag("relaxed_ordering", 20, "the bus may reorder writes"),
            flag("huge_pages", 7, "memory is in huge pages"),
            flag("on_demand", 6, "pages are brought in on demand"),
            flag("zero_based", 5, "addresses count from 0"),
            flag("mw_bind", 4, "memory windows may be bound"),
            flag("remote_atomic", 3, "the peer may do atomics"),
            flag("remote_read", 2, "the peer may READ"),
            flag("remote_write", 1, "the peer may WRITE; needs local_write"),
            flag("local_write", 0, "our own NIC may write: receives and READs"),
        ],
    },
];

const SYNDROME: Bits = Bits {
    name: "syndrome",
    high: 7,
    low: 0,
    text: "how the request fared",
    note: Some(syndrome),
    codes: &[nak(0x60, 0), nak(0x61, 1), nak(0x62, 2), nak(0x63, 3), nak(0x64, 4)],
};

/// NAK codes (IBTA vol 1, table 45).
const NAK_CODES: &[Code] = &[
    Code::new(
        0,
        "PSN sequence error",
        "A request packet is missing: it was lost, or the first PSN is not the one that the responder expects.",
        "Nothing if it is rare: the requester goes back to that packet. Otherwise look for the loss, or compare the PSNs of both ends.",
    ),
    Code::new(
        1,
        "invalid request",
        "The responder does not allow or know the operation, its receive buffer is too small, too many READs wait, or opcodes are out of order.",
        "Look at what the responder refused and why; then recover or connect the queue pair again.",
    ),
    Code::new(
        2,
        "remote access error",
        "R_Key, address range, rights or protection domain do not fit the responder's memory region.",
        "Compare remote address, length and key of the request with the responder's region.",
    ),
    Code::new(
        3,
        "remote operational error",
        "The responder failed on its own side, on its completion queue or memory say.",
        "Look at the responder, not at the request.",
    ),
    Code::new(
        4,
        "invalid RD request",
        "Only reliable datagrams have it, and nobody builds them.",
        "Look at the sender: no RC responder answers so.",
    ),
];

const fn nak(value: u64, code: usize) -> Code {
    Code { value, ..NAK_CODES[code] }
}

const PATH_MTUS: &[Code] = &[
    Code::named(1, "IBV_MTU_256"),
    Code::named(2, "IBV_MTU_512"),
    Code::named(3, "IBV_MTU_1024"),
    Code::named(4, "IBV_MTU_2048"),
    Code::named(5, "IBV_MTU_4096"),
];

const WC_STATUSES: &[Code] = &[
    Code::named(0, "IBV_WC_SUCCESS"),
    Code::new(
        1,
        "IBV_WC_LOC_LEN_ERR",
        "The message is longer than its receive buffer, or the work request's length is not allowed.",
        "Post larger receives, or correct the length.",
    ),
    Code::new(
        2,
        "IBV_WC_LOC_QP_OP_ERR",
        "The queue pair could not execute the work request: an opcode it does not know, a broken entry, an address that is not there.",
        "Look at the work request that failed, field by field.",
    ),
    Code::new(
        3,
        "IBV_WC_LOC_EEC_OP_ERR",
        "Reliable datagrams only.",
        "Nobody has these: suspect the driver.",
    ),
    Code::new(
        4,
        "IBV_WC_LOC_PROT_ERR",
        "The local key does not cover the work request's buffer, or its region lacks local write.",
        "Check lkey, address and length of each element; register the region with IBV_ACCESS_LOCAL_WRITE for receives and READs.",
    ),
    Code::new(
        5,
        "IBV_WC_WR_FLUSH_ERR",
        "The queue pair went to the error state before this work request was executed.",
        "Look for the first completion of this queue pair that is not a flush: it has the cause.",
    ),
    Code::new(
        6,
        "IBV_WC_MW_BIND_ERR",
        "A memory window could not be bound.",
        "Check the window's region: its rights and its protection domain.",
    ),
    Code::new(
        7,
        "IBV_WC_BAD_RESP_ERR",
        "The peer's answer does not fit what was asked.",
        "Compare the path MTU of both ends, and look at the peer's answer with `rnic decode`.",
    ),
    Code::new(
        8,
        "IBV_WC_LOC_ACCESS_ERR",
        "A WRITE WITH IMMEDIATE or a receive ran into a region that does not allow it.",
        "Register the region with local write.",
    ),
    Code::new(
        9,
        "IBV_WC_REM_INV_REQ_ERR",
        "The peer answered NAK invalid request: an operation it does not allow, a message too long, too many READs.",
        "Look at the peer's refusals; check its access flags, receive lengths and max_dest_rd_atomic.",
    ),
    Code::new(
        10,
        "IBV_WC_REM_ACCESS_ERR",
        "The peer answered NAK remote access error: key, range, rights or protection domain.",
        "Compare rkey, remote address and length with the peer's region and its access flags.",
    ),
    Code::new(
        11,
        "IBV_WC_REM_OP_ERR",
        "The peer answered NAK remote operational error: it failed on its own side.",
        "Look at the peer.",
    ),
    Code::new(
        12,
        "IBV_WC_RETRY_EXC_ERR",
        "No answer within retry_cnt times the ACK timeout: the peer is down, unreachable, not in RTR, or drops every packet.",
        "Check MAC, IP, GID index, queue pair number and PSN of both ends; see the peer's refusals; see whether frames leave and arrive.",
    ),
    Code::new(
        13,
        "IBV_WC_RNR_RETRY_EXC_ERR",
        "The peer had no receive posted for rnr_retry times its RNR timer.",
        "Post receives before the peer sends; use rnr_retry 7, which is for ever.",
    ),
    Code::new(
        14,
        "IBV_WC_LOC_RDD_VIOL_ERR",
        "Reliable datagrams only.",
        "Nobody has these: suspect the driver.",
    ),
    Code::new(
        15,
        "IBV_WC_REM_INV_RD_REQ_ERR",
        "Reliable datagrams only.",
        "Nobody has these: suspect the driver.",
    ),
    Code::new(16, "IBV_WC_REM_ABORT_ERR", "The peer gave the operation up.", "Look at the peer."),
    Code::new(
        17,
        "IBV_WC_INV_EECN_ERR",
        "Reliable datagrams only.",
        "Nobody has these: suspect the driver.",
    ),
    Code::new(
        18,
        "IBV_WC_INV_EEC_STATE_ERR",
        "Reliable datagrams only.",
        "Nobody has these: suspect the driver.",
    ),
    Code::new(
        19,
        "IBV_WC_FATAL_ERR",
        "The device failed.",
        "Reset the device; look at the kernel's log.",
    ),
    Code::new(
        20,
        "IBV_WC_RESP_TIMEOUT_ERR",
        "A response did not come in time.",
        "As for IBV_WC_RETRY_EXC_ERR.",
    ),
    Code::new(
        21,
        "IBV_WC_GENERAL_ERR",
        "An error that no other status names.",
        "Look at vendor_err, and at the kernel's log.",
    ),
    Code::new(
        22,
        "IBV_WC_TM_ERR",
        "Tag matching failed.",
        "Check the tag matching list's operations.",
    ),
    Code::new(
        23,
        "IBV_WC_TM_RNDV_INCOMPLETE",
        "A rendezvous message was matched, but software has to finish it.",
        "Fetch the rest in software.",
    ),
];

const WC_OPCODES: &[Code] = &[
    Code::named(0, "IBV_WC_SEND"),
    Code::named(1, "IBV_WC_RDMA_WRITE"),
    Code::named(2, "IBV_WC_RDMA_READ"),
    Code::named(3, "IBV_WC_COMP_SWAP"),
    Code::named(4, "IBV_WC_FETCH_ADD"),
    Code::named(5, "IBV_WC_BIND_MW"),
    Code::named(6, "IBV_WC_LOCAL_INV"),
    Code::named(7, "IBV_WC_TSO"),
    Code::named(128, "IBV_WC_RECV"),
    Code::named(129, "IBV_WC_RECV_RDMA_WITH_IMM"),
];

const QP_STATES: &[Code] = &[
    Code::new(0, "IBV_QPS_RESET", "Just made, or reset.", "Go on to INIT."),
    Code::new(1, "IBV_QPS_INIT", "Receives can be posted; nothing arrives.", "Go on to RTR."),
    Code::new(
        2,
        "IBV_QPS_RTR",
        "Receives and answers; sends nothing of its own.",
        "Go on to RTS to send.",
    ),
    Code::new(3, "IBV_QPS_RTS", "Sends and receives.", ""),
    Code::new(
        4,
        "IBV_QPS_SQD",
        "Software drains the send queue: nothing new starts.",
        "Wait for IBV_EVENT_SQ_DRAINED, change what is to be changed, go back to RTS.",
    ),
    Code::new(
        5,
        "IBV_QPS_SQE",
        "A work request of an unreliable queue pair failed; receiving goes on.",
        "Look at the first error completion, then go back to RTS.",
    ),
    Code::new(
        6,
        "IBV_QPS_ERR",
        "Something failed, or software moved it here; everything posted is flushed.",
        "Look at the first completion that is not a flush; then RESET and connect again.",
    ),
    Code::named(7, "IBV_QPS_UNKNOWN"),
];

const QP_TYPES: &[Code] = &[
    Code::named(2, "IBV_QPT_RC"),
    Code::named(3, "IBV_QPT_UC"),
    Code::named(4, "IBV_QPT_UD"),
    Code::named(8, "IBV_QPT_RAW_PACKET"),
    Code::named(9, "IBV_QPT_XRC_SEND"),
    Code::named(10, "IBV_QPT_XRC_RECV"),
];

const ASYNC_EVENTS: &[Code] = &[
    Code::new(
        0,
        "IBV_EVENT_CQ_ERR",
        "The completion queue was overrun.",
        "Poll sooner or make it deeper; its queue pairs have to be made again.",
    ),
    Code::new(
        1,
        "IBV_EVENT_QP_FATAL",
        "The queue pair failed in a way that no completion could tell.",
        "Reset the queue pair and connect it again.",
    ),
    Code::new(
        2,
        "IBV_EVENT_QP_REQ_ERR",
        "The peer sent a request that is not valid here.",
        "Look at the peer's work request and at this queue pair's access flags.",
    ),
    Code::new(
        3,
        "IBV_EVENT_QP_ACCESS_ERR",
        "The peer asked for memory that it may not touch.",
        "Compare its rkey, address and length with the region.",
    ),
    Code::named(4, "IBV_EVENT_COMM_EST"),
    Code::named(5, "IBV_EVENT_SQ_DRAINED"),
    Code::named(6, "IBV_EVENT_PATH_MIG"),
    Code::new(
        7,
        "IBV_EVENT_PATH_MIG_ERR",
        "The other path does not work.",
        "Look at the alternate path.",
    ),
    Code::new(8, "IBV_EVENT_DEVICE_FATAL", "The device failed.", "Reset the device."),
    Code::named(9, "IBV_EVENT_PORT_ACTIVE"),
    Code::new(
        10,
        "IBV_EVENT_PORT_ERR",
        "The link went down.",
        "Look at the cable, the switch, the interface.",
    ),
    Code::named(11, "IBV_EVENT_LID_CHANGE"),
    Code::named(12, "IBV_EVENT_PKEY_CHANGE"),
    Code::named(13, "IBV_EVENT_SM_CHANGE"),
    Code::new(
        14,
        "IBV_EVENT_SRQ_ERR",
        "The shared receive queue failed.",
        "Make it and its queue pairs again.",
    ),
    Code::new(
        15,
        "IBV_EVENT_SRQ_LIMIT_REACHED",
        "Fewer receives wait in the shared receive queue than its limit.",
        "Post receives, and arm the limit again.",
    ),
    Code::named(16, "IBV_EVENT_QP_LAST_WQE_REACHED"),
    Code::named(17, "IBV_EVENT_CLIENT_REREGISTER"),
    Code::named(18, "IBV_EVENT_GID_CHANGE"),
];

const fn bits(name: &'static str, high: u8, low: u8, text: &'static str) -> Bits {
    Bits { name, high, low, text, note: None, codes: &[] }
}

const fn flag(name: &'static str, bit: u8, text: &'static str) -> Bits {
    bits(name, bit, bit, text)
}

const fn coded(name: &'static str, high: u8, text: &'static str, codes: &'static [Code]) -> Bits {
    Bits { name, high, low: 0, text, note: None, codes }
}

const fn noted(name: &'static str, high: u8, text: &'static str, note: fn(u64) -> String) -> Bits {
    Bits { name, high, low: 0, text, note: Some(note), codes: &[] }
}

/// A NAK code in words.
#[must_use]
pub fn nak_name(code: u8) -> &'static str {
    let found = NAK_CODES.iter().find(|row| row.value == u64::from(code));
    found.map_or("reserved code", |row| row.name)
}

/// A local ACK timeout's code in words.
#[must_use]
pub fn ack_timeout(code: u64) -> String {
    match ack_timeout_ns(code.min(255) as u8) {
        None => "no timer: a lost packet is never sent again".to_string(),
        Some(u64::MAX) => "longer than 500 years".to_string(),
        Some(ns) => duration(ns),
    }
}

/// An RNR timer's code in words.
#[must_use]
pub fn rnr_timer(code: u64) -> String {
    duration(rnr_timer_ns(code as u8))
}

/// An opcode with its service and what follows the BTH.
#[must_use]
pub fn opcode_name(value: u64) -> String {
    let row = opcode::row(value as u8);
    if !row.is_known() {
        return "reserved, or of a service that this engine does not know".to_string();
    }
    if row.name == row.transport.name() {
        return row.name.to_string();
    }
    format!("{} {}", row.transport.name(), row.name)
}

fn credit(code: u64) -> String {
    match credits(code as u8) {
        None => "not counted: no limit".to_string(),
        Some(credits) => format!("{credits}"),
    }
}

/// What the codes do not have: positive acknowledgements, RNR NAKs, reserved values.
fn syndrome(byte: u64) -> String {
    match byte >> 5 {
        0 => format!("ACK, credits {}", credit(byte & 31)),
        1 => format!("RNR NAK, sends again after {}", rnr_timer(byte & 31)),
        3 => "NAK with a reserved code".to_string(),
        _ => "reserved".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::face::Status;

    fn word(name: &str) -> &'static Word {
        WORDS.iter().find(|word| word.is_called(name)).unwrap()
    }

    #[test]
    fn fields_of_a_word_stand_in_order_and_do_not_overlap() {
        for word in WORDS {
            let mut above = u32::from(word.width);
            for field in word.fields {
                assert!(u32::from(field.high) < above && field.low <= field.high, "{}", word.name);
                above = field.low.into();
                let most = field.mask() >> field.low;
                for (i, code) in field.codes.iter().enumerate() {
                    assert!(code.value <= most, "{} {}", word.name, code.name);
                    assert!(field.codes[..i].iter().all(|other| other.value < code.value));
                }
            }
        }
    }

    #[test]
    fn every_status_of_the_engine_has_its_verbs_name() {
        let named = [
            (Status::Success, "IBV_WC_SUCCESS"),
            (Status::LocalLength, "IBV_WC_LOC_LEN_ERR"),
            (Status::LocalQpOperation, "IBV_WC_LOC_QP_OP_ERR"),
            (Status::LocalProtection, "IBV_WC_LOC_PROT_ERR"),
            (Status::Flushed, "IBV_WC_WR_FLUSH_ERR"),
            (Status::BadResponse, "IBV_WC_BAD_RESP_ERR"),
            (Status::RemoteInvalidRequest, "IBV_WC_REM_INV_REQ_ERR"),
            (Status::RemoteAccess, "IBV_WC_REM_ACCESS_ERR"),
            (Status::RemoteOperation, "IBV_WC_REM_OP_ERR"),
            (Status::RetryExceeded, "IBV_WC_RETRY_EXC_ERR"),
            (Status::RnrRetryExceeded, "IBV_WC_RNR_RETRY_EXC_ERR"),
        ];
        for (status, name) in named {
            let explained = word("wc-status").explain(Some(status as u64));
            assert_eq!(explained.fields[0].codes[0].meaning, name);
        }
    }

    #[test]
    fn an_aeth_is_split_and_its_nak_says_what_to_do() {
        let aeth = word("aeth").explain(Some(0x6200_0005));
        assert_eq!(aeth.fields[0].value, Some(0x62));
        assert_eq!(aeth.fields[0].codes[0].meaning, "remote access error");
        assert!(!aeth.fields[0].codes[0].advice.is_empty());
        assert_eq!((aeth.fields[1].value, aeth.reserved), (Some(5), 0));
        let rnr = word("AETH_SYNDROME").explain(Some(0x2E));
        assert_eq!(rnr.fields[0].codes[0].meaning, "RNR NAK, sends again after 1.28 ms");
        let ack = word("AETH_SYNDROME").explain(Some(0x1F));
        assert_eq!(ack.fields[0].codes[0].meaning, "ACK, credits not counted: no limit");
    }

    #[test]
    fn without_a_value_every_code_is_told() {
        assert_eq!(word("NAK").explain(None).fields[0].codes.len(), 5);
        assert_eq!(word("RNR").explain(Some(0)).fields[0].codes[0].meaning, "655.36 ms");
        assert_eq!(word("timeout").explain(Some(14)).fields[0].codes[0].meaning, "67.108 ms");
    }
}
