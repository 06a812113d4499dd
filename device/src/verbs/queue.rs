//! Send and receive queues: rings of posted work requests, with room for their scatter/gather lists
//! and inline data made at creation.
//!
//! Knows no memory and no key: it keeps what was posted, hands it out by index since reset, and
//! walks scatter/gather lists.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;

use softrnic_engine::{Fetch, Hold, Place, Qpn, RKey, Reason, Work, WorkOpcode};

use super::datagram::UdAddress;
use super::error::Error;
use super::region::LKey;

/// A scatter/gather element (`ibv_sge`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sge {
    /// Virtual address of the first byte.
    pub address: u64,
    /// Bytes. An element of length 0 is skipped, whatever its key is.
    pub length: u32,
    /// Key of the memory region.
    pub lkey: LKey,
}

/// Where a work request's own bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload<'a> {
    /// In memory regions; read (or written, for READs and atomics) while the message is executed.
    Sges(&'a [Sge]),
    /// Here: copied when posted (`IBV_SEND_INLINE`).
    Inline(&'a [u8]),
}

impl Default for Payload<'_> {
    fn default() -> Self {
        Self::Sges(&[])
    }
}

/// What a send work request does (`ibv_wr_opcode`), with what only this operation needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SendOp {
    /// SEND.
    #[default]
    Send,
    /// SEND WITH IMMEDIATE.
    SendWithImm {
        /// Immediate data.
        immediate: u32,
    },
    /// SEND WITH INVALIDATE.
    SendWithInv {
        /// The peer's key to invalidate.
        rkey: RKey,
    },
    /// RDMA WRITE.
    Write {
        /// The peer's virtual address.
        remote_va: u64,
        /// The peer's key.
        rkey: RKey,
    },
    /// RDMA WRITE WITH IMMEDIATE.
    WriteWithImm {
        /// The peer's virtual address.
        remote_va: u64,
        /// The peer's key.
        rkey: RKey,
        /// Immediate data.
        immediate: u32,
    },
    /// RDMA READ.
    Read {
        /// The peer's virtual address.
        remote_va: u64,
        /// The peer's key.
        rkey: RKey,
    },
    /// Compare and swap; the payload is the 8 bytes for the value before.
    CompareSwap {
        /// The peer's virtual address, a multiple of 8.
        remote_va: u64,
        /// The peer's key.
        rkey: RKey,
        /// Value to compare with.
        compare: u64,
        /// Value to store where it is equal.
        swap: u64,
    },
    /// Fetch and add; the payload is the 8 bytes for the value before.
    FetchAdd {
        /// The peer's virtual address, a multiple of 8.
        remote_va: u64,
        /// The peer's key.
        rkey: RKey,
        /// Addend.
        add: u64,
    },
}

impl SendOp {
    /// The engine's form of it, without length, place and flags.
    const fn work(self) -> Work {
        let mut work = NO_WORK;
        match self {
            Self::Send => {}
            Self::SendWithImm { immediate } => {
                work.opcode = WorkOpcode::SendImm;
                work.immediate = immediate;
            }
            Self::SendWithInv { rkey } => {
                work.opcode = WorkOpcode::SendInv;
                work.rkey = rkey;
            }
            Self::Write { remote_va, rkey } => {
                work.opcode = WorkOpcode::Write;
                (work.remote_va, work.rkey) = (remote_va, rkey);
            }
            Self::WriteWithImm { remote_va, rkey, immediate } => {
                work.opcode = WorkOpcode::WriteImm;
                (work.remote_va, work.rkey) = (remote_va, rkey);
                work.immediate = immediate;
            }
            Self::Read { remote_va, rkey } => {
                work.opcode = WorkOpcode::Read;
                (work.remote_va, work.rkey) = (remote_va, rkey);
            }
            Self::CompareSwap { remote_va, rkey, compare, swap } => {
                work.opcode = WorkOpcode::CompareSwap;
                (work.remote_va, work.rkey) = (remote_va, rkey);
                (work.compare, work.swap_or_add) = (compare, swap);
            }
            Self::FetchAdd { remote_va, rkey, add } => {
                work.opcode = WorkOpcode::FetchAdd;
                (work.remote_va, work.rkey) = (remote_va, rkey);
                work.swap_or_add = add;
            }
        }
        work
    }
}

/// A send work request (`ibv_send_wr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendRequest<'a> {
    /// The program's name for it; comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// Its bytes.
    pub payload: Payload<'a>,
    /// Report success too. Errors are always reported (rule Q-51).
    pub signaled: bool,
    /// Ask the peer for a solicited event.
    pub solicited: bool,
    /// Wait for all earlier READs and atomics (rule Q-07).
    pub fence: bool,
    /// Where a datagram goes (`wr.ud`): UD needs it, other services refuse it.
    pub ud: Option<UdAddress>,
}

impl SendRequest<'_> {
    /// Bytes of its message, where it fits a queue whose entries hold so many elements and inline bytes.
    ///
    /// # Errors
    /// It does not fit, or its operation cannot have this payload.
    pub fn length(&self, max_sge: u32, max_inline: u32) -> Result<u32, Error> {
        let opcode = self.op.work().opcode;
        let atomic = matches!(opcode, WorkOpcode::CompareSwap | WorkOpcode::FetchAdd);
        let length = match self.payload {
            Payload::Sges(list) => list_len(list, max_sge)?,
            Payload::Inline(_) if atomic || opcode == WorkOpcode::Read => {
                return Err(Error::InlineNotAllowed);
            }
            Payload::Inline(bytes) => match u32::try_from(bytes.len()) {
                Ok(len) if len <= max_inline => len,
                _ => return Err(Error::TooMuchInline { given: bytes.len(), max: max_inline }),
            },
        };
        if atomic && length != 8 {
            return Err(Error::MessageLength { given: length.into(), max: 8 });
        }
        Ok(length)
    }
}

/// A receive work request (`ibv_recv_wr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RecvRequest<'a> {
    /// The program's name for it; comes back in the completion.
    pub wr_id: u64,
    /// Where the message goes.
    pub sges: &'a [Sge],
}

impl RecvRequest<'_> {
    /// Bytes that it takes, where it fits a queue whose entries hold so many elements.
    ///
    /// # Errors
    /// It does not fit.
    pub fn length(&self, max_sge: u32) -> Result<u32, Error> {
        list_len(self.sges, max_sge)
    }
}

/// The engine's handle of a place, as this face fills it in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Token {
    /// A send queue entry, by index since reset.
    Send(u32),
    /// A receive queue entry, by index since reset.
    Receive(u32),
    /// A memory region, by key.
    Region(u32),
    /// A shared receive queue's entry, by slot.
    Shared(u32),
}

impl Token {
    pub(super) const fn to_bits(self) -> u64 {
        match self {
            Self::Send(index) => index as u64,
            Self::Receive(index) => 1 << 32 | index as u64,
            Self::Region(key) => 2 << 32 | key as u64,
            Self::Shared(slot) => 3 << 32 | slot as u64,
        }
    }

    pub(super) const fn from_bits(bits: u64) -> Self {
        match bits >> 32 {
            0 => Self::Send(bits as u32),
            1 => Self::Receive(bits as u32),
            2 => Self::Region(bits as u32),
            _ => Self::Shared(bits as u32),
        }
    }
}

/// What a send queue keeps of a work request, besides its elements and inline data.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SendEntry {
    pub(super) wr_id: u64,
    pub(super) work: Work,
    pub(super) ud: Option<UdAddress>,
    sges: u32,
    pub(super) inline: bool,
    pub(super) signaled: bool,
}

/// A send queue.
#[derive(Clone, Debug)]
pub(super) struct SendQueue {
    entries: Box<[SendEntry]>,
    lists: Box<[Sge]>,
    inline: Box<[u8]>,
    depth: u32,
    max_sge: u32,
    max_inline: u32,
    /// Entries posted and completed since reset, wrapping.
    posted: u32,
    completed: u32,
}

impl SendQueue {
    pub(super) fn new(depth: u32, max_sge: u32, max_inline: u32) -> Result<Self, Error> {
        check_sizes(depth, max_sge, max_inline)?;
        let slots = depth.max(1).next_power_of_two() as usize;
        Ok(Self {
            entries: zeroed(slots)?,
            lists: zeroed(slots * max_sge as usize)?,
            inline: zeroed(slots * max_inline as usize)?,
            depth,
            max_sge,
            max_inline,
            posted: 0,
            completed: 0,
        })
    }

    /// Forgets everything without completions (rule M-08).
    pub(super) fn reset(&mut self) {
        (self.posted, self.completed) = (0, 0);
    }

    /// Work requests that it holds.
    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// Work requests posted since reset.
    pub(super) fn posted(&self) -> u32 {
        self.posted
    }

    /// Takes a work request.
    pub(super) fn post(&mut self, qpn: Qpn, request: &SendRequest<'_>) -> Result<(), Error> {
        if self.posted.wrapping_sub(self.completed) >= self.depth {
            return Err(Error::QueueFull { qpn, depth: self.depth });
        }
        let mut work = request.op.work();
        work.length = request.length(self.max_sge, self.max_inline)?;
        work.local =
            Place { token: Token::Send(self.posted).to_bits(), base: 0, length: work.length };
        work.solicited = request.solicited;
        work.fence = request.fence;

        let slot = self.slot(self.posted);
        let mut entry = SendEntry {
            wr_id: request.wr_id,
            work,
            ud: request.ud,
            sges: 0,
            inline: false,
            signaled: request.signaled,
        };
        match request.payload {
            Payload::Sges(list) => {
                entry.sges = list.len() as u32;
                let at = slot * self.max_sge as usize;
                self.lists[at..at + list.len()].copy_from_slice(list);
            }
            Payload::Inline(bytes) => {
                entry.inline = true;
                let at = slot * self.max_inline as usize;
                self.inline[at..at + bytes.len()].copy_from_slice(bytes);
            }
        }
        self.entries[slot] = entry;
        self.posted = self.posted.wrapping_add(1);
        Ok(())
    }

    /// What the engine finds at an index.
    #[inline]
    pub(super) fn fetch(&self, index: u32) -> Fetch {
        if self.holds(index) { Fetch::Work(self.entry(index).work) } else { Fetch::Empty }
    }

    #[inline]
    pub(super) fn entry(&self, index: u32) -> &SendEntry {
        &self.entries[self.slot(index)]
    }

    /// The scatter/gather list of an entry.
    #[inline]
    pub(super) fn list(&self, index: u32) -> &[Sge] {
        let at = self.slot(index) * self.max_sge as usize;
        &self.lists[at..at + self.entry(index).sges as usize]
    }

    /// Inline data of an entry, from a validated range of the message.
    #[inline]
    pub(super) fn inline(&self, index: u32, range: Range<usize>) -> &[u8] {
        let at = self.slot(index) * self.max_inline as usize;
        &self.inline[at + range.start..at + range.end]
    }

    /// Frees the entry at `index`, which is the oldest; `None` where it has been freed.
    #[inline]
    pub(super) fn finish(&mut self, index: u32) -> Option<SendEntry> {
        if !self.holds(index) {
            return None;
        }
        self.completed = index.wrapping_add(1);
        Some(*self.entry(index))
    }

    /// Work requests that are not finished.
    pub(super) fn held(&self) -> u32 {
        self.posted.wrapping_sub(self.completed)
    }

    #[inline]
    fn holds(&self, index: u32) -> bool {
        index.wrapping_sub(self.completed) < self.posted.wrapping_sub(self.completed)
    }

    #[inline]
    fn slot(&self, index: u32) -> usize {
        index as usize & (self.entries.len() - 1)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct ReceiveEntry {
    wr_id: u64,
    length: u32,
    sges: u32,
}

/// What receive queues of both kinds keep: entries by slot, and room for their lists.
#[derive(Clone, Debug)]
pub(super) struct ReceiveSlots {
    entries: Box<[ReceiveEntry]>,
    lists: Box<[Sge]>,
    max_sge: u32,
}

impl ReceiveSlots {
    /// At least `depth` slots; a power of two of them.
    pub(super) fn new(depth: u32, max_sge: u32) -> Result<Self, Error> {
        check_sizes(depth, max_sge, 0)?;
        let slots = depth.max(1).next_power_of_two() as usize;
        let (entries, lists) = (zeroed(slots)?, zeroed(slots * max_sge as usize)?);
        Ok(Self { entries, lists, max_sge })
    }

    /// Keeps a work request in a slot.
    pub(super) fn put(&mut self, slot: usize, request: &RecvRequest<'_>) -> Result<(), Error> {
        let length = request.length(self.max_sge)?;
        let at = slot * self.max_sge as usize;
        self.lists[at..at + request.sges.len()].copy_from_slice(request.sges);
        self.entries[slot] =
            ReceiveEntry { wr_id: request.wr_id, length, sges: request.sges.len() as u32 };
        Ok(())
    }

    /// The program's name for the request in a slot.
    #[inline]
    pub(super) fn wr_id(&self, slot: usize) -> u64 {
        self.entries[slot].wr_id
    }

    /// Bytes that the request in a slot takes.
    #[inline]
    pub(super) fn capacity(&self, slot: usize) -> u32 {
        self.entries[slot].length
    }

    /// The scatter/gather list of the request in a slot.
    #[inline]
    pub(super) fn list(&self, slot: usize) -> &[Sge] {
        let at = slot * self.max_sge as usize;
        &self.lists[at..at + self.entries[slot].sges as usize]
    }
}

/// A receive queue.
#[derive(Clone, Debug)]
pub(super) struct ReceiveQueue {
    pub(super) slots: ReceiveSlots,
    depth: u32,
    /// Entries posted, taken by the engine and completed since reset, wrapping.
    posted: u32,
    taken: u32,
    completed: u32,
}

impl ReceiveQueue {
    pub(super) fn new(depth: u32, max_sge: u32) -> Result<Self, Error> {
        let slots = ReceiveSlots::new(depth, max_sge)?;
        Ok(Self { slots, depth, posted: 0, taken: 0, completed: 0 })
    }

    /// Forgets everything without completions (rule M-08).
    pub(super) fn reset(&mut self) {
        (self.posted, self.taken, self.completed) = (0, 0, 0);
    }

    /// Work requests posted since reset.
    pub(super) fn posted(&self) -> u32 {
        self.posted
    }

    /// Takes a work request.
    pub(super) fn post(&mut self, qpn: Qpn, request: &RecvRequest<'_>) -> Result<(), Error> {
        if self.posted.wrapping_sub(self.completed) >= self.depth {
            return Err(Error::QueueFull { qpn, depth: self.depth });
        }
        self.slots.put(self.slot(self.posted), request)?;
        self.posted = self.posted.wrapping_add(1);
        Ok(())
    }

    /// Work requests that are not finished.
    pub(super) fn held(&self) -> u32 {
        self.posted.wrapping_sub(self.completed)
    }

    /// Entries that the engine has not taken.
    #[inline]
    pub(super) fn waiting(&self) -> u32 {
        self.posted.wrapping_sub(self.taken)
    }

    /// Hands the next entry to the engine.
    #[inline]
    pub(super) fn take(&mut self) -> Result<Place, Hold> {
        if self.taken == self.posted {
            return Err(Hold::Stall);
        }
        let index = self.taken;
        self.taken = index.wrapping_add(1);
        let length = self.slots.capacity(self.slot(index));
        Ok(Place { token: Token::Receive(index).to_bits(), base: 0, length })
    }

    /// Frees the entry at `index`, which is the oldest; gives its `wr_id`, or `None` where it has
    /// been freed (flushed) already.
    #[inline]
    pub(super) fn finish(&mut self, index: u32) -> Option<u64> {
        if index.wrapping_sub(self.completed) >= self.posted.wrapping_sub(self.completed) {
            return None;
        }
        self.completed = index.wrapping_add(1);
        Some(self.slots.wr_id(self.slot(index)))
    }

    /// Frees the oldest entry, taken or not.
    pub(super) fn flush(&mut self) -> Option<u64> {
        let index = self.completed;
        let wr_id = self.finish(index)?;
        if self.taken == index {
            self.taken = self.completed;
        }
        Some(wr_id)
    }

    /// Where the entry at `index` is.
    #[inline]
    pub(super) fn slot(&self, index: u32) -> usize {
        index as usize & (self.slots.entries.len() - 1)
    }
}

/// A part of a message that lies in one scatter/gather element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The element.
    pub(super) sge: Sge,
    /// Where the part begins in the element.
    pub(super) within: u32,
    /// Which bytes of the caller's buffer it is.
    pub(super) range: Range<usize>,
}

/// Walks `len` bytes of a list, from `offset` on, clamped to the list's end (rule Q-11).
#[inline]
pub(super) fn pieces(list: &[Sge], offset: u32, len: usize) -> impl Iterator<Item = Piece> {
    let mut skip = offset;
    let mut at = 0;
    list.iter().filter_map(move |&sge| {
        if skip >= sge.length {
            skip -= sge.length;
            return None;
        }
        let within = core::mem::take(&mut skip);
        let start = at;
        at += ((sge.length - within) as usize).min(len - start);
        (at > start).then_some(Piece { sge, within, range: start..at })
    })
}

/// `len` default values, or an error where there is no memory for them.
pub(super) fn zeroed<T: Clone + Default>(len: usize) -> Result<Box<[T]>, Error> {
    let mut values = Vec::new();
    values.try_reserve_exact(len).map_err(|_| Error::Exhausted("queue"))?;
    values.resize(len, T::default());
    Ok(values.into_boxed_slice())
}

/// Bytes of a list that fits an entry and a message.
fn list_len(list: &[Sge], max_sge: u32) -> Result<u32, Error> {
    if list.len() > max_sge as usize {
        return Err(Error::TooManySges { given: list.len(), max: max_sge });
    }
    let given = list.iter().map(|sge| u64::from(sge.length)).sum();
    match u32::try_from(given) {
        Ok(len) if len <= MESSAGE_LEN_MAX => Ok(len),
        _ => Err(Error::MessageLength { given, max: MESSAGE_LEN_MAX.into() }),
    }
}

fn check_sizes(depth: u32, max_sge: u32, max_inline: u32) -> Result<(), Error> {
    let sizes = [
        ("work queue depth", depth, QUEUE_DEPTH_MAX),
        ("max_sge", max_sge, SGES_MAX),
        ("max_inline", max_inline, INLINE_MAX),
    ];
    match sizes.into_iter().find(|&(_, given, max)| given > max) {
        None => Ok(()),
        Some((what, given, max)) => {
            Err(Error::OutOfRange { what, given: given.into(), min: 0, max: max.into() })
        }
    }
}

/// IBTA vol 1, 9.7.3.
const MESSAGE_LEN_MAX: u32 = 1 << 31;
/// Chosen: far above any hardware, low enough that sizes cannot overflow.
pub(super) const QUEUE_DEPTH_MAX: u32 = 1 << 20;
/// Chosen.
const SGES_MAX: u32 = 256;
/// Chosen.
const INLINE_MAX: u32 = 4096;

const NO_WORK: Work = Work {
    opcode: WorkOpcode::Send,
    length: 0,
    local: Place { token: 0, base: 0, length: 0 },
    remote_va: 0,
    rkey: RKey(0),
    immediate: 0,
    swap_or_add: 0,
    compare: 0,
    solicited: false,
    fence: false,
};

/// The reason for a message range that leaves its place.
pub(super) fn within(offset: u32, len: usize, length: u32) -> Result<Range<usize>, Reason> {
    let start = offset as usize;
    match start.checked_add(len) {
        Some(end) if end <= length as usize => Ok(start..end),
        _ => Err(Reason::AddressRange),
    }
}
