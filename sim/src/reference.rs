//! The naive sequencer: what is durable, by plain and obviously right code.
//!
//! It is fed every group at the moment it reaches the medium, in the order of the log, and judges each event as it comes.
//! What the server answers and what its snapshots show is held against it.

mod stores;

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use seriatim_core::event::{Begin, Event, IdBytes};
use seriatim_core::{ChangeId, ChangeSet, InvalidCause, Kind, SURVIVOR_TIMEOUT_MS_MIN, SequencerTime, WritePointer};

pub(crate) use stores::Upkeep;

use crate::law;
use crate::log_reader::WrittenGroup;
use crate::store::{KEYS, Key, Version};
use crate::verdict::{Judged, broken, hold};

/// How a transaction stands in what is durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// A client was given its pointer, and no durable event names it.
    Handed,
    Open,
    Refused,
    Committed(u64),
    Aborted,
    Invalid(InvalidCause),
    /// It was invalid, and its client had it forgotten, or every store had cleaned it.
    Truncated,
}

impl Standing {
    pub fn has_ended(self) -> bool {
        matches!(self, Standing::Committed(_) | Standing::Aborted | Standing::Invalid(_) | Standing::Truncated)
    }
}

/// What the clients asked for a transaction; nothing else may happen to it but expiry and the loss of its client.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Wishes {
    pub abort: bool,
    pub invalidate: bool,
    pub settle: bool,
    pub truncate: bool,
}

/// A write of a transaction that asked to commit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    pub key: Key,
    pub version: Version,
}

/// What a client asked to commit.
#[derive(Clone, Debug)]
pub(crate) struct Submitted {
    pub changes: ChangeSet,
    pub writes: Vec<Write>,
    /// The greatest commit that anybody had been told of when it was asked for.
    pub told_csn: u64,
}

/// All that is known of a transaction.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub standing: Standing,
    pub kind: Kind,
    pub deferred: bool,
    pub detached: bool,
    pub deadline: SequencerTime,
    /// Commit number of its snapshot.
    pub snapshot: u64,
    /// Further pointers, durable ones.
    pub checkpoints: Vec<WritePointer>,
    pub wishes: Wishes,
    pub submitted: Option<Submitted>,
    /// The session that it was begun in, if its client was told.
    pub session: u64,
    /// Its label, if its client was told.
    pub label: Option<&'static str>,
    /// Runs when it began.
    pub boots: usize,
    /// How many had ended durably when it did.
    pub ended_place: u64,
}

impl Known {
    fn new(standing: Standing, snapshot: u64, boots: usize) -> Known {
        Known {
            standing,
            kind: Kind::Short,
            deferred: false,
            detached: false,
            deadline: SequencerTime::NEVER,
            snapshot,
            checkpoints: Vec::new(),
            wishes: Wishes::default(),
            submitted: None,
            session: 0,
            label: None,
            boots,
            ended_place: 0,
        }
    }
}

/// A committed write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Committed {
    pub csn: u64,
    pub version: Version,
}

/// See the head of this file.
pub(crate) struct Reference {
    pub transactions: BTreeMap<WritePointer, Known>,
    /// Those that have not ended, and those that ended last, in the order of their begins: whom snapshots may get wrong.
    pub recent: Vec<WritePointer>,
    /// By commit number, from 1.
    pub commits: Vec<WritePointer>,
    /// Of each key, in the order of commits.
    pub history: Vec<Vec<Committed>>,
    last_writer: FxHashMap<ChangeId, u64>,
    /// Outcomes that the server had to keep: commits and aborts.
    pub outcomes: u64,
    next_lsn: u64,
    greatest_named: u64,
    /// The first pointer of this run.
    run_first: u64,
    pub sequencer_ms: u64,
    /// Runs of the server.
    pub boots: Vec<u64>,
    pub upkeep: Upkeep,
}

/// What came of a group.
#[derive(Clone, Default, Debug)]
pub(crate) struct Seen {
    pub commits: u64,
    pub refusals: u64,
    pub expired: u64,
    pub disconnected_invalid: u64,
    pub disconnected_aborted: u64,
    pub rolled_back_invalid: u64,
    pub unaccounted: u64,
    pub survivors: u64,
    pub survivors_expired: u64,
    pub committed_after_restart: u64,
    pub truncated: u64,
    pub truncated_before: u64,
    pub pruned: u64,
    pub forgotten_unaccounted: u64,
    pub stores_removed: u64,
    pub is_reset: bool,
    /// All pointers of what nobody excludes any more from here on.
    pub forgotten: Vec<WritePointer>,
    /// Whose client was taken for lost.
    pub orphans: Vec<WritePointer>,
}

impl Reference {
    pub fn new() -> Reference {
        Reference {
            transactions: BTreeMap::new(),
            recent: Vec::new(),
            commits: Vec::new(),
            history: vec![Vec::new(); KEYS],
            last_writer: FxHashMap::default(),
            outcomes: 0,
            next_lsn: 1,
            greatest_named: 0,
            run_first: 0,
            sequencer_ms: 0,
            boots: Vec::new(),
            upkeep: Upkeep::default(),
        }
    }

    /// Number of the last durable commit.
    pub fn csn(&self) -> u64 {
        self.commits.len() as u64
    }

    /// The record that comes next.
    pub fn next_lsn(&self) -> u64 {
        self.next_lsn
    }

    pub fn standing(&self, tx: WritePointer) -> Option<Standing> {
        self.transactions.get(&tx).map(|known| known.standing)
    }

    /// What has not ended, as far as is durable: open, refused, or in the hands of a client.
    pub fn unended(&self) -> impl Iterator<Item = WritePointer> + '_ {
        self.transactions.iter().filter(|(_, known)| !known.standing.has_ended()).map(|(tx, _)| *tx)
    }

    pub fn known_mut(&mut self, tx: WritePointer) -> Option<&mut Known> {
        self.transactions.get_mut(&tx)
    }

    /// A client was given this pointer, on a snapshot up to this commit.
    pub fn handed(&mut self, tx: WritePointer, snapshot: u64, session: u64, label: Option<&'static str>) -> Judged {
        if let Some(known) = self.transactions.get_mut(&tx) {
            (known.session, known.label) = (session, label);
            return hold(known.snapshot == snapshot, law::TABLE, || {
                format!("{tx} was begun on snapshot {snapshot}, and the log says {}", known.snapshot)
            });
        }
        // The answer may come after the run that gave it: then that run's successor has counted it among the lost.
        let is_lost = tx.0 < self.run_first;
        let known = Known { session, label, ..Known::new(Standing::Handed, snapshot, self.boots.len()) };
        let known = match is_lost {
            false => known,
            // And that may have been forgotten.
            true if tx.0 < self.upkeep.forgotten_below => Known { standing: Standing::Truncated, ..known },
            true => Known { standing: Standing::Invalid(InvalidCause::Unaccounted), kind: Kind::Long, ..known },
        };
        self.insert(tx, known);
        Ok(())
    }

    fn insert(&mut self, tx: WritePointer, known: Known) {
        self.transactions.insert(tx, known);
        self.recent.push(tx);
    }

    /// What a key holds for a reader of the first `csn` commits.
    pub fn expected(&self, key: Key, csn: u64, by_pointer: bool) -> Option<Version> {
        let written = &self.history[key];
        let seen = &written[..written.partition_point(|write| write.csn <= csn)];
        let last = if by_pointer { seen.iter().max_by_key(|w| w.version.pointer) } else { seen.last() };
        last.map(|write| write.version)
    }

    /// Takes in a group that is durable.
    pub fn group(&mut self, group: &WrittenGroup<'_>) -> Result<Seen, crate::verdict::Violation> {
        let mut seen = Seen::default();
        hold(group.first_lsn == self.next_lsn, law::DURABLE, || {
            format!("the log goes on with record {}, and {} were durable", group.first_lsn, self.next_lsn - 1)
        })?;
        hold(group.first_csn == self.csn() + 1, law::DURABLE, || {
            format!("a group starts with commit {}, after {}", group.first_csn, self.csn())
        })?;
        let mut records = 0;
        for event in group.events() {
            records += 1;
            let Some(event) = event else {
                broken(law::DURABLE, format!("record {} is no event", self.next_lsn + records - 1))?;
                unreachable!("a broken law is returned");
            };
            self.event(&event, group.sequencer_ms, &mut seen)?;
        }
        self.next_lsn += records;
        hold(records == u64::from(group.records), law::DURABLE, || {
            format!("{records} records in place of {}", group.records)
        })?;
        hold(group.commits == self.csn(), law::DURABLE, || {
            format!("a group ends with commit {}, not {}", self.csn(), group.commits)
        })?;
        hold(group.sequencer_ms >= self.sequencer_ms, law::POINTERS, || {
            format!("sequencer time goes back from {} to {}", self.sequencer_ms, group.sequencer_ms)
        })?;
        self.sequencer_ms = group.sequencer_ms;
        self.forget_old();
        Ok(seen)
    }

    /// Keeps the list of whom snapshots may get wrong short.
    fn forget_old(&mut self) {
        const KEPT: u64 = 24;
        let (transactions, ended) = (&self.transactions, self.outcomes);
        if self.recent.len() > 4 * KEPT as usize {
            self.recent.retain(|tx| match transactions[tx].standing {
                Standing::Committed(_) | Standing::Aborted | Standing::Truncated => {
                    transactions[tx].ended_place + KEPT > ended
                }
                Standing::Handed | Standing::Open | Standing::Refused | Standing::Invalid(_) => true,
            });
        }
    }

    fn event(&mut self, event: &Event<IdBytes<'_>>, group_ms: u64, seen: &mut Seen) -> Judged {
        match event {
            Event::Begin(begin) => self.begin(begin),
            Event::Commit { tx, stored } => {
                seen.commits += 1;
                let begun = self.transactions.get(tx).map_or(0, |known| known.boots);
                seen.committed_after_restart += u64::from(begun != self.boots.len());
                self.commit(*tx, stored)
            }
            Event::Refused { tx } => {
                seen.refusals += 1;
                let known = self.open(*tx, "refused")?;
                known.standing = Standing::Refused;
                Ok(())
            }
            Event::Aborted { tx } => self.abort(*tx, seen),
            Event::Invalidated { tx, cause } => self.invalidate(*tx, *cause, group_ms, seen),
            Event::Finished { first, count } => self.name(*first, *count),
            Event::Start { boot, first, time } => self.start(*boot, *first, *time, seen),
            Event::Checkpoint { tx, pointer } => {
                self.name(*pointer, 1)?;
                if *pointer < self.upkeep.floor {
                    return Ok(());
                }
                self.open(*tx, "given a checkpoint")?.checkpoints.push(*pointer);
                Ok(())
            }
            Event::Truncate { tx } => {
                seen.truncated += 1;
                self.truncate(*tx, seen)
            }
            Event::Window { .. } | Event::Tick { .. } | Event::Stop { .. } => Ok(()),
            Event::TruncateBefore { .. }
            | Event::StoreRegistered { .. }
            | Event::StoreCleaned { .. }
            | Event::StoreRemoved { .. } => self.upkeep_event(event, seen),
            Event::Reset { floor } => self.reset(*floor, seen),
        }
    }

    /// Pointers are named for the first time. They may come out of order by a little, and never twice.
    fn name(&mut self, first: WritePointer, count: u64) -> Judged {
        hold(first.0 > self.greatest_named, law::POINTERS, || {
            format!("{first} is named after {}", self.greatest_named)
        })?;
        self.greatest_named = first.0 + count - 1;
        Ok(())
    }

    fn begin(&mut self, begin: &Begin) -> Judged {
        self.name(begin.first, u64::from(begin.count))?;
        let snapshot = begin.snapshot.0;
        hold(snapshot <= self.csn(), law::DURABLE, || {
            format!("{} began on commit {snapshot}, and {} are durable", begin.first, self.csn())
        })?;
        for tx in (begin.first.0..begin.first.0 + u64::from(begin.count)).map(WritePointer) {
            if let Some(known) = self.transactions.get(&tx) {
                let is_dropped = known.standing == Standing::Truncated && tx < self.upkeep.floor;
                hold(known.standing == Standing::Handed || is_dropped, law::POINTERS, || {
                    format!("{tx} begins a second time, after {:?}", known.standing)
                })?;
                hold(known.snapshot == snapshot, law::TABLE, || {
                    format!("{tx} was answered with snapshot {}, and the log says {snapshot}", known.snapshot)
                })?;
            } else {
                self.insert(tx, Known::new(Standing::Open, snapshot, self.boots.len()));
            }
            let is_dropped = tx < self.upkeep.floor;
            let known = self.transactions.get_mut(&tx).expect("it was just put there");
            known.standing = if is_dropped { Standing::Truncated } else { Standing::Open };
            (known.kind, known.deadline) = (begin.kind, begin.deadline);
            (known.deferred, known.detached) = (begin.deferred, begin.detached);
        }
        Ok(())
    }

    /// An open transaction, or a refused one if that is all right for what happens to it.
    fn open(&mut self, tx: WritePointer, what: &str) -> Result<&mut Known, crate::verdict::Violation> {
        let standing = self.standing(tx);
        let Some(known) = self.transactions.get_mut(&tx).filter(|known| known.standing == Standing::Open) else {
            broken(law::OUTCOME, format!("{tx} is {what}, and it was {standing:?}"))?;
            unreachable!("a broken law is returned");
        };
        Ok(known)
    }

    fn end(&mut self, tx: WritePointer, standing: Standing) {
        if matches!(standing, Standing::Committed(_) | Standing::Aborted) {
            self.outcomes += 1;
        }
        let place = self.outcomes;
        if let Some(known) = self.transactions.get_mut(&tx) {
            known.standing = standing;
            known.ended_place = place;
        }
    }

    fn commit(&mut self, tx: WritePointer, stored: &IdBytes<'_>) -> Judged {
        let csn = self.csn() + 1;
        let known = self.open(tx, "committed")?;
        let (snapshot, checkpoints) = (known.snapshot, known.checkpoints.clone());
        let Some(submitted) = known.submitted.clone() else {
            return broken(law::OUTCOME, format!("{tx} committed, and nobody asked for it"));
        };
        hold(csn > submitted.told_csn, law::FIRST, || {
            format!("{tx} committed as {csn}, and was asked for when {} was known", submitted.told_csn)
        })?;
        let ChangeSet { writes, reads, marks } = &submitted.changes;
        let asked: Vec<ChangeId> = writes.iter().chain(marks).copied().collect();
        hold(stored.iter().eq(asked.iter().copied()), law::OUTCOME, || {
            format!("{tx} committed {:?}, and asked for {asked:?}", stored.iter().collect::<Vec<_>>())
        })?;
        for (id, what) in writes.iter().map(|id| (id, "wrote")).chain(reads.iter().map(|id| (id, "read"))) {
            let last = self.last_writer.get(id).copied().unwrap_or(0);
            hold(last <= snapshot, law::FIRST, || {
                let winner = self.commits[last as usize - 1];
                format!(
                    "{tx} on snapshot {snapshot} committed as {csn}; it {what} {id:?}, as {winner} did, commit {last}"
                )
            })?;
        }
        for write in &submitted.writes {
            let pointer = write.version.pointer;
            hold(pointer == tx || checkpoints.contains(&pointer), law::TABLE, || {
                format!("{tx} committed without its pointer {pointer}: a part of it would never be seen")
            })?;
            self.history[write.key].push(Committed { csn, version: write.version });
        }
        for id in asked {
            self.last_writer.insert(id, csn);
        }
        self.commits.push(tx);
        self.end(tx, Standing::Committed(csn));
        Ok(())
    }

    fn abort(&mut self, tx: WritePointer, seen: &mut Seen) -> Judged {
        let Some(known) = self.transactions.get(&tx) else {
            return broken(law::OUTCOME, format!("{tx} is aborted, and never began"));
        };
        let may = match known.standing {
            Standing::Open | Standing::Refused => known.kind == Kind::Short,
            Standing::Invalid(_) => {
                seen.rolled_back_invalid += 1;
                known.kind == Kind::Short
            }
            // Two asked at once: the second one's word changes nothing.
            Standing::Aborted | Standing::Committed(_) | Standing::Truncated => return Ok(()),
            Standing::Handed => false,
        };
        hold(may, law::OUTCOME, || format!("{tx} is aborted, and it was {:?}", known.standing))?;
        hold(known.wishes.abort || known.deferred, law::ROLLED_BACK, || {
            format!("{tx} counts as rolled back, and its client never said so")
        })?;
        if !known.wishes.abort {
            seen.disconnected_aborted += 1;
            seen.orphans.push(tx);
        }
        self.end(tx, Standing::Aborted);
        Ok(())
    }

    fn invalidate(&mut self, tx: WritePointer, cause: InvalidCause, group_ms: u64, seen: &mut Seen) -> Judged {
        let Some(known) = self.transactions.get(&tx) else {
            return broken(law::OUTCOME, format!("{tx} becomes invalid, and never began"));
        };
        hold(matches!(known.standing, Standing::Open | Standing::Refused), law::OUTCOME, || {
            format!("{tx} becomes invalid, and it was {:?}", known.standing)
        })?;
        let (may, why) = match cause {
            InvalidCause::Asked => (known.wishes.invalidate, "nobody asked"),
            InvalidCause::Settled => (known.wishes.settle, "nobody had a doubt"),
            InvalidCause::LongAborted => {
                (known.wishes.abort && known.kind == Kind::Long, "nobody aborted it, or it is SHORT")
            }
            InvalidCause::Expired => {
                seen.expired += 1;
                seen.survivors_expired += u64::from(known.boots != self.boots.len());
                (known.deadline.0 <= group_ms, "its time is not over")
            }
            InvalidCause::Disconnected => {
                seen.disconnected_invalid += 1;
                seen.orphans.push(tx);
                (known.kind == Kind::Short && !known.detached && !known.deferred, "it may outlive its client")
            }
            InvalidCause::Unaccounted => (false, "it is accounted for"),
        };
        hold(may, law::OUTCOME, || {
            format!("{tx} becomes invalid, {cause:?}: {why}; deadline {:?}, time {group_ms}", known.deadline)
        })?;
        self.end(tx, Standing::Invalid(cause));
        Ok(())
    }

    fn truncate(&mut self, tx: WritePointer, seen: &mut Seen) -> Judged {
        let Some(known) = self.transactions.get(&tx) else { return Ok(()) };
        hold(known.wishes.truncate, law::ROLLED_BACK, || format!("{tx} is forgotten, and nobody asked"))?;
        // What is unaccounted is of many clients, and one of them has no word for the others.
        if matches!(known.standing, Standing::Invalid(cause) if cause != InvalidCause::Unaccounted) {
            seen.forgotten.extend(known.checkpoints.iter().chain([&tx]));
            self.end(tx, Standing::Truncated);
        }
        Ok(())
    }

    fn start(&mut self, boot: u64, first: WritePointer, time: SequencerTime, seen: &mut Seen) -> Judged {
        hold(!self.boots.contains(&boot), law::POINTERS, || format!("two runs are named {boot:#x}"))?;
        self.boots.push(boot);
        self.run_first = first.0;
        hold(first.0 > self.greatest_named, law::POINTERS, || {
            format!("a run starts at {first}, and {} was handed out", self.greatest_named)
        })?;
        let earliest = time.plus_ms(SURVIVOR_TIMEOUT_MS_MIN);
        for (tx, known) in &mut self.transactions {
            match known.standing {
                Standing::Handed => {
                    hold(*tx < first, law::POINTERS, || format!("a run starts at {first}, and a client has {tx}"))?;
                    seen.unaccounted += 1;
                    known.standing = Standing::Invalid(InvalidCause::Unaccounted);
                    known.kind = Kind::Long;
                }
                Standing::Open | Standing::Refused => {
                    seen.survivors += 1;
                    known.deadline = known.deadline.max(earliest);
                }
                _ => {}
            }
        }
        Ok(())
    }
}
