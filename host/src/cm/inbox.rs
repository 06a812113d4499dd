//! Events of connections on their way from the thread that drives a device to the threads of programs.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::agent::AgentEvent;
use super::connection::CommId;

/// Events that wait for the program at most; further ones are dropped and counted.
const EVENTS_MAX: usize = 1 << 16;

#[derive(Debug, Default)]
struct Mail {
    waiting: VecDeque<AgentEvent>,
    /// Connections of which nobody wants to hear any more.
    forgotten: BTreeSet<CommId>,
    lost: u64,
}

/// Where whoever drives the device puts events, and programs wait for them.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    mail: Mutex<Mail>,
    arrived: Condvar,
}

impl Inbox {
    fn mail(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, event: AgentEvent) {
        let mut mail = self.mail();
        let last = matches!(event, AgentEvent::Closed { .. } | AgentEvent::Failed { .. });
        let wanted = !if last {
            mail.forgotten.remove(&event.id())
        } else {
            mail.forgotten.contains(&event.id())
        };
        if !wanted {
            return;
        }
        if mail.waiting.len() < EVENTS_MAX {
            mail.waiting.push_back(event);
            self.arrived.notify_all();
        } else {
            mail.lost += 1;
        }
    }
    /// Nobody wants to hear of a connection any more; `known`: it still exists, so that more may come.
    pub(crate) fn forget(&self, id: CommId, known: bool) {
        let mut mail = self.mail();
        mail.waiting.retain(|event| event.id() != id);
        if known {
            mail.forgotten.insert(id);
        }
    }

    /// Waits for the next event; `None` when the time is over. Others keep their order.
    pub(crate) fn wait(&self, wanted: Wanted, timeout: Duration) -> Option<AgentEvent> {
        let start = Instant::now();
        let mut mail = self.mail();
        loop {
            let at = mail.waiting.iter().position(|event| wanted.matches(event));
            if let Some(event) = at.and_then(|at| mail.waiting.remove(at)) {
                return Some(event);
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return None;
            }
            let woken = self.arrived.wait_timeout(mail, left);
            mail = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Which events a call waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// All.
    Any,
    /// Requests of peers.
    Requests,
    /// Those of one connection.
    Of(CommId),
}

impl Wanted {
    fn matches(self, event: &AgentEvent) -> bool {
        match self {
            Self::Any => true,
            Self::Requests => matches!(event, AgentEvent::Requested { .. }),
            Self::Of(id) => event.id() == id && !matches!(event, AgentEvent::Requested { .. }),
        }
    }
}
