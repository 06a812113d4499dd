//! A vfio-user client that sends what it is told, right or wrong, and waits for the reply.

use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use softrnic_host::vfio::wire::{
    self, Command, DmaMap, DmaUnmap, HEADER_LEN, Header, RegionAccess, SetIrqs, flags, irq_set,
};
use zerocopy::{FromBytes, IntoBytes};

/// No answer in this time is a failure.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// What QEMU 11 says first.
pub const CAPABILITIES: &str = r#"{"capabilities": {"pgsizes": 4096, "max_msg_fds": 16, "max_dma_maps": 65535, "max_data_xfer_size": 1048576, "migration": {"max_bitmap_size": 268435456, "pgsize": 4096}, "write_multiple": true}}"#;

/// A reply.
#[derive(Debug)]
pub struct Reply {
    pub header: Header,
    pub body: Vec<u8>,
}

/// An error number that a reply carries.
pub type Refused = i32;

pub struct Client {
    stream: UnixStream,
    next_id: u16,
}

impl Client {
    /// Connects, and says nothing yet.
    pub fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        Self { stream, next_id: 1 }
    }

    /// Connects and exchanges versions.
    pub fn greet(path: &Path) -> Self {
        let mut client = Self::connect(path);
        client.request(Command::Version, &version_body(0, CAPABILITIES), &[]).unwrap();
        client
    }

    /// Sends a message as it is.
    pub fn send_raw(&mut self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        let sent = sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
        let sent = sent.unwrap();
        if sent < bytes.len() {
            self.send_raw(&bytes[sent..], &[]);
        }
    }

    /// Sends a message with any command and flags.
    pub fn send(&mut self, command: u16, header_flags: u32, body: &[u8], fds: &[BorrowedFd<'_>]) {
        let header = Header {
            id: self.next_id.into(),
            command: command.into(),
            size: ((HEADER_LEN + body.len()) as u32).into(),
            flags: header_flags.into(),
            errno: 0.into(),
        };
        self.next_id = self.next_id.wrapping_add(1);
        self.send_raw(&[header.as_bytes(), body].concat(), fds);
    }

    /// The next reply; `None`: the server has closed the connection.
    pub fn reply(&mut self) -> Option<Reply> {
        let mut header = [0; HEADER_LEN];
        match self.stream.read_exact(&mut header) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return None,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
            other => other.unwrap(),
        }
        let header = Header::read_from_bytes(&header).unwrap();
        let mut body = vec![0; header.size.get() as usize - HEADER_LEN];
        self.stream.read_exact(&mut body).unwrap();
        Some(Reply { header, body })
    }

    /// Sends a command and waits for its reply, which must be one.
    pub fn request(
        &mut self,
        command: Command,
        body: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Vec<u8>, Refused> {
        self.request_number(command.number(), body, descriptors)
    }

    /// [`Client::request`] by number.
    pub fn request_number(
        &mut self,
        command: u16,
        body: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Vec<u8>, Refused> {
        let id = self.next_id;
        self.send(command, 0, body, descriptors);
        let reply = self.reply().expect("the server hung up");
        assert_eq!((reply.header.id.get(), reply.header.command.get()), (id, command));
        let errno = reply.header.errno.get() as i32;
        let error = reply.header.flags.get() & flags::ERROR != 0;
        assert_eq!(reply.header.flags.get() & flags::TYPE, flags::REPLY);
        assert_eq!(error, errno != 0, "an error has a number, and nothing else has");
        if error { Err(errno) } else { Ok(reply.body) }
    }

    pub fn read(&mut self, region: u32, offset: u64, len: u32) -> Result<Vec<u8>, Refused> {
        let body =
            self.request(Command::RegionRead, access(region, offset, len).as_bytes(), &[])?;
        assert_eq!(body.len(), size_of::<RegionAccess>() + len as usize);
        Ok(body[size_of::<RegionAccess>()..].to_vec())
    }

    pub fn read32(&mut self, region: u32, offset: u64) -> u32 {
        u32::from_le_bytes(self.read(region, offset, 4).unwrap().try_into().unwrap())
    }

    pub fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Refused> {
        let body = write_body(region, offset, data);
        self.request(Command::RegionWrite, &body, &[]).map(|_| ())
    }

    /// As QEMU writes to BARs: without a reply.
    pub fn post(&mut self, region: u32, offset: u64, data: &[u8]) {
        let body = write_body(region, offset, data);
        self.send(Command::RegionWrite.number(), flags::NO_REPLY, &body, &[]);
    }

    pub fn map(
        &mut self,
        address: u64,
        size: u64,
        file: Option<(BorrowedFd<'_>, u64)>,
    ) -> Result<(), Refused> {
        let body = map_body(address, size, file.map_or(0, |file| file.1), 3);
        let fds: Vec<_> = file.into_iter().map(|file| file.0).collect();
        self.request(Command::DmaMap, &body, &fds).map(|_| ())
    }

    pub fn unmap(&mut self, address: u64, size: u64) -> Result<(), Refused> {
        let unmap = DmaUnmap {
            argsz: 24.into(),
            flags: 0.into(),
            address: address.into(),
            size: size.into(),
        };
        self.request(Command::DmaUnmap, unmap.as_bytes(), &[]).map(|_| ())
    }

    /// Sets the eventfd of an index' first interrupt.
    pub fn set_target(&mut self, index: u32, target: impl AsFd) -> Result<(), Refused> {
        let body = irq_body(irq_set::DATA_EVENTFD | irq_set::TRIGGER, index, 0, 1);
        self.request(Command::SetIrqs, &body, &[target.as_fd()]).map(|_| ())
    }

    /// Everything still works.
    pub fn check_alive(&mut self) {
        assert_eq!(self.read32(wire::CONFIG_REGION, 0), 0x903F_10EE);
    }
}

pub fn version_body(major: u16, text: &str) -> Vec<u8> {
    let version = wire::Version { major: major.into(), minor: 0.into() };
    [version.as_bytes(), text.as_bytes(), &[0]].concat()
}

pub fn access(region: u32, offset: u64, count: u32) -> RegionAccess {
    RegionAccess { offset: offset.into(), region: region.into(), count: count.into() }
}

pub fn write_body(region: u32, offset: u64, data: &[u8]) -> Vec<u8> {
    [access(region, offset, data.len() as u32).as_bytes(), data].concat()
}

pub fn map_body(address: u64, size: u64, offset: u64, map_flags: u32) -> Vec<u8> {
    let map = DmaMap {
        argsz: 32.into(),
        flags: map_flags.into(),
        offset: offset.into(),
        address: address.into(),
        size: size.into(),
    };
    map.as_bytes().to_vec()
}

pub fn irq_body(set_flags: u32, index: u32, start: u32, count: u32) -> Vec<u8> {
    let set = SetIrqs {
        argsz: 20.into(),
        flags: set_flags.into(),
        index: index.into(),
        start: start.into(),
        count: count.into(),
    };
    set.as_bytes().to_vec()
}
