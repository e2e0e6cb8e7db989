//! Checksums of an exercise's files as the course wrote them. They show which files a learner has changed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The list of checksums in the exercise's folder: one line per file, with its CRC-32 in hex and its path.
pub const FILE: &str = "pristine.crc32";

/// The line of one file.
pub fn line(path: &Path, text: &str) -> String {
    format!("{:08x}  {}\n", crc32fast::hash(text.as_bytes()), path.display())
}

/// The checksums listed in a folder, by path. Empty if the folder has no list.
pub fn read(folder: &Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(folder.join(FILE)).unwrap_or_default();
    let pair = |line: &str| line.split_once("  ").map(|(sum, path)| (path.to_owned(), sum.to_owned()));
    text.lines().filter_map(pair).collect()
}

/// Returns true if a file of the exercise is as the course wrote it.
pub fn untouched(folder: &Path, file: &Path) -> bool {
    let Ok(text) = fs::read_to_string(folder.join(file)) else { return false };
    let checksums = read(folder);
    checksums.get(&*file.to_string_lossy()).is_some_and(|sum| line(file, &text).starts_with(sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_a_changed_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = Path::new("src/shard.rs");
        fs::create_dir(folder.path().join("src")).unwrap();
        fs::write(folder.path().join(file), "pristine").unwrap();
        assert!(!untouched(folder.path(), file), "no list");
        fs::write(folder.path().join(FILE), line(file, "pristine")).unwrap();
        assert!(untouched(folder.path(), file));
        fs::write(folder.path().join(file), "changed").unwrap();
        assert!(!untouched(folder.path(), file));
    }
}
