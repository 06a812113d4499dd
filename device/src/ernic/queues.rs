//! A queue pair's own state in this face: its kept words and where its queues stand; the formats of
//! their entries. Reads and writes no memory.
//!
//! Indices count 1..=depth (seen on hardware; the chapter is silent): 0 stands only after reset, the
//! entry that index v announces is in slot v-1, and 0 and depth are the same point of the ring.

use softrnic_engine::Reason;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes, KnownLayout};

use super::registers::{KEPT_QP, Register, bits};

/// Bytes of a send queue entry.
pub(super) const WQE_LEN: u64 = 64;
/// Where a send queue entry's inline data is.
pub(super) const SDATA_OFFSET: u64 = 32;
/// A SEND of at most this many bytes takes its data from the entry itself.
pub(super) const INLINE_LEN_MAX: u32 = 16;
/// Bytes of a completion queue entry.
pub(super) const CQE_LEN: u64 = 4;
/// Work requests of one queue pair in flight at most. A power of two.
pub(super) const IN_FLIGHT_MAX: u16 = 16;
/// Receive buffers are counted in units of this many bytes.
const RQ_BUFFER_UNIT: u32 = 256;

pub(super) const ENABLE: u32 = bits(Register::Qpconf, "enable");
pub(super) const RQ_INTERRUPT: u32 = bits(Register::Qpconf, "rq_interrupt");
pub(super) const CQ_INTERRUPT: u32 = bits(Register::Qpconf, "cq_interrupt");
pub(super) const HANDSHAKE_OFF: u32 = bits(Register::Qpconf, "handshake_off");
pub(super) const CQE_WRITE: u32 = bits(Register::Qpconf, "cqe_write");
pub(super) const RECOVERY: u32 = bits(Register::Qpconf, "recovery");

/// A send queue entry (PG332, "Work Queue Entries", table 2-1).
#[derive(FromBytes, IntoBytes, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Wqe {
    pub(super) wrid: U16,
    reserved_2: U16,
    pub(super) laddr: U64,
    pub(super) length: U32,
    pub(super) opcode: u8,
    reserved_17: [u8; 3],
    pub(super) roffset: U64,
    pub(super) rtag: U32,
    sdata: [u8; 16],
    pub(super) immdt: U32,
    reserved_52: [u8; 12],
}

impl Wqe {
    /// What its completion queue entry will say, but for the error flag.
    pub(super) const fn ticket(&self) -> u32 {
        self.wrid.get() as u32 | (self.opcode as u32) << 16
    }
}

/// Opcodes of send queue entries.
pub(super) mod opcode {
    pub(in super::super) const WRITE: u8 = 0x00;
    pub(in super::super) const WRITE_IMM: u8 = 0x01;
    pub(in super::super) const SEND: u8 = 0x02;
    pub(in super::super) const SEND_IMM: u8 = 0x03;
    pub(in super::super) const READ: u8 = 0x04;
    pub(in super::super) const SEND_INV: u8 = 0x0C;
}

/// A queue pair. About 200 bytes.
#[derive(Clone, Debug)]
pub(super) struct QueuePair {
    pub(super) words: [u32; KEPT_QP],
    /// Entries announced, fetched and completed; all three start again together.
    pub(super) posted: u32,
    pub(super) fetched: u32,
    pub(super) completed: u32,
    /// Slot of entry `fetched`, 0..=depth.
    sq_slot: u16,
    /// For STATWQE, which does not start again.
    pub(super) work_count: u16,
    /// What the completion queue entries of work in flight will say, by index.
    tickets: [u32; IN_FLIGHT_MAX as usize],
}

impl QueuePair {
    pub(super) const RESET: Self = Self {
        words: [0; KEPT_QP],
        posted: 0,
        fetched: 0,
        completed: 0,
        sq_slot: 0,
        work_count: 0,
        tickets: [0; IN_FLIGHT_MAX as usize],
    };

    #[inline(always)]
    pub(super) const fn word(&self, register: Register) -> u32 {
        self.words[register.kept_index()]
    }

    #[inline(always)]
    pub(super) const fn word_mut(&mut self, register: Register) -> &mut u32 {
        &mut self.words[register.kept_index()]
    }

    #[inline(always)]
    pub(super) const fn address(&self, low: Register, high: Register) -> u64 {
        self.word(low) as u64 | (self.word(high) as u64) << 32
    }

    #[inline(always)]
    pub(super) const fn is_set(&self, qpconf_bit: u32) -> bool {
        self.word(Register::Qpconf) & qpconf_bit != 0
    }

    #[inline(always)]
    pub(super) const fn sq_depth(&self) -> u32 {
        self.word(Register::Qdepth) & 0xFFFF
    }

    #[inline(always)]
    pub(super) const fn rq_depth(&self) -> u32 {
        self.word(Register::Qdepth) >> 16
    }

    /// Bytes of one receive buffer, less than 2^24.
    #[inline(always)]
    pub(super) const fn rq_buffer_len(&self) -> u32 {
        (self.word(Register::Qpconf) >> 16) * RQ_BUFFER_UNIT
    }

    /// Bus address of the receive buffer that the next message fills.
    #[inline(always)]
    pub(super) const fn rq_buffer_address(&self) -> u64 {
        let slot = position(self.word(Register::Statrqpidb), self.rq_depth()) as u64;
        let base = self.address(Register::Rqba, Register::Rqbamsb);
        base.wrapping_add(slot * self.rq_buffer_len() as u64)
    }

    /// Whether a receive buffer is free. One is always left empty, so that full differs from empty.
    #[inline(always)]
    pub(super) const fn rq_has_room(&self) -> bool {
        let depth = self.rq_depth();
        let producer = position(self.word(Register::Statrqpidb), depth);
        let consumer = position(self.word(Register::Rqci), depth);
        depth != 0 && position(producer + 1, depth) != consumer
    }

    pub(super) const fn sq_is_full(&self) -> bool {
        let depth = self.sq_depth();
        depth != 0 && self.posted.wrapping_sub(self.completed) >= depth
    }

    /// The doorbell moves from one index to another. Software that runs over its own ring has lost whole
    /// rounds of entries: never more than a ring waits to be fetched, and the indices stay right.
    pub(super) const fn announce(&mut self, from: u32, to: u32) {
        let depth = self.sq_depth();
        let waiting = self.posted.wrapping_sub(self.fetched) + newly_posted(from, to, depth);
        let over = depth != 0 && waiting > depth;
        let waiting = if over { (waiting - 1) % depth + 1 } else { waiting };
        self.posted = self.fetched.wrapping_add(waiting);
    }

    /// Takes the next entry: its bus address and its place for the ticket. An index before the next
    /// one is asked again (a raw frame that found no room).
    #[inline]
    pub(super) fn fetch(&mut self, index: u32) -> (u64, usize) {
        let depth = self.sq_depth();
        let mut slot = position(u32::from(self.sq_slot), depth);
        if index == self.fetched {
            self.sq_slot = slot as u16 + 1;
            self.fetched = index.wrapping_add(1);
            self.work_count = self.work_count.wrapping_add(1);
        } else if depth != 0 {
            let back = self.fetched.wrapping_sub(index) % depth;
            slot = (slot + depth - back) % depth;
        }
        let base = self.address(Register::Sqba, Register::Sqbamsb);
        (base.wrapping_add(u64::from(slot) * WQE_LEN), Self::ticket_slot(index))
    }

    #[inline(always)]
    pub(super) const fn set_ticket(&mut self, slot: usize, ticket: u32) {
        self.tickets[slot % IN_FLIGHT_MAX as usize] = ticket;
    }

    /// `None`: a later entry has taken its place.
    #[inline(always)]
    pub(super) const fn ticket(&self, index: u32) -> Option<u32> {
        if self.fetched.wrapping_sub(index) > IN_FLIGHT_MAX as u32 {
            return None;
        }
        Some(self.tickets[Self::ticket_slot(index)])
    }

    /// Slot of the oldest entry that is not complete.
    pub(super) const fn oldest_slot(&self) -> u64 {
        position(self.word(Register::Cqhead), self.sq_depth()) as u64
    }

    /// Entries are counted from 0 again; what is not complete will be fetched again.
    pub(super) const fn recount(&mut self) {
        self.sq_slot = self.oldest_slot() as u16;
        self.posted = self.posted.wrapping_sub(self.completed);
        self.fetched = 0;
        self.completed = 0;
    }

    /// Software puts the queue at an index with nothing in it.
    pub(super) const fn place(&mut self, index: u32) {
        self.sq_slot = position(index, self.sq_depth()) as u16;
        self.posted = 0;
        self.fetched = 0;
        self.completed = 0;
    }

    const fn ticket_slot(index: u32) -> usize {
        index as usize % IN_FLIGHT_MAX as usize
    }
}

/// The index after `index`: 1..=depth.
#[inline(always)]
pub(super) const fn next_index(index: u32, depth: u32) -> u32 {
    if index >= depth { 1 } else { index + 1 }
}

/// An index's point of the ring, 0..depth: where 0 and depth are the same.
#[inline(always)]
const fn position(index: u32, depth: u32) -> u32 {
    if index >= depth { 0 } else { index }
}

/// How many entries a doorbell announces that moves from one index to another.
#[inline(always)]
const fn newly_posted(from: u32, to: u32, depth: u32) -> u32 {
    if to >= from { to - from } else { (to + depth).saturating_sub(from) }
}

/// Checks an index that software writes. `Ok` is the index to store.
///
/// An index above the depth is refused, or, where `lenient`, folded into the ring, as drivers that
/// count on expect. A send index of 0 would announce nothing that an index of `depth` does not say:
/// refused, or taken as `depth` where `lenient`. A receive index of 0 is a point of the ring.
///
/// # Errors
/// [`Reason::RingDepth`], [`Reason::RingIndex`].
pub(super) const fn check_index(
    value: u32,
    current: u32,
    depth: u32,
    send: bool,
    lenient: bool,
) -> Result<u32, Reason> {
    match value {
        0 if !send || current == 0 => Ok(0),
        _ if depth == 0 => Err(Reason::RingDepth),
        0 if lenient => Ok(depth),
        1.. if value <= depth => Ok(value),
        1.. if lenient => Ok((value - 1) % depth + 1),
        _ => Err(Reason::RingIndex),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn queue(sq_depth: u32, rq_depth: u32) -> QueuePair {
        let mut qp = QueuePair::RESET;
        *qp.word_mut(Register::Qdepth) = sq_depth | rq_depth << 16;
        qp
    }

    #[test]
    fn a_send_queue_entry_is_64_bytes_with_the_printed_offsets() {
        assert_eq!(size_of::<Wqe>() as u64, WQE_LEN);
        assert_eq!(core::mem::offset_of!(Wqe, laddr), 4);
        assert_eq!(core::mem::offset_of!(Wqe, length), 12);
        assert_eq!(core::mem::offset_of!(Wqe, opcode), 16);
        assert_eq!(core::mem::offset_of!(Wqe, roffset), 20);
        assert_eq!(core::mem::offset_of!(Wqe, rtag), 28);
        assert_eq!(core::mem::offset_of!(Wqe, sdata) as u64, SDATA_OFFSET);
        assert_eq!(core::mem::offset_of!(Wqe, immdt), 48);
    }

    #[test]
    fn the_whole_ring_can_be_announced_at_once_after_reset() {
        let mut qp = queue(8, 8);
        qp.announce(0, 8);
        assert_eq!(qp.posted, 8);
        assert!(qp.sq_is_full());
        (0..8).for_each(|index| {
            qp.fetch(index);
        });
        qp.announce(8, 3);
        assert_eq!(qp.posted, 11);
        qp.announce(3, 3);
        assert_eq!(qp.posted, 11);
    }

    #[test]
    fn software_that_runs_over_its_ring_leaves_no_more_than_a_ring_of_work() {
        let mut qp = queue(8, 8);
        let mut index = 0;
        for to in [8, 1, 8, 3, 2, 7].into_iter().cycle().take(600) {
            qp.announce(index, to);
            index = to;
            assert!(qp.posted <= 8);
        }
        assert_eq!(qp.posted, 7, "as many as from the beginning to the index");
        *qp.word_mut(Register::Qdepth) = 0;
        qp.announce(7, 7);
        assert_eq!(qp.posted, 7);
    }

    #[test]
    fn index_zero_is_where_every_queue_starts_and_nowhere_else_a_send_index() {
        assert_eq!(check_index(0, 0, 0, true, false), Ok(0));
        assert_eq!(check_index(0, 3, 8, true, false), Err(Reason::RingIndex));
        assert_eq!(check_index(0, 3, 8, true, true), Ok(8));
        assert_eq!(check_index(0, 3, 8, false, false), Ok(0));
        assert_eq!(check_index(8, 0, 8, true, false), Ok(8));
        assert_eq!(check_index(9, 0, 8, true, false), Err(Reason::RingIndex));
        assert_eq!(check_index(9, 8, 8, true, true), Ok(1));
        assert_eq!(check_index(1, 0, 0, true, true), Err(Reason::RingDepth));
    }

    #[test]
    fn a_receive_ring_of_depth_n_holds_n_minus_1_messages() {
        let mut qp = queue(8, 4);
        let mut taken = 0;
        while qp.rq_has_room() {
            let index = next_index(qp.word(Register::Statrqpidb), 4);
            *qp.word_mut(Register::Statrqpidb) = index;
            taken += 1;
        }
        assert_eq!(taken, 3);
        *qp.word_mut(Register::Rqci) = 1;
        assert!(qp.rq_has_room());
        assert!(!queue(8, 1).rq_has_room());
        assert!(!queue(8, 0).rq_has_room());
    }

    proptest! {
        /// A naive model counts entries without end; index and slot follow by division.
        #[test]
        fn indices_1_to_depth_say_what_endless_counters_say(
            depth in 1u32..200,
            steps in proptest::collection::vec(0u32..200, 1..100),
        ) {
            let mut qp = queue(depth, depth);
            let (mut index, mut posted, mut fetched) = (0, 0u32, 0u32);
            for step in steps {
                let most = if index == 0 { depth } else { depth - 1 };
                posted += step.min(most);
                let to = if posted == 0 { 0 } else { (posted - 1) % depth + 1 };
                prop_assert_eq!(check_index(to, index, depth, true, false), Ok(to));
                qp.announce(index, to);
                index = to;
                prop_assert_eq!(qp.posted, posted);
                while fetched != posted {
                    let (address, _) = qp.fetch(fetched);
                    prop_assert_eq!(address, u64::from(fetched % depth) * WQE_LEN);
                    let (again, _) = qp.fetch(fetched);
                    prop_assert_eq!(again, address);
                    fetched += 1;
                }
            }
        }

        #[test]
        fn the_receive_ring_agrees_with_endless_counters(
            depth in 1u32..50,
            script in proptest::collection::vec(any::<bool>(), 1..300),
        ) {
            let mut qp = queue(depth, depth);
            let (mut produced, mut consumed) = (0u32, 0u32);
            for produce in script {
                prop_assert_eq!(qp.rq_has_room(), produced - consumed < depth - 1);
                if produce && qp.rq_has_room() {
                    *qp.word_mut(Register::Statrqpidb) =
                        next_index(qp.word(Register::Statrqpidb), depth);
                    produced += 1;
                } else if !produce && consumed < produced {
                    *qp.word_mut(Register::Rqci) = next_index(qp.word(Register::Rqci), depth);
                    consumed += 1;
                }
            }
        }
    }
}
