//! Splits a stream of bytes into lines, and merges the lines of several owners on one device. Pure; works on bytes, not text.

use std::collections::HashMap;

/// One of a worker's two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

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
    /// True for the last state of a progress bar: earlier states were replaced.
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
                Some(_) => self.returned = true,
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

/// The writer of an entry: a worker, with both of its streams, or the agent.
pub(super) type Owner = u64;

/// The agent itself.
pub(super) const AGENT: Owner = 0;

/// An entry to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) owner: Owner,
    pub(super) stream: Stream,
    /// The prefix of its lines.
    pub(super) prefix: Vec<u8>,
    pub(super) content: Content,
}

/// The contents of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Bytes that are passed through.
    Raw(Vec<u8>),
    /// A complete line, without its newline.
    Line(Vec<u8>),
    /// A whole line that replaces the part that was shown: the last state of a progress bar.
    Replacement(Vec<u8>),
    /// The whole of a line that has not ended yet.
    Open(Vec<u8>),
    /// The state of a progress bar.
    State(Vec<u8>),
}

impl Entry {
    /// The memory that it uses, in bytes.
    pub(super) fn size(&self) -> usize {
        let (Content::Raw(bytes)
        | Content::Line(bytes)
        | Content::Replacement(bytes)
        | Content::Open(bytes)
        | Content::State(bytes)) = &self.content;
        // Even an empty line counts.
        bytes.len() + self.prefix.len() + size_of::<Self>()
    }
}

/// The state of a device.
///
/// A device has at most one open line: one that has begun and not ended. An entry of another owner ends it first, so
/// lines never mix; the interrupted owner then continues on a new line, where it stopped.
#[derive(Debug, Default)]
pub(super) struct LineMultiplexer {
    open: Option<Opened>,
    /// How much of each interrupted line was shown.
    interrupted: HashMap<(Owner, Stream), usize>,
}

#[derive(Debug)]
struct Opened {
    owner: Owner,
    stream: Stream,
    /// How many bytes of the line are on the device.
    shown: usize,
    how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Raw,
    Open,
    State,
}

impl LineMultiplexer {
    /// Appends the bytes that the device gets for this entry.
    pub(super) fn show(&mut self, entry: &Entry, to: &mut Vec<u8>) {
        match &entry.content {
            Content::Raw(bytes) => self.raw(entry, bytes, to),
            Content::Line(bytes) => self.line(entry, bytes, to),
            Content::Replacement(bytes) => self.whole(entry, bytes, to),
            Content::Open(bytes) => self.partial(entry, bytes, to),
            Content::State(bytes) => self.state(entry, bytes, to),
        }
    }

    fn raw(&mut self, entry: &Entry, bytes: &[u8], to: &mut Vec<u8>) {
        // A worker's two streams may mix, as they would without an agent.
        if self.open.as_ref().is_some_and(|open| open.owner != entry.owner) {
            self.interrupt(to);
        }
        to.extend_from_slice(bytes);
        if let Some(last) = bytes.last() {
            let opened = Opened { owner: entry.owner, stream: entry.stream, shown: 0, how: How::Raw };
            self.open = (*last != b'\n').then_some(opened);
        }
    }

    fn line(&mut self, entry: &Entry, bytes: &[u8], to: &mut Vec<u8>) {
        match self.opened_by(entry) {
            Some((How::Open, shown)) => to.extend_from_slice(bytes.get(shown..).unwrap_or_default()),
            Some((How::State, _)) => {
                to.extend_from_slice(b"\r\x1b[K");
                to.extend_from_slice(&entry.prefix);
                to.extend_from_slice(bytes);
            }
            _ => {
                self.interrupt(to);
                let shown = self.interrupted.remove(&(entry.owner, entry.stream)).unwrap_or(0);
                to.extend_from_slice(&entry.prefix);
                to.extend_from_slice(bytes.get(shown..).unwrap_or_default());
            }
        }
        to.push(b'\n');
        self.open = None;
    }

    fn whole(&mut self, entry: &Entry, bytes: &[u8], to: &mut Vec<u8>) {
        if matches!(self.opened_by(entry), Some((How::Open, _))) {
            self.interrupt(to);
        }
        self.interrupted.remove(&(entry.owner, entry.stream));
        self.line(entry, bytes, to);
    }

    fn partial(&mut self, entry: &Entry, bytes: &[u8], to: &mut Vec<u8>) {
        match self.opened_by(entry) {
            Some((How::Open, shown)) => to.extend_from_slice(bytes.get(shown..).unwrap_or_default()),
            None if self.open.is_none() => {
                let shown = self.interrupted.remove(&(entry.owner, entry.stream)).unwrap_or(0);
                to.extend_from_slice(&entry.prefix);
                to.extend_from_slice(bytes.get(shown..).unwrap_or_default());
            }
            // Another owner's line is open: this one waits until it is complete.
            _ => return,
        }
        self.set_open(entry, bytes.len(), How::Open);
    }

    fn state(&mut self, entry: &Entry, bytes: &[u8], to: &mut Vec<u8>) {
        match self.opened_by(entry) {
            Some((How::Open | How::State, _)) => to.extend_from_slice(b"\r\x1b[K"),
            None if self.open.is_none() => {}
            _ => return,
        }
        to.extend_from_slice(&entry.prefix);
        to.extend_from_slice(bytes);
        self.set_open(entry, 0, How::State);
    }

    fn opened_by(&self, entry: &Entry) -> Option<(How, usize)> {
        let open = self.open.as_ref()?;
        (open.owner == entry.owner && open.stream == entry.stream).then_some((open.how, open.shown))
    }

    fn set_open(&mut self, entry: &Entry, shown: usize, how: How) {
        self.open = Some(Opened { owner: entry.owner, stream: entry.stream, shown, how });
    }

    /// Ends the open line, if there is one, for an entry of another owner.
    fn interrupt(&mut self, to: &mut Vec<u8>) {
        if let Some(open) = self.open.take() {
            to.push(b'\n');
            if open.how == How::Open {
                self.interrupted.insert((open.owner, open.stream), open.shown);
            }
        }
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

    fn shown(entries: impl IntoIterator<Item = (Owner, Content)>) -> String {
        let mut multiplexer = LineMultiplexer::default();
        let mut to = vec![];
        for (owner, content) in entries {
            let prefix = if owner == AGENT { vec![] } else { format!("[{owner}]:").into_bytes() };
            multiplexer.show(&Entry { owner, stream: Stream::Stdout, prefix, content }, &mut to);
        }
        String::from_utf8(to).unwrap()
    }

    fn line(text: &str) -> Content {
        Content::Line(text.into())
    }

    fn open(text: &str) -> Content {
        Content::Open(text.into())
    }

    fn state(text: &str) -> Content {
        Content::State(text.into())
    }

    #[test]
    fn shows_complete_lines_separately() {
        assert_eq!(shown([(1, line("a")), (2, line("")), (1, line("b"))]), "[1]:a\n[2]:\n[1]:b\n");
    }

    #[test]
    fn an_open_line_continues_where_it_stopped() {
        assert_eq!(shown([(1, open("Name")), (1, open("Name: ")), (1, line("Name: x"))]), "[1]:Name: x\n");
    }

    #[test]
    fn a_line_of_another_owner_interrupts_the_open_line_which_continues_on_a_new_one() {
        let entries =
            [(1, open("50")), (2, line("b")), (2, open("q")), (1, open("5060")), (2, line("qr")), (1, line("506070"))];
        assert_eq!(shown(entries), "[1]:50\n[2]:b\n[2]:qr\n[1]:6070\n");
    }

    #[test]
    fn a_progress_bar_replaces_only_its_own_state() {
        let entries = [(1, state("10%")), (2, state("20%")), (1, state("30%")), (2, line("b")), (1, line("done"))];
        assert_eq!(shown(entries), "[1]:10%\r\x1b[K[1]:30%\n[2]:b\n[1]:done\n");
        assert_eq!(shown([(1, state("10%")), (1, line("done"))]), "[1]:10%\r\x1b[K[1]:done\n");
    }

    #[test]
    fn a_whole_line_does_not_continue_what_was_shown_of_it() {
        let whole = |text: &str| Content::Replacement(text.into());
        assert_eq!(shown([(1, open("start")), (1, whole("100%"))]), "[1]:start\n[1]:100%\n");
        assert_eq!(shown([(1, state("10%")), (1, whole("100%"))]), "[1]:10%\r\x1b[K[1]:100%\n");
        assert_eq!(
            shown([(1, open("start")), (2, line("b")), (1, whole("100%")), (1, line("next line"))]),
            "[1]:start\n[2]:b\n[1]:100%\n[1]:next line\n"
        );
    }

    #[test]
    fn raw_bytes_pass_through_and_are_only_interrupted_for_another_owner() {
        let raw = |text: &str| Content::Raw(text.into());
        assert_eq!(
            shown([(1, raw("a\nb")), (1, raw("\r")), (1, raw("")), (AGENT, line("x")), (1, raw("c\n"))]),
            "a\nb\r\nx\nc\n"
        );
    }
}
