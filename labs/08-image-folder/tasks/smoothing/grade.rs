//! Grades `smoothing`: compares losses with `torch.nn.CrossEntropyLoss(label_smoothing=…)` (`aten/src/ATen/native/LossNLL.cpp`).

use lockstep_grading::{Claim, Numbers, Runner, causes};

/// The logits of each picture, the right classes, and ε.
type Case = (Vec<Vec<f64>>, Vec<i64>, f64);

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let mut case = |epsilon: f64, size: f64| -> Case {
        // As many pictures as classes would hide which of the two a loss was divided by.
        let (classes, pictures) = (random.below(3..7), random.below(3..7));
        let pictures = if pictures < classes { pictures } else { pictures + 1 };
        let right: Vec<i64> = (0..pictures).map(|_| random.below(0..classes) as i64).collect();
        let mut logits: Vec<Vec<f64>> = (0..pictures).map(|_| random.numbers(classes)).collect();
        for (picture, (logits, class)) in logits.iter_mut().zip(&right).enumerate() {
            // The right class is well ahead, so smoothing adds a large part of the loss. In the first picture it is behind.
            logits[*class as usize] += if picture > 0 { 9.0 } else { -9.0 };
            logits.iter_mut().for_each(|logit| *logit *= size);
        }
        (logits, right, epsilon)
    };
    let cases = [case(0.1, 1.0), case(0.3, 0.5), case(0.0, 0.125), case(0.1, 200.0)];
    let outputs = runner.call::<_, Numbers>(1, &cases)?;
    // Without ε most mistakes make no difference, and with large logits they come with others.
    let gives_it = |wrong: Loss| (0..2).all(|number| is(wrong(&cases[number]), outputs.of(0, number), &cases[number]));
    cases.iter().enumerate().try_for_each(|(number, case)| check(case, outputs.of(0, number), &gives_it))
}

type Loss = fn(&Case) -> f64;

/// Losses that mistakes give.
const CAUSES: [(Loss, &str); 8] = [
    (
        |case| loss(case, case.2) * pictures(case),
        "the sum over the pictures, not their mean: the loss grows with the batch",
    ),
    (|case| -loss(case, case.2), "the sign is missing: logarithms of probabilities are negative, but a loss is not"),
    (|case| loss(case, 0.0), "plain cross entropy: the target is not smoothed"),
    (
        |case| loss(case, case.2 * classes(case) / (classes(case) - 1.0)),
        "ε is shared only by the wrong classes: the right class gets a share, too, so its target is 1 − ε + ε / K",
    ),
    (
        |case| loss(case, case.2) / classes(case),
        "this is the mean over pictures and classes: sum the terms of a picture's classes, and take the mean over pictures only",
    ),
    (
        |case| of_targets(case, 1.0 - case.2, case.2 / classes(case), &across_classes(&case.0)),
        "the targets of a picture do not add up to 1: the right class gets a share of ε, too, so its target is 1 − ε + ε / K",
    ),
    (
        |case| smoothed(case, case.2, case.2 / classes(case), &across_pictures(&case.0)),
        "the softmax is taken over the pictures, dimension 0: take it over the classes of each picture, the last dimension",
    ),
    (
        |case| smoothed(case, case.2, case.2 / pictures(case), &across_classes(&case.0)),
        "ε is divided by the number of pictures: K is the number of classes, the last dimension",
    ),
];

fn pictures((_, right, _): &Case) -> f64 {
    right.len() as f64
}

fn classes((logits, ..): &Case) -> f64 {
    logits[0].len() as f64
}

/// Single precision is enough. The largest losses are about a thousand.
fn tolerance(case: &Case) -> f64 {
    1e-6 * (1.0 + loss(case, case.2) * 10.0)
}

fn is(value: f64, observed: &[f64], case: &Case) -> bool {
    matches!(observed, [seen] if (value - seen).abs() <= tolerance(case))
}

/// `gives_it` is true for a loss that is in both ordinary cases what was observed.
fn check(case: &Case, observed: &[f64], gives_it: &dyn Fn(Loss) -> bool) -> anyhow::Result<()> {
    let (logits, right, epsilon) = case;
    let given = format!("ε {epsilon}, right classes {right:?}, logits {logits:?}");
    let [seen] = observed else {
        return Claim::that(false, "one number", format!("{observed:?}"))
            .given(given)
            .or_fail("return one loss for the whole batch: the mean over its pictures");
    };
    Claim::close(&[loss(case, *epsilon)], observed, tolerance(case))
        .given(given)
        .cause_if(
            gives_it(|case| loss(case, case.2) / pictures(case)),
            format!(
                "divided by the number of pictures twice, so the loss shrinks with the batch: the smallest loss that a network can reach \
                 for ε {epsilon} and {} classes is {:.4}",
                classes(case),
                floor(*epsilon, classes(case))
            ),
        )
        .causes(&causes(&CAUSES, |wrong| gives_it(*wrong)))
        .diagnose_if(
            !seen.is_finite(),
            "not a finite number: with large logits, a probability is 0 in floating point and its logarithm infinite. Use `log_softmax`, \
             which never computes the probability itself",
        )
        .diagnose_if(
            kept_finite(case, *epsilon).into_iter().any(|value| is(value, observed, case)),
            "a small constant keeps the logarithm finite, and the loss is wrong where a probability is smaller than it. Use `log_softmax`, \
             which never computes the probability itself and needs no constant",
        )
        .or_fail("this is not the cross entropy with label smoothing")
}

/// The right loss for this ε.
fn loss(case: &Case, epsilon: f64) -> f64 {
    smoothed(case, epsilon, epsilon / classes(case), &across_classes(&case.0))
}

/// The loss with this share of ε for each class.
fn smoothed(case: &Case, epsilon: f64, share: f64, logarithms: &[Vec<f64>]) -> f64 {
    of_targets(case, 1.0 - epsilon + share, share, logarithms)
}

/// The loss with a target for the right class and another for each of the others.
fn of_targets((_, right, _): &Case, own: f64, other: f64, logarithms: &[Vec<f64>]) -> f64 {
    let of_picture = |(logarithms, right): (&Vec<f64>, &i64)| {
        let target = |class: usize| if class as i64 == *right { own } else { other };
        logarithms.iter().enumerate().map(|(class, logarithm)| -target(class) * logarithm).sum::<f64>()
    };
    logarithms.iter().zip(right).map(of_picture).sum::<f64>() / right.len() as f64
}

/// The logarithms of the probabilities.
fn across_classes(logits: &[Vec<f64>]) -> Vec<Vec<f64>> {
    logits.iter().map(|logits| log_softmax(logits)).collect()
}

/// The same, with a softmax over pictures.
fn across_pictures(logits: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let column = |class: usize| log_softmax(&logits.iter().map(|logits| logits[class]).collect::<Vec<f64>>());
    let columns: Vec<Vec<f64>> = (0..logits[0].len()).map(column).collect();
    (0..logits.len()).map(|picture| columns.iter().map(|column| column[picture]).collect()).collect()
}

fn log_softmax(logits: &[f64]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|logit| (logit - most).exp()).sum();
    logits.iter().map(|logit| logit - most - sum.ln()).collect()
}

/// The losses with a constant that is added to each probability, or that no probability is less than.
fn kept_finite(case: &Case, epsilon: f64) -> Vec<f64> {
    let logarithms = across_classes(&case.0);
    let with = |kept: &dyn Fn(f64) -> f64| {
        let kept = |logarithm: &f64| kept(logarithm.exp()).ln();
        let logarithms: Vec<Vec<f64>> = logarithms.iter().map(|of| of.iter().map(kept).collect()).collect();
        smoothed(case, epsilon, epsilon / classes(case), &logarithms)
    };
    let powers = (2..=30).map(|power| 0.1_f64.powi(power));
    let constants =
        powers.chain([f64::from(f32::EPSILON), f64::EPSILON, f64::MIN_POSITIVE, f64::from(f32::MIN_POSITIVE)]);
    constants.flat_map(|constant| [with(&|p| p + constant), with(&|p| p.max(constant))]).collect()
}

/// The entropy of the smoothed target.
fn floor(epsilon: f64, classes: f64) -> f64 {
    let share = epsilon / classes;
    let term = |p: f64| if p > 0.0 { -p * p.ln() } else { 0.0 };
    term(1.0 - epsilon + share) + (classes - 1.0) * term(share)
}
