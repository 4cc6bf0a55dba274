//! One connection for many callers. Whoever waits does the work: there is no thread behind it.
//!
//! A caller puts its call into the session under the lock, and then, until its answer is there, takes whichever of two
//! roles is free: the *writer* sends what the session has gathered, the *reader* reads and hands answers out. Both
//! work on the socket without the lock. Who finds both roles taken sleeps; who leaves a role with work in it wakes a
//! sleeper.
//!
//! Why not a thread that reads: waking a sleeping thread costs about 27 µs one way, twice per call, as much as the
//! server needs to decide and store a commit. A lone caller here makes two system calls and switches to nobody. Why
//! not a timer that gathers calls: while one caller writes, those who come join the next frame, so frames grow by
//! themselves as the load does, and nobody waits for others to come.
//!
//! | role taken by | does | then |
//! |---|---|---|
//! | writer | takes the output, writes it | again, while there is more and its answer is not there |
//! | reader | reads once, hands out answers | again, while its own answer is not among them |
//! | who has an answer | leaves | wakes a sleeper if a role is free and has work; if none sleeps, writes first |

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use seriatim_core::{BeginOptions, ChangeSet, CommitError, Submission, WritePointer};
use seriatim_wire::{HelloReply, ImageRequest, ListRequest, Op, StoreId, StoreRequest};

use crate::address::{Address, READ_BYTES, Stream, is_timeout};
use crate::backoff::{pause, random};
use crate::error::Cause;
use crate::options::ClientOptions;
use crate::session::{Answer, AnswerPlace, Session};
use crate::waiters::{Done, Failure, Waiters};

/// What a caller wants.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call<'c> {
    Begin(BeginOptions, Option<&'c Arc<str>>),
    Commit(WritePointer, Submission<'c>),
    CanCommit(WritePointer, &'c ChangeSet),
    Checkpoint(WritePointer, u32),
    /// Abort, invalidate, status, settle or truncate. Of several, the last one's answer is handed out.
    Name(Op, &'c [WritePointer]),
    Snapshot,
    Timestamps(u64),
    State,
    List(ListRequest),
    Reset(StoreId),
    TruncateBefore(WritePointer),
    Fence(u64),
    Image(ImageRequest),
    Store(StoreRequest<'c>),
    Ping,
}

/// One connection for many callers; see the head of this file.
#[derive(Debug)]
pub(crate) struct Link {
    address: Address,
    options: ClientOptions,
    state: Mutex<State>,
    /// A connection was made, or could not be.
    connected: Condvar,
}

#[derive(Debug)]
struct State {
    session: Session,
    stream: Option<Arc<Stream>>,
    /// Counts connections, so that who comes back from the socket of an old one keeps its hands off the new one.
    generation: u64,
    hello: HelloReply,
    writing: bool,
    reading: bool,
    connecting: bool,
    /// Attempts to connect again that failed, and why the last one did: who waited for it has failed with it.
    refusals: u64,
    refusal: Option<Cause>,
    waiters: Waiters,
    /// Connections lost or not made since the last answer.
    failures: u32,
    /// Not before this time is another connection made.
    retry_at: Instant,
    last_received: Instant,
    /// Of the socket; the greatest there is makes the next reader set its own.
    read_timeout: Duration,
    /// Memory for the writer and the reader.
    write_buffer: Vec<u8>,
    read_buffer: Vec<u8>,
}

type Guard<'l> = MutexGuard<'l, State>;

impl Link {
    /// Connects and says hello.
    pub fn connect(address: Address, options: ClientOptions) -> Result<Link, Cause> {
        let (session, stream, hello) = open(&address, &options, None)?;
        let now = Instant::now();
        let state = State {
            session,
            stream: Some(Arc::new(stream)),
            generation: 1,
            hello,
            writing: false,
            reading: false,
            connecting: false,
            refusals: 0,
            refusal: None,
            waiters: Waiters::default(),
            failures: 0,
            retry_at: now,
            last_received: now,
            read_timeout: Duration::MAX,
            write_buffer: Vec::new(),
            read_buffer: Vec::new(),
        };
        Ok(Link { address, options, state: Mutex::new(state), connected: Condvar::new() })
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    pub fn options(&self) -> &ClientOptions {
        &self.options
    }

    /// What the server said when the newest connection was made.
    pub fn hello(&self) -> HelloReply {
        self.lock().hello
    }

    /// Calls under way.
    pub fn in_flight(&self) -> usize {
        self.lock().waiters.len()
    }

    /// Makes one call and waits for its answer.
    pub fn call(&self, call: Call<'_>, deadline: Instant) -> Result<Done, Failure> {
        let mut state = self.ready(deadline)?;
        if state.waiters.len().max(state.session.in_flight()) >= self.options.calls_max {
            return Err(Failure::QueueFull);
        }
        let asked = Instant::now();
        let me = {
            let State { session, waiters, .. } = &mut *state;
            waiters.add(call.put(session).map_err(Failure::Refused)?)
        };
        loop {
            if let Some(done) = state.waiters.take_done(me) {
                self.leave(state);
                return done;
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(self.give_up(state, me, asked));
            }
            if !state.writing && state.session.has_output() {
                state = self.write(state);
            } else if !state.reading {
                state = self.read(state, deadline - now);
            } else if let Some(wake) = state.waiters.fall_asleep(me) {
                state = wake.wait_timeout(state, deadline - now).unwrap_or_else(PoisonError::into_inner).0;
                state.waiters.wake_up(me);
            }
        }
    }

    fn lock(&self) -> Guard<'_> {
        // Nothing that can panic leaves the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock with a connection; made by this caller if there is none and nobody is making one.
    fn ready(&self, deadline: Instant) -> Result<Guard<'_>, Failure> {
        let mut state = self.lock();
        let refusals = state.refusals;
        loop {
            if state.stream.is_some() {
                return Ok(state);
            }
            if let Some(cause) = state.refusal.clone().filter(|_| state.refusals != refusals) {
                return Err(Failure::Connect(cause));
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(Failure::TimedOut { sent: false });
            }
            if !state.connecting && now >= state.retry_at {
                return self.connect_again(state, deadline - now);
            }
            // The end of another's attempt wakes everybody, so only a pause needs a time.
            let until = if state.connecting { deadline } else { deadline.min(state.retry_at) };
            state = self.connected.wait_timeout(state, until - now).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn connect_again<'l>(&'l self, mut state: Guard<'l>, time: Duration) -> Result<Guard<'l>, Failure> {
        state.connecting = true;
        let store = state.hello.store;
        drop(state);
        let options = ClientOptions { connect_timeout: self.options.connect_timeout.min(time), ..self.options.clone() };
        let opened = open(&self.address, &options, Some(store));
        let mut state = self.lock();
        state.connecting = false;
        self.connected.notify_all();
        match opened {
            Ok((mut session, stream, hello)) => {
                let snapshot = state.session.current_snapshot().filter(|old| old.id.boot == hello.boot).cloned();
                session.set_current_snapshot(snapshot);
                (state.session, state.hello, state.stream) = (session, hello, Some(Arc::new(stream)));
                (state.writing, state.reading) = (false, false);
                state.generation += 1;
                state.last_received = Instant::now();
                state.read_timeout = Duration::MAX;
                Ok(state)
            }
            Err(cause) => {
                state.count_failure();
                state.refusals += 1;
                state.refusal = Some(cause.clone());
                Err(Failure::Connect(cause))
            }
        }
    }

    /// In the writer's role: sends what has been gathered.
    fn write<'l>(&'l self, mut state: Guard<'l>) -> Guard<'l> {
        let Some(stream) = state.stream.clone() else { return state };
        let generation = state.generation;
        let mut buffer = std::mem::take(&mut state.write_buffer);
        state.session.take_output(&mut buffer);
        state.writing = true;
        drop(state);
        let result = stream.write_all(&buffer);
        let mut state = self.lock();
        if buffer.capacity() <= 16 * READ_BYTES {
            state.write_buffer = buffer;
        }
        if state.generation == generation {
            state.writing = false;
            if let Err(error) = result {
                let cause = if is_timeout(&error) { Cause::Silent } else { error.into() };
                state.lose(cause);
            }
        }
        state
    }

    /// In the reader's role: reads once, and hands out what came.
    fn read<'l>(&'l self, mut state: Guard<'l>, time: Duration) -> Guard<'l> {
        let Some(stream) = state.stream.clone() else { return state };
        let generation = state.generation;
        let mut buffer = std::mem::take(&mut state.read_buffer);
        buffer.resize(READ_BYTES, 0);
        // A system call for each small difference would cost more than waking an eighth too late.
        let timeout = if state.read_timeout > time + time / 8 { Some(time) } else { None };
        state.read_timeout = timeout.unwrap_or(state.read_timeout);
        state.reading = true;
        drop(state);
        let result =
            timeout.map_or(Ok(()), |time| stream.set_read_timeout(time)).and_then(|()| stream.read(&mut buffer));
        let mut state = self.lock();
        if state.generation == generation {
            state.reading = false;
            match result {
                Ok(0) => state.lose(Cause::Closed),
                Ok(count) => state.receive(&buffer[..count]),
                // Whose time it was will find out; the next reader sets its own.
                Err(error) if is_timeout(&error) => state.read_timeout = Duration::MAX,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => state.lose(error.into()),
            }
        }
        state.read_buffer = buffer;
        state
    }

    /// The caller's time is over. If the server has been silent since it asked, the connection is taken for dead.
    fn give_up<'l>(&'l self, mut state: Guard<'l>, me: u64, asked: Instant) -> Failure {
        let sent = state.waiters.leave(me).is_none_or(|request| !state.session.is_unsent(request));
        if sent && state.last_received < asked {
            state.lose(Cause::Silent);
        }
        self.leave(state);
        Failure::TimedOut { sent }
    }

    /// Called by whoever goes. A free role with work in it goes to a sleeper. If nobody sleeps, the others are all at
    /// work: whoever writes now will look for a reader's work before it sleeps, but whoever reads now may wait for the
    /// answer to what nobody has sent, so that is sent before leaving.
    fn leave<'l>(&'l self, mut state: Guard<'l>) {
        while state.stream.is_some() && !state.writing && state.session.has_output() {
            if state.waiters.wake_one() {
                return;
            }
            state = self.write(state);
        }
        if state.stream.is_some() && !state.reading && state.waiters.expect_answers() {
            state.waiters.wake_one();
        }
    }
}

impl Call<'_> {
    fn put(self, session: &mut Session) -> Result<AnswerPlace, CommitError> {
        Ok(match self {
            Call::Begin(options, label) => session.begin_as(options, label, 1),
            Call::Commit(tx, submission) => session.commit(tx, submission)?,
            Call::CanCommit(tx, changes) => session.can_commit(tx, changes)?,
            Call::Checkpoint(tx, number) => session.checkpoint(tx, number),
            Call::Name(op, pointers) => {
                let name = match op {
                    Op::Abort => Session::abort,
                    Op::Invalidate => Session::invalidate,
                    Op::Status => Session::status,
                    Op::Truncate => Session::truncate,
                    _ => Session::settle,
                };
                let mut place = None;
                for pointer in pointers {
                    place = Some(name(session, *pointer));
                }
                place.unwrap_or_else(|| session.ping(&[]))
            }
            Call::Snapshot => session.snapshot(),
            Call::Timestamps(count) => session.timestamps(count),
            Call::State => session.state(),
            Call::List(list) => session.list(&list),
            Call::Reset(store) => session.reset(store),
            Call::TruncateBefore(bound) => session.truncate_before(bound),
            Call::Fence(timeout_ms) => session.fence(timeout_ms),
            Call::Image(image) => session.image(image),
            Call::Store(store) => session.store(store),
            Call::Ping => session.ping(&[]),
        })
    }
}

impl State {
    fn receive(&mut self, bytes: &[u8]) {
        let State { session, waiters, .. } = self;
        session.receive(bytes);
        let mut said = None;
        let broken = loop {
            match session.next_answer() {
                Ok(Some((request, answer))) => {
                    if let Answer::Error(error) = &answer
                        && error.closes
                    {
                        said = Some(Cause::Server((*error).into()));
                    }
                    waiters.answer(request, answer);
                }
                Ok(None) => break said,
                Err(error) => break Some(error.into()),
            }
        };
        self.last_received = Instant::now();
        match broken {
            None => self.failures = 0,
            Some(cause) => self.lose(cause),
        }
    }

    /// Ends the connection: every call on it fails, and who is at work on its socket is woken.
    fn lose(&mut self, cause: Cause) {
        let Some(stream) = self.stream.take() else { return };
        stream.shutdown();
        self.generation += 1;
        (self.writing, self.reading) = (false, false);
        let State { session, waiters, .. } = self;
        waiters.fail_all(&cause, |request| session.is_unsent(request));
        self.count_failure();
    }

    fn count_failure(&mut self) {
        self.failures += 1;
        self.retry_at = Instant::now() + pause(self.failures, random());
    }
}

/// Connects, says hello, and hears it.
pub(crate) fn open(
    address: &Address,
    options: &ClientOptions,
    store: Option<StoreId>,
) -> Result<(Session, Stream, HelloReply), Cause> {
    let deadline = Instant::now() + options.connect_timeout;
    let stream = Stream::connect(address, options.connect_timeout)?;
    stream.set_write_timeout(options.request_timeout)?;
    let wanted = options.hello(store);
    let mut session = Session::new(&wanted);
    let mut bytes = Vec::new();
    session.take_output(&mut bytes);
    stream.write_all(&bytes)?;
    bytes.resize(READ_BYTES, 0);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Cause::Silent);
        }
        stream.set_read_timeout(left)?;
        match stream.read(&mut bytes) {
            Ok(0) => return Err(Cause::Closed),
            Ok(count) => session.receive(&bytes[..count]),
            Err(error) if is_timeout(&error) => return Err(Cause::Silent),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
        match session.next_answer()? {
            None => {}
            Some((_, Answer::Hello(hello))) if wanted.store.is_some_and(|store| store != hello.store) => {
                return Err(Cause::OtherStore);
            }
            Some((_, Answer::Hello(hello))) => {
                stream.set_read_timeout(options.connect_timeout)?;
                return Ok((session, stream, hello));
            }
            Some((_, Answer::Error(error))) => return Err(Cause::Server(error.into())),
            // Nothing else was asked, so the session takes nothing else for an answer.
            Some(_) => {}
        }
    }
}
