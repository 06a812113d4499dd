//! Protection domains and memory regions: which keys open which memory to whom.
//!
//! Knows no queue and no packet. Every access, local or remote, comes through [`Regions::translate`].

use softrnic_engine::{RKey, Reason};

use super::error::Error;
use super::table::Table;
use crate::memory::Memory;

/// A protection domain's handle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Pd(pub(super) u32);

impl Pd {
    /// Its number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// A local key: names a memory region in scatter/gather elements.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LKey(pub u32);

/// What a memory region allows (`ibv_access_flags`). Local reading is always allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AccessFlags {
    /// Receives, READs and atomics of our own may write to it.
    pub local_write: bool,
    /// Peers may READ it.
    pub remote_read: bool,
    /// Peers may WRITE it; needs `local_write`.
    pub remote_write: bool,
    /// Peers may execute atomics on it; needs `local_write`.
    pub remote_atomic: bool,
}

impl AccessFlags {
    /// Everything is allowed.
    pub const ALL: Self =
        Self { local_write: true, remote_read: true, remote_write: true, remote_atomic: true };
    /// Only local accesses are allowed, writes too.
    pub const LOCAL: Self =
        Self { local_write: true, remote_read: false, remote_write: false, remote_atomic: false };
}

/// A registered memory region (`ibv_mr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mr {
    /// Its protection domain.
    pub pd: Pd,
    /// First virtual address: what scatter/gather elements and peers call its first byte.
    pub va: u64,
    /// Bytes.
    pub len: u64,
    /// Key for own work requests.
    pub lkey: LKey,
    /// Key for peers. The same number as `lkey`; the region's access flags tell what it opens.
    pub rkey: RKey,
}

/// What someone wants to do with a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Right {
    LocalRead,
    LocalWrite,
    RemoteRead,
    RemoteWrite,
    RemoteAtomic,
}

#[derive(Clone, Copy, Debug)]
struct Region {
    pd: Pd,
    va: u64,
    len: u64,
    /// Bus address of the byte at `va`.
    address: u64,
    access: AccessFlags,
    /// SEND WITH INVALIDATE has not closed it.
    open: bool,
}

/// The device's protection domains and memory regions.
#[derive(Clone, Debug, Default)]
pub(super) struct Regions {
    /// Users (memory regions and queue pairs) of each protection domain.
    domains: Table<u32>,
    regions: Table<Region>,
}

impl Regions {
    pub(super) fn alloc_pd(&mut self) -> Result<Pd, Error> {
        self.domains.insert(0).map(Pd).ok_or(Error::Exhausted("protection domain"))
    }

    pub(super) fn dealloc_pd(&mut self, pd: Pd) -> Result<(), Error> {
        match self.domains.get(pd.0) {
            None => Err(Error::UnknownPd(pd)),
            Some(0) => {
                self.domains.remove(pd.0);
                Ok(())
            }
            Some(&users) => Err(Error::PdInUse { pd, users }),
        }
    }

    /// Notes one more user of a protection domain.
    pub(super) fn hold_pd(&mut self, pd: Pd) -> Result<(), Error> {
        *self.domains.get_mut(pd.0).ok_or(Error::UnknownPd(pd))? += 1;
        Ok(())
    }

    /// Notes one user less.
    pub(super) fn release_pd(&mut self, pd: Pd) {
        if let Some(users) = self.domains.get_mut(pd.0) {
            *users -= 1;
        }
    }

    /// Registers `[address, address + len)` under the virtual addresses from `va` on.
    pub(super) fn register(
        &mut self,
        pd: Pd,
        address: u64,
        len: u64,
        va: u64,
        access: AccessFlags,
        memory: &impl Memory,
    ) -> Result<Mr, Error> {
        if (access.remote_write || access.remote_atomic) && !access.local_write {
            return Err(Error::LocalWriteMissing);
        }
        let max = (u64::MAX - va.max(address)).min(LEN_MAX);
        if !(1..=max).contains(&len) {
            return Err(Error::OutOfRange { what: "len", given: len, min: 1, max });
        }
        touch(address, len, memory)?;
        self.hold_pd(pd)?;
        let region = Region { pd, va, len, address, access, open: true };
        let Some(key) = self.regions.insert(region) else {
            self.release_pd(pd);
            return Err(Error::Exhausted("memory region"));
        };
        Ok(Mr { pd, va, len, lkey: LKey(key), rkey: RKey(key) })
    }

    /// Every region that is open.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Mr, AccessFlags)> {
        self.regions.iter().filter(|(_, region)| region.open).map(|(key, region)| {
            let Region { pd, va, len, access, .. } = *region;
            (Mr { pd, va, len, lkey: LKey(key), rkey: RKey(key) }, access)
        })
    }

    pub(super) fn deregister(&mut self, lkey: LKey) -> Result<(), Error> {
        let region = self.regions.remove(lkey.0).ok_or(Error::UnknownMr(lkey))?;
        self.release_pd(region.pd);
        Ok(())
    }

    /// Closes a region until it is deregistered. Chosen: any region of the domain may be named, and
    /// its local key closes with it, since both keys are one.
    pub(super) fn invalidate(&mut self, pd: Pd, key: RKey) -> Result<(), Reason> {
        let region = self.regions.get_mut(key.0).filter(|region| region.open);
        let region = region.ok_or(Reason::KeyUnknown)?;
        if region.pd != pd {
            return Err(Reason::ProtectionDomain);
        }
        region.open = false;
        Ok(())
    }

    /// The bus address of `[va, va + len)` under `key`, if a member of `pd` may do that (rule S-46).
    #[inline]
    pub(super) fn translate(
        &self,
        pd: Pd,
        key: u32,
        va: u64,
        len: u64,
        right: Right,
    ) -> Result<u64, Reason> {
        let region = self.regions.get(key).filter(|region| region.open);
        let region = region.ok_or(Reason::KeyUnknown)?;
        if region.pd != pd {
            return Err(Reason::ProtectionDomain);
        }
        let allowed = match right {
            Right::LocalRead => true,
            Right::LocalWrite => region.access.local_write,
            Right::RemoteRead => region.access.remote_read,
            Right::RemoteWrite => region.access.remote_write,
            Right::RemoteAtomic => region.access.remote_atomic,
        };
        if !allowed {
            return Err(Reason::AccessRights);
        }
        // Neither side of the comparison can wrap: `start` is at most `region.len` where `len` counts.
        let Some(start) = va.checked_sub(region.va) else { return Err(Reason::AddressRange) };
        if start > region.len || len > region.len - start {
            return Err(Reason::AddressRange);
        }
        Ok(region.address + start)
    }
}

/// Looks at one byte of each page, as registration on hardware pins each page, so that later
/// accesses do not fail half way. Chosen: memory is assumed to come and go in whole pages.
fn touch(address: u64, len: u64, memory: &impl Memory) -> Result<(), Error> {
    let last = address + (len - 1);
    let mut at = address;
    loop {
        memory.read(at, &mut [0]).map_err(Error::NotMemory)?;
        if at == last {
            return Ok(());
        }
        at = match (at & !(PAGE_LEN - 1)).checked_add(PAGE_LEN) {
            Some(next) => next.min(last),
            None => last,
        };
    }
}

const PAGE_LEN: u64 = 4096;
/// Chosen: 2^48, so that registering nonsense does not walk for ever; real devices stop earlier.
const LEN_MAX: u64 = 1 << 48;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Ram;

    #[test]
    fn s_46_every_edge_of_a_region_is_checked() {
        let ram = Ram::new(0x1000, 0x2000);
        let mut regions = Regions::default();
        let (pd, other) = (regions.alloc_pd().unwrap(), regions.alloc_pd().unwrap());
        let access =
            AccessFlags { local_write: false, remote_read: true, ..AccessFlags::default() };
        let va = u64::MAX - 0x1000;
        let mr = regions.register(pd, 0x1800, 0x1000, va, access, &ram).unwrap();
        let ask = |pd, key, va, len, right| regions.translate(pd, key, va, len, right);
        let key = mr.rkey.0;
        assert_eq!(ask(pd, key, va, 0x1000, Right::RemoteRead), Ok(0x1800));
        assert_eq!(ask(pd, key, va + 0xFFF, 1, Right::LocalRead), Ok(0x27FF));
        assert_eq!(ask(pd, key, va - 1, 1, Right::RemoteRead), Err(Reason::AddressRange));
        assert_eq!(ask(pd, key, va + 0xFFF, 2, Right::RemoteRead), Err(Reason::AddressRange));
        assert_eq!(ask(pd, key, va + 1, u64::MAX, Right::RemoteRead), Err(Reason::AddressRange));
        assert_eq!(ask(pd, key, u64::MAX, 16, Right::RemoteRead), Err(Reason::AddressRange));
        assert_eq!(ask(other, key, va, 1, Right::RemoteRead), Err(Reason::ProtectionDomain));
        assert_eq!(ask(pd, key + 1, va, 1, Right::RemoteRead), Err(Reason::KeyUnknown));
        for right in [Right::LocalWrite, Right::RemoteWrite, Right::RemoteAtomic] {
            assert_eq!(ask(pd, key, va, 1, right), Err(Reason::AccessRights));
        }
    }

    #[test]
    fn registration_refuses_what_is_not_memory() {
        let ram = Ram::new(0x1800, 0x1000);
        let mut regions = Regions::default();
        let pd = regions.alloc_pd().unwrap();
        let mut register =
            |address, len| regions.register(pd, address, len, address, AccessFlags::ALL, &ram);
        assert!(register(0x1800, 0x1000).is_ok());
        let fault = |address| Err(Error::NotMemory(crate::memory::DmaFault { address, len: 1 }));
        assert_eq!(register(0x1800, 0x1001), fault(0x2800));
        assert_eq!(register(0x17FF, 2), fault(0x17FF));
        assert!(matches!(register(0x1800, 0), Err(Error::OutOfRange { .. })));
        assert!(matches!(register(u64::MAX - 4, 8), Err(Error::OutOfRange { .. })));
        let remote = AccessFlags { remote_write: true, ..AccessFlags::default() };
        let refused = regions.register(pd, 0x1800, 8, 0, remote, &ram);
        assert_eq!(refused, Err(Error::LocalWriteMissing));
        assert_eq!(regions.dealloc_pd(pd), Err(Error::PdInUse { pd, users: 1 }));
    }
}
