//! What two ends of a performance test tell each other over TCP: byte for byte what perftest 4.5 says (its
//! programs call themselves 5.70 or later), so that `ib_send_bw` and its sisters can be the other end.
//!
//! The client speaks first in every exchange. It knows neither NIC nor test.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, TcpStream};
use std::time::Duration;

use rustix::net::sockopt;
use softrnic_engine::PathMtu;

use super::PerfError;

/// The version that we say we are: what perftest 4.5 calls its protocol.
const VERSION: &str = "6.06";
/// The other end is asked whether it is there after so long a silence, so often, so many times.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;
/// Bytes of a version.
const VERSION_LEN: usize = 16;
/// Oldest version that exchanges all that we do.
const VERSION_MIN: f32 = 5.70;
/// Bytes after which small messages begin at the first address again, and bytes of a cache line.
pub(super) const CYCLE_BUFFER: u32 = 4096;
const CACHE_LINE: u32 = 64;
/// Bytes of the keys with their terminating 0.
const KEYS_LEN: usize = 108;
/// How long the other end may take to close after the last word.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// What an end tells of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keys {
    /// READs and atomics that this end may be asked for at a time.
    pub out_reads: u32,
    /// Queue pair number.
    pub qpn: u32,
    /// PSN of this end's first request.
    pub psn: u32,
    /// Key of its memory.
    pub rkey: u32,
    /// Where the peer may write to and read from.
    pub vaddr: u64,
    /// Its address; IPv4 as `::ffff:a.b.c.d`.
    pub gid: Ipv6Addr,
}

impl Keys {
    /// Its address.
    pub(super) fn ip(&self) -> IpAddr {
        self.gid.to_canonical()
    }

    fn encode(&self) -> [u8; KEYS_LEN] {
        let Self { out_reads, qpn, psn, rkey, vaddr, gid } = self;
        let gid = gid.octets().map(|byte| format!("{byte:02x}")).join(":");
        // A LID comes first and a shared receive queue's number last; RoCE has no LID.
        let text = format!(
            "0000:{out_reads:04x}:{qpn:06x}:{psn:06x}:{rkey:08x}:{vaddr:016x}:{gid}:{:08x}:",
            0
        );
        let mut bytes = [0; KEYS_LEN];
        let len = text.len().min(KEYS_LEN - 1);
        bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
        bytes
    }

    fn decode(bytes: &[u8; KEYS_LEN]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?.trim_end_matches('\0');
        let mut words = text.split(':');
        let mut number = || u64::from_str_radix(words.next()?, 16).ok();
        let _lid = number()?;
        let (out_reads, qpn, psn, rkey) = (number()?, number()?, number()?, number()?);
        let vaddr = number()?;
        let mut gid = [0; 16];
        for byte in &mut gid {
            *byte = u8::try_from(number()?).ok()?;
        }
        let _srqn = number()?;
        let small =
            |value: u64, max: u64| if value <= max { u32::try_from(value).ok() } else { None };
        Some(Self {
            out_reads: small(out_reads, 255)?,
            qpn: small(qpn, 0x00FF_FFFF)?,
            psn: small(psn, 0x00FF_FFFF)?,
            rkey: small(rkey, u32::MAX.into())?,
            vaddr,
            gid: gid.into(),
        })
    }
}

/// What an end measured, as both exchange it after a bandwidth test.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Measured {
    /// Bytes of a message.
    pub size: u64,
    /// Messages of a queue pair.
    pub iterations: u64,
    /// 2^20 bytes each second.
    pub mib_per_s: f64,
    /// Millions of messages each second.
    pub mega_messages_per_s: f64,
}

/// The connection.
#[derive(Debug)]
pub struct Wire {
    stream: TcpStream,
    peer: String,
    client: bool,
}

/// A machine that is gone is found out while this end waits for the other's test to end, which may take any time.
fn keep_alive(stream: &TcpStream) -> rustix::io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)
}

impl Wire {
    /// Over a connection that was made; `client` is whoever made it.
    ///
    /// # Errors
    /// The operating system's.
    pub fn new(stream: TcpStream, client: bool) -> Result<Self, PerfError> {
        let peer = match stream.peer_addr() {
            Ok(address) => address.ip().to_canonical().to_string(),
            Err(_) => "the other end".into(),
        };
        let wire = Self { stream, peer, client };
        wire.stream.set_nodelay(true).map_err(|error| wire.failed(error))?;
        keep_alive(&wire.stream).map_err(|error| wire.failed(error.into()))?;
        Ok(wire)
    }

    /// Who is at the other end, for people.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Whether this end made the connection.
    #[must_use]
    pub const fn is_client(&self) -> bool {
        self.client
    }

    fn failed(&self, source: io::Error) -> PerfError {
        PerfError::Connection { peer: self.peer.clone(), source }
    }

    fn odd(&self, said: impl Into<String>, why: &'static str) -> PerfError {
        PerfError::Protocol { peer: self.peer.clone(), said: said.into(), why }
    }

    fn say(&mut self, bytes: &[u8]) -> Result<(), PerfError> {
        self.stream.write_all(bytes).map_err(|error| self.failed(error))
    }

    fn hear<const N: usize>(&mut self) -> Result<[u8; N], PerfError> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).map_err(|error| self.failed(error))?;
        Ok(bytes)
    }

    fn swap<const N: usize>(&mut self, own: [u8; N]) -> Result<[u8; N], PerfError> {
        if self.client {
            self.say(&own)?;
            self.hear()
        } else {
            let theirs = self.hear()?;
            self.say(&own)?;
            Ok(theirs)
        }
    }

    /// Who we are, and the path MTU that both can do.
    ///
    /// # Errors
    /// The other end is too old, or is something else.
    pub fn greet(&mut self, mtu: PathMtu) -> Result<PathMtu, PerfError> {
        let mut version = [0; VERSION_LEN];
        version[..VERSION.len()].copy_from_slice(VERSION.as_bytes());
        let theirs = self.swap(version)?;
        let text = String::from_utf8_lossy(&theirs);
        let text = text.split('\0').next().unwrap_or_default();
        match text.parse::<f32>() {
            Ok(version) if version >= VERSION_MIN => {}
            Ok(_) => {
                return Err(
                    self.odd(text, "perftest 4.5 or later is wanted, which says 5.70 or more")
                );
            }
            Err(_) => {
                return Err(self.odd(text, "it is no version: is this perftest, or `rnic perf`?"));
            }
        }
        self.swap(CYCLE_BUFFER.to_be_bytes())?;
        self.swap(CACHE_LINE.to_be_bytes())?;
        // The standard's code as a decimal digit.
        let theirs = self.swap([b'0' + mtu as u8, 0])?;
        let code = theirs[0].wrapping_sub(b'0');
        let Some(theirs) = PathMtu::from_code(code) else {
            return Err(self.odd(String::from_utf8_lossy(&theirs), "it is no path MTU code"));
        };
        Ok(theirs.min(mtu))
    }

    /// Exchanges keys. The server may look at the client's first.
    ///
    /// # Errors
    /// What was said are no keys.
    pub fn hand_shake<E: From<PerfError>>(
        &mut self,
        own: impl FnOnce(Option<&Keys>) -> Result<Keys, E>,
    ) -> Result<Keys, E> {
        if self.client {
            self.say(&own(None)?.encode())?;
            Ok(self.hear_keys()?)
        } else {
            let theirs = self.hear_keys()?;
            self.say(&own(Some(&theirs))?.encode())?;
            Ok(theirs)
        }
    }

    fn hear_keys(&mut self) -> Result<Keys, PerfError> {
        let bytes = self.hear()?;
        Keys::decode(&bytes).ok_or_else(|| {
            self.odd(
                String::from_utf8_lossy(&bytes),
                "these are no keys of a RoCE queue pair; do both ends run the same test with the same flags?",
            )
        })
    }

    /// Waits until the other end is as far.
    ///
    /// # Errors
    /// It is gone.
    pub fn synchronize(&mut self, own: Keys) -> Result<(), PerfError> {
        self.hand_shake(|_| Ok::<_, PerfError>(own)).map(drop)
    }

    /// Exchanges what was measured.
    ///
    /// # Errors
    /// The other end is gone.
    pub fn report(&mut self, own: &Measured) -> Result<Measured, PerfError> {
        let size = u64::from_be_bytes(self.swap(own.size.to_be_bytes())?);
        let iterations = u64::from_be_bytes(self.swap(own.iterations.to_be_bytes())?);
        // A peak, which we do not look for.
        self.swap(own.mib_per_s.to_be_bytes())?;
        let mib_per_s = f64::from_be_bytes(self.swap(own.mib_per_s.to_be_bytes())?);
        let rate = f64::from_be_bytes(self.swap(own.mega_messages_per_s.to_be_bytes())?);
        Ok(Measured { size, iterations, mib_per_s, mega_messages_per_s: rate })
    }

    /// The last word: both say `done`.
    ///
    /// # Errors
    /// The other end is gone.
    pub fn close(mut self, own: Keys) -> Result<(), PerfError> {
        self.synchronize(own)?;
        self.say(b"done\0")?;
        self.linger();
        Ok(())
    }

    /// Waits until the other end has closed: its last message may still be on its way, and would find nobody.
    pub fn linger(mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
        let _ = self.stream.set_read_timeout(Some(CLOSE_TIMEOUT));
        let mut rest = [0; 64];
        while matches!(self.stream.read(&mut rest), Ok(1..)) {}
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[test]
    fn keys_are_108_bytes_as_perftest_prints_them() {
        let gid = "::ffff:10.0.0.2".parse().unwrap();
        let keys = Keys {
            out_reads: 16,
            qpn: 0x11,
            psn: 0xABCDEF,
            rkey: 0x1234,
            vaddr: 0x7F00_0000_1000,
            gid,
        };
        let bytes = keys.encode();
        let text = "0000:0010:000011:abcdef:00001234:00007f0000001000:\
                    00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:02:00000000:\0";
        assert_eq!(std::str::from_utf8(&bytes).unwrap(), text);
        assert_eq!(Keys::decode(&bytes), Some(keys));
        for wrong in ["", "0000:0010", "0000:0010:000011:abcdefg:", "0000:0100:1000000:0:0:0"] {
            let mut bytes = [0; KEYS_LEN];
            bytes[..wrong.len()].copy_from_slice(wrong.as_bytes());
            assert_eq!(Keys::decode(&bytes), None, "{wrong}");
        }
    }

    fn wires() -> (Wire, Wire) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        (Wire::new(near, true).unwrap(), Wire::new(far, false).unwrap())
    }

    #[test]
    fn a_machine_that_is_gone_is_noticed_within_half_a_minute() {
        let (near, far) = wires();
        for wire in [near, far] {
            assert!(sockopt::socket_keepalive(&wire.stream).unwrap());
            let idle = sockopt::tcp_keepidle(&wire.stream).unwrap();
            let interval = sockopt::tcp_keepintvl(&wire.stream).unwrap();
            let probes = sockopt::tcp_keepcnt(&wire.stream).unwrap();
            assert_eq!(idle + interval * probes, Duration::from_secs(30));
        }
    }

    #[test]
    fn both_ends_settle_on_the_smaller_mtu_and_hear_each_others_results() {
        let (mut near, mut far) = wires();
        let own =
            Measured { size: 64, iterations: 1000, mib_per_s: 1.5, mega_messages_per_s: 0.25 };
        let other = thread::spawn(move || {
            assert_eq!(far.greet(PathMtu::M4096).unwrap(), PathMtu::M1024);
            assert_eq!(far.report(&Measured::default()).unwrap(), own);
            far
        });
        assert_eq!(near.greet(PathMtu::M1024).unwrap(), PathMtu::M1024);
        assert_eq!(near.report(&own).unwrap(), Measured::default());
        other.join().unwrap();
    }

    #[test]
    fn what_is_no_perftest_is_told_so() {
        let (mut near, far) = wires();
        let other = thread::spawn(move || {
            let mut far = far;
            far.swap(*b"HTTP/1.1 400 Bad")
        });
        let text = near.greet(PathMtu::M1024).unwrap_err().to_string();
        assert!(text.contains("it is no version"), "{text}");
        other.join().unwrap().unwrap();
        let (mut near, mut far) = wires();
        let other = thread::spawn(move || far.swap(*b"5.60\0\0\0\0\0\0\0\0\0\0\0\0").map(drop));
        let text = near.greet(PathMtu::M1024).unwrap_err().to_string();
        assert!(text.contains("5.70"), "{text}");
        other.join().unwrap().unwrap();
    }
}
