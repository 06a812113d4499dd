//! A random world from a seed: a pure function.
//!
//! Sizes are small on purpose: what goes wrong in large worlds goes wrong in small ones, too, and a
//! small one is quick to play and easy to read.

use super::plan::{Class, ConnectionPlan, Flaw, Kind, MessagePlan, NodePlan, Plan, ServiceKind};
use crate::check::Atomics;
use crate::fault::{
    Action, Change, Corruption, Cut, Direction, Field, Match, Queue, Rule, Rules, Spot, Transfer,
};
use crate::random::Random;
use crate::scenario::{FaceKind, ProfileKind};

/// The stream of numbers that plans are made from.
const STREAM: u64 = 0xCA3A;

/// Depth of READs that ERNIC has.
const ERNIC_READS: u8 = 16;

/// The world of a seed.
#[must_use]
pub fn random_plan(seed: u64) -> Plan {
    let mut dice = Dice(Random::new(seed, STREAM));
    let class = dice.pick(&[
        Class::Gentle,
        Class::Gentle,
        Class::Rough,
        Class::Rough,
        Class::Rough,
        Class::Hostile,
    ]);
    let mut plan = Plan {
        seed,
        class,
        rate_bits_per_s: dice.pick(&[10, 25, 100, 100, 400]) * 1_000_000_000,
        latency_ns: dice.pick(&[100, 1_000, 1_000, 5_000]),
        node: Vec::new(),
        connection: Vec::new(),
        message: Vec::new(),
        faults: Rules::default(),
    };
    for _ in 0..dice.pick(&[2, 2, 2, 3, 3, 4, 5, 6, 7, 8]) {
        plan.node.push(node(&mut dice));
    }
    let most = plan.node.len() as u64;
    for _ in 0..1 + dice.below(most) {
        let connection = connection(&mut dice, &plan);
        plan.connection.push(connection);
    }
    let messages = 1 + dice.below(12) + dice.below(30);
    let mut adds = vec![[0; 2]; plan.connection.len()];
    let mut at_ns = 0;
    for _ in 0..messages {
        if dice.one_in(6) {
            at_ns += dice.below(200_000);
        }
        let message = message(&mut dice, &plan, at_ns, &mut adds);
        plan.message.push(message);
    }
    fit_receive_buffers(&mut plan);
    plan.faults = faults(&mut dice, &plan);
    plan
}

/// Random numbers with names.
struct Dice(Random);

impl Dice {
    /// 0 to `n` - 1.
    fn below(&mut self, n: u64) -> u64 {
        // The bias of a modulus by small numbers is nothing here.
        self.0.next_u64() % n.max(1)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

fn node(dice: &mut Dice) -> NodePlan {
    NodePlan {
        face: dice.pick(&[FaceKind::Ernic, FaceKind::Native, FaceKind::Native]),
        profile: dice.pick(&[ProfileKind::V40, ProfileKind::V40, ProfileKind::V40Silicon]),
        shared_cq: dice.one_in(3),
        shared_rq: dice.one_in(6),
    }
}

fn connection(dice: &mut Dice, plan: &Plan) -> ConnectionPlan {
    let nodes = plan.node.len() as u64;
    let a = dice.below(nodes);
    let b = (a + 1 + dice.below(nodes - 1)) % nodes;
    let ends = [a as usize, b as usize];
    let native = ends.map(|end| plan.node[end].face == FaceKind::Native);
    let service = if native == [true, true] {
        use ServiceKind as S;
        dice.pick(&[S::Rc, S::Rc, S::Rc, S::Rc, S::Rc, S::Rc, S::Uc, S::Ud])
    } else {
        ServiceKind::Rc
    };
    let gentle = plan.class == Class::Gentle;
    let psn = |dice: &mut Dice| match dice.below(4) {
        // Near the wrap, and in the middle.
        0 | 1 => 0x00FF_FFFF - dice.below(24) as u32,
        2 => 0x007F_FFF8 + dice.below(16) as u32,
        _ => dice.below(1 << 24) as u32,
    };
    let reads = dice.pick(&[1, 2, 2, 4, 8]);
    // Seldom, one end asks for more than the other keeps.
    let more = if !gentle && dice.one_in(12) { 2 } else { 0 };
    let depth = |side: usize, own: u8| if native[side] { own } else { ERNIC_READS };
    let max_rd_atomic = [0, 1].map(|side| depth(side, reads + more));
    let max_dest_rd_atomic =
        [0, 1].map(|side| depth(side, if native[1 - side] { reads } else { ERNIC_READS }));
    let strangers = !gentle && dice.one_in(24);
    ConnectionPlan {
        nodes: ends,
        service,
        ipv6: dice.one_in(2),
        path_mtu: dice.pick(&[256, 256, 256, 512, 1024, 4096]),
        first_psn: [psn(dice), psn(dice)],
        pkey: if strangers {
            dice.pick(&[[0x7FFF, 0x7FFF], [0xFFFF, 0x8001], [0x0001, 0x0001]])
        } else {
            dice.pick(&[[0xFFFF, 0xFFFF], [0xFFFF, 0xFFFF], [0xFFFF, 0x7FFF], [0x0123, 0x8123]])
        },
        ack_timeout: dice.pick(&[5, 6, 6, 7, 8]),
        retry_count: if gentle { 7 } else { dice.pick(&[0, 1, 3, 7, 7]) },
        rnr_retry: if gentle { 7 } else { dice.pick(&[0, 1, 3, 6, 7, 7]) },
        min_rnr_timer: dice.pick(&[1, 1, 2, 4, 6, 8]),
        max_rd_atomic,
        max_dest_rd_atomic,
        window_packets: dice.pick(&[1, 2, 4, 16, 1024]),
        ack_request_every: dice.pick(&[0, 1, 2, 8]),
        credits: dice.one_in(2),
        dcqcn: dice.one_in(8),
        outstanding: dice.pick(&[1, 2, 4, 8, 16]),
        receives: dice.pick(&[1, 2, 4, 16]),
        receive_len: 256,
        receive_delay_ns: match dice.below(4) {
            0 => dice.below(300_000),
            1 => dice.below(20_000),
            _ => 0,
        },
    }
}

fn message(dice: &mut Dice, plan: &Plan, at_ns: u64, adds: &mut [[usize; 2]]) -> MessagePlan {
    let number = dice.below(plan.connection.len() as u64) as usize;
    let from = dice.below(2) as usize;
    let connection = &plan.connection[number];
    let native =
        [from, 1 - from].map(|side| plan.node[connection.nodes[side]].face == FaceKind::Native);
    let mut kind = match connection.service {
        ServiceKind::Ud => dice.pick(&[Kind::Send, Kind::SendImm]),
        ServiceKind::Uc => dice.pick(&[Kind::Send, Kind::SendImm, Kind::Write, Kind::WriteImm]),
        ServiceKind::Rc => dice.pick(&[
            Kind::Send,
            Kind::Send,
            Kind::SendImm,
            Kind::SendInv,
            Kind::Write,
            Kind::Write,
            Kind::WriteImm,
            Kind::Read,
            Kind::Read,
            Kind::Read,
            Kind::FetchAdd,
            Kind::CompareSwap,
        ]),
    };
    if kind.is_atomic() && native != [true, true] {
        kind = Kind::Read;
    }
    if kind == Kind::FetchAdd {
        if adds[number][from] == Atomics::ADDS_MAX {
            kind = Kind::CompareSwap;
        } else {
            adds[number][from] += 1;
        }
    }
    let mtu = connection.path_mtu;
    let len = match dice.below(10) {
        0 => 0,
        1 => 1,
        2 => mtu - 1,
        3 => mtu,
        4 => mtu + 1,
        5 => 3 * mtu + 1,
        6 => 2 * mtu,
        7 => dice.below(64) as u32,
        _ => dice.below(4 * u64::from(mtu.min(1024))) as u32,
    };
    let len = match connection.service {
        _ if kind.is_atomic() => 8,
        ServiceKind::Ud => len.min(mtu),
        // ERNIC neither posts nor takes an empty message.
        _ if native != [true, true] => len.max(1),
        _ => len,
    };
    let flawed = connection.service == ServiceKind::Rc && dice.one_in(120);
    let flaw = match kind {
        _ if !flawed => None,
        Kind::Send | Kind::SendImm => Some(Flaw::TooLong),
        Kind::Write | Kind::Read if len > 0 => Some(dice.pick(&[Flaw::Key, Flaw::Range])),
        _ => None,
    };
    MessagePlan {
        connection: number,
        from,
        kind,
        len,
        at_ns,
        signaled: !dice.one_in(4),
        solicited: dice.one_in(4),
        fence: dice.one_in(6),
        sges: dice.pick(&[1, 1, 2, 3]),
        flaw,
    }
}

/// Receive buffers hold the longest message, or all but the one that is too long on purpose.
fn fit_receive_buffers(plan: &mut Plan) {
    let needed = |plan: &Plan, number: usize| {
        let of = plan.message.iter().filter(|m| m.connection == number && m.flaw.is_none());
        of.filter(|m| m.kind.is_send())
            .map(|m| m.len)
            .max()
            .unwrap_or(0)
            .max(256)
            .next_power_of_two()
    };
    let mut lens: Vec<_> = (0..plan.connection.len()).map(|n| needed(plan, n)).collect();
    // One queue serves all connections of a node.
    let shares = |c: &ConnectionPlan| c.nodes.iter().any(|&n| plan.node[n].shared_rq);
    let longest = lens.iter().copied().max().unwrap_or(256);
    for (len, connection) in lens.iter_mut().zip(&plan.connection) {
        if shares(connection) {
            *len = longest;
        }
    }
    for (connection, len) in plan.connection.iter_mut().zip(&lens) {
        connection.receive_len = *len;
    }
    for message in plan.message.iter_mut().filter(|m| m.flaw == Some(Flaw::TooLong)) {
        message.len = lens[message.connection] + 1;
    }
}

fn faults(dice: &mut Dice, plan: &Plan) -> Rules {
    let count = match plan.class {
        Class::Gentle => dice.below(4),
        Class::Rough => 1 + dice.below(4),
        Class::Hostile => 1 + dice.below(3),
    };
    let rules = (0..count).map(|_| {
        let mut matches = when(dice, plan);
        let action = match plan.class {
            Class::Hostile if !dice.one_in(4) => lie(dice),
            Class::Rough if dice.one_in(6) => trouble_at_face(dice, plan, &mut matches),
            _ => trouble(dice),
        };
        if action.at_face() {
            // A call has no direction.
            matches.direction = Direction::Out;
        }
        Rule::new(matches, action)
    });
    Rules(rules.collect())
}

/// Which frames a rule is about. In a gentle world it fires once.
fn when(dice: &mut Dice, plan: &Plan) -> Match {
    let node = dice.below(plan.node.len() as u64) as usize;
    let mut matches = Match { node: Some(node), ..Match::default() };
    if dice.one_in(2) {
        matches.direction = Direction::In;
    }
    if plan.class == Class::Gentle || dice.one_in(3) {
        matches.nth = Some(1 + dice.pick(&[4, 10, 40]).min(dice.below(40)));
        return matches;
    }
    if dice.one_in(6) {
        // Nothing goes through for a while.
        let from = dice.below(100_000);
        matches.from_ns = Some(from);
        matches.until_ns = Some(from + dice.below(400_000));
        return matches;
    }
    let percent = dice.pick(&[1.0, 3.0, 10.0, 10.0, 30.0]);
    matches.probability = Some(percent / 100.0);
    if dice.one_in(3) {
        matches.node = None;
    }
    matches
}

fn trouble(dice: &mut Dice) -> Action {
    match dice.below(12) {
        0..=3 => Action::Drop,
        4 | 5 => Action::Duplicate {
            copies: dice.pick(&[1, 1, 2]),
            apart_ns: dice.pick(&[0, 1_000, 50_000]),
        },
        6 => Action::Delay { by_ns: 1 + dice.below(40_000), jitter_ns: dice.pick(&[0, 10_000]) },
        7 | 8 => Action::Reorder { behind: 1 + dice.below(4) as u32, limit_ns: 30_000 },
        9 => Action::Corrupt(Corruption {
            spot: Spot::Anywhere,
            change: Change::FlipAny,
            redo_icrc: false,
        }),
        10 => Action::Truncate(Cut::By(1 + dice.below(80) as usize)),
        _ => Action::MarkEcn,
    }
}

/// What a face can do without breaking its own promises, and completions that get lost.
fn trouble_at_face(dice: &mut Dice, plan: &Plan, matches: &mut Match) -> Action {
    match dice.below(5) {
        0 => Action::StallReceive,
        1 => Action::LoseInterrupt,
        2 => Action::HoldCompletion {
            queue: dice.pick(&[None, Some(Queue::Send), Some(Queue::Receive)]),
            for_ns: 1 + dice.below(200_000),
        },
        // A receive buffer that software never hears of would be missed for ever; where completions
        // are counted, as ERNIC does, all later ones take the place of the one before.
        3 if plan.node.iter().any(|node| node.face == FaceKind::Native) => {
            let native = |node: &usize| plan.node[*node].face == FaceKind::Native;
            if !matches.node.as_ref().is_some_and(native) {
                matches.node = (0..plan.node.len()).find(native);
            }
            Action::LoseCompletion { queue: Some(Queue::Send) }
        }
        _ => Action::DmaError {
            access: dice.pick(&[None, Some(Transfer::Read), Some(Transfer::Write)]),
        },
    }
}

/// Fields that a frame lies about, as the engine's decoder names them.
const LIES: [(&str, &[u64]); 12] = [
    ("bth.psn", &[1, 1, 2, 3, 0x80_0000, 0x80_0000, 0x80_0001, 0xFF_FFFF]),
    ("bth.destqp", &[1, 3, 0x40, 0x100, 0x80_0000]),
    ("bth.opcode", &[1, 2, 4, 6, 0x0A, 0x20]),
    ("bth.p_key", &[1, 0x8000, 0x8000]),
    ("bth.ackreq", &[1]),
    ("aeth.syndrome", &[1, 0x1F, 0x20, 0x40, 0x60, 0x61, 0x62]),
    ("aeth.msn", &[1, 4, 0x80_0000]),
    ("reth.va", &[1, 64, 0x1_0000, 1 << 63]),
    ("reth.r_key", &[1, 0x100]),
    ("reth.dmalength", &[1, 4, 0x100, 0x8000_0000]),
    ("ipv4.source", &[1, 2, 3]),
    ("deth.q_key", &[1]),
];

/// A field is changed and the ICRC made right: the frame lies.
fn lie(dice: &mut Dice) -> Action {
    let (name, masks) = dice.pick(&LIES);
    let spot = Field::named(name).map_or(Spot::Anywhere, Spot::Field);
    let change = if dice.one_in(6) { Change::FlipAny } else { Change::Flip(dice.pick(masks)) };
    Action::Corrupt(Corruption { spot, change, redo_icrc: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_plan_and_its_text_is_the_same_plan() {
        for seed in 0..200 {
            let plan = random_plan(seed);
            let text = plan.to_toml();
            let read = Plan::parse("world.toml", &text).unwrap();
            assert_eq!(read, plan, "{text}");
            assert!(Plan::is_world(&text));
        }
    }

    #[test]
    fn every_lie_names_a_field() {
        for (name, _) in LIES {
            assert!(Field::named(name).is_some(), "{name}");
        }
    }

    #[test]
    fn the_first_hundred_worlds_have_every_face_service_and_kind_of_message() {
        let plans: Vec<_> = (0..100).map(random_plan).collect();
        let sizes: std::collections::BTreeSet<_> = plans.iter().map(|p| p.node.len()).collect();
        assert_eq!(sizes, (2..=8).collect());
        for service in [ServiceKind::Rc, ServiceKind::Uc, ServiceKind::Ud] {
            assert!(plans.iter().flat_map(|p| &p.connection).any(|c| c.service == service));
        }
        for kind in [
            Kind::Send,
            Kind::SendImm,
            Kind::SendInv,
            Kind::Write,
            Kind::WriteImm,
            Kind::Read,
            Kind::FetchAdd,
            Kind::CompareSwap,
        ] {
            assert!(plans.iter().flat_map(|p| &p.message).any(|m| m.kind == kind), "{kind:?}");
        }
        let flaws = plans.iter().flat_map(|p| &p.message).filter(|m| m.flaw.is_some());
        assert!(flaws.count() > 5);
    }
}
