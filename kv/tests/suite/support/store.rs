//! A store that asks a hook before each write: to look around in between, to fail, or to panic.

use std::sync::Mutex;

use seriatim_kv::core::WritePointer;
use seriatim_kv::{Page, PageLimits, Store, StoreError, Versions};

/// A call that changes the store or makes it durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Put,
    Remove,
    Flush,
}

type Hook = Box<dyn FnMut(Op) -> Result<(), StoreError> + Send>;

pub struct HookedStore<S> {
    store: S,
    hook: Mutex<Option<Hook>>,
    ops: Mutex<Vec<Op>>,
}

impl<S: Store> HookedStore<S> {
    pub fn new(store: S) -> HookedStore<S> {
        HookedStore { store, hook: Mutex::default(), ops: Mutex::default() }
    }

    /// Calls `hook` before each write from now on. Writes that the hook itself causes are not hooked.
    pub fn before(&self, hook: impl FnMut(Op) -> Result<(), StoreError> + Send + 'static) {
        *self.hook.lock().unwrap() = Some(Box::new(hook));
    }

    /// Fails the `nth` (from 1) call of one kind, and all calls of that kind behind it.
    pub fn fail_from(&self, op: Op, nth: usize, definite: bool) {
        let mut calls = 0;
        self.before(move |called| {
            calls += usize::from(called == op);
            match (called == op && calls >= nth, definite) {
                (false, _) => Ok(()),
                (true, true) => Err(StoreError::Refused { action: "obey", source: "planted".into() }),
                (true, false) => Err(StoreError::Doubtful { action: "obey", source: "planted".into() }),
            }
        });
    }

    /// Nothing can be taken back, and from the `nth` put (from 1) on it is not known whether it was done: who runs into that
    /// leaves versions behind.
    pub fn leave_versions_from(&self, nth: usize) {
        let mut puts = 0;
        self.before(move |called| {
            puts += usize::from(called == Op::Put);
            match called {
                Op::Put if puts >= nth => Err(StoreError::Doubtful { action: "obey", source: "planted".into() }),
                Op::Remove => Err(StoreError::Refused { action: "obey", source: "planted".into() }),
                _ => Ok(()),
            }
        });
    }

    pub fn unhook(&self) {
        *self.hook.lock().unwrap() = None;
    }

    /// The writes so far, and starts anew.
    pub fn take_ops(&self) -> Vec<Op> {
        std::mem::take(&mut self.ops.lock().unwrap())
    }

    fn ask(&self, op: Op) -> Result<(), StoreError> {
        self.ops.lock().unwrap().push(op);
        let Some(mut hook) = self.hook.lock().unwrap().take() else { return Ok(()) };
        let result = hook(op);
        *self.hook.lock().unwrap() = Some(hook);
        result
    }
}

impl<S: Store> Store for HookedStore<S> {
    const VERSIONED: bool = S::VERSIONED;

    fn put(&self, row: &[u8], version: WritePointer, value: Option<&[u8]>) -> Result<(), StoreError> {
        self.ask(Op::Put)?;
        self.store.put(row, version, value)
    }

    fn remove(&self, row: &[u8], version: WritePointer) -> Result<(), StoreError> {
        self.ask(Op::Remove)?;
        self.store.remove(row, version)
    }

    fn versions(&self, row: &[u8], at_most: WritePointer, limit: usize) -> Result<Versions, StoreError> {
        self.store.versions(row, at_most, limit)
    }

    fn scan(&self, start: &[u8], end: &[u8], at_most: WritePointer, limits: PageLimits) -> Result<Page, StoreError> {
        self.store.scan(start, end, at_most, limits)
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.ask(Op::Flush)?;
        self.store.flush()
    }
}
