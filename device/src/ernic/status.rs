//! Interrupt causes with their three bitwise banks, and the packet counters.
//!
//! Counts what it is told; decides nothing about packets or queues.

use softrnic_engine::packet::{Operation, opcode};
use softrnic_engine::{Qpn, Reason, Train, Verdict};

use super::registers::{KEPT_GLOBAL, Register, bits};

pub(super) const INVALID_PACKET: u32 = bits(Register::Intsts, "invalid_packet");
pub(super) const MAD: u32 = bits(Register::Intsts, "mad");
pub(super) const RNR_NAK: u32 = bits(Register::Intsts, "rnr_nak");
pub(super) const COMPLETION: u32 = bits(Register::Intsts, "completion");
pub(super) const ILLEGAL_OPCODE: u32 = bits(Register::Intsts, "illegal_opcode");
pub(super) const RECEIVE: u32 = bits(Register::Intsts, "receive");
pub(super) const FATAL: u32 = bits(Register::Intsts, "fatal");
pub(super) const CNP: u32 = bits(Register::Intsts, "cnp");

/// One bit for each queue pair: queue pair q is bit q % 32 of word q / 32.
#[derive(Clone, Debug)]
pub(super) struct Bank {
    words: [u32; 64],
    /// Bit k is set while word k is not 0, so that INTSTS need not look at all words.
    used: u64,
}

impl Bank {
    pub(super) const RESET: Self = Self { words: [0; 64], used: 0 };

    #[inline]
    pub(super) const fn set(&mut self, q: Qpn) {
        let word = (q.get() / 32 % 64) as usize;
        self.words[word] |= 1 << (q.get() % 32);
        self.used |= 1 << word;
    }

    pub(super) fn word(&self, index: u16) -> u32 {
        self.words[usize::from(index % 64)]
    }

    pub(super) fn has(&self, q: u16) -> bool {
        self.word(q / 32) & 1 << (q % 32) != 0
    }

    pub(super) fn clear(&mut self, index: u16, ones: u32) {
        let word = &mut self.words[usize::from(index % 64)];
        *word &= !ones;
        if *word == 0 {
            self.used &= !(1 << (index % 64));
        }
    }

    const fn any(&self) -> bool {
        self.used != 0
    }
}

/// Global words, banks and what else the whole device counts.
#[derive(Clone, Debug)]
pub(super) struct Status {
    pub(super) words: [u32; KEPT_GLOBAL],
    pub(super) receive_bank: Bank,
    pub(super) completion_bank: Bank,
    pub(super) cnp_bank: Bank,
    /// Work requests fetched, for QPMSTS and WQEPROCSTS.
    pub(super) work_count: u16,
    /// Queue pair that was last served, for RESPHNDSTS.
    pub(super) arbitrated_qp: u16,
    pub(super) last_in: LastPacket,
    pub(super) last_out: LastPacket,
}

/// What a frame that arrived asks the device for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Noted {
    Nothing,
    /// It was a negative acknowledgement.
    Nak,
    /// It failed validation.
    Invalid(Reason),
}

/// What LSTINPKT and LSTOUTPKT tell of.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct LastPacket {
    opcode: u8,
    psn: u32,
    qp: u32,
}

impl LastPacket {
    /// As a register that has PSN and queue pair in these bits.
    pub(super) const fn word(self, (psn, qp): (u32, u32)) -> u32 {
        self.opcode as u32
            | (self.psn << psn.trailing_zeros()) & psn
            | (self.qp << qp.trailing_zeros()) & qp
    }
}

/// Which half of a counter register.
#[derive(Clone, Copy)]
enum Half {
    Low,
    High,
}

impl Status {
    pub(super) const fn new(words: [u32; KEPT_GLOBAL]) -> Self {
        Self {
            words,
            receive_bank: Bank::RESET,
            completion_bank: Bank::RESET,
            cnp_bank: Bank::RESET,
            work_count: 0,
            arbitrated_qp: 0,
            last_in: LastPacket { opcode: 0, psn: 0, qp: 0 },
            last_out: LastPacket { opcode: 0, psn: 0, qp: 0 },
        }
    }

    #[inline]
    pub(super) const fn word(&self, register: Register) -> u32 {
        self.words[register.kept_index()]
    }

    #[inline]
    pub(super) const fn word_mut(&mut self, register: Register) -> &mut u32 {
        &mut self.words[register.kept_index()]
    }

    /// A cause has happened. Recorded whether or not INTEN lets it through.
    #[inline]
    pub(super) const fn raise(&mut self, cause: u32) {
        *self.word_mut(Register::Intsts) |= cause;
    }

    /// INTSTS as software reads it. Bits 4 and 6 stay while a bank has a bit, so that both styles of
    /// driver work: one clears the latch and then the banks, the other only ever clears banks.
    #[inline]
    pub(super) const fn causes(&self) -> u32 {
        let mut causes = self.word(Register::Intsts);
        if self.completion_bank.any() {
            causes |= COMPLETION;
        }
        if self.receive_bank.any() {
            causes |= RECEIVE;
        }
        causes
    }

    /// Writing ones clears latches. A bank clears only through its own words; but the latch of a bank
    /// whose last bit was cleared through them goes too, or the second style of driver would spin.
    pub(super) const fn clear_causes(&mut self, ones: u32) {
        *self.word_mut(Register::Intsts) &= !ones;
    }

    pub(super) fn clear_receive_bank(&mut self, index: u16, ones: u32) {
        self.receive_bank.clear(index, ones);
        if !self.receive_bank.any() {
            self.clear_causes(RECEIVE);
        }
    }

    pub(super) fn clear_completion_bank(&mut self, index: u16, ones: u32) {
        self.completion_bank.clear(index, ones);
        if !self.completion_bank.any() {
            self.clear_causes(COMPLETION);
        }
    }

    /// A frame arrived.
    #[inline]
    pub(super) fn received(&mut self, verdict: &Verdict) -> Noted {
        let not_roce = matches!(
            verdict.refused,
            Some(Reason::NotRoce | Reason::FlowControl | Reason::RoceV1 | Reason::OtherBufferFull)
        );
        if not_roce || verdict.flow_control {
            return Noted::Nothing;
        }
        self.count(Register::Inalldrppktcnt, Half::High, 1);
        if let Some(opcode) = verdict.opcode {
            self.last_in = LastPacket { opcode, psn: verdict.psn.get(), qp: verdict.qpn.get() };
        }
        if verdict.duplicate {
            self.count(Register::Ininvdupcnt, Half::High, 1);
        }
        match verdict.refused {
            None => return self.count_taken(verdict),
            Some(Reason::CongestionNotification) => self.count_word(Register::Incnppktcnt, 1),
            Some(reason) => return self.count_dropped(reason),
        }
        Noted::Nothing
    }

    fn count_dropped(&mut self, reason: Reason) -> Noted {
        self.count(Register::Inalldrppktcnt, Half::Low, 1);
        // The packet itself was fine; there was no buffer for it.
        if matches!(
            reason,
            Reason::ReceiverNotReady
                | Reason::PsnBehindReceiverNotReady
                | Reason::ReceiveBufferFull
        ) {
            return Noted::Nothing;
        }
        self.count(Register::Ininvdupcnt, Half::Low, 1);
        self.raise(INVALID_PACKET);
        Noted::Invalid(reason)
    }

    #[inline]
    fn count_taken(&mut self, verdict: &Verdict) -> Noted {
        let Some(opcode) = verdict.opcode else { return Noted::Nothing };
        match opcode::row(opcode).operation {
            Operation::Send if opcode::row(opcode).transport == opcode::Transport::Ud => {
                self.count(Register::Inampktcnt, Half::High, 1);
            }
            Operation::Send | Operation::Write => {
                self.count(Register::Insrrpktcnt, Half::Low, 1);
            }
            Operation::ReadResponse => {
                self.arbitrated_qp = verdict.qpn.get() as u16;
                self.count(Register::Insrrpktcnt, Half::High, 1);
            }
            Operation::Acknowledge => {
                self.arbitrated_qp = verdict.qpn.get() as u16;
                if is_nak(verdict.syndrome) {
                    self.count(Register::Innakpktcnt, Half::Low, 1);
                    return Noted::Nak;
                }
                self.count(Register::Inampktcnt, Half::Low, 1);
            }
            // The chapter has no counter for these.
            Operation::ReadRequest
            | Operation::AtomicAcknowledge
            | Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::Flush
            | Operation::AtomicWrite
            | Operation::Cnp
            | Operation::Unknown => {}
        }
        Noted::Nothing
    }

    /// Frames left.
    #[inline]
    pub(super) fn transmitted(&mut self, train: &Train) {
        let packets = u32::from(train.segments);
        let psn = train.psn.get().wrapping_add(packets - u32::from(packets != 0));
        self.last_out = LastPacket { opcode: train.opcode, psn, qp: train.qpn.get() };
        if train.retransmission {
            self.count_word(Register::Retrycntsts, packets);
        }
        match opcode::row(train.opcode).operation {
            Operation::Send if train.qpn.get() == 1 => {
                self.count(Register::Outampktcnt, Half::High, packets);
            }
            Operation::Send => self.count(Register::Outiopktcnt, Half::Low, packets),
            Operation::Write | Operation::ReadRequest => {
                self.count(Register::Outiopktcnt, Half::High, packets);
            }
            Operation::ReadResponse => self.count_word(Register::Outrdrsppktcnt, packets),
            Operation::Acknowledge if is_nak(train.syndrome) => {
                self.count(Register::Outnakpktcnt, Half::Low, packets);
            }
            Operation::Acknowledge => self.count(Register::Outampktcnt, Half::Low, packets),
            Operation::Cnp => self.count_word(Register::Outcnppktcnt, packets),
            // The chapter has no counter for these.
            Operation::AtomicAcknowledge
            | Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::Flush
            | Operation::AtomicWrite
            | Operation::Unknown => {}
        }
    }

    /// The halves are 16 bits wide and wrap each for itself.
    #[inline]
    const fn count(&mut self, register: Register, half: Half, by: u32) {
        let word = self.word_mut(register);
        *word = match half {
            Half::Low => (*word & 0xFFFF_0000) | (word.wrapping_add(by) & 0xFFFF),
            Half::High => word.wrapping_add(by << 16),
        };
    }

    const fn count_word(&mut self, register: Register, by: u32) {
        let word = self.word_mut(register);
        *word = word.wrapping_add(by);
    }
}

/// NAK and RNR NAK; bits 6..5 of the syndrome are 0 in an ACK (IBTA vol 1, 9.7.5.1.2).
const fn is_nak(syndrome: Option<u8>) -> bool {
    matches!(syndrome, Some(syndrome) if syndrome & 0x60 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Status {
        Status::new([0; KEPT_GLOBAL])
    }

    #[test]
    fn a_driver_that_clears_the_latch_first_and_then_the_banks() {
        let mut status = status();
        status.completion_bank.set(Qpn::new(70));
        status.raise(COMPLETION);
        status.clear_causes(COMPLETION);
        assert_eq!(status.causes(), COMPLETION, "the bank still has a bit");
        assert_eq!(status.completion_bank.word(2), 1 << 6);
        status.clear_completion_bank(2, 1 << 6);
        assert_eq!(status.causes(), 0);
    }

    #[test]
    fn a_driver_that_only_ever_clears_banks() {
        let mut status = status();
        for q in [2, 2047] {
            status.receive_bank.set(Qpn::new(q));
            status.raise(RECEIVE);
        }
        status.clear_receive_bank(0, 1 << 2);
        assert_eq!(status.causes(), RECEIVE, "queue pair 2047 is still there");
        status.clear_receive_bank(63, u32::MAX);
        assert_eq!(status.causes(), 0);
    }

    #[test]
    fn clearing_one_bank_bit_leaves_the_others() {
        let mut bank = Bank::RESET;
        (32..64).for_each(|q| bank.set(Qpn::new(q)));
        bank.clear(1, 1);
        assert_eq!(bank.word(1), !1);
        bank.clear(1, 0);
        assert_eq!(bank.word(1), !1);
    }

    fn verdict(opcode: u8, syndrome: Option<u8>, refused: Option<Reason>) -> Verdict {
        Verdict {
            refused,
            flow_control: false,
            duplicate: false,
            opcode: Some(opcode),
            qpn: Qpn::new(2),
            psn: softrnic_engine::Psn::new(7),
            syndrome,
            congestion_experienced: false,
        }
    }

    fn arrives(opcode: u8, syndrome: Option<u8>, refused: Option<Reason>, status: &mut Status) {
        status.received(&verdict(opcode, syndrome, refused));
    }

    fn leaves(opcode: u8, syndrome: Option<u8>, q: u32, status: &mut Status) {
        status.transmitted(&Train {
            len: 64,
            header: 64,
            segment: 0,
            segments: 1,
            qpn: Qpn::new(q),
            opcode,
            psn: softrnic_engine::Psn::new(7),
            syndrome,
            flow_control: false,
            retransmission: opcode == opcode::WRITE_LAST,
        });
    }

    /// Every counter, with the packet that it counts: its bits wrap to 0 and touch no others.
    #[test]
    fn each_counter_wraps_without_touching_its_other_half() {
        use Register as R;
        type Event = fn(&mut Status);
        const ACK: Option<u8> = Some(0x1F);
        const NAK: Option<u8> = Some(0x61);
        const LOW: u32 = 0xFFFF;
        const HIGH: u32 = 0xFFFF_0000;
        let counters: [(R, u32, Event); 16] = [
            (R::Insrrpktcnt, LOW, |s| arrives(opcode::SEND_ONLY, None, None, s)),
            (R::Insrrpktcnt, LOW, |s| arrives(opcode::WRITE_ONLY, None, None, s)),
            (R::Insrrpktcnt, HIGH, |s| arrives(opcode::READ_RESPONSE_ONLY, ACK, None, s)),
            (R::Inampktcnt, LOW, |s| arrives(opcode::ACKNOWLEDGE, ACK, None, s)),
            (R::Inampktcnt, HIGH, |s| arrives(opcode::UD_SEND_ONLY, None, None, s)),
            (R::Outiopktcnt, LOW, |s| leaves(opcode::SEND_ONLY, None, 2, s)),
            (R::Outiopktcnt, HIGH, |s| leaves(opcode::READ_REQUEST, None, 2, s)),
            (R::Outampktcnt, LOW, |s| leaves(opcode::ACKNOWLEDGE, ACK, 2, s)),
            (R::Outampktcnt, HIGH, |s| leaves(opcode::UD_SEND_ONLY, None, 1, s)),
            (R::Ininvdupcnt, LOW, |s| arrives(opcode::SEND_ONLY, None, Some(Reason::Icrc), s)),
            (R::Ininvdupcnt, HIGH, |s| {
                s.received(&Verdict { duplicate: true, ..verdict(opcode::SEND_ONLY, None, None) });
            }),
            (R::Inalldrppktcnt, HIGH, |s| arrives(opcode::SEND_ONLY, None, None, s)),
            (R::Innakpktcnt, LOW, |s| arrives(opcode::ACKNOWLEDGE, NAK, None, s)),
            (R::Outnakpktcnt, LOW, |s| leaves(opcode::ACKNOWLEDGE, NAK, 2, s)),
            (R::Retrycntsts, u32::MAX, |s| leaves(opcode::WRITE_LAST, None, 2, s)),
            (R::Outrdrsppktcnt, u32::MAX, |s| leaves(opcode::READ_RESPONSE_ONLY, ACK, 2, s)),
        ];
        let cnps: [(R, u32, Event); 3] = [
            (R::Incnppktcnt, u32::MAX, |s| {
                arrives(opcode::CNP, None, Some(Reason::CongestionNotification), s);
            }),
            (R::Outcnppktcnt, u32::MAX, |s| leaves(opcode::CNP, None, 1, s)),
            // Counted with all packets, which are in the other half.
            (R::Inalldrppktcnt, LOW, |s| {
                arrives(opcode::SEND_ONLY, None, Some(Reason::Icrc), s);
                *s.word_mut(R::Inalldrppktcnt) -= 1 << 16;
            }),
        ];
        for (register, mask, event) in counters.into_iter().chain(cnps) {
            let mut status = status();
            let one = mask & mask.wrapping_neg();
            let others = 0x1234_5678 & register.row().mask() & !mask;
            *status.word_mut(register) = others | (mask - one);
            event(&mut status);
            assert_eq!(status.word(register), others | mask, "{}", register.row().name);
            event(&mut status);
            assert_eq!(status.word(register), others, "{} wraps", register.row().name);
        }
    }
}
