//! `udp`: a plain UDP socket on port 4791, which needs no rights. It carries UDP payloads only, so Ethernet, IP
//! and UDP headers are made up ([`super::made_header`]).
//!
//! Sent so that every byte of the kernel's header is known: the socket is unconnected and does not let its packets
//! be fragmented, so IPv4's identification is 0, and in a message that the kernel cuts into datagrams (UDP GSO) it
//! counts 0, 1, 2...

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ip_recvtos,
    set_ipv6_mtu_discover, set_ipv6_recvtclass, set_ipv6_v6only,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, socket_with};
use softrnic_engine::{Room, Rx};

use super::linear_crc::Words;
use super::made_header::{
    DATAGRAMS, Datagram, HEADER_MAX, MESSAGE_MAX, Maker, datagram, mac_of, settle,
};
use super::outbox::{FRAMES, Outbox};
use super::system::{self, BATCH, Inbox, Message};
use super::{Limits, Link, LinkConfig, LinkCounters, LinkError, Written};

/// Bytes that each of the socket's buffers shall hold.
const SOCKET_BUFFER: i32 = 4 << 20;
/// What a socket sends with unless told otherwise: DSCP and ECN, and TTL or hop limit.
const SOCKET_MARKS: (u8, u8) = (0, 64);
/// Messages of one receive where each can be a joined one of [`MESSAGE_LEN`].
const JOINED_BATCH: usize = 16;
const MESSAGE_LEN: usize = 65_535;

/// The link.
#[derive(Debug)]
pub struct Udp {
    name: String,
    socket: OwnedFd,
    ip: IpAddr,
    /// Of an IPv6 link-local address.
    scope: u32,
    port: u16,
    mtu: u16,
    inbox: Inbox,
    maker: Maker,
    outbox: Outbox,
    words: Words,
    /// How what waits was cut last; kept for its memory.
    groups: Vec<Group>,
    /// Let the kernel cut messages into datagrams.
    gso: bool,
    blocked: bool,
    counters: LinkCounters,
}

/// Frames that leave as one message.
#[derive(Clone, Copy, Debug)]
struct Group {
    first: usize,
    count: usize,
    bytes: usize,
    datagram: Datagram,
}

impl Group {
    const fn segment(&self) -> usize {
        self.datagram.payload.1 - self.datagram.payload.0
    }

    /// Whether the frame behind the group may join it: datagrams of one message go to one place with the same marks,
    /// and all but the last have one length.
    fn takes(&self, next: &Datagram) -> bool {
        let len = next.payload.1 - next.payload.0;
        self.count < DATAGRAMS
            && self.bytes == self.count * self.segment()
            && len <= self.segment()
            && len != 0
            && self.bytes + len <= MESSAGE_MAX
            && next.to == self.datagram.to
            && next.traffic_class == self.datagram.traffic_class
            && next.hop_limit == self.datagram.hop_limit
    }
}

impl Udp {
    /// Binds a socket to an address that this machine has. `gso`: let the kernel cut and join messages.
    ///
    /// # Errors
    /// `Open`.
    pub fn open(ip: IpAddr, port: u16, gso: bool, config: &LinkConfig) -> Result<Self, LinkError> {
        let name = format!("udp:{}", SocketAddr::new(ip, port));
        let open =
            |source: io::Error, way_out| LinkError::Open { link: name.clone(), source, way_out };
        if !config.addresses.is_empty() && !config.addresses.contains(&ip) {
            let source =
                io::Error::new(io::ErrorKind::InvalidInput, "the address is none of the port's");
            return Err(open(source, " (a NIC on a udp link has the link's IP address)"));
        }
        if ip.is_unspecified() || ip.is_multicast() {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "no address of one machine");
            return Err(open(source, " (name the address that peers send to: the ICRC covers it)"));
        }
        let failed = |errno: Errno| {
            let way_out = match errno {
                Errno::ADDRINUSE => {
                    " (another program, or the kernel's rdma_rxe, has this port: stop it, or take another \
                     address, or add another port at both ends)"
                }
                Errno::ADDRNOTAVAIL => " (`ip address` lists the addresses that this machine has)",
                Errno::ACCESS => " (ports below 1024 need CAP_NET_BIND_SERVICE; 4791 does not)",
                _ => "",
            };
            open(errno.into(), way_out)
        };
        let interface = system::interface_with(ip).map_err(failed)?;
        let scope = match ip {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => interface.as_deref(),
            _ => None,
        };
        let (socket, scope, gso) = socket_for(ip, port, scope, gso).map_err(failed)?;
        let interface_mtu = interface
            .and_then(|interface| system::interface_mtu(socket.as_fd(), &interface).ok())
            .unwrap_or(u16::MAX);
        let mtu = config.mtu.min(interface_mtu);
        let (slots, len) =
            if gso { (JOINED_BATCH, MESSAGE_LEN) } else { (BATCH, usize::from(mtu)) };
        Ok(Self {
            name,
            socket,
            ip,
            scope,
            port,
            mtu,
            inbox: Inbox::new(slots, HEADER_MAX, len),
            maker: Maker::new(config.mac, ip, config.strict_icrc),
            outbox: Outbox::new(0),
            words: Words::new(),
            groups: Vec::with_capacity(BATCH),
            gso,
            blocked: false,
            counters: LinkCounters::default(),
        })
    }

    /// Cuts what waits into messages, and gives each frame the ICRC for the header that it will have.
    fn plan(&mut self, gso: bool, groups: &mut Vec<Group>) {
        groups.clear();
        for at in 0..self.outbox.len() {
            let frame = self.outbox.frame_mut(at);
            // It was one when it was committed.
            let Some(datagram) = datagram(frame) else { continue };
            let len = datagram.payload.1 - datagram.payload.0;
            let joined = groups.last_mut().filter(|group| gso && group.takes(&datagram));
            let place = if let Some(group) = joined {
                group.count += 1;
                group.bytes += len;
                group.count - 1
            } else if groups.len() == BATCH {
                return;
            } else {
                groups.push(Group { first: at, count: 1, bytes: len, datagram });
                0
            };
            settle(frame, &datagram, &mut self.words, Some(self.port), place as u16);
        }
    }

    fn send(&self, groups: &[Group]) -> Result<usize, Errno> {
        let mut parts = [IoSlice::new(&[]); FRAMES];
        for (at, part) in parts.iter_mut().enumerate().take(self.outbox.len()) {
            let frame = self.outbox.frame(at);
            if let Some(datagram) = datagram(frame) {
                *part = IoSlice::new(&frame[datagram.payload.0..datagram.payload.1]);
            }
        }
        let nothing = Message { to: None, parts: &[], segment: 0, marks: None };
        let mut messages = [nothing; BATCH];
        for (message, group) in messages.iter_mut().zip(groups) {
            let datagram = &group.datagram;
            let marks = (datagram.traffic_class, datagram.hop_limit.max(1));
            let to = match datagram.to {
                IpAddr::V4(_) => SocketAddr::new(datagram.to, self.port),
                IpAddr::V6(v6) => {
                    let scope = if v6.is_unicast_link_local() { self.scope } else { 0 };
                    SocketAddrV6::new(v6, self.port, 0, scope).into()
                }
            };
            *message = Message {
                to: Some(to),
                parts: &parts[group.first..group.first + group.count],
                segment: if group.count > 1 { group.segment() as u16 } else { 0 },
                marks: (marks != SOCKET_MARKS).then_some(marks),
            };
        }
        system::send(self.socket.as_fd(), &messages[..groups.len()])
    }

    /// The first frames have gone, or were dropped.
    fn done(&mut self, groups: &[Group], dropped: bool) {
        for group in groups {
            for at in group.first..group.first + group.count {
                if !dropped {
                    self.counters.tx_frames += 1;
                    self.counters.tx_bytes += self.outbox.frame(at).len() as u64;
                }
            }
            if dropped {
                self.counters.tx_dropped += group.count as u64;
            }
        }
        self.outbox.sent(groups.iter().map(|group| group.count).sum());
    }

    fn failed(&self, errno: Errno) -> LinkError {
        LinkError::Io { link: self.name.clone(), source: errno.into() }
    }
}

impl Link for Udp {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        Limits { source_port: Some(self.port), ..Limits::of_mtu(self.mtu) }
    }

    fn receive(
        &mut self,
        budget: usize,
        take: &mut dyn FnMut(&mut [u8], Rx),
    ) -> Result<usize, LinkError> {
        let mut count = 0;
        // A call that brought less than it could has emptied the socket.
        let mut more = true;
        while count < budget {
            let Some((slot, arrival)) = self.inbox.next() else {
                if !more {
                    break;
                }
                match self.inbox.receive(self.socket.as_fd(), budget - count) {
                    Ok(filled_up) => more = filled_up,
                    Err(Errno::AGAIN) => break,
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(self.failed(errno)),
                }
                continue;
            };
            let used_up = match arrival.from {
                Some(from) if !arrival.cut_off => {
                    let budget = budget - count;
                    let (lent, used_up) =
                        self.maker.lend(slot, &arrival, from, budget, &mut self.counters, take);
                    count += lent;
                    used_up
                }
                _ => {
                    self.counters.rx_length_errors += 1;
                    true
                }
            };
            if used_up {
                self.inbox.done();
            }
        }
        Ok(count)
    }

    fn room(&mut self) -> Option<Room<'_>> {
        let source_port = Some(self.port);
        self.outbox.room().map(|bytes| Room { bytes, segments: 1, source_port })
    }

    fn commit(&mut self, written: Written) {
        if self.counters.too_long(self.outbox.written(written.len), self.mtu) {
            return;
        }
        let found = datagram(self.outbox.written(written.len));
        if found.is_none_or(|found| found.from != self.ip) {
            self.counters.tx_not_carried += 1;
            return;
        }
        self.outbox.commit(written.len);
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        self.blocked = false;
        let mut gso = self.gso;
        let mut groups = std::mem::take(&mut self.groups);
        let mut result = Ok(());
        while !self.outbox.is_empty() {
            self.plan(gso, &mut groups);
            match self.send(&groups) {
                Ok(sent) => self.done(&groups[..sent], false),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.blocked = true;
                    break;
                }
                // An interface that cannot compute checksums cannot cut messages either; nor can they be cut where
                // the path's MTU is smaller than the interface's.
                Err(errno @ (Errno::IO | Errno::INVAL | Errno::MSGSIZE))
                    if groups.first().is_some_and(|group| group.count > 1) =>
                {
                    gso = false;
                    self.gso &= errno != Errno::IO;
                }
                Err(errno) if is_of_one_packet(errno) => self.done(&groups[..1], true),
                Err(errno) => {
                    result = Err(self.failed(errno));
                    break;
                }
            }
        }
        self.groups = groups;
        result
    }

    fn wants_write(&self) -> bool {
        self.blocked
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn may_wait(&mut self) -> bool {
        self.inbox.is_empty()
    }

    fn mac_of(&self, ip: IpAddr) -> Option<[u8; 6]> {
        Some(mac_of(ip))
    }

    fn counters(&self) -> LinkCounters {
        LinkCounters { rx_dropped: system::receive_drops(self.socket.as_fd()), ..self.counters }
    }
}

/// Errors that say something of the packet, its receiver or this moment, and nothing of the socket.
const fn is_of_one_packet(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::MSGSIZE
            | Errno::NETUNREACH
            | Errno::HOSTUNREACH
            | Errno::NETDOWN
            | Errno::HOSTDOWN
            | Errno::NOBUFS
            | Errno::NOMEM
            | Errno::PERM
            | Errno::ACCESS
            | Errno::INVAL
            | Errno::ADDRNOTAVAIL
            | Errno::AFNOSUPPORT
            | Errno::CONNREFUSED
            | Errno::NODEV
            | Errno::IO
    )
}

/// A socket that is bound, the index of its interface where the address needs one, and whether it cuts and joins
/// messages.
fn socket_for(
    ip: IpAddr,
    port: u16,
    interface: Option<&str>,
    gso: bool,
) -> Result<(OwnedFd, u32, bool), Errno> {
    let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::DGRAM, flags, Some(ipproto::UDP))?;
    let fd = socket.as_fd();
    let scope = match interface {
        Some(interface) => rustix::net::netdevice::name_to_index(fd, interface)?,
        None => 0,
    };
    match ip {
        IpAddr::V4(v4) => {
            set_ip_mtu_discover(fd, Ipv4PathMtuDiscovery::DO)?;
            set_ip_recvtos(fd, true)?;
            system::set(fd, libc::SOL_IP, libc::IP_RECVTTL, 1)?;
            system::set(fd, libc::SOL_IP, libc::IP_TTL, i32::from(SOCKET_MARKS.1))?;
            bind(fd, &SocketAddr::from((v4, port)))?;
        }
        IpAddr::V6(v6) => {
            set_ipv6_v6only(fd, true)?;
            set_ipv6_mtu_discover(fd, Ipv6PathMtuDiscovery::DO)?;
            set_ipv6_recvtclass(fd, true)?;
            system::set(fd, libc::SOL_IPV6, libc::IPV6_RECVHOPLIMIT, 1)?;
            system::set(fd, libc::SOL_IPV6, libc::IPV6_UNICAST_HOPS, i32::from(SOCKET_MARKS.1))?;
            // RoCE senders leave the UDP checksum out (0), since the ICRC is better.
            system::set(fd, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
            bind(fd, &SocketAddr::from(SocketAddrV6::new(v6, port, 0, scope)))?;
        }
    }
    system::set_buffers(fd, SOCKET_BUFFER)?;
    let gso = gso && system::set(fd, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok();
    Ok((socket, scope, gso))
}
