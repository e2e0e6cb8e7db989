//! A small model whose gradients are averaged over the ranks as DDP does it, for task `token_mean`: it predicts a token from three numbers. You
//! do not change this file.

use std::cell::Cell;

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use lockstep::loss::IGNORE_INDEX;
use serde::Deserialize;
use tch::{Kind, Reduction, Tensor};

/// A micro-batch of tokens.
#[derive(Deserialize)]
pub struct Batch {
    inputs: Vec<[f64; 3]>,
    targets: Vec<i64>,
}

impl Batch {
    /// How many tokens have a target: those of a padded sequence have none at its end.
    pub fn tokens(&self) -> i64 {
        self.targets.iter().filter(|target| **target != IGNORE_INDEX).count() as i64
    }
}

/// The model, on each rank with the same weights.
pub struct Model<'a> {
    group: &'a ProcessGroup,
    weights: Tensor,
    syncs: Cell<bool>,
    exchanges: Cell<u64>,
}

impl<'a> Model<'a> {
    /// `weights` has a row of three numbers for each token.
    pub fn new(group: &'a ProcessGroup, weights: &[[f64; 3]]) -> Self {
        let weights = Tensor::from_slice(&weights.concat()).view([-1, 3]).set_requires_grad(true);
        Model { group, weights, syncs: Cell::new(true), exchanges: Cell::new(0) }
    }

    /// The ranks.
    pub fn group(&self) -> &'a ProcessGroup {
        self.group
    }

    /// The sum of the losses of all tokens that have a target; 0 if none has.
    pub fn losses(&self, batch: &Batch) -> Tensor {
        let inputs = Tensor::from_slice(&batch.inputs.concat()).view([-1, 3]);
        let logits = inputs.matmul(&self.weights.tr());
        let targets = Tensor::from_slice(&batch.targets);
        logits.cross_entropy_loss::<Tensor>(&targets, None, Reduction::Sum, IGNORE_INDEX, 0.0)
    }

    /// Adds the gradients of `loss` to those that are there. Then the ranks exchange their gradients, and each has their **mean**; but not inside
    /// [`no_sync`](Model::no_sync).
    ///
    /// # Errors
    /// Those of the exchange.
    pub fn backward(&self, loss: &Tensor) -> Result<()> {
        loss.backward();
        if self.syncs.get() {
            let mut gradient = self.weights.grad();
            self.group.all_reduce(&mut gradient, ReduceOp::Sum)?;
            let _ = gradient.g_div_scalar_(self.group.size().get() as f64);
            self.exchanges.set(self.exchanges.get() + 1);
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

    /// The gradient as it is now, row by row, and how often it was exchanged.
    pub(crate) fn end(&self) -> Result<(Vec<f64>, u64)> {
        let gradient = self.weights.grad();
        let values =
            if gradient.defined() { gradient.to_kind(Kind::Double).flatten(0, -1).try_into()? } else { Vec::new() };
        Ok((values, self.exchanges.get()))
    }
}
