//! Task 2: fill the pipeline.
//!
//! A pipeline's schedule is a table: what each stage does, in order. GPipe does all forward passes and then all backward passes, and so
//! holds the activations of all micro-batches at once. 1F1B takes no longer and holds fewer: stage s of p begins with the forward passes
//! that the stages after it need to have work, then does one forward and one backward pass in turn.

use anyhow::Result;
use lockstep::parallel::Action;

/// Returns what each stage does, and the bubble: the share of the stages' time in which they wait. All passes take the same time on all
/// stages. Stage s holds the activations of at most p − s micro-batches at once, and no other table ends earlier. There may be fewer
/// micro-batches than stages.
pub fn fill_pipeline(stages: usize, micro_batches: usize) -> Result<(Vec<Vec<Action>>, f64)> {
    // This is GPipe, which holds more than p − s.
    let actions = (0..micro_batches).map(Action::Forward).chain((0..micro_batches).rev().map(Action::Backward));
    let table = vec![actions.collect::<Vec<_>>(); stages];
    todo!("return {table:?}, and the share of the time in which a stage waits")
}
