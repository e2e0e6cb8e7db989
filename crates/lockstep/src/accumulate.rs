//! Gradient accumulation: one step of several micro-batches, over all ranks.

use c10d::{Error, ProcessGroup, ReduceOp, Result};
use tch::Tensor;

use crate::DistributedDataParallel;
use crate::parallel::FullyShard;

/// A model whose gradients are averaged over ranks in its backward pass.
pub trait AveragesGradients {
    /// The ranks.
    fn group(&self) -> &ProcessGroup;

    /// Runs `body`, whose passes send no gradients but add them up.
    fn no_sync<T>(&self, body: impl FnOnce() -> T) -> T;

    /// Runs backward, and leaves in each gradient the mean over all ranks.
    fn backward(&self, loss: &Tensor) -> Result<()>;
}

/// Implements the trait by the type's own methods of the same names.
macro_rules! averages {
    ([$($of:tt)*] $model:ty) => {
        impl<$($of)*> AveragesGradients for $model {
            fn group(&self) -> &ProcessGroup {
                self.group()
            }

            fn no_sync<T>(&self, body: impl FnOnce() -> T) -> T {
                self.no_sync(body)
            }

            fn backward(&self, loss: &Tensor) -> Result<()> {
                self.backward(loss)
            }
        }
    };
}

averages!([M] DistributedDataParallel<M>);
averages!([] FullyShard);

/// Adds up the gradients of `batches`, and communicates them in the last one only. Afterwards each gradient is that of the mean loss over
/// all targets of all micro-batches of all ranks, as if they were one batch. Returns the mean loss of this rank; NaN if none of its
/// targets counts.
///
/// `count` is the number of targets of a micro-batch that count, and `sum` runs its forward pass and gives the **sum** of their losses. So
/// each target weighs the same, wherever it is. (The mean of means does not do that: a token of a short batch would weigh more.)
///
/// ```no_run
/// # use lockstep::{DistributedDataParallel, accumulate::accumulate, data::Batch, loss::CrossEntropy, models::gpt::Gpt, optim::Optimizer};
/// # use tch::nn::ModuleT;
/// # fn step(model: &DistributedDataParallel<Gpt>, optimizer: &mut impl Optimizer, batches: &[Batch]) -> anyhow::Result<()> {
/// let criterion = CrossEntropy::default();
/// optimizer.zero_grad();
/// let loss = accumulate(model, batches, |batch| criterion.count(&batch.targets), |batch| {
///     let logits = model.forward_with(|net| net.forward_t(&batch.inputs, true))?;
///     criterion.sum(&logits, &batch.targets)
/// })?;
/// optimizer.step()?;
/// # println!("{loss}"); Ok(()) }
/// ```
///
/// A collective. Under DDP the ranks may have different numbers of micro-batches, at least one each; with full sharding, all must have the
/// same number.
///
/// Errors: `BadArgument` on all ranks if one has no micro-batches, or if no target counts; those of `sum`, and of any collective.
pub fn accumulate<W: AveragesGradients, B>(
    model: &W,
    batches: &[B],
    count: impl Fn(&B) -> i64,
    mut sum: impl FnMut(&B) -> Result<Tensor>,
) -> Result<f64> {
    const ACCUMULATE: &str = "accumulate";
    let group = model.group();
    let own = batches.iter().map(count).sum::<i64>();
    let mut sums = Tensor::from_slice(&[own as f64, f64::from(batches.is_empty())]).to_device(group.device());
    group.all_reduce(&mut sums, ReduceOp::Sum)?;
    let (all, without) = (sums.double_value(&[0]), sums.double_value(&[1]));
    let (Some((last, others)), true) = (batches.split_last(), without == 0.0) else {
        let why = format!(
            "{without} of {} ranks have no micro-batch, this one has {}: give each rank one or more; one whose targets are all ignored will do",
            group.size().get(),
            batches.len()
        );
        return Err(Error::bad_argument(ACCUMULATE, why));
    };
    if all <= 0.0 {
        return Err(Error::bad_argument(ACCUMULATE, "no target of any rank counts: all are ignored"));
    }
    // The ranks' gradients are averaged, not added.
    let share = group.size().get() as f64 / all;
    let mut losses = 0.0;
    let mut pass = |batch: &B| {
        let loss = sum(batch)?;
        model.backward(&(&loss * share))?;
        losses += loss.double_value(&[]);
        Ok(())
    };
    model.no_sync(|| others.iter().try_for_each(&mut pass))?;
    pass(last)?;
    Ok(if own > 0 { losses / own as f64 } else { f64::NAN })
}
