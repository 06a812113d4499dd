//! What this machine offers of what the product can use: rights, kernel features, tools.
//!
//! Each row of the table tries the thing itself and cleans up after itself; nothing is inferred from
//! a version. Prints nothing.
#![allow(unsafe_code, reason = "two kernel features can be tried by unsafe calls only")]

use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::io_uring::{io_uring_params, io_uring_setup};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// What trying has shown. Both carry a few words of detail.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finding {
    /// It can be used.
    Found(String),
    /// It cannot.
    Missing(String),
}

/// One thing that the product can use.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// Its name.
    pub name: &'static str,
    /// What it is needed for.
    pub needed_for: &'static str,
    /// What to do where it is missing.
    pub way_out: &'static str,
    look: fn() -> io::Result<Finding>,
}

impl Probe {
    /// Tries it.
    ///
    /// # Errors
    /// It could not even be tried.
    pub fn look(&self) -> io::Result<Finding> {
        (self.look)()
    }
}

macro_rules! probes {
    ($($name:literal $look:expr, $needed_for:literal, $way_out:literal;)*) => {
        /// The table, in the order of interest.
        pub const PROBES: &[Probe] = &[$(Probe {
            name: $name, needed_for: $needed_for, way_out: $way_out, look: $look,
        }),*];
    };
}

// "planned" marks what no command uses yet.
probes! {
    "root" root,
        "PCI resource files (example ernic_card)",
        "run with sudo, or give your user the resource file";
    "CAP_NET_RAW" || capability(13),
        "planned links on network interfaces",
        "sudo setcap cap_net_raw+ep on the binary; in a container, --cap-add NET_RAW";
    "CAP_NET_ADMIN" || capability(12),
        "planned TAP links, AF_XDP links",
        "sudo setcap cap_net_admin+ep on the binary; in a container, --cap-add NET_ADMIN";
    "CAP_SYS_ADMIN" || capability(21),
        "bus addresses of huge pages (example ernic_card with pagemap)",
        "run as root, or give the bus address by hand";
    "huge pages" huge_pages,
        "memory that a card can reach (example ernic_card)",
        "echo 64 | sudo tee /proc/sys/vm/nr_hugepages; sudo mount -t hugetlbfs none /dev/hugepages";
    "TUN device" tun_device,
        "planned TAP links",
        "sudo modprobe tun; in a container, --device /dev/net/tun";
    "AF_PACKET" || socket_of(AddressFamily::PACKET),
        "planned links on network interfaces",
        "needs CAP_NET_RAW and a kernel with CONFIG_PACKET";
    "AF_XDP" || socket_of(AddressFamily::XDP),
        "planned fast links on network interfaces",
        "needs CAP_NET_RAW and a kernel with CONFIG_XDP_SOCKETS; AF_PACKET does the same, slower";
    "io_uring" io_uring,
        "planned fast UDP links",
        "sudo sysctl kernel.io_uring_disabled=0; container runtimes block it by seccomp profile";
    "network namespaces" network_namespace,
        "tests of links (cargo test -p softrnic-host)",
        "run as root, or inside `unshare -Urn`";
    "UDP port 4791" udp_port,
        "planned links over UDP sockets",
        "stop what uses the port (`ss -ulpn sport = 4791`), another soft RDMA device perhaps";
    "rdma_rxe" rdma_rxe,
        "planned talks with Linux' own software RDMA",
        "install the kernel's extra modules, then sudo modprobe rdma_rxe; cloud kernels often lack it";
    "tshark" || tool(&["tshark"], &["--version"]),
        "judging captures in CI; reading capture.pcapng",
        "apt install tshark";
    "scapy" scapy,
        "judging ICRCs in CI",
        "pip install scapy";
    "QEMU" || tool(&["qemu-system-x86_64"], &["--version"]),
        "planned guests with stock drivers",
        "apt install qemu-system-x86";
    "QEMU vfio-user-pci" qemu_vfio_user,
        "planned guests with our devices",
        "QEMU 10.1 or newer, built with --enable-vfio-user-client";
    "Chromium" || tool(&["chromium", "chromium-browser", "google-chrome"], &["--version"]),
        "planned judgement of report pages in CI",
        "apt install chromium";
    "valgrind" || tool(&["valgrind"], &["--version"]),
        "counting instructions when speed is measured by hand",
        "apt install valgrind";
}

fn root() -> io::Result<Finding> {
    let uid = rustix::process::geteuid();
    let detail = format!("effective user id {}", uid.as_raw());
    Ok(if uid.is_root() { Finding::Found(detail) } else { Finding::Missing(detail) })
}

/// Is a capability (by its number in linux/capability.h) in the effective set?
fn capability(bit: u32) -> io::Result<Finding> {
    effective_capabilities(&fs::read_to_string("/proc/self/status")?)
        .map(|set| if set & 1 << bit != 0 { found("effective") } else { missing("not effective") })
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no CapEff in /proc/self/status"))
}

fn huge_pages() -> io::Result<Finding> {
    let free = huge_pages_free(&fs::read_to_string("/proc/meminfo")?);
    let mounts = fs::read_to_string("/proc/mounts")?;
    let mount = mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (directory, kind) = (words.next()?, words.next()?);
        (kind == "hugetlbfs").then_some(directory)
    });
    Ok(match (free, mount) {
        (None, _) => missing("the kernel has none"),
        (Some(0), _) => missing("none free"),
        (Some(free), None) => {
            Finding::Missing(format!("{free} free, but hugetlbfs is not mounted"))
        }
        (Some(free), Some(directory)) => Finding::Found(format!("{free} free, {directory}")),
    })
}

fn tun_device() -> io::Result<Finding> {
    let path = "/dev/net/tun";
    Ok(finding(OpenOptions::new().read(true).write(true).open(path), "/dev/net/tun opens"))
}

fn socket_of(family: AddressFamily) -> io::Result<Finding> {
    // Protocol 0: nothing is ever delivered to it.
    let socket = socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, None);
    Ok(finding(socket, "a socket can be made"))
}

fn io_uring() -> io::Result<Finding> {
    let mut parameters = io_uring_params::default();
    // SAFETY: the call asks that `wq_fd` be open where ATTACH_WQ is set; no flag is set. The ring is
    // closed again when its descriptor is dropped.
    let ring = unsafe { io_uring_setup(2, &mut parameters) };
    Ok(finding(ring, "a ring can be made"))
}

fn network_namespace() -> io::Result<Finding> {
    // In a thread of its own: only that thread changes over, and the namespace goes with it.
    let tried = thread::spawn(|| {
        // SAFETY: the call is unsafe because threads may come to disagree about file descriptors or
        // file systems; NEWNET shares both, and this thread ends at once.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
    });
    let tried = tried.join().map_err(|_| io::Error::other("the trying thread panicked"))?;
    Ok(finding(tried, "one can be made"))
}

fn udp_port() -> io::Result<Finding> {
    Ok(finding(UdpSocket::bind((Ipv4Addr::LOCALHOST, 4791)), "can be bound on 127.0.0.1"))
}

fn rdma_rxe() -> io::Result<Finding> {
    if Path::new("/sys/module/rdma_rxe").exists() {
        return Ok(found("loaded"));
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let release = release.trim();
    let listed = ["modules.dep", "modules.builtin"].iter().any(|list| {
        let path = Path::new("/lib/modules").join(release).join(list);
        fs::read_to_string(path).is_ok_and(|text| text.contains("/rdma_rxe.ko"))
    });
    Ok(if listed {
        Finding::Found(format!("not loaded, but among the modules of kernel {release}"))
    } else {
        Finding::Missing(format!("not among the modules of kernel {release}"))
    })
}

fn scapy() -> io::Result<Finding> {
    tool(&["python3"], &["-c", "import scapy; print('scapy', scapy.VERSION)"])
}

fn qemu_vfio_user() -> io::Result<Finding> {
    Ok(match run("qemu-system-x86_64", &["-device", "help"]) {
        Ok(text) if text.contains("\"vfio-user-pci\"") => found("in `-device help`"),
        Ok(_) => missing("not in `-device help`"),
        Err(why) => Finding::Missing(why),
    })
}

/// The first line that the first of these programs prints.
fn tool(programs: &[&str], arguments: &[&str]) -> io::Result<Finding> {
    let mut why = String::new();
    for program in programs {
        match run(program, arguments) {
            Ok(text) => return Ok(found(text.lines().next().unwrap_or("runs").trim())),
            Err(problem) if why.is_empty() => why = problem,
            Err(_) => {}
        }
    }
    Ok(Finding::Missing(why))
}

/// What a program prints, if it ends well and soon.
fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("no {program} in PATH"),
        _ => format!("{program}: {error}"),
    })?;
    let Some(mut stdout) = child.stdout.take() else {
        return Err(format!("{program}: no output"));
    };
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = stdout.read_to_end(&mut bytes);
        // Where the receiver has given up, nobody wants it.
        let _ = sender.send(read.map(|_| bytes));
    });
    let output = receiver.recv_timeout(TOOL_LIMIT);
    if output.is_err() {
        // It may have ended in the meantime, and then there is nothing to kill.
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| format!("{program}: {error}"))?;
    match output {
        Ok(Ok(bytes)) if status.success() => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Ok(Ok(_)) => Err(format!("{program} {}: {status}", arguments.join(" "))),
        Ok(Err(error)) => Err(format!("{program}: {error}")),
        Err(_) => Err(format!("{program} does not answer within {} s", TOOL_LIMIT.as_secs())),
    }
}

fn effective_capabilities(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn huge_pages_free(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("HugePages_Free:"))?;
    line.trim().parse().ok()
}

fn found(detail: &str) -> Finding {
    Finding::Found(detail.to_owned())
}

fn missing(detail: &str) -> Finding {
    Finding::Missing(detail.to_owned())
}

fn finding<T>(tried: Result<T, impl Into<io::Error>>, detail: &str) -> Finding {
    match tried {
        Ok(_) => found(detail),
        Err(error) => Finding::Missing(error.into().to_string()),
    }
}

/// A tool that takes longer to tell its version is as good as missing.
const TOOL_LIMIT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_probe_can_be_tried_and_says_something() {
        for probe in PROBES {
            let (Finding::Found(detail) | Finding::Missing(detail)) =
                probe.look().unwrap_or_else(|error| panic!("{}: {error}", probe.name));
            assert!(!detail.is_empty(), "{}", probe.name);
            assert!(!probe.needed_for.is_empty() && !probe.way_out.is_empty(), "{}", probe.name);
        }
        let names: BTreeSet<_> = PROBES.iter().map(|probe| probe.name).collect();
        assert_eq!(names.len(), PROBES.len());
    }

    #[test]
    fn a_busy_port_is_missing_and_a_free_one_is_found() {
        let _busy = UdpSocket::bind((Ipv4Addr::LOCALHOST, 4791));
        let Finding::Missing(detail) = udp_port().expect("can be tried") else {
            panic!("the port is ours, so it cannot be bound again");
        };
        assert!(detail.contains("in use"), "{detail}");
    }

    #[test]
    fn a_tool_is_its_first_line_and_a_missing_one_is_named() {
        assert_eq!(tool(&["nonesuch-tool", "echo"], &["one\ntwo"]).expect("tried"), found("one"));
        let nowhere = tool(&["nonesuch-tool", "nonesuch-2"], &[]).expect("tried");
        assert_eq!(nowhere, missing("no nonesuch-tool in PATH"));
        let Finding::Missing(failed) = tool(&["false"], &[]).expect("tried") else {
            panic!("`false` fails");
        };
        assert!(failed.contains("exit status: 1"), "{failed}");
    }

    #[test]
    fn the_kernels_tables_are_read() {
        let status = "Name:\trnic\nCapPrm:\t0000000000003000\nCapEff:\t0000000000002000\n";
        assert_eq!(effective_capabilities(status), Some(1 << 13));
        assert_eq!(effective_capabilities("Name:\trnic\n"), None);
        assert_eq!(huge_pages_free("HugePages_Total:  8\nHugePages_Free:   5\n"), Some(5));
        assert_eq!(huge_pages_free("MemTotal: 1 kB\n"), None);
    }
}
