//! Runs a learner's program on several ranks and collects the results.
//!
//! Every rank is a separate process in a private folder. The store runs in the grader, on a free port. So a crash or a hang of the
//! answer cannot affect the grader. All processes that the ranks start are killed at the end.
//!
//! Below: one call of an answer, with its private folder, its store and its ranks; the outcome of each rank, and the findings that follow
//! from the outcomes alone.

mod hang;
mod limits;

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use limits::words;
use lockstep_contract::exercise::{ANSWERS, Answer, Answers, CALL, Call};
use lockstep_contract::foreign::{self, quotation};
use lockstep_contract::{BACKEND, CLEARED_VARIABLES};
use lockstep_process::{Exit, Orphan, Sink, Spec, Stdin, Template, Workers, check_room, end_of_file};
use rand_mt::Mt64;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tempfile::TempDir;

use crate::{Finding, Verdict};

pub use hang::{BESIDE, COMPUTES, JOINS, SEPARATOR};
pub(crate) use limits::exec as confined;
pub use limits::{Bounds, CONFINED, writes_are_confined};

/// Longer inputs are not shown, in bytes.
const SHOWN: usize = 200;

/// The grader's own processes and threads: a reaper, a program to copy, the store.
const OWN_TASKS: usize = 4;
/// A rank's: its main thread, Gloo's loop, and the thread that answers desync reports.
const RANK_TASKS: usize = 4;

/// Runs a learner's answer to one task.
pub struct Runner {
    program: PathBuf,
    /// The name of the task, or `TASK/NAME` for one of the course's answers.
    task: String,
    options: Options,
    /// None before the first call.
    started: Option<Started>,
}

/// What all calls of a runner share.
struct Started {
    workers: Workers,
    /// The program, which has loaded libtorch; None if it does not wait for requests. Then each rank is started separately.
    template: Option<Template>,
}

/// The results of all ranks.
#[derive(Clone, Debug)]
pub struct Outputs<O>(Vec<Vec<O>>);

impl Runner {
    /// A runner for the tasks of the learner's `program`.
    pub fn new(program: &Path, options: &Options) -> Self {
        Runner { program: program.into(), task: String::new(), options: *options, started: None }
    }

    /// Directs the next calls to this task.
    pub(crate) fn turn_to(&mut self, task: &str, options: &Options) {
        self.task = task.into();
        self.options = *options;
    }

    /// Returns true if all ranks so far were copies of one process.
    pub(crate) fn made_copies(&self) -> bool {
        self.started.as_ref().is_none_or(|started| started.template.is_some())
    }

    /// Random numbers for inputs. The same seed gives the same numbers.
    pub fn random(&self) -> Inputs {
        Inputs(Mt64::new(self.options.seed))
    }

    /// Calls the answer on `ranks` ranks with each input in turn.
    pub fn call<I: Serialize, O: DeserializeOwned>(
        &mut self,
        ranks: usize,
        inputs: &[I],
    ) -> anyhow::Result<Outputs<O>> {
        self.call_with(&CallOptions { ranks, ..CallOptions::default() }, inputs)
    }

    /// Calls the answer with other options.
    pub fn call_with<I, O>(&mut self, options: &CallOptions, inputs: &[I]) -> anyhow::Result<Outputs<O>>
    where
        I: Serialize,
        O: DeserializeOwned,
    {
        let outcomes = self.run_checked(options, inputs, first_death)?;
        outcomes.into_iter().map(|outcome| outputs(outcome, inputs.len())).collect::<anyhow::Result<_>>().map(Outputs)
    }

    /// Calls the answer where ranks are expected to die, and returns the outcome of each rank.
    ///
    /// Errors: a [`Finding`] for a hang, a panic, an error or leaked processes, but not for a death.
    pub fn outcomes<I: Serialize>(&mut self, options: &CallOptions, inputs: &[I]) -> anyhow::Result<Vec<RankOutcome>> {
        self.run_checked(options, inputs, |_| None)
    }

    /// The outcome of each rank, if none has failed; `death` says what is wrong with ranks that died.
    fn run_checked<I: Serialize>(
        &mut self,
        options: &CallOptions,
        inputs: &[I],
        death: impl FnOnce(&[RankOutcome]) -> Option<Finding>,
    ) -> anyhow::Result<Vec<RankOutcome>> {
        let inputs = inputs.iter().map(serde_json::to_value).collect::<Result<_, _>>()?;
        let request = Call { task: self.task.clone(), inputs };
        let result = self.run(options, &request)?;
        if let Some(why) = of_machine(&result.outcomes, &result.printed) {
            bail!("the ranks could not run on this machine: {why}");
        }
        if let Some(why) = result.outcomes.iter().find_map(misunderstood) {
            if let Some((rank, exit)) = result.died_before_the_answer() {
                bail!(
                    "the ranks could not run on this machine: rank {rank} ended with {exit} before its answer ran ({why})"
                );
            }
            bail!("the task {} does not fit its grading: {why}", self.task);
        }
        match fault(&result, &request.inputs, death) {
            Some(finding) => Err(finding.into()),
            None => Ok(result.outcomes),
        }
    }

    fn run(&mut self, options: &CallOptions, request: &Call) -> anyhow::Result<CallResult> {
        let folder = tempfile::Builder::new().prefix("lockstep-grade-").tempdir_in(lockstep_paths::temporary_folder());
        let folder = folder.context("cannot make a folder")?;
        let ranks = options.ranks.max(1);
        check_room(OWN_TASKS + RANK_TASKS * ranks)?;
        let started = match &mut self.started {
            Some(started) => started,
            none => none.insert(Started::new(&self.program, self.options.confined).context("cannot start processes")?),
        };
        started.workers.register_cleanup(folder.path());
        let call = RunningCall::new(&self.program, self.options.confined, &folder, options, request)?;
        let pids = (0..ranks).map(|rank| started.start(rank, &call)).collect::<Result<Vec<_>, _>>();
        let workers = &mut started.workers;
        let result = pids.map_err(Into::into).and_then(|pids| call.watch(workers, &pids, &self.options));
        if result.is_err() {
            workers.kill();
        }
        workers.unregister_cleanup(folder.path());
        result.with_context(|| format!("cannot run {}", foreign::path(&self.program)))
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        if let Some(started) = self.started.take() {
            started.workers.close();
        }
    }
}

impl Started {
    fn new(program: &Path, confined: bool) -> io::Result<Self> {
        // Confined ranks may write to folders of their own, so each is confined at its start.
        let template = (!confined).then(|| template(program)).flatten();
        Ok(Started { workers: Workers::new()?, template })
    }

    fn start(&mut self, rank: usize, call: &RunningCall<'_>) -> io::Result<u32> {
        if let Some(template) = &self.template {
            match self.workers.start_copy(rank, template, call.spec(rank)?) {
                Ok(pid) => return Ok(pid),
                // A learner can do anything to the program. The effect shows when the program is started.
                Err(_) => self.template = None,
            }
        }
        self.workers.start(rank, call.spec(rank)?)
    }
}

impl<O> Outputs<O> {
    /// The result of `rank` for input `case`.
    pub fn of(&self, rank: usize, case: usize) -> &O {
        &self.0[rank][case]
    }

    /// The results of all ranks for input `case`, by rank.
    pub fn all(&self, case: usize) -> impl Iterator<Item = &O> {
        self.0.iter().map(move |outputs| &outputs[case])
    }

    pub fn ranks(&self) -> usize {
        self.0.len()
    }
}

/// What is wrong with a call, if anything is, with the input and what the ranks printed.
fn fault(
    result: &CallResult,
    inputs: &[serde_json::Value],
    death: impl FnOnce(&[RankOutcome]) -> Option<Finding>,
) -> Option<Finding> {
    let failed = result.finding.clone().or_else(|| first_finding(&result.outcomes));
    let finding = match (failed, death(&result.outcomes)) {
        // A rank stays connected after an error, so that no other ends because of it; but a rank that ends can be why others fail.
        (Some(failed), Some(death)) if failed.verdict == Verdict::Crash => death,
        (Some(failed), _) => failed,
        // What a rank leaves running when it dies is a consequence.
        (None, death) => death.or_else(|| leak(&result.orphans))?,
    };
    let input = result.input(&finding);
    let given = finding.given.clone().or_else(|| described(inputs, input?));
    Some(Finding { input, given, printed: result.printed.clone(), ..finding })
}

/// An input as the answer gets it, if it is short: its parts, without the signs of the format in which it was passed.
fn described(inputs: &[serde_json::Value], number: usize) -> Option<String> {
    let text = match inputs.get(number)? {
        Value::Array(parts) if parts.iter().any(|part| part.is_array() || part.is_object()) => {
            parts.iter().map(plain).collect::<Vec<_>>().join("; ")
        }
        input => plain(input),
    };
    (text.len() <= SHOWN).then_some(text)
}

/// Numbers and texts as they are, lists in brackets, fields with their names.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::String(text) if text.is_empty() => "\"\"".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(parts) => format!("[{}]", parts.iter().map(plain).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) if fields.is_empty() => "nothing".to_owned(),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| format!("{name} {}", plain(value))).collect::<Vec<_>>().join(", ")
        }
        value => value.to_string(),
    }
}

fn outputs<O: DeserializeOwned>(outcome: RankOutcome, inputs: usize) -> anyhow::Result<Vec<O>> {
    match outcome {
        RankOutcome::Answered(Answer::Done { outputs }) => {
            anyhow::ensure!(outputs.len() == inputs, "{} results for {inputs} inputs", outputs.len());
            let outputs: Result<_, _> = outputs.into_iter().map(serde_json::from_value).collect();
            outputs.context("a result is not of the task's type")
        }
        other => bail!("a call ended with {other:?}"),
    }
}

pub struct Inputs(pub(super) Mt64);

impl Inputs {
    /// A number in `range`.
    pub fn below(&mut self, range: std::ops::Range<usize>) -> usize {
        range.start + (self.0.next_u64() % range.len().max(1) as u64) as usize
    }

    /// Numbers from -4 to 4 in steps of 1/8. Sums of a few of them are exact even in single precision.
    pub fn numbers(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| self.below(0..65) as f64 / 8.0 - 4.0).collect()
    }

    /// A seed for another generator.
    pub fn seed(&mut self) -> u64 {
        self.0.next_u64()
    }
}

/// The default deadline of a call. Time in which the ranks or the grader wait for a core does not count. Right answers take
/// about a second.
pub const DEADLINE: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The seed of the inputs.
    pub seed: u64,
    /// How long a call may take.
    pub deadline: Duration,
    /// What its ranks may use.
    pub bounds: Bounds,
    /// If true, ranks can write only to their private folder, where the kernel supports this.
    pub confined: bool,
}

impl Options {
    /// Default options, with the inputs drawn from `seed` or, without one, from the time of day.
    pub fn seeded(seed: Option<u64>) -> Self {
        let today = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos() % 100_000;
        Options {
            seed: seed.unwrap_or_else(|| today().into()),
            deadline: DEADLINE,
            bounds: Bounds::default(),
            confined: false,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct CallOptions {
    /// The number of ranks; 0 means 1.
    pub ranks: usize,
    /// Environment variables of all ranks, in addition to those that a launcher sets.
    pub env: Vec<(String, String)>,
    /// The working directory of the ranks. `None` means a private one.
    pub folder: Option<PathBuf>,
}

/// A call with its files and its store.
struct RunningCall<'a> {
    program: &'a Path,
    pub(super) folder: &'a Path,
    options: &'a CallOptions,
    confined: bool,
    pub(super) ranks: usize,
    pub(super) answers: Answers,
    pub(super) store: tcpstore::Server,
}

fn one_thread() -> (OsString, Option<OsString>) {
    ("OMP_NUM_THREADS".into(), Some("1".into()))
}

/// The program as a template of ranks, if it waits for requests.
fn template(program: &Path) -> Option<Template> {
    let mut env: Vec<(OsString, Option<OsString>)> = CLEARED_VARIABLES.map(|name| (name.into(), None)).into();
    env.push(one_thread()); // libgomp reads it when it is loaded
    Template::start(program.as_os_str(), &[], &env).ok()
}

/// The store in which the ranks meet.
fn store() -> anyhow::Result<tcpstore::Server> {
    let own = TcpListener::bind("127.0.0.1:0")?;
    // Connecting a UDP socket asks for the route and sends nothing. A listener would open even if the interface is down.
    UdpSocket::bind("127.0.0.1:0")?
        .connect(own.local_addr()?)
        .context("the loopback interface is down: as root `ip link set lo up`")?;
    Ok(tcpstore::Server::start(own, tcpstore::ServerOptions::default())?)
}

struct CallResult {
    pub(super) outcomes: Vec<RankOutcome>,
    /// A finding about all ranks: a hang or an exceeded limit.
    pub(super) finding: Option<Finding>,
    /// The input that each rank began with last.
    pub(super) begun: Vec<Option<usize>>,
    /// Processes that the ranks left running. They have been killed.
    pub(super) orphans: Vec<Orphan>,
    pub(super) printed: Vec<String>,
}

impl CallResult {
    /// The first rank whose process ended before the answer was called.
    fn died_before_the_answer(&self) -> Option<(usize, &Exit)> {
        let ended = self.outcomes.iter().zip(&self.begun).enumerate();
        ended.filter(|(_, (_, begun))| begun.is_none()).find_map(|(rank, (outcome, _))| match outcome {
            RankOutcome::Died(exit) => Some((rank, exit)),
            _ => None,
        })
    }

    /// The number of the input in which an answer crashed or hung.
    pub(super) fn input(&self, finding: &Finding) -> Option<usize> {
        match finding.verdict {
            Verdict::Crash | Verdict::OutOfBounds => self.begun.get(finding.rank?).copied().flatten(),
            // A rank that waits may be in an earlier one than the others.
            Verdict::Hang => {
                let busy = self.outcomes.iter().zip(&self.begun).filter(|(outcome, _)| !is_done(outcome));
                busy.filter_map(|(_, begun)| *begun).min()
            }
            _ => None,
        }
    }
}

impl<'a> RunningCall<'a> {
    /// Creates the files and starts the store.
    pub(super) fn new(
        program: &'a Path,
        confined: bool,
        folder: &'a TempDir,
        options: &'a CallOptions,
        request: &Call,
    ) -> anyhow::Result<Self> {
        let folder = folder.path();
        let answers = Answers(folder.join("answers"));
        let made = std::fs::create_dir(&answers.0).and_then(|()| std::fs::create_dir(folder.join("work")));
        let made = made.and_then(|()| request.write(&folder.join("call")));
        made.with_context(|| {
            format!("cannot write to {}: export TMPDIR=DIR, a folder in which you may write", foreign::path(folder))
        })?;
        let store = store().context("cannot open a store for the ranks on 127.0.0.1")?;
        Ok(RunningCall { program, folder, options, confined, ranks: options.ranks.max(1), answers, store })
    }

    /// How to start a rank.
    fn spec(&self, rank: usize) -> io::Result<Spec> {
        let printed = File::create(output_file(self.folder, rank))?;
        let own = |name: &str, value: &dyn ToString| (name.into(), Some(value.to_string().into()));
        let mut env: Vec<(OsString, Option<OsString>)> = CLEARED_VARIABLES.map(|name| (name.into(), None)).into();
        env.extend([
            own("RANK", &rank),
            own("LOCAL_RANK", &rank),
            own("WORLD_SIZE", &self.ranks),
            own("LOCAL_WORLD_SIZE", &self.ranks),
            own("MASTER_ADDR", &"127.0.0.1"),
            own("MASTER_PORT", &self.store.local_addr().port()),
            own("TORCHELASTIC_USE_AGENT_STORE", &"True"),
            own("GLOO_SOCKET_IFNAME", &"lo"),
            // A send over Gloo waits for its receiver, which exposes some wrong answers; a send through shared memory need
            // not wait.
            own(BACKEND, &"gloo"),
            one_thread(),
            (CALL.into(), Some(self.folder.join("call").into())),
            (ANSWERS.into(), Some(self.answers.0.clone().into())),
        ]);
        env.extend(self.options.env.iter().map(|(name, value)| (name.into(), Some(value.into()))));
        let folder = self.options.folder.clone().unwrap_or_else(|| self.folder.join("work"));
        let (program, args) = self.command()?;
        Ok(Spec {
            program,
            args,
            env,
            folder: Some(folder),
            stdin: Stdin::Null,
            stdout: Sink::Fd(printed.try_clone()?.into()),
            stderr: Sink::Fd(printed.into()),
        })
    }

    /// The program, or this executable, which confines the program.
    fn command(&self) -> io::Result<(OsString, Vec<OsString>)> {
        if !self.confined {
            return Ok((self.program.into(), Vec::new()));
        }
        let mut args: Vec<OsString> =
            words([self.folder, self.options.folder.as_deref().unwrap_or(self.folder)]).into();
        args.push(self.program.into());
        Ok((std::env::current_exe()?.into(), args))
    }
}

/// The number of lines to show, over all ranks.
const LINES: usize = 20;
/// How much to read from the end of a rank's file, in bytes.
const TAIL: u64 = 8 << 10;

/// The file for a rank's stdout and stderr.
fn output_file(folder: &Path, rank: usize) -> PathBuf {
    folder.join(format!("printed-{rank}"))
}

/// The last lines of all ranks, each after the name of its rank.
fn last_lines(folder: &Path, ranks: usize) -> Vec<String> {
    let each = LINES.div_ceil(ranks).max(2);
    (0..ranks).flat_map(|rank| of_rank_in(&output_file(folder, rank), rank, each)).collect()
}

fn of_rank_in(file: &Path, rank: usize, most: usize) -> Vec<String> {
    let end = end_of_file(file, TAIL).unwrap_or_default();
    let text = String::from_utf8_lossy(&end);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let shown = lines.iter().skip(lines.len().saturating_sub(most));
    shown.map(|line| format!("[rank {rank}] {}", quotation(line))).collect()
}

/// How a call ended on one rank.
#[derive(Clone, Debug, PartialEq)]
pub enum RankOutcome {
    /// The rank left an answer.
    Answered(Answer),
    /// Its process ended without an answer.
    Died(Exit),
    /// The rank was still running when the call was over.
    Stopped,
}

/// Returns true if a rank has left its results.
fn is_done(outcome: &RankOutcome) -> bool {
    matches!(outcome, RankOutcome::Answered(Answer::Done { .. }))
}

/// The mismatch between the course's grading function and its program, if there is one.
fn misunderstood(outcome: &RankOutcome) -> Option<String> {
    match outcome {
        RankOutcome::Answered(Answer::Misunderstood { why }) => Some(why.clone()),
        _ => None,
    }
}

/// What programs print if the machine fails before an answer runs, or while it runs: a mark, and what is wrong.
const MACHINE: [(&str, &str); 3] = [
    (
        "error while loading shared libraries:",
        "the program cannot load its libraries; `ulimit -v` must be unlimited, and LD_LIBRARY_PATH, of a module for example, must not lead to \
         another libtorch: unset it",
    ),
    (
        "symbol lookup error:",
        "the program has loaded another version of a library; LD_LIBRARY_PATH, of a module for example, must not lead to another libtorch: \
         unset it",
    ),
    (
        "Resource temporarily unavailable",
        "the limit of processes and threads is reached; raise it (`ulimit -u`, pids.max of the control group: TasksMax= of a systemd unit, \
         --pids-limit of a container)",
    ),
];

/// What is wrong with the machine, if a rank's error or what the ranks printed says so: the cause, and the line.
fn of_machine(outcomes: &[RankOutcome], printed: &[String]) -> Option<String> {
    let said = outcomes.iter().filter_map(|outcome| match outcome {
        RankOutcome::Answered(Answer::Failed { error: text } | Answer::Misunderstood { why: text }) => {
            Some(text.as_str())
        }
        _ => None,
    });
    // What ranks print counts only if a rank has died.
    let died = outcomes.iter().any(|outcome| matches!(outcome, RankOutcome::Died(_)));
    let printed = printed.iter().map(String::as_str).filter(|_| died);
    let mut lines = said.chain(printed).flat_map(str::lines);
    lines.find_map(|line| {
        // With a number this is Rust's message, and may be about a socket's deadline.
        if line.contains("os error")
            && !["failed to start", "cannot start", "spawn"].iter().any(|word| line.contains(word))
        {
            return None;
        }
        let (_, what) = MACHINE.iter().find(|(mark, _)| line.contains(mark))?;
        Some(format!("{what} ({})", foreign::escaped(line.trim())))
    })
}

/// Part of c10d's error on a rank that lost a peer. The cause is on the peer.
const CONSEQUENCE: &str = " lost a peer ";

/// The finding that explains the others: a `todo!()` comes before a panic or an error, and an error on a rank comes before the
/// errors of ranks that lost it as a peer.
fn first_finding(outcomes: &[RankOutcome]) -> Option<Finding> {
    let findings = outcomes.iter().enumerate().filter_map(|(rank, outcome)| of_rank(rank, outcome));
    findings.min_by_key(|finding| match finding.verdict {
        Verdict::NotStarted => 0,
        _ if !finding.diagnosis.contains(CONSEQUENCE) => 1,
        _ => 2,
    })
}

fn of_rank(rank: usize, outcome: &RankOutcome) -> Option<Finding> {
    match outcome {
        RankOutcome::Answered(Answer::NotStarted { what }) => {
            Some(Finding::new(Verdict::NotStarted, format!("the answer is still a `todo!()`: {what}")))
        }
        RankOutcome::Answered(Answer::Panicked { message, place }) => {
            let at = place.as_ref().map_or(String::new(), |place| format!(" at {place}"));
            Some(Finding::new(Verdict::Crash, format!("the answer panicked{at}: {message}")).on_rank(rank))
        }
        RankOutcome::Answered(Answer::Failed { error }) => {
            Some(Finding::new(Verdict::Crash, format!("the answer returned an error: {error}")).on_rank(rank))
        }
        RankOutcome::Answered(Answer::Done { .. } | Answer::Misunderstood { .. })
        | RankOutcome::Died(_)
        | RankOutcome::Stopped => None,
    }
}

/// The finding for processes that ranks left running.
fn leak(orphans: &[Orphan]) -> Option<Finding> {
    let name = |orphan: &Orphan| format!("{} (process {})", orphan.name, orphan.pid);
    let names: Vec<String> = orphans.iter().map(name).collect();
    let diagnosis = format!("the answer left processes running: {}; the grader has killed them", names.join(", "));
    (!names.is_empty()).then(|| Finding::new(Verdict::LeakedProcess, diagnosis))
}

/// The signals with which the kernel kills a process that exceeds a limit (signal(7)), and what the process did.
const LIMITS: [(i32, &str); 2] = [(24, "computed for longer"), (25, "wrote or printed more to one file")];

/// The finding for the first rank whose process ended without an answer.
fn first_death(outcomes: &[RankOutcome]) -> Option<Finding> {
    outcomes.iter().enumerate().find_map(|(rank, outcome)| match outcome {
        RankOutcome::Died(exit) => Some(died(exit).on_rank(rank)),
        _ => None,
    })
}

fn died(exit: &Exit) -> Finding {
    let limit = LIMITS.iter().find(|(signal, _)| *exit == Exit::Signal(*signal));
    if let Some((_, what)) = limit {
        return Finding::new(
            Verdict::OutOfBounds,
            format!("the kernel killed the rank with {exit}: it {what} than is allowed"),
        );
    }
    let hint = match exit {
        Exit::Code(_) => "something in the answer ends the process",
        Exit::Signal(_) | Exit::NotStarted(_) => "see below what it printed last",
    };
    Finding::new(
        Verdict::Crash,
        format!("the rank's process ended before the answer was complete, with {exit}: {hint}"),
    )
}

#[cfg(test)]
mod tests {
    use lockstep_process::Exit;
    use serde_json::json;

    use super::*;

    #[test]
    fn shows_short_inputs_as_people_write_them() {
        let inputs = [json!([1, 3]), json!([7, {"VISIBLE": "1,2"}, [0.5, null], ""]), json!("x".repeat(SHOWN + 1))];
        assert_eq!(described(&inputs, 0).unwrap(), "[1, 3]");
        assert_eq!(described(&inputs, 1).unwrap(), "7; VISIBLE 1,2; [0.5, nothing]; \"\"");
        assert_eq!((described(&inputs, 2), described(&inputs, 3)), (None, None));
    }

    #[test]
    fn a_death_has_its_input_unless_it_was_expected() {
        let result = CallResult {
            outcomes: vec![RankOutcome::Answered(Answer::Done { outputs: vec![] }), RankOutcome::Died(Exit::Code(3))],
            finding: None,
            begun: vec![Some(1), Some(0)],
            orphans: vec![],
            printed: vec!["about to end".into()],
        };
        let found = fault(&result, &[json!(5), json!(7)], first_death).unwrap();
        assert_eq!((found.rank, found.input, found.given.as_deref()), (Some(1), Some(0), Some("5")));
        assert_eq!(found.printed, ["about to end"]);
        assert!(fault(&result, &[json!(5), json!(7)], |_| None).is_none());
        assert_eq!(result.died_before_the_answer(), None);
    }

    #[test]
    fn a_death_is_the_cause_of_what_other_ranks_meet() {
        let lost = "barrier on rank 0 lost a peer after 0.03 s: rank 1 has left the group";
        let result = |met: Answer| CallResult {
            outcomes: vec![RankOutcome::Answered(met), RankOutcome::Died(Exit::Code(3))],
            finding: None,
            begun: vec![Some(0), None],
            orphans: vec![],
            printed: vec![],
        };
        let failed = |error: &str| Answer::Failed { error: error.into() };
        let found = |met: Answer| fault(&result(met), &[json!(5)], first_death).unwrap();
        // The answer may give an error other words, or panic.
        for met in [failed(lost), failed("no sum"), Answer::Panicked { message: "no sum".into(), place: None }] {
            assert_eq!(found(met).rank, Some(1));
        }
        assert_eq!(found(Answer::NotStarted { what: "sum".into() }).verdict, Verdict::NotStarted);
        assert_eq!(result(failed(lost)).died_before_the_answer(), Some((1, &Exit::Code(3))));
    }

    #[test]
    fn shows_the_last_lines_of_each_rank_without_escapes() {
        let folder = tempfile::tempdir().unwrap();
        let lines: String = (0..100).map(|line| format!("line {line}\n")).collect();
        std::fs::write(output_file(folder.path(), 0), lines).unwrap();
        std::fs::write(output_file(folder.path(), 1), "\u{1b}[31mred\n\n").unwrap();
        let shown = last_lines(folder.path(), 2);
        assert_eq!(
            (shown.len(), shown[9].as_str(), shown[10].as_str()),
            (11, "[rank 0] line 99", "[rank 1] \\u{1b}[31mred")
        );
    }

    fn failed(error: &str) -> RankOutcome {
        RankOutcome::Answered(Answer::Failed { error: error.into() })
    }

    #[test]
    fn a_machine_that_lets_an_answer_down_is_no_finding() {
        let printed =
            ["[rank 0] /x/ex-02: error while loading shared libraries: libtorch_cpu.so: file too short".to_owned()];
        let died = [RankOutcome::Died(Exit::Code(127))];
        let why = of_machine(&died, &printed).unwrap();
        assert!(why.contains("LD_LIBRARY_PATH") && why.ends_with("libtorch_cpu.so: file too short)"), "{why}");
        assert_eq!(of_machine(&[failed("odd")], &printed), None, "only the last words of a rank that died count");
        let why = of_machine(&[failed("connect process group 0: Resource temporarily unavailable")], &[]).unwrap();
        assert!(why.starts_with("the limit of processes and threads is reached"), "{why}");
        assert_eq!(of_machine(&died, &["[rank 0] bye".to_owned()]), None);
        assert_eq!(of_machine(&[failed("cannot read: Resource temporarily unavailable (os error 11)")], &[]), None);
    }

    #[test]
    fn blames_the_rank_that_failed_before_the_ranks_that_lost_it() {
        let lost =
            || failed("all_reduce(Sum) of [3] Double on rank 0 lost a peer after 0.03 s: rank 2 has left the group");
        let own = || failed("rank 3 is outside a group of 3");
        let blamed = |outcomes: &[RankOutcome]| first_finding(outcomes).unwrap().rank;
        assert_eq!(blamed(&[lost(), lost(), own()]), Some(2));
        assert_eq!(blamed(&[lost(), lost()]), Some(0));
        assert_eq!(blamed(&[own(), own()]), Some(0), "the first of several");
        let unfinished = RankOutcome::Answered(Answer::NotStarted { what: "todo".into() });
        assert_eq!(first_finding(&[own(), unfinished]).unwrap().verdict, Verdict::NotStarted);
    }
}
