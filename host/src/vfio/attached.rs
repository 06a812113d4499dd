//! A NIC's PCI side, served between the turns of a station: `rnic serve --vfio-user`.
//!
//! The thread that owns the station serves the socket too, so that a register access is answered between
//! two batches of frames, and nobody waits for another thread.

use std::os::fd::BorrowedFd;

use rustix::event::PollFlags;
use softrnic_device::ernic::{self, Location, Map, Register};
use softrnic_device::pci::BarError;
use softrnic_device::reconic::{self, CardMemory, Shell};
use softrnic_device::{Memory, Nic, Ram};
use softrnic_engine::{Engine, Nanos, Reason};

use super::card::{CardFunction, Ernic, PciState, Registers};
use super::{GuestMemory, RefusedAccesses, RegisterTrace, Server};
use crate::serve::Attachment;
use crate::station::Station;

/// Messages that are taken before frames get their turn.
const MESSAGES: usize = 256;

/// What is around an ERNIC with memory `M`.
pub trait Board<M> {
    /// The registers that software sees, for the time of a call.
    fn registers<'a>(&'a mut self, nic: &'a mut Nic<ernic::Ernic, M>) -> impl Registers + 'a;

    /// Frames may have come: `link_frames` since the start.
    fn observe(&mut self, nic: &mut Nic<ernic::Ernic, M>, link_frames: u64) {
        let _ = (nic, link_frames);
    }
}

/// Nothing is around it: the profile's register map is at the start of the BAR.
#[derive(Clone, Copy, Default, Debug)]
pub struct Bare;

impl Board<GuestMemory> for Bare {
    fn registers<'a>(&'a mut self, nic: &'a mut Ernic) -> impl Registers + 'a {
        nic
    }
}

/// RecoNIC's card.
#[derive(Clone, Copy, Default, Debug)]
pub struct ReconicBoard {
    shell: Shell,
    /// INALLDRPPKTCNT\[31:16\], which counts RoCE packets and wraps, and all frames of the link.
    seen: (u16, u64),
}

/// The card's memory: the guest's through windows, and the card's own.
pub type ReconicMemory = CardMemory<GuestMemory, Ram>;

struct ReconicRegisters<'a> {
    board: &'a mut ReconicBoard,
    nic: &'a mut Nic<ernic::Ernic, ReconicMemory>,
}

impl Board<ReconicMemory> for ReconicBoard {
    fn registers<'a>(
        &'a mut self,
        nic: &'a mut Nic<ernic::Ernic, ReconicMemory>,
    ) -> impl Registers + 'a {
        ReconicRegisters { board: self, nic }
    }

    fn observe(&mut self, nic: &mut Nic<ernic::Ernic, ReconicMemory>, link_frames: u64) {
        // A turn takes far fewer frames than the counter has values.
        let at = Location { register: Register::Inalldrppktcnt, index: 0 };
        let roce_packets = (nic.read_register(at) >> 16) as u16;
        let roce = u64::from(roce_packets.wrapping_sub(self.seen.0));
        let all = link_frames - self.seen.1.min(link_frames);
        self.seen = (roce_packets, link_frames);
        self.shell.count(roce, all.saturating_sub(roce));
    }
}

impl Registers for ReconicRegisters<'_> {
    fn bar_len(&self) -> u32 {
        reconic::BAR_LEN
    }

    fn read32(&mut self, offset: u32) -> u32 {
        self.board.shell.read32(self.nic, offset)
    }

    fn write32(&mut self, offset: u32, value: u32) {
        self.board.shell.write32(self.nic, offset, value);
    }

    fn interrupt(&self) -> bool {
        self.nic.interrupt()
    }

    fn reset(&mut self) {
        self.board.shell.reset(self.nic);
        self.board.seen.0 = 0;
    }

    fn engine_mut(&mut self) -> &mut Engine {
        &mut self.nic.engine
    }

    fn faults(&self) -> &[u64; Reason::COUNT] {
        self.nic.device.faults()
    }

    fn locate(&self, offset: u32) -> Result<(Map, Location), &'static str> {
        let map = self.nic.device.map();
        let at = map.locate(Shell::place(offset)?);
        at.map(|at| (map, at)).ok_or("nothing is listed here")
    }

    fn memory_mut(&mut self) -> &mut GuestMemory {
        &mut self.nic.memory.host
    }

    fn card_memory(&mut self) -> Option<&mut Ram> {
        Some(&mut self.nic.memory.card)
    }
}

/// A socket, and the PCI side of the NIC behind it.
#[derive(Debug)]
pub struct Attached<B> {
    server: Server,
    pci: PciState,
    board: B,
}

impl<B> Attached<B> {
    /// Serves a NIC on a board.
    ///
    /// # Errors
    /// The size of its registers or of the board's memory cannot be a BAR's.
    pub fn new<M>(
        server: Server,
        mut board: B,
        nic: &mut Nic<ernic::Ernic, M>,
    ) -> Result<Self, BarError>
    where
        B: Board<M>,
    {
        let pci = PciState::new(&mut board.registers(nic))?;
        Ok(Self { server, pci, board })
    }

    /// Writes down every register access from now on.
    pub fn set_trace(&mut self, trace: RegisterTrace) {
        self.pci.set_trace(trace);
    }

    /// The socket.
    #[must_use]
    pub const fn server(&self) -> &Server {
        &self.server
    }

    /// Accesses of the NIC that reached no memory.
    pub fn refused<M>(&mut self, nic: &mut Nic<ernic::Ernic, M>) -> RefusedAccesses
    where
        B: Board<M>,
    {
        self.board.registers(nic).memory_mut().refused()
    }
}

impl<M: Memory, B: Board<M>> Attachment<ernic::Ernic, M> for Attached<B> {
    fn wait_for(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        self.server.wait_for().collect()
    }

    fn before(&mut self, _: Nanos, station: &mut Station<ernic::Ernic, M>) -> bool {
        let mut registers = self.board.registers(&mut station.nic);
        let mut function = CardFunction { card: &mut registers, pci: &mut self.pci };
        self.server.turn(MESSAGES, &mut function)
    }

    fn after(&mut self, station: &mut Station<ernic::Ernic, M>) {
        let frames = station.link().counters().rx_frames;
        self.board.observe(&mut station.nic, frames);
        let mut registers = self.board.registers(&mut station.nic);
        let mut function = CardFunction { card: &mut registers, pci: &mut self.pci };
        self.server.update_interrupts(&mut function);
    }
}

#[cfg(test)]
mod tests {
    use softrnic_device::pci::MEMORY_BAR;
    use softrnic_engine::Rx;

    use super::*;
    use crate::vfio::Function;

    const FRAMES: u32 = 0x10_200C;
    const OTHER_FRAMES: u32 = 0x10_201C;
    const SCRATCH: u32 = 0x10_2200;

    fn card() -> (ReconicBoard, Nic<ernic::Ernic, ReconicMemory>) {
        let memory = CardMemory::new(GuestMemory::new(), Ram::new(0, 4096));
        (ReconicBoard::default(), Nic::ernic(reconic::config(), memory))
    }

    #[test]
    fn reconics_bar_has_its_ernic_inside_and_names_for_what_is_around_it() {
        let (mut board, mut nic) = card();
        let mut registers = board.registers(&mut nic);
        assert_eq!(registers.bar_len(), 4 << 20);
        let mac_low = reconic::ERNIC_BASE + 0x2_0010;
        registers.write32(mac_low, 7);
        assert_eq!(registers.read32(mac_low), 7);
        let (_, at) = registers.locate(mac_low).expect("a register of the ERNIC");
        assert_eq!(at.register, Register::Macxaddlsb);
        for (offset, word) in [(SCRATCH, "statistics"), (0x1_6420, "window"), (0, "nothing")] {
            let name = registers.locate(offset).expect_err("no register of the ERNIC");
            assert!(name.contains(word), "{offset:#x}: {name}");
        }
        registers.write32(SCRATCH, 9);
        registers.reset();
        assert_eq!((registers.read32(mac_low), registers.read32(SCRATCH)), (0, 0));
    }

    #[test]
    fn reconics_memory_is_a_bar_of_bytes_that_its_nic_reads_and_writes_too() {
        let (mut board, mut nic) = card();
        let mut registers = board.registers(&mut nic);
        let mut pci = PciState::new(&mut registers).expect("sizes of BARs");
        let mut function = CardFunction { card: &mut registers, pci: &mut pci };
        assert_eq!([2, 4, 5].map(|bar| function.config().bar_len(bar)), [4 << 20, 4096, 0]);
        // Programs copy by bytes, words, and whatever the processor likes.
        function.write(MEMORY_BAR, 1, &[1, 2, 3]);
        function.write(MEMORY_BAR, 4091, &[4, 5, 6, 7, 8]);
        let mut bytes = [0xFF; 6];
        function.read(MEMORY_BAR, 0, &mut bytes);
        assert_eq!(bytes, [0, 1, 2, 3, 0, 0]);
        drop(registers);
        let mut last = [0; 2];
        assert_eq!(nic.memory.read(reconic::DEVICE_MEMORY + 4094, &mut last), Ok(()));
        assert_eq!(last, [7, 8]);
        assert_eq!(nic.memory.write(reconic::DEVICE_MEMORY + 4095, &[9]), Ok(()));
        assert!(nic.memory.write(reconic::DEVICE_MEMORY + 4095, &[9; 2]).is_err());
        let mut registers = board.registers(&mut nic);
        // Power-on state of the card leaves its memory alone.
        registers.reset();
        let mut function = CardFunction { card: &mut registers, pci: &mut pci };
        function.read(MEMORY_BAR, 4094, &mut last);
        assert_eq!(last, [7, 9]);
        assert_eq!(function.card.engine_mut().refused().iter().sum::<u64>(), 0);
    }

    #[test]
    fn reconics_statistics_count_every_frame_once_across_wraps_and_resets() {
        let (mut board, mut nic) = card();
        let mut all = 0;
        // More than the 16-bit counter holds, a turn's worth at a time, with another frame each time.
        for _ in 0..300 {
            (0..256).for_each(|_| {
                nic.handle_frame(Nanos(0), &[0; 10], Rx::default());
            });
            all += 257;
            board.observe(&mut nic, all);
        }
        let mut registers = board.registers(&mut nic);
        assert_eq!(registers.read32(FRAMES), 300 * 256);
        assert_eq!(registers.read32(OTHER_FRAMES), 300);
        assert_eq!(registers.read32(FRAMES), 0, "reading clears");
        registers.reset();
        drop(registers);
        nic.handle_frame(Nanos(0), &[0; 10], Rx::default());
        board.observe(&mut nic, all + 1);
        assert_eq!(board.registers(&mut nic).read32(FRAMES), 1);
        // Another link counts from 0 again.
        nic.handle_frame(Nanos(0), &[0; 10], Rx::default());
        board.observe(&mut nic, 1);
        assert_eq!(board.registers(&mut nic).read32(OTHER_FRAMES), 0);
    }
}
