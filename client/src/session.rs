//! One conversation with a server, without a socket: calls in, bytes out; bytes in, answers out.
//!
//! A [`Session`] owns what is hard about the protocol: it gathers calls into frames, numbers them, remembers which
//! snapshot each request named, and applies each difference to exactly that one. The blocking client, the
//! bulk connection and load generators move the bytes, each in its own way.
//!
//! **Frames stay open until they are sent.** A call joins the open frame of its kind, and opens one if there is none;
//! [`Session::take_output`] closes them all. So callers share a frame without a timer, and only one that has not
//! left: what a begin joins is sent after the begin was asked for, and a commit acknowledged before is visible to it.
//! Calls between two `take_output`s are in no particular order.

use std::sync::Arc;

use seriatim_core::{BeginError, BeginOptions, ChangeSet, Changes, CommitError, Snapshot, Submission, WritePointer};
use seriatim_wire::{
    BLOCK_MAX_DEFAULT, BODY_BYTES_MAX, Block, Bools, DecodeError, ErrorReply, FLAG_MORE, Fenced, FrameBuffer, Hello,
    HelloLimits, HelloReply, ImagePage, ImageRequest, ListRequest, Listing, Op, Outcomes, Reply, Results,
    SnapshotBytes, State, Statuses, StoreId, StoreReply, StoreRequest, Truncated, commit_item_bytes, request,
};

use crate::requests::Requests;

/// The most bytes that a reply in many frames may join to: 1 GiB, a snapshot of some hundred million exclusions.
const REPLY_BYTES_MAX: usize = 1 << 30;

/// A server broke the protocol, or something between has. The connection is of no use any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// Bytes that are no reply, or a snapshot that does not fit its base or its digest.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A reply to nothing that was asked and not answered.
    #[error("a reply with op {op:#04x} to request {id}, which is not in flight")]
    UnknownRequest {
        /// Id of the reply.
        id: u64,
        /// Its op.
        op: u8,
    },
    /// A reply to something else than what was asked.
    #[error("a reply with op {op:#04x} to request {id}, which was {asked:?}")]
    WrongReply {
        /// Id of the request.
        id: u64,
        /// What was asked.
        asked: Op,
        /// Op of the reply.
        op: u8,
    },
    /// More or fewer items in the reply than in its request.
    #[error("a reply with {got} items to request {id}, which had {asked}")]
    WrongCount {
        /// Id of the request.
        id: u64,
        /// Items asked about.
        asked: u64,
        /// Items answered.
        got: u64,
    },
    /// A write pointer that its own snapshot may already hold: versions written under it could be lost.
    #[error("write pointer {pointer} is not above the read pointer {read_pointer} of its snapshot")]
    PointerBelowSnapshot {
        /// The pointer handed out.
        pointer: WritePointer,
        /// Read pointer of the snapshot that came with it.
        read_pointer: WritePointer,
    },
    /// A reply in parts goes on for ever, or another reply stands between its parts.
    #[error("a reply in parts to request {id} is not continued as one")]
    BrokenParts {
        /// Id of the request.
        id: u64,
    },
}

/// Where the answer to a call will be found: in which request's reply, and where in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct AnswerPlace {
    /// Id of the request; [`Session::next_answer`] says which one it answers.
    pub request: u64,
    /// Place among the request's items; for begins and timestamps the distance from the block's first pointer.
    pub index: u32,
}

/// Transactions that began together.
#[derive(Clone, Debug)]
pub struct Begun {
    /// Their pointers.
    pub block: Block,
    /// The snapshot they began on.
    pub snapshot: Arc<Snapshot>,
}

/// The reply to a request. Items are in the order of the indices of its places.
#[derive(Debug)]
pub enum Answer<'a> {
    /// The server said hello.
    Hello(HelloReply),
    /// To begins.
    Begun(Result<Begun, BeginError>),
    /// To commits.
    Committed(Outcomes<'a>),
    /// To aborts: how each transaction ended.
    Aborted(Statuses<'a>),
    /// To invalidates: whether each transaction was ended by it.
    Invalidated(Bools<'a>),
    /// To looks at transactions.
    Status(Statuses<'a>),
    /// To doubts about transactions.
    Settled(Statuses<'a>),
    /// The newest snapshot.
    Snapshot(Arc<Snapshot>),
    /// Timestamps.
    Timestamps(Result<Block, BeginError>),
    /// The server's counters.
    State(State),
    /// A page of transactions.
    List(Listing<'a>),
    /// Transactions below this pointer are refused from here on.
    Reset(WritePointer),
    /// What commits would come to.
    Checked(Results<'a, ()>),
    /// Further pointers.
    Checkpoints(Results<'a, WritePointer>),
    /// Whether each transaction was invalid and is forgotten.
    Truncated(Bools<'a>),
    /// What came of forgetting everything invalid before a pointer.
    TruncatedBefore(Truncated),
    /// What came of a fence.
    Fenced(Fenced),
    /// A page of an image.
    Image(ImagePage<'a>),
    /// What a registered store hears.
    Store(StoreReply),
    /// The bytes of a ping.
    Pong(&'a [u8]),
    /// The request was not done; with request 0, the server has something to say about the connection.
    Error(ErrorReply<'a>),
}

/// One conversation with a server; see the head of this file.
#[derive(Debug)]
pub struct Session {
    requests: Requests,
    incoming: FrameBuffer,
    /// Parts of a reply in many frames, with its op and id.
    parts: Vec<u8>,
    parts_of: Option<(u8, u64)>,
    current: Option<Arc<Snapshot>>,
    limits: HelloLimits,
}

impl Session {
    /// A session that starts with this hello. Calls may follow it at once.
    pub fn new(hello: &Hello<'_>) -> Session {
        let mut requests = Requests::default();
        requests.alone(Op::Hello, |out, id| hello.encode(out, id));
        Session {
            requests,
            incoming: FrameBuffer::new(BODY_BYTES_MAX),
            parts: Vec::new(),
            parts_of: None,
            current: None,
            limits: HelloLimits { block: BLOCK_MAX_DEFAULT, ..HelloLimits::default() },
        }
    }

    /// The newest snapshot that any answer brought. Old by as much as the answer is; begin to have a fresh one.
    pub fn current_snapshot(&self) -> Option<&Arc<Snapshot>> {
        self.current.as_ref()
    }

    /// Starts from a snapshot that an earlier connection of the same client brought: differences may be made from it.
    pub fn set_current_snapshot(&mut self, snapshot: Option<Arc<Snapshot>>) {
        self.current = snapshot;
    }

    /// The server's limits; the protocol's defaults until its hello has come.
    pub fn limits(&self) -> HelloLimits {
        self.limits
    }

    /// Requests that were made and not answered, those in open frames included.
    pub fn in_flight(&self) -> usize {
        self.requests.in_flight()
    }

    /// Begins `count` transactions, with neighbouring pointers from the place's index on.
    pub fn begin(&mut self, options: BeginOptions, count: u32) -> AnswerPlace {
        self.begin_as(options, None, count)
    }

    /// As [`Session::begin`], with a label of their own instead of the session's.
    pub fn begin_as(&mut self, options: BeginOptions, label: Option<&Arc<str>>, count: u32) -> AnswerPlace {
        self.requests.begin(options, label, count, &self.limits, self.current.as_ref())
    }

    /// Checks what a commit would come to; the server keeps the set for a commit that names it.
    ///
    /// # Errors
    /// As [`Session::commit`].
    pub fn can_commit(&mut self, tx: WritePointer, changes: &ChangeSet) -> Result<AnswerPlace, CommitError> {
        self.check_len(changes)?;
        Ok(self.requests.commit(Op::CanCommit, tx, changes.into(), &self.limits))
    }

    /// Asks for a transaction's further pointer with this number, counted from 1.
    pub fn checkpoint(&mut self, tx: WritePointer, number: u32) -> AnswerPlace {
        self.requests.checkpoint(tx, number, &self.limits)
    }

    /// Commits a transaction.
    ///
    /// # Errors
    /// [`CommitError::ChangeSetTooLarge`] if the server would say so, or no frame could hold it. Nothing is sent then.
    pub fn commit<'c>(
        &mut self,
        tx: WritePointer,
        submission: impl Into<Submission<'c>>,
    ) -> Result<AnswerPlace, CommitError> {
        let submission = submission.into();
        if let Changes::Given(changes) = submission.changes {
            self.check_len(changes)?;
        }
        Ok(self.requests.commit(Op::Commit, tx, submission, &self.limits))
    }

    fn check_len(&self, changes: &ChangeSet) -> Result<(), CommitError> {
        let body_bytes = self.limits.body_bytes.min(BODY_BYTES_MAX) as usize;
        let overhead = commit_item_bytes(&ChangeSet::default());
        let fit = body_bytes.saturating_sub(overhead) / 8;
        let (len, max) = (changes.len(), fit.min(self.limits.change_ids as usize));
        if len > max {
            return Err(CommitError::ChangeSetTooLarge { len: len as u64, max: max as u64 });
        }
        Ok(())
    }

    /// Ends a transaction of which no write stands in any store.
    pub fn abort(&mut self, tx: WritePointer) -> AnswerPlace {
        self.requests.name(Op::Abort, tx, &self.limits)
    }

    /// Ends a transaction whose writes may stand.
    pub fn invalidate(&mut self, tx: WritePointer) -> AnswerPlace {
        self.requests.name(Op::Invalidate, tx, &self.limits)
    }

    /// Looks where a transaction stands.
    pub fn status(&mut self, tx: WritePointer) -> AnswerPlace {
        self.requests.name(Op::Status, tx, &self.limits)
    }

    /// Ends a doubt about a transaction: an open one becomes invalid.
    pub fn settle(&mut self, tx: WritePointer) -> AnswerPlace {
        self.requests.name(Op::Settle, tx, &self.limits)
    }

    /// Asks for the newest snapshot.
    pub fn snapshot(&mut self) -> AnswerPlace {
        self.requests.snapshot()
    }

    /// Takes `count` numbers that are unique and grow, neighbours from the place's index on.
    pub fn timestamps(&mut self, count: u64) -> AnswerPlace {
        self.requests.timestamps(count)
    }

    /// Asks for the server's counters.
    pub fn state(&mut self) -> AnswerPlace {
        self.requests.alone(Op::State, request::state)
    }

    /// Asks for one page of a list.
    pub fn list(&mut self, list: &ListRequest) -> AnswerPlace {
        self.requests.alone(Op::List, |out, id| request::list(out, id, list))
    }

    /// Drops everything that is open and invalid in this store.
    pub fn reset(&mut self, store: StoreId) -> AnswerPlace {
        self.requests.alone(Op::Reset, |out, id| request::reset(out, id, store))
    }

    /// Forgets an invalid transaction of which nothing stands in any store.
    pub fn truncate(&mut self, tx: WritePointer) -> AnswerPlace {
        self.requests.name(Op::Truncate, tx, &self.limits)
    }

    /// Forgets every invalid transaction below a pointer, of which nothing stands in any store.
    pub fn truncate_before(&mut self, bound: WritePointer) -> AnswerPlace {
        self.requests.alone(Op::TruncateBefore, |out, id| request::truncate_before(out, id, bound))
    }

    /// Waits until every transaction that is open now has ended.
    pub fn fence(&mut self, timeout_ms: u64) -> AnswerPlace {
        self.requests.alone(Op::Fence, |out, id| request::fence(out, id, timeout_ms))
    }

    /// Asks for a page of an image.
    pub fn image(&mut self, image: ImageRequest) -> AnswerPlace {
        self.requests.alone(Op::Image, |out, id| request::image(out, id, image))
    }

    /// Says something for a registered store, or asks how far stores may clean.
    pub fn store(&mut self, store: StoreRequest<'_>) -> AnswerPlace {
        self.requests.alone(store.op(), |out, id| request::store(out, id, store))
    }

    /// Asks for the same bytes back.
    pub fn ping(&mut self, bytes: &[u8]) -> AnswerPlace {
        self.requests.alone(Op::Ping, |out, id| request::ping(out, id, bytes))
    }

    /// True if there is anything to send.
    pub fn has_output(&self) -> bool {
        self.requests.has_output()
    }

    /// True if the request has not been handed out to be sent.
    pub fn is_unsent(&self, request: u64) -> bool {
        self.requests.is_unsent(request)
    }

    /// Closes all frames and hands out what is to be sent, in `into`, which is emptied first.
    pub fn take_output(&mut self, into: &mut Vec<u8>) {
        self.requests.take_output(into, self.current.as_ref());
    }

    /// Takes bytes that the server sent.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.incoming.extend(bytes);
    }

    /// Where to read bytes into that the server sends, as [`FrameBuffer::read_from`] does.
    pub fn incoming(&mut self) -> &mut FrameBuffer {
        &mut self.incoming
    }

    /// True if [`next_answer`](Session::next_answer) has an answer, or an error, without more bytes.
    pub fn has_answer(&self) -> bool {
        let mut frames = self.incoming.frames();
        loop {
            match frames.next() {
                Ok(Some(frame)) if frame.flags & FLAG_MORE != 0 => {}
                Ok(Some(_)) | Err(_) => return true,
                Ok(None) => return false,
            }
        }
    }

    /// The next answer, and the id of the request that it answers; `None` until more bytes come.
    ///
    /// # Errors
    /// If the server broke the protocol. All snapshots are forgotten then, and the connection should be closed.
    pub fn next_answer(&mut self) -> Result<Option<(u64, Answer<'_>)>, ProtocolError> {
        if !self.gather_parts()? {
            return Ok(None);
        }
        // Both are borrowed for the answer; what is changed meanwhile are the other fields.
        let Session { requests, incoming, parts, parts_of, current, limits } = self;
        let Some(frame) = incoming.next_frame()? else { return Ok(None) };
        let body = match parts_of.take() {
            None => frame.body,
            Some(of) if of == (frame.op, frame.id) => {
                parts.extend_from_slice(frame.body);
                &parts[..]
            }
            Some((_, id)) => return Err(ProtocolError::BrokenParts { id }),
        };
        let (id, op) = (frame.id, frame.op);
        if frame.flags != 0 {
            return Err(DecodeError::UnknownFlags { what: "reply", flags: u32::from(frame.flags) }.into());
        }
        let reply = Reply::decode_body(op, body)?;
        let request = match requests.answered(id) {
            Some(request) => request,
            None => match reply {
                Reply::Error(error) if id == 0 => return Ok(Some((0, Answer::Error(error)))),
                _ => return Err(ProtocolError::UnknownRequest { id, op }),
            },
        };
        if op != Op::ERROR && op != request.op as u8 | Op::REPLY {
            return Err(ProtocolError::WrongReply { id, asked: request.op, op });
        }
        let count = |got: usize| check_count(id, request.items, got as u64);
        let answer = match reply {
            Reply::Hello(hello) => {
                *limits = hello.limits;
                if current.as_ref().is_some_and(|current| current.id.boot != hello.boot) {
                    *current = None;
                }
                Answer::Hello(hello)
            }
            Reply::Begin(Ok((block, bytes))) => {
                check_count(id, request.items, block.count)?;
                let snapshot = decode_newest(current, bytes, request.base.as_ref())?;
                if block.first <= snapshot.read_pointer {
                    let read_pointer = snapshot.read_pointer;
                    return Err(ProtocolError::PointerBelowSnapshot { pointer: block.first, read_pointer });
                }
                Answer::Begun(Ok(Begun { block, snapshot }))
            }
            Reply::Begin(Err(error)) => Answer::Begun(Err(error)),
            Reply::Commit(outcomes) => count(outcomes.len()).map(|()| Answer::Committed(outcomes))?,
            Reply::Abort(statuses) => count(statuses.len()).map(|()| Answer::Aborted(statuses))?,
            Reply::Invalidate(ended) => count(ended.len()).map(|()| Answer::Invalidated(ended))?,
            Reply::Status(statuses) => count(statuses.len()).map(|()| Answer::Status(statuses))?,
            Reply::Settle(statuses) => count(statuses.len()).map(|()| Answer::Settled(statuses))?,
            Reply::Snapshot(bytes) => Answer::Snapshot(decode_newest(current, bytes, request.base.as_ref())?),
            Reply::Timestamps(Ok(block)) => {
                check_count(id, request.items, block.count)?;
                Answer::Timestamps(Ok(block))
            }
            Reply::Timestamps(Err(error)) => Answer::Timestamps(Err(error)),
            Reply::State(state) => Answer::State(state),
            Reply::List(listing) => Answer::List(listing),
            Reply::Reset { floor } => Answer::Reset(floor),
            Reply::CanCommit(checks) => count(checks.len()).map(|()| Answer::Checked(checks))?,
            Reply::Checkpoint(pointers) => count(pointers.len()).map(|()| Answer::Checkpoints(pointers))?,
            Reply::Truncate(forgotten) => count(forgotten.len()).map(|()| Answer::Truncated(forgotten))?,
            Reply::TruncateBefore(truncated) => Answer::TruncatedBefore(truncated),
            Reply::Fence(fenced) => Answer::Fenced(fenced),
            Reply::Image(page) => Answer::Image(page),
            Reply::Store(said) => Answer::Store(said),
            Reply::Ping(bytes) => Answer::Pong(bytes),
            Reply::Error(error) => Answer::Error(error),
        };
        Ok(Some((id, answer)))
    }

    /// Moves the leading parts of a reply in many frames out of the way; false if its last part has not come.
    fn gather_parts(&mut self) -> Result<bool, ProtocolError> {
        if self.parts_of.is_none() && !self.parts.is_empty() {
            self.parts = Vec::new();
        }
        loop {
            let mut frames = self.incoming.frames();
            let Some(frame) = frames.next()? else { return Ok(false) };
            if frame.flags & FLAG_MORE == 0 {
                return Ok(true);
            }
            let of = (frame.op, frame.id);
            if *self.parts_of.get_or_insert(of) != of || self.parts.len() + frame.body.len() > REPLY_BYTES_MAX {
                return Err(ProtocolError::BrokenParts { id: frame.id });
            }
            self.parts.extend_from_slice(frame.body);
            let taken = frames.taken();
            self.incoming.consume(taken);
        }
    }
}

fn check_count(id: u64, asked: u64, got: u64) -> Result<(), ProtocolError> {
    if asked == got { Ok(()) } else { Err(ProtocolError::WrongCount { id, asked, got }) }
}

/// Reads a snapshot against the base that its request named; the newest of all becomes the current one.
fn decode_newest(
    current: &mut Option<Arc<Snapshot>>,
    bytes: SnapshotBytes<'_>,
    base: Option<&Arc<Snapshot>>,
) -> Result<Arc<Snapshot>, ProtocolError> {
    let snapshot = bytes.decode(base).inspect_err(|_| *current = None)?;
    let newest = current
        .as_ref()
        .is_none_or(|current| current.id.boot != snapshot.id.boot || current.id.number < snapshot.id.number);
    if newest {
        *current = Some(Arc::clone(&snapshot));
    }
    Ok(snapshot)
}
