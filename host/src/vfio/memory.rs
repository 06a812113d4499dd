//! Guest memory: what a client has mapped, by file descriptor, and nothing else.
//!
//! A map is refused unless its file can be relied on: a memfd that nobody can make shorter, because an
//! access behind the end of a file kills the process. The guest changes its memory while we look, so it is
//! only ever copied, by volatile accesses (vm-memory). Knows no message and no device.

use std::fmt;
use std::fs::File;
use std::os::fd::OwnedFd;

use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals, fstat};
use rustix::mm::{MapFlags, ProtFlags};
use softrnic_device::{DmaFault, Memory};
use thiserror::Error;
use vm_memory::mmap::MmapRegionError;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

use super::wire::{MAPS_MAX, PAGE_LEN};

/// Why memory cannot be mapped or unmapped.
#[derive(Debug, Error)]
pub enum MapError {
    /// Address, size or file offset is not a multiple of 4096, or the range wraps, or is empty.
    #[error(
        "a map of {len:#x} bytes at {address:#x} is not made of whole pages of the address space"
    )]
    NotPages {
        /// First bus address.
        address: u64,
        /// Bytes.
        len: u64,
    },
    /// Some of it is mapped already.
    #[error("{len:#x} bytes at {address:#x} overlap what is mapped at {other:#x}")]
    Overlap {
        /// First bus address.
        address: u64,
        /// Bytes.
        len: u64,
        /// First bus address of the other map.
        other: u64,
    },
    /// There are too many.
    #[error("{MAPS_MAX} pieces of memory are mapped already, which is the limit")]
    TooMany,
    /// Guest RAM came without a file descriptor.
    #[error(
        "guest memory at {address:#x} comes without a file descriptor, so the device cannot reach it. \
         Start QEMU with `-object memory-backend-memfd,id=ram,size=...,share=on -machine memory-backend=ram`"
    )]
    NoDescriptor {
        /// First bus address.
        address: u64,
    },
    /// The file can be made shorter.
    #[error(
        "the file behind guest memory is no memfd that can be sealed against shrinking. Use \
         `-object memory-backend-memfd,...,share=on`, without `seal=off`"
    )]
    CanShrink,
    /// The file is shorter than the map.
    #[error("the file behind guest memory has {file_len:#x} bytes; the map ends at {end:#x}")]
    BehindEnd {
        /// Bytes of the file.
        file_len: u64,
        /// Where in the file the map ends.
        end: u64,
    },
    /// The operating system refuses.
    #[error("guest memory cannot be mapped: {0}")]
    System(#[from] MmapRegionError),
    /// A map would be cut in two.
    #[error("unmapping {len:#x} bytes at {address:#x} would cut what is mapped at {other:#x}")]
    Cut {
        /// First bus address.
        address: u64,
        /// Bytes.
        len: u64,
        /// First bus address of the map.
        other: u64,
    },
}

/// What a client offers to map.
#[derive(Debug)]
pub struct MapRequest {
    /// First bus address.
    pub address: u64,
    /// Bytes.
    pub len: u64,
    /// The device may read it.
    pub readable: bool,
    /// The device may write it.
    pub writable: bool,
    /// Its file, and where in the file it begins.
    pub file: Option<(OwnedFd, u64)>,
}

/// One map. Without `region` it is an address range that the device cannot reach: ROM, or memory of
/// another device.
#[derive(Debug)]
struct Map {
    start: u64,
    /// Last address: a range may end with the address space.
    last: u64,
    readable: bool,
    writable: bool,
    region: Option<MmapRegion>,
}

/// Accesses of the device that reached no memory, by cause.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct RefusedAccesses {
    /// Bus mastering was off.
    pub not_bus_master: u64,
    /// Nothing is mapped there, or it is mapped without a file descriptor.
    pub unmapped: u64,
    /// It is mapped, but not for this direction.
    pub forbidden: u64,
}

/// The memory of a guest, as its device sees it.
#[derive(Default)]
pub struct GuestMemory {
    /// By address; never overlapping.
    maps: Vec<Map>,
    bus_master: bool,
    refused: std::cell::Cell<RefusedAccesses>,
}

impl fmt::Debug for GuestMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges = self.maps.iter().map(|map| format!("{:#x}..={:#x}", map.start, map.last));
        f.debug_struct("GuestMemory")
            .field("maps", &ranges.collect::<Vec<_>>())
            .field("bus_master", &self.bus_master)
            .field("refused", &self.refused.get())
            .finish()
    }
}

impl GuestMemory {
    /// Nothing is mapped, and bus mastering is off.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets the device reach memory, or not. A virtual machine monitor does not stop a device whose bus
    /// mastering is off: memory is shared, so this is where it is stopped.
    pub const fn set_bus_master(&mut self, enabled: bool) {
        self.bus_master = enabled;
    }

    /// What did not reach memory.
    #[must_use]
    pub fn refused(&self) -> RefusedAccesses {
        self.refused.get()
    }

    /// Pieces that are mapped.
    #[must_use]
    pub fn len(&self) -> usize {
        self.maps.len()
    }

    /// Whether nothing is mapped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.maps.is_empty()
    }

    /// Maps memory. A map without file descriptor is remembered as a range that is out of reach, but the
    /// first memory that the device could write must have one: it is the guest's RAM.
    ///
    /// # Errors
    /// See [`MapError`]; nothing has changed then. Returns whether the device can reach it.
    pub fn map(&mut self, request: MapRequest) -> Result<bool, MapError> {
        let MapRequest { address, len, readable, writable, file } = request;
        let offset = file.as_ref().map_or(0, |file| file.1);
        let whole = [address, len, offset].iter().all(|value| value.is_multiple_of(PAGE_LEN));
        let last = len.checked_sub(1).and_then(|rest| address.checked_add(rest));
        let Some(last) = last.filter(|_| whole) else {
            return Err(MapError::NotPages { address, len });
        };
        let at = self.maps.partition_point(|map| map.last < address);
        if let Some(other) = self.maps.get(at).filter(|other| other.start <= last) {
            return Err(MapError::Overlap { address, len, other: other.start });
        }
        if self.maps.len() == MAPS_MAX {
            return Err(MapError::TooMany);
        }
        let region = match file {
            Some((file, offset)) => Some(map_file(file, offset, len, readable, writable)?),
            None if writable && !self.has_ram() => return Err(MapError::NoDescriptor { address }),
            None => None,
        };
        let reachable = region.is_some();
        self.maps.insert(at, Map { start: address, last, readable, writable, region });
        Ok(reachable)
    }

    /// Unmaps everything in a range; that may be nothing, as Linux' type 1 IOMMU has it too: a guest's IOMMU
    /// empties all of an address space, whatever was in it. Maps are not cut.
    ///
    /// # Errors
    /// It is no range, or only a part of a map is meant; nothing has changed then.
    pub fn unmap(&mut self, address: u64, len: u64) -> Result<(), MapError> {
        let last = len.checked_sub(1).and_then(|rest| address.checked_add(rest));
        let last = last.ok_or(MapError::NotPages { address, len })?;
        let from = self.maps.partition_point(|map| map.last < address);
        let to = self.maps.partition_point(|map| map.start <= last);
        let cut = |map: &&Map| map.start < address || map.last > last;
        if let Some(other) = self.maps[from..to].iter().find(cut) {
            return Err(MapError::Cut { address, len, other: other.start });
        }
        self.maps.drain(from..to);
        Ok(())
    }

    /// Unmaps everything.
    pub fn clear(&mut self) {
        self.maps.clear();
    }

    fn has_ram(&self) -> bool {
        self.maps.iter().any(|map| map.writable && map.region.is_some())
    }

    /// Calls `copy` for each piece of a range, with the range of the caller's bytes that it stands for,
    /// after the whole range was found to be reachable.
    fn pieces(
        &self,
        address: u64,
        len: usize,
        write: bool,
        mut copy: impl FnMut(VolatileSlice<'_>, std::ops::Range<usize>),
    ) -> Result<(), DmaFault> {
        let fault = DmaFault { address, len };
        if !self.bus_master {
            self.count(|refused| refused.not_bus_master += 1);
            return Err(fault);
        }
        if len == 0 {
            return Ok(());
        }
        let first = self.maps.partition_point(|map| map.last < address);
        // Almost every access lies in one map; only others are walked twice.
        let inside = |map: &Map| map.start <= address && (len as u64 - 1) <= map.last - address;
        if !self.maps.get(first).is_some_and(|map| inside(map) && map.reaches(write)) {
            self.check(first, fault, write)?;
        }
        let (mut done, mut at) = (0, address);
        for map in &self.maps[first..] {
            let Some(region) = map.region.as_ref() else { break };
            let offset = (at - map.start) as usize;
            let here = (region.size() - offset).min(len - done);
            let Ok(slice) = region.get_slice(offset, here) else { break };
            copy(slice, done..done + here);
            done += here;
            if done == len {
                return Ok(());
            }
            at += here as u64;
        }
        Err(fault)
    }

    /// Whether maps from `first` on cover all of a range, for this direction.
    fn check(&self, first: usize, fault: DmaFault, write: bool) -> Result<(), DmaFault> {
        let refuse = |count: fn(&mut RefusedAccesses)| {
            self.count(count);
            Err(fault)
        };
        let mut next = fault.address;
        let Some(last) = fault.address.checked_add(fault.len as u64 - 1) else {
            return refuse(|refused| refused.unmapped += 1);
        };
        for map in &self.maps[first..] {
            if map.start > next || map.region.is_none() {
                break;
            }
            if !map.reaches(write) {
                return refuse(|refused| refused.forbidden += 1);
            }
            if map.last >= last {
                return Ok(());
            }
            next = map.last + 1;
        }
        refuse(|refused| refused.unmapped += 1)
    }

    fn count(&self, count: impl FnOnce(&mut RefusedAccesses)) {
        let mut refused = self.refused.get();
        count(&mut refused);
        self.refused.set(refused);
    }
}

impl Map {
    const fn reaches(&self, write: bool) -> bool {
        self.region.is_some() && if write { self.writable } else { self.readable }
    }
}

impl Memory for GuestMemory {
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), DmaFault> {
        self.pieces(address, out.len(), false, |slice, range| {
            slice.copy_to(&mut out[range]);
        })
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), DmaFault> {
        self.pieces(address, bytes.len(), true, |slice, range| slice.copy_from(&bytes[range]))
    }
}

/// Maps a part of a memfd that cannot be made shorter.
fn map_file(
    file: OwnedFd,
    offset: u64,
    len: u64,
    readable: bool,
    writable: bool,
) -> Result<MmapRegion, MapError> {
    let sealed =
        |file: &OwnedFd| fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
    if !sealed(&file) && fcntl_add_seals(&file, SealFlags::SHRINK).is_err() {
        return Err(MapError::CanShrink);
    }
    let system = |error: std::io::Error| MapError::System(MmapRegionError::Mmap(error));
    let file_len = fstat(&file).map_err(|errno| system(errno.into()))?.st_size.max(0) as u64;
    let end = offset.saturating_add(len);
    if end > file_len {
        return Err(MapError::BehindEnd { file_len, end });
    }
    let size = usize::try_from(len).map_err(|_| MapError::BehindEnd { file_len, end })?;
    let protections = [(readable, ProtFlags::READ), (writable, ProtFlags::WRITE)];
    let protection = protections.into_iter().filter(|pair| pair.0).map(|pair| pair.1);
    let protection = protection.collect::<ProtFlags>().bits().cast_signed();
    let file = FileOffset::new(File::from(file), offset);
    let shared = MapFlags::SHARED.bits().cast_signed();
    Ok(MmapRegion::build(Some(file), size, protection, shared)?)
}
