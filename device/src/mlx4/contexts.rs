//! Contexts applied to queue pairs of the engine, and read back from them.
//!
//! What the engine's queue pair holds is read from it and written to it; the rest is stored here, once. A
//! command is checked whole before anything changes. The queues themselves are the native face's.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

use softrnic_engine::packet::opcode::SEND_ONLY;
use softrnic_engine::{Attributes, Policy, Psn, Qp, Qpn, State};

use super::attributes::{
    PKEY_INDEX, SCHED_QUEUE, blank, effect, read, read_live, service, service_type, state, write,
};
use super::codes::{Migration, MtuCode, QpState, RoceMode, ServiceType};
use super::context::{At, CONTEXT_LEN, Field, QpContext, ROWS};
use super::field::{Attribute, Owner, Row};
use super::field_set::FieldSet;
use super::refusal::{Refusal, Status};
use super::transitions::{Command, Effect};
use crate::memory::Memory;
use crate::nic::{Device, Nic};
use crate::verbs::Verbs;

/// Bytes of a command's box that count: `opt_param_mask`, a reserved word, the context.
pub const MAILBOX_LEN: usize = 8 + CONTEXT_LEN;

/// Words of the context where an RSS queue pair has its table.
const RSS_WORDS: RangeInclusive<usize> = 15..=28;

/// An MTU code that the engine does not know.
const ETHERNET_MTU: u32 = MtuCode::Ethernet.code() as u32;

/// Bit of sched_queue.
const PORT_2: u32 = 0x40;

/// Bit of the input modifier that asks for an event when the send queue has drained.
const SQD_EVENT: u32 = 1 << 31;

/// The contexts of a device's queue pairs, by the low bits of their numbers.
#[derive(Clone, Debug)]
pub struct QpContexts {
    log_num_qps: u8,
    /// P_Key table of the port.
    pkeys: Vec<u16>,
    slots: BTreeMap<u32, Slot>,
}

/// What the face keeps of a queue pair.
#[derive(Clone, Debug)]
struct Slot {
    qpn: Qpn,
    /// Fields that the face owns or ignores; 0 elsewhere.
    kept: QpContext,
    /// INIT2RTR has said what the peer is.
    has_peer: bool,
    /// The engine's queue pair was made by a command, and goes with 2RST.
    made_here: bool,
}

impl Default for QpContexts {
    /// 2^16 queue pairs, and the default partition.
    fn default() -> Self {
        Self::new(16, vec![0xFFFF])
    }
}

impl QpContexts {
    /// A table of 2^`log_num_qps` queue pairs (at most 24) on a port with these partition keys.
    #[must_use]
    pub const fn new(log_num_qps: u8, pkeys: Vec<u16>) -> Self {
        let log_num_qps = if log_num_qps > 24 { 24 } else { log_num_qps };
        Self { log_num_qps, pkeys, slots: BTreeMap::new() }
    }

    /// A command as the command register has it: opcode, input modifier, and the box, which a query
    /// fills.
    ///
    /// # Errors
    /// What was wrong; it is counted, and nothing has changed.
    pub fn execute<M: Memory>(
        &mut self,
        nic: &mut Nic<Verbs, M>,
        opcode: u16,
        modifier: u32,
        mailbox: &mut [u8; MAILBOX_LEN],
    ) -> Result<(), Refusal> {
        let (mask, context) = split(mailbox);
        match Command::from_opcode(opcode) {
            None => counted(nic, Err(Refusal::Unknown(opcode))),
            Some(Command::Query) => {
                let context = self.query(nic, modifier)?;
                mailbox[..8].fill(0);
                mailbox[8..].copy_from_slice(&context.to_bytes());
                Ok(())
            }
            Some(command) => self.modify(nic, command, modifier, mask, &context),
        }
    }

    /// A command that changes a queue pair. The modifier's low 24 bits are its number. Commands without
    /// a box (2RST, 2ERR, RTS2SQD) do not look at mask and context.
    ///
    /// # Errors
    /// What was wrong; it is counted, and nothing has changed.
    pub fn modify<M: Memory>(
        &mut self,
        nic: &mut Nic<Verbs, M>,
        command: Command,
        modifier: u32,
        mask: u32,
        context: &QpContext,
    ) -> Result<(), Refusal> {
        let checked = self.check(nic, command, modifier, mask, context);
        let step = counted(nic, checked)?;
        self.apply(nic, &step, modifier, context);
        Ok(())
    }

    /// QUERY_QP: the context as it is now. A queue pair in reset has nothing but its state, which is 0.
    ///
    /// # Errors
    /// Another queue pair has its place; it is counted.
    pub fn query<M: Memory>(
        &self,
        nic: &mut Nic<Verbs, M>,
        modifier: u32,
    ) -> Result<QpContext, Refusal> {
        let qpn = Qpn::new(modifier);
        let placed = self.check_place(nic, qpn);
        counted(nic, placed)?;
        Ok(self.context(nic, qpn))
    }

    fn index(&self, qpn: Qpn) -> u32 {
        qpn.get() & ((1 << self.log_num_qps) - 1)
    }

    fn slot(&self, qpn: Qpn) -> Option<&Slot> {
        self.slots.get(&self.index(qpn)).filter(|slot| slot.qpn == qpn)
    }

    /// Drivers put anything above the bits that index the table: the number is compared in full. Queue
    /// pairs that verbs have made have places too.
    fn check_place<M: Memory>(&self, nic: &Nic<Verbs, M>, qpn: Qpn) -> Result<(), Refusal> {
        if nic.engine.qp(qpn).is_some() {
            return Ok(());
        }
        let mut holders = nic.engine.qps().map(Qp::qpn);
        match holders.find(|&holder| self.index(holder) == self.index(qpn)) {
            Some(holder) => Err(Refusal::OtherQpn { given: qpn, holder }),
            None => Ok(()),
        }
    }
}

/// What the face keeps of a queue pair that no command has told anything but its service.
fn bare(service: ServiceType) -> QpContext {
    QpContext::default()
        .with(Field::St, service.code().into())
        .with(Field::PmState, Migration::Migrated.code().into())
}

/// Mask and context of a box.
fn split(mailbox: &[u8; MAILBOX_LEN]) -> (u32, QpContext) {
    let mask = mailbox.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
    let context = mailbox.last_chunk().map_or_else(QpContext::default, QpContext::from_bytes);
    (mask, context)
}

fn counted<M: Memory, T>(
    nic: &mut Nic<Verbs, M>,
    result: Result<T, Refusal>,
) -> Result<T, Refusal> {
    if let Err(refusal) = &result {
        nic.engine.count_refused(refusal.reason());
    }
    result
}

// What is there.

impl QpContexts {
    fn context<M: Memory>(&self, nic: &Nic<Verbs, M>, qpn: Qpn) -> QpContext {
        let Some(qp) = nic.engine.qp(qpn).filter(|qp| qp.state() != State::Reset) else {
            return QpContext::default();
        };
        let slot = self.slot(qpn);
        let mut context = match slot {
            Some(slot) => slot.kept,
            // Made and connected by verbs.
            None => bare(service_type(qp)),
        };
        let rss = context.get(Field::Rss) == 1;
        for row in ROWS {
            if rss && RSS_WORDS.contains(&usize::from(row.word)) {
                continue;
            }
            match row.owner {
                Owner::Engine(Attribute::Mtu | Attribute::MsgMax)
                    if slot.is_some_and(|slot| !slot.has_peer) => {}
                // The engine has no such MTU.
                Owner::Engine(Attribute::Mtu) if context.read(row) != 0 => {}
                Owner::Engine(attribute) => context.write(row, read(attribute, qp)),
                Owner::Query(live) => context.write(row, read_live(live, qp, nic.posted(qpn))),
                Owner::Face | Owner::Ignored | Owner::Reserved => {}
            }
        }
        context
    }
}

// What is asked.

/// A command that was found good.
struct Step {
    command: Command,
    qpn: Qpn,
    to: State,
    /// Its service, from the box or as it was created.
    service: ServiceType,
    /// What the box brings.
    fields: FieldSet,
    rss: bool,
}

impl QpContexts {
    fn check<M: Memory>(
        &self,
        nic: &Nic<Verbs, M>,
        command: Command,
        modifier: u32,
        mask: u32,
        context: &QpContext,
    ) -> Result<Step, Refusal> {
        let row = command.row();
        let to = match row.effect {
            Effect::To(QpState::Rst) => State::Reset,
            Effect::To(QpState::Init) => State::Init,
            Effect::To(QpState::Rtr) => State::Rtr,
            Effect::To(QpState::Rts) => State::Rts,
            Effect::To(QpState::Sqd) => State::Sqd,
            Effect::To(QpState::Err) => State::Error,
            Effect::To(_) | Effect::Read | Effect::NotOffered => {
                return Err(Refusal::NotOffered(command));
            }
        };
        let qpn = Qpn::new(modifier);
        self.check_place(nic, qpn)?;
        let qp = nic.engine.qp(qpn);
        let from = qp.map_or(QpState::Rst, state);
        if !row.from.contains(&from) {
            return Err(Refusal::WrongState { command, state: from });
        }
        let slot = self.slot(qpn);
        let (service, rss) = match (command, slot) {
            (Command::Rst2Init, _) => (context.service(), context.get(Field::Rss) == 1),
            (_, Some(slot)) => (slot.kept.service(), slot.kept.get(Field::Rss) == 1),
            (_, None) => (qp.map_or(ServiceType::Rc, service_type), false),
        };
        // Whether a service is offered at all is asked where it is given.
        if command != Command::Rst2Init && !row.services.contains(&service) {
            return Err(Refusal::WrongService { command, service });
        }
        let mut fields = row.brings(mask, service);
        if rss {
            fields = fields.without_words(RSS_WORDS);
        }
        let step = Step { command, qpn, to, service, fields, rss };
        let has_box = !(matches!(command, Command::ToErr | Command::ToRst | Command::Rts2Sqd));
        if has_box {
            self.check_values(&step, qp, context)?;
        }
        Ok(step)
    }

    /// Values that neither the engine nor the face can obey.
    fn check_values(
        &self,
        step: &Step,
        qp: Option<&Qp>,
        context: &QpContext,
    ) -> Result<(), Refusal> {
        let refuse = |row: &Row, allowed, status| {
            let (command, given) = (step.command, context.read(row));
            Err(Refusal::Value { command, field: row.full_name(), given, allowed, status })
        };
        let local_qpn = context.get(Field::LocalQpnEen);
        if local_qpn != 0 && local_qpn != step.qpn.get() {
            let row = At::from(Field::LocalQpnEen).row();
            return refuse(row, "it must be 0 or the command's number", Status::BadParameter);
        }
        let raw = matches!(step.service, ServiceType::Mlx | ServiceType::RawEth);
        let connected =
            matches!(step.service, ServiceType::Rc | ServiceType::Uc | ServiceType::Xrc);
        let policy = qp.map_or_else(Policy::default, |qp| qp.attributes().policy);
        for row in step.fields.rows() {
            let value = context.read(row);
            let is = |at: At| *row == *at.row();
            let wrong = if is(Field::St.into()) {
                wrong_service(step.service, qp).map(|why| (why, Status::BadParameter))
            } else if is(Field::Rss.into()) && value == 1 && !raw {
                Some(("only MLX and raw Ethernet queue pairs spread frames", Status::BadParameter))
            } else if is(Field::Mtu.into()) {
                let max = policy.max_path_mtu as u32;
                let fits = (1..=max).contains(&value) || raw && value == ETHERNET_MTU;
                let why = "it must be 1 to the port's largest, or 7 for MLX and raw Ethernet";
                (!fits).then_some((why, Status::BadParameter))
            } else if is(Field::SraMax.into()) || is(Field::RraMax.into()) {
                let fits = 1 << value <= u32::from(policy.max_rd_atomic_depth);
                (!fits).then_some(("it is deeper than the device", Status::BadParameter))
            } else if is(Field::RoceMode.into()) {
                let fits = !connected || value == u32::from(RoceMode::V2.code());
                let why = "connections need 2 (RoCE v2), which is what the port speaks";
                (!fits).then_some((why, Status::BadParameter))
            } else if is(PKEY_INDEX) {
                let fits = (value as usize) < self.pkeys.len();
                (!fits).then_some(("the P_Key table is shorter", Status::BadIndex))
            } else if is(SCHED_QUEUE) {
                let fits = value & PORT_2 == 0;
                (!fits).then_some(("bit 6 names port 2, and there is one port", Status::BadIndex))
            } else {
                None
            };
            if let Some((allowed, status)) = wrong {
                return refuse(row, allowed, status);
            }
        }
        Ok(())
    }
}

/// Why a queue pair cannot have this service.
fn wrong_service(of: ServiceType, qp: Option<&Qp>) -> Option<&'static str> {
    match service(of) {
        Some(service) if qp.is_some_and(|qp| qp.attributes().service != service) => {
            Some("the queue pair was created for another service")
        }
        Some(_) => None,
        None => Some(match of {
            ServiceType::Rd => "reliable datagrams (RD) are not offered",
            ServiceType::Fcmnd | ServiceType::Fexch => {
                "Fibre Channel (FCMND, FEXCH) is not offered"
            }
            _ => "no service has this code",
        }),
    }
}

// What is done.

impl QpContexts {
    fn apply<M: Memory>(
        &mut self,
        nic: &mut Nic<Verbs, M>,
        step: &Step,
        modifier: u32,
        context: &QpContext,
    ) {
        let qpn = step.qpn;
        if step.to == State::Reset {
            self.reset(nic, qpn);
            return;
        }
        let made_here = nic.engine.qp(qpn).is_none();
        if made_here {
            let service = service(step.service).unwrap_or_default();
            let attributes = Attributes { service, ..Attributes::default() };
            // The number is free, and the engine's table grows: this cannot be refused.
            if nic.engine.create(qpn, attributes).is_err() {
                return;
            }
        }
        let Some(mut attributes) = nic.engine.qp(qpn).map(|qp| *qp.attributes()) else { return };
        let index = self.index(qpn);
        let known = self.slot(qpn);
        let fresh = made_here || step.command == Command::Rst2Init;
        if fresh {
            attributes = blank(step.service, &attributes);
        }
        if fresh || known.is_none() {
            let made_here = made_here || known.is_some_and(|slot| slot.made_here);
            // What verbs have connected has a peer.
            let slot = Slot { qpn, kept: bare(step.service), has_peer: !fresh, made_here };
            self.slots.insert(index, slot);
        }
        let Some(slot) = self.slots.get_mut(&index) else { return };
        slot.has_peer |= step.command == Command::Init2Rtr;
        for row in step.fields.rows() {
            let value = context.read(row);
            match row.owner {
                Owner::Engine(Attribute::Mtu) if value == ETHERNET_MTU => {
                    slot.kept.write(row, value);
                }
                Owner::Engine(attribute) => write(attribute, value, &mut attributes),
                Owner::Face => {
                    slot.kept.write(row, value);
                    effect(&self.pkeys, row, value, &mut attributes);
                }
                Owner::Ignored => slot.kept.write(row, value),
                Owner::Query(_) | Owner::Reserved => {}
            }
        }
        if step.rss && matches!(step.command, Command::Rst2Init | Command::Init2Rtr) {
            slot.kept.words_mut()[RSS_WORDS].copy_from_slice(&context.words()[RSS_WORDS]);
        }
        if step.command == Command::Rts2Sqd {
            attributes.sqd_async_notify = modifier & SQD_EVENT != 0;
        }
        if let Some(home) = nic.engine.attributes_mut(qpn) {
            *home = attributes;
        }
        if step.fields.has(Field::NextRcvPsn.into()) {
            let psn = Psn::new(context.get(Field::NextRcvPsn));
            nic.engine.set_expected_psn(qpn, psn, SEND_ONLY);
        }
        if step.fields.has(Field::NextSendPsn.into()) {
            nic.engine.set_send_psn(qpn, Psn::new(context.get(Field::NextSendPsn)));
        }
        // Also where the state stays: the engine makes room for another depth.
        nic.enter_state(&mut (), qpn, step.to);
    }

    /// 2RST: everything starts anew, PSNs too (rule M-08). The number is free again.
    fn reset<M: Memory>(&mut self, nic: &mut Nic<Verbs, M>, qpn: Qpn) {
        let known = self.slot(qpn).is_some();
        let slot = if known { self.slots.remove(&self.index(qpn)) } else { None };
        if slot.is_some_and(|slot| slot.made_here) {
            let Nic { engine, device, memory } = nic;
            engine.destroy(qpn, &mut device.view(memory));
            return;
        }
        if let Some(attributes) = nic.engine.attributes_mut(qpn) {
            attributes.enabled = true;
        }
        nic.enter_state(&mut (), qpn, State::Reset);
        nic.engine.set_send_psn(qpn, Psn::new(0));
        nic.engine.set_expected_psn(qpn, Psn::new(0), SEND_ONLY);
    }
}
