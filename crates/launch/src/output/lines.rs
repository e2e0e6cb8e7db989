//! Splits a stream of bytes into lines. Pure; works on bytes, not text.

/// A longer line is split, in bytes. The caller marks the split.
pub(super) const LONGEST: usize = 1 << 20;

/// The current incomplete line, across chunks.
#[derive(Debug, Default)]
pub(super) struct Lines {
    line: Vec<u8>,
    /// True if the last byte was a carriage return: a newline then ends the line, anything else starts the line over.
    returned: bool,
    /// True if a part of the line has been replaced.
    updated: bool,
}

/// A line that has ended, without its newline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line<'a> {
    pub(super) bytes: &'a [u8],
    /// True if the line continues, but was too long.
    pub(super) broken: bool,
    /// True if a part of it has been replaced: it is the last state of a progress bar.
    pub(super) updated: bool,
}

impl Lines {
    /// Processes a chunk and calls `each` for every line that ends in it.
    pub(super) fn push(&mut self, mut chunk: &[u8], mut each: impl FnMut(Line<'_>)) {
        while !chunk.is_empty() {
            let end = chunk.iter().position(|byte| matches!(byte, b'\n' | b'\r')).unwrap_or(chunk.len());
            self.text(&chunk[..end], &mut each);
            match chunk.get(end) {
                Some(b'\n') => self.end(&mut each),
                Some(_) => self.carriage_return(),
                None => return,
            }
            chunk = &chunk[end + 1..];
        }
    }

    fn text(&mut self, mut text: &[u8], each: &mut impl FnMut(Line<'_>)) {
        if text.is_empty() {
            return;
        }
        if std::mem::take(&mut self.returned) {
            self.updated = true;
            self.line.clear();
        }
        while self.line.len() + text.len() > LONGEST {
            let (fits, rest) = text.split_at(LONGEST - self.line.len());
            self.line.extend_from_slice(fits);
            each(Line { bytes: &self.line, broken: true, updated: self.updated });
            self.line.clear();
            text = rest;
        }
        self.line.extend_from_slice(text);
    }

    fn carriage_return(&mut self) {
        self.returned = true;
    }

    fn end(&mut self, each: &mut impl FnMut(Line<'_>)) {
        if std::mem::take(&mut self.returned) {
            // Keep a Windows line ending.
            self.line.push(b'\r');
        }
        each(Line { bytes: &self.line, broken: false, updated: self.updated });
        self.reset();
    }

    /// Ends the stream: the rest is a line.
    pub(super) fn finish(&mut self, mut each: impl FnMut(Line<'_>)) {
        if !self.line.is_empty() {
            each(Line { bytes: &self.line, broken: false, updated: self.updated });
        }
        self.reset();
    }

    fn reset(&mut self) {
        self.line.clear();
        // The memory of a long line must not be kept forever.
        self.line.shrink_to(4096);
        (self.returned, self.updated) = (false, false);
    }

    /// The line so far; for a progress bar, its last state.
    pub(super) fn open(&self) -> &[u8] {
        &self.line
    }

    /// Returns true if the line so far is one of several states of a progress bar.
    pub(super) fn is_update(&self) -> bool {
        self.returned || self.updated
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines_of<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Vec<(Vec<u8>, bool)> {
        let mut ended = vec![];
        let mut lines = Lines::default();
        let mut keep = |line: Line<'_>| ended.push((line.bytes.to_vec(), line.broken));
        for chunk in chunks {
            lines.push(chunk, &mut keep);
        }
        lines.finish(&mut keep);
        ended
    }

    fn texts(input: &str) -> Vec<String> {
        lines_of([input.as_bytes()]).into_iter().map(|(line, _)| String::from_utf8(line).unwrap()).collect()
    }

    #[test]
    fn splits_at_newlines_and_ends_the_last_line() {
        assert_eq!(texts("a\n\nb c\nd"), ["a", "", "b c", "d"]);
        assert_eq!(texts(""), [""; 0]);
    }

    #[test]
    fn keeps_the_last_state_of_a_progress_bar() {
        assert_eq!(texts("\r 10%\r 50%\r100%\ndone\n"), ["100%", "done"]);
        assert_eq!(texts(" 10%\r 50%\r"), [" 50%"]);
        assert_eq!(texts("a\r\nb\r\r\n"), ["a\r", "b\r"]);
    }

    #[test]
    fn returns_the_open_line_and_whether_it_is_a_state() {
        let mut lines = Lines::default();
        lines.push(b"Name: ", |_| panic!("no line"));
        assert_eq!((lines.open(), lines.is_update()), (&b"Name: "[..], false));
        lines.push(b"\r 7%", |_| panic!("no line"));
        assert_eq!((lines.open(), lines.is_update()), (&b" 7%"[..], true));
        lines.push(b"\nx", |_| {});
        assert_eq!((lines.open(), lines.is_update()), (&b"x"[..], false));
    }

    #[test]
    fn splits_a_line_that_is_too_long() {
        let long = vec![b'x'; 2 * LONGEST + 3];
        let lines = lines_of([&long[..], b"\n"]);
        let lengths: Vec<(usize, bool)> = lines.iter().map(|(line, broken)| (line.len(), *broken)).collect();
        assert_eq!(lengths, [(LONGEST, true), (LONGEST, true), (3, false)]);
        assert_eq!(lines_of([&long[..LONGEST], b"\n"]).len(), 1);
    }

    /// The text of each line on a terminal: the last text after a carriage return.
    fn reference(input: &[u8]) -> Vec<Vec<u8>> {
        let ended = input.ends_with(b"\n");
        let mut parts: Vec<&[u8]> = input.split(|byte| *byte == b'\n').collect();
        let last = if ended { parts.pop().map(|_| &b""[..]) } else { parts.pop() };
        let state = |part: &[u8]| {
            let trimmed = part.iter().rposition(|byte| *byte != b'\r').map_or(0, |end| end + 1);
            let begin = part[..trimmed].iter().rposition(|byte| *byte == b'\r').map_or(0, |at| at + 1);
            (part[begin..trimmed].to_vec(), trimmed < part.len())
        };
        let whole = parts.into_iter().map(|part| {
            let (mut line, returned) = state(part);
            line.extend(returned.then_some(b'\r'));
            line
        });
        let rest = last.map(|part| state(part).0).filter(|line| !line.is_empty());
        whole.chain(rest).collect()
    }

    proptest! {
        #[test]
        fn the_sizes_of_chunks_do_not_matter(
            pieces in prop::collection::vec(prop::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), any::<u8>()], 0..12), 0..12)
        ) {
            let lines: Vec<Vec<u8>> = lines_of(pieces.iter().map(Vec::as_slice)).into_iter().map(|(line, _)| line).collect();
            prop_assert_eq!(lines, reference(&pieces.concat()));
        }
    }
}
