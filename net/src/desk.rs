//! Where requests are decided and replies wait: between the connections and the log.
//!
//! Begins and questions are answered at once. Every answer that ends or changes a transaction, refusals included, names
//! the ticket of its event and waits here until that is published; tickets grow as requests are decided, so what waits
//! is a queue.

use std::collections::{BTreeMap, VecDeque};

use seriatim_core::{
    BeginError, ChangeSet, CommitError, CommitNumber, Decision, End, Full, InvalidCause, Scratch, Sequencer, Status,
    Ticket, WritePointer,
};
use seriatim_wal::Storage;
use seriatim_wire::{
    BeginRequest, Block, CommitItems, ErrorCode, ErrorReply, ListKind, ListRequest, Listed, Op, Pointers, Request,
    State, reply,
};

use crate::clock::Now;
use crate::connection::Connection;
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
    commits: Vec<(WritePointer, ChangeSet)>,
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
}

/// One answer of many.
enum Answer<T> {
    /// Known when the request was decided.
    Known(T),
    /// To be asked of the published state when the reply leaves.
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
        Desk { publication, waiting: VecDeque::new(), scratch: Scratch::default(), commits: Vec::new() }
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
        );
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
            Request::State => reply::state(&mut connection.output, id, &self.state(now)),
            Request::List(list) => self.list(connection, id, &list, now),
            Request::Reset { store } => self.reset(connection, id, store.0),
            Request::Ping(bytes) => reply::ping(&mut connection.output, id, bytes),
        }
    }

    fn begin(&mut self, connection: &mut Connection, id: u64, request: &BeginRequest, now: Now) {
        let core = self.publication.core();
        // The request's bytes were read before this: the snapshot that the begin loads is not older than they are.
        match core.begin(now.sequencer, &request.options, request.count, connection.session) {
            Ok(begun) => {
                connection.has_begun = true;
                let block = Block { first: begun.first, count: u64::from(begun.count) };
                let base = request.base.and_then(|base| self.publication.recent(base));
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
        commits.extend(items.map(|item| (item.tx, item.change_set())));
        if P::lost_update() {
            for (_, changes) in &mut commits {
                changes.marks = std::mem::take(&mut changes.writes);
            }
        }
        let core = self.publication.core().clone();
        for (_, changes) in commits.iter().take(PREFETCH_AHEAD) {
            core.prefetch(changes);
        }
        let (mut latest, mut asks) = (Latest::default(), false);
        let mut outcomes = Vec::with_capacity(commits.len());
        for (index, (tx, changes)) in commits.iter().enumerate() {
            if let Some((_, ahead)) = commits.get(index + PREFETCH_AHEAD) {
                core.prefetch(ahead);
            }
            let outcome = match core.commit(now.sequencer, *tx, changes, &mut self.scratch) {
                Decision::Committed { csn, ticket } => {
                    latest.note(ticket);
                    Answer::Known(Ok(csn))
                }
                Decision::Refused { error, ticket } => {
                    latest.note(ticket);
                    Answer::Known(Err(error))
                }
                Decision::Denied(error) => Answer::Known(Err(error)),
                Decision::Ending { ticket } => {
                    latest.note(ticket);
                    asks = true;
                    Answer::Asked(*tx)
                }
                Decision::Unknown => match self.publication.status(*tx) {
                    // A reset has dropped it and is not published yet.
                    Status::Open | Status::Refused => {
                        self.publication.last_ticket().into_iter().for_each(|ticket| latest.note(ticket));
                        asks = true;
                        Answer::Asked(*tx)
                    }
                    ended => Answer::Known(Err(CommitError::NotInProgress { tx: *tx, ended })),
                },
            };
            outcomes.push(outcome);
        }
        self.commits = commits;
        let late = if asks { LateReply::Commit(id, outcomes) } else { LateReply::Ready(commit_bytes(id, outcomes)) };
        self.answer(connection, latest, late);
    }

    fn abort(&mut self, connection: &mut Connection, id: u64, pointers: Pointers<'_>) {
        self.end_all(connection, Op::Abort, id, pointers, |desk, tx, latest| {
            let status = match desk.publication.core().abort(tx) {
                End::Unknown => match desk.publication.abort_invalid(tx) {
                    Some(ticket) => {
                        latest.note(ticket?);
                        Answer::Known(Status::Aborted)
                    }
                    None => Answer::Known(desk.publication.status(tx)),
                },
                end => known(end, tx, latest)?,
            };
            Ok(status)
        });
    }

    fn settle(&mut self, connection: &mut Connection, id: u64, pointers: Pointers<'_>) {
        self.end_all(connection, Op::Settle, id, pointers, |desk, tx, latest| {
            if desk.publication.core().look(tx) == Some(Status::Refused) {
                // Refused for good, and its client may still roll it back: that is an answer, and no doubt.
                desk.publication.last_ticket().into_iter().for_each(|ticket| latest.note(ticket));
                return Ok(Answer::Asked(tx));
            }
            match desk.publication.core().invalidate(tx, InvalidCause::Settled) {
                End::Unknown => match desk.publication.status(tx) {
                    // A reset has dropped it and is not published yet.
                    Status::Open | Status::Refused => {
                        desk.publication.last_ticket().into_iter().for_each(|ticket| latest.note(ticket));
                        Ok(Answer::Asked(tx))
                    }
                    status => Ok(Answer::Known(status)),
                },
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
        reply::invalidate(&mut bytes, id, ended);
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
        let mut entries: BTreeMap<WritePointer, Listed> = BTreeMap::new();
        self.publication.core().for_each_open(|open| {
            let is_full = entries.len() == max;
            if open.tx <= after || (is_full && entries.last_key_value().is_some_and(|(last, _)| open.tx > *last)) {
                return;
            }
            if is_full {
                entries.pop_last();
            }
            let remaining = open.deadline.0.saturating_sub(now.sequencer.0);
            let listed = Listed {
                tx: open.tx,
                count: 1,
                status: open.status,
                kind: open.kind,
                deferred: open.deferred,
                detached: open.detached,
                remaining_ms: (open.deadline != seriatim_core::SequencerTime::NEVER).then_some(remaining),
                session: open.owner,
                snapshot: open.snapshot,
            };
            entries.insert(open.tx, listed);
        });
        entries.into_values().collect()
    }

    fn list_invalid(&self, after: WritePointer, max: usize) -> Vec<Listed> {
        let published = self.publication.published();
        let listed = |tx: WritePointer, count: u64| Listed {
            tx,
            count,
            status: published.status(tx),
            kind: published.invalid_transaction(tx).map_or(seriatim_core::Kind::Long, |invalid| invalid.kind),
            deferred: false,
            detached: false,
            remaining_ms: None,
            session: 0,
            snapshot: CommitNumber(0),
        };
        let invalid = published.invalid();
        let single = invalid.pointers.iter().filter(|tx| *tx > after).take(max).map(|tx| listed(tx, 1));
        let whole = invalid.intervals.iter().filter(|(first, _)| *first > after.0).take(max);
        single.chain(whole.map(|(first, end)| listed(WritePointer(*first), end - first))).collect()
    }

    /// The counters; what the desk does not know of is left for the pipeline.
    pub fn state(&self, now: Now) -> State {
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
            settled: snapshot.settled(),
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
    pub fn release(&mut self, mut deliver: impl FnMut(ConnectionId, &mut dyn FnMut(&mut Vec<u8>))) {
        while self.waiting.front().is_some_and(|first| self.publication.is_released(first.ticket)) {
            let Waiting { connection, reply, .. } = self.waiting.pop_front().expect("the front was just looked at");
            let mut reply = Some(reply);
            deliver(connection, &mut |output| {
                reply.take().into_iter().for_each(|reply| reply.write(&self.publication, output));
            });
        }
    }

    /// Ends the open SHORT transactions of sessions that are gone. False if there was no room to end them all.
    pub fn end_orphans(&mut self, is_gone: impl Fn(u64) -> bool) -> bool {
        let core: &Sequencer = self.publication.core();
        let mut orphans = Vec::new();
        core.for_each_open(|open| {
            let may_end = matches!(open.status, Status::Open | Status::Refused);
            if may_end && open.kind == seriatim_core::Kind::Short && !open.detached && is_gone(open.owner) {
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

impl LateReply {
    fn write<S: Storage, P: Plant>(self, publication: &Publication<S, P>, output: &mut Vec<u8>) {
        match self {
            LateReply::Ready(bytes) => output.extend_from_slice(&bytes),
            LateReply::Commit(id, outcomes) => {
                let outcomes = outcomes.into_iter().map(|outcome| match outcome {
                    Answer::Known(outcome) => outcome,
                    Answer::Asked(tx) => Err(CommitError::NotInProgress { tx, ended: publication.status(tx) }),
                });
                reply::commit(output, id, outcomes);
            }
            LateReply::Statuses(op, id, statuses) => {
                let statuses = statuses.into_iter().map(|status| match status {
                    Answer::Known(status) => status,
                    Answer::Asked(tx) => publication.status(tx),
                });
                reply::statuses(output, op, id, statuses);
            }
        }
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
