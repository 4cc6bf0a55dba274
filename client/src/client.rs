//! The blocking client: one connection, any number of callers.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use seriatim_core::{BeginOptions, ChangeSet, Changes, CommitError, CommitNumber, Status, Submission, WritePointer};
use seriatim_wire::{Block, Fenced, HelloReply, ImageRequest, ListRequest, Listed, Op, State, StoreId, Truncated};

use crate::address::Address;
use crate::bulk_connection::BulkConnection;
use crate::clock::{Clock, SystemClock};
use crate::endings::Endings;
use crate::error::{Cause, Error};
use crate::link::{Call, Link};
use crate::options::ClientOptions;
use crate::read_snapshot::ReadSnapshot;
use crate::tx::Tx;
use crate::waiters::{Done, Failure};

/// Asks a sequencer. Clones are the same client: share one among all threads, for callers that come together share
/// frames.
///
/// A call blocks until its answer is there, for at most [`ClientOptions::request_timeout`]. A lost connection is made
/// again by the next call, and by the calls that were under way, as far as asking twice does no harm.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    link: Link,
    endings: Arc<Endings>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.endings.close();
    }
}

/// One page of a list of transactions, in the order of their pointers.
#[derive(Clone, Debug)]
pub struct Page {
    /// True if there is at least one more page, after the last entry of this one.
    pub more: bool,
    /// The transactions.
    pub entries: Vec<Listed>,
}

impl Client {
    /// Connects and says hello, once; if that fails nothing is tried again.
    ///
    /// # Errors
    /// [`Error::Connect`], with the server's words if it refused the hello.
    pub fn connect(address: impl Into<Address>, options: ClientOptions) -> Result<Client, Error> {
        let address = address.into();
        let failed = |cause| Error::Connect { address: address.clone(), cause };
        let endings_max = options.calls_max;
        let link = Link::connect(address.clone(), options).map_err(failed)?;
        let endings = Endings::start(endings_max).map_err(|error| failed(error.into()))?;
        Ok(Client { inner: Arc::new(Inner { link, endings }) })
    }

    /// What the server said when the newest connection was made: its store, its limits.
    pub fn hello(&self) -> HelloReply {
        self.inner.link.hello()
    }

    /// Calls under way at this moment.
    pub fn in_flight(&self) -> usize {
        self.inner.link.in_flight()
    }

    /// Begins a transaction, on a snapshot that holds every commit that was acknowledged to anybody before this call.
    ///
    /// # Errors
    /// [`Error::Begin`] if it was refused.
    pub fn begin(&self, options: BeginOptions) -> Result<Tx, Error> {
        self.begin_by(options, None)
    }

    /// As [`Client::begin`], with a label of its own instead of [`ClientOptions::label`]. 64 bytes count.
    ///
    /// # Errors
    /// As [`Client::begin`].
    pub fn begin_as(&self, options: BeginOptions, label: &str) -> Result<Tx, Error> {
        self.begin_by(options, Some(&label.into()))
    }

    fn begin_by(&self, options: BeginOptions, label: Option<&Arc<str>>) -> Result<Tx, Error> {
        match self.ask(Call::Begin(options, label))? {
            Done::Begun { pointer, snapshot } => Ok(Tx::new(self.clone(), pointer, snapshot, options)),
            other => Err(unexpected(other)),
        }
    }

    /// The newest snapshot, to read through without a transaction.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn snapshot(&self) -> Result<ReadSnapshot, Error> {
        let asked = SystemClock.now();
        match self.ask(Call::Snapshot)? {
            Done::Snapshot(snapshot) => {
                let age_max = Duration::from_millis(u64::from(self.hello().limits.snapshot_age_ms));
                Ok(ReadSnapshot::new(snapshot, asked, age_max, Arc::new(SystemClock)))
            }
            other => Err(unexpected(other)),
        }
    }

    /// `count` numbers, neighbours, that nobody else ever gets and that are greater than all handed out before. They
    /// are no versions of transactional tables.
    ///
    /// # Errors
    /// [`Error::Begin`] if they were refused.
    pub fn timestamps(&self, count: u64) -> Result<Block, Error> {
        match self.ask(Call::Timestamps(count))? {
            Done::Timestamps { first } => Ok(Block { first, count }),
            other => Err(unexpected(other)),
        }
    }

    /// Commits a transaction; durable when it returns. See [`Tx::commit`], which is the same for one begun here.
    ///
    /// If the connection is lost meanwhile, the same commit is sent again over a new one: it is decided once, so the
    /// second answer tells how the first went. If that leaves a doubt the transaction is settled.
    ///
    /// # Errors
    /// [`Error::Commit`] if it was refused, [`Error::NotCommitted`] if that was found out after a lost connection,
    /// [`Error::Unknown`] if nothing could be found out within the time. Others tell that nothing was decided.
    pub fn commit<'c>(&self, tx: WritePointer, submission: impl Into<Submission<'c>>) -> Result<CommitNumber, Error> {
        self.commit_by(tx, submission.into(), None)
    }

    /// The second step of a commit in two: as [`Client::commit`] of the changes that [`Client::can_commit`] was given, but
    /// names them where the server still has them, and brings them along where it has not.
    ///
    /// # Errors
    /// As [`Client::commit`].
    pub fn commit_checked(
        &self,
        tx: WritePointer,
        changes: &ChangeSet,
        checkpoints: u32,
    ) -> Result<CommitNumber, Error> {
        let submission = Submission { changes: Changes::Checked(changes.digest()), checkpoints };
        self.commit_by(tx, submission, Some(changes))
    }

    /// `changes` are those that the submission names, if it does.
    fn commit_by<'c>(
        &self,
        tx: WritePointer,
        mut submission: Submission<'c>,
        mut changes: Option<&'c ChangeSet>,
    ) -> Result<CommitNumber, Error> {
        let deadline = self.deadline();
        // Whether an earlier attempt may have reached the server, and why it had no answer.
        let mut doubt: Option<Cause> = None;
        for attempt in 1.. {
            let answer = self.inner.link.call(Call::Commit(tx, submission), deadline);
            let last = attempt >= self.inner.link.options().attempts_max;
            match (answer, doubt.take()) {
                (Ok(Done::Outcome(Ok(csn))), _) => return Ok(csn),
                // It is open, and whichever attempt comes first brings the same changes.
                (Ok(Done::Outcome(Err(CommitError::NeedChanges { .. }))), earlier)
                    if let Some(changes) = changes.take() =>
                {
                    submission.changes = Changes::Given(changes);
                    doubt = earlier;
                }
                (Ok(Done::Outcome(Err(error))), None) => return Err(error.into()),
                (Ok(Done::Outcome(Err(error))), Some(cause)) => {
                    return self.outcome_of_repeated(tx, error, cause, deadline);
                }
                (Ok(Done::Server(error)), _) if error.is_farewell() && !last => doubt = Some(error.into()),
                (Ok(Done::Server(error)), _) if error.is_farewell() => {
                    return Err(Error::Unknown { tx, cause: error.into() });
                }
                (Ok(Done::Server(error)), None) => return Err(error.into()),
                (Ok(Done::Server(_)), Some(cause)) => return self.settle_doubt(tx, cause, deadline),
                (Ok(other), _) => return Err(unexpected(other)),
                (Err(Failure::Lost { cause, sent: true }), _) if last => return Err(Error::Unknown { tx, cause }),
                (Err(Failure::Lost { cause, sent: true }), _) => doubt = Some(cause),
                (Err(Failure::TimedOut { sent: true }), None) => {
                    return Err(Error::Unknown { tx, cause: Cause::Silent });
                }
                // This attempt did nothing, so what is known is what was known before it.
                (Err(Failure::Lost { cause, sent: false } | Failure::Connect(cause)), earlier) => match earlier {
                    Some(earlier) if last || !cause.is_passing() => {
                        return Err(Error::Unknown { tx, cause: earlier });
                    }
                    None if last || !cause.is_passing() => return Err(self.not_connected(cause)),
                    earlier => doubt = earlier,
                },
                (Err(_), Some(cause)) => return Err(Error::Unknown { tx, cause }),
                (Err(failure), None) => return Err(self.error_of(failure)),
            }
        }
        unreachable!("the loop ends at its last attempt")
    }

    /// Checks what a commit of these changes would come to now. Advice: it reserves nothing, and the commit is checked
    /// again. The server keeps the set for [`Client::commit_checked`].
    ///
    /// # Errors
    /// [`Error::Commit`] if it would be refused; the transaction stays as it is.
    pub fn can_commit(&self, tx: WritePointer, changes: &ChangeSet) -> Result<(), Error> {
        match self.ask(Call::CanCommit(tx, changes))? {
            Done::Checked(checked) => checked.map_err(Error::Commit),
            other => Err(unexpected(other)),
        }
    }

    /// A further pointer for a transaction to write under, the one with this number, counted from 1. Durable when it
    /// returns. To ask again for the same number gives the same pointer. See [`Tx::checkpoint`].
    ///
    /// # Errors
    /// [`Error::Commit`] if the transaction is not open, or has fewer than `number - 1` or too many.
    pub fn checkpoint(&self, tx: WritePointer, number: u32) -> Result<WritePointer, Error> {
        match self.ask(Call::Checkpoint(tx, number))? {
            Done::Checkpoint(pointer) => pointer.map_err(Error::Commit),
            other => Err(unexpected(other)),
        }
    }

    /// Forgets an invalid transaction with all of its pointers: it is excluded no more. Whoever asks says that nothing of it
    /// stands in any store. False if it was not invalid, or if a crash left it
    /// [unaccounted](seriatim_core::InvalidCause::Unaccounted): that goes by [`Client::truncate_before`], or when every
    /// registered store is clean of it. Durable when it returns.
    ///
    /// # Errors
    /// Those of the connection, and the server's.
    pub fn truncate(&self, tx: WritePointer) -> Result<bool, Error> {
        match self.ask(Call::Name(Op::Truncate, &[tx]))? {
            Done::Ended(forgotten) => Ok(forgotten),
            other => Err(unexpected(other)),
        }
    }

    /// Forgets every invalid transaction below a pointer, as [`Client::truncate`] does; refused while one that began below
    /// it is open. [`WritePointer::at_ms`] makes a pointer of a time.
    ///
    /// # Errors
    /// Those of the connection, and the server's.
    pub fn truncate_before(&self, bound: WritePointer) -> Result<Truncated, Error> {
        match self.ask(Call::TruncateBefore(bound))? {
            Done::TruncatedBefore(truncated) => Ok(truncated),
            other => Err(unexpected(other)),
        }
    }

    /// Waits until every transaction that was open at this call has ended: what was committed before it has then been
    /// seen by everybody who goes on. At most for `timeout`, which the server cuts to 24 h.
    ///
    /// # Errors
    /// Those of the connection, and the server's.
    pub fn fence(&self, timeout: Duration) -> Result<Fenced, Error> {
        let deadline = self.deadline() + timeout;
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        match self.ask_until(Call::Fence(timeout_ms), deadline)? {
            Done::Fenced(fenced) => Ok(fenced),
            other => Err(unexpected(other)),
        }
    }

    /// Writes an image of the published state to `out`, byte for byte as the log's image files are; how many bytes.
    ///
    /// # Errors
    /// Those of the connection, the server's, and [`Error::Write`] for what `out` says.
    pub fn dump_image(&self, out: &mut dyn Write) -> Result<u64, Error> {
        let mut image = ImageRequest { number: 0, offset: 0 };
        loop {
            match self.ask(Call::Image(image))? {
                Done::Image { number, total, bytes } => {
                    // The server has forgotten the image, or is another run, and sends another one.
                    let is_another = image.offset > 0 && number != image.number;
                    if is_another || (bytes.is_empty() && image.offset < total) {
                        return Err(Error::ImageGone { read: image.offset });
                    }
                    out.write_all(&bytes).map_err(|error| Error::Write(Arc::new(error)))?;
                    image = ImageRequest { number, offset: image.offset + bytes.len() as u64 };
                    if image.offset >= total {
                        return Ok(image.offset);
                    }
                }
                other => return Err(unexpected(other)),
            }
        }
    }

    /// Ends a transaction of which no write stands in any store, and says how it ended: `Aborted`, or as it had before.
    /// An invalid SHORT is `Aborted` by it and no longer invalid; a LONG becomes invalid. Durable when it returns.
    ///
    /// # Errors
    /// Those of the connection, and the server's.
    pub fn abort(&self, tx: WritePointer) -> Result<Status, Error> {
        self.status_of(Op::Abort, tx)
    }

    /// Ends a transaction whose writes may stand somewhere: it stays excluded from every snapshot. False if it had
    /// ended. Durable when it returns.
    ///
    /// If the connection is lost meanwhile it is asked again, and false may then mean that the first time did it.
    ///
    /// # Errors
    /// Those of the connection, and the server's.
    pub fn invalidate(&self, tx: WritePointer) -> Result<bool, Error> {
        match self.ask(Call::Name(Op::Invalidate, &[tx]))? {
            Done::Ended(ended) => Ok(ended),
            other => Err(unexpected(other)),
        }
    }

    /// Where a transaction stands. Changes nothing, so `Open` may have become anything meanwhile; see
    /// [`Client::settle`].
    ///
    /// # Errors
    /// Those of the connection, and the server's.
    pub fn status(&self, tx: WritePointer) -> Result<Status, Error> {
        self.status_of(Op::Status, tx)
    }

    /// Ends the doubt about a transaction, durably: a decision under way is waited for, an open one becomes invalid, so
    /// that a commit that is still on its way will be refused.
    ///
    /// # Errors
    /// Those of the connection, and the server's.
    pub fn settle(&self, tx: WritePointer) -> Result<Status, Error> {
        self.status_of(Op::Settle, tx)
    }

    /// The server's counters.
    ///
    /// # Errors
    /// Those of the connection, and the server's.
    pub fn state(&self) -> Result<State, Error> {
        match self.ask(Call::State)? {
            Done::State(state) => Ok(*state),
            other => Err(unexpected(other)),
        }
    }

    /// One page of the transactions that are open or invalid.
    ///
    /// # Errors
    /// Those of the connection, and the server's.
    pub fn list(&self, list: ListRequest) -> Result<Page, Error> {
        match self.ask(Call::List(list))? {
            Done::Page(page) => Ok(page),
            other => Err(unexpected(other)),
        }
    }

    /// Drops everything that is open and invalid in this store, whose name has to be given; the pointer below which
    /// transactions are refused from here on. Writes of dropped transactions become visible: for operators only. Not
    /// asked again if the connection is lost.
    ///
    /// # Errors
    /// [`Error::Server`] if another store is served or the client may not.
    pub fn reset(&self, store: StoreId) -> Result<WritePointer, Error> {
        match self.inner.link.call(Call::Reset(store), self.deadline()).map_err(|failure| self.error_of(failure))? {
            Done::Reset { floor } => Ok(floor),
            other => Err(unexpected(other)),
        }
    }

    /// Goes to the server and back.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn ping(&self) -> Result<(), Error> {
        match self.ask(Call::Ping)? {
            Done::Pong => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// A connection of its own to the same server, for many requests under way at once from one thread.
    ///
    /// # Errors
    /// [`Error::Connect`].
    pub fn bulk_connection(&self) -> Result<BulkConnection, Error> {
        let options = self.inner.link.options();
        let own = ClientOptions { session: ClientOptions::default().session, ..options.clone() };
        BulkConnection::connect(self.inner.link.address().clone(), &own)
    }

    /// Waits until the ends of all transactions dropped so far have been sent and answered; false if they were not
    /// within the time. Worth a call before a process ends.
    pub fn flush(&self, time: Duration) -> bool {
        self.inner.endings.flush(Instant::now() + time)
    }

    pub(crate) fn endings(&self) -> &Endings {
        &self.inner.endings
    }

    /// Aborts or invalidates many at once, for the ends of dropped transactions.
    pub(crate) fn end_many(&self, op: Op, transactions: &[WritePointer]) -> Result<(), Error> {
        if !transactions.is_empty() {
            self.ask(Call::Name(op, transactions))?;
        }
        Ok(())
    }

    fn status_of(&self, op: Op, tx: WritePointer) -> Result<Status, Error> {
        match self.ask(Call::Name(op, &[tx]))? {
            Done::Status(status) => Ok(status),
            other => Err(unexpected(other)),
        }
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.inner.link.options().request_timeout
    }

    /// Makes a call that may be made twice without harm, and makes it again if the connection is lost.
    pub(crate) fn ask(&self, call: Call<'_>) -> Result<Done, Error> {
        self.ask_until(call, self.deadline())
    }

    fn ask_until(&self, call: Call<'_>, deadline: Instant) -> Result<Done, Error> {
        let mut attempt = 1;
        loop {
            let again = attempt < self.inner.link.options().attempts_max;
            match self.inner.link.call(call, deadline) {
                Ok(Done::Server(error)) if again && error.is_farewell() => attempt += 1,
                Ok(done) => return Ok(done),
                Err(Failure::Lost { cause, .. } | Failure::Connect(cause)) if again && cause.is_passing() => {
                    attempt += 1;
                }
                Err(failure) => return Err(self.error_of(failure)),
            }
        }
    }

    /// The same commit was sent before and had no answer; this is the answer to its repetition.
    fn outcome_of_repeated(
        &self,
        tx: WritePointer,
        error: CommitError,
        cause: Cause,
        deadline: Instant,
    ) -> Result<CommitNumber, Error> {
        match error {
            CommitError::NotInProgress { ended, .. } => self.outcome_of_ended(tx, ended, cause, deadline),
            // These are decisions on this attempt, and there is only one decision on a transaction.
            CommitError::Conflict { .. } | CommitError::TooOld { .. } | CommitError::Expired { .. } => {
                Err(error.into())
            }
            // These are not: the first attempt may still be on its way.
            CommitError::ChangeSetTooLarge { .. }
            | CommitError::LongWithChanges { .. }
            | CommitError::NeedChanges { .. }
            | CommitError::CheckpointMismatch { .. }
            | CommitError::TooManyCheckpoints { .. }
            | CommitError::Overloaded(_) => self.settle_doubt(tx, cause, deadline),
        }
    }

    fn outcome_of_ended(
        &self,
        tx: WritePointer,
        ended: Status,
        cause: Cause,
        deadline: Instant,
    ) -> Result<CommitNumber, Error> {
        match ended {
            Status::Committed(csn) => Ok(csn),
            Status::Refused | Status::Aborted | Status::Invalid(_) => Err(Error::NotCommitted { tx, ended }),
            Status::Forgotten => Err(Error::Unknown { tx, cause: Cause::Forgotten }),
            Status::Open | Status::Deciding => self.settle_doubt(tx, cause, deadline),
        }
    }

    fn settle_doubt(&self, tx: WritePointer, cause: Cause, deadline: Instant) -> Result<CommitNumber, Error> {
        match self.ask_until(Call::Name(Op::Settle, &[tx]), deadline) {
            Ok(Done::Status(Status::Committed(csn))) => Ok(csn),
            Ok(Done::Status(ended @ (Status::Refused | Status::Aborted | Status::Invalid(_)))) => {
                Err(Error::NotCommitted { tx, ended })
            }
            Ok(Done::Status(Status::Forgotten)) => Err(Error::Unknown { tx, cause: Cause::Forgotten }),
            _ => Err(Error::Unknown { tx, cause }),
        }
    }

    fn not_connected(&self, cause: Cause) -> Error {
        Error::Connect { address: self.inner.link.address().clone(), cause }
    }

    fn error_of(&self, failure: Failure) -> Error {
        match failure {
            Failure::Lost { cause, .. } => Error::Lost(cause),
            Failure::Connect(cause) => self.not_connected(cause),
            Failure::TimedOut { sent } => Error::TimedOut { after: self.inner.link.options().request_timeout, sent },
            Failure::QueueFull => Error::QueueFull { max: self.inner.link.options().calls_max },
            Failure::Refused(error) => Error::Commit(error),
        }
    }
}

/// An answer that is no success; the session has checked already that it is of the right kind.
pub(crate) fn unexpected(done: Done) -> Error {
    match done {
        Done::Server(error) => Error::Server(error),
        Done::Refused(error) => Error::Begin(error),
        Done::Outcome(Err(error)) => Error::Commit(error),
        other => unreachable!("a session answers a request with its own kind of reply, not {other:?}"),
    }
}
