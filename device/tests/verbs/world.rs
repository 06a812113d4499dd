//! Two native network interfaces back to back, on a virtual clock.

use softrnic_device::verbs::{
    AccessFlags, Connection, Cq, Mr, Payload, Pd, QpInit, RecvRequest, SendOp, SendRequest, Sge,
    Verbs, WorkCompletion,
};
use softrnic_device::{Memory, Nic, Ram};
use softrnic_engine::packet::FRAME_LEN_MAX;
use softrnic_engine::{
    Nanos, Path, PathMtu, Port, Psn, Qpn, Reason, Room, Rx, State, Status, Train, Verdict,
};

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
            ipv6: [0x2001, 0xdb8, 0, 0, 0, 0, 0, number.into()].into(),
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

    /// One more queue pair with the same domain and queues.
    pub(crate) fn another(&mut self, init: QpInit) -> Qpn {
        let Self { pd, send_cq, recv_cq, .. } = *self;
        self.nic.create_qp(&QpInit { pd, send_cq, recv_cq, ..init }).unwrap()
    }

    /// The path to this side's IPv4 address.
    pub(crate) fn path(&self) -> Path {
        let port = self.nic.engine.port();
        Path { dest_mac: port.mac, dest_ip: port.ipv4.into(), ..Path::default() }
    }

    /// The next frame that leaves.
    pub(crate) fn transmit(&mut self, now: Nanos) -> Option<(Train, Vec<u8>)> {
        let mut bytes = [0; FRAME_LEN_MAX];
        let mut room = Room { bytes: &mut bytes, segments: 1, source_port: None };
        let train = self.nic.poll_transmit(now, &mut room)?;
        Some((train, bytes[..train.len].to_vec()))
    }

    /// Every frame that leaves.
    pub(crate) fn transmit_all(&mut self, now: Nanos) -> Vec<(Train, Vec<u8>)> {
        core::iter::from_fn(|| self.transmit(now)).collect()
    }

    pub(crate) fn take(&mut self, now: Nanos, frame: &[u8]) -> Verdict {
        self.nic.handle_frame(now, frame, Rx::default())
    }

    pub(crate) fn counted(&self, reason: Reason) -> u64 {
        self.nic.engine.refused()[reason as usize]
    }

    pub(crate) fn state(&self) -> State {
        self.nic.state(self.qpn).unwrap()
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

    /// A signaled SEND of inline bytes.
    pub(crate) fn send_bytes(&mut self, wr_id: u64, qpn: Qpn, bytes: &[u8]) {
        let payload = Payload::Inline(bytes);
        let request = SendRequest { wr_id, payload, signaled: true, ..SendRequest::default() };
        self.nic.post_send(qpn, &request).unwrap();
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
        let (a, b) = (self.a.qpn, self.b.qpn);
        self.join(a, b, connection);
    }

    /// Connects a queue pair of each side to the other.
    pub(crate) fn join(&mut self, a: Qpn, b: Qpn, connection: Connection) {
        self.a.nic.connect(a, &between(a, b, self.b.path(), connection)).unwrap();
        self.b.nic.connect(b, &between(b, a, self.a.path(), connection)).unwrap();
    }

    /// Carries every frame across and jumps to each deadline, until both are idle.
    pub(crate) fn pump(&mut self) {
        self.pump_losing(|_| false);
    }

    /// The same, but those frames of `a` are lost, by their number, that `lost` says.
    pub(crate) fn pump_losing(&mut self, lost: impl Fn(usize) -> bool) {
        let mut sent = 0;
        for _ in 0..100_000 {
            let forth = self.a.transmit_all(self.now);
            for (_, frame) in &forth {
                if !lost(sent) {
                    self.b.take(self.now, frame);
                }
                sent += 1;
            }
            let back = self.b.transmit_all(self.now);
            for (_, frame) in &back {
                self.a.take(self.now, frame);
            }
            if !forth.is_empty() || !back.is_empty() {
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

/// The connection of `near` to `far`.
pub(crate) fn between(near: Qpn, far: Qpn, path: Path, connection: Connection) -> Connection {
    let start = |qpn: Qpn| Psn::new(0x00FF_FFF0 + qpn.get());
    Connection {
        path: Path { dest_mac: path.dest_mac, dest_ip: path.dest_ip, ..connection.path },
        path_mtu: PathMtu::M1024,
        dest_qpn: far,
        send_psn: start(near),
        expected_psn: start(far),
        ..connection
    }
}
