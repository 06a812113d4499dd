//! Why a verb was refused or could not be carried out, for people.

use std::io;
use std::net::IpAddr;

use softrnic_device::verbs;
use thiserror::Error as ThisError;

use crate::link::LinkError;

/// Why a call failed. Nothing was changed.
#[derive(Debug, ThisError)]
pub enum Error {
    /// The native face refused it.
    #[error(transparent)]
    Verb(#[from] verbs::Error),
    /// Connection management refused it.
    #[error(transparent)]
    Connection(#[from] crate::cm::Error),
    /// The link cannot be opened.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The NIC's thread has ended.
    #[error("the NIC has stopped")]
    Stopped,
    /// A call from inside of another one would wait for itself.
    #[error("the NIC's own thread cannot wait for the NIC")]
    OnNicThread,
    /// A peer's MAC address is not known.
    #[error("{ip}: {why}")]
    Unresolved {
        /// The peer.
        ip: IpAddr,
        /// What is the matter, and the way out.
        why: &'static str,
    },
    /// A range leaves a buffer.
    #[error("{len} bytes at offset {offset} leave a buffer of {size} bytes")]
    OutsideBuffer {
        /// First byte.
        offset: usize,
        /// Bytes.
        len: usize,
        /// Bytes of the buffer.
        size: usize,
    },
    /// An offset is no multiple of 8.
    #[error("offset {0} is no multiple of 8")]
    Misaligned(usize),
    /// There is no memory.
    #[error("no memory for a buffer of {0} bytes")]
    OutOfMemory(usize),
    /// Two objects belong to different NICs.
    #[error("the {0} belongs to another NIC")]
    ForeignObject(&'static str),
    /// The operating system refused something.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// What the operating system says.
        source: io::Error,
    },
}

impl Error {
    pub(super) fn os(what: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Os { what, source: source.into() }
    }
}

/// A list of work requests was refused in part: those before `index` were accepted, the others not looked at
/// (`bad_wr` of `ibv_post_send`).
#[derive(Debug, ThisError)]
#[error("work request {index} of the list: {error}")]
pub struct BadRequest {
    /// Position of the refused request in the list.
    pub index: usize,
    /// Why it was refused.
    pub error: Error,
}
