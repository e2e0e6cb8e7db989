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
pub fn summed(group: &ProcessGroup, gradients: &mut [Tensor]) -> Result<()> {
    for gradient in gradients {
        group.all_reduce(gradient, ReduceOp::Sum)?;
    }
    Ok(())
}

/// Reduces to rank 0, and stops there.
pub fn on_rank_0(group: &ProcessGroup, gradients: &mut [Tensor]) -> Result<()> {
    for gradient in gradients {
        group.reduce(gradient, Rank::ZERO, ReduceOp::Sum)?;
        let _ = gradient.g_div_scalar_(group.size().get() as i64);
    }
    Ok(())
}

/// Divides before the sum and after it.
pub fn twice(group: &ProcessGroup, gradients: &mut [Tensor]) -> Result<()> {
    let ranks = group.size().get() as i64;
    for gradient in gradients {
        let _ = gradient.g_div_scalar_(ranks);
        group.all_reduce(gradient, ReduceOp::Sum)?;
        let _ = gradient.g_div_scalar_(ranks);
    }
    Ok(())
}

/// Right: with more traffic than necessary, every rank gathers all gradients and takes their mean.
pub fn gathers(group: &ProcessGroup, gradients: &mut [Tensor]) -> Result<()> {
    for gradient in gradients {
        let mut all: Vec<Tensor> = group.members().iter().map(|_| gradient.zeros_like()).collect();
        group.all_gather(&mut all, gradient)?;
        gradient.copy_(&Tensor::stack(&all, 0).mean_dim(0, false, None));
    }
    Ok(())
}

/// Divides by two.
pub fn by_two(group: &ProcessGroup, gradients: &mut [Tensor]) -> Result<()> {
    for gradient in gradients {
        group.all_reduce(gradient, ReduceOp::Sum)?;
        *gradient /= 2.0;
    }
    Ok(())
}

/// Divides by the number of gradients.
pub fn by_gradients(group: &ProcessGroup, gradients: &mut [Tensor]) -> Result<()> {
    let count = gradients.len() as f64;
    for gradient in gradients {
        group.all_reduce(gradient, ReduceOp::Sum)?;
        *gradient /= count;
    }
    Ok(())
}

/// Adds up copies, and divides the gradients.
pub fn of_copies(group: &ProcessGroup, gradients: &mut [Tensor]) -> Result<()> {
    for gradient in gradients {
        let mut sum = gradient.copy();
        group.all_reduce(&mut sum, ReduceOp::Sum)?;
        let _ = gradient.g_div_scalar_(group.size().get() as i64);
    }
    Ok(())
}

/// Keeps the mean in a tensor that is never read.
pub fn to_nobody(group: &ProcessGroup, gradients: &mut [Tensor]) -> Result<()> {
    for gradient in gradients {
        let mut mean = gradient.copy();
        group.all_reduce(&mut mean, ReduceOp::Sum)?;
        let _ = mean.g_div_scalar_(group.size().get() as i64);
    }
    Ok(())
}
