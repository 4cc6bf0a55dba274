//! What is heard on one connection by somebody who reads along: questions, their answers, and rare things about both.
//!
//! It watches a law: a begin, and any other question, that was read in a turn is answered in that turn, whatever the disk
//! does.

use seriatim_core::event::take_varint;
use seriatim_wire::{BODY_BYTES_MAX, FrameBuffer, Op, Reply, Request, SnapshotBytes};

/// Turns after which an answer that waits for nothing is overdue, unless it stands behind a walk.
const OVERDUE_TURNS: u64 = 2;

/// Questions that wait for nothing.
const AT_ONCE: [Op; 5] = [Op::Begin, Op::Snapshot, Op::Timestamps, Op::Status, Op::State];
/// Walks over everything that is open or invalid: each turn makes one, and what was sent behind it waits with it.
const WALKS: [Op; 3] = [Op::List, Op::Image, Op::TruncateBefore];

/// See the head of this file.
pub(crate) struct Overheard {
    asked: FrameBuffer,
    answered: FrameBuffer,
    /// Bytes that were offered, read along, and not taken.
    ahead: usize,
    /// Questions without an answer, in their order.
    owed: Vec<Owed>,
}

/// A question that waits for nothing.
#[derive(Clone, Copy)]
pub(crate) struct Owed {
    pub id: u64,
    pub op: u8,
    /// The turn it was read in.
    since: u64,
    /// It named a snapshot that its reader has.
    has_base: bool,
    /// If it is a walk: turns that it may wait for the walks of others.
    walks: u64,
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

impl Overheard {
    pub fn new() -> Overheard {
        Overheard {
            asked: FrameBuffer::new(BODY_BYTES_MAX),
            answered: FrameBuffer::new(BODY_BYTES_MAX),
            ahead: 0,
            owed: Vec::new(),
        }
    }

    /// Walks that wait.
    pub fn walks(&self) -> u64 {
        self.owed.iter().filter(|owed| owed.is_walk()).count() as u64
    }

    /// The server has read these bytes, in this turn. `walks` wait on all connections, of which there are so many.
    pub fn ask(&mut self, bytes: &[u8], turn: u64, walks: u64, connections: u64, seen: &mut SeenOnWire) {
        self.asked.extend(bytes);
        let mut mine = self.walks();
        while let Ok(Some(frame)) = self.asked.next_frame() {
            if !AT_ONCE.iter().chain(&WALKS).any(|op| *op as u8 == frame.op) {
                continue;
            }
            let has_base = match Request::decode(&frame) {
                Ok(Request::Begin(begin)) => begin.base.is_some(),
                Ok(Request::Snapshot { base }) => base.is_some(),
                _ => false,
            };
            let mut owed = Owed { id: frame.id, op: frame.op, since: turn, has_base, walks: 0 };
            if owed.is_walk() {
                mine += 1;
                // Those that are there, and of each other connection one for every one of ours.
                owed.walks = walks + mine * connections;
            }
            self.owed.push(owed);
        }
        seen.partial_reads += u64::from(!self.asked.is_empty());
    }

    /// The server offers these bytes, of which the first so many are taken; it will offer the others again.
    pub fn answer(&mut self, offered: &[u8], taken: usize, seen: &mut SeenOnWire) {
        self.answered.extend(&offered[self.ahead..]);
        self.ahead = offered.len() - taken;
        while let Ok(Some(frame)) = self.answered.next_frame() {
            let Some(place) = self.owed.iter().position(|owed| owed.id == frame.id) else { continue };
            let owed = self.owed.remove(place);
            if let Ok(Reply::Begin(Ok((_, bytes))) | Reply::Snapshot(bytes)) = Reply::decode(&frame) {
                seen.snapshot(&bytes, owed.has_base);
            }
        }
    }

    /// A question that should have been answered by this turn. A walk waits for the walks of others and no longer, and
    /// what stands behind it waits with it.
    pub fn overdue(&self, turn: u64) -> Option<Owed> {
        let judged = match self.owed.iter().position(Owed::is_walk) {
            None => self.owed.len(),
            // Its answer waits for the disk, and nobody sees from outside when it was walked for.
            Some(place) if self.owed[place].op == Op::TruncateBefore as u8 => place,
            Some(place) => place + 1,
        };
        self.owed[..judged].iter().find(|owed| owed.since + OVERDUE_TURNS + owed.walks < turn).copied()
    }
}

impl Owed {
    fn is_walk(&self) -> bool {
        WALKS.iter().any(|walk| *walk as u8 == self.op)
    }
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
