//! What this device does not do, or not beyond a bound, and what happens there: one table. A test stands
//! behind each line.

use super::row::Mark;

/// One limit and the reaction to what goes beyond it.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Its name.
    pub name: &'static str,
    /// The bound (PG332, "Unsupported Features" and "Feature Summary").
    pub limit: &'static str,
    /// What happens beyond.
    pub reaction: &'static str,
    /// How sure we are of the reaction.
    pub mark: Mark,
}

const SILENT: Mark = Mark::Chosen("the guide names the limit and is silent about what happens");

/// All of them.
pub const LIMITS: &[Limit] = &[
    Limit {
        name: "atomics",
        limit: "no atomics, neither way",
        reaction: "as work: illegal opcode; from a peer: NAK invalid request, fatal, code 0x02",
        mark: Mark::Stated,
    },
    Limit {
        name: "work opcodes",
        limit: "WRITE, SEND (both with immediate, SEND with invalidate), READ; on QP1 SEND only",
        reaction: "INTSTS[5], the entry completes with the error flag, fatal, code 0x05",
        mark: Mark::Stated,
    },
    Limit {
        name: "zero-length SEND",
        limit: "a SEND has at least one byte",
        reaction: "as work: completes with the error flag, fatal; from a peer: NAK invalid request, fatal",
        mark: SILENT,
    },
    Limit {
        name: "message length",
        limit: "8 MiB",
        reaction: "as work: completes with the error flag, fatal; from a peer: NAK invalid request, fatal",
        mark: SILENT,
    },
    Limit {
        name: "outstanding",
        limit: "16 request packets and 16 work requests of one queue pair without an answer",
        reaction: "the next waits",
        mark: Mark::Chosen("the guide does not say of what there may be 16"),
    },
    Limit {
        name: "incoming READs",
        limit: "16 READs of one queue pair that are not answered",
        reaction: "NAK invalid request, fatal",
        mark: Mark::Stated,
    },
    Limit {
        name: "IPv4 flags",
        limit: "DF set, MF clear, fragment offset 0",
        reaction: "dropped, syndrome bit 5 or 6",
        mark: Mark::Stated,
    },
    Limit {
        name: "IPv4 header length",
        limit: "20 bytes, no options",
        reaction: "dropped, syndrome bit 3",
        mark: Mark::Stated,
    },
    Limit {
        name: "regions of a queue pair",
        limit: "one, by its protection domain number",
        reaction: "none: the R_Key chooses among all regions of the domain",
        mark: Mark::Chosen("the table's R_Keys only make sense so"),
    },
    Limit {
        name: "64-byte rules",
        limit: "a peer's WRITEs and READs at multiples of 64 bytes, in multiples of 64, READs of more than 4",
        reaction: "none: any byte is reached; with strict_alignment NAK remote access error, fatal",
        mark: Mark::Chosen("AMD's own examples do not keep to it"),
    },
    Limit {
        name: "receive buffer",
        limit: "a SEND fits in one receive buffer",
        reaction: "NAK invalid request, fatal",
        mark: SILENT,
    },
    Limit {
        name: "receive ring",
        limit: "one message less than RQ depth",
        reaction: "RNR NAK, INTSTS[3], STATQP[1]",
        mark: Mark::Observed("a ring of 16 with RQCI 1 refused the first message"),
    },
    Limit {
        name: "queue pairs",
        limit: "C_NUM_QP - 1, and of these the ones up to XRNIC_CONF_QP_EN",
        reaction: "dropped, syndrome bit 15",
        mark: Mark::Stated,
    },
    Limit {
        name: "path MTU",
        limit: "256 to 4096 bytes",
        reaction: "codes 5 to 7 leave QPCONF[10:8] as it was",
        mark: SILENT,
    },
    Limit {
        name: "region length",
        limit: "48 bits",
        reaction: "addresses beyond: NAK remote access error, fatal",
        mark: Mark::Stated,
    },
];
