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
    /// Whether a freed weight was read in the forward pass, and in the backward pass.
    freed: [bool; 2],
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
        let (n, f) = (ranks + random.below(1..3), ranks * random.below(1..3) + ranks);
        let weights = (0..UNITS).map(|_| random.numbers(f * f).iter().map(|number| number / 4.0).collect()).collect();
        let [x, targets] = [(); 2].map(|()| (0..ranks).map(|_| random.numbers(n * f)).collect::<Vec<_>>());
        let case = FreeUnitsCase { ranks, n, f, weights, x, targets };
        let outputs = runner.call::<_, Sharded>(ranks, &[([n, f], &case.weights, &case.x, &case.targets)])?;
        for (rank, found) in outputs.all(0).enumerate() {
            case.check(rank, found)?;
        }
    }
    Ok(())
}

/// Where a gradient of a weight comes from.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Right,
    /// The inputs' gradient replaces the outputs' gradient before the weight's gradient is computed.
    InputsFirst,
    /// The unit's outputs are in the place of its inputs.
    OfOutputs,
    /// All units get the first unit's inputs.
    FirstInputs,
    /// All units get the gradient of the last outputs.
    Unchanged,
}

impl FreeUnitsCase {
    /// The mean over these ranks of the gradient of each whole weight.
    fn gradients(&self, way: Way, ranks: std::ops::Range<usize>) -> Vec<Vec<f64>> {
        let mut mean = vec![vec![0.0; self.f * self.f]; UNITS];
        for (x, targets) in self.x[ranks.clone()].iter().zip(&self.targets[ranks.clone()]) {
            let mut inputs = vec![x.clone()];
            for weight in &self.weights {
                let y = self.product(&inputs[inputs.len() - 1], weight, true);
                inputs.push(y);
            }
            let mut of_outputs: Vec<f64> = inputs[UNITS].iter().zip(targets).map(|(y, target)| y - target).collect();
            for unit in (0..UNITS).rev() {
                let of_inputs = self.product(&of_outputs, &self.weights[unit], false);
                let of_outputs_seen = if way == Way::InputsFirst { &of_inputs } else { &of_outputs };
                let seen = match way {
                    Way::OfOutputs => unit + 1,
                    Way::FirstInputs => 0,
                    _ => unit,
                };
                for (place, sum) in mean[unit].iter_mut().enumerate() {
                    let (output, input) = (place / self.f, place % self.f);
                    let product =
                        |row: usize| of_outputs_seen[row * self.f + output] * inputs[seen][row * self.f + input];
                    *sum += (0..self.n).map(product).sum::<f64>() / ranks.len() as f64;
                }
                if way != Way::Unchanged {
                    of_outputs = of_inputs;
                }
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

    fn check(&self, rank: usize, found: &Sharded) -> anyhow::Result<()> {
        let given =
            format!("{UNITS} units of {} features, {} on each of {} ranks", self.f, counted(self.n, "row"), self.ranks);
        Claim::equal(&UNITS, &found.gradients.len())
            .on_rank(rank)
            .given(&given)
            .or_fail("there is one gradient for each unit")?;
        let whole = self.gradients(Way::Right, 0..self.ranks);
        let is_right = |unit: usize| near(&whole[unit][self.rows_of(rank)], &found.gradients[unit]);
        if let Some(unit) = (0..UNITS).find(|unit| !is_right(*unit)) {
            self.explain(rank, unit, &whole, &given, found)?;
        }
        self.check_cost(rank, &given, found)
    }

    /// The places of a rank's rows in a weight.
    fn rows_of(&self, rank: usize) -> std::ops::Range<usize> {
        let part = self.f * self.f / self.ranks;
        rank * part..(rank + 1) * part
    }

    /// Why the gradient of a unit is wrong; `whole` are the right ones of all units. Long, because each known mistake is one diagnosis.
    fn explain(
        &self,
        rank: usize,
        unit: usize,
        whole: &[Vec<f64>],
        given: &str,
        found: &Sharded,
    ) -> anyhow::Result<()> {
        let rows = self.rows_of(rank);
        let twice = found.gathers > UNITS as u64;
        let nan: Vec<bool> =
            found.gradients.iter().map(|numbers| numbers.iter().any(|number| number.is_nan())).collect();
        let before = nan.iter().take_while(|nan| **nan).count();
        let is_read_freed = before > 0 && before < nan.len() && !nan[before..].contains(&true);
        let [inputs_first, of_outputs, first_inputs, unchanged] =
            [Way::InputsFirst, Way::OfOutputs, Way::FirstInputs, Way::Unchanged]
                .map(|way| self.gradients(way, 0..self.ranks));
        let own = self.gradients(Way::Right, rank..rank + 1);
        // The gradients of all units are those.
        let are = |other: &dyn Fn(usize) -> Vec<f64>| {
            found.gradients.iter().enumerate().all(|(unit, numbers)| near(&other(unit), numbers))
        };
        let is = |whole: &[Vec<f64>]| are(&|unit| whole[unit][rows.clone()].to_vec());
        let times = |by: f64| are(&|unit| whole[unit][rows.clone()].iter().map(|number| by * number).collect());
        let turned = |unit: usize| -> Vec<f64> {
            rows.clone().map(|place| whole[unit][place % self.f * self.f + place / self.f]).collect()
        };
        let (expected, numbers) = (&whole[unit][rows.clone()], &found.gradients[unit]);
        Claim::that(
            false,
            format!("of unit {unit}: {expected:?}"),
            format!("{numbers:?}"),
        )
        .on_rank(rank)
        .given(given)
        .diagnose_if(
            nan[unit] && found.freed[0],
            "the outputs are already NaN: a weight was freed before the forward pass used it",
        )
        .diagnose_if(
            is_read_freed && twice,
            format!(
                "the gradient of unit {before} is right, and those of the units before it are NaN: the weight of unit {before} was \
                 freed before the gradient of its inputs was computed"
            ),
        )
        .diagnose_if(
            is_read_freed && found.freed[1],
            format!(
                "the gradient of unit {before} is right, and those of the units before it are NaN: the weight of unit {before} was \
                 freed after the forward pass and not gathered again, but the gradient of its inputs needs it"
            ),
        )
        .diagnose_if(
            nan[unit] && found.freed[1],
            "the gradient of a unit's inputs was computed while its weight was freed, and what follows from it is NaN",
        )
        .cause_if(
            are(&|unit| own[unit].clone()),
            "this is the rank's own gradient of the whole weight: each rank needs its rows of the mean, which a reduce-scatter gives \
             it",
        )
        .diagnose_if(
            numbers.len() != expected.len(),
            format!("{} numbers: the rank's rows have {}", numbers.len(), expected.len()),
        )
        .cause_if(
            is(&own),
            "these are the rows of the rank's own gradient: the mean over all ranks is asked for, which a reduce-scatter gives",
        )
        .cause_if(
            is(&inputs_first),
            "the gradient of the unit's outputs was replaced by that of its inputs too early: the gradient of the weight is \
             computed from that of the outputs",
        )
        .cause_if(
            is(&unchanged),
            "the last unit's gradient is right and the others are not: the gradient of a unit's inputs is that of its outputs times \
             its weight",
        )
        .cause_if(
            is(&of_outputs),
            "the gradient of the weight was computed from the unit's outputs: keep the inputs of each unit in the forward pass",
        )
        .cause_if(
            is(&first_inputs),
            "the gradients of all units were computed from the inputs of the first: each unit has the outputs of the one before",
        )
        .cause_if(
            times(1.0 / self.n as f64),
            "this is divided by the number of rows: the loss is half of the squared distance of all rows together, and the mean is \
             that over the ranks",
        )
        .cause_if(times(-1.0), "the gradients have the other sign: that of the outputs is outputs less targets")
        .cause_if(self.ranks != 2 && times(2.0), "twice as large: the loss is half of the squared distance")
        .cause_if(times(self.ranks as f64), "this is the sum over the ranks, not the mean")
        .cause_if(
            times(1.0 / self.ranks as f64),
            "too small by a factor of the number of ranks: `reduce` gives the mean already",
        )
        .cause_if(
            are(&|unit| whole[UNITS - 1 - unit][rows.clone()].to_vec()),
            "the gradients are in the order of the backward pass: the units' order is asked for",
        )
        .cause_if(are(&turned), "these are rows of the transposed gradient: a weight has a row for each output")
        .or_fail(format!("unit {unit}'s is not the rank's part of the mean gradient"))
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
                "the gradients are right, but those of whole weights are kept: reduce each as soon as it is ready, and keep only the rank's \
                 rows",
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

fn near(right: &[f64], numbers: &[f64]) -> bool {
    close(right, numbers, TOLERANCE * right.iter().fold(1.0_f64, |most, number| most.max(number.abs())))
}
