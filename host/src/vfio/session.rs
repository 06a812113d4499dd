//! One client's conversation: bytes and file descriptors in, replies out, and what messages do to a
//! function in between. Pure of sockets, so that tests and the fuzzer drive it directly.
//!
//! Every message is checked whole before anything happens. What is wrong with one is answered with an
//! error number; only a length that cannot be, after which nothing that follows means anything, ends the
//! conversation. Nothing here waits: replies go to a buffer, and while that is not taken no message is.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use serde_json::{Value, json};
use softrnic_device::pci::{CONFIG_LEN, ConfigWrite};
use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::interrupts::Interrupts;
use super::memory::{MapError, MapRequest};
use super::wire::{
    CONFIG_REGION, Command, DATA_MAX, DEVICE_FLAGS, DeviceInfo, DmaMap, DmaUnmap, FDS_MAX,
    HEADER_LEN, Header, IRQ_AUTOMASKED, IRQ_EVENTFD, IRQ_INTX, IRQS, IrqInfo, MAP_READ, MAP_WRITE,
    MAPS_MAX, MESSAGE_MAX, PAGE_LEN, REGION_FLAGS, REGIONS, RegionAccess, RegionInfo, SetIrqs,
    UNMAP_ALL, Version, WriteEntry, WriteMulti, flags,
};
use super::{Function, GuestMemory};

/// Bytes that are kept of what came; at least two messages.
const INPUT_LEN: usize = 2 * MESSAGE_MAX;
/// Bytes of replies after which no more messages are taken until some have left.
const OUTPUT_LEN: usize = DATA_MAX;
/// Refusals that are told to the log; the rest is counted.
const TOLD_MAX: u64 = 20;

/// Why a conversation is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Hangup {
    /// A message's length cannot be.
    #[error("a message of {0} bytes; messages have {HEADER_LEN} to {MESSAGE_MAX}")]
    Length(u32),
    /// The client sends faster than it may: more than fits, while its replies wait for it.
    #[error("more than {INPUT_LEN} bytes came before earlier messages were answered")]
    Flood,
    /// File descriptors without end.
    #[error("more than {FDS_MAX} file descriptors came with one message")]
    Descriptors,
}

/// What a conversation has seen.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct SessionCounters {
    /// Messages taken.
    pub messages: u64,
    /// Messages that were refused, posted ones included.
    pub refused: u64,
    /// Writes without a reply.
    pub posted: u64,
}

/// A message that is refused.
struct Refusal {
    errno: Errno,
    why: String,
}

impl Refusal {
    fn new(errno: Errno, why: impl Into<String>) -> Self {
        Self { errno, why: why.into() }
    }

    fn invalid(why: impl Into<String>) -> Self {
        Self::new(Errno::INVAL, why)
    }
}

impl From<MapError> for Refusal {
    fn from(error: MapError) -> Self {
        let errno = match error {
            MapError::Overlap { .. } => Errno::EXIST,
            MapError::TooMany => Errno::NOSPC,
            MapError::NoDescriptor { .. } => Errno::BADF,
            MapError::CanShrink => Errno::PERM,
            MapError::System(_) => Errno::NOMEM,
            MapError::NotPages { .. } | MapError::BehindEnd { .. } | MapError::Cut { .. } => {
                Errno::INVAL
            }
        };
        Self::new(errno, error.to_string())
    }
}

/// A conversation.
#[derive(Debug)]
pub struct Session {
    /// What came and was not taken: `input[taken..]`.
    input: Vec<u8>,
    taken: usize,
    /// Where in `input` the last message begins that has begun.
    last_start: usize,
    /// Descriptors, with the position in the stream of the message that they came with.
    descriptors: VecDeque<(u64, OwnedFd)>,
    /// Position in the stream of `input[0]`.
    position: u64,
    output: Vec<u8>,
    greeted: bool,
    interrupts: Interrupts,
    counters: SessionCounters,
}

impl Default for Session {
    fn default() -> Self {
        Self::new()
    }
}

impl Session {
    /// A conversation that has not begun.
    #[must_use]
    pub fn new() -> Self {
        Self {
            input: Vec::with_capacity(INPUT_LEN),
            taken: 0,
            last_start: 0,
            descriptors: VecDeque::new(),
            position: 0,
            output: Vec::with_capacity(OUTPUT_LEN),
            greeted: false,
            interrupts: Interrupts::new(),
            counters: SessionCounters::default(),
        }
    }

    /// Bytes that can be received now.
    #[must_use]
    pub fn room(&self) -> usize {
        INPUT_LEN - (self.input.len() - self.taken)
    }

    /// What was seen.
    #[must_use]
    pub const fn counters(&self) -> SessionCounters {
        self.counters
    }

    /// Where interrupts go.
    #[must_use]
    pub const fn interrupts(&self) -> &Interrupts {
        &self.interrupts
    }

    /// Replies that wait for the client.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        &self.output
    }

    /// So many bytes of the replies have left.
    pub fn sent(&mut self, len: usize) {
        self.output.drain(..len.min(self.output.len()));
    }

    /// Keeps bytes, and the file descriptors that came with the last message that begins in them.
    ///
    /// # Errors
    /// There is no [`Session::room`] for them, or there are too many descriptors.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        descriptors: impl IntoIterator<Item = OwnedFd>,
    ) -> Result<(), Hangup> {
        if bytes.len() > self.room() {
            return Err(Hangup::Flood);
        }
        self.input.drain(..self.taken);
        self.position += self.taken as u64;
        self.last_start -= self.taken.min(self.last_start);
        self.taken = 0;
        self.input.extend_from_slice(bytes);
        // A kernel buffer with descriptors ends a read, so they belong to what came last.
        while let Some(size) = self.size_at(self.last_start)
            && (HEADER_LEN..=MESSAGE_MAX).contains(&size)
            && self.last_start + size < self.input.len()
        {
            self.last_start += size;
        }
        let message = self.position + self.last_start as u64;
        self.descriptors.extend(descriptors.into_iter().map(|fd| (message, fd)));
        let of_message = self.descriptors.iter().filter(|(at, _)| *at == message).count();
        if of_message > FDS_MAX { Err(Hangup::Descriptors) } else { Ok(()) }
    }

    /// Takes at most `budget` messages that are there in full. Returns how many it took.
    ///
    /// # Errors
    /// The conversation is over. Replies to earlier messages may still be sent.
    pub fn take_messages(
        &mut self,
        budget: usize,
        function: &mut impl Function,
    ) -> Result<usize, Hangup> {
        for done in 0..budget {
            if self.output.len() >= OUTPUT_LEN {
                return Ok(done);
            }
            let Some(size) = self.size_at(self.taken) else { return Ok(done) };
            if !(HEADER_LEN..=MESSAGE_MAX).contains(&size) {
                return Err(Hangup::Length(size as u32));
            }
            let end = self.taken + size;
            if end > self.input.len() {
                return Ok(done);
            }
            let position = self.position + self.taken as u64;
            let mut descriptors = Vec::new();
            while self.descriptors.front().is_some_and(|(at, _)| *at <= position) {
                descriptors.extend(self.descriptors.pop_front().map(|(_, fd)| fd));
            }
            // Taken out for the call, so that replies can be written.
            let input = std::mem::take(&mut self.input);
            self.message(&input[self.taken..end], descriptors, function);
            self.input = input;
            self.taken = end;
            self.last_start = self.last_start.max(end);
        }
        Ok(budget)
    }

    /// The device's interrupt line may have changed.
    pub fn update_interrupts(&mut self, function: &mut impl Function) {
        let level = function.interrupt();
        let enabled = function.config().intx_enabled();
        let before = self.interrupts.pending();
        self.interrupts.update(level, enabled);
        let pending = self.interrupts.pending();
        function.config_mut().set_intx_status(level);
        if pending != before {
            function.set_pending(0, pending);
        }
    }

    /// The client is gone: nothing of it stays.
    pub fn close(&mut self, function: &mut impl Function) {
        self.interrupts.clear();
        function.memory_mut().clear();
        reset(function);
    }

    /// The length that the message at an offset claims, if its header is there so far.
    fn size_at(&self, at: usize) -> Option<usize> {
        let header = Header::ref_from_prefix(self.input.get(at..)?).ok()?.0;
        Some(header.size.get() as usize)
    }

    fn message(&mut self, message: &[u8], descriptors: Vec<OwnedFd>, function: &mut impl Function) {
        let Ok((header, body)) = Header::read_from_prefix(message) else { return };
        self.counters.messages += 1;
        let start = self.output.len();
        // Filled in when the reply is known.
        self.output.extend_from_slice(&[0; HEADER_LEN]);
        let number = header.command.get();
        let posted = header.flags.get() & flags::NO_REPLY != 0;
        self.counters.posted += u64::from(posted);
        let command = Command::from_number(number);
        let done = match command {
            _ if header.flags.get() & flags::TYPE != 0 => {
                Err(Refusal::invalid("a reply to a message that was never sent"))
            }
            None => Err(Refusal::new(Errno::OPNOTSUPP, format!("command {number} is not offered"))),
            Some(Command::Version) => self.version(body),
            Some(_) if !self.greeted => Err(Refusal::new(Errno::PROTO, "VERSION comes first")),
            Some(command) => self.command(command, body, descriptors, function),
        };
        let errno = match done {
            Ok(()) => 0,
            Err(refusal) => {
                self.refused(command, number, &refusal.why);
                self.output.truncate(start + HEADER_LEN);
                refusal.errno.raw_os_error().cast_unsigned()
            }
        };
        if posted {
            self.output.truncate(start);
            return;
        }
        let size = (self.output.len() - start) as u32;
        let error = if errno == 0 { 0 } else { flags::ERROR };
        let reply = Header {
            size: size.into(),
            flags: (flags::REPLY | error).into(),
            errno: errno.into(),
            ..header
        };
        self.output[start..start + HEADER_LEN].copy_from_slice(reply.as_bytes());
    }

    fn refused(&mut self, command: Option<Command>, number: u16, why: &str) {
        self.counters.refused += 1;
        if self.counters.refused <= TOLD_MAX {
            let name = command.map_or("unknown", Command::name);
            tracing::warn!(command = name, number, "refused: {why}");
        }
    }

    fn command(
        &mut self,
        command: Command,
        body: &[u8],
        descriptors: Vec<OwnedFd>,
        function: &mut impl Function,
    ) -> Result<(), Refusal> {
        match command {
            // Once is enough; it would not get here.
            Command::Version => Err(Refusal::invalid("VERSION comes once")),
            Command::DmaMap => dma_map(body, descriptors, function.memory_mut()),
            Command::DmaUnmap => self.dma_unmap(body, function.memory_mut()),
            Command::DeviceInfo => self.device_info(body),
            Command::RegionInfo => self.region_info(body, function),
            Command::IrqInfo => self.irq_info(body),
            Command::SetIrqs => {
                self.set_irqs(body, descriptors)?;
                self.update_interrupts(function);
                Ok(())
            }
            Command::RegionRead => self.region_read(body, function),
            Command::RegionWrite => self.region_write(body, function),
            Command::RegionWriteMulti => self.write_multi(body, function),
            Command::DeviceReset => {
                reset(function);
                self.interrupts.reset();
                Ok(())
            }
        }
    }

    fn version(&mut self, body: &[u8]) -> Result<(), Refusal> {
        if self.greeted {
            return Err(Refusal::invalid("VERSION comes once"));
        }
        let (version, text) = prefix::<Version>(body)?;
        if version.major.get() != 0 {
            let major = version.major.get();
            return Err(Refusal::new(
                Errno::PROTONOSUPPORT,
                format!("version {major} is not spoken"),
            ));
        }
        let text = text.strip_suffix(&[0]).unwrap_or(text);
        if !text.is_empty() {
            let parsed = serde_json::from_slice::<Value>(text);
            parsed.map_err(|error| Refusal::invalid(format!("its capabilities: {error}")))?;
        }
        let capabilities = json!({ "capabilities": {
            "max_msg_fds": FDS_MAX,
            "max_data_xfer_size": DATA_MAX,
            "max_dma_maps": MAPS_MAX,
            "pgsizes": PAGE_LEN,
            "write_multiple": true,
        }});
        let answer = Version { major: 0.into(), minor: 0.into() };
        self.output.extend_from_slice(answer.as_bytes());
        self.output.extend_from_slice(capabilities.to_string().as_bytes());
        self.output.push(0);
        self.greeted = true;
        Ok(())
    }

    fn dma_unmap(&mut self, body: &[u8], memory: &mut GuestMemory) -> Result<(), Refusal> {
        let unmap = whole::<DmaUnmap>(body)?;
        let (address, size) = (unmap.address.get(), unmap.size.get());
        match unmap.flags.get() {
            0 => memory.unmap(address, size)?,
            UNMAP_ALL if (address, size) == (0, 0) => memory.clear(),
            other => return Err(Refusal::invalid(format!("flags {other:#x} of an unmap"))),
        }
        self.output.extend_from_slice(unmap.as_bytes());
        Ok(())
    }

    fn device_info(&mut self, body: &[u8]) -> Result<(), Refusal> {
        whole::<DeviceInfo>(body)?;
        let info = DeviceInfo {
            argsz: (size_of::<DeviceInfo>() as u32).into(),
            flags: DEVICE_FLAGS.into(),
            num_regions: REGIONS.into(),
            num_irqs: IRQS.into(),
        };
        self.output.extend_from_slice(info.as_bytes());
        Ok(())
    }

    fn region_info(&mut self, body: &[u8], function: &impl Function) -> Result<(), Refusal> {
        let index = whole::<RegionInfo>(body)?.index.get();
        let size = region_len(index, function)?;
        let info = RegionInfo {
            argsz: (size_of::<RegionInfo>() as u32).into(),
            flags: if size == 0 { 0 } else { REGION_FLAGS }.into(),
            index: index.into(),
            cap_offset: 0.into(),
            size: u64::from(size).into(),
            offset: 0.into(),
        };
        self.output.extend_from_slice(info.as_bytes());
        Ok(())
    }

    fn irq_info(&mut self, body: &[u8]) -> Result<(), Refusal> {
        let index = whole::<IrqInfo>(body)?.index.get();
        if index >= IRQS {
            return Err(Refusal::invalid(format!("interrupt index {index}; there are {IRQS}")));
        }
        let flags = if index == IRQ_INTX { IRQ_EVENTFD | IRQ_AUTOMASKED } else { IRQ_EVENTFD };
        let info = IrqInfo {
            argsz: (size_of::<IrqInfo>() as u32).into(),
            flags: flags.into(),
            index: index.into(),
            count: Interrupts::count(index).into(),
        };
        self.output.extend_from_slice(info.as_bytes());
        Ok(())
    }

    fn set_irqs(&mut self, body: &[u8], descriptors: Vec<OwnedFd>) -> Result<(), Refusal> {
        let (set, chosen) = prefix::<SetIrqs>(body)?;
        let SetIrqs { flags, index, start, count, .. } = set;
        if index.get() >= IRQS {
            return Err(Refusal::invalid(format!("interrupt index {index}; there are {IRQS}")));
        }
        let (index, start, count) = (index.get(), start.get(), count.get());
        self.interrupts.set(flags.get(), index, start, count, chosen, descriptors).map_err(|why| {
            Refusal::invalid(format!(
                "interrupts {start} to {start} + {count} of index {index}: {why}"
            ))
        })
    }

    fn region_read(&mut self, body: &[u8], function: &mut impl Function) -> Result<(), Refusal> {
        let access = whole::<RegionAccess>(body)?;
        let range = checked(&access, function)?;
        self.output.extend_from_slice(access.as_bytes());
        let at = self.output.len();
        self.output.resize(at + range.len, 0);
        let out = &mut self.output[at..];
        match range.bar {
            Some(bar) => function.read(bar, range.offset, out),
            None => function.config().read(range.offset as u16, out),
        }
        // Reading may have effects, on the interrupt line too.
        self.update_interrupts(function);
        Ok(())
    }

    fn region_write(&mut self, body: &[u8], function: &mut impl Function) -> Result<(), Refusal> {
        let (access, data) = prefix::<RegionAccess>(body)?;
        if data.len() != access.count.get() as usize {
            let (count, len) = (access.count.get(), data.len());
            return Err(Refusal::invalid(format!("{len} bytes of data for a write of {count}")));
        }
        self.write(&access, data, function)?;
        self.output.extend_from_slice(access.as_bytes());
        Ok(())
    }

    fn write_multi(&mut self, body: &[u8], function: &mut impl Function) -> Result<(), Refusal> {
        let (multi, entries) = prefix::<WriteMulti>(body)?;
        let entries = <[WriteEntry]>::ref_from_bytes(entries)
            .map_err(|_| Refusal::invalid("entries have 24 bytes each"))?;
        if multi.count.get() != entries.len() as u64 {
            let count = multi.count.get();
            return Err(Refusal::invalid(format!(
                "{} entries where {count} are told",
                entries.len()
            )));
        }
        // All or nothing: a client cannot be told which one was wrong.
        for entry in entries {
            let range = checked(&entry.access, function)?;
            if range.len > entry.data.len() {
                return Err(Refusal::invalid(format!("an entry of {} bytes", range.len)));
            }
        }
        for entry in entries {
            let len = entry.access.count.get() as usize;
            self.write(&entry.access, &entry.data[..len], function)?;
        }
        self.output.extend_from_slice(multi.as_bytes());
        Ok(())
    }

    fn write(
        &mut self,
        access: &RegionAccess,
        data: &[u8],
        function: &mut impl Function,
    ) -> Result<(), Refusal> {
        let range = checked(access, function)?;
        match range.bar {
            Some(bar) => function.write(bar, range.offset, data),
            None => match function.config_mut().write(range.offset as u16, data) {
                ConfigWrite::Kept => {}
                ConfigWrite::FunctionLevelReset => {
                    function.reset();
                    self.interrupts.reset();
                }
            },
        }
        let bus_master = function.config().bus_master();
        function.memory_mut().set_bus_master(bus_master);
        self.update_interrupts(function);
        Ok(())
    }
}

/// Where an access goes.
struct Range {
    /// `None`: configuration space.
    bar: Option<usize>,
    offset: u32,
    len: usize,
}

fn region_len(index: u32, function: &impl Function) -> Result<u32, Refusal> {
    match index {
        CONFIG_REGION => Ok(CONFIG_LEN.into()),
        0..REGIONS => Ok(function.config().bar_len(index as usize)),
        _ => Err(Refusal::invalid(format!("region {index}; there are {REGIONS}"))),
    }
}

fn checked(access: &RegionAccess, function: &impl Function) -> Result<Range, Refusal> {
    let (region, offset, count) = (access.region.get(), access.offset.get(), access.count.get());
    let len = region_len(region, function)?;
    let inside = offset.checked_add(count.into()).is_some_and(|end| end <= len.into());
    if !inside || count == 0 || count as usize > DATA_MAX {
        return Err(Refusal::invalid(format!(
            "{count} bytes at {offset:#x} of region {region}, which has {len:#x}; 1 to {DATA_MAX} at once"
        )));
    }
    let bar = (region != CONFIG_REGION).then_some(region as usize);
    Ok(Range { bar, offset: offset as u32, len: count as usize })
}

fn dma_map(
    body: &[u8],
    mut descriptors: Vec<OwnedFd>,
    memory: &mut GuestMemory,
) -> Result<(), Refusal> {
    let map = whole::<DmaMap>(body)?;
    let flags = map.flags.get();
    if flags & !(MAP_READ | MAP_WRITE) != 0 || flags == 0 {
        return Err(Refusal::invalid(format!("flags {flags:#x} of a map")));
    }
    if descriptors.len() > 1 {
        let number = descriptors.len();
        return Err(Refusal::invalid(format!("{number} file descriptors with one map")));
    }
    let (address, len) = (map.address.get(), map.size.get());
    let reachable = memory.map(MapRequest {
        address,
        len,
        readable: flags & MAP_READ != 0,
        writable: flags & MAP_WRITE != 0,
        file: descriptors.pop().map(|file| (file, map.offset.get())),
    })?;
    if !reachable {
        tracing::debug!(
            "{len:#x} bytes at {address:#x} have no file descriptor; the device cannot reach them"
        );
    }
    Ok(())
}

fn reset(function: &mut impl Function) {
    function.config_mut().reset();
    function.memory_mut().set_bus_master(false);
    function.reset();
}

/// A body that is one structure and nothing else.
fn whole<T: FromBytes + KnownLayout + Immutable>(body: &[u8]) -> Result<T, Refusal> {
    T::read_from_bytes(body).map_err(|_| {
        let (len, needed) = (body.len(), size_of::<T>());
        Refusal::invalid(format!("a body of {len} bytes where {needed} are needed"))
    })
}

/// A body that begins with a structure.
fn prefix<T: FromBytes + KnownLayout + Immutable>(body: &[u8]) -> Result<(T, &[u8]), Refusal> {
    T::read_from_prefix(body).map_err(|_| {
        let (len, needed) = (body.len(), size_of::<T>());
        Refusal::invalid(format!("a body of {len} bytes where at least {needed} are needed"))
    })
}
