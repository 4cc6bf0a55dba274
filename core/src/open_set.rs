//! The open transactions of the published state, by pointer and by deadline.
//!
//! A hashed timer wheel (Varghese and Lauck 1987, scheme 6): a deadline falls into the slot of its tick, a transaction
//! is a link in its slot's list, so beginning and ending cost the same however many are open. Deadlines beyond one
//! turn of the wheel are passed over until their turn comes.

use rustc_hash::FxHashMap;

use crate::pointer::{SequencerTime, WritePointer};
use crate::transaction::OpenTransaction;

/// Milliseconds of one slot of the wheel: how late an expiry may be noticed.
pub const TICK_MS: u64 = 64;
/// Slots of the wheel: 65 s in one turn, twice the default deadline.
const SLOTS: usize = 1024;
/// A transaction that was named as due and is still here is named again after this time.
const AGAIN_MS: u64 = 1_000;
/// The end of a list.
const NONE: u32 = u32::MAX;

/// The open transactions; see the head of this file.
#[derive(Clone, Debug)]
pub struct OpenSet {
    places: FxHashMap<u64, u32>,
    links: Vec<Link>,
    free: Vec<u32>,
    /// First link of each slot.
    slots: Vec<u32>,
    /// The tick up to which slots have been visited.
    visited: u64,
}

#[derive(Clone, Debug)]
struct Link {
    transaction: OpenTransaction,
    /// When to look at it: its deadline, or later once it was named.
    due: u64,
    /// The slot it hangs in, or `NONE`.
    slot: u32,
    before: u32,
    after: u32,
}

impl Default for OpenSet {
    fn default() -> OpenSet {
        OpenSet {
            places: FxHashMap::default(),
            links: Vec::new(),
            free: Vec::new(),
            slots: vec![NONE; SLOTS],
            visited: 0,
        }
    }
}

impl OpenSet {
    /// Number of open transactions.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// The transaction with this pointer, if it is open.
    pub fn get(&self, tx: WritePointer) -> Option<&OpenTransaction> {
        self.places.get(&tx.0).map(|place| &self.links[*place as usize].transaction)
    }

    /// The transaction with this pointer, to be changed in anything but its pointer and deadline.
    pub fn get_mut(&mut self, tx: WritePointer) -> Option<&mut OpenTransaction> {
        self.places.get(&tx.0).map(|place| &mut self.links[*place as usize].transaction)
    }

    /// Every open transaction, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &OpenTransaction> {
        self.places.values().map(|place| &self.links[*place as usize].transaction)
    }

    /// Adds a transaction; one with the same pointer is replaced.
    pub fn insert(&mut self, transaction: OpenTransaction) {
        self.remove(transaction.tx);
        let link = Link { due: transaction.deadline.0, transaction, slot: NONE, before: NONE, after: NONE };
        let place = match self.free.pop() {
            Some(place) => {
                self.links[place as usize] = link;
                place
            }
            None => {
                self.links.push(link);
                (self.links.len() - 1) as u32
            }
        };
        self.places.insert(transaction.tx.0, place);
        self.hang(place);
    }

    /// Takes a transaction out.
    pub fn remove(&mut self, tx: WritePointer) -> Option<OpenTransaction> {
        let place = self.places.remove(&tx.0)?;
        self.unhang(place);
        self.free.push(place);
        Some(self.links[place as usize].transaction)
    }

    /// Gives every transaction at least until `earliest`: who survived a restart had no chance to end in between.
    pub fn postpone_to(&mut self, earliest: SequencerTime) {
        let places: Vec<u32> = self.places.values().copied().collect();
        for place in places {
            let link = &self.links[place as usize];
            if link.transaction.deadline < earliest {
                self.unhang(place);
                let link = &mut self.links[place as usize];
                link.transaction.deadline = earliest;
                link.due = earliest.0;
                self.hang(place);
            }
        }
    }

    /// Calls `name` with every transaction whose deadline has passed. Who is still here a second later is named again.
    pub fn for_each_due(&mut self, now: SequencerTime, mut name: impl FnMut(&OpenTransaction)) {
        let tick = now.0 / TICK_MS;
        let span = tick.saturating_sub(self.visited).min(SLOTS as u64);
        let mut late = Vec::new();
        for tick in tick - span..tick {
            let mut place = self.slots[tick as usize % SLOTS];
            while place != NONE {
                let link = &self.links[place as usize];
                if link.due <= now.0 {
                    late.push(place);
                }
                place = link.after;
            }
        }
        self.visited = self.visited.max(tick);
        for place in late {
            name(&self.links[place as usize].transaction);
            self.unhang(place);
            self.links[place as usize].due = now.0 + AGAIN_MS;
            self.hang(place);
        }
    }

    /// Puts a link at the front of its slot's list. What never comes due hangs nowhere.
    fn hang(&mut self, place: u32) {
        let due = self.links[place as usize].due;
        if due == SequencerTime::NEVER.0 {
            return;
        }
        // A slot is visited once its tick has passed, so what is due at once hangs in the next one to be visited.
        let slot = (due / TICK_MS).max(self.visited) as usize % SLOTS;
        let first = std::mem::replace(&mut self.slots[slot], place);
        if first != NONE {
            self.links[first as usize].before = place;
        }
        let link = &mut self.links[place as usize];
        (link.slot, link.before, link.after) = (slot as u32, NONE, first);
    }

    fn unhang(&mut self, place: u32) {
        let link = &mut self.links[place as usize];
        let (slot, before, after) = (link.slot, link.before, link.after);
        (link.slot, link.before, link.after) = (NONE, NONE, NONE);
        if slot == NONE {
            return;
        }
        match before {
            NONE => self.slots[slot as usize] = after,
            before => self.links[before as usize].after = after,
        }
        if after != NONE {
            self.links[after as usize].before = before;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pointer::CommitNumber;
    use crate::transaction::Kind;

    fn transaction(tx: u64, deadline: u64) -> OpenTransaction {
        OpenTransaction {
            tx: WritePointer(tx),
            kind: Kind::Short,
            deferred: false,
            detached: false,
            refused: false,
            checkpoints: 0,
            deadline: SequencerTime(deadline),
            snapshot: CommitNumber(0),
            settled: WritePointer(0),
        }
    }

    fn due(set: &mut OpenSet, now: u64) -> Vec<u64> {
        let mut named = Vec::new();
        set.for_each_due(SequencerTime(now), |open| named.push(open.tx.0));
        named.sort();
        named
    }

    #[test]
    fn names_each_transaction_soon_after_its_deadline_and_never_before() {
        let mut set = OpenSet::default();
        let deadlines = [1, 100, 101, 5_000, 30_000, 64 * 1024 + 10, 200_000, u64::MAX];
        for (tx, deadline) in deadlines.into_iter().enumerate() {
            set.insert(transaction(tx as u64, deadline));
        }
        set.remove(WritePointer(3));
        let mut seen = vec![None; deadlines.len()];
        for now in (0..300_000).step_by(10) {
            for tx in due(&mut set, now) {
                assert!(deadlines[tx as usize] <= now, "{tx} named at {now}");
                seen[tx as usize].get_or_insert(now);
            }
        }
        for (tx, deadline) in deadlines.into_iter().enumerate() {
            match (tx, seen[tx]) {
                (3, seen) => assert_eq!(seen, None),
                (_, None) => assert_eq!(deadline, u64::MAX),
                (_, Some(at)) => assert!(at <= deadline + 2 * TICK_MS, "{tx} due {deadline} named at {at}"),
            }
        }
        assert_eq!(set.len(), deadlines.len() - 1);
    }

    #[test]
    fn who_is_named_and_stays_is_named_again() {
        let mut set = OpenSet::default();
        set.insert(transaction(1, 50));
        assert_eq!(due(&mut set, 200), [1]);
        assert_eq!(due(&mut set, 400), []);
        assert_eq!(due(&mut set, 2_000), [1]);
        set.remove(WritePointer(1));
        assert_eq!(due(&mut set, 9_000), []);
    }

    #[test]
    fn survivors_keep_the_time_they_are_promised() {
        let mut set = OpenSet::default();
        set.insert(transaction(1, 50));
        set.insert(transaction(2, 90_000));
        set.postpone_to(SequencerTime(5_000));
        assert_eq!(due(&mut set, 4_990), []);
        assert_eq!(due(&mut set, 5_100), [1]);
        assert_eq!(set.get(WritePointer(2)).unwrap().deadline.0, 90_000);
    }

    #[test]
    fn a_long_pause_visits_every_slot_once() {
        let mut set = OpenSet::default();
        for tx in 0..5_000 {
            set.insert(transaction(tx, tx * 37));
        }
        assert_eq!(due(&mut set, 10_000_000).len(), 5_000);
    }
}
