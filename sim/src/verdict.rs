//! What a run came to: a law that was broken, or none.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::law;

/// A law was broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Which law, in a few words.
    pub law: &'static str,
    /// How, with the numbers.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.law, self.text)
    }
}

/// Whether all is well.
pub(crate) type Judged = Result<(), Violation>;

/// A broken law, to be returned.
pub(crate) fn broken(law: &'static str, text: impl Into<String>) -> Judged {
    Err(Violation { law, text: text.into() })
}

/// The law holds, or it is broken with these words.
pub(crate) fn hold(holds: bool, law: &'static str, text: impl FnOnce() -> String) -> Judged {
    if holds { Ok(()) } else { broken(law, text()) }
}

/// A panic is a violation like any other: the product's assertions are laws too.
pub(crate) fn catch(judge: impl FnOnce() -> Judged) -> Judged {
    catch_unwind(AssertUnwindSafe(judge)).unwrap_or_else(|panic| broken(law::PANIC, said(panic.as_ref())))
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a word").to_owned()
}
