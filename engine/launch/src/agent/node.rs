//! The agent's life on its node: opens the rendezvous, runs the job to its end, reports and cleans up. Below: the log messages that LOGLEVEL
//! selects, as for torchrun, and on a terminal the status line.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use lockstep_contract::events::{AgentEvent, AgentSink, VerdictRecord};
use lockstep_contract::snapshot_request::SAVED;
use lockstep_contract::{foreign, warn};
use lockstep_process::{Workers, check_calls, check_room, find_program, raise_open_files, refusal, signal_name};
use tracing::level_filters::LevelFilter;

use super::batch_job::BatchJob;
use super::ending::listen;
use super::judge::Facts;
use super::meet::{self, GlooInterface, RendezvousWait, hostname};
use super::membership::{Limits, Membership};
use super::run::{Agent, Finished};
use super::signals::SignalStream;
use super::state_machine::{Outcome, StateMachine};
use super::workers::{self, Context};
use crate::config::{Config, LogDir, StatusWhen};
use crate::output::{Console, Stream};
use crate::rendezvous::{Rendezvous, Round};
use crate::report::{Report, propagate_agent_error, propagate_error};
use crate::scheduler::Allocation;
use crate::status::{AgentView, Status};
use crate::verdict::{LaunchFailure, why_launcher_failed};

/// How long the last lines may take on a console that does not accept them.
const LAST_LINES: Duration = Duration::from_secs(5);

/// The agent's own processes and threads: the reaper; one that reads the workers' output, one that writes it, two of stores, one that
/// resolves names.
const OWN_TASKS: usize = 6;

/// How a job ended on this node. All messages have been printed to stderr by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All workers of the job succeeded.
    Succeeded,
    /// The workers saved a snapshot and ended, as a signal asked.
    Saved,
    /// There was a failure, or a signal stopped the job.
    Failed,
}

impl Ended {
    /// The exit code of the launcher.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Ended::Succeeded => 0,
            Ended::Failed => 1,
            Ended::Saved => SAVED,
        }
    }
}

/// Runs the job that `config` describes to its end on this node. Call it on the process's main thread, after
/// [`lockstep_process::internal_main`].
///
/// # Errors
/// When the job could not start here: the program, the log folder or the rendezvous is not available. The verdict on it has been
/// printed to stderr by then.
pub fn run(config: &Config) -> anyhow::Result<Ended> {
    start(config).inspect_err(|error| {
        if !error.is::<Stopped>() {
            report_launch(&why_launcher_failed(error, &hostname()));
        }
    })
}

fn start(config: &Config) -> anyhow::Result<Ended> {
    find_program(&config.program.file, std::env::var_os("PATH").as_deref())?;
    check_calls()?;
    let before = raise_open_files(config.local_world_size, workers::open_files(config))?;
    check_room(OWN_TASKS + config.local_world_size)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the agent's runtime")?;
    let ended = runtime.block_on(on_this_node(config, before));
    // A name service that does not answer must not delay the exit.
    runtime.shutdown_background();
    ended
}

/// A signal ended the launcher before there was a job.
#[derive(Debug, thiserror::Error)]
#[error("stopped by {} while looking for the rendezvous", signal_name(*.0))]
struct Stopped(i32);

/// Prints and records the verdict on a launcher that failed before there was a job.
fn report_launch(verdict: &VerdictRecord) {
    warn(verdict);
    let events = events(&hostname(), events_folder().as_deref(), |warning| warn(&warning));
    events.emit(&AgentEvent::Verdict(verdict.clone()));
    events.emit(&AgentEvent::Finished { code: Ended::Failed.code().into() });
}

fn events_folder() -> Option<PathBuf> {
    std::env::var_os(lockstep_contract::events::FOLDER).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// Workers get the limit of open files from `before` it was raised.
async fn on_this_node(config: &Config, before: Option<u64>) -> anyhow::Result<Ended> {
    let signals = SignalStream::listen(&config.signals.all())?;
    let console = Console::of_this_process().context("cannot use stdout and stderr")?;
    let ended = on_console(config, before, signals, console.clone()).await;
    // The console writes in a thread of its own, and the verdict on a launcher that failed must follow its lines.
    console.flush(LAST_LINES);
    ended
}

async fn on_console(
    config: &Config,
    before: Option<u64>,
    mut signals: SignalStream,
    console: Console,
) -> anyhow::Result<Ended> {
    let hostname = hostname();
    log_to(&console);
    let (options, unread) = meet::options(config)?;
    for key in unread {
        console.line(Stream::Stderr, format!("note: {}", foreign::escaped(&key)).as_bytes());
    }
    let mut met = tokio::select! {
        met = meet::meet(config, &options, &hostname, &console) => met?,
        signal = signals.next_that_ends(&config.signals) => bail!(Stopped(signal)),
    };
    let mut workers = Workers::new().map_err(|error| {
        let why = refusal(&error).map(|why| format!("; {why}")).unwrap_or_default();
        anyhow::anyhow!("cannot prepare for workers: {error}{why}")
    })?;
    let ready = listen(workers.as_fd().try_clone_to_owned()?).context("cannot watch over workers")?;
    workers.limit_open_files(before);
    let logs = match LogDir::create(&config.logs, &config.rendezvous.run_id) {
        Ok(logs) => logs,
        Err(error) => {
            workers.close();
            return Err(error.into());
        }
    };
    if let Some(folder) = logs.temporary() {
        workers.register_cleanup(folder);
    }
    let folder = events_folder();
    let events = events(&hostname, folder.as_deref(), |warning| {
        console.line(Stream::Stderr, foreign::escaped(warning).as_bytes())
    });
    let batch = Allocation::batch_job();
    let job = meet::job(config, batch.as_ref());
    let (node, link) = (met.node(config, &hostname), met.link(&job, &options));
    let (hosting, keeps_store) = (met.hosting, met.server);
    let batch = BatchJob::new(config, batch, folder.clone());
    let status = LiveStatus::on(config, &console, folder, logs.path());
    let rendezvous = Rendezvous::new(link, node, job, options.clone());
    let wait = RendezvousWait::new(&rendezvous, met.endpoint, keeps_store.clone());
    let gloo = GlooInterface::choose(config, met.interface, &hostname).await;
    let limits = Limits { master: options.read_timeout, exit_barrier: config.exit_barrier_timeout };
    let context = Context {
        config,
        console,
        events,
        hostname,
        has_status: status.is_some(),
        status_events: status.as_ref().and_then(|status| status.folder()).map(Path::to_owned),
        gloo_interface: gloo.as_ref().map(|gloo| gloo.name.clone()),
        logs,
    };
    batch.announce_start(&context);
    if let Some(gloo) = gloo {
        context.say(&gloo.notice);
    }
    let membership = Membership::start(rendezvous, hosting, limits);
    let finished = Agent::new(context, (workers, ready), membership, batch, signals, wait, status).run().await;
    let ended = end(finished).await;
    // The other nodes may need the store until the very end.
    drop(keeps_store);
    Ok(ended)
}

/// Reports, announces the end to the other nodes, and cleans up.
async fn end(finished: Finished<'_>) -> Ended {
    let Finished { outcome, facts, context, membership, mut signals, mut workers, status } = finished;
    let ended = match outcome {
        Outcome::Succeeded => Ended::Succeeded,
        Outcome::Saved => Ended::Saved,
        _ => Ended::Failed,
    };
    let succeeded = ended != Ended::Failed;
    report(&context, facts, &outcome, context.logs.path().filter(|_| context.logs.stays(succeeded)));
    context.events.emit(&AgentEvent::Finished { code: ended.code().into() });
    let Context { console, logs, config, .. } = context;
    if let Some(status) = status {
        status.finish();
    }
    tokio::select! {
        // A second stop signal ends all waiting.
        _ = signals.next_that_ends(&config.signals) => {}
        left = membership.finish() => for node in left {
            console.say(&format!("{node} has not announced its end; the store that it used closes now"));
        }
    }
    if let Some(folder) = logs.temporary().map(Path::to_owned) {
        if let Err(error) = logs.finish(succeeded) {
            console.say(&format!("cannot remove the logs in {}: {error}", folder.display()));
        }
        workers.unregister_cleanup(&folder);
    }
    workers.close();
    ended
}

/// Prints to stderr how the job ended, unless it succeeded.
fn report(context: &Context<'_>, mut facts: Facts, outcome: &Outcome, logs: Option<&Path>) {
    match outcome {
        Outcome::Succeeded => return,
        Outcome::Saved => {
            let line =
                format!("the workers saved a snapshot and ended; start the job again to go on (exit code {SAVED})");
            return context.say(&line);
        }
        Outcome::Signalled(signal) => context.say(&format!("ended by {}", signal_name(*signal))),
        Outcome::Failed(why) => {
            if facts.verdict.is_none() {
                launch_verdict(context, facts.launch_failure.take(), why);
            }
            context.console.say_lines(&format!("failed: {why}"));
        }
        Outcome::WorkersFailed => {}
    }
    let own = std::env::var_os("TORCHELASTIC_ERROR_FILE").filter(|path| !path.is_empty()).map(PathBuf::from);
    let verdict = facts.verdict.take();
    let Some(mut report) = Report::new(&context.config.program.name, facts.failures, verdict.clone()) else {
        if let Some(verdict) = verdict {
            context.console.line(Stream::Stderr, verdict.to_string().as_bytes());
        }
        if let Some(stacks) = facts.stacks {
            context.console.say_lines(&stacks);
        }
        let why = match outcome {
            Outcome::Signalled(signal) => anyhow::anyhow!("ended by {}", signal_name(*signal)),
            Outcome::Failed(why) => anyhow::anyhow!("{why}"),
            Outcome::Succeeded | Outcome::Saved | Outcome::WorkersFailed => return,
        };
        return leave(context, own.as_deref(), |path| propagate_agent_error(&why, path));
    };
    report.logs = logs.map(Path::to_owned);
    report.stacks = facts.stacks;
    context.console.line(Stream::Stderr, report.to_string().as_bytes());
    leave(context, own.as_deref(), |path| propagate_error(report.root(), path));
}

/// Prints and records why the job failed though no worker did.
fn launch_verdict(context: &Context<'_>, failure: Option<LaunchFailure>, why: &str) {
    let failure = failure.unwrap_or_else(|| LaunchFailure::noticed(why.to_owned()));
    let verdict = failure.verdict(&context.hostname);
    context.console.line(Stream::Stderr, verdict.to_string().as_bytes());
    context.events.emit(&AgentEvent::Verdict(verdict));
}

/// Writes the cause to the error file of the process that started this agent.
fn leave(context: &Context<'_>, path: Option<&Path>, write: impl FnOnce(&Path) -> std::io::Result<()>) {
    if let Some(path) = path
        && let Err(error) = write(path)
    {
        context.say(&format!("cannot write the root cause to {}: {error}", path.display()));
    }
}

fn events(hostname: &str, folder: Option<&Path>, warn: impl Fn(&str)) -> AgentSink {
    let Some(folder) = folder else { return AgentSink::default() };
    let node = format!("{hostname}-{}", std::process::id());
    AgentSink::open(folder, &node).unwrap_or_else(|error| {
        warn(&format!("warning: {:#}; the agent runs without an event file", anyhow::Error::from(error)));
        AgentSink::default()
    })
}

/// How often the line is redrawn.
const EVERY: Duration = Duration::from_millis(250);

/// A status line, and the source of its events.
pub(super) struct LiveStatus {
    status: Status,
    begun: Instant,
    /// The folder for event files if the user named none: step and loss come from them.
    own_folder: Option<PathBuf>,
}

impl LiveStatus {
    /// A status on stderr, if that is a terminal and the user wants one. `events` is the folder that the user named.
    pub(super) fn on(config: &Config, console: &Console, events: Option<PathBuf>, logs: Option<&Path>) -> Option<Self> {
        if config.status == StatusWhen::Never || !console.is_terminal(Stream::Stderr) {
            return None;
        }
        let own_folder = if events.is_none() { logs.map(|logs| logs.join("events")) } else { None };
        let status = Status::new(events.as_deref().or(own_folder.as_deref()));
        console.draw_above(&status.bar());
        Some(LiveStatus { status, begun: Instant::now(), own_folder })
    }

    /// The folder for event files that only the status needs.
    pub(super) fn folder(&self) -> Option<&Path> {
        self.own_folder.as_deref()
    }

    /// Updates the line and returns when to do so again.
    pub(super) fn show(&mut self, machine: &StateMachine, max_restarts: u32, round: Option<&Round>) -> Instant {
        self.status.update(&AgentView {
            phase: machine.doing(),
            ranks: round.map_or(0, |round| round.world_size),
            nodes: round.map_or(0, |round| round.nodes),
            restarts: max_restarts - machine.restarts_left(),
            max_restarts,
            elapsed: self.begun.elapsed(),
        });
        Instant::now() + EVERY
    }

    /// Removes the line.
    pub(super) fn finish(self) {
        self.status.finish();
    }
}

/// From now on `console` shows log messages of LOGLEVEL and above; if it is not set, warnings and errors.
fn log_to(console: &Console) {
    let level = std::env::var("LOGLEVEL").map_or(LevelFilter::WARN, |name| level(&name));
    let console = console.clone();
    let log = tracing_subscriber::fmt().with_max_level(level).with_target(false).with_ansi(false).without_time();
    // A program that embeds the agent keeps its own logger.
    let _ = log.with_writer(move || Lines(console.clone())).try_init();
}

/// Parses Python's names and numbers (logging.getLevelName); other texts mean torchrun's default.
fn level(name: &str) -> LevelFilter {
    match name.to_ascii_uppercase().as_str() {
        "DEBUG" | "10" => LevelFilter::DEBUG,
        "INFO" | "20" => LevelFilter::INFO,
        "ERROR" | "CRITICAL" | "FATAL" | "40" | "50" => LevelFilter::ERROR,
        _ => LevelFilter::WARN,
    }
}

/// Writes each log message as a line of the console.
struct Lines(Console);

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.say(String::from_utf8_lossy(line).trim_end());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_pythons_names_of_levels() {
        let names = ["INFO", "debug", "Warning", "CRITICAL", "10", "loud"].map(level);
        let [info, debug, warn, error] = [LevelFilter::INFO, LevelFilter::DEBUG, LevelFilter::WARN, LevelFilter::ERROR];
        assert_eq!(names, [info, debug, warn, error, debug, warn]);
    }
}
