//! The device as a whole: bring-up, memory regions, interrupts, the fatal error queue.
//!
//! Queue pairs are in `qp`, decoded status in `status`. Knows nothing of the platform but its trait.

use alloc::vec;
use alloc::vec::Vec;
use core::net::{Ipv4Addr, Ipv6Addr};

use crate::error::Error;
use crate::platform::{DmaBuffer, Platform};
use crate::qp::{QpNumber, QueuePair};
use crate::registers::{self as reg, Map, Register, of_region};

/// When the device acknowledges (XRNICCONF\[4:3\]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum AckMode {
    /// When a packet asks for it, or on a timeout.
    #[default]
    RequestOrTimeout = 0,
    /// On a timeout only.
    Timeout = 1,
    /// When a packet asks for it only.
    Request = 2,
}

/// A pool of equal buffers that the device fills by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BufferPool {
    /// Buffers.
    pub count: u16,
    /// Bytes of each.
    pub bytes_each: u16,
}

impl BufferPool {
    const fn register(self) -> u32 {
        (self.bytes_each as u32) << 16 | self.count as u32
    }

    const fn bytes(self) -> usize {
        self.count as usize * self.bytes_each as usize
    }
}

/// How to set up the device.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// MAC address.
    pub mac: [u8; 6],
    /// IPv4 address; unspecified where queue pairs use IPv6 only.
    pub ipv4: Ipv4Addr,
    /// IPv6 address; unspecified where queue pairs use IPv4 only.
    pub ipv6: Ipv6Addr,
    /// UDP source port of all packets (XRNICCONF\[23:8\]).
    pub udp_source_port: u16,
    /// Highest usable queue pair number, 1 to 2047; QP 1 is for management
    /// (XRNIC_CONF_QP_EN).
    pub num_qps_enabled: u16,
    /// When to acknowledge.
    pub ack_mode: AckMode,
    /// Keep headers of all packets that fail validation, not only of fatal ones (XRNICCONF\[5\]).
    pub keep_refused_packets: bool,
    /// Headers of packets that failed validation (ERRBUF).
    pub error_buffers: BufferPool,
    /// Headers of responses that failed validation (RESPERR); must not be empty.
    pub response_error_buffers: BufferPool,
    /// Outgoing data until it is acknowledged (DATBUF).
    pub data_buffers: BufferPool,
    /// Entries of the incoming error queue (IPKTERRQ): fatal queue pairs.
    pub incoming_error_entries: u16,
    /// Entries of the outgoing error queue (OPKTERRQ).
    pub outgoing_error_entries: u16,
    /// Causes that raise the interrupt line (INTEN), [`Interrupts::COMPLETION`] and so on.
    pub interrupt_mask: u32,
    /// CLOG2(4.096 * clock in MHz): 10 for 200 and 250 MHz, 9 for 125 (XRNICADCONF\[19:16\]).
    pub base_count_width: u8,
    /// A queue pair that runs out of retries does not become fatal (XRNICADCONF\[2\]).
    pub retry_exhaustion_not_fatal: bool,
    /// How often a register is read while waiting before [`Error::Timeout`].
    pub wait_looks: u32,
}

impl Default for DeviceConfig {
    /// Sizes as users of the card take them; eight queue pairs; no address and no interrupts.
    fn default() -> Self {
        let headers = BufferPool { count: 64, bytes_each: 256 };
        Self {
            mac: [0; 6],
            ipv4: Ipv4Addr::UNSPECIFIED,
            ipv6: Ipv6Addr::UNSPECIFIED,
            udp_source_port: 0xC000,
            num_qps_enabled: 7,
            ack_mode: AckMode::RequestOrTimeout,
            keep_refused_packets: true,
            error_buffers: headers,
            response_error_buffers: headers,
            data_buffers: BufferPool { count: 128, bytes_each: 4096 },
            incoming_error_entries: 64,
            outgoing_error_entries: 64,
            interrupt_mask: 0,
            base_count_width: 10,
            retry_exhaustion_not_fatal: false,
            wait_looks: 100_000,
        }
    }
}

/// What a peer may do with a region (ACCESSDESC\[3:0\]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RegionAccess {
    /// RDMA READ.
    Read = 0,
    /// RDMA WRITE.
    Write = 1,
    /// Both.
    ReadWrite = 2,
}

/// A memory region to register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionConfig {
    /// Protection domain, 24 bits; only queue pairs of the same domain reach the region.
    pub pd: u32,
    /// Virtual address of the first byte, as the peer names it.
    pub va: u64,
    /// Bus address of the first byte.
    pub bus: u64,
    /// Bytes, 1 to 2^48 - 1.
    pub len: u64,
    /// What a peer may do.
    pub access: RegionAccess,
    /// Low byte of the remote key.
    pub key: u8,
}

/// A registered memory region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Row of the region table.
    pub index: u16,
    /// Remote key to give to the peer: row << 8 | key.
    pub rkey: u32,
    /// Virtual address of the first byte.
    pub va: u64,
    /// Bytes.
    pub len: u64,
}

/// Why the interrupt line was raised, taken and cleared.
#[derive(Clone, Debug)]
pub struct Interrupts {
    /// INTSTS as it was.
    pub status: u32,
    completions: Banks,
    receives: Banks,
    congestion: Banks,
}

type Banks = [u32; BANK_WORDS];

impl Interrupts {
    /// A packet failed validation.
    pub const PACKET_REFUSED: u32 = 1 << 0;
    /// A management datagram arrived on QP 1.
    pub const MAD: u32 = 1 << 1;
    /// The device answered "receiver not ready".
    pub const RNR_NAK_SENT: u32 = 1 << 3;
    /// A work request completed on a queue pair with its completion interrupt on.
    pub const COMPLETION: u32 = 1 << 4;
    /// An illegal opcode was posted.
    pub const ILLEGAL_OPCODE: u32 = 1 << 5;
    /// A message arrived on a queue pair with its receive interrupt on.
    pub const RECEIVE: u32 = 1 << 6;
    /// A queue pair became fatal.
    pub const FATAL: u32 = 1 << 7;
    /// A congestion notification should be sent.
    pub const CNP: u32 = 1 << 8;

    /// Queue pairs with new completions, in ascending order.
    pub fn completions(&self) -> impl Iterator<Item = QpNumber> + '_ {
        numbers(&self.completions)
    }

    /// Queue pairs with new received messages, in ascending order.
    pub fn receives(&self) -> impl Iterator<Item = QpNumber> + '_ {
        numbers(&self.receives)
    }

    /// Queue pairs that received a packet marked "congestion experienced", in ascending order.
    pub fn congestion(&self) -> impl Iterator<Item = QpNumber> + '_ {
        numbers(&self.congestion)
    }
}

/// An entry of the incoming error queue: a queue pair became fatal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FatalEntry {
    /// The queue pair.
    pub qp: QpNumber,
    /// The device's fatal code.
    pub code: u16,
}

/// An ERNIC that was brought up. It owns its platform. Dropping it leaves the device running, which
/// then still writes to its buffers: [`Ernic::shut_down`] first.
#[derive(Debug)]
pub struct Ernic<P: Platform> {
    pub(crate) platform: P,
    pub(crate) map: Map,
    pub(crate) config: DeviceConfig,
    /// By number; slot 0 stays empty.
    pub(crate) qps: Vec<Option<QueuePair>>,
    /// Whether a row of the region table is ours.
    regions: Vec<bool>,
    pools: Vec<DmaBuffer>,
    incoming_errors: DmaBuffer,
    /// Next entry of the incoming error queue to take.
    fatal_taken: u16,
}

impl<P: Platform> Ernic<P> {
    /// Sets the device up and enables it: buffers and error queues, interrupts, addresses, and the
    /// enable bit last (PG332, "Global Configuration").
    ///
    /// # Errors
    /// A setting out of range, no DMA memory, or a device that does not answer or is not an ERNIC.
    /// The device is left disabled.
    pub fn bring_up(platform: P, map: Map, config: &DeviceConfig) -> Result<Self, Error> {
        check(config)?;
        let mut ernic = Self {
            platform,
            map,
            config: config.clone(),
            qps: Vec::new(),
            regions: vec![false; usize::from(map.region_rows)],
            pools: Vec::new(),
            incoming_errors: DmaBuffer { bus: 0, len: 0 },
            fatal_taken: 0,
        };
        if ernic.read(reg::XRNICCONF) == ALL_ONES {
            return Err(Error::NoDevice { register: reg::XRNICCONF });
        }
        let programmed = ernic.program();
        if let Err(error) = programmed {
            ernic.release();
            return Err(error);
        }
        Ok(ernic)
    }

    /// Disables the device, frees all memory that the driver allocated and gives the platform back.
    pub fn shut_down(mut self) -> P {
        self.release();
        self.platform
    }

    /// The platform.
    pub const fn platform(&self) -> &P {
        &self.platform
    }

    /// The platform, to drive its clock, say.
    pub const fn platform_mut(&mut self) -> &mut P {
        &mut self.platform
    }

    /// Reads a global register.
    pub fn read(&mut self, register: Register) -> u32 {
        self.platform.read32(register.offset)
    }

    pub(crate) fn write(&mut self, register: Register, value: u32) {
        self.platform.write32(register.offset, value);
    }

    pub(crate) fn write_pair(&mut self, low: Register, high: Register, value: u64) {
        self.write(low, value as u32);
        self.write(high, (value >> 32) as u32);
    }

    /// Reads a register until `done` likes its value, with a pause between two looks.
    ///
    /// # Errors
    /// `limit` looks were not enough.
    pub fn wait_until(
        &mut self,
        register: Register,
        waiting_for: &'static str,
        limit: u32,
        mut done: impl FnMut(u32) -> bool,
    ) -> Result<u32, Error> {
        let mut value = self.read(register);
        for _ in 1..limit {
            if done(value) {
                return Ok(value);
            }
            self.platform.pause();
            value = self.read(register);
        }
        if done(value) {
            return Ok(value);
        }
        Err(Error::Timeout { register, waiting_for, value, looks: limit.max(1) })
    }

    /// Registers memory that peers may reach, in the lowest free row of the region table.
    ///
    /// # Errors
    /// A field out of range, or no free row; nothing was written.
    pub fn register_region(&mut self, config: &RegionConfig) -> Result<Region, Error> {
        let setting = |field, value, allowed| Err(Error::Setting { field, value, allowed });
        if config.pd >= 1 << 24 {
            return setting("region pd", u64::from(config.pd), "24 bits");
        }
        if config.len == 0 || config.len >= 1 << 48 {
            return setting("region length", config.len, "1 to 2^48 - 1 bytes");
        }
        for (field, start) in [("region va", config.va), ("region bus address", config.bus)] {
            if start.checked_add(config.len - 1).is_none() {
                return setting(field, start, "a range that ends within 64 bits");
            }
        }
        let Some(row) = self.regions.iter().position(|taken| !taken) else {
            return Err(Error::NoRegionFree { rows: self.map.region_rows });
        };
        self.regions[row] = true;
        let index = row as u16;
        let at = |register| of_region(index, register);
        self.write(at(reg::PDPDNUM), config.pd);
        self.write_pair(at(reg::VIRTADDRLSB), at(reg::VIRTADDRMSB), config.va);
        self.write_pair(at(reg::BUFBASEADDRLSB), at(reg::BUFBASEADDRMSB), config.bus);
        self.write(at(reg::BUFRKEY), u32::from(config.key));
        let length_high = (config.len >> 32) as u32;
        self.write(at(reg::ACCESSDESC), length_high << 16 | config.access as u32);
        self.write(at(reg::WRRDBUFLEN), config.len as u32);
        let rkey = u32::from(index) << 8 | u32::from(config.key);
        Ok(Region { index, rkey, va: config.va, len: config.len })
    }

    /// Takes a region away from peers: its length becomes 0 before anything else changes.
    ///
    /// # Errors
    /// The row holds no region of ours.
    pub fn deregister_region(&mut self, region: Region) -> Result<(), Error> {
        let index = region.index;
        let Some(taken) = self.regions.get_mut(usize::from(index)).filter(|taken| **taken) else {
            return Err(Error::RegionUnknown { index });
        };
        *taken = false;
        let at = |register| of_region(index, register);
        self.write(at(reg::WRRDBUFLEN), 0);
        self.write(at(reg::ACCESSDESC), 0);
        self.write(at(reg::BUFRKEY), 0);
        self.write_pair(at(reg::VIRTADDRLSB), at(reg::VIRTADDRMSB), 0);
        self.write_pair(at(reg::BUFBASEADDRLSB), at(reg::BUFBASEADDRMSB), 0);
        self.write(at(reg::PDPDNUM), 0);
        Ok(())
    }

    /// Reads why the interrupt line was raised, and clears it: INTSTS first, then the bank words
    /// behind it, and when it returns the device has these writes. So an event in between is either
    /// there for whoever looks now, or raises the line again.
    ///
    /// # Errors
    /// The device does not answer any more.
    pub fn take_interrupts(&mut self) -> Result<Interrupts, Error> {
        let status = self.read(reg::INTSTS);
        if status == ALL_ONES {
            return Err(Error::NoDevice { register: reg::INTSTS });
        }
        let none = [0; BANK_WORDS];
        let mut taken = Interrupts { status, completions: none, receives: none, congestion: none };
        if status == 0 {
            return Ok(taken);
        }
        self.write(reg::INTSTS, status);
        if status & Interrupts::COMPLETION != 0 {
            self.take_banks(reg::CQINTSTS, &mut taken.completions);
        }
        if status & Interrupts::RECEIVE != 0 {
            self.take_banks(reg::RQINTSTS, &mut taken.receives);
        }
        if status & Interrupts::CNP != 0 {
            self.take_banks(reg::CNPSCHDSTS, &mut taken.congestion);
        }
        // Writes are posted. A clear that arrives after the caller has looked at its queues would
        // take an event away that came between the two.
        self.read(reg::INTSTS);
        Ok(taken)
    }

    /// Takes the next entry of the incoming error queue, if there is one. The device does not look
    /// whether the queue overflows: take entries whenever [`Interrupts::FATAL`] is set.
    ///
    /// # Errors
    /// The queue's memory cannot be read.
    pub fn take_fatal(&mut self) -> Result<Option<FatalEntry>, Error> {
        let entries = self.config.incoming_error_entries;
        if entries == 0 {
            return Ok(None);
        }
        let written = (self.read(reg::IPKTERRQWPTR) & 0xFFFF) % u32::from(entries);
        if written == u32::from(self.fatal_taken) {
            return Ok(None);
        }
        let mut entry = [0; ERROR_ENTRY_BYTES];
        let at = u64::from(self.fatal_taken) * ERROR_ENTRY_BYTES as u64;
        self.platform.dma_read(self.incoming_errors.bus + at, &mut entry)?;
        self.fatal_taken = (self.fatal_taken + 1) % entries;
        Ok(Some(FatalEntry {
            code: u16::from_le_bytes([entry[0], entry[1]]),
            qp: QpNumber::new(u16::from_le_bytes([entry[2], entry[3]])),
        }))
    }

    /// Zeroed DMA memory, aligned to 256 bytes; `purpose` is named where there is none. It stays
    /// with the platform: the driver does not free what it did not allocate for itself.
    ///
    /// # Errors
    /// No more memory.
    pub fn dma_alloc(&mut self, purpose: &'static str, len: usize) -> Result<DmaBuffer, Error> {
        self.platform.dma_alloc(len, DMA_ALIGN).ok_or(Error::NoDmaMemory { purpose, len })
    }

    /// XRNICADCONF without the override bits.
    pub(crate) const fn advanced_configuration(&self) -> u32 {
        (self.config.base_count_width as u32) << 16
            | (self.config.retry_exhaustion_not_fatal as u32) << 2
    }

    fn program(&mut self) -> Result<(), Error> {
        let config = self.config.clone();
        self.write(reg::XRNICCONF, 0);
        self.write(reg::XRNICADCONF, self.advanced_configuration());
        self.write(reg::XRNIC_CONF_QP_EN, u32::from(config.num_qps_enabled));
        self.give_pools(&config)?;
        self.write(reg::INTSTS, Interrupts::ALL);
        self.write(reg::INTEN, config.interrupt_mask);
        self.write_addresses(&config)?;
        let conf = XRNICCONF_ENABLE
            | (config.ack_mode as u32) << 3
            | u32::from(config.keep_refused_packets) << 5
            | u32::from(config.udp_source_port) << 8;
        self.write(reg::XRNICCONF, conf);
        Ok(())
    }

    fn give_pools(&mut self, config: &DeviceConfig) -> Result<(), Error> {
        let queue = |count| BufferPool { count, bytes_each: 0 };
        let rows = [
            ("error buffers", reg::ERRBUFBA, reg::ERRBUFBAMSB, reg::ERRBUFSZ, config.error_buffers),
            (
                INCOMING_ERRORS,
                reg::IPKTERRQBA,
                reg::IPKTERRQBAMSB,
                reg::IPKTERRQSZ,
                queue(config.incoming_error_entries),
            ),
            (
                "outgoing error queue",
                reg::OPKTERRQBA,
                reg::OPKTERRQBAMSB,
                reg::OUTERRSTSQSZ,
                queue(config.outgoing_error_entries),
            ),
            (
                "response error buffers",
                reg::RESPERRPKTBA,
                reg::RESPERRPKTBAMSB,
                reg::RESPERRSZ,
                config.response_error_buffers,
            ),
            ("data buffers", reg::DATBUFBA, reg::DATBUFBAMSB, reg::DATBUFSZ, config.data_buffers),
        ];
        for (purpose, low, high, size, pool) in rows {
            let bytes = match pool.bytes_each {
                0 => usize::from(pool.count) * ERROR_ENTRY_BYTES,
                _ => pool.bytes(),
            };
            if bytes == 0 {
                continue;
            }
            let buffer = self.dma_alloc(purpose, bytes)?;
            self.pools.push(buffer);
            if purpose == INCOMING_ERRORS {
                self.incoming_errors = buffer;
            }
            self.write_pair(low, high, buffer.bus);
            self.write(size, pool.register());
        }
        // The write pointer survives a driver: what is in front of it is not ours.
        let entries = u32::from(config.incoming_error_entries.max(1));
        self.fatal_taken = ((self.read(reg::IPKTERRQWPTR) & 0xFFFF) % entries) as u16;
        Ok(())
    }

    fn write_addresses(&mut self, config: &DeviceConfig) -> Result<(), Error> {
        let (low, high) = mac_words(config.mac);
        self.write(reg::MACXADDLSB, low);
        self.write(reg::MACXADDMSB, high);
        for (register, wrote) in [(reg::MACXADDLSB, low), (reg::MACXADDMSB, high)] {
            let read = self.read(register);
            if read != wrote && read == ALL_ONES {
                return Err(Error::NoDevice { register });
            }
            if read != wrote {
                return Err(Error::ReadBack { register, wrote, read });
            }
        }
        self.write(reg::IPV4XADD, u32::from(config.ipv4));
        let words = ipv6_words(config.ipv6);
        let registers = [reg::IPV6XADD1, reg::IPV6XADD2, reg::IPV6XADD3, reg::IPV6XADD4];
        for (register, word) in registers.into_iter().zip(words) {
            self.write(register, word);
        }
        Ok(())
    }

    fn take_banks(&mut self, first: Register, into: &mut Banks) {
        let words = usize::from(self.config.num_qps_enabled) / 32 + 1;
        for (word, bits) in into.iter_mut().enumerate().take(words) {
            let register = first.plus(word as u32 * 4);
            *bits = self.read(register);
            if *bits != 0 {
                self.write(register, *bits);
            }
        }
    }

    fn release(&mut self) {
        self.write(reg::XRNICCONF, 0);
        for queue_pair in core::mem::take(&mut self.qps).into_iter().flatten() {
            queue_pair.free(&mut self.platform);
        }
        for pool in core::mem::take(&mut self.pools) {
            self.platform.dma_free(pool);
        }
    }
}

impl Interrupts {
    /// All causes that INTSTS knows.
    const ALL: u32 = 0x1FB;
}

/// (LSB, MSB) as the address registers want them.
pub(crate) const fn mac_words(mac: [u8; 6]) -> (u32, u32) {
    (
        u32::from_be_bytes([mac[2], mac[3], mac[4], mac[5]]),
        u32::from_be_bytes([0, 0, mac[0], mac[1]]),
    )
}

/// Words for the address registers 1 to 4: register 1 takes the last four bytes.
pub(crate) const fn ipv6_words(ip: Ipv6Addr) -> [u32; 4] {
    let bits = ip.to_bits();
    [bits as u32, (bits >> 32) as u32, (bits >> 64) as u32, (bits >> 96) as u32]
}

fn numbers(banks: &Banks) -> impl Iterator<Item = QpNumber> + '_ {
    (1..BANK_WORDS as u16 * 32)
        .filter(|number| banks[usize::from(number / 32)] & 1 << (number % 32) != 0)
        .map(QpNumber::new)
}

fn check(config: &DeviceConfig) -> Result<(), Error> {
    let pool_ok = |pool: BufferPool| pool.count > 0 && pool.bytes_each > 0;
    let rows = [
        (
            "num_qps_enabled",
            u64::from(config.num_qps_enabled),
            (1..=2047).contains(&config.num_qps_enabled),
            "1 to 2047",
        ),
        (
            "base_count_width",
            u64::from(config.base_count_width),
            config.base_count_width <= 15,
            "0 to 15",
        ),
        (
            "response_error_buffers",
            config.response_error_buffers.bytes() as u64,
            pool_ok(config.response_error_buffers),
            "at least one buffer of at least one byte",
        ),
        (
            "error_buffers",
            config.error_buffers.bytes() as u64,
            pool_ok(config.error_buffers),
            "at least one buffer of at least one byte",
        ),
        (
            "data_buffers",
            config.data_buffers.bytes() as u64,
            pool_ok(config.data_buffers),
            "at least one buffer of at least one byte",
        ),
        (
            "mac",
            u64::from(config.mac[0]),
            config.mac[0] & 1 == 0 && config.mac != [0; 6],
            "a unicast address that is not zero",
        ),
    ];
    for (field, value, holds, allowed) in rows {
        if !holds {
            return Err(Error::Setting { field, value, allowed });
        }
    }
    Ok(())
}

/// What a register reads as where nothing answers.
const ALL_ONES: u32 = u32::MAX;
const XRNICCONF_ENABLE: u32 = 1;
/// Words of an interrupt bank: 2048 queue pair numbers.
const BANK_WORDS: usize = 64;
/// Bytes of an error queue entry. The outgoing queue's is not documented; chosen: the same.
const ERROR_ENTRY_BYTES: usize = 8;
const INCOMING_ERRORS: &str = "incoming error queue";
/// Alignment of all queues and buffers: what the receive queue needs (RQBA, 256 bytes).
const DMA_ALIGN: usize = 256;
