//! A UNIX stream socket with file descriptors beside the bytes, never waiting. Knows no message.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, recvmsg,
    socket_with,
};

use super::wire::FDS_MAX;

/// Room for one more than may come, so that too many are seen as such.
const CONTROL_LEN: usize = rustix::cmsg_space!(ScmRights(FDS_MAX + 1));
/// Clients that may wait to be turned away.
const BACKLOG: i32 = 4;

/// What was received.
#[derive(Debug)]
pub(super) enum Received {
    /// So many bytes.
    Bytes(usize),
    /// Nothing is there now.
    Nothing,
    /// The other end is gone.
    End,
}

/// Receives bytes into `out`, and appends file descriptors that came with them. Descriptors that do not
/// fit are closed by the system, and as many as fit are more than a message may have.
pub(super) fn receive(
    socket: impl AsFd,
    out: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> Result<Received, Errno> {
    let mut space = [MaybeUninit::uninit(); CONTROL_LEN];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(out)], &mut control, flags) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(Received::Nothing),
            Err(Errno::CONNRESET | Errno::PIPE) => return Ok(Received::End),
            other => break other?,
        }
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    if message.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Errno::TOOMANYREFS);
    }
    Ok(if message.bytes == 0 { Received::End } else { Received::Bytes(message.bytes) })
}

/// Sends what goes now. 0: nothing goes now.
pub(super) fn send(socket: impl AsFd, bytes: &[u8]) -> Result<usize, Errno> {
    loop {
        match rustix::net::send(&socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(0),
            other => return other,
        }
    }
}

/// Listens at a path. A socket file that nobody listens on any more is taken over.
pub(super) fn listen_at(path: &Path) -> Result<OwnedFd, Errno> {
    let address = SocketAddrUnix::new(path)?;
    let socket = stream()?;
    match bind(&socket, &address) {
        Err(Errno::ADDRINUSE) if connect(stream()?, &address) == Err(Errno::CONNREFUSED) => {
            rustix::fs::unlink(path)?;
            bind(&socket, &address)?;
        }
        other => other?,
    }
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// The next client, if one waits.
pub(super) fn accept(listener: impl AsFd) -> Result<Option<OwnedFd>, Errno> {
    loop {
        match accept_with(&listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(Errno::AGAIN) => return Ok(None),
            other => return other.map(Some),
        }
    }
}

fn stream() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}
