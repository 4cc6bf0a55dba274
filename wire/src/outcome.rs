//! How transactions ended, one after the other, in replies.

use std::sync::Arc;

use seriatim_core::{BeginError, CommitError, CommitNumber, Full, InvalidCause, Status, WritePointer};

use crate::bytes::{Reader, put_distance, put_text, put_u64, put_varint};
use crate::error::DecodeError;

pub(crate) fn put_status(body: &mut Vec<u8>, status: Status) {
    match status {
        Status::Open => body.push(0),
        Status::Deciding => body.push(1),
        Status::Committed(csn) => {
            body.push(2);
            put_varint(body, csn.0);
        }
        Status::Refused => body.push(3),
        Status::Aborted => body.push(4),
        Status::Invalid(cause) => body.extend_from_slice(&[5, cause as u8]),
        Status::Forgotten => body.push(6),
    }
}

pub(crate) fn take_status(reader: &mut Reader<'_>) -> Result<Status, DecodeError> {
    Ok(match reader.u8()? {
        0 => Status::Open,
        1 => Status::Deciding,
        2 => Status::Committed(CommitNumber(reader.varint()?)),
        3 => Status::Refused,
        4 => Status::Aborted,
        5 => {
            let code = reader.u8()?;
            let unknown = DecodeError::UnknownNumber { what: "cause of an invalid transaction", code: u64::from(code) };
            Status::Invalid(InvalidCause::from_u8(code).ok_or(unknown)?)
        }
        6 => Status::Forgotten,
        code => return Err(DecodeError::UnknownNumber { what: "status", code: u64::from(code) }),
    })
}

fn take_full(reader: &mut Reader<'_>) -> Result<Full, DecodeError> {
    let code = reader.u8()?;
    Full::from_u8(code).ok_or(DecodeError::UnknownNumber { what: "bound", code: u64::from(code) })
}

/// Writes a refused begin. 0 is kept for one that was not refused.
pub(crate) fn put_begin_error(body: &mut Vec<u8>, error: &BeginError) {
    match *error {
        BeginError::TimeoutNotPositive => body.push(1),
        BeginError::TimeoutTooLong { asked_ms, max_ms } => put_asked(body, 2, asked_ms, max_ms),
        BeginError::BlockSize { asked, max } => put_asked(body, 3, asked, max),
        BeginError::Overloaded(full) => body.extend_from_slice(&[4, full as u8]),
    }
}

fn put_asked(body: &mut Vec<u8>, tag: u8, asked: u64, max: u64) {
    body.push(tag);
    put_varint(body, asked);
    put_varint(body, max);
}

/// Reads whether a begin was refused, and why.
pub(crate) fn take_begin_error(reader: &mut Reader<'_>) -> Result<Option<BeginError>, DecodeError> {
    Ok(Some(match reader.u8()? {
        0 => return Ok(None),
        1 => BeginError::TimeoutNotPositive,
        2 => BeginError::TimeoutTooLong { asked_ms: reader.varint()?, max_ms: reader.varint()? },
        3 => BeginError::BlockSize { asked: reader.varint()?, max: reader.varint()? },
        4 => BeginError::Overloaded(take_full(reader)?),
        code => return Err(DecodeError::UnknownNumber { what: "refusal of a begin", code: u64::from(code) }),
    }))
}

/// Writes the outcome of one commit; `last` is the commit number before it in the same frame, at first 0.
pub(crate) fn put_outcome(body: &mut Vec<u8>, outcome: &Result<CommitNumber, CommitError>, last: &mut u64) {
    match outcome {
        Ok(csn) => {
            body.push(0);
            put_distance(body, *last, csn.0);
            *last = csn.0;
        }
        Err(error) => put_commit_error(body, error),
    }
}

fn take_outcome(reader: &mut Reader<'_>, last: &mut u64) -> Result<Result<CommitNumber, CommitError>, DecodeError> {
    take_commit_error(reader, |reader| {
        *last = reader.distance(*last)?;
        Ok(CommitNumber(*last))
    })
}

/// Writes what a check of a commit came to.
pub(crate) fn put_advice(body: &mut Vec<u8>, advice: &Result<(), CommitError>) {
    match advice {
        Ok(()) => body.push(0),
        Err(error) => put_commit_error(body, error),
    }
}

/// Writes what a checkpoint came to.
pub(crate) fn put_checkpoint(body: &mut Vec<u8>, checkpoint: &Result<WritePointer, CommitError>) {
    match checkpoint {
        Ok(pointer) => {
            body.push(0);
            put_u64(body, pointer.0);
        }
        Err(error) => put_commit_error(body, error),
    }
}

/// Writes a refusal. 0 is kept for what was not refused.
fn put_commit_error(body: &mut Vec<u8>, error: &CommitError) {
    let mut put = |code: u8, tx: &WritePointer| {
        body.push(code);
        put_u64(body, tx.0);
    };
    match error {
        CommitError::Conflict { tx, change_id, csn, winner, label } => {
            put(1, tx);
            put_u64(body, *change_id);
            put_varint(body, csn.0);
            put_u64(body, winner.map_or(0, |winner| winner.0));
            put_text(body, label.as_deref().unwrap_or_default());
        }
        CommitError::TooOld { tx, snapshot, mark } => {
            put(2, tx);
            put_varint(body, snapshot.0);
            put_varint(body, mark.0);
        }
        CommitError::Expired { tx } => put(3, tx),
        CommitError::NotInProgress { tx, ended } => {
            put(4, tx);
            put_status(body, *ended);
        }
        CommitError::ChangeSetTooLarge { len, max } => put_asked(body, 5, *len, *max),
        CommitError::LongWithChanges { tx } => put(6, tx),
        CommitError::Overloaded(full) => body.extend_from_slice(&[7, *full as u8]),
        CommitError::NeedChanges { tx } => put(8, tx),
        CommitError::CheckpointMismatch { tx, known, named } => {
            put(9, tx);
            put_varint(body, u64::from(*known));
            put_varint(body, u64::from(*named));
        }
        CommitError::TooManyCheckpoints { tx, max } => {
            put(10, tx);
            put_varint(body, u64::from(*max));
        }
    }
}

/// Reads a refusal, or with `take` what was not refused.
fn take_commit_error<'a, T>(
    reader: &mut Reader<'a>,
    take: impl FnOnce(&mut Reader<'a>) -> Result<T, DecodeError>,
) -> Result<Result<T, CommitError>, DecodeError> {
    Ok(Err(match reader.u8()? {
        0 => return Ok(Ok(take(reader)?)),
        1 => CommitError::Conflict {
            tx: reader.pointer()?,
            change_id: reader.u64()?,
            csn: CommitNumber(reader.varint()?),
            winner: Some(reader.pointer()?).filter(|winner| winner.0 != 0),
            label: take_label(reader)?,
        },
        2 => CommitError::TooOld {
            tx: reader.pointer()?,
            snapshot: CommitNumber(reader.varint()?),
            mark: CommitNumber(reader.varint()?),
        },
        3 => CommitError::Expired { tx: reader.pointer()? },
        4 => CommitError::NotInProgress { tx: reader.pointer()?, ended: take_status(reader)? },
        5 => CommitError::ChangeSetTooLarge { len: reader.varint()?, max: reader.varint()? },
        6 => CommitError::LongWithChanges { tx: reader.pointer()? },
        7 => CommitError::Overloaded(take_full(reader)?),
        8 => CommitError::NeedChanges { tx: reader.pointer()? },
        9 => CommitError::CheckpointMismatch {
            tx: reader.pointer()?,
            known: reader.varint_u32("number of checkpoints")?,
            named: reader.varint_u32("number of checkpoints")?,
        },
        10 => {
            CommitError::TooManyCheckpoints { tx: reader.pointer()?, max: reader.varint_u32("limit of checkpoints")? }
        }
        code => return Err(DecodeError::UnknownNumber { what: "outcome of a commit", code: u64::from(code) }),
    }))
}

/// A label, if there is one.
pub(crate) fn take_label(reader: &mut Reader<'_>) -> Result<Option<Arc<str>>, DecodeError> {
    Ok(Some(reader.text("label")?).filter(|label| !label.is_empty()).map(Arc::from))
}

/// What each transaction of a commit came to, in the order of the request.
#[derive(Clone, Debug)]
pub struct Outcomes<'a> {
    rest: Reader<'a>,
    last: u64,
    left: usize,
}

impl<'a> Outcomes<'a> {
    pub(crate) fn decode(body: &'a [u8]) -> Result<Outcomes<'a>, DecodeError> {
        let (mut reader, mut last, mut left) = (Reader(body), 0, 0);
        while !reader.is_empty() {
            // The result tells of the transaction; the question mark is about the bytes.
            let _ = take_outcome(&mut reader, &mut last)?;
            left += 1;
        }
        Ok(Outcomes { rest: Reader(body), last: 0, left })
    }
}

impl Iterator for Outcomes<'_> {
    type Item = Result<CommitNumber, CommitError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        take_outcome(&mut self.rest, &mut self.last).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Outcomes<'_> {}

/// What each check or checkpoint of a frame came to, in the order of the request.
#[derive(Clone, Debug)]
pub struct Results<'a, T> {
    rest: Reader<'a>,
    left: usize,
    take: fn(&mut Reader<'a>) -> Result<Result<T, CommitError>, DecodeError>,
}

impl<'a> Results<'a, ()> {
    pub(crate) fn of_checks(body: &'a [u8]) -> Result<Results<'a, ()>, DecodeError> {
        Results::decode(body, |reader| take_commit_error(reader, |_| Ok(())))
    }
}

impl<'a> Results<'a, WritePointer> {
    pub(crate) fn of_checkpoints(body: &'a [u8]) -> Result<Results<'a, WritePointer>, DecodeError> {
        Results::decode(body, |reader| take_commit_error(reader, |reader| reader.pointer()))
    }
}

impl<'a, T> Results<'a, T> {
    fn decode(
        body: &'a [u8],
        take: fn(&mut Reader<'a>) -> Result<Result<T, CommitError>, DecodeError>,
    ) -> Result<Results<'a, T>, DecodeError> {
        let (mut reader, mut left) = (Reader(body), 0);
        while !reader.is_empty() {
            let _ = take(&mut reader)?;
            left += 1;
        }
        Ok(Results { rest: Reader(body), left, take })
    }
}

impl<T> Iterator for Results<'_, T> {
    type Item = Result<T, CommitError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        (self.take)(&mut self.rest).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<T> ExactSizeIterator for Results<'_, T> {}

/// Where each named transaction stands, in the order of the request.
#[derive(Clone, Debug)]
pub struct Statuses<'a> {
    rest: Reader<'a>,
    left: usize,
}

impl<'a> Statuses<'a> {
    pub(crate) fn decode(body: &'a [u8]) -> Result<Statuses<'a>, DecodeError> {
        let (mut reader, mut left) = (Reader(body), 0);
        while !reader.is_empty() {
            take_status(&mut reader)?;
            left += 1;
        }
        Ok(Statuses { rest: Reader(body), left })
    }
}

impl Iterator for Statuses<'_> {
    type Item = Status;

    fn next(&mut self) -> Option<Status> {
        self.left = self.left.checked_sub(1)?;
        take_status(&mut self.rest).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Statuses<'_> {}

/// A yes or no for each named transaction, in the order of the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bools<'a>(&'a [u8]);

impl<'a> Bools<'a> {
    pub(crate) fn decode(body: &'a [u8]) -> Result<Bools<'a>, DecodeError> {
        match body.iter().find(|byte| **byte > 1) {
            None => Ok(Bools(body)),
            Some(byte) => Err(DecodeError::UnknownNumber { what: "yes or no", code: u64::from(*byte) }),
        }
    }

    /// In the order of the request.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = bool> + Clone + 'a {
        self.0.iter().map(|byte| *byte == 1)
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// One of every status and every outcome there is.
#[cfg(test)]
pub(crate) mod examples {
    use super::*;

    pub(crate) fn statuses() -> Vec<Status> {
        use InvalidCause::*;
        let causes = [Asked, Expired, Disconnected, Settled, LongAborted, Unaccounted];
        [Status::Open, Status::Deciding, Status::Committed(CommitNumber(1 << 40))]
            .into_iter()
            .chain([Status::Refused, Status::Aborted, Status::Forgotten])
            .chain(causes.map(Status::Invalid))
            .collect()
    }

    pub(crate) fn begin_errors() -> Vec<BeginError> {
        let full = [Full::Window, Full::OpenTransactions, Full::EventRing, Full::Invalid, Full::Disk];
        [
            BeginError::TimeoutNotPositive,
            BeginError::TimeoutTooLong { asked_ms: u64::MAX, max_ms: 86_400_000 },
            BeginError::BlockSize { asked: 0, max: 1024 },
        ]
        .into_iter()
        .chain(full.map(BeginError::Overloaded))
        .collect()
    }

    pub(crate) fn outcomes() -> Vec<Result<CommitNumber, CommitError>> {
        let tx = WritePointer(1_700_000_000_000_000_005);
        let conflict = |winner: Option<WritePointer>| {
            let label = winner.map(|_| "nightly".into());
            CommitError::Conflict { tx, change_id: u64::MAX, csn: CommitNumber(9), winner, label }
        };
        let mut outcomes = vec![
            Ok(CommitNumber(1_000_000)),
            Ok(CommitNumber(1_000_001)),
            Err(conflict(None)),
            Err(conflict(Some(WritePointer(7)))),
            Ok(CommitNumber(999_000)),
            Err(CommitError::TooOld { tx, snapshot: CommitNumber(4), mark: CommitNumber(1 << 33) }),
            Err(CommitError::Expired { tx }),
            Err(CommitError::ChangeSetTooLarge { len: 1 << 21, max: 1 << 20 }),
            Err(CommitError::LongWithChanges { tx }),
            Err(CommitError::NeedChanges { tx }),
            Err(CommitError::CheckpointMismatch { tx, known: 300, named: 0 }),
            Err(CommitError::TooManyCheckpoints { tx, max: 32_767 }),
        ];
        outcomes.extend(statuses().into_iter().map(|ended| Err(CommitError::NotInProgress { tx, ended })));
        let full = [Full::Window, Full::OpenTransactions, Full::EventRing, Full::Invalid, Full::Disk];
        outcomes.extend(full.map(|full| Err(CommitError::Overloaded(full))));
        outcomes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_reads_back_with_its_values() {
        let (mut body, mut last) = (Vec::new(), 0);
        for outcome in examples::outcomes() {
            put_outcome(&mut body, &outcome, &mut last);
        }
        let read = Outcomes::decode(&body).unwrap();
        assert_eq!(read.len(), examples::outcomes().len());
        assert!(read.eq(examples::outcomes()));
    }

    #[test]
    fn checks_and_checkpoints_read_back_with_their_values() {
        let errors: Vec<CommitError> = examples::outcomes().into_iter().filter_map(Result::err).collect();
        let checks: Vec<_> = [Ok(())].into_iter().chain(errors.iter().cloned().map(Err)).collect();
        let checkpoints: Vec<_> = [Ok(WritePointer(77))].into_iter().chain(errors.into_iter().map(Err)).collect();
        let (mut body, mut other) = (Vec::new(), Vec::new());
        checks.iter().for_each(|check| put_advice(&mut body, check));
        checkpoints.iter().for_each(|checkpoint| put_checkpoint(&mut other, checkpoint));
        assert!(Results::of_checks(&body).unwrap().eq(checks));
        assert!(Results::of_checkpoints(&other).unwrap().eq(checkpoints));
    }

    #[test]
    fn neighbouring_commits_cost_two_bytes() {
        let (mut body, mut last) = (Vec::new(), 0);
        for csn in 5_000_000..5_000_100 {
            put_outcome(&mut body, &Ok(CommitNumber(csn)), &mut last);
        }
        assert!(body.len() <= 2 * 100 + 4, "{}", body.len());
    }

    #[test]
    fn every_status_and_every_refused_begin_reads_back() {
        let mut body = Vec::new();
        for status in examples::statuses() {
            put_status(&mut body, status);
        }
        assert!(Statuses::decode(&body).unwrap().eq(examples::statuses()));
        for error in examples::begin_errors() {
            let mut body = Vec::new();
            put_begin_error(&mut body, &error);
            let mut reader = Reader(&body);
            assert_eq!(take_begin_error(&mut reader), Ok(Some(error)));
            assert!(reader.is_empty());
        }
    }
}
