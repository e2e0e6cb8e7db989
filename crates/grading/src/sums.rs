//! Checksums of an exercise's files as the course gives them, by which one tells what a learner has changed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The file with them, in the exercise's folder: a line for each file, with its CRC-32 in hex and its path.
pub const FILE: &str = "given.crc32";

/// The line of a file.
pub fn line(path: &Path, text: &str) -> String {
    format!("{:08x}  {}\n", crc32fast::hash(text.as_bytes()), path.display())
}

/// The checksums that stand in a folder; none where there is no list.
pub fn read(folder: &Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(folder.join(FILE)).unwrap_or_default();
    let pair = |line: &str| line.split_once("  ").map(|(sum, path)| (path.to_owned(), sum.to_owned()));
    text.lines().filter_map(pair).collect()
}

/// Whether a file of the exercise is as the course gave it.
pub fn untouched(folder: &Path, file: &Path) -> bool {
    let Ok(text) = fs::read_to_string(folder.join(file)) else { return false };
    let sums = read(folder);
    sums.get(&*file.to_string_lossy()).is_some_and(|sum| line(file, &text).starts_with(sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_whether_a_file_was_changed() {
        let folder = tempfile::tempdir().unwrap();
        let file = Path::new("src/shard.rs");
        fs::create_dir(folder.path().join("src")).unwrap();
        fs::write(folder.path().join(file), "given").unwrap();
        assert!(!untouched(folder.path(), file), "no list");
        fs::write(folder.path().join(FILE), line(file, "given")).unwrap();
        assert!(untouched(folder.path(), file));
        fs::write(folder.path().join(file), "changed").unwrap();
        assert!(!untouched(folder.path(), file));
    }
}
