//! QP1 and 2046 connected queue pairs on one device.

use softrnic_device::Memory;
use softrnic_device::ernic::{QUEUE_PAIR_LEN, Register as R};

use crate::world::{
    Bench, Check, LOCAL, READ, REGION, REGION_VA, SEND, WRITE, Wr, mad_frame, post_frame,
    receive_queue, same,
};

const LEN: u32 = 64;
/// Where in its area a queue pair's bytes are, and where those for READs begin.
const READS: u64 = 0x2_0000;

/// SEND, WRITE and READ on each, all at once; then a MAD. Everything completes well, and each byte is
/// where it belongs.
#[test]
fn qp1_and_2046_queue_pairs_each_send_write_and_read() -> Check {
    let bench = Bench::new(None);
    let mut world = bench.world_with(|config| config.num_qp = 2048);
    let qps = 2..2048u16;
    let at = |q: u16| u64::from(q) * u64::from(LEN);
    let bytes =
        |q: u16, seed: u8| [q as u8 ^ seed, (q >> 8) as u8, seed, 7].repeat(LEN as usize / 4);
    for q in qps.clone() {
        world.connect(q);
        let put = |side: &mut crate::world::Side<'_>, address, bytes: &[u8]| {
            side.nic.memory.write(address, bytes).map_err(|fault| fault.to_string())
        };
        put(&mut world.a, LOCAL + at(q), &bytes(q, 1))?;
        put(&mut world.b, REGION + READS + at(q), &bytes(q, 2))?;
    }
    for q in qps.clone() {
        let (local, va) = (LOCAL + at(q), REGION_VA + at(q));
        world.a.queue(q, &Wr { local, va, ..Wr::new(WRITE, LEN) })?;
        world.a.queue(q, &Wr { local, ..Wr::new(SEND, LEN) })?;
        world.a.post(q, &Wr { local: local + READS, va: va + READS, ..Wr::new(READ, LEN) })?;
    }
    world.settle()?;
    for q in qps.clone() {
        let what = format!("QP {q}");
        same(&what, world.a.get(R::Cqhead, q), 3)?;
        same(&what, world.a.get(R::Statqp, q), 0x600)?;
        same(
            &what,
            (1..=3).map(|i| world.a.cqe(q, i)).collect::<Check<Vec<_>>>()?,
            vec![0x101, 0x2_0102, 0x4_0103],
        )?;
        same(&what, world.b.get(R::Statrqpidb, q), 1)?;
        same(&what, world.b.bytes(REGION + at(q), LEN as usize)?, bytes(q, 1))?;
        same(&what, world.b.bytes(receive_queue(q), LEN as usize)?, bytes(q, 1))?;
        same(&what, world.a.bytes(LOCAL + READS + at(q), LEN as usize)?, bytes(q, 2))?;
    }
    for word in 0..64u16 {
        let wanted = if word == 0 { !3 } else { u32::MAX };
        same("completion bank", world.a.get(R::Cqintsts, word), wanted)?;
        same("receive bank", world.b.get(R::Rqintsts, word), wanted)?;
    }
    for side in [&mut world.a, &mut world.b] {
        side.queues(1);
        side.set(R::Qpconf, 1, 0x3D | 2 << 16);
    }
    let mad = mad_frame(1, 2, 256);
    post_frame(&mut world.a, &mad)?;
    world.settle()?;
    same(
        "QP1",
        (world.a.get(R::Cqhead, 1), world.b.word(crate::world::receive_doorbell(1))?),
        (1, 1),
    )?;
    same("the MAD", world.b.bytes(receive_queue(1), mad.len())?, mad)?;
    same("work requests", world.a.get(R::Qpmsts, 0) >> 16, 3 * 2046 + 1)?;
    same("dropped", world.b.get(R::Inalldrppktcnt, 0) & 0xFFFF, 0)?;
    // docs/performance.md names the figure.
    same("bytes of the face for each", QUEUE_PAIR_LEN <= 200, true)
}
