//! The end of a log.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// The last bytes of a file, at most `limit` of them.
///
/// # Errors
/// When the file cannot be read, or is a folder or a pipe.
pub fn end_of_file(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(limit)))?;
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_only_the_end_of_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        assert!(end_of_file(&path, 8).is_err() && end_of_file(folder.path(), 8).is_err());
        std::fs::write(&path, "one\nlast").unwrap();
        assert_eq!(end_of_file(&path, 5).unwrap(), b"\nlast");
        assert_eq!(end_of_file(&path, 9).unwrap(), b"one\nlast");
    }
}
