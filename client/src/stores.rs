//! What a client says for a registered store: how far it may clean, how far it has, who blocks.

use seriatim_core::{StoreName, WritePointer};
use seriatim_wire::{CleanBound, PruneReport, StoreReply, StoreRequest};

use crate::client::{Client, unexpected};
use crate::error::Error;
use crate::link::Call;
use crate::waiters::Done;

impl Client {
    /// Registers a store, which says from then on what it has cleaned: while it is registered, the server forgets nothing
    /// that it may still hold. False if it was registered before. Durable when it returns.
    ///
    /// If the connection is lost meanwhile it is asked again, and false may then mean that the first time did it.
    ///
    /// # Errors
    /// [`Error::Store`] if as many stores are registered as may be.
    pub fn register_store(&self, name: &StoreName) -> Result<bool, Error> {
        match self.ask_store(StoreRequest::Register { name: name.as_str() })? {
            StoreReply::Registered(registered) => Ok(registered?),
            other => unreachable!("a session answers a request with its own kind of reply, not {other:?}"),
        }
    }

    /// Takes a store out: its data is gone, or nobody reads it under transactions any more. False if it was not
    /// registered. Durable when it returns.
    ///
    /// # Errors
    /// Those of the connection, and the server's.
    pub fn remove_store(&self, name: &StoreName) -> Result<bool, Error> {
        match self.ask_store(StoreRequest::Remove { name: name.as_str() })? {
            StoreReply::Removed(was_there) => Ok(was_there),
            other => unreachable!("a session answers a request with its own kind of reply, not {other:?}"),
        }
    }

    /// How far a store may clean now. Take a snapshot after this call, and clean by that: what it holds invalid up to the
    /// bound may be taken out of the store.
    ///
    /// # Errors
    /// Those of the connection, and the server's.
    pub fn clean_bound(&self) -> Result<CleanBound, Error> {
        match self.ask_store(StoreRequest::CleanBound)? {
            StoreReply::CleanBound(bounds) => Ok(bounds),
            other => unreachable!("a session answers a request with its own kind of reply, not {other:?}"),
        }
    }

    /// Says that a registered store holds no version of an invalid transaction at or below `bound`, and that this is
    /// durable. What is true of every registered store is forgotten. A lower bound than before changes nothing. Durable when
    /// it returns.
    ///
    /// # Errors
    /// [`Error::Store`] if the store is not registered, or nobody was told in this run of the server that it may clean so
    /// far.
    pub fn store_cleaned(&self, name: &StoreName, bound: WritePointer) -> Result<(), Error> {
        match self.ask_store(StoreRequest::Cleaned { name: name.as_str(), bound })? {
            StoreReply::Cleaned(cleaned) => Ok(cleaned?),
            other => unreachable!("a session answers a request with its own kind of reply, not {other:?}"),
        }
    }

    /// Who keeps the invalid set from becoming smaller.
    ///
    /// # Errors
    /// Those of the connection, and the server's.
    pub fn pruning(&self) -> Result<PruneReport, Error> {
        match self.ask_store(StoreRequest::Pruning)? {
            StoreReply::Pruning(report) => Ok(*report),
            other => unreachable!("a session answers a request with its own kind of reply, not {other:?}"),
        }
    }

    fn ask_store(&self, request: StoreRequest<'_>) -> Result<StoreReply, Error> {
        match self.ask(Call::Store(request))? {
            Done::Store(said) => Ok(said),
            other => Err(unexpected(other)),
        }
    }
}
