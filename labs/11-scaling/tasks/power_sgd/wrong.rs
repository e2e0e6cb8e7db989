//! Answers to `power_sgd`: wrong ones, and an unusual right one.

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use lockstep_answers::{edit, given};
use tch::{Kind, Tensor};

use crate::power_sgd::Memory;

/// The given program: sends the whole gradient.
#[given]
pub fn whole() {}

/// Forgets what was left out.
#[edit(gradient + &memory.lost => gradient.shallow_clone())]
pub fn forgets() {}

/// Remembers what this step has left out of its gradient, and no longer what was left out before.
#[edit(memory.lost = &due - &result => memory.lost = gradient - &result)]
#[edit(memory.lost.norm() => (&due - &result).norm())]
pub fn last_loss() {}

/// Does not make the left matrix orthonormal.
#[edit(Tensor::linalg_qr(&mean(due.matmul(&memory.right))?, "reduced").0 => mean(due.matmul(&memory.right))?)]
pub fn not_orthonormal() {}

/// Begins each step with the first right matrix.
#[edit(memory.right = mean(due.tr().matmul(&left))? => let right = mean(due.tr().matmul(&left))?)]
#[edit(left.matmul(&memory.right.tr()) => left.matmul(&right.tr()))]
pub fn cold() {}

/// Adds up, and does not divide.
#[edit(mean(due.tr().matmul(&left))? => mean(due.tr().matmul(&left))? * group.size().get() as f64)]
pub fn sums() {}

/// Adds up and does not divide, and forgets what was left out.
#[edit(gradient + &memory.lost => gradient.shallow_clone())]
#[edit(mean(due.tr().matmul(&left))? => mean(due.tr().matmul(&left))? * group.size().get() as f64)]
pub fn sums_and_forgets() {}

/// Sends one of the two matrices only.
#[edit(mean(due.matmul(&memory.right))? => due.matmul(&memory.right))]
pub fn own_left() {}

/// Is right, and sends the whole gradient as well, to know what was left out.
#[edit(let left => let _all = mean(gradient.copy())?; let left)]
pub fn compares() {}

/// Compares what is left out with this step's gradient.
#[edit(due.norm() => gradient.norm())]
pub fn part_of_gradient() {}

/// Takes left from the gradient alone.
#[edit(mean(due.matmul(&memory.right)) => mean(gradient.matmul(&memory.right)))]
pub fn left_of_gradient() {}

/// Adds what is left out to what was left out before.
#[edit(memory.lost = &due - &result; => let rest = &due - &result; memory.lost = &memory.lost + &rest;)]
#[edit(memory.lost.norm() => rest.norm())]
pub fn adds_up() {}

/// Divides what is left out by the number of ranks.
#[edit(memory.lost = &due - &result; => let rest = &due - &result; memory.lost = &rest / group.size().get() as f64;)]
#[edit(memory.lost.norm() => rest.norm())]
pub fn divides_the_lost() {}

/// Right: makes the columns orthonormal one by one, as Gram and Schmidt do.
#[edit(let left = Tensor::linalg_qr(&mean(due.matmul(&memory.right))?, "reduced").0 =>
    let mut columns: Vec<Tensor> = Vec::new();
    for column in mean(due.matmul(&memory.right))?.unbind(1) {
        let rest = columns.iter().fold(column, |rest, done| &rest - done * (&rest * done).sum(Kind::Double));
        columns.push(&rest / rest.norm());
    }
    let left = Tensor::stack(&columns, 1)
)]
pub fn gram_schmidt() {}

/// Makes its own left matrix orthonormal, and sends that.
#[edit(Tensor::linalg_qr(&mean(due.matmul(&memory.right))?, "reduced").0 => mean(Tensor::linalg_qr(&due.matmul(&memory.right), "reduced").0)?)]
pub fn orthonormal_first() {}
