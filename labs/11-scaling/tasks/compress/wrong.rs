//! Answers to `compress`: wrong ones, and unusual right ones.

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use lockstep_answers::{edit, given};
use tch::{Kind, Tensor};

fn sum_as(group: &ProcessGroup, gradient: &Tensor, kind: Kind) -> Result<Tensor> {
    let mut sum = gradient.to_kind(kind);
    group.all_reduce(&mut sum, ReduceOp::Sum)?;
    Ok(sum)
}

fn ranks(group: &ProcessGroup) -> f64 {
    group.size().get() as f64
}

/// The given program: sends 4 bytes for each number.
#[given]
pub fn whole() {}

/// Divides after the sum.
pub fn divides_last(group: &ProcessGroup, gradient: &Tensor) -> Result<Tensor> {
    Ok(sum_as(group, gradient, Kind::Half)?.to_kind(Kind::Float) / ranks(group))
}

/// Returns half precision.
#[edit(mean.to_kind(Kind::Float) => mean)]
pub fn stays_half() {}

/// Does not divide.
pub fn sums(group: &ProcessGroup, gradient: &Tensor) -> Result<Tensor> {
    Ok(sum_as(group, gradient, Kind::BFloat16)?.to_kind(Kind::Float))
}

/// Takes bfloat16, which has 8 bits of mantissa.
#[edit(Kind::Half => Kind::BFloat16)]
pub fn bfloat16() {}

/// Rounds to half precision, but sends `Float`.
pub fn only_rounds(group: &ProcessGroup, gradient: &Tensor) -> Result<Tensor> {
    sum_as(group, &(gradient / ranks(group)).to_kind(Kind::Half), Kind::Float)
}

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
pub fn own_scale(group: &ProcessGroup, gradient: &Tensor) -> Result<Tensor> {
    let largest = gradient.abs().max().double_value(&[]);
    Ok(sum_as(group, &(gradient / (largest * ranks(group))), Kind::Half)?.to_kind(Kind::Float) * largest)
}

/// Scales by 1/1024, whatever the size of the numbers.
pub fn fixed_scale(group: &ProcessGroup, gradient: &Tensor) -> Result<Tensor> {
    Ok(sum_as(group, &(gradient / 1024.0), Kind::Half)?.to_kind(Kind::Float) * (1024.0 / ranks(group)))
}

/// Scales large gradients by 1/1024.
pub fn scale_by_size(group: &ProcessGroup, gradient: &Tensor) -> Result<Tensor> {
    let scale = if gradient.abs().max().double_value(&[]) > 1e3 { 1024.0 } else { 1.0 };
    Ok(sum_as(group, &(gradient / (scale * ranks(group))), Kind::Half)?.to_kind(Kind::Float) * scale)
}

/// Divides by three, whatever the number of ranks.
#[edit(group.size().get() as f64 => 3.0)]
pub fn three_ranks() {}

/// Divides in place.
#[edit((gradient / group.size().get() as f64).to_kind(Kind::Half) => gradient.shallow_clone().divide_scalar_(group.size().get() as f64).to_kind(Kind::Half))]
pub fn in_place() {}

/// Multiplies by 1024, so that no small number loses bits.
pub fn scales_up(group: &ProcessGroup, gradient: &Tensor) -> Result<Tensor> {
    Ok(sum_as(group, &(gradient * 1024.0 / ranks(group)), Kind::Half)?.to_kind(Kind::Float) / 1024.0)
}

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
