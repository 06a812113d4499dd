//! The text that chooses a link: `KIND:WHERE[?OPTION[=VALUE][&...]]`, one row for each kind. It opens nothing.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use softrnic_engine::packet::ROCE_V2_UDP_PORT;
use thiserror::Error;

/// Which link, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkUrl {
    /// `qemu-stream:PATH[?listen]`: the UNIX socket of QEMU's `-netdev stream`.
    QemuStream {
        /// The socket.
        path: PathBuf,
        /// Wait for QEMU to connect (`server=off` there); else connect to it (`server=on` there).
        listen: bool,
    },
    /// `udp:ADDRESS[:PORT][?single]`: a plain UDP socket.
    Udp {
        /// Address of the socket, and of the NIC.
        ip: IpAddr,
        /// Port at both ends.
        port: u16,
        /// Each datagram by itself: the kernel neither cuts nor joins messages.
        single: bool,
    },
    /// `tap:NAME`: a TAP interface.
    Tap {
        /// The interface; made if it is not there.
        interface: String,
    },
    /// `packet:IFACE[?kernel-arp][&single]`: AF_PACKET on a network interface.
    Packet {
        /// The interface.
        interface: String,
        /// The NIC shares the interface's addresses, and the kernel answers ARP, NDP and ICMP.
        kernel_arp: bool,
        /// Each packet by itself, past the queueing discipline.
        single: bool,
    },
    /// `pcap:IN[?record=OUT][&paced]`: replay and record.
    Pcap {
        /// The capture whose frames arrive.
        input: PathBuf,
        /// Where what is sent is recorded.
        record: Option<PathBuf>,
        /// In the file's own time, instead of as fast as they are taken.
        paced: bool,
    },
    /// `none:`: there is no link, because a card has its own.
    None,
}

/// One kind of link, for parsing and for help.
#[derive(Debug)]
pub struct Kind {
    /// What stands before the colon.
    pub name: &'static str,
    /// The whole form.
    pub form: &'static str,
    /// One sentence.
    pub text: &'static str,
    parse: fn(&str, Options<'_>) -> Result<LinkUrl, LinkUrlError>,
}

/// Every kind of link.
pub const KINDS: &[Kind] = &[
    Kind {
        name: "qemu-stream",
        form: "qemu-stream:PATH[?listen]",
        text: "UNIX socket of QEMU's `-netdev stream`; connects, or listens for QEMU",
        parse: |rest, mut options| {
            let listen = options.flag("listen");
            options.done()?;
            Ok(LinkUrl::QemuStream { path: needed(rest, "qemu-stream:PATH")?.into(), listen })
        },
    },
    Kind {
        name: "udp",
        form: "udp:ADDRESS[:PORT][?single]",
        text: "UDP socket with the NIC's address, port 4791; needs no rights",
        parse: |rest, mut options| {
            let single = options.flag("single");
            options.done()?;
            let (ip, port) = udp_place(needed(rest, "udp:ADDRESS[:PORT]")?)?;
            Ok(LinkUrl::Udp { ip, port, single })
        },
    },
    Kind {
        name: "tap",
        form: "tap:NAME",
        text: "TAP interface, made if it is not there; the host is at its other end",
        parse: |rest, options| {
            options.done()?;
            Ok(LinkUrl::Tap { interface: interface(rest, "tap:NAME")? })
        },
    },
    Kind {
        name: "packet",
        form: "packet:IFACE[?kernel-arp][&single]",
        text: "network interface (AF_PACKET) with a MAC address of our own, or sharing the kernel's addresses",
        parse: |rest, mut options| {
            let kernel_arp = options.flag("kernel-arp");
            let single = options.flag("single");
            options.done()?;
            Ok(LinkUrl::Packet { interface: interface(rest, "packet:IFACE")?, kernel_arp, single })
        },
    },
    Kind {
        name: "pcap",
        form: "pcap:IN[?record=OUT][&paced]",
        text: "frames of a capture arrive; what is sent is recorded",
        parse: |rest, mut options| {
            let record = options.take("record").flatten().map(PathBuf::from);
            let paced = options.flag("paced");
            options.done()?;
            Ok(LinkUrl::Pcap { input: needed(rest, "pcap:IN")?.into(), record, paced })
        },
    },
    Kind {
        name: "none",
        form: "none:",
        text: "no link: for programs that drive a card, which has its own",
        parse: |rest, options| {
            options.done()?;
            if rest.is_empty() {
                return Ok(LinkUrl::None);
            }
            let (value, wanted) = (rest.to_owned(), "nothing stands behind the colon");
            Err(LinkUrlError::BadValue { option: "none", value, wanted })
        },
    },
];

/// `ADDRESS`, `ADDRESS:PORT` or `[ADDRESS]:PORT`.
fn udp_place(text: &str) -> Result<(IpAddr, u16), LinkUrlError> {
    if let Ok(ip) = text.trim_start_matches('[').trim_end_matches(']').parse() {
        return Ok((ip, ROCE_V2_UDP_PORT));
    }
    let place: SocketAddr = text.parse().map_err(|_| LinkUrlError::BadValue {
        option: "udp",
        value: text.to_owned(),
        wanted: "an IP address of this machine, as in udp:192.0.2.1, udp:192.0.2.1:4791 or udp:[2001:db8::1]:4791",
    })?;
    Ok((place.ip(), place.port()))
}

/// A name that Linux takes for an interface (`dev_valid_name` there).
fn interface(text: &str, form: &'static str) -> Result<String, LinkUrlError> {
    let text = needed(text, form)?;
    let odd = |c: char| c == '/' || c == ':' || c.is_ascii_whitespace() || c == '\0';
    if text.len() > 15 || text == "." || text == ".." || text.contains(odd) {
        return Err(LinkUrlError::BadValue {
            option: "interface",
            value: text.to_owned(),
            wanted: "a name of 1 to 15 bytes without space, slash and colon",
        });
    }
    Ok(text.to_owned())
}

/// Why a text names no link.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LinkUrlError {
    /// What stands before the colon is no kind.
    #[error("`{kind}` is no kind of link; there are {known}", kind = .0, known = kinds())]
    UnknownKind(String),
    /// Something is missing.
    #[error("a link of this kind is written {0}")]
    Missing(&'static str),
    /// An option that this kind does not have.
    #[error("`{0}` is no option of this link")]
    UnknownOption(String),
    /// An option's value cannot be read.
    #[error("`{value}` is no value for `{option}`: {wanted}")]
    BadValue {
        /// The option, or the part of the text.
        option: &'static str,
        /// What was given.
        value: String,
        /// What would do.
        wanted: &'static str,
    },
}

fn kinds() -> String {
    KINDS.iter().map(|kind| kind.form).collect::<Vec<_>>().join(", ")
}

/// What stands behind the colon, if anything does.
fn needed<'a>(rest: &'a str, form: &'static str) -> Result<&'a str, LinkUrlError> {
    if rest.is_empty() { Err(LinkUrlError::Missing(form)) } else { Ok(rest) }
}

/// The options that nobody has asked for yet.
struct Options<'a>(Vec<(&'a str, Option<&'a str>)>);

impl<'a> Options<'a> {
    fn of(text: Option<&'a str>) -> Self {
        let options = text.unwrap_or_default().split('&').filter(|option| !option.is_empty());
        Self(
            options
                .map(|option| match option.split_once('=') {
                    Some((name, value)) => (name, Some(value)),
                    None => (option, None),
                })
                .collect(),
        )
    }

    /// Takes an option out: its value, if it is there.
    fn take(&mut self, name: &str) -> Option<Option<&'a str>> {
        let at = self.0.iter().position(|(other, _)| *other == name)?;
        Some(self.0.remove(at).1)
    }

    fn flag(&mut self, name: &str) -> bool {
        self.take(name).is_some()
    }

    /// Nothing may be left.
    fn done(self) -> Result<(), LinkUrlError> {
        match self.0.first() {
            Some((name, _)) => Err(LinkUrlError::UnknownOption((*name).to_owned())),
            None => Ok(()),
        }
    }
}

impl FromStr for LinkUrl {
    type Err = LinkUrlError;

    fn from_str(text: &str) -> Result<Self, LinkUrlError> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let kind = KINDS.iter().find(|kind| kind.name == name);
        let kind = kind.ok_or_else(|| LinkUrlError::UnknownKind(name.to_owned()))?;
        let (place, options) = match rest.split_once('?') {
            Some((place, options)) => (place, Some(options)),
            None => (rest, None),
        };
        (kind.parse)(place, Options::of(options))
    }
}

/// As it can be parsed again.
impl fmt::Display for LinkUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QemuStream { path, listen } => {
                write!(f, "qemu-stream:{}", path.display())?;
                if *listen { f.write_str("?listen") } else { Ok(()) }
            }
            Self::Udp { ip, port, single } => {
                write!(f, "udp:{}", SocketAddr::new(*ip, *port))?;
                if *single { f.write_str("?single") } else { Ok(()) }
            }
            Self::None => f.write_str("none:"),
            Self::Tap { interface } => write!(f, "tap:{interface}"),
            Self::Packet { interface, kernel_arp, single } => {
                write!(f, "packet:{interface}")?;
                match (kernel_arp, single) {
                    (false, false) => Ok(()),
                    (true, false) => f.write_str("?kernel-arp"),
                    (false, true) => f.write_str("?single"),
                    (true, true) => f.write_str("?kernel-arp&single"),
                }
            }
            Self::Pcap { input, record, paced } => {
                write!(f, "pcap:{}", input.display())?;
                match (record, paced) {
                    (None, false) => Ok(()),
                    (None, true) => f.write_str("?paced"),
                    (Some(record), false) => write!(f, "?record={}", record.display()),
                    (Some(record), true) => write!(f, "?record={}&paced", record.display()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_can_be_read_again() {
        for text in [
            "qemu-stream:wire.sock",
            "qemu-stream:/run/a b.sock?listen",
            "udp:192.0.2.1:4791",
            "udp:[2001:db8::1]:4792?single",
            "tap:rnic0",
            "packet:eth0",
            "packet:eth0?kernel-arp",
            "packet:eth0?single",
            "packet:eth0?kernel-arp&single",
            "pcap:in.pcapng",
            "pcap:in.pcapng?paced",
            "pcap:in.pcapng?record=out.pcapng",
            "pcap:in.pcapng?record=out.pcapng&paced",
        ] {
            assert_eq!(text.parse::<LinkUrl>().unwrap().to_string(), text);
        }
        for kind in KINDS {
            let place = match kind.name {
                "udp" => "127.0.0.1",
                "none" => "",
                _ => "x",
            };
            let text = format!("{}:{place}", kind.name);
            assert!(text.parse::<LinkUrl>().unwrap().to_string().starts_with(&text));
        }
    }

    #[test]
    fn a_udp_port_is_roces_unless_another_is_named() {
        let place = |text: &str| match text.parse().unwrap() {
            LinkUrl::Udp { ip, port, .. } => (ip.to_string(), port),
            other => panic!("{other}"),
        };
        assert_eq!(place("udp:10.0.0.1"), ("10.0.0.1".into(), 4791));
        assert_eq!(place("udp:10.0.0.1:5000"), ("10.0.0.1".into(), 5000));
        assert_eq!(place("udp:fd00::5"), ("fd00::5".into(), 4791));
        assert_eq!(place("udp:[fd00::5]"), ("fd00::5".into(), 4791));
        assert_eq!(place("udp:[fd00::5]:1"), ("fd00::5".into(), 1));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = |text: &str| text.parse::<LinkUrl>().unwrap_err().to_string();
        assert!(wrong("tip:x").starts_with("`tip` is no kind of link; there are qemu-stream:PATH"));
        assert_eq!(wrong("qemu-stream:"), "a link of this kind is written qemu-stream:PATH");
        assert_eq!(wrong("qemu-stream:a?lisen"), "`lisen` is no option of this link");
        assert!(wrong("udp:localhost").starts_with("`localhost` is no value for `udp`"));
        assert!(wrong("udp:10.0.0.1:99999").starts_with("`10.0.0.1:99999` is no value"));
        assert!(wrong("tap:a-name-of-16-byt").contains("is no value for `interface`"));
        assert_eq!(wrong("tap:a?listen"), "`listen` is no option of this link");
    }
}
