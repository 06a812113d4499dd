//! Faults at the face: a [`Face`] that wraps a [`Face`] for the length of one engine call, and the
//! calls of a [`Nic`] with it.
//!
//! Knows no device. What is not named by a rule goes through unchanged.

use softrnic_device::{Between, Device, EngineCall, Memory, Nic};
use softrnic_engine::{
    Access, Atomic, Completion, CompletionKind, Datagram, Engine, Event, Face, Fetch, Hold, Nanos,
    Place, Qpn, RKey, Reason, Room, Rx, State, Train, Verdict,
};

use super::injector::{Head, Injector};
use super::rule::{Action, Queue, Transfer};

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
        for held in self.injector.take_due(self.node, now) {
            self.told = true;
            let mut face = nic.device.view(&mut nic.memory);
            // As the engine does where a completion finds its queue full.
            if face.complete(held.q, held.what).is_err() {
                let face = &mut FaultyFace { inner: &mut face, faults: self };
                nic.engine.set_state(held.q, State::Error, face);
            }
        }
        if nic.next_deadline().is_some_and(|deadline| deadline <= now) {
            nic.handle_timeout_through(self, now);
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
    /// Takes the completions of a node whose time has come, oldest first.
    fn take_due(&mut self, node: usize, now: Nanos) -> Vec<HeldCompletion> {
        let (due, later) =
            self.held.drain(..).partition(|held| held.node == node && held.due <= now);
        self.held = later;
        due
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
        match self.faults.fires(q, stalls, words) {
            Some(_) => Err(Hold::Stall),
            None => self.inner.receive(q),
        }
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
        if matches!(fired, Some(Action::LoseCompletion { .. })) {
            return Ok(());
        }
        let AtFace { injector, node, now, .. } = &mut *self.faults;
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
        self.inner.event(what);
    }
}
