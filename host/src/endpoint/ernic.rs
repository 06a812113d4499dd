//! An endpoint that is an ERNIC, driven by its driver through registers and memory.
//!
//! ERNIC does not say how long a received message is, nor give immediate data to software here; whoever needs
//! them knows them from elsewhere.

use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use softrnic_device::ernic::Profile;
use softrnic_driver::{DeviceConfig, Ernic, Map, Platform, Remote as DriverRemote};
use softrnic_engine::Qpn;

use super::model::Model;
use super::pair::{DEPTH, Pair, element_len};
use super::{Ability, Done, Endpoint, EndpointError, Local, Remote, Transfer};
use crate::cm::ernic::driver_mtu;
use crate::link::Link;
use crate::port::{PortConfig, Resolution, Resolve};
use crate::setup::Setup;

/// Memory beside the region, for queues and the device's buffers.
const QUEUES_LEN: usize = 64 << 20;
/// How long neighbours may take to answer.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);

/// What an ERNIC can do.
pub(super) const ABILITY: Ability = Ability {
    face: "ernic",
    atomics: false,
    immediate: false,
    lengths: false,
    // READ and WRITE addresses and lengths (PG332, "Unsupported Features"), rule D-30.
    granularity: 64,
    message_max: 8 << 20,
    // READs that it keeps outstanding, and that it serves: a build parameter, 16 as seen. A peer that is told less keeps
    // less, and has nothing to answer from when more of them are asked for again.
    rd_atomic_max: 16,
};

/// A queue pair of an ERNIC and its region.
#[derive(Debug)]
pub struct ErnicEndpoint<P: Platform> {
    driver: Ernic<P>,
    port: PortConfig,
    pair: Pair,
}

/// How to bring a device up for a port.
pub(super) fn device_config(port: &PortConfig, num_qps_enabled: u16) -> DeviceConfig {
    let of_port = port.engine_port();
    DeviceConfig {
        mac: port.mac,
        ipv4: of_port.ipv4,
        ipv6: of_port.ipv6,
        num_qps_enabled,
        ..DeviceConfig::default()
    }
}

/// The register map of a profile.
pub(super) fn map_of(profile: Profile) -> Map {
    if profile == Profile::V4_0_SILICON { Map::V4_0_SILICON } else { Map::V4_0 }
}

impl ErnicEndpoint<Model> {
    /// An endpoint on a model, with a region of `len` bytes and receives of at most `receive_max`.
    ///
    /// # Errors
    /// A link, a file or a setting of the device.
    pub fn model(
        setup: &Setup,
        link: Box<dyn Link>,
        profile: Profile,
        len: usize,
        receive_max: u32,
    ) -> Result<Self, EndpointError> {
        let rings = usize::from(DEPTH) * element_len(receive_max)? as usize;
        let memory_len = len.saturating_add(rings).saturating_add(QUEUES_LEN);
        let model = Model::start(setup, link, profile, memory_len).map_err(EndpointError::new)?;
        Self::over(model, map_of(profile), setup.port.clone(), len, receive_max)
    }

    /// Ends the model and its capture.
    ///
    /// # Errors
    /// The capture could not be written.
    pub fn stop(self) -> io::Result<()> {
        self.driver.shut_down().stop()
    }
}

impl<P: Platform> ErnicEndpoint<P> {
    /// Brings a device up, with the port's addresses and a region of `len` bytes.
    ///
    /// # Errors
    /// The driver's.
    pub fn over(
        platform: P,
        map: Map,
        port: PortConfig,
        len: usize,
        receive_max: u32,
    ) -> Result<Self, EndpointError> {
        let config = device_config(&port, 2);
        let mut driver = Ernic::bring_up(platform, map, &config).map_err(EndpointError::new)?;
        let pair = Pair::new(&mut driver, len, receive_max)?;
        Ok(Self { driver, port, pair })
    }

    /// The driver, to read counters.
    pub const fn driver_mut(&mut self) -> &mut Ernic<P> {
        &mut self.driver
    }
}

/// A peer's MAC address; waits for it.
fn mac_of<P: Platform + Resolve>(platform: &mut P, ip: IpAddr) -> Result<[u8; 6], EndpointError> {
    let until = Instant::now() + RESOLVE_TIMEOUT;
    loop {
        match platform.resolve(ip) {
            Resolution::Known(mac) => return Ok(mac),
            Resolution::NoRoute => {
                return Err(EndpointError::new(format!(
                    "{ip} is in no network of this port; give --address its prefix, or a --gateway"
                )));
            }
            Resolution::Asking if Instant::now() < until => platform.pause(),
            Resolution::Asking | Resolution::Unreachable => {
                return Err(EndpointError::new(platform.silence(ip)));
            }
        }
    }
}

impl<P: Platform + Resolve> Endpoint for ErnicEndpoint<P> {
    fn ability(&self) -> Ability {
        ABILITY
    }

    fn local(&self, ipv6: bool) -> Result<Local, EndpointError> {
        let ip = self.port.own_address(ipv6).map_err(EndpointError::new)?;
        let (va, rkey) = self.pair.region();
        // The only one after QP 1, which is for management.
        Ok(Local { ip, qpn: Qpn::new(2), va, rkey })
    }

    fn connect(&mut self, remote: &Remote) -> Result<(), EndpointError> {
        let ip = remote.ip.to_canonical();
        let mac = mac_of(self.driver.platform_mut(), ip)?;
        let driver = &mut self.driver;
        let mut config = self.pair.config()?;
        config.path_mtu = driver_mtu(remote.mtu);
        config.timeout = remote.timeout;
        config.retry_count = remote.retry;
        config.rnr_retry = remote.rnr_retry;
        let qp = self.pair.create(driver, &config)?;
        let peer = DriverRemote {
            mac,
            ip,
            qpn: remote.qpn.get(),
            send_psn: remote.send_psn.get(),
            receive_psn: remote.receive_psn.get(),
        };
        driver.connect_qp(qp, &peer).map_err(EndpointError::new)?;
        self.pair.peer = Some((remote.ip, remote.qpn));
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), EndpointError> {
        self.pair.write(&mut self.driver, offset, bytes)
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<(), EndpointError> {
        self.pair.read(&mut self.driver, offset, out)
    }

    fn post_receive(&mut self, offset: u64, len: u32) -> Result<(), EndpointError> {
        self.pair.post_receive(offset, len)
    }

    fn post(&mut self, transfer: &Transfer) -> Result<(), EndpointError> {
        self.pair.post(&mut self.driver, transfer)
    }

    fn wait(&mut self, timeout: Duration) -> Result<Option<Done>, EndpointError> {
        let until = Instant::now() + timeout;
        loop {
            if let Some(done) = self.pair.poll(&mut self.driver)? {
                return Ok(Some(done));
            }
            if Instant::now() >= until {
                let Some(why) = self.driver.platform_mut().trouble() else { return Ok(None) };
                return Err(EndpointError::new(format!("{}: {why}", self.pair.name())));
            }
            self.driver.platform_mut().pause();
        }
    }
}
