//! What Linux offers to links and rustix does not: batches of messages with their control data, the socket
//! options of UDP and AF_PACKET, and which interface has an address. It knows no frame.
#![allow(unsafe_code, reason = "system calls that rustix does not have")]

use std::ffi::CStr;
use std::io::IoSlice;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use rustix::io::Errno;

/// Most messages of one system call.
pub(super) const BATCH: usize = 32;

/// Bytes of control data that belong to one message.
const CONTROL_LEN: usize = 128;
/// Control data are a list; the head of an entry is a length of one word, a level and a kind, and entries
/// begin at words.
const HEAD: usize = WORD + 4 + 4;
const WORD: usize = mem::size_of::<usize>();
/// Bytes of a socket address that are looked at: those of an IPv6 one.
const NAME_LEN: usize = 28;

#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
struct Control([u8; CONTROL_LEN]);

/// A socket address as the kernel has it.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
struct Name([u8; 32]);

impl Name {
    const EMPTY: Self = Self([0; 32]);

    /// The address and its length.
    fn of(address: SocketAddr) -> (Self, u32) {
        let mut name = Self::EMPTY;
        let bytes = &mut name.0;
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        let (family, len) = match address {
            SocketAddr::V4(v4) => {
                bytes[4..8].copy_from_slice(&v4.ip().octets());
                (libc::AF_INET, 16)
            }
            SocketAddr::V6(v6) => {
                bytes[8..24].copy_from_slice(&v6.ip().octets());
                bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
                (libc::AF_INET6, 28)
            }
        };
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        (name, len)
    }

    fn address(&self) -> Option<SocketAddr> {
        let bytes = &self.0;
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        match i32::from(u16::from_ne_bytes([bytes[0], bytes[1]])) {
            libc::AF_INET => {
                let ip = Ipv4Addr::from(*bytes[4..].first_chunk()?);
                Some(SocketAddr::new(ip.into(), port))
            }
            libc::AF_INET6 => {
                let ip = Ipv6Addr::from(*bytes[8..].first_chunk()?);
                let scope = u32::from_ne_bytes(*bytes[24..].first_chunk()?);
                Some(SocketAddrV6::new(ip, port, 0, scope).into())
            }
            _ => None,
        }
    }
}

/// What came with a message besides its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// Bytes.
    pub(super) len: usize,
    /// It was longer than the buffer.
    pub(super) cut_off: bool,
    /// Who sent it, where the socket's family is IPv4 or IPv6.
    pub(super) from: Option<SocketAddr>,
    /// Bytes of each datagram that was joined into it; 0: it is a single one.
    pub(super) segment: usize,
    /// DSCP and ECN.
    pub(super) traffic_class: u8,
    /// TTL or hop limit.
    pub(super) hop_limit: u8,
    /// The VLAN tag that was taken off it.
    pub(super) vlan: Option<[u8; 4]>,
}

const NOTHING: Arrival = Arrival {
    len: 0,
    cut_off: false,
    from: None,
    segment: 0,
    traffic_class: 0,
    hop_limit: 0,
    vlan: None,
};

/// Messages that were received in one system call, each in a slot of one buffer.
#[derive(Debug)]
pub(super) struct Inbox {
    bytes: Box<[u8]>,
    stride: usize,
    headroom: usize,
    slots: usize,
    names: Box<[Name; BATCH]>,
    controls: Box<[Control; BATCH]>,
    arrivals: [Arrival; BATCH],
    filled: usize,
    next: usize,
}

impl Inbox {
    /// An empty one for so many messages, at most [`BATCH`], each of up to `len` bytes behind `headroom` free ones.
    pub(super) fn new(slots: usize, headroom: usize, len: usize) -> Self {
        // An odd number of cache lines: slots shall not share the same few sets of a cache.
        let stride = (headroom + len).next_multiple_of(128) + 64;
        Self {
            bytes: vec![0; slots * stride].into_boxed_slice(),
            stride,
            headroom,
            slots,
            names: Box::new([Name::EMPTY; BATCH]),
            controls: Box::new([Control([0; CONTROL_LEN]); BATCH]),
            arrivals: [NOTHING; BATCH],
            filled: 0,
            next: 0,
        }
    }

    /// The message that comes next and its slot, headroom included; `None`: receive first.
    pub(super) fn next(&mut self) -> Option<(&mut [u8], Arrival)> {
        if self.next == self.filled {
            return None;
        }
        let at = self.next * self.stride;
        Some((&mut self.bytes[at..at + self.stride], self.arrivals[self.next]))
    }

    /// Nothing is left of what was received.
    pub(super) const fn is_empty(&self) -> bool {
        self.next == self.filled
    }

    /// The message has been used up.
    pub(super) const fn done(&mut self) {
        self.next += 1;
    }

    /// Receives what is there, at most `count` messages, without waiting. What was there before must have been used
    /// up. Returns whether there were as many as were asked for, so that there may be more.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>, count: usize) -> Result<bool, Errno> {
        (self.filled, self.next) = (0, 0);
        let count = count.min(self.slots);
        let mut parts: [libc::iovec; BATCH] =
            [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; BATCH];
        // SAFETY: all zeroes is a message header without name, parts and control data.
        let mut headers: [libc::mmsghdr; BATCH] = unsafe { mem::zeroed() };
        let slots = self.bytes.chunks_exact_mut(self.stride).zip(&mut parts).zip(&mut headers);
        let notes = self.names.iter_mut().zip(self.controls.iter_mut());
        for (((slot, part), header), (name, control)) in slots.zip(notes).take(count) {
            let buffer = &mut slot[self.headroom..];
            *part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            let header = &mut header.msg_hdr;
            header.msg_name = ptr::from_mut(name).cast();
            header.msg_namelen = NAME_LEN as u32;
            header.msg_iov = ptr::from_mut(part);
            header.msg_iovlen = 1;
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL_LEN;
        }
        // SAFETY: `count` headers were set above; each points to a slot, a name and control data of its own, which
        // are exclusively borrowed and outlive the call, with their true lengths.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                count as u32,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        if received < 0 {
            return Err(last_error());
        }
        self.filled = received.unsigned_abs() as usize;
        for (at, header) in headers[..self.filled].iter().enumerate() {
            let mut arrival = NOTHING;
            arrival.len = header.msg_len as usize;
            arrival.cut_off = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
            if header.msg_hdr.msg_namelen >= 16 {
                arrival.from = self.names[at].address();
            }
            read_control(&self.controls[at], header.msg_hdr.msg_controllen, &mut arrival);
            self.arrivals[at] = arrival;
        }
        Ok(self.filled == count)
    }
}

/// Reads the control data of a received message: a list of length, level, kind and bytes.
fn read_control(control: &Control, len: usize, arrival: &mut Arrival) {
    let mut rest = &control.0[..len.min(CONTROL_LEN)];
    while let Some((head, body)) = rest.split_at_checked(HEAD) {
        let len = usize::from_ne_bytes(*head.first_chunk().unwrap_or(&[0; WORD]));
        let number = |at| i32::from_ne_bytes(*head[at..].first_chunk().unwrap_or(&[0; 4]));
        let Some(body) = len.checked_sub(HEAD).and_then(|len| body.get(..len)) else { break };
        let byte = body.first().copied().unwrap_or(0);
        let word = body.first_chunk().map_or(0, |word| i32::from_ne_bytes(*word));
        match (number(WORD), number(WORD + 4)) {
            (libc::SOL_UDP, libc::UDP_GRO) => arrival.segment = usize::try_from(word).unwrap_or(0),
            (libc::SOL_IP, libc::IP_TOS) => arrival.traffic_class = byte,
            (libc::SOL_IP, libc::IP_TTL) | (libc::SOL_IPV6, libc::IPV6_HOPLIMIT) => {
                arrival.hop_limit = word as u8;
            }
            (libc::SOL_IPV6, libc::IPV6_TCLASS) => arrival.traffic_class = word as u8,
            (libc::SOL_PACKET, libc::PACKET_AUXDATA) => arrival.vlan = vlan_of(body),
            _ => {}
        }
        rest = rest.get(len.next_multiple_of(WORD)..).unwrap_or_default();
    }
}

/// The tag in a `tpacket_auxdata`: status, three lengths and offsets, then TCI and TPID.
fn vlan_of(auxdata: &[u8]) -> Option<[u8; 4]> {
    let status = u32::from_ne_bytes(*auxdata.first_chunk()?);
    if status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let half = |at: usize| Some(u16::from_ne_bytes(*auxdata.get(at..)?.first_chunk()?));
    let tpid = if status & libc::TP_STATUS_VLAN_TPID_VALID == 0 { 0x8100 } else { half(18)? };
    let ([a, b], [c, d]) = (tpid.to_be_bytes(), half(16)?.to_be_bytes());
    Some([a, b, c, d])
}

/// A message to be sent.
#[derive(Clone, Copy)]
pub(super) struct Message<'a> {
    /// The receiver; `None`: whatever the socket is bound to.
    pub(super) to: Option<SocketAddr>,
    /// Its bytes.
    pub(super) parts: &'a [IoSlice<'a>],
    /// Cut it into datagrams of so many bytes; 0: do not.
    pub(super) segment: u16,
    /// DSCP and ECN, and TTL or hop limit, where they are not the socket's.
    pub(super) marks: Option<(u8, u8)>,
}

/// Sends without waiting; returns how many messages went. An error is that of the first message.
pub(super) fn send(socket: BorrowedFd<'_>, messages: &[Message<'_>]) -> Result<usize, Errno> {
    let count = messages.len().min(BATCH);
    let mut names = [(Name::EMPTY, 0); BATCH];
    let mut controls = [Control([0; CONTROL_LEN]); BATCH];
    // SAFETY: all zeroes is a message header without name, parts and control data.
    let mut headers: [libc::mmsghdr; BATCH] = unsafe { mem::zeroed() };
    let places = headers.iter_mut().zip(&mut names).zip(&mut controls);
    for (((header, name), control), message) in places.zip(messages) {
        let header = &mut header.msg_hdr;
        // `IoSlice` is laid out as `iovec` is; the kernel reads only what a part to be sent points to.
        header.msg_iov = message.parts.as_ptr().cast_mut().cast();
        header.msg_iovlen = message.parts.len();
        let Some(to) = message.to else { continue };
        *name = Name::of(to);
        header.msg_name = ptr::from_mut(&mut name.0).cast();
        header.msg_namelen = name.1;
        let len = write_control(control, message, to.is_ipv6());
        if len != 0 {
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = len;
        }
    }
    // SAFETY: `count` headers were set above. Their names and control data are local, their parts borrowed by
    // `messages`; all outlive the call, and the kernel only reads them.
    let sent = unsafe {
        libc::sendmmsg(
            socket.as_raw_fd(),
            headers.as_mut_ptr(),
            count as u32,
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    };
    if sent < 0 { Err(last_error()) } else { Ok(sent.unsigned_abs() as usize) }
}

/// Writes the control data of a message; returns its length.
fn write_control(control: &mut Control, message: &Message<'_>, ipv6: bool) -> usize {
    let mut end = 0;
    let mut put = |level: i32, kind: i32, body: &[u8]| {
        let len = HEAD + body.len();
        let at = &mut control.0[end..];
        at[..WORD].copy_from_slice(&len.to_ne_bytes());
        at[WORD..WORD + 4].copy_from_slice(&level.to_ne_bytes());
        at[WORD + 4..HEAD].copy_from_slice(&kind.to_ne_bytes());
        at[HEAD..len].copy_from_slice(body);
        end += len.next_multiple_of(WORD);
    };
    if message.segment != 0 {
        put(libc::SOL_UDP, libc::UDP_SEGMENT, &message.segment.to_ne_bytes());
    }
    if let Some((traffic_class, hop_limit)) = message.marks {
        let (level, class, limit) = if ipv6 {
            (libc::SOL_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT)
        } else {
            (libc::SOL_IP, libc::IP_TOS, libc::IP_TTL)
        };
        put(level, class, &i32::from(traffic_class).to_ne_bytes());
        put(level, limit, &i32::from(hop_limit).to_ne_bytes());
    }
    end
}

fn last_error() -> Errno {
    let error = std::io::Error::last_os_error();
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// Sets a socket option to a number.
pub(super) fn set(
    socket: BorrowedFd<'_>,
    level: i32,
    option: i32,
    value: i32,
) -> Result<(), Errno> {
    set_bytes(socket, level, option, &value.to_ne_bytes())
}

fn set_bytes(socket: BorrowedFd<'_>, level: i32, option: i32, value: &[u8]) -> Result<(), Errno> {
    // SAFETY: the kernel reads `value.len()` bytes, which outlive the call.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        )
    };
    if done < 0 { Err(last_error()) } else { Ok(()) }
}

/// Sets both buffers of a socket to so many bytes, or to as much as this user may have.
pub(super) fn set_buffers(socket: BorrowedFd<'_>, bytes: i32) -> Result<(), Errno> {
    for (force, plain) in
        [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
    {
        if set(socket, libc::SOL_SOCKET, force, bytes).is_err() {
            set(socket, libc::SOL_SOCKET, plain, bytes)?;
        }
    }
    Ok(())
}

/// Messages that the kernel dropped because the socket's receive buffer was full.
pub(super) fn receive_drops(socket: BorrowedFd<'_>) -> u64 {
    const SO_MEMINFO: i32 = 55;
    const DROPS: usize = 8;
    let mut numbers = [0u32; DROPS + 1];
    let mut len = mem::size_of_val(&numbers) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `numbers`, for which any bits are good.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_MEMINFO,
            numbers.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if done < 0 { 0 } else { u64::from(numbers[DROPS]) }
}

/// Puts a classic BPF program before the socket: what it returns 0 for is dropped, without a word to the sender.
pub(super) fn filter(socket: BorrowedFd<'_>, program: &[libc::sock_filter]) -> Result<(), Errno> {
    let len = u16::try_from(program.len()).map_err(|_| Errno::TOOBIG)?;
    let value = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    // SAFETY: the option's value is a `sock_fprog`; the kernel copies the program that it points to, which is as long
    // as it says, before the call returns, and writes nothing.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            ptr::from_ref(&value).cast(),
            mem::size_of_val(&value) as libc::socklen_t,
        )
    };
    if done < 0 { Err(last_error()) } else { Ok(()) }
}

/// Binds an AF_PACKET socket to an interface, for every protocol.
pub(super) fn bind_packet(socket: BorrowedFd<'_>, interface: u32) -> Result<(), Errno> {
    // SAFETY: all zeroes is a link-layer address.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = interface.cast_signed();
    // SAFETY: the kernel reads a `sockaddr_ll`, as the length says.
    let done = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            ptr::from_ref(&address).cast(),
            mem::size_of_val(&address) as libc::socklen_t,
        )
    };
    if done < 0 { Err(last_error()) } else { Ok(()) }
}

/// Sees frames that are not for the interface's own address, as long as the socket is open.
pub(super) fn set_promiscuous(socket: BorrowedFd<'_>, interface: u32) -> Result<(), Errno> {
    let mut request = [0; 16];
    request[..4].copy_from_slice(&interface.to_ne_bytes());
    request[4..6].copy_from_slice(&(libc::PACKET_MR_PROMISC as u16).to_ne_bytes());
    set_bytes(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

fn interface_request(
    socket: BorrowedFd<'_>,
    name: &str,
    request: libc::c_ulong,
) -> Result<libc::ifreq, Errno> {
    // SAFETY: all zeroes is an interface request without a name.
    let mut asked: libc::ifreq = unsafe { mem::zeroed() };
    // The last byte stays 0.
    if name.len() >= asked.ifr_name.len() {
        return Err(Errno::NODEV);
    }
    for (to, from) in asked.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    // SAFETY: both requests that are made here read a name and write into the same `ifreq`.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), request as _, &raw mut asked) };
    if done < 0 { Err(last_error()) } else { Ok(asked) }
}

/// MTU of an interface; what is longer than an IP packet can be counts as the longest one.
pub(super) fn interface_mtu(socket: BorrowedFd<'_>, name: &str) -> Result<u16, Errno> {
    let answer = interface_request(socket, name, libc::SIOCGIFMTU)?;
    // SAFETY: SIOCGIFMTU sets this member.
    let mtu = unsafe { answer.ifr_ifru.ifru_mtu };
    Ok(u16::try_from(mtu).unwrap_or(u16::MAX))
}

/// MAC address of an interface; `None`: it has none, or another kind of address.
pub(super) fn interface_mac(socket: BorrowedFd<'_>, name: &str) -> Result<Option<[u8; 6]>, Errno> {
    let answer = interface_request(socket, name, libc::SIOCGIFHWADDR)?;
    // SAFETY: SIOCGIFHWADDR sets this member.
    let address = unsafe { answer.ifr_ifru.ifru_hwaddr };
    let ethernet = [libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK].contains(&address.sa_family);
    let bytes = address.sa_data.map(i8::cast_unsigned);
    Ok(bytes.first_chunk().copied().filter(|_| ethernet))
}

/// Name of the interface that has an IP address.
pub(super) fn interface_with(ip: IpAddr) -> Result<Option<String>, Errno> {
    let mut list: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: the call sets `list` where it succeeds.
    if unsafe { libc::getifaddrs(&raw mut list) } < 0 {
        return Err(last_error());
    }
    let mut found = None;
    let mut at = list;
    // SAFETY: `at` is null or points to an entry of the list, which lives until it is freed below.
    while let Some(entry) = unsafe { at.as_ref() } {
        at = entry.ifa_next;
        if entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: the address is not null; every one begins with its family, which says how long it is.
        let name = unsafe {
            let len = match i32::from((*entry.ifa_addr).sa_family) {
                libc::AF_INET => mem::size_of::<libc::sockaddr_in>(),
                libc::AF_INET6 => mem::size_of::<libc::sockaddr_in6>(),
                _ => continue,
            };
            let mut name = Name::EMPTY;
            ptr::copy_nonoverlapping(entry.ifa_addr.cast(), name.0.as_mut_ptr(), len);
            name
        };
        // An interface of 127.0.0.1/8 has every address of that network.
        let loopback = |other: IpAddr| ip.is_loopback() && other.is_loopback() && ip.is_ipv4();
        let same = |other: IpAddr| other == ip || loopback(other) && other.is_ipv4();
        if name.address().is_some_and(|address| same(address.ip())) {
            // SAFETY: an entry's name is a C string.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) };
            found = Some(name.to_string_lossy().into_owned());
            break;
        }
    }
    // SAFETY: the list came from `getifaddrs`, and nothing points into it any more.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn control_data_of_any_bytes_is_read_to_its_end(bytes in any::<[u8; 32]>(), len in 0..200usize) {
            let mut control = Control([0; CONTROL_LEN]);
            for (to, from) in control.0.iter_mut().zip(bytes.iter().cycle()) {
                *to = *from;
            }
            // Lengths that fit, so that more than one entry is looked at.
            control.0[..WORD].copy_from_slice(&(usize::from(bytes[0] % 40)).to_ne_bytes());
            let mut arrival = NOTHING;
            read_control(&control, len, &mut arrival);
        }

        #[test]
        fn what_is_written_as_control_data_can_be_read(
            (traffic_class, hop_limit) in any::<(u8, u8)>(),
            ipv6 in any::<bool>(),
        ) {
            let mut control = Control([0; CONTROL_LEN]);
            let marks = Some((traffic_class, hop_limit));
            let message = Message { to: None, parts: &[], segment: 0, marks };
            let len = write_control(&mut control, &message, ipv6);
            let mut arrival = NOTHING;
            read_control(&control, len, &mut arrival);
            prop_assert_eq!((arrival.traffic_class, arrival.hop_limit), (traffic_class, hop_limit));
        }
    }

    #[test]
    fn the_interface_of_an_address_is_found() {
        assert_eq!(interface_with(Ipv4Addr::LOCALHOST.into()).unwrap().as_deref(), Some("lo"));
        assert_eq!(
            interface_with(Ipv4Addr::new(127, 1, 2, 3).into()).unwrap().as_deref(),
            Some("lo")
        );
        assert_eq!(interface_with(Ipv4Addr::new(198, 51, 100, 9).into()).unwrap(), None);
    }
}
