//! SIGINT and SIGTERM as a file descriptor. A second one ends the process at once.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::SigId;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

/// Caught from now on, until this value is dropped.
#[derive(Debug)]
pub struct StopSignals {
    stop: Arc<AtomicBool>,
    wake: UnixStream,
    registered: Vec<SigId>,
}

impl StopSignals {
    /// Catches both signals.
    ///
    /// # Errors
    /// The operating system's.
    pub fn catch() -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (wake, waker) = UnixStream::pair()?;
        let mut registered = Vec::new();
        for signal in [SIGINT, SIGTERM] {
            // In this order: the second signal finds the flag set.
            let seen = Arc::clone(&stop);
            registered.push(flag::register_conditional_shutdown(signal, 1, seen)?);
            registered.push(flag::register(signal, Arc::clone(&stop))?);
            registered.push(low_level::pipe::register(signal, waker.try_clone()?)?);
        }
        Ok(Self { stop, wake, registered })
    }

    pub(super) fn stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Becomes readable with the first signal.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl Drop for StopSignals {
    fn drop(&mut self) {
        for id in self.registered.drain(..) {
            low_level::unregister(id);
        }
    }
}
