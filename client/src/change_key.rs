//! Keys for the conflict check of table-like participants: what counts as the same thing, and bytes that never collide.
//!
//! ```text
//! key = level  len table  len row                                Row: 1
//!     = level  len table  len row  len family  len qualifier     Column: 2
//! ```
//!
//! Every part has its length in front, in groups of seven bits, the lowest first. So what differs in any part has different
//! bytes: family `b` with qualifier `cd` is not family `bc` with qualifier `d`, as it would be if the parts were only put
//! end to end.

/// What two transactions have to share to be in conflict. All who write to a table have to use the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum ConflictLevel {
    /// A row.
    Row,
    /// A column of a row.
    #[default]
    Column,
    /// Nothing: whoever writes last wins, and an abort rolls back all the same.
    None,
}

/// A place in a table. Tables without families or qualifiers leave them empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Cell<'c> {
    /// The table's name; unique among all that share a sequencer.
    pub table: &'c [u8],
    /// The row's key.
    pub row: &'c [u8],
    /// The column's family.
    pub family: &'c [u8],
    /// The column's name in its family.
    pub qualifier: &'c [u8],
}

const ROW: u8 = 1;
const COLUMN: u8 = 2;

impl ConflictLevel {
    /// The key under which a write to this cell is [told](crate::KeyedChanges::write); `None` if it is not.
    pub fn key(self, cell: Cell<'_>) -> Option<Vec<u8>> {
        let Cell { table, row, family, qualifier } = cell;
        match self {
            ConflictLevel::Row => Some(key_of(ROW, &[table, row])),
            ConflictLevel::Column => Some(key_of(COLUMN, &[table, row, family, qualifier])),
            ConflictLevel::None => None,
        }
    }
}

impl<'c> Cell<'c> {
    /// The cell that a key stands for, without its column if it stands for a row: what a conflict was about. `None` if a
    /// [`ConflictLevel`] has not made it.
    pub fn of_key(key: &'c [u8]) -> Option<Cell<'c>> {
        let (level, mut rest) = key.split_first()?;
        let mut next = || {
            let (part, after) = take_part(rest)?;
            rest = after;
            Some(part)
        };
        let (table, row) = (next()?, next()?);
        let (family, qualifier) = match *level {
            ROW => (&[][..], &[][..]),
            COLUMN => (next()?, next()?),
            _ => return None,
        };
        rest.is_empty().then_some(Cell { table, row, family, qualifier })
    }
}

fn key_of(level: u8, parts: &[&[u8]]) -> Vec<u8> {
    // Lengths below 2^14 take up to two bytes each, and longer ones are rare.
    let mut key = Vec::with_capacity(1 + parts.iter().map(|part| part.len() + 2).sum::<usize>());
    key.push(level);
    for part in parts {
        let mut len = part.len();
        while len >= 0x80 {
            key.push(len as u8 | 0x80);
            len >>= 7;
        }
        key.push(len as u8);
        key.extend_from_slice(part);
    }
    key
}

/// A part from the front, and what comes after it.
fn take_part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let last = bytes.iter().position(|byte| byte & 0x80 == 0)?;
    let (prefix, rest) = bytes.split_at(last + 1);
    let mut len: usize = 0;
    for byte in prefix.iter().rev() {
        len = len.checked_mul(0x80)? | usize::from(byte & 0x7f);
    }
    rest.split_at_checked(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell<'c>(row: &'c str, family: &'c str, qualifier: &'c str) -> Cell<'c> {
        Cell { table: b"t", row: row.as_bytes(), family: family.as_bytes(), qualifier: qualifier.as_bytes() }
    }

    #[test]
    fn parts_that_run_together_make_different_keys() {
        let column = |row, family, qualifier| ConflictLevel::Column.key(cell(row, family, qualifier)).unwrap();
        // End to end, the first two would be the same.
        assert_ne!(column("e", "bc", "d"), column("e", "b", "cd"));
        assert_ne!(column("ab", "c", ""), column("a", "bc", ""));
        let row = |table: &[u8], row: &[u8]| ConflictLevel::Row.key(Cell { table, row, ..Cell::default() }).unwrap();
        assert_ne!(row(b"ab", b"c"), row(b"a", b"bc"));
        assert_ne!(row(b"t", b"a"), column("a", "", ""), "a row is not the column without a name");
    }

    #[test]
    fn rows_share_a_key_columns_do_not_and_none_has_none() {
        let key = |level: ConflictLevel, qualifier| level.key(cell("r", "f", qualifier));
        assert_eq!(key(ConflictLevel::Row, "a"), key(ConflictLevel::Row, "b"));
        assert_ne!(key(ConflictLevel::Column, "a"), key(ConflictLevel::Column, "b"));
        assert_eq!(key(ConflictLevel::None, "a"), None);
        assert_eq!(ConflictLevel::default(), ConflictLevel::Column);
    }

    #[test]
    fn a_key_leads_back_to_its_cell_whatever_its_lengths() {
        let long = "x".repeat(40_000);
        for part in ["", "a", "\0\u{1}\u{7f}", &long[..127], &long[..128], &long[..16_384], &long] {
            for cell in [cell(part, "f", "q"), cell("r", part, "q"), cell("r", "f", part)] {
                let key = ConflictLevel::Column.key(cell).unwrap();
                assert_eq!(Cell::of_key(&key), Some(cell));
                let row = ConflictLevel::Row.key(cell).unwrap();
                assert_eq!(Cell::of_key(&row), Some(Cell { family: b"", qualifier: b"", ..cell }));
                assert_eq!(Cell::of_key(&key[..key.len() - 1]), None, "cut short");
            }
        }
        for foreign in
            [&b""[..], b"\x01", b"\x03\x01t\x01r", b"\x01\x01t\x01r!", &[1, 0xff, 0xff], &[1; 3], &[0xff; 40]]
        {
            assert_eq!(Cell::of_key(foreign), None, "{foreign:?}");
        }
    }
}
