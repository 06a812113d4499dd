//! RDMA connection management: how two queue pairs find each other (IBTA vol 1, chapter 12; annex A11
//! for RDMA CM over IP). Without IO: datagrams, time and random starting numbers are arguments.
//!
//! [`message`] is bytes; [`Cm`] is the state of many connections, active and passive. Neither knows a
//! queue pair's rings, a socket or a clock. Numbers for timeouts and retries are those of Linux.
//! [`agent`] joins them to a device, by [`native::NativeGsi`] or [`ernic::ErnicGsi`].
//!
//! ```
//! use softrnic_host::cm::{Accept, Cm, CmConfig, Connect, Event, LocalQp, Peer, message};
//! use softrnic_engine::{Nanos, Qpn};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let [a, b] = ["192.0.2.1", "192.0.2.2"].map(|ip| ip.parse::<std::net::IpAddr>());
//! let (a, b) = (a?, b?);
//! let mut active = Cm::new(CmConfig { ca_guid: 1, addresses: vec![a], ..CmConfig::default() });
//! let mut passive = Cm::new(CmConfig { ca_guid: 2, addresses: vec![b], ..CmConfig::default() });
//! let now = Nanos(0);
//! let carry = |from: &mut Cm, to: &mut Cm, ip| {
//!     while let Some((_, mad)) = from.poll_transmit() {
//!         assert_eq!(to.handle_mad(now, Peer { ip, qpn: Qpn::new(1) }, &*mad), Ok(()));
//!     }
//! };
//!
//! passive.listen(message::tcp_service(7174), 3)?;
//! let qp = LocalQp { qpn: Qpn::new(5), ..LocalQp::default() };
//! let ours = active.connect(now, &Connect { qp, ..Connect::tcp(a, 50_000, b, 7174, &[])? })?;
//! carry(&mut active, &mut passive, a);
//! let Some(Event::Requested { id: theirs, .. }) = passive.poll_event() else { panic!() };
//! passive.accept(now, theirs, &Accept { qp: LocalQp { qpn: Qpn::new(9), ..qp }, ..Accept::default() })?;
//! carry(&mut passive, &mut active, b);
//! assert!(matches!(active.poll_event(), Some(Event::Replied { .. })));
//! assert_eq!(active.parameters(ours).map(|p| p.dest_qpn), Some(Qpn::new(9)));
//! active.ready(ours)?;
//! carry(&mut active, &mut passive, a);
//! assert!(matches!(passive.poll_event(), Some(Event::Established { .. })));
//! # Ok(())
//! # }
//! ```

pub mod agent;
mod connection;
pub mod ernic;
mod fields;
pub(crate) mod inbox;
mod machine;
pub mod message;
pub mod native;
mod receive;
mod refusal;

pub use connection::{
    Accept, CmConfig, CommId, Connect, End, Error, Event, LocalQp, Parameters, Peer, State,
};
pub use fields::{Field, Show};
pub use inbox::Wanted;
pub use machine::{Cm, CmCounters};
pub use refusal::{Refusal, Reject};
