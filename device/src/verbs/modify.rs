//! Modify and query, attribute by attribute: the engine's table over this face's rings.
//!
//! Which attributes a transition needs is the engine's to know.

use softrnic_engine::{Engine, Face, Modify, ModifyError, QpQuery, Qpn, State};

use super::Verbs;
use super::error::Error;
use crate::memory::Memory;
use crate::nic::{Between, Device, EngineCall, Nic, Ring, SetState};

struct ModifyQp<'a>(Qpn, &'a Modify);

impl EngineCall for ModifyQp<'_> {
    type Answer = Result<(), ModifyError>;

    fn make(self, engine: &mut Engine, face: &mut impl Face) -> Self::Answer {
        engine.modify_qp(self.0, self.1, face)
    }
}

impl<M: Memory> Nic<Verbs, M> {
    /// Changes attributes and state of a queue pair (`ibv_modify_qp`). RESET also empties its
    /// queues and drops its completions.
    ///
    /// # Errors
    /// It is unknown, or the transition does not exist, lacks an attribute, does not take one, or
    /// has one out of range; nothing was changed.
    pub fn modify_qp(&mut self, qpn: Qpn, modify: &Modify) -> Result<(), Error> {
        self.modify_qp_through(&mut (), qpn, modify)
    }

    /// [`Nic::modify_qp`], with something between engine and face.
    ///
    /// # Errors
    /// As [`Nic::modify_qp`].
    pub fn modify_qp_through(
        &mut self,
        between: &mut impl Between,
        qpn: Qpn,
        modify: &Modify,
    ) -> Result<(), Error> {
        let Self { engine, device, memory } = self;
        let modified = between.make(engine, &mut device.view(memory), ModifyQp(qpn, modify));
        if let Err(error) = modified {
            engine.count_refused(error.reason());
            return Err(Error::Modify(error));
        }
        match engine.qp(qpn).map(softrnic_engine::Qp::state) {
            Some(State::Reset) => {
                between.forget(qpn);
                device.reset(qpn);
            }
            Some(State::Init) => self.size_in_flight(qpn),
            _ => {}
        }
        Ok(())
    }

    /// What was set, and the live PSNs (`ibv_query_qp`).
    ///
    /// # Errors
    /// It is unknown.
    pub fn query_qp(&mut self, qpn: Qpn) -> Result<QpQuery, Error> {
        self.engine.query_qp(qpn).ok_or_else(|| {
            self.engine.count_refused(Error::UnknownQp(qpn).reason());
            Error::UnknownQp(qpn)
        })
    }

    /// Moves a queue pair to a state for whoever has checked that it may go there: RESET empties its
    /// queues, RTS looks at what was posted meanwhile.
    pub(crate) fn enter_state(&mut self, between: &mut impl Between, qpn: Qpn, to: State) {
        match to {
            State::Reset => {
                between.forget(qpn);
                self.device.reset(qpn);
            }
            State::Init => self.size_in_flight(qpn),
            _ => {}
        }
        let Self { engine, device, memory } = self;
        let view = &mut device.view(memory);
        between.make(engine, view, SetState(qpn, to));
        if to == State::Rts {
            between.make(engine, view, Ring(qpn));
        }
    }

    /// The engine makes its ring on the way to RTS: as large as the send queue, but each message is at
    /// least one packet of the window.
    fn size_in_flight(&mut self, qpn: Qpn) {
        let depth = self.device.qps.get(qpn).map_or(0, |qp| qp.send.depth());
        if let Some(attributes) = self.engine.attributes_mut(qpn) {
            let in_flight = depth.min(attributes.policy.window_packets);
            attributes.max_in_flight = u16::try_from(in_flight).unwrap_or(u16::MAX);
        }
    }
}
