//! Faults at the face: a [`Face`] that wraps a [`Face`] for the length of one engine call, and the
//! calls of a [`Nic`] with it.
//!
//! Knows no device. What is not named by a rule goes through unchanged.

use softrnic_device::{Between, Device, EngineCall, Memory, Nic};
use softrnic_engine::{
    Access, Atomic, Completion, CompletionKind, Datagram, Engine, Event, Face, Fetch, Hold, Nanos,
    Place, Qpn, RKey, Reason, Room, Rx, State, Status, Train, Verdict,
};

use super::injector::{Head, Injector};
use super::rule::{Action, Queue, Transfer};

/// Fault rules in the hands of a node's software, which calls the device by itself: a doorbell or a
/// change of state may complete work, too. The world lends them for that time.
#[derive(Debug)]
pub struct Lent {
    pub(crate) injector: Injector,
    now: Nanos,
    node: usize,
}

impl Lent {
    pub(crate) const fn new(injector: Injector, now: Nanos, node: usize) -> Self {
        Self { injector, now, node }
    }

    const fn at_face(&mut self) -> AtFace<'_> {
        self.injector.at_face(self.now, self.node)
    }
}

impl Between for Lent {
    fn make<C: EngineCall>(
        &mut self,
        engine: &mut Engine,
        face: &mut impl Face,
        call: C,
    ) -> C::Answer {
        self.at_face().make(engine, face, call)
    }

    fn before_flush(&mut self, engine: &mut Engine, face: &mut impl Face, q: Qpn) {
        self.at_face().before_flush(engine, face, q);
    }

    fn forget(&mut self, q: Qpn) {
        self.at_face().forget(q);
    }
}

/// The rules as they stand before one node's face, at one moment.
#[derive(Debug)]
pub struct AtFace<'a> {
    injector: &'a mut Injector,
    node: usize,
    now: Nanos,
    /// Of the frame in hand.
    head: Option<Head>,
    told: bool,
}

/// A completion that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldCompletion {
    pub(super) node: usize,
    pub(super) due: Nanos,
    q: Qpn,
    what: Completion,
}

/// A completion of a work request that a rule has lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LostCompletion {
    pub(crate) node: usize,
    pub(crate) q: Qpn,
    /// Which one since the queue pair was reset, from 0.
    pub(crate) index: u32,
    pub(crate) status: Status,
}

impl<'a> AtFace<'a> {
    pub(super) const fn new(injector: &'a mut Injector, now: Nanos, node: usize) -> Self {
        Self { injector, node, now, head: None, told: false }
    }

    /// The time.
    #[must_use]
    pub const fn now(&self) -> Nanos {
        self.now
    }

    /// Whether software was told something that an interrupt announces.
    #[must_use]
    pub const fn told(&self) -> bool {
        self.told
    }

    /// [`Nic::handle_frame`].
    pub fn handle_frame<D: Device<M>, M: Memory>(
        &mut self,
        nic: &mut Nic<D, M>,
        frame: &[u8],
        rx: Rx,
    ) -> Verdict {
        self.head = Head::of(frame);
        let now = self.now;
        let verdict = nic.handle_frame_through(self, now, frame, rx);
        self.head = None;
        verdict
    }

    /// [`Nic::poll_transmit`].
    pub fn poll_transmit<D: Device<M>, M: Memory>(
        &mut self,
        nic: &mut Nic<D, M>,
        room: &mut Room<'_>,
    ) -> Option<Train> {
        let now = self.now;
        nic.poll_transmit_through(self, now, room)
    }

    /// [`Nic::handle_timeout`]; completions whose time has come are written first.
    pub fn handle_timeout<D: Device<M>, M: Memory>(&mut self, nic: &mut Nic<D, M>) {
        let now = self.now;
        let due = self.injector.take_held(|held| held.node == self.node && held.due <= now);
        self.write(due, &mut nic.engine, &mut nic.device.view(&mut nic.memory));
        if nic.next_deadline().is_some_and(|deadline| deadline <= now) {
            nic.handle_timeout_through(self, now);
        }
    }

    /// Writes completions that have waited.
    fn write(&mut self, held: Vec<HeldCompletion>, engine: &mut Engine, face: &mut impl Face) {
        for HeldCompletion { q, what, .. } in held {
            self.told = true;
            // As the engine does where a completion finds its queue full.
            if face.complete(q, what).is_err() {
                let face = &mut FaultyFace { inner: face, faults: self };
                engine.set_state(q, State::Error, face);
            }
        }
    }

    /// The first rule that fires on a call for `q`, among those whose action is `wanted`.
    fn fires(
        &mut self,
        q: Qpn,
        wanted: impl Fn(&Action) -> bool,
        what: impl Fn() -> String,
    ) -> Option<Action> {
        self.injector.call(self.now, self.node, Some(q), self.head, wanted, what)
    }

    fn transfer_fails(&mut self, q: Qpn, way: Transfer, len: usize) -> Result<(), Hold> {
        let wanted = |action: &Action| matches!(action, Action::DmaError { access } if access.is_none_or(|a| a == way));
        let words = || format!("{} of {len} bytes of memory, QP {}", way.name(), q.get());
        match self.fires(q, wanted, words) {
            Some(_) => Err(Hold::Fault(Reason::DmaAddress)),
            None => Ok(()),
        }
    }
}

impl Injector {
    /// Takes those completions that wait, oldest first.
    fn take_held(&mut self, which: impl Fn(&HeldCompletion) -> bool) -> Vec<HeldCompletion> {
        let (taken, left) = self.held.drain(..).partition(which);
        self.held = left;
        taken
    }
}

const fn queue_of(what: &Completion) -> Queue {
    match what.kind {
        CompletionKind::Work { .. } => Queue::Send,
        CompletionKind::Receive { .. } => Queue::Receive,
    }
}

impl Between for AtFace<'_> {
    fn make<C: EngineCall>(
        &mut self,
        engine: &mut Engine,
        face: &mut impl Face,
        call: C,
    ) -> C::Answer {
        call.make(engine, &mut FaultyFace { inner: face, faults: self })
    }

    fn before_flush(&mut self, engine: &mut Engine, face: &mut impl Face, q: Qpn) {
        let held = self.injector.take_held(|held| held.node == self.node && held.q == q);
        self.write(held, engine, face);
    }

    fn forget(&mut self, q: Qpn) {
        self.injector.held.retain(|held| held.node != self.node || held.q != q);
    }
}

struct FaultyFace<'f, 'a, F> {
    inner: &'f mut F,
    faults: &'f mut AtFace<'a>,
}

impl<F: Face> Face for FaultyFace<'_, '_, F> {
    fn work(&mut self, q: Qpn, index: u32) -> Fetch {
        self.inner.work(q, index)
    }

    fn gather(&mut self, q: Qpn, from: Place, offset: u32, out: &mut [u8]) -> Result<(), Hold> {
        self.faults.transfer_fails(q, Transfer::Read, out.len())?;
        self.inner.gather(q, from, offset, out)
    }

    fn receive(&mut self, q: Qpn) -> Result<Place, Hold> {
        let stalls = |action: &Action| matches!(action, Action::StallReceive);
        let words = || format!("receive buffer of QP {}", q.get());
        if self.faults.fires(q, stalls, words).is_some() {
            return Err(Hold::Stall);
        }
        let place = self.inner.receive(q)?;
        // A device that finds its next buffer by what it has announced would fill the same one twice.
        let AtFace { injector, node, .. } = &*self.faults;
        let taken = injector.held.iter().any(|held| {
            let waits = matches!(held.what.kind, CompletionKind::Receive { place: Some(p), .. } if p == place);
            held.node == *node && held.q == q && waits
        });
        if taken { Err(Hold::Stall) } else { Ok(place) }
    }

    fn grant(
        &mut self,
        q: Qpn,
        key: RKey,
        va: u64,
        length: u32,
        want: Access,
    ) -> Result<Place, Reason> {
        self.inner.grant(q, key, va, length, want)
    }

    fn scatter(&mut self, q: Qpn, to: Place, offset: u32, bytes: &[u8]) -> Result<(), Hold> {
        self.faults.transfer_fails(q, Transfer::Write, bytes.len())?;
        self.inner.scatter(q, to, offset, bytes)
    }

    fn datagram(&mut self, q: Qpn, index: u32) -> Result<Datagram, Reason> {
        self.inner.datagram(q, index)
    }

    fn receives_posted(&mut self, q: Qpn) -> Option<u32> {
        self.inner.receives_posted(q)
    }

    fn atomic(&mut self, q: Qpn, at: Place, operation: Atomic) -> Result<u64, Hold> {
        self.faults.transfer_fails(q, Transfer::Write, 8)?;
        self.inner.atomic(q, at, operation)
    }

    fn invalidate(&mut self, q: Qpn, key: RKey) -> Result<(), Reason> {
        self.inner.invalidate(q, key)
    }

    fn acknowledged(&mut self, q: Qpn, index: u32) {
        self.inner.acknowledged(q, index);
    }

    fn complete(&mut self, q: Qpn, what: Completion) -> Result<(), Reason> {
        let queue = queue_of(&what);
        let wanted = |action: &Action| match action {
            Action::LoseCompletion { queue: of } | Action::HoldCompletion { queue: of, .. } => {
                of.is_none_or(|of| of == queue)
            }
            _ => false,
        };
        let words = || format!("{} completion of QP {}, {:?}", queue.name(), q.get(), what.status);
        let fired = self.faults.fires(q, wanted, words);
        let AtFace { injector, node, now, .. } = &mut *self.faults;
        if matches!(fired, Some(Action::LoseCompletion { .. })) {
            if let CompletionKind::Work { index, .. } = what.kind {
                injector.lost.push(LostCompletion { node: *node, q, index, status: what.status });
            }
            return Ok(());
        }
        // Completions of a queue stay in order: behind one that waits, all wait.
        let before = injector
            .held
            .iter()
            .rfind(|held| held.node == *node && held.q == q && queue_of(&held.what) == queue);
        let due = match fired {
            Some(Action::HoldCompletion { for_ns, .. }) => Some(now.after(for_ns)),
            _ => None,
        };
        match due.max(before.map(|held| held.due)) {
            Some(due) => {
                injector.held.push(HeldCompletion { node: *node, due, q, what });
                Ok(())
            }
            None => {
                self.faults.told = true;
                self.inner.complete(q, what)
            }
        }
    }

    fn receive_frame(&mut self, q: Qpn, frame: &[u8]) -> Result<(), Hold> {
        self.faults.told = true;
        self.inner.receive_frame(q, frame)
    }

    fn event(&mut self, what: Event) {
        self.faults.told = true;
        // The face gives up the receives of a queue pair that fails: what has arrived comes before.
        if let Event::QpError { qpn, .. } = what {
            let node = self.faults.node;
            let arrived = |held: &HeldCompletion| {
                held.node == node && held.q == qpn && queue_of(&held.what) == Queue::Receive
            };
            for held in self.faults.injector.take_held(arrived) {
                // No room in the completion queue fails the queue pair, which has failed already.
                let _ = self.inner.complete(qpn, held.what);
            }
        }
        self.inner.event(what);
    }
}
