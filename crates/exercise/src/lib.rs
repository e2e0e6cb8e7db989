//! The runtime of an exercise's program: it runs the task that the grader requests on one rank and reports the outcome.
//!
//! An exercise's `main` lists its tasks. [`main`] reads which one the grader requests, calls the learner's function with each
//! input, and leaves the results for the grader. A panic, a `todo!()` and an error are outcomes, too. This crate does not know
//! which results are right.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use c10d::ProcessGroup;
use lockstep::{LaunchEnv, init_process_group};
use lockstep_contract::error_file::panic_text;
use lockstep_contract::exercise::{ANSWERS, Answer, Answers, CALL, Call};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tch::{Device, Tensor};

/// The beginning of `todo!()`'s message.
const TODO: &str = "not yet implemented";
/// The interval at which a finished rank checks whether it may end.
const POLL: Duration = Duration::from_millis(5);

/// A function from inputs to results.
type Run = dyn Fn(Vec<Value>) -> Result<Vec<Value>, Failure>;

/// A learner's function, together with the conversion of its inputs and results.
pub struct Task {
    name: String,
    run: Box<Run>,
}

/// Why a task has no results.
enum Failure {
    /// The course's grading function and its program do not fit together.
    Course(String),
    /// The learner's function returned an error.
    Answer(anyhow::Error),
}

impl Task {
    /// A task whose function needs no process group.
    pub fn new<I, O>(name: &str, answer: impl Fn(I) -> anyhow::Result<O> + 'static) -> Self
    where
        I: DeserializeOwned,
        O: Serialize,
    {
        let run = move |inputs| parse(inputs)?.into_iter().map(|input| written(answer(input))).collect();
        Task { name: name.into(), run: Box::new(run) }
    }

    /// A task whose function needs a process group. All ranks join it once, before the first input.
    pub fn in_group<I, O>(name: &str, answer: impl Fn(&ProcessGroup, I) -> anyhow::Result<O> + 'static) -> Self
    where
        I: DeserializeOwned,
        O: Serialize,
    {
        let run = move |inputs| {
            let inputs = parse(inputs)?;
            let env = LaunchEnv::from_env().map_err(|error| Failure::Course(error.to_string()))?;
            let joined = init_process_group(&env, Device::Cpu, &Default::default());
            // The group lives until the process ends: other ranks may still wait for this one, and must not lose it as a peer.
            let group = Box::leak(Box::new(joined.map_err(|error| Failure::Course(text(&error.into())))?));
            inputs.into_iter().map(|input| written(answer(group, input))).collect()
        };
        Task { name: name.into(), run: Box::new(run) }
    }

    /// Renames the task to `TASK/NAME`, for one of several answers to it.
    #[must_use]
    pub fn variant(self, name: &str) -> Self {
        Task { name: format!("{}/{name}", self.name), ..self }
    }
}

/// Numbers as a tensor of shape `[n]` (`Double`).
pub fn tensor(numbers: &[f64]) -> Tensor {
    Tensor::from_slice(numbers)
}

/// The numbers of a tensor of any shape, row by row.
///
/// # Errors
/// When the tensor does not contain numbers.
pub fn numbers(tensor: &Tensor) -> anyhow::Result<Vec<f64>> {
    let flat = tensor.flatten(0, -1).to_kind(tch::Kind::Double);
    Vec::try_from(&flat).context("the answer is not a tensor of numbers")
}

/// Runs the task that the grader requests.
pub fn main(tasks: impl IntoIterator<Item = Task>) -> ExitCode {
    let Some((call, answers)) = requested() else {
        eprintln!("error: only the grader can start this program: run `cargo test -p {}`", program());
        return ExitCode::from(2);
    };
    let rank = std::env::var("RANK").ok().and_then(|rank| rank.parse().ok()).unwrap_or(0);
    tch::set_num_threads(1);
    let answer = match Call::read(&call) {
        Ok(call) => answer(tasks, call),
        Err(error) => Answer::Misunderstood { why: format!("cannot read {}: {error}", call.display()) },
    };
    if let Err(error) = answers.leave(rank, &answer) {
        eprintln!("error: cannot leave the answer in {}: {error}", answers.0.display());
        return ExitCode::FAILURE;
    }
    while !answers.dismissed() {
        std::thread::sleep(POLL);
    }
    ExitCode::SUCCESS
}

fn requested() -> Option<(PathBuf, Answers)> {
    Some((std::env::var_os(CALL)?.into(), Answers(std::env::var_os(ANSWERS)?.into())))
}

/// The name of this program, which is also the name of its package.
fn program() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

thread_local! {
    /// The source location of the last panic of this thread.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

fn answer(tasks: impl IntoIterator<Item = Task>, call: Call) -> Answer {
    let Some(task) = tasks.into_iter().find(|task| task.name == call.task) else {
        return Answer::Misunderstood { why: format!("there is no task {}", call.task) };
    };
    record_panics();
    match catch_unwind(AssertUnwindSafe(|| (task.run)(call.inputs))) {
        Ok(Ok(outputs)) => Answer::Done { outputs },
        Ok(Err(Failure::Answer(error))) => Answer::Failed { error: text(&error) },
        Ok(Err(Failure::Course(why))) => Answer::Misunderstood { why },
        Err(panic) => panicked(&*panic),
    }
}

/// Records where this thread panics. Panics of other threads are printed as usual.
fn record_panics() {
    let (this, print) = (std::thread::current().id(), take_hook());
    set_hook(Box::new(move |info| {
        if std::thread::current().id() == this {
            PLACE.set(info.location().map(ToString::to_string));
        } else {
            print(info);
        }
    }));
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Answer {
    let text = panic_text(panic).unwrap_or("no message");
    match text.strip_prefix(TODO) {
        Some(what) => Answer::NotStarted { what: what.trim_start_matches(": ").into() },
        None => Answer::Panicked { message: text.into(), place: PLACE.take() },
    }
}

fn parse<I: DeserializeOwned>(inputs: Vec<Value>) -> Result<Vec<I>, Failure> {
    let inputs: Result<_, _> = inputs.into_iter().map(serde_json::from_value).collect();
    inputs.map_err(|error| Failure::Course(format!("an input is not of the task's type: {error}")))
}

fn written<O: Serialize>(output: anyhow::Result<O>) -> Result<Value, Failure> {
    let output = output.map_err(Failure::Answer)?;
    serde_json::to_value(output).map_err(|error| Failure::Course(format!("a result cannot be written: {error}")))
}

fn text(error: &anyhow::Error) -> String {
    format!("{error:#}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(answer: impl Fn(i64) -> anyhow::Result<i64> + 'static, inputs: &[Value]) -> Answer {
        super::answer([Task::new("double", answer)], Call { task: "double".into(), inputs: inputs.to_vec() })
    }

    #[test]
    fn applies_the_function_to_each_input() {
        assert_eq!(run(|n| Ok(2 * n), &[1.into(), 2.into()]), Answer::Done { outputs: vec![2.into(), 4.into()] });
    }

    #[test]
    #[allow(clippy::todo)] // the learner's files contain it
    fn distinguishes_todo_panic_and_error() {
        let unfinished = run(|_| todo!("double it"), &[1.into()]);
        assert_eq!(unfinished, Answer::NotStarted { what: "double it".into() });
        let broken = run(|n| Ok([1][n as usize]), &[1.into()]);
        assert!(
            matches!(&broken, Answer::Panicked { message, place: Some(place) }
            if message.contains("out of bounds") && place.contains("lib.rs")),
            "{broken:?}"
        );
        assert_eq!(run(|_| anyhow::bail!("no"), &[1.into()]), Answer::Failed { error: "no".into() });
    }

    #[test]
    fn rejects_inputs_of_another_type_and_unknown_tasks() {
        assert!(matches!(run(Ok, &["one".into()]), Answer::Misunderstood { .. }));
        let other = Call { task: "triple".into(), inputs: Vec::new() };
        let answer = super::answer([Task::new("double", Ok::<i64, _>).variant("wrong")], other);
        assert_eq!(answer, Answer::Misunderstood { why: "there is no task triple".into() });
    }
}
