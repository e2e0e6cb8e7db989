//! A job that is stopped and started again on other numbers of ranks, for task `reshard`. You do not change this file.

use anyhow::{Result, bail};
use c10d::{ProcessGroup, ReduceOp};
use lockstep::data::rng::KeyedRng;
use serde::{Deserialize, Serialize};
use tch::Tensor;

/// A step of one rank: its epoch and its samples.
pub type Step = (u64, Vec<usize>);

/// What does not change from start to start.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Settings {
    /// Passes over the data.
    pub epochs: u64,
    /// The samples of the data set.
    pub samples: usize,
    /// The samples in a step of one rank. The last step of an epoch may have fewer.
    pub batch_size: usize,
    seed: u64,
}

/// A snapshot: the numbers that were saved, and the model, which is the list of the steps that it was trained with.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Snapshot {
    /// The numbers that the answer has saved.
    pub numbers: Option<Vec<u64>>,
    /// The steps of this rank since the start.
    #[serde(skip)]
    pub steps: usize,
}

/// One start of the job on this rank.
pub struct Run {
    /// The settings.
    pub settings: Settings,
    /// This rank.
    pub rank: usize,
    /// The number of ranks of this start. It was another one before, perhaps, and may be another one next time.
    pub ranks: usize,
    group: &'static ProcessGroup,
    until_stop: Option<usize>,
    snapshot: Snapshot,
    trained: Vec<Step>,
}

impl Run {
    /// A start with the numbers of the last snapshot, which is stopped after this number of steps.
    pub fn new(
        settings: Settings,
        group: &'static ProcessGroup,
        numbers: Option<Vec<u64>>,
        until_stop: Option<usize>,
    ) -> Self {
        let (rank, ranks) = (group.rank().get(), group.size().get());
        let snapshot = Snapshot { numbers, steps: 0 };
        Run { settings, rank, ranks, group, until_stop, snapshot, trained: Vec::new() }
    }

    /// The numbers that were saved last, before this start. `None` on the first one.
    pub fn snapshot(&self) -> Option<Vec<u64>> {
        self.snapshot.numbers.clone()
    }

    /// The order of all samples in an epoch: the same on all ranks and in all starts.
    pub fn order(&self, epoch: u64) -> Vec<usize> {
        let mut random = KeyedRng::new(&[self.settings.seed, epoch]);
        let mut order: Vec<usize> = (0..self.settings.samples).collect();
        (1..order.len()).rev().for_each(|place| order.swap(place, random.below(place + 1)));
        order
    }

    /// Trains the model with these samples of this rank. All ranks take a step together.
    ///
    /// # Errors
    /// When the job is stopped before the step.
    pub fn train(&mut self, epoch: u64, samples: &[usize]) -> Result<()> {
        if self.until_stop == Some(self.trained.len()) {
            bail!("the job is stopped");
        }
        self.group.all_reduce(&mut Tensor::from(samples.len() as i64), ReduceOp::Sum)?;
        self.trained.push((epoch, samples.to_vec()));
        Ok(())
    }

    /// Saves the model as it is now, with numbers of your choice. All ranks call this; those of rank 0 are kept.
    pub fn save(&mut self, numbers: &[u64]) {
        self.snapshot = Snapshot { numbers: Some(numbers.to_vec()), steps: self.trained.len() };
    }

    /// The last snapshot, and the steps in its model; all steps if the start was not stopped.
    pub fn end(mut self) -> (Snapshot, Vec<Step>) {
        if self.was_stopped() {
            self.trained.truncate(self.snapshot.steps);
        }
        (self.snapshot, self.trained)
    }

    /// Returns true if this start was stopped.
    pub fn was_stopped(&self) -> bool {
        self.until_stop.is_some_and(|until| self.trained.len() >= until)
    }
}
