//! The native face: verbs in plain memory, single-threaded, without any hardware's limits.
//!
//! Names and semantics are those of libibverbs: protection domains, memory regions, completion
//! queues, queue pairs, shared receive queues, address handles. State, PSNs and everything on the wire are the engine's. It must not know
//! packets, nor the other faces.
//!
//! Posting, fetching, completing and polling cost the same however deep the queues are, and nothing
//! is allocated once queues and queue pairs exist.
//!
//! ```
//! use softrnic_device::verbs::{
//!     AccessFlags, Connection, Payload, QpInit, RecvRequest, SendRequest, Sge, WorkCompletion,
//! };
//! use softrnic_device::{Memory, Nic, Ram};
//! use softrnic_engine::{Nanos, Path, Port, Psn, Room, Rx, Status};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Two network interfaces, each with 4 KiB of memory at address 0x1000.
//! let mut ends = Vec::new();
//! for number in [1, 2] {
//!     let mac = [2, 0, 0, 0, 0, number];
//!     let port = Port { mac, ipv4: [192, 0, 2, number].into(), ..Port::default() };
//!     let mut nic = Nic::verbs(port, Ram::new(0x1000, 4096));
//!     let pd = nic.alloc_pd()?;
//!     let cq = nic.create_cq(16)?;
//!     let mr = nic.reg_mr(pd, 0x1000, 4096, AccessFlags::LOCAL)?;
//!     let init = QpInit { pd, send_cq: cq, recv_cq: cq, ..QpInit::default() };
//!     let qpn = nic.create_qp(&init)?;
//!     ends.push((nic, cq, mr, qpn));
//! }
//! for (near, far) in [(0, 1), (1, 0)] {
//!     let (port, dest_qpn) = (*ends[far].0.engine.port(), ends[far].3);
//!     let path = Path { dest_mac: port.mac, dest_ip: port.ipv4.into(), ..Path::default() };
//!     let (nic, _, _, qpn) = &mut ends[near];
//!     nic.connect(*qpn, &Connection { path, dest_qpn, ..Connection::default() })?;
//! }
//! let [(a, a_cq, a_mr, a_qpn), (b, b_cq, b_mr, b_qpn)] = &mut ends[..] else { unreachable!() };
//!
//! let buffer = Sge { address: 0x1800, length: 64, lkey: b_mr.lkey };
//! b.post_recv(*b_qpn, &RecvRequest { wr_id: 7, sges: &[buffer] })?;
//! a.memory.write(0x1000, b"hello")?;
//! let hello = [Sge { address: 0x1000, length: 5, lkey: a_mr.lkey }];
//! let payload = Payload::Sges(&hello);
//! a.post_send(*a_qpn, &SendRequest { payload, signaled: true, ..SendRequest::default() })?;
//!
//! // A wire: one SEND goes over, one acknowledgement comes back.
//! let mut frame = [0; 2048];
//! let mut room = Room { bytes: &mut frame, segments: 1, source_port: None };
//! let send = a.poll_transmit(Nanos(0), &mut room).ok_or("no frame")?;
//! b.handle_frame(Nanos(0), &room.bytes[..send.len], Rx::default());
//! let ack = b.poll_transmit(Nanos(0), &mut room).ok_or("no frame")?;
//! a.handle_frame(Nanos(0), &room.bytes[..ack.len], Rx::default());
//!
//! let mut done = [WorkCompletion::default(); 1];
//! assert_eq!(a.poll_cq(*a_cq, &mut done)?, 1);
//! assert_eq!(done[0].status, Status::Success);
//! assert_eq!(b.poll_cq(*b_cq, &mut done)?, 1);
//! assert_eq!((done[0].wr_id, done[0].byte_len), (7, 5));
//! assert_eq!(b.memory.slice(0x1800, 5)?, b"hello");
//! # Ok(())
//! # }
//! ```

mod cq;
mod datagram;
mod error;
mod face;
mod modify;
mod qp;
mod queue;
mod region;
mod srq;
mod table;

use alloc::collections::VecDeque;
use core::net::IpAddr;

pub use cq::{Cq, WcOpcode, WorkCompletion};
pub use datagram::{Ah, MULTICAST_QPN, UdAddress};
pub use error::{BadRequest, Error};
pub use face::View;
pub use qp::{Connection, QpInit};
pub use queue::{Payload, RecvRequest, SendOp, SendRequest, Sge};
pub use region::{AccessFlags, LKey, Mr, Pd};
use softrnic_engine::packet::opcode::SEND_ONLY;
use softrnic_engine::{
    Attributes, Engine, EngineConfig, Port, Qpn, Reason, Service, State, Train, Verdict,
};
pub use srq::{Srq, SrqInit};

use crate::memory::Memory;
use crate::nic::{Between, Device, Nic, Ring};
use cq::CompletionQueue;
use datagram::AddressHandle;
use qp::{QueuePair, QueuePairs};
use queue::{ReceiveQueue, SendQueue};
use region::Regions;
use srq::SharedReceiveQueue;
use table::Table;

/// An asynchronous event (`ibv_async_event`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AsyncEvent {
    /// The peer's first packet arrived while the queue pair was in RTR.
    CommunicationEstablished(Qpn),
    /// The queue pair failed for a reason that no completion could tell.
    QpFatal {
        /// Which.
        qpn: Qpn,
        /// Why.
        reason: Reason,
    },
    /// The peer sent an invalid request, and no receive tells of it.
    QpRequestError {
        /// Which queue pair.
        qpn: Qpn,
        /// What was wrong.
        reason: Reason,
    },
    /// The peer asked for memory that it may not touch.
    QpAccessError {
        /// Which queue pair.
        qpn: Qpn,
        /// What was wrong.
        reason: Reason,
    },
    /// In SQD, everything that was started has ended.
    SendQueueDrained(Qpn),
    /// The first queue pair attached to a multicast group: whoever owns the link joins it.
    MulticastJoin(IpAddr),
    /// The last queue pair left a multicast group.
    MulticastLeave(IpAddr),
    /// The completion queue was overrun and takes nothing more.
    CqError(Cq),
    /// Fewer receives wait in the shared receive queue than its limit; it is disarmed now.
    SrqLimitReached(Srq),
    /// The queue pair is in error and takes nothing more from its shared receive queue.
    LastWqeReached(Qpn),
}

impl AsyncEvent {
    /// The event for a queue pair that failed; `None` where a completion tells of it, or where
    /// software asked for it.
    const fn of_error(qpn: Qpn, reason: Reason, by_peer: bool) -> Option<Self> {
        match (reason, by_peer) {
            (Reason::CompletionQueueFull, _) => Some(Self::QpFatal { qpn, reason }),
            (_, false) => None,
            (
                Reason::KeyUnknown
                | Reason::ProtectionDomain
                | Reason::AccessRights
                | Reason::AddressRange
                | Reason::DmaAddress,
                true,
            ) => Some(Self::QpAccessError { qpn, reason }),
            (_, true) => Some(Self::QpRequestError { qpn, reason }),
        }
    }

    fn concerns(&self, queue_pair: Qpn) -> bool {
        match *self {
            Self::CommunicationEstablished(qpn)
            | Self::SendQueueDrained(qpn)
            | Self::LastWqeReached(qpn)
            | Self::QpFatal { qpn, .. }
            | Self::QpRequestError { qpn, .. }
            | Self::QpAccessError { qpn, .. } => qpn == queue_pair,
            Self::MulticastJoin(_)
            | Self::MulticastLeave(_)
            | Self::CqError(_)
            | Self::SrqLimitReached(_) => false,
        }
    }
}

/// The native face's tables and queues.
#[derive(Clone, Debug, Default)]
pub struct Verbs {
    regions: Regions,
    cqs: Table<CompletionQueue>,
    srqs: Table<SharedReceiveQueue>,
    ahs: Table<AddressHandle>,
    qps: QueuePairs,
    /// Completion queues with an event that the program has not taken; each at most once.
    cq_events: VecDeque<Cq>,
    /// At most four for each queue pair, and one for each completion queue, shared receive queue
    /// and multicast group.
    async_events: VecDeque<AsyncEvent>,
}

impl Verbs {
    /// Every memory region and what it allows.
    pub fn mrs(&self) -> impl Iterator<Item = (Mr, AccessFlags)> {
        self.regions.iter()
    }
}

impl<M: Memory> Device<M> for Verbs {
    type View<'a>
        = View<'a, M>
    where
        M: 'a;

    #[inline]
    fn view<'a>(&'a mut self, memory: &'a mut M) -> View<'a, M> {
        View { verbs: self, memory }
    }

    // Completions and events tell a program all; frames are counted by the engine.
    fn received(&mut self, _: &mut Engine, _: &mut M, _: &[u8], _: &Verdict) {}

    fn transmitted(&mut self, _: &mut Engine, _: &Train, _: &[u8]) {}
}

/// Protection domains and memory regions.
impl<M: Memory> Nic<Verbs, M> {
    /// A network interface that programs drive through verbs.
    #[must_use]
    pub fn verbs(port: Port, memory: M) -> Self {
        let engine = Engine::new(EngineConfig::default(), port);
        Self { engine, device: Verbs::default(), memory }
    }

    /// Allocates a protection domain (`ibv_alloc_pd`).
    ///
    /// # Errors
    /// All 2^24 - 1 are taken.
    pub fn alloc_pd(&mut self) -> Result<Pd, Error> {
        let result = self.device.regions.alloc_pd();
        self.counted(result)
    }

    /// Frees a protection domain (`ibv_dealloc_pd`).
    ///
    /// # Errors
    /// It is unknown or in use.
    pub fn dealloc_pd(&mut self, pd: Pd) -> Result<(), Error> {
        let result = self.device.regions.dealloc_pd(pd);
        self.counted(result)
    }

    /// Registers `len` bytes at bus address `address`, under virtual addresses of the same value
    /// (`ibv_reg_mr`).
    ///
    /// # Errors
    /// The domain is unknown, part of the range is not memory, or the flags contradict themselves.
    pub fn reg_mr(
        &mut self,
        pd: Pd,
        address: u64,
        len: u64,
        access: AccessFlags,
    ) -> Result<Mr, Error> {
        self.reg_mr_iova(pd, address, len, address, access)
    }

    /// Registers `len` bytes at bus address `address`, under the virtual addresses from `va` on
    /// (`ibv_reg_mr_iova`); 0 makes the region zero-based.
    ///
    /// # Errors
    /// As [`Nic::reg_mr`].
    pub fn reg_mr_iova(
        &mut self,
        pd: Pd,
        address: u64,
        len: u64,
        va: u64,
        access: AccessFlags,
    ) -> Result<Mr, Error> {
        let result = self.device.regions.register(pd, address, len, va, access, &self.memory);
        self.counted(result)
    }

    /// Deregisters a memory region (`ibv_dereg_mr`). Whatever still uses it fails at its next
    /// access.
    ///
    /// # Errors
    /// It is unknown.
    pub fn dereg_mr(&mut self, lkey: LKey) -> Result<(), Error> {
        let result = self.device.regions.deregister(lkey);
        self.counted(result)
    }
}

/// Completion queues and events.
impl<M: Memory> Nic<Verbs, M> {
    /// Creates a completion queue that holds `depth` completions (`ibv_create_cq`).
    ///
    /// # Errors
    /// The depth is 0 or above 2^22, or there is no memory.
    pub fn create_cq(&mut self, depth: u32) -> Result<Cq, Error> {
        let result = CompletionQueue::new(depth).and_then(|queue| {
            let device = &mut self.device;
            let cq =
                device.cqs.insert(queue).map(Cq).ok_or(Error::Exhausted("completion queue"))?;
            device.cq_events.reserve(device.cqs.len());
            device.reserve_events();
            Ok(cq)
        });
        self.counted(result)
    }

    /// Destroys a completion queue (`ibv_destroy_cq`).
    ///
    /// # Errors
    /// It is unknown or serves queue pairs.
    pub fn destroy_cq(&mut self, cq: Cq) -> Result<(), Error> {
        let device = &mut self.device;
        let result = match device.cqs.get(cq.0) {
            None => Err(Error::UnknownCq(cq)),
            Some(&CompletionQueue { users, .. }) if users > 0 => Err(Error::CqInUse { cq, users }),
            Some(_) => {
                device.cqs.remove(cq.0);
                device.cq_events.retain(|&event| event != cq);
                device.async_events.retain(|&event| event != AsyncEvent::CqError(cq));
                Ok(())
            }
        };
        self.counted(result)
    }

    /// Moves the oldest completions to `out` and returns how many (`ibv_poll_cq`).
    ///
    /// # Errors
    /// The queue is unknown.
    #[inline]
    pub fn poll_cq(&mut self, cq: Cq, out: &mut [WorkCompletion]) -> Result<usize, Error> {
        match self.device.cqs.get_mut(cq.0) {
            Some(queue) => Ok(queue.poll(out)),
            None => self.counted(Err(Error::UnknownCq(cq))),
        }
    }

    /// Asks for one completion event, at the next completion or at the next solicited one or error
    /// (`ibv_req_notify_cq`). Completions that are there already give none (rule M-11).
    ///
    /// # Errors
    /// The queue is unknown.
    pub fn req_notify_cq(&mut self, cq: Cq, solicited_only: bool) -> Result<(), Error> {
        match self.device.cqs.get_mut(cq.0) {
            Some(queue) => {
                queue.arm(solicited_only);
                Ok(())
            }
            None => self.counted(Err(Error::UnknownCq(cq))),
        }
    }

    /// The next completion queue that owes an event (`ibv_get_cq_event`, without waiting).
    pub fn get_cq_event(&mut self) -> Option<Cq> {
        let cq = self.device.cq_events.pop_front()?;
        if let Some(queue) = self.device.cqs.get_mut(cq.0) {
            queue.event_pending = false;
        }
        Some(cq)
    }

    /// The next asynchronous event (`ibv_get_async_event`, without waiting).
    pub fn get_async_event(&mut self) -> Option<AsyncEvent> {
        self.device.async_events.pop_front()
    }
}

/// Queue pairs and work.
impl<M: Memory> Nic<Verbs, M> {
    /// Creates a queue pair in RESET (`ibv_create_qp`).
    ///
    /// # Errors
    /// A handle is unknown, a size is too large, or the service is not offered.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<Qpn, Error> {
        let result = self.try_create_qp(init, QueuePairs::reserve);
        self.counted(result)
    }

    /// Destroys a queue pair with its work and completions (`ibv_destroy_qp`).
    ///
    /// # Errors
    /// It is unknown.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), Error> {
        self.destroy_qp_through(&mut (), qpn)
    }

    /// [`Nic::destroy_qp`], with something between engine and face.
    ///
    /// # Errors
    /// As [`Nic::destroy_qp`].
    pub fn destroy_qp_through(
        &mut self,
        between: &mut impl Between,
        qpn: Qpn,
    ) -> Result<(), Error> {
        let device = &mut self.device;
        let Some(qp) = device.qps.remove(qpn) else {
            return self.counted(Err(Error::UnknownQp(qpn)));
        };
        between.forget(qpn);
        device.forget(&qp);
        device.regions.release_pd(qp.pd);
        for cq in [qp.send_cq, qp.recv_cq] {
            if let Some(queue) = device.cqs.get_mut(cq.0) {
                queue.users -= 1;
            }
        }
        if let Some(queue) = qp.srq.and_then(|srq| device.srqs.get_mut(srq.0)) {
            queue.users -= 1;
        }
        self.engine.destroy(qpn, &mut self.device.view(&mut self.memory));
        Ok(())
    }

    /// Connects a queue pair that is in RESET or INIT: through INIT and RTR to RTS
    /// (`ibv_modify_qp`, three times).
    ///
    /// # Errors
    /// It is unknown or in another state, or a code is out of range; nothing was changed.
    pub fn connect(&mut self, qpn: Qpn, connection: &Connection) -> Result<(), Error> {
        self.ready_to_receive(qpn, connection)?;
        self.set_state(qpn, State::Rts)
    }

    /// As `connect`, but stops in RTR; `set_state` to RTS is the last step.
    ///
    /// # Errors
    /// As [`Nic::connect`].
    pub fn ready_to_receive(&mut self, qpn: Qpn, connection: &Connection) -> Result<(), Error> {
        let result = self.try_ready_to_receive(qpn, connection);
        self.counted(result)
    }

    /// Moves a queue pair to RESET, INIT (from RESET), RTS (from RTR, SQD or SQE), SQD (from RTS) or
    /// ERROR.
    ///
    /// # Errors
    /// It is unknown, or its state does not allow that.
    pub fn set_state(&mut self, qpn: Qpn, state: State) -> Result<(), Error> {
        self.set_state_through(&mut (), qpn, state)
    }

    /// `Nic::set_state`, with something between engine and face.
    ///
    /// # Errors
    /// As `Nic::set_state`.
    pub fn set_state_through(
        &mut self,
        between: &mut impl Between,
        qpn: Qpn,
        state: State,
    ) -> Result<(), Error> {
        let result = self.try_set_state(between, qpn, state);
        self.counted(result)
    }

    /// A queue pair's state; `None` where it is unknown.
    #[must_use]
    pub fn state(&self, qpn: Qpn) -> Option<State> {
        self.engine.qp(qpn).map(softrnic_engine::Qp::state)
    }

    /// Work requests posted to the send queue and to the receive queue since reset; `None` where the
    /// queue pair is unknown.
    #[must_use]
    pub fn posted(&self, qpn: Qpn) -> Option<(u32, u32)> {
        self.device.qps.get(qpn).map(|qp| (qp.send.posted(), qp.recv.posted()))
    }

    /// Work requests of the send queue and of the receive queue that have not ended; `None` where the
    /// queue pair is unknown.
    #[inline]
    #[must_use]
    pub fn held(&self, qpn: Qpn) -> Option<(u32, u32)> {
        self.device.qps.get(qpn).map(|qp| (qp.send.held(), qp.recv.held()))
    }

    /// Posts a send work request (`ibv_post_send`).
    ///
    /// # Errors
    /// The queue is full or in the wrong state, or the request does not fit. Keys and addresses are
    /// checked when the request is executed, and end in its completion.
    #[inline]
    pub fn post_send(&mut self, qpn: Qpn, request: &SendRequest<'_>) -> Result<(), Error> {
        self.post_sends(qpn, core::slice::from_ref(request)).map_err(|bad| bad.error)
    }

    /// Posts several send work requests and rings once.
    ///
    /// # Errors
    /// The first one that was refused; those before it are posted.
    #[inline]
    pub fn post_sends(&mut self, qpn: Qpn, requests: &[SendRequest<'_>]) -> Result<(), BadRequest> {
        self.post_sends_through(&mut (), qpn, requests)
    }

    /// [`Nic::post_sends`], with something between engine and face.
    ///
    /// # Errors
    /// As [`Nic::post_sends`].
    #[inline]
    pub fn post_sends_through(
        &mut self,
        between: &mut impl Between,
        qpn: Qpn,
        requests: &[SendRequest<'_>],
    ) -> Result<(), BadRequest> {
        let Self { engine, device, memory } = self;
        let mut result = Ok(());
        match device.may_post(engine, qpn, takes_sends) {
            Err(error) => result = Err(BadRequest { index: 0, error }),
            Ok(qp) => {
                for (index, request) in requests.iter().enumerate() {
                    if let Err(error) = qp.post_send(request) {
                        result = Err(BadRequest { index, error });
                        break;
                    }
                }
                between.make(engine, &mut device.view(memory), Ring(qpn));
            }
        }
        if let Err(bad) = result {
            engine.count_refused(bad.error.reason());
        }
        result
    }

    /// Posts a receive work request (`ibv_post_recv`). In ERROR it is flushed at once.
    ///
    /// # Errors
    /// The queue is full or in RESET, or the request does not fit.
    #[inline]
    pub fn post_recv(&mut self, qpn: Qpn, request: &RecvRequest<'_>) -> Result<(), Error> {
        self.post_recvs(qpn, core::slice::from_ref(request)).map_err(|bad| bad.error)
    }

    /// Posts several receive work requests.
    ///
    /// # Errors
    /// The first one that was refused; those before it are posted.
    #[inline]
    pub fn post_recvs(&mut self, qpn: Qpn, requests: &[RecvRequest<'_>]) -> Result<(), BadRequest> {
        let Self { engine, device, .. } = self;
        let mut result = Ok(());
        match device.may_post(engine, qpn, takes_receives) {
            Err(error) => result = Err(BadRequest { index: 0, error }),
            Ok(qp) => {
                for (index, request) in requests.iter().enumerate() {
                    if let Err(error) = qp.post_recv(request) {
                        result = Err(BadRequest { index, error });
                        break;
                    }
                }
            }
        }
        if engine.qp(qpn).is_some_and(|qp| qp.state() == State::Error) {
            device.flush_receives(qpn);
        }
        if let Err(bad) = result {
            engine.count_refused(bad.error.reason());
        }
        result
    }
}

impl<M: Memory> Nic<Verbs, M> {
    /// Counts a refusal under its reason.
    fn counted<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = result {
            self.engine.count_refused(error.reason());
        }
        result
    }

    fn try_create_qp(
        &mut self,
        init: &QpInit,
        number: fn(&mut QueuePairs) -> Result<Qpn, Error>,
    ) -> Result<Qpn, Error> {
        if init.service == Service::RawFrame {
            return Err(Error::ServiceUnsupported(init.service));
        }
        let device = &mut self.device;
        for cq in [init.send_cq, init.recv_cq] {
            device.cqs.get(cq.0).ok_or(Error::UnknownCq(cq))?;
        }
        if let Some(srq) = init.srq {
            device.srqs.get(srq.0).ok_or(Error::UnknownSrq(srq))?;
        }
        let send = SendQueue::new(init.sq_depth, init.max_sge, init.max_inline)?;
        let rq_depth = if init.srq.is_some() { 0 } else { init.rq_depth };
        let recv = ReceiveQueue::new(rq_depth, init.max_sge)?;
        device.regions.hold_pd(init.pd)?;
        let policy = Connection::default().policy;
        let created = number(&mut device.qps).and_then(|qpn| {
            let attributes = Attributes { service: init.service, policy, ..Attributes::default() };
            let (pkey, qkey) = datagram::keys(qpn, attributes.pkey, attributes.qkey);
            let attributes = Attributes { pkey, qkey, ..attributes };
            let created = self.engine.create(qpn, attributes);
            created.map(|()| qpn).map_err(|_| Error::Exhausted("queue pair number"))
        });
        let qpn = match created {
            Ok(qpn) => qpn,
            Err(error) => {
                device.regions.release_pd(init.pd);
                return Err(error);
            }
        };
        for cq in [init.send_cq, init.recv_cq] {
            if let Some(queue) = device.cqs.get_mut(cq.0) {
                queue.users += 1;
            }
        }
        if let Some(queue) = init.srq.and_then(|srq| device.srqs.get_mut(srq.0)) {
            queue.users += 1;
        }
        device.qps.insert(QueuePair {
            qpn,
            pd: init.pd,
            service: init.service,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            sq_sig_all: init.sq_sig_all,
            receive_failed: false,
            send,
            recv,
        });
        device.reserve_events();
        Ok(qpn)
    }

    fn try_ready_to_receive(&mut self, qpn: Qpn, connection: &Connection) -> Result<(), Error> {
        let state = self.state(qpn).ok_or(Error::UnknownQp(qpn))?;
        if !matches!(state, State::Reset | State::Init) {
            return Err(Error::WrongState { qpn, state });
        }
        connection.check()?;
        let Self { engine, device, memory } = self;
        let depth = device.qps.get(qpn).map_or(0, |qp| qp.send.depth());
        if let Some(attributes) = engine.attributes_mut(qpn) {
            connection.apply(attributes);
            (attributes.pkey, attributes.qkey) =
                datagram::keys(qpn, attributes.pkey, attributes.qkey);
            // Each message is at least one packet, so that more than the window never fly at once.
            let in_flight = depth.min(connection.policy.window_packets);
            attributes.max_in_flight = u16::try_from(in_flight).unwrap_or(u16::MAX);
        }
        engine.set_state(qpn, State::Init, &mut device.view(memory));
        engine.set_expected_psn(qpn, connection.expected_psn, SEND_ONLY);
        engine.set_state(qpn, State::Rtr, &mut device.view(memory));
        engine.set_send_psn(qpn, connection.send_psn);
        Ok(())
    }

    fn try_set_state(
        &mut self,
        between: &mut impl Between,
        qpn: Qpn,
        to: State,
    ) -> Result<(), Error> {
        let from = self.state(qpn).ok_or(Error::UnknownQp(qpn))?;
        let allowed = match to {
            State::Reset => true,
            State::Error => from != State::Reset,
            State::Init => from == State::Reset,
            State::Sqd => from == State::Rts,
            State::Rts => matches!(from, State::Rtr | State::Sqd | State::Sqe),
            State::Rtr | State::Sqe => false,
        };
        if !allowed {
            return Err(Error::WrongState { qpn, state: from });
        }
        self.enter_state(between, qpn, to);
        Ok(())
    }
}

impl Verbs {
    /// The rings of a queue pair whose state takes this kind of work.
    #[inline]
    fn may_post(
        &mut self,
        engine: &Engine,
        qpn: Qpn,
        takes: fn(State) -> bool,
    ) -> Result<&mut QueuePair, Error> {
        let state = engine.qp(qpn).ok_or(Error::UnknownQp(qpn))?.state();
        if !takes(state) {
            return Err(Error::WrongState { qpn, state });
        }
        self.qps.get_mut(qpn).ok_or(Error::UnknownQp(qpn))
    }

    /// Empties the rings of a queue pair, and takes back what it has reported (rule M-08).
    fn reset(&mut self, qpn: Qpn) {
        if let Some(mut qp) = self.qps.remove(qpn) {
            self.forget(&qp);
            qp.send.reset();
            qp.recv.reset();
            qp.receive_failed = false;
            self.qps.insert(qp);
        }
    }

    /// Drops completions and events of a queue pair that nobody has taken yet.
    fn forget(&mut self, qp: &QueuePair) {
        for cq in [qp.send_cq, qp.recv_cq] {
            if let Some(queue) = self.cqs.get_mut(cq.0) {
                queue.forget(qp.qpn);
            }
        }
        if let Some(queue) = qp.srq.and_then(|srq| self.srqs.get_mut(srq.0)) {
            while queue.give_up(qp.qpn).is_some() {}
        }
        self.async_events.retain(|event| !event.concerns(qp.qpn));
    }

    /// Makes room for every asynchronous event that can be waiting.
    fn reserve_events(&mut self) {
        let bound = 4 * self.qps.len() + self.cqs.len() + self.srqs.len();
        self.async_events.reserve(bound.saturating_sub(self.async_events.len()));
    }
}

/// Rule M-03: in SQD sends wait, in SQE and ERROR they flush.
const fn takes_sends(state: State) -> bool {
    matches!(state, State::Rts | State::Sqd | State::Sqe | State::Error)
}

/// Rule M-03.
const fn takes_receives(state: State) -> bool {
    !matches!(state, State::Reset)
}
