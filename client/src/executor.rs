//! Runs a closure as a transaction, again and again while that is worth it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, SystemClock};
use crate::context::{Committed, SETTLE_FOR_DEFAULT, TransactionContext};
use crate::failure::{ContextError, Standing};
use crate::panic::caught;
use crate::participant::{BoxError, Participant};
use crate::retry::{Retries, RetryPolicy};
use crate::service::TransactionService;
use crate::start_options::StartOptions;

/// Runs closures as transactions over its participants, each attempt in a context of its own.
///
/// The closure may run several times, so it should have no effects outside of the transaction; and it leaves starting and
/// finishing to the executor. If it fails, or has ended its transaction itself, the transaction is aborted, and whether it
/// is run again is for the policy to say: [`Retries`] runs again what was refused for a conflict, and nothing else. If it
/// panics the transaction is aborted and the panic goes on.
pub struct TransactionExecutor {
    service: Arc<dyn TransactionService>,
    participants: Vec<Arc<dyn Participant>>,
    options: StartOptions,
    retries: Box<dyn RetryPolicy>,
    clock: Arc<dyn Clock>,
    settle_for: Duration,
}

/// A closure that has run, and its transaction, which has committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Executed<T> {
    /// What the closure returned.
    pub value: T,
    /// The transaction.
    pub committed: Committed,
    /// How often the closure was to run, this time included.
    pub attempts: u32,
}

/// The executor has given up; this is why.
#[derive(Debug, thiserror::Error)]
#[error("gave up after {attempts} attempt{}: {last}", if *attempts == 1 { "" } else { "s" })]
pub struct GaveUp {
    /// How many attempts were made.
    pub attempts: u32,
    /// What ended the last one. Where its [`standing`](ContextError::standing) is `Unknown` the transaction may have committed, and
    /// where it is `Committed` it has.
    pub last: ContextError,
}

impl TransactionExecutor {
    /// An executor that asks this service, with these participants, in this order.
    pub fn new(
        service: Arc<dyn TransactionService>,
        participants: impl IntoIterator<Item = Arc<dyn Participant>>,
    ) -> TransactionExecutor {
        TransactionExecutor {
            service,
            participants: participants.into_iter().collect(),
            options: StartOptions::default(),
            retries: Box::new(Retries::default()),
            clock: Arc::new(SystemClock),
            settle_for: SETTLE_FOR_DEFAULT,
        }
    }

    /// Starts every transaction like this. Default [`StartOptions::default`].
    #[must_use]
    pub fn with_options(self, options: StartOptions) -> TransactionExecutor {
        TransactionExecutor { options, ..self }
    }

    /// Runs transactions again by this policy. Default [`Retries::default`].
    #[must_use]
    pub fn with_retries(self, retries: impl RetryPolicy + 'static) -> TransactionExecutor {
        TransactionExecutor { retries: Box::new(retries), ..self }
    }

    /// Waits by this clock.
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> TransactionExecutor {
        TransactionExecutor { clock, ..self }
    }

    /// As [`TransactionContext::with_settle_for`].
    #[must_use]
    pub fn with_settle_for(self, settle_for: Duration) -> TransactionExecutor {
        TransactionExecutor { settle_for, ..self }
    }

    /// Runs a closure as a transaction. `Ok` means that it has committed, durably.
    ///
    /// # Errors
    /// [`GaveUp`], when the policy says so, or at once where the transaction has committed or may have.
    ///
    /// # Panics
    /// If the closure does.
    pub fn execute<T>(
        &mut self,
        mut closure: impl FnMut(&mut TransactionContext) -> Result<T, BoxError>,
    ) -> Result<Executed<T>, GaveUp> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let context = TransactionContext::new(Arc::clone(&self.service), self.participants.iter().cloned());
            let mut context = context.with_clock(Arc::clone(&self.clock)).with_settle_for(self.settle_for);
            let last = match self.attempt(&mut context, &mut closure) {
                Ok((value, committed)) => return Ok(Executed { value, committed, attempts }),
                Err(error) => error,
            };
            // The closure may have finished a transaction itself, and failed in another one.
            let may_again = last.has_come_to_nothing() && context.irrevocable().is_none();
            let pause = may_again.then(|| self.retries.pause(&last, attempts)).flatten();
            match pause {
                None => return Err(GaveUp { attempts, last }),
                Some(pause) if pause.is_zero() => {}
                Some(pause) => self.clock.sleep(pause),
            }
        }
    }

    fn attempt<T>(
        &self,
        context: &mut TransactionContext,
        closure: &mut impl FnMut(&mut TransactionContext) -> Result<T, BoxError>,
    ) -> Result<(T, Committed), ContextError> {
        context.start(self.options.clone())?;
        match caught(|| closure(context)) {
            Ok(Ok(_)) if context.current().is_none() => Err(context.ended_by_hand()),
            Ok(Ok(value)) => context.finish().map(|committed| (value, committed)),
            Ok(Err(reason)) => Err(failed(context, reason)),
            Err(panic) => {
                // What fails now fails behind a panic that says more.
                let _ = context.abort();
                panic.resume()
            }
        }
    }
}

/// Ends what a closure has failed in. If the context has ended it already, and the closure only hands on why, that is the
/// reason.
fn failed(context: &mut TransactionContext, reason: BoxError) -> ContextError {
    match reason.downcast::<ContextError>() {
        Ok(error) if error.standing() != Standing::Active && context.current().is_none() => *error,
        Ok(error) => context.abort_because(error),
        Err(reason) => context.abort_because(reason),
    }
}

impl fmt::Debug for TransactionExecutor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransactionExecutor")
            .field("participants", &self.participants.len())
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
