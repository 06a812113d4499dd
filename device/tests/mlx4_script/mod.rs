//! Random contexts with random commands applied to a live pair: the body of the fuzz target `context`,
//! and of the test that replays its corpus.
//!
//! After each command: a refusal has changed nothing, what is read back reads back again when it is
//! written, and traffic goes on without a panic.

use softrnic_device::mlx4::context::{CONTEXT_LEN, Field, PathField, QpContext};
use softrnic_device::mlx4::contexts::{MAILBOX_LEN, QpContexts};
use softrnic_device::mlx4::field::Side;
use softrnic_device::mlx4::transitions::{COMMANDS, Command};
use softrnic_device::verbs::{QpInit, RecvRequest, SendRequest};
use softrnic_engine::{Nanos, Qpn};

use crate::world::{Side as End, World};

/// Bytes of a script, read from the front; 0 behind its end.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn word(&mut self) -> u32 {
        u32::from_be_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }
}

/// What a reasonable driver would write, so that scripts come far.
fn sound(near: Qpn, far: &End) -> QpContext {
    let port = far.nic.engine.port();
    let path = |field| (Side::Primary, field);
    let [m0, m1, m2, m3, m4, m5] = port.mac;
    QpContext::default()
        .with(Field::Mtu, 3)
        .with(Field::MsgMax, 31)
        .with(Field::RoceMode, 2)
        .with(Field::LocalQpnEen, near.get())
        .with(Field::RemoteQpnEen, far.qpn.get())
        .with(path(PathField::AckTimeout), 14)
        .with(path(PathField::HopLimit), 64)
        .with(path(PathField::Rgid6332), 0xFFFF)
        .with(path(PathField::Rgid310), port.ipv4.to_bits())
        .with(path(PathField::Dmac4732), u16::from_be_bytes([m0, m1]).into())
        .with(path(PathField::Dmac310), u32::from_be_bytes([m2, m3, m4, m5]))
        .with(Field::RetryCount, 1)
        .with(Field::SraMax, 2)
        .with(Field::RraMax, 2)
        .with(Field::Rwe, 1)
        .with(Field::Rre, 1)
}

/// Runs a script. It panics where a rule is broken.
pub(crate) fn run(bytes: &[u8]) {
    let mut script = Script(bytes);
    let init = QpInit { sq_depth: 8, rq_depth: 8, ..QpInit::default() };
    let (a, b) = (End::new(1, init, 64), End::new(2, init, 64));
    let mut contexts = [QpContexts::new(6, vec![0xFFFF]), QpContexts::new(6, vec![0xFFFF])];
    let sounds = [sound(a.qpn, &b), sound(b.qpn, &a)];
    let mut world = World { a, b, now: Nanos(1_000_000) };
    let ups = [Command::Rst2Init, Command::Init2Rtr, Command::Rtr2Rts];
    for command in ups {
        for side in 0..2 {
            let end = end_of(&mut world, side);
            let qpn = end.qpn.get();
            let told = contexts[side].modify(&mut end.nic, command, qpn, 0, &sounds[side]);
            assert!(told.is_ok(), "{told:?}");
        }
    }
    // Bounded, so that a long input does not take long.
    for _ in 0..64 {
        if script.0.is_empty() {
            break;
        }
        match script.byte() % 8 {
            0 => post(&mut world, script.byte()),
            1 => carry(&mut world, script.byte()),
            kind => command(&mut world, &mut contexts, &sounds, kind, &mut script),
        }
    }
    carry(&mut world, 0);
    for side in 0..2 {
        let end = end_of(&mut world, side);
        let qpn = end.qpn.get();
        assert!(contexts[side].modify(&mut end.nic, Command::ToRst, qpn, 0, &sounds[side]).is_ok());
        let empty = contexts[side].query(&mut end.nic, qpn);
        assert_eq!(empty, Ok(QpContext::default()));
    }
}

fn end_of(world: &mut World, side: usize) -> &mut End {
    if side == 0 { &mut world.a } else { &mut world.b }
}

fn post(world: &mut World, what: u8) {
    let end = end_of(world, usize::from(what & 1));
    let sges = [end.sge(0, u32::from(what) * 16)];
    let _ = if what & 2 == 0 {
        end.nic.post_recv(end.qpn, &RecvRequest { wr_id: 0, sges: &sges }).err()
    } else {
        let payload = softrnic_device::verbs::Payload::Sges(&sges);
        let request = SendRequest { payload, signaled: true, ..SendRequest::default() };
        end.nic.post_send(end.qpn, &request).err()
    };
    end.sent();
    end.received();
}

/// Carries what leaves, some of it lost, and lets some time pass.
fn carry(world: &mut World, what: u8) {
    for round in 0..4 {
        for side in 0..2 {
            let now = world.now;
            let frames: Vec<_> = {
                let end = end_of(world, side);
                (0..32).map_while(|_| end.transmit(now)).collect()
            };
            for (i, (_, frame)) in frames.iter().enumerate() {
                if what >> ((i + round) % 8) & 1 == 0 {
                    end_of(world, 1 - side).take(now, frame);
                }
            }
        }
        world.now = Nanos(world.now.0 + (u64::from(what) << 20));
        let now = world.now;
        world.a.nic.handle_timeout(now);
        world.b.nic.handle_timeout(now);
    }
}

fn command(
    world: &mut World,
    contexts: &mut [QpContexts; 2],
    sounds: &[QpContext; 2],
    kind: u8,
    script: &mut Script<'_>,
) {
    let side = usize::from(kind & 1);
    let row = &COMMANDS[usize::from(script.byte()) % COMMANDS.len()];
    let mut context = sounds[side];
    // A sound context, one with some words of the script's, or nothing but the script's words.
    match kind {
        2 | 3 => {}
        4 | 5 => {
            for _ in 0..script.byte() % 8 {
                let at = usize::from(script.byte()) % context.words().len();
                context.words_mut()[at] ^= script.word();
            }
        }
        _ => context.words_mut().fill_with(|| script.word()),
    }
    let mask = script.word();
    let end = end_of(world, side);
    let mut modifier = end.qpn.get();
    // Mostly the pair's own numbers, at times any.
    if script.byte() >= 0xE0 {
        modifier = script.word();
        context.set(Field::LocalQpnEen, 0);
    }
    let all = |contexts: &QpContexts, end: &mut End| {
        let numbers = [end.qpn.get(), modifier];
        (numbers.map(|number| contexts.query(&mut end.nic, number)), end.nic.engine.qps().count())
    };
    let before = all(&contexts[side], end);
    let mut mailbox = [0; MAILBOX_LEN];
    mailbox[..4].copy_from_slice(&mask.to_be_bytes());
    mailbox[8..].copy_from_slice(&context.to_bytes());
    let told = contexts[side].execute(&mut end.nic, row.opcode, modifier, &mut mailbox);
    let after = all(&contexts[side], end);
    match told {
        Err(refusal) => assert_eq!(after, before, "{refusal}"),
        Ok(()) if row.command == Command::Query => {
            let told: &[u8; CONTEXT_LEN] = mailbox.last_chunk().expect("it is long enough");
            assert_eq!(after.0[1], Ok(QpContext::from_bytes(told)));
        }
        Ok(()) => {
            // What it brings is there, as it was given.
            let found = contexts[side].query(&mut end.nic, modifier).expect("it was just changed");
            let brought = row.brings(mask, found.service());
            let rss = found.get(Field::Rss) == 1;
            for field in brought.rows().filter(|field| !(rss && (15..=28).contains(&field.word))) {
                assert_eq!(found.read(field), context.read(field), "{}", field.full_name());
            }
        }
    }
}
