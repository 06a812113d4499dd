//! The driver's register map against the device's table, and the driver's register writes against
//! what the device accepts. The two share no code, so a slip in either shows here.

use std::net::Ipv6Addr;

use softrnic_device::ernic::{self, Profile, ROWS, Register, Section};
use softrnic_device::{Memory, Nic, Ram};
use softrnic_driver::{
    DeviceConfig, DmaBuffer, DmaError, Ernic, Local, Map, Platform, QpConfig, QpNumber, REGISTERS,
    RegionAccess, RegionConfig, Remote, Request, registers,
};
use softrnic_engine::REASON_ROWS;

const MEMORY_BASE: u64 = 0x1_0000_0000;

#[test]
fn the_driver_names_every_register_of_the_device_at_its_offset() {
    let mut table: Vec<_> = ROWS.iter().map(|row| (row.name, row.offset)).collect();
    table.sort_by_key(|(_, offset)| *offset);
    assert_eq!(REGISTERS, table);
}

#[test]
fn both_sides_find_a_queue_pairs_registers_at_the_same_address() {
    for (profile, map) in [(Profile::V4_0, Map::V4_0), (Profile::V4_0_SILICON, Map::V4_0_SILICON)] {
        let device = ernic::Map { profile, num_qp: 2048 };
        for (name, offset) in REGISTERS.iter().filter(|(_, offset)| *offset >= 0x18_0000) {
            let row = Register::by_name(name).map(|(register, _)| register.row());
            let first = if row.map(|row| row.section) == Some(Section::Qp) { 1 } else { 2 };
            for number in [first, 2, 31, 32, 255, 256, 1024, 2047] {
                let register = registers::Register { name, offset: *offset };
                let found = device.locate(map.of_qp(QpNumber::new(number), register).offset);
                let found = found.map(|at| (at.register.row().name, at.index));
                assert_eq!(found, Some((*name, number)), "{}", profile.name);
            }
        }
    }
}

#[test]
fn a_whole_life_of_a_connection_writes_nothing_that_the_device_refuses() {
    for (profile, map) in [(Profile::V4_0, Map::V4_0), (Profile::V4_0_SILICON, Map::V4_0_SILICON)] {
        let mut driver = Ernic::bring_up(Model::new(profile), map, &config()).expect("answers");
        let region = RegionConfig {
            pd: 3,
            va: 0x7000_1000,
            bus: MEMORY_BASE,
            len: 1 << 33,
            access: RegionAccess::ReadWrite,
            key: 0x5A,
        };
        let region = driver.register_region(&region).expect("room");
        for _round in 0..2 {
            let qp = driver.create_qp(&QpConfig { pd: 3, ..QpConfig::default() }).expect("room");
            assert_eq!(qp, QpNumber::new(2));
            driver.connect_qp(qp, &peer()).expect("valid");
            for wrid in 0..3 {
                driver.post(qp, &Request::send(wrid, Local::Inline(b"x"))).expect("room");
            }
            driver.ring(qp).expect("exists");
            // Nobody answers: what was announced fails, in order.
            driver.flush_qp(qp).expect("the device comes to rest");
            let mut done = [softrnic_driver::Completion::default(); 4];
            assert_eq!(driver.poll_completions(qp, &mut done), Ok(3));
            let done: Vec<_> = done[..3].iter().map(|done| (done.wrid, done.failed)).collect();
            assert_eq!(done, [(0, true), (1, true), (2, true)]);
            driver.recover_qp(qp).expect("at rest");
            driver.connect_qp(qp, &peer()).expect("valid");
            let status = driver.status(qp).expect("exists");
            assert!(status.is_idle() && !status.is_fatal());
            assert_eq!((status.sq_producer, status.cq_head, status.rq_producer), (0, 0, 0));
            assert_eq!((status.send_psn, status.last_request_psn), (0x123, 0x455));
            driver.destroy_qp(qp).expect("at rest");
        }
        driver.deregister_region(region).expect("ours");
        driver.take_interrupts().expect("answers");
        let model = driver.shut_down();
        assert_eq!(model.refusals(), [], "{}", profile.name);
    }
}

fn config() -> DeviceConfig {
    DeviceConfig {
        mac: [2, 0, 0, 0, 0, 1],
        ipv4: [10, 0, 0, 1].into(),
        ipv6: Ipv6Addr::new(0xFE80, 0, 0, 0, 0, 0, 0, 1),
        interrupt_mask: 0x1FB,
        wait_looks: 10,
        ..DeviceConfig::default()
    }
}

fn peer() -> Remote {
    let ip = Ipv6Addr::new(0xFE80, 0, 0, 0, 0, 0, 0, 2).into();
    Remote { mac: [2, 0, 0, 0, 0, 2], ip, qpn: 2, send_psn: 0x123, receive_psn: 0x456 }
}

/// The device model as a platform, with no link.
struct Model {
    nic: Nic<ernic::Ernic, Ram>,
    used: usize,
}

impl Model {
    fn new(profile: Profile) -> Self {
        let config = ernic::ErnicConfig { profile, ..ernic::ErnicConfig::default() };
        Self { nic: Nic::ernic(config, Ram::new(MEMORY_BASE, 4 << 20)), used: 0 }
    }

    /// What the device has refused so far, by name.
    fn refusals(&self) -> Vec<(&'static str, u64)> {
        REASON_ROWS
            .iter()
            .map(|row| {
                let faults = self.nic.device.faults()[row.reason as usize];
                (row.name, self.nic.engine.refused()[row.reason as usize] + faults)
            })
            .filter(|(_, count)| *count > 0)
            .collect()
    }
}

impl Platform for Model {
    fn read32(&mut self, offset: u32) -> u32 {
        self.nic.read32(offset)
    }

    fn write32(&mut self, offset: u32, value: u32) {
        self.nic.write32(offset, value);
    }

    fn dma_alloc(&mut self, len: usize, align: usize) -> Option<DmaBuffer> {
        let start = self.used.next_multiple_of(align);
        self.used = start + len;
        let bus = MEMORY_BASE + start as u64;
        self.nic.memory.slice(bus, len).is_ok().then_some(DmaBuffer { bus, len })
    }

    fn dma_free(&mut self, _: DmaBuffer) {}

    fn dma_read(&mut self, bus: u64, out: &mut [u8]) -> Result<(), DmaError> {
        let len = out.len();
        self.nic.memory.read(bus, out).map_err(|_| DmaError { bus, len })
    }

    fn dma_write(&mut self, bus: u64, bytes: &[u8]) -> Result<(), DmaError> {
        let len = bytes.len();
        self.nic.memory.write(bus, bytes).map_err(|_| DmaError { bus, len })
    }

    fn pause(&mut self) {}
}
