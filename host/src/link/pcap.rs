//! `pcap`: the frames of a capture arrive, as fast as they are taken or in the file's own time; what is sent is
//! recorded, or thrown away. There is nobody at the other end.

use std::fs::File;
use std::io::{self, BufReader, BufWriter};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use softrnic_engine::{Nanos, Room, Rx};

use super::outbox::Outbox;
use super::{Limits, Link, LinkConfig, LinkCounters, LinkError, Written};
use crate::capture::{CaptureError, CapturedPacket, Interface, Reader, Writer};

/// Replays and records.
pub struct Pcap {
    name: String,
    mtu: u16,
    input: Reader<BufReader<File>>,
    /// The frame that comes next.
    next: Option<CapturedPacket>,
    /// Why there is none, until that has been told.
    damage: Option<CaptureError>,
    /// Readable while there are frames: for ever (`eventfd`), or when the next one is due (`timerfd`).
    ready: OwnedFd,
    pace: Option<Pace>,
    outbox: Outbox,
    record: Option<Writer<BufWriter<File>>>,
    counters: LinkCounters,
}

/// When the file's first frame was lent, by both clocks.
#[derive(Clone, Copy, Debug)]
struct Pace {
    started: Instant,
    first: Option<Nanos>,
}

impl Pace {
    /// How long to wait until this frame is due.
    fn wait(&self, frame: &CapturedPacket) -> Duration {
        let (Some(first), Some(time)) = (self.first, frame.time) else { return Duration::ZERO };
        let due = Duration::from_nanos(time.0.saturating_sub(first.0));
        due.saturating_sub(self.started.elapsed())
    }
}

impl std::fmt::Debug for Pcap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pcap").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Pcap {
    /// Opens a capture to be replayed and makes the one to be recorded. `paced`: time begins now.
    ///
    /// # Errors
    /// `Open`.
    pub fn open(
        input: &Path,
        record: Option<&Path>,
        paced: bool,
        config: &LinkConfig,
    ) -> Result<Self, LinkError> {
        let name = format!("pcap:{}", input.display());
        let open = |source, way_out| LinkError::Open { link: name.clone(), source, way_out };
        let same = |record: &Path| record.canonicalize().ok() == input.canonicalize().ok();
        let file = File::open(input).map_err(|error| open(error, ""))?;
        if record.is_some_and(same) {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "it would overwrite itself");
            return Err(open(source, " (record into another file)"));
        }
        let mut input =
            Reader::new(BufReader::new(file)).map_err(|error| open(into_io(error), ""))?;
        let next = input.next().transpose().map_err(|error| open(into_io(error), ""))?;
        let record = record
            .map(|path| {
                let interface = Interface { name: name.clone(), description: String::new() };
                Writer::new(BufWriter::new(File::create(path)?), &[interface])
            })
            .transpose()
            .map_err(|error| open(error, " (the recording cannot be made)"))?;
        let first = next.as_ref().and_then(|frame| frame.time);
        let pace = paced.then(|| Pace { started: Instant::now(), first });
        let ready = ready_fd(paced).map_err(|errno| open(errno.into(), ""))?;
        let link = Self {
            mtu: config.mtu,
            input,
            next,
            damage: None,
            ready,
            pace,
            outbox: Outbox::new(0),
            record,
            counters: LinkCounters::default(),
            name: name.clone(),
        };
        link.arm().map_err(|errno| open(errno.into(), ""))?;
        Ok(link)
    }

    fn failed(&self, source: io::Error) -> LinkError {
        LinkError::Io { link: self.name.clone(), source }
    }

    /// Makes `ready` readable for the next frame.
    fn arm(&self) -> Result<(), Errno> {
        let Some(pace) = &self.pace else {
            if self.next.is_none() && self.damage.is_none() {
                let _ = rustix::io::read(&self.ready, &mut [0; 8]);
            } else {
                rustix::io::write(&self.ready, &1u64.to_ne_bytes())?;
            }
            return Ok(());
        };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = match &self.next {
            // Zero would mean never.
            Some(frame) => pace.wait(frame).max(Duration::from_nanos(1)),
            None if self.damage.is_some() => Duration::from_nanos(1),
            None => Duration::ZERO,
        };
        let value = Timespec::try_from(value).unwrap_or(never);
        let timer = Itimerspec { it_interval: never, it_value: value };
        timerfd_settime(&self.ready, TimerfdTimerFlags::empty(), &timer).map(|_| ())
    }
}

fn ready_fd(paced: bool) -> Result<OwnedFd, Errno> {
    if paced {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        return timerfd_create(TimerfdClockId::Monotonic, flags);
    }
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

fn into_io(error: CaptureError) -> io::Error {
    match error {
        CaptureError::Io(error) => error,
        other => io::Error::new(io::ErrorKind::InvalidData, other),
    }
}

impl Link for Pcap {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        Limits::of_mtu(self.mtu)
    }

    fn receive(
        &mut self,
        budget: usize,
        take: &mut dyn FnMut(&mut [u8], Rx),
    ) -> Result<usize, LinkError> {
        let due = |frame: &CapturedPacket, pace: &Option<Pace>| {
            pace.is_none_or(|pace| pace.wait(frame).is_zero())
        };
        let mut count = 0;
        let mut moved = false;
        while count < budget && self.next.as_ref().is_some_and(|frame| due(frame, &self.pace)) {
            let Some(mut packet) = self.next.take() else { break };
            moved = true;
            if packet.frame.len() < packet.original_len as usize {
                self.counters.rx_length_errors += 1;
            } else {
                self.counters.rx_frames += 1;
                self.counters.rx_bytes += packet.frame.len() as u64;
                take(&mut packet.frame, Rx::default());
                count += 1;
            }
            match self.input.next() {
                Some(Ok(packet)) => self.next = Some(packet),
                Some(Err(error)) => self.damage = Some(error),
                None => {}
            }
        }
        if count == 0
            && let Some(damage) = self.damage.take()
        {
            let _ = rustix::io::read(&self.ready, &mut [0; 8]);
            return Err(self.failed(into_io(damage)));
        }
        if moved && (self.pace.is_some() || self.next.is_none() && self.damage.is_none()) {
            self.arm().map_err(|errno| self.failed(errno.into()))?;
        }
        Ok(count)
    }

    fn room(&mut self) -> Option<Room<'_>> {
        self.outbox.room().map(|bytes| Room { bytes, segments: 1, source_port: None })
    }

    fn commit(&mut self, written: Written) {
        if !self.counters.too_long(self.outbox.written(written.len), self.mtu) {
            self.outbox.commit(written.len);
        }
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        let count = self.outbox.len();
        if count == 0 {
            return Ok(());
        }
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = Nanos(since_1970.map_or(0, |time| time.as_nanos() as u64));
        for at in 0..count {
            let frame = self.outbox.frame(at);
            self.counters.tx_frames += 1;
            self.counters.tx_bytes += frame.len() as u64;
            let Some(record) = &mut self.record else { continue };
            if let Err(error) = record.packet(0, now, frame, &[]) {
                self.outbox.sent(count);
                return Err(self.failed(error));
            }
        }
        self.outbox.sent(count);
        Ok(())
    }

    fn wants_write(&self) -> bool {
        false
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        (self.next.is_some() || self.damage.is_some()).then(|| self.ready.as_fd())
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }
}
