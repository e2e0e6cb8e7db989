//! Answers to `compress`: wrong ones, and unusual right ones.

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use lockstep_answers::{edit, given};
use tch::{Kind, Tensor};

fn ranks(group: &ProcessGroup) -> f64 {
    group.size().get() as f64
}

/// The given program: sends 4 bytes for each number.
#[given]
pub fn whole() {}

/// Divides after the sum.
#[edit(gradient / group.size().get() as f64 => gradient)]
#[edit(mean.to_kind(Kind::Float) => mean.to_kind(Kind::Float) / group.size().get() as f64)]
pub fn divides_last() {}

/// Returns half precision.
#[edit(mean.to_kind(Kind::Float) => mean)]
pub fn stays_half() {}

/// Does not divide.
#[edit((gradient / group.size().get() as f64).to_kind(Kind::Half) => gradient.to_kind(Kind::BFloat16))]
pub fn sums() {}

/// Takes bfloat16, which has 8 bits of mantissa.
#[edit(Kind::Half => Kind::BFloat16)]
pub fn bfloat16() {}

/// Rounds to half precision, but sends `Float`.
#[edit(.to_kind(Kind::Half) => .to_kind(Kind::Half).to_kind(Kind::Float))]
pub fn only_rounds() {}

/// Does not send at all.
pub fn own(_: &ProcessGroup, gradient: &Tensor) -> Result<Tensor> {
    Ok(gradient.to_kind(Kind::Half).to_kind(Kind::Float))
}

/// Right: gathers the halves of all ranks, and adds them up in single precision.
pub fn gathers(group: &ProcessGroup, gradient: &Tensor) -> Result<Tensor> {
    let half = gradient.to_kind(Kind::Half);
    let mut all: Vec<Tensor> = (0..group.size().get()).map(|_| half.zeros_like()).collect();
    group.all_gather(&mut all, &half)?;
    let sum = all.iter().fold(gradient.zeros_like(), |sum, half| sum + half.to_kind(Kind::Float));
    Ok(sum / ranks(group))
}

/// Right: divides in half precision.
#[edit((gradient / group.size().get() as f64).to_kind(Kind::Half) => gradient.to_kind(Kind::Half) / group.size().get() as f64)]
pub fn halves_twice() {}

/// Scales by the rank's own largest number.
#[edit(gradient / => gradient / gradient.abs().max() /)]
#[edit(mean.to_kind(Kind::Float) => mean.to_kind(Kind::Float) * gradient.abs().max())]
pub fn own_scale() {}

/// Scales by 1/1024, whatever the size of the numbers.
#[edit(/ group.size().get() as f64 => / 1024.0)]
#[edit(mean.to_kind(Kind::Float) => mean.to_kind(Kind::Float) * (1024.0 / group.size().get() as f64))]
pub fn fixed_scale() {}

fn scale(gradient: &Tensor) -> f64 {
    if gradient.abs().max().double_value(&[]) > 1e3 { 1024.0 } else { 1.0 }
}

/// Scales large gradients by 1/1024.
#[edit(gradient / => gradient / scale(gradient) /)]
#[edit(mean.to_kind(Kind::Float) => mean.to_kind(Kind::Float) * scale(gradient))]
pub fn scale_by_size() {}

/// Divides by three, whatever the number of ranks.
#[edit(group.size().get() as f64 => 3.0)]
pub fn three_ranks() {}

/// Divides in place.
#[edit((gradient / group.size().get() as f64).to_kind(Kind::Half) => gradient.shallow_clone().divide_scalar_(group.size().get() as f64).to_kind(Kind::Half))]
pub fn in_place() {}

/// Multiplies by 1024, so that no small number loses bits.
#[edit(gradient / => gradient * 1024.0 /)]
#[edit(mean.to_kind(Kind::Float) => mean.to_kind(Kind::Float) / 1024.0)]
pub fn scales_up() {}

/// Divides by the rank's number.
#[edit(group.size() => group.rank())]
pub fn divides_by_rank() {}

/// Returns the gradients of all ranks, one after the other.
pub fn concatenates(group: &ProcessGroup, gradient: &Tensor) -> Result<Tensor> {
    let half = (gradient / ranks(group)).to_kind(Kind::Half);
    let mut all: Vec<Tensor> = (0..group.size().get()).map(|_| half.zeros_like()).collect();
    group.all_gather(&mut all, &half)?;
    Ok(Tensor::cat(&all, 0).to_kind(Kind::Float))
}
