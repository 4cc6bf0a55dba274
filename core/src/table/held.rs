//! What a decider has in its hands: seats for transactions about to begin, and a transaction about to end.

use super::{
    ABORTING, BEGUN, CHECKPOINTS_SHIFT, COMMITTING, DEADLINE, DECIDING, Entering, FLAG_PENDING, INVALIDATING,
    LABEL_MASK, OPEN, REFUSED, STATE_MASK, TICKET, Table, kind, snapshot, tag,
};
use crate::labels::LabelId;
use crate::pointer::{CommitNumber, SequencerTime, WritePointer};
use crate::ring::Ticket;
use crate::sync::{Ordering, Wait};
use crate::transaction::{Full, Kind};

/// Seats that were taken for transactions about to begin; those not used are given back.
pub(crate) struct Seats<'t> {
    table: &'t Table,
    left: u64,
}

/// What came of the attempt to own a transaction.
pub(crate) enum Hold<'t> {
    Held(Held<'t>),
    /// It was ended by the event with this ticket.
    Ended(Ticket),
    Absent,
}

/// A transaction in the hands of the one who decides. Dropped without a decision it is what it was before.
pub(crate) struct Held<'t> {
    table: &'t Table,
    at: usize,
    /// The state word before it was taken.
    before: u64,
}

/// How a transaction ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    Committing = COMMITTING as isize,
    Aborting = ABORTING as isize,
    Invalidating = INVALIDATING as isize,
}

impl Table {
    /// Takes seats for `count` transactions.
    pub(crate) fn seats(&self, count: u32) -> Result<Seats<'_>, Full> {
        let mut open = self.open.load(Ordering::Relaxed);
        loop {
            let after = open + u64::from(count);
            if after > self.open_max {
                return Err(Full::OpenTransactions);
            }
            match self.open.compare_exchange_weak(open, after, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(Seats { table: self, left: u64::from(count) }),
                Err(now) => open = now,
            }
        }
    }

    /// Seats for transactions that survived a restart: they stay open even if the limit is smaller now.
    pub(crate) fn seats_of_survivors(&self, count: usize) -> Seats<'_> {
        self.open.fetch_add(count as u64, Ordering::Relaxed);
        Seats { table: self, left: count as u64 }
    }

    /// Makes the caller the owner of a transaction, waiting while somebody else decides about it.
    pub(crate) fn hold(&self, tx: WritePointer) -> Hold<'_> {
        let mut wait = Wait::default();
        loop {
            let Some((at, word)) = self.find(tx) else { return Hold::Absent };
            match word & STATE_MASK {
                OPEN | REFUSED => {
                    let deciding = tag(tx) | DECIDING;
                    // AcqRel, pair A: brings the fields, and what the owner before did.
                    if self.word(at).compare_exchange(word, deciding, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                        return Hold::Held(Held { table: self, at, before: word });
                    }
                }
                DECIDING => wait.a_moment(),
                _ => {
                    let ticket = self.fields[at][TICKET].load(Ordering::Relaxed);
                    if self.is_still(at, word) {
                        return Hold::Ended(Ticket(ticket - 1));
                    }
                }
            }
        }
    }
}

impl Seats<'_> {
    /// Enters one transaction, open.
    pub(crate) fn enter(&mut self, tx: WritePointer, entering: &Entering) {
        self.enter_as(tx, entering, false);
    }

    /// Enters one transaction, open or refused.
    pub(crate) fn enter_as(&mut self, tx: WritePointer, entering: &Entering, refused: bool) {
        self.left = self.left.checked_sub(1).expect("a transaction has a seat");
        self.table.enter(tx, entering, refused);
    }
}

impl Drop for Seats<'_> {
    fn drop(&mut self) {
        if self.left > 0 {
            self.table.open.fetch_sub(self.left, Ordering::Relaxed);
        }
    }
}

impl Held<'_> {
    /// True if a commit of it was refused before.
    pub(crate) fn was_refused(&self) -> bool {
        self.before & STATE_MASK == REFUSED
    }

    pub(crate) fn kind(&self) -> Kind {
        kind(self.field(BEGUN))
    }

    pub(crate) fn snapshot(&self) -> CommitNumber {
        snapshot(self.field(BEGUN))
    }

    pub(crate) fn deadline(&self) -> SequencerTime {
        SequencerTime(self.field(DEADLINE))
    }

    pub(crate) fn label(&self) -> LabelId {
        LabelId((self.extra() & LABEL_MASK) as u16)
    }

    /// Further write pointers that it took.
    pub(crate) fn checkpoints(&self) -> u32 {
        self.extra() >> CHECKPOINTS_SHIFT
    }

    /// One further write pointer was taken; there is room for it.
    pub(crate) fn add_checkpoint(&self) {
        self.set_extra(self.extra() + (1 << CHECKPOINTS_SHIFT));
    }

    /// True if a checked change set is kept for it.
    pub(crate) fn has_pending(&self) -> bool {
        self.extra() & FLAG_PENDING != 0
    }

    pub(crate) fn set_pending(&self, kept: bool) {
        let others = self.extra() & !FLAG_PENDING;
        self.set_extra(if kept { others | FLAG_PENDING } else { others });
    }

    // Relaxed, both: only the owner writes, and the next one comes after it (pair A).
    fn extra(&self) -> u32 {
        self.table.extras[self.at].load(Ordering::Relaxed)
    }

    fn set_extra(&self, extra: u32) {
        self.table.extras[self.at].store(extra, Ordering::Relaxed);
    }

    /// The ticket of the refusal, if that was in this run.
    pub(crate) fn refusal(&self) -> Option<Ticket> {
        self.field(TICKET).checked_sub(1).map(Ticket)
    }

    /// It ends, by the event with this ticket, which the consumer has not got yet: the entry may be freed as soon as it
    /// has.
    pub(crate) fn end(self, ending: Ending, ticket: Ticket) {
        self.leave(ending as u64, ticket);
    }

    /// Its commit is refused by the event with this ticket.
    pub(crate) fn refuse(self, ticket: Ticket) {
        self.leave(REFUSED, ticket);
    }

    fn leave(self, state: u64, ticket: Ticket) {
        self.table.fields[self.at][TICKET].store(ticket.0 + 1, Ordering::Relaxed);
        // Release, pair A: who sees the state sees its ticket.
        self.table.word(self.at).store(self.before & !STATE_MASK | state, Ordering::Release);
        std::mem::forget(self);
    }

    fn field(&self, index: usize) -> u64 {
        self.table.fields[self.at][index].load(Ordering::Relaxed)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // Release, pair A: the next owner comes after this one.
        self.table.word(self.at).store(self.before, Ordering::Release);
    }
}
