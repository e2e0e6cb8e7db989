//! The last lines of a stream, for the report on a failure.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use super::lines::Lines;

/// So many lines are kept.
pub(super) const LINES: usize = 20;
/// All of them together, in bytes.
pub(super) const BYTES: usize = 16 << 10;
/// Of one line, in bytes.
const LINE: usize = 4 << 10;

/// The last lines, bounded in number and size.
#[derive(Debug, Default)]
pub(super) struct Tail {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Tail {
    pub(super) fn push(&mut self, line: &[u8]) {
        let line = &line[..line.len().min(LINE)];
        self.bytes += line.len();
        self.lines.push_back(line.to_vec());
        while self.lines.len() > LINES || self.bytes > BYTES {
            self.bytes -= self.lines.pop_front().map_or(0, |line| line.len());
        }
    }

    /// As text; what is no UTF-8 is replaced.
    pub(super) fn text(&self) -> Vec<String> {
        self.lines.iter().map(|line| String::from_utf8_lossy(line).trim_end_matches('\r').to_owned()).collect()
    }
}

/// The last lines of a file, without reading the rest of it.
pub(super) fn of_file(path: &Path) -> io::Result<Tail> {
    let mut file = File::open(path)?;
    let begin = file.metadata()?.len().saturating_sub(BYTES as u64);
    // One byte more tells whether a line begins there.
    file.seek(SeekFrom::Start(begin.saturating_sub(1)))?;
    let mut end = Vec::new();
    file.take(BYTES as u64 + 1).read_to_end(&mut end)?;
    let whole = if begin == 0 {
        &end[..]
    } else {
        &end[end.iter().position(|byte| *byte == b'\n').map_or(1, |at| at + 1).min(end.len())..]
    };
    let mut tail = Tail::default();
    let mut lines = Lines::default();
    lines.push(whole, |line| tail.push(line.bytes));
    lines.finish(|line| tail.push(line.bytes));
    Ok(tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_last_lines_in_number_and_size() {
        let mut tail = Tail::default();
        (0..100).for_each(|number| tail.push(format!("line {number}").as_bytes()));
        assert_eq!(
            (tail.text().len(), tail.text()[0].as_str(), tail.text()[19].as_str()),
            (LINES, "line 80", "line 99")
        );
        (0..10).for_each(|_| tail.push(&[b'x'; 2 * LINE]));
        assert_eq!((tail.text().len(), tail.text()[0].len(), tail.bytes), (BYTES / LINE, LINE, BYTES));
    }

    #[test]
    fn shows_what_is_no_text() {
        let mut tail = Tail::default();
        tail.push(b"\xffa\r");
        assert_eq!(tail.text(), ["\u{fffd}a"]);
    }

    #[test]
    fn reads_the_end_of_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stderr.log");
        std::fs::write(&path, "one\ntwo\nthree").unwrap();
        assert_eq!(of_file(&path).unwrap().text(), ["one", "two", "three"]);
        let long: String = (0..5000).map(|number| format!("line {number}\n")).collect();
        std::fs::write(&path, long).unwrap();
        let text = of_file(&path).unwrap().text();
        assert_eq!((text.len(), text[0].as_str(), text[19].as_str()), (LINES, "line 4980", "line 4999"));
        std::fs::write(&path, vec![b'x'; 3 * BYTES]).unwrap();
        assert_eq!(of_file(&path).unwrap().text(), ["x".repeat(LINE)]);
    }
}
