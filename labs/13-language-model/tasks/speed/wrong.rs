//! Answers to `speed`: wrong ones, and unusual right ones.

use lockstep_answers::{edit, given};

use crate::speed::{Sizes, Speed, StepTimes};

/// The given program: one rank, with its first step, without attention.
#[given]
pub fn first_rank() {}

/// Counts the first step.
#[edit(rank[1..] => rank[..])]
pub fn warm_up() {}

/// Counts the tokens of one rank only.
#[edit(ranks.iter().flatten().map(|step| step.tokens) => ranks[0].iter().map(|step| step.tokens))]
pub fn own_tokens() {}

/// Adds up the seconds of all ranks, as if they worked one after the other.
#[edit((0..ranks[0].len()).map(slowest).sum() => ranks.iter().flatten().map(took).sum())]
pub fn one_after_the_other() {}

/// Takes one rank's times, although another one may be slower.
#[edit((0..ranks[0].len()).map(slowest).sum() => ranks[0].iter().map(took).sum())]
pub fn own_seconds() {}

/// Takes the rank that is slowest over all steps, not in each of them.
#[edit((0..ranks[0].len()).map(slowest).sum() => ranks.iter().map(|steps| steps.iter().map(took).sum()).fold(0.0, f64::max))]
pub fn slowest_of_all() {}

/// Averages the rates of the steps.
#[edit(let tokens = all as f64 / seconds =>
    let all = |number: usize| ranks.iter().map(|steps| steps[number].tokens).sum::<u64>() as f64;
    let rates = (0..ranks[0].len()).map(|number| all(number) / slowest(number));
    let tokens = rates.sum::<f64>() / ranks[0].len() as f64
)]
pub fn mean_of_rates() {}

/// Counts the forward pass only.
#[edit((6 * sizes.parameters + attention) as f64 => (6 * sizes.parameters + attention) as f64 / 3.0)]
pub fn forward_only() {}

/// Leaves out attention.
#[edit(6 * sizes.parameters + attention => 6 * sizes.parameters)]
pub fn no_attention() {}

/// Counts attention as if the context were twice the width, as in many small models.
#[edit(sizes.context => 2 * sizes.width)]
pub fn width_twice() {}

/// Compares all ranks with the peak of one.
#[edit(ranks.len() as f64 * peak => peak)]
pub fn one_peak() {}

/// Divides by the seconds of computing, so that waiting does not count.
#[edit(let tokens = all as f64 / seconds =>
    let slowest = |number: usize| ranks.iter().map(|steps| steps[number].compute).fold(0.0, f64::max);
    let tokens = all as f64 / (0..ranks[0].len()).map(slowest).sum::<f64>()
)]
pub fn computing_only() {}

/// Does not count the wait for data as waiting.
#[edit(1.0 - computing / (ranks.len() as f64 * seconds) =>
    ranks.iter().flatten().map(|step| step.exchange).sum::<f64>() / ranks.iter().flatten().map(took).sum::<f64>()
)]
pub fn exchange_only() {}

/// Forgets that a rank waits for the others after its own step.
#[edit(1.0 - computing => ranks.iter().flatten().map(|step| step.data + step.exchange).sum::<f64>())]
pub fn own_waiting() {}

/// Adds up the waiting of all ranks.
#[edit(1.0 - computing / (ranks.len() as f64 * seconds) => ranks.len() as f64 - computing / seconds)]
pub fn waiting_of_all() {}

/// Right: counts the passes and the layers one by one.
#[edit((6 * sizes.parameters + attention) as f64 =>
    3.0 * (2 * sizes.parameters + (0..sizes.layers).map(|_| 4 * sizes.width * sizes.context).sum::<u64>()) as f64
)]
pub fn by_passes() {}

/// Right: adds up each rank's waiting, step by step.
#[edit(1.0 - computing => (0..ranks[0].len()).map(|number| {
    ranks.iter().map(|steps| slowest(number) - steps[number].compute).sum::<f64>()
}).sum::<f64>())]
pub fn step_by_step() {}
