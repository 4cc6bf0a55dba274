//! A pipeline on the test's own thread: network, clock and storage are in memory and do what the test says.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use seriatim_core::{BeginOptions, ChangeSet, CommitError, CommitNumber, Snapshot, Status, WritePointer};
use seriatim_net::{
    Clock, ConnectionId, Failure, Honest, Network, NetworkEvent, Options, Pipeline, Plant, ReadOutcome, RecoveryReport,
    ServerLimits, StartError,
};
use seriatim_wal::{
    Access, Buffer, FileBytes, FileName, Finished, Job, Listing, LockError, MemoryStorage, SegmentWrite, Storage, Wait,
};
use seriatim_wire::{BeginRequest, FrameBuffer, Frames, Hello, Op, Reply, State, request};

/// Two clocks that move when they are told to.
#[derive(Clone)]
pub struct FakeClock {
    wall_ms: Arc<AtomicU64>,
    monotonic_us: Arc<AtomicU64>,
}

impl FakeClock {
    pub fn new() -> FakeClock {
        FakeClock {
            wall_ms: Arc::new(AtomicU64::new(1_800_000_000_000)),
            monotonic_us: Arc::new(AtomicU64::new(1_000_000)),
        }
    }

    /// Time passes.
    pub fn pass(&self, time: Duration) {
        self.step_wall_ms(time.as_millis() as i64);
        self.monotonic_us.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    /// The wall clock alone steps.
    pub fn step_wall_ms(&self, ms: i64) {
        self.wall_ms.fetch_add(ms as u64, Ordering::Relaxed);
    }
}

impl Clock for FakeClock {
    fn wall_ms(&self) -> u64 {
        self.wall_ms.load(Ordering::Relaxed)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_micros(self.monotonic_us.load(Ordering::Relaxed))
    }
}

/// Connections that are two buffers each.
#[derive(Default)]
pub struct FakeNetwork {
    events: Vec<NetworkEvent>,
    next: u64,
    pipes: BTreeMap<ConnectionId, Pipe>,
    /// How long the server last wanted to wait.
    waits: Option<Duration>,
}

#[derive(Default)]
struct Pipe {
    to_server: Vec<u8>,
    ended: bool,
    /// The client sends nothing more, and still reads.
    is_shut: bool,
    /// The client does not read.
    is_blocked: bool,
    to_client: Vec<u8>,
    closed: bool,
}

impl Network for FakeNetwork {
    fn poll(&mut self, timeout: Option<Duration>, events: &mut Vec<NetworkEvent>) -> io::Result<()> {
        self.waits = timeout;
        events.append(&mut self.events);
        Ok(())
    }

    fn read(&mut self, id: ConnectionId, into: &mut FrameBuffer, max: usize) -> ReadOutcome {
        let Some(pipe) = self.pipes.get_mut(&id) else { return ReadOutcome::Closed };
        let rest = pipe.to_server.split_off(max.min(pipe.to_server.len()));
        into.extend(&std::mem::replace(&mut pipe.to_server, rest));
        match (pipe.to_server.is_empty(), pipe.ended || pipe.is_shut) {
            (false, _) => ReadOutcome::More,
            (true, true) => ReadOutcome::Closed,
            (true, false) => ReadOutcome::Drained,
        }
    }

    fn write(&mut self, id: ConnectionId, bytes: &[u8]) -> io::Result<usize> {
        match self.pipes.get_mut(&id) {
            Some(pipe) if pipe.is_blocked && !pipe.ended => Ok(0),
            Some(pipe) if !pipe.ended => {
                pipe.to_client.extend_from_slice(bytes);
                Ok(bytes.len())
            }
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn close(&mut self, id: ConnectionId) {
        if let Some(pipe) = self.pipes.get_mut(&id) {
            pipe.closed = true;
        }
    }
}

/// What a medium says that has failed.
const EIO: i32 = 5;

/// Storage in memory whose writes can be held up, or fail.
pub struct Gated {
    inner: MemoryStorage,
    stalled: Arc<AtomicBool>,
    broken: Arc<AtomicBool>,
}

impl Storage for Gated {
    fn lock(&mut self) -> Result<(), LockError> {
        self.inner.lock()
    }
    fn display(&self, file: FileName) -> String {
        self.inner.display(file)
    }
    fn directory(&self) -> String {
        self.inner.directory()
    }
    fn list(&mut self) -> io::Result<Listing> {
        self.inner.list()
    }
    fn load(&mut self, file: FileName, bytes: u64, access: Access) -> io::Result<FileBytes> {
        self.inner.load(file, bytes, access)
    }
    fn head(&mut self, file: FileName, bytes: usize) -> io::Result<Vec<u8>> {
        self.inner.head(file, bytes)
    }
    fn sync(&mut self, file: FileName) -> io::Result<()> {
        self.inner.sync(file)
    }
    fn create(&mut self, file: FileName, content: &[u8]) -> io::Result<()> {
        self.inner.create(file, content)
    }
    fn random(&mut self) -> u64 {
        self.inner.random()
    }
    fn open_writer(&mut self, count: usize, bytes: usize) -> io::Result<Vec<Buffer>> {
        self.inner.open_writer(count, bytes)
    }
    fn is_durable(&self) -> bool {
        self.inner.is_durable()
    }
    fn write_path(&self) -> String {
        self.inner.write_path()
    }
    fn write(&mut self, write: SegmentWrite) {
        self.inner.write(write)
    }
    fn written(&mut self, wait: Wait) -> Option<io::Result<Buffer>> {
        if self.stalled.load(Ordering::Relaxed) {
            return None;
        }
        let written = self.inner.written(wait)?;
        Some(if self.broken.load(Ordering::Relaxed) { Err(io::Error::from_raw_os_error(EIO)) } else { written })
    }
    fn start(&mut self, job: Job) {
        self.inner.start(job)
    }
    fn finished(&mut self, wait: Wait) -> Option<Finished> {
        self.inner.finished(wait)
    }
    fn clear_wake(&mut self) {}
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A machine: what survives a crash, and the clock.
pub struct Machine {
    pub disk: MemoryStorage,
    pub clock: FakeClock,
    pub options: Options,
    pub limits: ServerLimits,
    pub stalled: Arc<AtomicBool>,
    /// Every write that ends from now on has failed.
    pub broken: Arc<AtomicBool>,
}

/// A pipeline that runs on a machine, turn by turn. Dropping it is a crash.
pub struct House<P: Plant = Honest> {
    pub pipeline: Pipeline<FakeNetwork, FakeClock, Gated, P>,
    pub report: RecoveryReport,
    clock: FakeClock,
    stalled: Arc<AtomicBool>,
    replies: BTreeMap<(ConnectionId, u64), Vec<u8>>,
    next_id: u64,
}

impl Machine {
    pub fn new() -> Machine {
        Machine {
            disk: MemoryStorage::new(),
            clock: FakeClock::new(),
            options: super::small(),
            limits: ServerLimits::default(),
            stalled: Arc::default(),
            broken: Arc::default(),
        }
    }

    pub fn start(&self) -> House {
        self.try_start().unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn try_start<P: Plant>(&self) -> Result<House<P>, StartError> {
        let (stalled, broken) = (self.stalled.clone(), self.broken.clone());
        let storage = Gated { inner: self.disk.clone(), stalled, broken };
        let started =
            Pipeline::start(FakeNetwork::default(), self.clock.clone(), storage, &self.options, self.limits.clone());
        let (pipeline, report) = started?;
        Ok(House {
            pipeline,
            report,
            clock: self.clock.clone(),
            stalled: self.stalled.clone(),
            replies: BTreeMap::new(),
            next_id: 1,
        })
    }
}

impl<P: Plant> House<P> {
    pub fn turn(&mut self) {
        self.try_turn().unwrap_or_else(|failure| panic!("{failure}"));
    }

    pub fn try_turn(&mut self) -> Result<(), Failure> {
        self.pipeline.turn()?;
        self.collect();
        Ok(())
    }

    /// Turns until nothing is under way any more, begins that nobody waits for included.
    pub fn settle_down(&mut self) {
        self.turn();
        self.clock.pass(Duration::from_millis(10));
        for _ in 0..6 {
            self.turn();
        }
    }

    /// Time passes, with turns as often as a server has them.
    pub fn pass(&mut self, time: Duration) {
        let step = Duration::from_millis(50);
        let mut left = time;
        while left > Duration::ZERO {
            let now = left.min(step);
            self.clock.pass(now);
            self.turn();
            left -= now;
        }
    }

    /// Time passes in one step: the server was busy, or asleep, all the while.
    pub fn clock_only(&mut self, time: Duration) {
        self.clock.pass(time);
        self.turn();
    }

    /// The monotonic clock.
    pub fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    /// No write of the log ends from now on, or all do again.
    pub fn stall_disk(&self, stalled: bool) {
        self.stalled.store(stalled, Ordering::Relaxed);
    }

    /// A connection that has said hello.
    pub fn connect(&mut self, session: u64) -> ConnectionId {
        let network = self.pipeline.network();
        network.next += 1;
        let id = ConnectionId(network.next);
        network.pipes.insert(id, Pipe::default());
        network.events.push(NetworkEvent::Opened(id));
        let hello = self.send(id, |out, id| Hello::new(session).encode(out, id));
        self.turn();
        self.reply(id, hello, |_| ()).expect("welcome");
        id
    }

    /// The client is gone.
    pub fn disconnect(&mut self, id: ConnectionId) {
        let network = self.pipeline.network();
        network.pipes.get_mut(&id).expect("connected").ended = true;
        network.events.push(NetworkEvent::Readable(id));
    }

    /// The client reads nothing from now on, or all again.
    pub fn block(&mut self, id: ConnectionId, is_blocked: bool) {
        let network = self.pipeline.network();
        network.pipes.get_mut(&id).expect("connected").is_blocked = is_blocked;
        if !is_blocked {
            network.events.push(NetworkEvent::Writable(id));
        }
    }

    /// The client sends nothing more, and waits for its answers.
    pub fn shut(&mut self, id: ConnectionId) {
        let network = self.pipeline.network();
        network.pipes.get_mut(&id).expect("connected").is_shut = true;
        network.events.push(NetworkEvent::Readable(id));
    }

    /// True if the server has closed the connection.
    pub fn is_closed(&mut self, id: ConnectionId) -> bool {
        self.pipeline.network().pipes[&id].closed
    }

    /// How long the server last wanted to wait.
    pub fn waits(&mut self) -> Option<Duration> {
        self.pipeline.network().waits
    }

    /// Bytes that a client has sent and the server has not read.
    pub fn unread(&mut self, connection: ConnectionId) -> usize {
        self.pipeline.network().pipes[&connection].to_server.len()
    }

    /// Sends a request without waiting for anything; its id.
    pub fn send(&mut self, connection: ConnectionId, write: impl FnOnce(&mut Vec<u8>, u64)) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let network = self.pipeline.network();
        let pipe = network.pipes.get_mut(&connection).expect("connected");
        write(&mut pipe.to_server, id);
        network.events.push(NetworkEvent::Readable(connection));
        id
    }

    /// The reply to a request, if it has left.
    pub fn reply<T>(&mut self, connection: ConnectionId, id: u64, read: impl FnOnce(Reply<'_>) -> T) -> Option<T> {
        let bytes = self.replies.remove(&(connection, id))?;
        let mut frames = Frames::new(&bytes, seriatim_wire::BODY_BYTES_MAX);
        let frame = frames.next().expect("a frame").expect("a whole frame");
        Some(read(Reply::decode(&frame).expect("a reply")))
    }

    pub fn has_reply(&self, connection: ConnectionId, id: u64) -> bool {
        self.replies.contains_key(&(connection, id))
    }

    fn collect(&mut self) {
        for (id, pipe) in &mut self.pipeline.network().pipes {
            let mut frames = Frames::new(&pipe.to_client, seriatim_wire::BODY_BYTES_MAX);
            let mut from = 0;
            while let Some(frame) = frames.next().expect("frames") {
                let request = frame.id;
                self.replies.insert((*id, request), pipe.to_client[from..frames.taken()].to_vec());
                from = frames.taken();
            }
            pipe.to_client.drain(..from);
        }
    }

    pub fn send_begin(&mut self, connection: ConnectionId, options: BeginOptions, count: u32) -> u64 {
        self.send(connection, |out, id| {
            request::begin(out, id, &BeginRequest { options, count, base: None, label: None })
        })
    }

    pub fn send_commit(&mut self, connection: ConnectionId, tx: WritePointer, keys: &[&str]) -> u64 {
        let changes: ChangeSet = super::change_set(keys);
        self.send(connection, |out, id| request::commit(out, id, [(tx, &changes)]))
    }

    pub fn send_pointers(&mut self, connection: ConnectionId, op: Op, tx: WritePointer) -> u64 {
        self.send(connection, |out, id| request::pointers(out, op, id, [tx]))
    }

    pub fn begin(&mut self, connection: ConnectionId) -> (WritePointer, Arc<Snapshot>) {
        self.begin_as(connection, BeginOptions::default())
    }

    pub fn begin_as(&mut self, connection: ConnectionId, options: BeginOptions) -> (WritePointer, Arc<Snapshot>) {
        let id = self.send_begin(connection, options, 1);
        self.turn();
        self.reply(connection, id, |reply| match reply {
            Reply::Begin(Ok((block, snapshot))) => (block.first, snapshot.decode(None).expect("a snapshot")),
            other => panic!("{other:?}"),
        })
        .expect("a begin waits for nothing")
    }

    pub fn outcome(&mut self, connection: ConnectionId, id: u64) -> Option<Result<CommitNumber, CommitError>> {
        self.reply(connection, id, |reply| match reply {
            Reply::Commit(mut outcomes) => outcomes.next().expect("one outcome"),
            other => panic!("{other:?}"),
        })
    }

    pub fn commit(
        &mut self,
        connection: ConnectionId,
        tx: WritePointer,
        keys: &[&str],
    ) -> Result<CommitNumber, CommitError> {
        let id = self.send_commit(connection, tx, keys);
        self.settle_down();
        self.outcome(connection, id).expect("an outcome")
    }

    pub fn status_by(&mut self, connection: ConnectionId, op: Op, tx: WritePointer) -> Status {
        let id = self.send_pointers(connection, op, tx);
        self.settle_down();
        self.reply(connection, id, |reply| match reply {
            Reply::Status(mut s) | Reply::Abort(mut s) | Reply::Settle(mut s) => s.next().expect("one status"),
            other => panic!("{other:?}"),
        })
        .expect("a status")
    }

    pub fn snapshot(&mut self, connection: ConnectionId) -> Arc<Snapshot> {
        let id = self.send(connection, |out, id| request::snapshot(out, id, None));
        self.turn();
        self.reply(connection, id, |reply| match reply {
            Reply::Snapshot(snapshot) => snapshot.decode(None).expect("a snapshot"),
            other => panic!("{other:?}"),
        })
        .expect("a snapshot waits for nothing")
    }

    /// The server's counters.
    pub fn state(&mut self, connection: ConnectionId) -> State {
        let id = self.send(connection, request::state);
        self.turn();
        self.reply(connection, id, |reply| match reply {
            Reply::State(state) => state,
            other => panic!("{other:?}"),
        })
        .expect("questions wait for nothing")
    }

    /// The last durable record.
    pub fn lsn(&mut self, connection: ConnectionId) -> u64 {
        self.state(connection).durable_lsn
    }
}
