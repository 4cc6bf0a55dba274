//! A transaction inside its closure: reads at the snapshot, writes into a buffer.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use seriatim_core::{ChangeId, Isolation, Snapshot, WritePointer};

use crate::error::Error;
use crate::key_range::KeyRange;
use crate::predicate::{Predicate, mark};
use crate::read::{Buffer, Entry, Good, Reader, Scan};
use crate::row::Table;
use crate::store::DynStore;

/// The longest value: 16 MiB.
pub const VALUE_BYTES_MAX: usize = 16 << 20;
/// What one transaction may buffer: 64 MiB of keys and values it wrote, and as much of keys that a serializable one
/// read.
pub const TX_BYTES_MAX: usize = 64 << 20;

/// A transaction that is open: what the closure of [`Db::run`](crate::Db::run) works with.
///
/// Nothing it writes reaches the store before the closure has returned.
pub struct Tx<'a> {
    reader: Reader<'a>,
    pointer: WritePointer,
    isolation: Isolation,
    writes: Buffer,
    writes_bytes: usize,
    /// Predicates of what was written, if it is serializable.
    marks: BTreeSet<ChangeId>,
    reads: RefCell<Reads>,
}

/// What a serializable transaction has read.
#[derive(Default)]
pub(crate) struct Reads {
    pub rows: BTreeSet<Vec<u8>>,
    pub ranges: BTreeMap<ChangeId, Predicate>,
    bytes: usize,
}

/// What a transaction leaves for its commit.
pub(crate) struct Touched {
    pub writes: Buffer,
    pub marks: BTreeSet<ChangeId>,
    pub reads: Reads,
}

impl<'a> Tx<'a> {
    pub(crate) fn new(
        store: &'a dyn DynStore,
        snapshot: &'a Snapshot,
        good: Good,
        pointer: WritePointer,
        isolation: Isolation,
    ) -> Tx<'a> {
        Tx {
            reader: Reader { store, snapshot, good },
            pointer,
            isolation,
            writes: Buffer::new(),
            writes_bytes: 0,
            marks: BTreeSet::new(),
            reads: RefCell::default(),
        }
    }

    /// The version under which this transaction writes, and its name.
    pub fn write_pointer(&self) -> WritePointer {
        self.pointer
    }

    /// What this transaction reads from.
    pub fn snapshot(&self) -> &Snapshot {
        self.reader.snapshot
    }

    /// The value of a key: this transaction's own, else the snapshot's.
    ///
    /// # Errors
    /// If the key is too long or the store fails.
    pub fn get(&self, table: &Table, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.entry(table, key)?.map(|entry| entry.value))
    }

    /// The value of a key and who wrote it.
    ///
    /// # Errors
    /// As for [`Tx::get`].
    pub fn entry(&self, table: &Table, key: &[u8]) -> Result<Option<Entry>, Error> {
        let entry = |value, version| Entry { key: key.to_vec(), value, version };
        let row = table.row(key)?;
        if let Some(own) = self.writes.get(&row) {
            return Ok(own.clone().map(|value| entry(value, None)));
        }
        if self.isolation == Isolation::Serializable {
            self.reads.borrow_mut().note_row(&row)?;
        }
        Ok(self.reader.newest(&row)?.map(|(version, value)| entry(value, Some(version))))
    }

    /// The entries of a range of keys, ascending, this transaction's own writes among them. Take `..` for the table.
    ///
    /// Where the transaction is [serializable](Isolation::Serializable) the whole range counts as read, however far the
    /// iterator is taken.
    ///
    /// # Errors
    /// If a bound is too long. A failure of the store comes from the iterator.
    pub fn scan(&self, table: &Table, range: impl KeyRange) -> Result<Scan<'_>, Error> {
        let (start, end) = table.rows(&range)?;
        if self.isolation == Isolation::Serializable && start < end {
            self.reads.borrow_mut().note_range(Predicate::covering(table, &range))?;
        }
        Ok(Scan::new(self.reader, Some(&self.writes), start, end))
    }

    /// Writes a value.
    ///
    /// # Errors
    /// If key, value or transaction are over their limits; the write is not taken then.
    pub fn put(&mut self, table: &Table, key: &[u8], value: &[u8]) -> Result<(), Error> {
        if value.len() > VALUE_BYTES_MAX {
            return Err(Error::ValueTooLong { len: value.len(), max: VALUE_BYTES_MAX });
        }
        self.write(table, key, Some(value.to_vec()))
    }

    /// Deletes a key, whether it is there or not.
    ///
    /// # Errors
    /// If key or transaction are over their limits; the write is not taken then.
    pub fn delete(&mut self, table: &Table, key: &[u8]) -> Result<(), Error> {
        self.write(table, key, None)
    }

    fn write(&mut self, table: &Table, key: &[u8], value: Option<Vec<u8>>) -> Result<(), Error> {
        let row = table.row(key)?;
        let size = |value: &Option<Vec<u8>>| row.len() + value.as_ref().map_or(0, Vec::len);
        let replaced = self.writes.get(&row).map_or(0, size);
        let bytes = self.writes_bytes - replaced + size(&value);
        if bytes > TX_BYTES_MAX {
            return Err(Error::TransactionTooLarge { bytes, max: TX_BYTES_MAX });
        }
        if self.isolation == Isolation::Serializable {
            mark(table, key, &mut self.marks)?;
        }
        self.writes_bytes = bytes;
        self.writes.insert(row, value);
        Ok(())
    }

    /// What was written and what was read, for the commit.
    pub(crate) fn into_touched(self) -> Touched {
        Touched { writes: self.writes, marks: self.marks, reads: self.reads.into_inner() }
    }
}

impl Reads {
    fn note_row(&mut self, row: &[u8]) -> Result<(), Error> {
        if !self.rows.contains(row) {
            self.make_room(row.len())?;
            self.rows.insert(row.to_vec());
        }
        Ok(())
    }

    fn note_range(&mut self, predicate: Predicate) -> Result<(), Error> {
        let id = predicate.id()?;
        if !self.ranges.contains_key(&id) {
            self.make_room(predicate.prefix.len())?;
            self.ranges.insert(id, predicate);
        }
        Ok(())
    }

    fn make_room(&mut self, more: usize) -> Result<(), Error> {
        let bytes = self.bytes + more;
        if bytes > TX_BYTES_MAX {
            return Err(Error::TransactionTooLarge { bytes, max: TX_BYTES_MAX });
        }
        self.bytes = bytes;
        Ok(())
    }
}
