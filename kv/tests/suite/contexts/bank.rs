//! Money between two stores, moved by executors over lines that break at random, with rollbacks that fail at random.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use seriatim_client::{
    Client, ClientOptions, CommitForm, Participant, Retries, StartOptions, TransactionContext, TransactionExecutor,
    TransactionService,
};
use seriatim_kv::Isolation;

use super::line::{Fault, Line};
use super::rig::context;
use super::shelf::Shelf;
use crate::support::serving::Serving;

const THREADS: usize = 3;
const TRANSFERS: u64 = 60;
const ACCOUNTS: u64 = 4;
const COINS: u64 = 1_000;

#[test]
fn coins_are_neither_made_nor_lost_over_lines_that_break() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let serving = Serving::start();
    let stores = [Shelf::new("left"), Shelf::new("right")];
    let service: Arc<dyn TransactionService> = Arc::new(serving.client());
    let mut opening = context(&service, [&stores[0], &stores[1]]);
    opening.start(StartOptions::default()).unwrap();
    for account in 0..ACCOUNTS {
        stores.iter().for_each(|store| store.put(&account.to_string(), COINS));
    }
    opening.finish().unwrap();

    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (serving, stores) = (&serving, &stores);
            scope.spawn(move || teller(thread, seed, serving, stores));
        }
    });

    let snapshot = serving.client().snapshot().unwrap().get().unwrap().clone();
    let coins = |store: &Shelf| (0..ACCOUNTS).map(|a| store.at(&snapshot, &a.to_string()).unwrap()).sum::<u64>();
    assert_eq!(stores.iter().map(|store| coins(store)).sum::<u64>(), 2 * ACCOUNTS * COINS, "seed {seed}");
    for thread in 0..THREADS {
        let counted = stores[0].at(&snapshot, &format!("teller {thread}"));
        assert_eq!(counted, Some(TRANSFERS), "seed {seed}: each transfer of teller {thread} was made once");
    }
}

/// Makes its transfers one after the other, and counts them in the same transactions.
fn teller(thread: usize, seed: u64, serving: &Serving, stores: &[Arc<Shelf>; 2]) {
    let mut dice = fastrand::Rng::with_seed(seed ^ thread as u64);
    let line = Line::to(serving.address());
    // Some give up a call with its first connection, so that their contexts have to ask.
    let options = ClientOptions { attempts_max: [1, 16][thread % 2], ..ClientOptions::default() };
    let client = Client::connect(line.address().to_string().as_str(), options).unwrap();
    let shelves = [0, 1].map(|side: usize| stores[side].over_the_same_store());
    let participants = shelves.each_ref().map(|shelf| Arc::clone(shelf) as Arc<dyn Participant>);
    let retries = Retries::exponential(10_000, Duration::from_micros(100), Duration::from_millis(5)).on_retryable();
    let service: Arc<dyn TransactionService> = Arc::new(client);
    for _ in 0..TRANSFERS {
        let options = StartOptions {
            form: dice.choice([CommitForm::TwoSteps, CommitForm::OneStep]).unwrap(),
            isolation: dice.choice([Isolation::Snapshot, Isolation::Serializable]).unwrap(),
            ..StartOptions::default()
        };
        let executor = TransactionExecutor::new(Arc::clone(&service), participants.clone());
        let mut executor = executor.with_options(options).with_retries(retries);
        let executed = executor.execute(|context: &mut TransactionContext| {
            let [from, to] = [(); 2].map(|()| dice.u64(..ACCOUNTS).to_string());
            let [giver, taker] = if dice.bool() { [0, 1] } else { [1, 0] }.map(|side: usize| &shelves[side]);
            giver.put(&from, giver.get(&from).expect("it is open") - 1);
            if dice.u8(..3) == 0 {
                context.checkpoint()?;
            }
            taker.put(&to, taker.get(&to).expect("it is open") + 1);
            let count = format!("teller {thread}");
            shelves[0].put(&count, shelves[0].get(&count).unwrap_or_default() + 1);
            shelves.iter().for_each(|shelf| shelf.keeps(dice.u8(..4) == 0));
            // What comes after the last flush is the commit.
            let fault = dice.choice([Fault::None, Fault::None, Fault::LoseRequest, Fault::LoseReply]).unwrap();
            let line = line.clone();
            shelves[1].before_flush(move || line.fault(fault));
            Ok(())
        });
        executed.unwrap_or_else(|gave_up| panic!("seed {seed}: {gave_up}: {:?}", gave_up.last));
    }
}
