//! A job under our launcher, or another with torchrun's flags, from its start until all ranks are there, and to its
//! end. Its ranks do nothing, or what the bench orders. A bench can kill a rank or a node, and let a node join.
//!
//! Each rank holds a connection to the bench. So the bench sees when a rank is there and when it has died, without polling. Agents and ranks
//! end with the bench, however it ends.

mod loss;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use lockstep_contract::events;
use lockstep_paths::temporary_folder;
use lockstep_process::{Exit, Job, Log, Signals, free_port, last_lines, proc};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tempfile::TempDir;

use crate::connection::{Connection, Listener, Mark};
use crate::exit::Interrupted;
use crate::launcher::{Launcher, Shape};

/// The last lines of an agent's output that an error shows.
const LINES: usize = 8;
/// How long agents may take to end when they are asked to.
const GRACE: Duration = Duration::from_secs(5);
/// Open files of this process besides the ranks' connections and the agents.
const OTHER_FILES: usize = 64;

/// A running job. Dropping it ends all its processes.
pub(crate) struct BenchJob<'a> {
    launcher: Launcher,
    program: Vec<OsString>,
    shape: Shape,
    restarts: usize,
    /// The port of the rendezvous, for several agents.
    port: u16,
    job: Job,
    /// The output of each agent that was started so far, by its number in the job.
    logs: Vec<Log>,
    /// The numbers of the agents that the job has now.
    agents: Vec<usize>,
    listener: Listener,
    ranks: Vec<Connection>,
    /// Ranks that came so far.
    came: u64,
    /// The job's agents write events.
    events: bool,
    signals: &'a Signals,
    patience: Duration,
    folder: TempDir,
}

impl<'a> BenchJob<'a> {
    /// A job without agents yet. The ranks will be `program`, with the socket to the bench as its last argument. Each wait for the job ends
    /// after `patience`.
    pub(crate) fn new(
        launcher: &Launcher,
        program: &[OsString],
        shape: Shape,
        restarts: usize,
        patience: Duration,
        signals: &'a Signals,
    ) -> anyhow::Result<Self> {
        let files = shape.ranks + shape.agents + OTHER_FILES;
        lockstep_process::raise_open_files(shape.ranks, files as u64)?;
        let folder = TempDir::new_in(temporary_folder()).context("cannot make a folder for the job")?;
        let listener = if launcher.is_of_this_machine() { Listener::here(folder.path()) } else { Listener::anywhere() };
        let listener = listener.context("cannot listen for ranks")?;
        Ok(BenchJob {
            launcher: launcher.clone(),
            program: program.into(),
            shape,
            restarts,
            port: if shape.agents == 1 { 0 } else { free_port()? },
            job: Job::new()?,
            logs: Vec::new(),
            agents: Vec::new(),
            listener,
            ranks: Vec::new(),
            came: 0,
            events: false,
            signals,
            patience,
            folder,
        })
    }

    /// A folder for the ranks' snapshots, which is removed with the job.
    pub(crate) fn snapshots(&self) -> PathBuf {
        self.folder.path().join("snapshots")
    }

    /// Lets its agents write events: see [`Self::next_round`].
    pub(crate) fn with_events(mut self) -> Self {
        self.events = true;
        self
    }

    /// Starts all agents.
    pub(crate) fn started(mut self) -> anyhow::Result<Self> {
        (0..self.launcher.processes(self.shape)).try_for_each(|_| self.start_agent())?;
        Ok(self)
    }

    fn start_agent(&mut self) -> anyhow::Result<()> {
        let mut command = self.launcher.command(self.shape, self.restarts, self.port);
        if self.launcher.is_of_this_machine() {
            // Ranks of one machine need not find each other by its name, and torchrun leaves its folder of logs behind.
            command.env("GLOO_SOCKET_IFNAME", "lo").env("TMPDIR", self.folder.path());
        }
        // The caller's folder of events is not for the ranks of a bench.
        command.env_remove(events::FOLDER);
        if self.events {
            command.env(events::FOLDER, self.events_folder());
        }
        command.args(&self.program).arg(self.listener.argument()?);
        self.logs.push(Log::new(self.folder.path().join(format!("agent-{}.txt", self.logs.len()))));
        let number = self.job.start(&mut command, &self.logs[self.logs.len() - 1]);
        self.agents.push(number.with_context(|| format!("cannot start {}", command.get_program().display()))?);
        Ok(())
    }

    /// The ranks that come from now on are the new ones, for [`Self::until_up`] and [`Self::until_gone`].
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.came)
    }

    /// Waits until all ranks are there, and came after the mark.
    pub(crate) fn until_up(&mut self, mark: Mark) -> anyhow::Result<()> {
        let begun = Instant::now();
        let size = self.shape.ranks / self.launcher.processes(self.shape) * self.agents.len();
        while self.up(mark).len() < size {
            if !self.wait(begun + self.patience)? {
                let up = self.up(mark);
                let missing: Vec<_> =
                    (0..size).filter(|rank| !up.contains(rank)).map(|rank| rank.to_string()).collect();
                let (seconds, missing) = (begun.elapsed().as_secs(), missing.join(", "));
                anyhow::bail!("after {seconds} s, of {size} ranks these are missing: {missing}{}", self.last_lines());
            }
            self.all_agents_run()?;
        }
        Ok(())
    }

    /// Waits until no rank is left that came before the mark.
    pub(crate) fn until_gone(&mut self, mark: Mark) -> anyhow::Result<()> {
        let begun = Instant::now();
        while let Some(left) = self.ranks.iter().find(|rank| !rank.is_after(mark)) {
            let rank = left.hello.map_or(0, |hello| hello.rank);
            let over = !self.wait(begun + self.patience)?;
            ensure!(!over, "after {} s rank {rank} still runs{}", begun.elapsed().as_secs(), self.last_lines());
            self.all_agents_run()?;
        }
        Ok(())
    }

    /// Sends rank 0 a line and waits for its answer.
    pub(crate) fn ask(&mut self, line: &str) -> anyhow::Result<String> {
        let begun = Instant::now();
        self.tell(line)?;
        loop {
            if let Some(answer) = self.rank_0()?.answers.pop_front() {
                return Ok(answer);
            }
            let over = !self.wait(begun + self.patience)?;
            ensure!(!over, "rank 0 has not answered after {} s{}", begun.elapsed().as_secs(), self.last_lines());
            self.all_agents_run()?;
        }
    }

    /// Sends rank 0 a line.
    pub(crate) fn tell(&mut self, line: &str) -> anyhow::Result<()> {
        let sent = writeln!(self.rank_0()?.stream, "{line}");
        // A rank that has just ended is reported with its reason when its answer is awaited.
        Ok(sent.or_else(|error| if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })?)
    }

    fn rank_0(&mut self) -> anyhow::Result<&mut Connection> {
        let of_0 = |rank: &Connection| rank.hello.is_some_and(|hello| hello.rank == 0);
        match self.ranks.iter().position(of_0) {
            Some(place) => Ok(&mut self.ranks[place]),
            None => {
                self.let_agents_report()?;
                anyhow::bail!("rank 0 has ended{}", self.last_lines())
            }
        }
    }

    /// Waits a little until the agents have ended: one that sees a rank fail prints the reason first.
    fn let_agents_report(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + GRACE;
        while !self.all_ended() && self.wait(until)? {}
        Ok(())
    }

    fn all_ended(&self) -> bool {
        self.agents.iter().all(|agent| self.job.exit(*agent).is_some())
    }

    /// Resident memory of the agents, with what their helpers do not share, and without ranks: bytes of each, on average.
    pub(crate) fn memory(&self) -> f64 {
        let workers: BTreeSet<i32> = self.ranks.iter().filter_map(|rank| Some(rank.hello?.pid)).collect();
        let parents = proc::parents();
        let of_agent = |agent: &usize| {
            let agent = self.job.pid(*agent).as_raw_pid();
            let helpers = proc::descendants(agent, &parents);
            let helpers: BTreeSet<i32> = helpers.into_iter().filter(|pid| !workers.contains(pid)).collect();
            resident(agent) + helpers.into_iter().map(private).sum::<u64>()
        };
        self.agents.iter().map(of_agent).sum::<u64>() as f64 / self.agents.len() as f64
    }

    /// Processor time of the ranks and of what they started, in seconds.
    pub(crate) fn processor_time(&self) -> f64 {
        let ranks = self.ranks.iter().filter_map(|rank| Some(rank.hello?.pid));
        let parents = proc::parents();
        let all: BTreeSet<i32> =
            ranks.flat_map(|pid| proc::descendants(pid, &parents).into_iter().chain([pid])).collect();
        all.into_iter().filter_map(proc::Stat::of).map(|stat| (stat.used + stat.used_by_children).as_secs_f64()).sum()
    }

    /// Ends the ranks and waits until the agents have ended.
    pub(crate) fn finish(mut self) -> anyhow::Result<()> {
        for rank in &mut self.ranks {
            // An error means that the rank has died, which its agent reports.
            let _ = rank.stream.write_all(b"\n");
        }
        let (ends, name) = (self.until_ended()?, self.launcher.name);
        ensure!(ends.iter().all(|end| *end == Exit::Code(0)), "{name} failed{}", self.last_lines());
        Ok(())
    }

    /// Waits until all agents have ended, and returns how.
    pub(crate) fn until_ended(&mut self) -> anyhow::Result<Vec<Exit>> {
        let begun = Instant::now();
        let mut ends = Vec::new();
        for agent in self.agents.clone() {
            let end = loop {
                if let Some(end) = self.job.exit(agent) {
                    break end.clone();
                }
                let (over, seconds) = (!self.wait(begun + self.patience)?, begun.elapsed().as_secs());
                ensure!(!over, "agent {agent} has not ended after {seconds} s{}", self.last_lines());
            };
            ends.push(end);
        }
        Ok(ends)
    }

    fn all_agents_run(&self) -> anyhow::Result<()> {
        for agent in &self.agents {
            if let Some(exit) = self.job.exit(*agent) {
                let name = self.launcher.name;
                anyhow::bail!("agent {agent} of {name} ended too early: {exit}{}", self.last_lines());
            }
        }
        Ok(())
    }

    /// The ranks that are there and came after the mark.
    fn up(&self, mark: Mark) -> BTreeSet<usize> {
        let new = self.ranks.iter().filter(|rank| rank.is_after(mark));
        new.filter_map(|rank| Some(rank.hello?.rank)).collect()
    }

    /// Waits until a rank comes, speaks or goes, an agent ends, or the time is over; then it returns false.
    fn wait(&mut self, until: Instant) -> anyhow::Result<bool> {
        let ready = {
            let ours = [self.listener.as_fd()].into_iter().chain(self.ranks.iter().map(|rank| rank.stream.as_fd()));
            let fds = ours.chain([self.job.as_fd()]).chain(self.signals.descriptors());
            let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
            match poll(&mut fds, left.as_ref()) {
                Ok(count) => count > 0,
                Err(Errno::INTR) => true,
                Err(error) => return Err(error.into()),
            }
        };
        if let Some(signal) = self.signals.arrived() {
            return Err(Interrupted { signal }.into());
        }
        while let Some(rank) = self.listener.accepted(self.came)? {
            self.ranks.push(rank);
            self.came += 1;
        }
        self.ranks.retain_mut(Connection::is_open);
        self.job.wait(Instant::now())?;
        Ok(ready)
    }

    fn events_folder(&self) -> PathBuf {
        self.folder.path().join("events")
    }

    /// The last lines of the first agent that has printed anything, to end an error with.
    fn last_lines(&self) -> String {
        let last = self.logs.iter().map(|log| last_lines(log.path(), LINES)).find(|lines| !lines.is_empty());
        last.into_iter().flatten().map(|line| format!("\n  | {line}")).collect()
    }
}

impl Drop for BenchJob<'_> {
    fn drop(&mut self) {
        // Ranks end with their connections.
        self.ranks.clear();
        if !self.launcher.is_of_this_machine() {
            // srun kills the agents soon after it is asked to end, and they would leave their folders behind.
            let until = Instant::now() + GRACE;
            while !self.all_ended() && self.job.wait(until).unwrap_or(false) {}
        }
        self.job.end(GRACE);
    }
}

/// In bytes.
fn resident(pid: i32) -> u64 {
    proc::Status::of(pid).and_then(|status| status.number("VmRSS")).map_or(0, |kib| kib * 1024)
}

/// Resident memory that the process shares with no other one, in bytes.
fn private(pid: i32) -> u64 {
    let Some(memory) = proc::Status::of_memory(pid) else { return 0 };
    let kib = ["Private_Clean", "Private_Dirty"].map(|field| memory.number(field).unwrap_or(0));
    kib.iter().sum::<u64>() * 1024
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launcher::testing::fake;

    const SHAPE: Shape = Shape { ranks: 2, agents: 1 };

    fn failure(script: &str, patience: Duration) -> String {
        let signals = Signals::default();
        let mut job = BenchJob::new(&fake(script), &[], SHAPE, 0, patience, &signals).unwrap().started().unwrap();
        format!("{:#}", job.until_up(Mark::START).unwrap_err())
    }

    #[test]
    fn an_agent_that_ends_too_early_is_named_with_its_last_lines() {
        let error = failure("echo no such flag >&2; exit 3", Duration::from_secs(60));
        assert_eq!(error, "agent 0 of fake ended too early: exit code 3\n  | no such flag");
    }

    #[test]
    fn an_end_of_all_agents_is_awaited() {
        let (signals, shape) = (Signals::default(), Shape { ranks: 2, agents: 2 });
        let script = fake("echo no store >&2; exit 1");
        let job = BenchJob::new(&script, &[], shape, 0, Duration::from_secs(60), &signals).unwrap();
        assert_eq!(job.started().unwrap().until_ended().unwrap(), [Exit::Code(1), Exit::Code(1)]);
    }

    #[test]
    fn ranks_that_do_not_come_are_named_when_the_time_is_over() {
        let error = failure("echo waiting; exec sleep 1000", Duration::ZERO);
        assert!(error.starts_with("after 0 s, of 2 ranks these are missing: 0, 1"), "{error}");
    }
}
