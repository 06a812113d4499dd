//! Completion queues and completion channels. Polling reads a ring that the NIC's thread fills; sleeping waits on
//! a file descriptor that it rings, only where somebody sleeps or has asked for an event.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rtrb::{Consumer, Producer, RingBuffer};
use softrnic_device::verbs::{Cq as CqHandle, WorkCompletion};
use softrnic_engine::{Qpn, Status};

use super::context::Inner;
use super::doorbell::Bell;
use super::error::Error;
use super::nic::Nic;

/// Values of `CqShared::armed`.
const DISARMED: u8 = 0;
const SOLICITED: u8 = 1;
const NEXT: u8 = 2;

/// What a program's handle and the NIC's thread both see of a completion queue.
#[derive(Debug)]
pub(super) struct CqShared {
    id: u64,
    armed: AtomicU8,
    /// An event waits on the channel for the program.
    event: AtomicBool,
    /// The ring was full, and completions wait behind it.
    backlog: AtomicBool,
    /// Threads that sleep on the bell.
    sleepers: AtomicUsize,
    bell: Bell,
    channel: Option<Arc<ChannelShared>>,
}

/// The NIC's end of a completion queue.
#[derive(Debug)]
pub(super) struct CqTail {
    pub(super) handle: CqHandle,
    ring: Producer<WorkCompletion>,
    shared: Arc<CqShared>,
}

impl CqTail {
    /// Room in the ring; where there is none, the program will call when it has made some.
    #[inline]
    pub(super) fn room(&self) -> usize {
        let room = self.ring.slots();
        if room > 0 {
            return room;
        }
        self.shared.backlog.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.ring.slots()
    }

    /// Hands completions to the program. There is room for them.
    #[inline]
    pub(super) fn push(&mut self, entries: &[WorkCompletion]) {
        // Room was asked for by the only one that fills it.
        let _ = self.ring.push_entire_slice(entries);
        // A program arms, or says that it sleeps, and then looks at the ring once more.
        fence(Ordering::SeqCst);
        if self.shared.sleepers.load(Ordering::Relaxed) > 0 {
            self.shared.bell.ring();
        }
        let wanted = match self.shared.armed.load(Ordering::Relaxed) {
            DISARMED => false,
            SOLICITED => entries.iter().any(|e| e.solicited || e.status != Status::Success),
            _ => true,
        };
        if wanted {
            self.shared.armed.store(DISARMED, Ordering::Relaxed);
            self.shared.event.store(true, Ordering::Release);
            if let Some(channel) = &self.shared.channel {
                channel.bell.ring();
            }
        }
    }
}

/// The program's end of the ring.
#[derive(Debug)]
struct Head {
    ring: Consumer<WorkCompletion>,
    /// Taken out of the ring while completions of a destroyed queue pair were dropped.
    kept: VecDeque<WorkCompletion>,
}

#[derive(Debug)]
pub(super) struct CqInner {
    pub(super) context: Arc<Inner>,
    pub(super) handle: CqHandle,
    shared: Arc<CqShared>,
    head: Mutex<Head>,
    capacity: usize,
    spin: Duration,
}

impl CqInner {
    fn head(&self) -> MutexGuard<'_, Head> {
        self.head.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops completions of a queue pair that was destroyed or reset.
    pub(super) fn forget(&self, qpn: Qpn) {
        let mut head = self.head();
        let Head { ring, kept } = &mut *head;
        kept.retain(|entry| entry.qpn != qpn);
        while let Ok(entry) = ring.pop() {
            if entry.qpn != qpn {
                kept.push_back(entry);
            }
        }
        drop(head);
        self.made_room();
    }

    /// Completions that waited for room can come now.
    fn made_room(&self) {
        fence(Ordering::SeqCst);
        if self.shared.backlog.load(Ordering::Relaxed)
            && self.shared.backlog.swap(false, Ordering::Relaxed)
        {
            self.context.doorbells().call();
        }
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        let handle = self.handle;
        let _ = self.context.call(move |nic: &mut Nic| nic.destroy_cq(handle));
        if let Some(channel) = &self.shared.channel {
            channel.leave(self.shared.id);
        }
    }
}

/// A completion queue (`ibv_cq`). A clone is the same queue.
#[derive(Clone, Debug)]
pub struct Cq(pub(super) Arc<CqInner>);

impl Cq {
    pub(super) fn create(
        context: &Arc<Inner>,
        depth: u32,
        channel: Option<&CompletionChannel>,
        spin: Duration,
    ) -> Result<Self, Error> {
        let channel = channel.map(|channel| channel.0.clone());
        let shared = Arc::new(CqShared {
            id: context.next_id(),
            armed: AtomicU8::new(DISARMED),
            event: AtomicBool::new(false),
            backlog: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            bell: Bell::new()?,
            channel,
        });
        let for_nic = shared.clone();
        let (handle, ring) = context.call(move |nic| {
            // The native face checks the depth before a ring of that size is made.
            let handle = nic.create_cq(depth)?;
            let (producer, consumer) = RingBuffer::new(depth as usize);
            nic.add_cq(CqTail { handle, ring: producer, shared: for_nic });
            Ok::<_, Error>((handle, consumer))
        })??;
        if let Some(channel) = &shared.channel {
            channel.join(&shared);
        }
        let head = Mutex::new(Head { ring, kept: VecDeque::new() });
        let capacity = depth as usize;
        Ok(Self(Arc::new(CqInner {
            context: context.clone(),
            handle,
            shared,
            head,
            capacity,
            spin,
        })))
    }

    /// Its number, as [`CompletionChannel::get_event`] tells it; no other queue has it.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.shared.id
    }

    /// Completions that it holds at least.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// Moves the oldest completions to `out` and returns how many (`ibv_poll_cq`). Never waits, and never asks
    /// the NIC's thread.
    pub fn poll(&self, out: &mut [WorkCompletion]) -> usize {
        let mut head = self.0.head();
        let Head { ring, kept } = &mut *head;
        let mut count = 0;
        while count < out.len() {
            let Some(entry) = kept.pop_front() else { break };
            out[count] = entry;
            count += 1;
        }
        count += ring.pop_partial_slice(&mut out[count..]).0.len();
        drop(head);
        if count > 0 {
            self.0.made_room();
        }
        count
    }

    /// As [`Cq::poll`], but waits until there is a completion or the time is over; 0 then. It spins for a while
    /// before it sleeps.
    pub fn wait(&self, out: &mut [WorkCompletion], timeout: Duration) -> usize {
        if out.is_empty() {
            return 0;
        }
        let start = Instant::now();
        loop {
            let count = self.poll(out);
            if count > 0 {
                return count;
            }
            if start.elapsed() >= self.0.spin.min(timeout) {
                break;
            }
            std::thread::yield_now();
        }
        let shared = &self.0.shared;
        shared.sleepers.fetch_add(1, Ordering::Relaxed);
        let count = loop {
            fence(Ordering::SeqCst);
            let count = self.poll(out);
            let left = timeout.saturating_sub(start.elapsed());
            if count > 0 || left.is_zero() {
                break count;
            }
            shared.bell.sleep(left);
            shared.bell.quieten();
        };
        let others = shared.sleepers.fetch_sub(1, Ordering::Relaxed) > 1;
        if others && count > 0 {
            // The ring that woke us may have been for two.
            shared.bell.ring();
        }
        count
    }

    /// Asks for one event on the queue's channel: at the next completion, or at the next solicited one or error
    /// (`ibv_req_notify_cq`). Completions that are there already give none (rule M-11): poll once more
    /// afterwards.
    pub fn req_notify(&self, solicited_only: bool) {
        let armed = &self.0.shared.armed;
        if solicited_only {
            // A stronger request that is still open stays.
            let _ =
                armed.compare_exchange(DISARMED, SOLICITED, Ordering::Relaxed, Ordering::Relaxed);
        } else {
            armed.store(NEXT, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }
}

#[derive(Debug)]
struct ChannelShared {
    bell: Bell,
    queues: Mutex<Vec<Weak<CqShared>>>,
}

impl ChannelShared {
    fn queues(&self) -> MutexGuard<'_, Vec<Weak<CqShared>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(&self, queue: &Arc<CqShared>) {
        self.queues().push(Arc::downgrade(queue));
    }

    fn leave(&self, id: u64) {
        self.queues().retain(|queue| queue.upgrade().is_some_and(|queue| queue.id != id));
    }

    /// Takes the event of one queue; whether others have one too.
    fn take(&self) -> Option<(u64, bool)> {
        let mut queues = self.queues();
        let has_event = |queue: &Weak<CqShared>| {
            queue.upgrade().filter(|queue| queue.event.load(Ordering::Acquire))
        };
        let (at, found) =
            queues.iter().enumerate().find_map(|(at, queue)| Some((at, has_event(queue)?)))?;
        found.event.store(false, Ordering::Relaxed);
        let more = queues.iter().any(|queue| has_event(queue).is_some());
        // The others come first next time.
        queues[at..].rotate_left(1);
        Some((found.id, more))
    }
}

/// Where completion queues announce completions (`ibv_comp_channel`). A clone is the same channel. Its file
/// descriptor is readable while there may be an event.
#[derive(Clone, Debug)]
pub struct CompletionChannel(Arc<ChannelShared>);

impl CompletionChannel {
    pub(super) fn create() -> Result<Self, Error> {
        Ok(Self(Arc::new(ChannelShared { bell: Bell::new()?, queues: Mutex::default() })))
    }

    /// Waits for the next event and tells the queue's [`Cq::id`] (`ibv_get_cq_event`); `None` when the time is
    /// over. The event is taken with that: there is nothing to acknowledge.
    #[must_use]
    pub fn get_event(&self, timeout: Duration) -> Option<u64> {
        let start = Instant::now();
        loop {
            if let Some((id, more)) = self.0.take() {
                if more {
                    self.0.bell.ring();
                }
                return Some(id);
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return None;
            }
            self.0.bell.sleep(left);
            self.0.bell.quieten();
        }
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.bell.as_fd()
    }
}
