//! Why a queue pair command was refused: the status that the driver sees, and words for people.

use core::fmt;

use softrnic_engine::{Qpn, Reason};

use super::codes::{QpState, ServiceType};
use super::field::FullName;
use super::transitions::Command;

/// Status of a command, as the command register shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Status {
    /// The opcode is unknown or not offered.
    BadOpcode = 0x02,
    /// A value in the box.
    BadParameter = 0x03,
    /// A number beyond what there is.
    BadIndex = 0x0A,
    /// The queue pair's state does not take the command.
    BadQpState = 0x10,
}

/// Why a command was refused. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// No queue pair command has this opcode.
    Unknown(u16),
    /// A command that this device does not offer.
    NotOffered(Command),
    /// The state does not take it.
    WrongState {
        /// What was asked.
        command: Command,
        /// The queue pair's state.
        state: QpState,
    },
    /// A state that this service cannot leave so.
    WrongService {
        /// What was asked.
        command: Command,
        /// The queue pair's service.
        service: ServiceType,
    },
    /// The number's low bits are those of another queue pair.
    OtherQpn {
        /// The number in the command.
        given: Qpn,
        /// The queue pair whose place in the table it is.
        holder: Qpn,
    },
    /// A value that cannot be obeyed.
    Value {
        /// What was asked.
        command: Command,
        /// The field.
        field: FullName,
        /// What it holds.
        given: u32,
        /// What it may hold.
        allowed: &'static str,
        /// A number beyond a table's end, or a wrong value.
        status: Status,
    },
}

impl Refusal {
    /// What the command register shows.
    #[must_use]
    pub const fn status(&self) -> Status {
        match self {
            Self::Unknown(_) | Self::NotOffered(_) => Status::BadOpcode,
            Self::WrongState { .. } | Self::WrongService { .. } => Status::BadQpState,
            Self::OtherQpn { .. } => Status::BadIndex,
            Self::Value { status, .. } => *status,
        }
    }

    /// The reason under which it is counted.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        match self {
            Self::Unknown(_) | Self::NotOffered(_) => Reason::CommandOpcode,
            Self::WrongState { .. } | Self::WrongService { .. } => Reason::CommandState,
            Self::OtherQpn { .. } => Reason::CommandQpn,
            Self::Value { .. } => Reason::ContextValue,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(opcode) => write!(f, "no queue pair command has opcode {opcode:#x}"),
            Self::NotOffered(command) => write!(f, "{command} is not offered"),
            Self::WrongState { command, state } => {
                write!(f, "{command} does not start from {state}")
            }
            Self::WrongService { command, service } => {
                write!(f, "{command} is not for {service}")
            }
            Self::OtherQpn { given, holder } => {
                write!(f, "queue pair {given} has the place of {holder}, which exists")
            }
            Self::Value { command, field, given, allowed, .. } => {
                write!(f, "{command}: {field} is {given:#x}; {allowed}")
            }
        }
    }
}

impl core::error::Error for Refusal {}
