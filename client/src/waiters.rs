//! Callers that wait for answers, and the way of an answer to its callers.

use std::collections::hash_map::Entry;
use std::sync::{Arc, Condvar};

use rustc_hash::FxHashMap;
use seriatim_core::{BeginError, CommitError, CommitNumber, Snapshot, Status, WritePointer};
use seriatim_wire::{Fenced, ImagePage, State, StoreReply, Truncated};
use smallvec::SmallVec;

use crate::client::Page;
use crate::error::{Cause, ServerError};
use crate::session::{Answer, AnswerPlace, Begun};

/// What one caller gets of an answer.
#[derive(Debug)]
pub(crate) enum Done {
    Begun { pointer: WritePointer, snapshot: Arc<Snapshot> },
    Refused(BeginError),
    Outcome(Result<CommitNumber, CommitError>),
    Status(Status),
    Ended(bool),
    Snapshot(Arc<Snapshot>),
    Timestamps { first: WritePointer },
    State(Box<State>),
    Page(Page),
    Reset { floor: WritePointer },
    Checked(Result<(), CommitError>),
    Checkpoint(Result<WritePointer, CommitError>),
    TruncatedBefore(Truncated),
    Fenced(Fenced),
    Image { number: u64, total: u64, bytes: Vec<u8> },
    Store(StoreReply),
    Pong,
    Server(ServerError),
}

/// Why one caller gets no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The connection ended. `sent` tells whether the request may have reached the server.
    Lost { cause: Cause, sent: bool },
    /// No connection could be made.
    Connect(Cause),
    /// The caller's time was over.
    TimedOut { sent: bool },
    /// As many calls are under way as may be.
    QueueFull,
    /// Refused here, as the server would have.
    Refused(CommitError),
}

#[derive(Debug)]
struct Waiter {
    request: u64,
    done: Option<Result<Done, Failure>>,
    /// Asleep, as opposed to at work on the socket for all.
    asleep: bool,
    wake: Arc<Condvar>,
}

/// The callers of one client; guarded by its lock.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    waiters: FxHashMap<u64, Waiter>,
    /// By request, who waits for which item of its reply, ascending.
    by_request: FxHashMap<u64, SmallVec<[(u32, u64); 4]>>,
    next: u64,
    /// Of callers that have gone.
    spare: Vec<Arc<Condvar>>,
}

impl Waiters {
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// True if an answer is due to somebody, if only to one that has gone.
    pub fn expect_answers(&self) -> bool {
        !self.by_request.is_empty()
    }

    /// A new caller, who waits for this place. Its number is never used again, so an answer that comes after its
    /// caller has gone finds nobody.
    pub fn add(&mut self, place: AnswerPlace) -> u64 {
        let me = self.next;
        self.next += 1;
        let wake = self.spare.pop().unwrap_or_default();
        self.waiters.insert(me, Waiter { request: place.request, done: None, asleep: false, wake });
        self.by_request.entry(place.request).or_default().push((place.index, me));
        me
    }

    /// What has become of this caller's call, once; the caller is gone afterwards.
    pub fn take_done(&mut self, me: u64) -> Option<Result<Done, Failure>> {
        match self.waiters.entry(me) {
            Entry::Occupied(mut waiter) => {
                let done = waiter.get_mut().done.take()?;
                self.spare.push(waiter.remove().wake);
                Some(done)
            }
            Entry::Vacant(_) => None,
        }
    }

    /// The caller goes without an answer; its request, if it is still here.
    pub fn leave(&mut self, me: u64) -> Option<u64> {
        let waiter = self.waiters.remove(&me)?;
        self.spare.push(waiter.wake);
        Some(waiter.request)
    }

    /// What to sleep on.
    pub fn fall_asleep(&mut self, me: u64) -> Option<Arc<Condvar>> {
        let waiter = self.waiters.get_mut(&me)?;
        waiter.asleep = true;
        Some(Arc::clone(&waiter.wake))
    }

    pub fn wake_up(&mut self, me: u64) {
        if let Some(waiter) = self.waiters.get_mut(&me) {
            waiter.asleep = false;
        }
    }

    /// Wakes one caller that sleeps without an answer, to do what has to be done on the socket; false if nobody sleeps.
    pub fn wake_one(&mut self) -> bool {
        let Some(waiter) = self.waiters.values_mut().find(|waiter| waiter.asleep && waiter.done.is_none()) else {
            return false;
        };
        waiter.asleep = false;
        waiter.wake.notify_one();
        true
    }

    /// Ends every call: the connection is lost. `is_unsent` knows the requests that never left.
    pub fn fail_all(&mut self, cause: &Cause, is_unsent: impl Fn(u64) -> bool) {
        self.by_request.clear();
        for waiter in self.waiters.values_mut().filter(|waiter| waiter.done.is_none()) {
            waiter.done = Some(Err(Failure::Lost { cause: cause.clone(), sent: !is_unsent(waiter.request) }));
            waiter.wake.notify_one();
        }
    }

    /// Hands an answer to those who wait for it.
    pub fn answer(&mut self, request: u64, answer: Answer<'_>) {
        let Some(waiting) = self.by_request.remove(&request) else { return };
        match answer {
            Answer::Begun(Ok(Begun { block, snapshot })) => self.each(waiting, |index| Done::Begun {
                pointer: WritePointer(block.first.0 + u64::from(index)),
                snapshot: Arc::clone(&snapshot),
            }),
            Answer::Begun(Err(error)) | Answer::Timestamps(Err(error)) => self.each(waiting, |_| Done::Refused(error)),
            Answer::Committed(outcomes) => self.in_order(waiting, outcomes, Done::Outcome),
            Answer::Aborted(statuses) | Answer::Status(statuses) | Answer::Settled(statuses) => {
                self.in_order(waiting, statuses, Done::Status)
            }
            Answer::Checked(checks) => self.in_order(waiting, checks, Done::Checked),
            Answer::Checkpoints(pointers) => self.in_order(waiting, pointers, Done::Checkpoint),
            Answer::Store(said) => self.each(waiting, |_| Done::Store(said.clone())),
            Answer::TruncatedBefore(truncated) => self.each(waiting, |_| Done::TruncatedBefore(truncated)),
            Answer::Fenced(fenced) => self.each(waiting, |_| Done::Fenced(fenced)),
            Answer::Image(ImagePage { number, total, bytes }) => {
                self.each(waiting, |_| Done::Image { number, total, bytes: bytes.to_vec() })
            }
            Answer::Invalidated(ended) | Answer::Truncated(ended) => self.in_order(waiting, ended.iter(), Done::Ended),
            Answer::Snapshot(snapshot) => self.each(waiting, |_| Done::Snapshot(Arc::clone(&snapshot))),
            Answer::Timestamps(Ok(block)) => {
                self.each(waiting, |index| Done::Timestamps { first: WritePointer(block.first.0 + u64::from(index)) })
            }
            Answer::State(state) => self.each(waiting, |_| Done::State(Box::new(state.clone()))),
            Answer::List(listing) => {
                let page = Page { more: listing.more, entries: listing.collect() };
                self.each(waiting, |_| Done::Page(page.clone()));
            }
            Answer::Reset(floor) => self.each(waiting, |_| Done::Reset { floor }),
            Answer::Hello(_) | Answer::Pong(_) => self.each(waiting, |_| Done::Pong),
            Answer::Error(error) => self.each(waiting, |_| Done::Server(error.into())),
        }
    }

    fn each(&mut self, waiting: SmallVec<[(u32, u64); 4]>, done: impl Fn(u32) -> Done) {
        for (index, waiter) in waiting {
            self.finish(waiter, done(index));
        }
    }

    /// Walks the items of an answer along those who wait for some of them, both ascending.
    fn in_order<I>(
        &mut self,
        waiting: SmallVec<[(u32, u64); 4]>,
        items: impl Iterator<Item = I>,
        done: impl Fn(I) -> Done,
    ) {
        let mut waiting = waiting.into_iter().peekable();
        for (at, item) in items.enumerate() {
            if let Some((_, waiter)) = waiting.next_if(|(index, _)| *index as usize == at) {
                self.finish(waiter, done(item));
            }
        }
    }

    fn finish(&mut self, waiter: u64, done: Done) {
        // Nobody is there if its time was over.
        if let Some(waiter) = self.waiters.get_mut(&waiter) {
            waiter.done = Some(Ok(done));
            if waiter.asleep {
                waiter.asleep = false;
                waiter.wake.notify_one();
            }
        }
    }
}
