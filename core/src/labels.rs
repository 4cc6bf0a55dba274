//! Who a transaction is for, in words for people: labels, each known by a small number.
//!
//! A label is kept with a transaction while it is open and, if the mode says so, with its commit, so that a conflict can
//! name its winner. Both keep the number alone. Labels are not written to the log: after a restart transactions have none.
//!
//! The lock is taken where a session introduces itself or a begin brings a label of its own, and where one is shown; never
//! on the way of an ordinary begin or commit.

use std::sync::{Arc, Mutex, MutexGuard};

use rustc_hash::FxHashMap;

/// Bytes of a label that count: 64. The rest is cut off, at a character.
pub const LABEL_BYTES_MAX: usize = 64;
/// Different labels that are remembered in one run: 65 535. Transactions with further ones have none.
pub const LABELS_MAX: usize = u16::MAX as usize;

/// How long labels are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum LabelRetention {
    /// Not at all.
    Off,
    /// While the transaction is open.
    Active,
    /// And among the last commits, so that a conflict names its winner's.
    #[default]
    Committed,
}

/// The number of a label; 0 stands for none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct LabelId(pub(crate) u16);

impl LabelId {
    /// No label.
    pub const NONE: LabelId = LabelId(0);
}

#[derive(Debug)]
pub(crate) struct Labels {
    retention: LabelRetention,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    ids: FxHashMap<Arc<str>, LabelId>,
    /// The label with number `n` is at `n - 1`.
    texts: Vec<Arc<str>>,
}

impl Labels {
    pub(crate) fn new(retention: LabelRetention) -> Labels {
        Labels { retention, known: Mutex::default() }
    }

    /// The number of a label, which is remembered from now on.
    pub(crate) fn id(&self, text: &str) -> LabelId {
        let text = &text[..text.floor_char_boundary(LABEL_BYTES_MAX)];
        if text.is_empty() || self.retention == LabelRetention::Off {
            return LabelId::NONE;
        }
        let mut known = self.known();
        if let Some(id) = known.ids.get(text) {
            return *id;
        }
        if known.texts.len() == LABELS_MAX {
            return LabelId::NONE;
        }
        let text: Arc<str> = text.into();
        known.texts.push(text.clone());
        let id = LabelId(known.texts.len() as u16);
        known.ids.insert(text, id);
        id
    }

    /// True if no further label can be remembered.
    pub(crate) fn is_full(&self) -> bool {
        self.known().texts.len() == LABELS_MAX
    }

    pub(crate) fn text(&self, id: LabelId) -> Option<Arc<str>> {
        self.known().texts.get(usize::from(id.0).checked_sub(1)?).cloned()
    }

    /// What is kept of a label once its transaction has committed.
    pub(crate) fn of_committed(&self, id: LabelId) -> LabelId {
        if self.retention == LabelRetention::Committed { id } else { LabelId::NONE }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // Nothing panics while the lock is held, so it is never poisoned half-way.
        self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_one_number_and_is_cut_at_a_character() {
        let labels = Labels::new(LabelRetention::Active);
        let (a, b) = (labels.id("a"), labels.id("b"));
        assert_ne!(a, b);
        assert_eq!(labels.id("a"), a);
        assert_eq!((labels.text(a).as_deref(), labels.text(LabelId::NONE)), (Some("a"), None));
        assert_eq!(labels.id(""), LabelId::NONE);
        let long = labels.id(&"ß".repeat(40));
        assert_eq!(labels.text(long).as_deref(), Some("ß".repeat(32).as_str()));
        assert_eq!(labels.of_committed(a), LabelId::NONE);
        assert_eq!(Labels::new(LabelRetention::Committed).of_committed(a), a);
    }

    #[test]
    fn labels_beyond_the_limit_and_with_retention_off_are_none() {
        let labels = Labels::new(LabelRetention::Committed);
        for n in 0..LABELS_MAX {
            assert_ne!(labels.id(&n.to_string()), LabelId::NONE);
        }
        assert_eq!(labels.id("one more"), LabelId::NONE);
        assert_ne!(labels.id("7"), LabelId::NONE);
        assert_eq!(Labels::new(LabelRetention::Off).id("a"), LabelId::NONE);
    }
}
