//! The one loop that joins engine, face, memory and link: the same in simulation and on real links.
//!
//! It moves frames between the caller's link and the engine, and tells the device what was seen. It
//! decides nothing.

use softrnic_engine::{Engine, Face, Nanos, Qpn, Reason, Room, Rx, State, Train, Verdict};

use crate::memory::Memory;

/// A device model: registers, tables and queues behind the engine.
pub trait Device<M: Memory> {
    /// The short-lived view that one engine call borrows.
    type View<'a>: Face
    where
        Self: 'a,
        M: 'a;

    /// Borrows the view.
    fn view<'a>(&'a mut self, memory: &'a mut M) -> Self::View<'a>;

    /// A frame arrived and was judged: counters, error buffers, "last packet" registers.
    fn received(&mut self, engine: &mut Engine, memory: &mut M, frame: &[u8], verdict: &Verdict);

    /// A frame was written to the link's buffer.
    fn transmitted(&mut self, engine: &mut Engine, train: &Train, frame: &[u8]);

    /// A frame arrives: is there room for it in the device's receive buffer?
    ///
    /// # Errors
    /// There is none, and the engine will not see the frame.
    #[inline(always)]
    fn arriving(&mut self, now: Nanos, frame: &[u8]) -> Result<(), Reason> {
        let _ = (now, frame);
        Ok(())
    }

    /// Writes a frame of the device's own (a pause), which goes before the engine's.
    #[inline(always)]
    fn poll_own(&mut self, engine: &Engine, room: &mut Room<'_>) -> Option<Train> {
        let _ = (engine, room);
        None
    }

    /// Time has passed.
    #[inline(always)]
    fn handle_timeout(&mut self, now: Nanos) {
        let _ = now;
    }

    /// When [`Device::handle_timeout`] has something to do.
    #[inline(always)]
    fn next_deadline(&self) -> Option<Nanos> {
        None
    }
}

/// A call of the engine that needs a face.
pub trait EngineCall {
    /// What the engine answers.
    type Answer;
    /// Makes it.
    fn make(self, engine: &mut Engine, face: &mut impl Face) -> Self::Answer;
}

/// What may stand between engine and face for one call, by giving the engine another face: faults on
/// purpose. `()` is nothing.
pub trait Between {
    /// Makes the call.
    fn make<C: EngineCall>(
        &mut self,
        engine: &mut Engine,
        face: &mut impl Face,
        call: C,
    ) -> C::Answer;

    /// Software ends a queue pair's work, and the device will complete what is left of it: what waits
    /// between engine and face for this queue pair is to be completed now, or it would be overtaken.
    #[inline(always)]
    fn before_flush(&mut self, engine: &mut Engine, face: &mut impl Face, q: Qpn) {
        let _ = (engine, face, q);
    }

    /// Software resets or destroys a queue pair: what waits for it is no longer to be completed.
    #[inline(always)]
    fn forget(&mut self, q: Qpn) {
        let _ = q;
    }
}

impl Between for () {
    #[inline(always)]
    fn make<C: EngineCall>(
        &mut self,
        engine: &mut Engine,
        face: &mut impl Face,
        call: C,
    ) -> C::Answer {
        call.make(engine, face)
    }
}

/// `None` is nothing.
impl<B: Between> Between for Option<B> {
    #[inline(always)]
    fn make<C: EngineCall>(
        &mut self,
        engine: &mut Engine,
        face: &mut impl Face,
        call: C,
    ) -> C::Answer {
        match self {
            Some(between) => between.make(engine, face, call),
            None => call.make(engine, face),
        }
    }

    #[inline(always)]
    fn before_flush(&mut self, engine: &mut Engine, face: &mut impl Face, q: Qpn) {
        if let Some(between) = self {
            between.before_flush(engine, face, q);
        }
    }

    #[inline(always)]
    fn forget(&mut self, q: Qpn) {
        if let Some(between) = self {
            between.forget(q);
        }
    }
}

struct HandleFrame<'a>(Nanos, &'a [u8], Rx);

impl EngineCall for HandleFrame<'_> {
    type Answer = Verdict;

    #[inline(always)]
    fn make(self, engine: &mut Engine, face: &mut impl Face) -> Verdict {
        engine.handle_frame(self.0, self.1, self.2, face)
    }
}

struct PollTransmit<'a, 'b>(Nanos, &'a mut Room<'b>);

impl EngineCall for PollTransmit<'_, '_> {
    type Answer = Option<Train>;

    #[inline(always)]
    fn make(self, engine: &mut Engine, face: &mut impl Face) -> Option<Train> {
        engine.poll_transmit(self.0, self.1, face)
    }
}

struct HandleTimeout(Nanos);

impl EngineCall for HandleTimeout {
    type Answer = ();

    #[inline(always)]
    fn make(self, engine: &mut Engine, face: &mut impl Face) {
        engine.handle_timeout(self.0, face);
    }
}

/// A doorbell: [`Engine::ring`].
pub(crate) struct Ring(pub(crate) Qpn);

impl EngineCall for Ring {
    type Answer = ();

    #[inline(always)]
    fn make(self, engine: &mut Engine, face: &mut impl Face) {
        engine.ring(self.0, face);
    }
}

/// [`Engine::set_state`].
pub(crate) struct SetState(pub(crate) Qpn, pub(crate) State);

impl EngineCall for SetState {
    type Answer = ();

    #[inline(always)]
    fn make(self, engine: &mut Engine, face: &mut impl Face) {
        engine.set_state(self.0, self.1, face);
    }
}

/// A network interface: engine, device and memory.
#[derive(Debug)]
pub struct Nic<D, M> {
    /// The transport.
    pub engine: Engine,
    /// The face's own state.
    pub device: D,
    /// What the device can reach.
    pub memory: M,
}

impl<D: Device<M>, M: Memory> Nic<D, M> {
    /// A frame arrived.
    #[inline]
    pub fn handle_frame(&mut self, now: Nanos, frame: &[u8], rx: Rx) -> Verdict {
        self.handle_frame_through(&mut (), now, frame, rx)
    }

    /// [`Nic::handle_frame`], with something between engine and face.
    #[inline(always)]
    pub fn handle_frame_through(
        &mut self,
        between: &mut impl Between,
        now: Nanos,
        frame: &[u8],
        rx: Rx,
    ) -> Verdict {
        let verdict = match self.device.arriving(now, frame) {
            Ok(()) => {
                let face = &mut self.device.view(&mut self.memory);
                between.make(&mut self.engine, face, HandleFrame(now, frame, rx))
            }
            Err(reason) => self.engine.refuse_frame(reason),
        };
        self.device.received(&mut self.engine, &mut self.memory, frame, &verdict);
        verdict
    }

    /// The link can take a frame.
    #[inline]
    pub fn poll_transmit(&mut self, now: Nanos, room: &mut Room<'_>) -> Option<Train> {
        self.poll_transmit_through(&mut (), now, room)
    }

    /// [`Nic::poll_transmit`], with something between engine and face.
    #[inline(always)]
    pub fn poll_transmit_through(
        &mut self,
        between: &mut impl Between,
        now: Nanos,
        room: &mut Room<'_>,
    ) -> Option<Train> {
        if let Some(pause) = self.device.poll_own(&self.engine, room) {
            return Some(pause);
        }
        let train = between.make(
            &mut self.engine,
            &mut self.device.view(&mut self.memory),
            PollTransmit(now, room),
        )?;
        self.device.transmitted(&mut self.engine, &train, &room.bytes[..train.len]);
        Some(train)
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Nanos) {
        self.handle_timeout_through(&mut (), now);
    }

    /// [`Nic::handle_timeout`], with something between engine and face.
    pub fn handle_timeout_through(&mut self, between: &mut impl Between, now: Nanos) {
        self.device.handle_timeout(now);
        let face = &mut self.device.view(&mut self.memory);
        between.make(&mut self.engine, face, HandleTimeout(now));
    }

    /// When [`Nic::handle_timeout`] should be called next.
    pub fn next_deadline(&mut self) -> Option<Nanos> {
        let of_device = self.device.next_deadline();
        self.engine.next_deadline().into_iter().chain(of_device).min()
    }
}
