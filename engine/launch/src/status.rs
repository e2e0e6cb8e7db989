//! The state of a running job in one line: on a terminal redrawn in place, elsewhere a plain line when the phase
//! changes.
//!
//! The progress of the training comes from the ranks' event files ([`Tail`]), the state of the job from its agent
//! ([`AgentView`]); [`line()`] turns both into text, without a clock and without a terminal.
//!
//! [`Tail`] follows event files while they grow. Only complete lines are used; an incomplete line is read again later. Files may appear late, shrink, or contain
//! lines that are not events: nothing fails here, because a status line must never end a job.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lockstep_contract::counted;
use lockstep_contract::events::memory_line;
use lockstep_contract::foreign::quotation;
use serde::Deserialize;
use serde_json::Value;

/// How long a late rank is shown. While ranks stay late, they are reported again after one, two, four, … minutes.
const LATE: Duration = Duration::from_secs(300);

/// `4 ranks on 2 nodes · restart 1/3 · epoch 2 step 140/192 · loss 0.0412 · rank 3 late: loader (45 %), 5 s ago · 12.3 s`,
/// in at most `width` characters: less important parts are dropped first. The least important is the memory of the rank that holds
/// most. Epochs count from 0 as in the event files; steps are completed steps.
pub fn line(view: &AgentView, progress: &BTreeMap<usize, Progress>, late: Option<&Late>, width: usize) -> String {
    // Progress of ranks that no longer exist, or from before their restart, is outdated.
    let restart = progress.values().map(|of| of.restart).max();
    let of_now = |(rank, of): &(&usize, &Progress)| **rank < view.ranks && Some(of.restart) == restart;
    let ranks: Vec<(usize, &Progress)> = progress.iter().filter(of_now).map(|(rank, of)| (*rank, of)).collect();
    let steps = if view.phase == AgentPhase::Running { training(&ranks) } else { None };
    let [position, loss, slowest] = steps.unwrap_or_else(|| [Some(phase(view.phase).to_owned()), None, None]);
    // In the order of display, each with its priority: the highest number is dropped first.
    let parts = [
        (1, Some(who(view))),
        (3, (view.restarts > 0).then(|| format!("restart {}/{}", view.restarts, view.max_restarts))),
        (0, position),
        (5, loss),
        (6, slowest),
        (7, (view.phase == AgentPhase::Running).then(|| most_held(&ranks)).flatten()),
        (4, late.filter(|_| view.phase == AgentPhase::Running).and_then(|late| waited_for(late, view.elapsed))),
        (2, Some(format!("{:.1} s", view.elapsed.as_secs_f64()))),
    ];
    fit(parts.into_iter().filter_map(|(rank, part)| Some((rank, part?))).collect(), width)
}

fn who(view: &AgentView) -> String {
    match view.ranks {
        0 => "no group yet".into(),
        ranks => format!("{} on {}", counted(ranks, "rank"), counted(view.nodes, "node")),
    }
}

fn phase(phase: AgentPhase) -> &'static str {
    match phase {
        AgentPhase::Forming => "waiting for all nodes",
        AgentPhase::Running => "running",
        AgentPhase::Stopping => "stopping the workers",
        AgentPhase::Ending => "all workers have ended",
    }
}

/// The progress of the first rank, the mean of all ranks' losses, and the last rank if it is behind.
fn training(ranks: &[(usize, &Progress)]) -> Option<[Option<String>; 3]> {
    let at = |of: &Progress| Some((of.epoch?, of.step?));
    let placed = || ranks.iter().filter_map(|(rank, of)| Some((at(of)?, *rank, *of)));
    let ((epoch, step), _, first) = placed().max_by_key(|(place, ..)| *place)?;
    let ((last_epoch, last_step), last, _) = placed().min_by_key(|(place, ..)| *place)?;
    let of = first.steps.map_or(String::new(), |steps| format!("/{steps}"));
    let done = step.saturating_add(1);
    let losses: Vec<f64> = placed().filter_map(|(.., of)| of.loss).collect();
    let mean = losses.iter().sum::<f64>() / losses.len() as f64;
    let behind = match (last_epoch, last_step) {
        place if place == (epoch, step) => None,
        (of, step) if of == epoch => Some(format!("slowest rank {last} (step {})", step.saturating_add(1))),
        (of, step) => Some(format!("slowest rank {last} (epoch {of} step {})", step.saturating_add(1))),
    };
    let loss = (!losses.is_empty()).then(|| format!("loss {mean:.4}"));
    Some([Some(format!("epoch {epoch} step {done}{of}")), loss, behind])
}

/// `rank 1 holds 3.0 MiB: parameters 1.0 MiB, optimizer 2.0 MiB; sent 512 B`.
fn most_held(ranks: &[(usize, &Progress)]) -> Option<String> {
    let counted = ranks.iter().filter_map(|(rank, of)| Some((*rank, of.held?)));
    // If several are equal, the first.
    let (rank, held) = counted.rev().max_by_key(|(_, held)| held.total())?;
    Some(format!("rank {rank} holds {held}"))
}

/// `rank 3 late: loader (45 %), 5 s ago`: the share of the other ranks' time that they waited.
fn waited_for(late: &Late, now: Duration) -> Option<String> {
    let ago = Some(now.saturating_sub(late.at)).filter(|ago| *ago < LATE)?.as_secs();
    let percent = 100.0 * late.share;
    let numbers: Vec<String> = late.ranks.iter().map(usize::to_string).collect();
    let who = match &numbers[..] {
        [] => return Some(format!("all loaders too slow ({percent:.0} %), {ago} s ago")),
        [rank] => format!("rank {rank}"),
        [first, second] => format!("ranks {first} and {second}"),
        [first, ..] => format!("rank {first} and {} more", numbers.len() - 1),
    };
    Some(format!("{who} late: {} ({percent:.0} %), {ago} s ago", quotation(&late.cause)))
}

fn fit(mut parts: Vec<(u8, String)>, width: usize) -> String {
    loop {
        let text = parts.iter().map(|(_, part)| part.as_str()).collect::<Vec<_>>().join(" · ");
        let Some(least) = parts.iter().map(|(rank, _)| *rank).max() else { return text };
        if text.chars().count() <= width {
            return text;
        }
        if parts.len() == 1 {
            return text.chars().take(width).collect();
        }
        parts.retain(|(rank, _)| *rank != least);
    }
}

/// How often the event files are read; more often would not be visible.
const EVERY: Duration = Duration::from_millis(250);

/// A status line that is kept up to date.
#[derive(Debug)]
pub struct Status {
    tail: Option<Tail>,
    looked: Option<Duration>,
    /// Redrawn in place, on stderr.
    bar: ProgressBar,
}

impl Status {
    /// A status on this process's stderr, with events that ranks write to `events_folder` from now on. If stderr is not
    /// a terminal, it draws nothing.
    pub fn new(events_folder: Option<&Path>) -> Self {
        Self::on(events_folder, ProgressDrawTarget::stderr_with_hz(10))
    }

    fn on(events_folder: Option<&Path>, target: ProgressDrawTarget) -> Self {
        let bar = ProgressBar::with_draw_target(None, target);
        // The template is a constant. Without a style the message would only not be truncated at the edge.
        let bar = ProgressStyle::with_template("{wide_msg}").map_or(bar.clone(), |style| bar.with_style(style));
        Status { tail: events_folder.map(Tail::new), looked: None, bar }
    }

    /// The bar that is drawn: other writers to the terminal suspend it.
    pub fn bar(&self) -> ProgressBar {
        self.bar.clone()
    }

    /// Shows `view`. May be called often: files are read at most four times a second.
    pub fn update(&mut self, view: &AgentView) {
        let due = self.looked.is_none_or(|looked| view.elapsed.saturating_sub(looked) >= EVERY);
        if let Some(tail) = self.tail.as_mut().filter(|_| due) {
            tail.poll(view.elapsed);
            self.looked = Some(view.elapsed);
        }
        let none = Default::default();
        let progress = self.tail.as_ref().map_or(&none, Tail::progress);
        let late = self.tail.as_ref().and_then(Tail::late);
        self.bar.set_message(line(view, progress, late, width()));
    }

    /// Removes the status.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// The width of the terminal in columns; if unknown, wider than any.
fn width() -> usize {
    let columns = rustix::termios::tcgetwinsize(std::io::stderr()).map_or(0, |size| size.ws_col);
    if columns == 0 { usize::MAX } else { usize::from(columns) }
}

/// The agent's knowledge about its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentView {
    /// The current phase.
    pub phase: AgentPhase,
    /// The number of ranks in the job; 0 until a group has been formed.
    pub ranks: usize,
    /// The number of nodes in the job.
    pub nodes: usize,
    /// The number of restarts so far.
    pub restarts: u32,
    /// The maximum number of restarts.
    pub max_restarts: u32,
    /// The time since the agent started.
    pub elapsed: Duration,
}

/// The phase of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentPhase {
    /// Waiting for the other nodes.
    Forming,
    /// The workers run.
    Running,
    /// The workers are being stopped.
    Stopping,
    /// The workers have ended.
    Ending,
}

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

    fn view() -> AgentView {
        let elapsed = Duration::from_millis(12_340);
        AgentView { phase: AgentPhase::Running, ranks: 4, nodes: 2, restarts: 1, max_restarts: 3, elapsed }
    }

    fn of_restart(restart: u32, epoch: u64, step: u64, loss: f64) -> Progress {
        Progress { restart, epoch: Some(epoch), step: Some(step), steps: Some(192), loss: Some(loss), held: None }
    }

    fn four() -> BTreeMap<usize, Progress> {
        let loss = 0.0412;
        BTreeMap::from([
            (0, of_restart(1, 2, 139, loss)),
            (1, of_restart(1, 2, 139, loss)),
            (2, of_restart(1, 2, 138, loss)),
            (3, of_restart(1, 2, 137, loss)),
        ])
    }

    #[test]
    fn shows_the_progress_and_the_slowest_rank() {
        let expected = "4 ranks on 2 nodes · restart 1/3 · epoch 2 step 140/192 · loss 0.0412 · slowest rank 3 (step 138) · 12.3 s";
        assert_eq!(line(&view(), &four(), None, 200), expected);
        let mut progress = four();
        progress.insert(1, of_restart(1, 1, 191, f64::NAN));
        assert!(line(&view(), &progress, None, 200).contains("loss NaN · slowest rank 1 (epoch 1 step 192)"));
    }

    #[test]
    fn drops_less_important_parts_until_it_fits() {
        let texts = [85, 64, 63, 42, 20, 5].map(|width| line(&view(), &four(), None, width));
        let expected = [
            "4 ranks on 2 nodes · restart 1/3 · epoch 2 step 140/192 · loss 0.0412 · 12.3 s",
            "4 ranks on 2 nodes · restart 1/3 · epoch 2 step 140/192 · 12.3 s",
            "4 ranks on 2 nodes · epoch 2 step 140/192 · 12.3 s",
            "4 ranks on 2 nodes · epoch 2 step 140/192",
            "epoch 2 step 140/192",
            "epoch",
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn ignores_ranks_that_are_gone_and_steps_before_the_restart() {
        let mut progress = four();
        progress.insert(7, of_restart(1, 9, 9, 9.0));
        progress.insert(3, of_restart(0, 8, 8, 8.0));
        let text = line(&view(), &progress, None, 200);
        assert!(text.contains("epoch 2 step 140/192 · loss 0.0412 · slowest rank 2 (step 139)"), "{text}");
    }

    #[test]
    fn shows_the_phase_if_there_is_no_step() {
        let mut view = AgentView { restarts: 0, ..view() };
        assert_eq!(line(&view, &BTreeMap::new(), None, 200), "4 ranks on 2 nodes · running · 12.3 s");
        view.phase = AgentPhase::Stopping;
        assert_eq!(line(&view, &four(), None, 200), "4 ranks on 2 nodes · stopping the workers · 12.3 s");
        (view.phase, view.ranks) = (AgentPhase::Forming, 0);
        assert_eq!(line(&view, &four(), None, 200), "no group yet · waiting for all nodes · 12.3 s");
    }

    fn late(ranks: &[usize]) -> Late {
        Late { ranks: ranks.to_vec(), cause: "loader".into(), share: 0.452, at: Duration::from_secs(7) }
    }

    #[test]
    fn shows_who_is_late_and_why() {
        let shown = |ranks: &[usize]| {
            let text = line(&view(), &BTreeMap::new(), Some(&late(ranks)), 200);
            text.replace("4 ranks on 2 nodes · restart 1/3 · running · ", "")
        };
        let expected = [
            "all loaders too slow (45 %), 5 s ago · 12.3 s",
            "rank 3 late: loader (45 %), 5 s ago · 12.3 s",
            "ranks 1 and 3 late: loader (45 %), 5 s ago · 12.3 s",
            "rank 0 and 2 more late: loader (45 %), 5 s ago · 12.3 s",
        ];
        assert_eq!([&[][..], &[3], &[1, 3], &[0, 1, 3]].map(shown), expected);
    }

    #[test]
    fn shows_the_memory_of_the_rank_that_holds_most_where_there_is_room() {
        let held = |optimizer| Some(MemoryUse { parameters: 4096, optimizer, sent: 100, ..MemoryUse::default() });
        let mut progress = BTreeMap::from([1, 2, 3].map(|rank| (rank, Progress { restart: 1, ..Progress::default() })));
        progress.get_mut(&1).unwrap().held = held(4096);
        progress.get_mut(&2).unwrap().held = held(8192);
        progress.get_mut(&3).unwrap().held = held(8192);
        let expected = "4 ranks on 2 nodes · restart 1/3 · running · rank 2 holds 12.0 KiB: parameters 4.0 KiB, optimizer 8.0 KiB; \
                        sent 100 B · 12.3 s";
        assert_eq!(line(&view(), &progress, None, 200), expected);
        assert_eq!(line(&view(), &progress, None, 100), "4 ranks on 2 nodes · restart 1/3 · running · 12.3 s");
        assert!(!line(&AgentView { phase: AgentPhase::Stopping, ..view() }, &progress, None, 200).contains("holds"));
    }

    #[test]
    fn shows_it_rather_than_the_loss_and_not_for_ever() {
        let text = |view: &AgentView, width| line(view, &four(), Some(&late(&[3])), width);
        let expected =
            "4 ranks on 2 nodes · restart 1/3 · epoch 2 step 140/192 · rank 3 late: loader (45 %), 5 s ago · 12.3 s";
        assert_eq!(text(&view(), expected.chars().count()), expected);
        let later = |seconds| AgentView { elapsed: Duration::from_secs(seconds), ..view() };
        assert!(text(&later(306), 200).contains("late") && !text(&later(307), 200).contains("late"));
        assert!(!text(&AgentView { phase: AgentPhase::Stopping, ..view() }, 200).contains("late"));
    }

    fn view_in(phase: AgentPhase, restarts: u32) -> AgentView {
        AgentView { phase, ranks: 2, nodes: 1, restarts, max_restarts: 3, elapsed: Duration::from_secs(1) }
    }

    #[test]
    fn reads_the_files_only_after_the_interval() {
        let dir = tempfile::tempdir().unwrap();
        let mut status = Status::on(Some(dir.path()), ProgressDrawTarget::hidden());
        let message = |status: &Status| status.bar.message();
        status.update(&view_in(AgentPhase::Running, 0));
        let sink = lockstep_contract::events::EventSink::open(dir.path(), 0, 0).unwrap();
        sink.emit(&lockstep_contract::events::Event::Step { epoch: 0, step: 6, loss: 0.5, samples: 1, lr: None });
        status.update(&AgentView { elapsed: Duration::from_millis(1249), ..view_in(AgentPhase::Running, 0) });
        assert!(!message(&status).contains("epoch"), "{}", message(&status));
        status.update(&AgentView { elapsed: Duration::from_millis(1250), ..view_in(AgentPhase::Running, 0) });
        assert!(message(&status).contains("epoch 0 step 7 · loss 0.5000"), "{}", message(&status));
        status.finish();
    }

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
