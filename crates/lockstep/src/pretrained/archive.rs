//! The format of `torch.save` since PyTorch 1.6: a zip archive with `NAME/data.pkl`, the storages `NAME/data/KEY`, and small
//! metadata entries.

use std::io::{Read, Seek, SeekFrom};

use tch::Kind;
use zip::ZipArchive;
use zip::result::ZipError;

use super::error::{BadFile, shown};
use super::pickle::{self, Pickle, Reader};
use super::tensors::Storages;

/// Maximum length of a pickle, in bytes: a state dict needs about 200 for each of its tensors.
pub(super) const LONGEST_PICKLE: u64 = 64 << 20;

/// Maximum ratio of unpacked bytes to the length of the file; PyTorch does not compress, and weights hardly shrink.
const MOST_EXPANSION: u64 = 16;
/// Additional allowance in bytes, for small files.
const SMALL: u64 = 64 << 20;

/// The signature of the record at an archive's end, and the maximum length of that record with its comment (APPNOTE.TXT,
/// 4.3.16).
const END: &[u8] = b"PK\x05\x06";
const LONGEST_END: u64 = 22 + 65_535;

/// An archive, and how many more bytes may be unpacked.
pub(super) struct Archive<R> {
    zip: ZipArchive<R>,
    /// The folder in it, with a trailing slash.
    folder: String,
    length: u64,
    left: u64,
    big_endian: bool,
}

impl<R: Read + Seek> Archive<R> {
    /// Opens the archive of a file of `length` bytes, and reads its pickle.
    pub(super) fn open(mut input: R, length: u64) -> Result<(Self, Pickle), BadFile> {
        check_end(&mut input, length)?;
        let zip = ZipArchive::new(input).map_err(of_zip("its list of contents"))?;
        let folder = folder(&zip)?;
        let left = length.saturating_mul(MOST_EXPANSION).saturating_add(SMALL);
        let mut archive = Archive { zip, folder, length, left, big_endian: false };
        if archive.has("constants.pkl") {
            return Err(BadFile::Other(
                "it is a TorchScript module, a program with its weights; in Python: \
                 torch.save(torch.jit.load(PATH).state_dict(), \"weights.pth\")"
                    .into(),
            ));
        }
        archive.big_endian = archive.is_big_endian()?;
        let bytes = archive.entry("data.pkl", LONGEST_PICKLE)?;
        let pickle = pickle::parse(&mut Reader::new(&bytes))?;
        Ok((archive, pickle))
    }

    fn has(&self, name: &str) -> bool {
        self.zip.index_for_name(&format!("{}{name}", self.folder)).is_some()
    }

    /// Archives of PyTorch before 2.1 do not say; their storages have the byte order of the machine that wrote them.
    fn is_big_endian(&mut self) -> Result<bool, BadFile> {
        if !self.has("byteorder") {
            return Ok(false);
        }
        match &self.entry("byteorder", 16)?[..] {
            b"little" => Ok(false),
            b"big" => Ok(true),
            _ => Err(BadFile::Damaged("its byteorder is neither little nor big".into())),
        }
    }

    /// Reads the entry, which must not be longer than `most` bytes.
    fn entry(&mut self, name: &str, most: u64) -> Result<Vec<u8>, BadFile> {
        let mut entry = self.zip.by_name(&format!("{}{name}", self.folder)).map_err(of_zip(name))?;
        let size = entry.size();
        if size > most.min(self.left) {
            return Err(BadFile::Other(format!(
                "its entry {} unpacks to {size} bytes, which is too much for a file of {} bytes",
                shown(name),
                self.length
            )));
        }
        self.left -= size;
        let mut bytes = Vec::new();
        // Allocates no more at once than the file has: memory grows only with data that exists.
        let fits = bytes.try_reserve_exact(size.min(self.length) as usize).is_ok();
        let read = (&mut entry).take(size + 1).read_to_end(&mut bytes);
        match read {
            Ok(read) if fits && read as u64 == size => Ok(bytes),
            Ok(read) => Err(BadFile::Damaged(format!("its entry {} has {read} bytes of {size}", shown(name)))),
            Err(error) => Err(BadFile::Damaged(format!("its entry {}: {error}", shown(name)))),
        }
    }
}

impl<R: Read + Seek> Storages for Archive<R> {
    fn bytes(&mut self, key: &str, kind: Kind, count: usize) -> Result<Vec<u8>, BadFile> {
        let mut bytes = self.entry(&format!("data/{key}"), u64::MAX)?;
        if bytes.len() != count {
            let has = bytes.len();
            return Err(BadFile::Damaged(format!(
                "the storage {} has {has} bytes where its pickle says {count}",
                shown(key)
            )));
        }
        if self.big_endian {
            bytes.chunks_exact_mut(kind.elt_size_in_bytes()).for_each(<[u8]>::reverse);
        }
        Ok(bytes)
    }
}

/// Returns true if the record at the end of every archive is in its place. The zip crate would search for it in the whole file,
/// which may claim any length.
fn check_end<R: Read + Seek>(input: &mut R, length: u64) -> Result<(), BadFile> {
    let mut end = Vec::new();
    input.seek(SeekFrom::Start(length.saturating_sub(LONGEST_END)))?;
    input.by_ref().take(LONGEST_END).read_to_end(&mut end)?;
    input.seek(SeekFrom::Start(0))?;
    if end.windows(END.len()).any(|part| part == END) {
        return Ok(());
    }
    Err(BadFile::damaged("it is a zip archive and its end is missing, as after a download that broke off"))
}

/// The folder with the pickle. `torch.save` names it after the file, or `archive`.
fn folder<R: Read + Seek>(zip: &ZipArchive<R>) -> Result<String, BadFile> {
    let names: Vec<_> = zip.file_names().filter_map(Result::ok).collect();
    let folders = names.iter().filter_map(|name| name.strip_suffix("data.pkl"));
    let mut folders = folders.filter(|folder| folder.find('/') == Some(folder.len().saturating_sub(1)));
    folders.next().map(str::to_owned).ok_or_else(|| {
        let names: Vec<String> = names.iter().map(|name| shown(name)).collect();
        let has = crate::snapshot::listed(&names);
        BadFile::Other(format!("it is a zip archive, but not one of torch.save: it has no data.pkl, but {has}"))
    })
}

fn of_zip(what: &str) -> impl FnOnce(ZipError) -> BadFile {
    let what = shown(what);
    move |error| match error {
        ZipError::Io(error) => BadFile::Damaged(format!("{what}: {error}")),
        error => BadFile::Damaged(format!("it is a zip archive of which {what} cannot be found: {error}")),
    }
}
