//! Task 2: all that the next step reads. Spot the bug.
//!
//! Gradient descent with momentum and a learning rate that falls a little with each step. A run that was stopped and started
//! again must end with the same weights, to the last bit, as a run without a stop. Each start is a new process, which knows only the
//! snapshot, and computes only the steps that are still to do.

use anyhow::Result;
use serde::{Deserialize, Serialize};

const MOMENTUM: f64 = 0.9;
const DECAY: f64 = 0.95;

/// The snapshot, which is stored as JSON.
// <answer>
//~ #[derive(Serialize, Deserialize)]
//~ struct Snapshot {
//~     step: u64,
//~     weights: Vec<f64>,
//~ }
#[derive(Serialize, Deserialize)]
struct Snapshot {
    step: u64,
    weights: Vec<f64>,
    velocity: Vec<f64>,
    rate: f64,
}
// </answer>

/// Trains up to step `until`, from the snapshot if there is one, and returns the weights and a snapshot to continue from.
/// `gradient` is a function of the step, which selects the samples, and of the weights.
pub fn state(
    gradient: &dyn Fn(u64, &[f64]) -> Vec<f64>,
    initial: Vec<f64>,
    snapshot: Option<&str>,
    until: u64,
) -> Result<(Vec<f64>, String)> {
    // <answer>
    //~ let start = Snapshot { step: 0, weights: initial };
    //~ let Snapshot { step, mut weights } = snapshot.map_or(Ok(start), serde_json::from_str)?;
    //~ let (mut velocity, mut rate) = (vec![0.0; weights.len()], 0.1);
    let start = Snapshot { step: 0, velocity: vec![0.0; initial.len()], rate: 0.1, weights: initial };
    let Snapshot { step, mut weights, mut velocity, mut rate } = snapshot.map_or(Ok(start), serde_json::from_str)?;
    // </answer>
    for step in step..until {
        let slope = gradient(step, &weights);
        for ((weight, velocity), slope) in weights.iter_mut().zip(&mut velocity).zip(slope) {
            *velocity = MOMENTUM * *velocity + slope;
            *weight -= rate * *velocity;
        }
        rate *= DECAY;
    }
    // <answer>
    //~ let snapshot = Snapshot { step: until, weights: weights.clone() };
    let snapshot = Snapshot { step: until, weights: weights.clone(), velocity, rate };
    // </answer>
    Ok((weights, serde_json::to_string(&snapshot)?))
}
