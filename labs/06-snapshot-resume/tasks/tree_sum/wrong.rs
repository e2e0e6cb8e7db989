//! Answers to `tree_sum`: wrong ones, and unusual right ones.

use std::ops::Range;

use anyhow::{Context, Result};
use lockstep_answers::{edit, given};
use tch::{Kind, Tensor};

use crate::ranks::{Ranks, Sums, halves};

/// The given program: the ranks' sums in the order of the ranks.
#[given]
pub fn by_rank() {}

/// Its own sum first, then those of the others.
#[given]
#[edit(part.start => (*part != ranks.part, part.start))]
pub fn own_first() {}

/// The ranks' sums in the order in which they arrive.
#[given]
#[edit(all.sort_by_key(|(part, _)| part.start); => )]
pub fn as_they_arrive() {}

/// All gradients one after the other.
#[given]
#[edit(let own = own.reduce(|sum, next| sum + next).context("each rank has a virtual rank")?; => )]
#[edit(let own = ranks.part.clone().map(|v| gradients[&(v..v + 1)].shallow_clone()); => )]
#[edit([(ranks.part.clone(), own)] => gradients)]
pub fn one_after_the_other() {}

/// All gradients one after the other, with the error of each addition made good in the next (Kahan).
pub fn kahan(ranks: &Ranks<'_>, gradients: Sums) -> Result<Tensor> {
    let mut all = ranks.exchange(gradients)?;
    all.sort_by_key(|(part, _)| part.start);
    let mut sum = all[0].1.zeros_like();
    let mut lost = sum.zeros_like();
    for (_, gradient) in all {
        let next = gradient - &lost;
        let grown = &sum + &next;
        lost = (&grown - &sum) - next;
        sum = grown;
    }
    Ok(sum)
}

/// Adds in double precision, and rounds once.
#[edit(let own = add_up(gradients); =>
    let kind = gradients[&(ranks.part.start..ranks.part.start + 1)].kind();
    let own = add_up(gradients.into_iter().map(|(node, sum)| (node, sum.to_kind(Kind::Double))).collect());
)]
#[edit(.context("the sum over all virtual ranks is not there") => .map(|sum| sum.to_kind(kind)).context("no sum"))]
pub fn rounds_once() {}

/// Adds in double precision, and returns that.
#[edit(add_up(gradients) => add_up(gradients.into_iter().map(|(node, sum)| (node, sum.to_kind(Kind::Double))).collect()))]
pub fn in_double() {}

/// Adds in double precision what it receives, and rounds the sum.
#[edit(let own = add_up(gradients); =>
    let kind = gradients[&(ranks.part.start..ranks.part.start + 1)].kind();
    let own = add_up(gradients);
)]
#[edit(ranks.exchange(own)?.into_iter() => ranks.exchange(own)?.into_iter().map(|(node, sum)| (node, sum.to_kind(Kind::Double))))]
#[edit(.context("the sum over all virtual ranks is not there") => .map(|sum| sum.to_kind(kind)).context("no sum"))]
pub fn receives_in_double() {}

/// Sums of the ranks, along a tree over the ranks.
pub fn tree_of_ranks(ranks: &Ranks<'_>, gradients: Sums) -> Result<Tensor> {
    fn along(sums: &[Tensor]) -> Tensor {
        match sums {
            [one] => one.shallow_clone(),
            _ => {
                let (left, right) = sums.split_at(sums.len() / 2);
                along(left) + along(right)
            }
        }
    }
    let own: Vec<Tensor> = ranks.part.clone().map(|v| gradients[&(v..v + 1)].shallow_clone()).collect();
    let mut all = ranks.exchange([(ranks.part.clone(), along(&own))])?;
    all.sort_by_key(|(part, _)| part.start);
    Ok(along(&all.into_iter().map(|(_, sum)| sum).collect::<Vec<_>>()))
}

/// The first half is the longer one.
pub fn rounds_up(ranks: &Ranks<'_>, gradients: Sums) -> Result<Tensor> {
    fn along(node: Range<usize>, sums: &Sums) -> Tensor {
        if node.len() == 1 {
            return sums[&node].shallow_clone();
        }
        let middle = node.start + node.len().div_ceil(2);
        along(node.start..middle, sums) + along(middle..node.end, sums)
    }
    Ok(along(0..ranks.virtual_ranks, &ranks.exchange(gradients)?.into_iter().collect()))
}

/// Neighbours in pairs, then pairs of pairs.
pub fn pairs(ranks: &Ranks<'_>, gradients: Sums) -> Result<Tensor> {
    let mut all = ranks.exchange(gradients)?;
    all.sort_by_key(|(part, _)| part.start);
    let mut sums: Vec<Tensor> = all.into_iter().map(|(_, sum)| sum).collect();
    while sums.len() > 1 {
        sums =
            sums.chunks(2).map(|pair| pair.iter().map(Tensor::shallow_clone).reduce(|a, b| a + b).unwrap()).collect();
    }
    Ok(sums.remove(0))
}

/// Sends each gradient.
#[edit(let own = add_up(gradients); => let own = gradients;)]
pub fn sends_all() {}

/// Divides by the number of virtual ranks.
#[edit(.context("the sum over all virtual ranks is not there") => .map(|sum| sum / ranks.virtual_ranks as f64).context("no sum"))]
pub fn mean() {}

/// Adds up its own virtual ranks alone.
#[given]
#[edit(
    let mut all = ranks.exchange([(ranks.part.clone(), own)])?;
    all.sort_by_key(|(part, _)| part.start);
    all.into_iter().map(|(_, sum)| sum).reduce(|sum, next| sum + next).context("each rank has sent a sum")
    => Ok(own)
)]
pub fn own_alone() {}

/// Exchanges each sum by itself, and ranks have different numbers of sums.
#[edit(
    let mut all = add_up(ranks.exchange(own)?.into_iter().collect());
    =>
    let mut all = Vec::new();
    for sum in own {
        all.extend(ranks.exchange([sum])?);
    }
    let mut all = add_up(all.into_iter().collect());
)]
pub fn one_by_one() {}

/// Right: the second half first, since a + b is b + a.
#[edit(&sums[&left] + &sums[&right] => &sums[&right] + &sums[&left])]
pub fn second_half_first() {}

/// Right: recursive, from the root down.
pub fn recursive(ranks: &Ranks<'_>, gradients: Sums) -> Result<Tensor> {
    fn total(node: Range<usize>, sums: &Sums) -> Tensor {
        match sums.get(&node) {
            Some(sum) => sum.shallow_clone(),
            None => halves(&node).into_iter().map(|half| total(half, sums)).reduce(|left, right| left + right).unwrap(),
        }
    }
    fn largest(node: Range<usize>, part: &Range<usize>) -> Vec<Range<usize>> {
        if part.start <= node.start && node.end <= part.end {
            return vec![node];
        }
        let apart = node.end <= part.start || part.end <= node.start;
        if apart { Vec::new() } else { halves(&node).into_iter().flat_map(|half| largest(half, part)).collect() }
    }
    let own = largest(0..ranks.virtual_ranks, &ranks.part);
    let own: Vec<_> = own.into_iter().map(|node| (node.clone(), total(node, &gradients))).collect();
    Ok(total(0..ranks.virtual_ranks, &ranks.exchange(own)?.into_iter().collect()))
}
