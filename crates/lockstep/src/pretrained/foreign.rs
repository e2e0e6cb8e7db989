//! Identifies a file without weights, which is usually a failed download.

/// How many characters of a text a message shows.
const SHOWN: usize = 40;

/// First bytes, what they indicate, and what to do.
const KNOWN: [(&[u8], &str); 8] = [
    (
        b"version https://git-lfs",
        "it is a pointer of Git LFS, not the file itself; run `git lfs pull` where it came from",
    ),
    (b"\x1f\x8b", "it is compressed with gzip; unpack it with gunzip"),
    (b"\xfd7zXZ", "it is compressed with xz; unpack it"),
    (b"BZh", "it is compressed with bzip2; unpack it"),
    (b"\x28\xb5\x2f\xfd", "it is compressed with zstd; unpack it"),
    (b"PK\x05\x06", "it is a zip archive of nothing"),
    (b"\x89HDF", "it is an HDF5 file, as Keras writes; convert it to safetensors"),
    (b"GGUF", "it is a GGUF file; convert it to safetensors"),
];

/// The position of a tar archive's signature.
const TAR: (usize, &[u8]) = (257, b"ustar");

/// Describes a file by its first bytes.
pub(super) fn describe(start: &[u8]) -> String {
    if start.is_empty() {
        return "it is empty: perhaps a download that failed; fetch it again".into();
    }
    if let Some((_, described)) = KNOWN.iter().find(|(begins, _)| start.starts_with(begins)) {
        return (*described).into();
    }
    if start.get(TAR.0..).is_some_and(|rest| rest.starts_with(TAR.1)) {
        return "it is a tar archive; unpack it, or, if PyTorch before 0.2 saved it, save it again with a newer one"
            .into();
    }
    let text = start.trim_ascii_start();
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text).trim_ascii_start(); // a byte order mark
    if text.starts_with(b"<") {
        return format!(
            "it is a web page, which begins with {:?}: a download that went wrong; fetch it again from where the file itself is",
            beginning(text)
        );
    }
    let is_text = |byte: &u8| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~' | 0x80..);
    if start.iter().all(is_text) && std::str::from_utf8(&start[..start.len().min(8)]).is_ok() {
        return format!("it is a text, which begins with {:?}: perhaps a download that went wrong", beginning(text));
    }
    "it is neither a safetensors file nor one that torch.save wrote".into()
}

fn beginning(text: &[u8]) -> String {
    String::from_utf8_lossy(text).chars().take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_failed_downloads() {
        let mut tar = vec![0; 512];
        tar[257..262].copy_from_slice(b"ustar");
        for (start, expected) in [
            (&b""[..], "empty"),
            (b"\xef\xbb\xbf\n <!DOCTYPE html><html>404", "web page, which begins with \"<!DOCTYPE html>"),
            (b"<?xml version='1.0'?><Error><Code>AccessDenied", "web page"),
            (b"{\"error\": \"not found\"}", "text, which begins with \"{"),
            (b"Not Found", "Not Found"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:", "git lfs pull"),
            (b"\x1f\x8b\x08\x00", "gunzip"),
            (&tar, "tar"),
            (b"\x00\x01\x02", "neither"),
        ] {
            let said = describe(start);
            assert!(said.contains(expected), "{said}");
        }
    }
}
