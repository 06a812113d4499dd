//! What every two-way link must do.

use std::thread;
use std::time::Instant;

use rustix::event::PollFlags;
use softrnic_engine::packet::Template;
use softrnic_host::link::LinkError;

use crate::ends::{Close, Ends, Family, Kind, PATIENCE, collect, commit, take, wait};
use crate::stations::rules_and_captures;

/// A rule of the contract.
pub struct Rule {
    pub name: &'static str,
    pub check: fn(&Kind, Family, Ends),
}

pub const RULES: &[Rule] = &[
    Rule { name: "frames_arrive_whole_and_in_order_both_ways", check: order },
    Rule { name: "a_budget_is_kept_and_the_rest_comes_later", check: batch },
    Rule { name: "the_longest_frame_passes_and_a_longer_one_is_counted", check: mtu },
    Rule { name: "a_slow_receiver_stops_the_sender_or_is_counted", check: back_pressure },
    Rule { name: "whoever_waits_is_woken", check: wake },
    Rule { name: "fault_rules_and_captures_work_on_it", check: rules_and_captures },
    Rule { name: "the_end_of_a_link_is_told_where_it_can_be", check: close },
];

fn order(_: &Kind, family: Family, mut ends: Ends) {
    let lens = [0, 4, 64, 256, 1024, family.payload_max(), 1000, 8];
    for from in 0..2 {
        let mut number = 0;
        for turn in 0..60usize {
            // Runs of one length, which some links send as one message, and single ones.
            let runs = [1 + turn % 20, 1, 3];
            let mut expected = Vec::new();
            for (at, run) in runs.into_iter().enumerate() {
                let payload = lens[(turn + at) % lens.len()];
                let numbers = number..number + run as u32;
                ends.send(from, numbers.clone(), payload);
                expected.extend(numbers.map(|number| (number, payload)));
                number += run as u32;
            }
            assert_eq!(collect(&mut ends.ends[1 - from].link, expected.len()), expected);
        }
        let sent = ends.ends[from].link.counters();
        assert!(sent.tx_frames >= u64::from(number), "{sent:?}");
        assert_eq!((sent.tx_dropped, sent.tx_length_errors, sent.tx_not_carried), (0, 0, 0));
        let received = ends.ends[1 - from].link.counters();
        assert!(received.rx_frames >= u64::from(number), "{received:?}");
        assert_eq!((received.rx_length_errors, received.rx_dropped), (0, 0));
        // Our own links never leave anything to be guessed, and these ends are strict.
        assert_eq!((received.icrc_ip_id_inferred, received.icrc_strict_refused), (0, 0));
    }
}

fn batch(_: &Kind, _: Family, mut ends: Ends) {
    ends.send(0, 0..100, 64);
    let mut got = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while got.len() < 100 {
        assert!(Instant::now() < deadline, "{} of 100 came", got.len());
        let link = &mut ends.ends[1].link;
        // Whoever takes less than there is must not wait for ever for the rest.
        assert!(wait(link, PollFlags::IN, PATIENCE), "{} of 100 came", got.len());
        let taken = take(link, 3).unwrap();
        assert!(taken.len() <= 3);
        got.extend(taken.into_iter().map(|(number, _)| number));
    }
    assert_eq!(got, Vec::from_iter(0..100));
}

fn mtu(_: &Kind, family: Family, mut ends: Ends) {
    let longest = family.payload_max();
    ends.send(0, 0..1, longest);
    ends.send(0, 1..2, longest + 4);
    ends.send(0, 2..3, longest);
    assert_eq!(collect(&mut ends.ends[1].link, 2), [(0, longest), (2, longest)]);
    assert_eq!(ends.ends[0].link.counters().tx_length_errors, 1);
}

fn back_pressure(kind: &Kind, _: Family, mut ends: Ends) {
    const FRAMES: u32 = 20_000;
    let template = Template::new(&ends.flow(0)).unwrap();
    let [a, b] = &mut ends.ends;
    let before = (a.link.counters(), b.link.counters());
    let mut number = 0;
    while number < FRAMES {
        if commit(&mut a.link, &template, number, 1024) {
            number += 1;
            continue;
        }
        a.link.flush().unwrap();
        if a.link.room().is_none() {
            break;
        }
    }
    if kind.lossless {
        assert!(number < FRAMES, "nothing was taken, and nothing stopped the sender");
        assert!(number > 50, "only {number} frames fit");
    }
    let mut got = Vec::new();
    // Until the sender has got rid of everything and the receiver has taken it.
    loop {
        a.link.flush().unwrap();
        let taken = take(&mut b.link, 64).unwrap();
        if taken.is_empty() && !a.link.wants_write() {
            break;
        }
        got.extend(taken.into_iter().map(|(number, _)| number));
    }
    assert!(got.is_sorted_by(|a, b| a < b), "out of order");
    if kind.lossless {
        assert_eq!(got, Vec::from_iter(0..number));
    }
    let (sent, received) = (a.link.counters(), b.link.counters());
    let tx_frames = sent.tx_frames - before.0.tx_frames;
    assert_eq!(tx_frames + sent.tx_dropped - before.0.tx_dropped, u64::from(number));
    if kind.counts_losses {
        let dropped = received.rx_dropped - before.1.rx_dropped;
        // The kernel's own frames (neighbour discovery) can be among those that were dropped.
        let kernels = (got.len() as u64 + dropped).checked_sub(tx_frames);
        assert!(kernels.is_some_and(|kernels| kernels < 20), "{tx_frames} sent, {received:?}");
    }
    // There is room again, the link says so, and frames pass.
    if a.link.room().is_none() {
        let flags = if a.link.wants_write() { PollFlags::OUT } else { PollFlags::IN };
        assert!(wait(&mut a.link, flags, PATIENCE));
    }
    ends.send(0, number..number + 10, 1024);
    let expected: Vec<_> = (number..number + 10).map(|number| (number, 1024)).collect();
    assert_eq!(collect(&mut ends.ends[1].link, 10), expected);
}

fn wake(_: &Kind, _: Family, mut ends: Ends) {
    let [there, back] = [0, 1].map(|from| Template::new(&ends.flow(from)).unwrap());
    let [a, b] = ends.ends;
    thread::scope(|scope| {
        // Each waits for the other's frame before it sends its own.
        let other = scope.spawn(move || {
            let mut link = b.link;
            for number in 0..200 {
                assert_eq!(collect(&mut link, 1), [(number, 64)]);
                assert!(commit(&mut link, &back, number, 64));
                link.flush().unwrap();
            }
            link
        });
        let mut link = a.link;
        for number in 0..200 {
            assert!(commit(&mut link, &there, number, 64));
            link.flush().unwrap();
            assert_eq!(collect(&mut link, 1), [(number, 64)]);
        }
        other.join().unwrap();
    });
    ends.namespaces.clear();
}

fn close(kind: &Kind, _: Family, mut ends: Ends) {
    let template = Template::new(&ends.flow(0)).unwrap();
    ends.send(1, 0..5, 64);
    if kind.close == Close::InterfaceDeleted {
        let all: Vec<_> = (0..5).map(|number| (number, 64)).collect();
        assert_eq!(collect(&mut ends.ends[0].link, 5), all);
        ends.namespaces[0].ip(&format!("link delete {}", ends.interface)).unwrap();
    }
    let [mut a, b] = ends.ends;
    drop(b);
    if kind.close == Close::Untold {
        assert_eq!(collect(&mut a.link, 5).len(), 5);
        for number in 0..10 {
            assert!(commit(&mut a.link, &template, number, 64));
            a.link.flush().unwrap();
            assert_eq!(take(&mut a.link, 64).unwrap(), []);
        }
        return;
    }
    let mut got = 0;
    let deadline = Instant::now() + PATIENCE;
    let error = loop {
        assert!(Instant::now() < deadline, "it never said that it is gone");
        match take(&mut a.link, 64) {
            Ok(taken) if taken.is_empty() => {
                wait(&mut a.link, PollFlags::IN, PATIENCE);
            }
            Ok(taken) => got += taken.len(),
            Err(error) => break error,
        }
    };
    assert_eq!(got, if kind.close == Close::Told { 5 } else { 0 });
    assert!(error.is_gone(), "{error}");
    assert!(error.to_string().contains(a.link.name()), "{error} names the link");
    // It stays so, for the sender as well.
    assert!(take(&mut a.link, 64).unwrap_err().is_gone());
    assert!(commit(&mut a.link, &template, 0, 64));
    let error: LinkError = a.link.flush().unwrap_err();
    assert!(error.is_gone(), "{error}");
}
