//! The GSI queue pair of the native face, for connection management: datagrams with their address area, address
//! handles, and queue pairs by verbs. It knows no connection.

use core::ops::Range;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use softrnic_device::verbs::{
    AccessFlags, Ah, Connection, Cq, Error, LKey, Payload, Pd, QpInit, RecvRequest, SendRequest,
    Sge, UdAddress, Verbs, WcOpcode, WorkCompletion,
};
use softrnic_device::{Memory, Nic};
use softrnic_engine::{Nanos, Path, Qpn, Service, State, Status};

use super::agent::{AgentCounters, Endpoint, Gsi};
use super::connection::{Parameters, Peer};
use super::message::{MAD_LEN, Mad};
use crate::port::Resolution;
use crate::station::Station;

const GSI: Qpn = Qpn::new(1);
const GSI_QKEY: u32 = 0x8001_0000;
const GRH_LEN: usize = 40;
/// A receive buffer: the address area and a datagram, rounded up.
const BUFFER_LEN: u64 = 320;
/// Datagrams in flight, and completions that wait.
const DEPTH: u32 = 128;

/// The GSI queue pair of a native NIC on a station.
#[derive(Debug)]
pub struct NativeGsi {
    cq: Cq,
    pd: Pd,
    lkey: LKey,
    buffers: u64,
    /// Address handles of datagrams that have not left.
    handles: BTreeMap<u64, Ah>,
    next_wr_id: u64,
}

impl NativeGsi {
    /// Bytes of NIC memory that receive buffers take.
    pub const MEMORY_LEN: u64 = BUFFER_LEN * DEPTH as u64;

    /// Makes the GSI queue pair of a NIC, with receive buffers at these bus addresses.
    ///
    /// # Errors
    /// There is a GSI queue pair already, or the buffers are not memory.
    pub fn new<M: Memory>(nic: &mut Nic<Verbs, M>, buffers: Range<u64>) -> Result<Self, Error> {
        let pd = nic.alloc_pd()?;
        let cq = nic.create_cq(2 * DEPTH)?;
        let lkey =
            nic.reg_mr(pd, buffers.start, buffers.end - buffers.start, AccessFlags::LOCAL)?.lkey;
        let init = QpInit {
            pd,
            send_cq: cq,
            recv_cq: cq,
            sq_depth: DEPTH,
            rq_depth: DEPTH,
            max_sge: 1,
            max_inline: MAD_LEN as u32,
            sq_sig_all: true,
            service: Service::Ud,
            srq: None,
        };
        let qp = nic.create_gsi_qp(&init)?;
        nic.connect(qp, &Connection::default())?;
        let (buffers, next_wr_id) = (buffers.start, u64::from(DEPTH));
        let gsi = Self { cq, pd, lkey, buffers, handles: BTreeMap::new(), next_wr_id };
        for buffer in 0..u64::from(DEPTH) {
            gsi.post_receive(nic, buffer)?;
        }
        Ok(gsi)
    }

    fn post_receive<M: Memory>(&self, nic: &mut Nic<Verbs, M>, buffer: u64) -> Result<(), Error> {
        let address = self.buffers + buffer * BUFFER_LEN;
        let sges = [Sge { address, length: BUFFER_LEN as u32, lkey: self.lkey }];
        nic.post_recv(GSI, &RecvRequest { wr_id: buffer, sges: &sges })
    }

    /// A datagram has come; false where it says not from whom.
    fn take<M: Memory>(
        &self,
        nic: &Nic<Verbs, M>,
        completion: &WorkCompletion,
        take: &mut dyn FnMut(Peer, &[u8]),
    ) -> bool {
        let mut bytes = [0; BUFFER_LEN as usize];
        let len = (completion.byte_len as usize).min(bytes.len());
        let address = self.buffers + completion.wr_id * BUFFER_LEN;
        let read = nic.memory.read(address, &mut bytes[..len]);
        let (Ok(()), Some((area, mad))) = (read, bytes[..len].split_first_chunk()) else {
            return false;
        };
        let (Some(ip), Some(qpn)) = (source_ip(area), completion.source_qpn) else { return false };
        take(Peer { ip, qpn }, mad);
        true
    }

    fn try_send<M: Memory>(
        &mut self,
        nic: &mut Nic<Verbs, M>,
        peer: Peer,
        dest_mac: [u8; 6],
        mad: &Mad,
    ) -> Result<(), Error> {
        if self.handles.len() >= DEPTH as usize {
            return Err(Error::Exhausted("send queue of the GSI queue pair"));
        }
        let path = Path { dest_mac, dest_ip: peer.ip, ..Path::default() };
        let ah = nic.create_ah(self.pd, &path)?;
        let request = SendRequest {
            wr_id: self.next_wr_id,
            payload: Payload::Inline(mad),
            ud: Some(UdAddress { ah, remote_qpn: peer.qpn, remote_qkey: GSI_QKEY }),
            signaled: true,
            ..SendRequest::default()
        };
        if let Err(error) = nic.post_send(GSI, &request) {
            nic.destroy_ah(ah)?;
            return Err(error);
        }
        self.handles.insert(self.next_wr_id, ah);
        self.next_wr_id += 1;
        Ok(())
    }
}

impl<M: Memory> Gsi<Station<Verbs, M>> for NativeGsi {
    fn receive(
        &mut self,
        station: &mut Station<Verbs, M>,
        counters: &mut AgentCounters,
        take: &mut dyn FnMut(Peer, &[u8]),
    ) -> bool {
        let nic = &mut station.nic;
        let mut done = [WorkCompletion::default(); 16];
        let mut busy = false;
        while let Ok(count @ 1..) = nic.poll_cq(self.cq, &mut done) {
            busy = true;
            for completion in &done[..count] {
                let ok = completion.status == Status::Success;
                if completion.wr_id >= u64::from(DEPTH) {
                    counters.send_errors += u64::from(!ok);
                    if let Some(ah) = self.handles.remove(&completion.wr_id) {
                        // It was made by `send` and is destroyed here only.
                        let _ = nic.destroy_ah(ah);
                    }
                    continue;
                }
                let received = ok && completion.opcode == WcOpcode::Recv;
                if !(received && self.take(nic, completion, take)) {
                    counters.receive_errors += 1;
                }
                // A buffer that cannot be posted again is one less; messages may be lost.
                if self.post_receive(nic, completion.wr_id).is_err() {
                    counters.receive_errors += 1;
                }
            }
        }
        busy
    }

    fn send(
        &mut self,
        station: &mut Station<Verbs, M>,
        peer: Peer,
        dest_mac: [u8; 6],
        mad: &Mad,
    ) -> bool {
        self.try_send(&mut station.nic, peer, dest_mac, mad).is_ok()
    }

    fn resolve(&mut self, station: &mut Station<Verbs, M>, now: Nanos, ip: IpAddr) -> Resolution {
        station.resolve(now, ip)
    }

    fn check(&mut self, station: &mut Station<Verbs, M>, qpn: Qpn) -> Result<(), String> {
        match station.nic.state(qpn) {
            None => Err(Error::UnknownQp(qpn).to_string()),
            Some(State::Reset | State::Init) => Ok(()),
            Some(state) => Err(Error::WrongState { qpn, state }.to_string()),
        }
    }

    fn connect(
        &mut self,
        station: &mut Station<Verbs, M>,
        endpoint: &Endpoint,
        parameters: &Parameters,
        dest_mac: [u8; 6],
    ) -> Result<(), String> {
        let path = Path {
            dest_mac,
            dest_ip: parameters.remote,
            traffic_class: parameters.traffic_class,
            hop_limit: parameters.hop_limit.max(1),
            flow_label: parameters.flow_label,
            ..Path::default()
        };
        let connection = Connection {
            path,
            path_mtu: parameters.path_mtu,
            dest_qpn: parameters.dest_qpn,
            send_psn: parameters.send_psn,
            expected_psn: parameters.expected_psn,
            pkey: parameters.pkey,
            remote_access: endpoint.remote_access,
            ack_timeout: parameters.ack_timeout_within(endpoint.ack_timeout_max),
            retry_count: parameters.retry_count,
            rnr_retry: parameters.rnr_retry,
            min_rnr_timer: endpoint.min_rnr_timer,
            max_rd_atomic: parameters.max_rd_atomic,
            max_dest_rd_atomic: parameters.max_dest_rd_atomic,
            ..Connection::default()
        };
        station.nic.connect(endpoint.qpn, &connection).map_err(|error| error.to_string())
    }

    fn fail(&mut self, station: &mut Station<Verbs, M>, qpn: Qpn) -> bool {
        let nic = &mut station.nic;
        let ended = matches!(nic.state(qpn), None | Some(State::Reset | State::Error));
        !ended && nic.set_state(qpn, State::Error).is_ok()
    }

    /// An asynchronous event tells: whoever takes it calls `communication_established`.
    fn has_received(&mut self, _: &mut Station<Verbs, M>, _: Qpn) -> bool {
        false
    }
}

/// Who sent a datagram: its 40-byte area is an IPv6 header, or ends with an IPv4 header.
fn source_ip(area: &[u8; GRH_LEN]) -> Option<IpAddr> {
    match (area[0] >> 4, area[20] >> 4) {
        (6, _) => area[8..24].first_chunk().map(|ip: &[u8; 16]| Ipv6Addr::from(*ip).into()),
        (0, 4) => area[32..36].first_chunk().map(|ip: &[u8; 4]| Ipv4Addr::from(*ip).into()),
        _ => None,
    }
}
