//! Verbs for programs with threads: a NIC on a real link, with the names and semantics of libibverbs.
//!
//! One thread owns the NIC and its link. Work requests reach it through a ring for each queue pair, completions
//! come back through a ring for each completion queue; polling never asks the thread. What changes objects
//! (create, modify, destroy) does, and waits for its answer. Objects keep alive what they stand on, so that they
//! may be dropped in any order, and dropping the last handle destroys. Memory is owned by both sides: a region
//! that was forgotten stays readable and writable for the NIC and harms nobody.
//!
//! What a verb means is the native face's ([`softrnic_device::verbs`]) and what goes over the wire is the
//! engine's; here are threads, rings and shared memory only.
//!
//! ```
//! use std::time::Duration;
//!
//! use softrnic_host::link::QemuStream;
//! use softrnic_host::port::PortConfig;
//! use softrnic_host::verbs::{
//!     AccessFlags, Connection, Context, Options, Payload, QpInit, RecvRequest, SendRequest, Status,
//!     WorkCompletion,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! const SECOND: Duration = Duration::from_secs(1);
//! // A wire with a NIC at each end.
//! let (left, right) = std::os::unix::net::UnixStream::pair()?;
//! let mut ends = Vec::new();
//! for (number, socket) in [(1, left), (2, right)] {
//!     let ip = [192, 0, 2, number].into();
//!     let mac = [2, 0, 0, 0, 0, number];
//!     let port = PortConfig { mac, ipv4: Some((ip, 24)), ..PortConfig::default() };
//!     let link = QemuStream::over(socket.into(), "wire".into(), 1500)?;
//!     let nic = Context::over(Box::new(link), Options { port, ..Options::default() })?;
//!     let pd = nic.alloc_pd()?;
//!     let cq = nic.create_cq(16)?;
//!     let mr = pd.reg_mr(4096, AccessFlags::LOCAL)?;
//!     let qp = pd.create_qp(&QpInit::new(&cq))?;
//!     ends.push((nic, cq, mr, qp, ip));
//! }
//! // Each asks for the other's MAC address, and connects.
//! for (near, far) in [(0, 1), (1, 0)] {
//!     let path = ends[near].0.path_to(ends[far].4.into(), SECOND)?;
//!     let dest_qpn = ends[far].3.qpn();
//!     ends[near].3.connect(&Connection { path, dest_qpn, ..Connection::default() })?;
//! }
//! let [(_, a_cq, a_mr, a_qp, _), (_, b_cq, b_mr, b_qp, _)] = &ends[..] else { unreachable!() };
//!
//! b_qp.post_recv(&RecvRequest { wr_id: 7, sges: &[b_mr.sge(0, 64)] })?;
//! a_mr.write(0, b"hello")?;
//! let hello = [a_mr.sge(0, 5)];
//! let payload = Payload::Sges(&hello);
//! a_qp.post_send(&SendRequest { payload, signaled: true, ..SendRequest::default() })?;
//!
//! let mut done = [WorkCompletion::default()];
//! assert_eq!((a_cq.wait(&mut done, SECOND), done[0].status), (1, Status::Success));
//! assert_eq!((b_cq.wait(&mut done, SECOND), done[0].wr_id, done[0].byte_len), (1, 7, 5));
//! let mut text = [0; 5];
//! b_mr.read(0, &mut text)?;
//! assert_eq!(&text, b"hello");
//! # Ok(())
//! # }
//! ```

mod buffer;
mod connections;
mod context;
mod cq;
mod domain;
mod doorbell;
mod error;
mod nic;
mod qp;
mod rings;

pub use crate::cm::Wanted;
pub use buffer::{Buffer, SharedMemory};
pub use connections::Connections;
pub use context::{Context, Counters, Event, Options};
pub use cq::{CompletionChannel, Cq};
pub use domain::{Ah, Mr, Pd};
pub use error::{BadRequest, Error};
pub use qp::{Qp, QpInit, Srq};
pub use softrnic_device::verbs::{
    AccessFlags, AsyncEvent, Connection, Error as Refusal, LKey, MULTICAST_QPN, Payload,
    RecvRequest, SendOp, SendRequest, Sge, UdAddress, WcOpcode, WorkCompletion,
};
pub use softrnic_engine::{
    AttributeMask, Modify, Path, PathMtu, Psn, QpQuery, Qpn, RKey, Reason, RemoteAccess, Service,
    State, Status,
};
