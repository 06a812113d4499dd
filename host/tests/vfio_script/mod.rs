//! Anything at all from a vfio-user client: messages right and wrong, file descriptors of all kinds, cuts
//! in the stream, with an ERNIC behind. The body of the fuzz target `vfio`, of the random test and of
//! the corpus replay: [`run`] plays a script of bytes and judges it.
//!
//! No panic; every command that wants a reply gets one, in order and well-formed, and no other bytes are
//! sent; the device reaches what the client was told it mapped, and nothing else; afterwards the next
//! client finds the device as after power-on.

use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use softrnic_device::ernic::ErnicConfig;
use softrnic_device::pci::CONFIG_LEN;
use softrnic_device::{Memory, Nic};
use softrnic_engine::packet::FRAME_LEN_MAX;
use softrnic_engine::{Nanos, Room};
use softrnic_host::vfio::wire::{
    Command, HEADER_LEN, Header, MESSAGE_MAX, PAGE_LEN, UNMAP_ALL, flags,
};
use softrnic_host::vfio::{CardFunction, Ernic, Function, GuestMemory, PciState, Session};
use zerocopy::{FromBytes, IntoBytes};

/// Pages that scripts map at most, so that they meet each other.
const PAGES: u64 = 16;
/// Frames that leave after each step at most.
const FRAMES: usize = 4;

/// Plays a script. Every byte string is one.
///
/// # Panics
/// Where one of the promises above is broken.
pub fn run(script: &[u8]) {
    let mut bytes = Script(script);
    let mut world = World::new();
    // Mostly a client that knows how to begin.
    if bytes.next() & 3 != 0 {
        world.send(Command::Version.number(), 0, &[0, 0, 0, 0, b'{', b'}', 0], Vec::new());
    }
    while !bytes.0.is_empty() && !world.over {
        world.step(&mut bytes);
        world.settle();
    }
    world.finish();
}

/// Bytes that are used up from the front; after the end come zeros.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn next(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes([self.next(), self.next(), self.next(), self.next()])
    }

    fn take(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next()).collect()
    }

    /// Mostly a small number of pages, sometimes anything.
    fn address(&mut self) -> u64 {
        match self.next() {
            page @ 0..=0xEF => u64::from(page) % PAGES * PAGE_LEN,
            0xF0..=0xF7 => u64::from(self.next()),
            0xF8..=0xFB => u64::MAX - u64::from(self.next() & 3) * PAGE_LEN - 0xFFF,
            _ => u64::from(self.word()) << 32 | u64::from(self.word()),
        }
    }
}

/// A message that wants a reply.
struct Owed {
    id: u16,
    command: u16,
    body: Vec<u8>,
}

struct World {
    session: Session,
    nic: Ernic,
    pci: PciState,
    now: Nanos,
    next_id: u16,
    owed: std::collections::VecDeque<Owed>,
    /// What the client was told is mapped: start, length, whether the device reaches it.
    maps: Vec<(u64, u64, bool)>,
    over: bool,
}

impl World {
    fn new() -> Self {
        let config = ErnicConfig { num_qp: 8, ..ErnicConfig::default() };
        let mut nic = Nic::ernic(config, GuestMemory::new());
        let pci = PciState::new(&mut nic).unwrap();
        let owed = std::collections::VecDeque::new();
        let session = Session::new();
        Self { session, nic, pci, now: Nanos(0), next_id: 0, owed, maps: Vec::new(), over: false }
    }

    fn step(&mut self, bytes: &mut Script<'_>) {
        let kind = bytes.next();
        let posted = if kind & 0x80 == 0 { 0 } else { flags::NO_REPLY };
        let mut fds = Vec::new();
        let (command, body) = match kind & 0x0F {
            0..=2 => {
                fds.extend(descriptors(bytes));
                let (offset, address) = (bytes.address(), bytes.address());
                let size = u64::from(bytes.next() % 4) * PAGE_LEN;
                let map_flags = u64::from(bytes.next() % 5) << 32 | 32;
                (Command::DmaMap, quads(&[map_flags, offset, address, size]))
            }
            3 => {
                let all = bytes.next() == 0;
                let address = if all { 0 } else { bytes.address() };
                let size = if all { 0 } else { u64::from(bytes.next() % 20) * PAGE_LEN };
                let unmap_flags = if all { u64::from(UNMAP_ALL) << 32 } else { 0 } | 24;
                (Command::DmaUnmap, quads(&[unmap_flags, address, size]))
            }
            4 => {
                fds.extend(descriptors(bytes));
                let words = [20, bytes.word() & 0x3F, bytes.next().into(), bytes.next().into()];
                let count = u32::from(bytes.next() % 3);
                let mut body = words.as_bytes().to_vec();
                body.extend_from_slice(count.as_bytes());
                let more = bytes.next() % 4;
                body.extend(bytes.take(more.into()));
                (Command::SetIrqs, body)
            }
            // Configuration space, and its command register most of all.
            5 => {
                let offset = if bytes.next() & 1 == 0 { 4 } else { bytes.word() % 0x1010 };
                let len = bytes.next() % 9;
                (Command::RegionWrite, write(bytes, 7, offset, len))
            }
            // Registers: those of the device, of queue pair 2, and anything.
            6..=9 => {
                let offset = match bytes.next() & 3 {
                    0 => 0x10_0000 + u32::from(bytes.next()) * 4,
                    1 | 2 => 0x18_0100 + u32::from(bytes.next() & 0x3F) * 4,
                    _ => bytes.word() & 0x3F_FFFF,
                };
                let len = if bytes.next() & 7 == 0 { bytes.next() } else { 4 };
                (Command::RegionWrite, write(bytes, 2, offset, len))
            }
            10 => {
                let region = u32::from(bytes.next() % 10);
                let offset = u64::from(bytes.word() % 0x21_0000);
                let count = u32::from(bytes.next());
                let mut body = offset.as_bytes().to_vec();
                body.extend_from_slice(region.as_bytes());
                body.extend_from_slice(count.as_bytes());
                (Command::RegionRead, body)
            }
            11 => {
                let entries = bytes.next() % 4;
                let mut body = u64::from(entries).as_bytes().to_vec();
                for _ in 0..entries {
                    let offset = 0x18_0100 + u32::from(bytes.next() & 0x3F) * 4;
                    let mut entry = write(bytes, 2, offset, 8);
                    entry[12] = bytes.next() % 10;
                    body.extend(entry);
                }
                (Command::RegionWriteMulti, body)
            }
            12 => (Command::DeviceReset, Vec::new()),
            13 => {
                self.now = Nanos(self.now.0 + (u64::from(bytes.next()) << 16));
                return;
            }
            14 => {
                fds.extend(descriptors(bytes));
                let (command, len) = (bytes.next() % 18, bytes.next());
                let body = bytes.take(len.into());
                self.send(command.into(), bytes.word() & 0x31, &body, fds);
                return;
            }
            // Bytes that are no message: the end of the conversation, or nearly.
            _ => {
                let len = bytes.next() % 40;
                let raw = bytes.take(len.into());
                self.raw(&raw, Vec::new());
                return;
            }
        };
        self.send(command.number(), posted, &body, fds);
    }

    fn send(&mut self, command: u16, header_flags: u32, body: &[u8], fds: Vec<OwnedFd>) {
        self.next_id = self.next_id.wrapping_add(1);
        let header = Header {
            id: self.next_id.into(),
            command: command.into(),
            size: ((HEADER_LEN + body.len()) as u32).into(),
            flags: header_flags.into(),
            errno: 0.into(),
        };
        self.raw(&[header.as_bytes(), body].concat(), fds);
    }

    /// Gives bytes to the session, in two pieces where that makes a difference.
    fn raw(&mut self, bytes: &[u8], fds: Vec<OwnedFd>) {
        let (first, second) = bytes.split_at(bytes.len() / 2);
        self.over |= self.session.receive(first, fds).is_err();
        self.take_messages();
        self.over |= self.session.receive(second, []).is_err();
        self.note(bytes);
        self.take_messages();
    }

    /// What the session has to answer. Only whole messages are noted; after odd bytes nothing is known
    /// any more, and only the form of replies is looked at.
    fn note(&mut self, message: &[u8]) {
        let Ok((header, body)) = Header::ref_from_prefix(message) else {
            self.over = true;
            return;
        };
        if header.size.get() as usize != message.len() || message.len() > MESSAGE_MAX {
            self.over = true;
        } else if header.flags.get() & flags::NO_REPLY == 0 {
            let (id, command) = (header.id.get(), header.command.get());
            self.owed.push_back(Owed { id, command, body: body.to_vec() });
        } else if matches!(header.command.get(), 2 | 3) {
            // Nobody is told what a posted map did, so nothing can be said about memory any more.
            self.over = true;
        }
    }

    fn take_messages(&mut self) {
        let mut function = CardFunction { card: &mut self.nic, pci: &mut self.pci };
        self.over |= self.session.take_messages(usize::MAX, &mut function).is_err();
        self.replies();
    }

    fn replies(&mut self) {
        let output = self.session.output().to_vec();
        self.session.sent(output.len());
        let mut rest = &output[..];
        while !rest.is_empty() {
            let (header, _) = Header::read_from_prefix(rest).expect("a header");
            let size = header.size.get() as usize;
            assert!((HEADER_LEN..=MESSAGE_MAX).contains(&size) && size <= rest.len(), "{size}");
            let (errno, bits) = (header.errno.get(), header.flags.get());
            assert_eq!(bits, flags::REPLY | if errno == 0 { 0 } else { flags::ERROR });
            assert!(errno == 0 || size == HEADER_LEN, "an error has no body");
            rest = &rest[size..];
            if let Some(owed) = self.owed.pop_front() {
                assert_eq!((owed.id, owed.command), (header.id.get(), header.command.get()));
                if errno == 0 {
                    self.believe(&owed);
                }
            } else {
                assert!(self.over, "a reply to nothing");
            }
        }
        assert!(self.owed.is_empty() || self.over, "a reply is missing");
    }

    /// The client was told that something about memory is so.
    fn believe(&mut self, owed: &Owed) {
        let quad = |at: usize| {
            let bytes = owed.body.get(at..at + 8).and_then(|bytes| bytes.first_chunk());
            u64::from_le_bytes(*bytes.unwrap())
        };
        match Command::from_number(owed.command) {
            Some(Command::DmaMap) => {
                let bus_master = self.pci_bus_master();
                self.nic.memory.set_bus_master(true);
                let reached = self.nic.memory.read(quad(16), &mut [0]).is_ok();
                self.nic.memory.set_bus_master(bus_master);
                self.maps.push((quad(16), quad(24), reached));
            }
            Some(Command::DmaUnmap) if quad(0) >> 32 != 0 => self.maps.clear(),
            Some(Command::DmaUnmap) => {
                let (start, end) = (quad(8), u128::from(quad(8)) + u128::from(quad(16)));
                self.maps.retain(|map| map.0 < start || u128::from(map.0) >= end);
            }
            _ => {}
        }
    }

    fn pci_bus_master(&mut self) -> bool {
        CardFunction { card: &mut self.nic, pci: &mut self.pci }.config().bus_master()
    }

    /// Lets the device work, then looks at what it reaches.
    fn settle(&mut self) {
        if self.nic.next_deadline().is_some_and(|deadline| deadline <= self.now) {
            self.nic.handle_timeout(self.now);
        }
        let mut frame = [0; FRAME_LEN_MAX];
        for _ in 0..FRAMES {
            let mut room = Room { bytes: &mut frame, segments: 1, source_port: None };
            if self.nic.poll_transmit(self.now, &mut room).is_none() {
                break;
            }
        }
        let mut function = CardFunction { card: &mut self.nic, pci: &mut self.pci };
        self.session.update_interrupts(&mut function);
        if self.over {
            return;
        }
        assert_eq!(self.nic.memory.len(), self.maps.len());
        let bus_master = self.pci_bus_master();
        for page in 0..PAGES + 4 {
            let at = page * PAGE_LEN + 8;
            let map = self.maps.iter().find(|map| at >= map.0 && at - map.0 < map.1);
            let reached = self.nic.memory.read(at, &mut [0; 4]).is_ok();
            assert!(!reached || bus_master && map.is_some(), "{at:#x} is reached");
            assert!(!map.is_some_and(|map| map.2) || reached || !bus_master, "{at:#x} is not");
        }
    }

    fn finish(mut self) {
        let mut function = CardFunction { card: &mut self.nic, pci: &mut self.pci };
        self.session.close(&mut function);
        let mut fresh = Self::new();
        let mut config = [vec![0; CONFIG_LEN.into()], vec![0; CONFIG_LEN.into()]];
        for (world, out) in [&mut self, &mut fresh].into_iter().zip(&mut config) {
            let function = CardFunction { card: &mut world.nic, pci: &mut world.pci };
            function.config().read(0, out);
        }
        assert!(config[0] == config[1], "configuration space is as after power-on");
        assert!(self.nic.memory.is_empty() && !self.nic.interrupt());
        for offset in (0x10_0000..0x10_0100).chain(0x18_0000..0x18_0200).step_by(4) {
            assert_eq!(self.nic.read32(offset), fresh.nic.read32(offset), "{offset:#x}");
        }
        // The next one is served.
        self.session = Session::new();
        (self.over, self.maps) = (false, Vec::new());
        self.owed.clear();
        self.send(Command::Version.number(), 0, &[0; 4], Vec::new());
        self.send(Command::DeviceInfo.number(), 0, &[0; 16], Vec::new());
        assert_eq!(self.session.counters().refused, 0);
    }
}

fn quads(values: &[u64]) -> Vec<u8> {
    values.as_bytes().to_vec()
}

fn write(bytes: &mut Script<'_>, region: u32, offset: u32, len: u8) -> Vec<u8> {
    let mut body = u64::from(offset).as_bytes().to_vec();
    body.extend_from_slice(region.as_bytes());
    body.extend_from_slice(u32::from(len).as_bytes());
    // Values that mean something: small ones, and addresses that may be mapped.
    let value = match bytes.next() & 3 {
        0 => u32::from(bytes.next()),
        1 => u32::from(bytes.next() & 0xF) << 12,
        _ => bytes.word(),
    };
    body.extend(value.to_le_bytes().into_iter().chain([0; 4]).cycle().take(len.into()));
    body
}

/// None, or a file: memory of a few pages, an eventfd, memory that cannot be sealed, or two.
fn descriptors(bytes: &mut Script<'_>) -> Vec<OwnedFd> {
    let memory = |sealing| {
        let file = memfd_create("script", MemfdFlags::CLOEXEC | sealing).unwrap();
        ftruncate(&file, 4 * PAGE_LEN).unwrap();
        file
    };
    let target = || eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    match bytes.next() & 7 {
        0 => Vec::new(),
        1 => vec![target()],
        2 => vec![memory(MemfdFlags::empty())],
        3 => vec![memory(MemfdFlags::ALLOW_SEALING), target()],
        _ => vec![memory(MemfdFlags::ALLOW_SEALING)],
    }
}
