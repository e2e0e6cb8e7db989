//! Only the weights are saved, as `torch.save(model.state_dict())` does. As it is given.

use anyhow::Result;
use serde::{Deserialize, Serialize};

const MOMENTUM: f64 = 0.9;
const DECAY: f64 = 0.95;

#[derive(Serialize, Deserialize)]
struct Snapshot {
    step: u64,
    weights: Vec<f64>,
}

pub fn state(
    gradient: &dyn Fn(u64, &[f64]) -> Vec<f64>,
    initial: Vec<f64>,
    snapshot: Option<&str>,
    until: u64,
) -> Result<(Vec<f64>, String)> {
    let start = Snapshot { step: 0, weights: initial };
    let Snapshot { step, mut weights } = snapshot.map_or(Ok(start), serde_json::from_str)?;
    let (mut velocity, mut rate) = (vec![0.0; weights.len()], 0.1);
    for step in step..until {
        let slope = gradient(step, &weights);
        for ((weight, velocity), slope) in weights.iter_mut().zip(&mut velocity).zip(slope) {
            *velocity = MOMENTUM * *velocity + slope;
            *weight -= rate * *velocity;
        }
        rate *= DECAY;
    }
    let snapshot = Snapshot { step: until, weights: weights.clone() };
    Ok((weights, serde_json::to_string(&snapshot)?))
}
