//! Two ERNIC devices with their drivers on one thread, frames handed over directly: for benchmarks
//! and for tests of what a message costs.
//!
//! No link, no virtual time, no checks of bytes: those are the world's.

use softrnic_device::ernic::ErnicConfig;
use softrnic_driver::{
    Completion, DeviceConfig, Ernic, Error, Local, Map, PathMtu, QpConfig, QpNumber, RegionAccess,
    RegionConfig, Remote, Request,
};
use softrnic_engine::packet::FRAME_LEN_MAX;
use softrnic_engine::{Nanos, Room, Rx};

use crate::model::Model;
use crate::scenario::OperationKind;

/// Frames handed over at once: few enough to stay in the first-level cache.
const BURST: usize = 4;
/// Entries of each ring.
const DEPTH: u16 = 32;
/// Room for registers' buffers and rings besides the messages.
const DEVICE_MEMORY_LEN: usize = 32 << 20;

/// Two connected devices, `a` and `b`, with a message buffer each. Path MTU 4096.
#[derive(Debug)]
pub struct ErnicPair {
    a: End,
    b: End,
    len: u32,
    frames: Vec<[u8; FRAME_LEN_MAX]>,
    completions: [Completion; DEPTH as usize],
}

#[derive(Debug)]
struct End {
    driver: Ernic<Model>,
    qp: QpNumber,
    buffer: u64,
    rkey: u32,
}

impl ErnicPair {
    /// Messages a batch may have.
    pub const BATCH_MAX: usize = DEPTH as usize - 1;

    /// Brings two devices up for messages of `len` bytes, 1 to 8 MiB.
    ///
    /// # Errors
    /// The driver refused something.
    pub fn new(len: u32) -> Result<Self, Error> {
        let (mut a, mut b) = (End::new(1, len)?, End::new(2, len)?);
        a.connect(2, b.qp)?;
        b.connect(1, a.qp)?;
        let frames = vec![[0; FRAME_LEN_MAX]; BURST];
        Ok(Self { a, b, len, frames, completions: [Completion::default(); DEPTH as usize] })
    }

    /// Posts `batch` messages at `a`, rings once, and sees them through to their completions.
    ///
    /// # Errors
    /// The driver refused something.
    ///
    /// # Panics
    /// A message failed or got lost: nothing here can lose it.
    pub fn exchange(&mut self, operation: OperationKind, batch: usize) -> Result<(), Error> {
        let Self { a, b, len, frames, completions } = self;
        let local = Local::Bus { address: a.buffer, len: *len };
        for id in 0..batch as u16 {
            let request = match operation {
                OperationKind::Send => Request::send(id, local),
                OperationKind::Write => Request::write(id, local, b.buffer, b.rkey),
                OperationKind::Read => Request::read(id, local, b.buffer, b.rkey),
            };
            a.driver.post(a.qp, &request)?;
        }
        a.driver.ring(a.qp)?;
        let mut done = 0;
        while done < batch {
            while carry(a, b, frames) | carry(b, a, frames) {
                if operation == OperationKind::Send {
                    b.take_receives()?;
                }
            }
            let count = a.driver.poll_completions(a.qp, completions)?;
            assert!(count != 0 && completions[..count].iter().all(|c| !c.failed), "lost or failed");
            done += count;
        }
        Ok(())
    }
}

/// Moves everything that one device has to send to the other.
fn carry(from: &mut End, to: &mut End, frames: &mut [[u8; FRAME_LEN_MAX]]) -> bool {
    let (from, to) = (&mut from.driver.platform_mut().nic, &mut to.driver.platform_mut().nic);
    let mut lens = [0; BURST];
    let mut any = false;
    loop {
        let mut count = 0;
        while count < frames.len() {
            let mut room = Room { bytes: &mut frames[count], segments: 1, source_port: None };
            let Some(train) = from.poll_transmit(Nanos(0), &mut room) else { break };
            lens[count] = train.len;
            count += 1;
        }
        for (frame, len) in frames.iter().zip(&lens[..count]) {
            to.handle_frame(Nanos(0), &frame[..*len], Rx::default());
        }
        any |= count != 0;
        if count < frames.len() {
            return any;
        }
    }
}

impl End {
    fn new(number: u8, len: u32) -> Result<Self, Error> {
        let device = ErnicConfig { num_qp: 8, ..ErnicConfig::default() };
        let messages = (usize::from(DEPTH) + 2) * (len as usize).next_power_of_two();
        let model = Model::new(device, DEVICE_MEMORY_LEN + messages);
        let config = DeviceConfig {
            mac: [2, 0, 0, 0, 0, number],
            ipv4: [192, 0, 2, number].into(),
            num_qps_enabled: 7,
            ..DeviceConfig::default()
        };
        let mut driver = Ernic::bring_up(model, Map::V4_0, &config)?;
        let buffer = driver.dma_alloc("message buffer", len as usize)?.bus;
        let region = driver.register_region(&RegionConfig {
            pd: 1,
            va: buffer,
            bus: buffer,
            len: len.into(),
            access: RegionAccess::ReadWrite,
            key: 0x5A,
        })?;
        let qp = driver.create_qp(&QpConfig {
            sq_depth: DEPTH,
            rq_depth: DEPTH,
            rq_element_len: len.next_power_of_two().max(256),
            path_mtu: PathMtu::Mtu4096,
            pd: 1,
            ..QpConfig::default()
        })?;
        Ok(Self { driver, qp, buffer, rkey: region.rkey })
    }

    fn connect(&mut self, peer: u8, qp: QpNumber) -> Result<(), Error> {
        let remote = Remote {
            mac: [2, 0, 0, 0, 0, peer],
            ip: std::net::Ipv4Addr::new(192, 0, 2, peer).into(),
            qpn: qp.get().into(),
            send_psn: 0x100,
            receive_psn: 0x100,
        };
        self.driver.connect_qp(self.qp, &remote)
    }

    fn take_receives(&mut self) -> Result<(), Error> {
        let mut count = 0;
        while self.driver.poll_receive(self.qp)?.is_some() {
            count += 1;
        }
        self.driver.release_receive(self.qp, count)
    }
}
