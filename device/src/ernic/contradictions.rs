//! Where the register space chapter contradicts itself, other documents or hardware, and what this
//! model does. One table; the reference page is made from it.
//!
//! Says nothing that a register's row says better: a row's mark is the short form of the same.

use super::registers::Register;

/// One contradiction.
#[derive(Clone, Copy, Debug)]
pub struct Contradiction {
    /// Registers it is about; empty where it is about all of one kind.
    pub registers: &'static [Register],
    /// In a few words, where it is.
    pub place: &'static str,
    /// What does not fit.
    pub problem: &'static str,
    /// What this model does.
    pub choice: &'static str,
}

macro_rules! contradictions {
    ($([$($register:ident)*] $place:literal $problem:literal $choice:literal)*) => {
        /// The table, in the order of addresses as far as there is one.
        pub const CONTRADICTIONS: &[Contradiction] = &[$(Contradiction {
            registers: &[$(Register::$register),*],
            place: $place,
            problem: $problem,
            choice: $choice,
        }),*];
    };
}

contradictions! {
    [] "place of a queue pair's registers"
        "Printed for queue pair i at 0x18_0000 + (i-1) * 0x100; AMD's example design and hardware have them at 0x18_0000 + i * 0x100."
        "Profile `v4.0` as printed, profile `v4.0-silicon` as seen. No code but the profile knows of it."
    [Qpconf Qpadvconf] "first per-QP row"
        "Its text gives two addresses as if they were offsets of two queue pairs; they are two registers of one."
        "Two registers."
    [Bufbaseaddrlsb Sqbamsb] "access columns that are blank"
        "Nothing is printed."
        "RW: software cannot do without writing them."
    [Bufbaseaddrlsb Bufbaseaddrmsb] "low and high word of the region's base"
        "Each is described as the other."
        "The names hold: 0x0C is the low word, 0x10 the high one."
    [Accessdesc] "width of the access type"
        "Eight bits in the heading, four in the list below."
        "Bits 3..0; bits 15..4 are reserved, bits 31..16 are the length's upper bits. A reserved type is stored and grants nothing."
    [Xrnicadconf] "length of a base tick"
        "Printed a thousand times too long; the table of clocks next to it gives 4.096 us."
        "4.096 us."
    [Statcursqptr] "spelling"
        "The override's list spells the register with a letter more than its own row."
        "One register, under its row's name."
    [XrnicBufThresholdRoce XrnicBufThresholdNonRoce] "names that are cut short"
        "Both rows have the same first half of a name."
        "The names that drivers use."
    [Ipv6xadd1] "a field of 33 bits"
        "Bit 32 is counted in."
        "Bits 31..0."
    [XrnicConfQpEn Errbufba Errbufbamsb] "rows that are out of order"
        "Easily overlooked where they stand."
        "In the order of addresses here."
    [Errbufba Errbufbamsb] "low and high word of the error buffer's base"
        "Named unlike other pairs."
        "A pair of 64 bits like all others."
    [Opkterrqba Opkterrqbamsb Outerrstsqsz] "outgoing error status queue"
        "The text sends the reader to a page that does not describe it, no driver reads it, and later guides call it deprecated."
        "Profile `v4.0` writes it: 8 bytes as in the incoming queue, for causes on our side. The other profiles keep the registers and write no entry."
    [Opterrstsqqptrdb Ipkterrqwptr] "two write pointers of the same kind"
        "One is RW, its twin RO."
        "As printed."
    [Resperrwrptr] "what the write pointer holds"
        "The chapter: the pointer. Another page: an address that software writes. A driver: half of a size."
        "RW, as printed; what software wrote is kept until the pointer moves."
    [Wqeprocsts] "bit 12"
        "Claimed by the sticky back pressure flag and by the FSM above it."
        "The flag has it; the FSM is bits 15..13. Dumps of hardware fit both readings."
    [Resphndsts] "bit 16"
        "Printed as a part of the FSM; every driver waits in recovery for it to be 1."
        "A bit of its own: 1 while no send doorbell is pending. The FSM is bits 15..11."
    [Intsts] "bit 8"
        "Described as an enable."
        "A status like the others."
    [Rqintsts Cqintsts] "access of the banks"
        "An abbreviation that the chapter's own list does not have."
        "Writing 1 clears that bit."
    [Rqintsts Cqintsts Cnpschdsts] "word 30 of each bank"
        "The printed range ends in the middle of the word."
        "32 queue pairs, as in every word."
    [Rqintsts Cqintsts] "words 51 and 63"
        "The printed ranges end one too high."
        "32 queue pairs, as in every word."
    [Rqintsts Cqintsts Cnpschdsts] "bit 0 of the first word"
        "Given to a queue pair 0, which does not exist; later guides give it to number C_NUM_QP."
        "Never set."
    [Cnpschdsts] "how a bit is cleared"
        "RO, with no rule that clears it."
        "Writing 1 clears it; so does the CNP that software sends to that queue pair's peer."
    [Qpconf] "what the receive buffer's size may be"
        "Called a power of two; AMD's own example uses other numbers. Bits 1 and 15..11 are not described."
        "Any number of 256 byte units; undescribed bits are ignored and read 0."
    [Rqba] "total size of the receive buffers"
        "The sentence is broken."
        "Size of one buffer times the depth; the base is 256 byte aligned, and its low 8 bits read 0."
    [Cqba] "which completion queue"
        "Called that of the send queue, as if there were another."
        "The only one of the queue pair."
    [Rqbamsb] "address formula"
        "A bracket is missing."
        "The same formula as everywhere."
    [Cqhead] "reserved bits"
        "All 32 bits are reserved, the index among them."
        "Bits 31..16."
    [Cqdbaddmsb] "name"
        "Has the name of the low word."
        "The high word."
    [Lstrqreq Sqpsn] "who owns the PSNs"
        "Described as the hardware's; yet software has to set the first ones."
        "RW; the device moves them on."
    [Timeoutconf] "whether QP1 has it"
        "Listed for every queue pair, and said not to be there for QP1; stands out of order."
        "Not for QP1, where it reads 0 and a write is counted and ignored."
    [Statqp] "fields that can be written in a register that cannot"
        "The row is RO, three of its fields are read/write."
        "The three fields are writable at any time: recovery clears them."
    [Statcursqptr] "pointer or number"
        "The name says pointer, the text says how many work requests wait for an answer."
        "The number."
    [Statrqpidb Statrqbufca Statwqe Pd] "QP1"
        "QP1 has a receive queue, but not these registers."
        "They read 0 there; the position is kept inside, and the doorbell write-back tells it."
    [Pd] "the last row"
        "The chapter breaks off in it."
        "24 bits, RW, as the region table's PDPDNUM."
    [XrnicConfQpEn] "how many queue pairs there are"
        "Rows exist for 1 to C_NUM_QP, but only C_NUM_QP - 1 can be used, and 11 bits cannot hold 2048."
        "The highest number that may run; the field is log2(C_NUM_QP) bits wide, as hardware was seen to read back."
    [Xrnicconf] "ACK mode 3"
        "Not defined."
        "As mode 0."
    [Intsts Rqintsts Cqintsts] "how causes and banks hang together"
        "Not said; drivers do it in two ways."
        "Bits 4 and 6 read 1 while latched or while their bank has a bit. Writing 1 clears the latch; clearing a bank's last bit clears it, too."
    [Insrrpktcnt Inampktcnt Outiopktcnt Outampktcnt Ininvdupcnt Inalldrppktcnt] "counters of 16 bits"
        "No word about what comes after 65535, nor how they are cleared."
        "Each half wraps for itself; only a reset clears."
    [] "gaps at 0x10_001C, 0x10_011C, 0x10_0120, 0x10_0128"
        "Other versions have registers there."
        "Unlisted: reads 0, and counts the access."
    [Incnppktcnt Outcnppktcnt] "which CNP counter is which"
        "The titles can be taken for each other."
        "0x174 counts those that came in, 0x178 those that went out."
    [Cqintsts] "range of the fourth word"
        "Starts four too low."
        "Queue pairs 96 to 127."
    [Lstrqreq] "reset value"
        "0 means that the last request was a SEND FIRST, so that the first message of one packet is out of sequence: drivers that write only the PSN fall into it."
        "As printed, with a reason of its own for that first packet: last_opcode_not_set."
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn every_contradiction_has_a_choice_and_stands_once() {
        assert_eq!(CONTRADICTIONS.len(), 42);
        let mut seen = BTreeSet::new();
        for row in CONTRADICTIONS {
            assert!(row.problem.ends_with('.') && row.choice.ends_with('.'), "{}", row.place);
            assert!(seen.insert((row.place, row.problem)), "{}", row.place);
        }
    }
}
