//! Grades `column_row`: the outputs, the operations and bytes, and how much of each weight a rank takes; on 2 and 3 ranks.

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
    for ranks in [2, 3] {
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
        let same = outputs.all(0).all(|found| close(&outputs.of(0, 0).outputs, &found.outputs, TOLERANCE));
        for (rank, found) in outputs.all(0).enumerate() {
            case.check(rank, same, found)?;
        }
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

    fn check(&self, rank: usize, same: bool, found: &Divided) -> anyhow::Result<()> {
        let part = self.h / self.ranks;
        let given = format!("n = {}, f = {}, h = {} on {} ranks", self.n, self.f, self.h, self.ranks);
        let is = |other: &[f64]| close(other, &found.outputs, TOLERANCE);
        let right = self.partial_sum(0..self.h, 0);
        let linear = self.partial_sum_after(|hidden| hidden, 0..self.h, 0);
        let relu_at_the_end: Vec<f64> = linear.iter().map(|sum| sum.max(0.0)).collect();
        let relu_of_partial_sum = |rank: usize| -> Vec<f64> {
            let partial_sum = self.partial_sum_after(|hidden| hidden, rank * part..(rank + 1) * part, 0);
            partial_sum.into_iter().map(|sum| sum.max(0.0)).collect()
        };
        let relu_of_summands: Vec<f64> = (0..self.ranks)
            .map(relu_of_partial_sum)
            .reduce(|sum, one| sum.iter().zip(&one).map(|(sum, one)| sum + one).collect())
            .unwrap_or_default();
        let mean: Vec<f64> = right.iter().map(|sum| sum / self.ranks as f64).collect();
        Claim::close(&right, &found.outputs, TOLERANCE)
            .on_rank(rank)
            .given(&given)
            .diagnose_if(
                same && is(&self.partial_sum(0..self.f, 0)),
                "only the first f of the h outputs of the first layer are there: its outputs are divided, so a rank's part has h/p of \
                 them, and not f/p",
            )
            .diagnose_if(
                // After a `reduce`, whose result is right on rank 0, another rank's buffer may still hold its partial sum.
                rank == 0 && is(&self.partial_sum(0..part, 0)),
                "this is the rank's own partial sum of y: the sum over all ranks is missing",
            )
            .diagnose_if(
                is(&self.relu_of_parts()),
                "the ReLU was applied to each rank's partial sums of the first layer: it needs whole sums, and the ReLU of a sum is not the \
                 sum of ReLUs",
            )
            .diagnose_if(
                is(&self.partial_sum(0..self.h, part)),
                "a rank's columns of the second weight must be those of the outputs that it has of the first",
            )
            .diagnose_if(
                is(&mean),
                "this is the mean of the ranks' partial sums: gradients of parts of a batch are averaged, but partial sums of an output \
                 are added",
            )
            .diagnose_if(
                is(&linear) || is(&relu_at_the_end) || is(&relu_of_summands),
                "there is no ReLU between the layers: each rank applies it to its outputs of the first layer, before the second",
            )
            .diagnose_if(
                rank > 0,
                "rank 0 has y, and this rank does not: `reduce` leaves the sum on one rank, and all ranks need it for the layers that \
                 follow",
            )
            .or_fail("this is not relu(x W₁ᵀ) W₂ᵀ")?;
        let all = (self.f * self.h) as i64;
        Claim::equal(&[all / self.ranks as i64; 2], &found.taken)
            .on_rank(rank)
            .given(&given)
            .diagnose_if(
                found.taken == [all; 2],
                "the outputs are right, but each rank took both weights whole: they would not fit",
            )
            .or_fail("the outputs are right, but this rank took more than its share of a weight")?;
        let bytes = (self.n * self.f * 8) as u64;
        Claim::that(
            (found.calls, found.bytes) == (1, bytes),
            format!("1 operation with {bytes} bytes"),
            format!("{} with {} bytes", counted(found.calls, "operation"), found.bytes),
        )
        .on_rank(rank)
        .given(given)
        .diagnose_if(
            found.bytes == (self.n * part * 8 + self.n * self.f / self.ranks * 8) as u64,
            "the outputs are right, but the first layer's were gathered: a second layer that is divided by its inputs needs only those \
             that the rank has",
        )
        .diagnose_if(
            found.bytes == (self.n * (self.h + self.f) * 8) as u64,
            "the outputs are right, but the outputs of the first layer were summed over the ranks: divided by outputs, it gives whole \
             sums, and a rank's part of the second layer needs only its own",
        )
        .diagnose_if(
            found.calls == 2,
            "the outputs are right, but with two exchanges: divided by inputs, the first layer gives partial sums, which must be added \
             before the ReLU. Divide it by outputs",
        )
        .or_fail("the outputs are right, but a single all-reduce of n·f numbers is enough")
    }
}
