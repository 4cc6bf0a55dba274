//! The many things that one frame names: pointers, and commits with their change sets.

use seriatim_core::event::IdBytes;
use seriatim_core::{ChangeId, ChangeIds, ChangeSet, Changes, Submission, WritePointer};

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
const FLAG_CHECKPOINTS: u8 = 4;
const FLAG_CHECKED: u8 = 8;

/// One transaction that asks to commit, its ids where they lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommitItem<'a> {
    /// The transaction.
    pub tx: WritePointer,
    /// Checkpoints that the client knows of.
    pub checkpoints: u32,
    /// Digest of a change set that was checked before and stands for the lists, which are empty then.
    pub checked: Option<u64>,
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
pub fn commit_item_bytes<'c>(submission: impl Into<Submission<'c>>) -> usize {
    const COUNT_BYTES: usize = 5;
    let bytes = match submission.into().changes {
        Changes::Given(changes) => 3 * COUNT_BYTES + 8 * changes.len(),
        Changes::Checked(_) => 8,
    };
    8 + 1 + COUNT_BYTES + bytes
}

/// Appends one transaction to the body of a commit or a check.
pub fn put_commit_item<'c>(body: &mut Vec<u8>, tx: WritePointer, submission: impl Into<Submission<'c>>) {
    let Submission { changes, checkpoints } = submission.into();
    put_u64(body, tx.0);
    let place = body.len();
    body.push(0);
    let mut flags = 0;
    if checkpoints > 0 {
        flags |= FLAG_CHECKPOINTS;
        put_varint(body, u64::from(checkpoints));
    }
    match changes {
        Changes::Given(changes) => flags |= put_changes(body, changes),
        Changes::Checked(digest) => {
            flags |= FLAG_CHECKED;
            put_u64(body, digest);
        }
    }
    body[place] = flags;
}

/// Appends the lists of a change set; the flags that say which there are.
fn put_changes(body: &mut Vec<u8>, changes: &ChangeSet) -> u8 {
    let ChangeSet { writes, reads, marks } = changes;
    put_varint(body, writes.len() as u64);
    for list in [reads, marks] {
        if !list.is_empty() {
            put_varint(body, list.len() as u64);
        }
    }
    for id in writes.iter().chain(reads).chain(marks) {
        put_u64(body, id.0);
    }
    (if reads.is_empty() { 0 } else { FLAG_READS }) | (if marks.is_empty() { 0 } else { FLAG_MARKS })
}

fn take_commit_item<'a>(reader: &mut Reader<'a>) -> Result<CommitItem<'a>, DecodeError> {
    let tx = reader.pointer()?;
    let flags = reader.u8()?;
    // What was checked before has its lists already.
    let both = flags & FLAG_CHECKED != 0 && flags & (FLAG_READS | FLAG_MARKS) != 0;
    if flags & !(FLAG_READS | FLAG_MARKS | FLAG_CHECKPOINTS | FLAG_CHECKED) != 0 || both {
        return Err(DecodeError::UnknownFlags { what: "commit item", flags: u32::from(flags) });
    }
    let checkpoints = if flags & FLAG_CHECKPOINTS != 0 { reader.varint_u32("number of checkpoints")? } else { 0 };
    if flags & FLAG_CHECKED != 0 {
        let (checked, none) = (Some(reader.u64()?), IdBytes::new(&[]));
        return Ok(CommitItem { tx, checkpoints, checked, writes: none, reads: none, marks: none });
    }
    let writes = reader.varint()?;
    let reads = if flags & FLAG_READS != 0 { reader.varint()? } else { 0 };
    let marks = if flags & FLAG_MARKS != 0 { reader.varint()? } else { 0 };
    Ok(CommitItem {
        tx,
        checkpoints,
        checked: None,
        writes: IdBytes::new(reader.words(writes)?),
        reads: IdBytes::new(reader.words(reads)?),
        marks: IdBytes::new(reader.words(marks)?),
    })
}

/// Appends one checkpoint to a request for them.
pub fn put_checkpoint_item(body: &mut Vec<u8>, tx: WritePointer, number: u32) {
    put_u64(body, tx.0);
    put_varint(body, u64::from(number));
}

/// The checkpoints of a request, checked as a whole and walked without an allocation.
#[derive(Clone, Debug)]
pub struct Checkpoints<'a> {
    rest: Reader<'a>,
    left: usize,
}

impl<'a> Checkpoints<'a> {
    pub(crate) fn decode(body: &'a [u8]) -> Result<Checkpoints<'a>, DecodeError> {
        let (mut reader, mut left) = (Reader(body), 0);
        while !reader.is_empty() {
            take_checkpoint_item(&mut reader)?;
            left += 1;
        }
        Ok(Checkpoints { rest: Reader(body), left })
    }
}

fn take_checkpoint_item(reader: &mut Reader<'_>) -> Result<(WritePointer, u32), DecodeError> {
    Ok((reader.pointer()?, reader.varint_u32("number of a checkpoint")?))
}

impl Iterator for Checkpoints<'_> {
    type Item = (WritePointer, u32);

    fn next(&mut self) -> Option<(WritePointer, u32)> {
        self.left = self.left.checked_sub(1)?;
        take_checkpoint_item(&mut self.rest).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Checkpoints<'_> {}

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

    /// The items of a check, which bring their changes and count no checkpoints.
    pub(crate) fn of_checks(body: &'a [u8]) -> Result<CommitItems<'a>, DecodeError> {
        let items = CommitItems::decode(body)?;
        let wrong = |item: CommitItem<'_>| item.checked.is_some() || item.checkpoints > 0;
        if items.clone().any(wrong) {
            let flags = u32::from(FLAG_CHECKED | FLAG_CHECKPOINTS);
            return Err(DecodeError::UnknownFlags { what: "item of a check", flags });
        }
        Ok(items)
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
    fn checkpoints_and_a_digest_read_back_and_exclude_lists() {
        let set = change_set(2, 1, 0);
        let submissions = [
            Submission { changes: Changes::Checked(u64::MAX), checkpoints: 0 },
            Submission { changes: Changes::Given(&set), checkpoints: 300 },
            Submission { changes: Changes::Checked(7), checkpoints: 32_767 },
        ];
        let mut body = Vec::new();
        for submission in submissions {
            let before = body.len();
            put_commit_item(&mut body, WritePointer(9), submission);
            assert!(body.len() - before <= commit_item_bytes(submission));
        }
        let items: Vec<_> = CommitItems::decode(&body).unwrap().collect();
        assert_eq!(items.iter().map(|item| item.checkpoints).collect::<Vec<_>>(), [0, 300, 32_767]);
        assert_eq!(items.iter().map(|item| item.checked).collect::<Vec<_>>(), [Some(u64::MAX), None, Some(7)]);
        assert_eq!(items[1].change_set(), set);
        body.truncate(17);
        body[8] |= FLAG_READS;
        assert!(matches!(CommitItems::decode(&body), Err(DecodeError::UnknownFlags { .. })));
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
