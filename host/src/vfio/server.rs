//! The socket that a virtual machine monitor connects to: one client at a time, for ever. A turn takes
//! what has come and never waits, so that the thread that owns the NIC serves it too: no handler waits for
//! another thread, and none for the virtual machine.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::event::PollFlags;
use rustix::io::Errno;
use thiserror::Error;

use super::socket::{self, Received};
use super::{Function, InterruptCounters, Session, SessionCounters};

/// Bytes that one read takes.
const READ_LEN: usize = 64 * 1024;

/// Why a socket cannot be listened on.
#[derive(Debug, Error)]
#[error("cannot listen on {path}: {source}{way_out}")]
pub struct ServerError {
    path: PathBuf,
    source: io::Error,
    way_out: &'static str,
}

#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    session: Session,
}

/// The server of one function.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    listener: OwnedFd,
    client: Option<Client>,
    scratch: Box<[u8]>,
    /// Of clients that are gone.
    past: (SessionCounters, InterruptCounters),
    clients: u64,
    turned_away: u64,
}

impl Server {
    /// Listens at a path. A socket file that a process left behind is taken over.
    ///
    /// # Errors
    /// The path cannot be listened on: another process does, or it cannot be made.
    pub fn listen(path: &Path) -> Result<Self, ServerError> {
        let listener = socket::listen_at(path).map_err(|errno| ServerError {
            path: path.to_owned(),
            source: errno.into(),
            way_out: match errno {
                Errno::ADDRINUSE => "; another process listens there",
                Errno::NAMETOOLONG => "; socket paths have at most 107 bytes",
                _ => "",
            },
        })?;
        Ok(Self {
            path: path.to_owned(),
            listener,
            client: None,
            scratch: vec![0; READ_LEN].into_boxed_slice(),
            past: Default::default(),
            clients: 0,
            turned_away: 0,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a client is connected.
    #[must_use]
    pub const fn connected(&self) -> bool {
        self.client.is_some()
    }

    /// Clients that were served so far, and clients that were turned away because one was there.
    #[must_use]
    pub const fn clients(&self) -> (u64, u64) {
        (self.clients, self.turned_away)
    }

    /// Messages of all clients.
    #[must_use]
    pub fn counters(&self) -> SessionCounters {
        let now = self.client.as_ref().map(|client| client.session.counters()).unwrap_or_default();
        let past = self.past.0;
        SessionCounters {
            messages: past.messages + now.messages,
            refused: past.refused + now.refused,
            posted: past.posted + now.posted,
        }
    }

    /// Interrupts sent to all clients.
    #[must_use]
    pub fn interrupts(&self) -> InterruptCounters {
        let now = self.client.as_ref().map(|client| client.session.interrupts().counters());
        let (now, past) = (now.unwrap_or_default(), self.past.1);
        InterruptCounters {
            intx: past.intx + now.intx,
            msix: past.msix + now.msix,
            lost: past.lost + now.lost,
        }
    }

    /// What to wait on before the next turn.
    pub fn wait_for(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let client = self.client.as_ref().map(|client| {
            let blocked = !client.session.output().is_empty();
            (client.socket.as_fd(), if blocked { PollFlags::OUT } else { PollFlags::IN })
        });
        client.into_iter().chain([(self.listener.as_fd(), PollFlags::IN)])
    }

    /// Takes what has come, at most `budget` messages. Returns whether there was anything.
    pub fn turn(&mut self, budget: usize, function: &mut impl Function) -> bool {
        let moved = match &mut self.client {
            Some(client) => match client.turn(&mut self.scratch, budget, function) {
                Ok(moved) => moved,
                Err(why) => {
                    tracing::info!(path = %self.path.display(), "client gone: {why}");
                    self.close(function);
                    true
                }
            },
            None => false,
        };
        // Looked at when there is nothing else to do, which a client that floods us cannot prevent for
        // long: it is only about turning others away.
        moved || self.accept()
    }

    /// The function's interrupt line may have changed by other means than a message.
    pub fn update_interrupts(&mut self, function: &mut impl Function) {
        if let Some(client) = &mut self.client {
            client.session.update_interrupts(function);
        }
    }

    fn accept(&mut self) -> bool {
        match socket::accept(&self.listener) {
            Ok(Some(socket)) if self.client.is_none() => {
                self.clients += 1;
                tracing::info!(path = %self.path.display(), "client {} connected", self.clients);
                self.client = Some(Client { socket, session: Session::new() });
                true
            }
            Ok(Some(_)) => {
                self.turned_away += 1;
                tracing::warn!(path = %self.path.display(), "a second client was turned away");
                true
            }
            Ok(None) => false,
            Err(errno) => {
                // Out of file descriptors, say. The client waits, and is taken when there are some.
                tracing::warn!(path = %self.path.display(), "cannot accept a client: {errno}");
                false
            }
        }
    }

    fn close(&mut self, function: &mut impl Function) {
        self.past = (self.counters(), self.interrupts());
        if let Some(mut client) = self.client.take() {
            client.session.close(function);
        }
    }
}

impl Client {
    /// Receives, answers, sends.
    fn turn(
        &mut self,
        scratch: &mut [u8],
        budget: usize,
        function: &mut impl Function,
    ) -> Result<bool, String> {
        let mut moved = self.flush()?;
        let room = self.session.room().min(scratch.len());
        if self.session.output().is_empty() && room > 0 {
            let mut descriptors = Vec::new();
            let received = socket::receive(&self.socket, &mut scratch[..room], &mut descriptors);
            match received.map_err(|errno| errno.to_string())? {
                Received::Bytes(len) => {
                    let kept = self.session.receive(&scratch[..len], descriptors);
                    kept.map_err(|hangup| hangup.to_string())?;
                    moved = true;
                }
                Received::Nothing => {}
                Received::End => return Err("it closed the connection".into()),
            }
        }
        if self.session.output().is_empty() {
            let taken = self.session.take_messages(budget, function);
            moved |= self.flush()?;
            moved |= taken.map_err(|hangup| hangup.to_string())? > 0;
        }
        Ok(moved)
    }

    fn flush(&mut self) -> Result<bool, String> {
        let mut moved = false;
        while !self.session.output().is_empty() {
            match socket::send(&self.socket, self.session.output()) {
                Ok(0) => break,
                Ok(sent) => {
                    self.session.sent(sent);
                    moved = true;
                }
                Err(errno) => return Err(errno.to_string()),
            }
        }
        Ok(moved)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Whoever starts next would take it over anyway.
        let _ = std::fs::remove_file(&self.path);
    }
}
