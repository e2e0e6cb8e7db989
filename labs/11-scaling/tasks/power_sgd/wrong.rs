//! Answers to `power_sgd`: wrong ones, and an unusual right one.

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use tch::{Kind, Tensor};

use crate::power_sgd::Memory;

fn mean(group: &ProcessGroup, tensor: Tensor) -> Result<Tensor> {
    let mut mean = tensor / group.size().get() as f64;
    group.all_reduce(&mut mean, ReduceOp::Sum)?;
    Ok(mean)
}

fn orthonormal(matrix: &Tensor) -> Tensor {
    Tensor::linalg_qr(matrix, "reduced").0
}

fn part(lost: &Tensor, of: &Tensor) -> f64 {
    (lost.norm() / of.norm()).double_value(&[])
}

/// One step for what is due: the result, and the right matrix.
fn step(group: &ProcessGroup, due: &Tensor, right: &Tensor) -> Result<(Tensor, Tensor)> {
    let left = orthonormal(&mean(group, due.matmul(right))?);
    let right = mean(group, due.tr().matmul(&left))?;
    Ok((left.matmul(&right.tr()), right))
}

/// The given program: sends the whole gradient.
pub fn whole(group: &ProcessGroup, gradient: &Tensor, _: &mut Memory) -> Result<(Tensor, f64)> {
    Ok((mean(group, gradient.copy())?, 0.0))
}

/// Forgets what was left out.
pub fn forgets(group: &ProcessGroup, gradient: &Tensor, memory: &mut Memory) -> Result<(Tensor, f64)> {
    let (result, right) = step(group, gradient, &memory.right)?;
    memory.right = right;
    let part = part(&(gradient - &result), gradient);
    Ok((result, part))
}

/// Remembers what this step has left out of its gradient, and no longer what was left out before.
pub fn last_loss(group: &ProcessGroup, gradient: &Tensor, memory: &mut Memory) -> Result<(Tensor, f64)> {
    let due = gradient + &memory.lost;
    let (result, right) = step(group, &due, &memory.right)?;
    memory.right = right;
    memory.lost = gradient - &result;
    let part = part(&(&due - &result), &due);
    Ok((result, part))
}

/// Does not make the left matrix orthonormal.
pub fn not_orthonormal(group: &ProcessGroup, gradient: &Tensor, memory: &mut Memory) -> Result<(Tensor, f64)> {
    let due = gradient + &memory.lost;
    let left = mean(group, due.matmul(&memory.right))?;
    memory.right = mean(group, due.tr().matmul(&left))?;
    let result = left.matmul(&memory.right.tr());
    memory.lost = &due - &result;
    let part = part(&memory.lost, &due);
    Ok((result, part))
}

/// Begins each step with the first right matrix.
pub fn cold(group: &ProcessGroup, gradient: &Tensor, memory: &mut Memory) -> Result<(Tensor, f64)> {
    let due = gradient + &memory.lost;
    let (result, _) = step(group, &due, &memory.right)?;
    memory.lost = &due - &result;
    let part = part(&memory.lost, &due);
    Ok((result, part))
}

/// Adds up, and does not divide.
pub fn sums(group: &ProcessGroup, gradient: &Tensor, memory: &mut Memory) -> Result<(Tensor, f64)> {
    let ranks = group.size().get() as f64;
    let due = gradient + &memory.lost;
    let left = orthonormal(&mean(group, due.matmul(&memory.right))?);
    memory.right = mean(group, due.tr().matmul(&left))? * ranks;
    let result = left.matmul(&memory.right.tr());
    memory.lost = &due - &result;
    let part = part(&memory.lost, &due);
    Ok((result, part))
}

/// Sends one of the two matrices only.
pub fn own_left(group: &ProcessGroup, gradient: &Tensor, memory: &mut Memory) -> Result<(Tensor, f64)> {
    let due = gradient + &memory.lost;
    let left = orthonormal(&due.matmul(&memory.right));
    memory.right = mean(group, due.tr().matmul(&left))?;
    let result = left.matmul(&memory.right.tr());
    memory.lost = &due - &result;
    let part = part(&memory.lost, &due);
    Ok((result, part))
}

/// Is right, and sends the whole gradient as well, to know what was left out.
pub fn compares(group: &ProcessGroup, gradient: &Tensor, memory: &mut Memory) -> Result<(Tensor, f64)> {
    let due = gradient + &memory.lost;
    let (result, right) = step(group, &due, &memory.right)?;
    let _all = mean(group, gradient.copy())?;
    memory.right = right;
    memory.lost = &due - &result;
    let part = part(&memory.lost, &due);
    Ok((result, part))
}

/// Compares what is left out with this step's gradient.
pub fn part_of_gradient(group: &ProcessGroup, gradient: &Tensor, memory: &mut Memory) -> Result<(Tensor, f64)> {
    let due = gradient + &memory.lost;
    let (result, right) = step(group, &due, &memory.right)?;
    memory.right = right;
    memory.lost = &due - &result;
    let part = part(&memory.lost, gradient);
    Ok((result, part))
}

/// Takes left from the gradient alone.
pub fn left_of_gradient(group: &ProcessGroup, gradient: &Tensor, memory: &mut Memory) -> Result<(Tensor, f64)> {
    let due = gradient + &memory.lost;
    let left = orthonormal(&mean(group, gradient.matmul(&memory.right))?);
    memory.right = mean(group, due.tr().matmul(&left))?;
    let result = left.matmul(&memory.right.tr());
    memory.lost = &due - &result;
    Ok((result, part(&memory.lost, &due)))
}

/// Adds what is left out to what was left out before.
pub fn adds_up(group: &ProcessGroup, gradient: &Tensor, memory: &mut Memory) -> Result<(Tensor, f64)> {
    let due = gradient + &memory.lost;
    let (result, right) = step(group, &due, &memory.right)?;
    let rest = &due - &result;
    let part = part(&rest, &due);
    memory.right = right;
    memory.lost = &memory.lost + rest;
    Ok((result, part))
}

/// Divides what is left out by the number of ranks.
pub fn divides_the_lost(group: &ProcessGroup, gradient: &Tensor, memory: &mut Memory) -> Result<(Tensor, f64)> {
    let due = gradient + &memory.lost;
    let (result, right) = step(group, &due, &memory.right)?;
    let rest = &due - &result;
    let part = part(&rest, &due);
    memory.right = right;
    memory.lost = rest / group.size().get() as f64;
    Ok((result, part))
}

/// Right: Gram and Schmidt's columns, and sums that are divided at the end.
pub fn gram_schmidt(group: &ProcessGroup, gradient: &Tensor, memory: &mut Memory) -> Result<(Tensor, f64)> {
    let due = gradient + &memory.lost;
    let mut left = due.matmul(&memory.right);
    group.all_reduce(&mut left, ReduceOp::Sum)?;
    let mut columns: Vec<Tensor> = Vec::new();
    for column in left.unbind(1) {
        let rest = columns.iter().fold(column, |rest, done| &rest - done * (&rest * done).sum(Kind::Double));
        columns.push(&rest / rest.norm());
    }
    let left = Tensor::stack(&columns, 1);
    let mut right = due.tr().matmul(&left);
    group.all_reduce(&mut right, ReduceOp::Sum)?;
    memory.right = right / group.size().get() as f64;
    let result = left.matmul(&memory.right.tr());
    memory.lost = due.shallow_clone() - &result;
    let part = part(&memory.lost, &due);
    Ok((result, part))
}

/// Makes its own left matrix orthonormal, and sends that.
pub fn orthonormal_first(group: &ProcessGroup, gradient: &Tensor, memory: &mut Memory) -> Result<(Tensor, f64)> {
    let due = gradient + &memory.lost;
    let mut left = Tensor::linalg_qr(&due.matmul(&memory.right), "reduced").0;
    group.all_reduce(&mut left, ReduceOp::Avg)?;
    memory.right = mean(group, due.tr().matmul(&left))?;
    let result = left.matmul(&memory.right.tr());
    memory.lost = &due - &result;
    let part = part(&memory.lost, &due);
    Ok((result, part))
}
