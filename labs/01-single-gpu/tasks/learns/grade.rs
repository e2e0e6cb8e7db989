//! Grades `learns`: the targets follow a rule that the layer can represent; training must find it.

use lockstep_grading::{Claim, Finding, Numbers, Runner, Verdict, explain};

const FEATURES: usize = 20;
const SAMPLES: usize = 128;
const STEPS: usize = 200;
/// The learning rate of the program.
const RATE: f64 = 0.05;
/// Weights that changed by less than this have not moved.
const MOVED: f64 = 1e-3;
/// The factor by which the distance to the rule must shrink, which the task's text names. With the program's rate, each usual loss reaches
/// more than ten.
const NEARER: f64 = 4.0;
/// More than the signs of a few errors near 0 change in a step of absolute values; less than a sample that is left out.
const SAME_STEP: f64 = 2e-3;

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
    let turned: Vec<Sample> = samples.iter().rev().flat_map(|sample| [sample.clone(), sample.clone()]).collect();
    let inputs = [(&samples, STEPS), (&samples, 1), (&turned, 1)];
    let outputs = runner.call::<_, Trained>(1, &inputs).map_err(|error| explain(error, why))?;
    let (before, after, gradients, losses) = outputs.of(0, 0);
    let given = format!("{SAMPLES} samples, {STEPS} steps");
    for (case, (samples, steps)) in inputs.into_iter().enumerate() {
        let (_, _, _, losses) = outputs.of(0, case);
        Claim::that(losses.len() == steps, format!("{steps} losses"), format!("{} losses", losses.len()))
            .given(format!("{} samples, {steps} steps", samples.len()))
            .or_fail("return the loss of each step")?;
    }
    moves(&given, before, after, gradients, losses)?;
    finds(&given, &samples, &rule, before, after, losses)?;
    before_the_step(&samples, outputs.of(0, 1))?;
    of_all(&samples, outputs.of(0, 1), outputs.of(0, 2))
}

/// Checks that the first step is that of all samples, as a mean: the same with the samples in the opposite order, each of them twice.
fn of_all(samples: &[Sample], one: &Trained, turned: &Trained) -> anyhow::Result<()> {
    let [loss, other] = [one, turned].map(|(.., losses)| losses[0]);
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-4 * b.abs();
    let apart = one.1.iter().zip(turned.1.iter()).map(|(one, other)| (one - other).abs()).fold(0.0, f64::max);
    let part = part(samples, &one.0, loss);
    let observed =
        format!("losses {} and {}, weights that differ by up to {apart:.4} after the step", shown(loss), shown(other));
    Claim::that(near(other, loss) && apart < SAME_STEP, "the same loss and the same step", observed)
        .given(format!("{SAMPLES} samples, 1 step; and the same samples in the opposite order, each twice, 1 step"))
        .diagnose_if(
            near(other, 2.0 * loss),
            "the layer learns, but the losses are sums over the samples, which grow with their number: return the mean",
        )
        .diagnose_if(
            part.is_some(),
            format!(
                "the layer learns, but the first loss is that of {} samples only: use all samples in one batch, and step the optimizer \
                 once for it",
                part.unwrap_or_default()
            ),
        )
        .or_fail(
            "the layer learns, but its first step depends on the order of the samples, or on how often each comes: use all of them in one \
             batch, and take one step for it",
        )
}

/// A number with three decimals, or with its power of ten if it is large.
fn shown(number: f64) -> String {
    match number.abs() {
        size if size.is_finite() && size >= 1e5 => format!("{number:.1e}"),
        size if size < 5e-4 => "0.000".to_owned(), // no sign
        _ => format!("{number:.3}"),
    }
}

/// How many samples from the first on have this usual loss, if all of them have another.
fn part(samples: &[Sample], weights: &[f64], loss: f64) -> Option<usize> {
    let near = |count: &usize| {
        usual_losses(&samples[..*count], weights).into_iter().take(2).any(|usual| (loss - usual).abs() <= 1e-5 * usual)
    };
    if near(&samples.len()) { None } else { (1..samples.len()).find(near) }
}

/// Checks that the loss of a single step is not that of the weights after it, as far as it is a usual one.
fn before_the_step(samples: &[Sample], (before, after, _, losses): &Trained) -> anyhow::Result<()> {
    let near = |weights: &[f64]| {
        usual_losses(samples, weights).into_iter().any(|usual| (losses[0] - usual).abs() <= 1e-4 * usual)
    };
    let expected =
        format!("the loss with the weights before the step, such as {}", shown(usual_losses(samples, before)[0]));
    Claim::that(near(before) || !near(after), expected, shown(losses[0]))
        .given(format!("{SAMPLES} samples, 1 step"))
        .or_fail(
            "the layer learns, but these are the losses after each step, which take a second forward pass: return the loss from which the \
             step was computed",
        )
}

/// The mean of the errors' squares, half of it, the mean of their absolute values, Huber's loss, and the root of the first.
fn usual_losses(samples: &[Sample], weights: &[f64]) -> [f64; 5] {
    let mean = |of_error: fn(f64) -> f64| {
        let errors = samples.iter().map(|(inputs, target)| (output(weights, inputs) - target).abs());
        errors.map(of_error).sum::<f64>() / samples.len() as f64
    };
    let huber = |error: f64| if error < 1.0 { error * error / 2.0 } else { error - 0.5 };
    let squares = mean(|error| error * error);
    [squares, squares / 2.0, mean(|error| error), mean(huber), squares.sqrt()]
}

/// The output of a layer for one sample. The bias is the last of `weights`.
fn output(weights: &[f64], inputs: &[f64]) -> f64 {
    weights.iter().zip(inputs.iter().chain([&1.0])).map(|(weight, input)| weight * input).sum()
}

fn moves(given: &str, before: &[f64], after: &[f64], gradients: &[f64], losses: &[f64]) -> anyhow::Result<()> {
    let moved = before.iter().zip(after).map(|(before, after)| (after - before).abs()).fold(0.0, f64::max);
    let steepest = gradients.iter().map(|gradient| gradient.abs()).fold(0.0, f64::max);
    let unmoved = moved < MOVED && after.iter().all(|weight| weight.is_finite());
    let observed = format!(
        "largest change {}, largest gradient of the last step {}, losses from {} to {}",
        shown(moved),
        shown(steepest),
        shown(losses[0]),
        shown(losses[STEPS - 1])
    );
    Claim::that(!unmoved, "weights that have moved", observed)
        .given(given)
        .diagnose_if(
            losses.iter().all(|loss| loss.abs() < 1e-6),
            "all losses are 0, whatever the layer's output is, and a loss that cannot change has no gradient. Cross-entropy is such a loss here: \
             it takes the softmax over the classes, and over one class that is always 1",
        )
        .diagnose_if(steepest > MOVED, "there are gradients, but the weights do not move: does the optimizer have these weights, and a rate above 0, and is its `step` \
             called?")
        .diagnose_if(
            losses[0].abs() > 1e-3,
            "the gradients are 0 when the step is taken: were they set to zero between the backward pass and the step? Do that before the \
             backward pass",
        )
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
        "distance from {} to {}; losses {}, {}, {}, … {}",
        shown(begin),
        shown(end),
        shown(losses[0]),
        shown(losses[1]),
        shown(losses[2]),
        shown(losses[STEPS - 1])
    );
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-4 * b.abs();
    let piled = piled_up(samples, before);
    let part = part(samples, before, losses[0]);
    let (nearer, falls) = (end < begin / NEARER, losses[STEPS - 1] < losses[0] / NEARER);
    let expected = format!("weights {NEARER} times nearer to the rule, at least, and a loss that falls as far");
    Claim::that(nearer && falls, expected, observed)
        .given(given)
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
            part.is_some(),
            format!(
                "the first loss is that of {} of {SAMPLES} samples: use all samples in one batch, since a step on a few of them leads \
                 away from the rule",
                part.unwrap_or_default()
            ),
        )
        .diagnose_if(
            nearer && near(losses[STEPS - 1], losses[0]),
            "the weights find the rule, but the losses do not fall: return the loss of each step, in the order of the steps",
        )
        .diagnose_if(
            losses[0] < 0.0,
            "the loss is negative and falls without end: it must be small where the outputs are near their targets",
        )
        .diagnose_if(
            !end.is_finite() || end > 100.0 * begin,
            "the weights diverge: the steps are too long. Is the loss the mean over the samples, or their sum?",
        )
        .diagnose_if(
            usual_losses(samples, before).into_iter().any(|usual| near(losses[0], usual)) && end.is_finite() && end < begin,
            format!("the loss is right, and the weights come nearer to the rule, but too slowly for {STEPS} steps: the steps are too short"),
        )
        .diagnose_if(
            losses[STEPS - 1].is_finite() && losses[STEPS - 1] < losses[0] && losses[STEPS - 1] > losses[0] / 2.0,
            "the loss hardly falls, although the layer can produce all targets: it compares them with something that cannot reach them, \
             such as the sigmoid of the layer's output",
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
            "the loss no longer depends on the weights, so the backward pass has no graph: something between the layer and the loss removes \
             it, such as no_grad, detach, or a tensor made of plain numbers ({})",
            finding.diagnosis
        )
    })
}
