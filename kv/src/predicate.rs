//! Predicates: what stands for a range of keys in the conflict check, which knows nothing but single ids.
//!
//! ```text
//! a write of "accounts/7/open" marks     ""  "acco"  "accounts"                  its prefixes of 0, 4, 8, 16, 32 bytes
//! a scan of "accounts/".."accounts0"     reads       "accounts"                  the longest of them that covers the scan
//! ```
//!
//! A key belongs to a predicate for each of these lengths that it has; the one of no bytes is the table. A serializable
//! writer stores marks for all predicates of its keys, and a serializable reader of a range has one predicate checked to
//! which every key of the range belongs, whether it is there yet or not: so a phantom is refused. Whoever writes next to
//! the range, under the same predicate, is refused as well, which costs an attempt and no more.

use std::collections::BTreeSet;
use std::ops::Bound;

use seriatim_core::ChangeId;

use crate::error::Error;
use crate::key_range::KeyRange;
use crate::row::Table;

/// Lengths of the prefixes that are marked. One mark per written key and length, but those that written keys share count
/// once. A fixed list, for readers and writers of a table have to mean the same.
const PREFIX_BYTES: [usize; 5] = [0, 4, 8, 16, 32];

/// All keys of a table that start with these bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Predicate {
    pub table: Table,
    pub prefix: Vec<u8>,
}

impl Predicate {
    /// The narrowest predicate to which every key of the range belongs.
    pub fn covering(table: &Table, range: &impl KeyRange) -> Predicate {
        let shared = shared_prefix(range.bounds());
        let longest = PREFIX_BYTES.into_iter().rfind(|len| *len <= shared.len()).unwrap_or_default();
        Predicate { table: table.clone(), prefix: shared[..longest].to_vec() }
    }

    /// What the conflict check sees of it.
    pub fn id(&self) -> Result<ChangeId, Error> {
        self.table.predicate_id(&self.prefix)
    }
}

/// Adds a key's predicates.
pub(crate) fn mark(table: &Table, key: &[u8], marks: &mut BTreeSet<ChangeId>) -> Result<(), Error> {
    for len in PREFIX_BYTES {
        let Some(prefix) = key.get(..len) else { break };
        marks.insert(table.predicate_id(prefix)?);
    }
    Ok(())
}

/// Bytes with which every key within the bounds is sure to start.
fn shared_prefix<'k>((start, end): (Bound<&'k [u8]>, Bound<&'k [u8]>)) -> &'k [u8] {
    let (Bound::Included(first) | Bound::Excluded(first)) = start else { return &[] };
    let (Bound::Included(last) | Bound::Excluded(last)) = end else { return &[] };
    let mut shared = first.iter().zip(last).take_while(|(a, b)| a == b).count();
    // "ab".."ac" are the keys that start with "ab": what differs differs by one, and nothing follows it.
    if let (Bound::Excluded(_), Some(one), [next]) = (end, first.get(shared), &last[shared..])
        && one.checked_add(1) == Some(*next)
    {
        shared += 1;
    }
    &first[..shared]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covering(range: impl KeyRange) -> Vec<u8> {
        Predicate::covering(&Table::new("t"), &range).prefix
    }

    #[test]
    fn a_range_is_covered_as_closely_as_a_marked_length_allows() {
        assert_eq!(covering(..), b"");
        assert_eq!(covering("accounts"..), b"", "there is no telling how far it goes");
        assert_eq!(covering(.."accounts"), b"");
        assert_eq!(covering("acc".."acd"), b"");
        assert_eq!(covering("acco".."accp"), b"acco", "written as the end of a prefix");
        assert_eq!(covering("acco".."accq"), b"");
        assert_eq!(covering("acco"..="accp"), b"", "with its end, it holds a key that starts otherwise");
        assert_eq!(covering("accounts/1".."accounts/2"), b"accounts");
        assert_eq!(covering("accounts/1"..="accounts/999"), b"accounts");
        assert_eq!(covering("accounts/1".."accounts/10"), b"accounts");
        assert_eq!(covering([0xff; 8].to_vec()..=[0xff; 9].to_vec()), [0xff; 8]);
    }

    #[test]
    fn every_key_of_a_range_is_marked_with_what_covers_the_range() {
        for seed in 0..20_000_u64 {
            let mut dice = fastrand::Rng::with_seed(seed);
            // Keys that have long beginnings in common, and bytes at both ends of what a byte can be.
            let stem: Vec<u8> = (0..dice.usize(..40)).map(|_| dice.choice([0, 1, 0xff]).unwrap()).collect();
            let mut key = || {
                let mut key = stem[..dice.usize(..=stem.len())].to_vec();
                key.extend((0..dice.usize(..3)).map(|_| dice.choice([0_u8, 1, 2, 0xfe, 0xff]).unwrap()));
                key
            };
            let (key, low, high) = (key(), key(), key());
            let bound = |key: Vec<u8>, which| match which {
                0 => Bound::Included(key),
                1 => Bound::Excluded(key),
                _ => Bound::Unbounded,
            };
            let range = (bound(low, dice.u8(..3)), bound(high, dice.u8(..3)));
            if std::ops::RangeBounds::<Vec<u8>>::contains(&range, &key) {
                let table = Table::new("t");
                let mut marks = BTreeSet::new();
                mark(&table, &key, &mut marks).unwrap();
                let read = Predicate::covering(&table, &range).id().unwrap();
                assert!(marks.contains(&read), "seed {seed}: {key:02x?} in {range:02x?}");
            }
        }
    }

    #[test]
    fn predicates_rows_and_tables_are_told_apart() {
        let mut ids = BTreeSet::new();
        for table in ["", "t", "tt"].map(Table::new) {
            for key in [&b""[..], b"tttt", b"tttttttt"] {
                ids.insert(table.change_id(key).unwrap());
                mark(&table, key, &mut ids).unwrap();
            }
        }
        // For each table three rows, and the predicates of 0, 4 and 8 bytes.
        assert_eq!(ids.len(), 3 * (3 + 3));
    }
}
