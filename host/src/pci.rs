//! A card as the driver's platform: a mapped PCI resource file for its registers, a mapped file for
//! memory that the card can reach.
//!
//! Both files may be plain ones, which is how this is tested: the driver then talks to registers that
//! only remember. Knows no register. Ordering between memory and registers is that of x86-64, where
//! a store to write-back memory is seen before a later store to uncached memory.
#![allow(unsafe_code, reason = "mapping files and accessing registers cannot be done without")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use softrnic_driver::{DmaBuffer, DmaError, Platform};

/// How the bus addresses of the memory file are known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BusAddresses {
    /// The file is contiguous from this bus address on: memory of the card behind another resource
    /// file, a u-dma-buf device, memory kept from the kernel at boot.
    From(u64),
    /// The file is on hugetlbfs; physical addresses come from `/proc/self/pagemap`, which needs
    /// CAP_SYS_ADMIN. They are bus addresses only where no IOMMU translates for the card
    /// (`iommu=pt`, or none).
    Pagemap,
}

/// Which files make up a card.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CardFiles {
    /// The BAR, for example `/sys/bus/pci/devices/0000:01:00.0/resource2`.
    pub resource: PathBuf,
    /// Where in the BAR the ERNIC's register map begins.
    pub register_offset: u64,
    /// Memory that the card can reach.
    pub memory: PathBuf,
    /// Its bus addresses.
    pub bus: BusAddresses,
}

/// Why a card cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PciError {
    /// A file cannot be opened or mapped.
    #[error("{path}: {source}. {way_out}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
        /// What to do.
        way_out: &'static str,
    },
    /// A file is too short for what it should hold.
    #[error("{path} has {len} bytes; {needed} are needed {purpose}")]
    TooShort {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        len: u64,
        /// Bytes needed.
        needed: u64,
        /// For what.
        purpose: &'static str,
    },
    /// The register offset is not a multiple of 4.
    #[error(
        "register offset {0:#x} is not a multiple of 4; give the offset of the ERNIC in its BAR"
    )]
    Misaligned(u64),
    /// The file's pages may move, so their addresses are worth nothing.
    #[error(
        "{0} is not on hugetlbfs, so its pages may move. Make it there \
         (`mount -t hugetlbfs none /dev/hugepages`), or give a bus address"
    )]
    NotHugePages(PathBuf),
    /// The kernel hides physical addresses.
    #[error(
        "/proc/self/pagemap shows no physical addresses. Run with CAP_SYS_ADMIN (as root), or give \
         a bus address"
    )]
    AddressesHidden,
    /// A register access outside of the map.
    #[error(
        "register offset {offset:#x} is outside of the map ({len} bytes) or not a multiple of 4"
    )]
    OutOfRange {
        /// Offset from the start of the register map.
        offset: u32,
        /// Bytes of the register map.
        len: usize,
    },
}

/// Switches a PCI device's memory access and bus mastering on, by its folder in sysfs
/// (`/sys/bus/pci/devices/...`): a device without a kernel driver has both off, and reads all ones.
/// [`USER_SPACE_DRIVER`] has switched it on already, but for bus mastering.
///
/// # Errors
/// A file in the folder cannot be written, which needs root.
pub fn enable(device: &Path) -> Result<(), PciError> {
    let way_out = "Run as root, and name a device that no kernel driver has";
    let failed = |path: &Path, source| PciError::File { path: path.to_owned(), source, way_out };
    if !driver_of(device).ends_with(USER_SPACE_DRIVER) {
        let switch = device.join("enable");
        std::fs::write(&switch, "1").map_err(|source| failed(&switch, source))?;
    }
    let path = device.join("config");
    let file = OpenOptions::new().read(true).write(true).open(&path);
    let file = file.map_err(|source| failed(&path, source))?;
    let mut command = [0; 2];
    file.read_exact_at(&mut command, COMMAND).map_err(|source| failed(&path, source))?;
    let enabled = u16::from_le_bytes(command) | MEMORY_ACCESS | BUS_MASTER;
    file.write_all_at(&enabled.to_le_bytes(), COMMAND).map_err(|source| failed(&path, source))
}

/// The kernel's driver that has a device; empty where none has.
pub(crate) fn driver_of(device: &Path) -> PathBuf {
    std::fs::read_link(device.join("driver")).unwrap_or_default()
}

/// Registers and memory of a card.
#[derive(Debug)]
pub struct PciCard {
    registers: Mapping,
    register_offset: usize,
    memory: Mapping,
    runs: Vec<Run>,
    refused: u64,
}

impl PciCard {
    /// Bytes of the ERNIC's register map (PG332 v4.0: 2 MiB).
    pub const REGISTER_BYTES: u64 = 2 << 20;

    /// Maps both files.
    ///
    /// # Errors
    /// A file cannot be opened or mapped, is too short, or its bus addresses cannot be known.
    pub fn open(files: &CardFiles) -> Result<Self, PciError> {
        if !files.register_offset.is_multiple_of(4) {
            return Err(PciError::Misaligned(files.register_offset));
        }
        let needed = files.register_offset.saturating_add(Self::REGISTER_BYTES);
        let purpose = "for the register map behind the register offset; check the BAR number";
        let (_, registers) = map_file(&files.resource, needed, purpose, RESOURCE_WAY_OUT)?;
        let (file, memory) = map_memory_file(&files.memory)?;
        let runs = match files.bus {
            BusAddresses::From(base) => vec![Run::new(base, 0, memory.len)],
            BusAddresses::Pagemap => runs_from_pagemap(&files.memory, &file, &memory)?,
        };
        // `needed` bytes were mapped, so the offset fits.
        let register_offset = files.register_offset as usize;
        Ok(Self { registers, register_offset, memory, runs, refused: 0 })
    }

    /// Registers from the start of a mapping, and memory that the card reaches from a bus address on.
    pub(crate) fn of_mappings(registers: Mapping, memory: Mapping, bus: u64) -> Self {
        let runs = vec![Run::new(bus, 0, memory.len)];
        Self { registers, register_offset: 0, memory, runs, refused: 0 }
    }

    /// Reads a register.
    ///
    /// # Errors
    /// The offset is outside of the map.
    pub fn try_read32(&self, offset: u32) -> Result<u32, PciError> {
        let at = self.register(offset)?;
        // SAFETY: `register` returns an aligned address of four bytes inside the mapping, which
        // lives as long as `self`. Volatile, because reading a register may have effects.
        Ok(u32::from_le(unsafe { at.read_volatile() }))
    }

    /// Writes a register, after everything that was written to memory before.
    ///
    /// # Errors
    /// The offset is outside of the map; nothing was written.
    pub fn try_write32(&mut self, offset: u32, value: u32) -> Result<(), PciError> {
        let at = self.register(offset)?;
        fence(Ordering::SeqCst);
        // SAFETY: as in `try_read32`; `&mut self` excludes our other accesses.
        unsafe { at.write_volatile(value.to_le()) };
        Ok(())
    }

    /// Accesses through [`Platform`] that were refused because they lay outside of the map. Such a
    /// read gives all ones and such a write does nothing, as on a PCI bus.
    #[must_use]
    pub const fn refused_accesses(&self) -> u64 {
        self.refused
    }

    fn register(&self, offset: u32) -> Result<NonNull<u32>, PciError> {
        let len = Self::REGISTER_BYTES as usize;
        let error = PciError::OutOfRange { offset, len };
        if offset as usize > len - 4 || !offset.is_multiple_of(4) {
            return Err(error);
        }
        let at = self.registers.range(self.register_offset + offset as usize, 4).ok_or(error)?;
        Ok(at.cast())
    }

    /// Where a range of bus addresses is mapped.
    fn memory_at(&self, bus: u64, len: usize) -> Result<NonNull<u8>, DmaError> {
        let offset = self.runs.iter().find_map(|run| {
            let inside = usize::try_from(bus.checked_sub(run.bus)?).ok()?;
            (inside.checked_add(len)? <= run.len).then_some(run.offset + inside)
        });
        offset.and_then(|offset| self.memory.range(offset, len)).ok_or(DmaError { bus, len })
    }
}

impl Platform for PciCard {
    fn read32(&mut self, offset: u32) -> u32 {
        self.try_read32(offset).unwrap_or_else(|_| {
            self.refused += 1;
            u32::MAX
        })
    }

    fn write32(&mut self, offset: u32, value: u32) {
        if self.try_write32(offset, value).is_err() {
            self.refused += 1;
        }
    }

    fn dma_alloc(&mut self, len: usize, align: usize) -> Option<DmaBuffer> {
        let bus = self.runs.iter_mut().find_map(|run| run.take(len, align))?;
        let at = self.memory_at(bus, len).ok()?;
        // SAFETY: `memory_at` returns the start of `len` bytes inside the mapping; the allocator
        // has lent them to nobody, and no reference to them exists.
        unsafe { at.write_bytes(0, len) };
        Some(DmaBuffer { bus, len })
    }

    fn dma_free(&mut self, buffer: DmaBuffer) {
        if let Some(run) = self.runs.iter_mut().find(|run| run.contains(buffer)) {
            run.give_back(buffer);
        }
    }

    fn dma_read(&mut self, bus: u64, out: &mut [u8]) -> Result<(), DmaError> {
        let at = self.memory_at(bus, out.len())?;
        if out.len() == 4 && at.cast::<u32>().is_aligned() {
            // SAFETY: four aligned bytes inside the mapping. An atomic load, because the card
            // writes doorbell words while we look: never half of one, and what it wrote before
            // is seen after.
            let word = unsafe { AtomicU32::from_ptr(at.cast().as_ptr()) };
            out.copy_from_slice(&word.load(Ordering::Acquire).to_ne_bytes());
            return Ok(());
        }
        fence(Ordering::Acquire);
        // SAFETY: `out.len()` bytes inside the mapping; `out` is ours, so they do not overlap.
        unsafe { at.copy_to_nonoverlapping(NonNull::from(&mut *out).cast(), out.len()) };
        Ok(())
    }

    fn dma_write(&mut self, bus: u64, bytes: &[u8]) -> Result<(), DmaError> {
        let at = self.memory_at(bus, bytes.len())?;
        // SAFETY: `bytes.len()` bytes inside the mapping; `bytes` is ours, so they do not overlap.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), at.as_ptr(), bytes.len()) };
        Ok(())
    }

    fn pause(&mut self) {
        std::hint::spin_loop();
    }
}

/// A shared mapping of a file.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and all access goes through the
// methods of the card that owns it.
unsafe impl Send for Mapping {}

impl Mapping {
    pub(crate) fn new(file: &File, offset: u64, len: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: the kernel chooses an unused address, so no memory of ours is replaced.
        let start = unsafe { mmap(ptr::null_mut(), len, access, flags, file, offset)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }

    /// Where it begins.
    pub(crate) fn address(&self) -> usize {
        self.start.as_ptr().expose_provenance()
    }

    /// Its bytes.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The address of `len` bytes from `offset` on, if they are inside.
    fn range(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len)?;
        // SAFETY: `offset` is inside the mapping, or one past its end for an empty range.
        (end <= self.len).then(|| unsafe { self.start.add(offset) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the whole of what `new` mapped; nobody keeps an address beyond `self`.
        // Unmapping can only fail for a range that was never mapped.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// A part of the memory file that is contiguous in bus addresses too, and what is free of it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Run {
    bus: u64,
    /// Where in the file.
    offset: usize,
    len: usize,
    /// Free pieces as (bus address, bytes), ascending, never adjacent.
    free: Vec<(u64, usize)>,
}

impl Run {
    fn new(bus: u64, offset: usize, len: usize) -> Self {
        // Addresses do not wrap, whatever base was given.
        let len = len.min(usize::try_from(u64::MAX - bus).unwrap_or(usize::MAX));
        Self { bus, offset, len, free: vec![(bus, len)] }
    }

    /// Whether a buffer lies wholly inside.
    const fn contains(&self, buffer: DmaBuffer) -> bool {
        match buffer.bus.checked_sub(self.bus) {
            Some(inside) => {
                inside <= self.len as u64 && self.len as u64 - inside >= buffer.len as u64
            }
            None => false,
        }
    }

    /// Takes the first piece that is long enough behind an aligned address.
    fn take(&mut self, len: usize, align: usize) -> Option<u64> {
        let (index, bus) = self.free.iter().enumerate().find_map(|(index, (start, free))| {
            let bus = start.checked_next_multiple_of(align.max(1) as u64)?;
            let skipped = usize::try_from(bus - start).ok()?;
            (skipped.checked_add(len)? <= *free).then_some((index, bus))
        })?;
        let (start, free) = self.free[index];
        let before = (start, (bus - start) as usize);
        let after = (bus + len as u64, free - before.1 - len);
        let rest = [before, after].into_iter().filter(|(_, len)| *len > 0);
        self.free.splice(index..=index, rest);
        Some(bus)
    }

    fn give_back(&mut self, buffer: DmaBuffer) {
        let index = self.free.partition_point(|(start, _)| *start < buffer.bus);
        self.free.insert(index, (buffer.bus, buffer.len));
        self.free.dedup_by(|next, piece| {
            let adjacent = piece.0 + piece.1 as u64 == next.0;
            if adjacent {
                piece.1 += next.1;
            }
            adjacent
        });
    }
}

/// Maps a file as memory that a card reaches.
pub(crate) fn map_memory(path: &Path) -> Result<Mapping, PciError> {
    Ok(map_memory_file(path)?.1)
}

fn map_memory_file(path: &Path) -> Result<(File, Mapping), PciError> {
    let purpose = "for at least one page; make it larger (`truncate -s 64M`)";
    map_file(path, rustix::param::page_size() as u64, purpose, MEMORY_WAY_OUT)
}

fn map_file(
    path: &Path,
    needed: u64,
    purpose: &'static str,
    way_out: &'static str,
) -> Result<(File, Mapping), PciError> {
    let failed = |source| PciError::File { path: path.to_owned(), source, way_out };
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(failed)?;
    let len = file.metadata().map_err(failed)?.len();
    if len < needed {
        return Err(PciError::TooShort { path: path.to_owned(), len, needed, purpose });
    }
    let bytes = usize::try_from(len).map_err(|_| failed(io::ErrorKind::FileTooLarge.into()))?;
    let mapping = Mapping::new(&file, 0, bytes).map_err(failed)?;
    Ok((file, mapping))
}

fn runs_from_pagemap(path: &Path, file: &File, memory: &Mapping) -> Result<Vec<Run>, PciError> {
    let pagemap = Path::new("/proc/self/pagemap");
    let failed = |path: &Path, source| PciError::File {
        path: path.to_owned(),
        source,
        way_out: "Is /proc mounted? Otherwise give a bus address",
    };
    let kind = rustix::fs::fstatfs(file).map_err(|source| failed(path, source.into()))?;
    if kind.f_type as u64 != HUGETLBFS_MAGIC {
        return Err(PciError::NotHugePages(path.to_owned()));
    }
    let page = rustix::param::page_size();
    let mut entries = vec![0; memory.len / page * 8];
    let at = memory.start.as_ptr().addr() / page * 8;
    File::open(pagemap)
        .and_then(|file| file.read_exact_at(&mut entries, at as u64))
        .map_err(|source| failed(pagemap, source))?;
    let (entries, _) = entries.as_chunks();
    runs_of(entries.iter().map(|entry| u64::from_ne_bytes(*entry)), page)
        .ok_or(PciError::AddressesHidden)
}

/// Joins pages that are neighbours in the file and on the bus. `None` where a page's address is
/// hidden or the page is not there. An entry's low 55 bits are the page's frame, bit 63 says that it
/// is in memory (Linux, admin-guide/mm/pagemap).
fn runs_of(entries: impl Iterator<Item = u64>, page: usize) -> Option<Vec<Run>> {
    let mut runs: Vec<Run> = Vec::new();
    for (number, entry) in entries.enumerate() {
        let frame = entry & ((1 << 55) - 1);
        if frame == 0 || entry >> 63 == 0 {
            return None;
        }
        let bus = frame * page as u64;
        match runs.last_mut() {
            Some(run) if run.bus + run.len as u64 == bus => {
                *run = Run::new(run.bus, run.offset, run.len + page);
            }
            _ => runs.push(Run::new(bus, number * page, page)),
        }
    }
    Some(runs)
}

const RESOURCE_WAY_OUT: &str = "Give the resource file of the BAR with the ERNIC, as root, with no \
     kernel driver bound, and with memory access enabled (`setpci -s ... COMMAND=6`)";
const MEMORY_WAY_OUT: &str = "Give a file that can be mapped shared and written";
/// The kernel's driver that leaves a device to user space, and tells it of interrupts
/// ([`uio`](crate::uio)).
pub const USER_SPACE_DRIVER: &str = "uio_pci_generic";
/// Offset of the command register in configuration space, and two of its bits.
pub(crate) const COMMAND: u64 = 4;
pub(crate) const MEMORY_ACCESS: u16 = 1 << 1;
pub(crate) const BUS_MASTER: u16 = 1 << 2;
/// `f_type` of hugetlbfs (linux/magic.h).
const HUGETLBFS_MAGIC: u64 = 0x9584_58F6;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use softrnic_driver::{DeviceConfig, Ernic, Map, registers as reg};

    const BASE: u64 = 0x8000_0000;

    /// Two plain files that are gone with the test.
    struct Files(CardFiles);

    impl Files {
        fn new(test: &str, register_bytes: u64, memory_bytes: u64) -> Self {
            let path = |kind| {
                std::env::temp_dir().join(format!("rnic-{}-{test}-{kind}", std::process::id()))
            };
            let (resource, memory) = (path("registers"), path("memory"));
            for (path, len) in [(&resource, register_bytes), (&memory, memory_bytes)] {
                File::create(path).and_then(|file| file.set_len(len)).expect("a temporary file");
            }
            let bus = BusAddresses::From(BASE);
            Self(CardFiles { resource, register_offset: 0, memory, bus })
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            for path in [&self.0.resource, &self.0.memory] {
                std::fs::remove_file(path).expect("was created");
            }
        }
    }

    #[test]
    fn register_writes_land_little_endian_at_their_offset() {
        let mut files = Files::new("endian", (2 << 20) + 0x1000, 0x1000);
        files.0.register_offset = 0x1000;
        let mut card = PciCard::open(&files.0).expect("plain files do");
        card.write32(0x10_0010, 0x1122_3344);
        assert_eq!(card.read32(0x10_0010), 0x1122_3344);
        drop(card);
        let bytes = std::fs::read(&files.0.resource).expect("readable");
        assert_eq!(bytes[0x10_1010..0x10_1014], [0x44, 0x33, 0x22, 0x11]);
        assert_eq!(bytes.iter().filter(|byte| **byte != 0).count(), 4, "and nowhere else");
    }

    #[test]
    fn a_register_outside_of_the_map_is_refused_and_counted() {
        let files = Files::new("range", 4 << 20, 0x1000);
        let mut card = PciCard::open(&files.0).expect("plain files do");
        for offset in [0x20_0000, 0x1F_FFFE, 2, u32::MAX, u32::MAX - 3] {
            assert!(matches!(card.try_read32(offset), Err(PciError::OutOfRange { .. })));
            assert!(matches!(card.try_write32(offset, 1), Err(PciError::OutOfRange { .. })));
            assert_eq!(card.read32(offset), u32::MAX);
            card.write32(offset, 1);
        }
        assert_eq!(card.refused_accesses(), 10);
        card.write32(0x1F_FFFC, 7);
        assert_eq!((card.read32(0x1F_FFFC), card.refused_accesses()), (7, 10));
    }

    #[test]
    fn memory_is_aligned_zeroed_reused_and_runs_out() {
        let mut files = Files::new("alloc", 2 << 20, 0x4000);
        std::fs::write(&files.0.memory, vec![0xEE; 0x4000]).expect("writable");
        files.0.bus = BusAddresses::From(BASE + 0x10);
        let mut card = PciCard::open(&files.0).expect("plain files do");
        let first = card.dma_alloc(100, 256).expect("room");
        let second = card.dma_alloc(0x2000, 0x1000).expect("room");
        assert_eq!((first.bus % 256, second.bus % 0x1000), (0, 0));
        assert!(first.bus + 100 <= second.bus || second.bus + 0x2000 <= first.bus);
        let mut bytes = [1; 100];
        card.dma_read(first.bus, &mut bytes).expect("ours");
        assert_eq!(bytes, [0; 100]);
        assert_eq!(card.dma_alloc(0x4000, 1), None);
        card.dma_write(second.bus, &[9; 16]).expect("ours");
        card.dma_free(first);
        card.dma_free(second);
        let all = card.dma_alloc(0x4000, 1).expect("pieces were joined again");
        assert_eq!(all.bus, BASE + 0x10);
        let mut bytes = [1; 16];
        card.dma_read(second.bus, &mut bytes).expect("ours");
        assert_eq!(bytes, [0; 16], "zeroed again");
    }

    #[test]
    fn memory_outside_of_the_file_is_refused_whole() {
        let files = Files::new("memory", 2 << 20, 0x1000);
        let mut card = PciCard::open(&files.0).expect("plain files do");
        for (bus, len) in [(BASE - 1, 4), (BASE + 0xFFD, 4), (0, 4), (u64::MAX, 4), (BASE, 0x1001)]
        {
            assert_eq!(card.dma_write(bus, &vec![1; len]), Err(DmaError { bus, len }));
            let mut out = vec![7; len];
            assert_eq!(card.dma_read(bus, &mut out), Err(DmaError { bus, len }));
            assert!(out.iter().all(|byte| *byte == 7));
        }
        card.dma_write(BASE + 0xFFC, &[1, 2, 3, 4]).expect("the last word");
        let mut word = [0; 4];
        card.dma_read(BASE + 0xFFC, &mut word).expect("the last word");
        assert_eq!(word, [1, 2, 3, 4]);
        drop(card);
        let bytes = std::fs::read(&files.0.memory).expect("readable");
        assert_eq!(bytes.iter().position(|byte| *byte != 0), Some(0xFFC));
    }

    #[test]
    fn the_driver_brings_up_a_plain_file_and_reads_its_counters() {
        let files = Files::new("driver", 2 << 20, 4 << 20);
        let mut card = PciCard::open(&files.0).expect("plain files do");
        card.write32(reg::INSRRPKTCNT.offset, 0x0002_0003);
        let config = DeviceConfig { mac: [2, 0, 0, 0, 0, 1], ..DeviceConfig::default() };
        let mut ernic = Ernic::bring_up(card, Map::V4_0, &config).expect("registers remember");
        let counters = ernic.counters();
        assert_eq!(counters.incoming_send_write_packets, 3);
        assert_eq!(counters.incoming_read_response_packets, 2);
        let card = ernic.shut_down();
        assert_eq!(card.refused_accesses(), 0);
        assert_eq!(card.runs, [Run::new(BASE, 0, 4 << 20)], "all memory came back");
    }

    #[test]
    fn files_that_cannot_be_a_card_say_why() {
        let files = Files::new("errors", 0x1000, 0x1000);
        let text = PciCard::open(&files.0).expect_err("too short").to_string();
        assert!(text.contains("4096 bytes; 2097152 are needed"), "{text}");

        let files = Files::new("errors2", 2 << 20, 0);
        let text = PciCard::open(&files.0).expect_err("empty").to_string();
        assert!(text.contains("0 bytes") && text.contains("truncate"), "{text}");

        let missing = CardFiles { resource: "/nonexistent/resource2".into(), ..files.0.clone() };
        let text = PciCard::open(&missing).expect_err("missing").to_string();
        assert!(text.contains("/nonexistent/resource2") && text.contains("BAR"), "{text}");

        let odd = CardFiles { register_offset: 2, ..files.0.clone() };
        assert!(matches!(PciCard::open(&odd), Err(PciError::Misaligned(2))));
        let far = CardFiles { register_offset: u64::MAX - 3, ..files.0.clone() };
        assert!(matches!(PciCard::open(&far), Err(PciError::TooShort { .. })));
    }

    #[test]
    fn enabling_a_device_sets_two_bits_of_its_command_register_and_keeps_the_others() {
        let folder = std::env::temp_dir().join(format!("rnic-{}-enable", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        let error = enable(&folder.join("missing")).expect_err("no such device").to_string();
        assert!(error.contains("missing/enable") && error.contains("root"), "{error}");
        let mut config = [0xEE; 64];
        config[4..6].copy_from_slice(&0x0541_u16.to_le_bytes());
        std::fs::write(folder.join("config"), config).expect("a file");
        enable(&folder).expect("both files can be written");
        config[4..6].copy_from_slice(&0x0547_u16.to_le_bytes());
        assert_eq!(std::fs::read(folder.join("config")).expect("a file"), config);
        assert_eq!(std::fs::read(folder.join("enable")).expect("a file"), b"1");
        // The kernel refuses to enable a device that a driver has.
        std::fs::remove_file(folder.join("enable")).expect("was written");
        symlink("/sys/bus/pci/drivers/uio_pci_generic", folder.join("driver")).expect("a link");
        enable(&folder).expect("its driver has enabled it");
        assert!(!folder.join("enable").exists());
        std::fs::remove_file(folder.join("driver")).expect("ours");
        std::fs::remove_dir_all(&folder).expect("ours");
    }

    #[test]
    fn pages_that_may_move_have_no_bus_addresses() {
        let mut files = Files::new("pagemap", 2 << 20, 0x2000);
        files.0.bus = BusAddresses::Pagemap;
        let error = PciCard::open(&files.0).expect_err("not on hugetlbfs");
        assert!(matches!(error, PciError::NotHugePages(_)), "{error}");
    }

    #[test]
    fn neighbouring_pages_are_one_run() {
        const HERE: u64 = 1 << 63;
        let entries = [HERE | 8, HERE | 9, HERE | 4, HERE | 5, HERE | 6];
        let runs = runs_of(entries.into_iter(), 0x1000).expect("all are here");
        assert_eq!(runs, [Run::new(0x8000, 0, 0x2000), Run::new(0x4000, 0x2000, 0x3000)]);
        assert_eq!(runs_of([HERE].into_iter(), 0x1000), None, "hidden");
        assert_eq!(runs_of([9].into_iter(), 0x1000), None, "swapped out");
    }
}
