//! The state of a running job in one line: on a terminal redrawn in place, elsewhere a plain line when the phase
//! changes.
//!
//! The progress of the training comes from the ranks' event files ([`Tail`]), the state of the job from its agent
//! ([`AgentView`]); [`line()`] turns both into text, without a clock and without a terminal.

mod tail;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lockstep_contract::counted;
use lockstep_contract::foreign::quotation;

pub use tail::{Late, MemoryUse, Progress, Tail};

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

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> AgentView {
        let elapsed = Duration::from_millis(12_340);
        AgentView { phase: AgentPhase::Running, ranks: 4, nodes: 2, restarts: 1, max_restarts: 3, elapsed }
    }

    fn at(restart: u32, epoch: u64, step: u64, loss: f64) -> Progress {
        Progress { restart, epoch: Some(epoch), step: Some(step), steps: Some(192), loss: Some(loss), held: None }
    }

    fn four() -> BTreeMap<usize, Progress> {
        let loss = 0.0412;
        BTreeMap::from([
            (0, at(1, 2, 139, loss)),
            (1, at(1, 2, 139, loss)),
            (2, at(1, 2, 138, loss)),
            (3, at(1, 2, 137, loss)),
        ])
    }

    #[test]
    fn shows_the_progress_and_the_slowest_rank() {
        let expected = "4 ranks on 2 nodes · restart 1/3 · epoch 2 step 140/192 · loss 0.0412 · slowest rank 3 (step 138) · 12.3 s";
        assert_eq!(line(&view(), &four(), None, 200), expected);
        let mut progress = four();
        progress.insert(1, at(1, 1, 191, f64::NAN));
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
        progress.insert(7, at(1, 9, 9, 9.0));
        progress.insert(3, at(0, 8, 8, 8.0));
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
}
