//! What the participants of a transaction changed, by key: hashed for the sequencer, remembered for people.

use seriatim_core::{CHANGE_IDS_MAX, ChangeId, ChangeSet, CommitError, Isolation};

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
    /// An empty collection for a transaction of this isolation.
    pub fn new(isolation: Isolation) -> KeyedChanges {
        KeyedChanges {
            isolation,
            ids: ChangeSet::default(),
            bytes: Vec::new(),
            keys: Vec::new(),
            participant: 0,
            left_out: 0,
        }
    }

    /// A key that was written: nobody else may have written it, nor, if they are serializable, have read it.
    pub fn write(&mut self, key: &[u8]) {
        let id = ChangeId::of(key);
        if self.has_room() {
            self.ids.writes.push(id);
            self.remember(id, key, Access::Written);
        }
    }

    /// As [`write`](KeyedChanges::write), for who has no key but its hash. A conflict on it names no key.
    pub fn write_id(&mut self, id: ChangeId) {
        if self.has_room() {
            self.ids.writes.push(id);
        }
    }

    /// A key, or a [mark](KeyedChanges::mark) that stands for many, that was read. Ignored unless the transaction is
    /// serializable.
    pub fn read(&mut self, key: &[u8]) {
        if self.wants_reads() && self.has_room() {
            let id = ChangeId::of(key);
            self.ids.reads.push(id);
            self.remember(id, key, Access::Read);
        }
    }

    /// What stands for the written keys with those who read ranges, such as a prefix or a whole table. It meets their
    /// reads, and no writes. Ignored unless the transaction is serializable.
    pub fn mark(&mut self, key: &[u8]) {
        if self.wants_reads() && self.has_room() {
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
    /// [`CommitError::ChangeSetTooLarge`] if more were named than one commit may bring.
    pub fn to_change_set(&self) -> Result<ChangeSet, CommitError> {
        let max = CHANGE_IDS_MAX as u64;
        if self.left_out > 0 {
            return Err(CommitError::ChangeSetTooLarge { len: max + self.left_out, max });
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

    /// False, and counted, if one more id would be too many.
    fn has_room(&mut self) -> bool {
        let room = self.ids.len() < CHANGE_IDS_MAX;
        self.left_out += u64::from(!room);
        room
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
        assert_eq!(changes.to_change_set(), Err(CommitError::ChangeSetTooLarge { len: max + 3, max }));
        assert!(changes.bytes.is_empty());
    }
}
