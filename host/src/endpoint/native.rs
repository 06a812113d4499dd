//! An endpoint on the native face: verbs on the NIC's thread.

use std::time::{Duration, Instant};

use super::{Ability, Done, Endpoint, EndpointError, Local, Op, Remote, Transfer, connection};
use crate::verbs::{
    AccessFlags, Connection, Context, Cq, Event, Mr, Path, Payload, Pd, Qp, QpInit, RecvRequest,
    RemoteAccess, SendOp, SendRequest, Status, WcOpcode, WorkCompletion,
};

/// Requests and receives that can wait.
const DEPTH: u32 = 64;
/// READs and atomics outstanding: as many as rxe has by default.
const RD_ATOMIC: u8 = 16;
/// What the native face can do.
pub(super) const ABILITY: Ability = Ability {
    face: "native",
    atomics: true,
    immediate: true,
    lengths: true,
    granularity: 1,
    message_max: 1 << 31,
    rd_atomic_max: RD_ATOMIC,
};
/// How long neighbours may take to answer.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);

/// A queue pair of the native face and its region.
#[derive(Debug)]
pub struct NativeEndpoint {
    context: Context,
    pd: Pd,
    cq: Cq,
    mr: Mr,
    len: usize,
    qp: Qp,
    peer: Option<Remote>,
    posted: u64,
    /// Why the link is gone, once it is.
    trouble: Option<String>,
}

impl NativeEndpoint {
    /// A queue pair and a region of `len` bytes.
    ///
    /// # Errors
    /// What the NIC refuses.
    pub fn new(context: Context, len: usize) -> Result<Self, EndpointError> {
        let pd = context.alloc_pd().map_err(EndpointError::new)?;
        let cq = context.create_cq(2 * DEPTH).map_err(EndpointError::new)?;
        let mr = pd.reg_mr(len, AccessFlags::ALL).map_err(EndpointError::new)?;
        let qp = queue_pair(&pd, &cq)?;
        Ok(Self { context, pd, cq, mr, len, qp, peer: None, posted: 0, trouble: None })
    }

    /// Its queue pair.
    pub(super) const fn qp(&self) -> &Qp {
        &self.qp
    }

    fn offset(&self, offset: u64) -> Result<usize, EndpointError> {
        usize::try_from(offset).map_err(|_| {
            EndpointError::new(format!(
                "offset {offset} is not in the region of {} bytes",
                self.len
            ))
        })
    }

    fn done(&self, done: &WorkCompletion) -> Done {
        if done.status != Status::Success {
            let why = done.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
            let what = format!(
                "{}: {:?}{why}; `rnic explain WC_STATUS={}` says what that means{}",
                connection(done.qpn, self.peer.map(|peer| (peer.ip, peer.qpn))),
                done.status,
                done.status as u8,
                self.trouble.as_ref().map(|why| format!(". {why}")).unwrap_or_default()
            );
            return Done::Failed { status: name_of(done.status), what };
        }
        match done.opcode {
            WcOpcode::Recv | WcOpcode::RecvRdmaWithImm => {
                Done::Receive { len: Some(done.byte_len), immediate: done.immediate }
            }
            _ => Done::Request,
        }
    }
}

fn queue_pair(pd: &Pd, cq: &Cq) -> Result<Qp, EndpointError> {
    let init = QpInit { sq_depth: DEPTH, rq_depth: DEPTH, ..QpInit::new(cq) };
    pd.create_qp(&init).map_err(EndpointError::new)
}

/// A status as `ibv_wc_status_str` abbreviates it, with dashes.
const fn name_of(status: Status) -> &'static str {
    match status {
        Status::Success => "success",
        Status::LocalLength => "local-length-error",
        Status::LocalQpOperation => "local-qp-operation-error",
        Status::LocalProtection => "local-protection-error",
        Status::Flushed => "flushed",
        Status::BadResponse => "bad-response",
        Status::RemoteInvalidRequest => "remote-invalid-request",
        Status::RemoteAccess => "remote-access-error",
        Status::RemoteOperation => "remote-operation-error",
        Status::RetryExceeded => "retry-exceeded",
        Status::RnrRetryExceeded => "rnr-retry-exceeded",
    }
}

impl Endpoint for NativeEndpoint {
    fn ability(&self) -> Ability {
        ABILITY
    }

    fn local(&self, ipv6: bool) -> Result<Local, EndpointError> {
        let ip = self.context.port().own_address(ipv6).map_err(EndpointError::new)?;
        Ok(Local { ip, qpn: self.qp.qpn(), va: self.mr.va(), rkey: self.mr.rkey().0 })
    }

    fn connect(&mut self, remote: &Remote) -> Result<(), EndpointError> {
        if self.peer.is_some() {
            self.qp = queue_pair(&self.pd, &self.cq)?;
        }
        let ip = remote.ip.to_canonical();
        let mtu_max = self.context.max_path_mtu(ip);
        if remote.mtu > mtu_max {
            return Err(EndpointError::new(format!(
                "a path MTU of {} does not fit this link (MTU {}): at most {}, or a larger --mtu",
                remote.mtu.bytes(),
                self.context.mtu(),
                mtu_max.bytes()
            )));
        }
        let path: Path = self.context.path_to(ip, RESOLVE_TIMEOUT).map_err(EndpointError::new)?;
        self.qp
            .connect(&Connection {
                path,
                path_mtu: remote.mtu,
                dest_qpn: remote.qpn,
                send_psn: remote.send_psn,
                expected_psn: remote.receive_psn,
                remote_access: RemoteAccess { read: true, write: true, atomic: true },
                ack_timeout: remote.timeout,
                retry_count: remote.retry,
                rnr_retry: remote.rnr_retry,
                min_rnr_timer: 12,
                max_rd_atomic: remote.rd_atomic,
                max_dest_rd_atomic: RD_ATOMIC,
                ..Connection::default()
            })
            .map_err(EndpointError::new)?;
        self.peer = Some(*remote);
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), EndpointError> {
        self.mr.write(self.offset(offset)?, bytes).map_err(EndpointError::new)
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<(), EndpointError> {
        self.mr.read(self.offset(offset)?, out).map_err(EndpointError::new)
    }

    fn post_receive(&mut self, offset: u64, len: u32) -> Result<(), EndpointError> {
        let sges = [self.mr.sge(self.offset(offset)?, len)];
        self.posted += 1;
        let request = RecvRequest { wr_id: self.posted, sges: &sges };
        self.qp.post_recv(&request).map_err(EndpointError::new)
    }

    fn post(&mut self, transfer: &Transfer) -> Result<(), EndpointError> {
        let &Transfer { op, offset, len, remote_va, rkey } = transfer;
        let rkey = crate::verbs::RKey(rkey);
        let op = match op {
            Op::Send => SendOp::Send,
            Op::Write => SendOp::Write { remote_va, rkey },
            Op::WriteImm(immediate) => SendOp::WriteWithImm { remote_va, rkey, immediate },
            Op::Read => SendOp::Read { remote_va, rkey },
            Op::FetchAdd(add) => SendOp::FetchAdd { remote_va, rkey, add },
            Op::CompareSwap { compare, swap } => {
                SendOp::CompareSwap { remote_va, rkey, compare, swap }
            }
        };
        let sges = [self.mr.sge(self.offset(offset)?, len)];
        self.posted += 1;
        let request = SendRequest {
            wr_id: self.posted,
            op,
            payload: Payload::Sges(&sges),
            signaled: true,
            ..SendRequest::default()
        };
        self.qp.post_send(&request).map_err(EndpointError::new)
    }

    fn wait(&mut self, timeout: Duration) -> Result<Option<Done>, EndpointError> {
        let until = Instant::now() + timeout;
        let mut done = [WorkCompletion::default()];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let ended = self.cq.wait(&mut done, left) == 1;
            while let Some(event) = self.context.get_event(Duration::ZERO) {
                if let Event::LinkDown { why, .. } = event {
                    self.trouble = Some(why);
                }
            }
            // What an older queue pair left behind is of no interest.
            if ended && done[0].qpn == self.qp.qpn() {
                return Ok(Some(self.done(&done[0])));
            }
            if !ended {
                return match &self.trouble {
                    Some(why) => {
                        let connection =
                            connection(self.qp.qpn(), self.peer.map(|peer| (peer.ip, peer.qpn)));
                        Err(EndpointError::new(format!("{connection}: {why}")))
                    }
                    None => Ok(None),
                };
            }
        }
    }
}
