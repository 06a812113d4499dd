//! What the driver does to a device, seen from the device's side.
#![allow(clippy::expect_used, reason = "a test that cannot go on should stop")]

mod recorder;

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use recorder::{MEMORY_BASE, Recorder};
use softrnic_driver::{
    COUNTER_ROWS, Completion, DeviceConfig, DmaError, Ernic, Error, FatalEntry, IndexSource,
    Interrupts, Local, MadConfig, Map, Opcode, PathMtu, QpConfig, QpNumber, RegionAccess,
    RegionConfig, Remote, Request, registers as reg,
};

const QP2: QpNumber = QpNumber::new(2);

#[test]
fn bring_up_writes_buffers_interrupts_addresses_and_enables_last() {
    let mut ernic = up(Map::V4_0);
    let script = ernic.platform_mut().take_script();
    insta::assert_snapshot!("bring_up", script);
    let last = script.lines().last().expect("something was written");
    assert_eq!(last, "device XRNICCONF = 0x00c00021");
}

#[test]
fn create_and_connect_program_everything_and_enable_last() {
    let mut ernic = up(Map::V4_0);
    ernic.platform_mut().take_script();
    let qp = ernic.create_qp(&small_queues()).expect("created");
    ernic.connect_qp(qp, &peer_v4()).expect("connected");
    let script = ernic.platform_mut().take_script();
    insta::assert_snapshot!("create_connect", script);
    assert_eq!(script.lines().last(), Some("QP 2 QPCONF = 0x00040431"));
}

#[test]
fn the_silicon_map_moves_every_slot_up_by_one() {
    let mut ernic = up(Map::V4_0_SILICON);
    let qp = ernic.create_qp(&small_queues()).expect("created");
    ernic.connect_qp(qp, &peer_v4()).expect("connected");
    let registers = &ernic.platform().registers;
    assert_eq!(registers.get(&0x18_0200), Some(&0x0004_0431), "QPCONF of QP 2");
    assert_eq!(registers.keys().find(|at| (0x18_0000..0x18_0100).contains(*at)), None);
}

#[test]
fn an_ipv6_peer_fills_four_words_last_four_bytes_first() {
    let mut ernic = up(Map::V4_0);
    let qp = ernic.create_qp(&small_queues()).expect("created");
    let ip = Ipv6Addr::new(0xFE80, 0, 0, 0, 0x1122, 0x3344, 0x5566, 0x7788);
    ernic.connect_qp(qp, &Remote { ip: IpAddr::V6(ip), ..peer_v4() }).expect("connected");
    let platform = ernic.platform();
    let words = [reg::IPDESADDR1, reg::IPDESADDR2, reg::IPDESADDR3, reg::IPDESADDR4]
        .map(|register| platform.qp(2, register));
    assert_eq!(words, [0x5566_7788, 0x1122_3344, 0, 0xFE80_0000]);
    assert_eq!(platform.qp(2, reg::QPCONF) & 1 << 7, 1 << 7, "IPv6");
}

#[test]
fn psn_0_is_preceded_by_the_last_psn_of_the_circle() {
    let mut ernic = up(Map::V4_0);
    let qp = ernic.create_qp(&small_queues()).expect("created");
    ernic.connect_qp(qp, &Remote { receive_psn: 0, ..peer_v4() }).expect("connected");
    assert_eq!(ernic.platform().qp(2, reg::LSTRQREQ), 0x04FF_FFFF);
}

#[test]
fn an_idle_queue_pair_is_destroyed_by_the_documented_steps() {
    let (mut ernic, qp) = connected();
    let live = ernic.platform().live.len();
    ernic.platform_mut().take_script();
    ernic.destroy_qp(qp).expect("destroyed");
    insta::assert_snapshot!("destroy", ernic.platform_mut().take_script());
    assert_eq!(ernic.platform().live.len(), live - 4);
    assert_eq!(ernic.ring(qp), Err(Error::QpUnknown { qp }));
    assert_eq!(ernic.create_qp(&small_queues()), Ok(qp), "the number is free again");
}

#[test]
fn a_fatal_queue_pair_is_flushed_before_it_is_destroyed() {
    let (mut ernic, qp) = connected();
    ernic.post(qp, &Request::send(1, Local::Inline(b"lost"))).expect("posted");
    ernic.ring(qp).expect("rung");
    ernic.platform_mut().set_qp(2, reg::STATQP, 1);
    ernic.platform_mut().take_script();
    ernic.destroy_qp(qp).expect("destroyed");
    let script = ernic.platform_mut().take_script();
    assert_eq!(script.lines().next(), Some("QP 2 QPCONF = 0x00040471"), "{script}");
}

#[test]
fn a_device_that_does_not_come_to_rest_is_a_timeout_that_names_the_register() {
    let (mut ernic, qp) = connected();
    ernic.platform_mut().can_flush = false;
    ernic.platform_mut().set_qp(2, reg::STATQP, 1);
    let error = ernic.destroy_qp(qp).expect_err("still busy");
    assert!(matches!(error, Error::Timeout { register, looks: 50, value: 1, .. }
        if register.name == "STATQP" && register.offset == 0x18_0188));
    assert_eq!(ernic.platform().pauses, 49, "a pause between two looks");
    ernic.platform_mut().can_flush = true;
    assert_eq!(ernic.destroy_qp(qp), Ok(()), "the queue pair was kept and can be tried again");
}

#[test]
fn recovery_rewinds_both_sides_and_the_queue_pair_works_again() {
    let (mut ernic, qp) = connected();
    for wrid in 0..3 {
        ernic.post(qp, &Request::send(wrid, Local::Inline(b"x"))).expect("posted");
    }
    ernic.ring(qp).expect("rung");
    ernic.platform_mut().receive(2, 1);
    ernic.recover_qp(qp).expect("recovered");
    let not_connected = ernic.post(qp, &Request::send(9, Local::Inline(b"x")));
    assert!(matches!(not_connected, Err(Error::QpState { .. })));
    ernic.connect_qp(qp, &peer_v4()).expect("connected again");
    assert_eq!(ernic.poll_completions(qp, &mut [Completion::default(); 4]), Ok(0));
    assert_eq!(ernic.poll_receive(qp), Ok(None));
    ernic.post(qp, &Request::send(7, Local::Inline(b"x"))).expect("posted");
    ernic.ring(qp).expect("rung");
    assert_eq!(ernic.platform().qp(2, reg::SQPI), 1, "counts from the start again");
    assert_eq!(ernic.platform().qp(2, reg::QPCONF), 0x0004_0431, "not under recovery any more");
}

#[test]
fn a_flushed_queue_pair_completes_as_failed_even_without_entries() {
    let mut ernic = up(Map::V4_0);
    let config =
        QpConfig { cqe_writes: false, index_source: IndexSource::Registers, ..small_queues() };
    let qp = ernic.create_qp(&config).expect("created");
    ernic.connect_qp(qp, &peer_v4()).expect("connected");
    ernic.post(qp, &Request::send(40, Local::Inline(b"x"))).expect("posted");
    ernic.post(qp, &Request::send(41, Local::Inline(b"x"))).expect("posted");
    ernic.ring(qp).expect("rung");
    ernic.platform_mut().set_qp(2, reg::CQHEAD, 1);
    let mut out = [Completion::default(); 4];
    assert_eq!(ernic.poll_completions(qp, &mut out), Ok(1));
    assert_eq!((out[0].wrid, out[0].failed), (40, false));
    ernic.flush_qp(qp).expect("flushed");
    assert_eq!(ernic.poll_completions(qp, &mut out), Ok(1));
    assert_eq!((out[0].wrid, out[0].failed), (41, true));
}

#[test]
fn a_work_request_costs_one_memory_write_and_a_batch_one_register_write() {
    let (mut ernic, qp) = connected();
    let before = costs(&ernic);
    for wrid in 0..3 {
        let local = Local::Bus { address: MEMORY_BASE, len: 64 };
        ernic.post(qp, &Request::write(wrid, local, 0x1000, 0x112)).expect("posted");
    }
    assert_eq!(costs(&ernic), (before.0, before.1 + 3, before.2));
    ernic.ring(qp).expect("rung");
    ernic.ring(qp).expect("nothing new, so not written again");
    assert_eq!(costs(&ernic), (before.0, before.1 + 3, before.2 + 1));
    assert_eq!(ernic.poll_completions(qp, &mut [Completion::default(); 8]), Ok(0));
    assert_eq!(costs(&ernic), (before.0 + 1, before.1 + 3, before.2 + 1));
}

#[test]
fn a_short_send_is_taken_into_the_entry_wherever_it_lies() {
    let (mut ernic, qp) = connected();
    let buffer = MEMORY_BASE + 0x1000;
    ernic.platform_mut().at(buffer, 16).copy_from_slice(b"sixteen bytes ok");
    ernic
        .post(qp, &Request::send(1, Local::Bus { address: buffer, len: 16 }))
        .expect("posted from memory");
    ernic.post(qp, &Request::send(2, Local::Inline(b"inline"))).expect("posted inline");
    let sq = ernic.platform().qp_pair(2, reg::SQBA, reg::SQBAMSB);
    let platform = ernic.platform_mut();
    assert_eq!(&platform.at(sq, 64)[32..48], b"sixteen bytes ok");
    let second = platform.at(sq + 64, 64);
    assert_eq!(&second[32..40], b"inline\0\0");
    assert_eq!(second[12..16], [6, 0, 0, 0]);
}

#[test]
fn rings_wrap_and_completions_come_in_order() {
    let (mut ernic, qp) = connected();
    let mut next_wrid = 100_u16;
    let mut index = 0;
    for batch in [1_u16, 2, 3, 3, 1, 3, 2, 3] {
        let mut entries = Vec::new();
        for _ in 0..batch {
            ernic.post(qp, &Request::send(next_wrid, Local::Inline(b"x"))).expect("room");
            entries.push((index % 4, [next_wrid as u8, 0, 2, 0]));
            index = index % 4 + 1;
            next_wrid += 1;
        }
        ernic.ring(qp).expect("rung");
        assert_eq!(ernic.platform().qp(2, reg::SQPI), u32::from(index));
        ernic.platform_mut().complete(2, index, &entries);
        let mut out = [Completion::default(); 8];
        assert_eq!(ernic.poll_completions(qp, &mut out), Ok(usize::from(batch)));
        for (done, expected) in out.iter().zip(next_wrid - batch..next_wrid) {
            assert_eq!((done.wrid, done.opcode, done.failed), (expected, Opcode::Send, false));
        }
    }
}

#[test]
fn completions_that_do_not_fit_are_kept_for_the_next_poll() {
    let (mut ernic, qp) = connected();
    for wrid in 0..3 {
        ernic.post(qp, &Request::send(wrid, Local::Inline(b"x"))).expect("posted");
    }
    ernic.ring(qp).expect("rung");
    let entries = [(0, [0, 0, 2, 0]), (1, [1, 0, 2, 1]), (2, [2, 0, 2, 0])];
    ernic.platform_mut().complete(2, 3, &entries);
    let mut out = [Completion::default(); 2];
    assert_eq!(ernic.poll_completions(qp, &mut out), Ok(2));
    assert_eq!(out.map(|done| (done.wrid, done.failed)), [(0, false), (1, true)]);
    assert_eq!(ernic.poll_completions(qp, &mut out), Ok(1));
    assert_eq!(out[0].wrid, 2);
}

#[test]
fn a_full_send_queue_refuses_and_changes_nothing() {
    let (mut ernic, qp) = connected();
    for wrid in 0..3 {
        ernic.post(qp, &Request::send(wrid, Local::Inline(b"x"))).expect("posted");
    }
    let before = costs(&ernic);
    let refused = ernic.post(qp, &Request::send(3, Local::Inline(b"x")));
    assert_eq!(refused, Err(Error::Full { qp, capacity: 3 }));
    assert_eq!(costs(&ernic), before);
}

#[test]
fn a_request_that_the_device_cannot_do_is_refused() {
    let (mut ernic, qp) = connected();
    let memory = |len| Local::Bus { address: MEMORY_BASE, len };
    let refused = [
        Request::write(1, Local::Inline(b"x"), 0, 0),
        Request::send(1, Local::Inline(&[0; 17])),
        Request::send(1, Local::Inline(b"")),
        Request::send(1, memory(0)),
        Request::read(1, memory((8 << 20) + 1), 0, 0),
    ];
    for request in refused {
        let error = ernic.post(qp, &request).expect_err("not supported");
        assert!(matches!(error, Error::Setting { .. }), "{request:?}: {error}");
    }
    let nowhere = Local::Bus { address: 0x10, len: 8 };
    let error = ernic.post(qp, &Request::send(1, nowhere)).expect_err("no such memory");
    assert_eq!(error, Error::Dma(DmaError { bus: 0x10, len: 8 }));
    ernic.ring(qp).expect("nothing to announce");
    assert_eq!(ernic.platform().qp(2, reg::SQPI), 0);
}

#[test]
fn a_device_that_reports_nonsense_is_an_error_not_a_panic() {
    let (mut ernic, qp) = connected();
    ernic.post(qp, &Request::send(5, Local::Inline(b"x"))).expect("posted");
    ernic.ring(qp).expect("rung");
    let mut out = [Completion::default(); 4];
    for head in [2, 4, 5, 0xFFFF] {
        ernic.platform_mut().complete(2, head, &[]);
        let error = ernic.poll_completions(qp, &mut out).expect_err("only one was announced");
        assert!(matches!(error, Error::RingIndex { value, .. } if value == u32::from(head)));
    }
    ernic.platform_mut().complete(2, 1, &[(0, [6, 0, 2, 0])]);
    let error = ernic.poll_completions(qp, &mut out).expect_err("another id");
    assert_eq!(error, Error::CompletionMismatch { qp, found: 6, posted: 5 });
    ernic.platform_mut().receive(2, 9);
    assert!(matches!(ernic.poll_receive(qp), Err(Error::RingIndex { value: 9, depth: 4, .. })));
}

#[test]
fn received_elements_are_lent_and_given_back_in_batches() {
    let (mut ernic, qp) = connected();
    assert_eq!(ernic.poll_receive(qp), Ok(None));
    let rq = ernic.platform().qp_pair(2, reg::RQBA, reg::RQBAMSB);
    let mut element = 0_u64;
    let mut producer = 0;
    for batch in [2_u16, 3, 1, 3, 3] {
        producer = (producer + batch - 1) % 4 + 1;
        ernic.platform_mut().receive(2, producer);
        let reads = ernic.platform().dma_reads;
        for _ in 0..batch {
            let got = ernic.poll_receive(qp).expect("sound").expect("a message");
            assert_eq!(got.bus, rq + element * 1024);
            assert_eq!((u64::from(got.element), got.len_max), (element, 1024));
            element = (element + 1) % 4;
        }
        assert_eq!(ernic.platform().dma_reads, reads + 1, "one look for a batch");
        assert_eq!(ernic.poll_receive(qp), Ok(None));
        assert_eq!(ernic.release_receive(qp, batch + 1), Err(Error::NotTaken { qp, taken: batch }));
        ernic.release_receive(qp, batch).expect("were taken");
        assert_eq!(ernic.platform().qp(2, reg::RQCI), u32::from(producer));
    }
}

#[test]
fn interrupts_are_taken_with_their_banks_and_cleared_both_ways() {
    let mut ernic = up(Map::V4_0);
    let platform = ernic.platform_mut();
    platform.registers.insert(reg::INTSTS.offset, 1 << 4 | 1 << 6 | 1 << 7);
    platform.registers.insert(reg::CQINTSTS.offset, 0b1010_0100);
    platform.registers.insert(reg::CQINTSTS.offset + 4, 1);
    platform.registers.insert(reg::RQINTSTS.offset, 1 << 31);
    platform.take_script();
    let taken = ernic.take_interrupts().expect("answers");
    assert_eq!(
        ernic.platform_mut().take_script(),
        "device INTSTS = 0x000000d0\ndevice CQINTSTSn = 0x000000a4\ndevice 0x100294 = 0x00000001\n\
         device RQINTSTSn = 0x80000000\n"
    );
    let numbers =
        |of: &mut dyn Iterator<Item = QpNumber>| of.map(QpNumber::get).collect::<Vec<_>>();
    assert_eq!(numbers(&mut taken.completions()), [2, 5, 7, 32]);
    assert_eq!(numbers(&mut taken.receives()), [31]);
    assert_eq!(numbers(&mut taken.congestion()), []);
    assert_eq!(taken.status & Interrupts::FATAL, Interrupts::FATAL);
    // Else an event between the caller's look and a late clear would be seen by neither.
    assert_eq!(ernic.platform().posted, 0, "the device has what was written");
    assert_eq!(ernic.take_interrupts().expect("answers").status, 0);
}

#[test]
fn fatal_entries_are_taken_in_a_circle() {
    let mut ernic = up(Map::V4_0);
    let low = u64::from(ernic.read(reg::IPKTERRQBA));
    let queue = u64::from(ernic.read(reg::IPKTERRQBAMSB)) << 32 | low;
    assert_eq!(ernic.take_fatal(), Ok(None));
    for round in 0..5_u8 {
        let slot = u64::from(round % 4);
        let entry = [round, 0, 2, 0, 0, 0, 0, 0];
        ernic.platform_mut().at(queue + slot * 8, 8).copy_from_slice(&entry);
        let pointer = u32::from((round + 1) % 4);
        ernic.platform_mut().registers.insert(reg::IPKTERRQWPTR.offset, pointer);
        let expected = FatalEntry { qp: QP2, code: u16::from(round) };
        assert_eq!(ernic.take_fatal(), Ok(Some(expected)));
        assert_eq!(ernic.take_fatal(), Ok(None));
    }
}

#[test]
fn each_counter_is_read_from_its_own_bits() {
    let mut ernic = up(Map::V4_0);
    for (number, row) in (1..).zip(COUNTER_ROWS) {
        let word = ernic.platform_mut().registers.entry(row.register.offset).or_default();
        assert_eq!(*word >> row.shift & (u32::MAX >> (32 - row.bits)), 0, "{} overlaps", row.name);
        *word |= number << row.shift;
    }
    let counters = ernic.counters();
    assert!(counters.iter().map(|(_, value)| value).eq(1..=COUNTER_ROWS.len() as u32));
    assert!(counters.iter().map(|(name, _)| name).eq(COUNTER_ROWS.iter().map(|row| row.name)));
}

#[test]
fn status_and_last_packets_are_decoded() {
    let (mut ernic, qp) = connected();
    ernic.platform_mut().set_qp(2, reg::STATQP, 0x5662_0E03);
    ernic.platform_mut().registers.insert(reg::LSTINPKT.offset, 0x0022_3404);
    let status = ernic.status(qp).expect("exists");
    assert!(status.is_fatal() && status.receive_queue_overflowed() && status.is_idle());
    assert!(status.was_retried());
    assert_eq!(
        (status.nak_syndrome(), status.retry_count(), status.rnr_retry_count()),
        (0x62, 6, 5)
    );
    assert_eq!((status.send_psn, status.last_request_psn), (0x123, 0x455));
    let (last_in, last_out) = ernic.last_packets();
    assert_eq!((last_in.opcode, last_in.psn_low, last_in.qp), (4, 0x234, 2));
    assert_eq!(last_out.opcode, 0);
}

#[test]
fn a_region_gets_a_row_and_a_key_and_gives_both_back() {
    let mut ernic = up(Map::V4_0);
    ernic.platform_mut().take_script();
    let first = ernic.register_region(&region()).expect("row 0");
    let second = ernic.register_region(&region()).expect("row 1");
    assert_eq!((first.rkey, second.rkey), (0x12, 0x112));
    ernic.deregister_region(first).expect("ours");
    assert_eq!(ernic.deregister_region(first), Err(Error::RegionUnknown { index: 0 }));
    insta::assert_snapshot!("regions", ernic.platform_mut().take_script());
    assert_eq!(ernic.register_region(&region()).expect("row 0 again").index, 0);
}

#[test]
fn an_impossible_region_is_refused_before_anything_is_written() {
    let mut ernic = up(Map { region_rows: 1, ..Map::V4_0 });
    let writes = ernic.platform().register_writes;
    let bad = [
        RegionConfig { pd: 1 << 24, ..region() },
        RegionConfig { len: 0, ..region() },
        RegionConfig { len: 1 << 48, ..region() },
        RegionConfig { va: u64::MAX, ..region() },
        RegionConfig { bus: u64::MAX - 1, ..region() },
    ];
    for config in bad {
        assert!(matches!(ernic.register_region(&config), Err(Error::Setting { .. })));
    }
    assert_eq!(ernic.platform().register_writes, writes);
    ernic.register_region(&region()).expect("the only row");
    assert_eq!(ernic.register_region(&region()), Err(Error::NoRegionFree { rows: 1 }));
}

#[test]
fn the_management_queue_pair_comes_first_and_once() {
    let mut ernic = up(Map::V4_0);
    let qp1 = ernic.create_qp1(&MadConfig::default()).expect("created");
    assert_eq!(qp1, QpNumber::MANAGEMENT);
    assert_eq!(ernic.platform().qp(1, reg::QPCONF), 0x0002_0031);
    let frame = Local::Bus { address: MEMORY_BASE, len: 318 };
    ernic.post(qp1, &Request::send(1, frame)).expect("enabled at once");
    assert_eq!(ernic.create_qp(&small_queues()), Ok(QP2));
    let again = ernic.create_qp1(&MadConfig::default());
    assert!(matches!(again, Err(Error::QpState { .. })));
}

#[test]
fn queue_pair_settings_out_of_range_are_refused_by_name() {
    let mut ernic = up(Map::V4_0);
    let good = small_queues();
    let bad = [
        ("sq_depth", QpConfig { sq_depth: 1, ..good }),
        ("rq_depth", QpConfig { rq_depth: 0, ..good }),
        ("rq_element_len", QpConfig { rq_element_len: 300, ..good }),
        ("rq_element_len", QpConfig { rq_element_len: 768, ..good }),
        ("rq_element_len", QpConfig { rq_element_len: 0, ..good }),
        ("pd", QpConfig { pd: 1 << 24, ..good }),
        ("timeout", QpConfig { timeout: 64, ..good }),
        ("retry_count", QpConfig { retry_count: 8, ..good }),
        ("rnr_retry", QpConfig { rnr_retry: 8, ..good }),
        ("rnr_timer", QpConfig { rnr_timer: 32, ..good }),
        ("traffic_class", QpConfig { traffic_class: 64, ..good }),
    ];
    let writes = ernic.platform().register_writes;
    for (name, config) in bad {
        let error = ernic.create_qp(&config).expect_err(name);
        assert!(matches!(error, Error::Setting { field, .. } if field == name), "{error}");
    }
    assert_eq!(ernic.platform().register_writes, writes);
}

#[test]
fn a_peer_that_cannot_be_is_refused() {
    let mut ernic = Ernic::bring_up(
        Recorder::new(Map::V4_0),
        Map::V4_0,
        &DeviceConfig { ipv6: Ipv6Addr::UNSPECIFIED, ..config() },
    )
    .expect("up");
    let qp = ernic.create_qp(&small_queues()).expect("created");
    let bad = [
        ("remote qpn", Remote { qpn: 1 << 24, ..peer_v4() }),
        ("send_psn", Remote { send_psn: 1 << 24, ..peer_v4() }),
        ("receive_psn", Remote { receive_psn: 1 << 24, ..peer_v4() }),
        ("remote IP version", Remote { ip: IpAddr::V6(Ipv6Addr::LOCALHOST), ..peer_v4() }),
    ];
    for (name, remote) in bad {
        let error = ernic.connect_qp(qp, &remote).expect_err(name);
        assert!(matches!(error, Error::Setting { field, .. } if field == name), "{error}");
    }
    ernic.connect_qp(qp, &peer_v4()).expect("connected");
    assert!(matches!(ernic.connect_qp(qp, &peer_v4()), Err(Error::QpState { .. })));
}

#[test]
fn bring_up_refuses_what_is_not_an_ernic() {
    let mut dead = Recorder::new(Map::V4_0);
    dead.is_dead = true;
    let error = Ernic::bring_up(dead, Map::V4_0, &config()).err().expect("dead");
    assert_eq!(error, Error::NoDevice { register: reg::XRNICCONF });

    let mut other = Recorder::new(Map::V4_0);
    other.stuck.push(reg::MACXADDLSB.offset);
    let error = Ernic::bring_up(other, Map::V4_0, &config()).err().expect("no such register");
    let register = reg::MACXADDLSB;
    assert_eq!(error, Error::ReadBack { register, wrote: 0x0000_0001, read: 0 });

    let bad = [
        DeviceConfig { num_qps_enabled: 0, ..config() },
        DeviceConfig { num_qps_enabled: 2048, ..config() },
        DeviceConfig { base_count_width: 16, ..config() },
        DeviceConfig { mac: [1, 0, 0, 0, 0, 0], ..config() },
    ];
    for config in bad {
        let error = Ernic::bring_up(Recorder::new(Map::V4_0), Map::V4_0, &config).err();
        assert!(matches!(error, Some(Error::Setting { .. })));
    }
}

#[test]
fn without_memory_nothing_is_left_behind() {
    let mut ernic = up(Map::V4_0);
    let live = ernic.platform().live.len();
    let large = QpConfig { rq_depth: 1024, rq_element_len: 1 << 20, ..small_queues() };
    let error = ernic.create_qp(&large).expect_err("4 MiB is all there is");
    assert_eq!(error, Error::NoDmaMemory { purpose: "receive queue", len: 1 << 30 });
    assert_eq!(ernic.platform().live.len(), live);
    let platform = ernic.shut_down();
    assert!(platform.live.is_empty());
    assert_eq!(platform.registers.get(&reg::XRNICCONF.offset), Some(&0));
}

#[test]
fn queue_pair_numbers_run_out_at_the_enabled_count() {
    let mut ernic = Ernic::bring_up(
        Recorder::new(Map::V4_0),
        Map::V4_0,
        &DeviceConfig { num_qps_enabled: 3, ..config() },
    )
    .expect("up");
    for number in 2..=3 {
        assert_eq!(ernic.create_qp(&small_queues()), Ok(QpNumber::new(number)));
    }
    assert_eq!(ernic.create_qp(&small_queues()), Err(Error::NoQpFree { num_qps_enabled: 3 }));
    for number in [0, 1, 4, 9999] {
        let qp = QpNumber::new(number);
        assert_eq!(
            ernic.post(qp, &Request::send(0, Local::Inline(b"x"))),
            Err(Error::QpUnknown { qp })
        );
    }
}

#[test]
fn every_error_names_the_thing_and_the_problem() {
    let register = reg::CQHEAD;
    let qp = QP2;
    let errors = [
        Error::NoDevice { register: reg::XRNICCONF },
        Error::ReadBack { register: reg::MACXADDLSB, wrote: 1, read: 0 },
        Error::NoDmaMemory { purpose: "receive queue", len: 4096 },
        Error::Dma(DmaError { bus: 0x1000, len: 64 }),
        Error::Setting { field: "pd", value: 1 << 24, allowed: "24 bits" },
        Error::NoQpFree { num_qps_enabled: 7 },
        Error::QpUnknown { qp },
        Error::QpState { qp, problem: "is not connected; connect_qp first" },
        Error::NoRegionFree { rows: 2048 },
        Error::RegionUnknown { index: 3 },
        Error::Full { qp, capacity: 63 },
        Error::NotTaken { qp, taken: 1 },
        Error::RingIndex { qp, register, value: 9, depth: 4 },
        Error::CompletionMismatch { qp, found: 6, posted: 5 },
        Error::Timeout { register, waiting_for: "CQHEAD to reach SQPI", value: 3, looks: 1000 },
    ];
    let text: String = errors.iter().map(|error| format!("{error}\n")).collect();
    insta::assert_snapshot!("errors", text);
}

proptest! {
    /// Whatever is posted, rung, completed and polled in whatever order, the rings give what a plain
    /// queue gives.
    #[test]
    fn rings_agree_with_a_plain_queue(
        depth in 2_u16..9,
        steps in proptest::collection::vec((0_u8..6, 1_u16..9), 0..200),
    ) {
        let mut ernic = up(Map::V4_0);
        let queues = QpConfig { sq_depth: depth, rq_depth: depth, ..small_queues() };
        let qp = ernic.create_qp(&queues).expect("created");
        ernic.connect_qp(qp, &peer_v4()).expect("connected");
        let (mut posted, mut rung, mut done) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        let (mut next_wrid, mut head) = (0_u16, 0);
        let (mut producer, mut filled, mut held) = (0, VecDeque::new(), 0);
        let after = |index: u16| index % depth + 1;
        for (step, count) in steps {
            match step {
                0 => {
                    let fits = posted.len() + rung.len() + done.len() < usize::from(depth) - 1;
                    let got = ernic.post(qp, &Request::send(next_wrid, Local::Inline(b"x")));
                    prop_assert_eq!(got.is_ok(), fits);
                    if fits {
                        posted.push_back(next_wrid);
                        next_wrid += 1;
                    }
                }
                1 => {
                    ernic.ring(qp).expect("exists");
                    rung.append(&mut posted);
                }
                2 => {
                    for wrid in rung.drain(..rung.len().min(count.into())) {
                        let [low, high] = wrid.to_le_bytes();
                        let slot = head % depth;
                        head = after(head);
                        let failed = wrid % 3 == 0;
                        let entry = [low, high, 2, failed.into()];
                        ernic.platform_mut().complete(2, head, &[(slot, entry)]);
                        done.push_back((wrid, failed));
                    }
                }
                3 => {
                    let mut out = vec![Completion::default(); count.into()];
                    let got = ernic.poll_completions(qp, &mut out).expect("a sound device");
                    prop_assert_eq!(got, done.len().min(count.into()));
                    for (completion, expected) in out.iter().zip(done.drain(..got)) {
                        prop_assert_eq!((completion.wrid, completion.failed), expected);
                    }
                }
                4 => {
                    for _ in 0..count.min(depth - 1 - held - filled.len() as u16) {
                        filled.push_back(producer % depth);
                        producer = after(producer);
                        ernic.platform_mut().receive(2, producer);
                    }
                }
                _ => {
                    let got = ernic.poll_receive(qp).expect("a sound device");
                    prop_assert_eq!(got.map(|message| message.element), filled.pop_front());
                    held += u16::from(got.is_some());
                    if count > 4 {
                        ernic.release_receive(qp, held).expect("all are ours");
                        held = 0;
                    }
                }
            }
        }
    }

    /// A doorbell word or register with any value is an answer or an error, never a panic.
    #[test]
    fn any_doorbell_value_is_survived(
        source in prop_oneof![Just(IndexSource::Memory), Just(IndexSource::Registers)],
        values in proptest::collection::vec(prop_oneof![0_u32..8, any::<u32>()], 1..20),
    ) {
        let mut ernic = up(Map::V4_0);
        let queues = QpConfig { index_source: source, ..small_queues() };
        let qp = ernic.create_qp(&queues).expect("created");
        ernic.connect_qp(qp, &peer_v4()).expect("connected");
        let mut held = 0;
        for value in values {
            // A full queue is fine here.
            let _ = ernic.post(qp, &Request::send(0, Local::Inline(b"x")));
            ernic.ring(qp).expect("exists");
            let platform = ernic.platform_mut();
            for (register, low, high) in [
                (reg::CQHEAD, reg::CQDBADD, reg::CQDBADDMSB),
                (reg::STATRQPIDB, reg::RQWPTRDBADD, reg::RQWPTRDBADDMSB),
            ] {
                let word = platform.qp_pair(2, low, high);
                platform.at(word, 4).copy_from_slice(&value.to_le_bytes());
                platform.set_qp(2, register, value);
            }
            let mut out = [Completion::default(); 8];
            let got = ernic.poll_completions(qp, &mut out);
            prop_assert!(matches!(got, Ok(0..4) | Err(_)), "{:?}", got);
            if let Ok(Some(message)) = ernic.poll_receive(qp) {
                prop_assert!(message.element < 4);
                held += 1;
            }
            prop_assert!(held <= 4, "no more elements than the ring has");
        }
    }
}

fn config() -> DeviceConfig {
    DeviceConfig {
        mac: [2, 0, 0, 0, 0, 1],
        ipv4: Ipv4Addr::new(10, 0, 0, 1),
        ipv6: Ipv6Addr::new(0xFE80, 0, 0, 0, 0, 0, 0, 1),
        num_qps_enabled: 40,
        incoming_error_entries: 4,
        interrupt_mask: Interrupts::FATAL | Interrupts::COMPLETION,
        wait_looks: 50,
        ..DeviceConfig::default()
    }
}

fn up(map: Map) -> Ernic<Recorder> {
    Ernic::bring_up(Recorder::new(map), map, &config()).expect("a device at rest")
}

fn small_queues() -> QpConfig {
    QpConfig {
        sq_depth: 4,
        rq_depth: 4,
        rq_element_len: 1024,
        path_mtu: PathMtu::Mtu4096,
        pd: 5,
        ..QpConfig::default()
    }
}

fn peer_v4() -> Remote {
    Remote {
        mac: [2, 0, 0, 0, 0, 2],
        ip: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
        qpn: 0x11,
        send_psn: 0x123,
        receive_psn: 0x456,
    }
}

fn connected() -> (Ernic<Recorder>, QpNumber) {
    let mut ernic = up(Map::V4_0);
    let qp = ernic.create_qp(&small_queues()).expect("created");
    ernic.connect_qp(qp, &peer_v4()).expect("connected");
    (ernic, qp)
}

fn region() -> RegionConfig {
    RegionConfig {
        pd: 5,
        va: 0x7000_0000_1000,
        bus: MEMORY_BASE + 0x1000,
        len: 0x1_0000_2000,
        access: RegionAccess::ReadWrite,
        key: 0x12,
    }
}

/// (memory reads, memory writes, register writes) so far.
fn costs(ernic: &Ernic<Recorder>) -> (u32, u32, u32) {
    let platform = ernic.platform();
    (platform.dma_reads, platform.dma_writes, platform.register_writes)
}
