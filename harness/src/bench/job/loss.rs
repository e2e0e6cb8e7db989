//! What a job loses in a bench: a rank, or a node with all that runs on it; and the node that joins later.

use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use lockstep_process::{Signal, proc};
use rustix::process::{Pid, kill_process};

use super::Job;

/// Between two attempts to connect to the first agent.
const PAUSE: Duration = Duration::from_millis(20);

impl Job<'_> {
    /// As [`Self::started`], but the first agent hosts the rendezvous, because the others start when it listens. So any other can be
    /// lost. Waits until all ranks are there.
    ///
    /// # Errors
    /// As [`Self::until_up`].
    pub(in crate::bench) fn started_one_by_one(mut self) -> anyhow::Result<Self> {
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

    /// Kills a rank as the kernel's out-of-memory killer would, and returns when that was.
    ///
    /// # Errors
    /// It is not there.
    pub(in crate::bench) fn kill(&self, rank: usize) -> anyhow::Result<Instant> {
        let mut hellos = self.ranks.iter().filter_map(|connection| connection.hello);
        let hello = hellos.find(|hello| hello.rank == rank).with_context(|| format!("rank {rank} is not there"))?;
        let pid = Pid::from_raw(hello.pid).context("process 0 is no rank")?;
        let now = Instant::now();
        // It has not ended: its connection is open, and its agent has yet to reap it.
        kill_process(pid, Signal::KILL)?;
        Ok(now)
    }

    /// Kills the last agent and all that it started, and returns when that was.
    ///
    /// # Errors
    /// There is no other agent than the first.
    pub(in crate::bench) fn lose_node(&mut self) -> anyhow::Result<Instant> {
        ensure!(self.agents.len() > 1, "the only node cannot be lost");
        let mut lost = self.agents.pop().context("there is no agent")?;
        let started = proc::descendants(lost.process.pid().as_raw_pid(), &proc::parents());
        let now = Instant::now();
        lost.process.signal(Signal::KILL)?;
        for pid in started.into_iter().filter_map(Pid::from_raw) {
            // An error means that the kernel, or the agent's reaper, was faster.
            let _ = kill_process(pid, Signal::KILL);
        }
        lost.process.child.wait().context("cannot wait for an agent's end")?;
        Ok(now)
    }

    /// Starts another agent, and returns when that was.
    ///
    /// # Errors
    /// The system's error.
    pub(in crate::bench) fn join_node(&mut self) -> anyhow::Result<Instant> {
        let now = Instant::now();
        self.start_agent()?;
        Ok(now)
    }
}
