//! What the participants of a transaction changed, by key: hashed for the sequencer, remembered for people.

use seriatim_core::{CHANGE_IDS_MAX, ChangeId, ChangeSet, CommitError, Isolation};

use crate::error::Error;

/// Bytes that the keys of one commit may take by default: 64 MiB.
pub const KEY_BYTES_MAX_DEFAULT: u64 = 64 << 20;

/// How a transaction touched a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// It wrote it.
    Written,
    /// It read it, and is serializable.
    Read,
}

/// Collects the keys of one commit from its participants. The sequencer gets their hashes; the keys stay here, so that a
/// conflict can name its key.
///
/// Keys of all participants share one space: what belongs to different tables has to differ, as the keys that
/// [`Cell`](crate::Cell) makes do. A key may be named more than once.
#[derive(Debug)]
pub struct KeyedChanges {
    isolation: Isolation,
    ids: ChangeSet,
    /// The keys, end to end, and where each ends.
    bytes: Vec<u8>,
    keys: Vec<Key>,
    /// Who is being asked.
    participant: usize,
    /// Ids that found no room.
    left_out: u64,
    /// Bytes of all keys that were told, whether they found room or not.
    key_bytes: u64,
    key_bytes_max: u64,
}

#[derive(Clone, Copy, Debug)]
struct Key {
    id: ChangeId,
    end: usize,
    participant: usize,
    access: Access,
}

/// A change id's key, as it was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found<'k> {
    pub key: &'k [u8],
    pub participant: usize,
    pub access: Access,
}

impl KeyedChanges {
    /// An empty collection for a transaction of this isolation, of keys that may take [`KEY_BYTES_MAX_DEFAULT`].
    pub fn new(isolation: Isolation) -> KeyedChanges {
        KeyedChanges {
            isolation,
            ids: ChangeSet::default(),
            bytes: Vec::new(),
            keys: Vec::new(),
            participant: 0,
            left_out: 0,
            key_bytes: 0,
            key_bytes_max: KEY_BYTES_MAX_DEFAULT,
        }
    }

    /// The keys may take so many bytes, each counted as often as it is told.
    #[must_use]
    pub fn with_key_bytes_max(self, key_bytes_max: u64) -> KeyedChanges {
        KeyedChanges { key_bytes_max, ..self }
    }

    /// A key that was written: nobody else may have written it, nor, if they are serializable, have read it.
    pub fn write(&mut self, key: &[u8]) {
        if self.has_room(key) {
            let id = ChangeId::of(key);
            self.ids.writes.push(id);
            self.remember(id, key, Access::Written);
        }
    }

    /// As [`write`](KeyedChanges::write), for who has no key but its hash. A conflict on it names no key.
    pub fn write_id(&mut self, id: ChangeId) {
        if self.has_room(&[]) {
            self.ids.writes.push(id);
        }
    }

    /// A key, or a [mark](KeyedChanges::mark) that stands for many, that was read. Ignored unless the transaction is
    /// serializable.
    pub fn read(&mut self, key: &[u8]) {
        if self.wants_reads() && self.has_room(key) {
            let id = ChangeId::of(key);
            self.ids.reads.push(id);
            self.remember(id, key, Access::Read);
        }
    }

    /// What stands for the written keys with those who read ranges, such as a prefix or a whole table. It meets their
    /// reads, and no writes. Ignored unless the transaction is serializable.
    pub fn mark(&mut self, key: &[u8]) {
        if self.wants_reads() && self.has_room(key) {
            self.ids.marks.push(ChangeId::of(key));
        }
    }

    /// True if the transaction is serializable: reads and marks count.
    pub fn wants_reads(&self) -> bool {
        self.isolation == Isolation::Serializable
    }

    /// What the sequencer gets: every id once, in order.
    ///
    /// # Errors
    /// [`CommitError::ChangeSetTooLarge`] if more were named than one commit may bring, [`Error::KeysTooLarge`] if the keys
    /// take more bytes than they may.
    pub fn to_change_set(&self) -> Result<ChangeSet, Error> {
        let max = CHANGE_IDS_MAX as u64;
        if self.left_out > 0 {
            return Err(CommitError::ChangeSetTooLarge { len: max + self.left_out, max }.into());
        }
        let (bytes, max) = (self.key_bytes, self.key_bytes_max);
        if bytes > max {
            return Err(Error::KeysTooLarge { bytes, max });
        }
        let mut once = self.ids.clone();
        for ids in [&mut once.writes, &mut once.reads, &mut once.marks] {
            ids.sort_unstable();
            ids.dedup();
        }
        Ok(once)
    }

    /// Names the participant, by its place, whose keys come next.
    pub(crate) fn ask(&mut self, participant: usize) {
        self.participant = participant;
    }

    /// The key with this hash, if it was told.
    pub(crate) fn find(&self, id: ChangeId) -> Option<Found<'_>> {
        let at = self.keys.iter().position(|key| key.id == id)?;
        let start = at.checked_sub(1).map_or(0, |before| self.keys[before].end);
        let Key { end, participant, access, .. } = self.keys[at];
        Some(Found { key: &self.bytes[start..end], participant, access })
    }

    fn remember(&mut self, id: ChangeId, key: &[u8], access: Access) {
        self.bytes.extend_from_slice(key);
        self.keys.push(Key { id, end: self.bytes.len(), participant: self.participant, access });
    }

    /// False, and counted, if one more id would be too many, or its key too long.
    fn has_room(&mut self, key: &[u8]) -> bool {
        let room = self.ids.len() < CHANGE_IDS_MAX;
        self.left_out += u64::from(!room);
        self.key_bytes += key.len() as u64;
        room && self.key_bytes <= self.key_bytes_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(isolation: Isolation) -> KeyedChanges {
        let mut changes = KeyedChanges::new(isolation);
        changes.write(b"b");
        changes.ask(1);
        for key in [b"a", b"b", b"b"] {
            changes.write(key);
        }
        changes.read(b"r");
        changes.mark(b"m");
        changes
    }

    fn ids(keys: &[&[u8]]) -> Vec<ChangeId> {
        let mut ids: Vec<ChangeId> = keys.iter().map(|key| ChangeId::of(key)).collect();
        ids.sort();
        ids
    }

    #[test]
    fn reads_and_marks_are_sent_under_serializable_alone() {
        let snapshot = told(Isolation::Snapshot).to_change_set().unwrap();
        assert_eq!(snapshot.writes.to_vec(), ids(&[b"a", b"b"]), "every id once, in order");
        assert!(snapshot.reads.is_empty() && snapshot.marks.is_empty());
        let serializable = told(Isolation::Serializable).to_change_set().unwrap();
        assert_eq!(serializable.writes, snapshot.writes);
        assert_eq!(serializable.reads.to_vec(), ids(&[b"r"]));
        assert_eq!(serializable.marks.to_vec(), ids(&[b"m"]));
    }

    #[test]
    fn a_hash_leads_back_to_its_key_and_who_told_it() {
        let mut changes = told(Isolation::Serializable);
        changes.write_id(ChangeId(7));
        let found = |key: &[u8]| changes.find(ChangeId::of(key)).map(|f| (f.key.to_vec(), f.participant, f.access));
        assert_eq!(found(b"b"), Some((b"b".to_vec(), 0, Access::Written)));
        assert_eq!(found(b"a"), Some((b"a".to_vec(), 1, Access::Written)));
        assert_eq!(found(b"r"), Some((b"r".to_vec(), 1, Access::Read)));
        assert_eq!(found(b"m"), None, "a mark is never what a conflict is about");
        assert_eq!(changes.find(ChangeId(7)), None);
    }

    #[test]
    fn more_ids_than_a_commit_may_bring_are_counted_and_not_kept() {
        let mut changes = KeyedChanges::new(Isolation::Snapshot);
        let max = CHANGE_IDS_MAX as u64;
        (0..max).for_each(|id| changes.write_id(ChangeId(id)));
        assert_eq!(changes.to_change_set().unwrap().len(), CHANGE_IDS_MAX);
        (0..3).for_each(|_| changes.write(b"one more"));
        let expected = CommitError::ChangeSetTooLarge { len: max + 3, max };
        assert!(matches!(changes.to_change_set(), Err(Error::Commit(error)) if error == expected));
        assert!(changes.bytes.is_empty());
    }

    #[test]
    fn bytes_are_counted_as_they_come_and_the_limit_is_inclusive() {
        for isolation in [Isolation::Snapshot, Isolation::Serializable] {
            let mut changes = KeyedChanges::new(isolation).with_key_bytes_max(2048);
            // Twice the same counts twice, and a hash without its key not at all.
            (0..4).for_each(|n| changes.write(&[n; 256]));
            (0..2).for_each(|_| changes.write(&[9; 256]));
            changes.read(&[1; 256]);
            changes.mark(&[2; 256]);
            if isolation == Isolation::Snapshot {
                // Neither of those has counted.
                (0..2).for_each(|n| changes.write(&[n; 256]));
            }
            changes.write_id(ChangeId(7));
            assert!(changes.to_change_set().is_ok(), "2048 bytes under {isolation:?}");
            changes.write(b"1");
            changes.write(b"and one more");
            let (told, kept) = (2048 + 1 + 12, changes.bytes.len());
            assert!(
                matches!(changes.to_change_set(), Err(Error::KeysTooLarge { bytes, max: 2048 }) if bytes == told),
                "under {isolation:?}"
            );
            assert!(kept <= 2048, "what is too much is counted and not kept");
        }
    }
}
