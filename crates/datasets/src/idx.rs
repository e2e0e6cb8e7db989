//! The IDX format, in which MNIST and its relatives are published: reads a file, plain or gzipped, and writes one.
//!
//! Layout (Yann LeCun's MNIST page): two zero bytes, one byte for the element type, one for the number of dimensions, then each
//! dimension as a big-endian `u32`, then the elements, the last dimension fastest. Only unsigned bytes are read; errors name
//! the other types.
//!
//! Files are untrusted. Memory grows with the bytes that arrive, never with a header's claim; a claim beyond [`MAX_BYTES`], or
//! beyond what a file of that length can hold, is an error before any data is read. `mnist` interprets the images.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

use flate2::Compression;
use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;
use lockstep_paths::write_atomically;

use crate::{DataError, kind_of};

/// Maximum number of data bytes to read or write: 1 GiB. MNIST's training images have 47 MB, EMNIST's largest set has 547 MB.
pub const MAX_BYTES: u64 = 1 << 30;

/// Maximum compression ratio of a deflate stream (zlib's documentation: 1032 to 1).
const DEFLATE_MOST: u64 = 1032;

const CUT_OFF: &str = "the file is cut off or its header is damaged, get it again";

/// How many bytes of a file that is not IDX are examined to find out what it is.
const PEEK: usize = 64;

/// The expected contents of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdxKind {
    /// Bytes `[n, rows, columns]`.
    Images,
    /// Bytes `[n]`.
    Labels,
    /// Bytes with any number of dimensions.
    Any,
}

/// An array of unsigned bytes, the last dimension fastest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idx {
    dims: Vec<usize>,
    data: Vec<u8>,
}

impl Idx {
    /// An array of `dims` from its bytes.
    ///
    /// Fails when the product of `dims` is not the number of bytes, or when the format cannot represent it: 1 to 255 dimensions,
    /// each at most `u32::MAX`, in total at most [`MAX_BYTES`].
    pub fn new(dims: Vec<usize>, data: Vec<u8>) -> Result<Self, DataError> {
        let why = if !(1..=255).contains(&dims.len()) {
            "an IDX file has 1 to 255 dimensions"
        } else if dims.iter().any(|&dim| u32::try_from(dim).is_err()) {
            "a dimension is at most 4294967295"
        } else if data.len() as u64 > MAX_BYTES {
            "that is more than 1 GiB"
        } else if product(&dims) != Some(data.len() as u64) {
            "the product of the dimensions must be the number of bytes"
        } else {
            return Ok(Self { dims, data });
        };
        Err(DataError::new(format!("make an IDX file of {dims:?} from {} bytes", data.len())).hint(why))
    }

    /// Reads a file; its first bytes, not its name, decide whether it is gzipped.
    ///
    /// Errors: a [`DataError`] for an invalid file; the whole file is checked, up to its last byte and gzip's checksum.
    pub fn read(path: &Path, kind: IdxKind) -> Result<Self, DataError> {
        let mut source = Source::open(path)?;
        let header = source.header(kind)?;
        let data = source.data(&header)?;
        Ok(Self { dims: header.dims, data })
    }

    /// Writes a file, gzipped if the name ends with `.gz`. The write is atomic: a temporary file in the same folder is synced
    /// and renamed.
    pub fn write(&self, path: &Path) -> Result<(), DataError> {
        self.try_write(path).map_err(|source| DataError::unwritable(path, source))
    }

    /// The dimensions; for images `[n, rows, columns]`.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    pub fn data(&self) -> &[u8] {
        &self.data
    }

    pub fn into_parts(self) -> (Vec<usize>, Vec<u8>) {
        (self.dims, self.data)
    }

    fn try_write(&self, path: &Path) -> io::Result<()> {
        let packed = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gz"));
        write_atomically(path, |out| {
            if !packed {
                return self.encode(out);
            }
            let mut gz = GzEncoder::new(out, Compression::default());
            self.encode(&mut gz)?;
            gz.finish().map(drop)
        })
    }

    fn encode(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&[0, 0, ElementType::U8 as u8, self.dims.len() as u8])?;
        for &dim in &self.dims {
            out.write_all(&(dim as u32).to_be_bytes())?; // `new` and `read` accept no larger one
        }
        out.write_all(&self.data)
    }
}

/// The element types of the format, by their code in the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ElementType {
    U8 = 0x08,
    I8 = 0x09,
    I16 = 0x0B,
    I32 = 0x0C,
    F32 = 0x0D,
    F64 = 0x0E,
}

impl ElementType {
    const ALL: [Self; 6] = [Self::U8, Self::I8, Self::I16, Self::I32, Self::F32, Self::F64];

    fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|&kind| kind as u8 == code)
    }

    fn name(self) -> &'static str {
        match self {
            Self::U8 => "unsigned bytes",
            Self::I8 => "signed bytes",
            Self::I16 => "16-bit integers",
            Self::I32 => "32-bit integers",
            Self::F32 => "32-bit floats",
            Self::F64 => "64-bit floats",
        }
    }
}

struct Header {
    dims: Vec<usize>,
    /// The product of `dims`, at most [`MAX_BYTES`].
    bytes: u64,
}

/// A file being read, and decompressed if it is gzipped.
struct Source<'a> {
    path: &'a Path,
    reader: Box<dyn Read>,
    gzip: bool,
    /// The maximum number of bytes that it can yield.
    most: u64,
}

impl<'a> Source<'a> {
    fn open(path: &'a Path) -> Result<Self, DataError> {
        let fail = |source| DataError::unreadable(path, source);
        let about = std::fs::metadata(path).map_err(fail)?;
        if !about.is_file() {
            let error = DataError::new("read").at(path).expected("an IDX file").found(kind_of(&about));
            return Err(error.hint("give the path of the file itself"));
        }
        let mut file = BufReader::with_capacity(1 << 16, File::open(path).map_err(fail)?);
        let gzip = file.fill_buf().map_err(|source| failed_disk(path, 0, source))?.starts_with(b"\x1f\x8b");
        let most = if gzip { about.len().saturating_mul(DEFLATE_MOST) } else { about.len() };
        let reader: Box<dyn Read> = if gzip { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
        Ok(Self { path, reader, gzip, most })
    }

    fn header(&mut self, kind: IdxKind) -> Result<Header, DataError> {
        let magic = self.take(4, 0)?;
        let &[0, 0, code, rank @ 1..=255] = &magic[..] else { return Err(self.not_idx(magic)) };
        let Some(element) = ElementType::from_code(code) else { return Err(self.not_idx(magic)) };
        if element != ElementType::U8 {
            let found = format!("{} (type 0x{code:02x}), an IDX type that is not read here", element.name());
            return Err(self.refuse("unsigned bytes (type 0x08)", found, "convert the file to unsigned bytes"));
        }
        check_kind(self.path, kind, rank)?;
        let (expected, sizes) = (4 + 4 * usize::from(rank), self.take(4 * usize::from(rank), 0)?);
        if sizes.len() + 4 < expected {
            return Err(self.short_header(expected, sizes.len() + 4));
        }
        let dims = sizes.chunks_exact(4).map(|be| be.iter().fold(0, |value, &byte| value << 8 | usize::from(byte)));
        self.check_claim(dims.collect(), expected as u64)
    }

    /// Rejects dimensions that no file can hold, or that this one cannot.
    fn check_claim(&self, dims: Vec<usize>, header: u64) -> Result<Header, DataError> {
        let Some(bytes) = product(&dims).filter(|&bytes| bytes <= MAX_BYTES) else {
            let hint = "the header is damaged, or the file is not a data set, get it again";
            return Err(self.refuse(format!("at most {MAX_BYTES} bytes"), format!("{dims:?} in the header"), hint));
        };
        let most = self.most.saturating_sub(header);
        if bytes <= most {
            return Ok(Header { dims, bytes });
        }
        let found = if self.gzip { format!("a gzip file that unpacks to {most} at most") } else { most.to_string() };
        Err(self.refuse(claim(&dims, bytes), found, CUT_OFF))
    }

    /// Reads all data and checks that nothing follows it.
    fn data(&mut self, header: &Header) -> Result<Vec<u8>, DataError> {
        let expected = header.bytes;
        let data = self.take(expected as usize, 0)?;
        if (data.len() as u64) < expected {
            return Err(self.refuse(claim(&header.dims, expected), data.len().to_string(), CUT_OFF));
        }
        if !self.take(1, expected)?.is_empty() {
            let hint = "two files may have been joined, or the header is damaged, get it again";
            return Err(self.refuse(claim(&header.dims, expected), "more after them", hint));
        }
        Ok(data)
    }

    /// Reads up to `count` bytes, fewer at the end of the file. The vector grows with the bytes that arrive.
    fn take(&mut self, count: usize, done: u64) -> Result<Vec<u8>, DataError> {
        let mut bytes = Vec::new();
        match (&mut self.reader).take(count as u64).read_to_end(&mut bytes) {
            Ok(_) => Ok(bytes),
            Err(source) => Err(self.broken(done + bytes.len() as u64, source)),
        }
    }

    fn broken(&self, done: u64, source: io::Error) -> DataError {
        let what = match source.kind() {
            io::ErrorKind::UnexpectedEof if self.gzip => "cut off",
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData if self.gzip => "damaged",
            _ => return failed_disk(self.path, done, source),
        };
        let found = format!("a gzip stream that is {what} after {done} bytes of data");
        self.refuse("", found, "get the file again").because(source)
    }

    fn refuse(&self, expected: impl Into<String>, found: impl Into<String>, hint: &str) -> DataError {
        DataError::new("read").at(self.path).expected(expected).found(found).hint(hint)
    }

    fn short_header(&self, expected: usize, found: usize) -> DataError {
        let found = format!("the end of the file after {found}");
        self.refuse(format!("a header of {expected} bytes"), found, "the file is cut off, get it again")
    }

    /// Describes what the file is instead; if the stream breaks, the description depends on the bytes before that.
    fn not_idx(&mut self, mut start: Vec<u8>) -> DataError {
        if start.len() == 4 {
            start.extend(self.take(PEEK, 4).unwrap_or_default());
        }
        if start.first() == Some(&0) && start.len() < 4 {
            return self.short_header(4, start.len());
        }
        let (found, hint) = guess(&start);
        self.refuse("an IDX file (bytes 00 00 08 and the number of dimensions)", found, hint)
    }
}

/// Describes a header's claim: `12 bytes, as the header claims ([2, 3, 2])`.
fn claim(dims: &[usize], bytes: u64) -> String {
    format!("{bytes} bytes, as the header claims ({dims:?})")
}

fn failed_disk(path: &Path, done: u64, source: io::Error) -> DataError {
    let hint = "the disk or the file system failed; try again, or copy the file";
    DataError::new("read").at(path).found(format!("no more after {done} bytes of data")).hint(hint).because(source)
}

/// The product of the dimensions, or `None` if it overflows `u64`. One dimension of 0 makes it 0 whatever the others are.
fn product(dims: &[usize]) -> Option<u64> {
    if dims.contains(&0) {
        return Some(0);
    }
    dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim as u64))
}

/// Checks the number of dimensions against the expected kind.
fn check_kind(path: &Path, kind: IdxKind, rank: u8) -> Result<(), DataError> {
    let expected = match kind {
        IdxKind::Images if rank != 3 => "an image file (3 dimensions, magic 0x00000803)",
        IdxKind::Labels if rank != 1 => "a label file (1 dimension, magic 0x00000801)",
        _ => return Ok(()),
    };
    let (what, hint) = match rank {
        1 => ("a label file", "the image and label files are probably swapped: give the images-idx3 file"),
        3 => ("an image file", "the image and label files are probably swapped: give the labels-idx1 file"),
        _ => (
            "neither images nor labels",
            "this is not a file of MNIST's layout: give its images-idx3 and labels-idx1 files",
        ),
    };
    let found = format!("{what} ({rank} dimension{}, magic 0x000008{rank:02x})", if rank == 1 { "" } else { "s" });
    Err(DataError::new("read").at(path).expected(expected).found(found).hint(hint))
}

// Guesses from its first bytes what a file that is not IDX is.

/// Files that are often found in place of an IDX file: their first bytes, what they are, and what to do.
const IMPOSTORS: &[(&[u8], &str, &str)] = &[
    (b"\x1f\x8b", "a gzip file inside the gzip file", "unpack it once with gunzip"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file that it points to", "run git lfs pull"),
    (b"PK\x03\x04", "a zip archive", "unpack it and give the files in it"),
    (b"\x89PNG", "a PNG picture", "give the folder of the IDX files"),
    (b"\xff\xd8\xff", "a JPEG picture", "give the folder of the IDX files"),
    (b"\xfd7zXZ", "an xz file", "unpack it with unxz"),
    (b"\x28\xb5\x2f\xfd", "a zstd file", "unpack it with unzstd"),
    (b"BZh", "a bzip2 file", "unpack it with bunzip2"),
    (b"PAR1", "a Parquet file", "get the data set in its IDX form"),
    (b"\x80\x02", "a Python pickle", "get the data set in its IDX form"),
    (b"\x93NUMPY", "a NumPy array", "get the data set in its IDX form"),
    (b"{", "JSON text, perhaps a server's error message", "download the file again and look at the address"),
];

/// Describes what `start`, the first bytes of a file that is not IDX, looks like, and what to do about it.
fn guess(start: &[u8]) -> (String, &'static str) {
    const AGAIN: &str = "get the file again";
    if start.is_empty() {
        return ("an empty file".into(), "a download failed, get the file again");
    }
    let trimmed = start.trim_ascii_start().to_ascii_lowercase();
    if [b"<!doctype".as_slice(), b"<html", b"<?xml", b"<head"].iter().any(|tag| trimmed.starts_with(tag)) {
        return ("a HTML or XML page, perhaps a server's error message".into(), "download the file again");
    }
    if let Some((_, what, hint)) = IMPOSTORS.iter().find(|(magic, ..)| start.starts_with(magic)) {
        return ((*what).into(), hint);
    }
    if matches!(start, [1..=4, 8, 0, 0, ..]) {
        return (
            format!("{}, an IDX header with its bytes reversed", hex(start)),
            "write it again in big-endian order",
        );
    }
    if start.len() >= 8 && start.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace()) {
        let text = String::from_utf8_lossy(&start[..start.len().min(16)]);
        return (format!("text that begins {:?}", text), "give the path of the IDX file, or get it again");
    }
    (format!("bytes {}", hex(start)), AGAIN)
}

fn hex(start: &[u8]) -> String {
    start.iter().take(4).map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}
