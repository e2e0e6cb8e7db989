//! Answers to `norm`: wrong ones, and unusual right ones.

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use lockstep_answers::edit;
use tch::{Kind, Tensor};

use crate::norm::Gradient;

fn squares(gradient: &Gradient) -> f64 {
    gradient.values.square().sum(Kind::Double).double_value(&[])
}

/// The squares of the gradients that are divided, or of the others.
fn of(gradients: &[Gradient], divided: bool) -> f64 {
    gradients.iter().filter(|gradient| gradient.divided == divided).map(squares).sum()
}

fn reduced(group: &ProcessGroup, number: f64, how: ReduceOp) -> Result<f64> {
    let mut number = Tensor::from_slice(&[number]);
    group.all_reduce(&mut number, how)?;
    Ok(number.double_value(&[0]))
}

fn scale(gradients: &mut [Gradient], by: f64) {
    gradients.iter_mut().for_each(|gradient| gradient.values *= by);
}

fn clip(gradients: &mut [Gradient], norm: f64, max_norm: f64) -> Result<f64> {
    if norm > max_norm {
        scale(gradients, max_norm / norm);
    }
    Ok(norm)
}

fn right(group: &ProcessGroup, gradients: &[Gradient]) -> Result<f64> {
    Ok((of(gradients, false) + reduced(group, of(gradients, true), ReduceOp::Sum)?).sqrt())
}

/// The given program: this rank's own norm.
pub fn own(_: &ProcessGroup, gradients: &mut [Gradient], max_norm: f64) -> Result<f64> {
    let norm = gradients.iter().map(squares).sum::<f64>().sqrt();
    clip(gradients, norm, max_norm)
}

/// Adds up everything: what all ranks have counts once for each of them.
pub fn counts_again(group: &ProcessGroup, gradients: &mut [Gradient], max_norm: f64) -> Result<f64> {
    let norm = reduced(group, gradients.iter().map(squares).sum(), ReduceOp::Sum)?.sqrt();
    clip(gradients, norm, max_norm)
}

/// Adds up norms instead of squares.
pub fn sum_of_norms(group: &ProcessGroup, gradients: &mut [Gradient], max_norm: f64) -> Result<f64> {
    let norm = of(gradients, false).sqrt() + reduced(group, of(gradients, true).sqrt(), ReduceOp::Sum)?;
    clip(gradients, norm, max_norm)
}

/// Adds the norms of the ranks' parts, and then squares.
pub fn norms_of_parts(group: &ProcessGroup, gradients: &mut [Gradient], max_norm: f64) -> Result<f64> {
    let parts = reduced(group, of(gradients, true).sqrt(), ReduceOp::Sum)?;
    let norm = (of(gradients, false) + parts * parts).sqrt();
    clip(gradients, norm, max_norm)
}

/// Takes the mean of the ranks' squares.
pub fn mean(group: &ProcessGroup, gradients: &mut [Gradient], max_norm: f64) -> Result<f64> {
    let parts = reduced(group, of(gradients, true), ReduceOp::Avg)?;
    let norm = (of(gradients, false) + parts).sqrt();
    clip(gradients, norm, max_norm)
}

/// Takes the largest of the ranks' norms.
pub fn largest(group: &ProcessGroup, gradients: &mut [Gradient], max_norm: f64) -> Result<f64> {
    let norm = reduced(group, gradients.iter().map(squares).sum(), ReduceOp::Max)?.sqrt();
    clip(gradients, norm, max_norm)
}

/// Forgets the square root.
pub fn no_root(group: &ProcessGroup, gradients: &mut [Gradient], max_norm: f64) -> Result<f64> {
    let norm = right(group, gradients)?;
    clip(gradients, norm * norm, max_norm)
}

/// Leaves out what all ranks have.
pub fn parts_only(group: &ProcessGroup, gradients: &mut [Gradient], max_norm: f64) -> Result<f64> {
    let norm = reduced(group, of(gradients, true), ReduceOp::Sum)?.sqrt();
    clip(gradients, norm, max_norm)
}

/// The right norm, but each rank clips by its own.
pub fn own_factor(group: &ProcessGroup, gradients: &mut [Gradient], max_norm: f64) -> Result<f64> {
    let norm = right(group, gradients)?;
    let own = gradients.iter().map(squares).sum::<f64>().sqrt();
    clip(gradients, own, max_norm)?;
    Ok(norm)
}

/// Makes small gradients larger.
pub fn always(group: &ProcessGroup, gradients: &mut [Gradient], max_norm: f64) -> Result<f64> {
    let norm = right(group, gradients)?;
    scale(gradients, max_norm / norm);
    Ok(norm)
}

/// Only measures.
pub fn never(group: &ProcessGroup, gradients: &mut [Gradient], _: f64) -> Result<f64> {
    right(group, gradients)
}

/// Clips each number, not the norm.
pub fn by_value(group: &ProcessGroup, gradients: &mut [Gradient], max_norm: f64) -> Result<f64> {
    let norm = right(group, gradients)?;
    gradients.iter_mut().for_each(|gradient| gradient.values = gradient.values.clamp(-max_norm, max_norm));
    Ok(norm)
}

/// Returns the norm after clipping.
pub fn afterwards(group: &ProcessGroup, gradients: &mut [Gradient], max_norm: f64) -> Result<f64> {
    let norm = right(group, gradients)?;
    clip(gradients, norm, max_norm)?;
    Ok(norm.min(max_norm))
}

/// One operation for each gradient: ranks with fewer of them do not come.
pub fn one_by_one(group: &ProcessGroup, gradients: &mut [Gradient], max_norm: f64) -> Result<f64> {
    let mut all = of(gradients, false);
    for gradient in gradients.iter().filter(|gradient| gradient.divided) {
        all += reduced(group, squares(gradient), ReduceOp::Sum)?;
    }
    clip(gradients, all.sqrt(), max_norm)
}

/// Compares the squares' sum with the limit.
#[edit(norm > max_norm => norm * norm > max_norm)]
pub fn compares_squares() {}

/// Lets the norm exceed the limit.
#[edit(norm > max_norm => norm > 1.5 * max_norm)]
pub fn tolerates() {}

/// Always multiplies.
#[edit(norm > max_norm => true)]
#[edit(max_norm / norm => norm.min(max_norm) / norm)]
pub fn divides_by_zero() {}

/// Is 0 on a rank that has no gradient.
#[edit((squares(false) + parts.double_value(&[0])).sqrt() => if gradients.is_empty() { 0.0 } else { (squares(false) + parts.double_value(&[0])).sqrt() })]
pub fn none_here() {}

/// Clips what each rank has a part of.
#[edit(gradients.iter_mut().for_each => gradients.iter_mut().filter(|gradient| gradient.divided).for_each)]
pub fn clips_parts() {}

/// Right: what all ranks have counts on rank 0 only; with PyTorch's small number in the factor.
pub fn on_rank_zero(group: &ProcessGroup, gradients: &mut [Gradient], max_norm: f64) -> Result<f64> {
    let mine = of(gradients, true) + if group.rank().is_zero() { of(gradients, false) } else { 0.0 };
    let norm = reduced(group, mine, ReduceOp::Sum)?.sqrt();
    scale(gradients, (max_norm / (norm + 1e-6)).min(1.0));
    Ok(norm)
}

/// Right: each rank counts its share of what all have.
pub fn shares(group: &ProcessGroup, gradients: &mut [Gradient], max_norm: f64) -> Result<f64> {
    let mine = of(gradients, true) + of(gradients, false) / group.size().get() as f64;
    let norm = reduced(group, mine, ReduceOp::Sum)?.sqrt();
    clip(gradients, norm, max_norm)
}
