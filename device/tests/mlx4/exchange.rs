//! Two queue pairs connected by nothing but contexts: traffic, and what a query tells afterwards.

use softrnic_device::mlx4::codes::QpState;
use softrnic_device::mlx4::context::{Field, PathField, QpContext};
use softrnic_device::mlx4::contexts::QpContexts;
use softrnic_device::mlx4::field::Side;
use softrnic_device::mlx4::refusal::Status as Answer;
use softrnic_device::mlx4::transitions::Command;
use softrnic_device::verbs::{AsyncEvent, QpInit, SendOp};
use softrnic_engine::{Nanos, Status};

use crate::world::{BASE, Side as End, World, outcome};

/// PSNs close to the end, so that they wrap.
const A_PSN: u32 = 0x00FF_FFFD;
const B_PSN: u32 = 0x0012_3456;
const RETRIES: u32 = 6;
const RNR_RETRIES: u32 = 5;

/// One step of a driver: a command with its mask and context.
type Step = (Command, u32, QpContext);

/// Everything that a queue pair is, with RoCE paths to the peer.
fn complete(near: &End, far: &End, near_psn: u32, far_psn: u32) -> QpContext {
    let port = far.nic.engine.port();
    let [m0, m1, m2, m3, m4, m5] = port.mac;
    let path = |field| (Side::Primary, field);
    QpContext::default()
        .with(Field::PmState, 3)
        .with(Field::Pd, 0x12)
        .with(Field::Mtu, 3)
        .with(Field::MsgMax, 31)
        .with(Field::LogRqSize, 7)
        .with(Field::LogSqSize, 7)
        .with(Field::RoceMode, 2)
        .with(Field::UsrPage, 0x81)
        .with(Field::LocalQpnEen, near.qpn.get())
        .with(Field::RemoteQpnEen, far.qpn.get())
        .with(path(PathField::GrhIp), 1)
        .with(path(PathField::AckTimeout), 14)
        .with(path(PathField::LinkType), 1)
        .with(path(PathField::HopLimit), 64)
        .with(path(PathField::Rgid6332), 0xFFFF)
        .with(path(PathField::Rgid310), port.ipv4.to_bits())
        .with(path(PathField::SchedQueue), 0x83)
        .with(path(PathField::Dmac4732), u16::from_be_bytes([m0, m1]).into())
        .with(path(PathField::Dmac310), u32::from_be_bytes([m2, m3, m4, m5]))
        .with(Field::AckReqFreq, 8)
        .with(Field::SraMax, 2)
        .with(Field::RetryCount, RETRIES)
        .with(Field::RnrRetry, RNR_RETRIES)
        .with(Field::NextSendPsn, near_psn)
        .with(Field::CqnSnd, 0x40)
        .with(Field::RraMax, 2)
        .with(Field::Rre, 1)
        .with(Field::Rwe, 1)
        .with(Field::Rae, 1)
        .with(Field::MinRnrNak, 12)
        .with(Field::NextRcvPsn, far_psn)
        .with(Field::CqnRcv, 0x41)
}

/// As iPXE and Linux's Ethernet driver: one context, mask 0 at every step.
fn mask_0(all: QpContext) -> [Step; 3] {
    [Command::Rst2Init, Command::Init2Rtr, Command::Rtr2Rts].map(|command| (command, 0, all))
}

/// As Linux's InfiniBand driver: each context from scratch, only what the step is about, and masks that
/// name more than the step takes.
fn as_linux(all: QpContext) -> [Step; 3] {
    let path = |field| (Side::Primary, field);
    let common = [
        Field::PmState,
        Field::Pd,
        Field::Mtu,
        Field::MsgMax,
        Field::LogRqSize,
        Field::LogSqSize,
        Field::UsrPage,
        Field::LocalQpnEen,
        Field::CqnSnd,
        Field::CqnRcv,
        Field::AckReqFreq,
    ];
    let access = [Field::Rre, Field::Rwe, Field::Rae];
    let peer = [
        Field::RemoteQpnEen,
        Field::RoceMode,
        Field::RraMax,
        Field::MinRnrNak,
        Field::Rre,
        Field::Rwe,
        Field::Rae,
    ];
    let sending = [Field::SraMax, Field::RetryCount, Field::RnrRetry, Field::NextSendPsn];
    let only = |fields: &[Field]| {
        let of = common.iter().chain(fields);
        of.fold(QpContext::default(), |context, &field| context.with(field, all.get(field)))
    };
    let init = only(&access).with(path(PathField::SchedQueue), 0x83);
    let mut rtr = only(&peer).with(Field::NextRcvPsn, all.get(Field::NextRcvPsn));
    rtr.words_mut()[6..17].copy_from_slice(&all.words()[6..17]);
    rtr.set(path(PathField::AckTimeout), 0);
    rtr.set(path(PathField::CounterIndex), 0xFF);
    let entropy = 0xC000 | (all.get(Field::LocalQpnEen) ^ all.get(Field::RemoteQpnEen));
    let rts =
        only(&sending).with(path(PathField::AckTimeout), 14).with(Field::RoceEntropy, entropy);
    let bits = |bits: &[u32]| bits.iter().fold(0, |mask, bit| mask | 1 << bit);
    [
        (Command::Rst2Init, bits(&[1, 2, 3, 4, 16]), init),
        (Command::Init2Rtr, bits(&[1, 2, 3, 6, 7, 9, 16, 20]), rtr),
        (Command::Rtr2Rts, bits(&[8, 12, 13, 14]), rts),
    ]
}

struct Pair {
    world: World,
    contexts: [QpContexts; 2],
}

impl Pair {
    /// Two native queue pairs in RESET, brought up by a driver's steps and nothing else.
    fn connected(steps: impl Fn(QpContext) -> [Step; 3]) -> Self {
        let (a, b) = (End::new(1, QpInit::default(), 64), End::new(2, QpInit::default(), 64));
        let (of_a, of_b) = (complete(&a, &b, A_PSN, B_PSN), complete(&b, &a, B_PSN, A_PSN));
        let world = World { a, b, now: Nanos(1_000_000) };
        let mut pair = Self { world, contexts: Default::default() };
        for (command, mask, context) in steps(of_a) {
            pair.a(command, mask, &context).unwrap();
        }
        for (command, mask, context) in steps(of_b) {
            let Self { world: World { b, .. }, contexts: [_, contexts] } = &mut pair;
            contexts.modify(&mut b.nic, command, b.qpn.get(), mask, &context).unwrap();
        }
        pair
    }

    /// A command for the first queue pair.
    fn a(&mut self, command: Command, mask: u32, context: &QpContext) -> Result<(), Answer> {
        self.a_with(command, 0, mask, context)
    }

    fn a_with(
        &mut self,
        command: Command,
        modifier: u32,
        mask: u32,
        context: &QpContext,
    ) -> Result<(), Answer> {
        let a = &mut self.world.a;
        let told =
            self.contexts[0].modify(&mut a.nic, command, a.qpn.get() | modifier, mask, context);
        told.map_err(|refusal| refusal.status())
    }

    fn query(&mut self) -> [QpContext; 2] {
        let World { a, b, .. } = &mut self.world;
        let [of_a, of_b] = &self.contexts;
        [of_a.query(&mut a.nic, a.qpn.get()), of_b.query(&mut b.nic, b.qpn.get())]
            .map(Result::unwrap)
    }
}

const COUNTED: [(&str, Field); 9] = [
    ("next_send_psn", Field::NextSendPsn),
    ("last_acked_psn", Field::LastAckedPsn),
    ("next_rcv_psn", Field::NextRcvPsn),
    ("ssn", Field::Ssn),
    ("rmsn", Field::Rmsn),
    ("cur_retry_cnt", Field::CurRetryCnt),
    ("cur_rnr_retry", Field::CurRnrRetry),
    ("sq_wqe_counter", Field::SqWqeCounter),
    ("rq_wqe_counter", Field::RqWqeCounter),
];

fn assert_counts(found: &QpContext, expected: [u32; 9]) {
    for ((name, field), expected) in COUNTED.into_iter().zip(expected) {
        assert_eq!(found.get(field), expected, "{name}");
    }
}

fn psn(start: u32, packets: u32) -> u32 {
    (start + packets) & 0x00FF_FFFF
}

#[test]
fn t_40_two_queue_pairs_connected_by_contexts_exchange_everything() {
    for steps in [mask_0, as_linux] {
        let mut pair = Pair::connected(steps);
        for found in pair.query() {
            assert_eq!(found.state(), QpState::Rts);
        }
        let before = pair.query()[0];
        assert_counts(&before, [A_PSN, A_PSN - 1, B_PSN, 0, 0, RETRIES, RNR_RETRIES, 0, 0]);

        let World { a, b, .. } = &mut pair.world;
        let (remote_va, rkey) = (BASE + 0x1000, b.mr.rkey);
        a.fill(0, &[0x5A; 0x3000]);
        b.fill(0x8000, &[0xA5; 0x1000]);
        b.fill(0x2_0000, &41_u64.to_le_bytes());
        b.recv(1, &[b.sge(0, 0x800)]);
        b.recv(2, &[b.sge(0x800, 0x800)]);
        // 1 packet; 3 packets; 4 answers; 1 and 1.
        a.send(10, SendOp::Send, &[a.sge(0, 700)]);
        a.send(11, SendOp::Write { remote_va, rkey }, &[a.sge(0, 0xA00)]);
        a.send(12, SendOp::Read { remote_va: BASE + 0x8000, rkey }, &[a.sge(0x4000, 0x1000)]);
        let counter = BASE + 0x2_0000;
        let swap = SendOp::CompareSwap { remote_va: counter, rkey, compare: 41, swap: 100 };
        a.send(13, swap, &[a.sge(0x6000, 8)]);
        a.send(14, SendOp::FetchAdd { remote_va: counter, rkey, add: 5 }, &[a.sge(0x6008, 8)]);
        pair.world.pump();
        let World { a, b, .. } = &mut pair.world;
        let all: Vec<_> = (10..15).map(|id| (id, Status::Success)).collect();
        assert_eq!(outcome(&a.sent()), all);
        assert_eq!(outcome(&b.received()), [(1, Status::Success)]);
        assert_eq!(b.bytes(0, 700), [0x5A; 700]);
        assert_eq!(b.bytes(0x1000, 0xA00), vec![0x5A; 0xA00]);
        assert_eq!(a.bytes(0x4000, 0x1000), vec![0xA5; 0x1000]);
        let values = [41_u64, 100].map(u64::to_le_bytes).concat();
        assert_eq!(a.bytes(0x6000, 16), values);
        assert_eq!(b.bytes(0x2_0000, 8), 105_u64.to_le_bytes());

        let [of_a, of_b] = pair.query();
        let packets = 1 + 3 + 4 + 1 + 1;
        let next = psn(A_PSN, packets);
        assert_counts(
            &of_a,
            [next, psn(next, 0x00FF_FFFF), B_PSN, 5, 0, RETRIES, RNR_RETRIES, 5, 0],
        );
        assert_counts(&of_b, [B_PSN, B_PSN - 1, next, 0, 5, RETRIES, RNR_RETRIES, 0, 2]);

        // And back.
        let World { a, b, .. } = &mut pair.world;
        a.recv(3, &[a.sge(0x7000, 0x100)]);
        b.send(20, SendOp::Send, &[b.sge(0, 0x100)]);
        pair.world.pump();
        assert_eq!(outcome(&pair.world.a.received()), [(3, Status::Success)]);
        let [of_a, of_b] = pair.query();
        let back = psn(B_PSN, 1);
        assert_counts(&of_a, [next, next - 1, back, 5, 1, RETRIES, RNR_RETRIES, 5, 1]);
        assert_counts(&of_b, [back, back - 1, next, 1, 5, RETRIES, RNR_RETRIES, 1, 2]);
    }
}

/// The counters of retries and of what is under way, in the middle of losses.
#[test]
fn m_20_t_40_a_query_tells_losses_and_what_is_under_way() {
    let mut pair = Pair::connected(mask_0);
    let World { a, b, now } = &mut pair.world;
    let (remote_va, rkey) = (BASE, b.mr.rkey);
    a.send(1, SendOp::Write { remote_va, rkey }, &[a.sge(0, 0x900)]);
    assert_eq!(a.transmit_all(*now).len(), 3, "and all are lost");
    let [of_a, _] = pair.query();
    let next = psn(A_PSN, 3);
    assert_counts(&of_a, [next, A_PSN - 1, B_PSN, 1, 0, RETRIES, RNR_RETRIES, 1, 0]);
    for left in [RETRIES - 1, RETRIES - 2] {
        let World { a, now, .. } = &mut pair.world;
        *now = a.nic.next_deadline().unwrap();
        a.nic.handle_timeout(*now);
        a.transmit_all(*now);
        assert_eq!(pair.query()[0].get(Field::CurRetryCnt), left);
        assert_eq!(pair.query()[0].get(Field::LastAckedPsn), A_PSN - 1);
    }
    // The third time they arrive.
    pair.world.pump();
    let [of_a, of_b] = pair.query();
    assert_counts(&of_a, [next, psn(next, 0x00FF_FFFF), B_PSN, 1, 0, RETRIES, RNR_RETRIES, 1, 0]);
    assert_eq!((of_b.get(Field::NextRcvPsn), of_b.get(Field::Rmsn)), (next, 1));

    // No receive is posted.
    let World { a, b, now } = &mut pair.world;
    a.send(2, SendOp::Send, &[a.sge(0, 16)]);
    for (_, frame) in a.transmit_all(*now) {
        b.take(*now, &frame);
    }
    for (_, frame) in b.transmit_all(*now) {
        a.take(*now, &frame);
    }
    let [of_a, _] = pair.query();
    assert_eq!(of_a.get(Field::CurRnrRetry), RNR_RETRIES - 1);
    let World { b, .. } = &mut pair.world;
    b.recv(3, &[b.sge(0, 16)]);
    pair.world.pump();
    let [of_a, of_b] = pair.query();
    let last = psn(next, 1);
    assert_counts(&of_a, [last, psn(last, 0x00FF_FFFF), B_PSN, 2, 0, RETRIES, RNR_RETRIES, 2, 0]);
    assert_eq!((of_b.get(Field::Rmsn), of_b.get(Field::RqWqeCounter)), (2, 1));
}

/// Through SQD and back: draining is a state of its own, and the event comes where it was asked for.
#[test]
fn t_40_draining_is_shown_and_the_event_is_the_commands() {
    for (modifier, event) in [(1 << 31, true), (0, false)] {
        let mut pair = Pair::connected(as_linux);
        let World { a, b, now } = &mut pair.world;
        let write = SendOp::Write { remote_va: BASE, rkey: b.mr.rkey };
        a.send(1, write, &[a.sge(0, 64)]);
        let flying = a.transmit_all(*now);
        let none = QpContext::default();
        pair.a_with(Command::Rts2Sqd, modifier, 0, &none).unwrap();
        assert_eq!(pair.query()[0].state(), QpState::SqDraining);
        for command in [Command::Sqd2Sqd, Command::Sqd2Rts, Command::Rts2Rts] {
            assert_eq!(pair.a(command, 0, &none), Err(Answer::BadQpState), "{command}");
        }
        let World { a, b, now } = &mut pair.world;
        for (_, frame) in &flying {
            b.take(*now, frame);
        }
        assert_eq!(a.nic.get_async_event(), None);
        pair.world.pump();
        assert_eq!(pair.query()[0].state(), QpState::Sqd);
        let a = &mut pair.world.a;
        let drained = AsyncEvent::SendQueueDrained(a.qpn);
        assert_eq!(a.nic.get_async_event(), event.then_some(drained));
        // What is posted meanwhile waits for RTS.
        let b = &pair.world.b;
        let write = SendOp::Write { remote_va: BASE, rkey: b.mr.rkey };
        let a = &mut pair.world.a;
        a.send(2, write, &[a.sge(0, 64)]);
        pair.world.pump();
        assert_eq!(outcome(&pair.world.a.sent()), [(1, Status::Success)]);
        pair.a(Command::Sqd2Sqd, 1 << 12, &none.with(Field::RetryCount, 2)).unwrap();
        pair.a(Command::Sqd2Rts, 0, &none).unwrap();
        pair.world.pump();
        assert_eq!(outcome(&pair.world.a.sent()), [(2, Status::Success)]);
        assert_eq!(pair.query()[0].get(Field::RetryCount), 2);
    }
}

/// A responder that is given another depth while its send queue is drained keeps that many READs.
#[test]
fn t_40_another_depth_in_sqd_is_the_responders_too() {
    let mut pair = Pair::connected(|all| mask_0(all.with(Field::RraMax, 0)));
    let World { b, .. } = &mut pair.world;
    let contexts = &mut pair.contexts[1];
    let qpn = b.qpn.get();
    let deeper = QpContext::default().with(Field::RraMax, 2);
    for (command, mask) in [(Command::Rts2Sqd, 0), (Command::Sqd2Sqd, 1 << 9)] {
        contexts.modify(&mut b.nic, command, qpn, mask, &deeper).unwrap();
    }
    let World { a, b, .. } = &mut pair.world;
    let read = SendOp::Read { remote_va: BASE, rkey: b.mr.rkey };
    (0..4).for_each(|id| a.send(id, read, &[a.sge(0x1000 * id, 64)]));
    pair.world.pump();
    let all: Vec<_> = (0..4).map(|id| (id, Status::Success)).collect();
    assert_eq!(outcome(&pair.world.a.sent()), all);
}

/// 2ERR flushes, 2RST forgets, and the same numbers live again.
#[test]
fn t_40_error_flushes_reset_forgets_and_the_pair_lives_again() {
    let mut pair = Pair::connected(mask_0);
    let World { a, b, .. } = &mut pair.world;
    a.recv(1, &[]);
    let write = SendOp::Write { remote_va: BASE, rkey: b.mr.rkey };
    a.send(2, write, &[a.sge(0, 64)]);
    let none = QpContext::default();
    pair.a(Command::ToErr, 0, &none).unwrap();
    let a = &mut pair.world.a;
    assert_eq!(outcome(&a.sent()), [(2, Status::Flushed)]);
    assert_eq!(outcome(&a.received()), [(1, Status::Flushed)]);
    assert_eq!(pair.query()[0].state(), QpState::Err);
    pair.a(Command::ToRst, 0, &none).unwrap();
    assert_eq!(pair.query()[0], none);
    pair.a(Command::ToRst, 0, &none).unwrap();
    let (a_side, b_side) = (&pair.world.a, &pair.world.b);
    let all = complete(a_side, b_side, B_PSN, A_PSN);
    for (command, mask, context) in mask_0(all) {
        pair.a(command, mask, &context).unwrap();
    }
    assert_counts(&pair.query()[0], [B_PSN, B_PSN - 1, A_PSN, 0, 0, RETRIES, RNR_RETRIES, 0, 0]);
}
