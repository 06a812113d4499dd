//! Queue pairs and shared receive queues: posting goes through rings, everything else asks the NIC's thread.

use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use softrnic_device::verbs::{
    self as native, Connection, Error as Refusal, RecvRequest, SendRequest, Srq as SrqHandle,
    SrqInit,
};
use softrnic_engine::{Modify, QpQuery, Qpn, Service, State};

use super::context::Inner;
use super::cq::{Cq, CqInner};
use super::domain::Pd;
use super::error::{BadRequest, Error};
use super::nic::Nic;
use super::rings::{
    QpShared, QpTail, Queue, QueueShared, RecvHead, SendHead, SrqTail, recv_rings, send_rings,
};

/// What a queue pair is created with (`ibv_qp_init_attr`).
#[derive(Clone, Copy, Debug)]
pub struct QpInit<'a> {
    /// Where send work requests complete.
    pub send_cq: &'a Cq,
    /// Where receives complete; may be the same.
    pub recv_cq: &'a Cq,
    /// Receive from this shared queue, and have none of its own.
    pub srq: Option<&'a Srq>,
    /// Work requests that the send queue holds.
    pub sq_depth: u32,
    /// Work requests that the receive queue holds; ignored where `srq` is given.
    pub rq_depth: u32,
    /// Scatter/gather elements of a work request at most.
    pub max_sge: u32,
    /// Bytes of inline data at most.
    pub max_inline: u32,
    /// Report the success of every send work request, as if all were signaled.
    pub sq_sig_all: bool,
    /// Transport service: RC, UC or UD.
    pub service: Service,
}

impl<'a> QpInit<'a> {
    /// RC, with one completion queue for both directions and the native face's default sizes.
    #[must_use]
    pub fn new(cq: &'a Cq) -> Self {
        let native::QpInit { sq_depth, rq_depth, max_sge, max_inline, sq_sig_all, service, .. } =
            native::QpInit::default();
        Self {
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            sq_depth,
            rq_depth,
            max_sge,
            max_inline,
            sq_sig_all,
            service,
        }
    }
}

/// One of a queue pair's queues, as whoever posts sees it.
#[derive(Debug)]
struct Side<T> {
    ring: T,
    /// Requests posted since creation, wrapping.
    posted: u32,
}

impl<T> Side<T> {
    fn full(&self, shared: &QueueShared, depth: u32) -> bool {
        self.posted.wrapping_sub(shared.freed.load(Ordering::Acquire)) >= depth
    }
}

fn lock<T>(side: &Mutex<Side<T>>) -> MutexGuard<'_, Side<T>> {
    side.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct QpInner {
    pd: Pd,
    send_cq: Arc<CqInner>,
    recv_cq: Arc<CqInner>,
    srq: Option<Srq>,
    qpn: Qpn,
    slot: usize,
    service: Service,
    sq_depth: u32,
    rq_depth: u32,
    max_sge: u32,
    max_inline: u32,
    shared: Arc<QpShared>,
    sends: Mutex<Side<SendHead>>,
    receives: Mutex<Side<RecvHead>>,
}

impl QpInner {
    fn context(&self) -> &Inner {
        &self.pd.0.context
    }

    /// Drops completions that nobody has polled yet.
    fn forget_completions(&self) {
        self.send_cq.forget(self.qpn);
        if !Arc::ptr_eq(&self.send_cq, &self.recv_cq) {
            self.recv_cq.forget(self.qpn);
        }
    }
}

impl Drop for QpInner {
    fn drop(&mut self) {
        let (qpn, slot) = (self.qpn, self.slot);
        let _ = self.context().call(move |nic| nic.destroy_qp(slot, qpn));
        self.forget_completions();
    }
}

/// A queue pair (`ibv_qp`). A clone is the same queue pair; dropping the last destroys it with its work and
/// completions.
#[derive(Clone, Debug)]
pub struct Qp(Arc<QpInner>);

impl Qp {
    pub(super) fn create(pd: &Pd, init: &QpInit<'_>, gsi: bool) -> Result<Self, Error> {
        let context = &pd.0.context;
        let (send_cq, recv_cq) = (init.send_cq.0.clone(), init.recv_cq.0.clone());
        for cq in [&send_cq, &recv_cq] {
            if !Arc::ptr_eq(&cq.context, context) {
                return Err(Error::ForeignObject("completion queue"));
            }
        }
        let srq = init.srq.cloned();
        if srq.as_ref().is_some_and(|srq| !Arc::ptr_eq(&srq.0.pd.0.context, context)) {
            return Err(Error::ForeignObject("shared receive queue"));
        }
        let QpInit { sq_depth, max_sge, max_inline, sq_sig_all, service, .. } = *init;
        let rq_depth = if srq.is_some() { 0 } else { init.rq_depth };
        let service = if gsi { Service::Ud } else { service };
        let native = native::QpInit {
            pd: pd.0.handle,
            send_cq: send_cq.handle,
            recv_cq: recv_cq.handle,
            sq_depth,
            rq_depth,
            max_sge,
            max_inline,
            sq_sig_all,
            service,
            srq: srq.as_ref().map(|srq| srq.0.handle),
        };
        let srq_slot = srq.as_ref().map(|srq| srq.0.slot);
        let shared = Arc::new(QpShared::default());
        let for_nic = shared.clone();
        let (qpn, slot, send_head, recv_head) = context.call(move |nic: &mut Nic| {
            let slot = nic.free_slot()?;
            // The native face checks the sizes before rings of these sizes are made.
            let device = &mut nic.station.nic;
            let qpn = if gsi { device.create_gsi_qp(&native) } else { device.create_qp(&native) }?;
            let (send_head, sends) = send_rings(sq_depth, max_sge, max_inline);
            let (recv_head, receives) = recv_rings(rq_depth, max_sge);
            let tail = QpTail {
                qpn,
                sends,
                receives,
                sends_taken: 0,
                receives_taken: 0,
                send_cq: native.send_cq,
                recv_cq: native.recv_cq,
                srq_slot,
                shared: for_nic,
            };
            nic.add_queue(slot, Queue::Pair(tail));
            Ok::<_, Error>((qpn, slot, send_head, recv_head))
        })??;
        Ok(Self(Arc::new(QpInner {
            pd: pd.clone(),
            send_cq,
            recv_cq,
            srq,
            qpn,
            slot,
            service,
            sq_depth,
            rq_depth,
            max_sge,
            max_inline,
            shared,
            sends: Mutex::new(Side { ring: send_head, posted: 0 }),
            receives: Mutex::new(Side { ring: recv_head, posted: 0 }),
        })))
    }

    /// Its number.
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        self.0.qpn
    }

    /// Its transport service.
    #[must_use]
    pub fn service(&self) -> Service {
        self.0.service
    }

    /// Changes attributes and state (`ibv_modify_qp`). RESET also empties its queues and drops its completions.
    ///
    /// # Errors
    /// The transition does not exist, lacks an attribute, does not take one, or has one out of range; nothing
    /// was changed.
    pub fn modify(&self, modify: &Modify) -> Result<(), Error> {
        let modify = *modify;
        self.change(move |nic, qpn| nic.modify_qp(qpn, &modify))
    }

    /// From RESET or INIT through RTR to RTS, to this peer (`ibv_modify_qp`, three times).
    ///
    /// # Errors
    /// It is in another state, or a code is out of range; nothing was changed.
    pub fn connect(&self, connection: &Connection) -> Result<(), Error> {
        let connection = *connection;
        self.change(move |nic, qpn| nic.connect(qpn, &connection))
    }

    /// As [`Qp::connect`], but stops in RTR; [`Qp::set_state`] to RTS is the last step.
    ///
    /// # Errors
    /// As [`Qp::connect`].
    pub fn ready_to_receive(&self, connection: &Connection) -> Result<(), Error> {
        let connection = *connection;
        self.change(move |nic, qpn| nic.ready_to_receive(qpn, &connection))
    }

    /// Moves it to RESET, INIT (from RESET), RTS (from RTR, SQD or SQE), SQD (from RTS) or ERROR.
    ///
    /// # Errors
    /// Its state does not allow that.
    pub fn set_state(&self, state: State) -> Result<(), Error> {
        self.change(move |nic, qpn| nic.set_state(qpn, state))
    }

    fn change(
        &self,
        change: impl FnOnce(
            &mut softrnic_device::Nic<native::Verbs, super::SharedMemory>,
            Qpn,
        ) -> Result<(), Refusal>
        + Send
        + 'static,
    ) -> Result<(), Error> {
        let (qpn, slot, shared) = (self.0.qpn, self.0.slot, self.0.shared.clone());
        let state = self.0.context().call(move |nic| {
            change(&mut nic.station.nic, qpn)?;
            let state = nic.station.nic.state(qpn).unwrap_or(State::Reset);
            if state == State::Reset {
                nic.forget_posted(slot);
                nic.freed_by_reset(qpn);
            }
            shared.set_state(state);
            Ok::<_, Error>(state)
        })??;
        if state == State::Reset {
            self.0.forget_completions();
        }
        Ok(())
    }

    /// What was set, and the live PSNs (`ibv_query_qp`).
    ///
    /// # Errors
    /// The NIC has stopped.
    pub fn query(&self) -> Result<QpQuery, Error> {
        let qpn = self.0.qpn;
        Ok(self.0.context().call(move |nic| nic.station.nic.query_qp(qpn))??)
    }

    /// Posts a send work request (`ibv_post_send`).
    ///
    /// # Errors
    /// The queue is full or in the wrong state, or the request does not fit. Keys and addresses are checked when
    /// it is executed, and end in its completion.
    pub fn post_send(&self, request: &SendRequest<'_>) -> Result<(), Error> {
        self.post_sends(std::slice::from_ref(request)).map_err(|bad| bad.error)
    }

    /// Posts several send work requests and rings once.
    ///
    /// # Errors
    /// The first one that was refused; those before it are posted.
    pub fn post_sends(&self, requests: &[SendRequest<'_>]) -> Result<(), BadRequest> {
        let qp = &*self.0;
        let state = qp.shared.state();
        if matches!(state, State::Reset | State::Init | State::Rtr) {
            let error = Refusal::WrongState { qpn: qp.qpn, state }.into();
            return Err(BadRequest { index: 0, error });
        }
        let mut side = lock(&qp.sends);
        let mut result = Ok(());
        for (index, request) in requests.iter().enumerate() {
            if let Err(error) = self.push_send(&mut side, request) {
                result = Err(BadRequest { index, error });
                break;
            }
        }
        drop(side);
        qp.context().doorbells().ring(qp.slot);
        result
    }

    fn push_send(&self, side: &mut Side<SendHead>, request: &SendRequest<'_>) -> Result<(), Error> {
        let qp = &*self.0;
        if (qp.service == Service::Ud) != request.ud.is_some() {
            return Err(Refusal::DatagramAddress { qpn: qp.qpn, service: qp.service }.into());
        }
        request.length(qp.max_sge, qp.max_inline)?;
        if side.full(&qp.shared.sends, qp.sq_depth) {
            return Err(Refusal::QueueFull { qpn: qp.qpn, depth: qp.sq_depth }.into());
        }
        if !side.ring.push(request) {
            return Err(Error::Stopped);
        }
        side.posted = side.posted.wrapping_add(1);
        Ok(())
    }

    /// Posts a receive work request (`ibv_post_recv`).
    ///
    /// # Errors
    /// The queue is full or in RESET, or the request does not fit.
    pub fn post_recv(&self, request: &RecvRequest<'_>) -> Result<(), Error> {
        self.post_recvs(std::slice::from_ref(request)).map_err(|bad| bad.error)
    }

    /// Posts several receive work requests.
    ///
    /// # Errors
    /// The first one that was refused; those before it are posted.
    pub fn post_recvs(&self, requests: &[RecvRequest<'_>]) -> Result<(), BadRequest> {
        let qp = &*self.0;
        let bad = |error: Refusal| BadRequest { index: 0, error: error.into() };
        let state = qp.shared.state();
        if state == State::Reset {
            return Err(bad(Refusal::WrongState { qpn: qp.qpn, state }));
        }
        if let Some(srq) = &qp.srq {
            return Err(bad(Refusal::ReceivesShared { qpn: qp.qpn, srq: srq.0.handle }));
        }
        let full = Refusal::QueueFull { qpn: qp.qpn, depth: qp.rq_depth };
        let limits = (qp.rq_depth, qp.max_sge, full);
        let result = post_receives(&qp.receives, &qp.shared.receives, limits, requests);
        qp.context().doorbells().ring(qp.slot);
        result
    }

    /// Attaches a datagram queue pair to a multicast group (`ibv_attach_mcast`).
    ///
    /// # Errors
    /// It is not UD, or the address is not multicast.
    pub fn attach_multicast(&self, group: IpAddr) -> Result<(), Error> {
        let qpn = self.0.qpn;
        Ok(self.0.context().call(move |nic| nic.station.nic.attach_multicast(qpn, group))??)
    }

    /// Detaches it from a multicast group (`ibv_detach_mcast`).
    ///
    /// # Errors
    /// It is not attached.
    pub fn detach_multicast(&self, group: IpAddr) -> Result<(), Error> {
        let qpn = self.0.qpn;
        Ok(self.0.context().call(move |nic| nic.station.nic.detach_multicast(qpn, group))??)
    }
}

fn post_receives(
    side: &Mutex<Side<RecvHead>>,
    shared: &QueueShared,
    (depth, max_sge, full): (u32, u32, Refusal),
    requests: &[RecvRequest<'_>],
) -> Result<(), BadRequest> {
    let mut side = lock(side);
    for (index, request) in requests.iter().enumerate() {
        let bad = |error: Error| BadRequest { index, error };
        request.length(max_sge).map_err(|error| bad(error.into()))?;
        if side.full(shared, depth) {
            return Err(bad(full.into()));
        }
        if !side.ring.push(request) {
            return Err(bad(Error::Stopped));
        }
        side.posted = side.posted.wrapping_add(1);
    }
    Ok(())
}

#[derive(Debug)]
struct SrqInner {
    pd: Pd,
    handle: SrqHandle,
    slot: usize,
    depth: u32,
    max_sge: u32,
    shared: Arc<QueueShared>,
    receives: Mutex<Side<RecvHead>>,
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        let (handle, slot) = (self.handle, self.slot);
        let _ = self.pd.0.context.call(move |nic| {
            nic.remove_queue(slot);
            nic.station.nic.destroy_srq(handle)
        });
    }
}

/// A shared receive queue (`ibv_srq`). A clone is the same queue.
#[derive(Clone, Debug)]
pub struct Srq(Arc<SrqInner>);

impl Srq {
    pub(super) fn create(pd: &Pd, depth: u32, max_sge: u32) -> Result<Self, Error> {
        let init = SrqInit { pd: pd.0.handle, depth, max_sge };
        let shared = Arc::new(QueueShared::default());
        let for_nic = shared.clone();
        let (handle, slot, ring) = pd.0.context.call(move |nic: &mut Nic| {
            let slot = nic.free_slot()?;
            let handle = nic.station.nic.create_srq(&init)?;
            let (head, receives) = recv_rings(depth, max_sge);
            let tail = SrqTail { handle, receives, taken: 0, shared: for_nic };
            nic.add_queue(slot, Queue::Shared(tail));
            Ok::<_, Error>((handle, slot, head))
        })??;
        let receives = Mutex::new(Side { ring, posted: 0 });
        let pd = pd.clone();
        Ok(Self(Arc::new(SrqInner { pd, handle, slot, depth, max_sge, shared, receives })))
    }

    /// Posts a receive work request (`ibv_post_srq_recv`).
    ///
    /// # Errors
    /// The queue is full, or the request does not fit.
    pub fn post_recv(&self, request: &RecvRequest<'_>) -> Result<(), Error> {
        self.post_recvs(std::slice::from_ref(request)).map_err(|bad| bad.error)
    }

    /// Posts several receive work requests.
    ///
    /// # Errors
    /// The first one that was refused; those before it are posted.
    pub fn post_recvs(&self, requests: &[RecvRequest<'_>]) -> Result<(), BadRequest> {
        let srq = &*self.0;
        let full = Refusal::SrqFull { srq: srq.handle, depth: srq.depth };
        let limits = (srq.depth, srq.max_sge, full);
        let result = post_receives(&srq.receives, &srq.shared, limits, requests);
        srq.pd.0.context.doorbells().ring(srq.slot);
        result
    }

    /// Asks for one event when fewer receives wait than this; 0 for none (`ibv_modify_srq`).
    ///
    /// # Errors
    /// The limit is above the depth.
    pub fn set_limit(&self, limit: u32) -> Result<(), Error> {
        let handle = self.0.handle;
        Ok(self.0.pd.0.context.call(move |nic| nic.station.nic.set_srq_limit(handle, limit))??)
    }
}
