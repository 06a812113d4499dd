//! Modify queue pair: one table says which attributes each transition of each service needs and takes
//! (IBTA vol 1, 10.3.1 and 11.2.5.2; rules M). Everything else is refused, and nothing changes.
//!
//! Faces translate their own formats to [`Modify`]. It must not know what a state does to packets:
//! that is `engine`'s and the two halves'.

use core::fmt;
use core::ops::BitOr;

use crate::engine::Engine;
use crate::face::Face;
use crate::numbers::{Psn, Qpn};
use crate::packet::opcode;
use crate::qp::{Attributes, Path, PathMtu, Qp, RemoteAccess, Service, State};
use crate::reason::Reason;

// The table's words.
use AttributeMask as A;
use QpType::{Gsi, Raw, Rc, Uc, Ud};
use State::{Error, Init, Reset, Rtr, Rts, Sqd, Sqe};

/// A set of attributes of a queue pair. Names and bits are those of verbs (`ibv_qp_attr_mask`); bit 19
/// (`cap`, resizing the queues) is a face's business and has no name here.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct AttributeMask(u32);

macro_rules! attributes {
    ($($constant:ident $bit:literal $name:literal $doc:literal)*) => {
        impl AttributeMask {
            $(#[doc = $doc] pub const $constant: Self = Self(1 << $bit);)*

            /// Each attribute with its name, in the order of the bits.
            pub const ALL: &'static [(Self, &'static str)] = &[$((Self::$constant, $name)),*];
        }
    };
}

attributes! {
    STATE 0 "state" "The state to go to; without it the queue pair stays where it is."
    CUR_STATE 1 "cur_state" "The state that software believes in; a wrong belief is refused."
    EN_SQD_ASYNC_NOTIFY 2 "en_sqd_async_notify" "Whether software wants to hear when SQD has drained."
    ACCESS_FLAGS 3 "access_flags" "What the peer may do."
    PKEY_INDEX 4 "pkey_index" "The partition key (here the key itself)."
    PORT 5 "port" "The port's number."
    QKEY 6 "qkey" "The queue key."
    AV 7 "av" "The address vector: where packets go."
    PATH_MTU 8 "path_mtu" "The path MTU."
    TIMEOUT 9 "timeout" "The local ACK timeout code."
    RETRY_CNT 10 "retry_cnt" "Retries without progress."
    RNR_RETRY 11 "rnr_retry" "Retries after RNR NAK."
    RQ_PSN 12 "rq_psn" "The PSN of the first request to arrive."
    MAX_RD_ATOMIC 13 "max_rd_atomic" "READs and atomics that we keep outstanding."
    ALT_PATH 14 "alt_path" "The alternate path."
    MIN_RNR_TIMER 15 "min_rnr_timer" "The timer code of the RNR NAKs that we send."
    SQ_PSN 16 "sq_psn" "The PSN of the first request to leave."
    MAX_DEST_RD_ATOMIC 17 "max_dest_rd_atomic" "READs and atomics that the peer may keep outstanding."
    PATH_MIG_STATE 18 "path_mig_state" "The path migration state."
    DEST_QPN 20 "dest_qpn" "The peer's queue pair."
}

impl AttributeMask {
    /// No attribute.
    pub const NONE: Self = Self(0);

    /// All of these.
    #[must_use]
    pub const fn of<const N: usize>(each: [Self; N]) -> Self {
        let mut bits = 0;
        let mut i = 0;
        while i < N {
            bits |= each[i].0;
            i += 1;
        }
        Self(bits)
    }

    /// Whether all of `other` are in it.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Those that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for AttributeMask {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Display for AttributeMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (_, name) in Self::ALL.iter().filter(|(bit, _)| self.has(*bit)) {
            write!(f, "{separator}{name}")?;
            separator = ", ";
        }
        Ok(())
    }
}

impl fmt::Debug for AttributeMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

/// What the table distinguishes: the service, and whether it is the general services' queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Unreliable datagram with number 1: general services (or 0, subnet management).
    Gsi,
    /// Software builds and reads whole frames.
    Raw,
}

impl QpType {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Rc, Self::Uc, Self::Ud, Self::Gsi, Self::Raw];

    /// What a queue pair is.
    #[must_use]
    pub const fn of(service: Service, qpn: Qpn) -> Self {
        match service {
            Service::Rc => Self::Rc,
            Service::Uc => Self::Uc,
            Service::Ud if qpn.get() <= 1 => Self::Gsi,
            Service::Ud => Self::Ud,
            Service::RawFrame => Self::Raw,
        }
    }
}

impl fmt::Display for QpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::Gsi => "GSI",
            Self::Raw => "RAW",
        })
    }
}

/// One step between two states.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transition {
    /// Whose.
    pub qp_type: QpType,
    /// From this state.
    pub from: State,
    /// To this one.
    pub to: State,
}

impl fmt::Display for Transition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} to {}", self.qp_type, self.from, self.to)
    }
}

impl Transition {
    /// The attributes that must and that may be given, besides the state itself. `None`: there is
    /// no such transition.
    #[must_use]
    pub fn attributes(&self) -> Option<(AttributeMask, AttributeMask)> {
        let row = TABLE.iter().find(|row| {
            row.to == self.to && row.from.contains(&self.from) && row.types.contains(&self.qp_type)
        })?;
        Some((row.required, row.optional))
    }
}

/// What to change: `set` names the values that count (`ibv_qp_attr` with its mask).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Modify {
    /// Which of the others are meant.
    pub set: AttributeMask,
    /// The state to go to.
    pub state: State,
    /// The state that software believes in.
    pub cur_state: State,
    /// Going to SQD: announce when everything that was started has ended.
    pub en_sqd_async_notify: bool,
    /// What the peer may do.
    pub access_flags: RemoteAccess,
    /// Partition key; the face has looked it up.
    pub pkey: u16,
    /// Port number. There is one port: 1.
    pub port: u8,
    /// Queue key.
    pub qkey: u32,
    /// Address vector.
    pub av: Path,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// Local ACK timeout code, 0..=31.
    pub timeout: u8,
    /// Retries without progress, 0..=7.
    pub retry_cnt: u8,
    /// Retries after RNR NAK, 0..=7; 7 for ever.
    pub rnr_retry: u8,
    /// PSN of the first request to arrive, below 2^24.
    pub rq_psn: u32,
    /// READs and atomics that we keep outstanding.
    pub max_rd_atomic: u8,
    /// RNR NAK timer code, 0..=31.
    pub min_rnr_timer: u8,
    /// PSN of the first request to leave, below 2^24.
    pub sq_psn: u32,
    /// READs and atomics that the peer may keep outstanding.
    pub max_dest_rd_atomic: u8,
    /// Path migration state; only [`PathMigState::Migrated`] is offered.
    pub path_mig_state: PathMigState,
    /// The peer's queue pair, below 2^24.
    pub dest_qpn: u32,
}

impl Default for Modify {
    /// Nothing is set.
    fn default() -> Self {
        let attributes = Attributes::default();
        Self {
            set: AttributeMask::NONE,
            state: State::Reset,
            cur_state: State::Reset,
            en_sqd_async_notify: false,
            access_flags: RemoteAccess { read: false, write: false, atomic: false },
            pkey: attributes.pkey,
            port: PORT,
            qkey: attributes.qkey,
            av: attributes.path,
            path_mtu: attributes.path_mtu,
            timeout: attributes.ack_timeout,
            retry_cnt: attributes.retry_count,
            rnr_retry: attributes.rnr_retry,
            rq_psn: 0,
            max_rd_atomic: attributes.max_rd_atomic,
            min_rnr_timer: attributes.min_rnr_timer,
            sq_psn: 0,
            max_dest_rd_atomic: attributes.max_dest_rd_atomic,
            path_mig_state: PathMigState::Migrated,
            dest_qpn: 0,
        }
    }
}

/// Path migration state, numbered as verbs do (`ibv_mig_state`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PathMigState {
    /// One path is used.
    #[default]
    Migrated = 0,
    /// An alternate path was given and is not armed yet.
    Rearm = 1,
    /// Migration may happen at any time.
    Armed = 2,
}

/// A queue pair as software may see it (`ibv_query_qp`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpQuery {
    /// Its state.
    pub state: State,
    /// In SQD: something that was started has not ended.
    pub sq_draining: bool,
    /// What was set.
    pub attributes: Attributes,
    /// PSN expected of the next request, live.
    pub rq_psn: Psn,
    /// PSN of the next new request, live.
    pub sq_psn: Psn,
}

/// Why a modification was refused. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ModifyError {
    /// There is no such queue pair.
    UnknownQp(Qpn),
    /// The state does not lead to the other one.
    NoTransition(Transition),
    /// Required attributes are not set.
    Missing(Transition, AttributeMask),
    /// Attributes are set that the transition does not take.
    NotTaken(Transition, AttributeMask),
    /// `cur_state` is not the state.
    OtherState {
        /// What software believes.
        cur_state: State,
        /// What is.
        state: State,
    },
    /// What was started before SQD has not ended.
    Draining(Transition),
    /// A value is out of range.
    OutOfRange {
        /// Whose.
        attribute: AttributeMask,
        /// The value given.
        given: u32,
        /// The smallest that would do.
        min: u32,
        /// The largest.
        max: u32,
    },
    /// The transition takes the attribute, but path migration is not offered.
    NotOffered(AttributeMask),
}

impl ModifyError {
    /// The reason under which a face counts it.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        match self {
            Self::UnknownQp(_) => Reason::VerbsHandle,
            Self::NoTransition(_) | Self::OtherState { .. } | Self::Draining(_) => {
                Reason::QpNotReady
            }
            Self::Missing(..)
            | Self::NotTaken(..)
            | Self::OutOfRange { .. }
            | Self::NotOffered(_) => Reason::VerbsAttribute,
        }
    }
}

impl fmt::Display for ModifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownQp(qpn) => write!(f, "no queue pair {qpn}"),
            Self::NoTransition(step) => {
                write!(f, "{} cannot go from {} to {}", step.qp_type, step.from, step.to)
            }
            Self::Missing(step, attributes) => write!(f, "{step} needs {attributes}"),
            Self::NotTaken(step, attributes) => write!(f, "{step} does not take {attributes}"),
            Self::OtherState { cur_state, state } => {
                write!(f, "cur_state is {cur_state}, but the queue pair is in {state}")
            }
            Self::Draining(step) => write!(
                f,
                "{step} must wait until the send queue has drained; only RESET and ERR are possible now"
            ),
            Self::OutOfRange { attribute, given, min, max } => {
                write!(f, "{attribute} is {given}; it must be {min} to {max}")
            }
            Self::NotOffered(attribute) => {
                write!(f, "{attribute} is not offered: there is no path migration")
            }
        }
    }
}

impl core::error::Error for ModifyError {}

/// Modify and query.
impl Engine {
    /// Changes attributes and state of a queue pair as verbs do (`ibv_modify_qp`). Faces whose
    /// registers know no such rules write [`Engine::attributes_mut`] and call
    /// [`Engine::set_state`].
    ///
    /// Which work may be posted in which state is the face's to check (rule M-03): receives from
    /// INIT on, sends from RTS on; in SQD they wait, in SQE and ERR they flush when the doorbell
    /// rings. On RESET the face empties its queues too. That a queue pair's number is not used
    /// again soon, and that PSNs start at random, is the face's and its software's (rule M-09).
    ///
    /// # Errors
    /// The attribute at fault; nothing has changed then (rule M-01). The face counts it under
    /// [`ModifyError::reason`].
    pub fn modify_qp(
        &mut self,
        qpn: Qpn,
        modify: &Modify,
        face: &mut impl Face,
    ) -> Result<(), ModifyError> {
        let step = check(self.qp(qpn).ok_or(ModifyError::UnknownQp(qpn))?, modify)?;
        if let Some(attributes) = self.attributes_mut(qpn) {
            apply(modify, &step, attributes);
        }
        self.set_state(qpn, step.to, face);
        // RESET makes everything start anew, PSNs too (rule M-08).
        let given = |attribute, psn| match step.to {
            State::Reset => Some(Psn::new(0)),
            _ => modify.set.has(attribute).then(|| Psn::new(psn)),
        };
        if let Some(psn) = given(A::SQ_PSN, modify.sq_psn) {
            self.set_send_psn(qpn, psn);
        }
        if let Some(psn) = given(A::RQ_PSN, modify.rq_psn) {
            self.set_expected_psn(qpn, psn, opcode::SEND_ONLY);
        }
        Ok(())
    }

    /// What was set, and what is live (`ibv_query_qp`). Unknown numbers give `None`.
    #[must_use]
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpQuery> {
        let qp = self.qp(qpn)?;
        Some(QpQuery {
            state: qp.state(),
            sq_draining: qp.send_queue_draining(),
            attributes: *qp.attributes(),
            rq_psn: qp.expected_psn(),
            sq_psn: qp.send_psn(),
        })
    }
}

fn check(qp: &Qp, modify: &Modify) -> Result<Transition, ModifyError> {
    let from = qp.state();
    let to = if modify.set.has(A::STATE) { modify.state } else { from };
    let step = Transition { qp_type: QpType::of(qp.attributes().service, qp.qpn()), from, to };
    let (required, optional) = step.attributes().ok_or(ModifyError::NoTransition(step))?;
    let missing = required.without(modify.set);
    if !missing.is_empty() {
        return Err(ModifyError::Missing(step, missing));
    }
    let not_taken = modify.set.without(required | optional | A::STATE);
    if !not_taken.is_empty() {
        return Err(ModifyError::NotTaken(step, not_taken));
    }
    if modify.set.has(A::CUR_STATE) && modify.cur_state != from {
        return Err(ModifyError::OtherState { cur_state: modify.cur_state, state: from });
    }
    // Chosen for rule M-05: both ways out of any state stay open.
    if qp.send_queue_draining() && !matches!(to, State::Reset | State::Error) {
        return Err(ModifyError::Draining(step));
    }
    check_values(qp.attributes(), modify)?;
    Ok(step)
}

/// Rule M-02.
fn check_values(attributes: &Attributes, modify: &Modify) -> Result<(), ModifyError> {
    let depth = u32::from(attributes.policy.max_rd_atomic_depth);
    let mtu = attributes.policy.max_path_mtu as u32;
    let port = u32::from(PORT);
    let ranges = [
        (A::PORT, modify.port.into(), port, port),
        (A::PATH_MTU, modify.path_mtu as u32, PathMtu::M256 as u32, mtu),
        (A::TIMEOUT, modify.timeout.into(), 0, 31),
        (A::RETRY_CNT, modify.retry_cnt.into(), 0, 7),
        (A::RNR_RETRY, modify.rnr_retry.into(), 0, 7),
        (A::RQ_PSN, modify.rq_psn, 0, Psn::MODULUS - 1),
        (A::MAX_RD_ATOMIC, modify.max_rd_atomic.into(), 0, depth),
        (A::MIN_RNR_TIMER, modify.min_rnr_timer.into(), 0, 31),
        (A::SQ_PSN, modify.sq_psn, 0, Psn::MODULUS - 1),
        (A::MAX_DEST_RD_ATOMIC, modify.max_dest_rd_atomic.into(), 0, depth),
        (A::DEST_QPN, modify.dest_qpn, 0, QPN_MAX),
    ];
    for (attribute, given, min, max) in ranges {
        if modify.set.has(attribute) && !(min..=max).contains(&given) {
            return Err(ModifyError::OutOfRange { attribute, given, min, max });
        }
    }
    if modify.set.has(A::ALT_PATH) {
        return Err(ModifyError::NotOffered(A::ALT_PATH));
    }
    if modify.set.has(A::PATH_MIG_STATE) && modify.path_mig_state != PathMigState::Migrated {
        return Err(ModifyError::NotOffered(A::PATH_MIG_STATE));
    }
    Ok(())
}

/// Writes what is set; PSNs and the state have other homes.
fn apply(modify: &Modify, step: &Transition, attributes: &mut Attributes) {
    let set = modify.set;
    put(set.has(A::ACCESS_FLAGS), modify.access_flags, &mut attributes.remote_access);
    put(set.has(A::PKEY_INDEX), modify.pkey, &mut attributes.pkey);
    put(set.has(A::QKEY), modify.qkey, &mut attributes.qkey);
    put(set.has(A::AV), modify.av, &mut attributes.path);
    put(set.has(A::PATH_MTU), modify.path_mtu, &mut attributes.path_mtu);
    put(set.has(A::TIMEOUT), modify.timeout, &mut attributes.ack_timeout);
    put(set.has(A::RETRY_CNT), modify.retry_cnt, &mut attributes.retry_count);
    put(set.has(A::RNR_RETRY), modify.rnr_retry, &mut attributes.rnr_retry);
    put(set.has(A::MAX_RD_ATOMIC), modify.max_rd_atomic, &mut attributes.max_rd_atomic);
    put(set.has(A::MIN_RNR_TIMER), modify.min_rnr_timer, &mut attributes.min_rnr_timer);
    put(
        set.has(A::MAX_DEST_RD_ATOMIC),
        modify.max_dest_rd_atomic,
        &mut attributes.max_dest_rd_atomic,
    );
    put(set.has(A::DEST_QPN), Qpn::new(modify.dest_qpn), &mut attributes.dest_qpn);
    // Asked for at each drain anew.
    let drains = step.from == State::Rts && step.to == State::Sqd;
    let notify = set.has(A::EN_SQD_ASYNC_NOTIFY) && modify.en_sqd_async_notify;
    put(drains, notify, &mut attributes.sqd_async_notify);
}

fn put<T>(is_set: bool, value: T, home: &mut T) {
    if is_set {
        *home = value;
    }
}

/// The only port's number.
const PORT: u8 = 1;
const QPN_MAX: u32 = 0x00FF_FFFF;

/// A row of the table: these types may go from each of these states to that one.
struct Row {
    types: &'static [QpType],
    from: &'static [State],
    to: State,
    required: AttributeMask,
    optional: AttributeMask,
}

const fn row(
    types: &'static [QpType],
    from: &'static [State],
    to: State,
    required: AttributeMask,
    optional: AttributeMask,
) -> Row {
    Row { types, from, to, required, optional }
}

/// What may change at any time once sends may be posted.
const UD_ANY: A = A::of([A::CUR_STATE, A::QKEY]);
const UC_ANY: A = A::of([A::CUR_STATE, A::ACCESS_FLAGS, A::ALT_PATH, A::PATH_MIG_STATE]);
const RC_ANY: A = A::of([UC_ANY, A::MIN_RNR_TIMER]);
/// What needs a drained send queue.
const UC_DRAINED: A =
    A::of([A::AV, A::ALT_PATH, A::ACCESS_FLAGS, A::PKEY_INDEX, A::PATH_MIG_STATE]);
const RC_DRAINED: A = A::of([
    UC_DRAINED,
    A::PORT,
    A::TIMEOUT,
    A::RETRY_CNT,
    A::RNR_RETRY,
    A::MAX_RD_ATOMIC,
    A::MAX_DEST_RD_ATOMIC,
    A::MIN_RNR_TIMER,
]);
const UC_PEER: A = A::of([A::AV, A::PATH_MTU, A::DEST_QPN, A::RQ_PSN]);
const RC_PEER: A = A::of([UC_PEER, A::MAX_DEST_RD_ATOMIC, A::MIN_RNR_TIMER]);
const RC_SEND: A = A::of([A::SQ_PSN, A::TIMEOUT, A::RETRY_CNT, A::RNR_RETRY, A::MAX_RD_ATOMIC]);
const CONNECTED: A = A::of([A::PKEY_INDEX, A::PORT, A::ACCESS_FLAGS]);
const DATAGRAM: A = A::of([A::PKEY_INDEX, A::PORT, A::QKEY]);
const KEYS: A = A::of([A::PKEY_INDEX, A::QKEY]);

/// The table, as Linux and libibverbs have it: the port of a GSI queue pair was chosen when it was
/// created, so that it is not given. Chosen: RESET to ERR is refused, as verbs do; XRC has no rows
/// because there is no such service yet.
const TABLE: &[Row] = &[
    row(&QpType::ALL, &State::ALL, Reset, A::NONE, A::NONE),
    row(&QpType::ALL, &[Init, Rtr, Rts, Sqd, Sqe, Error], Error, A::NONE, A::NONE),
    row(&[Rc, Uc], &[Reset], Init, CONNECTED, A::NONE),
    row(&[Ud], &[Reset], Init, DATAGRAM, A::NONE),
    row(&[Gsi], &[Reset], Init, KEYS, A::NONE),
    row(&[Raw], &[Reset], Init, A::PORT, A::NONE),
    row(&[Rc, Uc], &[Init], Init, A::NONE, CONNECTED),
    row(&[Ud], &[Init], Init, A::NONE, DATAGRAM),
    row(&[Gsi], &[Init], Init, A::NONE, KEYS),
    row(&[Raw], &[Init], Init, A::NONE, A::PORT),
    row(&[Rc], &[Init], Rtr, RC_PEER, A::of([A::ALT_PATH, A::ACCESS_FLAGS, A::PKEY_INDEX])),
    row(&[Uc], &[Init], Rtr, UC_PEER, A::of([A::ALT_PATH, A::ACCESS_FLAGS, A::PKEY_INDEX])),
    row(&[Ud, Gsi], &[Init], Rtr, A::NONE, KEYS),
    row(&[Raw], &[Init], Rtr, A::NONE, A::NONE),
    row(&[Rc], &[Rtr], Rts, RC_SEND, RC_ANY),
    row(&[Uc], &[Rtr], Rts, A::SQ_PSN, UC_ANY),
    row(&[Ud, Gsi], &[Rtr], Rts, A::SQ_PSN, UD_ANY),
    row(&[Raw], &[Rtr], Rts, A::NONE, A::NONE),
    row(&[Rc], &[Rts, Sqd], Rts, A::NONE, RC_ANY),
    row(&[Uc], &[Rts, Sqd], Rts, A::NONE, UC_ANY),
    row(&[Ud, Gsi], &[Rts, Sqd], Rts, A::NONE, UD_ANY),
    row(&[Raw], &[Rts, Sqd], Rts, A::NONE, A::NONE),
    row(&QpType::ALL, &[Rts], Sqd, A::NONE, A::EN_SQD_ASYNC_NOTIFY),
    row(&[Rc], &[Sqd], Sqd, A::NONE, RC_DRAINED),
    row(&[Uc], &[Sqd], Sqd, A::NONE, UC_DRAINED),
    row(&[Ud, Gsi], &[Sqd], Sqd, A::NONE, KEYS),
    row(&[Raw], &[Sqd], Sqd, A::NONE, A::NONE),
    row(&[Uc], &[Sqe], Rts, A::NONE, A::of([A::CUR_STATE, A::ACCESS_FLAGS])),
    row(&[Ud, Gsi], &[Sqe], Rts, A::NONE, UD_ANY),
    row(&[Raw], &[Sqe], Rts, A::NONE, A::NONE),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m_01_no_transition_stands_in_two_rows() {
        for (i, row) in TABLE.iter().enumerate() {
            assert!((row.required.0 & row.optional.0) == 0, "row {i}");
            for other in &TABLE[..i] {
                let common = other.to == row.to
                    && row.from.iter().any(|from| other.from.contains(from))
                    && row.types.iter().any(|of| other.types.contains(of));
                assert!(!common, "row {i}");
            }
        }
    }
}
