//! The thread that owns a station: it turns it, answers what others ask, and waits where there is nothing to
//! do. When the link goes away it says so once, and goes on without one until it is back.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::BorrowedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use softrnic_device::{Memory, Nic};
use softrnic_engine::Nanos;
use thiserror::Error;

use super::ask::{Questions, channel};
use super::listen::Listener;
use super::reopen::Opener;
use super::state::{Described, ServeState, look};
use super::unplugged::Unplugged;
use super::{Asker, Attachment, StopSignals, control, metrics};
use crate::clock::Clock;
use crate::link::{Limits, Link, LinkError};
use crate::setup::Setup;
use crate::station::Station;

/// The owner looks for more this long before it sleeps: waking up costs as much.
const SPIN_NS: u64 = 50_000;

/// What a device process needs beside its station.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the device.
    pub name: String,
    /// Where counters are served over HTTP.
    pub metrics: Option<SocketAddr>,
    /// The control socket.
    pub control: Option<PathBuf>,
}

/// Something that an operator should read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Counters can be read here.
    Metrics(SocketAddr),
    /// The link is open, for the first time or again.
    LinkUp(String),
    /// The link went away; it is tried again and again.
    LinkLost(String),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Metrics(address) => write!(f, "metrics: http://{address}/metrics"),
            Self::LinkUp(link) => write!(f, "link up: {link}"),
            Self::LinkLost(error) => write!(f, "link down: {error}; trying again"),
        }
    }
}

/// Why a device process cannot start or go on.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The link could not be opened the first time.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A socket cannot be listened on.
    #[error("cannot listen on {place}: {source}")]
    Listen {
        /// Path or address.
        place: String,
        /// What the operating system says.
        source: io::Error,
    },
    /// The capture could not be written.
    #[error("capture {path}: {source}")]
    Capture {
        /// The file.
        path: String,
        /// What the operating system says.
        source: io::Error,
    },
    /// The operating system refused something else.
    #[error("{what}: {source}")]
    System {
        /// What was wanted.
        what: &'static str,
        /// What the operating system says.
        source: io::Error,
    },
}

/// What the owning thread owns, and others may ask about.
pub struct Served<D, M> {
    /// The station.
    pub station: Station<D, M>,
    name: String,
    clock: Clock,
    limits: Limits,
    url: String,
    up: bool,
    lost: u64,
    opener: Opener,
    tell: Box<dyn FnMut(Event) + Send>,
    stop: bool,
}

impl<D, M> fmt::Debug for Served<D, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<D: Described<M>, M: Memory> Served<D, M> {
    /// The time.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Everything there is to see.
    #[must_use]
    pub fn state(&self) -> ServeState {
        look(&self.name, self.clock.now(), &self.station, self.up, self.lost)
    }

    /// Ends the process after this turn.
    pub const fn stop(&mut self) {
        self.stop = true;
    }

    /// An attempt to open the link has ended.
    fn attempted(&mut self, opened: Result<Box<dyn Link>, LinkError>) {
        match opened {
            Ok(link) => {
                self.up = true;
                (self.tell)(Event::LinkUp(link.name().to_owned()));
                self.station.replace_link(link);
            }
            // It was reported when it went away.
            Err(error) => tracing::debug!("still no link: {error}"),
        }
    }

    fn lose_link(&mut self, error: &LinkError) {
        self.up = false;
        self.lost += 1;
        (self.tell)(Event::LinkLost(error.to_string()));
        let unplugged = Unplugged::new(self.url.clone(), self.limits);
        self.station.replace_link(Box::new(unplugged));
        self.opener.open();
    }
}

/// A device process: see the module.
pub struct Server<D, M> {
    owned: Served<D, M>,
    questions: Questions<Served<D, M>>,
    asker: Asker<Served<D, M>>,
    capture: Option<PathBuf>,
    control: Option<PathBuf>,
    // Dropped with the server: their threads end.
    listeners: Vec<Listener>,
}

impl<D, M> fmt::Debug for Server<D, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("name", &self.owned.name).finish_non_exhaustive()
    }
}

impl<D: Described<M> + 'static, M: Memory + 'static> Server<D, M> {
    /// Joins a NIC to a link ([`first_link`](super::first_link)) as `setup` says, and listens where `options`
    /// says. `tell` hears what an operator should read.
    ///
    /// # Errors
    /// A socket or the capture.
    pub fn new(
        setup: &Setup,
        nic: Nic<D, M>,
        link: Box<dyn Link>,
        options: Options,
        mut tell: Box<dyn FnMut(Event) + Send>,
    ) -> Result<Self, ServeError> {
        let system = |what| move |errno: Errno| ServeError::System { what, source: errno.into() };
        let clock = Clock::start();
        let (asker, questions) = channel().map_err(system("an event descriptor"))?;
        let mut listeners = Vec::new();
        if let Some(address) = options.metrics {
            let failed = |source| ServeError::Listen { place: address.to_string(), source };
            let listener = TcpListener::bind(address).map_err(failed)?;
            tell(Event::Metrics(listener.local_addr().map_err(failed)?));
            let asker = asker.clone();
            listeners.push(
                Listener::start(listener, move |stream| metrics::serve(stream, &asker))
                    .map_err(failed)?,
            );
        }
        if let Some(path) = &options.control {
            let failed = |source| ServeError::Listen { place: path.display().to_string(), source };
            let listener = listen_at(path).map_err(failed)?;
            let asker = asker.clone();
            listeners.push(
                Listener::start(listener, move |stream| control::serve(&stream, &asker))
                    .map_err(failed)?,
            );
        }
        let (url, limits) = (link.name().to_owned(), link.limits());
        tell(Event::LinkUp(url.clone()));
        let station = setup.station(nic, link, &clock).map_err(|source| {
            let path = setup.capture.as_deref().unwrap_or(Path::new("")).display().to_string();
            ServeError::Capture { path, source }
        })?;
        let opener = Opener::start(setup.clone(), asker.clone(), Served::attempted);
        let owned = Served {
            station,
            name: options.name,
            clock,
            limits,
            url,
            up: true,
            lost: 0,
            opener,
            tell,
            stop: false,
        };
        let (capture, control) = (setup.capture.clone(), options.control);
        Ok(Self { owned, questions, asker, capture, control, listeners })
    }

    /// For other threads to ask by.
    #[must_use]
    pub fn asker(&self) -> Asker<Served<D, M>> {
        self.asker.clone()
    }

    /// Turns until somebody says stop, and closes everything then.
    ///
    /// # Errors
    /// The capture could not be written to its end, or waiting failed.
    pub fn run(
        mut self,
        signals: &StopSignals,
        attachment: &mut impl Attachment<D, M>,
    ) -> Result<(), ServeError> {
        let mut last_active = self.owned.now();
        while !self.owned.stop && !signals.stop() {
            let now = self.owned.now();
            let mut active = self.questions.answer(&mut self.owned);
            active |= attachment.before(now, &mut self.owned.station);
            match self.owned.station.turn(now) {
                Ok(turn) => active |= !turn.idle(),
                Err(error) => self.owned.lose_link(&error),
            }
            attachment.after(&mut self.owned.station);
            if active {
                last_active = now;
            } else if now.0 - last_active.0 > SPIN_NS {
                self.wait(signals, attachment)?;
                last_active = self.owned.now();
            }
        }
        self.close()
    }

    /// Waits until something comes, somebody asks, or time is up.
    fn wait(
        &mut self,
        signals: &StopSignals,
        attachment: &impl Attachment<D, M>,
    ) -> Result<(), ServeError> {
        let now = self.owned.now();
        let deadlines = [self.owned.station.next_deadline(), attachment.next_deadline()];
        let deadline = deadlines.into_iter().flatten().min();
        let timeout = deadline.filter(|&at| at != Nanos::NEVER).map(|at| {
            let left = Duration::from_nanos(at.0.saturating_sub(now.0));
            Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() }
        });
        let link = self.owned.station.link();
        let flags = if link.wants_write() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let own: [(BorrowedFd<'_>, PollFlags); 2] =
            [(self.questions.bell(), PollFlags::IN), (signals.fd(), PollFlags::IN)];
        let link = link.fd().map(|fd| (fd, flags));
        let all = own.into_iter().chain(link).chain(attachment.wait_for());
        let mut fds: Vec<_> = all.map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)).collect();
        match poll(&mut fds, timeout.as_ref()) {
            // A signal: the loop looks whether it was one to stop for.
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => {
                return Err(ServeError::System { what: "waiting", source: errno.into() });
            }
        }
        self.questions.heard();
        Ok(())
    }

    fn close(mut self) -> Result<(), ServeError> {
        self.owned.station.stop_capture().map_err(|source| {
            let path = self.capture.take().unwrap_or_default().display().to_string();
            ServeError::Capture { path, source }
        })
    }
}

impl<D, M> Drop for Server<D, M> {
    fn drop(&mut self) {
        self.listeners.clear();
        if let Some(path) = self.control.take() {
            // Whoever starts next would take it over anyway.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Listens at a path. A socket file that a process left behind is taken over.
fn listen_at(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => match UnixStream::connect(path) {
            Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path)?;
                UnixListener::bind(path)
            }
            _ => Err(error),
        },
        other => other,
    }
}
