//! A client: one session, a connection that it makes again when it is lost, and workers that share it.
//!
//! It does what the product's client does with what a lost connection leaves open: what may be asked twice is asked
//! again, a commit is repeated and believed by its second answer, and a doubt that remains is settled.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use seriatim_client::{Answer, Session};
use seriatim_core::{BeginError, CommitError, CommitNumber, Snapshot, Status, WritePointer};
use seriatim_net::Clock;
use seriatim_wire::{
    ErrorCode, Fenced, Hello, ImageRequest, ListKind, ListRequest, Listed, State, StoreId, StoreReply, StoreRequest,
    Truncated,
};

use crate::law;
use crate::probes::Probe;
use crate::queue::Event;
use crate::verdict::{Judged, broken};
use crate::wires::Wire;
use crate::worker::Worker;
use crate::world::World;

/// See the head of this file.
pub(crate) struct Client {
    session: u64,
    link: Option<Link>,
    attempt: u64,
    /// Connections in a row that came to nothing.
    failures: u32,
    /// What the last connection's newest snapshot was.
    kept: Option<Arc<Snapshot>>,
    left_us: u64,
    pub workers: Vec<Worker>,
}

struct Link {
    connection: u64,
    session: Session,
    waiting: FxHashMap<u64, Vec<Waiting>>,
    /// Which store the server has, once it has said hello.
    store: StoreId,
    will_flush: bool,
}

/// Whose answer is in a reply, and where.
struct Waiting {
    index: u32,
    worker: usize,
    step: u64,
    call: Call,
    facts: Facts,
}

/// What a worker asks of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Call {
    /// So many with neighbouring pointers; the worker takes the first and forgets about the others.
    Begin(u32),
    Snapshot,
    Stamps(u64),
    Fence(u64),
    State,
    List(ListKind),
    Check(WritePointer),
    Checkpoint(WritePointer, u32),
    /// The flag: by the digest of the set that was checked.
    Commit(WritePointer, bool),
    Abort(WritePointer),
    Invalidate(WritePointer),
    Settle(WritePointer),
    Status(WritePointer),
    Truncate(WritePointer),
    TruncateBefore(WritePointer),
    Store(StoreRequest<'static>),
    Image,
    Reset,
}

/// Entries of a list that are asked for.
pub(crate) const LISTED_MAX: u32 = 100;

/// What was so when a call was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// The greatest commit that anybody had been told of.
    pub told_csn: u64,
    /// The greatest pointer that anybody had.
    pub told_pointer: u64,
    /// The transaction that it is about had ended, durably.
    pub has_ended: bool,
    /// What the wall clock said, if it has never stepped.
    pub wall_ms: u64,
    /// Who asked, and the label of what it began.
    pub session: u64,
    pub label: Option<&'static str>,
    /// How many stores had been removed.
    pub stores_removed: u64,
}

/// An answer.
#[derive(Clone, Debug)]
pub(crate) enum Heard {
    Begun(Result<(WritePointer, Arc<Snapshot>), BeginError>),
    Snapshot(Arc<Snapshot>),
    Stamps(Result<WritePointer, BeginError>),
    Checked(Result<(), CommitError>),
    Checkpoint(Result<WritePointer, CommitError>),
    Committed(Result<CommitNumber, CommitError>),
    Status(Status),
    Ended(bool),
    Truncated,
    TruncatedBefore(Truncated),
    Reset(WritePointer),
    Store(StoreReply),
    /// An image, or its first page, and how many bytes it has.
    Image(Vec<u8>, u64),
    Fenced(Fenced),
    State(Box<State>),
    Listed(Vec<Listed>),
    /// The request was not done.
    Error(ErrorCode, u64),
}

impl Client {
    pub fn session(&self) -> u64 {
        self.session
    }

    pub fn connection(&self) -> Option<u64> {
        self.link.as_ref().map(|link| link.connection)
    }

    /// Who reads: in which transaction if in any, through which snapshot, and up to when if in none.
    pub fn readers(&self) -> impl Iterator<Item = (Option<WritePointer>, &Arc<Snapshot>, u64)> {
        self.workers.iter().filter_map(Worker::reader)
    }

    /// Transactions that may still write, and up to when.
    pub fn writers(&self) -> impl Iterator<Item = (WritePointer, u64)> {
        self.workers.iter().filter_map(Worker::writer)
    }

    /// What its workers are busy with, for a report.
    pub fn busy(&self) -> impl Iterator<Item = String> + '_ {
        self.workers.iter().filter(|worker| !worker.is_idle()).map(Worker::describe)
    }
}

impl World {
    /// A client comes, or takes the place of one that has died.
    pub fn add_client(&mut self, place: usize) {
        let workers = (0..self.knobs.workers).map(|_| Worker::default()).collect();
        let session = self.rng.u64(1..1 << 62);
        let client = Client { session, link: None, attempt: 0, failures: 0, kept: None, left_us: 0, workers };
        match self.clients.get_mut(place) {
            Some(old) => {
                let attempt = old.attempt;
                *old = Client { attempt, ..client };
            }
            None => self.clients.push(client),
        }
        self.connect_later(place, 0);
        for worker in 0..self.knobs.workers {
            self.rest(place, worker);
        }
    }

    fn connect_later(&mut self, client: usize, delay_us: u64) {
        let at = self.now() + delay_us;
        self.clients[client].attempt += 1;
        let attempt = self.clients[client].attempt;
        self.queue.push(at, Event::Connect { client, attempt });
    }

    pub fn connect(&mut self, client: usize, attempt: u64) -> Judged {
        if self.clients[client].attempt != attempt || self.clients[client].link.is_some() {
            return Ok(());
        }
        if self.server.is_none() {
            self.clients[client].failures += 1;
            let pause_us = 2_000u64 << self.clients[client].failures.min(6);
            let delay_us = self.rng.u64(pause_us / 2..=pause_us);
            self.connect_later(client, delay_us);
            return Ok(());
        }
        self.last_wire += 1;
        let connection = self.last_wire;
        self.wires.insert(connection, Wire::new(client));
        let room = self.knobs.window_bytes;
        if let Some(server) = self.server.as_mut() {
            server.pipeline.network().open(connection, room);
        }
        self.wake_server(self.knobs.turn_us);
        let me = &mut self.clients[client];
        me.failures = 0;
        let mut session = Session::new(&Hello::new(me.session));
        session.set_current_snapshot(me.kept.take());
        let gone_us = self.clock.now_us() - me.left_us;
        let grace_us = self.knobs.limits.grace_ms * 1_000;
        self.probes.hit_if(me.left_us > 0 && gone_us < grace_us, Probe::BackInGrace);
        me.link =
            Some(Link { connection, session, waiting: FxHashMap::default(), store: StoreId(0), will_flush: false });
        self.note("connect", &[("client", client as u64), ("connection", connection)]);
        for worker in 0..self.clients[client].workers.len() {
            self.put(client, worker);
        }
        self.flush_soon(client);
        Ok(())
    }

    fn flush_soon(&mut self, client: usize) {
        let delay_us = self.rng.u64(..100);
        if let Some(link) = self.clients[client].link.as_mut().filter(|link| !link.will_flush) {
            link.will_flush = true;
            self.queue.push(self.clock.now_us() + delay_us, Event::Flush { client });
        }
    }

    pub fn flush(&mut self, client: usize) -> Judged {
        let Some(link) = self.clients[client].link.as_mut() else { return Ok(()) };
        link.will_flush = false;
        let mut bytes = Vec::new();
        link.session.take_output(&mut bytes);
        let connection = link.connection;
        if !bytes.is_empty() {
            self.send_to_server(connection, bytes);
        }
        Ok(())
    }

    /// A worker makes a call; it leaves when there is a connection.
    pub fn ask(&mut self, client: usize, worker: usize, call: Call) {
        let now_us = self.now();
        self.clients[client].workers[worker].asks(call, now_us);
        let step = self.clients[client].workers[worker].step();
        if let Some(tx) = call.tx()
            && let Some(known) = self.reference.known_mut(tx)
        {
            let wishes = &mut known.wishes;
            wishes.abort |= matches!(call, Call::Abort(_));
            wishes.invalidate |= matches!(call, Call::Invalidate(_));
            wishes.settle |= matches!(call, Call::Settle(_));
            wishes.truncate |= matches!(call, Call::Truncate(_));
        }
        self.reference.asked(call);
        if matches!(call, Call::Fence(_)) {
            let open = self.reference.unended().collect();
            self.fences.insert(step, open);
        }
        let at = self.now() + self.knobs.call_us;
        self.queue.push(at, Event::TimeOut { client, worker, step });
        self.put(client, worker);
    }

    /// Puts a worker's call into the session.
    fn put(&mut self, client: usize, worker: usize) {
        let facts = self.facts(client, worker);
        let me = &mut self.clients[client];
        let Some(link) = me.link.as_mut() else { return };
        let (session, worker_state) = (&mut link.session, &mut me.workers[worker]);
        let Some(call) = worker_state.call() else { return };
        let place = match call {
            Call::Begin(count) => {
                Ok(session.begin_as(worker_state.options(), worker_state.label().map(Arc::from).as_ref(), count))
            }
            Call::Snapshot => Ok(session.snapshot()),
            Call::Stamps(count) => Ok(session.timestamps(count)),
            Call::Fence(timeout_ms) => Ok(session.fence(timeout_ms)),
            Call::State => Ok(session.state()),
            Call::List(kind) => Ok(session.list(&ListRequest { kind, after: WritePointer(0), max: LISTED_MAX })),
            Call::Check(tx) => session.can_commit(tx, worker_state.changes()),
            Call::Checkpoint(tx, number) => Ok(session.checkpoint(tx, number)),
            Call::Commit(tx, is_checked) => session.commit(tx, worker_state.submission(is_checked)),
            Call::Abort(tx) => Ok(session.abort(tx)),
            Call::Invalidate(tx) => Ok(session.invalidate(tx)),
            Call::Settle(tx) => Ok(session.settle(tx)),
            Call::Status(tx) => Ok(session.status(tx)),
            Call::Truncate(tx) => Ok(session.truncate(tx)),
            Call::TruncateBefore(bound) => Ok(session.truncate_before(bound)),
            Call::Store(request) => Ok(session.store(request)),
            Call::Reset => Ok(session.reset(link.store)),
            Call::Image => Ok(session.image(ImageRequest { number: 0, offset: 0 })),
        };
        let place = place.expect("change sets are small");
        worker_state.set_sent();
        let waiting = Waiting { index: place.index, worker, step: worker_state.step(), call, facts };
        link.waiting.entry(place.request).or_default().push(waiting);
        self.flush_soon(client);
    }

    fn facts(&self, client: usize, worker: usize) -> Facts {
        let me = &self.clients[client];
        let tx = me.workers[worker].call().and_then(Call::tx);
        let has_ended = tx.and_then(|tx| self.reference.standing(tx)).is_some_and(|standing| standing.has_ended());
        let wall_ms = if self.clock.has_stepped() { 0 } else { self.clock.wall_ms() };
        Facts {
            told_csn: self.told_csn,
            told_pointer: self.told_pointer,
            has_ended,
            wall_ms,
            session: me.session,
            label: me.workers[worker].label(),
            stores_removed: self.reference.upkeep.removed,
        }
    }

    /// Bytes came.
    pub fn hear(&mut self, client: usize, bytes: &[u8]) -> Judged {
        if let Some(link) = self.clients[client].link.as_mut() {
            link.session.receive(bytes);
        }
        loop {
            let Some(link) = self.clients[client].link.as_mut() else { return Ok(()) };
            let (session, waiting) = (&mut link.session, &mut link.waiting);
            let (request, answer) = match session.next_answer() {
                Ok(Some(answer)) => answer,
                Ok(None) => return Ok(()),
                Err(error) => return broken(law::PROTOCOL, error.to_string()),
            };
            if let Answer::Error(error) = &answer {
                self.probes.hit_if(error.code == ErrorCode::TooManyConnections, Probe::TooManyConnections);
            }
            if let Answer::Hello(hello) = &answer {
                link.store = hello.store;
            }
            if request == 0 || matches!(answer, Answer::Hello(_)) {
                continue;
            }
            let mut asked = waiting.remove(&request).unwrap_or_default();
            asked.sort_by_key(|waiting| waiting.index);
            let heard = unpack(&answer, &asked);
            drop(answer);
            if heard.len() != asked.len() {
                return broken(law::PROTOCOL, format!("{} answers to {} questions", heard.len(), asked.len()));
            }
            for (Waiting { worker, step, call, facts, .. }, heard) in asked.into_iter().zip(heard) {
                self.judge(call, &heard, &facts, step)?;
                self.answered(client, worker, step, call, heard)?;
            }
        }
    }

    pub fn client_sees_end(&mut self, connection: u64) -> Judged {
        let Some(wire) = self.wires.remove(&connection) else { return Ok(()) };
        let client = wire.client;
        if self.clients[client].connection() == Some(connection) {
            self.note("client sees end", &[("connection", connection), ("client", client as u64)]);
            self.lose(client);
            let delay_us = self.rng.u64(..3_000);
            self.connect_later(client, delay_us);
        }
        Ok(())
    }

    /// The connection is lost; what was sent may have been done.
    fn lose(&mut self, client: usize) {
        let now = self.now();
        let me = &mut self.clients[client];
        let Some(link) = me.link.take() else { return };
        me.kept = link.session.current_snapshot().cloned();
        me.left_us = now;
        me.workers.iter_mut().for_each(Worker::lose);
    }

    /// A client is gone for good. Its connection may stand for a while.
    pub fn die(&mut self, client: usize) {
        self.note("client died", &[("client", client as u64)]);
        if let Some(connection) = self.clients[client].connection() {
            self.cut(connection);
        }
        self.add_client(client);
    }
}

impl Call {
    /// The transaction that it is about.
    pub fn tx(self) -> Option<WritePointer> {
        match self {
            Call::Begin(_)
            | Call::Snapshot
            | Call::Stamps(_)
            | Call::Fence(_)
            | Call::State
            | Call::List(_)
            | Call::TruncateBefore(_)
            | Call::Store(_)
            | Call::Image
            | Call::Reset => None,
            Call::Check(tx)
            | Call::Checkpoint(tx, _)
            | Call::Commit(tx, _)
            | Call::Abort(tx)
            | Call::Invalidate(tx)
            | Call::Settle(tx)
            | Call::Status(tx)
            | Call::Truncate(tx) => Some(tx),
        }
    }
}

/// One answer for each that asked, in the order of their places.
fn unpack(answer: &Answer<'_>, asked: &[Waiting]) -> Vec<Heard> {
    let places = asked.iter().map(|waiting| waiting.index);
    let pointer = |first: WritePointer, index: u32| WritePointer(first.0 + u64::from(index));
    match answer {
        Answer::Begun(Ok(begun)) => {
            places.map(|index| Heard::Begun(Ok((pointer(begun.block.first, index), begun.snapshot.clone())))).collect()
        }
        Answer::Begun(Err(error)) => places.map(|_| Heard::Begun(Err(*error))).collect(),
        Answer::Committed(outcomes) => outcomes.clone().map(Heard::Committed).collect(),
        Answer::Aborted(statuses) | Answer::Status(statuses) | Answer::Settled(statuses) => {
            statuses.clone().map(Heard::Status).collect()
        }
        Answer::Invalidated(ended) => ended.iter().map(Heard::Ended).collect(),
        Answer::Truncated(forgotten) => forgotten.iter().map(|_| Heard::Truncated).collect(),
        Answer::TruncatedBefore(truncated) => places.map(|_| Heard::TruncatedBefore(*truncated)).collect(),
        Answer::Reset(floor) => places.map(|_| Heard::Reset(*floor)).collect(),
        Answer::Store(said) => places.map(|_| Heard::Store(said.clone())).collect(),
        Answer::Image(page) => places.map(|_| Heard::Image(page.bytes.to_vec(), page.total)).collect(),
        Answer::Snapshot(snapshot) => places.map(|_| Heard::Snapshot(snapshot.clone())).collect(),
        Answer::Timestamps(Ok(block)) => places.map(|index| Heard::Stamps(Ok(pointer(block.first, index)))).collect(),
        Answer::Timestamps(Err(error)) => places.map(|_| Heard::Stamps(Err(*error))).collect(),
        Answer::Checked(checks) => checks.clone().map(Heard::Checked).collect(),
        Answer::Checkpoints(pointers) => pointers.clone().map(Heard::Checkpoint).collect(),
        Answer::Fenced(fenced) => places.map(|_| Heard::Fenced(*fenced)).collect(),
        Answer::State(state) => places.map(|_| Heard::State(Box::new(state.clone()))).collect(),
        Answer::List(listing) => places.map(|_| Heard::Listed(listing.clone().collect())).collect(),
        Answer::Error(error) => places.map(|_| Heard::Error(error.code, error.asked)).collect(),
        _ => Vec::new(),
    }
}
