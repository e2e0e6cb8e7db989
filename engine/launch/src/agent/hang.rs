//! The stacks of the living workers when a rank has waited in vain for another: only they show where the other rank is.
//!
//! Stacks are taken once, only in the last attempt, before the workers are stopped, and never for longer than [`LIMIT`].

use std::fmt::Write as _;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use lockstep_contract::foreign;
use lockstep_process::{Signals, Stacks};
use tokio::sync::mpsc as channel;
use tokio::time::{Instant, timeout_at};

use super::judge::Facts;
use super::signals::SignalStream;
use super::workers::{Context, Current};
use crate::config::Response;
use crate::verdict::{self, Verdict};

/// The longest time that all of it may take.
const LIMIT: Duration = Duration::from_secs(10);
/// The longest wait for the last output of the worker that has ended.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// The number of tools that run at once: each needs a processor for some seconds.
const AT_ONCE: usize = 4;
/// The file's name in the folder of a worker's logs.
const FILE: &str = "stacks.txt";

/// What was found of one rank.
struct Taken {
    rank: usize,
    stacks: Stacks,
    /// The file with the complete stacks.
    file: Option<PathBuf>,
}

/// What was found of the workers, and who asks.
pub(super) struct Inquiry<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) current: &'a Current,
    pub(super) facts: &'a mut Facts,
    /// The workers that are alive, by local rank.
    pub(super) alive: Vec<usize>,
    pub(super) signals: &'a mut SignalStream,
}

impl Inquiry<'_> {
    /// After a worker's failure in the last attempt: takes stacks if the worker failed because it waited for another rank.
    pub(super) async fn look_into_hang(self) {
        // The search for a tool comes last, since it takes longest.
        if self.alive.is_empty() || !self.wants_stacks() {
            return;
        }
        let Some(death) = self.current.deaths.iter().find(|death| !death.stopped && death.exitcode != 0) else {
            return;
        };
        if let Some(outputs) = &self.current.outputs {
            outputs.catch_up(LAST_WORDS).await;
        }
        if verdict::has_waited(&self.current.failure(death, self.context)) {
            let verdict = self.facts.provisional(self.context, self.current);
            self.take_stacks(verdict).await;
        }
    }

    /// When another node has ended the job: takes stacks if that node's verdict names a rank of this node, or no rank because its
    /// own waited in vain.
    pub(super) async fn look_into_hang_of_another(self) {
        let ranks: Vec<usize> = (0..self.current.pids.len()).map(|worker| self.current.rank_of(worker)).collect();
        let other = self.facts.elsewhere.as_ref().filter(|other| other.concerns(&ranks));
        if let Some(verdict) = other.map(Verdict::from).filter(|_| self.wants_stacks()) {
            self.take_stacks(Some(verdict)).await;
        }
    }

    fn wants_stacks(&self) -> bool {
        self.context.config.stacks && self.facts.stacks.is_none() && Stacks::has_tool()
    }

    /// Takes the stacks. Prints what is known first, because this takes some time.
    async fn take_stacks(self, provisional: Option<Verdict>) {
        let Inquiry { context, current, facts, alive, signals } = self;
        let workers: Vec<_> = current.with_pids(alive).map(|worker| to_read(current, worker)).collect();
        if workers.is_empty() {
            return;
        }
        facts.say_provisional(context, provisional);
        let deadline = Instant::now() + LIMIT;
        // Dropping this end stops the tools.
        let Ok((held, stop)) = UnixStream::pair() else { return };
        let count = workers.len();
        let mut results = read_all(workers, &stop);
        let mut taken = Vec::new();
        while taken.len() < count {
            tokio::select! {
                result = timeout_at(deadline, results.recv()) => match result {
                    Ok(Some(one)) => taken.push(one),
                    // The deadline has passed, or the threads have ended.
                    _ => break,
                },
                signal = signals.next() => {
                    signals.hold(signal);
                    if !matches!(context.config.signals.response(signal), Response::PassOn { .. }) {
                        break;
                    }
                }
            }
        }
        drop(held);
        facts.stacks = show(taken, count);
    }
}

/// A worker's rank, its process, and where its stacks are kept.
fn to_read(current: &Current, (worker, pid): (usize, u32)) -> (usize, i32, Option<PathBuf>) {
    let error_file = current.error_files.get(worker).and_then(Option::as_ref);
    (current.rank_of(worker), pid as i32, error_file.and_then(|file| Some(file.parent()?.join(FILE))))
}

/// Starts threads that read the stacks of these workers until the pipe is closed.
fn read_all(workers: Vec<(usize, i32, Option<PathBuf>)>, stop: &UnixStream) -> channel::UnboundedReceiver<Taken> {
    let (found, results) = channel::unbounded_channel();
    let threads = workers.len().min(AT_ONCE);
    let rest = Arc::new(Mutex::new(workers.into_iter()));
    for _ in 0..threads {
        let (found, rest) = (found.clone(), Arc::clone(&rest));
        let Ok(signals) = stop.try_clone().and_then(Signals::until_closed) else { continue };
        let work = move || {
            let next = || rest.lock().ok().and_then(|mut rest| rest.next());
            while let Some((rank, pid, file)) = next() {
                let Ok(stacks) = Stacks::of(pid, LIMIT, &signals) else { return };
                // The report has the short form if the folder is full.
                let file = file.filter(|file| fs::write(file, stacks.to_string()).is_ok());
                let _ = found.send(Taken { rank, stacks, file });
            }
        };
        // Without a thread there is one result fewer.
        let _ = thread::Builder::new().name("stacks".into()).spawn(work);
    }
    results
}

/// The report's section: the innermost frames of the main threads; ranks in the same place share them. `None` if no tool is installed
/// for any of them, or all have ended meanwhile.
fn show(mut taken: Vec<Taken>, count: usize) -> Option<String> {
    let missing = count - taken.len();
    taken.retain(|one| match &one.stacks {
        // A worker without a frame has ended before the tool reached it.
        Stacks::Read { .. } => !one.stacks.innermost().is_empty(),
        Stacks::Unread { failed, .. } => failed.is_some(),
        Stacks::InKernel(_) => true,
    });
    if taken.is_empty() && missing == 0 {
        return None;
    }
    taken.sort_by_key(|one| one.rank);
    let mut places: Vec<(Vec<String>, String)> = Vec::new();
    for Taken { rank, stacks, .. } in &taken {
        let frames = stacks.innermost();
        let text = match stacks {
            Stacks::Read { tool, .. } => format!(" (by {tool}):\n    {}", frames.join("\n    ")),
            Stacks::Unread { failed, .. } => format!(": {}", failed.as_deref().unwrap_or_default()),
            Stacks::InKernel(at) => format!(": {at}"),
        };
        match places.iter_mut().find(|(_, known)| *known == text) {
            Some((ranks, _)) => ranks.push(rank.to_string()),
            None => places.push((vec![rank.to_string()], text)),
        }
    }
    let mut shown = "Where the other ranks of this node were, innermost call first:".to_owned();
    for (ranks, text) in places {
        let _ = write!(shown, "\n  rank {}{text}", ranks.join(", "));
    }
    if missing > 0 {
        let _ = write!(shown, "\n  not read in time: {missing} of {count}");
    }
    if let Some(file) = taken.iter().find_map(|one| one.file.as_ref()) {
        let _ =
            write!(shown, "\n  all threads of each: {FILE} in the logs of its rank, such as {}", foreign::path(file));
    }
    Some(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_ranks_in_the_same_place_together_and_those_that_were_not_read() {
        let taken = |rank, text: &str| {
            let text = format!("Thread 7 (idle): \"MainThread\"\n    {text}\n");
            Taken { rank, stacks: Stacks::Read { tool: "py-spy", text }, file: None }
        };
        let all = vec![taken(2, "all_reduce (a.py:1)"), taken(1, "load (b.py:9)"), taken(0, "all_reduce (a.py:1)")];
        assert_eq!(
            show(all, 4).unwrap(),
            "Where the other ranks of this node were, innermost call first:\n  rank 0, 2 (by py-spy):\n    all_reduce (a.py:1)\n  \
             rank 1 (by py-spy):\n    load (b.py:9)\n  not read in time: 1 of 4"
        );
    }

    #[test]
    fn shows_one_line_where_a_tool_failed_and_nothing_where_none_is_installed() {
        let unread = |rank, failed: Option<&str>| {
            let stacks = Stacks::Unread { failed: failed.map(str::to_owned), threads: "thread 7 x: state S\n".into() };
            Taken { rank, stacks, file: None }
        };
        let title = "Where the other ranks of this node were, innermost call first:";
        let denied = "gdb failed: exit status: 1: ptrace: Operation not permitted.";
        assert_eq!(
            show(vec![unread(1, Some(denied)), unread(0, Some(denied)), unread(2, None)], 3).unwrap(),
            format!("{title}\n  rank 0, 1: {denied}")
        );
        assert_eq!(show(vec![unread(0, None)], 1), None);
        let ended = Stacks::Read { tool: "gdb", text: "ptrace: No such process.\n".into() };
        assert_eq!(show(vec![Taken { rank: 0, stacks: ended, file: None }], 1), None);
        assert_eq!(show(vec![], 1).unwrap(), format!("{title}\n  not read in time: 1 of 1"));
    }
}
