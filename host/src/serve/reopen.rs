//! Opens the link in a thread of its own, because some links wait for the other end: the first time, before
//! there is a NIC; and again, ever less often, after it went away.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, RecvTimeoutError, TryRecvError};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::{Asker, ServeError, StopSignals};
use crate::link::{Link, LinkError};
use crate::setup::Setup;

/// The first wait after a link could not be opened, and the longest one.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// A link that is open, and the setup, which knows what the link decided.
pub struct Plugged {
    /// The setup.
    pub setup: Setup,
    /// The link.
    pub link: Box<dyn Link>,
}

impl std::fmt::Debug for Plugged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plugged").field("link", &self.link.name()).finish_non_exhaustive()
    }
}

/// Opens the link of a process that starts, until a signal says stop: `None` then.
///
/// # Errors
/// It cannot be opened.
pub fn first_link(mut setup: Setup, signals: &StopSignals) -> Result<Option<Plugged>, ServeError> {
    let system = |what| move |source| ServeError::System { what, source };
    let (done, ready) = UnixStream::pair().map_err(system("a pair of sockets"))?;
    let (sender, opened) = mpsc::channel();
    // Where it waits for the other end when the process stops, it ends with the process.
    thread::spawn(move || {
        let link = setup.open_link();
        // Nobody waits any more: the link closes.
        let _ = sender.send(link.map(|link| Plugged { setup, link }));
        drop(done);
    });
    while !signals.stop() {
        let mut fds =
            [ready.as_fd(), signals.fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(system("waiting")(errno.into())),
        }
        match opened.try_recv() {
            Ok(opened) => return Ok(Some(opened?)),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => {
                let why = "the thread that opens the link has ended";
                return Err(system("link")(io::Error::other(why)));
            }
        }
    }
    Ok(None)
}

/// Who opens the link again.
pub(super) struct Opener(mpsc::Sender<()>);

impl Opener {
    /// Starts the thread, which does nothing before [`Opener::open`]. `done` hears of each attempt. The thread ends
    /// with this value, or with the attempt that it is making.
    pub(super) fn start<T: 'static>(
        mut setup: Setup,
        asker: Asker<T>,
        done: fn(&mut T, Result<Box<dyn Link>, LinkError>),
    ) -> Self {
        let (wish, wishes) = mpsc::channel();
        thread::spawn(move || {
            while wishes.recv().is_ok() {
                let mut wait = BACK_OFF.0;
                loop {
                    let opened = setup.open_link();
                    let open = opened.is_ok();
                    // Nobody is there any more: the link closes with what is dropped here.
                    if asker.tell(move |owned| done(owned, opened)).is_err() {
                        return;
                    }
                    if open {
                        break;
                    }
                    match wishes.recv_timeout(wait) {
                        Err(RecvTimeoutError::Disconnected) => return,
                        Err(RecvTimeoutError::Timeout) | Ok(()) => {}
                    }
                    wait = (2 * wait).min(BACK_OFF.1);
                }
            }
        });
        Self(wish)
    }

    /// Opens the link; once it is open, another call opens it again.
    pub(super) fn open(&self) {
        // The thread lives as long as this value.
        let _ = self.0.send(());
    }
}
