//! A node of a random world with the native face: verbs called as a program calls them.

use softrnic_device::verbs::{
    AccessFlags, Ah, Connection, Cq, LKey, Payload, Pd, QpInit, RecvRequest, SendOp, SendRequest,
    Sge, Srq, SrqInit, UdAddress, Verbs, WorkCompletion,
};
use softrnic_device::{Nic, Ram};
use softrnic_engine::congestion::Dcqcn;
use softrnic_engine::{
    Engine, Nanos, Path, Policy, Port, Psn, Qpn, RKey, Room, Status, Train, Verdict,
};

use super::plan::{ConnectionPlan, Kind, NodePlan, ServiceKind};
use super::software::{Arrival, Bytes, GRH_AREA, Remote, Report, Request, Software};
use crate::check::Ended;
use crate::fault::{AtFace, Lent};
use crate::node::{Arena, MEMORY_BASE, NodeError};
use crate::payload::POISON;
use crate::scenario::NodeSpec;
use crate::world::Station;

/// A node with the native face.
#[derive(Debug)]
pub(crate) struct NativeNode {
    nic: Nic<Verbs, Ram>,
    rules: Option<Lent>,
    arena: Arena,
    len: u32,
    pd: Pd,
    plan: NodePlan,
    shared_cq: Option<Cq>,
    shared_rq: Option<Srq>,
    ends: Vec<End>,
    cqs: Vec<Cq>,
    /// Keys of receive buffers, by address.
    receive_keys: Vec<(u64, u64, LKey)>,
    polled: Vec<WorkCompletion>,
}

#[derive(Clone, Copy, Debug)]
struct End {
    qpn: Qpn,
    service: ServiceKind,
    local: LKey,
    receives: (u64, u64),
    shared_rq: bool,
    ah: Option<(Ah, Qpn)>,
}

/// Completions that any queue of a world may hold.
const CQ_DEPTH: u32 = 1024;
const QKEY: u32 = 0x1111_1111;

impl NativeNode {
    pub(crate) fn new(spec: &NodeSpec, plan: &NodePlan, len: u32) -> Result<Self, NodeError> {
        let port = Port { mac: spec.mac, ipv4: spec.ipv4, ipv6: spec.ipv6, ..Port::default() };
        let mut ram = Ram::new(MEMORY_BASE, len as usize);
        ram.slice_mut(MEMORY_BASE, len as usize)?.fill(POISON);
        let mut nic = Nic::verbs(port, ram);
        let pd = nic.alloc_pd()?;
        let mut cqs = Vec::new();
        let shared_cq = if plan.shared_cq { Some(nic.create_cq(4 * CQ_DEPTH)?) } else { None };
        cqs.extend(shared_cq);
        let shared_rq = match plan.shared_rq {
            true => Some(nic.create_srq(&SrqInit { pd, depth: CQ_DEPTH, max_sge: 1 })?),
            false => None,
        };
        let arena = Arena::new(len.into());
        let polled = vec![WorkCompletion::default(); 16];
        let (ends, receive_keys) = (Vec::new(), Vec::new());
        let plan = plan.clone();
        Ok(Self {
            nic,
            rules: None,
            arena,
            len,
            pd,
            plan,
            shared_cq,
            shared_rq,
            ends,
            cqs,
            receive_keys,
            polled,
        })
    }

    fn buffer(&self, buffer: Bytes) -> Sge {
        let found = self
            .receive_keys
            .iter()
            .find(|(start, end, _)| (*start..*end).contains(&buffer.address));
        let lkey = found.map_or(LKey(0), |(_, _, lkey)| *lkey);
        Sge { address: buffer.address, length: buffer.len, lkey }
    }

    fn report(&self, done: &WorkCompletion) -> Option<Report> {
        let end = self.ends.iter().position(|end| end.qpn == done.qpn)?;
        if done.wr_id & RECEIVE == 0 {
            let ended = match done.status {
                Status::Success => Ended::Success,
                Status::Flushed => Ended::Flushed,
                _ => Ended::Error,
            };
            return Some(Report::Done { end, id: done.wr_id as u16, ended });
        }
        // The buffer's address and length are its name.
        let buffer = Bytes {
            address: MEMORY_BASE + (done.wr_id & 0xFFFF_FFFF),
            len: (done.wr_id >> 32 & 0xFF_FFFF) as u32,
        };
        let skip = if self.ends[end].service == ServiceKind::Ud { GRH_AREA } else { 0 };
        Some(Report::Arrived {
            end,
            arrival: Arrival {
                buffer,
                skip,
                len: Some(done.byte_len.saturating_sub(skip)),
                immediate: Some(done.immediate),
                by_write: done.opcode == softrnic_device::verbs::WcOpcode::RecvRdmaWithImm,
                failed: done.status != Status::Success,
            },
        })
    }
}

/// Marks the name of a receive.
const RECEIVE: u64 = 1 << 63;

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
        Station::handle_frame_at(&mut self.nic, faults, frame)
    }

    fn poll_transmit_at(&mut self, faults: &mut AtFace<'_>, room: &mut Room<'_>) -> Option<Train> {
        Station::poll_transmit_at(&mut self.nic, faults, room)
    }

    fn handle_timeout_at(&mut self, faults: &mut AtFace<'_>) {
        Station::handle_timeout_at(&mut self.nic, faults);
    }

    fn lent_rules(&mut self) -> Option<&mut Option<Lent>> {
        Some(&mut self.rules)
    }
}

impl Software for NativeNode {
    fn take(&mut self, len: u64) -> Result<u64, NodeError> {
        self.arena.take(len, 64)
    }

    fn open_region(&mut self, address: u64, len: u64) -> Result<u32, NodeError> {
        Ok(self.nic.reg_mr(self.pd, address, len, AccessFlags::ALL)?.rkey.0)
    }

    fn open(
        &mut self,
        plan: &ConnectionPlan,
        _side: usize,
        local: (u64, u64),
        receives: (u64, u64),
    ) -> Result<u32, NodeError> {
        let register = |nic: &mut Nic<Verbs, Ram>, pd, (address, len)| {
            nic.reg_mr(pd, address, len, AccessFlags::LOCAL)
        };
        let local = register(&mut self.nic, self.pd, local)?.lkey;
        let lkey = register(&mut self.nic, self.pd, receives)?.lkey;
        self.receive_keys.push((receives.0, receives.0 + receives.1, lkey));
        let cq = match self.shared_cq {
            Some(cq) => cq,
            None => {
                let cq = self.nic.create_cq(CQ_DEPTH)?;
                self.cqs.push(cq);
                cq
            }
        };
        let shared_rq = self.plan.shared_rq && plan.service != ServiceKind::Ud;
        let qpn = self.nic.create_qp(&QpInit {
            pd: self.pd,
            send_cq: cq,
            recv_cq: cq,
            sq_depth: plan.outstanding,
            rq_depth: plan.receives,
            max_sge: 4,
            service: plan.service.service(),
            srq: self.shared_rq.filter(|_| shared_rq),
            ..QpInit::default()
        })?;
        self.ends.push(End { qpn, service: plan.service, local, receives, shared_rq, ah: None });
        Ok(qpn.get())
    }

    fn connect(
        &mut self,
        end: usize,
        plan: &ConnectionPlan,
        side: usize,
        remote: &Remote,
    ) -> Result<(), NodeError> {
        let path = Path { dest_mac: remote.mac, dest_ip: remote.ip, ..Path::default() };
        let End { qpn, receives, .. } = self.ends[end];
        let policy = Policy {
            window_packets: plan.window_packets,
            ack_request_every: plan.ack_request_every,
            end_to_end_credits: plan.credits,
            cnp_interval_ns: plan.dcqcn.then_some(CNP_INTERVAL_NS),
            ..Policy::default()
        };
        self.nic.connect(
            qpn,
            &Connection {
                path,
                path_mtu: plan.mtu(),
                dest_qpn: Qpn::new(remote.qpn),
                send_psn: Psn::new(remote.first_psn[0]),
                expected_psn: Psn::new(remote.first_psn[1]),
                pkey: plan.pkey[side],
                qkey: QKEY,
                ack_timeout: plan.ack_timeout,
                retry_count: plan.retry_count,
                rnr_retry: plan.rnr_retry,
                min_rnr_timer: plan.min_rnr_timer,
                max_rd_atomic: plan.max_rd_atomic[side],
                max_dest_rd_atomic: plan.max_dest_rd_atomic[side],
                policy,
                ..Connection::default()
            },
        )?;
        if plan.dcqcn {
            // Reduced so that a world sees it: the paper's values take milliseconds.
            let dcqcn = Dcqcn {
                line_rate_bits_per_s: 10_000_000_000,
                alpha_timer_ns: 5_000,
                increase_timer_ns: 10_000,
                decrease_interval_ns: 5_000,
                byte_counter_bytes: 4096,
                ..Dcqcn::default()
            };
            // The parameters are in range.
            let _ = self.nic.engine.set_congestion_control(qpn, Some(dcqcn));
        }
        if plan.service == ServiceKind::Ud {
            let ah = self.nic.create_ah(self.pd, &path)?;
            self.ends[end].ah = Some((ah, Qpn::new(remote.qpn)));
        }
        for i in 0..u64::from(plan.receives) {
            let stride = receives.1 / u64::from(plan.receives);
            let buffer = Bytes { address: receives.0 + i * stride, len: plan.receive_len };
            self.release(end, buffer)?;
        }
        Ok(())
    }

    fn post(&mut self, end: usize, request: &Request) -> Result<(), NodeError> {
        let End { qpn, local: lkey, ah, .. } = self.ends[end];
        let (remote_va, rkey, immediate) = (request.remote, RKey(request.rkey), request.immediate);
        let op = match request.kind {
            Kind::Send => SendOp::Send,
            Kind::SendImm => SendOp::SendWithImm { immediate },
            Kind::SendInv => SendOp::SendWithInv { rkey },
            Kind::Write => SendOp::Write { remote_va, rkey },
            Kind::WriteImm => SendOp::WriteWithImm { remote_va, rkey, immediate },
            Kind::Read => SendOp::Read { remote_va, rkey },
            Kind::FetchAdd => SendOp::FetchAdd { remote_va, rkey, add: request.operands.0 },
            Kind::CompareSwap => SendOp::CompareSwap {
                remote_va,
                rkey,
                compare: request.operands.1,
                swap: request.operands.0,
            },
        };
        let mut sges = [Sge::default(); 4];
        let count = if request.kind.is_atomic() { 1 } else { request.sges.clamp(1, 4) };
        let part = request.local.len / count;
        for (i, sge) in (0..count).zip(&mut sges) {
            let length = if i + 1 == count { request.local.len - i * part } else { part };
            *sge = Sge { address: request.local.address + u64::from(i * part), length, lkey };
        }
        let ud = ah.map(|(ah, remote_qpn)| UdAddress { ah, remote_qpn, remote_qkey: QKEY });
        let payload = Payload::Sges(&sges[..count as usize]);
        let (wr_id, signaled) = (request.id.into(), request.signaled);
        let (solicited, fence) = (request.solicited, request.fence);
        let request = SendRequest { wr_id, op, payload, signaled, solicited, fence, ud };
        let posted = self.nic.post_sends_through(&mut self.rules, qpn, &[request]);
        Ok(posted.map_err(|refused| refused.error)?)
    }

    fn poll(&mut self, out: &mut Vec<Report>) -> Result<(), NodeError> {
        for i in 0..self.cqs.len() {
            loop {
                let count = self.nic.poll_cq(self.cqs[i], &mut self.polled)?;
                out.extend(self.polled[..count].iter().filter_map(|done| self.report(done)));
                if count < self.polled.len() {
                    break;
                }
            }
        }
        Ok(())
    }

    fn release(&mut self, end: usize, buffer: Bytes) -> Result<(), NodeError> {
        let sges = &[self.buffer(buffer)];
        let name = (buffer.address - MEMORY_BASE) | u64::from(buffer.len) << 32;
        let request = RecvRequest { wr_id: RECEIVE | name, sges };
        match self.shared_rq {
            Some(srq) if self.ends[end].shared_rq => self.nic.post_srq_recv(srq, &request)?,
            _ => self.nic.post_recv(self.ends[end].qpn, &request)?,
        }
        Ok(())
    }

    // A failed queue pair has flushed everything.
    fn flush(&mut self, _: usize) -> Result<(), NodeError> {
        Ok(())
    }

    fn area(&self) -> Bytes {
        Bytes { address: MEMORY_BASE, len: self.len }
    }

    fn engine(&self) -> &Engine {
        &self.nic.engine
    }

    fn memory(&self) -> &Ram {
        &self.nic.memory
    }

    fn memory_mut(&mut self) -> &mut Ram {
        &mut self.nic.memory
    }
}

const CNP_INTERVAL_NS: u64 = 5_000;
