//! Two native network interfaces back to back, on a virtual clock.

use softrnic_device::verbs::{
    AccessFlags, Connection, Cq, Mr, Payload, Pd, QpInit, RecvRequest, SendOp, SendRequest, Sge,
    Verbs, WorkCompletion,
};
use softrnic_device::{Memory, Nic, Ram};
use softrnic_engine::packet::FRAME_LEN_MAX;
use softrnic_engine::{Nanos, Path, PathMtu, Port, Psn, Qpn, Room, Rx, Status};

pub(crate) const BASE: u64 = 0x10_0000;
pub(crate) const MEMORY_LEN: usize = 1 << 18;

/// A network interface with one of everything; the region covers all of its memory.
pub(crate) struct Side {
    pub(crate) nic: Nic<Verbs, Ram>,
    pub(crate) pd: Pd,
    pub(crate) send_cq: Cq,
    pub(crate) recv_cq: Cq,
    pub(crate) qpn: Qpn,
    pub(crate) mr: Mr,
}

pub(crate) struct World {
    pub(crate) a: Side,
    pub(crate) b: Side,
    pub(crate) now: Nanos,
}

impl Side {
    pub(crate) fn new(number: u8, init: QpInit, cq_depth: u32) -> Self {
        let port = Port {
            mac: [2, 0, 0, 0, 0, number],
            ipv4: [192, 0, 2, number].into(),
            ..Port::default()
        };
        let mut nic = Nic::verbs(port, Ram::new(BASE, MEMORY_LEN));
        let pd = nic.alloc_pd().unwrap();
        let send_cq = nic.create_cq(cq_depth).unwrap();
        let recv_cq = nic.create_cq(cq_depth).unwrap();
        let mr = nic.reg_mr(pd, BASE, MEMORY_LEN as u64, AccessFlags::ALL).unwrap();
        let qpn = nic.create_qp(&QpInit { pd, send_cq, recv_cq, ..init }).unwrap();
        Self { nic, pd, send_cq, recv_cq, qpn, mr }
    }

    /// An element of the region that covers all memory.
    pub(crate) fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { address: BASE + offset, length, lkey: self.mr.lkey }
    }

    pub(crate) fn fill(&mut self, offset: u64, bytes: &[u8]) {
        self.nic.memory.write(BASE + offset, bytes).unwrap();
    }

    pub(crate) fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        self.nic.memory.slice(BASE + offset, len).unwrap().to_vec()
    }

    pub(crate) fn send(&mut self, wr_id: u64, op: SendOp, sges: &[Sge]) {
        let payload = Payload::Sges(sges);
        let request = SendRequest { wr_id, op, payload, signaled: true, ..SendRequest::default() };
        self.nic.post_send(self.qpn, &request).unwrap();
    }

    pub(crate) fn recv(&mut self, wr_id: u64, sges: &[Sge]) {
        self.nic.post_recv(self.qpn, &RecvRequest { wr_id, sges }).unwrap();
    }

    pub(crate) fn sent(&mut self) -> Vec<WorkCompletion> {
        self.poll(self.send_cq)
    }

    pub(crate) fn received(&mut self) -> Vec<WorkCompletion> {
        self.poll(self.recv_cq)
    }

    pub(crate) fn poll(&mut self, cq: Cq) -> Vec<WorkCompletion> {
        let mut out = [WorkCompletion::default(); 64];
        let count = self.nic.poll_cq(cq, &mut out).unwrap();
        out[..count].to_vec()
    }
}

/// `wr_id` and status of each.
pub(crate) fn outcome(completions: &[WorkCompletion]) -> Vec<(u64, Status)> {
    completions.iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(QpInit::default(), 64, Connection::default())
    }

    pub(crate) fn with(init: QpInit, cq_depth: u32, connection: Connection) -> Self {
        let (a, b) = (Side::new(1, init, cq_depth), Side::new(2, init, cq_depth));
        let mut world = Self { a, b, now: Nanos(1_000_000) };
        world.connect(connection);
        world
    }

    pub(crate) fn connect(&mut self, connection: Connection) {
        connect(&mut self.a, &self.b, connection);
        connect(&mut self.b, &self.a, connection);
    }

    /// Carries every frame across and jumps to each deadline, until both are idle.
    pub(crate) fn pump(&mut self) {
        for _ in 0..100_000 {
            let forth = carry(&mut self.a.nic, &mut self.b.nic, self.now);
            let back = carry(&mut self.b.nic, &mut self.a.nic, self.now);
            if forth + back > 0 {
                continue;
            }
            let deadlines = [self.a.nic.next_deadline(), self.b.nic.next_deadline()];
            let Some(next) = deadlines.into_iter().flatten().min() else { return };
            self.now = self.now.max(next);
            self.a.nic.handle_timeout(self.now);
            self.b.nic.handle_timeout(self.now);
        }
        panic!("the two never come to rest");
    }
}

fn connect(near: &mut Side, far: &Side, connection: Connection) {
    let port = far.nic.engine.port();
    let start = |qpn: Qpn| Psn::new(0x00FF_FFF0 + qpn.get());
    let connection = Connection {
        path: Path { dest_mac: port.mac, dest_ip: port.ipv4.into(), ..connection.path },
        path_mtu: PathMtu::M1024,
        dest_qpn: far.qpn,
        send_psn: start(near.qpn),
        expected_psn: start(far.qpn),
        ..connection
    };
    near.nic.connect(near.qpn, &connection).unwrap();
}

fn carry(from: &mut Nic<Verbs, Ram>, to: &mut Nic<Verbs, Ram>, now: Nanos) -> usize {
    let mut bytes = [0; FRAME_LEN_MAX];
    let mut frames = 0;
    loop {
        let mut room = Room { bytes: &mut bytes, segments: 1, source_port: None };
        let Some(train) = from.poll_transmit(now, &mut room) else { return frames };
        to.handle_frame(now, &bytes[..train.len], Rx::default());
        frames += 1;
    }
}
