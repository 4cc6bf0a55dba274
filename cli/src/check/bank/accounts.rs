//! The bank's books: accounts with balances, a ledger with one row per transfer, and what moves the one and writes the
//! other.
//!
//! Every transfer reads two balances and writes both, so a lost update or a half-written transfer changes the total.
//! Most transfers touch one of a few *hot* accounts, so that conflicts are common. The last few accounts are *quiet*:
//! only transfers that are to be killed half-way touch them, so that nobody's later write covers the half up.

use std::ops::Range;

use seriatim_core::{CommitNumber, WritePointer};
use seriatim_kv::{Db, Error, RunOptions, Table, Tx, View};

/// What each account holds at first.
pub const OPENING_BALANCE: u64 = 1_000;
/// One leg in two of a transfer is at one of so many accounts.
pub const HOT_ACCOUNTS: u32 = 8;
/// The most that one transfer moves.
pub const AMOUNT_MAX: u64 = 50;
/// Fewest accounts of a bank: enough for hot, cold and quiet ones.
pub const ACCOUNTS_MIN: u32 = 32;
/// Accounts opened by one transaction.
const OPENED_AT_ONCE: u32 = 10_000;

/// The tables of a bank with a given number of accounts.
#[derive(Clone, Debug)]
pub struct Bank {
    pub accounts: Table,
    pub ledger: Table,
    count: u32,
}

/// Which accounts a transfer means to move how much between. What it does move depends on the balances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    pub from: u32,
    pub to: u32,
    pub amount: u64,
}

/// A row of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    pub from: u32,
    pub to: u32,
    pub amount: u64,
}

/// A transfer inside its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    pub transfer: Transfer,
    /// The accounts that it read, and whose versions it got.
    pub read: [(u32, Option<WritePointer>); 2],
}

/// Accounts that one transaction opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    pub accounts: Range<u32>,
    pub tx: WritePointer,
    pub csn: Option<CommitNumber>,
}

/// Names a transfer: the client's number and the client's count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId {
    pub client: u32,
    pub sequence: u64,
}

/// The store holds what no bank writes.
#[derive(Debug, thiserror::Error)]
#[error("the table {table:?} holds a broken row: key {key:02x?}, value {value:02x?}")]
pub struct BrokenRow {
    table: String,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Bank {
    /// A bank of `count` accounts, at least [`ACCOUNTS_MIN`].
    pub fn new(count: u32) -> Bank {
        assert!(count >= ACCOUNTS_MIN, "a bank of {count} accounts is below {ACCOUNTS_MIN}");
        Bank { accounts: Table::new("accounts"), ledger: Table::new("ledger"), count }
    }

    /// Number of accounts.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// What all accounts hold together, always.
    pub fn total(&self) -> u64 {
        u64::from(self.count) * OPENING_BALANCE
    }

    /// Opens all accounts.
    pub fn open(&self, db: &Db) -> Result<Vec<Opened>, Error> {
        let firsts = (0..self.count).step_by(OPENED_AT_ONCE as usize);
        let opened = firsts.map(|first| {
            let accounts = first..self.count.min(first.saturating_add(OPENED_AT_ONCE));
            let done = db.run_with(RunOptions::default(), |tx| {
                accounts.clone().try_for_each(|account| self.put_balance(tx, account, OPENING_BALANCE))
            })?;
            Ok(Opened { accounts, tx: done.tx, csn: done.csn })
        });
        opened.collect()
    }

    /// An ordinary transfer.
    pub fn plan(&self, random: &mut fastrand::Rng) -> Plan {
        let busy = self.first_quiet();
        let from = Self::pick(random, busy);
        let to = std::iter::repeat_with(|| Self::pick(random, busy)).find(|to| *to != from).expect("there are others");
        Plan { from, to, amount: random.u64(1..=AMOUNT_MAX) }
    }

    /// A transfer between quiet accounts.
    pub fn quiet_plan(&self, random: &mut fastrand::Rng) -> Plan {
        let quiet = self.first_quiet()..self.count;
        let from = random.u32(quiet.clone());
        let to = if from + 1 == quiet.end { quiet.start } else { from + 1 };
        Plan { from, to, amount: random.u64(1..=AMOUNT_MAX) }
    }

    /// Moves coins and writes the ledger. Nobody is overdrawn: an empty account receives instead, and no more is moved
    /// than is there.
    pub fn transfer(&self, tx: &mut Tx<'_>, id: TransferId, plan: Plan) -> Result<Moved, Error> {
        let Plan { mut from, mut to, amount } = plan;
        let ((mut have, one), (mut there, other)) = (self.balance(tx, from)?, self.balance(tx, to)?);
        let read = [(from, one), (to, other)];
        if have == 0 {
            std::mem::swap(&mut from, &mut to);
            std::mem::swap(&mut have, &mut there);
        }
        let amount = amount.min(have);
        self.put_balance(tx, from, have - amount)?;
        self.put_balance(tx, to, there + amount)?;
        let transfer = Transfer { from, to, amount };
        tx.put(&self.ledger, &id.key(), &transfer.encode())?;
        Ok(Moved { transfer, read })
    }

    /// Every account with its balance and the transaction that wrote it.
    pub fn balances(&self, view: &View) -> Result<Vec<(u32, u64, WritePointer)>, Error> {
        let rows = view.scan(&self.accounts, ..)?.map(|entry| {
            let entry = entry?;
            let account = entry.key.as_slice().try_into().map(u32::from_be_bytes);
            let balance = entry.value.as_slice().try_into().map(u64::from_le_bytes);
            match (account, balance, entry.version) {
                (Ok(account), Ok(balance), Some(version)) => Ok((account, balance, version)),
                _ => Err(broken(&self.accounts, entry.key, entry.value)),
            }
        });
        rows.collect()
    }

    /// Every row of the ledger with the transaction that wrote it.
    pub fn transfers(&self, view: &View) -> Result<Vec<(TransferId, Transfer, WritePointer)>, Error> {
        let rows = view.scan(&self.ledger, ..)?.map(|entry| {
            let entry = entry?;
            match (TransferId::from_key(&entry.key), Transfer::decode(&entry.value), entry.version) {
                (Some(id), Some(transfer), Some(version)) => Ok((id, transfer, version)),
                _ => Err(broken(&self.ledger, entry.key, entry.value)),
            }
        });
        rows.collect()
    }

    fn pick(random: &mut fastrand::Rng, busy: u32) -> u32 {
        if random.bool() { random.u32(0..HOT_ACCOUNTS) } else { random.u32(0..busy) }
    }

    fn first_quiet(&self) -> u32 {
        self.count - (self.count / 50).max(4)
    }

    /// What an account holds, and who wrote that.
    fn balance(&self, tx: &Tx<'_>, account: u32) -> Result<(u64, Option<WritePointer>), Error> {
        let entry = tx.entry(&self.accounts, &account.to_be_bytes())?;
        let (value, version) = entry.map_or_else(Default::default, |entry| (entry.value, entry.version));
        match value.as_slice().try_into() {
            Ok(balance) => Ok((u64::from_le_bytes(balance), version)),
            Err(_) => Err(broken(&self.accounts, account.to_be_bytes().to_vec(), value)),
        }
    }

    fn put_balance(&self, tx: &mut Tx<'_>, account: u32, balance: u64) -> Result<(), Error> {
        tx.put(&self.accounts, &account.to_be_bytes(), &balance.to_le_bytes())
    }
}

impl TransferId {
    pub fn key(self) -> Vec<u8> {
        [&self.client.to_be_bytes()[..], &self.sequence.to_be_bytes()].concat()
    }

    pub fn from_key(key: &[u8]) -> Option<TransferId> {
        let (client, sequence) = key.split_first_chunk()?;
        let sequence = u64::from_be_bytes(sequence.try_into().ok()?);
        Some(TransferId { client: u32::from_be_bytes(*client), sequence })
    }
}

impl Transfer {
    fn encode(self) -> Vec<u8> {
        [&self.from.to_le_bytes()[..], &self.to.to_le_bytes(), &self.amount.to_le_bytes()].concat()
    }

    fn decode(value: &[u8]) -> Option<Transfer> {
        let (from, rest) = value.split_first_chunk()?;
        let (to, rest) = rest.split_first_chunk()?;
        let amount = u64::from_le_bytes(rest.try_into().ok()?);
        Some(Transfer { from: u32::from_le_bytes(*from), to: u32::from_le_bytes(*to), amount })
    }
}

fn broken(table: &Table, key: Vec<u8>, value: Vec<u8>) -> Error {
    Error::abort(BrokenRow { table: table.name().to_string(), key, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_between_two_accounts_and_leave_the_quiet_ones_alone() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for count in [ACCOUNTS_MIN, 1000] {
            let bank = Bank::new(count);
            for _ in 0..1000 {
                let (plan, quiet) = (bank.plan(&mut random), bank.quiet_plan(&mut random));
                assert!(plan.from != plan.to && plan.from.max(plan.to) < bank.first_quiet(), "{plan:?}");
                assert!(quiet.from != quiet.to && quiet.from.max(quiet.to) < count, "{quiet:?}");
                assert!(quiet.from.min(quiet.to) >= bank.first_quiet(), "{quiet:?}");
            }
        }
    }

    #[test]
    fn rows_of_the_ledger_come_back() {
        let id = TransferId { client: 7, sequence: u64::MAX };
        assert_eq!(TransferId::from_key(&id.key()), Some(id));
        assert_eq!(TransferId::from_key(&id.key()[1..]), None);
        let transfer = Transfer { from: 1, to: 2, amount: 3 };
        assert_eq!(Transfer::decode(&transfer.encode()), Some(transfer));
        assert_eq!(Transfer::decode(&transfer.encode()[1..]), None);
    }
}
