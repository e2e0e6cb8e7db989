//! Grades `column_row`: the outputs, the operations and bytes, and how much of each weight a rank takes; on 3 and 2 ranks.

use lockstep_grading::{Claim, Numbers, Runner, close, counted};
use serde::Deserialize;

const TOLERANCE: f64 = 1e-9;

#[derive(Deserialize)]
struct Divided {
    outputs: Numbers,
    taken: [i64; 2],
    calls: u64,
    bytes: u64,
}

/// Both layers on one rank.
struct ColumnRowCase {
    ranks: usize,
    n: usize,
    f: usize,
    h: usize,
    x: Vec<f64>,
    first: Vec<f64>,
    second: Vec<f64>,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    for ranks in [3, 2] {
        let (n, f) = (random.below(2..5), ranks * random.below(1..3));
        // Larger than f, so that a part of one is not a part of the other.
        let h = f + ranks * random.below(1..3);
        let case = loop {
            let (x, first, second) = (random.numbers(n * f), random.numbers(h * f), random.numbers(f * h));
            let case = ColumnRowCase { ranks, n, f, h, x, first, second };
            // The ReLU can make a part of the partial sums zero, and then a missing part would not show.
            let is_zero = |inner| case.partial_sum(inner, 0).iter().all(|sum| *sum == 0.0);
            let part = h / ranks;
            if !is_zero(f..h) && (0..ranks).all(|rank| !is_zero(rank * part..(rank + 1) * part)) {
                break case;
            }
        };
        let outputs = runner.call::<_, Divided>(ranks, &[([n, f, h], &case.x, &case.first, &case.second)])?;
        let all: Vec<&Divided> = outputs.all(0).collect();
        (0..ranks).try_for_each(|rank| case.check(rank, &all))?;
    }
    Ok(())
}

impl ColumnRowCase {
    /// The partial sum of y that comes from some outputs of the first layer, through the second's columns `shift` places on.
    fn partial_sum(&self, inner: std::ops::Range<usize>, shift: usize) -> Vec<f64> {
        self.partial_sum_after(|hidden| hidden.max(0.0), inner, shift)
    }

    /// The same, with another function than the ReLU.
    fn partial_sum_after(&self, relu: fn(f64) -> f64, inner: std::ops::Range<usize>, shift: usize) -> Vec<f64> {
        let mut y = vec![0.0; self.n * self.f];
        for row in 0..self.n {
            for k in inner.clone() {
                let hidden: f64 = (0..self.f).map(|i| self.x[row * self.f + i] * self.first[k * self.f + i]).sum();
                let column = (k + shift) % self.h;
                (0..self.f).for_each(|o| y[row * self.f + o] += relu(hidden) * self.second[o * self.h + column]);
            }
        }
        y
    }

    /// With the ReLU of each rank's partial sum of the first layer.
    fn relu_of_parts(&self) -> Vec<f64> {
        let (mut y, part) = (vec![0.0; self.n * self.f], self.f / self.ranks);
        for row in 0..self.n {
            for k in 0..self.h {
                let of = |rank: usize| -> f64 {
                    let inputs = rank * part..(rank + 1) * part;
                    inputs.map(|i| self.x[row * self.f + i] * self.first[k * self.f + i]).sum::<f64>().max(0.0)
                };
                let hidden: f64 = (0..self.ranks).map(of).sum();
                (0..self.f).for_each(|o| y[row * self.f + o] += hidden * self.second[o * self.h + k]);
            }
        }
        y
    }

    /// The sum over the ranks of the ReLU of each one's partial sum of y.
    fn relu_of_summands(&self, part: usize) -> Vec<f64> {
        let mut y = vec![0.0; self.n * self.f];
        for rank in 0..self.ranks {
            let partial_sum = self.partial_sum_after(|hidden| hidden, rank * part..(rank + 1) * part, 0);
            y.iter_mut().zip(partial_sum).for_each(|(sum, one)| *sum += one.max(0.0));
        }
        y
    }

    /// `all` are all ranks' results.
    fn check(&self, rank: usize, all: &[&Divided]) -> anyhow::Result<()> {
        let (part, found) = (self.h / self.ranks, all[rank]);
        let given = format!("n = {}, f = {}, h = {} on {} ranks", self.n, self.f, self.h, self.ranks);
        let is = |rank: usize, other: &[f64]| close(other, &all[rank].outputs, TOLERANCE);
        let all_are = |other: &[f64]| (0..self.ranks).all(|rank| is(rank, other));
        let right = self.partial_sum(0..self.h, 0);
        let linear = self.partial_sum_after(|hidden| hidden, 0..self.h, 0);
        let relu_at_the_end: Vec<f64> = linear.iter().map(|sum| sum.max(0.0)).collect();
        let mean: Vec<f64> = right.iter().map(|sum| sum / self.ranks as f64).collect();
        Claim::close(&right, &found.outputs, TOLERANCE)
            .on_rank(rank)
            .given(&given)
            .cause_if(
                all_are(&self.partial_sum(0..self.f, 0)),
                "only the first f of the h outputs of the first layer are there: its outputs are divided, so a rank's part has h/p of \
                 them, and not f/p",
            )
            .cause_if(
                (0..self.ranks).all(|rank| is(rank, &self.partial_sum(rank * part..(rank + 1) * part, 0))),
                "this is the rank's own partial sum of y: the sum over all ranks is missing",
            )
            .cause_if(
                all_are(&self.relu_of_parts()),
                "the ReLU was applied to each rank's partial sums of the first layer: it needs whole sums, and the ReLU of a sum is not the \
                 sum of ReLUs",
            )
            .cause_if(
                (1..self.ranks).any(|ranks| all_are(&self.partial_sum(0..self.h, ranks * part))),
                "a rank's columns of the second weight must be those of the outputs that it has of the first",
            )
            .cause_if(
                all_are(&mean),
                "this is the mean of the ranks' partial sums: gradients of parts of a batch are averaged, but partial sums of an output \
                 are added",
            )
            .cause_if(
                all_are(&linear) || all_are(&relu_at_the_end) || all_are(&self.relu_of_summands(part)),
                "there is no ReLU between the layers: each rank applies it to its outputs of the first layer, before the second",
            )
            .diagnose_if(
                // After a `reduce`, another rank's buffer may hold anything.
                rank > 0 && is(0, &right),
                "rank 0 has y, and this rank does not: `reduce` leaves the sum on one rank, and all ranks need it for the layers that \
                 follow",
            )
            .or_fail("this is not relu(x W₁ᵀ) W₂ᵀ")?;
        let whole = (self.f * self.h) as i64;
        Claim::equal(&[whole / self.ranks as i64; 2], &found.taken)
            .on_rank(rank)
            .given(&given)
            .diagnose_if(
                found.taken == [whole; 2],
                "the outputs are right, but each rank took both weights whole: they would not fit",
            )
            .or_fail("the outputs are right, but this rank took more than its share of a weight")?;
        let bytes = (self.n * self.f * 8) as u64;
        let all_sent = |numbers: usize| all.iter().all(|found| (found.calls, found.bytes) == (2, (numbers * 8) as u64));
        Claim::that(
            (found.calls, found.bytes) == (1, bytes),
            format!("1 operation with {bytes} bytes"),
            format!("{} with {} bytes", counted(found.calls, "operation"), found.bytes),
        )
        .on_rank(rank)
        .given(given)
        .cause_if(
            all_sent(self.n * part + self.n * self.f / self.ranks),
            "the outputs are right, but the first layer's were gathered: a second layer that is divided by its inputs needs only those \
             that the rank has",
        )
        .cause_if(
            all_sent(self.n * (self.h + self.f)),
            "the outputs are right, but the outputs of the first layer were summed over the ranks: divided by outputs, it gives whole \
             sums, and a rank's part of the second layer needs only its own",
        )
        .cause_if(
            all_sent(self.n * self.h + self.n * self.f / self.ranks),
            "the outputs are right, but with two exchanges: divided by inputs, the first layer gives partial sums, which must be added \
             before the ReLU. Divide it by outputs",
        )
        .or_fail("the outputs are right, but a single all-reduce of n·f numbers is enough")
    }
}
