//! A NIC on a link, as programs open it: [`Context`] starts the thread that owns it and is the way to ask it.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::path::{Path as FilePath, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use softrnic_device::Nic as DeviceNic;
use softrnic_device::verbs::{AsyncEvent, Verbs};
use softrnic_engine::{Nanos, Path, PathMtu, REASON_ROWS};
use softrnic_sim::DeviceState;
use softrnic_sim::fault::Injector;

use super::buffer::SharedMemory;
use super::cq::{CompletionChannel, Cq};
use super::domain::Pd;
use super::doorbell::Doorbells;
use super::error::Error;
use super::nic::{Call, Nic};
use crate::clock::Clock;
use crate::link::{Link, LinkCounters};
use crate::port::{HostPort, PortConfig, PortCounters};
use crate::setup::{Setup, fit};
use crate::station::{FaultCounters, Station};

/// Events that wait for the program at most; further ones are counted.
const EVENTS_MAX: usize = 4096;

/// How a NIC is started.
#[derive(Debug)]
pub struct Options {
    /// Its name, for people.
    pub name: String,
    /// The port's addresses.
    pub port: PortConfig,
    /// Where every frame is recorded.
    pub capture: Option<PathBuf>,
    /// Faults that happen from the beginning.
    pub faults: Option<Injector>,
    /// How long the NIC's thread and [`Cq::wait`] look for work before they sleep.
    pub spin: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: "rnic0".into(),
            port: PortConfig::default(),
            capture: None,
            faults: None,
            spin: Duration::from_micros(50),
        }
    }
}

/// Something that happened to a NIC.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// To one of its objects (`ibv_async_event`).
    Async(AsyncEvent),
    /// The link went away. Timers go on: work of connected queue pairs ends in errors.
    LinkDown {
        /// Which.
        link: String,
        /// Why.
        why: String,
    },
    /// There is a link again.
    LinkUp {
        /// Which.
        link: String,
    },
    /// The NIC's thread has ended.
    Stopped,
}

/// What a NIC did, of all its parts.
#[derive(Clone, Debug)]
pub struct Counters {
    /// The transport's, over all queue pairs.
    pub engine: softrnic_engine::Counters,
    /// What was refused, by reason, those that are not 0.
    pub refused: BTreeMap<&'static str, u64>,
    /// The link's.
    pub link: LinkCounters,
    /// The host's side of the port.
    pub port: PortCounters,
    /// What fault rules did.
    pub faults: FaultCounters,
    /// Events that nobody took and that were dropped.
    pub events_lost: u64,
}

#[derive(Debug, Default)]
pub(super) struct Events {
    waiting: Mutex<VecDeque<Event>>,
    arrived: Condvar,
    lost: AtomicU64,
}

impl Events {
    pub(super) fn push(&self, event: Event) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() < EVENTS_MAX || event == Event::Stopped {
            waiting.push_back(event);
            self.arrived.notify_one();
        } else {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn take(&self, timeout: Duration) -> Option<Event> {
        let start = Instant::now();
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(event) = waiting.pop_front() {
                return Some(event);
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return None;
            }
            let woken = self.arrived.wait_timeout(waiting, left);
            waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// What programs and the NIC's thread both see.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) doorbells: Doorbells,
    pub(super) events: Events,
}

#[derive(Debug)]
pub(super) struct Inner {
    shared: Arc<Shared>,
    calls: Sender<Call>,
    thread: Mutex<Option<JoinHandle<()>>>,
    thread_id: ThreadId,
    next_id: AtomicU64,
    name: String,
    port: PortConfig,
    mtu: u16,
    spin: Duration,
}

impl Inner {
    pub(super) fn doorbells(&self) -> &Doorbells {
        &self.shared.doorbells
    }

    pub(super) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Does something on the NIC's thread and waits for it.
    pub(super) fn call<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Nic) -> R + Send + 'static,
    ) -> Result<R, Error> {
        let (reply, answer) = sync_channel(1);
        self.send(Call::Run(Box::new(move |nic| {
            // Whoever asked waits for it.
            let _ = reply.send(work(nic));
        })))?;
        answer.recv().map_err(|_| Error::Stopped)
    }

    fn send(&self, call: Call) -> Result<(), Error> {
        if thread::current().id() == self.thread_id {
            return Err(Error::OnNicThread);
        }
        self.calls.send(call).map_err(|_| Error::Stopped)?;
        self.shared.doorbells.call();
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let _ = self.calls.send(Call::Stop);
        self.shared.doorbells.call();
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // The last handle may go on the thread itself, with a call that held it.
        if let Some(thread) = thread.filter(|_| thread::current().id() != self.thread_id)
            && thread.join().is_err()
        {
            tracing::error!("the thread of {} has panicked", self.name);
        }
    }
}

/// An open NIC (`ibv_context`). A clone is the same NIC; it stops when the last object on it is gone.
#[derive(Clone, Debug)]
pub struct Context(pub(super) Arc<Inner>);

impl Context {
    /// Opens a link and starts a NIC on it, as flags or a configuration say.
    ///
    /// # Errors
    /// The link or the capture cannot be opened, or there is no thread.
    pub fn open(name: &str, mut setup: Setup) -> Result<Self, Error> {
        let link = setup.open_link()?;
        let options = Options {
            name: name.into(),
            port: setup.port,
            capture: setup.capture,
            faults: Some(Injector::new(setup.faults, setup.seed)),
            ..Options::default()
        };
        Self::over(link, options)
    }

    /// Starts a NIC on a link.
    ///
    /// # Errors
    /// The capture cannot be opened, or there is no thread.
    pub fn over(link: Box<dyn Link>, options: Options) -> Result<Self, Error> {
        let Options { name, mut port, capture, faults, spin } = options;
        fit(&mut port, &link.limits());
        let mtu = port.mtu;
        let clock = Clock::start();
        let nic = DeviceNic::verbs(port.engine_port(), SharedMemory::default());
        let mut station = Station::new(nic, link, HostPort::new(port.clone()));
        if let Some(path) = &capture {
            let started = station.start_capture(path, clock.since_1970_ns());
            started.map_err(|error| Error::os("opening the capture", error))?;
        }
        if let Some(faults) = faults {
            station.set_faults(faults);
        }
        let shared = Arc::new(Shared { doorbells: Doorbells::new()?, events: Events::default() });
        let (calls, receiver) = channel();
        let nic = Nic::new(station, clock, shared.clone(), spin);
        let thread = thread::Builder::new()
            .name(name.clone())
            .spawn(move || nic.run(&receiver))
            .map_err(|error| Error::os("starting the NIC's thread", error))?;
        let thread_id = thread.thread().id();
        Ok(Self(Arc::new(Inner {
            shared,
            calls,
            thread: Mutex::new(Some(thread)),
            thread_id,
            next_id: AtomicU64::new(1),
            name,
            port,
            mtu,
            spin,
        })))
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The port's addresses.
    #[must_use]
    pub fn port(&self) -> &PortConfig {
        &self.0.port
    }

    /// The port's own address of a peer's family.
    #[must_use]
    pub fn address_for(&self, peer: IpAddr) -> Option<IpAddr> {
        match peer {
            IpAddr::V4(_) => self.0.port.ipv4.map(|(ip, _)| ip.into()),
            IpAddr::V6(_) => self.0.port.ipv6.map(|(ip, _)| ip.into()),
        }
    }

    /// Longest IP packet, in bytes.
    #[must_use]
    pub fn mtu(&self) -> u16 {
        self.0.mtu
    }

    /// Largest path MTU whose packets fit the link, whatever headers they have.
    #[must_use]
    pub fn max_path_mtu(&self, peer: IpAddr) -> PathMtu {
        // UDP, BTH, RETH with immediate, ICRC (rules F-01 to F-20).
        let headers = 8 + 12 + 16 + 4 + 4 + if peer.is_ipv4() { 20 } else { 40 };
        let fits = |mtu: &&PathMtu| mtu.bytes() + headers <= u32::from(self.0.mtu);
        PathMtu::ALL.iter().rev().find(fits).copied().unwrap_or(PathMtu::M256)
    }

    /// Allocates a protection domain (`ibv_alloc_pd`).
    ///
    /// # Errors
    /// All are taken.
    pub fn alloc_pd(&self) -> Result<Pd, Error> {
        Pd::create(&self.0)
    }

    /// Creates a completion queue that holds `depth` completions at least (`ibv_create_cq`).
    ///
    /// # Errors
    /// The depth is 0 or above 2^22, or there is no memory or file descriptor.
    pub fn create_cq(&self, depth: u32) -> Result<Cq, Error> {
        Cq::create(&self.0, depth, None, self.0.spin)
    }

    /// As [`Context::create_cq`], with a channel on which it announces completions.
    ///
    /// # Errors
    /// As [`Context::create_cq`].
    pub fn create_cq_on(&self, depth: u32, channel: &CompletionChannel) -> Result<Cq, Error> {
        Cq::create(&self.0, depth, Some(channel), self.0.spin)
    }

    /// Creates a completion channel (`ibv_create_comp_channel`).
    ///
    /// # Errors
    /// There is no file descriptor.
    pub fn create_channel(&self) -> Result<CompletionChannel, Error> {
        CompletionChannel::create()
    }

    /// Finds out a peer's MAC address, or that of the gateway on the way to it.
    ///
    /// # Errors
    /// Nobody answers in time, or there is no way to it.
    pub fn resolve(&self, ip: IpAddr, timeout: Duration) -> Result<[u8; 6], Error> {
        let (reply, answer) = sync_channel(1);
        self.0.send(Call::Resolve { ip, timeout, reply })?;
        answer.recv().map_err(|_| Error::Stopped)?
    }

    /// The path to a peer: its MAC address, and defaults for the rest.
    ///
    /// # Errors
    /// As [`Context::resolve`].
    pub fn path_to(&self, ip: IpAddr, timeout: Duration) -> Result<Path, Error> {
        Ok(Path { dest_mac: self.resolve(ip, timeout)?, dest_ip: ip, ..Path::default() })
    }

    /// Waits for the next event (`ibv_get_async_event`); `None` when the time is over.
    #[must_use]
    pub fn get_event(&self, timeout: Duration) -> Option<Event> {
        self.0.shared.events.take(timeout)
    }

    /// What it did.
    ///
    /// # Errors
    /// The NIC has stopped.
    pub fn counters(&self) -> Result<Counters, Error> {
        let events_lost = self.0.shared.events.lost.load(Ordering::Relaxed);
        self.0.call(move |nic| {
            let station = &nic.station;
            let engine = &station.nic.engine;
            let refused =
                REASON_ROWS.iter().zip(engine.refused()).filter(|(_, count)| **count != 0);
            Counters {
                engine: engine.counters(),
                refused: refused.map(|(row, count)| (row.name, *count)).collect(),
                link: station.link().counters(),
                port: station.port().counters(),
                faults: station.fault_counters(),
                events_lost,
            }
        })
    }

    /// What it looks like now, for `rnic show`.
    ///
    /// # Errors
    /// The NIC has stopped.
    pub fn device_state(&self) -> Result<DeviceState, Error> {
        let name = self.0.name.clone();
        self.0.call(move |nic| DeviceState::of_verbs(&name, &nic.station.nic))
    }

    /// From now on these faults happen.
    ///
    /// # Errors
    /// The NIC has stopped.
    pub fn set_faults(&self, faults: Injector) -> Result<(), Error> {
        self.0.call(move |nic| nic.station.set_faults(faults))
    }

    /// Records every frame from now on.
    ///
    /// # Errors
    /// The file cannot be made, or the NIC has stopped.
    pub fn start_capture(&self, path: &FilePath) -> Result<(), Error> {
        let path = path.to_owned();
        let started =
            self.0.call(move |nic| nic.station.start_capture(&path, nic.clock.since_1970_ns()))?;
        started.map_err(|error| Error::os("opening the capture", error))
    }

    /// Ends the capture, so that the file is complete.
    ///
    /// # Errors
    /// Writing it failed, or the NIC has stopped.
    pub fn stop_capture(&self) -> Result<(), Error> {
        let stopped = self.0.call(|nic| nic.station.stop_capture())?;
        stopped.map_err(|error| Error::os("writing the capture", error))
    }

    /// Takes another link, for example after [`Event::LinkDown`].
    ///
    /// # Errors
    /// The NIC has stopped.
    pub fn replace_link(&self, link: Box<dyn Link>) -> Result<(), Error> {
        self.0.call(move |nic| nic.replace_link(link))
    }

    /// Does something with the station on the NIC's thread, between two turns. It must not wait: nothing moves
    /// meanwhile.
    ///
    /// # Errors
    /// The NIC has stopped.
    pub fn with_station<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Station<Verbs, SharedMemory>, Nanos) -> R + Send + 'static,
    ) -> Result<R, Error> {
        self.0.call(move |nic| {
            let now = nic.now();
            work(&mut nic.station, now)
        })
    }
}
