//! The server's end of the network: buffers that the world fills and empties.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustc_hash::FxHashMap;
use seriatim_net::{ConnectionId, Network, NetworkEvent, ReadOutcome};
use seriatim_wire::FrameBuffer;

use crate::clock::SimClock;
use crate::disk::{Disk, lock};
use crate::overheard::{Overheard, Owed, SeenOnWire};

/// See the head of this file.
pub(crate) struct SimNetwork {
    clock: SimClock,
    rng: fastrand::Rng,
    ends: FxHashMap<ConnectionId, End>,
    events: Vec<NetworkEvent>,
    /// Ends that have something for the world, in order.
    written: Vec<ConnectionId>,
    /// How long the last poll was willing to wait.
    pub patience: Duration,
    /// Polls wait in earnest: the pipeline stops and nobody else makes time pass.
    pub waits: bool,
    disk: Arc<Mutex<Disk>>,
    /// Something was written after the process had been told of a failed write.
    pub spoke_after_failure: bool,
    turn: u64,
    /// What went over the wire since the world last looked.
    pub seen: SeenOnWire,
}

/// One connection as the server's side of the system keeps it.
struct End {
    inbox: Vec<u8>,
    has_ended: bool,
    outbox: Vec<u8>,
    /// Bytes that the way to the client still takes.
    room: usize,
    was_full: bool,
    is_closed: bool,
    overheard: Overheard,
}

/// What the server has done to a connection since the world last looked.
pub(crate) struct Sent {
    pub connection: u64,
    pub bytes: Vec<u8>,
    pub is_closed: bool,
}

impl SimNetwork {
    pub fn new(clock: SimClock, rng: fastrand::Rng, disk: Arc<Mutex<Disk>>) -> SimNetwork {
        SimNetwork {
            disk,
            spoke_after_failure: false,
            clock,
            rng,
            ends: FxHashMap::default(),
            events: Vec::new(),
            written: Vec::new(),
            patience: Duration::ZERO,
            waits: false,
            turn: 0,
            seen: SeenOnWire::default(),
        }
    }

    /// A client has connected.
    pub fn open(&mut self, connection: u64, room: usize) {
        let id = ConnectionId(connection);
        let end = End {
            inbox: Vec::new(),
            has_ended: false,
            outbox: Vec::new(),
            room,
            was_full: false,
            is_closed: false,
            overheard: Overheard::new(),
        };
        self.ends.insert(id, end);
        self.events.push(NetworkEvent::Opened(id));
    }

    /// Bytes have arrived. False if nobody is there to read them.
    pub fn deliver(&mut self, connection: u64, bytes: &[u8]) -> bool {
        let id = ConnectionId(connection);
        match self.ends.get_mut(&id) {
            Some(end) if !end.is_closed && !end.has_ended => {
                end.inbox.extend_from_slice(bytes);
                self.events.push(NetworkEvent::Readable(id));
                true
            }
            _ => false,
        }
    }

    /// The client has ended its side, or the connection broke.
    pub fn end(&mut self, connection: u64) -> bool {
        let id = ConnectionId(connection);
        let Some(end) = self.ends.get_mut(&id).filter(|end| !end.has_ended) else { return false };
        end.has_ended = true;
        self.events.push(NetworkEvent::Readable(id));
        true
    }

    /// The client has read that many bytes.
    pub fn make_room(&mut self, connection: u64, bytes: usize) -> bool {
        let id = ConnectionId(connection);
        let Some(end) = self.ends.get_mut(&id).filter(|end| !end.is_closed) else { return false };
        end.room += bytes;
        let was_full = std::mem::take(&mut end.was_full);
        if was_full {
            self.events.push(NetworkEvent::Writable(id));
        }
        was_full
    }

    /// What was written and closed since the last call, in order.
    pub fn take_sent(&mut self) -> Vec<Sent> {
        let mut sent = Vec::new();
        for id in std::mem::take(&mut self.written) {
            let Some(end) = self.ends.get_mut(&id) else { continue };
            let bytes = std::mem::take(&mut end.outbox);
            let is_closed = end.is_closed;
            if is_closed {
                self.ends.remove(&id);
            }
            sent.push(Sent { connection: id.0, bytes, is_closed });
        }
        sent
    }

    /// True if there is something that the next turn could do.
    pub fn has_news(&self) -> bool {
        !self.events.is_empty()
    }

    /// A turn is over: a question that should have been answered by now, and its connection.
    pub fn overdue(&mut self) -> Option<(u64, Owed)> {
        self.turn += 1;
        // The order does not matter: any of them ends the run.
        let mut alive = self.ends.iter().filter(|(_, end)| !end.is_closed && !end.has_ended);
        alive.find_map(|(id, end)| end.overheard.overdue(self.turn).map(|owed| (id.0, owed)))
    }
}

impl Network for SimNetwork {
    fn poll(&mut self, timeout: Option<Duration>, events: &mut Vec<NetworkEvent>) -> io::Result<()> {
        self.patience = timeout.unwrap_or(Duration::MAX);
        if self.waits && self.events.is_empty() {
            let patience = self.patience.min(Duration::from_secs(1));
            self.clock.pass_to(self.clock.now_us() + patience.as_micros() as u64);
        }
        events.append(&mut self.events);
        Ok(())
    }

    fn read(&mut self, id: ConnectionId, into: &mut FrameBuffer, max: usize) -> ReadOutcome {
        let walks = self.ends.values().map(|end| end.overheard.walks()).sum();
        let connections = self.ends.len() as u64;
        let Some(end) = self.ends.get_mut(&id) else { return ReadOutcome::Closed };
        let mut count = end.inbox.len().min(max);
        if count > 1 && self.rng.u8(..8) == 0 {
            count = self.rng.usize(1..count);
        }
        into.extend(&end.inbox[..count]);
        end.overheard.ask(&end.inbox[..count], self.turn, walks, connections, &mut self.seen);
        end.inbox.drain(..count);
        match (end.inbox.is_empty(), end.has_ended) {
            (false, _) => ReadOutcome::More,
            (true, true) => ReadOutcome::Closed,
            (true, false) => ReadOutcome::Drained,
        }
    }

    fn write(&mut self, id: ConnectionId, bytes: &[u8]) -> io::Result<usize> {
        let Some(end) = self.ends.get_mut(&id).filter(|end| !end.is_closed && !end.has_ended) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        self.spoke_after_failure |= lock(&self.disk).has_failed;
        let count = bytes.len().min(end.room);
        end.overheard.answer(bytes, count, &mut self.seen);
        end.room -= count;
        end.was_full |= count < bytes.len();
        if count > 0 {
            end.outbox.extend_from_slice(&bytes[..count]);
            self.written.push(id);
        }
        Ok(count)
    }

    fn close(&mut self, id: ConnectionId) {
        if let Some(end) = self.ends.get_mut(&id) {
            end.is_closed = true;
            self.written.push(id);
        }
    }
}
