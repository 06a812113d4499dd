//! Moves SEND, WRITE and READ between two ERNICs on PCI, and compares every byte. One source for a card
//! and for a virtual machine's model of one (docs/vfio-user.md).
//!
//! ```text
//! e2e/card/build FOLDER      # as a program without libraries, for a guest that has none
//! ernic_pair passive /sys/bus/pci/devices/0000:01:00.0 /dev/hugepages/rnic 2 1 100
//! ernic_pair active  /sys/bus/pci/devices/0000:01:00.0 /dev/hugepages/rnic 1 2 100
//! ernic_pair measure /sys/bus/pci/devices/0000:01:00.0 /dev/hugepages/rnic 1 2 10000
//! ernic_pair drain   /sys/bus/pci/devices/0000:01:00.0 /dev/hugepages/rnic 2 1 0
//! ernic_pair idle    /sys/bus/pci/devices/0000:01:00.0 /dev/hugepages/rnic 1 2 0
//! ernic_pair interrupts /sys/bus/pci/devices/0000:01:00.0 /dev/hugepages/rnic 1 2 1000
//! ernic_pair listen     /sys/bus/pci/devices/0000:01:00.0 /dev/hugepages/rnic 2 1 0
//! ```
//!
//! Arguments: what to do, the device, a file of memory on hugetlbfs (made here), the own number, the
//! peer's number, rounds. Numbers become MAC and IP addresses, 02:00:00:00:00:NN and 10.0.0.NN. All else
//! is the same on both sides, so that nothing has to be told: the active side may start first.
//! `interrupts` and `listen` sleep until the device's interrupt instead of polling: INTx where
//! `uio_pci_generic` has the device, MSI-X where `vfio-pci` has it. With `vfio-pci` an IOMMU stands between
//! device and memory; else the device is reached through its files in sysfs.

mod interrupts;

use std::error::Error;
use std::fs::File;
use std::io::{Write, stdout};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use softrnic_driver::{
    Completion, DeviceConfig, Ernic, Interrupts, Local, Map, PathMtu, Platform, QpConfig, QpNumber,
    Received, RegionAccess, RegionConfig, Remote, Request, registers,
};
use softrnic_host::assigned::AssignedDevice;
use softrnic_host::pci::{BusAddresses, CardFiles, PciCard, enable};
use softrnic_host::uio::UioInterrupt;

use crate::interrupts::Line;

type Failure = Box<dyn Error>;

/// The BAR with the registers.
const BAR: u32 = 2;
const MEMORY_LEN: u64 = 16 << 20;
const REGION_VA: u64 = 0x7000_0000_0000;
const REGION_LEN: usize = 1 << 20;
/// The first region of a device, with this key.
const RKEY: u32 = 0x5A;
/// The first queue pair after that for management.
const QP: u32 = 2;
const PSN: u32 = 0xFF_FFF0;
/// Bytes of a message in round `n`: several packets, of a length that is no multiple of anything.
const fn message_len(round: u32) -> usize {
    1 + (round as usize * 977) % 16_000
}
/// The last message.
const END: &[u8] = b"end";

/// Where in the region a round writes. As many places as receive buffers: the active side is never so far
/// ahead that it writes where the passive side still looks.
const fn place(round: u32) -> u64 {
    (round % 64) as u64 * 16384 + (round % 61) as u64
}
/// How long the other side may take.
const PATIENCE: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<(), Failure> {
    let [role, device, memory, own, peer, rounds] = arguments else {
        return Err(
            "usage: ernic_pair active|passive|measure|drain|idle|interrupts|listen DEVICE MEMORY OWN PEER ROUNDS"
                .into(),
        );
    };
    let (own, peer, rounds): (u8, u8, u32) = (own.parse()?, peer.parse()?, rounds.parse()?);
    let device = Path::new(device);
    let by_interrupt = matches!(role.as_str(), "interrupts" | "listen");
    let assigned =
        if AssignedDevice::has(device) { Some(AssignedDevice::open(device)?) } else { None };
    let line = match &assigned {
        _ if !by_interrupt => None,
        Some(assigned) => Some(Line::Msix(assigned.msix(0)?)),
        None => Some(Line::Intx(UioInterrupt::open(device)?)),
    };
    let card = open(device, assigned.as_ref(), Path::new(memory))?;
    let mut node = Node::bring_up(card, own, peer, by_interrupt)?;
    match role.as_str() {
        "interrupts" => node.interrupts(&mut line.ok_or("no interrupt line")?, rounds)?,
        "listen" => node.listen(&mut line.ok_or("no interrupt line")?)?,
        "active" => node.active(rounds)?,
        "passive" => node.passive(rounds)?,
        "measure" => node.measure(rounds)?,
        "drain" => node.drain()?,
        "idle" => {}
        other => return Err(format!("{other} is nothing to do").into()),
    }
    node.ernic.shut_down();
    say(&format!("{role} done"))
}

fn say(text: &str) -> Result<(), Failure> {
    writeln!(stdout(), "{text}")?;
    Ok(stdout().flush()?)
}

/// Registers, and memory in a file that is made here.
fn open(
    device: &Path,
    assigned: Option<&AssignedDevice>,
    memory: &Path,
) -> Result<PciCard, Failure> {
    let file = File::options().read(true).write(true).create(true).truncate(false).open(memory);
    file.and_then(|file| file.set_len(MEMORY_LEN))?;
    if let Some(assigned) = assigned {
        return Ok(assigned.card(BAR, memory)?);
    }
    enable(device)?;
    Ok(PciCard::open(&CardFiles {
        resource: device.join(format!("resource{BAR}")),
        register_offset: 0,
        memory: memory.into(),
        bus: BusAddresses::Pagemap,
    })?)
}

struct Node {
    ernic: Ernic<PciCard>,
    qp: QpNumber,
    region: u64,
    /// Payload to send, and READ data.
    local: u64,
}

impl Node {
    fn bring_up(card: PciCard, own: u8, peer: u8, by_interrupt: bool) -> Result<Self, Failure> {
        let config = DeviceConfig {
            mac: [2, 0, 0, 0, 0, own],
            ipv4: [10, 0, 0, own].into(),
            wait_looks: 10_000,
            interrupt_mask: Interrupts::COMPLETION | Interrupts::RECEIVE,
            ..DeviceConfig::default()
        };
        let mut ernic = Ernic::bring_up(card, Map::V4_0, &config)?;
        let region = ernic.dma_alloc("a region", REGION_LEN)?.bus;
        let local = ernic.dma_alloc("payload", REGION_LEN)?.bus;
        ernic.register_region(&RegionConfig {
            pd: 1,
            va: REGION_VA,
            bus: region,
            len: REGION_LEN as u64,
            access: RegionAccess::ReadWrite,
            key: RKEY as u8,
        })?;
        let qp = ernic.create_qp(&QpConfig {
            pd: 1,
            rq_element_len: 16384,
            path_mtu: PathMtu::Mtu1024,
            // Two seconds, seven times again: the peer may not be up yet.
            timeout: 19,
            rq_depth: 64,
            cq_interrupt: by_interrupt,
            rq_interrupt: by_interrupt,
            ..QpConfig::default()
        })?;
        let ip: std::net::Ipv4Addr = [10, 0, 0, peer].into();
        ernic.connect_qp(
            qp,
            &Remote {
                mac: [2, 0, 0, 0, 0, peer],
                ip: ip.into(),
                qpn: QP,
                send_psn: PSN,
                receive_psn: PSN,
            },
        )?;
        say("up")?;
        Ok(Self { ernic, qp, region, local })
    }

    /// Sends, writes and reads back; every round is another pattern.
    fn active(&mut self, rounds: u32) -> Result<(), Failure> {
        for round in 0..rounds {
            let len = message_len(round);
            let sent = pattern(round, len);
            self.put(self.local, &sent)?;
            self.finish(&Request::send(1, self.bus(self.local, len)))?;
            let written = pattern(!round, len);
            self.put(self.local, &written)?;
            let (local, remote) = (self.bus(self.local, len), REGION_VA + place(round));
            self.finish(&Request::write(2, local, remote, RKEY))?;
            let into = self.local + (REGION_LEN / 2) as u64;
            let local = self.bus(into, len);
            self.finish(&Request::read(3, local, remote, RKEY))?;
            if self.get(into, len)? != written {
                return Err(format!("round {round}: READ gave other bytes than WRITE wrote").into());
            }
        }
        self.finish(&Request::send(4, Local::Inline(END)))?;
        say(&format!(
            "{rounds} SENDs, {rounds} WRITEs, {rounds} READs, every byte read back compared"
        ))
    }

    /// Compares what arrives.
    fn passive(&mut self, rounds: u32) -> Result<(), Failure> {
        for round in 0..=rounds {
            let message = self.receive()?;
            if round > 0 {
                // The WRITE of the round before is complete: it came before this SEND.
                let before = round - 1;
                let written = self.get(self.region + place(before), message_len(before))?;
                if written != pattern(!before, written.len()) {
                    return Err(format!("round {before}: WRITE left other bytes").into());
                }
            }
            let expected =
                if round == rounds { END.to_vec() } else { pattern(round, message_len(round)) };
            if self.get(message.bus, expected.len())? != expected {
                return Err(format!("round {round}: SEND brought other bytes").into());
            }
            self.ernic.release_receive(self.qp, 1)?;
        }
        say(&format!("{rounds} SENDs and {rounds} WRITEs arrived, every byte compared"))
    }

    /// Takes what `measure` sends on the other side, up to the message that ends it.
    fn drain(&mut self) -> Result<(), Failure> {
        loop {
            let message = self.receive()?;
            let end = self.get(message.bus, END.len())? == END;
            self.ernic.release_receive(self.qp, 1)?;
            if end {
                return Ok(());
            }
        }
    }

    /// Times of register accesses and of messages as software sees them.
    fn measure(&mut self, rounds: u32) -> Result<(), Failure> {
        let platform = self.ernic.platform_mut();
        let offset = registers::XRNICCONF.offset;
        let value = platform.read32(offset);
        let mut read = timed(rounds, || {
            platform.read32(offset);
        });
        report("register read", &mut read)?;
        report("register write, posted", &mut timed(rounds, || platform.write32(offset, value)))?;
        let start = Instant::now();
        (0..rounds).for_each(|_| platform.write32(offset, value));
        platform.read32(offset);
        rate("register writes and one read", rounds, start.elapsed())?;
        let mut failed = Ok(());
        let mut message = timed(rounds.min(2000), || {
            if failed.is_ok() {
                failed = self.finish(&Request::send(1, Local::Inline(b"sixteen bytes ..")));
            }
        });
        failed?;
        report("SEND of 16 bytes, doorbell to completion", &mut message)?;
        let (mut posted, mut done) = (0u32, 0u32);
        let (total, start) = (rounds.min(20_000), Instant::now());
        let mut completions = [Completion::default(); 64];
        while done < total {
            let before = posted;
            while posted < total && posted - done < 60 && posted - before < 16 {
                self.ernic.post(self.qp, &Request::send(1, Local::Inline(b"sixteen bytes ..")))?;
                posted += 1;
            }
            self.ernic.ring(self.qp)?;
            let count = self.ernic.poll_completions(self.qp, &mut completions)?;
            if completions[..count].iter().any(|completion| completion.failed) {
                return Err("a SEND failed".into());
            }
            done += count as u32;
            if start.elapsed() > PATIENCE {
                return Err(format!("{done} of {total} SENDs are done").into());
            }
        }
        rate("SENDs of 16 bytes, 16 to a doorbell", total, start.elapsed())?;
        self.finish(&Request::send(4, Local::Inline(END)))
    }

    fn finish(&mut self, request: &Request<'_>) -> Result<(), Failure> {
        self.ernic.post(self.qp, request)?;
        self.ernic.ring(self.qp)?;
        let mut done = [Completion::default()];
        let start = Instant::now();
        while self.ernic.poll_completions(self.qp, &mut done)? == 0 {
            if start.elapsed() > PATIENCE {
                let status = self.ernic.read_qp(self.qp, registers::STATQP);
                return Err(format!("{:?} is not done; STATQP {status:#x}", request.opcode).into());
            }
            std::thread::yield_now();
        }
        if done[0].failed {
            let status = self.ernic.read_qp(self.qp, registers::STATQP);
            return Err(format!("{:?} failed; STATQP {status:#x}", request.opcode).into());
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<Received, Failure> {
        let start = Instant::now();
        loop {
            if let Some(message) = self.ernic.poll_receive(self.qp)? {
                return Ok(message);
            }
            if start.elapsed() > PATIENCE {
                return Err("nothing arrives".into());
            }
            std::thread::yield_now();
        }
    }

    const fn bus(&self, address: u64, len: usize) -> Local<'static> {
        Local::Bus { address, len: len as u32 }
    }

    fn put(&mut self, bus: u64, bytes: &[u8]) -> Result<(), Failure> {
        Ok(self.ernic.platform_mut().dma_write(bus, bytes)?)
    }

    fn get(&mut self, bus: u64, len: usize) -> Result<Vec<u8>, Failure> {
        let mut bytes = vec![0; len];
        self.ernic.platform_mut().dma_read(bus, &mut bytes)?;
        Ok(bytes)
    }
}

fn pattern(seed: u32, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

fn timed(rounds: u32, mut what: impl FnMut()) -> Vec<Duration> {
    let once = |_| {
        let start = Instant::now();
        what();
        start.elapsed()
    };
    (0..rounds).map(once).collect()
}

fn report(what: &str, times: &mut [Duration]) -> Result<(), Failure> {
    times.sort_unstable();
    let at = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or_default();
    say(&format!("{what}: p50 {:?}, p99 {:?}, {} times", at(50), at(99), times.len()))
}

fn rate(what: &str, count: u32, time: Duration) -> Result<(), Failure> {
    say(&format!("{what}: {:.0} per second", f64::from(count) / time.as_secs_f64()))
}
