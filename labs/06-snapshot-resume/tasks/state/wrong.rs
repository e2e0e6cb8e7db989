//! Answers to `state`: wrong ones, and unusual right ones.

use std::sync::Mutex;

use anyhow::Result;
use lockstep_answers::{edit, given};
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
#[given]
#[edit(let start => type Snapshot = Weights; let start)]
pub fn weights() {}

/// Saves the velocity but not the learning rate.
#[edit(let start => type Snapshot = WithVelocity; let mut rate = 0.1; let start)]
#[edit(rate: 0.1, => )]
#[edit(mut velocity, mut rate => mut velocity)]
#[edit(weights.clone(), velocity, rate => weights.clone(), velocity)]
pub fn rate_forgotten() {}

/// Saves the learning rate but not the velocity.
#[edit(let start => type Snapshot = WithRate; let mut velocity = vec![0.0; initial.len()]; let start)]
#[edit(step: 0, velocity: vec![0.0; initial.len()] => step: 0)]
#[edit(mut velocity, mut rate => mut rate)]
#[edit(weights.clone(), velocity, rate => weights.clone(), rate)]
pub fn velocity_forgotten() {}

/// Writes the snapshot but never reads it, so all steps are repeated.
#[given]
#[edit(let start => type Snapshot = Weights; let start)]
#[edit(snapshot.map_or(Ok(start), serde_json::from_str)? => start)]
pub fn from_the_beginning() {}

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
#[edit(rate *= DECAY; => if step + 1 < until { rate *= DECAY; })]
pub fn rate_behind() {}

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

/// Keeps the velocity and the rate in the process, which ends with the run.
pub fn in_memory(
    gradient: &dyn Fn(u64, &[f64]) -> Vec<f64>,
    initial: Vec<f64>,
    snapshot: Option<&str>,
    until: u64,
) -> Result<(Vec<f64>, String)> {
    static KEPT: Mutex<(Vec<f64>, f64)> = Mutex::new((Vec::new(), 0.1));
    let (velocity, rate) = &mut *KEPT.lock().unwrap();
    if snapshot.is_none() || velocity.is_empty() {
        (*velocity, *rate) = (vec![0.0; initial.len()], 0.1);
    }
    let start = Weights { step: 0, weights: initial };
    let Weights { step, mut weights } = snapshot.map_or(Ok(start), serde_json::from_str)?;
    for step in step..until {
        let slope = gradient(step, &weights);
        for ((weight, velocity), slope) in weights.iter_mut().zip(&mut *velocity).zip(slope) {
            *velocity = MOMENTUM * *velocity + slope;
            *weight -= *rate * *velocity;
        }
        *rate *= DECAY;
    }
    let snapshot = Weights { step: until, weights: weights.clone() };
    Ok((weights, serde_json::to_string(&snapshot)?))
}

#[derive(Serialize, Deserialize)]
struct Snapshot {
    step: u64,
    weights: Vec<f64>,
    velocity: Vec<f64>,
    rate: f64,
}

/// Saves the step that is done.
#[edit(step: until, weights => step: until - 1, weights)]
pub fn step_done() {}

/// Saves a step too far.
#[edit(step: until, weights => step: until + 1, weights)]
pub fn step_after_next() {}

/// Saves the rate after one more fall.
#[edit(weights: weights.clone(), velocity, rate => weights: weights.clone(), velocity, rate: rate * DECAY)]
pub fn rate_ahead() {}

/// Saves the velocity with six digits.
#[edit(weights: weights.clone(), velocity, rate => weights: weights.clone(), velocity: velocity.iter().map(|one| (one * 1e6).round() / 1e6).collect(), rate)]
pub fn six_digits() {}

/// Counts the steps after the stop from 0 again.
#[edit(for step in step..until => for step in 0..until - step)]
pub fn steps_from_zero() {}

/// Computes the rate as a power on loading, and step by step after that.
#[edit(mut velocity, mut rate => mut velocity, rate: _)]
#[edit(for step in step..until => let mut rate = 0.1 * DECAY.powi(step as i32); for step in step..until)]
pub fn power_on_loading() {}

/// Right: computes the rate as a power in every step of every run.
#[edit(mut velocity, mut rate => mut velocity, rate: _)]
#[edit(let slope => let rate = 0.1 * DECAY.powi(step as i32); let slope)]
#[edit(rate *= DECAY; => )]
#[edit(weights: weights.clone(), velocity, rate => weights: weights.clone(), velocity, rate: 0.0)]
pub fn power_in_each_step() {}

/// Right: saves the bits of all numbers as text.
pub fn bits(
    gradient: &dyn Fn(u64, &[f64]) -> Vec<f64>,
    initial: Vec<f64>,
    snapshot: Option<&str>,
    until: u64,
) -> Result<(Vec<f64>, String)> {
    let size = initial.len();
    let start = [vec![0.1], vec![0.0; size], initial].concat().into_iter().map(f64::to_bits);
    let saved = match snapshot {
        Some(text) => text.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>()?,
        None => [0].into_iter().chain(start).collect(),
    };
    let (step, numbers): (u64, Vec<f64>) = (saved[0], saved[1..].iter().copied().map(f64::from_bits).collect());
    let (mut rate, mut velocity, mut weights) = (numbers[0], numbers[1..=size].to_vec(), numbers[size + 1..].to_vec());
    for step in step..until {
        for (place, slope) in gradient(step, &weights).into_iter().enumerate() {
            velocity[place] = slope + velocity[place] * MOMENTUM;
            weights[place] -= rate * velocity[place];
        }
        rate *= DECAY;
    }
    let numbers = [vec![rate], velocity, weights.clone()].concat().into_iter().map(f64::to_bits);
    let text: Vec<String> = [until].into_iter().chain(numbers).map(|number| number.to_string()).collect();
    Ok((weights, text.join(" ")))
}
