//! Right: what can be computed from the position need not be saved.

use anyhow::Result;
use serde::{Deserialize, Serialize};

const MOMENTUM: f64 = 0.9;
const DECAY: f64 = 0.95;

#[derive(Serialize, Deserialize)]
struct Snapshot {
    step: u64,
    weights: Vec<f64>,
    velocity: Vec<f64>,
}

pub fn state(
    gradient: &dyn Fn(u64, &[f64]) -> Vec<f64>,
    initial: Vec<f64>,
    snapshot: Option<&str>,
    until: u64,
) -> Result<(Vec<f64>, String)> {
    let start = Snapshot { step: 0, velocity: vec![0.0; initial.len()], weights: initial };
    let Snapshot { step, mut weights, mut velocity } = snapshot.map_or(Ok(start), serde_json::from_str)?;
    for step in step..until {
        let rate = 0.1 * DECAY.powi(step as i32);
        let slope = gradient(step, &weights);
        for ((weight, velocity), slope) in weights.iter_mut().zip(&mut velocity).zip(slope) {
            *velocity = MOMENTUM * *velocity + slope;
            *weight -= rate * *velocity;
        }
    }
    let snapshot = Snapshot { step: until, weights: weights.clone(), velocity };
    Ok((weights, serde_json::to_string(&snapshot)?))
}
