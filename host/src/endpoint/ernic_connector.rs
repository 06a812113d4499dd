//! An ERNIC with connection management: one driver that the programs' threads share, and a thread that looks after
//! QP 1, as a kernel driver's worker does. What it does there is [`crate::cm::ernic`]'s.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use softrnic_device::ernic::Profile;
use softrnic_driver::Ernic;
use softrnic_engine::Qpn;

use super::ernic::{ABILITY, device_config, map_of};
use super::model::Model;
use super::pair::Pair;
use super::{Ability, Connector, Done, Endpoint, EndpointError, Local, Remote, Transfer};
use crate::clock::Clock;
use crate::cm::agent::{self, Agent, AgentConfig, AgentEvent, Request};
use crate::cm::ernic::ErnicGsi;
use crate::cm::inbox::Inbox;
use crate::cm::{CmConfig, CommId, Wanted};
use crate::link::Link;
use crate::port::{PortConfig, Resolve};
use crate::setup::Setup;

/// Memory that the model can reach: 15 connections with receives of 1 MiB, and hundreds with short ones.
const MEMORY_LEN: usize = 512 << 20;
/// Highest queue pair number.
const QPS: u16 = 255;
/// How often QP 1 is looked at: the model's interrupt line leads nowhere.
const MANAGEMENT_PERIOD: Duration = Duration::from_millis(1);
/// Who waits for work looks around for so long, and then sleeps between two looks: a look is two calls to the model's
/// thread.
const SPIN: Duration = Duration::from_millis(1);
const PAUSE: Duration = Duration::from_micros(50);

/// An ERNIC model on a link.
#[derive(Debug)]
pub struct ErnicConnector {
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    device: Mutex<Device>,
    inbox: Inbox,
    clock: Clock,
    port: PortConfig,
    stop: AtomicBool,
}

/// The driver, and what is on the device.
#[derive(Debug)]
struct Device {
    driver: Ernic<Model>,
    agent: Agent<ErnicGsi>,
    /// Nobody uses them any more, but their connections are in time wait.
    retired: Vec<Pair>,
}

impl Shared {
    fn device(&self) -> MutexGuard<'_, Device> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Messages of connections, and what follows from them.
    fn manage(&self) {
        let device = &mut *self.device();
        device.agent.turn(self.clock.now(), &mut device.driver);
        while let Some(event) = device.agent.poll_event() {
            self.inbox.push(event);
        }
        // The native face copies states to its programs; here they ask the device.
        while device.agent.poll_changed_qp().is_some() {}
        let Device { driver, agent, retired } = device;
        retired.retain_mut(|pair| {
            let held = pair.qpn().is_ok_and(|qpn| agent.holds(qpn));
            if !held && let Err(error) = pair.destroy(driver) {
                tracing::warn!("a queue pair is lost to this process: {error}");
            }
            held
        });
    }

    fn serve(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            self.manage();
            std::thread::park_timeout(MANAGEMENT_PERIOD);
        }
    }
}

impl ErnicConnector {
    /// Starts a model of a profile on a link, and connection management on it. `seed` should differ from one start to
    /// the next.
    ///
    /// # Errors
    /// No thread, no capture, or what the driver says.
    pub fn model(
        setup: &Setup,
        link: Box<dyn Link>,
        profile: Profile,
        seed: u64,
    ) -> Result<Self, EndpointError> {
        let port = setup.port.clone();
        let model = Model::start(setup, link, profile, MEMORY_LEN).map_err(EndpointError::new)?;
        let config = device_config(&port, QPS);
        let mut driver =
            Ernic::bring_up(model, map_of(profile), &config).map_err(EndpointError::new)?;
        let gsi = ErnicGsi::new(&mut driver, &port).map_err(EndpointError::new)?;
        let agent = Agent::new(gsi, &port, AgentConfig { cm: CmConfig::default(), seed });
        let shared = Arc::new(Shared {
            device: Mutex::new(Device { driver, agent, retired: Vec::new() }),
            inbox: Inbox::default(),
            clock: Clock::start(),
            port,
            stop: AtomicBool::new(false),
        });
        let of_worker = shared.clone();
        let worker = std::thread::Builder::new()
            .name("ernic-cm".to_owned())
            .spawn(move || of_worker.serve())
            .map_err(EndpointError::new)?;
        Ok(Self { shared, worker: Some(worker) })
    }

    /// Has something said, and sent at once.
    fn say<R>(&self, what: impl FnOnce(&mut Device) -> R) -> R {
        let said = what(&mut self.shared.device());
        self.shared.manage();
        said
    }
}

impl Drop for ErnicConnector {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(worker) = self.worker.take() {
            worker.thread().unpark();
            // A panic of its own has been said.
            let _ = worker.join();
        }
    }
}

fn endpoint_of(qpn: Qpn) -> agent::Endpoint {
    agent::Endpoint {
        responder_resources: ABILITY.rd_atomic_max,
        initiator_depth: ABILITY.rd_atomic_max,
        ..agent::Endpoint::new(qpn)
    }
}

impl Connector for ErnicConnector {
    fn ability(&self) -> Ability {
        ABILITY
    }

    fn port(&self) -> &PortConfig {
        &self.shared.port
    }

    fn listen(&self, port: u16, backlog: usize) -> Result<(), EndpointError> {
        self.shared.device().agent.listen(port, backlog).map_err(EndpointError::new)
    }

    fn endpoint(
        &self,
        len: usize,
        receive_max: u32,
    ) -> Result<Box<dyn Endpoint + Send>, EndpointError> {
        let driver = &mut self.shared.device().driver;
        let mut pair = Pair::new(driver, len, receive_max)?;
        let made = pair.config().and_then(|config| pair.create(driver, &config));
        if let Err(error) = made {
            pair.destroy(driver)?;
            return Err(error);
        }
        Ok(Box::new(Connected { shared: self.shared.clone(), pair: Some(pair) }))
    }

    fn connect(&self, qpn: Qpn, request: &Request) -> Result<CommId, EndpointError> {
        let now = self.shared.clock.now();
        let port = &self.shared.port;
        self.say(|device| device.agent.connect(now, port, &endpoint_of(qpn), request))
            .map_err(EndpointError::new)
    }

    fn accept(&self, id: CommId, qpn: Qpn, ack_timeout_max: u8) -> Result<(), EndpointError> {
        let endpoint = agent::Endpoint { ack_timeout_max, ..endpoint_of(qpn) };
        self.say(|device| device.agent.accept(id, &endpoint, &[])).map_err(EndpointError::new)
    }

    fn reject(&self, id: CommId) -> Result<(), EndpointError> {
        self.say(|device| device.agent.reject(id, &[])).map_err(EndpointError::new)
    }

    fn disconnect(&self, id: CommId) -> Result<(), EndpointError> {
        let now = self.shared.clock.now();
        self.say(|Device { agent, driver, .. }| agent.disconnect(now, driver, id))
            .map_err(EndpointError::new)
    }

    fn forget(&self, id: CommId) {
        let known = self.shared.device().agent.cm().state(id).is_some();
        self.shared.inbox.forget(id, known);
    }

    fn event(&self, wanted: Wanted, timeout: Duration) -> Option<AgentEvent> {
        self.shared.inbox.wait(wanted, timeout)
    }

    fn retransmitted_packets(&self) -> Result<u64, EndpointError> {
        Ok(self.shared.device().driver.counters().retransmitted_packets.into())
    }

    fn stop_capture(&self) -> Result<(), EndpointError> {
        let device = self.shared.device();
        let thread = device.driver.platform().thread();
        let stopped =
            thread.run(|station, _| station.stop_capture()).map_err(EndpointError::new)?;
        stopped.map_err(|error| EndpointError::new(format!("writing the capture: {error}")))
    }
}

/// A queue pair and its region on the shared device.
struct Connected {
    shared: Arc<Shared>,
    /// `None` only while it is dropped.
    pair: Option<Pair>,
}

impl Connected {
    fn with<R>(
        &mut self,
        what: impl FnOnce(&mut Pair, &mut Ernic<Model>) -> Result<R, EndpointError>,
    ) -> Result<R, EndpointError> {
        let pair = self.pair.as_mut().ok_or_else(|| EndpointError::new("the endpoint is gone"))?;
        what(pair, &mut self.shared.device().driver)
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        let Some(pair) = self.pair.take() else { return };
        self.shared.device().retired.push(pair);
    }
}

impl Endpoint for Connected {
    fn ability(&self) -> Ability {
        ABILITY
    }

    fn local(&self, ipv6: bool) -> Result<Local, EndpointError> {
        let ip = self.shared.port.own_address(ipv6).map_err(EndpointError::new)?;
        let pair = self.pair.as_ref().ok_or_else(|| EndpointError::new("the endpoint is gone"))?;
        let (va, rkey) = pair.region();
        Ok(Local { ip, qpn: pair.qpn()?, va, rkey })
    }

    fn connect(&mut self, _: &Remote) -> Result<(), EndpointError> {
        Err(EndpointError::new("RDMA CM connects this queue pair"))
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), EndpointError> {
        self.with(|pair, driver| pair.write(driver, offset, bytes))
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<(), EndpointError> {
        self.with(|pair, driver| pair.read(driver, offset, out))
    }

    fn post_receive(&mut self, offset: u64, len: u32) -> Result<(), EndpointError> {
        self.with(|pair, _| pair.post_receive(offset, len))
    }

    fn post(&mut self, transfer: &Transfer) -> Result<(), EndpointError> {
        self.with(|pair, driver| pair.post(driver, transfer))
    }

    fn wait(&mut self, timeout: Duration) -> Result<Option<Done>, EndpointError> {
        let start = Instant::now();
        loop {
            if let Some(done) = self.with(Pair::poll)? {
                return Ok(Some(done));
            }
            let waited = start.elapsed();
            if waited >= timeout {
                return self.with(|pair, driver| match driver.platform().trouble() {
                    Some(why) => Err(EndpointError::new(format!("{}: {why}", pair.name()))),
                    None => pair.fatal(driver),
                });
            }
            if waited < SPIN {
                std::thread::yield_now();
            } else {
                std::thread::sleep(PAUSE);
            }
        }
    }
}
