//! Real time: what was answered before something was asked for comes before it, whoever asked.
//!
//! Each law is one question: of all values that were settled before a moment, is one greater than the value of that
//! moment? Both sides are sorted by time, and the greatest value so far is carried along.

use rustc_hash::FxHashMap;

use crate::anomaly::Kind;
use crate::findings::{Findings, member};
use crate::history::{History, Transaction};

/// A value of a transaction, and when it was settled or asked for.
struct Moment {
    time: u64,
    value: u64,
    tx: u32,
}

/// Judges every row that says when it was, and the order within sessions for those that do not.
pub fn judge(history: &History, findings: &mut Findings<'_>) {
    type Value = fn(&Transaction) -> Option<u64>;
    let begin_sent: Value = |tx| tx.begin.map(|begin| begin.sent);
    let begin_answered: Value = |tx| tx.begin?.answered;
    let end_sent: Value = |tx| tx.end.map(|end| end.sent);
    let end_answered: Value = |tx| tx.end?.answered;
    let snapshot: Value = |tx| tx.snapshot.csn;
    let (csn, pointer): (Value, Value) = (|tx| tx.csn, |tx| tx.pointer);
    let moments = |time: Value, value: Value| -> Vec<Moment> {
        let moment = |(number, tx)| Some(Moment { time: time(tx)?, value: value(tx)?, tx: number });
        history.transactions().filter_map(moment).collect()
    };
    let laws: [(Kind, [Value; 2], [Value; 2]); 4] = [
        (Kind::StaleSnapshot, [end_answered, csn], [begin_sent, snapshot]),
        (Kind::SnapshotBack, [begin_answered, snapshot], [begin_sent, snapshot]),
        (Kind::PointerBack, [begin_answered, pointer], [begin_sent, pointer]),
        (Kind::CommitBack, [end_answered, csn], [end_sent, csn]),
    ];
    for (kind, before, after) in laws {
        let [past, now] = [before, after].map(|[time, value]| moments(time, value));
        overtaken(past, now, |earlier, later| {
            findings.add(kind, &[earlier.tx, later.tx], &[], || sentence(history, kind, earlier, later));
        });
    }
    // A snapshot is a moment among commit numbers: it comes after those it holds.
    let past = moments(csn, end_sent);
    let mut now = moments(snapshot, begin_answered);
    now.iter_mut().for_each(|moment| moment.time = moment.time.saturating_add(1));
    overtaken(past, now, |earlier, later| {
        findings.add(Kind::EarlySnapshot, &[earlier.tx, later.tx], &[], || {
            let (commit, reader) = (member(history, earlier.tx), member(history, later.tx));
            format!(
                "the snapshot of {reader} holds the commit {} of {commit}, which was asked for {} ns after the snapshot \
                 had been answered",
                earlier.time,
                earlier.value - later.value
            )
        });
    });
    sessions(history, findings);
}

/// Calls `found` for each of `now` whose value is below the greatest of those of `past` that are earlier.
fn overtaken(mut past: Vec<Moment>, mut now: Vec<Moment>, mut found: impl FnMut(&Moment, &Moment)) {
    past.sort_unstable_by_key(|moment| moment.time);
    now.sort_unstable_by_key(|moment| moment.time);
    let mut past = past.into_iter().peekable();
    let mut greatest: Option<Moment> = None;
    for later in now {
        while let Some(earlier) = past.next_if(|earlier| earlier.time < later.time) {
            if greatest.as_ref().is_none_or(|greatest| greatest.value < earlier.value) {
                greatest = Some(earlier);
            }
        }
        if let Some(greatest) = greatest.as_ref().filter(|greatest| greatest.value > later.value) {
            found(greatest, &later);
        }
    }
}

fn sentence(history: &History, kind: Kind, earlier: &Moment, later: &Moment) -> String {
    let (one, other) = (member(history, earlier.tx), member(history, later.tx));
    let (before, after, ns) = (earlier.value, later.value, later.time - earlier.time);
    match kind {
        Kind::StaleSnapshot => format!(
            "{one} was acknowledged as commit {before}, {ns} ns before {other} asked to begin and got snapshot {after}"
        ),
        Kind::SnapshotBack => {
            format!("{one} got snapshot {before}, {ns} ns before {other} asked to begin and got snapshot {after}")
        }
        Kind::PointerBack => {
            format!("{one} got write pointer {before}, {ns} ns before {other} asked to begin and got {after}")
        }
        _ => format!("{one} was acknowledged as commit {before}, {ns} ns before {other} asked and became {after}"),
    }
}

/// The last of a session so far.
#[derive(Default)]
struct Last {
    snapshot: Option<(u64, u32)>,
    csn: Option<(u64, u32)>,
}

/// Rows of a session that say when they began are judged by that.
fn sessions(history: &History, findings: &mut Findings<'_>) {
    let mut sessions: FxHashMap<u64, Last> = FxHashMap::default();
    for (number, tx) in history.transactions() {
        let Some(session) = tx.session else { continue };
        let last = sessions.entry(session).or_default();
        if let (Some(snapshot), None) = (tx.snapshot.csn, tx.begin) {
            let laws = [(Kind::StaleSnapshot, last.csn, "commit"), (Kind::SnapshotBack, last.snapshot, "snapshot")];
            for (kind, before, what) in laws {
                let Some((value, earlier)) = before.filter(|(value, _)| *value > snapshot) else { continue };
                findings.add(kind, &[earlier, number], &[], || {
                    let (one, other) = (member(history, earlier), member(history, number));
                    format!("{one} had {what} {value}, and {other} of the same session got snapshot {snapshot} later")
                });
            }
        }
        last.snapshot = last.snapshot.max(tx.snapshot.csn.map(|csn| (csn, number)));
        last.csn = last.csn.max(tx.csn.map(|csn| (csn, number)));
    }
}
