//! Stories of single kinds of links.

use std::fs::File;
use std::io::ErrorKind;
use std::net::{IpAddr, UdpSocket};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use softrnic_engine::packet::{Flow, Layer3, Packet, Template, build, describe, parse};
use softrnic_engine::{Nanos, Qpn};
use softrnic_host::capture::{Interface, Reader, Writer};
use softrnic_host::link::{Link, Written};

use crate::ends::{
    Family, Needs, PATIENCE, collect, commit, config, frame, ips, loopback_ips, open, open_in,
    pair, take, two_namespaces, wait,
};
use crate::namespace::Namespace;

/// A story.
pub struct Story {
    pub name: &'static str,
    pub needs: Needs,
    pub test: fn(),
}

macro_rules! stories {
    ($($needs:ident $name:ident;)*) => {
        pub const STORIES: &[Story] = &[$(Story {
            name: concat!("stories::", stringify!($name)), needs: Needs::$needs, test: $name,
        }),*];
    };
}

stories! {
    Nothing udp_infers_the_ip_id_of_a_peer_that_counts;
    Nothing udp_refuses_an_inferred_icrc_when_strict;
    Nothing udp_leaves_a_wrong_icrc_wrong;
    Nothing udp_passes_congestion_marks;
    Nothing udp_counts_what_it_cannot_carry;
    Nothing udp_needs_an_address_of_this_machine;
    Nothing qemu_stream_listens_where_nobody_does;
    Nothing pcap_replays_at_once_and_records_what_is_sent;
    Nothing pcap_keeps_the_files_time_when_paced;
    Nothing pcap_says_what_is_wrong_with_its_files;
    Namespaces udp_headers_on_the_wire_are_those_the_icrc_covers;
    Namespaces udp_and_packet_meet_on_one_cable;
    Namespaces packet_survives_an_interface_that_goes_down_and_up;
    Namespaces packet_shares_an_interface_with_the_kernel;
    Namespaces packet_puts_vlan_tags_back;
}

fn flow(from: IpAddr, to: IpAddr) -> Flow {
    Flow {
        source_mac: [2, 0, 0, 0, 0, 0xB],
        dest_mac: [2, 0, 0, 0, 0, 0xA],
        vlan_tci: None,
        source_ip: from,
        dest_ip: to,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        source_port: 4791,
        pkey: 0xFFFF,
        dest_qpn: Qpn::new(17),
    }
}

/// The UDP payload of a foreign RoCE sender's packet, whose IP header has this identification and these flags.
fn foreign(from: IpAddr, to: IpAddr, number: u32, identification: u16, flags: u16) -> Vec<u8> {
    let frame = frame(&Template::new(&flow(from, to)).unwrap(), number, 100);
    let mut described = describe(&parse(&frame).unwrap());
    if let Layer3::Ipv4(ip, _) = &mut described.layer3 {
        ip.identification = identification;
        ip.flags_offset = flags;
    }
    build(&described).unwrap()[14 + 28..].to_vec()
}

/// A link on this machine's loopback interface, and a foreign sender.
struct Foreign {
    link: Box<dyn Link>,
    socket: UdpSocket,
    ips: [IpAddr; 2],
}

impl Foreign {
    fn new(strict: bool) -> Self {
        let ips = loopback_ips();
        let mut config = config(0, ips[0]);
        config.strict_icrc = strict;
        let link = open(&format!("udp:{}", ips[0]), &config).unwrap();
        let socket = UdpSocket::bind((ips[1], 4791)).unwrap();
        Self { link, socket, ips }
    }

    fn send(&self, payload: &[u8]) {
        self.socket.send_to(payload, (self.ips[0], 4791)).unwrap();
    }

    fn send_numbered(&self, number: u32, identification: u16, flags: u16) {
        self.send(&foreign(self.ips[1], self.ips[0], number, identification, flags));
    }

    /// The next frame: what is asked of it, and whether the link has verified its ICRC.
    fn next<T>(&mut self, ask: impl Fn(&Packet<'_>) -> T) -> (T, bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < deadline, "no frame came");
            let mut answer = None;
            let done = self.link.receive(1, &mut |frame, rx| {
                let packet = parse(frame).unwrap();
                answer = Some((ask(&packet), rx.icrc_verified));
            });
            done.unwrap();
            match answer {
                Some(answer) => return answer,
                None => assert!(wait(&mut self.link, PollFlags::IN, PATIENCE)),
            }
        }
    }
}

/// Identification and flags of a frame.
fn id_and_flags(packet: &Packet<'_>) -> (u16, u16) {
    match describe(packet).layer3 {
        Layer3::Ipv4(ip, _) => (ip.identification, ip.flags_offset),
        _ => panic!("no IPv4"),
    }
}

fn udp_infers_the_ip_id_of_a_peer_that_counts() {
    let mut foreign = Foreign::new(false);
    // Counting with gaps and a wrap, with and without DF, and 0 in between.
    let headers = [
        (0u16, 0x4000u16),
        (41, 0x4000),
        (42, 0x4000),
        (43, 0x4000),
        (0xFFFF, 0x4000),
        (0, 0x4000),
        (7, 0),
        (0xA5A5, 0),
    ];
    for (number, (id, flags)) in headers.into_iter().enumerate() {
        foreign.send_numbered(number as u32, id, flags);
        let (found, verified) = foreign
            .next(|packet| (id_and_flags(packet), packet.icrc_valid(), packet.bth.psn().get()));
        // The frame has the header that its sender meant, and everybody can verify it.
        assert_eq!(found, ((id, flags), true, number as u32));
        assert!(verified);
    }
    let counters = foreign.link.counters();
    assert_eq!((counters.icrc_ip_id_inferred, counters.icrc_strict_refused), (6, 0));
}

fn udp_refuses_an_inferred_icrc_when_strict() {
    let mut foreign = Foreign::new(true);
    foreign.send_numbered(0, 0, 0x4000);
    assert_eq!(foreign.next(|packet| packet.icrc_valid()), (true, true));
    foreign.send_numbered(1, 0x1234, 0x4000);
    // The engine finds it wrong, and says so.
    assert_eq!(foreign.next(|packet| packet.icrc_valid()), (false, false));
    let counters = foreign.link.counters();
    assert_eq!((counters.icrc_ip_id_inferred, counters.icrc_strict_refused), (0, 1));
}

fn udp_leaves_a_wrong_icrc_wrong() {
    let mut other = Foreign::new(false);
    // Flips that no identification explains: the link hands the packet on as it is.
    for at in [0, 5, 11, 12, 60, 111] {
        for id in [0, 0x1234] {
            let mut payload = foreign(other.ips[1], other.ips[0], 3, id, 0x4000);
            payload[at] ^= 0x20;
            other.send(&payload);
            let deadline = Instant::now() + PATIENCE;
            let mut seen = None;
            while seen.is_none() {
                assert!(Instant::now() < deadline);
                other
                    .link
                    .receive(1, &mut |frame, rx| {
                        let valid = parse(frame).is_ok_and(|packet| packet.icrc_valid());
                        seen = Some((valid, rx.icrc_verified));
                    })
                    .unwrap();
                wait(&mut other.link, PollFlags::IN, Duration::from_millis(1));
            }
            assert_eq!(seen, Some((false, false)), "byte {at}, identification {id}");
        }
    }
    assert_eq!(other.link.counters().icrc_ip_id_inferred, 0);
    // A sender of ours whose ICRC is wrong on purpose: changing the header for the kernel does not mend it.
    let ips = loopback_ips();
    let mut a = open(&format!("udp:{}", ips[0]), &config(0, ips[0])).unwrap();
    let mut b = open(&format!("udp:{}", ips[1]), &config(1, ips[1])).unwrap();
    let mut wrong = frame(&Template::new(&flow(ips[0], ips[1])).unwrap(), 9, 64);
    let end = wrong.len();
    wrong[end - 1] ^= 1;
    for _ in 0..3 {
        a.room().unwrap().bytes[..end].copy_from_slice(&wrong);
        a.commit(Written::frame(end));
    }
    a.flush().unwrap();
    let mut seen = Vec::new();
    while seen.len() < 3 {
        assert!(wait(&mut b, PollFlags::IN, PATIENCE));
        b.receive(9, &mut |frame, rx| {
            seen.push((parse(frame).unwrap().icrc_valid(), rx.icrc_verified));
        })
        .unwrap();
    }
    assert_eq!(seen, [(false, false); 3]);
}

fn udp_passes_congestion_marks() {
    let ips = loopback_ips();
    let mut a = open(&format!("udp:{}", ips[0]), &config(0, ips[0])).unwrap();
    let mut b = open(&format!("udp:{}", ips[1]), &config(1, ips[1])).unwrap();
    let marks = [(0u8, 64u8), (0x03, 64), (0x6A, 17), (0, 255), (0x6A, 17), (0x6A, 17), (0, 64)];
    for (number, (traffic_class, hop_limit)) in marks.into_iter().enumerate() {
        let flow = Flow { traffic_class, hop_limit, ..flow(ips[0], ips[1]) };
        assert!(commit(&mut a, &Template::new(&flow).unwrap(), number as u32, 64));
    }
    a.flush().unwrap();
    let mut seen = Vec::new();
    while seen.len() < marks.len() {
        assert!(wait(&mut b, PollFlags::IN, PATIENCE));
        b.receive(100, &mut |frame, rx| {
            assert!(rx.icrc_verified);
            match describe(&parse(frame).unwrap()).layer3 {
                Layer3::Ipv4(ip, udp) => {
                    assert_eq!(udp.source_port, 4791);
                    seen.push((ip.traffic_class, ip.ttl));
                }
                _ => panic!("no IPv4"),
            }
        })
        .unwrap();
    }
    assert_eq!(seen, marks);
}

fn udp_counts_what_it_cannot_carry() {
    let ips = loopback_ips();
    let mut link = open(&format!("udp:{}", ips[0]), &config(0, ips[0])).unwrap();
    let good = flow(ips[0], ips[1]);
    let strange = [
        Flow { source_ip: ips[1], ..good },
        Flow { vlan_tci: Some(5), ..good },
        Flow {
            source_ip: "2001:db8::1".parse().unwrap(),
            dest_ip: "2001:db8::2".parse().unwrap(),
            ..good
        },
    ];
    for flow in &strange {
        assert!(commit(&mut link, &Template::new(flow).unwrap(), 0, 64));
    }
    let arp = [[0xFF; 12].as_slice(), &[8, 6], &[0; 28]].concat();
    link.room().unwrap().bytes[..arp.len()].copy_from_slice(&arp);
    link.commit(Written::frame(arp.len()));
    for len in 0..arp.len() {
        link.room().unwrap();
        link.commit(Written::frame(len));
    }
    link.flush().unwrap();
    let counters = link.counters();
    assert_eq!((counters.tx_not_carried, counters.tx_frames), (4 + arp.len() as u64, 0));
}

fn udp_needs_an_address_of_this_machine() {
    let error = |url: &str| {
        let mut config = config(0, loopback_ips()[0]);
        config.addresses.clear();
        open(url, &config).err().unwrap().to_string()
    };
    assert!(error("udp:198.51.100.77").contains("`ip address` lists"));
    assert!(error("udp:0.0.0.0").contains("name the address that peers send to"));
    let ip = loopback_ips()[0];
    let first = open(&format!("udp:{ip}"), &config(0, ip)).unwrap();
    let second = error(&format!("udp:{ip}"));
    assert!(second.starts_with(&format!("cannot open udp:{ip}:4791: ")), "{second}");
    assert!(second.contains("rdma_rxe"), "{second}");
    drop(first);
}

fn udp_headers_on_the_wire_are_those_the_icrc_covers() {
    for (family, options) in
        [(Family::V4, ""), (Family::V6, ""), (Family::V4, "?single"), (Family::V6, "?single")]
    {
        let ips = ips(family);
        let url = format!("udp:{{ip}}{options}");
        let mut ends = open_in(two_namespaces(&ips).unwrap(), &url, ips).unwrap();
        let ip = ips[1];
        let mut wire = ends.namespaces[1].run(move || open("packet:vb", &config(1, ip))).unwrap();
        ends.send(0, 0..20, 512);
        let expected: Vec<_> = (0..20).map(|number| (number, 512)).collect();
        // Every frame of ours that the kernel sent is looked at: `collect` verifies the ICRC.
        assert_eq!(collect(&mut wire, 20), expected);
        assert_eq!(collect(&mut ends.ends[1].link, 20), expected);
    }
}

fn udp_and_packet_meet_on_one_cable() {
    for family in [Family::V4, Family::V6] {
        let ips = ips(family);
        let [a, b] = two_namespaces(&ips).unwrap();
        let (ip_a, ip_b) = (ips[0], ips[1]);
        let udp = a.run(move || open(&format!("udp:{ip_a}"), &config(0, ip_a))).unwrap();
        let packet = b.run(move || open("packet:vb?kernel-arp", &config(1, ip_b))).unwrap();
        let mut ends = pair([udp, packet], ips, vec![a, b]);
        ends.introduce();
        for from in [0, 1] {
            // Super-packets cross as they are, with more packets than one call may take.
            ends.send(from, 0..100, 256);
            ends.send(from, 100..101, 64);
            let mut expected: Vec<_> = (0..100).map(|number| (number, 256)).collect();
            expected.push((100, 64));
            assert_eq!(collect(&mut ends.ends[1 - from].link, 101), expected);
        }
        let counters = [0, 1].map(|end| ends.ends[end].link.counters());
        assert_eq!(counters.map(|end| (end.tx_dropped, end.rx_length_errors)), [(0, 0); 2]);
        assert_eq!((counters[0].icrc_ip_id_inferred, counters[0].icrc_strict_refused), (0, 0));
    }
}

fn packet_survives_an_interface_that_goes_down_and_up() {
    let ips = ips(Family::V4);
    let mut ends = open_in(two_namespaces(&[]).unwrap(), "packet:{n}", ips).unwrap();
    let before = ends.ends[0].link.counters();
    ends.namespaces[0].ip("link set va down").unwrap();
    // It says so once, if at all; it is not gone.
    for _ in 0..3 {
        assert_eq!(take(&mut ends.ends[0].link, 9).unwrap(), []);
    }
    ends.send(0, 3..10, 64);
    let after = ends.ends[0].link.counters();
    assert_eq!((after.tx_frames, after.tx_dropped), (before.tx_frames, before.tx_dropped + 7));
    ends.namespaces[0].ip("link set va up").unwrap();
    ends.introduce();
    ends.send(0, 10..13, 64);
    assert_eq!(collect(&mut ends.ends[1].link, 3), [(10, 64), (11, 64), (12, 64)]);
    ends.send(1, 0..3, 64);
    assert_eq!(collect(&mut ends.ends[0].link, 3).len(), 3);
}

fn packet_shares_an_interface_with_the_kernel() {
    let ips = ips(Family::V4);
    let namespaces = two_namespaces(&ips).unwrap();
    let [here, there] = &namespaces;
    let ip = ips[0];
    let mut link = here.run(move || open("packet:va?kernel-arp", &config(0, ip))).unwrap();
    assert_eq!(link.limits().shared_mac, Some([2, 0, 0, 0, 0, 0xA]));
    let socket = |namespace: &Namespace, port: u16| {
        namespace.run(move || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect((ip, port)).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket
        })
    };
    let roce = socket(there, 4791);
    let other = socket(there, 4790);
    // ARP is answered by the kernel, which would also answer the datagram if nobody listened.
    roce.send(&foreign(ips[1], ips[0], 5, 0, 0x4000)).unwrap();
    other.send(b"nobody is there").unwrap();
    let refused = other.recv(&mut [0; 8]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert!(roce.take_error().unwrap().is_none(), "the kernel told the sender that nobody listens");
    // Of both, only RoCE came through the filter.
    let mut ports = Vec::new();
    while ports.is_empty() {
        assert!(wait(&mut link, PollFlags::IN, PATIENCE));
        link.receive(100, &mut |frame, _| {
            if frame[12..14] == [8, 0] {
                ports.push(u16::from_be_bytes([frame[36], frame[37]]));
            }
        })
        .unwrap();
    }
    assert_eq!(ports, [4791]);
}

fn packet_puts_vlan_tags_back() {
    let ips = ips(Family::V4);
    let mut ends = open_in(two_namespaces(&[]).unwrap(), "packet:{n}", ips).unwrap();
    let tagged = Flow { vlan_tci: Some(0x6123), ..ends.flow(0) };
    let longest = Family::V4.payload_max();
    assert!(commit(&mut ends.ends[0].link, &Template::new(&tagged).unwrap(), 0, longest));
    ends.ends[0].link.flush().unwrap();
    let link = &mut ends.ends[1].link;
    let mut tci = None;
    while tci.is_none() {
        assert!(wait(link, PollFlags::IN, PATIENCE));
        link.receive(100, &mut |frame, _| {
            if let Ok(packet) = parse(frame) {
                assert!(packet.icrc_valid());
                assert_eq!(packet.payload().len(), longest);
                tci = describe(&packet).tags.first().map(|tag| tag.tci);
            }
        })
        .unwrap();
    }
    assert_eq!(tci, Some(0x6123));
}

fn qemu_stream_listens_where_nobody_does() {
    let file = TestFile::new("wire.sock");
    let url = format!("qemu-stream:{}", file.0.display());
    let [ip_a, ip_b] = ips(Family::V4);
    let error = |url: &str| open(url, &config(0, ip_a)).err().unwrap().to_string();
    assert!(error(&url).contains("start QEMU with"), "nobody is there: how to get somebody");
    let listener = UnixListener::bind(&file.0).unwrap();
    assert!(error(&format!("{url}?listen")).contains("another process listens there"));
    // That process ends, and leaves its socket file behind.
    drop(listener);
    let listening = format!("{url}?listen");
    let waiting = thread::spawn(move || open(&listening, &config(0, ip_a)).unwrap());
    let deadline = Instant::now() + PATIENCE;
    let connected = loop {
        match open(&url, &config(1, ip_b)) {
            Ok(link) => break link,
            // It does not listen yet.
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        thread::yield_now();
    };
    let mut ends = pair([waiting.join().unwrap(), connected], [ip_a, ip_b], Vec::new());
    assert!(!file.0.exists(), "the socket file has done its work");
    for from in 0..2 {
        ends.send(from, 0..3, 64);
        assert_eq!(collect(&mut ends.ends[1 - from].link, 3), [(0, 64), (1, 64), (2, 64)]);
    }
}

/// A file of this test's own in the temporary folder, removed in the end.
struct TestFile(PathBuf);

impl TestFile {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("softrnic-link-{}-{name}", std::process::id())))
    }

    /// Writes a capture of frames with these numbers and times.
    fn capture(name: &str, frames: &[(u32, u64)]) -> Self {
        let file = Self::new(name);
        let interface = Interface { name: "test".into(), description: String::new() };
        let mut writer = Writer::new(File::create(&file.0).unwrap(), &[interface]).unwrap();
        let template = Template::new(&flow(ips(Family::V4)[1], ips(Family::V4)[0])).unwrap();
        for (number, time) in frames {
            writer.packet(0, Nanos(*time), &frame(&template, *number, 64), &[]).unwrap();
        }
        writer.finish().unwrap();
        file
    }

    fn url(&self, rest: &str) -> String {
        format!("pcap:{}{rest}", self.0.display())
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn pcap_replays_at_once_and_records_what_is_sent() {
    let frames: Vec<_> =
        (0..300).map(|number| (number, u64::from(number) * 1_000_000_000)).collect();
    let input = TestFile::capture("in.pcapng", &frames);
    let output = TestFile::new("out.pcapng");
    let ip = ips(Family::V4)[0];
    let url = input.url(&format!("?record={}", output.0.display()));
    let mut link = open(&url, &config(0, ip)).unwrap();
    assert_eq!(take(&mut link, 7).unwrap().len(), 7);
    let expected: Vec<_> = (7..300).map(|number| (number, 64)).collect();
    assert_eq!(collect(&mut link, 293), expected);
    // Nothing will ever come again, and nobody has to wait for it.
    assert!(link.fd().is_none());
    assert_eq!(take(&mut link, 7).unwrap(), []);
    let template = Template::new(&flow(ip, ips(Family::V4)[1])).unwrap();
    for number in 0..200 {
        while !commit(&mut link, &template, number, 100) {
            link.flush().unwrap();
        }
    }
    link.flush().unwrap();
    assert_eq!((link.counters().rx_frames, link.counters().tx_frames), (300, 200));
    drop(link);
    let recorded: Vec<_> =
        Reader::new(File::open(&output.0).unwrap()).unwrap().map(Result::unwrap).collect();
    assert_eq!(recorded.len(), 200);
    for (number, packet) in recorded.iter().enumerate() {
        assert_eq!(packet.frame, frame(&template, number as u32, 100));
    }
    assert!(recorded.is_sorted_by_key(|packet| packet.time));
    // The file is read again as it was written.
    let mut again = open(&output.url(""), &config(0, ip)).unwrap();
    assert_eq!(collect(&mut again, 200).len(), 200);
}

fn pcap_keeps_the_files_time_when_paced() {
    let times = [5_000_000_000u64, 5_030_000_000, 5_030_000_000, 5_090_000_000];
    let frames: Vec<_> = (0..).zip(times).collect();
    let input = TestFile::capture("paced.pcapng", &frames);
    let start = Instant::now();
    let mut link = open(&input.url("?paced"), &config(0, ips(Family::V4)[0])).unwrap();
    let mut came = Vec::new();
    while came.len() < times.len() {
        assert!(wait(&mut link, PollFlags::IN, PATIENCE));
        let taken = take(&mut link, 9).unwrap();
        // Readable means that a frame is due, and no frame comes before its time.
        assert!(!taken.is_empty());
        came.extend(taken.into_iter().map(|(number, _)| (number, start.elapsed())));
    }
    for ((number, after), time) in came.iter().zip(times) {
        assert!(after.as_nanos() >= u128::from(time - times[0]), "frame {number} after {after:?}");
    }
    assert_eq!(came.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(link.fd().is_none());
}

fn pcap_says_what_is_wrong_with_its_files() {
    let ip = ips(Family::V4)[0];
    let error = |url: &str| open(url, &config(0, ip)).err().unwrap().to_string();
    assert!(
        error("pcap:/nonexistent/in.pcap")
            .starts_with("cannot open pcap:/nonexistent/in.pcap: No such file")
    );
    let text = TestFile::new("text");
    std::fs::write(&text.0, "no capture at all").unwrap();
    assert!(error(&text.url("")).contains("not a capture"));
    let input = TestFile::capture("cut.pcapng", &[(0, 0), (1, 1), (2, 2)]);
    assert!(error(&input.url(&format!("?record={}", input.0.display()))).contains("another file"));
    assert!(error(&input.url("?record=/nonexistent/out")).contains("recording cannot be made"));
    // Frames before the damage come, then it is told, and it is not the other end that went away.
    let bytes = std::fs::read(&input.0).unwrap();
    std::fs::write(&input.0, &bytes[..bytes.len() - 5]).unwrap();
    let mut link = open(&input.url(""), &config(0, ip)).unwrap();
    let mut came = Vec::new();
    let error = loop {
        match take(&mut link, 1) {
            Ok(taken) if taken.is_empty() => panic!("nothing was said"),
            Ok(taken) => came.extend(taken),
            Err(error) => break error,
        }
    };
    assert_eq!(came, [(0, 64), (1, 64)]);
    assert!(error.to_string().contains("cut off") && !error.is_gone(), "{error}");
}
