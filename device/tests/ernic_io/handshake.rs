//! The hardware handshake: doorbells over side ports instead of memory.

use softrnic_device::Memory;
use softrnic_device::ernic::{CompletionBeat, ReceiveBeat, Register};
use softrnic_engine::Reason;

use crate::bench::*;

const QP: u16 = 2;
/// CQDBADD and RQWPTRDBADD of queue pair 2, as far as the ports have address bits.
const CQ_PORT: u16 = (of_qp(QP, CQ_DOORBELL) & 0x1FFF) as u16;
const RQ_PORT: u16 = (of_qp(QP, RQ_DOORBELL) & 0x1FFF) as u16;

fn connected() -> Two {
    let mut bench = usual_pair();
    for end in &mut bench.ends {
        end.set(Register::Qpconf, QP, QPCONF & !HANDSHAKE_OFF);
    }
    bench
}

/// What the board design does: entries stand in memory for ever, hardware rings the port as its data
/// becomes ready, and frees data as completions come. No memory doorbell is read or written.
#[test]
fn a_write_with_immediate_stream_runs_over_the_side_ports_only() {
    let mut bench = connected();
    let chunk = 0x800u32;
    for slot in 1..=DEPTH {
        let offset = u64::from(slot - 1) * u64::from(chunk);
        let entry = Entry {
            opcode: 0x01,
            local: LOCAL + offset,
            len: chunk,
            remote: REGION + offset,
            rkey: RKEY,
            immediate: slot - 1,
        };
        write_entry(&mut bench.ends[0], QP, slot, &entry);
        fill(&mut bench.ends[0].memory, LOCAL + offset, chunk as usize, slot as u8);
    }
    let sqpi = bench.ends[0].at(Register::Sqpi, QP);
    let (mut produced, mut freed, mut immediates) = (0u32, 0, Vec::new());
    while freed < 100 {
        // Half of the ring is kept ahead.
        while produced < 100 && produced - freed < DEPTH / 2 {
            produced += 1;
            let index = (produced - 1) % DEPTH + 1;
            assert_eq!(bench.ends[0].ring_side_band(sqpi, index as u16), Ok(()));
        }
        bench.settle();
        let before = freed;
        while let Some(beat) = bench.ends[0].device.take_completions() {
            assert_eq!(beat.address, CQ_PORT);
            freed += beat.count;
        }
        assert!(freed > before, "it stands still at {freed}");
        let receiver = &mut bench.ends[1].device;
        immediates.extend(core::iter::from_fn(|| receiver.take_side_band()));
    }
    assert_eq!((produced, freed), (100, 100));
    assert_eq!(immediates.len(), 100);
    for (n, entry) in immediates.iter().enumerate() {
        assert_eq!(*entry as u32, n as u32 % DEPTH);
        assert_eq!(entry >> 32 & 0xF, 3, "WRITE WITH IMMEDIATE");
    }
    let len = (chunk * DEPTH) as usize;
    assert_eq!(bytes(&bench.ends[1].memory, REGION, len), bytes(&bench.ends[0].memory, LOCAL, len));
    for end in &bench.ends {
        assert_eq!(end.memory.read_u32(of_qp(QP, CQ_DOORBELL)), Ok(0));
        assert_eq!(end.memory.read_u32(of_qp(QP, RQ_DOORBELL)), Ok(0));
    }
    assert_eq!(bench.ends[0].get(Register::Cqhead, QP), 100 % DEPTH);
}

#[test]
fn completions_are_counted_between_beats_and_messages_by_index() {
    let mut bench = connected();
    for sqpi in 1..=3 {
        write_entry(&mut bench.ends[0], QP, sqpi, &Entry { opcode: 2, len: 8, ..Entry::default() });
    }
    let at = bench.ends[0].at(Register::Sqpi, QP);
    bench.ends[0].ring_side_band(at, 3).unwrap();
    bench.settle();
    let (a, b) = bench.ends.split_at_mut(1);
    let (a, b) = (&mut a[0], &mut b[0]);
    assert_eq!(a.device.take_completions(), Some(CompletionBeat { address: CQ_PORT, count: 3 }));
    assert_eq!(a.device.take_completions(), None);
    let beat = ReceiveBeat { address: RQ_PORT, index: 3 };
    assert_eq!(b.device.take_receive_doorbell(), Some(beat));
    assert_eq!(b.device.take_receive_doorbell(), None);
    // Hardware frees receive buffers over its port, too.
    let rqci = b.at(Register::Rqci, QP);
    assert_eq!(b.ring_side_band(rqci, 3), Ok(()));
    assert_eq!(b.get(Register::Rqci, QP), 3);
}

#[test]
fn the_ports_are_dead_for_queue_pairs_with_memory_doorbells() {
    let mut bench = usual_pair();
    write_entry(&mut bench.ends[0], QP, 1, &Entry { opcode: 2, len: 8, ..Entry::default() });
    let (sqpi, qdepth) =
        (bench.ends[0].at(Register::Sqpi, QP), bench.ends[0].at(Register::Qdepth, QP));
    assert_eq!(bench.ends[0].ring_side_band(sqpi, 1), Err(Reason::HandshakeOff));
    assert_eq!(bench.ends[0].ring_side_band(qdepth, 1), Err(Reason::RegisterUnlisted));
    bench.settle();
    assert!(bench.log.is_empty());
    assert_eq!(bench.ends[0].refused(Reason::HandshakeOff), 1);
    bench.ends[0].set(Register::Sqpi, QP, 1);
    bench.settle();
    assert_eq!(bench.ends[0].device.take_completions(), None);
    assert_eq!(bench.ends[1].device.take_receive_doorbell(), None);
    assert_eq!(bench.ends[0].memory.read_u32(of_qp(QP, CQ_DOORBELL)), Ok(1));
    assert_eq!(bench.ends[1].memory.read_u32(of_qp(QP, RQ_DOORBELL)), Ok(1));
}

#[test]
fn con_io_conf_rings_once_for_the_queue_pair_that_was_just_connected() {
    let mut bench = usual_pair();
    write_entry(&mut bench.ends[0], QP, 1, &Entry { opcode: 2, len: 8, ..Entry::default() });
    bench.ends[0].set(Register::Sqpi, QP, 1);
    bench.settle();
    let end = &mut bench.ends[1];
    assert_eq!(end.get(Register::ConIoConf, 0), 1 << 31, "ready");
    end.set(Register::ConIoConf, 0, u32::from(QP) << 16);
    assert_eq!(end.refused(Reason::HandshakeOff), 1, "not connected yet");
    assert_eq!(end.device.take_receive_doorbell(), None);
    end.set(Register::Qpconf, QP, QPCONF & !HANDSHAKE_OFF);
    end.set(Register::ConIoConf, 0, u32::from(QP) << 16);
    assert_eq!(end.get(Register::ConIoConf, 0), 1 << 31 | u32::from(QP) << 16);
    let beat = ReceiveBeat { address: RQ_PORT, index: 1 };
    assert_eq!(end.device.take_receive_doorbell(), Some(beat));
    assert_eq!(end.device.take_receive_doorbell(), None, "once");
    end.set(Register::ConIoConf, 0, 0x7FF << 16);
    assert_eq!(end.refused(Reason::QpUnknown), 1);
}
