//! Answers to `state`: wrong ones, and unusual right ones.

use anyhow::Result;
use serde::{Deserialize, Serialize};

const MOMENTUM: f64 = 0.9;
const DECAY: f64 = 0.95;

#[derive(Serialize, Deserialize)]
struct Weights {
    step: u64,
    weights: Vec<f64>,
}

#[derive(Serialize, Deserialize)]
struct WithVelocity {
    step: u64,
    weights: Vec<f64>,
    velocity: Vec<f64>,
}

#[derive(Serialize, Deserialize)]
struct WithRate {
    step: u64,
    weights: Vec<f64>,
    rate: f64,
}

/// The given program: saves only the weights, as `torch.save(model.state_dict())` does.
pub fn weights(
    gradient: &dyn Fn(u64, &[f64]) -> Vec<f64>,
    initial: Vec<f64>,
    snapshot: Option<&str>,
    until: u64,
) -> Result<(Vec<f64>, String)> {
    let start = Weights { step: 0, weights: initial };
    let Weights { step, mut weights } = snapshot.map_or(Ok(start), serde_json::from_str)?;
    let (mut velocity, mut rate) = (vec![0.0; weights.len()], 0.1);
    for step in step..until {
        let slope = gradient(step, &weights);
        for ((weight, velocity), slope) in weights.iter_mut().zip(&mut velocity).zip(slope) {
            *velocity = MOMENTUM * *velocity + slope;
            *weight -= rate * *velocity;
        }
        rate *= DECAY;
    }
    let snapshot = Weights { step: until, weights: weights.clone() };
    Ok((weights, serde_json::to_string(&snapshot)?))
}

/// Saves the velocity but not the learning rate.
pub fn rate_forgotten(
    gradient: &dyn Fn(u64, &[f64]) -> Vec<f64>,
    initial: Vec<f64>,
    snapshot: Option<&str>,
    until: u64,
) -> Result<(Vec<f64>, String)> {
    let start = WithVelocity { step: 0, velocity: vec![0.0; initial.len()], weights: initial };
    let WithVelocity { step, mut weights, mut velocity } = snapshot.map_or(Ok(start), serde_json::from_str)?;
    let mut rate = 0.1;
    for step in step..until {
        let slope = gradient(step, &weights);
        for ((weight, velocity), slope) in weights.iter_mut().zip(&mut velocity).zip(slope) {
            *velocity = MOMENTUM * *velocity + slope;
            *weight -= rate * *velocity;
        }
        rate *= DECAY;
    }
    let snapshot = WithVelocity { step: until, weights: weights.clone(), velocity };
    Ok((weights, serde_json::to_string(&snapshot)?))
}

/// Saves the learning rate but not the velocity.
pub fn velocity_forgotten(
    gradient: &dyn Fn(u64, &[f64]) -> Vec<f64>,
    initial: Vec<f64>,
    snapshot: Option<&str>,
    until: u64,
) -> Result<(Vec<f64>, String)> {
    let start = WithRate { step: 0, weights: initial, rate: 0.1 };
    let WithRate { step, mut weights, mut rate } = snapshot.map_or(Ok(start), serde_json::from_str)?;
    let mut velocity = vec![0.0; weights.len()];
    for step in step..until {
        let slope = gradient(step, &weights);
        for ((weight, velocity), slope) in weights.iter_mut().zip(&mut velocity).zip(slope) {
            *velocity = MOMENTUM * *velocity + slope;
            *weight -= rate * *velocity;
        }
        rate *= DECAY;
    }
    let snapshot = WithRate { step: until, weights: weights.clone(), rate };
    Ok((weights, serde_json::to_string(&snapshot)?))
}

/// Writes the snapshot but never reads it, so all steps are repeated.
pub fn from_the_beginning(
    gradient: &dyn Fn(u64, &[f64]) -> Vec<f64>,
    initial: Vec<f64>,
    _: Option<&str>,
    until: u64,
) -> Result<(Vec<f64>, String)> {
    let start = Weights { step: 0, weights: initial };
    let Weights { step, mut weights } = start;
    let (mut velocity, mut rate) = (vec![0.0; weights.len()], 0.1);
    for step in step..until {
        let slope = gradient(step, &weights);
        for ((weight, velocity), slope) in weights.iter_mut().zip(&mut velocity).zip(slope) {
            *velocity = MOMENTUM * *velocity + slope;
            *weight -= rate * *velocity;
        }
        rate *= DECAY;
    }
    let snapshot = Weights { step: until, weights: weights.clone() };
    Ok((weights, serde_json::to_string(&snapshot)?))
}

/// Right: computes the learning rate from the step instead of saving it.
pub fn computes_the_rate(
    gradient: &dyn Fn(u64, &[f64]) -> Vec<f64>,
    initial: Vec<f64>,
    snapshot: Option<&str>,
    until: u64,
) -> Result<(Vec<f64>, String)> {
    let start = WithVelocity { step: 0, velocity: vec![0.0; initial.len()], weights: initial };
    let WithVelocity { step, mut weights, mut velocity } = snapshot.map_or(Ok(start), serde_json::from_str)?;
    for step in step..until {
        let rate = 0.1 * DECAY.powi(step as i32);
        let slope = gradient(step, &weights);
        for ((weight, velocity), slope) in weights.iter_mut().zip(&mut velocity).zip(slope) {
            *velocity = MOMENTUM * *velocity + slope;
            *weight -= rate * *velocity;
        }
    }
    let snapshot = WithVelocity { step: until, weights: weights.clone(), velocity };
    Ok((weights, serde_json::to_string(&snapshot)?))
}

/// Saves the rate of the last step, before it falls for the next.
pub fn rate_behind(
    gradient: &dyn Fn(u64, &[f64]) -> Vec<f64>,
    initial: Vec<f64>,
    snapshot: Option<&str>,
    until: u64,
) -> Result<(Vec<f64>, String)> {
    #[derive(Serialize, Deserialize)]
    struct Snapshot {
        step: u64,
        weights: Vec<f64>,
        velocity: Vec<f64>,
        rate: f64,
    }

    let start = Snapshot { step: 0, velocity: vec![0.0; initial.len()], weights: initial, rate: 0.1 };
    let Snapshot { step, mut weights, mut velocity, mut rate } = snapshot.map_or(Ok(start), serde_json::from_str)?;
    for step in step..until {
        let slope = gradient(step, &weights);
        for ((weight, velocity), slope) in weights.iter_mut().zip(&mut velocity).zip(slope) {
            *velocity = MOMENTUM * *velocity + slope;
            *weight -= rate * *velocity;
        }
        if step + 1 < until {
            rate *= DECAY;
        }
    }
    let snapshot = Snapshot { step: until, weights: weights.clone(), velocity, rate };
    Ok((weights, serde_json::to_string(&snapshot)?))
}

/// Saves the velocity in single precision.
pub fn single_precision(
    gradient: &dyn Fn(u64, &[f64]) -> Vec<f64>,
    initial: Vec<f64>,
    snapshot: Option<&str>,
    until: u64,
) -> Result<(Vec<f64>, String)> {
    #[derive(Serialize, Deserialize)]
    struct Snapshot {
        step: u64,
        weights: Vec<f64>,
        velocity: Vec<f32>,
    }

    let start = Snapshot { step: 0, velocity: vec![0.0; initial.len()], weights: initial };
    let Snapshot { step, mut weights, velocity } = snapshot.map_or(Ok(start), serde_json::from_str)?;
    let mut velocity: Vec<f64> = velocity.into_iter().map(f64::from).collect();
    let mut rate = (0..step).fold(0.1, |rate, _| rate * DECAY);
    for step in step..until {
        let slope = gradient(step, &weights);
        for ((weight, velocity), slope) in weights.iter_mut().zip(&mut velocity).zip(slope) {
            *velocity = MOMENTUM * *velocity + slope;
            *weight -= rate * *velocity;
        }
        rate *= DECAY;
    }
    let velocity = velocity.into_iter().map(|velocity| velocity as f32).collect();
    let snapshot = Snapshot { step: until, weights: weights.clone(), velocity };
    Ok((weights, serde_json::to_string(&snapshot)?))
}
