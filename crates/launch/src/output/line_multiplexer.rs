//! Merges the lines of several owners on one device. Pure: entries in, bytes out.
//!
//! A device has at most one open line: one that has begun and not ended. An entry of another owner ends it first, so
//! lines never mix; the interrupted owner then continues on a new line, where it stopped.

use std::collections::HashMap;

use super::plan::Stream;

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
    pub(super) what: What,
}

/// The contents of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Bytes that are passed through.
    Raw(Vec<u8>),
    /// A complete line, without its newline.
    Line(Vec<u8>),
    /// The same, if it does not continue what was shown of it: a state of a progress bar.
    Whole(Vec<u8>),
    /// The whole of a line that has not ended yet.
    Open(Vec<u8>),
    /// The state of a progress bar.
    State(Vec<u8>),
}

impl Entry {
    /// The memory that it uses, in bytes.
    pub(super) fn size(&self) -> usize {
        let (What::Raw(bytes) | What::Line(bytes) | What::Whole(bytes) | What::Open(bytes) | What::State(bytes)) =
            &self.what;
        // Even an empty line counts.
        bytes.len() + self.prefix.len() + size_of::<Self>()
    }
}

/// The state of a device.
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
        match &entry.what {
            What::Raw(bytes) => self.raw(entry, bytes, to),
            What::Line(bytes) => self.line(entry, bytes, to),
            What::Whole(bytes) => self.whole(entry, bytes, to),
            What::Open(bytes) => self.partial(entry, bytes, to),
            What::State(bytes) => self.state(entry, bytes, to),
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
    use super::*;

    fn shown(entries: impl IntoIterator<Item = (Owner, What)>) -> String {
        let mut multiplexer = LineMultiplexer::default();
        let mut to = vec![];
        for (owner, what) in entries {
            let prefix = if owner == AGENT { vec![] } else { format!("[{owner}]:").into_bytes() };
            multiplexer.show(&Entry { owner, stream: Stream::Stdout, prefix, what }, &mut to);
        }
        String::from_utf8(to).unwrap()
    }

    fn line(text: &str) -> What {
        What::Line(text.into())
    }

    fn open(text: &str) -> What {
        What::Open(text.into())
    }

    fn state(text: &str) -> What {
        What::State(text.into())
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
        let whole = |text: &str| What::Whole(text.into());
        assert_eq!(shown([(1, open("start")), (1, whole("100%"))]), "[1]:start\n[1]:100%\n");
        assert_eq!(shown([(1, state("10%")), (1, whole("100%"))]), "[1]:10%\r\x1b[K[1]:100%\n");
        assert_eq!(
            shown([(1, open("start")), (2, line("b")), (1, whole("100%")), (1, line("next line"))]),
            "[1]:start\n[2]:b\n[1]:100%\n[1]:next line\n"
        );
    }

    #[test]
    fn raw_bytes_pass_through_and_are_only_interrupted_for_another_owner() {
        let raw = |text: &str| What::Raw(text.into());
        assert_eq!(
            shown([(1, raw("a\nb")), (1, raw("\r")), (1, raw("")), (AGENT, line("x")), (1, raw("c\n"))]),
            "a\nb\r\nx\nc\n"
        );
    }
}
