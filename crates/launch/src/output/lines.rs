//! Cuts a stream of bytes into lines. Pure; bytes, not text.

/// A longer line is broken, in bytes. What is broken off is marked by the one who shows it.
pub(super) const LONGEST: usize = 1 << 20;

/// The line that has begun, across chunks.
#[derive(Debug, Default)]
pub(super) struct Lines {
    line: Vec<u8>,
    /// The last byte was a carriage return: a newline makes it a line's end, anything else starts the line over.
    returned: bool,
    /// Something of the line has been replaced since it began.
    updated: bool,
}

/// A line that has ended, without its newline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line<'a> {
    pub(super) bytes: &'a [u8],
    /// It went on, but it was too long.
    pub(super) broken: bool,
}

impl Lines {
    /// Takes in a chunk and tells each line that ends in it.
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
            each(Line { bytes: &self.line, broken: true });
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
            // A line that ends as on Windows stays so.
            self.line.push(b'\r');
        }
        each(Line { bytes: &self.line, broken: false });
        self.reset();
    }

    /// The stream has ended: what is left is a line.
    pub(super) fn finish(&mut self, mut each: impl FnMut(Line<'_>)) {
        if !self.line.is_empty() {
            each(Line { bytes: &self.line, broken: false });
        }
        self.reset();
    }

    fn reset(&mut self) {
        self.line.clear();
        // A line of a megabyte must not hold its memory for ever.
        self.line.shrink_to(4096);
        (self.returned, self.updated) = (false, false);
    }

    /// The line so far: of a progress bar, its last state.
    pub(super) fn open(&self) -> &[u8] {
        &self.line
    }

    /// Whether the line so far is a state that others have preceded or will follow.
    pub(super) fn is_update(&self) -> bool {
        self.returned || self.updated
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines_of<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Vec<(Vec<u8>, bool)> {
        let mut told = vec![];
        let mut lines = Lines::default();
        let mut keep = |line: Line<'_>| told.push((line.bytes.to_vec(), line.broken));
        for chunk in chunks {
            lines.push(chunk, &mut keep);
        }
        lines.finish(&mut keep);
        told
    }

    fn texts(input: &str) -> Vec<String> {
        lines_of([input.as_bytes()]).into_iter().map(|(line, _)| String::from_utf8(line).unwrap()).collect()
    }

    #[test]
    fn cuts_at_newlines_and_ends_the_last_line() {
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
    fn tells_the_open_line_and_whether_it_is_a_state() {
        let mut lines = Lines::default();
        lines.push(b"Name: ", |_| panic!("no line"));
        assert_eq!((lines.open(), lines.is_update()), (&b"Name: "[..], false));
        lines.push(b"\r 7%", |_| panic!("no line"));
        assert_eq!((lines.open(), lines.is_update()), (&b" 7%"[..], true));
        lines.push(b"\nx", |_| {});
        assert_eq!((lines.open(), lines.is_update()), (&b"x"[..], false));
    }

    #[test]
    fn breaks_a_line_that_is_too_long() {
        let long = vec![b'x'; 2 * LONGEST + 3];
        let told = lines_of([&long[..], b"\n"]);
        let lengths: Vec<(usize, bool)> = told.iter().map(|(line, broken)| (line.len(), *broken)).collect();
        assert_eq!(lengths, [(LONGEST, true), (LONGEST, true), (3, false)]);
        assert_eq!(lines_of([&long[..LONGEST], b"\n"]).len(), 1);
    }

    /// What a terminal would show of each line: the text after the last carriage return that text follows.
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
        fn chunks_do_not_matter(
            pieces in prop::collection::vec(prop::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), any::<u8>()], 0..12), 0..12)
        ) {
            let told: Vec<Vec<u8>> = lines_of(pieces.iter().map(Vec::as_slice)).into_iter().map(|(line, _)| line).collect();
            prop_assert_eq!(told, reference(&pieces.concat()));
        }
    }
}
