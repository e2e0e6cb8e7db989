//! Task 5: how fast is it?
//!
//! The times come from runs on 2 to 4 ranks, measured in every step of every rank. All ranks take a step together: the next one begins when
//! the slowest has ended this one. The first step allocates memory and connects the ranks, so it does not count.

use serde::{Deserialize, Serialize};

/// The sizes of a GPT.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Sizes {
    /// Parameters, each of which multiplies each token once in the forward pass.
    pub parameters: u64,
    pub layers: u64,
    /// Numbers for each token between two layers.
    pub width: u64,
    /// Tokens of a sequence, which is what attention sees.
    pub context: u64,
}

/// What a rank has measured in one step. The three times follow each other.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct StepTimes {
    /// The tokens that this rank has trained with.
    pub tokens: u64,
    /// Seconds in which it waited for its loader.
    pub data: f64,
    /// Seconds of forward pass, backward pass and optimizer.
    pub compute: f64,
    /// Seconds in which it waited for other ranks, or for the network.
    pub exchange: f64,
}

/// How fast a training is.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Speed {
    /// Tokens of all ranks in a second.
    pub tokens: f64,
    /// Model FLOPs utilization: the floating-point operations that the model needs in a second, as a part of the peak of all ranks.
    pub utilization: f64,
    /// The part of the time in which a rank waits: for its data, in the exchange, and after it until the slowest rank has ended the step. The
    /// mean of all ranks.
    pub waiting: f64,
}

/// Computes how fast a training is, without its first step. `ranks` has a list of steps for each rank, and `peak` is the number of
/// floating-point operations that one rank can do in a second at best.
///
/// A token takes 6 operations for each parameter, a multiplication and an addition in the forward pass and twice as many in the backward pass, and
/// 12 · layers · width · context for attention, as if no token were masked.
pub fn speed(sizes: &Sizes, peak: f64, ranks: &[Vec<StepTimes>]) -> Speed {
    // The first guess of many: the rate of the first rank.
    let steps = &ranks[0];
    let tokens: u64 = steps.iter().map(|step| step.tokens).sum();
    let seconds: f64 = steps.iter().map(|step| step.data + step.compute + step.exchange).sum();
    let operations = 6.0 * sizes.parameters as f64;
    let tokens = tokens as f64 / seconds;
    Speed { tokens, utilization: tokens * operations / peak, waiting: 0.0 }
}
