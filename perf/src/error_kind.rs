//! Short names under which a report counts what was neither a commit nor a conflict.

use seriatim_core::{BeginError, CommitError, Full};
use seriatim_wire::ErrorCode;

/// The answer did not come before the run ended.
pub(crate) const UNANSWERED: &str = "unanswered";

pub(crate) fn of_begin(error: &BeginError) -> &'static str {
    match error {
        BeginError::TimeoutNotPositive | BeginError::TimeoutTooLong { .. } => "begin_timeout",
        BeginError::BlockSize { .. } => "begin_block_size",
        BeginError::Overloaded(Full::Window) => "begin_overloaded_window",
        BeginError::Overloaded(Full::OpenTransactions) => "begin_overloaded_open",
        BeginError::Overloaded(Full::EventRing) => "begin_overloaded_log",
        BeginError::Overloaded(Full::Invalid) => "begin_overloaded_invalid",
        BeginError::Overloaded(Full::Disk) => "begin_overloaded_disk",
        BeginError::Overloaded(Full::Fences | Full::Images) => "begin_overloaded_other",
    }
}

/// The name of a refused commit; `None` for a conflict, which is no error.
pub(crate) fn of_commit(error: &CommitError) -> Option<&'static str> {
    Some(match error {
        CommitError::Conflict { .. } => return None,
        CommitError::TooOld { .. } => "too_old",
        CommitError::Expired { .. } => "expired",
        CommitError::NotInProgress { .. } => "not_in_progress",
        CommitError::ChangeSetTooLarge { .. } => "change_set_too_large",
        CommitError::LongWithChanges { .. } => "long_with_changes",
        CommitError::NeedChanges { .. } => "need_changes",
        CommitError::CheckpointMismatch { .. } | CommitError::TooManyCheckpoints { .. } => "checkpoints",
        CommitError::Overloaded(_) => "commit_overloaded",
    })
}

pub(crate) fn of_reply(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::FrameTooLarge => "frame_too_large",
        ErrorCode::LimitExceeded => "limit_exceeded",
        ErrorCode::Overloaded => "overloaded",
        ErrorCode::DiskFull => "disk_full",
        ErrorCode::ShuttingDown => "shutting_down",
        ErrorCode::LogFailed => "log_failed",
        _ => "refused",
    }
}
