//! The output of the ranks. It goes to files; the learner sees the last lines.

use std::path::{Path, PathBuf};

use lockstep_contract::foreign::quotation;
use lockstep_process::end_of_file;

/// The number of lines to show, over all ranks.
const LINES: usize = 20;
/// How much to read from the end of a rank's file, in bytes.
const TAIL: u64 = 8 << 10;

/// The file for a rank's stdout and stderr.
pub(super) fn file(folder: &Path, rank: usize) -> PathBuf {
    folder.join(format!("printed-{rank}"))
}

/// The last lines of all ranks, each after the name of its rank.
pub(super) fn last_lines(folder: &Path, ranks: usize) -> Vec<String> {
    let each = LINES.div_ceil(ranks).max(2);
    (0..ranks).flat_map(|rank| of_rank(&file(folder, rank), rank, each)).collect()
}

fn of_rank(file: &Path, rank: usize, most: usize) -> Vec<String> {
    let end = end_of_file(file, TAIL).unwrap_or_default();
    let text = String::from_utf8_lossy(&end);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let shown = lines.iter().skip(lines.len().saturating_sub(most));
    shown.map(|line| format!("[rank {rank}] {}", quotation(line))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_the_last_lines_of_each_rank_without_escapes() {
        let folder = tempfile::tempdir().unwrap();
        let lines: String = (0..100).map(|line| format!("line {line}\n")).collect();
        std::fs::write(file(folder.path(), 0), lines).unwrap();
        std::fs::write(file(folder.path(), 1), "\u{1b}[31mred\n\n").unwrap();
        let shown = last_lines(folder.path(), 2);
        assert_eq!(
            (shown.len(), shown[9].as_str(), shown[10].as_str()),
            (11, "[rank 0] line 99", "[rank 1] \\u{1b}[31mred")
        );
    }
}
