//! Stories of the rows that act on the link and beside it: pauses, and the side band's doorbell.

use softrnic_device::ernic::{ReceiveBeat, Register as R};
use softrnic_engine::Nanos;
use softrnic_engine::packet::flow_control::{FlowControl, parse};

use crate::world::{
    Bench, Check, QP, QPCONF, SEND, Side, WRITE, World, Wr, holds, receive_doorbell, same,
};

const DRAIN: u64 = 10_000_000_000;
/// Words of 64 bytes that the frames here take.
const WORDS: u64 = 17;

/// The next pause frame among what a device has to send now.
fn next_pause(side: &mut Side<'_>, now: Nanos) -> Option<FlowControl> {
    (0..8).find_map(|_| parse(&side.next_frame(now)?).ok()).map(|frame| frame.what)
}

fn pfc(priority: u8, quanta: u16) -> FlowControl {
    let mut times = [0; 8];
    times[usize::from(priority)] = quanta;
    FlowControl::Pfc { enabled: 1 << priority, quanta: times }
}

/// Frames of 17 words at once: b asks for a pause at 30 words and for its end at 4.
fn thresholds(world: &mut World<'_>, frame: &[u8], priority: u8) -> Check {
    world.deliver(false, frame);
    same("below XOFF", next_pause(&mut world.b, world.now), None)?;
    world.deliver(false, frame);
    same("at XOFF", next_pause(&mut world.b, world.now), Some(pfc(priority, 0xFFFF)))?;
    let at_xon = Nanos((2 * WORDS - 4) * 512 * 1_000_000_000 / DRAIN);
    let mut resumed = None;
    while resumed.is_none() && world.next_timer() {
        resumed = next_pause(&mut world.b, world.now);
    }
    same("at XON", resumed, Some(pfc(priority, 0)))?;
    same("when", world.now, at_xon)
}

pub fn roce_thresholds(bench: &Bench) -> Check {
    let mut world = bench.world_with(|config| config.drain_bits_per_s = Some(DRAIN));
    world.b.set(R::XrnicPauseConf, 0, 0x800 | 3 << 4 | 1);
    world.b.set(R::XrnicBufThresholdRoce, 0, 30 << 16 | 4);
    world.a.post(QP, &Wr::new(WRITE, 1000))?;
    let frame = world.a.next_frame(world.now).ok_or("no frame")?;
    thresholds(&mut world, &frame, 3)
}

pub fn other_thresholds(bench: &Bench) -> Check {
    let mut world = bench.world_with(|config| config.drain_bits_per_s = Some(DRAIN));
    world.b.set(R::XrnicPauseConf, 0, 6 << 8 | 2);
    world.b.set(R::XrnicBufThresholdNonRoce, 0, 30 << 16 | 4);
    let mut arp = vec![0xFF; 12];
    arp.extend([0x08, 0x06]);
    arp.resize(WORDS as usize * 64, 0);
    thresholds(&mut world, &arp, 6)
}

/// Which class asks for and obeys pauses, and under which priority.
pub fn pauses(bench: &Bench) -> Check {
    let mut world = bench.world();
    same("reset", world.a.get(R::XrnicPauseConf, 0), 0x800)?;
    world.a.set(R::XrnicPauseConf, 0, 0x800 | 5 << 4 | 1);
    for (priority, paused) in [(4, false), (5, true)] {
        let mut quanta = [0; 8];
        quanta[priority] = 100;
        let what = FlowControl::Pfc { enabled: 1 << priority, quanta };
        let frame = softrnic_engine::packet::flow_control::FlowControlFrame {
            source_mac: [2, 0, 0, 0, 0, 2],
            what,
        };
        world.deliver(true, &softrnic_engine::packet::flow_control::build(&frame));
        world.a.post(QP, &Wr::new(SEND, 8))?;
        let sent = world.a.next_frame(world.now);
        same("held back", sent.is_none(), paused)?;
    }
    world.next_timer();
    same("until", world.now, Nanos(512))?;
    holds("then it goes on", world.a.next_frame(world.now).is_some())
}

/// CON_IO_CONF rings the side band's receive doorbell once, where the handshake is on.
pub fn connect_io(bench: &Bench) -> Check {
    let mut world = bench.world();
    world.run(&Wr::new(SEND, 8))?;
    let b = &mut world.b;
    same("ready", b.get(R::ConIoConf, 0), 1 << 31)?;
    b.set(R::ConIoConf, 0, u32::from(QP) << 16);
    same("handshake off", b.nic.device.take_receive_doorbell(), None)?;
    b.set(R::Qpconf, QP, QPCONF & !(1 << 4));
    b.set(R::ConIoConf, 0, u32::from(QP) << 16);
    let address = (receive_doorbell(QP) & 0x1FFF) as u16;
    let beat = Some(ReceiveBeat { address, index: 1 });
    same("rings", b.nic.device.take_receive_doorbell(), beat)?;
    same("once", b.nic.device.take_receive_doorbell(), None)
}
