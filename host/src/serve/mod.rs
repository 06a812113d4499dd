//! A device process: one thread owns a station and turns it for ever; everybody else asks it through a
//! channel, so that no packet meets a lock.
//!
//! | file | what |
//! |---|---|
//! | `server` | the owning thread: turns, waits, loses its link and gets it back |
//! | `ask` | how other threads ask the owner, and wake it |
//! | `attachment` | what else the owner serves between turns: a virtual machine, or the echo |
//! | `echo` | connects whoever asks by RDMA CM, and sends messages back |
//! | `reopen` | opens the link, and again after it went away |
//! | `unplugged` | the link that is none |
//! | `state` | what there is to see, as plain data |
//! | `control` | the control socket's requests and answers |
//! | `metrics` | counters as Prometheus reads them |
//! | `listen` | the threads behind both sockets |
//! | `signals` | SIGINT and SIGTERM |

mod ask;
mod attachment;
mod control;
pub mod echo;
mod listen;
mod metrics;
mod reopen;
mod server;
mod signals;
mod state;
mod unplugged;

pub use ask::{Asker, Stopped};
pub use attachment::Attachment;
pub use control::{COMMANDS, ask_socket};
pub use reopen::{Plugged, first_link};
pub use server::{Event, Options, ServeError, Served, Server};
pub use signals::StopSignals;
pub use state::{FaultState, LinkState, NeighbourEntry, ServeState};
