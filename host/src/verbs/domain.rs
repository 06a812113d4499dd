//! Protection domains, and what belongs to one: memory regions and address handles.

use std::sync::Arc;

use softrnic_device::verbs::{
    AccessFlags, Ah as AhHandle, LKey, Mr as MrHandle, Pd as PdHandle, Sge, UdAddress,
};
use softrnic_engine::{Path, Qpn, RKey};

use super::buffer::Buffer;
use super::context::Inner;
use super::error::Error;
use super::qp::{Qp, QpInit, Srq};

#[derive(Debug)]
pub(super) struct PdInner {
    pub(super) context: Arc<Inner>,
    pub(super) handle: PdHandle,
}

impl Drop for PdInner {
    fn drop(&mut self) {
        let handle = self.handle;
        let _ = self.context.call(move |nic| nic.station.nic.dealloc_pd(handle));
    }
}

/// A protection domain (`ibv_pd`). A clone is the same domain.
#[derive(Clone, Debug)]
pub struct Pd(pub(super) Arc<PdInner>);

impl Pd {
    pub(super) fn create(context: &Arc<Inner>) -> Result<Self, Error> {
        let handle = context.call(|nic| nic.station.nic.alloc_pd())??;
        Ok(Self(Arc::new(PdInner { context: context.clone(), handle })))
    }

    /// Allocates `len` zero bytes and registers them (`ibv_reg_mr`).
    ///
    /// # Errors
    /// There is no memory, or the flags contradict themselves.
    pub fn reg_mr(&self, len: usize, access: AccessFlags) -> Result<Mr, Error> {
        self.reg_buffer(&Buffer::new(len)?, access)
    }

    /// Registers a buffer, which may have other regions too.
    ///
    /// # Errors
    /// The flags contradict themselves, or all keys are taken.
    pub fn reg_buffer(&self, buffer: &Buffer, access: AccessFlags) -> Result<Mr, Error> {
        self.register(buffer, None, access)
    }

    /// Registers a buffer under the virtual addresses from `va` on (`ibv_reg_mr_iova`); 0 makes the region
    /// zero-based.
    ///
    /// # Errors
    /// As [`Pd::reg_buffer`].
    pub fn reg_mr_iova(&self, buffer: &Buffer, va: u64, access: AccessFlags) -> Result<Mr, Error> {
        self.register(buffer, Some(va), access)
    }

    fn register(&self, buffer: &Buffer, va: Option<u64>, access: AccessFlags) -> Result<Mr, Error> {
        let (pd, for_nic) = (self.0.handle, buffer.clone());
        let (address, handle) = self.0.context.call(move |nic| {
            let len = for_nic.len() as u64;
            let nic = &mut nic.station.nic;
            let address = nic.memory.map(for_nic);
            match nic.reg_mr_iova(pd, address, len, va.unwrap_or(address), access) {
                Ok(handle) => Ok((address, handle)),
                Err(error) => {
                    nic.memory.unmap(address);
                    Err(error)
                }
            }
        })??;
        let inner = MrInner { pd: self.clone(), buffer: buffer.clone(), address, handle };
        Ok(Mr(Arc::new(inner)))
    }

    /// Creates a queue pair in RESET (`ibv_create_qp`).
    ///
    /// # Errors
    /// A size is too large, the service is not offered, or an object belongs to another NIC.
    pub fn create_qp(&self, init: &QpInit<'_>) -> Result<Qp, Error> {
        Qp::create(self, init, false)
    }

    /// Creates the queue pair of the general services: number 1, UD whatever `init` says. [`Qp::connect`] with
    /// defaults gives it queue key 0x80010000 and the default partition key.
    ///
    /// # Errors
    /// As [`Pd::create_qp`], or there is one already.
    pub fn create_gsi_qp(&self, init: &QpInit<'_>) -> Result<Qp, Error> {
        Qp::create(self, init, true)
    }

    /// Creates a shared receive queue that holds `depth` receives of at most `max_sge` elements
    /// (`ibv_create_srq`).
    ///
    /// # Errors
    /// A size is out of range.
    pub fn create_srq(&self, depth: u32, max_sge: u32) -> Result<Srq, Error> {
        Srq::create(self, depth, max_sge)
    }

    /// Creates an address handle (`ibv_create_ah`); [`super::Context::path_to`] finds the path.
    ///
    /// # Errors
    /// All handles are taken.
    pub fn create_ah(&self, path: &Path) -> Result<Ah, Error> {
        let (pd, path) = (self.0.handle, *path);
        let handle = self.0.context.call(move |nic| nic.station.nic.create_ah(pd, &path))??;
        Ok(Ah(Arc::new(AhInner { pd: self.clone(), handle })))
    }
}

#[derive(Debug)]
struct MrInner {
    pd: Pd,
    buffer: Buffer,
    address: u64,
    handle: MrHandle,
}

impl Drop for MrInner {
    fn drop(&mut self) {
        let (lkey, address) = (self.handle.lkey, self.address);
        // When this returns nothing of the NIC points at the buffer any more.
        let _ = self.pd.0.context.call(move |nic| {
            let nic = &mut nic.station.nic;
            if nic.dereg_mr(lkey).is_ok() {
                nic.memory.unmap(address);
            }
        });
    }
}

/// A memory region (`ibv_mr`). A clone is the same region; dropping the last deregisters it, and whatever still
/// uses it fails. Its memory lives as long as the NIC may touch it, even where a handle is forgotten.
///
/// Atomics of peers are atomic among each other, not against this program (`IBV_ATOMIC_HCA`).
#[derive(Clone, Debug)]
pub struct Mr(Arc<MrInner>);

impl Mr {
    /// First virtual address.
    #[must_use]
    pub fn va(&self) -> u64 {
        self.0.handle.va
    }

    /// Key for own work requests.
    #[must_use]
    pub fn lkey(&self) -> LKey {
        self.0.handle.lkey
    }

    /// Key for peers.
    #[must_use]
    pub fn rkey(&self) -> RKey {
        self.0.handle.rkey
    }

    /// The memory, for reading and writing.
    #[must_use]
    pub fn buffer(&self) -> &Buffer {
        &self.0.buffer
    }

    /// A scatter/gather element for `len` bytes from an offset on. What it says is checked when it is used.
    #[must_use]
    pub fn sge(&self, offset: usize, len: u32) -> Sge {
        let address = self.va().wrapping_add(offset as u64);
        Sge { address, length: len, lkey: self.lkey() }
    }
}

/// An [`Mr`] can be read and written as its buffer.
impl std::ops::Deref for Mr {
    type Target = Buffer;

    fn deref(&self) -> &Buffer {
        &self.0.buffer
    }
}

#[derive(Debug)]
struct AhInner {
    pd: Pd,
    handle: AhHandle,
}

impl Drop for AhInner {
    fn drop(&mut self) {
        let handle = self.handle;
        let _ = self.pd.0.context.call(move |nic| nic.station.nic.destroy_ah(handle));
    }
}

/// An address handle (`ibv_ah`). A clone is the same handle. It must live until what is sent with it is complete.
#[derive(Clone, Debug)]
pub struct Ah(Arc<AhInner>);

impl Ah {
    /// A queue pair there, for a datagram; with bit 31 of the key set, the sender's own is sent.
    #[must_use]
    pub fn to(&self, remote_qpn: Qpn, remote_qkey: u32) -> UdAddress {
        UdAddress { ah: self.0.handle, remote_qpn, remote_qkey }
    }
}
