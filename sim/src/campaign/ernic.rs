//! A node of a random world with the ERNIC face: the driver on top, the device model below.

use softrnic_device::ernic::{Ernic as Device, ErnicConfig, Profile};
use softrnic_device::{Nic, Ram};
use softrnic_driver::{
    BufferPool, Completion, DeviceConfig, Ernic, Local, Map, QpConfig, QpNumber, RegionAccess,
    RegionConfig, Remote as DriverRemote, Request as Wr,
};
use softrnic_engine::{Engine, Nanos, Room, State, Train, Verdict};

use super::plan::{ConnectionPlan, Kind};
use super::software::{Arrival, Bytes, Remote, Report, Request, Software};
use crate::check::Ended;
use crate::ernic_node::driver_path_mtu;
use crate::fault::{AtFace, Lent};
use crate::model::Model;
use crate::node::{Arena, NodeError};
use crate::payload::POISON;
use crate::scenario::{NodeSpec, ProfileKind};
use crate::world::Station;

/// A node with the ERNIC face.
#[derive(Debug)]
pub(crate) struct ErnicNode {
    driver: Ernic<Model>,
    area: Bytes,
    arena: Arena,
    keys: u8,
    ends: Vec<End>,
    completions: [Completion; 16],
}

#[derive(Clone, Copy, Debug)]
struct End {
    qp: QpNumber,
    receive_len: u32,
    /// What its failed work requests are: the first is an error, the others were flushed.
    failed: bool,
}

const PROTECTION_DOMAIN: u32 = 1;
/// Rings, receive elements and the device's own buffers.
const DEVICE_LEN: u32 = 4 << 20;

impl ErnicNode {
    pub(crate) fn new(spec: &NodeSpec, queue_pairs: u16, len: u32) -> Result<Self, NodeError> {
        let (profile, map) = match spec.profile {
            ProfileKind::V40 => (Profile::V4_0, Map::V4_0),
            ProfileKind::V40Silicon => (Profile::V4_0_SILICON, Map::V4_0_SILICON),
        };
        let device = ErnicConfig { profile, num_qp: queue_pairs + 2, ..ErnicConfig::default() };
        let model = Model::new(device, (len + DEVICE_LEN) as usize);
        let headers = BufferPool { count: 16, bytes_each: 256 };
        let config = DeviceConfig {
            mac: spec.mac,
            ipv4: spec.ipv4,
            ipv6: spec.ipv6,
            num_qps_enabled: queue_pairs + 1,
            error_buffers: headers,
            response_error_buffers: headers,
            ..DeviceConfig::default()
        };
        let mut driver = Ernic::bring_up(model, map, &config)?;
        let address = driver.platform_mut().take(len.into(), 4096)?;
        driver.platform_mut().nic.memory.slice_mut(address, len as usize)?.fill(POISON);
        let arena = Arena::at(address, len.into());
        let completions = [Completion::default(); 16];
        let area = Bytes { address, len };
        Ok(Self { driver, area, arena, keys: 0, ends: Vec::new(), completions })
    }

    fn nic(&mut self) -> &mut Nic<Device, Ram> {
        &mut self.driver.platform_mut().nic
    }
}

impl Station for ErnicNode {
    fn handle_frame(&mut self, now: Nanos, frame: &[u8]) -> Verdict {
        Station::handle_frame(self.nic(), now, frame)
    }

    fn poll_transmit(&mut self, now: Nanos, room: &mut Room<'_>) -> Option<Train> {
        Station::poll_transmit(self.nic(), now, room)
    }

    fn handle_timeout(&mut self, now: Nanos) {
        Station::handle_timeout(self.nic(), now);
    }

    fn next_deadline(&mut self) -> Option<Nanos> {
        Station::next_deadline(self.nic())
    }

    fn handle_frame_at(&mut self, faults: &mut AtFace<'_>, frame: &[u8]) -> Verdict {
        Station::handle_frame_at(self.nic(), faults, frame)
    }

    fn poll_transmit_at(&mut self, faults: &mut AtFace<'_>, room: &mut Room<'_>) -> Option<Train> {
        Station::poll_transmit_at(self.nic(), faults, room)
    }

    fn handle_timeout_at(&mut self, faults: &mut AtFace<'_>) {
        Station::handle_timeout_at(self.nic(), faults);
    }

    fn lent_rules(&mut self) -> Option<&mut Option<Lent>> {
        Some(&mut self.driver.platform_mut().rules)
    }
}

impl Software for ErnicNode {
    fn take(&mut self, len: u64) -> Result<u64, NodeError> {
        self.arena.take(len, 64)
    }

    fn open_region(&mut self, address: u64, len: u64) -> Result<u32, NodeError> {
        self.keys += 1;
        let region = self.driver.register_region(&RegionConfig {
            pd: PROTECTION_DOMAIN,
            va: address,
            bus: address,
            len,
            access: RegionAccess::ReadWrite,
            key: self.keys,
        })?;
        Ok(region.rkey)
    }

    fn open(
        &mut self,
        plan: &ConnectionPlan,
        side: usize,
        _local: (u64, u64),
        _receives: (u64, u64),
    ) -> Result<u32, NodeError> {
        // One entry of each ring stays empty.
        let depth = |entries: u32| u16::try_from((entries + 1).next_power_of_two()).unwrap_or(2048);
        let qp = self.driver.create_qp(&QpConfig {
            sq_depth: depth(plan.outstanding).max(16),
            rq_depth: u16::try_from(plan.receives + 1).unwrap_or(2048),
            rq_element_len: plan.receive_len,
            path_mtu: driver_path_mtu(plan.mtu()),
            pd: PROTECTION_DOMAIN,
            timeout: plan.ack_timeout,
            retry_count: plan.retry_count,
            rnr_retry: plan.rnr_retry,
            rnr_timer: plan.min_rnr_timer,
            pkey: plan.pkey[side],
            ..QpConfig::default()
        })?;
        self.ends.push(End { qp, receive_len: plan.receive_len, failed: false });
        Ok(qp.get().into())
    }

    fn connect(
        &mut self,
        end: usize,
        _plan: &ConnectionPlan,
        _side: usize,
        remote: &Remote,
    ) -> Result<(), NodeError> {
        let &Remote { mac, ip, qpn, first_psn: [send_psn, receive_psn] } = remote;
        let remote = DriverRemote { mac, ip, qpn, send_psn, receive_psn };
        Ok(self.driver.connect_qp(self.ends[end].qp, &remote)?)
    }

    fn post(&mut self, end: usize, request: &Request) -> Result<(), NodeError> {
        let qp = self.ends[end].qp;
        let &Request { id, remote, rkey, immediate, .. } = request;
        let Bytes { address, len } = request.local;
        let local = Local::Bus { address, len };
        let wr = match request.kind {
            Kind::Send | Kind::FetchAdd | Kind::CompareSwap => Wr::send(id, local),
            Kind::SendImm => Wr::send_imm(id, local, immediate),
            Kind::SendInv => Wr::send_inv(id, local, rkey),
            Kind::Write => Wr::write(id, local, remote, rkey),
            Kind::WriteImm => Wr::write_imm(id, local, remote, rkey, immediate),
            Kind::Read => Wr::read(id, local, remote, rkey),
        };
        self.driver.post(qp, &wr)?;
        Ok(self.driver.ring(qp)?)
    }

    fn poll(&mut self, out: &mut Vec<Report>) -> Result<(), NodeError> {
        for (end, of_end) in self.ends.iter_mut().enumerate() {
            loop {
                let count = self.driver.poll_completions(of_end.qp, &mut self.completions)?;
                for done in &self.completions[..count] {
                    let ended = match (done.failed, of_end.failed) {
                        (false, _) => Ended::Success,
                        (true, false) => Ended::Error,
                        (true, true) => Ended::Flushed,
                    };
                    of_end.failed |= done.failed;
                    out.push(Report::Done { end, id: done.wrid, ended });
                }
                if count < self.completions.len() {
                    break;
                }
            }
            while let Some(received) = self.driver.poll_receive(of_end.qp)? {
                let buffer = Bytes { address: received.bus, len: of_end.receive_len };
                out.push(Report::Arrived {
                    end,
                    arrival: Arrival {
                        buffer,
                        skip: 0,
                        len: None,
                        immediate: None,
                        by_write: false,
                        failed: false,
                    },
                });
            }
        }
        Ok(())
    }

    fn release(&mut self, end: usize, _: Bytes) -> Result<(), NodeError> {
        Ok(self.driver.release_receive(self.ends[end].qp, 1)?)
    }

    fn flush(&mut self, end: usize) -> Result<(), NodeError> {
        let qp = self.ends[end].qp;
        let qpn = softrnic_engine::Qpn::new(qp.get().into());
        let failed = self.engine().qp(qpn).is_some_and(|q| q.state() == State::Error);
        if failed { Ok(self.driver.flush_qp(qp)?) } else { Ok(()) }
    }

    fn area(&self) -> Bytes {
        self.area
    }

    fn engine(&self) -> &Engine {
        &self.driver.platform().nic.engine
    }

    fn memory(&self) -> &Ram {
        &self.driver.platform().nic.memory
    }

    fn memory_mut(&mut self) -> &mut Ram {
        &mut self.nic().memory
    }
}
