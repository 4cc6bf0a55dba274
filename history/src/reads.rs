//! What is wrong with a read whatever the order of versions: nobody wrote it, its writer gave up, overwrote it, or had
//! not yet asked to commit.

use crate::anomaly::Kind;
use crate::findings::{Findings, member};
use crate::history::{Access, History};
use crate::row::Outcome;
use crate::versions::{Source, Versions};

/// Judges every read by itself, of transactions that committed and of those that did not.
pub fn judge(history: &History, versions: &Versions, findings: &mut Findings<'_>) {
    for (reader, _) in history.transactions() {
        let range = history.read_range(reader);
        for (read, source) in history.reads()[range.clone()].iter().zip(versions.sources(range)) {
            match *source {
                Source::Nothing | Source::Own => {}
                Source::Unwritten => unwritten(history, reader, read, findings),
                Source::Writer(writer) => from_writer(history, reader, read, writer, findings),
            }
        }
    }
}

fn unwritten(history: &History, reader: u32, read: &Access, findings: &mut Findings<'_>) {
    let pointer = read.writer.unwrap_or_default();
    findings.add(Kind::UnwrittenRead, &[reader], &[read.key], || {
        let what = match history.with_pointer(pointer) {
            Some(_) => "which wrote no such version",
            None => "which is not in the history",
        };
        let (reader, key) = (member(history, reader), history.key(read.key));
        format!("{reader} read {key:?} and got a version of {pointer}, {what}")
    });
}

fn from_writer(history: &History, reader: u32, read: &Access, writer: u32, findings: &mut Findings<'_>) {
    let say = |what: String| {
        let (reader, writer) = (member(history, reader), member(history, writer));
        format!("{reader} read {:?} and got the version of {writer}, {what}", history.key(read.key))
    };
    let (ours, theirs) = (history.transaction(reader), history.transaction(writer));
    let how = match theirs.outcome {
        Outcome::Aborted => Some("aborted"),
        Outcome::Invalid => Some("became invalid"),
        Outcome::Refused => Some("was refused"),
        Outcome::Committed | Outcome::Unknown => None,
    };
    if let Some(how) = how {
        findings.add(Kind::AbortedRead, &[writer, reader], &[read.key], || say(format!("which {how}")));
        return;
    }
    let last = history.write_of(writer, read.key).map_or(0, |write| write.versions);
    if read.seq != 0 && read.seq < last {
        findings.add(Kind::IntermediateRead, &[writer, reader], &[read.key], || {
            say(format!("its write {} of {last} of that key", read.seq))
        });
    }
    let answered = ours.end.and_then(|end| end.answered);
    if let (Some(answered), Some(asked)) = (answered, theirs.end.map(|end| end.sent))
        && answered < asked
    {
        findings.add(Kind::DirtyRead, &[writer, reader], &[read.key], || {
            say(format!("which asked to commit {} ns after the reader had ended", asked - answered))
        });
    }
}
