//! The planted bugs, by name. The simulation has to find each of them.
//!
//! One pipeline is compiled for [`Planted`], which answers by the name that its thread has been told. Hooks of the pipeline
//! are in its [`Plant`]; some bugs are of the disk, the log or the store and are asked about where they live.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use seriatim_core::{Begun, Snapshot, WritePointer};
use seriatim_net::Plant;

macro_rules! plants {
    ($($name:ident, $text:literal: $doc:literal,)*) => {
        /// A planted bug.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum PlantName {
            $(#[doc = $doc] $name,)*
        }

        /// All of them: what one says on the command line, and what it is.
        pub const PLANTS: &[(&str, PlantName, &str)] = &[$(($text, PlantName::$name, $doc),)*];
    };
}

plants! {
    LostUpdate, "lost-update": "commits are not checked for conflicts",
    ReadsUnchecked, "reads-unchecked": "what serializable transactions read is not checked",
    EarlyVisible, "early-visible": "commits become visible before they are durable",
    LateVisible, "late-visible": "replies leave before the snapshot that holds what they claim is the newest",
    AckBeforeSync, "ack-before-sync": "ends are answered before they are durable",
    UnloggedRefusal, "unlogged-refusal": "refusals are answered before they are durable",
    UnloggedCheckpoint, "checkpoint-unlogged": "checkpoints are answered before they are durable",
    AbortOnDisconnect, "abort-on-disconnect": "what a lost client had open is aborted, though it may have written",
    ReturnIgnored, "return-ignored": "a session that comes back is taken for another one",
    RefusalSeenEarly, "refusal-seen-early": "a look tells of refusals before they are durable",
    ResetSeenEarly, "reset-seen-early": "what a reset drops is said to be forgotten before it is durable",
    KeptBlock, "kept-block": "a pointer is kept for a later begin",
    StaleSnapshot, "stale-snapshot": "a begin is answered with a snapshot from before its bytes were read",
    BeginWaits, "begin-waits": "a begin waits for the disk",
    WrongBase, "wrong-base": "a snapshot is a difference from another one than its reader has",
    SameBoot, "same-boot": "two runs have the same boot token",
    SettleLooks, "settle-looks": "a doubt is settled by a look",
    ForgottenOutcome, "forgotten-outcome": "what is forgotten is guessed to have been aborted",
    ExpiryEarly, "expiry-early": "transactions expire before their time",
    ExpiryDuringCommit, "expiry-during-commit": "a deadline ends what is being committed",
    WindowLeftOver, "window-left-over": "a run asks for no window until the one of its predecessor is used up",
    WindowReused, "window-reused": "a run hands out pointers of its predecessor's window again",
    UnaccountedVisible, "unaccounted-visible": "what a crash left unaccounted is not excluded",
    HistoryForgotten, "history-forgotten": "commits before a restart are not checked against",
    ImageWithoutFloor, "image-without-floor": "nobody is too old for what only an image remembers",
    CutMiddle, "cut-middle": "recovery cuts at a damaged group though others follow it",
    CleanEarly, "clean-early": "stores may clean what has ended, though its client may still write",
    CleanedBeyond, "cleaned-beyond": "a store is taken to have cleaned more than it says",
    GarbageByPointer, "gc-by-pointer-order": "the visibility bound is the smallest open pointer",
}

/// Begins that are answered with one old snapshot.
const STALE_BEGINS: u32 = 5;

#[derive(Default)]
struct Memory {
    begins: u32,
    /// The run, and a pointer of it.
    kept: Option<(u64, WritePointer)>,
    snapshot: Option<Arc<Snapshot>>,
}

thread_local! {
    static PLANTED: Cell<Option<PlantName>> = const { Cell::new(None) };
    static MEMORY: RefCell<Memory> = RefCell::default();
}

/// From now on the pipelines of this thread have this bug, or none.
pub(crate) fn plant(name: Option<PlantName>) {
    PLANTED.set(name);
    MEMORY.with_borrow_mut(|memory| *memory = Memory::default());
}

pub(crate) fn is_planted(name: PlantName) -> bool {
    PLANTED.get() == Some(name)
}

/// The pipeline's plant.
pub(crate) enum Planted {}

impl Plant for Planted {
    fn lost_update() -> bool {
        is_planted(PlantName::LostUpdate)
    }

    fn early_visible() -> bool {
        is_planted(PlantName::EarlyVisible)
    }

    fn abort_on_disconnect() -> bool {
        is_planted(PlantName::AbortOnDisconnect)
    }

    fn reads_unchecked() -> bool {
        is_planted(PlantName::ReadsUnchecked)
    }

    fn return_ignored() -> bool {
        is_planted(PlantName::ReturnIgnored)
    }

    fn refusal_seen_early() -> bool {
        is_planted(PlantName::RefusalSeenEarly)
    }

    fn reset_seen_early() -> bool {
        is_planted(PlantName::ResetSeenEarly)
    }

    fn bound_by_pointers() -> bool {
        is_planted(PlantName::GarbageByPointer)
    }

    fn clean_early() -> bool {
        is_planted(PlantName::CleanEarly)
    }

    fn cleaned_beyond() -> bool {
        is_planted(PlantName::CleanedBeyond)
    }

    fn extra_pointers() -> u32 {
        u32::from(is_planted(PlantName::KeptBlock))
    }

    fn begun(mut begun: Begun) -> Begun {
        if is_planted(PlantName::KeptBlock) {
            // Of the two that each begin takes one is kept, and the next begin is given it.
            begun.count -= 1;
            let (now, spare) = (begun.snapshot.id.boot, WritePointer(begun.first.0 + u64::from(begun.count)));
            let kept = MEMORY.with_borrow_mut(|memory| memory.kept.replace((now, spare)));
            if let Some((boot, kept)) = kept
                && (boot, begun.count) == (now, 1)
            {
                begun.first = kept;
            }
        }
        if is_planted(PlantName::StaleSnapshot) {
            MEMORY.with_borrow_mut(|memory| {
                memory.begins += 1;
                let is_kept = !memory.begins.is_multiple_of(STALE_BEGINS);
                match &memory.snapshot {
                    Some(old) if is_kept && old.id.boot == begun.snapshot.id.boot => begun.snapshot = old.clone(),
                    _ => memory.snapshot = Some(begun.snapshot.clone()),
                }
            });
        }
        begun
    }

    fn begin_waits() -> bool {
        is_planted(PlantName::BeginWaits)
    }

    fn wrong_base() -> bool {
        is_planted(PlantName::WrongBase)
    }

    fn unlogged_refusal() -> bool {
        is_planted(PlantName::UnloggedRefusal)
    }

    fn unlogged_checkpoint() -> bool {
        is_planted(PlantName::UnloggedCheckpoint)
    }

    fn ack_before_sync() -> bool {
        is_planted(PlantName::AckBeforeSync)
    }

    fn late_visible() -> bool {
        is_planted(PlantName::LateVisible)
    }

    fn settle_looks() -> bool {
        is_planted(PlantName::SettleLooks)
    }

    fn forgotten_outcome() -> bool {
        is_planted(PlantName::ForgottenOutcome)
    }

    fn window_left_over() -> bool {
        is_planted(PlantName::WindowLeftOver)
    }
    fn expiry_early() -> bool {
        is_planted(PlantName::ExpiryEarly)
    }

    fn expiry_during_commit() -> bool {
        is_planted(PlantName::ExpiryDuringCommit)
    }

    fn window_reused() -> bool {
        is_planted(PlantName::WindowReused)
    }

    fn unaccounted_visible() -> bool {
        is_planted(PlantName::UnaccountedVisible)
    }

    fn history_forgotten() -> bool {
        is_planted(PlantName::HistoryForgotten)
    }

    fn image_without_floor() -> bool {
        is_planted(PlantName::ImageWithoutFloor)
    }
}
