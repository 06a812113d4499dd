//! Doorbells: how programs tell the NIC's thread which queues have work, and wake it where it sleeps.
//!
//! Ringing never waits and takes no lock; a thread that is awake is found by its next round.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use super::error::Error;

/// Queues that can be rung.
pub(super) const SLOTS: usize = 64 * 64;

/// Something that a thread can sleep on and others can ring, with a file descriptor.
#[derive(Debug)]
pub(super) struct Bell(OwnedFd);

impl Bell {
    pub(super) fn new() -> Result<Self, Error> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self(fd.map_err(|errno| Error::os("making an eventfd", errno))?))
    }

    /// Wakes whoever sleeps on it, or the next one who would.
    pub(super) fn ring(&self) {
        // It can only be full (2^64 - 2 rings), and is ringing then.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// It has not rung.
    pub(super) fn quieten(&self) {
        // There is nothing to read where it has not rung.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    /// Sleeps until it rings or the time is over; a signal may end it early.
    pub(super) fn sleep(&self, timeout: Duration) {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        wait(&mut fds, Some(timeout));
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits for one of several descriptors; ends early where a signal arrives.
pub(super) fn wait(fds: &mut [PollFd<'_>], timeout: Option<Duration>) {
    let timespec = timeout.map(|timeout| Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    if let Err(errno) = poll(fds, timespec.as_ref())
        && errno != Errno::INTR
    {
        // Descriptors are ours and open; what is left is no kernel memory.
        std::thread::yield_now();
    }
}

/// One bit for each queue, and the bell of the thread that serves them.
#[derive(Debug)]
pub(super) struct Doorbells {
    /// One bit for each word that is not 0.
    summary: AtomicU64,
    words: Box<[AtomicU64]>,
    /// A call or something else that has no queue waits.
    called: AtomicBool,
    asleep: AtomicBool,
    bell: Bell,
}

impl Doorbells {
    pub(super) fn new() -> Result<Self, Error> {
        Ok(Self {
            summary: AtomicU64::new(0),
            words: (0..SLOTS / 64).map(|_| AtomicU64::new(0)).collect(),
            called: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            bell: Bell::new()?,
        })
    }

    /// The queue in a slot has work.
    #[inline]
    pub(super) fn ring(&self, slot: usize) {
        self.words[slot / 64].fetch_or(1 << (slot % 64), Ordering::Release);
        self.summary.fetch_or(1 << (slot / 64), Ordering::Release);
        self.wake();
    }

    /// Something else waits for the thread.
    pub(super) fn call(&self) {
        self.called.store(true, Ordering::Release);
        self.wake();
    }

    /// Wakes the thread where it sleeps, or is about to.
    #[inline]
    fn wake(&self) {
        // What was stored before must be seen by a thread that looks after it has said that it sleeps.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            self.bell.ring();
        }
    }

    /// Whether somebody called, for the thread.
    #[inline]
    pub(super) fn take_call(&self) -> bool {
        self.called.load(Ordering::Relaxed) && self.called.swap(false, Ordering::Acquire)
    }

    /// Each queue that was rung since last time, once, for the thread; whether there were any.
    #[inline]
    pub(super) fn take(&self, mut each: impl FnMut(usize)) -> bool {
        if self.summary.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut summary = self.summary.swap(0, Ordering::Acquire);
        while summary != 0 {
            let at = summary.trailing_zeros() as usize;
            summary &= summary - 1;
            let mut word = self.words[at].swap(0, Ordering::Acquire);
            while word != 0 {
                each(at * 64 + word.trailing_zeros() as usize);
                word &= word - 1;
            }
        }
        true
    }

    /// Sleeps until a doorbell, a call, the descriptor or the time, for the thread.
    pub(super) fn sleep(&self, link: Option<(BorrowedFd<'_>, bool)>, timeout: Option<Duration>) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let waits =
            self.summary.load(Ordering::Relaxed) != 0 || self.called.load(Ordering::Relaxed);
        if !waits {
            let bell = PollFd::new(&self.bell, PollFlags::IN);
            let rang = match &link {
                Some((fd, wants_write)) => {
                    let out = if *wants_write { PollFlags::OUT } else { PollFlags::empty() };
                    let mut fds = [bell, PollFd::new(fd, PollFlags::IN | out)];
                    wait(&mut fds, timeout);
                    !fds[0].revents().is_empty()
                }
                None => {
                    let mut fds = [bell];
                    wait(&mut fds, timeout);
                    !fds[0].revents().is_empty()
                }
            };
            if rang {
                self.bell.quieten();
            }
        }
        self.asleep.store(false, Ordering::Relaxed);
    }
}
