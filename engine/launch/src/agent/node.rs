//! The agent's life on its node: opens the rendezvous, runs the job to its end, reports and cleans up.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use lockstep_contract::events::{AgentEvent, AgentSink, VerdictRecord};
use lockstep_contract::snapshot_request::SAVED;
use lockstep_contract::{foreign, warn};
use lockstep_process::{Workers, check_calls, check_room, find_program, raise_open_files, refusal, signal_name};

use super::batch_job::BatchJob;
use super::display::{LiveStatus, log_to};
use super::ending::listen;
use super::judge::Facts;
use super::meet::{self, GlooInterface, RendezvousWait, hostname};
use super::membership::{Limits, Membership};
use super::recording::Recording;
use super::run::{Agent, Finished};
use super::signals::SignalStream;
use super::state_machine::Outcome;
use super::workers::{self, Context};
use crate::config::{Config, LogDir};
use crate::output::{Console, Stream};
use crate::rendezvous::Rendezvous;
use crate::report::{Report, propagate_agent_error, propagate_error};
use crate::scheduler::Allocation;
use crate::verdict::{self, LaunchFailure, why_launcher_failed};

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
    let events = events(&hostname(), lockstep_contract::events::folder().as_deref(), |warning| warn(&warning));
    events.emit(&AgentEvent::Verdict(verdict.clone()));
    events.emit(&AgentEvent::Finished { code: Ended::Failed.code().into() });
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
    let prepared = LogDir::create(&config.logs, &config.rendezvous.run_id).map_err(anyhow::Error::from);
    let prepared = prepared.and_then(|logs| Ok((logs, Recording::start(config, &hostname)?)));
    let (logs, recording) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            workers.close();
            return Err(error);
        }
    };
    if let Some(folder) = logs.temporary() {
        workers.register_cleanup(folder);
    }
    let folder = lockstep_contract::events::folder();
    let warn = |warning: &str| console.line(Stream::Stderr, foreign::escaped(warning).as_bytes());
    let events = events(&hostname, folder.as_deref(), warn);
    let recorded = recording.as_ref().map(|recording| self::events(&hostname, Some(recording.folder()), warn));
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
        events: events.and(recorded.unwrap_or_default()),
        recording,
        console,
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
    let Context { console, logs, config, recording, .. } = context;
    if let Some(recording) = recording {
        console.say(&recording.finish());
    }
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

/// Said after a rank has waited for another in vain.
const NOT_RECORDED: &str = "replay: run it with --record FILE, and `lockstep replay FILE` shows who waited for whom; for Python, \
                            TORCH_FR_BUFFER_SIZE=2000 and a file of the flight recorder";

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
    let has_waited = facts.failures.iter().any(verdict::has_waited);
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
    if has_waited && context.recording.is_none() {
        context.say(NOT_RECORDED);
    }
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
