//! A training that is stopped and started again on other numbers of ranks, for task `resume`. For the grader, forward and backward passes are
//! SIMULATED: what was trained is recorded, and whether a gradient would have overflowed in half precision. You do not change this file.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::f64::consts::PI;
use std::rc::Rc;

use anyhow::{Result, bail};
use c10d::{ProcessGroup, ReduceOp};
use lockstep::data::rng::KeyedRng;
use serde::{Deserialize, Serialize};
use tch::Tensor;

/// The scale of the loss at the very beginning.
pub const SCALE: f64 = 65536.0;

/// What does not change from start to start.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Settings {
    /// Passes over the data.
    pub epochs: u64,
    /// Windows of the text.
    pub windows: usize,
    /// The windows in a batch of all ranks together. The last batch of an epoch may have fewer.
    pub batch: usize,
    /// After so many steps without an overflow the scale is doubled.
    pub growth_interval: u64,
    pub(crate) warmup: u64,
    pub(crate) seed: u64,
}

impl Settings {
    /// The batches of all epochs.
    pub fn batches(&self) -> u64 {
        self.epochs * self.windows.div_ceil(self.batch) as u64
    }

    fn order(&self, epoch: u64) -> Vec<usize> {
        let mut random = KeyedRng::new(&[self.seed, epoch]);
        let mut order: Vec<usize> = (0..self.windows).collect();
        (1..order.len()).rev().for_each(|place| order.swap(place, random.below(place + 1)));
        order
    }
}

/// What a [`Run`] lets its model do.
pub(crate) trait Passes {
    fn forward_backward(&mut self, epoch: u64, windows: &[usize], scale: f64) -> Result<bool>;
    fn step(&mut self, learning_rate: f64);
    fn save(&mut self, numbers: &[f64]);
}

/// A batch that a rank has trained with.
#[derive(Clone, Debug, Serialize)]
pub struct Batch {
    epoch: u64,
    windows: Vec<usize>,
    scale: f64,
    /// The learning rate of the step that followed.
    rate: Option<f64>,
}

/// The newest snapshot: the numbers that the answer has saved, and how many batches were trained before it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Snapshot {
    pub numbers: Option<Vec<f64>>,
    #[serde(skip)]
    batches: usize,
}

/// One start of the training on this rank.
pub struct Run {
    pub settings: Settings,
    pub rank: usize,
    /// The number of ranks of this start. It was another one before, perhaps, and may be another one next time.
    pub ranks: usize,
    /// The group of these ranks.
    pub group: &'static ProcessGroup,
    saved: Option<Vec<f64>>,
    passes: Rc<RefCell<dyn Passes>>,
}

impl Run {
    /// A start with the numbers of the newest snapshot.
    pub(crate) fn new(
        settings: Settings,
        group: &'static ProcessGroup,
        saved: Option<Vec<f64>>,
        passes: Rc<RefCell<dyn Passes>>,
    ) -> Self {
        let (rank, ranks) = (group.rank().get(), group.size().get());
        Run { settings, rank, ranks, group, saved, passes }
    }

    /// The numbers that were saved last, before this start. `None` on the first one.
    pub fn snapshot(&self) -> Option<Vec<f64>> {
        self.saved.clone()
    }

    /// The order of all windows in an epoch: the same on all ranks and in all starts.
    pub fn order(&self, epoch: u64) -> Vec<usize> {
        self.settings.order(epoch)
    }

    /// The learning rate of a step, when so many steps were taken before it: warm-up, then a cosine.
    pub fn learning_rate(&self, steps: u64) -> f64 {
        let (warmup, all) = (self.settings.warmup, self.settings.batches());
        if steps < warmup {
            return (steps + 1) as f64 / warmup as f64;
        }
        let part = (steps - warmup) as f64 / (all - warmup).max(1) as f64;
        (1.0 + (PI * part).cos()) / 2.0
    }

    /// Forward and backward pass over these windows of this rank (there may be none), with the loss multiplied by `scale`. Returns true
    /// if this rank's gradients are finite. All ranks call this together.
    ///
    /// # Errors
    /// When the job is stopped before the batch; those of the passes.
    pub fn forward_backward(&mut self, epoch: u64, windows: &[usize], scale: f64) -> Result<bool> {
        self.passes.borrow_mut().forward_backward(epoch, windows, scale)
    }

    /// The optimizer's step with the batch's gradients. The gradients of all ranks were averaged: if one overflowed, all are infinite or NaN.
    pub fn step(&mut self, learning_rate: f64) {
        self.passes.borrow_mut().step(learning_rate);
    }

    /// Saves model and optimizer as they are now, with numbers of your choice. All ranks call this; rank 0's numbers are kept.
    pub fn save(&mut self, numbers: &[f64]) {
        self.passes.borrow_mut().save(numbers);
    }
}

/// A start with real batches and nothing else.
pub(crate) struct Simulated {
    group: &'static ProcessGroup,
    /// The largest scale at which an epoch's window does not overflow; any other never does.
    loud: BTreeMap<(u64, usize), f64>,
    until_stop: Option<usize>,
    snapshot: Snapshot,
    trained: Vec<Batch>,
}

impl Simulated {
    /// A start that is stopped after this number of batches. `loud` has epochs, places in their orders, and the largest scales.
    pub(crate) fn new(
        settings: Settings,
        group: &'static ProcessGroup,
        loud: &[(u64, usize, f64)],
        last: &Snapshot,
        until_stop: Option<usize>,
    ) -> Self {
        let loud = loud.iter().map(|(epoch, place, most)| ((*epoch, settings.order(*epoch)[*place]), *most)).collect();
        let snapshot = Snapshot { numbers: last.numbers.clone(), batches: 0 };
        Simulated { group, loud, until_stop, snapshot, trained: Vec::new() }
    }

    /// The newest snapshot, and the batches in its model; all batches if the start was not stopped.
    pub(crate) fn end(&self) -> (Snapshot, Vec<Batch>) {
        let kept = if self.was_stopped() { self.snapshot.batches } else { self.trained.len() };
        (self.snapshot.clone(), self.trained[..kept].to_vec())
    }

    /// Returns true if this start was stopped.
    pub(crate) fn was_stopped(&self) -> bool {
        self.until_stop.is_some_and(|until| self.trained.len() >= until)
    }
}

impl Passes for Simulated {
    fn forward_backward(&mut self, epoch: u64, windows: &[usize], scale: f64) -> Result<bool> {
        if self.until_stop == Some(self.trained.len()) {
            bail!("the job is stopped");
        }
        self.group.all_reduce(&mut Tensor::from(windows.len() as i64), ReduceOp::Sum)?;
        self.trained.push(Batch { epoch, windows: windows.to_vec(), scale, rate: None });
        Ok(windows.iter().all(|window| self.loud.get(&(epoch, *window)).is_none_or(|most| scale <= *most)))
    }

    fn step(&mut self, learning_rate: f64) {
        if let Some(last) = self.trained.last_mut() {
            last.rate = Some(learning_rate);
        }
    }

    fn save(&mut self, numbers: &[f64]) {
        self.snapshot = Snapshot { numbers: Some(numbers.to_vec()), batches: self.trained.len() };
    }
}
