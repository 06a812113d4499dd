//! The native face, lost frames included.

use softrnic_device::verbs::{
    AccessFlags, Connection, Cq, Mr, Payload, Pd, QpInit, RecvRequest, SendOp, SendRequest, Sge,
    Verbs, WorkCompletion,
};
use softrnic_device::{Nic, Ram};
use softrnic_engine::packet::FRAME_LEN_MAX;
use softrnic_engine::{Nanos, Path, Port, Qpn, Room, Rx, Status};

use crate::calls;

const MESSAGES: u32 = 10_000;
const BATCH: u32 = 8;
const BASE: u64 = 0x10_0000;
const MEMORY_LEN: usize = 1 << 16;

struct Side {
    nic: Nic<Verbs, Ram>,
    pd: Pd,
    cq: Cq,
    qpn: Qpn,
    mr: Mr,
}

struct World {
    a: Side,
    b: Side,
    now: Nanos,
    frame: Box<[u8]>,
    frames: u64,
    /// Every so many frames one is lost; 0 for none.
    lose_every: u64,
}

impl Side {
    fn new(number: u8) -> Self {
        let mac = [2, 0, 0, 0, 0, number];
        let port = Port { mac, ipv4: [192, 0, 2, number].into(), ..Port::default() };
        let mut nic = Nic::verbs(port, Ram::new(BASE, MEMORY_LEN));
        let pd = nic.alloc_pd().unwrap();
        let cq = nic.create_cq(256).unwrap();
        let mr = nic.reg_mr(pd, BASE, MEMORY_LEN as u64, AccessFlags::ALL).unwrap();
        let init = QpInit { pd, send_cq: cq, recv_cq: cq, ..QpInit::default() };
        let qpn = nic.create_qp(&init).unwrap();
        Self { nic, pd, cq, qpn, mr }
    }

    fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { address: BASE + offset, length, lkey: self.mr.lkey }
    }

    fn connect(&mut self, peer: &Port, dest_qpn: Qpn) {
        let path = Path { dest_mac: peer.mac, dest_ip: peer.ipv4.into(), ..Path::default() };
        let connection = Connection { path, dest_qpn, ..Connection::default() };
        self.nic.connect(self.qpn, &connection).unwrap();
    }

    /// Successful completions; there are no others.
    fn poll(&mut self) -> u32 {
        let mut done = [WorkCompletion::default(); 2 * BATCH as usize];
        let count = self.nic.poll_cq(self.cq, &mut done).unwrap();
        assert!(done[..count].iter().all(|wc| wc.status == Status::Success));
        count as u32
    }
}

impl World {
    fn new(lose_every: u64) -> Self {
        let (mut a, mut b) = (Side::new(1), Side::new(2));
        a.connect(b.nic.engine.port(), b.qpn);
        b.connect(a.nic.engine.port(), a.qpn);
        let frame = vec![0; FRAME_LEN_MAX].into_boxed_slice();
        Self { a, b, now: Nanos(0), frame, frames: 0, lose_every }
    }

    fn pump(&mut self) {
        loop {
            let before = self.frames;
            for forth in [true, false] {
                while self.carry(forth) {}
            }
            if self.frames > before {
                continue;
            }
            let deadlines = [self.a.nic.next_deadline(), self.b.nic.next_deadline()];
            let Some(next) = deadlines.into_iter().flatten().min() else { return };
            self.now = self.now.max(next);
            self.a.nic.handle_timeout(self.now);
            self.b.nic.handle_timeout(self.now);
        }
    }

    fn carry(&mut self, forth: bool) -> bool {
        let (from, to) =
            if forth { (&mut self.a, &mut self.b) } else { (&mut self.b, &mut self.a) };
        let mut room = Room { bytes: &mut self.frame, segments: 1, source_port: None };
        let Some(train) = from.nic.poll_transmit(self.now, &mut room) else { return false };
        self.frames += 1;
        if self.lose_every == 0 || !self.frames.is_multiple_of(self.lose_every) {
            to.nic.handle_frame(self.now, &room.bytes[..train.len], Rx::default());
        }
        true
    }

    /// A batch of messages of one kind, until both ends have completed it.
    fn batch(&mut self, op: SendOp, len: u32, receives: bool) {
        let sges = [self.a.sge(0, len / 3), self.a.sge(0x4000, len - len / 3)];
        let payload = Payload::Sges(&sges);
        let request = SendRequest { op, payload, signaled: true, ..SendRequest::default() };
        let buffer = [self.b.sge(0x8000, 4096), self.b.sge(0xA000, 4096)];
        let receive = RecvRequest { wr_id: 0, sges: &buffer };
        if receives {
            self.b.nic.post_recvs(self.b.qpn, &[receive; BATCH as usize]).unwrap();
        }
        self.a.nic.post_sends(self.a.qpn, &[request; BATCH as usize]).unwrap();
        self.pump();
        assert_eq!(self.a.poll(), BATCH);
        assert_eq!(self.b.poll(), if receives { BATCH } else { 0 });
    }
}

#[test]
fn ten_thousand_messages_of_each_kind_allocate_nothing() {
    let start = calls();
    for lose_every in [0, 101] {
        let mut world = World::new(lose_every);
        let (remote_va, rkey) = (BASE + 0x8000, world.b.mr.rkey);
        for (op, len, receives) in [
            (SendOp::Send, 64, true),
            (SendOp::SendWithImm { immediate: 1 }, 5000, true),
            (SendOp::Write { remote_va, rkey }, 4096, false),
            (SendOp::WriteWithImm { remote_va, rkey, immediate: 1 }, 64, true),
            (SendOp::Read { remote_va, rkey }, 4096, false),
            (SendOp::FetchAdd { remote_va, rkey, add: 1 }, 8, false),
            (SendOp::CompareSwap { remote_va, rkey, compare: 0, swap: 1 }, 8, false),
        ] {
            world.batch(op, len, receives);
            let before = calls();
            assert!(before > start, "the allocator counts");
            for _ in 0..MESSAGES / BATCH {
                world.batch(op, len, receives);
            }
            assert_eq!(calls() - before, 0, "{op:?}, one frame lost of {lose_every}");
        }
    }
}

#[test]
fn registering_anew_after_each_invalidate_allocates_nothing() {
    let mut world = World::new(0);
    let mut send_with_invalidate = || {
        let window = world.b.nic.reg_mr(world.b.pd, BASE, 4096, AccessFlags::ALL).unwrap();
        let op = SendOp::SendWithInv { rkey: window.rkey };
        let request = SendRequest { op, signaled: true, ..SendRequest::default() };
        world.b.nic.post_recv(world.b.qpn, &RecvRequest::default()).unwrap();
        world.a.nic.post_send(world.a.qpn, &request).unwrap();
        world.pump();
        assert_eq!((world.a.poll(), world.b.poll()), (1, 1));
        world.b.nic.dereg_mr(window.lkey).unwrap();
    };
    send_with_invalidate();
    let before = calls();
    (0..MESSAGES).for_each(|_| send_with_invalidate());
    assert_eq!(calls() - before, 0);
}
