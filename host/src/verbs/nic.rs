//! The NIC's thread: it alone touches the station. It turns it, takes what programs posted from their rings,
//! and puts completions into theirs.
//!
//! For each message it takes no lock and allocates nothing; the clock is read once for each round.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Duration;

use softrnic_device::verbs::{AsyncEvent, Cq as CqHandle, RecvRequest, Sge, Verbs, WorkCompletion};
use softrnic_engine::packet::FRAME_LEN_MAX;
use softrnic_engine::{Nanos, Qpn, Status};

use super::buffer::SharedMemory;
use super::connections::OnNic;
use super::context::{Event, Shared};
use super::cq::CqTail;
use super::doorbell::SLOTS;
use super::error::Error;
use super::rings::{QpTail, Queue, SrqTail};
use crate::clock::Clock;
use crate::link::Link;
use crate::port::Resolution;
use crate::station::Station;

/// Completions that are moved at once.
const BATCH: usize = 64;
/// Most elements of a work request, and most inline bytes, as the native face has them.
const SGES_MAX: usize = 256;
const INLINE_MAX: usize = 4096;

/// What a program asks of the thread.
pub(super) enum Call {
    /// Do this.
    Run(Box<dyn FnOnce(&mut Nic) + Send>),
    /// Tell the peer's MAC address as soon as it is known.
    Resolve { ip: IpAddr, timeout: Duration, reply: SyncSender<Result<[u8; 6], Error>> },
    /// End.
    Stop,
}

struct Resolving {
    ip: IpAddr,
    until: Nanos,
    reply: SyncSender<Result<[u8; 6], Error>>,
}

/// What the thread owns.
pub(super) struct Nic {
    pub(super) station: Station<Verbs, SharedMemory>,
    pub(super) clock: Clock,
    now: Nanos,
    shared: Arc<Shared>,
    spin: Duration,
    link_up: bool,
    cqs: BTreeMap<CqHandle, CqTail>,
    /// Completion queues whose ring was full.
    backlog: Vec<CqHandle>,
    queues: Vec<Option<Queue>>,
    slots: BTreeMap<Qpn, usize>,
    /// Completions of requests that the native face refused after they were posted.
    refused: Vec<(CqHandle, WorkCompletion)>,
    resolving: Vec<Resolving>,
    pub(super) connections: Option<OnNic>,
    stopping: bool,
    sges: Box<[Sge]>,
    inline: Box<[u8]>,
    completions: Box<[WorkCompletion]>,
    frame: Box<[u8]>,
}

/// Announces the thread's end, whatever the reason.
struct End(Arc<Shared>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.events.push(Event::Stopped);
    }
}

impl Nic {
    pub(super) fn new(
        station: Station<Verbs, SharedMemory>,
        clock: Clock,
        shared: Arc<Shared>,
        spin: Duration,
    ) -> Self {
        Self {
            station,
            clock,
            now: clock.now(),
            shared,
            spin,
            link_up: true,
            cqs: BTreeMap::new(),
            backlog: Vec::new(),
            queues: Vec::new(),
            slots: BTreeMap::new(),
            refused: Vec::new(),
            resolving: Vec::new(),
            connections: None,
            stopping: false,
            sges: vec![Sge::default(); SGES_MAX].into_boxed_slice(),
            inline: vec![0; INLINE_MAX].into_boxed_slice(),
            completions: vec![WorkCompletion::default(); BATCH].into_boxed_slice(),
            frame: vec![0; FRAME_LEN_MAX].into_boxed_slice(),
        }
    }

    /// Runs until it is told to stop, or nobody is left who could.
    pub(super) fn run(mut self, calls: &Receiver<Call>) {
        let shared = self.shared.clone();
        let _end = End(shared.clone());
        let spin_ns = u64::try_from(self.spin.as_nanos()).unwrap_or(u64::MAX);
        let mut last_work = self.clock.now();
        loop {
            self.now = self.clock.now();
            let mut busy = self.take_calls(calls);
            if self.stopping {
                break;
            }
            busy |= shared.doorbells.take(|slot| self.take_work(slot));
            busy |= self.turn();
            busy |= self.deliver();
            busy |= self.manage_connections();
            self.resolve();
            if busy {
                last_work = self.now;
                continue;
            }
            if self.now.0.saturating_sub(last_work.0) < spin_ns {
                // A program on the same processor gets its turn.
                std::thread::yield_now();
                continue;
            }
            self.sleep(&shared);
        }
        if let Err(error) = self.station.stop_capture() {
            tracing::warn!("the capture is not complete: {error}");
        }
    }

    fn sleep(&mut self, shared: &Shared) {
        let deadline = self.station.next_deadline();
        let resolving = self.resolving.iter().map(|resolving| resolving.until);
        let agent = self.connections.as_mut().and_then(|on_nic| on_nic.agent().next_deadline());
        let deadline = resolving.chain(deadline).chain(agent).min();
        let now = self.clock.now();
        let timeout = deadline.map(|due| Duration::from_nanos(due.0.saturating_sub(now.0)));
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return;
        }
        if self.link_up && !self.station.may_wait() {
            return;
        }
        let link = self.station.link();
        let fd = if self.link_up { link.fd() } else { None };
        shared.doorbells.sleep(fd.map(|fd| (fd, link.wants_write())), timeout);
    }

    fn take_calls(&mut self, calls: &Receiver<Call>) -> bool {
        if !self.shared.doorbells.take_call() {
            return false;
        }
        loop {
            match calls.try_recv() {
                Ok(Call::Run(call)) => call(self),
                Ok(Call::Resolve { ip, timeout, reply }) => {
                    let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
                    let until = Nanos(self.now.0.saturating_add(timeout_ns));
                    self.resolving.push(Resolving { ip, until, reply });
                }
                Ok(Call::Stop) => self.stopping = true,
                Err(_) => return true,
            }
        }
    }

    /// Moves frames; whether there were any.
    fn turn(&mut self) -> bool {
        if !self.link_up {
            return self.station.turn_without_link(self.now, &mut self.frame) > 0;
        }
        match self.station.turn(self.now) {
            Ok(turn) => !turn.idle(),
            Err(error) => {
                self.link_up = false;
                let link = self.station.link().name().to_owned();
                tracing::warn!("{error}; queue pairs end by their timeouts");
                self.shared.events.push(Event::LinkDown { link, why: error.to_string() });
                true
            }
        }
    }

    /// Takes a link in the place of one that went away, or of one that works.
    pub(super) fn replace_link(&mut self, link: Box<dyn Link>) {
        self.shared.events.push(Event::LinkUp { link: link.name().to_owned() });
        self.station.replace_link(link);
        self.link_up = true;
    }

    /// The time of this round.
    pub(super) const fn now(&self) -> Nanos {
        self.now
    }

    fn resolve(&mut self) {
        let mut at = 0;
        while let Some(Resolving { ip, until, .. }) = self.resolving.get(at) {
            let unresolved = |why| Err(Error::Unresolved { ip: *ip, why });
            let answer = match self.station.resolve(self.now, *ip) {
                Resolution::Known(mac) => Ok(mac),
                Resolution::NoRoute => {
                    unresolved("is in no network of this port; give its network or a gateway")
                }
                Resolution::Unreachable => unresolved("nobody answers for this address"),
                Resolution::Asking if !self.link_up => unresolved("the link is gone"),
                Resolution::Asking if self.now >= *until => {
                    unresolved("nobody has answered for this address in time")
                }
                Resolution::Asking => {
                    at += 1;
                    continue;
                }
            };
            // A program that has given up does not care.
            let _ = self.resolving.swap_remove(at).reply.try_send(answer);
        }
    }
}

/// Completion queues.
impl Nic {
    pub(super) fn create_cq(&mut self, depth: u32) -> Result<CqHandle, Error> {
        Ok(self.station.nic.create_cq(depth)?)
    }

    pub(super) fn add_cq(&mut self, tail: CqTail) {
        // The native face tells of every queue with completions, so that none has to be looked for.
        let _ = self.station.nic.req_notify_cq(tail.handle, false);
        self.cqs.insert(tail.handle, tail);
    }

    pub(super) fn destroy_cq(&mut self, handle: CqHandle) {
        if self.station.nic.destroy_cq(handle).is_ok() {
            self.cqs.remove(&handle);
            self.backlog.retain(|other| *other != handle);
            self.refused.retain(|(other, _)| *other != handle);
        }
    }

    /// Hands completions and events to programs; whether there were any.
    fn deliver(&mut self) -> bool {
        let mut busy = false;
        for _ in 0..self.backlog.len() {
            let handle = self.backlog.remove(0);
            busy |= self.deliver_queue(handle);
        }
        while let Some(handle) = self.station.nic.get_cq_event() {
            busy |= self.deliver_queue(handle);
        }
        if !self.refused.is_empty() {
            self.deliver_refused();
        }
        while let Some(event) = self.station.nic.get_async_event() {
            if let (Some(on_nic), AsyncEvent::CommunicationEstablished(qpn)) =
                (&mut self.connections, &event)
            {
                on_nic.agent().communication_established(*qpn);
            }
            self.shared.events.push(Event::Async(event));
            busy = true;
        }
        busy
    }

    fn deliver_queue(&mut self, handle: CqHandle) -> bool {
        let Self { station, cqs, backlog, queues, slots, completions, .. } = self;
        let Some(tail) = cqs.get_mut(&handle) else { return false };
        let nic = &mut station.nic;
        let mut busy = false;
        loop {
            let room = tail.room().min(BATCH);
            if room == 0 {
                backlog.push(handle);
                return busy;
            }
            let count = nic.poll_cq(handle, &mut completions[..room]).unwrap_or(0);
            if count == 0 {
                let _ = nic.req_notify_cq(handle, false);
                return busy;
            }
            let mut last = None;
            for entry in &completions[..count] {
                if last != Some(entry.qpn) {
                    free_entries(nic, queues, slots, entry.qpn);
                    last = Some(entry.qpn);
                }
            }
            tail.push(&completions[..count]);
            busy = true;
        }
    }

    fn deliver_refused(&mut self) {
        let cqs = &mut self.cqs;
        self.refused.retain(|(handle, entry)| match cqs.get_mut(handle) {
            Some(tail) if tail.room() > 0 => {
                tail.push(&[*entry]);
                false
            }
            Some(_) => true,
            None => false,
        });
    }
}

/// Work queues.
impl Nic {
    /// A slot whose doorbell nobody has.
    pub(super) fn free_slot(&self) -> Result<usize, Error> {
        let free = self.queues.iter().position(Option::is_none).unwrap_or(self.queues.len());
        if free < SLOTS {
            Ok(free)
        } else {
            Err(softrnic_device::verbs::Error::Exhausted("doorbell").into())
        }
    }

    pub(super) fn add_queue(&mut self, slot: usize, queue: Queue) {
        if let Queue::Pair(pair) = &queue {
            self.slots.insert(pair.qpn, slot);
        }
        if slot == self.queues.len() {
            self.queues.push(None);
        }
        self.queues[slot] = Some(queue);
    }

    /// Forgets the queue in a slot, and what was posted to it and not taken yet.
    /// What the thread has of a queue pair.
    pub(super) fn queue_of(&self, qpn: Qpn) -> Option<&Queue> {
        self.slots.get(&qpn).and_then(|&slot| self.queues.get(slot)?.as_ref())
    }

    pub(super) fn remove_queue(&mut self, slot: usize) -> Option<Queue> {
        self.queues.get_mut(slot)?.take()
    }

    pub(super) fn destroy_qp(&mut self, slot: usize, qpn: Qpn) {
        let removed = self.remove_queue(slot);
        self.slots.remove(&qpn);
        self.refused.retain(|(_, entry)| entry.qpn != qpn);
        // Only an unknown queue pair could be refused.
        let destroyed = self.station.nic.destroy_qp(qpn);
        debug_assert!(destroyed.is_ok(), "{destroyed:?}");
        if let Some(Queue::Pair(QpTail { srq_slot: Some(slot), .. })) = removed {
            free_shared(&self.station.nic, &self.queues[slot]);
        }
    }

    /// Forgets what was posted to a queue pair and not taken yet, because it goes to RESET.
    pub(super) fn forget_posted(&mut self, slot: usize) {
        if let Some(Some(Queue::Pair(pair))) = self.queues.get_mut(slot) {
            pair.forget_posted(&mut self.sges, &mut self.inline);
        }
    }

    /// After a queue pair went to RESET: its queues are empty.
    pub(super) fn freed_by_reset(&self, qpn: Qpn) {
        free_entries(&self.station.nic, &self.queues, &self.slots, qpn);
    }

    /// Takes what was posted to the queue in a slot.
    fn take_work(&mut self, slot: usize) {
        let Some(Some(queue)) = self.queues.get_mut(slot) else { return };
        let nic = &mut self.station.nic;
        match queue {
            Queue::Pair(QpTail {
                qpn,
                sends,
                receives,
                sends_taken,
                receives_taken,
                send_cq,
                recv_cq,
                ..
            }) => {
                while let Some((wr_id, sges)) = receives.take(&mut self.sges) {
                    *receives_taken = receives_taken.wrapping_add(1);
                    if let Err(error) = nic.post_recv(*qpn, &RecvRequest { wr_id, sges }) {
                        self.refused.push((*recv_cq, refusal(wr_id, *qpn, error)));
                    }
                }
                while let Some(request) = sends.take(&mut self.sges, &mut self.inline) {
                    *sends_taken = sends_taken.wrapping_add(1);
                    if let Err(error) = nic.post_send(*qpn, &request) {
                        self.refused.push((*send_cq, refusal(request.wr_id, *qpn, error)));
                    }
                }
            }
            Queue::Shared(SrqTail { handle, receives, taken, .. }) => {
                while let Some((wr_id, sges)) = receives.take(&mut self.sges) {
                    *taken = taken.wrapping_add(1);
                    // The program's handle has checked all that could be refused here.
                    let posted = nic.post_srq_recv(*handle, &RecvRequest { wr_id, sges });
                    debug_assert!(posted.is_ok(), "{posted:?}");
                }
            }
        }
    }
}

/// Tells programs how much room a queue pair's queues have now.
fn free_entries(
    nic: &softrnic_device::Nic<Verbs, SharedMemory>,
    queues: &[Option<Queue>],
    slots: &BTreeMap<Qpn, usize>,
    qpn: Qpn,
) {
    let slot = slots.get(&qpn).map(|&slot| &queues[slot]);
    let (Some(Some(Queue::Pair(pair))), Some(held)) = (slot, nic.held(qpn)) else { return };
    let (sends, receives) = held;
    let shared = &pair.shared;
    shared.sends.freed.store(pair.sends_taken.wrapping_sub(sends), Ordering::Release);
    shared.receives.freed.store(pair.receives_taken.wrapping_sub(receives), Ordering::Release);
    if let Some(slot) = pair.srq_slot {
        free_shared(nic, &queues[slot]);
    }
}

/// The same for a shared receive queue.
fn free_shared(nic: &softrnic_device::Nic<Verbs, SharedMemory>, queue: &Option<Queue>) {
    if let Some(Queue::Shared(srq)) = queue {
        let held = nic.srq_held(srq.handle).unwrap_or(0);
        srq.shared.freed.store(srq.taken.wrapping_sub(held), Ordering::Release);
    }
}

/// A request that was posted while the queue pair went to a state that takes none.
fn refusal(wr_id: u64, qpn: Qpn, error: softrnic_device::verbs::Error) -> WorkCompletion {
    let (status, reason) = (Status::Flushed, Some(error.reason()));
    WorkCompletion { wr_id, qpn, status, reason, ..WorkCompletion::default() }
}
