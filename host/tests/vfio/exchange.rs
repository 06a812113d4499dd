//! Two guests, each with the driver over vfio-user, move data between their ERNICs.

use softrnic_driver::{
    Completion, DeviceConfig, Ernic, IndexSource, Interrupts, Local, Map, PathMtu, Platform,
    QpConfig, QpNumber, Region, RegionAccess, RegionConfig, Remote, Request,
};
use softrnic_host::vfio::wire::{CONFIG_REGION, Command, IRQ_INTX, irq_set};

use crate::bench::Bench;
use crate::client::irq_body;
use crate::guest::{Guest, interrupt_target, wait_for};

const PD: u32 = 5;
const LEN: usize = 10_000;

pub struct Node {
    pub ernic: Ernic<Guest>,
    pub qp: QpNumber,
    pub region: Region,
    pub region_bus: u64,
    number: u8,
}

impl Node {
    pub fn new(guest: Guest, number: u8) -> Self {
        let config = DeviceConfig {
            mac: [2, 0, 0, 0, 0, number],
            ipv4: [10, 0, 0, number].into(),
            interrupt_mask: Interrupts::COMPLETION | Interrupts::RECEIVE | Interrupts::FATAL,
            ..DeviceConfig::default()
        };
        let mut ernic = Ernic::bring_up(guest, Map::V4_0, &config).unwrap();
        let buffer = ernic.dma_alloc("a region", 1 << 16).unwrap();
        let region = RegionConfig {
            pd: PD,
            va: 0x7000_0000_0000,
            bus: buffer.bus,
            len: buffer.len as u64,
            access: RegionAccess::ReadWrite,
            key: 0x5A,
        };
        let region = ernic.register_region(&region).unwrap();
        let qp = ernic
            .create_qp(&QpConfig {
                pd: PD,
                rq_element_len: 16384,
                path_mtu: PathMtu::Mtu1024,
                cq_interrupt: true,
                rq_interrupt: true,
                index_source: IndexSource::Memory,
                ..QpConfig::default()
            })
            .unwrap();
        Self { ernic, qp, region, region_bus: buffer.bus, number }
    }

    pub fn connect(&mut self, peer: &Self) {
        let remote = Remote {
            mac: [2, 0, 0, 0, 0, peer.number],
            ip: std::net::Ipv4Addr::new(10, 0, 0, peer.number).into(),
            qpn: peer.qp.get().into(),
            send_psn: 0xFF_FFF0 + u32::from(self.number),
            receive_psn: 0xFF_FFF0 + u32::from(peer.number),
        };
        self.ernic.connect_qp(self.qp, &remote).unwrap();
    }

    /// A buffer with bytes that follow from the seed.
    pub fn filled(&mut self, len: usize, seed: u8) -> (u64, Vec<u8>) {
        let bytes: Vec<u8> =
            (0..len).map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed).collect();
        let buffer = self.ernic.dma_alloc("payload", len).unwrap();
        self.ernic.platform_mut().dma_write(buffer.bus, &bytes).unwrap();
        (buffer.bus, bytes)
    }

    pub fn bytes(&mut self, bus: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.ernic.platform_mut().dma_read(bus, &mut bytes).unwrap();
        bytes
    }

    pub fn post(&mut self, request: &Request<'_>) {
        self.ernic.post(self.qp, request).unwrap();
        self.ernic.ring(self.qp).unwrap();
    }

    /// Waits for the interrupt of a cause, and takes it.
    pub fn wait(&mut self, cause: u32) -> Interrupts {
        loop {
            self.ernic.platform_mut().wait_for_interrupt();
            let interrupts = self.ernic.take_interrupts().unwrap();
            if interrupts.status & cause != 0 {
                return interrupts;
            }
        }
    }

    /// Waits for one completion; nothing but the interrupt is looked at until it comes.
    pub fn completion(&mut self) -> Completion {
        let interrupts = self.wait(Interrupts::COMPLETION);
        assert_eq!(interrupts.completions().collect::<Vec<_>>(), [self.qp]);
        let mut done = [Completion::default(); 1];
        assert_eq!(self.ernic.poll_completions(self.qp, &mut done).unwrap(), 1);
        done[0]
    }
}

pub fn pair(bench: &Bench) -> (Node, Node) {
    let mut a = Node::new(Guest::boot(&bench.paths[0]), 1);
    let mut b = Node::new(Guest::boot(&bench.paths[1]), 2);
    a.connect(&b);
    b.connect(&a);
    (a, b)
}

#[test]
fn send_write_and_read_cross_between_two_guests_and_every_completion_interrupts() {
    let bench = Bench::start(2);
    let (mut a, mut b) = pair(&bench);
    for round in 0..20u16 {
        let (address, sent) = a.filled(LEN, round as u8);
        a.post(&Request::send(round, Local::Bus { address, len: LEN as u32 }));
        let done = a.completion();
        assert_eq!((done.wrid, done.failed), (round, false));
        b.wait(Interrupts::RECEIVE);
        let message = b.ernic.poll_receive(b.qp).unwrap().expect("its interrupt came");
        assert!(b.bytes(message.bus, LEN) == sent, "SEND {round}");
        b.ernic.release_receive(b.qp, 1).unwrap();

        let (address, written) = a.filled(LEN, !(round as u8));
        let (va, rkey) = (b.region.va + 3, b.region.rkey);
        let local = Local::Bus { address, len: LEN as u32 };
        a.post(&Request::write(100 + round, local, va, rkey));
        assert!(!a.completion().failed);
        let region_bus = b.region_bus + 3;
        assert!(b.bytes(region_bus, LEN) == written, "WRITE {round}");

        let into = a.ernic.dma_alloc("READ data", LEN).unwrap();
        let local = Local::Bus { address: into.bus, len: LEN as u32 };
        a.post(&Request::read(200 + round, local, va, rkey));
        assert!(!a.completion().failed);
        assert!(a.bytes(into.bus, LEN) == written, "READ {round}");
    }
    drop((a.ernic.shut_down(), b.ernic.shut_down()));
    for device in bench.stop() {
        assert_eq!(device.nic.memory.refused(), Default::default());
        assert_eq!(device.server.counters().refused, 0);
        assert!(device.server.interrupts().msix >= 20);
    }
}

#[test]
fn intx_triggers_once_masks_itself_and_triggers_again_while_the_line_is_up() {
    let bench = Bench::start(2);
    let (mut a, _b) = pair(&bench);
    let target = interrupt_target();
    a.ernic.platform_mut().client.set_target(IRQ_INTX, &target).unwrap();
    let unmask = irq_body(irq_set::DATA_NONE | irq_set::UNMASK, IRQ_INTX, 0, 1);
    a.post(&Request::send(1, Local::Inline(b"interrupt me")));
    assert_eq!(wait_for(&target, 20), Some(1));
    let client = &mut a.ernic.platform_mut().client;
    assert_ne!(client.read32(CONFIG_REGION, 4) >> 16 & 1 << 3, 0, "Status shows it");
    assert_eq!(wait_for(&target, 0), None, "masked");
    client.request(Command::SetIrqs, &unmask, &[]).unwrap();
    assert_eq!(wait_for(&target, 20), Some(1), "still up");
    // Taken: the line goes down, and unmasking triggers nothing.
    a.ernic.take_interrupts().unwrap();
    let client = &mut a.ernic.platform_mut().client;
    client.request(Command::SetIrqs, &unmask, &[]).unwrap();
    assert_eq!(client.read32(CONFIG_REGION, 4) >> 16 & 1 << 3, 0);
    assert_eq!(wait_for(&target, 0), None);
    // MSI-X was told of the first one as well.
    a.ernic.platform_mut().wait_for_interrupt();
    // Interrupt Disable: the status is shown, the line stays down.
    let client = &mut a.ernic.platform_mut().client;
    client.write(CONFIG_REGION, 4, &0x406u16.to_le_bytes()).unwrap();
    a.post(&Request::send(2, Local::Inline(b"but not now")));
    a.ernic.platform_mut().wait_for_interrupt();
    let client = &mut a.ernic.platform_mut().client;
    assert_ne!(client.read32(CONFIG_REGION, 4) >> 16 & 1 << 3, 0);
    assert_eq!(wait_for(&target, 0), None);
    client.write(CONFIG_REGION, 4, &6u16.to_le_bytes()).unwrap();
    assert_eq!(wait_for(&target, 20), Some(1));
}

#[test]
fn a_vector_that_gets_its_target_late_is_told_and_pending_until_then() {
    let bench = Bench::start(2);
    let (mut a, _b) = pair(&bench);
    let client = &mut a.ernic.platform_mut().client;
    let off = irq_body(irq_set::DATA_NONE | irq_set::TRIGGER, 2, 0, 0);
    client.request(Command::SetIrqs, &off, &[]).unwrap();
    a.post(&Request::send(1, Local::Inline(b"pending")));
    // INTx tells when it happened.
    let intx = interrupt_target();
    a.ernic.platform_mut().client.set_target(IRQ_INTX, &intx).unwrap();
    assert_eq!(wait_for(&intx, 20), Some(1));
    let client = &mut a.ernic.platform_mut().client;
    assert_eq!(client.read32(0, 0x800), 1, "the pending bit");
    let late = interrupt_target();
    client.set_target(2, &late).unwrap();
    assert_eq!(wait_for(&late, 0), Some(1));
    assert_eq!(client.read32(0, 0x800), 0);
}

#[test]
fn with_bus_mastering_off_the_device_reaches_nothing() {
    let bench = Bench::start(2);
    let (mut a, mut b) = pair(&bench);
    let (address, _) = a.filled(64, 7);
    let before = b.bytes(b.region_bus, 64);
    let client = &mut b.ernic.platform_mut().client;
    client.write(CONFIG_REGION, 4, &2u16.to_le_bytes()).unwrap();
    let (va, rkey) = (b.region.va, b.region.rkey);
    a.post(&Request::write(1, Local::Bus { address, len: 64 }, va, rkey));
    assert!(a.completion().failed, "the peer cannot place it");
    let region_bus = b.region_bus;
    assert_eq!(b.bytes(region_bus, 64), before);
    drop((a, b));
    let devices = bench.stop();
    assert!(devices[1].nic.memory.refused().not_bus_master > 0);
}

#[test]
fn memory_that_was_unmapped_is_out_of_reach_at_once() {
    let bench = Bench::start(2);
    let (mut a, mut b) = pair(&bench);
    let (address, _) = a.filled(64, 7);
    let client = &mut b.ernic.platform_mut().client;
    client.unmap(crate::guest::RAM_BASE, crate::guest::RAM_LEN).unwrap();
    let (va, rkey) = (b.region.va, b.region.rkey);
    a.post(&Request::write(1, Local::Bus { address, len: 64 }, va, rkey));
    assert!(a.completion().failed);
    let region_bus = b.region_bus;
    assert_eq!(b.bytes(region_bus, 64), [0; 64]);
    drop((a, b));
    assert!(bench.stop()[1].nic.memory.refused().unmapped > 0);
}
