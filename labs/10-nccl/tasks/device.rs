//! The simulated device that answers are graded on.

use std::path::PathBuf;

use lockstep_grading::{CallOptions, Finding, Outputs, Runner};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Calls the answer on this many ranks. A finding does not say where in a group of c10d the ranks were: they have none.
pub(crate) fn call<I: Serialize, O: DeserializeOwned>(
    runner: &mut Runner,
    ranks: usize,
    inputs: &[I],
) -> anyhow::Result<Outputs<O>> {
    call_in(None, runner, ranks, inputs)
}

/// The same with this working directory.
pub(crate) fn call_in<I: Serialize, O: DeserializeOwned>(
    folder: Option<PathBuf>,
    runner: &mut Runner,
    ranks: usize,
    inputs: &[I],
) -> anyhow::Result<Outputs<O>> {
    let options = CallOptions { folder, ..simulated(ranks) };
    runner.call_with(&options, inputs).map_err(|error| match error.downcast::<Finding>() {
        Ok(finding) => Finding { table: Vec::new(), ..finding }.into(),
        Err(error) => error,
    })
}

/// A call on this many ranks, each with its own device. Streams start what is asked for, so that each run gives the same result.
fn simulated(ranks: usize) -> CallOptions {
    let variables = [
        ("LOCKSTEP_GPU", "simulated"),
        ("LOCKSTEP_GPU_COUNT", "4"),
        ("LOCKSTEP_GPU_SEED", ""),
        ("CUDA_VISIBLE_DEVICES", "0,1,2,3"),
    ];
    let env = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    CallOptions { ranks, env, folder: None }
}
