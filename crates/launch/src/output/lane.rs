//! What one device shows next: pure, from entries to bytes.
//!
//! A device has one line that may be open: one that has begun without an end. Whoever else has a line to show ends it
//! first, so lines never mix; its owner then goes on in a line of its own, where it stopped.

use std::collections::HashMap;

use super::plan::Stream;

/// Who shows something: a worker, with both its streams, or the agent.
pub(super) type Owner = u64;

/// The agent itself.
pub(super) const AGENT: Owner = 0;

/// Something to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) owner: Owner,
    pub(super) stream: Stream,
    /// What stands before its lines.
    pub(super) prefix: Vec<u8>,
    pub(super) what: What,
}

/// What is to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Bytes as they are.
    Raw(Vec<u8>),
    /// A whole line, without its newline.
    Line(Vec<u8>),
    /// All of a line that has not ended yet.
    Open(Vec<u8>),
    /// The state of a progress bar.
    State(Vec<u8>),
}

impl Entry {
    /// How much memory it holds, in bytes.
    pub(super) fn size(&self) -> usize {
        let (What::Raw(bytes) | What::Line(bytes) | What::Open(bytes) | What::State(bytes)) = &self.what;
        // Also an empty line is something.
        bytes.len() + self.prefix.len() + size_of::<Self>()
    }
}

/// A device's state.
#[derive(Debug, Default)]
pub(super) struct Lane {
    open: Option<Opened>,
    /// How much of their open lines was shown before somebody else ended it.
    interrupted: HashMap<(Owner, Stream), usize>,
}

#[derive(Debug)]
struct Opened {
    owner: Owner,
    stream: Stream,
    /// How many bytes of the line stand there.
    shown: usize,
    how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Raw,
    Open,
    State,
}

impl Lane {
    /// Appends what the device is to be sent for this entry.
    pub(super) fn show(&mut self, entry: &Entry, to: &mut Vec<u8>) {
        match &entry.what {
            What::Raw(bytes) => self.raw(entry, bytes, to),
            What::Line(bytes) => self.line(entry, bytes, to),
            What::Open(bytes) => self.partial(entry, bytes, to),
            What::State(bytes) => self.state(entry, bytes, to),
        }
    }

    fn raw(&mut self, entry: &Entry, bytes: &[u8], to: &mut Vec<u8>) {
        // A worker's two streams may mix as they would without an agent.
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

    fn partial(&mut self, entry: &Entry, bytes: &[u8], to: &mut Vec<u8>) {
        match self.opened_by(entry) {
            Some((How::Open, shown)) => to.extend_from_slice(bytes.get(shown..).unwrap_or_default()),
            None if self.open.is_none() => {
                let shown = self.interrupted.remove(&(entry.owner, entry.stream)).unwrap_or(0);
                to.extend_from_slice(&entry.prefix);
                to.extend_from_slice(bytes.get(shown..).unwrap_or_default());
            }
            // Another's line is open: this one waits for its end.
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

    /// Ends the open line, if there is one, in favour of another's.
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
        let mut lane = Lane::default();
        let mut to = vec![];
        for (owner, what) in entries {
            let prefix = if owner == AGENT { vec![] } else { format!("[{owner}]:").into_bytes() };
            lane.show(&Entry { owner, stream: Stream::Stdout, prefix, what }, &mut to);
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
    fn whole_lines_stand_alone() {
        assert_eq!(shown([(1, line("a")), (2, line("")), (1, line("b"))]), "[1]:a\n[2]:\n[1]:b\n");
    }

    #[test]
    fn an_open_line_goes_on_where_it_stopped() {
        assert_eq!(shown([(1, open("Name")), (1, open("Name: ")), (1, line("Name: x"))]), "[1]:Name: x\n");
    }

    #[test]
    fn anothers_line_ends_the_open_one_which_goes_on_in_its_own() {
        let entries =
            [(1, open("50")), (2, line("b")), (2, open("q")), (1, open("5060")), (2, line("qr")), (1, line("506070"))];
        assert_eq!(shown(entries), "[1]:50\n[2]:b\n[2]:qr\n[1]:6070\n");
    }

    #[test]
    fn a_progress_bar_replaces_its_own_state_only() {
        let entries = [(1, state("10%")), (2, state("20%")), (1, state("30%")), (2, line("b")), (1, line("done"))];
        assert_eq!(shown(entries), "[1]:10%\r\x1b[K[1]:30%\n[2]:b\n[1]:done\n");
        assert_eq!(shown([(1, state("10%")), (1, line("done"))]), "[1]:10%\r\x1b[K[1]:done\n");
    }

    #[test]
    fn raw_bytes_pass_and_are_only_ended_for_another() {
        let raw = |text: &str| What::Raw(text.into());
        assert_eq!(
            shown([(1, raw("a\nb")), (1, raw("\r")), (1, raw("")), (AGENT, line("x")), (1, raw("c\n"))]),
            "a\nb\r\nx\nc\n"
        );
    }
}
