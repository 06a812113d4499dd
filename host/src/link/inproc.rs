//! `inproc`: two NICs in one process, each on a thread of its own. Frames change hands by their address: the
//! receiver is lent the very buffer that the sender wrote into, and sends it back empty.

use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use rtrb::{Consumer, Producer, RingBuffer};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use softrnic_engine::packet::FRAME_LEN_MAX;
use softrnic_engine::{Room, Rx};

use super::{Limits, Link, LinkCounters, LinkError, Written};

/// Buffers in each direction. Together they are longer than a core's own cache: lines that another core has just
/// written come faster from the cache that both share.
const DEPTH: usize = 1024;

#[derive(Debug)]
struct Buffer {
    len: usize,
    bytes: [u8; FRAME_LEN_MAX],
}

/// Wakes one end.
#[derive(Debug)]
struct Bell {
    event: OwnedFd,
    /// The end waits, or is about to: ring.
    waiting: AtomicBool,
    /// It has no empty buffer: ring when some come back.
    wants_room: AtomicBool,
    /// The other end is gone.
    alone: AtomicBool,
}

impl Bell {
    fn new() -> Result<Arc<Self>, Errno> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let [waiting, wants_room, alone] = [false; 3].map(AtomicBool::new);
        Ok(Arc::new(Self { event, waiting, wants_room, alone }))
    }

    /// Rings if the end waits. What it is to see was done before.
    fn ring(&self) {
        // Either this load sees that it waits, or it sees what was done when it looks a last time.
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) && self.waiting.swap(false, Ordering::AcqRel) {
            // It can only fail where 2^64 - 1 rings are unheard.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
}

/// One end.
#[derive(Debug)]
pub struct Inproc {
    name: String,
    mtu: u16,
    /// Written, to the other end.
    output: Producer<Box<Buffer>>,
    /// Empty, back from it.
    empty: Consumer<Box<Buffer>>,
    /// Written by it.
    input: Consumer<Box<Buffer>>,
    /// Empty, back to it.
    back: Producer<Box<Buffer>>,
    /// The buffer that [`Link::room`] lent.
    lent: Option<Box<Buffer>>,
    here: Arc<Bell>,
    there: Arc<Bell>,
    counters: LinkCounters,
}

impl Inproc {
    /// Both ends of a link.
    ///
    /// # Errors
    /// `Open`: the process has no more file descriptors.
    pub fn pair(name: &str, mtu: u16) -> Result<(Self, Self), LinkError> {
        Self::pair_of(name, mtu, DEPTH)
    }

    /// Both ends of a link that holds at most so many frames in each direction.
    ///
    /// # Errors
    /// `Open`: the process has no more file descriptors.
    pub fn pair_of(name: &str, mtu: u16, depth: usize) -> Result<(Self, Self), LinkError> {
        let name = format!("inproc:{name}");
        let bell = || {
            Bell::new().map_err(|errno| LinkError::Open {
                link: name.clone(),
                source: errno.into(),
                way_out: "",
            })
        };
        let (a, b) = (bell()?, bell()?);
        let direction = || {
            let (output, input) = RingBuffer::new(depth);
            let (mut back, empty) = RingBuffer::new(depth);
            for _ in 0..depth {
                // Both rings hold all buffers, so that neither is ever full.
                let _ = back.push(Box::new(Buffer { len: 0, bytes: [0; FRAME_LEN_MAX] }));
            }
            (output, empty, input, back)
        };
        let (ab, ba) = (direction(), direction());
        let end = |output, empty, input, back, here: &Arc<Bell>, there: &Arc<Bell>| Self {
            name: name.clone(),
            mtu,
            output,
            empty,
            input,
            back,
            lent: None,
            here: Arc::clone(here),
            there: Arc::clone(there),
            counters: LinkCounters::default(),
        };
        Ok((end(ab.0, ab.1, ba.2, ba.3, &a, &b), end(ba.0, ba.1, ab.2, ab.3, &b, &a)))
    }

    fn gone(&self) -> LinkError {
        LinkError::Gone { link: self.name.clone(), why: "the other end was dropped".to_owned() }
    }

    fn alone(&self) -> bool {
        self.here.alone.load(Ordering::Acquire)
    }

    /// There is something to do here.
    fn has_news(&self) -> bool {
        let has_room = || self.lent.is_some() || !self.empty.is_empty();
        !self.input.is_empty()
            || self.alone()
            || self.here.wants_room.load(Ordering::Relaxed) && has_room()
    }
}

impl Drop for Inproc {
    fn drop(&mut self) {
        self.there.alone.store(true, Ordering::Release);
        self.there.ring();
    }
}

impl Link for Inproc {
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
        let mut count = 0;
        // Looked at first: what the other end wrote before it went still comes.
        let alone = self.alone();
        while count < budget {
            let Ok(mut buffer) = self.input.pop() else { break };
            let frame = &mut buffer.bytes[..buffer.len];
            self.counters.rx_frames += 1;
            self.counters.rx_bytes += frame.len() as u64;
            take(frame, Rx::default());
            let _ = self.back.push(buffer);
            count += 1;
        }
        if count == 0 {
            return if alone { Err(self.gone()) } else { Ok(0) };
        }
        fence(Ordering::SeqCst);
        if self.there.wants_room.load(Ordering::Relaxed) {
            self.there.ring();
        }
        Ok(count)
    }

    fn room(&mut self) -> Option<Room<'_>> {
        if self.lent.is_none() {
            let buffer = self.empty.pop().ok();
            if buffer.is_none() != self.here.wants_room.load(Ordering::Relaxed) {
                self.here.wants_room.store(buffer.is_none(), Ordering::Relaxed);
            }
            self.lent = buffer;
        }
        let buffer = self.lent.as_mut()?;
        Some(Room { bytes: &mut buffer.bytes, segments: 1, source_port: None })
    }

    fn commit(&mut self, written: Written) {
        let Some(mut buffer) = self.lent.take() else { return };
        buffer.len = written.len.min(FRAME_LEN_MAX);
        if self.counters.too_long(&buffer.bytes[..buffer.len], self.mtu) {
            self.lent = Some(buffer);
            return;
        }
        self.counters.tx_frames += 1;
        self.counters.tx_bytes += buffer.len as u64;
        let _ = self.output.push(buffer);
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        if self.alone() {
            return Err(self.gone());
        }
        self.there.ring();
        Ok(())
    }

    fn wants_write(&self) -> bool {
        false
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.here.event.as_fd())
    }

    fn may_wait(&mut self) -> bool {
        // Rings that were heard are over.
        let _ = rustix::io::read(&self.here.event, &mut [0; mem::size_of::<u64>()]);
        self.here.waiting.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.has_news() {
            self.here.waiting.store(false, Ordering::Relaxed);
            return false;
        }
        true
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }
}
