//! A client's part in the history of a run: what each of its transactions saw and did, told while it happens.

use std::sync::{Mutex, PoisonError};

use seriatim_core::{CommitError, CommitNumber, Status};
use seriatim_history::{Interval, Outcome, Row};
use seriatim_kv::{Begun, CommitFailure};

use super::accounts::{Moved, TransferId};
use super::messages::Message;
use super::record;

/// The transaction under way. A client has one at a time.
pub struct Scribe {
    client: u32,
    row: Mutex<Option<Row>>,
}

impl Scribe {
    /// The scribe of the client with this number.
    pub fn new(client: u32) -> Scribe {
        Scribe { client, row: Mutex::new(None) }
    }

    /// A transaction began; its begin was sent at this time.
    pub fn began(&self, sent: u64, begun: &Begun) {
        let begin = Some(Interval { sent, answered: Some(record::now()) });
        let snapshot = Some(record::point(&begun.snapshot));
        let session = Some(u64::from(self.client));
        self.put(Some(Row { tx: Some(begun.tx.0), session, begin, snapshot, ..Row::default() }));
    }

    /// It read, and is about to write. Answers what is to be said of it.
    pub fn moves(&self, id: TransferId, moved: &Moved) -> Option<Message> {
        let mut row = self.take()?;
        row.reads = moved.read.iter().map(|(account, version)| record::read(*account, *version)).collect();
        row.writes = vec![
            record::account_key(moved.transfer.from),
            record::account_key(moved.transfer.to),
            record::ledger_key(id),
        ];
        let message = Message::Opened(record::line(&row));
        self.put(Some(row));
        Some(message)
    }

    /// Its commit, sent at this time, was answered. Answers what is to be said of it: nothing if that is no end.
    pub fn committed(&self, sent: u64, answer: &Result<CommitNumber, CommitFailure>) -> Option<Message> {
        match answer {
            Ok(csn) => self.ended(sent, Outcome::Committed, Some(*csn)),
            Err(CommitFailure::Refused(CommitError::NotInProgress { ended, .. })) => self.settled(sent, *ended),
            Err(CommitFailure::Refused(_)) => self.ended(sent, Outcome::Refused, None),
            Err(CommitFailure::Transport(_)) => self.ended(sent, Outcome::Aborted, None),
            Err(CommitFailure::Unknown(_)) => {
                // Whatever is learned of it later, it was asked for now.
                let row = self.take()?;
                self.put(Some(Row { end: Some(Interval { sent, answered: None }), ..row }));
                None
            }
        }
    }

    /// It was asked at this time what became of it. Answers what is to be said: nothing if that is no end.
    pub fn settled(&self, sent: u64, status: Status) -> Option<Message> {
        match status {
            Status::Committed(csn) => self.ended(sent, Outcome::Committed, Some(csn)),
            Status::Aborted => self.ended(sent, Outcome::Aborted, None),
            Status::Invalid(_) => self.ended(sent, Outcome::Invalid, None),
            Status::Refused => self.ended(sent, Outcome::Refused, None),
            Status::Open | Status::Deciding | Status::Forgotten => None,
        }
    }

    fn ended(&self, sent: u64, outcome: Outcome, csn: Option<CommitNumber>) -> Option<Message> {
        let row = self.take()?;
        let sent = row.end.map_or(sent, |end| end.sent);
        let end = Some(Interval { sent, answered: Some(record::now()) });
        let row = Row { outcome, csn: csn.map(|csn| csn.0), end, ..row };
        Some(Message::Closed(record::line(&row)))
    }

    fn take(&self) -> Option<Row> {
        self.row.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn put(&self, row: Option<Row>) {
        *self.row.lock().unwrap_or_else(PoisonError::into_inner) = row;
    }
}
