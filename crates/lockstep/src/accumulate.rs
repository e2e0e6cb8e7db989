//! Gradient accumulation: one step of several micro-batches, over all ranks.

use c10d::{Error, ProcessGroup, Rank, ReduceOp, Result};
use tch::Tensor;

use crate::DistributedDataParallel;
use crate::parallel::FullyShard;
use crate::virtual_ranks::VirtualRanks;

/// A model whose gradients are averaged over ranks in its backward pass.
pub trait AveragesGradients {
    /// The ranks.
    fn group(&self) -> &ProcessGroup;

    /// The virtual ranks of this rank.
    fn virtual_ranks(&self) -> VirtualRanks;

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

            fn virtual_ranks(&self) -> VirtualRanks {
                self.virtual_ranks()
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
/// With [virtual ranks](crate::virtual_ranks) call [`accumulate_virtual`].
///
/// Errors: `BadArgument` on all ranks if one has no micro-batches, if no target counts, or with virtual ranks; those of `sum`, and of any
/// collective.
pub fn accumulate<W: AveragesGradients, B>(
    model: &W,
    batches: &[B],
    count: impl Fn(&B) -> i64,
    mut sum: impl FnMut(&B) -> Result<Tensor>,
) -> Result<f64> {
    if model.virtual_ranks().are_asked_for() {
        let why = "with virtual ranks one call takes the micro-batches of all of this rank's: call accumulate_virtual";
        return Err(Error::bad_argument(ACCUMULATE, why));
    }
    let own = accumulate_each(model, &[(model.group().rank(), batches)], count, |_, batch| sum(batch))?;
    let [losses, own] = own[0];
    Ok(if own > 0.0 { losses / own } else { f64::NAN })
}

/// As [`accumulate`], for each of the rank's virtual ranks, with its micro-batches. `sum` gets the virtual rank, and the number of the
/// micro-batch, of which the first is the place to seed random numbers. Returns the mean loss over the targets of all virtual ranks, the same
/// number for any number of ranks; without virtual ranks, that over this rank's, as `accumulate` does.
///
/// # Errors
/// As [`accumulate`]; `BadArgument` unless `batches` are those of this rank's virtual ranks, in order.
pub fn accumulate_virtual<W: AveragesGradients, B>(
    model: &W,
    batches: &[(Rank, Vec<B>)],
    count: impl Fn(&B) -> i64,
    mut sum: impl FnMut(Rank, usize, &B) -> Result<Tensor>,
) -> Result<f64> {
    let ranks = model.virtual_ranks();
    if !ranks.own().eq(batches.iter().map(|(v, _)| *v)) {
        let (own, given): (Vec<_>, Vec<_>) =
            (ranks.own().map(Rank::get).collect(), batches.iter().map(|(v, _)| v.get()).collect());
        let why = format!("this rank has the virtual ranks {own:?}, and micro-batches of {given:?}");
        return Err(Error::bad_argument(ACCUMULATE, why));
    }
    let numbered: Vec<(Rank, Vec<(usize, &B)>)> =
        batches.iter().map(|(v, batches)| (*v, batches.iter().enumerate().collect())).collect();
    let borrowed: Vec<_> = numbered.iter().map(|(v, batches)| (*v, &batches[..])).collect();
    let own =
        accumulate_each(model, &borrowed, |(_, batch)| count(batch), |v, (number, batch)| sum(v, *number, batch))?;
    let [losses, targets] = match ranks.are_asked_for() {
        true => ranks.sums(model.group(), &own)?,
        false => own[0],
    };
    Ok(if targets > 0.0 { losses / targets } else { f64::NAN })
}

const ACCUMULATE: &str = "accumulate";

/// Runs the passes; returns of each virtual rank the sum of the losses and the number of targets that count.
fn accumulate_each<W: AveragesGradients, B>(
    model: &W,
    batches: &[(Rank, &[B])],
    count: impl Fn(&B) -> i64,
    mut sum: impl FnMut(Rank, &B) -> Result<Tensor>,
) -> Result<Vec<[f64; 2]>> {
    let (group, ranks) = (model.group(), model.virtual_ranks().count().get());
    let counts: Vec<i64> = batches.iter().map(|(_, batches)| batches.iter().map(&count).sum()).collect();
    let empty = batches.iter().filter(|(_, batches)| batches.is_empty()).count();
    let mut sums = Tensor::from_slice(&[counts.iter().sum::<i64>() as f64, empty as f64]).to_device(group.device());
    group.all_reduce(&mut sums, ReduceOp::Sum)?;
    let (all, without) = (sums.double_value(&[0]), sums.double_value(&[1]));
    if without > 0.0 {
        let why = format!(
            "{without} of {ranks} ranks have no micro-batch, this one has {}: give each rank one or more; one whose targets are all ignored will do",
            batches.iter().map(|(_, batches)| batches.len()).sum::<usize>()
        );
        return Err(Error::bad_argument(ACCUMULATE, why));
    }
    if all <= 0.0 {
        return Err(Error::bad_argument(ACCUMULATE, "no target of any rank counts: all are ignored"));
    }
    // The ranks' gradients are averaged, not added.
    let share = ranks as f64 / all;
    let mut done = Vec::new();
    for (&(v, batches), counted) in batches.iter().zip(counts) {
        let mut losses = 0.0;
        let mut pass = |batch: &B| {
            let loss = sum(v, batch)?;
            model.backward(&(&loss * share))?;
            losses += loss.double_value(&[]);
            Ok(())
        };
        if let Some((last, others)) = batches.split_last() {
            model.no_sync(|| others.iter().try_for_each(&mut pass))?;
            pass(last)?;
        }
        done.push([losses, counted as f64]);
    }
    Ok(done)
}
