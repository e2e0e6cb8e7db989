//! Answers to `average`: wrong ones, and unusual right ones.

use anyhow::Result;
use c10d::{ProcessGroup, Rank, ReduceOp};
use lockstep_answers::edit;
use tch::Tensor;

/// Reduces nothing.
pub fn local(_: &ProcessGroup, _: &mut [Tensor]) -> Result<()> {
    Ok(())
}

/// Sends rank 0's gradients to all ranks.
#[edit(group.all_reduce(gradient, ReduceOp::Sum)?; let _ = gradient.g_div_scalar_(ranks); => if ranks > 0 { group.broadcast(gradient, Rank::ZERO)?; })]
pub fn of_rank_0() {}

/// Forgets the division.
#[edit(let _ = gradient.g_div_scalar_(ranks); => )]
pub fn summed() {}

/// Reduces to rank 0, and stops there.
#[edit(group.all_reduce(gradient, ReduceOp::Sum) => group.reduce(gradient, Rank::ZERO, ReduceOp::Sum))]
pub fn on_rank_0() {}

/// Divides before the sum and after it.
#[edit(group.all_reduce => let _ = gradient.g_div_scalar_(ranks); group.all_reduce)]
pub fn twice() {}

/// Right: with more traffic than necessary, every rank gathers all gradients and takes their mean.
pub fn gathers(group: &ProcessGroup, gradients: &mut [Tensor]) -> Result<()> {
    for gradient in gradients {
        let mut all: Vec<Tensor> = group.members().iter().map(|_| gradient.zeros_like()).collect();
        group.all_gather(&mut all, gradient)?;
        gradient.copy_(&Tensor::stack(&all, 0).mean_dim(0, false, None));
    }
    Ok(())
}

/// Takes the means from one bucket, with a gradient's first dimension for its length.
pub fn bucket_offset(group: &ProcessGroup, gradients: &mut [Tensor]) -> Result<()> {
    let mut bucket = Tensor::cat(&gradients.iter().map(|gradient| gradient.flatten(0, -1)).collect::<Vec<_>>(), 0);
    group.all_reduce(&mut bucket, ReduceOp::Sum)?;
    let _ = bucket.g_div_scalar_(group.size().get() as i64);
    let mut offset = 0;
    for gradient in gradients {
        gradient.copy_(&bucket.narrow(0, offset, gradient.numel() as i64).view_as(gradient));
        offset += gradient.size()[0];
    }
    Ok(())
}

/// Divides by two.
#[edit(g_div_scalar_(ranks) => g_div_scalar_(2))]
pub fn by_two() {}

/// Divides by the number of gradients.
#[edit(group.size().get() => gradients.len())]
pub fn by_gradients() {}

/// Divides by one rank more than there are.
#[edit(group.size().get() => (group.size().get() + 1))]
pub fn by_one_more() {}

/// Adds up copies, and divides the gradients.
#[edit(group.all_reduce(gradient, ReduceOp::Sum) => group.all_reduce(&mut gradient.copy(), ReduceOp::Sum))]
pub fn of_copies() {}

/// Keeps the mean in a tensor that is never read.
#[edit(group.all_reduce => let gradient = &mut gradient.copy(); group.all_reduce)]
pub fn to_nobody() {}
