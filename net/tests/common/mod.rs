//! What the tests of this room share: one face for a sequencer in process and one behind TCP, and a raw connection.
#![allow(dead_code, unused_macros, unused_imports)]

pub mod house;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use seriatim_core::{
    BeginError, BeginOptions, ChangeSet, Changes, CommitError, CommitNumber, Kind, Snapshot, Status, Submission,
    WritePointer,
};
use seriatim_net::{Embedded, EmbeddedError, Failure, Options, Server, ServerOptions, Stop, StorageKind};
use seriatim_wire::{
    BeginRequest, ErrorCode, ErrorReply, Fenced, FrameBuffer, Hello, HelloReply, Op, Reply, State, request,
};

/// A transaction that has begun.
#[derive(Clone, Debug)]
pub struct Begun {
    pub tx: WritePointer,
    pub snapshot: Arc<Snapshot>,
}

/// Makes one test in process and one over TCP of every case; a case takes `&impl System`, over [`small`].
macro_rules! cases {
    ($($name:ident)*) => {
        mod in_process {
            $(#[test] fn $name() {
                super::$name(&<super::Embedded as super::System>::start(super::StorageKind::Memory, &super::small()));
            })*
        }
        mod over_tcp {
            $(#[test] fn $name() {
                super::$name(&<super::OverTcp as super::System>::start(super::StorageKind::Memory, &super::small()));
            })*
        }
    };
}
pub(crate) use cases;

/// The same for cases that start their systems themselves.
macro_rules! cases_that_start {
    ($($name:ident)*) => {
        mod in_process {
            $(#[test] fn $name() { super::$name::<super::Embedded>(); })*
        }
        mod over_tcp {
            $(#[test] fn $name() { super::$name::<super::OverTcp>(); })*
        }
    };
}
pub(crate) use cases_that_start;

/// A sequencer as the conformance cases see it.
pub trait System: Sized {
    /// A new one. It is stopped cleanly when it goes.
    fn start(storage: StorageKind, options: &Options) -> Self;
    /// Begins with a label of its own.
    fn begin_labelled(&self, label: &str) -> Begun;
    fn begin_with(&self, options: &BeginOptions) -> Result<Begun, BeginError>;
    fn can_commit_changes(&self, tx: WritePointer, changes: &ChangeSet) -> Result<(), CommitError>;
    fn submit(&self, tx: WritePointer, submission: Submission<'_>) -> Result<CommitNumber, CommitError>;
    fn checkpoint(&self, tx: WritePointer, number: u32) -> Result<WritePointer, CommitError>;
    fn fence(&self, timeout: Duration) -> Fenced;
    fn abort(&self, tx: WritePointer) -> Status;
    fn invalidate(&self, tx: WritePointer) -> bool;
    fn status(&self, tx: WritePointer) -> Status;
    fn settle(&self, tx: WritePointer) -> Status;
    fn snapshot(&self) -> Arc<Snapshot>;
    fn timestamps(&self, count: u32) -> Result<WritePointer, BeginError>;

    fn begin(&self) -> Begun {
        self.begin_with(&BeginOptions::default()).expect("a default begin is taken")
    }

    fn commit(&self, tx: WritePointer, keys: &[&str]) -> Result<CommitNumber, CommitError> {
        self.submit(tx, Submission::from(&change_set(keys)))
    }

    fn can_commit(&self, tx: WritePointer, keys: &[&str]) -> Result<(), CommitError> {
        self.can_commit_changes(tx, &change_set(keys))
    }

    /// The commit of a transaction with checkpoints.
    fn commit_after(&self, tx: WritePointer, keys: &[&str], checkpoints: u32) -> Result<CommitNumber, CommitError> {
        self.submit(tx, Submission { checkpoints, ..Submission::from(&change_set(keys)) })
    }

    /// The second step of a commit in two.
    fn commit_checked(&self, tx: WritePointer, keys: &[&str]) -> Result<CommitNumber, CommitError> {
        self.commit_checked_after(tx, keys, 0)
    }

    /// The same of a transaction with checkpoints.
    fn commit_checked_after(
        &self,
        tx: WritePointer,
        keys: &[&str],
        checkpoints: u32,
    ) -> Result<CommitNumber, CommitError> {
        self.submit(tx, Submission { changes: Changes::Checked(change_set(keys).digest()), checkpoints })
    }

    fn begin_long(&self) -> Begun {
        self.begin_with(&BeginOptions { kind: Kind::Long, ..BeginOptions::default() }).expect("a LONG begin is taken")
    }
}

pub fn change_set(keys: &[&str]) -> ChangeSet {
    ChangeSet::of_writes(keys.iter().map(|key| key.as_bytes()))
}

/// What was refused; a failure is a failed test.
fn or_refused<T, E: std::error::Error>(said: Result<T, EmbeddedError<E>>) -> Result<T, E> {
    said.map_err(|error| match error {
        EmbeddedError::Refused(error) => error,
        EmbeddedError::Failed(failure) => panic!("{failure}"),
    })
}

impl System for Embedded {
    fn start(storage: StorageKind, options: &Options) -> Embedded {
        match storage {
            StorageKind::Memory => Embedded::in_memory(options),
            StorageKind::Disk(directory) => Embedded::open(directory, options),
            StorageKind::Lossy(_) => unreachable!("no case needs it"),
        }
        .unwrap_or_else(|error| panic!("{error}"))
    }

    fn begin_labelled(&self, label: &str) -> Begun {
        let begun = Embedded::begin_as(self, &BeginOptions::default(), label).expect("begins");
        Begun { tx: begun.first, snapshot: begun.snapshot }
    }

    fn can_commit_changes(&self, tx: WritePointer, changes: &ChangeSet) -> Result<(), CommitError> {
        or_refused(Embedded::can_commit(self, tx, changes))
    }

    fn submit(&self, tx: WritePointer, submission: Submission<'_>) -> Result<CommitNumber, CommitError> {
        or_refused(Embedded::commit(self, tx, submission))
    }

    fn checkpoint(&self, tx: WritePointer, number: u32) -> Result<WritePointer, CommitError> {
        or_refused(Embedded::checkpoint(self, tx, number))
    }

    fn fence(&self, timeout: Duration) -> Fenced {
        or_refused(Embedded::fence(self, timeout)).expect("fences are not too many")
    }

    fn begin_with(&self, options: &BeginOptions) -> Result<Begun, BeginError> {
        let begun = or_refused(Embedded::begin(self, options))?;
        Ok(Begun { tx: begun.first, snapshot: begun.snapshot })
    }

    fn abort(&self, tx: WritePointer) -> Status {
        Embedded::abort(self, tx).expect("aborts")
    }

    fn invalidate(&self, tx: WritePointer) -> bool {
        Embedded::invalidate(self, tx).expect("invalidates")
    }

    fn status(&self, tx: WritePointer) -> Status {
        Embedded::status(self, tx)
    }

    fn settle(&self, tx: WritePointer) -> Status {
        Embedded::settle(self, tx).expect("settles")
    }

    fn snapshot(&self) -> Arc<Snapshot> {
        Embedded::snapshot(self)
    }

    fn timestamps(&self, count: u32) -> Result<WritePointer, BeginError> {
        or_refused(Embedded::timestamps(self, count))
    }
}

/// Limits that tests can afford: a megabyte of index instead of 256.
pub fn small() -> Options {
    let mut options = Options::default();
    options.limits.conflict_index_bytes = 1 << 20;
    options.limits.open_max = 1 << 12;
    options.limits.winners = 1 << 12;
    options.log.segment_bytes = 1 << 20;
    options.log.group_bytes_max = 256 << 10;
    options
}

/// A server on a thread of its own; stopped when it goes.
pub struct Running {
    pub address: SocketAddr,
    stop: Stop,
    thread: Option<JoinHandle<Result<(), Failure>>>,
}

impl Running {
    pub fn start(options: ServerOptions) -> Running {
        let server = Server::start(options).expect("starts");
        let (address, stop) = (server.address(), server.stop_handle());
        let thread = std::thread::spawn(move || server.run());
        Running { address, stop, thread: Some(thread) }
    }

    pub fn in_memory() -> Running {
        Running::start(ServerOptions { pipeline: small(), ..ServerOptions::new(StorageKind::Memory) })
    }

    pub fn connect(&self) -> Raw {
        Raw::connect(self.address)
    }

    pub fn stop(mut self) -> Result<(), Failure> {
        self.stop.stop();
        self.thread.take().expect("runs").join().expect("no panic")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A connection that speaks the protocol by hand, one request at a time.
pub struct Raw {
    pub stream: TcpStream,
    pub input: FrameBuffer,
    next_id: u64,
    pub hello: Option<HelloReply>,
}

/// An error frame, owned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    pub code: ErrorCode,
    pub closes: bool,
    pub asked: u64,
    pub limit: u64,
    pub message: String,
}

impl Raw {
    /// Connects without a word.
    pub fn silent(address: SocketAddr) -> Raw {
        let stream = TcpStream::connect(address).expect("connects");
        stream.set_nodelay(true).unwrap();
        // A test that waits for ever would say nothing; this long nothing here takes.
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Raw { stream, input: FrameBuffer::new(seriatim_wire::BODY_BYTES_MAX), next_id: 1, hello: None }
    }

    /// Connects and says hello.
    pub fn connect(address: SocketAddr) -> Raw {
        Raw::connect_as(address, 0)
    }

    /// Connects as a session.
    pub fn connect_as(address: SocketAddr, session: u64) -> Raw {
        let mut raw = Raw::silent(address);
        raw.hello = Some(
            raw.ask(
                |out, id| Hello::new(session).encode(out, id),
                |reply| match reply {
                    Reply::Hello(hello) => hello,
                    other => panic!("{other:?}"),
                },
            )
            .expect("welcome"),
        );
        raw
    }

    pub fn send(&mut self, write: impl FnOnce(&mut Vec<u8>, u64)) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let mut out = Vec::new();
        write(&mut out, id);
        self.stream.write_all(&out).expect("writes");
        id
    }

    /// Waits for the reply with this id, passing over others.
    pub fn receive<T>(&mut self, id: u64, read: impl FnOnce(Reply<'_>) -> T) -> Result<T, Refused> {
        loop {
            if let Some(frame) = self.input.next_frame().expect("whole frames") {
                if frame.id != id && frame.op != Op::ERROR {
                    continue;
                }
                return match Reply::decode(&frame).expect("a reply") {
                    Reply::Error(error) => {
                        let ErrorReply { code, closes, asked, limit, message } = error;
                        Err(Refused { code, closes, asked, limit, message: message.to_owned() })
                    }
                    reply => Ok(read(reply)),
                };
            }
            let count = self.input.read_from(&mut self.stream).expect("reads");
            assert!(count > 0, "the server closed before it answered");
        }
    }

    pub fn ask<T>(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>, u64),
        read: impl FnOnce(Reply<'_>) -> T,
    ) -> Result<T, Refused> {
        let id = self.send(write);
        self.receive(id, read)
    }

    /// True if the server has closed the connection, after whatever it still sends.
    pub fn is_closed(&mut self) -> bool {
        let mut rest = [0; 4096];
        loop {
            match self.stream.read(&mut rest) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    }

    pub fn begin_as(
        &mut self,
        options: &BeginOptions,
        count: u32,
    ) -> Result<(WritePointer, Arc<Snapshot>), BeginError> {
        self.begin_by(&BeginRequest { options: *options, count, base: None, label: None })
    }

    pub fn begin_by(&mut self, asked: &BeginRequest<'_>) -> Result<(WritePointer, Arc<Snapshot>), BeginError> {
        let begun = self.ask(
            |out, id| request::begin(out, id, asked),
            |reply| match reply {
                Reply::Begin(Ok((block, snapshot))) => Ok((block.first, snapshot.decode(None).expect("a snapshot"))),
                Reply::Begin(Err(error)) => Err(error),
                other => panic!("{other:?}"),
            },
        );
        begun.expect("no error frame")
    }

    pub fn commit_changes<'c>(
        &mut self,
        tx: WritePointer,
        submission: impl Into<Submission<'c>>,
    ) -> Result<CommitNumber, CommitError> {
        let outcome = self.ask(
            |out, id| request::commit(out, id, [(tx, submission)]),
            |reply| match reply {
                Reply::Commit(mut outcomes) => outcomes.next().expect("one outcome"),
                other => panic!("{other:?}"),
            },
        );
        outcome.expect("no error frame")
    }

    pub fn state(&mut self) -> State {
        let state = self.ask(request::state, |reply| match reply {
            Reply::State(state) => state,
            other => panic!("{other:?}"),
        });
        state.expect("no error frame")
    }

    pub fn statuses(&mut self, op: Op, tx: WritePointer) -> Status {
        let status = self.ask(
            |out, id| request::pointers(out, op, id, [tx]),
            |reply| match reply {
                Reply::Abort(mut statuses) | Reply::Status(mut statuses) | Reply::Settle(mut statuses) => {
                    statuses.next().expect("one status")
                }
                other => panic!("{other:?}"),
            },
        );
        status.expect("no error frame")
    }

    pub fn reset(&mut self) -> WritePointer {
        let store = self.hello.expect("said hello").store;
        let floor = self.ask(
            |out, id| request::reset(out, id, store),
            |reply| match reply {
                Reply::Reset { floor } => floor,
                other => panic!("{other:?}"),
            },
        );
        floor.expect("no error frame")
    }
}

/// A server in this process, asked over TCP.
pub struct OverTcp {
    pub server: Running,
    raw: std::cell::RefCell<Raw>,
}

impl OverTcp {
    /// Another connection to the same server.
    pub fn connect(&self) -> Raw {
        self.server.connect()
    }
}

impl System for OverTcp {
    fn start(storage: StorageKind, options: &Options) -> OverTcp {
        let server = Running::start(ServerOptions { pipeline: options.clone(), ..ServerOptions::new(storage) });
        let raw = std::cell::RefCell::new(server.connect());
        OverTcp { server, raw }
    }

    fn begin_labelled(&self, label: &str) -> Begun {
        let asked = BeginRequest { options: BeginOptions::default(), count: 1, base: None, label: Some(label) };
        let (tx, snapshot) = self.raw.borrow_mut().begin_by(&asked).expect("begins");
        Begun { tx, snapshot }
    }

    fn begin_with(&self, options: &BeginOptions) -> Result<Begun, BeginError> {
        self.raw.borrow_mut().begin_as(options, 1).map(|(tx, snapshot)| Begun { tx, snapshot })
    }

    fn can_commit_changes(&self, tx: WritePointer, changes: &ChangeSet) -> Result<(), CommitError> {
        let advice = self.raw.borrow_mut().ask(
            |out, id| request::can_commit(out, id, [(tx, changes)]),
            |reply| match reply {
                Reply::CanCommit(mut advice) => advice.next().expect("one answer"),
                other => panic!("{other:?}"),
            },
        );
        advice.expect("no error frame")
    }

    fn submit(&self, tx: WritePointer, submission: Submission<'_>) -> Result<CommitNumber, CommitError> {
        self.raw.borrow_mut().commit_changes(tx, submission)
    }

    fn checkpoint(&self, tx: WritePointer, number: u32) -> Result<WritePointer, CommitError> {
        let given = self.raw.borrow_mut().ask(
            |out, id| request::checkpoint(out, id, [(tx, number)]),
            |reply| match reply {
                Reply::Checkpoint(mut given) => given.next().expect("one answer"),
                other => panic!("{other:?}"),
            },
        );
        given.expect("no error frame")
    }

    fn fence(&self, timeout: Duration) -> Fenced {
        let fenced = self.raw.borrow_mut().ask(
            |out, id| request::fence(out, id, timeout.as_millis() as u64),
            |reply| match reply {
                Reply::Fence(fenced) => fenced,
                other => panic!("{other:?}"),
            },
        );
        fenced.expect("no error frame")
    }

    fn abort(&self, tx: WritePointer) -> Status {
        self.raw.borrow_mut().statuses(Op::Abort, tx)
    }

    fn invalidate(&self, tx: WritePointer) -> bool {
        let ended = self.raw.borrow_mut().ask(
            |out, id| request::pointers(out, Op::Invalidate, id, [tx]),
            |reply| match reply {
                Reply::Invalidate(ended) => ended.iter().next().expect("one answer"),
                other => panic!("{other:?}"),
            },
        );
        ended.expect("no error frame")
    }

    fn status(&self, tx: WritePointer) -> Status {
        self.raw.borrow_mut().statuses(Op::Status, tx)
    }

    fn settle(&self, tx: WritePointer) -> Status {
        self.raw.borrow_mut().statuses(Op::Settle, tx)
    }

    fn snapshot(&self) -> Arc<Snapshot> {
        let snapshot = self.raw.borrow_mut().ask(
            |out, id| request::snapshot(out, id, None),
            |reply| match reply {
                Reply::Snapshot(snapshot) => snapshot.decode(None).expect("a snapshot"),
                other => panic!("{other:?}"),
            },
        );
        snapshot.expect("no error frame")
    }

    fn timestamps(&self, count: u32) -> Result<WritePointer, BeginError> {
        let block = self.raw.borrow_mut().ask(
            |out, id| request::timestamps(out, id, u64::from(count)),
            |reply| match reply {
                Reply::Timestamps(block) => block.map(|block| block.first),
                other => panic!("{other:?}"),
            },
        );
        block.expect("no error frame")
    }
}
