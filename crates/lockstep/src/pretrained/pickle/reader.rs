//! A bounds-checked reader of bytes.

use crate::pretrained::error::BadFile;

/// The remaining bytes.
pub(in crate::pretrained) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(in crate::pretrained) fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, at: 0 }
    }

    /// The number of bytes taken so far.
    pub(in crate::pretrained) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], BadFile> {
        let end = self.at.checked_add(count);
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or_else(|| {
            BadFile::Damaged(format!("its pickle ends at byte {}, inside of a value", self.bytes.len()))
        })?;
        self.at += count;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], BadFile> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(super) fn byte(&mut self) -> Result<u8, BadFile> {
        self.array().map(|[byte]| byte)
    }

    /// Takes bytes with a length prefix of 1, 4 or 8 bytes.
    pub(super) fn counted<const N: usize>(&mut self) -> Result<&'a [u8], BadFile> {
        let mut wide = [0; 8];
        wide[..N].copy_from_slice(&self.array::<N>()?);
        // A length that does not fit usize exceeds the data.
        self.take(usize::try_from(u64::from_le_bytes(wide)).unwrap_or(usize::MAX))
    }

    /// Takes the bytes up to the next newline, and the newline.
    pub(super) fn line(&mut self) -> Result<&'a [u8], BadFile> {
        let rest = &self.bytes[self.at..];
        let length = rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
        let line = self.take(length)?;
        self.take(1)?;
        Ok(line)
    }
}
