//! The last lines of a stream, for the verdict on a failure and its report.

use std::collections::VecDeque;
use std::io;
use std::path::Path;

use lockstep_process::end_of_file;

use super::lines::Lines;

/// The maximum number of lines: a Python traceback with the exceptions that caused it.
pub(super) const LINES: usize = 200;
/// The maximum size of all lines, in bytes.
pub(super) const BYTES: usize = 16 << 10;
/// The maximum size of one line, in bytes.
const LINE: usize = 4 << 10;

/// The last lines, limited in number and size.
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

    /// The lines as text; bytes that are not UTF-8 are replaced.
    pub(super) fn text(&self) -> Vec<String> {
        self.lines.iter().map(|line| String::from_utf8_lossy(line).trim_end_matches('\r').to_owned()).collect()
    }
}

/// The last lines of a file, without reading all of it.
pub(super) fn of_file(path: &Path) -> io::Result<Tail> {
    // One more byte shows whether a line begins there.
    let end = end_of_file(path, BYTES as u64 + 1)?;
    let whole = match end.iter().position(|byte| *byte == b'\n') {
        _ if end.len() <= BYTES => &end[..],
        Some(at) => &end[at + 1..],
        None => &end[1..],
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
    fn limits_the_last_lines_in_number_and_size() {
        let mut tail = Tail::default();
        (0..300).for_each(|number| tail.push(format!("line {number}").as_bytes()));
        assert_eq!(
            (tail.text().len(), tail.text()[0].as_str(), tail.text()[LINES - 1].as_str()),
            (LINES, "line 100", "line 299")
        );
        (0..10).for_each(|_| tail.push(&[b'x'; 2 * LINE]));
        assert_eq!((tail.text().len(), tail.text()[0].len(), tail.bytes), (BYTES / LINE, LINE, BYTES));
    }

    #[test]
    fn shows_bytes_that_are_not_text() {
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
        assert_eq!((text.len(), text[0].as_str(), text[LINES - 1].as_str()), (LINES, "line 4800", "line 4999"));
        std::fs::write(&path, vec![b'x'; 3 * BYTES]).unwrap();
        assert_eq!(of_file(&path).unwrap().text(), ["x".repeat(LINE)]);
    }
}
