//! The threads behind a listening socket: one that accepts, and one for each connection, so that a slow
//! reader holds up nobody but itself.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Connections at a time; further ones are closed at once.
const CONNECTIONS_MAX: usize = 32;
/// How long accepting rests after it failed (out of file descriptors, say).
const REST: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// What connections come from.
pub(super) trait Accept: AsFd + Send + 'static {
    type Stream: Send + 'static;
    fn next(&self) -> io::Result<Self::Stream>;
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    fn next(&self) -> io::Result<TcpStream> {
        self.accept().map(|(stream, _)| stream)
    }
}

impl Accept for UnixListener {
    type Stream = UnixStream;

    fn next(&self) -> io::Result<UnixStream> {
        self.accept().map(|(stream, _)| stream)
    }
}

/// A socket that is listened on until this value is dropped. Connections go on until they find out.
#[derive(Debug)]
pub(super) struct Listener {
    /// Its closing ends the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Serves each connection in a thread of its own.
    pub(super) fn start<A: Accept>(
        listener: A,
        serve: impl Fn(A::Stream) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = UnixStream::pair()?;
        let thread = thread::spawn(move || accept_all(&listener, &stopped, &Arc::new(serve)));
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // It has nothing to report; a panic there has been printed.
            let _ = thread.join();
        }
    }
}

fn accept_all<A: Accept>(
    listener: &A,
    stopped: &UnixStream,
    serve: &Arc<impl Fn(A::Stream) + Send + Sync + 'static>,
) {
    let connections = Arc::new(AtomicUsize::new(0));
    loop {
        let mut fds = [stopped.as_fd(), listener.as_fd()]
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        // Interrupted: look again.
        let _ = poll(&mut fds, None);
        if !fds[0].revents().is_empty() {
            return;
        }
        if fds[1].revents().is_empty() {
            continue;
        }
        match listener.next() {
            Ok(stream) if connections.fetch_add(1, Ordering::Relaxed) < CONNECTIONS_MAX => {
                let (serve, connections) = (Arc::clone(serve), Arc::clone(&connections));
                thread::spawn(move || {
                    serve(stream);
                    connections.fetch_sub(1, Ordering::Relaxed);
                });
            }
            Ok(_) => {
                connections.fetch_sub(1, Ordering::Relaxed);
                tracing::warn!("a connection is closed: {CONNECTIONS_MAX} are open");
            }
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                let mut stop = [PollFd::from_borrowed_fd(stopped.as_fd(), PollFlags::IN)];
                let _ = poll(&mut stop, Some(&REST));
            }
        }
    }
}
