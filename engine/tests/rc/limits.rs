//! The largest messages and windows, and many queue pairs: a face without memory of its own.

use softrnic_engine::packet::{FRAME_LEN_MAX, parse};
use softrnic_engine::{
    Access, Attributes, Completion, CompletionKind, Engine, EngineConfig, Event, Face, Fetch, Hold,
    Nanos, Path, PathMtu, Place, Policy, Port, Psn, Qpn, RKey, Reason, Room, Rx, State, Status,
    Work, WorkOpcode,
};

/// Zeroes without end; remembers how far they were written, in order.
#[derive(Default)]
struct Endless {
    sends: Vec<Work>,
    written: u64,
    completed: Vec<(Status, u32)>,
}

impl Face for Endless {
    fn work(&mut self, _: Qpn, index: u32) -> Fetch {
        self.sends.get(index as usize).map_or(Fetch::Empty, |work| Fetch::Work(*work))
    }

    fn gather(&mut self, _: Qpn, _: Place, _: u32, out: &mut [u8]) -> Result<(), Hold> {
        out.fill(0);
        Ok(())
    }

    fn receive(&mut self, _: Qpn) -> Result<Place, Hold> {
        Ok(Place { token: 0, base: 0, length: u32::MAX })
    }

    fn grant(&mut self, _: Qpn, _: RKey, va: u64, length: u32, _: Access) -> Result<Place, Reason> {
        Ok(Place { token: 1, base: va, length })
    }

    fn scatter(&mut self, _: Qpn, _: Place, offset: u32, bytes: &[u8]) -> Result<(), Hold> {
        assert_eq!(u64::from(offset), self.written, "in order, once each");
        self.written += bytes.len() as u64;
        Ok(())
    }

    fn complete(&mut self, _: Qpn, what: Completion) -> Result<(), Reason> {
        if let CompletionKind::Work { length, .. } = what.kind {
            self.completed.push((what.status, length));
        }
        Ok(())
    }

    fn event(&mut self, _: Event) {}
}

struct Side {
    engine: Engine,
    face: Endless,
}

fn side(number: u8, slots: usize) -> Side {
    let port =
        Port { mac: [2, 0, 0, 0, 0, number], ipv4: [192, 0, 2, number].into(), ..Port::default() };
    Side { engine: Engine::new(EngineConfig { slots }, port), face: Endless::default() }
}

fn create(side: &mut Side, qpn: Qpn, peer: u8, attributes: Attributes) {
    let path = Path {
        dest_mac: [2, 0, 0, 0, 0, peer],
        dest_ip: std::net::Ipv4Addr::new(192, 0, 2, peer).into(),
        ..Path::default()
    };
    let attributes = Attributes { path, dest_qpn: qpn, ..attributes };
    side.engine.create(qpn, attributes).expect("the number is free");
    side.engine.set_state(qpn, State::Rts, &mut side.face);
}

fn pair(attributes: Attributes) -> (Side, Side, Qpn) {
    let (mut a, mut b, qpn) = (side(1, 4), side(2, 4), Qpn::new(0x11));
    create(&mut a, qpn, 2, attributes);
    create(&mut b, qpn, 1, attributes);
    (a, b, qpn)
}

/// Moves frames until neither side has any; returns how many each sent.
fn run(a: &mut Side, b: &mut Side) -> [u32; 2] {
    let mut bytes = vec![0; FRAME_LEN_MAX];
    let mut sent = [0, 0];
    loop {
        let before = sent;
        sent[0] += carry(a, b, &mut bytes);
        sent[1] += carry(b, a, &mut bytes);
        if sent == before {
            return sent;
        }
    }
}

fn carry(from: &mut Side, to: &mut Side, bytes: &mut [u8]) -> u32 {
    let mut count = 0;
    loop {
        let mut room = Room { bytes, segments: 1, source_port: None };
        let train = from.engine.poll_transmit(Nanos(0), &mut room, &mut from.face);
        let Some(train) = train else { return count };
        let frame = &bytes[..train.len];
        let verdict = to.engine.handle_frame(Nanos(0), frame, Rx::default(), &mut to.face);
        assert_eq!(verdict.refused, None);
        count += 1;
    }
}

fn work(opcode: WorkOpcode, length: u32) -> Work {
    Work { opcode, length, local: Place { token: 0, base: 0, length }, ..Work::default() }
}

#[test]
fn s_43_a_write_of_2_31_bytes_arrives_whole() {
    let attributes = Attributes { path_mtu: PathMtu::M4096, ..Attributes::default() };
    let (mut a, mut b, qpn) = pair(attributes);
    a.face.sends.push(work(WorkOpcode::Write, 1 << 31));
    a.engine.ring(qpn, &mut a.face);
    let [packets, _] = run(&mut a, &mut b);
    assert_eq!(packets, 1 << 19);
    assert_eq!(b.face.written, 1 << 31);
    assert_eq!(a.face.completed, [(Status::Success, 1 << 31)]);
}

#[test]
fn q_12_one_byte_more_than_2_31_is_a_local_length_error() {
    let (mut a, mut b, qpn) = pair(Attributes::default());
    a.face.sends.push(work(WorkOpcode::Write, (1 << 31) + 1));
    a.engine.ring(qpn, &mut a.face);
    assert_eq!(run(&mut a, &mut b), [0, 0]);
    assert_eq!(a.face.completed, [(Status::LocalLength, (1 << 31) + 1)]);
}

#[test]
fn q_05_a_read_of_2_31_bytes_at_mtu_256_fills_the_whole_window() {
    let policy = Policy { window_packets: Psn::WINDOW, ..Policy::default() };
    let attributes = Attributes { path_mtu: PathMtu::M256, policy, ..Attributes::default() };
    let (mut a, _, qpn) = pair(attributes);
    a.face.sends.push(work(WorkOpcode::Read, 1 << 31));
    a.face.sends.push(work(WorkOpcode::Write, 1));
    a.engine.ring(qpn, &mut a.face);
    let mut bytes = vec![0; FRAME_LEN_MAX];
    let mut room = Room { bytes: &mut bytes, segments: 1, source_port: None };
    let first = a.engine.poll_transmit(Nanos(0), &mut room, &mut a.face).expect("the request");
    let second = a.engine.poll_transmit(Nanos(0), &mut room, &mut a.face);
    assert_eq!(second, None, "2^23 PSNs are in flight, and not one more");
    let request = parse(&bytes[..first.len]).expect("it can be parsed");
    assert_eq!(request.reth().expect("it has a RETH").dma_length.get(), 1 << 31);
    let qp = a.engine.qp(qpn).expect("it exists");
    assert_eq!(qp.send_psn().since(first.psn), Psn::WINDOW);
}

#[test]
fn five_thousand_queue_pairs_grow_the_table_and_all_send() {
    let (mut a, mut b) = (side(1, 4), side(2, 4));
    for number in 1..=5000 {
        let qpn = Qpn::new(number);
        create(&mut a, qpn, 2, Attributes { max_in_flight: 1, ..Attributes::default() });
        create(&mut b, qpn, 1, Attributes { max_in_flight: 1, ..Attributes::default() });
        // All the while some are on the ready list and the timers.
        a.engine.ring(qpn, &mut a.face);
    }
    a.face.sends.push(work(WorkOpcode::Send, 0));
    for number in 1..=5000 {
        a.engine.ring(Qpn::new(number), &mut a.face);
    }
    assert_eq!(run(&mut a, &mut b), [5000, 5000]);
    assert_eq!(a.face.completed.len(), 5000);
    assert_eq!(a.engine.next_deadline(), None, "everything is acknowledged");
}

#[test]
fn a_queue_pair_number_is_compared_in_full() {
    let (mut a, mut b) = (side(1, 16), side(2, 16));
    let qpn = Qpn::new(0xABC_005);
    create(&mut a, qpn, 2, Attributes::default());
    create(&mut b, qpn, 1, Attributes::default());
    assert!(b.engine.qp(Qpn::new(0x005)).is_none(), "equal low bits are not enough");
    a.face.sends.push(work(WorkOpcode::Send, 0));
    a.engine.ring(qpn, &mut a.face);
    assert_eq!(run(&mut a, &mut b), [1, 1]);
    // The same low bits, another number: both must live.
    create(&mut b, Qpn::new(0x005), 1, Attributes::default());
    assert!(b.engine.qp(qpn).is_some() && b.engine.qp(Qpn::new(0x005)).is_some());
}
