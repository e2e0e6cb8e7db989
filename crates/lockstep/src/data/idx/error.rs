//! What can be wrong with an IDX file, said so that the reader knows what to do; and the guess at what it is instead.

use std::io;
use std::path::PathBuf;

/// A file that is not the IDX file that was wanted. Each message reads after "failed to".
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdxError {
    /// The file cannot be opened.
    #[error("open {}: check the path and the right to read it", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A folder, a pipe, a device.
    #[error("read {}: expected an IDX file, found {found}; give the path of the file itself", path.display())]
    NotAFile {
        /// The file.
        path: PathBuf,
        /// What it is.
        found: &'static str,
    },
    /// The system failed while the file was read.
    #[error(
        "read {}: the disk or the file system failed after {done} bytes of data; try again, or copy the file",
        path.display()
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// How many data bytes had come.
        done: u64,
        /// What the system says.
        source: io::Error,
    },
    /// The first bytes are not an IDX header.
    #[error(
        "read {}: expected an IDX file (bytes 00 00 08 and the number of dimensions), found {found}; {hint}",
        path.display()
    )]
    NotIdx {
        /// The file.
        path: PathBuf,
        /// What it looks like.
        found: String,
        /// What to do.
        hint: &'static str,
    },
    /// The file ends inside its header.
    #[error(
        "read {}: expected a header of {expected} bytes, found the end of the file after {found}; the file is cut off, \
         get it again", path.display()
    )]
    ShortHeader {
        /// The file.
        path: PathBuf,
        /// The header's length in bytes.
        expected: usize,
        /// How many of them there are.
        found: usize,
    },
    /// An IDX file of numbers other than unsigned bytes.
    #[error(
        "read {}: expected unsigned bytes (type 0x08), found {name} (type 0x{code:02x}), an IDX type that is not read \
         here; convert the file to unsigned bytes", path.display()
    )]
    UnsupportedType {
        /// The file.
        path: PathBuf,
        /// The type's code in the header.
        code: u8,
        /// The type's name.
        name: &'static str,
    },
    /// A good IDX file, but of the other kind.
    #[error("read {}: expected {expected}, found {found}; {hint}", path.display())]
    WrongKind {
        /// The file.
        path: PathBuf,
        /// The kind that was wanted.
        expected: &'static str,
        /// What its header says.
        found: String,
        /// What to do.
        hint: &'static str,
    },
    /// The header claims more than any file that is read here may hold.
    #[error(
        "read {}: the header claims {dims:?} bytes, more than the {limit} that are read at most; the header is \
         damaged, or the file is no data set, get it again", path.display()
    )]
    Absurd {
        /// The file.
        path: PathBuf,
        /// The dimensions in the header.
        dims: Vec<usize>,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The data ends too early.
    #[error(
        "read {}: the header claims {dims:?}, {expected} bytes, found {found}; the file is cut off or its header is \
         damaged, get it again", path.display()
    )]
    Short {
        /// The file.
        path: PathBuf,
        /// The dimensions in the header.
        dims: Vec<usize>,
        /// How many bytes they make.
        expected: u64,
        /// How many there are.
        found: u64,
    },
    /// A gzip file that cannot unpack to what its header claims.
    #[error(
        "read {}: the header claims {dims:?}, {expected} bytes, but a gzip file of this size unpacks to {most} at \
         most; the file is cut off or its header is damaged, get it again", path.display()
    )]
    TooSmall {
        /// The file.
        path: PathBuf,
        /// The dimensions in the header.
        dims: Vec<usize>,
        /// How many bytes they make.
        expected: u64,
        /// The most that can come, by the limit of the deflate format.
        most: u64,
    },
    /// Something follows the data.
    #[error(
        "read {}: the header claims {dims:?}, {expected} bytes, found more after them; two files may have been joined, \
         or the header is damaged, get it again", path.display()
    )]
    Trailing {
        /// The file.
        path: PathBuf,
        /// The dimensions in the header.
        dims: Vec<usize>,
        /// How many bytes they make.
        expected: u64,
    },
    /// The gzip stream is cut off, damaged or followed by something else.
    #[error("read {}: the gzip stream is {what} after {done} bytes of data; get the file again", path.display())]
    Gzip {
        /// The file.
        path: PathBuf,
        /// Cut off or damaged.
        what: &'static str,
        /// How many data bytes had come.
        done: u64,
        /// What the decoder says.
        source: io::Error,
    },
    /// Dimensions and data that do not belong together.
    #[error("make an IDX file of {dims:?} from {found} bytes: {why}")]
    Shape {
        /// The dimensions given.
        dims: Vec<usize>,
        /// How many bytes were given.
        found: usize,
        /// What does not fit.
        why: &'static str,
    },
    /// The file cannot be written.
    #[error("write {}: check that its folder exists, may be written and has room", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// How files that are often found in the place of an IDX file begin, what they are, and what to do.
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

/// What `start`, the first bytes of a file that is not IDX, looks like, and what to do about it.
pub(super) fn guess(start: &[u8]) -> (String, &'static str) {
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
