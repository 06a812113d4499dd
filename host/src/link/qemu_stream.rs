//! `qemu-stream`: the UNIX socket of QEMU's `-netdev stream`. Each frame stands behind its length, a
//! big-endian word; there is no other framing. Bytes left over from a read or a write wait for the next.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with,
    bind, connect, listen, recv, send, socket_with,
};
use softrnic_engine::packet::FRAME_LEN_MAX;
use softrnic_engine::{Room, Rx};

use super::{Limits, Link, LinkCounters, LinkError, Written};

/// Bytes of the length before each frame.
const PREFIX: usize = 4;
/// Longest frame that QEMU sends: its own buffer is this long.
const FRAME_MAX: usize = 68 * 1024;
/// Bytes that a read asks for.
const READ_LEN: usize = 256 * 1024;
/// Bytes that are kept for the other end before there is no room any more.
const WRITE_LEN: usize = 256 * 1024;

/// The link.
#[derive(Debug)]
pub struct QemuStream {
    name: String,
    mtu: u16,
    socket: OwnedFd,
    /// What was read: whole frames and the beginning of one, at `start..end`.
    input: Box<[u8]>,
    start: usize,
    end: usize,
    /// What has to be written, at `sent..written`.
    output: Box<[u8]>,
    sent: usize,
    written: usize,
    /// The other end took less than it was given.
    blocked: bool,
    counters: LinkCounters,
}

impl QemuStream {
    /// Connects to QEMU (`server=on` there), or waits for QEMU to connect (`server=off`), which may take for
    /// ever. A socket file that nobody listens on any more is taken over.
    ///
    /// # Errors
    /// `Open`.
    pub fn open(path: &Path, listen_there: bool, mtu: u16) -> Result<Self, LinkError> {
        let name = format!("qemu-stream:{}", path.display());
        let opened = if listen_there { accept_one(path) } else { connect_to(path) };
        let socket = opened.map_err(|errno| {
            let way_out = match errno {
                Errno::NOENT | Errno::CONNREFUSED => {
                    " (start QEMU with `-netdev stream,server=on,addr.type=unix,addr.path=...` first, or add \
                     `?listen`)"
                }
                Errno::ADDRINUSE => " (another process listens there)",
                _ => "",
            };
            LinkError::Open { link: name.clone(), source: errno.into(), way_out }
        })?;
        Self::over(socket, name, mtu)
    }

    /// Over a socket that is connected.
    ///
    /// # Errors
    /// `Open`: the socket cannot be made non-blocking.
    pub fn over(socket: OwnedFd, name: String, mtu: u16) -> Result<Self, LinkError> {
        if let Err(errno) = rustix::io::ioctl_fionbio(&socket, true) {
            return Err(LinkError::Open { link: name, source: errno.into(), way_out: "" });
        }
        Ok(Self {
            name,
            mtu,
            socket,
            input: vec![0; READ_LEN + FRAME_MAX].into_boxed_slice(),
            start: 0,
            end: 0,
            output: vec![0; WRITE_LEN + PREFIX + FRAME_LEN_MAX].into_boxed_slice(),
            sent: 0,
            written: 0,
            blocked: false,
            counters: LinkCounters::default(),
        })
    }

    fn gone(&self, why: impl Into<String>) -> LinkError {
        LinkError::Gone { link: self.name.clone(), why: why.into() }
    }

    fn failed(&self, errno: Errno) -> LinkError {
        match errno {
            Errno::PIPE | Errno::CONNRESET => self.gone(errno.to_string()),
            _ => LinkError::Io { link: self.name.clone(), source: io::Error::from(errno) },
        }
    }

    /// Lends whole frames that have been read.
    fn lend(
        &mut self,
        budget: usize,
        take: &mut dyn FnMut(&mut [u8], Rx),
    ) -> Result<usize, LinkError> {
        let mut count = 0;
        while count < budget {
            let there = &self.input[self.start..self.end];
            let Some(prefix) = there.first_chunk::<PREFIX>() else { break };
            let len = u32::from_be_bytes(*prefix) as usize;
            if len > FRAME_MAX {
                return Err(self.gone(format!(
                    "a frame of {len} bytes was announced: what is at the other end is no QEMU"
                )));
            }
            if there.len() < PREFIX + len {
                break;
            }
            let frame = self.start + PREFIX;
            self.start = frame + len;
            self.counters.rx_frames += 1;
            self.counters.rx_bytes += len as u64;
            take(&mut self.input[frame..frame + len], Rx::default());
            count += 1;
        }
        Ok(count)
    }
}

impl Link for QemuStream {
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
        let mut count = self.lend(budget, take)?;
        while count < budget {
            // What is left is less than one frame: it moves to the front.
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            match recv(&self.socket, &mut self.input[self.end..], RecvFlags::empty()) {
                Ok((_, 0)) => return Err(self.gone("the other end closed it")),
                Ok((_, len)) => self.end += len,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(self.failed(errno)),
            }
            count += self.lend(budget - count, take)?;
        }
        Ok(count)
    }

    fn room(&mut self) -> Option<Room<'_>> {
        if self.written >= WRITE_LEN {
            return None;
        }
        let at = self.written + PREFIX;
        let bytes = &mut self.output[at..at + FRAME_LEN_MAX];
        Some(Room { bytes, segments: 1, source_port: None })
    }

    fn commit(&mut self, written: Written) {
        let len = written.len.min(FRAME_LEN_MAX);
        let at = self.written + PREFIX;
        if self.counters.too_long(&self.output[at..at + len], self.mtu) {
            return;
        }
        let prefix = &mut self.output[self.written..self.written + PREFIX];
        prefix.copy_from_slice(&(len as u32).to_be_bytes());
        self.written += PREFIX + len;
        self.counters.tx_frames += 1;
        self.counters.tx_bytes += len as u64;
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        self.blocked = false;
        while self.sent < self.written {
            match send(&self.socket, &self.output[self.sent..self.written], SendFlags::NOSIGNAL) {
                Ok(len) => self.sent += len,
                Err(Errno::AGAIN) => {
                    self.blocked = true;
                    break;
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.failed(errno)),
            }
        }
        // What is left moves to the front, so that there is room again.
        self.output.copy_within(self.sent..self.written, 0);
        (self.sent, self.written) = (0, self.written - self.sent);
        Ok(())
    }

    fn wants_write(&self) -> bool {
        self.blocked
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn may_wait(&mut self) -> bool {
        let there = &self.input[self.start..self.end];
        // A whole frame, or a length that is none, is there already.
        there.first_chunk().is_none_or(|prefix: &[u8; PREFIX]| {
            let len = u32::from_be_bytes(*prefix) as usize;
            len <= FRAME_MAX && there.len() < PREFIX + len
        })
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }
}

fn stream() -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
}

fn connect_to(path: &Path) -> Result<OwnedFd, Errno> {
    let socket = stream()?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

fn accept_one(path: &Path) -> Result<OwnedFd, Errno> {
    let address = SocketAddrUnix::new(path)?;
    let socket = stream()?;
    if bind(&socket, &address) == Err(Errno::ADDRINUSE) {
        // Somebody listens there, or the file is left over.
        if connect_to(path).err() != Some(Errno::CONNREFUSED) {
            return Err(Errno::ADDRINUSE);
        }
        rustix::fs::unlink(path)?;
        bind(&socket, &address)?;
    }
    listen(&socket, 1)?;
    loop {
        match accept_with(&socket, SocketFlags::CLOEXEC) {
            Err(Errno::INTR) => {}
            done => {
                let _ = rustix::fs::unlink(path);
                return done;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use rustix::net::socketpair;

    use super::*;

    /// Frames of a stream of bytes, and whether it ends in a length that no QEMU sends.
    fn frames_of(mut bytes: &[u8]) -> (Vec<&[u8]>, bool) {
        let mut frames = Vec::new();
        while let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX>() {
            let len = u32::from_be_bytes(*prefix) as usize;
            if len > FRAME_MAX {
                return (frames, true);
            }
            let Some((frame, rest)) = rest.split_at_checked(len) else { break };
            frames.push(frame);
            bytes = rest;
        }
        (frames, false)
    }

    proptest! {
        #[test]
        fn any_stream_of_bytes_gives_its_frames_and_ends(
            parts in vec((0..300usize, vec(any::<u8>(), 0..80), prop::bool::weighted(0.9)), 0..20),
            chunk in 1..200usize,
            budget in 1..6usize,
        ) {
            // Mostly frames whose length is right, some whose is anything.
            let mut stream = Vec::new();
            for (extra, bytes, right) in &parts {
                let len = if *right { bytes.len() } else { extra * extra * extra };
                stream.extend((len as u32).to_be_bytes());
                stream.extend(bytes);
            }
            let (ours, theirs) =
                socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                    .unwrap();
            let mut link = QemuStream::over(ours, "qemu-stream:test".into(), 1500).unwrap();
            let mut came: Vec<Vec<u8>> = Vec::new();
            let mut end = None;
            for part in stream.chunks(chunk) {
                send(&theirs, part, SendFlags::NOSIGNAL).unwrap();
                match link.receive(budget, &mut |frame, _| came.push(frame.to_vec())) {
                    Ok(count) => prop_assert!(count <= budget),
                    Err(error) => {
                        end = Some(error);
                        break;
                    }
                }
            }
            drop(theirs);
            let mut turns = 0;
            let end = loop {
                if let Some(end) = end {
                    break end;
                }
                end = link.receive(budget, &mut |frame, _| came.push(frame.to_vec())).err();
                turns += 1;
                prop_assert!(turns < 10_000, "it does not end");
            };
            let (frames, strange) = frames_of(&stream);
            prop_assert!(end.is_gone());
            prop_assert_eq!(came, frames);
            prop_assert_eq!(end.to_string().contains("is no QEMU"), strange, "{}", end);
        }
    }
}
