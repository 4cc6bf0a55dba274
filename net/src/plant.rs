//! Planted bugs, so that a check can show that it fails when it should.
//!
//! A pipeline is compiled for a plant, and [`Honest`] answers every question with a constant: the shipped pipeline
//! holds no trace of the others. A simulation has one that answers by name.

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
