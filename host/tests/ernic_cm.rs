//! Two ERNICs connect through QP1, and what crosses the link is `golden/ernic-cm.pcapng`, which foreign
//! judges read. `SOFTRNIC_WRITE_GOLDEN=1 cargo test -p softrnic-host --test ernic_cm` writes it.
#![allow(clippy::unwrap_used, reason = "a test's own helpers may panic")]

use std::fs;
use std::path::Path;

use softrnic_device::ernic::ErnicConfig;
use softrnic_driver::management::{CmMessage, CmReadyToUse, CmReply, CmRequest, FramePath};
use softrnic_driver::{
    DeviceConfig, Ernic, Local, MadConfig, Map, Platform, QpConfig, QpNumber, Remote, Request,
};
use softrnic_engine::packet::FRAME_LEN_MAX;
use softrnic_engine::{Nanos, Room, Rx};
use softrnic_host::capture::{Interface, Writer};
use softrnic_sim::Model;

struct End {
    driver: Ernic<Model>,
    qp1: QpNumber,
    qp: QpNumber,
    buffer: u64,
    number: u8,
}

impl End {
    fn new(number: u8) -> Self {
        let device = ErnicConfig { num_qp: 8, ..ErnicConfig::default() };
        let config = DeviceConfig {
            mac: [2, 0, 0, 0, 0, number],
            ipv4: [192, 0, 2, number].into(),
            num_qps_enabled: 7,
            ..DeviceConfig::default()
        };
        let mut driver = Ernic::bring_up(Model::new(device, 8 << 20), Map::V4_0, &config).unwrap();
        let qp1 = driver.create_qp1(&MadConfig::default()).unwrap();
        let qp = driver.create_qp(&QpConfig::default()).unwrap();
        let buffer = driver.dma_alloc("a frame", 4096).unwrap().bus;
        Self { driver, qp1, qp, buffer, number }
    }

    fn path(&self) -> FramePath {
        let peer = 3 - self.number;
        FramePath {
            source_mac: [2, 0, 0, 0, 0, self.number],
            dest_mac: [2, 0, 0, 0, 0, peer],
            source_ip: std::net::Ipv4Addr::new(192, 0, 2, self.number).into(),
            dest_ip: std::net::Ipv4Addr::new(192, 0, 2, peer).into(),
            source_port: 0xC000,
            vlan_tci: None,
        }
    }

    fn send(&mut self, qp: QpNumber, bytes: &[u8]) {
        self.driver.platform_mut().dma_write(self.buffer, bytes).unwrap();
        let local = Local::Bus { address: self.buffer, len: bytes.len() as u32 };
        self.driver.post(qp, &Request::send(0, local)).unwrap();
        self.driver.ring(qp).unwrap();
    }

    fn receive(&mut self, qp: QpNumber) -> Vec<u8> {
        let received = self.driver.poll_receive(qp).unwrap().unwrap();
        let mut bytes = vec![0; received.len_max as usize];
        self.driver.platform_mut().dma_read(received.bus, &mut bytes).unwrap();
        self.driver.release_receive(qp, 1).unwrap();
        bytes
    }

    fn connect(&mut self, qpn: u32, send_psn: u32, receive_psn: u32) {
        let FramePath { dest_mac: mac, dest_ip: ip, .. } = self.path();
        let remote = Remote { mac, ip, qpn, send_psn, receive_psn };
        self.driver.connect_qp(self.qp, &remote).unwrap();
    }
}

struct World {
    ends: [End; 2],
    now: Nanos,
    capture: Writer<Vec<u8>>,
}

impl World {
    /// Frames cross one after the other, 1 us apart, until there are none.
    fn settle(&mut self) {
        let mut moved = true;
        while std::mem::take(&mut moved) {
            for from in 0..2 {
                let mut bytes = [0; FRAME_LEN_MAX];
                let mut room = Room { bytes: &mut bytes, segments: 1, source_port: None };
                let nic = &mut self.ends[from].driver.platform_mut().nic;
                let Some(train) = nic.poll_transmit(self.now, &mut room) else { continue };
                moved = true;
                self.now = self.now.after(1000);
                self.capture.packet(from as u32, self.now, &bytes[..train.len], &[]).unwrap();
                let nic = &mut self.ends[1 - from].driver.platform_mut().nic;
                let verdict = nic.handle_frame(self.now, &bytes[..train.len], Rx::default());
                assert_eq!(verdict.refused, None);
            }
        }
    }
}

#[test]
fn the_golden_capture_is_what_two_devices_exchange() {
    let interfaces = ["client", "server"].map(|name| {
        let description = "an ERNIC's port".to_owned();
        Interface { name: name.to_owned(), description }
    });
    let capture = Writer::new(Vec::new(), &interfaces).unwrap();
    let mut world = World { ends: [End::new(1), End::new(2)], now: Nanos(0), capture };

    let qpn = |world: &World, end: usize| u32::from(world.ends[end].qp.get());
    let request = CmRequest {
        transaction: 0x5352_4E49_0000_0001,
        local_comm_id: 0xC11E_0001,
        // RDMA_PS_TCP, port 4711.
        service_id: 0x0000_0000_0106_1267,
        ca_guid: 0x0200_00FF_FE00_0001,
        qpn: qpn(&world, 0),
        psn: 0x12_3456,
        reads: 16,
        retry_count: 7,
        rnr_retry_count: 7,
        path_mtu: 3,
        ack_timeout: 18,
    };
    send_message(&mut world, 0, CmMessage::Request(request), 0);
    let CmMessage::Request(asked) = take_message(&mut world, 1) else { panic!("no REQ") };
    let reply = CmReply {
        transaction: asked.transaction,
        local_comm_id: 0x5E2E_0001,
        remote_comm_id: asked.local_comm_id,
        ca_guid: 0x0200_00FF_FE00_0002,
        qpn: qpn(&world, 1),
        psn: 0x65_4321,
        reads: 16,
        rnr_retry_count: 7,
    };
    // Each side begins with the PSN that the other names.
    world.ends[1].connect(asked.qpn, asked.psn, reply.psn);
    send_message(&mut world, 1, CmMessage::Reply(reply), 0);
    let CmMessage::Reply(answered) = take_message(&mut world, 0) else { panic!("no REP") };
    world.ends[0].connect(answered.qpn, answered.psn, request.psn);
    let ready = CmReadyToUse {
        transaction: request.transaction,
        local_comm_id: request.local_comm_id,
        remote_comm_id: answered.local_comm_id,
    };
    send_message(&mut world, 0, CmMessage::ReadyToUse(ready), 1);
    assert_eq!(take_message(&mut world, 1), CmMessage::ReadyToUse(ready));

    // The connection works.
    let message: Vec<u8> = (0..100).collect();
    let qp = world.ends[0].qp;
    world.ends[0].send(qp, &message);
    world.settle();
    let qp = world.ends[1].qp;
    assert_eq!(world.ends[1].receive(qp)[..100], message);
    let written = world.capture.finish().unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/ernic-cm.pcapng");
    if std::env::var_os("SOFTRNIC_WRITE_GOLDEN").is_some() {
        fs::write(&path, &written).unwrap();
    }
    assert!(fs::read(&path).unwrap_or_default() == written, "golden/ernic-cm.pcapng is stale");
}

fn send_message(world: &mut World, from: usize, message: CmMessage, psn: u32) {
    let (path, qp1) = (world.ends[from].path(), world.ends[from].qp1);
    world.ends[from].send(qp1, &message.frame(&path, psn));
    world.settle();
}

fn take_message(world: &mut World, end: usize) -> CmMessage {
    let qp1 = world.ends[end].qp1;
    CmMessage::from_frame(&world.ends[end].receive(qp1)).unwrap()
}
