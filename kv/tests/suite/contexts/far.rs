//! A sequencer at the other end of a line that can be cut, and two shelves at this one.

use std::sync::Arc;

use seriatim_client::{Client, ClientOptions, StartOptions, TransactionContext, TransactionService};
use seriatim_kv::core::{Status, WritePointer};

use super::line::{Fault, Line};
use super::rig::{commit_of, context};
use super::shelf::Shelf;
use crate::support::serving::Serving;

/// A client over a line, and another one beside it that looks on.
pub struct Far {
    pub line: Line,
    pub service: Arc<dyn TransactionService>,
    pub onlooker: Client,
    pub left: Arc<Shelf>,
    pub right: Arc<Shelf>,
    _serving: Serving,
}

impl Far {
    /// The client gives up a call when it has lost so many connections by it.
    pub fn new(attempts_max: u32) -> Far {
        let serving = Serving::start();
        let line = Line::to(serving.address());
        let options = ClientOptions { attempts_max, ..ClientOptions::default() };
        let client = Client::connect(line.address().to_string().as_str(), options).unwrap();
        Far {
            onlooker: serving.client(),
            line,
            service: Arc::new(client),
            left: Shelf::new("left"),
            right: Shelf::new("right"),
            _serving: serving,
        }
    }

    /// A context whose transaction has written on both shelves, and whose commit, the next thing to be sent after the last
    /// flush, meets this.
    pub fn about_to_commit(&self, fault: Fault) -> (TransactionContext, WritePointer) {
        let mut context = context(&self.service, [&self.left, &self.right]);
        let tx = context.start(StartOptions::default()).unwrap().id();
        self.left.put("k", 1);
        self.right.put("k", 2);
        let line = self.line.clone();
        self.right.before_flush(move || line.fault(fault));
        (context, tx)
    }

    pub fn status(&self, tx: WritePointer) -> Status {
        self.onlooker.status(tx).unwrap()
    }

    pub fn now(&self) -> [Option<u64>; 2] {
        let snapshot = self.onlooker.snapshot().unwrap();
        [&self.left, &self.right].map(|shelf| shelf.at(snapshot.get().unwrap(), "k"))
    }

    /// The pointers of all open transactions.
    pub fn in_progress(&self) -> Vec<WritePointer> {
        // A snapshot tells of those below the newest one that has ended.
        let onlooker: Arc<dyn TransactionService> = Arc::new(self.onlooker.clone());
        commit_of(&onlooker, &[], "onlooker");
        self.onlooker.snapshot().unwrap().get().unwrap().in_progress.iter().collect()
    }

    pub fn rollbacks(&self) -> [usize; 2] {
        [self.left.rollbacks(), self.right.rollbacks()]
    }
}
