//! What is going to happen, in the order of its time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Something that happens at its time. Connections, clients and workers are named by number.
#[derive(Debug)]
pub(crate) enum Event {
    /// The server has a turn, if this is still its life and its next turn.
    Turn { life: u64 },
    /// The server is started, if it is down.
    Start,
    /// A write or a background job of the disk may be over.
    Disk { life: u64 },
    /// Bytes reach the server.
    ToServer { connection: u64, bytes: Vec<u8> },
    /// The server sees the end of a connection.
    ServerSeesEnd { connection: u64 },
    /// Bytes reach the client.
    ToClient { connection: u64, bytes: Vec<u8> },
    /// The client sees the end of a connection.
    ClientSeesEnd { connection: u64 },
    /// A client connects, if it has no connection and this is its newest attempt.
    Connect { client: usize, attempt: u64 },
    /// A client sends what it has gathered.
    Flush { client: usize },
    /// A worker goes on, if it still waits for this.
    Wake { client: usize, worker: usize, step: u64 },
    /// A worker's call has taken too long, if it still waits for this.
    TimeOut { client: usize, worker: usize, step: u64 },
    /// A write that was under way reaches the store.
    Land { write: u64 },
    /// Something goes wrong somewhere.
    Mishap,
    /// The store collects garbage.
    Collect,
}

/// See the head of this file.
#[derive(Default)]
pub(crate) struct Queue {
    heap: BinaryHeap<Entry>,
    pushed: u64,
}

struct Entry {
    at_us: u64,
    /// Of two at the same time the one that was pushed first comes first.
    place: u64,
    event: Event,
}

impl Queue {
    pub fn push(&mut self, at_us: u64, event: Event) {
        self.pushed += 1;
        self.heap.push(Entry { at_us, place: self.pushed, event });
    }

    pub fn pop(&mut self) -> Option<(u64, Event)> {
        self.heap.pop().map(|entry| (entry.at_us, entry.event))
    }
}

impl Ord for Entry {
    /// The earliest is the greatest, as the heap wants it.
    fn cmp(&self, other: &Entry) -> Ordering {
        (other.at_us, other.place).cmp(&(self.at_us, self.place))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}
