//! What is inconsistent in a context: remarks for people who look at a dump. Nothing here refuses anything.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use softrnic_engine::Psn;

use super::codes::{LinkType, Migration, MtuCode, QpState, RoceMode, ServiceType, StaticRate};
use super::context::{At, Field, PathField, QpContext, ROWS};
use super::field::{FullName, Owner, Side};
use super::transitions::TAKEN;

/// Something that its writer cannot have meant, or should know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remark {
    /// The field that it is about.
    pub field: FullName,
    /// One sentence.
    pub text: String,
}

/// Most entries of a work queue that cards of this family offer, as a base-2 logarithm.
const LOG_QUEUE_MAX: u32 = 14;
/// UAR pages before this one are for doorbells of event queues.
const FIRST_USER_UAR: u32 = 128;

/// Everything that can be said.
#[must_use]
pub fn remarks(context: &QpContext) -> Vec<Remark> {
    let mut remarks = Remarks { context, found: Vec::new() };
    remarks.identity();
    remarks.queues();
    remarks.peer();
    remarks.timers();
    remarks.path(Side::Primary);
    if remarks.has_alternate() {
        remarks.path(Side::Alternate);
    }
    remarks.unused();
    remarks.found
}

struct Remarks<'a> {
    context: &'a QpContext,
    found: Vec<Remark>,
}

impl Remarks<'_> {
    fn get(&self, at: impl Into<At>) -> u32 {
        self.context.get(at)
    }

    fn is_set(&self, at: impl Into<At>) -> bool {
        self.get(at) != 0
    }

    fn say(&mut self, condition: bool, about: impl Into<At>, text: impl Into<String>) {
        if condition {
            let field = about.into().row().full_name();
            self.found.push(Remark { field, text: text.into() });
        }
    }

    /// Packets may come: the peer must be known.
    fn has_peer(&self) -> bool {
        use QpState::{Rtr, Rts, SqDraining, Sqd, Sqer, Suspended};
        matches!(self.context.state(), Rtr | Rts | Sqer | Sqd | SqDraining | Suspended)
    }

    /// Packets may go.
    fn sends(&self) -> bool {
        self.has_peer() && self.context.state() != QpState::Rtr
    }

    fn is_alive(&self) -> bool {
        self.has_peer() || self.context.state() == QpState::Init
    }

    fn is_connected(&self) -> bool {
        matches!(self.context.service(), ServiceType::Rc | ServiceType::Uc | ServiceType::Xrc)
    }

    fn is_reliable(&self) -> bool {
        matches!(self.context.service(), ServiceType::Rc | ServiceType::Xrc)
    }

    fn is_raw(&self) -> bool {
        matches!(self.context.service(), ServiceType::Mlx | ServiceType::RawEth)
    }

    fn has_alternate(&self) -> bool {
        self.context.words()[17..28].iter().any(|&word| word != 0) && !self.is_set(Field::Rss)
    }

    fn identity(&mut self) {
        let (state, service) = (self.context.state(), self.context.service());
        let unknown = matches!(state, QpState::Unknown(_));
        self.say(unknown, Field::State, format!("no state has {state}"));
        let text = match service {
            ServiceType::Unknown(_) => format!("no service has {service}"),
            _ => format!("{service} is not offered"),
        };
        self.say(!TAKEN.contains(&service), Field::St, text);
        let pm = Migration::from_code(self.get(Field::PmState) as u8);
        let unknown = matches!(pm, Migration::Unknown(_));
        self.say(unknown, Field::PmState, "no migration state has code 2");
        let waiting = matches!(pm, Migration::Armed | Migration::Rearm);
        let text = format!("migration is {pm}, but there is no alternate path");
        self.say(waiting && self.has_peer() && !self.has_alternate(), Field::PmState, text);
        let rss = self.is_set(Field::Rss);
        let text = if self.is_raw() {
            "words 15 to 28 are the RSS table: path, alternate path and retry fields shown there mean nothing"
        } else {
            "only MLX and raw Ethernet queue pairs spread frames"
        };
        self.say(rss, Field::Rss, text);
    }

    fn queues(&mut self) {
        let srq = self.is_set(Field::Srq);
        for (size, stride, what) in [
            (Field::LogSqSize, Field::LogSqStride, "send"),
            (Field::LogRqSize, Field::LogRqStride, "receive"),
        ] {
            let log = self.get(size);
            let text = format!(
                "{} {what} entries are more than the {} that cards of this family offer",
                1_u32 << log,
                1_u32 << LOG_QUEUE_MAX
            );
            self.say(log > LOG_QUEUE_MAX, size, text);
            let text = format!("{} {what} entries of 16 bytes hold nothing", 1_u32 << log);
            let hollow = what == "send" && log > 0 && !self.is_set(stride);
            self.say(hollow, stride, text);
        }
        let text = "it receives from an SRQ, and has a receive queue of its own too";
        self.say(srq && self.is_set(Field::LogRqSize), Field::LogRqSize, text);
        let text = "an SRQ number is given, but the SRQ bit is not set";
        self.say(!srq && self.is_set(Field::Srqn), Field::Srqn, text);
        let text = "with an SRQ the responder cannot count credits; drivers set ric";
        self.say(srq && self.is_reliable() && !self.is_set(Field::Ric), Field::Ric, text);
        let own_queue = !srq && self.is_set(Field::LogRqSize) && self.is_alive();
        let record = self.is_set(Field::DbRecordAddrH) || self.is_set(Field::DbRecordAddrL);
        let text = "there is a receive queue, but no doorbell record";
        self.say(own_queue && !record, Field::DbRecordAddrL, text);
        let page = self.get(Field::UsrPage);
        let text = format!("UAR page {page} is one of the event queues' (0 to 127)");
        self.say(self.is_alive() && page < FIRST_USER_UAR, Field::UsrPage, text);
        let log = self.get(Field::Log2PageSize) + 12;
        self.say(log > 32, Field::Log2PageSize, format!("pages of 2^{log} bytes"));
    }

    fn peer(&mut self) {
        let (connected, has_peer) = (self.is_connected(), self.has_peer());
        let (state, service) = (self.context.state(), self.context.service());
        let text = format!("{service} in {state}, but the peer's queue pair is 0");
        self.say(
            connected && has_peer && !self.is_set(Field::RemoteQpnEen),
            Field::RemoteQpnEen,
            text,
        );
        let mtu = MtuCode::from_code(self.get(Field::Mtu) as u8);
        let unknown = matches!(mtu, MtuCode::Unknown(_));
        self.say(has_peer && unknown, Field::Mtu, format!("no MTU has {mtu}"));
        let text = format!("code 7 is for MLX and raw Ethernet, and this is {service}");
        self.say(mtu == MtuCode::Ethernet && !self.is_raw(), Field::Mtu, text);
        let mode = RoceMode::from_code(self.get(Field::RoceMode) as u8);
        let unknown = matches!(mode, RoceMode::Unknown(_));
        self.say(unknown, Field::RoceMode, format!("no RoCE flavour has {mode}"));
        let entropy = mode == RoceMode::V1 && self.is_set(Field::RoceEntropy);
        self.say(entropy, Field::RoceEntropy, "RoCE v1 has no UDP source port");
        let responder = self.is_reliable() || service == ServiceType::Uc;
        for field in [Field::Rre, Field::Rae] {
            let text = format!("{service} answers neither READs nor atomics");
            self.say(!self.is_reliable() && self.is_set(field), field, text);
        }
        let text = format!("{service} takes no RDMA WRITE");
        self.say(!responder && self.is_set(Field::Rwe), Field::Rwe, text);
    }

    fn timers(&mut self) {
        let sends = self.sends() && self.is_reliable();
        let timeout = (Side::Primary, PathField::AckTimeout);
        let text = "no timer: what is lost is never sent again";
        self.say(sends && !self.is_set(timeout), timeout, text);
        for (left, limit) in
            [(Field::CurRetryCnt, Field::RetryCount), (Field::CurRnrRetry, Field::RnrRetry)]
        {
            let (left_now, most) = (self.get(left), self.get(limit));
            let text = format!("{left_now} retries are left of {most}");
            self.say(left_now > most, left, text);
        }
        let next = Psn::new(self.get(Field::NextSendPsn));
        let acked = Psn::new(self.get(Field::LastAckedPsn));
        let flying = next.since(acked.plus(1));
        // A box to be written has 0 there: only a query says anything.
        let queried = self.is_set(Field::LastAckedPsn) && self.sends() && self.is_reliable();
        let text = format!("{flying} packets are not acknowledged; more than 2^23 cannot be");
        self.say(queried && flying > Psn::WINDOW, Field::LastAckedPsn, text);
    }

    fn path(&mut self, side: Side) {
        let at = |field| (side, field);
        let code = self.get(at(PathField::LinkType)) as u8;
        let link = LinkType::from_code(code);
        let unknown = matches!(link, LinkType::Unknown(_));
        let text = format!("no link type has {link}; 0 is InfiniBand or not given, 1 Ethernet");
        self.say(unknown, at(PathField::LinkType), text);
        let rate = StaticRate::from_code(self.get(at(PathField::MaxStatRate)) as u8);
        let unknown = matches!(rate, StaticRate::Unknown(_));
        self.say(unknown, at(PathField::MaxStatRate), format!("no rate has {rate}"));
        if !(self.is_connected() && self.has_peer() && link == LinkType::Ethernet) {
            return;
        }
        let mac = self.is_set(at(PathField::Dmac4732)) || self.is_set(at(PathField::Dmac310));
        self.say(!mac, at(PathField::Dmac310), "an Ethernet path without destination MAC address");
        let text = "an Ethernet path without GRH or IP header";
        self.say(!self.is_set(at(PathField::GrhIp)), at(PathField::GrhIp), text);
        let gid =
            [PathField::Rgid12796, PathField::Rgid9564, PathField::Rgid6332, PathField::Rgid310];
        let gid = gid.into_iter().any(|word| self.is_set(at(word)));
        self.say(!gid, at(PathField::Rgid12796), "an Ethernet path without destination GID");
    }

    fn unused(&mut self) {
        let fibre = self.context.words()[52..56].iter().any(|&word| word != 0);
        self.say(fibre, Field::Fc, "Fibre Channel fields are set; nothing uses them");
        for (row, value) in self.context.fields() {
            if row.owner == Owner::Reserved && value != 0 {
                let text = format!(
                    "reserved bits are set: word {} [{}:{}] is {value:#x}",
                    row.word, row.high, row.low
                );
                self.found.push(Remark { field: row.full_name(), text });
            }
        }
    }
}

/// Reserved bits that are set; many of them speak for a wrong byte order.
#[must_use]
pub fn reserved_bits_set(context: &QpContext) -> u32 {
    let reserved = ROWS.iter().filter(|row| row.is_reserved());
    reserved.map(|row| context.read(row).count_ones()).sum()
}
