//! Checks that runs train the same: all ranks end with the same weights, bit for bit, and several ranks with one batch each train like
//! one rank with all of it, since averaging gradients over ranks is averaging over samples.
//!
//! Several ranks and one are equal in exact arithmetic; floats are summed in another order, so limits are needed. They are based on
//! measurements: pairs of runs of lab 02 on the CPU, 2 and 4 ranks × 32 against one rank, on drawn digits of up to 40 seeds and
//! on real ones (110 pairs for the losses, 25 for the weights after 4 steps, 16 for those of long runs), and one to three for
//! each deliberate difference.
//!
//! | largest difference | rounding alone | learning rate 1 % off | gradients summed, not averaged | limit |
//! |---|---|---|---|---|
//! | losses of the first 4 steps, relative to the loss | 1e-7, once 3e-6 | 2e-3 and more | 2e-1 and more | 1e-3 |
//! | weights after 4 steps, relative to the largest | 6e-7 | 1e-3 and more | 7e-2 and more | 1e-3 |
//! | losses of the first 16 steps | 2e-7, once 1e-3 | | | none |
//! | weights after 96 steps and more | 3e-7 to 2e-2 | 4e-2 | 8e-1 | 1e-1 |
//!
//! The ResNets of labs 07 and 08 amplify sooner, so `lockstep verify` trains them at rates of 3e-4 and 1e-4. Measured with two
//! seeds and two instruction sets: losses of the first 4 steps differ by 5e-8 to 7e-6, weights after 16 to 24 steps by 2e-3 to
//! 2e-2; with the rate doubled on one side by 2e-3 to 1e-2 and 7e-2 to 2e-1. At 5e-3 and 1e-3 AVX2 exceeded both limits (Adam's
//! step hardly depends on the size of a gradient).
//!
//! Training amplifies: at some random step, the runs begin to diverge by a factor of ten in some dozen steps, until they
//! settle. The likely cause, not proved here: an activation that rounding moves across zero switches a gradient on or off, for
//! a whole background of equal pixels at once. The sharp test is therefore the first steps; the final weights have a coarse
//! limit, which only large errors exceed.

use crate::check_values::padding;
use crate::evidence::{Evidence, Plan, Tensor, Weights};
use crate::report::{Finding, Unproven, counted};
use crate::trace::{Epoch, Trace};

/// Compares the tensors of every rank with rank 0's: names, types, shapes and bits.
pub(crate) fn same_weights(run: &Evidence) -> Finding {
    Finding::of("All ranks end with the same weights, to the bit".into(), equal_weights(run))
}

fn equal_weights(run: &Evidence) -> Result<String, Unproven> {
    let ranks = run.weights.iter().map(|weights| weights.as_ref().map_err(String::clone));
    let ranks = ranks.collect::<Result<Vec<_>, _>>()?;
    let Some((first, others)) = ranks.split_first().filter(|(_, others)| !others.is_empty()) else {
        return Err(Unproven::NotVerified("a single rank has no other to compare with".into()));
    };
    let values: usize = first.values().map(Tensor::len).sum();
    if values == 0 {
        return Err(Unproven::Failed("rank 0 saved no weights".into()));
    }
    for (rank, other) in (1..).zip(others) {
        compare_weights(first, other).map_err(|difference| format!("rank {rank} differs from rank 0: {difference}"))?;
    }
    let (tensors, values, ranks) = (counted(first.len(), "tensor"), counted(values, "value"), ranks.len());
    Ok(format!("{tensors}, {values} on each of {ranks} ranks: no bit differs"))
}

/// Compares the tensors of every rank of `run` with those of rank 0 of `other`.
pub(crate) fn same_weights_as(claim: &str, other: &Evidence, run: &Evidence) -> Finding {
    let evidence = || {
        let missing = || Unproven::Failed("the other run has no rank".into());
        let expected = other.weights.first().ok_or_else(missing)?.as_ref().map_err(String::clone)?;
        for (rank, weights) in run.weights.iter().enumerate() {
            let weights = weights.as_ref().map_err(|why| format!("rank {rank}: {why}"))?;
            compare_weights(expected, weights).map_err(|difference| format!("rank {rank} differs: {difference}"))?;
        }
        let values: usize = expected.values().map(Tensor::len).sum();
        Ok(format!("{} on each of {} ranks: no bit differs", counted(values, "value"), run.weights.len()))
    };
    Finding::of(claim.into(), evidence())
}

/// Describes how `other` differs from `first`, if it does.
pub(crate) fn compare_weights(first: &Weights, other: &Weights) -> Result<(), String> {
    if let Some(name) = other.keys().find(|name| !first.contains_key(*name)) {
        return Err(format!("it alone has {name}"));
    }
    for (name, tensor) in first {
        let other = other.get(name).ok_or_else(|| format!("it has no {name}"))?;
        if (tensor.dtype, &tensor.shape) != (other.dtype, &other.shape) {
            let layout = |tensor: &Tensor| format!("{:?} {:?}", tensor.dtype, tensor.shape);
            return Err(format!("{name} is {}, not {}", layout(other), layout(tensor)));
        }
        if let Some(byte) = tensor.bytes.iter().zip(&other.bytes).position(|(one, other)| one != other) {
            return Err(at(name, tensor, other, byte));
        }
    }
    Ok(())
}

/// The first different value, and the number of different ones.
fn at(name: &str, tensor: &Tensor, other: &Tensor, byte: usize) -> String {
    // Some types take less than a byte.
    let size = (tensor.bytes.len() / tensor.len()).max(1);
    let pairs = || tensor.bytes.chunks(size).zip(other.bytes.chunks(size));
    let (differing, index) = (pairs().filter(|(one, other)| one != other).count(), byte / size);
    let (one, other) = (&tensor.bytes[index * size..][..size], &other.bytes[index * size..][..size]);
    let hex = |bytes: &[u8]| bytes.iter().rev().map(|byte| format!("{byte:02x}")).collect::<String>();
    let counted = counted(differing, "value");
    format!("{counted} of {name}, the first is value {index}: bits {}, not {}", hex(other), hex(one))
}

/// Number of first steps in which rounding is not amplified yet.
const EARLY: usize = 4;
/// Limit for the losses of the first [`EARLY`] steps, relative to the loss.
const LOSS_LIMIT: f64 = 1e-3;
/// Limit for the weights of a run of at most [`EARLY`] steps, relative to the largest weight.
const EARLY_WEIGHT_LIMIT: f64 = 1e-3;
/// Limit for the weights of a longer run.
const WEIGHT_LIMIT: f64 = 0.1;

/// Compares two runs, where `one` has a single rank whose batch is as large as those of all ranks of `many` together: the
/// samples of each step exactly, losses and weights within the limits.
///
/// If the sampler had to pad, the last step of an epoch contains samples that the single rank does not repeat, so only the
/// steps before the first such step are compared, and no weights.
pub(crate) fn same_training(many: &Evidence, one: &Evidence) -> Finding {
    same_training_as(&format!("{} train as {}", many.plan, one.plan), many, one)
}

/// The same comparison of two runs that take the same samples in each step.
pub(crate) fn same_training_as(claim: &str, a: &Evidence, b: &Evidence) -> Finding {
    Finding::of(claim.to_owned(), evidence_for(a, b))
}

fn evidence_for(many: &Evidence, one: &Evidence) -> Result<String, Unproven> {
    let name = |name: &'static str| move |flaw: String| format!("{name}: {flaw}");
    let traces = (Trace::of(many).map_err(name("A"))?, Trace::of(one).map_err(name("B"))?);
    let steps = (in_order(&many.plan, &traces.0)?, in_order(&one.plan, &traces.1)?);
    if steps.0.len() != steps.1.len() {
        return Err(Unproven::Failed(format!("A made {}, B made {}", counted(steps.0.len(), "step"), steps.1.len())));
    }
    let padding = padding(many.plan.sizes.train, many.plan.ranks);
    let alike = alike(&steps.0, &steps.1, padding)?;
    let losses = losses(&steps.0[..alike], &steps.1[..alike])?;
    if padding > 0 {
        return padded(&steps.0, alike, losses);
    }
    let weights = weights(many, one, steps.0.len())?;
    let steps = counted(alike, "step");
    Ok(format!("{steps} took the same samples; {losses}, {weights}: floats are summed in another order"))
}

/// A step of all ranks: its samples, sorted, and the loss over them.
#[derive(Debug)]
struct WholeStep {
    epoch: usize,
    step: usize,
    samples: Vec<u64>,
    loss: f64,
}

fn in_order(plan: &Plan, trace: &Trace) -> Result<Vec<WholeStep>, String> {
    let epochs = trace.epochs.iter().enumerate();
    epochs
        .flat_map(|(number, epoch)| (0..epoch.steps.len()).map(move |step| whole_step(plan, number, epoch, step)))
        .collect()
}

fn whole_step(plan: &Plan, number: usize, epoch: &Epoch, step: usize) -> Result<WholeStep, String> {
    let parts = epoch.shares.iter().filter_map(|share| share.chunks(plan.batch).nth(step));
    let mut samples: Vec<u64> = parts.flatten().copied().collect();
    samples.sort_unstable();
    let counts: Vec<u64> = epoch.steps[step].iter().map(|step| step.samples).collect();
    if let Some(rank) = counts.iter().position(|count| *count != counts[0]) {
        return Err(format!(
            "in step {step} of epoch {number} rank {rank} took {}, rank 0 took {}: the mean of their means is not the \
             mean over the samples",
            counted(counts[rank] as usize, "sample"),
            counts[0]
        ));
    }
    Ok(WholeStep { epoch: number, step, samples, loss: epoch.step_loss(step) })
}

/// The number of first steps with the same samples in both runs: all of them, or all before the first padded one.
fn alike(many: &[WholeStep], one: &[WholeStep], padding: u64) -> Result<usize, String> {
    let Some(first) = many.iter().zip(one).position(|(many, one)| many.samples != one.samples) else {
        return Ok(many.len());
    };
    let WholeStep { epoch, step, .. } = many[first];
    let last_of_epoch = many.get(first + 1).is_none_or(|next| next.epoch != epoch);
    let surplus = many[first].samples.len().saturating_sub(one[first].samples.len());
    if padding > 0 && last_of_epoch && surplus as u64 == padding {
        return Ok(first);
    }
    Err(format!("step {step} of epoch {epoch} took other samples in A than in B"))
}

fn losses(many: &[WholeStep], one: &[WholeStep]) -> Result<String, String> {
    let mut largest = 0.0_f64;
    for (many, one) in many.iter().zip(one).take(EARLY) {
        let drift = relative(many.loss, one.loss);
        if !within(drift, LOSS_LIMIT) {
            return Err(format!(
                "the loss of step {} of epoch {} is {} in A and {} in B: {drift:.1e} of it, the limit is {LOSS_LIMIT:e}",
                many.step, many.epoch, many.loss, one.loss
            ));
        }
        largest = largest.max(drift);
    }
    let steps = counted(many.len().min(EARLY), "step");
    Ok(format!("the losses of the first {steps} differ by {} at most (limit {LOSS_LIMIT:e})", part(largest)))
}

/// NaN is not within any limit.
fn within(drift: f64, limit: f64) -> bool {
    drift <= limit
}

fn relative(a: f64, b: f64) -> f64 {
    if a == b { 0.0 } else { (a - b).abs() / b.abs() }
}

fn padded(steps: &[WholeStep], alike: usize, losses: String) -> Result<String, Unproven> {
    let first = steps.get(alike).map_or(String::new(), |step| format!("step {} of epoch {}", step.step, step.epoch));
    if alike < 2 {
        // The first loss is that of the initial weights: no gradient has been averaged yet.
        return Err(Unproven::NotVerified(format!(
            "not comparable: from {first} on, A takes the sampler's padding too"
        )));
    }
    Ok(format!("{losses}; later ones and weights are not comparable, since from {first} on A takes padding too"))
}

fn weights(many: &Evidence, one: &Evidence, steps: usize) -> Result<String, String> {
    let of = |run: &'_ Evidence| run.weights.first().cloned().unwrap_or_else(|| Err("no rank saved weights".into()));
    let drift = drift(&of(many)?, &of(one)?)?;
    let limit = if steps <= EARLY { EARLY_WEIGHT_LIMIT } else { WEIGHT_LIMIT };
    let text = format!("the final weights by {} of the largest (limit {limit:e})", part(drift));
    if within(drift, limit) { Ok(text) } else { Err(format!("A and B differ in {text}")) }
}

fn part(drift: f64) -> String {
    if drift == 0.0 { "0".to_owned() } else { format!("{drift:.1e}") }
}

/// The largest difference between two weights, relative to the largest weight.
pub(crate) fn drift(many: &Weights, one: &Weights) -> Result<f64, String> {
    if !many.keys().eq(one.keys()) {
        return Err("A and B saved tensors of different names".into());
    }
    let (mut difference, mut largest) = (0.0, 0.0);
    for (name, tensor) in many {
        let other = &one[name];
        let values = tensor.values().zip(other.values()).filter(|(values, others)| values.len() == others.len());
        let (values, others) = values.ok_or_else(|| format!("{name} is not of the same floats in A and in B"))?;
        for (a, b) in values.iter().zip(&others) {
            // f64::max would ignore NaN.
            let apart = (a - b).abs();
            if !apart.is_finite() {
                return Err(format!("{name} holds {a} in A and {b} in B"));
            }
            difference = f64::max(difference, apart);
            largest = f64::max(largest, b.abs());
        }
    }
    if largest == 0.0 { Err("B ends with no weight but zeros".into()) } else { Ok(difference / largest) }
}

#[cfg(test)]
mod tests {
    use safetensors::Dtype;

    use super::*;
    use crate::report::Verdict;
    use crate::testing::{Run, weights};

    #[test]
    fn compares_the_ranks_of_one_run_with_another_run() {
        let one = Run::of(1, 4, 1, 8).evidence();
        let mut other = Run::of(2, 4, 1, 8).evidence();
        assert_eq!(same_weights_as("a", &one, &other).verdict, Verdict::Passed);
        other.weights[1] = Err("no file".into());
        let finding = same_weights_as("a", &one, &other);
        assert_eq!((finding.verdict, &*finding.evidence), (Verdict::Failed, "rank 1: no file"));
    }

    fn after(falsify: impl FnOnce(&mut Weights)) -> Finding {
        let mut run = Run::of(2, 4, 1, 8).evidence();
        falsify(run.weights[1].as_mut().unwrap());
        same_weights(&run)
    }

    #[test]
    fn passes_equal_weights_with_their_numbers() {
        let finding = same_weights(&Run::of(3, 4, 1, 8).evidence());
        assert_eq!(finding.verdict, Verdict::Passed);
        assert_eq!(finding.evidence, "2 tensors, 8 values on each of 3 ranks: no bit differs");
    }

    #[test]
    fn fails_when_one_bit_of_one_weight_differs() {
        for bit in 0..32 {
            let finding = after(|weights| weights.get_mut("fc.weight").unwrap().bytes[8 + bit / 8] ^= 1 << (bit % 8));
            assert_eq!(finding.verdict, Verdict::Failed, "bit {bit}");
            assert!(
                finding.evidence.starts_with("rank 1 differs from rank 0: 1 value of fc.weight, the first is value 2")
            );
        }
        let finding = after(|weights| weights.get_mut("fc.weight").unwrap().bytes[8] ^= 1);
        assert!(finding.evidence.ends_with("bits 3ecccccc, not 3ecccccd"), "{}", finding.evidence);
    }

    #[test]
    fn fails_when_zeros_differ_in_sign_only() {
        let mut run = Run::of(2, 4, 1, 8).evidence();
        run.weights = vec![Ok(weights(&[0.0])), Ok(weights(&[-0.0]))];
        assert_eq!(same_weights(&run).verdict, Verdict::Failed);
    }

    #[test]
    fn fails_when_tensors_differ_in_name_type_or_shape() {
        let evidence_of = |falsify: fn(&mut Weights)| {
            let finding = after(falsify);
            assert_eq!(finding.verdict, Verdict::Failed);
            finding.evidence
        };
        assert!(evidence_of(|weights| drop(weights.remove("fc.bias"))).ends_with("it has no fc.bias"));
        let extra = evidence_of(|weights| drop(weights.insert("fc2".into(), weights["fc.bias"].clone())));
        assert!(extra.ends_with("it alone has fc2"));
        let shape = evidence_of(|weights| weights.get_mut("fc.bias").unwrap().shape = vec![2, 1]);
        assert!(shape.ends_with("fc.bias is F32 [2, 1], not F32 [2]"), "{shape}");
        assert!(evidence_of(|weights| weights.get_mut("fc.bias").unwrap().dtype = Dtype::I32).contains("is I32"));
    }

    #[test]
    fn fails_when_the_file_of_a_rank_is_missing() {
        for rank in 0..2 {
            let mut run = Run::of(2, 4, 1, 8).evidence();
            run.weights[rank] = Err("cannot read it".into());
            assert_eq!(same_weights(&run).verdict, Verdict::Failed);
        }
    }

    #[test]
    fn fails_when_nothing_was_saved() {
        let mut run = Run::of(2, 4, 1, 8).evidence();
        run.weights = vec![Ok(Weights::new()), Ok(Weights::new())];
        assert_eq!(same_weights(&run).verdict, Verdict::Failed);
    }

    #[test]
    fn cannot_decide_with_one_rank() {
        assert_eq!(same_weights(&Run::of(1, 4, 1, 8).evidence()).verdict, Verdict::NotVerified);
    }

    fn pair(ranks: usize, batch: usize, epochs: u64, samples: u64) -> (Run, Run) {
        (Run::of(ranks, batch, epochs, samples), Run::of(1, ranks * batch, epochs, samples))
    }

    fn checked((many, one): &(Run, Run)) -> Finding {
        same_training(&many.evidence(), &one.evidence())
    }

    fn failure(falsify: impl FnOnce(&mut Run, &mut Run)) -> String {
        let mut runs = pair(2, 4, 2, 16);
        falsify(&mut runs.0, &mut runs.1);
        let finding = checked(&runs);
        assert_eq!(finding.verdict, Verdict::Failed, "{}", finding.evidence);
        finding.evidence
    }

    #[test]
    fn passes_runs_that_agree_with_the_measured_drift() {
        let mut runs = pair(2, 4, 1, 32);
        runs.0.losses[0][0][1] *= 1.0 + 2e-5;
        runs.0.weights = weights(&[0.1, -0.2, 0.4, 0.0, 0.2501, -0.5]);
        let finding = checked(&runs);
        assert_eq!(finding.verdict, Verdict::Passed, "{}", finding.evidence);
        assert_eq!(finding.claim, "2 ranks × batch 4 train as 1 rank × batch 8");
        let text = "4 steps took the same samples; the losses of the first 4 steps differ by 1.0e-5 at most (limit \
                    1e-3), the final weights by 1.0e-4 of the largest (limit 1e-3): floats are summed in another order";
        assert_eq!(finding.evidence, text);
    }

    #[test]
    fn passes_last_batches_that_are_smaller_but_equal() {
        assert_eq!(checked(&pair(2, 4, 2, 42)).verdict, Verdict::Passed);
        assert_eq!(checked(&pair(4, 8, 3, 36)).verdict, Verdict::Passed);
    }

    #[test]
    fn fails_when_an_early_loss_differs_or_is_nan() {
        let message = failure(|many, _| many.losses[0][1][1] *= 1.003);
        assert!(message.starts_with("the loss of step 1 of epoch 0 is 1.70"), "{message}");
        assert!(failure(|many, _| many.losses[1][0][0] = f64::NAN).contains("is NaN in A"));
        assert!(failure(|_, one| one.losses[1][0][0] = f64::INFINITY).contains("inf in B"));
    }

    #[test]
    fn fails_when_a_weight_differs_or_is_nan() {
        let message = failure(|many, _| many.weights = weights(&[0.1, -0.2, 0.4, 0.0, 0.25, -0.52]));
        assert_eq!(message, "A and B differ in the final weights by 2.0e-2 of the largest (limit 1e-3)");
        assert!(failure(|_, one| one.weights = weights(&[0.1, -0.2, 0.4, 0.0, 0.25, f32::NAN])).contains("NaN in B"));
        let message = failure(|many, one| {
            many.weights = weights(&[]);
            one.weights = weights(&[0.1]);
        });
        assert!(message.starts_with("fc.weight is not of the same floats"), "{message}");
    }

    #[test]
    fn allows_more_at_the_end_of_a_long_run_but_not_any_amount() {
        let long = |last| {
            let mut runs = pair(2, 4, 4, 40);
            runs.0.weights = weights(&[0.1, -0.2, 0.4, 0.0, 0.25, last]);
            checked(&runs)
        };
        assert_eq!(long(-0.52).verdict, Verdict::Passed);
        assert!(long(-0.52).evidence.contains("losses of the first 4 steps"), "{}", long(-0.52).evidence);
        assert_eq!(long(-0.7).verdict, Verdict::Failed);
    }

    #[test]
    fn fails_when_a_step_took_other_samples() {
        let message = failure(|many, _| {
            let (first, second) = (many.shares[1][0][0], many.shares[1][0][7]);
            (many.shares[1][0][0], many.shares[1][0][7]) = (second, first);
        });
        assert_eq!(message, "step 0 of epoch 1 took other samples in A than in B");
    }

    #[test]
    fn fails_when_evidence_of_a_run_is_missing() {
        let (many, one) = pair(2, 4, 2, 40);
        let mut torn = many.evidence();
        torn.logs.as_mut().unwrap().get_mut(&1).unwrap().torn = vec![7];
        let text = same_training(&torn, &one.evidence()).evidence;
        assert_eq!(text, "A: rank 1's event file is torn at line 7");
        let mut lost = one.evidence();
        lost.weights[0] = Err("cannot read the weights".into());
        assert_eq!(same_training(&many.evidence(), &lost).verdict, Verdict::Failed);
    }

    #[test]
    fn compares_only_what_comes_before_the_padding() {
        let mut runs = pair(2, 4, 2, 41);
        let finding = checked(&runs);
        assert_eq!(finding.verdict, Verdict::Passed, "{}", finding.evidence);
        let text = "the losses of the first 4 steps differ by 0 at most (limit 1e-3); later ones and weights are not \
                    comparable, since from step 5 of epoch 0 on A takes padding too";
        assert_eq!(finding.evidence, text);
        runs.0.losses[0][0][3] *= 1.003;
        assert_eq!(checked(&runs).verdict, Verdict::Failed);
    }

    #[test]
    fn does_not_take_other_samples_for_padding() {
        let mut runs = pair(2, 4, 2, 41);
        let (first, second) = (runs.0.shares[0][0][0], runs.0.shares[0][0][9]);
        (runs.0.shares[0][0][0], runs.0.shares[0][0][9]) = (second, first);
        assert_eq!(checked(&runs).verdict, Verdict::Failed);
    }

    #[test]
    fn cannot_decide_when_the_first_step_is_padded_already() {
        let finding = checked(&pair(2, 4, 2, 7));
        assert_eq!(finding.verdict, Verdict::NotVerified);
        assert!(finding.evidence.starts_with("not comparable: from step 0 of epoch 0 on"), "{}", finding.evidence);
    }
}
