//! What the sequencer should be, written so that it can be seen to be right.

use std::collections::{BTreeMap, HashMap, VecDeque};

use seriatim_core::event::{Begin, Event};
use seriatim_core::*;

/// What a set costs beside its ids while it waits for its commit.
const PENDING_SET_COST: usize = 36;

#[derive(Clone, Debug)]
pub struct Tx {
    pub kind: Kind,
    pub snapshot: u64,
    pub deadline: SequencerTime,
    pub session: u64,
    pub label: Option<&'static str>,
    pub checkpoints: u32,
    /// The change set that passed a check and waits.
    pub pending: Option<ChangeSet>,
    pub status: Status,
    /// Ticket of the refusal or the end, if that was in this run.
    pub ticket: Option<u64>,
}

/// The decided state.
pub struct Naive {
    pub limits: Limits,
    pub exact_index: bool,
    pub next: u64,
    pub window_end: u64,
    pub csn: u64,
    /// Open, refused, and ended but not published (status as it will be).
    pub table: BTreeMap<u64, Tx>,
    /// Events on their way to the publisher; `None` where a slot was taken for nothing.
    pub ring: VecDeque<Option<Event>>,
    pub next_ticket: u64,
    /// Change id to the last commit that wrote it, in this run.
    pub index: HashMap<u64, u64>,
    pub floor: u64,
    pub winners: BTreeMap<u64, (u64, Option<&'static str>)>,
    /// Every pointer that was handed out in this run.
    pub handed_out: Vec<u64>,
}

impl Naive {
    pub fn new(limits: Limits, exact_index: bool, next: u64, window_end: u64) -> Naive {
        Naive {
            limits,
            exact_index,
            next,
            window_end,
            csn: 0,
            table: BTreeMap::new(),
            ring: VecDeque::new(),
            next_ticket: 0,
            index: HashMap::new(),
            floor: 0,
            winners: BTreeMap::new(),
            handed_out: Vec::new(),
        }
    }

    pub fn room(&self) -> Result<(), Full> {
        if self.ring.len() < self.limits.event_ring_slots as usize { Ok(()) } else { Err(Full::EventRing) }
    }

    pub fn push(&mut self, event: Option<Event>) -> u64 {
        self.ring.push_back(event);
        self.next_ticket += 1;
        self.next_ticket - 1
    }

    pub fn take(&mut self, count: u32) -> Result<u64, Full> {
        self.room()?;
        if self.next + u64::from(count) > self.window_end {
            self.push(None);
            return Err(Full::Window);
        }
        let first = self.next;
        self.next += u64::from(count);
        self.handed_out.extend(first..self.next);
        Ok(first)
    }

    pub fn begin(
        &mut self,
        now: SequencerTime,
        options: &BeginOptions,
        count: u32,
        (session, label): (u64, Option<&'static str>),
        snapshot: &Snapshot,
    ) -> Result<(u64, SequencerTime, u64), BeginError> {
        if count == 0 || count > self.limits.block_max {
            return Err(BeginError::BlockSize { asked: count.into(), max: self.limits.block_max.into() });
        }
        let deadline = match (options.kind, options.timeout_ms) {
            (Kind::Short, Some(0)) => return Err(BeginError::TimeoutNotPositive),
            (Kind::Short, Some(ms)) if ms > self.limits.short_timeout_ms_max => {
                return Err(BeginError::TimeoutTooLong { asked_ms: ms, max_ms: self.limits.short_timeout_ms_max });
            }
            (Kind::Short, None) => now.plus_ms(self.limits.short_timeout_ms),
            (Kind::Long, None) => now.plus_ms(self.limits.long_timeout_ms),
            (Kind::Long, Some(0)) => SequencerTime::NEVER,
            (_, Some(ms)) => now.plus_ms(ms),
        };
        if self.table.len() + count as usize > self.limits.open_max as usize {
            return Err(BeginError::Overloaded(Full::OpenTransactions));
        }
        let first = self.take(count).map_err(BeginError::Overloaded)?;
        let begun = Tx {
            kind: options.kind,
            snapshot: snapshot.csn.0,
            deadline,
            session,
            label,
            checkpoints: 0,
            pending: None,
            status: Status::Open,
            ticket: None,
        };
        self.table.extend((first..first + u64::from(count)).map(|tx| (tx, begun.clone())));
        let ticket = self.push(Some(Event::Begin(Begin {
            first: WritePointer(first),
            count,
            kind: options.kind,
            deferred: options.deferred,
            detached: options.detached,
            deadline,
            snapshot: snapshot.csn,
            settled: snapshot.settled(),
        })));
        Ok((first, deadline, ticket))
    }

    /// The end, or the refusal, of a transaction in the table. Whatever comes of it, its checked set is gone.
    fn end(&mut self, tx: u64, status: Status, event: Event) -> Result<u64, Full> {
        self.table.get_mut(&tx).expect("it is in the table").pending = None;
        self.room()?;
        let ticket = self.push(Some(event));
        let entry = self.table.get_mut(&tx).expect("it is in the table");
        (entry.status, entry.ticket) = (status, Some(ticket));
        Ok(ticket)
    }

    fn expire(&mut self, at: u64) -> Result<(CommitError, u64), CommitError> {
        let (tx, cause) = (WritePointer(at), InvalidCause::Expired);
        let ticket = self.end(at, Status::Invalid(cause), Event::Invalidated { tx, cause });
        ticket.map(|ticket| (CommitError::Expired { tx }, ticket)).map_err(CommitError::Overloaded)
    }

    /// Why these changes would not commit. `said` is a refusal of the real one, which counts only where the index may
    /// have forgotten.
    fn fault(&self, at: u64, changes: &ChangeSet, said: Option<&CommitError>) -> Option<CommitError> {
        let (tx, entry) = (WritePointer(at), &self.table[&at]);
        if let Some(said @ CommitError::TooOld { mark, .. }) = said
            && !self.exact_index
        {
            assert!(entry.snapshot < mark.0, "{said}");
            return Some(said.clone());
        }
        changes.writes.iter().chain(&changes.reads).find_map(|id| match self.index.get(&id.0) {
            Some(csn) if *csn > entry.snapshot => {
                let winner = self.winners.get(csn).copied();
                Some(CommitError::Conflict {
                    tx,
                    change_id: id.0,
                    csn: CommitNumber(*csn),
                    winner: winner.map(|(winner, _)| WritePointer(winner)),
                    label: winner.and_then(|(_, label)| label).map(Into::into),
                })
            }
            None if entry.snapshot < self.floor => {
                Some(CommitError::TooOld { tx, snapshot: CommitNumber(entry.snapshot), mark: CommitNumber(self.floor) })
            }
            _ => None,
        })
    }

    fn check_len(&self, changes: &ChangeSet) -> Result<(), CommitError> {
        let (len, max) = (changes.len() as u64, self.limits.change_ids_max as u64);
        if len > max { Err(CommitError::ChangeSetTooLarge { len, max }) } else { Ok(()) }
    }

    /// What a check comes to, with what the real one said.
    pub fn can_commit(&mut self, now: SequencerTime, at: u64, changes: &ChangeSet, said: &Advice) -> Advice {
        let tx = WritePointer(at);
        if let Err(error) = self.check_len(changes) {
            return Advice::Fails(error);
        }
        let Some(entry) = self.table.get(&at).cloned() else { return Advice::Unknown };
        match (entry.status, entry.ticket.map(Ticket)) {
            (Status::Open, _) => {}
            (Status::Refused, ticket) => {
                let error = CommitError::NotInProgress { tx, ended: Status::Refused };
                return match ticket {
                    Some(ticket) => Advice::Refused { error, ticket },
                    None => Advice::Fails(error),
                };
            }
            (_, ticket) => return Advice::Ending { ticket: ticket.expect("ended in this run") },
        }
        if now >= entry.deadline {
            return match self.expire(at) {
                Ok((error, ticket)) => Advice::Refused { error, ticket: Ticket(ticket) },
                Err(error) => Advice::Fails(error),
            };
        }
        if entry.kind == Kind::Long && !changes.is_empty() {
            return Advice::Fails(CommitError::LongWithChanges { tx });
        }
        let said = if let Advice::Fails(error) = said { Some(error) } else { None };
        if let Some(error) = self.fault(at, changes, said) {
            return Advice::Fails(error);
        }
        self.table.get_mut(&at).expect("it is there").pending = None;
        let kept: usize = self.table.values().filter_map(|tx| tx.pending.as_ref()).map(cost).sum();
        if kept + cost(changes) <= self.limits.pending_ids_max {
            self.table.get_mut(&at).expect("it is there").pending = Some(changes.clone());
        }
        Advice::Passes { digest: changes.digest() }
    }

    /// What a commit comes to, with what the real one said.
    pub fn commit(&mut self, now: SequencerTime, at: u64, submission: Submission<'_>, said: &Decision) -> Decision {
        let tx = WritePointer(at);
        if let Changes::Given(changes) = submission.changes
            && let Err(error) = self.check_len(changes)
        {
            return Decision::Denied(error);
        }
        let Some(entry) = self.table.get(&at).cloned() else { return Decision::Unknown };
        match (entry.status, entry.ticket.map(Ticket)) {
            (Status::Open, _) => {}
            (Status::Refused, ticket) => {
                let error = CommitError::NotInProgress { tx, ended: Status::Refused };
                return match ticket {
                    Some(ticket) => Decision::Refused { error, ticket },
                    None => Decision::Denied(error),
                };
            }
            (_, ticket) => return Decision::Ending { ticket: ticket.expect("ended in this run") },
        }
        if now >= entry.deadline {
            return match self.expire(at) {
                Ok((error, ticket)) => Decision::Refused { error, ticket: Ticket(ticket) },
                Err(error) => Decision::Denied(error),
            };
        }
        let (known, named) = (entry.checkpoints, submission.checkpoints);
        if known != named {
            return Decision::Denied(CommitError::CheckpointMismatch { tx, known, named });
        }
        let changes = match submission.changes {
            Changes::Given(changes) if entry.kind == Kind::Long && !changes.is_empty() => {
                return Decision::Denied(CommitError::LongWithChanges { tx });
            }
            Changes::Given(changes) => changes.clone(),
            Changes::Checked(digest) => match entry.pending.filter(|changes| changes.digest() == digest) {
                Some(changes) => changes,
                None => return Decision::Denied(CommitError::NeedChanges { tx }),
            },
        };
        let said = if let Decision::Refused { error, .. } = said { Some(error) } else { None };
        if let Some(error) = self.fault(at, &changes, said) {
            return match self.end(at, Status::Refused, Event::Refused { tx }) {
                Ok(ticket) => Decision::Refused { error, ticket: Ticket(ticket) },
                Err(full) => Decision::Denied(CommitError::Overloaded(full)),
            };
        }
        let stored: ChangeIds = changes.writes.iter().chain(&changes.marks).copied().collect();
        let csn = self.csn + 1;
        match self.end(at, Status::Committed(CommitNumber(csn)), Event::Commit { tx, stored: stored.clone() }) {
            Err(full) => Decision::Denied(CommitError::Overloaded(full)),
            Ok(ticket) => {
                self.csn = csn;
                self.index.extend(stored.iter().map(|id| (id.0, csn)));
                self.winners.insert(csn, (at, entry.label));
                self.winners.retain(|old, _| old + u64::from(self.limits.winners) > csn);
                Decision::Committed { csn: CommitNumber(csn), ticket: Ticket(ticket) }
            }
        }
    }

    pub fn checkpoint(&mut self, now: SequencerTime, at: u64, number: u32) -> Checkpointing {
        let tx = WritePointer(at);
        let Some(entry) = self.table.get(&at).cloned() else { return Checkpointing::Unknown };
        match (entry.status, entry.ticket.map(Ticket)) {
            (Status::Open, _) => {}
            (Status::Refused, ticket) => {
                let error = CommitError::NotInProgress { tx, ended: Status::Refused };
                return match ticket {
                    Some(ticket) => Checkpointing::Refused { error, ticket },
                    None => Checkpointing::Denied(error),
                };
            }
            (_, ticket) => return Checkpointing::Ending { ticket: ticket.expect("ended in this run") },
        }
        if now >= entry.deadline {
            return match self.expire(at) {
                Ok((error, ticket)) => Checkpointing::Refused { error, ticket: Ticket(ticket) },
                Err(error) => Checkpointing::Denied(error),
            };
        }
        let known = entry.checkpoints;
        if (1..=known).contains(&number) {
            return Checkpointing::Repeated;
        }
        if number != known + 1 {
            let named = number.saturating_sub(1);
            return Checkpointing::Denied(CommitError::CheckpointMismatch { tx, known, named });
        }
        match self.take(1) {
            Ok(pointer) => {
                let pointer = WritePointer(pointer);
                self.table.get_mut(&at).expect("it is there").checkpoints += 1;
                let ticket = Ticket(self.push(Some(Event::Checkpoint { tx, pointer })));
                Checkpointing::Taken { pointer, ticket }
            }
            Err(full) => Checkpointing::Denied(CommitError::Overloaded(full)),
        }
    }

    pub fn abort_or_invalidate(&mut self, at: u64, cause: Option<InvalidCause>) -> End {
        let tx = WritePointer(at);
        let Some(entry) = self.table.get(&at).cloned() else { return End::Unknown };
        if !matches!(entry.status, Status::Open | Status::Refused) {
            return End::Ending { ticket: Ticket(entry.ticket.expect("ended in this run")) };
        }
        let cause = cause.or((entry.kind == Kind::Long).then_some(InvalidCause::LongAborted));
        let (status, event) = match cause {
            None => (Status::Aborted, Event::Aborted { tx }),
            Some(cause) => (Status::Invalid(cause), Event::Invalidated { tx, cause }),
        };
        match self.end(at, status, event) {
            Ok(ticket) => End::Ended { status, ticket: Ticket(ticket) },
            Err(full) => End::Denied(CommitError::Overloaded(full)),
        }
    }

    pub fn look(&self, at: u64) -> Option<Status> {
        self.table.get(&at).map(|entry| match entry.status {
            status @ (Status::Open | Status::Refused) => status,
            _ => Status::Deciding,
        })
    }

    /// Takes out as the publisher would; ends leave the table.
    pub fn drain(&mut self, max: usize) -> Vec<(Ticket, Event)> {
        let mut drained = Vec::new();
        while drained.len() < max && !self.ring.is_empty() {
            let ticket = Ticket(self.next_ticket - self.ring.len() as u64);
            drained.extend(self.ring.pop_front().flatten().map(|event| (ticket, event)));
        }
        for (_, event) in &drained {
            match event {
                Event::Commit { tx, .. } | Event::Aborted { tx } | Event::Invalidated { tx, .. } => {
                    self.table.remove(&tx.0);
                }
                Event::Window { end } => self.window_end = self.window_end.max(end.0),
                _ => {}
            }
        }
        drained
    }

    /// A new process goes on from what was published.
    pub fn restart(&mut self, first: u64, window_end: u64, csn: u64, open: impl Iterator<Item = OpenTransaction>) {
        let entries = open.map(|open| {
            let OpenTransaction { kind, deadline, checkpoints, snapshot, .. } = open;
            let status = if open.refused { Status::Refused } else { Status::Open };
            let (session, label, pending, ticket) = (0, None, None, None);
            let snapshot = snapshot.0;
            (open.tx.0, Tx { kind, snapshot, deadline, session, label, checkpoints, pending, status, ticket })
        });
        let table = entries.collect();
        *self =
            Naive { table, csn, floor: csn, ..Naive::new(self.limits.clone(), self.exact_index, first, window_end) };
    }
}

fn cost(changes: &ChangeSet) -> usize {
    PENDING_SET_COST + changes.len()
}
