//! Rows: how a table's name and a key become one string of bytes that sorts as (table, key) does.
//!
//! ```text
//! row = escaped(table) 00 01 escaped(key) 00 01        escaped: every 00 becomes 00 FF
//! ```
//!
//! No row is a prefix of another, so a store may append a version to a row and keep the order. The encoding is
//! injective: tables and keys that differ have rows that differ, and a row's hash is what the conflict check sees.

use std::ops::Bound;
use std::sync::Arc;

use seriatim_core::ChangeId;

use crate::error::Error;
use crate::key_range::KeyRange;
use crate::store::StoreError;

/// The longest key: 16 KiB. Escaped twice over, a row still fits the 64 KiB that stores like fjall give a key.
pub const KEY_BYTES_MAX: usize = 16 << 10;
/// The longest name of a table: 255 bytes.
pub const TABLE_BYTES_MAX: usize = 255;

const ZERO: [u8; 2] = [0x00, 0xff];
const END: [u8; 2] = [0x00, 0x01];
/// Sorts right behind everything that starts with the same bytes and [`END`], and before every longer key.
const AFTER: [u8; 2] = [0x00, 0x02];
/// Ends the bytes that stand for all keys with a prefix; no row ends so.
const PREFIX: [u8; 2] = [0x00, 0x03];

const _: () = assert!(2 * (TABLE_BYTES_MAX + KEY_BYTES_MAX) + 4 + 8 < 1 << 16); // a row and its version fit a fjall key

/// A named table. Cheap to clone; it holds no connection and may be used with every [`Db`](crate::Db).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Table {
    name: Arc<str>,
    prefix: Arc<[u8]>,
}

impl Table {
    /// The table of this name. Tables need not be created.
    ///
    /// # Panics
    /// If the name is longer than [`TABLE_BYTES_MAX`].
    pub fn new(name: &str) -> Table {
        assert!(name.len() <= TABLE_BYTES_MAX, "a table's name of {} bytes is over {TABLE_BYTES_MAX}", name.len());
        let mut prefix = Vec::with_capacity(name.len() + 2);
        escape(name.as_bytes(), &mut prefix);
        prefix.extend_from_slice(&END);
        Table { name: name.into(), prefix: prefix.into() }
    }

    /// The table's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The key whose row these bytes are, as a [`Store`](crate::Store) sees them; `None` if they are no row of this
    /// table.
    pub fn key_of(&self, row: &[u8]) -> Option<Vec<u8>> {
        let (key, rest) = unescape(row.strip_prefix(&*self.prefix)?)?;
        rest.is_empty().then_some(key)
    }

    /// What the conflict check sees of a key.
    ///
    /// # Errors
    /// If the key is longer than [`KEY_BYTES_MAX`].
    pub fn change_id(&self, key: &[u8]) -> Result<ChangeId, Error> {
        Ok(change_id(&self.row(key)?))
    }

    /// What the conflict check sees of all keys with this prefix.
    pub(crate) fn predicate_id(&self, prefix: &[u8]) -> Result<ChangeId, Error> {
        Ok(change_id(&self.key_ending(prefix, PREFIX)?))
    }

    /// The row of a key.
    pub(crate) fn row(&self, key: &[u8]) -> Result<Vec<u8>, Error> {
        self.key_ending(key, END)
    }

    /// The rows from `start` up to, but not including, `end` that hold exactly the keys in `range`.
    pub(crate) fn rows(&self, range: &impl KeyRange) -> Result<(Vec<u8>, Vec<u8>), Error> {
        let (start, end) = range.bounds();
        let start = match start {
            Bound::Included(key) => self.key_ending(key, END)?,
            Bound::Excluded(key) => self.key_ending(key, AFTER)?,
            Bound::Unbounded => self.prefix.to_vec(),
        };
        let end = match end {
            Bound::Included(key) => self.key_ending(key, AFTER)?,
            Bound::Excluded(key) => self.key_ending(key, END)?,
            Bound::Unbounded => {
                let mut end = self.prefix.to_vec();
                let at = end.len() - AFTER.len();
                end[at..].copy_from_slice(&AFTER);
                end
            }
        };
        Ok((start, end))
    }

    fn key_ending(&self, key: &[u8], ending: [u8; 2]) -> Result<Vec<u8>, Error> {
        if key.len() > KEY_BYTES_MAX {
            return Err(Error::KeyTooLong { table: self.name.to_string(), len: key.len(), max: KEY_BYTES_MAX });
        }
        let mut row = Vec::with_capacity(self.prefix.len() + key.len() + 2);
        row.extend_from_slice(&self.prefix);
        escape(key, &mut row);
        row.extend_from_slice(&ending);
        Ok(row)
    }
}

/// The change id of a row, or of what stands for several.
pub(crate) fn change_id(row: &[u8]) -> ChangeId {
    ChangeId::of(row)
}

/// Table name and key of a row.
pub(crate) fn split(row: &[u8]) -> Result<(String, Vec<u8>), StoreError> {
    let corrupt = || StoreError::Corrupt { what: "row", bytes: row.to_vec() };
    let (table, rest) = unescape(row).ok_or_else(corrupt)?;
    let (key, rest) = unescape(rest).ok_or_else(corrupt)?;
    let table = String::from_utf8(table).map_err(|_| corrupt())?;
    if rest.is_empty() { Ok((table, key)) } else { Err(corrupt()) }
}

fn escape(bytes: &[u8], out: &mut Vec<u8>) {
    let mut parts = bytes.split(|byte| *byte == 0);
    out.extend_from_slice(parts.next().unwrap_or_default());
    for part in parts {
        out.extend_from_slice(&ZERO);
        out.extend_from_slice(part);
    }
}

/// The bytes that were escaped at the start of `row`, and what follows their end mark.
fn unescape(row: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut bytes = Vec::with_capacity(row.len());
    let mut rest = row;
    loop {
        let zero = rest.iter().position(|byte| *byte == 0)?;
        bytes.extend_from_slice(&rest[..zero]);
        match rest.get(zero..zero + 2)? {
            [0, 0xff] => bytes.push(0),
            [0, 0x01] => return Some((bytes, &rest[zero + 2..])),
            _ => return None,
        }
        rest = &rest[zero + 2..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Short strings over the bytes that matter to the escape.
    fn strings() -> Vec<Vec<u8>> {
        let letters = [0x00, 0x01, 0x02, 0xfe, 0xff];
        let mut all = vec![vec![]];
        let mut last = all.clone();
        for _ in 0..4 {
            last = last.iter().flat_map(|s| letters.map(|l| [s.as_slice(), &[l]].concat())).collect();
            all.extend(last.clone());
        }
        all.sort();
        all
    }

    #[test]
    fn rows_sort_as_keys_do_and_come_back() {
        let table = Table::new("a\0b");
        let keys = strings();
        let rows: Vec<Vec<u8>> = keys.iter().map(|key| table.row(key).unwrap()).collect();
        for pair in rows.windows(2) {
            assert!(pair[0] < pair[1], "{:?} must sort before {:?}", pair[0], pair[1]);
            assert!(!pair[1].starts_with(&pair[0]), "{:?} is a prefix of {:?}", pair[0], pair[1]);
        }
        for (key, row) in keys.iter().zip(&rows) {
            assert_eq!(split(row).unwrap(), ("a\0b".to_string(), key.clone()));
            assert_eq!(table.key_of(row).as_ref(), Some(key));
            assert_eq!(Table::new("a").key_of(row), None);
        }
    }

    #[test]
    fn a_range_of_rows_holds_exactly_its_keys() {
        let table = Table::new("t");
        let keys: Vec<Vec<u8>> = strings().into_iter().step_by(7).collect();
        let bounds = |key: &'_ Vec<u8>| [Bound::Included(key.clone()), Bound::Excluded(key.clone()), Bound::Unbounded];
        for (low, high) in keys.iter().step_by(3).flat_map(|l| keys.iter().step_by(5).map(move |h| (l, h))) {
            for range in bounds(low).iter().flat_map(|l| bounds(high).map(move |h| (l.clone(), h))) {
                let (start, end) = table.rows(&range).unwrap();
                for key in &keys {
                    let row = table.row(key).unwrap();
                    let inside = std::ops::RangeBounds::<Vec<u8>>::contains(&range, key);
                    assert_eq!(start <= row && row < end, inside, "{key:?} in {range:?}");
                    // The same with a version behind the row, as stores keep it.
                    let versioned = [row.as_slice(), &[0xff; 8]].concat();
                    assert_eq!(start <= versioned && versioned < end, inside, "{key:?} with a version in {range:?}");
                }
            }
        }
    }

    #[test]
    fn tables_and_keys_do_not_run_into_each_other() {
        let row = |table, key: &[u8]| Table::new(table).row(key).unwrap();
        assert_ne!(row("ab", b"c"), row("a", b"bc"));
        assert_ne!(row("a", b"\0\x01b"), row("a\0\x01b", b""));
        let (start, end) = Table::new("a").rows(&..).unwrap();
        for (table, inside) in [("a", true), ("", false), ("a\0", false), ("aa", false), ("b", false)] {
            let row = row(table, b"key");
            assert_eq!(start <= row && row < end, inside, "table {table:?}");
        }
    }

    #[test]
    fn a_broken_row_is_an_error() {
        for row in
            [&b""[..], b"t", b"t\0\x01", b"t\0\x01k\0", b"t\0\x01k\0\x05", b"t\0\x01k\0\x01more", b"\xff\0\x01k\0\x01"]
        {
            assert!(matches!(split(row), Err(StoreError::Corrupt { .. })), "{row:?}");
        }
    }
}
