//! The rings through which work requests go from a program to the NIC's thread. Entries are of one size; their
//! scatter/gather elements and inline bytes follow in rings beside them, so that nothing is allocated.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use rtrb::{Consumer, Producer, RingBuffer};
use softrnic_device::verbs::{
    Cq as CqHandle, Payload, RecvRequest, SendOp, SendRequest, Sge, Srq as SrqHandle, UdAddress,
};
use softrnic_engine::{Qpn, State};

/// What both sides know of a work queue.
#[derive(Debug, Default)]
pub(super) struct QueueShared {
    /// Entries that have ended since creation, wrapping; the thread counts.
    pub(super) freed: AtomicU32,
}

/// What both sides know of a queue pair.
#[derive(Debug, Default)]
pub(super) struct QpShared {
    pub(super) sends: QueueShared,
    pub(super) receives: QueueShared,
    /// Position in [`State::ALL`], as the last control call left it.
    state: AtomicU8,
}

impl QpShared {
    pub(super) fn state(&self) -> State {
        State::ALL[usize::from(self.state.load(Ordering::Acquire))]
    }

    pub(super) fn set_state(&self, state: State) {
        let at = State::ALL.iter().position(|other| *other == state).unwrap_or(0);
        self.state.store(at as u8, Ordering::Release);
    }
}

#[derive(Debug)]
struct SendEntry {
    wr_id: u64,
    op: SendOp,
    ud: Option<UdAddress>,
    sges: u16,
    inline: Option<u16>,
    signaled: bool,
    solicited: bool,
    fence: bool,
}

/// A program's end of a send queue. It has room for what the queue's depth allows: whoever pushes counts.
#[derive(Debug)]
pub(super) struct SendHead {
    entries: Producer<SendEntry>,
    sges: Producer<Sge>,
    inline: Producer<u8>,
}

/// The thread's end.
#[derive(Debug)]
pub(super) struct SendTail {
    entries: Consumer<SendEntry>,
    sges: Consumer<Sge>,
    inline: Consumer<u8>,
}

/// Rings for a send queue.
pub(super) fn send_rings(depth: u32, max_sge: u32, max_inline: u32) -> (SendHead, SendTail) {
    let depth = depth as usize;
    let (entries, entries_tail) = RingBuffer::new(depth);
    let (sges, sges_tail) = RingBuffer::new(depth * max_sge as usize);
    let (inline, inline_tail) = RingBuffer::new(depth * max_inline as usize);
    let tail = SendTail { entries: entries_tail, sges: sges_tail, inline: inline_tail };
    (SendHead { entries, sges, inline }, tail)
}

impl SendHead {
    /// Hands a request over, which fits; `false` where nobody is there to take it.
    #[inline]
    pub(super) fn push(&mut self, request: &SendRequest<'_>) -> bool {
        let (mut sges, mut inline) = (0, None);
        let room = match request.payload {
            Payload::Sges(list) => {
                sges = list.len() as u16;
                self.sges.push_entire_slice(list).is_ok()
            }
            Payload::Inline(bytes) => {
                inline = Some(bytes.len() as u16);
                self.inline.push_entire_slice(bytes).is_ok()
            }
        };
        let SendRequest { wr_id, op, ud, signaled, solicited, fence, .. } = *request;
        let entry = SendEntry { wr_id, op, ud, sges, inline, signaled, solicited, fence };
        debug_assert!(room, "entries, elements and inline bytes have room for the whole depth");
        self.entries.push(entry).is_ok() && !self.entries.is_abandoned()
    }
}

impl SendTail {
    /// The next request, its elements and inline bytes in the given places.
    #[inline]
    pub(super) fn take<'a>(
        &mut self,
        sges: &'a mut [Sge],
        inline: &'a mut [u8],
    ) -> Option<SendRequest<'a>> {
        let entry = self.entries.pop().ok()?;
        // They were pushed before the entry.
        let payload = match entry.inline {
            None => {
                let list = &mut sges[..entry.sges.into()];
                let _ = self.sges.pop_entire_slice(list);
                Payload::Sges(list)
            }
            Some(len) => {
                let bytes = &mut inline[..len.into()];
                let _ = self.inline.pop_entire_slice(bytes);
                Payload::Inline(bytes)
            }
        };
        let SendEntry { wr_id, op, ud, signaled, solicited, fence, .. } = entry;
        Some(SendRequest { wr_id, op, payload, signaled, solicited, fence, ud })
    }
}

#[derive(Debug)]
struct RecvEntry {
    wr_id: u64,
    sges: u16,
}

/// A program's end of a receive queue.
#[derive(Debug)]
pub(super) struct RecvHead {
    entries: Producer<RecvEntry>,
    sges: Producer<Sge>,
}

/// The thread's end.
#[derive(Debug)]
pub(super) struct RecvTail {
    entries: Consumer<RecvEntry>,
    sges: Consumer<Sge>,
}

/// Rings for a receive queue.
pub(super) fn recv_rings(depth: u32, max_sge: u32) -> (RecvHead, RecvTail) {
    let (entries, entries_tail) = RingBuffer::new(depth as usize);
    let (sges, sges_tail) = RingBuffer::new(depth as usize * max_sge as usize);
    (RecvHead { entries, sges }, RecvTail { entries: entries_tail, sges: sges_tail })
}

impl RecvHead {
    /// As [`SendHead::push`].
    #[inline]
    pub(super) fn push(&mut self, request: &RecvRequest<'_>) -> bool {
        let room = self.sges.push_entire_slice(request.sges).is_ok();
        debug_assert!(room, "elements have room for the whole depth");
        let entry = RecvEntry { wr_id: request.wr_id, sges: request.sges.len() as u16 };
        self.entries.push(entry).is_ok() && !self.entries.is_abandoned()
    }
}

impl RecvTail {
    /// The next request's name, and its elements in the given place.
    #[inline]
    pub(super) fn take<'a>(&mut self, sges: &'a mut [Sge]) -> Option<(u64, &'a [Sge])> {
        let entry = self.entries.pop().ok()?;
        let list = &mut sges[..entry.sges.into()];
        let _ = self.sges.pop_entire_slice(list);
        Some((entry.wr_id, list))
    }
}

/// What the thread has of a queue pair.
#[derive(Debug)]
pub(super) struct QpTail {
    pub(super) qpn: Qpn,
    pub(super) sends: SendTail,
    pub(super) receives: RecvTail,
    /// Requests taken from the rings since creation, wrapping.
    pub(super) sends_taken: u32,
    pub(super) receives_taken: u32,
    pub(super) send_cq: CqHandle,
    pub(super) recv_cq: CqHandle,
    pub(super) srq_slot: Option<usize>,
    pub(super) shared: Arc<QpShared>,
}

impl QpTail {
    /// Drops what was posted and not taken yet.
    pub(super) fn forget_posted(&mut self, sges: &mut [Sge], inline: &mut [u8]) {
        while self.sends.take(sges, inline).is_some() {
            self.sends_taken = self.sends_taken.wrapping_add(1);
        }
        while self.receives.take(sges).is_some() {
            self.receives_taken = self.receives_taken.wrapping_add(1);
        }
    }
}

/// What the thread has of a shared receive queue.
#[derive(Debug)]
pub(super) struct SrqTail {
    pub(super) handle: SrqHandle,
    pub(super) receives: RecvTail,
    /// Requests taken from the ring since creation, wrapping.
    pub(super) taken: u32,
    pub(super) shared: Arc<QueueShared>,
}

/// What a doorbell rings for.
#[derive(Debug)]
pub(super) enum Queue {
    /// A queue pair.
    Pair(QpTail),
    /// A shared receive queue.
    Shared(SrqTail),
}
