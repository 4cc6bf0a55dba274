//! A sequencer with what a context asks of it, and two shelves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use seriatim_client::{Client, Participant, TransactionContext, TransactionExecutor, TransactionService};
use seriatim_kv::EmbeddedService;
use seriatim_kv::core::{ChangeSet, Snapshot, Status, WritePointer};

use super::shelf::Shelf;
use crate::support::serving::{Serving, embedded};

pub struct Rig {
    pub service: Arc<dyn TransactionService>,
    pub left: Arc<Shelf>,
    pub right: Arc<Shelf>,
    asked: Asked,
    _serving: Option<Serving>,
}

/// What is beyond the questions of a context.
enum Asked {
    InProcess(EmbeddedService),
    OverTcp(Client),
}

impl Rig {
    pub fn in_process() -> Rig {
        let service = EmbeddedService::new(embedded());
        Rig::new(Arc::new(service.clone()), Asked::InProcess(service), None)
    }

    pub fn over_tcp() -> Rig {
        let serving = Serving::start();
        let client = serving.client();
        Rig::new(Arc::new(client.clone()), Asked::OverTcp(client), Some(serving))
    }

    fn new(service: Arc<dyn TransactionService>, asked: Asked, serving: Option<Serving>) -> Rig {
        Rig { service, left: Shelf::new("left"), right: Shelf::new("right"), asked, _serving: serving }
    }

    pub fn context(&self) -> TransactionContext {
        context(&self.service, [&self.left, &self.right])
    }

    pub fn executor(&self) -> TransactionExecutor {
        let participants: [Arc<dyn Participant>; 2] = [self.left.clone(), self.right.clone()];
        TransactionExecutor::new(Arc::clone(&self.service), participants)
    }

    pub fn status(&self, tx: WritePointer) -> Status {
        match &self.asked {
            Asked::InProcess(service) => service.sequencer().status(tx),
            Asked::OverTcp(client) => client.status(tx).unwrap(),
        }
    }

    pub fn snapshot(&self) -> Arc<Snapshot> {
        match &self.asked {
            Asked::InProcess(service) => service.sequencer().snapshot(),
            Asked::OverTcp(client) => client.snapshot().unwrap().get().unwrap().clone(),
        }
    }

    /// What a new snapshot holds of a key, left and right.
    pub fn now(&self, key: &str) -> [Option<u64>; 2] {
        let snapshot = self.snapshot();
        [self.left.at(&snapshot, key), self.right.at(&snapshot, key)]
    }

    /// Versions that stand in the stores, left and right, whoever may read them.
    pub fn versions(&self) -> [usize; 2] {
        [self.left.store.version_count(), self.right.store.version_count()]
    }
}

/// A context over these shelves.
pub fn context<const N: usize>(service: &Arc<dyn TransactionService>, shelves: [&Arc<Shelf>; N]) -> TransactionContext {
    TransactionContext::new(Arc::clone(service), shelves.map(|shelf| Arc::clone(shelf) as Arc<dyn Participant>))
}

/// A commit by somebody without participants.
pub fn commit_of(service: &Arc<dyn TransactionService>, keys: &[&str], label: &str) -> WritePointer {
    let tx = service.begin(Default::default(), Some(label)).unwrap().id();
    service.commit(tx, &writes(keys), 0).unwrap();
    tx
}

pub fn writes(keys: &[&str]) -> ChangeSet {
    ChangeSet::of_writes(keys.iter().map(|key| key.as_bytes()))
}

/// Looks until it is so.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < give_up, "it never came that {what}");
        std::thread::yield_now();
    }
}

/// Runs every case over both sequencers, as `in_process::case` and `over_tcp::case`.
#[macro_export]
macro_rules! on_every_service {
    ($($case:ident),* $(,)?) => {
        mod in_process {
            $(#[test] fn $case() { super::$case(&super::Rig::in_process()); })*
        }
        mod over_tcp {
            $(#[test] fn $case() { super::$case(&super::Rig::over_tcp()); })*
        }
    };
}
