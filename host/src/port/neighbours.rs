//! The neighbour table: IP addresses and their MAC addresses, what is being asked for, and when to ask again.
//! It knows no packet format.

use std::collections::BTreeMap;
use std::net::IpAddr;

use softrnic_engine::Nanos;

/// Time between two requests (RFC 4861, RetransTimer).
const RETRANSMIT_NS: u64 = 1_000_000_000;
/// The first requests follow faster: links here are short.
const FIRST_RETRANSMIT_NS: u64 = 100_000_000;
/// Requests before an address counts as unreachable.
const REQUESTS_MAX: u8 = 4;
/// How long an answer holds.
const REACHABLE_NS: u64 = 60_000_000_000;
/// How long nobody is asked for an address again that did not answer.
const FAILED_NS: u64 = 1_000_000_000;
/// Entries; the one that is oldest makes room.
const ENTRIES_MAX: usize = 1024;

/// What is known of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Frames go to this MAC address.
    Known([u8; 6]),
    /// A request is on its way.
    Asking,
    /// Nobody answered.
    Unreachable,
    /// It is in no network of this port, and there is no gateway.
    NoRoute,
}

/// How a neighbour is known, as `ip neighbour` says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourState {
    /// Given by the operator.
    Permanent,
    /// Answered.
    Reachable,
    /// Asked.
    Incomplete,
    /// Did not answer.
    Failed,
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// IP address.
    pub ip: IpAddr,
    /// MAC address, where it is known.
    pub mac: Option<[u8; 6]>,
    /// How.
    pub state: NeighbourState,
}

#[derive(Clone, Copy, Debug)]
enum Entry {
    Permanent([u8; 6]),
    /// Still used while it is asked for again, so that traffic does not stop.
    Reachable {
        mac: [u8; 6],
        until: Nanos,
        requests: u8,
        next: Nanos,
    },
    Asking {
        requests: u8,
        next: Nanos,
    },
    Failed {
        until: Nanos,
    },
}

#[derive(Debug, Default)]
pub(super) struct Neighbours {
    entries: BTreeMap<IpAddr, Entry>,
    /// To be asked for now.
    due: Vec<IpAddr>,
}

impl Neighbours {
    pub(super) fn new(permanent: &[(IpAddr, [u8; 6])]) -> Self {
        let entries = permanent.iter().map(|&(ip, mac)| (ip, Entry::Permanent(mac))).collect();
        Self { entries, due: Vec::new() }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Neighbour> + '_ {
        self.entries.iter().map(|(&ip, entry)| {
            let (mac, state) = match *entry {
                Entry::Permanent(mac) => (Some(mac), NeighbourState::Permanent),
                Entry::Reachable { mac, .. } => (Some(mac), NeighbourState::Reachable),
                Entry::Asking { .. } => (None, NeighbourState::Incomplete),
                Entry::Failed { .. } => (None, NeighbourState::Failed),
            };
            Neighbour { ip, mac, state }
        })
    }

    pub(super) fn resolve(&mut self, now: Nanos, ip: IpAddr) -> Resolution {
        match self.entries.get_mut(&ip) {
            Some(Entry::Permanent(mac)) => Resolution::Known(*mac),
            Some(Entry::Reachable { mac, until, requests, next }) => {
                // Older than that: use it, and ask. Each use asks at most once in a while.
                if now >= *until && now >= *next && *requests < REQUESTS_MAX {
                    *requests += 1;
                    *next = Nanos(now.0.saturating_add(RETRANSMIT_NS));
                    self.due.push(ip);
                }
                Resolution::Known(*mac)
            }
            Some(Entry::Asking { .. }) => Resolution::Asking,
            Some(Entry::Failed { until }) if now < *until => Resolution::Unreachable,
            Some(Entry::Failed { .. }) | None => {
                self.make_room();
                let next = Nanos(now.0.saturating_add(FIRST_RETRANSMIT_NS));
                self.entries.insert(ip, Entry::Asking { requests: 1, next });
                self.due.push(ip);
                Resolution::Asking
            }
        }
    }

    /// The next address to send a request for.
    pub(super) fn poll_request(&mut self) -> Option<IpAddr> {
        self.due.pop()
    }

    /// A neighbour said where it is. `new`: also if nobody asked.
    pub(super) fn learn(&mut self, now: Nanos, ip: IpAddr, mac: [u8; 6], new: bool) {
        // Group and zero addresses belong to nobody.
        if mac[0] & 1 != 0 || mac == [0; 6] || ip.is_unspecified() || ip.is_multicast() {
            return;
        }
        match self.entries.get(&ip) {
            Some(Entry::Permanent(_)) => return,
            Some(_) => {}
            None if new => self.make_room(),
            None => return,
        }
        let until = Nanos(now.0.saturating_add(REACHABLE_NS));
        self.entries.insert(ip, Entry::Reachable { mac, until, requests: 0, next: now });
    }

    pub(super) fn handle_timeout(&mut self, now: Nanos) {
        for (&ip, entry) in &mut self.entries {
            if let Entry::Asking { requests, next } = entry
                && *next <= now
            {
                if *requests >= REQUESTS_MAX {
                    *entry = Entry::Failed { until: Nanos(now.0.saturating_add(FAILED_NS)) };
                } else {
                    *requests += 1;
                    *next = Nanos(now.0.saturating_add(RETRANSMIT_NS));
                    self.due.push(ip);
                }
            }
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Nanos> {
        let deadlines = self.entries.values().filter_map(|entry| match entry {
            Entry::Asking { next, .. } => Some(*next),
            _ => None,
        });
        deadlines.min()
    }

    /// Takes an entry out where the table is full: one that failed, else the one that was heard of longest ago.
    fn make_room(&mut self) {
        if self.entries.len() < ENTRIES_MAX {
            return;
        }
        let age = |entry: &Entry| match *entry {
            Entry::Failed { until } => (0, until),
            Entry::Reachable { until, .. } => (1, until),
            Entry::Asking { next, .. } => (2, next),
            Entry::Permanent(_) => (3, Nanos(0)),
        };
        let oldest = self.entries.iter().min_by_key(|(_, entry)| age(entry)).map(|(&ip, _)| ip);
        if let Some(ip) = oldest {
            self.entries.remove(&ip);
        }
    }
}
