//! Records: kind, length, payload. What a kind means is the caller's.

use crate::lsn::Lsn;

/// One record of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// Its number.
    pub lsn: Lsn,
    /// What the caller gave; the log does not look at it.
    pub kind: u8,
    /// What the caller gave.
    pub payload: &'a [u8],
}

/// A record's bytes beside its payload, at most: the kind and a five-byte length.
pub(crate) const RECORD_OVERHEAD_MAX: usize = 6;

/// How many bytes a record takes.
pub(crate) fn record_bytes(payload_bytes: usize) -> usize {
    let length_bytes = match payload_bytes {
        0..0x80 => 1,
        0x80..0x4000 => 2,
        0x4000..0x20_0000 => 3,
        0x20_0000..0x1000_0000 => 4,
        _ => 5,
    };
    1 + length_bytes + payload_bytes
}

/// Writes a record at the front of `out`, which holds [`record_bytes`] at least.
pub(crate) fn put_record(out: &mut [u8], kind: u8, payload: &[u8]) {
    out[0] = kind;
    let mut at = 1;
    let mut length = u32::try_from(payload.len()).expect("a payload within the record limit");
    while length >= 0x80 {
        out[at] = length as u8 | 0x80;
        length >>= 7;
        at += 1;
    }
    out[at] = length as u8;
    out[at + 1..at + 1 + payload.len()].copy_from_slice(payload);
}

/// Takes the record off the front of `bytes`; `None` if they are no record.
fn take_record<'a>(bytes: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (kind, mut rest) = bytes.split_first()?;
    let mut length = 0u64;
    for shift in (0..35).step_by(7) {
        let (byte, after) = rest.split_first()?;
        rest = after;
        length |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            let (payload, after) = rest.split_at_checked(usize::try_from(length).ok()?)?;
            *bytes = after;
            return Some((*kind, payload));
        }
    }
    None
}

/// Whether `payload` is exactly `count` records.
pub(crate) fn are_records(mut payload: &[u8], count: u32) -> bool {
    let mut seen = 0u32;
    while !payload.is_empty() {
        if seen == count || take_record(&mut payload).is_none() {
            return false;
        }
        seen += 1;
    }
    seen == count
}

/// The records of a group in order.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    next: Lsn,
    bytes: &'a [u8],
}

impl<'a> Records<'a> {
    pub(crate) fn new(first: Lsn, payload: &'a [u8]) -> Records<'a> {
        Records { next: first, bytes: payload }
    }

    /// Leaves out what lies at or below `lsn`.
    pub(crate) fn after(mut self, lsn: Lsn) -> Records<'a> {
        while self.next <= lsn && self.next().is_some() {}
        self
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        if self.bytes.is_empty() {
            return None;
        }
        // A group is looked at only after its digest and its framing were checked, or right where it was built.
        let (kind, payload) = take_record(&mut self.bytes).expect("records of a checked group");
        let lsn = self.next;
        self.next = lsn.plus(1);
        Some(Record { lsn, kind, payload })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_read_back_at_every_length_of_their_length() {
        for bytes in [0usize, 1, 0x7f, 0x80, 0x3fff, 0x4000, 0x1f_ffff, 0x20_0000] {
            let payload = vec![0x5a; bytes];
            let mut out = vec![0xff; record_bytes(bytes)];
            put_record(&mut out, 9, &payload);
            assert!(are_records(&out, 1));
            assert!(!are_records(&out, 2));
            let read: Vec<_> = Records::new(Lsn(3), &out).collect();
            assert_eq!(read, [Record { lsn: Lsn(3), kind: 9, payload: &payload[..] }]);
        }
    }

    #[test]
    fn a_cut_or_endless_record_is_none() {
        let mut out = vec![0; record_bytes(200)];
        put_record(&mut out, 1, &[7; 200]);
        for cut in 1..out.len() {
            assert!(!are_records(&out[..cut], 1), "cut at {cut}");
        }
        assert!(!are_records(&[1, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00], 1));
        assert!(!are_records(&[1, 0xff, 0xff, 0xff, 0xff, 0x7f], 1));
        assert!(are_records(&[], 0));
    }
}
