//! Grades `learns`: the targets follow a rule that the layer can represent; training must find it.

use lockstep_grading::{Claim, Finding, Numbers, Runner, Verdict, explain};

const FEATURES: usize = 20;
const SAMPLES: usize = 128;
const STEPS: usize = 200;
/// The learning rate of the program.
const RATE: f64 = 0.05;
/// Weights that changed by less than this have not moved.
const MOVED: f64 = 1e-3;
/// The factor by which the distance to the rule must shrink. A right program reaches at least ten.
const NEARER: f64 = 4.0;

/// Inputs and target.
type Sample = (Vec<f64>, f64);
/// Weights before and after the training, the last gradients, the losses.
type Trained = (Numbers, Numbers, Numbers, Numbers);

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    // The rule of lab 01, with a random bias.
    let mut rule: Vec<f64> = (0..FEATURES).map(|feature| (feature as f64 - 5.0) / 10.0).collect();
    rule.push(0.5 + random.below(0..8) as f64 / 8.0);
    let sample = |_| {
        let inputs: Vec<f64> = random.numbers(FEATURES).iter().map(|number| number / 2.0).collect();
        let target = output(&rule, &inputs);
        (inputs, target)
    };
    let samples: Vec<Sample> = (0..SAMPLES).map(sample).collect();
    let outputs = runner.call::<_, Trained>(1, &[(&samples, STEPS)]).map_err(|error| explain(error, why))?;
    let (before, after, gradients, losses) = outputs.of(0, 0);
    let given = format!("{SAMPLES} samples, {STEPS} steps");
    Claim::equal(&STEPS, &losses.len())
        .given(format!("{given}; how many losses"))
        .or_fail("return the loss of each step")?;
    moves(&given, before, after, gradients, losses)?;
    finds(&given, &samples, &rule, before, after, losses)?;
    before_each_step(&given, &samples, before, losses)
}

/// Checks that the first loss is not that of the weights after the first step.
fn before_each_step(given: &str, samples: &[Sample], before: &[f64], losses: &[f64]) -> anyhow::Result<()> {
    // Nothing has piled up in the first step.
    let [begin, after, ..] = piled_up(samples, before)[..] else { return Ok(()) };
    let is_after = (losses[0] - after).abs() <= 1e-4 * after && (begin - after).abs() > 1e-3 * after;
    Claim::that(!is_after, format!("a first loss of {begin:.4}"), format!("{:.4}", losses[0]))
        .given(given)
        .or_fail(
            "the layer learns, but these are the losses after each step, which take a second forward pass: return the loss of the step's \
             own forward pass, which was there before the step",
        )
}

/// The output of a layer for one sample. The bias is the last of `weights`.
fn output(weights: &[f64], inputs: &[f64]) -> f64 {
    weights.iter().zip(inputs.iter().chain([&1.0])).map(|(weight, input)| weight * input).sum()
}

fn moves(given: &str, before: &[f64], after: &[f64], gradients: &[f64], losses: &[f64]) -> anyhow::Result<()> {
    let moved = before.iter().zip(after).map(|(before, after)| (after - before).abs()).fold(0.0, f64::max);
    let steepest = gradients.iter().map(|gradient| gradient.abs()).fold(0.0, f64::max);
    let unmoved = moved < MOVED && after.iter().all(|weight| weight.is_finite());
    // A zero may have a sign.
    let loss = |step: usize| format!("{:.4}", losses[step]).replace("-0.0000", "0.0000");
    let observed = format!(
        "largest change {moved:.4}, largest gradient of the last step {steepest:.4}, losses from {} to {}",
        loss(0),
        loss(STEPS - 1)
    );
    Claim::that(!unmoved, "weights that have moved", observed)
        .given(given)
        .diagnose_if(
            losses.iter().all(|loss| loss.abs() < 1e-6),
            "the loss is 0 whatever the layer's output is: cross-entropy takes the softmax over the classes, and over one class \
             that is always 1. A loss that cannot change has no gradient, so nothing is learned",
        )
        .diagnose_if(steepest > MOVED, "there are gradients, but the weights do not move: no step is taken")
        .or_fail("no gradient reaches the weights")
}

fn finds(
    given: &str,
    samples: &[Sample],
    rule: &[f64],
    before: &[f64],
    after: &[f64],
    losses: &[f64],
) -> anyhow::Result<()> {
    let distance =
        |weights: &[f64]| weights.iter().zip(rule).map(|(weight, rule)| (weight - rule).powi(2)).sum::<f64>().sqrt();
    let (begin, end) = (distance(before), distance(after));
    let observed = format!(
        "from {begin:.3} to {end:.3}; losses {:.3}, {:.3}, {:.3}, … {:.3}",
        losses[0],
        losses[1],
        losses[2],
        losses[STEPS - 1]
    );
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-4 * b.abs();
    let piled = piled_up(samples, before);
    Claim::that(end < begin / NEARER, format!("weights {NEARER} times nearer to the rule, at least"), observed)
        .given(format!("{given}; distance of the weights from the rule"))
        .diagnose_if(
            (0..3).all(|step| near(losses[step], piled[step])),
            "the gradients pile up: each step uses the sum of all gradients so far. Set them to zero before the backward pass",
        )
        .diagnose_if(
            near(losses[0], over_pairs(samples, before)),
            "the loss compares each output with the targets of all samples: tensors of shapes [n] and [n, 1] are silently \
             broadcast to [n, n]. Give both the same shape",
        )
        .diagnose_if(
            !end.is_finite() || end > 100.0 * begin,
            "the weights diverge: the steps are too long. Is the loss the mean over the samples, or their sum?",
        )
        .or_fail("the weights move, but not towards the rule: does the loss measure how far the outputs are from the targets?")
}

/// The mean squared difference of every output from every target.
fn over_pairs(samples: &[Sample], weights: &[f64]) -> f64 {
    let outputs = samples.iter().map(|(inputs, _)| output(weights, inputs));
    let of_output = |output: f64| samples.iter().map(|(_, target)| (output - target).powi(2)).sum::<f64>();
    outputs.map(of_output).sum::<f64>() / (samples.len() * samples.len()) as f64
}

/// The first losses of a training run that never sets its gradients to zero.
fn piled_up(samples: &[Sample], weights: &[f64]) -> Vec<f64> {
    let (mut weights, mut sum) = (weights.to_vec(), vec![0.0; weights.len()]);
    let mut losses = Vec::new();
    for _ in 0..3 {
        let errors: Vec<f64> = samples.iter().map(|(inputs, target)| output(&weights, inputs) - target).collect();
        losses.push(errors.iter().map(|error| error * error).sum::<f64>() / samples.len() as f64);
        for ((inputs, _), error) in samples.iter().zip(&errors) {
            let slopes = inputs.iter().chain([&1.0]);
            sum.iter_mut().zip(slopes).for_each(|(sum, input)| *sum += 2.0 * error * input / samples.len() as f64);
        }
        weights.iter_mut().zip(&sum).for_each(|(weight, sum)| *weight -= RATE * sum);
    }
    losses
}

fn why(finding: &Finding) -> Option<String> {
    let cut = finding.verdict == Verdict::Crash && finding.diagnosis.contains("does not require grad");
    cut.then(|| {
        format!(
            "the loss no longer depends on the weights, so the backward pass has nothing to go back through: something between \
             the layer and the loss cuts the graph, such as no_grad, detach, or a tensor made of plain numbers ({})",
            finding.diagnosis
        )
    })
}
