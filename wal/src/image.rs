//! The image file: the saved state, closed by a trailer without which nobody believes it.

use std::io::{self, Write};

use xxhash_rust::xxh3::Xxh3;

use crate::field::{is_sealed, put_u16, put_u64, put_u128, seal, u64_at, u128_at};
use crate::identity::{FORMAT_VERSION, StoreId, Unreadable, check_header};
use crate::lsn::Lsn;

const MAGIC: [u8; 8] = *b"SERIAIMG";
const HEADER_BYTES: usize = 64;
const TRAILER_MAGIC: [u8; 8] = *b"SERIAEND";
const TRAILER_BYTES: usize = 40;

/// What an image's header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ImageHeader {
    pub store: StoreId,
    /// The last record whose effect it holds.
    pub covers: Lsn,
    pub token: u64,
    /// Wall clock, informational.
    pub created_ms: u64,
}

impl ImageHeader {
    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        put_u16(&mut bytes, 8, FORMAT_VERSION);
        put_u128(&mut bytes, 16, self.store.0);
        put_u64(&mut bytes, 32, self.covers.0);
        put_u64(&mut bytes, 40, self.token);
        put_u64(&mut bytes, 48, self.created_ms);
        seal(&mut bytes);
        bytes
    }

    /// Writes a whole image file: header, what `content` writes, trailer.
    pub(crate) fn write(
        &self,
        out: &mut dyn Write,
        content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        let header = self.encode();
        out.write_all(&header)?;
        let mut digesting = Digesting { out, hasher: Xxh3::new(), bytes: 0 };
        digesting.hasher.update(&header);
        content(&mut digesting)?;
        let (hasher, bytes) = (digesting.hasher, digesting.bytes);
        let mut trailer = [0; TRAILER_BYTES];
        trailer[..8].copy_from_slice(&TRAILER_MAGIC);
        put_u64(&mut trailer, 8, bytes);
        put_u128(&mut trailer, 16, hasher.digest128());
        seal(&mut trailer);
        out.write_all(&trailer)
    }

    /// Reads an image file; its content is `file[image_content(file)]`.
    pub(crate) fn read(file: &[u8]) -> Result<ImageHeader, Unreadable> {
        let header = file.first_chunk::<HEADER_BYTES>().ok_or(Unreadable::Damaged)?;
        check_header(header, MAGIC)?;
        let rest = file.len() - HEADER_BYTES;
        let trailer = file[HEADER_BYTES..].last_chunk::<TRAILER_BYTES>().ok_or(Unreadable::Damaged)?;
        let mut hasher = Xxh3::new();
        hasher.update(&file[..file.len() - TRAILER_BYTES]);
        let whole = is_sealed(trailer)
            && trailer[..8] == TRAILER_MAGIC
            && u64_at(trailer, 8) == (rest - TRAILER_BYTES) as u64
            && u128_at(trailer, 16) == hasher.digest128();
        if !whole {
            return Err(Unreadable::Damaged);
        }
        Ok(ImageHeader {
            store: StoreId(u128_at(header, 16)),
            covers: Lsn(u64_at(header, 32)),
            token: u64_at(header, 40),
            created_ms: u64_at(header, 48),
        })
    }
}

/// Where the content lies in an image file that was read.
pub(crate) fn image_content(file: &[u8]) -> std::ops::Range<usize> {
    HEADER_BYTES..file.len() - TRAILER_BYTES
}

/// An image file on its own, as [`crate::Log::write_image`] writes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImageFile<'a> {
    /// Which store it is of.
    pub store: StoreId,
    /// The last record whose effect it holds.
    pub covers: Lsn,
    /// Fencing token of whoever wrote it.
    pub token: u64,
    /// When the last durable group before it was written, in ms since the Unix epoch.
    pub created_ms: u64,
    /// The saved state, as the log's owner wrote it.
    pub content: &'a [u8],
}

/// Why bytes are no image file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ImageFileError {
    /// It does not begin like one.
    #[error("this is no image file")]
    NotAnImage,
    /// It begins like one and is not what was written: cut, extended or changed.
    #[error("the image file is cut or damaged: a checksum does not match")]
    Damaged,
    /// Written by a newer version.
    #[error("the image file has format version {0}, and this version reads {FORMAT_VERSION}")]
    Version(u16),
}

impl<'a> ImageFile<'a> {
    /// Reads a whole image file; every byte of it is checked.
    ///
    /// # Errors
    /// See [`ImageFileError`].
    pub fn read(file: &'a [u8]) -> Result<ImageFile<'a>, ImageFileError> {
        let ImageHeader { store, covers, token, created_ms } =
            ImageHeader::read(file).map_err(|unreadable| match unreadable {
                Unreadable::NotOurs => ImageFileError::NotAnImage,
                Unreadable::Version(version) => ImageFileError::Version(version),
                // A file that is too short to tell counts as one that was cut.
                Unreadable::Damaged if !file.starts_with(&MAGIC) => ImageFileError::NotAnImage,
                Unreadable::Damaged => ImageFileError::Damaged,
            })?;
        Ok(ImageFile { store, covers, token, created_ms, content: &file[image_content(file)] })
    }
}

struct Digesting<'a> {
    out: &'a mut dyn Write,
    hasher: Xxh3,
    bytes: u64,
}

impl Write for Digesting<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(content: &[u8]) -> (ImageHeader, Vec<u8>) {
        let header = ImageHeader { store: StoreId(1), covers: Lsn(2), token: 3, created_ms: 4 };
        let mut file = Vec::new();
        header.write(&mut file, |out| out.write_all(content)).unwrap();
        (header, file)
    }

    #[test]
    fn an_image_reads_back() {
        for content in [&b""[..], b"the state"] {
            let (header, file) = example(content);
            assert_eq!(ImageHeader::read(&file), Ok(header));
            assert_eq!(&file[image_content(&file)], content);
            assert_eq!(ImageFile::read(&file).unwrap().content, content);
        }
    }

    #[test]
    fn a_cut_extended_or_changed_image_is_none() {
        let (_, mut file) = example(b"the state");
        for cut in 0..file.len() {
            assert!(ImageHeader::read(&file[..cut]).is_err(), "cut at {cut}");
        }
        for bit in 0..file.len() * 8 {
            file[bit / 8] ^= 1 << (bit % 8);
            assert!(ImageHeader::read(&file).is_err(), "bit {bit}");
            file[bit / 8] ^= 1 << (bit % 8);
        }
        file.push(0);
        assert!(ImageHeader::read(&file).is_err());
    }

    #[test]
    fn what_is_no_image_is_told_from_a_damaged_one() {
        let (_, mut file) = example(b"the state");
        assert_eq!(ImageFile::read(b""), Err(ImageFileError::NotAnImage));
        assert_eq!(ImageFile::read(&[b'x'; 500]), Err(ImageFileError::NotAnImage));
        assert_eq!(ImageFile::read(&file[..file.len() - 1]), Err(ImageFileError::Damaged));
        assert_eq!(ImageFile::read(&file[..20]), Err(ImageFileError::Damaged));
        file[70] ^= 1;
        assert_eq!(ImageFile::read(&file), Err(ImageFileError::Damaged));
    }

    #[test]
    fn an_error_of_the_content_is_the_images_error() {
        let header = ImageHeader { store: StoreId(1), covers: Lsn(2), token: 3, created_ms: 4 };
        let result = header.write(&mut Vec::new(), |_| Err(io::Error::other("no")));
        assert_eq!(result.unwrap_err().to_string(), "no");
    }
}
