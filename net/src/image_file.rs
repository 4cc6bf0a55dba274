//! Reading an image file by itself: what was dumped, or taken from a data directory.

use seriatim_core::{ImageError, Published};
use seriatim_wal::{ImageFile, ImageFileError};
use seriatim_wire::StoreId;

/// A published state that was read from an image file.
pub struct SavedState {
    /// Which store it is of.
    pub store: StoreId,
    /// The last record of the log whose effect it holds.
    pub lsn: u64,
    /// When the group with that record was written, in ms since the Unix epoch; 0 if no record was.
    pub written_ms: u64,
    /// The state.
    pub published: Published,
}

/// Why an image file cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SavedStateError {
    /// The file is no image, or not whole.
    #[error(transparent)]
    File(#[from] ImageFileError),
    /// The file is whole, and its content does not read.
    #[error(transparent)]
    Content(#[from] ImageError),
}

impl SavedState {
    /// Reads an image file of any version up to this one. Every byte is checked.
    ///
    /// # Errors
    /// See [`SavedStateError`].
    pub fn read(file: &[u8]) -> Result<SavedState, SavedStateError> {
        let ImageFile { store, covers, created_ms, content, .. } = ImageFile::read(file)?;
        let published = Published::load_image(content, 0)?;
        Ok(SavedState { store: StoreId(store.0), lsn: covers.0, written_ms: created_ms, published })
    }
}
