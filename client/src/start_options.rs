//! What can be chosen about one transaction of a context.

use std::sync::Arc;
use std::time::{Duration, Instant};

use seriatim_core::{BeginOptions, Isolation, Kind, LONG_TIMEOUT_MS_DEFAULT, SHORT_TIMEOUT_MS_DEFAULT, Visibility};

use crate::keyed_changes::KEY_BYTES_MAX_DEFAULT;

/// How a transaction commits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum CommitForm {
    /// The changes are looked at before anything is flushed, so that most conflicts cost no write to a store; then the
    /// commit names them. One question more.
    #[default]
    TwoSteps,
    /// Flush, then commit: one question less, and a lost race has its writes undone.
    OneStep,
}

/// How a transaction of a context is started. There is no `deferred` among these: participants flush before the commit is
/// decided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StartOptions {
    /// SHORT or LONG. A LONG one tells no changes, and becomes invalid if it is aborted. Default SHORT.
    pub kind: Kind,
    /// Deadline in ms from now; `None` takes the sequencer's default for the kind. Limits as in [`BeginOptions`]. Past
    /// the deadline nothing is flushed any more; of a default that the sequencer was given otherwise, the context does not
    /// know, and goes by 30 s for SHORT and 24 h for LONG.
    pub timeout_ms: Option<u64>,
    /// Stays open when the client disconnects, until its deadline. Default false.
    pub detached: bool,
    /// Shown where transactions are listed, and to those who lose a race to this one. 64 bytes count. Default: that of
    /// the client.
    pub label: Option<Arc<str>>,
    /// Whether reads and marks are sent and checked as well. Default [`Isolation::Snapshot`]: they are not.
    pub isolation: Isolation,
    /// Which of their own writes the participants read. Default [`Visibility::Snapshot`].
    pub visibility: Visibility,
    /// Default [`CommitForm::TwoSteps`].
    pub form: CommitForm,
    /// Bytes that the keys told by the participants may take, each counted as often as it is told; they are kept until the
    /// commit is decided, so that a conflict can name its key. More are refused as
    /// [`Error::KeysTooLarge`](crate::Error::KeysTooLarge), before anything is flushed. Default
    /// [`KEY_BYTES_MAX_DEFAULT`], 64 MiB.
    pub key_bytes_max: u64,
}

impl Default for StartOptions {
    fn default() -> StartOptions {
        StartOptions {
            kind: Kind::default(),
            timeout_ms: None,
            detached: false,
            label: None,
            isolation: Isolation::default(),
            visibility: Visibility::default(),
            form: CommitForm::default(),
            key_bytes_max: KEY_BYTES_MAX_DEFAULT,
        }
    }
}

impl StartOptions {
    /// What the sequencer is asked for.
    pub(crate) fn begin(&self) -> BeginOptions {
        BeginOptions { kind: self.kind, timeout_ms: self.timeout_ms, detached: self.detached, deferred: false }
    }

    /// When a transaction begun now is over; `None` if never.
    pub(crate) fn deadline(&self, now: Instant) -> Option<Instant> {
        let timeout_ms = match (self.kind, self.timeout_ms) {
            (Kind::Long, Some(0)) => return None,
            (Kind::Short, None) => SHORT_TIMEOUT_MS_DEFAULT,
            (Kind::Long, None) => LONG_TIMEOUT_MS_DEFAULT,
            (_, Some(timeout_ms)) => timeout_ms,
        };
        // A time that the clock cannot tell does not come.
        now.checked_add(Duration::from_millis(timeout_ms))
    }
}
