//! A learner's function as a task.

use anyhow::Context;
use c10d::ProcessGroup;
use lockstep::{LaunchEnv, init_process_group};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tch::{Device, Tensor};

/// A function from inputs to results.
pub(crate) type Run = dyn Fn(Vec<Value>, Begin<'_>) -> Result<Vec<Value>, Failure>;

/// Is called with the number of an input before the answer is.
pub(crate) type Begin<'a> = &'a dyn Fn(usize);

/// A learner's function, together with the conversion of its inputs and results.
pub struct Task {
    pub(crate) name: String,
    pub(crate) run: Box<Run>,
}

/// Why a task has no results.
pub(crate) enum Failure {
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
        let run = move |inputs, begin: Begin<'_>| each(parse(inputs)?, begin, &answer);
        Task { name: name.into(), run: Box::new(run) }
    }

    /// A task whose function needs a process group. All ranks join it once, before the first input.
    pub fn in_group<I, O>(name: &str, answer: impl Fn(&ProcessGroup, I) -> anyhow::Result<O> + 'static) -> Self
    where
        I: DeserializeOwned,
        O: Serialize,
    {
        let run = move |inputs, begin: Begin<'_>| {
            let inputs = parse(inputs)?;
            let env = LaunchEnv::from_env().map_err(|error| Failure::Course(error.to_string()))?;
            let joined = init_process_group(&env, Device::Cpu, &Default::default());
            // The group lives until the process ends: other ranks may still wait for this one, and must not lose it as a peer.
            let group = Box::leak(Box::new(joined.map_err(|error| Failure::Course(text(&error.into())))?));
            each(inputs, begin, |input| answer(group, input))
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

/// The results of the answer for all inputs, up to its first error.
fn each<I, O: Serialize>(
    inputs: Vec<I>,
    begin: Begin<'_>,
    answer: impl Fn(I) -> anyhow::Result<O>,
) -> Result<Vec<Value>, Failure> {
    let one = |(number, input)| {
        begin(number);
        written(answer(input))
    };
    inputs.into_iter().enumerate().map(one).collect()
}

fn parse<I: DeserializeOwned>(inputs: Vec<Value>) -> Result<Vec<I>, Failure> {
    let inputs: Result<_, _> = inputs.into_iter().map(serde_json::from_value).collect();
    inputs.map_err(|error| Failure::Course(format!("an input is not of the task's type: {error}")))
}

fn written<O: Serialize>(output: anyhow::Result<O>) -> Result<Value, Failure> {
    let output = output.map_err(Failure::Answer)?;
    serde_json::to_value(output).map_err(|error| Failure::Course(format!("a result cannot be written: {error}")))
}

pub(crate) fn text(error: &anyhow::Error) -> String {
    format!("{error:#}")
}
