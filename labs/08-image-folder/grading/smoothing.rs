//! Grades `smoothing`: compares losses with `torch.nn.CrossEntropyLoss(label_smoothing=…)` (`aten/src/ATen/native/LossNLL.cpp`).

use lockstep_grading::{Claim, Numbers, Runner};

/// The logits of each picture, the right classes, and ε.
type Case = (Vec<Vec<f64>>, Vec<i64>, f64);

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let mut case = |epsilon: f64, size: f64| -> Case {
        let (pictures, classes) = (random.below(3..8), random.below(3..7));
        let right: Vec<i64> = (0..pictures).map(|_| random.below(0..classes) as i64).collect();
        let mut logits: Vec<Vec<f64>> = (0..pictures).map(|_| random.numbers(classes)).collect();
        for (logits, class) in logits.iter_mut().zip(&right) {
            // The right class is well ahead, so smoothing adds a large part of the loss.
            logits[*class as usize] += 9.0;
            logits.iter_mut().for_each(|logit| *logit *= size);
        }
        (logits, right, epsilon)
    };
    let cases = [case(0.1, 1.0), case(0.3, 0.5), case(0.0, 0.125), case(0.1, 200.0)];
    let outputs = runner.call::<_, Numbers>(1, &cases)?;
    cases.iter().enumerate().try_for_each(|(number, case)| check(case, outputs.of(0, number)))
}

fn check(case: &Case, observed: &[f64]) -> anyhow::Result<()> {
    let (logits, right, epsilon) = case;
    let (pictures, classes) = (right.len() as f64, logits[0].len() as f64);
    let loss = loss(case, *epsilon);
    // Single precision is enough. The largest losses are a few hundred.
    let tolerance = 1e-6 * (1.0 + loss * 10.0);
    let given = format!("ε {epsilon}, right classes {right:?}, logits {logits:?}");
    let [seen] = observed else {
        return Claim::that(false, "one number", format!("{observed:?}"))
            .given(given)
            .or_fail("return one loss for the whole batch: the mean over its pictures");
    };
    let is = |value: f64| (value - seen).abs() <= tolerance;
    let floor = floor(*epsilon, classes);
    Claim::close(&[loss], observed, tolerance)
        .given(given)
        .diagnose_if(
            is(loss / pictures),
            format!(
                "divided by the number of pictures twice, so the loss shrinks with the batch: the smallest loss that a network can reach \
                 for ε {epsilon} and {classes} classes is {floor:.4}"
            ),
        )
        .diagnose_if(is(loss * pictures), "the sum over the pictures, not their mean: the loss grows with the batch")
        .diagnose_if(is(-loss), "the sign is missing: logarithms of probabilities are negative, but a loss is not")
        .diagnose_if(is(self::loss(case, 0.0)), "plain cross entropy: the target is not smoothed")
        .diagnose_if(
            is(self::loss(case, epsilon * classes / (classes - 1.0))),
            "ε is shared only by the wrong classes: the right class gets a share, too, so its target is 1 − ε + ε / K",
        )
        .diagnose_if(
            !seen.is_finite(),
            "not a finite number: with large logits, a probability is 0 in floating point and its logarithm infinite. Use `log_softmax`, \
             which never computes the probability itself",
        )
        .or_fail("this is not the cross entropy with label smoothing")
}

fn loss((logits, right, _): &Case, epsilon: f64) -> f64 {
    let of_picture = |(logits, right): (&Vec<f64>, &i64)| {
        let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = logits.iter().map(|logit| (logit - most).exp()).sum();
        let share = epsilon / logits.len() as f64;
        let term = |(class, logit): (usize, &f64)| {
            let target = if class as i64 == *right { 1.0 - epsilon + share } else { share };
            -target * (logit - most - sum.ln())
        };
        logits.iter().enumerate().map(term).sum::<f64>()
    };
    logits.iter().zip(right).map(of_picture).sum::<f64>() / right.len() as f64
}

/// The entropy of the smoothed target.
fn floor(epsilon: f64, classes: f64) -> f64 {
    let share = epsilon / classes;
    let term = |p: f64| if p > 0.0 { -p * p.ln() } else { 0.0 };
    term(1.0 - epsilon + share) + (classes - 1.0) * term(share)
}
