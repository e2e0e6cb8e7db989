//! Correct evidence for tests, which a test can falsify in parts.

use std::collections::BTreeMap;

use lockstep_contract::events::{Event, EventLog, Record};
use safetensors::Dtype;

use crate::evidence::{Evidence, Plan, Sizes, Tensor, Weights};
use crate::trace::Eval;

/// A run that did everything right. Indexed by epoch, then by rank.
pub(crate) struct Run {
    plan: Plan,
    pub(crate) shares: Vec<Vec<Vec<u64>>>,
    /// Indexed by step, too.
    pub(crate) losses: Vec<Vec<Vec<f64>>>,
    /// One more than epochs if the lab evaluates before each, and once more at the end.
    pub(crate) evals: Vec<Vec<Option<Eval>>>,
    pub(crate) weights: Weights,
}

impl Run {
    pub(crate) fn of(ranks: usize, batch: usize, epochs: u64, samples: u64) -> Self {
        let plan = Plan { ranks, batch, epochs, seed: 0, sizes: Sizes::drawn(samples) };
        let epoch_of_each = || 0..epochs;
        let share = |epoch, rank| share(samples, ranks, epoch, rank);
        let steps = (samples as usize).div_ceil(ranks).div_ceil(batch);
        let loss = |epoch: u64, step: usize| 1.7 / (epoch + 1) as f64 + 0.0 * step as f64;
        let eval = Some(Eval { accuracy: 0.75, loss: 0.5, samples: samples.div_ceil(4) });
        Run {
            plan,
            shares: epoch_of_each().map(|epoch| (0..ranks).map(|rank| share(epoch, rank)).collect()).collect(),
            losses: epoch_of_each()
                .map(|epoch| vec![(0..steps).map(|step| loss(epoch, step)).collect(); ranks])
                .collect(),
            evals: epoch_of_each().map(|_| vec![eval; ranks]).collect(),
            weights: weights(&[0.1, -0.2, 0.4, 0.0, 0.25, -0.5]),
        }
    }

    /// Claims another size of the data set.
    pub(crate) fn sizes(&mut self, samples: u64) {
        self.plan.sizes = Sizes::drawn(samples);
    }

    pub(crate) fn evidence(&self) -> Evidence {
        let ranks = 0..self.plan.ranks;
        Evidence {
            plan: self.plan,
            logs: Ok(ranks.clone().map(|rank| (rank, self.log(rank))).collect()),
            weights: ranks.map(|_| Ok(self.weights.clone())).collect(),
        }
    }

    fn log(&self, rank: usize) -> EventLog {
        let mut events = vec![Event::Start { world_size: self.plan.ranks, device: "cpu".into(), pid: 1 }];
        for epoch in 0..self.plan.epochs {
            self.epoch(rank, epoch, &mut events);
        }
        events.extend(self.eval(rank, self.plan.epochs));
        let record = |event| Record { t: 0.0, rank, restart: 0, event };
        EventLog { records: events.into_iter().map(record).collect(), torn: vec![] }
    }

    fn epoch(&self, rank: usize, epoch: u64, events: &mut Vec<Event>) {
        let (at, batch_size) = (epoch as usize, self.plan.batch);
        let indices = self.shares[at][rank].clone();
        let losses = &self.losses[at][rank];
        events.push(Event::Epoch { epoch, steps: losses.len() as u64, batch_size });
        events.push(Event::Samples { epoch, indices: indices.clone() });
        for (step, (batch, loss)) in indices.chunks(batch_size).zip(losses).enumerate() {
            events.push(Event::Step { epoch, step: step as u64, loss: *loss, samples: batch.len() as u64, lr: None });
        }
        events.extend(self.eval(rank, epoch));
    }

    fn eval(&self, rank: usize, epoch: u64) -> Option<Event> {
        let Eval { accuracy, loss, samples } = (*self.evals.get(epoch as usize)?)[rank]?;
        Some(Event::Eval { epoch, accuracy, loss, samples })
    }
}

/// The sampler's indices for a rank: the order of an epoch is 7 (i + epoch) modulo the number of samples, or 0, 1, 2, … if 7
/// divides it.
fn share(samples: u64, ranks: usize, epoch: u64, rank: usize) -> Vec<u64> {
    let factor = if samples.is_multiple_of(7) { 1 } else { 7 };
    let place = |i: u64| factor * (i % samples + epoch) % samples;
    let each = samples.div_ceil(ranks as u64);
    (0..each).map(|i| place(i * ranks as u64 + rank as u64)).collect()
}

/// `fc.weight` with `values`, and a `fc.bias` of two elements.
pub(crate) fn weights(values: &[f32]) -> Weights {
    let tensor = |values: &[f32]| Tensor {
        dtype: Dtype::F32,
        shape: vec![values.len()],
        bytes: values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    };
    BTreeMap::from([("fc.weight".into(), tensor(values)), ("fc.bias".into(), tensor(&[1.0, -1.0]))])
}
