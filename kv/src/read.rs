//! Reading through a snapshot: the newest version of a row that the snapshot holds.

use std::collections::{BTreeMap, btree_map};
use std::time::{Duration, Instant};
use std::vec;

use seriatim_core::{Snapshot, WritePointer};

use crate::error::Error;
use crate::row;
use crate::store::{DynStore, PageLimits, Row, Version, Versions};

/// Versions asked for at first; the newest one is nearly always visible.
const VERSIONS_FIRST: usize = 4;
/// Versions asked for when the first ones are all excluded.
const VERSIONS_MORE: usize = 64;

/// Writes of a transaction that are not in the store yet, by row; `None` deletes.
pub(crate) type Buffer = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// One key of a table and what a reader sees there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
    /// The transaction that wrote it; `None` if it is the reading transaction's own, not yet committed.
    pub version: Option<WritePointer>,
}

/// For how long a snapshot may be read through: past that, versions it holds may have been collected.
#[derive(Clone, Copy)]
pub(crate) struct Good {
    /// Before the snapshot was asked for, so that it is never younger than it looks.
    pub taken: Instant,
    pub age_max: Duration,
}

impl Good {
    /// Asked after the store has answered: nothing was missing from what was read in time.
    fn check(&self) -> Result<(), Error> {
        check_age(self.taken.elapsed(), self.age_max)
    }
}

fn check_age(age: Duration, max: Duration) -> Result<(), Error> {
    if age <= max {
        return Ok(());
    }
    let [age_ms, max_ms] = [age, max].map(|d| d.as_millis() as u64);
    Err(Error::SnapshotTooOld { age_ms, max_ms })
}

/// A store seen through a snapshot.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    pub store: &'a dyn DynStore,
    pub snapshot: &'a Snapshot,
    pub good: Good,
}

impl Reader<'_> {
    /// The newest visible version of a row, a tombstone counted as none.
    pub fn newest(&self, row: &[u8]) -> Result<Option<(WritePointer, Vec<u8>)>, Error> {
        let versions = self.store.versions(row, self.snapshot.read_pointer, VERSIONS_FIRST)?;
        self.good.check()?;
        self.choose(row, versions)
    }

    /// The newest visible one among `versions`, and among the older ones in the store if none of these is.
    fn choose(&self, row: &[u8], mut versions: Versions) -> Result<Option<(WritePointer, Vec<u8>)>, Error> {
        loop {
            let oldest = versions.newest.last().map(|version| version.pointer);
            let visible = |version: &Version| self.snapshot.is_visible(version.pointer);
            if let Some(version) = versions.newest.into_iter().find(visible) {
                return Ok(version.value.map(|value| (version.pointer, value)));
            }
            match oldest {
                Some(oldest) if versions.more && oldest.0 > 0 => {
                    versions = self.store.versions(row, WritePointer(oldest.0 - 1), VERSIONS_MORE)?;
                    self.good.check()?;
                }
                _ => return Ok(None),
            }
        }
    }
}

/// The entries of a range of keys, ascending, read page by page. After an error it ends.
pub struct Scan<'a> {
    reader: Reader<'a>,
    rows: vec::IntoIter<Row>,
    next: Option<Vec<u8>>,
    end: Vec<u8>,
    /// The transaction's own writes within the range.
    own: std::iter::Peekable<btree_map::Range<'a, Vec<u8>, Option<Vec<u8>>>>,
    ahead: Option<Row>,
}

static NO_WRITES: Buffer = BTreeMap::new();

impl<'a> Scan<'a> {
    pub(crate) fn new(reader: Reader<'a>, own: Option<&'a Buffer>, start: Vec<u8>, end: Vec<u8>) -> Scan<'a> {
        let own = own.unwrap_or(&NO_WRITES);
        // An empty range of a BTreeMap must not run backwards.
        let own = if start < end { own.range(start.clone()..end.clone()) } else { NO_WRITES.range(Vec::new()..) };
        let next = (start < end).then_some(start);
        Scan { reader, rows: Vec::new().into_iter(), next, end, own: own.peekable(), ahead: None }
    }

    /// The next row of the store, without consuming it.
    fn peek_row(&mut self) -> Result<Option<&Row>, Error> {
        while self.ahead.is_none() {
            self.ahead = self.rows.next();
            if self.ahead.is_none() {
                let Some(start) = self.next.take() else { break };
                let at_most = self.reader.snapshot.read_pointer;
                let page = self.reader.store.scan(&start, &self.end, at_most, PageLimits::default())?;
                self.reader.good.check()?;
                self.rows = page.rows.into_iter();
                self.next = page.next;
            }
        }
        Ok(self.ahead.as_ref())
    }

    fn advance(&mut self) -> Result<Option<Entry>, Error> {
        loop {
            let own = self.own.peek().map(|(row, _)| *row);
            let stored = self.peek_row()?.map(|stored| &stored.row);
            let own_first = match (own, stored) {
                (None, None) => return Ok(None),
                (Some(own), Some(stored)) => own <= stored,
                (own, _) => own.is_some(),
            };
            if own_first {
                let shadowed = own == stored;
                if shadowed {
                    self.ahead = None;
                }
                if let Some((row, Some(value))) = self.own.next() {
                    let (_, key) = row::split(row)?;
                    return Ok(Some(Entry { key, value: value.clone(), version: None }));
                }
            } else if let Some(Row { row, versions }) = self.ahead.take()
                && let Some((version, value)) = self.reader.choose(&row, versions)?
            {
                let (_, key) = row::split(&row)?;
                return Ok(Some(Entry { key, value, version: Some(version) }));
            }
        }
    }
}

impl Iterator for Scan<'_> {
    type Item = Result<Entry, Error>;

    fn next(&mut self) -> Option<Result<Entry, Error>> {
        let result = self.advance();
        if result.is_err() {
            (self.next, self.ahead, self.rows) = (None, None, Vec::new().into_iter());
            self.own = NO_WRITES.range(Vec::new()..).peekable();
        }
        result.transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_too_late_is_not_taken() {
        let max = Duration::from_secs(60);
        assert!(check_age(max, max).is_ok());
        let late = check_age(max + Duration::from_millis(1), max);
        assert!(matches!(late, Err(Error::SnapshotTooOld { age_ms: 60_001, max_ms: 60_000 })), "{late:?}");
    }
}
