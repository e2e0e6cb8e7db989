//! Follows the ranks' event files while they grow.
//!
//! Only complete lines are used; an incomplete line is read again later. Files may appear late, shrink, or contain
//! lines that are not events: nothing fails here, because a status line must never end a job.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockstep_contract::events::memory_line;
use serde::Deserialize;
use serde_json::Value;

/// Bytes of one file that are read at a time. If a file grew by more, reading continues near its end.
const PIECE: u64 = 1 << 20;

/// The progress of a rank, according to its file.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// The number of restarts of the workers.
    pub restart: u32,
    /// Counted from 0.
    pub epoch: Option<u64>,
    /// The last completed step, counted from 0 in its epoch.
    pub step: Option<u64>,
    /// The number of steps in the epoch.
    pub steps: Option<u64>,
    /// The loss of the last step, on this rank.
    pub loss: Option<f64>,
    /// The memory that the rank counted last.
    pub held: Option<MemoryUse>,
}

/// Ranks for which the others wait, according to rank 0's file. Without ranks, all wait for their loaders.
#[derive(Clone, Debug, PartialEq)]
pub struct Late {
    /// The late ranks.
    pub ranks: Vec<usize>,
    /// One word: `loader`, `computing`, `processor`, `other`.
    pub cause: String,
    /// The part of the others' time that is lost.
    pub share: f64,
    /// When it was read, by the clock of [`Tail::poll`].
    pub at: Duration,
}

/// The event files of a folder.
#[derive(Debug)]
pub struct Tail {
    folder: PathBuf,
    files: BTreeMap<usize, ReadPosition>,
    progress: BTreeMap<usize, Progress>,
    late: Option<Late>,
}

/// The position up to which a file has been read.
#[derive(Clone, Copy, Debug, Default)]
struct ReadPosition {
    offset: u64,
    /// True if the start of the line at `offset` was skipped.
    inside: bool,
}

impl Tail {
    /// Follows `folder`, which may not exist yet. Existing contents belong to another run and are ignored.
    pub fn new(folder: &Path) -> Self {
        let mut tail =
            Tail { folder: folder.to_owned(), files: BTreeMap::new(), progress: BTreeMap::new(), late: None };
        for (rank, _, length) in tail.list() {
            tail.files.insert(rank, ReadPosition { offset: length, inside: false });
        }
        tail
    }

    /// The progress of each rank, as of the last [`poll`](Self::poll).
    pub fn progress(&self) -> &BTreeMap<usize, Progress> {
        &self.progress
    }

    /// Who was late last, as of the last [`poll`](Self::poll), unless the ranks have started again since.
    pub fn late(&self) -> Option<&Late> {
        self.late.as_ref()
    }

    /// Reads the new lines. `now` is the time on any monotonic clock.
    pub fn poll(&mut self, now: Duration) {
        for (rank, path, length) in self.list() {
            let place = self.files.entry(rank).or_default();
            if length < place.offset {
                *place = ReadPosition::default();
                self.progress.remove(&rank);
            }
            if length > place.offset
                && let Ok(bytes) = piece(&path, place, length)
            {
                let progress = self.progress.entry(rank).or_default();
                for bytes in lines(place, &bytes) {
                    let Ok(line) = serde_json::from_slice::<Line>(bytes) else { continue };
                    match line.event.as_str() {
                        "late" => self.late = line.late(now),
                        "start" => self.late = None,
                        _ => {}
                    }
                    let held = if line.event == "memory" { serde_json::from_slice(bytes).ok() } else { None };
                    progress.take(line);
                    progress.held = held.or(progress.held);
                }
            }
        }
    }

    /// The ranks' files with their lengths. Files that are not regular are ignored: reading a pipe may block forever.
    fn list(&self) -> Vec<(usize, PathBuf, u64)> {
        let Ok(entries) = fs::read_dir(&self.folder) else { return vec![] };
        let files = entries.flatten().filter_map(|entry| {
            let name = entry.file_name();
            let rank = name.to_str()?.strip_prefix("rank-")?.strip_suffix(".jsonl")?.parse().ok()?;
            let metadata = fs::metadata(entry.path()).ok().filter(fs::Metadata::is_file)?;
            Some((rank, entry.path(), metadata.len()))
        });
        files.collect()
    }
}

/// Reads at most [`PIECE`] bytes at `place`; far from the end, first moves `place` towards it.
fn piece(path: &Path, place: &mut ReadPosition, length: u64) -> io::Result<Vec<u8>> {
    if length - place.offset > PIECE {
        *place = ReadPosition { offset: length - PIECE, inside: true };
    }
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(place.offset))?;
    let mut bytes = vec![];
    file.take(PIECE).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The complete lines of `bytes`, which were read at `place`; moves `place` after them.
fn lines<'a>(place: &mut ReadPosition, bytes: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let skip = usize::from(place.inside && end > 0);
    if end > 0 {
        *place = ReadPosition { offset: place.offset + end as u64, inside: false };
    } else if bytes.len() as u64 >= PIECE {
        // A line that is longer than a piece: wait for its end.
        *place = ReadPosition { offset: place.offset + bytes.len() as u64, inside: true };
    }
    bytes[..end].split(|byte| *byte == b'\n').skip(skip)
}

/// The relevant fields of a line.
#[derive(Deserialize)]
struct Line {
    event: String,
    #[serde(default)]
    restart: u32,
    epoch: Option<u64>,
    step: Option<u64>,
    steps: Option<u64>,
    loss: Option<Value>,
    ranks: Option<Vec<usize>>,
    cause: Option<String>,
    share: Option<f64>,
}

impl Line {
    fn late(&self, at: Duration) -> Option<Late> {
        Some(Late { ranks: self.ranks.clone()?, cause: self.cause.clone()?, share: self.share?, at })
    }
}

impl Progress {
    fn take(&mut self, line: Line) {
        if line.restart != self.restart || line.event == "start" {
            *self = Progress { restart: line.restart, ..Progress::default() };
        }
        match line.event.as_str() {
            "epoch" => *self = Progress { epoch: line.epoch, steps: line.steps, step: None, ..*self },
            "step" => {
                let steps = self.steps.filter(|_| self.epoch == line.epoch);
                *self =
                    Progress { epoch: line.epoch, step: line.step, steps, loss: line.loss.and_then(number), ..*self };
            }
            _ => {}
        }
    }
}

/// Floats that JSON cannot represent are strings.
fn number(value: Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str()?.parse().ok())
}

/// The bytes of a rank, by kind; the fields of [`lockstep_contract::events::Event::Memory`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct MemoryUse {
    /// Of parameters.
    pub parameters: u64,
    /// Of gradients.
    pub gradients: u64,
    /// Of the optimizer's states.
    pub optimizer: u64,
    /// Of what autograd keeps for the backward pass.
    pub activations: u64,
    /// Of buffers for communication.
    pub buckets: u64,
    /// Passed to the group so far.
    pub sent: u64,
}

impl MemoryUse {
    /// The kinds that there are.
    fn kinds(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let kinds = [
            ("parameters", self.parameters),
            ("gradients", self.gradients),
            ("optimizer", self.optimizer),
            ("activations", self.activations),
            ("buckets", self.buckets),
        ];
        kinds.into_iter().filter(|(_, bytes)| *bytes > 0)
    }

    /// All kinds together.
    pub fn total(&self) -> u64 {
        self.kinds().map(|(_, bytes)| bytes).sum()
    }
}

/// `3.0 MiB: parameters 1.0 MiB, optimizer 2.0 MiB; sent 512 B`.
impl fmt::Display for MemoryUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&memory_line(&self.kinds().collect::<Vec<_>>(), self.sent))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use lockstep_contract::events::{Event, EventSink};

    use super::*;

    fn step(step: u64) -> Event {
        Event::Step { epoch: 1, step, loss: 0.25, samples: 4, lr: None }
    }

    fn at(step: u64) -> Progress {
        Progress { restart: 0, epoch: Some(1), step: Some(step), steps: None, loss: Some(0.25), held: None }
    }

    fn polled(tail: &mut Tail) -> Vec<(usize, Progress)> {
        tail.poll(Duration::ZERO);
        tail.progress().iter().map(|(rank, progress)| (*rank, *progress)).collect()
    }

    fn append(path: &Path, bytes: &[u8]) {
        fs::OpenOptions::new().append(true).create(true).open(path).unwrap().write_all(bytes).unwrap();
    }

    #[test]
    fn follows_files_that_appear_later_in_a_folder_that_appears_later() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("events");
        let mut tail = Tail::new(&folder);
        assert!(polled(&mut tail).is_empty());
        let sink = EventSink::open(&folder, 3, 0).unwrap();
        sink.emit(&Event::Epoch { epoch: 1, steps: 9, batch_size: 4 });
        sink.emit(&step(0));
        assert_eq!(polled(&mut tail), [(3, Progress { steps: Some(9), ..at(0) })]);
        sink.emit(&Event::Step { epoch: 2, step: 0, loss: f64::NAN, samples: 4, lr: None });
        let (_, progress) = polled(&mut tail)[0];
        assert!(progress.loss.unwrap().is_nan());
        assert_eq!((progress.epoch, progress.steps), (Some(2), None));
        EventSink::open(&folder, 3, 1).unwrap().emit(&Event::Start { world_size: 4, device: "cpu".into(), pid: 1 });
        assert_eq!(polled(&mut tail), [(3, Progress { restart: 1, ..Progress::default() })]);
    }

    #[test]
    fn knows_who_was_late_until_the_ranks_start_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut tail = Tail::new(dir.path());
        let late = |ranks: &[usize]| {
            let (cause, message) = ("loader".into(), "rank 2 on node1 is late".into());
            Event::Late { ranks: ranks.to_vec(), cause, share: 0.5, waited: vec![], message }
        };
        let sink = EventSink::open(dir.path(), 0, 0).unwrap();
        sink.emit(&late(&[3]));
        sink.emit(&late(&[2]));
        let at = Duration::from_secs(7);
        tail.poll(at);
        assert_eq!(tail.late(), Some(&Late { ranks: vec![2], cause: "loader".into(), share: 0.5, at }));
        EventSink::open(dir.path(), 0, 1).unwrap().emit(&Event::Start { world_size: 4, device: "cpu".into(), pid: 1 });
        tail.poll(at);
        assert_eq!(tail.late(), None);
    }

    #[test]
    fn knows_what_a_rank_counted_last_until_it_starts_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut tail = Tail::new(dir.path());
        let memory =
            |sent| Event::Memory { parameters: 8, gradients: 8, optimizer: 16, activations: 4, buckets: 2, sent };
        let sink = EventSink::open(dir.path(), 1, 0).unwrap();
        [memory(5), step(3), memory(9), step(4)].iter().for_each(|event| sink.emit(event));
        let held = MemoryUse { parameters: 8, gradients: 8, optimizer: 16, activations: 4, buckets: 2, sent: 9 };
        assert_eq!(polled(&mut tail), [(1, Progress { held: Some(held), ..at(4) })]);
        EventSink::open(dir.path(), 1, 1).unwrap().emit(&Event::Start { world_size: 4, device: "cpu".into(), pid: 1 });
        assert_eq!(polled(&mut tail)[0].1.held, None);
    }

    #[test]
    fn reads_a_line_when_it_is_complete_wherever_it_was_torn() {
        let line = br#"{"t":1.0,"rank":0,"restart":0,"event":"step","epoch":1,"step":7,"loss":0.25,"samples":4}"#;
        for cut in 0..=line.len() {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("rank-0.jsonl");
            let mut tail = Tail::new(dir.path());
            append(&path, &line[..cut]);
            assert!(polled(&mut tail).iter().all(|(_, progress)| progress.step.is_none()), "{cut}");
            append(&path, &line[cut..]);
            append(&path, b"\n");
            assert_eq!(polled(&mut tail), [(0, at(7))], "{cut}");
        }
    }

    #[test]
    fn continues_after_lines_that_are_not_events() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rank-0.jsonl");
        let mut tail = Tail::new(dir.path());
        append(&path, b"\xff\0{\n[]\n{\"event\":7}\n\n{\"event\":\"step\",\"epoch\":-1}\n");
        EventSink::open(dir.path(), 0, 0).unwrap().emit(&step(2));
        assert_eq!(polled(&mut tail), [(0, at(2))]);
    }

    #[test]
    fn ignores_events_of_another_run_and_starts_over_when_a_file_shrinks() {
        let dir = tempfile::tempdir().unwrap();
        let sink = EventSink::open(dir.path(), 0, 0).unwrap();
        sink.emit(&step(5));
        sink.emit(&step(6));
        let mut tail = Tail::new(dir.path());
        assert!(polled(&mut tail).is_empty());
        fs::write(dir.path().join("rank-0.jsonl"), "").unwrap();
        sink.emit(&step(1));
        assert_eq!(polled(&mut tail), [(0, at(1))]);
    }

    #[test]
    fn skips_huge_lines_and_never_keeps_them_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rank-0.jsonl");
        let mut tail = Tail::new(dir.path());
        append(&path, &vec![b'x'; 3 * PIECE as usize + 5]);
        polled(&mut tail);
        append(&path, b"yyy\n");
        EventSink::open(dir.path(), 0, 0).unwrap().emit(&step(4));
        assert_eq!(polled(&mut tail), [(0, at(4))]);
    }

    #[test]
    fn does_not_block_on_a_pipe_and_ignores_other_files() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("rank-0.jsonl");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        fs::create_dir(dir.path().join("rank-1.jsonl")).unwrap();
        append(&dir.path().join("agent-a.jsonl"), b"{}\n");
        assert!(polled(&mut Tail::new(dir.path())).is_empty());
    }

    #[test]
    fn shows_the_kinds_that_there_are() {
        let held = MemoryUse { parameters: 1 << 20, optimizer: 2 << 20, sent: 512, ..MemoryUse::default() };
        assert_eq!(held.to_string(), "3.0 MiB: parameters 1.0 MiB, optimizer 2.0 MiB; sent 512 B");
        let held = MemoryUse { gradients: 1536, buckets: 5 << 29, ..MemoryUse::default() };
        assert_eq!(held.to_string(), "2.5 GiB: gradients 1.5 KiB, buckets 2.5 GiB; sent 0 B");
    }
}
