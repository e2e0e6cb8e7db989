//! A job of ranks that do nothing ([`super::rank`]) or what the bench asks for, under our launcher or another with torchrun's flags: from its start until all
//! ranks are there, and to its end.
//!
//! Each rank holds a connection to the bench. So the bench sees when a rank is there and when it has died, without polling. Agents
//! and ranks end with the bench, however it ends.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use lockstep_process::{Exit, Process, Signal, Signals, proc};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, kill_process_group};
use tempfile::TempDir;

use super::launcher::{Launcher, Shape};
use super::rank::Hello;
use crate::exit::Interrupted;

/// The last lines of an agent's output that an error shows.
const LINES: usize = 8;
/// How long agents may take to end when they are asked to.
const GRACE: Duration = Duration::from_secs(5);
/// Open files of this process besides the ranks' connections and the agents.
const OTHER_FILES: usize = 64;

/// A running job. Dropping it ends all its processes.
pub(super) struct Job<'a> {
    name: &'static str,
    shape: Shape,
    agents: Vec<Process>,
    /// Those of them whose end was seen: only then is it no longer waited for.
    ended: BTreeSet<usize>,
    listener: UnixListener,
    ranks: Vec<Connection>,
    signals: &'a Signals,
    patience: Duration,
    folder: TempDir,
}

/// The connection of one rank.
struct Connection {
    stream: UnixStream,
    text: Vec<u8>,
    hello: Option<Hello>,
    /// What it said after that.
    answers: VecDeque<String>,
}

impl<'a> Job<'a> {
    /// Starts the agents. The ranks are `program`, with the socket to the bench as its last argument. Each wait for the job ends after `patience`.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn start(
        launcher: &Launcher,
        program: &[OsString],
        shape: Shape,
        restarts: usize,
        patience: Duration,
        signals: &'a Signals,
    ) -> anyhow::Result<Self> {
        let files = shape.ranks + shape.agents + OTHER_FILES;
        lockstep_process::raise_open_files(shape.ranks, files as u64)?;
        let folder = tempfile::tempdir().context("cannot make a folder for the job")?;
        let socket = folder.path().join("ranks");
        let listener = UnixListener::bind(&socket).context("cannot listen for ranks")?;
        listener.set_nonblocking(true)?;
        let mut job = Job {
            name: launcher.name,
            shape,
            agents: Vec::new(),
            ended: BTreeSet::new(),
            listener,
            ranks: Vec::new(),
            signals,
            patience,
            folder,
        };
        let port = if shape.agents == 1 { 0 } else { free_port()? };
        for number in 0..shape.agents {
            let mut command = launcher.command(shape, restarts, port);
            // Ranks of one machine need not find each other by its name.
            command.env("GLOO_SOCKET_IFNAME", "lo");
            command.args(program).arg(&socket);
            // torchrun leaves its folder of logs behind.
            command.env("TMPDIR", job.folder.path()).stdin(Stdio::null()).process_group(0);
            let output = File::create(job.output(number)).context("cannot make a file for an agent's output")?;
            command.stdout(output.try_clone()?).stderr(output);
            let agent = Process::start(&mut command);
            job.agents.push(agent.with_context(|| format!("cannot start {}", command.get_program().display()))?);
        }
        Ok(job)
    }

    /// Waits until all ranks are there that were started after this number of restarts or more.
    ///
    /// # Errors
    /// [`Interrupted`]; an agent has ended; ranks are missing when the time is over.
    pub(super) fn until_up(&mut self, restart: u32) -> anyhow::Result<()> {
        let (begun, size) = (Instant::now(), self.shape.ranks);
        while self.up(restart).len() < size {
            if !self.wait(begun + self.patience)? {
                let up = self.up(restart);
                let missing: Vec<_> =
                    (0..size).filter(|rank| !up.contains(rank)).map(|rank| rank.to_string()).collect();
                let (seconds, missing) = (begun.elapsed().as_secs(), missing.join(", "));
                anyhow::bail!("after {seconds} s these of {size} ranks are missing: {missing}{}", self.last_lines());
            }
            self.all_agents_run()?;
        }
        Ok(())
    }

    /// Waits until no rank of this restart or an earlier one is left.
    ///
    /// # Errors
    /// As [`Self::until_up`].
    pub(super) fn until_gone(&mut self, restart: u32) -> anyhow::Result<()> {
        let begun = Instant::now();
        let of = |rank: &&Connection| rank.hello.is_some_and(|hello| hello.restart <= restart);
        while let Some(left) = self.ranks.iter().find(of) {
            let rank = left.hello.map_or(0, |hello| hello.rank);
            let over = !self.wait(begun + self.patience)?;
            ensure!(!over, "after {} s rank {rank} still runs{}", begun.elapsed().as_secs(), self.last_lines());
            self.all_agents_run()?;
        }
        Ok(())
    }

    /// Sends rank 0 a line and waits for its answer.
    ///
    /// # Errors
    /// As [`Self::until_up`]; rank 0 has ended.
    pub(super) fn ask(&mut self, line: &str) -> anyhow::Result<String> {
        let begun = Instant::now();
        let asked = writeln!(self.rank_0()?.stream, "{line}");
        // A rank that has just ended is reported with its reason below.
        asked.or_else(|error| if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })?;
        loop {
            if let Some(answer) = self.rank_0()?.answers.pop_front() {
                return Ok(answer);
            }
            let over = !self.wait(begun + self.patience)?;
            ensure!(!over, "rank 0 has not answered after {} s{}", begun.elapsed().as_secs(), self.last_lines());
            self.all_agents_run()?;
        }
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
        while self.ended.len() < self.agents.len() && self.wait(until)? {}
        Ok(())
    }

    /// Kills a rank as the kernel's out-of-memory killer would, and returns when that was.
    ///
    /// # Errors
    /// It is not there.
    pub(super) fn kill(&self, rank: usize) -> anyhow::Result<Instant> {
        let mut hellos = self.ranks.iter().filter_map(|connection| connection.hello);
        let hello = hellos.find(|hello| hello.rank == rank).with_context(|| format!("rank {rank} is not there"))?;
        let pid = Pid::from_raw(hello.pid).context("process 0 is no rank")?;
        let now = Instant::now();
        // It has not ended: its connection is open, and its agent has yet to reap it.
        rustix::process::kill_process(pid, Signal::KILL)?;
        Ok(now)
    }

    /// The restarts before the ranks that are there now.
    pub(super) fn restart(&self) -> u32 {
        self.ranks.iter().filter_map(|rank| rank.hello).map(|hello| hello.restart).max().unwrap_or(0)
    }

    /// Resident memory of the agents, with their helpers and without ranks: bytes of each, on average.
    pub(super) fn memory(&self) -> f64 {
        let workers: BTreeSet<i32> = self.ranks.iter().filter_map(|rank| Some(rank.hello?.pid)).collect();
        let parents = parents();
        let of_agent = |agent: &Process| {
            let agent = agent.pid().as_raw_pid();
            let helpers = proc::descendants(agent, &parents);
            let all = helpers.into_iter().chain([agent]).filter(|pid| !workers.contains(pid));
            all.collect::<BTreeSet<_>>().into_iter().map(resident).sum::<u64>()
        };
        self.agents.iter().map(of_agent).sum::<u64>() as f64 / self.agents.len() as f64
    }

    /// Processor time of the ranks and of what they started, in seconds.
    pub(super) fn processor_time(&self) -> f64 {
        let ranks = self.ranks.iter().filter_map(|rank| Some(rank.hello?.pid));
        let parents = parents();
        let all: BTreeSet<i32> =
            ranks.flat_map(|pid| proc::descendants(pid, &parents).into_iter().chain([pid])).collect();
        all.into_iter().filter_map(proc::Stat::of).map(|stat| (stat.used + stat.used_by_children).as_secs_f64()).sum()
    }

    /// Ends the ranks and waits until the agents have ended.
    ///
    /// # Errors
    /// [`Interrupted`]; an agent failed, or is still there when the time is over.
    pub(super) fn finish(mut self) -> anyhow::Result<()> {
        for rank in &mut self.ranks {
            // An error means that the rank has died, which its agent reports.
            let _ = rank.stream.write_all(b"\n");
        }
        let begun = Instant::now();
        for number in 0..self.agents.len() {
            while self.agents[number].ended()?.is_none() {
                let over = !self.wait(begun + self.patience)?;
                ensure!(
                    !over,
                    "agent {number} has not ended after {} s{}",
                    begun.elapsed().as_secs(),
                    self.last_lines()
                );
            }
        }
        let ends: Vec<_> = self.agents.iter().map(Process::ended).collect::<io::Result<_>>()?;
        ensure!(ends.iter().all(|end| *end == Some(Exit::Code(0))), "{} failed{}", self.name, self.last_lines());
        Ok(())
    }

    fn all_agents_run(&self) -> anyhow::Result<()> {
        for (number, agent) in self.agents.iter().enumerate() {
            if let Some(exit) = agent.ended()? {
                anyhow::bail!("agent {number} of {} ended too early: {exit}{}", self.name, self.last_lines());
            }
        }
        Ok(())
    }

    /// The ranks that are there.
    fn up(&self, restart: u32) -> BTreeSet<usize> {
        let hellos = self.ranks.iter().filter_map(|connection| connection.hello);
        hellos.filter(|hello| hello.restart >= restart).map(|hello| hello.rank).collect()
    }

    /// Waits until a rank comes, speaks or goes, an agent ends, or the time is over; then it returns false.
    fn wait(&mut self, until: Instant) -> anyhow::Result<bool> {
        let ready = {
            let ours = [self.listener.as_fd()].into_iter().chain(self.ranks.iter().map(|rank| rank.stream.as_fd()));
            let agents = self.agents.iter().enumerate().filter(|(number, _)| !self.ended.contains(number));
            let agents = agents.map(|(_, agent)| agent.as_fd());
            let fds = ours.chain(agents).chain(self.signals.descriptors());
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
        while let Some(stream) = accepted(&self.listener)? {
            self.ranks.push(Connection { stream, text: Vec::new(), hello: None, answers: VecDeque::new() });
        }
        self.ranks.retain_mut(Connection::is_open);
        for (number, agent) in self.agents.iter().enumerate() {
            if agent.ended()?.is_some() {
                self.ended.insert(number);
            }
        }
        Ok(ready)
    }

    fn output(&self, agent: usize) -> std::path::PathBuf {
        self.folder.path().join(format!("agent-{agent}.txt"))
    }

    /// The end of what the first agent with any output printed, as the end of an error.
    fn last_lines(&self) -> String {
        let read = |agent| fs::read(self.output(agent)).unwrap_or_default();
        let mut texts = (0..self.agents.len()).map(read).filter(|text| !text.is_empty());
        let text = texts.next().unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        let last = lines[lines.len().saturating_sub(LINES)..].iter().map(|line| format!("\n  | {line}"));
        last.collect()
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        // Ranks end with their connections.
        self.ranks.clear();
        for agent in &self.agents {
            let _ = agent.signal(Signal::TERM);
        }
        let until = Instant::now() + GRACE;
        for agent in &mut self.agents {
            agent.wait_until(until);
            // It is not reaped, so its id is still its own.
            let _ = kill_process_group(agent.pid(), Signal::KILL);
            let _ = agent.child.wait();
        }
    }
}

impl Connection {
    /// Reads what the rank sends. False when it has ended.
    fn is_open(&mut self) -> bool {
        let mut bytes = [0; 256];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return false,
                Ok(count) => self.text.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        while let Some(end) = self.text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.text.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line[..end]).into_owned();
            match self.hello {
                None => self.hello = Hello::parse(&line),
                Some(_) => self.answers.push_back(line),
            }
        }
        true
    }
}

fn accepted(listener: &UnixListener) -> io::Result<Option<UnixStream>> {
    match listener.accept() {
        Ok((stream, _)) => stream.set_nonblocking(true).map(|()| Some(stream)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// The parent of each process.
fn parents() -> BTreeMap<i32, i32> {
    proc::pids().filter_map(|pid| Some((pid, proc::Stat::of(pid)?.parent))).collect()
}

/// In bytes.
fn resident(pid: i32) -> u64 {
    proc::Status::of(pid).and_then(|status| status.number("VmRSS")).map_or(0, |kib| kib * 1024)
}

/// A port that nobody listens on now. Agents must know it before one of them listens.
fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::super::launcher::testing::fake;
    use super::*;

    const SHAPE: Shape = Shape { ranks: 2, agents: 1 };

    fn failure(script: &str, patience: Duration) -> String {
        let signals = Signals::default();
        let mut job = Job::start(&fake(script), &[], SHAPE, 0, patience, &signals).unwrap();
        format!("{:#}", job.until_up(0).unwrap_err())
    }

    #[test]
    fn an_agent_that_ends_too_early_is_named_with_its_last_lines() {
        let error = failure("echo no such flag >&2; exit 3", Duration::from_secs(60));
        assert_eq!(error, "agent 0 of fake ended too early: exit code 3\n  | no such flag");
    }

    #[test]
    fn ranks_that_do_not_come_are_named_when_the_time_is_over() {
        let error = failure("echo waiting; exec sleep 1000", Duration::ZERO);
        assert!(error.starts_with("after 0 s these of 2 ranks are missing: 0, 1"), "{error}");
    }
}
