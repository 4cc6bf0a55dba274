//! Planted bugs, so that a check can show that it fails when it should.
//!
//! A pipeline is compiled once per plant, and every question about one is a constant: the shipped pipeline is
//! [`Honest`] and holds no trace of the others.

/// What a pipeline does wrong on purpose.
pub trait Plant: Send + 'static {
    /// Commits are not checked for conflicts: updates get lost.
    const LOST_UPDATE: bool = false;
    /// Commits become visible before they are durable: a crash takes back what was read.
    const EARLY_VISIBLE: bool = false;
    /// A connection's open transactions are aborted when it ends: half-written ones become visible.
    const ABORT_ON_DISCONNECT: bool = false;
}

/// Nothing wrong.
#[derive(Debug)]
pub enum Honest {}
impl Plant for Honest {}

/// See [`Plant::LOST_UPDATE`].
#[derive(Debug)]
pub enum LostUpdate {}
impl Plant for LostUpdate {
    const LOST_UPDATE: bool = true;
}

/// See [`Plant::EARLY_VISIBLE`].
#[derive(Debug)]
pub enum EarlyVisible {}
impl Plant for EarlyVisible {
    const EARLY_VISIBLE: bool = true;
}

/// See [`Plant::ABORT_ON_DISCONNECT`].
#[derive(Debug)]
pub enum AbortOnDisconnect {}
impl Plant for AbortOnDisconnect {
    const ABORT_ON_DISCONNECT: bool = true;
}
