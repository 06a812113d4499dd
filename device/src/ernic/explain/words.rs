//! Numbers of an ERNIC that are no registers: entries of queues and buffers, keys, opcodes.

use softrnic_engine::Reason;
use softrnic_engine::explain::{Bits, Code, Word};

use crate::ernic::queues::opcode;

/// A check that packets fail: its bit of the error buffer's syndrome, its name, and the reason.
macro_rules! failed {
    ($bit:literal $name:literal $reason:ident) => {
        Bits {
            name: $name,
            high: $bit,
            low: $bit,
            text: "this check failed",
            note: None,
            codes: &[
                Code::named(0, "no"),
                Code::new(1, "yes", Reason::$reason.row().text, Reason::$reason.row().advice),
            ],
        }
    };
}

/// The table.
pub const WORDS: &[Word] = &[
    Word {
        name: "CQE",
        aliases: &["COMPLETION_QUEUE_ENTRY"],
        width: 32,
        text: "A completion queue entry: which work request has ended, and how.",
        source: "PG332, work completions",
        fields: &[
            Bits {
                codes: &[
                    Code::named(0, "none"),
                    Code::new(
                        1,
                        "the work request failed, and the queue pair is fatal",
                        "What STATQP[22:16] and the incoming packet error status queue say: a NAK, used-up retries, or a fault of the entry itself. Entries that were flushed in recovery have it too.",
                        "Explain STATQP and the fatal queue's entry; then recover the queue pair.",
                    ),
                ],
                ..bits("error", 31, 24, "error flag")
            },
            Bits { codes: WQE_OPCODES, ..bits("opcode", 23, 16, "opcode of the work request") },
            bits("wrid", 15, 0, "identifier of the work request"),
        ],
    },
    Word {
        name: "WQE_OPCODE",
        aliases: &["WQE", "WORK_REQUEST_OPCODE"],
        width: 8,
        text: "Byte 16 of a send queue entry.",
        source: "PG332, work queue entries",
        fields: &[Bits { codes: WQE_OPCODES, ..bits("opcode", 7, 0, "what to do") }],
    },
    Word {
        name: "ERROR_SYNDROME",
        aliases: &["SYNDROME", "ERRBUF_SYNDROME", "ERRBUF"],
        width: 64,
        text: "First word of an error buffer entry: which checks a packet failed. The packet's header follows.",
        source: "PG332, packet validation, bits 0 to 10; observed, bits 15, 20, 21 and 46; the rest is not known",
        fields: &[
            failed!(46 "rkey" KeyUnknown),
            failed!(21 "psn" PsnAhead),
            failed!(20 "access" AddressRange),
            failed!(15 "queue_pair" QpUnknown),
            failed!(10 "ip_length" IpLength),
            failed!(9 "ipv4_checksum" Ipv4HeaderChecksum),
            failed!(8 "destination_ip" DestinationIp),
            failed!(6 "ipv4_fragment" Ipv4Fragment),
            failed!(5 "ipv4_flags" Ipv4DontFragmentClear),
            failed!(3 "ipv4_header_length" Ipv4HeaderLength),
            failed!(2 "ip_version" IpVersion),
            failed!(0 "destination_mac" DestinationMac),
        ],
    },
    Word {
        name: "FATAL",
        aliases: &["FATAL_CODE", "IPKTERR", "IPKTERRQ", "FATAL_ENTRY"],
        width: 64,
        text: "An entry of the incoming packet error status queue: which queue pair an error stopped, and why.",
        source: "drivers, for the fields; a later guide, for codes 1, 2, 5 and 6; observed, code 0x17",
        fields: &[
            bits("qp", 31, 16, "queue pair"),
            Bits { codes: FATAL_CODES, ..bits("code", 15, 0, "why") },
        ],
    },
    Word {
        name: "RKEY",
        aliases: &["R_KEY", "RTAG"],
        width: 32,
        text: "A remote key as it is on the wire.",
        source: "observed: drivers and hardware agree, the chapter is silent",
        fields: &[
            bits("row", 31, 8, "row of the memory region table"),
            bits("key", 7, 0, "BUFRKEY of that row"),
        ],
    },
    Word {
        name: "IETH_IMMDT",
        aliases: &["SIDE_BAND", "IMMEDIATE_ENTRY"],
        width: 64,
        text: "An entry of the immediate and invalidate side band.",
        source: "chosen: the record of v3.1, with three more bits of queue pair number",
        fields: &[
            bits("rq_producer", 63, 48, "STATRQPIDB after the message"),
            bits("qp_low", 47, 40, "queue pair, bits 7..0"),
            bits("qp_high", 38, 36, "queue pair, bits 10..8"),
            Bits {
                codes: &[
                    Code::named(1, "SEND WITH INVALIDATE"),
                    Code::named(2, "SEND WITH IMMEDIATE"),
                    Code::named(3, "WRITE WITH IMMEDIATE"),
                ],
                ..bits("type", 35, 32, "what arrived")
            },
            bits("data", 31, 0, "the immediate, or the key to invalidate"),
        ],
    },
];

const fn bits(name: &'static str, high: u8, low: u8, text: &'static str) -> Bits {
    Bits { name, high, low, text, note: None, codes: &[] }
}

const fn work(opcode: u8, name: &'static str) -> Code {
    Code::named(opcode as u64, name)
}

/// Codes of the incoming packet error status queue.
const FATAL_CODES: &[Code] = &[
    fatal(0x01, "opcode sequence error", Reason::OpcodeSequence),
    fatal(0x02, "unsupported opcode", Reason::OperationUnsupported),
    fatal(0x05, "the WQE processor met an error of our own", Reason::WorkOpcodeIllegal),
    fatal(0x06, "the response handler met an error of our own", Reason::ResponseMalformed),
    fatal(0x17, "no memory region has the key", Reason::KeyUnknown),
];

const fn fatal(value: u64, name: &'static str, reason: Reason) -> Code {
    Code::new(value, name, reason.row().text, reason.row().advice)
}

/// Opcodes of send queue entries. All others are reserved.
const WQE_OPCODES: &[Code] = &[
    work(opcode::WRITE, "RDMA WRITE"),
    work(opcode::WRITE_IMM, "RDMA WRITE WITH IMMEDIATE"),
    work(opcode::SEND, "SEND"),
    work(opcode::SEND_IMM, "SEND WITH IMMEDIATE"),
    work(opcode::READ, "RDMA READ"),
    work(opcode::SEND_INV, "SEND WITH INVALIDATE"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_word_stand_in_order_and_do_not_overlap() {
        for word in WORDS {
            let mut above = u32::from(word.width);
            for field in word.fields {
                assert!(u32::from(field.high) < above && field.low <= field.high, "{}", word.name);
                above = field.low.into();
            }
        }
    }

    #[test]
    fn a_completion_queue_entry_names_its_work_request() {
        let cqe =
            WORDS.iter().find(|word| word.is_called("cqe")).map(|w| w.explain(Some(0x0104_0007)));
        let cqe = cqe.expect("a word");
        let meanings: alloc::vec::Vec<_> = cqe
            .fields
            .iter()
            .map(|field| (field.value, field.codes.first().map(|code| &*code.meaning)))
            .collect();
        let failed = "the work request failed, and the queue pair is fatal";
        assert_eq!(
            meanings,
            [(Some(1), Some(failed)), (Some(4), Some("RDMA READ")), (Some(7), None)]
        );
    }
}
