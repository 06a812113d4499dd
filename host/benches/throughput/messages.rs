//! A whole message between two ERNIC devices on one thread: driver, doorbell, work queue entry,
//! frame, receive, acknowledgement, completion, driver. Against copying and checksumming its bytes
//! once at each end.

use std::hint::black_box;

use softrnic_device::ernic::ErnicConfig;
use softrnic_driver::{
    Completion, DeviceConfig, Ernic, Local, Map, PathMtu, QpConfig, QpNumber, RegionAccess,
    RegionConfig, Remote, Request,
};
use softrnic_engine::packet::FRAME_LEN_MAX;
use softrnic_engine::{Nanos, Room, Rx};
use softrnic_sim::Model;

use crate::measure::minimum_ns;

/// Frames that the link hands over at once: few enough to stay in the first-level cache.
const LINK_SLOTS: usize = 4;
const MEMORY_LEN: usize = 96 << 20;
const BATCH_MAX: usize = 16;

pub(crate) fn run() {
    println!("messages: two ERNIC devices, one thread, path MTU 4096");
    println!(
        "{:>9} {:>6} {:>6}  {:>12} {:>10} {:>10}  {:>12} {:>6}",
        "operation", "bytes", "batch", "ns/message", "M msg/s", "Gbit/s", "bound ns", "ratio"
    );
    for len in [64, 4096, 65536, 1 << 20] {
        for (operation, batch) in [
            (Operation::Send, 1),
            (Operation::Send, 16),
            (Operation::Write, 16),
            (Operation::Read, 16),
        ] {
            measure(operation, len, batch);
        }
    }
    println!();
}

/// Exchanges `count` batches of 16 SENDs of 64 bytes.
pub(crate) fn exchanges(count: u64) {
    let mut pair = Pair::new(64);
    for _ in 0..count {
        pair.exchange(Operation::Send, 64, 16);
    }
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Send,
    Write,
    Read,
}

fn measure(operation: Operation, len: usize, batch: usize) {
    let mut pair = Pair::new(len);
    let packet_len = len.min(4096);
    let packets = (len / packet_len) as u64;
    let mut bytes = vec![0x5A; 5 * 4096];
    let (source, target) = bytes.split_at_mut(4096);
    // Copies between addresses that are equal modulo a page take four times as long.
    let (first, second) = target[1024..].split_at_mut(4096 + 1024);
    let mut targets = [&mut first[..packet_len], &mut second[..packet_len]];
    let of_batch = minimum_ns([
        &mut |rounds| {
            for _ in 0..rounds {
                pair.exchange(operation, len, batch);
            }
        },
        &mut |rounds| {
            for _ in 0..rounds * packets * batch as u64 {
                for end in &mut targets {
                    end.copy_from_slice(black_box(&source[..packet_len]));
                    black_box(crc32fast::hash(black_box(end)));
                }
            }
        },
    ]);
    let [ns, bound] = of_batch.map(|ns| ns / batch as f64);
    println!(
        "{:>9} {len:>6} {batch:>6}  {ns:>12.1} {:>10.2} {:>10.1}  {bound:>12.1} {:>6.2}",
        format!("{operation:?}"),
        1e3 / ns,
        len as f64 * 8.0 / ns,
        bound / ns
    );
}

struct End {
    driver: Ernic<Model>,
    qp: QpNumber,
    buffer: u64,
    rkey: u32,
}

struct Pair {
    a: End,
    b: End,
    slots: Vec<[u8; FRAME_LEN_MAX]>,
    completions: [Completion; BATCH_MAX],
}

impl Pair {
    fn new(len: usize) -> Self {
        let (mut a, mut b) = (End::new(1, len), End::new(2, len));
        a.connect(2, b.qp);
        b.connect(1, a.qp);
        let slots = vec![[0; FRAME_LEN_MAX]; LINK_SLOTS];
        Self { a, b, slots, completions: Default::default() }
    }

    /// Posts a batch at `a` and sees it through to its last completion.
    fn exchange(&mut self, operation: Operation, len: usize, batch: usize) {
        let Self { a, b, slots, completions } = self;
        let local = Local::Bus { address: a.buffer, len: len as u32 };
        for id in 0..batch as u16 {
            let request = match operation {
                Operation::Send => Request::send(id, local),
                Operation::Write => Request::write(id, local, b.buffer, b.rkey),
                Operation::Read => Request::read(id, local, b.buffer, b.rkey),
            };
            must(a.driver.post(a.qp, &request));
        }
        must(a.driver.ring(a.qp));
        let mut done = 0;
        while done < batch {
            loop {
                let sent = carry(&mut a.driver, &mut b.driver, slots);
                let answered = carry(&mut b.driver, &mut a.driver, slots);
                if matches!(operation, Operation::Send) {
                    b.take_receives();
                }
                if !sent && !answered {
                    break;
                }
            }
            let count = must(a.driver.poll_completions(a.qp, completions));
            assert!(count != 0 && completions[..count].iter().all(|c| !c.failed));
            done += count;
        }
    }
}

/// Moves everything that one device has to send to the other, in bursts of the link's slots.
fn carry(
    from: &mut Ernic<Model>,
    to: &mut Ernic<Model>,
    slots: &mut [[u8; FRAME_LEN_MAX]],
) -> bool {
    let (from, to) = (&mut from.platform_mut().nic, &mut to.platform_mut().nic);
    let mut lens = [0; LINK_SLOTS];
    let mut any = false;
    loop {
        let mut count = 0;
        while count < slots.len() {
            let mut room = Room { bytes: &mut slots[count], segments: 1, source_port: None };
            let Some(train) = from.poll_transmit(Nanos(0), &mut room) else { break };
            lens[count] = train.len;
            count += 1;
        }
        for (slot, len) in slots.iter().zip(&lens[..count]) {
            to.handle_frame(Nanos(0), &slot[..*len], Rx::default());
        }
        any |= count != 0;
        if count < slots.len() {
            return any;
        }
    }
}

impl End {
    fn new(number: u8, len: usize) -> Self {
        let device = ErnicConfig { num_qp: 8, ..ErnicConfig::default() };
        let model = Model::new(device, MEMORY_LEN);
        let config = DeviceConfig {
            mac: [2, 0, 0, 0, 0, number],
            ipv4: [192, 0, 2, number].into(),
            num_qps_enabled: 7,
            ..DeviceConfig::default()
        };
        let mut driver = must(Ernic::bring_up(model, Map::V4_0, &config));
        let buffer = must(driver.dma_alloc("message buffer", len)).bus;
        let region = must(driver.register_region(&RegionConfig {
            pd: 1,
            va: buffer,
            bus: buffer,
            len: len as u64,
            access: RegionAccess::ReadWrite,
            key: 0x5A,
        }));
        let qp = must(driver.create_qp(&QpConfig {
            sq_depth: 32,
            rq_depth: 32,
            rq_element_len: (len as u32).max(256),
            path_mtu: PathMtu::Mtu4096,
            pd: 1,
            ..QpConfig::default()
        }));
        Self { driver, qp, buffer, rkey: region.rkey }
    }

    fn connect(&mut self, peer: u8, qp: QpNumber) {
        let remote = Remote {
            mac: [2, 0, 0, 0, 0, peer],
            ip: std::net::Ipv4Addr::new(192, 0, 2, peer).into(),
            qpn: qp.get().into(),
            send_psn: 0x100,
            receive_psn: 0x100,
        };
        must(self.driver.connect_qp(self.qp, &remote));
    }

    fn take_receives(&mut self) {
        let mut count = 0;
        while let Some(received) = must(self.driver.poll_receive(self.qp)) {
            black_box(received);
            count += 1;
        }
        must(self.driver.release_receive(self.qp, count));
    }
}

/// A benchmark that cannot set up its devices has nothing to say.
fn must<T>(result: Result<T, softrnic_driver::Error>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}
