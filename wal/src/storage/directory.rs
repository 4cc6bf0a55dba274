//! A directory of files: taking it, reading it, and making files whole or not at all.
#![allow(unsafe_code)] // a mapping is only as constant as its file

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::field::BLOCK_BYTES;
use crate::file_name::{FileName, TEMPORARY_SUFFIX};
use crate::storage::{Access, Bytes, FileBytes, Listing, LockError};

/// A shorter file is not worth a mapping.
const MAPPED_BYTES_MIN: usize = 32 << 10;

/// A directory; taken while `lock` is held.
pub(crate) struct Directory {
    path: PathBuf,
    lock: Option<File>,
}

impl Directory {
    pub(crate) fn new(path: &Path) -> Directory {
        Directory { path: path.to_path_buf(), lock: None }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file_path(&self, file: FileName) -> PathBuf {
        self.path.join(file.to_string())
    }

    /// See [`crate::Storage::lock`].
    pub(crate) fn lock(&mut self) -> Result<(), LockError> {
        let directory = self.path.display().to_string();
        let error = |action, path: &Path| {
            let path = path.display().to_string();
            move |source| LockError::Io { action, path, source }
        };
        make_directory(&self.path).map_err(error("make the directory", &self.path))?;
        let foreign = self.foreign_file().map_err(error("list", &self.path))?;
        if let Some(file) = foreign {
            return Err(LockError::Occupied { file });
        }
        // The directory itself is locked: a lock file could be removed under the process that holds it. The kernel lets go
        // of it when the process ends, however it ends.
        let lock = File::open(&self.path).map_err(error("open", &self.path))?;
        lock.try_lock().map_err(|why| match why {
            TryLockError::WouldBlock => LockError::Held { directory },
            TryLockError::Error(source) => error("lock", &self.path)(source),
        })?;
        self.remove_temporary().map_err(error("tidy up", &self.path))?;
        self.lock = Some(lock);
        Ok(())
    }

    /// A file that shows that the directory is somebody else's. Looked for before anything is removed: what is not
    /// ours stays as it is.
    fn foreign_file(&self) -> io::Result<Option<String>> {
        let listing = self.list()?;
        if listing.files.iter().any(|(file, _)| *file == FileName::Identity) {
            return Ok(None);
        }
        // A mount point brings its own directory, and a first start may have ended while it wrote the identity.
        let allowed = ["lost+found", "identity.tmp"];
        let foreign = listing.others.into_iter().find(|name| !allowed.contains(&name.as_str()));
        Ok(foreign.map(|name| self.path.join(name).display().to_string()))
    }

    fn remove_temporary(&self) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            let is_ours = |name: &str| {
                let made = name.strip_suffix(TEMPORARY_SUFFIX);
                made.is_some_and(|made| made == super::probe::NAME || FileName::parse(made).is_some())
            };
            if name.to_str().is_some_and(is_ours) {
                std::fs::remove_file(self.path.join(name))?;
            }
        }
        Ok(())
    }

    /// See [`crate::Storage::list`].
    pub(crate) fn list(&self) -> io::Result<Listing> {
        let mut listing = Listing::default();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name();
            match name.to_str().and_then(FileName::parse) {
                Some(file) => listing.files.push((file, entry.metadata()?.len())),
                None => listing.others.push(name.to_string_lossy().into_owned()),
            }
        }
        listing.files.sort_unstable();
        listing.others.sort_unstable();
        Ok(listing)
    }

    /// See [`crate::Storage::load`].
    pub(crate) fn load(&self, file: FileName, bytes_max: u64, access: Access) -> io::Result<FileBytes> {
        let file = File::open(self.file_path(file))?;
        let bytes = file.metadata()?.len().min(bytes_max);
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
        if access == Access::Live || bytes < MAPPED_BYTES_MIN {
            let mut copy = Vec::with_capacity(bytes);
            file.take(bytes_max).read_to_end(&mut copy)?;
            return Ok(copy.into());
        }
        // SAFETY: the file has that length now, and nobody changes or shortens that part of it while it is mapped. Other
        // processes are kept out by the lock. This one writes to the last segment alone, which is never mapped; segments
        // before it are recycled, and images removed, only when whoever has the mapping is done (`Segments::release`
        // asks; removal leaves a mapped file in place). Should the medium fail to deliver a page, the process ends.
        let map = unsafe { memmap2::MmapOptions::new().len(bytes).map(&file)? };
        advise(&map);
        Ok(FileBytes(Bytes::Mapped(map)))
    }

    /// See [`crate::Storage::head`].
    pub(crate) fn head(&self, file: FileName, bytes: usize) -> io::Result<Vec<u8>> {
        let mut head = Vec::with_capacity(bytes);
        File::open(self.file_path(file))?.take(bytes as u64).read_to_end(&mut head)?;
        Ok(head)
    }

    /// See [`crate::Storage::sync`].
    pub(crate) fn sync(&self, file: FileName) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.file_path(file))?;
        await_direct_writes(&file)?;
        file.sync_all()?;
        sync_directory(&self.path)
    }

    /// See [`crate::Storage::create`].
    pub(crate) fn create(&self, file: FileName, content: &[u8]) -> io::Result<()> {
        let made = make_file(&self.path, file, |out| out.write_all(content));
        made.map(|_| ())
    }
}

/// The file is read once, from front to end.
fn advise(map: &Mmap) {
    // Advice: whether it is taken changes nothing but the speed.
    let _ = map.advise(memmap2::Advice::Sequential);
    let _ = map.advise(memmap2::Advice::WillNeed);
}

fn make_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    std::fs::create_dir_all(path)?;
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_directory(parent),
        _ => sync_directory(Path::new(".")),
    }
}

/// Waits for direct writes that a process before, though killed, still has under way: the kernel ends them in its own time,
/// and a late one would fall upon what is written next. A file system waits for them before it shortens a file; so the
/// file gets an empty block at its end and loses it again.
pub(crate) fn await_direct_writes(file: &File) -> io::Result<()> {
    let bytes = file.metadata()?.len();
    file.set_len(bytes + BLOCK_BYTES as u64)?;
    file.set_len(bytes)
}

/// Makes the names in a directory durable.
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Makes a file under a temporary name, has it filled, makes it durable and gives it its name. If that fails, it is not
/// there and neither is the temporary one, as far as that is in our hands.
pub(crate) fn make_file(
    directory: &Path,
    name: FileName,
    fill: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<File> {
    let temporary = directory.join(format!("{name}{TEMPORARY_SUFFIX}"));
    let made = (|| {
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&temporary)?;
        fill(&mut file)?;
        file.sync_all()?;
        std::fs::rename(&temporary, directory.join(name.to_string()))?;
        sync_directory(directory)?;
        Ok(file)
    })();
    if made.is_err() {
        // The error that is reported is the one that came first.
        let _ = std::fs::remove_file(&temporary);
    }
    made
}
