//! What a bench takes away from a running job, what it adds to it, and when the job has met again.

use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, ensure};
use lockstep_contract::events;
use lockstep_process::{Signal, proc};
use rustix::process::{Pid, kill_process};

use super::BenchJob;

/// Between two attempts to connect to the first agent.
const PAUSE: Duration = Duration::from_millis(20);

impl BenchJob<'_> {
    /// As [`Self::started`], but the others start only when the first agent listens. So it hosts the rendezvous, and
    /// any other can be lost. Waits until all ranks are there.
    pub(crate) fn started_one_by_one(mut self) -> anyhow::Result<Self> {
        self.start_agent()?;
        let begun = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_err() {
            let seconds = begun.elapsed().as_secs();
            ensure!(begun.elapsed() < self.patience, "agent 0 does not listen after {seconds} s{}", self.last_lines());
            self.wait(Instant::now() + PAUSE)?;
            self.all_agents_run()?;
        }
        (1..self.shape.agents).try_for_each(|_| self.start_agent())?;
        Ok(self)
    }

    /// Kills a rank as the kernel's OOM killer would, and returns the time.
    pub(crate) fn kill(&self, rank: usize) -> anyhow::Result<Instant> {
        let mut hellos = self.ranks.iter().filter_map(|connection| connection.hello);
        let hello = hellos.find(|hello| hello.rank == rank).with_context(|| format!("rank {rank} is not there"))?;
        let pid = Pid::from_raw(hello.pid).context("no rank has the process id 0")?;
        let now = Instant::now();
        // It has not ended: its connection is open, and its agent has yet to reap it.
        kill_process(pid, Signal::KILL)?;
        Ok(now)
    }

    /// Kills this agent, counted by their starts, and all that it started, and returns the time.
    pub(crate) fn lose_node(&mut self, place: usize) -> anyhow::Result<Instant> {
        ensure!(self.agents.len() > 1 && place < self.agents.len(), "the only node cannot be lost");
        let lost = self.agents.remove(place);
        let started = proc::descendants(self.job.pid(lost).as_raw_pid(), &proc::parents());
        let now = Instant::now();
        self.job.signal(lost, Signal::KILL)?;
        for pid in started.into_iter().filter_map(Pid::from_raw) {
            // An error means that the kernel, or the agent's reaper, was faster.
            let _ = kill_process(pid, Signal::KILL);
        }
        while self.job.exit(lost).is_none() {
            ensure!(self.job.wait(now + self.patience)?, "agent {lost} does not die");
        }
        Ok(now)
    }

    /// Seconds from `since` until the last of its agents was in the next round, as their events say.
    pub(crate) fn next_round(&self, since: Instant) -> anyhow::Result<f64> {
        let since = SystemTime::now().checked_sub(since.elapsed()).context("the clock was set")?;
        let since = since.duration_since(SystemTime::UNIX_EPOCH)?.as_secs_f64();
        let logs = events::read_agents(&self.events_folder())?;
        let formed = |log: &events::AgentLog| {
            let mut records = log.records.iter();
            let next = |record: &&events::AgentRecord| {
                record.t >= since && matches!(record.event, events::AgentEvent::Formed { .. })
            };
            records.find(next).map(|record| record.t - since)
        };
        let formed: Vec<f64> = logs.values().filter_map(formed).collect();
        ensure!(formed.len() == self.agents.len(), "agents that have formed another round: {}", formed.len());
        Ok(formed.into_iter().fold(0.0, f64::max))
    }

    /// Starts another agent, and returns the time.
    pub(crate) fn join_node(&mut self) -> anyhow::Result<Instant> {
        let now = Instant::now();
        self.start_agent()?;
        Ok(now)
    }
}
