//! ERNICs on sockets, served by one thread as the product serves one; two of them share a wire.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use softrnic_device::Nic;
use softrnic_device::ernic::ErnicConfig;
use softrnic_engine::packet::FRAME_LEN_MAX;
use softrnic_engine::{Nanos, Room, Rx};
use softrnic_host::vfio::{CardFunction, Ernic, GuestMemory, PciState, Server};

/// Messages in one turn: small, so that every test goes through many turns.
const BUDGET: usize = 16;

/// A served device.
pub struct Device {
    pub server: Server,
    pub nic: Ernic,
    pub pci: PciState,
}

impl Device {
    pub fn new(path: &Path) -> Self {
        let mut nic =
            Nic::ernic(ErnicConfig { num_qp: 8, ..ErnicConfig::default() }, GuestMemory::new());
        let pci = PciState::new(&mut nic).unwrap();
        Self { server: Server::listen(path).unwrap(), nic, pci }
    }

    fn turn(&mut self) -> bool {
        let mut function = CardFunction { card: &mut self.nic, pci: &mut self.pci };
        self.server.turn(BUDGET, &mut function)
    }

    fn update_interrupts(&mut self) {
        let mut function = CardFunction { card: &mut self.nic, pci: &mut self.pci };
        self.server.update_interrupts(&mut function);
    }
}

/// The thread, and where its devices are.
pub struct Bench {
    pub paths: Vec<PathBuf>,
    stop: OwnedFd,
    thread: Option<JoinHandle<Vec<Device>>>,
}

impl Bench {
    /// Serves one device, or two with a wire between them.
    pub fn start(devices: usize) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let paths: Vec<_> = (0..devices)
            .map(|_| {
                let number = NEXT.fetch_add(1, Ordering::Relaxed);
                let name = format!("softrnic-vfio-{}-{number}", std::process::id());
                std::env::temp_dir().join(name)
            })
            .collect();
        let mut devices: Vec<_> = paths.iter().map(|path| Device::new(path)).collect();
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let stopped = stop.try_clone().unwrap();
        let thread = std::thread::spawn(move || {
            serve(&mut devices, &stopped);
            devices
        });
        Self { paths, stop, thread: Some(thread) }
    }

    pub fn path(&self) -> &Path {
        &self.paths[0]
    }

    /// Ends the thread and gives the devices back.
    pub fn stop(mut self) -> Vec<Device> {
        rustix::io::write(&self.stop, &1u64.to_ne_bytes()).unwrap();
        self.thread.take().unwrap().join().expect("the server panicked")
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let panicked = thread.join().is_err();
            assert!(std::thread::panicking() || !panicked, "the server panicked");
        }
    }
}

fn serve(devices: &mut [Device], stop: &OwnedFd) {
    let start = Instant::now();
    let mut stop_now = [0; 8];
    while rustix::io::read(stop, &mut stop_now).is_err() {
        let now = Nanos(start.elapsed().as_nanos() as u64);
        let mut moved = false;
        for device in &mut *devices {
            moved |= device.turn();
            if device.nic.next_deadline().is_some_and(|deadline| deadline <= now) {
                device.nic.handle_timeout(now);
            }
        }
        moved |= exchange(devices, now);
        devices.iter_mut().for_each(Device::update_interrupts);
        if !moved {
            wait(devices, stop, now);
        }
    }
}

/// Frames that can leave arrive at the other device.
fn exchange(devices: &mut [Device], now: Nanos) -> bool {
    let mut moved = false;
    let mut bytes = [0; FRAME_LEN_MAX];
    for from in 0..devices.len() {
        let to = devices.len() - 1 - from;
        loop {
            let mut room = Room { bytes: &mut bytes, segments: 1, source_port: None };
            let Some(train) = devices[from].nic.poll_transmit(now, &mut room) else { break };
            moved = true;
            if to != from {
                devices[to].nic.handle_frame(now, &bytes[..train.len], Rx::default());
            }
        }
    }
    moved
}

fn wait(devices: &mut [Device], stop: &OwnedFd, now: Nanos) {
    let deadline = devices.iter_mut().filter_map(|device| device.nic.next_deadline()).min();
    let timeout = deadline.map(|deadline| {
        let left = deadline.0.saturating_sub(now.0);
        Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as i64 }
    });
    let mut fds = vec![PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN)];
    for device in &*devices {
        let wanted = device.server.wait_for();
        fds.extend(wanted.map(|(fd, events)| PollFd::from_borrowed_fd(fd, events)));
    }
    // Interrupted: the loop looks again.
    let _ = poll(&mut fds, timeout.as_ref());
}
