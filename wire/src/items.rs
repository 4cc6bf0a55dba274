//! The many things that one frame names: pointers, and commits with their change sets.

use seriatim_core::event::IdBytes;
use seriatim_core::{ChangeId, ChangeIds, ChangeSet, WritePointer};

use crate::bytes::{Reader, put_u64, put_varint};
use crate::error::DecodeError;

/// Pointers where they lie, 8 bytes each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pointers<'a>(&'a [[u8; 8]]);

impl<'a> Pointers<'a> {
    pub(crate) fn decode(body: &'a [u8]) -> Result<Pointers<'a>, DecodeError> {
        let (pointers, rest) = body.as_chunks();
        if rest.is_empty() { Ok(Pointers(pointers)) } else { Err(DecodeError::TooShort) }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// In the order in which the reply answers them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = WritePointer> + Clone + 'a {
        self.0.iter().map(|bytes| WritePointer(u64::from_le_bytes(*bytes)))
    }
}

const FLAG_READS: u8 = 1;
const FLAG_MARKS: u8 = 2;

/// One transaction that asks to commit, its ids where they lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommitItem<'a> {
    /// The transaction.
    pub tx: WritePointer,
    /// See [`ChangeSet::writes`].
    pub writes: IdBytes<'a>,
    /// See [`ChangeSet::reads`].
    pub reads: IdBytes<'a>,
    /// See [`ChangeSet::marks`].
    pub marks: IdBytes<'a>,
}

impl CommitItem<'_> {
    /// The change set in memory of its own; up to eight ids in a list need no allocation.
    pub fn change_set(&self) -> ChangeSet {
        ChangeSet { writes: ids_of(self.writes), reads: ids_of(self.reads), marks: ids_of(self.marks) }
    }
}

/// Ids in memory of their own. Few are the rule, and to fill an array is four times cheaper than to collect.
fn ids_of(bytes: IdBytes<'_>) -> ChangeIds {
    let ids = bytes.iter();
    let mut few = [ChangeId(0); 8];
    if ids.len() > few.len() {
        return ids.collect();
    }
    let len = ids.len();
    for (place, id) in few.iter_mut().zip(ids) {
        *place = id;
    }
    ChangeIds::from_buf_and_len(few, len)
}

/// Bytes that one transaction takes in a commit's body, at most.
pub fn commit_item_bytes(changes: &ChangeSet) -> usize {
    const COUNT_BYTES: usize = 5;
    8 + 1 + 3 * COUNT_BYTES + 8 * changes.len()
}

/// Appends one transaction to a commit's body.
pub fn put_commit_item(body: &mut Vec<u8>, tx: WritePointer, changes: &ChangeSet) {
    let ChangeSet { writes, reads, marks } = changes;
    put_u64(body, tx.0);
    body.push(if reads.is_empty() { 0 } else { FLAG_READS } | if marks.is_empty() { 0 } else { FLAG_MARKS });
    put_varint(body, writes.len() as u64);
    for list in [reads, marks] {
        if !list.is_empty() {
            put_varint(body, list.len() as u64);
        }
    }
    for id in writes.iter().chain(reads).chain(marks) {
        put_u64(body, id.0);
    }
}

fn take_commit_item<'a>(reader: &mut Reader<'a>) -> Result<CommitItem<'a>, DecodeError> {
    let tx = reader.pointer()?;
    let flags = reader.u8()?;
    if flags & !(FLAG_READS | FLAG_MARKS) != 0 {
        return Err(DecodeError::UnknownFlags { what: "commit item", flags: u32::from(flags) });
    }
    let writes = reader.varint()?;
    let reads = if flags & FLAG_READS != 0 { reader.varint()? } else { 0 };
    let marks = if flags & FLAG_MARKS != 0 { reader.varint()? } else { 0 };
    Ok(CommitItem {
        tx,
        writes: IdBytes::new(reader.words(writes)?),
        reads: IdBytes::new(reader.words(reads)?),
        marks: IdBytes::new(reader.words(marks)?),
    })
}

/// The transactions of a commit, checked as a whole and walked without an allocation.
#[derive(Clone, Debug)]
pub struct CommitItems<'a> {
    rest: Reader<'a>,
    left: usize,
}

impl<'a> CommitItems<'a> {
    pub(crate) fn decode(body: &'a [u8]) -> Result<CommitItems<'a>, DecodeError> {
        let (mut reader, mut left) = (Reader(body), 0);
        while !reader.is_empty() {
            take_commit_item(&mut reader)?;
            left += 1;
        }
        Ok(CommitItems { rest: Reader(body), left })
    }
}

impl<'a> Iterator for CommitItems<'a> {
    type Item = CommitItem<'a>;

    fn next(&mut self) -> Option<CommitItem<'a>> {
        self.left = self.left.checked_sub(1)?;
        take_commit_item(&mut self.rest).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for CommitItems<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    fn change_set(writes: u64, reads: u64, marks: u64) -> ChangeSet {
        let ids = |first: u64, n: u64| (first..first + n).map(ChangeId).collect::<ChangeIds>();
        ChangeSet { writes: ids(1 << 60, writes), reads: ids(2 << 60, reads), marks: ids(3 << 60, marks) }
    }

    #[test]
    fn items_read_back_as_they_were_written() {
        let sets: Vec<ChangeSet> = [(0, 0, 0), (4, 0, 0), (0, 3, 0), (1, 0, 2), (300, 200, 100), (2, 1, 1)]
            .map(|(w, r, m)| change_set(w, r, m))
            .into();
        let mut body = Vec::new();
        for (tx, set) in sets.iter().enumerate() {
            let before = body.len();
            put_commit_item(&mut body, WritePointer(tx as u64), set);
            assert!(body.len() - before <= commit_item_bytes(set));
        }
        let items = CommitItems::decode(&body).unwrap();
        assert_eq!(items.len(), sets.len());
        for (tx, (item, set)) in items.zip(&sets).enumerate() {
            assert_eq!((item.tx, &item.change_set()), (WritePointer(tx as u64), set));
        }
    }

    #[test]
    fn a_count_beyond_the_bytes_is_refused_before_the_first_item_is_handed_out() {
        let mut body = Vec::new();
        put_commit_item(&mut body, WritePointer(1), &change_set(2, 0, 0));
        put_commit_item(&mut body, WritePointer(2), &change_set(0, 0, 0));
        *body.last_mut().unwrap() = 1;
        assert_eq!(CommitItems::decode(&body).err(), Some(DecodeError::TooShort));
        body.pop();
        put_varint(&mut body, u64::MAX);
        assert_eq!(CommitItems::decode(&body).err(), Some(DecodeError::TooShort));
    }
}
