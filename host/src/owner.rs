//! A station on a thread of its own, which alone touches it. Others hand it calls; each sees the station between
//! two turns. For faces whose software works through few, slow accesses (registers); the native face has rings.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use softrnic_device::{Device, Memory};
use softrnic_engine::Nanos;
use softrnic_engine::packet::FRAME_LEN_MAX;

use crate::clock::Clock;
use crate::station::Station;

/// How long the thread looks around before it sleeps: waking up costs about as much.
const SPIN_NS: u64 = 50_000;
/// Calls between two turns: the link must not wait for a program that never stops.
const CALLS: usize = 256;

type Call<D, M> = Box<dyn FnOnce(&mut Station<D, M>, Nanos) + Send>;

/// The thread has ended, because it panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the thread of the NIC has ended; its panic message says why")]
pub struct Stopped;

/// What owner and thread share.
#[derive(Debug)]
struct Shared {
    bell: OwnedFd,
    asleep: AtomicBool,
    /// Why the link is gone.
    link_down: Mutex<Option<String>>,
}

/// The handle. Dropping it ends the thread and its capture.
#[derive(Debug)]
pub struct Owned<D, M> {
    calls: Option<Sender<Call<D, M>>>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<io::Result<()>>>,
    capture: Option<PathBuf>,
}

impl<D, M> Owned<D, M>
where
    D: Device<M> + Send + 'static,
    M: Memory + Send + 'static,
{
    /// Starts the thread.
    ///
    /// # Errors
    /// The operating system's: no thread, no descriptor.
    pub fn start(
        station: Station<D, M>,
        clock: Clock,
        capture: Option<PathBuf>,
    ) -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (asleep, link_down) = (AtomicBool::new(false), Mutex::new(None));
        let shared = Arc::new(Shared { bell, asleep, link_down });
        let (sender, calls) = channel();
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("rnic".to_owned())
            .spawn(move || serve(station, clock, &calls, &of_thread))?;
        Ok(Self { calls: Some(sender), shared, thread: Some(thread), capture })
    }

    /// Has something done between two turns, after everything that was handed over before. Does not wait.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn post(
        &self,
        call: impl FnOnce(&mut Station<D, M>, Nanos) + Send + 'static,
    ) -> Result<(), Stopped> {
        let sender = self.calls.as_ref().ok_or(Stopped)?;
        sender.send(Box::new(call)).map_err(|_| Stopped)?;
        // What was sent must be seen by a thread that looks after it has said that it sleeps.
        fence(Ordering::SeqCst);
        if self.shared.asleep.load(Ordering::Relaxed) {
            // It can only be full, and rings then.
            let _ = rustix::io::write(&self.shared.bell, &1u64.to_ne_bytes());
        }
        Ok(())
    }

    /// Has something done and waits for its result.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn run<R: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Station<D, M>, Nanos) -> R + Send + 'static,
    ) -> Result<R, Stopped> {
        let (sender, result) = sync_channel(1);
        self.post(move |station, now| {
            // Nobody but us waits for it.
            let _ = sender.send(call(station, now));
        })?;
        result.recv().map_err(|_| Stopped)
    }

    /// Why the link is gone, once it is.
    #[must_use]
    pub fn link_down(&self) -> Option<String> {
        self.shared.link_down.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the thread and closes its capture.
    ///
    /// # Errors
    /// The capture could not be written to its end; the message names it.
    pub fn stop(mut self) -> io::Result<()> {
        self.end()
    }
}

impl<D, M> Owned<D, M> {
    fn end(&mut self) -> io::Result<()> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        self.calls = None;
        let _ = rustix::io::write(&self.shared.bell, &1u64.to_ne_bytes());
        let ended = thread.join().unwrap_or(Ok(()));
        ended.map_err(|error| {
            let path = self.capture.as_deref().unwrap_or_else(|| "capture".as_ref());
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        })
    }
}

impl<D, M> Drop for Owned<D, M> {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!("{error}");
        }
    }
}

/// The thread: until nobody can call any more.
fn serve<D: Device<M>, M: Memory>(
    mut station: Station<D, M>,
    clock: Clock,
    calls: &Receiver<Call<D, M>>,
    shared: &Shared,
) -> io::Result<()> {
    let mut scratch = vec![0; FRAME_LEN_MAX].into_boxed_slice();
    let mut busy_at = clock.now();
    let mut link_up = true;
    loop {
        let now = clock.now();
        let mut busy = false;
        for _ in 0..CALLS {
            match calls.try_recv() {
                Ok(call) => {
                    call(&mut station, now);
                    busy = true;
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return station.stop_capture(),
            }
        }
        if link_up {
            match station.turn(now) {
                Ok(turn) => busy |= !turn.idle(),
                Err(error) => {
                    link_up = false;
                    let why = error.to_string();
                    tracing::warn!("{why}; queue pairs end by their timeouts");
                    *shared.link_down.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
                }
            }
        } else {
            station.turn_without_link(now, &mut scratch);
        }
        if busy {
            busy_at = now;
        } else if now.0 - busy_at.0 < SPIN_NS {
            std::thread::yield_now();
        } else {
            shared.asleep.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            // A caller that did not see the flag yet has sent its call before this look.
            match calls.try_recv() {
                Ok(call) => call(&mut station, now),
                Err(TryRecvError::Empty) => sleep(&mut station, link_up, now, shared),
                Err(TryRecvError::Disconnected) => return station.stop_capture(),
            }
            shared.asleep.store(false, Ordering::Relaxed);
        }
    }
}

/// Waits for a call, a frame, room, or the next deadline.
fn sleep<D: Device<M>, M: Memory>(
    station: &mut Station<D, M>,
    link_up: bool,
    now: Nanos,
    shared: &Shared,
) {
    let timeout = station.next_deadline().map(|deadline| {
        let ns = deadline.0.saturating_sub(now.0);
        Timespec {
            tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: (ns % 1_000_000_000) as i64,
        }
    });
    if link_up && !station.may_wait() {
        return;
    }
    let link = station.link();
    let fd = if link_up { link.fd() } else { None };
    let events = if link.wants_write() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    let mut fds = vec![PollFd::from_borrowed_fd(shared.bell.as_fd(), PollFlags::IN)];
    fds.extend(fd.map(|fd| PollFd::from_borrowed_fd(fd, events)));
    // An error is a signal, or no kernel memory: the next turn sees how it is.
    let _ = poll(&mut fds, timeout.as_ref());
    // There is nothing to read where it has not rung.
    let _ = rustix::io::read(&shared.bell, &mut [0; 8]);
}
