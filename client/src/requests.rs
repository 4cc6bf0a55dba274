//! The half of a session that asks: calls are gathered into frames, and remembered until they are answered.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use seriatim_core::{BeginOptions, Snapshot, SnapshotId, Submission, WritePointer};
use seriatim_wire::{
    BODY_BYTES_MAX, BeginRequest, HelloLimits, Op, commit_item_bytes, put_checkpoint_item, put_commit_item, request,
};

use crate::session::AnswerPlace;

/// Joined requests for timestamps ask for at most so many together.
const TIMESTAMPS_JOINED_MAX: u64 = 1 << 16;

/// What a spare body keeps of its memory at most.
const KEEP_BYTES: usize = 64 << 10;

/// A request that was not answered yet.
#[derive(Debug)]
pub(crate) struct Pending {
    pub op: Op,
    pub items: u64,
    /// What its reply's snapshot may be a difference from. Held here, so that with many begins under way each finds
    /// the base that it named, and no longer than one of them needs it.
    pub base: Option<Arc<Snapshot>>,
}

/// A frame that calls still join.
#[derive(Debug)]
struct Open {
    id: u64,
    items: u64,
    body: Vec<u8>,
}

impl Open {
    fn add(&mut self) -> AnswerPlace {
        self.items += 1;
        AnswerPlace { request: self.id, index: (self.items - 1) as u32 }
    }
}

/// Begins that others with the same wishes still join.
#[derive(Debug)]
struct OpenBegin {
    id: u64,
    options: BeginOptions,
    label: Option<Arc<str>>,
    count: u32,
}

/// Requests that are gathered, or closed to be sent, or sent and not answered.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// Closed frames, and the ids of what is in them.
    out: Vec<u8>,
    closed: Vec<u64>,
    /// Open frames, at most one of each kind but for begins, of which there is one for each kind of options.
    begins: Vec<OpenBegin>,
    /// Commits, checks, checkpoints, and whatever names pointers.
    items: Vec<(Op, Open)>,
    snapshot: Option<u64>,
    timestamps: Option<(u64, u64)>,
    pending: FxHashMap<u64, Pending>,
    last_id: u64,
    /// Memory of closed frames, for the next ones.
    spare: Vec<Vec<u8>>,
}

impl Requests {
    /// Requests that were made and not answered, those in open frames included.
    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// The request with this id, which is answered now.
    pub fn answered(&mut self, id: u64) -> Option<Pending> {
        self.pending.remove(&id)
    }

    /// A request that shares its frame with nobody; `put` writes it.
    pub fn alone(&mut self, op: Op, put: impl FnOnce(&mut Vec<u8>, u64)) -> AnswerPlace {
        let id = self.ask(op, 1);
        put(&mut self.out, id);
        self.closed.push(id);
        AnswerPlace { request: id, index: 0 }
    }

    pub fn begin(
        &mut self,
        options: BeginOptions,
        label: Option<&Arc<str>>,
        count: u32,
        limits: &HelloLimits,
        current: Option<&Arc<Snapshot>>,
    ) -> AnswerPlace {
        let is_same = |open: &OpenBegin| open.options == options && open.label.as_ref() == label;
        if let Some(at) = self.begins.iter().position(is_same) {
            let open = &mut self.begins[at];
            if open.count.checked_add(count).is_some_and(|total| total <= limits.block) {
                let place = AnswerPlace { request: open.id, index: open.count };
                open.count += count;
                return place;
            }
            let open = self.begins.swap_remove(at);
            self.close_begin(&open, current);
        }
        let id = self.ask(Op::Begin, 0);
        self.begins.push(OpenBegin { id, options, label: label.cloned(), count });
        AnswerPlace { request: id, index: 0 }
    }

    /// Commit, or a check of one.
    pub fn commit(
        &mut self,
        op: Op,
        tx: WritePointer,
        submission: Submission<'_>,
        limits: &HelloLimits,
    ) -> AnswerPlace {
        let bytes = commit_item_bytes(submission);
        self.item(op, bytes, limits, |body| put_commit_item(body, tx, submission))
    }

    pub fn checkpoint(&mut self, tx: WritePointer, number: u32, limits: &HelloLimits) -> AnswerPlace {
        self.item(Op::Checkpoint, 13, limits, |body| put_checkpoint_item(body, tx, number))
    }

    /// Abort, invalidate, status, settle or truncate.
    pub fn name(&mut self, op: Op, tx: WritePointer, limits: &HelloLimits) -> AnswerPlace {
        self.item(op, 8, limits, |body| body.extend_from_slice(&tx.0.to_le_bytes()))
    }

    /// Adds an item of at most `bytes` to the open frame of its kind.
    fn item(&mut self, op: Op, bytes: usize, limits: &HelloLimits, put: impl FnOnce(&mut Vec<u8>)) -> AnswerPlace {
        let body_bytes = limits.body_bytes.min(BODY_BYTES_MAX) as usize;
        let at = match self.items.iter().position(|(open, _)| *open == op) {
            Some(at) if self.items[at].1.body.len() + bytes > body_bytes => {
                let (op, open) = self.items.swap_remove(at);
                self.close(op, open);
                None
            }
            at => at,
        };
        let at = at.unwrap_or_else(|| {
            let open = self.open_frame(op);
            self.items.push((op, open));
            self.items.len() - 1
        });
        let open = &mut self.items[at].1;
        put(&mut open.body);
        open.add()
    }

    pub fn snapshot(&mut self) -> AnswerPlace {
        let id = match self.snapshot {
            Some(id) => id,
            None => {
                let id = self.ask(Op::Snapshot, 1);
                *self.snapshot.insert(id)
            }
        };
        AnswerPlace { request: id, index: 0 }
    }

    pub fn timestamps(&mut self, count: u64) -> AnswerPlace {
        if let Some((id, total)) = &mut self.timestamps
            && count <= TIMESTAMPS_JOINED_MAX - (*total).min(TIMESTAMPS_JOINED_MAX)
        {
            let place = AnswerPlace { request: *id, index: *total as u32 };
            *total += count;
            return place;
        }
        self.close_timestamps();
        let id = self.ask(Op::Timestamps, 0);
        self.timestamps = Some((id, count));
        AnswerPlace { request: id, index: 0 }
    }

    pub fn has_output(&self) -> bool {
        !self.out.is_empty()
            || !self.begins.is_empty()
            || !self.items.is_empty()
            || self.snapshot.is_some()
            || self.timestamps.is_some()
    }

    pub fn is_unsent(&self, request: u64) -> bool {
        self.closed.contains(&request)
            || self.begins.iter().any(|open| open.id == request)
            || self.items.iter().any(|(_, open)| open.id == request)
            || self.snapshot == Some(request)
            || self.timestamps.is_some_and(|(id, _)| id == request)
    }

    /// Closes all frames and hands out what is to be sent. Snapshots will be differences from the current one.
    pub fn take_output(&mut self, into: &mut Vec<u8>, current: Option<&Arc<Snapshot>>) {
        // What makes room comes before what takes it, and begins come last, to see as much as they can.
        while let Some((op, open)) = self.items.pop() {
            self.close(op, open);
        }
        self.close_timestamps();
        if let Some(id) = self.snapshot.take() {
            let base = self.name_base(id, 1, current);
            request::snapshot(&mut self.out, id, base);
        }
        while let Some(open) = self.begins.pop() {
            self.close_begin(&open, current);
        }
        self.closed.clear();
        into.clear();
        std::mem::swap(into, &mut self.out);
    }

    /// Numbers a request.
    fn ask(&mut self, op: Op, items: u64) -> u64 {
        self.last_id += 1;
        self.pending.insert(self.last_id, Pending { op, items, base: None });
        self.last_id
    }

    fn open_frame(&mut self, op: Op) -> Open {
        Open { id: self.ask(op, 0), items: 0, body: self.spare.pop().unwrap_or_default() }
    }

    fn close(&mut self, op: Op, mut open: Open) {
        self.set_items(open.id, open.items);
        request::with_body(&mut self.out, op, open.id, &open.body);
        self.closed.push(open.id);
        if open.body.capacity() <= KEEP_BYTES && self.spare.len() < 8 {
            open.body.clear();
            self.spare.push(open.body);
        }
    }

    fn close_begin(&mut self, open: &OpenBegin, current: Option<&Arc<Snapshot>>) {
        let OpenBegin { id, options, ref label, count } = *open;
        let base = self.name_base(id, u64::from(count), current);
        let label = label.as_deref();
        request::begin(&mut self.out, id, &BeginRequest { options, count, base, label });
        self.closed.push(id);
    }

    fn close_timestamps(&mut self) {
        if let Some((id, count)) = self.timestamps.take() {
            self.set_items(id, count);
            request::timestamps(&mut self.out, id, count);
            self.closed.push(id);
        }
    }

    fn set_items(&mut self, id: u64, items: u64) {
        if let Some(pending) = self.pending.get_mut(&id) {
            pending.items = items;
        }
    }

    /// Names the newest snapshot as the base of a request's reply, and keeps it until the reply is there.
    fn name_base(&mut self, id: u64, items: u64, current: Option<&Arc<Snapshot>>) -> Option<SnapshotId> {
        let pending = self.pending.get_mut(&id)?;
        pending.items = items;
        pending.base = current.cloned();
        pending.base.as_ref().map(|base| base.id)
    }
}
