//! Both ends of a link of each kind, and the frames that they exchange.

use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softrnic_engine::packet::{BthFields, FRAME_LEN_MAX, Flow, OpcodeRow, Template, opcode, parse};
use softrnic_engine::{Psn, Qpn, Rx};
use softrnic_host::link::{Inproc, Link, LinkConfig, LinkError, LinkUrl, QemuStream, Written};

use crate::namespace::{Namespace, cable};

/// How long a test waits for what must happen.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// So long that packets of 4096 bytes pass, and the longest frame fits a room.
pub const MTU: u16 = 4180;
/// SEND ONLY of a reliable connection: a BTH and the payload.
const SEND_ONLY: u8 = 0x04;
/// Bytes of a frame that are no payload, with IPv4; IPv6 has 20 more.
const OVERHEAD: usize = 14 + 20 + 8 + 12 + 4;
const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 0xA], [2, 0, 0, 0, 0, 0xB]];
const MAC_TEXTS: [&str; 2] = ["02:00:00:00:00:0a", "02:00:00:00:00:0b"];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    /// Payload of a frame that is as long as the MTU allows.
    pub fn payload_max(self) -> usize {
        let overhead = if self == Self::V4 { OVERHEAD } else { OVERHEAD + 20 };
        usize::from(MTU) + 14 - overhead
    }
}

/// What must be there for a kind of link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Needs {
    Nothing,
    Namespaces,
    Tun,
}

/// What becomes of one end when the other goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Close {
    /// It can tell, once it has taken what was on its way.
    Told,
    /// It cannot tell, but it can tell that its interface was deleted.
    InterfaceDeleted,
    /// It cannot tell.
    Untold,
}

/// A kind of link.
#[derive(Clone, Copy)]
pub struct Kind {
    pub name: &'static str,
    pub needs: Needs,
    /// Whoever is too slow loses nothing.
    pub lossless: bool,
    /// A receiver that is too slow knows how many frames were lost.
    pub counts_losses: bool,
    pub close: Close,
    pub open: fn(Family) -> Result<Ends, String>,
}

pub const KINDS: &[Kind] = &[
    Kind {
        name: "inproc",
        needs: Needs::Nothing,
        lossless: true,
        counts_losses: true,
        close: Close::Told,
        open: inproc,
    },
    Kind {
        name: "qemu-stream",
        needs: Needs::Nothing,
        lossless: true,
        counts_losses: true,
        close: Close::Told,
        open: qemu_stream,
    },
    Kind {
        name: "udp",
        needs: Needs::Namespaces,
        lossless: false,
        // It counts messages of several frames.
        counts_losses: false,
        close: Close::Untold,
        open: |family| udp_on_a_cable(family, ""),
    },
    Kind {
        name: "udp-single",
        needs: Needs::Namespaces,
        lossless: false,
        counts_losses: true,
        close: Close::Untold,
        open: |family| udp_on_a_cable(family, "?single"),
    },
    Kind {
        name: "tap",
        needs: Needs::Tun,
        lossless: false,
        counts_losses: false,
        close: Close::InterfaceDeleted,
        open: tap,
    },
    Kind {
        name: "packet",
        needs: Needs::Namespaces,
        lossless: false,
        counts_losses: false,
        close: Close::InterfaceDeleted,
        open: |family| packet(family, ""),
    },
    Kind {
        name: "packet-single",
        needs: Needs::Namespaces,
        lossless: false,
        counts_losses: true,
        close: Close::InterfaceDeleted,
        open: |family| packet(family, "?single"),
    },
    Kind {
        name: "packet-kernel-arp",
        needs: Needs::Namespaces,
        lossless: false,
        counts_losses: false,
        close: Close::InterfaceDeleted,
        open: |family| packet(family, "?kernel-arp"),
    },
];

/// One end: the link, and who is there.
pub struct End {
    pub link: Box<dyn Link>,
    pub mac: [u8; 6],
    pub ip: IpAddr,
}

/// Both ends, and what they are in.
pub struct Ends {
    pub ends: [End; 2],
    /// Deletes the first end's interface.
    pub namespaces: Vec<Namespace>,
    pub interface: &'static str,
}

pub fn ips(family: Family) -> [IpAddr; 2] {
    match family {
        Family::V4 => ["192.0.2.1", "192.0.2.2"],
        Family::V6 => ["2001:db8::1", "2001:db8::2"],
    }
    .map(|ip| ip.parse().unwrap())
}

/// Two addresses on the loopback interface, where nobody needs rights, that nobody else in this process got.
pub fn loopback_ips() -> [IpAddr; 2] {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let next = NEXT.fetch_add(2, Ordering::Relaxed);
    [next, next + 1].map(|last| Ipv4Addr::new(127, high, low, last).into())
}

pub fn config(number: usize, ip: IpAddr) -> LinkConfig {
    LinkConfig { mac: MACS[number], mtu: MTU, addresses: vec![ip], strict_icrc: true }
}

pub fn open(url: &str, config: &LinkConfig) -> Result<Box<dyn Link>, LinkError> {
    url.parse::<LinkUrl>().expect("a link").open(config)
}

pub fn pair(links: [Box<dyn Link>; 2], ips: [IpAddr; 2], namespaces: Vec<Namespace>) -> Ends {
    let [a, b] = links;
    let end = |link: Box<dyn Link>, number: usize| {
        let mac = link.limits().shared_mac.unwrap_or(MACS[number]);
        End { link, mac, ip: ips[number] }
    };
    Ends { ends: [end(a, 0), end(b, 1)], namespaces, interface: "va" }
}

fn inproc(family: Family) -> Result<Ends, String> {
    let (a, b) = Inproc::pair("test", MTU).map_err(|error| error.to_string())?;
    Ok(pair([Box::new(a), Box::new(b)], ips(family), Vec::new()))
}

fn qemu_stream(family: Family) -> Result<Ends, String> {
    let name = format!("rnic-link-{}-{family:?}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).map_err(|error| error.to_string())?;
    let url = format!("qemu-stream:{}", path.display());
    let [ip_a, ip_b] = ips(family);
    let a = open(&url, &config(0, ip_a)).map_err(|error| error.to_string())?;
    let (socket, _) = listener.accept().map_err(|error| error.to_string())?;
    std::fs::remove_file(&path).map_err(|error| error.to_string())?;
    let b = QemuStream::over(socket.into(), "qemu-stream:accepted".into(), MTU)
        .map_err(|error| error.to_string())?;
    Ok(pair([a, Box::new(b)], [ip_a, ip_b], Vec::new()))
}

/// Two namespaces with a cable, and these addresses where the kernel shall have them.
pub fn two_namespaces(addresses: &[IpAddr]) -> Result<[Namespace; 2], String> {
    let namespaces = [Namespace::new()?, Namespace::new()?];
    let [a, b] = &namespaces;
    cable(a, b, MAC_TEXTS, MTU)?;
    for ((namespace, interface), ip) in [(a, "va"), (b, "vb")].into_iter().zip(addresses) {
        let (len, nodad) = if ip.is_ipv4() { (24, "") } else { (64, " nodad") };
        namespace.ip(&format!("address add {ip}/{len} dev {interface}{nodad}"))?;
    }
    Ok(namespaces)
}

/// Opens a link in each namespace; `{n}` and `{ip}` in the URL become the interface and the address.
pub fn open_in(namespaces: [Namespace; 2], url: &str, ips: [IpAddr; 2]) -> Result<Ends, String> {
    let open_one = |number: usize| {
        let (interface, ip) = (["va", "vb"][number], ips[number]);
        let url = url.replace("{n}", interface).replace("{ip}", &ip.to_string());
        namespaces[number].run(move || open(&url, &config(number, ip)))
    };
    let a = open_one(0).map_err(|error| error.to_string())?;
    let b = open_one(1).map_err(|error| error.to_string())?;
    let mut ends = pair([a, b], ips, namespaces.into());
    ends.introduce();
    Ok(ends)
}

fn udp_on_a_cable(family: Family, options: &str) -> Result<Ends, String> {
    let ips = ips(family);
    open_in(two_namespaces(&ips)?, &format!("udp:{{ip}}{options}"), ips)
}

fn packet(family: Family, options: &str) -> Result<Ends, String> {
    let ips = ips(family);
    // Only where the kernel answers for the NIC has it the NIC's addresses.
    let kernels: &[IpAddr] = if options.contains("kernel-arp") { &ips } else { &[] };
    open_in(two_namespaces(kernels)?, &format!("packet:{{n}}{options}"), ips)
}

fn tap(family: Family) -> Result<Ends, String> {
    let namespace = Namespace::new()?;
    namespace.ip("link add br0 type bridge")?;
    namespace.ip("link set br0 up")?;
    let ips = ips(family);
    let mut links = Vec::new();
    for number in 0..2 {
        let interface = ["va", "vb"][number];
        let ip = ips[number];
        let url = format!("tap:{interface}");
        let link = namespace.run(move || open(&url, &config(number, ip)));
        links.push(link.map_err(|error| error.to_string())?);
        namespace.ip(&format!("link set {interface} master br0"))?;
    }
    let Ok(links) = <[Box<dyn Link>; 2]>::try_from(links) else { unreachable!("two were pushed") };
    let mut ends = pair(links, ips, vec![namespace]);
    ends.introduce();
    Ok(ends)
}

impl Ends {
    /// Exchanges frames until one has arrived each way: interfaces that were just switched on pass them, neighbours are
    /// found, and bridge ports forward.
    pub fn introduce(&mut self) {
        for from in 0..2 {
            let deadline = Instant::now() + PATIENCE;
            while Instant::now() < deadline {
                self.send(from, 1..2, 64);
                let link = &mut self.ends[1 - from].link;
                wait(link, PollFlags::IN, Duration::from_millis(50));
                if !take(link, usize::MAX).unwrap().is_empty() {
                    break;
                }
            }
            // Nothing of this is left for the test.
            while !take(&mut self.ends[1 - from].link, usize::MAX).unwrap().is_empty() {}
        }
    }

    /// How frames from this end look.
    pub fn flow(&self, from: usize) -> Flow {
        let (source, dest) = (&self.ends[from], &self.ends[1 - from]);
        Flow {
            source_mac: source.mac,
            dest_mac: source.link.mac_of(dest.ip).unwrap_or(dest.mac),
            vlan_tci: None,
            source_ip: source.ip,
            dest_ip: dest.ip,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            source_port: 0xC123,
            pkey: 0xFFFF,
            dest_qpn: Qpn::new(17),
        }
    }

    /// Commits frames with these numbers; flushes when there is no room, and in the end. All must go at once.
    pub fn send(&mut self, from: usize, numbers: std::ops::Range<u32>, payload: usize) {
        let template = Template::new(&self.flow(from)).unwrap();
        let link = &mut self.ends[from].link;
        for number in numbers {
            while !commit(link, &template, number, payload) {
                link.flush().unwrap();
                if link.wants_write() {
                    wait(link, PollFlags::OUT, PATIENCE);
                }
            }
        }
        link.flush().unwrap();
        while link.wants_write() {
            wait(link, PollFlags::OUT, PATIENCE);
            link.flush().unwrap();
        }
    }
}

fn row() -> &'static OpcodeRow {
    opcode::row(SEND_ONLY)
}

/// Byte `at` of payload `number`.
fn byte(number: u32, at: usize) -> u8 {
    (number as usize * 31 + at * 7 + (at >> 8)) as u8
}

/// The frame with this number.
pub fn frame(template: &Template, number: u32, payload: usize) -> Vec<u8> {
    let mut frame = vec![0; template.frame_len(row(), payload)];
    for (at, to) in frame[template.len()..][..payload].iter_mut().enumerate() {
        *to = byte(number, at);
    }
    let bth = BthFields { psn: Psn::new(number), ..BthFields::default() };
    template.finish(&mut frame, row(), payload, bth);
    frame
}

/// Writes it into the link's room, if there is any.
pub fn commit(link: &mut Box<dyn Link>, template: &Template, number: u32, payload: usize) -> bool {
    let frame = frame(template, number, payload);
    let Some(room) = link.room() else { return false };
    assert!(room.bytes.len() >= FRAME_LEN_MAX);
    room.bytes[..frame.len()].copy_from_slice(&frame);
    link.commit(Written::frame(frame.len()));
    true
}

/// Takes what is there. Checks each of our frames and returns their numbers and payload lengths.
pub fn take(link: &mut Box<dyn Link>, budget: usize) -> Result<Vec<(u32, usize)>, LinkError> {
    let mut taken = Vec::new();
    let mut lent = 0;
    let done = link.receive(budget, &mut |frame, rx| {
        lent += 1;
        if let Some(number) = check(frame, rx) {
            taken.push(number);
        }
        // What is left in the buffer does not matter.
        frame.fill(0xEE);
    });
    if let Ok(count) = done {
        assert_eq!(count, lent, "what `receive` returns is what it lent");
        assert!(count <= budget);
    }
    // What came before an error was lent.
    if taken.is_empty() { done.map(|_| taken) } else { Ok(taken) }
}

/// Number and payload length of a frame of ours; `None`: it is the kernel's (neighbour discovery and the like).
fn check(frame: &[u8], rx: Rx) -> Option<(u32, usize)> {
    let packet = parse(frame).ok()?;
    assert!(packet.icrc_valid(), "rx {rx:?}, frame {frame:02x?}");
    let number = packet.bth.psn().get();
    for (at, got) in packet.payload().iter().enumerate() {
        assert_eq!(*got, byte(number, at), "frame {number}, byte {at}");
    }
    assert_eq!(packet.bth.dest_qpn().get(), 17);
    Some((number, packet.payload().len()))
}

/// Waits until the link has something for us, as its trait says.
pub fn wait(link: &mut Box<dyn Link>, flags: PollFlags, patience: Duration) -> bool {
    if !link.may_wait() {
        return true;
    }
    let fd = link.fd().expect("a two-way link can be waited for");
    let timeout = Timespec::try_from(patience).unwrap();
    poll(&mut [PollFd::new(&fd, flags)], Some(&timeout)).unwrap() != 0
}

/// Takes frames until so many of ours have come.
pub fn collect(link: &mut Box<dyn Link>, count: usize) -> Vec<(u32, usize)> {
    let deadline = Instant::now() + PATIENCE;
    let mut all = Vec::new();
    while all.len() < count {
        let taken = take(link, 64).unwrap();
        if taken.is_empty() {
            assert!(Instant::now() < deadline, "{} of {count} frames came", all.len());
            wait(link, PollFlags::IN, PATIENCE);
        }
        all.extend(taken);
    }
    all
}
