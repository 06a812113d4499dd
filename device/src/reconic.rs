//! AMD's RecoNIC card as its user library sees it: an ERNIC v3.1 inside of a PCI BAR, address windows to
//! host memory, memory of the card's own, and packet statistics.
//!
//! | BAR offset | what |
//! |---|---|
//! | 0x01_6420 | eight windows of the DMA bridge, 0x20 bytes each |
//! | 0x04_0000 | ERNIC, 256 KiB |
//! | 0x10_0000 | packet classifier's table: reads 0, not writable |
//! | 0x10_2000 | version, packet statistics, a scratch register |
//!
//! Facts: RecoNIC at commit c8b78493, `lib/reconic_reg.h`, `lib/reconic.c` and the shell's register block.
//! Its compute logic is not here. Knows no ERNIC register.

use softrnic_engine::{Nanos, Reason, Room, Rx, Train, Verdict};

use crate::ernic::{Ernic, ErnicConfig, Profile};
use crate::memory::{DmaFault, Memory};
use crate::nic::Nic;

/// Bytes of the BAR that the library maps.
pub const BAR_LEN: u32 = 0x40_0000;
/// Where ERNIC's registers begin.
pub const ERNIC_BASE: u32 = 0x4_0000;
const ERNIC_END: u32 = 0x8_0000;
const WINDOWS_BASE: u32 = 0x1_6420;
const WINDOW_STRIDE: u32 = 0x20;
const WINDOWS_END: u32 = WINDOWS_BASE + 8 * WINDOW_STRIDE;
const STATISTICS_BASE: u32 = 0x10_2000;
const STATISTICS_END: u32 = 0x10_3000;
const VERSION: u32 = 0x1108_2022;
/// What the shell answers where its register block has nothing.
const NOTHING_THERE: u32 = 0xDEED_BEEF;

/// The card's own memory is at addresses with this tag in their upper 12 bits.
pub const DEVICE_MEMORY: u64 = 0xA350_0000_0000_0000;
const TAG: u64 = 0xFFF0_0000_0000_0000;

/// Host addresses of 40 bits go through the windows, an eighth each.
const HOST_LEN: u64 = 1 << 40;
const WINDOW_SHIFT: u32 = 37;
const PAGE_LEN: u64 = 4096;

/// One window: host addresses become bus addresses by another base.
#[derive(Clone, Copy, Default, Debug)]
struct Window {
    low: u32,
    high: u32,
    pasid: u32,
    function: u32,
    /// \[31:30\] may be written and read; \[25:0\] size in 4 KiB pages.
    control: u32,
    reserved: u32,
}

impl Window {
    fn word(&mut self, word: u32) -> Option<&mut u32> {
        Some(match word {
            0 => &mut self.low,
            1 => &mut self.high,
            2 => &mut self.pasid,
            3 => &mut self.function,
            4 => &mut self.control,
            5 => &mut self.reserved,
            _ => return None,
        })
    }

    /// The bus address of `len` bytes at an offset in the window.
    fn bus(&self, offset: u64, len: usize, write: bool) -> Option<u64> {
        let allowed = self.control >> if write { 31 } else { 30 } & 1 != 0;
        let size = u64::from(self.control & 0x03FF_FFFF) * PAGE_LEN;
        let inside = offset.checked_add(len as u64).is_some_and(|end| end <= size);
        let base = u64::from(self.high) << 32 | u64::from(self.low);
        (allowed && inside).then_some(base.wrapping_add(offset))
    }
}

/// Memory as the card's ERNIC reaches it: host memory `H` through windows, and the card's own `D`.
#[derive(Debug)]
pub struct CardMemory<H, D> {
    /// Host memory, by bus address.
    pub host: H,
    /// The card's memory, from address 0.
    pub card: D,
    windows: [Window; 8],
}

impl<H, D> CardMemory<H, D> {
    /// No window maps anything yet.
    #[must_use]
    pub fn new(host: H, card: D) -> Self {
        Self { host, card, windows: [Window::default(); 8] }
    }

    /// Which memory it is, and the address there.
    fn place(&self, address: u64, len: usize, write: bool) -> Result<(bool, u64), DmaFault> {
        if address & TAG == DEVICE_MEMORY {
            return Ok((true, address & !TAG));
        }
        let window = usize::try_from(address >> WINDOW_SHIFT).ok().filter(|_| address < HOST_LEN);
        let window = window.and_then(|window| self.windows.get(window));
        let offset = address & ((1 << WINDOW_SHIFT) - 1);
        let bus = window.and_then(|window| window.bus(offset, len, write));
        bus.map(|bus| (false, bus)).ok_or(DmaFault { address, len })
    }
}

impl<H: Memory, D: Memory> Memory for CardMemory<H, D> {
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), DmaFault> {
        match self.place(address, out.len(), false)? {
            (true, at) => self.card.read(at, out),
            (false, at) => self.host.read(at, out),
        }
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), DmaFault> {
        match self.place(address, bytes.len(), true)? {
            (true, at) => self.card.write(at, bytes),
            (false, at) => self.host.write(at, bytes),
        }
    }
}

/// Frames received, RoCE and others: each once cleared by reading it, and once not.
#[derive(Clone, Copy, Default, Debug)]
struct Statistics {
    roce: u64,
    roce_ever: u64,
    other: u64,
    other_ever: u64,
    scratch: u32,
}

impl Statistics {
    fn read(&mut self, offset: u32) -> u32 {
        match offset {
            0x00 => VERSION,
            // No counter has overflowed.
            0x04 => 0,
            0x08 => take_high(&mut self.roce),
            0x0C => take_low(&mut self.roce),
            0x10 => (self.roce_ever >> 32) as u32,
            0x14 => self.roce_ever as u32,
            0x18 => take_high(&mut self.other),
            0x1C => take_low(&mut self.other),
            0x20 => (self.other_ever >> 32) as u32,
            0x24 => self.other_ever as u32,
            0x200 => self.scratch,
            _ => NOTHING_THERE,
        }
    }
}

const fn take_high(counter: &mut u64) -> u32 {
    let high = *counter >> 32;
    *counter &= 0xFFFF_FFFF;
    high as u32
}

const fn take_low(counter: &mut u64) -> u32 {
    let low = *counter as u32;
    *counter &= !0xFFFF_FFFF;
    low
}

/// What is around the ERNIC in the card's BAR.
#[derive(Clone, Copy, Default, Debug)]
pub struct Shell {
    statistics: Statistics,
}

impl Shell {
    /// Power-on state of shell and ERNIC, but for the card's memory and what was counted as refused.
    pub fn reset<H: Memory, D: Memory>(&mut self, nic: &mut Nic<Ernic, CardMemory<H, D>>) {
        nic.reset();
        nic.memory.windows = [Window::default(); 8];
        self.statistics = Statistics::default();
    }

    /// Reads a word of the BAR.
    pub fn read32<H: Memory, D: Memory>(
        &mut self,
        nic: &mut Nic<Ernic, CardMemory<H, D>>,
        offset: u32,
    ) -> u32 {
        match offset {
            ERNIC_BASE..ERNIC_END => nic.read32(offset - ERNIC_BASE),
            STATISTICS_BASE..STATISTICS_END => self.statistics.read(offset - STATISTICS_BASE),
            _ => match window(&mut nic.memory, offset) {
                Some(word) => *word,
                None => {
                    nic.engine.count_refused(Reason::RegisterUnlisted);
                    0
                }
            },
        }
    }

    /// Writes a word of the BAR.
    pub fn write32<H: Memory, D: Memory>(
        &mut self,
        nic: &mut Nic<Ernic, CardMemory<H, D>>,
        offset: u32,
        value: u32,
    ) {
        match offset {
            ERNIC_BASE..ERNIC_END => nic.write32(offset - ERNIC_BASE, value),
            STATISTICS_BASE..STATISTICS_END if offset == STATISTICS_BASE + 0x200 => {
                self.statistics.scratch = value;
            }
            STATISTICS_BASE..STATISTICS_END => {
                nic.engine.count_refused(Reason::RegisterReadOnly);
            }
            _ => match window(&mut nic.memory, offset) {
                Some(word) => *word = value,
                None => nic.engine.count_refused(Reason::RegisterUnlisted),
            },
        }
    }

    /// Frames have come, RoCE and others, since the last call.
    pub fn count(&mut self, roce: u64, other: u64) {
        let statistics = &mut self.statistics;
        for counter in [&mut statistics.roce, &mut statistics.roce_ever] {
            *counter = counter.wrapping_add(roce);
        }
        for counter in [&mut statistics.other, &mut statistics.other_ever] {
            *counter = counter.wrapping_add(other);
        }
    }

    /// What is at an offset: the ERNIC's own offset, or a name.
    ///
    /// # Errors
    /// It is not the ERNIC's, but this.
    pub const fn place(offset: u32) -> Result<u32, &'static str> {
        match offset {
            ERNIC_BASE..ERNIC_END => Ok(offset - ERNIC_BASE),
            STATISTICS_BASE..STATISTICS_END => Err("the card's version and statistics"),
            WINDOWS_BASE..WINDOWS_END => Err("a window of the card's DMA bridge"),
            _ => Err("nothing of the card"),
        }
    }
}

fn window<H, D>(memory: &mut CardMemory<H, D>, offset: u32) -> Option<&mut u32> {
    let at = offset.checked_sub(WINDOWS_BASE).filter(|at| at.is_multiple_of(4))?;
    let window = memory.windows.get_mut((at / WINDOW_STRIDE) as usize)?;
    window.word(at % WINDOW_STRIDE / 4)
}

/// The card with its ERNIC.
#[derive(Debug)]
pub struct Reconic<H, D> {
    /// Its ERNIC. Frames come and go through the card, or the statistics miss them.
    pub nic: Nic<Ernic, CardMemory<H, D>>,
    shell: Shell,
}

/// The card's ERNIC: version 3.1, with 32 queue pair numbers as RecoNIC is built.
#[must_use]
pub fn config() -> ErnicConfig {
    ErnicConfig { profile: Profile::V3_1, num_qp: 32, ..ErnicConfig::default() }
}

impl<H: Memory, D: Memory> Reconic<H, D> {
    /// A card after power-on. Windows map nothing yet.
    #[must_use]
    pub fn new(host: H, card: D) -> Self {
        let nic = Nic::ernic(config(), CardMemory::new(host, card));
        Self { nic, shell: Shell::default() }
    }

    /// [`Shell::reset`].
    pub fn reset(&mut self) {
        self.shell.reset(&mut self.nic);
    }

    /// [`Shell::read32`].
    pub fn read32(&mut self, offset: u32) -> u32 {
        self.shell.read32(&mut self.nic, offset)
    }

    /// [`Shell::write32`].
    pub fn write32(&mut self, offset: u32, value: u32) {
        self.shell.write32(&mut self.nic, offset, value);
    }

    /// A frame arrived.
    pub fn handle_frame(&mut self, now: Nanos, frame: &[u8], rx: Rx) -> Verdict {
        let verdict = self.nic.handle_frame(now, frame, rx);
        let other = matches!(verdict.refused, Some(Reason::NotRoce | Reason::OtherBufferFull));
        self.shell.count((!other).into(), other.into());
        verdict
    }

    /// The link can take a frame.
    pub fn poll_transmit(&mut self, now: Nanos, room: &mut Room<'_>) -> Option<Train> {
        self.nic.poll_transmit(now, room)
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Nanos) {
        self.nic.handle_timeout(now);
    }

    /// When [`Reconic::handle_timeout`] should be called next.
    pub fn next_deadline(&mut self) -> Option<Nanos> {
        self.nic.next_deadline()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ram;

    #[test]
    fn windows_map_an_eighth_of_a_terabyte_each_and_allow_what_they_say() {
        let mut card = Reconic::new(Ram::new(0x21_0000_0000, 0x2000), Ram::new(0, 0x1000));
        let address = 1 << WINDOW_SHIFT;
        assert!(card.nic.memory.read_u32(address).is_err(), "not set up");
        let window = WINDOWS_BASE + WINDOW_STRIDE;
        card.write32(window + 4, 0x21);
        card.write32(window + 0x10, 0x4000_0001);
        assert_eq!(card.nic.memory.read_u32(address), Ok(0));
        assert!(card.nic.memory.write_u32(address, 1).is_err(), "read only");
        card.write32(window + 0x10, 0xC000_0001);
        assert_eq!(card.nic.memory.write_u32(address + 4, 7), Ok(()));
        assert_eq!(card.nic.memory.host.read_u32(0x21_0000_0004), Ok(7));
        assert!(card.nic.memory.read_u32(address + 0xFFE).is_err(), "one page");
        assert!(card.nic.memory.read_u32(HOST_LEN).is_err());
        assert_eq!(card.nic.memory.write_u32(DEVICE_MEMORY + 8, 9), Ok(()));
        assert_eq!(card.nic.memory.card.read_u32(8), Ok(9));
        assert_eq!(card.read32(window + 4), 0x21);
    }

    #[test]
    fn the_statistics_block_answers_and_what_is_not_there_is_counted() {
        let mut card = Reconic::new(Ram::new(0, 64), Ram::new(0, 64));
        assert_eq!(card.read32(0x10_2000), VERSION);
        card.write32(0x10_2200, 5);
        card.write32(0x10_2000, 5);
        assert_eq!((card.read32(0x10_2200), card.read32(0x10_2000)), (5, VERSION));
        assert_eq!(card.read32(0x10_2100), NOTHING_THERE);
        let mut arp = [0; 60];
        arp[12..14].copy_from_slice(&[8, 6]);
        card.handle_frame(Nanos(0), &arp, Rx::default());
        card.handle_frame(Nanos(0), &arp, Rx::default());
        assert_eq!([0x1C, 0x1C, 0x24, 0x0C].map(|at| card.read32(0x10_2000 + at)), [2, 0, 2, 0]);
        card.reset();
        assert_eq!([0x24, 0x200].map(|at| card.read32(0x10_2000 + at)), [0, 0]);
        assert_eq!(card.read32(0x10_0000), 0);
        card.write32(0x3F_FFFC, 1);
        let refused = card.nic.engine.refused();
        assert_eq!(refused[Reason::RegisterUnlisted as usize], 2);
        assert_eq!(refused[Reason::RegisterReadOnly as usize], 1);
    }
}
