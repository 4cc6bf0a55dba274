//! Where requests are decided and replies wait: between the connections and the log.
//!
//! Begins and questions are answered at once. Every answer that ends or changes a transaction, refusals included, names
//! the ticket of its event and waits here until that is published; tickets grow as requests are decided, so what waits
//! is a queue.

mod upkeep;

use std::collections::{BTreeMap, VecDeque};

use seriatim_core::{
    Advice, BeginError, ChangeSet, Changes, Checkpointing, CommitError, CommitNumber, Decision, End, Full,
    InvalidCause, Kind, OpenView, Owner, Scratch, Sequencer, SequencerTime, Status, Submission, Ticket, WritePointer,
};
use seriatim_wal::Storage;
use seriatim_wire::{
    BeginRequest, Block, Checkpoints, CommitItems, ErrorCode, ErrorReply, ListKind, ListRequest, Listed, Op, Pointers,
    Request, State, reply,
};

use crate::clock::Now;
use crate::connection::Connection;
use crate::large_sets::LargeSets;
use crate::network::ConnectionId;
use crate::plant::Plant;
use crate::publication::Publication;

/// Transactions that one page of a list holds at most.
const LIST_MAX: usize = 10_000;
/// Commits ahead of the one being decided whose buckets are asked for.
const PREFETCH_AHEAD: usize = 8;

/// The desk; see the head of this file.
pub(crate) struct Desk<S: Storage, P> {
    pub publication: Publication<S, P>,
    waiting: VecDeque<Waiting>,
    /// Working memory, kept from request to request.
    scratch: Scratch,
    commits: Vec<Asked>,
    fences: Vec<upkeep::Waiter>,
    large_sets: LargeSets,
    images: Vec<upkeep::HeldImage>,
    last_image: u64,
}

/// One commit of a frame.
struct Asked {
    tx: WritePointer,
    changes: ChangeSet,
    checked: Option<u64>,
    checkpoints: u32,
}

impl Asked {
    fn submission(&self) -> Submission<'_> {
        let changes = self.checked.map_or(Changes::Given(&self.changes), Changes::Checked);
        Submission { changes, checkpoints: self.checkpoints }
    }
}

/// A reply that waits for its ticket.
struct Waiting {
    ticket: Ticket,
    connection: ConnectionId,
    reply: LateReply,
}

/// What is still to be written of a reply that waits.
enum LateReply {
    /// Nothing: these are its bytes.
    Ready(Vec<u8>),
    /// Outcomes, of which some are in the published state only then.
    Commit(u64, Vec<Answer<Result<CommitNumber, CommitError>>>),
    /// Statuses likewise.
    Statuses(Op, u64, Vec<Answer<Status>>),
    /// What checks came to, likewise.
    Checks(u64, Vec<Answer<Result<(), CommitError>>>),
    /// Further pointers, of which some were given before.
    Checkpoints(u64, Vec<CheckpointAnswer>),
}

/// What one checkpoint is answered.
enum CheckpointAnswer {
    Now(Answer<Result<WritePointer, CommitError>>),
    /// It was given before: the transaction's further pointer with this number.
    Repeated(WritePointer, u32),
}

/// One answer of many.
enum Answer<T> {
    /// Known when the request was decided.
    Known(T),
    /// To be asked of the published state when the reply leaves: what is decided by then and not durable is no answer.
    Asked(WritePointer),
}

/// The latest ticket among the answers of one frame.
#[derive(Clone, Copy, Default)]
struct Latest(Option<Ticket>);

impl Latest {
    fn note(&mut self, ticket: Ticket) {
        self.0 = self.0.max(Some(ticket));
    }
}

impl<S: Storage, P: Plant> Desk<S, P> {
    pub fn new(publication: Publication<S, P>) -> Desk<S, P> {
        Desk {
            publication,
            waiting: VecDeque::new(),
            scratch: Scratch::default(),
            commits: Vec::new(),
            fences: Vec::new(),
            large_sets: LargeSets::default(),
            images: Vec::new(),
            last_image: 0,
        }
    }

    /// Decides a request of a connection that has said hello, and answers it or lets the answer wait.
    pub fn decide(&mut self, connection: &mut Connection, id: u64, request: Request<'_>, now: Now) {
        let changes = matches!(
            request,
            Request::Begin(_)
                | Request::Commit(_)
                | Request::Abort(_)
                | Request::Invalidate(_)
                | Request::Settle(_)
                | Request::Timestamps { .. }
                | Request::Reset { .. }
                | Request::Checkpoint(_)
                | Request::Truncate(_)
                | Request::TruncateBefore { .. }
        ) || matches!(request, Request::Store(request) if request.changes());
        if changes && self.publication.has_no_room() {
            let message = "the log has no room for another segment; nothing was done";
            return ErrorReply::new(ErrorCode::DiskFull, message).encode(&mut connection.output, id);
        }
        match request {
            Request::Hello(_) => unreachable!("the pipeline answers hellos"),
            Request::Begin(begin) => self.begin(connection, id, &begin, now),
            Request::Commit(items) => self.commit(connection, id, items, now),
            Request::Abort(pointers) => self.abort(connection, id, pointers),
            Request::Invalidate(pointers) => self.invalidate(connection, id, pointers),
            Request::Settle(pointers) => self.settle(connection, id, pointers),
            Request::Status(pointers) => {
                let statuses = pointers.iter().map(|tx| self.publication.status(tx));
                reply::statuses(&mut connection.output, Op::Status, id, statuses);
            }
            Request::Snapshot { base } => {
                let base = base.and_then(|base| self.publication.recent(base));
                reply::snapshot(&mut connection.output, id, self.publication.snapshot(), base.map(AsRef::as_ref));
            }
            Request::Timestamps { count } => self.timestamps(connection, id, count),
            Request::State => {
                let state = self.state(now);
                reply::state(&mut connection.output, id, &state);
            }
            Request::List(list) => self.list(connection, id, &list, now),
            Request::Reset { store } => self.reset(connection, id, store.0),
            Request::Ping(bytes) => reply::ping(&mut connection.output, id, bytes),
            Request::CanCommit(items) => self.can_commit(connection, id, items, now),
            Request::Checkpoint(items) => self.checkpoint(connection, id, items, now),
            Request::Truncate(pointers) => self.truncate(connection, id, pointers),
            Request::TruncateBefore { bound } => self.truncate_before(connection, id, bound),
            Request::Fence { timeout_ms } => self.fence(connection, id, timeout_ms, now),
            Request::Image(request) => self.image(connection, id, &request, now),
            Request::Store(request) => self.store(connection, id, request, now),
        }
    }

    fn begin(&mut self, connection: &mut Connection, id: u64, request: &BeginRequest<'_>, now: Now) {
        let core = self.publication.core();
        let label = request.label.map_or(connection.label, |label| core.label_id(label));
        let owner = Owner { session: connection.session, label };
        // The request's bytes were read before this: the snapshot that the begin loads is not older than they are.
        let count = request.count.saturating_add(P::extra_pointers());
        match core.begin(now.sequencer, &request.options, count, owner).map(P::begun) {
            Ok(begun) => {
                connection.has_begun = true;
                let block = Block { first: begun.first, count: u64::from(begun.count) };
                let base = request.base.and_then(|base| self.publication.recent(base));
                let base = base.map(|base| if P::wrong_base() { self.publication.oldest() } else { base });
                if P::begin_waits() {
                    let mut bytes = Vec::new();
                    reply::begin(&mut bytes, id, block, &begun.snapshot, base.map(AsRef::as_ref));
                    return self.answer(connection, Latest(Some(begun.ticket)), LateReply::Ready(bytes));
                }
                reply::begin(&mut connection.output, id, block, &begun.snapshot, base.map(AsRef::as_ref));
            }
            Err(error) => reply::begin_refused(&mut connection.output, id, &error),
        }
    }

    fn timestamps(&mut self, connection: &mut Connection, id: u64, count: u64) {
        let max = u64::from(self.publication.core().limits().block_max);
        let block = match u32::try_from(count) {
            Ok(count) => self.publication.core().timestamps(count),
            Err(_) => Err(BeginError::BlockSize { asked: count, max }),
        };
        let block = block.map(|(first, _)| Block { first, count });
        reply::timestamps(&mut connection.output, id, &block);
    }

    fn commit(&mut self, connection: &mut Connection, id: u64, items: CommitItems<'_>, now: Now) {
        let mut commits = std::mem::take(&mut self.commits);
        commits.clear();
        commits.extend(items.map(|item| {
            let (checked, checkpoints) = (item.checked, item.checkpoints);
            Asked { tx: item.tx, changes: item.change_set(), checked, checkpoints }
        }));
        if P::lost_update() {
            for Asked { changes, .. } in &mut commits {
                changes.marks = std::mem::take(&mut changes.writes);
            }
        }
        if P::reads_unchecked() {
            commits.iter_mut().for_each(|commit| commit.changes.reads.clear());
        }
        let core = self.publication.core().clone();
        for Asked { changes, .. } in commits.iter().take(PREFETCH_AHEAD) {
            core.prefetch(changes);
        }
        let (mut latest, mut asks) = (Latest::default(), false);
        let mut outcomes = Vec::with_capacity(commits.len());
        for (index, commit) in commits.iter().enumerate() {
            if let Some(ahead) = commits.get(index + PREFETCH_AHEAD) {
                core.prefetch(&ahead.changes);
            }
            let tx = commit.tx;
            self.large_sets.note(core.limits(), now.monotonic, tx, commit.changes.len());
            let outcome = match core.commit(now.sequencer, tx, commit.submission(), &mut self.scratch) {
                Decision::Committed { csn, ticket } => {
                    latest.note(ticket);
                    Answer::Known(Ok(csn))
                }
                Decision::Refused { error, ticket } => {
                    if !P::unlogged_refusal() {
                        latest.note(ticket);
                    }
                    Answer::Known(Err(error))
                }
                Decision::Denied(error) => Answer::Known(Err(error)),
                Decision::Ending { ticket } => {
                    latest.note(ticket);
                    asks = true;
                    Answer::Asked(tx)
                }
                Decision::Unknown => {
                    let answer = self.not_open(tx, &mut latest);
                    asks |= matches!(answer, Answer::Asked(_));
                    answer
                }
            };
            outcomes.push(outcome);
        }
        self.commits = commits;
        let late = if asks { LateReply::Commit(id, outcomes) } else { LateReply::Ready(commit_bytes(id, outcomes)) };
        self.answer(connection, latest, late);
    }

    /// What is answered about a transaction that is not open.
    fn not_open<T>(&self, tx: WritePointer, latest: &mut Latest) -> Answer<Result<T, CommitError>> {
        match self.status_not_open(tx, latest) {
            Answer::Asked(tx) => Answer::Asked(tx),
            Answer::Known(ended) => Answer::Known(Err(CommitError::NotInProgress { tx, ended })),
        }
    }

    /// Where a transaction stands that is not open.
    fn status_not_open(&self, tx: WritePointer, latest: &mut Latest) -> Answer<Status> {
        match self.publication.status(tx) {
            // A reset has dropped it and is not published yet.
            Status::Open | Status::Refused | Status::Deciding => {
                self.wait_for_all(latest);
                Answer::Asked(tx)
            }
            ended => Answer::Known(ended),
        }
    }

    /// The answer waits until all that is decided is published.
    fn wait_for_all(&self, latest: &mut Latest) {
        self.publication.last_ticket().into_iter().for_each(|ticket| latest.note(ticket));
    }

    fn can_commit(&mut self, connection: &mut Connection, id: u64, items: CommitItems<'_>, now: Now) {
        let core = self.publication.core().clone();
        let mut latest = Latest::default();
        let mut checks = Vec::with_capacity(items.len());
        for item in items {
            let (tx, changes) = (item.tx, item.change_set());
            self.large_sets.note(core.limits(), now.monotonic, tx, changes.len());
            checks.push(match core.can_commit(now.sequencer, tx, &changes, &mut self.scratch) {
                Advice::Passes { .. } => Answer::Known(Ok(())),
                Advice::Fails(error) => {
                    if matches!(error, CommitError::Conflict { .. }) {
                        // The winner is published first, so that a retry starts from a snapshot that holds it.
                        self.wait_for_all(&mut latest);
                    }
                    Answer::Known(Err(error))
                }
                Advice::Refused { error, ticket } => {
                    latest.note(ticket);
                    Answer::Known(Err(error))
                }
                Advice::Ending { ticket } => {
                    latest.note(ticket);
                    Answer::Asked(tx)
                }
                Advice::Unknown => self.not_open(tx, &mut latest),
            });
        }
        self.answer(connection, latest, LateReply::Checks(id, checks));
    }

    fn checkpoint(&mut self, connection: &mut Connection, id: u64, items: Checkpoints<'_>, now: Now) {
        let core = self.publication.core().clone();
        let mut latest = Latest::default();
        let mut answers = Vec::with_capacity(items.len());
        for (tx, number) in items {
            let answer = match core.checkpoint(now.sequencer, tx, number) {
                Checkpointing::Taken { pointer, ticket } => {
                    if !P::unlogged_checkpoint() {
                        latest.note(ticket);
                    }
                    Answer::Known(Ok(pointer))
                }
                Checkpointing::Repeated => {
                    self.wait_for_all(&mut latest);
                    answers.push(CheckpointAnswer::Repeated(tx, number));
                    continue;
                }
                Checkpointing::Refused { error, ticket } => {
                    latest.note(ticket);
                    Answer::Known(Err(error))
                }
                Checkpointing::Denied(error) => Answer::Known(Err(error)),
                Checkpointing::Ending { ticket } => {
                    latest.note(ticket);
                    Answer::Asked(tx)
                }
                Checkpointing::Unknown => self.not_open(tx, &mut latest),
            };
            answers.push(CheckpointAnswer::Now(answer));
        }
        self.answer(connection, latest, LateReply::Checkpoints(id, answers));
    }

    fn abort(&mut self, connection: &mut Connection, id: u64, pointers: Pointers<'_>) {
        self.end_all(connection, Op::Abort, id, pointers, |desk, tx, latest| {
            let status = match desk.publication.core().abort(tx) {
                End::Unknown => match desk.publication.abort_invalid(tx) {
                    Some(ticket) => {
                        latest.note(ticket?);
                        Answer::Known(Status::Aborted)
                    }
                    None => desk.status_not_open(tx, latest),
                },
                end => known(end, tx, latest)?,
            };
            Ok(status)
        });
    }

    fn settle(&mut self, connection: &mut Connection, id: u64, pointers: Pointers<'_>) {
        self.end_all(connection, Op::Settle, id, pointers, |desk, tx, latest| {
            if P::settle_looks() {
                return Ok(Answer::Known(desk.publication.status(tx)));
            }
            if desk.publication.core().look(tx) == Some(Status::Refused) {
                // Refused for good, and its client may still roll it back: that is an answer, and no doubt.
                desk.wait_for_all(latest);
                return Ok(Answer::Asked(tx));
            }
            match desk.publication.core().invalidate(tx, InvalidCause::Settled) {
                End::Unknown => Ok(desk.status_not_open(tx, latest)),
                end => known(end, tx, latest),
            }
        });
    }

    /// Answers every pointer of a frame with a status, or the whole frame with `Overloaded` where there was no room: to
    /// end a transaction twice is as good as once.
    fn end_all(
        &mut self,
        connection: &mut Connection,
        op: Op,
        id: u64,
        pointers: Pointers<'_>,
        mut end: impl FnMut(&mut Self, WritePointer, &mut Latest) -> Result<Answer<Status>, Full>,
    ) {
        let mut latest = Latest::default();
        let statuses: Result<Vec<_>, Full> = pointers.iter().map(|tx| end(self, tx, &mut latest)).collect();
        match statuses {
            Ok(statuses) => self.answer(connection, latest, LateReply::Statuses(op, id, statuses)),
            Err(full) => overloaded(connection, id, full),
        }
    }

    fn invalidate(&mut self, connection: &mut Connection, id: u64, pointers: Pointers<'_>) {
        let mut latest = Latest::default();
        let mut ended = Vec::with_capacity(pointers.len());
        for tx in pointers.iter() {
            match self.publication.core().invalidate(tx, InvalidCause::Asked) {
                End::Ended { ticket, .. } => {
                    latest.note(ticket);
                    ended.push(true);
                }
                End::Ending { ticket } => {
                    latest.note(ticket);
                    ended.push(false);
                }
                End::Unknown => ended.push(false),
                End::Denied(error) => return overloaded(connection, id, full_of(error)),
            }
        }
        let mut bytes = Vec::new();
        reply::bools(&mut bytes, Op::Invalidate, id, ended);
        self.answer(connection, latest, LateReply::Ready(bytes));
    }

    fn reset(&mut self, connection: &mut Connection, id: u64, store: u128) {
        if store != self.publication.store().0 {
            let message = "this is another store than the one to be reset";
            return ErrorReply::new(ErrorCode::WrongStore, message).encode(&mut connection.output, id);
        }
        match self.publication.reset() {
            Ok((floor, ticket)) => {
                let mut bytes = Vec::new();
                reply::reset(&mut bytes, id, floor);
                self.answer(connection, Latest(Some(ticket)), LateReply::Ready(bytes));
            }
            Err(full) => overloaded(connection, id, full),
        }
    }

    fn list(&self, connection: &mut Connection, id: u64, request: &ListRequest, now: Now) {
        let max = (request.max as usize).clamp(1, LIST_MAX);
        let mut entries = match request.kind {
            ListKind::Open => self.list_open(request.after, max + 1, now),
            ListKind::Invalid => self.list_invalid(request.after, max + 1),
        };
        entries.sort_unstable_by_key(|entry| entry.tx);
        let more = entries.len() > max;
        entries.truncate(max);
        reply::list(&mut connection.output, id, more, &entries);
    }

    /// The first `max` open transactions behind `after`. Walks the whole table, and keeps no more than it lists.
    fn list_open(&self, after: WritePointer, max: usize, now: Now) -> Vec<Listed> {
        let mut entries: BTreeMap<WritePointer, OpenView> = BTreeMap::new();
        self.publication.core().for_each_open(|open| {
            let is_full = entries.len() == max;
            if open.tx <= after || (is_full && entries.last_key_value().is_some_and(|(last, _)| open.tx > *last)) {
                return;
            }
            if is_full {
                entries.pop_last();
            }
            entries.insert(open.tx, *open);
        });
        entries.values().map(|open| listed(open, self.publication.core(), now)).collect()
    }

    fn list_invalid(&self, after: WritePointer, max: usize) -> Vec<Listed> {
        let published = self.publication.published();
        let listed = |tx: WritePointer, count: u64, kind: Kind, cause: InvalidCause| Listed {
            tx,
            count,
            status: Status::Invalid(cause),
            kind,
            deferred: false,
            detached: false,
            remaining_ms: None,
            session: 0,
            snapshot: CommitNumber(0),
            checkpoints: published.checkpoints(tx).len() as u32,
            label: None,
        };
        let single = published.invalid_after(after).take(max).map(|(tx, kept)| listed(tx, 1, kept.kind, kept.cause));
        let whole = published.invalid().intervals.iter().filter(|(first, _)| *first > after.0).take(max);
        let whole =
            whole.map(|(first, end)| listed(WritePointer(*first), end - first, Kind::Long, InvalidCause::Unaccounted));
        single.chain(whole).collect()
    }

    /// The counters; what the desk does not know of is left for the pipeline.
    pub fn state(&mut self, now: Now) -> State {
        let visibility_bound = self.publication.visibility_bound(now);
        let (publication, published) = (&self.publication, self.publication.published());
        let snapshot = publication.snapshot();
        State {
            store: seriatim_wire::StoreId(publication.store().0),
            boot: published.boot(),
            server_time_ms: now.wall_ms,
            sequencer_time_ms: now.sequencer.0,
            snapshot: snapshot.id.number,
            read_pointer: published.read_pointer(),
            csn: published.csn(),
            next_pointer: publication.next_pointer(),
            window_end: published.window_end(),
            visibility_bound,
            open: publication.core().open_len(),
            invalid: published.invalid().len(),
            excluded: snapshot.excluded_len(),
            outcomes: published.outcomes_len() as u64,
            durable_lsn: publication.log().durable().0,
            durable: publication.log().is_durable(),
            storage: publication.log().write_path(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..State::default()
        }
    }

    /// Sends a reply now, or lets it wait for its ticket.
    fn answer(&mut self, connection: &mut Connection, latest: Latest, reply: LateReply) {
        match latest.0.filter(|ticket| !self.publication.is_released(*ticket)) {
            None => reply.write(&self.publication, &mut connection.output),
            Some(ticket) => {
                connection.waiting += 1;
                self.waiting.push_back(Waiting { ticket, connection: connection.id, reply });
            }
        }
    }

    /// Hands out the replies whose tickets are released: to whom, and what writes it.
    pub fn release(&mut self, now: Now, mut deliver: impl FnMut(ConnectionId, &mut dyn FnMut(&mut Vec<u8>))) {
        while self.waiting.front().is_some_and(|first| self.publication.is_released(first.ticket)) {
            let Waiting { connection, reply, .. } = self.waiting.pop_front().expect("the front was just looked at");
            let mut reply = Some(reply);
            deliver(connection, &mut |output| {
                reply.take().into_iter().for_each(|reply| reply.write(&self.publication, output));
            });
        }
        self.release_fences(now, &mut deliver);
    }

    /// Ends the open SHORT transactions of sessions that are gone. False if there was no room to end them all.
    pub fn end_orphans(&mut self, is_gone: impl Fn(u64) -> bool) -> bool {
        let core: &Sequencer = self.publication.core();
        let mut orphans = Vec::new();
        core.for_each_open(|open| {
            let may_end = matches!(open.status, Status::Open | Status::Refused);
            if may_end && open.kind == Kind::Short && !open.detached && is_gone(open.owner) {
                orphans.push((open.tx, open.deferred));
            }
        });
        orphans.into_iter().all(|(tx, deferred)| {
            let end = match deferred || P::abort_on_disconnect() {
                // No write of it reached a store.
                true => core.abort(tx),
                false => core.invalidate(tx, InvalidCause::Disconnected),
            };
            !matches!(end, End::Denied(_))
        })
    }
}

/// An open transaction as a line of a list.
pub(crate) fn listed(open: &OpenView, core: &Sequencer, now: Now) -> Listed {
    let remaining = open.deadline.0.saturating_sub(now.sequencer.0);
    Listed {
        tx: open.tx,
        count: 1,
        status: open.status,
        kind: open.kind,
        deferred: open.deferred,
        detached: open.detached,
        remaining_ms: (open.deadline != SequencerTime::NEVER).then_some(remaining),
        session: open.owner,
        snapshot: open.snapshot,
        checkpoints: open.checkpoints,
        label: core.label(open.label),
    }
}

impl LateReply {
    fn write<S: Storage, P: Plant>(self, publication: &Publication<S, P>, output: &mut Vec<u8>) {
        match self {
            LateReply::Ready(bytes) => output.extend_from_slice(&bytes),
            LateReply::Commit(id, outcomes) => {
                reply::commit(output, id, outcomes.into_iter().map(|outcome| known_by_now(outcome, publication)));
            }
            LateReply::Statuses(op, id, statuses) => {
                let statuses = statuses.into_iter().map(|status| match status {
                    Answer::Known(status) => status,
                    Answer::Asked(tx) => publication.published().status(tx),
                });
                reply::statuses(output, op, id, statuses);
            }
            LateReply::Checks(id, checks) => {
                reply::can_commit(output, id, checks.into_iter().map(|check| known_by_now(check, publication)));
            }
            LateReply::Checkpoints(id, answers) => {
                let answers = answers.into_iter().map(|answer| match answer {
                    CheckpointAnswer::Now(answer) => known_by_now(answer, publication),
                    CheckpointAnswer::Repeated(tx, number) => publication.given_before(tx, number),
                });
                reply::checkpoint(output, id, answers);
            }
        }
    }
}

fn known_by_now<T, S: Storage, P: Plant>(
    answer: Answer<Result<T, CommitError>>,
    publication: &Publication<S, P>,
) -> Result<T, CommitError> {
    match answer {
        Answer::Known(known) => known,
        Answer::Asked(tx) => Err(CommitError::NotInProgress { tx, ended: publication.published().status(tx) }),
    }
}

fn commit_bytes(id: u64, outcomes: Vec<Answer<Result<CommitNumber, CommitError>>>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(32 + 4 * outcomes.len());
    let outcomes = outcomes.into_iter().map(|outcome| match outcome {
        Answer::Known(outcome) => outcome,
        Answer::Asked(_) => unreachable!("frames that ask are written when they leave"),
    });
    reply::commit(&mut bytes, id, outcomes);
    bytes
}

/// What an end that the table knows answers.
fn known(end: End, tx: WritePointer, latest: &mut Latest) -> Result<Answer<Status>, Full> {
    match end {
        End::Ended { status, ticket } => {
            latest.note(ticket);
            Ok(Answer::Known(status))
        }
        End::Ending { ticket } => {
            latest.note(ticket);
            Ok(Answer::Asked(tx))
        }
        End::Unknown => Ok(Answer::Asked(tx)),
        End::Denied(error) => Err(full_of(error)),
    }
}

fn full_of(error: CommitError) -> Full {
    match error {
        CommitError::Overloaded(full) => full,
        error => panic!("an end was denied for another reason than room: {error}"),
    }
}

fn overloaded(connection: &mut Connection, id: u64, full: Full) {
    let message = full.to_string();
    let reply = ErrorReply::new(ErrorCode::Overloaded, &message).with_numbers(full as u64, 0);
    reply.encode(&mut connection.output, id);
}
