//! The server's end of the network: buffers that the world fills and empties.
//!
//! It also watches a law: a begin, and any other question, that was read in a turn is answered in that turn, whatever
//! the disk does. So it reads along which of them came in and which answers were offered.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustc_hash::FxHashMap;
use seriatim_core::event::take_varint;
use seriatim_net::{ConnectionId, Network, NetworkEvent, ReadOutcome};
use seriatim_wire::{BODY_BYTES_MAX, FrameBuffer, Op, Reply, Request, SnapshotBytes};

use crate::clock::SimClock;
use crate::disk::{Disk, lock};

/// Turns after which an answer that waits for nothing is overdue, unless it stands behind a walk.
const OVERDUE_TURNS: u64 = 2;

/// Questions that wait for nothing.
const AT_ONCE: [Op; 5] = [Op::Begin, Op::Snapshot, Op::Timestamps, Op::Status, Op::State];
/// A walk over everything that is open: each turn makes one, and what was sent behind it waits with it.
const WALK: Op = Op::List;

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

/// Rare things that only the bytes show.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct SeenOnWire {
    /// Snapshots that came whole though their readers had named a base.
    pub whole_with_base: u64,
    pub differences: u64,
    /// Differences with a digest.
    pub digests: u64,
    /// Reads that ended within a frame.
    pub partial_reads: u64,
}

impl SeenOnWire {
    fn snapshot(&mut self, bytes: &SnapshotBytes<'_>, had_base: bool) {
        if bytes.is_whole() {
            self.whole_with_base += u64::from(had_base);
        } else if !bytes.is_unchanged() {
            self.differences += 1;
            self.digests += u64::from(has_digest(bytes.0));
        }
    }
}

/// A difference: one byte that says so, its number, the distance from its base, and then flags, of which the first says
/// that a digest comes at the end.
fn has_digest(bytes: &[u8]) -> bool {
    let mut rest = &bytes[1..];
    let skipped = take_varint(&mut rest).and_then(|_| take_varint(&mut rest));
    skipped.is_ok() && rest.first().is_some_and(|flags| flags & 1 != 0)
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
    asked: FrameBuffer,
    answered: FrameBuffer,
    /// Bytes that were offered, read along, and not taken.
    ahead: usize,
    /// Questions without an answer.
    owed: Vec<Owed>,
}

/// A question that waits for nothing.
#[derive(Clone, Copy)]
struct Owed {
    id: u64,
    op: u8,
    /// The turn it was read in.
    since: u64,
    /// It named a snapshot that its reader has.
    has_base: bool,
    /// If it is a walk: turns that it may wait for the walks of others.
    walks: u64,
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
            asked: FrameBuffer::new(BODY_BYTES_MAX),
            answered: FrameBuffer::new(BODY_BYTES_MAX),
            ahead: 0,
            owed: Vec::new(),
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

    /// A question that should have been answered by now: connection, op, id. A walk waits for the others' walks, and no longer.
    pub fn overdue(&mut self) -> Option<(u64, u8, u64)> {
        self.turn += 1;
        let turn = self.turn;
        let late = |end: &End| {
            let behind_no_walk = end.owed.iter().position(Owed::is_walk).map_or(end.owed.len(), |place| place + 1);
            end.owed[..behind_no_walk].iter().find(|owed| owed.since + OVERDUE_TURNS + owed.walks < turn).copied()
        };
        // The order does not matter: any of them ends the run.
        let mut alive = self.ends.iter().filter(|(_, end)| !end.is_closed && !end.has_ended);
        alive.find_map(|(id, end)| late(end).map(|owed| (id.0, owed.op, owed.id)))
    }
}

impl Owed {
    fn is_walk(&self) -> bool {
        self.op == WALK as u8
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
        let walks = self.ends.values().flat_map(|end| &end.owed).filter(|owed| owed.is_walk()).count() as u64;
        let connections = self.ends.len() as u64;
        let Some(end) = self.ends.get_mut(&id) else { return ReadOutcome::Closed };
        let mut count = end.inbox.len().min(max);
        if count > 1 && self.rng.u8(..8) == 0 {
            count = self.rng.usize(1..count);
        }
        into.extend(&end.inbox[..count]);
        end.asked.extend(&end.inbox[..count]);
        while let Ok(Some(frame)) = end.asked.next_frame() {
            if AT_ONCE.iter().chain([&WALK]).any(|op| *op as u8 == frame.op) {
                let has_base = match Request::decode(&frame) {
                    Ok(Request::Begin(begin)) => begin.base.is_some(),
                    Ok(Request::Snapshot { base }) => base.is_some(),
                    _ => false,
                };
                let is_walk = frame.op == WALK as u8;
                let mine = end.owed.iter().filter(|owed| owed.is_walk()).count() as u64;
                // Those that are there, and of the other connections one each for every one of ours.
                let walks = if is_walk { walks + (mine + 1) * connections } else { 0 };
                end.owed.push(Owed { id: frame.id, op: frame.op, since: self.turn, has_base, walks });
            }
        }
        self.seen.partial_reads += u64::from(!end.asked.is_empty());
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
        end.answered.extend(&bytes[end.ahead..]);
        while let Ok(Some(frame)) = end.answered.next_frame() {
            let Some(place) = end.owed.iter().position(|owed| owed.id == frame.id) else { continue };
            let owed = end.owed.remove(place);
            if let Ok(Reply::Begin(Ok((_, bytes))) | Reply::Snapshot(bytes)) = Reply::decode(&frame) {
                self.seen.snapshot(&bytes, owed.has_base);
            }
        }
        let count = bytes.len().min(end.room);
        end.ahead = bytes.len() - count;
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
