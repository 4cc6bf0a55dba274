//! A server of a few lines that speaks the protocol, keeps everything in memory, and does on a test's word what real
//! servers do on their worst days.
#![allow(dead_code, reason = "each test takes what it needs")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use seriatim_client::Address;
use seriatim_core::*;
use seriatim_wire::*;

/// What a server was asked, in the order in which it read it.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    Hello { session: u64 },
    Begin { count: u32, options: BeginOptions, base: Option<SnapshotId> },
    Commit(Vec<WritePointer>),
    Abort(Vec<WritePointer>),
    Invalidate(Vec<WritePointer>),
    Status(Vec<WritePointer>),
    Settle(Vec<WritePointer>),
    Other,
}

/// What a test wants done with a request.
pub enum Verdict {
    /// What a good server does.
    Serve,
    /// Nothing more; the test has written the reply, or wants none.
    Done,
    /// What a good server does, but the reply is lost and the connection with it.
    ServeAndClose,
    /// The request is lost, and the connection with it.
    Close,
}

pub type Hook = Box<dyn FnMut(&mut Sequencer, &Request<'_>, u64, &mut Vec<u8>) -> Verdict + Send>;

/// The smallest sequencer: no conflicts, no deadlines, no disk.
pub struct Sequencer {
    pub hello: HelloReply,
    pub snapshot: Arc<Snapshot>,
    pub next: WritePointer,
    pub status: BTreeMap<WritePointer, Status>,
    pub seen: Vec<Seen>,
    pub connections: usize,
    bases: Vec<Arc<Snapshot>>,
    hook: Option<Hook>,
}

impl Sequencer {
    fn new() -> Sequencer {
        let first = WritePointer::at_ms(1_790_000_000_000);
        let boot = 0xb007;
        let snapshot = Arc::new(Snapshot {
            id: SnapshotId { boot, number: 1 },
            read_pointer: WritePointer(first.0 - 1),
            ..Snapshot::default()
        });
        let hello =
            HelloReply { version: 1, store: StoreId(7), boot, server_time_ms: 0, limits: HelloLimits::default() };
        let bases = vec![Arc::clone(&snapshot)];
        Sequencer {
            hello,
            snapshot,
            next: first,
            status: BTreeMap::new(),
            seen: Vec::new(),
            connections: 0,
            bases,
            hook: None,
        }
    }

    /// From here on requests go by this.
    pub fn hook(&mut self, hook: Hook) {
        self.hook = Some(hook);
    }

    pub fn begin(&mut self, count: u32) -> Block {
        let block = Block { first: self.next, count: u64::from(count) };
        let mut next = Snapshot::clone(&self.snapshot);
        for pointer in block.iter() {
            self.status.insert(pointer, Status::Open);
            next.in_progress.insert(pointer);
        }
        self.next.0 += u64::from(count);
        self.publish(next);
        block
    }

    pub fn commit(&mut self, tx: WritePointer) -> Result<CommitNumber, CommitError> {
        let ended = self.status_of(tx);
        if ended != Status::Open {
            return Err(CommitError::NotInProgress { tx, ended });
        }
        let mut next = Snapshot::clone(&self.snapshot);
        next.csn.0 += 1;
        next.read_pointer = next.read_pointer.max(tx);
        next.in_progress.remove(tx);
        let csn = next.csn;
        self.status.insert(tx, Status::Committed(csn));
        self.publish(next);
        Ok(csn)
    }

    pub fn end(&mut self, tx: WritePointer, status: Status) -> bool {
        if !matches!(self.status_of(tx), Status::Open | Status::Refused) {
            return false;
        }
        self.status.insert(tx, status);
        let mut next = Snapshot::clone(&self.snapshot);
        next.in_progress.remove(tx);
        if matches!(status, Status::Invalid(_)) {
            let invalid = Arc::make_mut(&mut next.invalid);
            invalid.version += 1;
            invalid.pointers.insert(tx);
        }
        self.publish(next);
        true
    }

    pub fn status_of(&self, tx: WritePointer) -> Status {
        self.status.get(&tx).copied().unwrap_or(Status::Forgotten)
    }

    fn publish(&mut self, mut next: Snapshot) {
        next.id.number += 1;
        self.snapshot = Arc::new(next);
        self.bases.push(Arc::clone(&self.snapshot));
        if self.bases.len() > 64 {
            self.bases.remove(0);
        }
    }

    fn base(&self, id: Option<SnapshotId>) -> Option<&Snapshot> {
        self.bases.iter().find(|base| Some(base.id) == id).map(Arc::as_ref)
    }

    fn handle(&mut self, frame: &Frame<'_>, out: &mut Vec<u8>) -> bool {
        let request = Request::decode(frame).expect("the client sends good frames");
        self.seen.push(seen(&request));
        let mut hook = self.hook.take();
        let verdict = hook.as_mut().map_or(Verdict::Serve, |hook| hook(self, &request, frame.id, out));
        self.hook = self.hook.take().or(hook);
        match verdict {
            Verdict::Serve => self.serve(request, frame.id, out),
            Verdict::Done => {}
            Verdict::ServeAndClose => {
                self.serve(request, frame.id, &mut Vec::new());
                return false;
            }
            Verdict::Close => return false,
        }
        true
    }

    pub fn serve(&mut self, request: Request<'_>, id: u64, out: &mut Vec<u8>) {
        match request {
            Request::Hello(hello) => match hello.store {
                Some(store) if store != self.hello.store => {
                    reply::error(
                        out,
                        id,
                        &ErrorReply { closes: true, ..ErrorReply::new(ErrorCode::WrongStore, "not here") },
                    );
                }
                _ => self.hello.encode(out, id),
            },
            Request::Begin(BeginRequest { count, base, .. }) => {
                let snapshot = Arc::clone(&self.snapshot);
                let block = self.begin(count);
                reply::begin(out, id, block, &snapshot, self.base(base));
            }
            Request::Commit(items) => {
                let outcomes: Vec<_> = items.map(|item| self.commit(item.tx)).collect();
                reply::commit(out, id, outcomes);
            }
            Request::Abort(pointers) => {
                let ended: Vec<_> = pointers
                    .iter()
                    .map(|tx| {
                        self.end(tx, Status::Aborted);
                        self.status_of(tx)
                    })
                    .collect();
                reply::statuses(out, Op::Abort, id, ended);
            }
            Request::Invalidate(pointers) => {
                let asked = Status::Invalid(InvalidCause::Asked);
                let ended: Vec<_> = pointers.iter().map(|tx| self.end(tx, asked)).collect();
                reply::bools(out, Op::Invalidate, id, ended);
            }
            Request::Status(pointers) => {
                reply::statuses(out, Op::Status, id, pointers.iter().map(|tx| self.status_of(tx)));
            }
            Request::Settle(pointers) => {
                let settled: Vec<_> = pointers
                    .iter()
                    .map(|tx| {
                        if self.status_of(tx) == Status::Open {
                            self.end(tx, Status::Invalid(InvalidCause::Settled));
                        }
                        self.status_of(tx)
                    })
                    .collect();
                reply::statuses(out, Op::Settle, id, settled);
            }
            Request::Snapshot { base } => reply::snapshot(out, id, &self.snapshot, self.base(base)),
            Request::Timestamps { count } => {
                let first = self.next;
                self.next.0 += count;
                reply::timestamps(out, id, &Ok(Block { first, count }));
            }
            Request::State => reply::state(out, id, &State { csn: self.snapshot.csn, ..State::default() }),
            Request::List(_) => reply::list(out, id, false, &[]),
            Request::Reset { .. } => reply::reset(out, id, self.next),
            Request::Ping(bytes) => reply::ping(out, id, bytes),
            _ => reply::error(out, id, &ErrorReply::new(ErrorCode::UnknownOp, "not here")),
        }
    }
}

fn seen(request: &Request<'_>) -> Seen {
    match request {
        Request::Hello(hello) => Seen::Hello { session: hello.session },
        Request::Begin(begin) => Seen::Begin { count: begin.count, options: begin.options, base: begin.base },
        Request::Commit(items) => Seen::Commit(items.clone().map(|item| item.tx).collect()),
        Request::Abort(pointers) => Seen::Abort(pointers.iter().collect()),
        Request::Invalidate(pointers) => Seen::Invalidate(pointers.iter().collect()),
        Request::Status(pointers) => Seen::Status(pointers.iter().collect()),
        Request::Settle(pointers) => Seen::Settle(pointers.iter().collect()),
        _ => Seen::Other,
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn read(&mut self, into: &mut FrameBuffer) -> std::io::Result<usize> {
        match self {
            Stream::Tcp(stream) => into.read_from(stream),
            Stream::Unix(stream) => into.read_from(stream),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.write_all(bytes),
            Stream::Unix(stream) => stream.write_all(bytes),
        }
    }

    fn shutdown(&self) {
        let _ = match self {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    fn try_clone(&self) -> Stream {
        match self {
            Stream::Tcp(stream) => Stream::Tcp(stream.try_clone().unwrap()),
            Stream::Unix(stream) => Stream::Unix(stream.try_clone().unwrap()),
        }
    }
}

#[derive(Default)]
struct Gate {
    closed: Mutex<bool>,
    changed: Condvar,
}

/// The server: its threads, and what a test asks of it.
pub struct Fake {
    pub sequencer: Arc<Mutex<Sequencer>>,
    address: Address,
    /// While closed, what arrives is not served, and but for one piece of it not even read.
    gate: Arc<Gate>,
    /// No connection is taken any more.
    down: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<Stream>>>,
}

static UNIX_SOCKETS: AtomicU64 = AtomicU64::new(0);

impl Fake {
    pub fn tcp() -> Fake {
        Fake::start(Listener::Tcp(TcpListener::bind("127.0.0.1:0").unwrap()))
    }

    pub fn unix() -> Fake {
        let number = UNIX_SOCKETS.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("seriatim-fake-{}-{number}.sock", std::process::id()));
        Fake::start(Listener::Unix(UnixListener::bind(&path).unwrap(), path))
    }

    /// A server that does what this says to each request.
    pub fn with(hook: impl FnMut(&mut Sequencer, &Request<'_>, u64, &mut Vec<u8>) -> Verdict + Send + 'static) -> Fake {
        let fake = Fake::tcp();
        fake.sequencer.lock().unwrap().hook = Some(Box::new(hook));
        fake
    }

    fn start(listener: Listener) -> Fake {
        let address = match &listener {
            Listener::Tcp(listener) => Address::from(listener.local_addr().unwrap()),
            Listener::Unix(_, path) => Address::from(path.clone()),
        };
        let fake = Fake {
            sequencer: Arc::new(Mutex::new(Sequencer::new())),
            address,
            gate: Arc::default(),
            down: Arc::default(),
            open: Arc::default(),
        };
        let (sequencer, gate, down, open) =
            (Arc::clone(&fake.sequencer), Arc::clone(&fake.gate), Arc::clone(&fake.down), Arc::clone(&fake.open));
        std::thread::spawn(move || {
            loop {
                let stream = match &listener {
                    Listener::Tcp(listener) => Stream::Tcp(listener.accept().unwrap().0),
                    Listener::Unix(listener, _) => Stream::Unix(listener.accept().unwrap().0),
                };
                if down.load(Ordering::SeqCst) {
                    break;
                }
                sequencer.lock().unwrap().connections += 1;
                open.lock().unwrap().push(stream.try_clone());
                let (sequencer, gate) = (Arc::clone(&sequencer), Arc::clone(&gate));
                std::thread::spawn(move || converse(stream, &sequencer, &gate));
            }
            if let Listener::Unix(_, path) = &listener {
                let _ = std::fs::remove_file(path);
            }
        });
        fake
    }

    pub fn address(&self) -> Address {
        self.address.clone()
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.sequencer.lock().unwrap().seen.clone()
    }

    pub fn status_of(&self, tx: WritePointer) -> Status {
        self.sequencer.lock().unwrap().status_of(tx)
    }

    /// Nothing that arrives from here on is served until the gate is opened again, nor read, but for the first piece.
    pub fn close_gate(&self) {
        *self.gate.closed.lock().unwrap() = true;
    }

    pub fn open_gate(&self) {
        *self.gate.closed.lock().unwrap() = false;
        self.gate.changed.notify_all();
    }

    /// Ends every connection, and takes none any more.
    pub fn stop(&self) {
        if !self.down.swap(true, Ordering::SeqCst) {
            // The listener waits for somebody; this is somebody.
            match &self.address {
                Address::Tcp(address) => drop(TcpStream::connect(address)),
                Address::Unix(path) => drop(UnixStream::connect(path)),
            }
        }
        self.open_gate();
        self.open.lock().unwrap().drain(..).for_each(|stream| stream.shutdown());
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.stop();
    }
}

fn converse(mut stream: Stream, sequencer: &Mutex<Sequencer>, gate: &Gate) {
    let mut input = FrameBuffer::new(BODY_BYTES_MAX);
    let mut out = Vec::new();
    loop {
        if !matches!(stream.read(&mut input), Ok(1..)) {
            break;
        }
        let mut closed = gate.closed.lock().unwrap();
        while *closed {
            closed = gate.changed.wait(closed).unwrap();
        }
        drop(closed);
        let mut alive = true;
        while alive && let Ok(Some(frame)) = input.next_frame() {
            alive = sequencer.lock().unwrap().handle(&frame, &mut out);
        }
        if stream.write(&out).is_err() || !alive {
            break;
        }
        out.clear();
    }
    stream.shutdown();
    // Whatever else arrives goes nowhere, but is read, lest the reset overtakes the answers.
    if let Stream::Tcp(stream) = &mut stream {
        let _ = stream.read(&mut [0; 1024]);
    }
}

/// Waits until something holds, which another thread brings about.
pub fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::yield_now();
    }
}
