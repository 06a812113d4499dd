//! The TCP connection over which two programs agree on a test: who waits and who calls.

use std::io::{ErrorKind, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// How long a host may take to answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a server may take to start.
const DIAL_TIMEOUT: Duration = Duration::from_secs(3);
/// Between two attempts to reach it.
const DIAL_PAUSE: Duration = Duration::from_millis(50);

/// Calls a server that may be about to start. `command` is how a person starts it.
///
/// # Errors
/// The host cannot be found, or nobody answers there.
pub(crate) fn dial(host: &str, port: u16, command: &str) -> anyhow::Result<TcpStream> {
    let addresses: Vec<SocketAddr> = (host, port)
        .to_socket_addrs()
        .with_context(|| format!("{host} is no address or name that can be found"))?
        .collect();
    let until = Instant::now() + DIAL_TIMEOUT;
    let error = loop {
        let mut last = None;
        for address in &addresses {
            match TcpStream::connect_timeout(address, CONNECT_TIMEOUT) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = Some(error),
            }
        }
        let Some(error) = last else { bail!("{host} has no address") };
        if error.kind() != ErrorKind::ConnectionRefused || Instant::now() >= until {
            break error;
        }
        std::thread::sleep(DIAL_PAUSE);
    };
    Err(error).with_context(|| {
        format!("no server at {host}, TCP port {port}; start `{command}` without HOST there first")
    })
}

/// Waits on a port for calls, of IPv4 and IPv6. `quiet`: nobody is told which port it is.
///
/// # Errors
/// The port is taken.
pub(crate) fn listen(port: u16, quiet: bool) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
        .with_context(|| format!("TCP port {port}; another one: --port"))?;
    if !quiet {
        println!("waiting for a client on TCP port {}", listener.local_addr()?.port());
        // Whoever starts the client waits for this line.
        std::io::stdout().flush()?;
    }
    Ok(listener)
}
