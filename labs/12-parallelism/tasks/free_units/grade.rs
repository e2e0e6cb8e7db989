//! Grades `free_units`: the gradients, which are NaN where a freed weight was read; gathers, reduces and bytes; and how much is whole at
//! once. On 2 and 3 ranks.

use lockstep_grading::{Claim, Numbers, Runner, close, counted};
use serde::Deserialize;

const TOLERANCE: f64 = 1e-6;
const UNITS: usize = 4;

#[derive(Deserialize)]
struct Sharded {
    gradients: Vec<Numbers>,
    gathers: u64,
    frees: u64,
    reduces: u64,
    bytes: u64,
    most: [u64; 2],
}

/// All units on one rank, and each rank's rows.
struct FreeUnitsCase {
    ranks: usize,
    n: usize,
    f: usize,
    weights: Vec<Vec<f64>>,
    x: Vec<Vec<f64>>,
    targets: Vec<Vec<f64>>,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    for ranks in [2, 3] {
        let (n, f) = (random.below(2..4), ranks * random.below(1..3) + ranks);
        let weights = (0..UNITS).map(|_| random.numbers(f * f).iter().map(|number| number / 4.0).collect()).collect();
        let [x, targets] = [(); 2].map(|()| (0..ranks).map(|_| random.numbers(n * f)).collect::<Vec<_>>());
        let case = FreeUnitsCase { ranks, n, f, weights, x, targets };
        let outputs = runner.call::<_, Sharded>(ranks, &[([n, f], &case.weights, &case.x, &case.targets)])?;
        let [right, inputs_first] = [false, true].map(|inputs_first| case.gradients(inputs_first, 0));
        let of_outputs = case.gradients(false, 1);
        for (rank, found) in outputs.all(0).enumerate() {
            case.check(rank, &right, [&inputs_first, &of_outputs], found)?;
        }
    }
    Ok(())
}

impl FreeUnitsCase {
    /// The mean gradient of each whole weight. With `inputs_first`, that of a unit's inputs is put in the place of that of its outputs
    /// before the weight's is computed from it. With `later` 1, a unit's outputs are in the place of its inputs.
    fn gradients(&self, inputs_first: bool, later: usize) -> Vec<Vec<f64>> {
        let mut mean = vec![vec![0.0; self.f * self.f]; UNITS];
        for (x, targets) in self.x.iter().zip(&self.targets) {
            let mut inputs = vec![x.clone()];
            for weight in &self.weights {
                let y = self.product(&inputs[inputs.len() - 1], weight, true);
                inputs.push(y);
            }
            let mut of_outputs: Vec<f64> = inputs[UNITS].iter().zip(targets).map(|(y, target)| y - target).collect();
            for unit in (0..UNITS).rev() {
                let of_inputs = self.product(&of_outputs, &self.weights[unit], false);
                let of_outputs_seen = if inputs_first { &of_inputs } else { &of_outputs };
                for (place, sum) in mean[unit].iter_mut().enumerate() {
                    let (output, input) = (place / self.f, place % self.f);
                    let product = |row: usize| {
                        of_outputs_seen[row * self.f + output] * inputs[unit + later][row * self.f + input]
                    };
                    *sum += (0..self.n).map(product).sum::<f64>() / self.ranks as f64;
                }
                of_outputs = of_inputs;
            }
        }
        mean
    }

    /// x Wᵀ, or x W.
    fn product(&self, x: &[f64], weight: &[f64], transposed: bool) -> Vec<f64> {
        let f = self.f;
        let at = |row: usize, column: usize| weight[if transposed { column * f + row } else { row * f + column }];
        let element = |place: usize| (0..f).map(|k| x[place / f * f + k] * at(k, place % f)).sum();
        (0..self.n * f).map(element).collect()
    }

    fn check(
        &self,
        rank: usize,
        whole: &[Vec<f64>],
        [inputs_first, of_outputs]: [&[Vec<f64>]; 2],
        found: &Sharded,
    ) -> anyhow::Result<()> {
        let part = self.f * self.f / self.ranks;
        let given =
            format!("{UNITS} units of {} features, {} on each of {} ranks", self.f, counted(self.n, "row"), self.ranks);
        let twice = found.gathers > UNITS as u64;
        let nan: Vec<bool> =
            found.gradients.iter().map(|numbers| numbers.iter().any(|number| number.is_nan())).collect();
        let before = nan.iter().take_while(|nan| **nan).count();
        let is_read_freed = before > 0 && before < nan.len() && !nan[before..].contains(&true);
        Claim::equal(&UNITS, &found.gradients.len())
            .on_rank(rank)
            .given(&given)
            .or_fail("there is one gradient for each unit")?;
        for (unit, (expected, numbers)) in whole.iter().zip(&found.gradients).enumerate() {
            let rows = rank * part..(rank + 1) * part;
            let expected = &expected[rows.clone()];
            let scale = expected.iter().fold(1.0_f64, |most, number| most.max(number.abs()));
            Claim::that(
                close(expected, numbers, TOLERANCE * scale),
                format!("of unit {unit}: {expected:?}"),
                format!("{numbers:?}"),
            )
            .on_rank(rank)
            .given(&given)
            .diagnose_if(
                nan.iter().all(|nan| *nan),
                "all gradients are NaN, even that of the last unit, which is computed first: the outputs are already NaN, so a weight was \
                 freed before the forward pass used it",
            )
            .diagnose_if(
                is_read_freed && twice,
                format!(
                    "the gradient of unit {before} is right, and those of the units before it are NaN: the weight of unit {before} was \
                     freed before the gradient of its inputs was computed"
                ),
            )
            .diagnose_if(
                is_read_freed,
                format!(
                    "the gradient of unit {before} is right, and those of the units before it are NaN: the weight of unit {before} was \
                     freed after the forward pass and not gathered again, but the gradient of its inputs needs it"
                ),
            )
            .diagnose_if(
                numbers.len() == self.f * self.f,
                "this is the rank's own gradient of the whole weight: each rank needs its rows of the mean, which a reduce-scatter gives \
                 it",
            )
            .diagnose_if(
                close(&inputs_first[unit][rows.clone()], numbers, TOLERANCE * scale),
                "the gradient of the unit's outputs was replaced by that of its inputs too early: the gradient of the weight is \
                 computed from that of the outputs",
            )
            .diagnose_if(
                found.gathers == UNITS as u64 && found.gradients.last().is_some_and(|last| {
                    close(&whole[UNITS - 1][rows.clone()], last, TOLERANCE * scale)
                }),
                "the last unit's gradient is right and the others are not: the gradient of a unit's inputs is that of its outputs times \
                 its weight",
            )
            .diagnose_if(
                close(&of_outputs[unit][rows.clone()], numbers, TOLERANCE * scale),
                "the gradient of the weight was computed from the unit's outputs: keep the inputs of each unit in the forward pass",
            )
            .diagnose_if(
                numbers.len() == expected.len()
                    && expected.iter().zip(numbers.iter()).all(|(right, found)| (right - found * self.n as f64).abs() <= TOLERANCE * scale),
                "this is divided by the number of rows: the loss is half of the squared distance of all rows together, and the mean is \
                 that over the ranks",
            )
            .or_fail("this is not the rank's part of the mean gradient")?;
        }
        self.check_cost(rank, &given, found)
    }

    fn check_cost(&self, rank: usize, given: &str, found: &Sharded) -> anyhow::Result<()> {
        let weight = (self.f * self.f * 8) as u64;
        let [weights, gradients] = found.most;
        Claim::that(weights <= 2, "at most two whole weights at once", format!("{weights} whole weights at once"))
            .on_rank(rank)
            .given(given)
            .diagnose_if(
                found.gathers <= UNITS as u64,
                "the gradients are right, but no weight is freed between the passes: at the end of the forward pass all are whole, and \
                 the memory is that of a whole model",
            )
            .diagnose_if(
                // The last two may stay.
                found.frees + 2 < found.gathers,
                "the gradients are right, but weights stay whole after their last use in a pass: free a unit after its outputs, and again \
                 after both of its gradients",
            )
            .or_fail(
                "the gradients are right, but too many weights are whole at once: gather a unit when it is needed, or one unit ahead, and \
                 free it when both of its gradients are ready",
            )?;
        Claim::that(gradients <= 2, "at most two whole gradients at once", format!("{gradients} whole gradients at once"))
            .on_rank(rank)
            .given(given)
            .or_fail(
                "the gradients are right, but those of whole weights are kept until the end: reduce each as soon as it is ready, and keep \
                 only the rank's rows",
            )?;
        let units = UNITS as u64;
        // A rank passes its part to a gather, and the whole gradient to a reduce-scatter.
        let most = 2 * units * weight / self.ranks as u64 + units * weight;
        let shown = |gathers, reduces, bytes| format!("{gathers} gathers, {reduces} reduce-scatters, {bytes} bytes");
        Claim::that(
            found.gathers <= 2 * units && found.reduces == units && found.bytes <= most,
            format!("at most {}", shown(2 * units, units, most)),
            shown(found.gathers, found.reduces, found.bytes),
        )
        .on_rank(rank)
        .given(given)
        .diagnose_if(
            found.gathers > 2 * units,
            "the gradients are right, but a unit is gathered more than twice: both gradients of its backward pass can use the same \
             gathered weight",
        )
        .or_fail("the gradients are right, but more is sent than needed")
    }
}
