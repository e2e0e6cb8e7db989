//! `lockstep stacks`: the stacks of all ranks of a running job on this node, by py-spy, gdb or eu-stack, whichever is installed.
//!
//! The ranks go on running: each is held only while a tool reads it.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use lockstep_contract::foreign::quotation;
use lockstep_launch::exit::{Code, Interrupted, Refused};
use lockstep_process::{Signals, Stacks, StacksError, proc};
use lockstep_report::Stdout;

/// How long a tool may take for one rank.
const LIMIT: Duration = Duration::from_secs(20);

/// Print the stacks of all ranks of a running job on this node
#[derive(Args)]
pub(crate) struct StacksOptions {
    /// The process id of the job's `lockstep run`; without it, the only one on this node
    agent: Option<i32>,
}

/// A rank of the job.
struct Rank {
    rank: String,
    pid: i32,
}

impl StacksOptions {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let agent = self.agent.map_or_else(only_agent, Ok)?;
        let ranks = ranks(agent);
        if ranks.is_empty() {
            return Err(
                Refused(format!("process {agent} is not a `lockstep run` with running ranks on this node")).into()
            );
        }
        let signals = Signals::listen().context("cannot listen to signals")?;
        for rank in &ranks {
            let stacks = Stacks::of(rank.pid, LIMIT, &signals).map_err(|error| match error {
                StacksError::Signalled(signal) => Interrupted { signal }.into(),
                other => anyhow::Error::from(other),
            })?;
            let indented = stacks.to_string().trim_end().replace('\n', "\n  ");
            writeln!(Stdout, "rank {} (pid {})\n  {indented}", rank.rank, rank.pid)
                .context("cannot write to stdout")?;
        }
        Ok(Code::Success)
    }
}

/// The only `lockstep run` on this node.
fn only_agent() -> anyhow::Result<i32> {
    let agents: Vec<i32> = proc::pids().filter(|pid| is_agent(*pid)).collect();
    match agents.as_slice() {
        [agent] => Ok(*agent),
        [] => Err(Refused("no `lockstep run` is running on this node".to_owned()).into()),
        several => {
            let lines = several
                .iter()
                .map(|pid| format!("\n  {pid}  {}", quotation(&proc::command_line(*pid).unwrap_or_default())));
            let lines: String = lines.collect();
            Err(Refused(format!("several jobs are running on this node, so name one by its process id:{lines}")).into())
        }
    }
}

fn is_agent(pid: i32) -> bool {
    let line = proc::command_line(pid).unwrap_or_default();
    let mut words = line.split(' ');
    let program =
        words.next().and_then(|program| Path::new(program).file_name()).is_some_and(|name| name == "lockstep");
    program && words.next() == Some("run")
}

/// The agent's workers, by rank.
fn ranks(agent: i32) -> Vec<Rank> {
    let worker = |pid: i32| {
        let rank = proc::variable(pid, "RANK")?.into_string().ok()?;
        // The agent's own helper has the agent's environment.
        (proc::variable(agent, "RANK").is_none_or(|own| *own != *rank)).then_some(Rank { rank, pid })
    };
    let mut ranks: Vec<Rank> = proc::children_of(agent).into_iter().filter_map(worker).collect();
    ranks.sort_by_key(|rank| rank.rank.parse::<usize>().unwrap_or(usize::MAX));
    ranks
}
