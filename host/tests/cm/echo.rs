//! The echo of a device process and its client, an ERNIC, on virtual time.

use std::sync::{Arc, Mutex};

use softrnic_device::verbs::Verbs;
use softrnic_device::{Nic, Ram};
use softrnic_engine::{Nanos, Qpn};
use softrnic_host::cm::agent::{AgentEvent, Failure};
use softrnic_host::cm::native::NativeGsi;
use softrnic_host::cm::{End, Reject};
use softrnic_host::port::HostPort;
use softrnic_host::serve::Attachment;
use softrnic_host::serve::echo::Echo;
use softrnic_host::station::Station;

use crate::cable::{Cable, CableEnd, ip, port};
use crate::ernic::{ErnicSide, PORT, Side};

const MEMORY: u64 = 0x10_0000;
/// Room for one client that does not say how long its messages are.
const LEN: u64 = NativeGsi::MEMORY_LEN + 16 * 4096;

struct World {
    client: ErnicSide,
    events: Vec<AgentEvent>,
    station: Station<Verbs, Ram>,
    echo: Echo,
    cable: Arc<Mutex<Cable>>,
    now: Nanos,
}

impl World {
    fn new() -> Self {
        let now = Nanos(1_000_000);
        let cable = Cable::new(now);
        let config = port(2);
        let mut nic = Nic::verbs(config.engine_port(), Ram::new(MEMORY, LEN as usize));
        let echo = Echo::new(&mut nic, MEMORY..MEMORY + LEN, &config, PORT, 5).unwrap();
        let link = Box::new(CableEnd::new(1, &cable));
        let station = Station::new(nic, link, HostPort::new(config));
        let client = ErnicSide::new(0, &cable, now);
        Self { client, events: Vec::new(), station, echo, cable, now }
    }

    fn run_ms(&mut self, ms: u64) {
        let until = self.now.after(ms * 1_000_000);
        loop {
            self.cable.lock().unwrap().now = self.now;
            let mut moved = self.client.turn(self.now, &mut self.events);
            moved |= self.echo.before(self.now, &mut self.station);
            moved |= !self.station.turn(self.now).unwrap().idle();
            self.echo.after(&mut self.station);
            let echo = Attachment::<Verbs, Ram>::next_deadline(&self.echo);
            let deadlines = [self.client.next_deadline(), self.station.next_deadline(), echo];
            let next = if moved {
                Some(self.now.after(1000))
            } else {
                deadlines.into_iter().flatten().min()
            };
            match next {
                Some(next) if next <= until => self.now = next.max(Nanos(self.now.0 + 1)),
                _ => break,
            }
        }
        self.now = until;
    }

    /// Asks for a connection; what became of it.
    fn connect(&mut self) -> (Qpn, AgentEvent) {
        let qpn = self.client.qp();
        self.client.connect(self.now, qpn, ip(2, false));
        self.run_ms(20);
        (qpn, self.events.remove(0))
    }

    fn expect_echo(&mut self, qpn: Qpn) {
        // More than there are places.
        for number in 0..40 {
            let message = [number; 64];
            self.client.send(qpn, &message);
            self.run_ms(20);
            assert_eq!(self.client.ended(qpn), Some(true));
            assert_eq!(self.client.received(qpn).unwrap(), message);
        }
    }
}

#[test]
fn messages_come_back_and_a_client_that_finds_no_room_is_refused() {
    let mut world = World::new();
    let (qpn, AgentEvent::Established { id, .. }) = world.connect() else { panic!() };
    world.expect_echo(qpn);
    let (_, AgentEvent::Failed { why, .. }) = world.connect() else { panic!() };
    assert_eq!(why, Failure::Rejected(Reject::CONSUMER));
    assert_eq!(world.echo.clients(), 1);

    // A silent client stays.
    world.run_ms(60_000);
    world.expect_echo(qpn);
    world.client.disconnect(world.now, id);
    world.run_ms(10_000);
    let ended = [AgentEvent::Disconnected { id, by: End::Us }, AgentEvent::Closed { id }];
    assert_eq!(std::mem::take(&mut world.events), ended);
    assert_eq!(world.echo.clients(), 0);
    let (qpn, AgentEvent::Established { .. }) = world.connect() else { panic!() };
    world.expect_echo(qpn);
}

#[test]
fn a_client_that_has_died_leaves_its_place_to_others() {
    let mut world = World::new();
    let (_, AgentEvent::Established { .. }) = world.connect() else { panic!() };
    world.cable.lock().unwrap().lose = Box::new(|_, _| true);
    world.run_ms(120_000);
    assert_eq!(world.echo.clients(), 0);
    world.cable.lock().unwrap().lose = Box::new(|_, _| false);
    world.client = ErnicSide::new(0, &world.cable, world.now);
    world.events.clear();
    let (qpn, AgentEvent::Established { .. }) = world.connect() else { panic!() };
    world.expect_echo(qpn);
}
