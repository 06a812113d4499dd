//! An endpoint that is an ERNIC, driven by its driver through registers and memory: the model on a thread of its own, or a card.
//!
//! ERNIC does not say how long a received message is, nor give immediate data to software here; whoever needs
//! them knows them from elsewhere.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use softrnic_device::ernic::{Ernic as Device, ErnicConfig, Profile};
use softrnic_device::{Memory, Nic, Ram};
use softrnic_driver::{
    Completion, DeviceConfig, DmaBuffer, DmaError, Ernic, Local as LocalBytes, Map, Opcode,
    PathMtu as DriverMtu, Platform, QpConfig, QpNumber, Region, RegionAccess, RegionConfig,
    Remote as DriverRemote, Request,
};
use softrnic_engine::{Nanos, PathMtu, Qpn};

use super::{Ability, Done, Endpoint, EndpointError, Local, Op, Remote, Transfer, connection};
use crate::clock::Clock;
use crate::link::Link;
use crate::owner::{Owned, Stopped};
use crate::pci::PciCard;
use crate::port::{PortConfig, Resolution};
use crate::setup::Setup;
use crate::station::Station;

/// First bus address of the model's memory.
const MEMORY_BASE: u64 = 0x1000_0000;
/// Memory beside the region, for queues and the device's buffers.
const QUEUES_LEN: usize = 64 << 20;
/// Protection domain of the region and the queue pair.
const PD: u32 = 1;
/// Requests and receives that can wait.
const DEPTH: u16 = 16;
/// How long neighbours may take to answer.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// READ requests that the device may have outstanding, and that it serves: a build parameter of ERNIC, 16 as seen. A peer
/// that is told less keeps less, and has nothing to answer from when more of them are asked for again.
const RD_ATOMIC: u8 = 16;
/// READ and WRITE addresses and lengths (PG332, "Unsupported Features"), rule D-30.
const GRANULARITY: u32 = 64;

/// The model on its thread, as the driver's platform. Register and memory accesses reach it in their order;
/// writes are posted, reads wait.
#[derive(Debug)]
pub struct Model {
    thread: Owned<Device, Ram>,
    next: u64,
    end: u64,
    /// Memory given back, by length: queue pairs of one kind come and go.
    free: Vec<DmaBuffer>,
}

impl Model {
    /// A model of a profile on a link, with `memory_len` bytes that it can reach.
    ///
    /// # Errors
    /// The operating system's: no thread, or no capture.
    pub fn start(
        setup: &Setup,
        link: Box<dyn Link>,
        profile: Profile,
        memory_len: usize,
    ) -> io::Result<Self> {
        let config =
            ErnicConfig { profile, vlan_tci: setup.port.vlan_tci, ..ErnicConfig::default() };
        let nic = Nic::ernic(config, Ram::new(MEMORY_BASE, memory_len));
        let clock = Clock::start();
        let station = setup.station(nic, link, &clock)?;
        let thread = Owned::start(station, clock, setup.capture.clone())?;
        let end = MEMORY_BASE + memory_len as u64;
        Ok(Self { thread, next: MEMORY_BASE, end, free: Vec::new() })
    }

    /// The thread, to look at the station.
    #[must_use]
    pub const fn thread(&self) -> &Owned<Device, Ram> {
        &self.thread
    }

    /// Ends the thread and its capture.
    ///
    /// # Errors
    /// The capture could not be written.
    pub fn stop(self) -> io::Result<()> {
        self.thread.stop()
    }
}

impl Platform for Model {
    fn read32(&mut self, offset: u32) -> u32 {
        // A device that is gone reads as all ones.
        self.thread.run(move |station, _| station.nic.read32(offset)).unwrap_or(u32::MAX)
    }

    fn write32(&mut self, offset: u32, value: u32) {
        // Writes to a device that is gone go nowhere.
        let _ = self.thread.post(move |station, _| station.nic.write32(offset, value));
    }

    fn dma_alloc(&mut self, len: usize, align: usize) -> Option<DmaBuffer> {
        let fits =
            |buffer: &DmaBuffer| buffer.len == len && buffer.bus.is_multiple_of(align as u64);
        let buffer = match self.free.iter().position(fits) {
            Some(at) => self.free.swap_remove(at),
            None => {
                let bus = self.next.checked_next_multiple_of(align as u64)?;
                let end = bus.checked_add(len as u64).filter(|end| *end <= self.end)?;
                self.next = end;
                DmaBuffer { bus, len }
            }
        };
        self.dma_write(buffer.bus, &vec![0; len]).ok()?;
        Some(buffer)
    }

    fn dma_free(&mut self, buffer: DmaBuffer) {
        self.free.push(buffer);
    }

    fn dma_read(&mut self, bus: u64, out: &mut [u8]) -> Result<(), DmaError> {
        let len = out.len();
        let error = DmaError { bus, len };
        let read = self.thread.run(move |station, _| {
            let mut bytes = vec![0; len];
            station.nic.memory.read(bus, &mut bytes).map(|()| bytes)
        });
        match read {
            Ok(Ok(bytes)) => {
                out.copy_from_slice(&bytes);
                Ok(())
            }
            Ok(Err(_)) | Err(Stopped) => Err(error),
        }
    }

    fn dma_write(&mut self, bus: u64, bytes: &[u8]) -> Result<(), DmaError> {
        let len = bytes.len();
        // Looked at here, because nobody waits for the answer.
        let end = bus.checked_add(len as u64);
        if bus < MEMORY_BASE || end.is_none_or(|end| end > self.end) {
            return Err(DmaError { bus, len });
        }
        let bytes = bytes.to_vec();
        let posted = self.thread.post(move |station, _| {
            let _ = station.nic.memory.write(bus, &bytes);
        });
        posted.map_err(|Stopped| DmaError { bus, len })
    }

    fn pause(&mut self) {
        std::thread::yield_now();
    }
}

/// How an endpoint finds a peer's MAC address.
pub trait Resolve {
    /// The MAC address for an IP address.
    ///
    /// # Errors
    /// Nobody answers.
    fn mac_of(&mut self, ip: IpAddr) -> Result<[u8; 6], EndpointError>;

    /// Why nothing comes any more, if that is known.
    fn trouble(&self) -> Option<String> {
        None
    }
}

impl Resolve for Model {
    fn mac_of(&mut self, ip: IpAddr) -> Result<[u8; 6], EndpointError> {
        let until = Instant::now() + RESOLVE_TIMEOUT;
        let resolve =
            move |station: &mut Station<Device, Ram>, now: Nanos| station.resolve(now, ip);
        loop {
            match self.thread.run(resolve).map_err(EndpointError::new)? {
                Resolution::Known(mac) => return Ok(mac),
                Resolution::NoRoute => {
                    return Err(EndpointError::new(format!(
                        "{ip} is in no network of this port; give --address its prefix, or a --gateway"
                    )));
                }
                Resolution::Asking if Instant::now() < until => std::thread::yield_now(),
                Resolution::Asking | Resolution::Unreachable => {
                    return Err(EndpointError::new(format!(
                        "nobody answers for {ip} on this link; is the peer up, and in the same network?"
                    )));
                }
            }
        }
    }

    fn trouble(&self) -> Option<String> {
        self.thread.link_down()
    }
}

/// A card as the driver's platform, with the neighbours that its program was told: the driver knows no ARP.
#[derive(Debug)]
pub struct Card {
    card: PciCard,
    neighbours: Vec<(IpAddr, [u8; 6])>,
}

impl Card {
    /// A card whose files are mapped.
    #[must_use]
    pub const fn new(card: PciCard, neighbours: Vec<(IpAddr, [u8; 6])>) -> Self {
        Self { card, neighbours }
    }
}

impl Platform for Card {
    fn read32(&mut self, offset: u32) -> u32 {
        self.card.read32(offset)
    }

    fn write32(&mut self, offset: u32, value: u32) {
        self.card.write32(offset, value);
    }

    fn dma_alloc(&mut self, len: usize, align: usize) -> Option<DmaBuffer> {
        self.card.dma_alloc(len, align)
    }

    fn dma_free(&mut self, buffer: DmaBuffer) {
        self.card.dma_free(buffer);
    }

    fn dma_read(&mut self, bus: u64, out: &mut [u8]) -> Result<(), DmaError> {
        self.card.dma_read(bus, out)
    }

    fn dma_write(&mut self, bus: u64, bytes: &[u8]) -> Result<(), DmaError> {
        self.card.dma_write(bus, bytes)
    }

    fn pause(&mut self) {
        self.card.pause();
    }
}

impl Resolve for Card {
    fn mac_of(&mut self, ip: IpAddr) -> Result<[u8; 6], EndpointError> {
        let known = self.neighbours.iter().find(|(neighbour, _)| *neighbour == ip);
        known.map(|&(_, mac)| mac).ok_or_else(|| {
            EndpointError::new(format!(
                "the MAC address of {ip} is not known, and a card does not ask; give --neighbour {ip}=MAC"
            ))
        })
    }
}

/// A queue pair of an ERNIC and its region.
#[derive(Debug)]
pub struct ErnicEndpoint<P: Platform> {
    driver: Ernic<P>,
    port: PortConfig,
    memory: DmaBuffer,
    region: Region,
    receive_max: u32,
    qp: Option<QpNumber>,
    peer: Option<Remote>,
    /// Where the messages of posted receives go.
    receives: VecDeque<(u64, u32)>,
    /// Receives that take no bytes.
    posted: u16,
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
        let map = if profile == Profile::V4_0_SILICON { Map::V4_0_SILICON } else { Map::V4_0 };
        let model = Model::start(setup, link, profile, memory_len).map_err(EndpointError::new)?;
        Self::over(model, map, setup.port.clone(), len, receive_max)
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
        let of_port = port.engine_port();
        let config = DeviceConfig {
            mac: port.mac,
            ipv4: of_port.ipv4,
            ipv6: of_port.ipv6,
            num_qps_enabled: 2,
            ..DeviceConfig::default()
        };
        let mut driver = Ernic::bring_up(platform, map, &config).map_err(EndpointError::new)?;
        let memory = driver.dma_alloc("region", len).map_err(EndpointError::new)?;
        let region = driver
            .register_region(&RegionConfig {
                pd: PD,
                va: memory.bus,
                bus: memory.bus,
                len: len as u64,
                access: RegionAccess::ReadWrite,
                key: 0x5A,
            })
            .map_err(EndpointError::new)?;
        Ok(Self {
            driver,
            port,
            memory,
            region,
            receive_max,
            qp: None,
            peer: None,
            receives: VecDeque::new(),
            posted: 0,
        })
    }

    /// The driver, to read counters.
    pub const fn driver_mut(&mut self) -> &mut Ernic<P> {
        &mut self.driver
    }

    fn at(&self, offset: u64, len: u64) -> Result<u64, EndpointError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.memory.len as u64 => Ok(self.memory.bus + offset),
            _ => Err(EndpointError::new(format!(
                "{len} bytes at {offset} are not in the region of {} bytes",
                self.memory.len
            ))),
        }
    }

    fn qp(&self) -> Result<QpNumber, EndpointError> {
        self.qp.ok_or_else(|| EndpointError::new("the queue pair is not connected"))
    }

    /// What ended, if something did.
    fn poll(&mut self) -> Result<Option<Done>, EndpointError> {
        let qp = self.qp()?;
        let mut done = [Completion::default()];
        if self.driver.poll_completions(qp, &mut done).map_err(EndpointError::new)? == 1 {
            return if done[0].failed {
                self.failed(qp).map(Some)
            } else {
                Ok(Some(Done::Request))
            };
        }
        let Some(received) = self.driver.poll_receive(qp).map_err(EndpointError::new)? else {
            return Ok(None);
        };
        let Some((offset, len)) = self.receives.pop_front() else {
            return Err(EndpointError::new("a message arrived that no receive was posted for"));
        };
        let mut bytes = vec![0; len.min(received.len_max) as usize];
        let platform = self.driver.platform_mut();
        platform.dma_read(received.bus, &mut bytes).map_err(EndpointError::new)?;
        platform.dma_write(self.memory.bus + offset, &bytes).map_err(EndpointError::new)?;
        self.driver.release_receive(qp, 1).map_err(EndpointError::new)?;
        Ok(Some(Done::Receive { len: None, immediate: None }))
    }

    /// In words, from the queue pair's status registers.
    fn failed(&mut self, qp: QpNumber) -> Result<Done, EndpointError> {
        let status = self.driver.status(qp).map_err(EndpointError::new)?;
        let what = format!(
            "{}: STATQP is {:#010x} (`rnic explain STATQP={:#x}` says what that means)",
            connection(qp, self.peer.as_ref()),
            status.statqp,
            status.statqp
        );
        Ok(Done::Failed { status: "general-error", what })
    }
}

/// Bytes of a receive element for messages of this length.
fn element_len(receive_max: u32) -> Result<u32, EndpointError> {
    let len = receive_max.max(256).checked_next_power_of_two();
    len.filter(|len| *len <= 8 << 20).ok_or_else(|| {
        EndpointError::new(format!("ERNIC receives at most 8 MiB, not {receive_max} bytes"))
    })
}

impl<P: Platform + Resolve> Endpoint for ErnicEndpoint<P> {
    fn ability(&self) -> Ability {
        Ability {
            face: "ernic",
            atomics: false,
            immediate: false,
            granularity: GRANULARITY,
            message_max: 8 << 20,
            rd_atomic_max: RD_ATOMIC,
        }
    }

    fn local(&self, ipv6: bool) -> Result<Local, EndpointError> {
        let ip = if ipv6 {
            self.port.ipv6.map(|(ip, _)| IpAddr::V6(ip))
        } else {
            self.port.ipv4.map(|(ip, _)| IpAddr::V4(ip))
        };
        let family = if ipv6 { "IPv6" } else { "IPv4" };
        let ip = ip.ok_or_else(|| {
            EndpointError::new(format!("this port has no {family} address; give --address"))
        })?;
        // The only one after QP 1, which is for management.
        let qpn = Qpn::new(2);
        Ok(Local { ip, qpn, va: self.region.va, rkey: self.region.rkey })
    }

    fn connect(&mut self, remote: &Remote) -> Result<(), EndpointError> {
        let path_mtu = match remote.mtu {
            PathMtu::M256 => DriverMtu::Mtu256,
            PathMtu::M512 => DriverMtu::Mtu512,
            PathMtu::M1024 => DriverMtu::Mtu1024,
            PathMtu::M2048 => DriverMtu::Mtu2048,
            PathMtu::M4096 => DriverMtu::Mtu4096,
        };
        let config = QpConfig {
            sq_depth: DEPTH,
            rq_depth: DEPTH,
            rq_element_len: element_len(self.receive_max)?,
            path_mtu,
            pd: PD,
            timeout: remote.timeout,
            retry_count: remote.retry,
            rnr_retry: remote.rnr_retry,
            rnr_timer: 12,
            ..QpConfig::default()
        };
        let ip = remote.ip.to_canonical();
        let mac = self.driver.platform_mut().mac_of(ip)?;
        if let Some(old) = self.qp.take() {
            self.driver.destroy_qp(old).map_err(EndpointError::new)?;
            self.receives.clear();
        }
        let qp = self.driver.create_qp(&config).map_err(EndpointError::new)?;
        let peer = DriverRemote {
            mac,
            ip,
            qpn: remote.qpn.get(),
            send_psn: remote.send_psn.get(),
            receive_psn: remote.receive_psn.get(),
        };
        self.driver.connect_qp(qp, &peer).map_err(EndpointError::new)?;
        (self.qp, self.peer) = (Some(qp), Some(*remote));
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), EndpointError> {
        let at = self.at(offset, bytes.len() as u64)?;
        self.driver.platform_mut().dma_write(at, bytes).map_err(EndpointError::new)
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<(), EndpointError> {
        let at = self.at(offset, out.len() as u64)?;
        self.driver.platform_mut().dma_read(at, out).map_err(EndpointError::new)
    }

    fn post_receive(&mut self, offset: u64, len: u32) -> Result<(), EndpointError> {
        self.at(offset, len.into())?;
        if len > self.receive_max {
            return Err(EndpointError::new(format!(
                "a receive of {len} bytes; this endpoint was made for {}",
                self.receive_max
            )));
        }
        self.receives.push_back((offset, len));
        Ok(())
    }

    fn post(&mut self, transfer: &Transfer) -> Result<(), EndpointError> {
        let qp = self.qp()?;
        let address = self.at(transfer.offset, transfer.len.into())?;
        let local = LocalBytes::Bus { address, len: transfer.len };
        let (opcode, immediate) = match transfer.op {
            Op::Send => (Opcode::Send, 0),
            Op::Write => (Opcode::Write, 0),
            Op::WriteImm(immediate) => (Opcode::WriteImm, immediate),
            Op::Read => (Opcode::Read, 0),
            Op::FetchAdd(_) | Op::CompareSwap { .. } => {
                return Err(EndpointError::new("ERNIC has no atomics"));
            }
        };
        let request = Request {
            wrid: self.posted,
            opcode,
            local,
            remote_va: transfer.remote_va,
            rkey: transfer.rkey,
            immediate,
        };
        self.posted = self.posted.wrapping_add(1);
        self.driver.post(qp, &request).map_err(EndpointError::new)?;
        self.driver.ring(qp).map_err(EndpointError::new)
    }

    fn wait(&mut self, timeout: Duration) -> Result<Option<Done>, EndpointError> {
        let until = Instant::now() + timeout;
        loop {
            if let Some(done) = self.poll()? {
                return Ok(Some(done));
            }
            if Instant::now() >= until {
                let Some(why) = self.driver.platform_mut().trouble() else { return Ok(None) };
                let connection = connection(self.qp()?, self.peer.as_ref());
                return Err(EndpointError::new(format!("{connection}: {why}")));
            }
            self.driver.platform_mut().pause();
        }
    }
}
