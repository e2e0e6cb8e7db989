//! A model whose gradients are averaged over the ranks as DDP does it, for task `token_mean`. You do not change this file.

use std::cell::Cell;
use std::time::Instant;

use anyhow::Result;
use c10d::ProcessGroup;
use lockstep::loss::IGNORE_INDEX;
use lockstep::parallel::MixtureOfExperts;
use tch::{Reduction, Tensor};

/// A micro-batch of tokens.
pub struct Batch {
    inputs: Tensor,
    targets: Tensor,
}

impl Batch {
    /// `targets` have one token for each row of logits that the model gives for `inputs`.
    pub(crate) fn new(inputs: Tensor, targets: Tensor) -> Self {
        Batch { inputs, targets }
    }

    /// How many tokens have a target: the padding at a sequence's end has none.
    pub fn tokens(&self) -> i64 {
        self.targets.not_equal(IGNORE_INDEX).sum(None::<tch::Kind>).int64_value(&[])
    }
}

/// From a micro-batch's inputs to logits `[…, tokens]`, and what else counts in the loss of each token with a target, if anything does.
type Forward<'a> = Box<dyn Fn(&Tensor) -> (Tensor, Option<Tensor>) + 'a>;

/// The model, on each rank with the same weights.
pub struct Model<'a> {
    group: &'a ProcessGroup,
    forward: Forward<'a>,
    params: Vec<(String, Tensor)>,
    /// What a loss is multiplied with.
    scale: f64,
    syncs: Cell<bool>,
    exchanges: Cell<u64>,
    exchanging: Cell<f64>,
}

impl<'a> Model<'a> {
    pub(crate) fn new(group: &'a ProcessGroup, params: Vec<(String, Tensor)>, forward: Forward<'a>) -> Self {
        Model {
            group,
            forward,
            params,
            scale: 1.0,
            syncs: Cell::new(true),
            exchanges: Cell::new(0),
            exchanging: Cell::new(0.0),
        }
    }

    pub(crate) fn scaled(self, scale: f64) -> Self {
        Self { scale, ..self }
    }

    /// The ranks.
    pub fn group(&self) -> &'a ProcessGroup {
        self.group
    }

    /// The sum of the losses of all tokens that have a target; 0 if none has.
    pub fn losses(&self, batch: &Batch) -> Tensor {
        let (logits, also) = (self.forward)(&batch.inputs);
        let logits = logits.flatten(0, -2);
        let targets = batch.targets.flatten(0, -1);
        let losses = logits.cross_entropy_loss::<Tensor>(&targets, None, Reduction::Sum, IGNORE_INDEX, 0.0);
        match also {
            Some(also) => losses + also * batch.tokens() as f64,
            None => losses,
        }
    }

    /// Adds the gradients of `loss` to those that are there. Then the ranks exchange their gradients, and each has their **mean**; but not inside
    /// [`no_sync`](Model::no_sync).
    pub fn backward(&self, loss: &Tensor) -> Result<()> {
        c10d::backward(&(loss * self.scale))?;
        if self.syncs.get() {
            let begun = Instant::now();
            MixtureOfExperts::average_gradients(self.group, &self.params)?;
            self.exchanges.set(self.exchanges.get() + 1);
            self.exchanging.set(self.exchanging.get() + begun.elapsed().as_secs_f64());
        }
        Ok(())
    }

    /// In `passes`, gradients are added up on this rank alone. The next backward pass outside exchanges the sum.
    pub fn no_sync<T>(&self, passes: impl FnOnce() -> T) -> T {
        let before = self.syncs.replace(false);
        let result = passes();
        self.syncs.set(before);
        result
    }

    /// The seconds of these exchanges, in which the rank also waits for others.
    pub(crate) fn exchanging(&self) -> f64 {
        self.exchanging.get()
    }

    /// How often the gradients were exchanged.
    pub(crate) fn exchanges(&self) -> u64 {
        self.exchanges.get()
    }
}
