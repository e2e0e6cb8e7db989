//! Runs a learner's program on several ranks and collects the results.
//!
//! Every rank is a separate process in a private folder. The store runs in the grader, on a free port. So a crash or a hang of the
//! answer cannot affect the grader. All processes that the ranks start are killed at the end.

mod call;
mod hang;
mod limits;
mod outcome;
mod together;

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use lockstep_contract::foreign;
use lockstep_process::{Template, Workers, check_room};
use lockstep_rank_messages::exercise::{Answer, Call};
use rand_mt::Mt64;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tempfile::TempDir;

use crate::{Finding, Program, Verdict};
use call::{CallResult, RunningCall};
use outcome::{first_death, first_finding, leak, misunderstood, of_machine};

pub use call::CallOptions;
pub(crate) use hang::COMPUTES;
pub use hang::{BESIDE, IN_NO_CALL, JOINS, SEPARATOR};
pub(crate) use limits::exec as confined;
pub use limits::{Bounds, CONFINED, writes_are_confined};
pub use outcome::RankOutcome;
use together::Shared;
pub use together::at_seeds;

/// Longer inputs are not shown, in bytes.
const SHOWN: usize = 200;

/// The grader's own processes and threads: a reaper, a program to copy, the store.
const OWN_TASKS: usize = 4;
/// A rank's: its main thread, Gloo's loop, and the thread that answers desync reports.
const RANK_TASKS: usize = 4;

/// Runs a learner's answer to one task.
pub struct Runner {
    program: Program,
    /// The name of the task, or `TASK/NAME` for one of the course's answers.
    task: String,
    options: Options,
    /// Ranks record their calls, for a replay.
    records: bool,
    /// What the source of the answer shows, apart from results.
    notes: Vec<String>,
    /// None before the first call.
    started: Option<Started>,
    /// Who runs the calls in its place.
    shared: Option<Shared>,
}

/// What all calls of a runner share.
struct Started {
    workers: Workers,
    /// The program, which has loaded libtorch; None if it does not wait for requests. Then each rank is started separately.
    template: Option<Template>,
    /// The folder of all calls, where copies of a confined program may write.
    home: Option<TempDir>,
}

/// The results of all ranks.
#[derive(Clone, Debug)]
pub struct Outputs<O>(Vec<Vec<O>>);

impl Runner {
    /// A runner for the tasks of the learner's `program`.
    pub fn new(program: &Program, options: &Options) -> Self {
        Runner {
            program: program.clone(),
            task: String::new(),
            options: *options,
            records: false,
            notes: Vec::new(),
            started: None,
            shared: None,
        }
    }

    /// Directs the next calls to this task.
    pub(crate) fn turn_to(&mut self, task: &str, options: &Options) {
        self.task = task.into();
        self.notes.clear();
        self.options = *options;
    }

    /// Lets ranks record their calls from now on. After a hang, or where calls differ, the recording is kept for the learner.
    pub(crate) fn record_calls(&mut self) {
        self.records = true;
    }

    /// A finding in the words of the answer's language, with what its source shows.
    pub(crate) fn in_words(&self, finding: Finding) -> Finding {
        let finding = self.program.language.finding(finding);
        if self.notes.is_empty() || finding.verdict == Verdict::NotStarted {
            return finding;
        }
        Finding { diagnosis: format!("{}\n{}", self.notes.join("\n"), finding.diagnosis), ..finding }
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
    ///
    /// Errors: a [`Finding`] if a rank did not finish; failures of the machine or the course.
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
        let result = match &self.shared {
            Some(shared) => shared.run(options, &request, &self.options)?,
            None => self.run(options, &request)?,
        };
        self.notes.clone_from(&result.notes);
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
        let ranks = options.ranks.max(1);
        check_room(OWN_TASKS + RANK_TASKS * ranks)?;
        let started = match &mut self.started {
            Some(started) => started,
            none => none.insert(Started::new(&self.program, self.options.confined).context("cannot start processes")?),
        };
        let folder = started.folder().context("cannot make a folder")?;
        started.workers.register_cleanup(folder.path());
        let call = RunningCall::new(&self.program, (self.options.confined, self.records), &folder, options, request)?;
        let pids = (0..ranks).map(|rank| started.start(rank, &call)).collect::<Result<Vec<_>, _>>();
        let workers = &mut started.workers;
        let result = pids.map_err(Into::into).and_then(|pids| call.watch(workers, &pids, &self.options));
        if result.is_err() {
            workers.kill();
        }
        workers.unregister_cleanup(folder.path());
        result.with_context(|| format!("cannot run {}", foreign::path(&self.program.path)))
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
    fn new(program: &Program, confined: bool) -> io::Result<Self> {
        // Copies of a confined program write where it may, and it has run nothing of a learner's. Compiled answers are in their program: each
        // rank of these is confined at its start, to the folder of its call.
        let home = (confined && program.given.is_some()).then(new_folder).transpose()?;
        let makes_copies = !confined || home.is_some();
        let template = makes_copies.then(|| call::template(program, home.as_ref().map(TempDir::path)).ok()).flatten();
        Ok(Started { workers: Workers::new()?, template, home })
    }

    /// A new folder for a call.
    fn folder(&self) -> io::Result<TempDir> {
        self.home.as_ref().map_or_else(new_folder, |home| named().tempdir_in(home.path()))
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

fn named() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("lockstep-grade-");
    builder
}

fn new_folder() -> io::Result<TempDir> {
    named().tempdir_in(lockstep_paths::temporary_folder())
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
    Some(Finding { input, given, printed: result.printed.clone(), recording: result.recording.clone(), ..finding })
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
            ..CallResult::default()
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
            ..CallResult::default()
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
}
