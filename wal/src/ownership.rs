//! Whose directory it is: taking it, and reading or writing its identity.

use std::io;

use crate::error::{ForeignReason, OpenError};
use crate::file_name::FileName;
use crate::identity::{FORMAT_VERSION, Identity, StoreId, Unreadable};
use crate::storage::{Listing, LockError, Storage};

/// Takes the directory, and reads or, in an empty one, writes its identity.
pub(crate) fn identify(
    storage: &mut dyn Storage,
    expected: Option<StoreId>,
    created_ms: u64,
) -> Result<(StoreId, Listing), OpenError> {
    storage.lock().map_err(|error| match error {
        LockError::Held { directory } => OpenError::Locked { directory },
        LockError::Occupied { file } => OpenError::Foreign { file, reason: ForeignReason::NoIdentity },
        LockError::Io { action, path, source } => OpenError::Io { action, file: path, source },
    })?;
    let name = FileName::Identity;
    let listing = storage.list().map_err(io_error(storage, "list the directory of", name))?;
    if listing.files.iter().any(|(file, _)| *file == name) {
        let bytes = storage.head(name, 4096).map_err(io_error(storage, "read", name))?;
        let identity = Identity::decode(&bytes).map_err(|why| match why {
            Unreadable::Version(found) => newer(storage, name, found),
            Unreadable::NotOurs => OpenError::Foreign { file: storage.display(name), reason: ForeignReason::OtherFile },
            Unreadable::Damaged => OpenError::BadIdentity { file: storage.display(name) },
        })?;
        return match expected {
            Some(expected) if expected != identity.store => Err(other_store(storage, name, identity.store, expected)),
            _ => Ok((identity.store, listing)),
        };
    }
    if let Some((file, _)) = listing.files.first() {
        let file = storage.display(*file);
        return Err(OpenError::Foreign { file, reason: ForeignReason::NoIdentity });
    }
    let drawn = u128::from(storage.random()) << 64 | u128::from(storage.random());
    let store = expected.unwrap_or(StoreId(drawn));
    let identity = Identity { store, created_ms };
    storage.create(name, &identity.encode()).map_err(io_error(storage, "write", name))?;
    Ok((store, listing))
}

pub(crate) fn io_error(
    storage: &dyn Storage,
    action: &'static str,
    file: FileName,
) -> impl FnOnce(io::Error) -> OpenError + use<> {
    let file = storage.display(file);
    move |source| OpenError::Io { action, file, source }
}

pub(crate) fn other_store(storage: &dyn Storage, file: FileName, found: StoreId, expected: StoreId) -> OpenError {
    let reason = ForeignReason::OtherStore { found: found.0, expected: expected.0 };
    OpenError::Foreign { file: storage.display(file), reason }
}

pub(crate) fn newer(storage: &dyn Storage, file: FileName, found: u16) -> OpenError {
    OpenError::Newer { file: storage.display(file), found, known: FORMAT_VERSION }
}
