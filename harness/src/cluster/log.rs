//! The end of a machine's or a daemon's log, for errors.

use std::path::Path;

use lockstep_process::end_of_file;

/// How much of a log is shown with an error, in lines.
const TAIL: usize = 12;
/// The same in bytes.
const LONGEST: u64 = 16 << 10;

/// The last lines of a log, for the end of an error; nothing, if it has none.
pub(super) fn tail(log: &Path) -> String {
    let end = end_of_file(log, LONGEST).unwrap_or_default();
    let text = String::from_utf8_lossy(&end);
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(TAIL)..];
    if last.is_empty() {
        return String::new();
    }
    let name = log.file_name().unwrap_or_default().to_string_lossy();
    format!("\n  the end of {name}:{}", last.iter().map(|line| format!("\n  | {line}")).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_the_end_of_a_log_and_nothing_of_an_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("n1.log");
        assert_eq!(tail(&log), "");
        std::fs::write(&log, (1..=20).map(|line| format!("line {line}\n")).collect::<String>()).unwrap();
        let tail = tail(&log);
        assert!(tail.starts_with("\n  the end of n1.log:\n  | line 9\n") && tail.ends_with("\n  | line 20"), "{tail}");
    }
}
