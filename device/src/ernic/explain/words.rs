//! Numbers of an ERNIC that are no registers: entries of queues and buffers, keys, opcodes.

use alloc::format;
use alloc::vec::Vec;

use softrnic_engine::Reason;
use softrnic_engine::explain::{Bits, Code, CodeMeaning, Explanation, FieldMeaning, Word};

use super::hint;
use crate::ernic::errors::{FATAL_CODES, SYNDROME_BITS, SyndromeBit};
use crate::ernic::queues::opcode;

const ERROR_SYNDROME: &str = "ERROR_SYNDROME";
const FATAL: &str = "FATAL";

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
        name: ERROR_SYNDROME,
        aliases: &["SYNDROME", "ERRBUF_SYNDROME", "ERRBUF"],
        width: 64,
        text: "First word of an error buffer entry: which check a packet failed. The frame's start follows.",
        source: "PG332, packet validation, bits 0 to 10; observed, bits 15, 20, 21 and 46; chosen, bits from 48 on",
        // One for each row of SYNDROME_BITS.
        fields: &[],
    },
    Word {
        name: FATAL,
        aliases: &["FATAL_CODE", "IPKTERR", "IPKTERRQ", "FATAL_ENTRY", "OPKTERR"],
        width: 64,
        text: "An entry of an error status queue: which queue pair an error stopped, and why.",
        source: "drivers, for the fields; a later guide, for codes 1, 2, 5 and 6; observed, code 0x17; the rest chosen",
        fields: &[
            bits("qp", 31, 16, "queue pair"),
            // Its codes are the rows of FATAL_CODES.
            bits("code", 15, 0, "why"),
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

/// What a word says. The tables of the error buffer and of the error status queues stand where the
/// device writes them.
#[must_use]
pub fn explain(word: &Word, value: Option<u64>) -> Explanation {
    let mut told = word.explain(value);
    if word.name == ERROR_SYNDROME {
        let known = SYNDROME_BITS.iter().fold(0, |bits, row| bits | 1 << row.bit);
        told.fields = SYNDROME_BITS.iter().rev().map(|row| syndrome_bit(row, value)).collect();
        told.reserved = value.map_or(0, |value| value & !known);
    } else if word.name == FATAL
        && let Some(field) = told.fields.iter_mut().find(|field| field.name == "code")
    {
        let rows =
            FATAL_CODES.iter().filter(|row| field.value.is_none_or(|v| v == row.code.into()));
        field.codes = rows.map(|row| meaning(row.code.into(), row.text, row.reasons)).collect();
    }
    told
}

fn syndrome_bit(row: &SyndromeBit, value: Option<u64>) -> FieldMeaning {
    let value = value.map(|value| value >> row.bit & 1);
    let codes = match value {
        Some(0) => Vec::new(),
        _ => alloc::vec![meaning(1, "yes", row.reasons)],
    };
    FieldMeaning {
        name: row.reasons[0].row().name,
        high: row.bit,
        low: row.bit,
        text: format!("{} ({})", row.text, row.mark.parts().0).into(),
        value,
        codes,
    }
}

/// A value that some reasons lead to: a single one says cause and advice, several are named.
fn meaning(value: u64, text: &'static str, reasons: &[Reason]) -> CodeMeaning {
    let (cause, advice) = match reasons {
        [only] => {
            let hint = hint(*only).map(|hint| format!(" Here: {hint}.")).unwrap_or_default();
            (only.row().text.into(), format!("{}{hint}", only.row().advice).into())
        }
        several => {
            let names: Vec<_> = several.iter().map(|reason| reason.row().name).collect();
            let cause = format!("One of {}.", names.join(", "));
            (cause.into(), "`rnic explain` with one of these names says what to do.".into())
        }
    };
    CodeMeaning { value, meaning: text.into(), cause, advice }
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

    fn word(name: &str) -> &'static Word {
        WORDS.iter().find(|word| word.is_called(name)).expect("a word")
    }

    #[test]
    fn every_bit_of_the_syndrome_and_every_fatal_code_is_explained() {
        for row in SYNDROME_BITS {
            let told = explain(word("syndrome"), Some(1 << row.bit));
            let set: Vec<_> = told.fields.iter().filter(|field| field.value == Some(1)).collect();
            assert_eq!((set.len(), set[0].high, told.reserved), (1, row.bit, 0));
            assert!(!set[0].codes[0].cause.is_empty() && !set[0].codes[0].advice.is_empty());
        }
        assert_eq!(explain(word("syndrome"), Some(2)).reserved, 2);
        for row in FATAL_CODES {
            let told = explain(word("fatal"), Some(3 << 16 | u64::from(row.code)));
            assert_eq!(told.fields[0].value, Some(3));
            assert_eq!(told.fields[1].codes.len(), 1, "{}", row.text);
        }
        assert_eq!(explain(word("fatal"), None).fields[1].codes.len(), FATAL_CODES.len());
    }

    #[test]
    fn a_completion_queue_entry_names_its_work_request() {
        let cqe = explain(word("cqe"), Some(0x0104_0007));
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
