//! What reading and writing a register does beside its kept bits: one arm for each effect.
//!
//! A value that has its home in the engine is read from and written to the engine here, and nowhere
//! kept.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use softrnic_engine::{
    AckMode, Attributes, PathMtu, Policy, Port, Psn, Qp, Qpn, Reason, RemoteAccess, Service, State,
};

use super::Ernic;
use super::map::Location;
use super::queues::{ENABLE, IN_FLIGHT_MAX, QueuePair, RECOVERY};
use super::registers::{Register, bits};
use super::row::{DeviceEffect, Effect, QpEffect};
use super::view::MESSAGE_LEN_MAX;
use crate::memory::Memory;
use crate::nic::{Between, Device, Nic, Ring, SetState};

const NIC_ENABLE: u32 = bits(Register::Xrnicconf, "enable");
const ACK_MODE: u32 = bits(Register::Xrnicconf, "ack_mode");
const UDP_SOURCE_PORT: u32 = bits(Register::Xrnicconf, "udp_source_port");
const RETRY_NOT_FATAL: u32 = bits(Register::Xrnicadconf, "retry_not_fatal");
const TICK_WIDTH: u32 = bits(Register::Xrnicadconf, "tick_width");
const CONNECT_QP: u32 = bits(Register::ConIoConf, "qp");
const CACHE_EMPTY: u32 = bits(Register::Qpmsts, "cache_empty");
const WQES: u32 = bits(Register::Qpmsts, "wqes");
const STATE: u32 = bits(Register::Wqeprocsts, "state");
const NO_RETRY_BUFFER: u32 = bits(Register::Wqeprocsts, "no_retry_buffer");
const BUFFER_BUSY: u32 = bits(Register::Wqeprocsts, "buffer_busy");
const HEADER_STATE: u32 = bits(Register::Wqeprocsts, "header_state");
const HEAD: u32 = bits(Register::Wqeprocsts, "head");
const TAIL: u32 = bits(Register::Wqeprocsts, "tail");
const ARBITRATED_QP: u32 = bits(Register::Resphndsts, "qp");
const ANSWERS: u32 = bits(Register::Resphndsts, "acks");
const RESPONSE_IDLE: u32 = bits(Register::Resphndsts, "idle");
const IPV6: u32 = bits(Register::Qpconf, "ipv6");
const PATH_MTU: u32 = bits(Register::Qpconf, "path_mtu");
const TRAFFIC_CLASS: u32 = bits(Register::Qpadvconf, "traffic_class");
const TTL: u32 = bits(Register::Qpadvconf, "ttl");
const PKEY: u32 = bits(Register::Qpadvconf, "pkey");
const LAST_PSN: u32 = bits(Register::Lstrqreq, "psn");
const LAST_OPCODE: u32 = bits(Register::Lstrqreq, "opcode");
const TIMEOUT: u32 = bits(Register::Timeoutconf, "timeout");
const RETRY: u32 = bits(Register::Timeoutconf, "retry");
const RNR_RETRY: u32 = bits(Register::Timeoutconf, "rnr_retry");
const RNR_TIMER: u32 = bits(Register::Timeoutconf, "rnr_timer");
const FATAL: u32 = bits(Register::Statqp, "fatal");
const SQ_FULL: u32 = bits(Register::Statqp, "sq_full");
const OUTSTANDING_FULL: u32 = bits(Register::Statqp, "outstanding_full");
const SQ_EMPTY: u32 = bits(Register::Statqp, "sq_empty");
const OUTSTANDING_EMPTY: u32 = bits(Register::Statqp, "outstanding_empty");
const RETRIES: u32 = bits(Register::Statqp, "retries");
const RNR_NAKS: u32 = bits(Register::Statqp, "rnr_naks");

/// Hop limit where QPADVCONF's TTL is 0, as it is after reset. Chosen: a driver that never writes it
/// should reach beyond its own link.
const DEFAULT_HOP_LIMIT: u8 = 64;
/// The unit of ACK timeouts in the standard.
const STANDARD_TICK_NS: u32 = 4096;
/// READ requests outstanding at most, each way: a build parameter, 16 as seen.
const READS_MAX: u8 = 16;
/// AckReq on each n-th packet inside a message. Chosen: the chapter is silent.
const ACK_REQUEST_EVERY: u32 = 8;

/// Reading.
impl<M: Memory> Nic<Ernic, M> {
    /// The bits that are not kept.
    pub(super) fn read_effect(&self, at: Location) -> u32 {
        match at.register.row().effect {
            Effect::None => 0,
            Effect::Device(effect) => self.read_device(effect, at.index),
            Effect::Qp(effect) => {
                let kept = &self.device.qps[usize::from(at.index)];
                let qp = self.engine.qp(Qpn::new(at.index.into()));
                qp.map_or(0, |qp| read_qp(effect, qp, kept))
            }
        }
    }

    fn read_device(&self, effect: DeviceEffect, index: u16) -> u32 {
        let status = &self.device.status;
        let port = self.engine.port();
        match effect {
            DeviceEffect::Advanced
            | DeviceEffect::ActiveQps
            | DeviceEffect::DataBuffers
            | DeviceEffect::PauseControl
            | DeviceEffect::ConnectIo => 0,
            DeviceEffect::NicControl => put(NIC_ENABLE, u32::from(port.enabled)),
            DeviceEffect::PortMacLow => mac_low(port.mac),
            DeviceEffect::PortMacHigh => mac_high(port.mac),
            DeviceEffect::PortIpv4 => port.ipv4.to_bits(),
            DeviceEffect::PortIpv6(word) => (port.ipv6.to_bits() >> (32 * word)) as u32,
            DeviceEffect::WqeProcessor => {
                let pointer = u32::from(status.work_count) & 0xFF;
                let stalled = u32::from(self.device.data_buffers.used_up());
                let busy = u32::from(self.work_outstanding());
                put(STATE, stalled)
                    | put(NO_RETRY_BUFFER, stalled)
                    | put(BUFFER_BUSY, busy)
                    | put(HEADER_STATE, busy)
                    | put(HEAD, pointer)
                    | put(TAIL, pointer)
            }
            DeviceEffect::QpManager => CACHE_EMPTY | put(WQES, status.work_count.into()),
            DeviceEffect::ResponseHandler => {
                RESPONSE_IDLE
                    | put(ARBITRATED_QP, status.arbitrated_qp.into())
                    | put(ANSWERS, self.work_outstanding().into())
            }
            DeviceEffect::LastIn => status.last_in.word(self.device.map.profile.last_packet),
            DeviceEffect::LastOut => status.last_out.word(self.device.map.profile.last_packet),
            DeviceEffect::InterruptStatus => status.causes(),
            DeviceEffect::ReceiveBank => status.receive_bank.word(index),
            DeviceEffect::CompletionBank => status.completion_bank.word(index),
            DeviceEffect::CnpBank => status.cnp_bank.word(index),
        }
    }
}

impl<M: Memory> Nic<Ernic, M> {
    /// Whether any work request waits for an answer.
    fn work_outstanding(&self) -> bool {
        self.engine.qps().any(|qp| qp.requester().in_flight() != 0)
    }
}

fn read_qp(effect: QpEffect, qp: &Qp, kept: &QueuePair) -> u32 {
    let attributes = qp.attributes();
    let path = &attributes.path;
    match effect {
        QpEffect::SendDoorbell | QpEffect::DestIp => 0,
        QpEffect::QpControl => {
            put(IPV6, path.dest_ip.is_ipv6().into())
                | put(PATH_MTU, attributes.path_mtu as u32 - PathMtu::M256 as u32)
        }
        QpEffect::QpAdvanced => {
            put(TRAFFIC_CLASS, u32::from(path.traffic_class) >> 2)
                | put(PKEY, attributes.pkey.into())
        }
        QpEffect::SendPsn => qp.send_psn().get(),
        QpEffect::LastRequest => {
            put(LAST_PSN, qp.expected_psn().minus(1).get())
                | put(LAST_OPCODE, qp.responder().last_opcode().into())
        }
        QpEffect::DestQp => attributes.dest_qpn.get(),
        QpEffect::DestMacLow => mac_low(path.dest_mac),
        QpEffect::DestMacHigh => mac_high(path.dest_mac),
        QpEffect::Timeout => {
            put(TIMEOUT, attributes.ack_timeout.into())
                | put(RETRY, attributes.retry_count.into())
                | put(RNR_RETRY, attributes.rnr_retry.into())
                | put(RNR_TIMER, attributes.min_rnr_timer.into())
        }
        QpEffect::SendSequence => qp.requester().ssn(),
        QpEffect::MessageSequence => qp.responder().msn(),
        QpEffect::QpStatus => read_qp_status(qp, kept),
        QpEffect::Outstanding => qp.requester().in_flight(),
        QpEffect::ResponsePsn => qp.requester().unacknowledged_psn().get(),
        QpEffect::ReceiveBufferLow => kept.rq_buffer_address() as u32,
        QpEffect::ReceiveBufferHigh => (kept.rq_buffer_address() >> 32) as u32,
        QpEffect::WorkCount => kept.work_count.into(),
    }
}

fn read_qp_status(qp: &Qp, kept: &QueuePair) -> u32 {
    let requester = qp.requester();
    let window = qp.attributes().policy.window_packets;
    let when = |condition: bool, bit: u32| if condition { bit } else { 0 };
    when(qp.state() == State::Error, FATAL)
        | when(kept.sq_is_full(), SQ_FULL)
        | when(requester.outstanding_packets() >= window, OUTSTANDING_FULL)
        | when(kept.fetched == kept.posted, SQ_EMPTY)
        | when(requester.in_flight() == 0, OUTSTANDING_EMPTY)
        | put(RETRIES, u32::from(requester.retries_used()).min(7))
        | put(RNR_NAKS, u32::from(requester.rnr_retries_used()).min(7))
}

/// Writing.
impl<M: Memory> Nic<Ernic, M> {
    /// What a write does beside storing kept bits. `value` has no bits outside of `mask`, which leaves
    /// out reserved bits and refused fields; `old` is the kept word before.
    pub(super) fn write_effect(
        &mut self,
        between: &mut impl Between,
        at: Location,
        old: u32,
        value: u32,
        mask: u32,
    ) -> Result<(), Reason> {
        match at.register.row().effect {
            Effect::None => Ok(()),
            Effect::Device(effect) => {
                self.write_device(between, effect, at.index, old, value);
                Ok(())
            }
            Effect::Qp(effect) => {
                self.device.touched_qps.add(at.index);
                self.write_qp(between, effect, at, old, value, mask)
            }
        }
    }

    fn write_device(
        &mut self,
        between: &mut impl Between,
        effect: DeviceEffect,
        index: u16,
        old: u32,
        value: u32,
    ) {
        let port = *self.engine.port();
        let status = &mut self.device.status;
        match effect {
            DeviceEffect::NicControl => {
                self.set_port(Port { enabled: value & NIC_ENABLE != 0, ..port });
                if (old ^ value) & (ACK_MODE | UDP_SOURCE_PORT) != 0 {
                    self.apply_policy();
                }
            }
            DeviceEffect::Advanced => {
                if (old ^ value) & (RETRY_NOT_FATAL | TICK_WIDTH) != 0 {
                    self.apply_policy();
                }
            }
            DeviceEffect::PortMacLow => {
                self.set_port(Port { mac: with_mac_low(port.mac, value), ..port });
            }
            DeviceEffect::PortMacHigh => {
                self.set_port(Port { mac: with_mac_high(port.mac, value), ..port });
            }
            DeviceEffect::PortIpv4 => self.set_port(Port { ipv4: value.into(), ..port }),
            DeviceEffect::PortIpv6(word) => {
                let shift = 32 * word;
                let others = port.ipv6.to_bits() & !(u128::from(u32::MAX) << shift);
                let ipv6 = Ipv6Addr::from_bits(others | u128::from(value) << shift);
                self.set_port(Port { ipv6, ..port });
            }
            DeviceEffect::ActiveQps => {
                let map = &self.device.map;
                let mask = u32::from(map.num_qp - 1) | map.profile.qp_count_mask;
                *status.word_mut(Register::XrnicConfQpEn) &= mask;
                (1..self.device.map.num_qp).for_each(|q| self.follow_enable(between, q));
            }
            DeviceEffect::DataBuffers => self.device.follow_data_buffers(),
            DeviceEffect::PauseControl => {
                let pfc = self.device.buffers.obeyed(status);
                self.set_port(Port { pfc, ..port });
            }
            DeviceEffect::ConnectIo => {
                let q = take(CONNECT_QP, value) as u16;
                if let Err(reason) = self.device.connect_io(q) {
                    self.engine.count_refused(reason);
                }
            }
            DeviceEffect::InterruptStatus => status.clear_causes(value),
            DeviceEffect::ReceiveBank => status.clear_receive_bank(index, value),
            DeviceEffect::CompletionBank => status.clear_completion_bank(index, value),
            DeviceEffect::CnpBank => status.cnp_bank.clear(index, value),
            // Their rows have no field that can be written.
            DeviceEffect::WqeProcessor
            | DeviceEffect::QpManager
            | DeviceEffect::LastIn
            | DeviceEffect::LastOut
            | DeviceEffect::ResponseHandler => {}
        }
    }

    fn write_qp(
        &mut self,
        between: &mut impl Between,
        effect: QpEffect,
        at: Location,
        old: u32,
        value: u32,
        mask: u32,
    ) -> Result<(), Reason> {
        let qpn = Qpn::new(at.index.into());
        match effect {
            QpEffect::QpControl => self.control_qp(between, at.index, old, value, mask),
            QpEffect::SendDoorbell => return self.ring_send_doorbell(between, at, old, value),
            QpEffect::SendPsn => {
                if self.engine.qp(qpn).is_none_or(|qp| qp.requester().in_flight() != 0) {
                    return Err(Reason::RegisterValue);
                }
                self.engine.set_send_psn(qpn, Psn::new(value));
            }
            QpEffect::LastRequest => {
                let last_opcode = take(LAST_OPCODE, value) as u8;
                self.engine.set_expected_psn(qpn, Psn::new(value).plus(1), last_opcode);
            }
            QpEffect::MessageSequence => self.engine.set_msn(qpn, value),
            QpEffect::QpStatus => {
                let (retries, rnr_naks) = (take(RETRIES, value), take(RNR_NAKS, value));
                self.engine.set_retries_used(qpn, retries as u8, rnr_naks as u8);
            }
            QpEffect::DestIp => self.follow_dest_ip(at.index),
            QpEffect::QpAdvanced => self.set_attributes(qpn, |attributes| {
                let ttl = take(TTL, value) as u8;
                attributes.path.hop_limit = if ttl == 0 { DEFAULT_HOP_LIMIT } else { ttl };
                attributes.path.traffic_class = (take(TRAFFIC_CLASS, value) << 2) as u8;
                attributes.pkey = take(PKEY, value) as u16;
            }),
            QpEffect::DestQp => self.set_attributes(qpn, |attributes| {
                attributes.dest_qpn = Qpn::new(value);
            }),
            QpEffect::DestMacLow => self.set_attributes(qpn, |attributes| {
                attributes.path.dest_mac = with_mac_low(attributes.path.dest_mac, value);
            }),
            QpEffect::DestMacHigh => self.set_attributes(qpn, |attributes| {
                attributes.path.dest_mac = with_mac_high(attributes.path.dest_mac, value);
            }),
            QpEffect::Timeout => self.set_attributes(qpn, |attributes| {
                attributes.ack_timeout = take(TIMEOUT, value) as u8;
                attributes.retry_count = take(RETRY, value) as u8;
                attributes.rnr_retry = take(RNR_RETRY, value) as u8;
                attributes.min_rnr_timer = take(RNR_TIMER, value) as u8;
            }),
            // Taken under override, and follow by themselves from what else recovery writes.
            QpEffect::Outstanding | QpEffect::ReceiveBufferLow | QpEffect::ReceiveBufferHigh => {}
            // Their rows have no field that can be written.
            QpEffect::SendSequence | QpEffect::ResponsePsn | QpEffect::WorkCount => {}
        }
        Ok(())
    }

    fn set_port(&mut self, port: Port) {
        if *self.engine.port() != port {
            self.engine.set_port(port);
        }
    }

    fn set_attributes(&mut self, qpn: Qpn, change: impl FnOnce(&mut Attributes)) {
        if let Some(attributes) = self.engine.attributes_mut(qpn) {
            change(attributes);
        }
    }

    /// QPCONF: the engine's attributes first, so that a queue pair starts with the right ones.
    fn control_qp(&mut self, between: &mut impl Between, q: u16, old: u32, value: u32, mask: u32) {
        let qpn = Qpn::new(q.into());
        if mask & PATH_MTU != 0
            && let Some(path_mtu) = PathMtu::from_code(take(PATH_MTU, value) as u8 + 1)
        {
            self.set_attributes(qpn, |attributes| attributes.path_mtu = path_mtu);
        }
        let ip = self.device.dest_ip(q, value & IPV6 != 0);
        self.set_attributes(qpn, |attributes| attributes.path.dest_ip = ip);
        if value & !old & RECOVERY != 0 {
            self.recover(between, qpn);
        }
        self.follow_enable(between, q);
    }

    fn follow_dest_ip(&mut self, q: u16) {
        let qpn = Qpn::new(q.into());
        let Some(qp) = self.engine.qp(qpn) else { return };
        let ip = self.device.dest_ip(q, qp.attributes().path.dest_ip.is_ipv6());
        self.set_attributes(qpn, |attributes| attributes.path.dest_ip = ip);
    }

    /// A queue pair runs if it is enabled, not being recovered, and among the active ones. Starting is
    /// what ends a fatal state; stopping resets nothing.
    pub(super) fn follow_enable(&mut self, between: &mut impl Between, q: u16) {
        let qpn = Qpn::new(q.into());
        let kept = &self.device.qps[usize::from(q)];
        let active = u32::from(q) <= self.device.status.word(Register::XrnicConfQpEn);
        let runs = kept.is_set(ENABLE) && !kept.is_set(RECOVERY) && active;
        let Some(qp) = self.engine.qp(qpn) else { return };
        let disabled = if active { Reason::QpNotReady } else { Reason::QpInactive };
        if qp.attributes().policy.disabled != disabled {
            self.set_attributes(qpn, |attributes| attributes.policy.disabled = disabled);
        }
        let Some(qp) = self.engine.qp(qpn) else { return };
        if qp.attributes().enabled == runs {
            return;
        }
        let (state, msn) = (qp.state(), qp.responder().msn());
        if runs && state == State::Error {
            // PSNs and the last opcode survive RESET in the engine; the MSN does not.
            self.set_state(between, qpn, State::Reset);
            self.engine.set_msn(qpn, msn);
            self.device.qps[usize::from(q)].recount();
        }
        if runs && state != State::Rts {
            self.set_state(between, qpn, State::Rts);
        }
        self.set_attributes(qpn, |attributes| attributes.enabled = runs);
        if runs {
            let face = &mut self.device.view(&mut self.memory);
            between.make(&mut self.engine, face, Ring(qpn));
        }
    }

    fn set_state(&mut self, between: &mut impl Between, qpn: Qpn, state: State) {
        let face = &mut self.device.view(&mut self.memory);
        between.make(&mut self.engine, face, SetState(qpn, state));
    }

    /// QPCONF\[6\] was set: everything in the send queue completes with the error flag, because
    /// recovery goes on when CQHEAD has reached SQPI. A queue pair that was not fatal forgets what was
    /// in flight.
    fn recover(&mut self, between: &mut impl Between, qpn: Qpn) {
        let mut face = self.device.view(&mut self.memory);
        between.before_flush(&mut self.engine, &mut face, qpn);
        face.flush(qpn);
        let Some(qp) = self.engine.qp(qpn) else { return };
        if qp.state() != State::Error {
            let msn = qp.responder().msn();
            self.device.data_buffers.release(qpn.get() as u16);
            self.engine.rewind(qpn);
            self.engine.set_msn(qpn, msn);
            self.device.qps[qpn.get() as usize].recount();
        }
    }

    /// SQPI. `old` and `value` are indices 0..=depth.
    fn ring_send_doorbell(
        &mut self,
        between: &mut impl Between,
        at: Location,
        old: u32,
        value: u32,
    ) -> Result<(), Reason> {
        let qpn = Qpn::new(at.index.into());
        if self.places_send_queue(at, value) {
            let Some(qp) = self.engine.qp(qpn) else { return Ok(()) };
            let msn = qp.responder().msn();
            between.forget(qpn);
            self.device.data_buffers.release(at.index);
            self.engine.rewind(qpn);
            self.engine.set_msn(qpn, msn);
            // Chosen: a queue pair that starts anew has its whole window again.
            self.set_attributes(qpn, |attributes| {
                attributes.policy.window_packets = IN_FLIGHT_MAX.into();
            });
            self.device.qps[usize::from(at.index)].place(value);
            return Ok(());
        }
        let kept = &mut self.device.qps[usize::from(at.index)];
        kept.announce(old, value);
        if old == value {
            return Ok(());
        }
        let (enabled, recovering) = (kept.is_set(ENABLE), kept.is_set(RECOVERY));
        between.make(&mut self.engine, &mut self.device.view(&mut self.memory), Ring(qpn));
        if recovering {
            self.recover(between, qpn);
        }
        // The index is kept, and its work is done once the queue pair is enabled; but say so.
        if enabled { Ok(()) } else { Err(Reason::QpDisabled) }
    }
}

/// From the device's settings to the engine's attributes.
impl<M: Memory> Nic<Ernic, M> {
    /// Makes a queue pair as it is after reset.
    pub(super) fn create_qp(&mut self, q: u16) {
        let qpn = Qpn::new(q.into());
        let created = self.engine.create(qpn, self.device.reset_attributes(q));
        debug_assert!(created.is_ok(), "every number has a slot of its own");
        // LSTRQREQ reads 0: the last PSN was 0, the last opcode SEND FIRST.
        self.engine.set_expected_psn(qpn, Psn::new(1), 0);
    }

    /// XRNICCONF and XRNICADCONF apply to every queue pair.
    pub(super) fn apply_policy(&mut self) {
        for q in 1..self.device.map.num_qp {
            let (policy, source_port) = (self.device.policy(), self.device.source_port());
            self.set_attributes(Qpn::new(q.into()), |attributes| {
                let Policy { window_packets, disabled, .. } = attributes.policy;
                attributes.policy = Policy { window_packets, disabled, ..policy };
                attributes.path.source_port = Some(source_port);
            });
        }
    }
}

impl Ernic {
    fn reset_attributes(&self, q: u16) -> Attributes {
        let mut attributes = Attributes {
            service: if q == 1 { Service::RawFrame } else { Service::Rc },
            enabled: false,
            path_mtu: PathMtu::M256,
            pkey: 0,
            remote_access: RemoteAccess { read: true, write: true, atomic: false },
            ack_timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
            min_rnr_timer: 0,
            max_rd_atomic: READS_MAX,
            max_dest_rd_atomic: READS_MAX,
            max_in_flight: IN_FLIGHT_MAX,
            policy: self.policy(),
            ..Attributes::default()
        };
        attributes.path.hop_limit = DEFAULT_HOP_LIMIT;
        attributes.path.source_port = Some(self.source_port());
        attributes
    }

    /// This device's limits and habits.
    fn policy(&self) -> Policy {
        let control = self.status.word(Register::Xrnicconf);
        let advanced = self.status.word(Register::Xrnicadconf);
        Policy {
            window_packets: IN_FLIGHT_MAX.into(),
            ack_request_every: ACK_REQUEST_EVERY,
            ack_mode: match take(ACK_MODE, control) {
                1 => AckMode::OnTimeout,
                2 => AckMode::OnRequest,
                _ => AckMode::OnRequestOrTimeout,
            },
            ack_delay_ns: self.tick_ns().into(),
            max_message_len: MESSAGE_LEN_MAX,
            // Chosen: credits in ACKs are "not valid"; no document tells of any.
            end_to_end_credits: false,
            immediate_takes_receive: false,
            ack_timeout_unit_ns: self.tick_ns(),
            zero_length_send: false,
            // None is active before XRNIC_CONF_QP_EN says so.
            disabled: Reason::QpInactive,
            check_source: true,
            check_pkey: false,
            strict_pad: false,
            retry_exhaustion_fatal: advanced & RETRY_NOT_FATAL == 0,
            max_path_mtu: PathMtu::M4096,
            max_rd_atomic_depth: READS_MAX,
            // Software answers marks, through QP1.
            cnp_interval_ns: None,
        }
    }

    /// The unit of ACK timeouts: 2^width clocks. Acknowledgements are held back as long at most (chosen).
    fn tick_ns(&self) -> u32 {
        let width = take(TICK_WIDTH, self.status.word(Register::Xrnicadconf));
        match width {
            0 => STANDARD_TICK_NS,
            width => ((1000 << width) / u32::from(self.clock_mhz)).max(1),
        }
    }

    /// DATBUFBA, DATBUFBAMSB or DATBUFSZ was written.
    fn follow_data_buffers(&mut self) {
        let word = |register| self.status.word(register);
        let base =
            u64::from(word(Register::Datbufbamsb)) << 32 | u64::from(word(Register::Datbufba));
        let size = word(Register::Datbufsz);
        self.data_buffers.configure(base, size as u16, (size >> 16) as u16);
    }

    fn source_port(&self) -> u16 {
        take(UDP_SOURCE_PORT, self.status.word(Register::Xrnicconf)) as u16
    }

    /// IPDESADDR1..4 as an address: word 1 is the IPv4 address, or the last four bytes of IPv6.
    fn dest_ip(&self, q: u16, ipv6: bool) -> IpAddr {
        let word = |register| self.qps[usize::from(q)].word(register);
        let low = word(Register::Ipdesaddr1);
        if !ipv6 {
            return Ipv4Addr::from_bits(low).into();
        }
        let upper = [Register::Ipdesaddr4, Register::Ipdesaddr3, Register::Ipdesaddr2].map(word);
        let bits = upper.into_iter().chain([low]).fold(0, |bits, w| bits << 32 | u128::from(w));
        Ipv6Addr::from_bits(bits).into()
    }
}

/// A field's value at its place in the register.
const fn put(mask: u32, value: u32) -> u32 {
    (value << mask.trailing_zeros()) & mask
}

/// A field's value out of the register.
const fn take(mask: u32, value: u32) -> u32 {
    (value & mask) >> mask.trailing_zeros()
}

/// MAC addresses: m0 and m1 in the high register, m2..m5 in the low one, m5 in bits 7..0.
const fn mac_low(mac: [u8; 6]) -> u32 {
    u32::from_be_bytes([mac[2], mac[3], mac[4], mac[5]])
}

const fn mac_high(mac: [u8; 6]) -> u32 {
    u32::from_be_bytes([0, 0, mac[0], mac[1]])
}

const fn with_mac_low(mac: [u8; 6], value: u32) -> [u8; 6] {
    let [m2, m3, m4, m5] = value.to_be_bytes();
    [mac[0], mac[1], m2, m3, m4, m5]
}

const fn with_mac_high(mac: [u8; 6], value: u32) -> [u8; 6] {
    let [_, _, m0, m1] = value.to_be_bytes();
    [m0, m1, mac[2], mac[3], mac[4], mac[5]]
}
