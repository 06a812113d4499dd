//! `packet`: frames on a network interface (AF_PACKET), past the kernel's network stack, in batches.
//!
//! Two ways to be there. By default the NIC is a station of its own with its own MAC and IP addresses; the interface
//! listens to everything, and a filter in the kernel keeps what is for others away. With `kernel-arp` it shares the
//! interface's addresses: the kernel answers ARP, NDP and pings, and a UDP socket that is never read keeps it from
//! telling peers that nobody listens on RoCE's port.

use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netdevice::{index_to_name, name_to_index};
use rustix::net::sockopt::set_ipv6_v6only;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, socket_with};
use softrnic_engine::packet::ROCE_V2_UDP_PORT;
use softrnic_engine::{Room, Rx};

use super::outbox::Outbox;
use super::super_packet::{Cutter, Joiner, PARTS, VIRTIO};
use super::system::{self, Arrival, BATCH, Inbox, Message};
use super::{Limits, Link, LinkConfig, LinkCounters, LinkError, Written, without_rights};

/// Bytes that each of the socket's buffers shall hold.
const SOCKET_BUFFER: i32 = 4 << 20;
/// A VLAN tag, which the kernel takes off.
const TAG: usize = 4;
/// Messages of one receive. Each can be a super-packet: who is on this machine too sends them without asking.
const SLOTS: usize = 16;
const SUPER_PACKET_LEN: usize = 65_535 + 14;

/// The link.
#[derive(Debug)]
pub struct Packet {
    name: String,
    interface: String,
    index: u32,
    socket: OwnedFd,
    /// Keeps the kernel from answering RoCE packets with "port unreachable".
    _dummies: Vec<OwnedFd>,
    shared_mac: Option<[u8; 6]>,
    mtu: u16,
    inbox: Inbox,
    cutter: Cutter,
    outbox: Outbox,
    joiner: Joiner,
    /// Send packets of one flow as one.
    join: bool,
    blocked: bool,
    /// The interface is not there any more; the kernel says so only once.
    gone: bool,
    counters: LinkCounters,
}

impl Packet {
    /// Opens an interface; `kernel_arp`: shares its addresses with the kernel; `join`: lets the kernel cut what is sent
    /// into packets.
    ///
    /// # Errors
    /// `Open`.
    pub fn open(
        interface: &str,
        kernel_arp: bool,
        join: bool,
        config: &LinkConfig,
    ) -> Result<Self, LinkError> {
        let suffix = if kernel_arp { "?kernel-arp" } else { "" };
        let name = format!("packet:{interface}{suffix}");
        let failed = |errno: Errno| {
            let way_out = match errno {
                Errno::NODEV | Errno::NXIO => {
                    " (`ip link` lists the interfaces of this network namespace)"
                }
                Errno::ADDRINUSE => {
                    " (another program, or the kernel's rdma_rxe, has UDP port 4791: stop it, or leave \
                     `kernel-arp` out and give the NIC addresses of its own)"
                }
                errno => without_rights(errno),
            };
            LinkError::Open { link: name.clone(), source: errno.into(), way_out }
        };
        // Without a protocol, so that nothing arrives before the filter is there.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None).map_err(failed)?;
        let fd = socket.as_fd();
        let index = name_to_index(fd, interface).map_err(failed)?;
        let mac = system::interface_mac(fd, interface).map_err(failed)?;
        let Some(mac) = mac else {
            let source = io::Error::new(io::ErrorKind::Unsupported, "it has no Ethernet header");
            let way_out = " (take an Ethernet interface, or a `udp:ADDRESS` link)";
            return Err(LinkError::Open { link: name, source, way_out });
        };
        let mtu = system::interface_mtu(fd, interface).map_err(failed)?;
        let filter = if kernel_arp { filter::SHARED.to_vec() } else { filter::mac(config.mac) };
        let set = |option, value| system::set(fd, libc::SOL_PACKET, option, value);
        system::filter(fd, &filter)
            .and_then(|()| set(libc::PACKET_AUXDATA, 1))
            .and_then(|()| set(libc::PACKET_IGNORE_OUTGOING, 1))
            .and_then(|()| set(libc::PACKET_VNET_HDR, 1))
            // Past the queueing discipline nobody would cut a super-packet for a device that cannot.
            .and_then(|()| set(libc::PACKET_QDISC_BYPASS, i32::from(!join)))
            .and_then(|()| system::set_buffers(fd, SOCKET_BUFFER))
            .and_then(|()| system::bind_packet(fd, index))
            .map_err(failed)?;
        let mut dummies = Vec::new();
        if kernel_arp {
            for ip in &config.addresses {
                dummies.push(dummy(*ip, index).map_err(failed)?);
            }
        } else {
            system::set_promiscuous(fd, index).map_err(failed)?;
        }
        Ok(Self {
            name,
            interface: interface.to_owned(),
            index,
            socket,
            _dummies: dummies,
            shared_mac: kernel_arp.then_some(mac),
            mtu: mtu.min(config.mtu),
            inbox: Inbox::new(SLOTS, TAG, VIRTIO + SUPER_PACKET_LEN),
            cutter: Cutter::new(),
            outbox: Outbox::new(0),
            joiner: Joiner::new(),
            join,
            blocked: false,
            gone: false,
            counters: LinkCounters::default(),
        })
    }

    /// `Gone` if the interface is; it may only be switched off.
    fn failed(&mut self, errno: Errno) -> Result<(), LinkError> {
        let here = index_to_name(&self.socket, self.index);
        if here.is_ok_and(|name| name == self.interface) {
            return match errno {
                Errno::NETDOWN => Ok(()),
                _ => Err(LinkError::Io { link: self.name.clone(), source: errno.into() }),
            };
        }
        self.gone = true;
        self.still_there()
    }

    fn still_there(&self) -> Result<(), LinkError> {
        if !self.gone {
            return Ok(());
        }
        let why = "the interface was deleted, renamed or moved".to_owned();
        Err(LinkError::Gone { link: self.name.clone(), why })
    }

    /// Sends what is planned; returns how many groups went.
    fn send(&self, groups: usize) -> Result<usize, Errno> {
        let mut parts = [IoSlice::new(&[]); PARTS];
        let mut counts = [0; BATCH];
        let mut rest = &mut parts[..];
        for (at, count) in counts.iter_mut().enumerate().take(groups) {
            *count = self.joiner.parts(&self.outbox, at, rest);
            rest = &mut rest[*count..];
        }
        let mut messages = [Message { to: None, parts: &[], segment: 0, marks: None }; BATCH];
        let mut rest = &parts[..];
        for (message, count) in messages.iter_mut().zip(counts) {
            (message.parts, rest) = rest.split_at(count);
        }
        system::send(self.socket.as_fd(), &messages[..groups])
    }

    /// The first groups have gone, or were dropped.
    fn done(&mut self, groups: usize, dropped: bool) {
        let mut frames = 0;
        for at in 0..groups {
            frames += self.joiner.group(at).count;
        }
        if dropped {
            self.counters.tx_dropped += frames as u64;
        } else {
            let bytes = |at| self.outbox.frame(at).len() as u64;
            self.counters.tx_frames += frames as u64;
            self.counters.tx_bytes += (0..frames).map(bytes).sum::<u64>();
        }
        self.outbox.sent(frames);
    }
}

/// A frame as it was on the wire, and the virtio header before it, in its slot.
fn frame_of<'a>(slot: &'a mut [u8], arrival: &Arrival) -> Option<([u8; VIRTIO], &'a mut [u8])> {
    let end = TAG + arrival.len;
    let mut begin = TAG + VIRTIO;
    let virtio = *slot[TAG..].first_chunk()?;
    if let Some(tag) = arrival.vlan.filter(|_| end >= begin + 12) {
        slot.copy_within(begin..begin + 12, begin - TAG);
        slot[begin + 12 - TAG..begin + 12].copy_from_slice(&tag);
        begin -= TAG;
    }
    Some((virtio, slot.get_mut(begin..end)?))
}

impl Link for Packet {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        Limits { shared_mac: self.shared_mac, ..Limits::of_mtu(self.mtu) }
    }

    fn receive(
        &mut self,
        budget: usize,
        take: &mut dyn FnMut(&mut [u8], Rx),
    ) -> Result<usize, LinkError> {
        self.still_there()?;
        let mut count = 0;
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
                    Err(errno) => {
                        self.failed(errno)?;
                        break;
                    }
                }
                continue;
            };
            let whole = if arrival.cut_off { None } else { frame_of(slot, &arrival) };
            let Some((virtio, frame)) = whole else {
                self.counters.rx_length_errors += 1;
                self.inbox.done();
                continue;
            };
            // Where the call goes on with a super-packet, its headers are known, and those in the slot do not matter.
            let budget = budget - count;
            let (lent, used_up) = self.cutter.lend(virtio, frame, budget, &mut self.counters, take);
            count += lent;
            if used_up {
                self.inbox.done();
            }
        }
        Ok(count)
    }

    fn room(&mut self) -> Option<Room<'_>> {
        self.outbox.room().map(|bytes| Room { bytes, segments: 1, source_port: None })
    }

    fn commit(&mut self, written: Written) {
        if !self.counters.too_long(self.outbox.written(written.len), self.mtu) {
            self.outbox.commit(written.len);
        }
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        self.still_there()?;
        self.blocked = false;
        let mut join = self.join;
        while !self.outbox.is_empty() {
            let groups = self.joiner.plan(&mut self.outbox, join);
            match self.send(groups) {
                Ok(sent) => self.done(sent, false),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.blocked = true;
                    break;
                }
                // Perhaps because it is a super-packet.
                Err(_) if self.joiner.group(0).count > 1 => join = false,
                Err(Errno::NOBUFS | Errno::NOMEM | Errno::MSGSIZE | Errno::INVAL) => {
                    self.done(1, true);
                }
                Err(errno) => {
                    self.failed(errno)?;
                    self.done(1, true);
                }
            }
        }
        Ok(())
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

    fn counters(&self) -> LinkCounters {
        LinkCounters { rx_dropped: system::receive_drops(self.socket.as_fd()), ..self.counters }
    }
}

/// A UDP socket on RoCE's port that takes nothing.
fn dummy(ip: IpAddr, interface: u32) -> Result<OwnedFd, Errno> {
    let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, Some(ipproto::UDP))?;
    system::filter(socket.as_fd(), filter::NOTHING)?;
    let place = match ip {
        IpAddr::V4(_) => SocketAddr::new(ip, ROCE_V2_UDP_PORT),
        IpAddr::V6(v6) => {
            set_ipv6_v6only(&socket, true)?;
            let local = Ipv6Addr::is_unicast_link_local(&v6);
            let scope = if local { interface } else { 0 };
            std::net::SocketAddrV6::new(v6, ROCE_V2_UDP_PORT, 0, scope).into()
        }
    };
    bind(&socket, &place)?;
    Ok(socket)
}

/// Classic BPF programs for sockets: a frame passes if they return something else than 0. VLAN tags have been taken off
/// before.
mod filter {
    use libc::sock_filter;

    const LOAD_WORD: u16 = 0x20;
    const LOAD_HALF: u16 = 0x28;
    const LOAD_BYTE: u16 = 0x30;
    const LOAD_HALF_AT_X: u16 = 0x48;
    const X_IS_IPV4_HEADER_LEN: u16 = 0xB1;
    const IF_EQUAL: u16 = 0x15;
    const IF_ANY_BIT: u16 = 0x45;
    const RETURN: u16 = 0x06;

    /// An instruction: code, operand, instructions to skip if it is true and if it is not.
    const fn row(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
        sock_filter { code, jt, jf, k }
    }

    const PASS: sock_filter = row(RETURN, u32::MAX, 0, 0);
    const DROP: sock_filter = row(RETURN, 0, 0, 0);

    /// Nothing passes.
    pub(super) const NOTHING: &[sock_filter] = &[DROP];

    /// Frames for this MAC address, and those for many.
    pub(super) fn mac(mac: [u8; 6]) -> Vec<sock_filter> {
        let [a, b, c, d, e, f] = mac;
        vec![
            row(LOAD_BYTE, 0, 0, 0),
            row(IF_ANY_BIT, 1, 4, 0),
            row(LOAD_WORD, 0, 0, 0),
            row(IF_EQUAL, u32::from_be_bytes([a, b, c, d]), 0, 3),
            row(LOAD_HALF, 4, 0, 0),
            row(IF_EQUAL, u32::from_be_bytes([0, 0, e, f]), 0, 1),
            PASS,
            DROP,
        ]
    }

    /// RoCE v2, and what the port must see to find its neighbours: ARP and ICMPv6. The interface has other traffic.
    pub(super) const SHARED: &[sock_filter] = &[
        row(LOAD_HALF, 12, 0, 0),
        row(IF_EQUAL, 0x0806, 12, 0),
        row(IF_EQUAL, 0x86DD, 6, 0),
        row(IF_EQUAL, 0x0800, 0, 11),
        row(LOAD_BYTE, 23, 0, 0),
        row(IF_EQUAL, 17, 0, 9),
        row(X_IS_IPV4_HEADER_LEN, 14, 0, 0),
        row(LOAD_HALF_AT_X, 16, 0, 0),
        row(IF_EQUAL, 4791, 5, 6),
        row(LOAD_BYTE, 20, 0, 0),
        row(IF_EQUAL, 58, 3, 0),
        row(IF_EQUAL, 17, 0, 3),
        row(LOAD_HALF, 56, 0, 0),
        row(IF_EQUAL, 4791, 0, 1),
        PASS,
        DROP,
    ];
}
