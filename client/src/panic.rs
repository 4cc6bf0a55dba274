//! Panics of other people's code, caught where a transaction has to be ended before they may go on.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, PoisonError};

/// A panic that was caught. It is an error like others, and can be gone on with.
pub struct Panic {
    message: String,
    /// Locked only so that an error that holds it may cross threads.
    payload: Mutex<Box<dyn Any + Send>>,
}

impl Panic {
    /// What was said, if it was text.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Goes on with the panic, as if it had not been caught.
    pub fn resume(self) -> ! {
        resume_unwind(self.payload.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Display for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it panicked: {}", self.message)
    }
}

impl fmt::Debug for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Panic").field(&self.message).finish()
    }
}

impl std::error::Error for Panic {}

/// Makes a call and catches its panic.
///
/// The call may leave what it touched half done. That is what the one caught is then told to roll back, and whether it
/// can is its own affair: std's locks are poisoned by a panic, so it will notice.
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Result<T, Panic> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|payload| {
        let text = payload.downcast_ref::<&str>().map(|text| text.to_string());
        let message = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Panic { message: message.unwrap_or_else(|| "without a text".to_owned()), payload: Mutex::new(payload) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caught_panic_keeps_its_words_and_goes_on_with_them() {
        assert_eq!(caught(|| 7).unwrap(), 7);
        assert_eq!(caught(|| panic!("plain")).unwrap_err().message(), "plain");
        assert_eq!(caught(|| std::panic::panic_any(7)).unwrap_err().message(), "without a text");
        let first = caught(|| panic!("number {}", 1)).unwrap_err();
        assert_eq!(first.to_string(), "it panicked: number 1");
        assert_eq!(caught(|| first.resume()).unwrap_err().message(), "number 1");
    }
}
