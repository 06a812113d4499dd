//! The native face as a device under test: verbs with threads.

use std::net::IpAddr;
use std::time::Duration;

use softrnic_engine::{RemoteAccess, Service, Status};

use super::PerfError;
use super::rig::{Ended, Limits, Request, Rig, Verb};
use crate::endpoint::Remote;
use crate::verbs::{
    AccessFlags, Ah, Connection, Context, Cq, Event, Mr, Payload, Pd, Qp, QpInit, RecvRequest,
    SendOp, SendRequest, WcOpcode, WorkCompletion,
};

/// How long a neighbour may take to answer.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Queue key of perftest's datagrams.
const QKEY: u32 = 0x1111_1111;
/// Completions that are taken at once.
const BATCH: usize = 64;

/// Queue pairs of one NIC, one completion queue, one region.
#[derive(Debug)]
pub struct NativeRig {
    context: Context,
    pd: Pd,
    cq: Cq,
    mr: Mr,
    qps: Vec<Qp>,
    peers: Vec<Option<(Remote, Option<Ah>)>>,
    limits: Limits,
    done: Vec<WorkCompletion>,
}

impl NativeRig {
    /// `qps` queue pairs, and a region of `len` bytes.
    ///
    /// # Errors
    /// A size is too large, or there is no memory.
    pub fn new(
        context: Context,
        qps: usize,
        len: usize,
        limits: Limits,
    ) -> Result<Self, PerfError> {
        let pd = context.alloc_pd()?;
        let depth = limits.send_depth.saturating_add(limits.recv_depth);
        let cq = context.create_cq(depth.saturating_mul(u32::try_from(qps).unwrap_or(u32::MAX)))?;
        let mr = pd.reg_mr(len, AccessFlags::ALL)?;
        let init = QpInit {
            sq_depth: limits.send_depth,
            rq_depth: limits.recv_depth,
            max_sge: 1,
            max_inline: 0,
            service: limits.service,
            ..QpInit::new(&cq)
        };
        let made: Result<Vec<Qp>, _> = (0..qps).map(|_| pd.create_qp(&init)).collect();
        let done = vec![WorkCompletion::default(); BATCH];
        Ok(Self { pd, cq, mr, qps: made?, peers: vec![None; qps], limits, done, context })
    }

    fn failed(&self, qp: usize, done: &WorkCompletion) -> PerfError {
        let peer = self.peers.get(qp).and_then(|peer| peer.as_ref());
        let peer = peer.map_or_else(String::new, |(peer, _)| {
            format!(" to {} queue pair {:#x}", peer.ip, peer.qpn.get())
        });
        let why = done.reason.map_or_else(String::new, |reason| format!(": {}", reason.row().text));
        PerfError::Failed(format!(
            "queue pair {:#x}{peer}: {}{why}{}",
            done.qpn.get(),
            status_name(done.status),
            self.trouble().map_or_else(String::new, |trouble| format!(" ({trouble})"))
        ))
    }
}

/// As verbs name it, in words.
fn status_name(status: Status) -> String {
    let mut name = String::new();
    for letter in format!("{status:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push(' ');
        }
        name.extend(letter.to_lowercase());
    }
    name
}

impl Rig for NativeRig {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn address(&self, ipv6: bool) -> Result<IpAddr, PerfError> {
        let port = self.context.port();
        let ip = if ipv6 {
            port.ipv6.map(|(ip, _)| IpAddr::V6(ip))
        } else {
            port.ipv4.map(|(ip, _)| IpAddr::V4(ip))
        };
        ip.ok_or(PerfError::NoAddress(if ipv6 { "IPv6" } else { "IPv4" }))
    }

    fn qpn(&self, qp: usize) -> u32 {
        self.qps.get(qp).map_or(0, |qp| qp.qpn().get())
    }

    fn region(&self) -> (u64, u32) {
        (self.mr.va(), self.mr.rkey().0)
    }

    fn connect(&mut self, qp: usize, remote: &Remote) -> Result<(), PerfError> {
        let path = self.context.path_to(remote.ip.to_canonical(), RESOLVE_TIMEOUT)?;
        let connection = Connection {
            path,
            path_mtu: remote.mtu,
            dest_qpn: remote.qpn,
            send_psn: remote.send_psn,
            expected_psn: remote.receive_psn,
            qkey: QKEY,
            remote_access: RemoteAccess { read: true, write: true, atomic: true },
            ack_timeout: remote.timeout,
            retry_count: remote.retry,
            rnr_retry: remote.rnr_retry,
            min_rnr_timer: 12,
            max_rd_atomic: remote.rd_atomic,
            max_dest_rd_atomic: self.limits.rd_atomic,
            ..Connection::default()
        };
        self.qps[qp].connect(&connection)?;
        let ah = match self.limits.service {
            Service::Ud => Some(self.pd.create_ah(&path)?),
            _ => None,
        };
        self.peers[qp] = Some((*remote, ah));
        Ok(())
    }

    fn post_receive(&mut self, qp: usize, offset: u64, len: u32) -> Result<(), PerfError> {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let request = RecvRequest { wr_id: wr_id(qp, 1), sges: &[self.mr.sge(offset, len)] };
        Ok(self.qps[qp].post_recv(&request)?)
    }

    fn post(&mut self, qp: usize, request: &Request, signals: &[u32]) -> Result<(), PerfError> {
        let Request { verb, offset, len, remote_va, rkey } = *request;
        let rkey = softrnic_engine::RKey(rkey);
        let op = match verb {
            Verb::Send => SendOp::Send,
            Verb::Write => SendOp::Write { remote_va, rkey },
            Verb::Read => SendOp::Read { remote_va, rkey },
            Verb::Atomic => SendOp::FetchAdd { remote_va, rkey, add: 1 },
        };
        let sges = [self.mr.sge(usize::try_from(offset).unwrap_or(usize::MAX), len)];
        let ud = match &self.peers[qp] {
            Some((remote, Some(ah))) => Some(ah.to(remote.qpn, QKEY)),
            _ => None,
        };
        // Chunks of an array, so that nothing is allocated for each message.
        for chunk in signals.chunks(16) {
            let mut requests = [SendRequest::default(); 16];
            for (request, &signal) in requests.iter_mut().zip(chunk) {
                *request = SendRequest {
                    wr_id: wr_id(qp, signal),
                    op,
                    payload: Payload::Sges(&sges),
                    signaled: signal > 0,
                    ud,
                    ..SendRequest::default()
                };
            }
            self.qps[qp].post_sends(&requests[..chunk.len()]).map_err(|bad| bad.error)?;
        }
        Ok(())
    }

    fn wait(&mut self, ended: &mut Vec<Ended>, timeout: Duration) -> Result<(), PerfError> {
        let count = self.cq.wait(&mut self.done, timeout);
        for done in &self.done[..count] {
            let qp = (done.wr_id >> 32) as usize;
            if done.status != Status::Success {
                return Err(self.failed(qp, done));
            }
            let receive = matches!(done.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm);
            ended.push(Ended { qp, receive, count: done.wr_id as u32 });
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), PerfError> {
        Ok(self.mr.write(usize::try_from(offset).unwrap_or(usize::MAX), bytes)?)
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<(), PerfError> {
        Ok(self.mr.read(usize::try_from(offset).unwrap_or(usize::MAX), out)?)
    }

    fn trouble(&self) -> Option<String> {
        std::iter::from_fn(|| self.context.get_event(Duration::ZERO)).find_map(
            |event| match event {
                Event::LinkDown { why, .. } => Some(why),
                _ => None,
            },
        )
    }
}

/// A queue pair's index, and how many requests end.
const fn wr_id(qp: usize, count: u32) -> u64 {
    (qp as u64) << 32 | count as u64
}
