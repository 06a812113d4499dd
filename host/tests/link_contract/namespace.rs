//! Network namespaces of the test's own: each is held by a thread, and gone when that ends. Nothing outside of them
//! is touched.
#![allow(unsafe_code, reason = "leaving a namespace by unshare(2) is unsafe in rustix")]

use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use rustix::thread::{UnshareFlags, gettid, unshare_unsafe};

type Job = Box<dyn FnOnce() + Send>;

/// A namespace with nothing in it but `lo`, which is up.
pub struct Namespace {
    jobs: Sender<Job>,
    /// What `ip` calls it.
    pub id: String,
}

impl Namespace {
    /// Makes one.
    pub fn new() -> Result<Self, String> {
        let (jobs, todo) = channel::<Job>();
        let (tell, told) = channel();
        thread::spawn(move || {
            // SAFETY: only this thread changes its network namespace; no file table or memory is unshared.
            let made = unsafe { unshare_unsafe(UnshareFlags::NEWNET) };
            let id = made.map(|()| gettid().as_raw_nonzero().to_string());
            if tell.send(id.map_err(|errno| format!("no network namespace: {errno}"))).is_err() {
                return;
            }
            todo.into_iter().for_each(|job| job());
        });
        let id = told.recv().map_err(|error| error.to_string())??;
        let namespace = Self { jobs, id };
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// Runs something in it.
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (tell, told) = channel();
        self.jobs.send(Box::new(move || drop(tell.send(job())))).unwrap();
        told.recv().expect("the job panicked")
    }

    /// Runs `ip` in it.
    pub fn ip(&self, arguments: &str) -> Result<(), String> {
        let words: Vec<String> = arguments.split(' ').map(str::to_owned).collect();
        let done = self.run(move || Command::new("ip").args(words).output());
        let done = done.map_err(|error| format!("ip (package iproute2): {error}"))?;
        if done.status.success() {
            return Ok(());
        }
        Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&done.stderr).trim()))
    }
}

/// Joins two namespaces by a cable: `va` with `macs[0]` in the first, `vb` in the second; both are up.
pub fn cable(a: &Namespace, b: &Namespace, macs: [&str; 2], mtu: u16) -> Result<(), String> {
    let [mac_a, mac_b] = macs;
    a.ip(&format!(
        "link add va mtu {mtu} address {mac_a} type veth peer name vb mtu {mtu} address {mac_b} netns {}",
        b.id
    ))?;
    a.ip("link set va up")?;
    b.ip("link set vb up")
}
