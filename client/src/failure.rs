//! What can go wrong with a transaction in a context: what failed, where, and how the transaction ended.

use std::fmt;
use std::sync::Arc;

use seriatim_core::{ChangeId, CommitError, CommitNumber, Status, WritePointer};

use crate::error::Error;
use crate::keyed_changes::Access;
use crate::panic::Panic;
use crate::participant::BoxError;

/// A step in the life of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The sequencer began it.
    Begin,
    /// A participant heard of it.
    Start,
    /// A participant was told of a further pointer, or of another level of visibility.
    Update,
    /// The sequencer gave a further pointer.
    Checkpoint,
    /// A participant told what it changed.
    Changes,
    /// The sequencer looked at the changes.
    CanCommit,
    /// A participant wrote what it had buffered.
    Flush,
    /// The sequencer decided.
    Commit,
    /// The sequencer was asked what it had decided.
    Settle,
    /// A participant heard of the commit.
    AfterCommit,
    /// A participant undid its writes.
    Rollback,
    /// The sequencer was told that nothing is left of it.
    Abort,
    /// The sequencer was told that something may be left of it.
    Invalidate,
    /// A participant was asked for its name.
    Name,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Begin => "begin",
            Step::Start => "start of the transaction",
            Step::Update => "update of the transaction",
            Step::Checkpoint => "checkpoint",
            Step::Changes => "asking for its changes",
            Step::CanCommit => "check of its changes",
            Step::Flush => "flush",
            Step::Commit => "commit",
            Step::Settle => "finding out how it ended",
            Step::AfterCommit => "telling of the commit",
            Step::Rollback => "rollback",
            Step::Abort => "abort",
            Step::Invalidate => "invalidation",
            Step::Name => "asking for its name",
        })
    }
}

/// One thing that went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// A transaction is active, which this cannot be done with. It stays as it is.
    #[error("transaction {tx} is active")]
    Active {
        /// The active one.
        tx: WritePointer,
    },
    /// No transaction is active, which this cannot be done without.
    #[error("no transaction is active")]
    NotActive,
    /// The caller's own reason to abort.
    #[error("the transaction was given up")]
    Caller(#[source] BoxError),
    /// Somebody who committed after the transaction's snapshot touched one of its keys. Run it again.
    #[error("{0}")]
    Conflict(Box<Conflict>),
    /// The sequencer refused, or did not answer.
    #[error("{step} failed")]
    Sequencer {
        /// What it was asked for.
        step: Step,
        /// What came of it.
        #[source]
        source: Error,
    },
    /// A participant failed.
    #[error("participant {name}: {step} failed")]
    Participant {
        /// Its name, or its place if it has not told its name.
        name: String,
        /// What it was asked for.
        step: Step,
        /// What it said; a [`Panic`] if it panicked.
        #[source]
        source: BoxError,
    },
    /// A participant could not undo its writes, and said so.
    #[error("{name} could not undo all of its writes")]
    Dirty {
        /// Its name, or its place if it has not told its name.
        name: String,
    },
    /// Nobody could say whether the transaction committed. What was flushed was left as it is.
    #[error("it is not known whether transaction {tx} committed")]
    Unknown {
        /// The transaction.
        tx: WritePointer,
        /// Why its commit had no answer.
        #[source]
        source: Error,
    },
    /// Somebody else ended the transaction, and otherwise than its own context was about to.
    #[error("transaction {tx} was ended by somebody else: {ended:?}")]
    EndedByOther {
        /// The transaction.
        tx: WritePointer,
        /// How it ended.
        ended: Status,
    },
    /// The sequencer gave a further pointer that is not above the others, under which nothing may be written.
    #[error("checkpoint {pointer} is not above pointer {newest} of the same transaction")]
    StaleCheckpoint {
        /// What was given.
        pointer: WritePointer,
        /// The newest pointer before.
        newest: WritePointer,
    },
}

impl Failure {
    /// The panic that it comes from, if it does.
    pub fn panic(&self) -> Option<&Panic> {
        match self {
            Failure::Participant { source, .. } => source.downcast_ref(),
            _ => None,
        }
    }

    /// True if the transaction lost to another one, or was too old for that to be told.
    fn is_conflict(&self) -> bool {
        match self {
            Failure::Conflict(_) => true,
            Failure::Sequencer { source, .. } => matches!(
                source,
                // Refused for one of the two, in a reply that got lost.
                Error::Commit(CommitError::TooOld { .. }) | Error::NotCommitted { ended: Status::Refused, .. }
            ),
            _ => false,
        }
    }

    fn is_retryable(&self) -> bool {
        match self {
            Failure::Conflict(_) => true,
            Failure::Sequencer { source, .. } => source.is_retryable(),
            _ => false,
        }
    }
}

/// A lost race, by its key, its winner, and the winner's label.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Conflict {
    /// The transaction that was refused.
    pub tx: WritePointer,
    /// Whether it was refused already by the check, or by the commit.
    pub step: Step,
    /// The first common change id that was found.
    pub change_id: ChangeId,
    /// The key that has this hash here. The winner's may be another one, if two have the same hash.
    pub key: Option<ConflictKey>,
    /// Commit number of the winner.
    pub csn: CommitNumber,
    /// The winner, if the sequencer still knew it.
    pub winner: Option<WritePointer>,
    /// The winner's label, if it had one that was kept.
    pub label: Option<Arc<str>>,
}

/// The key of a conflict.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConflictKey {
    /// Name of the participant that told it, or its place.
    pub participant: String,
    /// The key, as it was told.
    pub key: Vec<u8>,
    /// How the refused transaction touched it.
    pub access: Access,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Conflict { tx, change_id, csn, winner, ref label, .. } = *self;
        CommitError::Conflict { tx, change_id: change_id.0, csn, winner, label: label.clone() }.fmt(f)?;
        match &self.key {
            Some(key) => write!(f, ", on key {} of {}", key.key.escape_ascii(), key.participant),
            None => Ok(()),
        }
    }
}

/// How a transaction stands after an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// There was none: none was begun, or none was active.
    None,
    /// It is active still; the call that failed has left it as it was.
    Active,
    /// Committed; what failed, failed afterwards.
    Committed(CommitNumber),
    /// Aborted: none of its writes is left.
    Aborted,
    /// Invalid: whatever is left of its writes, nobody reads it.
    Invalidated,
    /// Not committed, and it never will be; but the sequencer did not say how it ended. It is excluded from every
    /// snapshot, and becomes invalid at its deadline at the latest.
    Unfinished,
    /// Nobody could say. Running it again may do its work twice.
    Unknown,
}

impl Standing {
    /// True if it did not commit and never will, and is over.
    pub(crate) fn is_nothing(self) -> bool {
        match self {
            Standing::None | Standing::Aborted | Standing::Invalidated | Standing::Unfinished => true,
            Standing::Active | Standing::Committed(_) | Standing::Unknown => false,
        }
    }
}

/// Why a transaction came to nothing, or what failed after its commit.
///
/// It reads as the first failure that was met, with all that is known of its cause; the failure itself, to match on, is at
/// [`failure`](ContextError::failure). Those that came after it, while the transaction was being ended, are
/// [attached](ContextError::suppressed), in their order.
pub struct ContextError(Box<Parts>);

struct Parts {
    tx: Option<WritePointer>,
    standing: Standing,
    first: Failure,
    suppressed: Vec<Failure>,
}

impl ContextError {
    pub(crate) fn new(
        tx: Option<WritePointer>,
        standing: Standing,
        first: Failure,
        suppressed: Vec<Failure>,
    ) -> ContextError {
        ContextError(Box::new(Parts { tx, standing, first, suppressed }))
    }

    /// The transaction, if there was one.
    pub fn tx(&self) -> Option<WritePointer> {
        self.0.tx
    }

    /// How it stands.
    pub fn standing(&self) -> Standing {
        self.0.standing
    }

    /// What went wrong first.
    pub fn failure(&self) -> &Failure {
        &self.0.first
    }

    /// What went wrong after that.
    pub fn suppressed(&self) -> &[Failure] {
        &self.0.suppressed
    }

    /// The lost race, if it was one that can be told.
    pub fn conflict(&self) -> Option<&Conflict> {
        match &self.0.first {
            Failure::Conflict(conflict) => Some(conflict),
            _ => None,
        }
    }

    /// True if the transaction lost to another one, or was too old for that to be told. It did not commit.
    pub fn is_conflict(&self) -> bool {
        self.has_come_to_nothing() && self.0.first.is_conflict()
    }

    /// True if running the whole transaction again is safe and may go better.
    pub fn is_retryable(&self) -> bool {
        self.has_come_to_nothing() && self.0.first.is_retryable()
    }

    /// True if it did not commit and never will, and is over.
    pub fn has_come_to_nothing(&self) -> bool {
        self.0.standing.is_nothing()
    }

    /// Goes on with the panic of a participant if that was the first failure; hands itself back if not.
    #[must_use]
    pub fn resume_panic(self) -> ContextError {
        let Parts { tx, standing, first, suppressed } = *self.0;
        let first = match first {
            Failure::Participant { name, step, source } => match source.downcast::<Panic>() {
                Ok(panic) => panic.resume(),
                Err(source) => Failure::Participant { name, step, source },
            },
            other => other,
        };
        ContextError::new(tx, standing, first, suppressed)
    }
}

impl fmt::Display for ContextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.first.fmt(f)?;
        let mut cause = std::error::Error::source(&self.0.first);
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

impl fmt::Debug for ContextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { tx, standing, first, suppressed } = &*self.0;
        f.debug_struct("ContextError")
            .field("tx", tx)
            .field("standing", standing)
            .field("failure", first)
            .field("suppressed", suppressed)
            .finish()
    }
}

// It has told its causes itself, so it names no source.
impl std::error::Error for ContextError {}
