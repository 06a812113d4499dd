//! Verbs with threads: two NICs on a socket pair, several threads that post and poll, and every way to let go of
//! things at the wrong moment.
#![allow(clippy::unwrap_used, reason = "a test's own functions may panic")]

use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use softrnic_engine::Counter;
use softrnic_host::link::QemuStream;
use softrnic_host::port::PortConfig;
use softrnic_host::verbs::{
    AccessFlags, AsyncEvent, Buffer, Connection, Context, Cq, Error, Event, Mr, Options, Payload,
    Pd, Qp, QpInit, Reason, RecvRequest, Refusal, RemoteAccess, SendOp, SendRequest, Service, Sge,
    State, Status, WorkCompletion,
};

/// Far more than anything here takes, however busy the machine is.
const LONG: Duration = Duration::from_secs(60);

struct End {
    nic: Context,
    pd: Pd,
    ip: Ipv4Addr,
}

fn pair() -> [End; 2] {
    let (left, right) = UnixStream::pair().unwrap();
    [(1, left), (2, right)].map(|(number, socket)| {
        let ip = Ipv4Addr::new(192, 0, 2, number);
        let mac = [2, 0, 0, 0, 0, number];
        let port = PortConfig { mac, ipv4: Some((ip, 24)), ..PortConfig::default() };
        let link = QemuStream::over(socket.into(), format!("wire{number}"), 1500).unwrap();
        let nic = Context::over(Box::new(link), Options { port, ..Options::default() }).unwrap();
        let pd = nic.alloc_pd().unwrap();
        End { nic, pd, ip }
    })
}

fn connect(near: (&End, &Qp), far: (&End, &Qp)) {
    for ((end, qp), (peer, peer_qp)) in [(near, far), (far, near)] {
        let path = end.nic.path_to(peer.ip.into(), LONG).unwrap();
        let remote_access = RemoteAccess { read: true, write: true, atomic: true };
        let connection = Connection {
            path,
            dest_qpn: peer_qp.qpn(),
            remote_access,
            rnr_retry: 7,
            ..Connection::default()
        };
        qp.connect(&connection).unwrap();
    }
}

fn send(wr_id: u64, sges: &[Sge]) -> SendRequest<'_> {
    SendRequest { wr_id, payload: Payload::Sges(sges), signaled: true, ..SendRequest::default() }
}

fn write(wr_id: u64, sges: &[Sge], to: &Mr) -> SendRequest<'static> {
    let op = SendOp::Write { remote_va: to.va(), rkey: to.rkey() };
    // Lists live as long as the test: leaking one is shorter than naming its lifetime.
    let sges: &'static [Sge] = sges.to_vec().leak();
    SendRequest { op, ..send(wr_id, sges) }
}

/// Waits for one completion.
fn next(cq: &Cq) -> WorkCompletion {
    let mut done = [WorkCompletion::default()];
    assert_eq!(cq.wait(&mut done, LONG), 1, "no completion in time");
    done[0]
}

fn has(status: Status) -> impl Fn(&WorkCompletion) -> bool {
    move |done| done.status == status
}

#[test]
fn several_threads_post_and_poll_at_once_and_every_byte_arrives() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 300;
    const LEN: usize = 3000;
    let ends = pair();
    let [a, b] = &ends;
    // All threads of a side share one completion queue for sends, one for receives.
    let [a_cq, b_cq] = [a, b].map(|end| end.nic.create_cq(4096).unwrap());
    let finished = AtomicU64::new(0);
    // The last answer must leave before its queue pair and memory go.
    let mut kept = Vec::new();
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (own_a, own_b) = (a.nic.create_cq(64).unwrap(), b.nic.create_cq(64).unwrap());
            let a_qp = a.pd.create_qp(&QpInit { recv_cq: &own_a, ..QpInit::new(&a_cq) }).unwrap();
            let b_qp = b.pd.create_qp(&QpInit { recv_cq: &own_b, ..QpInit::new(&b_cq) }).unwrap();
            connect((a, &a_qp), (b, &b_qp));
            let [a_mr, b_mr] =
                [a, b].map(|end| end.pd.reg_mr(2 * LEN, AccessFlags::LOCAL).unwrap());
            kept.push((a_qp.clone(), b_qp.clone(), a_mr.clone(), b_mr.clone()));
            let finished = &finished;
            // Ping from one thread, pong from another, each with its own memory.
            for (mr, qp, cq, first) in [(a_mr, a_qp, own_a, true), (b_mr, b_qp, own_b, false)] {
                scope.spawn(move || {
                    let (out, into) = ([mr.sge(0, LEN as u32)], [mr.sge(LEN, LEN as u32)]);
                    qp.post_recv(&RecvRequest { wr_id: 0, sges: &into }).unwrap();
                    for round in 0..ROUNDS {
                        let byte = |first: bool| (round * 7 + number * 2 + u64::from(first)) as u8;
                        // Every eighth is signaled, so that the send queue does not fill.
                        let signaled = round % 8 == 0;
                        let answer = SendRequest { signaled, ..send(round, &out) };
                        if first {
                            mr.write(0, &[byte(true); LEN]).unwrap();
                            qp.post_send(&answer).unwrap();
                        }
                        let done = next(&cq);
                        assert_eq!((done.status, done.byte_len), (Status::Success, LEN as u32));
                        let mut bytes = [0; LEN];
                        mr.read(LEN, &mut bytes).unwrap();
                        assert_eq!(bytes, [byte(!first); LEN]);
                        qp.post_recv(&RecvRequest { wr_id: round, sges: &into }).unwrap();
                        if !first {
                            mr.write(0, &[byte(false); LEN]).unwrap();
                            qp.post_send(&answer).unwrap();
                        }
                    }
                    finished.fetch_add(1, Ordering::Relaxed);
                });
            }
        }
        // Somebody polls the shared queues meanwhile.
        let mut done = [WorkCompletion::default(); 16];
        let start = Instant::now();
        while finished.load(Ordering::Relaxed) < 2 * THREADS {
            assert!(start.elapsed() < LONG, "the threads hang");
            for cq in [&a_cq, &b_cq] {
                let count = cq.wait(&mut done, Duration::from_millis(10));
                let failed = done[..count].iter().find(|done| done.status != Status::Success);
                assert_eq!(failed, None);
            }
        }
    });
}

#[test]
fn a_send_queue_takes_its_depth_and_has_room_again_after_completions() {
    let ends = pair();
    let [a, b] = &ends;
    let [a_cq, b_cq] = [a, b].map(|end| end.nic.create_cq(64).unwrap());
    let a_qp = a.pd.create_qp(&QpInit { sq_depth: 4, ..QpInit::new(&a_cq) }).unwrap();
    let b_qp = b.pd.create_qp(&QpInit::new(&b_cq)).unwrap();
    connect((a, &a_qp), (b, &b_qp));
    let (a_mr, b_mr) = (
        a.pd.reg_mr(64, AccessFlags::LOCAL).unwrap(),
        b.pd.reg_mr(64, AccessFlags::LOCAL).unwrap(),
    );
    let sges = [a_mr.sge(0, 64)];
    for round in 0..20 {
        // Without a receive nothing ends, so the fifth finds no room.
        for i in 0..4 {
            a_qp.post_send(&send(round * 4 + i, &sges)).unwrap();
        }
        let refused = a_qp.post_send(&send(99, &sges)).unwrap_err();
        assert!(matches!(refused, Error::Verb(Refusal::QueueFull { depth: 4, .. })), "{refused}");
        for i in 0..4 {
            b_qp.post_recv(&RecvRequest { wr_id: i, sges: &[b_mr.sge(0, 64)] }).unwrap();
        }
        for i in 0..4 {
            assert_eq!((next(&a_cq).wr_id, next(&b_cq).wr_id), (round * 4 + i, i));
        }
    }
}

#[test]
fn requests_that_cannot_be_are_refused_when_posted() {
    let ends = pair();
    let [a, b] = &ends;
    let cq = a.nic.create_cq(8).unwrap();
    let qp = a.pd.create_qp(&QpInit { max_sge: 2, max_inline: 8, ..QpInit::new(&cq) }).unwrap();
    let mr = a.pd.reg_mr(64, AccessFlags::LOCAL).unwrap();
    let refused = |request: &SendRequest<'_>| match qp.post_send(request) {
        Err(Error::Verb(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    let one = [mr.sge(0, 1); 3];
    let (qpn, state) = (qp.qpn(), State::Reset);
    assert_eq!(refused(&send(0, &one[..1])), Refusal::WrongState { qpn, state });
    assert!(qp.post_recv(&RecvRequest { wr_id: 0, sges: &one[..1] }).is_err());
    qp.connect(&Connection::default()).unwrap();
    assert_eq!(refused(&send(0, &one)), Refusal::TooManySges { given: 3, max: 2 });
    let inline = SendRequest { payload: Payload::Inline(&[0; 9]), ..SendRequest::default() };
    assert_eq!(refused(&inline), Refusal::TooMuchInline { given: 9, max: 8 });
    let op = SendOp::FetchAdd { remote_va: 0, rkey: mr.rkey(), add: 1 };
    let atomic = SendRequest { op, ..send(0, &one[..1]) };
    assert_eq!(refused(&atomic), Refusal::MessageLength { given: 1, max: 8 });
    // And objects of two NICs do not mix.
    let foreign = b.pd.create_qp(&QpInit::new(&cq)).unwrap_err();
    assert!(matches!(foreign, Error::ForeignObject("completion queue")), "{foreign}");
}

#[test]
fn a_forgotten_region_stays_memory_for_the_nic() {
    let ends = pair();
    let [a, b] = &ends;
    let [a_cq, b_cq] = [a, b].map(|end| end.nic.create_cq(64).unwrap());
    let a_qp = a.pd.create_qp(&QpInit::new(&a_cq)).unwrap();
    let b_qp = b.pd.create_qp(&QpInit::new(&b_cq)).unwrap();
    connect((a, &a_qp), (b, &b_qp));
    let source = a.pd.reg_mr(4096, AccessFlags::LOCAL).unwrap();
    source.write(0, &[5; 4096]).unwrap();
    let buffer = Buffer::new(4096).unwrap();
    let target = b.pd.reg_buffer(&buffer, AccessFlags::ALL).unwrap();
    let request = write(0, &[source.sge(0, 4096)], &target);
    // Neither guard runs its destructor: both regions stay, and so does their memory.
    std::mem::forget(target);
    std::mem::forget(source);
    for _ in 0..50 {
        a_qp.post_send(&request).unwrap();
        assert_eq!(next(&a_cq).status, Status::Success);
    }
    let mut bytes = [0; 4096];
    buffer.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [5; 4096]);
}

#[test]
fn a_region_that_goes_during_traffic_ends_it_with_access_errors_and_nothing_is_written_later() {
    for _ in 0..20 {
        let ends = pair();
        let [a, b] = &ends;
        let [a_cq, b_cq] = [a, b].map(|end| end.nic.create_cq(512).unwrap());
        let a_qp = a.pd.create_qp(&QpInit::new(&a_cq)).unwrap();
        let b_qp = b.pd.create_qp(&QpInit::new(&b_cq)).unwrap();
        connect((a, &a_qp), (b, &b_qp));
        let source = a.pd.reg_mr(65536, AccessFlags::LOCAL).unwrap();
        let buffer = Buffer::new(65536).unwrap();
        let target = b.pd.reg_buffer(&buffer, AccessFlags::ALL).unwrap();
        source.write(0, &vec![0xEE; 65536]).unwrap();
        let request = write(1, &[source.sge(0, 65536)], &target);
        for _ in 0..100 {
            a_qp.post_send(&request).unwrap();
        }
        assert_eq!(next(&a_cq).status, Status::Success);
        drop(target);
        // Now nothing of the NIC reaches this memory.
        buffer.write(0, &vec![0x11; 65536]).unwrap();
        let mut seen = vec![next(&a_cq)];
        while seen.len() < 99 {
            seen.push(next(&a_cq));
        }
        let failed = seen.iter().position(|done| done.status != Status::Success);
        if let Some(at) = failed {
            assert_eq!(seen[at].status, Status::RemoteAccess);
            assert!(seen[at + 1..].iter().all(ends_flushed));
        }
        let mut bytes = vec![0; 65536];
        buffer.read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0x11));
    }
}

fn ends_flushed(done: &WorkCompletion) -> bool {
    has(Status::Flushed)(done)
}

#[test]
fn things_may_be_dropped_in_any_order_with_work_in_flight() {
    for order in 0..24 {
        let [a, b] = pair();
        let [a_cq, b_cq] = [&a, &b].map(|end| end.nic.create_cq(64).unwrap());
        let a_qp = a.pd.create_qp(&QpInit::new(&a_cq)).unwrap();
        let b_qp = b.pd.create_qp(&QpInit::new(&b_cq)).unwrap();
        connect((&a, &a_qp), (&b, &b_qp));
        let mr = a.pd.reg_mr(1 << 20, AccessFlags::LOCAL).unwrap();
        for i in 0..8 {
            a_qp.post_send(&send(i, &[mr.sge(0, 1 << 20)])).unwrap();
        }
        let mut things: Vec<Box<dyn std::any::Any>> =
            vec![Box::new(a), Box::new(a_qp), Box::new(mr), Box::new(a_cq)];
        // Every permutation of four.
        let mut rest = order;
        for left in (1..=4).rev() {
            drop(things.remove(rest % left));
            rest /= left;
        }
        // The other end is none the worse.
        assert!(b.nic.counters().is_ok());
    }
}

#[test]
fn completions_of_a_destroyed_queue_pair_are_gone_and_those_of_others_stay() {
    let ends = pair();
    let [a, b] = &ends;
    let cq = a.nic.create_cq(64).unwrap();
    let b_cq = b.nic.create_cq(64).unwrap();
    let mr = a.pd.reg_mr(64, AccessFlags::LOCAL).unwrap();
    let qps = [0, 1].map(|_| {
        let qp = a.pd.create_qp(&QpInit::new(&cq)).unwrap();
        let peer = b.pd.create_qp(&QpInit::new(&b_cq)).unwrap();
        connect((a, &qp), (b, &peer));
        (qp, peer)
    });
    let target = b.pd.reg_mr(64, AccessFlags::ALL).unwrap();
    let request = write(0, &[mr.sge(0, 64)], &target);
    let [(first, _peer), (second, _other_peer)] = qps;
    for qp in [&first, &second, &first, &second] {
        qp.post_send(&request).unwrap();
    }
    // When the peer has executed them and nothing waits for an answer, all are complete.
    let all_sent = || {
        let executed = b.nic.counters().unwrap().engine[Counter::WriteRequests];
        let state = a.nic.device_state().unwrap();
        executed == 4 && state.queue_pairs.iter().all(|qp| qp.in_flight == 0)
    };
    let start = Instant::now();
    while !all_sent() {
        assert!(start.elapsed() < LONG);
        thread::yield_now();
    }
    let kept = second.qpn();
    drop(first);
    let mut done = [WorkCompletion::default(); 8];
    assert_eq!(cq.poll(&mut done), 2);
    assert!(done[..2].iter().all(|done| done.qpn == kept));
}

#[test]
fn reset_drops_what_was_posted_and_the_queue_has_all_its_room_again() {
    let ends = pair();
    let [a, b] = &ends;
    let [a_cq, b_cq] = [a, b].map(|end| end.nic.create_cq(64).unwrap());
    let init = QpInit { sq_depth: 4, rq_depth: 4, ..QpInit::new(&a_cq) };
    let a_qp = a.pd.create_qp(&init).unwrap();
    let b_qp = b.pd.create_qp(&QpInit::new(&b_cq)).unwrap();
    let mr = a.pd.reg_mr(64, AccessFlags::LOCAL).unwrap();
    let sges = [mr.sge(0, 64)];
    for _ in 0..3 {
        connect((a, &a_qp), (b, &b_qp));
        for i in 0..4 {
            a_qp.post_send(&send(i, &sges)).unwrap();
            a_qp.post_recv(&RecvRequest { wr_id: i, sges: &sges }).unwrap();
        }
        assert!(a_qp.post_recv(&RecvRequest { wr_id: 9, sges: &sges }).is_err());
        a_qp.set_state(State::Reset).unwrap();
        b_qp.set_state(State::Reset).unwrap();
        assert_eq!(a_cq.poll(&mut [WorkCompletion::default()]), 0);
        assert_eq!(a_qp.query().unwrap().state, State::Reset);
    }
}

#[test]
fn a_channel_wakes_a_thread_that_sleeps_and_tells_which_queue() {
    let ends = pair();
    let [a, b] = &ends;
    let channel = b.nic.create_channel().unwrap();
    let a_cq = a.nic.create_cq(256).unwrap();
    let mr = b.pd.reg_mr(64, AccessFlags::LOCAL).unwrap();
    let mut queues = Vec::new();
    for _ in 0..3 {
        let cq = b.nic.create_cq_on(256, &channel).unwrap();
        let qp = b.pd.create_qp(&QpInit::new(&cq)).unwrap();
        let peer = a.pd.create_qp(&QpInit::new(&a_cq)).unwrap();
        connect((a, &peer), (b, &qp));
        queues.push((cq, qp, peer));
    }
    assert_eq!(channel.get_event(Duration::ZERO), None);
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut got = [0u32; 3];
            for (cq, qp, _) in &queues {
                for _ in 0..4 {
                    qp.post_recv(&RecvRequest { wr_id: 0, sges: &[mr.sge(0, 64)] }).unwrap();
                }
                cq.req_notify(false);
            }
            while got != [100; 3] {
                let id = channel.get_event(LONG).expect("an event in time");
                let at = queues.iter().position(|(cq, ..)| cq.id() == id).unwrap();
                let (cq, qp, _) = &queues[at];
                // Arm first, poll afterwards: nothing falls in between.
                cq.req_notify(false);
                let mut done = [WorkCompletion::default(); 8];
                loop {
                    let count = cq.poll(&mut done);
                    if count == 0 {
                        break;
                    }
                    for done in &done[..count] {
                        assert_eq!(done.status, Status::Success);
                        got[at] += 1;
                        qp.post_recv(&RecvRequest { wr_id: 0, sges: &[mr.sge(0, 64)] }).unwrap();
                    }
                }
            }
        });
        for _ in 0..100 {
            for (_, _, peer) in &queues {
                let request = SendRequest {
                    payload: Payload::Inline(b"wake up"),
                    signaled: true,
                    ..SendRequest::default()
                };
                peer.post_send(&request).unwrap();
            }
            for _ in 0..3 {
                assert_eq!(next(&a_cq).status, Status::Success);
            }
        }
        receiver.join().unwrap();
    });
}

#[test]
fn only_solicited_messages_wake_where_only_those_are_asked_for() {
    let ends = pair();
    let [a, b] = &ends;
    let channel = b.nic.create_channel().unwrap();
    let (a_cq, b_cq) = (a.nic.create_cq(16).unwrap(), b.nic.create_cq_on(16, &channel).unwrap());
    let a_qp = a.pd.create_qp(&QpInit::new(&a_cq)).unwrap();
    let b_qp = b.pd.create_qp(&QpInit::new(&b_cq)).unwrap();
    connect((a, &a_qp), (b, &b_qp));
    for _ in 0..2 {
        b_qp.post_recv(&RecvRequest::default()).unwrap();
    }
    b_cq.req_notify(true);
    a_qp.post_send(&send(0, &[])).unwrap();
    assert_eq!(next(&a_cq).status, Status::Success);
    assert_eq!(next(&b_cq).status, Status::Success);
    assert_eq!(channel.get_event(Duration::ZERO), None);
    a_qp.post_send(&SendRequest { solicited: true, ..send(0, &[]) }).unwrap();
    assert_eq!(channel.get_event(LONG), Some(b_cq.id()));
    assert!(next(&b_cq).solicited);
}

#[test]
fn a_shared_receive_queue_serves_two_and_gets_its_room_back() {
    let ends = pair();
    let [a, b] = &ends;
    let [a_cq, b_cq] = [a, b].map(|end| end.nic.create_cq(256).unwrap());
    let srq = b.pd.create_srq(8, 1).unwrap();
    let mr = b.pd.reg_mr(64, AccessFlags::LOCAL).unwrap();
    let receive = [mr.sge(0, 64)];
    let qps = [0, 1].map(|_| {
        let qp = a.pd.create_qp(&QpInit::new(&a_cq)).unwrap();
        let peer = b.pd.create_qp(&QpInit { srq: Some(&srq), ..QpInit::new(&b_cq) }).unwrap();
        connect((a, &qp), (b, &peer));
        assert!(peer.post_recv(&RecvRequest::default()).is_err());
        (qp, peer)
    });
    for _ in 0..10 {
        for wr_id in 0..8 {
            srq.post_recv(&RecvRequest { wr_id, sges: &receive }).unwrap();
        }
        assert!(srq.post_recv(&RecvRequest { wr_id: 8, sges: &receive }).is_err());
        for i in 0..8 {
            qps[i % 2].0.post_send(&send(0, &[])).unwrap();
            assert_eq!(next(&a_cq).status, Status::Success);
            assert_eq!(next(&b_cq).wr_id, i as u64);
        }
    }
    srq.set_limit(2).unwrap();
    srq.post_recv(&RecvRequest { wr_id: 0, sges: &receive }).unwrap();
    qps[0].0.post_send(&send(0, &[])).unwrap();
    let event = b.nic.get_event(LONG).unwrap();
    assert!(matches!(
        event,
        Event::Async(AsyncEvent::SrqLimitReached(_) | AsyncEvent::CommunicationEstablished(_))
    ));
}

#[test]
fn a_completion_queue_that_nobody_polls_fails_its_queue_pairs_and_keeps_what_it_has() {
    let ends = pair();
    let [a, b] = &ends;
    let [a_cq, b_cq] = [a, b].map(|end| end.nic.create_cq(4).unwrap());
    let a_qp = a.pd.create_qp(&QpInit::new(&a_cq)).unwrap();
    let b_qp = b.pd.create_qp(&QpInit::new(&b_cq)).unwrap();
    connect((a, &a_qp), (b, &b_qp));
    let mr = a.pd.reg_mr(8, AccessFlags::LOCAL).unwrap();
    let target = b.pd.reg_mr(8, AccessFlags::ALL).unwrap();
    let request = write(0, &[mr.sge(0, 8)], &target);
    for _ in 0..32 {
        a_qp.post_send(&request).unwrap();
    }
    let event = loop {
        match a.nic.get_event(LONG).expect("an event in time") {
            Event::Async(event @ AsyncEvent::CqError(_)) => break event,
            other => assert!(!matches!(other, Event::Stopped), "{other:?}"),
        }
    };
    assert!(matches!(event, AsyncEvent::CqError(_)));
    let fatal = a.nic.get_event(LONG).unwrap();
    assert!(
        matches!(
            fatal,
            Event::Async(AsyncEvent::QpFatal { reason: Reason::CompletionQueueFull, .. })
        ),
        "{fatal:?}"
    );
    let mut done = [WorkCompletion::default(); 32];
    let count = a_cq.poll(&mut done);
    assert!(count >= 4, "{count}");
    assert!(done[..count].iter().all(has(Status::Success)));
}

#[test]
fn when_the_link_goes_away_work_ends_in_errors_and_an_event_says_why() {
    let [a, b] = pair();
    let [a_cq, b_cq] = [&a, &b].map(|end| end.nic.create_cq(64).unwrap());
    let a_qp = a.pd.create_qp(&QpInit::new(&a_cq)).unwrap();
    let b_qp = b.pd.create_qp(&QpInit::new(&b_cq)).unwrap();
    connect((&a, &a_qp), (&b, &b_qp));
    drop((b_qp, b_cq, b));
    let mr = a.pd.reg_mr(64, AccessFlags::LOCAL).unwrap();
    for i in 0..3 {
        a_qp.post_send(&send(i, &[mr.sge(0, 64)])).unwrap();
    }
    assert_eq!(next(&a_cq).status, Status::RetryExceeded);
    assert!(ends_flushed(&next(&a_cq)) && ends_flushed(&next(&a_cq)));
    let mut events = std::iter::from_fn(|| a.nic.get_event(LONG));
    assert!(events.any(|event| matches!(event, Event::LinkDown { link, .. } if link == "wire1")));
}

#[test]
fn datagrams_find_their_way_by_address_handle_and_carry_their_grh_area() {
    let ends = pair();
    let [a, b] = &ends;
    let [a_cq, b_cq] = [a, b].map(|end| end.nic.create_cq(64).unwrap());
    let init = |cq| QpInit { service: Service::Ud, ..QpInit::new(cq) };
    let a_qp = a.pd.create_qp(&init(&a_cq)).unwrap();
    let b_qp = b.pd.create_gsi_qp(&init(&b_cq)).unwrap();
    for qp in [&a_qp, &b_qp] {
        qp.connect(&Connection { qkey: 0x8001_0000, ..Connection::default() }).unwrap();
    }
    assert_eq!((b_qp.qpn().get(), b_qp.service()), (1, Service::Ud));
    let mr = b.pd.reg_mr(256, AccessFlags::LOCAL).unwrap();
    b_qp.post_recv(&RecvRequest { wr_id: 3, sges: &[mr.sge(0, 256)] }).unwrap();
    // The receive is there before the datagram can be: it goes through the same thread.
    assert!(b_qp.query().is_ok());
    let ah = a.pd.create_ah(&a.nic.path_to(b.ip.into(), LONG).unwrap()).unwrap();
    let ud = Some(ah.to(b_qp.qpn(), 0x8001_0000));
    let payload = Payload::Inline(b"management");
    let request = SendRequest { payload, ud, signaled: true, ..SendRequest::default() };
    a_qp.post_send(&request).unwrap();
    assert_eq!(next(&a_cq).status, Status::Success);
    let done = next(&b_cq);
    assert_eq!((done.wr_id, done.byte_len, done.source_qpn), (3, 50, Some(a_qp.qpn())));
    let mut bytes = [0; 10];
    mr.read(40, &mut bytes).unwrap();
    assert_eq!(&bytes, b"management");
    let mut source = [0; 4];
    mr.read(32, &mut source).unwrap();
    assert_eq!(source, a.ip.octets());
}

#[test]
fn unacknowledged_packets_go_on_after_the_link_took_nothing_for_a_while() {
    const MESSAGES: u64 = 64;
    let (near, mut far) = UnixStream::pair().unwrap();
    let peer = Ipv4Addr::new(192, 0, 2, 2);
    let port = PortConfig {
        ipv4: Some((Ipv4Addr::new(192, 0, 2, 1), 24)),
        neighbours: vec![(peer.into(), [2, 0, 0, 0, 0, 2])],
        ..PortConfig::default()
    };
    let link = QemuStream::over(near.into(), "wire".into(), 1500).unwrap();
    let nic = Context::over(Box::new(link), Options { port, ..Options::default() }).unwrap();
    let pd = nic.alloc_pd().unwrap();
    let cq = nic.create_cq(128).unwrap();
    let qp = pd.create_qp(&QpInit { service: Service::Uc, ..QpInit::new(&cq) }).unwrap();
    let path = nic.path_to(peer.into(), LONG).unwrap();
    qp.connect(&Connection { path, ..Connection::default() }).unwrap();
    let mr = pd.reg_mr(65536, AccessFlags::LOCAL).unwrap();
    for wr_id in 0..MESSAGES {
        qp.post_send(&send(wr_id, &[mr.sge(0, 65536)])).unwrap();
    }
    // Nobody reads yet: the socket fills.
    let start = Instant::now();
    while !nic.with_station(|station, _| station.link().wants_write()).unwrap() {
        assert!(start.elapsed() < LONG);
        thread::yield_now();
    }
    let reader = thread::spawn(move || std::io::copy(&mut far, &mut std::io::sink()).unwrap());
    for wr_id in 0..MESSAGES {
        assert_eq!(next(&cq).wr_id, wr_id);
    }
    drop((qp, cq, pd, mr, nic));
    assert!(reader.join().unwrap() > MESSAGES * 65536);
}

#[test]
fn an_address_that_nobody_has_is_told_so() {
    let ends = pair();
    let nobody = ends[0].nic.resolve([192, 0, 2, 77].into(), Duration::from_millis(150));
    let text = nobody.unwrap_err().to_string();
    assert!(text.starts_with("192.0.2.77: nobody"), "{text}");
    let text = ends[0].nic.resolve([10, 0, 0, 1].into(), LONG).unwrap_err().to_string();
    assert!(text.contains("in no network of this port"), "{text}");
}

#[test]
fn a_call_from_inside_of_a_call_is_refused_and_does_not_hang() {
    let ends = pair();
    let again = ends[0].nic.clone();
    let inside = ends[0].nic.with_station(move |_, _| again.counters().map(drop));
    assert!(matches!(inside.unwrap(), Err(Error::OnNicThread)));
    assert!(ends[0].nic.counters().is_ok());
}
