//! The simulated device that answers are graded on.

use lockstep_grading::CallOptions;

/// So many ranks, each with a device of its own. Streams start what is asked for, so that each run gives the same result.
pub(crate) fn simulated(ranks: usize) -> CallOptions {
    let variables = [
        ("LOCKSTEP_GPU", "simulated"),
        ("LOCKSTEP_GPU_COUNT", "4"),
        ("LOCKSTEP_GPU_SEED", ""),
        ("CUDA_VISIBLE_DEVICES", "0,1,2,3"),
    ];
    let env = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    CallOptions { ranks, env, folder: None }
}
