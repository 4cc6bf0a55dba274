//! The ends of transactions that were dropped: queued without waiting, sent by a thread of their own.
//!
//! A drop may happen anywhere, in a panic or under somebody's lock, so it neither writes to a socket nor waits for
//! the lock that guards one: it pushes under a lock that is never held for longer than a push or a swap.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use seriatim_core::WritePointer;
use seriatim_wire::Op;

use crate::client::Client;

/// How a dropped transaction ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// None of its writes stands anywhere.
    Abort,
    /// Some may.
    Invalidate,
}

/// The queue; shared by the client and its thread.
#[derive(Debug)]
pub(crate) struct Endings {
    state: Mutex<State>,
    changed: Condvar,
    max: usize,
}

#[derive(Debug, Default)]
struct State {
    aborts: Vec<WritePointer>,
    invalidates: Vec<WritePointer>,
    /// Keeps the client alive while its ends are not sent.
    client: Option<Client>,
    sending: bool,
    closed: bool,
}

impl State {
    fn len(&self) -> usize {
        self.aborts.len() + self.invalidates.len()
    }
}

impl Endings {
    /// A queue of at most `max` ends, and the thread that sends them.
    pub fn start(max: usize) -> std::io::Result<Arc<Endings>> {
        let endings = Arc::new(Endings { state: Mutex::default(), changed: Condvar::new(), max });
        let queue = Arc::clone(&endings);
        std::thread::Builder::new().name("seriatim-ends".into()).spawn(move || queue.run())?;
        Ok(endings)
    }

    /// Queues one end. If the queue is full it is left to the transaction's deadline.
    pub fn push(&self, client: &Client, tx: WritePointer, ending: Ending) {
        let mut state = self.lock();
        if state.len() >= self.max {
            return;
        }
        match ending {
            Ending::Abort => state.aborts.push(tx),
            Ending::Invalidate => state.invalidates.push(tx),
        }
        state.client.get_or_insert_with(|| client.clone());
        drop(state);
        self.changed.notify_all();
    }

    /// The client has gone, and the thread goes when it has nothing to send.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Waits until every end queued so far was sent and answered, or given up; false if the time was over before.
    pub fn flush(&self, deadline: Instant) -> bool {
        let mut state = self.lock();
        while state.sending || state.len() > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        loop {
            let mut state = self.lock();
            while state.len() == 0 {
                if state.closed {
                    return;
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let State { aborts, invalidates, client, .. } = std::mem::take(&mut *state);
            state.sending = true;
            drop(state);
            if let Some(client) = client {
                // What cannot be sent within the time of a call is left to the server: the grace of a lost connection
                // or the transaction's deadline ends it the same way, if later.
                let _ = client.end_many(Op::Abort, &aborts);
                let _ = client.end_many(Op::Invalidate, &invalidates);
                // The last client may go right here, and close this queue: the lock is free.
                drop(client);
            }
            self.lock().sending = false;
            self.changed.notify_all();
        }
    }
}
