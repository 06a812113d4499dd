//! What can go wrong, each with the thing's name and the way out.

use core::fmt;

use crate::platform::DmaError;
use crate::qp::QpNumber;
use crate::registers::Register;

/// Why the driver could not do what was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Error {
    /// A register reads as all ones: there is no device behind it.
    NoDevice {
        /// The register that was read.
        register: Register,
    },
    /// A register does not keep what was written: there is a device, but it is not an ERNIC.
    ReadBack {
        /// The register.
        register: Register,
        /// What was written.
        wrote: u32,
        /// What it reads.
        read: u32,
    },
    /// The platform has no more DMA memory.
    NoDmaMemory {
        /// What it was for.
        purpose: &'static str,
        /// Bytes asked for.
        len: usize,
    },
    /// A buffer address that is not DMA memory.
    Dma(DmaError),
    /// A setting outside of its range; nothing was written to the device.
    Setting {
        /// The field's name.
        field: &'static str,
        /// Its value.
        value: u64,
        /// What is allowed.
        allowed: &'static str,
    },
    /// All queue pair numbers are taken.
    NoQpFree {
        /// Numbers enabled at bring-up.
        num_qps_enabled: u16,
    },
    /// No queue pair has this number.
    QpUnknown {
        /// The number.
        qp: QpNumber,
    },
    /// The queue pair is connected already, or not yet.
    QpState {
        /// The queue pair.
        qp: QpNumber,
        /// What is wrong, and what to do first.
        problem: &'static str,
    },
    /// All rows of the memory region table are taken.
    NoRegionFree {
        /// Rows of the table.
        rows: u16,
    },
    /// No region is registered in this row.
    RegionUnknown {
        /// The row.
        index: u16,
    },
    /// The send queue is full.
    Full {
        /// The queue pair.
        qp: QpNumber,
        /// Work requests that fit.
        capacity: u16,
    },
    /// More receive elements released than were taken.
    NotTaken {
        /// The queue pair.
        qp: QpNumber,
        /// Elements that may be released.
        taken: u16,
    },
    /// The device reports an index that cannot be.
    RingIndex {
        /// The queue pair.
        qp: QpNumber,
        /// The register whose value it is, or whose memory word.
        register: Register,
        /// The value.
        value: u32,
        /// Depth of the ring.
        depth: u16,
    },
    /// A completion queue entry does not fit the work request that it completes.
    CompletionMismatch {
        /// The queue pair.
        qp: QpNumber,
        /// Work request id in the entry.
        found: u16,
        /// Work request id that was posted in that slot.
        posted: u16,
    },
    /// A register did not reach the value that was waited for.
    Timeout {
        /// The register.
        register: Register,
        /// What was waited for.
        waiting_for: &'static str,
        /// The value last read.
        value: u32,
        /// How often it was read.
        looks: u32,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoDevice { register } => write!(
                f,
                "{register} reads 0xffffffff: no device answers. Check that the resource is the \
                 BAR that holds the ERNIC, that memory access is enabled in the PCI command \
                 register, and that the card is programmed"
            ),
            Self::ReadBack { register, wrote, read } => write!(
                f,
                "{register} reads {read:#010x} after {wrote:#010x} was written: this is not an \
                 ERNIC register map. Check BAR and offset; ERNIC before version 4 has another map"
            ),
            Self::NoDmaMemory { purpose, len } => write!(
                f,
                "no DMA memory for {purpose} ({len} bytes). Give the platform more memory, or ask \
                 for fewer or smaller queues"
            ),
            Self::Dma(error) => write!(
                f,
                "{error}. Use an address inside a buffer that the platform allocated or registered"
            ),
            Self::Setting { field, value, allowed } => {
                write!(f, "{field} = {value} is not possible; allowed: {allowed}")
            }
            Self::NoQpFree { num_qps_enabled } => write!(
                f,
                "no queue pair number is free: {num_qps_enabled} are enabled and QP 1 is for \
                 management. Destroy one, or raise num_qps_enabled at bring-up (at most 2047)"
            ),
            Self::QpUnknown { qp } => write!(f, "{qp} does not exist; create it first"),
            Self::QpState { qp, problem } => write!(f, "{qp} {problem}"),
            Self::NoRegionFree { rows } => write!(
                f,
                "all {rows} rows of the memory region table are taken; deregister a region first"
            ),
            Self::RegionUnknown { index } => {
                write!(f, "row {index} of the memory region table holds no region of ours")
            }
            Self::Full { qp, capacity } => write!(
                f,
                "{qp}: the send queue holds {capacity} work requests already; ring, then poll \
                 completions before posting more"
            ),
            Self::NotTaken { qp, taken } => write!(
                f,
                "{qp}: only {taken} receive elements are taken; release no more than \
                 poll_receive gave"
            ),
            Self::RingIndex { qp, register, value, depth } => write!(
                f,
                "{qp}: the device reports {register} = {value} for a ring of depth {depth} or for \
                 work that was not posted. Destroy the queue pair; if it happens again, the \
                 profile's queue pair offset may be wrong"
            ),
            Self::CompletionMismatch { qp, found, posted } => write!(
                f,
                "{qp}: the completion queue entry names work request {found}, but {posted} was \
                 posted there. Destroy the queue pair; its completion queue memory was overwritten \
                 or an entry was lost"
            ),
            Self::Timeout { register, waiting_for, value, looks } => write!(
                f,
                "{register} still reads {value:#010x} after {looks} looks; waiting for \
                 {waiting_for}. If the device is only slow, raise wait_looks and call again"
            ),
        }
    }
}

impl core::error::Error for Error {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Dma(error) => Some(error),
            _ => None,
        }
    }
}

impl From<DmaError> for Error {
    fn from(error: DmaError) -> Self {
        Self::Dma(error)
    }
}
