//! Many threads moving coins while others count them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use seriatim_kv::{Db, Error, RetryPolicy, RunOptions, Store, Table};

use crate::support::House;

crate::on_every_store!(coins_are_neither_made_nor_lost);

const ACCOUNTS: u32 = 8;
const COINS: u64 = 100;
const MOVERS: u64 = 4;
const MOVES: u64 = 100;

fn coins(bytes: Option<Vec<u8>>) -> u64 {
    bytes.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
}

fn move_coins(db: &Db, accounts: &Table, ledger: &Table, mover: u64, random: &mut fastrand::Rng) {
    let retry = RetryPolicy { attempts_max: 10_000, ..RetryPolicy::default() };
    for sequence in 0..MOVES {
        let from = random.u32(0..ACCOUNTS);
        let to = (from + random.u32(1..ACCOUNTS)) % ACCOUNTS;
        let amount = random.u64(1..10);
        let done = db.run_with(RunOptions { retry, ..RunOptions::default() }, |tx| {
            let [have, there] = [from, to].map(|account| tx.get(accounts, &account.to_be_bytes()).map(coins));
            let (have, there) = (have?, there?);
            let amount = amount.min(have);
            tx.put(accounts, &from.to_be_bytes(), &(have - amount).to_le_bytes())?;
            tx.put(accounts, &to.to_be_bytes(), &(there + amount).to_le_bytes())?;
            tx.put(ledger, &[mover.to_be_bytes(), sequence.to_be_bytes()].concat(), &amount.to_le_bytes())
        });
        done.unwrap();
    }
}

fn coins_are_neither_made_nor_lost(store: impl Store) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let house = House::new(store);
    let (accounts, ledger) = (Table::new("accounts"), Table::new("ledger"));
    let filled: Result<(), Error> =
        house.db.run(|tx| (0..ACCOUNTS).try_for_each(|n| tx.put(&accounts, &n.to_be_bytes(), &COINS.to_le_bytes())));
    filled.unwrap();
    let (stop, audits) = (AtomicBool::new(false), AtomicU64::new(0));
    let audit = |db: &Db| {
        let view = db.snapshot().unwrap();
        let total: u64 = view.scan(&accounts, ..).unwrap().map(|entry| coins(Some(entry.unwrap().value))).sum();
        assert_eq!(total, u64::from(ACCOUNTS) * COINS, "at {:?}", view.snapshot().csn);
        audits.fetch_add(1, Ordering::Relaxed);
    };
    thread::scope(|scope| {
        let movers: Vec<_> = (0..MOVERS)
            .map(|mover| {
                let (db, accounts, ledger) = (house.db.clone(), &accounts, &ledger);
                let mut random = fastrand::Rng::with_seed(seed.wrapping_add(mover));
                scope.spawn(move || move_coins(&db, accounts, ledger, mover, &mut random))
            })
            .collect();
        let auditor = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                audit(&house.db);
            }
        });
        let moved: Vec<_> = movers.into_iter().map(|mover| mover.join()).collect();
        stop.store(true, Ordering::Relaxed);
        auditor.join().unwrap();
        assert!(moved.iter().all(Result::is_ok));
    });
    audit(&house.db);
    let rows = house.db.snapshot().unwrap().scan(&ledger, ..).unwrap().count() as u64;
    assert_eq!((rows, house.sequencer.unended()), (MOVERS * MOVES, 0));
    // Each transfer left its three versions, and each refused attempt none.
    assert_eq!(house.versions() as u64, u64::from(ACCOUNTS) + 3 * MOVERS * MOVES);
}

#[test]
fn a_database_crosses_threads_and_spawn_blocking() {
    let db = House::new(seriatim_kv::MemoryStore::new()).db;
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let table = db.table("t");
    runtime.block_on(async {
        let (task_db, task_table) = (db.clone(), table.clone());
        let task = tokio::task::spawn_blocking(move || task_db.run(|tx| tx.put(&task_table, b"k", b"v")));
        task.await.unwrap().unwrap();
        let view = db.snapshot().unwrap();
        let read = tokio::task::spawn_blocking(move || view.get(&table, b"k"));
        assert_eq!(read.await.unwrap().unwrap().as_deref(), Some(&b"v"[..]));
    });
}
