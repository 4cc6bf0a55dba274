//! Snapshot isolation by commit numbers: every read returned what its snapshot holds, the first committer won, and the
//! numbers of a transaction agree with each other. Linear but for a binary search per read.

use crate::anomaly::Kind;
use crate::findings::{Findings, member};
use crate::history::{Access, History, Transaction};
use crate::versions::{Known, Source, Versions};

/// Judges what is numbered.
pub fn judge(history: &History, versions: &Versions, findings: &mut Findings<'_>) {
    for (number, tx) in history.transactions() {
        own_numbers(history, number, tx, findings);
        let range = history.read_range(number);
        for (read, source) in history.reads()[range.clone()].iter().zip(versions.sources(range)) {
            Reading { history, versions, reader: number, read }.judge(*source, findings);
        }
    }
    unique(history, Kind::DuplicatePointer, |tx| tx.pointer, findings);
    unique(history, Kind::DuplicateCsn, |tx| tx.csn, findings);
    if versions.is_numbered() {
        (0..history.keys() as u32).for_each(|key| neighbours(history, versions, key, findings));
    }
}

fn own_numbers(history: &History, number: u32, tx: &Transaction, findings: &mut Findings<'_>) {
    let pairs = [
        ("write pointer", tx.pointer, "the read pointer of its snapshot", tx.snapshot.read_pointer),
        ("commit number", tx.csn, "that of its snapshot", tx.snapshot.csn),
    ];
    for (ours, above, theirs, below) in pairs {
        if let (Some(above), Some(below)) = (above, below)
            && above <= below
        {
            findings.add(Kind::BadNumbers, &[number], &[], || {
                let tx = member(history, number);
                format!("the {ours} of {tx}, {above}, is not above {theirs}, {below}")
            });
        }
    }
}

fn unique(history: &History, kind: Kind, value: impl Fn(&Transaction) -> Option<u64>, findings: &mut Findings<'_>) {
    let mut values: Vec<(u64, u32)> =
        history.transactions().filter_map(|(number, tx)| Some((value(tx)?, number))).collect();
    values.sort_unstable();
    for pair in values.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
        let [(value, first), (_, second)] = [pair[0], pair[1]];
        findings.add(kind, &[first, second], &[], || {
            let what = if kind == Kind::DuplicateCsn { "commit number" } else { "write pointer" };
            format!("rows {} and {} both have {what} {value}", first + 1, second + 1)
        });
    }
}

/// One read, and what its snapshot holds.
struct Reading<'a> {
    history: &'a History,
    versions: &'a Versions,
    reader: u32,
    read: &'a Access,
}

impl Reading<'_> {
    fn judge(&self, source: Source, findings: &mut Findings<'_>) {
        let snapshot = self.history.transaction(self.reader).snapshot;
        let returned = match source {
            Source::Own | Source::Unwritten => return,
            Source::Nothing => None,
            Source::Writer(writer) => {
                // A writer that did not commit is an anomaly of its own.
                let Some(position) = self.versions.position(self.read.key, writer) else { return };
                let theirs = self.history.transaction(writer);
                if let (Some(bound), Some(pointer)) = (snapshot.read_pointer, theirs.pointer)
                    && pointer > bound
                {
                    let say = || format!("{}, above its read pointer {bound}", self.got(Some(writer)));
                    findings.add(Kind::DirtyRead, &[writer, self.reader], &[self.read.key], say);
                    return;
                }
                // A version of a writer that was not told its number stands where it was read first; but it cannot have
                // been committed by then if its writer began on that snapshot or a later one.
                if let (Some(csn), Some(begun), None) = (snapshot.csn, theirs.snapshot.csn, theirs.csn)
                    && begun >= csn
                {
                    let say = || format!("{}, which began on snapshot {begun}", self.got_through(csn, Some(writer)));
                    findings.add(Kind::DirtyRead, &[writer, self.reader], &[self.read.key], say);
                    return;
                }
                Some(position)
            }
        };
        if let Some(csn) = snapshot.csn
            && self.versions.is_numbered()
        {
            self.against_snapshot(csn, returned, findings);
        }
    }

    /// Holds the version at `returned` among those of the key against what a snapshot of this number holds.
    fn against_snapshot(&self, csn: u64, returned: Option<usize>, findings: &mut Findings<'_>) {
        let key = self.read.key;
        let of_key = self.versions.of(key);
        let held = self.versions.up_to(key, csn);
        let writer = returned.map(|position| of_key[position]);
        if let (Some(position), Some(writer)) = (returned, writer)
            && position >= held
        {
            let say =
                || format!("{}, which committed later{}", self.got_through(csn, Some(writer)), self.csn_of(writer));
            findings.add(Kind::DirtyRead, &[writer, self.reader], &[key], say);
            return;
        }
        let after = returned.map_or(0, |position| position + 1);
        // What is only guessed to be in the snapshot need not have been seen.
        let is_sure = |tx: &&u32| self.versions.place(**tx).is_some_and(|place| place.known != Known::Guessed);
        let Some(missed) = of_key[after..held].iter().rfind(is_sure).copied() else { return };
        if returned.is_none() && self.versions.may_be_deleted(self.history, key, missed, csn) {
            return;
        }
        let say = || {
            let newer = member(self.history, missed);
            format!("{}, and missed the newer one of {newer}{}", self.got_through(csn, writer), self.csn_of(missed))
        };
        let members: Vec<u32> = writer.into_iter().chain([missed, self.reader]).collect();
        findings.add(Kind::StaleRead, &members, &[key], say);
    }

    fn got(&self, writer: Option<u32>) -> String {
        let what = match writer {
            Some(writer) => format!("the version of {}", member(self.history, writer)),
            None => "nothing".to_owned(),
        };
        format!("{} read {:?} and got {what}", member(self.history, self.reader), self.history.key(self.read.key))
    }

    fn got_through(&self, csn: u64, writer: Option<u32>) -> String {
        format!("{} through snapshot {csn}", self.got(writer))
    }

    fn csn_of(&self, writer: u32) -> String {
        self.history.transaction(writer).csn.map_or(String::new(), |csn| format!(" (commit {csn})"))
    }
}

/// Holds each version of a key against the one before. If each began after the one before had committed, so did all.
fn neighbours(history: &History, versions: &Versions, key: u32, findings: &mut Findings<'_>) {
    for pair in versions.of(key).windows(2) {
        let [first, second] = [pair[0], pair[1]];
        let (one, other) = (history.transaction(first), history.transaction(second));
        if one.csn.is_some() && other.csn.is_some() && one.pointer > other.pointer {
            findings.add(Kind::PointerOrder, &[first, second], &[key], || {
                let (key, [first, second]) = (history.key(key), [first, second].map(|tx| member(history, tx)));
                format!("{first} committed {key:?} before {second}, and has the greater write pointer")
            });
        }
        // The earliest that a writer can have committed is just after its snapshot.
        let begun = |tx: &Transaction| tx.snapshot.csn;
        let earliest = |tx: &Transaction| tx.csn.or(begun(tx).map(|csn| csn.saturating_add(1)));
        let missed = |tx, by| matches!((earliest(tx), begun(by)), (Some(earliest), Some(begun)) if begun < earliest);
        if missed(one, other) && missed(other, one) {
            findings.add(Kind::BothCommitted, &[first, second], &[key], || {
                let begun = [one, other].map(|tx| begun(tx).unwrap_or_default());
                let (key, [first, second]) = (history.key(key), [first, second].map(|tx| member(history, tx)));
                format!(
                    "{first} (snapshot {}) and {second} (snapshot {}) overlap and both committed {key:?}",
                    begun[0], begun[1]
                )
            });
        }
    }
}
