//! `lockstep stacks`: the stacks of all ranks of a running job on this node, by py-spy, gdb or eu-stack, whichever is installed.
//!
//! The ranks go on running: each is held only while a tool reads it. A tool that a rank does not let in is given up after a while.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use lockstep_process::{Group, Outcome, Signals, Standstill, find_program, proc};

use crate::exit::{Code, Interrupted, Refused};

/// How long a tool may take for one rank.
const LIMIT: Duration = Duration::from_secs(20);

/// Print the stacks of all ranks of a running job on this node
#[derive(Args)]
pub(crate) struct Options {
    /// The process id of the job's `lockstep run`; without it, the only one on this node
    agent: Option<i32>,
}

/// A rank of the job.
struct Rank {
    rank: String,
    pid: i32,
}

/// A program that reads stacks.
struct Tool {
    name: &'static str,
    /// Reads Python's stacks only.
    python: bool,
    /// Its arguments before the process id.
    before: &'static [&'static str],
    /// Its arguments after it.
    after: &'static [&'static str],
}

/// In the order in which they are tried.
const TOOLS: [Tool; 3] = [
    Tool { name: "py-spy", python: true, before: &["dump", "--pid"], after: &[] },
    Tool {
        name: "gdb",
        python: false,
        before: &["-nx", "-batch", "-p"],
        after: &["-ex", "set pagination off", "-ex", "thread apply all backtrace 40"],
    },
    Tool { name: "eu-stack", python: false, before: &["-p"], after: &[] },
];

impl Options {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let agent = self.agent.map_or_else(only_agent, Ok)?;
        let ranks = ranks(agent);
        if ranks.is_empty() {
            return Err(Refused(format!("process {agent} is no `lockstep run` with running ranks on this node")).into());
        }
        let signals = Signals::listen().context("cannot listen to signals")?;
        for rank in &ranks {
            let text = stacks(rank, &signals)?;
            let indented = text.trim_end().replace('\n', "\n  ");
            writeln!(std::io::stdout().lock(), "rank {} (pid {})\n  {indented}", rank.rank, rank.pid)
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
            let lines =
                several.iter().map(|pid| format!("\n  {pid}  {}", proc::command_line(*pid).unwrap_or_default()));
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

/// What the first tool says that works.
fn stacks(rank: &Rank, signals: &Signals) -> anyhow::Result<String> {
    let standstill = Standstill::of(rank.pid);
    // Attaching to it would wait for what it waits for.
    if let Some(at) = standstill.filter(Standstill::in_kernel) {
        return Ok(at.to_string());
    }
    let is_python = proc::Stat::of(rank.pid).is_some_and(|stat| stat.name.starts_with("python"));
    let path = std::env::var_os("PATH");
    let installed = |tool: &&Tool| find_program(tool.name.as_ref(), path.as_deref()).is_ok();
    let mut failed = String::new();
    for tool in TOOLS.iter().filter(|tool| is_python || !tool.python).filter(installed) {
        match ask(tool, rank.pid, signals)? {
            Ok(text) => return Ok(format!("by {}:\n{text}", tool.name)),
            Err(why) => failed += &format!("{} failed: {}\n", tool.name, why.trim()),
        }
    }
    if failed.is_empty() {
        failed = "neither py-spy (for Python) nor gdb nor eu-stack is installed; its threads:\n".to_owned();
    }
    Ok(failed + &threads(rank.pid))
}

/// A tool's output, or why it failed.
fn ask(tool: &Tool, pid: i32, signals: &Signals) -> anyhow::Result<Result<String, String>> {
    let mut output = tempfile::tempfile().context("cannot make a temporary file")?;
    let copy = |file: &File| file.try_clone().context("cannot use a temporary file");
    let mut command = Command::new(tool.name);
    command.args(tool.before).arg(pid.to_string()).args(tool.after);
    command.stdin(Stdio::null()).stdout(copy(&output)?).stderr(copy(&output)?);
    let group = Group::start(&mut command).with_context(|| format!("cannot start {}", tool.name))?;
    let outcome =
        group.finish(Instant::now() + LIMIT, signals).with_context(|| format!("cannot wait for {}", tool.name))?;
    let mut text = String::new();
    output
        .rewind()
        .and_then(|()| output.read_to_string(&mut text))
        .with_context(|| format!("cannot read {}'s output", tool.name))?;
    match outcome {
        Outcome::Ended(status) if status.success() => Ok(Ok(text)),
        Outcome::Ended(status) => Ok(Err(format!("{status}: {text}"))),
        Outcome::TimedOut => Ok(Err(format!("no answer within {} s", LIMIT.as_secs()))),
        Outcome::Signalled(signal) => Err(Interrupted { signal }.into()),
    }
}

/// Its threads with their states, which the kernel tells everybody.
fn threads(pid: i32) -> String {
    let line = |thread: proc::Stat| format!("thread {} {}: state {}\n", thread.pid, thread.name, thread.state);
    proc::threads(pid).into_iter().map(line).collect()
}
