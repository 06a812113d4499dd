//! The queue pair commands as one table: their opcodes, the states that they start from, what each always
//! applies and what only where `opt_param_mask` asks for it.
//!
//! What the mask does not name for a command is ignored, never refused, and stored fields that a command
//! does not own stay: drivers build each context from scratch. Nothing is applied here.

use core::fmt;

use super::codes::{QpState, ServiceType};
use super::context::At::{Main, Path};
use super::context::{Field, PathField};
use super::field::Side;
use super::field_set::FieldSet;

// The table's words.
use QpState::{Err, Init, Rst, Rtr, Rts, SqDraining, Sqd, Sqer};
use ServiceType::{Mlx, RawEth, Rc, Uc, Ud, Xrc};

/// A queue pair command. Linux and iPXE use the same opcodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "they are the commands of the same names")]
pub enum Command {
    Rst2Init,
    Init2Rtr,
    Rtr2Rts,
    Rts2Rts,
    Sqerr2Rts,
    ToErr,
    Rts2Sqd,
    Sqd2Rts,
    ToRst,
    Query,
    Init2Init,
    Suspend,
    Unsuspend,
    Sqd2Sqd,
    Update,
}

/// What a command does to the state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Goes to this state.
    To(QpState),
    /// Reads the context.
    Read,
    /// Not offered: bad opcode.
    NotOffered,
}

/// One command.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Which.
    pub command: Command,
    /// HCR opcode.
    pub opcode: u16,
    /// As drivers call it.
    pub name: &'static str,
    /// It may start from these states.
    pub from: &'static [QpState],
    /// For these services.
    pub services: &'static [ServiceType],
    /// What becomes of the state.
    pub effect: Effect,
    /// Applied whatever the mask says.
    pub always: FieldSet,
    /// Mask bits that it takes.
    pub optional: u32,
}

/// A bit of `opt_param_mask`.
#[derive(Clone, Copy, Debug)]
pub struct MaskBit {
    /// Its number.
    pub bit: u8,
    /// As Linux calls it.
    pub name: &'static str,
    /// What it brings.
    pub fields: FieldSet,
}

/// All states, SQ draining included.
const ANY: &[QpState] = &[Rst, Init, Rtr, Rts, Sqer, Sqd, Err, SqDraining];

const PRIMARY: FieldSet = FieldSet::path(Side::Primary);
const PKEY: FieldSet = primary(PathField::PkeyIndex);
const SCHED_QUEUE: FieldSet = primary(PathField::SchedQueue);
const COUNTER: FieldSet = primary(PathField::CounterIndex);
const ACK_TIMEOUT: FieldSet = primary(PathField::AckTimeout);

const fn primary(field: PathField) -> FieldSet {
    FieldSet::NONE.with(Path(Side::Primary, field))
}

/// Chosen: whoever gives a path gives its P_Key index with a bit of its own; Linux leaves it 0 in the path
/// of INIT2RTR.
const NEW_PATH: FieldSet = PRIMARY.without(Path(Side::Primary, PathField::PkeyIndex));

/// Chosen: a path that is given again leaves alone what has a bit of its own and is 0 in Linux's box
/// unless that bit is set.
const OTHER_PATH: FieldSet = NEW_PATH
    .without(Path(Side::Primary, PathField::AckTimeout))
    .without(Path(Side::Primary, PathField::CounterIndex));

/// The bits of the mask. Others mean nothing here.
pub const MASK_BITS: &[MaskBit] = &[
    bit(0, "ALT_ADDR_PATH", FieldSet::path(Side::Alternate)),
    bit(1, "RRE", FieldSet::of(&[Field::Rre])),
    bit(2, "RAE", FieldSet::of(&[Field::Rae])),
    bit(3, "RWE", FieldSet::of(&[Field::Rwe])),
    bit(4, "PKEY_INDEX", PKEY),
    bit(5, "Q_KEY", FieldSet::of(&[Field::QKey])),
    bit(6, "RNR_TIMEOUT", FieldSet::of(&[Field::MinRnrNak])),
    bit(7, "PRIMARY_ADDR_PATH", OTHER_PATH),
    bit(8, "SRA_MAX", FieldSet::of(&[Field::SraMax])),
    bit(9, "RRA_MAX", FieldSet::of(&[Field::RraMax])),
    bit(10, "PM_STATE", FieldSet::of(&[Field::PmState])),
    bit(12, "RETRY_COUNT", FieldSet::of(&[Field::RetryCount])),
    bit(13, "RNR_RETRY", FieldSet::of(&[Field::RnrRetry])),
    bit(14, "ACK_TIMEOUT", ACK_TIMEOUT),
    bit(16, "SCHED_QUEUE", SCHED_QUEUE),
    bit(20, "COUNTER_INDEX", COUNTER),
    bit(21, "VLAN_STRIPPING", FieldSet::of(&[Field::Vsd])),
];

const fn bit(bit: u8, name: &'static str, fields: FieldSet) -> MaskBit {
    MaskBit { bit, name, fields }
}

/// What a queue pair is created with: everything that no later command brings.
const CREATION: FieldSet = FieldSet::of(&[
    Field::St,
    Field::Rss,
    Field::PmState,
    Field::Pd,
    Field::LogRqSize,
    Field::LogRqStride,
    Field::SqNoPrefetch,
    Field::LogSqSize,
    Field::LogSqStride,
    Field::Rlky,
    Field::UsrPage,
    Field::Fre,
    Field::CqnSnd,
    Field::PhysicalFunction,
    Field::Rre,
    Field::Rwe,
    Field::Rae,
    Field::PageOffset,
    Field::Ric,
    Field::Fpp,
    Field::XrcdHi,
    Field::Srcd,
    Field::CqnRcv,
    Field::DbRecordAddrH,
    Field::DbRecordAddrL,
    Field::TunnelMode,
    Field::Srq,
    Field::Srqn,
    Field::RateLimitParams,
    Field::QosVport,
    Field::MkeyRmp,
    Field::Vsd,
    Field::KeepFcs,
    Field::Rme,
    Field::Is,
    Field::Hs,
    Field::RmcParentQpn,
    Field::NumRmcPeers,
    Field::BaseMkey,
    Field::Log2PageSize,
    Field::MttBaseAddrH,
    Field::MttBaseAddrL,
    Field::Ve,
    Field::CsCtl,
    Field::VftPrio,
    Field::VftLan,
    Field::Fc,
    Field::ExchSize,
    Field::ExchBase,
    Field::RemoteId,
    Field::VftHopCount,
    Field::MyIdIndx,
    Field::FcpMtu,
])
.union(PKEY)
.union(SCHED_QUEUE);

/// Whom it talks to.
const PEER: FieldSet = FieldSet::of(&[
    Field::Mtu,
    Field::MsgMax,
    Field::RoceMode,
    Field::RemoteQpnEen,
    Field::RraMax,
    Field::MinRnrNak,
    Field::NextRcvPsn,
])
.union(NEW_PATH);

/// How it sends. Of the path only the timeout: Linux leaves the rest 0 here.
const SENDING: FieldSet = FieldSet::of(&[
    Field::AckReqFreq,
    Field::SraMax,
    Field::RetryCount,
    Field::RnrRetry,
    Field::NextSendPsn,
    Field::RoceEntropy,
])
.union(ACK_TIMEOUT);

const NOTHING: FieldSet = FieldSet::NONE;

/// The commands. Required parameters apply whatever the mask says: iPXE and Linux's Ethernet driver send
/// mask 0 and expect everything to take effect. Which parameter is required where is the split of the
/// InfiniBand verbs; the vendor's own table is not public.
pub const COMMANDS: &[Row] = {
    use Command::*;
    use Effect::{NotOffered, Read, To};
    &[
        row(Rst2Init, 0x19, "RST2INIT_QP", &[Rst], To(Init), CREATION, &[1, 2, 3, 4, 5, 16]),
        row(Init2Rtr, 0x1A, "INIT2RTR_QP", &[Init], To(Rtr), PEER, &[0, 1, 2, 3, 4, 5, 16, 20]),
        row(Rtr2Rts, 0x1B, "RTR2RTS_QP", &[Rtr], To(Rts), SENDING, &[0, 1, 2, 3, 6, 10]),
        row(Rts2Rts, 0x1C, "RTS2RTS_QP", &[Rts], To(Rts), NOTHING, &[0, 1, 2, 3, 5, 6, 10, 20, 21]),
        row(Sqerr2Rts, 0x1D, "SQERR2RTS_QP", &[Sqer], To(Rts), NOTHING, &[0, 1, 2, 3, 5, 6, 10]),
        row(ToErr, 0x1E, "2ERR_QP", ANY, To(Err), NOTHING, &[]),
        row(Rts2Sqd, 0x1F, "RTS2SQD_QP", &[Rts], To(Sqd), NOTHING, &[]),
        row(Sqd2Rts, 0x20, "SQD2RTS_QP", &[Sqd], To(Rts), NOTHING, &[0, 1, 2, 3, 5, 6, 10]),
        row(ToRst, 0x21, "2RST_QP", ANY, To(Rst), NOTHING, &[]),
        row(Query, 0x22, "QUERY_QP", ANY, Read, NOTHING, &[]),
        row(Init2Init, 0x2D, "INIT2INIT_QP", &[Init], To(Init), NOTHING, &[1, 2, 3, 4, 5, 16]),
        row(Suspend, 0x32, "SUSPEND_QP", &[], NotOffered, NOTHING, &[]),
        row(Unsuspend, 0x33, "UNSUSPEND_QP", &[], NotOffered, NOTHING, &[]),
        row(
            Sqd2Sqd,
            0x38,
            "SQD2SQD_QP",
            &[Sqd],
            To(Sqd),
            NOTHING,
            &[0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 12, 13, 14, 16],
        ),
        row(Update, 0x61, "UPDATE_QP", &[], NotOffered, NOTHING, &[]),
    ]
};

const fn row(
    command: Command,
    opcode: u16,
    name: &'static str,
    from: &'static [QpState],
    effect: Effect,
    always: FieldSet,
    optional: &[u8],
) -> Row {
    let (mut mask, mut i) = (0, 0);
    while i < optional.len() {
        mask |= 1 << optional[i];
        i += 1;
    }
    // A reliable connection fails as a whole: its send queue alone has no error state.
    let services = match command {
        Command::Sqerr2Rts => UNRELIABLE,
        _ => TAKEN,
    };
    Row { command, opcode, name, from, services, effect, always, optional: mask }
}

impl Command {
    /// By HCR opcode; `None` where it is no queue pair command.
    #[must_use]
    pub fn from_opcode(opcode: u16) -> Option<Self> {
        COMMANDS.iter().find(|row| row.opcode == opcode).map(|row| row.command)
    }

    /// Its row.
    #[must_use]
    pub const fn row(self) -> &'static Row {
        &COMMANDS[self as usize]
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().name)
    }
}

impl Row {
    /// The fields that a command brings with this mask to a queue pair of this service.
    #[must_use]
    pub fn brings(&self, mask: u32, service: ServiceType) -> FieldSet {
        let asked = |bit: &&MaskBit| mask & self.optional & 1 << bit.bit != 0;
        let mut set =
            MASK_BITS.iter().filter(asked).fold(self.always, |set, bit| set.union(bit.fields));
        // A queue key is a datagram's.
        if self.command == Command::Rst2Init && matches!(service, Ud | Mlx | RawEth) {
            set = set.with(Main(Field::QKey));
        }
        set
    }
}

/// The services that this face takes.
pub const TAKEN: &[ServiceType] = &[Rc, Uc, Ud, Xrc, Mlx, RawEth];

const UNRELIABLE: &[ServiceType] = &[Uc, Ud, Mlx, RawEth];

#[cfg(test)]
mod tests {
    use super::super::context::ROWS;
    use super::super::field::Owner;
    use super::*;

    #[test]
    fn rows_stand_in_the_order_of_the_enum_and_opcodes_are_unique() {
        for (i, row) in COMMANDS.iter().enumerate() {
            assert_eq!(row.command as usize, i);
            assert_eq!(Command::from_opcode(row.opcode), Some(row.command));
        }
        assert_eq!(Command::from_opcode(0x18), None);
    }

    #[test]
    fn mask_bits_that_a_command_takes_are_named() {
        let named = MASK_BITS.iter().fold(0, |mask, bit| mask | 1 << bit.bit);
        assert!(COMMANDS.iter().all(|row| row.optional & !named == 0));
    }

    /// Whatever software can set is brought by some command, and nothing else is.
    #[test]
    fn each_field_that_is_kept_or_the_engines_can_be_set() {
        let by_a_command = COMMANDS
            .iter()
            .fold(FieldSet::NONE, |set, row| set.union(row.brings(u32::MAX, ServiceType::Ud)));
        let brought: alloc::vec::Vec<_> = by_a_command.rows().collect();
        for row in ROWS {
            let name = row.full_name();
            // The command decides the state, and its modifier the number.
            let settable = match row.owner {
                Owner::Engine(_) => !matches!(row.name, "state" | "local_qpn_een"),
                Owner::Face | Owner::Ignored => true,
                Owner::Query(_) | Owner::Reserved => false,
            };
            assert_eq!(brought.contains(&row), settable, "{name}");
        }
    }
}
