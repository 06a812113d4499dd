//! An ERNIC node: the driver on top, the device model below, and between them nothing but 32-bit
//! registers and memory.

use softrnic_device::ernic::{Ernic as ErnicDevice, ErnicConfig, Profile};
use softrnic_device::{Nic, Ram};
use softrnic_driver::{
    Completion, DeviceConfig, Ernic, Local, Map, QpConfig, QpNumber, RegionAccess, RegionConfig,
    Remote,
};
use softrnic_engine::{
    Engine, Nanos, PathMtu, REASON_ROWS, Reason, Room, Rx, State, Train, Verdict,
};

use crate::fault::{AtFace, Lent};
use crate::model::Model;
use crate::node::{Area, Arrived, Done, Node, NodeError, Peer, QpPlan, Request};
use crate::scenario::{NodeSpec, OperationKind, ProfileKind};
use crate::state::DeviceState;
use crate::world::Station;

/// A node with the ERNIC face.
#[derive(Debug)]
pub(crate) struct ErnicNode {
    driver: Ernic<Model>,
    area: Area,
    qp: Option<QpNumber>,
    completions: Vec<Completion>,
    /// Retries that had run out when the queue pair was last made new.
    given_up_before: u64,
}

impl ErnicNode {
    /// Brings a device up with `memory_len` bytes, of which `area_len` hold messages.
    pub(crate) fn new(
        spec: &NodeSpec,
        queue_pairs: u16,
        area_len: u64,
        memory_len: u64,
    ) -> Result<Self, NodeError> {
        let (profile, map) = match spec.profile {
            ProfileKind::V40 => (Profile::V4_0, Map::V4_0),
            ProfileKind::V40Silicon => (Profile::V4_0_SILICON, Map::V4_0_SILICON),
        };
        let memory_len = memory_len + DEVICE_BUFFERS_LEN;
        let device = ErnicConfig {
            profile,
            // Numbers 0 and 1 are not for connections.
            num_qp: queue_pairs.saturating_add(2),
            vlan_tci: spec.vlan,
            ..ErnicConfig::default()
        };
        let model = Model::new(device, usize::try_from(memory_len).unwrap_or(usize::MAX));
        let config = DeviceConfig {
            mac: spec.mac,
            ipv4: spec.ipv4,
            ipv6: spec.ipv6,
            // QP 1 is for management.
            num_qps_enabled: queue_pairs + 1,
            ..DeviceConfig::default()
        };
        let mut driver = Ernic::bring_up(model, map, &config)?;
        let bus = driver.platform_mut().take(area_len, 4096)?;
        let region = driver.register_region(&RegionConfig {
            pd: PROTECTION_DOMAIN,
            va: bus,
            bus,
            len: area_len,
            access: RegionAccess::ReadWrite,
            key: 0x5A,
        })?;
        let area = Area { address: bus, len: area_len, rkey: region.rkey };
        let completions = vec![Completion::default(); 64];
        Ok(Self { driver, area, qp: None, completions, given_up_before: 0 })
    }

    fn nic(&mut self) -> &mut Nic<ErnicDevice, Ram> {
        &mut self.driver.platform_mut().nic
    }

    /// How often the retries of a queue pair have run out.
    fn given_up(&self) -> u64 {
        let faults = self.driver.platform().nic.device.faults();
        [Reason::RetryExceeded, Reason::RnrRetryExceeded].map(|r| faults[r as usize]).iter().sum()
    }

    fn qp(&self) -> Result<QpNumber, NodeError> {
        self.qp.ok_or(NodeError::NoQueuePair)
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
        faults.handle_frame(self.nic(), frame, Rx::default())
    }

    fn poll_transmit_at(&mut self, faults: &mut AtFace<'_>, room: &mut Room<'_>) -> Option<Train> {
        faults.poll_transmit(self.nic(), room)
    }

    fn handle_timeout_at(&mut self, faults: &mut AtFace<'_>) {
        faults.handle_timeout(self.nic());
    }

    fn lent_rules(&mut self) -> Option<&mut Option<Lent>> {
        Some(&mut self.driver.platform_mut().rules)
    }
}

impl Node for ErnicNode {
    fn open(&mut self, plan: &QpPlan) -> Result<u32, NodeError> {
        // One entry of the ring stays empty.
        let sq_depth = (plan.outstanding + 1).next_power_of_two().max(16);
        let qp = self.driver.create_qp(&QpConfig {
            sq_depth: u16::try_from(sq_depth).unwrap_or(u16::MAX),
            rq_depth: plan.rq_depth,
            rq_element_len: plan.rq_element_len,
            path_mtu: driver_path_mtu(plan.path_mtu),
            pd: PROTECTION_DOMAIN,
            timeout: plan.ack_timeout,
            retry_count: plan.retry_count,
            ..QpConfig::default()
        })?;
        self.qp = Some(qp);
        Ok(qp.get().into())
    }

    fn connect(&mut self, peer: &Peer) -> Result<(), NodeError> {
        let qp = self.qp()?;
        let psn = peer.first_psn.get();
        let Peer { mac, ip, qpn, .. } = *peer;
        self.driver.connect_qp(qp, &Remote { mac, ip, qpn, send_psn: psn, receive_psn: psn })?;
        Ok(())
    }

    fn post(&mut self, request: &Request) -> Result<(), NodeError> {
        use softrnic_driver::Request as Wr;
        let qp = self.qp()?;
        let Request { id, local, len, remote, rkey, .. } = *request;
        let local = Local::Bus { address: local, len };
        let request = match request.operation {
            OperationKind::Send => Wr::send(id, local),
            OperationKind::Write => Wr::write(id, local, remote, rkey),
            OperationKind::Read => Wr::read(id, local, remote, rkey),
        };
        self.driver.post(qp, &request)?;
        Ok(())
    }

    fn ring(&mut self) -> Result<(), NodeError> {
        let qp = self.qp()?;
        Ok(self.driver.ring(qp)?)
    }

    fn completions(&mut self, out: &mut Vec<Done>) -> Result<(), NodeError> {
        let qp = self.qp()?;
        // A CQE has no status: the device's count of reasons tells.
        let given_up = self.given_up();
        let gave_up = given_up > self.given_up_before;
        loop {
            let count = self.driver.poll_completions(qp, &mut self.completions)?;
            for done in &self.completions[..count] {
                let error = done.failed.then(|| "the CQE's error flag is set".to_owned());
                out.push(Done { id: done.wrid, error, gave_up: done.failed && gave_up });
            }
            if count < self.completions.len() {
                return Ok(());
            }
        }
    }

    fn receive(&mut self) -> Result<Option<Arrived>, NodeError> {
        let qp = self.qp()?;
        Ok(self.driver.poll_receive(qp)?.map(|received| Arrived {
            address: received.bus,
            buffer_len: received.len_max,
            len: None,
            element: received.element.into(),
            error: None,
        }))
    }

    fn release(&mut self, _: &Arrived) -> Result<(), NodeError> {
        let qp = self.qp()?;
        Ok(self.driver.release_receive(qp, 1)?)
    }

    fn flush(&mut self) -> Result<(), NodeError> {
        let qp = self.qp()?;
        Ok(self.driver.flush_qp(qp)?)
    }

    fn reset(&mut self) -> Result<(), NodeError> {
        let qp = self.qp()?;
        self.given_up_before = self.given_up();
        self.driver.recover_qp(qp)?;
        // A message that did not arrive whole may have left its first part.
        let elements = self.driver.receive_elements(qp)?;
        self.memory_mut().slice_mut(elements.bus, elements.len)?.fill(0);
        Ok(())
    }

    fn trouble(&mut self) -> Option<String> {
        let qp = self.qp?;
        let failed = self
            .engine()
            .qps()
            .any(|q| q.qpn().get() == u32::from(qp.get()) && matches!(q.state(), State::Error));
        if !failed {
            return None;
        }
        let status = self.driver.status(qp).ok()?;
        let fatal = self.driver.take_fatal().ok().flatten();
        let code = fatal.map_or("none".to_owned(), |entry| format!("{:#06x}", entry.code));
        let faults = self.driver.platform().nic.device.faults();
        let met = REASON_ROWS.iter().zip(faults).filter(|(_, count)| **count > 0);
        let met: Vec<_> = met.map(|(row, count)| format!("{} {count}", row.name)).collect();
        Some(format!(
            "{qp} is fatal: STATQP {:#010x} (NAK syndrome {:#04x}, {} retries, {} RNR retries), \
             fatal code {code}, response awaited for PSN {:#08x}, next PSN {:#08x}; the device has \
             met: {}",
            status.statqp,
            status.nak_syndrome(),
            status.retry_count(),
            status.rnr_retry_count(),
            status.response_psn,
            status.send_psn,
            if met.is_empty() { "nothing of its own".to_owned() } else { met.join(", ") },
        ))
    }

    fn area(&self) -> Area {
        self.area
    }

    fn memory(&self) -> &Ram {
        &self.driver.platform().nic.memory
    }

    fn memory_mut(&mut self) -> &mut Ram {
        &mut self.nic().memory
    }

    fn set_vlan(&mut self, vlan: Option<u16>) {
        let engine = &mut self.nic().engine;
        let port = *engine.port();
        engine.set_port(softrnic_engine::Port { vlan_tci: vlan, ..port });
    }

    fn engine(&self) -> &Engine {
        &self.driver.platform().nic.engine
    }

    fn state(&self, name: &str) -> DeviceState {
        DeviceState::of_ernic(name, &self.driver.platform().nic)
    }

    fn counters(&mut self) -> (&'static str, Vec<(&'static str, u64)>) {
        let counters = self.driver.counters();
        ("registers", counters.iter().map(|(name, value)| (name, value.into())).collect())
    }
}

pub(crate) const fn driver_path_mtu(path_mtu: PathMtu) -> softrnic_driver::PathMtu {
    use softrnic_driver::PathMtu as Driver;
    match path_mtu {
        PathMtu::M256 => Driver::Mtu256,
        PathMtu::M512 => Driver::Mtu512,
        PathMtu::M1024 => Driver::Mtu1024,
        PathMtu::M2048 => Driver::Mtu2048,
        PathMtu::M4096 => Driver::Mtu4096,
    }
}

const PROTECTION_DOMAIN: u32 = 1;
/// Room for the error and data buffers that the driver gives the device at bring-up.
const DEVICE_BUFFERS_LEN: u64 = 2 << 20;
