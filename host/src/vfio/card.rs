//! A NIC with 32-bit registers as a PCI function: registers in one BAR, MSI-X in another, and memory of the
//! card's own, if there is some, in a third. What differs between our ERNIC and RecoNIC's card around one
//! is behind [`Registers`].

use softrnic_device::ernic::{Location, Map};
use softrnic_device::pci::{
    Bar, BarError, ConfigSpace, ERNIC_BAR, ERNIC_IDENTITY, MEMORY_BAR, MSIX_BAR, MSIX_BAR_LEN,
    MsixTable,
};
use softrnic_device::{Memory, Nic, Ram, ernic};
use softrnic_engine::{Engine, Reason};

use super::{Function, GuestMemory, RegisterTrace};

/// An ERNIC in guest memory.
pub type Ernic = Nic<ernic::Ernic, GuestMemory>;

/// A NIC as its driver sees it.
pub trait Registers {
    /// Bytes of the registers' BAR: a power of two.
    fn bar_len(&self) -> u32;
    /// Reads a register; the offset is a multiple of 4.
    fn read32(&mut self, offset: u32) -> u32;
    /// Writes a register; the offset is a multiple of 4.
    fn write32(&mut self, offset: u32, value: u32);
    /// The level of the interrupt line.
    fn interrupt(&self) -> bool;
    /// Power-on state.
    fn reset(&mut self);
    /// The engine, which counts refused accesses.
    fn engine_mut(&mut self) -> &mut Engine;
    /// Faults met in queues and memory, by reason.
    fn faults(&self) -> &[u64; Reason::COUNT];
    /// What is at an offset, for people.
    ///
    /// # Errors
    /// Nothing that the register table knows, but this.
    fn locate(&self, offset: u32) -> Result<(Map, Location), &'static str>;
    /// The guest's memory.
    fn memory_mut(&mut self) -> &mut GuestMemory;
    /// Memory of the card's own, from address 0: a BAR shows all of it.
    fn card_memory(&mut self) -> Option<&mut Ram> {
        None
    }
}

impl Registers for Ernic {
    fn bar_len(&self) -> u32 {
        self.device.map().profile.map_len.next_power_of_two()
    }

    fn read32(&mut self, offset: u32) -> u32 {
        self.read32(offset)
    }

    fn write32(&mut self, offset: u32, value: u32) {
        self.write32(offset, value);
    }

    fn interrupt(&self) -> bool {
        self.interrupt()
    }

    fn reset(&mut self) {
        self.reset();
    }

    fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }

    fn faults(&self) -> &[u64; Reason::COUNT] {
        self.device.faults()
    }

    fn locate(&self, offset: u32) -> Result<(Map, Location), &'static str> {
        let map = self.device.map();
        map.locate(offset).map(|at| (map, at)).ok_or("nothing is listed here")
    }

    fn memory_mut(&mut self) -> &mut GuestMemory {
        &mut self.memory
    }
}

impl<R: Registers> Registers for &mut R {
    fn bar_len(&self) -> u32 {
        (**self).bar_len()
    }

    fn read32(&mut self, offset: u32) -> u32 {
        (**self).read32(offset)
    }

    fn write32(&mut self, offset: u32, value: u32) {
        (**self).write32(offset, value);
    }

    fn interrupt(&self) -> bool {
        (**self).interrupt()
    }

    fn reset(&mut self) {
        (**self).reset();
    }

    fn engine_mut(&mut self) -> &mut Engine {
        (**self).engine_mut()
    }

    fn faults(&self) -> &[u64; Reason::COUNT] {
        (**self).faults()
    }

    fn locate(&self, offset: u32) -> Result<(Map, Location), &'static str> {
        (**self).locate(offset)
    }

    fn memory_mut(&mut self) -> &mut GuestMemory {
        (**self).memory_mut()
    }

    fn card_memory(&mut self) -> Option<&mut Ram> {
        (**self).card_memory()
    }
}

/// What PCI adds to a card.
#[derive(Debug)]
pub struct PciState {
    config: ConfigSpace,
    msix: MsixTable,
    trace: Option<RegisterTrace>,
}

impl PciState {
    /// Writes down every register access from now on.
    pub fn set_trace(&mut self, trace: RegisterTrace) {
        self.trace = Some(trace);
    }

    /// For a card, as ERNIC presents itself.
    ///
    /// # Errors
    /// The size of its registers or of its memory cannot be a BAR's.
    pub fn new(card: &mut impl Registers) -> Result<Self, BarError> {
        let mut bars = vec![
            Bar { index: MSIX_BAR, len: MSIX_BAR_LEN },
            Bar { index: ERNIC_BAR, len: card.bar_len() },
        ];
        if let Some(memory) = card.card_memory() {
            let len = u32::try_from(memory.bytes().len()).unwrap_or(u32::MAX);
            bars.push(Bar { index: MEMORY_BAR, len });
        }
        let config = ConfigSpace::new(ERNIC_IDENTITY, &bars)?;
        Ok(Self { config, msix: MsixTable::default(), trace: None })
    }
}

/// A card on PCI, for the time of a call: who owns the card is not asked.
#[derive(Debug)]
pub struct CardFunction<'a, R> {
    /// The card.
    pub card: &'a mut R,
    /// What PCI adds.
    pub pci: &'a mut PciState,
}

impl<R: Registers> CardFunction<'_, R> {
    /// Whether an access is made of whole words. Wider ones are several, as a bridge to a 32-bit bus makes
    /// them; anything else reads 0, changes nothing, and is counted: every driver uses words, and nothing
    /// is known of byte strobes.
    fn words(&mut self, bar: usize, offset: u32, len: usize) -> bool {
        let whole = offset.is_multiple_of(4) && len.is_multiple_of(4);
        if !whole && bar == ERNIC_BAR {
            self.card.engine_mut().count_refused(Reason::RegisterAlignment);
        }
        whole
    }
}

impl<R: Registers> Function for CardFunction<'_, R> {
    fn config(&self) -> &ConfigSpace {
        &self.pci.config
    }

    fn config_mut(&mut self) -> &mut ConfigSpace {
        &mut self.pci.config
    }

    fn memory_mut(&mut self) -> &mut GuestMemory {
        self.card.memory_mut()
    }

    fn read(&mut self, bar: usize, offset: u32, out: &mut [u8]) {
        if bar == MEMORY_BAR {
            let memory = self.card.card_memory();
            if memory.and_then(|memory| memory.read(offset.into(), out).ok()).is_none() {
                out.fill(0);
            }
            return;
        }
        if !self.words(bar, offset, out.len()) {
            out.fill(0);
            return;
        }
        for (at, word) in (offset..).step_by(4).zip(out.as_chunks_mut().0) {
            let value = match bar {
                ERNIC_BAR => match &mut self.pci.trace {
                    Some(trace) => trace.read32(&mut *self.card, at),
                    None => self.card.read32(at),
                },
                _ => self.pci.msix.read32(at),
            };
            *word = value.to_le_bytes();
        }
    }

    fn write(&mut self, bar: usize, offset: u32, bytes: &[u8]) {
        if bar == MEMORY_BAR {
            // All of the range is memory: the BAR is as long as it.
            let _ = self.card.card_memory().map(|memory| memory.write(offset.into(), bytes));
            return;
        }
        if !self.words(bar, offset, bytes.len()) {
            return;
        }
        for (at, word) in (offset..).step_by(4).zip(bytes.as_chunks().0) {
            let value = u32::from_le_bytes(*word);
            match bar {
                ERNIC_BAR => match &mut self.pci.trace {
                    Some(trace) => trace.write32(&mut *self.card, at, value),
                    None => self.card.write32(at, value),
                },
                _ => self.pci.msix.write32(at, value),
            }
        }
    }

    fn interrupt(&self) -> bool {
        self.card.interrupt()
    }

    fn set_pending(&mut self, vector: usize, pending: bool) {
        self.pci.msix.set_pending(vector, pending);
    }

    fn reset(&mut self) {
        self.card.reset();
        self.pci.msix = MsixTable::default();
    }
}
