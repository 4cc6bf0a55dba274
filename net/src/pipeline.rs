//! The way of a request, in order. Whoever has read this file has read the program.
//!
//! One thread runs [`Pipeline::turn`] for ever: it takes requests from their sockets to the disk and back, and nothing on
//! the way hands over to another thread. Clock, network and storage are reached through traits, so a simulation runs
//! this very code.
//!
//! ```text
//!   read ──▶ decode ──▶ decide ──▶ append ──▶ submit ┄┄▶ (disk) ┄┄▶ publish ──▶ reply
//!                         │                                                       ▲
//!                         └── begins and questions are answered at once ──────────┘
//! ```
//!
//! What holds between the steps:
//! - A begin loads its snapshot after its bytes were read, so a commit acknowledged before it was sent is visible to it.
//! - Begins enter the event ring before their replies leave; they are not waited for.
//! - A reply that claims an end leaves after the group that holds the end is durable and published.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::{FxHashMap, FxHashSet};
use seriatim_core::{Snapshot, WritePointer};
use seriatim_wal::Storage;
use seriatim_wire::{DecodeError, ErrorCode, ErrorReply, Frame, Hello, HelloLimits, HelloReply, Op, Request, reply};

use crate::clock::{Clock, Now, Times};
use crate::connection::{Connection, OUTPUT_BYTES_MAX, Phase, SLOW_READER_AFTER, TURN_BYTES};
use crate::desk::Desk;
use crate::failure::{Failure, StartError};
use crate::network::{ConnectionId, Network, NetworkEvent, ReadOutcome};
use crate::plant::Plant;
use crate::publication::Publication;
use crate::recovery::{Options, RecoveryReport, recover};
use crate::sessions::Sessions;
use crate::sockets::Sockets;

/// The longest a turn waits for something to happen: housekeeping is due then.
const TURN_MAX: Duration = Duration::from_millis(50);
/// How long a stopping pipeline keeps trying to send its last replies.
const LAST_REPLIES: Duration = Duration::from_secs(1);

/// Bounds of the network's side.
#[derive(Clone, Debug)]
pub struct ServerLimits {
    /// Bytes of a frame's body. Default and maximum 16 MiB.
    pub body_bytes_max: u32,
    /// Connections. Default 10 000; one more is told so and closed.
    pub connections_max: usize,
    /// How long the open SHORT transactions of a session outlive its last connection. Default 5 s.
    pub grace_ms: u64,
}

impl Default for ServerLimits {
    fn default() -> ServerLimits {
        ServerLimits { body_bytes_max: seriatim_wire::BODY_BYTES_MAX, connections_max: 10_000, grace_ms: 5_000 }
    }
}

/// A pipeline that has started, and what it found.
pub type Started<N, C, S, P> = (Pipeline<N, C, S, P>, RecoveryReport);

/// The pipeline; see the head of this file.
pub struct Pipeline<N, C, S: Storage, P> {
    network: N,
    clock: C,
    times: Times,
    now: Now,
    started: Duration,
    limits: ServerLimits,
    desk: Desk<S, P>,
    connections: FxHashMap<ConnectionId, Box<Connection>>,
    events: Vec<NetworkEvent>,
    /// Connections with something to read, and with something to send.
    ready: Vec<ConnectionId>,
    touched: FxHashSet<ConnectionId>,
    sessions: Sessions,
    kept_at: Duration,
    /// This turn has made its walk over everything that is open or invalid.
    has_walked: bool,
}

impl<N: Network, C: Clock, S: Storage, P: Plant> Pipeline<N, C, S, P> {
    /// Recovers what the storage remembers and makes this run's first group durable. Serves nobody yet.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(
        network: N,
        clock: C,
        storage: S,
        options: &Options,
        limits: ServerLimits,
    ) -> Result<Started<N, C, S, P>, StartError> {
        let mut ready = recover::<S, P>(storage, options, &clock)?;
        let report = std::mem::take(&mut ready.report);
        let mut times = ready.times.take().expect("recovery started them");
        let now = times.look(&clock);
        let desk = Desk::new(Publication::new(ready, options));
        let pipeline = Pipeline {
            network,
            clock,
            times,
            now,
            started: now.monotonic,
            sessions: Sessions::default(),
            limits,
            desk,
            connections: FxHashMap::default(),
            events: Vec::new(),
            ready: Vec::new(),
            touched: FxHashSet::default(),
            kept_at: now.monotonic,
            has_walked: false,
        };
        Ok((pipeline, report))
    }

    /// The network that it speaks over.
    pub fn network(&mut self) -> &mut N {
        &mut self.network
    }

    /// Whether what is acknowledged outlives the process and a power cut.
    pub fn is_durable(&self) -> bool {
        self.desk.publication.log().is_durable()
    }

    /// Which way the log is written.
    pub fn write_path(&self) -> String {
        self.desk.publication.log().write_path()
    }

    /// Starts an image of what is published, whatever the log has grown since the last one.
    pub fn save_image_now(&mut self) {
        self.desk.publication.start_image();
    }

    /// What garbage collection may go by: versions at or below are settled for everybody who reads, so of each key's the
    /// newest one that counts in the snapshot will do.
    pub fn visibility_bound(&mut self) -> (WritePointer, Arc<Snapshot>) {
        (self.desk.publication.visibility_bound(self.now), self.desk.publication.snapshot().clone())
    }

    /// One turn: every request that has arrived goes as far as it can.
    ///
    /// # Errors
    /// If the log or the event loop failed. Nothing is answered after that: end the process.
    pub fn turn(&mut self) -> Result<(), Failure> {
        self.wait()?;
        // What became durable meanwhile is visible to the begins of this turn.
        self.desk.publication.publish(self.now)?;
        self.read();
        self.decide();
        self.keep();
        self.desk.publication.append()?;
        self.desk.publication.submit(self.now)?;
        // Storage that needs no time has its result already.
        if self.desk.publication.publish(self.now)? {
            self.desk.publication.append()?;
            self.desk.publication.submit(self.now)?;
        }
        self.reply();
        Ok(())
    }

    /// Stops cleanly: what is decided is made durable and answered, every pointer is accounted for, the log is closed.
    ///
    /// # Errors
    /// If the log failed on the way.
    pub fn stop(&mut self) -> Result<(), Failure> {
        let (times, clock) = (&mut self.times, &self.clock);
        self.desk.publication.stop(|| times.look(clock))?;
        self.reply();
        let started = self.clock.monotonic();
        let message = "the server is stopping; connect again";
        for connection in self.connections.values_mut() {
            ErrorReply::new(ErrorCode::ShuttingDown, message).encode(&mut connection.output, 0);
        }
        while self.clock.monotonic() - started < LAST_REPLIES {
            let mut left = false;
            for connection in self.connections.values_mut() {
                left |= connection.send(&mut self.network) && connection.unsent() > 0;
            }
            if !left {
                break;
            }
            self.events.clear();
            let _ = self.network.poll(Some(TURN_MAX), &mut self.events);
        }
        Ok(())
    }

    /// Waits until something happens, or something is due.
    fn wait(&mut self) -> Result<(), Failure> {
        let closing = self.desk.publication.closing_due_in(self.now);
        let timeout =
            if self.ready.is_empty() { closing.map_or(TURN_MAX, |due| due.min(TURN_MAX)) } else { Duration::ZERO };
        self.events.clear();
        self.network.poll(Some(timeout), &mut self.events).map_err(|error| Failure::Poll(error.to_string()))?;
        self.now = self.times.look(&self.clock);
        for event in std::mem::take(&mut self.events) {
            match event {
                NetworkEvent::Opened(id) => self.open(id),
                NetworkEvent::Readable(id) => self.mark_ready(id),
                NetworkEvent::Writable(id) => {
                    self.touched.insert(id);
                }
            }
        }
        Ok(())
    }

    fn open(&mut self, id: ConnectionId) {
        let mut connection = Box::new(Connection::new(id, self.limits.body_bytes_max));
        if self.connections.len() >= self.limits.connections_max {
            let (open, limit) = (self.connections.len() as u64, self.limits.connections_max as u64);
            let message = format!("{open} connections are open, which is the limit");
            let reply = ErrorReply::new(ErrorCode::TooManyConnections, &message).with_numbers(open, limit);
            reply.encode(&mut connection.output, 0);
            connection.send(&mut self.network);
            return self.network.close(id);
        }
        self.connections.insert(id, connection);
        self.mark_ready(id);
    }

    fn mark_ready(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id)
            && !std::mem::replace(&mut connection.has_more, true)
        {
            self.ready.push(id);
        }
    }

    /// Brings in the bytes of every ready connection. Who has more than one turn's share stays ready.
    fn read(&mut self) {
        for id in &self.ready {
            let Some(connection) = self.connections.get_mut(id) else { continue };
            if connection.is_paused || !connection.may_read() {
                continue;
            }
            connection.was_read = true;
            match self.network.read(*id, &mut connection.input, TURN_BYTES) {
                ReadOutcome::More => {}
                ReadOutcome::Drained => connection.has_more = false,
                ReadOutcome::Closed => {
                    connection.has_more = false;
                    connection.has_ended = true;
                }
            }
        }
    }

    /// Decides every whole frame, connection by connection, each in the order in which it was sent.
    fn decide(&mut self) {
        if !self.ready.is_empty() {
            self.desk.publication.tick(self.now);
        }
        self.has_walked = false;
        let ready = std::mem::take(&mut self.ready);
        // Whoever waits for a walk comes before all that have had theirs, so that nobody waits for ever.
        let mut later = Vec::new();
        for id in ready {
            let Some(mut connection) = self.connections.remove(&id) else { continue };
            let had_walked = self.has_walked;
            let is_paused = self.decide_frames(&mut connection);
            connection.is_paused = is_paused;
            connection.has_more |= is_paused;
            // Where there is no room for further answers, `reply` brings the connection back when there is.
            if connection.has_ended && !is_paused && connection.may_read() {
                self.end(&mut connection);
            }
            if connection.has_more && connection.may_read() {
                let waits_for_a_walk = is_paused && had_walked;
                if waits_for_a_walk { self.ready.push(id) } else { later.push(id) }
            }
            self.touched.insert(id);
            self.connections.insert(id, connection);
        }
        self.ready.append(&mut later);
    }

    /// True if it left a frame for the next turn. A list and its like walk over everything that is open or invalid, so each
    /// turn makes one, whoever asks: they delay the others by one walk and no more.
    fn decide_frames(&mut self, connection: &mut Connection) -> bool {
        // The buffer leaves the connection while its frames are read where they lie.
        let mut input = std::mem::replace(&mut connection.input, seriatim_wire::FrameBuffer::new(0));
        let mut frames = input.frames();
        let (mut taken, mut is_paused) = (0, false);
        while connection.may_read() {
            match frames.next() {
                Ok(Some(frame)) if is_walk(frame.op) && std::mem::replace(&mut self.has_walked, true) => {
                    is_paused = true;
                    break;
                }
                Ok(Some(frame)) => self.decide_frame(connection, &frame),
                Ok(None) => break,
                Err(error) => self.refuse(connection, 0, &error),
            }
            taken = frames.taken();
        }
        input.consume(taken);
        connection.input = input;
        is_paused
    }

    fn decide_frame(&mut self, connection: &mut Connection, frame: &Frame<'_>) {
        let request = match Request::decode(frame) {
            Ok(request) => request,
            Err(error) if connection.phase == Phase::New => {
                // The peer most likely speaks something else.
                return self.not_hello(connection, frame, &format!("a connection starts with a hello: {error}"));
            }
            Err(error) => return self.refuse(connection, frame.id, &error),
        };
        match (connection.phase, request) {
            (Phase::New, Request::Hello(hello)) => self.hello(connection, frame.id, &hello),
            (Phase::New, _) => self.not_hello(connection, frame, "a connection starts with a hello"),
            (_, Request::Hello(_)) => self.not_hello(connection, frame, "this connection has said hello already"),
            (_, Request::State) => {
                let mut state = self.desk.state(self.now);
                state.uptime_ms = (self.now.monotonic - self.started).as_millis() as u64;
                state.connections = self.connections.len() as u64 + 1;
                reply::state(&mut connection.output, frame.id, &state);
            }
            (_, request) => self.desk.decide(connection, frame.id, request, self.now),
        }
    }

    fn hello(&mut self, connection: &mut Connection, id: u64, hello: &Hello<'_>) {
        let Some(version) = hello.choose_version() else {
            let message = format!(
                "this server speaks version {}, the client {} to {}",
                seriatim_wire::VERSION,
                hello.version_min,
                hello.version_max
            );
            let (theirs, ours) = (u64::from(hello.version_max), u64::from(seriatim_wire::VERSION));
            let reply = ErrorReply::new(ErrorCode::BadVersion, &message).with_numbers(theirs, ours);
            return self.refuse_with(connection, id, reply);
        };
        let store = seriatim_wire::StoreId(self.desk.publication.store().0);
        if hello.store.is_some_and(|wanted| wanted != store) {
            let message = format!("this is store {store}");
            return self.refuse_with(connection, id, ErrorReply::new(ErrorCode::WrongStore, &message));
        }
        connection.phase = Phase::Open;
        let session = if P::return_ignored() { 0 } else { hello.session };
        connection.session = self.sessions.join(session, connection.id);
        connection.label = self.desk.publication.core().label_id(hello.label);
        let limits = self.desk.publication.core().limits();
        let answer = HelloReply {
            version,
            store,
            boot: self.desk.publication.published().boot(),
            server_time_ms: self.now.wall_ms,
            limits: HelloLimits {
                body_bytes: self.limits.body_bytes_max,
                change_ids: limits.change_ids_max as u32,
                block: limits.block_max,
                snapshot_age_ms: self.desk.publication.snapshot_age_ms(),
                grace_ms: self.limits.grace_ms as u32,
            },
        };
        answer.encode(&mut connection.output, id);
    }

    fn not_hello(&mut self, connection: &mut Connection, frame: &Frame<'_>, message: &str) {
        let reply = ErrorReply::new(ErrorCode::NotHello, message).with_numbers(u64::from(frame.op), 0);
        self.refuse_with(connection, frame.id, reply);
    }

    fn refuse(&mut self, connection: &mut Connection, id: u64, error: &DecodeError) {
        let ((asked, limit), message) = (error.numbers(), error.to_string());
        self.refuse_with(connection, id, ErrorReply::new(error.code(), &message).with_numbers(asked, limit));
    }

    /// Answers with an error. Who has not been let in yet is not kept.
    fn refuse_with(&mut self, connection: &mut Connection, id: u64, reply: ErrorReply<'_>) {
        let closes = reply.closes || connection.phase == Phase::New;
        ErrorReply { closes, ..reply }.encode(&mut connection.output, id);
        if closes {
            self.end(connection);
        }
    }

    /// No more requests come from this connection. Its replies still leave; its session may come back.
    fn end(&mut self, connection: &mut Connection) {
        connection.phase = Phase::Ending;
        self.desk.forget(connection);
        if connection.session != 0 {
            let grace = if P::abort_on_disconnect() { 0 } else { self.limits.grace_ms };
            self.sessions.leave(connection.session, connection.has_begun, self.now.sequencer.plus_ms(grace));
        }
    }

    /// Housekeeping: the window, deadlines, sessions that did not come back, readers that do not read.
    fn keep(&mut self) {
        self.desk.publication.keep(self.now);
        if self.now.monotonic - self.kept_at < TURN_MAX {
            return;
        }
        self.kept_at = self.now.monotonic;
        self.desk.keep(self.now);
        let gone = self.sessions.gone(self.now.sequencer);
        // One walk over the open transactions for all of them.
        if !gone.is_empty() && self.desk.end_orphans(|session| gone.contains(&session)) {
            self.sessions.forget(&gone);
        }
        for connection in self.connections.values_mut() {
            if !std::mem::take(&mut connection.was_read) {
                // An idle connection keeps no buffer.
                connection.input.release();
            }
            if connection.unsent() <= OUTPUT_BYTES_MAX {
                connection.full_since = None;
            } else if self.now.monotonic - *connection.full_since.get_or_insert(self.now.monotonic) > SLOW_READER_AFTER
            {
                log::warn!("closed a connection that does not read: {} bytes wait for it", connection.unsent());
                connection.is_broken = true;
                self.touched.insert(connection.id);
            }
        }
    }

    /// Writes what was released to its connections, and sends what every touched connection takes.
    fn reply(&mut self) {
        let (connections, touched) = (&mut self.connections, &mut self.touched);
        self.desk.release(self.now, |id, write| {
            if let Some(connection) = connections.get_mut(&id) {
                connection.waiting -= 1;
                write(&mut connection.output);
                touched.insert(id);
            }
        });
        for id in std::mem::take(&mut self.touched) {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            let was_full = !connection.may_read();
            let alive = !connection.is_broken && connection.send(&mut self.network);
            if !alive && connection.phase != Phase::Ending {
                let mut connection = self.connections.remove(&id).expect("it was just there");
                self.end(&mut connection);
                self.network.close(id);
            } else if !alive || connection.is_done() {
                self.connections.remove(&id);
                self.network.close(id);
            } else if was_full && connection.may_read() && !connection.has_more {
                // Frames that were read before the output was full are still to be decided.
                self.mark_ready(id);
            } else if was_full && connection.may_read() && !self.ready.contains(&id) {
                self.ready.push(id);
            }
        }
    }
}

/// Requests that walk over everything that is open or invalid.
fn is_walk(op: u8) -> bool {
    [Op::List, Op::TruncateBefore, Op::Image].iter().any(|walk| *walk as u8 == op)
}

impl<C: Clock, S: Storage, P: Plant> Pipeline<Sockets, C, S, P> {
    /// Has the sockets' event loop watch the log's completions.
    ///
    /// # Errors
    /// If the system does not allow it.
    pub(crate) fn watch_log(&mut self) -> std::io::Result<()> {
        match self.desk.publication.log().wake_fd() {
            Some(fd) => self.network.watch_log(fd.as_raw_fd()),
            None => Ok(()),
        }
    }
}
