//! Queue pairs: create, connect, recover, destroy.
//!
//! What moves data once a queue pair is connected is in `transfer`.

use alloc::boxed::Box;
use alloc::vec;
use core::fmt;
use core::net::{IpAddr, Ipv6Addr};

use crate::device::{Ernic, ipv6_words, mac_words};
use crate::error::Error;
use crate::platform::{DmaBuffer, Platform};
use crate::queue::{CQE_BYTES, WQE_BYTES};
use crate::registers::{self as reg, Register};
use crate::status::{PSN_MASK, STATQP_IDLE};
use crate::transfer::Completion;

/// A queue pair number of this device. 1 carries management datagrams, 2 and up are connected.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QpNumber(u16);

impl QpNumber {
    /// The management queue pair.
    pub const MANAGEMENT: Self = Self(1);

    /// Queue pair `number`.
    #[must_use]
    pub const fn new(number: u16) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for QpNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QP {}", self.0)
    }
}

/// Payload bytes per packet (QPCONF\[10:8\]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PathMtu {
    /// 256 bytes.
    Mtu256 = 0,
    /// 512 bytes.
    Mtu512 = 1,
    /// 1024 bytes.
    Mtu1024 = 2,
    /// 2048 bytes.
    Mtu2048 = 3,
    /// 4096 bytes.
    Mtu4096 = 4,
}

/// Where the driver reads how far the device has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IndexSource {
    /// Doorbell words that the device writes to memory (CQDBADD, RQWPTRDBADD).
    #[default]
    Memory,
    /// CQHEAD and STATRQPIDB. Slower on a card; good where the device cannot write to memory.
    Registers,
}

/// How to create a connected queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpConfig {
    /// Send queue entries, at least 2; one less can be in use.
    pub sq_depth: u16,
    /// Receive elements, at least 2; one less can be in use.
    pub rq_depth: u16,
    /// Bytes of a receive element: 256 times a power of two; the largest SEND that fits.
    pub rq_element_len: u32,
    /// Payload bytes per packet.
    pub path_mtu: PathMtu,
    /// Protection domain, 24 bits.
    pub pd: u32,
    /// Raise an interrupt for each completion.
    pub cq_interrupt: bool,
    /// Raise an interrupt for each received message.
    pub rq_interrupt: bool,
    /// Have completion queue entries written. Without them a failed work request is not told from
    /// a good one; see [`Ernic::status`].
    pub cqe_writes: bool,
    /// Where to read indices.
    pub index_source: IndexSource,
    /// ACK timeout: 4.096 us * 2^timeout, 0 to 63; 0 waits for ever.
    pub timeout: u8,
    /// Retries after timeouts and sequence NAKs, 0 to 7.
    pub retry_count: u8,
    /// Retries after RNR NAKs, 0 to 7; 7 retries for ever.
    pub rnr_retry: u8,
    /// Timer code of the RNR NAKs that this side sends, 0 to 31.
    pub rnr_timer: u8,
    /// Traffic class, 0 to 63 (QPADVCONF\[5:0\]).
    pub traffic_class: u8,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Partition key.
    pub pkey: u16,
}

impl Default for QpConfig {
    fn default() -> Self {
        Self {
            sq_depth: 64,
            rq_depth: 64,
            rq_element_len: 4096,
            path_mtu: PathMtu::Mtu4096,
            pd: 0,
            cq_interrupt: false,
            rq_interrupt: false,
            cqe_writes: true,
            index_source: IndexSource::Memory,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            rnr_timer: 1,
            traffic_class: 0,
            ttl: 64,
            pkey: 0xFFFF,
        }
    }
}

/// What both ends of a connection agree on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathConfig {
    /// Payload bytes per packet.
    pub path_mtu: PathMtu,
    /// ACK timeout: 4.096 us * 2^timeout, 0 to 63; 0 waits for ever.
    pub timeout: u8,
    /// Retries after timeouts and sequence NAKs, 0 to 7.
    pub retry_count: u8,
    /// Retries after RNR NAKs, 0 to 7; 7 retries for ever.
    pub rnr_retry: u8,
    /// Traffic class, 0 to 63 (QPADVCONF\[5:0\]).
    pub traffic_class: u8,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Partition key.
    pub pkey: u16,
}

impl QpConfig {
    /// What of it both ends agree on.
    #[must_use]
    pub const fn path(&self) -> PathConfig {
        PathConfig {
            path_mtu: self.path_mtu,
            timeout: self.timeout,
            retry_count: self.retry_count,
            rnr_retry: self.rnr_retry,
            traffic_class: self.traffic_class,
            ttl: self.ttl,
            pkey: self.pkey,
        }
    }
}

/// How to create the management queue pair. Its elements hold whole frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MadConfig {
    /// Send queue entries, at least 2.
    pub sq_depth: u16,
    /// Receive elements, at least 2.
    pub rq_depth: u16,
    /// Bytes of a receive element: 256 times a power of two.
    pub rq_element_len: u32,
}

impl Default for MadConfig {
    fn default() -> Self {
        Self { sq_depth: 128, rq_depth: 64, rq_element_len: 512 }
    }
}

/// The other end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// MAC address of the peer, or of the router.
    pub mac: [u8; 6],
    /// IP address; it decides whether the queue pair speaks IPv4 or IPv6.
    pub ip: IpAddr,
    /// Queue pair number, 24 bits.
    pub qpn: u32,
    /// PSN of this side's first packet, 24 bits.
    pub send_psn: u32,
    /// PSN of the peer's first packet, 24 bits.
    pub receive_psn: u32,
}

/// A queue pair's memory and how far each side has come.
#[derive(Debug)]
pub(crate) struct QueuePair {
    /// QPCONF without the bits that connecting sets.
    qpconf: u32,
    /// Timer code of the RNR NAKs that this side sends.
    rnr_timer: u8,
    pub(crate) enabled: bool,
    pub(crate) flushing: bool,
    pub(crate) cqe_writes: bool,
    pub(crate) index_source: IndexSource,
    pub(crate) sq_depth: u16,
    pub(crate) rq_depth: u16,
    pub(crate) element_len: u32,
    pub(crate) memory: QueueMemory,
    /// What is in each send queue slot.
    pub(crate) slots: Box<[Completion]>,
    /// Last index written to memory, announced, and polled.
    pub(crate) posted: u16,
    pub(crate) rung: u16,
    pub(crate) completed: u16,
    /// Last index known to be filled, taken by the caller, and released.
    pub(crate) produced: u16,
    pub(crate) taken: u16,
    pub(crate) released: u16,
    /// Elements taken and not released.
    pub(crate) held: u16,
}

/// Send queue, completion queue, receive queue, and the two doorbell words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueMemory {
    pub(crate) sq: DmaBuffer,
    pub(crate) cq: DmaBuffer,
    pub(crate) rq: DmaBuffer,
    doorbells: DmaBuffer,
}

impl QueueMemory {
    pub(crate) const fn cq_doorbell(&self) -> u64 {
        self.doorbells.bus
    }

    pub(crate) const fn rq_doorbell(&self) -> u64 {
        self.doorbells.bus + DOORBELL_BYTES as u64 / 2
    }
}

impl QueuePair {
    pub(crate) fn free(self, platform: &mut impl Platform) {
        let QueueMemory { sq, cq, rq, doorbells } = self.memory;
        for buffer in [sq, cq, rq, doorbells] {
            platform.dma_free(buffer);
        }
    }
}

impl<P: Platform> Ernic<P> {
    /// Creates the management queue pair, QP 1, and enables it. It must be the first one.
    ///
    /// # Errors
    /// A setting out of range, no DMA memory, or queue pairs that exist already.
    pub fn create_qp1(&mut self, config: &MadConfig) -> Result<QpNumber, Error> {
        let qp = QpNumber::MANAGEMENT;
        if self.qps.iter().any(Option::is_some) {
            let problem =
                "must be created before all other queue pairs, and once; destroy them first";
            return Err(Error::QpState { qp, problem });
        }
        check_queues(config.sq_depth, config.rq_depth, config.rq_element_len)?;
        let qpconf = qpconf_of_element(config.rq_element_len) | QPCONF_NO_HANDSHAKE | QPCONF_CQE;
        let queue_pair = self.allocate(config, qpconf, IndexSource::Memory)?;
        self.install(qp, queue_pair)?;
        self.set_qpconf(qp, QPCONF_ENABLE)?;
        Ok(qp)
    }

    /// Creates a queue pair with its queues in DMA memory, under the lowest free number from 2 on.
    /// It is disabled until [`Ernic::connect_qp`].
    ///
    /// # Errors
    /// A setting out of range, no free number or no DMA memory; nothing was written then.
    pub fn create_qp(&mut self, config: &QpConfig) -> Result<QpNumber, Error> {
        check_qp(config)?;
        let num_qps_enabled = self.config.num_qps_enabled;
        let is_free = |number: &u16| self.qps.get(usize::from(*number)).is_none_or(Option::is_none);
        let Some(number) = (2..=num_qps_enabled).find(is_free) else {
            return Err(Error::NoQpFree { num_qps_enabled });
        };
        let qp = QpNumber(number);
        let qpconf = qpconf_of_element(config.rq_element_len)
            | QPCONF_NO_HANDSHAKE
            | (config.path_mtu as u32) << 8
            | u32::from(config.rq_interrupt) << 2
            | u32::from(config.cq_interrupt) << 3
            | if config.cqe_writes { QPCONF_CQE } else { 0 };
        let sizes = MadConfig {
            sq_depth: config.sq_depth,
            rq_depth: config.rq_depth,
            rq_element_len: config.rq_element_len,
        };
        let mut queue_pair = self.allocate(&sizes, qpconf, config.index_source)?;
        queue_pair.rnr_timer = config.rnr_timer;
        self.install(qp, queue_pair)?;
        self.write_path(qp, &config.path())?;
        self.write_qp(qp, reg::QP_PD, config.pd);
        Ok(qp)
    }

    /// Sets what both ends agree on while they connect: a queue pair has its number before that.
    ///
    /// # Errors
    /// The queue pair does not exist or is connected, or a setting is out of range; nothing was written.
    pub fn set_path(&mut self, qp: QpNumber, path: &PathConfig) -> Result<(), Error> {
        check_path(path)?;
        if self.is_connected(qp)? {
            let problem = "is connected; its path cannot change any more";
            return Err(Error::QpState { qp, problem });
        }
        self.write_path(qp, path)
    }

    /// Whether a queue pair is connected; one that has become fatal still is.
    ///
    /// # Errors
    /// The queue pair does not exist.
    pub fn is_connected(&mut self, qp: QpNumber) -> Result<bool, Error> {
        Ok(self.queue_pair(qp)?.enabled)
    }

    /// Tells a queue pair its peer and enables it.
    ///
    /// # Errors
    /// The queue pair does not exist or is connected, a number does not fit, or this device has no
    /// address of the peer's family.
    pub fn connect_qp(&mut self, qp: QpNumber, remote: &Remote) -> Result<(), Error> {
        if self.queue_pair(qp)?.enabled {
            let problem = "is connected already; recover_qp or destroy_qp first";
            return Err(Error::QpState { qp, problem });
        }
        let own_is_unset = match remote.ip {
            IpAddr::V4(_) => self.config.ipv4.is_unspecified(),
            IpAddr::V6(_) => self.config.ipv6.is_unspecified(),
        };
        check_remote(remote, own_is_unset)?;
        let (words, family) = match remote.ip {
            IpAddr::V4(ip) => (ipv6_words(Ipv6Addr::from_bits(u32::from(ip).into())), 0),
            IpAddr::V6(ip) => (ipv6_words(ip), QPCONF_IPV6),
        };
        self.write_qp(qp, reg::SQPSN, remote.send_psn);
        // The register holds the last request seen, so one before the first; its opcode must be one
        // that ends a message, or the first packet is out of sequence.
        let last_psn = remote.receive_psn.wrapping_sub(1) & PSN_MASK;
        self.write_qp(qp, reg::LSTRQREQ, LAST_OPCODE_SEND_ONLY << 24 | last_psn);
        self.write_qp(qp, reg::DESTQPCONF, remote.qpn);
        let (low, high) = mac_words(remote.mac);
        self.write_qp(qp, reg::MACDESADDLSB, low);
        self.write_qp(qp, reg::MACDESADDMSB, high);
        let registers = [reg::IPDESADDR1, reg::IPDESADDR2, reg::IPDESADDR3, reg::IPDESADDR4];
        for (register, word) in registers.into_iter().zip(words) {
            self.write_qp(qp, register, word);
        }
        self.set_qpconf(qp, QPCONF_ENABLE | family)
    }

    /// Puts a queue pair under recovery: the device stops sending and completes everything that was
    /// announced. Poll the completions, then [`Ernic::recover_qp`] or [`Ernic::destroy_qp`]. What
    /// was posted but not announced is forgotten.
    ///
    /// # Errors
    /// The queue pair does not exist or is not connected, or the device does not come to rest; call
    /// again then.
    pub fn flush_qp(&mut self, qp: QpNumber) -> Result<(), Error> {
        let q = lookup(&mut self.qps, qp)?;
        if !q.enabled {
            return Err(Error::QpState { qp, problem: "is not connected; nothing to flush" });
        }
        q.flushing = true;
        q.posted = q.rung;
        let rung = u32::from(q.rung);
        let conf = self.read_qp(qp, reg::QPCONF);
        self.write_qp(qp, reg::QPCONF, conf | QPCONF_RECOVERY);
        let limit = self.config.wait_looks;
        let statqp = self.map.of_qp(qp, reg::STATQP);
        self.wait_until(statqp, "send queue and outstanding queue to be empty", limit, |value| {
            value & STATQP_IDLE == STATQP_IDLE
        })?;
        let cqhead = self.map.of_qp(qp, reg::CQHEAD);
        self.wait_until(cqhead, "CQHEAD to reach SQPI", limit, |value| value & 0xFFFF == rung)?;
        self.wait_until(reg::RESPHNDSTS, "no pending doorbell (bit 16)", limit, |value| {
            value & RESPHNDSTS_IDLE != 0
        })?;
        Ok(())
    }

    /// Brings a queue pair back from the fatal state, or from any other: flushes it, disables it and
    /// rewinds all its indices. [`Ernic::connect_qp`] makes it usable again, with new PSNs on both
    /// sides. Completions and messages that were not taken before are forgotten.
    ///
    /// # Errors
    /// As [`Ernic::flush_qp`].
    pub fn recover_qp(&mut self, qp: QpNumber) -> Result<(), Error> {
        self.flush_qp(qp)?;
        let conf = self.read_qp(qp, reg::QPCONF);
        self.write_qp(qp, reg::QPCONF, conf & !QPCONF_ENABLE);
        self.rewind(qp)?;
        let memory = lookup(&mut self.qps, qp)?.memory;
        self.platform.dma_write(memory.doorbells.bus, &[0; DOORBELL_BYTES])?;
        self.program_queues(qp)
    }

    /// Brings a fatal queue pair back to work with its peer (PG332, software flow): recovery on; until
    /// both queues are empty, CQHEAD has reached SQPI and RESPHNDSTS\[16\] is set; off; under software
    /// override all indices 0; new PSNs and addresses; on again, recovery off. The peer must do the same,
    /// with the same PSNs. What made it fatal is in the incoming error queue: [`Ernic::take_fatal`].
    ///
    /// # Errors
    /// As [`Ernic::flush_qp`] and [`Ernic::connect_qp`].
    pub fn recover(&mut self, qp: QpNumber, remote: &Remote) -> Result<(), Error> {
        self.recover_qp(qp)?;
        self.connect_qp(qp, remote)
    }

    /// Destroys a queue pair and frees its memory (PG332, "QP deletion"). Where work is outstanding
    /// or the queue pair is fatal, it is flushed first.
    ///
    /// # Errors
    /// As [`Ernic::flush_qp`]; the queue pair still exists then.
    pub fn destroy_qp(&mut self, qp: QpNumber) -> Result<(), Error> {
        let q = self.queue_pair(qp)?;
        let (enabled, rung) = (q.enabled, u32::from(q.rung));
        if enabled {
            let statqp = self.read_qp(qp, reg::STATQP);
            let at_rest = statqp & (STATQP_IDLE | STATQP_FATAL) == STATQP_IDLE;
            if !at_rest || self.read_qp(qp, reg::CQHEAD) & 0xFFFF != rung {
                self.flush_qp(qp)?;
            }
        }
        let conf = self.read_qp(qp, reg::QPCONF);
        self.write_qp(qp, reg::QPCONF, conf & !QPCONF_ENABLE);
        self.write_pair_qp(qp, reg::RQWPTRDBADD, reg::RQWPTRDBADDMSB, 0);
        self.write_pair_qp(qp, reg::CQDBADD, reg::CQDBADDMSB, 0);
        self.rewind(qp)?;
        self.write_qp(qp, reg::QPCONF, conf & !QPCONF_ENABLE | QPCONF_RECOVERY);
        if let Some(queue_pair) = self.qps.get_mut(usize::from(qp.get())).and_then(Option::take) {
            queue_pair.free(&mut self.platform);
        }
        Ok(())
    }

    /// Reads a per-QP register.
    pub fn read_qp(&mut self, qp: QpNumber, register: Register) -> u32 {
        let register = self.map.of_qp(qp, register);
        self.platform.read32(register.offset)
    }

    pub(crate) fn queue_pair(&mut self, qp: QpNumber) -> Result<&mut QueuePair, Error> {
        lookup(&mut self.qps, qp)
    }

    fn write_qp(&mut self, qp: QpNumber, register: Register, value: u32) {
        let register = self.map.of_qp(qp, register);
        self.platform.write32(register.offset, value);
    }

    fn write_pair_qp(&mut self, qp: QpNumber, low: Register, high: Register, value: u64) {
        let (low, high) = (self.map.of_qp(qp, low), self.map.of_qp(qp, high));
        self.write_pair(low, high, value);
    }

    /// Sets QPCONF to the queue pair's settings plus `bits`.
    fn set_qpconf(&mut self, qp: QpNumber, bits: u32) -> Result<(), Error> {
        let q = self.queue_pair(qp)?;
        q.enabled = bits & QPCONF_ENABLE != 0;
        let value = q.qpconf | bits;
        self.write_qp(qp, reg::QPCONF, value);
        Ok(())
    }

    /// Writes a queue pair's path, except the path MTU, which goes out with QPCONF.
    fn write_path(&mut self, qp: QpNumber, path: &PathConfig) -> Result<(), Error> {
        let q = self.queue_pair(qp)?;
        q.qpconf = q.qpconf & !QPCONF_PATH_MTU | (path.path_mtu as u32) << 8;
        let rnr_timer = u32::from(q.rnr_timer);
        let advanced =
            u32::from(path.traffic_class) | u32::from(path.ttl) << 8 | u32::from(path.pkey) << 16;
        self.write_qp(qp, reg::QPADVCONF, advanced);
        let timeout = u32::from(path.timeout)
            | u32::from(path.retry_count) << 8
            | u32::from(path.rnr_retry) << 11
            | rnr_timer << 16;
        self.write_qp(qp, reg::TIMEOUTCONF, timeout);
        Ok(())
    }

    /// Memory for a queue pair, all of it or none.
    fn allocate(
        &mut self,
        sizes: &MadConfig,
        qpconf: u32,
        index_source: IndexSource,
    ) -> Result<QueuePair, Error> {
        let sq_depth = usize::from(sizes.sq_depth);
        let rq_len = usize::from(sizes.rq_depth) * sizes.rq_element_len as usize;
        let wanted = [
            ("send queue", sq_depth * WQE_BYTES),
            ("completion queue", sq_depth * CQE_BYTES),
            ("receive queue", rq_len),
            ("doorbell words", DOORBELL_BYTES),
        ];
        let mut got = [DmaBuffer { bus: 0, len: 0 }; 4];
        for (index, (purpose, len)) in wanted.into_iter().enumerate() {
            match self.dma_alloc(purpose, len) {
                Ok(buffer) => got[index] = buffer,
                Err(error) => {
                    got[..index].iter().for_each(|buffer| self.platform.dma_free(*buffer));
                    return Err(error);
                }
            }
        }
        let [sq, cq, rq, doorbells] = got;
        Ok(QueuePair {
            qpconf,
            rnr_timer: 0,
            enabled: false,
            flushing: false,
            cqe_writes: qpconf & QPCONF_CQE != 0,
            index_source,
            sq_depth: sizes.sq_depth,
            rq_depth: sizes.rq_depth,
            element_len: sizes.rq_element_len,
            memory: QueueMemory { sq, cq, rq, doorbells },
            slots: vec![Completion::default(); sq_depth].into_boxed_slice(),
            posted: 0,
            rung: 0,
            completed: 0,
            produced: 0,
            taken: 0,
            released: 0,
            held: 0,
        })
    }

    /// Gives a new queue pair its number and tells the device its queues, disabled.
    fn install(&mut self, qp: QpNumber, queue_pair: QueuePair) -> Result<(), Error> {
        let number = usize::from(qp.get());
        if self.qps.len() <= number {
            self.qps.resize_with(number + 1, || None);
        }
        self.qps[number] = Some(queue_pair);
        self.set_qpconf(qp, 0)?;
        // Whoever used the number before has left its indices behind.
        if let Err(error) = self.rewind(qp) {
            if let Some(queue_pair) = self.qps[number].take() {
                queue_pair.free(&mut self.platform);
            }
            return Err(error);
        }
        self.program_queues(qp)
    }

    fn program_queues(&mut self, qp: QpNumber) -> Result<(), Error> {
        let q = self.queue_pair(qp)?;
        let memory = q.memory;
        let depth = u32::from(q.rq_depth) << 16 | u32::from(q.sq_depth);
        self.write_pair_qp(qp, reg::RQBA, reg::RQBAMSB, memory.rq.bus);
        self.write_pair_qp(qp, reg::SQBA, reg::SQBAMSB, memory.sq.bus);
        self.write_pair_qp(qp, reg::CQBA, reg::CQBAMSB, memory.cq.bus);
        self.write_pair_qp(qp, reg::RQWPTRDBADD, reg::RQWPTRDBADDMSB, memory.rq_doorbell());
        self.write_pair_qp(qp, reg::CQDBADD, reg::CQDBADDMSB, memory.cq_doorbell());
        self.write_qp(qp, reg::QDEPTH, depth);
        Ok(())
    }

    /// Sets all indices of a disabled queue pair to 0, on both sides, under software override.
    fn rewind(&mut self, qp: QpNumber) -> Result<(), Error> {
        let q = self.queue_pair(qp)?;
        (q.enabled, q.flushing) = (false, false);
        (q.posted, q.rung, q.completed) = (0, 0, 0);
        (q.produced, q.taken, q.released, q.held) = (0, 0, 0, 0);
        let advanced = self.advanced_configuration();
        let number = u32::from(qp.get());
        self.write(reg::XRNICADCONF, advanced | number << 20 | XRNICADCONF_OVERRIDE);
        let connected_only: &[Register] = &[
            reg::STATRQBUFCA,
            reg::STATRQBUFCAMSB,
            reg::STATCURSQPTR,
            reg::SQPSN,
            reg::LSTRQREQ,
            reg::STATMSN,
        ];
        let extra = if qp == QpNumber::MANAGEMENT { &[] } else { connected_only };
        let all = [reg::STATRQPIDB, reg::RQCI, reg::SQPI, reg::CQHEAD, reg::STATQP];
        for register in extra.iter().chain(&all) {
            self.write_qp(qp, *register, 0);
        }
        let limit = self.config.wait_looks;
        let cqhead = self.map.of_qp(qp, reg::CQHEAD);
        let waited =
            self.wait_until(cqhead, "0 under software override", limit, |value| value == 0);
        self.write(reg::XRNICADCONF, advanced);
        waited.map(|_| ())
    }
}

#[inline]
pub(crate) fn lookup(qps: &mut [Option<QueuePair>], qp: QpNumber) -> Result<&mut QueuePair, Error> {
    qps.get_mut(usize::from(qp.get())).and_then(Option::as_mut).ok_or(Error::QpUnknown { qp })
}

const fn qpconf_of_element(rq_element_len: u32) -> u32 {
    (rq_element_len / RQ_ELEMENT_UNIT) << 16
}

fn refuse_unless(
    holds: bool,
    field: &'static str,
    value: u64,
    allowed: &'static str,
) -> Result<(), Error> {
    if holds { Ok(()) } else { Err(Error::Setting { field, value, allowed }) }
}

fn check_queues(sq_depth: u16, rq_depth: u16, element: u32) -> Result<(), Error> {
    refuse_unless(sq_depth >= 2, "sq_depth", sq_depth.into(), "2 to 65535")?;
    refuse_unless(rq_depth >= 2, "rq_depth", rq_depth.into(), "2 to 65535")?;
    let units = element / RQ_ELEMENT_UNIT;
    let fits =
        element.is_multiple_of(RQ_ELEMENT_UNIT) && units.is_power_of_two() && units <= 1 << 15;
    refuse_unless(fits, "rq_element_len", element.into(), "256 times a power of two, up to 2^23")
}

fn check_qp(config: &QpConfig) -> Result<(), Error> {
    check_queues(config.sq_depth, config.rq_depth, config.rq_element_len)?;
    refuse_unless(config.pd <= 0x00FF_FFFF, "pd", config.pd.into(), "24 bits")?;
    refuse_unless(config.rnr_timer <= 31, "rnr_timer", config.rnr_timer.into(), "0 to 31")?;
    check_path(&config.path())
}

fn check_path(path: &PathConfig) -> Result<(), Error> {
    let small = [
        ("timeout", path.timeout, 63, "0 to 63"),
        ("retry_count", path.retry_count, 7, "0 to 7"),
        ("rnr_retry", path.rnr_retry, 7, "0 to 7"),
        ("traffic_class", path.traffic_class, 63, "0 to 63"),
    ];
    for (field, value, most, allowed) in small {
        refuse_unless(value <= most, field, value.into(), allowed)?;
    }
    Ok(())
}

fn check_remote(remote: &Remote, own_is_unset: bool) -> Result<(), Error> {
    let version = if remote.ip.is_ipv4() { 4 } else { 6 };
    let allowed = "the family of an address given at bring-up";
    refuse_unless(!own_is_unset, "remote IP version", version, allowed)?;
    for (field, value) in [
        ("remote qpn", remote.qpn),
        ("send_psn", remote.send_psn),
        ("receive_psn", remote.receive_psn),
    ] {
        refuse_unless(value <= PSN_MASK, field, value.into(), "24 bits")?;
    }
    Ok(())
}

const QPCONF_ENABLE: u32 = 1 << 0;
const QPCONF_NO_HANDSHAKE: u32 = 1 << 4;
const QPCONF_PATH_MTU: u32 = 7 << 8;
const QPCONF_CQE: u32 = 1 << 5;
const QPCONF_RECOVERY: u32 = 1 << 6;
const QPCONF_IPV6: u32 = 1 << 7;
const STATQP_FATAL: u32 = 1 << 0;
const RESPHNDSTS_IDLE: u32 = 1 << 16;
const XRNICADCONF_OVERRIDE: u32 = 1 << 0;
/// Unit of QPCONF\[31:16\].
const RQ_ELEMENT_UNIT: u32 = 256;
/// BTH opcode RC SEND ONLY.
const LAST_OPCODE_SEND_ONLY: u32 = 0x04;
/// Two doorbell words, a cache line apart.
const DOORBELL_BYTES: usize = 128;
