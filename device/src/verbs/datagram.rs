//! Datagrams: address handles, multicast groups and the GSI queue pair.
//!
//! Knows no packet. Who may send where is decided when the work request is executed.

use core::net::IpAddr;

use softrnic_engine::{Datagram, Path, Qpn, Reason, Service, multicast_mac};

use super::error::Error;
use super::qp::{GSI_QKEY, GSI_QPN, QpInit};
use super::region::Pd;
use super::{Verbs, qp};
use crate::memory::Memory;
use crate::nic::{Device, Nic};

/// An address handle's handle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Ah(pub(super) u32);

/// Where a datagram goes (`wr.ud` of `ibv_send_wr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UdAddress {
    /// The address handle. It is looked up when the datagram is sent, so it must live until then.
    pub ah: Ah,
    /// The peer's queue pair; [`MULTICAST_QPN`] where the handle names a group.
    pub remote_qpn: Qpn,
    /// The peer's queue key; with bit 31 set, our queue pair's own is sent (rule U-11).
    pub remote_qkey: u32,
}

/// The queue pair number of multicast datagrams (IBTA vol 1, 10.5.2).
pub const MULTICAST_QPN: Qpn = Qpn::new(0x00FF_FFFF);

/// An address vector, and whom it belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct AddressHandle {
    pd: Pd,
    path: Path,
}

/// Datagrams.
impl<M: Memory> Nic<Verbs, M> {
    /// Creates an address handle (`ibv_create_ah`). For a multicast group the MAC address follows
    /// from the group (rule F-64), whatever `path` says.
    ///
    /// # Errors
    /// The domain is unknown, or all 2^24 - 1 handles are taken.
    pub fn create_ah(&mut self, pd: Pd, path: &Path) -> Result<Ah, Error> {
        let device = &mut self.device;
        let result = device.regions.hold_pd(pd).and_then(|()| {
            let dest_mac = multicast_mac(path.dest_ip).unwrap_or(path.dest_mac);
            let handle = AddressHandle { pd, path: Path { dest_mac, ..*path } };
            device.ahs.insert(handle).map(Ah).ok_or_else(|| {
                device.regions.release_pd(pd);
                Error::Exhausted("address handle")
            })
        });
        self.counted(result)
    }

    /// Destroys an address handle (`ibv_destroy_ah`). Datagrams that still need it fail.
    ///
    /// # Errors
    /// It is unknown.
    pub fn destroy_ah(&mut self, ah: Ah) -> Result<(), Error> {
        let device = &mut self.device;
        let result = match device.ahs.remove(ah.0) {
            None => Err(Error::UnknownAh(ah)),
            Some(handle) => {
                device.regions.release_pd(handle.pd);
                Ok(())
            }
        };
        self.counted(result)
    }

    /// Creates the GSI queue pair: number 1, UD whatever `init` says. [`Nic::connect`] gives it
    /// queue key 0x80010000 and the default partition key (P_Key index 0).
    ///
    /// # Errors
    /// As `create_qp`, or there is one already.
    pub fn create_gsi_qp(&mut self, init: &QpInit) -> Result<Qpn, Error> {
        let init = QpInit { service: Service::Ud, ..*init };
        let result = self.try_create_qp(&init, qp::QueuePairs::reserve_gsi);
        self.counted(result)
    }

    /// Attaches a datagram queue pair to a multicast group (`ibv_attach_mcast`); twice counts once.
    /// The first one of a group raises [`super::AsyncEvent::MulticastJoin`]. Chosen: what this
    /// network interface itself sends to the group comes back only if the link brings it.
    ///
    /// # Errors
    /// The queue pair is unknown or not UD, or the address is not multicast.
    pub fn attach_multicast(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), Error> {
        let result = self.device.check_group(qpn, group);
        if result.is_ok() {
            let Self { engine, device, memory } = self;
            engine.attach_multicast(qpn, group, &mut device.view(memory));
        }
        self.counted(result)
    }

    /// Detaches a queue pair from a multicast group (`ibv_detach_mcast`). The last one of a group
    /// raises [`super::AsyncEvent::MulticastLeave`].
    ///
    /// # Errors
    /// As [`Nic::attach_multicast`], or it is not attached.
    pub fn detach_multicast(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), Error> {
        let result = self.device.check_group(qpn, group).and_then(|()| {
            let Self { engine, device, memory } = self;
            let attached = engine.detach_multicast(qpn, group, &mut device.view(memory));
            if attached { Ok(()) } else { Err(Error::NotAttached { qpn, group }) }
        });
        self.counted(result)
    }
}

impl Verbs {
    /// Where the datagram at a send queue's index goes.
    pub(super) fn datagram(&self, q: Qpn, index: u32) -> Result<Datagram, Reason> {
        let qp = self.qps.get(q).ok_or(Reason::QpUnknown)?;
        let to = qp.send.entry(index).ud.ok_or(Reason::PathIncomplete)?;
        let handle = self.ahs.get(to.ah.0).ok_or(Reason::VerbsHandle)?;
        if handle.pd != qp.pd {
            return Err(Reason::ProtectionDomain);
        }
        Ok(Datagram { path: handle.path, dest_qpn: to.remote_qpn, qkey: to.remote_qkey })
    }

    fn check_group(&self, qpn: Qpn, group: IpAddr) -> Result<(), Error> {
        let qp = self.qps.get(qpn).ok_or(Error::UnknownQp(qpn))?;
        if qp.service != Service::Ud {
            return Err(Error::NotDatagram(qpn));
        }
        if group.is_multicast() { Ok(()) } else { Err(Error::NotMulticast(group)) }
    }
}

/// The keys of a queue pair: those asked for, or the GSI's own.
pub(super) fn keys(qpn: Qpn, pkey: u16, qkey: u32) -> (u16, u32) {
    if qpn == GSI_QPN { (0xFFFF, GSI_QKEY) } else { (pkey, qkey) }
}
