//! What is checked as it happens: answers, snapshots and reads, against the naive sequencer.

mod upkeep;

use std::sync::Arc;

use seriatim_core::{CommitError, InvalidCause, Snapshot, Status, WritePointer};
use seriatim_wire::{Fenced, ListKind, Listed, State};

use crate::client::{Call, Facts, Heard};
use crate::disk::{Landed, lock};
use crate::law;
use crate::log_reader::WrittenGroup;
use crate::probes::Probe;
use crate::reference::Standing;
use crate::server::Bounds;
use crate::store::{BULK, Key, LATE, Version, first_value};
use crate::verdict::{Judged, broken, hold};
use crate::world::World;

/// One snapshot of so many is held against every transaction there ever was.
const FULL_CHECK_ONE_IN: u32 = 16;

/// After so long without trouble everything that was decided is durable.
const CALM_US: u64 = 500_000;

impl World {
    /// A group is durable.
    pub fn judge_landed(&mut self, landed: Landed) -> Judged {
        let Some(group) = WrittenGroup::read(&landed.bytes) else {
            return broken(law::DURABLE, "a write that is no group");
        };
        let first = group.first_lsn;
        let is_first_block = landed.bytes.starts_with(b"SERIASEG");
        if let Some(unsure) = self.unsure.take()
            && first != self.reference.next_lsn()
        {
            self.probes.hit(Probe::UntoldTailKept);
            self.take_group(unsure)?;
        } else if is_first_block {
            self.probes.hit_if(self.was_unsure, Probe::TornTailCut);
        }
        self.was_unsure = false;
        self.probes.hit_if(is_first_block && self.server.is_some(), Probe::SegmentRolled);
        self.take_group(landed)
    }

    fn take_group(&mut self, landed: Landed) -> Judged {
        let Some(group) = WrittenGroup::read(&landed.bytes) else {
            return broken(law::DURABLE, "a write that is no group");
        };
        self.probes.hit_if(group.records == 0, Probe::ClosingGroup);
        let bound = self.knobs.options.log.group_bytes_max;
        self.probes.hit_if(group.end() - group.header_at > bound / 4 * 3, Probe::GroupFull);
        let before = (self.reference.csn(), group.first_lsn, u64::from(group.records));
        let seen = self.reference.group(&group)?;
        let facts = [("first", before.1), ("records", before.2), ("csn", self.reference.csn())];
        self.trace.mix_bytes(&landed.bytes);
        self.note("durable", &facts);
        self.probes.add(Probe::Expired, seen.expired);
        self.probes.add(Probe::SurvivorExpired, seen.survivors_expired);
        self.probes.add(Probe::GraceInvalidated, seen.disconnected_invalid);
        self.probes.add(Probe::GraceAborted, seen.disconnected_aborted);
        self.probes.add(Probe::InvalidCleaned, seen.rolled_back_invalid);
        self.probes.add(Probe::Unaccounted, seen.unaccounted);
        self.probes.add(Probe::Survived, seen.survivors);
        self.probes.add(Probe::CommittedAfterRestart, seen.committed_after_restart);
        self.probes.add(Probe::InvalidTruncated, seen.truncated);
        self.probes.add(Probe::Pruned, seen.pruned);
        self.probes.add(Probe::PrunedUnaccounted, seen.forgotten_unaccounted);
        self.probes.add(Probe::TruncatedBefore, seen.truncated_before);
        self.probes.add(Probe::SpareRemoved, seen.stores_removed);
        self.landed.push(landed);
        if seen.is_reset {
            self.start_anew(&seen.forgotten);
        }
        self.judge_forgotten(&seen.forgotten)?;
        seen.orphans.iter().try_for_each(|tx| self.judge_orphan(*tx))
    }

    /// A transaction ended because its client was lost. Then its session has had no connection for a while.
    fn judge_orphan(&self, tx: WritePointer) -> Judged {
        let Some(known) = self.reference.transactions.get(&tx).filter(|known| known.session != 0) else {
            return Ok(());
        };
        let Some(client) = self.clients.iter().find(|client| client.session() == known.session) else { return Ok(()) };
        let Some(wire) = client.connection().and_then(|connection| self.wires.get(&connection)) else { return Ok(()) };
        // While the disk or the server is in trouble what is decided becomes durable late.
        let before_us = self.now().saturating_sub(CALM_US);
        let is_there = !wire.is_cut() && wire.heard_us.is_some_and(|heard_us| heard_us < before_us);
        hold(!is_there || self.trouble_to_us >= before_us, law::ROLLED_BACK, || {
            format!("{tx} ended for the loss of its client, which has been there since {:?}", wire.heard_us)
        })
    }

    /// A write was under way, or failed: only the next run's log will tell what is there.
    pub fn doubt_landed(&mut self, unsure: Option<Landed>) -> Judged {
        let Some(unsure) = unsure else { return Ok(()) };
        let Some(group) = WrittenGroup::read(&unsure.bytes) else {
            return broken(law::DURABLE, "a write that is no group");
        };
        if let Some(before) = self.unsure.take()
            && group.first_lsn != self.reference.next_lsn()
        {
            self.take_group(before)?;
        }
        self.was_unsure = true;
        self.unsure = Some(unsure);
        Ok(())
    }

    /// An answer, whoever still waits for it.
    pub fn judge(&mut self, call: Call, heard: &Heard, facts: &Facts, step: u64) -> Judged {
        match (call, heard) {
            (Call::Begin(count), Heard::Begun(Ok((first, snapshot)))) => {
                self.probes.hit_if(count > 1, Probe::BlockBegun);
                let mut pointers = (first.0..first.0 + u64::from(count)).map(WritePointer);
                pointers.try_for_each(|tx| self.judge_begun(tx, snapshot, facts))
            }
            (Call::Fence(_), Heard::Fenced(fenced)) => self.judge_fence(step, *fenced),
            (Call::State, Heard::State(state)) => self.judge_state(state, facts),
            (Call::Reset, Heard::Reset(floor)) => self.judge_reset(*floor),
            (Call::Store(_), Heard::Store(said)) => self.judge_store(said, facts),
            (Call::Image, Heard::Image(bytes, total)) => self.judge_image(bytes, *total, facts),
            (Call::TruncateBefore(bound), Heard::TruncatedBefore(truncated)) => {
                self.judge_truncated_before(bound, *truncated)
            }
            (Call::List(kind), Heard::Listed(entries)) => self.judge_list(kind, entries),
            (Call::Snapshot, Heard::Snapshot(snapshot)) => self.judge_snapshot(snapshot, facts),
            (Call::Stamps(count), Heard::Stamps(Ok(first))) => self.judge_pointer(*first, count, facts),
            (Call::Commit(tx, is_checked), Heard::Committed(Ok(csn))) => {
                self.probes.hit_if(is_checked, Probe::CommittedChecked);
                self.judge_committed(tx, csn.0)
            }
            (Call::Commit(tx, _), Heard::Committed(Err(error))) => self.judge_refusal(tx, error, facts),
            (Call::Check(tx), Heard::Checked(Err(error))) => self.judge_advice(tx, error, facts),
            (Call::Checkpoint(tx, _), Heard::Checkpoint(Ok(pointer))) => self.judge_checkpoint(tx, *pointer),
            (Call::Checkpoint(tx, _), Heard::Checkpoint(Err(error))) => self.judge_refusal(tx, error, facts),
            (Call::Settle(tx), Heard::Status(status)) => {
                let is_doubt = matches!(status, Status::Open | Status::Deciding);
                hold(!is_doubt, law::OUTCOME, || format!("the doubt about {tx} was settled as {status:?}"))?;
                let was_deciding = matches!(status, Status::Committed(_)) && !facts.has_ended;
                self.probes.hit_if(was_deciding, Probe::SettledDeciding);
                self.judge_status(tx, *status, facts)
            }
            (Call::Abort(tx) | Call::Status(tx), Heard::Status(status)) => self.judge_status(tx, *status, facts),
            (Call::Invalidate(tx), Heard::Ended(ended)) => self.judge_ended(tx, *ended),
            _ => Ok(()),
        }
    }

    /// A fence passed: what was open when it was asked for has ended, durably.
    fn judge_fence(&mut self, step: u64, fenced: Fenced) -> Judged {
        let open = self.fences.remove(&step).unwrap_or_default();
        let Fenced::Passed = fenced else {
            self.probes.hit(Probe::FenceTimedOut);
            return Ok(());
        };
        self.probes.hit(Probe::FencePassed);
        let left = open.into_iter().find(|tx| !self.reference.standing(*tx).is_some_and(Standing::has_ended));
        hold(left.is_none(), law::FENCE, || format!("a fence passed while {left:?} was open"))
    }

    /// The server's counters are of what is durable, and of this run.
    fn judge_state(&self, state: &State, facts: &Facts) -> Judged {
        let (csn, lsn) = (self.reference.csn(), self.reference.next_lsn());
        hold((facts.told_csn..=csn).contains(&state.csn.0) && state.durable_lsn < lsn, law::DURABLE, || {
            let (told, theirs) = (facts.told_csn, state.durable_lsn);
            format!("the server counts {} commits of {told} to {csn}, {theirs} records of {lsn}", state.csn)
        })?;
        self.judge_visible(state.visibility_bound)?;
        hold(self.reference.boots.contains(&state.boot), law::DURABLE, || {
            "a run that is not durable answers".to_owned()
        })
    }

    /// A list says of each what the log says.
    fn judge_list(&self, kind: ListKind, entries: &[Listed]) -> Judged {
        for entry in entries {
            let Some(known) = self.reference.transactions.get(&entry.tx) else { continue };
            let fits = match (kind, known.standing) {
                // The list may be younger than what is durable, or older than what has reached us since.
                (ListKind::Open, Standing::Handed | Standing::Invalid(InvalidCause::Unaccounted)) => {
                    known.snapshot == entry.snapshot.0
                }
                (ListKind::Open, _) => {
                    (known.snapshot, known.deferred, known.detached)
                        == (entry.snapshot.0, entry.deferred, entry.detached)
                }
                (ListKind::Invalid, standing) => {
                    matches!(standing, Standing::Invalid(_) | Standing::Aborted | Standing::Truncated)
                }
            };
            hold(fits, law::TABLE, || format!("{entry:?} is listed, and what is durable says {known:?}"))?;
        }
        Ok(())
    }

    /// A check said that a commit would be refused.
    fn judge_advice(&mut self, tx: WritePointer, error: &CommitError, facts: &Facts) -> Judged {
        match error {
            CommitError::Conflict { change_id, csn, winner, label, .. } => {
                self.judge_winner(tx, *change_id, csn.0, *winner, label.as_deref())
            }
            CommitError::NotInProgress { ended, .. } => self.judge_status(tx, *ended, facts),
            _ => Ok(()),
        }
    }

    /// A further pointer was given: it is durable, and above all that its transaction may read.
    fn judge_checkpoint(&mut self, tx: WritePointer, pointer: WritePointer) -> Judged {
        let known = self.reference.transactions.get(&tx);
        let is_durable = known.is_some_and(|known| known.checkpoints.contains(&pointer));
        hold(is_durable, law::DURABLE, || format!("{tx} was given {pointer}, which is not durable"))?;
        hold(pointer > tx, law::ABOVE, || format!("{tx} was given {pointer}"))?;
        self.told_pointer = self.told_pointer.max(pointer.0);
        // To ask again gives the same one again.
        self.given.insert(pointer.0);
        Ok(())
    }

    /// A transaction began.
    fn judge_begun(&mut self, tx: WritePointer, snapshot: &Arc<Snapshot>, facts: &Facts) -> Judged {
        hold(tx > snapshot.read_pointer, law::ABOVE, || {
            format!("{tx} was begun on a snapshot with read pointer {}", snapshot.read_pointer)
        })?;
        self.judge_pointer(tx, 1, facts)?;
        let id = ("snapshot", snapshot.id.number);
        self.note("begun", &[("tx", tx.0), id, ("read", snapshot.read_pointer.0), ("csn", snapshot.csn.0)]);
        let disk = lock(&self.disk);
        let is_stalled = disk.manners.stalled_to_us > self.clock.now_us() && disk.is_writing();
        drop(disk);
        self.probes.hit_if(is_stalled, Probe::Stalled);
        self.judge_snapshot(snapshot, facts)?;
        self.reference.handed(tx, snapshot.csn.0, facts.session, facts.label)
    }

    /// Somebody was given pointers.
    pub fn judge_pointer(&mut self, first: WritePointer, count: u64, facts: &Facts) -> Judged {
        hold(first.0 > facts.told_pointer, law::POINTERS, || {
            format!("{first} was given to somebody who asked when {} was known", facts.told_pointer)
        })?;
        hold(first.ms_since_epoch() >= facts.wall_ms || self.clock.has_stepped(), law::POINTERS, || {
            format!("{first} is older than the clock, which said {} ms when it was asked for", facts.wall_ms)
        })?;
        for pointer in first.0..first.0 + count {
            hold(self.given.insert(pointer), law::POINTERS, || format!("{pointer} was given twice"))?;
        }
        self.told_pointer = self.told_pointer.max(first.0 + count - 1);
        Ok(())
    }

    /// A snapshot came. It holds exactly the commits up to its number, all of them durable, and all that its reader had
    /// heard of when it asked.
    pub fn judge_snapshot(&mut self, snapshot: &Snapshot, facts: &Facts) -> Judged {
        let csn = snapshot.csn.0;
        hold(csn <= self.reference.csn(), law::DURABLE, || {
            format!("a snapshot shows commit {csn}, and {} are durable", self.reference.csn())
        })?;
        hold(csn >= facts.told_csn, law::ACKNOWLEDGED, || {
            format!("a snapshot shows {csn} commits, and {} were acknowledged before it was asked for", facts.told_csn)
        })?;
        if self.once_in(FULL_CHECK_ONE_IN) {
            for tx in self.reference.transactions.keys() {
                self.judge_visibility(*tx, snapshot)?;
            }
        } else {
            for tx in &self.reference.recent {
                self.judge_visibility(*tx, snapshot)?;
            }
        }
        // Who asks from here on may not see less.
        self.told_csn = self.told_csn.max(csn);
        Ok(())
    }

    fn judge_visibility(&self, tx: WritePointer, snapshot: &Snapshot) -> Judged {
        let known = &self.reference.transactions[&tx];
        let should = match known.standing {
            Standing::Committed(csn) => csn <= snapshot.csn.0,
            Standing::Handed | Standing::Open | Standing::Refused | Standing::Invalid(_) => false,
            // It was rolled back, before the snapshot or after.
            Standing::Aborted | Standing::Truncated => return Ok(()),
        };
        for pointer in known.checkpoints.iter().chain([&tx]) {
            hold(snapshot.is_visible(*pointer) == should, law::SNAPSHOT, || {
                let (csn, number) = (snapshot.csn, snapshot.id.number);
                format!("snapshot {number} up to commit {csn} shows {pointer}: {}; it is {:?}", !should, known.standing)
            })?;
        }
        Ok(())
    }

    /// A commit was acknowledged.
    pub fn judge_committed(&mut self, tx: WritePointer, csn: u64) -> Judged {
        let standing = self.reference.standing(tx);
        hold(standing == Some(Standing::Committed(csn)), law::DURABLE, || {
            format!("{tx} was acknowledged as commit {csn}, and what is durable says {standing:?}")
        })?;
        self.told_csn = self.told_csn.max(csn);
        Ok(())
    }

    /// A commit was refused.
    pub fn judge_refusal(&mut self, tx: WritePointer, error: &CommitError, facts: &Facts) -> Judged {
        let standing = self.reference.standing(tx);
        match error {
            CommitError::Conflict { change_id, csn, winner, label, .. } => {
                self.judge_winner(tx, *change_id, csn.0, *winner, label.as_deref())?;
                self.judge_refused(tx, standing)
            }
            CommitError::TooOld { snapshot, mark, .. } => {
                self.probes.hit(Probe::TooOld);
                hold(snapshot < mark && mark.0 <= self.reference.csn(), law::FIRST, || {
                    format!("{tx} on {snapshot} was too old for mark {mark}; {} are durable", self.reference.csn())
                })?;
                self.judge_refused(tx, standing)
            }
            CommitError::Expired { .. } => {
                self.probes.hit(Probe::ExpiredAtCommit);
                let is_invalid = matches!(
                    standing,
                    Some(Standing::Invalid(InvalidCause::Expired) | Standing::Aborted | Standing::Truncated)
                );
                hold(is_invalid, law::DURABLE, || format!("{tx} was told that it expired, and it is {standing:?}"))
            }
            CommitError::NotInProgress { ended, .. } => self.judge_status(tx, *ended, facts),
            _ => Ok(()),
        }
    }

    /// The winner of a conflict is durable, wrote what it says, and came after the loser began.
    fn judge_winner(
        &mut self,
        tx: WritePointer,
        id: u64,
        csn: u64,
        winner: Option<WritePointer>,
        label: Option<&str>,
    ) -> Judged {
        self.probes.hit(Probe::Conflict);
        self.probes.hit_if(winner.is_none(), Probe::WinnerForgotten);
        let Some(committed) = csn.checked_sub(1).and_then(|place| self.reference.commits.get(place as usize)).copied()
        else {
            return broken(
                law::DURABLE,
                format!("{tx} lost to commit {csn}, and {} are durable", self.reference.csn()),
            );
        };
        hold(winner.is_none_or(|winner| winner == committed), law::FIRST, || {
            format!("{tx} lost to commit {csn} of {committed}, and was told {winner:?}")
        })?;
        let known = &self.reference.transactions[&committed];
        self.probes.hit_if(label.is_some(), Probe::LabelNamed);
        hold(label.is_none() || label == known.label || known.session == 0, law::FIRST, || {
            format!("{tx} lost to {committed}, labelled {:?}, and was told {label:?}", known.label)
        })?;
        let wrote = known.submitted.as_ref().is_some_and(|submitted| {
            submitted.changes.writes.iter().chain(&submitted.changes.marks).any(|written| written.0 == id)
        });
        let began = self.reference.transactions.get(&tx).map_or(0, |known| known.snapshot);
        hold(wrote && csn > began, law::FIRST, || {
            format!("{tx} on {began} lost {id:#x} to {committed}, commit {csn}")
        })?;
        self.told_csn = self.told_csn.max(csn);
        Ok(())
    }

    fn judge_refused(&self, tx: WritePointer, standing: Option<Standing>) -> Judged {
        let is_refused = standing.is_some_and(|standing| match standing {
            Standing::Refused | Standing::Aborted | Standing::Invalid(_) | Standing::Truncated => true,
            Standing::Handed | Standing::Open | Standing::Committed(_) => false,
        });
        hold(is_refused, law::DURABLE, || format!("{tx} was told of a refusal, and what is durable says {standing:?}"))
    }

    /// Somebody was told where a transaction stands.
    pub fn judge_status(&mut self, tx: WritePointer, status: Status, facts: &Facts) -> Judged {
        let Some(known) = self.reference.transactions.get(&tx) else {
            // Whether a reset has dropped it is not known before the reset is durable.
            let may_be_dropped = status == Status::Deciding && self.reference.upkeep.was_reset_asked();
            return hold(status == Status::Forgotten || may_be_dropped, law::OUTCOME, || {
                format!("{tx} never was, and is {status:?}")
            });
        };
        let standing = known.standing;
        let is_committed = matches!(standing, Standing::Committed(_));
        let fits = match status {
            Status::Committed(csn) => standing == Standing::Committed(csn.0),
            // It may have ended since.
            Status::Refused => standing == Standing::Refused || (standing.has_ended() && !is_committed),
            // Its client rolled it back, and meanwhile every store had cleaned it: either is true.
            Status::Aborted if known.wishes.abort && standing == Standing::Truncated => true,
            Status::Aborted => standing == Standing::Aborted,
            Status::Invalid(cause) => match standing {
                Standing::Invalid(durable) => durable == cause,
                // It was cleaned up meanwhile.
                Standing::Aborted | Standing::Truncated => true,
                _ => false,
            },
            Status::Open | Status::Deciding => !facts.has_ended,
            Status::Forgotten if tx < self.reference.upkeep.floor => true,
            Status::Forgotten => match standing {
                Standing::Committed(_) | Standing::Aborted => {
                    self.probes.hit(Probe::OutcomeForgotten);
                    let since = self.reference.outcomes - known.ended_place;
                    since >= self.knobs.options.outcomes_max as u64
                }
                Standing::Truncated => true,
                // Its begin was lost in a crash and the crash is not recovered from, or it is not durable.
                Standing::Handed => true,
                Standing::Open | Standing::Refused | Standing::Invalid(_) => false,
            },
        };
        if let Status::Committed(csn) = status {
            self.told_csn = self.told_csn.max(csn.0);
        }
        hold(fits, law::OUTCOME, || format!("{tx} is said to be {status:?}, and what is durable says {standing:?}"))
    }

    /// Somebody was told that its call ended a transaction, or that it did not.
    pub fn judge_ended(&self, tx: WritePointer, ended: bool) -> Judged {
        let standing = self.reference.standing(tx);
        let fits = !ended || matches!(standing, Some(Standing::Invalid(_) | Standing::Aborted | Standing::Truncated));
        hold(fits, law::DURABLE, || format!("{tx} was told to be invalid, and what is durable says {standing:?}"))
    }

    /// A read through a snapshot: the newest committed value that it shows, and nothing else.
    pub fn judge_read(&self, key: Key, snapshot: &Snapshot, found: Option<Version>) -> Judged {
        let csn = snapshot.csn.0;
        if LATE.contains(&key) {
            // Its writer may be late, or dead; what is there has to be committed.
            let Some(found) = found else { return Ok(()) };
            let is_committed = self.reference.history[key].iter().any(|w| w.csn <= csn && w.version == found);
            return hold(is_committed, law::READ, || {
                format!("key {key} at {csn} reads {found:?}, which nobody committed")
            });
        }
        let expected = self.reference.expected(key, csn, BULK.contains(&key));
        hold(found == expected, law::READ, || {
            let wrote = found.and_then(|found| self.reference.standing(found.pointer));
            format!("key {key} at commit {csn} reads {found:?} ({wrote:?}) in place of {expected:?}")
        })
    }

    /// Bounds were published: nobody reads below them, in a transaction or through a snapshot alone.
    pub fn judge_bound(&self, bounds: &Bounds) -> Judged {
        self.judge_visible(bounds.visible)
    }

    fn judge_visible(&self, bound: WritePointer) -> Judged {
        for (tx, snapshot, reads_to_us) in self.clients.iter().flat_map(|client| client.readers()) {
            let may_be_gone = match tx {
                Some(tx) => self.reference.standing(tx).is_none_or(Standing::has_ended),
                None => self.now() >= reads_to_us,
            };
            hold(may_be_gone || bound <= snapshot.settled(), law::BOUND, || {
                format!("bound {bound} passed {tx:?}, for whom {} is settled", snapshot.settled())
            })?;
        }
        Ok(())
    }

    /// Not everybody finished in time.
    pub fn judge_unfinished(&self) -> Judged {
        let busy: Vec<String> = self.clients.iter().flat_map(|client| client.busy()).collect();
        let open: Vec<WritePointer> = self.open_ones().take(5).collect();
        broken(law::LIVE, format!("still busy: {busy:?}; still open: {open:?}; server up: {}", self.server.is_some()))
    }

    /// What has not ended, as far as is durable.
    pub fn open_ones(&self) -> impl Iterator<Item = WritePointer> + '_ {
        let is_open = |standing| matches!(standing, Standing::Open | Standing::Refused);
        self.reference.transactions.iter().filter(move |(_, known)| is_open(known.standing)).map(|(tx, _)| *tx)
    }

    /// Everything has ended: the newest snapshot shows all of it, and nothing else.
    pub fn judge_final(&mut self, snapshot: &Snapshot) -> Judged {
        let mut sum = 0;
        for key in 0..crate::store::KEYS {
            let found = self.store.read(key, snapshot);
            self.judge_read(key, snapshot, found)?;
            if crate::store::ACCOUNTS.contains(&key) {
                sum += found.map_or(first_value(key), |version| version.value);
            }
        }
        let deposits = crate::store::DEPOSIT * crate::store::ACCOUNTS.len() as i64;
        hold(sum == deposits, law::READ, || format!("the accounts sum up to {sum} in place of {deposits}"))?;
        // What a dead client had sent may be open for a while.
        let in_progress = snapshot.in_progress.len();
        hold(in_progress == 0 || self.reference.unended().next().is_some(), law::SNAPSHOT, || {
            format!("everything has ended, and {in_progress} pointers are in progress: {:?}", snapshot.in_progress)
        })
    }
}
