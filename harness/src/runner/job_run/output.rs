//! Reads the nodes' output from their files while they write.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use lockstep_process::end_of_file;

/// The maximum number of bytes of a node's output that one call reads.
const OUTPUT: u64 = 1 << 20;

/// The complete lines of a file after byte `read`, which is advanced.
pub(super) fn lines_from(path: &Path, read: &mut u64) -> Vec<String> {
    let mut text = Vec::new();
    let Ok(mut file) = File::open(path) else { return Vec::new() };
    if file.seek(SeekFrom::Start(*read)).is_err() || file.take(OUTPUT).read_to_end(&mut text).is_err() {
        return Vec::new();
    }
    // A line that is longer than one read counts as complete.
    let full = text.len() as u64 == OUTPUT;
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(if full { text.len() } else { 0 }, |end| end + 1);
    *read += whole as u64;
    String::from_utf8_lossy(&text[..whole]).lines().map(str::to_owned).collect()
}

/// The end of a file, as text.
pub(super) fn tail(path: &Path) -> String {
    String::from_utf8_lossy(&end_of_file(path, OUTPUT).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_each_whole_line_once() {
        let dir = tempfile::tempdir().unwrap();
        let (path, mut read) = (dir.path().join("x"), 0);
        assert_eq!(lines_from(&path, &mut read), Vec::<String>::new());
        for (text, expected) in [("a\nb", vec!["a"]), ("a\nbc\n", vec!["bc"]), ("a\nbc\nd\né\n", vec!["d", "é"])] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(lines_from(&path, &mut read), expected);
        }
        assert_eq!(tail(&path), "a\nbc\nd\né\n");
    }
}
