//! A script of requests that both ends post at the same time, many in flight. Nobody computes what must come of it:
//! the same script is played by two other implementations, and memory and completions must be the same
//! (`e2e/guest/verify.py` has the other ends, `e2e/interop/script.py` makes scripts and compares).
//!
//! It knows endpoints and the connection to the other end, and no device.

use serde::{Deserialize, Serialize};

use super::{
    GUARD, Hello, Message, Operation, Role, TRANSFER_TIMEOUT, VerifyError, Wire, pattern, word,
};
use crate::endpoint::{Ability, Done, Endpoint, EndpointError, Op, Transfer};

/// Words at the start of an arena that are 0 before, and that only atomics change.
const CELLS: usize = 8;
/// Everything starts at multiples of this, which is what ERNIC asks for.
const ALIGNMENT: usize = 64;
/// Memory is told as the CRC-32 of each piece of so many bytes.
const BLOCK: usize = 1024;
/// Receives that wait at most.
const RECEIVES_AHEAD: usize = 8;
/// Requests in flight at most.
const DEPTH_MAX: usize = 16;
/// Requests of one end at most, so that what is said of them is no longer than a line may be.
const REQUESTS_MAX: usize = 400;
/// Bytes of an arena at most.
const ARENA_MAX: usize = 1 << 20;

/// A request of a script.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    op: Operation,
    /// Bytes.
    size: u32,
    /// Where in the peer's arena.
    #[serde(default)]
    at: u64,
    /// Where in the own source, for what goes out.
    #[serde(default)]
    from: u64,
    /// What is added or swapped in, or immediate data.
    #[serde(default)]
    operand: u64,
    /// What a swap compares with.
    #[serde(default)]
    compare: u64,
    /// It is posted when all before it have ended: a responder may put a READ off until after a later WRITE
    /// (IBTA vol 1, 10.8.3, ordering of work requests without a fence).
    #[serde(default)]
    wait: bool,
}

/// What both ends post.
///
/// Each end's region: a guard of 64 bytes, the arena where the peer writes and reads, a source of the same length for
/// what goes out, then a place for each SEND of the peer and one for each READ and atomic of its own, and a guard.
/// No two of these overlap, so that what a region holds at the end does not depend on how the two ends' requests meet.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// Bytes of each arena.
    arena: usize,
    /// Requests in flight at most.
    depth: usize,
    client: Vec<Request>,
    server: Vec<Request>,
}

impl Script {
    /// Reads a script (JSON, as `e2e/interop/script.py` makes it).
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let script: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        script.check()?;
        Ok(script)
    }

    pub(super) fn check(&self) -> Result<(), String> {
        if self.arena < CELLS * 8 || self.arena > ARENA_MAX || !self.arena.is_multiple_of(ALIGNMENT)
        {
            return Err(format!(
                "an arena of {} bytes; multiples of {ALIGNMENT} up to {ARENA_MAX} are possible",
                self.arena
            ));
        }
        if !(1..=DEPTH_MAX).contains(&self.depth) {
            return Err(format!(
                "{} requests in flight; 1 to {DEPTH_MAX} are possible",
                self.depth
            ));
        }
        for (number, request) in self.client.iter().chain(&self.server).enumerate() {
            let inside = |start: u64| {
                start.checked_add(request.size.into()).is_some_and(|end| end <= self.arena as u64)
            };
            if !inside(request.at) || !inside(request.from) {
                return Err(format!("request {number} leaves the arena of {} bytes", self.arena));
            }
            if request.op.is_atomic() && request.size != 8 {
                return Err(format!("request {number} is an atomic of {} bytes", request.size));
            }
        }
        if self.client.len().max(self.server.len()) > REQUESTS_MAX {
            return Err(format!("more than {REQUESTS_MAX} requests of one end"));
        }
        Ok(())
    }

    fn of(&self, role: Role) -> (&[Request], &[Request]) {
        match role {
            Role::Client => (&self.client, &self.server),
            Role::Server => (&self.server, &self.client),
        }
    }

    /// What a device that has these abilities cannot do of it.
    pub(super) fn beyond(&self, ability: &Ability) -> Option<String> {
        self.client.iter().chain(&self.server).find_map(|request| {
            let face = ability.face;
            if !request.op.is_possible(ability) {
                return Some(format!("{face} cannot do {}", request.op.name()));
            }
            let unit = ability.granularity;
            let fits = |bytes: u64| bytes.is_multiple_of(unit.into());
            (!fits(request.size.into()) || !fits(request.at) || !fits(request.from)).then(|| {
                format!(
                    "{face} moves multiples of {unit} bytes, and a {} does not",
                    request.op.name()
                )
            })
        })
    }

    /// Bytes of an end's region.
    fn region_len_of(&self, role: Role) -> usize {
        let (own, peer) = self.of(role);
        let slots = own.iter().filter(|request| request.op.comes_back());
        let slots = slots.chain(peer.iter().filter(|request| request.op == Operation::Send));
        2 * GUARD + 2 * self.arena + slots.map(|request| slot_len(request.size)).sum::<usize>()
    }

    /// Bytes that either end's region needs.
    #[must_use]
    pub fn region_len(&self) -> usize {
        self.region_len_of(Role::Client).max(self.region_len_of(Role::Server))
    }

    /// Requests of both ends.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.client.len() + self.server.len()
    }

    /// Bytes of the longest SEND.
    #[must_use]
    pub fn longest_send(&self) -> u32 {
        let sends = self.client.iter().chain(&self.server);
        let sends = sends.filter(|request| request.op == Operation::Send);
        sends.map(|request| request.size).max().unwrap_or(0)
    }
}

/// A place for a message, and bytes behind it that stay as they are.
const fn slot_len(size: u32) -> usize {
    (size as usize).next_multiple_of(ALIGNMENT) + ALIGNMENT
}

/// What a receive held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Received {
    /// Bytes of the message, where the device tells.
    pub len: Option<u32>,
    /// Immediate data, where the device tells.
    pub immediate: Option<u32>,
}

/// What came of one end's part.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Played {
    /// Status of each own request, in order.
    pub requests: Vec<String>,
    /// Receives in order.
    pub receives: Vec<Received>,
    /// CRC-32 of each 1024 bytes of the region.
    pub memory: Vec<u32>,
}

/// What came of a script at both ends.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Results {
    /// At the client.
    pub client: Played,
    /// At the server.
    pub server: Played,
}

/// Fills an end's region. Both ends have done so before the first byte moves.
pub(super) fn prepare(
    endpoint: &mut dyn Endpoint,
    role: Role,
    script: &Script,
    seed: u64,
) -> Result<(), EndpointError> {
    let mut content = pattern(word(seed, role.side()), script.region_len_of(role));
    content[GUARD..][..CELLS * 8].fill(0);
    endpoint.write(0, &content)
}

/// Plays one end's part; the client gets both ends' results.
pub(super) fn play(
    endpoint: &mut dyn Endpoint,
    wire: &mut Wire,
    role: Role,
    script: &Script,
    theirs: &Hello,
) -> Result<Option<Results>, VerifyError> {
    let (requests, receives) = post(endpoint, wire, role, script, theirs)?;
    let mut own = Played { requests, receives, memory: Vec::new() };
    // The own memory changes until the peer's requests have ended, too.
    match role {
        Role::Client => {
            wire.say(&Message::Played(own.clone()))?;
            let server = hear(wire)?;
            own.memory = memory(endpoint, role, script)?;
            Ok(Some(Results { client: own, server }))
        }
        Role::Server => {
            hear(wire)?;
            own.memory = memory(endpoint, role, script)?;
            wire.say(&Message::Played(own))?;
            Ok(None)
        }
    }
}

fn hear(wire: &mut Wire) -> Result<Played, VerifyError> {
    match wire.hear()? {
        Message::Played(played) => Ok(played),
        other => Err(wire.unexpected(&other, "what came of its requests was awaited")),
    }
}

/// Posts everything, and waits until all of it and all that the peer sends has ended.
fn post(
    endpoint: &mut dyn Endpoint,
    wire: &Wire,
    role: Role,
    script: &Script,
    theirs: &Hello,
) -> Result<(Vec<String>, Vec<Received>), VerifyError> {
    let (own, peer) = script.of(role);
    let incoming: Vec<&Request> = peer.iter().filter(|it| it.op.takes_receive()).collect();
    let source = (GUARD + script.arena) as u64;
    // SENDs of the peer first, then what comes back.
    let mut inbox = GUARD + 2 * script.arena;
    let sends = peer.iter().filter(|it| it.op == Operation::Send);
    let mut returned = inbox + sends.map(|it| slot_len(it.size)).sum::<usize>();
    let (mut statuses, mut received) = (Vec::new(), Vec::new());
    let (mut posted, mut given) = (0, 0);
    while statuses.len() < own.len() || received.len() < incoming.len() {
        while given < incoming.len() && given - received.len() < RECEIVES_AHEAD {
            let sent = incoming[given].op == Operation::Send;
            endpoint.post_receive(inbox as u64, if sent { incoming[given].size } else { 0 })?;
            inbox += if sent { slot_len(incoming[given].size) } else { 0 };
            given += 1;
        }
        while posted < own.len() && posted - statuses.len() < script.depth {
            let request = &own[posted];
            if request.wait && statuses.len() < posted {
                break;
            }
            let offset = if request.op.comes_back() {
                returned += slot_len(request.size);
                (returned - slot_len(request.size)) as u64
            } else {
                source + request.from
            };
            endpoint.post(&Transfer {
                op: operation(request),
                offset,
                len: request.size,
                remote_va: theirs.va.wrapping_add(request.at),
                rkey: theirs.rkey,
            })?;
            posted += 1;
        }
        match endpoint.wait(TRANSFER_TIMEOUT)? {
            Some(Done::Request) => statuses.push("success".to_owned()),
            Some(Done::Receive { len, immediate }) => received.push(Received { len, immediate }),
            Some(Done::Failed { what, .. }) => return Err(failed(wire, theirs, what)),
            None => {
                let why = format!(
                    "{} of {} requests and {} of {} receives have ended, and nothing more did in {TRANSFER_TIMEOUT:?}",
                    statuses.len(),
                    own.len(),
                    received.len(),
                    incoming.len()
                );
                return Err(failed(wire, theirs, why));
            }
        }
    }
    Ok((statuses, received))
}

fn failed(wire: &Wire, theirs: &Hello, why: String) -> VerifyError {
    let peer = format!("{}, queue pair {}", wire.peer, theirs.qpn);
    VerifyError::Script { peer, why }
}

const fn operation(request: &Request) -> Op {
    let &Request { operand, compare, .. } = request;
    match request.op {
        Operation::Send => Op::Send,
        Operation::Write => Op::Write,
        Operation::WriteImm => Op::WriteImm(operand as u32),
        Operation::Read => Op::Read,
        Operation::FetchAdd => Op::FetchAdd(operand),
        Operation::CmpSwap => Op::CompareSwap { compare, swap: operand },
    }
}

fn memory(
    endpoint: &mut dyn Endpoint,
    role: Role,
    script: &Script,
) -> Result<Vec<u32>, EndpointError> {
    let mut content = vec![0; script.region_len_of(role)];
    endpoint.read(0, &mut content)?;
    Ok(content.chunks(BLOCK).map(crc32fast::hash).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const FEW: &str = r#"{"arena": 1024, "depth": 4,
        "client": [{"op": "send", "size": 100, "from": 64}, {"op": "cmp_swap", "size": 8, "at": 8, "compare": 1, "operand": 2}],
        "server": [{"op": "read", "size": 65, "at": 0}, {"op": "send", "size": 1}]}"#;

    #[test]
    fn places_follow_from_the_requests() {
        let script = Script::parse(FEW).unwrap();
        // The server's SEND and the own atomic; the client's SEND and the server's READ.
        assert_eq!(script.region_len_of(Role::Client), 128 + 2048 + 128 + 128);
        assert_eq!(script.region_len_of(Role::Server), 128 + 2048 + 192 + 192);
        assert_eq!((script.region_len(), script.longest_send(), script.requests()), (2560, 100, 4));
    }

    #[test]
    fn what_cannot_be_played_is_refused_before_it_starts() {
        for (from, to, why) in [
            ("1024", "1000", "an arena of 1000 bytes"),
            ("1024", "99999999999", "an arena of 99999999999 bytes"),
            (r#""depth": 4"#, r#""depth": 0"#, "0 requests in flight"),
            (r#""from": 64"#, r#""from": 925"#, "request 0 leaves the arena"),
            (r#""from": 64"#, r#""from": 18446744073709551615"#, "request 0 leaves the arena"),
            (r#""size": 65"#, r#""size": 1025"#, "request 2 leaves the arena"),
            (r#""size": 8,"#, r#""size": 9,"#, "request 1 is an atomic of 9 bytes"),
            ("send", "sent", "unknown variant `sent`"),
            ("depth", "deep", "unknown field `deep`"),
        ] {
            let error = Script::parse(&FEW.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let request = r#"{"op": "read", "size": 1},"#.repeat(401);
        let many = FEW.replacen(r#"{"op": "read""#, &format!(r#"{request}{{"op": "read""#), 1);
        assert!(Script::parse(&many).unwrap_err().contains("more than 400 requests"));
    }
}
