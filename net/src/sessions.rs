//! Which sessions have connections, and which are gone since when: a session that does not come back within its grace
//! ends its open transactions.

use rustc_hash::{FxHashMap, FxHashSet};
use seriatim_core::SequencerTime;

use crate::network::ConnectionId;

/// See the head of this file.
#[derive(Default)]
pub(crate) struct Sessions {
    live: FxHashMap<u64, Live>,
    /// Sessions without a connection, and when their transactions end.
    left: FxHashMap<u64, SequencerTime>,
}

/// A session with connections.
#[derive(Default)]
struct Live {
    connections: u32,
    /// It has begun transactions, so that its end means work.
    has_begun: bool,
}

impl Sessions {
    /// A connection of this session has come. 0 asks for a session that nobody else has.
    pub(crate) fn join(&mut self, session: u64, connection: ConnectionId) -> u64 {
        // The highest bit marks sessions that were given, so that they meet no client's own.
        let session = if session == 0 { connection.0 | 1 << 63 } else { session };
        let live = self.live.entry(session).or_default();
        live.connections += 1;
        live.has_begun |= self.left.remove(&session).is_some();
        session
    }

    /// A connection of this session has gone.
    pub(crate) fn leave(&mut self, session: u64, has_begun: bool, until: SequencerTime) {
        let Some(live) = self.live.get_mut(&session) else { return };
        live.connections -= 1;
        live.has_begun |= has_begun;
        if live.connections == 0 {
            if live.has_begun {
                self.left.insert(session, until);
            }
            self.live.remove(&session);
        }
    }

    /// Sessions whose grace is over.
    pub(crate) fn gone(&self, now: SequencerTime) -> FxHashSet<u64> {
        self.left.iter().filter(|(_, until)| **until <= now).map(|(session, _)| *session).collect()
    }

    /// Their transactions have ended.
    pub(crate) fn forget(&mut self, sessions: &FxHashSet<u64>) {
        self.left.retain(|session, _| !sessions.contains(session));
    }
}
