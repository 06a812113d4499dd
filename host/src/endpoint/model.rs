//! What the ERNIC driver runs on: the model on a thread of its own, or a card.

use std::io;
use std::net::IpAddr;

use softrnic_device::ernic::{Ernic as Device, ErnicConfig, Profile};
use softrnic_device::{Memory, Nic, Ram};
use softrnic_driver::{DmaBuffer, DmaError, Platform};

use crate::clock::Clock;
use crate::link::Link;
use crate::owner::{Owned, Stopped};
use crate::pci::PciCard;
use crate::port::{Resolution, Resolve};
use crate::setup::Setup;

/// First bus address of the model's memory.
const MEMORY_BASE: u64 = 0x1000_0000;

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

impl Resolve for Model {
    fn resolve(&mut self, ip: IpAddr) -> Resolution {
        let resolved = self.thread.run(move |station, now| station.resolve(now, ip));
        resolved.unwrap_or(Resolution::Unreachable)
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
    fn resolve(&mut self, ip: IpAddr) -> Resolution {
        let known = self.neighbours.iter().find(|(neighbour, _)| *neighbour == ip);
        known.map_or(Resolution::Unreachable, |&(_, mac)| Resolution::Known(mac))
    }

    fn silence(&self, ip: IpAddr) -> String {
        format!(
            "the MAC address of {ip} is not known, and a card does not ask; give --neighbour {ip}=MAC"
        )
    }
}
