//! Planted bugs, so that a check can show that it fails when it should.
//!
//! A pipeline is compiled for a plant, and [`Honest`] answers every question with a constant: the shipped pipeline
//! holds no trace of the others. A simulation has one that answers by name.

use seriatim_core::Begun;

/// What a pipeline does wrong on purpose.
pub trait Plant: Send + 'static {
    /// Commits are not checked for conflicts: updates get lost.
    fn lost_update() -> bool {
        false
    }
    /// Commits become visible before they are durable: a crash takes back what was read.
    fn early_visible() -> bool {
        false
    }
    /// A connection's open transactions are aborted when it ends: half-written ones become visible.
    fn abort_on_disconnect() -> bool {
        false
    }
    /// What serializable transactions read is not checked: two that read what the other writes both commit.
    fn reads_unchecked() -> bool {
        false
    }
    /// The visibility bound is the smallest open pointer, less one.
    fn bound_by_pointers() -> bool {
        false
    }
    /// Stores may clean what has ended at once, though its client may still write.
    fn clean_early() -> bool {
        false
    }
    /// A store that has cleaned up to a bound is taken to have cleaned up to the greatest that anybody was given.
    fn cleaned_beyond() -> bool {
        false
    }
    /// A begin takes so many pointers more than it was asked for.
    fn extra_pointers() -> u32 {
        0
    }
    /// What a begin is answered with, in place of what began.
    fn begun(begun: Begun) -> Begun {
        begun
    }
    /// A begin is answered when its event is durable, and so waits for the disk.
    fn begin_waits() -> bool {
        false
    }
    /// Snapshots are differences from another one than the reader has.
    fn wrong_base() -> bool {
        false
    }
    /// A session that comes back is taken for another one, and what it had open ends.
    fn return_ignored() -> bool {
        false
    }
    /// A look tells of refusals before they are durable.
    fn refusal_seen_early() -> bool {
        false
    }
    /// What a reset dropped is said to be forgotten before the reset is durable.
    fn reset_seen_early() -> bool {
        false
    }
    /// Refusals are answered before they are durable.
    fn unlogged_refusal() -> bool {
        false
    }
    /// Checkpoints are answered before they are durable.
    fn unlogged_checkpoint() -> bool {
        false
    }
    /// Whatever ends a transaction is answered before it is durable.
    fn ack_before_sync() -> bool {
        false
    }
    /// Replies leave before the snapshot that holds what they claim is the newest one.
    fn late_visible() -> bool {
        false
    }
    /// A doubt is settled by a look, which leaves an open transaction open.
    fn settle_looks() -> bool {
        false
    }
    /// What is forgotten is guessed to have been aborted.
    fn forgotten_outcome() -> bool {
        false
    }
    /// Transactions expire before their time.
    fn expiry_early() -> bool {
        false
    }
    /// A deadline ends transactions whose commit is decided.
    fn expiry_during_commit() -> bool {
        false
    }
    /// A run takes what its predecessor left of a window for its own, and asks for none until the clock is there.
    fn window_left_over() -> bool {
        false
    }
    /// A run hands out pointers of its predecessor's window again.
    fn window_reused() -> bool {
        false
    }
    /// What a crash left unaccounted is not excluded: half-written transactions become visible.
    fn unaccounted_visible() -> bool {
        false
    }
    /// Commits before a restart are not checked against.
    fn history_forgotten() -> bool {
        false
    }
    /// Commits that only an image remembers are not checked against, and nobody is too old for it.
    fn image_without_floor() -> bool {
        false
    }
}

/// Nothing wrong.
#[derive(Debug)]
pub enum Honest {}
impl Plant for Honest {}

/// See [`Plant::lost_update`].
#[derive(Debug)]
pub enum LostUpdate {}
impl Plant for LostUpdate {
    fn lost_update() -> bool {
        true
    }
}

/// See [`Plant::early_visible`].
#[derive(Debug)]
pub enum EarlyVisible {}
impl Plant for EarlyVisible {
    fn early_visible() -> bool {
        true
    }
}

/// See [`Plant::abort_on_disconnect`].
#[derive(Debug)]
pub enum AbortOnDisconnect {}
impl Plant for AbortOnDisconnect {
    fn abort_on_disconnect() -> bool {
        true
    }
}
