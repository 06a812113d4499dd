//! A node with the native face: verbs called as a program calls them.

use softrnic_device::verbs::{
    AccessFlags, Connection, Cq, Mr, Payload, Pd, QpInit, RecvRequest, SendOp, SendRequest, Sge,
    Verbs, WorkCompletion,
};
use softrnic_device::{Nic, Ram};
use softrnic_engine::{
    Engine, Nanos, Path, Port, Qpn, RKey, Room, Rx, State, Status, Train, Verdict,
};

use crate::fault::{AtFace, Lent};
use crate::node::{
    Area, Arena, Arrived, Done, MEMORY_BASE, Node, NodeError, Peer, QpPlan, Request,
};
use crate::scenario::{NodeSpec, OperationKind};
use crate::state::DeviceState;
use crate::world::Station;

/// A node with the native face.
#[derive(Debug)]
pub(crate) struct NativeNode {
    nic: Nic<Verbs, Ram>,
    rules: Option<Lent>,
    arena: Arena,
    pd: Pd,
    area: Area,
    /// Covers `area`.
    mr: Mr,
    qp: Option<OpenQp>,
    /// Posted and not yet announced.
    posted: Vec<(SendOp, Sge, u64)>,
    polled: Vec<WorkCompletion>,
}

#[derive(Clone, Copy, Debug)]
struct OpenQp {
    qpn: Qpn,
    plan: QpPlan,
    send_cq: Cq,
    recv_cq: Cq,
    /// The receive buffers, one after the other.
    buffers: Mr,
}

impl OpenQp {
    fn buffer(&self, element: u32) -> Sge {
        let length = self.plan.rq_element_len;
        let address = self.buffers.va + u64::from(element) * u64::from(length);
        Sge { address, length, lkey: self.buffers.lkey }
    }
}

impl NativeNode {
    /// A device with `memory_len` bytes, of which `area_len` hold messages.
    pub(crate) fn new(spec: &NodeSpec, area_len: u64, memory_len: u64) -> Result<Self, NodeError> {
        let port = Port {
            mac: spec.mac,
            ipv4: spec.ipv4,
            ipv6: spec.ipv6,
            vlan_tci: spec.vlan,
            ..Port::default()
        };
        let memory_len = memory_len + PAGE_LEN;
        let ram = Ram::new(MEMORY_BASE, usize::try_from(memory_len).unwrap_or(usize::MAX));
        let mut arena = Arena::new(memory_len);
        let mut nic = Nic::verbs(port, ram);
        let pd = nic.alloc_pd()?;
        let address = arena.take(area_len, PAGE_LEN)?;
        let mr = nic.reg_mr(pd, address, area_len, AccessFlags::ALL)?;
        let area = Area { address, len: area_len, rkey: mr.rkey.0 };
        let polled = vec![WorkCompletion::default(); 64];
        Ok(Self { nic, rules: None, arena, pd, area, mr, qp: None, posted: Vec::new(), polled })
    }

    fn qp(&self) -> Result<OpenQp, NodeError> {
        self.qp.ok_or(NodeError::NoQueuePair)
    }
}

impl Station for NativeNode {
    fn handle_frame(&mut self, now: Nanos, frame: &[u8]) -> Verdict {
        Station::handle_frame(&mut self.nic, now, frame)
    }

    fn poll_transmit(&mut self, now: Nanos, room: &mut Room<'_>) -> Option<Train> {
        Station::poll_transmit(&mut self.nic, now, room)
    }

    fn handle_timeout(&mut self, now: Nanos) {
        Station::handle_timeout(&mut self.nic, now);
    }

    fn next_deadline(&mut self) -> Option<Nanos> {
        Station::next_deadline(&mut self.nic)
    }

    fn handle_frame_at(&mut self, faults: &mut AtFace<'_>, frame: &[u8]) -> Verdict {
        faults.handle_frame(&mut self.nic, frame, Rx::default())
    }

    fn poll_transmit_at(&mut self, faults: &mut AtFace<'_>, room: &mut Room<'_>) -> Option<Train> {
        faults.poll_transmit(&mut self.nic, room)
    }

    fn handle_timeout_at(&mut self, faults: &mut AtFace<'_>) {
        faults.handle_timeout(&mut self.nic);
    }

    fn lent_rules(&mut self) -> Option<&mut Option<Lent>> {
        Some(&mut self.rules)
    }
}

impl Node for NativeNode {
    fn open(&mut self, plan: &QpPlan) -> Result<u32, NodeError> {
        let len = u64::from(plan.rq_depth) * u64::from(plan.rq_element_len);
        let address = self.arena.take(len, 64)?;
        let buffers = self.nic.reg_mr(self.pd, address, len, AccessFlags::LOCAL)?;
        let send_cq = self.nic.create_cq(plan.outstanding + 1)?;
        let recv_cq = self.nic.create_cq(u32::from(plan.rq_depth) + 1)?;
        let qpn = self.nic.create_qp(&QpInit {
            pd: self.pd,
            send_cq,
            recv_cq,
            sq_depth: plan.outstanding,
            rq_depth: plan.rq_depth.into(),
            ..QpInit::default()
        })?;
        self.qp = Some(OpenQp { qpn, plan: *plan, send_cq, recv_cq, buffers });
        Ok(qpn.get())
    }

    fn connect(&mut self, peer: &Peer) -> Result<(), NodeError> {
        let qp = self.qp()?;
        self.nic.connect(
            qp.qpn,
            &Connection {
                path: Path { dest_mac: peer.mac, dest_ip: peer.ip, ..Path::default() },
                path_mtu: qp.plan.path_mtu,
                dest_qpn: Qpn::new(peer.qpn),
                send_psn: peer.first_psn,
                expected_psn: peer.first_psn,
                ack_timeout: qp.plan.ack_timeout,
                retry_count: qp.plan.retry_count,
                ..Connection::default()
            },
        )?;
        for element in 0..u32::from(qp.plan.rq_depth) {
            let sges = &[qp.buffer(element)];
            self.nic.post_recv(qp.qpn, &RecvRequest { wr_id: element.into(), sges })?;
        }
        Ok(())
    }

    fn post(&mut self, request: &Request) -> Result<(), NodeError> {
        let Request { id, local, len, remote, rkey, .. } = *request;
        let sge = Sge { address: local, length: len, lkey: self.mr.lkey };
        let rkey = RKey(rkey);
        let op = match request.operation {
            OperationKind::Send => SendOp::Send,
            OperationKind::Write => SendOp::Write { remote_va: remote, rkey },
            OperationKind::Read => SendOp::Read { remote_va: remote, rkey },
        };
        self.posted.push((op, sge, id.into()));
        Ok(())
    }

    fn ring(&mut self) -> Result<(), NodeError> {
        let qpn = self.qp()?.qpn;
        for (op, sge, wr_id) in self.posted.drain(..) {
            let payload = Payload::Sges(core::slice::from_ref(&sge));
            let request = SendRequest { wr_id, op, payload, signaled: true, ..Default::default() };
            let posted = self.nic.post_sends_through(&mut self.rules, qpn, &[request]);
            posted.map_err(|refused| refused.error)?;
        }
        Ok(())
    }

    fn completions(&mut self, out: &mut Vec<Done>) -> Result<(), NodeError> {
        let cq = self.qp()?.send_cq;
        loop {
            let count = self.nic.poll_cq(cq, &mut self.polled)?;
            for done in &self.polled[..count] {
                let gave_up =
                    matches!(done.status, Status::RetryExceeded | Status::RnrRetryExceeded);
                out.push(Done { id: done.wr_id as u16, error: error_of(done), gave_up });
            }
            if count < self.polled.len() {
                return Ok(());
            }
        }
    }

    fn receive(&mut self) -> Result<Option<Arrived>, NodeError> {
        let qp = self.qp()?;
        let mut one = [WorkCompletion::default()];
        if self.nic.poll_cq(qp.recv_cq, &mut one)? == 0 {
            return Ok(None);
        }
        let element = u32::try_from(one[0].wr_id).unwrap_or(u32::MAX);
        Ok(Some(Arrived {
            address: qp.buffer(element).address,
            buffer_len: qp.plan.rq_element_len,
            len: Some(one[0].byte_len),
            element,
            error: error_of(&one[0]),
        }))
    }

    fn release(&mut self, arrived: &Arrived) -> Result<(), NodeError> {
        let qp = self.qp()?;
        let sges = &[qp.buffer(arrived.element)];
        let request = RecvRequest { wr_id: arrived.element.into(), sges };
        self.nic.post_recv(qp.qpn, &request)?;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), NodeError> {
        let qpn = self.qp()?.qpn;
        Ok(self.nic.set_state_through(&mut self.rules, qpn, State::Error)?)
    }

    fn reset(&mut self) -> Result<(), NodeError> {
        let qp = self.qp()?;
        self.nic.set_state_through(&mut self.rules, qp.qpn, State::Reset)?;
        for cq in [qp.send_cq, qp.recv_cq] {
            while self.nic.poll_cq(cq, &mut self.polled)? > 0 {}
        }
        // A message that did not arrive whole may have left its first part.
        let len = u64::from(qp.plan.rq_depth) * u64::from(qp.plan.rq_element_len);
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        self.nic.memory.slice_mut(qp.buffers.va, len)?.fill(0);
        Ok(())
    }

    fn trouble(&mut self) -> Option<String> {
        let qpn = self.qp?.qpn;
        let failed = self.nic.state(qpn) == Some(State::Error);
        let event = self.nic.get_async_event();
        failed.then(|| match event {
            Some(event) => format!("QP {} is in the error state: {event:?}", qpn.get()),
            None => format!("QP {} is in the error state", qpn.get()),
        })
    }

    fn area(&self) -> Area {
        self.area
    }

    fn memory(&self) -> &Ram {
        &self.nic.memory
    }

    fn memory_mut(&mut self) -> &mut Ram {
        &mut self.nic.memory
    }

    fn set_vlan(&mut self, vlan: Option<u16>) {
        let port = *self.nic.engine.port();
        self.nic.engine.set_port(Port { vlan_tci: vlan, ..port });
    }

    fn engine(&self) -> &Engine {
        &self.nic.engine
    }

    fn state(&self, name: &str) -> DeviceState {
        DeviceState::of_verbs(name, &self.nic)
    }

    fn counters(&mut self) -> (&'static str, Vec<(&'static str, u64)>) {
        let counters = self.nic.engine.counters();
        let rows = counters.iter().map(|(row, value)| (row.name, value.into()));
        ("queue pairs", rows.collect())
    }
}

fn error_of(completion: &WorkCompletion) -> Option<String> {
    let status = completion.status;
    (status != Status::Success).then(|| match completion.reason {
        Some(reason) => format!("{status:?}: {reason}"),
        None => format!("{status:?}"),
    })
}

const PAGE_LEN: u64 = 4096;
