//! Guesses from its first bytes what a file that is not IDX is.

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
