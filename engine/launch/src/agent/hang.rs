//! What is printed about a failure before its report, which comes when all workers have ended: the verdict, as far as it is known, and
//! the stacks of the living workers if a rank has waited in vain for another. Only the stacks show where the other rank is.
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

use super::run::Agent;
use super::workers::{Context, Current};
use crate::config::Response;
use crate::verdict::{self, Verdict};

/// The longest time that all of it may take.
const LIMIT: Duration = Duration::from_secs(10);
/// When the verdict is printed after a failure, unless the report comes before: it may take half a second to make.
const VERDICT: Duration = Duration::from_millis(1500);
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

impl Agent<'_> {
    /// After a failure that ends the job: the report waits for the other workers, which may take long to end or to inspect.
    pub(super) fn expect_verdict(&mut self) {
        if self.machine.restarts_left() == 0 && !self.current.verdict_said {
            self.current.verdict_at.get_or_insert_with(|| std::time::Instant::now() + VERDICT);
        }
    }

    pub(super) fn say_provisional(&mut self) {
        let verdict = self.current.provisional(&self.context);
        self.current.say_provisional(&self.context, verdict);
    }

    /// After a worker's failure: takes stacks if the worker failed because it waited for another rank.
    pub(super) async fn look_into_hang(&mut self) {
        // A report that has them is printed only if no restart is left. The search for a tool comes last, since it takes longest.
        if self.machine.restarts_left() > 0 || self.workers.alive().is_empty() || !self.wants_stacks() {
            return;
        }
        let Some(death) = self.current.deaths.iter().find(|death| !death.stopped && death.exitcode != 0) else {
            return;
        };
        if let Some(outputs) = &self.current.outputs {
            outputs.catch_up(LAST_WORDS).await;
        }
        let failure = self.current.failure(death, &self.context);
        if verdict::has_waited(&failure) {
            let verdict = self.current.provisional(&self.context);
            self.take_stacks(verdict).await;
        }
    }

    /// When another node has ended the job: takes stacks if that node's verdict names a rank of this node, or no rank because its
    /// own waited in vain.
    pub(super) async fn look_into_hang_of_another(&mut self) {
        let ranks: Vec<usize> = (0..self.current.pids.len()).map(|worker| self.current.rank_of(worker)).collect();
        let other = self.current.facts.elsewhere.as_ref().filter(|other| other.concerns(&ranks));
        if let Some(verdict) = other.map(Verdict::from).filter(|_| self.wants_stacks()) {
            self.take_stacks(Some(verdict)).await;
        }
    }

    fn wants_stacks(&self) -> bool {
        let taken = self.current.facts.stacks.is_some();
        self.context.config.stacks && !taken && self.machine.is_running() && Stacks::has_tool()
    }

    /// Takes the stacks. Prints what is known first, because this takes some time.
    async fn take_stacks(&mut self, provisional: Option<Verdict>) {
        let alive = self.workers.alive();
        let workers: Vec<(usize, i32, Option<PathBuf>)> =
            alive.into_iter().filter_map(|worker| self.current.to_read(worker)).collect();
        if workers.is_empty() {
            return;
        }
        self.current.say_provisional(&self.context, provisional);
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
                signal = self.signals.next() => {
                    self.held.push_back(signal);
                    if !matches!(self.context.config.signals.response(signal), Response::PassOn { .. }) {
                        break;
                    }
                }
            }
        }
        drop(held);
        self.current.facts.stacks = show(taken, count);
    }
}

impl Current {
    /// A worker's rank, its process, and where its stacks are kept.
    fn to_read(&self, worker: usize) -> Option<(usize, i32, Option<PathBuf>)> {
        let folder =
            self.error_files.get(worker).and_then(|file| file.as_ref()?.parent().map(|folder| folder.join(FILE)));
        Some((self.rank_of(worker), *self.pids.get(worker)? as i32, folder))
    }

    /// Prints the stacks if no report will contain them.
    pub(super) fn say_stacks(&mut self, context: &Context<'_>) {
        if let Some(text) = self.facts.stacks.take() {
            context.console.say_lines(&text);
        }
    }
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
