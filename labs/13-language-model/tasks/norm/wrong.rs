//! Answers to `norm`: wrong ones, and unusual right ones.

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use lockstep_answers::{edit, given};
use tch::{Kind, Tensor};

use crate::norm::Gradient;

/// The given program: this rank's own norm.
#[given]
pub fn own() {}

/// Adds up everything: what all ranks have counts once for each of them.
#[edit([squares(true)] => [squares(true) + squares(false)])]
#[edit((squares(false) + parts.double_value(&[0])) => parts.double_value(&[0]))]
pub fn counts_again() {}

/// Adds up norms instead of squares.
#[edit([squares(true)] => [squares(true).sqrt()])]
#[edit((squares(false) + parts.double_value(&[0])).sqrt() => squares(false).sqrt() + parts.double_value(&[0]))]
pub fn sum_of_norms() {}

/// Adds the norms of the ranks' parts, and then squares.
#[edit([squares(true)] => [squares(true).sqrt()])]
#[edit(squares(false) + parts.double_value(&[0]) => squares(false) + parts.double_value(&[0]).powi(2))]
pub fn norms_of_parts() {}

/// Takes the mean of the ranks' squares.
#[edit(ReduceOp::Sum => ReduceOp::Avg)]
pub fn mean() {}

/// Takes the largest of the ranks' norms.
#[edit(ReduceOp::Sum => ReduceOp::Max)]
pub fn largest() {}

/// Forgets the square root.
#[edit((squares(false) + parts.double_value(&[0])).sqrt() => squares(false) + parts.double_value(&[0]))]
pub fn no_root() {}

/// Leaves out what all ranks have.
#[edit((squares(false) + parts.double_value(&[0])) => parts.double_value(&[0]))]
pub fn parts_only() {}

/// The right norm, but each rank clips by its own.
#[edit(if norm > max_norm => let of_all = norm; let norm = (squares(false) + squares(true)).sqrt(); if norm > max_norm)]
#[edit(Ok(norm) => Ok(of_all))]
pub fn own_factor() {}

/// Makes small gradients larger.
#[edit(norm > max_norm => true)]
pub fn always() {}

/// Only measures.
#[edit(norm > max_norm => false)]
pub fn never() {}

/// Clips each number, not the norm.
#[edit(gradient.values *= max_norm / norm => gradient.values = gradient.values.clamp(-max_norm, max_norm))]
pub fn by_value() {}

/// Returns the norm after clipping.
#[edit(Ok(norm) => Ok(norm.min(max_norm)))]
pub fn afterwards() {}

/// One operation for each gradient: ranks with fewer gradients do not take part.
#[edit(let mut parts = Tensor::from_slice(&[squares(true)]); group.all_reduce(&mut parts, ReduceOp::Sum)?; =>
    let mut parts = Tensor::from_slice(&[0.0]);
    for gradient in gradients.iter().filter(|gradient| gradient.divided) {
        let mut squares = gradient.values.square().sum(Kind::Double);
        group.all_reduce(&mut squares, ReduceOp::Sum)?;
        parts += squares;
    }
)]
pub fn one_by_one() {}

/// Waits for something that nobody does.
#[edit(group.all_reduce(&mut parts, ReduceOp::Sum)?; => std::thread::park(); group.all_reduce(&mut parts, ReduceOp::Sum)?;)]
pub fn parks() {}

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
#[edit([squares(true)] => [squares(true) + if group.rank().is_zero() { squares(false) } else { 0.0 }])]
#[edit((squares(false) + parts.double_value(&[0])) => parts.double_value(&[0]))]
#[edit(max_norm / norm => max_norm / (norm + 1e-6))]
pub fn on_rank_zero() {}

/// Right: each rank counts its share of what all have.
#[edit([squares(true)] => [squares(true) + squares(false) / group.size().get() as f64])]
#[edit((squares(false) + parts.double_value(&[0])) => parts.double_value(&[0]))]
pub fn shares() {}
