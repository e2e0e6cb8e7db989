//! Recordings: which operations a rank called in its groups, when, and what became of them, as JSON lines, with the rank's events between
//! them. Written by `c10d` and the runtime where [`FOLDER`] is set, read by `lockstep replay`.
//!
//! A line is `{"t": …, "rank": …, "event": "enter", …}`, with the same times as in [event files](crate::events). It is written before the
//! call goes on, by a single write: the last lines of a killed rank are there.
//!
//! A recording is bounded. A rank appends to `rank-<rank>.jsonl`. When that has half of [`LIMIT`], it becomes `rank-<rank>.old.jsonl`,
//! in place of the one before, whose lines are dropped: the new file begins with the number of all that were dropped
//! ([`Recorded::Dropped`]). So at least the newest half of the limit is kept. After a write that fails, as on a full disk, the process
//! records nothing more, and its file is renamed to `rank-<rank>.cut.jsonl`, because its last line is not the last act of the rank.
//!
//! [`write_file`] joins the files of a folder, with those of launchers' agents, into one file whose first line lists the parts.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::events::{Event, EventsError, State, append_to, now};
use crate::warn;

/// The variable that names the folder in which ranks record.
pub const FOLDER: &str = "LOCKSTEP_RECORD";

/// The folder that [`FOLDER`] names.
pub fn folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// The bytes that one rank's lines take at most, over all its restarts: some 25,000 calls.
pub const LIMIT: u64 = 8 << 20;

/// How many elements of a tensor are recorded at most.
pub const MOST_ELEMENTS: usize = 4;

/// The groups whose members are repeated after lines were dropped.
const MOST_GROUPS: usize = 1000;

/// What a line says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Recorded {
    /// A process begins to record; `restart` is the number of restarts before it.
    Opened { pid: u32, restart: u32, host: String },
    /// The rank joins a group of these ranks of the job: it connects to them.
    Join { group: String, ranks: Vec<usize> },
    /// It has joined, or failed to.
    Joined {
        group: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// The members of a group that the rank joined before; repeated because earlier lines were dropped.
    Members { group: String, ranks: Vec<usize> },
    /// The rank calls an operation.
    Enter(Enter),
    /// It waits from now on for the end of an operation that it started earlier.
    Wait { call: u64 },
    /// The operation has ended for this rank.
    Leave(Leave),
    /// In all, this many lines of this rank before this one are not there.
    Dropped { lines: u64 },
    /// An event of the runtime.
    #[serde(untagged)]
    Event(Event),
}

/// The start of an operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Enter {
    /// Numbers the calls of a process.
    pub call: u64,
    /// The group's name: `0` for the default group. A second default group of the same process is `0#1`.
    pub group: String,
    pub kind: Kind,
    /// A collective: its number in the group, from 1. A message: its number among those of this group, sender, receiver and tag. `None`
    /// if the number depends on who sends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// Name, shapes and dtype, as desync reports have them.
    pub operation: String,
    /// The tensors that the rank passes, in bytes; [`Leave`] has them for operations of libtorch's own, such as a backward pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The other rank of a message, in the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<u16>,
    pub form: Form,
    /// The first elements that the rank passes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<Element>,
}

/// The end of an operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Leave {
    pub call: u64,
    /// The bytes that the rank passed, if they were not known at the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The sender and the number of a message from any rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// The seconds before the end for which the rank only waited: of a [`Form::Pass`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited: Option<f64>,
    /// The kind of a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The rank has given up its handle without waiting; the operation may go on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unawaited: bool,
    /// The first elements of the result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<Element>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    #[default]
    Collective,
    Send,
    Receive,
}

/// How an operation holds the rank up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// The rank waits for its end from the start.
    #[default]
    Blocking,
    /// It is started; [`Recorded::Wait`] says when the rank waits.
    Async,
    /// The rank computes and communicates meanwhile, as in the backward pass of DDP.
    Pass,
}

/// An element of a tensor. JSON has no numbers for infinity and for what is not a number: they are the words `inf`, `-inf` and `NaN`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Element {
    Integer(i64),
    Float(f64),
    Word(String),
    /// Written with the digits of single precision, and read as [`Element::Float`].
    Single(f32),
}

impl From<f64> for Element {
    fn from(value: f64) -> Self {
        if value.is_finite() { Element::Float(value) } else { Element::Word(value.to_string()) }
    }
}

impl From<f32> for Element {
    fn from(value: f32) -> Self {
        if value.is_finite() { Element::Single(value) } else { Element::Word(value.to_string()) }
    }
}

/// A line with its time and its writer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line<What = Recorded> {
    /// Seconds since the Unix epoch, by the writing host's clock.
    pub t: f64,
    pub rank: usize,
    #[serde(flatten)]
    pub what: What,
}

/// Records one rank. Threads share it.
#[derive(Debug)]
pub struct Recorder {
    calls: AtomicU64,
    jobs: AtomicU64,
    /// `None` after a write has failed.
    file: Mutex<Option<Bounded>>,
}

impl Recorder {
    /// The recorder of this rank of this process, if [`FOLDER`] asks for one. If it cannot be opened, prints a warning once.
    pub fn from_env(rank: usize) -> Option<Arc<Self>> {
        Self::in_folder(&folder()?, rank)
    }

    /// As [`from_env`](Self::from_env), in this folder, which is created if needed.
    pub fn in_folder(folder: &Path, rank: usize) -> Option<Arc<Self>> {
        /// By folder and rank; `None` where nothing can be written.
        type All = BTreeMap<(PathBuf, usize), Option<Arc<Recorder>>>;
        static OPEN: Mutex<All> = Mutex::new(BTreeMap::new());
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = open.entry((folder.to_owned(), rank)).or_insert_with(|| {
            let opened = Self::open(folder, rank, LIMIT).map_err(|error| {
                let cause = error.source().map_or(String::new(), |cause| format!(": {cause}"));
                warn(&format_args!("warning: {error}{cause}; rank {rank} goes on without a recording"));
            });
            opened.ok().map(Arc::new)
        });
        opened.clone()
    }

    fn open(folder: &Path, rank: usize, limit: u64) -> Result<Self, EventsError> {
        let path = folder.join(format!("rank-{rank}.jsonl"));
        let file = fs::create_dir_all(folder).and_then(|()| Bounded::open(path.clone(), rank, limit));
        let file = file.map_err(|source| EventsError::Open { path, source })?;
        let recorder = Recorder { calls: AtomicU64::new(0), jobs: AtomicU64::new(0), file: Mutex::new(Some(file)) };
        let restart = std::env::var("TORCHELASTIC_RESTART_COUNT").ok().and_then(|count| count.parse().ok());
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
        recorder.record(&Recorded::Opened { pid: std::process::id(), restart: restart.unwrap_or(0), host });
        Ok(recorder)
    }

    /// The number of the next call.
    pub fn next_call(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed)
    }

    /// How many default groups this rank has joined before in this process.
    pub fn next_job(&self) -> u64 {
        self.jobs.fetch_add(1, Ordering::Relaxed)
    }

    /// Writes a line with the current time.
    pub fn record(&self, what: &Recorded) {
        self.write(|file| file.write(now(), what));
    }

    /// Writes an event with the current time, unless it only repeats what calls show or is as long as an epoch.
    pub fn event(&self, event: &Event) {
        if !matches!(event, Event::Samples { .. } | Event::Collective { .. }) {
            self.write(|file| file.append(&Line { t: now(), rank: file.rank, what: event }));
        }
    }

    fn write(&self, write: impl FnOnce(&mut Bounded) -> io::Result<()>) {
        let mut file = self.file();
        let Some(Err(error)) = file.as_mut().map(write) else { return };
        if let Some(file) = file.take() {
            let path = file.path.display();
            // The rename needs no room on a full disk.
            let cut = fs::rename(&file.path, file.path.with_extension("cut.jsonl"));
            let why = cut.err().map(|why| format!(", which cannot be renamed: {why}")).unwrap_or_default();
            warn(&format_args!(
                "warning: cannot write the recording {path}{why}: {error}; rank {} goes on without it",
                file.rank
            ));
        }
    }

    fn file(&self) -> MutexGuard<'_, Option<Bounded>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file that is replaced when it is too long.
#[derive(Debug)]
struct Bounded {
    path: PathBuf,
    rank: usize,
    limit: u64,
    state: State,
    bytes: u64,
    lines: u64,
    /// The lines of the file before this one.
    lines_before: u64,
    dropped: u64,
    /// What a new file begins with: the process, and the members of its groups.
    first: Vec<(f64, Recorded)>,
}

impl Bounded {
    fn open(path: PathBuf, rank: usize, limit: u64) -> io::Result<Self> {
        let state = append_to(&path)?;
        let (lines, first) = count(&path)?;
        let lines_before = count(&path.with_extension("old.jsonl")).map_or(0, |(lines, _)| lines);
        let dropped = match first.map(|line| line.what) {
            Some(Recorded::Dropped { lines }) => lines,
            _ => 0,
        };
        let bytes = fs::metadata(&path)?.len();
        Ok(Bounded { path, rank, limit, state, bytes, lines, lines_before, dropped, first: Vec::new() })
    }

    fn write(&mut self, t: f64, what: &Recorded) -> io::Result<()> {
        match what {
            Recorded::Opened { .. } => self.first.push((t, what.clone())),
            Recorded::Join { group, ranks } if self.first.len() <= MOST_GROUPS => {
                self.first.push((t, Recorded::Members { group: group.clone(), ranks: ranks.clone() }));
            }
            _ => {}
        }
        self.append(&Line { t, rank: self.rank, what })
    }

    fn append(&mut self, line: &impl Serialize) -> io::Result<()> {
        if self.bytes >= self.limit / 2 {
            self.begin_again()?;
        }
        self.bytes += self.state.write(line)?;
        self.lines += 1;
        Ok(())
    }

    fn begin_again(&mut self) -> io::Result<()> {
        fs::rename(&self.path, self.path.with_extension("old.jsonl"))?;
        self.state = append_to(&self.path)?;
        self.dropped += self.lines_before;
        self.lines_before = self.lines;
        (self.bytes, self.lines) = (0, 0);
        let begin = (now(), Recorded::Dropped { lines: self.dropped });
        let dropped = (self.dropped > 0).then_some(&begin);
        for (t, what) in dropped.into_iter().chain(&self.first) {
            self.bytes += self.state.write(&Line { t: *t, rank: self.rank, what })?;
            self.lines += 1;
        }
        Ok(())
    }
}

/// The number of lines, and the first one.
fn count(path: &Path) -> io::Result<(u64, Option<Line>)> {
    if !fs::metadata(path)?.is_file() {
        return Ok((0, None));
    }
    let (mut reader, mut first, mut lines) = (BufReader::new(File::open(path)?), Vec::new(), 0);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        if lines == 0 {
            first.clone_from(&line);
        }
        lines += 1;
        line.clear();
    }
    Ok((lines, serde_json::from_slice(&first).ok()))
}

/// The version of [`Header`].
pub const VERSION: u32 = 1;

/// The first line of a recording that is a single file. The parts follow in this order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// [`VERSION`].
    pub recording: u32,
    /// The program and its arguments.
    pub program: String,
    /// Where PyTorch's flight recorder was told to write, without the rank at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flight_recorder: Option<String>,
    pub parts: Vec<Part>,
}

/// A file of the folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    pub name: String,
    pub bytes: u64,
}

/// The parts of a recording in `folder`, in the order in which they are read: agents' files, then for each rank what is older first.
///
/// # Errors
/// The folder cannot be read.
pub fn parts(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if let Some(key) = path.file_name().and_then(|name| name.to_str()).and_then(order) {
            found.push((key, path));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// Agents before ranks, ranks by number, and of one rank the older before the newer.
fn order(name: &str) -> Option<(Option<usize>, u8)> {
    let stem = name.strip_suffix(".jsonl")?;
    if stem.starts_with("agent-") {
        return Some((None, 0));
    }
    let rank = stem.strip_prefix("rank-")?;
    let (rank, age) = match rank.split_once('.') {
        None => (rank, 2),
        Some((rank, "old")) => (rank, 0),
        Some((rank, "cut")) => (rank, 1),
        Some(_) => return None,
    };
    Some((Some(rank.parse().ok()?), age))
}

/// Writes all parts of a recording in `folder` to `out`, after a [`Header`] that lists them.
///
/// # Errors
/// Those of the disk.
pub fn write_file(folder: &Path, header: Header, out: &mut impl Write) -> io::Result<()> {
    let files = parts(folder)?;
    let part = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Part { name, bytes: fs::metadata(path)?.len() })
    };
    let parts = files.iter().map(part).collect::<io::Result<Vec<_>>>()?;
    let sizes: Vec<u64> = parts.iter().map(|part| part.bytes).collect();
    serde_json::to_writer(&mut *out, &Header { recording: VERSION, parts, ..header })?;
    out.write_all(b"\n")?;
    for (path, bytes) in files.iter().zip(sizes) {
        let copied = io::copy(&mut File::open(path)?.take(bytes), out)?;
        if copied < bytes {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("{} became shorter", path.display())));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(call: u64) -> Recorded {
        Recorded::Enter(Enter {
            call,
            group: "0".into(),
            number: Some(call + 1),
            operation: "all_reduce(Sum) of [2] Float".into(),
            bytes: Some(8),
            before: vec![Element::from(0.5_f64), Element::from(f64::NAN), Element::Integer(-3)],
            ..Enter::default()
        })
    }

    fn one_of_each() -> Vec<Recorded> {
        vec![
            Recorded::Opened { pid: 7, restart: 1, host: "node1".into() },
            Recorded::Join { group: "0".into(), ranks: vec![0, 1] },
            Recorded::Joined { group: "0".into(), error: Some("Timeout".into()) },
            Recorded::Members { group: "0".into(), ranks: vec![0, 1] },
            enter(0),
            Recorded::Enter(Enter {
                kind: Kind::Receive,
                form: Form::Async,
                peer: Some(1),
                tag: Some(3),
                ..Enter::default()
            }),
            Recorded::Wait { call: 0 },
            Recorded::Leave(Leave { after: vec![Element::Word("inf".into())], ..Leave::default() }),
            Recorded::Leave(Leave {
                bytes: Some(4),
                peer: Some(2),
                number: Some(1),
                waited: Some(0.25),
                error: Some("PeerGone".into()),
                unawaited: true,
                ..Leave::default()
            }),
            Recorded::Dropped { lines: 12 },
            Recorded::Event(Event::Snapshot { epoch: 0, step: 3, path: "s".into(), bytes: 9, seconds: 0.5 }),
        ]
    }

    fn read(path: &Path) -> Vec<Line> {
        let text = fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn reads_back_every_kind_of_line() {
        let dir = tempfile::tempdir().unwrap();
        let recorder = Recorder::open(dir.path(), 3, LIMIT).unwrap();
        one_of_each().iter().for_each(|what| recorder.record(what));
        recorder.event(&Event::Samples { epoch: 0, indices: vec![1] });
        recorder.event(&Event::Exit { code: 1 });
        let lines = read(&dir.path().join("rank-3.jsonl"));
        assert!(lines.iter().all(|line| line.rank == 3 && line.t > 1.7e9));
        let mut expected = one_of_each();
        expected.push(Recorded::Event(Event::Exit { code: 1 }));
        let what: Vec<Recorded> = lines.into_iter().map(|line| line.what).collect();
        assert!(matches!(what[0], Recorded::Opened { pid, .. } if pid == std::process::id()));
        assert_eq!(what[1..], expected);
    }

    #[test]
    fn single_precision_keeps_its_digits() {
        let text = serde_json::to_string(&[Element::from(0.1_f32), Element::from(f32::INFINITY)]).unwrap();
        assert_eq!(text, r#"[0.1,"inf"]"#);
        let back: Vec<Element> = serde_json::from_str(&text).unwrap();
        assert_eq!(back, [Element::Float(0.1), Element::Word("inf".into())]);
    }

    #[test]
    fn keeps_the_newest_lines_within_its_limit_and_counts_the_dropped_ones() {
        let dir = tempfile::tempdir().unwrap();
        let (limit, path) = (20_000, dir.path().join("rank-0.jsonl"));
        let old = path.with_extension("old.jsonl");
        let recorder = Recorder::open(dir.path(), 0, limit).unwrap();
        recorder.record(&Recorded::Join { group: "0".into(), ranks: vec![0, 1] });
        // Two processes, one after the other.
        (0..500).for_each(|call| recorder.record(&enter(call)));
        drop(recorder);
        let recorder = Recorder::open(dir.path(), 0, limit).unwrap();
        (0..500).for_each(|call| recorder.record(&enter(call)));
        let size = |path: &Path| fs::metadata(path).unwrap().len();
        assert!(size(&path) + size(&old) < limit + 1000);
        let (older, newer) = (read(&old), read(&path));
        let kept: Vec<u64> = [older.clone(), newer.clone()]
            .concat()
            .into_iter()
            .filter_map(|line| match line.what {
                Recorded::Enter(enter) => Some(enter.call),
                _ => None,
            })
            .collect();
        assert_eq!(kept, (500 - kept.len() as u64..500).collect::<Vec<_>>());
        assert!(kept.len() > 40);
        let Recorded::Dropped { lines } = newer[0].what else { panic!("{:?}", newer[0]) };
        assert!(lines >= 1000 - kept.len() as u64, "{lines}");
        assert!(matches!(newer[1].what, Recorded::Opened { .. }));
        assert!(newer[1].t <= older[2].t, "with the time at which the process began");
    }

    #[test]
    fn repeats_the_members_of_groups_after_lines_were_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let recorder = Recorder::open(dir.path(), 0, 4000).unwrap();
        recorder.record(&Recorded::Join { group: "2".into(), ranks: vec![0, 3] });
        (0..100).for_each(|call| recorder.record(&enter(call)));
        let members = Recorded::Members { group: "2".into(), ranks: vec![0, 3] };
        assert_eq!(read(&dir.path().join("rank-0.jsonl"))[2].what, members);
    }

    #[test]
    fn says_in_the_name_of_its_file_that_a_write_failed() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/full", dir.path().join("rank-0.jsonl")).unwrap();
        let recorder = Recorder::open(dir.path(), 0, LIMIT).unwrap();
        recorder.record(&enter(0));
        assert!(fs::symlink_metadata(dir.path().join("rank-0.cut.jsonl")).is_ok());
        assert!(fs::symlink_metadata(dir.path().join("rank-0.jsonl")).is_err());
    }

    #[test]
    fn a_process_has_one_recorder_for_each_rank_and_none_where_it_cannot_write() {
        let dir = tempfile::tempdir().unwrap();
        let [first, again, other] = [0, 0, 1].map(|rank| Recorder::in_folder(dir.path(), rank).unwrap());
        assert!(Arc::ptr_eq(&first, &again) && !Arc::ptr_eq(&first, &other));
        assert!(Recorder::in_folder(Path::new("/dev/null/recording"), 0).is_none());
    }

    #[test]
    fn joins_the_parts_of_a_folder_in_order_and_lists_them() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["rank-10.jsonl", "rank-2.jsonl", "rank-2.old.jsonl", "agent-a.jsonl", "notes.txt", "rank-x.jsonl"];
        names.iter().for_each(|name| fs::write(dir.path().join(name), format!("{name}\n")).unwrap());
        let mut out = Vec::new();
        write_file(dir.path(), Header { program: "train".into(), ..Header::default() }, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let (first, rest) = text.split_once('\n').unwrap();
        assert_eq!(rest, "agent-a.jsonl\nrank-2.old.jsonl\nrank-2.jsonl\nrank-10.jsonl\n");
        let header: Header = serde_json::from_str(first).unwrap();
        let parts: Vec<(&str, u64)> = header.parts.iter().map(|part| (part.name.as_str(), part.bytes)).collect();
        let expected = [("agent-a.jsonl", 14), ("rank-2.old.jsonl", 17), ("rank-2.jsonl", 13), ("rank-10.jsonl", 14)];
        assert_eq!((header.recording, parts), (VERSION, expected.to_vec()));
    }
}
