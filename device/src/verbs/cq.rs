//! Completion queues: finished work waits here until the program polls it.
//!
//! Knows no queue pair beyond its number.

use alloc::boxed::Box;

use softrnic_engine::{Qpn, RKey, Reason, Status, WorkOpcode};

use super::error::Error;
use super::queue::zeroed;

/// A completion queue's handle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Cq(pub(super) u32);

/// What has finished (`ibv_wc_opcode`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WcOpcode {
    /// A SEND, with immediate or invalidate or without.
    #[default]
    Send,
    /// An RDMA WRITE, with immediate or without.
    RdmaWrite,
    /// An RDMA READ.
    RdmaRead,
    /// A compare and swap.
    CompSwap,
    /// A fetch and add.
    FetchAdd,
    /// A SEND of the peer arrived.
    Recv,
    /// An RDMA WRITE WITH IMMEDIATE of the peer arrived.
    RecvRdmaWithImm,
}

impl From<WorkOpcode> for WcOpcode {
    fn from(opcode: WorkOpcode) -> Self {
        match opcode {
            WorkOpcode::Send | WorkOpcode::SendImm | WorkOpcode::SendInv | WorkOpcode::RawFrame => {
                Self::Send
            }
            WorkOpcode::Write | WorkOpcode::WriteImm => Self::RdmaWrite,
            WorkOpcode::Read => Self::RdmaRead,
            WorkOpcode::CompareSwap => Self::CompSwap,
            WorkOpcode::FetchAdd => Self::FetchAdd,
        }
    }
}

/// A work completion (`ibv_wc`). Where `status` is not a success, only `wr_id`, `status`, `qpn` and
/// `reason` mean anything (rule Q-53).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkCompletion {
    /// The program's name for the work request.
    pub wr_id: u64,
    /// How it ended.
    pub status: Status,
    /// What it was.
    pub opcode: WcOpcode,
    /// Why it failed: the place of `vendor_err`, in words.
    pub reason: Option<Reason>,
    /// Bytes of the message.
    pub byte_len: u32,
    /// The queue pair.
    pub qpn: Qpn,
    /// Immediate data of the peer.
    pub immediate: Option<u32>,
    /// The key that the peer invalidated.
    pub invalidated: Option<RKey>,
    /// Who sent a datagram; its buffer starts with the 40-byte GRH area then, which `byte_len`
    /// counts (`IBV_WC_GRH`).
    pub source_qpn: Option<Qpn>,
    /// The peer asked for a solicited event: what a queue armed for those only waits for.
    pub solicited: bool,
}

impl Default for WorkCompletion {
    fn default() -> Self {
        Self {
            wr_id: 0,
            status: Status::Success,
            opcode: WcOpcode::Send,
            reason: None,
            byte_len: 0,
            qpn: Qpn::new(0),
            immediate: None,
            invalidated: None,
            source_qpn: None,
            solicited: false,
        }
    }
}

/// When the next completion event is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Armed {
    #[default]
    No,
    Solicited,
    Next,
}

/// What adding a completion led to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pushed {
    Quietly,
    /// The program had asked for an event.
    WithEvent,
    /// There was no room, for the first time.
    Overrun,
    /// There is no room any more: the queue was overrun before.
    Dead,
}

/// A completion queue. Unread entries are never overwritten: after an overrun it takes nothing more
/// (chosen, as on hardware), and what is in it can still be polled. Each queue pair that uses it
/// fails when it next has something to complete here (chosen for rule M-10).
#[derive(Clone, Debug)]
pub(super) struct CompletionQueue {
    ring: Box<[WorkCompletion]>,
    depth: u32,
    /// Entries written and polled since creation, wrapping.
    written: u32,
    polled: u32,
    armed: Armed,
    overrun: bool,
    /// Work queues that complete here.
    pub(super) users: u32,
    /// An event is waiting for the program.
    pub(super) event_pending: bool,
}

impl CompletionQueue {
    pub(super) fn new(depth: u32) -> Result<Self, Error> {
        if !(1..=CQ_DEPTH_MAX).contains(&depth) {
            let (given, max) = (depth.into(), CQ_DEPTH_MAX.into());
            return Err(Error::OutOfRange { what: "completion queue depth", given, min: 1, max });
        }
        Ok(Self {
            ring: zeroed(depth.next_power_of_two() as usize)?,
            depth,
            written: 0,
            polled: 0,
            armed: Armed::No,
            overrun: false,
            users: 0,
            event_pending: false,
        })
    }

    #[inline]
    pub(super) fn push(&mut self, entry: WorkCompletion) -> Pushed {
        if self.overrun {
            return Pushed::Dead;
        }
        if self.written.wrapping_sub(self.polled) >= self.depth {
            self.overrun = true;
            return Pushed::Overrun;
        }
        let at = self.at(self.written);
        self.ring[at] = entry;
        self.written = self.written.wrapping_add(1);
        let due = match self.armed {
            Armed::No => false,
            Armed::Solicited => entry.solicited || entry.status != Status::Success,
            Armed::Next => true,
        };
        if due {
            self.armed = Armed::No;
            return Pushed::WithEvent;
        }
        Pushed::Quietly
    }

    /// Moves the oldest entries to `out`; returns how many.
    #[inline]
    pub(super) fn poll(&mut self, out: &mut [WorkCompletion]) -> usize {
        let waiting = self.written.wrapping_sub(self.polled) as usize;
        let count = waiting.min(out.len());
        for entry in &mut out[..count] {
            *entry = self.ring[self.at(self.polled)];
            self.polled = self.polled.wrapping_add(1);
        }
        count
    }

    /// Asks for one event: for the next entry, or for the next solicited one or error. A stronger
    /// request that is still open stays (IBTA vol 1, 11.4.2.2).
    pub(super) fn arm(&mut self, solicited_only: bool) {
        if !solicited_only {
            self.armed = Armed::Next;
        } else if self.armed == Armed::No {
            self.armed = Armed::Solicited;
        }
    }

    /// Forgets the entries of a queue pair that is destroyed or reset.
    pub(super) fn forget(&mut self, qpn: Qpn) {
        let mut kept = self.polled;
        let mut at = self.polled;
        while at != self.written {
            let entry = self.ring[self.at(at)];
            if entry.qpn != qpn {
                let to = self.at(kept);
                self.ring[to] = entry;
                kept = kept.wrapping_add(1);
            }
            at = at.wrapping_add(1);
        }
        self.written = kept;
    }

    #[inline]
    fn at(&self, index: u32) -> usize {
        index as usize & (self.ring.len() - 1)
    }
}

/// Chosen: 2^22 entries, as common HCAs report.
const CQ_DEPTH_MAX: u32 = 1 << 22;

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn entry(wr_id: u64, qpn: u32) -> WorkCompletion {
        WorkCompletion { wr_id, qpn: Qpn::new(qpn), ..WorkCompletion::default() }
    }

    fn solicited(entry: WorkCompletion) -> WorkCompletion {
        WorkCompletion { solicited: true, ..entry }
    }

    fn ids(cq: &mut CompletionQueue) -> Vec<u64> {
        let mut out = [WorkCompletion::default(); 8];
        let count = cq.poll(&mut out);
        out[..count].iter().map(|entry| entry.wr_id).collect()
    }

    #[test]
    fn m_10_an_overrun_keeps_unread_entries_and_is_final() {
        let mut cq = CompletionQueue::new(3).unwrap();
        assert!((0..3).all(|i| cq.push(entry(i, 1)) == Pushed::Quietly));
        assert_eq!(cq.push(entry(3, 1)), Pushed::Overrun);
        assert_eq!(ids(&mut cq), [0, 1, 2]);
        assert_eq!(cq.push(entry(4, 1)), Pushed::Dead);
        assert!(ids(&mut cq).is_empty());
    }

    #[test]
    fn m_11_one_event_per_arm() {
        let mut cq = CompletionQueue::new(8).unwrap();
        cq.push(solicited(entry(0, 1)));
        cq.arm(true);
        assert_eq!(cq.push(entry(1, 1)), Pushed::Quietly);
        assert_eq!(cq.push(solicited(entry(2, 1))), Pushed::WithEvent);
        assert_eq!(cq.push(solicited(entry(3, 1))), Pushed::Quietly);
        cq.arm(true);
        let failed = WorkCompletion { status: Status::Flushed, ..entry(4, 1) };
        assert_eq!(cq.push(failed), Pushed::WithEvent);
        cq.arm(false);
        cq.arm(true);
        assert_eq!(cq.push(entry(5, 1)), Pushed::WithEvent);
    }

    #[test]
    fn a_forgotten_queue_pair_leaves_the_others_in_order() {
        let mut cq = CompletionQueue::new(4).unwrap();
        for round in 0..5 {
            for i in 0..4 {
                cq.push(entry(round * 4 + i, i as u32 & 1));
            }
            cq.forget(Qpn::new(1));
            assert_eq!(ids(&mut cq), [round * 4, round * 4 + 2]);
        }
    }
}
